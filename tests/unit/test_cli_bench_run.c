/* A run on a real engine: what it notes, what counts as different, failures of memory at every allocation. */
#include "cli/cli_bench_run.h"

#include "support/gold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const gold_setup setup = {.model = "ouro-tiny", .backend = "cpu", .act = GY_F32, .n_thread = 1, .max_seqs = 4};
enum { N_VOCAB = 320, MAX_ITEMS = 16 };

typedef struct fixture {
    gold_env env;
    gy_request proto;
    gy_bench_load load;
    gy_bench_item items[MAX_ITEMS];
    gy_bench_job job;
} fixture;

static void begin(fixture *f, gy_bench_kind kind, int32_t n_stream, int32_t n_turn, uint64_t seed) {
    *f = (fixture){.load = {kind, n_stream, n_turn, 2, {4, 9}, {3, 6}, 300, seed}};
    gold_open(&setup, &f->env);
    gold_engine(&setup, &f->env);
    gy_request_default(&f->proto, &f->env.m->d);
    f->proto.ignore_eos = 1;
    gy_bench_items(&f->load, f->items);
    f->job = (gy_bench_job){.load = &f->load, .items = f->items, .proto = &f->proto, .n_vocab = N_VOCAB};
}

static gy_bench_run *run_of(fixture *f) {
    gy_bench_run *r = NULL;
    gy_err err = {0};
    if (gy_bench_run_create(&f->job, &err, &r) != GY_OK) fail_msg("%s", err.msg);
    if (gy_bench_run_go(r, f->env.e, &err) != GY_OK) fail_msg("%s", err.msg);
    return r;
}

static void every_kind_ends(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        fixture f;
        gy_bench_result res = {{0}};
        gy_err err = {0};
        int32_t at = -7, n_out = 0, n_prompt = 0;
        begin(&f, (gy_bench_kind)kind, 4, kind == GY_BENCH_SESSION ? 3 : 1, 2);
        for (int32_t i = 0; i < 4 * f.load.n_turn; i++) {
            n_out += f.items[i].n_out;
            n_prompt += f.items[i].n_prompt;
        }
        gy_bench_run *r = run_of(&f);
        if (gy_bench_run_result(r, f.env.e, 256, &err, &res) != GY_OK) fail_msg("%s", err.msg);
        assert_null(gy_bench_run_failed(r, &at));
        assert_int_equal(at, -7);
        assert_true(res.f[GY_BENCH_REQUESTS] == 4 * f.load.n_turn);
        assert_true(res.f[GY_BENCH_OUTPUT_TOK] == n_out);
        assert_true(res.f[GY_BENCH_PROMPT_TOK] == n_prompt);
        assert_true(res.f[GY_BENCH_MEAN_LOOPS] == 4);
        gy_bench_run_destroy(r);
        gold_close(&f.env);
    }
}

static void same_work_same_outputs(void **state) {
    (void)state;
    fixture f;
    begin(&f, GY_BENCH_SESSION, 2, 3, 2);
    gy_bench_run *a = run_of(&f), *b = run_of(&f);
    assert_int_equal(gy_bench_run_differ(a, b), -1);
    gy_bench_run_destroy(b);
    f.proto.exit.max_loops = 3; /* other depths, and from the first turn on other tokens */
    b = run_of(&f);
    assert_int_equal(gy_bench_run_differ(a, b), 0);
    gy_bench_run_destroy(b);
    gy_bench_run_destroy(a);
    gold_close(&f.env);
}

/* Request i follows list i of a recorded file, and the first one again behind the last. */
static void depths_as_recorded(void **state) {
    (void)state;
    static const int32_t two[] = {4, 2, 2, 2, 2, 2}, one[] = {4, 1, 1, 1, 1, 1};
    struct gy_trace_list lists[] = {{two, 6}, {one, 6}};
    const gy_trace trace = {.path = "t", .n = 2, .list = lists};
    fixture f;
    gy_bench_result res = {{0}};
    gy_err err = {0};
    double loops = 0, n = 0;
    begin(&f, GY_BENCH_CLOSED, 5, 1, 2);
    f.job.trace = &trace;
    f.proto.exit.kind = GY_EXIT_TRACE;
    for (int i = 0; i < 5; i++) {
        loops += 4 + (f.items[i].n_out - 1) * (i % 2 ? 1 : 2);
        n += f.items[i].n_out;
    }
    gy_bench_run *r = run_of(&f);
    if (gy_bench_run_result(r, f.env.e, 256, &err, &res) != GY_OK) fail_msg("%s", err.msg);
    assert_true(res.f[GY_BENCH_MEAN_LOOPS] == loops / n);
    gy_bench_run_destroy(r);
    gold_close(&f.env);
}

/* What the engine refuses at once ends the run with the request's number. */
static void a_refused_request_is_named(void **state) {
    (void)state;
    fixture f;
    gy_bench_run *r = NULL;
    gy_err err = {0};
    begin(&f, GY_BENCH_CLOSED, 2, 1, 2);
    f.job.n_vocab = 1 << 20;
    assert_int_equal(gy_bench_run_create(&f.job, &err, &r), GY_OK);
    assert_true(gy_bench_run_go(r, f.env.e, &err) < 0);
    assert_int_equal(strncmp(err.msg, "request 0: ", 11), 0);
    gy_bench_run_destroy(r);
    gold_close(&f.env);
}

static void no_memory(void **state) {
    (void)state;
    fixture f;
    gy_bench_run *r = NULL;
    int n = 0;
    gy_status st;
    begin(&f, GY_BENCH_SESSION, 4, 3, 2);
    do {
        gy_err err = {0};
        gy_mem_fail_after(++n);
        st = gy_bench_run_create(&f.job, &err, &r);
        gy_mem_fail_after(0);
        if (st != GY_OK) {
            assert_int_equal(st, GY_E_NOMEM);
            assert_null(r);
            assert_non_null(strstr(err.msg, "no memory for the benchmark's requests"));
        }
    } while (st != GY_OK);
    assert_true(n > 2);
    gy_bench_run_destroy(r);
    gy_bench_run_destroy(NULL);
    gold_close(&f.env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_ends),    cmocka_unit_test(same_work_same_outputs),
        cmocka_unit_test(depths_as_recorded), cmocka_unit_test(a_refused_request_is_named),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
