/* A line of progress on stderr, one at a time. Loading: "loading 43 % 1.2 of 2.9 GB", only on a terminal. A batch of
 * requests: redrawn on a terminal, elsewhere a line now and then. Never waits.
 */
#ifndef GY_CLI_PROGRESS_H
#define GY_CLI_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

typedef struct gy_progress {
    const char *label;
    int on;           /* stderr is a terminal */
    int shown;        /* a line is there to be wiped out */
    int64_t begin_ns; /* work shorter than a moment shows nothing */
    int64_t last_ns;
} gy_progress;

void gy_progress_begin(gy_progress *p, const char *label);
void gy_progress_update(void *progress, size_t done_bytes, size_t total_bytes); /* the callback's form */
void gy_progress_end(gy_progress *p);
/* "loading  43 %  1.2 of 2.9 GB" into buf; pure. */
void gy_progress_format(const char *label, size_t done_bytes, size_t total_bytes, char *buf, size_t cap);

/* ---- a batch of requests ---- */

typedef struct gy_batch_counts {
    size_t n_done, n_total; /* requests */
    size_t n_before;        /* of n_done: answered before this run */
    int64_t n_tok, n_loop;  /* outputs of this run and the loops that they ran */
    int64_t elapsed_ns;
} gy_batch_counts;

typedef struct gy_batch_progress {
    int redraw;       /* stderr is a terminal */
    int64_t every_ns; /* 0: nothing is shown */
    int shown;        /* a line is there to be wiped out */
    int64_t begin_ns, last_ns;
} gy_batch_progress;

/* lines: also when stderr is no terminal. */
void gy_batch_progress_begin(gy_batch_progress *p, int lines);
int gy_batch_progress_due(const gy_batch_progress *p, int64_t now_ns);
void gy_batch_progress_show(gy_batch_progress *p, gy_batch_counts *c, int64_t now_ns); /* sets c->elapsed_ns */
void gy_batch_progress_wipe(gy_batch_progress *p); /* before anything else goes to the terminal */
/* "137 of 200 done, 412.3 tok/s, 3.21 loops a token, 0:42 left"; what is not known yet is left out. Pure. */
void gy_batch_progress_format(const gy_batch_counts *c, char *buf, size_t cap);

#endif
