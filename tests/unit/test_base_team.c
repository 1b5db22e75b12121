/* The fork-join team: every member once per round, results visible to the caller, sleep and wake, shares. */
#include "base_test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/team.h"

#include <poll.h>
#include <sched.h>
#include <stdatomic.h>

enum { MAX_MEMBER = 9 };

typedef struct round_log {
    int64_t n;
    int n_member;
    int64_t calls[MAX_MEMBER]; /* plain words: the team itself must order them, which TSan checks */
    int64_t sum[MAX_MEMBER];
    int slow_member; /* this one takes its time; -1 = none */
    _Atomic int wrong;
} round_log;

static void add_share(void *arg, int member, int n_member) {
    round_log *r = arg;
    int64_t lo, hi;
    if (n_member != r->n_member) atomic_store(&r->wrong, 1);
    if (member == r->slow_member) poll(NULL, 0, 2);
    gy_team_share(r->n, 4, member, n_member, &lo, &hi);
    for (; lo < hi; lo++) r->sum[member] += lo;
    r->calls[member]++;
}

static void check_rounds(const round_log *r, int64_t rounds) {
    int64_t sum = 0;
    for (int i = 0; i < r->n_member; i++) {
        assert_int_equal(r->calls[i], rounds);
        sum += r->sum[i];
    }
    assert_int_equal(sum, rounds * (r->n * (r->n - 1) / 2));
    assert_int_equal(r->wrong, 0);
}

static void test_every_member_once_per_round(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_MEMBER; n++) {
        gy_team *t = NULL;
        assert_int_equal(gy_team_create(n, n % 2 ? GY_PIN_ON : GY_PIN_OFF, &t), GY_OK);
        assert_int_equal(gy_team_size(t), n);
        round_log r = {.n = 101, .n_member = n, .slow_member = -1};
        for (int i = 1; i <= 1500; i++) {
            gy_team_run(t, add_share, &r);
            if (i % 300 == 0) check_rounds(&r, i);
        }
        gy_team_destroy(t);
    }
}

/* Pauses longer than members spin, and members slower than the caller spins: both sides go through the futex. */
static void test_sleep_and_wake(void **state) {
    (void)state;
    for (int n = 2; n <= 4; n++) {
        gy_team *t = NULL;
        assert_int_equal(gy_team_create(n, GY_PIN_OFF, &t), GY_OK);
        round_log r = {.n = 50, .n_member = n};
        for (int i = 1; i <= 60; i++) {
            r.slow_member = i % (n + 1) - 1;
            poll(NULL, 0, i % 3);
            gy_team_run(t, add_share, &r);
            check_rounds(&r, i);
        }
        gy_team_destroy(t);
    }
}

static void test_create_and_destroy(void **state) {
    (void)state;
    gy_team *t = NULL;
    for (int i = 0; i < 50; i++) { /* destroyed before, while and after members wait for the first time */
        assert_int_equal(gy_team_create(4, GY_PIN_OFF, &t), GY_OK);
        if (i % 3 == 1) sched_yield();
        if (i % 3 == 2) poll(NULL, 0, 1);
        gy_team_destroy(t);
    }
    t = NULL;
    assert_int_equal(gy_team_create(-1, GY_PIN_OFF, &t), GY_E_ARG);
    assert_int_equal(gy_team_create(100000, GY_PIN_OFF, &t), GY_E_ARG);
    for (int n = 1; n <= 2; n++) {
        gy_mem_stats s;
        gy_mem_fail_after(n);
        assert_int_equal(gy_team_create(3, GY_PIN_OFF, &t), GY_E_NOMEM);
        gy_mem_fail_after(0);
        gy_mem_get_stats(&s);
        assert_int_equal(s.live_bytes[GY_MEM_BASE], 0);
    }
    assert_null(t);
    gy_team_destroy(NULL);
}

static void read_affinity(void *arg, int member, int n_member) {
    (void)n_member;
    cpu_set_t *set = arg;
    sched_getaffinity(0, sizeof set[member], &set[member]);
}

static void test_default_size_and_pinning(void **state) {
    (void)state;
    gy_team *t = NULL;
    assert_int_equal(gy_team_create(0, GY_PIN_ON, &t), GY_OK);
    int n = gy_team_size(t);
    assert_int_equal(n, gy_cpu_count_physical());
    cpu_set_t *set = gy_mem_alloc(GY_MEM_BASE, (size_t)n, sizeof *set);
    cpu_set_t before, after, together;
    sched_getaffinity(0, sizeof before, &before);
    gy_team_run(t, read_affinity, set);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after)); /* the caller stays free */
    CPU_ZERO(&together);
    for (int i = 1; i < n; i++) {
        assert_int_equal(CPU_COUNT(&set[i]), 1);
        CPU_OR(&together, &together, &set[i]);
    }
    assert_int_equal(CPU_COUNT(&together), n - 1); /* no two on one core */
    gy_mem_free(set);
    gy_team_destroy(t);
}

static void test_no_allocation_per_round(void **state) {
    (void)state;
    gy_team *t = NULL;
    assert_int_equal(gy_team_create(3, GY_PIN_OFF, &t), GY_OK);
    round_log r = {.n = 10, .n_member = 3, .slow_member = -1};
    gy_mem_guard_begin();
    for (int i = 0; i < 10; i++) gy_team_run(t, add_share, &r);
    gy_mem_guard_end();
    check_rounds(&r, 10);
    gy_team_destroy(t);
}

static void test_shares_cover_without_overlap(void **state) {
    (void)state;
    const int64_t sizes[] = {0, 1, 2, 3, 15, 16, 17, 64, 100, 1000, 49152, INT64_MAX};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int64_t grain = 1; grain <= 64; grain = grain * 2 + 1)
            for (int n = 1; n <= 17; n++) {
                int64_t end = 0, least = INT64_MAX, most = 0;
                for (int m = 0; m < n; m++) {
                    int64_t lo, hi;
                    gy_team_share(sizes[s], grain, m, n, &lo, &hi);
                    assert_true(lo == end && hi >= lo);
                    assert_true(hi % grain == 0 || hi == sizes[s]);
                    int64_t units = (hi - lo) / grain + ((hi - lo) % grain != 0);
                    if (units < least) least = units;
                    if (units > most) most = units;
                    end = hi;
                }
                assert_true(end == sizes[s]);
                assert_true(most - least <= 1);
            }
}

static void nested(void *arg, int member, int n_member) {
    (void)n_member;
    round_log r = {.n = 1, .n_member = 2, .slow_member = -1};
    if (member == 0) gy_team_run(arg, add_share, &r);
}

static void run_nested(void *arg) {
    gy_team *t = NULL;
    (void)arg;
    if (gy_team_create(1, GY_PIN_OFF, &t) == GY_OK) gy_team_run(t, nested, t);
}

static void test_nesting_aborts(void **state) {
    (void)state;
    assert_aborts(run_nested, NULL, "!t->running");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_once_per_round),
        cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_create_and_destroy),
        cmocka_unit_test(test_default_size_and_pinning),
        cmocka_unit_test(test_no_allocation_per_round),
        cmocka_unit_test(test_shares_cover_without_overlap),
        cmocka_unit_test(test_nesting_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
