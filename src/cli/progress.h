/* A line of progress on a terminal: "loading 43 % 1.2 of 2.9 GB". Nothing when stderr is no terminal. One at a time. */
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

#endif
