/* At most ten lines a second, the first after a fifth of a second; where lines cannot be redrawn, one in ten seconds.
 */
#include "cli/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

enum { PROGRESS_QUIET_NS = 200000000, PROGRESS_EVERY_NS = 100000000 };
static const int64_t LINE_EVERY_NS = 10000000000;

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

/* ---- a batch of requests ---- */

void gy_batch_progress_begin(gy_batch_progress *p, int lines) {
    int64_t now = gy_clock_ns();
    *p = (gy_batch_progress){.redraw = isatty(STDERR_FILENO), .begin_ns = now, .last_ns = now};
    p->every_ns = p->redraw ? PROGRESS_EVERY_NS : lines ? LINE_EVERY_NS : 0;
}

int gy_batch_progress_due(const gy_batch_progress *p, int64_t now_ns) {
    return p->every_ns && now_ns - p->last_ns >= p->every_ns && now_ns - p->begin_ns >= PROGRESS_QUIET_NS;
}

void gy_batch_progress_format(const gy_batch_counts *c, char *buf, size_t cap) {
    double seconds = (double)c->elapsed_ns * 1e-9;
    size_t n_here = c->n_done - c->n_before;
    int n = snprintf(buf, cap, "%zu of %zu done", c->n_done, c->n_total);
    if (n >= 0 && (size_t)n < cap && c->n_tok && seconds > 0)
        n += snprintf(buf + n, cap - (size_t)n, ", %.1f tok/s", (double)c->n_tok / seconds);
    if (n >= 0 && (size_t)n < cap && c->n_tok && c->n_loop)
        n += snprintf(buf + n, cap - (size_t)n, ", %.2f loops a token", (double)c->n_loop / (double)c->n_tok);
    if (n < 0 || (size_t)n >= cap || !n_here) return;
    int64_t left = (int64_t)(seconds / (double)n_here * (double)(c->n_total - c->n_done) + 0.5);
    if (left >= 3600)
        snprintf(buf + n, cap - (size_t)n, ", %lld:%02d:%02d left", (long long)(left / 3600), (int)(left / 60 % 60),
                 (int)(left % 60));
    else
        snprintf(buf + n, cap - (size_t)n, ", %d:%02d left", (int)(left / 60), (int)(left % 60));
}

void gy_batch_progress_show(gy_batch_progress *p, gy_batch_counts *c, int64_t now_ns) {
    char line[160];
    c->elapsed_ns = now_ns - p->begin_ns;
    gy_batch_progress_format(c, line, sizeof line);
    fprintf(stderr, p->redraw ? "\r%s\033[K" : "gyre: %s\n", line);
    fflush(stderr);
    p->last_ns = now_ns;
    p->shown = p->redraw;
}

void gy_batch_progress_wipe(gy_batch_progress *p) {
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = 0;
}
