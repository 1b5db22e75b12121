/* Ouro (ByteDance; "Scaling Latent Reasoning via Looped Language Models"; HF class OuroForCausalLM;
 * docs/models/ouro.md).
 *
 * Sandwich norms on the branch: h = h + RMS(branch). The final norm stands at the end of EVERY loop, and its output is
 * at once the next loop's input, the gate's input and the LM head's input. Easy to get wrong: `input_layernorm_2` is
 * the attention's post-norm and `post_attention_layernorm` the MLP's pre-norm. RoPE position is the token's in every
 * loop.
 */
#include "model/config.h"
#include "model/family.h"

#define AT(field) offsetof(gy_model_desc, field)

static const gy_cfg_row config_rows[] = {
    {"vocab_size", GY_CFG_INT, 1, AT(n_vocab), 2, 1 << 24, NULL},
    {"hidden_size", GY_CFG_INT, 1, AT(n_embd), 2, 1 << 17, NULL},
    {"intermediate_size", GY_CFG_INT, 1, AT(n_ff), 1, 1 << 20, NULL},
    {"num_hidden_layers", GY_CFG_INT, 1, AT(n_layer[GY_CORE]), 1, 1024, NULL},
    {"num_attention_heads", GY_CFG_INT, 1, AT(n_head), 1, 4096, NULL},
    {"num_key_value_heads", GY_CFG_INT, 0, AT(n_head_kv), 1, 4096, NULL},
    {"head_dim", GY_CFG_INT, 0, AT(head_dim), 2, 1024, NULL},
    {"max_position_embeddings", GY_CFG_INT, 1, AT(max_pos), 1, 1 << 24, NULL},
    {"total_ut_steps", GY_CFG_INT, 1, AT(n_loop), 1, 256, NULL},
    {"tie_word_embeddings", GY_CFG_BOOL, 0, AT(tied), 0, 0, NULL},
    {"hidden_act", GY_CFG_STR, 0, 0, 0, 0, "silu"},
    {"layer_types", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},     /* gy_family_read_llama */
    {"rope_parameters", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* gy_family_read_llama */
    {"rms_norm_eps", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},    /* gy_family_read_llama */
    {"rope_theta", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},      /* gy_family_read_llama */
    {"rope_scaling", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"use_sliding_window", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"sliding_window", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"attention_bias", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"mlp_bias", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"early_exit_step", GY_CFG_IGNORE, 0, 0, 0, 0,
     NULL}, /* a default of the published code's generate(), not of the model */
    {"chunk_size", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
};

static const gy_weight_row weight_rows[] = {
    {GY_ROLE_EMBED, "model.embed_tokens.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_FINAL_NORM, "model.norm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_GATE_W, "model.early_exit_gate.weight", {GY_DIM_1, GY_DIM_EMBD}},
    {GY_ROLE_GATE_B, "model.early_exit_gate.bias", {GY_DIM_1}},
    {GY_ROLE_HEAD, "lm_head.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_NORM_0, "input_layernorm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_1, "input_layernorm_2.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_2, "post_attention_layernorm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_3, "post_attention_layernorm_2.weight", {GY_DIM_EMBD}},
    {GY_ROLE_Q, "self_attn.q_proj.weight", {GY_DIM_Q, GY_DIM_EMBD}},
    {GY_ROLE_K, "self_attn.k_proj.weight", {GY_DIM_KV, GY_DIM_EMBD}},
    {GY_ROLE_V, "self_attn.v_proj.weight", {GY_DIM_KV, GY_DIM_EMBD}},
    {GY_ROLE_O, "self_attn.o_proj.weight", {GY_DIM_EMBD, GY_DIM_Q}},
    {GY_ROLE_GATE, "mlp.gate_proj.weight", {GY_DIM_FF, GY_DIM_EMBD}},
    {GY_ROLE_UP, "mlp.up_proj.weight", {GY_DIM_FF, GY_DIM_EMBD}},
    {GY_ROLE_DOWN, "mlp.down_proj.weight", {GY_DIM_EMBD, GY_DIM_FF}},
};

static gy_status read_config(const gy_jv *cfg, gy_err *err, gy_model_desc *out) {
    gy_model_desc d = {.family = "ouro",
                       .norms = GY_RESIDUAL_BRANCH,
                       .rope = GY_ROPE_HALF,
                       .rope_round = 1,
                       .embed_scale = 1.0f,
                       .loop_norm = 1,
                       .has_gate = 1};
    GY_TRY(gy_cfg_read(cfg, config_rows, sizeof config_rows / sizeof config_rows[0], &d, err));
    GY_TRY(gy_family_read_llama(cfg, 1e-6, 1e6, &d, err));
    *out = d;
    return GY_OK;
}

const gy_family gy_family_ouro = {
    .name = "ouro",
    .model_type = "ouro",
    .read_config = read_config,
    .weights = weight_rows,
    .n_weight = sizeof weight_rows / sizeof weight_rows[0],
    .stage_prefix = {[GY_CORE] = "model.layers."},
};
