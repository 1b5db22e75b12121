/* Shared by the tests of src/kv: a small cache without bytes behind it, and sequences whose tokens run some loops and
 * leave. Failures are cmocka's.
 */
#ifndef GY_TESTS_UNIT_KV_TEST_H
#define GY_TESTS_UNIT_KV_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv/kv.h"

static char arena_mem[1]; /* the KV code never touches the arena: any address will do */
static void *const ARENA[GY_KV_GROUPS] = {arena_mem, arena_mem};

/* Two core layers and a boundary layer, as many blocks to park in as there are. */
static inline gy_kv_config kv_config(gy_kv_layout layout, int k, int n_loop, int n_block) {
    gy_kv_config c = {.layout = layout, .cyclic_k = k, .n_loop = n_loop, .n_head_kv = 2, .head_dim = 4};
    c.n_layer[GY_KV_CORE] = 2;
    c.n_layer[GY_KV_BOUNDARY] = 1;
    c.dtype = GY_BF16;
    c.n_block[GY_KV_CORE] = n_block;
    c.n_block[GY_KV_BOUNDARY] = n_block;
    c.n_park[GY_KV_CORE] = n_block;
    c.n_park[GY_KV_BOUNDARY] = n_block;
    c.max_seqs = 4;
    c.max_len = 70;
    return c;
}

static inline gy_kv *kv_make(const gy_kv_config *c) {
    gy_kv *kv = NULL;
    gy_err err = {0};
    assert_int_equal(gy_kv_create(c, ARENA, &err, &kv), GY_OK);
    return kv;
}

static inline void assert_valid(const gy_kv *kv) {
    char why[256] = "";
    if (!gy_kv_is_valid(kv, why, sizeof why)) fail_msg("%s", why);
}

static inline int32_t kv_entry(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos) {
    return gy_kv_map(kv, g)[gy_kv_map_off(kv, g, seq, depth) + pos];
}

static inline int32_t kv_claim(gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos) {
    int32_t slot = -7;
    assert_int_equal(gy_kv_claim(kv, g, seq, depth, pos, &slot), GY_OK);
    return slot;
}

/* Tokens [from, to) run n_loop loops and leave. */
static inline void kv_run(gy_kv *kv, int32_t seq, int32_t from, int32_t to, int32_t n_loop) {
    for (int32_t pos = from; pos < to; pos++) {
        if (gy_kv_get_config(kv)->n_layer[GY_KV_BOUNDARY]) kv_claim(kv, GY_KV_BOUNDARY, seq, 0, pos);
        for (int32_t d = 0; d < n_loop; d++) kv_claim(kv, GY_KV_CORE, seq, d, pos);
        gy_kv_exit(kv, seq, pos, n_loop - 1);
    }
}

/* As long as one may be. */
static inline int32_t open_seq(gy_kv *kv) {
    int32_t seq;
    assert_int_equal(gy_kv_seq_open(kv, gy_kv_get_config(kv)->max_len, &seq), GY_OK);
    return seq;
}

#endif
