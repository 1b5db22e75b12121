/* What attention's files say to one another: arguments of a launch, items of the plan, entries. */
#ifndef GY_OPS_CUDA_ATTN_INT_CUH
#define GY_OPS_CUDA_ATTN_INT_CUH

#include "ops/cuda/attn_tile.cuh"

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
typedef struct prompt_block {
    int64_t map_off;
    int32_t row, n_row, n_pos;         /* n_pos: of its longest row */
    int32_t deepest[2], shallowest[2]; /* positions among its first 64 queries, and among the others */
} prompt_block;

typedef struct chunk_item { /* one chunk of one decode row */
    int32_t row, chunk, n_chunk;
} chunk_item;

/* attn_prompt.cu: blocks of up to WIDE_QUERIES (wide) or NARROW_QUERIES queries. */
void cuda_attn_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n, int wide);
/* attn_decode.cu. part: [chunk][head][D + 2]: a, then m, l; rows of a single chunk get y instead. */
void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_item *items, int32_t n, float *part);

#endif
