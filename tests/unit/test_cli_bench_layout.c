/* Names of layouts, and a run in shares: what several processes sent is what one would have. */
#include "cli/cli_bench_layout.h"

#include "support/gold.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- names ---- */

static gy_status parse(const char *text, gy_err *err, gy_bench_layout *out, size_t *n) {
    gy_args a;
    gy_args_default(&a);
    a.bench.layouts = text;
    return gy_bench_layouts_of(&a, 4, err, out, n);
}

static void layouts_are_read(void **state) {
    (void)state;
    gy_bench_layout l[GY_BENCH_MAX_LAYOUT];
    gy_err err = {0};
    size_t n = 9;
    assert_int_equal(parse("engine,2r,1p1d,2h,1p2d3h,63r", &err, l, &n), GY_OK);
    assert_int_equal(n, 6);
    static const int32_t want[6][5] = {{1, 0, 0, 0, 4}, {2, 0, 0, 0, 2}, {0, 1, 1, 0, 2},
                                       {0, 0, 0, 2, 2}, {0, 1, 2, 3, 1}, {63, 0, 0, 0, 1}};
    for (int i = 0; i < 6; i++) {
        const int32_t got[5] = {l[i].replicas, l[i].prefill, l[i].decode, l[i].hybrid, l[i].n_thread};
        assert_memory_equal(got, want[i], sizeof got);
    }
    assert_string_equal(l[4].name, "1p2d3h");
    assert_int_equal(gy_bench_layout_processes(&l[4]), 6);
}

static void other_words_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",     "engines", "2",  "p1d", "1p",     "2d",          "0r",   "1r1h",
                                      "1p1p", "1p1d,",   "1x", "64r", "40h40p", "9999999999h", "1p 1d"};
    gy_bench_layout l[GY_BENCH_MAX_LAYOUT];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_err err = {0};
        size_t n = 0;
        assert_int_equal(parse(bad[i], &err, l, &n), GY_E_ARG);
        assert_non_null(strstr(err.msg, "--layouts: found '"));
        assert_non_null(strstr(err.msg, "expected engine, 2r (replicas), or workers"));
    }
    gy_err err = {0};
    size_t n = 0;
    assert_int_equal(parse("1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r,1r", &err, l, &n), GY_E_ARG);
    assert_string_equal(err.msg, "--layouts: found more than 16");
}

static void flags_of_workers_are_one_layout(void **state) {
    (void)state;
    gy_bench_layout l[GY_BENCH_MAX_LAYOUT];
    gy_err err = {0};
    size_t n = 9;
    gy_args a;
    const gy_opts none = {.arena = NULL};
    gy_args_default(&a);
    a.opts = &none;
    assert_int_equal(gy_bench_layouts_of(&a, 4, &err, l, &n), GY_OK);
    assert_int_equal(n, 0);
    a.pd.prefill = 1;
    a.pd.decode = 2;
    a.pd.hybrid = 1;
    a.threads = 7;
    assert_int_equal(gy_bench_layouts_of(&a, 4, &err, l, &n), GY_OK);
    assert_int_equal(n, 1);
    assert_string_equal(l[0].name, "1p2d1h");
    assert_int_equal(l[0].n_thread, 7);
    a.bench.layouts = "engine";
    assert_int_equal(gy_bench_layouts_of(&a, 4, &err, l, &n), GY_E_ARG);
    assert_non_null(strstr(err.msg, "--layouts: found --prefill"));
}

/* ---- shares ---- */

static const gold_setup setup = {.model = "ouro-tiny", .backend = "cpu", .act = GY_F32, .n_thread = 1, .max_seqs = 4};
enum { N_VOCAB = 320, MAX_ITEMS = 16 };

typedef struct fixture {
    gold_env env;
    gy_request proto;
    gy_bench_load load;
    gy_bench_item items[MAX_ITEMS];
    gy_bench_job job;
} fixture;

static void begin(fixture *f, gy_bench_kind kind, int32_t n_stream, int32_t n_turn) {
    *f = (fixture){.load = {kind, n_stream, n_turn, 2, {4, 9}, {3, 6}, 300, 5}};
    gold_open(&setup, &f->env);
    gold_engine(&setup, &f->env);
    gy_request_default(&f->proto, &f->env.m->d);
    f->proto.ignore_eos = 1;
    gy_bench_items(&f->load, f->items);
    f->job = (gy_bench_job){.load = &f->load, .items = f->items, .proto = &f->proto, .n_vocab = N_VOCAB};
}

static gy_bench_run *create(const fixture *f) {
    gy_bench_run *r = NULL;
    gy_err err = {0};
    if (gy_bench_run_create(&f->job, &err, &r) != GY_OK) fail_msg("%s", err.msg);
    return r;
}

static void go(gy_bench_run *r, const fixture *f) {
    gy_err err = {0};
    if (gy_bench_run_go(r, f->env.e, &err) != GY_OK) fail_msg("%s", err.msg);
}

static void shares_are_the_whole(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        fixture f;
        int fd[2];
        gy_err err = {0};
        gy_bench_result one, sum;
        begin(&f, (gy_bench_kind)kind, 5, kind == GY_BENCH_SESSION ? 3 : 1);
        gy_bench_run *whole = create(&f), *all = create(&f), *part = NULL;
        go(whole, &f);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        for (int32_t k = 0; k < 3; k++) {
            assert_int_equal(gy_bench_run_differ(whole, all), k == 0 ? 0 : k); /* streams before k are there */
            part = create(&f);
            gy_bench_run_set_share(part, k, 3);
            go(part, &f);
            assert_int_equal(gy_bench_run_send(part, fd[0]), 0);
            assert_int_equal(gy_bench_run_take(all, fd[1]), 0);
            gy_bench_run_destroy(part);
        }
        assert_int_equal(gy_bench_run_differ(whole, all), -1);
        assert_int_equal(gy_bench_run_result(whole, NULL, 256, &err, &one), GY_OK);
        assert_int_equal(gy_bench_run_result(all, NULL, 256, &err, &sum), GY_OK);
        assert_true(one.f[GY_BENCH_OUTPUT_TOK] == sum.f[GY_BENCH_OUTPUT_TOK]);
        assert_true(sum.f[GY_BENCH_PROMPT_TOK] == one.f[GY_BENCH_PROMPT_TOK]);
        assert_true(sum.f[GY_BENCH_SECONDS] > 0 && sum.f[GY_BENCH_CPU_SECONDS] > 0);
        assert_true(isnan(sum.f[GY_BENCH_KV_TOTAL]) && isnan(sum.f[GY_BENCH_STEP_US]));
        gy_bench_run_destroy(whole);
        gy_bench_run_destroy(all);
        close(fd[0]);
        close(fd[1]);
        gold_close(&f.env);
    }
}

static void a_share_that_is_cut_off(void **state) {
    (void)state;
    fixture f;
    int fd[2];
    begin(&f, GY_BENCH_BURST, 4, 1);
    gy_bench_run *r = create(&f), *all = create(&f);
    go(r, &f);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(gy_bench_write_all(fd[0], "half a head", 11), 0);
    close(fd[0]);
    assert_int_equal(gy_bench_run_take(all, fd[1]), -1);
    close(fd[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    close(fd[1]);
    assert_int_equal(gy_bench_run_send(r, fd[0]), -1);
    close(fd[0]);
    gy_bench_run_destroy(r);
    gy_bench_run_destroy(all);
    gold_close(&f.env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_read),
        cmocka_unit_test(other_words_are_refused),
        cmocka_unit_test(flags_of_workers_are_one_layout),
        cmocka_unit_test(shares_are_the_whole),
        cmocka_unit_test(a_share_that_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
