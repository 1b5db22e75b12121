/* Grouped products (ops.h) for AVX-512 with VNNI. Weights are the unsigned bytes of vpdpbusd, as they are held (q +
 * 128, q + 8); what that adds to a dot, 128 or 8 times the sum of the row's group, is where its accumulators begin
 * (bias).
 *
 * By groups a tile is up to 6 rows by 32 outputs: for each row two accumulators of whole numbers, which live for one
 * group, and two of f32: 24 registers, 2 of weights, 2 of scales. Per group and row 16 products and 6 other
 * instructions, half of them on other units: at most 16 of 20 of the product's rate. By channels sums of whole numbers
 * live as long as the tile, which is up to 12 rows by 32 outputs: 24 registers and all of the product's rate.
 */
#include <immintrin.h>

#include "ops/cpu/quant_int.h"
#include "ops/ref/host.h"

#define ALWAYS static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
enum { GROUP_ROWS = 6, CHANNEL_ROWS = 12, QUANT_MOST = CHANNEL_ROWS, QUANT_NEAR_ROWS = 4 };
#define KERNELS gy_cpu_quant_vnni
#define KERNELS_NAME "vnni"

ALWAYS __m512 scales_of(const uint8_t *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}

/* Elements 4 quad .. of the group, of 16 rows of the panel: as unsigned bytes. */
ALWAYS __m512i quad_of(gy_dtype type, const uint8_t *block, int quad, int half) {
    const uint8_t *p = block + gy_block_scales(type) + (type == GY_Q4 ? quad / 2 : quad) * GY_PANEL * 4 + half * 64;
    __m512i v = _mm512_loadu_si512(p);
    if (type != GY_Q4) return v;
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
    UNROLL for (int r = 0; r < mr; r++) {
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

ALWAYS void groups_of(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                      gy_cpu_ahead ahead) {
    const int64_t n_group = t->n_group;
    const int8_t *x = t->q + row * n_group * GY_GROUP;
    const float *scale = t->scale + row * n_group;
    const int32_t *bias = t->bias + row * n_group;
    __m512 acc[2 * GROUP_ROWS];
    UNROLL for (int i = 0; i < 2 * mr; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < n_group; g++, panel += gy_block_bytes(type)) {
        __m512i d[2 * GROUP_ROWS];
        gy_cpu_fetch(type, panel, &ahead);
        UNROLL for (int r = 0; r < mr; r++) d[2 * r] = d[2 * r + 1] = _mm512_set1_epi32(bias[r * n_group + g]);
        group_dot(type, mr, panel, x + g * GY_GROUP, n_group * GY_GROUP, d);
        __m512 s0 = scales_of(panel), s1 = scales_of(panel + 32);
        UNROLL for (int r = 0; r < mr; r++) {
            __m512 s = _mm512_set1_ps(scale[r * n_group + g]);
            acc[2 * r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[2 * r]), _mm512_mul_ps(s, s0), acc[2 * r]);
            acc[2 * r + 1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[2 * r + 1]), _mm512_mul_ps(s, s1), acc[2 * r + 1]);
        }
    }
    UNROLL for (int i = 0; i < 2 * mr; i++) _mm512_storeu_ps(y + i * 16, acc[i]);
}

ALWAYS void channel_put(int mr, const uint8_t *scales, const float *scale, const __m512i *d, float *y) {
    __m512 s0 = _mm512_loadu_ps(scales), s1 = _mm512_loadu_ps(scales + 64);
    UNROLL for (int r = 0; r < mr; r++) {
        __m512 s = _mm512_set1_ps(scale[r]);
        _mm512_storeu_ps(y + r * GY_PANEL, _mm512_mul_ps(_mm512_cvtepi32_ps(d[2 * r]), _mm512_mul_ps(s, s0)));
        _mm512_storeu_ps(y + r * GY_PANEL + 16, _mm512_mul_ps(_mm512_cvtepi32_ps(d[2 * r + 1]), _mm512_mul_ps(s, s1)));
    }
}

ALWAYS void channel_of(int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y, gy_cpu_ahead ahead) {
    const int64_t stride = t->n_group * GY_GROUP;
    const int8_t *x = t->q + row * stride;
    __m512i d[2 * CHANNEL_ROWS];
    UNROLL for (int r = 0; r < mr; r++) d[2 * r] = d[2 * r + 1] = _mm512_set1_epi32(t->bias[row + r]);
    for (int64_t g = 0; g < t->n_group; g++, panel += gy_block_bytes(GY_Q8C), x += GY_GROUP) {
        gy_cpu_fetch(GY_Q8C, panel, &ahead);
        group_dot(GY_Q8C, mr, panel, x, stride, d);
    }
    channel_put(mr, panel, t->scale + row, d, y);
}

ALWAYS void tile_with(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                      gy_cpu_ahead ahead) {
    if (type == GY_Q8C) {
        channel_of(mr, panel, t, row, y, ahead);
    } else {
        groups_of(type, mr, panel, t, row, y, ahead);
    }
}

/* Compiled for both ways of fetching: asking in the loop costs 8 rows (two tiles of 4) in Q8 a sixth. */
ALWAYS void tile_of(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                    gy_cpu_ahead ahead) {
    if (mr <= QUANT_NEAR_ROWS && ahead.near) {
        tile_with(type, mr, panel, t, row, y, (gy_cpu_ahead){.near = 1});
    } else {
        tile_with(type, mr, panel, t, row, y, (gy_cpu_ahead){.p = ahead.p, .n = ahead.n});
    }
}

typedef void (*tile_fn)(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y, gy_cpu_ahead ahead);

#define TILE(type, mr)                                                                                                 \
    static void tile_##type##_##mr(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,                 \
                                   gy_cpu_ahead ahead) {                                                               \
        tile_of(type, mr, panel, t, row, y, ahead);                                                                    \
    }
#define TILES_6(type) TILE(type, 1) TILE(type, 2) TILE(type, 3) TILE(type, 4) TILE(type, 5) TILE(type, 6)
#define TILES_12(type) TILE(type, 7) TILE(type, 8) TILE(type, 9) TILE(type, 10) TILE(type, 11) TILE(type, 12)
TILES_6(GY_Q8)
TILES_6(GY_Q4)
TILES_6(GY_Q8C)
TILES_12(GY_Q8C)

static const tile_fn group_tiles[2][GROUP_ROWS] = {
    {tile_GY_Q8_1, tile_GY_Q8_2, tile_GY_Q8_3, tile_GY_Q8_4, tile_GY_Q8_5, tile_GY_Q8_6},
    {tile_GY_Q4_1, tile_GY_Q4_2, tile_GY_Q4_3, tile_GY_Q4_4, tile_GY_Q4_5, tile_GY_Q4_6}};
static const tile_fn channel_tiles[CHANNEL_ROWS] = {tile_GY_Q8C_1, tile_GY_Q8C_2,  tile_GY_Q8C_3,  tile_GY_Q8C_4,
                                                    tile_GY_Q8C_5, tile_GY_Q8C_6,  tile_GY_Q8C_7,  tile_GY_Q8C_8,
                                                    tile_GY_Q8C_9, tile_GY_Q8C_10, tile_GY_Q8C_11, tile_GY_Q8C_12};

static int quant_most(gy_dtype type) {
    return type == GY_Q8C ? CHANNEL_ROWS : GROUP_ROWS;
}

static void quant_tile(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                       gy_cpu_ahead ahead) {
    (type == GY_Q8C ? channel_tiles : group_tiles[type == GY_Q4])[mr - 1](panel, t, row, y, ahead);
}

#include "ops/cpu/quant.inc"
