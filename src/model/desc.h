/* A model is data: the description that the loop driver (loop.h) runs, whatever the family (ARCHITECTURE.md, parts).
 * Plain open structs, model lifetime, read-only after load.
 *
 *   e = embed(token) * embed_scale                                            prelude: n_layer[PRELUDE] blocks
 *   s = e, or with inject: s_0 (zero or noise), and e stays beside it
 *   for depth = 0 ..:  with inject: s = adapter([s, e]);  n_layer[CORE] blocks;  with loop_norm: s = RMS(s; final)
 *   x = s; with coda_norm: x = RMS(x; final);  n_layer[CODA] blocks;  with head_norm: x = RMS(x; final);  logits = head
 * x
 *
 *              norms     inject  loop_norm  coda_norm  head_norm  layers p/c/c   rope
 *   Ouro       BRANCH    -       yes        -          -          0/24|48/0      half
 *   Nanbeige   PRE       -       yes (*)    -          (*)        0/22/0         half
 *   Huginn     SUM       yes     -          yes        yes        2/4/2          pairs
 *   (*) skip_loop_final_norm = true moves the norm from the loops to the head.
 */
#ifndef GY_MODEL_DESC_H
#define GY_MODEL_DESC_H

#include "ops/ops.h"

typedef enum gy_stage { GY_PRELUDE, GY_CORE, GY_CODA, GY_STAGES } gy_stage;

enum { GY_MAX_EOS = 8 };

typedef struct gy_model_desc {
    const char *family; /* static: "ouro", "huginn", "nanbeige" */
    int32_t n_vocab, n_embd, n_ff, n_head, n_head_kv, head_dim;
    int32_t n_layer[GY_STAGES];
    int32_t n_loop;  /* trained depth */
    int32_t max_pos; /* longest context the model was made for */
    float eps;
    gy_residual_kind norms;
    gy_rope_kind rope;
    double rope_theta;
    int rope_round; /* cos, sin and each product rounded to act (ouro.md, rounding); 0: f32 inside (huginn.md) */
    float embed_scale;
    int inject, loop_norm, coda_norm, head_norm;
    int tied, has_gate, qk_bias;
    float state_std, state_mult; /* initial state with inject: truncated normal (huginn.md, initial state) */
    int32_t bos, pad;            /* -1: none */
    int32_t n_eos, eos[GY_MAX_EOS];
} gy_model_desc;

/* KV layers of the two groups (kv.h): core, and prelude + coda together. */
static inline int32_t gy_desc_core_layers(const gy_model_desc *d) {
    return d->n_layer[GY_CORE];
}
static inline int32_t gy_desc_boundary_layers(const gy_model_desc *d) {
    return d->n_layer[GY_PRELUDE] + d->n_layer[GY_CODA];
}

#endif
