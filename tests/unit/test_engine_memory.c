/* The engine's memory: nothing allocated in a step with every feature on, a clean refusal wherever an allocation of
 * open or submit fails, small pools, and what early exits save (blocks are never copied, none is held for a depth that
 * was not run).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/mixed.h"

static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};

static gold_setup setup_of(const char *model) {
    return (gold_setup){
        .model = model, .backend = "cpu", .act = GY_F32, .n_thread = 2, .max_rows = 32, .max_seqs = 6, .max_len = 64};
}

static int64_t live_bytes(void) {
    gy_mem_stats st;
    int64_t sum = 0;
    gy_mem_get_stats(&st);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += st.live_bytes[i];
    return sum;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Room for two long sequences and a few parked ones, so that all of it happens: hits, evictions, parks, drops. */
static void everything(gy_engine_opts *o, const void *arg) {
    const gold_env *env = arg;
    o->prefix_cache = 1;
    o->kv_blocks = 10 * env->m->d.n_loop;
    o->park_bytes = 6 * (size_t)env->m->d.n_loop * 16 * 16 * (size_t)env->m->d.n_embd;
    o->fuse_loops = 2;
    o->sched.policy = GY_SCHED_PRIORITY;
    o->sched.min_coda = 2;
    o->sched.prefill_chunk = 7;
}

static void preempt_some(gy_engine *e, const gold_result *res, int n, int step) {
    static const gy_preempt ways[] = {GY_PREEMPT_AUTO, GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE};
    if (step % 3 == 1) gy_engine_preempt(e, res[step % n].id, 0, ways[step / 3 % 3]);
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    for (int m = 0; m < 3; m++) {
        static gold_result res[2][MIXED_MAX_RESULT];
        gold_setup s = setup_of(models[m]);
        gold_env env;
        mixed w;
        gold_open(&s, &env);
        s.patch = everything;
        s.patch_arg = &env;
        gold_engine(&s, &env);
        mixed_make(&w, &env.m->d, 40, MIXED_MAX_OUT);
        for (int turn = 0; turn < 2; turn++) {
            gy_err err;
            gy_status st = GY_OK;
            for (int i = 0, k = 0; i < MIXED_N; k += w.req[i++].n)
                assert_true(gold_submit(env.e, &w.req[i], res[turn] + k));
            gy_mem_guard_begin();
            for (int step = 0; st == GY_OK; step++) {
                preempt_some(env.e, res[turn], w.n_result, step);
                st = gy_engine_step(env.e, &err);
            }
            gy_mem_guard_end();
            assert_int_equal(st, GY_DONE);
            assert_int_equal(mixed_odd(&w, &env.m->d, res[turn]), 0);
        }
        assert_int_equal(mixed_compare(&s, "second turn", w.req, 0, MIXED_N, res[0], res[1]), 0);
        gy_engine_stats x;
        gy_engine_get_stats(env.e, &x);
        print_message("%s: parked %lld, dropped %lld, hits %lld, evicted %lld\n", s.model, (long long)x.sched.n_park,
                      (long long)x.sched.n_drop, (long long)x.prefix.n_hit, (long long)x.prefix.n_evict);
        assert_true(x.sched.n_park > 0 && x.sched.n_drop > 0 && x.prefix.n_hit > 0 && x.prefix.n_evict > 0);
        gold_idle(env.e);
        gold_close(&env);
    }
}

/* Small pool: requests wait for blocks, all finish, results as with a large pool. */
static void tight_pool_gives_the_same(void **state) {
    (void)state;
    static const int32_t prompt[] = {196, 48, 160, 99, 153, 64, 294};
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r[9];
    gold_result large[9], small[9];
    for (int i = 0; i < 9; i++) {
        gy_request_default(&r[i], &env.m->d);
        r[i].prompt = prompt;
        r[i].n_prompt = 1 + i % 7;
        r[i].max_tokens = 8;
        r[i].ignore_eos = 1;
        r[i].exit = (gy_exit_rule){GY_EXIT_GATE, 0.5 + 0.04 * i, 1, 4, i % 2};
    }
    gold_run(env.e, r, 9, large);
    s.kv_blocks = 9; /* two sequences of one block a depth, and a little */
    gold_engine(&s, &env);
    gold_run(env.e, r, 9, small);
    for (int i = 0; i < 9; i++) assert_true(gold_same(&large[i], &small[i]));
    gold_idle(env.e);
    gold_close(&env);
}

/* ---- allocations that fail -------------------------------------------------------------------------------------- */

/* One request that asks for everything that is allocated for. */
static void rich_request(gy_request *r, const mixed *w, const gy_model_desc *d) {
    *r = w->req[2];
    r->exit = (gy_exit_rule){GY_EXIT_KL, 0.1, 1, d->n_loop, 0};
    r->n = 3;
    r->sample = w->req[4].sample;
    r->sample.repetition_penalty = 1.2f;
    r->sample.bias = w->bias;
    r->sample.n_bias = 3;
    r->prompt_logprobs = 2;
    r->trace = w->trace;
    r->n_trace = MIXED_MAX_OUT;
    r->stop_ids = w->stop;
    r->n_stop_ids = 16;
    r->cache_salt = w->salt;
    r->n_salt = 5;
    r->want_gates = d->has_gate;
}

/* The n-th allocation of open fails, n rising until it succeeds: a clean error each time, nothing left behind. */
static void open_that_fails(void **state) {
    (void)state;
    for (int m = 0; m < 3; m++) {
        gold_setup s = setup_of(models[m]);
        gold_env env;
        gy_engine_opts o;
        gold_open(&s, &env);
        gy_engine_opts_default(&o);
        o.max_len = 64;
        o.sched.max_rows = 32;
        everything(&o, &env);
        int64_t before = live_bytes();
        int failures = 0;
        for (int n = 1;; n++) {
            gy_err err = {0};
            gy_engine *e = NULL;
            gy_mem_fail_after(n);
            gy_status st = gy_engine_open(env.m, &o, &err, &e);
            gy_mem_fail_after(0);
            gy_engine_close(e);
            assert_int_equal(live_bytes(), before);
            if (st == GY_OK) break;
            assert_null(e);
            assert_int_equal(st, GY_E_NOMEM);
            if (strlen(err.msg) < 10) fail_msg("allocation %d: \"%s\" says nothing", n, err.msg);
            failures++;
        }
        assert_true(failures >= 10);
        gold_close(&env);
    }
}

/* The same for submit; the engine goes on as if nothing had been asked. */
static void submit_that_fails(void **state) {
    (void)state;
    for (int m = 0; m < 3; m++) {
        gold_setup s = setup_of(models[m]);
        gold_env env;
        mixed w;
        gy_request r;
        gold_result base[3], got[3];
        gold_open(&s, &env);
        gold_engine(&s, &env);
        mixed_make(&w, &env.m->d, 40, MIXED_MAX_OUT);
        rich_request(&r, &w, &env.m->d);
        gold_run(env.e, &r, 1, base);
        int64_t before = live_bytes();
        int failures = 0;
        r.arg = got;
        for (int n = 1;; n++) {
            gy_err err = {0};
            int32_t id = -7;
            gy_mem_fail_after(n);
            gy_status st = gy_engine_submit(env.e, &r, &err, &id);
            gy_mem_fail_after(0);
            if (st == GY_OK) {
                gy_engine_cancel(env.e, id);
                memset(got, 0, sizeof got);
                for (int k = 0; k < 3; k++) got[k].id = id;
                assert_int_equal(gy_engine_step(env.e, &err), GY_DONE);
                assert_true(got[0].n_finish && got[2].n_finish && got[1].reason == GY_FINISH_CANCELLED);
                assert_int_equal(live_bytes(), before);
                break;
            }
            assert_int_equal(st, GY_E_NOMEM);
            assert_int_equal(id, -7);
            if (!strstr(err.msg, "3 choices")) fail_msg("allocation %d: \"%s\"", n, err.msg);
            assert_int_equal(live_bytes(), before);
            assert_int_equal(gy_engine_step(env.e, &err), GY_DONE);
            failures++;
        }
        assert_true(failures >= 1);
        gold_run(env.e, &r, 1, got);
        assert_int_equal(mixed_compare(&s, "after failures", &r, 0, 1, base, got), 0);
        assert_int_equal(live_bytes(), before);
        gold_close(&env);
    }
}

/* ---- early exits ------------------------------------------------------------------------------------------------ */

enum { N_SEQ = 8, LONG_OUT = 440, N_LOOP = 4 };

static int32_t blocks_of(int32_t n_tok) {
    return (n_tok + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN;
}

typedef struct executed { /* per sequence, from its events */
    int32_t n_output;
    const int32_t *trace;
} executed;

static gy_verdict count_output(void *arg, const gy_token_event *ev) {
    executed *x = arg;
    assert_int_equal(ev->loops, x->trace[ev->index]);
    x->n_output++;
    return GY_CONTINUE;
}

/* Blocks that n_tok finished tokens hold: token 0 is the prompt, token i ran trace[i] loops. */
static int32_t blocks_at(const int32_t *trace, int32_t n_tok) {
    int32_t sum = 0;
    for (int32_t depth = 0; depth < N_LOOP; depth++) {
        int32_t n = 0;
        for (int32_t i = 0; i < n_tok; i++) n += trace[i] > depth;
        sum += blocks_of(n);
    }
    return sum;
}

/* After each step: what finished tokens ran is held, and no more than what the token in flight may add; to the block.
 */
static void check_blocks(const gold_env *env, const executed *x, int32_t *used_out) {
    gy_engine_stats s;
    int32_t least = 0, most = 0;
    gy_engine_get_stats(env->e, &s);
    *used_out = s.kv_total[GY_KV_CORE] - s.kv_free[GY_KV_CORE];
    for (int i = 0; i < N_SEQ; i++) {
        if (x[i].n_output == LONG_OUT) continue; /* gone */
        least += blocks_at(x[i].trace, x[i].n_output);
        most += blocks_at(x[i].trace, x[i].n_output + 1);
    }
    if (*used_out < least || *used_out > most) fail_msg("%d blocks in use, expected %d to %d", *used_out, least, most);
}

/* Traces of mean 2.5 loops: 440 outputs each, in step, so that all eight are at their longest together. */
static void early_exits_hold_what_they_ran(void **state) {
    (void)state;
    static const int32_t pattern[] = {4, 1, 3, 2, 2, 3, 1, 4};
    static int32_t trace[LONG_OUT];
    executed x[N_SEQ] = {{0}};
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gy_err err;
    gy_engine_stats st;
    int32_t id, used = 0, most = 0, prompt = 5, sum = 0;
    s.max_len = 512;
    s.max_seqs = N_SEQ;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    for (int i = 0; i < LONG_OUT; i++) sum += trace[i] = pattern[i % 8];
    assert_int_equal(sum * 2, LONG_OUT * 5);
    for (int i = 0; i < N_SEQ; i++) {
        gy_request r;
        gy_request_default(&r, &env.m->d);
        r.prompt = &prompt;
        r.n_prompt = 1;
        r.max_tokens = LONG_OUT;
        r.ignore_eos = 1;
        r.exit = (gy_exit_rule){GY_EXIT_TRACE, 0.0, 1, 4, 0};
        r.trace = trace;
        r.n_trace = LONG_OUT;
        r.on_token = count_output;
        r.arg = &x[i];
        x[i].trace = trace;
        assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
    }
    for (gy_status status = GY_OK; status != GY_DONE;) {
        status = gy_engine_step(env.e, &err);
        assert_true(status >= 0);
        check_blocks(&env, x, &used);
        if (used > most) most = used;
    }
    gy_engine_get_stats(env.e, &st);
    assert_int_equal(st.kv_copied_bytes, 0);
    assert_int_equal(st.n_loop_sum * 2, st.n_output_tok * 5);
    int32_t full = N_SEQ * N_LOOP * blocks_of(LONG_OUT);
    double share = (double)most / full, executed_share = 2.5 / N_LOOP;
    print_message(
        "mean exit 2.5 of 4: %d blocks at most, full depth %d: %.3f of it, executed share %.3f; bytes copied 0\n", most,
        full, share, executed_share);
    assert_true(share <= executed_share * 1.1 && share >= executed_share * 0.9);
    gold_close(&env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(tight_pool_gives_the_same),
        cmocka_unit_test(open_that_fails),
        cmocka_unit_test(submit_that_fails),
        cmocka_unit_test(early_exits_hold_what_they_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
