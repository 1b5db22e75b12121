/* Metrics: the text format to the letter, vLLM's names and types, values that events lead to, a reader beside a writer,
 * and that the board in docs/ asks only for what exists. And the access log's line.
 */
#include "base_test.h"

#include "base/json.h"
#include "server/metrics.h"
#include "server/oai_log.h"
#include "server/oai_metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* ---- the registry ----------------------------------------------------------------------------------------------- */

static const double bounds[] = {0.5, 1, 10};
static const gy_metric_spec counter = {.name = "a:b_total", .help = "Line one\nand \\ \"two\".", .type = GY_COUNTER};
static const gy_metric_spec gauge = {.name = "g", .help = "A gauge.", .type = GY_GAUGE};
static const gy_metric_spec hist = {.name = "h", .help = "", .type = GY_HISTOGRAM, .le = bounds, .n_le = 3};

static void text_format(void **state) {
    (void)state;
    gy_metrics *m = gy_metrics_create();
    const gy_metric_label l1[] = {{"k", "q\"b\\n\nx"}, {"e", "0"}}, l2[] = {{"k", "\xff\xC3\xA4"}, {"e", "1"}};
    gy_metric *a = gy_metrics_add(m, &counter, l1, 2), *b = gy_metrics_add(m, &counter, l2, 2);
    gy_metric *g = gy_metrics_add(m, &gauge, NULL, 0), *h = gy_metrics_add(m, &hist, l2 + 1, 1);
    gy_metric_add(a, 2);
    gy_metric_add(a, 0.5);
    gy_metric_set(b, 1e15);
    gy_metric_set(g, -0.25);
    gy_metric_observe(h, 0.5);
    gy_metric_observe(h, 0.75);
    gy_metric_observe_n(h, 11, 3);
    gy_metric_observe(h, NAN);
    gy_metric_observe_n(h, 1, 0);
    gy_str s = {0};
    gy_metrics_text(m, &s);
    assert_string_equal(s.data, "# HELP a:b_total Line one\\nand \\\\ \"two\".\n"
                                "# TYPE a:b_total counter\n"
                                "a:b_total{k=\"q\\\"b\\\\n\\nx\",e=\"0\"} 2.5\n"
                                "a:b_total{k=\"\xEF\xBF\xBD\xC3\xA4\",e=\"1\"} 1000000000000000\n"
                                "# HELP g A gauge.\n"
                                "# TYPE g gauge\n"
                                "g -0.25\n"
                                "# HELP h \n"
                                "# TYPE h histogram\n"
                                "h_bucket{e=\"1\",le=\"0.5\"} 1\n"
                                "h_bucket{e=\"1\",le=\"1\"} 2\n"
                                "h_bucket{e=\"1\",le=\"10\"} 2\n"
                                "h_bucket{e=\"1\",le=\"+Inf\"} 5\n"
                                "h_sum{e=\"1\"} 34.25\n"
                                "h_count{e=\"1\"} 5\n");
    assert_true(gy_metric_value(h) == 5);
    assert_true(gy_metric_value(a) == 2.5);
    gy_str_clear(&s);
    gy_metric_set(g, INFINITY);
    gy_metric_set(a, NAN);
    gy_metrics_text(m, &s);
    assert_non_null(strstr(s.data, "\ng +Inf\n"));
    assert_non_null(strstr(s.data, "} NaN\n"));
    gy_str_free(&s);
    gy_metrics_destroy(m);
    gy_metrics_destroy(NULL);
}

typedef struct misuse {
    gy_metrics *m;
    gy_metric_spec spec;
    gy_metric_label label;
} misuse;

static void add_it(void *arg) {
    misuse *x = arg;
    gy_metrics_add(x->m, &x->spec, x->label.name ? &x->label : NULL, x->label.name != NULL);
}

static void misuse_aborts(void **state) {
    (void)state;
    static const double falling[] = {2, 1};
    gy_metrics *m = gy_metrics_create();
    gy_metrics_add(m, &gauge, NULL, 0);
    gy_metrics_add(m, &counter, NULL, 0);
    misuse rows[] = {
        {m, {.name = "1a", .help = "", .type = GY_GAUGE}, {NULL, NULL}},
        {m, {.name = "a-b", .help = "", .type = GY_GAUGE}, {NULL, NULL}},
        {m, {.name = "", .help = "", .type = GY_GAUGE}, {NULL, NULL}},
        {m, {.name = "x", .help = "", .type = GY_HISTOGRAM}, {NULL, NULL}},
        {m, {.name = "x", .help = "", .type = GY_HISTOGRAM, .le = falling, .n_le = 2}, {NULL, NULL}},
        {m, {.name = "a:b_total", .help = "", .type = GY_GAUGE}, {NULL, NULL}},
        {m, {.name = "g", .help = "", .type = GY_GAUGE}, {NULL, NULL}}, /* left for another family */
        {m, {.name = "x", .help = "", .type = GY_GAUGE}, {"a:b", ""}},
        {m, {.name = "x", .help = "", .type = GY_GAUGE}, {"le", "1"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_aborts(add_it, &rows[i], "broken invariant");
    gy_metrics_destroy(m);
}

/* ---- a strict reader of the format ------------------------------------------------------------------------------ */

typedef struct sample {
    char name[96], labels[512];
    double value;
} sample;

/* One line NAME{LABELS} VALUE. */
static sample read_sample(const char *line, size_t n) {
    sample s = {.value = 0};
    const char *end = line + n, *p = line;
    while (p < end && *p != '{' && *p != ' ') p++;
    assert_in_range(p - line, 1, sizeof s.name - 1);
    memcpy(s.name, line, (size_t)(p - line));
    if (*p == '{') {
        const char *close = p;
        for (int quoted = 0; close < end && (*close != '}' || quoted); close++) {
            if (quoted && *close == '\\')
                close++;
            else if (*close == '"')
                quoted = !quoted;
        }
        assert_true(close < end && (size_t)(close - p) < sizeof s.labels);
        memcpy(s.labels, p + 1, (size_t)(close - p - 1));
        p = close + 1;
    }
    assert_int_equal(*p, ' ');
    char *stop = NULL;
    s.value = strtod(p + 1, &stop);
    assert_ptr_equal(stop, end);
    return s;
}

/* The value of the series, NaN if there is none. labels: a part of what stands between the braces. */
static double find(const gy_str *text, const char *name, const char *labels) {
    for (const char *p = text->data, *nl; (nl = strchr(p, '\n')); p = nl + 1) {
        if (*p == '#') continue;
        sample s = read_sample(p, (size_t)(nl - p));
        if (!strcmp(s.name, name) && strstr(s.labels, labels)) return s.value;
    }
    return NAN;
}

static const char *type_of(const gy_str *text, const char *name) {
    static char want[160], type[32];
    snprintf(want, sizeof want, "\n# TYPE %s ", name);
    const char *p = strstr(text->data, want);
    if (!p) return "";
    sscanf(p + strlen(want), "%31s", type);
    return type;
}

/* Families once each, HELP then TYPE, series of a family together, buckets rising up to +Inf = count. */
static void check_text(const gy_str *text) {
    char family[96] = "";
    double bucket = 0;
    int after_inf = 0;
    assert_int_equal(text->data[text->len - 1], '\n');
    for (const char *p = text->data, *nl; (nl = strchr(p, '\n')); p = nl + 1) {
        if (!strncmp(p, "# HELP ", 7)) {
            char again[128];
            assert_int_equal(sscanf(p + 7, "%95s", family), 1);
            snprintf(again, sizeof again, "\n# HELP %s ", family);
            assert_null(strstr(nl, again));
            snprintf(again, sizeof again, "# TYPE %s ", family);
            assert_memory_equal(nl + 1, again, strlen(again));
            continue;
        }
        if (*p == '#') continue;
        sample s = read_sample(p, (size_t)(nl - p));
        assert_memory_equal(s.name, family, strlen(family));
        if (!strstr(s.name, "_bucket")) {
            if (after_inf && strstr(s.name, "_count")) assert_true(s.value == bucket);
            if (strstr(s.name, "_count")) bucket = after_inf = 0;
            continue;
        }
        assert_true(s.value >= bucket);
        bucket = s.value;
        after_inf = strstr(s.labels, "le=\"+Inf\"") != NULL;
    }
}

/* ---- the server's metrics --------------------------------------------------------------------------------------- */

static gy_oai_metrics *make_metrics(void) {
    const gy_oai_metrics_info info = {.model_name = "ouro \"x\"",
                                      .max_len = 4096,
                                      .max_loops = 4,
                                      .block_size = 16,
                                      .n_block = 1000,
                                      .cache_dtype = "bf16",
                                      .kv_layout = "last_exited",
                                      .prefix_cache = 1,
                                      .kv_bytes = 1u << 20,
                                      .weight_bytes = 5,
                                      .max_queue = 77,
                                      .max_queue_tokens = 5000000000,
                                      .has_workers = 1};
    gy_oai_metrics *m = gy_oai_metrics_create(&info);
    assert_non_null(m);
    return m;
}

static gy_str text_of(const gy_oai_metrics *m) {
    gy_str s = {0};
    gy_oai_metrics_text(m, &s);
    assert_int_equal(s.failed, 0);
    check_text(&s);
    return s;
}

/* What vLLM's board, an endpoint picker and other consumers ask for, with its type. */
static void names_and_types(void **state) {
    (void)state;
    static const char *const want[][2] = {
        {"vllm:num_requests_running", "gauge"},
        {"vllm:num_requests_waiting", "gauge"},
        {"vllm:num_requests_waiting_by_reason", "gauge"},
        {"vllm:num_requests_swapped", "gauge"},
        {"vllm:kv_cache_usage_perc", "gauge"},
        {"vllm:gpu_cache_usage_perc", "gauge"},
        {"vllm:prefix_cache_queries_total", "counter"},
        {"vllm:prefix_cache_hits_total", "counter"},
        {"vllm:gpu_prefix_cache_queries_total", "counter"},
        {"vllm:gpu_prefix_cache_hits_total", "counter"},
        {"vllm:num_preemptions_total", "counter"},
        {"vllm:prompt_tokens_total", "counter"},
        {"vllm:generation_tokens_total", "counter"},
        {"vllm:prompt_tokens_by_source_total", "counter"},
        {"vllm:prompt_tokens_cached_total", "counter"},
        {"vllm:request_success_total", "counter"},
        {"vllm:request_prompt_tokens", "histogram"},
        {"vllm:request_generation_tokens", "histogram"},
        {"vllm:request_max_num_generation_tokens", "histogram"},
        {"vllm:request_params_max_tokens", "histogram"},
        {"vllm:request_params_n", "histogram"},
        {"vllm:request_prefill_kv_computed_tokens", "histogram"},
        {"vllm:iteration_tokens_total", "histogram"},
        {"vllm:time_to_first_token_seconds", "histogram"},
        {"vllm:inter_token_latency_seconds", "histogram"},
        {"vllm:time_per_output_token_seconds", "histogram"},
        {"vllm:request_time_per_output_token_seconds", "histogram"},
        {"vllm:time_per_prefill_token_request_seconds", "histogram"},
        {"vllm:e2e_request_latency_seconds", "histogram"},
        {"vllm:request_queue_time_seconds", "histogram"},
        {"vllm:request_inference_time_seconds", "histogram"},
        {"vllm:request_prefill_time_seconds", "histogram"},
        {"vllm:request_decode_time_seconds", "histogram"},
        {"vllm:cache_config_info", "gauge"},
        {"vllm:corrupted_requests_total", "counter"},
        {"gyre:loops_per_token", "histogram"},
        {"gyre:exits_total", "counter"},
        {"gyre:rows_per_pass", "histogram"},
        {"gyre:kv_blocks", "gauge"},
        {"gyre:step_host_seconds", "histogram"},
        {"gyre:depth_rows_total", "counter"},
        {"gyre:kv_plane_bytes", "gauge"},
        {"gyre:waiting_tokens", "gauge"},
        {"gyre:backlog_tokens", "gauge"},
        {"gyre:queue_limit", "gauge"},
        {"gyre:queue_tokens_limit", "gauge"},
        {"gyre:grammar_masks_total", "counter"},
        {"gyre:log_lines_dropped_total", "counter"},
        {"gyre:work_jobs", "gauge"},
        {"gyre:work_refused_total", "counter"},
        {"gyre:pd_workers", "gauge"},
        {"gyre:pd_used_blocks", "gauge"},
        {"gyre:pd_transfer_inflight_bytes", "gauge"},
        {"gyre:pd_overlapped_transfers_total", "counter"},
        {"gyre:pd_stage_seconds", "histogram"},
        {"gyre:pd_wire_seconds", "histogram"},
        {"gyre:pd_tail_seconds", "histogram"},
        {"gyre:pd_post_seconds", "histogram"},
        {"gyre:pd_prompt_bytes", "histogram"},
        {"gyre:pd_prompt_descriptors", "histogram"},
        {"http_requests_total", "counter"},
        {"http_request_duration_seconds", "histogram"},
        {"http_request_duration_highr_seconds", "histogram"},
        {"process_resident_memory_bytes", "gauge"},
        {"process_virtual_memory_bytes", "gauge"},
        {"process_cpu_seconds_total", "counter"},
        {"process_open_fds", "gauge"},
        {"process_max_fds", "gauge"},
        {"process_start_time_seconds", "gauge"},
    };
    gy_oai_metrics *m = make_metrics();
    gy_str s = text_of(m);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (strcmp(type_of(&s, want[i][0]), want[i][1]) != 0) fail_msg("%s is no %s", want[i][0], want[i][1]);
    const char *labels = "model_name=\"ouro \\\"x\\\"\",engine=\"0\"";
    assert_true(find(&s, "vllm:num_requests_running", labels) == 0);
    assert_true(find(&s, "gyre:exits_total", "engine=\"0\",loops=\"4\"") == 0);
    assert_true(find(&s, "vllm:cache_config_info", "block_size=\"16\",num_gpu_blocks=\"1000\",cache_dtype=\"bf16\"") ==
                1);
    assert_true(isnan(find(&s, "gyre:exits_total", "loops=\"5\"")));
    assert_true(find(&s, "gyre:kv_plane_bytes", "plane=\"3\"") == 0);
    assert_true(isnan(find(&s, "gyre:kv_plane_bytes", "plane=\"4\"")));
    assert_true(isnan(find(&s, "gyre:depth_rows_total", "depth=\"4\"")));
    /* Buckets of lengths end at the context, of depths at the deepest. */
    assert_true(find(&s, "vllm:request_prompt_tokens_bucket", "le=\"2000\"") == 0);
    assert_true(isnan(find(&s, "vllm:request_prompt_tokens_bucket", "le=\"5000\"")));
    assert_true(isnan(find(&s, "gyre:loops_per_token_bucket", "le=\"5\"")));
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
    gy_oai_metrics_destroy(NULL);
}

static void from_stats(void **state) {
    (void)state;
    gy_oai_metrics *m = make_metrics();
    gyre_stats a = {.n_step = 4,
                    .n_pass = 16,
                    .n_row = 64,
                    .n_prompt_tok = 10,
                    .n_output_tok = 6,
                    .step_ns = 4000000,
                    .model_ns = 3900000,
                    .sample_ns = 50000,
                    .n_running = 3,
                    .n_waiting = 2,
                    .n_parked = 1,
                    .n_park = 5,
                    .n_drop = 2,
                    .n_restore = 4,
                    .n_recomputed_tok = 9,
                    .cache_query_tok = 100,
                    .cache_hit_tok = 40,
                    .cache_evicted = 7,
                    .kv_blocks_free = 500,
                    .kv_blocks_cached = 300,
                    .kv_blocks_total = 1000,
                    .n_row_prompt = {40, 30, 20, 10, 99},
                    .n_row_decode = {4, 3, 2, 1},
                    .kv_plane_blocks = {8, 6, 4, 2},
                    .kv_boundary_blocks = 3,
                    .kv_block_bytes = (size_t)1 << 33,
                    .kv_boundary_block_bytes = 1000,
                    .wait_tok = 123,
                    .grammar_mask_hit = 11,
                    .grammar_mask_miss = 5,
                    .worker = {.n_worker = 5,
                               .n_ready = 3,
                               .n_reserving = 1,
                               .n_prefill = 2,
                               .n_decode = 4,
                               .n_crossed = 6,
                               .n_local = 7,
                               .n_retry = 8,
                               .n_death = 9,
                               .xfer_bytes = 5000000000,
                               .xfer_ops = 11,
                               .xfer_descriptors = 12,
                               .xfer_failed = 13,
                               .xfer_inflight_bytes = 14,
                               .xfer_ns = 1500000000,
                               .overlap_ns = 500000000,
                               .overlap_bytes = 15,
                               .n_overlap = 16,
                               .used_blocks = 17,
                               .lane = "sysv, \"x\""}};
    const gy_oai_load load = {.body_bytes = 7000000000,
                              .backlog_tok = 456,
                              .prefill_tok_s = 12.5,
                              .n_log_dropped = 2,
                              .lane = {{1, 20, 30, 4, 0.5}, {2, 21, 31, 5, 1.5}}};
    gyre_stats b = a;
    b.n_step = 5;
    b.n_pass = 20;
    b.n_row = 464;
    b.n_output_tok = 106;
    b.step_ns += 20000000;
    gy_oai_metrics_stats(m, &a);
    gy_oai_metrics_stats(m, &a); /* nothing new: nothing observed twice */
    gy_oai_metrics_stats(m, &b);
    gy_oai_metrics_load(m, &load);
    gy_str s = text_of(m);
    static const struct {
        const char *name, *labels;
        double v;
    } rows[] = {
        {"gyre:depth_rows_total", "depth=\"0\",kind=\"prompt\"", 40},
        {"gyre:depth_rows_total", "depth=\"3\",kind=\"prompt\"", 10},
        {"gyre:depth_rows_total", "depth=\"1\",kind=\"decode\"", 3},
        {"gyre:kv_plane_bytes", "plane=\"0\"", 68719476736},
        {"gyre:kv_plane_bytes", "plane=\"3\"", 17179869184},
        {"gyre:kv_plane_bytes", "plane=\"boundary\"", 3000},
        {"gyre:waiting_tokens", "", 123},
        {"gyre:backlog_tokens", "", 456},
        {"gyre:request_body_bytes", "", 7000000000},
        {"gyre:prefill_tokens_per_second", "", 12.5},
        {"gyre:queue_limit", "", 77},
        {"gyre:queue_tokens_limit", "", 5000000000},
        {"gyre:grammar_masks_total", "source=\"cache\"", 11},
        {"gyre:grammar_masks_total", "source=\"computed\"", 5},
        {"gyre:log_lines_dropped_total", "", 2},
        {"gyre:work_jobs", "lane=\"quick\"", 1},
        {"gyre:work_jobs", "lane=\"slow\"", 2},
        {"gyre:work_bytes", "lane=\"slow\"", 21},
        {"gyre:work_done_total", "lane=\"quick\"", 30},
        {"gyre:work_refused_total", "lane=\"slow\"", 5},
        {"gyre:work_seconds_total", "lane=\"slow\"", 1.5},
        {"gyre:pd_workers", "state=\"ready\"", 3},
        {"gyre:pd_workers", "state=\"away\"", 2},
        {"gyre:pd_requests", "phase=\"reserve\"", 1},
        {"gyre:pd_requests", "phase=\"prefill\"", 2},
        {"gyre:pd_requests", "phase=\"decode\"", 4},
        {"gyre:pd_prompts_total", "prefill=\"remote\"", 6},
        {"gyre:pd_prompts_total", "prefill=\"local\"", 7},
        {"gyre:pd_retries_total", "", 8},
        {"gyre:pd_worker_deaths_total", "", 9},
        {"gyre:pd_transfer_bytes_total", "", 5000000000},
        {"gyre:pd_transfers_total", "", 11},
        {"gyre:pd_transfer_descriptors_total", "", 12},
        {"gyre:pd_transfers_failed_total", "", 13},
        {"gyre:pd_transfer_inflight_bytes", "", 14},
        {"gyre:pd_transfer_seconds_total", "", 1.5},
        {"gyre:pd_overlap_seconds_total", "", 0.5},
        {"gyre:pd_overlap_bytes_total", "", 15},
        {"gyre:pd_overlapped_transfers_total", "", 16},
        {"gyre:pd_used_blocks", "", 17},
        {"gyre:pd_info", "engine=\"0\",transport=\"ucx\",lane=\"sysv, \\\"x\\\"\"", 1},
        {"vllm:num_requests_running", "", 3},
        {"vllm:num_requests_waiting", "", 2},
        {"vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", 2},
        {"vllm:num_requests_swapped", "", 1},
        {"vllm:kv_cache_usage_perc", "", 0.2},
        {"vllm:gpu_cache_usage_perc", "", 0.2},
        {"vllm:prefix_cache_queries_total", "", 100},
        {"vllm:prefix_cache_hits_total", "", 40},
        {"vllm:gpu_prefix_cache_hits_total", "", 40},
        {"vllm:num_preemptions_total", "", 7},
        {"vllm:generation_tokens_total", "", 106},
        {"vllm:iteration_tokens_total_count", "", 5},
        {"vllm:iteration_tokens_total_sum", "", 116},
        {"vllm:iteration_tokens_total_bucket", "le=\"8\"", 4},
        {"gyre:rows_per_pass_bucket", "le=\"4\"", 16},
        {"gyre:rows_per_pass_bucket", "le=\"64\"", 16},
        {"gyre:rows_per_pass_bucket", "le=\"128\"", 20},
        {"gyre:step_host_seconds_count", "", 5},
        {"gyre:step_host_seconds_bucket", "le=\"5e-05\"", 4},
        {"gyre:steps_total", "", 5},
        {"gyre:step_seconds_total", "", 0.024},
        {"gyre:kv_blocks", "owner=\"none\"", 500},
        {"gyre:kv_blocks", "owner=\"prefix_cache\"", 300},
        {"gyre:kv_blocks", "owner=\"requests\"", 200},
        {"gyre:preemptions_total", "kv=\"dropped\"", 2},
        {"gyre:restores_total", "", 4},
        {"gyre:recomputed_tokens_total", "", 9},
        {"gyre:prefix_evicted_total", "", 7},
        {"gyre:max_loops", "", 4},
        {"gyre:kv_bytes", "", 1048576},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double v = find(&s, rows[i].name, rows[i].labels);
        if (!(fabs(v - rows[i].v) < 1e-12))
            fail_msg("%s{%s}: %g, expected %g", rows[i].name, rows[i].labels, v, rows[i].v);
    }
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
}

static gyre_finish on_workers(void) {
    const int64_t ms = 1000000;
    gyre_finish f = {.reason = GYRE_FINISH_STOP, .submit_ns = 1000 * ms, .finish_ns = 1400 * ms};
    f.pd = (gyre_pd_cost){.n_try = 1,
                          .prefill = 0,
                          .decode = 1,
                          .bytes = 3 << 20,
                          .n_transfer = 4,
                          .n_descriptor = 25,
                          .is_measured = 1,
                          .post_ns = 20000,
                          .wire_ns = 30 * ms,
                          .tail_ns = 50000};
    for (int s = 0; s < GYRE_PD_STAGES; s++) f.pd.at_ns[s] = (1000 + 50 * (s + 1)) * ms;
    return f;
}

/* Once for a request, and only what happened. */
static void from_requests_on_workers(void **state) {
    (void)state;
    gy_oai_metrics *m = make_metrics();
    gyre_finish f = on_workers();
    f.n_left = 1;
    gy_oai_metrics_finish(m, 0, &f, 5); /* another choice goes on */
    f.n_left = 0;
    gy_oai_metrics_finish(m, 1, &f, 5);
    f.pd.is_measured = 0; /* the sender was late */
    gy_oai_metrics_finish(m, 0, &f, 5);
    f.pd.prefill = -1; /* computed where it was decoded */
    f.pd.n_transfer = 0;
    for (int s = GYRE_PD_PREFILL_COMPLETED; s <= GYRE_PD_D_ACTIVATED; s++) f.pd.at_ns[s] = 0;
    f.pd.at_ns[GYRE_PD_D_RESERVED] = 0;
    gy_oai_metrics_finish(m, 0, &f, 5);
    f.pd = (gyre_pd_cost){0}; /* cancelled before it came anywhere */
    gy_oai_metrics_finish(m, 0, &f, 5);
    gy_str s = text_of(m);
    static const struct {
        const char *name, *labels;
        double v;
    } rows[] = {
        {"gyre:pd_stage_seconds_count", "stage=\"admitted\"", 3},
        {"gyre:pd_stage_seconds_sum", "stage=\"admitted\"", 0.15},
        {"gyre:pd_stage_seconds_count", "stage=\"d_reserved\"", 2},
        {"gyre:pd_stage_seconds_bucket", "stage=\"d_reserved\",le=\"0.1\"", 2},
        {"gyre:pd_stage_seconds_bucket", "stage=\"d_reserved\",le=\"0.05\"", 0},
        {"gyre:pd_stage_seconds_count", "stage=\"prefill_started\"", 3},
        {"gyre:pd_stage_seconds_count", "stage=\"prefill_compute_completed\"", 2},
        {"gyre:pd_stage_seconds_sum", "stage=\"prefill_submitted\"", 0.5},
        {"gyre:pd_stage_seconds_sum", "stage=\"d_activated\"", 0.6},
        {"gyre:pd_stage_seconds_count", "stage=\"first_token\"", 3},
        {"gyre:pd_stage_seconds_sum", "stage=\"finished\"", 1.2},
        {"gyre:pd_wire_seconds_count", "", 1},
        {"gyre:pd_wire_seconds_sum", "", 0.03},
        {"gyre:pd_tail_seconds_sum", "", 0.00005},
        {"gyre:pd_post_seconds_bucket", "le=\"1e-05\"", 0},
        {"gyre:pd_post_seconds_bucket", "le=\"2.5e-05\"", 1},
        {"gyre:pd_prompt_bytes_sum", "", 6 << 20},
        {"gyre:pd_prompt_descriptors_bucket", "le=\"16\"", 0},
        {"gyre:pd_prompt_descriptors_bucket", "le=\"32\"", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double v = find(&s, rows[i].name, rows[i].labels);
        if (!(fabs(v - rows[i].v) < 1e-12))
            fail_msg("%s{%s}: %g, expected %g", rows[i].name, rows[i].labels, v, rows[i].v);
    }
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
    /* An engine alone has no such page of zeros. */
    m = gy_oai_metrics_create(&(gy_oai_metrics_info){.model_name = "m", .max_len = 10, .max_loops = 4});
    gy_oai_metrics_finish(m, 0, &(gyre_finish){.pd = {.n_try = 1}}, 1);
    s = text_of(m);
    assert_null(strstr(s.data, "gyre:pd_stage_seconds"));
    assert_null(strstr(s.data, "gyre:pd_info"));
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
}

static void from_requests(void **state) {
    (void)state;
    const int64_t s1 = 1000000000;
    gy_oai_metrics *m = make_metrics();
    gy_oai_metrics_request(m, 2, 32);
    gy_oai_metrics_request(m, 1, 0);
    gy_oai_metrics_token(m, 4, 1, 0.05);
    gy_oai_metrics_token(m, 2, 0, 0.02);
    gy_oai_metrics_token(m, 2, 0, 0.02);
    gyre_finish f = {.reason = GYRE_FINISH_STOP,
                     .n_left = 1,
                     .n_prompt = 100,
                     .n_output = 3,
                     .n_cached = 64,
                     .submit_ns = s1,
                     .admit_ns = 2 * s1,
                     .first_token_ns = 4 * s1,
                     .finish_ns = 10 * s1};
    gy_oai_metrics_finish(m, 0, &f, 3);
    f.n_left = 0;
    f.reason = GYRE_FINISH_LENGTH;
    gy_oai_metrics_finish(m, 1, &f, 5);
    gyre_finish lost = {.reason = GYRE_FINISH_CANCELLED, .n_prompt = 50, .submit_ns = s1, .finish_ns = 2 * s1};
    gy_oai_metrics_finish(m, 0, &lost, 0);
    lost.reason = GYRE_FINISH_ERROR;
    lost.error = GYRE_E_NUMERIC;
    gy_oai_metrics_finish(m, 0, &lost, 0);
    gy_oai_metrics_unknown_fields(m, 3);
    gy_str s = text_of(m);
    static const struct {
        const char *name, *labels;
        double v;
    } rows[] = {
        {"vllm:request_params_n_sum", "", 3},
        {"vllm:request_params_max_tokens_count", "", 1},
        {"gyre:loops_per_token_sum", "", 8},
        {"gyre:loops_per_token_bucket", "le=\"2\"", 2},
        {"gyre:exits_total", "loops=\"2\"", 2},
        {"gyre:exits_total", "loops=\"4\"", 1},
        {"vllm:time_to_first_token_seconds_bucket", "le=\"0.04\"", 0},
        {"vllm:time_to_first_token_seconds_bucket", "le=\"0.06\"", 1},
        {"vllm:inter_token_latency_seconds_count", "", 2},
        {"vllm:time_per_output_token_seconds_count", "", 2},
        {"vllm:prompt_tokens_total", "", 100}, /* once for both choices; not of what was never prefilled */
        {"vllm:prompt_tokens_cached_total", "", 64},
        {"vllm:prompt_tokens_by_source_total", "local_compute", 36},
        {"vllm:prompt_tokens_by_source_total", "local_cache_hit", 64},
        {"vllm:prompt_tokens_by_source_total", "external_kv_transfer", 0},
        {"vllm:request_success_total", "finished_reason=\"stop\"", 1},
        {"vllm:request_success_total", "finished_reason=\"length\"", 1},
        {"vllm:request_success_total", "finished_reason=\"abort\"", 1},
        {"vllm:request_success_total", "finished_reason=\"error\"", 1},
        {"vllm:corrupted_requests_total", "", 1},
        {"vllm:request_prompt_tokens_count", "", 1},
        {"vllm:request_generation_tokens_sum", "", 6},
        {"vllm:request_max_num_generation_tokens_sum", "", 5},
        {"vllm:request_prefill_kv_computed_tokens_sum", "", 36},
        {"vllm:e2e_request_latency_seconds_sum", "", 20},
        {"vllm:request_queue_time_seconds_sum", "", 2},
        {"vllm:request_prefill_time_seconds_sum", "", 4},
        {"vllm:request_decode_time_seconds_sum", "", 12},
        {"vllm:request_inference_time_seconds_sum", "", 16},
        {"vllm:request_time_per_output_token_seconds_sum", "", 6},
        {"gyre:unknown_fields_total", "", 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double v = find(&s, rows[i].name, rows[i].labels);
        if (!(fabs(v - rows[i].v) < 1e-9))
            fail_msg("%s{%s}: %g, expected %g", rows[i].name, rows[i].labels, v, rows[i].v);
    }
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
}

static void from_http(void **state) {
    (void)state;
    gy_oai_metrics *m = make_metrics();
    gy_oai_metrics_http(m, GY_OAI_R_CHAT, 200, 0.3, 100, 5000);
    gy_oai_metrics_http(m, GY_OAI_R_CHAT, 429, 0.001, 100, 90);
    gy_oai_metrics_http(m, GY_OAI_R_CHAT, 499, 0.001, 100, 0);
    gy_oai_metrics_http(m, GY_OAI_R_OTHER, 503, 20, 0, 90);
    gy_str s = text_of(m);
    const char *chat = "handler=\"/v1/chat/completions\",method=\"POST\",status=\"2xx\"";
    assert_true(find(&s, "http_requests_total", chat) == 1);
    assert_true(find(&s, "http_requests_total", "handler=\"/v1/chat/completions\",method=\"POST\",status=\"4xx\"") ==
                2);
    assert_true(find(&s, "http_requests_total", "handler=\"other\",method=\"other\",status=\"5xx\"") == 1);
    assert_true(find(&s, "http_request_size_bytes_sum", "handler=\"/v1/chat/completions\"") == 300);
    assert_true(find(&s, "http_response_size_bytes_sum", "handler=\"/v1/chat/completions\"") == 5090);
    assert_true(find(&s, "http_request_duration_highr_seconds_count", "") == 4);
    assert_true(find(&s, "http_request_duration_seconds_bucket", "handler=\"other\",method=\"other\",le=\"1\"") == 0);
    gy_str_free(&s);
    gy_oai_metrics_destroy(m);
}

static void process_values(void **state) {
    (void)state;
    gy_oai_metrics *m = make_metrics();
    gy_str s = text_of(m);
    double fds = find(&s, "process_open_fds", "");
    int fd = dup(1);
    gy_str t = text_of(m);
    assert_true(find(&t, "process_open_fds", "") == fds + 1);
    close(fd);
    assert_true(find(&s, "process_resident_memory_bytes", "") > 100000);
    assert_true(find(&s, "process_max_fds", "") >= fds);
    assert_true(fabs((double)time(NULL) - find(&s, "process_start_time_seconds", "")) < 600);
    gy_str_free(&s);
    gy_str_free(&t);
    gy_oai_metrics_destroy(m);
}

static void without_memory(void **state) {
    (void)state;
    const gy_oai_metrics_info info = {.model_name = "m", .max_len = 16, .max_loops = 2};
    gy_oai_metrics *m = NULL;
    int failed = 0;
    for (int64_t n = 1; !m && n < 5000; n += 1 + n / 20) {
        gy_mem_fail_after(n);
        m = gy_oai_metrics_create(&info);
        gy_mem_fail_after(0);
        failed += !m;
    }
    assert_non_null(m);
    assert_true(failed > 20);
    gy_oai_metrics_destroy(m);
}

/* ---- a scrape while the loop runs ------------------------------------------------------------------------------- */

typedef struct pair {
    gy_oai_metrics *m;
    _Atomic int stop;
} pair;

static void *writer(void *arg) {
    pair *p = arg;
    gyre_stats st = {.n_step = 0};
    while (!atomic_load(&p->stop)) {
        gy_oai_metrics_token(p->m, 1 + (int32_t)(st.n_step % 4), 0, 0.001);
        st.n_step++;
        st.n_output_tok++;
        gy_oai_metrics_stats(p->m, &st);
        gy_oai_metrics_http(p->m, GY_OAI_R_CHAT, 200, 0.1, 1, 1);
    }
    return NULL;
}

static void read_beside_write(void **state) {
    (void)state;
    pair p = {.m = make_metrics()};
    pthread_t th;
    double last = 0;
    assert_int_equal(pthread_create(&th, NULL, writer, &p), 0);
    for (int i = 0; i < 200; i++) {
        gy_str s = text_of(p.m); /* checks that buckets rise and +Inf is the count */
        double n = find(&s, "gyre:loops_per_token_count", "");
        assert_true(n >= last);
        last = n;
        gy_str_free(&s);
    }
    atomic_store(&p.stop, 1);
    pthread_join(th, NULL);
    gy_oai_metrics_destroy(p.m);
}

/* ---- the board -------------------------------------------------------------------------------------------------- */

static int in_expression(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

/* Each word of an expression that looks like a metric (a colon, or one of the known prefixes) must be printed. */
static int check_expression(const char *e, const gy_str *text) {
    int n = 0, quoted = 0;
    for (const char *p = e; *p;) {
        if (*p == '"') quoted = !quoted;
        if (quoted || !in_expression(*p)) {
            p++;
            continue;
        }
        const char *q = p;
        while (in_expression(*q)) q++;
        char word[128];
        snprintf(word, sizeof word, "%.*s", (int)(q - p), p);
        if (strchr(word, ':') || !strncmp(word, "http_", 5) || !strncmp(word, "process_", 8)) {
            if (isnan(find(text, word, ""))) fail_msg("%s does not exist: %s", word, e);
            n++;
        }
        p = q;
    }
    return n;
}

static void board_asks_for_what_exists(void **state) {
    (void)state;
    gy_json *doc = NULL;
    gy_err err;
    if (gy_json_read(GY_SOURCE_DIR "/docs/grafana/gyre.json", NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
    gy_oai_metrics *m = make_metrics();
    gy_str text = text_of(m);
    const gy_jv *panels = gy_jv_get(gy_json_root(doc), "panels");
    int n = 0, depth = 0;
    assert_true(gy_jv_len(panels) > 10);
    for (size_t i = 0; i < gy_jv_len(panels); i++) {
        const gy_jv *panel = gy_jv_at(panels, i), *targets = gy_jv_get(panel, "targets");
        assert_int_equal(gy_jv_int(gy_jv_get(panel, "id"), -1), (int64_t)i + 1);
        for (size_t k = 0; k < gy_jv_len(targets); k++) {
            const char *e = gy_jv_str(gy_jv_get(gy_jv_at(targets, k), "expr"), NULL);
            assert_non_null(e);
            int found = check_expression(e, &text);
            assert_true(found >= 1);
            n += found;
            depth |= strstr(e, "gyre:exits_total") != NULL;
        }
    }
    assert_true(n > 50 && depth);
    const gy_jv *vars = gy_jv_get(gy_jv_get(gy_json_root(doc), "templating"), "list");
    assert_true(check_expression(gy_jv_str(gy_jv_get(gy_jv_at(vars, 1), "definition"), NULL), &text) == 1);
    gy_str_free(&text);
    gy_oai_metrics_destroy(m);
    gy_json_free(doc);
}

/* ---- access log ------------------------------------------------------------------------------------------------- */

static void access_lines(void **state) {
    (void)state;
    gy_str s = {0};
    gy_oai_access a = {.wall_ns = 1796060467123456789,
                       .remote = "10.0.0.1:5000",
                       .method = "POST",
                       .target = "/v1/chat/completions",
                       .n_target = 20,
                       .status = 200,
                       .duration_ns = 1234567890,
                       .bytes_in = 12,
                       .bytes_out = 345,
                       .request_id = "r-1",
                       .model = "ouro",
                       .finish = "stop",
                       .user_agent = "a \"b\"\n=c",
                       .has_tokens = 1,
                       .prompt_tokens = 9,
                       .cached_tokens = 4,
                       .output_tokens = 2,
                       .loop_sum = 7,
                       .ttft_ns = 5000};
    gy_oai_access_line(&a, GY_OAI_LOG_LOGFMT, &s);
    assert_string_equal(
        s.data, "ts=2026-11-30T17:41:07.123Z remote=10.0.0.1:5000 method=POST target=/v1/chat/completions status=200 "
                "duration_ms=1234.567 bytes_in=12 bytes_out=345 request_id=r-1 model=ouro prompt_tokens=9 "
                "cached_tokens=4 output_tokens=2 loops=7 ttft_ms=0.005 finish=stop agent=\"a \\\"b\\\"\\n=c\"\n");
    gy_str_clear(&s);
    gy_oai_access w = {.has_tokens = 1, .n_try = 1, .prefill = 2, .decode = 5};
    w.prefill_ns = 12345678;
    w.handoff_ns = 90000;
    gy_oai_access_line(&w, GY_OAI_LOG_LOGFMT, &s);
    assert_non_null(strstr(s.data, " loops=0 decode_worker=5 prefill_worker=2 prefill_ms=12.345 handoff_ms=0.090\n"));
    gy_str_clear(&s);
    w.prefill = -1;
    w.n_try = 3;
    gy_oai_access_line(&w, GY_OAI_LOG_LOGFMT, &s);
    assert_non_null(strstr(s.data, " loops=0 decode_worker=5 tries=3\n"));
    gy_str_clear(&s);
    gy_oai_access_line(&a, GY_OAI_LOG_JSON, &s);
    gy_json *doc = NULL;
    gy_err err;
    assert_int_equal(gy_json_parse(s.data, s.len, NULL, &err, &doc), GY_OK);
    const gy_jv *o = gy_json_root(doc);
    assert_int_equal(gy_jv_len(o), 17);
    assert_true(gy_jv_is_str(gy_jv_get(o, "ts"), "2026-11-30T17:41:07.123Z"));
    assert_true(gy_jv_is_str(gy_jv_get(o, "agent"), "a \"b\"\n=c"));
    assert_true(gy_jv_num(gy_jv_get(o, "duration_ms"), 0) == 1234.567);
    assert_int_equal(gy_jv_int(gy_jv_get(o, "status"), 0), 200);
    assert_ptr_equal(strchr(s.data, '\n'), s.data + s.len - 1);
    gy_json_free(doc);
    gy_str_free(&s);
}

/* Injection, broken bytes, nothing given: one line each, and valid. */
static void hostile_access(void **state) {
    (void)state;
    static const char target[] = "/x\r\nHTTP/1.1 200\xff\0y";
    char longer[2000];
    memset(longer, 0xC3, sizeof longer);
    const gy_oai_access rows[] = {
        {.status = 499, .target = target, .n_target = sizeof target - 1, .method = ""},
        {.status = 400, .error = "bad \"thing\"", .target = longer, .n_target = sizeof longer},
        {.status = 0}};
    for (size_t i = 0; i < 3; i++)
        for (int f = 0; f < 2; f++) {
            gy_str s = {0};
            gy_json *doc = NULL;
            gy_err err;
            gy_oai_access_line(&rows[i], f ? GY_OAI_LOG_JSON : GY_OAI_LOG_LOGFMT, &s);
            assert_true(gy_utf8_valid(s.data, s.len));
            assert_ptr_equal(strchr(s.data, '\n'), s.data + s.len - 1);
            assert_true(strlen(s.data) == s.len && s.len < 2500);
            if (f) assert_int_equal(gy_json_parse(s.data, s.len, NULL, &err, &doc), GY_OK);
            gy_json_free(doc);
            gy_str_free(&s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_format),
        cmocka_unit_test(misuse_aborts),
        cmocka_unit_test(names_and_types),
        cmocka_unit_test(from_stats),
        cmocka_unit_test(from_requests),
        cmocka_unit_test(from_http),
        cmocka_unit_test(from_requests_on_workers),
        cmocka_unit_test(process_values),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(read_beside_write),
        cmocka_unit_test(board_asks_for_what_exists),
        cmocka_unit_test(access_lines),
        cmocka_unit_test(hostile_access),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
