/* What callers do to an engine besides waiting: calls from inside its callbacks, requests at the very edges of what was
 * opened, refusals of what could not run, and the numbers it reports.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/gold.h"

static const int32_t prompt[] = {196, 48, 160, 99, 153, 64, 294, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

static void open_with(gold_setup s, gold_env *env) {
    s.backend = "cpu";
    s.act = GY_F32;
    s.n_thread = 1;
    gold_open(&s, env);
    gold_engine(&s, env);
}

static void base_request(const gold_env *env, gy_request *r) {
    gy_request_default(r, &env->m->d);
    r->prompt = prompt;
    r->n_prompt = 7;
    r->max_tokens = 6;
    r->ignore_eos = 1;
}

static void step_all(gy_engine *e) {
    gy_err err;
    for (int n = 0; n < 10000; n++) {
        gy_status st = gy_engine_step(e, &err);
        assert_true(st >= 0);
        if (st == GY_DONE) return;
    }
    fail_msg("never done");
}

/* ---- calls from callbacks --------------------------------------------------------------------------------------- */

typedef struct script {
    gold_env *env;
    int n_token, n_finish;
    gy_finish reason;
    int32_t id, victim;  /* victim: cancelled at token `cancel_at` */
    int cancel_at;       /* -1 = never */
    int submit_at;       /* submits `next` at this token, -1 = never, 99 = when it ends */
    struct script *next; /* NULL = none */
    gy_finish_event last;
} script;

static gy_verdict on_token(void *arg, const gy_token_event *ev);
static void on_finish(void *arg, const gy_finish_event *ev);

static void submit(script *s) {
    gy_request r;
    gy_err err;
    base_request(s->env, &r);
    r.on_token = on_token;
    r.on_finish = on_finish;
    r.arg = s;
    if (gy_engine_submit(s->env->e, &r, &err, &s->id) != GY_OK) fail_msg("%s", err.msg);
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    script *s = arg;
    assert_int_equal(ev->request, s->id);
    assert_int_equal(ev->index, s->n_token);
    if (s->n_token == s->cancel_at) gy_engine_cancel(s->env->e, s->victim);
    if (s->n_token == s->submit_at) submit(s->next);
    s->n_token++;
    return GY_CONTINUE;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    script *s = arg;
    assert_int_equal(ev->n_output, s->n_token);
    s->n_finish++;
    s->reason = ev->reason;
    s->last = *ev;
    if (s->submit_at == 99) submit(s->next);
}

static script quiet(gold_env *env) {
    return (script){.env = env, .cancel_at = -1, .submit_at = -1};
}

/* The last in the queue is cancelled and its finish event asks for another; the one before it stays queued. */
static void submit_when_a_waiting_one_is_cancelled(void **state) {
    (void)state;
    gold_env env;
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 1}, &env);
    for (int which = 0; which < 3; which++) {
        script a[3], more = quiet(&env);
        for (int i = 0; i < 3; i++) {
            a[i] = quiet(&env);
            submit(&a[i]);
        }
        a[which].submit_at = 99;
        a[which].next = &more;
        gy_err err;
        if (which == 0) assert_int_equal(gy_engine_step(env.e, &err), GY_OK); /* it runs already */
        gy_engine_cancel(env.e, a[which].id);
        step_all(env.e);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(a[i].n_finish, 1);
            assert_int_equal(a[i].reason, i == which ? GY_FINISH_CANCELLED : GY_FINISH_LENGTH);
        }
        assert_int_equal(more.n_finish, 1);
        assert_int_equal(more.n_token, 6);
        gold_idle(env.e);
    }
    gold_close(&env);
}

/* All that wait are cancelled; what is submitted afterwards is not lost behind them. */
static void the_queue_survives_losing_its_tail(void **state) {
    (void)state;
    gold_env env;
    gy_err err;
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 1}, &env);
    script a[4];
    for (int i = 0; i < 3; i++) {
        a[i] = quiet(&env);
        submit(&a[i]);
    }
    assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    gy_engine_cancel(env.e, a[2].id);
    assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    assert_int_equal(a[2].reason, GY_FINISH_CANCELLED);
    gy_engine_cancel(env.e, a[1].id);
    gy_engine_cancel(env.e, 4711);
    assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    assert_int_equal(a[1].n_finish, 1);
    a[3] = quiet(&env);
    submit(&a[3]);
    step_all(env.e);
    assert_int_equal(a[0].n_token + a[3].n_token, 12);
    gold_idle(env.e);
    gold_close(&env);
}

/* Prompts are not held back, so that the second request decodes while the first one does. */
static void whole_share(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.prefill_share = 1.0;
}

static void calls_from_on_token(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    for (int m = 0; m < 2; m++) {
        gold_env env;
        open_with((gold_setup){.model = models[m], .max_seqs = 2, .max_rows = 4, .patch = whole_share}, &env);
        script a = quiet(&env), b = quiet(&env), c = quiet(&env), d = quiet(&env);
        submit(&b);
        submit(&a);
        submit(&c);
        a.cancel_at = 1; /* the other one, which runs */
        a.victim = b.id;
        a.submit_at = 0;
        a.next = &d;
        c.cancel_at = 2; /* itself: the token it is told about is its last */
        c.victim = c.id;
        step_all(env.e);
        assert_true(a.reason == GY_FINISH_LENGTH && a.n_token == 6);
        assert_true(b.reason == GY_FINISH_CANCELLED && b.n_token >= 1 && b.n_token < 6);
        assert_true(c.reason == GY_FINISH_CANCELLED && c.n_token == 3);
        assert_true(d.reason == GY_FINISH_LENGTH && d.n_token == 6);
        assert_int_equal(a.n_finish + b.n_finish + c.n_finish + d.n_finish, 4);
        gold_idle(env.e);
        gold_close(&env);
    }
}

static void a_chain_of_requests(void **state) {
    (void)state;
    gold_env env;
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 1, .max_len = 13}, &env);
    script a[5];
    for (int i = 0; i < 5; i++) {
        a[i] = quiet(&env);
        if (i < 4) a[i].submit_at = 99, a[i].next = &a[i + 1];
    }
    submit(&a[0]);
    step_all(env.e);
    for (int i = 0; i < 5; i++) assert_true(a[i].n_finish == 1 && a[i].n_token == 6 && a[i].id == i);
    gold_idle(env.e);
    gold_close(&env);
}

/* ---- choices ---------------------------------------------------------------------------------------------------- */

typedef struct family { /* what is heard of one request of n choices */
    gold_env *env;
    int32_t id, n, n_prompt_event;
    int n_token[8], n_finish[8];
    int32_t n_left; /* said last */
    gy_finish reason[8];
    int32_t cancel_at_prompt; /* cancels itself at this prompt event, 0 = never */
    int32_t cancel_at_finish; /* cancels itself when so many are left, 0 = never */
    int32_t stop_choice;      /* this one says GY_STOP at its first token, -1 = none */
    script *then;             /* submitted with the last finish event */
    script *first;            /* submitted with the first prompt event */
} family;

static void on_family_prompt(void *arg, const gy_prompt_event *ev) {
    family *f = arg;
    assert_int_equal(ev->request, f->id);
    assert_int_equal(ev->pos, ++f->n_prompt_event);
    assert_int_equal(ev->sampled->id, prompt[ev->pos]);
    if (ev->pos == 1 && f->first) submit(f->first);
    if (ev->pos == f->cancel_at_prompt) gy_engine_cancel(f->env->e, f->id);
}

static gy_verdict on_family_token(void *arg, const gy_token_event *ev) {
    family *f = arg;
    assert_int_equal(ev->request, f->id);
    assert_true(ev->choice >= 0 && ev->choice < f->n && !f->n_finish[ev->choice]);
    assert_int_equal(ev->index, f->n_token[ev->choice]++);
    return ev->choice == f->stop_choice ? GY_STOP : GY_CONTINUE;
}

static void on_family_finish(void *arg, const gy_finish_event *ev) {
    family *f = arg;
    assert_int_equal(ev->request, f->id);
    assert_true(ev->choice >= 0 && ev->choice < f->n);
    assert_int_equal(f->n_finish[ev->choice]++, 0);
    assert_int_equal(ev->n_left, f->n_left - 1); /* n - 1, n - 2, .. 0 */
    assert_int_equal(ev->n_output, f->n_token[ev->choice]);
    f->n_left = ev->n_left;
    f->reason[ev->choice] = ev->reason;
    if (f->n_left && f->n_left == f->cancel_at_finish) gy_engine_cancel(f->env->e, f->id);
    if (!f->n_left && f->then) submit(f->then);
}

static family family_of(gold_env *env, int32_t n) {
    return (family){.env = env, .n = n, .n_left = n, .stop_choice = -1};
}

static void submit_family(family *f, gy_request *r) {
    gy_err err;
    base_request(f->env, r);
    r->n = f->n;
    r->sample.temperature = 1.0f;
    r->prompt_logprobs = 0;
    r->on_prompt = on_family_prompt;
    r->on_token = on_family_token;
    r->on_finish = on_family_finish;
    r->arg = f;
    if (gy_engine_submit(f->env->e, r, &err, &f->id) != GY_OK) fail_msg("%s", err.msg);
}

static int count_reason(const family *f, gy_finish reason) {
    int n = 0;
    for (int32_t c = 0; c < f->n; c++) n += f->n_finish[c] == 1 && f->reason[c] == reason;
    return n;
}

static void each_choice_ends_once(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    for (int m = 0; m < 4; m++) {
        gold_env env;
        gy_request r;
        open_with((gold_setup){.model = models[m % 2], .max_seqs = m < 2 ? 16 : 2}, &env);
        script then = quiet(&env), first = quiet(&env);
        family all = family_of(&env, 5), stops = family_of(&env, 4), prompt_cancel = family_of(&env, 3),
               finish_cancel = family_of(&env, 6);
        all.then = &then;
        all.first = &first;
        stops.stop_choice = 0;
        prompt_cancel.cancel_at_prompt = 3;
        finish_cancel.cancel_at_finish = 4;
        finish_cancel.stop_choice = 0;
        submit_family(&all, &r);
        submit_family(&stops, &r);
        submit_family(&prompt_cancel, &r);
        submit_family(&finish_cancel, &r);
        step_all(env.e);
        assert_true(!all.n_left && count_reason(&all, GY_FINISH_LENGTH) == 5 && all.n_prompt_event == 6);
        assert_true(!stops.n_left && count_reason(&stops, GY_FINISH_LENGTH) == 3);
        assert_true(stops.reason[0] == GY_FINISH_STOP && stops.n_token[0] == 1);
        assert_int_equal(count_reason(&prompt_cancel, GY_FINISH_CANCELLED), 3);
        assert_true(prompt_cancel.n_token[0] <= 1 && prompt_cancel.n_prompt_event >= 3);
        assert_true(!finish_cancel.n_left && finish_cancel.reason[0] == GY_FINISH_STOP);
        assert_int_equal(
            count_reason(&finish_cancel, GY_FINISH_CANCELLED) + count_reason(&finish_cancel, GY_FINISH_LENGTH), 5);
        assert_true(then.n_finish == 1 && then.n_token == 6 && first.n_finish == 1 && first.n_token == 6);
        gy_engine_stats s;
        gy_engine_get_stats(env.e, &s);
        assert_int_equal(s.n_request, 6);
        int64_t n_finish = 0;
        for (int k = 0; k <= GY_FINISH_ERROR; k++) n_finish += s.n_finish[k];
        assert_int_equal(n_finish, 5 + 4 + 3 + 6 + 2);
        gold_idle(env.e);
        gold_close(&env);
    }
}

/* A request without callbacks runs all the same. */
static void nobody_listens(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gy_err err;
    int32_t id;
    gy_engine_stats s;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    base_request(&env, &r);
    r.n = 3;
    r.prompt_logprobs = 1;
    r.want_gates = 1;
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_OK);
    step_all(env.e);
    gy_engine_get_stats(env.e, &s);
    assert_true(s.n_output_tok == 18 && s.n_finish[GY_FINISH_LENGTH] == 3);
    gold_idle(env.e);
    gold_close(&env);
}

static void small_queue(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.max_queue = 4;
}

/* GY_AGAIN, with a sentence, while its choices have no room; an error when they never will. */
static void the_queue_has_an_end(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gy_err err = {0};
    int32_t id = -7;
    gold_result res[4], one[1];
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 2, .patch = small_queue}, &env);
    base_request(&env, &r);
    r.n = 5;
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "n: found 5 choices, the queue holds 4"));
    r.n = 3;
    assert_true(gold_submit(env.e, &r, res));
    r.n = 2;
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_AGAIN);
    assert_non_null(strstr(err.msg, "3 of 4 places are taken, 2 are needed"));
    r.n = 1;
    assert_true(gold_submit(env.e, &r, &res[3]));
    assert_int_equal(gy_engine_submit(env.e, &r, &err, &id), GY_AGAIN);
    assert_non_null(strstr(err.msg, "4 of 4 places are taken, 1 are needed"));
    assert_int_equal(id, -7);
    assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    assert_true(gold_submit(env.e, &r, one)); /* the leader runs, a place is free */
    step_all(env.e);
    for (int c = 0; c < 4; c++) assert_true(res[c].n_finish && gold_same(&res[c], &one[0]));
    gold_idle(env.e);
    gold_close(&env);
}

/* min_tokens: eos and stop ids cannot be drawn before; the one that ends the text is named. */
static void not_before_min_tokens(void **state) {
    (void)state;
    gold_env env;
    gy_request r;
    gold_result free_run, res;
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    base_request(&env, &r);
    gold_run(env.e, &r, 1, &free_run);
    int32_t stop = free_run.tokens[0];
    r.stop_ids = &stop;
    r.n_stop_ids = 1;
    gold_run(env.e, &r, 1, &res);
    assert_true(res.n == 1 && res.reason == GY_FINISH_STOP && res.fin.stop_id == stop);
    r.min_tokens = 3;
    gold_run(env.e, &r, 1, &res);
    for (int i = 0; i < 3; i++) assert_int_not_equal(res.tokens[i], stop);
    env.m->d.eos[0] = res.tokens[0];
    r.ignore_eos = 0;
    int32_t was = res.tokens[0];
    gold_run(env.e, &r, 1, &res);
    for (int i = 0; i < 3; i++) assert_true(res.tokens[i] != stop && res.tokens[i] != was);
    gold_close(&env);
}

/* ---- edges ------------------------------------------------------------------------------------------------------ */

static gy_status try_submit(gold_env *env, int32_t n_prompt, int32_t max_tokens, gy_err *err) {
    gy_request r;
    int32_t id;
    base_request(env, &r);
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    return gy_engine_submit(env->e, &r, err, &id);
}

static void exactly_as_much_as_fits(void **state) {
    (void)state;
    gold_env env;
    gy_err err;
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 1, .max_len = 20}, &env);
    assert_int_equal(try_submit(&env, 17, 3, &err), GY_OK);
    assert_int_equal(try_submit(&env, 1, 19, &err), GY_OK);
    assert_int_equal(try_submit(&env, 17, 4, &err), GY_E_LIMIT);
    assert_int_equal(try_submit(&env, 17, INT32_MAX, &err), GY_E_LIMIT);
    step_all(env.e);
    gold_idle(env.e);
    gold_close(&env);
    /* 9 + 8 tokens, the last of which never enters: one block for each of the 4 depths. */
    open_with((gold_setup){.model = "ouro-tiny", .max_seqs = 2, .max_len = 20, .kv_blocks = 4}, &env);
    assert_int_equal(try_submit(&env, 9, 8, &err), GY_OK);
    assert_int_equal(try_submit(&env, 16, 1, &err), GY_OK);
    assert_int_equal(try_submit(&env, 9, 9, &err), GY_E_LIMIT);
    assert_int_equal(try_submit(&env, 1, 1, &err), GY_OK);
    step_all(env.e);
    gy_engine_stats s;
    gy_engine_get_stats(env.e, &s);
    assert_int_equal(s.n_output_tok, 10);
    gold_idle(env.e);
    gold_close(&env);
}

static void refused(gold_env *env, const gy_request *r, const char *part) {
    gy_err err = {0};
    int32_t id = -7;
    if (gy_engine_submit(env->e, r, &err, &id) == GY_OK) fail_msg("accepted, expected: %s", part);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_int_equal(id, -7);
}

static void requests_that_could_not_run(void **state) {
    (void)state;
    gold_env env;
    gy_request ok, r;
    static const int32_t trace[] = {4, 2, 3, 1, 5, 6};
    open_with((gold_setup){.model = "ouro-tiny", .max_loops = 6}, &env);
    base_request(&env, &ok);
    r = ok, r.n_trace = -1, refused(&env, &r, "trace: found -1 depths");
    r = ok, r.n_stop_ids = -1, refused(&env, &r, "stop_ids: found -1 ids");
    r = ok, r.exit.max_loops = 7, refused(&env, &r, "max_loops: found 7, expected at most 6, the engine's depth");
    r = ok, r.exit = (gy_exit_rule){GY_EXIT_TRACE, 0.0, 2, 6, 0}, r.trace = trace, r.n_trace = 6;
    refused(&env, &r, "trace[3]: found 1 loops, expected 2 to 6");
    r.exit.min_loops = 1;
    gold_result res;
    gold_run(env.e, &r, 1, &res);
    assert_memory_equal(res.loops, trace, sizeof trace);
    gold_close(&env);
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    r = ok, r.exit.max_loops = 5, refused(&env, &r, "max_loops: found 5; the model was trained with 4 loops");
    gold_close(&env);
}

static void evals_that_could_not_run(void **state) {
    (void)state;
    gold_env env;
    gy_err err;
    float x[64 * 8] = {0};
    int32_t ids[300] = {0};
    gold_open(&(gold_setup){.model = "nanbeige-tiny", .backend = "ref", .act = GY_F32}, &env);
    const gy_eval_opts ok = {.ids = ids, .n_tok = 2, .max_rows = 8};
    gy_eval_opts o = ok;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_OK);
    o = ok, o.gates = x;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "gates: a nanbeige model has no exit gate"));
    o = ok, o.initial_state = x;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "initial_state: a nanbeige model starts from its embedding"));
    o = ok, o.n_tok = env.m->d.max_pos + 1;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_LIMIT);
    o = ok, o.n_tok = 0;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    o = ok, o.max_rows = 0;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    o = ok, o.kv_layout = GY_KV_CYCLIC, o.cyclic_k = 3;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    ids[1] = env.m->d.n_vocab;
    o = ok;
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "ids[1]: found "));
    gold_close(&env);
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* The copies stand one behind the other in one allocation: prompt, trace, stop ids. */
static void trace_and_stop_ids_together(void **state) {
    (void)state;
    gold_env env;
    gold_result res;
    gy_request r;
    static const int32_t trace[] = {4, 1, 3, 2, 4, 1};
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    base_request(&env, &r);
    r.exit = (gy_exit_rule){GY_EXIT_TRACE, 0.0, 1, 4, 0};
    r.trace = trace;
    r.n_trace = 6;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.n, 6);
    assert_memory_equal(res.loops, trace, sizeof trace);
    int32_t first = 0, stop[2] = {0, res.tokens[4]};
    for (int i = 0; i < 6; i++) stop[0] += stop[0] == res.tokens[i]; /* not the first id that ends it */
    while (res.tokens[first] != res.tokens[4]) first++;
    r.stop_ids = stop;
    r.n_stop_ids = 2;
    gold_run(env.e, &r, 1, &res);
    assert_int_equal(res.reason, GY_FINISH_STOP);
    assert_int_equal(res.n, first + 1);
    gold_close(&env);
}

static void what_is_counted(void **state) {
    (void)state;
    gold_env env;
    open_with((gold_setup){.model = "ouro-tiny", .max_rows = 64}, &env);
    script a[3];
    int64_t before = gy_clock_ns();
    for (int i = 0; i < 3; i++) {
        a[i] = quiet(&env);
        submit(&a[i]);
    }
    gy_engine_stats s;
    gy_engine_get_stats(env.e, &s);
    assert_true(s.sched.n_waiting == 3 && s.sched.n_running == 0 && s.n_step == 0 && s.n_request == 3);
    step_all(env.e);
    gy_engine_get_stats(env.e, &s);
    assert_int_equal(s.n_prompt_tok, 3 * 7);
    assert_int_equal(s.n_output_tok, 3 * 6);
    assert_int_equal(s.n_loop_sum, 3 * 6 * 4);
    assert_int_equal(s.n_row, 3 * (7 + 5) * 4); /* the last sampled token does not enter */
    assert_int_equal(s.n_pass, 6 * 4);          /* all three in common passes */
    assert_int_equal(s.n_step, s.n_pass);
    assert_true(s.workspace_bytes > 0 && s.kv_bytes > 0);
    for (int i = 0; i < 3; i++) {
        const gy_finish_event *f = &a[i].last;
        assert_true(f->n_prompt == 7 && !f->err && before <= f->submit_ns && f->submit_ns <= f->first_token_ns);
        assert_true(f->first_token_ns < f->finish_ns && f->finish_ns <= gy_clock_ns());
    }
    gold_close(&env);
}

/* More rows that are judged by their logits than one call of the head makes (32): in pieces, each as if alone. */
static void few_logits(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->max_logits = 32;
}

static void many_rows_judged_by_logits(void **state) {
    (void)state;
    enum { N = 41 };
    static const gy_exit_rule rules[] = {
        {GY_EXIT_KL, 0.02, 1, 8, 0}, {GY_EXIT_ENTROPY, 0.05, 2, 8, 0}, {GY_EXIT_ARGMAX, 2.0, 1, 7, 0}};
    static gy_request r[N];
    static gold_result all[N], alone[N];
    static int32_t ids[N][3];
    gold_env env;
    open_with((gold_setup){.model = "huginn-tiny", .max_seqs = N, .max_rows = 128, .max_len = 16, .patch = few_logits},
              &env);
    int different_loops = 0;
    for (int i = 0; i < N; i++) {
        base_request(&env, &r[i]);
        ids[i][0] = 7 * i;
        ids[i][1] = 3 + i % 9;
        ids[i][2] = 300 - i;
        r[i].prompt = ids[i];
        r[i].n_prompt = 3;
        r[i].exit = rules[i % 3];
        gold_run(env.e, &r[i], 1, &alone[i]);
        different_loops += alone[i].loops[2] != alone[0].loops[2];
    }
    gold_run(env.e, r, N, all);
    for (int i = 0; i < N; i++) assert_true(gold_same(&all[i], &alone[i]));
    assert_true(different_loops > 0);
    gold_idle(env.e);
    gold_close(&env);
}

/* The pool is just as large as all of them need. */
static void no_watermark(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.watermark = 0.0;
    o->max_logits = 32;
}

/* More requests than one call of the head serves (32), all leaving in the same pass. */
static void many_rows_leave_at_once(void **state) {
    (void)state;
    enum { N = 41 };
    static gy_request r[N];
    static gold_result all[N], alone[N];
    static int32_t ids[N][2];
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    for (int m = 0; m < 2; m++) {
        gold_env env;
        open_with(
            (gold_setup){.model = models[m], .max_seqs = N, .max_rows = 128, .max_len = 16, .patch = no_watermark},
            &env);
        for (int i = 0; i < N; i++) {
            base_request(&env, &r[i]);
            ids[i][0] = 7 * i;
            ids[i][1] = 300 - i;
            r[i].prompt = ids[i];
            r[i].n_prompt = 2;
            r[i].exit.max_loops = 3;
            gold_run(env.e, &r[i], 1, &alone[i]);
        }
        gold_run(env.e, r, N, all);
        for (int i = 0; i < N; i++) assert_true(gold_same(&all[i], &alone[i]));
        gy_engine_stats s;
        gy_engine_get_stats(env.e, &s);
        int32_t n_loop = env.m->d.n_loop;
        assert_int_equal(s.n_pass, (N + 1) * (n_loop + 5 * 3)); /* 41 times alone, once together */
        gold_idle(env.e);
        gold_close(&env);
    }
}

/* A pass never has more than max_rows rows; with fewer rows than sequences some wait, all finish. */
static void fewer_rows_than_sequences(void **state) {
    (void)state;
    enum { N = 9 };
    gold_env env;
    gy_request r[N];
    gold_result few[N], many[N];
    for (int rows = 1; rows <= 4; rows++)
        for (int pass = 0; pass < 2; pass++) {
            gold_setup s = {.model = "ouro-tiny", .max_seqs = N, .max_rows = pass ? 64 : rows};
            open_with(s, &env);
            for (int i = 0; i < N; i++) {
                base_request(&env, &r[i]);
                r[i].n_prompt = 1 + i % 5;
                r[i].exit = (gy_exit_rule){GY_EXIT_GATE, 0.5, 1, 4, i % 2};
            }
            gold_run(env.e, r, N, pass ? many : few);
            gold_idle(env.e);
            gold_close(&env);
        }
    for (int i = 0; i < N; i++) assert_true(gold_same(&few[i], &many[i]));
}

/* The draw of output i is keyed by the position its token will have (sample.h), n_prompt + i; the initial state by the
 * request's seed and the token's own position: the engine's tokens are those of eval and the sampler by hand. */
static void check_draws(const char *model, uint64_t seed, int *n_not_greedy) {
    gold_env env;
    gy_err err;
    gold_result res;
    gy_sampler *sampler;
    gy_request r;
    gy_sample_params greedy;
    open_with((gold_setup){.model = model}, &env);
    float *logits = calloc((size_t)env.m->d.n_vocab, sizeof *logits);
    assert_int_equal(gy_sampler_create(env.m->d.n_vocab, 1, &sampler), GY_OK);
    gy_sample_params_default(&greedy);
    base_request(&env, &r);
    r.sample.temperature = 1.5f;
    r.sample.seed = seed;
    r.sample.choice = 3;
    r.latent_noise = 1;
    r.latent_seed = 1000 - seed;
    gold_run(env.e, &r, 1, &res);
    for (int32_t i = 0; i < res.n; i++) {
        int32_t ids[16];
        gy_sampled drawn, best;
        memcpy(ids, prompt, 7 * sizeof *ids);
        memcpy(ids + 7, res.tokens, (size_t)i * sizeof *ids);
        gy_eval_opts o = {.ids = ids,
                          .n_tok = 7 + i,
                          .max_rows = 16,
                          .latent_noise = 1,
                          .latent_seed = r.latent_seed,
                          .last_logits = logits};
        assert_int_equal(gy_eval(env.m, &o, &err), GY_OK);
        gy_sample_in in = {.logits = logits, .p = &r.sample, .position = 7 + i};
        assert_int_equal(gy_sample_row(sampler, 0, &in, &err, &drawn), GY_OK);
        in.p = &greedy;
        assert_int_equal(gy_sample_row(sampler, 0, &in, &err, &best), GY_OK);
        assert_int_equal(res.tokens[i], drawn.id);
        *n_not_greedy += best.id != drawn.id;
    }
    gy_sampler_destroy(sampler);
    free(logits);
    gold_close(&env);
}

static void draws_are_keyed_by_position(void **state) {
    (void)state;
    int n_not_greedy = 0;
    for (uint64_t seed = 0; seed < 6; seed++) {
        check_draws("ouro-tiny", seed, &n_not_greedy);
        check_draws("huginn-tiny", seed, &n_not_greedy);
    }
    assert_true(n_not_greedy > 12);
}

/* ---- a backend that breaks -------------------------------------------------------------------------------------- */

static gy_status broken_sync(gy_backend *be, gy_err *err) {
    (void)be;
    return gy_err_set(err, GY_E_DEVICE, "the device is gone");
}

static void a_backend_that_fails_is_reported(void **state) {
    (void)state;
    gold_env env;
    gy_err err = {0};
    open_with((gold_setup){.model = "ouro-tiny"}, &env);
    const gy_ops *good = env.be->ops;
    gy_ops broken = *good;
    broken.sync = broken_sync;
    env.be->ops = &broken;
    assert_int_equal(try_submit(&env, 3, 3, &err), GY_OK);
    assert_int_equal(gy_engine_step(env.e, &err), GY_E_DEVICE);
    assert_string_equal(err.msg, "the device is gone");
    gy_eval_opts o = {.ids = prompt, .n_tok = 3, .max_rows = 2};
    assert_int_equal(gy_eval(env.m, &o, &err), GY_E_DEVICE);
    gy_model *m = NULL;
    gy_model_load_opts lo = {.be = env.be};
    assert_int_equal(gy_model_load(GY_SOURCE_DIR "/tests/golden/models/ouro-tiny", &lo, &err, &m), GY_E_DEVICE);
    assert_null(m);
    env.be->ops = good;
    gold_close(&env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submit_when_a_waiting_one_is_cancelled),
        cmocka_unit_test(the_queue_survives_losing_its_tail),
        cmocka_unit_test(calls_from_on_token),
        cmocka_unit_test(a_chain_of_requests),
        cmocka_unit_test(each_choice_ends_once),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(the_queue_has_an_end),
        cmocka_unit_test(not_before_min_tokens),
        cmocka_unit_test(exactly_as_much_as_fits),
        cmocka_unit_test(requests_that_could_not_run),
        cmocka_unit_test(evals_that_could_not_run),
        cmocka_unit_test(trace_and_stop_ids_together),
        cmocka_unit_test(what_is_counted),
        cmocka_unit_test(many_rows_judged_by_logits),
        cmocka_unit_test(many_rows_leave_at_once),
        cmocka_unit_test(fewer_rows_than_sequences),
        cmocka_unit_test(draws_are_keyed_by_position),
        cmocka_unit_test(a_backend_that_fails_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
