/* The forward pass and the exits against float64, where the golden checkpoints do not reach: switches that no published
 * file turns on, shapes without prelude or coda, file types, depths above the trained one, layouts with early exits.
 * tests/support/tiny.h makes the models and the second opinion.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "model/loop.h"
#include "support/gold.h"
#include "support/tiny.h"

/* Heads wider than the state, grouped, and a q that is the longest row of all. */
static const tiny_spec OURO = {.family = "ouro",
                               .n_vocab = 61,
                               .n_embd = 24,
                               .n_ff = 36,
                               .n_head = 4,
                               .n_head_kv = 2,
                               .head_dim = 10,
                               .n_layer = {0, 2, 0},
                               .n_loop = 4,
                               .max_pos = 96,
                               .eps = 3e-3,
                               .theta = 300.0,
                               .dtype = GY_F32,
                               .seed = 11};
static const tiny_spec NANBEIGE = {.family = "nanbeige",
                                   .n_vocab = 61,
                                   .n_embd = 24,
                                   .n_ff = 36,
                                   .n_head = 6,
                                   .n_head_kv = 1,
                                   .head_dim = 8,
                                   .n_layer = {0, 2, 0},
                                   .n_loop = 3,
                                   .max_pos = 96,
                                   .eps = 2e-3,
                                   .theta = 900.0,
                                   .dtype = GY_F32,
                                   .seed = 12};
static const tiny_spec HUGINN = {.family = "huginn",
                                 .n_vocab = 61,
                                 .n_embd = 24,
                                 .n_ff = 20,
                                 .n_head = 3,
                                 .n_head_kv = 3,
                                 .head_dim = 8,
                                 .n_layer = {1, 2, 1},
                                 .n_loop = 4,
                                 .max_pos = 96,
                                 .eps = 2e-3,
                                 .theta = 700.0,
                                 .dtype = GY_F32,
                                 .seed = 13};

static const double BOUND = 2e-4; /* tests/golden/README.md, F32 */

static void draw_ids(int32_t *ids, int32_t n, int32_t n_vocab, uint32_t key) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t w[4];
        gy_rand_block(77, key, (uint32_t)i, GY_RAND_TEST, 0, w);
        ids[i] = (int32_t)(w[0] % (uint32_t)n_vocab);
    }
}

/* ---- given ids: logits of all positions, states, gates ---------------------------------------------------------- */

enum { N_TOK = 35 }; /* two blocks and three tokens */

typedef struct eval_case {
    const char *backend;
    gy_dtype act;
    int32_t max_rows;
    gy_kv_layout layout;
    int32_t cyclic_k;
    int noise;
    uint64_t latent_seed;
    const float *init;
} eval_case;

typedef struct eval_got {
    int32_t n_vocab, n_seen;
    float *logits, *last, *hidden, *gates;
} eval_got;

static gy_status keep_logits(void *arg, int32_t pos, const float *logits, gy_err *err) {
    (void)err;
    eval_got *g = arg;
    assert_int_equal(pos, g->n_seen++);
    memcpy(g->logits + (size_t)pos * (size_t)g->n_vocab, logits, (size_t)g->n_vocab * sizeof *logits);
    return GY_OK;
}

static void run_eval(const tiny *t, const eval_case *c, const int32_t *ids, int32_t n_tok, eval_got *g) {
    gold_env env;
    gy_err err = {0};
    gold_open(&(gold_setup){.model = t->dir, .backend = c->backend, .act = c->act}, &env);
    const gy_model_desc *d = &env.m->d;
    size_t n = (size_t)n_tok, n_vocab = (size_t)d->n_vocab, n_loop = (size_t)d->n_loop;
    *g = (eval_got){.n_vocab = d->n_vocab,
                    .logits = calloc(n * n_vocab, sizeof(float)),
                    .last = calloc(n_vocab, sizeof(float)),
                    .hidden = calloc(n_loop * (size_t)d->n_embd, sizeof(float)),
                    .gates = calloc(n * n_loop, sizeof(float))};
    gy_eval_opts o = {.ids = ids,
                      .n_tok = n_tok,
                      .max_rows = c->max_rows,
                      .kv_layout = c->layout,
                      .cyclic_k = c->cyclic_k,
                      .latent_noise = c->noise,
                      .latent_seed = c->latent_seed,
                      .initial_state = c->init,
                      .on_logits = keep_logits,
                      .arg = g,
                      .last_logits = g->last,
                      .hidden = g->hidden,
                      .gates = d->has_gate ? g->gates : NULL};
    if (gy_eval(env.m, &o, &err) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(g->n_seen, n_tok);
    assert_memory_equal(g->last, g->logits + (n - 1) * n_vocab, n_vocab * sizeof(float));
    gold_close(&env);
}

static void eval_free(eval_got *g) {
    free(g->logits);
    free(g->last);
    free(g->hidden);
    free(g->gates);
}

static double worst(const float *got, const double *expected, size_t n) {
    double max = 0.0;
    for (size_t i = 0; i < n; i++) max = fmax(max, fabs((double)got[i] - expected[i]));
    return max;
}

static int never(tiny_run *r, int32_t pos, int32_t loops) {
    (void)r, (void)pos, (void)loops;
    return 0;
}

static void check_eval(tiny *t, const char *what, const eval_case *c, const double *init) {
    int32_t ids[N_TOK], n_loop = t->s.loss_weights ? t->s.loss_weights + 1 : t->s.n_loop;
    size_t n_vocab = (size_t)t->s.n_vocab, n_embd = (size_t)t->s.n_embd, depth = (size_t)n_loop;
    eval_got g;
    draw_ids(ids, N_TOK, t->s.n_vocab, 1);
    tiny_run r = {.ids = ids,
                  .n_tok = N_TOK,
                  .depth = n_loop,
                  .layout = c->layout,
                  .cyclic_k = c->cyclic_k,
                  .act = c->act,
                  .init = init,
                  .leave = never};
    tiny_forward(t, &r);
    run_eval(t, c, ids, N_TOK, &g);
    double logits = worst(g.logits, r.logits, N_TOK * n_vocab);
    double hidden = worst(g.hidden, r.hidden + (N_TOK - 1) * depth * n_embd, depth * n_embd);
    double gates = worst(g.gates, r.gates, N_TOK * depth);
    if (logits > BOUND || hidden > BOUND || gates > BOUND)
        fail_msg("%s %s rows %d: logits %.1e hidden %.1e gates %.1e", what, c->backend, c->max_rows, logits, hidden,
                 gates);
    tiny_run_free(&r);
    eval_free(&g);
}

/* Both backends, one chunk and chunks that split blocks; more than 32 rows of logits in the first. */
static void check_spec(const char *what, const tiny_spec *s) {
    static const eval_case cases[] = {{.backend = "ref", .act = GY_F32, .max_rows = 64},
                                      {.backend = "cpu", .act = GY_F32, .max_rows = 64},
                                      {.backend = "cpu", .act = GY_F32, .max_rows = 5}};
    tiny t;
    tiny_make(s, &t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_eval(&t, what, &cases[i], NULL);
    tiny_free(&t);
}

static void ouro_switches(void **state) {
    (void)state;
    tiny_spec s = OURO;
    check_spec("ouro", &s);
    s.tied = 1;
    check_spec("tied", &s);
    s.stored_head = 1; /* as HF does: the tie wins */
    check_spec("tied, with a head in the file", &s);
    s = OURO;
    s.dtype = GY_F16;
    check_spec("ouro F16", &s);
    s.dtype = GY_BF16;
    check_spec("ouro BF16 file", &s);
}

static void nanbeige_switches(void **state) {
    (void)state;
    tiny_spec s = NANBEIGE;
    check_spec("nanbeige", &s);
    s.skip_norm = 1;
    check_spec("skip_loop_final_norm", &s);
    s.tied = 1;
    check_spec("skip_loop_final_norm, tied", &s);
    s = NANBEIGE;
    s.loss_weights = 1;
    check_spec("loop_loss_weights", &s);
    s.dtype = GY_F16;
    check_spec("nanbeige F16", &s);
}

static void huginn_switches(void **state) {
    (void)state;
    tiny_spec s = HUGINN;
    check_spec("huginn", &s);
    s.no_bias = 1;
    check_spec("qk_bias false", &s);
    s = HUGINN;
    s.rope_table = 1;
    check_spec("its own freqs_cis", &s);
    s = HUGINN;
    s.stored_head = 1;
    check_spec("lm_head copy", &s);
    s = HUGINN;
    s.embed_scale = 1.75;
    s.std = 0.2;
    check_spec("init_values", &s);
    s = HUGINN;
    s.dtype = GY_F16;
    s.rope_table = 1;
    check_spec("huginn F16", &s);
}

static void huginn_without_prelude_or_coda(void **state) {
    (void)state;
    static const int32_t layers[][3] = {{0, 1, 0}, {2, 1, 0}, {0, 2, 2}, {2, 1, 3}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        char what[40];
        tiny_spec s = HUGINN;
        memcpy(s.n_layer, layers[i], sizeof s.n_layer);
        snprintf(what, sizeof what, "layers %d/%d/%d", layers[i][0], layers[i][1], layers[i][2]);
        check_spec(what, &s);
    }
}

static void layouts_that_overwrite(void **state) {
    (void)state;
    static const tiny_spec *const specs[] = {&OURO, &HUGINN, &NANBEIGE};
    for (int i = 0; i < 3; i++) {
        tiny t;
        tiny_make(specs[i], &t);
        eval_case c = {.backend = "cpu", .act = GY_F32, .max_rows = 64, .layout = GY_KV_SHARED};
        check_eval(&t, "shared", &c, NULL);
        c.layout = GY_KV_CYCLIC;
        for (c.cyclic_k = 1; c.cyclic_k <= specs[i]->n_loop; c.cyclic_k++) check_eval(&t, "cyclic", &c, NULL);
        tiny_free(&t);
    }
}

/* ---- the initial state ------------------------------------------------------------------------------------------ */

static double quantile(double p) { /* by bisection on the error function */
    double lo = -8.0, hi = 8.0;
    for (int i = 0; i < 100; i++) {
        double mid = 0.5 * (lo + hi);
        *(0.5 * erfc(-mid / sqrt(2.0)) < p ? &lo : &hi) = mid;
    }
    return lo;
}

static double *noise(const tiny_spec *s, uint64_t seed, int32_t n_tok) {
    double cut = 0.5 * erfc(3.0 / sqrt(2.0)), *x = calloc((size_t)n_tok * (size_t)s->n_embd, sizeof *x);
    double std = s->embed_scale > 0.0 ? s->std : sqrt(2.0 / (5.0 * s->n_embd));
    double mult = s->embed_scale > 0.0 ? s->embed_scale : sqrt(s->n_embd);
    for (int32_t pos = 0; pos < n_tok; pos++)
        for (int32_t i = 0; i < s->n_embd; i++) {
            uint32_t w[4];
            gy_rand_block(seed, 0, (uint32_t)pos, GY_RAND_LATENT, (uint32_t)i / 2, w);
            double u = gy_rand_unit_f64(w[2 * (i % 2)], w[2 * (i % 2) + 1]) + 0x1p-54;
            x[pos * s->n_embd + i] = quantile(cut + u * (1.0 - 2.0 * cut)) * std * mult;
        }
    return x;
}

static void initial_states(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        tiny_spec s = HUGINN;
        if (i) s.embed_scale = 0.5, s.std = 0.7;
        tiny t;
        tiny_make(&s, &t);
        double *x = noise(&s, 987654321, N_TOK);
        eval_case c = {.backend = "cpu", .act = GY_F32, .max_rows = 9, .noise = 1, .latent_seed = 987654321};
        check_eval(&t, "noise", &c, x);
        float *given = calloc(N_TOK * (size_t)s.n_embd, sizeof *given);
        for (int k = 0; k < N_TOK * s.n_embd; k++) given[k] = (float)(x[k] *= -0.5);
        c = (eval_case){.backend = "cpu", .act = GY_F32, .max_rows = 9, .init = given};
        check_eval(&t, "a given state", &c, x);
        free(given);
        free(x);
        tiny_free(&t);
    }
}

/* ---- BF16 activations: each rounding where the rules put it ------------------------------------------------------ */

static double mean_diff(tiny *t, const eval_got *g, const int32_t *ids, int other_rope) {
    tiny_run r = {
        .ids = ids, .n_tok = N_TOK, .depth = t->s.n_loop, .act = GY_BF16, .other_rope = other_rope, .leave = never};
    double sum = 0.0;
    size_t n = (size_t)N_TOK * (size_t)t->s.n_vocab;
    tiny_forward(t, &r);
    for (size_t i = 0; i < n; i++) sum += fabs((double)g->logits[i] - r.logits[i]);
    tiny_run_free(&r);
    return sum / (double)n;
}

/* Sums in f32 and in f64 seldom round to different BF16 values; a rounding too many or too few shows everywhere. One
 * layer and one loop keep the difference from spreading. */
static void bf16_rounds_by_the_rules(void **state) {
    (void)state;
    static const tiny_spec *const specs[] = {&OURO, &NANBEIGE, &HUGINN};
    static const gy_dtype files[] = {GY_F32, GY_F16, GY_BF16};
    for (int i = 0; i < 9; i++) {
        tiny_spec s = *specs[i / 3];
        int32_t ids[N_TOK];
        eval_got g;
        tiny t;
        s.dtype = files[i % 3];
        s.n_layer[0] = s.n_layer[2] = 0;
        s.n_layer[1] = s.n_loop = 1;
        tiny_make(&s, &t);
        draw_ids(ids, N_TOK, s.n_vocab, 1);
        run_eval(&t, &(eval_case){.backend = "ref", .act = GY_BF16, .max_rows = 64}, ids, N_TOK, &g);
        double right = mean_diff(&t, &g, ids, 0), wrong = mean_diff(&t, &g, ids, 1);
        printf("  %s %s: by the rules %.1e, with the other rotation %.1e\n", s.family, gy_dtype_name(s.dtype), right,
               wrong);
        eval_free(&g);
        tiny_free(&t);
        assert_true(right < 0.05 * wrong);
    }
}

/* ---- requests: who leaves where, and what later tokens read ------------------------------------------------------ */

enum { N_RUN = 12, MAX_PROMPT = 33, MAX_OUT = 10 };

typedef struct job {
    gy_request q;
    int32_t prompt[MAX_PROMPT], trace[MAX_OUT];
    int32_t n_loop; /* trained */
} job;

static double left_by(const tiny_run *r, int32_t pos, int32_t loops) {
    double stays = 1.0;
    for (int32_t i = 0; i < loops; i++) stays *= 1.0 - 1.0 / (1.0 + exp(-r->gates[pos * r->depth + i]));
    return 1.0 - stays;
}

/* docs/models, leaving early once more, from the whole history of a token. */
static int leaves(tiny_run *r, int32_t pos, int32_t loops) {
    const job *j = r->arg;
    const gy_exit_rule *x = &j->q.exit;
    int is_prompt = pos < j->q.n_prompt, is_last = pos == j->q.n_prompt - 1;
    int obeys = !is_prompt || (x->kind == GY_EXIT_SELECT && is_last) || (x->on_prompt && x->kind != GY_EXIT_TRACE);
    if (!obeys) return loops >= j->n_loop;
    double score = left_by(r, pos, loops), before = left_by(r, pos, loops - 1);
    int may = loops >= x->min_loops, last = loops >= x->max_loops;
    switch (x->kind) {
    case GY_EXIT_GATE:
        return last || (may && score >= x->threshold);
    case GY_EXIT_GATE_DELAYED:
        return last || (loops > x->min_loops && before >= x->threshold);
    case GY_EXIT_SELECT:
        if (!r->read && (last || (may && score >= x->threshold))) r->read = loops;
        return last;
    case GY_EXIT_LATENT:
        return last || (may && r->latent < x->threshold);
    case GY_EXIT_TRACE:
        return last || loops >= j->trace[pos - j->q.n_prompt + 1];
    default:
        return last;
    }
}

static void make_job(const gy_model_desc *d, uint32_t i, const gy_exit_rule *rule, job *j) {
    static const int32_t n_prompt[N_RUN] = {1, 15, 16, 17, 31, 32, 33, 2, 7, 11, 16, 3};
    uint32_t w[4];
    j->n_loop = d->n_loop;
    gy_request_default(&j->q, d);
    draw_ids(j->prompt, n_prompt[i], d->n_vocab, 100 + i);
    j->q.prompt = j->prompt;
    j->q.n_prompt = n_prompt[i];
    j->q.max_tokens = i == 7 ? 1 : MAX_OUT;
    j->q.ignore_eos = 1;
    j->q.exit = *rule;
    if (rule->kind != GY_EXIT_TRACE) return;
    int32_t span = (rule->max_loops > d->n_loop ? rule->max_loops : d->n_loop) - rule->min_loops + 1;
    if (rule->max_loops < d->n_loop) span = rule->max_loops - rule->min_loops + 1;
    for (uint32_t k = 0; k < MAX_OUT; k++) {
        gy_rand_block(78, i, k, GY_RAND_TEST, 0, w);
        j->trace[k] = k ? rule->min_loops + (int32_t)(w[0] % (uint32_t)span) : d->n_loop;
    }
    j->q.trace = j->trace;
    j->q.n_trace = MAX_OUT;
}

/* The engine's own tokens are given to the float64 model: each must be its best, with the same loops. */
static void check_job(tiny *t, const gold_setup *s, const job *j, const gold_result *got) {
    int32_t ids[MAX_PROMPT + MAX_OUT], n = j->q.n_prompt, depth = s->max_loops ? s->max_loops : j->n_loop;
    assert_int_equal(got->reason, GY_FINISH_LENGTH);
    assert_int_equal(got->n, j->q.max_tokens);
    memcpy(ids, j->prompt, sizeof j->prompt);
    memcpy(ids + n, got->tokens, (size_t)got->n * sizeof *ids);
    tiny_run r = {.ids = ids,
                  .n_tok = n + got->n - 1,
                  .depth = depth,
                  .layout = s->layout,
                  .cyclic_k = s->cyclic_k,
                  .leave = leaves,
                  .arg = j};
    tiny_forward(t, &r);
    for (int32_t i = 0; i < got->n; i++) {
        const double *row = r.logits + (size_t)(n - 1 + i) * (size_t)t->s.n_vocab;
        double top = row[0], sum = 0.0;
        for (int32_t k = 0; k < t->s.n_vocab; k++) top = fmax(top, row[k]);
        for (int32_t k = 0; k < t->s.n_vocab; k++) sum += exp(row[k] - top);
        int32_t loops = r.read_loops[n - 1 + i];
        if (got->loops[i] != loops || row[got->tokens[i]] < top - BOUND ||
            fabs(row[got->tokens[i]] - top - log(sum) - (double)got->logprobs[i]) > 2.0 * BOUND)
            fail_msg("%s rule %s prompt %d layout %d:%d rows %d output %d: token %d of logit %g (best %g), %d loops, "
                     "expected %d, logprob %g, expected %g",
                     t->s.family, gy_exit_name(j->q.exit.kind), n, s->layout, s->cyclic_k, s->max_rows, i,
                     got->tokens[i], row[got->tokens[i]], top, got->loops[i], loops, (double)got->logprobs[i],
                     row[got->tokens[i]] - top - log(sum));
    }
    tiny_run_free(&r);
}

static void check_jobs(const tiny_spec *spec, gold_setup s, const gy_exit_rule *rules, int n) {
    static job jobs[N_RUN];
    gy_request q[N_RUN];
    gold_result got[N_RUN];
    gold_env env;
    tiny t;
    memset(jobs, 0, sizeof jobs);
    tiny_make(spec, &t);
    s.model = t.dir;
    s.backend = "cpu";
    s.n_thread = 1;
    s.max_len = MAX_PROMPT + MAX_OUT; /* the longest request fills it */
    gold_open(&s, &env);
    gold_engine(&s, &env);
    for (int i = 0; i < n; i++) {
        make_job(&env.m->d, (uint32_t)i, &rules[i], &jobs[i]);
        q[i] = jobs[i].q;
    }
    gold_run(env.e, q, n, got);
    for (int i = 0; i < n; i++) check_job(&t, &s, &jobs[i], &got[i]);
    gold_close(&env);
    tiny_free(&t);
}

#define FIXED(most)                                                                                                    \
    { GY_EXIT_FIXED, 1.0, 1, most, 0 }

static void each_layout(const tiny_spec *spec, const gy_exit_rule *rules, int n, int32_t max_loops) {
    for (int32_t rows = 1; rows <= 64; rows = rows == 1 ? 3 : rows == 3 ? 16 : rows * 4) {
        gold_setup s = {.max_rows = rows, .max_seqs = rows == 16 ? 3 : 16, .max_loops = max_loops};
        check_jobs(spec, s, rules, n);
        s.layout = GY_KV_SHARED;
        check_jobs(spec, s, rules, n);
        s.layout = GY_KV_CYCLIC;
        for (s.cyclic_k = 2; s.cyclic_k <= 3; s.cyclic_k++) check_jobs(spec, s, rules, n);
    }
}

static void ouro_exits(void **state) {
    (void)state;
    static const gy_exit_rule rules[N_RUN] = {{GY_EXIT_GATE, 0.8, 1, 4, 0},   FIXED(1),
                                              {GY_EXIT_GATE, 0.7, 1, 4, 1},   {GY_EXIT_GATE_DELAYED, 0.7, 1, 4, 1},
                                              {GY_EXIT_SELECT, 0.7, 1, 4, 0}, {GY_EXIT_SELECT, 0.6, 2, 3, 1},
                                              {GY_EXIT_TRACE, 0.0, 1, 4, 0},  {GY_EXIT_TRACE, 0.0, 1, 2, 1},
                                              {GY_EXIT_TRACE, 0.0, 1, 2, 1},  {GY_EXIT_LATENT, 0.4, 2, 4, 1},
                                              {GY_EXIT_FIXED, 1.0, 1, 2, 1},  {GY_EXIT_GATE_DELAYED, 0.5, 2, 3, 0}};
    each_layout(&OURO, rules, N_RUN, 0);
}

static void huginn_exits(void **state) {
    (void)state;
    static const gy_exit_rule rules[] = {{GY_EXIT_LATENT, 0.9, 1, 4, 0}, FIXED(1),
                                         {GY_EXIT_LATENT, 0.8, 1, 4, 1}, {GY_EXIT_LATENT, 0.7, 2, 3, 1},
                                         {GY_EXIT_TRACE, 0.0, 1, 4, 0},  {GY_EXIT_FIXED, 1.0, 1, 3, 1},
                                         {GY_EXIT_LATENT, 0.9, 1, 4, 1}, {GY_EXIT_TRACE, 0.0, 2, 3, 0}};
    static const int32_t layers[][3] = {{1, 2, 1}, {0, 1, 0}, {1, 1, 0}, {0, 1, 2}};
    for (int i = 0; i < 4; i++) {
        tiny_spec s = HUGINN;
        memcpy(s.n_layer, layers[i], sizeof s.n_layer);
        each_layout(&s, rules, sizeof rules / sizeof rules[0], 0);
    }
}

static void deeper_than_trained(void **state) {
    (void)state;
    static const gy_exit_rule rules[] = {FIXED(7),
                                         {GY_EXIT_FIXED, 1.0, 1, 7, 1},
                                         {GY_EXIT_GATE, 0.95, 3, 7, 0},
                                         {GY_EXIT_GATE, 0.9, 3, 6, 1},
                                         {GY_EXIT_TRACE, 0.0, 2, 7, 1},
                                         {GY_EXIT_SELECT, 0.97, 3, 6, 0},
                                         {GY_EXIT_LATENT, 0.3, 2, 7, 1},
                                         FIXED(3)};
    each_layout(&OURO, rules, sizeof rules / sizeof rules[0], 7);
    static const gy_exit_rule hug[] = {
        FIXED(7), {GY_EXIT_FIXED, 1.0, 1, 7, 1}, {GY_EXIT_LATENT, 0.6, 3, 7, 1}, {GY_EXIT_TRACE, 0.0, 2, 7, 0}};
    each_layout(&HUGINN, hug, 4, 7);
}

/* A copied state goes on as its original does: hidden and injection. */
static void copied_states(void **state) {
    (void)state;
    tiny_spec s = HUGINN;
    s.n_layer[0] = s.n_layer[2] = 0;
    tiny t;
    gold_env env;
    gy_err err;
    gy_loop *l;
    tiny_make(&s, &t);
    gold_open(&(gold_setup){.model = t.dir, .backend = "ref", .act = GY_F32}, &env);
    float kv[2 * 2 * 16 * 24], got[3][24]; /* one block of two layers, K and V */
    static const int32_t map[] = {0, 1, 2}, states[] = {0, 1, 2}, pos[3] = {0}, ids[] = {5, 6, 7};
    static const int64_t off[] = {0, 1, 2};
    static const uint64_t seed[] = {1, 2, 3};
    static const uint8_t zero[3] = {0};
    gy_loop_config c = {.max_row = 3,
                        .n_state = 3,
                        .max_logit = 1,
                        .core = {.base = kv, .map = map, .dtype = GY_F32, .n_layer = 2, .n_head_kv = 3, .head_dim = 8}};
    assert_int_equal(gy_loop_create(env.m, &c, &err, &l), GY_OK);
    gy_loop_batch b = {.n_row = 3, .state = states, .pos = pos, .slot = map, .map_off = off};
    gy_loop_prelude(l, &b, &(gy_loop_entry){.ids = ids, .seed = seed, .zero = zero});
    gy_loop_copy_state(l, 2, 0);
    gy_loop_pass(l, &b, 0, 0);
    for (int i = 0; i < 3; i++) gy_loop_get_state(l, i, got[i]);
    assert_memory_equal(got[0], got[2], sizeof got[0]);
    assert_memory_not_equal(got[1], got[2], sizeof got[1]);
    gy_loop_destroy(l);
    gold_close(&env);
    tiny_free(&t);
}

/* A backend is made for these: the longest input row of any product, whichever it is. */
static void limits(void **state) {
    (void)state;
    gy_model_desc d = {.n_embd = 24, .n_ff = 36, .n_head = 4, .head_dim = 10};
    assert_int_equal(gy_loop_limits(&d, 7, 9).max_k, 40);
    d.n_ff = 41;
    assert_int_equal(gy_loop_limits(&d, 7, 9).max_k, 41);
    d.inject = 1; /* the adapter reads two states */
    assert_int_equal(gy_loop_limits(&d, 7, 9).max_k, 48);
    d.n_embd = 50;
    d.inject = 0;
    gy_ops_limits l = gy_loop_limits(&d, 7, 9);
    assert_true(l.max_k == 50 && l.max_row == 7 && l.max_len == 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ouro_switches),
        cmocka_unit_test(nanbeige_switches),
        cmocka_unit_test(huginn_switches),
        cmocka_unit_test(huginn_without_prelude_or_coda),
        cmocka_unit_test(layouts_that_overwrite),
        cmocka_unit_test(initial_states),
        cmocka_unit_test(bf16_rounds_by_the_rules),
        cmocka_unit_test(limits),
        cmocka_unit_test(copied_states),
        cmocka_unit_test(ouro_exits),
        cmocka_unit_test(huginn_exits),
        cmocka_unit_test(deeper_than_trained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
