/* What the server tells Prometheus: vLLM's names and types, so that its boards and a Kubernetes endpoint picker work
 * unchanged (where a name was replaced, the old and the new one), HTTP as FastAPI's instrumentation names it, and
 * gyre's own: loops, depth, rows, what the step costs the host.
 *
 * One thread calls everything but gy_oai_metrics_text, which any thread may call. Labels model_name and engine stand on
 * each vllm: and gyre: series. Counters begin at 0 with the process; no _created lines.
 */
#ifndef GY_SERVER_OAI_METRICS_H
#define GY_SERVER_OAI_METRICS_H

#include "base/str.h"
#include "gyre.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_oai_metrics gy_oai_metrics;

typedef struct gy_oai_metrics_info { /* read during create only */
    const char *model_name;
    int32_t engine; /* index of the engine in a group; 0 */
    int32_t max_len, max_loops;
    int32_t block_size, n_block;
    const char *cache_dtype, *kv_layout;
    int32_t prefix_cache;
    size_t kv_bytes, weight_bytes;
    int32_t max_queue;        /* choices that may wait */
    int64_t max_queue_tokens; /* prompt tokens that may wait; 0: any number */
    int32_t has_workers;      /* series about them that would fill a page of zeros are left out without */
} gy_oai_metrics_info;

gy_oai_metrics *gy_oai_metrics_create(const gy_oai_metrics_info *info); /* NULL on no memory */
void gy_oai_metrics_destroy(gy_oai_metrics *m);                         /* accepts NULL */

/* The engine's counters as they are now. Called after each wake of the event descriptor it is about once a step; what
 * is a histogram per step (tokens, rows per pass, host time) gets the mean of the steps since the last call, so many
 * times. */
void gy_oai_metrics_stats(gy_oai_metrics *m, const gyre_stats *s);

/* What the server itself holds, as it is now. */
enum { GY_OAI_LANES = 2 }; /* "quick", "slow" */
typedef struct gy_oai_lane {
    size_t n_job, n_bytes; /* waiting and running */
    uint64_t n_done, n_full;
    double busy_s;
} gy_oai_lane;
typedef struct gy_oai_load {
    size_t body_bytes;      /* of all requests that live */
    int64_t backlog_tok;    /* prompt tokens of requests whose first output has not come */
    double prefill_tok_s;   /* how fast prompts were computed lately; 0: not known */
    uint64_t n_log_dropped; /* lines of the access log that could not be written */
    gy_oai_lane lane[GY_OAI_LANES];
} gy_oai_load;
void gy_oai_metrics_load(gy_oai_metrics *m, const gy_oai_load *l);

/* A request was taken: its parameters. max_tokens 0: as many as fit, not counted. */
void gy_oai_metrics_request(gy_oai_metrics *m, int32_t n, int32_t max_tokens);
/* An output token. seconds: since the submit for a choice's first, else since the choice's token before. */
void gy_oai_metrics_token(gy_oai_metrics *m, int32_t loops, int is_first, double seconds);
/* The end of a choice. max_output: the most outputs of one choice of the request; counted with its last choice. */
void gy_oai_metrics_finish(gy_oai_metrics *m, int32_t choice, const gyre_finish *f, int32_t max_output);
void gy_oai_metrics_unknown_fields(gy_oai_metrics *m, int32_t n);

typedef enum gy_oai_route {
    GY_OAI_R_COMPLETIONS,
    GY_OAI_R_CHAT,
    GY_OAI_R_TOKENIZE,
    GY_OAI_R_DETOKENIZE,
    GY_OAI_R_TEMPLATE,
    GY_OAI_R_MODELS,
    GY_OAI_R_HEALTH,
    GY_OAI_R_METRICS,
    GY_OAI_R_VERSION,
    GY_OAI_R_OTHER, /* everything else: a client must not be able to make series */
    GY_OAI_N_ROUTE
} gy_oai_route;
const char *gy_oai_route_path(gy_oai_route r);   /* "/v1/completions", ..., "other"; static */
const char *gy_oai_route_method(gy_oai_route r); /* "POST", "GET", "other"; static */
/* An answer was sent, or the client left (status 499). */
void gy_oai_metrics_http(gy_oai_metrics *m, gy_oai_route r, int status, double seconds, size_t bytes_in,
                         size_t bytes_out);

void gy_oai_metrics_text(const gy_oai_metrics *m, gy_str *out); /* process_* included */

#endif
