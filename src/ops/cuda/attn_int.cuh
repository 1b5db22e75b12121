/* What attention's files say to one another: arguments of a launch, items of the plan, entries. */
#ifndef GY_OPS_CUDA_ATTN_INT_CUH
#define GY_OPS_CUDA_ATTN_INT_CUH

#include "ops/cuda/attn_tile.cuh"

#include <cuda.h> /* CUtensorMap; nothing of the driver is linked */

enum { WIDE_QUERIES = 128, NARROW_QUERIES = 64 }; /* of a block for wgmma, for mma */

typedef struct attn_args { /* of a launch, by value */
    const bf16 *q;
    const bf16 *kv;
    const int32_t *map, *pos;
    const int64_t *map_off;
    bf16 *y;
    int32_t q_stride, n_head, group;
    float scale; /* times log2(e); above 0 */
    kv_shape shape;
} attn_args;

/* Rows row.. of a run; queries in the order of rows, then heads of the KV head's group. */
typedef struct __align__(16) prompt_block {
    int64_t map_off;
    int32_t row, n_row, n_pos;         /* n_pos: of its longest row */
    int32_t deepest[2], shallowest[2]; /* positions among its first 64 queries, and among the others */
    int32_t first_tile;                /* where it begins: 0, or the chunk that it is one piece of */
    int32_t n_part;                    /* 0: it walks all and writes y. Else partial sums of one chunk, as decoding */
    int32_t kv_head;                   /* of a wide block */
    int64_t part;                      /* leaves them: n_part entries for each row, its first row's at part */
}
prompt_block;

/* Wide blocks as the multiprocessors take them: thread block w walks item[w], item[w + n_walk], ..., until there is one
 * without rows or n_round of them are done. */
typedef struct prompt_work {
    const prompt_block *item;
    float *part; /* as of cuda_attn_chunks */
    int32_t n_walk, n_round;
} prompt_work;

/* The pool as the copy engine sees it: a box is 16 positions of one block, one head, one panel's elements. */
typedef struct kv_boxes {
    CUtensorMap map;
    const void *base; /* what map was made of */
    int32_t n_layer, width, d;
    int has; /* 0: the driver gave none, so positions are copied one by one */
} kv_boxes;

/* One chunk of one decode row. Position and map row stand here too: what is read through them begins one read of memory
 * sooner. */
typedef struct __align__(16) chunk_item {
    int32_t row, chunk, n_chunk, n_pos; /* row -1: blank */
    int64_t map_off;
}
chunk_item;

/* What a launch of decode rows does beside attention. */
typedef struct chunk_extra {
    const float *cos, *sin; /* cos NULL: q is rotated, k and v are in their slots. Else q, k, v are as the product left
                               them behind a.q, and each row's last chunk fills the slot */
    const bf16 *q_bias, *k_bias;
    const int32_t *slot;
    bf16 *kv;
    int32_t is_pairs, round_each;
    int32_t is_ahead; /* with cos: what lies in the slots of earlier positions, map and plan were there before the graph
                         began that this launch is a node of: they are read before the kernel in front has ended */
    uint32_t
        *arrived; /* [row][kv head], 0 between launches: the last chunk to arrive joins all. NULL: the join kernel */
} chunk_extra;

/* Element e of the n chunks from p on, `step` floats apart, joined in order: y's bits. */
template <int D> static __device__ inline uint16_t join_chunks(const float *p, int64_t step, int32_t n, int e) {
    float m = -INFINITY, l = 0.0f, sum = 0.0f;
#pragma unroll 4
    for (int32_t t = 0; t < n; t++, p += step) {
        float2 ml = __ldcg((const float2 *)(p + D));
        float f_old, f_new;
        attn_factors(m, ml.x, &m, &f_old, &f_new);
        l = attn_join(l, f_old, ml.y, f_new);
        sum = attn_join(sum, f_old, __ldcg(p + e), f_new);
    }
    return attn_result(sum, __frcp_rn(l));
}

/* attn_prompt.cu: blocks of up to WIDE_QUERIES on Hopper; of up to NARROW_QUERIES. */
void cuda_attn_wide(cuda_be *c, int32_t d, const attn_args &a, const prompt_work &work, kv_boxes *boxes);
void cuda_attn_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n);
/* attn_decode.cu. part: [chunk][head][D + 2]: a, then m, l; rows of a single chunk get y instead. */
void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_extra &more, const chunk_item *items,
                      int32_t n, float *part);
/* Its kernels are on the device from then on: none is brought there while a stream is recorded. */
void cuda_attn_chunks_ready(void);

#endif
