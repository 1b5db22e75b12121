/* Weights in 8 bits: E4M3's codes, and rows of values with a scale, against slow methods in double that share no code
 * with src/tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/philox.h"
#include "tensor/quant.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t draw(uint32_t stream, uint32_t i) {
    uint32_t w[4];
    gy_rand_block(77, stream, 0, GY_RAND_TEST, i / 4, w);
    return w[i % 4];
}

/* ---- E4M3 ------------------------------------------------------------------------------------------------------- */

static double value_of(int code) {
    int exp = (code >> 3) & 15, mant = code & 7;
    double size = exp ? ldexp(8 + mant, exp - 10) : ldexp(mant, -9);
    return code & 0x80 ? -size : size;
}

/* Nearest of the 127 sizes; of two, the even code; beyond the largest, that. */
static int nearest(double x) {
    double a = fabs(x);
    int best = 0;
    for (int c = 1; c < 127; c++) {
        double d = fabs(value_of(c) - a), least = fabs(value_of(best) - a);
        if (d < least || (d == least && c % 2 == 0)) best = c;
    }
    if (a > 448) best = 126;
    return best | (signbit(x) ? 0x80 : 0);
}

static void check_narrow(float f) {
    int got = gy_f32_to_f8e4m3(f);
    if (isnan(f)) {
        assert_int_equal(got & 0x7f, 0x7f);
        assert_int_equal(got >> 7, signbit(f) != 0);
    } else if (got != nearest(f)) {
        fail_msg("e4m3 of %a: %02x, expected %02x", (double)f, (unsigned)got, (unsigned)nearest(f));
    }
}

static void all_codes(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        float f = gy_f8e4m3_to_f32((uint8_t)c);
        if ((c & 0x7f) == 0x7f) {
            assert_true(isnan(f));
            continue;
        }
        assert_true((double)f == value_of(c) && (signbit(f) != 0) == (c >= 128));
        assert_int_equal(gy_f32_to_f8e4m3(f), c);
        assert_true(gy_bf16_round(f) == f && gy_f16_to_f32(gy_f32_to_f16(f)) == f); /* what kernels rely on */
    }
    assert_true(value_of(0x7e) == 448 && value_of(0x08) == 0x1p-6 && value_of(0x01) == 0x1p-9);
}

/* Between each two neighbours: the tie, and one f32 to each side of it. */
static void all_ties(void **state) {
    (void)state;
    for (int c = 0; c < 126; c++) {
        float mid = (float)((value_of(c) + value_of(c + 1)) / 2);
        for (int s = -1; s <= 1; s += 2) {
            check_narrow((float)s * mid);
            check_narrow((float)s * nextafterf(mid, 0.0f));
            check_narrow((float)s * nextafterf(mid, INFINITY));
        }
        assert_int_equal(gy_f32_to_f8e4m3(mid), c % 2 ? c + 1 : c);
    }
}

static void limits(void **state) {
    (void)state;
    const float beyond[] = {448.0f,  nextafterf(448.0f, INFINITY), 463.9f, 464.0f, 465.0f, 480.0f, 1e30f, FLT_MAX,
                            INFINITY};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_int_equal(gy_f32_to_f8e4m3(beyond[i]), 0x7e);
        assert_int_equal(gy_f32_to_f8e4m3(-beyond[i]), 0xfe);
    }
    const float nothing[] = {0.0f, 0x1p-149f, FLT_MIN, 0x1p-11f, 0x1p-10f};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        assert_int_equal(gy_f32_to_f8e4m3(nothing[i]), 0);
        assert_int_equal(gy_f32_to_f8e4m3(-nothing[i]), 0x80);
    }
    assert_int_equal(gy_f32_to_f8e4m3(nextafterf(0x1p-10f, 1.0f)), 1);
    check_narrow(NAN);
    check_narrow(-NAN);
    check_narrow(from_bits(0x7f800001u));
}

/* All BF16 values, and floats of all kinds. */
static void many_floats(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) check_narrow(from_bits(h << 16));
    for (uint32_t i = 0; i < 100000; i++) {
        check_narrow(from_bits(draw(1, i)));
        check_narrow(ldexpf(gy_rand_unit_f32(draw(2, i)) * 2.0f - 1.0f, (int)(i % 24) - 14));
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

enum { MOST = 1400 };

static double held(uint8_t q, gy_dtype t) {
    return t == GY_I8 ? (double)(int8_t)q : value_of(q);
}

/* Each element against the definition (quant.h): scale and quotient in f32, then the nearest value. */
static void check_row(const float *w, size_t k, gy_dtype to) {
    uint8_t q[MOST + 1];
    float scale, most = 0;
    q[k] = 0xa5;
    assert_int_equal(gy_quant_row(q, &scale, to, w, GY_F32, k), 0);
    assert_int_equal(q[k], 0xa5);
    for (size_t j = 0; j < k; j++) most = fmaxf(most, fabsf(w[j]));
    float want = most / (to == GY_I8 ? 127.0f : 448.0f);
    assert_true(scale == fmaxf(want, 0x1p-126f));
    for (size_t j = 0; j < k; j++) {
        double x = (double)(w[j] / scale), v = held(q[j], to);
        if (to == GY_F8_E4M3) assert_int_equal(q[j], nearest(x));
        if (to == GY_I8) assert_true(v == fmax(-127, fmin(127, nearbyint(x))));
        /* What the definition means: half a step of what the row's largest allows. */
        double step = to == GY_I8 ? 0.5 : fmax(fabs(x) * 0x1p-4, 0x1p-10);
        assert_true(fabs(v - x) <= step * (1 + 1e-6));
    }
}

static void fill_row(float *w, size_t k, uint32_t i) {
    int size = (int)(draw(3, i) % 250) - 146;
    for (uint32_t j = 0; j < k; j++) {
        uint32_t r = draw(100 + i, j);
        w[j] = ldexpf(gy_rand_unit_f32(r) * 2.0f - 1.0f, size - (int)(i % 3 ? r % 12 : 0));
    }
}

static void rows(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 511, 512, 513, 1024, MOST};
    float w[MOST];
    for (uint32_t i = 0; i < 400; i++) {
        size_t k = sizes[i % 8];
        fill_row(w, k, i);
        check_row(w, k, GY_F8_E4M3);
        check_row(w, k, GY_I8);
    }
}

/* Both types use their largest value, of either sign, and nothing beyond it: never -128, never NaN. */
static void ends(void **state) {
    (void)state;
    uint8_t q[3];
    float scale;
    for (uint32_t i = 0; i < 20000; i++) {
        float big = from_bits(0x00800000u + draw(9, i) % 0x7f000000u);
        const float w[3] = {big, -big, big / 3};
        assert_int_equal(gy_quant_row(q, &scale, GY_F8_E4M3, w, GY_F32, 3), 0);
        if (scale > 0x1p-126f) assert_true(q[0] == 0x7e && q[1] == 0xfe);
        assert_int_equal(gy_quant_row(q, &scale, GY_I8, w, GY_F32, 3), 0);
        if (scale > 0x1p-126f) assert_true((int8_t)q[0] == 127 && (int8_t)q[1] == -127);
    }
}

/* Nothing, and less than a normal scale can say. */
static void small_rows(void **state) {
    (void)state;
    float zero[5] = {0.0f, -0.0f, 0.0f, -0.0f, 0.0f}, tiny[4] = {0x1p-149f, -0x1p-140f, 0x1p-130f, -0x1.8p-127f};
    uint8_t q[5];
    float scale;
    for (int t = 0; t < 2; t++) {
        gy_dtype to = t ? GY_I8 : GY_F8_E4M3;
        check_row(zero, 5, to);
        check_row(tiny, 4, to);
        assert_int_equal(gy_quant_row(q, &scale, to, zero, GY_F32, 5), 0);
        assert_true(scale == 0x1p-126f);
        for (int j = 0; j < 5; j++) assert_true(held(q[j], to) == 0);
    }
}

/* A row is what it is in each type that holds it exactly, and whatever stands beside it. */
static void sources(void **state) {
    (void)state;
    float w[MOST];
    uint16_t bf16[MOST], f16[MOST];
    uint8_t a[MOST], b[MOST];
    float sa, sb;
    for (uint32_t j = 0; j < MOST; j++) {
        w[j] = gy_f16_to_f32(gy_f32_to_f16(gy_bf16_round(gy_rand_unit_f32(draw(5, j)) * 8.0f - 4.0f)));
        bf16[j] = gy_f32_to_bf16(w[j]);
        f16[j] = gy_f32_to_f16(w[j]);
    }
    for (int t = 0; t < 2; t++) {
        gy_dtype to = t ? GY_I8 : GY_F8_E4M3;
        assert_int_equal(gy_quant_row(a, &sa, to, w, GY_F32, MOST), 0);
        assert_int_equal(gy_quant_row(b, &sb, to, bf16, GY_BF16, MOST), 0);
        assert_true(sa == sb && !memcmp(a, b, MOST));
        assert_int_equal(gy_quant_row(b, &sb, to, f16, GY_F16, MOST), 0);
        assert_true(sa == sb && !memcmp(a, b, MOST));
    }
}

static void not_finite(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float w[600];
    uint8_t q[600];
    for (size_t i = 0; i < 4; i++)
        for (size_t at = 0; at < 600; at += 599) {
            float scale = 7;
            for (size_t j = 0; j < 600; j++) w[j] = 1.0f;
            w[at] = bad[i];
            memset(q, 0xa5, sizeof q);
            assert_int_equal(gy_quant_row(q, &scale, i % 2 ? GY_I8 : GY_F8_E4M3, w, GY_F32, 600), -1);
            assert_true(scale == 7 && q[0] == 0xa5 && q[599] == 0xa5);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codes),   cmocka_unit_test(all_ties), cmocka_unit_test(limits),
        cmocka_unit_test(many_floats), cmocka_unit_test(rows),     cmocka_unit_test(ends),
        cmocka_unit_test(small_rows),  cmocka_unit_test(sources),  cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
