/* The three golden checkpoints (float64 references) against an F32 run: logits, hidden states and gates within the
 * bounds of tests/golden/README.md, tokens and loops equal; on the reference backend and on each set of kernels of the
 * CPU backend that this processor can run.
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

#include "base/cpu.h"
#include "support/gold.h"

static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
typedef struct backend {
    const char *name;
    uint32_t mask; /* features that the CPU backend may use: each of its sets of kernels in turn */
} backend;
static const backend backends[] = {
    {"cpu", ~0u},
#ifndef __SANITIZE_THREAD__ /* the reference has one thread, and takes nine tenths of the time; all sets share threads \
                             */
    {"ref", ~0u},
#endif
#ifndef GY_SANITIZED /* ASan sees their kernels in tests/ops */
    {"cpu", GY_CPU_AVX2},
    {"cpu", 0},
#endif
};
enum { N_BACKEND = sizeof backends / sizeof backends[0] };

static void open_on(const backend *b, const gold_setup *s, gold_env *env) {
    gy_cpu_set_mask(b->mask);
    gold_open(s, env);
    gy_cpu_set_mask(~0u);
}

static double max_diff(const float *got, const double *expected, size_t n) {
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)got[i] - expected[i]));
    return worst;
}

static void check_prefill(gold_env *env, const gold_case *c, int32_t max_rows) {
    const gy_model_desc *d = &env->m->d;
    float *logits = calloc((size_t)d->n_vocab, sizeof(float));
    float *hidden = calloc((size_t)d->n_loop * (size_t)d->n_embd, sizeof(float));
    float *gates = calloc((size_t)c->n_ids * (size_t)d->n_loop, sizeof(float));
    float *init = NULL;
    if (c->initial_state) {
        size_t n = (size_t)c->n_ids * (size_t)d->n_embd;
        init = calloc(n, sizeof(float));
        for (size_t i = 0; i < n; i++) init[i] = (float)c->initial_state[i];
    }
    gy_eval_opts o = {.ids = c->ids,
                      .n_tok = c->n_ids,
                      .max_rows = max_rows,
                      .initial_state = init,
                      .last_logits = logits,
                      .hidden = hidden,
                      .gates = d->has_gate ? gates : NULL};
    gy_err err = {0};
    assert_int_equal(gy_eval(env->m, &o, &err), GY_OK);
    double bound = strcmp(d->family, "huginn") ? 2e-4 : 5e-4;
    double dl = max_diff(logits, c->logits, (size_t)d->n_vocab);
    double dh = c->hidden ? max_diff(hidden, c->hidden, (size_t)c->n_hidden * (size_t)d->n_embd) : 0.0;
    double dg = c->gates ? max_diff(gates, c->gates, (size_t)c->n_ids * (size_t)d->n_loop) : 0.0;
    printf("  %s %-12s rows %3d: max difference logits %.1e hidden %.1e gates %.1e\n", d->family, c->name, max_rows, dl,
           dh, dg);
    assert_true(dl <= bound && dh <= bound && dg <= bound);
    assert_true(c->n_logits == d->n_vocab && (!c->hidden || c->n_hidden == d->n_loop));
    free(logits);
    free(hidden);
    free(gates);
    free(init);
}

static void prefill_cases(void **state) {
    (void)state;
    for (int b = 0; b < N_BACKEND; b++)
        for (int i = 0; i < 3; i++) {
            gold_env env;
            gold_setup s = {.model = models[i], .backend = backends[b].name, .act = GY_F32};
            open_on(&backends[b], &s, &env);
            printf("  %s\n", env.be->ops->name);
            gold_case *cases;
            int n = gold_read_cases(models[i], &cases), seen = 0;
            for (int k = 0; k < n; k++)
                if (!strcmp(cases[k].kind, "prefill")) {
                    check_prefill(&env, &cases[k], 256);
                    check_prefill(&env, &cases[k], 5);
                    seen++;
                }
            assert_true(seen >= 4);
            gold_free_cases(cases, n);
            gold_close(&env);
        }
}

static int check_greedy(const gold_case *c, const gold_result *r, const char *on, const char *model) {
    int ok = r->n == c->n_out && r->reason == GY_FINISH_LENGTH;
    for (int i = 0; ok && i < r->n; i++) ok = r->tokens[i] == c->tokens[i] && r->loops[i] == c->loops[i];
    if (!ok) {
        printf("  %s %s %s %s %s %g max %d: differs\n   got     ", on, model, c->name, c->layout, c->exit, c->threshold,
               c->max_loops);
        for (int i = 0; i < r->n; i++) printf("%d/%d ", r->tokens[i], r->loops[i]);
        printf("\n   expected ");
        for (int i = 0; i < c->n_out; i++) printf("%d/%d ", c->tokens[i], c->loops[i]);
        printf("%s\n", r->error);
    }
    return ok;
}

/* All cases of one layout are submitted together: rows of common passes, whatever their rules. */
static int run_layout(const backend *b, const char *model, gold_case *cases, int n, gy_kv_layout layout) {
    gold_setup s = {.model = model, .backend = b->name, .act = GY_F32, .layout = layout, .max_rows = 64};
    gold_env env;
    open_on(b, &s, &env);
    const char *on = env.be->ops->name;
    gold_engine(&s, &env);
    gy_request *req = calloc((size_t)n, sizeof *req);
    gold_result *res = calloc((size_t)n, sizeof *res);
    int *index = calloc((size_t)n, sizeof *index), m = 0, passed = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(cases[i].kind, "greedy") && gold_layout(&cases[i]) == layout) {
            gold_request(&cases[i], &env.m->d, &req[m]);
            index[m++] = i;
        }
    gold_run(env.e, req, m, res);
    for (int i = 0; i < m; i++) passed += check_greedy(&cases[index[i]], &res[i], on, model);
    printf("  %s %s %s: %d of %d greedy cases equal\n", on, model, layout ? "shared" : "last_exited", passed, m);
    assert_true(m > 0);
    assert_int_equal(passed, m);
    free(req);
    free(res);
    free(index);
    gold_close(&env);
    return m;
}

static void greedy_cases(void **state) {
    (void)state;
    for (int b = 0; b < N_BACKEND; b++)
        for (int i = 0; i < 3; i++) {
            gold_case *cases;
            int n = gold_read_cases(models[i], &cases), greedy = 0, done = 0;
            for (int k = 0; k < n; k++) greedy += !strcmp(cases[k].kind, "greedy");
            done += run_layout(&backends[b], models[i], cases, n, GY_KV_LAST_EXITED);
            done += run_layout(&backends[b], models[i], cases, n, GY_KV_SHARED);
            assert_int_equal(done, greedy);
            gold_free_cases(cases, n);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(prefill_cases), cmocka_unit_test(greedy_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
