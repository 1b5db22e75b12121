/* The kind "hf": tokenizer.json of Hugging Face's tokenizers, and GPT-2's vocab.json + merges.txt, which is the same
 * machine with fixed parts. Behaviour follows PyPI tokenizers 0.23.3; what is not honoured is refused by name.
 *
 * Deliberately not honoured: "truncation" and "padding" (they belong to a training batch, and transformers resets them
 * before each call), the "pair" template, offsets.
 */
#include "text/hf_int.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>

typedef struct hf {
    gy_norms norms;
    gy_pretoks pretoks;
    gy_bpe *bpe;
    gy_decs decs;
} hf;

static void hf_destroy(void *impl) {
    hf *h = impl;
    if (!h) return;
    gy_norms_fini(&h->norms);
    gy_pretoks_fini(&h->pretoks);
    gy_bpe_destroy(h->bpe);
    gy_decs_fini(&h->decs);
    gy_mem_free(h);
}

/* ---- scratch ---- */

static void hf_scratch_destroy(void *scratch) {
    gy_hf_scratch *s = scratch;
    if (!s) return;
    gy_regex_scratch_destroy(s->regex);
    gy_bpe_scratch_destroy(s->bpe);
    gy_str_free(&s->norm[0]);
    gy_str_free(&s->norm[1]);
    gy_vec_free(&s->parts);
    gy_str_free(&s->pieces.text);
    gy_vec_free(&s->pieces.v);
    gy_str_free(&s->next.text);
    gy_vec_free(&s->next.v);
    gy_vec_free(&s->spans);
    gy_mem_free(s);
}

static gy_status hf_scratch_create(const gy_tok *t, void **out) {
    (void)t;
    gy_hf_scratch *s = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*s));
    if (!s) return GY_E_NOMEM;
    if (gy_regex_scratch_create(&s->regex) < 0 || gy_bpe_scratch_create(&s->bpe) < 0) {
        hf_scratch_destroy(s);
        return GY_E_NOMEM;
    }
    *out = s;
    return GY_OK;
}

/* ---- encode ---- */

static gy_status encode_part(const hf *h, gy_hf_scratch *s, const char *text, size_t len, int at_start, int64_t *steps,
                             gy_err *err, gy_vec_i32 *ids) {
    gy_str_clear(&s->pieces.text);
    gy_str_append(&s->pieces.text, text, len);
    s->pieces.v.len = 0;
    if (s->pieces.text.failed || gy_vec_push(&s->pieces.v, GY_MEM_TEXT, ((gy_piece){0, len, at_start})))
        return gy_err_set(err, GY_E_NOMEM, "no memory while tokenising");
    GY_TRY(gy_pretoks_apply(&h->pretoks, s, steps, err));
    for (size_t i = 0; i < s->pieces.v.len; i++) {
        const gy_piece *p = &s->pieces.v.data[i];
        GY_TRY(gy_bpe_encode(h->bpe, s->bpe, s->pieces.text.data + p->off, p->len, steps, err, ids));
    }
    return GY_OK;
}

static gy_status hf_encode(gy_tok_ctx *c, const char *text, size_t len, int at_start, unsigned flags, gy_err *err,
                           gy_vec_i32 *ids) {
    const hf *h = c->t->impl;
    gy_hf_scratch *s = c->scratch;
    int cut_left = 0;
    GY_TRY(gy_norms_apply(&h->norms, s, text, len, &c->steps, err, &text, &len, &cut_left));
    s->parts.len = 0;
    if (gy_added_cut(c->t->added, 1, text, len, flags, &c->steps, &s->parts) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory while tokenising");
    for (size_t i = 0; i < s->parts.len; i++) {
        gy_added_part p = s->parts.data[i];
        if (p.id < 0) {
            int start = at_start && !cut_left && p.off == 0;
            GY_TRY(encode_part(h, s, text + p.off, p.len, start, &c->steps, err, ids));
        } else if (gy_vec_push(ids, GY_MEM_TEXT, p.id))
            return gy_err_set(err, GY_E_NOMEM, "no memory while tokenising");
    }
    return GY_OK;
}

/* ---- decode and look-ups ---- */

static const char *hf_piece(const gy_tok *t, int32_t id, size_t *len_out) {
    const hf *h = t->impl;
    return gy_vocab_piece(gy_bpe_vocab(h->bpe), id, len_out);
}

static int32_t hf_id(const gy_tok *t, const char *piece, size_t len) {
    const hf *h = t->impl;
    return gy_vocab_get(gy_bpe_vocab(h->bpe), piece, len);
}

static gy_status hf_detok_push(const gy_tok *t, void *state, int32_t id, gy_err *err, gy_str *out) {
    const hf *h = t->impl;
    size_t len = 0;
    const char *piece = gy_tok_piece(t, id, &len);
    gy_status st = piece ? gy_decs_push(&h->decs, state, piece, len, out) : GY_OK;
    return st < 0 ? gy_err_set(err, st, "no memory while decoding") : GY_OK;
}

static gy_status hf_detok_finish(const gy_tok *t, void *state, gy_err *err, gy_str *out) {
    const hf *h = t->impl;
    gy_status st = gy_decs_finish(&h->decs, state, out);
    return st < 0 ? gy_err_set(err, st, "no memory while decoding") : GY_OK;
}

static void hf_detok_fini(void *state) {
    gy_decs_state_fini(state);
}

static gy_status hf_seal(gy_tok *t, gy_err *err);

static const gy_tok_ops hf_ops = {
    .name = "tokenizer.json BPE",
    .encode = hf_encode,
    .piece = hf_piece,
    .id = hf_id,
    .seal = hf_seal,
    .scratch_create = hf_scratch_create,
    .scratch_destroy = hf_scratch_destroy,
    .detok_bytes = sizeof(gy_decs_state),
    .detok_push = hf_detok_push,
    .detok_finish = hf_detok_finish,
    .detok_fini = hf_detok_fini,
    .destroy = hf_destroy,
};

/* ---- added tokens ---- */

/* The id that tokenizers would give: the model's own, or the next free one in the file's order. A file that says
 * something else was edited by hand: its embedding rows and its tokenizer disagree. */
static int32_t added_expected_id(const gy_tok *t, const char *content, size_t len, size_t vocab_size) {
    int32_t id = gy_added_id(t->added, content, len);
    if (id < 0) id = hf_id(t, content, len);
    if (id >= 0) return id;
    int32_t next = gy_added_n_id(t->added);
    return next > (int32_t)vocab_size ? next : (int32_t)vocab_size;
}

static unsigned added_flags(const gy_jv *v) {
    static const struct {
        const char *key;
        unsigned flag;
    } keys[] = {{"special", GY_ADDED_SPECIAL},
                {"lstrip", GY_ADDED_LSTRIP},
                {"rstrip", GY_ADDED_RSTRIP},
                {"single_word", GY_ADDED_SINGLE_WORD}};
    unsigned flags = 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (gy_jv_bool(gy_jv_get(v, keys[i].key), 0)) flags |= keys[i].flag;
    if (gy_jv_bool(gy_jv_get(v, "normalized"), !(flags & GY_ADDED_SPECIAL))) flags |= GY_ADDED_NORMALIZED;
    return flags;
}

static gy_status added_read_one(gy_tok *t, const gy_jv *v, gy_err *err) {
    const hf *h = t->impl;
    size_t len = 0;
    const char *content = gy_jv_str(gy_jv_get(v, "content"), &len);
    int64_t id = gy_jv_int(gy_jv_get(v, "id"), -1);
    if (!content || id < 0 || id >= GY_VOCAB_MAX_ID)
        return gy_err_set(err, GY_E_FORMAT, "expected an object with content and an id from 0 to %d",
                          GY_VOCAB_MAX_ID - 1);
    int32_t want = added_expected_id(t, content, len, gy_bpe_vocab(h->bpe)->n_piece);
    if (want != id)
        return gy_err_set(err, GY_E_FORMAT, "\"%.60s\" has id %d, but the vocabulary gives it %d", content, (int)id,
                          want);
    return gy_added_put(t->added, content, len, (int32_t)id, added_flags(v), err);
}

static gy_status added_read(gy_tok *t, const gy_jv *list, gy_err *err) {
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        gy_status st = added_read_one(t, gy_jv_at(list, i), err);
        if (st < 0) return gy_err_prefix(err, "added_tokens[%zu]", i);
    }
    return GY_OK;
}

/* Spellings of normalized added tokens are themselves normalised before they are looked for. */
static gy_status hf_seal(gy_tok *t, gy_err *err) {
    const hf *h = t->impl;
    void *scratch = NULL;
    gy_status st = hf_scratch_create(t, &scratch);
    for (size_t i = 0; st == GY_OK && i < gy_added_count(t->added); i++) {
        size_t len = 0;
        unsigned flags = 0;
        int64_t steps = 0;
        int cut_left;
        const char *s = gy_added_at(t->added, i, &len, &flags);
        if (!(flags & GY_ADDED_NORMALIZED)) continue;
        st = gy_norms_apply(&h->norms, scratch, s, len, &steps, err, &s, &len, &cut_left);
        if (st == GY_OK) st = gy_added_set_normal(t->added, i, s, len);
    }
    hf_scratch_destroy(scratch);
    return st == GY_E_NOMEM ? gy_err_set(err, st, "no memory for added tokens") : st;
}

/* ---- post-processor: which ids go around a text ---- */

static gy_status ids_put(gy_vec_i32 *v, const gy_tok *t, int64_t id, gy_err *err) {
    if (id < 0 || id >= t->n_vocab || !gy_tok_piece(t, (int32_t)id, NULL))
        return gy_err_set(err, GY_E_FORMAT, "id %lld is not in the vocabulary", (long long)id);
    return gy_vec_push(v, GY_MEM_TEXT, (int32_t)id) ? gy_err_set(err, GY_E_NOMEM, "no memory") : GY_OK;
}

static gy_status template_special(const gy_tok *t, const gy_jv *item, const gy_jv *specials, gy_vec_i32 *v,
                                  gy_err *err) {
    const char *name = gy_jv_str(gy_jv_get(item, "id"), NULL);
    const gy_jv *ids = gy_jv_get(name ? gy_jv_get(specials, name) : NULL, "ids");
    if (gy_jv_len(ids) == 0)
        return gy_err_set(err, GY_E_FORMAT, "special_tokens has no ids for \"%.60s\"", name ? name : "?");
    for (size_t i = 0; i < gy_jv_len(ids); i++) GY_TRY(ids_put(v, t, gy_jv_int(gy_jv_at(ids, i), -1), err));
    return GY_OK;
}

/* [special]* Sequence A [special]*: before and after. */
static gy_status template_read(const gy_tok *t, const gy_jv *v, gy_vec_i32 *before, gy_vec_i32 *after, gy_err *err) {
    const gy_jv *single = gy_jv_get(v, "single");
    int n_text = 0;
    for (size_t i = 0; i < gy_jv_len(single); i++) {
        const gy_jv *item = gy_jv_at(single, i), *text = gy_jv_get(item, "Sequence");
        const gy_jv *special = gy_jv_get(item, "SpecialToken");
        if (text && gy_jv_is_str(gy_jv_get(text, "id"), "A"))
            n_text++;
        else if (special)
            GY_TRY(template_special(t, special, gy_jv_get(v, "special_tokens"), n_text ? after : before, err));
        else
            return gy_err_set(err, GY_E_FORMAT, "single[%zu] is neither a SpecialToken nor Sequence A", i);
    }
    if (n_text != 1)
        return gy_err_set(err, GY_E_UNSUPPORTED, "single holds the text %d times, once is supported", n_text);
    return GY_OK;
}

/* Bert and Roberta: ["[CLS]", id] text ["[SEP]", id]. */
static gy_status cls_sep_read(const gy_tok *t, const gy_jv *v, gy_vec_i32 *before, gy_vec_i32 *after, gy_err *err) {
    GY_TRY(ids_put(before, t, gy_jv_int(gy_jv_at(gy_jv_get(v, "cls"), 1), -1), err));
    return ids_put(after, t, gy_jv_int(gy_jv_at(gy_jv_get(v, "sep"), 1), -1), err);
}

static gy_status post_read(gy_tok *t, const gy_jv *v, gy_err *err);

static gy_status post_read_sequence(gy_tok *t, const gy_jv *v, gy_err *err) {
    const gy_jv *list = gy_jv_get(v, "processors");
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        gy_status st = post_read(t, gy_jv_at(list, i), err);
        if (st < 0) return gy_err_prefix(err, "processors[%zu]", i);
    }
    return GY_OK;
}

static gy_status post_read(gy_tok *t, const gy_jv *v, gy_err *err) {
    const gy_jv *type = gy_jv_get(v, "type");
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL || gy_jv_is_str(type, "ByteLevel")) return GY_OK;
    if (gy_jv_is_str(type, "Sequence")) return post_read_sequence(t, v, err);
    if (t->prefix.len || t->suffix.len) /* tokenizers makes something odd of it */
        return gy_err_set(err, GY_E_UNSUPPORTED, "more than one processor that adds ids is not supported");
    if (gy_jv_is_str(type, "TemplateProcessing")) return template_read(t, v, &t->prefix, &t->suffix, err);
    if (gy_jv_is_str(type, "BertProcessing") || gy_jv_is_str(type, "RobertaProcessing"))
        return cls_sep_read(t, v, &t->prefix, &t->suffix, err);
    return gy_err_set(err, GY_E_UNSUPPORTED, "post-processor \"%.60s\" is not supported",
                      gy_jv_str(type, NULL) ? gy_jv_str(type, NULL) : "without type");
}

/* ---- opening ---- */

static gy_status hf_begin(gy_tok *t, gy_err *err) {
    hf *h = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*h));
    if (!h) return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    t->ops = &hf_ops;
    t->impl = h;
    t->bos = t->eos = -1;
    return GY_OK;
}

static void hf_set_size(gy_tok *t) {
    const hf *h = t->impl;
    t->n_vocab = gy_bpe_vocab(h->bpe)->n_id;
    if (gy_added_n_id(t->added) > t->n_vocab) t->n_vocab = gy_added_n_id(t->added);
}

/* The model's type; old files have none and are BPE when they have merges. */
static gy_status model_check(const gy_jv *model, gy_err *err) {
    const gy_jv *type = gy_jv_get(model, "type");
    if (gy_jv_type(model) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_FORMAT, "expected an object, found %s", gy_jtype_name(gy_jv_type(model)));
    if (gy_jv_is_str(type, "BPE") || (!type && gy_jv_get(model, "merges"))) return GY_OK;
    return gy_err_set(err, GY_E_UNSUPPORTED,
                      "type \"%.60s\" is not supported (BPE is; SentencePiece's unigram is read "
                      "from tokenizer.model)",
                      gy_jv_str(type, NULL) ? gy_jv_str(type, NULL) : "none");
}

static gy_status model_read(gy_tok *t, const gy_jv *root, gy_err *err) {
    hf *h = t->impl;
    GY_TRY(model_check(gy_jv_get(root, "model"), err));
    return gy_bpe_read(gy_jv_get(root, "model"), err, &h->bpe);
}

static gy_status hf_read(gy_tok *t, const gy_jv *root, gy_err *err) {
    hf *h = t->impl;
    if (gy_jv_type(root) != GY_J_OBJECT) return gy_err_set(err, GY_E_FORMAT, "expected an object");
    if (gy_norms_read(gy_jv_get(root, "normalizer"), err, &h->norms) < 0) return gy_err_prefix(err, "normalizer");
    if (gy_pretoks_read(gy_jv_get(root, "pre_tokenizer"), err, &h->pretoks) < 0)
        return gy_err_prefix(err, "pre_tokenizer");
    if (gy_decs_read(gy_jv_get(root, "decoder"), err, &h->decs) < 0) return gy_err_prefix(err, "decoder");
    if (model_read(t, root, err) < 0) return gy_err_prefix(err, "model");
    GY_TRY(added_read(t, gy_jv_get(root, "added_tokens"), err));
    hf_set_size(t);
    if (post_read(t, gy_jv_get(root, "post_processor"), err) < 0) return gy_err_prefix(err, "post_processor");
    return GY_OK;
}

gy_status gy_hf_open_json(gy_tok *t, const char *json, size_t len, const char *name, gy_err *err) {
    gy_json *doc = NULL;
    gy_err here = {0};
    if (!err) err = &here; /* prefixes need a place */
    gy_status st = hf_begin(t, err);
    if (st == GY_OK) st = gy_json_parse(json, len, NULL, err, &doc);
    if (st == GY_OK) st = hf_read(t, gy_json_root(doc), err);
    gy_json_free(doc);
    if (st < 0) return gy_err_prefix(err, "%s", name);
    snprintf(t->kind, sizeof(t->kind), "tokenizer.json BPE");
    return GY_OK;
}

/* GPT-2's fixed parts as JSON, so that there is one reader. */
static gy_status gpt2_parts(hf *h, int add_prefix_space, gy_err *err) {
    gy_json *doc = NULL;
    char parts[96];
    int n = snprintf(parts, sizeof(parts), "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"use_regex\":true}",
                     add_prefix_space ? "true" : "false");
    gy_status st = gy_json_parse(parts, (size_t)n, NULL, err, &doc);
    if (st == GY_OK) st = gy_pretoks_read(gy_json_root(doc), err, &h->pretoks);
    if (st == GY_OK) st = gy_decs_read(gy_json_root(doc), err, &h->decs);
    gy_json_free(doc);
    return st;
}

gy_status gy_hf_open_gpt2(gy_tok *t, const char *vocab_path, const char *merges_path, int add_prefix_space,
                          gy_err *err) {
    gy_json *doc = NULL;
    gy_str merges = {0};
    gy_err here = {0};
    if (!err) err = &here;
    GY_TRY(hf_begin(t, err));
    hf *h = t->impl;
    gy_status st = gpt2_parts(h, add_prefix_space, err);
    if (st == GY_OK) st = gy_json_read(vocab_path, NULL, err, &doc);
    if (st == GY_OK) st = gy_file_read(merges_path, 64u << 20, err, &merges);
    if (st == GY_OK) {
        st = gy_bpe_read_gpt2(gy_json_root(doc), gy_str_z(&merges), merges.len, err, &h->bpe);
        if (st < 0) gy_err_prefix(err, "%s, %s", vocab_path, merges_path);
    }
    gy_json_free(doc);
    gy_str_free(&merges);
    if (st < 0) return st;
    hf_set_size(t);
    snprintf(t->kind, sizeof(t->kind), "vocab.json + merges.txt BPE");
    return GY_OK;
}
