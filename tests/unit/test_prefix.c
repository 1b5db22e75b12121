/* The prefix cache by hand: what is found and what is shared, who may see what, in which order rows go, when publishing
 * stops, hashes that all collide, the checker against planted corruption, broken calls, failing allocations. Random
 * workloads over bytes are test_kv_bytes.c's.
 */
#include "kv/prefix_int.h"

#include "base/mem.h"

#include "base_test.h"
#include "kv_test.h"

#include <stdlib.h>

static const gy_prefix_space PLAIN = {0};

static gy_kv_config config_make(gy_kv_layout layout, int k, int n_loop, int n_block, int boundary) {
    gy_kv_config c = kv_config(layout, k, n_loop, n_block);
    c.n_park[GY_KV_CORE] = 8;
    c.n_layer[GY_KV_BOUNDARY] = boundary;
    c.n_block[GY_KV_BOUNDARY] = boundary ? n_block : 0;
    c.n_park[GY_KV_BOUNDARY] = boundary ? 8 : 0;
    c.max_seqs = 6;
    c.max_len = 100;
    return c;
}

static gy_kv *cached_make(const gy_kv_config *c, int depth) {
    gy_kv *kv = kv_make(c);
    gy_err err = {0};
    assert_int_equal(gy_prefix_create(kv, depth, &err), GY_OK);
    return kv;
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
        gy_kv *kv = cached_make(&c, shape[i].depth);
        int32_t a = open_seq(kv), b, alone[GY_KV_GROUPS], planes = gy_kv_n_plane(&c, GY_KV_CORE);
        int32_t n_own = shape[i].depth < planes ? shape[i].depth : planes;
        gy_prefix_cursor ca = {0}, cb;
        kv_run(kv, a, 0, 40, shape[i].depth);
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
                assert_int_equal(kv_entry(kv, GY_KV_CORE, b, d, pos),
                                 pos < 32 ? kv_entry(kv, GY_KV_CORE, a, d, pos) : -1);
        for (int pos = 0; pos < 48 && shape[i].boundary; pos++)
            assert_int_equal(kv_entry(kv, GY_KV_BOUNDARY, b, 0, pos),
                             pos < 32 ? kv_entry(kv, GY_KV_BOUNDARY, a, 0, pos) : -1);
        assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_CORE, b), 2 * n_own);
        assert_int_equal(gy_kv_seq_blocks(kv, GY_KV_BOUNDARY, b), shape[i].boundary ? 2 : 0);
        for (int plane = 0; plane < planes; plane++)
            assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, b, plane), plane < n_own ? 32 : 0);
        gy_kv_seq_close(kv, a);
        kv_run(kv, b, 32, 60, shape[i].depth); /* goes on in blocks of its own */
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

static int32_t match(const gy_kv *kv, const gy_prefix_space *sp, const int32_t *tok, int32_t n_tok) {
    int32_t alone[GY_KV_GROUPS];
    return gy_prefix_match(kv, sp, tok, n_tok, alone);
}

/* A request of its own: runs tok[0..n) at full depth, publishes, closes. Returns the tokens that it found. */
static int32_t request(gy_kv *kv, const gy_prefix_space *sp, const int32_t *tok, int32_t n) {
    gy_prefix_cursor c;
    int32_t seq = open_seq(kv), found = gy_prefix_attach(kv, sp, tok, n, seq, &c);
    kv_run(kv, seq, found, n, kv->prefix->depth);
    gy_prefix_publish(kv, sp, tok, n, seq, &c);
    gy_kv_seq_close(kv, seq);
    assert_valid(kv);
    return found;
}

static gy_prefix_stats stats(const gy_kv *kv) {
    gy_prefix_stats st;
    gy_prefix_get_stats(kv, &st);
    return st;
}

/* ---- what is found ---- */

static void only_whole_rows_that_are_equal_are_found(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 60, 1);
    int32_t tok[100], other[100];
    for (int collide = 0; collide < 2; collide++) {
        gy_kv *kv = cached_make(&c, 2);
        if (collide) kv->prefix->hash_mask = 0;
        assert_int_equal(request(kv, &PLAIN, tokens(tok, 100, 0), 50), 0);
        assert_int_equal(match(kv, &PLAIN, tok, 100), 48);
        assert_int_equal(match(kv, &PLAIN, tok, 48), 48);
        assert_int_equal(match(kv, &PLAIN, tok, 47), 32);
        assert_int_equal(match(kv, &PLAIN, tok, 16), 16);
        assert_int_equal(match(kv, &PLAIN, tok, 15), 0);
        assert_int_equal(match(kv, &PLAIN, tok, 0), 0);
        assert_int_equal(match(kv, &PLAIN, tok + 16, 32), 0); /* the second row is one only behind the first */
        for (int at = 0; at < 48; at++) {
            tokens(other, 100, 0);
            other[at] ^= 1 << at % 31;
            assert_int_equal(match(kv, &PLAIN, other, 100), at / 16 * 16);
        }
        /* Two tokens change places; a row twice. */
        tokens(other, 100, 0);
        other[17] = 18, other[18] = 17;
        assert_int_equal(match(kv, &PLAIN, other, 100), 16);
        memcpy(other + 16, tok, 16 * sizeof *tok);
        assert_int_equal(match(kv, &PLAIN, other, 100), 16);
        /* Two branches below one row. */
        tokens(other, 100, 0);
        other[20] = 7;
        assert_int_equal(request(kv, &PLAIN, other, 40), 16);
        assert_int_equal(match(kv, &PLAIN, other, 100), 32);
        assert_int_equal(match(kv, &PLAIN, tok, 100), 48);
        assert_int_equal(stats(kv).n_row, 4);
        assert_valid(kv);
        gy_kv_destroy(kv);
    }
}

static void match_changes_nothing(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 60, 1);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100];
    request(kv, &PLAIN, tokens(tok, 100, 0), 50);
    request(kv, &PLAIN, tokens(tok, 100, 1000), 50);
    kv_prefix x = *kv->prefix;
    void *mem = malloc(x.mem.used);
    assert_non_null(mem);
    memcpy(mem, x.mem.base, x.mem.used);
    assert_int_equal(match(kv, &PLAIN, tokens(tok, 100, 0), 100), 48);
    assert_memory_equal(&x, kv->prefix, sizeof x);
    assert_memory_equal(mem, x.mem.base, x.mem.used);
    free(mem);
    gy_kv_destroy(kv);
}

/* Timing tells what a cache holds (CVE-2025-46570), so whoever may not share must not hit. */
static void spaces_are_kept_apart(void **state) {
    (void)state;
    char longest[GY_PREFIX_MAX_SALT], almost[GY_PREFIX_MAX_SALT], copy[] = {'a', '\0', 'b'};
    memset(longest, 'x', sizeof longest);
    memcpy(almost, longest, sizeof almost);
    almost[sizeof almost - 1] = 'y';
    const gy_prefix_space apart[] = {{NULL, 0, 0, 0},
                                     {"a", 1, 0, 0},
                                     {"b", 1, 0, 0},
                                     {"a\0", 2, 0, 0},
                                     {"a\0b", 3, 0, 0},
                                     {longest, GY_PREFIX_MAX_SALT, 0, 0},
                                     {almost, GY_PREFIX_MAX_SALT, 0, 0},
                                     {longest, GY_PREFIX_MAX_SALT - 1, 0, 0},
                                     {NULL, 0, 1, 0},
                                     {NULL, 0, 1, 1},
                                     {"a", 1, 1, 1},
                                     {NULL, 0, 1, 1ull << 63}};
    enum { N = sizeof apart / sizeof *apart };
    int32_t tok[100];
    tokens(tok, 100, 0);
    for (int collide = 0; collide < 2; collide++) {
        gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 60, 1);
        gy_kv *kv = cached_make(&c, 2);
        if (collide) kv->prefix->hash_mask = 0;
        for (int i = 0; i < N; i++) {
            for (int j = i; j < N; j++) assert_int_equal(match(kv, &apart[j], tok, 100), 0);
            assert_int_equal(request(kv, &apart[i], tok, 17), 0);
            for (int j = 0; j <= i; j++) assert_int_equal(match(kv, &apart[j], tok, 100), 16);
        }
        /* The same bytes elsewhere, a seed that does not count, noise that is merely true. */
        assert_int_equal(match(kv, &(gy_prefix_space){copy, 3, 0, 0}, tok, 100), 16);
        assert_int_equal(match(kv, &(gy_prefix_space){"a", 1, 0, 77}, tok, 100), 16);
        assert_int_equal(match(kv, &(gy_prefix_space){"", 0, 4, 1}, tok, 100), 16);
        gy_prefix_clear(kv);
        for (int i = 0; i < N; i++) assert_int_equal(match(kv, &apart[i], tok, 100), 0);
        assert_int_equal(kv->prefix->space[kv->prefix->free_space].n_row, 0);
        assert_valid(kv);
        for (int i = 0; i < N; i++) assert_int_equal(request(kv, &apart[i], tok, 17), 0); /* names are used again */
        assert_valid(kv);
        gy_kv_destroy(kv);
    }
}

/* Each row in a space of its own: as many names as rows are needed, and there are. */
static void room_for_names_never_runs_out(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 9, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[16];
    tokens(tok, 16, 0);
    for (uint64_t i = 0; i < 40; i++) {
        gy_prefix_space sp = {NULL, 0, 1, i};
        assert_int_equal(request(kv, &sp, tok, 16), 0);
        assert_int_equal(match(kv, &sp, tok, 16), 16);
    }
    assert_int_equal(stats(kv).n_row, 4);
    assert_int_equal(stats(kv).n_evict, 36);
    gy_kv_destroy(kv);
}

static void statistics_count_what_they_say(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 60, 1);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100];
    tokens(tok, 100, 0);
    request(kv, &PLAIN, tok, 40);
    request(kv, &PLAIN, tok, 40);
    request(kv, &PLAIN, tok, 90);
    gy_prefix_stats st = stats(kv);
    assert_int_equal(st.n_query, 3);
    assert_int_equal(st.n_query_tok, 170);
    assert_int_equal(st.n_hit, 2);
    assert_int_equal(st.n_hit_tok, 64);
    assert_int_equal(st.n_publish, 5);
    assert_int_equal(st.n_row, 5);
    assert_int_equal(st.n_evict, 0);
    gy_prefix_clear(kv);
    assert_int_equal(stats(kv).n_row, 0);
    assert_int_equal(stats(kv).n_evict, 0); /* nobody needed the room */
    gy_kv_destroy(kv);
}

static void without_a_cache_nothing_happens(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 60, 1);
    gy_kv *kv = NULL;
    gy_err err = {0};
    int32_t tok[100], alone[GY_KV_GROUPS] = {-1, -1};
    gy_prefix_cursor cursor = {.node = 5};
    assert_int_equal(gy_kv_create(&c, ARENA, &err, &kv), GY_OK);
    int32_t seq = open_seq(kv);
    assert_int_equal(gy_prefix_enabled(kv), 0);
    assert_int_equal(gy_prefix_match(kv, &PLAIN, tokens(tok, 100, 0), 100, alone), 0);
    assert_int_equal(alone[0] + alone[1], 0);
    assert_int_equal(gy_prefix_attach(kv, &PLAIN, tok, 100, seq, &cursor), 0);
    assert_int_equal(cursor.node, 0);
    kv_run(kv, seq, 0, 20, 2);
    gy_prefix_publish(kv, &PLAIN, tok, 20, seq, &cursor);
    gy_prefix_clear(kv);
    assert_int_equal(stats(kv).n_query, 0);
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 0);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* ---- who keeps what ---- */

/* Two equal prompts at once: the second finds its rows there and keeps its own blocks; its tail goes below the first's
 * rows. When the first is gone these are held by the cache alone, and can be had although the tail is in use. */
static void rows_that_exist_are_kept(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 16, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100], a = open_seq(kv), b = open_seq(kv), slot;
    gy_prefix_cursor ca = {0}, cb = {0};
    tokens(tok, 100, 0);
    kv_run(kv, a, 0, 32, 2);
    kv_run(kv, b, 0, 48, 2);
    gy_prefix_publish(kv, &PLAIN, tok, 32, a, &ca);
    gy_prefix_publish(kv, &PLAIN, tok, 48, b, &cb);
    assert_int_equal(cb.n_row, 3);
    assert_int_equal(stats(kv).n_row, 3);
    assert_int_equal(stats(kv).n_publish, 3);
    assert_int_not_equal(kv_entry(kv, GY_KV_CORE, a, 0, 0), kv_entry(kv, GY_KV_CORE, b, 0, 0));
    assert_valid(kv);
    gy_kv_seq_close(kv, a);
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 4);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 16 - 6 - 4);
    assert_valid(kv);
    a = open_seq(kv);
    kv_run(kv, a, 0, 48, 2); /* the free ones */
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 0);
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 4);
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, a, 0, 48, &slot), GY_OK);
    assert_int_equal(stats(kv).n_row, 1); /* row 2, in use and a leaf, then row 1 */
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 3);
    assert_valid(kv);
    assert_int_equal(gy_kv_plane_len(kv, GY_KV_CORE, b, 1), 48); /* b lost nothing */
    kv_run(kv, b, 48, 64, 2);
    gy_prefix_publish(kv, &PLAIN, tok, 64, b, &cb);
    assert_int_equal(cb.node, -1); /* its row is gone: it publishes no more */
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* A row may be evicted and its number be given to another one: the cursor that knew the first notices. */
static void publishing_stops_where_its_row_was_evicted(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 40, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100], other[100], a = open_seq(kv);
    gy_prefix_cursor ca = {0};
    kv_run(kv, a, 0, 32, 2);
    gy_prefix_publish(kv, &PLAIN, tokens(tok, 100, 0), 16, a, &ca);
    assert_int_equal(ca.n_row, 1);
    gy_prefix_cursor seen = ca;
    gy_prefix_publish(kv, &PLAIN, tok, 31, a, &ca); /* no new whole row */
    assert_memory_equal(&seen, &ca, sizeof ca);
    gy_prefix_clear(kv);
    request(kv, &PLAIN, tokens(other, 100, 500), 16);
    assert_true(kv->prefix->row[ca.node].stamp != 0); /* the number is in use again */
    gy_prefix_publish(kv, &PLAIN, tok, 32, a, &ca);
    assert_int_equal(ca.node, -1);
    gy_prefix_publish(kv, &PLAIN, tok, 32, a, &ca);
    assert_int_equal(ca.node, -1);
    assert_int_equal(stats(kv).n_row, 1);
    ca = (gy_prefix_cursor){0}; /* from the top again */
    gy_prefix_publish(kv, &PLAIN, tok, 32, a, &ca);
    assert_int_equal(ca.n_row, 2);
    assert_int_equal(match(kv, &PLAIN, tok, 100), 32);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* pd.md 10: pages of a transfer must not be reused when their row goes. */
static void held_blocks_outlive_their_row(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 8, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100];
    request(kv, &PLAIN, tokens(tok, 100, 0), 16);
    int32_t block = kv->prefix->core[0];
    gy_kv_block_ref(kv, GY_KV_CORE, block);
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 1);
    assert_valid(kv);
    gy_prefix_clear(kv);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 7);
    assert_valid(kv);
    gy_kv_block_unref(kv, GY_KV_CORE, block);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 8);
    gy_kv_destroy(kv);
}

static void no_copy(void *arg, gy_kv_group g, int32_t block, int32_t park_block) {
    (void)arg, (void)g, (void)block, (void)park_block;
}

/* Parked: its rows are nobody's but the cache's, and may be needed for restoring itself. */
static void parking_lets_rows_go(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 4, 1);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100], a = open_seq(kv);
    gy_prefix_cursor ca = {0};
    kv_run(kv, a, 0, 32, 2);
    gy_prefix_publish(kv, &PLAIN, tokens(tok, 100, 0), 32, a, &ca);
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 0);
    assert_int_equal(gy_kv_park(kv, a, no_copy, NULL), GY_OK);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_CORE), 0);
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 4);
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_BOUNDARY), 2);
    assert_valid(kv);
    assert_int_equal(gy_kv_restore(kv, a, no_copy, NULL), GY_OK);
    assert_int_equal(stats(kv).n_row, 0);
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 0);
    assert_valid(kv);
    gy_kv_truncate(kv, a, 3); /* private: may be cut anywhere */
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* ---- the order of eviction ---- */

/* Two chains of three rows; ten claims of a block each, and what is left of either chain after each. */
static void the_least_recently_used_leaf_goes_first(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_SHARED, 0, 2, 10, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t a[48], b[48], slot;
    request(kv, &PLAIN, tokens(a, 48, 0), 48);
    request(kv, &PLAIN, tokens(b, 48, 500), 48);
    request(kv, &PLAIN, a, 32); /* touches two rows of the older chain; the third stays behind */
    assert_int_equal(stats(kv).n_row, 6);
    const int32_t due[10][2] = {{48, 48}, {48, 48}, {48, 48}, {48, 48}, {32, 48},
                                {32, 32}, {32, 16}, {32, 0},  {16, 0},  {0, 0}};
    int32_t eater[2] = {open_seq(kv), open_seq(kv)};
    for (int i = 0; i < 10; i++) {
        for (int pos = 0; pos < 16; pos++)
            assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, eater[i / 6], 0, i % 6 * 16 + pos, &slot), GY_OK);
        assert_int_equal(match(kv, &PLAIN, a, 48), due[i][0]);
        assert_int_equal(match(kv, &PLAIN, b, 48), due[i][1]);
        assert_valid(kv);
    }
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, eater[1], 0, 64, &slot), GY_AGAIN);
    gy_kv_destroy(kv);
}

/* What somebody reads is kept while there is anything else, however long ago it was attached. */
static void rows_in_use_go_last(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_SHARED, 0, 2, 8, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t a[48], b[48];
    gy_prefix_cursor cursor;
    request(kv, &PLAIN, tokens(a, 48, 0), 48);
    int32_t reader = open_seq(kv);
    assert_int_equal(gy_prefix_attach(kv, &PLAIN, a, 48, reader, &cursor), 48);
    for (int i = 0; i < 5; i++) request(kv, &PLAIN, tokens(b, 48, 1000 * (i + 1)), 48);
    assert_int_equal(match(kv, &PLAIN, a, 48), 48);
    assert_int_equal(match(kv, &PLAIN, b, 48), 48);
    /* Nothing but rows in use: a claim that cannot be satisfied leaves them alone. */
    int32_t eater = open_seq(kv), slot;
    for (int pos = 0; pos < 80; pos++) assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, eater, 0, pos, &slot), GY_OK);
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 0);
    int64_t n_evict = stats(kv).n_evict;
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, eater, 0, 80, &slot), GY_AGAIN);
    assert_int_equal(stats(kv).n_evict, n_evict);
    assert_int_equal(match(kv, &PLAIN, a, 48), 48);
    assert_valid(kv);
    gy_kv_seq_close(kv, reader);
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, eater, 0, 80, &slot), GY_OK);
    assert_int_equal(match(kv, &PLAIN, a, 48), 32);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* A row that nobody reads, kept by one below it that is read, can be had; on the way to it go the rows that were
 * attached longest ago. */
static void among_rows_in_use_the_longest_unattached_goes_first(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_SHARED, 0, 2, 8, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t a[48], b[48], d[48], slot, seq[6];
    gy_prefix_cursor cursor;
    tokens(a, 48, 0), tokens(b, 48, 500), tokens(d, 48, 1000);
    const int32_t *const prompt[4] = {a, b, d, d};
    const int32_t n_tok[4] = {32, 32, 16, 32};
    for (int i = 0; i < 4; i++) {
        seq[i] = open_seq(kv);
        cursor = (gy_prefix_cursor){0};
        kv_run(kv, seq[i], 0, n_tok[i], 2);
        gy_prefix_publish(kv, &PLAIN, prompt[i], n_tok[i], seq[i], &cursor);
    }
    gy_kv_seq_close(kv, seq[2]); /* its row is the cache's alone, with the fourth one's below it */
    assert_int_equal(gy_kv_n_cached(kv, GY_KV_CORE), 1);
    seq[4] = open_seq(kv), seq[5] = open_seq(kv);
    assert_int_equal(gy_prefix_attach(kv, &PLAIN, a, 48, seq[4], &cursor), 32);
    assert_valid(kv);
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, seq[5], 0, 0, &slot), GY_OK);
    assert_int_equal(stats(kv).n_evict, 0);
    assert_int_equal(gy_kv_claim(kv, GY_KV_CORE, seq[4], 0, 32, &slot), GY_OK);
    assert_int_equal(stats(kv).n_evict, 4);
    assert_int_equal(match(kv, &PLAIN, a, 48), 32);
    assert_int_equal(match(kv, &PLAIN, b, 48) + match(kv, &PLAIN, d, 48), 0);
    assert_valid(kv);
    gy_kv_destroy(kv);
}

/* One pool's shortage may take rows whose blocks of the other pool then lie free: nothing is lost. */
static void a_short_boundary_pool_evicts_too(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 40, 1);
    c.n_block[GY_KV_BOUNDARY] = 3;
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100];
    request(kv, &PLAIN, tokens(tok, 100, 0), 48);
    assert_int_equal(gy_kv_n_free(kv, GY_KV_BOUNDARY), 0);
    request(kv, &PLAIN, tokens(tok, 100, 500), 20);
    assert_int_equal(match(kv, &PLAIN, tok, 100), 16);
    assert_int_equal(match(kv, &PLAIN, tokens(tok, 100, 0), 100), 16);
    assert_int_equal(gy_kv_n_avail(kv, GY_KV_CORE), 40);
    gy_kv_destroy(kv);
}

/* ---- create ---- */

static void create_refuses_and_survives(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 4, 3, 0);
    gy_kv *kv = NULL;
    gy_err err = {0};
    gy_mem_stats start, end;
    int n = 0;
    gy_mem_get_stats(&start);
    assert_int_equal(gy_kv_create(&c, ARENA, &err, &kv), GY_OK);
    assert_int_equal(gy_prefix_create(kv, 0, &err), GY_E_ARG);
    assert_string_equal(err.msg, "prefix cache: depth is 0; allowed 1..4");
    assert_int_equal(gy_prefix_create(kv, 5, &err), GY_E_ARG);
    for (gy_status st = GY_E_NOMEM; st != GY_OK;) {
        gy_mem_fail_after(++n);
        st = gy_prefix_create(kv, 4, &err);
        gy_mem_fail_after(0);
        assert_int_equal(gy_prefix_enabled(kv), st == GY_OK);
        if (st != GY_OK) assert_int_equal(st, GY_E_NOMEM);
        if (st != GY_OK) assert_non_null(strstr(err.msg, "prefix cache: no memory"));
    }
    assert_int_equal(n, 3);
    assert_int_equal(kv->prefix->n_max, 0); /* the pool holds no whole row */
    int32_t tok[100], seq = open_seq(kv);
    gy_prefix_cursor cursor;
    assert_int_equal(gy_prefix_attach(kv, &PLAIN, tokens(tok, 100, 0), 100, seq, &cursor), 0);
    kv_run(kv, seq, 0, 16, 3);
    gy_prefix_publish(kv, &PLAIN, tok, 15, seq, &cursor);
    assert_valid(kv);
    gy_kv_destroy(kv);
    gy_mem_get_stats(&end);
    assert_int_equal(start.live_bytes[GY_MEM_KV], end.live_bytes[GY_MEM_KV]);
}

static void a_running_cache_allocates_nothing(void **state) {
    (void)state;
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 20, 1);
    gy_kv *kv = cached_make(&c, 2);
    int32_t tok[100];
    gy_mem_guard_begin();
    for (int i = 0; i < 50; i++) request(kv, &PLAIN, tokens(tok, 100, i % 5 * 1000), 40 + i % 50);
    gy_prefix_clear(kv);
    gy_mem_guard_end();
    gy_kv_destroy(kv);
}

/* ---- the checker can fail ---- */

static void assert_invalid(const gy_kv *kv, const char *what) {
    char why[256] = "";
    if (gy_kv_is_valid(kv, why, sizeof why)) fail_msg("went unnoticed: %s", what);
    if (!strstr(why, what)) fail_msg("\"%s\" does not say \"%s\"", why, what);
    assert_int_equal(gy_kv_is_valid(kv, NULL, 0), 0);
}

#define PLANT(field, value, what)                                                                                      \
    do {                                                                                                               \
        __typeof__(field) kept_ = (field);                                                                             \
        (field) = (value);                                                                                             \
        assert_invalid(kv, what);                                                                                      \
        (field) = kept_;                                                                                               \
        assert_valid(kv);                                                                                              \
    } while (0)

/* Rows 0, 1, 2 of one chain, idle; rows 3, 4 of another, the first one in use by sequence 0; a salted row 5. */
static gy_kv *planted_kv(void) {
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 40, 1);
    gy_kv *kv = cached_make(&c, 2);
    kv->prefix->key = 1; /* drawn at create; which names share a bucket must not change from run to run here */
    int32_t tok[100];
    gy_prefix_cursor cursor;
    request(kv, &PLAIN, tokens(tok, 100, 0), 48);
    request(kv, &PLAIN, tokens(tok, 100, 500), 32);
    int32_t seq = open_seq(kv);
    assert_int_equal(seq, 0);
    assert_int_equal(gy_prefix_attach(kv, &PLAIN, tok, 16, seq, &cursor), 16);
    request(kv, &(gy_prefix_space){"s", 1, 0, 0}, tok, 16);
    return kv;
}

static void checker_finds_planted_corruption(void **state) {
    (void)state;
    gy_kv *kv = planted_kv();
    kv_prefix *x = kv->prefix;
    kv_pool *p = &kv->pool[GY_KV_CORE], *q = &kv->pool[GY_KV_BOUNDARY];
    prefix_row *r = x->row;
    assert_valid(kv);
    PLANT(x->stats.n_row, 5, "6 rows, counted as 5");
    PLANT(x->free_row, 0, "row 0 on the free list");
    PLANT(x->free_row, 99, "row 99 on the free list");
    PLANT(x->free_row, -1, "0 free + 6 live rows are not 20");
    PLANT(r[6].next, 6, "ring");
    PLANT(r[1].stamp, 0, "rows are not 20");
    PLANT(x->idle.oldest, r[x->idle.oldest].younger, "older is");
    PLANT(x->idle.youngest, 2, "youngest of list 0");
    PLANT(r[2].younger, 2, "row 2 is on the lists twice");
    PLANT(r[2].younger, 77, "row 77 on a list");
    PLANT(r[2].younger, 3, "row 3 with 3 pins on list 0");
    PLANT(r[3].pin, 0, "row 3 with 0 pins on list 1");
    PLANT(r[3].pin, 2, "row 3: 3 pins, counted as 2");
    PLANT(r[4].pin, 1, "row 4 with 1 pins on list 0");
    PLANT(r[2].parent, 40, "row 2: parent 40");
    PLANT(r[2].parent, 7, "row 2 below free row 7");
    PLANT(r[2].parent, 30, "row 2 below free space 10");
    PLANT(r[1].parent, 2, "row 1 is younger than its parent 2");
    PLANT(r[2].tok[5], 1, "wrong bucket");
    PLANT(r[1].n_child, 0, "row 1: 1 children, counted as 0");
    PLANT(x->space[0].n_row, 1, "space 0: 2 rows, counted as 1");
    PLANT(x->space[0].n_row, 0, "below free space 0");
    PLANT(x->space[1].n_salt, 5000, "space 1: salt of 5000 bytes");
    PLANT(x->space[1].salt[0], 't', "space 1 in the wrong bucket");
    PLANT(x->space[1].latent_seed, 3, "space 1 in the wrong bucket");
    PLANT(x->free_space, 1, "space 1 on the free list");
    PLANT(x->free_space, x->space[x->free_space].next, "17 free + 2 live spaces are not 20");
    PLANT(x->core[0], -1, "row 0 plane 0: block -1 is not its own");
    PLANT(x->core[0], x->core[1], "at another place");
    PLANT(x->core[3 * 2], x->core[4 * 2], "is not its own");
    PLANT(x->boundary[5], x->boundary[4], "is not its own");
    PLANT(p->row[x->core[0]], 4, "is not its own");
    PLANT(p->row[x->core[0]], -1, "1 references, 0 owners");
    PLANT(p->row[p->free[0]], 0, "0 references, 1 owners");
    PLANT(q->n_cached, 2, "kv boundary: 5 cached, counted as 2");
    PLANT(x->bucket[gy_prefix_row_bucket(x, r[0].parent, r[0].tok)], -1, "rows in buckets, not 6");
    gy_kv_destroy(kv);
}

/* Two rows that say the same: found through the chain of a common bucket. */
static void checker_finds_doubles_and_wrong_places(void **state) {
    (void)state;
    gy_kv *kv = planted_kv();
    kv_prefix *x = kv->prefix;
    x->hash_mask = 0;
    assert_invalid(kv, "wrong bucket");
    gy_kv_destroy(kv);
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 2, 40, 1);
    int32_t tok[100];
    kv = cached_make(&c, 2);
    x = kv->prefix;
    x->hash_mask = 0;
    request(kv, &PLAIN, tokens(tok, 100, 0), 16);
    request(kv, &PLAIN, tokens(tok, 100, 500), 16);
    request(kv, &(gy_prefix_space){"s", 1, 0, 0}, tok, 16);
    int32_t kept = x->row[1].tok[0];
    memcpy(x->row[1].tok, x->row[0].tok, sizeof x->row[0].tok);
    assert_invalid(kv, "row 0 is not found");
    memcpy(x->row[1].tok, tokens(tok, 16, kept), sizeof x->row[0].tok);
    assert_valid(kv);
    PLANT(x->space[1].n_salt, 0, "space 0 is not found");
    /* A sequence that holds row 1's blocks as if they came second. */
    int32_t seq = open_seq(kv);
    gy_kv_adopt(kv, seq, x->core, 1, 2, x->boundary[0]);
    assert_valid(kv);
    gy_kv_adopt(kv, seq, x->core + 2, 1, 2, x->boundary[1]);
    assert_invalid(kv, "row 1 plane 0: block 2 is at another place too");
    gy_kv_destroy(kv);
}

/* ---- broken calls end the process ---- */

static gy_kv *victim; /* planted_kv; sequence 1 has 20 tokens at full depth, 2 is empty, 3 has 16 that left early */
static int32_t vtok[100];
static gy_prefix_cursor vcursor;
static void attach_to_a_full_sequence(void *arg) {
    (void)arg, gy_prefix_attach(victim, &PLAIN, vtok, 40, 1, &vcursor);
}
static void attach_more_than_fits(void *arg) {
    int32_t seq;
    gy_kv_seq_open(victim, 30, &seq);
    (void)arg, gy_prefix_attach(victim, &PLAIN, vtok, 48, seq, &vcursor);
}
static void salt_too_long(void *arg) {
    (void)arg, gy_prefix_match(victim, &(gy_prefix_space){"x", GY_PREFIX_MAX_SALT + 1, 0, 0}, vtok, 40, vtok);
}
static void salt_of_negative_length(void *arg) {
    (void)arg, gy_prefix_match(victim, &(gy_prefix_space){"x", -1, 0, 0}, vtok, 40, vtok);
}
static void publish_what_has_not_run(void *arg) {
    (void)arg, gy_prefix_publish(victim, &PLAIN, vtok, 32, 1, &vcursor);
}
static void publish_what_left_early(void *arg) {
    (void)arg, gy_prefix_publish(victim, &PLAIN, vtok, 16, 3, &vcursor);
}
static void publish_what_ran_deeper(void *arg) {
    gy_kv_config c = config_make(GY_KV_LAST_EXITED, 0, 3, 40, 0);
    gy_kv *kv = cached_make(&c, 2);
    int32_t seq = open_seq(kv);
    kv_run(kv, seq, 0, 15, 2);
    kv_run(kv, seq, 15, 16, 3);
    (void)arg, gy_prefix_publish(kv, &PLAIN, vtok, 16, seq, &vcursor);
}
static void publish_a_parked_sequence(void *arg) {
    gy_kv_park(victim, 1, no_copy, NULL);
    (void)arg, gy_prefix_publish(victim, &PLAIN, vtok, 16, 1, &vcursor);
}
static void publish_blocks_under_two_names(void *arg) {
    gy_prefix_cursor again = {0};
    vtok[0] = 4321;
    gy_prefix_publish(victim, &PLAIN, vtok, 16, 1, &vcursor);
    (void)arg, gy_prefix_publish(victim, &(gy_prefix_space){"z", 1, 0, 0}, vtok, 16, 1, &again);
}
static void truncate_into_a_published_row(void *arg) {
    vtok[0] = 4321;
    gy_prefix_publish(victim, &PLAIN, vtok, 16, 1, &vcursor);
    (void)arg, gy_kv_truncate(victim, 1, 10);
}
static void create_twice(void *arg) {
    (void)arg, (void)!gy_prefix_create(victim, 1, NULL);
}

static void broken_calls_are_checked(void **state) {
    (void)state;
    static void (*const wrong[])(void *) = {attach_to_a_full_sequence,
                                            attach_more_than_fits,
                                            salt_too_long,
                                            salt_of_negative_length,
                                            publish_what_has_not_run,
                                            publish_what_left_early,
                                            publish_what_ran_deeper,
                                            publish_a_parked_sequence,
                                            publish_blocks_under_two_names,
                                            truncate_into_a_published_row,
                                            create_twice};
    victim = planted_kv();
    tokens(vtok, 100, 0);
    assert_int_equal(open_seq(victim), 1);
    kv_run(victim, 1, 0, 20, 2);
    assert_int_equal(open_seq(victim), 2);
    assert_int_equal(open_seq(victim), 3);
    kv_run(victim, 3, 0, 16, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_aborts(wrong[i], NULL, "broken invariant");
    assert_valid(victim);
    gy_kv_destroy(victim);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_what_a_cold_run_would_have_made),
        cmocka_unit_test(only_whole_rows_that_are_equal_are_found),
        cmocka_unit_test(match_changes_nothing),
        cmocka_unit_test(spaces_are_kept_apart),
        cmocka_unit_test(room_for_names_never_runs_out),
        cmocka_unit_test(statistics_count_what_they_say),
        cmocka_unit_test(without_a_cache_nothing_happens),
        cmocka_unit_test(rows_that_exist_are_kept),
        cmocka_unit_test(publishing_stops_where_its_row_was_evicted),
        cmocka_unit_test(held_blocks_outlive_their_row),
        cmocka_unit_test(parking_lets_rows_go),
        cmocka_unit_test(the_least_recently_used_leaf_goes_first),
        cmocka_unit_test(rows_in_use_go_last),
        cmocka_unit_test(among_rows_in_use_the_longest_unattached_goes_first),
        cmocka_unit_test(a_short_boundary_pool_evicts_too),
        cmocka_unit_test(create_refuses_and_survives),
        cmocka_unit_test(a_running_cache_allocates_nothing),
        cmocka_unit_test(checker_finds_planted_corruption),
        cmocka_unit_test(checker_finds_doubles_and_wrong_places),
        cmocka_unit_test(broken_calls_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
