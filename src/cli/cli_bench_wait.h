/* How long a backend keeps its caller waiting: stands between an engine and its backend and times the operations
 * that wait for the device. Only while a benchmark measures; the engine does not know. Not for calls from several
 * threads at once.
 */
#ifndef GY_CLI_CLI_BENCH_WAIT_H
#define GY_CLI_CLI_BENCH_WAIT_H

#include "ops/ops.h"

typedef struct gy_bench_wait {
    gy_ops ops; /* the backend's, three of them timed */
    const gy_ops *inner;
    int64_t ns; /* spent in download, sync and reached */
} gy_bench_wait;

/* Between begin and end nobody else may change be->ops. */
void gy_bench_wait_begin(gy_bench_wait *w, gy_backend *be);
void gy_bench_wait_end(gy_bench_wait *w, gy_backend *be);

#endif
