/* Rope on 16 bytes at a time: for the kernel that rotates a batch (rope.cu) and the one that rotates a row where it
 * attends (attn_decode.cu). No threads, no memory but the bias.
 */
#ifndef GY_OPS_CUDA_ROPE_WIDE_CUH
#define GY_OPS_CUDA_ROPE_WIDE_CUH

#include "ops/cuda/bf16_two.cuh"

enum { WIDE = 8 };
typedef struct __align__(16) piece {
    uint32_t x[WIDE / 2];
}
piece;

static __device__ inline void add_bias(piece *v, const bf16 *bias) {
    piece b = *(const piece *)bias;
#pragma unroll
    for (int k = 0; k < WIDE / 2; k++) v->x[k] = add_two(v->x[k], b.x[k]);
}

/* Two pairs of neighbours, in words of their own. */
static __device__ inline void rotate_neighbours(int round_each, uint32_t *w0, uint32_t *w1, const float c[2],
                                                const float s[2]) {
    uint32_t even = __byte_perm(*w0, *w1, 0x5410), odd = __byte_perm(*w0, *w1, 0x7632);
    rotate_two(round_each, &even, &odd, c, s);
    *w0 = __byte_perm(even, odd, 0x5410);
    *w1 = __byte_perm(even, odd, 0x7632);
}

/* 8 pairs: with halves a pair is one element of each piece, with neighbours two elements of one. */
static __device__ inline void rotate_wide(int is_pairs, int round_each, piece *v0, piece *v1, const float (&c)[WIDE],
                                          const float (&s)[WIDE]) {
#pragma unroll
    for (int k = 0; k < WIDE / 2; k++) {
        if (is_pairs) {
            uint32_t *w = k < WIDE / 4 ? v0->x + 2 * k : v1->x + 2 * k - WIDE / 2;
            rotate_neighbours(round_each, w, w + 1, c + 2 * k, s + 2 * k);
        } else {
            rotate_two(round_each, v0->x + k, v1->x + k, c + 2 * k, s + 2 * k);
        }
    }
}

#endif
