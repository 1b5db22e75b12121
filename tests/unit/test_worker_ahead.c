/* P runs ahead: it computes the next prompts while the wire has not taken the first one's bytes. What it may have at
 * once is a matter of places, never of how busy the wire is.
 */
#include "base_test.h"

#include "support/rig.h"
#include "support/tiny.h"

#include <string.h>

enum { N = 6, LEN = 40, PLACES = 4 };

static const tiny_spec spec = {.family = "ouro",
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

typedef struct scene {
    tiny t;
    gold_setup s;
    gold_env env;
    gy_request req[N];
    int32_t ids[N][LEN];
    gold_result base[N], got[N];
    rig g;
} scene;

static scene sc; /* large */

static void patch(gy_engine_opts *o, int role, const void *arg) {
    (void)role;
    (void)arg;
    o->prefix_cache = 0;
}

static void open_scene(int32_t inflight) {
    rig_setup s = {.kind = GY_XFER_MOCK,
                   .n_worker = 2,
                   .role = {GY_PD_PREFILL, GY_PD_DECODE},
                   .mock = {.latency_ns = 1000, .jitter_ns = 5000},
                   .limits = {.chunk_bytes = 4096, .inflight_bytes = (size_t)inflight, .max_desc = 64},
                   .max_handoff = PLACES,
                   .patch = patch};
    memset(&sc, 0, sizeof sc);
    tiny_make(&spec, &sc.t);
    sc.s = (gold_setup){.model = sc.t.dir, .backend = "cpu", .act = GY_BF16, .n_thread = 1};
    gold_open(&sc.s, &sc.env);
    gold_engine(&sc.s, &sc.env);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, 1);
    for (int i = 0; i < N; i++) {
        gy_request *r = &sc.req[i];
        gy_request_default(r, &sc.env.m->d);
        for (int k = 0; k < LEN; k++) sc.ids[i][k] = (int32_t)(mixed_draw((uint32_t)i, (uint32_t)k) % 64);
        r->prompt = sc.ids[i];
        r->n_prompt = LEN;
        r->max_tokens = 4;
        r->ignore_eos = 1;
        rig_add(&sc.g, r, &sc.got[i]);
    }
}

static void close_scene(void) {
    rig_idle(&sc.g);
    rig_close(&sc.g);
    gold_close(&sc.env);
    tiny_free(&sc.t);
}

/* Both halves of both workers turn, and no byte arrives. */
static void turn_without_net(int n) {
    gy_mock_net *net = sc.g.net;
    sc.g.net = NULL;
    for (int i = 0; i < n; i++) rig_step(&sc.g);
    sc.g.net = net;
}

static int64_t computed(void) {
    gy_engine_stats s;
    gy_engine_get_stats(gy_worker_engine(sc.g.w[0].w), &s);
    return s.n_prompt_tok;
}

static void the_wire_does_not_stop_it(void **state) {
    static const int32_t inflight[] = {4096, 16384, 1 << 20};
    (void)state;
    for (int k = 0; k < 3; k++) {
        open_scene(inflight[k]);
        turn_without_net(400);
        assert_int_equal(computed(), PLACES * LEN); /* whole prompts, as many as there are places */
        assert_int_equal(sc.g.w[0].n_said[GY_MSG_PREFILLED], 0);
        rig_run(&sc.g);
        gold_run(sc.env.e, sc.req, N, sc.base);
        assert_int_equal(mixed_compare(&sc.s, "ahead", sc.req, 0, N, sc.base, sc.got), 0);
        assert_int_equal(computed(), N * LEN);
        close_scene();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_wire_does_not_stop_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
