/* The list of families and the shared parts of their files. */
#include "model/family.h"

#include "model/config.h"

#include <string.h>

static const gy_family *const families[] = {&gy_family_ouro, &gy_family_huginn, &gy_family_nanbeige};
enum { N_FAMILY = sizeof families / sizeof families[0] };

const gy_family *gy_family_find(const gy_jv *cfg, gy_err *err) {
    const gy_jv *v = gy_jv_get(cfg, "model_type");
    const char *type = gy_jv_str(v, NULL);
    for (int i = 0; type && i < N_FAMILY; i++)
        if (!strcmp(type, families[i]->model_type)) return families[i];
    gy_err_set(err, GY_E_UNSUPPORTED, "field \"model_type\": found %s%s%s, gyre runs ouro, huginn_raven and nanbeige",
               type ? "\"" : "", type ? type : gy_jtype_name(gy_jv_type(v)), type ? "\"" : "");
    return NULL;
}

int64_t gy_dim_value(gy_dim dim, const gy_model_desc *d) {
    switch (dim) {
    case GY_DIM_END:
        return 0;
    case GY_DIM_1:
        return 1;
    case GY_DIM_2:
        return 2;
    case GY_DIM_VOCAB:
        return d->n_vocab;
    case GY_DIM_EMBD:
        return d->n_embd;
    case GY_DIM_2EMBD:
        return 2 * (int64_t)d->n_embd;
    case GY_DIM_FF:
        return d->n_ff;
    case GY_DIM_2FF:
        return 2 * (int64_t)d->n_ff;
    case GY_DIM_Q:
        return (int64_t)d->n_head * d->head_dim;
    case GY_DIM_KV:
        return (int64_t)d->n_head_kv * d->head_dim;
    case GY_DIM_QKV:
        return (int64_t)(d->n_head + 2 * d->n_head_kv) * d->head_dim;
    case GY_DIM_HEAD:
        return d->n_head;
    case GY_DIM_HEAD_DIM:
        return d->head_dim;
    case GY_DIM_HALF:
        return d->head_dim / 2;
    case GY_DIM_POS:
        return d->max_pos;
    }
    return 0;
}

gy_status gy_family_read_ids(const gy_jv *cfg, gy_model_desc *d, gy_err *err) {
    int32_t id[1];
    int n = gy_cfg_read_ids(gy_jv_get(cfg, "bos_token_id"), "bos_token_id", id, 1, err);
    if (n < 0) return GY_E_FORMAT;
    d->bos = n ? id[0] : -1;
    n = gy_cfg_read_ids(gy_jv_get(cfg, "pad_token_id"), "pad_token_id", id, 1, err);
    if (n < 0) return GY_E_FORMAT;
    d->pad = n ? id[0] : -1;
    n = gy_cfg_read_ids(gy_jv_get(cfg, "eos_token_id"), "eos_token_id", d->eos, GY_MAX_EOS, err);
    if (n < 0) return GY_E_FORMAT;
    d->n_eos = n;
    for (int i = 0; i < d->n_eos; i++)
        if (d->eos[i] >= d->n_vocab)
            return gy_err_set(err, GY_E_FORMAT, "field \"eos_token_id\": found %d, expected less than vocab_size %d",
                              d->eos[i], d->n_vocab);
    return GY_OK;
}

/* Ranges as in huginn.c: an eps below them would be 0 as a float, and a row of zeros then divides by 0. */
static const double eps_range[2] = {1e-12, 1.0}, theta_range[2] = {1.0, 1e12};

static gy_status read_within(const gy_jv *v, const char *key, const double range[2], double *out, gy_err *err) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_NONE || t == GY_J_NULL) return GY_OK;
    double x = gy_jv_num(v, 0.0);
    if (t != GY_J_INT && t != GY_J_REAL)
        return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %s, expected a number", key, gy_jtype_name(t));
    if (!(x >= range[0] && x <= range[1]))
        return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %g, expected %g to %g", key, x, range[0], range[1]);
    *out = x;
    return GY_OK;
}

/* Newer files put theta into rope_parameters {rope_type, rope_theta}; any type but the plain one is refused. */
static gy_status read_rope(const gy_jv *cfg, double *theta, gy_err *err) {
    const gy_jv *rp = gy_jv_get(cfg, "rope_parameters");
    GY_TRY(gy_cfg_need_type(cfg, "rope_parameters", GY_J_OBJECT, err));
    GY_TRY(read_within(gy_jv_get(cfg, "rope_theta"), "rope_theta", theta_range, theta, err));
    GY_TRY(read_within(gy_jv_get(rp, "rope_theta"), "rope_parameters.rope_theta", theta_range, theta, err));
    const gy_jv *type = gy_jv_get(rp, "rope_type");
    if (type && !gy_jv_is_str(type, "default"))
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "field \"rope_parameters.rope_type\": found \"%s\", gyre computes \"default\" only",
                          gy_jv_str(type, NULL) ? gy_jv_str(type, NULL) : "?");
    for (void *it = gy_jv_first(rp); it; it = gy_jv_next(rp, it)) {
        const char *key = gy_jv_key(it, NULL);
        if (strcmp(key, "rope_theta") && strcmp(key, "rope_type") && !gy_cfg_is_off(gy_jv_val(it)))
            return gy_err_set(err, GY_E_UNSUPPORTED, "field \"rope_parameters.%s\": gyre does not honour this switch",
                              key);
    }
    return GY_OK;
}

static gy_status check_layer_types(const gy_jv *cfg, gy_err *err) {
    const gy_jv *v = gy_jv_get(cfg, "layer_types");
    GY_TRY(gy_cfg_need_type(cfg, "layer_types", GY_J_ARRAY, err));
    for (size_t i = 0; i < gy_jv_len(v); i++)
        if (!gy_jv_is_str(gy_jv_at(v, i), "full_attention"))
            return gy_err_set(err, GY_E_UNSUPPORTED,
                              "field \"layer_types[%zu]\": gyre computes \"full_attention\" only", i);
    return GY_OK;
}

static gy_status check_heads(gy_model_desc *d, gy_err *err) {
    if (!d->n_head_kv) d->n_head_kv = d->n_head;
    if (!d->head_dim) d->head_dim = d->n_embd / d->n_head;
    if (d->n_head % d->n_head_kv)
        return gy_err_set(err, GY_E_FORMAT,
                          "field \"num_key_value_heads\": found %d, expected a divisor of the %d attention heads",
                          d->n_head_kv, d->n_head);
    if (d->head_dim % 2 || !d->head_dim)
        return gy_err_set(err, GY_E_FORMAT, "field \"head_dim\": found %d, expected an even number (rotary pairs)",
                          d->head_dim);
    return GY_OK;
}

gy_status gy_family_read_llama(const gy_jv *cfg, double eps_default, double theta_default, gy_model_desc *d,
                               gy_err *err) {
    double eps = eps_default;
    d->rope_theta = theta_default;
    GY_TRY(read_within(gy_jv_get(cfg, "rms_norm_eps"), "rms_norm_eps", eps_range, &eps, err));
    d->eps = (float)eps;
    GY_TRY(read_rope(cfg, &d->rope_theta, err));
    GY_TRY(check_layer_types(cfg, err));
    GY_TRY(check_heads(d, err));
    return gy_family_read_ids(cfg, d, err);
}
