/* The vocabulary that masks are made for: what each token of the tokenizer adds to a text, asked of the decoder itself,
 * so that what a grammar sees is what the user reads.
 */
#include "api/api_model.h"

#include "base/mem.h"

#include <string.h>

/* ---- what a token stands for ------------------------------------------------------------------------------------ */

static const char broken[] = "\xEF\xBF\xBD"; /* U+FFFD */

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

/* Tokens that are part of a character: no text spells them, so their bytes come from the vocabulary's spelling. 0: this
 * is none. */
static int spell_bytes(const char *piece, size_t n, gy_str *out) {
    size_t before = out->len;
    int byte = byte_piece(piece, n);
    if (byte >= 0) gy_str_putc(out, (char)byte);
    for (size_t i = 0; byte < 0 && i < n;) {
        uint32_t cp;
        i += (size_t)gy_utf8_decode(piece + i, n - i, &cp);
        int b = byte_of(cp);
        if (b < 0) {
            out->len = before;
            return 0;
        }
        gy_str_putc(out, (char)b);
    }
    return 1;
}

typedef struct speller { /* one detokenizer for all tokens */
    const gy_tok *tok;
    gy_detok *detok;
    int32_t before; /* a letter: behind one, decoders leave blanks alone; -1: the vocabulary has none */
    gy_str behind, alone;
} speller;

static gy_status decode(speller *s, int32_t before, int32_t id, gy_str *out) {
    gy_str_clear(out);
    if (before >= 0) GY_TRY(gy_detok_push(s->detok, before, NULL, out));
    GY_TRY(gy_detok_push(s->detok, id, NULL, out));
    GY_TRY(gy_detok_finish(s->detok, NULL, out));
    return out->failed ? GY_E_NOMEM : GY_OK;
}

/* Appends the token's bytes to text. */
static gy_status spell(speller *s, int32_t id, gy_str *text, gy_grammar_token *t) {
    size_t n_piece, at = text->len, skip = s->before >= 0;
    const char *piece = gy_tok_piece(s->tok, id, &n_piece);
    if (!piece) return GY_OK;
    GY_TRY(decode(s, s->before, id, &s->behind));
    if (s->behind.len < skip) return GY_OK;
    const char *said = gy_str_z(&s->behind) + skip;
    if (!strstr(said, broken) || !spell_bytes(piece, n_piece, text)) gy_str_append(text, said, s->behind.len - skip);
    t->len = text->len - at;
    if (gy_tok_is_special(s->tok, id)) t->flags |= GY_GRAMMAR_SPECIAL;
    if (said[0] != ' ') return GY_OK;
    GY_TRY(decode(s, -1, id, &s->alone));
    if (s->alone.len != s->behind.len - skip) t->flags |= GY_GRAMMAR_NOT_FIRST;
    return GY_OK;
}

/* ---- the vocabulary --------------------------------------------------------------------------------------------- */

/* Ids behind the tokenizer's vocabulary exist where a model pads its own: they stand for nothing. */
static gy_status spell_all(speller *s, const gy_api_model *m, gy_str *text, gy_grammar_token *tokens) {
    int32_t n = gy_tok_n_vocab(s->tok) < m->d.n_vocab ? gy_tok_n_vocab(s->tok) : m->d.n_vocab;
    for (int32_t id = 0; id < n; id++) GY_TRY(spell(s, id, text, &tokens[id]));
    size_t at = 0;
    for (int32_t id = 0; id < n; at += tokens[id++].len) tokens[id].s = gy_str_z(text) + at;
    return text->failed ? GY_E_NOMEM : GY_OK;
}

gy_status gy_api_model_vocab(const gy_api_model *m, gy_err *err, gy_grammar_vocab **out) {
    if (!m->tok)
        return gy_err_set(err, GY_E_ARG,
                          "grammar: the model's folder holds no tokenizer, so there is no text to constrain");
    speller s = {.tok = m->tok, .before = gy_tok_id(m->tok, "a", 1)};
    gy_grammar_token *tokens = gy_mem_alloc(GY_MEM_ENGINE, (size_t)m->d.n_vocab, sizeof *tokens);
    gy_str text = {0};
    gy_status st = tokens ? gy_detok_create(s.tok, 0, &s.detok) : GY_E_NOMEM;
    if (st == GY_OK) st = spell_all(&s, m, &text, tokens);
    if (st < 0)
        gy_err_set(err, st, "grammar: no memory for what %d tokens stand for", m->d.n_vocab);
    else
        st = gy_grammar_vocab_create(tokens, m->d.n_vocab, m->eos, m->n_eos, err, out);
    gy_detok_destroy(s.detok);
    gy_str_free(&s.behind);
    gy_str_free(&s.alone);
    gy_str_free(&text);
    gy_mem_free(tokens);
    return st;
}
