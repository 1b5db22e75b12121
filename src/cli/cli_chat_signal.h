/* Signals of `gyre chat`: seen where the program waits, never in the middle of something. Handlers set marks, write a
 * byte into a pipe and wake the client; process-wide, so begin and end come once. One thread asks. A write to the
 * terminal goes on behind a signal (SA_RESTART): stdio would keep its failure. A second SIGTERM ends the process at
 * once.
 */
#ifndef GY_CLI_CLI_CHAT_SIGNAL_H
#define GY_CLI_CLI_CHAT_SIGNAL_H

#include "base/status.h"
#include "cli/oai_client.h"

gy_status gy_chat_signals_begin(gy_err *err); /* SIGINT, SIGTERM, SIGHUP, SIGWINCH */
void gy_chat_signals_end(void);               /* what was there before holds again */
void gy_chat_signals_client(gy_oai *c);       /* woken by each signal; NULL: none. Borrowed */

int gy_chat_took_interrupt(void); /* SIGINT came since the last question */
int gy_chat_took_resize(void);    /* SIGWINCH */
int gy_chat_took_stop(void);      /* SIGTSTP, while gy_chat_signals_hold_stop */
int gy_chat_is_ending(void);      /* SIGTERM or SIGHUP came */

/* 1: SIGTSTP is told by gy_chat_took_stop, so that the terminal can be put in order first; 0: it stops as usual. */
void gy_chat_signals_hold_stop(int on);

/* Waits until fd can be read (1) or a signal came (0); -1: fd is broken. */
int gy_chat_wait_readable(int fd);

#endif
