/* Bodies of the small routes. */
#include "server/oai_info.h"

#include "base/json.h"
#include "server/oai_write.h"

#include <string.h>

static void put_bool(gy_jw *w, const char *key, int v) {
    gy_jw_key(w, key);
    gy_jw_bool(w, v);
}

/* What only looped models have: a name of gyre's own, so that no client takes it for something else. */
static void put_facts(gy_jw *w, const gy_oai_model_facts *f) {
    gy_jw_key(w, "gyre");
    gy_jw_obj_begin(w);
    gy_jw_key(w, "family");
    gy_jw_strz(w, f->family);
    gy_jw_key(w, "n_loop");
    gy_jw_int(w, f->n_loop);
    gy_jw_key(w, "max_loops");
    gy_jw_int(w, f->max_loops);
    put_bool(w, "has_gate", f->has_gate);
    put_bool(w, "has_tokenizer", f->has_tokenizer);
    put_bool(w, "has_chat_template", f->has_template);
    gy_jw_obj_end(w);
}

static void put_model(gy_jw *w, const char *model, const char *root, int64_t created_s, const gy_oai_model_facts *f) {
    gy_jw_obj_begin(w);
    gy_jw_key(w, "id");
    gy_jw_strz(w, model);
    gy_jw_key(w, "object");
    gy_jw_strz(w, "model");
    gy_jw_key(w, "created");
    gy_jw_int(w, created_s);
    gy_jw_key(w, "owned_by");
    gy_jw_strz(w, "gyre");
    gy_jw_key(w, "root");
    gy_jw_strz(w, root);
    gy_jw_key(w, "parent");
    gy_jw_null(w);
    gy_jw_key(w, "max_model_len");
    gy_jw_int(w, f->max_len);
    put_facts(w, f);
    gy_jw_obj_end(w);
}

void gy_oai_model_body(const char *model, const char *root, int64_t created_s, const gy_oai_model_facts *f,
                       gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    put_model(&w, model, root, created_s, f);
}

void gy_oai_models_body(const char *const *models, int32_t n_model, int64_t created_s, const gy_oai_model_facts *f,
                        gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "object");
    gy_jw_strz(&w, "list");
    gy_jw_key(&w, "data");
    gy_jw_arr_begin(&w);
    for (int32_t i = 0; i < n_model; i++) put_model(&w, models[i], models[0], created_s, f);
    gy_jw_arr_end(&w);
    gy_jw_obj_end(&w);
}

static void one_string(const char *key, const char *s, size_t n, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, key);
    gy_jw_str(&w, s, n);
    gy_jw_obj_end(&w);
}

void gy_oai_version_body(const char *version, gy_str *out) {
    one_string("version", version, strlen(version), out);
}

void gy_oai_stats_body(int64_t requests, int64_t used_blocks, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "requests");
    gy_jw_int(&w, requests);
    gy_jw_key(&w, "used_blocks");
    gy_jw_int(&w, used_blocks);
    gy_jw_obj_end(&w);
}

void gy_oai_health_body(const char *status, gy_str *out) {
    one_string("status", status, strlen(status), out);
}

void gy_oai_detokenize_body(const char *text, size_t n, gy_str *out) {
    one_string("prompt", text, n, out);
}

void gy_oai_template_body(const char *text, size_t n, gy_str *out) {
    one_string("prompt", text, n, out);
}

void gy_oai_tokenize_body(const int32_t *ids, size_t n, int32_t max_model_len,
                          const char *(*piece)(void *user, int32_t id, size_t *n_out), void *user, gy_str *out) {
    GY_OAI_PUT(out, "{\"count\":");
    gy_oai_put_int(out, (int64_t)n);
    GY_OAI_PUT(out, ",\"max_model_len\":");
    gy_oai_put_int(out, max_model_len);
    GY_OAI_PUT(out, ",\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) gy_str_putc(out, ',');
        gy_oai_put_int(out, ids[i]);
    }
    GY_OAI_PUT(out, "],\"token_strs\":");
    if (!piece) {
        GY_OAI_PUT(out, "null}");
        return;
    }
    gy_str_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *s = piece(user, ids[i], &len);
        if (i) gy_str_putc(out, ',');
        gy_oai_put_str(out, s ? s : "", s ? len : 0);
    }
    GY_OAI_PUT(out, "]}");
}
