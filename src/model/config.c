/* The strict config.json reader: see config.h. */
#include "model/config.h"

#include <math.h>
#include <string.h>

/* Keys that Hugging Face writes into any config.json and that do not change a forward pass at inference. */
static const char *const common_ignored[] = {"architectures",
                                             "auto_map",
                                             "model_type",
                                             "torch_dtype",
                                             "dtype",
                                             "transformers_version",
                                             "use_cache",
                                             "_name_or_path",
                                             "name_or_path",
                                             "max_window_layers",
                                             "initializer_range",
                                             "bos_token_id",
                                             "eos_token_id",
                                             "pad_token_id",
                                             "attention_dropout",
                                             "hidden_dropout",
                                             "early_exit_threshold",
                                             "pretraining_tp",
                                             "max_length",
                                             "temperature",
                                             "top_k",
                                             "top_p",
                                             "repetition_penalty",
                                             "do_sample",
                                             "return_dict",
                                             "tokenizer_class",
                                             "_attn_implementation",
                                             "attn_implementation",
                                             "task_specific_params",
                                             "license",
                                             "chunk_size_feed_forward",
                                             "is_decoder",
                                             "id2label",
                                             "label2id",
                                             "output_attentions",
                                             "output_hidden_states",
                                             "problem_type",
                                             "finetuning_task",
                                             "num_beams",
                                             "num_return_sequences",
                                             "min_length",
                                             "length_penalty",
                                             "diversity_penalty",
                                             "typical_p",
                                             "num_beam_groups",
                                             "encoder_no_repeat_ngram_size",
                                             "no_repeat_ngram_size",
                                             "early_stopping"};

int gy_cfg_is_off(const gy_jv *v) {
    switch (gy_jv_type(v)) {
    case GY_J_NONE:
    case GY_J_NULL:
        return 1;
    case GY_J_BOOL:
        return !gy_jv_bool(v, 0);
    case GY_J_INT:
    case GY_J_REAL:
        return gy_jv_num(v, 1.0) == 0.0;
    case GY_J_STRING: {
        size_t len = 1;
        gy_jv_str(v, &len);
        return len == 0;
    }
    case GY_J_ARRAY:
    case GY_J_OBJECT:
        return gy_jv_len(v) == 0;
    }
    return 0;
}

static gy_status wrong_type(const gy_cfg_row *row, const gy_jv *v, const char *expected, gy_err *err) {
    return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %s, expected %s", row->key, gy_jtype_name(gy_jv_type(v)),
                      expected);
}

static gy_status read_int(const gy_cfg_row *row, const gy_jv *v, void *obj, gy_err *err) {
    if (gy_jv_type(v) != GY_J_INT) return wrong_type(row, v, "an integer", err);
    int64_t x = gy_jv_int(v, 0);
    if ((double)x < row->min || (double)x > row->max)
        return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %lld, expected %.0f to %.0f", row->key, (long long)x,
                          row->min, row->max);
    int32_t i = (int32_t)x;
    memcpy((char *)obj + row->offset, &i, sizeof i);
    return GY_OK;
}

static gy_status read_num(const gy_cfg_row *row, const gy_jv *v, void *obj, gy_err *err) {
    gy_jtype t = gy_jv_type(v);
    if (t != GY_J_INT && t != GY_J_REAL) return wrong_type(row, v, "a number", err);
    double x = gy_jv_num(v, 0.0);
    if (!(x >= row->min && x <= row->max))
        return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %g, expected %g to %g", row->key, x, row->min,
                          row->max);
    memcpy((char *)obj + row->offset, &x, sizeof x);
    return GY_OK;
}

static gy_status read_bool(const gy_cfg_row *row, const gy_jv *v, void *obj, gy_err *err) {
    if (gy_jv_type(v) != GY_J_BOOL) return wrong_type(row, v, "true or false", err);
    int x = gy_jv_bool(v, 0);
    memcpy((char *)obj + row->offset, &x, sizeof x);
    return GY_OK;
}

static gy_status not_honoured(const char *key, const gy_jv *v, gy_err *err) {
    size_t len;
    const char *s = gy_jv_str(v, &len);
    if (s)
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\" is \"%.64s\": gyre does not honour this switch", key, s);
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_BOOL)
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\" is true: gyre does not honour this switch", key);
    if (t == GY_J_INT || t == GY_J_REAL)
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\" is %g: gyre does not honour this switch", key,
                          gy_jv_num(v, 0));
    return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\" is %s: gyre does not honour this switch", key,
                      gy_jtype_name(t));
}

static gy_status read_row(const gy_cfg_row *row, const gy_jv *v, void *obj, gy_err *err) {
    switch (row->kind) {
    case GY_CFG_INT:
        return read_int(row, v, obj, err);
    case GY_CFG_NUM:
        return read_num(row, v, obj, err);
    case GY_CFG_BOOL:
        return read_bool(row, v, obj, err);
    case GY_CFG_IGNORE:
        return GY_OK;
    case GY_CFG_OFF:
        return gy_cfg_is_off(v) ? GY_OK : not_honoured(row->key, v, err);
    case GY_CFG_STR:
        if (gy_jv_is_str(v, row->text)) return GY_OK;
        if (gy_jv_type(v) != GY_J_STRING) return wrong_type(row, v, "a string", err);
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\": found \"%.64s\", gyre computes \"%s\" only", row->key,
                          gy_jv_str(v, NULL), row->text);
    case GY_CFG_TRUE:
        if (gy_jv_type(v) == GY_J_BOOL && gy_jv_bool(v, 0)) return GY_OK;
        return gy_err_set(err, GY_E_UNSUPPORTED, "field \"%s\": found %s, gyre needs true", row->key,
                          gy_jv_type(v) == GY_J_BOOL ? "false" : gy_jtype_name(gy_jv_type(v)));
    }
    return GY_E_BUG;
}

static const gy_cfg_row *find_row(const gy_cfg_row *rows, size_t n_row, const char *key) {
    for (size_t i = 0; i < n_row; i++)
        if (!strcmp(rows[i].key, key)) return &rows[i];
    return NULL;
}

static int is_common(const char *key) {
    for (size_t i = 0; i < sizeof common_ignored / sizeof common_ignored[0]; i++)
        if (!strcmp(common_ignored[i], key)) return 1;
    return 0;
}

/* What compressed-tensors, FBGEMM, GPTQ, AWQ and others write. */
static int is_of_quantised(const char *key) {
    return !strcmp(key, "quantization_config") || !strcmp(key, "compression_config");
}

static gy_status quantised(const char *key, const gy_jv *v, gy_err *err) {
    const char *method = gy_jv_str(gy_jv_get(v, "quant_method"), NULL);
    return gy_err_set(err, GY_E_UNSUPPORTED,
                      "field \"%s\": found a checkpoint quantised by %s%.64s%s, which gyre does not read; use the one "
                      "that it was made of, with --weights fp8, int8 or int4 to hold it in fewer bits",
                      key, method ? "\"" : "", method ? method : "a method without a name", method ? "\"" : "");
}

gy_status gy_cfg_read(const gy_jv *cfg, const gy_cfg_row *rows, size_t n_row, void *obj, gy_err *err) {
    for (size_t i = 0; i < n_row; i++) {
        const gy_jv *v = gy_jv_get(cfg, rows[i].key);
        gy_jtype t = gy_jv_type(v);
        if (t == GY_J_NONE || t == GY_J_NULL) {
            if (rows[i].required) return gy_err_set(err, GY_E_FORMAT, "field \"%s\" is missing", rows[i].key);
            continue;
        }
        GY_TRY(read_row(&rows[i], v, obj, err));
    }
    for (void *it = gy_jv_first(cfg); it; it = gy_jv_next(cfg, it)) {
        const char *key = gy_jv_key(it, NULL);
        if (find_row(rows, n_row, key) || is_common(key) || gy_cfg_is_off(gy_jv_val(it))) continue;
        if (is_of_quantised(key)) return quantised(key, gy_jv_val(it), err);
        return not_honoured(key, gy_jv_val(it), err);
    }
    return GY_OK;
}

gy_status gy_cfg_need_type(const gy_jv *cfg, const char *key, gy_jtype type, gy_err *err) {
    const gy_jv *v = gy_jv_get(cfg, key);
    if (gy_cfg_is_off(v) || gy_jv_type(v) == type) return GY_OK;
    return gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %s, expected %s", key, gy_jtype_name(gy_jv_type(v)),
                      gy_jtype_name(type));
}

int gy_cfg_read_ids(const gy_jv *v, const char *key, int32_t *ids, int cap, gy_err *err) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_NONE || t == GY_J_NULL) return 0;
    size_t n = t == GY_J_ARRAY ? gy_jv_len(v) : 1;
    if (n > (size_t)cap) {
        gy_err_set(err, GY_E_FORMAT, "field \"%s\": found %zu ids, expected at most %d", key, n, cap);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        const gy_jv *x = t == GY_J_ARRAY ? gy_jv_at(v, i) : v;
        int64_t id = gy_jv_int(x, -1);
        if (gy_jv_type(x) != GY_J_INT || id < 0 || id > INT32_MAX) {
            gy_err_set(err, GY_E_FORMAT, "field \"%s\": expected a token id or a list of them", key);
            return -1;
        }
        ids[i] = (int32_t)id;
    }
    return (int)n;
}
