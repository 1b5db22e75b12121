/* A rendered chat to ids. The text is cut at added tokens run by run (a run: neighbouring bytes of one origin), so that
 * none is found across the border of markup and data; what lies between the cuts is encoded as one text, borders or
 * not, because that is how the model saw it in training. The exception: a tokenizer that looks for special tokens in
 * normalised text looks inside the kind, so there each run is encoded for itself.
 */
#include "text/chat_int.h"
#include "text/tok_int.h"

#include <string.h>

typedef struct encoding {
    const gy_chat *chat;
    gy_tok_ctx *ctx;
    const char *text;
    size_t from; /* everything before has its ids */
    int by_run;  /* no text across a border */
    gy_vec_i32 controls;
    gy_err *err;
    gy_vec_i32 *ids;
} encoding;

static int in_template(const gy_jinja *t, const char *s, size_t len) {
    size_t n;
    if (!t) return 0;
    const char *source = gy_jinja_source(t, &n);
    return memmem(source, n, s, len) != NULL;
}

/* The added tokens that are not special and that the template speaks in. They look like <this> or [this]: a run of
 * blanks, which tokenizers also add, does not. */
static gy_status find_controls(encoding *e) {
    const gy_added *added = e->ctx->t->added;
    for (size_t i = 0; i < gy_added_count(added); i++) {
        unsigned flags;
        size_t len;
        const char *s = gy_added_at(added, i, &len, &flags);
        int looks = len > 2 && ((s[0] == '<' && s[len - 1] == '>') || (s[0] == '[' && s[len - 1] == ']'));
        if (flags & GY_ADDED_SPECIAL || !looks) continue;
        if (!in_template(e->chat->main, s, len) && !in_template(e->chat->tool_use, s, len)) continue;
        if (gy_vec_push(&e->controls, GY_MEM_TEXT, gy_added_id(added, s, len)))
            return gy_err_set(e->err, GY_E_NOMEM, "no memory while tokenising");
    }
    return GY_OK;
}

static int is_control(const encoding *e, int32_t id) {
    for (size_t i = 0; i < e->controls.len; i++)
        if (e->controls.data[i] == id) return 1;
    return 0;
}

static gy_status flush(encoding *e, size_t to, unsigned flags) {
    if (to <= e->from) return GY_OK;
    size_t from = e->from;
    e->from = to;
    return e->ctx->t->ops->encode(e->ctx, e->text + from, to - from, from == 0, flags, e->err, e->ids);
}

static gy_status encode_part(encoding *e, const gy_added_part *p, size_t base, int is_data) {
    size_t off = base + p->off, end = off + p->len;
    if (p->id < 0 || (is_data && is_control(e, p->id))) return GY_OK; /* stays text */
    GY_TRY(flush(e, off, is_data || !e->by_run ? 0 : GY_TOK_PARSE_SPECIAL));
    if (gy_vec_push(e->ids, GY_MEM_TEXT, p->id)) return gy_err_set(e->err, GY_E_NOMEM, "no memory while tokenising");
    if (end > e->from) e->from = end;
    return GY_OK;
}

static gy_status encode_run(encoding *e, const gy_jinja_segment *run, gy_added_parts *parts) {
    unsigned flags = run->is_data ? 0 : GY_TOK_PARSE_SPECIAL;
    parts->len = 0;
    if (gy_added_cut(e->ctx->t->added, 0, e->text + run->off, run->len, flags, &e->ctx->steps, parts) < 0)
        return gy_err_set(e->err, GY_E_NOMEM, "no memory while tokenising");
    for (size_t i = 0; i < parts->len; i++) GY_TRY(encode_part(e, &parts->data[i], run->off, run->is_data));
    return e->by_run ? flush(e, run->off + run->len, flags) : GY_OK;
}

/* Special tokens that are looked for after normalisation, inside the kind. */
static int has_normalized_special(const gy_tok *t) {
    unsigned flags, both = GY_ADDED_SPECIAL | GY_ADDED_NORMALIZED;
    for (size_t i = 0; t->ops->seal && i < gy_added_count(t->added); i++)
        if (gy_added_at(t->added, i, NULL, &flags) && (flags & both) == both) return 1;
    return 0;
}

gy_status gy_chat_encode(const gy_chat *c, gy_tok_ctx *ctx, const gy_jinja_out *rendered, gy_err *err,
                         gy_vec_i32 *ids) {
    encoding e = {.chat = c, .ctx = ctx, .text = gy_str_z(&rendered->text), .err = err, .ids = ids};
    gy_added_parts parts = {0};
    size_t before = ids->len;
    gy_status st = find_controls(&e);
    e.by_run = has_normalized_special(ctx->t);
    ctx->steps = (int64_t)rendered->text.len;
    for (size_t i = 0; st == GY_OK && i < rendered->seg.len; i++) st = encode_run(&e, &rendered->seg.data[i], &parts);
    if (st == GY_OK) st = flush(&e, rendered->text.len, 0);
    gy_vec_free(&parts);
    gy_vec_free(&e.controls);
    if (st < 0) ids->len = before; /* outputs only on success */
    return st;
}
