/* The KV cache: sizes against published figures, each layout's map by hand, random workloads against a naive model,
 * the checker against planted corruption, and failing allocations.
 */
#include "kv/kv_int.h"

#include "base/mem.h"
#include "base/philox.h"
#include "ops/ops.h"

#include "kv_test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

_Static_assert((int)GY_KV_BLOCK_LEN == (int)GY_BLOCK_SLOTS, "kv.h and ops.h disagree on the block length");

static int32_t entry(const gy_kv *kv, int32_t seq, int32_t depth, int32_t pos) {
    return kv_entry(kv, GY_KV_CORE, seq, depth, pos);
}

static int32_t claim(gy_kv *kv, int32_t seq, int32_t depth, int32_t pos) {
    return kv_claim(kv, GY_KV_CORE, seq, depth, pos);
}

/* ---- sizes ---- */

/* Figures of docs/models and docs/ARCHITECTURE.md. */
static void sizes_match_published_figures(void **state) {
    (void)state;
    gy_kv_config ouro = {.n_loop = 4, .n_head_kv = 16, .head_dim = 128, .dtype = GY_BF16, .n_layer = {24, 0}};
    assert_int_equal(gy_kv_block_bytes(&ouro, GY_KV_CORE), 3 << 20);
    assert_int_equal(gy_kv_block_bytes(&ouro, GY_KV_CORE) / 16, 196608);
    assert_int_equal(gy_kv_block_bytes(&ouro, GY_KV_BOUNDARY), 0);
    assert_int_equal(gy_kv_n_plane(&ouro, GY_KV_BOUNDARY), 0);
    assert_int_equal(gy_kv_blocks_for(&ouro, GY_KV_CORE, 256), 64);

    ouro.dtype = GY_I8; /* a scale of 4 bytes for each head */
    assert_int_equal(gy_kv_row_bytes(&ouro), 16 * (128 + 4));
    assert_int_equal(gy_kv_block_bytes(&ouro, GY_KV_CORE), 16 * 2 * 24 * 16 * (128 + 4));

    gy_kv_config huginn = {.n_loop = 32, .n_head_kv = 55, .head_dim = 96, .dtype = GY_BF16, .n_layer = {4, 4}};
    int planes = gy_kv_n_plane(&huginn, GY_KV_CORE) * 4 + gy_kv_n_plane(&huginn, GY_KV_BOUNDARY) * 4;
    assert_int_equal(planes, 132);
    assert_int_equal(gy_kv_block_bytes(&huginn, GY_KV_CORE), 16 * 4 * 21120);

    gy_kv_config vector = {.n_loop = 4, .n_head_kv = 2, .head_dim = 64, .dtype = GY_BF16, .n_layer = {2, 0}};
    size_t slot = gy_kv_block_bytes(&vector, GY_KV_CORE) / 16;
    assert_int_equal(slot * 4 * (7 + 5 + 9) + 3 * 32 * 2, 86208);
}

static void blocks_and_planes_follow_the_layout(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 5, 10);
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 0), 0);
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 1), 5);
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 16), 5);
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 17), 10);
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_BOUNDARY, 17), 2);
    assert_int_equal(gy_kv_position_serial(&c), 0);
    c.layout = GY_KV_SHARED;
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 17), 2);
    assert_int_equal(gy_kv_position_serial(&c), 1);
    c.layout = GY_KV_CYCLIC;
    c.cyclic_k = 3;
    assert_int_equal(gy_kv_blocks_for(&c, GY_KV_CORE, 17), 6);
    assert_int_equal(gy_kv_position_serial(&c), 1);
    c.cyclic_k = 5; /* as many planes as loops: nothing is overwritten */
    assert_int_equal(gy_kv_position_serial(&c), 0);
}

/* ---- names and refusals ---- */

static void layout_parse_accepts_and_refuses(void **state) {
    (void)state;
    gy_kv_layout layout = GY_KV_SHARED;
    int32_t k = -1;
    gy_err err = {0};
    assert_int_equal(gy_kv_layout_parse("last_exited", &err, &layout, &k), GY_OK);
    assert_int_equal(layout, GY_KV_LAST_EXITED);
    assert_int_equal(gy_kv_layout_parse("shared", &err, &layout, &k), GY_OK);
    assert_int_equal(layout, GY_KV_SHARED);
    assert_int_equal(gy_kv_layout_parse("cyclic:12", &err, &layout, &k), GY_OK);
    assert_int_equal(layout, GY_KV_CYCLIC);
    assert_int_equal(k, 12);
    static const char *const wrong[] = {
        "",          "Shared",    "cyclic",    "cyclic:",  "cyclic:0",          "cyclic:04",
        "cyclic:-1", "cyclic:4 ", "cyclic:4x", "shared:2", "cyclic:99999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(gy_kv_layout_parse(wrong[i], &err, &layout, &k), GY_E_ARG);
        assert_non_null(strstr(err.msg, wrong[i]));
        assert_non_null(strstr(err.msg, "cyclic:K"));
        assert_int_equal(k, 12); /* outputs only on success */
    }
}

static void assert_refused(gy_kv_config c, const char *field) {
    gy_kv *kv = NULL;
    gy_err err = {0};
    assert_int_equal(gy_kv_create(&c, ARENA, &err, &kv), GY_E_ARG);
    assert_null(kv);
    if (!strstr(err.msg, field)) fail_msg("\"%s\" does not name %s", err.msg, field);
}

static void create_refuses_bad_configs(void **state) {
    (void)state;
    const gy_kv_config good = kv_config(GY_KV_CYCLIC, 2, 4, 8);
    gy_kv_config c;
    c = good, c.n_loop = 0, assert_refused(c, "n_loop");
    c = good, c.cyclic_k = 0, assert_refused(c, "cyclic_k");
    c = good, c.cyclic_k = 5, assert_refused(c, "cyclic_k is 5; allowed 1..4");
    c = good, c.n_layer[0] = 0, assert_refused(c, "n_layer[core]");
    c = good, c.n_layer[1] = -1, assert_refused(c, "n_layer[boundary]");
    c = good, c.n_head_kv = 0, assert_refused(c, "n_head_kv");
    c = good, c.head_dim = -4, assert_refused(c, "head_dim");
    c = good, c.dtype = GY_I64, assert_refused(c, "dtype");
    c = good, c.n_block[0] = 0, assert_refused(c, "n_block[core]");
    c = good, c.n_block[1] = INT32_MAX, assert_refused(c, "n_block[boundary]");
    c = good, c.n_park[0] = -1, assert_refused(c, "n_park[core] is -1; allowed 0..134217727");
    c = good, c.n_park[1] = INT32_MAX / 16 + 1, assert_refused(c, "n_park[boundary]");
    c = good, c.max_seqs = 0, assert_refused(c, "max_seqs");
    c = good, c.max_len = 0, assert_refused(c, "max_len");
    c = good, c.n_head_kv = c.head_dim = c.n_layer[0] = INT32_MAX, assert_refused(c, "address space");
    void *const none[GY_KV_GROUPS] = {arena_mem, NULL};
    gy_kv *kv = NULL;
    gy_err err = {0};
    assert_int_equal(gy_kv_create(&good, none, &err, &kv), GY_E_ARG);
    assert_non_null(strstr(err.msg, "no arena for n_block[boundary]"));
}

static void create_survives_failing_allocations(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 4, 8);
    gy_mem_stats before, after;
    gy_status st = GY_E_NOMEM;
    int n = 0;
    gy_mem_get_stats(&before);
    while (st != GY_OK) {
        gy_kv *kv = NULL;
        gy_err err = {0};
        gy_mem_fail_after(++n);
        st = gy_kv_create(&c, ARENA, &err, &kv);
        gy_mem_fail_after(0);
        if (st != GY_OK) {
            assert_int_equal(st, GY_E_NOMEM);
            assert_null(kv);
            assert_non_null(strstr(err.msg, "kv: no memory"));
        }
        gy_kv_destroy(kv);
        gy_mem_get_stats(&after);
        assert_int_equal(before.live_bytes[GY_MEM_KV], after.live_bytes[GY_MEM_KV]);
    }
    assert_true(n >= 2);
    gy_kv_destroy(NULL);
}

/* A map that no machine can hold is refused, not attempted with a wrapped size. */
static void create_refuses_impossible_maps(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 1 << 12, 8);
    gy_kv *kv = NULL;
    gy_err err = {0};
    c.max_len = 1 << 26;
    c.max_seqs = INT32_MAX;
    assert_int_equal(gy_kv_create(&c, ARENA, &err, &kv), GY_E_NOMEM);
    assert_non_null(strstr(err.msg, "slot map"));
}

/* ---- sequences ---- */

static void seq_open_limits(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    gy_kv *kv = kv_make(&c);
    int32_t seq[4], other = -9;
    assert_int_equal(gy_kv_seq_open(kv, 0, &other), GY_E_LIMIT);
    assert_int_equal(gy_kv_seq_open(kv, 71, &other), GY_E_LIMIT);
    for (int i = 0; i < 4; i++) assert_int_equal(gy_kv_seq_open(kv, 70, &seq[i]), GY_OK);
    assert_int_equal(gy_kv_seq_open(kv, 1, &other), GY_AGAIN);
    assert_int_equal(other, -9);
    assert_valid(kv);
    gy_kv_seq_close(kv, seq[2]);
    assert_int_equal(gy_kv_seq_open(kv, 1, &other), GY_OK);
    assert_int_equal(other, seq[2]);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* ---- the maps, by hand ---- */

static void last_exited_reads_the_last_loop_that_ran(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 4, 8);
    gy_kv *kv = kv_make(&c);
    int32_t seq, a[4], b[2], d0;
    assert_int_equal(gy_kv_seq_open(kv, 70, &seq), GY_OK);
    for (int d = 0; d < 4; d++) a[d] = claim(kv, seq, d, 0); /* token 0: full depth */
    gy_kv_exit(kv, seq, 0, 3);
    for (int d = 0; d < 2; d++) b[d] = claim(kv, seq, d, 1); /* token 1: two loops */
    assert_int_equal(entry(kv, seq, 2, 1), -1);
    gy_kv_exit(kv, seq, 1, 1);
    d0 = claim(kv, seq, 0, 2); /* token 2: one loop */
    gy_kv_exit(kv, seq, 2, 0);
    const int32_t due[4][4] = {{a[0], b[0], d0, -1}, {a[1], b[1], d0, -1}, {a[2], b[1], d0, -1}, {a[3], b[1], d0, -1}};
    for (int d = 0; d < 4; d++)
        for (int pos = 0; pos < 4; pos++) assert_int_equal(entry(kv, seq, d, pos), due[d][pos]);
    const int32_t len[4] = {3, 2, 1, 1};
    for (int d = 0; d < 4; d++) assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, d), len[d]);
    /* Four planes, one block each; within a plane the slots follow each other. */
    for (int d = 0; d < 4; d++) assert_int_equal(a[d], 16 * d);
    assert_int_equal(b[0], a[0] + 1);
    assert_int_equal(d0, a[0] + 2);
    /* A token that runs deeper again takes the plane's next dense slot, not its position's. */
    for (int d = 0; d < 3; d++) claim(kv, seq, d, 3);
    assert_int_equal(entry(kv, seq, 2, 3), a[2] + 1);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void shared_gives_one_slot(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_SHARED, 0, 3, 8);
    gy_kv *kv = kv_make(&c);
    int32_t seq, slot[2];
    assert_int_equal(gy_kv_seq_open(kv, 70, &seq), GY_OK);
    for (int pos = 0; pos < 2; pos++) {
        slot[pos] = claim(kv, seq, 0, pos);
        for (int d = 0; d < 3; d++) assert_int_equal(entry(kv, seq, d, pos), slot[pos]);
        for (int d = 1; d < 3 - pos; d++) assert_int_equal(claim(kv, seq, d, pos), slot[pos]);
        gy_kv_exit(kv, seq, pos, 2 - pos);
        for (int d = 0; d < 3; d++) assert_int_equal(entry(kv, seq, d, pos), slot[pos]);
    }
    assert_int_equal(slot[1], slot[0] + 1);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 0), 2);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 7);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void cyclic_wraps_and_fills_what_is_missing(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_CYCLIC, 3, 7, 8);
    gy_kv *kv = kv_make(&c);
    int32_t seq, a[3], b[2];
    assert_int_equal(gy_kv_seq_open(kv, 70, &seq), GY_OK);
    for (int d = 0; d < 3; d++) a[d] = claim(kv, seq, d, 0);
    for (int d = 3; d < 5; d++) assert_int_equal(claim(kv, seq, d, 0), a[d - 3]);
    gy_kv_exit(kv, seq, 0, 4); /* after the wrap: every plane has a slot, later depths go on cycling */
    for (int d = 0; d < 7; d++) assert_int_equal(entry(kv, seq, d, 0), a[d % 3]);
    for (int d = 0; d < 2; d++) b[d] = claim(kv, seq, d, 1);
    assert_int_equal(entry(kv, seq, 5, 1), -1);
    gy_kv_exit(kv, seq, 1, 1); /* before plane 2 was reached: depths 2 and 5 read slot(1) */
    const int32_t due[7] = {b[0], b[1], b[1], b[0], b[1], b[1], b[0]};
    for (int d = 0; d < 7; d++) assert_int_equal(entry(kv, seq, d, 1), due[d]);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void planes_use_blocks_as_deep_as_tokens_run(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 4, 40);
    gy_kv *kv = kv_make(&c);
    int32_t seq;
    assert_int_equal(gy_kv_seq_open(kv, 70, &seq), GY_OK);
    for (int pos = 0; pos < 64; pos++) { /* every fourth token runs 4 loops, the rest 1 */
        int e = pos % 4 == 0 ? 3 : 0;
        for (int d = 0; d <= e; d++) claim(kv, seq, d, pos);
        gy_kv_exit(kv, seq, pos, e);
    }
    for (int d = 0; d < 4; d++) assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, d), d ? 16 : 64);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 40 - 4 - 3);
    assert_valid(kv);
    gy_kv_seq_close(kv, seq);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 40);
    gy_kv_destroy(kv);
}

static void model_without_boundary(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    c.n_layer[GY_KV_BOUNDARY] = 0;
    c.n_block[GY_KV_BOUNDARY] = 0;
    gy_kv *kv = NULL;
    void *const arena[GY_KV_GROUPS] = {arena_mem, NULL};
    int32_t seq;
    assert_int_equal(gy_kv_create(&c, arena, NULL, &kv), GY_OK);
    assert_null(gy_kv_map(kv, GY_KV_BOUNDARY));
    assert_null(gy_kv_arena(kv, GY_KV_BOUNDARY));
    assert_ptr_equal(gy_kv_arena(kv, GY_KV_CORE), arena_mem);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_BOUNDARY), 0);
    assert_int_equal(gy_kv_get_config(kv)->n_loop, 2);
    assert_int_equal(gy_kv_seq_open(kv, 3, &seq), GY_OK);
    claim(kv, seq, 0, 0);
    assert_valid(kv);
    gy_kv_seq_close(kv, seq);
    gy_kv_destroy(kv);
}

static void held_blocks_outlive_their_sequence(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    gy_kv *kv = kv_make(&c);
    int32_t seq, block;
    assert_int_equal(gy_kv_seq_open(kv, 70, &seq), GY_OK);
    block = claim(kv, seq, 0, 0) / 16;
    claim(kv, seq, 1, 0);
    gy_kv_block_ref(kv, GY_KV_CORE, block);
    gy_kv_block_ref(kv, GY_KV_CORE, block);
    assert_valid(kv);
    gy_kv_seq_close(kv, seq);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 7);
    assert_valid(kv);
    gy_kv_block_unref(kv, GY_KV_CORE, block);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 7);
    gy_kv_block_unref(kv, GY_KV_CORE, block);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 8);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* ---- sharing, rewinding, parking, by hand ---- */

static void boundary(gy_kv *kv, int32_t seq, int32_t pos) {
    kv_claim(kv, GY_KV_BOUNDARY, seq, 0, pos);
}

/* Tokens [from, to) run depths 0..e and leave. */
static void run(gy_kv *kv, int32_t seq, int32_t from, int32_t to, int32_t e) {
    kv_run(kv, seq, from, to, e + 1);
}

static void claim_takes_says_which_claims_need_a_block(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_CYCLIC, 2, 4, 40);
    gy_kv *kv = kv_make(&c);
    int32_t seq = open_seq(kv);
    assert_true(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 0, 0));
    assert_true(gy_kv_claim_takes(kv, GY_KV_BOUNDARY, seq, 0, 0));
    claim(kv, seq, 0, 0);
    assert_false(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 0, 0)); /* claimed */
    assert_true(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 1, 0));
    claim(kv, seq, 1, 0);
    assert_false(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 3, 0)); /* the same plane, second time round */
    assert_false(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 0, 1)); /* room in the block */
    for (int pos = 1; pos < 16; pos++) claim(kv, seq, 0, pos);
    assert_true(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 0, 16));
    assert_false(gy_kv_claim_takes(kv, GY_KV_CORE, seq, 1, 1));
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq), 2);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_BOUNDARY, seq), 0);
    gy_kv_destroy(kv);
}

/* Four choices of one prompt of 40 tokens: two block rows are shared, what follows is private. */
static void choices_share_the_prompt(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 3, 60);
    gy_kv *kv = kv_make(&c);
    int32_t seq[4];
    for (int i = 0; i < 4; i++) seq[i] = open_seq(kv);
    run(kv, seq[0], 0, 40, 2);
    for (int i = 1; i < 4; i++) {
        gy_kv_share(kv, seq[0], seq[i], 32);
        assert_valid(kv);
        run(kv, seq[i], 32, 45, i - 1);
    }
    assert_valid(kv);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60 - 9 - (1 + 2 + 3));
    assert_int_equal(gy_kv_n_free(kv, GY_KV_BOUNDARY), 60 - 3 - 3);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq[1]), 7);
    for (int d = 0; d < 3; d++)
        for (int pos = 0; pos < 45; pos++)
            assert_int_equal(entry(kv, seq[2], d, pos) == entry(kv, seq[0], d, pos), pos < 32);
    gy_kv_seq_close(kv, seq[0]); /* the others go on reading the prompt */
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60 - 6 - 6);
    assert_valid(kv);
    gy_kv_share(kv, seq[1], seq[0] = open_seq(kv), 16);
    for (int i = 0; i < 4; i++) gy_kv_seq_close(kv, seq[i]);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_BOUNDARY), 60);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* Trained depth 2 of 7 forced loops under three planes: plane 2 was never written, its readers see plane 1. */
static void share_keeps_what_deeper_depths_read(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_CYCLIC, 3, 7, 60);
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv), b = open_seq(kv);
    run(kv, a, 0, 16, 1);
    gy_kv_share(kv, a, b, 16);
    const int plane[7] = {0, 1, 1, 0, 1, 1, 0};
    for (int d = 0; d < 7; d++)
        for (int pos = 0; pos < 16; pos++)
            assert_int_equal(entry(kv, b, d, pos), entry(kv, a, 0, 0) + 16 * plane[d] + pos);
    for (int d = 0; d < 3; d++) assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, b, d), d < 2 ? 16 : 0);
    run(kv, b, 16, 17, 6);
    assert_int_equal(entry(kv, b, 2, 16) % 16, 0); /* plane 2 begins with token 16 */
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void truncate_rewinds_each_plane(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 3, 60);
    gy_kv *kv = kv_make(&c);
    int32_t seq = open_seq(kv);
    run(kv, seq, 0, 20, 2);
    run(kv, seq, 20, 30, 0);
    run(kv, seq, 30, 50, 1);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq), 4 + 3 + 2);
    gy_kv_truncate(kv, seq, 60); /* nothing to drop */
    gy_kv_truncate(kv, seq, 50);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 0), 50);
    int32_t at_27 = entry(kv, seq, 0, 27);
    gy_kv_truncate(kv, seq, 27);
    assert_valid(kv);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 0), 27);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 1), 20);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 2), 20);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_BOUNDARY, seq, 0), 27);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq), 2 + 2 + 2);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_BOUNDARY, seq), 2);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60 - 6);
    for (int d = 0; d < 3; d++) assert_int_equal(entry(kv, seq, d, 27), -1);
    run(kv, seq, 27, 28, 2); /* goes on as if nothing had been */
    assert_int_equal(entry(kv, seq, 0, 27), at_27);
    assert_int_equal(entry(kv, seq, 2, 27), entry(kv, seq, 2, 19) + 1);
    gy_kv_truncate(kv, seq, 16);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq), 3);
    gy_kv_truncate(kv, seq, 0);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, seq), 0);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60);
    assert_valid(kv);
    run(kv, seq, 0, 1, 0);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* Rows may go from under a sequence whole: the others keep them. */
static void truncate_leaves_shared_rows_to_others(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 60);
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv), b = open_seq(kv);
    run(kv, a, 0, 35, 1);
    gy_kv_share(kv, a, b, 32);
    gy_kv_truncate(kv, a, 16);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 60 - 4);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, b, 1), 32);
    run(kv, a, 16, 20, 1);
    assert_int_not_equal(entry(kv, a, 0, 16), entry(kv, b, 0, 16));
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* A token in flight with only its first loops claimed stays as it is; those behind it go. */
static void truncate_keeps_tokens_in_flight(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 3, 60);
    gy_kv *kv = kv_make(&c);
    int32_t seq = open_seq(kv);
    run(kv, seq, 0, 3, 2);
    for (int pos = 3; pos < 6; pos++) boundary(kv, seq, pos), claim(kv, seq, 0, pos);
    boundary(kv, seq, 6); /* its core claim found no block */
    claim(kv, seq, 1, 3);
    gy_kv_truncate(kv, seq, 4);
    assert_valid(kv);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 0), 4);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 1), 4);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, seq, 2), 3);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_BOUNDARY, seq, 0), 4);
    claim(kv, seq, 2, 3);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static int32_t copied[2][32][2]; /* [group][call] = block, park block */
static int n_copied[2];
static void record(void *arg, gy_kv_group g, int32_t block, int32_t park_block) {
    assert_string_equal(arg, "arg");
    copied[g][n_copied[g]][0] = block;
    copied[g][n_copied[g]++][1] = park_block;
}

static char arg[] = "arg";

static gy_status park(gy_kv *kv, int32_t seq) {
    n_copied[0] = n_copied[1] = 0;
    return gy_kv_park(kv, seq, record, arg);
}

static gy_status restore(gy_kv *kv, int32_t seq) {
    n_copied[0] = n_copied[1] = 0;
    return gy_kv_restore(kv, seq, record, arg);
}

static void parked_blocks_come_back_elsewhere(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv), b = open_seq(kv);
    run(kv, a, 0, 16, 1);
    run(kv, a, 16, 18, 0); /* blocks 0 and 1, then 2 */
    assert_int_equal(park(kv, a), GY_OK);
    assert_int_equal(gy_kv_is_parked(kv, a), 1);
    assert_valid(kv);
    assert_int_equal(n_copied[0], 3);
    assert_int_equal(n_copied[1], 2);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 8);
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_CORE), 5);
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_BOUNDARY), 6);
    assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, a), 3);
    int32_t to[8];
    for (int i = 0; i < 3; i++) to[copied[0][i][0]] = copied[0][i][1];
    run(kv, b, 0, 1, 1); /* others use the room */
    assert_int_equal(restore(kv, a), GY_OK);
    assert_valid(kv);
    assert_int_equal(gy_kv_is_parked(kv, a), 0);
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_CORE), 8);
    int32_t home[8];
    for (int i = 0; i < 3; i++) home[copied[0][i][1]] = copied[0][i][0];
    for (int pos = 0; pos < 18; pos++) {
        assert_int_equal(entry(kv, a, 0, pos), home[to[pos < 16 ? 0 : 2]] * 16 + pos % 16);
        assert_int_equal(entry(kv, a, 1, pos), pos < 16 ? home[to[1]] * 16 + pos : entry(kv, a, 0, pos));
    }
    run(kv, a, 18, 20, 1);
    assert_int_equal(entry(kv, a, 0, 19), home[to[2]] * 16 + 3);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void parking_needs_room_in_both_groups(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    c.n_park[GY_KV_CORE] = 4;
    c.n_park[GY_KV_BOUNDARY] = 1;
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv), b = open_seq(kv), third = open_seq(kv);
    run(kv, a, 0, 17, 1);
    assert_int_equal(park(kv, a), GY_AGAIN); /* 4 core blocks fit, 2 boundary blocks do not */
    assert_int_equal(n_copied[0] + n_copied[1], 0);
    assert_int_equal(gy_kv_is_parked(kv, a), 0);
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_CORE), 4);
    assert_valid(kv);
    gy_kv_truncate(kv, a, 16);
    assert_int_equal(park(kv, a), GY_OK);
    run(kv, b, 0, 64, 0);
    run(kv, b, 64, 65, 1);
    run(kv, third, 0, 1, 0);
    assert_int_equal(restore(kv, a), GY_AGAIN); /* one core block free, two needed */
    assert_int_equal(gy_kv_is_parked(kv, a), 1);
    assert_int_equal(n_copied[0] + n_copied[1], 0);
    assert_valid(kv);
    gy_kv_seq_close(kv, a); /* a cancelled request, while parked */
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_CORE), 4);
    assert_int_equal(gy_kv_n_park_free(kv, GY_KV_BOUNDARY), 1);
    assert_valid(kv);
    assert_int_equal(open_seq(kv), a);
    assert_int_equal(gy_kv_is_parked(kv, a), 0);
    run(kv, a, 0, 1, 0);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

static void parking_is_impossible_without_park_blocks(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 8);
    c.n_park[GY_KV_CORE] = c.n_park[GY_KV_BOUNDARY] = 0;
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv);
    run(kv, a, 0, 1, 1);
    assert_int_equal(park(kv, a), GY_AGAIN);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* Parking one of two sharers frees only what the other does not hold; both read the same bytes afterwards, each its
 * own. */
static void parking_unshares(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 12);
    gy_kv *kv = kv_make(&c);
    int32_t a = open_seq(kv), b = open_seq(kv);
    run(kv, a, 0, 20, 1);
    gy_kv_share(kv, a, b, 16);
    assert_int_equal(park(kv, a), GY_OK);
    assert_int_equal(n_copied[0], 4);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 12 - 2);
    assert_valid(kv);
    assert_int_equal(restore(kv, a), GY_OK);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 12 - 2 - 4);
    gy_kv_truncate(kv, a, 5); /* private now */
    gy_kv_truncate(kv, b, 5);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* ---- random workloads against a naive model ---- */

enum { SEQS = 4, LEN = 70, LOOPS = 7, BLOCKS = 200 };

/* Written from the table of layouts in ARCHITECTURE.md, without planes modulo anything: what each token ran, and the
 * slots it was given. */
typedef struct token {
    int ran;             /* deepest depth claimed, -1 = none */
    int left;            /* depth it left after, -1 = still in the core */
    int32_t slot[LOOPS]; /* the slot that each claim returned */
    int32_t boundary;
} token;

typedef struct naive {
    gy_kv_config cfg;
    gy_kv *kv;
    int open[SEQS], n_tok[SEQS], cap[SEQS];
    token tok[SEQS][LEN];
    uint64_t seed;
    uint32_t draw;
} naive;

static uint32_t rnd(naive *m, uint32_t n) {
    uint32_t w[4];
    gy_rand_block(m->seed, 0, 0, GY_RAND_TEST, m->draw++, w);
    return w[0] % n;
}

static int plane_count(const naive *m) {
    if (m->cfg.layout == GY_KV_SHARED) return 1;
    return m->cfg.layout == GY_KV_CYCLIC ? m->cfg.cyclic_k : m->cfg.n_loop;
}

/* What a query at depth d must read of this token; -1 = nothing yet. */
static int32_t resolve(const naive *m, const token *t, int d) {
    if (m->cfg.layout == GY_KV_SHARED) return t->slot[0];
    if (d <= t->ran) return t->slot[d];
    if (m->cfg.layout == GY_KV_CYCLIC && d % m->cfg.cyclic_k <= t->ran) return t->slot[d % m->cfg.cyclic_k];
    return t->left >= 0 ? t->slot[t->left] : -1;
}

static void check_map(const naive *m) {
    for (int s = 0; s < SEQS; s++) {
        if (!m->open[s]) continue;
        for (int d = 0; d < m->cfg.n_loop; d++)
            for (int pos = 0; pos < m->cap[s]; pos++) {
                int32_t due = pos < m->n_tok[s] ? resolve(m, &m->tok[s][pos], d) : -1;
                int32_t got = entry(m->kv, s, d, pos);
                if (got != due) fail_msg("seq %d depth %d pos %d: %d, not %d", s, d, pos, got, due);
            }
        for (int pos = 0; pos < m->cap[s]; pos++) {
            int32_t got = gy_kv_map(m->kv, GY_KV_BOUNDARY)[gy_kv_map_off(m->kv, GY_KV_BOUNDARY, s, 0) + pos];
            assert_int_equal(got, pos < m->n_tok[s] ? m->tok[s][pos].boundary : -1);
        }
    }
}

/* Slots given to different (sequence, token, plane) never meet; a plane's n-th token lies n-th in its blocks; the
 * blocks in use are those that the lengths ask for. */
static void check_memory(const naive *m) {
    static unsigned char used[BLOCKS * 16];
    int planes = plane_count(m), n_used = 0, n_boundary = 0;
    memset(used, 0, sizeof used);
    for (int s = 0; s < SEQS; s++) {
        for (int plane = 0; m->open[s] && plane < planes; plane++) {
            int n = 0;
            int32_t before = -1;
            for (int pos = 0; pos < m->n_tok[s]; pos++) {
                if (m->tok[s][pos].ran < plane) continue;
                int32_t slot = m->tok[s][pos].slot[plane];
                assert_in_range(slot, 0, m->cfg.n_block[GY_KV_CORE] * 16 - 1);
                assert_int_equal(used[slot]++, 0);
                assert_int_equal(slot % 16, n % 16);
                if (n % 16) assert_int_equal(slot, before + 1);
                before = slot;
                n++;
            }
            assert_int_equal(gy_kv_plane_len(m->kv, GY_KV_CORE, s, plane), n);
            n_used += (n + 15) / 16;
        }
        if (m->open[s]) n_boundary += (m->n_tok[s] + 15) / 16;
    }
    assert_int_equal(gy_kv_n_free(m->kv, GY_KV_CORE), m->cfg.n_block[GY_KV_CORE] - n_used);
    assert_int_equal(gy_kv_n_free(m->kv, GY_KV_BOUNDARY), m->cfg.n_block[GY_KV_BOUNDARY] - n_boundary);
}

static void op_open(naive *m) {
    int32_t seq = -1, cap = 1 + (int32_t)rnd(m, LEN), n_open = 0;
    for (int s = 0; s < SEQS; s++) n_open += m->open[s];
    gy_status st = gy_kv_seq_open(m->kv, cap, &seq);
    assert_int_equal(st, n_open == SEQS ? GY_AGAIN : GY_OK);
    if (st != GY_OK) return;
    assert_in_range(seq, 0, SEQS - 1);
    assert_int_equal(m->open[seq], 0);
    m->open[seq] = 1;
    m->cap[seq] = cap;
    m->n_tok[seq] = 0;
}

static void op_close(naive *m, int s) {
    gy_kv_seq_close(m->kv, s);
    m->open[s] = 0;
}

/* A new token: its boundary slot and its slot at depth 0. Core may fail after boundary succeeded: then the engine (and
 * this model) keeps the boundary claim and asks again later, which must return the same slot. */
static void op_token(naive *m, int s, int *n_again) {
    int pos = m->n_tok[s];
    if (pos == m->cap[s]) return;
    int32_t slot = -5, again = -5, core = -5;
    if (gy_kv_n_free(m->kv, GY_KV_CORE) == 0 && pos % 16 == 0) {
        assert_int_equal(gy_kv_claim(m->kv, GY_KV_CORE, s, 0, pos, &core), GY_AGAIN);
        assert_int_equal(core, -5);
        ++*n_again;
        return;
    }
    gy_status st = gy_kv_claim(m->kv, GY_KV_BOUNDARY, s, 0, pos, &slot);
    if (st == GY_AGAIN) {
        assert_int_equal(gy_kv_n_free(m->kv, GY_KV_BOUNDARY), 0);
        assert_int_equal(slot, -5);
        ++*n_again;
        return;
    }
    assert_int_equal(st, GY_OK);
    assert_int_equal(gy_kv_claim(m->kv, GY_KV_BOUNDARY, s, 0, pos, &again), GY_OK);
    assert_int_equal(again, slot);
    assert_int_equal(gy_kv_claim(m->kv, GY_KV_CORE, s, 0, pos, &core), GY_OK);
    m->tok[s][pos] = (token){.ran = 0, .left = -1, .boundary = slot};
    m->tok[s][pos].slot[0] = core;
    m->n_tok[s]++;
}

/* The oldest token still in the core that may go a depth deeper: not past an earlier one that is still in the core. */
static int pick_token(naive *m, int s) {
    int best[LEN], n = 0, floor = LOOPS;
    for (int pos = 0; pos < m->n_tok[s]; pos++) {
        const token *t = &m->tok[s][pos];
        if (t->left >= 0) continue;
        if (t->ran < floor) best[n++] = pos;
        if (t->ran < floor) floor = t->ran;
    }
    return n ? best[rnd(m, (uint32_t)n)] : -1;
}

static void op_deeper(naive *m, int s, int *n_again) {
    int pos = pick_token(m, s), planes = plane_count(m);
    if (pos < 0) return;
    token *t = &m->tok[s][pos];
    int d = t->ran + 1;
    if (d == m->cfg.n_loop || rnd(m, 4) == 0) {
        gy_kv_exit(m->kv, s, pos, t->ran);
        t->left = t->ran;
        return;
    }
    int32_t slot = -5, free_before = gy_kv_n_free(m->kv, GY_KV_CORE);
    gy_status st = gy_kv_claim(m->kv, GY_KV_CORE, s, d, pos, &slot);
    if (st == GY_AGAIN) {
        assert_int_equal(free_before, 0);
        assert_int_equal(gy_kv_plane_len(m->kv, GY_KV_CORE, s, d % planes) % 16, 0);
        assert_int_equal(slot, -5);
        ++*n_again;
        return;
    }
    assert_int_equal(st, GY_OK);
    if (d >= planes) assert_int_equal(slot, t->slot[d % planes]);
    t->slot[d] = slot;
    t->ran = d;
}

/* Returns how often a pool was empty. */
static int workload(gy_kv_config cfg, uint64_t seed, int n_op) {
    static naive m;
    int n_again = 0;
    memset(&m, 0, sizeof m);
    m.cfg = cfg;
    m.seed = seed;
    m.kv = kv_make(&cfg);
    gy_mem_guard_begin();
    for (int i = 0; i < n_op; i++) {
        int s = (int)rnd(&m, SEQS), op = (int)rnd(&m, 100);
        if (!m.open[s])
            op_open(&m);
        else if (op < 1)
            op_close(&m, s);
        else if (op < 35)
            op_token(&m, s, &n_again);
        else
            op_deeper(&m, s, &n_again);
        assert_valid(m.kv);
        check_memory(&m);
        check_map(&m);
    }
    for (int s = 0; s < SEQS; s++)
        if (m.open[s]) op_close(&m, s);
    gy_mem_guard_end();
    assert_valid(m.kv);
    assert_int_equal(gy_kv_n_free(m.kv, GY_KV_CORE), cfg.n_block[GY_KV_CORE]);
    assert_int_equal(gy_kv_n_free(m.kv, GY_KV_BOUNDARY), cfg.n_block[GY_KV_BOUNDARY]);
    gy_kv_destroy(m.kv);
    return n_again;
}

static void random_workloads_match_the_naive_model(void **state) {
    (void)state;
    static const struct {
        gy_kv_layout layout;
        int k, n_loop;
    } shape[] = {{GY_KV_LAST_EXITED, 0, 4}, {GY_KV_LAST_EXITED, 0, 1}, {GY_KV_LAST_EXITED, 0, 7}, {GY_KV_SHARED, 0, 4},
                 {GY_KV_CYCLIC, 1, 3},      {GY_KV_CYCLIC, 2, 7},      {GY_KV_CYCLIC, 3, 7},      {GY_KV_CYCLIC, 4, 4}};
    int n_again = 0;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        gy_kv_config roomy = kv_config(shape[i].layout, shape[i].k, shape[i].n_loop, BLOCKS);
        gy_kv_config tight = kv_config(shape[i].layout, shape[i].k, shape[i].n_loop, 9);
        assert_int_equal(workload(roomy, 100 + i, 12000), 0);
        n_again += workload(tight, 200 + i, 12000);
        tight.n_block[GY_KV_CORE] = 40;
        tight.n_block[GY_KV_BOUNDARY] = 3;
        n_again += workload(tight, 300 + i, 6000);
    }
    assert_true(n_again > 100); /* the tight pools did run dry */
}

/* GY_AGAIN leaves map, lengths and counts as they were, and the claim succeeds once a block is free. */
static void again_changes_nothing(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 3, 2);
    gy_kv *kv = kv_make(&c);
    int32_t a, b, slot = -5;
    assert_int_equal(gy_kv_seq_open(kv, 70, &a), GY_OK);
    assert_int_equal(gy_kv_seq_open(kv, 70, &b), GY_OK);
    claim(kv, a, 0, 0);
    claim(kv, b, 0, 0);
    size_t n_map = (size_t)c.max_seqs * (size_t)c.n_loop * (size_t)c.max_len;
    int32_t *before = malloc(n_map * sizeof *before);
    assert_non_null(before);
    memcpy(before, gy_kv_map(kv, GY_KV_CORE), n_map * sizeof *before);
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, a, 1, 0, &slot), GY_AGAIN);
    assert_int_equal(slot, -5);
    assert_memory_equal(before, gy_kv_map(kv, GY_KV_CORE), n_map * sizeof *before);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, a, 1), 0);
    assert_valid(kv);
    gy_kv_seq_close(kv, b);
    assert_int_equal(claim(kv, a, 1, 0), 16);
    assert_valid(kv);
    free(before);
    gy_kv_destroy(kv);
}

/* ---- the checker can fail ---- */

static void assert_invalid(const gy_kv *kv, const char *what) {
    char why[256] = "";
    assert_int_equal(gy_kv_is_valid(kv, why, sizeof why), 0);
    if (!strstr(why, what)) fail_msg("\"%s\" does not say \"%s\"", why, what);
    assert_int_equal(gy_kv_is_valid(kv, NULL, 0), 0);
}

static void plant(const gy_kv *kv, int32_t *where, int32_t value, const char *what) {
    int32_t kept = *where;
    *where = value;
    assert_invalid(kv, what);
    *where = kept;
    assert_valid(kv);
}

/* Two open sequences of 20 and 5 tokens: seq 0 in the core to depth 2, every third token leaves after depth 0. */
static gy_kv *planted_kv(gy_kv_layout layout, int k, int n_loop) {
    gy_kv_config c = kv_config(layout, k, n_loop, 30);
    gy_kv *kv = kv_make(&c);
    for (int s = 0; s < 2; s++) {
        int32_t seq;
        assert_int_equal(gy_kv_seq_open(kv, 64, &seq), GY_OK);
        assert_int_equal(seq, s);
        for (int pos = 0; pos < (s ? 5 : 20); pos++) {
            int32_t slot;
            assert_int_equal(gy_kv_claim(kv, GY_KV_BOUNDARY, seq, 0, pos, &slot), GY_OK);
            for (int d = 0; d < (pos % 3 ? 3 : 1); d++) claim(kv, seq, d, pos);
            if (pos % 3 == 0) gy_kv_exit(kv, seq, pos, 0);
        }
    }
    assert_valid(kv);
    return kv;
}

static void checker_finds_planted_corruption(void **state) {
    (void)state;
    gy_kv *kv = planted_kv(GY_KV_LAST_EXITED, 0, 4);
    kv_pool *p = &kv->pool[GY_KV_CORE], *q = &kv->pool[GY_KV_BOUNDARY];
    int32_t *row2 = kv_map_row(kv, p, 0, 2);
    plant(kv, &p->n_free, 31, "free of 30");
    plant(kv, &p->n_free, p->n_free - 1, "free 0, owners 0");
    plant(kv, &p->free[0], p->free[1], "free twice");
    plant(kv, &p->free[0], 30, "on the free list");
    plant(kv, &p->free[0], kv_log(p, 0, 1)[0], "owns free block");
    plant(kv, &p->refs[kv_log(p, 0, 0)[1]], 2, "2 references, 1 owners");
    plant(kv, &p->held[kv_log(p, 0, 0)[1]], -1, "owners of which -1");
    plant(kv, &p->refs[p->free[0]], 1, "1 references, 0 owners");
    plant(kv, &kv_log(p, 1, 0)[0], kv_log(p, 0, 0)[0], "1 references, 2 owners");
    plant(kv, &kv_log(p, 0, 0)[1], kv_log(p, 0, 1)[0], "another place");
    plant(kv, &kv_log(p, 1, 0)[0], -1, "block -1");
    plant(kv, &p->plane[kv_log(p, 0, 1)[0]], 2, "says plane 2");
    plant(kv, &p->used[1], p->used[1] + 1, "plane 1: ");
    plant(kv, &kv_log(q, 1, 0)[0], 99, "kv boundary: seq 1 plane 0: block 99");
    plant(kv, &p->len[0], 65, "length 65");
    plant(kv, &p->len[0], 19, "last 19, not 18");
    plant(kv, &p->len[1], 12, "length 13, above it 12");
    plant(kv, &p->len[2], 12, "more tokens than its length");
    plant(kv, &p->len[kv_plane_index(p, 2, 0)], 1, "length 1"); /* a closed sequence */
    plant(kv, &p->last[0], 18, "last 18, not 19");
    plant(kv, &row2[1], row2[2], "slot"); /* another token's */
    plant(kv, &row2[1], -1, "slot 33, not 32");
    plant(kv, &row2[19], -1, "12 tokens, length 13");
    plant(kv, &row2[1], 30 * 16, "not"); /* outside of the pool */
    plant(kv, &row2[0], -1, "halves");   /* left after 0, depth 2 not filled */
    plant(kv, &row2[0], row2[0] + 1, "depth");
    plant(kv, &kv_map_row(kv, p, 0, 3)[1], row2[4], "more tokens than its length 0"); /* depth 3 was never claimed */
    plant(kv, &kv_map_row(kv, p, 0, 0)[3], -1, "no slot on plane 0");
    plant(kv, &kv_map_row(kv, p, 0, 0)[20], 3, "no such token");
#ifdef GY_DEBUG
    plant(kv, &p->refs[34], 1, "red zone"); /* 30 blocks take 128 bytes, then the zone's 8 of bookkeeping */
#endif
    gy_kv_destroy(kv);
}

static void checker_finds_corrupt_sequences(void **state) {
    (void)state;
    gy_kv *kv = planted_kv(GY_KV_CYCLIC, 2, 5);
    kv_pool *p = &kv->pool[GY_KV_CORE];
    plant(kv, &kv->seq[0].open, 0, "open + ");
    plant(kv, &kv->seq[0].open, 2, "open is 2");
    plant(kv, &kv->seq[0].max_tok, 65, "max_tok 65");
    plant(kv, &kv->seq[0].ready, 71, "ready is 71");
    plant(kv, &kv->seq_free[0], 1, "sequence 1 on the free list");
    plant(kv, &kv->seq_free[0], kv->seq_free[1], "free twice");
    plant(kv, &kv->n_seq_free, 1, "are not 4");
    plant(kv, &kv_map_row(kv, p, 0, 4)[1], kv_map_row(kv, p, 0, 1)[1], "depth 4 pos 1"); /* must be plane 0's */
    plant(kv, &kv_map_row(kv, p, 0, 3)[0], -1, "halves"); /* depths 1 and 3 of a token that left after 0 */
    gy_kv_seq_close(kv, 0);
    plant(kv, &kv_map_row(kv, p, 0, 4)[63], 0, "no such token");
    gy_kv_destroy(kv);
}

/* Sequence 0 shares a row with 1; 2 is parked. */
static void checker_finds_corrupt_sharing_and_parking(void **state) {
    (void)state;
    gy_kv_config c = kv_config(GY_KV_LAST_EXITED, 0, 2, 30);
    gy_kv *kv = kv_make(&c);
    kv_pool *p = &kv->pool[GY_KV_CORE];
    for (int s = 0; s < 3; s++) assert_int_equal(open_seq(kv), s);
    run(kv, 0, 0, 35, 1);
    gy_kv_share(kv, 0, 1, 16);
    run(kv, 1, 16, 18, 1);
    run(kv, 2, 0, 20, 1);
    assert_int_equal(park(kv, 2), GY_OK);
    assert_valid(kv);
    plant(kv, &kv->seq[0].parked, 1, "kv core parked: seq 0 plane 0 owns free block");
    plant(kv, &kv->seq[2].parked, 2, "parked is 2");
    plant(kv, &kv->seq[3].parked, 1, "parked is 1");
    plant(kv, &p->n_park_free, 27, "kv core parked: seq 2 plane 1 owns free block 3");
    plant(kv, &p->n_park_free, 31, "31 free of 30");
    plant(kv, &p->n_park_free, 25, "kv core parked: park block 4: 0 references, 0 owners");
    plant(kv, &p->park_free[0], p->park_free[1], "free twice");
    plant(kv, &p->park_refs[0], 0, "0 references, 1 owners");
    plant(kv, &p->park_refs[29], 1, "1 references, 0 owners");
    plant(kv, &kv_log(p, 2, 1)[0], kv_log(p, 2, 0)[0], "two logs");
    plant(kv, &kv_log(p, 2, 1)[0], 29, "owns free block 29");
    plant(kv, &kv_log(p, 2, 1)[0], 30, "block 30");
    plant(kv, &kv_map_row(kv, p, 2, 1)[3], 0, "seq 2 plane 1");
    plant(kv, &p->blocks[2], 3, "4 blocks, counted as 3");
    plant(kv, &p->blocks[3], 1, "0 blocks, counted as 1");
    plant(kv, &p->refs[kv_log(p, 0, 0)[0]], 1, "1 references, 2 owners");
    plant(kv, &p->n_cached, 1, "0 cached, counted as 1");
    /* Two logs with one half-full block, and the counts to go with it. */
    int32_t mine = kv_log(p, 1, 0)[1], other = kv_log(p, 0, 0)[1];
    p->refs[mine]++, p->refs[other]--;
    p->free[p->n_free++] = other;
    kv_log(p, 0, 0)[1] = mine;
    assert_invalid(kv, "is not full and shared");
    gy_kv_destroy(kv);
}

/* ---- broken call orders end the process ---- */

static gy_kv *victim;
static int32_t out;
static void claim_skips_a_position(void) {
    gy_kv_claim(victim, GY_KV_CORE, 0, 0, 21, &out);
}
static void claim_skips_a_depth(void) {
    gy_kv_claim(victim, GY_KV_CORE, 0, 1, 20, &out);
}
static void claim_below_an_exit(void) {
    gy_kv_claim(victim, GY_KV_CORE, 0, 1, 0, &out);
}
static void claim_behind_the_log(void) {
    gy_kv_claim(victim, GY_KV_CORE, 0, 3, 4, &out);
    gy_kv_claim(victim, GY_KV_CORE, 0, 3, 1, &out);
}
static void claim_past_capacity(void) {
    gy_kv_claim(victim, GY_KV_CORE, 0, 0, 64, &out);
}
static void claim_of_a_closed_sequence(void) {
    gy_kv_seq_close(victim, 3), gy_kv_claim(victim, GY_KV_CORE, 3, 0, 0, &out);
}
static void boundary_below_depth_0(void) {
    gy_kv_claim(victim, GY_KV_BOUNDARY, 0, 1, 0, &out);
}
static void exit_above_what_ran(void) {
    gy_kv_exit(victim, 0, 1, 0);
}
static void exit_below_what_ran(void) {
    gy_kv_exit(victim, 0, 1, 3);
}
static void close_twice(void) {
    gy_kv_seq_close(victim, 0), gy_kv_seq_close(victim, 0);
}
static void unref_without_ref(void) {
    gy_kv_block_unref(victim, GY_KV_CORE, 0);
}
static void no_copy(void *a, gy_kv_group g, int32_t block, int32_t park_block) {
    (void)a, (void)g, (void)block, (void)park_block;
}
static void claim_while_parked(void) {
    gy_kv_park(victim, 0, no_copy, NULL), gy_kv_claim(victim, GY_KV_CORE, 0, 0, 20, &out);
}
static void truncate_while_parked(void) {
    gy_kv_park(victim, 0, no_copy, NULL), gy_kv_truncate(victim, 0, 0);
}
static void park_twice(void) {
    gy_kv_park(victim, 0, no_copy, NULL), gy_kv_park(victim, 0, no_copy, NULL);
}
static void restore_without_park(void) {
    gy_kv_restore(victim, 0, no_copy, NULL);
}
static void share_half_a_row(void) {
    gy_kv_share(victim, 2, 3, 8);
}
static void share_more_than_there_is(void) {
    gy_kv_share(victim, 2, 3, 32);
}
static void share_into_what_is_not_empty(void) {
    gy_kv_share(victim, 2, 1, 16);
}
static void share_what_exited_at_different_depths(void) {
    gy_kv_share(victim, 0, 3, 16);
}
static void share_what_has_not_left(void) {
    gy_kv_truncate(victim, 2, 0);
    for (int pos = 0; pos < 16; pos++) gy_kv_claim(victim, GY_KV_BOUNDARY, 2, 0, pos, &out);
    for (int pos = 0; pos < 16; pos++) gy_kv_claim(victim, GY_KV_CORE, 2, 0, pos, &out);
    gy_kv_share(victim, 2, 3, 16);
}
static void truncate_into_a_shared_block(void) {
    gy_kv_share(victim, 2, 3, 16), gy_kv_truncate(victim, 2, 15);
}
static void truncate_into_a_held_block(void) {
    gy_kv_block_ref(victim, GY_KV_CORE, entry(victim, 2, 0, 3) / 16), gy_kv_truncate(victim, 2, 3);
}

static int dies(void (*fn)(void)) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
}

static void nothing(void) {}

static void broken_call_orders_are_checked(void **state) {
    (void)state;
    static void (*const wrong[])(void) = {claim_skips_a_position,
                                          claim_skips_a_depth,
                                          claim_below_an_exit,
                                          claim_behind_the_log,
                                          claim_past_capacity,
                                          claim_of_a_closed_sequence,
                                          boundary_below_depth_0,
                                          exit_above_what_ran,
                                          exit_below_what_ran,
                                          close_twice,
                                          unref_without_ref,
                                          claim_while_parked,
                                          truncate_while_parked,
                                          park_twice,
                                          restore_without_park,
                                          share_half_a_row,
                                          share_more_than_there_is,
                                          share_into_what_is_not_empty,
                                          share_what_exited_at_different_depths,
                                          share_what_has_not_left,
                                          truncate_into_a_shared_block,
                                          truncate_into_a_held_block};
    victim = planted_kv(GY_KV_LAST_EXITED, 0, 4);
    assert_int_equal(open_seq(victim), 2);
    assert_int_equal(open_seq(victim), 3);
    run(victim, 2, 0, 20, 2);
    gy_kv_share(victim, 2, 3, 16); /* what must work does */
    gy_kv_truncate(victim, 3, 0);
    assert_false(dies(nothing));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!dies(wrong[i])) fail_msg("broken call order %zu went unnoticed", i);
    gy_kv_destroy(victim);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_match_published_figures),
        cmocka_unit_test(blocks_and_planes_follow_the_layout),
        cmocka_unit_test(layout_parse_accepts_and_refuses),
        cmocka_unit_test(create_refuses_bad_configs),
        cmocka_unit_test(create_survives_failing_allocations),
        cmocka_unit_test(create_refuses_impossible_maps),
        cmocka_unit_test(seq_open_limits),
        cmocka_unit_test(last_exited_reads_the_last_loop_that_ran),
        cmocka_unit_test(shared_gives_one_slot),
        cmocka_unit_test(cyclic_wraps_and_fills_what_is_missing),
        cmocka_unit_test(planes_use_blocks_as_deep_as_tokens_run),
        cmocka_unit_test(model_without_boundary),
        cmocka_unit_test(held_blocks_outlive_their_sequence),
        cmocka_unit_test(claim_takes_says_which_claims_need_a_block),
        cmocka_unit_test(choices_share_the_prompt),
        cmocka_unit_test(share_keeps_what_deeper_depths_read),
        cmocka_unit_test(truncate_rewinds_each_plane),
        cmocka_unit_test(truncate_leaves_shared_rows_to_others),
        cmocka_unit_test(truncate_keeps_tokens_in_flight),
        cmocka_unit_test(parked_blocks_come_back_elsewhere),
        cmocka_unit_test(parking_needs_room_in_both_groups),
        cmocka_unit_test(parking_is_impossible_without_park_blocks),
        cmocka_unit_test(parking_unshares),
        cmocka_unit_test(random_workloads_match_the_naive_model),
        cmocka_unit_test(again_changes_nothing),
        cmocka_unit_test(checker_finds_planted_corruption),
        cmocka_unit_test(checker_finds_corrupt_sequences),
        cmocka_unit_test(checker_finds_corrupt_sharing_and_parking),
        cmocka_unit_test(broken_call_orders_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
