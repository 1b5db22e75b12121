/* Equalities, bit for bit (ARCHITECTURE.md, determinism): no choice of scheduling shows in what a request gives. One
 * option after the other is turned away from its default, then all at once; and each request alone under both.
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

typedef struct variant { /* 0: as in the base run */
    const char *what;
    int32_t max_rows, max_seqs, prefill_chunk;
    double prefill_share;
    int32_t max_logits, fuse_loops;
    int no_refill;
    int32_t min_coda;
    int reserve_full;
    gy_sched_policy policy;
    int prefix_cache;
    int32_t scan_limit, max_bypass;
    double watermark;
} variant;

static const variant variants[] = {
    {.what = "again"},
    {.what = "prefill_chunk 1", .prefill_chunk = 1},
    {.what = "prefill_chunk 7", .prefill_chunk = 7},
    {.what = "prefill_chunk 128", .prefill_chunk = 128},
    {.what = "prefill_share 0.01", .prefill_share = 0.01},
    {.what = "prefill_share 1", .prefill_share = 1.0},
    {.what = "max_logits 1", .max_logits = 1},
    {.what = "max_logits 5", .max_logits = 5},
    {.what = "fuse_loops 8", .fuse_loops = 8},
    {.what = "fuse_loops 8, prefill_share 0.01", .fuse_loops = 8, .prefill_share = 0.01},
    {.what = "fuse_loops 3, max_rows 5", .fuse_loops = 3, .max_rows = 5},
    {.what = "no_refill", .no_refill = 1},
    {.what = "no_refill, max_rows 5", .no_refill = 1, .max_rows = 5},
    {.what = "no_refill, fuse_loops 8", .no_refill = 1, .fuse_loops = 8},
    {.what = "min_coda 8", .min_coda = 8},
    {.what = "min_coda 4, no_refill", .min_coda = 4, .no_refill = 1},
    {.what = "reserve_full", .reserve_full = 1},
    {.what = "reserve_full, max_seqs 2", .reserve_full = 1, .max_seqs = 2},
    {.what = "priority, max_seqs 2", .policy = GY_SCHED_PRIORITY, .max_seqs = 2},
    {.what = "fcfs, max_seqs 1", .max_seqs = 1},
    {.what = "max_rows 1", .max_rows = 1},
    {.what = "max_rows 1, no_refill, min_coda 8", .max_rows = 1, .no_refill = 1, .min_coda = 8},
    {.what = "prefix_cache", .prefix_cache = 1},
    {.what = "scan_limit 1, max_bypass 1, watermark 0.5", .scan_limit = 1, .max_bypass = 1, .watermark = 0.5},
    {.what = "everything",
     .max_rows = 9,
     .max_seqs = 5,
     .prefill_chunk = 7,
     .prefill_share = 0.01,
     .max_logits = 2,
     .fuse_loops = 8,
     .no_refill = 1,
     .min_coda = 4,
     .policy = GY_SCHED_PRIORITY,
     .prefix_cache = 1,
     .scan_limit = 2,
     .max_bypass = 2},
};
enum { N_VARIANT = sizeof variants / sizeof variants[0] };

static void apply(gy_engine_opts *o, const void *arg) {
    const variant *v = arg;
    o->sched.prefill_chunk = v->prefill_chunk ? v->prefill_chunk : 16;
    o->sched.prefill_share = v->prefill_share > 0.0 ? v->prefill_share : 0.5;
    o->sched.no_refill = v->no_refill;
    o->sched.min_coda = v->min_coda ? v->min_coda : 1;
    o->sched.reserve_full = v->reserve_full;
    o->sched.policy = v->policy;
    if (v->scan_limit) o->sched.scan_limit = v->scan_limit;
    if (v->max_bypass) o->sched.max_bypass = v->max_bypass;
    if (v->watermark > 0.0) o->sched.watermark = v->watermark;
    o->max_logits = v->max_logits;
    o->fuse_loops = v->fuse_loops ? v->fuse_loops : 1;
    o->prefix_cache = v->prefix_cache;
}

static void open_variant(gold_setup *s, const variant *v, gold_env *env) {
    s->patch = apply;
    s->patch_arg = v;
    s->max_rows = v->max_rows ? v->max_rows : 64;
    s->max_seqs = v->max_seqs ? v->max_seqs : 16;
    gold_engine(s, env);
}

typedef struct results {
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
} results;

/* Under a sanitizer a step costs ten times as much. */
#ifdef GY_SANITIZED
enum { EVERY = 4, ALONE = 7 };
#else
enum { EVERY = 1, ALONE = 1 };
#endif

static int check_variants(gold_setup *s, gold_env *env, results *r) {
    int bad = 0;
    for (int v = 0; v < N_VARIANT; v++) {
        if (v % EVERY && v != N_VARIANT - 1) continue;
        open_variant(s, &variants[v], env);
        gold_run(env->e, r->w.req, MIXED_N, r->got);
        gold_idle(env->e);
        bad += mixed_compare(s, variants[v].what, r->w.req, 0, MIXED_N, r->base, r->got);
    }
    return bad;
}

static int check_alone(gold_setup *s, gold_env *env, results *r) {
    int bad = 0;
    for (int v = 0; v < 2; v++) {
        open_variant(s, &variants[v ? N_VARIANT - 1 : 0], env);
        for (int i = 0; i < MIXED_N; i += ALONE) {
            gold_run(env->e, &r->w.req[i], 1, r->got);
            bad += mixed_compare(s, v ? "alone under everything" : "alone", r->w.req, i, 1,
                                 r->base + mixed_first(&r->w, i), r->got);
        }
        gold_idle(env->e);
    }
    return bad;
}

static int check_setup(gold_setup s) {
    gold_env env;
    results *r = malloc(sizeof *r);
    s.max_rows = 64;
    s.max_len = 96;
    s.n_thread = 1;
    gold_open(&s, &env);
    mixed_make(&r->w, &env.m->d, MIXED_MAX_PROMPT, MIXED_MAX_OUT);
    open_variant(&s, &variants[0], &env);
    gold_run(env.e, r->w.req, MIXED_N, r->base);
    int bad = mixed_odd(&r->w, &env.m->d, r->base) + check_variants(&s, &env, r) + check_alone(&s, &env, r);
    gold_close(&env);
    free(r);
    return bad;
}

static void check_model(const char *model) {
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    gold_setup s = {.model = model, .backend = "cpu", .act = GY_F32, .cyclic_k = 2};
    int bad = 0;
    for (int l = 0; l < 3; l++) {
        s.layout = layouts[l];
        bad += check_setup(s);
    }
    s.layout = GY_KV_LAST_EXITED;
    s.act = GY_BF16;
    bad += check_setup(s);
    assert_int_equal(bad, 0);
}

static void ouro(void **state) {
    (void)state;
    check_model("ouro-tiny");
}

static void huginn(void **state) {
    (void)state;
    check_model("huginn-tiny");
}

static void nanbeige(void **state) {
    (void)state;
    check_model("nanbeige-tiny");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ouro), cmocka_unit_test(huginn), cmocka_unit_test(nanbeige)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
