/* The tokens of a vocabulary by their bytes: a trie laid out in preorder, so that walking all of it is one pass over
 * arrays and leaving a subtree is one assignment. What a token is called or means is nobody's business here.
 */
#include "base/arena.h"
#include "sample/grammar_int.h"

#include <stdlib.h>
#include <string.h>

typedef struct word {
    const char *s;
    size_t len;
    int32_t id;
} word;

static int word_compare(const void *x, const void *y) {
    const word *a = x, *b = y;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    if (c) return c;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static size_t shared(const word *a, const word *b) {
    size_t n = 0;
    while (n < a->len && n < b->len && a->s[n] == b->s[n]) n++;
    return n;
}

static gy_status args_check(int32_t n_vocab, const int32_t *eos, int32_t n_eos, gy_err *err) {
    if (n_vocab <= 0)
        return gy_err_set(err, GY_E_ARG, "grammar vocabulary: found %d tokens; expected at least 1", n_vocab);
    if (n_eos < 0) return gy_err_set(err, GY_E_ARG, "grammar vocabulary: found %d eos tokens", n_eos);
    for (int32_t i = 0; i < n_eos; i++)
        if (eos[i] < 0 || eos[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "grammar vocabulary: found eos id %d; expected 0 to %d", eos[i],
                              n_vocab - 1);
    return GY_OK;
}

static int is_eos(int32_t id, const int32_t *eos, int32_t n_eos) {
    for (int32_t i = 0; i < n_eos; i++)
        if (eos[i] == id) return 1;
    return 0;
}

static int32_t words_take(const gy_grammar_token *tokens, int32_t n_vocab, const int32_t *eos, int32_t n_eos,
                          word *out) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const gy_grammar_token *t = &tokens[i];
        if (t->flags & GY_GRAMMAR_SPECIAL || t->len == 0 || t->len > GY_GRAMMAR_MAX_TOKEN || is_eos(i, eos, n_eos))
            continue;
        out[n++] = (word){t->s, t->len, i};
    }
    return n;
}

typedef struct sizes {
    size_t n_vocab, n_text, n_id, n_node, n_eos;
} sizes;

static void layout(gy_carve *c, gy_grammar_vocab *v, const sizes *z) {
    size_t n_id = z->n_id, n_node = z->n_node, n_eos = z->n_eos;
    gy_carve_take(c, 1, sizeof *v);
    v->at = gy_carve_take(c, z->n_vocab + 1, sizeof *v->at);
    v->text = gy_carve_take(c, z->n_text, 1);
    v->first_ok = gy_carve_take(c, (z->n_vocab + 31) / 32, sizeof *v->first_ok);
    v->eos = gy_carve_take(c, n_eos, sizeof *v->eos);
    v->ids = gy_carve_take(c, n_id, sizeof *v->ids);
    v->first = gy_carve_take(c, n_node + 1, sizeof *v->first);
    v->skip = gy_carve_take(c, n_node, sizeof *v->skip);
    v->groups = gy_carve_take(c, n_node, sizeof *v->groups);
    v->depth = gy_carve_take(c, n_node, sizeof *v->depth);
    v->byte = gy_carve_take(c, n_node, 1);
}

/* Nodes that are open at depth `at` and deeper end here. */
static void nodes_close(gy_grammar_vocab *v, const int32_t *open, size_t n_open, size_t at) {
    while (n_open-- > at) {
        int32_t i = open[n_open];
        v->skip[i] = v->n_node;
        if (n_open) v->groups[open[n_open - 1]] |= (uint16_t)(v->groups[i] | gy_g_group(v->byte[i]));
    }
}

static void trie_fill(gy_grammar_vocab *v, const word *w, int32_t n) {
    int32_t open[GY_GRAMMAR_MAX_TOKEN]; /* the nodes of the word before */
    size_t n_open = 0;
    for (int32_t k = 0; k < n; k++) {
        size_t same = k ? shared(&w[k - 1], &w[k]) : 0;
        nodes_close(v, open, n_open, same);
        for (n_open = same; n_open < w[k].len; n_open++) {
            int32_t i = open[n_open] = v->n_node++;
            v->byte[i] = (uint8_t)w[k].s[n_open];
            v->depth[i] = (uint16_t)n_open;
            v->first[i] = k;
        }
        if (w[k].len == 1 && same == 0) v->n_byte++;
        if ((int)w[k].len > v->max_len) v->max_len = (int)w[k].len;
        v->ids[k] = w[k].id;
    }
    nodes_close(v, open, n_open, 0);
    v->first[v->n_node] = n;
}

static void tokens_fill(gy_grammar_vocab *v, const gy_grammar_token *t, int32_t n_vocab) {
    size_t at = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        v->at[i] = at;
        if (t[i].len) memcpy(v->text + at, t[i].s, t[i].len);
        at += t[i].len;
        if (!(t[i].flags & GY_GRAMMAR_NOT_FIRST)) v->first_ok[i / 32] |= 1u << (i % 32);
    }
    v->at[n_vocab] = at;
}

static size_t text_bytes(const gy_grammar_token *t, int32_t n_vocab) {
    size_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) n += t[i].len;
    return n;
}

static gy_grammar_vocab *vocab_make(const gy_grammar_token *tokens, int32_t n_vocab, const word *w, int32_t n,
                                    const int32_t *eos, int32_t n_eos) {
    size_t n_node = 0;
    for (int32_t k = 0; k < n; k++) n_node += w[k].len - (k ? shared(&w[k - 1], &w[k]) : 0);
    sizes z = {(size_t)n_vocab, text_bytes(tokens, n_vocab), (size_t)n, n_node, (size_t)n_eos};
    gy_grammar_vocab measured = {0};
    gy_carve c = {0};
    layout(&c, &measured, &z);
    gy_grammar_vocab *v = c.overflow || n_node > INT32_MAX ? NULL : gy_mem_alloc(GY_MEM_SAMPLE, c.used, 1);
    if (!v) return NULL;
    gy_carve d = {.base = (char *)v, .cap = c.used};
    layout(&d, v, &z);
    v->bytes = c.used;
    v->n_vocab = n_vocab;
    v->n_id = n;
    v->n_eos = n_eos;
    if (n_eos) memcpy(v->eos, eos, (size_t)n_eos * sizeof *eos);
    tokens_fill(v, tokens, n_vocab);
    trie_fill(v, w, n);
    return v;
}

gy_status gy_grammar_vocab_create(const gy_grammar_token *tokens, int32_t n_vocab, const int32_t *eos, int32_t n_eos,
                                  gy_err *err, gy_grammar_vocab **out) {
    GY_TRY(args_check(n_vocab, eos, n_eos, err));
    word *w = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *w);
    if (!w) return gy_err_set(err, GY_E_NOMEM, "grammar vocabulary: no memory for %d tokens", n_vocab);
    int32_t n = words_take(tokens, n_vocab, eos, n_eos, w);
    if (n > 1) qsort(w, (size_t)n, sizeof *w, word_compare);
    gy_grammar_vocab *v = vocab_make(tokens, n_vocab, w, n, eos, n_eos);
    gy_mem_free(w);
    if (!v) return gy_err_set(err, GY_E_NOMEM, "grammar vocabulary: no memory for the trie of %d tokens", n_vocab);
    *out = v;
    return GY_OK;
}

void gy_grammar_vocab_destroy(gy_grammar_vocab *v) {
    gy_mem_free(v);
}

int gy_grammar_vocab_n_byte(const gy_grammar_vocab *v) {
    return v->n_byte;
}

size_t gy_grammar_vocab_bytes(const gy_grammar_vocab *v) {
    return v->bytes;
}

int32_t gy_grammar_vocab_n(const gy_grammar_vocab *v) {
    return v->n_vocab;
}

const char *gy_grammar_vocab_token(const gy_grammar_vocab *v, int32_t id, size_t *len_out) {
    GY_CHECK(id >= 0 && id < v->n_vocab);
    *len_out = v->at[id + 1] - v->at[id];
    return v->text + v->at[id];
}

int gy_grammar_vocab_is_eos(const gy_grammar_vocab *v, int32_t id) {
    return is_eos(id, v->eos, v->n_eos);
}

void gy_grammar_vocab_drop_not_first(const gy_grammar_vocab *v, uint32_t *mask) {
    for (int32_t i = 0; i < (v->n_vocab + 31) / 32; i++) mask[i] &= v->first_ok[i];
}

void gy_grammar_vocab_drop_eos(const gy_grammar_vocab *v, uint32_t *mask) {
    for (int32_t i = 0; i < v->n_eos; i++) mask[v->eos[i] / 32] &= ~(1u << (v->eos[i] % 32));
}
