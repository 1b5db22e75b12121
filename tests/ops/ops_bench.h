/* test_ops_linear, _quant, _attn, _rows --bench: times the cases that these tests compare, with the tests' own set-up,
 * and prints one line for each operation, variant and dtype: all its cases together, over ceilings that were measured
 * before them in the same run (bench/ceiling.h). The cases are small and odd: what they read lies in a cache (GB/s may
 * pass the memory's), and most of their time is tails and forks. How fast large shapes are, gyre-bench-ops says. Of
 * each case the best of 5 batches counts, each of as many calls as take 20 us. Host backends only.
 */
#ifndef GY_TESTS_OPS_BENCH_H
#define GY_TESTS_OPS_BENCH_H

#include "base/clock.h"
#include "base/team.h"
#ifdef GY_OPS_BENCH
#include "ceiling.h"
#endif

#include <stdio.h>
#include <string.h>

enum { BENCH_THREADS = 2, BENCH_KINDS = 6, BENCH_BATCHES = 5, BENCH_BATCH_NS = 20000 };

typedef struct bench_sum {
    int n;
    double s, bytes, flop;
    double slow, flops_slow; /* the case with the fewest bytes a second: that rate, and its flop/s */
} bench_sum;

static struct {
    int on;
    double read, fma; /* bytes/s, flop/s */
    bench_sum sum[BENCH_KINDS];
    /* the case that is running */
    int64_t left, batch, t0;
    int n_batch;
    double best;
} bench;

/* Before the first test. */
static inline void bench_open(int argc, char **argv) {
    bench.on = argc == 2 && !strcmp(argv[1], "--bench");
    if (!bench.on) return;
#ifdef GY_OPS_BENCH
    gy_team *team;
    if (gy_team_create(BENCH_THREADS, GY_PIN_AUTO, &team) < 0) return;
    bench.read = gy_ceiling_read_anonymous(team, 2);
    bench.fma = gy_ceiling_fma(team);
    gy_team_destroy(team);
    printf("ceilings, %d threads: read %.1f GB/s, f32 fma %.1f GFLOP/s\n", BENCH_THREADS, bench.read * 1e-9,
           bench.fma * 1e-9);
#else
    fprintf(stderr, "--bench: the ceilings are measured on x86-64 only\n");
    bench.on = 0;
#endif
}

/* Another call of the case? */
static inline int bench_again(void) {
    if (bench.left > 0) {
        bench.left--;
        return 1;
    }
    int64_t ns = gy_clock_ns() - bench.t0;
    if (bench.left == 0 && ns < BENCH_BATCH_NS) {
        bench.batch *= 2;
    } else if (bench.left == 0) {
        double s = (double)ns * 1e-9 / (double)bench.batch;
        bench.best = bench.n_batch++ && bench.best < s ? bench.best : s;
        if (bench.n_batch == BENCH_BATCHES) return 0;
    }
    bench.left = bench.batch - 1;
    bench.t0 = gy_clock_ns();
    return 1;
}

static inline void bench_begin(void) {
    bench.left = -1;
    bench.batch = 1;
    bench.n_batch = 0;
}

static inline void bench_add(int kind, double bytes, double flop) {
    bench_sum *b = &bench.sum[kind];
    double rate = bytes / bench.best;
    if (!b->n || rate < b->slow) {
        b->slow = rate;
        b->flops_slow = flop / bench.best;
    }
    b->n++;
    b->s += bench.best;
    b->bytes += bytes;
    b->flop += flop;
}

/* What the cases since the last call took; names of kinds 0.., NULL-terminated. */
static inline void bench_print(const char *const *names, const char *variant, const char *dtype) {
    for (int k = 0; names[k]; k++) {
        const bench_sum *b = &bench.sum[k];
        if (!b->n) continue;
        printf("%-30s %-12s %-4s %4d cases %8.2f us each %7.2f GB/s %5.3f %8.2f GFLOP/s %5.3f; slowest %.3f GB/s, %.3f "
               "GFLOP/s\n",
               names[k], variant, dtype, b->n, b->s / b->n * 1e6, b->bytes / b->s * 1e-9, b->bytes / b->s / bench.read,
               b->flop / b->s * 1e-9, b->flop / b->s / bench.fma, b->slow * 1e-9, b->flops_slow * 1e-9);
    }
    memset(bench.sum, 0, sizeof bench.sum);
}

/* Times a call that has just been compared; kind: which of bench_print's names it belongs to. */
#define TIMED(be, kind, bytes, flop, call)                                                                             \
    do {                                                                                                               \
        if (!bench.on || !(be)->is_host || !strcmp((be)->ops->name, "ref")) break;                                     \
        for (bench_begin(); bench_again();) call;                                                                      \
        bench_add((kind), (bytes), (flop));                                                                            \
    } while (0)

#endif
