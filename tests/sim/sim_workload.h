/* A random workload: a pure function of its seed. Small, because what matters is pressure, not size: pools that hold
 * one or two of the jobs, batches of a few rows, prompts around the length of a block.
 */
#ifndef GY_TESTS_SIM_WORKLOAD_H
#define GY_TESTS_SIM_WORKLOAD_H

#include "base/philox.h"
#include "sched/sched.h"
#include "sim/sim_model.h"

enum { SIM_MAX_JOBS = 16, SIM_MAX_PROMPT = 116 }; /* + 24 outputs <= SIM_MAX_LEN */

typedef struct sim_rand {
    uint64_t seed;
    uint32_t n; /* draws so far */
    uint32_t word[4];
} sim_rand;

static inline uint32_t sim_draw(sim_rand *r) {
    if (r->n % 4 == 0) gy_rand_block(r->seed, 0, r->n / 4, GY_RAND_TEST, 0, r->word);
    return r->word[r->n++ % 4];
}
static inline int32_t sim_in(sim_rand *r, int32_t lo, int32_t hi) { /* both may come */
    return lo + (int32_t)(sim_draw(r) % (uint32_t)(hi - lo + 1));
}
static inline int sim_chance(sim_rand *r, int32_t percent) {
    return sim_in(r, 0, 99) < percent;
}

typedef struct sim_workload {
    sim_shape shape;
    gy_kv_config kv;
    gy_sched_opts sched; /* without the copy functions */
    int prefix_cache;
    int32_t max_logit;
    int32_t n_job;
    sim_spec job[SIM_MAX_JOBS];
    sim_oracle want[SIM_MAX_JOBS]; /* prompt and what must come out */
    int32_t arrive[SIM_MAX_JOBS];  /* step, ascending */
    int32_t cancel_percent, preempt_percent, cancel_sampled_percent;
} sim_workload;

/* Salts that differ in their last byte or in their length only, up to the longest that is allowed. */
#define SIM_127_BYTES                                                                                                  \
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" \
    "0123456789abcde"
static const char *const SIM_SALT[] = {"", "a", "b", "a\0", "ab", SIM_127_BYTES, SIM_127_BYTES "x", SIM_127_BYTES "y"};
static const int32_t SIM_SALT_BYTES[] = {0, 1, 1, 2, 2, 127, 128, 128};

static inline void sim_make_shape(sim_rand *r, sim_workload *w) {
    gy_kv_config *c = &w->kv;
    c->n_loop = sim_in(r, 1, 6);
    w->shape.n_loop = sim_chance(r, 70) ? c->n_loop : sim_in(r, 1, c->n_loop);
    if (sim_chance(r, 10)) c->n_loop += 2;
    int32_t kind = sim_in(r, 0, 4);
    c->layout = kind == 0 ? GY_KV_SHARED : kind == 1 ? GY_KV_CYCLIC : GY_KV_LAST_EXITED;
    c->cyclic_k = sim_in(r, 1, c->n_loop);
    c->n_layer[GY_KV_CORE] = 1;
    int32_t boundary = sim_in(r, 0, 2);
    c->n_layer[GY_KV_BOUNDARY] = boundary > 0;
    c->n_head_kv = c->head_dim = 1;
    c->dtype = GY_BF16;
    c->max_len = SIM_MAX_LEN;
    w->shape.n_depth = c->n_loop;
    w->shape.n_plane = c->layout == GY_KV_SHARED ? 1 : c->layout == GY_KV_CYCLIC ? c->cyclic_k : c->n_loop;
    w->shape.has_boundary = boundary > 0;
    w->shape.has_coda = boundary > 1;
}

static inline int32_t sim_few(sim_rand *r, int32_t max) { /* small ones are likely */
    return sim_chance(r, 60) ? sim_in(r, 1, max < 6 ? max : 6) : sim_in(r, 1, max);
}

static inline void sim_make_opts(sim_rand *r, sim_workload *w) {
    gy_sched_opts *o = &w->sched;
    static const double share[] = {0.01, 0.25, 0.5, 1.0}, mark[] = {0.0, 0.01, 0.1, 0.5};
    gy_sched_opts_default(o);
    o->max_rows = sim_few(r, 64);
    o->max_seqs = sim_in(r, 1, 12);
    o->max_queue = sim_chance(r, 30) ? sim_in(r, 4, 6) : 32;
    o->prefill_chunk = sim_few(r, 48);
    o->prefill_share = share[sim_in(r, 0, 3)];
    o->no_refill = sim_chance(r, 20);
    o->min_coda = sim_chance(r, 50) ? 1 : sim_in(r, 2, 6);
    o->reserve_full = sim_chance(r, 20);
    o->watermark = mark[sim_in(r, 0, 3)];
    o->policy = sim_chance(r, 30) ? GY_SCHED_PRIORITY : GY_SCHED_FCFS;
    o->preempt = (gy_preempt)sim_in(r, 0, 2);
    o->scan_limit = sim_chance(r, 50) ? 64 : sim_in(r, 1, 4);
    o->max_bypass = sim_few(r, 8);
    o->n_loop = w->shape.n_loop;
    o->has_boundary = w->shape.has_boundary;
    o->has_coda = w->shape.has_coda;
    w->kv.max_seqs = o->max_seqs + sim_in(r, 0, 4);
    w->max_logit = sim_few(r, o->max_rows);
}

static inline int32_t sim_some_length(sim_rand *r) { /* often at or beside whole blocks */
    switch (sim_in(r, 0, 4)) {
    case 0:
        return sim_in(r, 1, 8);
    case 1:
        return sim_in(r, 15, 18);
    case 2:
        return sim_in(r, 31, 34);
    case 3:
        return sim_in(r, 47, 50);
    default:
        return sim_in(r, 1, 96);
    }
}

static inline int32_t sim_base_token(int32_t base, int32_t pos) {
    return (int32_t)(sim_mix((uint64_t)base, (uint64_t)pos) & 0x7fffffff);
}

/* The prompt of job i: new, beginning like a common text; or where an earlier job ended, going on; or an earlier one's,
 * perhaps with one other token. */
static inline void sim_make_prompt(sim_rand *r, sim_workload *w, int32_t i) {
    sim_spec *s = &w->job[i];
    sim_oracle *o = &w->want[i];
    int32_t kind = sim_in(r, 0, 3), base = sim_in(r, 0, 1), n = sim_some_length(r), common = sim_in(r, 0, n);
    for (int32_t p = 0; p < n; p++) o->tok[p] = p < common ? sim_base_token(base, p) : (int32_t)(sim_draw(r) >> 1);
    if (kind > 1 && i > 0) {
        int32_t of = sim_in(r, 0, i - 1), more = kind == 2 ? sim_in(r, 1, 20) : 0;
        n = kind == 2 ? w->want[of].n_tok : w->job[of].n_prompt;
        memcpy(o->tok, w->want[of].tok, (size_t)n * sizeof *o->tok);
        for (int32_t p = 0; p < more && n < SIM_MAX_PROMPT; p++) o->tok[n++] = (int32_t)(sim_draw(r) >> 1);
        if (kind == 3 && sim_chance(r, 50)) o->tok[sim_in(r, 0, n - 1)] ^= 1;
    }
    s->n_prompt = n < SIM_MAX_PROMPT ? n : SIM_MAX_PROMPT;
}

static inline gy_prefix_space sim_make_space(sim_rand *r) {
    int32_t salt = sim_chance(r, 60) ? 0 : sim_in(r, 1, 7);
    return (gy_prefix_space){.salt = SIM_SALT[salt],
                             .n_salt = SIM_SALT_BYTES[salt],
                             .latent_noise = sim_chance(r, 20),
                             .latent_seed = (uint64_t)sim_in(r, 1, 2)};
}

static inline void sim_make_job(sim_rand *r, sim_workload *w, int32_t i) {
    sim_spec *s = &w->job[i];
    sim_make_prompt(r, w, i);
    s->max_tokens = sim_few(r, 24);
    s->priority = sim_in(r, -1, 2);
    s->full_prompt = sim_chance(r, 70);
    s->use_cache = sim_chance(r, 80);
    s->all_logits = sim_chance(r, 20);
    s->space = sim_make_space(r);
    s->leader = -1;
    s->min_loops = sim_in(r, 1, w->shape.n_depth);
    s->max_loops = sim_in(r, s->min_loops, w->shape.n_depth);
    s->judged = sim_chance(r, 20);
    s->ignore_eos = sim_chance(r, 50);
    s->rule = sim_draw(r);
    s->choice = (uint64_t)sim_in(r, 0, 3);
}

/* A further choice of the request before it. */
static inline void sim_make_choice(sim_workload *w, int32_t i) {
    sim_spec *s = &w->job[i];
    *s = w->job[i - 1];
    if (s->leader < 0) s->leader = i - 1;
    s->choice++;
    memcpy(w->want[i].tok, w->want[i - 1].tok, (size_t)s->n_prompt * sizeof(int32_t));
}

static inline void sim_make_jobs(sim_rand *r, sim_workload *w) {
    int32_t step = 0, pause = sim_in(r, 0, 12), n_choice = 0;
    w->n_job = sim_in(r, 2, SIM_MAX_JOBS);
    for (int32_t i = 0; i < w->n_job; i++) {
        const sim_spec *before = &w->job[i > 0 ? i - 1 : 0];
        if (i > 0 && n_choice < 3 && before->full_prompt && !before->all_logits && sim_chance(r, 25)) {
            sim_make_choice(w, i);
            n_choice++;
        } else {
            sim_make_job(r, w, i);
            n_choice = 0;
            step += sim_in(r, 0, pause);
        }
        w->arrive[i] = step;
        sim_oracle_run(&w->shape, &w->job[i], &w->want[i]);
    }
}

/* Pools: for some workloads exactly what the largest job needs, or a little less (then it is refused). */
static inline void sim_make_pools(sim_rand *r, sim_workload *w) {
    int32_t parks = sim_in(r, 0, 3);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int64_t need = 1;
        if (!w->kv.n_layer[g]) continue;
        for (int32_t i = 0; i < w->n_job; i++) {
            int64_t n = gy_kv_blocks_for(&w->kv, (gy_kv_group)g, w->job[i].n_prompt + w->job[i].max_tokens);
            if (n > need) need = n;
        }
        int32_t n = (int32_t)need, size = sim_in(r, 0, 9);
        w->kv.n_block[g] = size == 0 ? (n > 1 ? n - 1 : 1) : size < 4 ? n : size < 8 ? n + sim_in(r, 0, n) : 4 * n;
        w->kv.n_park[g] = parks == 0 ? 0 : parks == 1 ? sim_in(r, 1, n) : 3 * n;
    }
}

static inline void sim_make_workload(uint64_t seed, sim_workload *w) {
    sim_rand r = {.seed = seed};
    memset(w, 0, sizeof *w);
    sim_make_shape(&r, w);
    sim_make_opts(&r, w);
    sim_make_jobs(&r, w);
    sim_make_pools(&r, w);
    w->prefix_cache = sim_chance(&r, 70);
    w->cancel_percent = sim_chance(&r, 50) ? 0 : sim_in(&r, 1, 12);
    w->cancel_sampled_percent = sim_chance(&r, 70) ? 0 : 3;
    w->preempt_percent = sim_chance(&r, 60) ? 0 : sim_in(&r, 1, 15);
}

#endif
