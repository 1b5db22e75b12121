/* Workers: what they make of a request that crosses is what one engine makes of it, on every transport, whatever the
 * network does, and whoever gives up or dies.
 */
#include "base_test.h"

#include "support/rig.h"
#include "support/tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef GY_SANITIZED
enum { MAX_CALL = 10, N_SEED = 3 };
#else
enum { MAX_CALL = MIXED_N, N_SEED = 12 };
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

static void test_loopback(void **state) {
    (void)state;
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, TWO};
    open_scene("ouro-tiny", GY_F32, GY_KV_LAST_EXITED);
    run_once(&s, "loopback", 1);
    gold_close(&sc.env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
