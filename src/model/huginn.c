/* Huginn-0125 (Geiping et al., arXiv 2502.05171; HF class RavenForCausalLM, seal-rg raven_modeling_minimal.py;
 * docs/models/huginn.md).
 *
 * Prelude, core and coda layers; the state of each token starts from noise (or zero) and is mixed with the fixed
 * prelude output by the adapter at every loop: adapter([state, prelude]), in this order. Norms stand on the sum: x =
 * RMS(a + x). No norm between loops; ln_f is applied twice, before the coda and before the head. RoPE rotates
 * neighbouring pairs in f32. qk_bias[0] is added to q, [1] to k, before RoPE. The head is the embedding; the file's
 * lm_head is a duplicate of it.
 */
#include "model/config.h"
#include "model/family.h"

#include <math.h>

#define AT(field) offsetof(gy_model_desc, field)

struct huginn_config {
    gy_model_desc d;
    int32_t n_layers, padded_vocab;
    double eps, theta, std, embed_scale;
};
#define IN(field) offsetof(struct huginn_config, field)

static const gy_cfg_row config_rows[] = {
    {"padded_vocab_size", GY_CFG_INT, 0, IN(padded_vocab), 2, 1 << 24, NULL}, /* the rows of wte */
    {"vocab_size", GY_CFG_INT, 1, AT(n_vocab), 2, 1 << 24, NULL},
    {"n_embd", GY_CFG_INT, 1, AT(n_embd), 2, 1 << 17, NULL},
    {"intermediate_size", GY_CFG_INT, 1, AT(n_ff), 1, 1 << 20, NULL},
    {"n_heads", GY_CFG_INT, 1, AT(n_head), 1, 4096, NULL},
    {"num_attention_heads", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* written beside n_heads for other programs */
    {"num_key_value_heads", GY_CFG_INT, 0, AT(n_head_kv), 1, 4096, NULL},
    {"head_dim", GY_CFG_INT, 0, AT(head_dim), 2, 1024, NULL},
    {"n_layers", GY_CFG_INT, 0, IN(n_layers), 1, 1024, NULL},
    {"num_hidden_layers", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"hidden_size", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"n_layers_in_prelude", GY_CFG_INT, 1, AT(n_layer[GY_PRELUDE]), 0, 1024, NULL},
    {"n_layers_in_recurrent_block", GY_CFG_INT, 1, AT(n_layer[GY_CORE]), 1, 1024, NULL},
    {"n_layers_in_coda", GY_CFG_INT, 1, AT(n_layer[GY_CODA]), 0, 1024, NULL},
    {"block_size", GY_CFG_INT, 1, AT(max_pos), 1, 1 << 24, NULL},
    {"mean_recurrence", GY_CFG_INT, 1, AT(n_loop), 1, 1024, NULL},
    {"norm_eps", GY_CFG_NUM, 1, IN(eps), 1e-12, 1.0, NULL},
    {"rope_base", GY_CFG_NUM, 1, IN(theta), 1.0, 1e12, NULL},
    {"qk_bias", GY_CFG_BOOL, 0, AT(qk_bias), 0, 0, NULL},
    {"tie_embeddings", GY_CFG_TRUE, 1, 0, 0, 0, NULL},
    {"tie_word_embeddings", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"injection_type", GY_CFG_STR, 1, 0, 0, 0, "linear"},
    {"state_init", GY_CFG_STR, 0, 0, 0, 0, "like-init"},
    {"activation_checkpoint_impl", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"bias", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"test_time_noise", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"test_time_noise_type", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* means nothing while test_time_noise is 0 */
    {"rope_scaling", GY_CFG_OFF, 0, 0, 0, 0, NULL},
    {"block_class_name", GY_CFG_STR, 0, 0, 0, 0, "SandwichBlock"},
    {"norm_class_name", GY_CFG_STR, 0, 0, 0, 0, "RMSNorm_llama"},
    {"norm_class", GY_CFG_STR, 0, 0, 0, 0, "RMSNorm_llama"},
    {"mlp_class_name", GY_CFG_STR, 0, 0, 0, 0, "GatedMLP"},
    {"nonlin_name", GY_CFG_STR, 0, 0, 0, 0, "SiLU"},
    {"architecture_class_name", GY_CFG_STR, 0, 0, 0, 0, "RecurrentGPT"},
    {"mean_backprop_depth", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* training only, as the next five */
    {"sampling_scheme", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"padding_multiple", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"init_strategy", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"init_orthogonal", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"init_values", GY_CFG_IGNORE, 0, 0, 0, 0, NULL}, /* init_rows */
    {"effective_expected_depth", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
};

/* Inside init_values: these two are read by the published forward pass (huginn.md, constants), the others at training.
 */
static const gy_cfg_row init_rows[] = {
    {"std", GY_CFG_NUM, 0, IN(std), 0.0, 1e3, NULL},
    {"embed_scale", GY_CFG_NUM, 0, IN(embed_scale), 1e-6, 1e6, NULL},
    {"embedding", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
    {"out_proj", GY_CFG_IGNORE, 0, 0, 0, 0, NULL},
};

static const gy_weight_row weight_rows[] = {
    {GY_ROLE_EMBED, "transformer.wte.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_HEAD_COPY, "lm_head.weight", {GY_DIM_VOCAB, GY_DIM_EMBD}},
    {GY_ROLE_FINAL_NORM, "transformer.ln_f.weight", {GY_DIM_EMBD}},
    {GY_ROLE_ADAPTER, "transformer.adapter.weight", {GY_DIM_EMBD, GY_DIM_2EMBD}},
    {GY_ROLE_ROPE_TABLE, "freqs_cis", {GY_DIM_1, GY_DIM_POS, GY_DIM_1, GY_DIM_HALF, GY_DIM_2}},
    {GY_ROLE_NORM_0, "norm_1.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_1, "norm_2.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_2, "norm_3.weight", {GY_DIM_EMBD}},
    {GY_ROLE_NORM_3, "norm_4.weight", {GY_DIM_EMBD}},
    {GY_ROLE_QKV, "attn.Wqkv.weight", {GY_DIM_QKV, GY_DIM_EMBD}},
    {GY_ROLE_QK_BIAS, "attn.qk_bias", {GY_DIM_2, GY_DIM_1, GY_DIM_HEAD, GY_DIM_HEAD_DIM}},
    {GY_ROLE_O, "attn.proj.weight", {GY_DIM_EMBD, GY_DIM_Q}},
    {GY_ROLE_GATE_UP, "mlp.fc.weight", {GY_DIM_2FF, GY_DIM_EMBD}},
    {GY_ROLE_DOWN, "mlp.proj.weight", {GY_DIM_EMBD, GY_DIM_FF}},
};

static gy_status check_shape(struct huginn_config *c, gy_err *err) {
    gy_model_desc *d = &c->d;
    if (c->padded_vocab && c->padded_vocab < d->n_vocab)
        return gy_err_set(err, GY_E_FORMAT, "field \"padded_vocab_size\": found %d, expected vocab_size %d or more",
                          c->padded_vocab, d->n_vocab);
    if (c->padded_vocab) d->n_vocab = c->padded_vocab;
    if (!d->head_dim) d->head_dim = d->n_embd / d->n_head;
    if (d->head_dim % 2 || d->head_dim * d->n_head != d->n_embd)
        return gy_err_set(err, GY_E_FORMAT,
                          "field \"n_heads\": found %d, expected a divisor of n_embd %d with even quotient", d->n_head,
                          d->n_embd);
    if (!d->n_head_kv) d->n_head_kv = d->n_head;
    if (d->n_head_kv != d->n_head) /* qk_bias is stored as [2, 1, n_head, head_dim] */
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"num_key_value_heads\": found %d, expected n_heads = %d",
                          d->n_head_kv, d->n_head);
    int32_t sum = d->n_layer[GY_PRELUDE] + d->n_layer[GY_CORE] + d->n_layer[GY_CODA];
    if (c->n_layers && c->n_layers != sum)
        return gy_err_set(err, GY_E_FORMAT,
                          "field \"n_layers\": found %d, expected %d, the sum of prelude, core and coda", c->n_layers,
                          sum);
    return GY_OK;
}

/* Without init_values: what every published file has in it. */
static gy_status read_init_values(const gy_jv *cfg, struct huginn_config *c, gy_err *err) {
    GY_TRY(gy_cfg_need_type(cfg, "init_values", GY_J_OBJECT, err));
    c->std = sqrt(2.0 / (5.0 * (double)c->d.n_embd));
    c->embed_scale = sqrt((double)c->d.n_embd);
    if (gy_cfg_read(gy_jv_get(cfg, "init_values"), init_rows, sizeof init_rows / sizeof init_rows[0], c, err) < 0)
        return gy_err_prefix(err, "init_values");
    c->d.state_std = (float)c->std;
    c->d.embed_scale = (float)c->embed_scale;
    c->d.state_mult = c->d.embed_scale;
    return GY_OK;
}

static gy_status read_config(const gy_jv *cfg, gy_err *err, gy_model_desc *out) {
    struct huginn_config c = {.d = {.family = "huginn",
                                    .norms = GY_RESIDUAL_SUM,
                                    .rope = GY_ROPE_PAIRS,
                                    .inject = 1,
                                    .coda_norm = 1,
                                    .head_norm = 1,
                                    .tied = 1,
                                    .qk_bias = 1}};
    GY_TRY(gy_cfg_read(cfg, config_rows, sizeof config_rows / sizeof config_rows[0], &c, err));
    GY_TRY(check_shape(&c, err));
    GY_TRY(read_init_values(cfg, &c, err));
    GY_TRY(gy_family_read_ids(cfg, &c.d, err));
    c.d.eps = (float)c.eps;
    c.d.rope_theta = c.theta;
    *out = c.d;
    return GY_OK;
}

const gy_family gy_family_huginn = {
    .name = "huginn",
    .model_type = "huginn_raven",
    .read_config = read_config,
    .weights = weight_rows,
    .n_weight = sizeof weight_rows / sizeof weight_rows[0],
    .stage_prefix =
        {[GY_PRELUDE] = "transformer.prelude.", [GY_CORE] = "transformer.core_block.", [GY_CODA] = "transformer.coda."},
};
