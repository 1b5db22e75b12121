/* A model that is nothing but hashes, for the simulation: what a token computes is a fingerprint of everything that it
 * read, so that one wrong read anywhere changes every later token of its request.
 *
 *   state    h(token, position, namespace); each loop: h' = mix(h, what was read at this depth)
 *   KV       what a row writes into its slot: mix(h before the loop, depth); a read at position p adds up the entries
 * of positions 0..p, each keyed by its position boundary prelude and coda do the same once per token, over two entries
 * that share a slot token    a function of (output of the coda, choice, position) depth    a function of the state (or
 * of the coda's output: judged rows) and of the request
 *
 * sim_oracle computes one request alone, token by token, on arrays [plane][position]: no slots, blocks, maps or
 * batches. A header because every sim test is one file; all functions are pure.
 */
#ifndef GY_TESTS_SIM_MODEL_H
#define GY_TESTS_SIM_MODEL_H

#include "kv/prefix.h"

#include <stdint.h>
#include <string.h>

enum { SIM_MAX_LEN = 144, SIM_MAX_DEPTH = 8 };

typedef struct sim_shape {
    int32_t n_loop;  /* trained */
    int32_t n_depth; /* that the KV offers, >= n_loop */
    int32_t n_plane;
    int has_boundary, has_coda;
} sim_shape;

typedef struct sim_spec { /* a request */
    int32_t n_prompt, max_tokens;
    int32_t priority;
    int full_prompt, use_cache, all_logits;
    gy_prefix_space space;
    int32_t leader; /* index of a job, -1 */
    int32_t min_loops, max_loops;
    int judged; /* the depth looks at the coda's output */
    int ignore_eos;
    uint64_t rule, choice; /* seeds */
} sim_spec;

static inline uint64_t sim_mix(uint64_t a, uint64_t b) {
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 0x632be59bd9b4e019u);
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

/* One summand of a read: sums of these keep apart which entry stood where. */
static inline uint64_t sim_term(uint64_t tag, int32_t j) {
    uint64_t x = (tag ^ ((uint64_t)(j + 1) * 0xd1342543de82ef95u)) * 0x2545f4914f6cdd1du;
    return x ^ (x >> 32);
}

static inline uint64_t sim_start(const sim_spec *s, int32_t token, int32_t pos) {
    uint64_t h = sim_mix((uint64_t)token, (uint64_t)pos);
    for (int32_t i = 0; i < s->space.n_salt; i++) h = sim_mix(h, (unsigned char)s->space.salt[i]);
    return s->space.latent_noise ? sim_mix(h, s->space.latent_seed + 1000) : h;
}

static inline uint64_t sim_core_tag(uint64_t h, int32_t depth) {
    return sim_mix(h, 100 + (uint64_t)depth);
}
static inline uint64_t sim_loop_end(uint64_t h, uint64_t read, int32_t depth) {
    return sim_mix(sim_mix(h, read), 200 + (uint64_t)depth);
}
static inline uint64_t sim_prelude_tag(uint64_t h) {
    return sim_mix(h, 301);
}
static inline uint64_t sim_coda_tag(uint64_t h) {
    return sim_mix(h, 302);
}
static inline uint64_t sim_boundary_end(uint64_t h, uint64_t read) {
    return sim_mix(sim_mix(h, read), 303);
}

static inline int32_t sim_token(const sim_spec *s, uint64_t out, int32_t pos) {
    return (int32_t)(sim_mix(sim_mix(out, s->choice), (uint64_t)pos) & 0x7fffffff);
}

static inline int sim_is_last(const sim_spec *s, int32_t n_output, int32_t token) {
    return n_output == s->max_tokens || (!s->ignore_eos && token % 19 == 0);
}

/* The depth of this token follows from the coda's output. With coda layers only outputs can be judged: a prompt's coda
 * runs in position order, behind the loops. */
static inline int sim_is_judged(const sim_shape *m, const sim_spec *s, int32_t pos) {
    if (!s->judged) return 0;
    return pos >= s->n_prompt || (!s->full_prompt && !m->has_coda);
}

/* x: the state after `loops` loops, or the coda's output for judged tokens. */
static inline int sim_leaves(const sim_shape *m, const sim_spec *s, int32_t pos, int32_t loops, uint64_t x) {
    if (pos < s->n_prompt && s->full_prompt) return loops >= m->n_loop;
    if (loops >= s->max_loops) return 1;
    return loops >= s->min_loops && sim_mix(x, s->rule) % 3 == 0;
}

typedef struct sim_oracle {
    int32_t n_tok;              /* prompt and outputs */
    int32_t tok[SIM_MAX_LEN];   /* the prompt is put here by the caller */
    int32_t depth[SIM_MAX_LEN]; /* loops of each token that was computed: all but the last */
    uint64_t end[SIM_MAX_LEN];  /* the state that left the core */
    uint64_t out[SIM_MAX_LEN];  /* the coda's output */
} sim_oracle;

typedef struct sim_alone {                     /* what one request has written */
    uint64_t core[SIM_MAX_DEPTH][SIM_MAX_LEN]; /* [plane][pos], the newest */
    int32_t ran[SIM_MAX_LEN];                  /* loops so far */
    uint64_t prelude[SIM_MAX_LEN], coda[SIM_MAX_LEN];
} sim_alone;

/* Token j at depth d: its entry on plane d mod n_plane if it ran so deep, else that of its last loop (kv.h, layouts).
 */
static inline uint64_t sim_alone_read(const sim_shape *m, const sim_alone *a, int32_t pos, int32_t depth) {
    uint64_t sum = 0;
    for (int32_t j = 0; j <= pos; j++) {
        int32_t plane = depth % m->n_plane;
        if (plane > a->ran[j] - 1) plane = a->ran[j] - 1;
        sum += sim_term(a->core[plane][j], j);
    }
    return sum;
}

static inline uint64_t sim_alone_coda(const sim_shape *m, sim_alone *a, int32_t pos, uint64_t h) {
    uint64_t sum = 0;
    if (!m->has_coda) return sim_boundary_end(h, 0);
    a->coda[pos] = sim_coda_tag(h);
    for (int32_t j = 0; j <= pos; j++) sum += sim_term(a->coda[j], j);
    return sim_boundary_end(h, sum);
}

static inline uint64_t sim_alone_prelude(const sim_shape *m, sim_alone *a, int32_t pos, uint64_t h) {
    uint64_t sum = 0;
    if (!m->has_boundary) return h;
    a->prelude[pos] = sim_prelude_tag(h);
    for (int32_t j = 0; j <= pos; j++) sum += sim_term(a->prelude[j], j);
    return sim_boundary_end(h, sum);
}

static inline void sim_alone_token(const sim_shape *m, const sim_spec *s, sim_alone *a, int32_t pos, sim_oracle *o) {
    uint64_t h = sim_alone_prelude(m, a, pos, sim_start(s, o->tok[pos], pos));
    for (int32_t d = 0;; d++) {
        a->core[d % m->n_plane][pos] = sim_core_tag(h, d);
        a->ran[pos] = d + 1;
        h = sim_loop_end(h, sim_alone_read(m, a, pos, d), d);
        int judged = sim_is_judged(m, s, pos);
        if (sim_leaves(m, s, pos, d + 1, judged ? sim_alone_coda(m, a, pos, h) : h)) break;
    }
    o->depth[pos] = a->ran[pos];
    o->end[pos] = h;
    o->out[pos] = sim_alone_coda(m, a, pos, h);
}

/* o->tok[0..n_prompt) is the prompt; everything else is computed. */
static inline void sim_oracle_run(const sim_shape *m, const sim_spec *s, sim_oracle *o) {
    sim_alone a;
    memset(&a, 0, sizeof a);
    o->n_tok = s->n_prompt;
    for (int32_t pos = 0;; pos++) {
        sim_alone_token(m, s, &a, pos, o);
        if (pos < s->n_prompt - 1) continue;
        o->tok[o->n_tok++] = sim_token(s, o->out[pos], pos);
        if (sim_is_last(s, o->n_tok - s->n_prompt, o->tok[o->n_tok - 1])) return;
    }
}

#endif
