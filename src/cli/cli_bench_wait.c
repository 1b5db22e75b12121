/* See cli_bench_wait.h. The backend's table is found behind be->ops: it is the first member of what stands in its
 * place.
 */
#include "cli/cli_bench_wait.h"

#include "base/clock.h"

static gy_bench_wait *wait_of(const gy_backend *be) {
    union {
        const gy_ops *ops;
        gy_bench_wait *w;
    } u = {.ops = be->ops};
    return u.w;
}

static void timed_download(gy_backend *be, void *host_dst, const void *src, size_t bytes) {
    gy_bench_wait *w = wait_of(be);
    const int64_t t = gy_clock_ns();
    w->inner->download(be, host_dst, src, bytes);
    w->ns += gy_clock_ns() - t;
}

static gy_status timed_sync(gy_backend *be, gy_err *err) {
    gy_bench_wait *w = wait_of(be);
    const int64_t t = gy_clock_ns();
    const gy_status st = w->inner->sync(be, err);
    w->ns += gy_clock_ns() - t;
    return st;
}

static gy_status timed_reached(gy_backend *be, gy_err *err) {
    gy_bench_wait *w = wait_of(be);
    const int64_t t = gy_clock_ns();
    const gy_status st = w->inner->reached(be, err);
    w->ns += gy_clock_ns() - t;
    return st;
}

void gy_bench_wait_begin(gy_bench_wait *w, gy_backend *be) {
    *w = (gy_bench_wait){.ops = *be->ops, .inner = be->ops};
    w->ops.download = timed_download;
    w->ops.sync = timed_sync;
    if (w->ops.reached) w->ops.reached = timed_reached;
    be->ops = &w->ops;
}

void gy_bench_wait_end(gy_bench_wait *w, gy_backend *be) {
    be->ops = w->inner;
}
