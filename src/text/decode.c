/* Decoders of tokenizer.json as one streaming machine: ids' spellings -> text.
 *
 * tokenizers' decoders map a list of strings to a list of strings, then join it. Here each stage takes bytes and ends
 * of tokens and hands on bytes and ends of tokens, holding back only what later input can change: ByteLevel     a
 * token's bytes until its end (one character outside the alphabet makes the whole token literal), and an unfinished
 * UTF-8 sequence across tokens; its output is one token ByteFallback  a run of <0xHH> tokens: the run is text if it is
 * valid UTF-8 as a whole, else one U+FFFD for each byte; as soon as it cannot become valid any more, they are handed on
 *   Fuse          nothing: drops the ends of tokens
 *   Strip         up to `stop` characters at the end of a token
 *   Replace       a partial match
 *   Metaspace     nothing
 * Bytes are handed on in whole characters (the input's spellings are valid UTF-8).
 */
#include "text/hf_int.h"

#include <string.h>

/* ---- reading ---- */

static gy_status read_char(const gy_jv *v, const char *key, gy_err *err, gy_str *out) {
    size_t len = 0;
    uint32_t cp;
    const char *s = gy_jv_str(gy_jv_get(v, key), &len);
    if (!s || len == 0 || (size_t)gy_utf8_decode(s, len, &cp) != len)
        return gy_err_set(err, GY_E_FORMAT, "%s: expected a string of one character", key);
    gy_str_append(out, s, len);
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the decoder") : GY_OK;
}

/* fall[i]: length of the longest proper prefix of `from` that ends at byte i. */
static gy_status fall_build(gy_dec *d, gy_err *err) {
    if (gy_vec_reserve(&d->fall, GY_MEM_TEXT, d->from.len)) return gy_err_set(err, GY_E_NOMEM, "no memory");
    d->fall.data[d->fall.len++] = 0;
    for (size_t i = 1; i < d->from.len; i++) {
        int32_t k = d->fall.data[i - 1];
        while (k > 0 && d->from.data[i] != d->from.data[k]) k = d->fall.data[k - 1];
        d->fall.data[d->fall.len++] = k + (d->from.data[i] == d->from.data[k]);
    }
    return GY_OK;
}

static gy_status read_replace(const gy_jv *v, gy_err *err, gy_dec *d) {
    size_t from_len = 0, to_len = 0;
    const gy_jv *pattern = gy_jv_get(v, "pattern");
    const char *from = gy_jv_str(gy_jv_get(pattern, "String"), &from_len);
    const char *to = gy_jv_str(gy_jv_get(v, "content"), &to_len);
    if (gy_jv_get(pattern, "Regex"))
        return gy_err_set(err, GY_E_UNSUPPORTED, "decoder \"Replace\" with a Regex is not supported (String is)");
    if (!from || from_len == 0 || from_len > INT32_MAX)
        return gy_err_set(err, GY_E_FORMAT, "pattern: expected {\"String\": ...} that is not empty");
    if (!to) return gy_err_set(err, GY_E_FORMAT, "content: expected a string");
    d->kind = GY_DEC_REPLACE;
    gy_str_append(&d->from, from, from_len);
    gy_str_append(&d->to, to, to_len);
    if (d->from.failed || d->to.failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the decoder");
    return fall_build(d, err);
}

static gy_status read_strip(const gy_jv *v, gy_err *err, gy_dec *d) {
    d->kind = GY_DEC_STRIP;
    d->start = gy_jv_int(gy_jv_get(v, "start"), -1);
    d->stop = gy_jv_int(gy_jv_get(v, "stop"), -1);
    if (d->start < 0 || d->stop < 0)
        return gy_err_set(err, GY_E_FORMAT, "Strip: start and stop must be integers from 0 on");
    return read_char(v, "content", err, &d->from);
}

static gy_status read_metaspace(const gy_jv *v, gy_err *err, gy_dec *d) {
    const gy_jv *scheme = gy_jv_get(v, "prepend_scheme");
    d->kind = GY_DEC_METASPACE;
    d->drop_first = scheme ? !gy_jv_is_str(scheme, "never") : gy_jv_bool(gy_jv_get(v, "add_prefix_space"), 1);
    return read_char(v, "replacement", err, &d->from);
}

static gy_status dec_read_one(const gy_jv *v, gy_err *err, gy_dec *d) {
    const gy_jv *type = gy_jv_get(v, "type");
    if (gy_jv_is_str(type, "ByteLevel"))
        d->kind = GY_DEC_BYTE_LEVEL;
    else if (gy_jv_is_str(type, "ByteFallback"))
        d->kind = GY_DEC_BYTE_FALLBACK;
    else if (gy_jv_is_str(type, "Fuse"))
        d->kind = GY_DEC_FUSE;
    else if (gy_jv_is_str(type, "Strip"))
        return read_strip(v, err, d);
    else if (gy_jv_is_str(type, "Replace"))
        return read_replace(v, err, d);
    else if (gy_jv_is_str(type, "Metaspace"))
        return read_metaspace(v, err, d);
    else if (!gy_jv_str(type, NULL))
        return gy_err_set(err, GY_E_FORMAT, "decoder without a type");
    else
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "decoder \"%.60s\" is not supported (ByteLevel, ByteFallback, Fuse, Strip, Replace, "
                          "Metaspace and Sequence are)",
                          gy_jv_str(type, NULL));
    return GY_OK;
}

static gy_status decs_read(const gy_jv *v, gy_err *err, gy_decs *out) {
    if (!gy_jv_is_str(gy_jv_get(v, "type"), "Sequence")) {
        if (out->n == GY_DEC_MAX) return gy_err_set(err, GY_E_LIMIT, "decoder has more than %d stages", GY_DEC_MAX);
        return dec_read_one(v, err, &out->dec[out->n++]);
    }
    const gy_jv *list = gy_jv_get(v, "decoders");
    if (gy_jv_type(list) != GY_J_ARRAY) return gy_err_set(err, GY_E_FORMAT, "Sequence without decoders");
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        gy_status st = decs_read(gy_jv_at(list, i), err, out);
        if (st < 0) return gy_err_prefix(err, "decoders[%zu]", i);
    }
    return GY_OK;
}

gy_status gy_decs_read(const gy_jv *v, gy_err *err, gy_decs *out) {
    if (gy_jv_type(v) != GY_J_NONE && gy_jv_type(v) != GY_J_NULL) return decs_read(v, err, out);
    out->dec[out->n++].kind = GY_DEC_SPACES;
    return GY_OK;
}

void gy_decs_fini(gy_decs *d) {
    for (int i = 0; i < d->n; i++) {
        gy_str_free(&d->dec[i].from);
        gy_str_free(&d->dec[i].to);
        gy_vec_free(&d->dec[i].fall);
    }
    d->n = 0;
}

/* ---- the machine ---- */

typedef struct machine {
    const gy_decs *d;
    gy_decs_state *s;
    gy_str *out;
} machine;

/* Stage i takes bytes of the current token, the end of a token, the end of the text. i == d->n: the output. */
static void feed(const machine *m, int i, const char *bytes, size_t len);
static void end_token(const machine *m, int i);

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* ByteLevel. held: [bytes not yet handed on][count bytes of the current token]. */

/* Rewrites the token in place as the bytes it spells. 0 and untouched when a character is outside the alphabet. */
static int token_to_bytes(char *token, size_t *len) {
    uint32_t cp;
    for (size_t k = 0; k < *len;) {
        k += (size_t)gy_utf8_decode(token + k, *len - k, &cp);
        if (gy_char_to_byte(cp) < 0) return 0;
    }
    size_t n = 0;
    for (size_t k = 0; k < *len;) {
        k += (size_t)gy_utf8_decode(token + k, *len - k, &cp);
        token[n++] = (char)gy_char_to_byte(cp);
    }
    *len = n;
    return 1;
}

/* Hands on bytes with U+FFFD for each maximal invalid subpart. */
static void feed_lossy(const machine *m, int i, const char *bytes, size_t len) {
    size_t from = 0;
    for (size_t k = 0; k < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(bytes + k, len - k, &cp);
        if (cp == 0xFFFFFFFFu) {
            feed(m, i, bytes + from, k - from);
            feed(m, i, REPLACEMENT, 3);
            from = k + n;
        }
        k += n;
    }
    feed(m, i, bytes + from, len - from);
}

static void byte_level_end(const machine *m, int i) {
    gy_dec_state *st = &m->s->st[i];
    size_t n_token = (size_t)st->count, keep = st->held.len - n_token;
    st->count = 0;
    if (st->held.len == 0) return;
    if (token_to_bytes(st->held.data + keep, &n_token)) st->held.len = keep + n_token;
    size_t tail = (size_t)gy_utf8_incomplete_tail(st->held.data, st->held.len), done = st->held.len - tail;
    feed_lossy(m, i + 1, st->held.data, done);
    memmove(st->held.data, st->held.data + done, tail);
    st->held.len = tail;
}

/* ByteFallback. held: [bytes of the run][count bytes of the current token]; phase 1: the run is broken and what came of
 * it was handed on. */

/* The byte that "<0xHH>" stands for, else -1. A sign in the first place is read as 0, as Rust's from_str_radix does. */
static int byte_token(const char *t, size_t len) {
    if (len != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>') return -1;
    int value = 0;
    for (int k = 3; k < 5; k++) {
        char c = t[k], low = (char)(c | 32);
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (k == 3 && c == '+') digit = 0;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void put_broken(const machine *m, int i, size_t n) {
    for (size_t k = 0; k < n; k++) {
        feed(m, i + 1, REPLACEMENT, 3);
        end_token(m, i + 1);
    }
}

static void run_end(const machine *m, int i, size_t n_run) {
    gy_dec_state *st = &m->s->st[i];
    if (n_run && gy_utf8_valid(st->held.data, n_run)) {
        feed(m, i + 1, st->held.data, n_run);
        end_token(m, i + 1);
    } else
        put_broken(m, i, n_run);
    st->phase = 0;
}

/* Whether a run whose bytes but the last could be completed to valid UTF-8 still can. Looks at its end only. */
static int run_can_be_valid(const gy_str *run) {
    size_t from = run->len > 4 ? run->len - 4 : 0, tail = (size_t)gy_utf8_incomplete_tail(run->data, run->len);
    while (from > 0 && ((unsigned char)run->data[from] & 0xC0) == 0x80) from--;
    return from + tail >= run->len || gy_utf8_valid(run->data + from, run->len - tail - from);
}

static void byte_fallback_end(const machine *m, int i) {
    gy_dec_state *st = &m->s->st[i];
    size_t n_token = (size_t)st->count, n_run = st->held.len - n_token;
    if (st->held.len == 0) return;
    int b = byte_token(st->held.data + n_run, n_token);
    st->count = 0;
    if (b < 0) {
        run_end(m, i, n_run);
        feed(m, i + 1, st->held.data + n_run, n_token);
        end_token(m, i + 1);
        st->held.len = 0;
        return;
    }
    st->held.data[n_run] = (char)b;
    st->held.len = n_run + 1;
    if (!st->phase && run_can_be_valid(&st->held)) return;
    put_broken(m, i, st->held.len);
    st->held.len = 0;
    st->phase = 1;
}

/* Strip: count is the number of content characters seen at the start, or held back at the end (phase 1). */

static void put_content(const machine *m, int i, int64_t n) {
    const gy_str *c = &m->d->dec[i].from;
    for (int64_t k = 0; k < n; k++) feed(m, i + 1, c->data, c->len);
}

static void strip_char(const machine *m, int i, const char *c, size_t n) {
    const gy_dec *d = &m->d->dec[i];
    gy_dec_state *st = &m->s->st[i];
    int is_content = n == d->from.len && memcmp(c, d->from.data, n) == 0;
    if (!st->phase && is_content && st->count < d->start) {
        st->count++;
        return;
    }
    if (!st->phase) {
        st->phase = 1;
        st->count = 0;
    }
    if (!is_content) {
        put_content(m, i, st->count);
        st->count = 0;
        feed(m, i + 1, c, n);
    } else if (st->count < d->stop)
        st->count++;
    else
        put_content(m, i, 1);
}

/* Replace: count bytes of the pattern are matched and held back. */

static void replace_byte(const machine *m, int i, char c) {
    const gy_dec *d = &m->d->dec[i];
    gy_dec_state *st = &m->s->st[i];
    while (st->count > 0 && d->from.data[st->count] != c) {
        int64_t shorter = d->fall.data[st->count - 1];
        gy_str_append(&st->held, d->from.data, (size_t)(st->count - shorter));
        st->count = shorter;
    }
    if (d->from.data[st->count] != c) {
        gy_str_putc(&st->held, c);
        return;
    }
    if ((size_t)++st->count < d->from.len) return;
    gy_str_append(&st->held, gy_str_z(&d->to), d->to.len);
    st->count = 0;
}

/* What is certain goes on. It ends at a character's end: the input comes in whole characters, and a partial match
 * begins with the first byte of one. */
static void replace_feed(const machine *m, int i, const char *bytes, size_t len) {
    gy_dec_state *st = &m->s->st[i];
    for (size_t k = 0; k < len; k++) replace_byte(m, i, bytes[k]);
    feed(m, i + 1, gy_str_z(&st->held), st->held.len);
    st->held.len = 0;
}

static void replace_end(const machine *m, int i) {
    gy_dec_state *st = &m->s->st[i];
    gy_str_append(&st->held, m->d->dec[i].from.data, (size_t)st->count);
    feed(m, i + 1, gy_str_z(&st->held), st->held.len);
    st->held.len = 0;
    st->count = 0;
}

/* Metaspace */

static void metaspace_feed(const machine *m, int i, const char *bytes, size_t len) {
    const gy_dec *d = &m->d->dec[i];
    int drop = d->drop_first && m->s->st[i].n_token == 0;
    for (size_t k = 0; k < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(bytes + k, len - k, &cp);
        int is_space = n == d->from.len && memcmp(bytes + k, d->from.data, n) == 0;
        if (!is_space)
            feed(m, i + 1, bytes + k, n);
        else if (!drop)
            feed(m, i + 1, " ", 1);
        k += n;
    }
}

static void strip_feed(const machine *m, int i, const char *bytes, size_t len) {
    for (size_t k = 0; k < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(bytes + k, len - k, &cp);
        strip_char(m, i, bytes + k, n);
        k += n;
    }
}

static void feed(const machine *m, int i, const char *bytes, size_t len) {
    if (len == 0) return;
    if (i == m->d->n) {
        gy_str_append(m->out, bytes, len);
        return;
    }
    gy_dec_state *st = &m->s->st[i];
    switch (m->d->dec[i].kind) {
    case GY_DEC_BYTE_LEVEL:
    case GY_DEC_BYTE_FALLBACK:
        gy_str_append(&st->held, bytes, len);
        st->count += (int64_t)len;
        break;
    case GY_DEC_STRIP:
        strip_feed(m, i, bytes, len);
        break;
    case GY_DEC_REPLACE:
        replace_feed(m, i, bytes, len);
        break;
    case GY_DEC_METASPACE:
        metaspace_feed(m, i, bytes, len);
        break;
    case GY_DEC_FUSE:
    case GY_DEC_SPACES:
        feed(m, i + 1, bytes, len);
        break;
    }
}

static void end_token(const machine *m, int i) {
    if (i == m->d->n) return;
    gy_dec_state *st = &m->s->st[i];
    switch (m->d->dec[i].kind) {
    case GY_DEC_BYTE_LEVEL:
        byte_level_end(m, i);
        return;
    case GY_DEC_BYTE_FALLBACK:
        byte_fallback_end(m, i);
        return;
    case GY_DEC_FUSE:
        return;
    case GY_DEC_STRIP:
        st->phase = 0;
        st->count = 0;
        break;
    case GY_DEC_REPLACE:
        replace_end(m, i);
        break;
    case GY_DEC_METASPACE:
    case GY_DEC_SPACES:
        st->n_token++;
        break;
    }
    end_token(m, i + 1);
}

/* The end of the text at stage i: hands on what it holds and, where it fuses, the end of its one token. */
static void end_text(const machine *m, int i) {
    gy_dec_state *st = &m->s->st[i];
    gy_dec_kind kind = m->d->dec[i].kind;
    if (kind == GY_DEC_BYTE_FALLBACK) {
        run_end(m, i, st->held.len);
    } else if (kind == GY_DEC_BYTE_LEVEL)
        feed_lossy(m, i + 1, gy_str_z(&st->held), st->held.len);
    if (kind == GY_DEC_BYTE_LEVEL || kind == GY_DEC_FUSE) end_token(m, i + 1);
}

static gy_status state_check(const machine *m) {
    for (int i = 0; i < m->d->n; i++)
        if (m->s->st[i].held.failed) return GY_E_NOMEM;
    return m->out->failed ? GY_E_NOMEM : GY_OK;
}

gy_status gy_decs_push(const gy_decs *d, gy_decs_state *s, const char *token, size_t len, gy_str *out) {
    machine m = {d, s, out};
    if (d->dec[0].kind == GY_DEC_SPACES && s->st[0].n_token > 0) gy_str_putc(out, ' ');
    feed(&m, 0, token, len);
    end_token(&m, 0);
    return state_check(&m);
}

gy_status gy_decs_finish(const gy_decs *d, gy_decs_state *s, gy_str *out) {
    machine m = {d, s, out};
    for (int i = 0; i < d->n; i++) end_text(&m, i);
    gy_status st = state_check(&m);
    for (int i = 0; i < d->n; i++) {
        gy_str held = s->st[i].held;
        gy_str_clear(&held);
        s->st[i] = (gy_dec_state){.held = held};
    }
    return st;
}

void gy_decs_state_fini(gy_decs_state *s) {
    for (int i = 0; i < GY_DEC_MAX; i++) gy_str_free(&s->st[i].held);
}
