/* Weights in fewer bits: E4M3's codes, rows of them with a scale, and groups in panels, against slow methods that share
 * no code with src/tensor.
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

/* Each element against the definition (quant.h): scale and quotient in f32, then the nearest value. */
static void check_row(const float *w, size_t k) {
    uint8_t q[MOST + 1];
    float scale, most = 0;
    q[k] = 0xa5;
    assert_int_equal(gy_quant_row(q, &scale, w, GY_F32, k), 0);
    assert_int_equal(q[k], 0xa5);
    for (size_t j = 0; j < k; j++) most = fmaxf(most, fabsf(w[j]));
    assert_true(scale == fmaxf(most / 448.0f, 0x1p-126f));
    for (size_t j = 0; j < k; j++) {
        double x = (double)(w[j] / scale), v = value_of(q[j]);
        assert_int_equal(q[j], nearest(x));
        /* What the definition means: half a step of what the row's largest allows. */
        assert_true(fabs(v - x) <= fmax(fabs(x) * 0x1p-4, 0x1p-10) * (1 + 1e-6));
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
        check_row(w, k);
    }
}

/* The largest value is used, of either sign, and nothing beyond it: never NaN. */
static void ends(void **state) {
    (void)state;
    uint8_t q[3];
    float scale;
    for (uint32_t i = 0; i < 20000; i++) {
        float big = from_bits(0x00800000u + draw(9, i) % 0x7f000000u);
        const float w[3] = {big, -big, big / 3};
        assert_int_equal(gy_quant_row(q, &scale, w, GY_F32, 3), 0);
        if (scale > 0x1p-126f) assert_true(q[0] == 0x7e && q[1] == 0xfe);
    }
}

static const float zeros[5] = {0.0f, -0.0f, 0.0f, -0.0f, 0.0f};
static const float smallest[4] = {0x1p-149f, -0x1p-140f, 0x1p-130f, -0x1.8p-127f};

/* Nothing, and less than a normal scale can say. */
static void small_rows(void **state) {
    (void)state;
    uint8_t q[5];
    float scale;
    check_row(zeros, 5);
    check_row(smallest, 4);
    assert_int_equal(gy_quant_row(q, &scale, zeros, GY_F32, 5), 0);
    assert_true(scale == 0x1p-126f);
    for (int j = 0; j < 5; j++) assert_true(value_of(q[j]) == 0);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

enum { MOST_ROWS = 70 };
static const gy_dtype grouped[] = {GY_Q8, GY_Q4, GY_Q8C};
enum { N_GROUPED = sizeof grouped / sizeof *grouped };

/* A matrix of n rows in memory of exactly its size, with a frame around it. */
typedef struct panels {
    gy_dtype t;
    size_t n, k, bytes;
    uint8_t *mem;
} panels;

static size_t block_size(gy_dtype t) {
    return t == GY_Q8 ? 1088 : t == GY_Q4 ? 576 : 1024;
}

static size_t panel_size(gy_dtype t, size_t k) {
    return (k + 31) / 32 * block_size(t) + (t == GY_Q8C ? 128 : 0);
}

static panels panels_make(gy_dtype t, size_t n, size_t k) {
    panels p = {.t = t, .n = n, .k = k};
    p.bytes = (n + 31) / 32 * panel_size(t, k);
    assert_int_equal(gy_quant_bytes(t, (int64_t)n, (int64_t)k), p.bytes);
    p.mem = malloc(p.bytes + 128);
    memset(p.mem, 0xa5, p.bytes + 128);
    memset(p.mem + 64, 0, p.bytes);
    return p;
}

static void panels_free(panels *p) {
    for (int i = 0; i < 64; i++) assert_true(p->mem[i] == 0xa5 && p->mem[64 + p->bytes + (size_t)i] == 0xa5);
    free(p->mem);
}

static int put_row(panels *p, size_t i, const void *w, gy_dtype t) {
    return gy_quant_groups_row(p->mem + 64, p->t, (int64_t)i, w, t, p->k);
}

/* By the layout that quant.h writes down, byte by byte. */
static int at(const panels *p, size_t i, size_t j) {
    size_t quad = j % 32 / 4;
    const uint8_t *b = p->mem + 64 + i / 32 * panel_size(p->t, p->k) + j / 32 * block_size(p->t);
    b += p->t == GY_Q8C ? 0 : 64;
    if (p->t != GY_Q4) return b[quad * 128 + i % 32 * 4 + j % 4] - 128;
    return (b[quad / 2 * 128 + i % 32 * 4 + j % 4] >> (quad % 2 ? 4 : 0)) % 16 - 8;
}

static float scale_at(const panels *p, size_t i, size_t g) {
    const uint8_t *b = p->mem + 64 + i / 32 * panel_size(p->t, p->k);
    if (p->t == GY_Q8C) {
        float s;
        memcpy(&s, b + (p->k + 31) / 32 * 1024 + i % 32 * 4, sizeof s);
        return s;
    }
    b += g * block_size(p->t) + i % 32 * 2;
    return from_bits((uint32_t)(b[0] | b[1] << 8) << 16);
}

static float limit(float v, float lo, float hi) {
    return fmaxf(lo, fminf(hi, v));
}

/* What is left of u = w / m when it is divided by 1 / c: the definition's sums, eight side by side. */
static float left_of(const float *w, size_t n, float m, float c) {
    float lane[8] = {0}, all = 0;
    for (size_t j = 0; j < n; j++) {
        float x = w[j] / m * c, d = x - limit(nearbyintf(x), -8, 7), square = d * d;
        lane[j % 8] += square;
    }
    for (int i = 0; i < 8; i++) all += lane[i];
    return all / (c * c);
}

static float scale_4(const float *w, size_t n, float most) {
    static const float c[] = {-8, -7, -7.5f, -8.5f};
    int best = 0;
    size_t first = 0;
    if (most / 8.5f <= 0x1p-126f) return 0x1p-126f;
    while (fabsf(w[first]) < most) first++;
    for (int i = 1; i < 4; i++)
        if (left_of(w, n, w[first], c[i]) < left_of(w, n, w[first], c[best])) best = i;
    return w[first] / c[best];
}

/* Group g of row i, n elements from w on. */
static void check_group(const panels *p, size_t i, size_t g, const float *w, size_t n) {
    float most = 0, scale = scale_at(p, i, g), end = p->t == GY_Q4 ? 8 : 127;
    const float *group = p->t == GY_Q8C ? w - g * 32 : w;
    for (size_t j = 0; j < (p->t == GY_Q8C ? p->k : n); j++) most = fmaxf(most, fabsf(group[j]));
    float want = p->t == GY_Q4 ? scale_4(w, n, most) : fmaxf(most / 127.0f, 0x1p-126f);
    assert_true(scale == (p->t == GY_Q8C ? want : gy_bf16_round(want)));
    for (size_t j = 0; j < n; j++) {
        float x = w[j] / scale;
        int q = at(p, i, g * 32 + j);
        assert_true((float)q == limit(nearbyintf(x), p->t == GY_Q4 ? -8 : -127, p->t == GY_Q4 ? 7 : 127));
        /* What it means: half a step, more only beyond the end of what Q4 has. */
        assert_true(fabsf((float)q - x) <= 0.5f || (fabsf(x) > end - 1 && fabsf((float)q - x) <= end / 7 + 0.5f));
        assert_int_equal(q, gy_quant_value(p->mem + 64, p->t, (int64_t)p->k, (int64_t)i, (int64_t)(g * 32 + j)));
    }
    assert_true(scale == gy_quant_scale(p->mem + 64, p->t, (int64_t)p->k, (int64_t)i, (int64_t)g));
}

static void groups_of(gy_dtype t, size_t n, size_t k, uint32_t seed) {
    float w[MOST];
    panels p = panels_make(t, n, k);
    for (size_t i = 0; i < n; i++) { /* in another order than they lie */
        fill_row(w, k, seed + (uint32_t)(n - 1 - i));
        assert_int_equal(put_row(&p, n - 1 - i, w, GY_F32), 0);
    }
    for (size_t i = 0; i < n; i++) {
        fill_row(w, k, seed + (uint32_t)i);
        for (size_t g = 0; g < (k + 31) / 32; g++) check_group(&p, i, g, w + g * 32, k - g * 32 < 32 ? k - g * 32 : 32);
    }
    for (size_t i = n; i < (n + 31) / 32 * 32; i++) /* beyond the last row */
        for (size_t g = 0; g < (k + 31) / 32; g++) assert_true(scale_at(&p, i, g) == 0);
    for (size_t i = 0; i < n; i++) /* beyond the last element */
        for (size_t j = k; j < (k + 31) / 32 * 32; j++) assert_int_equal(at(&p, i, j), 0);
    panels_free(&p);
}

static void groups(void **state) {
    (void)state;
    static const size_t ks[] = {1, 5, 31, 32, 33, 64, 500, 513, MOST}, ns[] = {1, 31, 32, 33, MOST_ROWS};
    for (uint32_t i = 0; i < 90; i++) groups_of(grouped[i / 9 % N_GROUPED], ns[i % 5], ks[i % 9], 500 + 100 * i);
}

/* Q8 uses its largest value of either sign and nothing beyond; Q4 gives the largest its own sign's end, or nearly. */
static void group_ends(void **state) {
    (void)state;
    panels a = panels_make(GY_Q8, 1, 3), b = panels_make(GY_Q4, 1, 3), c = panels_make(GY_Q8C, 1, 3);
    for (uint32_t i = 0; i < 20000; i++) {
        float big = from_bits(0x00800000u + draw(9, i) % 0x7f000000u);
        const float w[3] = {big, -big, big / 3};
        memset(a.mem + 64, 0, a.bytes);
        memset(b.mem + 64, 0, b.bytes);
        assert_int_equal(put_row(&a, 0, w, GY_F32) | put_row(&b, 0, w, GY_F32) | put_row(&c, 0, w, GY_F32), 0);
        if (big / 127 > 0x1p-126f) assert_true(at(&c, 0, 0) == 127 && at(&c, 0, 1) == -127);
        if (big / 127 > 0x1p-126f) assert_true(at(&a, 0, 0) == 127 && at(&a, 0, 1) == -127);
        if (big / 8.5f > 0x1p-126f) assert_true(at(&b, 0, 0) <= -7 && at(&b, 0, 1) == 7);
        check_group(&a, 0, 0, w, 3);
        check_group(&b, 0, 0, w, 3);
        check_group(&c, 0, 0, w, 3);
    }
    panels_free(&a);
    panels_free(&b);
    panels_free(&c);
}

static void small_groups(void **state) {
    (void)state;
    for (int t = 0; t < N_GROUPED; t++) {
        panels p = panels_make(grouped[t], 2, 5);
        float w[5] = {0};
        memcpy(w, smallest, sizeof smallest);
        assert_int_equal(put_row(&p, 0, zeros, GY_F32) | put_row(&p, 1, w, GY_F32), 0);
        check_group(&p, 0, 0, zeros, 5);
        check_group(&p, 1, 0, w, 5);
        assert_true(scale_at(&p, 0, 0) == 0x1p-126f && at(&p, 0, 0) == 0 && at(&p, 0, 4) == 0);
        panels_free(&p);
    }
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

/* A row is what it is in each type that holds it exactly. */
static void sources(void **state) {
    (void)state;
    float w[MOST], sa, sb;
    uint16_t half[2][MOST];
    uint8_t a[MOST], b[MOST];
    const gy_dtype from[] = {GY_BF16, GY_F16};
    for (uint32_t j = 0; j < MOST; j++) {
        w[j] = gy_f16_to_f32(gy_f32_to_f16(gy_bf16_round(gy_rand_unit_f32(draw(5, j)) * 8.0f - 4.0f)));
        half[0][j] = gy_f32_to_bf16(w[j]);
        half[1][j] = gy_f32_to_f16(w[j]);
    }
    assert_int_equal(gy_quant_row(a, &sa, w, GY_F32, MOST), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gy_quant_row(b, &sb, half[i], from[i], MOST), 0);
        assert_true(sa == sb && !memcmp(a, b, MOST));
        for (int t = 0; t < N_GROUPED; t++) {
            panels p = panels_make(grouped[t], 1, MOST), q = panels_make(grouped[t], 1, MOST);
            assert_int_equal(put_row(&p, 0, w, GY_F32) | put_row(&q, 0, half[i], from[i]), 0);
            assert_memory_equal(p.mem, q.mem, p.bytes + 128);
            panels_free(&p);
            panels_free(&q);
        }
    }
}

static void not_finite(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float w[600];
    uint8_t q[600];
    for (size_t i = 0; i < 4; i++)
        for (size_t where = 0; where < 600; where += 599) {
            float scale = 7;
            panels p = panels_make(grouped[i % N_GROUPED], 1, 600);
            for (size_t j = 0; j < 600; j++) w[j] = 1.0f;
            w[where] = bad[i];
            memset(q, 0xa5, sizeof q);
            assert_int_equal(gy_quant_row(q, &scale, w, GY_F32, 600), -1);
            assert_true(scale == 7 && q[0] == 0xa5 && q[599] == 0xa5);
            assert_int_equal(put_row(&p, 0, w, GY_F32), -1);
            panels_free(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codes),    cmocka_unit_test(all_ties), cmocka_unit_test(limits),
        cmocka_unit_test(many_floats),  cmocka_unit_test(rows),     cmocka_unit_test(ends),
        cmocka_unit_test(small_rows),   cmocka_unit_test(groups),   cmocka_unit_test(group_ends),
        cmocka_unit_test(small_groups), cmocka_unit_test(sources),  cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
