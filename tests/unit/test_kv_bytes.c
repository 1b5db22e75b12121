/* Everything that moves or shares blocks, in random workloads over bytes that say what they are: claim, exit, truncate,
 * share, attach, publish, evict, park, restore, outside holders. Each slot of the test's memory holds a tag that
 * depends on the space, on all tokens up to this one with their depths, and on the loop that wrote it. After each call
 * every reader of every sequence must find the tag that a sequence alone would have written.
 */
#include "kv/prefix_int.h"

#include "base/mem.h"
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEQS = 6, LEN = 100, LOOPS = 7, BLOCKS = 160, PARKS = 160, HOLDS = 3, BOUNDARY_LOOP = 1000 };

typedef struct shape {
    gy_kv_layout layout;
    int k, n_loop, depth, boundary, n_block, n_park, collide;
} shape;

typedef struct token {
    int exit; /* the depth it is going to leave after */
    int ran;  /* deepest depth claimed */
    int left; /* 1: it has left */
    uint64_t hist;
} token;

typedef struct seq {
    int open, parked, n_tok, cap, space;
    int n_full;       /* tokens below run exactly `depth` loops */
    int shared;       /* tokens whose blocks others may hold */
    int32_t ids[LEN]; /* all that will come */
    token t[LEN];
    gy_prefix_cursor cursor;
} seq;

typedef struct hold {
    int taken;
    gy_kv_group g;
    int32_t block;
    uint64_t tags[GY_KV_BLOCK_LEN];
} hold;

typedef struct model {
    shape sh;
    gy_kv_config cfg;
    gy_kv *kv;
    seq s[SEQS];
    hold held[HOLDS];
    uint64_t bytes[GY_KV_GROUPS][BLOCKS * GY_KV_BLOCK_LEN], park[GY_KV_GROUPS][PARKS * GY_KV_BLOCK_LEN];
    uint64_t seed;
    uint32_t draw;
    /* what was, before the call at hand */
    prefix_row row[BLOCKS];
    int alone[GY_KV_GROUPS][BLOCKS]; /* blocks of the row that only the cache held */
    int64_t used_at[BLOCKS], now;    /* when the row or one below it was last used */
    int n_again, n_evict, n_hit, n_restore, n_busy_evict, n_share, n_cut;
} model;

static uint32_t rnd(model *m, uint32_t n) {
    uint32_t w[4];
    gy_rand_block(m->seed, 0, 0, GY_RAND_TEST, m->draw++, w);
    return w[0] % n;
}

static uint64_t fold(uint64_t h, uint64_t x) { /* FNV-1a over 8 bytes */
    for (int i = 0; i < 64; i += 8) h = (h ^ ((x >> i) & 255)) * 0x100000001b3u;
    return h;
}

static gy_prefix_space space_of(int i) {
    static const gy_prefix_space all[] = {{NULL, 0, 0, 0}, {"a", 1, 0, 0}, {"a\0b", 3, 0, 0},
                                          {NULL, 0, 1, 5}, {"a", 1, 1, 5}, {NULL, 0, 1, 6}};
    return all[i];
}

static int plane_count(const model *m) {
    return gy_kv_n_plane(&m->cfg, GY_KV_CORE);
}

/* ---- what must be read ---- */

/* The loop whose write a query at depth d finds; -1 = nothing yet. From the table of layouts, not from planes in
 * blocks. */
static int writer_of(const model *m, const token *t, int d) {
    int w = -1, planes = plane_count(m);
    for (int r = 0; r <= t->ran; r++)
        if (r % planes == d % planes) w = r;
    return w < 0 && t->left ? t->ran : w;
}

static void check_entry(const model *m, int s, gy_kv_group g, int d, int pos, int loop) {
    int32_t slot = gy_kv_map(m->kv, g)[gy_kv_map_off(m->kv, g, s, d) + pos];
    if (loop < 0 || pos >= m->s[s].n_tok) {
        if (slot != -1) fail_msg("seq %d depth %d pos %d: slot %d, not -1", s, d, pos, slot);
        return;
    }
    uint64_t due = fold(m->s[s].t[pos].hist, (uint64_t)loop);
    int n_block = m->s[s].parked ? m->cfg.n_park[g] : m->cfg.n_block[g];
    if (slot < 0 || slot >= n_block * GY_KV_BLOCK_LEN) fail_msg("seq %d depth %d pos %d: slot %d", s, d, pos, slot);
    if ((m->s[s].parked ? m->park : m->bytes)[g][slot] != due)
        fail_msg("seq %d group %d depth %d pos %d: wrong bytes", s, (int)g, d, pos);
}

static void check_bytes(const model *m) {
    for (int s = 0; s < SEQS; s++) {
        for (int d = 0; d < m->cfg.n_loop && m->s[s].open; d++)
            for (int pos = 0; pos < m->s[s].cap; pos++)
                check_entry(m, s, GY_KV_CORE, d, pos, writer_of(m, &m->s[s].t[pos], d));
        for (int pos = 0; pos < m->s[s].cap && m->s[s].open && m->sh.boundary; pos++)
            check_entry(m, s, GY_KV_BOUNDARY, 0, pos, BOUNDARY_LOOP);
    }
    for (int i = 0; i < HOLDS; i++) {
        const hold *h = &m->held[i];
        if (h->taken) assert_memory_equal(h->tags, m->bytes[h->g] + h->block * GY_KV_BLOCK_LEN, sizeof h->tags);
    }
}

/* Blocks that a sequence's tokens ask for, and the blocks in use: those that maps, rows and holders name. */
static void check_counts(const model *m, gy_kv_group g) {
    static unsigned char used[BLOCKS];
    int n_used = 0, n_parked = 0, planes = g == GY_KV_CORE ? plane_count(m) : 1;
    const kv_prefix *x = m->kv->prefix;
    memset(used, 0, sizeof used);
    for (int s = 0; s < SEQS; s++) {
        int n_due = 0;
        for (int plane = 0; plane < planes && m->s[s].open; plane++) {
            int n = 0;
            for (int pos = 0; pos < m->s[s].n_tok; pos++) {
                if (m->s[s].t[pos].ran < plane && g == GY_KV_CORE) continue;
                n++;
                if (!m->s[s].parked)
                    used[gy_kv_map(m->kv, g)[gy_kv_map_off(m->kv, g, s, plane) + pos] / GY_KV_BLOCK_LEN] = 1;
            }
            assert_int_equal(gy_kv_plane_len(m->kv, g, s, plane), n);
            n_due += (n + 15) / 16;
        }
        assert_int_equal(gy_kv_seq_blocks(m->kv, g, s), n_due);
        if (m->s[s].parked) n_parked += n_due;
    }
    for (int i = 0; i < HOLDS; i++)
        if (m->held[i].taken && m->held[i].g == g) used[m->held[i].block] = 1;
    for (int b = 0; b < BLOCKS; b++) n_used += used[b];
    int n_alone = 0;
    for (int r = 0; r < x->n_max; r++)
        for (int j = 0; x->row[r].stamp && j < (g == GY_KV_CORE ? x->n_own : 1); j++)
            n_alone += !used[g == GY_KV_CORE ? x->core[r * x->n_own + j] : x->boundary[r]];
    assert_int_equal(gy_kv_n_free(m->kv, g), m->cfg.n_block[g] - n_used - n_alone);
    assert_int_equal(gy_kv_n_cached(m->kv, g), n_alone);
    assert_int_equal(gy_kv_n_avail(m->kv, g), m->cfg.n_block[g] - n_used);
    assert_int_equal(gy_kv_n_park_free(m->kv, g), m->cfg.n_park[g] - n_parked);
}

/* ---- which rows went ---- */

static void rows_remember(model *m) {
    const kv_prefix *x = m->kv->prefix;
    const kv_pool *p = m->kv->pool;
    memcpy(m->row, x->row, (size_t)x->n_max * sizeof *x->row);
    memset(m->alone, 0, sizeof m->alone);
    for (int r = 0; r < x->n_max; r++) {
        if (!x->row[r].stamp) continue;
        for (int j = 0; j < x->n_own; j++) m->alone[0][r] += p[0].refs[x->core[r * x->n_own + j]] == 1;
        if (m->sh.boundary) m->alone[1][r] = p[1].refs[x->boundary[r]] == 1;
    }
}

static int vanished(const model *m, int r) {
    return m->row[r].stamp && m->kv->prefix->row[r].stamp != m->row[r].stamp;
}

/* Leaves first, what is in use last, least recently used first. */
static void check_order(model *m) {
    const kv_prefix *x = m->kv->prefix;
    for (int v = 0; v < x->n_max; v++) {
        if (!vanished(m, v)) continue;
        m->n_evict++;
        m->n_busy_evict += m->row[v].pin > 0;
        for (int r = 0; r < x->n_max; r++) {
            if (!m->row[r].stamp || vanished(m, r)) continue;
            assert_int_not_equal(m->row[r].parent, v);
            if (m->row[r].pin > 0) continue;
            assert_int_equal(m->row[v].pin, 0);
            assert_true(m->used_at[v] <= m->used_at[r]);
        }
    }
}

/* A claim evicts only when no block is free, and not one row more than it needs. */
static void check_need(const model *m, gy_kv_group g, int n_free_before) {
    int n_gone = 0, n_useful = 0;
    for (int r = 0; r < m->kv->prefix->n_max; r++) {
        n_gone += vanished(m, r);
        n_useful += vanished(m, r) && m->alone[g][r];
    }
    if (n_gone) assert_int_equal(n_free_before, 0);
    assert_true(n_useful <= 1);
}

static void check_none_went(const model *m) {
    for (int r = 0; r < m->kv->prefix->n_max; r++) assert_false(vanished(m, r));
}

static void rows_age(model *m) {
    const kv_prefix *x = m->kv->prefix;
    m->now++;
    for (int r = 0; r < x->n_max; r++)
        if (x->row[r].stamp && x->row[r].pin) m->used_at[r] = m->now;
}

/* ---- GY_AGAIN leaves everything as it was ---- */

typedef struct picture {
    gy_kv kv;
    kv_prefix x;
    size_t n[2];
    char mem[2][1 << 19];
} picture;
static picture before, after;

static void picture_take(const model *m, picture *p) {
    p->kv = *m->kv;
    p->x = *m->kv->prefix;
    p->n[0] = m->kv->mem.used;
    p->n[1] = m->kv->prefix->mem.used;
    assert_true(p->n[0] <= sizeof p->mem[0] && p->n[1] <= sizeof p->mem[1]);
    memcpy(p->mem[0], m->kv->mem.base, p->n[0]);
    memcpy(p->mem[1], m->kv->prefix->mem.base, p->n[1]);
}

static void check_same(model *m) {
    picture_take(m, &after);
    assert_memory_equal(&before.kv, &after.kv, sizeof before.kv);
    assert_memory_equal(&before.x, &after.x, sizeof before.x);
    assert_memory_equal(before.mem[0], after.mem[0], before.n[0]);
    assert_memory_equal(before.mem[1], after.mem[1], before.n[1]);
    m->n_again++;
}

/* ---- the calls ---- */

/* Rows come in two variants, and now and then one token differs: prompts meet and part in all places. */
static void ids_draw(model *m, seq *q, int from) {
    for (int pos = from; pos < q->cap; pos++) {
        int first = pos == from || pos % GY_KV_BLOCK_LEN == 0;
        int32_t variant = first ? (int32_t)rnd(m, 2) : q->ids[pos - 1] % 10 / 2;
        q->ids[pos] = pos / GY_KV_BLOCK_LEN * 10 + 2 * variant + (rnd(m, 200) == 0);
    }
}

static void token_plan(model *m, seq *q, int pos) {
    token *t = &q->t[pos];
    t->exit = pos < q->n_full ? m->sh.depth - 1 : (int)rnd(m, (uint32_t)m->sh.n_loop);
    t->ran = -1;
    t->left = 0;
    t->hist =
        fold(fold(pos ? q->t[pos - 1].hist : fold(17, (uint64_t)q->space), (uint64_t)q->ids[pos]), (uint64_t)t->exit);
}

static void tokens_take_over(model *m, seq *q, int n) {
    for (int pos = 0; pos < n; pos++) {
        token_plan(m, q, pos);
        q->t[pos].ran = m->sh.depth - 1;
        q->t[pos].left = 1;
    }
    q->n_tok = q->shared = n;
}

/* The longest run that the rows themselves hold, without hash or space index. */
static int naive_match(const model *m, const seq *q, int n_tok) {
    const kv_prefix *x = m->kv->prefix;
    gy_prefix_space key = space_of(q->space);
    int32_t parent = gy_prefix_find_space(x, &key);
    int n = 0;
    for (int found = parent >= 0; found && n + GY_KV_BLOCK_LEN <= n_tok;) {
        found = 0;
        for (int32_t r = 0; r < x->n_max && !found; r++) {
            found = x->row[r].stamp && x->row[r].parent == parent &&
                    memcmp(x->row[r].tok, q->ids + n, sizeof x->row[r].tok) == 0;
            if (found) parent = r;
        }
        if (found) n += GY_KV_BLOCK_LEN;
    }
    return n;
}

static void op_attach(model *m, int s) {
    seq *q = &m->s[s];
    gy_prefix_space key = space_of(q->space);
    int32_t alone[GY_KV_GROUPS], cached[GY_KV_GROUPS];
    for (int g = 0; g < GY_KV_GROUPS; g++) cached[g] = gy_kv_n_cached(m->kv, (gy_kv_group)g);
    int n = gy_prefix_match(m->kv, &key, q->ids, q->n_full, alone);
    assert_int_equal(n, naive_match(m, q, q->n_full));
    assert_int_equal(gy_prefix_attach(m->kv, &key, q->ids, q->n_full, s, &q->cursor), n);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        assert_int_equal(gy_kv_n_cached(m->kv, (gy_kv_group)g), cached[g] - alone[g]);
    assert_int_equal(q->cursor.n_row, n / GY_KV_BLOCK_LEN);
    tokens_take_over(m, q, n);
    m->n_hit += n > 0;
}

/* Leading tokens that have left after exactly `depth` loops. */
static int done_of(const model *m, const seq *q) {
    int n = 0;
    while (n < q->n_tok && q->t[n].left && q->t[n].ran == m->sh.depth - 1) n++;
    return n;
}

static void op_share(model *m, int s) {
    int from = (int)rnd(m, SEQS), n;
    seq *q = &m->s[s], *src = &m->s[from];
    if (from == s || !src->open || src->parked) return;
    n = done_of(m, src) / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
    if (n > q->cap) n = q->cap / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
    if (n) n -= (int)rnd(m, (uint32_t)n / GY_KV_BLOCK_LEN) * GY_KV_BLOCK_LEN;
    q->space = src->space;
    memcpy(q->ids, src->ids, (size_t)n * sizeof *q->ids);
    if (q->n_full < n) q->n_full = n;
    gy_kv_share(m->kv, from, s, n);
    tokens_take_over(m, q, n);
    if (src->shared < n) src->shared = n;
    m->n_share += n > 0;
}

static void op_open(model *m) {
    int32_t s = -1, cap = 1 + (int32_t)rnd(m, LEN);
    if (gy_kv_seq_open(m->kv, cap, &s) != GY_OK) return;
    seq *q = &m->s[s];
    *q = (seq){.open = 1, .cap = cap, .space = (int)rnd(m, 6), .n_full = (int)rnd(m, (uint32_t)cap + 1)};
    if (rnd(m, 3)) q->space = 0;
    ids_draw(m, q, 0);
    if (rnd(m, 4))
        op_attach(m, s);
    else
        op_share(m, s);
}

static void op_close(model *m, int s) {
    gy_kv_seq_close(m->kv, s);
    m->s[s].open = m->s[s].parked = 0;
}

/* 1: claimed and written. */
static int claim(model *m, int s, gy_kv_group g, int d, int pos, int loop) {
    int32_t slot = -5, n_block = gy_kv_seq_blocks(m->kv, g, s), n_free = gy_kv_n_free(m->kv, g);
    int takes = gy_kv_claim_takes(m->kv, g, s, d, pos), fails = takes && gy_kv_n_avail(m->kv, g) == 0;
    if (fails) picture_take(m, &before);
    gy_status st = gy_kv_claim(m->kv, g, s, d, pos, &slot);
    assert_int_equal(st, fails ? GY_AGAIN : GY_OK);
    check_need(m, g, n_free);
    check_order(m);
    if (fails) {
        assert_int_equal(slot, -5);
        check_same(m);
        return 0;
    }
    assert_int_equal(gy_kv_seq_blocks(m->kv, g, s), n_block + takes);
    m->bytes[g][slot] = fold(m->s[s].t[pos].hist, (uint64_t)loop);
    rows_age(m);
    rows_remember(m);
    return 1;
}

static void op_token(model *m, int s) {
    seq *q = &m->s[s];
    int pos = q->n_tok;
    if (pos == q->cap) return;
    token_plan(m, q, pos);
    /* Core first, so that what a failing boundary claim leaves behind is a whole token or nothing. */
    if (m->sh.boundary && gy_kv_claim_takes(m->kv, GY_KV_BOUNDARY, s, 0, pos) &&
        gy_kv_n_avail(m->kv, GY_KV_BOUNDARY) == 0)
        return;
    if (!claim(m, s, GY_KV_CORE, 0, pos, 0)) return;
    q->t[pos].ran = 0;
    if (m->sh.boundary) assert_true(claim(m, s, GY_KV_BOUNDARY, 0, pos, BOUNDARY_LOOP));
    q->n_tok++;
}

/* Some token still in the core that no earlier one holds back. */
static void op_deeper(model *m, int s) {
    seq *q = &m->s[s];
    int can[LEN], n = 0, floor = LOOPS;
    for (int pos = 0; pos < q->n_tok; pos++) {
        if (q->t[pos].left) continue;
        if (q->t[pos].ran < floor) can[n++] = pos;
        if (q->t[pos].ran < floor) floor = q->t[pos].ran;
    }
    if (!n) return;
    int pos = can[rnd(m, (uint32_t)n)], d = q->t[pos].ran + 1;
    if (d > q->t[pos].exit) {
        gy_kv_exit(m->kv, s, pos, d - 1);
        q->t[pos].left = 1;
    } else if (claim(m, s, GY_KV_CORE, d, pos, d)) {
        q->t[pos].ran = d;
    }
}

static void op_publish(model *m, int s) {
    seq *q = &m->s[s];
    gy_prefix_space key = space_of(q->space);
    int n = done_of(m, q), n_row = q->cursor.n_row;
    gy_prefix_publish(m->kv, &key, q->ids, n, s, &q->cursor);
    check_none_went(m);
    if (q->cursor.node == -1 || q->cursor.n_row == n_row) return; /* what is there already may go at any time */
    assert_true(q->cursor.n_row == n / GY_KV_BLOCK_LEN);
    assert_true(naive_match(m, q, n) >= n / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN);
    if (q->shared < n / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN) q->shared = n / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
}

/* Whole tokens, one after the other, while there is room. */
static void op_run(model *m, int s, int n) {
    seq *q = &m->s[s];
    for (int i = 0, n_again = m->n_again; i < n * LOOPS * 2 && m->n_again == n_again; i++) {
        if (q->n_tok == 0 || q->t[q->n_tok - 1].left) op_token(m, s);
        op_deeper(m, s);
    }
    if (rnd(m, 2)) op_publish(m, s);
}

static int is_held(const model *m, int s) {
    for (int i = 0; i < HOLDS; i++) {
        const kv_pool *p = &m->kv->pool[m->held[i].g];
        for (int plane = 0; plane < p->n_plane && m->held[i].taken; plane++)
            for (int k = 0; k * GY_KV_BLOCK_LEN < gy_kv_plane_len(m->kv, m->held[i].g, s, plane); k++)
                if (kv_log(p, s, plane)[k] == m->held[i].block) return 1;
    }
    return 0;
}

/* Not into a block that others hold; a cursor that is ahead starts again, since other tokens follow now. */
static void op_truncate(model *m, int s) {
    seq *q = &m->s[s];
    int n = (int)rnd(m, (uint32_t)q->n_tok + 1);
    if (n < q->shared) n -= n % GY_KV_BLOCK_LEN;
    if (is_held(m, s)) return;
    gy_kv_truncate(m->kv, s, n);
    m->n_cut += n < q->n_tok;
    q->n_tok = n;
    if (q->shared > n) q->shared = n;
    if (q->cursor.n_row * GY_KV_BLOCK_LEN > n) q->cursor = (gy_prefix_cursor){0};
    ids_draw(m, q, n);
}

static model *copying;
static int n_copied[GY_KV_GROUPS];
static void copy(void *arg, gy_kv_group g, int32_t block, int32_t park_block) {
    uint64_t *a = copying->bytes[g] + block * GY_KV_BLOCK_LEN, *b = copying->park[g] + park_block * GY_KV_BLOCK_LEN;
    if (*(int *)arg)
        memcpy(b, a, GY_KV_BLOCK_LEN * sizeof *a);
    else
        memcpy(a, b, GY_KV_BLOCK_LEN * sizeof *a);
    n_copied[g]++;
}

static void op_park(model *m, int s) {
    int park = !m->s[s].parked, fails = 0;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        gy_kv_group h = (gy_kv_group)g;
        int32_t room = park ? gy_kv_n_park_free(m->kv, h) : gy_kv_n_avail(m->kv, h);
        fails |= gy_kv_seq_blocks(m->kv, h, s) > room;
        n_copied[g] = 0;
    }
    copying = m;
    if (fails) picture_take(m, &before);
    gy_status st = park ? gy_kv_park(m->kv, s, copy, &park) : gy_kv_restore(m->kv, s, copy, &park);
    assert_int_equal(st, fails ? GY_AGAIN : GY_OK);
    if (fails) check_same(m);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        assert_int_equal(n_copied[g], fails ? 0 : gy_kv_seq_blocks(m->kv, (gy_kv_group)g, s));
    if (park)
        check_none_went(m);
    else
        check_order(m);
    if (fails) return;
    m->s[s].parked = park;
    m->s[s].shared = 0;
    m->n_restore += !park;
    assert_int_equal(gy_kv_is_parked(m->kv, s), park);
}

/* A full block of a sequence, as a transfer would. */
static void op_hold(model *m, int s) {
    hold *h = &m->held[rnd(m, HOLDS)];
    if (h->taken) {
        gy_kv_block_unref(m->kv, h->g, h->block);
        h->taken = 0;
        return;
    }
    gy_kv_group g = m->sh.boundary && rnd(m, 2) ? GY_KV_BOUNDARY : GY_KV_CORE;
    int plane = g == GY_KV_CORE ? (int)rnd(m, (uint32_t)plane_count(m)) : 0;
    int n = gy_kv_plane_len(m->kv, g, s, plane) / GY_KV_BLOCK_LEN;
    if (!n || m->s[s].t[m->s[s].n_tok - 1].left == 0) return; /* a flying token may still overwrite its slot */
    for (int pos = 0; pos < m->s[s].n_tok; pos++)
        if (!m->s[s].t[pos].left) return;
    h->g = g;
    h->block = kv_log(&m->kv->pool[g], s, plane)[rnd(m, (uint32_t)n)];
    memcpy(h->tags, m->bytes[g] + h->block * GY_KV_BLOCK_LEN, sizeof h->tags);
    gy_kv_block_ref(m->kv, g, h->block);
    h->taken = 1;
}

static void op_any(model *m) {
    int s = (int)rnd(m, SEQS);
    uint32_t op = rnd(m, 1000);
    int dry = gy_kv_n_avail(m->kv, GY_KV_CORE) == 0 && rnd(m, 20) == 0;
    if (dry && m->s[s].open && !m->s[s].parked)
        op_close(m, s);
    else if (!m->s[s].open)
        op_open(m);
    else if (op < 12)
        op_close(m, s);
    else if (op < (m->s[s].parked ? 300u : 30u))
        op_park(m, s);
    else if (m->s[s].parked)
        return;
    else if (op < 50)
        op_publish(m, s);
    else if (op < 55)
        op_truncate(m, s);
    else if (op < 70)
        op_hold(m, s);
    else if (op < 200)
        op_run(m, s, 1 + (int)rnd(m, 24));
    else if (op < 400)
        op_token(m, s);
    else
        op_deeper(m, s);
    if (op == 999 && rnd(m, 20) == 0) {
        gy_prefix_clear(m->kv);
        rows_remember(m);
    }
}

static model *model_make(const shape *sh, uint64_t seed) {
    static model m;
    static char arena_mem[1];
    void *const arena[GY_KV_GROUPS] = {arena_mem, sh->boundary ? arena_mem : NULL};
    gy_err err = {0};
    memset(&m, 0, sizeof m);
    m.sh = *sh;
    m.seed = seed;
    gy_kv_config c = {.layout = sh->layout, .cyclic_k = sh->k, .n_loop = sh->n_loop, .n_head_kv = 1, .head_dim = 2};
    c.n_layer[0] = 1, c.n_layer[1] = sh->boundary;
    c.dtype = GY_BF16;
    c.n_block[0] = sh->n_block, c.n_block[1] = sh->boundary ? sh->n_block / 2 : 0;
    c.n_park[0] = sh->n_park, c.n_park[1] = sh->boundary ? sh->n_park / 2 : 0;
    c.max_seqs = SEQS;
    c.max_len = LEN;
    m.cfg = c;
    if (gy_kv_create(&c, arena, &err, &m.kv) != GY_OK) fail_msg("%s", err.msg);
    if (gy_prefix_create(m.kv, sh->depth, &err) != GY_OK) fail_msg("%s", err.msg);
    if (sh->collide) m.kv->prefix->hash_mask = 0;
    return &m;
}

static void finish(model *m) {
    for (int s = 0; s < SEQS; s++)
        if (m->s[s].open) op_close(m, s);
    for (int i = 0; i < HOLDS; i++)
        if (m->held[i].taken) gy_kv_block_unref(m->kv, m->held[i].g, m->held[i].block);
    gy_prefix_clear(m->kv);
    char why[256];
    if (!gy_kv_is_valid(m->kv, why, sizeof why)) fail_msg("at the end: %s", why);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        assert_int_equal(gy_kv_n_free(m->kv, (gy_kv_group)g), m->cfg.n_block[g]);
        assert_int_equal(gy_kv_n_park_free(m->kv, (gy_kv_group)g), m->cfg.n_park[g]);
    }
    gy_kv_destroy(m->kv);
}

static const shape SHAPES[] = {
    {GY_KV_LAST_EXITED, 0, 4, 4, 1, 160, 160, 0}, {GY_KV_LAST_EXITED, 0, 4, 4, 1, 50, 40, 0},
    {GY_KV_LAST_EXITED, 0, 4, 2, 0, 30, 30, 0},   {GY_KV_LAST_EXITED, 0, 3, 3, 1, 24, 20, 1},
    {GY_KV_LAST_EXITED, 0, 2, 2, 0, 20, 9, 0},    {GY_KV_LAST_EXITED, 0, 1, 1, 1, 12, 8, 0},
    {GY_KV_LAST_EXITED, 0, 7, 4, 0, 40, 0, 0},    {GY_KV_SHARED, 0, 4, 4, 1, 14, 10, 0},
    {GY_KV_SHARED, 0, 3, 2, 0, 10, 10, 1},        {GY_KV_CYCLIC, 3, 7, 2, 1, 30, 20, 0},
    {GY_KV_CYCLIC, 2, 7, 4, 0, 20, 20, 0},        {GY_KV_CYCLIC, 4, 5, 5, 1, 36, 20, 0},
};

static void readers_find_what_they_would_have_written(void **state) {
    (void)state;
    int n_again = 0, n_evict = 0, n_busy = 0, n_hit = 0, n_restore = 0, n_share = 0, n_cut = 0;
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        model *m = model_make(&SHAPES[i], 1000 + i);
        gy_mem_guard_begin();
        for (int op = 0; op < 6000; op++) {
            char why[256];
            rows_remember(m);
            op_any(m);
            rows_age(m);
            if (!gy_kv_is_valid(m->kv, why, sizeof why)) fail_msg("shape %zu op %d: %s", i, op, why);
            check_bytes(m);
            check_counts(m, GY_KV_CORE);
            if (m->sh.boundary) check_counts(m, GY_KV_BOUNDARY);
        }
        gy_mem_guard_end();
        n_again += m->n_again, n_evict += m->n_evict, n_busy += m->n_busy_evict, n_hit += m->n_hit;
        n_restore += m->n_restore, n_share += m->n_share, n_cut += m->n_cut;
        finish(m);
    }
    printf("again %d, evicted %d (in use %d), hits %d, restored %d, shared %d, cut %d\n", n_again, n_evict, n_busy,
           n_hit, n_restore, n_share, n_cut);
    assert_true(n_again > 100 && n_evict > 100 && n_busy > 10 && n_hit > 100); /* it was all there */
    assert_true(n_restore > 100 && n_share > 30 && n_cut > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_find_what_they_would_have_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
