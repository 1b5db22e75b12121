/* Sequences as wholes: open, close, rewind, and the beginning that they take over from others. One token at a time is
 * kv.c's business, leaving the pool park.c's.
 */
#include "kv/kv_int.h"

/* Entries [lo, hi) of every map row of the sequence become -1. */
static void map_clear(gy_kv *kv, const kv_pool *p, int32_t seq, int32_t lo, int32_t hi) {
    for (int32_t d = 0; d < p->n_map; d++) {
        int32_t *row = kv_map_row(kv, p, seq, d);
        for (int32_t pos = lo; pos < hi; pos++) row[pos] = -1;
    }
}

gy_status gy_kv_seq_open(gy_kv *kv, int32_t max_tok, int32_t *seq_out) {
    if (max_tok < 1 || max_tok > kv->cfg.max_len) return GY_E_LIMIT;
    if (kv->n_seq_free == 0) return GY_AGAIN;
    int32_t seq = kv->seq_free[--kv->n_seq_free];
    kv_seq *s = &kv->seq[seq];
    s->open = 1;
    s->max_tok = max_tok;
    if (s->ready < max_tok) {
        for (int g = 0; g < GY_KV_GROUPS; g++) map_clear(kv, &kv->pool[g], seq, s->ready, max_tok);
        s->ready = max_tok;
    }
    *seq_out = seq;
    return GY_OK;
}

/* Last first: the pool is a stack, so the next sequence gets them in the order in which this one did, and neighbours
 * stay neighbours (what crosses between engines is copied in runs of them). */
static void pool_release(kv_pool *p, int32_t seq, int parked) {
    for (int32_t plane = p->n_plane - 1; plane >= 0; plane--) {
        int64_t i = kv_plane_index(p, seq, plane);
        const int32_t *log = kv_log(p, seq, plane);
        for (int32_t k = kv_blocks_of(p->len[i]) - 1; k >= 0; k--) {
            if (parked)
                gy_kv_park_put(p, log[k]);
            else
                gy_kv_pool_unref(p, log[k]);
        }
        p->len[i] = 0;
        p->last[i] = -1;
    }
    p->blocks[seq] = 0;
}

void gy_kv_seq_close(gy_kv *kv, int32_t seq) {
    GY_CHECK(kv_seq_is_open(kv, seq));
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        kv_pool *p = &kv->pool[g];
        if (!p->n_block) continue;
        map_clear(kv, p, seq, 0, kv_seq_len(p, seq));
        pool_release(p, seq, kv->seq[seq].parked);
    }
    kv->seq[seq].open = kv->seq[seq].parked = 0;
    kv->seq_free[kv->n_seq_free++] = seq;
}

/* The plane's tokens from n_tok on are dropped. The map still shows them. */
static void plane_truncate(gy_kv *kv, kv_pool *p, int32_t seq, int32_t plane, int32_t n_tok) {
    int64_t i = kv_plane_index(p, seq, plane);
    const int32_t *log = kv_log(p, seq, plane);
    int32_t n = p->len[i], last = p->last[i], n_block = kv_blocks_of(n);
    if (last < n_tok) return;
    for (; last >= n_tok; last--) n -= kv_owns(kv, p, seq, plane, last);
    while (n > 0 && !kv_owns(kv, p, seq, plane, last)) last--;
    p->len[i] = n;
    p->last[i] = n > 0 ? last : -1;
    for (int32_t k = kv_blocks_of(n); k < n_block; k++) {
        gy_kv_pool_unref(p, log[k]);
        p->blocks[seq]--;
    }
    if (n % GY_KV_BLOCK_LEN == 0) return;
    int32_t end = log[n / GY_KV_BLOCK_LEN];
    GY_CHECK(p->refs[end] == 1); /* the next token would be written into what others read */
}

void gy_kv_truncate(gy_kv *kv, int32_t seq, int32_t n_tok) {
    GY_CHECK(kv_seq_is_live(kv, seq) && n_tok >= 0);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        kv_pool *p = &kv->pool[g];
        int32_t n_old = kv_seq_len(p, seq);
        if (n_tok >= n_old) continue;
        for (int32_t plane = 0; plane < p->n_plane; plane++) plane_truncate(kv, p, seq, plane, n_tok);
        map_clear(kv, p, seq, n_tok, n_old);
    }
}

/* The block becomes the next 16 slots of a plane. Returns the position of the first. */
static int32_t plane_adopt(kv_pool *p, int32_t seq, int32_t plane, int32_t block) {
    int64_t i = kv_plane_index(p, seq, plane);
    int32_t n = p->len[i];
    GY_CHECK(n % GY_KV_BLOCK_LEN == 0 && p->last[i] == n - 1 && n / GY_KV_BLOCK_LEN < p->log_blocks);
    gy_kv_pool_ref(p, block);
    kv_log(p, seq, plane)[n / GY_KV_BLOCK_LEN] = block;
    p->len[i] = n + GY_KV_BLOCK_LEN;
    p->last[i] = n + GY_KV_BLOCK_LEN - 1;
    p->blocks[seq]++;
    return n;
}

static void map_adopt(gy_kv *kv, const kv_pool *p, int32_t seq, int32_t pos, int32_t n_own) {
    for (int32_t d = 0; d < p->n_map; d++) {
        int32_t plane = d % p->n_plane < n_own ? d % p->n_plane : n_own - 1;
        int32_t slot = kv_log_slot(kv_log(p, seq, plane), pos), *row = kv_map_row(kv, p, seq, d) + pos;
        for (int32_t i = 0; i < GY_KV_BLOCK_LEN; i++) row[i] = slot + i;
    }
}

void gy_kv_adopt(gy_kv *kv, int32_t seq, const int32_t *core, int64_t stride, int32_t n_own, int32_t boundary) {
    kv_pool *p = &kv->pool[GY_KV_CORE], *q = &kv->pool[GY_KV_BOUNDARY];
    int32_t pos = kv_seq_len(p, seq);
    GY_CHECK(kv->seq[seq].max_tok - pos >= GY_KV_BLOCK_LEN);
    for (int32_t plane = 0; plane < n_own; plane++) GY_CHECK(plane_adopt(p, seq, plane, core[plane * stride]) == pos);
    map_adopt(kv, p, seq, pos, n_own);
    if (!q->n_block) return;
    GY_CHECK(plane_adopt(q, seq, 0, boundary) == pos);
    map_adopt(kv, q, seq, pos, 1);
}

/* Planes that each of the first n_tok tokens owns, all of them having left the core; anything else is a broken call. */
static int32_t owned_by_all(const gy_kv *kv, int32_t seq, int32_t n_tok) {
    const kv_pool *p = &kv->pool[GY_KV_CORE];
    int32_t n_own = 0;
    while (n_own < p->n_plane && kv_owns(kv, p, seq, n_own, 0)) n_own++;
    GY_CHECK(n_own > 0 && p->len[kv_plane_index(p, seq, n_own - 1)] >= n_tok);
    const int32_t *log = kv_log(p, seq, n_own - 1), *deepest = kv_map_row(kv, p, seq, n_own - 1);
    const int32_t *next = n_own < p->n_plane ? kv_map_row(kv, p, seq, n_own) : deepest;
    for (int32_t pos = 0; pos < n_tok; pos++)
        GY_CHECK(deepest[pos] == kv_log_slot(log, pos) && next[pos] == deepest[pos]);
    return n_own;
}

void gy_kv_share(gy_kv *kv, int32_t src, int32_t dst, int32_t n_tok) {
    kv_pool *p = &kv->pool[GY_KV_CORE], *q = &kv->pool[GY_KV_BOUNDARY];
    GY_CHECK(kv_seq_is_live(kv, src) && kv_seq_is_live(kv, dst) && n_tok >= 0 && n_tok % GY_KV_BLOCK_LEN == 0);
    GY_CHECK(kv_seq_len(p, dst) == 0 && kv_seq_len(q, dst) == 0 && (!q->n_block || kv_seq_len(q, src) >= n_tok));
    if (n_tok == 0) return;
    int32_t n_own = owned_by_all(kv, src, n_tok);
    for (int32_t k = 0; k < n_tok / GY_KV_BLOCK_LEN; k++)
        gy_kv_adopt(kv, dst, kv_log(p, src, 0) + k, p->log_blocks, n_own, q->n_block ? kv_log(q, src, 0)[k] : -1);
}
