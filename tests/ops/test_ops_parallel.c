/* Host work on a backend's threads: each item once, on a member that exists, results visible when parallel returns; and
 * the memory that is left. Items write plain words: that the backend orders them is what TSan checks.
 */
#include "ops_fixture.h"

enum { MAX_ITEM = 1000, MAX_THREAD = 3 };

typedef struct work {
    int n_member;
    int32_t calls[MAX_ITEM];
    int32_t member_of[MAX_ITEM];
    int64_t by_member[MAX_THREAD]; /* two members at once with one number would lose counts */
} work;

static void work_item(void *arg, int32_t item, int member) {
    work *w = arg;
    w->calls[item]++;
    w->member_of[item] = member;
    if (member >= 0 && member < w->n_member) w->by_member[member]++;
}

static void work_check(const work *w, int32_t n) {
    int64_t sum = 0;
    for (int32_t i = 0; i < MAX_ITEM; i++) assert_int_equal(w->calls[i], i < n);
    for (int32_t i = 0; i < n; i++) assert_true(w->member_of[i] >= 0 && w->member_of[i] < w->n_member);
    for (int i = 0; i < w->n_member; i++) sum += w->by_member[i];
    assert_int_equal(sum, n);
}

static void backend_check(gy_backend *be, int n_member) {
    static const int32_t ns[] = {0, 1, 2, 3, 100, MAX_ITEM};
    assert_int_equal(be->ops->n_member(be), n_member);
    gy_mem_guard_begin(); /* a step may call it */
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < COUNT(ns); i++) {
            work w = {.n_member = n_member};
            be->ops->parallel(be, ns[i], work_item, &w);
            work_check(&w, ns[i]);
        }
    }
    gy_mem_guard_end();
    gy_backend_destroy(be);
}

static void test_each_item_once(void **state) {
    (void)state;
    backend_check(ref_open(GY_F32), 1);
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int n = 1; n <= MAX_THREAD; n++) backend_check(cpu_open(&variants[iv], GY_F32, n), n);
    }
}

/* ref goes through the items in order: it is the definition that others are compared with. */
typedef struct order {
    int32_t n, item[5];
} order;

static void order_item(void *arg, int32_t item, int member) {
    order *o = arg;
    assert_int_equal(member, 0);
    o->item[o->n++] = item;
}

static void test_ref_is_serial(void **state) {
    (void)state;
    gy_backend *be = ref_open(GY_BF16);
    order o = {0};
    be->ops->parallel(be, 5, order_item, &o);
    assert_int_equal(o.n, 5);
    for (int32_t i = 0; i < 5; i++) assert_int_equal(o.item[i], i);
    gy_backend_destroy(be);
}

/* With enough items every member gets some: the work is split and not merely handed over. */
static void test_all_members_work(void **state) {
    (void)state;
    if (variant_missing(&variants[1])) return;
    gy_backend *be = cpu_open(&variants[1], GY_F32, MAX_THREAD);
    work w = {.n_member = MAX_THREAD};
    be->ops->parallel(be, 100, work_item, &w);
    for (int i = 0; i < MAX_THREAD; i++) assert_in_range(w.by_member[i], 33, 34);
    gy_backend_destroy(be);
}

/* Host backends have the process's memory: more than is allocated in the test, no more than the system's own figure. */
static void test_mem_available(void **state) {
    (void)state;
    gy_backend *be = ref_open(GY_F32);
    size_t n = be->ops->mem_available(be);
    assert_true(n == 0 || n > 1 << 20);
    gy_backend_destroy(be);
    if (variant_missing(&variants[1])) return;
    be = cpu_open(&variants[1], GY_F32, 2);
    size_t m = be->ops->mem_available(be);
    assert_true((m == 0) == (n == 0));
    assert_true(m / 4 <= n && n / 4 <= m); /* other processes come and go between the two */
    gy_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_item_once),
        cmocka_unit_test(test_ref_is_serial),
        cmocka_unit_test(test_all_members_work),
        cmocka_unit_test(test_mem_available),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
