/* The prefix cache: by hand (what is found, what is shared, in which order rows go), against a naive model under random
 * workloads, with hashes that all collide, and the checker against planted corruption.
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

static char arena_mem[1]; /* the KV code never touches the arena: any address will do */
static void *const ARENA[GY_KV_GROUPS] = {arena_mem, arena_mem};
static const gy_prefix_space PLAIN = {0};

static gy_kv_config config_make(gy_kv_layout layout, int k, int n_loop, int n_block, int boundary) {
    gy_kv_config c = {.layout = layout, .cyclic_k = k, .n_loop = n_loop, .n_head_kv = 2, .head_dim = 4};
    c.n_layer[GY_KV_CORE] = 2;
    c.n_layer[GY_KV_BOUNDARY] = boundary;
    c.dtype = GY_BF16;
    c.n_block[GY_KV_CORE] = n_block;
    c.n_block[GY_KV_BOUNDARY] = boundary ? n_block : 0;
    c.max_seqs = 6;
    c.max_len = 100;
    return c;
}

static gy_kv *kv_make(const gy_kv_config *c, int depth) {
    gy_kv *kv = NULL;
    gy_err err = {0};
    assert_int_equal(gy_kv_create(c, ARENA, &err, &kv), GY_OK);
    assert_int_equal(gy_prefix_create(kv, depth, &err), GY_OK);
    return kv;
}

static void assert_valid(const gy_kv *kv) {
    char why[256] = "";
    if (!gy_kv_is_valid(kv, why, sizeof why)) fail_msg("%s", why);
}

static int32_t entry(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos) {
    return gy_kv_map(kv, g)[gy_kv_map_off(kv, g, seq, depth) + pos];
}

/* Tokens [from, to) run `depth` loops and leave. */
static void run(gy_kv *kv, int32_t seq, int32_t from, int32_t to, int32_t depth) {
    int32_t slot;
    for (int32_t pos = from; pos < to; pos++) {
        if (gy_kv_get_config(kv)->n_layer[GY_KV_BOUNDARY])
            assert_int_equal(gy_kv_claim(kv, GY_KV_BOUNDARY, seq, 0, pos, &slot), GY_OK);
        for (int32_t d = 0; d < depth; d++) assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, seq, d, pos, &slot), GY_OK);
        gy_kv_exit(kv, seq, pos, depth - 1);
    }
}

static int32_t open_seq(gy_kv *kv) {
    int32_t seq;
    assert_int_equal(gy_kv_seq_open(kv, 100, &seq), GY_OK);
    return seq;
}

/* tok[i] = base + i */
static const int32_t *tokens(int32_t *tok, int32_t n, int32_t base) {
    for (int32_t i = 0; i < n; i++) tok[i] = base + i;
    return tok;
}

static void a_hit_is_what_a_cold_run_would_have_made(void **state) {
    (void)state;
    static const struct {
        gy_kv_layout layout;
        int k, n_loop, depth, boundary;
    } shape[] = {{GY_KV_LAST_EXITED, 0, 4, 4, 1}, {GY_KV_LAST_EXITED, 0, 4, 2, 0}, {GY_KV_SHARED, 0, 3, 2, 1},
                 {GY_KV_CYCLIC, 3, 7, 2, 1},      {GY_KV_CYCLIC, 2, 5, 4, 0},      {GY_KV_LAST_EXITED, 0, 1, 1, 1}};
    int32_t tok[100];
    tokens(tok, 100, 7);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        gy_kv_config c = config_make(shape[i].layout, shape[i].k, shape[i].n_loop, 60, shape[i].boundary);
        gy_kv *kv = kv_make(&c, shape[i].depth);
        int32_t a = open_seq(kv), b, alone[GY_KV_GROUPS], planes = gy_kv_n_plane(&c, GY_KV_CORE);
        int32_t n_own = shape[i].depth < planes ? shape[i].depth : planes;
        gy_prefix_cursor ca = {0}, cb;
        run(kv, a, 0, 40, shape[i].depth);
        gy_prefix_publish(kv, &PLAIN, tok, 40, a, &ca);
        assert_int_equal(ca.n_row, 2);
        assert_valid(kv);
        assert_int_equal(gy_prefix_match(kv, &PLAIN, tok, 100, alone), 32);
        assert_int_equal(alone[0] + alone[1], 0);
        b = open_seq(kv);
        assert_int_equal(gy_prefix_attach(kv, &PLAIN, tok, 100, b, &cb), 32);
        assert_valid(kv);
        for (int d = 0; d < shape[i].n_loop; d++)
            for (int pos = 0; pos < 48; pos++)
                assert_int_equal(entry(kv, GY_KV_CORE, b, d, pos), pos < 32 ? entry(kv, GY_KV_CORE, a, d, pos) : -1);
        for (int pos = 0; pos < 48 && shape[i].boundary; pos++)
            assert_int_equal(entry(kv, GY_KV_BOUNDARY, b, 0, pos),
                             pos < 32 ? entry(kv, GY_KV_BOUNDARY, a, 0, pos) : -1);
        assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, b), 2 * n_own);
        assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_BOUNDARY, b), shape[i].boundary ? 2 : 0);
        for (int plane = 0; plane < planes; plane++)
            assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, b, plane), plane < n_own ? 32 : 0);
        gy_kv_seq_close(kv, a);
        run(kv, b, 32, 60, shape[i].depth); /* goes on in blocks of its own */
        assert_valid(kv);
        gy_prefix_publish(kv, &PLAIN, tok, 60, b, &cb);
        assert_int_equal(cb.n_row, 3);
        gy_kv_seq_close(kv, b);
        assert_valid(kv);
        assert_int_equal(gy_prefix_match(kv, &PLAIN, tok, 100, alone), 48);
        assert_int_equal(alone[GY_KV_CORE], 3 * n_own);
        assert_int_equal(alone[GY_KV_BOUNDARY], shape[i].boundary ? 3 : 0);
        assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 3 * n_own);
        assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 60);
        gy_prefix_clear(kv);
        assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60);
        assert_valid(kv);
        gy_kv_destroy(kv);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_what_a_cold_run_would_have_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
