/* The quantisers (quant.h). A row is widened to f32 on the stack, in pieces of whole groups. */
#include "tensor/quant.h"

#include "base/status.h"

#include <math.h>

enum { PIECE = 512 };
_Static_assert(PIECE % GY_GROUP == 0, "groups do not straddle pieces");

static inline uint32_t size_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x7fffffffu;
}

static inline float of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

enum { NOT_FINITE = 0x7f800000 };

/* Sizes of floats are ordered as their bits are; NaN and infinity lie above all others. */
static inline uint32_t largest(const float *v, size_t n, uint32_t most) {
    for (size_t i = 0; i < n; i++) most = size_bits(v[i]) > most ? size_bits(v[i]) : most;
    return most;
}

/* To nearest even for |v| < 2^22, whatever the compiler makes of rint: the sum has no bits left for fractions. */
static inline float whole(float v) {
    const float big = 0x1.8p23f;
    return v + big - big;
}

static inline float within(float v, float lo, float hi) {
    return v > hi ? hi : v < lo ? lo : v;
}

static size_t piece_of(float *v, const void *src, gy_dtype t, size_t at, size_t k) {
    size_t n = k - at < PIECE ? k - at : PIECE;
    gy_convert(v, GY_F32, (const char *)src + at * gy_dtype_bytes(t), t, n);
    return n;
}

static inline float floored(float scale) {
    return scale < 0x1p-126f ? 0x1p-126f : scale;
}

int gy_quant_row(uint8_t *q, float *scale, const void *src, gy_dtype src_type, size_t k) {
    float v[PIECE];
    uint32_t most = 0;
    GY_CHECK((unsigned)src_type <= GY_BF16);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        most = largest(v, n, most);
    }
    if (most >= NOT_FINITE) return -1;
    *scale = floored(of_bits(most) / 448.0f);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        for (size_t i = 0; i < n; i++) q[at + i] = gy_f32_to_f8e4m3(v[i] / *scale);
    }
    return 0;
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

/* q[j] + 128 of 32 elements. */
static void whole_8(const float *v, float scale, uint8_t *q) {
    for (int j = 0; j < GY_GROUP; j++) q[j] = (uint8_t)(int)(within(whole(v[j] / scale), -127.0f, 127.0f) + 128.0f);
}

/* The same of a group, and the scale's bits. */
static uint16_t group_8(const float *v, float most, uint8_t *q) {
    uint16_t bits = gy_f32_to_bf16(floored(most / 127.0f));
    whole_8(v, gy_bf16_to_f32(bits), q);
    return bits;
}

/* Eight sums side by side, which the compiler can keep in vectors, then one after another. */
static float square_error(const float *u, float c) {
    float sum[8] = {0}, all = 0.0f;
    for (int j = 0; j < GY_GROUP; j += 8)
        for (int i = 0; i < 8; i++) {
            float x = u[j + i] * c, d = x - within(whole(x), -8.0f, 7.0f);
            sum[i] += d * d;
        }
    for (int i = 0; i < 8; i++) all += sum[i];
    return all / (c * c);
}

/* By what a group's element of largest size is divided: -8 uses all 16 values, the others trade the ends for the rest.
 */
static float divisor_of(const float *v, float m) {
    static const float candidates[] = {-8.0f, -7.0f, -7.5f, -8.5f};
    float u[GY_GROUP], best = candidates[0], least = INFINITY;
    for (int j = 0; j < GY_GROUP; j++) u[j] = v[j] / m;
    for (int i = 0; i < 4; i++) {
        float e = square_error(u, candidates[i]);
        if (e < least) least = e, best = candidates[i];
    }
    return best;
}

/* q[j] + 8 of a group, and the scale's bits. */
static uint16_t group_4(const float *v, float most, uint8_t *q) {
    float m = most, s = 0x1p-126f;
    for (int j = GY_GROUP - 1; j >= 0; j--) m = fabsf(v[j]) == most ? v[j] : m;
    if (most / 8.5f > 0x1p-126f) s = m / divisor_of(v, m);
    uint16_t bits = gy_f32_to_bf16(s);
    float scale = gy_bf16_to_f32(bits);
    for (int j = 0; j < GY_GROUP; j++) q[j] = (uint8_t)(int)(within(whole(v[j] / scale), -8.0f, 7.0f) + 8.0f);
    return bits;
}

static void put_8(uint8_t *block, int64_t lane, const uint8_t *q) {
    for (int quad = 0; quad < GY_GROUP / 4; quad++) memcpy(block + (quad * GY_PANEL + lane) * 4, q + quad * 4, 4);
}

static void put_4(uint8_t *block, int64_t lane, const uint8_t *q) {
    for (int pair = 0; pair < GY_GROUP / 8; pair++)
        for (int j = 0; j < 4; j++)
            block[(pair * GY_PANEL + lane) * 4 + j] = (uint8_t)(q[pair * 8 + j] | q[pair * 8 + 4 + j] << 4);
}

/* v: GY_GROUP elements. */
static int group_put(uint8_t *block, gy_dtype to, int64_t lane, const float *v) {
    uint8_t q[GY_GROUP];
    uint32_t most = largest(v, GY_GROUP, 0);
    if (most >= NOT_FINITE) return -1;
    uint16_t scale = (to == GY_Q8 ? group_8 : group_4)(v, of_bits(most), q);
    memcpy(block + lane * 2, &scale, sizeof scale);
    (to == GY_Q8 ? put_8 : put_4)(block + gy_block_scales(to), lane, q);
    return 0;
}

/* Q8C. block: the panel's first one. The row is read twice. */
static int channel_put(uint8_t *block, int64_t lane, const void *src, gy_dtype src_type, size_t k) {
    float v[PIECE];
    uint8_t q[GY_GROUP];
    uint32_t most = 0;
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        most = largest(v, n, most);
    }
    if (most >= NOT_FINITE) return -1;
    float scale = floored(of_bits(most) / 127.0f);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        for (size_t j = n; j % GY_GROUP; j++) v[j] = 0.0f;
        for (size_t g = 0; g < n; g += GY_GROUP, block += gy_block_bytes(GY_Q8C)) {
            whole_8(v + g, scale, q);
            put_8(block, lane, q);
        }
    }
    memcpy(block + lane * (int64_t)sizeof scale, &scale, sizeof scale);
    return 0;
}

int gy_quant_groups_row(void *w, gy_dtype to, int64_t i, const void *src, gy_dtype src_type, size_t k) {
    float v[PIECE];
    uint8_t *block = (uint8_t *)w + i / GY_PANEL * gy_panel_bytes(to, (int64_t)k);
    GY_CHECK(gy_is_grouped(to) && (unsigned)src_type <= GY_BF16);
    if (to == GY_Q8C) return channel_put(block, i % GY_PANEL, src, src_type, k);
    for (size_t at = 0, n; at < k; at += n) {
        n = piece_of(v, src, src_type, at, k);
        for (size_t j = n; j % GY_GROUP; j++) v[j] = 0.0f;
        for (size_t g = 0; g < n; g += GY_GROUP, block += gy_block_bytes(to))
            if (group_put(block, to, i % GY_PANEL, v + g)) return -1;
    }
    return 0;
}
