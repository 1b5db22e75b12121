/* Opening a model folder. Weights are looked at through their headers only until gy_api_model_load. */
#include "api/api_model.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/kvmem.h"
#include "tensor/safetensors.h"

#include <stdio.h>
#include <string.h>

/* ---- ids that end a text ---------------------------------------------------------------------------------------- */

static void add_eos(gy_api_model *m, int64_t id) {
    if (id < 0 || id >= m->d.n_vocab || m->n_eos == GY_API_MAX_EOS) return;
    for (int32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id) return;
    m->eos[m->n_eos++] = (int32_t)id;
}

static gy_status add_generation_config(gy_api_model *m, const char *path, gy_err *err) {
    gy_json *doc = NULL;
    if (!gy_file_exists(path)) return GY_OK;
    GY_TRY(gy_json_read(path, NULL, err, &doc));
    const gy_jv *v = gy_jv_get(gy_json_root(doc), "eos_token_id");
    gy_jtype t = gy_jv_type(v);
    gy_status st = GY_OK;
    if (t == GY_J_INT)
        add_eos(m, gy_jv_int(v, -1));
    else if (t == GY_J_ARRAY)
        for (size_t i = 0; i < gy_jv_len(v); i++) add_eos(m, gy_jv_int(gy_jv_at(v, i), -1));
    else if (t != GY_J_NULL && t != GY_J_NONE)
        st = gy_err_set(err, GY_E_FORMAT, "%s: field \"eos_token_id\": found %s, expected a token id or a list of them",
                        path, gy_jtype_name(t));
    gy_json_free(doc);
    return st;
}

static gy_status collect_eos(gy_api_model *m, gy_err *err) {
    for (int32_t i = 0; i < m->d.n_eos; i++) add_eos(m, m->d.eos[i]);
    char *path = gy_path_join(m->dir, "generation_config.json");
    if (!path) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    gy_status st = add_generation_config(m, path, err);
    gy_mem_free(path);
    if (m->tok) add_eos(m, gy_tok_eos(m->tok));
    return st;
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static gy_status open_tokenizer(gy_api_model *m, gy_err *err) {
    if (!gy_tok_exists(m->dir)) return GY_OK;
    GY_TRY(gy_tok_open(m->dir, err, &m->tok));
    for (int32_t id = 0; id < gy_tok_n_vocab(m->tok); id++) {
        size_t len;
        if (!gy_tok_piece(m->tok, id, &len) || gy_tok_is_special(m->tok, id) || len <= m->long_bytes) continue;
        m->long_id = id;
        m->long_bytes = len;
    }
    return GY_OK;
}

/* The dtype of most weight bytes; F32 where that is F32 or F16 (there is no F16 arithmetic). */
static gy_status dtype_of_weights(gy_api_model *m, gy_err *err) {
    gy_st *st = NULL;
    size_t bytes[GY_DTYPE_COUNT] = {0};
    GY_TRY(gy_st_open(m->dir, err, &st));
    for (size_t i = 0; i < gy_st_count(st); i++) bytes[gy_st_at(st, i)->dtype] += gy_st_at(st, i)->bytes;
    size_t total = gy_st_data_bytes(st);
    gy_st_close(st);
    gy_dtype most = bytes[GY_BF16] > bytes[GY_F32] ? GY_BF16 : GY_F32;
    if (bytes[GY_F16] > bytes[most]) most = GY_F16;
    m->act = most == GY_BF16 ? GY_BF16 : GY_F32;
    snprintf(m->act_why, sizeof m->act_why, "%.0f %% of the weight bytes are %s%s",
             total ? 100.0 * (double)bytes[most] / (double)total : 0.0, gy_dtype_name(most),
             most == GY_F16 ? ", which is computed in F32" : "");
    return GY_OK;
}

static gy_status choose_dtype(gy_api_model *m, const char *dtype, gy_err *err) {
    if (!strcmp(dtype, "auto")) return dtype_of_weights(m, err);
    if (strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0)
        return gy_err_set(err, GY_E_ARG, "dtype: found '%.40s', expected auto, f32 or bf16", dtype);
    m->act = strcmp(dtype, "bf16") ? GY_F32 : GY_BF16;
    snprintf(m->act_why, sizeof m->act_why, "asked for");
    return GY_OK;
}

gy_status gy_api_model_open(gy_api_model *m, const char *dir, const char *dtype, int want_tok, gy_err *err) {
    gy_api_model n = {.dir = dir, .long_id = -1};
    gy_status st;
    GY_TRY_GOTO(st, gy_model_read_desc(dir, err, &n.d), fail);
    if (want_tok) GY_TRY_GOTO(st, open_tokenizer(&n, err), fail);
    if (want_tok) GY_TRY_GOTO(st, collect_eos(&n, err), fail);
    GY_TRY_GOTO(st, choose_dtype(&n, dtype, err), fail);
    *m = n;
    return GY_OK;
fail:
    gy_api_model_close(&n);
    return st;
}

gy_status gy_api_model_set_weights(gy_api_model *m, const char *weights, int quant_head, gy_err *err) {
    if (gy_weight_form_parse(weights, &m->form) < 0)
        return gy_err_set(err, GY_E_ARG, "weights: found '%.40s', expected auto, bf16, fp8, int8, int4 or int8-channel",
                          weights);
    if (quant_head && m->form < GY_WEIGHTS_FP8)
        return gy_err_set(err, GY_E_ARG,
                          "weights_head: found with weights %s, expected fp8, int8, int4 or int8-channel", weights);
    m->quant_head = quant_head;
    return GY_OK;
}

gy_status gy_api_model_set_pack(gy_api_model *m, const char *pack, gy_err *err) {
    if (gy_pack_parse(pack, &m->pack) < 0)
        return gy_err_set(err, GY_E_ARG, "pack: found '%.40s', expected auto, on or off", pack);
    return GY_OK;
}

gy_status gy_api_model_set_cache(gy_api_model *m, const char *cache, gy_err *err) {
    int has_home = !strncmp(cache, "auto:", 5) && cache[5], is_auto = has_home || !strcmp(cache, "auto");
    int is_file = !is_auto && strcmp(cache, "off") != 0;
    if (!*cache || (is_file && gy_dir_exists(cache)))
        return gy_err_set(err, GY_E_ARG, "pack_cache: found %s'%.900s', expected off, auto or a file",
                          *cache ? "the folder " : "", cache);
    m->cache_text = cache;
    m->cache = (gy_pack_where){
        .file = is_file ? cache : NULL, .beside = is_auto, .home = has_home ? cache + sizeof "auto:" - 1 : NULL};
    return GY_OK;
}

gy_status gy_api_model_set_pin(gy_api_model *m, const char *pin, gy_err *err) {
    static const char *const names[] = {[GY_PIN_AUTO] = "auto", [GY_PIN_ON] = "on", [GY_PIN_OFF] = "off"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(pin, names[i]) != 0) continue;
        m->pin = (gy_pin)i;
        return GY_OK;
    }
    return gy_err_set(err, GY_E_ARG, "pin: found '%.40s', expected auto, on or off", pin);
}

gy_status gy_api_model_settle_pack(gy_api_model *m, size_t have, gy_err *err) {
    size_t weights;
    if (m->pack != GY_PACK_AUTO) return GY_OK;
    GY_TRY(gy_model_device_bytes(m->dir, m->act, m->form, m->quant_head, err, &weights));
    m->pack = weights <= have / 2 ? GY_PACK_ON : GY_PACK_OFF;
    return GY_OK;
}

gy_status gy_api_model_left(const gy_api_model *m, size_t have, gy_err *err, size_t *out) {
    size_t weights = 0;
    if (m->form >= GY_WEIGHTS_FP8 || m->pack == GY_PACK_ON)
        GY_TRY(gy_model_device_bytes(m->dir, m->act, m->form, m->quant_head, err, &weights));
    *out = !have ? 0 : have > weights ? have - weights : 1;
    return GY_OK;
}

/* ---- load ------------------------------------------------------------------------------------------------------- */

static gy_status open_cuda(gy_api_model *m, const gy_api_load_opts *lo, gy_err *err) {
    gy_cuda_opts o = {.act = m->act, .n_thread = lo->threads, .limits = *lo->limits};
    GY_TRY(gy_cuda_parse_device(lo->backend, err, &o.device));
    if (gy_cuda_without_stage(lo->backend)) o.without |= GY_CUDA_STAGE;
    return gy_backend_cuda_create(&o, err, &m->be);
}

gy_status gy_api_model_open_backend(gy_api_model *m, const gy_api_load_opts *lo, gy_err *err) {
    gy_cpu_opts o = {.act = m->act, .n_thread = lo->threads, .pin = m->pin, .limits = *lo->limits};
    const char *name = lo->backend;
    if (!strcmp(name, "ref")) return gy_backend_ref_create(m->act, err, &m->be);
    if (!strncmp(name, "cuda", 4)) return open_cuda(m, lo, err);
    if (strcmp(name, "cpu") != 0 && strcmp(name, "auto") != 0)
        return gy_err_set(err, GY_E_ARG, "backend: found '%.40s', expected auto, cpu, cuda, cuda:N or ref", name);
    gy_status st = gy_backend_cpu_create(&o, err, &m->be);
    if (st != GY_E_UNSUPPORTED || !strcmp(name, "cpu")) return st;
    gy_log(GY_LOG_WARN, "model", "slow: this processor has none of the features that the fast kernels need", NULL);
    return gy_backend_ref_create(m->act, err, &m->be);
}

/* KV of the type that is asked for, and memory: a host maps its weights and need not hold them; a device must. */
static gy_status check_fits(const gy_api_model *m, const gy_engine_opts *e, gy_err *err) {
    size_t weights, have = m->be->is_host ? 0 : m->be->ops->mem_available(m->be);
    GY_TRY(gy_kvmem_check_type(m->be, gy_kv_type_dtype(e->kv_type, m->act), err));
    if (!have) return GY_OK;
    GY_TRY(gy_model_device_bytes(m->dir, m->act, m->form, m->quant_head, err, &weights));
    return gy_engine_check_fits(&m->d, m->act, e, weights, have, err);
}

gy_status gy_api_model_load(gy_api_model *m, const gy_api_load_opts *o, gy_err *err) {
    GY_TRY(gy_api_model_open_backend(m, o, err));
    if (o->engine) GY_TRY(check_fits(m, o->engine, err));
    gy_model_load_opts lo = {.be = m->be,
                             .form = m->form,
                             .quant_head = m->quant_head,
                             .pack = m->pack,
                             .cache = m->cache,
                             .progress = o->progress,
                             .progress_arg = o->progress_arg};
    return gy_model_load(m->dir, &lo, err, &m->model);
}

void gy_api_model_close(gy_api_model *m) {
    gy_model_free(m->model);
    gy_backend_destroy(m->be);
    gy_tok_close(m->tok);
    *m = (gy_api_model){0};
}
