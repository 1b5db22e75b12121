/* Typed arrays: growth, overflow, nothing lost when an allocation fails. */
#include "base_test.h"

#include "base/vec.h"

static int64_t live(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_TEXT];
}

static void test_push_keeps_all(void **state) {
    (void)state;
    gy_vec_i32 v = {0};
    for (int i = 0; i < 10000; i++) assert_int_equal(gy_vec_push(&v, GY_MEM_TEXT, i * 3), 0);
    assert_int_equal(v.len, 10000);
    for (int i = 0; i < 10000; i++) assert_int_equal(v.data[i], i * 3);
    gy_vec_free(&v);
    assert_null(v.data);
    assert_int_equal(v.len + v.cap, 0);
    assert_int_equal(live(), 0);
}

static void test_growth_is_logarithmic(void **state) {
    (void)state;
    gy_mem_stats a, b;
    gy_mem_get_stats(&a);
    gy_vec_i32 v = {0};
    for (int i = 0; i < 100000; i++) assert_int_equal(gy_vec_push(&v, GY_MEM_TEXT, i), 0);
    gy_mem_get_stats(&b);
    assert_true(b.n_alloc - a.n_alloc <= 17);
    gy_vec_free(&v);
}

static void test_reserve(void **state) {
    (void)state;
    GY_VEC(double) v = {0};
    assert_int_equal(gy_vec_reserve(&v, GY_MEM_TEXT, 1000), 0);
    assert_true(v.cap >= 1000);
    double *p = v.data;
    for (int i = 0; i < 1000; i++) assert_int_equal(gy_vec_push(&v, GY_MEM_TEXT, i), 0);
    assert_ptr_equal(v.data, p);
    assert_int_equal(gy_vec_reserve(&v, GY_MEM_TEXT, SIZE_MAX), -1);
    assert_int_equal(gy_vec_reserve(&v, GY_MEM_TEXT, SIZE_MAX / 4), -1);
    assert_int_equal(v.len, 1000);
    assert_true(v.data[999] == 999.0);
    gy_vec_free(&v);
}

/* Pushes 100 numbers; on a failure what is there must be whole. */
static int push_hundred(gy_vec_i32 *v) {
    for (int i = 0; i < 100; i++)
        if (gy_vec_push(v, GY_MEM_TEXT, i)) return 0;
    return 1;
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    int ok = 0, n = 0;
    while (!ok) {
        gy_vec_i32 v = {0};
        gy_mem_fail_after(++n);
        ok = push_hundred(&v);
        gy_mem_fail_after(0);
        for (size_t i = 0; i < v.len; i++) assert_int_equal(v.data[i], i);
        gy_vec_free(&v);
        assert_int_equal(live(), 0);
    }
    assert_int_equal(n, 6); /* 8, 16, 32, 64, 128, then success */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_push_keeps_all),
        cmocka_unit_test(test_growth_is_logarithmic),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
