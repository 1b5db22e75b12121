/* Workers: what they make of a request that crosses is what one engine makes of it, on every transport, whatever the
 * network does, and whoever gives up or dies.
 */
#include "base_test.h"

#include "base/mem.h"
#include "pd/worker_int.h"
#include "pd/xfer_int.h"
#include "support/rig.h"
#include "support/tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libucm's hooks call pthread functions in threads that ThreadSanitizer does not know yet, and crash there. And what
 * has one thread is nothing to it. */
#ifdef __SANITIZE_THREAD__
enum { HAS_UCX = 0 };
static const char *const filter = "test_threads";
#else
enum { HAS_UCX = 1 };
static const char *const filter = "*";
#endif

#ifdef GY_SANITIZED
enum { MAX_CALL = 10, N_SEED = 3 };
#else
enum { MAX_CALL = MIXED_N, N_SEED = 6 };
#endif

typedef struct scene {
    gold_setup s;
    gold_env env; /* model, and the engine that says what is right */
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
    rig g;
} scene;

static scene sc; /* large */

static void open_scene(const char *model, gy_dtype act, gy_kv_layout layout) {
    memset(&sc, 0, sizeof sc);
    sc.s = (gold_setup){.model = model, .backend = "cpu", .act = act, .n_thread = 1, .layout = layout, .cyclic_k = 2};
    gold_open(&sc.s, &sc.env);
    gold_engine(&sc.s, &sc.env);
    mixed_make(&sc.w, &sc.env.m->d, MIXED_MAX_PROMPT, 8);
    gold_run(sc.env.e, sc.w.req, MAX_CALL, sc.base);
}

static void add_calls(void) {
    for (int i = 0; i < MAX_CALL; i++) rig_add(&sc.g, &sc.w.req[i], sc.got + mixed_first(&sc.w, i));
}

static void expect_same(const char *what) {
    int bad = 0;
    for (int i = 0; i < MAX_CALL; i++) {
        int at = mixed_first(&sc.w, i);
        if (sc.g.call[i].is_given_up) continue;
        bad += mixed_compare(&sc.s, what, sc.w.req, i, 1, sc.base + at, sc.got + at);
    }
    assert_int_equal(bad, 0);
}

static void run_once(const rig_setup *s, const char *what, uint64_t seed) {
    if (s->kind == GY_XFER_UCX && !HAS_UCX) return;
    rig_open(&sc.g, s, &sc.s, sc.env.m, seed);
    add_calls();
    rig_run(&sc.g);
    expect_same(what);
    rig_idle(&sc.g);
    assert_true(sc.g.n_cross > MAX_CALL / 4);
    rig_close(&sc.g);
}

#define SMALL                                                                                                          \
    { .chunk_bytes = 4096, .inflight_bytes = 16384, .max_desc = 64 }
#define TWO .n_worker = 2, .role = {GY_PD_PREFILL, GY_PD_DECODE}
#define FOUR .n_worker = 4, .role = {GY_PD_PREFILL, GY_PD_DECODE, GY_PD_PREFILL, GY_PD_DECODE}
#define HYBRID .n_worker = 2, .role = {GY_PD_PREFILL | GY_PD_DECODE, GY_PD_PREFILL | GY_PD_DECODE}
#define BAD_NET                                                                                                        \
    { .latency_ns = 1000, .jitter_ns = 5000, .p_twice = 0.2, .p_lost = 0.2 }

typedef struct caching { /* of P, of D */
    int p, d;
    int32_t d_rows; /* block rows of D's pool; 0: enough */
    int32_t p_chunk;
    int32_t d_queue; /* places of D's queue; 0: enough */
} caching;

static void patch(gy_engine_opts *o, int role, const void *arg) {
    const caching *c = arg;
    o->prefix_cache = role & GY_PD_PREFILL ? c->p : c->d;
    o->sched.prefill_chunk = c->p_chunk ? c->p_chunk : 16;
    if (!(role & GY_PD_PREFILL) && c->d_queue) o->sched.max_queue = c->d_queue;
    if (!(role & GY_PD_PREFILL) && c->d_rows) {
        int32_t n_loop = sc.env.m->d.n_loop;
        o->kv_blocks = c->d_rows * (o->kv_layout == GY_KV_SHARED ? 1 : o->kv_layout == GY_KV_CYCLIC ? 2 : n_loop);
    }
}

/* ---- bit for bit ------------------------------------------------------------------------------------------------- */

static void all_layouts(const rig_setup *s, const char *what) {
    static const struct {
        const char *model;
        gy_dtype act;
        gy_kv_layout layout;
    } models[] = {{"ouro-tiny", GY_F32, GY_KV_LAST_EXITED},     {"huginn-tiny", GY_F32, GY_KV_LAST_EXITED},
                  {"nanbeige-tiny", GY_F32, GY_KV_LAST_EXITED}, {"ouro-tiny", GY_BF16, GY_KV_LAST_EXITED},
                  {"huginn-tiny", GY_F32, GY_KV_SHARED},        {"ouro-tiny", GY_F32, GY_KV_CYCLIC}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        open_scene(models[i].model, models[i].act, models[i].layout);
        run_once(s, what, 1 + i);
        gold_close(&sc.env);
    }
}

static void test_loopback(void **state) {
    const caching none = {.p_chunk = 5};
    (void)state;
    all_layouts(&(rig_setup){.kind = GY_XFER_LOOPBACK, TWO, .limits = SMALL, .patch = patch, .patch_arg = &none},
                "loopback");
}

static void test_ucx(void **state) {
    const caching none = {.p_chunk = 7};
    (void)state;
    all_layouts(&(rig_setup){.kind = GY_XFER_UCX, TWO, .limits = SMALL, .patch = patch, .patch_arg = &none}, "ucx");
}

/* KV that lies on a device crosses from device to device, what is beside it through the host; copies of the device show
 * it, and that all of it is given back. */
static void test_device(void **state) {
    static const gy_xfer_kind kinds[] = {GY_XFER_LOOPBACK, GY_XFER_MOCK, GY_XFER_UCX};
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    const caching some = {.p = 1, .p_chunk = 7};
    (void)state;
    for (int i = 0; i < 3; i++) {
        rig_setup s = {.kind = kinds[i], TWO, .limits = SMALL, .patch = patch, .patch_arg = &some, .on_device = 1};
        if (kinds[i] == GY_XFER_MOCK) s.mock = (gy_mock_opts)BAD_NET;
        if (kinds[i] == GY_XFER_UCX && !HAS_UCX) continue;
        open_scene(models[i], i ? GY_F32 : GY_BF16, GY_KV_LAST_EXITED);
        rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
        add_calls();
        rig_run(&sc.g);
        expect_same("device");
        rig_idle(&sc.g);
        assert_true(kinds[i] == GY_XFER_UCX || sc.g.w[0].device.n_copy > MAX_CALL);
        assert_int_equal(sc.g.w[0].device.n_alloc, i == 1 ? 2 : 1); /* huginn has a boundary */
        rig_close(&sc.g);
        gold_close(&sc.env);
    }
}

/* The same requests twice over, so that the second round finds the first one's prefixes. */
static void run_twice(const rig_setup *s, const char *what) {
    rig_open(&sc.g, s, &sc.s, sc.env.m, 3);
    for (int round = 0; round < 2; round++) {
        sc.g.n_call = 0;
        add_calls();
        rig_run(&sc.g);
        expect_same(what);
        rig_idle(&sc.g);
    }
    rig_close(&sc.g);
}

static void test_caches(void **state) {
    static const caching c[] = {{.p = 1}, {.d = 1}, {.p = 1, .d = 1}, {.p = 1, .d = 1, .d_rows = 8}, {.d_queue = 3}};
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .patch = patch, .patch_arg = &c[i]};
        open_scene(i % 2 ? "huginn-tiny" : "ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
        run_twice(&s, "caches");
        gold_close(&sc.env);
    }
}

/* Every limit gives the same bits, also those that one prompt does not fit. */
static void test_budgets(void **state) {
    static const gy_xfer_limits l[] = {{.chunk_bytes = 100, .inflight_bytes = 100, .max_desc = 1},
                                       {.chunk_bytes = 5000, .inflight_bytes = 7000, .max_desc = 3},
                                       {.chunk_bytes = 16384, .inflight_bytes = 16384, .max_desc = 256},
                                       {.chunk_bytes = 1 << 30, .inflight_bytes = (size_t)1 << 31, .max_desc = 256}};
    (void)state;
    open_scene("ouro-tiny", GY_BF16, GY_KV_LAST_EXITED);
    for (size_t i = 0; i < sizeof l / sizeof l[0]; i++) {
        const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .limits = l[i]};
        run_once(&s, "budgets", i);
    }
    gold_close(&sc.env);
}

static void test_mock(void **state) {
    const caching some[2] = {{.p = 1, .d = 1, .p_chunk = 5}, {.p_chunk = 16}};
    (void)state;
    for (int k = 0; k < 2; k++) {
        rig_setup s = {
            .kind = GY_XFER_MOCK, TWO, .mock = BAD_NET, .limits = SMALL, .patch = patch, .patch_arg = &some[k]};
        open_scene(k ? "huginn-tiny" : "ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
        for (uint64_t seed = 0; seed < N_SEED; seed++) run_once(&s, "mock", seed);
        gold_close(&sc.env);
    }
}

static void test_many_workers(void **state) {
    const rig_setup s[] = {{.kind = GY_XFER_MOCK, FOUR, .mock = BAD_NET, .limits = SMALL},
                           {.kind = GY_XFER_UCX, FOUR},
                           {.kind = GY_XFER_MOCK, HYBRID, .mock = BAD_NET, .limits = SMALL},
                           {.kind = GY_XFER_LOOPBACK, .n_worker = 4, .role = {1, 2, 2, 2}, .max_handoff = 1}};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    for (size_t i = 0; i < sizeof s / sizeof s[0]; i++) run_once(&s[i], "many workers", i);
    gold_close(&sc.env);
}

/* ---- which bytes ------------------------------------------------------------------------------------------------- */

static const tiny_spec vector = {.family = "ouro",
                                 .n_vocab = 64,
                                 .n_embd = 32,
                                 .n_ff = 48,
                                 .n_head = 2,
                                 .n_head_kv = 2,
                                 .head_dim = 64,
                                 .n_layer = {0, 2, 0},
                                 .n_loop = 4,
                                 .max_pos = 256,
                                 .eps = 1e-5,
                                 .theta = 10000.0,
                                 .dtype = GY_BF16,
                                 .seed = 5};

static void open_tiny(const tiny_spec *spec, gy_dtype act, tiny *t) {
    tiny_make(spec, t);
    memset(&sc, 0, sizeof sc);
    sc.s = (gold_setup){.model = t->dir, .backend = "cpu", .act = act, .n_thread = 1};
    gold_open(&sc.s, &sc.env);
    gold_engine(&sc.s, &sc.env);
}

static void plain_call(int32_t i, int32_t n_prompt) {
    gy_request r;
    gy_request_default(&r, &sc.env.m->d);
    for (int32_t k = 0; k < n_prompt; k++)
        sc.w.ids[i][k] = (int32_t)(mixed_draw((uint32_t)i, (uint32_t)k) % (uint32_t)sc.env.m->d.n_vocab);
    r.prompt = sc.w.ids[i];
    r.n_prompt = n_prompt;
    r.max_tokens = 4;
    r.ignore_eos = 1;
    sc.w.req[i] = r;
    rig_add(&sc.g, &r, &sc.got[i]);
}

/* Design: 2 layers, 2 KV heads of 64, hidden 32, 4 loops, BF16, ops of 4096 bytes: prompts of 7, 5 and 9 tokens are
 * 86,208 bytes in 24 transfers. All is ready before the first op is made. */
static void test_conformance_vector(void **state) {
    static const gy_xfer_kind kinds[] = {GY_XFER_LOOPBACK, GY_XFER_MOCK, GY_XFER_UCX};
    static const int32_t n_tok[3] = {7, 5, 9};
    tiny t;
    (void)state;
    for (int k = 0; k < 3; k++) {
        const rig_setup s = {.kind = kinds[k], TWO, .mock = BAD_NET, .limits = SMALL};
        int64_t bytes = 0, n_op = 0;
        open_tiny(&vector, GY_BF16, &t);
        rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
        sc.g.hold_p = 1;
        for (int i = 0; i < 3; i++) plain_call(i, n_tok[i]);
        rig_run(&sc.g);
        for (int i = 0; i < 3; i++) {
            bytes += sc.g.call[i].sent.bytes;
            n_op += sc.g.call[i].sent.n_op;
            assert_int_equal(sc.g.call[i].sent.bytes, n_tok[i] * 4096 + 64);
        }
        assert_int_equal(bytes, 86208);
        assert_int_equal(n_op, 24);
        gold_run(sc.env.e, sc.w.req, 3, sc.base);
        assert_int_equal(mixed_compare(&sc.s, "vector", sc.w.req, 0, 3, sc.base, sc.got), 0);
        rig_idle(&sc.g);
        rig_close(&sc.g);
        gold_close(&sc.env);
        tiny_free(&t);
    }
}

/* One prompt, stopped where all is sent and D has not begun: D's pages hold P's bytes, plane by plane, and nothing else
 * was written. With many layers a ragged tail goes as its whole block. */
typedef struct pages {
    const gy_engine *p, *d;
    int32_t n_prompt;
    unsigned char *seen; /* bytes of D's arena that belong to the prompt */
} pages;

static void compare_plane(pages *x, gy_kv_group g, int32_t plane, int whole) {
    const gy_kv_config *c = gy_kv_get_config(gy_engine_kv(x->p));
    size_t tok = (size_t)c->n_head_kv * (size_t)c->head_dim * gy_dtype_bytes(c->dtype);
    int32_t n;
    const int32_t *from = gy_engine_export_blocks(x->p, 0, g, plane, &n),
                  *to = gy_engine_import_blocks(x->d, 0, g, plane, &n);
    const char *src = gy_kv_arena(gy_engine_kv(x->p), g), *dst = gy_kv_arena(gy_engine_kv(x->d), g);
    assert_non_null(from);
    assert_non_null(to);
    for (int32_t i = 0; i < (whole ? (x->n_prompt + 15) / 16 * 16 : x->n_prompt); i++)
        for (int32_t part = 0; part < 2 * c->n_layer[g]; part++) {
            size_t in = ((size_t)part * 16 + (size_t)(i % 16)) * tok, block = 32 * (size_t)c->n_layer[g] * tok;
            assert_memory_equal(src + (size_t)from[i / 16] * block + in, dst + (size_t)to[i / 16] * block + in, tok);
            memset(x->seen + (size_t)to[i / 16] * block + in, 1, tok);
        }
}

static void compare_pages(pages *x, int whole) {
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        const gy_kv_config *c = gy_kv_get_config(gy_engine_kv(x->d));
        size_t bytes = gy_engine_get_plan(x->d)->block_bytes[g] * (size_t)c->n_block[g];
        const unsigned char *dst = gy_kv_arena(gy_engine_kv(x->d), (gy_kv_group)g);
        if (!bytes) continue;
        x->seen = calloc(bytes, 1);
        for (int32_t d = 0; d < gy_kv_n_plane(c, (gy_kv_group)g); d++) compare_plane(x, (gy_kv_group)g, d, whole);
        for (size_t i = 0; i < bytes; i++)
            if (!x->seen[i] && dst[i] != 0x7b) fail_msg("group %d: byte %zu was written", g, i);
        free(x->seen);
    }
}

static void fill_arenas(const gy_engine *e) {
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        void *arena = gy_kv_arena(gy_engine_kv(e), (gy_kv_group)g);
        if (arena)
            memset(arena, 0x7b,
                   gy_engine_get_plan(e)->block_bytes[g] * (size_t)gy_kv_get_config(gy_engine_kv(e))->n_block[g]);
    }
}

/* D's engine half stands still until P has said that it is done; P's does once its prompt is. */
static void one_transfer(gy_xfer_kind kind, int32_t n_prompt, int whole) {
    const rig_setup s = {.kind = kind, TWO, .mock = BAD_NET, .limits = SMALL};
    gy_msg m;
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 9);
    gy_worker *p = sc.g.w[0].w, *d = sc.g.w[1].w;
    pages x = {.p = gy_worker_engine(p), .d = gy_worker_engine(d), .n_prompt = n_prompt};
    fill_arenas(x.d);
    plain_call(0, n_prompt);
    while (!sc.g.call[0].p_held) rig_step(&sc.g);
    for (gy_status st = GY_OK; st == GY_OK;) {
        gy_err err;
        st = gy_worker_turn(p, &err);
        gy_worker_xfer_turn(p);
    }
    for (int i = 0; i < 20000; i++) { /* more than it takes; UCX counts no events */
        if (sc.g.net) gy_mock_net_step(sc.g.net);
        gy_worker_xfer_turn(p);
        gy_worker_xfer_turn(d);
    }
    assert_false(rig_said(&sc.g, 0, &m) && m.kind == GY_MSG_PREFILLED);
    compare_pages(&x, whole);
    rig_run(&sc.g);
    assert_int_equal(sc.got[0].n, 4);
    assert_true(sc.g.call[0].sent.bytes > 0);
    rig_idle(&sc.g);
    rig_close(&sc.g);
}

static void test_pages(void **state) {
    static const gy_xfer_kind kinds[] = {GY_XFER_LOOPBACK, GY_XFER_MOCK, GY_XFER_UCX};
    tiny_spec deep = vector;
    tiny t;
    (void)state;
    deep.n_layer[1] = 9; /* 18 runs of a ragged tail */
    for (int k = 0; k < 3; k++) {
        for (int32_t n = 15; n <= 33; n += 6) {
            open_scene("huginn-tiny", GY_F32, GY_KV_LAST_EXITED);
            one_transfer(kinds[k], n, 0);
            gold_close(&sc.env);
        }
        open_tiny(&deep, GY_BF16, &t);
        one_transfer(kinds[k], 21, 1);
        gold_close(&sc.env);
        tiny_free(&t);
    }
}

/* D has the whole prompt: one transfer, of the hidden row alone. What D reads then is its own affair. */
static void test_hidden_row_only(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .limits = SMALL};
    tiny t;
    (void)state;
    open_tiny(&vector, GY_BF16, &t);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
    plain_call(0, 32);
    sc.g.call[0].patch_have = 32;
    rig_run(&sc.g);
    assert_int_equal(sc.g.call[0].sent.bytes, 64);
    assert_int_equal(sc.g.call[0].sent.n_op, 1);
    assert_int_equal(sc.g.call[0].sent.n_desc, 1);
    assert_int_equal(sc.got[0].n, 4);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
    tiny_free(&t);
}

/* D has all whole blocks of a prompt from before. Its last token always crosses, because D's cache gives nobody a whole
 * prompt: a token of 4096 bytes and the hidden row is the least that there is, and the answer is the same. */
static void test_least_transfer(void **state) {
    static const caching c[2] = {{.d = 1}, {.p = 1, .d = 1}};
    tiny t;
    (void)state;
    for (int k = 0; k < 2; k++) {
        const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .limits = SMALL, .patch = patch, .patch_arg = &c[k]};
        open_tiny(&vector, GY_BF16, &t);
        rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
        plain_call(0, 33);
        rig_run(&sc.g);
        assert_int_equal(sc.g.call[0].sent.bytes, 33 * 4096 + 64);
        gold_run(sc.env.e, sc.w.req, 1, sc.base);
        for (int n = 0; n < 3; n++) {
            sc.g.n_call = 0;
            sc.got[0] = (gold_result){0};
            plain_call(0, 33);
            rig_run(&sc.g);
            assert_int_equal(sc.g.call[0].sent.bytes, 4096 + 64);
            assert_int_equal(sc.g.call[0].sent.n_computed, k ? 1 : 33);
            assert_int_equal(mixed_compare(&sc.s, "least", sc.w.req, 0, 1, sc.base, sc.got), 0);
        }
        rig_idle(&sc.g);
        rig_close(&sc.g);
        gold_close(&sc.env);
        tiny_free(&t);
    }
}

/* ---- the sums ---------------------------------------------------------------------------------------------------- */

static void test_timings(void **state) {
    const caching c = {.p_chunk = 8};
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .patch = patch, .patch_arg = &c};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
    for (int i = 0; i < 4; i++) plain_call(i, 40 + i);
    rig_run(&sc.g);
    for (int i = 0; i < 4; i++) {
        const gy_msg_sent *x = &sc.g.call[i].sent;
        assert_int_equal(x->n_computed, 40 + i);
        assert_true(x->start_ns > 0 && x->first_post_ns > x->start_ns);
        assert_true(x->first_post_ns < x->compute_ns); /* it goes before the prompt is done */
        assert_true(x->last_done_ns >= x->compute_ns);
        assert_true(x->post_ns > 0 && x->n_desc >= x->n_op);
        assert_true(x->n_overlap > 0 && x->n_overlap <= x->n_op && x->overlap_ns > 0);
        assert_true(x->overlap_bytes > 0 && x->overlap_bytes <= x->bytes);
    }
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

static void test_stats(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    int64_t now = 0;
    gy_msg m;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
    sc.g.w[0].clock = sc.g.w[1].clock = &now;
    plain_call(0, 20);
    rig_run(&sc.g);
    rig_idle(&sc.g);
    for (int i = 0; i < 2; i++)
        while (rig_said(&sc.g, i, &m)) assert_int_equal(m.kind, GY_MSG_STATS);
    assert_int_equal(sc.g.w[0].stats.xfer_bytes, sc.g.call[0].sent.bytes);
    assert_int_equal(sc.g.w[0].stats.xfer_ops, sc.g.call[0].sent.n_op);
    assert_int_equal(sc.g.w[0].stats.n_prompt_tok, 20);
    assert_int_equal(sc.g.w[1].stats.n_output_tok, 4);
    assert_int_equal(sc.g.w[1].stats.kv_free, sc.g.w[1].stats.kv_total);
    int before = sc.g.w[1].n_said[GY_MSG_STATS];
    for (int i = 0; i < 50; i++) rig_turn(&sc.g); /* nothing happens: nothing is said */
    assert_false(rig_said(&sc.g, 1, &m));
    sc.g.call[0].r.max_tokens = 60; /* long enough for a second of turns */
    sc.g.call[0].n_try = sc.g.call[0].is_done = 0;
    sc.got[0] = (gold_result){0};
    for (int i = 0; i < 60; i++, now += 20000000) rig_step(&sc.g);
    int n = sc.g.w[1].n_said[GY_MSG_STATS] - before;
    assert_true(n >= 8 && n <= 20);
    rig_run(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* Between its beginning and its end a call takes no memory. */
static void test_no_memory_in_turns(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .limits = SMALL};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
    for (int round = 0; round < 2; round++) {
        sc.g.n_call = 0;
        plain_call(0, 48);
        sc.g.call[0].r.max_tokens = 30;
        while (!sc.g.call[0].p_held) rig_step(&sc.g);
        rig_turn(&sc.g);
        while (!sc.g.call[0].was_active) { /* D copies the request in its part of this: P alone is watched */
            if (round) gy_mem_guard_begin();
            rig_turn_worker(&sc.g, 0);
            if (round) gy_mem_guard_end();
            rig_step(&sc.g);
        }
        if (round) gy_mem_guard_begin();
        for (int i = 0; i < 20; i++) rig_step(&sc.g);
        if (round) gy_mem_guard_end();
        rig_run(&sc.g);
    }
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* ---- giving up, dying -------------------------------------------------------------------------------------------- */

static void give_up_some(uint64_t seed) {
    for (int i = 0; i < sc.g.n_call; i++) {
        rig_call *c = &sc.g.call[i];
        if (rig_draw(&sc.g, 2)) continue;
        c->give_up = (rig_when)(1 + (i + (int)seed) % RIG_ACTIVE);
        c->give_up_after = (int)rig_draw(&sc.g, 6);
    }
}

static void test_give_up(void **state) {
    const rig_setup s[] = {{.kind = GY_XFER_MOCK, TWO, .mock = BAD_NET, .limits = SMALL},
                           {.kind = GY_XFER_LOOPBACK, HYBRID, .limits = SMALL},
                           {.kind = GY_XFER_MOCK, FOUR, .mock = BAD_NET, .max_handoff = 2}};
    int n_up = 0;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    for (uint64_t seed = 0; seed < 4 * N_SEED; seed++) {
        rig_open(&sc.g, &s[seed % 3], &sc.s, sc.env.m, seed);
        sc.g.unsteady = 1;
        add_calls();
        give_up_some(seed);
        rig_run(&sc.g);
        expect_same("others give up");
        for (int i = 0; i < sc.g.n_call; i++) n_up += sc.g.call[i].is_given_up;
        rig_idle(&sc.g);
        rig_close(&sc.g);
    }
    assert_true(n_up > N_SEED * 8);
    gold_close(&sc.env);
}

/* A worker dies in the middle and another takes its place: all calls say what they say alone. */
static void die_once(const rig_setup *s, int victim, uint64_t seed, int turns) {
    rig_open(&sc.g, s, &sc.s, sc.env.m, seed);
    sc.g.unsteady = 1;
    add_calls();
    for (int i = 0; i < turns; i++) rig_step(&sc.g);
    rig_kill(&sc.g, victim);
    for (uint32_t i = rig_draw(&sc.g, 20); i; i--) rig_step(&sc.g);
    rig_replace(&sc.g, victim);
    rig_run(&sc.g);
    expect_same("a worker dies");
    rig_idle(&sc.g);
}

static void test_death(void **state) {
    const rig_setup s[] = {{.kind = GY_XFER_MOCK, TWO, .mock = BAD_NET, .limits = SMALL},
                           {.kind = GY_XFER_LOOPBACK, FOUR, .limits = SMALL},
                           {.kind = GY_XFER_MOCK, FOUR, .mock = BAD_NET, .limits = SMALL}};
    int n_retry = 0;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    for (uint64_t seed = 0; seed < 4 * N_SEED; seed++) {
        die_once(&s[seed % 3], (int)(seed % 2), seed, 2 + (int)(seed * 7 % 60));
        n_retry += sc.g.n_retry;
        rig_close(&sc.g);
    }
    assert_true(n_retry > N_SEED);
    gold_close(&sc.env);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static gy_msg one(gy_msg_kind kind, uint64_t tid) {
    gy_msg m = {.kind = kind, .tid = {1, tid}};
    gy_request_default(&m.request.r, &sc.env.m->d);
    m.request.r.prompt = sc.w.ids[0];
    m.request.r.n_prompt = 20;
    m.request.grammar_kind = -1;
    return m;
}

static void expect_reply(int i, gy_msg_kind kind, gy_status st, const char *text) {
    gy_msg m;
    do {
        if (!rig_said(&sc.g, i, &m)) fail_msg("worker %d said nothing, expected %s", i, gy_msg_name(kind));
    } while (m.kind == GY_MSG_STATS || m.kind == GY_MSG_CONNECTED);
    if (m.kind != kind)
        fail_msg("found %s (%s), expected %s", gy_msg_name(m.kind), m.text ? m.text : "", gy_msg_name(kind));
    if (kind != GY_MSG_REJECTED) return;
    assert_int_equal(m.status, st);
    assert_string_equal(m.text, text);
}

static void expect_rejected(int i, const gy_msg *m, gy_status st, const char *text) {
    rig_tell(&sc.g, i, m);
    expect_reply(i, GY_MSG_REJECTED, st, text);
}

static void settle_down(void) {
    for (int i = 0; i < 10; i++) rig_turn(&sc.g);
}

static void test_rejected(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    gy_err err;
    int32_t ids[2] = {0, 100000};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    settle_down();
    gy_msg m = one(GY_MSG_PREFILL, 1);
    m.peer = 0xabc;
    expect_rejected(0, &m, GY_E_PEER, "prefill: no connection to worker 0000000000000abc");
    m.peer = sc.g.w[1].epoch;
    m.tables.n_have = 8;
    expect_rejected(0, &m, GY_E_ARG, "prefill: D has 8 tokens of 20, expected whole blocks of 16");
    m.tables.n_have = 0;
    m.tables.hidden_slot = 8;
    expect_rejected(0, &m, GY_E_ARG, "prefill: found hidden slot 8, expected one of D's 8");
    m.tables.hidden_slot = 0;
    expect_rejected(0, &m, GY_E_ARG, "prefill: found 0 blocks for plane 0 of 4, expected 2");
    gy_msg_table t[4];
    for (int i = 0; i < 4; i++) t[i] = (gy_msg_table){.plane = i, .n = 2, .ids = ids};
    m.tables.n_table = 4;
    m.tables.table = t;
    rig_tell(&sc.g, 0, &m); /* only found out when it is sent */
    for (int i = 0; i < 30; i++) rig_turn(&sc.g);
    char text[200];
    snprintf(text, sizeof text,
             "transfer to worker %016llx: destination block table[1]: found block 100000, expected 0 to %d",
             (unsigned long long)sc.g.w[1].epoch, sc.g.w[1].info.n_block[0] - 1);
    expect_reply(0, GY_MSG_REJECTED, GY_E_ARG, text);
    m = one(GY_MSG_RESERVE, 2);
    expect_rejected(0, &m, GY_E_UNSUPPORTED, "reserve: this worker has another role");
    m.request.r.n_prompt = 0;
    expect_rejected(1, &m, GY_E_ARG, "prompt: found no tokens, expected at least one");
    m = one(GY_MSG_LOCAL, 2);
    m.request.grammar_kind = GY_GRAMMAR_REGEX;
    m.request.grammar = "a+";
    m.request.n_grammar = 2;
    expect_rejected(1, &m, GY_E_UNSUPPORTED, "grammar: this worker has no vocabulary to check it against");
    m = one(GY_MSG_RESERVE, 3);
    rig_tell(&sc.g, 1, &m);
    assert_int_equal(gy_worker_message(sc.g.w[1].w, &m, &err), GY_E_FORMAT);
    assert_string_equal(err.msg, "message reserve: transfer 00000000000000010000000000000003 is here already");
    assert_int_equal(gy_worker_message(sc.g.w[1].w, &(gy_msg){.kind = GY_MSG_ACTIVE}, &err), GY_E_FORMAT);
    assert_string_equal(err.msg, "message active: a worker does not get it");
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = {1, 99}}); /* nobody: ignored */
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = {1, 3}});
    expect_reply(1, GY_MSG_RELEASED, GY_OK, NULL);
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_STOP});
    assert_true(gy_worker_is_stopping(sc.g.w[1].w));
    expect_rejected(1, &m, GY_E_CANCELLED, "reserve: this worker is ending");
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* Reservations wait for a place in order of arrival; pages of a cancelled one stay until no writer can exist. */
static void test_places(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .max_handoff = 2};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    for (uint64_t k = 1; k <= 3; k++) {
        gy_msg m = one(GY_MSG_RESERVE, k);
        rig_tell(&sc.g, 1, &m);
    }
    settle_down();
    expect_reply(1, GY_MSG_RESERVED, GY_OK, NULL);
    expect_reply(1, GY_MSG_RESERVED, GY_OK, NULL);
    gy_msg m;
    while (rig_said(&sc.g, 1, &m)) assert_int_equal(m.kind, GY_MSG_STATS);
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = {1, 1}}); /* its pages stay */
    settle_down();
    while (rig_said(&sc.g, 1, &m)) assert_int_equal(m.kind, GY_MSG_STATS);
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL_SAFE, .tid = {1, 1}});
    settle_down();
    expect_reply(1, GY_MSG_RELEASED, GY_OK, NULL);
    expect_reply(1, GY_MSG_RESERVED, GY_OK, NULL); /* the third moves up */
    for (uint64_t k = 2; k <= 3; k++) rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL_SAFE, .tid = {1, k}});
    settle_down();
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* ---- what D hears ------------------------------------------------------------------------------------------------ */

typedef struct stranger { /* writes notes by hand */
    gy_xfer *x;
    gy_xfer_peer *p;
    int n_done;
} stranger;

static void stranger_done(void *user, gy_xfer_op *op, gy_status st) {
    stranger *s = user;
    (void)op;
    assert_int_equal(st, GY_OK);
    s->n_done++;
}

static void stranger_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    (void)user, (void)epoch, (void)bytes, (void)len;
    fail_msg("a note to the one who writes them");
}

static void open_stranger(stranger *s, uint64_t epoch) {
    gy_err err;
    gy_xfer_opts o = {
        .kind = GY_XFER_LOOPBACK, .epoch = epoch, .user = s, .on_done = stranger_done, .on_note = stranger_note};
    *s = (stranger){0};
    gy_xfer_limits_default(&o.limits);
    if (gy_xfer_open(&o, &err, &s->x) < 0) fail_msg("%s", err.msg);
    if (gy_xfer_import(s->x, sc.g.w[1].blob, (size_t)sc.g.w[1].n_blob, &err, &s->p) < 0) fail_msg("%s", err.msg);
}

static void note(stranger *s, const void *bytes, size_t len) {
    gy_xfer_op op = {.note = bytes, .n_note = len};
    int want = s->n_done + 1;
    gy_err err;
    assert_int_equal(gy_xfer_post(s->p, &op, &err), GY_OK);
    while (s->n_done < want) gy_xfer_poll(s->x);
}

static void expect_silence(void) {
    gy_msg m;
    settle_down();
    while (rig_said(&sc.g, 1, &m))
        if (m.kind != GY_MSG_STATS && m.kind != GY_MSG_CONNECTED) fail_msg("D said %s", gy_msg_name(m.kind));
}

/* Whatever does not belong to a transfer, or does not fit it, is not heard; the set must be whole. */
static void test_notes(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    stranger p, other;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    gy_msg m = one(GY_MSG_RESERVE, 5);
    m.peer = 0x99;
    rig_tell(&sc.g, 1, &m);
    settle_down();
    expect_reply(1, GY_MSG_RESERVED, GY_OK, NULL);
    open_stranger(&p, 0x99);
    open_stranger(&other, 0x98);
    const gy_pd_note good = {.magic = GY_PD_NOTE_MAGIC, .seq = 2, .total = 3, .loops = 4, .tid = {1, 5}};
    gy_pd_note n = good;
    note(&other, &good, sizeof good);
    note(&p, &good, sizeof good - 1);
    n.magic++;
    note(&p, &n, sizeof n);
    n = good;
    n.tid.lo = 6;
    note(&p, &n, sizeof n);
    n = good;
    n.seq = GY_PD_MAX_OPS;
    note(&p, &n, sizeof n);
    n = good;
    n.total = GY_PD_MAX_OPS + 1;
    note(&p, &n, sizeof n);
    for (int i = 0; i < 3; i++) note(&p, &good, sizeof good); /* the last one, three times */
    n = good;
    n.seq = 0;
    n.total = 1; /* another total */
    note(&p, &n, sizeof n);
    n.total = 0;
    note(&p, &n, sizeof n);
    expect_silence();
    n.seq = 1;
    note(&p, &n, sizeof n);
    settle_down();
    expect_reply(1, GY_MSG_ACTIVE, GY_OK, NULL);
    for (int i = 0; i < 5; i++) note(&p, &good, sizeof good); /* late */
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = {1, 5}});
    settle_down();
    rig_idle(&sc.g);
    gy_xfer_close(p.x);
    gy_xfer_close(other.x);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* A hidden slot that says nonsense ends its request and nothing else. */
static void test_bad_slot(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    stranger p;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    gy_msg m = one(GY_MSG_RESERVE, 5);
    m.peer = 0x99;
    rig_tell(&sc.g, 1, &m);
    settle_down();
    expect_reply(1, GY_MSG_RESERVED, GY_OK, NULL);
    open_stranger(&p, 0x99);
    const gy_pd_note bad = {.magic = GY_PD_NOTE_MAGIC, .total = 1, .loops = 9, .tid = {1, 5}};
    note(&p, &bad, sizeof bad);
    settle_down();
    expect_reply(1, GY_MSG_REJECTED, GY_E_ARG, "import 0: found 9 loops and 0 gates, expected at most 4");
    rig_idle(&sc.g);
    gy_xfer_close(p.x);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* D is gone while its ops are under way: P says so, and keeps nothing. */
static void test_peer_gone(void **state) {
    const rig_setup s = {.kind = GY_XFER_MOCK, TWO, .mock = {.latency_ns = 1000}, .limits = SMALL};
    char text[100];
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    plain_call(0, 40);
    while (!sc.g.call[0].p_held) rig_step(&sc.g);
    for (int i = 0; i < 40; i++) rig_turn_worker(&sc.g, 0); /* the net stands still */
    sc.g.w[1].is_dead = 1;
    rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = sc.g.w[1].epoch});
    for (int i = 0; i < 10; i++) rig_turn_worker(&sc.g, 0);
    snprintf(text, sizeof text, "transfer to worker %016llx: it is gone", (unsigned long long)sc.g.w[1].epoch);
    expect_reply(0, GY_MSG_REJECTED, GY_E_PEER, text);
    rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = sc.g.call[0].tid}); /* late */
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* D is gone before P has begun: nothing is computed for it, nothing is sent. */
static void test_gone_meanwhile(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    const int32_t ids[2] = {0, 1};
    gy_msg_table t[4];
    char text[100];
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    settle_down();
    gy_msg m = one(GY_MSG_PREFILL, 1);
    for (int i = 0; i < 4; i++) t[i] = (gy_msg_table){.plane = i, .n = 2, .ids = ids};
    m.peer = sc.g.w[1].epoch;
    m.tables.n_table = 4;
    m.tables.table = t;
    rig_tell(&sc.g, 0, &m);
    rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = m.peer});
    settle_down();
    snprintf(text, sizeof text, "prefill: worker %016llx is gone", (unsigned long long)m.peer);
    expect_reply(0, GY_MSG_REJECTED, GY_E_PEER, text);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

static int is_held;      /* somebody's memory: it is being let go of */
static gy_status refuse; /* GY_OK: nobody */

static gy_status import_later(gy_xfer_peer *p, const void *blob, size_t len, gy_err *err) {
    if (is_held) return GY_AGAIN;
    if (refuse) return gy_err_set(err, refuse, "it is not to be");
    return gy_xfer_loopback.import_blob(p, blob, len, err);
}

static void slow_down(gy_worker *p) {
    static gy_xfer_ops ops;
    ops = gy_xfer_loopback;
    ops.import_blob = import_later;
    p->x->ops = &ops;
    is_held = 1;
    refuse = GY_OK;
}

static void ask_to_meet(uint64_t epoch) {
    rig_tell(&sc.g, 0,
             &(gy_msg){.kind = GY_MSG_CONNECT, .peer = epoch, .blob = sc.g.w[2].blob, .n_blob = sc.g.w[2].n_blob});
    for (int i = 0; i < 10; i++) rig_turn_worker(&sc.g, 0);
}

/* Who cannot be met yet holds nobody up; it is met as soon as it can be, unless it is gone by then. */
static void test_met_later(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, .n_worker = 3, .role = {GY_PD_PREFILL, GY_PD_DECODE, GY_PD_DECODE}};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    rig_kill(&sc.g, 2);
    settle_down();
    gy_worker *p = sc.g.w[0].w;
    slow_down(p);
    ask_to_meet(0x98);
    ask_to_meet(0x99);
    plain_call(0, 33);
    rig_run(&sc.g);
    assert_int_equal(sc.g.n_cross, 1);
    assert_int_equal(p->n_asked, 2);
    rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = 0x98});
    settle_down();
    assert_int_equal(p->n_asked, 1);
    assert_int_equal(p->n_peer, 2);
    is_held = 0;
    settle_down();
    assert_int_equal(p->n_asked, 0);
    assert_int_equal(p->peers->epoch, 0x99);
    assert_int_equal(p->peers->state, GY_PEER_UP);
    rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = 0x99});
    settle_down();
    assert_int_equal(p->n_peer, 1);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* Whoever was lost while it was being met may be mapped in the next one's place: the worker begins anew. Not so behind
 * nobody, nor for a slow lane. */
static void test_lost_while_met(void **state) {
    static const struct {
        int is_lost;
        gy_status st;
        int begins_anew;
    } cases[] = {{1, GY_E_PEER, 1}, {0, GY_E_PEER, 0}, {1, GY_E_UNSUPPORTED, 0}};
    const rig_setup s = {.kind = GY_XFER_LOOPBACK,
                         .n_worker = 3,
                         .role = {GY_PD_PREFILL, GY_PD_DECODE, GY_PD_DECODE},
                         .on_device = 1,
                         .may_fail = 1};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
        gy_worker *p = sc.g.w[0].w;
        slow_down(p);
        ask_to_meet(0x98);
        if (cases[i].is_lost) rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = 0x98});
        settle_down();
        is_held = 0;
        refuse = cases[i].st;
        ask_to_meet(0x99);
        settle_down();
        assert_int_equal(p->n_asked, 0);
        assert_int_equal(sc.g.w[0].has_failed, cases[i].begins_anew);
        rig_close(&sc.g);
    }
    gold_close(&sc.env);
}

/* Ops are counted in a set of fixed size. */
static void test_too_many_ops(void **state) {
    const rig_setup s = {
        .kind = GY_XFER_LOOPBACK, TWO, .limits = {.chunk_bytes = 16, .inflight_bytes = 4096, .max_desc = 8}};
    gy_msg m = {0};
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    plain_call(0, 48);
    while (!sc.g.call[0].p_held) rig_step(&sc.g);
    for (int i = 0; i < 100000 && m.kind != GY_MSG_REJECTED; i++) {
        rig_turn(&sc.g);
        if (!rig_said(&sc.g, 0, &m)) m.kind = GY_MSG_STATS;
    }
    assert_int_equal(m.kind, GY_MSG_REJECTED);
    assert_int_equal(m.status, GY_E_LIMIT);
    assert_non_null(strstr(m.text, ": more transfers for one prompt than can be counted: raise the transfer's chunk"));
    rig_close(&sc.g);
    gold_close(&sc.env);
}

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

static gy_grammar_vocab *vocab; /* of the test that runs: every byte is a token */

static gy_status compile(void *user, int32_t kind, const char *text, int32_t n, gy_err *err, gy_grammar **out,
                         const gy_grammar_vocab **vocab_out) {
    (void)user;
    *vocab_out = vocab;
    return gy_grammar_compile((gy_grammar_kind)kind, text, (size_t)n, err, out);
}

static void make_vocab(const gy_model_desc *d) {
    static char bytes[256];
    gy_grammar_token *t = calloc((size_t)d->n_vocab, sizeof *t);
    gy_err err;
    for (int i = 1; i < 256; i++) {
        bytes[i] = (char)i;
        t[3 + i] = (gy_grammar_token){.s = &bytes[i], .len = 1};
    }
    if (gy_grammar_vocab_create(t, d->n_vocab, d->eos, d->n_eos, &err, &vocab) < 0) fail_msg("%s", err.msg);
    free(t);
}

static void test_grammar(void **state) {
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO, .limits = SMALL, .compile = compile};
    static const char *const regex[2] = {"[0-9]{3}-[0-9]{4}", "(yes|no)+!"};
    gy_grammar *g[2];
    gy_err err;
    (void)state;
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    make_vocab(&sc.env.m->d);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gy_grammar_compile(GY_GRAMMAR_REGEX, regex[i], strlen(regex[i]), &err, &g[i]), GY_OK);
        plain_call(i, 20 + i);
        sc.w.req[i].max_tokens = sc.g.call[i].r.max_tokens = 12;
        sc.g.call[i].regex = regex[i];
        sc.w.req[i].grammar = g[i];
        sc.w.req[i].vocab = vocab;
    }
    rig_run(&sc.g);
    gold_run(sc.env.e, sc.w.req, 2, sc.base);
    assert_int_equal(mixed_compare(&sc.s, "grammar", sc.w.req, 0, 2, sc.base, sc.got), 0);
    assert_int_equal(sc.got[0].n, 8);
    assert_int_equal(sc.got[0].tokens[3], 3 + '-');
    assert_int_equal(sc.g.n_cross, 2);
    gy_msg m = one(GY_MSG_RESERVE, 1);
    m.request.grammar_kind = GY_GRAMMAR_REGEX;
    m.request.grammar = "(";
    m.request.n_grammar = 1;
    rig_tell(&sc.g, 1, &m);
    gy_msg no;
    while (rig_said(&sc.g, 1, &no) && no.kind != GY_MSG_REJECTED) {
    }
    assert_int_equal(no.kind, GY_MSG_REJECTED);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    for (int i = 0; i < 2; i++) gy_grammar_put(g[i]);
    gold_close(&sc.env);
    gy_grammar_vocab_destroy(vocab);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void no_send(void *user, const gy_msg *m) {
    (void)user, (void)m;
}

/* Whichever allocation fails, nothing stays open. */
static void test_open_fails(void **state) {
    gy_err err;
    gy_worker *w = NULL;
    int n = 0;
    (void)state;
    open_scene("huginn-tiny", GY_F32, GY_KV_LAST_EXITED);
    gy_worker_opts o = {.model = sc.env.m, .role = GY_PD_DECODE, .send = no_send};
    gy_engine_opts_default(&o.engine);
    o.engine.max_len = 64;
    o.engine.sched.max_seqs = 2;
    o.engine.sched.max_rows = 8;
    gy_xfer_limits_default(&o.xfer.limits);
    assert_int_equal(gy_worker_open(&o, &err, &w), GY_E_ARG);
    assert_string_equal(err.msg, "max_handoff: found 0, expected 1 or more");
    o.engine.max_handoff = 2;
    for (gy_status st = GY_E_NOMEM; st < 0; n++) {
        gy_mem_fail_after(n + 1);
        st = gy_worker_open(&o, &err, &w);
        if (st < 0) assert_int_equal(st, GY_E_NOMEM);
        assert_true(n < 500);
    }
    gy_mem_fail_after(0);
    assert_true(n > 20);
    gy_worker_close(w);
    gold_close(&sc.env);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void run_threads(gy_xfer_kind kind) {
    rig_setup s = {.kind = kind, TWO, .limits = SMALL};
    gold_env own[2];
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    for (int i = 0; i < 2; i++) {
        gold_open(&sc.s, &own[i]);
        s.each[i] = own[i].m;
    }
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 4);
    rig_start_threads(&sc.g);
    for (int round = 0; round < 3; round++) {
        sc.g.n_call = 0;
        add_calls();
        if (round == 1) give_up_some(1);
        rig_run(&sc.g);
        expect_same("threads");
    }
    rig_stop_threads(&sc.g);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    for (int i = 0; i < 2; i++) gold_close(&own[i]);
    gold_close(&sc.env);
}

static void test_threads(void **state) {
    (void)state;
    run_threads(GY_XFER_LOOPBACK);
    if (HAS_UCX) run_threads(GY_XFER_UCX);
}

/* An argument: the tests whose names match it. */
int main(int argc, char **argv) {
    cmocka_set_test_filter(argc > 1 ? argv[1] : filter);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loopback),       cmocka_unit_test(test_ucx),
        cmocka_unit_test(test_caches),         cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_device),         cmocka_unit_test(test_mock),
        cmocka_unit_test(test_many_workers),   cmocka_unit_test(test_conformance_vector),
        cmocka_unit_test(test_pages),          cmocka_unit_test(test_hidden_row_only),
        cmocka_unit_test(test_least_transfer), cmocka_unit_test(test_timings),
        cmocka_unit_test(test_stats),          cmocka_unit_test(test_no_memory_in_turns),
        cmocka_unit_test(test_give_up),        cmocka_unit_test(test_death),
        cmocka_unit_test(test_rejected),       cmocka_unit_test(test_places),
        cmocka_unit_test(test_notes),          cmocka_unit_test(test_bad_slot),
        cmocka_unit_test(test_peer_gone),      cmocka_unit_test(test_met_later),
        cmocka_unit_test(test_lost_while_met), cmocka_unit_test(test_gone_meanwhile),
        cmocka_unit_test(test_too_many_ops),   cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_open_fails),     cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
