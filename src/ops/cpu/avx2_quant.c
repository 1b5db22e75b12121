/* Grouped products (ops.h) for AVX2. vpmaddubsw adds two products of an unsigned and a signed byte in 16 bits, where
 * they must not saturate: Q8: |x| times the sign of x on q, both within -127..127: at most 2 * 127 * 127 = 32258.
 * vpmaddwd then widens. Q4: q + 8 as it is held, at most 2 * 15 * 127 = 3810, eight of which fit 16 bits: a group needs
 * one vpmaddwd. A tile is up to 4 rows by 32 outputs, 8 at a time; its f32 accumulators are in memory, that is in the
 * L1.
 */
#include <immintrin.h>

#include "ops/cpu/quant_int.h"
#include "ops/ref/host.h"

#define ALWAYS static inline __attribute__((always_inline))
enum { QUANT_MOST = 4, QUANT_NEAR_ROWS = 2 };
#define KERNELS gy_cpu_quant_avx2
#define KERNELS_NAME "avx2"

ALWAYS __m256i load_32(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

ALWAYS __m256i four_of(const int8_t *x) {
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* Adds dots of 8 rows of the panel, from w on. */
ALWAYS void dot_8(int mr, const uint8_t *w, const int8_t *x, int64_t stride, __m256i *d) {
    for (int quad = 0; quad < GY_GROUP / 4; quad++) {
        __m256i q = _mm256_xor_si256(load_32(w + quad * GY_PANEL * 4), _mm256_set1_epi8((char)0x80));
        for (int r = 0; r < mr; r++) {
            __m256i v = four_of(x + r * stride + quad * 4);
            __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(q, v));
            d[r] = _mm256_add_epi32(d[r], _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
        }
    }
}

/* bias: of the row's groups. */
ALWAYS void dot_4(int mr, const uint8_t *w, const int8_t *x, int64_t stride, const int32_t *bias, int64_t n_group,
                  __m256i *d) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int r = 0; r < mr; r++) d[r] = _mm256_setzero_si256();
    for (int pair = 0; pair < GY_GROUP / 8; pair++) {
        __m256i q = load_32(w + pair * GY_PANEL * 4), q0 = _mm256_and_si256(q, low);
        __m256i q1 = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
        for (int r = 0; r < mr; r++) {
            const int8_t *p = x + r * stride + pair * 8;
            d[r] = _mm256_add_epi16(d[r], _mm256_maddubs_epi16(q0, four_of(p)));
            d[r] = _mm256_add_epi16(d[r], _mm256_maddubs_epi16(q1, four_of(p + 4)));
        }
    }
    for (int r = 0; r < mr; r++)
        d[r] = _mm256_add_epi32(_mm256_madd_epi16(d[r], _mm256_set1_epi16(1)), _mm256_set1_epi32(bias[r * n_group]));
}

ALWAYS void groups_of(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                      gy_cpu_ahead ahead) {
    const int64_t n_group = t->n_group, stride = n_group * GY_GROUP, first = row * n_group;
    for (int i = 0; i < mr * GY_PANEL; i += 8) _mm256_storeu_ps(y + i, _mm256_setzero_ps());
    for (int64_t g = first; g < first + n_group; g++, panel += gy_block_bytes(type)) {
        gy_cpu_fetch(type, panel, &ahead);
        for (int o = 0; o < GY_PANEL; o += 8) {
            const uint8_t *w = panel + gy_block_scales(type) + o * 4;
            __m256i d[QUANT_MOST],
                bits = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)(panel + o * 2)));
            __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
            if (type == GY_Q8) {
                for (int r = 0; r < mr; r++) d[r] = _mm256_setzero_si256();
                dot_8(mr, w, t->q + g * GY_GROUP, stride, d);
            } else {
                dot_4(mr, w, t->q + g * GY_GROUP, stride, t->bias + g, n_group, d);
            }
            for (int r = 0; r < mr; r++) {
                __m256 both = _mm256_mul_ps(_mm256_set1_ps(t->scale[g + r * n_group]), s);
                float *to = y + r * GY_PANEL + o;
                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(d[r]), both, _mm256_loadu_ps(to)));
            }
        }
    }
}

/* Sums of whole numbers are in memory too; |x| and the sign of x leave no bias. */
ALWAYS void channel_of(int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y, gy_cpu_ahead ahead) {
    const int64_t stride = t->n_group * GY_GROUP;
    const int8_t *x = t->q + row * stride;
    int32_t sum[QUANT_MOST * GY_PANEL] = {0};
    for (int64_t g = 0; g < t->n_group; g++, panel += gy_block_bytes(GY_Q8C), x += GY_GROUP) {
        gy_cpu_fetch(GY_Q8C, panel, &ahead);
        for (int o = 0; o < GY_PANEL; o += 8) {
            __m256i d[QUANT_MOST], *at = (__m256i *)(void *)(sum + o);
            for (int r = 0; r < mr; r++) d[r] = _mm256_loadu_si256(at + r * GY_PANEL / 8);
            dot_8(mr, panel + o * 4, x, stride, d);
            for (int r = 0; r < mr; r++) _mm256_storeu_si256(at + r * GY_PANEL / 8, d[r]);
        }
    }
    for (int i = 0; i < mr * GY_PANEL; i += 8) {
        __m256 s = _mm256_loadu_ps((const float *)(const void *)panel + i % GY_PANEL);
        __m256 v = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)(sum + i)));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_mul_ps(_mm256_set1_ps(t->scale[row + i / GY_PANEL]), s)));
    }
}

ALWAYS void tile_of(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                    gy_cpu_ahead ahead) {
    if (type == GY_Q8C) {
        channel_of(mr, panel, t, row, y, ahead);
    } else {
        groups_of(type, mr, panel, t, row, y, ahead);
    }
}

typedef void (*tile_fn)(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y, gy_cpu_ahead ahead);

#define TILE(type, mr)                                                                                                 \
    static void tile_##type##_##mr(const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,                 \
                                   gy_cpu_ahead ahead) {                                                               \
        tile_of(type, mr, panel, t, row, y, ahead);                                                                    \
    }
#define TILES(type) TILE(type, 1) TILE(type, 2) TILE(type, 3) TILE(type, 4)
TILES(GY_Q8)
TILES(GY_Q4)
TILES(GY_Q8C)

static const tile_fn tiles[3][QUANT_MOST] = {{tile_GY_Q8_1, tile_GY_Q8_2, tile_GY_Q8_3, tile_GY_Q8_4},
                                             {tile_GY_Q4_1, tile_GY_Q4_2, tile_GY_Q4_3, tile_GY_Q4_4},
                                             {tile_GY_Q8C_1, tile_GY_Q8C_2, tile_GY_Q8C_3, tile_GY_Q8C_4}};

static int quant_most(gy_dtype type) {
    (void)type;
    return QUANT_MOST;
}

static void quant_tile(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                       gy_cpu_ahead ahead) {
    tiles[type == GY_Q4 ? 1 : type == GY_Q8C ? 2 : 0][mr - 1](panel, t, row, y, ahead);
}

#include "ops/cpu/quant.inc"
