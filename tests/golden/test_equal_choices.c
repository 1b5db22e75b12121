/* Equalities, bit for bit (ARCHITECTURE.md, determinism): n choices of one request are n requests, whatever becomes of
 * the first one, whose prompt they share; and cancelling requests, at any step, changes nothing for those that stay or
 * take their place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/mixed.h"

#ifdef GY_SANITIZED
enum { STRIDE = 7, FEWER = 2 }; /* each model and each layout, not each pair of them */
#else
enum { STRIDE = 1, FEWER = 1 };
#endif

static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};

static gold_setup setup_of(int m, int l) {
    return (gold_setup){.model = models[m],
                        .backend = "cpu",
                        .act = GY_F32,
                        .n_thread = 1,
                        .layout = layouts[l],
                        .cyclic_k = 2,
                        .max_rows = 64,
                        .max_len = 96};
}

/* ---- n = 4 is four requests ------------------------------------------------------------------------------------- */

typedef struct way {
    const char *what;
    int32_t max_seqs, prefill_chunk, fuse_loops;
    int prefix_cache, reserve_full;
    int shares; /* the followers find the leader's rows */
} way;

static void apply(gy_engine_opts *o, const void *arg) {
    const way *v = arg;
    o->sched.prefill_chunk = v->prefill_chunk ? v->prefill_chunk : 128;
    o->sched.reserve_full = v->reserve_full;
    o->fuse_loops = v->fuse_loops ? v->fuse_loops : 1;
    o->prefix_cache = v->prefix_cache;
}

static void make_rule(gy_request *r, const gy_model_desc *d, int k, const int32_t *trace) {
    static const gy_exit_rule rules[] = {
        {GY_EXIT_FIXED, 1.0, 1, 0, 0},  {GY_EXIT_LATENT, 0.3, 1, 0, 1}, {GY_EXIT_KL, 0.05, 1, 0, 0},
        {GY_EXIT_TRACE, 0.0, 1, 0, 0},  {GY_EXIT_GATE, 0.6, 1, 0, 0},   {GY_EXIT_GATE_DELAYED, 0.5, 1, 0, 1},
        {GY_EXIT_SELECT, 0.7, 1, 0, 0},
    };
    r->exit = rules[d->has_gate ? k % 7 : k % 4];
    r->exit.max_loops = d->n_loop;
    r->want_gates = d->has_gate;
    if (r->exit.kind != GY_EXIT_TRACE) return;
    r->trace = trace;
    r->n_trace = 6;
}

enum { N_CHOICE = 4, N_RULE = 8 };

static const int32_t prompt_len[N_RULE] = {1, 16, 17, 33, 40, 31, 32, 18};

static void make_request(gy_request *r, const gy_model_desc *d, int k, int32_t *ids, int32_t *trace) {
    gy_request_default(r, d);
    for (uint32_t i = 0; i < 6; i++) trace[i] = i ? (int32_t)(mixed_draw(98, i) % (uint32_t)d->n_loop) + 1 : d->n_loop;
    r->n_prompt = prompt_len[k];
    for (int32_t i = 0; i < r->n_prompt; i++)
        ids[i] = (int32_t)(mixed_draw(900 + (uint32_t)k, (uint32_t)i) % (uint32_t)d->n_vocab);
    r->prompt = ids;
    r->max_tokens = 6;
    r->ignore_eos = 1;
    make_rule(r, d, k, trace);
    r->sample.temperature = k == 7 ? 0.0f : 0.9f;
    r->sample.seed = 77 + (uint64_t)k;
    r->sample.choice = k == 3 ? 5 : 0;
    r->sample.n_logprobs = 2;
    if (k % 3 == 2) r->sample.presence_penalty = 0.5f, r->sample.repetition_penalty = 1.2f;
    if (k == 4) r->prompt_logprobs = 1;
    r->latent_noise = k % 2;
}

/* Each choice by a request of its own, one after the other. */
static void run_singles(gy_engine *e, const gy_request *r, gold_result *out) {
    for (int32_t c = 0; c < r->n; c++) {
        gy_request one = *r;
        one.n = 1;
        one.sample.choice += (uint32_t)c;
        if (c) one.prompt_logprobs = -1;
        gold_run(e, &one, 1, &out[c]);
    }
}

static int check_shared(const gold_setup *s, const way *v, const gy_request *r, const gold_result *got) {
    int bad = 0;
    int32_t rows = (r->n_prompt - 1) / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
    if (!v->shares || r->exit.on_prompt) return 0;
    for (int32_t c = 1; c < r->n; c++)
        if (got[c].fin.n_cached != rows) {
            printf("  %s layout %d, %s: choice %d of a prompt of %d took over %d tokens, expected %d\n", s->model,
                   s->layout, v->what, c, r->n_prompt, got[c].fin.n_cached, rows);
            bad++;
        }
    return bad;
}

static int check_choices(gold_setup s) {
    static const way ways[] = {
        {.what = "n = 4", .shares = 1},
        {.what = "n = 4, prefill_chunk 7, reserve_full", .prefill_chunk = 7, .reserve_full = 1, .shares = 1},
        {.what = "n = 4, max_seqs 1", .max_seqs = 1},
        {.what = "n = 4, max_seqs 2, fuse_loops 8", .max_seqs = 2, .fuse_loops = 8},
        {.what = "n = 4, prefix_cache", .prefix_cache = 1, .shares = 1},
    };
    int bad = 0;
    gold_env env;
    static gy_request r[N_RULE];
    static int32_t ids[N_RULE][48], trace[6];
    static gold_result single[N_RULE * N_CHOICE], got[N_RULE * N_CHOICE];
    gold_open(&s, &env);
    s.patch = apply;
    s.patch_arg = &(way){.what = "singles"};
    gold_engine(&s, &env);
    for (int k = 0; k < N_RULE; k++) {
        make_request(&r[k], &env.m->d, k, ids[k], trace);
        r[k].n = N_CHOICE;
        run_singles(env.e, &r[k], single + k * N_CHOICE);
    }
    for (int v = 0; v < (int)(sizeof ways / sizeof ways[0]); v++) {
        s.max_seqs = ways[v].max_seqs;
        s.patch_arg = &ways[v];
        gold_engine(&s, &env);
        for (int k = 0; k < N_RULE; k++) { /* each by itself, then all together */
            gold_run(env.e, &r[k], 1, got);
            bad += mixed_compare(&s, ways[v].what, r, k, 1, single + k * N_CHOICE, got);
            bad += check_shared(&s, &ways[v], &r[k], got);
        }
        gold_run(env.e, r, N_RULE, got);
        bad += mixed_compare(&s, ways[v].what, r, 0, N_RULE, single, got);
        gold_idle(env.e);
    }
    int n_other = 0;
    for (int32_t c = 1; c < N_CHOICE; c++) n_other += !gold_same(&single[0], &single[c]);
    assert_true(n_other == N_CHOICE - 1); /* seeds do differ */
    for (int32_t c = 1; c < N_CHOICE; c++) assert_true(gold_same(&single[7 * N_CHOICE], &single[7 * N_CHOICE + c]));
    gold_close(&env);
    return bad;
}

static void choices_are_requests(void **state) {
    (void)state;
    int bad = 0;
    for (int i = 0; i < 9; i += FEWER) bad += check_choices(setup_of(i / 3, i % 3));
    assert_int_equal(bad, 0);
}

/* Before step k the leader or a follower is preempted; k rising. The leader may leave while others wait for its rows.
 */
typedef struct one_preempted {
    int at, choice;
    int n_done;
} one_preempted;

static void preempt_one(void *arg, gy_engine *e, int step, const gold_result *res) {
    one_preempted *p = arg;
    static const gy_preempt hows[] = {GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE};
    if (step == p->at) p->n_done += gy_engine_preempt(e, res[0].id, p->choice, hows[step / 2 % 2]) == GY_OK;
}

static void preempted_leader(void **state) {
    (void)state;
    int bad = 0, n_all = 0;
    for (int i = 0; i < 9; i++) {
        gold_setup s = setup_of(i / 3, i % 3);
        gold_env env;
        gy_request r;
        int32_t ids[48], trace[6];
        gold_result single[N_CHOICE], got[N_CHOICE];
        way v = {.prefill_chunk = 5, .prefix_cache = i % 2};
        s.max_rows = 7; /* the prompt takes several steps */
        gold_open(&s, &env);
        s.patch = apply;
        s.patch_arg = &v;
        gold_engine(&s, &env);
        make_request(&r, &env.m->d, 3, ids, trace);
        r.max_tokens = 3;
        if (i % 3) r.n_prompt = 18; /* position by position: many steps */
        r.no_cache = 1;
        r.n = N_CHOICE;
        run_singles(env.e, &r, single);
        int n_step = 1, n_done = 0;
        for (int k = 0; k < n_step; k += i % 3 && !(k & 1) ? 3 * STRIDE : STRIDE)
            for (int c = 0; c < 2; c++) {
                one_preempted p = {.at = k, .choice = c};
                char what[64];
                r.no_cache = k % 2; /* else there is nothing left to be led through */
                int n = gold_run_hooked(env.e, &r, 1, got, &(gold_hook){.before_step = preempt_one, .arg = &p});
                if (n > n_step) n_step = n;
                snprintf(what, sizeof what, "choice %d preempted before step %d", c, k);
                bad += mixed_compare(&s, what, &r, 0, 1, single, got);
                n_done += p.n_done;
            }
        n_all += n_done;
        gold_idle(env.e);
        gold_close(&env);
    }
    printf("  %d preemptions of a leader or a follower\n", n_all);
    assert_true(n_all >= (STRIDE == 1 ? 300 : 3 * 9)); /* three for each model and layout where steps are left out */
    assert_int_equal(bad, 0);
}

/* The leader's first token ends it; the others go on without it, and may wait for it when it is gone. */
static void leader_ends_early(void **state) {
    (void)state;
    int bad = 0;
    for (int i = 0; i < 18; i++) {
        gold_setup s = setup_of(i / 3 % 3, i % 3);
        gold_env env;
        gy_request r;
        int32_t ids[48], trace[6], stop;
        gold_result single[N_CHOICE], got[N_CHOICE];
        way v = {.max_seqs = i < 9 ? 16 : 1, .prefix_cache = i % 2};
        gold_open(&s, &env);
        s.max_seqs = v.max_seqs;
        s.patch = apply;
        s.patch_arg = &v;
        gold_engine(&s, &env);
        make_request(&r, &env.m->d, 4, ids, trace);
        r.prompt_logprobs = -1;
        r.no_cache = 1;
        gold_run(env.e, &r, 1, single);
        stop = single[0].tokens[0];
        r.stop_ids = &stop;
        r.n_stop_ids = 1;
        r.n = N_CHOICE;
        run_singles(env.e, &r, single);
        r.no_cache = 0;
        gold_run(env.e, &r, 1, got);
        assert_true(got[0].n == 1 && got[0].reason == GY_FINISH_STOP && got[0].fin.stop_id == stop);
        assert_true(got[1].n > 1 || got[2].n > 1 || got[3].n > 1);
        bad += mixed_compare(&s, "leader ends early", &r, 0, 1, single, got);
        gold_idle(env.e);
        gold_close(&env);
    }
    assert_int_equal(bad, 0);
}

/* Full rows of a shared prompt are there once. 40 tokens: 2 rows shared, 1 of its own for each (8 + 6 tokens). */
static void blocks_are_shared(void **state) {
    (void)state;
    gold_setup s = setup_of(0, 0);
    gold_env env;
    gy_request r;
    int32_t ids[48], trace[6];
    gy_err err;
    gold_result got[N_CHOICE];
    gold_open(&s, &env);
    gold_engine(&s, &env);
    make_request(&r, &env.m->d, 4, ids, trace);
    r.exit.kind = GY_EXIT_FIXED;
    r.prompt_logprobs = -1;
    r.n = N_CHOICE;
    int32_t most = 0;
    assert_true(gold_submit(env.e, &r, got));
    for (gy_status st = GY_OK; st != GY_DONE;) {
        gy_engine_stats x;
        st = gy_engine_step(env.e, &err);
        assert_true(st >= 0);
        gy_engine_get_stats(env.e, &x);
        if (x.kv_total[0] - x.kv_free[0] > most) most = x.kv_total[0] - x.kv_free[0];
    }
    assert_int_equal(most, env.m->d.n_loop * (2 + N_CHOICE));
    gold_close(&env);
}

static void seeds_from_the_system(void **state) {
    (void)state;
    gold_setup s = setup_of(0, 0);
    gold_env env;
    gy_request r;
    int32_t ids[48], trace[6];
    gold_result a[2], b[2], c[2];
    gold_open(&s, &env);
    gold_engine(&s, &env);
    make_request(&r, &env.m->d, 0, ids, trace);
    r.n = 2;
    r.max_tokens = 20;
    r.random_seed = 1;
    gold_run(env.e, &r, 1, a);
    gold_run(env.e, &r, 1, b);
    assert_true(a[0].fin.seed == a[1].fin.seed && a[0].fin.seed != b[0].fin.seed);
    assert_false(gold_same(&a[0], &b[0]));
    r.random_seed = 0;
    r.sample.seed = a[0].fin.seed;
    gold_run(env.e, &r, 1, c);
    assert_true(gold_same(&a[0], &c[0]) && gold_same(&a[1], &c[1]));
    assert_true(c[0].fin.seed == a[0].fin.seed);
    gold_close(&env);
}

/* ---- cancel ----------------------------------------------------------------------------------------------------- */

enum { N_STAY = 4, N_GO = 8, N_LATER = 4 };

/* Before step `at` the requests behind the first N_STAY are cancelled, one or all, and others submitted in the same
 * breath: they get the ids', the jobs' and the blocks' places. */
typedef struct cancelling {
    int at, target; /* index among those that go; -1 = all */
    mixed *w;
    int n_sent;
    gold_result *later;
} cancelling;

static void cancel_and_submit(void *arg, gy_engine *e, int step, const gold_result *res) {
    cancelling *c = arg;
    if (step != c->at) return;
    for (int i = 0; i < N_GO; i++) {
        if (c->target >= 0 && c->target != i) continue;
        int k = mixed_first(c->w, N_STAY + i);
        if (!res[k].n_finish || c->w->req[N_STAY + i].n > 1) gy_engine_cancel(e, res[k].id);
    }
    for (int i = 0, k = 0; i < N_LATER; k += c->w->req[N_STAY + N_GO + i++].n)
        assert_true(gold_submit(e, &c->w->req[N_STAY + N_GO + i], c->later + k));
    c->n_sent = 1;
}

/* What a cancelled request said is the beginning of what it would have said. */
static int is_beginning(const gold_result *all, const gold_result *part) {
    gold_result cut = *all;
    if (part->reason != GY_FINISH_CANCELLED) return gold_same(all, part);
    if (part->n > all->n || part->n_prompt > all->n_prompt) return 0;
    cut.n = part->n;
    cut.n_prompt = part->n_prompt;
    cut.reason = part->reason;
    cut.fin.stop_id = part->fin.stop_id;
    return part->fin.stop_id == -1 && gold_same(&cut, part);
}

typedef struct cancel_test {
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT], later[MIXED_MAX_RESULT];
} cancel_test;

static int check_cancel(const gold_setup *s, gold_env *env, cancel_test *t, cancelling *c, int *n_cancelled) {
    int n_first = N_STAY + N_GO, bad = 0, n_res = mixed_first(&t->w, n_first);
    char what[64];
    snprintf(what, sizeof what, "cancel %d before step %d", c->target, c->at);
    gold_run_hooked(env->e, t->w.req, n_first, t->got, &(gold_hook){.before_step = cancel_and_submit, .arg = c});
    bad += mixed_compare(s, what, t->w.req, 0, N_STAY, t->base, t->got);
    if (c->n_sent) bad += mixed_compare(s, what, t->w.req, n_first, N_LATER, t->base + n_res, t->later);
    for (int k = mixed_first(&t->w, N_STAY); k < n_res; k++) {
        *n_cancelled += t->got[k].reason == GY_FINISH_CANCELLED;
        if (!is_beginning(&t->base[k], &t->got[k])) {
            printf("  %s layout %d, %s: result %d is no beginning of what it is alone\n", s->model, s->layout, what, k);
            bad++;
        }
    }
    return bad;
}

static int cancel_everywhere(int m, int l) {
    gold_setup s = setup_of(m, l);
    gold_env env;
    cancel_test *t = calloc(1, sizeof *t);
    way v = {.prefill_chunk = 7, .prefix_cache = l == 0, .fuse_loops = l == 2 ? 4 : 1};
    int bad = 0, n_cancelled = 0, n_runs = 0;
    gold_open(&s, &env);
    s.max_seqs = 10; /* some wait */
    s.patch = apply;
    s.patch_arg = &v;
    gold_engine(&s, &env);
    mixed_make(&t->w, &env.m->d, l ? 10 : 20, 6);
    gold_run(env.e, t->w.req, N_STAY + N_GO + N_LATER, t->base);
    for (int k = 0, sent = 1; sent && bad < 8; k += l ? 2 * STRIDE : STRIDE) {
        for (int target = -1; target < 1 && bad < 8; target++) {
            cancelling c = {.at = k, .target = target < 0 ? -1 : k % N_GO, .w = &t->w, .later = t->later};
            bad += check_cancel(&s, &env, t, &c, &n_cancelled);
            sent = c.n_sent;
            n_runs++;
        }
    }
    gold_idle(env.e);
    assert_true(n_runs >= 4 && n_cancelled > n_runs);
    gold_close(&env);
    free(t);
    return bad;
}

static void cancelling_changes_nothing(void **state) {
    (void)state;
    int bad = 0;
    for (int i = 0; i < 9; i++) bad += cancel_everywhere(i / 3, i % 3);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_requests),  cmocka_unit_test(preempted_leader),
        cmocka_unit_test(leader_ends_early),     cmocka_unit_test(blocks_are_shared),
        cmocka_unit_test(seeds_from_the_system), cmocka_unit_test(cancelling_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
