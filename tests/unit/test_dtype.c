/* Element types: names, sizes and conversions against a slow method in double that shares no code with dtype.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/philox.h"
#include "tensor/dtype.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>

/* ---- the slow method ------------------------------------------------------------------------------------------- */

typedef struct format {
    int exp_bits, mant_bits;
} format;

static const format half = {5, 10}, brain = {8, 7};

static double decode(format f, uint16_t code) {
    const int bias = (1 << (f.exp_bits - 1)) - 1, exp = (code >> f.mant_bits) & ((1 << f.exp_bits) - 1);
    const double mant = code & ((1 << f.mant_bits) - 1), sign = code & 0x8000 ? -1.0 : 1.0;
    if (exp == (1 << f.exp_bits) - 1) return mant != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exp == 0) return sign * ldexp(mant, 1 - bias - f.mant_bits);
    return sign * ldexp(mant + ldexp(1.0, f.mant_bits), exp - bias - f.mant_bits);
}

/* Nearest even by nearbyint in units of the last place. Doubles hold every intermediate exactly. */
static uint16_t encode(format f, double x) {
    const int bias = (1 << (f.exp_bits - 1)) - 1, max_exp = (1 << f.exp_bits) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, inf = (uint16_t)(max_exp << f.mant_bits);
    const double a = fabs(x);
    if (isinf(a)) return sign | inf;
    if (a == 0) return sign;
    int e;
    frexp(a, &e);
    e -= 1; /* a = 1.xxx * 2^e */
    if (e < 1 - bias) e = 1 - bias;
    double units = nearbyint(ldexp(a, f.mant_bits - e));
    if (units == ldexp(1.0, f.mant_bits + 1)) units /= 2, e++;
    if (e > bias) return sign | inf;
    if (units < ldexp(1.0, f.mant_bits)) return sign | (uint16_t)units;
    return (uint16_t)(sign | ((e + bias) << f.mant_bits) | ((int)units & ((1 << f.mant_bits) - 1)));
}

static float bits_to_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static int is_nan16(format f, uint16_t h) {
    const uint16_t inf = (uint16_t)(((1 << f.exp_bits) - 1) << f.mant_bits);
    return (h & 0x7fff) > inf;
}

static void check_narrow(uint32_t u) {
    const float x = bits_to_f32(u);
    const uint16_t b = gy_f32_to_bf16(x), h = gy_f32_to_f16(x);
    if (isnan(x)) {
        /* NaN stays NaN with its sign, and becomes quiet. */
        assert_true(is_nan16(brain, b) && (b & 0x0040) && (b >> 15) == (u >> 31));
        assert_true(is_nan16(half, h) && (h & 0x0200) && (h >> 15) == (u >> 31));
        return;
    }
    if (b != encode(brain, (double)x)) fail_msg("bf16 of %08x: %04x, expected %04x", u, b, encode(brain, (double)x));
    if (h != encode(half, (double)x)) fail_msg("f16 of %08x: %04x, expected %04x", u, h, encode(half, (double)x));
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void test_table(void **state) {
    (void)state;
    static const struct {
        const char *name;
        gy_dtype t;
        size_t bytes;
    } want[] = {{"F32", GY_F32, 4},   {"F16", GY_F16, 2},         {"BF16", GY_BF16, 2},      {"F64", GY_F64, 8},
                {"I64", GY_I64, 8},   {"I32", GY_I32, 4},         {"I16", GY_I16, 2},        {"I8", GY_I8, 1},
                {"U64", GY_U64, 8},   {"U32", GY_U32, 4},         {"U16", GY_U16, 2},        {"U8", GY_U8, 1},
                {"BOOL", GY_BOOL, 1}, {"F8_E4M3", GY_F8_E4M3, 1}, {"F8_E5M2", GY_F8_E5M2, 1}};
    assert_int_equal(sizeof want / sizeof *want, GY_Q8); /* the rest occurs in no file */
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        gy_dtype t = GY_DTYPE_COUNT;
        assert_int_equal(gy_dtype_parse(want[i].name, strlen(want[i].name), &t), 0);
        assert_int_equal(t, want[i].t);
        assert_int_equal(gy_dtype_bytes(t), want[i].bytes);
        assert_string_equal(gy_dtype_name(t), want[i].name);
    }
}

static void test_parse_refuses(void **state) {
    (void)state;
    static const char *const bad[] = {"", "f32", "F3", "F321", "BF16 ", "F4", "F8_E8M0", "C64", "F8", "Q8", "Q4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_dtype t = GY_U8;
        assert_int_equal(gy_dtype_parse(bad[i], strlen(bad[i]), &t), -1);
        assert_int_equal(t, GY_U8);
    }
    gy_dtype t;
    assert_int_equal(gy_dtype_parse("F32x", 3, &t), 0); /* the length rules, not a NUL */
}

static void test_widen_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t code = (uint16_t)i;
        const float h = gy_f16_to_f32(code), b = gy_bf16_to_f32(code);
        const double want_h = decode(half, code), want_b = decode(brain, code);
        assert_int_equal(isnan(h), isnan(want_h));
        assert_int_equal(isnan(b), isnan(want_b));
        assert_int_equal(signbit(h) != 0, code >> 15);
        if (!isnan(h)) assert_true((double)h == want_h);
        if (!isnan(b)) assert_true((double)b == want_b);
        /* There and back is the identity, except that a signalling NaN becomes quiet. */
        assert_int_equal(gy_f32_to_f16(h), isnan(h) ? (code | 0x0200) : code);
        assert_int_equal(gy_f32_to_bf16(b), isnan(b) ? (code | 0x0040) : code);
    }
}

/* Values written down by hand from IEEE 754: the slow method is itself checked. */
static void test_known(void **state) {
    (void)state;
    static const struct {
        float x;
        uint16_t f16, bf16;
    } t[] = {
        {1.0f, 0x3c00, 0x3f80},
        {-2.0f, 0xc000, 0xc000},
        {0.0f, 0x0000, 0x0000},
        {-0.0f, 0x8000, 0x8000},
        {65504.0f, 0x7bff, 0x4780},
        {65519.0f, 0x7bff, 0x4780},
        {65520.0f, 0x7c00, 0x4780},
        {0x1p-24f, 0x0001, 0x3380},
        {0x1p-25f, 0x0000, 0x3300},
        {0x1.8p-25f, 0x0001, 0x3340},
        {0x1p-14f, 0x0400, 0x3880},
        {0.1f, 0x2e66, 0x3dcd},
        {1.00390625f, 0x3c04, 0x3f80},
        {1.01171875f, 0x3c0c, 0x3f82},
        {3.4e38f, 0x7c00, 0x7f80},
        {0x1p-149f, 0, 0},
        {0x1.fffffep127f, 0x7c00, 0x7f80},
        {3.0e-39f, 0x0000, 0x0021},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(gy_f32_to_f16(t[i].x), t[i].f16);
        assert_int_equal(gy_f32_to_bf16(t[i].x), t[i].bf16);
        assert_int_equal(encode(half, (double)t[i].x), t[i].f16);
        assert_int_equal(encode(brain, (double)t[i].x), t[i].bf16);
    }
    assert_true(gy_bf16_round(1.01171875f) == 1.015625f);
}

/* Every exponent with the mantissas that decide a rounding: exact, ties to both sides, one beside the tie, carries. */
static void test_narrow_edges(void **state) {
    (void)state;
    static const int low_bits[] = {10, 11, 12, 13, 14, 15, 16, 17};
    for (uint32_t se = 0; se < 512; se++) {
        for (size_t k = 0; k < sizeof low_bits / sizeof *low_bits; k++) {
            const uint32_t half_unit = 1u << low_bits[k];
            for (uint32_t top = 0; top < 8; top++) {
                const uint32_t base = se << 23 | ((top * 0x3fffffu) & 0x7fffffu & ~(half_unit - 1u));
                for (int d = -2; d <= 2; d++) check_narrow(base + (uint32_t)d);
            }
        }
        for (uint32_t p = 0; p < 23; p++) check_narrow(se << 23 | 1u << p), check_narrow(se << 23 | (0x7fffffu >> p));
    }
}

/* Each midpoint between neighbouring half and bfloat values, and the floats beside it. */
static void test_narrow_midpoints(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint32_t u = i << 16 | 0x8000u;
        for (int d = -1; d <= 1; d++) check_narrow(u + (uint32_t)d);
        const double a = decode(half, (uint16_t)i), b = decode(half, (uint16_t)(i + 1));
        if (!isfinite(a) || !isfinite(b) || i == 0x7fff) continue;
        const uint32_t m = f32_to_bits((float)((a + b) / 2));
        for (int d = -1; d <= 1; d++) check_narrow(m + (uint32_t)d);
    }
}

static void test_narrow_random(void **state) {
    (void)state;
    uint32_t r[4];
    for (uint32_t i = 0; i < 1000000; i++) {
        gy_rand_block(7, 0, i, GY_RAND_TEST, 0, r);
        for (int k = 0; k < 3; k++) check_narrow(r[k]);
        /* Uniform bits seldom fall where a half is finite: force an exponent from 2^-27 to 2^17. */
        check_narrow((r[3] & 0x807fffffu) | (100u + r[0] % 45u) << 23);
    }
}

/* The results must not depend on the rounding mode of the thread. */
static void test_rounding_mode(void **state) {
    (void)state;
    fesetround(FE_UPWARD);
    const uint16_t b = gy_f32_to_bf16(1.00390625f), h = gy_f32_to_f16(0x1.002p0f);
    const float w = gy_f16_to_f32(0x0003);
    fesetround(FE_TONEAREST);
    assert_int_equal(b, 0x3f80);
    assert_int_equal(h, 0x3c00);
    assert_true(w == 3 * 0x1p-24f);
}

static void test_convert_pairs(void **state) {
    (void)state;
    enum { N = 65536 };
    uint16_t *code = malloc(N * sizeof *code), *out16 = malloc((N + 1) * sizeof *out16);
    float *wide = malloc((N + 1) * sizeof *wide);
    assert_true(code && out16 && wide);
    for (uint32_t i = 0; i < N; i++) code[i] = (uint16_t)i;
    for (int from = GY_F16; from <= GY_BF16; from++) {
        const int other = GY_F16 + GY_BF16 - from;
        wide[N] = 1234.5f;
        out16[N] = 0xabcd;
        gy_convert(wide, GY_F32, code, (gy_dtype)from, N);
        for (uint32_t i = 0; i < N; i++) {
            const float w = from == GY_F16 ? gy_f16_to_f32(code[i]) : gy_bf16_to_f32(code[i]);
            assert_memory_equal(&wide[i], &w, sizeof w);
        }
        gy_convert(out16, (gy_dtype)from, wide, GY_F32, N);
        for (uint32_t i = 0; i < N; i++) {
            if (!isnan(wide[i])) assert_int_equal(out16[i], code[i]);
        }
        gy_convert(out16, (gy_dtype)other, code, (gy_dtype)from, N);
        for (uint32_t i = 0; i < N; i++) {
            const format f = other == GY_F16 ? half : brain;
            if (isnan(wide[i]))
                assert_true(is_nan16(f, out16[i]));
            else
                assert_int_equal(out16[i], encode(f, (double)wide[i]));
        }
        assert_true(wide[N] == 1234.5f && out16[N] == 0xabcd);
    }
    free(code);
    free(out16);
    free(wide);
}

static void test_convert_same(void **state) {
    (void)state;
    /* Equal types are copied bit for bit (a signalling NaN too) and may overlap. */
    uint32_t f[4] = {0x7f800001u, 0x80000000u, 0x3f800000u, 7u}, want[4] = {0x7f800001u, 0x7f800001u, 0x80000000u, 7u};
    gy_convert(f + 1, GY_F32, f, GY_F32, 2);
    assert_memory_equal(f, want, sizeof f);
    uint16_t h[2] = {0x7c01, 0xfc01}, g[2] = {0};
    gy_convert(g, GY_F16, h, GY_F16, 2);
    assert_memory_equal(g, h, sizeof h);
    gy_convert(g, GY_BF16, h, GY_BF16, 0);
    gy_convert(NULL, GY_F32, NULL, GY_BF16, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_widen_all),     cmocka_unit_test(test_known),
        cmocka_unit_test(test_narrow_edges),  cmocka_unit_test(test_narrow_midpoints),
        cmocka_unit_test(test_narrow_random), cmocka_unit_test(test_rounding_mode),
        cmocka_unit_test(test_convert_pairs), cmocka_unit_test(test_convert_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
