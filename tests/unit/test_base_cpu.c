/* CPU features against /proc/cpuinfo (the kernel's own reading), the mask, names, and cores under changed affinity. */
#include "base_test.h"

#include "base/cpu.h"

#include <sched.h>

/* 1 when the flags line of /proc/cpuinfo has this word. */
static int kernel_says(const char *word) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    assert_non_null(f);
    static char line[16384];
    int found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, "flags", 5) != 0) continue;
        for (char *save = NULL, *w = strtok_r(line, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save))
            found |= strcmp(w, word) == 0;
        break;
    }
    fclose(f);
    return found;
}

static void test_features_match_the_kernel(void **state) {
    (void)state;
    gy_cpu_set_mask(~0u);
    uint32_t f = gy_cpu_features();
#if defined(__x86_64__)
    assert_int_equal(!!(f & GY_CPU_AVX2), kernel_says("avx2") && kernel_says("fma") && kernel_says("f16c"));
    assert_int_equal(!!(f & GY_CPU_AVX512), kernel_says("avx512f") && kernel_says("avx512bw") &&
                                                kernel_says("avx512dq") && kernel_says("avx512vl"));
    assert_int_equal(!!(f & GY_CPU_AVX512_BF16), kernel_says("avx512_bf16"));
    assert_int_equal(!!(f & GY_CPU_AVX512_VNNI), kernel_says("avx512_vnni"));
    assert_int_equal(!!(f & GY_CPU_AMX_BF16), kernel_says("amx_bf16"));
    assert_false(f & GY_CPU_NEON);
#else
    (void)kernel_says;
    assert_false(f & (GY_CPU_AVX2 | GY_CPU_AVX512 | GY_CPU_AMX_BF16));
#endif
    assert_true(strlen(gy_cpu_model()) > 0);
}

static void test_mask_takes_away(void **state) {
    (void)state;
    gy_cpu_set_mask(~0u);
    uint32_t all = gy_cpu_features();
    gy_cpu_set_mask(GY_CPU_AVX2);
    assert_int_equal(gy_cpu_features(), all & GY_CPU_AVX2);
    gy_cpu_set_mask(0);
    assert_int_equal(gy_cpu_features(), 0);
    gy_cpu_set_mask(~0u);
    assert_int_equal(gy_cpu_features(), all);
}

static void test_names(void **state) {
    (void)state;
    uint32_t m = 99;
    char buf[128];
    assert_int_equal(gy_cpu_parse_mask("avx2,avx512", &m), 0);
    assert_int_equal(m, GY_CPU_AVX2 | GY_CPU_AVX512);
    assert_int_equal(gy_cpu_parse_mask("", &m), 0);
    assert_int_equal(m, 0);
    m = 99;
    const char *const bad[] = {"avx", "avx2,", ",avx2", "avx2,,neon", "avx2 avx512", "AVX2", "avx512_bf1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(gy_cpu_parse_mask(bad[i], &m), -1);
    assert_int_equal(m, 99);
    int n = gy_cpu_format(GY_CPU_AVX2 | GY_CPU_AVX512_BF16 | GY_CPU_NEON, buf, sizeof buf);
    assert_string_equal(buf, "avx2 avx512_bf16 neon");
    assert_int_equal(n, strlen(buf));
    assert_int_equal(gy_cpu_format(0, buf, sizeof buf), 0);
    assert_string_equal(buf, "");
    assert_true(gy_cpu_format(~0u, buf, sizeof buf) > n);
    for (char *c = buf; *c; c++)
        if (*c == ' ') *c = ',';
    assert_int_equal(gy_cpu_parse_mask(buf, &m), 0);
    assert_int_equal(m, GY_CPU_AVX2 | GY_CPU_AVX512 | GY_CPU_AVX512_BF16 | GY_CPU_AVX512_VNNI | GY_CPU_AMX_BF16 |
                            GY_CPU_NEON);
    memset(buf, 'x', sizeof buf);
    assert_int_equal(gy_cpu_format(~0u, buf, 11), 4); /* cut at a whole word */
    assert_string_equal(buf, "avx2");
    assert_int_equal(gy_cpu_format(~0u, buf, 0), 0);
}

static void test_cores_follow_affinity(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int allowed = CPU_COUNT(&before), cores = gy_cpu_count_physical(), last = -1;
    assert_in_range(cores, 1, allowed);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before)) last = i;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(gy_cpu_count_physical(), 1); /* also where only the second thread of a core is left */
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(gy_cpu_count_physical(), cores);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_match_the_kernel),
        cmocka_unit_test(test_mask_takes_away),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_cores_follow_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
