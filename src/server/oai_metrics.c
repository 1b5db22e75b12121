/* The table of names, and events put into it. Names, types and buckets are vLLM's, as its board and its loggers of
 * 2025-2026 use them; a metric that vLLM has and gyre cannot fill is left out, not shown as 0.
 */
#include "server/oai_metrics.h"

#include "base/mem.h"
#include "server/metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- buckets ---------------------------------------------------------------------------------------------------- */

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

static const double ttft_s[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl_s[] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double latency_s[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double prefill_token_s[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1};
static const double step_tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double choices[] = {1, 2, 5, 10, 20};
/* Cut at the longest text. */
static const double lengths[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
static const double depths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18,  19,  20,
                                21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 40, 48, 56, 64, 96, 128, 192, 256};
static const double pass_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
static const double host_s[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4,
                                5e-4, .001, .002, .005, .01,  .02,  .05,  .1};
static const double http_s[] = {.1, .5, 1};
static const double http_fine_s[] = {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                                     2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60};
static const double sizes[] = {256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};

static const double pd_stage_s[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300};
static const double pd_wire_s[] = {1e-5, 2.5e-5, 1e-4, 2.5e-4, .001, .0025, .01, .025, .1, .25, 1, 2.5, 10};
static const double pd_bytes[] = {65536,    262144,    1048576,    4194304,    16777216,
                                  67108864, 268435456, 1073741824, 4294967296, 17179869184};
static const double pd_desc[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096};

/* ---- the table -------------------------------------------------------------------------------------------------- */

typedef enum id {
    RUNNING,
    WAITING,
    WAITING_CAPACITY,
    SWAPPED,
    KV_USAGE,
    GPU_USAGE,
    PREFIX_QUERIES,
    PREFIX_HITS,
    GPU_PREFIX_QUERIES,
    GPU_PREFIX_HITS,
    PREEMPTIONS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    SOURCE_COMPUTE,
    SOURCE_CACHE,
    SOURCE_TRANSFER,
    PROMPT_CACHED,
    OK_STOP,
    OK_LENGTH,
    OK_ABORT,
    OK_ERROR,
    H_PROMPT,
    H_GENERATION,
    H_MAX_GENERATION,
    H_PARAM_MAX,
    H_PARAM_N,
    H_PREFILL_COMPUTED,
    H_ITERATION,
    H_TTFT,
    H_ITL,
    H_TPOT_OLD,
    H_TPOT,
    H_PREFILL_TOKEN,
    H_E2E,
    H_QUEUE,
    H_INFERENCE,
    H_PREFILL,
    H_DECODE,
    CORRUPTED,
    G_LOOPS,
    G_STEPS,
    G_PASSES,
    G_ROWS,
    G_PASS_ROWS,
    G_HOST,
    G_STEP_SECONDS,
    G_MODEL_SECONDS,
    G_SAMPLE_SECONDS,
    G_BLOCKS_FREE,
    G_BLOCKS_CACHED,
    G_BLOCKS_RUNNING,
    G_PREEMPT_PARK,
    G_PREEMPT_DROP,
    G_RESTORES,
    G_RECOMPUTED,
    G_EVICTED,
    G_PARKED,
    G_UNKNOWN,
    G_WAIT_TOK,
    G_BACKLOG,
    G_BODY_BYTES,
    G_PREFILL_RATE,
    G_MASK_HIT,
    G_MASK_MISS,
    G_LOG_DROPPED,
    G_PD_READY,
    G_PD_AWAY,
    G_PD_RESERVING,
    G_PD_PREFILL,
    G_PD_DECODE,
    G_PD_CROSSED,
    G_PD_LOCAL,
    G_PD_RETRIES,
    G_PD_DEATHS,
    G_PD_BYTES,
    G_PD_OPS,
    G_PD_DESCRIPTORS,
    G_PD_FAILED,
    G_PD_INFLIGHT,
    G_PD_SECONDS,
    G_PD_OVERLAP_SECONDS,
    G_PD_OVERLAP_BYTES,
    G_PD_OVERLAPPED,
    G_PD_BLOCKS,
    G_LANE_JOBS, /* each of the five: GY_OAI_LANES of them */
    G_LANE_BYTES = G_LANE_JOBS + 2,
    G_LANE_DONE = G_LANE_BYTES + 2,
    G_LANE_FULL = G_LANE_DONE + 2,
    G_LANE_BUSY = G_LANE_FULL + 2,
    N_ID = G_LANE_BUSY + 2
} id;

typedef struct row {
    gy_metric_spec spec;
    const char *label, *value; /* one more label, or NULL */
} row;

#define C(n, h)                                                                                                        \
    { {.name = (n), .help = (h), .type = GY_COUNTER}, NULL, NULL }
#define CL(n, h, l, v)                                                                                                 \
    { {.name = (n), .help = (h), .type = GY_COUNTER}, l, v }
#define G(n, h)                                                                                                        \
    { {.name = (n), .help = (h), .type = GY_GAUGE}, NULL, NULL }
#define GL(n, h, l, v)                                                                                                 \
    { {.name = (n), .help = (h), .type = GY_GAUGE}, l, v }
#define H(n, h, b)                                                                                                     \
    { {.name = (n), .help = (h), .type = GY_HISTOGRAM, .le = (b), .n_le = LEN(b)}, NULL, NULL }

static const char BY_SOURCE[] = "Prompt tokens by where their KV came from.";
static const char SUCCESS[] = "Choices that ended, by reason.";
static const char BLOCKS[] = "KV blocks by who holds them.";
static const char PREEMPT[] = "Choices that had to make room, by what became of their KV.";

static const char MASKS[] = "Sets of allowed tokens that constraints needed, by where they came from.";
static const char PD_WORKERS[] = "Prefill and decode workers by whether they work.";
static const char PD_REQUESTS[] = "Requests at workers, by what is done for them.";
static const char PD_PROMPTS[] = "Prompts by where they were computed: for another worker, or where they are decoded.";
static const char JOBS[] = "Requests that are prepared beside the loop, waiting or in work.";
static const char JOB_BYTES[] = "Bytes of their bodies.";
static const char JOBS_DONE[] = "Requests that were prepared beside the loop.";
static const char JOBS_FULL[] = "Requests that were refused because too many waited to be prepared.";
static const char JOBS_BUSY[] = "Time spent preparing.";

static const row rows[N_ID] = {
    [RUNNING] = G("vllm:num_requests_running", "Choices in the batch."),
    [WAITING] = G("vllm:num_requests_waiting", "Choices that wait to be admitted."),
    [WAITING_CAPACITY] =
        GL("vllm:num_requests_waiting_by_reason", "Choices that wait, by reason.", "reason", "capacity"),
    [SWAPPED] = G("vllm:num_requests_swapped", "Choices that were preempted and wait with their KV parked."),
    [KV_USAGE] = G("vllm:kv_cache_usage_perc", "Part of the KV pool in use, 0 to 1; what can be reclaimed is free."),
    [GPU_USAGE] = G("vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc."),
    [PREFIX_QUERIES] =
        C("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache, once per request."),
    [PREFIX_HITS] = C("vllm:prefix_cache_hits_total", "Prompt tokens found there."),
    [GPU_PREFIX_QUERIES] = C("vllm:gpu_prefix_cache_queries_total", "Older name of vllm:prefix_cache_queries_total."),
    [GPU_PREFIX_HITS] = C("vllm:gpu_prefix_cache_hits_total", "Older name of vllm:prefix_cache_hits_total."),
    [PREEMPTIONS] = C("vllm:num_preemptions_total", "Choices that had to make room."),
    [PROMPT_TOKENS] = C("vllm:prompt_tokens_total", "Prompt tokens of requests that were prefilled."),
    [GENERATION_TOKENS] = C("vllm:generation_tokens_total", "Output tokens."),
    [SOURCE_COMPUTE] = CL("vllm:prompt_tokens_by_source_total", BY_SOURCE, "source", "local_compute"),
    [SOURCE_CACHE] = CL("vllm:prompt_tokens_by_source_total", BY_SOURCE, "source", "local_cache_hit"),
    [SOURCE_TRANSFER] = CL("vllm:prompt_tokens_by_source_total", BY_SOURCE, "source", "external_kv_transfer"),
    [PROMPT_CACHED] = C("vllm:prompt_tokens_cached_total", "Prompt tokens whose KV was there already."),
    [OK_STOP] = CL("vllm:request_success_total", SUCCESS, "finished_reason", "stop"),
    [OK_LENGTH] = CL("vllm:request_success_total", SUCCESS, "finished_reason", "length"),
    [OK_ABORT] = CL("vllm:request_success_total", SUCCESS, "finished_reason", "abort"),
    [OK_ERROR] = CL("vllm:request_success_total", SUCCESS, "finished_reason", "error"),
    [H_PROMPT] = H("vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths),
    [H_GENERATION] = H("vllm:request_generation_tokens", "Output tokens of a choice.", lengths),
    [H_MAX_GENERATION] = H("vllm:request_max_num_generation_tokens", "Most output tokens of one choice.", lengths),
    [H_PARAM_MAX] = H("vllm:request_params_max_tokens", "max_tokens of a request.", lengths),
    [H_PARAM_N] = H("vllm:request_params_n", "n of a request.", choices),
    [H_PREFILL_COMPUTED] = H("vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were computed.", lengths),
    [H_ITERATION] = H("vllm:iteration_tokens_total", "Tokens, prompt and output, of a step.", step_tokens),
    [H_TTFT] = H("vllm:time_to_first_token_seconds", "From submit to the first token of a choice.", ttft_s),
    [H_ITL] = H("vllm:inter_token_latency_seconds", "Between two tokens of a choice.", itl_s),
    [H_TPOT_OLD] = H("vllm:time_per_output_token_seconds", "Older name of vllm:inter_token_latency_seconds.", itl_s),
    [H_TPOT] = H("vllm:request_time_per_output_token_seconds", "Mean time between the tokens of a choice.", itl_s),
    [H_PREFILL_TOKEN] =
        H("vllm:time_per_prefill_token_request_seconds", "Prefill time per prompt token.", prefill_token_s),
    [H_E2E] = H("vllm:e2e_request_latency_seconds", "From submit to the end of a choice.", latency_s),
    [H_QUEUE] = H("vllm:request_queue_time_seconds", "From submit to admission.", latency_s),
    [H_INFERENCE] = H("vllm:request_inference_time_seconds", "From admission to the end.", latency_s),
    [H_PREFILL] = H("vllm:request_prefill_time_seconds", "From admission to the first token.", latency_s),
    [H_DECODE] = H("vllm:request_decode_time_seconds", "From the first token to the end.", latency_s),
    [CORRUPTED] = C("vllm:corrupted_requests_total", "Choices that ended because the model's output was not a number."),
    [G_LOOPS] = H("gyre:loops_per_token", "Loops that were run for an output token.", depths),
    [G_STEPS] = C("gyre:steps_total", "Steps of the engine."),
    [G_PASSES] = C("gyre:passes_total", "Passes through the loop body."),
    [G_ROWS] = C("gyre:rows_total", "Rows of all passes: tokens times loops."),
    [G_PASS_ROWS] = H("gyre:rows_per_pass", "Rows of a pass, mean of the steps between two readings.", pass_rows),
    [G_HOST] = H("gyre:step_host_seconds", "Time of a step outside the model, likewise.", host_s),
    [G_STEP_SECONDS] = C("gyre:step_seconds_total", "Time inside steps."),
    [G_MODEL_SECONDS] = C("gyre:model_seconds_total", "Of it in the model."),
    [G_SAMPLE_SECONDS] = C("gyre:sample_seconds_total", "Of it in the sampler."),
    [G_BLOCKS_FREE] = GL("gyre:kv_blocks", BLOCKS, "owner", "none"),
    [G_BLOCKS_CACHED] = GL("gyre:kv_blocks", BLOCKS, "owner", "prefix_cache"),
    [G_BLOCKS_RUNNING] = GL("gyre:kv_blocks", BLOCKS, "owner", "requests"),
    [G_PREEMPT_PARK] = CL("gyre:preemptions_total", PREEMPT, "kv", "parked"),
    [G_PREEMPT_DROP] = CL("gyre:preemptions_total", PREEMPT, "kv", "dropped"),
    [G_RESTORES] = C("gyre:restores_total", "Parked choices that came back."),
    [G_RECOMPUTED] = C("gyre:recomputed_tokens_total", "Tokens computed again after their KV was dropped."),
    [G_EVICTED] = C("gyre:prefix_evicted_total", "Blocks that the prefix cache gave up."),
    [G_PARKED] = G("gyre:requests_parked", "Choices whose KV is parked."),
    [G_UNKNOWN] = C("gyre:unknown_fields_total", "Members of request bodies that nobody knows."),
    [G_WAIT_TOK] = G("gyre:waiting_tokens", "Prompt tokens of choices that wait to be admitted."),
    [G_BACKLOG] = G("gyre:backlog_tokens", "Prompt tokens of requests whose first output has not come."),
    [G_BODY_BYTES] = G("gyre:request_body_bytes", "Bodies of the requests that live."),
    [G_PREFILL_RATE] = G("gyre:prefill_tokens_per_second", "How fast prompts were computed lately; 0: not known."),
    [G_MASK_HIT] = CL("gyre:grammar_masks_total", MASKS, "source", "cache"),
    [G_MASK_MISS] = CL("gyre:grammar_masks_total", MASKS, "source", "computed"),
    [G_LOG_DROPPED] = C("gyre:log_lines_dropped_total", "Lines of the access log that could not be written."),
    [G_PD_READY] = GL("gyre:pd_workers", PD_WORKERS, "state", "ready"),
    [G_PD_AWAY] = GL("gyre:pd_workers", PD_WORKERS, "state", "away"),
    [G_PD_RESERVING] = GL("gyre:pd_requests", PD_REQUESTS, "phase", "reserve"),
    [G_PD_PREFILL] = GL("gyre:pd_requests", PD_REQUESTS, "phase", "prefill"),
    [G_PD_DECODE] = GL("gyre:pd_requests", PD_REQUESTS, "phase", "decode"),
    [G_PD_CROSSED] = CL("gyre:pd_prompts_total", PD_PROMPTS, "prefill", "remote"),
    [G_PD_LOCAL] = CL("gyre:pd_prompts_total", PD_PROMPTS, "prefill", "local"),
    [G_PD_RETRIES] = C("gyre:pd_retries_total", "Requests that were begun again after a worker or a transfer failed."),
    [G_PD_DEATHS] = C("gyre:pd_worker_deaths_total", "Workers that died."),
    [G_PD_BYTES] = C("gyre:pd_transfer_bytes_total", "KV and hidden states that moved between workers."),
    [G_PD_OPS] = C("gyre:pd_transfers_total", "Pieces that they moved in."),
    [G_PD_DESCRIPTORS] = C("gyre:pd_transfer_descriptors_total", "Copies that these consisted of."),
    [G_PD_FAILED] = C("gyre:pd_transfers_failed_total", "Pieces that did not arrive."),
    [G_PD_INFLIGHT] = G("gyre:pd_transfer_inflight_bytes", "Under way when the workers last told."),
    [G_PD_SECONDS] = C("gyre:pd_transfer_seconds_total", "From the first piece of a prompt to its last, summed."),
    [G_PD_OVERLAP_SECONDS] =
        C("gyre:pd_overlap_seconds_total", "Time of pieces under way while their sender computed."),
    [G_PD_OVERLAP_BYTES] = C("gyre:pd_overlap_bytes_total", "Bytes of such pieces."),
    [G_PD_OVERLAPPED] = C("gyre:pd_overlapped_transfers_total", "Such pieces."),
    [G_PD_BLOCKS] = G("gyre:pd_used_blocks", "KV blocks that are promised to requests at workers."),
    [G_LANE_JOBS] = GL("gyre:work_jobs", JOBS, "lane", "quick"),
    [G_LANE_JOBS + 1] = GL("gyre:work_jobs", JOBS, "lane", "slow"),
    [G_LANE_BYTES] = GL("gyre:work_bytes", JOB_BYTES, "lane", "quick"),
    [G_LANE_BYTES + 1] = GL("gyre:work_bytes", JOB_BYTES, "lane", "slow"),
    [G_LANE_DONE] = CL("gyre:work_done_total", JOBS_DONE, "lane", "quick"),
    [G_LANE_DONE + 1] = CL("gyre:work_done_total", JOBS_DONE, "lane", "slow"),
    [G_LANE_FULL] = CL("gyre:work_refused_total", JOBS_FULL, "lane", "quick"),
    [G_LANE_FULL + 1] = CL("gyre:work_refused_total", JOBS_FULL, "lane", "slow"),
    [G_LANE_BUSY] = CL("gyre:work_seconds_total", JOBS_BUSY, "lane", "quick"),
    [G_LANE_BUSY + 1] = CL("gyre:work_seconds_total", JOBS_BUSY, "lane", "slow"),
};

static const gy_metric_spec exits_spec = {
    .name = "gyre:exits_total", .help = "Output tokens by the loops after which they were read.", .type = GY_COUNTER};
static const gy_metric_spec depth_rows_spec = {
    .name = "gyre:depth_rows_total", .help = "Rows of all passes by depth and kind.", .type = GY_COUNTER};
static const gy_metric_spec plane_spec = {
    .name = "gyre:kv_plane_bytes", .help = "KV that is held, by plane (depth).", .type = GY_GAUGE};
static const gy_metric_spec queue_spec = {
    .name = "gyre:queue_limit", .help = "Choices that may wait; then 429.", .type = GY_GAUGE};
static const gy_metric_spec queue_tok_spec = {
    .name = "gyre:queue_tokens_limit",
    .help = "Prompt tokens that may wait for their first output; then 429. 0: any number.",
    .type = GY_GAUGE};
static const gy_metric_spec max_loops_spec = {
    .name = "gyre:max_loops", .help = "Deepest depth that a request may ask for.", .type = GY_GAUGE};
static const gy_metric_spec kv_bytes_spec = {.name = "gyre:kv_bytes", .help = "Size of the KV pool.", .type = GY_GAUGE};
static const gy_metric_spec weight_spec = {
    .name = "gyre:weight_bytes", .help = "Size of the weights.", .type = GY_GAUGE};
static const gy_metric_spec config_spec = {
    .name = "vllm:cache_config_info", .help = "Settings of the KV cache; the value is 1.", .type = GY_GAUGE};

#define PD(n, h, b)                                                                                                    \
    { .name = (n), .help = (h), .type = GY_HISTOGRAM, .le = (b), .n_le = LEN(b) }
static const gy_metric_spec pd_stage_spec =
    PD("gyre:pd_stage_seconds", "From submit to each stage that a request on workers came to.", pd_stage_s);
enum { PD_WIRE, PD_TAIL, PD_POST, PD_BYTES, PD_DESC, N_PD };
static const gy_metric_spec pd_specs[N_PD] = {
    [PD_WIRE] = PD("gyre:pd_wire_seconds", "From a prompt's first piece to its last byte.", pd_wire_s),
    [PD_TAIL] = PD("gyre:pd_tail_seconds", "From the end of computing a prompt to its last byte.", pd_wire_s),
    [PD_POST] = PD("gyre:pd_post_seconds", "Inside the calls that send a prompt.", pd_wire_s),
    [PD_BYTES] = PD("gyre:pd_prompt_bytes", "Bytes that moved for a prompt.", pd_bytes),
    [PD_DESC] = PD("gyre:pd_prompt_descriptors", "Copies that these consisted of.", pd_desc)};
static const gy_metric_spec pd_info_spec = {
    .name = "gyre:pd_info", .help = "What KV travels over between workers; the value is 1.", .type = GY_GAUGE};

static const gy_metric_spec http_total = {
    .name = "http_requests_total", .help = "Answers by route, method and class of status.", .type = GY_COUNTER};
static const gy_metric_spec http_time = {.name = "http_request_duration_seconds",
                                         .help = "From the request line to the end of the answer.",
                                         .type = GY_HISTOGRAM,
                                         .le = http_s,
                                         .n_le = LEN(http_s)};
static const gy_metric_spec http_fine = {.name = "http_request_duration_highr_seconds",
                                         .help = "The same over all routes, with more buckets.",
                                         .type = GY_HISTOGRAM,
                                         .le = http_fine_s,
                                         .n_le = LEN(http_fine_s)};
static const gy_metric_spec http_in = {.name = "http_request_size_bytes",
                                       .help = "Bodies of requests.",
                                       .type = GY_HISTOGRAM,
                                       .le = sizes,
                                       .n_le = LEN(sizes)};
static const gy_metric_spec http_out = {.name = "http_response_size_bytes",
                                        .help = "Bodies of answers.",
                                        .type = GY_HISTOGRAM,
                                        .le = sizes,
                                        .n_le = LEN(sizes)};

enum { MAX_DEPTH_SERIES = 256, N_CLASS = 4 };

struct gy_oai_metrics {
    gy_metrics *reg;
    gy_metric *s[N_ID];
    gy_metric *exits[MAX_DEPTH_SERIES + 1]; /* [loops], from 1 */
    int n_depth;                            /* of what comes from the engine's tables */
    gy_metric *prompt_rows[GYRE_STAT_DEPTHS], *decode_rows[GYRE_STAT_DEPTHS], *plane[GYRE_STAT_DEPTHS], *boundary;
    int32_t max_loops;
    gy_metric *http[GY_OAI_N_ROUTE][N_CLASS], *time[GY_OAI_N_ROUTE], *in[GY_OAI_N_ROUTE], *out[GY_OAI_N_ROUTE], *fine;
    gy_metric *pd_stage[GYRE_PD_STAGES], *pd[N_PD]; /* NULL without workers */
    char *model_name, engine[16];
    /* The lane is known when workers have met, which is after the first scrape: one series that is added behind. */
    gy_metrics *lanes;
    _Atomic(const gy_metrics *) shown_lanes;
    gyre_stats last;
};

/* ---- routes ----------------------------------------------------------------------------------------------------- */

static const char *const routes[GY_OAI_N_ROUTE][2] = {[GY_OAI_R_COMPLETIONS] = {"/v1/completions", "POST"},
                                                      [GY_OAI_R_CHAT] = {"/v1/chat/completions", "POST"},
                                                      [GY_OAI_R_TOKENIZE] = {"/tokenize", "POST"},
                                                      [GY_OAI_R_DETOKENIZE] = {"/detokenize", "POST"},
                                                      [GY_OAI_R_TEMPLATE] = {"/apply_template", "POST"},
                                                      [GY_OAI_R_MODELS] = {"/v1/models", "GET"},
                                                      [GY_OAI_R_HEALTH] = {"/health", "GET"},
                                                      [GY_OAI_R_METRICS] = {"/metrics", "GET"},
                                                      [GY_OAI_R_VERSION] = {"/version", "GET"},
                                                      [GY_OAI_R_OTHER] = {"other", "other"}};

const char *gy_oai_route_path(gy_oai_route r) {
    return routes[r][0];
}

const char *gy_oai_route_method(gy_oai_route r) {
    return routes[r][1];
}

/* ---- create ----------------------------------------------------------------------------------------------------- */

typedef struct base_labels { /* of every vllm: and gyre: series */
    const char *model_name;
    char engine[16];
} base_labels;

static void put_base(const base_labels *b, gy_metric_label *l) {
    l[0] = (gy_metric_label){"model_name", b->model_name};
    l[1] = (gy_metric_label){"engine", b->engine};
}

/* Histograms of lengths and depths end at what the model can do. */
static gy_metric_spec cut_buckets(gy_metric_spec spec, const gy_oai_metrics_info *info) {
    double most = spec.le == lengths ? info->max_len : spec.le == depths ? info->max_loops : 0;
    while (most > 0 && spec.n_le > 1 && spec.le[spec.n_le - 1] > most) spec.n_le--;
    return spec;
}

static int add_rows(gy_oai_metrics *m, const gy_oai_metrics_info *info, const base_labels *b) {
    gy_metric_label l[3];
    put_base(b, l);
    for (int i = 0; i < N_ID; i++) {
        gy_metric_spec spec = cut_buckets(rows[i].spec, info);
        l[2] = (gy_metric_label){rows[i].label, rows[i].value};
        m->s[i] = gy_metrics_add(m->reg, &spec, l, rows[i].label ? 3 : 2);
        if (!m->s[i]) return -1;
    }
    return 0;
}

static int add_depths(gy_oai_metrics *m, const gy_oai_metrics_info *info, const base_labels *b) {
    m->max_loops = info->max_loops < 1 ? 1 : info->max_loops > MAX_DEPTH_SERIES ? MAX_DEPTH_SERIES : info->max_loops;
    char loops[16];
    gy_metric_label l[3] = {[2] = {"loops", loops}};
    put_base(b, l);
    for (int32_t k = 1; k <= m->max_loops; k++) {
        snprintf(loops, sizeof loops, "%d", k);
        m->exits[k] = gy_metrics_add(m->reg, &exits_spec, l, 3);
        if (!m->exits[k]) return -1;
    }
    return 0;
}

/* One family after the other: the lines of one stand together. */
static int add_by_depth(gy_oai_metrics *m, const gy_metric_spec *spec, const base_labels *b, const char *label,
                        const char *kind, gy_metric **to) {
    char at[16];
    gy_metric_label l[4] = {[2] = {label, at}, [3] = {"kind", kind}};
    put_base(b, l);
    for (int k = 0; k < m->n_depth; k++) {
        snprintf(at, sizeof at, "%d", k);
        to[k] = gy_metrics_add(m->reg, spec, l, kind ? 4 : 3);
        if (!to[k]) return -1;
    }
    return 0;
}

static int add_tables(gy_oai_metrics *m, const base_labels *b) {
    m->n_depth = m->max_loops < GYRE_STAT_DEPTHS ? m->max_loops : GYRE_STAT_DEPTHS;
    if (add_by_depth(m, &depth_rows_spec, b, "depth", "prompt", m->prompt_rows) ||
        add_by_depth(m, &depth_rows_spec, b, "depth", "decode", m->decode_rows) ||
        add_by_depth(m, &plane_spec, b, "plane", NULL, m->plane))
        return -1;
    gy_metric_label l[3] = {[2] = {"plane", "boundary"}};
    put_base(b, l);
    m->boundary = gy_metrics_add(m->reg, &plane_spec, l, 3);
    return m->boundary ? 0 : -1;
}

static int add_constant_to(gy_metrics *reg, const gy_metric_spec *spec, const gy_metric_label *l, int n, double v) {
    gy_metric *s = gy_metrics_add(reg, spec, l, n);
    if (s) gy_metric_set(s, v);
    return s ? 0 : -1;
}

static int add_constant(gy_oai_metrics *m, const gy_metric_spec *spec, const gy_metric_label *l, int n, double v) {
    return add_constant_to(m->reg, spec, l, n, v);
}

static int add_constants(gy_oai_metrics *m, const gy_oai_metrics_info *info, const base_labels *b) {
    char size[16], n[16];
    gy_metric_label l[7];
    put_base(b, l);
    snprintf(size, sizeof size, "%d", info->block_size);
    snprintf(n, sizeof n, "%d", info->n_block);
    l[2] = (gy_metric_label){"block_size", size};
    l[3] = (gy_metric_label){"num_gpu_blocks", n};
    l[4] = (gy_metric_label){"cache_dtype", info->cache_dtype ? info->cache_dtype : ""};
    l[5] = (gy_metric_label){"enable_prefix_caching", info->prefix_cache ? "True" : "False"};
    l[6] = (gy_metric_label){"kv_layout", info->kv_layout ? info->kv_layout : ""};
    return add_constant(m, &config_spec, l, 7, 1) || add_constant(m, &max_loops_spec, l, 2, info->max_loops) ||
           add_constant(m, &kv_bytes_spec, l, 2, (double)info->kv_bytes) ||
           add_constant(m, &weight_spec, l, 2, (double)info->weight_bytes) ||
           add_constant(m, &queue_spec, l, 2, info->max_queue) ||
           add_constant(m, &queue_tok_spec, l, 2, (double)info->max_queue_tokens);
}

static int add_pd(gy_oai_metrics *m, const base_labels *b) {
    gy_metric_label l[3] = {[2] = {"stage", NULL}};
    put_base(b, l);
    for (int s = 0; s < GYRE_PD_STAGES; s++) {
        l[2].value = gyre_pd_stage_name((gyre_pd_stage)s);
        m->pd_stage[s] = gy_metrics_add(m->reg, &pd_stage_spec, l, 3);
        if (!m->pd_stage[s]) return -1;
    }
    for (int i = 0; i < N_PD; i++) {
        m->pd[i] = gy_metrics_add(m->reg, &pd_specs[i], l, 2);
        if (!m->pd[i]) return -1;
    }
    return 0;
}

static int add_per_route(gy_oai_metrics *m, const gy_metric_spec *spec, int n_label, gy_metric **to) {
    for (int r = 0; r < GY_OAI_N_ROUTE; r++) {
        const gy_metric_label l[] = {{"handler", routes[r][0]}, {"method", routes[r][1]}};
        to[r] = gy_metrics_add(m->reg, spec, l, n_label);
        if (!to[r]) return -1;
    }
    return 0;
}

static int add_http(gy_oai_metrics *m) {
    static const char *const classes[N_CLASS] = {"2xx", "3xx", "4xx", "5xx"};
    for (int r = 0; r < GY_OAI_N_ROUTE; r++)
        for (int k = 0; k < N_CLASS; k++) {
            const gy_metric_label l[] = {{"handler", routes[r][0]}, {"method", routes[r][1]}, {"status", classes[k]}};
            m->http[r][k] = gy_metrics_add(m->reg, &http_total, l, 3);
            if (!m->http[r][k]) return -1;
        }
    if (add_per_route(m, &http_time, 2, m->time) || add_per_route(m, &http_in, 1, m->in) ||
        add_per_route(m, &http_out, 1, m->out))
        return -1;
    m->fine = gy_metrics_add(m->reg, &http_fine, NULL, 0);
    return m->fine ? 0 : -1;
}

gy_oai_metrics *gy_oai_metrics_create(const gy_oai_metrics_info *info) {
    gy_oai_metrics *m = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *m);
    if (!m) return NULL;
    base_labels b = {.model_name = info->model_name};
    snprintf(b.engine, sizeof b.engine, "%d", info->engine);
    memcpy(m->engine, b.engine, sizeof m->engine);
    m->model_name = gy_mem_strdup(GY_MEM_SERVER, info->model_name);
    m->reg = gy_metrics_create();
    if (m->reg && m->model_name && !add_rows(m, info, &b) && !add_depths(m, info, &b) && !add_tables(m, &b) &&
        !add_constants(m, info, &b) && (!info->has_workers || !add_pd(m, &b)) && !add_http(m))
        return m;
    gy_oai_metrics_destroy(m);
    return NULL;
}

void gy_oai_metrics_destroy(gy_oai_metrics *m) {
    if (!m) return;
    gy_metrics_destroy(m->reg);
    gy_metrics_destroy(m->lanes);
    gy_mem_free(m->model_name);
    gy_mem_free(m);
}

/* ---- the engine's counters -------------------------------------------------------------------------------------- */

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

static void set_gauges(gy_oai_metrics *m, const gyre_stats *s) {
    int32_t used = s->kv_blocks_total - s->kv_blocks_free - s->kv_blocks_cached;
    double usage = s->kv_blocks_total > 0 ? (double)used / s->kv_blocks_total : 0;
    gy_metric_set(m->s[RUNNING], s->n_running);
    gy_metric_set(m->s[WAITING], s->n_waiting);
    gy_metric_set(m->s[WAITING_CAPACITY], s->n_waiting);
    gy_metric_set(m->s[SWAPPED], s->n_parked);
    gy_metric_set(m->s[G_PARKED], s->n_parked);
    gy_metric_set(m->s[KV_USAGE], usage);
    gy_metric_set(m->s[GPU_USAGE], usage);
    gy_metric_set(m->s[G_BLOCKS_FREE], s->kv_blocks_free);
    gy_metric_set(m->s[G_BLOCKS_CACHED], s->kv_blocks_cached);
    gy_metric_set(m->s[G_BLOCKS_RUNNING], used);
    gy_metric_set(m->s[G_WAIT_TOK], (double)s->wait_tok);
}

static void set_tables(gy_oai_metrics *m, const gyre_stats *s) {
    for (int k = 0; k < m->n_depth; k++) {
        gy_metric_set(m->prompt_rows[k], (double)s->n_row_prompt[k]);
        gy_metric_set(m->decode_rows[k], (double)s->n_row_decode[k]);
        gy_metric_set(m->plane[k], (double)s->kv_plane_blocks[k] * (double)s->kv_block_bytes);
    }
    gy_metric_set(m->boundary, (double)s->kv_boundary_blocks * (double)s->kv_boundary_block_bytes);
}

static void set_counters(gy_oai_metrics *m, const gyre_stats *s) {
    gy_metric_set(m->s[PREFIX_QUERIES], (double)s->cache_query_tok);
    gy_metric_set(m->s[GPU_PREFIX_QUERIES], (double)s->cache_query_tok);
    gy_metric_set(m->s[PREFIX_HITS], (double)s->cache_hit_tok);
    gy_metric_set(m->s[GPU_PREFIX_HITS], (double)s->cache_hit_tok);
    gy_metric_set(m->s[PREEMPTIONS], (double)(s->n_park + s->n_drop));
    gy_metric_set(m->s[GENERATION_TOKENS], (double)s->n_output_tok);
    gy_metric_set(m->s[G_STEPS], (double)s->n_step);
    gy_metric_set(m->s[G_PASSES], (double)s->n_pass);
    gy_metric_set(m->s[G_ROWS], (double)s->n_row);
    gy_metric_set(m->s[G_STEP_SECONDS], seconds(s->step_ns));
    gy_metric_set(m->s[G_MODEL_SECONDS], seconds(s->model_ns));
    gy_metric_set(m->s[G_SAMPLE_SECONDS], seconds(s->sample_ns));
    gy_metric_set(m->s[G_PREEMPT_PARK], (double)s->n_park);
    gy_metric_set(m->s[G_PREEMPT_DROP], (double)s->n_drop);
    gy_metric_set(m->s[G_RESTORES], (double)s->n_restore);
    gy_metric_set(m->s[G_RECOMPUTED], (double)s->n_recomputed_tok);
    gy_metric_set(m->s[G_EVICTED], (double)s->cache_evicted);
    gy_metric_set(m->s[G_MASK_HIT], (double)s->grammar_mask_hit);
    gy_metric_set(m->s[G_MASK_MISS], (double)s->grammar_mask_miss);
}

static void set_workers(gy_oai_metrics *m, const gyre_worker_stats *w) {
    gy_metric_set(m->s[G_PD_READY], w->n_ready);
    gy_metric_set(m->s[G_PD_AWAY], w->n_worker - w->n_ready);
    gy_metric_set(m->s[G_PD_RESERVING], w->n_reserving);
    gy_metric_set(m->s[G_PD_PREFILL], w->n_prefill);
    gy_metric_set(m->s[G_PD_DECODE], w->n_decode);
    gy_metric_set(m->s[G_PD_CROSSED], (double)w->n_crossed);
    gy_metric_set(m->s[G_PD_LOCAL], (double)w->n_local);
    gy_metric_set(m->s[G_PD_RETRIES], (double)w->n_retry);
    gy_metric_set(m->s[G_PD_DEATHS], (double)w->n_death);
    gy_metric_set(m->s[G_PD_BYTES], (double)w->xfer_bytes);
    gy_metric_set(m->s[G_PD_OPS], (double)w->xfer_ops);
    gy_metric_set(m->s[G_PD_DESCRIPTORS], (double)w->xfer_descriptors);
    gy_metric_set(m->s[G_PD_FAILED], (double)w->xfer_failed);
    gy_metric_set(m->s[G_PD_INFLIGHT], (double)w->xfer_inflight_bytes);
    gy_metric_set(m->s[G_PD_SECONDS], seconds(w->xfer_ns));
    gy_metric_set(m->s[G_PD_OVERLAP_SECONDS], seconds(w->overlap_ns));
    gy_metric_set(m->s[G_PD_OVERLAP_BYTES], (double)w->overlap_bytes);
    gy_metric_set(m->s[G_PD_OVERLAPPED], (double)w->n_overlap);
    gy_metric_set(m->s[G_PD_BLOCKS], (double)w->used_blocks);
}

/* Once: all pairs of a deployment use the same. */
static void show_lanes(gy_oai_metrics *m, const gyre_worker_stats *w) {
    if (m->lanes || !w->lane[0]) return;
    const gy_metric_label l[] = {
        {"model_name", m->model_name}, {"engine", m->engine}, {"transport", "ucx"}, {"lane", w->lane}};
    gy_metrics *lanes = gy_metrics_create();
    if (!lanes || add_constant_to(lanes, &pd_info_spec, l, LEN(l), 1)) {
        gy_metrics_destroy(lanes);
        return;
    }
    m->lanes = lanes;
    atomic_store(&m->shown_lanes, lanes);
}

static void observe_steps(gy_oai_metrics *m, const gyre_stats *s) {
    const gyre_stats *l = &m->last;
    int64_t steps = s->n_step - l->n_step, passes = s->n_pass - l->n_pass;
    double tokens = (double)(s->n_prompt_tok + s->n_output_tok - l->n_prompt_tok - l->n_output_tok);
    double host = seconds(s->step_ns - s->model_ns - l->step_ns + l->model_ns);
    if (steps > 0) {
        gy_metric_observe_n(m->s[H_ITERATION], tokens / (double)steps, (uint64_t)steps);
        gy_metric_observe_n(m->s[G_HOST], host / (double)steps, (uint64_t)steps);
    }
    if (passes > 0)
        gy_metric_observe_n(m->s[G_PASS_ROWS], (double)(s->n_row - l->n_row) / (double)passes, (uint64_t)passes);
}

void gy_oai_metrics_stats(gy_oai_metrics *m, const gyre_stats *s) {
    set_gauges(m, s);
    set_counters(m, s);
    set_workers(m, &s->worker);
    show_lanes(m, &s->worker);
    set_tables(m, s);
    observe_steps(m, s);
    m->last = *s;
}

void gy_oai_metrics_load(gy_oai_metrics *m, const gy_oai_load *l) {
    gy_metric_set(m->s[G_BACKLOG], (double)l->backlog_tok);
    gy_metric_set(m->s[G_BODY_BYTES], (double)l->body_bytes);
    gy_metric_set(m->s[G_PREFILL_RATE], l->prefill_tok_s);
    gy_metric_set(m->s[G_LOG_DROPPED], (double)l->n_log_dropped);
    for (int i = 0; i < GY_OAI_LANES; i++) {
        const gy_oai_lane *x = &l->lane[i];
        gy_metric_set(m->s[G_LANE_JOBS + i], (double)x->n_job);
        gy_metric_set(m->s[G_LANE_BYTES + i], (double)x->n_bytes);
        gy_metric_set(m->s[G_LANE_DONE + i], (double)x->n_done);
        gy_metric_set(m->s[G_LANE_FULL + i], (double)x->n_full);
        gy_metric_set(m->s[G_LANE_BUSY + i], x->busy_s);
    }
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

void gy_oai_metrics_request(gy_oai_metrics *m, int32_t n, int32_t max_tokens) {
    gy_metric_observe(m->s[H_PARAM_N], n);
    if (max_tokens > 0) gy_metric_observe(m->s[H_PARAM_MAX], max_tokens);
}

void gy_oai_metrics_token(gy_oai_metrics *m, int32_t loops, int is_first, double s) {
    int32_t k = loops < 1 ? 1 : loops > m->max_loops ? m->max_loops : loops;
    gy_metric_add(m->exits[k], 1);
    gy_metric_observe(m->s[G_LOOPS], loops);
    if (is_first) {
        gy_metric_observe(m->s[H_TTFT], s);
    } else {
        gy_metric_observe(m->s[H_ITL], s);
        gy_metric_observe(m->s[H_TPOT_OLD], s);
    }
}

/* A span whose ends both happened. */
static void observe_span(gy_metric *s, int64_t from_ns, int64_t to_ns) {
    if (from_ns && to_ns >= from_ns) gy_metric_observe(s, seconds(to_ns - from_ns));
}

static void count_prompt(gy_oai_metrics *m, const gyre_finish *f) {
    int32_t computed = f->n_prompt - f->n_cached;
    gy_metric_add(m->s[PROMPT_TOKENS], f->n_prompt);
    gy_metric_add(m->s[SOURCE_CACHE], f->n_cached);
    gy_metric_add(m->s[SOURCE_COMPUTE], computed);
    gy_metric_add(m->s[PROMPT_CACHED], f->n_cached);
    gy_metric_observe(m->s[H_PROMPT], f->n_prompt);
    gy_metric_observe(m->s[H_PREFILL_COMPUTED], computed);
    if (f->admit_ns && computed > 0)
        gy_metric_observe(m->s[H_PREFILL_TOKEN], seconds(f->first_token_ns - f->admit_ns) / computed);
}

/* With the last choice. */
static void observe_pd(gy_oai_metrics *m, const gyre_finish *f) {
    const gyre_pd_cost *c = &f->pd;
    if (!c->n_try || f->n_left || !m->pd[0]) return;
    for (int s = 0; s < GYRE_PD_STAGES; s++)
        if (c->at_ns[s]) observe_span(m->pd_stage[s], f->submit_ns, c->at_ns[s]);
    if (!c->n_transfer) return;
    gy_metric_observe(m->pd[PD_BYTES], (double)c->bytes);
    gy_metric_observe(m->pd[PD_DESC], (double)c->n_descriptor);
    if (!c->is_measured) return;
    gy_metric_observe(m->pd[PD_WIRE], seconds(c->wire_ns));
    gy_metric_observe(m->pd[PD_TAIL], seconds(c->tail_ns));
    gy_metric_observe(m->pd[PD_POST], seconds(c->post_ns));
}

/* The prompt is counted once for all choices of a request, and only if it was prefilled. */
void gy_oai_metrics_finish(gy_oai_metrics *m, int32_t choice, const gyre_finish *f, int32_t max_output) {
    static const id reasons[] = {[GYRE_FINISH_STOP] = OK_STOP,
                                 [GYRE_FINISH_LENGTH] = OK_LENGTH,
                                 [GYRE_FINISH_CANCELLED] = OK_ABORT,
                                 [GYRE_FINISH_ERROR] = OK_ERROR};
    gy_metric_add(m->s[reasons[f->reason]], 1);
    if (f->error == GYRE_E_NUMERIC) gy_metric_add(m->s[CORRUPTED], 1);
    if (choice == 0 && f->first_token_ns) count_prompt(m, f);
    gy_metric_observe(m->s[H_GENERATION], f->n_output);
    if (f->n_left == 0) gy_metric_observe(m->s[H_MAX_GENERATION], max_output);
    observe_span(m->s[H_E2E], f->submit_ns, f->finish_ns);
    observe_span(m->s[H_QUEUE], f->submit_ns, f->admit_ns);
    observe_span(m->s[H_INFERENCE], f->admit_ns, f->finish_ns);
    observe_span(m->s[H_PREFILL], f->admit_ns, f->first_token_ns);
    observe_span(m->s[H_DECODE], f->first_token_ns, f->finish_ns);
    observe_pd(m, f);
    if (f->first_token_ns && f->n_output > 1)
        gy_metric_observe(m->s[H_TPOT], seconds(f->finish_ns - f->first_token_ns) / (f->n_output - 1));
}

void gy_oai_metrics_unknown_fields(gy_oai_metrics *m, int32_t n) {
    gy_metric_add(m->s[G_UNKNOWN], n);
}

void gy_oai_metrics_http(gy_oai_metrics *m, gy_oai_route r, int status, double s, size_t bytes_in, size_t bytes_out) {
    int k = status < 300 ? 0 : status < 400 ? 1 : status < 500 ? 2 : 3;
    gy_metric_add(m->http[r][k], 1);
    gy_metric_observe(m->time[r], s);
    gy_metric_observe(m->fine, s);
    gy_metric_observe(m->in[r], (double)bytes_in);
    gy_metric_observe(m->out[r], (double)bytes_out);
}

void gy_oai_metrics_text(const gy_oai_metrics *m, gy_str *out) {
    const gy_metrics *lanes = atomic_load(&m->shown_lanes);
    gy_metrics_text(m->reg, out);
    if (lanes) gy_metrics_text(lanes, out);
    gy_metrics_process_text(out);
}
