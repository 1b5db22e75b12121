/* Tokens to text with stop strings, for one choice; text to tokens for whoever asks. */
#include "api/api_int.h"

#include <string.h>

/* ---- a choice's text -------------------------------------------------------------------------------------------- */

static gy_status text_reserve(gy_str *s, size_t bytes) {
    gy_str_printf(s, "%*s", (int)bytes, "");
    int failed = s->failed;
    gy_str_clear(s); /* forgets that too */
    return failed ? GY_E_NOMEM : GY_OK;
}

static size_t longest_stop(const gyre_string *stop, int32_t n) {
    size_t most = 0;
    for (int32_t i = 0; i < n; i++)
        if (stop[i].n > most) most = stop[i].n;
    return most;
}

/* Takes its memory now, so that a token's text allocates nothing later: three bytes (U+FFFD) for each byte of the
 * longest spelling, and for what the detokenizer keeps, that token pushed twice and forgotten. */
static gy_status text_warm(gy_api_text *t, const gy_api_model *m, size_t held, gy_err *err) {
    size_t piece = 3 * m->long_bytes + 16;
    gy_status st;
    if (piece > 1 << 20) piece = 1 << 20;
    if (text_reserve(&t->out, piece + held) < 0 || (t->stop && text_reserve(&t->raw, piece) < 0))
        return gy_err_set(err, GY_E_NOMEM, "no memory for text");
    if (m->long_id < 0) return GY_OK;
    GY_TRY_GOTO(st, gy_detok_push(t->detok, m->long_id, err, &t->out), fail);
    GY_TRY_GOTO(st, gy_detok_push(t->detok, m->long_id, err, &t->out), fail);
    GY_TRY_GOTO(st, gy_detok_finish(t->detok, err, &t->out), fail);
    gy_str_clear(&t->out);
    return GY_OK;
fail:
    return gy_err_set(err, st, "no memory for text");
}

gy_status gy_api_text_open(gy_api_text *t, const gy_api_model *m, const gyre_string *stop, int32_t n_stop,
                           gy_err *err) {
    gy_stop_string list[GY_MAX_STOP];
    if (!m->tok) return GY_OK;
    if (gy_detok_create(m->tok, 1, &t->detok) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for text");
    for (int32_t i = 0; i < n_stop; i++) list[i] = (gy_stop_string){stop[i].s, stop[i].n};
    if (n_stop) GY_TRY(gy_stop_create(list, (size_t)n_stop, err, &t->stop));
    return text_warm(t, m, longest_stop(stop, n_stop), err);
}

void gy_api_text_close(gy_api_text *t) {
    gy_detok_destroy(t->detok);
    gy_stop_destroy(t->stop);
    gy_str_free(&t->raw);
    gy_str_free(&t->out);
    *t = (gy_api_text){0};
}

static void text_judge(gy_api_text *t, gy_status st) {
    if (st < 0) t->status = st;
    if (t->raw.failed || t->out.failed) t->status = GY_E_NOMEM;
}

/* What the detokenizer let go into out. search: a stop string in it ends the text; without, it goes past them. */
static void text_emit(gy_api_text *t, int search) {
    if (!t->stop) return;
    if (search)
        t->hit = gy_stop_push(t->stop, gy_str_z(&t->raw), t->raw.len, &t->out, &t->which);
    else
        gy_str_append(&t->out, gy_str_z(&t->raw), t->raw.len);
}

/* Ids behind the tokenizer's vocabulary exist where a model pads its own: they have no text. */
void gy_api_text_push(gy_api_text *t, const gy_tok *tok, int32_t id, int search) {
    gy_str_clear(&t->out);
    gy_str_clear(&t->raw);
    if (!t->detok || t->hit || id >= gy_tok_n_vocab(tok)) return;
    text_judge(t, gy_detok_push(t->detok, id, NULL, t->stop ? &t->raw : &t->out));
    text_emit(t, search);
    text_judge(t, GY_OK);
}

void gy_api_text_end(gy_api_text *t, int search) {
    gy_str_clear(&t->out);
    gy_str_clear(&t->raw);
    if (!t->detok || t->hit) return;
    text_judge(t, gy_detok_finish(t->detok, NULL, t->stop ? &t->raw : &t->out));
    text_emit(t, search);
    if (t->stop) gy_stop_finish(t->stop, &t->out);
    text_judge(t, GY_OK);
}

/* ---- tokenize, detokenize --------------------------------------------------------------------------------------- */

static gy_tok_ctx *ctx_take(gyre *g) {
    gy_tok_ctx *c = NULL;
    pthread_mutex_lock(&g->ctx_lock);
    if (g->n_ctx) c = g->ctx[--g->n_ctx];
    pthread_mutex_unlock(&g->ctx_lock);
    return c;
}

static void ctx_give(gyre *g, gy_tok_ctx *c) {
    pthread_mutex_lock(&g->ctx_lock);
    int keep = g->n_ctx < GY_API_CTX;
    if (keep) g->ctx[g->n_ctx++] = c;
    pthread_mutex_unlock(&g->ctx_lock);
    if (!keep) gy_tok_ctx_destroy(c);
}

static gy_status need_tokenizer(const gyre *g, const char *what, gy_err *err) {
    if (g->m.tok) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: the model's folder holds no tokenizer; work with token ids", what);
}

gy_status gy_api_encode(gyre *g, const char *text, size_t len, unsigned flags, gy_err *err, gy_vec_i32 *ids) {
    GY_TRY(need_tokenizer(g, "prompt", err));
    gy_tok_ctx *c = ctx_take(g);
    if (!c && gy_tok_ctx_create(g->m.tok, &c) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    gy_status st = gy_tok_encode(c, text, len, flags, err, ids);
    ctx_give(g, c);
    return st;
}

gyre_status gyre_tokenize(gyre *g, const char *text, size_t n_text, unsigned flags, gyre_err *err, int32_t *ids_out,
                          size_t cap, size_t *n_out) {
    gy_vec_i32 ids = {0};
    gy_err e = {0};
    unsigned f =
        (flags & GYRE_ADD_SPECIAL ? GY_TOK_ADD_SPECIAL : 0) | (flags & GYRE_PARSE_SPECIAL ? GY_TOK_PARSE_SPECIAL : 0);
    gy_status st = gy_api_encode(g, text, n_text, f, &e, &ids);
    if (st == GY_OK) {
        *n_out = ids.len;
        if (ids.len > cap)
            st = gy_err_set(&e, GY_AGAIN, "%zu ids do not fit the %zu that there is room for", ids.len, cap);
        else if (ids.len)
            memcpy(ids_out, ids.data, ids.len * sizeof *ids_out);
    }
    gy_vec_free(&ids);
    return st == GY_OK ? GYRE_OK : gy_api_status(&e, err);
}

static gy_status decode(const gyre *g, gy_detok *d, const int32_t *ids, size_t n, gy_err *err, gy_str *out) {
    int32_t n_tok = gy_tok_n_vocab(g->m.tok), n_vocab = n_tok > g->m.d.n_vocab ? n_tok : g->m.d.n_vocab;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "token id %d is outside the vocabulary of %d", ids[i], n_vocab);
        /* A model says such ids too: gy_api_text_push. */
        if (ids[i] < n_tok) GY_TRY(gy_detok_push(d, ids[i], err, out));
    }
    return gy_detok_finish(d, err, out);
}

gyre_status gyre_detokenize(gyre *g, const int32_t *ids, size_t n_ids, int skip_special, gyre_err *err, char *text_out,
                            size_t cap, size_t *n_out) {
    gy_str text = {0};
    gy_err e = {0};
    gy_detok *d = NULL;
    gy_status st = need_tokenizer(g, "text", &e);
    if (st == GY_OK) st = gy_detok_create(g->m.tok, skip_special, &d);
    if (st == GY_OK) st = decode(g, d, ids, n_ids, &e, &text);
    gy_detok_destroy(d);
    if (st < 0 && !e.msg[0]) gy_err_set(&e, st, "no memory for text");
    if (st == GY_OK) {
        *n_out = text.len;
        if (text.len >= cap)
            st = gy_err_set(&e, GY_AGAIN, "%zu bytes and a NUL do not fit the %zu that there is room for", text.len,
                            cap);
        else
            memcpy(text_out, gy_str_z(&text), text.len + 1);
    }
    gy_str_free(&text);
    return st == GY_OK ? GYRE_OK : gy_api_status(&e, err);
}
