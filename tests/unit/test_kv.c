/* The KV cache: sizes against published figures, each layout's map by hand, random workloads against a naive model,
 * the checker against planted corruption, and failing allocations.
 */
#include "kv/kv_int.h"

#include "base/mem.h"
#include "base/philox.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

_Static_assert((int)GY_KV_BLOCK_LEN == (int)GY_BLOCK_SLOTS, "kv.h and ops.h disagree on the block length");

static char arena_mem[1]; /* the KV code never touches the arena: any address will do */
static void *const ARENA[GY_KV_GROUPS] = {arena_mem, arena_mem};

static gy_kv_config config_make(gy_kv_layout layout, int k, int n_loop, int n_block) {
    gy_kv_config c = {.layout = layout, .cyclic_k = k, .n_loop = n_loop, .n_head_kv = 2, .head_dim = 4};
    c.n_layer[GY_KV_CORE] = 2;
    c.n_layer[GY_KV_BOUNDARY] = 1;
    c.dtype = GY_BF16;
    c.n_block[GY_KV_CORE] = n_block;
    c.n_block[GY_KV_BOUNDARY] = n_block;
    c.max_seqs = 4;
    c.max_len = 70;
    return c;
}

static gy_kv *kv_make(const gy_kv_config *c) {
    gy_kv *kv = NULL;
    gy_err err = {0};
    assert_int_equal(gy_kv_create(c, ARENA, &err, &kv), GY_OK);
    return kv;
}

static void assert_valid(const gy_kv *kv) {
    char why[256] = "";
    if (!gy_kv_is_valid(kv, why, sizeof why)) fail_msg("%s", why);
}

static int32_t entry(const gy_kv *kv, int32_t seq, int32_t depth, int32_t pos) {
    return gy_kv_map(kv, GY_KV_CORE)[gy_kv_map_off(kv, GY_KV_CORE, seq, depth) + pos];
}

static int32_t claim(gy_kv *kv, int32_t seq, int32_t depth, int32_t pos) {
    int32_t slot = -7;
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, seq, depth, pos, &slot), GY_OK);
    return slot;
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 5, 10);
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
    const gy_kv_config good = config_make(GY_KV_CYCLIC, 2, 4, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 4, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 1 << 12, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 4, 8);
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
    gy_kv_config c = config_make(GY_KV_SHARED, 0, 3, 8);
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
    gy_kv_config c = config_make(GY_KV_CYCLIC, 3, 7, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 4, 40);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 8);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 8);
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
        gy_kv_config roomy = config_make(shape[i].layout, shape[i].k, shape[i].n_loop, BLOCKS);
        gy_kv_config tight = config_make(shape[i].layout, shape[i].k, shape[i].n_loop, 9);
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
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 3, 2);
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
    gy_kv_config c = config_make(layout, k, n_loop, 30);
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
    gy_kv_claim(victim, GY_KV_CORE, 3, 0, 0, &out);
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
    static void (*const wrong[])(void) = {claim_skips_a_position, claim_skips_a_depth,
                                          claim_below_an_exit,    claim_behind_the_log,
                                          claim_past_capacity,    claim_of_a_closed_sequence,
                                          boundary_below_depth_0, exit_above_what_ran,
                                          exit_below_what_ran,    close_twice,
                                          unref_without_ref};
    victim = planted_kv(GY_KV_LAST_EXITED, 0, 4);
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
        cmocka_unit_test(random_workloads_match_the_naive_model),
        cmocka_unit_test(again_changes_nothing),
        cmocka_unit_test(checker_finds_planted_corruption),
        cmocka_unit_test(checker_finds_corrupt_sequences),
        cmocka_unit_test(broken_call_orders_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
