/* A stage as recorded CUDA graphs (graph.cu), and what attention (attn.cu) offers for that. */
#ifndef GY_OPS_CUDA_GRAPH_CUH
#define GY_OPS_CUDA_GRAPH_CUH

#include "ops/cuda/cuda_int.cuh"

/* What a recorded launch of attention depends on beside its arguments. Grids are rounded up, so that one recording
 * serves while contexts grow; what lies beyond the plan is blank and does nothing. */
typedef struct attn_recorded {
    int64_t n_chunk;  /* rounded up */
    int64_t n_join;   /* of the batch's rows: all or 0; no gaps: compared as bytes */
    int64_t is_apart; /* no two rows stand on one map row, so attention may do rope's work */
    const void *chunk, *join, *part;
} attn_recorded;

/* Makes the plan of the rows that begin_rows told, outside of any recording. 0: these rows cannot be recorded (prompts
 * among them, other head sizes, more chunks than one launch has room for). */
int cuda_attn_plan_ahead(cuda_be *c, int32_t n_head, int32_t n_head_kv, int32_t head_dim, attn_recorded *out);
/* Whether cuda_attn_run launches the rounded grids. */
void cuda_attn_record(cuda_be *c, int on);

/* Attention of the rows that cuda_attn_plan_ahead was told of, in a recording. rope: what is to be done before it (by
 * the same launch where rows are apart), or NULL. is_ahead: chunk_extra. arrived: [n_row][n_head_kv] zeros, which are
 * zeros again afterwards, if the join is to be done in the same launch, or NULL. */
void cuda_attn_recorded(gy_backend *be, const gy_attn_args *a, const gy_rope_kv_args *rope, int is_ahead,
                        uint32_t *arrived);

/* linear(gate_up) and silu_mul in one: y [n_row, n_ff]. 0: nothing was done, this product is not our kernel's. */
int cuda_linear_silu(gy_backend *be, const void *x, const gy_weight *w, int32_t n_row, void *y);
/* residual_norm and the product of its y (is_silu: and silu_mul of that) in one, for few rows. h_out, not r->r.h, gets
 * the new h; r->y is not touched. 0: nothing was done. */
int cuda_linear_norm(gy_backend *be, const gy_residual_norm_args *r, void *h_out, const gy_weight *w, int is_silu,
                     void *y);
/* Whether our products let the next kernel begin when their last weights are on the way, not when they end. */
void cuda_lt_let_next(cuda_be *c, int on);

/* gy_ops.stack */
void *cuda_graph_open(gy_backend *be, const gy_stack_desc *d);
void cuda_graph_close(gy_backend *be, void *stack);
int cuda_graph_run(gy_backend *be, void *stack, const gy_stack_args *a);

#endif
