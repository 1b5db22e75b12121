/* What a family's file provides: config.json -> description, and which tensors hold which weights. One file per family
 * (ouro.c, huginn.c, nanbeige.c), the same order in each: head, config, weight table, entry. families.c lists them.
 */
#ifndef GY_MODEL_FAMILY_H
#define GY_MODEL_FAMILY_H

#include "base/json.h"
#include "model/desc.h"

/* Where a tensor goes. The first group belongs to the model, the second to a layer. */
typedef enum gy_role {
    GY_ROLE_EMBED,
    GY_ROLE_HEAD,
    GY_ROLE_HEAD_COPY, /* a stored duplicate of the embedding: checked, not used */
    GY_ROLE_FINAL_NORM,
    GY_ROLE_GATE_W,
    GY_ROLE_GATE_B,
    GY_ROLE_ADAPTER,
    GY_ROLE_ROPE_TABLE,             /* optional: f32 cos and sin */
    GY_ROLE_LAYER,                  /* from here on: one per layer */
    GY_ROLE_NORM_0 = GY_ROLE_LAYER, /* before attention */
    GY_ROLE_NORM_1,                 /* after attention (branch or sum) */
    GY_ROLE_NORM_2,                 /* before the MLP */
    GY_ROLE_NORM_3,                 /* after the MLP */
    GY_ROLE_Q,
    GY_ROLE_K,
    GY_ROLE_V,
    GY_ROLE_QKV,
    GY_ROLE_QK_BIAS,
    GY_ROLE_O,
    GY_ROLE_GATE,
    GY_ROLE_UP,
    GY_ROLE_GATE_UP,
    GY_ROLE_DOWN
} gy_role;

/* Dimensions by name, so that a table reads like docs/models. */
typedef enum gy_dim {
    GY_DIM_END, /* no further dimension */
    GY_DIM_1,
    GY_DIM_2,
    GY_DIM_VOCAB,
    GY_DIM_EMBD,
    GY_DIM_2EMBD,
    GY_DIM_FF,
    GY_DIM_2FF,
    GY_DIM_Q,   /* n_head * head_dim */
    GY_DIM_KV,  /* n_head_kv * head_dim */
    GY_DIM_QKV, /* q + 2 kv */
    GY_DIM_HEAD,
    GY_DIM_HEAD_DIM,
    GY_DIM_HALF, /* head_dim / 2 */
    GY_DIM_POS   /* max_pos */
} gy_dim;

typedef struct gy_weight_row {
    gy_role role;
    const char *name; /* layer roles: appended to the stage's prefix and the layer's number */
    gy_dim shape[6];
} gy_weight_row;

typedef struct gy_family {
    const char *name;       /* "ouro" */
    const char *model_type; /* config.json's model_type */
    gy_status (*read_config)(const gy_jv *cfg, gy_err *err, gy_model_desc *out);
    const gy_weight_row *weights;
    size_t n_weight;
    const char *stage_prefix[GY_STAGES]; /* "model.layers." ; NULL where the family has no such layers */

} gy_family;

extern const gy_family gy_family_ouro, gy_family_huginn, gy_family_nanbeige;

/* By model_type; NULL with err naming what was found and what is known. */
const gy_family *gy_family_find(const gy_jv *cfg, gy_err *err);
/* The fields that Ouro and Nanbeige share with Llama: rms_norm_eps, rope_theta (also inside rope_parameters), head_dim
 * and key/value heads by default, layer_types all full_attention, bos, eos, pad; and the checks on shapes that go with
 * them. */
gy_status gy_family_read_llama(const gy_jv *cfg, double eps_default, double theta_default, gy_model_desc *d,
                               gy_err *err);
/* bos_token_id, eos_token_id, pad_token_id; ids outside the vocabulary are refused. */
gy_status gy_family_read_ids(const gy_jv *cfg, gy_model_desc *d, gy_err *err);
int64_t gy_dim_value(gy_dim dim, const gy_model_desc *d);

#endif
