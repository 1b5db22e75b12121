/* Text to ids and back for the routes. Prompts and whole texts go through gyre.h, so that they are the engine's; the
 * tokenizer is opened a second time for what the API does not tell: how single tokens read.
 */
#include "server/app_int.h"
#include "server/app_model.h"

#include "base/mem.h"

#include <string.h>

gy_status gy_app_model_open(const gy_app_opts *o, int has_tokenizer, gy_err *err, gy_app_model **out) {
    gy_app_model *m = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *m);
    if (!m) return gy_err_set(err, GY_E_NOMEM, "server: no memory");
    m->before = -1;
    gy_status st = has_tokenizer ? gy_tok_open(o->dir, err, &m->tok) : GY_OK;
    if (st == GY_OK && m->tok) m->before = gy_tok_id(m->tok, "a", 1);
    if (st == GY_OK) st = gy_app_chat_open(o, err, &m->chat);
    if (st < 0) {
        gy_app_model_close(m);
        return st;
    }
    *out = m;
    return GY_OK;
}

void gy_app_model_close(gy_app_model *m) {
    if (!m) return;
    gy_app_chat_close(m->chat);
    gy_tok_close(m->tok);
    gy_mem_free(m);
}

gy_status gy_app_scratch_open(gy_app *a, gy_err *err, gy_app_scratch **out) {
    gy_app_scratch *t = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *t);
    if (!t || (a->model->tok && gy_tok_ctx_create(a->model->tok, &t->ctx) < 0)) {
        gy_mem_free(t);
        return gy_err_set(err, GY_E_NOMEM, "server: no memory for the tokenizer");
    }
    t->app = a;
    *out = t;
    return GY_OK;
}

void gy_app_scratch_close(gy_app_scratch *t) {
    if (!t) return;
    gy_tok_ctx_destroy(t->ctx);
    gy_str_free(&t->piece);
    gy_mem_free(t);
}

/* ---- single tokens ----------------------------------------------------------------------------------------------- */

static int spell_bytes(gy_app_scratch *t, int32_t id) {
    size_t n;
    const char *s = gy_tok_piece(t->app->model->tok, id, &n);
    gy_str_clear(&t->piece);
    return s && gy_tok_piece_bytes(s, n, &t->piece);
}

/* Behind a letter, because decoders take blanks away at the beginning of a text. */
static int spell_text(gy_app_scratch *t, int32_t id, size_t *skip_out) {
    const gy_app_model *m = t->app->model;
    const int32_t two[2] = {m->before, id};
    size_t skip = m->before >= 0;
    gy_str_clear(&t->piece);
    if (gy_tok_decode(m->tok, two + 1 - skip, 1 + skip, 0, NULL, &t->piece) < 0 || t->piece.len < skip) return 0;
    *skip_out = skip;
    return 1;
}

const char *gy_app_piece(void *user, int32_t id, size_t *n_out) {
    static const char broken[] = "\xEF\xBF\xBD";
    gy_app_scratch *t = user;
    size_t skip = 0;
    *n_out = 0;
    int found = spell_text(t, id, &skip);
    if (found && t->piece.len && strstr(gy_str_z(&t->piece) + skip, broken)) {
        if (spell_bytes(t, id))
            skip = 0;
        else
            found = spell_text(t, id, &skip);
    }
    if (!found || t->piece.failed) return NULL;
    *n_out = t->piece.len - skip;
    return gy_str_z(&t->piece) + skip;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static gy_status no_memory(gy_oai_error *e) {
    return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this text now; try again later");
}

/* A token is at least a byte of most texts: the first guess is nearly always enough. */
gy_status gy_app_encode(gy_app *a, const char *text, size_t n, unsigned flags, gy_oai_error *e, gy_vec_i32 *ids) {
    for (size_t room = n + 16;;) {
        gyre_err err = {0};
        size_t got;
        if (gy_vec_reserve(ids, GY_MEM_SERVER, room)) return no_memory(e);
        gyre_status st = gyre_tokenize(a->g, text, n, flags, &err, ids->data + ids->len, ids->cap - ids->len, &got);
        if (st < 0) return gy_oai_error_from_status(e, st, err.msg);
        if (st == GYRE_OK) {
            ids->len += got;
            return GY_OK;
        }
        room = got;
    }
}

gy_status gy_app_decode(gy_app *a, const int32_t *ids, size_t n, int skip_special, gy_oai_error *e, gy_str *out) {
    for (size_t room = n * 4 + 64;;) {
        gyre_err err = {0};
        size_t got;
        char *buf = gy_mem_alloc(GY_MEM_SERVER, room, 1);
        if (!buf) return no_memory(e);
        gyre_status st = gyre_detokenize(a->g, ids, n, skip_special, &err, buf, room, &got);
        if (st == GYRE_OK) gy_str_append(out, buf, got);
        gy_mem_free(buf);
        if (st < 0) return gy_oai_error_from_status(e, st, err.msg);
        if (st == GYRE_OK) return out->failed ? no_memory(e) : GY_OK;
        room = got + 1;
    }
}

static gy_status add_ids(const gy_oai_seg *s, gy_oai_error *e, gy_vec_i32 *ids) {
    if (s->n_ids == 0) return GY_OK;
    if (gy_vec_reserve(ids, GY_MEM_SERVER, (size_t)s->n_ids)) return no_memory(e);
    memcpy(ids->data + ids->len, s->ids, (size_t)s->n_ids * sizeof *s->ids);
    ids->len += (size_t)s->n_ids;
    return GY_OK;
}

/* The last tokens stay: the end of a prompt is what is to be continued. */
static int cut_front(gy_vec_i32 *ids, int32_t keep) {
    if (keep <= 0 || ids->len <= (size_t)keep) return 0;
    memmove(ids->data, ids->data + ids->len - (size_t)keep, (size_t)keep * sizeof *ids->data);
    ids->len = (size_t)keep;
    return 1;
}

gy_status gy_app_prompt(gy_app *a, const gy_oai_request *q, int32_t i, gy_oai_error *e, gy_vec_i32 *ids, int *is_cut) {
    const gy_oai_prompt *p = &q->prompts[i];
    int plain = q->kind == GY_OAI_TOKENIZE ? !q->parse_special : q->base.plain_prompt;
    unsigned parse = plain ? 0 : GYRE_PARSE_SPECIAL;
    for (int32_t k = 0; k < p->n_seg; k++) {
        const gy_oai_seg *s = &p->seg[k];
        unsigned special = k == 0 && q->add_special_tokens ? GYRE_ADD_SPECIAL : 0;
        if (s->text)
            GY_TRY(gy_app_encode(a, s->text, s->n_text, parse | special, e, ids));
        else
            GY_TRY(add_ids(s, e, ids));
    }
    *is_cut = cut_front(ids, q->truncate_prompt);
    return GY_OK;
}
