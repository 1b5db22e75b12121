/* The kernels for AVX2 with FMA and F16C: this file gives the vector vocabulary, the *.inc files the kernels. */
#include <immintrin.h>

#define VL 8
#define KERNELS gy_cpu_kernels_avx2
#define KERNELS_NAME "cpu-avx2"
#define PANEL_VECS 2
#define PANEL_ROWS 6 /* 12 sums, 2 of w, 1 of x: 15 of 16 registers */

typedef __m256 V;
typedef __m256d D; /* half a V, widened */

static inline V v_zero(void) {
    return _mm256_setzero_ps();
}
static inline V v_set1(float f) {
    return _mm256_set1_ps(f);
}
static inline V v_load(const void *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(void *p, V a) {
    _mm256_storeu_ps(p, a);
}
static inline V v_add(V a, V b) {
    return _mm256_add_ps(a, b);
}
static inline V v_sub(V a, V b) {
    return _mm256_sub_ps(a, b);
}
static inline V v_mul(V a, V b) {
    return _mm256_mul_ps(a, b);
}
static inline V v_div(V a, V b) {
    return _mm256_div_ps(a, b);
}
static inline V v_fma(V a, V b, V c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline V v_max(V a, V b) { /* b where either is NaN */
    return _mm256_max_ps(a, b);
}
static inline V v_min(V a, V b) { /* b where either is NaN */
    return _mm256_min_ps(a, b);
}
static inline V v_round_int(V a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline V exponent_of(__m256i n) { /* 2^n, -126 <= n <= 127 */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* a * 2^n for whole |n| < 250. In two steps, so that overflow and the subnormal range come out right; only the second
 * step can round when 1/2 < |a| < 2 and |n| < 160. */
static inline V v_scale2(V a, V n) {
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    return v_mul(v_mul(a, exponent_of(half)), exponent_of(_mm256_sub_epi32(i, half)));
}
static inline __m128 v_fold(V a) { /* lanes i and i+4 summed */
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
static inline __m128 v_fold_max(V a) {
    return _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

static inline __m256i bf16_bits(V a) { /* a rounded to BF16, in the upper half of each lane; the lower half is zero */
    __m256i u = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    return _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
}
static inline V v_round_bf16(V a) {
    return _mm256_castsi256_ps(bf16_bits(a));
}
static inline V v_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
static inline void v_store_bf16(void *p, V a) {
    __m256i u = _mm256_srli_epi32(bf16_bits(a), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
    _mm_storeu_si128(p, _mm256_castsi256_si128(packed));
}
static inline V v_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
static inline V v_load_i8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}

/* 2 VL whole numbers of 8 bits times 1 / I8_UNIT as their even and their odd ones. A byte that is moved to the upper
 * end of its lane, zeros below, is 2^24 times its value. */
#define I8_UNIT 0x1p-24f
static inline void pair_load_i8(const void *p, V *even, V *odd) {
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    *even = _mm256_cvtepi32_ps(_mm256_slli_epi32(u, 24));
    *odd = _mm256_cvtepi32_ps(_mm256_slli_epi32(_mm256_srli_epi32(u, 8), 24));
}

/* 2 VL elements as their even and their odd ones. */
static inline void pair_load_f16(const void *p, V *even, V *odd) {
    __m256i u = _mm256_loadu_si256(p), low = _mm256_and_si256(u, _mm256_set1_epi32(0xffff));
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(u, 16)), 0xd8);
    *even = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
}
static inline void pair_of_bf16(V a, V *even, V *odd) {
    __m256i u = _mm256_castps_si256(a);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline void pair_load_bf16(const void *p, V *even, V *odd) {
    pair_of_bf16(v_load(p), even, odd);
}
/* E4M3 moved into the place of an F16's bits is 2^-8 of its value, subnormal numbers as well: both products are exact.
 * An arithmetic shift brings the sign to both upper bits, the mask keeps one. */
static inline void pair_load_e4m3(const void *p, V *even, V *odd) {
    __m128i u = _mm_loadu_si128(p), keep = _mm_set1_epi16((short)0xbf80);
    __m128i low = _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(u, 8), 1), keep);
    __m128i high = _mm_and_si128(_mm_srai_epi16(u, 1), keep);
    *even = v_mul(_mm256_cvtph_ps(low), v_set1(256.0f));
    *odd = v_mul(_mm256_cvtph_ps(high), v_set1(256.0f));
}
static inline void pair_store_bf16(void *p, V even, V odd) {
    _mm256_storeu_si256(p, _mm256_or_si256(_mm256_srli_epi32(bf16_bits(even), 16), bf16_bits(odd)));
}
static inline V lanes_0213(V a) { /* swaps the middle quarters */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}
static inline void pair_load_f32(const void *p, V *even, V *odd) {
    V a = v_load(p), b = v_load((const char *)p + 32);
    *even = lanes_0213(_mm256_shuffle_ps(a, b, 0x88));
    *odd = lanes_0213(_mm256_shuffle_ps(a, b, 0xdd));
}
static inline void pair_store_f32(void *p, V even, V odd) {
    V low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    v_store(p, _mm256_permute2f128_ps(low, high, 0x20));
    v_store((char *)p + 32, _mm256_permute2f128_ps(low, high, 0x31));
}

static inline D d_zero(void) {
    return _mm256_setzero_pd();
}
static inline D d_low(V a) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}
static inline D d_high(V a) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
static inline D d_add(D a, D b) {
    return _mm256_add_pd(a, b);
}
static inline D d_sub(D a, D b) {
    return _mm256_sub_pd(a, b);
}
static inline D d_fma(D a, D b, D c) {
    return _mm256_fmadd_pd(a, b, c);
}
static inline double d_sum(D a) {
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#include "ops/cpu/kernels.inc"
