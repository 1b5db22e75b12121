/* The KV cache's validity checker: recomputes from the logs and the map what the counters claim. It trusts no index
 * before it has checked it, so that it reports corruption instead of crashing on it. Allocates nothing: it may run
 * inside a guarded step. Cost: everything that is open; tests and debug builds only.
 */
#include "kv/prefix_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct checker {
    const gy_kv *kv;
    const kv_pool *p;
    const char *group;
    char *buf;
    size_t cap;
} checker;

/* Always 0, so that a rule reads `return bad(...)`. */
static int __attribute__((format(printf, 2, 3))) bad(const checker *c, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(c->buf, c->cap, "kv %s: ", c->group);
    if (n < 0 || (size_t)n >= c->cap) return 0;
    va_start(ap, fmt);
    vsnprintf(c->buf + n, c->cap - (size_t)n, fmt, ap);
    va_end(ap);
    return 0;
}

static int seqs_valid(const checker *c) {
    const gy_kv *kv = c->kv;
    int32_t n_open = 0;
    for (int32_t s = 0; s < kv->cfg.max_seqs; s++) {
        const kv_seq *q = &kv->seq[s];
        if (q->open != 0 && q->open != 1) return bad(c, "seq %d: open is %d", s, q->open);
        if (q->parked != 0 && (q->parked != 1 || !q->open)) return bad(c, "seq %d: parked is %d", s, q->parked);
        if (q->ready < 0 || q->ready > kv->cfg.max_len) return bad(c, "seq %d: ready is %d", s, q->ready);
        if (q->open && (q->max_tok < 1 || q->max_tok > q->ready)) return bad(c, "seq %d: max_tok %d", s, q->max_tok);
        n_open += q->open;
    }
    if (n_open + kv->n_seq_free != kv->cfg.max_seqs)
        return bad(c, "%d open + %d free sequences are not %d", n_open, kv->n_seq_free, kv->cfg.max_seqs);
    for (int32_t i = 0; i < kv->n_seq_free; i++) {
        int32_t s = kv->seq_free[i];
        if (s < 0 || s >= kv->cfg.max_seqs || kv->seq[s].open) return bad(c, "sequence %d on the free list", s);
        for (int32_t j = 0; j < i; j++)
            if (kv->seq_free[j] == s) return bad(c, "sequence %d is free twice", s);
    }
    return 1;
}

/* scratch[b] becomes -1 for the blocks on the free list, 0 for the others. */
static int free_list_valid(const checker *c, const int32_t *list, int32_t n_free, int32_t n_block) {
    int32_t *mark = c->p->scratch;
    if (n_block) memset(mark, 0, (size_t)n_block * sizeof *mark);
    if (n_free < 0 || n_free > n_block) return bad(c, "%d free of %d blocks", n_free, n_block);
    for (int32_t i = 0; i < n_free; i++) {
        int32_t b = list[i];
        if (b < 0 || b >= n_block) return bad(c, "block %d on the free list", b);
        if (mark[b]) return bad(c, "block %d is free twice", b);
        mark[b] = -1;
    }
    return 1;
}

/* One plane's log: its length fits, its blocks are in use. A pool block may be in several logs, at the same place; a
 * park block is in one. scratch[b] counts the logs. */
static int log_valid(const checker *c, int32_t seq, int32_t plane) {
    const kv_pool *p = c->p;
    int32_t parked = c->kv->seq[seq].parked, n_block = parked ? p->n_park : p->n_block;
    const int32_t *log = kv_log(p, seq, plane);
    for (int32_t k = 0; k < kv_blocks_of(p->len[kv_plane_index(p, seq, plane)]); k++) {
        int64_t place = (int64_t)plane * p->log_blocks + k;
        if (log[k] < 0 || log[k] >= n_block) return bad(c, "seq %d plane %d: block %d", seq, plane, log[k]);
        if (p->scratch[log[k]] < 0) return bad(c, "seq %d plane %d owns free block %d", seq, plane, log[k]);
        int first = p->scratch[log[k]]++ == 0;
        if (!first && parked) return bad(c, "seq %d plane %d: park block %d has two logs", seq, plane, log[k]);
        if (!first && p->place[log[k]] != place)
            return bad(c, "seq %d plane %d: block %d is in another log at another place", seq, plane, log[k]);
        if (!parked) p->place[log[k]] = place;
    }
    return 1;
}

static int seq_logs_valid(const checker *c, int32_t seq) {
    const kv_pool *p = c->p;
    int32_t cap = c->kv->seq[seq].open ? c->kv->seq[seq].max_tok : 0, n_block = 0;
    for (int32_t plane = 0; plane < p->n_plane; plane++) {
        int64_t i = kv_plane_index(p, seq, plane);
        if (p->len[i] < 0 || p->len[i] > cap) return bad(c, "seq %d plane %d: length %d", seq, plane, p->len[i]);
        if (plane > 0 && p->len[i] > p->len[i - 1])
            return bad(c, "seq %d plane %d: length %d, above it %d", seq, plane, p->len[i], p->len[i - 1]);
        if (!log_valid(c, seq, plane)) return 0;
        n_block += kv_blocks_of(p->len[i]);
    }
    if (n_block != p->blocks[seq]) return bad(c, "seq %d: %d blocks, counted as %d", seq, n_block, p->blocks[seq]);
    return 1;
}

static int logs_valid(const checker *c, int32_t parked) {
    for (int32_t s = 0; s < c->kv->cfg.max_seqs; s++)
        if (c->kv->seq[s].parked == parked && !seq_logs_valid(c, s)) return 0;
    return 1;
}

/* Reference counts equal owners; every block is either free or owned. */
static int refs_valid(const checker *c) {
    const kv_pool *p = c->p;
    int32_t n_used = 0, n_cached = 0;
    for (int32_t b = 0; b < p->n_block; b++) {
        int is_free = p->scratch[b] < 0;
        int32_t owners = (is_free ? 0 : p->scratch[b]) + p->held[b] + kv_is_cached(p, b);
        if (p->held[b] < 0 || p->refs[b] != owners)
            return bad(c, "block %d: %d references, %d owners of which %d outside", b, p->refs[b], owners, p->held[b]);
        if (is_free != (owners == 0)) return bad(c, "block %d: free %d, owners %d", b, is_free, owners);
        n_used += !is_free;
        n_cached += kv_is_cached(p, b) && owners == 1;
    }
    if (n_used + p->n_free != p->n_block) return bad(c, "%d free + %d owned != %d", p->n_free, n_used, p->n_block);
    if (n_cached != p->n_cached) return bad(c, "%d cached, counted as %d", n_cached, p->n_cached);
    return 1;
}

/* A block in a log is on the plane of that log, and each plane counts its own. */
static int planes_valid(const checker *c) {
    const kv_pool *p = c->p;
    for (int32_t s = 0; s < c->kv->cfg.max_seqs; s++)
        for (int32_t plane = 0; plane < p->n_plane && !c->kv->seq[s].parked; plane++)
            for (int32_t k = 0; k < kv_blocks_of(p->len[kv_plane_index(p, s, plane)]); k++) {
                int32_t b = kv_log(p, s, plane)[k];
                if (p->plane[b] != plane)
                    return bad(c, "seq %d plane %d: block %d says plane %d", s, plane, b, p->plane[b]);
            }
    for (int32_t plane = 0; plane < p->n_plane; plane++) {
        int32_t n = 0;
        for (int32_t b = 0; b < p->n_block; b++) n += p->refs[b] > 0 && p->plane[b] == plane;
        if (n != p->used[plane]) return bad(c, "plane %d: %d blocks, counted as %d", plane, n, p->used[plane]);
    }
    return 1;
}

/* Nobody but its sequence and outside holders has the block that the next token of a plane is written into. */
static int ends_valid(const checker *c, int32_t seq) {
    const kv_pool *p = c->p;
    for (int32_t plane = 0; plane < p->n_plane; plane++) {
        int32_t n = p->len[kv_plane_index(p, seq, plane)], b = kv_log(p, seq, plane)[n / GY_KV_BLOCK_LEN];
        if (n % GY_KV_BLOCK_LEN == 0) continue;
        if (p->scratch[b] != 1 || kv_is_cached(p, b))
            return bad(c, "seq %d plane %d: block %d is not full and shared", seq, plane, b);
    }
    return 1;
}

static int park_valid(const checker *c) {
    const kv_pool *p = c->p;
    if (!free_list_valid(c, p->park_free, p->n_park_free, p->n_park) || !logs_valid(c, 1)) return 0;
    for (int32_t b = 0; b < p->n_park; b++) {
        int32_t owners = p->scratch[b] < 0 ? 0 : p->scratch[b];
        if (p->park_refs[b] != owners || (owners == 0) != (p->scratch[b] < 0))
            return bad(c, "park block %d: %d references, %d owners", b, p->park_refs[b], owners);
    }
    return 1;
}

/* The planes are dense and in position order: the n-th token that owns a slot on the plane has its n-th slot. */
static int plane_valid(const checker *c, int32_t seq, int32_t plane, int32_t n_tok) {
    const kv_pool *p = c->p;
    int64_t i = kv_plane_index(p, seq, plane);
    int32_t n = 0, last = -1;
    for (int32_t pos = 0; pos < n_tok; pos++) {
        if (!kv_owns(c->kv, p, seq, plane, pos)) continue;
        if (n == p->len[i]) return bad(c, "seq %d plane %d: more tokens than its length %d", seq, plane, n);
        int32_t slot = kv_map_row(c->kv, p, seq, plane)[pos];
        int32_t due = kv_log_slot(kv_log(p, seq, plane), n);
        if (slot != due) return bad(c, "seq %d plane %d pos %d: slot %d, not %d", seq, plane, pos, slot, due);
        last = pos;
        n++;
    }
    if (n != p->len[i]) return bad(c, "seq %d plane %d: %d tokens, length %d", seq, plane, n, p->len[i]);
    if (last != p->last[i]) return bad(c, "seq %d plane %d: last %d, not %d", seq, plane, p->last[i], last);
    return 1;
}

/* One token's column: owned planes are 0..e; a depth of an owned plane shows that plane's slot; all other depths show
 * slot(e), or all are unset because the token has not left the core. */
static int token_valid(const checker *c, int32_t seq, int32_t pos) {
    const kv_pool *p = c->p;
    int32_t n_own = 0, left = -1;
    while (n_own < p->n_plane && kv_owns(c->kv, p, seq, n_own, pos)) n_own++;
    if (n_own == 0) return bad(c, "seq %d pos %d: no slot on plane 0", seq, pos);
    for (int32_t d = 0; d < p->n_map; d++) {
        int32_t slot = kv_map_row(c->kv, p, seq, d)[pos], plane = d % p->n_plane, own = plane < n_own;
        int32_t due = kv_map_row(c->kv, p, seq, own ? plane : n_own - 1)[pos];
        if (slot != due && (own || slot != -1))
            return bad(c, "seq %d depth %d pos %d: slot %d, not %d", seq, d, pos, slot, due);
        if (!own && left >= 0 && left != (slot != -1)) return bad(c, "seq %d pos %d: left by halves", seq, pos);
        if (!own) left = slot != -1;
    }
    return 1;
}

static int seq_map_valid(const checker *c, int32_t seq) {
    const kv_pool *p = c->p;
    int32_t n_tok = p->len[kv_plane_index(p, seq, 0)];
    for (int32_t pos = 0; pos < n_tok; pos++)
        if (!token_valid(c, seq, pos)) return 0;
    for (int32_t plane = 0; plane < p->n_plane; plane++)
        if (!plane_valid(c, seq, plane, n_tok)) return 0;
    for (int32_t d = 0; d < p->n_map; d++)
        for (int32_t pos = n_tok; pos < c->kv->seq[seq].ready; pos++)
            if (kv_map_row(c->kv, p, seq, d)[pos] != -1)
                return bad(c, "seq %d depth %d pos %d: set, but no such token", seq, d, pos);
    return 1;
}

/* Park blocks first: what is left in scratch and place, the pool's, is for gy_prefix_is_valid. */
static int pool_valid(const checker *c) {
    checker park = *c;
    park.group = c->p == &c->kv->pool[GY_KV_CORE] ? "core parked" : "boundary parked";
    if (!park_valid(&park)) return 0;
    if (!free_list_valid(c, c->p->free, c->p->n_free, c->p->n_block) || !logs_valid(c, 0) || !refs_valid(c)) return 0;
    for (int32_t s = 0; s < c->kv->cfg.max_seqs; s++)
        if (!c->kv->seq[s].parked && !ends_valid(c, s)) return 0;
    for (int32_t s = 0; s < c->kv->cfg.max_seqs; s++)
        if (!seq_map_valid(c, s)) return 0;
    return planes_valid(c);
}

int gy_kv_is_valid(const gy_kv *kv, char *buf, size_t cap) {
    checker c = {.kv = kv, .group = "sequences", .buf = buf, .cap = cap};
    if (!gy_carve_check(&kv->mem)) return bad(&c, "a red zone was written over");
    if (!seqs_valid(&c)) return 0;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        c.p = &kv->pool[g];
        c.group = g == GY_KV_CORE ? "core" : "boundary";
        if (c.p->n_block && !pool_valid(&c)) return 0;
    }
    return !kv->prefix || gy_prefix_is_valid(kv->prefix, buf, cap);
}
