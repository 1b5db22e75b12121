/* The terminal of `gyre chat`: lines typed with editing and history (libedit inside, nobody else sees it), or read from
 * a pipe; echo while an answer runs. Signals are cli_chat_signal's. One per process; single thread.
 */
#ifndef GY_CLI_CLI_CHAT_TERM_H
#define GY_CLI_CLI_CHAT_TERM_H

#include "base/status.h"
#include "base/str.h"

typedef struct gy_chat_term gy_chat_term;

typedef enum gy_chat_typed {
    GY_CHAT_LINE,  /* a line, without its LF; pasted text may hold some */
    GY_CHAT_EOF,   /* Ctrl-D, or the pipe's end */
    GY_CHAT_BREAK, /* Ctrl-C */
    GY_CHAT_RESET, /* Ctrl-C on a line that was not empty */
    GY_CHAT_ENDING /* SIGTERM or SIGHUP; standard input cannot be read; no memory */
} gy_chat_typed;

/* lines: standard input is read line by line, without editing and history. history: the file, NULL: none is kept. What
 * is wrong with that file is told by a note, once, and lines are kept for this run only. */
gy_status gy_chat_term_open(int lines, const char *history, gy_err *err, gy_chat_term **out);
void gy_chat_term_close(gy_chat_term *t); /* accepts NULL */

gy_chat_typed gy_chat_term_read(gy_chat_term *t, const char *prompt, gy_str *line_out); /* replaces *line_out */
void gy_chat_term_remember(gy_chat_term *t, const char *text);                          /* into the history */
/* 1: what is typed is not shown and waits for the next read; 0: as before. */
void gy_chat_term_mute(gy_chat_term *t, int on);

/* Columns of standard output, 80 if they are unknown. */
int gy_chat_term_width(void);

/* ~/.local/state/gyre/chat_history, its folders made: into out; GY_E_IO with the sentence. Both may be NULL. */
gy_status gy_chat_history_path(const char *home, const char *state_home, gy_err *err, gy_str *out);

#endif
