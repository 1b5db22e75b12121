/* What a benchmark asks of the engine: the workload as numbers, and from them every request, before anything runs.
 * Pure: a function of the settings and the seed, so that each repeat, and off and on of a comparison, do the same work.
 *
 *   burst     all requests at once
 *   closed    `concurrency` requests always run: when one ends the next is sent
 *   poisson   requests arrive by themselves, `rate` a second on average, whether earlier ones have ended or not
 *   session   `users` conversations of `turns` turns; a turn's prompt is the prompt and output of the one before and
 * new tokens; the next turn is sent when the one before has ended (nobody thinks)
 *
 * A stream is the tokens of one conversation, prompts and outputs in one array; other workloads have one a request.
 * Random numbers are Philox blocks keyed by (seed, stream, position or turn, purpose).
 */
#ifndef GY_CLI_CLI_BENCH_LOAD_H
#define GY_CLI_CLI_BENCH_LOAD_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_bench_kind { GY_BENCH_BURST, GY_BENCH_CLOSED, GY_BENCH_POISSON, GY_BENCH_SESSION } gy_bench_kind;
#define GY_BENCH_KINDS "burst|closed|poisson|session"

typedef struct gy_bench_range {
    int32_t lo, hi; /* both included */
} gy_bench_range;

typedef enum gy_bench_spread {
    GY_BENCH_EVENLY,   /* every length as likely */
    GY_BENCH_BY_TURNS, /* lo, hi, lo, ... by stream */
    GY_BENCH_CHAT /* as prompts of ShareGPT are said to be: log-normal, median 100, mean about 220, cut to lo..hi */
} gy_bench_spread;

typedef struct gy_bench_load {
    gy_bench_kind kind;
    int32_t n_stream, n_turn; /* requests = n_stream * n_turn; n_turn is 1 outside sessions */
    int32_t concurrency;      /* closed: running at once */
    gy_bench_range in, out;   /* new prompt tokens and outputs of a request */
    double rate;              /* poisson: requests a second */
    uint64_t seed;
    gy_bench_spread in_spread; /* of lengths in `in` */
} gy_bench_load;

typedef struct gy_bench_item {
    int32_t stream, turn;
    int32_t n_prompt; /* the whole prompt */
    int32_t n_new;    /* of it tokens that no earlier turn held */
    int32_t n_out;
    int64_t at_ns; /* poisson: arrival after the start; else 0 */
} gy_bench_item;

/* "128" or "64:256". Errors name `what`. */
gy_status gy_bench_parse_range(const char *text, const char *what, gy_err *err, gy_bench_range *out);
/* Those, "128,4096" (by turns) or "sharegpt". */
gy_status gy_bench_parse_lengths(const char *text, const char *what, gy_err *err, gy_bench_range *out,
                                 gy_bench_spread *spread_out);

/* items [n_stream * n_turn], in the order in which they may be sent: by turn, then by stream. */
void gy_bench_items(const gy_bench_load *l, gy_bench_item *items);
/* at_ns [n]: arrivals after the start, `rate` a second on average, never earlier than the one before. The gaps have a
 * gamma distribution of shape `burstiness`: 1 is Poisson's process, below 1 comes in bursts, above 1 more evenly.
 * Infinite rate: all 0. */
void gy_bench_arrivals(uint64_t seed, double rate, double burstiness, int32_t n, int64_t *at_ns);
/* Longest prompt + output that the ranges allow; also what a stream must hold. */
int64_t gy_bench_longest(const gy_bench_load *l);
/* ids [n]: the random tokens of a stream, in 0..n_vocab-1. */
void gy_bench_ids(uint64_t seed, int32_t stream, int32_t n, int32_t n_vocab, int32_t *ids);

#endif
