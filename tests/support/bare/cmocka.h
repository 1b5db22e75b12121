/* What tests/ops uses of cmocka, for programs that run where there is no cmocka: under an emulator
 * (tests/tools/aarch64.sh). The first failure ends the program. No mocks, no fixtures, no output but names.
 */
#ifndef GY_TESTS_BARE_CMOCKA_H
#define GY_TESTS_BARE_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*fn)(void **state);
};
#define cmocka_unit_test(f)                                                                                            \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) bare_run(tests, sizeof(tests) / sizeof((tests)[0]))

#define print_message printf
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define fail() bare_fail(__FILE__, __LINE__, "fail")
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), bare_fail(__FILE__, __LINE__, "fail"))
#define skip() return
#define assert_true(x) ((x) ? (void)0 : bare_fail(__FILE__, __LINE__, #x))
#define assert_false(x) assert_true(!(x))
#define assert_null(p) assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_int_not_equal(a, b) assert_true((long long)(a) != (long long)(b))
#define assert_in_range(x, lo, hi) assert_true((x) >= (lo) && (x) <= (hi))
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)

static inline void bare_fail(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    exit(1);
}

static inline int bare_run(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        printf("[ RUN ] %s\n", tests[i].name);
        fflush(stdout);
        tests[i].fn(&state);
    }
    printf("[  PASSED  ] %zu test(s).\n", n);
    return 0;
}

#endif
