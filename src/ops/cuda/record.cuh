/* What is called between record_begin and record_end, kept as a list of calls (record.cu), and what attention (attn.cu)
 * and products offer for that.
 */
#ifndef GY_OPS_CUDA_RECORD_CUH
#define GY_OPS_CUDA_RECORD_CUH

#include "ops/cuda/cuda_int.cuh"

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef enum call_kind {
    CALL_EMBED,
    CALL_NORM,
    CALL_LINEAR,
    CALL_ROPE_KV,
    CALL_ATTN,
    CALL_RESIDUAL,
    CALL_RESIDUAL_NORM,
    CALL_SILU_MUL,
    CALL_CONCAT,
    CALL_GATHER,
    CALL_SCATTER,
    CALL_GATE,
    CALL_LATENT_DIFF
} call_kind;

/* Structs that arguments point to (a weight, a view) are read during a call only: copies lie beside. */
typedef struct record_call {
    call_kind kind;
    union {
        gy_embed_args embed;
        gy_norm_args norm;
        gy_linear_args linear;
        gy_rope_kv_args rope_kv;
        gy_attn_args attn;
        gy_residual_args residual;
        gy_residual_norm_args residual_norm;
        gy_silu_mul_args silu_mul;
        gy_concat_args concat;
        gy_move_args move;
        gy_gate_args gate;
        gy_latent_diff_args latent_diff;
    } a;
    gy_weight w;
    gy_kv_view kv;
} record_call;

/* A call that is kept instead of carried out; NULL: nothing is kept now. The caller fills in `a`. */
record_call *cuda_record_call(cuda_be *c, call_kind kind);
/* Its copies are made: w, kv NULL where it has none. */
void cuda_record_copies(record_call *call, const gy_weight *w, const gy_kv_view *kv);

/* gy_ops */
void *cuda_record_open(gy_backend *be, void *scratch, size_t bytes);
void cuda_record_close(gy_backend *be, void *record);
int32_t cuda_record_rows(gy_backend *be, int32_t n_row);
int cuda_record_begin(gy_backend *be, void *record, const gy_record_key *key);
void cuda_record_end(gy_backend *be, void *record);

/* ---- what a recorded launch may be ------------------------------------------------------------------------------- */

/* What a recorded launch of attention depends on beside its arguments. Grids are rounded up, so that one recording
 * serves while contexts grow; what lies beyond the plan is blank and does nothing. */
typedef struct attn_recorded {
    int64_t n_chunk; /* rounded up */
    int64_t n_join;  /* of the batch's rows: all or 0; no gaps: compared as bytes */
    const void *chunk, *join, *part;
} attn_recorded;

/* Makes the plan of the rows that begin_rows told, for the heads of the attention before it, outside of any recording.
 * 0: these rows cannot be recorded (prompts among them, other head sizes, more chunks than one launch has room for). */
int cuda_attn_plan_ahead(cuda_be *c, attn_recorded *out);
/* Whether cuda_attn_run launches the rounded grids. */
void cuda_attn_record(cuda_be *c, int on);

/* linear(gate_up) and silu_mul in one: y [n_row, n_ff]. 0: nothing was done, this product is not our kernel's. */
int cuda_linear_silu(gy_backend *be, const void *x, const gy_weight *w, int32_t n_row, void *y);
/* Whether our products let the next kernel begin when their last weights are asked for, not when they end. */
void cuda_lt_let_next(cuda_be *c, int on);

#endif
