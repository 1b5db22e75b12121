/* Floors of the benchmark against numbers worked out by hand, and how --ceilings is read; the timer of what waits. */
#include "cli/cli_bench_floor.h"
#include "cli/cli_bench_wait.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const gy_model_desc ouro = {.n_vocab = 49152,
                                   .n_embd = 2048,
                                   .n_ff = 5632,
                                   .n_head = 16,
                                   .n_head_kv = 16,
                                   .head_dim = 128,
                                   .n_layer = {0, 24, 0},
                                   .n_loop = 4};
static const gy_model_desc huginn = {.n_vocab = 65536,
                                     .n_embd = 5280,
                                     .n_ff = 17920,
                                     .n_head = 55,
                                     .n_head_kv = 55,
                                     .head_dim = 96,
                                     .n_layer = {2, 4, 2},
                                     .n_loop = 32,
                                     .inject = 1};
static const gy_bench_ceilings h200 = {4244e9, 790e12};

static void near(double got, double want, double share) {
    if (fabs(got - want) > share * want) fail_msg("%.6g, expected %.6g", got, want);
}

/* A layer: 4 x 2048^2 + 3 x 2048 x 5632 = 51.4 M; 24 of them four times and the head, 2 bytes each: 10.07 GB. */
static void a_token_is_bytes(void **state) {
    (void)state;
    near(gy_bench_floor_token(&ouro, 2, 4, 1, 0, &h200), 10.066e9 / 4244e9 * 1e3, 1e-3);
    /* K and V of 2048 tokens on 96 planes: 2 x 2048 x 2 bytes each */
    double kv = 96.0 * 2048 * 2 * 2048 * 2;
    near(gy_bench_floor_token(&ouro, 2, 4, 32, 2048, &h200), (10.066e9 + 32 * kv) / 4244e9 * 1e3, 1e-3);
    near(gy_bench_floor_token(&ouro, 2, 2.5, 1, 0, &h200), (10.066e9 - 1.5 * 2.466e9) / 4244e9 * 1e3, 1e-3);
    /* prelude and coda once, 32 loops of 4 layers and the adapter */
    double layer = 4.0 * 5280 * 5280 + 3.0 * 5280 * 17920, once = 4 * layer + 65536.0 * 5280;
    near(gy_bench_floor_token(&huginn, 2, 32, 1, 0, &h200),
         2 * (32 * (4 * layer + 2.0 * 5280 * 5280) + once) / 4244e9 * 1e3, 1e-9);
}

static void many_rows_are_products(void **state) {
    (void)state;
    double flops = 2 * (24 * 4 * (4.0 * 2048 * 2048 + 3.0 * 2048 * 5632) + 49152.0 * 2048);
    near(gy_bench_floor_token(&ouro, 2, 4, 4096, 0, &h200), 4096 * flops / 790e12 * 1e3, 1e-9);
}

/* 9.87 GFLOP a token and 1.65 TFLOP of attention (docs/kernels.md). */
static void a_prompt_is_products(void **state) {
    (void)state;
    near(gy_bench_floor_prompt(&ouro, 2, 2048, &h200), (2048 * 9.866e9 + 1.649e12) / 790e12 * 1e3, 1e-3);
    near(gy_bench_floor_prompt(&ouro, 2, 1, &h200), 10.066e9 / 4244e9 * 1e3, 1e-3);
}

static void ceilings_are_read(void **state) {
    (void)state;
    gy_bench_ceilings c;
    gy_err err = {0};
    assert_int_equal(gy_bench_parse_ceilings("4244:790.5", &err, &c), GY_OK);
    near(c.bytes, 4244e9, 1e-12);
    near(c.flops, 790.5e12, 1e-12);
    static const char *const bad[] = {"",     "4244", "4244:", ":790",  "4244:790x",
                                      "-1:2", "1:0",  "inf:1", "1:nan", "1:2:3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(gy_bench_parse_ceilings(bad[i], &err, &c), GY_E_ARG);
        assert_non_null(strstr(err.msg, "--ceilings"));
    }
}

/* ---- waiting ---- */

static void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static void slow_download(gy_backend *be, void *dst, const void *src, size_t n) {
    (void)be;
    sleep_ms(3);
    memcpy(dst, src, n);
}

static gy_status slow_sync(gy_backend *be, gy_err *err) {
    (void)be;
    sleep_ms(2);
    return gy_err_set(err, GY_E_DEVICE, "lost");
}

static void waits_are_timed(void **state) {
    (void)state;
    const gy_ops ops = {.name = "slow", .download = slow_download, .sync = slow_sync};
    gy_backend be = {.ops = &ops};
    gy_bench_wait w;
    gy_err err = {0};
    int a = 5, b = 0;
    gy_bench_wait_begin(&w, &be);
    assert_string_equal(be.ops->name, "slow");
    be.ops->download(&be, &b, &a, sizeof a);
    assert_int_equal(b, 5);
    assert_int_equal(be.ops->sync(&be, &err), GY_E_DEVICE);
    assert_in_range(w.ns, 5000000, 2000000000);
    gy_bench_wait_end(&w, &be);
    assert_ptr_equal(be.ops, &ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_bytes),     cmocka_unit_test(many_rows_are_products),
        cmocka_unit_test(a_prompt_is_products), cmocka_unit_test(ceilings_are_read),
        cmocka_unit_test(waits_are_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
