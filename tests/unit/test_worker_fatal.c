/* A worker whose engine fails in the middle of its work: it says why and ends, what it held begins again elsewhere and
 * says what it says alone, and nobody else notices.
 */
#include "base_test.h"

#include "support/rig.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_THREAD__
enum { IS_TSAN = 1 }; /* what has one thread is nothing to it, and UCX does not survive it */
#else
enum { IS_TSAN = 0 };
#endif

#ifdef GY_SANITIZED
enum { N_CALL = 10, N_SEED = 10 };
#else
enum { N_CALL = MIXED_N, N_SEED = 24 };
#endif

static struct {
    gold_setup s;
    gold_env env, own; /* for the reference and all others; for the one that fails */
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
    rig g;
} sc; /* large */

/* ---- an engine that fails ---------------------------------------------------------------------------------------- */

static gy_ops broken;
static const gy_ops *good;
static int n_sync; /* that still succeed */

static gy_status failing_sync(gy_backend *be, gy_err *err) {
    if (n_sync-- > 0) return good->sync(be, err);
    return gy_err_set(err, GY_E_DEVICE, "the device has fallen off the bus");
}

static void break_after(int n) {
    good = sc.own.be->ops;
    broken = *good;
    broken.sync = failing_sync;
    n_sync = n;
    sc.own.be->ops = &broken;
}

static void mend(void) {
    sc.own.be->ops = good;
}

/* ---- who held what ----------------------------------------------------------------------------------------------- */

typedef struct held {
    int n_prompt, n_coming, n_running; /* calls that the victim computes for others, expects, decodes */
    int is_of[RIG_CALLS];
} held;

static held look(int victim) {
    held h = {0};
    for (int i = 0; i < sc.g.n_call; i++) {
        const rig_call *c = &sc.g.call[i];
        if (c->is_done || !c->n_try) continue;
        int p = c->p == victim && !c->was_active, d = c->d == victim && c->d_held;
        h.n_prompt += p && c->p_held;
        h.n_coming += d && !c->was_active;
        h.n_running += d && c->was_active;
        h.is_of[i] = p || d;
    }
    return h;
}

/* The one that fails is seen before it is buried: that is what the next step begins with. */
static int all_done(void) {
    for (int i = 0; i < sc.g.n_call; i++)
        if (!sc.g.call[i].is_done) return 0;
    return 1;
}

/* 0: everything was done before that. */
static int run_until_it_fails(int victim, held *out) {
    for (int i = 0; !sc.g.w[victim].has_failed; i++) {
        assert_true(i < 20000);
        if (all_done()) return 0;
        rig_step(&sc.g);
    }
    *out = look(victim);
    rig_step(&sc.g);
    assert_true(sc.g.w[victim].is_dead);
    assert_string_equal(sc.g.w[victim].fatal, "the device has fallen off the bus");
    return 1;
}

static void expect_answers(const held *h) {
    for (int i = 0; i < N_CALL; i++) {
        int at = mixed_first(&sc.w, i);
        assert_int_equal(mixed_compare(&sc.s, "fatal", sc.w.req, i, 1, sc.base + at, sc.got + at), 0);
        if (!h->is_of[i]) assert_int_equal(sc.g.call[i].n_try, 1);
    }
}

typedef struct sums {
    int n_fail, n_prompt, n_coming, n_running, n_retry;
} sums;

static void fail_once(const rig_setup *s, int victim, uint64_t seed, sums *sum) {
    const int most = victim ? 37 : 9; /* steps: a prompt takes few */
    rig_setup mine = *s;
    mine.may_fail = 1;
    mine.each[victim] = sc.own.m;
    rig_open(&sc.g, &mine, &sc.s, sc.env.m, seed);
    sc.g.unsteady = 1;
    for (int i = 0; i < N_CALL; i++) rig_add(&sc.g, &sc.w.req[i], sc.got + mixed_first(&sc.w, i));
    break_after(1 + (int)(seed * 11) % most);
    held h = {0};
    int failed = run_until_it_fails(victim, &h);
    mend();
    for (uint32_t i = rig_draw(&sc.g, 20); i; i--) rig_step(&sc.g);
    if (failed) rig_replace(&sc.g, victim);
    rig_run(&sc.g);
    expect_answers(&h);
    rig_idle(&sc.g);
    rig_close(&sc.g);
    sum->n_fail += failed;
    sum->n_prompt += h.n_prompt;
    sum->n_coming += h.n_coming;
    sum->n_running += h.n_running;
    sum->n_retry += sc.g.n_retry;
}

#define SMALL                                                                                                          \
    { .chunk_bytes = 4096, .inflight_bytes = 16384, .max_desc = 64 }
#define FOUR .n_worker = 4, .role = {GY_PD_PREFILL, GY_PD_DECODE, GY_PD_PREFILL, GY_PD_DECODE}
#define BAD_NET                                                                                                        \
    { .latency_ns = 1000, .jitter_ns = 5000, .p_twice = 0.2, .p_lost = 0.2 }

static const rig_setup setups[] = {{.kind = GY_XFER_LOOPBACK, FOUR, .limits = SMALL},
                                   {.kind = GY_XFER_MOCK, FOUR, .mock = BAD_NET, .limits = SMALL},
                                   {.kind = GY_XFER_UCX, FOUR, .limits = SMALL}};

static void fail_often(int victim, sums *sum) {
    for (uint64_t seed = 0; seed < N_SEED; seed++) {
        const rig_setup *s = &setups[seed % 3];
        fail_once(s, victim, seed, sum);
    }
    assert_true(sum->n_fail >= N_SEED / 3 && sum->n_retry >= sum->n_fail);
}

/* In the middle of prompts that it computes for others. */
static void p_fails(void **state) {
    sums sum = {0};
    (void)state;
    fail_often(0, &sum);
    assert_true(sum.n_prompt >= sum.n_fail / 2);
    assert_int_equal(sum.n_coming + sum.n_running, 0);
}

/* While it decodes, and while others write to it. */
static void d_fails(void **state) {
    sums sum = {0};
    (void)state;
    fail_often(1, &sum);
    assert_true(sum.n_coming >= sum.n_fail / 4 && sum.n_running >= sum.n_fail / 2);
    assert_int_equal(sum.n_prompt, 0);
}

static int open_all(void **state) {
    (void)state;
    sc.s = (gold_setup){.model = "ouro-tiny", .backend = "cpu", .act = GY_F32, .n_thread = 1};
    gold_open(&sc.s, &sc.env);
    gold_open(&sc.s, &sc.own);
    gold_engine(&sc.s, &sc.env);
    mixed_make(&sc.w, &sc.env.m->d, MIXED_MAX_PROMPT, 8);
    gold_run(sc.env.e, sc.w.req, N_CALL, sc.base);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    gold_close(&sc.own);
    gold_close(&sc.env);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(p_fails), cmocka_unit_test(d_fails)};
    if (IS_TSAN) return 0;
    return cmocka_run_group_tests(tests, open_all, close_all);
}
