/* Equalities, bit for bit (ARCHITECTURE.md, determinism): tokens, loops and logprobs of a set of requests may not
 * depend on the number of threads, on max_rows, on what else runs, or on the run. F32 and BF16, all families, all KV
 * layouts, each CPU variant for itself (AVX2 and AVX-512 sum in different orders and need not agree with each other).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/philox.h"
#include "support/gold.h"

enum { N_REQUEST = 17, N_OUT = 12, MAX_PROMPT = 48 };

typedef struct workload {
    int32_t ids[N_REQUEST][MAX_PROMPT];
    int32_t trace[N_OUT];
    gy_request req[N_REQUEST];
} workload;

static uint32_t draw(uint32_t i, uint32_t k) {
    uint32_t w[4];
    gy_rand_block(20261129, i, k, GY_RAND_TEST, 0, w);
    return w[0];
}

/* Rules that the family has, in turn, so that depths mix in every pass. */
static void set_rule(gy_request *r, const gy_model_desc *d, uint32_t i, const int32_t *trace) {
    static const struct {
        gy_exit_kind kind;
        double threshold;
        int gate;
    } rules[] = {{GY_EXIT_FIXED, 1.0, 0},   {GY_EXIT_GATE, 0.6, 1},         {GY_EXIT_LATENT, 0.3, 0},
                 {GY_EXIT_KL, 0.05, 0},     {GY_EXIT_SELECT, 0.7, 1},       {GY_EXIT_TRACE, 0.0, 0},
                 {GY_EXIT_ENTROPY, 0.1, 0}, {GY_EXIT_GATE_DELAYED, 0.5, 1}, {GY_EXIT_ARGMAX, 1.0, 0}};
    uint32_t k = i % (sizeof rules / sizeof rules[0]);
    if (rules[k].gate && !d->has_gate) k = 2;
    r->exit.kind = rules[k].kind;
    r->exit.threshold = rules[k].threshold;
    r->exit.on_prompt = rules[k].kind == GY_EXIT_LATENT || (rules[k].kind == GY_EXIT_GATE && i > 8);
    if (rules[k].kind == GY_EXIT_TRACE) {
        r->trace = trace;
        r->n_trace = N_OUT;
    }
}

static void make_workload(workload *w, const gy_model_desc *d) {
    memset(w, 0, sizeof *w);
    for (uint32_t k = 0; k < N_OUT; k++) w->trace[k] = k ? (int32_t)(draw(99, k) % (uint32_t)d->n_loop) + 1 : d->n_loop;
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        gy_request *r = &w->req[i];
        gy_request_default(r, d);
        r->n_prompt = 1 + (int32_t)(draw(i, 1000) % MAX_PROMPT);
        for (int32_t k = 0; k < r->n_prompt; k++) w->ids[i][k] = (int32_t)(draw(i, (uint32_t)k) % (uint32_t)d->n_vocab);
        r->prompt = w->ids[i];
        r->max_tokens = N_OUT - (int32_t)(i % 5);
        r->ignore_eos = 1;
        r->latent_noise = i % 2;
        r->latent_seed = 7 + i;
        if (i % 3 == 1)
            r->sample = (gy_sample_params){.temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .seed = 1000 + i};
        r->sample.n_logprobs = 0;
        set_rule(r, d, i, w->trace);
    }
}

static void run(const gold_setup *s, int first, int n, gold_result *out) {
    gold_env env;
    workload *w = malloc(sizeof *w);
    gold_open(s, &env);
    gold_engine(s, &env);
    make_workload(w, &env.m->d);
    gold_run(env.e, w->req + first, n, out);
    gy_engine_stats st;
    gy_engine_get_stats(env.e, &st);
    assert_int_equal(st.kv_free[0], st.kv_total[0]);
    assert_int_equal(st.kv_free[1], st.kv_total[1]);
    gold_close(&env);
    free(w);
}

static int compare(const gold_setup *s, const char *what, const gold_result *base, const gold_result *got, int n) {
    int bad = 0;
    for (int i = 0; i < n; i++)
        if (!gold_same(&base[i], &got[i])) {
            printf("  %s %s layout %d: request %d differs %s\n", s->model, s->act == GY_F32 ? "f32" : "bf16", s->layout,
                   i, what);
            bad++;
        }
    return bad;
}

/* full: everything; else what the reference and the narrower variant need: the same code paths above the kernels. */
static int check_setup(gold_setup s, int full) {
    gold_result base[N_REQUEST], got[N_REQUEST];
    int bad = 0;
    s.n_thread = 1;
    s.max_rows = 64;
    run(&s, 0, N_REQUEST, base);
    for (int i = 0; i < N_REQUEST; i++) assert_true(base[i].reason == GY_FINISH_LENGTH && base[i].n == N_OUT - i % 5);
    if (full) {
        run(&s, 0, N_REQUEST, got);
        bad += compare(&s, "when run again", base, got, N_REQUEST);
    }
    s.n_thread = 3;
    run(&s, 0, N_REQUEST, got);
    bad += compare(&s, "with 3 threads", base, got, N_REQUEST);
    static const int32_t rows[] = {3, 4096, 1, 16};
    for (int i = 0; i < (full ? 4 : 2); i++) {
        s.max_rows = rows[i];
        run(&s, 0, N_REQUEST, got);
        bad += compare(&s, rows[i] == 1 ? "with max_rows 1" : "with other max_rows", base, got, N_REQUEST);
    }
    s.max_rows = 64;
    if (full) {
        s.max_seqs = 3;
        run(&s, 0, N_REQUEST, got);
        bad += compare(&s, "with 3 sequences at once", base, got, N_REQUEST);
    }
    for (int i = 0; i < N_REQUEST; i += full ? 1 : 4) {
        run(&s, i, 1, &got[i]);
        bad += compare(&s, "when alone", &base[i], &got[i], 1);
    }
    return bad;
}

static int check_variant(const char *backend, int full) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int m = 0; m < 3; m++)
        for (int a = 0; a < 2; a++)
            for (int l = 0; l < 3; l++)
                bad += check_setup((gold_setup){.model = models[m],
                                                .backend = backend,
                                                .act = a ? GY_BF16 : GY_F32,
                                                .layout = layouts[l],
                                                .cyclic_k = 2},
                                   full);
    return bad;
}

/* Under a sanitizer every step costs ten times as much and the paths above the kernels are the same for each variant.
 */
#ifdef GY_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static void on_widest(void **state) {
    (void)state;
    assert_int_equal(check_variant("cpu", !SANITIZED), 0);
}

static void on_avx2(void **state) {
    (void)state;
    if (SANITIZED) skip();
    gy_cpu_set_mask(GY_CPU_AVX2);
    int bad = check_variant("cpu", 0);
    gy_cpu_set_mask(~0u);
    assert_int_equal(bad, 0);
}

static void on_ref(void **state) {
    (void)state;
    if (SANITIZED) skip();
    assert_int_equal(check_variant("ref", 0), 0);
}

/* The comparison can fail: AVX2 and AVX-512 sum in different orders, and that shows in the logprobs. */
static void comparison_sees_one_bit(void **state) {
    (void)state;
    if (!(gy_cpu_features() & GY_CPU_AVX512)) skip();
    gold_result wide[N_REQUEST], narrow[N_REQUEST];
    gold_setup s = {.model = "ouro-tiny", .backend = "cpu", .act = GY_F32};
    run(&s, 0, N_REQUEST, wide);
    gy_cpu_set_mask(GY_CPU_AVX2);
    run(&s, 0, N_REQUEST, narrow);
    gy_cpu_set_mask(~0u);
    int same = 0;
    for (int i = 0; i < N_REQUEST; i++) same += gold_same(&wide[i], &narrow[i]);
    assert_true(same < N_REQUEST);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_widest), cmocka_unit_test(on_avx2), cmocka_unit_test(on_ref),
                                       cmocka_unit_test(comparison_sees_one_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
