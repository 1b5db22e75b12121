/* The parts of `gyre bench serve` that need no server: events, bodies, datasets, arrivals, figures, axes. Expected
 * figures are worked out by hand from the records. */
#include "base_test.h"

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli_bench_serve_args.h"
#include "cli/cli_bench_serve_event.h"
#include "cli/cli_bench_serve_html.h"
#include "cli/cli_bench_serve_svg.h"

#include <math.h>
#include <stdlib.h>

/* ---- events ---- */

static void events(void **state) {
    (void)state;
    static const struct {
        const char *data;
        int has_choice, is_token, n_loop_tok;
        int64_t loops, n_prompt, n_out, n_cached;
        const char *text;
    } cases[] = {
        {"{\"choices\":[{\"text\":\"ab\",\"finish_reason\":null,\"loops\":[3]}]}", 1, 1, 1, 3, -1, -1, -1, "ab"},
        {"{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}", 1, 1, 0, 0, -1, -1, -1, ""},
        {"{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":null}", 1, 0, 0, 0, -1, -1, -1, ""},
        {"{\"choices\":[{\"text\":\"z\",\"finish_reason\":\"stop\"}]}", 1, 1, 0, 0, -1, -1, -1, "z"},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", 1, 0, 0, 0, -1, -1, -1, ""},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"x\"}}]}", 1, 1, 0, 0, -1, -1, -1, "x"},
        {"{\"choices\":[{\"delta\":{\"content\":\"\\u00e9\"}}]}", 1, 1, 0, 0, -1, -1, -1, "\303\251"},
        {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"r\"},\"finish_reason\":null}]}", 1, 1, 0, 0, -1, -1, -1,
         ""},
        {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}", 1, 1, 0, 0, -1, -1, -1, ""},
        {"{\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}", 1, 0, 0, 0, -1, -1, -1, ""},
        {"{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"prompt_tokens_details\":{\"cached_"
         "tokens\":4}}}",
         0, 0, 0, 0, 7, 9, 4, ""},
        {"{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":0,\"prompt_tokens_details\":null}}", 0,
         0, 0, 0, 7, 0, -1, ""},
        {"{\"choices\":[{\"text\":\"ab\",\"loops\":[3,2]}]}", 1, 1, 2, 5, -1, -1, -1, "ab"},
        {"{}", 0, 0, 0, 0, -1, -1, -1, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_bserve_event e;
        gy_str text = {0};
        assert_int_equal(gy_bserve_event_read(cases[i].data, strlen(cases[i].data), &text, &e), 0);
        if (e.has_choice != cases[i].has_choice || e.is_token != cases[i].is_token ||
            e.n_loop_tok != cases[i].n_loop_tok || e.loops != cases[i].loops || e.n_prompt != cases[i].n_prompt ||
            e.n_out != cases[i].n_out || e.n_cached != cases[i].n_cached || strcmp(gy_str_z(&text), cases[i].text) != 0)
            fail_msg("%s: choice %d, token %d, loops %d %lld, usage %lld %lld %lld, '%s'", cases[i].data, e.has_choice,
                     e.is_token, e.n_loop_tok, (long long)e.loops, (long long)e.n_prompt, (long long)e.n_out,
                     (long long)e.n_cached, gy_str_z(&text));
        gy_str_free(&text);
    }
    static const char *const bad[] = {"", "x", "[]", "7", "{\"choices\":", "{} {}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_bserve_event e;
        assert_int_equal(gy_bserve_event_read(bad[i], strlen(bad[i]), NULL, &e), -1);
    }
}

/* ---- workload ---- */

static gy_bserve_load plain_load(int chat) {
    return (gy_bserve_load){.chat = chat,
                            .n_stream = 4,
                            .n_turn = 1,
                            .rate = INFINITY,
                            .burstiness = 1,
                            .in = {5, 5},
                            .out = {3, 3},
                            .word_tok = 1,
                            .seed = 11,
                            .fixed = "{\"model\":\"m\""};
}

static gy_json *body_of(const gy_bserve_load *l, const gy_bench_item *it, const gy_str *past) {
    gy_str s = {0};
    gy_json *doc = NULL;
    gy_err err = {0};
    gy_bserve_put_body(l, it, past, &s);
    if (gy_json_parse(gy_str_z(&s), s.len, NULL, &err, &doc) < 0) fail_msg("%s: %s", gy_str_z(&s), err.msg);
    gy_str_free(&s);
    return doc;
}

static int count_words(const char *s) {
    int n = 1;
    for (; *s; s++) n += *s == ' ';
    return n;
}

static void bodies(void **state) {
    (void)state;
    gy_bserve_load l = plain_load(0);
    gy_bench_item items[4];
    assert_int_equal(gy_bserve_items(&l, items), GY_OK);
    gy_json *a = body_of(&l, &items[0], NULL), *again = body_of(&l, &items[0], NULL), *b = body_of(&l, &items[1], NULL);
    const char *text = gy_jv_str(gy_jv_get(gy_json_root(a), "prompt"), NULL);
    assert_int_equal(count_words(text), 5);
    assert_int_equal(gy_jv_int(gy_jv_get(gy_json_root(a), "max_tokens"), 0), 3);
    assert_true(gy_jv_is_str(gy_jv_get(gy_json_root(again), "prompt"), text));
    assert_false(gy_jv_is_str(gy_jv_get(gy_json_root(b), "prompt"), text));
    gy_json_free(a), gy_json_free(again), gy_json_free(b);
    l.chat = 1;
    a = body_of(&l, &items[0], NULL);
    const gy_jv *m = gy_jv_at(gy_jv_get(gy_json_root(a), "messages"), 0);
    assert_true(gy_jv_is_str(gy_jv_get(m, "role"), "user"));
    assert_int_equal(count_words(gy_jv_str(gy_jv_get(m, "content"), NULL)), 5);
    assert_int_equal(gy_jv_int(gy_jv_get(gy_json_root(a), "max_completion_tokens"), 0), 3);
    gy_json_free(a);
}

/* 600 tokens of 2 a word are 300 words, across the pieces in which they are drawn; a prefix is the same in all. */
static void prefixes_and_lengths(void **state) {
    (void)state;
    gy_bserve_load l = plain_load(0);
    gy_bench_item items[4];
    gy_str text[2] = {{0}, {0}};
    l.in = (gy_bench_range){600, 600};
    l.word_tok = 2;
    l.n_prefix = 40;
    assert_int_equal(gy_bserve_items(&l, items), GY_OK);
    assert_int_equal(items[0].n_prompt, 640);
    for (int i = 0; i < 2; i++) {
        gy_bserve_put_words(&l, &items[i], &text[i]);
        assert_int_equal(count_words(gy_str_z(&text[i])), 320);
    }
    size_t same = 0;
    int words = 0;
    while (text[0].data[same] == text[1].data[same]) words += text[0].data[same++] == ' ';
    assert_in_range(words, 20, 22); /* the next words can be equal by chance */
    gy_str_free(&text[0]);
    gy_str_free(&text[1]);

    l.prompts = GY_BSERVE_IDS;
    l.n_vocab = 7;
    l.word_tok = 1;
    gy_json *a = body_of(&l, &items[0], NULL), *b = body_of(&l, &items[1], NULL);
    const gy_jv *x = gy_jv_get(gy_json_root(a), "prompt"), *y = gy_jv_get(gy_json_root(b), "prompt");
    assert_int_equal(gy_jv_len(x), 640);
    int differ = 0;
    for (size_t i = 0; i < 640; i++) {
        assert_in_range(gy_jv_int(gy_jv_at(x, i), -1), 0, 6);
        const int d = gy_jv_int(gy_jv_at(x, i), -1) != gy_jv_int(gy_jv_at(y, i), -1);
        if (i < 40) assert_int_equal(d, 0);
        differ += d;
    }
    assert_in_range(differ, 600 * 6 / 7 - 50, 600 * 6 / 7 + 50); /* sd 8.6 */
    gy_json_free(a);
    gy_json_free(b);
}

static void conversations(void **state) {
    (void)state;
    static const char reply[] = "say \"hi\"\\\n\001 and \303\251";
    for (int chat = 0; chat < 2; chat++) {
        gy_bserve_load l = plain_load(chat);
        gy_bench_item items[12];
        gy_str past = {0}, first = {0};
        l.n_turn = 3;
        assert_int_equal(gy_bserve_items(&l, items), GY_OK);
        gy_bserve_put_words(&l, &items[0], &first);
        gy_bserve_add_past(&l, &items[0], reply, sizeof reply - 1, &past);
        gy_json *doc = body_of(&l, &items[4], &past);
        if (chat) {
            const gy_jv *m = gy_jv_get(gy_json_root(doc), "messages");
            assert_int_equal(gy_jv_len(m), 3);
            assert_true(gy_jv_is_str(gy_jv_get(gy_jv_at(m, 0), "content"), gy_str_z(&first)));
            assert_true(gy_jv_is_str(gy_jv_get(gy_jv_at(m, 1), "role"), "assistant"));
            assert_true(gy_jv_is_str(gy_jv_get(gy_jv_at(m, 1), "content"), reply));
            assert_int_equal(count_words(gy_jv_str(gy_jv_get(gy_jv_at(m, 2), "content"), NULL)), 5);
            assert_false(gy_jv_is_str(gy_jv_get(gy_jv_at(m, 2), "content"), gy_str_z(&first)));
        } else {
            const char *p = gy_jv_str(gy_jv_get(gy_json_root(doc), "prompt"), NULL);
            assert_memory_equal(p, gy_str_z(&first), first.len);
            assert_memory_equal(p + first.len, reply, sizeof reply - 1);
            assert_int_equal(count_words(p + first.len + sizeof reply - 1), 6); /* a space before the first */
        }
        gy_json_free(doc);
        gy_str_free(&past);
        gy_str_free(&first);
    }
}

/* Gamma of shape k and mean 1 has variance 1/k. Over 4000 gaps the mean is known to 1/sqrt(4000 k), five of which are
 * allowed; the variance of the sample variance is (2 + 6/k) / (k^2 n). */
static void gamma_arrivals(void **state) {
    (void)state;
    enum { N = 4000 };
    static const double shapes[] = {0.25, 0.5, 1, 2, 8};
    int64_t *at = calloc(N, sizeof *at);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const double k = shapes[s], rate = 50;
        double sum = 0, sq = 0;
        gy_bench_arrivals(3, rate, k, N, at);
        for (int i = 0; i < N; i++) {
            const double gap = (double)(at[i] - (i ? at[i - 1] : 0)) * 1e-9 * rate;
            assert_true(gap >= 0);
            sum += gap;
            sq += gap * gap;
        }
        const double mean = sum / N, var = sq / N - mean * mean;
        if (fabs(mean - 1) > 5 / sqrt(N * k) || fabs(var * k - 1) > 5 * sqrt((2 + 6 / k) / N))
            fail_msg("burstiness %g: mean %g, variance %g", k, mean, var);
    }
    gy_bench_arrivals(3, INFINITY, 1, N, at);
    for (int i = 0; i < N; i++) assert_int_equal(at[i], 0);
    free(at);
}

/* ---- datasets ---- */

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void datasets(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-test-XXXXXX";
    gy_bserve_data d;
    gy_err err = {0};
    close(mkstemp(path));
    write_file(path, "{\"prompt\":\"a \\\"b\\\"\",\"max_tokens\":7}\n\n  "
                     "\r\n{\"prompt\":\"c\",\"output_len\":5}\n{\"prompt\":\"d\"}");
    assert_int_equal(gy_bserve_data_read(path, 0, &err, &d), GY_OK);
    assert_int_equal(d.entry.len, 3);
    assert_string_equal(d.entry.data[0].json, "\"a \\\"b\\\"\"");
    assert_int_equal(d.entry.data[0].n_out, 7);
    assert_int_equal(d.entry.data[1].n_out, 5);
    assert_int_equal(d.entry.data[2].n_out, 0);
    gy_bserve_load l = plain_load(1);
    gy_bench_item items[4];
    l.prompts = GY_BSERVE_DATASET;
    l.data = &d;
    assert_int_equal(gy_bserve_items(&l, items), GY_OK);
    assert_int_equal(gy_bserve_n_out(&l, &items[0]), 7);
    assert_int_equal(gy_bserve_n_out(&l, &items[2]), 3);
    assert_int_equal(gy_bserve_n_out(&l, &items[3]), 7); /* from the first again */
    gy_json *doc = body_of(&l, &items[3], NULL);
    assert_true(gy_jv_is_str(gy_jv_get(gy_jv_at(gy_jv_get(gy_json_root(doc), "messages"), 0), "content"), "a \"b\""));
    gy_json_free(doc);
    gy_bserve_data_fini(&d);

    write_file(path,
               "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]}\n");
    assert_int_equal(gy_bserve_data_read(path, 1, &err, &d), GY_OK);
    l.data = &d;
    doc = body_of(&l, &items[0], NULL);
    assert_int_equal(gy_jv_len(gy_jv_get(gy_json_root(doc), "messages")), 2);
    gy_json_free(doc);
    gy_bserve_data_fini(&d);

    write_file(
        path,
        " [{\"id\":\"x\",\"conversations\":[{\"from\":\"human\",\"value\":\"hello\"},{\"from\":\"gpt\",\"value\":"
        "\"0123456789\"}]},{\"conversations\":[{\"from\":\"human\",\"value\":\"alone\"}]},{\"conversations\":[]}]");
    assert_int_equal(gy_bserve_data_read(path, 0, &err, &d), GY_OK);
    assert_int_equal(d.entry.len, 1);
    assert_string_equal(d.entry.data[0].json, "\"hello\"");
    assert_int_equal(d.entry.data[0].n_out, 3);
    gy_bserve_data_fini(&d);

    static const struct {
        const char *text, *msg;
        int chat;
    } bad[] = {{"", "found no prompt in it", 0},
               {"[]", "found no prompt in it", 0},
               {"{\"prompt\":\"a\"}\n{\"prompt\":7}\n", ": line 2: expected an object with \"prompt\"", 0},
               {"{\"prompt\":\"a\"}\n\n{\"prompt\":\n", ": line 3: ", 0},
               {"{\"messages\":[]}\n", "messages need --endpoint chat", 0},
               {"{\"prompt\":\"a\",\"max_tokens\":-1}", "line 1: max_tokens: found -1", 0},
               {"7", "line 1: expected an object with \"messages\"", 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(path, bad[i].text);
        assert_true(gy_bserve_data_read(path, bad[i].chat, &err, &d) < 0);
        if (!strstr(err.msg, bad[i].msg) || !strstr(err.msg, path)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
    unlink(path);
    assert_true(gy_bserve_data_read(path, 0, &err, &d) < 0);
    assert_non_null(strstr(err.msg, "--dataset: "));
}

/* ---- figures ---- */

enum { MS = 1000000 };

static gy_bserve_record done(int64_t due, int64_t sent, int64_t *tok, size_t n_tok, int64_t last, int64_t n_out) {
    return (gy_bserve_record){.sent = 1,
                              .ended = 1,
                              .end = GY_OAI_DONE,
                              .http_status = 200,
                              .has_usage = 1,
                              .n_prompt = 10,
                              .n_out = n_out,
                              .n_cached = 4,
                              .loops = 3 * (int64_t)n_tok,
                              .n_loop_tok = (int32_t)n_tok,
                              .due_ns = due * MS,
                              .sent_ns = sent * MS,
                              .last_ns = last * MS,
                              .end_ns = last * MS,
                              .tok_ns = tok,
                              .n_tok = n_tok};
}

static gy_bserve_record failed(int64_t sent, int64_t end, gy_oai_end how, int status) {
    return (gy_bserve_record){.sent = 1,
                              .end = how,
                              .http_status = status,
                              .n_cached = -1,
                              .due_ns = sent * MS,
                              .sent_ns = sent * MS,
                              .end_ns = end * MS,
                              .n_out = 9};
}

static void assert_close(double found, double expected) {
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected))) fail_msg("found %.17g, expected %.17g", found, expected);
}

/* a: due 100, sent 102, outputs at 112, 122, 142, closing event 150: TTFT 10, E2E 48, TPOT 38/3 (4 tokens), ITL 10 20.
 * b: sent 100, one output at 130, last 130: TTFT 30, E2E 30, no TPOT. */
static void figures(void **state) {
    (void)state;
    int64_t a[] = {112 * MS, 122 * MS, 142 * MS}, b[] = {130 * MS};
    const gy_bserve_record rec[] = {done(100, 102, a, 3, 150, 4),       done(100, 100, b, 1, 130, 1),
                                    failed(110, 160, GY_OAI_HTTP, 429), failed(110, 300, GY_OAI_BROKEN, 200),
                                    failed(111, 160, GY_OAI_HTTP, 429), failed(111, 160, GY_OAI_BROKEN, 0),
                                    {.sent = 0, .n_out_asked = 5}};
    const gy_bserve_slo slo = {.ttft = 20, .tpot = NAN, .e2e = 48, .given = 1};
    gy_bserve_result r;
    char name[32];
    assert_int_equal(gy_bserve_figures(rec, 7, 100 * MS, 0.05, &slo, &r), GY_OK);
    assert_close(r.dist[GY_BSERVE_TTFT][GY_BENCH_MEAN], 20);
    assert_close(r.dist[GY_BSERVE_TTFT][GY_BENCH_P50], 20);
    assert_close(r.dist[GY_BSERVE_TTFT][GY_BENCH_P99], 29.8);
    assert_close(r.dist[GY_BSERVE_TTFT][GY_BENCH_MAX], 30);
    assert_close(r.dist[GY_BSERVE_E2E][GY_BENCH_MEAN], 39);
    assert_close(r.dist[GY_BSERVE_TPOT][GY_BENCH_MAX], 38.0 / 3);
    assert_close(r.dist[GY_BSERVE_ITL][GY_BENCH_MEAN], 15);
    assert_close(r.dist[GY_BSERVE_LAG][GY_BENCH_MAX], 2);
    assert_close(r.f[GY_BSERVE_SECONDS], 0.2); /* 100 to 300: failed requests are part of the run */
    assert_close(r.f[GY_BSERVE_REQUESTS], 7);
    assert_close(r.f[GY_BSERVE_COMPLETED], 2);
    assert_close(r.f[GY_BSERVE_FAILED], 4);
    assert_close(r.f[GY_BSERVE_NOT_SENT], 1);
    assert_close(r.f[GY_BSERVE_REQUEST_RATE], 10);
    assert_close(r.f[GY_BSERVE_OUTPUT_TOK], 5); /* not those of failed ones */
    assert_close(r.f[GY_BSERVE_OUTPUT_RATE], 25);
    assert_close(r.f[GY_BSERVE_TOTAL_RATE], 125);
    assert_close(r.f[GY_BSERVE_CACHED_TOK], 8);
    assert_close(r.f[GY_BSERVE_MEAN_LOOPS], 3);
    assert_close(r.f[GY_BSERVE_GOOD], 1);
    assert_close(r.f[GY_BSERVE_GOODPUT], 5);
    assert_close(r.f[GY_BSERVE_CPU_SHARE], 0.25);
    assert_close(r.f[GY_BSERVE_CPU_US_TOK], 10000);
    assert_close(r.f[GY_BSERVE_RUNNING_PEAK], 6);
    assert_close(r.f[GY_BSERVE_RUNNING_MEAN], (48.0 + 30 + 50 + 190 + 49 + 49) / 200);
    assert_int_equal(r.n_error, 2);
    assert_int_equal(r.error[0].n, 2);
    assert_int_equal(r.error[0].first, 2);
    assert_int_equal(r.error[1].n, 2);
    gy_bserve_error_name(r.error[0].end, r.error[0].http_status, name, sizeof name);
    assert_string_equal(name, "http_429");
    gy_bserve_error_name(r.error[1].end, r.error[1].http_status, name, sizeof name);
    assert_string_equal(name, "broken");
}

static void no_figures(void **state) {
    (void)state;
    const gy_bserve_record rec[] = {failed(100, 100, GY_OAI_UNREACHED, 0), {.sent = 0}};
    const gy_bserve_slo slo = {NAN, NAN, NAN, 0};
    gy_bserve_result r;
    assert_int_equal(gy_bserve_figures(rec, 2, 100 * MS, 0.05, &slo, &r), GY_OK);
    assert_true(isnan(r.dist[GY_BSERVE_TTFT][GY_BENCH_P50]) && isnan(r.f[GY_BSERVE_SECONDS]));
    assert_true(isnan(r.f[GY_BSERVE_GOOD]) && isnan(r.f[GY_BSERVE_MEAN_LOOPS]) && isnan(r.f[GY_BSERVE_CACHED_TOK]));
    assert_close(r.f[GY_BSERVE_FAILED], 1);
    gy_mem_fail_after(1);
    assert_int_equal(gy_bserve_figures(rec, 2, 100 * MS, 0.05, &slo, &r), GY_E_NOMEM);
    gy_mem_fail_after(1);
    assert_null(gy_bserve_sorted(rec, 2, GY_BSERVE_TTFT, NULL));
    gy_mem_fail_after(0);
}

static void late_generators_are_told(void **state) {
    (void)state;
    static const struct {
        double lag, ttft, cpu;
        const char *says;
    } cases[] = {{4, 1, 0.1, ""},
                 {6, 59, 0.1, "up to 6.0 ms (p99) after they were due"},
                 {6, 61, 0.1, ""},
                 {NAN, NAN, NAN, ""},
                 {0, 10, 0.81, "81 % of a core"},
                 {100, NAN, 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_bserve_outcome o = {.result = {.n_error = 0}};
        gy_str s = {0};
        o.result.dist[GY_BSERVE_LAG][GY_BENCH_P99] = cases[i].lag;
        o.result.dist[GY_BSERVE_TTFT][GY_BENCH_P50] = cases[i].ttft;
        o.result.f[GY_BSERVE_CPU_SHARE] = cases[i].cpu;
        gy_bserve_put_warnings(&o, &s);
        assert_int_equal(s.len == 0, cases[i].says[0] == '\0');
        assert_non_null(strstr(gy_str_z(&s), cases[i].says));
        gy_str_free(&s);
    }
}

/* ---- goodput's words ---- */

static void slo_words(void **state) {
    (void)state;
    gy_bserve_slo s = {NAN, NAN, NAN, 0};
    gy_err err = {0};
    assert_int_equal(gy_bserve_parse_slo("ttft:200,e2el:5e3", &err, &s), GY_OK);
    assert_int_equal(gy_bserve_parse_slo("tpot:12.5", &err, &s), GY_OK);
    assert_true(s.ttft == 200 && s.e2e == 5000 && s.tpot == 12.5 && s.given);
    static const char *const bad[] = {"", "ttft", "ttft:", "ttft:0", "ttft:x", "itl:5", "ttft:1,,tpot:2", ":5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(gy_bserve_parse_slo(bad[i], &err, &s), GY_E_ARG);
        assert_non_null(strstr(err.msg, "--goodput: found '"));
    }
}

/* ---- the page ---- */

static void axes(void **state) {
    (void)state;
    static const struct {
        double v[3];
        int wide, log;
        double lo, hi;
    } cases[] = {{{1, 2, 9}, 0, 0, 0, 10},           {{3, 3, 3}, 1, 0, 0, 4},      {{0, 0, 0}, 1, 0, 0, 1},
                 {{1, 5, 900}, 1, 1, 1, 1000},       {{1, 5, 900}, 0, 0, 0, 1000}, {{NAN, NAN, NAN}, 1, 0, 0, 1},
                 {{0.004, 50, 55}, 1, 1, 0.002, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gy_svg_axis a = gy_svg_axis_for(cases[i].v, 3, cases[i].wide, "x");
        if (a.log != cases[i].log || fabs(a.lo - cases[i].lo) > 1e-12 || a.hi < cases[i].hi * 0.999 ||
            a.hi > cases[i].hi * 1.001)
            fail_msg("case %zu: log %d, %g to %g", i, a.log, a.lo, a.hi);
    }
}

/* What a server says must not become part of the page's code. */
static void page_escapes(void **state) {
    (void)state;
    static char message[] = "<script>alert('x')</script> & \"q\"";
    int64_t tok[] = {112 * MS, 122 * MS};
    gy_bserve_record rec[] = {done(100, 102, tok, 2, 150, 2), failed(110, 160, GY_OAI_HTTP, 500)};
    rec[1].msg = message;
    gy_bserve_plan plan = {
        .load = plain_load(0), .sweep = GY_BSERVE_RATES, .n_point = 2, .slo = {20, NAN, NAN, 1}, .shown = 31};
    gy_bserve_outcome o[2] = {{.point = {4, 0, 2}, .run = {.rec = rec, .n = 2, .begin_ns = 100 * MS}},
                              {.point = {8, 0, 2}, .run = {.rec = rec, .n = 2, .begin_ns = 100 * MS}}};
    const gy_bserve_setup u = {.url = "http://h", .model = "m<b>", .when = "now", .fixed = "{", .plan = &plan};
    gy_str s = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(gy_bserve_figures(rec, 2, 100 * MS, 0, &plan.slo, &o[i].result), GY_OK);
    assert_int_equal(gy_bserve_put_html(&u, o, 2, &s), GY_OK);
    assert_null(strstr(s.data, "<script"));
    assert_null(strstr(s.data, "m<b>"));
    assert_non_null(strstr(s.data, "&lt;script&gt;alert('x')&lt;/script&gt; &amp; &quot;q&quot;"));
    assert_non_null(strstr(s.data, "m&lt;b&gt;"));
    assert_null(strstr(s.data, "nan"));
    assert_null(strstr(s.data, "http://www")); /* nothing from elsewhere */
    for (int n = 1; n < 12; n++) {             /* memory that fails is said, whenever */
        gy_str t = {0};
        gy_mem_fail_after(n);
        const gy_status st = gy_bserve_put_html(&u, o, 2, &t);
        gy_mem_fail_after(0);
        assert_true(st == GY_E_NOMEM || (st == GY_OK && t.len == s.len));
        gy_str_free(&t);
    }
    gy_str_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events),        cmocka_unit_test(bodies),         cmocka_unit_test(prefixes_and_lengths),
        cmocka_unit_test(conversations), cmocka_unit_test(gamma_arrivals), cmocka_unit_test(datasets),
        cmocka_unit_test(figures),       cmocka_unit_test(no_figures),     cmocka_unit_test(late_generators_are_told),
        cmocka_unit_test(slo_words),     cmocka_unit_test(axes),           cmocka_unit_test(page_escapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
