/* A stage as recorded CUDA graphs (graph.cu), and what attention (attn.cu) offers for that. */
#ifndef GY_OPS_CUDA_GRAPH_CUH
#define GY_OPS_CUDA_GRAPH_CUH

#include "ops/cuda/cuda_int.cuh"

/* What a recorded launch of attention depends on beside its arguments. Grids are rounded up, so that one recording
 * serves while contexts grow; what lies beyond the plan is blank and does nothing. */
typedef struct attn_recorded {
    int64_t n_chunk; /* rounded up */
    int64_t n_join;  /* of the batch's rows: all or 0; no gaps: compared as bytes */
    const void *chunk, *join, *part;
} attn_recorded;

/* Makes the plan of the rows that begin_rows told, outside of any recording. 0: these rows cannot be recorded (prompts
 * among them, other head sizes, more chunks than one launch has room for). */
int cuda_attn_plan_ahead(cuda_be *c, int32_t n_head, int32_t n_head_kv, int32_t head_dim, attn_recorded *out);
/* Whether cuda_attn_run launches the rounded grids. */
void cuda_attn_record(cuda_be *c, int on);

/* gy_ops.stack */
void *cuda_graph_open(gy_backend *be, const gy_stack_desc *d);
void cuda_graph_close(gy_backend *be, void *stack);
int cuda_graph_run(gy_backend *be, void *stack, const gy_stack_args *a);

#endif
