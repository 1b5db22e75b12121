/* Equalities, bit for bit (ARCHITECTURE.md, determinism): whatever a set of requests gives may not depend on the number
 * of threads, on max_rows, on what else runs, or on the run (options, cache, preemption: test_equal_*.c). F32 and BF16,
 * all families, all KV layouts, each CPU variant for itself (AVX2 and AVX-512 sum in different orders and need not
 * agree with each other).
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
#include "support/mixed.h"

enum { MAX_PROMPT = 28 }; /* longer ones, and each request alone: test_equal_sched.c */

static void run(const gold_setup *s, int first, int n, gold_result *out) {
    gold_env env;
    mixed *w = malloc(sizeof *w);
    gold_open(s, &env);
    gold_engine(s, &env);
    mixed_make(w, &env.m->d, MAX_PROMPT, MIXED_MAX_OUT);
    gold_run(env.e, w->req + first, n, out);
    gold_idle(env.e);
    gold_close(&env);
    free(w);
}

typedef struct results {
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
} results;

static int differs(const gold_setup *s, const char *what, results *r) {
    run(s, 0, MIXED_N, r->got);
    return mixed_compare(s, what, r->w.req, 0, MIXED_N, r->base, r->got);
}

static int differs_alone(const gold_setup *s, results *r, int i) {
    run(s, i, 1, r->got);
    return mixed_compare(s, "alone", r->w.req, i, 1, r->base + mixed_first(&r->w, i), r->got);
}

/* What the others are compared with: also the prompts, which the comparison names. */
static int run_base(const gold_setup *s, results *r) {
    gold_env env;
    gold_open(s, &env);
    mixed_make(&r->w, &env.m->d, MAX_PROMPT, MIXED_MAX_OUT);
    run(s, 0, MIXED_N, r->base);
    int bad = mixed_odd(&r->w, &env.m->d, r->base);
    gold_close(&env);
    return bad;
}

#ifdef __SANITIZE_THREAD__
enum { RACES_ONLY = 1 };
#else
enum { RACES_ONLY = 0 };
#endif

/* What the thread sanitizer has to see: three threads, in wide and in narrow passes, no request alone. */
static int check_races(gold_setup s, results *r) {
    s.n_thread = 3;
    s.max_rows = 64;
    int bad = run_base(&s, r);
    s.max_rows = 3;
    return bad + differs(&s, "max_rows 3", r);
}

/* full: everything; else what the reference and the narrower variant need: the same code paths above the kernels. */
static int check_setup(gold_setup s, int full) {
    results *r = malloc(sizeof *r);
    if (RACES_ONLY) {
        int bad = check_races(s, r);
        free(r);
        return bad;
    }
    s.n_thread = 1;
    s.max_rows = 64;
    int bad = run_base(&s, r);
    if (full) bad += differs(&s, "again", r);
    s.n_thread = 3;
    bad += differs(&s, "3 threads", r);
    static const int32_t rows[] = {3, 4096, 1, 16};
    for (int i = 0; i < (full ? 4 : 2); i++) {
        char what[32];
        s.max_rows = rows[i];
        snprintf(what, sizeof what, "max_rows %d", rows[i]);
        bad += differs(&s, what, r);
    }
    s.max_rows = 64;
    if (full) {
        s.max_seqs = 3;
        bad += differs(&s, "3 sequences at once", r);
    }
    for (int i = 0; i < MIXED_N; i += full ? 2 : 5) bad += differs_alone(&s, r, i);
    free(r);
    return bad;
}

/* Under a sanitizer every step costs ten times as much and the paths above the kernels are the same for each variant.
 */
#ifdef GY_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Of the two types of activations a sanitizer sees each with every model and every layout, not with every pair of them.
 */
static int check_variant(const char *backend, int full) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int m = 0; m < 3; m++)
        for (int a = 0; a < 2; a++)
            for (int l = 0; l < 3; l++)
                if (!SANITIZED || a == (m + l) % 2)
                    bad += check_setup((gold_setup){.model = models[m],
                                                    .backend = backend,
                                                    .act = a ? GY_BF16 : GY_F32,
                                                    .layout = layouts[l],
                                                    .cyclic_k = 2},
                                       full);
    return bad;
}

static void on_widest(void **state) {
    (void)state;
    assert_int_equal(check_variant("cpu", !SANITIZED), 0);
}

static void on_avx2(void **state) {
    (void)state;
    if (SANITIZED || strcmp(gold_backend("cpu"), "cpu") != 0) skip();
    gy_cpu_set_mask(GY_CPU_AVX2);
    int bad = check_variant("cpu", 0);
    gy_cpu_set_mask(~0u);
    assert_int_equal(bad, 0);
}

/* What differs from the others is below the operations, whose equalities tests/ops states for every variant. */
static void on_portable(void **state) {
    (void)state;
    if (SANITIZED || strcmp(gold_backend("cpu"), "cpu") != 0) skip();
    gy_cpu_set_mask(0);
    int bad = 0;
    for (int a = 0; a < 2; a++)
        bad += check_setup((gold_setup){.model = "ouro-tiny", .backend = "cpu", .act = a ? GY_BF16 : GY_F32}, 0);
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
    if (!(gy_cpu_features() & GY_CPU_AVX512) || strcmp(gold_backend("cpu"), "cpu") != 0) skip();
    results *r = malloc(sizeof *r);
    gold_setup s = {.model = "ouro-tiny", .backend = "cpu", .act = GY_F32};
    assert_int_equal(run_base(&s, r), 0);
    gy_cpu_set_mask(GY_CPU_AVX2);
    run(&s, 0, MIXED_N, r->got);
    gy_cpu_set_mask(~0u);
    int same = 0;
    for (int i = 0; i < r->w.n_result; i++) same += gold_same(&r->base[i], &r->got[i]);
    assert_true(same < r->w.n_result);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_widest), cmocka_unit_test(on_avx2),
                                       cmocka_unit_test(on_portable), cmocka_unit_test(on_ref),
                                       cmocka_unit_test(comparison_sees_one_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
