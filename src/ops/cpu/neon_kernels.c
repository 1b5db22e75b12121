/* The kernels for AArch64, whose every processor has NEON with fused multiply-add and conversions of F16: this file
 * gives the vector vocabulary, the *.inc files the kernels. Compiled and run against ref under emulation; nobody has
 * measured it on such a processor.
 */
#include <arm_neon.h>

#define VL 4
#define KERNELS gy_cpu_kernels_neon
#define KERNELS_NAME "cpu-neon"
#define PANEL_VECS 4
#define PANEL_ROWS 6 /* 24 sums, 4 of w, 1 of x, of 32 registers */

typedef float32x4_t V;
typedef float64x2_t D; /* half a V, widened */

static inline V v_zero(void) {
    return vdupq_n_f32(0.0f);
}
static inline V v_set1(float f) {
    return vdupq_n_f32(f);
}
static inline V v_load(const void *p) {
    return vld1q_f32(p);
}
static inline void v_store(void *p, V a) {
    vst1q_f32(p, a);
}
static inline V v_add(V a, V b) {
    return vaddq_f32(a, b);
}
static inline V v_sub(V a, V b) {
    return vsubq_f32(a, b);
}
static inline V v_mul(V a, V b) {
    return vmulq_f32(a, b);
}
static inline V v_div(V a, V b) {
    return vdivq_f32(a, b);
}
static inline V v_fma(V a, V b, V c) {
    return vfmaq_f32(c, a, b);
}
static inline V v_max(V a, V b) { /* b where either is NaN: the processor's own maximum would be NaN */
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline V v_min(V a, V b) { /* b where either is NaN */
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline V v_round_int(V a) {
    return vrndnq_f32(a);
}
static inline V exponent_of(int32x4_t n) { /* 2^n, -126 <= n <= 127 */
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
/* a * 2^n for whole |n| < 250, in two steps as in avx2_kernels.c. */
static inline V v_scale2(V a, V n) {
    int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1);
    return v_mul(v_mul(a, exponent_of(half)), exponent_of(vsubq_s32(i, half)));
}
static inline V v_fold(V a) {
    return a;
}
static inline V v_fold_max(V a) {
    return a;
}

static inline uint32x4_t bf16_bits(V a) { /* a rounded to BF16, in the upper half of each lane; the lower is zero */
    uint32x4_t u = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t r = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x00400000));
    return vandq_u32(vbslq_u32(vceqq_f32(a, a), r, quiet), vdupq_n_u32(0xffff0000u));
}
static inline V v_round_bf16(V a) {
    return vreinterpretq_f32_u32(bf16_bits(a));
}
static inline V v_load_bf16(const void *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void v_store_bf16(void *p, V a) {
    vst1_u16(p, vshrn_n_u32(bf16_bits(a), 16));
}
static inline V v_load_f16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline V v_load_i8(const void *p) {
    int16x8_t h = vmovl_s8(vreinterpret_s8_s32(vld1_dup_s32(p)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(h)));
}

/* 2 VL whole numbers of 8 bits times 1 / I8_UNIT as their even and their odd ones. */
#define I8_UNIT 1.0f
static inline void pair_load_i8(const void *p, V *even, V *odd) {
    int32x4_t u = vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p)));
    *even = vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(u, 16), 16));
    *odd = vcvtq_f32_s32(vshrq_n_s32(u, 16));
}

/* 2 VL elements as their even and their odd ones. */
static inline void pair_of_bf16(V a, V *even, V *odd) {
    uint32x4_t u = vreinterpretq_u32_f32(a);
    *even = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
}
static inline void pair_load_bf16(const void *p, V *even, V *odd) {
    pair_of_bf16(v_load(p), even, odd);
}
static inline void pair_load_f16(const void *p, V *even, V *odd) {
    uint16x4x2_t u = vld2_u16(p);
    *even = vcvt_f32_f16(vreinterpret_f16_u16(u.val[0]));
    *odd = vcvt_f32_f16(vreinterpret_f16_u16(u.val[1]));
}
/* The upper byte of each lane is E4M3. Moved into the place of an F32's bits it is 2^-120 of its value, subnormal
 * numbers as well: the product is exact. */
static inline V e4m3_of(uint32x4_t u) {
    uint32x4_t sign = vandq_u32(u, vdupq_n_u32(0x80000000u)), rest = vandq_u32(u, vdupq_n_u32(0x7f000000u));
    return v_mul(vreinterpretq_f32_u32(vorrq_u32(sign, vshrq_n_u32(rest, 4))), v_set1(0x1p120f));
}
static inline void pair_load_e4m3(const void *p, V *even, V *odd) {
    uint32x4_t u = vmovl_u16(vld1_u16(p));
    *even = e4m3_of(vshlq_n_u32(u, 24));
    *odd = e4m3_of(vshlq_n_u32(u, 16));
}
static inline void pair_store_bf16(void *p, V even, V odd) {
    uint32x4_t u = vorrq_u32(vshrq_n_u32(bf16_bits(even), 16), bf16_bits(odd));
    vst1q_u16(p, vreinterpretq_u16_u32(u));
}
static inline void pair_load_f32(const void *p, V *even, V *odd) {
    V a = v_load(p), b = v_load((const char *)p + 16);
    *even = vuzp1q_f32(a, b);
    *odd = vuzp2q_f32(a, b);
}
static inline void pair_store_f32(void *p, V even, V odd) {
    v_store(p, vzip1q_f32(even, odd));
    v_store((char *)p + 16, vzip2q_f32(even, odd));
}

static inline D d_zero(void) {
    return vdupq_n_f64(0.0);
}
static inline D d_low(V a) {
    return vcvt_f64_f32(vget_low_f32(a));
}
static inline D d_high(V a) {
    return vcvt_high_f64_f32(a);
}
static inline D d_add(D a, D b) {
    return vaddq_f64(a, b);
}
static inline D d_sub(D a, D b) {
    return vsubq_f64(a, b);
}
static inline D d_fma(D a, D b, D c) {
    return vfmaq_f64(c, a, b);
}
static inline double d_sum(D a) {
    return vaddvq_f64(a);
}

#include "ops/cpu/kernels.inc"
