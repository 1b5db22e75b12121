/* The operations of the reference backend, for its table in ref.c. Contracts: ops/ops.h. */
#ifndef GY_OPS_REF_REF_OPS_H
#define GY_OPS_REF_REF_OPS_H

#include "ops/ops.h"

void gy_ref_embed(gy_backend *be, const gy_embed_args *a);
void gy_ref_norm(gy_backend *be, const gy_norm_args *a);
void gy_ref_linear(gy_backend *be, const gy_linear_args *a);
void gy_ref_rope_table(gy_backend *be, const gy_rope_table_args *a);
void gy_ref_rope_kv(gy_backend *be, const gy_rope_kv_args *a);
void gy_ref_attn(gy_backend *be, const gy_attn_args *a);
void gy_ref_residual(gy_backend *be, const gy_residual_args *a);
void gy_ref_silu_mul(gy_backend *be, const gy_silu_mul_args *a);
void gy_ref_concat(gy_backend *be, const gy_concat_args *a);
void gy_ref_gather(gy_backend *be, const gy_move_args *a);
void gy_ref_scatter(gy_backend *be, const gy_move_args *a);
void gy_ref_gate(gy_backend *be, const gy_gate_args *a);
void gy_ref_latent_diff(gy_backend *be, const gy_latent_diff_args *a);
void gy_ref_latent_init(gy_backend *be, const gy_latent_init_args *a);

#endif
