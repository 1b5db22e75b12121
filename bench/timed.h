/* A backend that forwards each operation to another one and adds up time and weight bytes by operation: where the time
 * of a step goes. The two clock readings around an operation cost about 60 ns, a thousandth of a step.
 * For host backends, whose operations have finished when they return. Not for the GPU. Borrowed by the model that is
 * loaded on it, like any backend.
 */
#ifndef GY_BENCH_TIMED_H
#define GY_BENCH_TIMED_H

#include "ops/ops.h"

enum { TIMED_ENTRIES = 24 };

typedef struct timed_entry {
    const char *op;             /* static: "linear", "attn", ... */
    int32_t n, k;               /* of a linear's weight, else 0 */
    int64_t calls, ns, best_ns; /* best_ns: the shortest call, which nothing disturbed */
    double weight_bytes;        /* read by linears: n * k * element size for each call */
} timed_entry;

typedef struct timed_backend {
    gy_backend be; /* first: a gy_backend * is a timed_backend * */
    gy_ops ops;
    gy_backend *inner; /* owned */
    int n_entry;
    timed_entry entry[TIMED_ENTRIES];
} timed_backend;

void timed_init(timed_backend *t, gy_backend *inner); /* takes inner; t must not move afterwards */
void timed_fini(timed_backend *t);                    /* destroys inner; accepts a zeroed t */
void timed_reset(timed_backend *t);

#endif
