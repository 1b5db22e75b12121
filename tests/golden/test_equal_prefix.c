/* Equalities, bit for bit (ARCHITECTURE.md, determinism): a request that begins with what is in the prefix cache gives
 * what it gives cold; and it is said, token by token, how much of it has to come from the cache: as many whole rows of
 * 16 as are the same, short of the last prompt token.
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

enum { MAX_PROMPT = 160, ROW = GY_KV_BLOCK_LEN };

#ifdef GY_SANITIZED
enum { ROUNDS = 6, FEWER = 2 }; /* each model and each layout, not each pair of them */
#else
enum { ROUNDS = 14, FEWER = 1 };
#endif

/* Two engines on one model: without a cache and with one. */
typedef struct pair {
    gold_setup s;
    gold_env cold, warm;
    int32_t kv_blocks; /* of the warm one */
    int bad, n_hit_tok;
} pair;

static void with_cache(gy_engine_opts *o, const void *arg) {
    const pair *p = arg;
    o->prefix_cache = 1;
    o->kv_blocks = p->kv_blocks;
    o->sched.prefill_chunk = 16;
}

static void open_pair(pair *p, gold_setup s, int32_t kv_blocks) {
    s.backend = "cpu";
    s.n_thread = 1;
    s.max_rows = 64;
    s.cyclic_k = 2;
    *p = (pair){.s = s, .kv_blocks = kv_blocks};
    gold_open(&s, &p->cold);
    p->warm = (gold_env){.be = p->cold.be, .m = p->cold.m};
    gold_engine(&s, &p->cold);
    s.patch = with_cache;
    s.patch_arg = p;
    gold_engine(&s, &p->warm);
}

static int close_pair(pair *p) {
    gy_engine_stats st;
    gold_idle(p->warm.e);
    gy_engine_get_stats(p->warm.e, &st);
    if (st.prefix.n_hit_tok < p->n_hit_tok) {
        printf("  %s: %lld tokens hit, the requests say %d\n", p->s.model, (long long)st.prefix.n_hit_tok,
               p->n_hit_tok);
        p->bad++;
    }
    gy_engine_close(p->warm.e);
    gold_close(&p->cold);
    return p->bad;
}

static int32_t rows(int32_t n_tok) {
    return n_tok / ROW * ROW;
}

/* Runs the request on both; cached: tokens that must come from the cache, -1 = any number. Returns choice 0. */
static gold_result both(pair *p, gy_request *r, int32_t cached, const char *what) {
    gold_result cold[4], warm[4];
    assert_true(r->n <= 4);
    gold_run(p->cold.e, r, 1, cold);
    gold_run(p->warm.e, r, 1, warm);
    p->bad += mixed_compare(&p->s, what, r, 0, 1, cold, warm);
    for (int32_t c = 0; c < r->n; c++) {
        if (cached >= 0 && warm[c].fin.n_cached != cached) {
            printf("  %s layout %d, %s: %d of %d prompt tokens came from the cache, expected %d\n", p->s.model,
                   p->s.layout, what, warm[c].fin.n_cached, r->n_prompt, cached);
            p->bad++;
        }
        p->n_hit_tok += r->n == 1 ? warm[c].fin.n_cached : 0;
    }
    return warm[0];
}

static void make_prompt(const pair *p, uint32_t key, int32_t *ids, int32_t n) {
    for (int32_t k = 0; k < n; k++)
        ids[k] = (int32_t)(mixed_draw(5000 + key, (uint32_t)k) % (uint32_t)p->cold.m->d.n_vocab);
}

static gy_request request_of(const pair *p, const int32_t *ids, int32_t n_prompt) {
    gy_request r;
    gy_request_default(&r, &p->cold.m->d);
    r.prompt = ids;
    r.n_prompt = n_prompt;
    r.max_tokens = 4;
    r.ignore_eos = 1;
    return r;
}

/* ---- whose rows, and how many of them --------------------------------------------------------------------------- */

static void same_prompt_twice(pair *p) {
    static const int32_t len[] = {1, 15, 16, 17, 31, 32, 33, 48, 49, 64};
    for (uint32_t i = 0; i < sizeof len / sizeof len[0]; i++) {
        int32_t ids[MAX_PROMPT];
        make_prompt(p, i, ids, len[i]);
        gy_request r = request_of(p, ids, len[i]);
        both(p, &r, 0, "a new prompt");
        both(p, &r, rows(len[i] - 1), "the same prompt again");
        r.sample.temperature = 1.0f;
        r.sample.seed = i;
        both(p, &r, rows(len[i] - 1), "the same prompt, sampled");
    }
}

/* Prompts that are equal up to every place around a row's end. */
static void cut_everywhere(pair *p) {
    static const int32_t cuts[] = {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63};
    int32_t ids[MAX_PROMPT], other[MAX_PROMPT];
    make_prompt(p, 100, ids, 64);
    gy_request r = request_of(p, ids, 64);
    both(p, &r, 0, "the long prompt");
    for (uint32_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        int32_t c = cuts[i];
        r = request_of(p, ids, c);
        both(p, &r, rows(c - 1), "a beginning of it");
        memcpy(other, ids, (size_t)c * sizeof *ids);
        make_prompt(p, 200 + i, other + c, 20);
        if (other[c] == ids[c]) other[c] ^= 1;
        r = request_of(p, other, c + 20);
        both(p, &r, rows(c), "a beginning of it, then others");
    }
}

/* Leading tokens of a finished sequence that ran at full depth: all of them, or up to the first output that left early.
 * Output i comes from the token at n_prompt - 1 + i, which ran loops[i] (select: reads out less than it runs). */
static int32_t full_depth_tokens(const pair *p, const gy_request *r, const gold_result *g) {
    int32_t n = r->n_prompt;
    for (int32_t i = 1; i < g->n; i++, n++)
        if (r->exit.kind != GY_EXIT_SELECT && g->loops[i] != p->cold.m->d.n_loop) break;
    return n;
}

/* Each turn's prompt is the last one's, its answer, and a few new tokens. */
static void several_turns(pair *p, const gy_exit_rule *rule, const int32_t *trace, int32_t n_trace, uint32_t key) {
    int32_t ids[MAX_PROMPT], n = 21, cached = 0, pending = 0;
    make_prompt(p, key, ids, n);
    for (uint32_t turn = 0; turn < 4; turn++) {
        gy_request r = request_of(p, ids, n);
        r.max_tokens = 14;
        r.exit = *rule;
        r.trace = trace;
        r.n_trace = n_trace;
        gold_result g = both(p, &r, cached, gy_exit_name(rule->kind));
        /* What was published stays; more comes only behind full-depth rows. */
        pending = rows(full_depth_tokens(p, &r, &g));
        memcpy(ids + n, g.tokens, (size_t)g.n * sizeof *ids);
        n += g.n;
        make_prompt(p, key + 1000 * (turn + 1), ids + n, 5);
        n += 5;
        cached = pending;
    }
}

static void turns_of_each_rule(pair *p) {
    const gy_model_desc *d = &p->cold.m->d;
    int32_t trace[14];
    for (int i = 0; i < 14; i++) trace[i] = i == 12 ? 1 : d->n_loop;
    several_turns(p, &(gy_exit_rule){GY_EXIT_FIXED, 1.0, 1, d->n_loop, 0}, NULL, 0, 300);
    several_turns(p, &(gy_exit_rule){GY_EXIT_FIXED, 1.0, 1, d->n_loop - 1, 0}, NULL, 0, 301);
    several_turns(p, &(gy_exit_rule){GY_EXIT_LATENT, 0.3, 1, d->n_loop, 0}, NULL, 0, 302);
    several_turns(p, &(gy_exit_rule){GY_EXIT_KL, 0.05, 1, d->n_loop, 0}, NULL, 0, 303);
    several_turns(p, &(gy_exit_rule){GY_EXIT_TRACE, 0.0, 1, d->n_loop, 0}, trace, 14, 304);
    if (!d->has_gate) return;
    several_turns(p, &(gy_exit_rule){GY_EXIT_GATE, 0.6, 1, d->n_loop, 0}, NULL, 0, 305);
    several_turns(p, &(gy_exit_rule){GY_EXIT_SELECT, 0.7, 1, d->n_loop, 0}, NULL, 0, 306);
}

static void who_may_share(pair *p) {
    int32_t ids[MAX_PROMPT];
    make_prompt(p, 400, ids, 40);
    gy_request plain = request_of(p, ids, 40), r = plain;
    r.no_cache = 1;
    both(p, &r, 0, "no_cache, nothing there");
    both(p, &plain, 0, "after one that must not fill the cache");
    both(p, &r, 0, "no_cache, although it is there");
    r = plain, r.cache_salt = "salt", r.n_salt = 4;
    both(p, &r, 0, "a salt");
    both(p, &r, 32, "the same salt");
    r.n_salt = 3, both(p, &r, 0, "a shorter salt");
    r.n_salt = 0, both(p, &r, 32, "an empty salt is none");
    r = plain, r.exit = (gy_exit_rule){GY_EXIT_LATENT, 0.3, 1, p->cold.m->d.n_loop, 1};
    both(p, &r, 0, "prompt tokens that may leave early");
    r = plain, r.prompt_logprobs = 2;
    both(p, &r, 0, "prompt logprobs");
    r = plain, r.n = 3, r.sample.temperature = 1.0f;
    both(p, &r, 32, "three choices");
    make_prompt(p, 401, ids, 40);
    r = plain, r.exit.kind = GY_EXIT_LATENT, r.exit.threshold = 0.3, r.exit.on_prompt = 1;
    both(p, &r, 0, "early prompt tokens, new");
    both(p, &plain, 0, "what they left is not to be shared");
    make_prompt(p, 402, ids, 40);
    r = plain, r.prompt_logprobs = 0;
    both(p, &r, 0, "prompt logprobs, new");
    both(p, &plain, 32, "what they left is");
}

static void noise_of_its_own(pair *p) {
    int32_t ids[MAX_PROMPT];
    make_prompt(p, 500, ids, 40);
    gy_request r = request_of(p, ids, 40);
    r.latent_seed = 3;
    both(p, &r, 0, "zero start");
    r.latent_seed = 4, both(p, &r, 32, "zero start, the seed does not count");
    if (!p->cold.m->d.inject) return;
    r.latent_noise = 1;
    both(p, &r, 0, "noise");
    both(p, &r, 32, "the same noise");
    r.latent_seed = 5, both(p, &r, 0, "other noise");
    r.latent_seed = 4, both(p, &r, 32, "the first noise again");
    r.latent_noise = 0, both(p, &r, 32, "zero start again");
}

static int each_setup(void (*test)(pair *), int32_t max_loops) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int i = 0; i < 9; i += FEWER) {
        pair p;
        open_pair(&p, (gold_setup){.model = models[i / 3], .layout = layouts[i % 3], .max_loops = max_loops}, 0);
        test(&p);
        bad += close_pair(&p);
    }
    return bad;
}

static void prompts_that_come_again(void **state) {
    (void)state;
    assert_int_equal(each_setup(same_prompt_twice, 0), 0);
}

static void prompts_that_begin_alike(void **state) {
    (void)state;
    assert_int_equal(each_setup(cut_everywhere, 0), 0);
}

static void turns(void **state) {
    (void)state;
    assert_int_equal(each_setup(turns_of_each_rule, 0), 0);
}

static void namespaces(void **state) {
    (void)state;
    assert_int_equal(each_setup(who_may_share, 0), 0);
}

static void noise(void **state) {
    (void)state;
    assert_int_equal(each_setup(noise_of_its_own, 0), 0);
}

/* An engine that may go deeper than the model was trained: prompts run the trained depth all the same, outputs at the
 * greater depth are not shared. */
static void deeper_outputs(pair *p) {
    int32_t ids[MAX_PROMPT], n = 30;
    make_prompt(p, 600, ids, n);
    for (int turn = 0; turn < 2; turn++) {
        gy_request r = request_of(p, ids, n);
        r.max_tokens = 20;
        r.exit.max_loops = p->cold.m->d.n_loop + 2;
        gold_result g = both(p, &r, turn ? 16 : 0, "deeper than trained");
        assert_true(g.loops[0] == p->cold.m->d.n_loop && g.loops[1] == p->cold.m->d.n_loop + 2);
        memcpy(ids + n, g.tokens, (size_t)g.n * sizeof *ids);
        n += g.n;
    }
}

static void deeper(void **state) {
    (void)state;
    assert_int_equal(each_setup(deeper_outputs, 10), 0);
}

/* ---- many at once, and pools that run over ---------------------------------------------------------------------- */

static void everything_three_times(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    static gold_result cold[MIXED_MAX_RESULT], warm[MIXED_MAX_RESULT];
    int bad = 0;
    for (int i = 0; i < 9; i += FEWER) {
        pair p;
        mixed w;
        open_pair(&p, (gold_setup){.model = models[i / 3], .layout = layouts[i % 3]}, 0);
        mixed_make(&w, &p.cold.m->d, MIXED_MAX_PROMPT, MIXED_MAX_OUT);
        gold_run(p.cold.e, w.req, MIXED_N, cold);
        bad += mixed_odd(&w, &p.cold.m->d, cold);
        for (int turn = 0; turn < 3; turn++) {
            int32_t n_cached = 0;
            gold_run(p.warm.e, w.req, MIXED_N, warm);
            bad += mixed_compare(&p.s, turn ? "warm" : "filling", w.req, 0, MIXED_N, cold, warm);
            for (int k = 0; k < w.n_result; k++) n_cached += warm[k].fin.n_cached;
            if (turn) assert_true(n_cached >= 8 * ROW);
        }
        bad += close_pair(&p);
    }
    assert_int_equal(bad, 0);
}

/* Ten prompts that begin alike in pairs, in made-up order, over a pool that holds two or three of them: rows come, are
 * evicted and come again; sometimes four run at once. */
static void run_over(pair *p, int n_round) {
    enum { N = 4 };
    int32_t ids[10][MAX_PROMPT];
    for (uint32_t i = 0; i < 10; i++) {
        make_prompt(p, 700 + i / 2, ids[i], 32);
        make_prompt(p, 710 + i, ids[i] + 32, 16);
    }
    for (uint32_t round = 0; round < (uint32_t)n_round; round++) {
        gy_request r[N];
        gold_result cold[N], warm[N];
        for (uint32_t k = 0; k < N; k++) {
            r[k] = request_of(p, ids[mixed_draw(720 + round, k) % 10], 20 + (int32_t)(mixed_draw(730 + round, k) % 29));
            r[k].max_tokens = 2 + (int32_t)k * 4;
            if (k == 2) r[k].exit.kind = GY_EXIT_ENTROPY, r[k].exit.threshold = 0.1;
        }
        int n = round % 2 ? N : 1;
        gold_run(p->cold.e, r, n, cold);
        gold_run(p->warm.e, r, n, warm);
        p->bad += mixed_compare(&p->s, "evicting", r, 0, n, cold, warm);
    }
}

static void pools_that_run_over(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static const int32_t n_loop[] = {4, 8, 2};
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int i = 0; i < 9; i += FEWER) {
        static const int32_t shared_planes[] = {0, 1, 2};
        int32_t planes = i % 3 ? shared_planes[i % 3] : n_loop[i / 3];
        for (int32_t n_row = 5; n_row <= 11; n_row += 3) { /* 48 + 14 tokens need 4 */
            pair p;
            gy_engine_stats st;
            open_pair(&p, (gold_setup){.model = models[i / 3], .layout = layouts[i % 3]}, n_row * planes);
            run_over(&p, ROUNDS);
            gy_engine_get_stats(p.warm.e, &st);
            if (st.prefix.n_evict == 0 || st.prefix.n_hit == 0) {
                printf("  %s layout %d, %d rows: %lld evictions, %lld hits\n", p.s.model, p.s.layout, n_row,
                       (long long)st.prefix.n_evict, (long long)st.prefix.n_hit);
                p.bad++;
            }
            bad += close_pair(&p);
        }
    }
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_that_come_again),
        cmocka_unit_test(prompts_that_begin_alike),
        cmocka_unit_test(turns),
        cmocka_unit_test(namespaces),
        cmocka_unit_test(noise),
        cmocka_unit_test(deeper),
        cmocka_unit_test(everything_three_times),
        cmocka_unit_test(pools_that_run_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
