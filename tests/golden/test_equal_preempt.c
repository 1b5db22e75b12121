/* Equalities, bit for bit (ARCHITECTURE.md, determinism): a request that was parked or dropped, at whatever step and
 * however often, gives what it gives undisturbed. Requests of every rule run together; before step k, k = 0, 1, ..
 * until nothing is left to disturb, one of them or all are preempted: in the middle of the prompt, of the loops,
 * between sampling and entering, with codas pending. Then pools so small that the scheduler preempts by itself.
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

enum { N = 12 }; /* of the mixed requests: each rule, n = 3 twice, prompt logprobs, gates, penalties */

#ifdef GY_SANITIZED
enum { STRIDE = 11, ROUNDS = 1 };
#else
enum { STRIDE = 1, ROUNDS = 6 };
#endif

typedef struct disturb {
    int at;        /* step; -1: at random steps */
    int target;    /* result index; -1: all */
    int width;     /* that many steps in a row */
    uint32_t seed; /* at random */
    const mixed *w;
    int n_result, n_done; /* preemptions that happened */
    int count[MIXED_MAX_RESULT];
} disturb;

static int32_t choice_of(const mixed *w, int result) {
    int i = 0;
    while (result >= w->req[i].n) result -= w->req[i++].n;
    return result;
}

static void preempt(disturb *d, gy_engine *e, const gold_result *res, int k, gy_preempt how) {
    gy_status st = gy_engine_preempt(e, res[k].id, choice_of(d->w, k), how);
    assert_true(st == GY_OK || st == GY_AGAIN);
    assert_false(st == GY_OK && res[k].n_finish);
    d->count[k] += st == GY_OK;
    d->n_done += st == GY_OK;
}

static gy_preempt way(int k) {
    static const gy_preempt ways[] = {GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE, GY_PREEMPT_AUTO};
    return ways[k % 3];
}

static void before_step(void *arg, gy_engine *e, int step, const gold_result *res) {
    disturb *d = arg;
    if (d->at < 0) { /* each of them now and then, at most 40 times, so that it ends */
        for (int k = 0; k < d->n_result; k++) {
            uint32_t x = mixed_draw(d->seed, (uint32_t)(step * 64 + k));
            if (x % 16 == 0 && d->count[k] < 40) preempt(d, e, res, k, way((int)(x / 16 % 3)));
        }
        return;
    }
    if (step < d->at || step >= d->at + d->width) return;
    for (int k = 0; k < d->n_result; k++)
        if (d->target < 0 || d->target == k) preempt(d, e, res, k, way(k + step));
}

typedef struct options {
    const char *what;
    int32_t max_rows, prefill_chunk, fuse_loops, min_coda, max_seqs;
    int no_refill, prefix_cache;
    /* Small pools. */
    int32_t n_row; /* block rows; 0: as many as can be used */
    size_t park_blocks;
    gy_preempt preempt;
    gy_sched_policy policy;
} options;

typedef struct bench {
    gold_setup s;
    gold_env env;
    mixed w;
    int n_result;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
} bench;

static int32_t n_plane(const gold_setup *s, const gy_model_desc *d) {
    return s->layout == GY_KV_SHARED ? 1 : s->layout == GY_KV_CYCLIC ? s->cyclic_k : d->n_loop;
}

typedef struct patch_arg {
    const options *o;
    const bench *b;
} patch_arg;

static void apply(gy_engine_opts *o, const void *arg) {
    const options *x = ((const patch_arg *)arg)->o;
    const bench *b = ((const patch_arg *)arg)->b;
    o->sched.prefill_chunk = x->prefill_chunk ? x->prefill_chunk : 7;
    o->sched.min_coda = x->min_coda ? x->min_coda : 1;
    o->sched.no_refill = x->no_refill;
    o->sched.preempt = x->preempt;
    o->sched.policy = x->policy;
    o->fuse_loops = x->fuse_loops ? x->fuse_loops : 1;
    o->prefix_cache = x->prefix_cache;
    if (!x->n_row) return;
    o->kv_blocks = x->n_row * n_plane(&b->s, &b->env.m->d);
    gy_engine_plan plan;
    gy_err err;
    assert_int_equal(gy_engine_make_plan(&b->env.m->d, b->s.act, o, 0, &err, &plan), GY_OK);
    /* A park pool is sized in whole rows of 16 tokens, the boundary's counted twice. */
    o->park_bytes = x->park_blocks * (plan.block_bytes[GY_KV_CORE] * (size_t)n_plane(&b->s, &b->env.m->d) +
                                      2 * plan.block_bytes[GY_KV_BOUNDARY]);
}

static void open_engine(bench *b, const options *o) {
    patch_arg arg = {o, b};
    b->s.patch = apply;
    b->s.patch_arg = &arg;
    b->s.max_rows = o->max_rows ? o->max_rows : 64;
    b->s.max_seqs = o->max_seqs ? o->max_seqs : 20;
    gold_engine(&b->s, &b->env);
    b->s.patch = NULL;
}

static gy_kv_type kv_type; /* of the benches that are opened from now on */

static bench *open_bench(const char *model, gy_kv_layout layout, int32_t max_prompt, int32_t max_out) {
    bench *b = calloc(1, sizeof *b);
    b->s =
        (gold_setup){.model = model, .backend = "cpu", .act = GY_F32, .n_thread = 1, .layout = layout, .cyclic_k = 2};
    b->s.kv_type = kv_type;
    b->s.max_rows = 64;
    b->s.max_len = 64;
    gold_open(&b->s, &b->env);
    mixed_make(&b->w, &b->env.m->d, max_prompt, max_out);
    b->n_result = gold_n_choice(b->w.req, N);
    open_engine(b, &(options){.what = "base"});
    gold_run(b->env.e, b->w.req, N, b->base);
    return b;
}

static void close_bench(bench *b) {
    gold_close(&b->env);
    free(b);
}

/* ---- at every step ---------------------------------------------------------------------------------------------- */

static int disturbed_run(bench *b, const char *what, disturb *d, int *n_step) {
    char text[128];
    d->w = &b->w;
    d->n_result = b->n_result;
    *n_step = gold_run_hooked(b->env.e, b->w.req, N, b->got,
                              &(gold_hook){.before_step = before_step, .arg = d, .unchecked = d->at >= 0 && d->at % 8});
    snprintf(text, sizeof text, "%s, %s preempted %d times from step %d (seed %u)", what, d->target < 0 ? "all" : "one",
             d->n_done, d->at, d->seed);
    int bad = mixed_compare(&b->s, text, b->w.req, 0, N, b->base, b->got);
    for (int k = 0; k < b->n_result; k++)
        if (b->got[k].fin.n_preempt != d->count[k]) {
            printf("  %s: result %d says %d preemptions, there were %d\n", text, k, b->got[k].fin.n_preempt,
                   d->count[k]);
            bad++;
        }
    return bad;
}

/* All at once before step k; and one of them, in turn, while the others go on. Shifted by n_result per round, so that
 * in the end each is hit at each of its stages. */
static int at_every_step(bench *b, const options *o, int stride, int n_target) {
    int bad = 0, n_done = 0, n_step = 1;
    for (int k = 0; k < n_step && bad < 8; k += stride)
        for (int t = -1; t < n_target && bad < 8; t++) {
            int n;
            disturb d = {.at = k, .target = t < 0 ? -1 : (k + t * 5) % b->n_result, .width = 1 + (k % 5 == 4)};
            bad += disturbed_run(b, o->what, &d, &n);
            n_done += d.n_done;
            if (t < 0) n_step = n; /* with the detour: the last k's come too late and change nothing */
        }
    gy_engine_stats st;
    gy_engine_get_stats(b->env.e, &st);
    gold_idle(b->env.e);
    if (n_done < 2 || !st.sched.n_park || !st.sched.n_restore || !st.sched.n_drop || !st.sched.n_recomputed_tok) {
        printf("  %s layout %d, %s: %d preempted, parked %lld, restored %lld, dropped %lld\n", b->s.model, b->s.layout,
               o->what, n_done, (long long)st.sched.n_park, (long long)st.sched.n_restore, (long long)st.sched.n_drop);
        bad++;
    }
    return bad;
}

static int at_random(bench *b, const options *o) {
    int bad = 0;
    for (uint32_t seed = 0; seed < ROUNDS && bad < 8; seed++) {
        int n;
        disturb d = {.at = -1, .target = -1, .seed = 40000 + seed};
        bad += disturbed_run(b, o->what, &d, &n);
        assert_true(d.n_done > 0);
    }
    gold_idle(b->env.e);
    return bad;
}

static const options ways_to_run[] = {
    {.what = "default"},
    {.what = "min_coda 8, chunk 3, max_rows 9", .min_coda = 8, .prefill_chunk = 3, .max_rows = 9},
    {.what = "fuse_loops 8", .fuse_loops = 8},
    {.what = "prefix_cache, no_refill", .prefix_cache = 1, .no_refill = 1},
    {.what = "max_seqs 3", .max_seqs = 3},
};
enum { N_WAY = sizeof ways_to_run / sizeof ways_to_run[0] };

/* In Huginn's eight loops a run costs ten times what it does in the others: there, of the later setups, every third
 * step is one that is disturbed. */
static int check_model(const char *model, int slow) {
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int l = 0; l < 3; l++) {
        /* Position by position, a prompt takes as many steps as it has loops. */
        bench *b = open_bench(model, layouts[l], l || slow ? 18 : 22, slow ? 5 : 6);
        for (int v = 0; v < N_WAY; v++) {
            int stride = STRIDE * (!slow || (!l && !v) ? 1 : 3);
            open_engine(b, &ways_to_run[v]);
            if (!v || (v == 1 && !l)) bad += at_every_step(b, &ways_to_run[v], stride, v ? 0 : slow ? 1 : 2);
            bad += at_random(b, &ways_to_run[v]);
        }
        close_bench(b);
    }
    return bad;
}

static void ouro(void **state) {
    (void)state;
    assert_int_equal(check_model("ouro-tiny", 0), 0);
}

static void huginn(void **state) {
    (void)state;
    assert_int_equal(check_model("huginn-tiny", 1), 0);
}

static void nanbeige(void **state) {
    (void)state;
    assert_int_equal(check_model("nanbeige-tiny", 0), 0);
}

/* ---- by itself -------------------------------------------------------------------------------------------------- */

enum { PARKS = 1, DROPS = 2 };

/* Prompts that end shortly before a row does, so that the outputs need another one: 31 + 12 tokens at most, 3 rows. */
static void crowd(mixed *w) {
    for (int i = 0; i < MIXED_N; i++) w->req[i].n_prompt = (i % 4 ? 12 : 28) + i / 4 % 4;
}

static const struct {
    options o;
    int expect;
} tight[] = {
    {{.what = "4 rows, all parked", .n_row = 4, .park_blocks = 64}, PARKS},
    {{.what = "3 rows, all dropped", .n_row = 3, .park_blocks = 0}, DROPS},
    {{.what = "5 rows, room to park one", .n_row = 5, .park_blocks = 1}, PARKS | DROPS},
    {{.what = "4 rows, recompute", .n_row = 4, .park_blocks = 64, .preempt = GY_PREEMPT_RECOMPUTE}, DROPS},
    {{.what = "4 rows, priority", .n_row = 4, .park_blocks = 64, .policy = GY_SCHED_PRIORITY, .max_seqs = 3}, PARKS},
    {{.what = "4 rows, cache", .n_row = 4, .park_blocks = 3, .prefix_cache = 1, .fuse_loops = 8}, PARKS},
    {{.what = "6 rows, 5 rows a pass, no_refill", .n_row = 6, .park_blocks = 8, .max_rows = 5, .no_refill = 1}, 0},
};

static int run_tight(bench *b, int v) {
    gy_engine_stats st;
    open_engine(b, &tight[v].o);
    gold_run(b->env.e, b->w.req, MIXED_N, b->got);
    gold_idle(b->env.e);
    gy_engine_get_stats(b->env.e, &st);
    int bad = mixed_compare(&b->s, tight[v].o.what, b->w.req, 0, MIXED_N, b->base, b->got);
    int parks = st.sched.n_park > 0 && st.sched.n_restore > 0 && st.kv_copied_bytes > 0;
    int drops = st.sched.n_drop > 0;
    int64_t n_preempt = 0;
    for (int k = 0; k < b->w.n_result; k++) n_preempt += b->got[k].fin.n_preempt;
    if ((tight[v].expect & PARKS && !parks) || (tight[v].expect & DROPS && !drops) ||
        n_preempt != st.sched.n_restore + st.sched.n_drop) { /* one of them ended each preemption */
        printf("  %s layout %d, %s: %lld parked, %lld restored, %lld dropped, requests say %lld\n", b->s.model,
               b->s.layout, tight[v].o.what, (long long)st.sched.n_park, (long long)st.sched.n_restore,
               (long long)st.sched.n_drop, (long long)n_preempt);
        bad++;
    }
    return bad;
}

static void small_pools(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int i = 0; i < 10; i++) { /* the last: KV in int8 */
        kv_type = i < 9 ? GY_KV_AUTO : GY_KV_INT8;
        bench *b = open_bench(models[i / 3 % 3], layouts[i % 3], 31, MIXED_MAX_OUT);
        crowd(&b->w);
        open_engine(b, &(options){.what = "base"});
        gold_run(b->env.e, b->w.req, MIXED_N, b->base);
        bad += mixed_odd(&b->w, &b->env.m->d, b->base);
        for (int v = 0; v < (int)(sizeof tight / sizeof tight[0]); v++) bad += run_tight(b, v);
        close_bench(b);
    }
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ouro), cmocka_unit_test(huginn), cmocka_unit_test(nanbeige),
                                       cmocka_unit_test(small_pools)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
