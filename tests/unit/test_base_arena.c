/* Arena (reuse after reset, big pieces, failure injection) and carve (two runs agree, red zones in debug builds). */
#include "base_test.h"

#include "base/arena.h"
#include "base/status.h"

static int64_t live(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_SCHED];
}

static int64_t n_alloc(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.n_alloc;
}

/* 300 pieces of mixed sizes, each filled and none overlapping another. Returns 0 when an allocation failed. */
static int use_arena(gy_arena *a) {
    unsigned char *piece[300];
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)(i * 37 % 211);
        piece[i] = gy_arena_alloc(a, n, 3);
        if (!piece[i]) return 0;
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        for (size_t k = 0; k < 3 * n; k++) assert_int_equal(piece[i][k], 0);
        memset(piece[i], i & 0xFF, 3 * n);
    }
    for (int i = 0; i < 300; i++)
        for (size_t k = 0; k < 3 * (size_t)(i * 37 % 211); k++) assert_int_equal(piece[i][k], i & 0xFF);
    return 1;
}

static void test_reset_reuses_chunks(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_SCHED, 1000);
    assert_non_null(a);
    assert_true(use_arena(a));
    int64_t before = n_alloc();
    for (int i = 0; i < 5; i++) {
        gy_arena_reset(a);
        assert_true(use_arena(a));
    }
    assert_int_equal(n_alloc(), before);
    gy_arena_destroy(a);
    gy_arena_destroy(NULL);
    assert_int_equal(live(), 0);
}

static void test_big_pieces_and_strings(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_SCHED, 0);
    char *big = gy_arena_alloc(a, 1 << 20, 1);
    assert_non_null(big);
    memset(big, 7, 1 << 20);
    char *s = gy_arena_strndup(a, "loop\0depth", 10);
    assert_memory_equal(s, "loop\0depth", 11);
    assert_string_equal(gy_arena_strndup(a, NULL, 0), "");
    assert_null(gy_arena_alloc(a, SIZE_MAX / 2, 3));
    assert_null(gy_arena_alloc(a, SIZE_MAX, 1));
    assert_null(gy_arena_alloc(a, SIZE_MAX - 32, 1));
    assert_null(gy_arena_strndup(a, "", SIZE_MAX));
    assert_non_null(gy_arena_alloc(a, 1, 1)); /* a refused piece harms nothing */
    gy_arena_destroy(a);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    int ok = 0;
    int64_t n = 0;
    while (!ok) {
        gy_mem_fail_after(++n);
        gy_arena *a = gy_arena_create(GY_MEM_SCHED, 2000);
        ok = a && use_arena(a);
        gy_mem_fail_after(0);
        gy_arena_destroy(a);
        assert_int_equal(live(), 0);
    }
    assert_true(n > 10);
}

typedef struct layout {
    float *a;
    char *b;
    double *c;
} layout;

static void lay_out(gy_carve *c, layout *l) {
    l->a = gy_carve_take(c, 5, sizeof(float));
    l->b = gy_carve_take(c, 0, 1);
    l->c = gy_carve_take(c, 100, sizeof(double));
}

static void test_carve_measures_and_cuts(void **state) {
    (void)state;
    layout l;
    gy_carve m = {0};
    lay_out(&m, &l);
    assert_null(l.a);
    assert_false(m.overflow);
    char *mem = gy_mem_alloc(GY_MEM_SCHED, m.used, 1);
    gy_carve c = {.base = mem, .cap = m.used};
    lay_out(&c, &l);
    assert_int_equal(c.used, m.used);
    assert_ptr_equal(l.a, mem);
    assert_non_null(l.b);
    assert_int_equal((uintptr_t)l.c % 64, 0);
    memset(l.a, 1, 5 * sizeof(float));
    memset(l.c, 2, 100 * sizeof(double));
    assert_true((char *)l.c >= (char *)l.a + 64);
    assert_true((char *)(l.c + 100) <= mem + m.used);
    assert_int_equal(gy_carve_check(&c), 1);
    gy_mem_free(mem);
}

static void test_carve_finds_overruns(void **state) {
    (void)state;
    layout l;
    gy_carve m = {0};
    lay_out(&m, &l);
    char *mem = gy_mem_alloc(GY_MEM_SCHED, m.used, 1);
    gy_carve c = {.base = mem, .cap = m.used};
    lay_out(&c, &l);
#ifdef GY_DEBUG
    char *after_a = (char *)l.a + 64, *after_c = (char *)l.c + 832; /* 800 rounded up to 64 */
    for (int i = 0; i < 64; i++) {
        after_a[i] ^= 1;
        after_c[i] ^= 4;
        assert_int_equal(gy_carve_check(&c), 0);
        after_a[i] ^= 1;
        assert_int_equal(gy_carve_check(&c), 0);
        after_c[i] ^= 4;
    }
#endif
    assert_int_equal(gy_carve_check(&c), 1);
    gy_mem_free(mem);
}

static void test_carve_overflow(void **state) {
    (void)state;
    const size_t bad[][2] = {{SIZE_MAX, 2}, {SIZE_MAX - 10, 1}, {SIZE_MAX / 2 + 1, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_carve m = {0};
        gy_carve_take(&m, 10, 10);
        gy_carve_take(&m, bad[i][0], bad[i][1]);
        gy_carve_take(&m, 10, 10);
        assert_true(m.overflow);
        assert_true(m.used == SIZE_MAX);
    }
    gy_carve m = {0};
    gy_carve_take(&m, SIZE_MAX / 2, 1);
    gy_carve_take(&m, SIZE_MAX / 2, 1);
    gy_carve_take(&m, SIZE_MAX / 2, 1);
    assert_true(m.overflow);
}

static void carve_too_much(void *arg) {
    gy_carve c = {.base = arg, .cap = 64};
    gy_carve_take(&c, 200, 1);
}

static void test_carving_past_the_end_aborts(void **state) {
    (void)state;
    _Alignas(64) char mem[64];
    assert_aborts(carve_too_much, mem, "end <= c->cap");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reset_reuses_chunks),         cmocka_unit_test(test_big_pieces_and_strings),
        cmocka_unit_test(test_every_allocation_may_fail),   cmocka_unit_test(test_carve_measures_and_cuts),
        cmocka_unit_test(test_carve_finds_overruns),        cmocka_unit_test(test_carve_overflow),
        cmocka_unit_test(test_carving_past_the_end_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
