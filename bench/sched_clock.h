/* Requests through the real scheduler on a clock that a cost model drives: what order and shares do to the time to the
 * first token and to the rate, in milliseconds of processor for minutes of a GPU. No model, no KV bytes, no threads;
 * the same numbers on every machine.
 */
#ifndef GY_BENCH_SCHED_CLOCK_H
#define GY_BENCH_SCHED_CLOCK_H

#include <stdint.h>

/* A pass takes max(pass_us, rows x row_us), rows as whole tiles where they are more than one, each decode row read_ns
 * for each token that it attends to, and the coda behind it coda_us and coda_row_us for each row that is sampled. */
typedef struct sched_cost {
    double pass_us, row_us, read_ns, coda_us, coda_row_us;
    int32_t tile;
} sched_cost;

typedef struct sched_load {
    int32_t n_request, concurrency; /* concurrency 0: requests arrive by themselves */
    double rate;                    /* of them a second */
    int32_t in_lo, in_hi, out;      /* prompts between the bounds, each octave as often */
    int32_t max_rows, max_seqs, prefill_chunk;
    double prefill_share;
} sched_load;

/* The table of loads, one line each. 1: all ran. */
int sched_clock_table(const sched_cost *cost, double prefill_share, int json);

#endif
