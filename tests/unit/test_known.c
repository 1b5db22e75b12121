/* What is believed to be cached, against a list that does the same by walking; and the names of rows. */
#include "base_test.h"

#include "base/mem.h"
#include "pd/known.h"

#include <stdlib.h>

static uint32_t draw(uint64_t *rng, uint32_t below) {
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*rng >> 33) % below);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static uint64_t name(const gy_request *r, const int32_t *tok, int32_t n) {
    uint64_t h = gy_known_begin(r);
    for (int32_t i = 0; i < n; i++) h = gy_known_next(h, tok[i]);
    return h;
}

static void whose_and_what(void **state) {
    (void)state;
    static const int32_t a[3] = {1, 2, 3}, b[3] = {1, 3, 2}, zeros[3];
    const gy_request plain = {0}, salt = {.cache_salt = "a", .n_salt = 1}, other = {.cache_salt = "b", .n_salt = 1},
                     longer = {.cache_salt = "a\0", .n_salt = 2}, noise = {.latent_noise = 1},
                     seed = {.latent_noise = 1, .latent_seed = 1ull << 40}, unused = {.latent_seed = 7};
    const uint64_t all[] = {name(&plain, a, 3),     name(&plain, b, 3), name(&plain, a, 2),     name(&plain, zeros, 3),
                            name(&plain, zeros, 2), name(&salt, a, 3),  name(&other, a, 3),     name(&longer, a, 3),
                            name(&noise, a, 3),     name(&seed, a, 3),  gy_known_begin(&plain), gy_known_begin(&salt)};
    size_t n = sizeof all / sizeof all[0];
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) assert_true(all[i] != all[k]);
    assert_true(name(&unused, a, 3) == all[0]); /* without noise its seed does not count */
}

/* ---- the first rows of a prompt -----------------------------------------------------------------------------------
 */

static gy_known *open_known(int32_t n) {
    gy_known *x = NULL;
    gy_err err;
    assert_int_equal(gy_known_create(n, &err, &x), GY_OK);
    return x;
}

static void the_beginning_stays_longest(void **state) {
    (void)state;
    gy_known *x = open_known(5);
    static const uint64_t a[4] = {11, 12, 13, 14}, b[4] = {11, 12, 23, 24}, c[7] = {31, 32, 33, 34, 35, 36, 37};
    assert_int_equal(gy_known_match(x, a, 4), 0);
    gy_known_put(x, a, 4);
    gy_known_put(x, b, 0);
    assert_int_equal(gy_known_match(x, a, 4), 4);
    assert_int_equal(gy_known_match(x, b, 4), 2);
    gy_known_put(x, b, 4); /* six rows, room for five: the end of a goes */
    assert_int_equal(gy_known_match(x, a, 4), 3);
    assert_int_equal(gy_known_match(x, b, 4), 4);
    gy_known_grow(x, 13, 15); /* touches a: 24 is the oldest now */
    assert_int_equal(gy_known_match(x, b, 4), 3);
    gy_known_grow(x, 99, 98); /* behind nobody */
    assert_int_equal(gy_known_match(x, (const uint64_t[]){98}, 1), 0);
    gy_known_put(x, c, 7); /* longer than the table: its beginning */
    assert_int_equal(gy_known_match(x, c, 7), 5);
    assert_int_equal(gy_known_match(x, a, 4), 0);
    gy_known_grow(x, 35, 36); /* nothing but its own path could go for it */
    assert_int_equal(gy_known_match(x, c, 7), 5);
    gy_known_grow(x, 0, 41); /* a first row */
    assert_int_equal(gy_known_match(x, (const uint64_t[]){41}, 1), 1);
    assert_int_equal(gy_known_count(x), 5);
    assert_true(gy_known_is_valid(x));
    gy_known_destroy(x);
}

/* ---- against a list -----------------------------------------------------------------------------------------------
 */

enum { MOST = 40, DEPTH = 8 };

typedef struct list { /* youngest first */
    int32_t n, n_max;
    uint64_t hash[MOST + 1], parent[MOST + 1];
} list;

static int32_t at_of(const list *l, uint64_t hash) {
    for (int32_t i = 0; i < l->n; i++)
        if (l->hash[i] == hash) return i;
    return -1;
}

static void move_to(list *l, int32_t from, int32_t to) {
    uint64_t h = l->hash[from], p = l->parent[from];
    memmove(l->hash + from, l->hash + from + 1, (size_t)(l->n - from - 1) * sizeof h);
    memmove(l->parent + from, l->parent + from + 1, (size_t)(l->n - from - 1) * sizeof p);
    memmove(l->hash + to + 1, l->hash + to, (size_t)(l->n - to - 1) * sizeof h);
    memmove(l->parent + to + 1, l->parent + to, (size_t)(l->n - to - 1) * sizeof p);
    l->hash[to] = h;
    l->parent[to] = p;
}

static void list_touch(list *l, uint64_t hash) {
    for (int32_t i; hash; hash = l->parent[0]) {
        i = at_of(l, hash);
        move_to(l, i, 0);
    }
}

static void list_add(list *l, uint64_t parent, uint64_t hash) {
    if (l->n == l->n_max) l->n--;
    l->hash[l->n] = hash;
    l->parent[l->n] = parent;
    l->n++;
    move_to(l, l->n - 1, parent ? at_of(l, parent) + 1 : 0);
}

static void list_put(list *l, const uint64_t *hash, int32_t n) {
    int32_t had = 0;
    if (n > l->n_max) n = l->n_max;
    while (had < n && at_of(l, hash[had]) >= 0) had++;
    if (had) list_touch(l, hash[had - 1]);
    for (int32_t i = had; i < n; i++) list_add(l, i ? hash[i - 1] : 0, hash[i]);
}

/* One of a small forest, so that prompts begin alike. */
static int32_t draw_path(uint64_t *rng, uint64_t *out) {
    const gy_request plain = {0};
    uint64_t h = gy_known_begin(&plain);
    int32_t n = 1 + (int32_t)draw(rng, DEPTH);
    for (int32_t i = 0; i < n; i++) out[i] = h = gy_known_next(h, (int32_t)draw(rng, 3));
    return n;
}

static void as_a_list_does(void **state) {
    (void)state;
    uint64_t rng = 7, path[DEPTH];
    for (int round = 0; round < 200; round++) {
        list l = {.n_max = 1 + (int32_t)draw(&rng, MOST)};
        gy_known *x = open_known(l.n_max);
        for (int step = 0; step < 200; step++) {
            int32_t n = draw_path(&rng, path), had = 0;
            while (had < n && at_of(&l, path[had]) >= 0) had++;
            assert_int_equal(gy_known_match(x, path, n), had);
            int32_t from = had ? (int32_t)draw(&rng, (uint32_t)had) : 0;
            if (draw(&rng, 2)) {
                gy_known_put(x, path, n);
                list_put(&l, path, n);
            } else if (had && had < n && had < l.n_max) {
                gy_known_grow(x, path[had - 1], path[had]);
                list_touch(&l, path[had - 1]);
                list_add(&l, path[had - 1], path[had]);
            } else if (had) {
                gy_known_grow(x, from ? path[from - 1] : 0, path[from]); /* is here: touched */
                list_touch(&l, path[from]);
            }
            assert_int_equal(gy_known_count(x), l.n);
            assert_true(gy_known_is_valid(x));
        }
        gy_known_destroy(x);
    }
}

static void memory(void **state) {
    (void)state;
    gy_mem_stats before, after;
    gy_err err = {0};
    gy_known *x = NULL;
    gy_mem_get_stats(&before);
    for (int64_t n = 1; n <= 3; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_known_create(100, &err, &x), GY_E_NOMEM);
        assert_non_null(strstr(err.msg, "100 cached rows"));
        assert_null(x);
    }
    gy_mem_fail_after(0);
    x = open_known(GY_KNOWN_MAX);
    gy_mem_guard_begin();
    uint64_t h = 1;
    for (int i = 0; i < 3 * GY_KNOWN_MAX; i++) {
        h = gy_known_next(h, i);
        gy_known_put(x, &h, 1);
    }
    gy_mem_guard_end();
    assert_int_equal(gy_known_count(x), GY_KNOWN_MAX);
    gy_mem_get_stats(&after);
    assert_true(after.live_bytes[GY_MEM_PD] - before.live_bytes[GY_MEM_PD] <= 2 << 20);
    gy_known_destroy(x);
    gy_known_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whose_and_what), cmocka_unit_test(the_beginning_stays_longest),
                                       cmocka_unit_test(as_a_list_does), cmocka_unit_test(memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
