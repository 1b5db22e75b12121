/* E4M3 on the GPU: its values in BF16 and f32, exact. Without scales: those come behind the sums.
 *
 * Exponent and mantissa moved into the place of BF16's are 2^-120 of the value, subnormal numbers as well; one product
 * that has no rounding to do makes two BF16 of two bytes.
 */
#ifndef GY_OPS_CUDA_EIGHT_BITS_CUH
#define GY_OPS_CUDA_EIGHT_BITS_CUH

#include "ops/cuda/cuda_int.cuh"

typedef struct e4m3 {
    uint8_t code;
} e4m3;

static __device__ inline float get(const e4m3 *p, int64_t i) {
    uint32_t code = p[i].code;
    return __uint_as_float((code & 0x7fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
}

static __device__ inline __nv_bfloat162 two_of_bits(uint32_t u) {
    __nv_bfloat162 v;
    memcpy((void *)&v, &u, sizeof v);
    return v;
}
static __device__ inline uint32_t bits_of_two(__nv_bfloat162 v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* The lower two bytes, the first to the lower BF16. */
static __device__ inline uint32_t widen_two(uint32_t two) {
    const uint32_t high = __byte_perm(two, 0, 0x1404); /* each the upper byte of 16 bits */
    const uint32_t places = (high >> 4 & 0x07f007f0u) | (high & 0x80008000u);
    return bits_of_two(__hmul2_rn(two_of_bits(places), two_of_bits(0x7b807b80u))); /* 2^120 */
}

static __device__ inline uint32_t shared_two(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}

#endif
