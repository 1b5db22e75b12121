/* Philox against Random123's known answers; the normal quantile against CPython (data/base/make_vectors.py). */
#include "base_test.h"

#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t out[4];
        gy_philox4x32_10(kat[i].ctr, kat[i].key, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
        memcpy(out, kat[i].ctr, sizeof out); /* in place */
        gy_philox4x32_10(out, kat[i].key, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

/* The counter is {position, choice, purpose, block}, the key the seed's low and high word: computed in Python. */
static void test_identity_layout(void **state) {
    (void)state;
    uint32_t out[4];
    gy_rand_block(0x123456789abcdef0u, 2, 7, GY_RAND_SAMPLE, 5, out);
    const uint32_t want[4] = {0x2975b39d, 0x54c31b6c, 0xbbf8b89a, 0x00326c3c};
    assert_memory_equal(out, want, sizeof out);
}

static void test_each_part_of_the_identity_counts(void **state) {
    (void)state;
    uint32_t base[4], other[4];
    gy_rand_block(1, 1, 1, GY_RAND_SAMPLE, 1, base);
    for (int part = 0; part < 6; part++) {
        gy_rand_block(part == 0   ? 2
                      : part == 1 ? 1 | 1ull << 32
                                  : 1,
                      part == 2 ? 2 : 1, part == 3 ? 2 : 1, part == 4 ? GY_RAND_LATENT : GY_RAND_SAMPLE,
                      part == 5 ? 2 : 1, other);
        assert_memory_not_equal(base, other, sizeof base);
    }
}

static void test_unit_intervals(void **state) {
    (void)state;
    assert_true(gy_rand_unit_f32(0) == 0.0f);
    assert_true(gy_rand_unit_f32(0x80000000u) == 0.5f);
    assert_true(gy_rand_unit_f32(~0u) == 1.0f - 0x1p-24f);
    assert_true(gy_rand_unit_f64(0, 0) == 0.0);
    assert_true(gy_rand_unit_f64(0x40000000u, 0) == 0.25);
    assert_true(gy_rand_unit_f64(~0u, ~0u) == 1.0 - 0x1p-53);
}

/* Both follow AS 241, so they may differ by the rounding of a few operations only. */
static void test_quantile_like_python(void **state) {
    (void)state;
    FILE *f = fopen(GY_SOURCE_DIR "/tests/unit/data/base/quantile.txt", "r");
    assert_non_null(f);
    char line[128];
    int n = 0;
    for (; fgets(line, sizeof line, f); n++) {
        char *end;
        double p = strtod(line, &end), want = strtod(end, NULL), got = gy_normal_quantile(p);
        if (!(fabs(got - want) <= 4e-16 * fabs(want))) fail_msg("p %a: %.17g, Python says %.17g", p, got, want);
    }
    fclose(f);
    assert_int_equal(n, 517);
}

/* Independent of AS 241: the distribution function by erfc must lead back. |d log Phi / dx| ~ |x| in the tail. */
static void test_quantile_inverts_erfc(void **state) {
    (void)state;
    for (int k = 1; k <= 1000; k++) {
        double p = ldexp(0.75, -k), x = gy_normal_quantile(p), back = 0.5 * erfc(-x * sqrt(0.5));
        if (!(fabs(back / p - 1) <= 1e-15 * (8 + 2 * x * x))) fail_msg("p %a: x %.17g leads back to %a", p, x, back);
    }
    for (int i = 1; i < 1000; i++) {
        double p = i / 1000.0, back = 0.5 * erfc(-gy_normal_quantile(p) * sqrt(0.5));
        assert_true(fabs(back - p) <= 1e-15);
    }
}

static void test_quantile_ends(void **state) {
    (void)state;
    assert_true(gy_normal_quantile(0.5) == 0.0);
    assert_true(gy_normal_quantile(0.25) == -gy_normal_quantile(0.75));
    assert_true(isinf(gy_normal_quantile(0.0)) && gy_normal_quantile(0.0) < 0);
    assert_true(isinf(gy_normal_quantile(1.0)) && gy_normal_quantile(1.0) > 0);
    assert_true(isnan(gy_normal_quantile(-0.1)));
    assert_true(isnan(gy_normal_quantile(1.1)));
    assert_true(isnan(gy_normal_quantile(NAN)));
    assert_true(isfinite(gy_normal_quantile(0x1p-1074)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_identity_layout),
        cmocka_unit_test(test_each_part_of_the_identity_counts),
        cmocka_unit_test(test_unit_intervals),
        cmocka_unit_test(test_quantile_like_python),
        cmocka_unit_test(test_quantile_inverts_erfc),
        cmocka_unit_test(test_quantile_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
