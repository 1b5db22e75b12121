/* Grammars for the API: a gyre_grammar is a gy_grammar, its references are counted there.
 */
#include "api/api_int.h"

gy_status gy_api_vocab(gyre *g, gy_err *err, const gy_grammar_vocab **out) {
    pthread_mutex_lock(&g->vocab_lock);
    gy_status st = g->vocab ? GY_OK : gy_api_model_vocab(&g->m, err, &g->vocab);
    *out = g->vocab;
    pthread_mutex_unlock(&g->vocab_lock);
    return st;
}

/* ---- compile ---------------------------------------------------------------------------------------------------- */

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "the public header says the same")
SAME(GYRE_GRAMMAR_REGEX, GY_GRAMMAR_REGEX);
SAME(GYRE_GRAMMAR_JSON_SCHEMA, GY_GRAMMAR_JSON_SCHEMA);
SAME(GYRE_GRAMMAR_JSON_OBJECT, GY_GRAMMAR_JSON_OBJECT);
SAME(GYRE_GRAMMAR_EBNF, GY_GRAMMAR_EBNF);

static gy_status compile(gyre *g, gyre_grammar_kind kind, const char *text, size_t n, gy_err *err, gy_grammar **out) {
    const gy_grammar_vocab *vocab;
    if ((unsigned)kind > GYRE_GRAMMAR_EBNF)
        return gy_err_set(err, GY_E_ARG, "grammar: found kind %d, expected 0 to %d", (int)kind, GYRE_GRAMMAR_EBNF);
    GY_TRY(gy_api_vocab(g, err, &vocab));
    return gy_grammar_cache_compile(g->grammars, (gy_grammar_kind)kind, text, n, err, out);
}

gyre_status gyre_grammar_compile(gyre *g, gyre_grammar_kind kind, const char *text, size_t n, gyre_err *err,
                                 gyre_grammar **out) {
    gy_err e = {0};
    gy_grammar *m = NULL;
    gy_status st = compile(g, kind, text, n, &e, &m);
    if (st < 0 && e.status >= 0) gy_err_set(&e, st, "grammar: no memory");
    if (st != GY_OK) return gy_api_status(&e, err);
    *out = (gyre_grammar *)m;
    return GYRE_OK;
}

void gyre_grammar_release(gyre_grammar *m) {
    gy_grammar_put((gy_grammar *)m);
}
