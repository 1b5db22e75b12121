/* Counted memory: alignment, overflow, counters from several threads, the guard (in a child), failure injection. */
#include "base_test.h"

#include "base/mem.h"

#include <pthread.h>

static int64_t live(gy_mem_tag tag) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[tag];
}

static void test_alloc_is_zeroed_and_aligned(void **state) {
    (void)state;
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = gy_mem_alloc(GY_MEM_TENSOR, n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(p[i], 0);
        if (n) memset(p, 0xAA, 3 * n); /* the next block of this size must be clean again */
        gy_mem_free(p);
    }
    gy_mem_free(NULL);
}

static void test_json_blocks_are_compact(void **state) {
    (void)state;
    void *p = gy_mem_alloc(GY_MEM_JSON, 1, 24);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    p = gy_mem_realloc(GY_MEM_TENSOR, p, 1, 48); /* may change its tag */
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(live(GY_MEM_JSON), 0);
    gy_mem_free(p);
}

static void test_overflow_is_refused(void **state) {
    (void)state;
    assert_null(gy_mem_alloc(GY_MEM_BASE, SIZE_MAX / 2 + 1, 2));
    assert_null(gy_mem_alloc(GY_MEM_BASE, SIZE_MAX, 1));
    assert_null(gy_mem_alloc(GY_MEM_BASE, SIZE_MAX - 40, 1));
    assert_null(gy_mem_realloc(GY_MEM_BASE, NULL, SIZE_MAX / 4, 8));
    assert_null(gy_mem_map_pages(GY_MEM_KV, SIZE_MAX));
    assert_null(gy_mem_map_pages(GY_MEM_KV, SIZE_MAX - 8192));
    assert_int_equal(live(GY_MEM_BASE), 0);
    assert_int_equal(live(GY_MEM_KV), 0);
    size_t out = 5;
    assert_int_not_equal(gy_size_mul(SIZE_MAX, 2, &out), 0);
    assert_int_not_equal(gy_size_add(SIZE_MAX, 1, &out), 0);
    assert_int_equal(out, 5);
    assert_int_equal(gy_size_mul(SIZE_MAX, 1, &out), 0);
    assert_true(out == SIZE_MAX);
}

static void test_realloc_keeps_content(void **state) {
    (void)state;
    char *p = gy_mem_realloc(GY_MEM_TEXT, NULL, 5, 1);
    memcpy(p, "loops", 5);
    p = gy_mem_realloc(GY_MEM_TEXT, p, 100000, 1);
    assert_memory_equal(p, "loops", 5);
    p = gy_mem_realloc(GY_MEM_TEXT, p, 3, 1);
    assert_memory_equal(p, "loo", 3);
    assert_int_equal(live(GY_MEM_TEXT), 3);
    gy_mem_fail_after(1);
    assert_null(gy_mem_realloc(GY_MEM_TEXT, p, 10, 1));
    assert_memory_equal(p, "loo", 3); /* a failed realloc leaves the block */
    gy_mem_free(p);
    char *s = gy_mem_strdup(GY_MEM_TEXT, "depth");
    assert_string_equal(s, "depth");
    assert_int_equal(live(GY_MEM_TEXT), 6);
    gy_mem_free(s);
    assert_int_equal(live(GY_MEM_TEXT), 0);
}

static void test_stats_count_by_tag(void **state) {
    (void)state;
    gy_mem_stats before, during, after;
    gy_mem_get_stats(&before);
    void *a = gy_mem_alloc(GY_MEM_SCHED, 10, 100), *b = gy_mem_alloc(GY_MEM_SCHED, 1, 24);
    gy_mem_get_stats(&during);
    gy_mem_free(a);
    gy_mem_free(b);
    gy_mem_get_stats(&after);
    assert_int_equal(during.live_bytes[GY_MEM_SCHED] - before.live_bytes[GY_MEM_SCHED], 1024);
    assert_int_equal(during.n_alloc - before.n_alloc, 2);
    assert_int_equal(after.live_bytes[GY_MEM_SCHED], before.live_bytes[GY_MEM_SCHED]);
    assert_int_equal(after.peak_bytes[GY_MEM_SCHED], 1024);
    assert_string_equal(gy_mem_tag_name(GY_MEM_KV), "kv");
    assert_string_equal(gy_mem_tag_name(GY_MEM_CLI), "cli");
    assert_string_equal(gy_mem_tag_name(GY_MEM_TAG_COUNT), "unknown");
}

static void test_pages(void **state) {
    (void)state;
    const size_t sizes[] = {1, 4096, 5000, ((size_t)2 << 20) - 1, (size_t)5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = gy_mem_map_pages(GY_MEM_KV, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        assert_true(live(GY_MEM_KV) >= (int64_t)sizes[i]);
        assert_int_equal(p[0] | p[sizes[i] - 1], 0);
        p[0] = p[sizes[i] - 1] = 1;
        gy_mem_unmap_pages(GY_MEM_KV, p, sizes[i]);
        assert_int_equal(live(GY_MEM_KV), 0);
    }
    void *big = gy_mem_map_pages(GY_MEM_KV, (size_t)1 << 40); /* lazily committed: more than the machine has */
    assert_non_null(big);
    assert_int_equal((uintptr_t)big % ((uintptr_t)2 << 20), 0);
    gy_mem_unmap_pages(GY_MEM_KV, big, (size_t)1 << 40);
    gy_mem_unmap_pages(GY_MEM_KV, NULL, 4096);
}

static void test_fail_after(void **state) {
    (void)state;
    gy_mem_fail_after(2);
    void *a = gy_mem_alloc(GY_MEM_BASE, 1, 8);
    assert_non_null(a);
    assert_null(gy_mem_alloc(GY_MEM_BASE, 1, 8));
    void *c = gy_mem_alloc(GY_MEM_BASE, 1, 8); /* once only */
    assert_non_null(c);
    gy_mem_fail_after(1);
    assert_null(gy_mem_strdup(GY_MEM_BASE, "x"));
    gy_mem_fail_after(1);
    assert_null(gy_mem_map_pages(GY_MEM_BASE, 4096));
    gy_mem_fail_after(1);
    gy_mem_fail_after(0);
    void *d = gy_mem_alloc(GY_MEM_BASE, 1, 8);
    assert_non_null(d);
    gy_mem_free(a);
    gy_mem_free(c);
    gy_mem_free(d);
    assert_int_equal(live(GY_MEM_BASE), 0);
}

static void guarded_alloc(void *arg) {
    (void)arg;
    gy_mem_guard_begin();
    gy_mem_guard_begin();
    gy_mem_guard_end();
    gy_mem_free(gy_mem_alloc(GY_MEM_ENGINE, 11, 3)); /* still one level on */
}

static void guarded_realloc(void *arg) {
    gy_mem_guard_begin();
    gy_mem_free(gy_mem_realloc(GY_MEM_SAMPLE, arg, 100, 1));
}

static void guarded_strdup(void *arg) {
    (void)arg;
    gy_mem_guard_begin();
    gy_mem_free(gy_mem_strdup(GY_MEM_SERVER, "four"));
}

static void guarded_pages(void *arg) {
    (void)arg;
    gy_mem_guard_begin();
    gy_mem_map_pages(GY_MEM_PD, 12345);
}

static void unbalanced_guard(void *arg) {
    (void)arg;
    gy_mem_guard_end();
}

static void test_guard_aborts_and_names_the_tag(void **state) {
    (void)state;
    void *p = gy_mem_alloc(GY_MEM_SAMPLE, 1, 1);
    assert_aborts(guarded_alloc, NULL, "tag engine, 33 bytes");
    assert_aborts(guarded_realloc, p, "tag sample, 100 bytes");
    assert_aborts(guarded_strdup, NULL, "tag server, 5 bytes");
    assert_aborts(guarded_pages, NULL, "tag pd, 12345 bytes");
    assert_aborts(unbalanced_guard, NULL, "broken invariant");
    gy_mem_guard_begin();
    gy_mem_free(p); /* giving back is allowed */
    gy_mem_guard_end();
    p = gy_mem_alloc(GY_MEM_SAMPLE, 1, 1);
    assert_non_null(p);
    gy_mem_free(p);
}

static void *churn(void *arg) {
    uint32_t x = *(uint32_t *)arg;
    for (int i = 0; i < 3000; i++) {
        x = x * 1664525u + 1013904223u;
        void *p = gy_mem_alloc(GY_MEM_MODEL, x % 200, 1);
        p = gy_mem_realloc(GY_MEM_MODEL, p, x % 333, 1);
        gy_mem_free(p);
    }
    return NULL;
}

static void test_counters_from_threads(void **state) {
    (void)state;
    pthread_t th[4];
    uint32_t seed[4] = {1, 2, 3, 4};
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&th[i], NULL, churn, &seed[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    gy_mem_get_stats(&after);
    assert_int_equal(after.live_bytes[GY_MEM_MODEL], 0);
    assert_int_equal(after.n_alloc - before.n_alloc, 4 * 3000 * 2);
    assert_true(after.peak_bytes[GY_MEM_MODEL] > 0 && after.peak_bytes[GY_MEM_MODEL] <= 4 * (200 + 333));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_is_zeroed_and_aligned),
        cmocka_unit_test(test_json_blocks_are_compact),
        cmocka_unit_test(test_overflow_is_refused),
        cmocka_unit_test(test_realloc_keeps_content),
        cmocka_unit_test(test_stats_count_by_tag),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_fail_after),
        cmocka_unit_test(test_guard_aborts_and_names_the_tag),
        cmocka_unit_test(test_counters_from_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
