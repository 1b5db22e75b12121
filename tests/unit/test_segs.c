/* Which bytes move: the walk against a naive map of single bytes, limits, merging, the conformance vector. */
#include "base_test.h"

#include "pd/segs.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PLANE = 8, MAX_TAB = 16, MAX_DESC = 512 };

typedef struct world { /* one random transfer */
    gy_seg_group g[2];
    gy_seg_plane pl[MAX_PLANE];
    gy_seg_raw raw;
    int32_t src[MAX_PLANE][MAX_TAB], dst[MAX_PLANE][MAX_TAB];
    gy_seg_plan plan;
} world;

static uint64_t rng;
static int32_t below(int32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

static size_t block_bytes(const gy_seg_group *g) {
    return (size_t)g->n_layer * 2 * 16 * g->tok_bytes;
}

/* Block ids that may not repeat on the destination side; `runs`: mostly ascending, as an allocator gives them. */
static void fill_tables(world *w, int32_t n_pool, int runs) {
    int32_t perm[2][MAX_PLANE * MAX_TAB];
    for (int side = 0; side < 2; side++) {
        for (int32_t i = 0; i < n_pool; i++) perm[side][i] = i;
        if (!runs)
            for (int32_t i = n_pool - 1; i > 0; i--) {
                int32_t k = below(i + 1), t = perm[side][i];
                perm[side][i] = perm[side][k];
                perm[side][k] = t;
            }
    }
    for (int32_t p = 0; p < MAX_PLANE; p++)
        for (int32_t b = 0; b < MAX_TAB; b++) {
            w->src[p][b] = perm[0][p * MAX_TAB + b];
            w->dst[p][b] = perm[1][p * MAX_TAB + b];
        }
}

static void make(world *w, uint64_t seed) {
    rng = seed * 2 + 1;
    memset(w, 0, sizeof *w);
    for (int k = 0; k < 2; k++)
        w->g[k] = (gy_seg_group){.src_region = k,
                                 .dst_region = k + below(2),
                                 .n_layer = 1 + below(3),
                                 .tok_bytes = (size_t)(1 + below(5)),
                                 .n_block_src = MAX_PLANE * MAX_TAB,
                                 .n_block_dst = MAX_PLANE * MAX_TAB};
    fill_tables(w, MAX_PLANE * MAX_TAB, below(2));
    int32_t n = below(MAX_PLANE + 1);
    for (int32_t p = 0; p < n; p++) {
        int32_t a = below(MAX_TAB * 16), b = below(MAX_TAB * 16 + 1);
        w->pl[p] = (gy_seg_plane){
            .group = &w->g[below(2)], .src = w->src[p], .dst = w->dst[p], .from = a < b ? a : b, .to = a < b ? b : a};
    }
    w->raw = (gy_seg_raw){.src_region = 3, .dst_region = 3, .src_off = 5, .dst_off = 64, .bytes = (size_t)below(100)};
    w->plan = (gy_seg_plan){.plane = w->pl, .n_plane = n, .raw = &w->raw, .n_raw = below(2)};
    w->plan.round_tail = below(4) == 0;
}

/* Destination byte -> source byte + 1, one array per region pair. */
typedef struct byte_map {
    uint32_t *to[4];
    size_t cap;
} byte_map;

static void map_open(byte_map *m) {
    m->cap = (size_t)MAX_PLANE * MAX_TAB * 3 * 2 * 16 * 5;
    for (int k = 0; k < 4; k++) m->to[k] = calloc(m->cap, sizeof(uint32_t));
}
static void map_close(byte_map *m) {
    for (int k = 0; k < 4; k++) free(m->to[k]);
}
static void map_put(byte_map *m, int32_t dst_region, size_t dst, int32_t src_region, size_t src) {
    assert_true(dst < m->cap);
    m->to[dst_region][dst] = (uint32_t)(src * 4 + (size_t)src_region) + 1;
}

/* The definition: token by token, layer by layer, K and V, byte by byte. */
static size_t naive(const world *w, byte_map *m) {
    size_t n = 0;
    for (int32_t p = 0; p < w->plan.n_plane; p++) {
        const gy_seg_plane *pl = &w->pl[p];
        const gy_seg_group *g = pl->group;
        int32_t to = pl->to;
        /* A rounded tail: the rest of the last block, if the range began at that block's first token or before. */
        if (w->plan.round_tail && pl->from < to && to % 16 && pl->from <= to / 16 * 16) to = (to / 16 + 1) * 16;
        for (int32_t t = pl->from; t < to; t++)
            for (int32_t layer = 0; layer < g->n_layer; layer++)
                for (int kv = 0; kv < 2; kv++)
                    for (size_t b = 0; b < g->tok_bytes; b++) {
                        size_t in = (((size_t)layer * 2 + (size_t)kv) * 16 + (size_t)(t % 16)) * g->tok_bytes + b;
                        map_put(m, g->dst_region, (size_t)pl->dst[t / 16] * block_bytes(g) + in, g->src_region,
                                (size_t)pl->src[t / 16] * block_bytes(g) + in);
                        n++;
                    }
    }
    for (int32_t r = 0; r < w->plan.n_raw; r++)
        for (size_t b = 0; b < w->raw.bytes; b++, n++) map_put(m, 3, w->raw.dst_off + b, 3, w->raw.src_off + b);
    return n;
}

static size_t walk(const world *w, const gy_xfer_limits *l, byte_map *m, int32_t *n_op, int32_t *n_desc) {
    gy_xfer_desc d[MAX_DESC];
    gy_seg_cursor c = {0};
    size_t sum = 0;
    int32_t n;
    *n_op = *n_desc = 0;
    while ((n = gy_seg_next(&w->plan, w->plan.n_plane + 1, l, &c, d))) {
        size_t op = 0;
        assert_in_range(n, 1, l->max_desc);
        for (int32_t i = 0; i < n; i++) {
            assert_true(d[i].bytes > 0);
            if (i)
                assert_false(d[i].src_region == d[i - 1].src_region && d[i].dst_region == d[i - 1].dst_region &&
                             d[i - 1].src_off + d[i - 1].bytes == d[i].src_off &&
                             d[i - 1].dst_off + d[i - 1].bytes == d[i].dst_off);
            for (size_t b = 0; b < d[i].bytes; b++)
                map_put(m, d[i].dst_region, d[i].dst_off + b, d[i].src_region, d[i].src_off + b);
            op += d[i].bytes;
        }
        assert_true(op <= l->chunk_bytes);
        sum += op;
        *n_desc += n;
        ++*n_op;
    }
    assert_int_equal(gy_seg_next(&w->plan, w->plan.n_plane + 1, l, &c, d), 0);
    return sum;
}

static void test_random_tables(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        world w;
        make(&w, seed);
        gy_xfer_limits l = {.chunk_bytes = (size_t)(1 + below(2000)), .max_desc = 1 + below(40)};
        byte_map want, got;
        map_open(&want);
        map_open(&got);
        int32_t n_op, n_desc;
        assert_int_equal(gy_seg_check(&w.plan, NULL), GY_OK);
        size_t n = naive(&w, &want);
        assert_int_equal(gy_seg_bytes(&w.plan), n);
        assert_int_equal(walk(&w, &l, &got, &n_op, &n_desc), n);
        for (int k = 0; k < 4; k++) assert_memory_equal(want.to[k], got.to[k], want.cap * sizeof(uint32_t));
        map_close(&want);
        map_close(&got);
    }
}

/* What is ready is cut now, the rest later: together the same bytes in the same order, nothing before it is ready. */
static void test_ready_in_pieces(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        world w;
        make(&w, seed);
        gy_xfer_limits l = {.chunk_bytes = 700, .max_desc = 16};
        gy_xfer_desc d[16];
        gy_seg_cursor c = {0};
        byte_map want, got;
        map_open(&want);
        map_open(&got);
        size_t n = naive(&w, &want), sum = 0;
        for (int32_t ready = 0; ready <= w.plan.n_plane + 1; ready++) {
            gy_seg_plan part = w.plan;
            if (ready <= w.plan.n_plane)
                part = (gy_seg_plan){.plane = w.pl, .n_plane = ready, .round_tail = part.round_tail};
            for (int32_t k; (k = gy_seg_next(&w.plan, ready, &l, &c, d));)
                for (int32_t i = 0; i < k; i++) {
                    sum += d[i].bytes;
                    for (size_t b = 0; b < d[i].bytes; b++)
                        map_put(&got, d[i].dst_region, d[i].dst_off + b, d[i].src_region, d[i].src_off + b);
                }
            assert_int_equal(sum, gy_seg_bytes(&part));
        }
        assert_int_equal(sum, n);
        for (int k = 0; k < 4; k++) assert_memory_equal(want.to[k], got.to[k], want.cap * sizeof(uint32_t));
        map_close(&want);
        map_close(&got);
    }
}

/* Planes of n blocks each, tables one ascending run. */
static void ascending(gy_seg_plane *pl, int32_t *ids, const gy_seg_group *g, int32_t n_plane, int32_t n_tok) {
    int32_t per = (n_tok + 15) / 16;
    for (int32_t i = 0; i < n_plane * per; i++) ids[i] = i;
    for (int32_t p = 0; p < n_plane; p++)
        pl[p] = (gy_seg_plane){.group = g, .src = ids + p * per, .dst = ids + p * per, .to = n_tok};
}

/* 2048 tokens of Ouro-1.4B, BF16: 1.5 GiB and a hidden row in at most 8 descriptors, 256 MiB an op. */
static void test_ouro_prompt(void **state) {
    (void)state;
    static int32_t ids[4 * 128];
    gy_seg_plane pl[4];
    gy_seg_group g = {.n_layer = 24, .tok_bytes = 16 * 128 * 2, .n_block_src = 512, .n_block_dst = 512};
    gy_seg_raw raw = {.src_region = 1, .dst_region = 1, .bytes = 4096};
    ascending(pl, ids, &g, 4, 2048);
    gy_seg_plan plan = {.plane = pl, .n_plane = 4, .raw = &raw, .n_raw = 1};
    gy_xfer_limits l;
    gy_xfer_limits_default(&l);
    gy_xfer_desc d[256];
    gy_seg_cursor c = {0};
    int32_t n, n_desc = 0, n_op = 0;
    size_t sum = 0;
    while ((n = gy_seg_next(&plan, 5, &l, &c, d)))
        for (n_op++, n_desc += n; n > 0; n--) sum += d[n - 1].bytes;
    assert_int_equal(sum, 1610612736 + 4096);
    assert_int_equal(n_op, 7);
    assert_in_range(n_desc, 1, 8);
    assert_true(gy_seg_bytes(&plan) <= l.inflight_bytes);
}

/* design: 2 layers, 2 KV heads of 64, hidden 32, 4 loops, BF16, ops of 4096 B: prompts of 7, 5 and 9 tokens are 86,208
 * bytes in 24 transfers. */
static void test_conformance_vector(void **state) {
    (void)state;
    const int32_t n_tok[3] = {7, 5, 9};
    gy_xfer_limits l = {.chunk_bytes = 4096, .inflight_bytes = 16384, .max_desc = 256};
    size_t sum = 0;
    int32_t n_op = 0;
    for (int k = 0; k < 3; k++) {
        int32_t ids[4];
        gy_seg_plane pl[4];
        gy_seg_group g = {.n_layer = 2, .tok_bytes = 2 * 64 * 2, .n_block_src = 4, .n_block_dst = 4};
        gy_seg_raw raw = {.src_region = 1, .dst_region = 1, .bytes = 32 * 2};
        ascending(pl, ids, &g, 4, n_tok[k]);
        gy_seg_plan plan = {.plane = pl, .n_plane = 4, .raw = &raw, .n_raw = 1};
        gy_xfer_desc d[256];
        gy_seg_cursor c = {0};
        for (int32_t n; (n = gy_seg_next(&plan, 5, &l, &c, d)); n_op++)
            for (; n > 0; n--) sum += d[n - 1].bytes;
    }
    assert_int_equal(sum, 86208);
    assert_int_equal(n_op, 24);
}

/* A ragged tail costs 2 * n_layer runs a plane, or one when the block may be rounded up. */
static void test_ragged_tail(void **state) {
    (void)state;
    int32_t ids[8];
    gy_seg_plane pl[4];
    gy_seg_group g = {.n_layer = 24, .tok_bytes = 4096, .n_block_src = 8, .n_block_dst = 8};
    ascending(pl, ids, &g, 4, 20);
    gy_seg_plan plan = {.plane = pl, .n_plane = 4};
    gy_xfer_limits l;
    gy_xfer_limits_default(&l);
    gy_xfer_desc d[256];
    gy_seg_cursor c = {0};
    assert_int_equal(gy_seg_next(&plan, 4, &l, &c, d), 4 * 48);
    assert_int_equal(gy_seg_next(&plan, 4, &l, &c, d), 0);
    c = (gy_seg_cursor){0};
    plan.round_tail = 1;
    assert_int_equal(gy_seg_next(&plan, 4, &l, &c, d), 1);
    assert_int_equal(d[0].bytes, 8 * block_bytes(&g));
}

static void test_refused(void **state) {
    (void)state;
    int32_t good[2] = {0, 1}, bad[2] = {0, 2};
    gy_seg_group g = {.n_layer = 1, .tok_bytes = 2, .n_block_src = 2, .n_block_dst = 2};
    gy_seg_plane pl = {.group = &g, .src = good, .dst = bad, .to = 17};
    gy_seg_plan plan = {.plane = &pl, .n_plane = 1};
    gy_err err;
    assert_int_equal(gy_seg_check(&plan, &err), GY_E_ARG);
    assert_string_equal(err.msg, "destination block table[1]: found block 2, expected 0 to 1");
    bad[1] = -1;
    assert_int_equal(gy_seg_check(&plan, &err), GY_E_ARG);
    assert_string_equal(err.msg, "destination block table[1]: found block -1, expected 0 to 1");
    pl.to = 16;
    assert_int_equal(gy_seg_check(&plan, &err), GY_OK);
    pl.from = 17;
    assert_int_equal(gy_seg_check(&plan, &err), GY_E_ARG);
    assert_string_equal(err.msg, "plane 0: found tokens 17 to 16, expected an ordered range");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tables), cmocka_unit_test(test_ready_in_pieces),
        cmocka_unit_test(test_ouro_prompt),   cmocka_unit_test(test_conformance_vector),
        cmocka_unit_test(test_ragged_tail),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
