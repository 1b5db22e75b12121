/* The row quantiser (quant.h). Two passes over a row, in pieces that are widened to f32 on the stack: the largest size,
 * then the quotients. */
#include "tensor/quant.h"

#include "base/status.h"

#include <math.h>

enum { PIECE = 512 };

static inline uint32_t size_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x7fffffffu;
}

/* Sizes of floats are ordered as their bits are; NaN and infinity lie above all others. */
static uint32_t largest(const float *v, size_t n, uint32_t most) {
    for (size_t i = 0; i < n; i++) most = size_bits(v[i]) > most ? size_bits(v[i]) : most;
    return most;
}

/* To nearest even for |v| < 2^22, whatever the compiler makes of rint: the sum has no bits left for fractions. */
static inline float whole(float v) {
    const float big = 0x1.8p23f;
    return v + big - big;
}

static void put_i8(uint8_t *q, const float *v, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = whole(v[i] / scale);
        x = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
        q[i] = (uint8_t)(int8_t)x;
    }
}

static void put_e4m3(uint8_t *q, const float *v, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) q[i] = gy_f32_to_f8e4m3(v[i] / scale);
}

static size_t piece_of(float *v, const void *src, gy_dtype t, size_t at, size_t k) {
    size_t n = k - at < PIECE ? k - at : PIECE;
    gy_convert(v, GY_F32, (const char *)src + at * gy_dtype_bytes(t), t, n);
    return n;
}

static float scale_of(uint32_t most_bits, gy_dtype to) {
    float most;
    memcpy(&most, &most_bits, sizeof most);
    float scale = most / (to == GY_I8 ? 127.0f : 448.0f);
    return scale < 0x1p-126f ? 0x1p-126f : scale;
}

int gy_quant_row(uint8_t *q, float *scale, gy_dtype to, const void *src, gy_dtype src_type, size_t k) {
    float v[PIECE];
    uint32_t most = 0;
    GY_CHECK(gy_is_quant(to) && (unsigned)src_type <= GY_BF16);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        most = largest(v, n, most);
    }
    if (most >= 0x7f800000u) return -1;
    *scale = scale_of(most, to);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        (to == GY_I8 ? put_i8 : put_e4m3)(q + at, v, *scale, n);
    }
    return 0;
}
