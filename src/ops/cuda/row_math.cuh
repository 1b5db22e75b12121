/* The arithmetic of norms, silu and rope, once for all kernels that do some of it. No memory, no threads: who owns
 * which element is the kernels' matter.
 */
#ifndef GY_OPS_CUDA_ROW_MATH_CUH
#define GY_OPS_CUDA_ROW_MATH_CUH

#include "ops/cuda/cuda_int.cuh"

/* Thread t of ROW_THREADS owns elements [LANE t + LANE ROW_THREADS i, + LANE) of a row that is summed. */
enum { ROW_THREADS = 256, LANE = 8 };

/* 1 / sqrt(mean of squares + eps); the sum is f64. */
static __device__ inline float scale_of(double sum, int32_t n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn((float)(sum / (double)n) + eps));
}

template <typename T> static __device__ inline double add_squares(double sum, const float v[LANE]) {
#pragma unroll
    for (int i = 0; i < LANE; i++) sum += (double)v[i] * (double)v[i];
    return sum;
}

template <typename T> static __device__ inline float normed(float x, float scale, float w) {
    return round_to<T>(round_to<T>(x * scale) * w);
}

/* Not yet rounded to T. */
template <typename T> static __device__ inline float silu_mul_of(float g, float u) {
    return round_to<T>(__fdiv_rn(g, 1.0f + expf(-g))) * u;
}

/* One pair of a head, rotated; not yet rounded to T. */
template <typename T>
static __device__ inline void rotate_pair(int round_each, float v0, float v1, float c, float s, float *out0,
                                          float *out1) {
    float p0 = v0 * c, p1 = v1 * s, p2 = v1 * c, p3 = v0 * s;
    if (round_each) {
        p0 = round_to<T>(p0), p1 = round_to<T>(p1);
        p2 = round_to<T>(p2), p3 = round_to<T>(p3);
    }
    *out0 = p0 - p1;
    *out1 = p2 + p3;
}

#endif
