/* tokenizer_config.json and special_tokens_map.json: what Hugging Face's transformers adds to a tokenizer's own files.
 * Read from them: added_tokens_decoder, the names of special tokens, add_bos_token, add_eos_token, add_prefix_space.
 * The chat template is read elsewhere. Neither file has to exist.
 */
#include "text/tok_config.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static gy_status config_read(const char *dir, const char *name, gy_err *err, gy_json **out) {
    char *path = gy_path_join(dir, name);
    if (!path) return gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    gy_status st = gy_file_exists(path) ? gy_json_read(path, NULL, err, out) : GY_OK;
    gy_mem_free(path);
    return st;
}

gy_status gy_tok_config_open(const char *dir, gy_err *err, gy_tok_config *out) {
    gy_tok_config c = {0};
    gy_status st = config_read(dir, "tokenizer_config.json", err, &c.config);
    if (st == GY_OK) st = config_read(dir, "special_tokens_map.json", err, &c.map);
    if (st < 0) {
        gy_tok_config_close(&c);
        return st;
    }
    *out = c;
    return GY_OK;
}

void gy_tok_config_close(gy_tok_config *c) {
    gy_json_free(c->config);
    gy_json_free(c->map);
    *c = (gy_tok_config){0};
}

static const gy_jv *root_of(const gy_json *doc) {
    return doc ? gy_json_root(doc) : NULL;
}

int gy_tok_config_add_prefix_space(const gy_tok_config *c) {
    return gy_jv_bool(gy_jv_get(root_of(c->config), "add_prefix_space"), 0);
}

/* ---- special tokens by name ---- */

/* A token is written as a string or as an object with content. NULL if it is neither. */
static const char *token_text(const gy_jv *v, size_t *len) {
    const char *s = gy_jv_str(v, len);
    return s ? s : gy_jv_str(gy_jv_get(v, "content"), len);
}

static const gy_jv *named_token(const gy_tok_config *c, const char *key) {
    const gy_jv *v = gy_jv_get(root_of(c->config), key);
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL) v = gy_jv_get(root_of(c->map), key);
    return v;
}

/* Special tokens that are in the vocabulary become added tokens, as transformers makes them. The unknown token does
 * not: it has to stay visible when special tokens are skipped. */
static gy_status special_put(gy_tok *t, const gy_jv *v, gy_err *err) {
    size_t len = 0;
    const char *s = token_text(v, &len);
    int32_t id = s ? gy_tok_id(t, s, len) : -1;
    if (id < 0 || len == 0 || gy_added_piece(t->added, id, NULL, NULL)) return GY_OK;
    return gy_added_put(t->added, s, len, id, GY_ADDED_SPECIAL, err);
}

static gy_status specials_apply(const gy_tok_config *c, gy_tok *t, gy_err *err) {
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) GY_TRY(special_put(t, named_token(c, keys[i]), err));
    const gy_jv *more = named_token(c, "additional_special_tokens");
    for (size_t i = 0; gy_jv_type(more) == GY_J_ARRAY && i < gy_jv_len(more); i++)
        GY_TRY(special_put(t, gy_jv_at(more, i), err));
    return GY_OK;
}

static gy_status end_token_apply(const gy_tok_config *c, const gy_tok *t, const char *key, gy_err *err, int32_t *id) {
    const gy_jv *v = named_token(c, key);
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL) return GY_OK;
    size_t len = 0;
    const char *s = token_text(v, &len);
    if (!s)
        return gy_err_set(err, GY_E_FORMAT, "%s: expected a string or an object with content, found %s", key,
                          gy_jtype_name(gy_jv_type(v)));
    int32_t found = len ? gy_tok_id(t, s, len) : -1;
    if (len && found < 0) return gy_err_set(err, GY_E_FORMAT, "%s: \"%.60s\" is not in the vocabulary", key, s);
    *id = found;
    return GY_OK;
}

/* ---- added_tokens_decoder: {"id": {"content": ..., flags}} ---- */

static unsigned flag(const gy_jv *v, const char *key, unsigned bit, int dflt) {
    return gy_jv_bool(gy_jv_get(v, key), dflt) ? bit : 0;
}

static unsigned decoder_flags(const gy_jv *v) {
    unsigned f = flag(v, "special", GY_ADDED_SPECIAL, 0) | flag(v, "lstrip", GY_ADDED_LSTRIP, 0) |
                 flag(v, "rstrip", GY_ADDED_RSTRIP, 0) | flag(v, "single_word", GY_ADDED_SINGLE_WORD, 0);
    return f | flag(v, "normalized", GY_ADDED_NORMALIZED, !(f & GY_ADDED_SPECIAL));
}

static gy_status decoder_put(gy_tok *t, const char *key, const gy_jv *v, gy_err *err) {
    char *end = NULL;
    long id = strtol(key, &end, 10);
    size_t len = 0;
    const char *content = token_text(v, &len);
    if (end == key || *end || id < 0 || id >= GY_VOCAB_MAX_ID || !content)
        return gy_err_set(err, GY_E_FORMAT,
                          "added_tokens_decoder: \"%.20s\" must be an id with an object that has content", key);
    int32_t have = gy_tok_id(t, content, len);
    const char *piece = gy_tok_piece(t, (int32_t)id, NULL);
    if (have >= 0 ? have != id : piece != NULL)
        return gy_err_set(err, GY_E_FORMAT,
                          "added_tokens_decoder: \"%.60s\" has id %ld, but the vocabulary has %s%.60s", content, id,
                          have >= 0 ? "it elsewhere" : "there ", have >= 0 ? "" : piece);
    return gy_added_put(t->added, content, len, (int32_t)id, decoder_flags(v), err);
}

static gy_status decoder_apply(const gy_tok_config *c, gy_tok *t, gy_err *err) {
    const gy_jv *list = gy_jv_get(root_of(c->config), "added_tokens_decoder");
    if (gy_jv_type(list) != GY_J_OBJECT) return GY_OK;
    for (void *it = gy_jv_first(list); it; it = gy_jv_next(list, it))
        GY_TRY(decoder_put(t, gy_jv_key(it, NULL), gy_jv_val(it), err));
    return GY_OK;
}

/* ---- */

static gy_status ends_apply(const gy_tok_config *c, gy_tok *t, int bos_by_default, gy_err *err) {
    const gy_jv *root = root_of(c->config);
    if (!root || t->prefix.len || t->suffix.len) return GY_OK; /* the tokenizer's own file has said it */
    int bos = gy_jv_bool(gy_jv_get(root, "add_bos_token"), bos_by_default);
    int eos = gy_jv_bool(gy_jv_get(root, "add_eos_token"), 0);
    if (bos && t->bos >= 0 && gy_vec_push(&t->prefix, GY_MEM_TEXT, t->bos))
        return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    if (eos && t->eos >= 0 && gy_vec_push(&t->suffix, GY_MEM_TEXT, t->eos))
        return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    return GY_OK;
}

gy_status gy_tok_config_apply(const gy_tok_config *c, gy_tok *t, int bos_by_default, gy_err *err) {
    GY_TRY(decoder_apply(c, t, err));
    GY_TRY(specials_apply(c, t, err));
    GY_TRY(end_token_apply(c, t, "bos_token", err, &t->bos));
    GY_TRY(end_token_apply(c, t, "eos_token", err, &t->eos));
    return ends_apply(c, t, bos_by_default, err);
}
