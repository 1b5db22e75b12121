/* Two BF16 in a word, the lower half first, and rounding to them by the
 * hardware.
 *
 * The hardware rounds as bf16_bits (cuda_int.cuh) does, but for NaN, of which
 * it makes 0x7fff whatever the payload. An addition or product whose result is
 * NaN gives 0x7fffffff on these machines, of which bf16_bits makes 0x7fff too.
 * So what arithmetic gave may be rounded here, in a quarter of the
 * instructions; what was read from memory may not.
 */
#ifndef GY_OPS_CUDA_BF16_TWO_CUH
#define GY_OPS_CUDA_BF16_TWO_CUH

#include "ops/cuda/row_math.cuh"

static __device__ inline uint32_t two_of(float lo, float hi) {
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&h;
}
static __device__ inline float low(uint32_t two) {
    return __uint_as_float(two << 16);
}
static __device__ inline float high(uint32_t two) {
    return __uint_as_float(two & 0xffff0000u);
}

static __device__ inline uint32_t add_two(uint32_t a, uint32_t b) {
    return two_of(low(a) + low(b), high(a) + high(b));
}

/* normed and add_squares of row_math.cuh. */
static __device__ inline uint32_t normed_two(uint32_t x, float scale, uint32_t w) {
    uint32_t y = two_of(low(x) * scale, high(x) * scale);
    return two_of(low(y) * low(w), high(y) * high(w));
}
static __device__ inline double add_squares_two(double sum, uint32_t x) {
    sum += (double)low(x) * (double)low(x);
    return sum + (double)high(x) * (double)high(x);
}

/* rotate_pair of row_math.cuh, and its rounding: pairs (low a, low b) and (high
 * a, high b), in place. */
static __device__ inline void rotate_two(int round_each, uint32_t *a, uint32_t *b, const float c[2], const float s[2]) {
    float a0 = low(*a), a1 = high(*a), b0 = low(*b), b1 = high(*b);
    float ac0 = a0 * c[0], ac1 = a1 * c[1], bs0 = b0 * s[0], bs1 = b1 * s[1];
    float bc0 = b0 * c[0], bc1 = b1 * c[1], as0 = a0 * s[0], as1 = a1 * s[1];
    if (round_each) {
        uint32_t ac = two_of(ac0, ac1), bs = two_of(bs0, bs1), bc = two_of(bc0, bc1), as = two_of(as0, as1);
        ac0 = low(ac), ac1 = high(ac), bs0 = low(bs), bs1 = high(bs);
        bc0 = low(bc), bc1 = high(bc), as0 = low(as), as1 = high(as);
    }
    *a = two_of(ac0 - bs0, ac1 - bs1);
    *b = two_of(bc0 + as0, bc1 + as1);
}

/* silu_mul_of of row_math.cuh, and its rounding. The division is __fdiv_rn's
 * own sequence without its test for operands that it does not serve, which are
 * those that are_plain refuses. */
static __device__ inline float divide_plain(float g, float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    float q = __fmul_rn(g, r);
    q = __fmaf_rn(r, __fmaf_rn(-d, q, g), q);
    return __fmaf_rn(r, __fmaf_rn(-d, q, g), q);
}
static __device__ inline uint32_t silu_mul_two_plain(uint32_t g, uint32_t u) {
    float g0 = low(g), g1 = high(g);
    uint32_t s = two_of(divide_plain(g0, 1.0f + expf(-g0)), divide_plain(g1, 1.0f + expf(-g1)));
    return two_of(low(s) * low(u), high(s) * high(u));
}
static __device__ inline uint32_t silu_mul_two(uint32_t g, uint32_t u) {
    return two_of(silu_mul_of<bf16>(low(g), low(u)), silu_mul_of<bf16>(high(g), high(u)));
}
/* Are all eight g between 2^-60 and 64 in size? */
static __device__ inline int are_plain(const uint32_t g[4]) {
    const uint32_t size = 0x7fff7fffu, most = 0x4280, least = 0x2180;
    uint32_t up = __vmaxu2(__vmaxu2(g[0] & size, g[1] & size), __vmaxu2(g[2] & size, g[3] & size));
    uint32_t down = __vminu2(__vminu2(g[0] & size, g[1] & size), __vminu2(g[2] & size, g[3] & size));
    return (up & 0xffff) <= most && up >> 16 <= most && (down & 0xffff) >= least && down >> 16 >= least;
}

#endif
