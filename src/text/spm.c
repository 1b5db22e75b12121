/* The SentencePiece kind (tok_int.h): encode = normalise, segment, spans to ids; decode = pieces to text.
 *
 * Each segment between added tokens is encoded as a text of its own, dummy prefix included: what Hugging Face's slow
 * LlamaTokenizer does by default ("legacy"), whose definition is the SentencePiece library (nanbeige.md, tokenizer).
 * Control pieces (<s>, </s>, ...) are registered as special added tokens, so that GY_TOK_PARSE_SPECIAL finds them in
 * chat templates; without it their spellings are plain text, as in the library.
 *
 * Not here: tokenizer_config.json (tokenizer.c), sampling, word and char models.
 */
#include "text/spm_int.h"

#include <string.h>

#define SPACE_SYMBOL "\xe2\x96\x81" /* U+2581 */
#define REPLACEMENT "\xef\xbf\xbd"  /* U+FFFD */

/* ---- encode ---- */

static gy_status spm_scratch_create(const gy_tok *t, void **out) {
    const gy_spm *m = t->impl;
    gy_spm_scratch *s = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof *s);
    if (!s) return GY_E_NOMEM;
    if (m->n_unused) {
        s->split = gy_mem_alloc(GY_MEM_TEXT, (size_t)m->n_piece, sizeof *s->split);
        if (!s->split) {
            gy_mem_free(s);
            return GY_E_NOMEM;
        }
    }
    *out = s;
    return GY_OK;
}

static void spm_scratch_destroy(void *scratch) {
    gy_spm_scratch *s = scratch;
    if (!s) return;
    gy_str_free(&s->norm);
    gy_vec_free(&s->symbol);
    gy_vec_free(&s->heap);
    gy_vec_free(&s->best);
    gy_vec_free(&s->span);
    gy_mem_free(s->split);
    gy_mem_free(s);
}

static int bytes_emit(const gy_spm *m, const gy_spm_scratch *s, const gy_spm_span *span, gy_vec_i32 *ids) {
    for (uint32_t i = 0; i < span->len; i++) {
        uint8_t byte = (uint8_t)s->norm.data[span->off + i];
        if (gy_vec_push(ids, GY_MEM_TEXT, m->byte_id[byte])) return -1;
    }
    return 0;
}

/* Unknown spans become their bytes, or one unknown id for a run of them. */
static gy_status spans_emit(const gy_spm *m, const gy_spm_scratch *s, gy_err *err, gy_vec_i32 *ids) {
    int after_unknown = 0;
    for (size_t i = 0; i < s->span.len; i++) {
        const gy_spm_span *span = &s->span.data[i];
        int unknown = span->id == m->unk, failed = 0;
        if (unknown && m->byte_fallback) {
            failed = bytes_emit(m, s, span, ids);
        } else if (!unknown || !after_unknown) {
            failed = gy_vec_push(ids, GY_MEM_TEXT, span->id);
        }
        if (failed) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu token ids", ids->len);
        after_unknown = unknown;
    }
    return GY_OK;
}

static gy_status spm_encode(gy_tok_ctx *c, const char *text, size_t len, int at_start, unsigned flags, gy_err *err,
                            gy_vec_i32 *ids) {
    (void)at_start;
    (void)flags;
    const gy_spm *m = c->t->impl;
    gy_spm_scratch *s = c->scratch;
    s->steps = 0;
    gy_status st = gy_spm_normalize(m, s, text, len, err);
    if (st >= 0) st = m->algo == GY_SPM_BPE ? gy_spm_encode_bpe(m, s, err) : gy_spm_encode_unigram(m, s, err);
    if (st >= 0) st = spans_emit(m, s, err, ids);
    c->steps += s->steps + (int64_t)s->span.len;
    return st;
}

/* ---- decode ---- */

typedef struct spm_detok {
    uint8_t byte[4]; /* byte pieces that do not yet make a character: a so far valid beginning, at most 3 */
    uint8_t n_byte;
    uint8_t any_text;  /* something came out before */
    uint8_t past_head; /* the space of the dummy prefix has been dealt with */
} spm_detok;

/* Drops n bytes off the front. */
static void byte_drop(spm_detok *d, int n) {
    d->n_byte = (uint8_t)(d->n_byte - n);
    memmove(d->byte, d->byte + n, d->n_byte);
}

/* Writes what is certain among the waiting bytes: characters, and U+FFFD for each byte that begins none. With `all`
 * also an unfinished beginning, byte by byte. */
static void byte_flush(spm_detok *d, int all, gy_str *out) {
    while (d->n_byte) {
        const char *s = (const char *)d->byte;
        uint32_t cp;
        int n = gy_utf8_decode(s, d->n_byte, &cp);
        if (cp != 0xFFFFFFFF) {
            gy_str_append(out, s, (size_t)n);
            byte_drop(d, n);
        } else if (!all && gy_utf8_incomplete_tail(s, d->n_byte) == d->n_byte) {
            return;
        } else {
            gy_str_puts(out, REPLACEMENT);
            byte_drop(d, 1);
        }
        d->any_text = 1;
    }
}

/* The piece with U+2581 turned into spaces. */
static void piece_put(gy_str *out, const char *s, size_t len) {
    size_t run = 0;
    for (size_t i = 0; i + 3 <= len;) {
        if (memcmp(s + i, SPACE_SYMBOL, 3)) {
            i++;
            continue;
        }
        gy_str_append(out, s + run, i - run);
        gy_str_putc(out, ' ');
        i += 3;
        run = i;
    }
    gy_str_append(out, s + run, len - run);
}

/* Takes the dummy prefix off the first piece with text. Where extra white space is removed, every piece loses a leading
 * space until there is text: the library does so. */
static void head_strip(const gy_spm *m, spm_detok *d, const char **s, size_t *len) {
    if (d->past_head || !(m->add_dummy_prefix || m->remove_extra_ws)) return;
    if (*len < 3 || memcmp(*s, SPACE_SYMBOL, 3)) return;
    *s += 3;
    *len -= 3;
    if (!m->remove_extra_ws) d->past_head = 1;
}

static void text_put(const gy_spm *m, spm_detok *d, int32_t id, const char *s, size_t len, gy_str *out) {
    size_t before = out->len;
    head_strip(m, d, &s, &len);
    if (id == m->unk) {
        gy_str_append(out, m->unk_surface.data, m->unk_surface.len);
    } else {
        piece_put(out, s, len);
    }
    if (out->len > before) d->any_text = 1;
    if (d->any_text) d->past_head = 1;
}

static int byte_value(const char *piece) { /* of "<0xHH>", checked at load */
    static const char digits[] = "0123456789ABCDEF";
    return (int)(strchr(digits, piece[3]) - digits) * 16 + (int)(strchr(digits, piece[4]) - digits);
}

static gy_status spm_detok_push(const gy_tok *t, void *state, int32_t id, gy_err *err, gy_str *out) {
    const gy_spm *m = t->impl;
    spm_detok *d = state;
    size_t len = 0;
    const char *s = gy_spm_piece(m, id, &len);
    if (s && m->type[id] == GY_SPM_BYTE) {
        d->byte[d->n_byte++] = (uint8_t)byte_value(s);
        byte_flush(d, 0, out);
    } else {
        byte_flush(d, 1, out);
        if (d->any_text) d->past_head = 1;
        if (!s) s = gy_added_piece(t->added, id, &len, NULL);
        if (id >= m->n_piece) {
            gy_str_append(out, s, len);
            d->any_text |= len > 0;
        } else if (m->type[id] != GY_SPM_CONTROL) {
            text_put(m, d, id, s, len, out);
        }
    }
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for decoded text") : GY_OK;
}

static gy_status spm_detok_finish(const gy_tok *t, void *state, gy_err *err, gy_str *out) {
    (void)t;
    spm_detok *d = state;
    byte_flush(d, 1, out);
    memset(d, 0, sizeof *d);
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for decoded text") : GY_OK;
}

static void spm_detok_fini(void *state) {
    (void)state; /* owns nothing */
}

/* ---- the kind ---- */

static const char *spm_piece(const gy_tok *t, int32_t id, size_t *len_out) {
    return gy_spm_piece(t->impl, id, len_out);
}

static int32_t spm_id(const gy_tok *t, const char *piece, size_t len) {
    return gy_spm_id(t->impl, piece, len);
}

static int spm_is_special(const gy_tok *t, int32_t id) {
    const gy_spm *m = t->impl;
    return id >= 0 && id < m->n_piece && m->type[id] == GY_SPM_CONTROL;
}

static void spm_destroy(void *impl) {
    if (!impl) return;
    gy_spm_fini(impl);
    gy_mem_free(impl);
}

static const gy_tok_ops spm_ops = {
    .name = "SentencePiece",
    .encode = spm_encode,
    .piece = spm_piece,
    .id = spm_id,
    .is_special = spm_is_special,
    .scratch_create = spm_scratch_create,
    .scratch_destroy = spm_scratch_destroy,
    .detok_bytes = sizeof(spm_detok),
    .detok_push = spm_detok_push,
    .detok_finish = spm_detok_finish,
    .detok_fini = spm_detok_fini,
    .destroy = spm_destroy,
};

/* A control piece by name; -1 if the name is another kind of piece or absent. */
static int32_t control_id(const gy_spm *m, const gy_str *name) {
    int32_t id = gy_spm_id(m, name->data, name->len);
    return id >= 0 && m->type[id] == GY_SPM_CONTROL ? id : -1;
}

static gy_status controls_add(const gy_spm *m, gy_added *added, gy_err *err) {
    for (int32_t id = 0; id < m->n_piece; id++) {
        if (m->type[id] != GY_SPM_CONTROL) continue;
        size_t len;
        const char *s = gy_spm_piece(m, id, &len);
        GY_TRY(gy_added_put(added, s, len, id, GY_ADDED_SPECIAL, err));
    }
    return GY_OK;
}

gy_status gy_spm_open(gy_tok *t, const void *data, size_t len, const char *name, gy_err *err) {
    gy_spm *m = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof *m);
    if (!m) return gy_err_set(err, GY_E_NOMEM, "%s: no memory", name);
    t->ops = &spm_ops;
    t->impl = m;
    GY_TRY(gy_spm_load(m, data, len, name, err));
    const char *kind = m->algo == GY_SPM_BPE ? "SentencePiece BPE" : "SentencePiece unigram";
    memcpy(t->kind, kind, strlen(kind) + 1);
    t->n_vocab = m->n_piece;
    t->bos = control_id(m, &m->bos_piece);
    t->eos = control_id(m, &m->eos_piece);
    return controls_add(m, t->added, err);
}
