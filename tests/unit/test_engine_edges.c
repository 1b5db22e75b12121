/* Requests whose options meet each other at an edge, and what callers may do from callbacks at such a moment. Each case
 * says what the contract gives; the equalities of whole sets of requests are in tests/golden.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/gold.h"
#include "support/tiny.h"

static const int32_t prompt[] = {196, 48, 160, 99, 153, 64, 294, 5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                                 17,  18, 19,  20, 21,  22, 23,  24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35};

static void open_with(gold_setup s, gold_env *env) {
    s.backend = "cpu";
    s.act = GY_F32;
    s.n_thread = 1;
    gold_open(&s, env);
    gold_engine(&s, env);
}

static void base_request(const gold_env *env, int32_t n_prompt, gy_request *r) {
    gy_request_default(r, &env->m->d);
    r->prompt = prompt;
    r->n_prompt = n_prompt;
    r->max_tokens = 6;
    r->ignore_eos = 1;
    r->sample.n_logprobs = 2;
}

/* ---- exit rules ------------------------------------------------------------------------------------------------- */

static void with_cache(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->prefix_cache = 1;
}

/* select with another number of loops than the trained one: outputs and the prompt's last token run those, the prompt
 * before it what the model was trained with; with a hit in the cache as without. */
static void select_with_other_loops(void **state) {
    (void)state;
    static const int32_t loops[] = {1, 2, 3, 6};
    gold_env env;
    open_with((gold_setup){.model = "ouro-tiny", .max_loops = 6, .patch = with_cache}, &env);
    for (int k = 0; k < 4; k++)
        for (int on_prompt = 0; on_prompt < 2; on_prompt++) {
            gy_request r;
            gold_result first, again;
            base_request(&env, 33, &r);
            r.exit = (gy_exit_rule){GY_EXIT_SELECT, 1.0, 1, loops[k], on_prompt};
            r.want_gates = 1;
            gold_run(env.e, &r, 1, &first);
            gold_run(env.e, &r, 1, &again);
            assert_true(gold_same(&first, &again));
            assert_int_equal(again.fin.n_cached, on_prompt ? 0 : 32);
            assert_int_equal(first.n, 6);
            for (int i = 0; i < 6; i++) assert_int_equal(first.n_gate[i], loops[k]);
        }
    gold_idle(env.e);
    gold_close(&env);
}

/* The state that is read out is that of the first loop; all loops run. The KV of a prompt is then that of full depth,
 * and so is what prompt tokens say. */
static void select_reads_out_early(void **state) {
    (void)state;
    gold_env env;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    for (int on_prompt = 0; on_prompt < 2; on_prompt++) {
        gy_request r[2];
        gold_result res[2];
        for (int i = 0; i < 2; i++) {
            base_request(&env, 20, &r[i]);
            r[i].prompt_logprobs = 1;
            r[i].want_gates = 1;
        }
        r[1].exit = (gy_exit_rule){GY_EXIT_SELECT, 0.0, 1, env.m->d.n_loop, on_prompt};
        gold_run(env.e, r, 2, res);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(res[1].loops[i], 1);
            assert_int_equal(res[1].n_gate[i], env.m->d.n_loop);
        }
        assert_true(res[0].n_prompt == 19 && res[1].n_prompt == 19);
        assert_memory_equal(res[0].prompt_logprobs, res[1].prompt_logprobs, 19 * sizeof(float));
        assert_memory_equal(res[0].gates[0], res[1].gates[0], sizeof res[0].gates[0]);
        assert_true(res[0].logprobs[0] != res[1].logprobs[0]);
    }
    gold_idle(env.e);
    gold_close(&env);
}

/* A trace says nothing about prompt tokens, also when it is asked to. */
static void trace_leaves_the_prompt_alone(void **state) {
    (void)state;
    static const int32_t trace[] = {4, 1, 3, 2, 4, 1};
    gold_env env;
    gy_request r[2];
    gold_result res[2];
    open_with((gold_setup){.model = "ouro-tiny", .patch = with_cache}, &env);
    for (int i = 0; i < 2; i++) {
        base_request(&env, 33, &r[i]);
        r[i].exit = (gy_exit_rule){GY_EXIT_TRACE, 1.0, 1, 4, i};
        r[i].trace = trace;
        r[i].n_trace = 6;
    }
    gold_run(env.e, &r[0], 1, &res[0]);
    gold_run(env.e, &r[1], 1, &res[1]);
    assert_true(gold_same(&res[0], &res[1]));
    assert_int_equal(res[1].fin.n_cached, 32);
    assert_memory_equal(res[1].loops, trace, sizeof trace);
    gold_close(&env);
}

/* ---- preemption ------------------------------------------------------------------------------------------------- */

typedef struct thief { /* takes what runs from request `id`, every `every` steps */
    gy_preempt how;
    int every, n;
} thief;

static void steal(void *arg, gy_engine *e, int step, const gold_result *results) {
    thief *t = arg;
    if (step % t->every == t->every - 1) t->n += gy_engine_preempt(e, results[0].id, 0, t->how) == GY_OK;
}

/* Dropped or parked again and again: what comes out is what came out undisturbed, whatever the rule. */
static void thieves_change_nothing(void **state) {
    (void)state;
    static const int32_t trace[20] = {4, 1, 3, 2, 4, 1, 2, 3, 1, 1, 4, 2, 3, 3, 1, 2, 4, 1, 2, 3};
    static const gy_exit_rule rules[] = {{GY_EXIT_TRACE, 1.0, 1, 4, 1}, {GY_EXIT_SELECT, 0.6, 1, 3, 0},
                                         {GY_EXIT_GATE, 0.5, 1, 4, 0},  {GY_EXIT_GATE, 0.5, 1, 4, 1},
                                         {GY_EXIT_KL, 0.05, 1, 4, 0},   {GY_EXIT_FIXED, 1.0, 1, 2, 0},
                                         {GY_EXIT_SELECT, 0.6, 1, 6, 0}};
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    for (int m = 0; m < 2; m++) {
        gold_env env;
        open_with((gold_setup){.model = models[m], .max_loops = m ? 0 : 6}, &env);
        for (size_t k = 0; k < sizeof rules / sizeof *rules; k++)
            for (int park = 0; park < 2; park++) {
                gy_request r;
                gold_result calm, robbed;
                thief t = {.how = park ? GY_PREEMPT_PARK : GY_PREEMPT_RECOMPUTE, .every = m ? 19 : 13};
                if (m && rules[k].kind != GY_EXIT_KL && rules[k].kind != GY_EXIT_FIXED) continue;
                base_request(&env, 18, &r);
                r.max_tokens = 20;
                r.exit = rules[k];
                r.trace = trace;
                r.n_trace = 20;
                r.latent_noise = m;
                gold_run(env.e, &r, 1, &calm);
                gold_run_hooked(env.e, &r, 1, &robbed, &(gold_hook){.before_step = steal, .arg = &t});
                assert_true(t.n >= 2 && robbed.fin.n_preempt == t.n && calm.fin.n_preempt == 0);
                assert_true(gold_same(&calm, &robbed));
            }
        gold_idle(env.e);
        gold_close(&env);
    }
}

static void two_places(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.max_queue = 2;
}

/* Blocks of the boundary that are larger than those of the core find their way out and back too. */
static void parked_boundaries_come_back(void **state) {
    (void)state;
    static const tiny_spec spec = {.family = "huginn",
                                   .n_vocab = 40,
                                   .n_embd = 16,
                                   .n_ff = 24,
                                   .n_head = 2,
                                   .n_head_kv = 2,
                                   .head_dim = 8,
                                   .n_layer = {2, 1, 1},
                                   .n_loop = 3,
                                   .max_pos = 128,
                                   .eps = 1e-5,
                                   .theta = 1e4,
                                   .dtype = GY_F32};
    static tiny t;
    int32_t ids[2][40];
    gold_env env;
    gy_request r[2];
    gold_result calm[2], robbed[2];
    thief h = {.how = GY_PREEMPT_PARK, .every = 7};
    tiny_make(&spec, &t);
    open_with((gold_setup){.model = t.dir, .max_len = 128}, &env);
    const gy_engine_plan *p = gy_engine_get_plan(env.e);
    assert_int_equal(p->block_bytes[GY_KV_BOUNDARY], 3 * p->block_bytes[GY_KV_CORE]);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 40; k++) ids[i][k] = (7 * k + 5 * i) % 40;
        base_request(&env, 40, &r[i]);
        r[i].prompt = ids[i];
        r[i].max_tokens = 20;
    }
    gold_run(env.e, r, 2, calm);
    gold_run_hooked(env.e, r, 2, robbed, &(gold_hook){.before_step = steal, .arg = &h});
    assert_true(h.n >= 4);
    for (int i = 0; i < 2; i++) assert_true(gold_same(&calm[i], &robbed[i]));
    gold_idle(env.e);
    gold_close(&env);
    tiny_free(&t);
}

static void by_priority(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.policy = GY_SCHED_PRIORITY;
}

/* A parked choice stands in the queue and takes a place there. */
static void parked_ones_take_a_place(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gold_result res[4];
    gy_err err;
    memset(res, 0, sizeof res);
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 2, .patch = two_places}, &env);
    base_request(&env, 18, &r);
    r.max_tokens = 12;
    for (int i = 0; i < 2; i++) assert_true(gold_submit(env.e, &r, &res[i]));
    for (int i = 0; i < 8; i++) assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    assert_true(gold_submit(env.e, &r, &res[2]));
    assert_int_equal(gy_engine_preempt(env.e, res[0].id, 0, GY_PREEMPT_PARK), GY_OK);
    assert_int_equal(gold_submit(env.e, &r, &res[3]), 0);
    while (gy_engine_step(env.e, &err) == GY_OK) {
    }
    for (int i = 0; i < 3; i++) assert_int_equal(res[i].n, 12);
    assert_true(gold_submit(env.e, &r, &res[3]));
    while (gy_engine_step(env.e, &err) == GY_OK) {
    }
    gold_idle(env.e);
    gold_close(&env);
}

/* One runs at a time; the better one parks it, and it goes on from where it was. */
static void one_place_for_two_priorities(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gold_result res[2];
    gy_err err;
    gy_engine_stats s;
    memset(res, 0, sizeof res);
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 1, .patch = by_priority}, &env);
    base_request(&env, 18, &r);
    r.max_tokens = 12;
    r.priority = 1;
    assert_true(gold_submit(env.e, &r, &res[0]));
    while (res[0].n < 3) assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    r.priority = 0;
    assert_true(gold_submit(env.e, &r, &res[1]));
    while (gy_engine_step(env.e, &err) == GY_OK) {
    }
    gy_engine_get_stats(env.e, &s);
    assert_true(s.sched.n_park == 1 && s.sched.n_restore == 1 && s.sched.n_drop == 0);
    assert_true(res[0].fin.n_preempt == 1 && res[1].fin.n_preempt == 0);
    assert_true(res[1].fin.finish_ns < res[0].fin.finish_ns);
    assert_true(gold_same(&res[0], &res[1]));
    gold_idle(env.e);
    gold_close(&env);
}

/* ---- what a request says of itself ------------------------------------------------------------------------------ */

/* What has been drawn counts: two favourites come once each, then penalties outweigh their bias. */
static void outputs_are_penalised(void **state) {
    (void)state;
    static const gy_logit_bias bias[] = {{11, 80.0f}, {12, 60.0f}};
    gold_env env;
    gy_request r;
    gold_result res;
    open_with((gold_setup){.model = "nanbeige-tiny"}, &env);
    base_request(&env, 7, &r);
    r.sample.bias = bias;
    r.sample.n_bias = 2;
    gold_run(env.e, &r, 1, &res);
    for (int i = 0; i < 6; i++) assert_int_equal(res.tokens[i], 11);
    r.sample.repetition_penalty = 100.0f;
    r.sample.presence_penalty = 2.0f;
    r.sample.frequency_penalty = 2.0f;
    gold_run(env.e, &r, 1, &res);
    assert_true(res.tokens[0] == 11 && res.tokens[1] == 12);
    for (int i = 2; i < 6; i++) assert_true(res.tokens[i] != 11 && res.tokens[i] != 12);
    gold_close(&env);
}

typedef struct told {
    gold_env *env;
    int32_t id;
    int64_t first_ns;
    gy_finish_event last;
    int n_finish;
    gy_verdict say;
} told;

static gy_verdict note_token(void *arg, const gy_token_event *ev) {
    told *t = arg;
    if (ev->index == 0) t->first_ns = gy_clock_ns();
    return t->say;
}

static void note_finish(void *arg, const gy_finish_event *ev) {
    told *t = arg;
    t->last = *ev;
    t->n_finish++;
}

static void submit_told(gold_env *env, gy_request *r, told *t) {
    gy_err err;
    t->env = env;
    r->on_token = note_token;
    r->on_finish = note_finish;
    r->arg = t;
    if (gy_engine_submit(env->e, r, &err, &t->id) != GY_OK) fail_msg("%s", err.msg);
}

static void step_all(gy_engine *e) {
    gy_err err;
    gy_status st = GY_OK;
    for (int n = 0; st == GY_OK && n < 10000; n++) st = gy_engine_step(e, &err);
    assert_int_equal(st, GY_DONE);
}

/* Times are in order, the first token's is taken once; a drawn seed fits a double. */
static void the_finish_event_is_right(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    uint64_t top = 0;
    for (int i = 0; i < 64; i++) {
        told t = {.say = GY_CONTINUE};
        base_request(&env, 7, &r);
        r.random_seed = 1;
        submit_told(&env, &r, &t);
        step_all(env.e);
        const gy_finish_event *f = &t.last;
        assert_true(t.n_finish == 1 && f->n_output == 6 && f->reason == GY_FINISH_LENGTH);
        assert_true(0 < f->submit_ns && f->submit_ns <= f->admit_ns && f->admit_ns <= f->first_token_ns);
        assert_true(f->first_token_ns <= t.first_ns && t.first_ns < f->finish_ns);
        assert_true(f->seed < (uint64_t)1 << 53);
        top |= f->seed;
    }
    assert_true(top >> 52 == 1); /* all 53 bits are drawn */
    told t = {.say = GY_STOP};
    base_request(&env, 7, &r);
    submit_told(&env, &r, &t);
    step_all(env.e);
    assert_true(t.last.reason == GY_FINISH_STOP && t.last.n_output == 1 && t.last.stop_id == -1);
    gold_close(&env);
}

static void fuse_many(gy_engine_opts *o, const void *arg) {
    o->fuse_loops = *(const int32_t *)arg;
}

/* Passes of a step are fused until a token is due: a step for each token, as many passes as without. */
static void fused_steps_end_with_a_token(void **state) {
    (void)state;
    static const int32_t fuse[] = {1, 3, 64};
    static const int64_t n_step[] = {6 * 4, 6 * 2, 6}; /* 4 loops a token */
    for (int k = 0; k < 3; k++) {
        gold_env env;
        gy_request r;
        gold_result res;
        gy_engine_stats s;
        open_with((gold_setup){.model = "ouro-tiny", .patch = fuse_many, .patch_arg = &fuse[k]}, &env);
        base_request(&env, 7, &r);
        gold_run(env.e, &r, 1, &res);
        gy_engine_get_stats(env.e, &s);
        assert_int_equal(s.n_pass, 6 * 4);
        assert_int_equal(s.n_step, n_step[k]);
        gold_close(&env);
    }
}

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

/* Choices take over the leader's whole rows without any cache; the initial state is the request's, not the choice's. */
static void choices_share_the_prompt(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gold_result res[4];
    open_with((gold_setup){.model = "huginn-tiny"}, &env);
    for (int n_prompt = 7; n_prompt <= 33; n_prompt += 26) {
        base_request(&env, n_prompt, &r);
        r.n = 4;
        r.latent_noise = 1;
        r.latent_seed = 5;
        gold_run(env.e, &r, 1, res);
        assert_int_equal(res[0].fin.n_cached, 0);
        for (int k = 1; k < 4; k++) {
            assert_true(gold_same(&res[0], &res[k])); /* greedy */
            assert_int_equal(res[k].fin.n_cached, n_prompt / 32 * 32);
        }
    }
    gold_idle(env.e);
    gold_close(&env);
}

/* What keeps prefixes apart is copied: the caller's salt may change as soon as the request is queued. */
static void salts_are_copied(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gold_result res;
    char salt[] = "alpha";
    told t = {.say = GY_CONTINUE};
    open_with((gold_setup){.model = "huginn-tiny", .patch = with_cache}, &env);
    base_request(&env, 33, &r);
    r.cache_salt = salt;
    r.n_salt = 5;
    submit_told(&env, &r, &t);
    memcpy(salt, "gamma", 5);
    step_all(env.e);
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.fin.n_cached, 0);
    memcpy(salt, "alpha", 5);
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.fin.n_cached, 32);
    r.latent_noise = 1;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.fin.n_cached, 0);
    r.latent_seed = 1;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.fin.n_cached, 0);
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.fin.n_cached, 32);
    gold_idle(env.e);
    gold_close(&env);
}

/* A request of which one choice has ended already is cancelled like any other. */
static gy_verdict stop_the_first(void *arg, const gy_token_event *ev) {
    (void)arg;
    return ev->choice == 0 ? GY_STOP : GY_CONTINUE;
}

static void count_finish(void *arg, const gy_finish_event *ev) {
    int *n = arg;
    n[ev->reason]++;
}

static void cancelled_after_one_choice_ended(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gy_err err;
    int32_t id;
    int n[GY_FINISH_ERROR + 1] = {0};
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    base_request(&env, 7, &r);
    r.n = 3;
    r.max_tokens = 200;
    r.on_token = stop_the_first;
    r.on_finish = count_finish;
    r.arg = n;
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
    while (!n[GY_FINISH_STOP]) assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    gy_engine_cancel(env.e, id);
    assert_int_equal(gy_engine_step(env.e, &err), GY_DONE);
    assert_true(n[GY_FINISH_STOP] == 1 && n[GY_FINISH_CANCELLED] == 2);
    gold_idle(env.e);
    gold_close(&env);
}

/* ---- errors in the middle of a batch ---------------------------------------------------------------------------- */

/* A prompt whose logits are NaN from position 2 on: several of its rows are in the batch that finds out. Its error
 * event asks for another request, which finds the places free. */
static void refill_on_error(void *arg, const gy_finish_event *ev) {
    told *t = arg;
    gy_request r;
    note_finish(t, ev);
    assert_int_equal(ev->reason, GY_FINISH_ERROR);
    assert_non_null(strstr(ev->err->msg, "position 3 is NaN"));
    base_request(t->env, 7, &r);
    submit_told(t->env, &r, t + 1);
}

/* The embedding of a token becomes NaN in a private copy of the table, which is returned. */
static void *poison(gold_env *env, int32_t id) {
    gy_weight *w = &env->m->embed;
    size_t row = (size_t)env->m->d.n_embd * gy_dtype_bytes(w->dtype);
    char *table = malloc((size_t)env->m->d.n_vocab * row);
    assert_non_null(table);
    memcpy(table, w->part[0].data, (size_t)env->m->d.n_vocab * row);
    memset(table + (size_t)id * row, 0xFF, row); /* NaN in every dtype */
    w->part[0].data = table;
    return table;
}

static void errors_take_the_other_rows_along(void **state) {
    (void)state;
    static const int32_t poisoned[] = {5, 6, 17, 9, 10, 11, 12, 13};
    static const char *const models[] = {"huginn-tiny", "ouro-tiny"};
    for (int m = 0; m < 2; m++) {
        gold_env env;
        gy_request r[2];
        gold_result good, res;
        told t[2] = {{.say = GY_CONTINUE}, {.say = GY_CONTINUE}};
        open_with((gold_setup){.model = models[m], .max_seqs = 2}, &env);
        for (int i = 0; i < 2; i++) base_request(&env, 7, &r[i]);
        gold_run(env.e, &r[0], 1, &good);
        void *table = poison(&env, 17);
        r[1].prompt = poisoned;
        r[1].n_prompt = 8;
        r[1].prompt_logprobs = 0;
        submit_told(&env, &r[1], t);
        r[1].on_finish = refill_on_error;
        gy_engine_cancel(env.e, t[0].id);
        step_all(env.e);
        assert_true(t[0].n_finish == 1 && t[0].last.reason == GY_FINISH_CANCELLED);
        gy_err err;
        assert_int_equal(gy_engine_submit(env.e, &r[1], &err, &t[0].id), GY_OK);
        gold_run(env.e, &r[0], 1, &res);
        assert_true(gold_same(&good, &res));
        assert_true(t[0].n_finish == 2 && t[1].n_finish == 1 && t[1].last.n_output == 6);
        gold_idle(env.e);
        gold_close(&env);
        free(table);
    }
}

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

/* The boundary pool goes with the core pool, whoever decided its size: as many rows, part of one counted whole, and
 * twice as many where exits may leave core blocks free. */
static void boundary_rows_follow_the_core(void **state) {
    (void)state;
    static const int32_t kv_blocks[] = {1, 6, 7, 900}; /* rows of 3: 1, 2, 3, 300 */
    gold_env env;
    gy_engine_opts o;
    gy_engine_plan p;
    gy_err err;
    open_with((gold_setup){.model = "huginn-tiny"}, &env);
    gy_engine_opts_default(&o);
    o.sched.max_seqs = 2;
    o.max_len = 160;
    for (int k = 0; k < 4; k++) {
        int32_t n_row = (kv_blocks[k] + 2) / 3, depth = env.m->d.n_loop;
        o.kv_layout = GY_KV_CYCLIC;
        o.cyclic_k = 3;
        o.kv_blocks = kv_blocks[k];
        assert_int_equal(gy_engine_make_plan(&env.m->d, GY_F32, &o, 0, &err, &p), GY_OK);
        assert_int_equal(p.n_block[GY_KV_CORE], kv_blocks[k]);
        assert_int_equal(p.n_block[GY_KV_BOUNDARY], n_row);
        o.kv_layout = GY_KV_LAST_EXITED;
        o.kv_blocks = n_row * depth;
        assert_int_equal(gy_engine_make_plan(&env.m->d, GY_F32, &o, 0, &err, &p), GY_OK);
        assert_int_equal(p.n_block[GY_KV_BOUNDARY], n_row < 300 ? 2 * n_row : n_row);
    }
    gold_close(&env);
}

/* A block that no size can name is refused, not divided by. */
static void blocks_beyond_all_sizes(void **state) {
    (void)state;
    gold_env env;
    gy_engine_opts o;
    gy_engine_plan p;
    gy_err err;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    gy_model_desc d = env.m->d;
    d.n_head_kv = INT32_MAX;
    d.n_layer[GY_CORE] = INT32_MAX; /* 2^62 heads in a block */
    gy_engine_opts_default(&o);
    o.max_len = 160;
    for (o.kv_blocks = 0; o.kv_blocks < 2; o.kv_blocks++) {
        assert_int_equal(gy_engine_make_plan(&d, GY_F32, &o, 0, &err, &p), GY_E_LIMIT);
        assert_non_null(strstr(err.msg, "size of a KV block overflows"));
    }
    gold_close(&env);
}

/* A watermark that leaves next to nothing makes no pool of a size that cannot be counted. */
static void a_watermark_of_nearly_all(void **state) {
    (void)state;
    gold_env env;
    gy_engine_opts o;
    gy_engine_plan p;
    gy_err err;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    gy_engine_opts_default(&o);
    o.max_len = 160;
    o.prefix_cache = 1;
    o.sched.watermark = 1 - 1e-16 / 0.9;
    assert_true(o.sched.watermark < 1);
    for (int32_t n = 1; n <= 1 << 16; n *= 16) {
        o.sched.max_seqs = n;
        assert_int_equal(gy_engine_make_plan(&env.m->d, GY_F32, &o, 0, &err, &p), GY_E_LIMIT);
        assert_non_null(strstr(err.msg, "KV needs"));
        assert_int_equal(gy_engine_make_plan(&env.m->d, GY_F32, &o, (size_t)1 << 30, &err, &p), GY_OK);
        assert_string_equal(p.limit, "memory");
    }
    gold_close(&env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(select_with_other_loops),
        cmocka_unit_test(select_reads_out_early),
        cmocka_unit_test(trace_leaves_the_prompt_alone),
        cmocka_unit_test(thieves_change_nothing),
        cmocka_unit_test(parked_boundaries_come_back),
        cmocka_unit_test(parked_ones_take_a_place),
        cmocka_unit_test(outputs_are_penalised),
        cmocka_unit_test(the_finish_event_is_right),
        cmocka_unit_test(fused_steps_end_with_a_token),
        cmocka_unit_test(choices_share_the_prompt),
        cmocka_unit_test(salts_are_copied),
        cmocka_unit_test(errors_take_the_other_rows_along),
        cmocka_unit_test(one_place_for_two_priorities),
        cmocka_unit_test(cancelled_after_one_choice_ended),
        cmocka_unit_test(boundary_rows_follow_the_core),
        cmocka_unit_test(blocks_beyond_all_sizes),
        cmocka_unit_test(a_watermark_of_nearly_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
