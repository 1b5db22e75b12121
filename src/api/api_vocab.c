/* The vocabulary that masks are made for: what each token of the tokenizer adds to a text, asked of the decoder itself,
 * so that what a grammar sees is what the user reads.
 */
#include "api/api_model.h"

#include "base/mem.h"

#include <string.h>

/* ---- what a token stands for ------------------------------------------------------------------------------------ */

static const char broken[] = "\xEF\xBF\xBD"; /* U+FFFD */

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
    if (!strstr(said, broken) || !gy_tok_piece_bytes(piece, n_piece, text))
        gy_str_append(text, said, s->behind.len - skip);
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
