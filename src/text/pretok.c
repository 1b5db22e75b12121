/* Pre-tokenizers of tokenizer.json: pieces -> smaller pieces, one after the other. A pattern sees one piece at a time,
 * never its neighbours, as in tokenizers; so look-ahead ends at the piece's end.
 * Deliberately not here: BertPreTokenizer, CharDelimiterSplit, UnicodeScripts, FixedLength; they are refused by name.
 */
#include "text/hf_int.h"

#include "text/unicode.h"

#include <string.h>

/* The pattern of ByteLevel with use_regex (GPT-2's encoder.py). */
static const char GPT2_PATTERN[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- GPT-2's alphabet: bytes that print stand for themselves, the others follow from U+0100 on, in order ---- */

static int byte_prints(int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

/* How many of the bytes below b do not print: 0..32 do not, 127..160 do not, 173 does not. */
static uint32_t n_silent_below(int b) {
    if (b <= 33) return (uint32_t)b;
    if (b <= 127) return 33;
    if (b <= 161) return 33 + (uint32_t)(b - 127);
    return b <= 173 ? 67 : 68;
}

uint32_t gy_byte_to_char(unsigned char byte) {
    return byte_prints(byte) ? byte : 0x100 + n_silent_below(byte);
}

int gy_char_to_byte(uint32_t cp) {
    if (cp < 0x100) return byte_prints((int)cp) ? (int)cp : -1;
    uint32_t n = cp - 0x100;
    if (n < 33) return (int)n;
    if (n < 67) return (int)(n - 33 + 127);
    return n == 67 ? 173 : -1;
}

/* ---- reading ---- */

static gy_status read_how(const gy_jv *v, gy_split_how dflt, gy_err *err, gy_split_how *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    if (gy_jv_type(v) == GY_J_NONE) {
        *out = dflt;
        return GY_OK;
    }
    for (int i = 0; i < 5; i++) {
        if (!gy_jv_is_str(v, names[i])) continue;
        *out = (gy_split_how)i;
        return GY_OK;
    }
    const char *found = gy_jv_str(v, NULL);
    return gy_err_set(err, GY_E_FORMAT,
                      "behavior: \"%.60s\" is none of Removed, Isolated, MergedWithPrevious, "
                      "MergedWithNext, Contiguous",
                      found ? found : gy_jtype_name(gy_jv_type(v)));
}

static gy_status pretok_push(gy_pretoks *out, gy_pretok_kind kind, gy_split_how how, gy_err *err) {
    if (gy_vec_push(out, GY_MEM_TEXT, ((gy_pretok){.kind = kind, .how = how})))
        return gy_err_set(err, GY_E_NOMEM, "no memory for the pre-tokenizer");
    return GY_OK;
}

static gy_status read_byte_level(const gy_jv *v, gy_err *err, gy_pretoks *out) {
    if (gy_jv_bool(gy_jv_get(v, "add_prefix_space"), 1))
        GY_TRY(pretok_push(out, GY_PRETOK_PREFIX_SPACE, GY_SPLIT_ISOLATED, err));
    if (gy_jv_bool(gy_jv_get(v, "use_regex"), 1)) {
        GY_TRY(pretok_push(out, GY_PRETOK_SPLIT, GY_SPLIT_ISOLATED, err));
        gy_pattern *p = &out->data[out->len - 1].pattern;
        GY_TRY(gy_regex_create(GPT2_PATTERN, sizeof(GPT2_PATTERN) - 1, err, &p->regex));
    }
    return pretok_push(out, GY_PRETOK_BYTES, GY_SPLIT_ISOLATED, err);
}

static gy_status read_split(const gy_jv *v, gy_err *err, gy_pretoks *out) {
    GY_TRY(pretok_push(out, GY_PRETOK_SPLIT, GY_SPLIT_ISOLATED, err));
    gy_pretok *p = &out->data[out->len - 1];
    p->invert = gy_jv_bool(gy_jv_get(v, "invert"), 0);
    GY_TRY(read_how(gy_jv_get(v, "behavior"), GY_SPLIT_ISOLATED, err, &p->how));
    return gy_pattern_read(gy_jv_get(v, "pattern"), err, &p->pattern);
}

/* prepend_scheme, or in older files add_prefix_space. */
static gy_status read_prepend(const gy_jv *v, gy_err *err, gy_prepend *out) {
    const gy_jv *scheme = gy_jv_get(v, "prepend_scheme");
    int legacy = gy_jv_bool(gy_jv_get(v, "add_prefix_space"), 1);
    if (gy_jv_type(scheme) == GY_J_NONE)
        *out = legacy ? GY_PREPEND_ALWAYS : GY_PREPEND_NEVER;
    else if (gy_jv_is_str(scheme, "always"))
        *out = GY_PREPEND_ALWAYS;
    else if (gy_jv_is_str(scheme, "never"))
        *out = GY_PREPEND_NEVER;
    else if (gy_jv_is_str(scheme, "first"))
        *out = GY_PREPEND_FIRST;
    else
        return gy_err_set(err, GY_E_FORMAT, "prepend_scheme: expected always, never or first");
    if (!legacy && *out != GY_PREPEND_NEVER)
        return gy_err_set(err, GY_E_FORMAT, "add_prefix_space false contradicts prepend_scheme");
    return GY_OK;
}

static gy_status read_metaspace(const gy_jv *v, gy_err *err, gy_pretoks *out) {
    GY_TRY(pretok_push(out, GY_PRETOK_METASPACE, GY_SPLIT_NEXT, err));
    gy_pretok *p = &out->data[out->len - 1];
    size_t len = 0;
    uint32_t cp;
    const char *s = gy_jv_str(gy_jv_get(v, "replacement"), &len);
    if (!s || len == 0 || (size_t)gy_utf8_decode(s, len, &cp) != len)
        return gy_err_set(err, GY_E_FORMAT, "replacement: expected a string of one character");
    gy_str_append(&p->replacement, s, len);
    if (p->replacement.failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the pre-tokenizer");
    p->split = gy_jv_bool(gy_jv_get(v, "split"), 1);
    return read_prepend(v, err, &p->prepend);
}

static gy_status read_sequence(const gy_jv *v, gy_err *err, gy_pretoks *out) {
    const gy_jv *list = gy_jv_get(v, "pretokenizers");
    if (gy_jv_type(list) != GY_J_ARRAY) return gy_err_set(err, GY_E_FORMAT, "Sequence without pretokenizers");
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        gy_status st = gy_pretoks_read(gy_jv_at(list, i), err, out);
        if (st < 0) return gy_err_prefix(err, "pretokenizers[%zu]", i);
    }
    return GY_OK;
}

gy_status gy_pretoks_read(const gy_jv *v, gy_err *err, gy_pretoks *out) {
    if (gy_jv_type(v) == GY_J_NONE || gy_jv_type(v) == GY_J_NULL) return GY_OK;
    const gy_jv *type = gy_jv_get(v, "type");
    gy_split_how how = GY_SPLIT_ISOLATED;
    if (gy_jv_is_str(type, "Sequence")) return read_sequence(v, err, out);
    if (gy_jv_is_str(type, "ByteLevel")) return read_byte_level(v, err, out);
    if (gy_jv_is_str(type, "Split")) return read_split(v, err, out);
    if (gy_jv_is_str(type, "Metaspace")) return read_metaspace(v, err, out);
    if (gy_jv_is_str(type, "Whitespace")) return pretok_push(out, GY_PRETOK_WORDS, GY_SPLIT_REMOVED, err);
    if (gy_jv_is_str(type, "WhitespaceSplit")) return pretok_push(out, GY_PRETOK_SPACES, GY_SPLIT_REMOVED, err);
    if (gy_jv_is_str(type, "Digits")) {
        how = gy_jv_bool(gy_jv_get(v, "individual_digits"), 0) ? GY_SPLIT_ISOLATED : GY_SPLIT_RUNS;
        return pretok_push(out, GY_PRETOK_DIGITS, how, err);
    }
    if (gy_jv_is_str(type, "Punctuation")) {
        GY_TRY(read_how(gy_jv_get(v, "behavior"), GY_SPLIT_ISOLATED, err, &how));
        return pretok_push(out, GY_PRETOK_PUNCT, how, err);
    }
    const char *name = gy_jv_str(type, NULL);
    if (!name) return gy_err_set(err, GY_E_FORMAT, "pre-tokenizer without a type");
    return gy_err_set(err, GY_E_UNSUPPORTED,
                      "pre-tokenizer \"%.60s\" is not supported (ByteLevel, Split, Digits, Whitespace, "
                      "WhitespaceSplit, Punctuation, Metaspace and Sequence are)",
                      name);
}

void gy_pretoks_fini(gy_pretoks *p) {
    for (size_t i = 0; i < p->len; i++) {
        gy_pattern_fini(&p->data[i].pattern);
        gy_str_free(&p->data[i].replacement);
    }
    gy_vec_free(p);
}

/* ---- spans of one piece ---- */

static gy_status span_push(gy_spans *v, size_t off, size_t len, int is_match) {
    return gy_vec_push(v, GY_MEM_TEXT, ((gy_span){off, len, is_match})) ? GY_E_NOMEM : GY_OK;
}

/* Each character of the class is a match by itself. */
static gy_status char_spans(int (*is_in)(uint32_t), gy_spans *v, const char *text, size_t len) {
    size_t done = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(text + i, len - i, &cp);
        if (is_in(cp)) {
            if (i > done) GY_TRY(span_push(v, done, i - done, 0));
            GY_TRY(span_push(v, i, n, 1));
            done = i + n;
        }
        i += n;
    }
    return done < len ? span_push(v, done, len - done, 0) : GY_OK;
}

/* Whitespace: runs of word characters, runs of what is neither word nor space; the spaces are the matches. */
static gy_status word_spans(gy_spans *v, const char *text, size_t len) {
    int run = -1;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(text + i, len - i, &cp);
        int is_space = gy_uni_is_space(cp), kind = is_space ? 2 : gy_uni_is_word(cp);
        if (kind == run)
            v->data[v->len - 1].len += n;
        else
            GY_TRY(span_push(v, i, n, is_space));
        run = kind;
        i += n;
    }
    return GY_OK;
}

static gy_status piece_spans(const gy_pretok *p, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps,
                             gy_err *err) {
    if (p->kind == GY_PRETOK_SPLIT) {
        GY_TRY(gy_pattern_spans(&p->pattern, s, text, len, steps, err));
        for (size_t i = 0; p->invert && i < s->spans.len; i++) s->spans.data[i].is_match ^= 1;
        return GY_OK;
    }
    *steps += (int64_t)len;
    s->spans.len = 0;
    switch (p->kind) {
    case GY_PRETOK_WORDS:
        return word_spans(&s->spans, text, len);
    case GY_PRETOK_DIGITS:
        return char_spans(gy_uni_is_numeric, &s->spans, text, len);
    case GY_PRETOK_SPACES:
        return char_spans(gy_uni_is_space, &s->spans, text, len);
    case GY_PRETOK_PUNCT:
        return char_spans(gy_uni_is_punct, &s->spans, text, len);
    default:
        return GY_E_BUG;
    }
}

/* ---- what becomes of the spans ---- */

/* Whether span i joins the span before it. */
static int span_joins_previous(const gy_spans *v, size_t i, gy_split_how how) {
    int now = v->data[i].is_match, before = i > 0 && v->data[i - 1].is_match;
    if (how == GY_SPLIT_RUNS) return i > 0 && now == before;
    return how == GY_SPLIT_PREVIOUS && i > 0 && now && !before;
}

/* MergedWithNext: only the last match of a run of matches joins what follows. */
static int span_joins_next(const gy_spans *v, size_t i) {
    return i + 1 < v->len && v->data[i].is_match && !v->data[i + 1].is_match;
}

static gy_status piece_put(gy_pieces *out, size_t off, size_t len, int at_start) {
    if (len == 0) return GY_OK;
    return gy_vec_push(&out->v, GY_MEM_TEXT, ((gy_piece){off, len, at_start})) ? GY_E_NOMEM : GY_OK;
}

/* Joins spans into pieces at base + offset; empty pieces vanish, and matches too when Removed. */
static gy_status spans_to_pieces(const gy_spans *v, gy_split_how how, size_t base, int at_start, gy_pieces *out) {
    for (size_t i = 0; i < v->len;) {
        size_t off = v->data[i].off, end = off + v->data[i].len, first = i++;
        if (how == GY_SPLIT_REMOVED && v->data[first].is_match) continue;
        for (; i < v->len; i++) {
            int joins = how == GY_SPLIT_NEXT ? span_joins_next(v, i - 1) : span_joins_previous(v, i, how);
            if (!joins) break;
            end = v->data[i].off + v->data[i].len;
        }
        GY_TRY(piece_put(out, base + off, end - off, at_start && off == 0));
    }
    return GY_OK;
}

/* ---- the stages ---- */

static gy_status apply_split(const gy_pretok *p, gy_hf_scratch *s, int64_t *steps, gy_err *err) {
    s->next.v.len = 0;
    for (size_t i = 0; i < s->pieces.v.len; i++) {
        gy_piece piece = s->pieces.v.data[i];
        GY_TRY(piece_spans(p, s, s->pieces.text.data + piece.off, piece.len, steps, err));
        GY_TRY(spans_to_pieces(&s->spans, p->how, piece.off, piece.at_start, &s->next));
    }
    /* The text stays where it is: only the lists of pieces change places. */
    gy_str text = s->pieces.text;
    gy_pieces old = s->pieces;
    s->pieces = s->next;
    old.text = s->next.text;
    s->pieces.text = text;
    s->next = old;
    return GY_OK;
}

static void pieces_swap(gy_hf_scratch *s) {
    gy_pieces old = s->pieces;
    s->pieces = s->next;
    s->next = old;
}

static gy_status apply_prefix_space(gy_hf_scratch *s) {
    gy_str *to = &s->next.text;
    for (size_t i = 0; i < s->pieces.v.len; i++) {
        const gy_piece *p = &s->pieces.v.data[i];
        const char *text = s->pieces.text.data + p->off;
        size_t off = to->len;
        if (text[0] != ' ') gy_str_putc(to, ' ');
        gy_str_append(to, text, p->len);
        GY_TRY(piece_put(&s->next, off, to->len - off, p->at_start));
    }
    return GY_OK;
}

static gy_status apply_bytes(gy_hf_scratch *s, int64_t *steps) {
    gy_str *to = &s->next.text;
    for (size_t i = 0; i < s->pieces.v.len; i++) {
        const gy_piece *p = &s->pieces.v.data[i];
        const char *text = s->pieces.text.data + p->off;
        size_t off = to->len;
        *steps += (int64_t)p->len;
        for (size_t k = 0; k < p->len; k++) {
            uint32_t cp = gy_byte_to_char((unsigned char)text[k]);
            if (cp < 0x80)
                gy_str_putc(to, (char)cp);
            else
                gy_str_put_utf8(to, cp);
        }
        GY_TRY(piece_put(&s->next, off, to->len - off, p->at_start));
    }
    return GY_OK;
}

static int begins_with(const char *s, size_t len, const gy_str *prefix) {
    return len >= prefix->len && memcmp(s, prefix->data, prefix->len) == 0;
}

/* Writes one piece with its spaces replaced; afterwards it lies at [off, to->len). */
static void put_metaspace(const gy_pretok *m, const gy_piece *p, const char *text, gy_str *to) {
    int wanted = m->prepend == GY_PREPEND_ALWAYS || (m->prepend == GY_PREPEND_FIRST && p->at_start);
    if (wanted && text[0] != ' ' && !begins_with(text, p->len, &m->replacement))
        gy_str_append(to, m->replacement.data, m->replacement.len);
    for (size_t k = 0; k < p->len; k++) {
        if (text[k] == ' ')
            gy_str_append(to, m->replacement.data, m->replacement.len);
        else
            gy_str_putc(to, text[k]);
    }
}

static gy_status apply_metaspace(const gy_pretok *m, gy_hf_scratch *s, int64_t *steps) {
    gy_str *to = &s->next.text;
    gy_pattern pattern = {.literal = m->replacement}; /* borrows the bytes */
    for (size_t i = 0; i < s->pieces.v.len; i++) {
        const gy_piece *p = &s->pieces.v.data[i];
        size_t off = to->len;
        put_metaspace(m, p, s->pieces.text.data + p->off, to);
        if (to->failed) return GY_E_NOMEM;
        *steps += (int64_t)p->len;
        if (!m->split) {
            GY_TRY(piece_put(&s->next, off, to->len - off, p->at_start));
            continue;
        }
        GY_TRY(gy_pattern_spans(&pattern, s, to->data + off, to->len - off, steps, NULL));
        GY_TRY(spans_to_pieces(&s->spans, GY_SPLIT_NEXT, off, p->at_start, &s->next));
    }
    return GY_OK;
}

static gy_status pretok_apply(const gy_pretok *p, gy_hf_scratch *s, int64_t *steps, gy_err *err) {
    gy_status st;
    s->next.v.len = 0;
    gy_str_clear(&s->next.text);
    switch (p->kind) {
    case GY_PRETOK_PREFIX_SPACE:
        st = apply_prefix_space(s);
        break;
    case GY_PRETOK_BYTES:
        st = apply_bytes(s, steps);
        break;
    case GY_PRETOK_METASPACE:
        st = apply_metaspace(p, s, steps);
        break;
    default:
        return apply_split(p, s, steps, err);
    }
    if (st == GY_OK && s->next.text.failed) st = GY_E_NOMEM;
    if (st == GY_OK) pieces_swap(s);
    return st;
}

gy_status gy_pretoks_apply(const gy_pretoks *p, gy_hf_scratch *s, int64_t *steps, gy_err *err) {
    for (size_t i = 0; i < p->len; i++) {
        gy_status st = pretok_apply(&p->data[i], s, steps, err);
        if (st == GY_E_NOMEM) return gy_err_set(err, st, "no memory while cutting text into pieces");
        GY_TRY(st);
    }
    return GY_OK;
}
