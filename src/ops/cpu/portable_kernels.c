/* The kernels for any processor: vectors of the compiler's own (gcc and clang), which it makes of whatever registers
 * the baseline has, four floats at a time: SSE2 on x86-64. Chosen last, where cpu.c finds no better set.
 *
 * v_fma rounds twice here: not each baseline has a fused one, and calling fmaf() for each element costs a hundred times
 * the product. So its bits are its own, as every set's are. d_fma is exact before its addition (products of widened
 * floats), so that there nothing differs.
 * Little endian only, as the checkpoints are (pair_load_bf16).
 */
#include "tensor/dtype.h"

#define VL 4
#define KERNELS gy_cpu_kernels_portable
#define KERNELS_NAME "cpu-portable"
#define PANEL_VECS 2
#define PANEL_ROWS 6 /* 12 sums, 2 of w, 1 of x, of 16 registers */

typedef float V __attribute__((vector_size(16), may_alias));
typedef double D __attribute__((vector_size(16))); /* half a V, widened */
typedef uint32_t U __attribute__((vector_size(16), may_alias));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint16_t H __attribute__((vector_size(8)));
typedef int8_t B __attribute__((vector_size(4)));

static inline V v_zero(void) {
    return (V){0};
}
static inline V v_set1(float f) {
    return (V){f, f, f, f};
}
static inline V v_load(const void *p) {
    V a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline void v_store(void *p, V a) {
    memcpy(p, &a, sizeof a);
}
static inline V v_add(V a, V b) {
    return a + b;
}
static inline V v_sub(V a, V b) {
    return a - b;
}
static inline V v_mul(V a, V b) {
    return a * b;
}
static inline V v_div(V a, V b) {
    return a / b;
}
static inline V v_fma(V a, V b, V c) {
    return a * b + c;
}
static inline V either(U mask, V a, V b) { /* a where the mask's bits are ones, else b */
    return (V)(((U)a & mask) | ((U)b & ~mask));
}
static inline V v_max(V a, V b) { /* b where either is NaN */
    return either((U)(a > b), a, b);
}
static inline V v_min(V a, V b) { /* b where either is NaN */
    return either((U)(a < b), a, b);
}
static inline V v_round_int(V a) { /* |a| < 2^22: added to 1.5 * 2^23, a float keeps no fraction */
    V big = v_set1(0x1.8p23f);
    return (a + big) - big;
}
static inline V exponent_of(U n) { /* 2^n, -126 <= n <= 127 */
    return (V)((n + 127u) << 23);
}
/* a * 2^n for whole |n| < 250, in two steps as in avx2_kernels.c. */
static inline V v_scale2(V a, V n) {
    I i = __builtin_convertvector(n, I), half = i >> 1;
    return a * exponent_of((U)half) * exponent_of((U)i - (U)half);
}
static inline V v_fold(V a) {
    return a;
}
static inline V v_fold_max(V a) {
    return a;
}

static inline U bf16_bits(V a) { /* a rounded to BF16, in the upper half of each lane; the lower half is zero */
    U u = (U)a, r = u + ((u >> 16) & 1u) + 0x7fffu;
    U nan = (U)(a != a); /* NOLINT(misc-redundant-expression): true of NaN alone */
    return (U)either(nan, (V)(u | 0x00400000u), (V)r) & 0xffff0000u;
}
static inline V v_round_bf16(V a) {
    return (V)bf16_bits(a);
}
static inline U wide_u16(const void *p) {
    H h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, U);
}
static inline V v_load_bf16(const void *p) {
    return (V)(wide_u16(p) << 16);
}
static inline void v_store_bf16(void *p, V a) {
    H h = __builtin_convertvector(bf16_bits(a) >> 16, H);
    memcpy(p, &h, sizeof h);
}
static inline V v_load_f16(const void *p) {
    uint16_t h[VL];
    memcpy(h, p, sizeof h);
    return (V){gy_f16_to_f32(h[0]), gy_f16_to_f32(h[1]), gy_f16_to_f32(h[2]), gy_f16_to_f32(h[3])};
}
static inline V v_load_i8(const void *p) {
    B b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(__builtin_convertvector(b, I), V);
}

/* 2 VL whole numbers of 8 bits times 1 / I8_UNIT as their even and their odd ones. */
#define I8_UNIT 1.0f
static inline void pair_load_i8(const void *p, V *even, V *odd) {
    U u = wide_u16(p);
    *even = __builtin_convertvector((I)(u << 24) >> 24, V);
    *odd = __builtin_convertvector((I)(u << 16) >> 24, V);
}

/* 2 VL elements as their even and their odd ones. */
static inline void pair_of_bf16(V a, V *even, V *odd) {
    U u = (U)a;
    *even = (V)(u << 16);
    *odd = (V)(u & 0xffff0000u);
}
static inline void pair_load_bf16(const void *p, V *even, V *odd) {
    pair_of_bf16(v_load(p), even, odd);
}
static inline void pair_load_f16(const void *p, V *even, V *odd) {
    uint16_t h[2 * VL];
    memcpy(h, p, sizeof h);
    *even = (V){gy_f16_to_f32(h[0]), gy_f16_to_f32(h[2]), gy_f16_to_f32(h[4]), gy_f16_to_f32(h[6])};
    *odd = (V){gy_f16_to_f32(h[1]), gy_f16_to_f32(h[3]), gy_f16_to_f32(h[5]), gy_f16_to_f32(h[7])};
}
/* The upper byte of each lane is E4M3. Moved into the place of an F32's bits it is 2^-120 of its value, subnormal
 * numbers as well: the product is exact. */
static inline V e4m3_of(U u) {
    return (V)((u & 0x80000000u) | ((u & 0x7f000000u) >> 4)) * v_set1(0x1p120f);
}
static inline void pair_load_e4m3(const void *p, V *even, V *odd) {
    U u = wide_u16(p);
    *even = e4m3_of(u << 24);
    *odd = e4m3_of(u << 16);
}
static inline void pair_store_bf16(void *p, V even, V odd) {
    v_store(p, (V)((bf16_bits(even) >> 16) | bf16_bits(odd)));
}
static inline void pair_load_f32(const void *p, V *even, V *odd) {
    V a = v_load(p), b = v_load((const char *)p + 16);
    *even = __builtin_shufflevector(a, b, 0, 2, 4, 6);
    *odd = __builtin_shufflevector(a, b, 1, 3, 5, 7);
}
static inline void pair_store_f32(void *p, V even, V odd) {
    v_store(p, __builtin_shufflevector(even, odd, 0, 4, 1, 5));
    v_store((char *)p + 16, __builtin_shufflevector(even, odd, 2, 6, 3, 7));
}

static inline D d_zero(void) {
    return (D){0};
}
static inline D d_low(V a) {
    return (D){(double)a[0], (double)a[1]};
}
static inline D d_high(V a) {
    return (D){(double)a[2], (double)a[3]};
}
static inline D d_add(D a, D b) {
    return a + b;
}
static inline D d_sub(D a, D b) {
    return a - b;
}
static inline D d_fma(D a, D b, D c) {
    return a * b + c;
}
static inline double d_sum(D a) {
    return a[0] + a[1];
}

#include "ops/cpu/kernels.inc"
