/* Equalities, bit for bit (ARCHITECTURE.md, determinism): a prompt computed by one engine and continued by another
 * gives what one engine gives. Both engines live here, and between them only what handoff.h tells is carried over:
 * blocks, plane by plane as they become final, and the hidden row. The sink's memory is filled with garbage first, so
 * that a byte that is read without having been sent shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/handoff.h"
#include "pd/segs.h"
#include "support/mixed.h"

#ifdef GY_SANITIZED
enum { N_SETTING = 3, MAX_CROSS = 12 };
#else
enum { N_SETTING = 6, MAX_CROSS = MIXED_N };
#endif
enum { MAX_LOOP = 64, MAX_EMBD = 512 };

typedef enum phase { NEW, OPEN, RUN, READY, GONE } phase;

struct duo;
typedef struct cross {
    struct duo *w;
    gy_request r;
    gold_result *res;
    phase phase;
    int32_t import, n_have, exported, sent[MAX_LOOP], sent_boundary;
    float hidden[MAX_EMBD], gates[MAX_LOOP];
    gy_arrival a;
    int32_t id;      /* on D, once it is a request there */
    int given_up_at; /* step; 0: never. Its blocks on P go some steps later */
    int let_go_at, was_given_up;
    int n_finish, n_told; /* n_told: calls of on_planes that brought something */
} cross;

typedef struct duo {
    gold_setup s;
    gold_env local, p, d;
    mixed w;
    cross x[MIXED_N];
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
    gy_seg_group group[GY_KV_GROUPS];
    size_t moved;
    uint32_t give_up; /* seed; 0: nobody gives up */
    int at_the_end;   /* everything is carried when the prompt is done, not as it becomes final */
    int n_crossed, n_local, n_early, n_hit;
} duo;

typedef struct setting {
    const char *what;
    int32_t p_rows, d_rows, p_chunk;
    int p_cache, d_cache, at_the_end, rounds;
    int32_t d_row_pool; /* block rows of D; 0: enough. Small: it preempts what was imported */
} setting;

static const setting settings[] = {
    {.what = "pushed plane by plane", .p_rows = 8, .d_rows = 16, .p_chunk = 5},
    {.what = "caches on both sides",
     .p_rows = 64,
     .d_rows = 64,
     .p_chunk = 16,
     .p_cache = 1,
     .d_cache = 1,
     .rounds = 2},
    {.what = "D preempts", .p_rows = 32, .d_rows = 8, .p_chunk = 16, .d_row_pool = 8},
    {.what = "all at the end", .p_rows = 256, .d_rows = 256, .p_chunk = 128, .at_the_end = 1},
    {.what = "a cache on P", .p_rows = 64, .d_rows = 64, .p_chunk = 16, .p_cache = 1, .rounds = 2},
    {.what = "a cache on D", .p_rows = 64, .d_rows = 64, .p_chunk = 16, .d_cache = 1, .rounds = 2},
};

/* ---- two engines on one model --------------------------------------------------------------------------------------
 */

static int32_t n_plane(const gold_setup *s, const gy_model_desc *d) {
    return s->layout == GY_KV_SHARED ? 1 : s->layout == GY_KV_CYCLIC ? s->cyclic_k : d->n_loop;
}

static void patch_p(gy_engine_opts *o, const void *arg) {
    const setting *x = arg;
    o->max_handoff = 6;
    o->prefix_cache = x->p_cache;
    o->sched.max_rows = x->p_rows;
    o->sched.prefill_chunk = x->p_chunk;
    o->sched.max_seqs = 3;
}

typedef struct d_arg {
    const setting *x;
    int32_t blocks;
} d_arg;

static void patch_d(gy_engine_opts *o, const void *arg) {
    const d_arg *x = arg;
    o->max_handoff = 4;
    o->prefix_cache = x->x->d_cache;
    o->sched.max_rows = x->x->d_rows;
    o->sched.max_seqs = 5;
    o->kv_blocks = x->blocks;
}

static void open_duo(duo *w, gold_setup s, const setting *x) {
    s.backend = "cpu";
    s.n_thread = 1;
    s.cyclic_k = 2;
    w->s = s;
    gold_open(&s, &w->local);
    w->p = w->d = (gold_env){.be = w->local.be, .m = w->local.m};
    gold_engine(&s, &w->local);
    s.patch = patch_p;
    s.patch_arg = x;
    gold_engine(&s, &w->p);
    const d_arg da = {.x = x, .blocks = x->d_row_pool * n_plane(&s, &w->local.m->d)};
    s.patch = patch_d;
    s.patch_arg = &da;
    gold_engine(&s, &w->d);
    const gy_kv_config *c = gy_kv_get_config(gy_engine_kv(w->d.e)), *cp = gy_kv_get_config(gy_engine_kv(w->p.e));
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        w->group[g] = (gy_seg_group){.n_layer = c->n_layer[g],
                                     .tok_bytes = gy_kv_row_bytes(c),
                                     .n_block_src = cp->n_block[g],
                                     .n_block_dst = c->n_block[g]};
        void *arena = gy_kv_arena(gy_engine_kv(w->d.e), (gy_kv_group)g);
        if (arena) memset(arena, 0x7b, gy_engine_get_plan(w->d.e)->block_bytes[g] * (size_t)c->n_block[g]);
    }
    w->at_the_end = x->at_the_end;
}

static void close_duo(duo *w) {
    gold_idle(w->p.e);
    gold_idle(w->d.e);
    assert_int_equal(gy_engine_n_handoff(w->p.e), 0);
    assert_int_equal(gy_engine_n_handoff(w->d.e), 0);
    gy_engine_close(w->p.e);
    gy_engine_close(w->d.e);
    gold_close(&w->local);
}

/* ---- carrying over -------------------------------------------------------------------------------------------------
 */

static void carry(cross *x, gy_kv_group g, int32_t plane, int32_t from, int32_t to) {
    duo *w = x->w;
    int32_t n_src, n_dst;
    gy_xfer_limits l;
    gy_xfer_desc d[64];
    gy_seg_cursor c = {0};
    if (from < x->n_have) from = x->n_have;
    if (from >= to) return;
    gy_seg_plane pl = {.group = &w->group[g],
                       .src = gy_engine_export_blocks(w->p.e, x->exported, g, plane, &n_src),
                       .dst = gy_engine_import_blocks(w->d.e, x->import, g, plane, &n_dst),
                       .from = from,
                       .to = to};
    const gy_seg_plan plan = {.plane = &pl, .n_plane = 1};
    assert_non_null(pl.src);
    assert_non_null(pl.dst);
    assert_true(n_src * 16 >= to && n_dst * 16 >= to);
    assert_int_equal(gy_seg_check(&plan, NULL), GY_OK);
    gy_xfer_limits_default(&l);
    l.max_desc = 64;
    char *dst = gy_kv_arena(gy_engine_kv(w->d.e), g);
    const char *src = gy_kv_arena(gy_engine_kv(w->p.e), g);
    for (int32_t n; (n = gy_seg_next(&plan, 1, &l, &c, d));)
        for (int32_t i = 0; i < n; i++) {
            memcpy(dst + d[i].dst_off, src + d[i].src_off, d[i].bytes);
            w->moved += d[i].bytes;
        }
}

static void carry_core(cross *x, const int32_t *core, int32_t n) {
    int32_t planes = n_plane(&x->w->s, &x->w->local.m->d);
    for (int32_t d = 0; d < n && d < planes; d++) {
        assert_true(core[d] >= x->sent[d] && core[d] <= x->r.n_prompt);
        if (d) assert_true(core[d] <= core[d - 1]);
        carry(x, GY_KV_CORE, d, x->sent[d], core[d]);
        x->sent[d] = core[d];
    }
}

static void on_planes(void *arg, int32_t id, const int32_t *core, int32_t n, int32_t boundary) {
    cross *x = arg;
    int32_t all = x->r.n_prompt;
    assert_int_equal(id, x->exported);
    assert_int_equal(n, x->w->local.m->d.n_loop);
    x->n_told++;
    if (x->w->at_the_end && (core[n - 1] < all || core[0] < all)) return;
    if (core[0] == all && core[n - 1] < all) x->w->n_early++; /* a plane goes before the prompt is done */
    carry_core(x, core, n);
    carry(x, GY_KV_BOUNDARY, 0, x->sent_boundary, boundary);
    x->sent_boundary = boundary;
}

static void on_hidden(void *arg, int32_t id, const float *hidden, int32_t loops, const float *gates, int32_t n_gate) {
    cross *x = arg;
    const gy_model_desc *d = &x->w->local.m->d;
    assert_int_equal(id, x->exported);
    assert_int_equal(x->sent[0], x->r.n_prompt);
    memcpy(x->hidden, hidden, (size_t)d->n_embd * sizeof *hidden);
    if (n_gate) memcpy(x->gates, gates, (size_t)n_gate * sizeof *gates);
    x->a = (gy_arrival){.hidden = x->hidden, .gates = x->gates, .loops = loops, .n_gate = n_gate};
    x->phase = READY;
}

static void on_export_finish(void *arg, const gy_finish_event *ev) {
    cross *x = arg;
    assert_int_equal(ev->reason, x->was_given_up ? GY_FINISH_CANCELLED : GY_FINISH_STOP);
    assert_int_equal(ev->n_output, 0);
    x->n_finish++;
}

/* ---- one request after another, as far as each gets
 * ------------------------------------------------------------------ */

static void try_open(cross *x) {
    gy_err err;
    gy_status st = gy_engine_import_open(x->w->d.e, &x->r, &err, &x->import, &x->n_have);
    if (st < 0) fail_msg("%s", err.msg);
    if (st != GY_OK) return;
    assert_int_equal(x->n_have % 16, 0);
    x->w->n_hit += x->n_have > 0;
    x->phase = OPEN;
}

static void try_export(cross *x) {
    gy_err err;
    gy_request p = x->r;
    const gy_export e = {.on_planes = on_planes, .on_hidden = on_hidden, .arg = x};
    p.on_finish = on_export_finish;
    p.on_prompt = NULL;
    p.arg = x;
    gy_status st = gy_engine_submit_export(x->w->p.e, &p, &e, &err, &x->exported);
    if (st < 0) fail_msg("%s", err.msg);
    if (st == GY_OK) x->phase = RUN;
}

static void try_continue(cross *x) {
    gy_err err;
    int32_t id;
    gy_status st = gy_engine_import_submit(x->w->d.e, x->import, &x->r, &x->a, &err, &id);
    if (st < 0) fail_msg("%s", err.msg);
    if (st != GY_OK) return;
    for (int32_t k = 0; k < x->r.n; k++) x->res[k] = (gold_result){.id = id};
    assert_int_equal(x->n_finish, 1);
    memset(x->hidden, 0xff, sizeof x->hidden); /* it was copied */
    gy_engine_export_release(x->w->p.e, x->exported);
    x->w->n_crossed++;
    x->id = id;
    x->phase = GONE;
}

/* Whoever asked for it is gone, at whatever point. What a writer may still use stays for some more steps. */
static void give_up(cross *x, int step) {
    if (x->was_given_up || !x->given_up_at || step < x->given_up_at) return;
    x->was_given_up = 1;
    x->let_go_at = step + 1 + x->given_up_at % 7;
    if (x->phase == RUN) gy_engine_cancel(x->w->p.e, x->exported);
    if (x->phase == GONE) gy_engine_cancel(x->w->d.e, x->id);
}

static void let_go(cross *x, int step) {
    if (!x->was_given_up || x->phase == GONE || step < x->let_go_at) return;
    if (x->phase == RUN || x->phase == READY) {
        int32_t n;
        assert_int_equal(x->n_finish, 1);
        (void)gy_engine_export_blocks(x->w->p.e, x->exported, GY_KV_CORE, 0, &n);
        assert_true(n * 16 >= x->sent[0]); /* what was told is still there */
        gy_engine_export_release(x->w->p.e, x->exported);
    }
    if (x->phase != NEW) gy_engine_import_drop(x->w->d.e, x->import);
    x->phase = GONE;
}

static void advance(cross *x) {
    if (x->phase == NEW && !gy_handoff_can(x->w->d.e, &x->r, NULL)) {
        if (!gold_submit(x->w->d.e, &x->r, x->res)) return;
        x->id = x->res->id;
        x->w->n_local++;
        x->phase = GONE;
    }
    if (x->phase == NEW) try_open(x);
    if (x->phase == OPEN) try_export(x);
    if (x->phase == READY) try_continue(x);
}

static void run_all(duo *w, int n) {
    gy_err err;
    memset(w->got, 0, sizeof w->got);
    for (int i = 0; i < n; i++) {
        w->x[i] = (cross){.w = w, .r = w->w.req[i], .res = w->got + mixed_first(&w->w, i)};
        gold_listen(&w->x[i].r, w->x[i].res);
        if (w->give_up && mixed_draw(w->give_up, (uint32_t)i) % 2)
            w->x[i].given_up_at = 1 + (int)(mixed_draw(w->give_up, 100 + (uint32_t)i) % 60);
    }
    gy_status p = GY_OK, d = GY_OK;
    int left = n;
    for (int step = 0; left || p != GY_DONE || d != GY_DONE; step++) {
        left = 0;
        for (int i = 0; i < n; i++) {
            give_up(&w->x[i], step);
            let_go(&w->x[i], step);
            if (w->x[i].phase != GONE && !w->x[i].was_given_up) advance(&w->x[i]);
            left += w->x[i].phase != GONE;
        }
        p = gy_engine_step(w->p.e, &err);
        d = gy_engine_step(w->d.e, &err);
        assert_true(p >= 0 && d >= 0 && step < 100000);
        if (step % 5) continue; /* the books cost more than the steps */
        gold_check(w->p.e);
        gold_check(w->d.e);
    }
}

static void run_setting(const gold_setup *s, const setting *x) {
    static duo w;
    w = (duo){0};
    open_duo(&w, *s, x);
    mixed_make(&w.w, &w.local.m->d, MIXED_MAX_PROMPT, 8);
    gold_run(w.local.e, w.w.req, MAX_CROSS, w.base);
    for (int round = 0; round < (x->rounds ? x->rounds : 1); round++) {
        run_all(&w, MAX_CROSS);
        assert_int_equal(mixed_compare(&w.s, x->what, w.w.req, 0, MAX_CROSS, w.base, w.got), 0);
    }
    assert_true(w.n_crossed >= MAX_CROSS / 4);
    assert_true(w.moved > 0);
    if (x->d_cache && s->layout == GY_KV_LAST_EXITED) assert_true(w.n_hit > 0);
    if (!x->at_the_end && x->p_rows < 64 && s->layout == GY_KV_LAST_EXITED) assert_true(w.n_early > 0);
    if (x->d_row_pool && s->layout == GY_KV_LAST_EXITED &&
        (int)MAX_CROSS == (int)MIXED_N) { /* fewer fit side by side */
        gy_engine_stats st;
        gy_engine_get_stats(w.d.e, &st);
        assert_true(st.sched.n_park + st.sched.n_drop > 0);
    }
    close_duo(&w);
}

/* Half of the requests are given up at random steps: the others say what they say alone, and nothing is left behind. */
static void give_ups(const gold_setup *s, const setting *x, int n_round) {
    static duo w;
    w = (duo){0};
    open_duo(&w, *s, x);
    mixed_make(&w.w, &w.local.m->d, MIXED_MAX_PROMPT, 8);
    gold_run(w.local.e, w.w.req, MAX_CROSS, w.base);
    int n_up = 0, bad = 0;
    for (int round = 1; round <= n_round; round++) {
        w.give_up = (uint32_t)round;
        run_all(&w, MAX_CROSS);
        for (int i = 0; i < MAX_CROSS; i++) {
            n_up += w.x[i].was_given_up;
            int at = mixed_first(&w.w, i);
            if (w.x[i].was_given_up) continue;
            bad += mixed_compare(&w.s, "others give up", w.w.req, i, 1, w.base + at, w.got + at);
        }
        assert_int_equal(gy_engine_n_handoff(w.p.e), 0);
        assert_int_equal(gy_engine_n_handoff(w.d.e), 0);
    }
    assert_int_equal(bad, 0);
    assert_true(n_up > n_round * 4);
    close_duo(&w);
}

static void test_give_up(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        gold_setup s = {.model = "ouro-tiny", .act = GY_F32};
        give_ups(&s, &settings[i], 4);
        s.model = "huginn-tiny";
        give_ups(&s, &settings[i], 2);
    }
}

static void test_refused(void **state) {
    (void)state;
    gold_setup s = {.model = "ouro-tiny", .backend = "cpu", .act = GY_F32, .n_thread = 1};
    gold_env env;
    gy_err err;
    int32_t id, n, ids[4] = {1, 2, 3, 4};
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gy_request r;
    gy_request_default(&r, &env.m->d);
    r.prompt = ids;
    r.n_prompt = 4;
    assert_int_equal(gy_engine_import_open(env.e, &r, &err, &id, &n), GY_AGAIN); /* max_handoff is 0 */
    assert_string_equal(err.msg, "all 0 places for prompts that cross are taken; try again later");
    assert_int_equal(gy_engine_submit_export(env.e, &r, &(gy_export){0}, &err, &id), GY_AGAIN);
    r.prompt_logprobs = 0;
    assert_int_equal(gy_engine_import_open(env.e, &r, &err, &id, &n), GY_E_UNSUPPORTED);
    assert_string_equal(err.msg,
                        "prompt_logprobs: they need the logits of every prompt token, so this prompt cannot be "
                        "computed elsewhere");
    r.prompt_logprobs = -1;
    ids[2] = -1;
    assert_int_equal(gy_engine_import_open(env.e, &r, &err, &id, &n), GY_E_ARG);
    assert_int_equal(gy_engine_import_submit(env.e, 0, &r, &(gy_arrival){.loops = 1}, &err, &id), GY_E_ARG);
    assert_string_equal(err.msg, "import 0 is not open");
    gy_engine_import_drop(env.e, 5); /* unknown ones are ignored */
    gy_engine_export_release(env.e, 5);
    gold_close(&env);
}

static void run_model(const char *model, gy_dtype act, gy_kv_layout layout) {
    gold_setup s = {.model = model, .act = act, .layout = layout};
    for (int i = 0; i < N_SETTING; i++) run_setting(&s, &settings[i]);
}

static void test_ouro(void **state) {
    (void)state;
    run_model("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    run_model("ouro-tiny", GY_BF16, GY_KV_LAST_EXITED);
}
/* Scales cross with their rows: blocks whole and in part, parked, from a cache. */
static void test_kv_in_int8(void **state) {
    (void)state;
    gold_setup s = {.model = "ouro-tiny", .act = GY_BF16, .kv_type = GY_KV_INT8};
    for (int i = 0; i < 3; i++) run_setting(&s, &settings[i]);
}
static void test_nanbeige(void **state) {
    (void)state;
    run_model("nanbeige-tiny", GY_F32, GY_KV_LAST_EXITED);
}
static void test_huginn(void **state) {
    (void)state;
    run_model("huginn-tiny", GY_F32, GY_KV_LAST_EXITED);
    run_model("huginn-tiny", GY_BF16, GY_KV_LAST_EXITED);
}
static void test_shared(void **state) {
    (void)state;
    run_model("ouro-tiny", GY_F32, GY_KV_SHARED);
    run_model("huginn-tiny", GY_F32, GY_KV_CYCLIC);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ouro),       cmocka_unit_test(test_nanbeige), cmocka_unit_test(test_huginn),
        cmocka_unit_test(test_kv_in_int8), cmocka_unit_test(test_shared),   cmocka_unit_test(test_give_up),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
