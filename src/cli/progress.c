/* Progress of long work by bytes. At most ten lines a second, the first after a fifth of a second. */
#include "cli/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

enum { PROGRESS_QUIET_NS = 200000000, PROGRESS_EVERY_NS = 100000000 };

void gy_progress_begin(gy_progress *p, const char *label) {
    *p = (gy_progress){.label = label, .on = isatty(STDERR_FILENO), .begin_ns = gy_clock_ns()};
}

void gy_progress_format(const char *label, size_t done_bytes, size_t total_bytes, char *buf, size_t cap) {
    double unit = total_bytes >= 1000000000 ? 1e9 : 1e6;
    double percent = total_bytes ? 100.0 * (double)done_bytes / (double)total_bytes : 100.0;
    snprintf(buf, cap, "%s %3.0f %%  %.1f of %.1f %s", label, percent, (double)done_bytes / unit,
             (double)total_bytes / unit, unit == 1e9 ? "GB" : "MB");
}

void gy_progress_update(void *progress, size_t done_bytes, size_t total_bytes) {
    gy_progress *p = progress;
    int64_t now = gy_clock_ns();
    char line[128];
    if (!p->on || now - p->begin_ns < PROGRESS_QUIET_NS || now - p->last_ns < PROGRESS_EVERY_NS) return;
    gy_progress_format(p->label, done_bytes, total_bytes, line, sizeof line);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    p->last_ns = now;
    p->shown = 1;
}

void gy_progress_end(gy_progress *p) {
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = 0;
}
