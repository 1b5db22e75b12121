/* From what happened to figures: percentiles, rates, KV in use against what other ways would hold, medians over
 * repeats. Pure; times are nanoseconds of one clock.
 *
 * Words, as load generators use them: TTFT, from arrival to the first token; TPOT, mean time of each later token of a
 * request; ITL, the time between two tokens that follow each other, all requests together; E2E, from arrival to the
 * end; queue, from arrival to admission; tail, of prompts that crossed between workers. Percentiles interpolate between
 * the two nearest values (NumPy's default).
 */
#ifndef GY_CLI_CLI_BENCH_STATS_H
#define GY_CLI_CLI_BENCH_STATS_H

#include "cli/cli_bench_load.h"
#include "engine/engine.h"

typedef enum gy_bench_dist {
    GY_BENCH_TTFT,
    GY_BENCH_TPOT,
    GY_BENCH_ITL,
    GY_BENCH_E2E,
    GY_BENCH_QUEUE,
    GY_BENCH_TAIL, /* workers: from the prompt's last computed row until its last byte was where it is decoded */
    GY_BENCH_DISTS
} gy_bench_dist;
typedef enum gy_bench_stat {
    GY_BENCH_MEAN,
    GY_BENCH_P50,
    GY_BENCH_P90,
    GY_BENCH_P95,
    GY_BENCH_P99,
    GY_BENCH_MAX,
    GY_BENCH_STATS
} gy_bench_stat;

/* One row a figure: name in JSON and CSV. Blocks are those of the core pool. The decode_ figures are means over the
 * steps in which every admitted request had its first token: only then is it known which loops each token has run. */
#define GY_BENCH_FIGURES(X)                                                                                            \
    X(SECONDS, "seconds")                                                                                              \
    X(CPU_SECONDS, "cpu_seconds")                                                                                      \
    X(REQUESTS, "requests")                                                                                            \
    X(FAILED, "failed_requests")                                                                                       \
    X(PROMPT_TOK, "prompt_tokens")                                                                                     \
    X(CACHED_TOK, "cached_prompt_tokens")                                                                              \
    X(OUTPUT_TOK, "output_tokens")                                                                                     \
    X(OUTPUT_RATE, "output_tokens_per_s")                                                                              \
    X(TOTAL_RATE, "total_tokens_per_s")                                                                                \
    X(REQUEST_RATE, "requests_per_s")                                                                                  \
    X(MEAN_LOOPS, "mean_loops")                                                                                        \
    X(STEPS, "steps")                                                                                                  \
    X(PASSES, "passes")                                                                                                \
    X(ROWS, "rows_per_pass")                                                                                           \
    X(ROWS_SHARE, "rows_share_of_max")                                                                                 \
    X(KV_TOTAL, "kv_blocks_total")                                                                                     \
    X(KV_USED_MEAN, "kv_blocks_used_mean")                                                                             \
    X(KV_USED_PEAK, "kv_blocks_used_peak")                                                                             \
    X(KV_RESERVED_MEAN, "kv_blocks_full_reservation_mean")                                                             \
    X(KV_RESERVED_PEAK, "kv_blocks_full_reservation_peak")                                                             \
    X(KV_BYTES_PEAK, "kv_bytes_used_peak")                                                                             \
    X(DECODE_STEPS, "decode_steps")                                                                                    \
    X(DECODE_USED, "decode_kv_blocks_used")                                                                            \
    X(DECODE_EXECUTED, "decode_kv_blocks_executed")                                                                    \
    X(DECODE_FULL, "decode_kv_blocks_full_depth")                                                                      \
    X(DECODE_RESERVED, "decode_kv_blocks_full_reservation")                                                            \
    X(KV_COPIED, "kv_copied_bytes")                                                                                    \
    X(HIT_RATE, "prefix_hit_rate")                                                                                     \
    X(PREEMPTIONS, "preemptions")                                                                                      \
    X(STEP_US, "step_us")                                                                                              \
    X(HOST_US, "host_us_per_step")                                                                                     \
    X(HOST_SHARE, "host_share")                                                                                        \
    X(SAMPLE_US, "sample_us_per_step")                                                                                 \
    X(WAIT_US, "wait_us_per_step")                                                                                     \
    X(WORK_US, "work_us_per_step")                                                                                     \
    X(WORK_SHARE, "work_share")                                                                                        \
    X(KV_BYTES, "kv_bytes")                                                                                            \
    X(WORKSPACE_BYTES, "workspace_bytes")                                                                              \
    X(FLOOR_PROMPT, "floor_prompt_ms")                                                                                 \
    X(FLOOR_TOKEN, "floor_token_ms")                                                                                   \
    X(RSS_PEAK, "rss_peak_bytes")                                                                                      \
    X(CROSSED, "crossed_requests")                                                                                     \
    X(CROSSED_BYTES, "crossed_bytes")                                                                                  \
    X(OVERLAP, "crossed_share_while_computing")                                                                        \
    X(DESC, "crossed_descriptors")

#define GY_BENCH_ENUM(id, name) GY_BENCH_##id,
enum { GY_BENCH_FIRST = GY_BENCH_DISTS * GY_BENCH_STATS - 1, GY_BENCH_FIGURES(GY_BENCH_ENUM) GY_BENCH_N };
#undef GY_BENCH_ENUM

/* One repeat, or the medians of several. Latencies are milliseconds. NAN: not known (nothing was measured). */
typedef struct gy_bench_result {
    double f[GY_BENCH_N]; /* DISTS x STATS, then the figures */
} gy_bench_result;
static inline size_t gy_bench_at(gy_bench_dist d, gy_bench_stat s) {
    return (size_t)d * GY_BENCH_STATS + (size_t)s;
}
/* "ttft_ms_p50", "seconds" */
void gy_bench_figure_name(size_t i, char *buf, size_t cap);
const char *gy_bench_dist_name(gy_bench_dist d); /* "ttft_ms" */
const char *gy_bench_stat_name(gy_bench_stat s); /* "p50" */

/* Of sorted[0..n), q in 0..1; NAN when n is 0. */
double gy_bench_quantile(const double *sorted, size_t n, double q);
/* Mean, percentiles and maximum of x, which is sorted; all NAN when n is 0. */
void gy_bench_summarize(double *x, size_t n, double stats[GY_BENCH_STATS]);

/* What happened to one request. */
typedef struct gy_bench_record {
    int32_t n_prompt, n_out; /* asked for */
    int32_t n_got, n_cached;
    int failed;
    int64_t due_ns, admit_ns, finish_ns;               /* due: when it arrived; 0 = did not happen */
    const int64_t *tok_ns;                             /* [n_got] */
    const int32_t *loops;                              /* [n_got] */
    struct {                                           /* between workers; bytes 0: it did not cross */
        int64_t bytes, overlap_bytes, n_desc, tail_ns; /* tail -1: not known */
    } cross;
} gy_bench_record;

typedef struct gy_bench_sample { /* after a step */
    int64_t at_ns;
    int32_t used[GY_KV_GROUPS];
    /* of the step alone */
    int32_t n_pass, n_row[2], n_output; /* rows: of prompts, decoding */
    int64_t step_ns, wait_ns;
} gy_bench_sample;

/* Fills the distributions and what records alone tell. GY_E_NOMEM. */
gy_status gy_bench_from_records(const gy_bench_record *rec, size_t n, gy_bench_result *io);
/* Fills KV_USED.. to DECODE_RESERVED. Samples in order of time. GY_E_NOMEM. */
gy_status gy_bench_from_samples(const gy_kv_config *c, const gy_bench_record *rec, size_t n, const gy_bench_sample *s,
                                size_t n_sample, gy_bench_result *io);
/* Fills what the engine counted between two looks. */
void gy_bench_from_stats(const gy_engine_stats *before, const gy_engine_stats *after, int32_t max_rows,
                         gy_bench_result *io);
/* Behind that one: steps waited so long for a device in all; the rest of a step is the host's work, whatever it is. */
void gy_bench_from_wait(int64_t wait_ns, gy_bench_result *io);

enum { GY_BENCH_MAX_REPEAT = 100 };
/* Figure by figure over at most that many repeats; of an even number the mean of the middle two. */
void gy_bench_median(const gy_bench_result *r, size_t n, gy_bench_result *out);

#endif
