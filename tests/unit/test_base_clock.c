/* The monotonic clock never goes back and runs in nanoseconds; the wall clock is the system's. */
#include "base_test.h"

#include "base/clock.h"

#include <poll.h>
#include <time.h>

static void test_monotonic(void **state) {
    (void)state;
    int64_t last = gy_clock_ns();
    for (int i = 0; i < 100000; i++) {
        int64_t now = gy_clock_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void test_unit_is_nanoseconds(void **state) {
    (void)state;
    int64_t a = gy_clock_ns();
    poll(NULL, 0, 20);
    int64_t d = gy_clock_ns() - a;
    assert_true(d >= 19000000 && d < 20000000000);
}

static void test_wall(void **state) {
    (void)state;
    int64_t d = gy_clock_wall_ns() / 1000000000 - (int64_t)time(NULL);
    assert_true(d >= -1 && d <= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_monotonic),
        cmocka_unit_test(test_unit_is_nanoseconds),
        cmocka_unit_test(test_wall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
