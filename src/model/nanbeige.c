/* Nanbeige4.2 (HF class NanbeigeForCausalLM; docs/models/nanbeige.md).
 *
 * A plain pre-norm Llama block run num_loops times; heads are wider than the hidden size (48 x 128 against 3072) and
 * grouped 6 to 1. The final norm stands at the end of each loop, unless skip_loop_final_norm moves it to the very end.
 * No gate. The number of loops is the published code's rule: length of loop_loss_weights + 1 if that list is not empty,
 * else num_loops. A file without num_loops is refused rather than run once in silence (a known way to get gibberish).
 */
#include "model/config.h"
#include "model/family.h"

#define AT(field) offsetof(gy_model_desc, field)

/* Switches of the published code that change the forward pass and that no released checkpoint turns on: refused by name
 * by the general rule of config.h; the ones known by name stand here so that the list can be read. */
static const gy_cfg_row config_rows[] = {
    {"vocab_size", GY_CFG_INT, 1, AT(n_vocab), 2, 1 << 24, NULL},
    {"hidden_size", GY_CFG_INT, 1, AT(n_embd), 2, 1 << 17, NULL},
    {"intermediate_size", GY_CFG_INT, 1, AT(n_ff), 1, 1 << 20, NULL},
    {"num_hidden_layers", GY_CFG_INT, 1, AT(n_layer[GY_CORE]), 1, 1024, NULL},
    {"num_attention_heads", GY_CFG_INT, 1, AT(n_head), 1, 4096, NULL},
    {"num_key_value_heads", GY_CFG_INT, 0, AT(n_head_kv), 1, 4096, NULL},
    {"head_dim", GY_CFG_INT, 0, AT(head_dim), 2, 1024, NULL},
    {"max_position_embeddings", GY_CFG_INT, 1, AT(max_pos), 1, 1 << 24, NULL},
    {"num_loops", GY_CFG_INT, 1, AT(n_loop), 1, 256, NULL},
    {"tie_word_embeddings", GY_CFG_BOOL, 0, AT(tied), 0, 0, NULL},
    {"skip_loop_final_norm", GY_CFG_BOOL, 0, AT(head_norm), 0, 0, NULL},
    {"hidden_act", GY_CFG_STR, 0, 0, 0, 0, "silu"},
    {"loop_loss_weights", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* counted below */
    {"rms_norm_eps", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},      /* gy_family_read_llama */
    {"rope_theta", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},        /* gy_family_read_llama */
    {"rope_parameters", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},   /* gy_family_read_llama */
    {"layer_types", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},       /* gy_family_read_llama */
    {"rope_scaling", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"attention_bias", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"mlp_bias", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"qk_norm", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"use_sliding_window", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"sliding_window", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"loop_share_kv", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"enable_double_loop_split", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"double_loop_split", GY_CFG_OFF, 0, 0, 0, 0, NULL},
};

static const gy_weight_row weight_rows[] = {
    {GY_ROLE_EMBED, "model.embed_tokens.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_FINAL_NORM, "model.norm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_HEAD, "lm_head.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_NORM_0, "input_layernorm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_2, "post_attention_layernorm.weight", {GY_DIM_EMBD}},
    {GY_ROLE_Q, "self_attn.q_proj.weight", {GY_DIM_Q, GY_DIM_EMBD}},
    {GY_ROLE_K, "self_attn.k_proj.weight", {GY_DIM_KV, GY_DIM_EMBD}},
    {GY_ROLE_V, "self_attn.v_proj.weight", {GY_DIM_KV, GY_DIM_EMBD}},
    {GY_ROLE_O, "self_attn.o_proj.weight", {GY_DIM_EMBD, GY_DIM_Q}},
    {GY_ROLE_GATE, "mlp.gate_proj.weight", {GY_DIM_FF, GY_DIM_EMBD}},
    {GY_ROLE_UP, "mlp.up_proj.weight", {GY_DIM_FF, GY_DIM_EMBD}},
    {GY_ROLE_DOWN, "mlp.down_proj.weight", {GY_DIM_EMBD, GY_DIM_FF}},
};

static gy_status read_config(const gy_jv *cfg, gy_err *err, gy_model_desc *out) {
    gy_model_desc d = {
        .family = "nanbeige", .norms = GY_RESIDUAL_PRE, .rope = GY_ROPE_HALF, .rope_round = 1, .embed_scale = 1.0f};
    GY_TRY(gy_cfg_read(cfg, config_rows, sizeof config_rows / sizeof config_rows[0], &d, err));
    GY_TRY(gy_family_read_llama(cfg, 1e-5, 7e7, &d, err));
    GY_TRY(gy_cfg_need_type(cfg, "loop_loss_weights", GY_J_ARRAY, err));
    size_t n_loss = gy_jv_len(gy_jv_get(cfg, "loop_loss_weights"));
    if (n_loss > 255)
        return gy_err_set(err, GY_E_FORMAT, "field \"loop_loss_weights\": found %zu entries, expected at most 255",
                          n_loss);
    if (n_loss) d.n_loop = (int32_t)n_loss + 1;
    d.loop_norm = !d.head_norm;
    *out = d;
    return GY_OK;
}

const gy_family gy_family_nanbeige = {
    .name = "nanbeige",
    .model_type = "nanbeige",
    .read_config = read_config,
    .weights = weight_rows,
    .n_weight = sizeof weight_rows / sizeof weight_rows[0],
    .stage_prefix = {[GY_CORE] = "model.layers."},
};
