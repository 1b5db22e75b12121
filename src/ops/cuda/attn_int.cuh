/* What attention's files say to one another: arguments of a launch, items of the plan, entries. */
#ifndef GY_OPS_CUDA_ATTN_INT_CUH
#define GY_OPS_CUDA_ATTN_INT_CUH

#include "ops/cuda/attn_tile.cuh"

#include <cuda.h> /* CUtensorMap; nothing of the driver is linked */

enum { WIDE_QUERIES = 128, NARROW_QUERIES = 64 }; /* of a block for wgmma, for mma */

typedef struct attn_args { /* of a launch, by value */
    const bf16 *q;
    const bf16 *kv; /* or rows of I8 */
    const int32_t *map, *pos;
    const int64_t *map_off;
    bf16 *y;
    int32_t q_stride, n_head, group;
    float scale; /* times log2(e); above 0 */
    kv_shape shape;
    int is_i8;
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

/* attn_prompt.cu: blocks of up to WIDE_QUERIES on Hopper; of up to NARROW_QUERIES. */
void cuda_attn_wide(cuda_be *c, int32_t d, const attn_args &a, const prompt_work &work, kv_boxes *boxes);
void cuda_attn_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n);
/* attn_decode.cu. part: [chunk][head][D + 2]: a, then m, l; rows of a single chunk get y instead. */
void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_item *items, int32_t n, float *part);

#endif
