/* Figures of a benchmark, against values worked out by hand or by NumPy's documented rule. */
#include "cli/cli_bench_report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ll

static void assert_near(double found, double want) {
    if (!(fabs(found - want) <= 1e-9 * fmax(1, fabs(want)))) fail_msg("found %.12g, expected %.12g", found, want);
}

/* numpy.percentile([15, 20, 35, 40, 50], [0, 5, 40, 50, 90, 100]) */
static void quantiles(void **state) {
    (void)state;
    const double x[] = {15, 20, 35, 40, 50};
    assert_near(gy_bench_quantile(x, 5, 0), 15);
    assert_near(gy_bench_quantile(x, 5, 0.05), 16);
    assert_near(gy_bench_quantile(x, 5, 0.4), 29);
    assert_near(gy_bench_quantile(x, 5, 0.5), 35);
    assert_near(gy_bench_quantile(x, 5, 0.9), 46);
    assert_near(gy_bench_quantile(x, 5, 1), 50);
    assert_near(gy_bench_quantile(x, 1, 0.99), 15);
    assert_true(isnan(gy_bench_quantile(x, 0, 0.5)));
}

static void summaries(void **state) {
    (void)state;
    double x[101], s[GY_BENCH_STATS];
    for (int i = 0; i <= 100; i++) x[i] = (i * 37) % 101; /* 0..100, shuffled */
    gy_bench_summarize(x, 101, s);
    assert_near(s[GY_BENCH_MEAN], 50);
    assert_near(s[GY_BENCH_P50], 50);
    assert_near(s[GY_BENCH_P90], 90);
    assert_near(s[GY_BENCH_P95], 95);
    assert_near(s[GY_BENCH_P99], 99);
    assert_near(s[GY_BENCH_MAX], 100);
    gy_bench_summarize(x, 0, s);
    for (int i = 0; i < GY_BENCH_STATS; i++) assert_true(isnan(s[i]));
}

/* Two requests and one that failed. Request 0: due 0, admitted 10, tokens at 30, 40, 70, ends at 71 ms; request 1: due
 * 20, admitted 20, one token at 50, ends 50; request 2: due 5, refused service at 90 with no token. */
static const int64_t tok0[] = {30 * MS, 40 * MS, 70 * MS}, tok1[] = {50 * MS};
static const int32_t loops0[] = {4, 2, 3}, loops1[] = {4};
static const gy_bench_record three[] = {
    {20, 3, 3, 16, 0, 0, 10 * MS, 71 * MS, tok0, loops0, {1000, 750, 2, MS}},
    {10, 1, 1, 0, 0, 20 * MS, 20 * MS, 50 * MS, tok1, loops1, {3000, 250, 4, -1}},
    {10, 5, 0, 0, 1, 5 * MS, 0, 90 * MS, NULL, NULL, {0}},
};

static void latencies(void **state) {
    (void)state;
    gy_bench_result r = {{0}};
    assert_int_equal(gy_bench_from_records(three, 3, &r), GY_OK);
    assert_near(r.f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_MEAN)], 30); /* 30 and 30 */
    assert_near(r.f[gy_bench_at(GY_BENCH_TPOT, GY_BENCH_MEAN)], 20); /* (70 - 30) / 2; a single token has none */
    assert_near(r.f[gy_bench_at(GY_BENCH_TPOT, GY_BENCH_MAX)], 20);
    assert_near(r.f[gy_bench_at(GY_BENCH_ITL, GY_BENCH_MEAN)], 20); /* 10 and 30 */
    assert_near(r.f[gy_bench_at(GY_BENCH_ITL, GY_BENCH_MAX)], 30);
    assert_near(r.f[gy_bench_at(GY_BENCH_E2E, GY_BENCH_MAX)], 71);
    assert_near(r.f[gy_bench_at(GY_BENCH_E2E, GY_BENCH_MEAN)], 50.5);
    assert_near(r.f[gy_bench_at(GY_BENCH_TAIL, GY_BENCH_MAX)], 1); /* the second one's is not known */
    assert_near(r.f[GY_BENCH_CROSSED], 2);
    assert_near(r.f[GY_BENCH_CROSSED_BYTES], 4000);
    assert_near(r.f[GY_BENCH_OVERLAP], 0.25);
    assert_near(r.f[gy_bench_at(GY_BENCH_QUEUE, GY_BENCH_MEAN)], 5); /* 10 and 0; the third was never admitted */
    assert_near(r.f[GY_BENCH_SECONDS], 0.090);
    assert_near(r.f[GY_BENCH_REQUESTS], 3);
    assert_near(r.f[GY_BENCH_FAILED], 1);
    assert_near(r.f[GY_BENCH_PROMPT_TOK], 30);
    assert_near(r.f[GY_BENCH_CACHED_TOK], 16);
    assert_near(r.f[GY_BENCH_HIT_RATE], 16 / 30.0);
    assert_near(r.f[GY_BENCH_OUTPUT_TOK], 4);
    assert_near(r.f[GY_BENCH_OUTPUT_RATE], 4 / 0.090);
    assert_near(r.f[GY_BENCH_TOTAL_RATE], 34 / 0.090);
    assert_near(r.f[GY_BENCH_REQUEST_RATE], 2 / 0.090);
    assert_near(r.f[GY_BENCH_MEAN_LOOPS], 13.0 / 4);
}

/* KV of request 0 and 1 on 4 planes, blocks of 16: request 0 reserves 2 blocks a plane (23 tokens), request 1 one. */
static void kv_over_time(void **state) {
    (void)state;
    const gy_kv_config c = {.layout = GY_KV_LAST_EXITED,
                            .n_loop = 4,
                            .n_layer = {1, 1},
                            .n_head_kv = 1,
                            .head_dim = 16,
                            .dtype = GY_BF16,
                            .n_block = {100, 100},
                            .max_seqs = 4,
                            .max_len = 64};
    static const gy_bench_sample s[] = {
        {.at_ns = 5 * MS, .used = {0, 0}},  /* nobody */
        {.at_ns = 15 * MS, .used = {5, 2}}, /* 0 is admitted */
        {.at_ns = 35 * MS, .used = {9, 2}}, /* 0 decodes, 1 has no token yet */
        {.at_ns = 45 * MS, .used = {9, 2}}, /* the same */
        {.at_ns = 60 * MS,
         .used = {8, 3}}, /* 0 alone: 20 prompt tokens at 4 loops, output 1 after 2 loops: 82 slots, 21 tokens */
        {.at_ns = 70 * MS, .used = {10, 1}}, /* the last token's sample comes after it: 85 slots, 22 tokens */
        {.at_ns = 95 * MS, .used = {0, 0}},
    };
    gy_bench_result r = {{0}};
    assert_int_equal(gy_bench_from_samples(&c, three, 3, s, 7, &r), GY_OK);
    assert_near(r.f[GY_BENCH_KV_USED_MEAN], 41.0 / 7);
    assert_near(r.f[GY_BENCH_KV_USED_PEAK], 10);
    assert_near(r.f[GY_BENCH_KV_RESERVED_PEAK], 12);
    assert_near(r.f[GY_BENCH_KV_RESERVED_MEAN], (8 + 12 + 12 + 8 + 8) / 7.0);
    assert_near(r.f[GY_BENCH_KV_BYTES_PEAK],
                11 * 1024.0); /* 2 x 16 slots x 16 x 2 bytes a block; 9 + 2, 8 + 3, 10 + 1 */
    assert_near(r.f[GY_BENCH_DECODE_STEPS], 2);
    assert_near(r.f[GY_BENCH_DECODE_USED], 9);
    assert_near(r.f[GY_BENCH_DECODE_EXECUTED], (82 + 85) / 2.0 / 16);
    assert_near(r.f[GY_BENCH_DECODE_FULL], 8);
    assert_near(r.f[GY_BENCH_DECODE_RESERVED], 8);
}

static void no_samples(void **state) {
    (void)state;
    const gy_kv_config c = {.n_loop = 4, .n_layer = {1, 0}, .n_head_kv = 1, .head_dim = 16, .dtype = GY_BF16};
    gy_bench_result r = {{0}};
    assert_int_equal(gy_bench_from_samples(&c, three, 0, NULL, 0, &r), GY_OK);
    assert_true(isnan(r.f[GY_BENCH_KV_USED_MEAN]) && isnan(r.f[GY_BENCH_DECODE_USED]));
    assert_int_equal(gy_bench_from_records(three, 0, &r), GY_OK);
    assert_true(isnan(r.f[GY_BENCH_SECONDS]) && isnan(r.f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P50)]));
}

static void counters(void **state) {
    (void)state;
    gy_engine_stats a = {.n_step = 10, .n_pass = 20, .n_row = 100, .step_ns = 1000, .model_ns = 500, .sample_ns = 100};
    gy_engine_stats b = {.n_step = 14,
                         .n_pass = 30,
                         .n_row = 180,
                         .step_ns = 41000,
                         .model_ns = 30500,
                         .sample_ns = 2100,
                         .kv_copied_bytes = 7,
                         .kv_total = {50, 5},
                         .kv_bytes = 1000,
                         .workspace_bytes = 2000};
    gy_bench_result r = {{0}};
    a.sched.n_park = 1;
    b.sched.n_park = 3;
    b.sched.n_drop = 4;
    gy_bench_from_stats(&a, &b, 16, &r);
    assert_near(r.f[GY_BENCH_STEPS], 4);
    assert_near(r.f[GY_BENCH_PASSES], 10);
    assert_near(r.f[GY_BENCH_ROWS], 8);
    assert_near(r.f[GY_BENCH_ROWS_SHARE], 0.5);
    assert_near(r.f[GY_BENCH_STEP_US], 10);
    assert_near(r.f[GY_BENCH_SAMPLE_US], 0.5);
    assert_near(r.f[GY_BENCH_HOST_US], 2); /* (40000 - 30000 - 2000) / 4 ns */
    assert_near(r.f[GY_BENCH_HOST_SHARE], 0.2);
    assert_near(r.f[GY_BENCH_PREEMPTIONS], 6);
    assert_near(r.f[GY_BENCH_KV_TOTAL], 50);
    assert_near(r.f[GY_BENCH_KV_COPIED], 7);
    gy_bench_from_stats(&b, &b, 16, &r);
    assert_true(isnan(r.f[GY_BENCH_STEP_US]) && isnan(r.f[GY_BENCH_ROWS]));
}

static gy_bench_series series_of(int on, double a, double b, double c) {
    gy_bench_series s = {.prefix_cache = on, .n = 3};
    const double rate[] = {a, b, c};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < GY_BENCH_N; i++) s.r[k].f[i] = i == GY_BENCH_OUTPUT_RATE ? rate[k] : (double)i;
    return s;
}

static void medians(void **state) {
    (void)state;
    gy_bench_series s = series_of(0, 30, 10, 20);
    gy_bench_result m;
    s.r[1].f[GY_BENCH_STEPS] = NAN;
    s.r[2].f[GY_BENCH_STEPS] = NAN;
    s.r[0].f[GY_BENCH_STEPS] = 3;
    gy_bench_median(s.r, 3, &m);
    assert_near(m.f[GY_BENCH_OUTPUT_RATE], 20);
    assert_near(m.f[GY_BENCH_STEPS], 3); /* what is not known does not count */
    gy_bench_median(s.r, 2, &m);
    assert_near(m.f[GY_BENCH_OUTPUT_RATE], 20);
    gy_bench_median(s.r + 1, 1, &m);
    assert_near(m.f[GY_BENCH_OUTPUT_RATE], 10);
    assert_true(isnan(m.f[GY_BENCH_STEPS]));
}

/* Repeat by repeat: 2, 5, 1.5; not the ratio of medians (which would be 2.5). */
static void ratios(void **state) {
    (void)state;
    static gy_bench_series a, b;
    double x[3];
    a = series_of(0, 10, 10, 40);
    b = series_of(1, 20, 50, 60);
    gy_bench_ratio(&a, &b, x);
    assert_near(x[0], 2);
    assert_near(x[1], 1.5);
    assert_near(x[2], 5);
}

static void names_are_distinct(void **state) {
    (void)state;
    static char names[GY_BENCH_N][64];
    for (size_t i = 0; i < GY_BENCH_N; i++) {
        gy_bench_figure_name(i, names[i], sizeof names[i]);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(names[i], names[k]);
    }
    assert_string_equal(names[0], "ttft_ms_mean");
    assert_string_equal(names[gy_bench_at(GY_BENCH_QUEUE, GY_BENCH_P99)], "queue_ms_p99");
    assert_string_equal(names[GY_BENCH_SECONDS], "seconds");
    assert_string_equal(names[GY_BENCH_N - 1], "crossed_descriptors");
    assert_string_equal(names[GY_BENCH_KV_COPIED], "kv_copied_bytes");
}

/* ---- reports ---- */

static const gy_bench_load load = {GY_BENCH_SESSION, 3, 4, 3, {5, 9}, {2, 2}, 0, UINT64_MAX, GY_BENCH_EVENLY};
static gy_engine_opts engine_opts;
static gy_request proto;

static gy_bench_setup setup(void) {
    gy_engine_opts_default(&engine_opts);
    engine_opts.max_len = 60;
    proto = (gy_request){.exit = {GY_EXIT_GATE, 0.5, 2, 4, 0}};
    return (gy_bench_setup){"a \"model\"", 0,      "ouro", "bf16", "cpu-x", "a CPU", "last_exited",
                            "auto",        "gate", 4,      2,      2,       &load,   &engine_opts,
                            &proto,        1,      NULL};
}

static void json_says_all(void **state) {
    (void)state;
    static gy_bench_series s[2];
    const gy_bench_setup u = setup();
    gy_str out = {0};
    gy_json *doc = NULL;
    gy_err err = {0};
    s[0] = series_of(0, 10, 20, 30);
    s[1] = series_of(1, 20, 40, 60);
    for (int k = 0; k < 3; k++) s[0].r[k].f[GY_BENCH_DECODE_USED] = NAN;
    gy_bench_put_json(&u, s, 2, -1, &out);
    if (gy_json_parse(gy_str_z(&out), out.len, NULL, &err, &doc) != GY_OK) fail_msg("%s", err.msg);
    const gy_jv *root = gy_json_root(doc), *series = gy_jv_get(root, "series");
    assert_true(gy_jv_is_str(gy_jv_get(gy_jv_get(root, "model"), "folder"), "a \"model\""));
    assert_true(gy_jv_is_str(gy_jv_get(gy_jv_get(root, "workload"), "seed"), "18446744073709551615"));
    assert_int_equal(gy_jv_int(gy_jv_get(gy_jv_get(root, "workload"), "requests"), -1), 12);
    assert_int_equal(gy_jv_bool(gy_jv_get(root, "outputs_equal"), 0), 1);
    assert_near(gy_jv_num(gy_jv_get(gy_jv_get(root, "on_over_off"), "median"), NAN), 2);
    assert_int_equal(gy_jv_len(series), 2);
    const gy_jv *off = gy_jv_at(series, 0), *med = gy_jv_get(off, "median");
    assert_int_equal(gy_jv_bool(gy_jv_get(off, "prefix_cache"), 1), 0);
    assert_int_equal(gy_jv_len(gy_jv_get(off, "repeats")), 3);
    assert_near(gy_jv_num(gy_jv_get(med, "output_tokens_per_s"), NAN), 20);
    assert_int_equal(gy_jv_type(gy_jv_get(med, "decode_kv_blocks_used")), GY_J_NULL);
    assert_near(gy_jv_num(gy_jv_get(gy_jv_get(med, "itl_ms"), "p95"), NAN),
                (double)gy_bench_at(GY_BENCH_ITL, GY_BENCH_P95));
    assert_int_equal(gy_jv_len(med), GY_BENCH_DISTS + (GY_BENCH_N - GY_BENCH_DISTS * GY_BENCH_STATS));
    gy_json_free(doc);
    gy_str_clear(&out);
    gy_bench_put_json(&u, s, 1, 7, &out);
    assert_non_null(strstr(gy_str_z(&out), "\"outputs_equal\":false"));
    assert_null(strstr(gy_str_z(&out), "on_over_off"));
    gy_str_free(&out);
}

static size_t count_char(const char *s, const char *end, char c) {
    size_t n = 0;
    for (; s < end; s++) n += *s == c;
    return n;
}

/* A line of names, then a line for each repeat, off before on; as many fields in each. */
static void csv_lines(void **state) {
    (void)state;
    static gy_bench_series s[2];
    const gy_bench_setup u = setup();
    gy_str out = {0};
    s[0] = series_of(0, 10, 20, 30);
    s[1] = series_of(1, 20, 40, 60);
    s[1].r[2].f[GY_BENCH_HIT_RATE] = NAN;
    gy_bench_put_csv(&u, s, 2, &out);
    const char *line = gy_str_z(&out);
    size_t n = 0;
    assert_int_equal(strncmp(line, "model,workload,prefix_cache,concurrency,repeat,ttft_ms_mean,", 60), 0);
    for (const char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        char want[80];
        assert_int_equal(count_char(line, end, ','), 4 + GY_BENCH_N);
        snprintf(want, sizeof want, "\"a \"\"model\"\"\",session,%s,3,%zu,0,1,", n % 2 ? "off" : "on", (n - 1) / 2);
        if (n) assert_int_equal(strncmp(line, want, strlen(want)), 0);
    }
    assert_int_equal(n, 7);
    gy_str_free(&out);
}

static void table_says_what_matters(void **state) {
    (void)state;
    static gy_bench_series s[2];
    const gy_bench_setup u = setup();
    gy_str out = {0};
    s[0] = series_of(0, 10, 20, 30);
    s[1] = series_of(1, 20, 40, 60);
    gy_bench_put_table(&u, s, 2, -1, &out);
    static const char *const parts[] = {"3 users, 4 turns, in 5:9, out 2, seed 18446744073709551615",
                                        "exit gate 0.5 (2 to 4 loops)",
                                        "output tokens/s                   20.0  (10.0 to 30.0)",
                                        "prefix cache on over off: 2.00 times the output tokens/s (2.00 to 2.00)",
                                        "outputs of all 6 runs are equal",
                                        "REQUESTS FAILED"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(gy_str_z(&out), parts[i])) fail_msg("\"%s\" is missing:\n%s", parts[i], gy_str_z(&out));
    gy_str_clear(&out);
    s[0].n = 1;
    s[0].r[0].f[GY_BENCH_FAILED] = 0;
    gy_bench_put_table(&u, s, 1, -1, &out);
    assert_null(strstr(gy_str_z(&out), "equal"));
    assert_null(strstr(gy_str_z(&out), "FAILED"));
    gy_str_clear(&out);
    gy_bench_put_table(&u, s, 2, 5, &out);
    assert_non_null(strstr(gy_str_z(&out), "OUTPUTS DIFFER, first in request 5"));
    gy_str_free(&out);
}

/* Any allocation may fail: a status, nothing lost (ASan looks). */
static void no_memory(void **state) {
    (void)state;
    const gy_kv_config c = {.n_loop = 4, .n_layer = {1, 0}, .n_head_kv = 1, .head_dim = 16, .dtype = GY_BF16};
    gy_bench_result r = {{0}};
    gy_mem_fail_after(1);
    assert_int_equal(gy_bench_from_records(three, 3, &r), GY_E_NOMEM);
    for (int n = 1; n <= 2; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_bench_from_samples(&c, three, 3, NULL, 0, &r), GY_E_NOMEM);
    }
    gy_mem_fail_after(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),     cmocka_unit_test(summaries),  cmocka_unit_test(latencies),
        cmocka_unit_test(kv_over_time),  cmocka_unit_test(no_samples), cmocka_unit_test(counters),
        cmocka_unit_test(medians),       cmocka_unit_test(ratios),     cmocka_unit_test(names_are_distinct),
        cmocka_unit_test(json_says_all), cmocka_unit_test(csv_lines),  cmocka_unit_test(table_says_what_matters),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
