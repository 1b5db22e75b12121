/* Normalizers of tokenizer.json: text -> text, one after the other, between the two buffers of the scratch.
 * Deliberately not here: BertNormalizer, Nmt, Precompiled, StripAccents, ByteLevel; they are refused by name.
 */
#include "text/hf_int.h"

#include "text/unicode.h"

#include <string.h>

static gy_status refuse_type(const gy_jv *v, gy_err *err) {
    const char *type = gy_jv_str(gy_jv_get(v, "type"), NULL);
    if (!type) return gy_err_set(err, GY_E_FORMAT, "normalizer without a type");
    return gy_err_set(err, GY_E_UNSUPPORTED,
                      "normalizer \"%.60s\" is not supported (NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, "
                      "Strip and Sequence are)",
                      type);
}

static gy_status read_string(const gy_jv *v, const char *key, gy_err *err, gy_str *out) {
    size_t len = 0;
    const char *s = gy_jv_str(gy_jv_get(v, key), &len);
    if (!s)
        return gy_err_set(err, GY_E_FORMAT, "%s: expected a string, found %s", key,
                          gy_jtype_name(gy_jv_type(gy_jv_get(v, key))));
    gy_str_append(out, s, len);
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the normalizer") : GY_OK;
}

static gy_status norm_read_one(const gy_jv *v, gy_err *err, gy_norm *n) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* order of gy_uni_form */
    const gy_jv *type = gy_jv_get(v, "type");
    for (int i = 0; i < 4; i++) {
        if (!gy_jv_is_str(type, forms[i])) continue;
        n->kind = GY_NORM_FORM;
        n->form = i;
        return GY_OK;
    }
    if (gy_jv_is_str(type, "Lowercase")) {
        n->kind = GY_NORM_LOWER;
        return GY_OK;
    }
    if (gy_jv_is_str(type, "Strip")) {
        n->kind = GY_NORM_STRIP;
        n->strip_left = gy_jv_bool(gy_jv_get(v, "strip_left"), 1);
        n->strip_right = gy_jv_bool(gy_jv_get(v, "strip_right"), 1);
        return GY_OK;
    }
    if (gy_jv_is_str(type, "Prepend")) {
        n->kind = GY_NORM_PREPEND;
        return read_string(v, "prepend", err, &n->text);
    }
    if (!gy_jv_is_str(type, "Replace")) return refuse_type(v, err);
    n->kind = GY_NORM_REPLACE;
    GY_TRY(read_string(v, "content", err, &n->text));
    return gy_pattern_read(gy_jv_get(v, "pattern"), err, &n->pattern);
}

static gy_status norms_read_sequence(const gy_jv *v, gy_err *err, gy_norms *out) {
    const gy_jv *list = gy_jv_get(v, "normalizers");
    if (gy_jv_type(list) != GY_J_ARRAY) return gy_err_set(err, GY_E_FORMAT, "Sequence without normalizers");
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        gy_status st = gy_norms_read(gy_jv_at(list, i), err, out);
        if (st < 0) return gy_err_prefix(err, "normalizers[%zu]", i);
    }
    return GY_OK;
}

gy_status gy_norms_read(const gy_jv *v, gy_err *err, gy_norms *out) {
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL) return GY_OK;
    if (gy_jv_is_str(gy_jv_get(v, "type"), "Sequence")) return norms_read_sequence(v, err, out);
    if (gy_vec_push(out, GY_MEM_TEXT, ((gy_norm){.kind = GY_NORM_FORM})))
        return gy_err_set(err, GY_E_NOMEM, "no memory for the normalizer");
    return norm_read_one(v, err, &out->data[out->len - 1]);
}

void gy_norms_fini(gy_norms *n) {
    for (size_t i = 0; i < n->len; i++) {
        gy_pattern_fini(&n->data[i].pattern);
        gy_str_free(&n->data[i].text);
    }
    gy_vec_free(n);
}

static void put_lower(const char *text, size_t len, gy_str *out) {
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += (size_t)gy_utf8_decode(text + i, len - i, &cp);
        if (cp < 0x80)
            gy_str_putc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
        else
            gy_uni_put_lower(out, cp);
    }
}

static gy_status put_replaced(const gy_norm *n, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps,
                              gy_err *err, gy_str *out, int *cut_left) {
    GY_TRY(gy_pattern_spans(&n->pattern, s, text, len, steps, err));
    if (s->spans.len && s->spans.data[0].is_match && s->spans.data[0].len && !n->text.len) *cut_left = 1;
    for (size_t i = 0; i < s->spans.len; i++) {
        const gy_span *p = &s->spans.data[i];
        if (p->is_match)
            gy_str_append(out, gy_str_z(&n->text), n->text.len);
        else
            gy_str_append(out, text + p->off, p->len);
    }
    return GY_OK;
}

static gy_status norm_apply(const gy_norm *n, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps,
                            gy_err *err, gy_str *out, int *cut_left) {
    size_t left, right;
    *steps += (int64_t)len;
    switch (n->kind) {
    case GY_NORM_FORM:
        return gy_uni_normalize(text, len, (gy_uni_form)n->form, steps, out);
    case GY_NORM_LOWER:
        put_lower(text, len, out);
        return GY_OK;
    case GY_NORM_REPLACE:
        return put_replaced(n, s, text, len, steps, err, out, cut_left);
    case GY_NORM_PREPEND:
        if (len) gy_str_append(out, gy_str_z(&n->text), n->text.len);
        gy_str_append(out, text, len);
        return GY_OK;
    case GY_NORM_STRIP:
        left = n->strip_left ? gy_uni_space_prefix(text, len) : 0;
        right = n->strip_right ? gy_uni_space_suffix(text + left, len - left) : 0;
        *cut_left |= left > 0;
        gy_str_append(out, text + left, len - left - right);
        return GY_OK;
    }
    return GY_E_BUG;
}

gy_status gy_norms_apply(const gy_norms *n, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps, gy_err *err,
                         const char **out_text, size_t *out_len, int *cut_left) {
    *cut_left = 0;
    for (size_t i = 0; i < n->len; i++) {
        gy_str *to = &s->norm[i & 1];
        gy_str_clear(to);
        GY_TRY(norm_apply(&n->data[i], s, text, len, steps, err, to, cut_left));
        if (to->failed) return gy_err_set(err, GY_E_NOMEM, "no memory while normalising");
        text = gy_str_z(to);
        len = to->len;
    }
    *out_text = text;
    *out_len = len;
    return GY_OK;
}
