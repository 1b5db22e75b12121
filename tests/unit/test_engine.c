/* The engine around the golden equalities: refusals at open and submit, planned sizes, cancel, finish reasons. Memory
 * is in test_engine_memory.c, calls from callbacks and what is counted in test_engine_calls.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    assert_int_equal(s.sched.n_waiting, 0);
    assert_int_equal(s.n_request, 0);
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
    trace[0] = 3;
    refused(&env, &r, GY_E_ARG, "trace[0]: found 3 loops, expected 4 to 4 (the prompt runs at full depth)");
    r = ok, r.min_tokens = 9, refused(&env, &r, GY_E_ARG, "min_tokens: found 9, expected 0 to 8");
    r = ok, r.min_tokens = -1, refused(&env, &r, GY_E_ARG, "min_tokens: found -1");
    r = ok, r.n = 0, refused(&env, &r, GY_E_ARG, "n: found 0 choices, expected 1 to 128");
    r = ok, r.n = 129, refused(&env, &r, GY_E_ARG, "n: found 129 choices");
    r = ok, r.prompt_logprobs = 21, refused(&env, &r, GY_E_ARG, "prompt_logprobs: found 21");
    r = ok, r.prompt_logprobs = -2, refused(&env, &r, GY_E_ARG, "prompt_logprobs: found -2");
    r = ok, r.cache_salt = "", r.n_salt = GY_PREFIX_MAX_SALT + 1;
    refused(&env, &r, GY_E_ARG, "cache_salt: found 1025 bytes, expected at most 1024");
    r.n_salt = -1, refused(&env, &r, GY_E_ARG, "cache_salt: found -1");
    gold_close(&env);
}

static void bad_sampling_is_refused(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request ok, r;
    gy_logit_bias bias[] = {{.id = 3, .bias = 1.0f}, {.id = 320, .bias = 1.0f}};
    int32_t stop[] = {5, 320};
    base_request(&env, &ok);
    r = ok, r.sample.repetition_penalty = 0.0f, refused(&env, &r, GY_E_ARG, "repetition_penalty");
    r = ok, r.sample.frequency_penalty = 2.5f, refused(&env, &r, GY_E_ARG, "frequency_penalty");
    r = ok, r.sample.presence_penalty = -2.5f, refused(&env, &r, GY_E_ARG, "presence_penalty");
    r = ok, r.sample.bias = bias, r.sample.n_bias = 2, refused(&env, &r, GY_E_ARG, "320");
    bias[1].id = 3, refused(&env, &r, GY_E_ARG, "bias");
    bias[1] = (gy_logit_bias){.id = 4, .bias = 101.0f}, refused(&env, &r, GY_E_ARG, "bias");
    r = ok, r.stop_ids = stop, r.n_stop_ids = 2;
    refused(&env, &r, GY_E_ARG, "stop_ids[1]: found token id 320, expected 0 to 319");
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

static void not_opened(gold_env *env, const gy_engine_opts *o, const char *part) {
    gy_err err = {0};
    gy_engine *e = NULL;
    gy_engine_plan plan;
    assert_true(gy_engine_open(env->m, o, &err, &e) < 0);
    assert_null(e);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_true(gy_engine_make_plan(&env->m->d, GY_F32, o, 0, &err, &plan) < 0);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gy_engine_opts ok, o;
    gold_open(&s, &env);
    gy_engine_opts_default(&ok);
    not_opened(&env, &ok, "max_len: found 0");
    ok.max_len = 8;
    o = ok, o.sched.max_rows = 0, not_opened(&env, &o, "max_rows: found 0");
    o = ok, o.sched.max_rows = 1 << 21, not_opened(&env, &o, "max_rows: found 2097152");
    o = ok, o.sched.max_seqs = 0, not_opened(&env, &o, "max_seqs: found 0");
    o = ok, o.sched.max_seqs = 1 << 17, not_opened(&env, &o, "max_seqs: found 131072");
    o = ok, o.sched.max_queue = 0, not_opened(&env, &o, "max_queue: found 0");
    o = ok, o.sched.prefill_chunk = 0, not_opened(&env, &o, "prefill_chunk: found 0");
    o = ok, o.sched.prefill_share = 0.0, not_opened(&env, &o, "prefill_share: found 0");
    o = ok, o.sched.prefill_share = 1.5, not_opened(&env, &o, "prefill_share: found 1.5");
    o = ok, o.sched.prefill_share = 0.0 / 0.0, not_opened(&env, &o, "prefill_share: found");
    o = ok, o.sched.watermark = 1.0, not_opened(&env, &o, "watermark: found 1");
    o = ok, o.sched.min_coda = 0, not_opened(&env, &o, "min_coda: found 0");
    o = ok, o.sched.scan_limit = 0, not_opened(&env, &o, "scan_limit: found 0");
    o = ok, o.sched.max_bypass = 0, not_opened(&env, &o, "max_bypass: found 0");
    o = ok, o.fuse_loops = 0, not_opened(&env, &o, "fuse_loops: found 0");
    o = ok, o.max_logits = -1, not_opened(&env, &o, "max_logits: found -1");
    o = ok, o.max_len = 513, not_opened(&env, &o, "max_len: found 513 tokens, expected 1 to 512");
    o = ok, o.max_loops = -1, not_opened(&env, &o, "max_loops: found -1, expected 0 to 4096");
    o = ok, o.max_loops = INT32_MAX, not_opened(&env, &o, "max_loops: found 2147483647");
    o = ok, o.kv_blocks = -1, not_opened(&env, &o, "kv_blocks: found -1");
    o = ok, o.kv_blocks = INT32_MAX / 16 + 1,
    not_opened(&env, &o, "kv_blocks: found 134217728, expected 0 to 134217727");
    o = ok, o.kv_fraction = 0.0, not_opened(&env, &o, "kv_fraction: found 0");
    o = ok, o.kv_fraction = 1.1, not_opened(&env, &o, "kv_fraction: found 1.1");
    o = ok, o.kv_bytes = 1, not_opened(&env, &o, "kv_bytes: 1 bytes");
    o = ok, o.kv_layout = GY_KV_CYCLIC, o.cyclic_k = 5, not_opened(&env, &o, "cyclic:5");
    gold_close(&env);
}

/* Ouro-1.4B: 196,608 bytes a token and depth (ouro.md, constants), so 786,432 at full depth. */
static void plan_has_the_published_sizes(void **state) {
    (void)state;
    gy_model_desc d = {.family = "ouro",
                       .n_vocab = 49152,
                       .n_embd = 2048,
                       .n_ff = 5632,
                       .n_head = 16,
                       .n_head_kv = 16,
                       .head_dim = 128,
                       .n_layer = {0, 24, 0},
                       .n_loop = 4,
                       .max_pos = 65536};
    gy_engine_opts o;
    gy_engine_plan p;
    gy_err err;
    gy_engine_opts_default(&o);
    o.sched.max_rows = 1;
    o.sched.max_seqs = 2;
    o.max_len = 160;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.kv_token_bytes, 786432);
    assert_int_equal(p.n_block[GY_KV_CORE], 4 * (2 * 10 + 1)); /* a row for the watermark of 1 % */
    assert_int_equal(p.n_block[GY_KV_BOUNDARY], 0);
    o.sched.watermark = 0;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.n_block[GY_KV_CORE], 4 * 2 * 10);
    assert_int_equal(p.kv_bytes, 786432u * 160 * 2);
    assert_int_equal(p.kv_tokens, 320);
    assert_string_equal(p.limit, "max_seqs x max_len");
    o.prefix_cache = 1;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.kv_tokens, 640);
    o.prefix_cache = 0;
    o.kv_type = GY_KV_INT8; /* 132 bytes for 128 elements */
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.kv_token_bytes, 405504);
    assert_int_equal(p.kv_bytes, 405504u * 160 * 2);
    char text[GY_PLAN_TEXT];
    p.limit = "kv_bytes";
    gy_engine_plan_text(&p, text);
    assert_non_null(strstr(text, "KV 129.76 MB in int8 for 320 tokens"));
    o.kv_type = GY_KV_AUTO;
    gy_model_desc h = d;
    h.family = "huginn";
    h.n_head = h.n_head_kv = 55;
    h.head_dim = 96;
    h.n_embd = 5280;
    h.n_layer[0] = h.n_layer[2] = 2;
    h.n_layer[1] = 4;
    h.n_loop = 32;
    h.max_pos = 4096;
    assert_int_equal(gy_engine_make_plan(&h, GY_BF16, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.kv_token_bytes, 2787840); /* 132 layer-planes */
    o.sched.max_seqs = 65536;
    o.max_len = 65536;
    assert_int_equal(gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "lower max_seqs or max_len"));
}

/* A pool sized for max_seqs lets that many run at once, also when each is as short as one block row: what the watermark
 * keeps free comes on top. */
static void pool_of_max_seqs_holds_them(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    s.max_seqs = 2;
    s.max_len = 16;
    gold_env env;
    gold_open(&s, &env);
    gold_engine(&s, &env);
    const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    gy_request r;
    gy_request_default(&r, &env.m->d);
    r.prompt = ids;
    r.n_prompt = 8;
    r.max_tokens = 8;
    r.ignore_eos = 1;
    gy_err err;
    gy_engine_stats st;
    for (int32_t i = 0, id; i < 4; i++) assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
    assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    gy_engine_get_stats(env.e, &st);
    assert_int_equal(st.sched.n_running, 2);
    gold_close(&env);
}

/* The pool takes its share of what is free behind the workspace, in whole rows of 16 tokens at full depth. */
static void plan_from_free_memory(void **state) {
    (void)state;
    gold_setup s = setup_of("ouro-tiny");
    gold_env env;
    gy_engine_opts o;
    gy_engine_plan p, q;
    gy_err err;
    gold_open(&s, &env);
    const gy_model_desc *d = &env.m->d;
    const size_t row = 16 * 4 * 3 * 2 * 64 * sizeof(float); /* tokens, depths, layers, K and V, width */
    gy_engine_opts_default(&o);
    o.max_len = 160;
    o.sched.max_seqs = 100;
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 0, &err, &p), GY_OK);
    assert_int_equal(p.block_bytes[GY_KV_CORE] * 4, row);
    assert_int_equal(p.map_bytes, 200 * 4 * 160 * sizeof(int32_t)); /* parked sequences keep theirs */
    size_t room = p.workspace_bytes + p.map_bytes + 20 * row + row / 2;
    o.kv_fraction = 0.5;
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 2 * room, &err, &q), GY_OK);
    assert_string_equal(q.limit, "memory");
    assert_int_equal(q.available_bytes, 2 * room);
    assert_int_equal(q.n_block[GY_KV_CORE], 20 * 4);
    assert_int_equal(q.kv_bytes, 20 * row);
    char text[GY_PLAN_TEXT];
    q.weight_bytes = 2345678901;
    q.free_bytes = 5000000;
    gy_engine_plan_text(&q, text);
    assert_non_null(strstr(text, "weights 2.35 GB, workspace "));
    assert_non_null(strstr(text, " for 320 tokens at full depth (80 blocks), limited by free memory (0.5 of "));
    assert_non_null(strstr(text, "; 5.00 MB stay free"));
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, (size_t)1 << 40, &err, &q), GY_OK);
    assert_string_equal(q.limit, "max_seqs x max_len");
    assert_int_equal(q.n_block[GY_KV_CORE], p.n_block[GY_KV_CORE]);
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 2 * (p.workspace_bytes + p.map_bytes) + row, &err, &q),
                     GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "16 tokens at full depth need"));
    size_t fixed = p.workspace_bytes + p.map_bytes;
    assert_int_equal(gy_engine_check_fits(d, GY_F32, &o, 9000000, 9000000 + 2 * fixed + 2 * row, &err), GY_OK);
    assert_int_equal(gy_engine_check_fits(d, GY_F32, &o, 9000000, 9000000 + fixed, &err), GY_E_NOMEM);
    assert_non_null(strstr(err.msg, "weights 9.00 MB, workspace "));
    assert_int_equal(gy_engine_check_fits(d, GY_F32, &o, 9000000, 8000000, &err), GY_E_NOMEM);
    assert_non_null(strstr(err.msg, "while 8.00 MB are free"));
    o.kv_bytes = 3 * row;
    assert_int_equal(gy_engine_check_fits(d, GY_F32, &o, 1000, 1000 + fixed + 3 * row, &err), GY_OK);
    assert_int_equal(gy_engine_check_fits(d, GY_F32, &o, 1001, 1000 + fixed + 3 * row, &err), GY_E_NOMEM);
    o.kv_bytes = 7 * row + 1; /* asked for: what is free does not matter */
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 1, &err, &q), GY_OK);
    assert_true(q.n_block[GY_KV_CORE] == 7 * 4 && !strcmp(q.limit, "kv_bytes"));
    o.kv_blocks = 9; /* before kv_bytes */
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 1, &err, &q), GY_OK);
    assert_true(q.n_block[GY_KV_CORE] == 9 && !strcmp(q.limit, "kv_blocks"));
    o.park_bytes = 3 * row + 1;
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 0, &err, &q), GY_OK);
    assert_true(q.n_park[GY_KV_CORE] == 3 * 4 && q.park_bytes == 3 * row);
    o.park_bytes = row - 1;
    assert_int_equal(gy_engine_make_plan(d, GY_F32, &o, 0, &err, &q), GY_OK);
    assert_true(q.n_park[GY_KV_CORE] == 0 && q.park_bytes == 0);
    gold_close(&env);
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
            gold_idle(env.e);
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
    gold_idle(env.e);
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
    gold_idle(env.e);
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
    gold_idle(env.e);
    gold_close(&env);
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_are_refused),     cmocka_unit_test(gate_needs_a_gate),
        cmocka_unit_test(bad_options_are_refused),      cmocka_unit_test(bad_sampling_is_refused),
        cmocka_unit_test(plan_has_the_published_sizes), cmocka_unit_test(pool_of_max_seqs_holds_them),
        cmocka_unit_test(plan_from_free_memory),        cmocka_unit_test(cancel_at_every_step),
        cmocka_unit_test(cancel_while_waiting),         cmocka_unit_test(finish_reasons),
        cmocka_unit_test(eos_ends_unless_ignored),      cmocka_unit_test(nan_ends_one_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
