/* Lines to a file or a pipe, by a thread: whoever puts a line never waits for a disk or a reader.
 *
 * Lines wait in a ring of fixed size. One that finds no room is dropped and counted, as is one that the system refuses
 * to write (a full disk, a pipe whose reader left); both are said in the program's log when they begin and, with their
 * number, when lines get through again. The thread writes at most PIPE_BUF bytes at a time to what is no regular file,
 * after poll said that there is room, so that it can always be told to end.
 *
 * Deliberately not here: rotation (logrotate renames, then reopen), formats.
 */
#ifndef GY_SERVER_LOG_WRITER_H
#define GY_SERVER_LOG_WRITER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_log_writer gy_log_writer;

/* path: appended to, made if need be (0640), borrowed until close. NULL: fd, borrowed. cap: bytes of lines that may
 * wait. */
gy_status gy_log_writer_open(const char *path, int fd, size_t cap, gy_err *err, gy_log_writer **out);
/* Any thread. A whole line, its LF included. 0, or -1: dropped. */
int gy_log_writer_put(gy_log_writer *w, const char *line, size_t n);
/* Any thread: the path is opened again, and lines put after this call go there. Waits for no disk; if the file cannot
 * be opened, the old one stays and the program's log says so. Nothing happens without a path. */
void gy_log_writer_reopen(gy_log_writer *w);

typedef struct gy_log_writer_stats {
    uint64_t n_line, n_dropped, n_failed; /* written; no room; refused by the system */
    size_t waiting;                       /* bytes */
} gy_log_writer_stats;
void gy_log_writer_get_stats(gy_log_writer *w, gy_log_writer_stats *out); /* any thread */

/* Writes what waits, but no longer than wait_ms. Accepts NULL. */
void gy_log_writer_close(gy_log_writer *w, int wait_ms);

#endif
