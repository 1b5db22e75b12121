/* From what happened to requests of `gyre bench serve` to figures. Pure; times are nanoseconds of one clock.
 *
 * The words mean what they mean in vLLM's `bench serve`, so that numbers can be compared:
 *   TTFT  from the sending of a request to its first output
 *   E2E   from the sending to the last event with a choice
 *   TPOT  (E2E - TTFT) / (output tokens - 1) of a request with two tokens or more
 *   ITL   between two events with output that follow each other, all requests together
 *   lag   from the moment a request was due to its sending: the generator's own delay, in none of the others
 * Output tokens are those of "usage"; where a server sends none, events with output. Failed requests are in no latency
 * and no token count. Percentiles interpolate between the two nearest values (NumPy's default).
 */
#ifndef GY_CLI_CLI_BENCH_SERVE_STATS_H
#define GY_CLI_CLI_BENCH_SERVE_STATS_H

#include "cli/cli_bench_stats.h"
#include "cli/oai_client.h"

typedef struct gy_bserve_record {
    int32_t stream, turn;
    int32_t n_prompt_asked, n_out_asked;
    int sent; /* 0: the run was over before; then only the fields above */
    int ended;
    gy_oai_end end; /* GY_OAI_DONE, or how it failed */
    int http_status;
    int has_usage;
    int64_t n_prompt, n_out, n_cached; /* n_cached -1: not told */
    int64_t loops;
    int32_t n_loop_tok;
    int64_t arrival_ns;               /* as the workload has it; 0 for turns after the first */
    int64_t due_ns;                   /* when it could be sent: arrived, and a place was free */
    int64_t sent_ns, last_ns, end_ns; /* last: of an event with a choice */
    int64_t *tok_ns;                  /* of each event with output; gy_mem */
    size_t n_tok, cap_tok;
    char *msg; /* of a failure; gy_mem, NULL when there was no memory */
} gy_bserve_record;

enum { GY_BSERVE_TTFT, GY_BSERVE_TPOT, GY_BSERVE_ITL, GY_BSERVE_E2E, GY_BSERVE_LAG, GY_BSERVE_DISTS };
const char *gy_bserve_dist_name(int dist); /* "ttft_ms" */

/* Rates and means are per second and over the whole run, from its start to the end of its last request. */
#define GY_BSERVE_FIGURES(X)                                                                                           \
    X(SECONDS, "seconds")                                                                                              \
    X(REQUESTS, "requests")                                                                                            \
    X(COMPLETED, "completed")                                                                                          \
    X(FAILED, "failed")                                                                                                \
    X(NOT_SENT, "not_sent")                                                                                            \
    X(PROMPT_TOK, "prompt_tokens")                                                                                     \
    X(CACHED_TOK, "cached_prompt_tokens")                                                                              \
    X(OUTPUT_TOK, "output_tokens")                                                                                     \
    X(NO_USAGE, "replies_without_usage")                                                                               \
    X(REQUEST_RATE, "requests_per_s")                                                                                  \
    X(OUTPUT_RATE, "output_tokens_per_s")                                                                              \
    X(TOTAL_RATE, "total_tokens_per_s")                                                                                \
    X(GOOD, "good_requests")                                                                                           \
    X(GOODPUT, "goodput_requests_per_s")                                                                               \
    X(MEAN_LOOPS, "mean_loops")                                                                                        \
    X(RUNNING_MEAN, "running_mean")                                                                                    \
    X(RUNNING_PEAK, "running_peak")                                                                                    \
    X(HELD_BACK, "held_back")                                                                                          \
    X(HELD_BACK_MS, "held_back_ms_mean")                                                                               \
    X(CPU_SECONDS, "client_cpu_seconds")                                                                               \
    X(CPU_SHARE, "client_cpu_share")                                                                                   \
    X(CPU_US_TOK, "client_cpu_us_per_token")

#define GY_BSERVE_ENUM(id, name) GY_BSERVE_##id,
enum { GY_BSERVE_FIGURES(GY_BSERVE_ENUM) GY_BSERVE_N };
#undef GY_BSERVE_ENUM
const char *gy_bserve_figure_name(int figure);

typedef struct gy_bserve_slo { /* milliseconds; NAN: any */
    double ttft, tpot, e2e;
    int given;
} gy_bserve_slo;

typedef struct gy_bserve_error { /* requests that failed alike */
    gy_oai_end end;
    int http_status;  /* 0 unless end is GY_OAI_HTTP */
    int32_t n, first; /* first: a record's number */
} gy_bserve_error;
enum { GY_BSERVE_MAX_ERROR = 32 }; /* kinds; what goes beyond is in the last one */

typedef struct gy_bserve_result {
    double dist[GY_BSERVE_DISTS][GY_BENCH_STATS];
    double f[GY_BSERVE_N]; /* NAN: not known */
    gy_bserve_error error[GY_BSERVE_MAX_ERROR];
    int n_error;
} gy_bserve_result;

/* Milliseconds of one record; NAN when it has none. */
double gy_bserve_value(const gy_bserve_record *r, int dist);
int gy_bserve_is_good(const gy_bserve_record *r, const gy_bserve_slo *slo);
/* cpu_s: processor seconds of the generator. GY_E_NOMEM. */
gy_status gy_bserve_figures(const gy_bserve_record *rec, size_t n, int64_t begin_ns, double cpu_s,
                            const gy_bserve_slo *slo, gy_bserve_result *out);
/* All values of a distribution, sorted; new memory (gy_mem_free), NULL on no memory. */
double *gy_bserve_sorted(const gy_bserve_record *rec, size_t n, int dist, size_t *n_out);

/* "http_404", "broken" */
void gy_bserve_error_name(gy_oai_end end, int http_status, char *buf, size_t cap);

#endif
