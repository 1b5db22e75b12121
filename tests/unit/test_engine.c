/* The engine around the golden equalities: refusals at submit, cancel at every step, finish reasons, pools that run
 * out, no allocation in the step, failure injection at open and submit.
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
#include "support/gold.h"

static gold_setup setup_of(const char *model) {
    return (gold_setup){.model = model, .backend = "cpu", .act = GY_F32};
}

static const int32_t prompt[] = {196, 48, 160, 99, 153, 64, 294};

static void base_request(const gold_env *env, gy_request *r) {
    gy_request_default(r, &env->m->d);
    r->prompt = prompt;
    r->n_prompt = 7;
    r->max_tokens = 8;
    r->ignore_eos = 1;
}

static void refused(gold_env *env, const gy_request *r, gy_status st, const char *part) {
    gy_err err = {0};
    int32_t id = -7;
    assert_int_equal(gy_engine_submit(env->e, r, &err, &id), st);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_int_equal(id, -7);
    gy_engine_stats s;
    gy_engine_get_stats(env->e, &s);
    assert_int_equal(s.n_waiting, 0);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    s.max_len = 32;
    s.kv_blocks = 6;
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request ok, r;
    base_request(&env, &ok);
    int32_t bad_ids[] = {3, 320};
    r = ok, r.n_prompt = 0, refused(&env, &r, GY_E_ARG, "prompt: found no tokens");
    r = ok, r.max_tokens = 0, refused(&env, &r, GY_E_ARG, "max_tokens: found 0");
    r = ok, r.prompt = bad_ids, r.n_prompt = 2,
    refused(&env, &r, GY_E_ARG, "prompt[1]: found token id 320, expected 0 to 319");
    bad_ids[1] = -1;
    refused(&env, &r, GY_E_ARG, "found token id -1");
    r = ok, r.max_tokens = 26, refused(&env, &r, GY_E_LIMIT, "= 33, expected at most 32");
    r = ok, r.max_tokens = 20, refused(&env, &r, GY_E_LIMIT, "needs 8 KV blocks at full depth, the pool has 6");
    r = ok, r.exit.max_loops = 5, refused(&env, &r, GY_E_ARG, "max_loops");
    r = ok, r.exit.min_loops = 3, r.exit.max_loops = 2, refused(&env, &r, GY_E_ARG, "min_loops");
    r = ok, r.sample.temperature = -1.0f, refused(&env, &r, GY_E_ARG, "temperature");
    r = ok, r.exit.kind = GY_EXIT_KL, r.exit.threshold = 0.1, r.exit.on_prompt = 1;
    refused(&env, &r, GY_E_UNSUPPORTED, "on_prompt");
    int32_t trace[] = {4, 2, 3, 5, 1, 1, 1, 1};
    r = ok, r.exit.kind = GY_EXIT_TRACE, r.trace = trace, r.n_trace = 7;
    refused(&env, &r, GY_E_ARG, "trace: found 7 depths");
    r.n_trace = 8, refused(&env, &r, GY_E_ARG, "trace[3]: found 5 loops, expected 1 to 4");
    trace[0] = 3,
    refused(&env, &r, GY_E_ARG, "trace[0]: found 3 loops, expected 4 to 4 (the prompt runs at full depth)");
    gold_close(&env);
}

static void gate_needs_a_gate(void **state) {
    (void)state;
    gold_setup s = setup_of("nanbeige-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r;
    base_request(&env, &r);
    r.exit.kind = GY_EXIT_GATE;
    r.exit.threshold = 0.5;
    refused(&env, &r, GY_E_ARG, "gate");
    gold_close(&env);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    static const struct {
        gy_engine_opts o;
        const char *part;
    } cases[] = {
        {{.max_rows = 0, .max_seqs = 1, .max_len = 8}, "max_rows: found 0"},
        {{.max_rows = 1, .max_seqs = 0, .max_len = 8}, "max_seqs: found 0"},
        {{.max_rows = 1, .max_seqs = 1, .max_len = 513}, "max_len: found 513 tokens, expected 1 to 512"},
        {{.max_rows = 1, .max_seqs = 1, .max_len = 8, .kv_blocks = -1}, "kv_blocks: found -1"},
        {{.max_rows = 1, .max_seqs = 1, .max_len = 8, .kv_layout = GY_KV_CYCLIC, .cyclic_k = 5}, "cyclic:5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gy_err err = {0};
        gy_engine *e = NULL;
        assert_true(gy_engine_open(env.m, &cases[i].o, &err, &e) < 0);
        assert_null(e);
        if (!strstr(err.msg, cases[i].part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i].part);
    }
    gold_close(&env);
}

/* Ouro-1.4B: 196,608 bytes a token and depth (ouro.md, constants), so 786,432 at full depth. */
static void plan_has_the_published_sizes(void **state) {
    (void)state;
    gy_model_desc d = {
        .n_head = 16, .n_head_kv = 16, .head_dim = 128, .n_layer = {0, 24, 0}, .n_loop = 4, .max_pos = 65536};
    gy_engine_opts o = {.max_rows = 1, .max_seqs = 2, .max_len = 160};
    gy_engine_plan p;
    gy_err err;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, &err, &p), GY_OK);
    assert_int_equal(p.kv_token_bytes, 786432);
    assert_int_equal(p.n_block[GY_KV_CORE], 2 * 4 * 10);
    assert_int_equal(p.kv_bytes, 786432u * 160 * 2);
    gy_model_desc h = {
        .n_head = 55, .n_head_kv = 55, .head_dim = 96, .n_layer = {2, 4, 2}, .n_loop = 32, .max_pos = 4096};
    assert_int_equal(gy_engine_make_plan(&h, GY_BF16, &o, &err, &p), GY_OK);
    assert_int_equal(p.kv_token_bytes, 2787840); /* 132 layer-planes */
    o.max_seqs = 65536;
    o.max_len = 65536;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, &err, &p), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "lower max_seqs or max_len"));
}

/* ---- cancel, finish --------------------------------------------------------------------------------------------- */

static int step_all(gy_engine *e) {
    gy_err err;
    for (int n = 0;; n++) {
        gy_status st = gy_engine_step(e, &err);
        assert_true(st >= 0);
        if (st == GY_DONE) return n;
        assert_true(n < 10000);
    }
}

static void assert_books_at_zero(gy_engine *e) {
    gy_engine_stats s;
    char why[256];
    gy_engine_get_stats(e, &s);
    assert_int_equal(s.n_waiting + s.n_running, 0);
    for (int g = 0; g < GY_KV_GROUPS; g++) assert_int_equal(s.kv_free[g], s.kv_total[g]);
    if (!gy_kv_is_valid(gy_engine_kv(e), why, sizeof why)) fail_msg("%s", why);
}

static void note_finish(void *arg, const gy_finish_event *ev) {
    *(gy_finish *)arg = ev->reason;
}

/* Six requests, two at a time; one of them is cancelled after k steps, k rising: others finish with the same outputs.
 */
static void cancel_at_every_step(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    for (int m = 0; m < 2; m++) {
        gold_setup s = setup_of(models[m]);
        s.max_seqs = 2;
        s.max_rows = 4;
        gold_env env;
        gold_open(&s, &env);
        gold_engine(&s, &env);
        gy_request r[3];
        gold_result alone[3], got[3];
        for (int i = 0; i < 3; i++) {
            base_request(&env, &r[i]);
            r[i].n_prompt = 7 - i;
            r[i].latent_noise = i & 1;
        }
        gold_run(env.e, r, 3, alone);
        for (int k = 0; k < 60; k += 1 + k / 12) {
            gy_err err;
            gy_finish reason = GY_FINISH_ERROR;
            gy_request victim;
            int32_t id;
            base_request(&env, &victim);
            victim.on_finish = note_finish;
            victim.arg = &reason;
            assert_int_equal(gy_engine_submit(env.e, &victim, &err, &id), GY_OK);
            for (int i = 0; i < k; i++) assert_true(gy_engine_step(env.e, &err) >= 0);
            gy_engine_cancel(env.e, id);
            gold_run(env.e, r, 3, got);
            assert_true(reason == GY_FINISH_CANCELLED || reason == GY_FINISH_LENGTH);
            if (k < 8) assert_int_equal(reason, GY_FINISH_CANCELLED);
            for (int i = 0; i < 3; i++) assert_true(gold_same(&alone[i], &got[i]));
            assert_books_at_zero(env.e);
        }
        gold_close(&env);
    }
}

static void cancel_while_waiting(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    s.max_seqs = 1;
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_finish reason[4];
    int32_t id[4];
    gy_err err;
    for (int i = 0; i < 4; i++) {
        gy_request r;
        base_request(&env, &r);
        r.on_finish = note_finish;
        r.arg = &reason[i];
        reason[i] = GY_FINISH_ERROR;
        assert_int_equal(gy_engine_submit(env.e, &r, &err, &id[i]), GY_OK);
    }
    gy_engine_cancel(env.e, id[1]);
    gy_engine_cancel(env.e, id[3]);
    gy_engine_cancel(env.e, 12345);
    step_all(env.e);
    static const gy_finish expected[] = {GY_FINISH_LENGTH, GY_FINISH_CANCELLED, GY_FINISH_LENGTH, GY_FINISH_CANCELLED};
    assert_memory_equal(reason, expected, sizeof expected);
    assert_books_at_zero(env.e);
    gold_close(&env);
}

static gy_verdict stop_at_three(void *arg, const gy_token_event *ev) {
    *(int32_t *)arg = ev->index + 1;
    return ev->index == 2 ? GY_STOP : GY_CONTINUE;
}

static void finish_reasons(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r;
    gold_result res;
    base_request(&env, &r);
    gold_run(env.e, &r, 1, &res); /* golden: 285 285 285 172 ... */
    assert_int_equal(res.reason, GY_FINISH_LENGTH);
    assert_int_equal(res.n, 8);
    int32_t stop = res.tokens[3];
    r.stop_ids = &stop;
    r.n_stop_ids = 1;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.reason, GY_FINISH_STOP);
    assert_int_equal(res.n, 4); /* the token that ends a text is delivered */
    assert_int_equal(res.tokens[3], stop);
    int32_t seen = 0, id;
    gy_err err;
    base_request(&env, &r);
    r.on_token = stop_at_three;
    r.arg = &seen;
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
    step_all(env.e);
    assert_int_equal(seen, 3);
    assert_books_at_zero(env.e);
    gold_close(&env);
}

static void eos_ends_unless_ignored(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r;
    gold_result res;
    base_request(&env, &r);
    env.m->d.eos[0] = 172; /* the fourth golden token */
    r.ignore_eos = 0;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.n, 4);
    assert_int_equal(res.reason, GY_FINISH_STOP);
    r.ignore_eos = 1;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.n, 8);
    gold_close(&env);
}

/* A request whose logits are NaN ends alone; the others are untouched. */
static void nan_ends_one_request(void **state) {
    (void)state;
    gold_setup s = setup_of("huginn-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r[2];
    gold_result good[2], res[2];
    for (int i = 0; i < 2; i++) base_request(&env, &r[i]);
    static const int32_t poisoned[] = {5, 17, 9};
    r[1].prompt = poisoned;
    r[1].n_prompt = 3;
    gold_run(env.e, r, 2, good);
    /* Token 17's embedding becomes NaN: through a private copy of the table, the mapping is read-only. */
    size_t bytes = (size_t)env.m->d.n_vocab * (size_t)env.m->d.n_embd * sizeof(float);
    float *table = malloc(bytes);
    memcpy(table, env.m->embed.part[0].data, bytes);
    table[17 * env.m->d.n_embd] = 0.0f / 0.0f;
    env.m->embed.part[0].data = table;
    gold_run(env.e, r, 2, res);
    assert_true(gold_same(&good[0], &res[0]));
    assert_int_equal(res[1].reason, GY_FINISH_ERROR);
    assert_int_equal(res[1].n, 0);
    assert_non_null(strstr(res[1].error, "NaN"));
    assert_books_at_zero(env.e);
    gold_close(&env);
    free(table);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void steps_allocate_nothing(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    for (int m = 0; m < 3; m++) {
        gold_setup s = setup_of(models[m]);
        gold_env env;
        gold_open(&s, &env);
        gold_engine(&s, &env);
        gy_err err;
        int32_t id;
        for (int i = 0; i < 6; i++) {
            gy_request r;
            base_request(&env, &r);
            if (i == 1) r.exit = (gy_exit_rule){GY_EXIT_LATENT, 0.2, 1, env.m->d.n_loop, 1};
            if (i == 2) r.exit = (gy_exit_rule){GY_EXIT_KL, 0.1, 1, env.m->d.n_loop, 0};
            if (i == 3 && env.m->d.has_gate) r.exit = (gy_exit_rule){GY_EXIT_SELECT, 0.6, 1, env.m->d.n_loop, 0};
            if (i >= 4)
                r.sample =
                    (gy_sample_params){.temperature = 1.0f, .top_p = 0.9f, .top_k = 30, .seed = 3, .n_logprobs = 5};
            assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
        }
        gy_mem_guard_begin();
        int n = step_all(env.e);
        gy_mem_guard_end();
        assert_true(n > 8);
        gold_close(&env);
    }
}

/* Small pool: requests wait for blocks, all finish, results as with a large pool. */
static void tight_pool_gives_the_same(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r[9];
    gold_result large[9], small[9];
    for (int i = 0; i < 9; i++) {
        base_request(&env, &r[i]);
        r[i].n_prompt = 1 + i % 7;
        r[i].exit = (gy_exit_rule){GY_EXIT_GATE, 0.5 + 0.04 * i, 1, 4, i % 2};
    }
    gold_run(env.e, r, 9, large);
    gy_engine_close(env.e);
    s.kv_blocks = 9; /* two sequences of one block a depth, and a little */
    gold_engine(&s, &env);
    gold_run(env.e, r, 9, small);
    for (int i = 0; i < 9; i++) assert_true(gold_same(&large[i], &small[i]));
    assert_books_at_zero(env.e);
    gold_close(&env);
}

static int64_t live_bytes(void) {
    gy_mem_stats st;
    int64_t sum = 0;
    gy_mem_get_stats(&st);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += st.live_bytes[i];
    return sum;
}

/* The n-th allocation fails, n rising until everything succeeds: a clean error each time, nothing left behind. */
static void failing_allocations(void **state) {
    (void)state;
    gold_setup s = setup_of("huginn-tiny");
    gold_env env;
    gold_open(&s, &env);
    gy_engine_opts o;
    gy_engine_opts_default(&o);
    o.max_len = 64;
    int64_t before = live_bytes();
    int failures = 0;
    for (int n = 1;; n++) {
        gy_err err = {0};
        gy_engine *e = NULL;
        gy_mem_fail_after(n);
        gy_status st = gy_engine_open(env.m, &o, &err, &e);
        if (st == GY_OK) {
            gy_request r;
            int32_t id;
            base_request(&env, &r);
            r.exit = (gy_exit_rule){GY_EXIT_KL, 0.1, 1, env.m->d.n_loop, 0};
            st = gy_engine_submit(e, &r, &err, &id);
        }
        gy_mem_fail_after(0);
        gy_engine_close(e);
        assert_int_equal(live_bytes(), before);
        if (st == GY_OK) break;
        assert_int_equal(st, GY_E_NOMEM);
        assert_true(err.msg[0]);
        failures++;
    }
    assert_true(failures >= 5);
    gold_close(&env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(gate_needs_a_gate),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(plan_has_the_published_sizes),
        cmocka_unit_test(cancel_at_every_step),
        cmocka_unit_test(cancel_while_waiting),
        cmocka_unit_test(finish_reasons),
        cmocka_unit_test(eos_ends_unless_ignored),
        cmocka_unit_test(nan_ends_one_request),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(tight_pool_gives_the_same),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
