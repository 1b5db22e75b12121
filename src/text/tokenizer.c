/* tokenizer.h: the part that all kinds share. Which file of a folder is read, added tokens in raw text, what goes
 * around a text, skipping special tokens, and the life of gy_tok, gy_tok_ctx and gy_detok. Kinds: tok_int.h.
 */
#include "text/tokenizer.h"

#include "base/file.h"
#include "text/tok_config.h"
#include "text/tok_int.h"

#include <string.h>

/* ---- opening ---- */

static gy_status tok_create(gy_err *err, gy_tok **out) {
    gy_tok *t = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*t));
    if (t) {
        t->bos = t->eos = -1;
        t->added = gy_added_create();
    }
    if (!t || !t->added) {
        gy_tok_close(t);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    }
    *out = t;
    return GY_OK;
}

/* The last step of each opener: the matcher of added tokens, and the final size. */
static gy_status tok_seal(gy_tok *t, gy_err *err) {
    if (t->ops->seal) GY_TRY(t->ops->seal(t, err));
    if (gy_added_build(t->added, !t->ops->seal) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for added tokens");
    int32_t n = gy_added_n_id(t->added);
    if (n > t->n_vocab) t->n_vocab = n;
    return GY_OK;
}

static gy_status tok_finish(gy_tok *t, gy_status st, gy_tok **out) {
    if (st < 0)
        gy_tok_close(t);
    else
        *out = t;
    return st;
}

gy_status gy_tok_open_json(const char *json, size_t len, const char *name, gy_err *err, gy_tok **out) {
    gy_tok *t = NULL;
    GY_TRY(tok_create(err, &t));
    gy_status st = gy_hf_open_json(t, json, len, name, err);
    if (st == GY_OK) st = tok_seal(t, err);
    return tok_finish(t, st, out);
}

gy_status gy_tok_open_spm(const void *data, size_t len, const char *name, gy_err *err, gy_tok **out) {
    gy_tok *t = NULL;
    GY_TRY(tok_create(err, &t));
    gy_status st = gy_spm_open(t, data, len, name, err);
    if (st == GY_OK) st = tok_seal(t, err);
    return tok_finish(t, st, out);
}

/* What gy_tok_open looks for, in this order. */
typedef enum tok_files { FILES_NONE, FILES_SPM, FILES_JSON, FILES_GPT2 } tok_files;

static int has_file(const char *dir, const char *name) {
    char *path = gy_path_join(dir, name);
    int found = path && gy_file_exists(path);
    gy_mem_free(path);
    return found;
}

static tok_files find_files(const char *dir) {
    if (has_file(dir, "tokenizer.model")) return FILES_SPM;
    if (has_file(dir, "tokenizer.json")) return FILES_JSON;
    return has_file(dir, "vocab.json") && has_file(dir, "merges.txt") ? FILES_GPT2 : FILES_NONE;
}

int gy_tok_exists(const char *dir) {
    return find_files(dir) != FILES_NONE;
}

static gy_status open_mapped(gy_tok *t, const char *path, tok_files files, gy_err *err) {
    gy_map map = {0};
    GY_TRY(gy_map_open(path, err, &map));
    const char *data = map.data ? map.data : "";
    gy_status st =
        files == FILES_SPM ? gy_spm_open(t, data, map.size, path, err) : gy_hf_open_json(t, data, map.size, path, err);
    gy_map_close(&map);
    return st;
}

static gy_status open_files(gy_tok *t, const char *dir, tok_files files, const gy_tok_config *c, gy_err *err) {
    static const char *const names[] = {NULL, "tokenizer.model", "tokenizer.json", "vocab.json"};
    char *path = gy_path_join(dir, names[files]), *merges = gy_path_join(dir, "merges.txt");
    gy_status st = path && merges ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    if (st == GY_OK && files == FILES_GPT2)
        st = gy_hf_open_gpt2(t, path, merges, gy_tok_config_add_prefix_space(c), err);
    else if (st == GY_OK)
        st = open_mapped(t, path, files, err);
    gy_mem_free(path);
    gy_mem_free(merges);
    return st;
}

static gy_status open_with_config(gy_tok *t, const char *dir, tok_files files, gy_err *err) {
    gy_tok_config c = {0};
    GY_TRY(gy_tok_config_open(dir, err, &c));
    gy_status st = open_files(t, dir, files, &c, err);
    if (st == GY_OK) {
        st = gy_tok_config_apply(&c, t, files == FILES_SPM, err);
        if (st < 0) gy_err_prefix(err, "%s/tokenizer_config.json", dir);
    }
    gy_tok_config_close(&c);
    return st == GY_OK ? tok_seal(t, err) : st;
}

gy_status gy_tok_open(const char *dir, gy_err *err, gy_tok **out) {
    gy_err here = {0};
    if (!err) err = &here; /* prefixes need a place */
    tok_files files = find_files(dir);
    if (files == FILES_NONE)
        return gy_err_set(err, GY_E_IO,
                          "%s: no tokenizer: expected tokenizer.model, tokenizer.json, or vocab.json with merges.txt",
                          dir);
    gy_tok *t = NULL;
    GY_TRY(tok_create(err, &t));
    return tok_finish(t, open_with_config(t, dir, files, err), out);
}

void gy_tok_close(gy_tok *t) {
    if (!t) return;
    if (t->ops) t->ops->destroy(t->impl);
    gy_added_destroy(t->added);
    gy_vec_free(&t->prefix);
    gy_vec_free(&t->suffix);
    gy_mem_free(t);
}

/* ---- what it is ---- */

int32_t gy_tok_n_vocab(const gy_tok *t) {
    return t->n_vocab;
}

int32_t gy_tok_bos(const gy_tok *t) {
    return t->bos;
}

int32_t gy_tok_eos(const gy_tok *t) {
    return t->eos;
}

const char *gy_tok_kind(const gy_tok *t) {
    return t->kind[0] ? t->kind : t->ops->name;
}

const char *gy_tok_piece(const gy_tok *t, int32_t id, size_t *len_out) {
    const char *s = gy_added_piece(t->added, id, len_out, NULL);
    return s ? s : t->ops->piece(t, id, len_out);
}

int32_t gy_tok_id(const gy_tok *t, const char *piece, size_t len) {
    int32_t id = gy_added_id(t->added, piece, len);
    return id >= 0 ? id : t->ops->id(t, piece, len);
}

int gy_tok_is_special(const gy_tok *t, int32_t id) {
    unsigned flags = 0;
    if (gy_added_piece(t->added, id, NULL, &flags) && flags & GY_ADDED_SPECIAL) return 1;
    return t->ops->is_special ? t->ops->is_special(t, id) : 0;
}

/* ---- encode ---- */

gy_status gy_tok_ctx_create(const gy_tok *t, gy_tok_ctx **out) {
    gy_tok_ctx *c = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*c));
    if (!c) return GY_E_NOMEM;
    c->t = t;
    gy_status st = t->ops->scratch_create ? t->ops->scratch_create(t, &c->scratch) : GY_OK;
    if (st < 0) {
        gy_mem_free(c);
        return st;
    }
    *out = c;
    return GY_OK;
}

void gy_tok_ctx_destroy(gy_tok_ctx *c) {
    if (!c) return;
    if (c->t->ops->scratch_destroy) c->t->ops->scratch_destroy(c->scratch);
    gy_str_free(&c->clean);
    gy_vec_free(&c->parts);
    gy_mem_free(c);
}

int64_t gy_tok_ctx_steps(const gy_tok_ctx *c) {
    return c->steps;
}

static gy_status no_memory(gy_err *err) {
    return gy_err_set(err, GY_E_NOMEM, "no memory while tokenising");
}

static gy_status put_ids(const gy_vec_i32 *from, gy_err *err, gy_vec_i32 *ids) {
    if (gy_vec_reserve(ids, GY_MEM_TEXT, from->len)) return no_memory(err);
    for (size_t i = 0; i < from->len; i++) ids->data[ids->len++] = from->data[i];
    return GY_OK;
}

static gy_status encode_clean(gy_tok_ctx *c, const char *text, size_t len, unsigned flags, gy_err *err,
                              gy_vec_i32 *ids) {
    c->parts.len = 0;
    if (gy_added_cut(c->t->added, 0, text, len, flags, &c->steps, &c->parts) < 0) return no_memory(err);
    if (flags & GY_TOK_ADD_SPECIAL) GY_TRY(put_ids(&c->t->prefix, err, ids));
    for (size_t i = 0; i < c->parts.len; i++) {
        gy_added_part p = c->parts.data[i];
        if (p.id < 0)
            GY_TRY(c->t->ops->encode(c, text + p.off, p.len, p.off == 0, flags, err, ids));
        else if (gy_vec_push(ids, GY_MEM_TEXT, p.id))
            return no_memory(err);
    }
    return flags & GY_TOK_ADD_SPECIAL ? put_ids(&c->t->suffix, err, ids) : GY_OK;
}

gy_status gy_tok_encode(gy_tok_ctx *c, const char *text, size_t len, unsigned flags, gy_err *err, gy_vec_i32 *ids) {
    size_t before = ids->len;
    c->steps = (int64_t)len;
    if (!gy_utf8_valid(text, len)) {
        gy_str_clear(&c->clean);
        gy_utf8_sanitize(text, len, &c->clean);
        if (c->clean.failed) return no_memory(err);
        text = gy_str_z(&c->clean);
        len = c->clean.len;
    }
    gy_status st = encode_clean(c, text, len, flags, err, ids);
    if (st < 0) ids->len = before; /* outputs only on success */
    return st;
}

/* ---- decode ---- */

struct gy_detok {
    const gy_tok *t;
    int skip_special;
    void *state; /* the kind's */
};

gy_status gy_detok_create(const gy_tok *t, int skip_special, gy_detok **out) {
    gy_detok *d = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*d));
    if (d) d->state = gy_mem_alloc(GY_MEM_TEXT, t->ops->detok_bytes ? t->ops->detok_bytes : 1, 1);
    if (!d || !d->state) {
        gy_mem_free(d);
        return GY_E_NOMEM;
    }
    d->t = t;
    d->skip_special = skip_special;
    *out = d;
    return GY_OK;
}

void gy_detok_destroy(gy_detok *d) {
    if (!d) return;
    d->t->ops->detok_fini(d->state);
    gy_mem_free(d->state);
    gy_mem_free(d);
}

/* tokenizers leaves out what is special by its spelling: a special token that normalisation respelled stays. */
static int is_skipped(const gy_tok *t, int32_t id) {
    unsigned flags = 0;
    if (gy_added_piece(t->added, id, NULL, &flags) && flags & GY_ADDED_RESPELLED) return 0;
    return gy_tok_is_special(t, id);
}

gy_status gy_detok_push(gy_detok *d, int32_t id, gy_err *err, gy_str *out) {
    if (id < 0 || id >= d->t->n_vocab)
        return gy_err_set(err, GY_E_ARG, "token id %d is outside the vocabulary of %d", id, d->t->n_vocab);
    if (d->skip_special && is_skipped(d->t, id)) return GY_OK;
    if (!gy_tok_piece(d->t, id, NULL)) return GY_OK; /* a hole in the vocabulary has no text */
    return d->t->ops->detok_push(d->t, d->state, id, err, out);
}

gy_status gy_detok_finish(gy_detok *d, gy_err *err, gy_str *out) {
    return d->t->ops->detok_finish(d->t, d->state, err, out);
}

gy_status gy_tok_decode(const gy_tok *t, const int32_t *ids, size_t n, int skip_special, gy_err *err, gy_str *out) {
    gy_detok *d;
    size_t before = out->len;
    if (gy_detok_create(t, skip_special, &d) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory while decoding");
    gy_status st = GY_OK;
    for (size_t i = 0; st == GY_OK && i < n; i++) st = gy_detok_push(d, ids[i], err, out);
    if (st == GY_OK) st = gy_detok_finish(d, err, out);
    gy_detok_destroy(d);
    if (st < 0 && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return st;
}

/* ---- pieces that are bytes --------------------------------------------------------------------------------------- */

/* The byte that a character of a byte-level vocabulary stands for (GPT-2's bytes_to_unicode: printable Latin-1 is
 * itself, the other 68 bytes follow from U+0100 on, in order). -1: none. */
static int byte_of(uint32_t cp) {
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255)) return (int)cp;
    if (cp < 256 || cp > 256 + 67) return -1;
    int k = (int)cp - 256;
    return k < 33 ? k : k < 67 ? 127 + k - 33 : 173;
}

/* The byte of a piece "<0xHH>", -1: it is not such a one. */
static int byte_piece(const char *s, size_t n) {
    static const char hex[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    const char *hi = memchr(hex, s[3], 16), *lo = memchr(hex, s[4], 16);
    return hi && lo ? (int)((hi - hex) * 16 + (lo - hex)) : -1;
}

int gy_tok_piece_bytes(const char *piece, size_t n, gy_str *out) {
    size_t before = out->len;
    int byte = byte_piece(piece, n);
    if (byte >= 0) gy_str_putc(out, (char)byte);
    for (size_t i = 0; byte < 0 && i < n;) {
        uint32_t cp;
        i += (size_t)gy_utf8_decode(piece + i, n - i, &cp);
        int b = byte_of(cp);
        if (b < 0) {
            out->len = before;
            if (out->data) out->data[before] = 0;
            return 0;
        }
        gy_str_putc(out, (char)b);
    }
    return 1;
}
