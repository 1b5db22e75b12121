/* Logprobs in OpenAI's two shapes: four parallel arrays (completions), a list of objects (chat); and vLLM's
 * prompt_logprobs. Every list has one entry per token, prompt included with echo; the first token of a text has none.
 *
 * A token that is no valid UTF-8 by itself is written "bytes:\xNN..." in completions, where names are keys and must
 * differ, and with U+FFFD plus its bytes in chat.
 */
#include "server/oai_reply_int.h"

#include "server/oai_write.h"

#include <string.h>

static const char *piece_of(gy_oai_reply *r, int32_t id, size_t *n) {
    *n = 0;
    const char *s = r->o.piece ? r->o.piece(r->o.piece_user, id, n) : NULL;
    if (!s) *n = 0;
    return s ? s : "";
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static void put_bytes_name(const char *s, size_t n, gy_str *out) {
    static const char hex[] = "0123456789abcdef";
    GY_OAI_PUT(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) {
        char x[] = {'\\', '\\', 'x', hex[(unsigned char)s[i] >> 4], hex[(unsigned char)s[i] & 15]};
        gy_str_append(out, x, sizeof x);
    }
    gy_str_putc(out, '"');
}

static void put_id_name(int32_t id, gy_str *out) {
    GY_OAI_PUT(out, "\"token_id:");
    gy_oai_put_int(out, id);
    gy_str_putc(out, '"');
}

static void put_name(gy_oai_reply *r, int32_t id, gy_str *out) {
    size_t n;
    const char *s = piece_of(r, id, &n);
    if (r->q->tokens_as_ids)
        put_id_name(id, out);
    else if (!r->chat && !gy_utf8_valid(s, n))
        put_bytes_name(s, n, out);
    else
        gy_oai_put_str(out, s, n);
}

/* ---- characters ------------------------------------------------------------------------------------------------- */

/* Counts the whole characters of tail + piece; an invalid stretch is one, as in the text (U+FFFD). */
static void count_chars(gy_oai_chars *c, const char *s, size_t n) {
    while (n) {
        uint32_t cp;
        if (!c->n_tail && (unsigned char)*s < 0x80) {
            c->n++, s++, n--;
            continue;
        }
        c->tail[c->n_tail++] = *s++;
        n--;
        if ((size_t)gy_utf8_incomplete_tail(c->tail, c->n_tail) == c->n_tail) continue;
        size_t used = (size_t)gy_utf8_decode(c->tail, c->n_tail, &cp);
        c->n++;
        memmove(c->tail, c->tail + used, c->n_tail - used);
        c->n_tail -= used;
        if (c->n_tail && (unsigned char)c->tail[0] < 0x80) c->n++, c->n_tail = 0;
    }
}

/* ---- completions ------------------------------------------------------------------------------------------------ */

static void comma(gy_str *s) {
    if (s->len) gy_str_putc(s, ',');
}

static void add_token(gy_oai_reply *r, gy_oai_lp *lp, gy_oai_chars *at, int32_t id) {
    size_t n;
    comma(&lp->offset);
    gy_oai_put_int(&lp->offset, at->n);
    comma(&lp->token);
    put_name(r, id, &lp->token);
    const char *s = piece_of(r, id, &n);
    count_chars(at, s, n);
}

/* Has the object that begins at s[from] a member with the name s[name..len)? Names are compared as they are written. */
static int has_name(const gy_str *s, const size_t *names, const size_t *lens, int n, size_t name, size_t len) {
    for (int i = 0; i < n; i++)
        if (lens[i] == len && !memcmp(s->data + names[i], s->data + name, len)) return 1;
    return 0;
}

typedef struct top_map { /* an object under way in out; equal names are written once, the likeliest wins */
    size_t names[32], lens[32];
    int n;
} top_map;

static void put_top(gy_oai_reply *r, top_map *m, int32_t id, float logprob, gy_str *out) {
    size_t before = out->len;
    if (m->n) gy_str_putc(out, ',');
    size_t name = out->len;
    put_name(r, id, out);
    if (out->failed) return;
    size_t len = out->len - name;
    if (m->n == 32 || has_name(out, m->names, m->lens, m->n, name, len)) {
        out->len = before;
        out->data[before] = '\0';
        return;
    }
    m->names[m->n] = name;
    m->lens[m->n++] = len;
    gy_str_putc(out, ':');
    gy_oai_put_logprob(out, logprob);
}

/* The alternatives and the chosen token, which may stand beyond them. `limit`: the client's number of them. */
static void put_top_map(gy_oai_reply *r, const gyre_event *ev, int32_t limit, gy_str *out) {
    top_map m = {.n = 0};
    gy_str_putc(out, '{');
    for (int32_t i = 0; i < ev->n_top && i < limit; i++) put_top(r, &m, ev->top[i].id, ev->top[i].logprob, out);
    put_top(r, &m, ev->id, ev->logprob, out);
    gy_str_putc(out, '}');
}

static void add_completion(gy_oai_reply *r, gy_oai_lp *lp, gy_oai_chars *at, const gyre_event *ev) {
    add_token(r, lp, at, ev->id);
    comma(&lp->logprob);
    gy_oai_put_logprob(&lp->logprob, ev->logprob);
    comma(&lp->top);
    put_top_map(r, ev, r->q->logprobs, &lp->top);
}

/* ---- chat ------------------------------------------------------------------------------------------------------- */

/* Without the closing brace: the chosen token gets its alternatives. */
static void put_object(gy_oai_reply *r, int32_t id, float logprob, gy_str *out) {
    GY_OAI_PUT(out, "{\"token\":");
    put_name(r, id, out);
    GY_OAI_PUT(out, ",\"logprob\":");
    gy_oai_put_logprob(out, logprob);
    GY_OAI_PUT(out, ",\"bytes\":[");
    size_t n;
    const char *s = piece_of(r, id, &n);
    for (size_t i = 0; i < n; i++) {
        if (i) gy_str_putc(out, ',');
        gy_oai_put_int(out, (unsigned char)s[i]);
    }
    gy_str_putc(out, ']');
}

static void add_chat(gy_oai_reply *r, gy_str *out, const gyre_event *ev) {
    comma(out);
    put_object(r, ev->id, ev->logprob, out);
    GY_OAI_PUT(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < ev->n_top && i < r->q->logprobs; i++) {
        if (i) gy_str_putc(out, ',');
        put_object(r, ev->top[i].id, ev->top[i].logprob, out);
        gy_str_putc(out, '}');
    }
    GY_OAI_PUT(out, "]}");
}

void gy_oai_lp_add(gy_oai_reply *r, gy_oai_lp *lp, gy_oai_chars *at, const gyre_event *ev) {
    if (r->chat)
        add_chat(r, &lp->token, ev);
    else
        add_completion(r, lp, at, ev);
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

void gy_oai_lp_add_first(gy_oai_reply *r, gy_oai_rprompt *p) {
    if (p->n_lp || !p->n_ids) return;
    p->n_lp = 1;
    GY_OAI_PUT(&p->explicit, "null");
    if (!r->q->echo || r->q->logprobs < 0) return;
    add_token(r, &p->lp, &p->chars, p->ids[0]);
    GY_OAI_PUT(&p->lp.logprob, "null");
    GY_OAI_PUT(&p->lp.top, "null");
}

static void put_ranked(gy_oai_reply *r, int32_t id, float logprob, int32_t rank, gy_str *out) {
    gy_str_putc(out, '"');
    gy_oai_put_int(out, id);
    GY_OAI_PUT(out, "\":{\"logprob\":");
    gy_oai_put_logprob(out, logprob);
    GY_OAI_PUT(out, ",\"rank\":");
    if (rank)
        gy_oai_put_int(out, rank);
    else
        GY_OAI_PUT(out, "null");
    GY_OAI_PUT(out, ",\"decoded_token\":");
    size_t n;
    const char *s = piece_of(r, id, &n);
    gy_oai_put_str(out, s, n);
    gy_str_putc(out, '}');
}

/* {"ID":{"logprob","rank","decoded_token"}}: the prompt's token first; its rank is known among the alternatives only.
 */
static void add_explicit(gy_oai_reply *r, gy_str *out, const gyre_event *ev) {
    int32_t rank = 0, limit = r->q->prompt_logprobs;
    for (int32_t i = ev->n_top; i-- > 0;)
        if (ev->top[i].id == ev->id) rank = i + 1;
    GY_OAI_PUT(out, ",{");
    put_ranked(r, ev->id, ev->logprob, rank, out);
    for (int32_t i = 0; i < ev->n_top && i < limit; i++) {
        if (ev->top[i].id == ev->id) continue;
        gy_str_putc(out, ',');
        put_ranked(r, ev->top[i].id, ev->top[i].logprob, i + 1, out);
    }
    gy_str_putc(out, '}');
}

void gy_oai_lp_add_prompt(gy_oai_reply *r, gy_oai_rprompt *p, const gyre_event *ev) {
    gy_oai_lp_add_first(r, p);
    p->n_lp++;
    if (r->q->prompt_logprobs >= 0) add_explicit(r, &p->explicit, ev);
    if (r->q->echo && r->q->logprobs >= 0) add_completion(r, &p->lp, &p->chars, ev);
}

/* ---- out -------------------------------------------------------------------------------------------------------- */

static void put_list(const char *key, const gy_str *before, const gy_str *s, gy_str *out) {
    gy_str_puts(out, key);
    if (before) gy_str_append(out, gy_str_z(before), before->len);
    if (before && before->len && s->len) gy_str_putc(out, ',');
    gy_str_append(out, gy_str_z(s), s->len);
    gy_str_putc(out, ']');
}

/* before: of the prompt, NULL without echo. */
void gy_oai_lp_put(const gy_oai_reply *r, const gy_oai_lp *before, const gy_oai_lp *lp, gy_str *out) {
    if (r->chat) {
        put_list("{\"content\":[", NULL, &lp->token, out);
    } else {
        put_list("{\"text_offset\":[", before ? &before->offset : NULL, &lp->offset, out);
        put_list(",\"token_logprobs\":[", before ? &before->logprob : NULL, &lp->logprob, out);
        put_list(",\"tokens\":[", before ? &before->token : NULL, &lp->token, out);
        put_list(",\"top_logprobs\":[", before ? &before->top : NULL, &lp->top, out);
    }
    gy_str_putc(out, '}');
}

void gy_oai_lp_clear(gy_oai_lp *lp) {
    gy_str_clear(&lp->offset);
    gy_str_clear(&lp->logprob);
    gy_str_clear(&lp->token);
    gy_str_clear(&lp->top);
}

void gy_oai_lp_free(gy_oai_lp *lp) {
    gy_str_free(&lp->offset);
    gy_str_free(&lp->logprob);
    gy_str_free(&lp->token);
    gy_str_free(&lp->top);
}
