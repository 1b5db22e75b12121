/* A backend that fails in a step: from then on nobody is told a token, every later step says the same, and the engine
 * closes with all that it held. The product that fails moves through a whole run; the next sync tells.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/gold.h"

enum { N = 3, N_OUT = 6 };

static gold_result whole[N], res[N];

static int n_told(void) {
    return res[0].n + res[1].n + res[2].n;
}

static struct {
    gy_ops ops;
    const gy_ops *real;
    int n_product, fail_at; /* 0: never */
    int n_told;             /* when it failed */
} broken;

static int has_failed(void) {
    return broken.fail_at && broken.n_product >= broken.fail_at;
}

/* Results are those of a backend that works: whoever tells them is found by counting. */
static void broken_linear(gy_backend *be, const gy_linear_args *a) {
    if (++broken.n_product == broken.fail_at) broken.n_told = n_told();
    broken.real->linear(be, a);
}

static gy_status broken_sync(gy_backend *be, gy_err *err) {
    if (!has_failed()) return broken.real->sync(be, err);
    return gy_err_set(err, GY_E_DEVICE, "the device fell off (product %d)", broken.n_product);
}

static int64_t live_bytes(void) {
    gy_mem_stats st;
    int64_t sum = 0;
    gy_mem_get_stats(&st);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += st.live_bytes[i];
    return sum;
}

static void make_requests(gy_request *r, const int32_t *ids, const gy_model_desc *d) {
    for (int i = 0; i < N; i++) {
        gy_request_default(&r[i], d);
        r[i].prompt = ids + i;
        r[i].n_prompt = 3 + 2 * i;
        r[i].max_tokens = N_OUT;
        r[i].ignore_eos = 1;
    }
    r[1].exit = (gy_exit_rule){GY_EXIT_KL, 0.01, 1, d->n_loop, 0};
}

/* 1: it was lost; 0: it came to its end before. */
static int run_until_lost(gold_env *env, gy_request *r) {
    gy_err err = {0}, again = {0};
    gy_status st = GY_OK;
    for (int i = 0; i < N; i++) assert_true(gold_submit(env->e, &r[i], &res[i]));
    while (st == GY_OK) st = gy_engine_step(env->e, &err);
    for (int i = 0; i < N; i++) assert_memory_equal(res[i].tokens, whole[i].tokens, (size_t)res[i].n * sizeof(int32_t));
    if (st == GY_DONE) return 0;
    assert_int_equal(st, GY_E_DEVICE);
    assert_int_equal(n_told(), broken.n_told);
    assert_non_null(strstr(err.msg, "the device fell off"));
    gy_engine_cancel(env->e, res[0].id);
    assert_int_equal(gy_engine_step(env->e, &again), GY_E_DEVICE);
    assert_string_equal(again.msg, err.msg); /* the first word stays */
    assert_int_equal(n_told(), broken.n_told);
    return 1;
}

static void lost_at_every_product(void **state) {
    (void)state;
    static const int32_t ids[] = {196, 48, 160, 99, 153, 64, 294, 12, 77};
    gy_request r[N];
    gold_env env;
    for (int fuse = 1; fuse <= 3; fuse += 2) {
        gold_setup s = {.model = "ouro-tiny", .backend = "ref", .act = GY_F32, .max_rows = 8, .max_len = 64};
        int lost = 1, n = 0;
        gold_open(&s, &env);
        gold_engine(&s, &env);
        make_requests(r, ids, &env.m->d);
        gold_run(env.e, r, N, whole);
        gy_engine_close(env.e);
        env.e = NULL;
        broken.real = env.be->ops;
        broken.ops = *env.be->ops;
        broken.ops.linear = broken_linear;
        broken.ops.sync = broken_sync;
        env.be->ops = &broken.ops;
        int64_t live = live_bytes();
        for (n = 0; lost; n += 11) { /* prime to what a layer has */
            gy_engine_opts o;
            gy_err err;
            gy_engine_opts_default(&o);
            o.sched.max_rows = 8;
            o.max_len = 64;
            o.fuse_loops = fuse;
            assert_int_equal(gy_engine_open(env.m, &o, &err, &env.e), GY_OK);
            broken.n_product = 0;
            broken.fail_at = n + 1;
            lost = run_until_lost(&env, r);
            broken.fail_at = 0;
            gy_engine_close(env.e);
            env.e = NULL;
            assert_int_equal(live_bytes(), live);
        }
        assert_true(n > 300);
        env.be->ops = broken.real;
        gold_close(&env);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lost_at_every_product)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
