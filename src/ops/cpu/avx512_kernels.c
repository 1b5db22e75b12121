/* The kernels for AVX-512 (F, BW, DQ, VL): this file gives the vector vocabulary, the *.inc files the kernels.
 * With V_DOT also AVX512_BF16 (avx512bf16_kernels.c).
 */
#include <immintrin.h>

#define VL 16
#ifndef KERNELS
#define KERNELS gy_cpu_kernels_avx512
#define KERNELS_NAME "cpu-avx512"
#endif
#define PANEL_VECS 2
#define PANEL_ROWS 12 /* 24 sums of two vectors each, 2 of w, 1 of x: 27 of 32 registers */

typedef __m512 V;
typedef __m512d D; /* half a V, widened */

static inline V v_zero(void) {
    return _mm512_setzero_ps();
}
static inline V v_set1(float f) {
    return _mm512_set1_ps(f);
}
static inline V v_load(const void *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(void *p, V a) {
    _mm512_storeu_ps(p, a);
}
static inline V v_add(V a, V b) {
    return _mm512_add_ps(a, b);
}
static inline V v_sub(V a, V b) {
    return _mm512_sub_ps(a, b);
}
static inline V v_mul(V a, V b) {
    return _mm512_mul_ps(a, b);
}
static inline V v_div(V a, V b) {
    return _mm512_div_ps(a, b);
}
static inline V v_fma(V a, V b, V c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline V v_max(V a, V b) { /* b where either is NaN */
    return _mm512_max_ps(a, b);
}
static inline V v_min(V a, V b) { /* b where either is NaN */
    return _mm512_min_ps(a, b);
}
static inline V v_round_int(V a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline V v_scale2(V a, V n) { /* a * 2^n for whole n, rounded once */
    return _mm512_scalef_ps(a, n);
}
static inline __m128 v_fold(V a) { /* lanes i, i+4, i+8, i+12 summed as (i + i+8) + (i+4 + i+12) */
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
static inline __m128 v_fold_max(V a) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* v_fold of four, each in its quarter: 9 operations, where one by one they are 16 that cost as much each. */
static inline V v_fold4(V a, V b, V c, V d) {
    V ab = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    V cd = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
/* v_sum of each quarter of four such: those of a in the first quarter, and so on. */
static inline V v_sum_quarters(V a, V b, V c, V d) {
    const __m512i turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    V ab = v_add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    V cd = v_add(_mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xee));
    return _mm512_permutexvar_ps(turned, v_add(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd)));
}
/* The first n quarters, each `stride` floats behind the one before. */
static inline void v_store_quarters(float *p, int64_t stride, int n, V a) {
    _mm_storeu_ps(p, _mm512_castps512_ps128(a));
    if (n > 1) _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(a, 1));
    if (n > 2) _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(a, 2));
    if (n > 3) _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(a, 3));
}
#define V_QUARTERS

static inline __m512i bf16_bits(V a) { /* a rounded to BF16, in the upper half of each lane; the lower half is zero */
    __m512i u = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x00400000));
    return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}
static inline V v_round_bf16(V a) {
    return _mm512_castsi512_ps(bf16_bits(a));
}
static inline V v_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
static inline void v_store_bf16(void *p, V a) {
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(a), 16)));
}
static inline V v_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline V v_load_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

/* 2 VL whole numbers of 8 bits times 1 / I8_UNIT as their even and their odd ones. A byte that is moved to the upper
 * end of its lane, zeros below, is 2^24 times its value. */
#define I8_UNIT 0x1p-24f
static inline void pair_load_i8(const void *p, V *even, V *odd) {
    const __m128i low = _mm_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080);
    const __m128i high = _mm_setr_epi32(0x01808080, 0x05808080, 0x09808080, 0x0d808080);
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    *even = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(u, _mm512_broadcast_i32x4(low)));
    *odd = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(u, _mm512_broadcast_i32x4(high)));
}

/* 2 VL elements as their even and their odd ones. */
static inline void pair_load_f16(const void *p, V *even, V *odd) {
    __m512i u = _mm512_loadu_si512(p);
    *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(u));
    *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
static inline void pair_of_bf16(V a, V *even, V *odd) {
    __m512i u = _mm512_castps_si512(a);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}
static inline void pair_load_bf16(const void *p, V *even, V *odd) {
    pair_of_bf16(v_load(p), even, odd);
}
/* E4M3 moved into the place of an F16's bits is 2^-8 of its value, subnormal numbers as well: both products are exact.
 * An arithmetic shift brings the sign to both upper bits, the mask keeps one. */
static inline void pair_load_e4m3(const void *p, V *even, V *odd) {
    __m256i u = _mm256_loadu_si256(p), keep = _mm256_set1_epi16((short)0xbf80);
    __m256i low = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(u, 8), 1), keep);
    __m256i high = _mm256_and_si256(_mm256_srai_epi16(u, 1), keep);
    *even = v_mul(_mm512_cvtph_ps(low), v_set1(256.0f));
    *odd = v_mul(_mm512_cvtph_ps(high), v_set1(256.0f));
}
static inline void pair_store_bf16(void *p, V even, V odd) {
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(bf16_bits(even), 16), bf16_bits(odd)));
}
static inline void pair_load_f32(const void *p, V *even, V *odd) {
    const __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    V a = v_load(p), b = v_load((const char *)p + 64);
    *even = _mm512_permutex2var_ps(a, i, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(i, _mm512_set1_epi32(1)), b);
}
static inline void pair_store_f32(void *p, V even, V odd) {
    const __m512i i = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    v_store(p, _mm512_permutex2var_ps(even, i, odd));
    v_store((char *)p + 64, _mm512_permutex2var_ps(even, _mm512_add_epi32(i, _mm512_set1_epi32(8)), odd));
}

static inline D d_zero(void) {
    return _mm512_setzero_pd();
}
static inline D d_low(V a) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}
static inline D d_high(V a) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
static inline D d_add(D a, D b) {
    return _mm512_add_pd(a, b);
}
static inline D d_sub(D a, D b) {
    return _mm512_sub_pd(a, b);
}
static inline D d_fma(D a, D b, D c) {
    return _mm512_fmadd_pd(a, b, c);
}
static inline double d_sum(D a) {
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#ifdef V_DOT
static inline V v_dot(V sum, V a, V b) { /* of BF16: each lane of sum plus the products of its two */
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
static inline V v_pairs(V even, V odd) { /* of floats whose lower halves are zero: as pairs of BF16 */
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd)));
}
#endif

#include "ops/cpu/kernels.inc"
