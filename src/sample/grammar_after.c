/* Where a grammar begins that holds only behind a certain text: one KMP automaton (Knuth, Morris, Pratt 1977) over the
 * output's bytes, and the mask of the tokens that may come before it has appeared. Nothing is remembered of the text
 * but how much of `s` it ends with.
 */
#include "base/arena.h"
#include "sample/grammar_int.h"

#include <string.h>

struct gy_grammar_after {
    const gy_grammar_vocab *v;
    const char *s; /* [len] */
    int32_t len;
    int inside;      /* some token holds all of s and goes on behind it */
    uint16_t fall[]; /* [len] the longest proper beginning of s that s[0..i] ends with */
};

size_t gy_grammar_after_bytes(size_t len) {
    return sizeof(gy_grammar_after) + len * sizeof(uint16_t);
}

static int32_t next_of(const gy_grammar_after *a, int32_t k, char byte) {
    while (k > 0 && a->s[k] != byte) k = a->fall[k - 1];
    return k + (a->s[k] == byte);
}

static int goes_on_behind(const gy_grammar_after *a, int32_t id) {
    size_t n, len = (size_t)a->len;
    const char *t = gy_grammar_vocab_token(a->v, id, &n);
    if (n <= len) return 0;
    for (size_t i = 0; i < n - len; i++)
        if (t[i] == a->s[0] && !memcmp(t + i, a->s, len)) return 1;
    return 0;
}

gy_grammar_after *gy_grammar_after_init(void *mem, const gy_grammar_vocab *v, const char *s, size_t len) {
    GY_CHECK(len >= 1 && len <= GY_GRAMMAR_MAX_AFTER);
    gy_grammar_after *a = mem;
    *a = (gy_grammar_after){.v = v, .s = s, .len = (int32_t)len};
    a->fall[0] = 0;
    for (size_t i = 1; i < len; i++) a->fall[i] = (uint16_t)next_of(a, a->fall[i - 1], s[i]);
    for (int32_t id = 0; id < v->n_vocab && !a->inside; id++) a->inside = goes_on_behind(a, id);
    return a;
}

int64_t gy_grammar_after_push(const gy_grammar_after *a, const char *bytes, size_t len, int32_t *matched_io) {
    for (size_t i = 0; i < len; i++) {
        *matched_io = next_of(a, *matched_io, bytes[i]);
        if (*matched_io == a->len) return (int64_t)(len - i - 1);
    }
    return -1;
}

/* ---- the mask ---- */

static void bits_clear(const int32_t *ids, int32_t from, int32_t to, uint32_t *mask) {
    for (int32_t k = from; k < to; k++) mask[ids[k] / 32] &= ~(1u << (ids[k] % 32));
}

/* s has appeared with node `top`: what lies below it begins the grammar. */
static void walk_behind(gy_grammar_runner *r, const gy_grammar *g, int32_t top, uint32_t *mask) {
    const gy_grammar_vocab *v = r->vocab;
    gy_gw_load(r->w, g->begin, &r->frames[0]);
    for (int32_t i = top + 1; i < v->skip[top];) {
        gy_gframe *in = &r->frames[v->depth[i] - v->depth[top] - 1];
        if (gy_gw_step(r->w, g, in, v->byte[i], in + 1)) {
            i++;
        } else {
            bits_clear(v->ids, v->first[i], v->first[v->skip[i]], mask);
            i = v->skip[i];
        }
    }
}

static void mask_all(int32_t n_vocab, uint32_t *mask) {
    memset(mask, 0xFF, (size_t)((n_vocab + 31) / 32) * sizeof *mask);
    if (n_vocab % 32) mask[n_vocab / 32] = (1u << (n_vocab % 32)) - 1;
}

int gy_grammar_after_mask(gy_grammar_runner *r, const gy_grammar *g, const gy_grammar_after *a, int32_t matched,
                          uint32_t *mask) {
    const gy_grammar_vocab *v = r->vocab;
    if (!matched && !a->inside) return 0;
    mask_all(v->n_vocab, mask);
    r->matched[0] = (uint16_t)matched;
    for (int32_t i = 0; i < v->n_node;) {
        int32_t k = next_of(a, r->matched[v->depth[i]], (char)v->byte[i]);
        if (k == a->len) {
            walk_behind(r, g, i, mask);
            i = v->skip[i];
        } else {
            r->matched[v->depth[i] + 1] = (uint16_t)k;
            i++;
        }
    }
    return 1;
}
