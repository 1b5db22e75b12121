/* What a device must stand beside computing right: requests that come, are cancelled, parked, dropped and found in the
 * cache, in a pool that is too small for them, for as long as one likes, each output equal to that of its first run
 * alone, and not a byte of the device's memory gone at the end; NaN in one request's logits. On the CPU, or with
 * GY_TEST_BACKEND=cuda on the GPU.
 *
 *   test_device [--soak SECONDS] [--alone]     default 2
 *
 * alone: nothing else is on the GPU meanwhile. Then its memory is counted, and for a moment taken as a whole.
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

#include "base/clock.h"
#include "base/mem.h"
#include "support/gold.h"
#include "support/tiny.h"

#ifdef GY_SANITIZED
enum { N = 12 };
#else
enum { N = 48 };
#endif
enum { LIVE = 12, MAX_PROMPT = 260, MAX_LEN = 320, STEM = 160 };

static double soak_s = 2;
static int is_alone;

static const tiny_spec specs[] = {{.family = "ouro",
                                   .n_vocab = 320,
                                   .n_embd = 256,
                                   .n_ff = 512,
                                   .n_head = 2,
                                   .n_head_kv = 2,
                                   .head_dim = 128,
                                   .n_layer = {0, 2, 0},
                                   .n_loop = 3,
                                   .max_pos = 512,
                                   .eps = 1e-6,
                                   .theta = 1e6,
                                   .dtype = GY_BF16,
                                   .seed = 21},
                                  {.family = "huginn",
                                   .n_vocab = 272,
                                   .n_embd = 192,
                                   .n_ff = 256,
                                   .n_head = 2,
                                   .n_head_kv = 2,
                                   .head_dim = 96,
                                   .n_layer = {1, 2, 1},
                                   .n_loop = 4,
                                   .max_pos = 512,
                                   .eps = 1e-6,
                                   .theta = 5e4,
                                   .dtype = GY_BF16,
                                   .seed = 23}};
enum { N_SPEC = sizeof specs / sizeof *specs };

static uint32_t rng = 12345;
static int draw(int n) {
    rng = rng * 1664525u + 1013904223u;
    return (int)((uint64_t)(rng >> 8) * (uint64_t)n >> 24);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static int32_t ids[N][MAX_PROMPT];
static gy_request req[N];
static gold_result base[N];

/* Every second one begins as others do. */
static void make_prompt(int i, int32_t n_vocab) {
    int shared = i % 2 ? STEM : 0, stem = i % 3;
    int32_t n = i % 2 ? STEM + 1 + draw(90) : 1 + draw(MAX_PROMPT - 1);
    for (int k = 0; k < n; k++) ids[i][k] = k < shared ? (k * 37 + stem * 11 + 5) % n_vocab : draw(n_vocab);
    req[i].prompt = ids[i];
    req[i].n_prompt = n;
}

static void make_requests(const gy_model_desc *d) {
    for (int i = 0; i < N; i++) {
        gy_request_default(&req[i], d);
        make_prompt(i, d->n_vocab);
        req[i].max_tokens = 1 + draw(40);
        req[i].ignore_eos = 1;
        req[i].latent_noise = d->inject && i % 4 == 1;
        req[i].latent_seed = 7;
        if (i % 3 == 1) req[i].sample.temperature = 0.9f, req[i].sample.seed = (uint64_t)i, req[i].sample.top_k = 40;
        if (i % 5 == 2) req[i].exit = (gy_exit_rule){GY_EXIT_FIXED, 1.0, 1, d->n_loop - 1, 0};
        if (d->has_gate && i % 5 == 3) req[i].exit = (gy_exit_rule){GY_EXIT_GATE, 0.5, 1, d->n_loop, 0};
        if (i % 5 == 4) req[i].exit = (gy_exit_rule){GY_EXIT_KL, 0.05, 1, d->n_loop, 0};
    }
}

/* ---- churn ------------------------------------------------------------------------------------------------------ */

typedef struct place {
    int i, is_live, is_cancelled; /* i: of req */
    gold_result res;
} place;

typedef struct tally {
    int64_t n, n_cancelled, n_tok, n_step;
    int bad;
} tally;

static void check_one(const place *p, tally *t) {
    char what[256];
    const gold_result *b = &base[p->i], *r = &p->res;
    t->n++;
    t->n_tok += r->n;
    if (r->reason == GY_FINISH_CANCELLED) {
        t->n_cancelled++;
        if (r->n <= b->n && !memcmp(r->tokens, b->tokens, (size_t)r->n * sizeof *r->tokens)) return;
        snprintf(what, sizeof what, "what came before it was cancelled");
    } else if (!gold_diff(b, r, what, sizeof what)) {
        return;
    }
    if (t->bad++ < 10) print_error("    request %d: %s %s\n", p->i, what, r->error);
}

/* As many as there are places for; callbacks write into the places. */
static void fill(gy_engine *e, place *p, int may_submit) {
    for (int k = 0; k < LIVE && may_submit; k++) {
        if (p[k].is_live) continue;
        gy_request r;
        p[k] = (place){.i = draw(N), .is_live = 1};
        r = req[p[k].i];
        if (!gold_submit(e, &r, &p[k].res)) p[k].is_live = 0;
    }
}

static void disturb(gy_engine *e, place *p) {
    static const gy_preempt ways[] = {GY_PREEMPT_AUTO, GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE};
    int k = draw(LIVE);
    if (!p[k].is_live) return;
    if (draw(40) == 0) gy_engine_cancel(e, p[k].res.id);
    if (draw(60) == 0) gy_engine_preempt(e, p[k].res.id, 0, ways[draw(3)]);
}

/* On a slow machine the time may be over before all has happened. */
static int has_seen_all(const gy_engine *e) {
    gy_engine_stats st;
    gy_engine_get_stats(e, &st);
    return st.sched.n_park > 0 && st.sched.n_drop > 0 && st.prefix.n_hit > 0 && st.prefix.n_evict > 0;
}

static void churn(gy_engine *e, double seconds, tally *t) {
    static place p[LIVE];
    gy_err err = {0};
    gy_status st = GY_OK;
    int64_t end = gy_clock_ns() + (int64_t)(seconds * 1e9);
    memset(p, 0, sizeof p);
    for (int more = 1; st != GY_DONE || more;) {
        more = gy_clock_ns() < end || !has_seen_all(e);
        fill(e, p, more);
        disturb(e, p);
        st = gy_engine_step(e, &err);
        if (st < 0) fail_msg("%s", err.msg);
        t->n_step++;
        for (int k = 0; k < LIVE; k++) {
            if (!p[k].is_live || !p[k].res.n_finish) continue;
            check_one(&p[k], t);
            p[k].is_live = 0;
        }
    }
    gold_idle(e);
}

/* Room for four of the longest, so that the twelve are parked and dropped all the time. */
static void small_pool(gy_engine_opts *o, const void *arg) {
    const gy_model_desc *d = arg;
    o->prefix_cache = 1;
    o->kv_blocks = 4 * d->n_loop * MAX_LEN / GY_BLOCK_SLOTS;
    o->park_bytes = (size_t)4 << 20;
    o->sched.prefill_chunk = 64;
}

static void take_base(gold_env *env, gold_setup *s) {
    s->patch = NULL;
    gold_engine(s, env);
    for (int i = 0; i < N; i++) gold_run(env->e, &req[i], 1, &base[i]);
}

static size_t free_now(const gold_env *env) {
    gy_err err = {0};
    assert_int_equal(env->be->ops->sync(env->be, &err), GY_OK);
    return env->be->ops->mem_available(env->be);
}

static int64_t live_bytes(void) {
    gy_mem_stats st;
    int64_t sum = 0;
    gy_mem_get_stats(&st);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += st.live_bytes[i];
    return sum;
}

/* A backend may remember batches (recorded graphs), a bounded number of them. What leaks goes on: a soak of a minute
 * has a hundred thousand steps. */
enum { SETTLING = 32 << 20 };

/* Warm means: everything that is taken when it is first needed has been needed. */
static void soak_one(const tiny_spec *spec) {
    static tiny t;
    gold_env env;
    tally warm = {0}, all = {0};
    gy_engine_stats st;
    tiny_make(spec, &t);
    gold_setup s = {
        .model = t.dir, .backend = "cpu", .act = GY_BF16, .max_rows = 256, .max_seqs = 8, .max_len = MAX_LEN};
    gold_open(&s, &env);
    make_requests(&env.m->d);
    take_base(&env, &s);
    s.patch = small_pool;
    s.patch_arg = &env.m->d;
    gold_engine(&s, &env);
    churn(env.e, soak_s * 0.1, &warm);
    size_t before = free_now(&env);
    int64_t live = live_bytes();
    churn(env.e, soak_s * 0.9 / N_SPEC, &all);
    gy_engine_get_stats(env.e, &st);
    print_message(
        "    %s: %lld requests (%lld cancelled), %lld tokens, %lld steps; parked %lld, dropped %lld, from the "
        "cache %lld, evicted %lld; free before %zu, after %zu\n",
        spec->family, (long long)all.n, (long long)all.n_cancelled, (long long)all.n_tok, (long long)all.n_step,
        (long long)st.sched.n_park, (long long)st.sched.n_drop, (long long)st.prefix.n_hit,
        (long long)st.prefix.n_evict, before, free_now(&env));
    assert_int_equal(warm.bad + all.bad, 0);
    assert_int_equal(live_bytes(), live);
    if (is_alone) assert_true(free_now(&env) + SETTLING >= before);
    gold_close(&env);
    tiny_free(&t);
}

static void soak(void **state) {
    (void)state;
    for (int i = 0; i < N_SPEC; i++) soak_one(&specs[i]);
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

/* Nothing is left but what the backend keeps for itself, and the engine has not run a step yet. */
static void needs_no_more(gold_env *env, const gold_setup *s) {
    gold_engine(s, env);
    size_t n = env->be->ops->mem_available(env->be);
    void *all = env->be->ops->alloc(env->be, n);
    gy_err err = {0};
    if (!all) fail_msg("%zu bytes were said to be available", n);
    gold_run(env->e, req, N, base);
    for (int i = 0; i < N; i++) assert_int_equal(base[i].reason, GY_FINISH_LENGTH);
    assert_int_equal(env->be->ops->sync(env->be, &err), GY_OK);
    env->be->ops->free(env->be, all, n);
    print_message("    %d requests beside %zu bytes that somebody else holds\n", N, n);
}

/* Engines on one backend, and backends: what they took comes back. */
static void all_is_given_back(void **state) {
    (void)state;
    static tiny t;
    gold_env keep, env;
    size_t engines[4], backends[4];
    if (!is_alone) skip();
    tiny_make(&specs[0], &t);
    gold_setup s = {.model = t.dir, .backend = "cpu", .act = GY_BF16, .max_rows = 128, .max_len = MAX_LEN};
    gold_open(&s, &keep);
    make_requests(&keep.m->d);
    needs_no_more(&keep, &s);
    for (int k = 0; k < 4; k++) {
        gold_engine(&s, &keep);
        gold_run(keep.e, req, 6, base);
        gy_engine_close(keep.e);
        keep.e = NULL;
        engines[k] = free_now(&keep);
    }
    for (int k = 0; k < 4; k++) {
        gold_open(&s, &env);
        gold_engine(&s, &env);
        gold_run(env.e, req, 6, base);
        gold_close(&env);
        backends[k] = free_now(&keep);
    }
    for (int k = 0; k < 4; k++) print_message("    free: %zu, %zu\n", engines[k], backends[k]);
    assert_true(engines[3] == engines[1] && engines[2] == engines[1]);
    assert_true(backends[3] == backends[1] && backends[2] == backends[1]);
    gold_close(&keep);
    tiny_free(&t);
}

/* ---- values that are none --------------------------------------------------------------------------------------- */

enum { BAD_TOKEN = 17, N_NAN = 6 };

/* Requests 1 and 4 hold the bad token, 4 in the middle of a long prompt. */
static void make_nan_requests(const gy_model_desc *d) {
    for (int i = 0; i < N_NAN; i++) {
        gy_request_default(&req[i], d);
        for (int k = 0; k < 100; k++) ids[i][k] = 20 + (i * 53 + k * 19) % 200;
        if (i == 1) ids[i][4] = BAD_TOKEN;
        if (i == 4) ids[i][70] = BAD_TOKEN;
        req[i].prompt = ids[i];
        req[i].n_prompt = i == 1 ? 5 : 40 + 10 * i;
        req[i].max_tokens = 12;
        req[i].ignore_eos = 1;
    }
}

static void bad_value(double v, const char *word) {
    static tiny t;
    gold_env env;
    static gold_result res[N_NAN];
    tiny_make(&specs[0], &t);
    gold_setup s = {.model = t.dir, .backend = "cpu", .act = GY_BF16, .max_rows = 512, .max_len = MAX_LEN};
    gold_open(&s, &env);
    make_nan_requests(&env.m->d);
    gold_engine(&s, &env);
    gold_run(env.e, req, N_NAN, base);
    gold_close(&env);
    tiny_tensor *e = tiny_find(&t, "model.embed_tokens.weight");
    for (int32_t k = 0; k < specs[0].n_embd; k++) e->v[BAD_TOKEN * specs[0].n_embd + k] = v;
    tiny_rewrite(&t);
    gold_open(&s, &env);
    gold_engine(&s, &env);
    gold_run(env.e, req, N_NAN, res);
    for (int i = 0; i < N_NAN; i++) {
        if (i == 1 || i == 4) {
            if (i == 1) print_message("    %s\n", res[i].error);
            assert_int_equal(res[i].reason, GY_FINISH_ERROR);
            assert_non_null(strstr(res[i].error, word));
            assert_int_equal(res[i].n, 0);
        } else if (!gold_same(&base[i], &res[i])) {
            fail_msg("request %d noticed it", i);
        }
    }
    gold_run(env.e, req, 1, res); /* and the engine goes on */
    assert_true(gold_same(&base[0], &res[0]));
    gold_close(&env);
    tiny_free(&t);
}

static void nan_ends_its_request_alone(void **state) {
    (void)state;
    bad_value(NAN, "NaN");
}

static void infinity_ends_its_request_alone(void **state) {
    (void)state;
    bad_value(INFINITY, "NaN"); /* the norm of a row that holds one is none */
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nan_ends_its_request_alone),
                                       cmocka_unit_test(infinity_ends_its_request_alone),
                                       cmocka_unit_test(all_is_given_back), cmocka_unit_test(soak)};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--soak") && i + 1 < argc) soak_s = atof(argv[++i]);
        if (!strcmp(argv[i], "--alone")) is_alone = !strcmp(gold_backend("cpu"), "cuda");
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
