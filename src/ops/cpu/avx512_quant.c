/* Grouped products (ops.h) for AVX-512 with VNNI. Weights are the unsigned bytes of vpdpbusd, as they are held (q +
 * 128, q + 8); what that adds to a dot, 128 or 8 times the sum of the row's group, is where its accumulators begin
 * (bias).
 *
 * A tile is up to 6 rows by 32 outputs: for each row two accumulators of whole numbers, which live for one group, and
 * two of f32: 24 registers, 2 of weights, 2 of scales. Per group and row 16 products and 6 other instructions, half of
 * them on other units: at most 16 of 20 of the product's rate.
 */
#include <immintrin.h>

#include "ops/cpu/quant_int.h"
#include "ops/ref/host.h"

#define ALWAYS static inline __attribute__((always_inline))
#define QUANT_ROWS 6
#define KERNELS gy_cpu_quant_vnni
#define KERNELS_NAME "vnni"

/* What a tile brings into the L2: n lines for each of its groups, from p on. */
typedef struct quant_ahead {
    const uint8_t *p;
    int64_t n;
} quant_ahead;

ALWAYS __m512 scales_of(const uint8_t *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}

/* Elements 4 quad .. of the group, of 16 rows of the panel: as unsigned bytes. */
ALWAYS __m512i quad_of(gy_dtype type, const uint8_t *block, int quad, int half) {
    const uint8_t *p = block + GY_BLOCK_SCALES + (type == GY_Q8 ? quad : quad / 2) * GY_PANEL * 4 + half * 64;
    __m512i v = _mm512_loadu_si512(p);
    if (type == GY_Q8) return v;
    if (quad % 2) v = _mm512_srli_epi16(v, 4);
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

ALWAYS __m512i four_of(const int8_t *x) {
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm512_set1_epi32(v);
}

ALWAYS void quad_dot(gy_dtype type, int mr, const uint8_t *block, int quad, const int8_t *x, int64_t stride,
                     __m512i *d) {
    __m512i w0 = quad_of(type, block, quad, 0), w1 = quad_of(type, block, quad, 1);
    for (int r = 0; r < mr; r++) {
        __m512i v = four_of(x + r * stride + quad * 4);
        d[2 * r] = _mm512_dpbusd_epi32(d[2 * r], w0, v);
        d[2 * r + 1] = _mm512_dpbusd_epi32(d[2 * r + 1], w1, v);
    }
}

/* Written out: gcc 12 leaves a loop over eight quads a loop, and then keeps accumulators in memory. */
ALWAYS void group_dot(gy_dtype type, int mr, const uint8_t *block, const int8_t *x, int64_t stride, __m512i *d) {
    quad_dot(type, mr, block, 0, x, stride, d);
    quad_dot(type, mr, block, 1, x, stride, d);
    quad_dot(type, mr, block, 2, x, stride, d);
    quad_dot(type, mr, block, 3, x, stride, d);
    quad_dot(type, mr, block, 4, x, stride, d);
    quad_dot(type, mr, block, 5, x, stride, d);
    quad_dot(type, mr, block, 6, x, stride, d);
    quad_dot(type, mr, block, 7, x, stride, d);
}

ALWAYS void tile_of(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                    quant_ahead ahead) {
    const int64_t n_group = t->n_group;
    const int8_t *x = t->q + row * n_group * GY_GROUP;
    const float *scale = t->scale + row * n_group;
    const int32_t *bias = t->bias + row * n_group;
    __m512 acc[2 * QUANT_ROWS];
    for (int i = 0; i < 2 * mr; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < n_group; g++, panel += gy_block_bytes(type)) {
        __m512i d[2 * QUANT_ROWS];
        for (int64_t i = 0; i < ahead.n; i++, ahead.p += 64) __builtin_prefetch(ahead.p, 0, 2);
        for (int r = 0; r < mr; r++) d[2 * r] = d[2 * r + 1] = _mm512_set1_epi32(bias[r * n_group + g]);
        group_dot(type, mr, panel, x + g * GY_GROUP, n_group * GY_GROUP, d);
        __m512 s0 = scales_of(panel), s1 = scales_of(panel + 32);
        for (int r = 0; r < mr; r++) {
            __m512 s = _mm512_set1_ps(scale[r * n_group + g]);
            acc[2 * r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[2 * r]), _mm512_mul_ps(s, s0), acc[2 * r]);
            acc[2 * r + 1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[2 * r + 1]), _mm512_mul_ps(s, s1), acc[2 * r + 1]);
        }
    }
    for (int i = 0; i < 2 * mr; i++) _mm512_storeu_ps(y + i * 16, acc[i]);
}

typedef void (*tile_fn)(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y, quant_ahead ahead);

#define TILE(type, mr)                                                                                                 \
    static void tile_##type##_##mr(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,                 \
                                   quant_ahead ahead) {                                                                \
        tile_of(type, mr, panel, t, row, y, ahead);                                                                    \
    }
#define TILES(type) TILE(type, 1) TILE(type, 2) TILE(type, 3) TILE(type, 4) TILE(type, 5) TILE(type, 6)
TILES(GY_Q8)
TILES(GY_Q4)

static const tile_fn tiles[2][QUANT_ROWS] = {
    {tile_GY_Q8_1, tile_GY_Q8_2, tile_GY_Q8_3, tile_GY_Q8_4, tile_GY_Q8_5, tile_GY_Q8_6},
    {tile_GY_Q4_1, tile_GY_Q4_2, tile_GY_Q4_3, tile_GY_Q4_4, tile_GY_Q4_5, tile_GY_Q4_6}};

static void quant_tile(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                       quant_ahead ahead) {
    tiles[type == GY_Q4][mr - 1](panel, t, row, y, ahead);
}

#include "ops/cpu/quant.inc"
