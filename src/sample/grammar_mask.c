/* Masks: one walk over the trie of the vocabulary. A subtree is left at its first byte that cannot come, and taken as a
 * whole where the automaton loops on every byte in it (inside strings: nearly all of a vocabulary).
 *
 * Best of 15 on a machine that was not quiet (two cores, load 5), synthetic vocabularies of 49,152 / 151,936 tokens:
 *   inside any string       105-111 / 246-256 us     cached    0.1 / 0.3-0.6 us
 *   where a value begins          7 / 15 us          accept    0.1-0.2 us a token
 *   inside maxLength       2190-2205 / 5600-5660 us (each length is another state: nothing loops)
 * Compiling: 10 us (a date's regex), 140 us (any JSON object), 300 us (a schema of six properties).
 */
#include "sample/grammar_int.h"

#include <string.h>

gy_status gy_grammar_runner_create(const gy_grammar_vocab *vocab, size_t cache_bytes, gy_grammar_runner **out) {
    gy_grammar_runner *r = gy_mem_alloc(GY_MEM_SAMPLE, 1, sizeof *r);
    if (!r) return GY_E_NOMEM;
    r->vocab = vocab;
    r->w = gy_gw_create();
    if (vocab && cache_bytes) r->masks = gy_gmasks_create(cache_bytes, (vocab->n_vocab + 31) / 32);
    if (!r->w || (vocab && cache_bytes && !r->masks)) {
        gy_grammar_runner_destroy(r);
        return GY_E_NOMEM;
    }
    *out = r;
    return GY_OK;
}

void gy_grammar_runner_destroy(gy_grammar_runner *r) {
    if (!r) return;
    gy_gmasks_destroy(r->masks);
    gy_mem_free(r->w);
    gy_mem_free(r);
}

void gy_grammar_runner_get_stats(const gy_grammar_runner *r, gy_grammar_mask_stats *out) {
    *out = r->stats;
}

static void bits_set(const int32_t *ids, int32_t from, int32_t to, uint32_t *mask) {
    for (int32_t k = from; k < to; k++) mask[ids[k] / 32] |= 1u << (ids[k] % 32);
}

/* One configuration that neither ends nor calls, on a state that loops on all bytes below this node. Such a loop
 * changes nothing, so what is true of the state's need stays true. */
static int takes_all(const gy_grammar *g, const gy_gconf *confs, const gy_gframe *f, uint16_t groups) {
    if (f->n_conf != 1) return 0;
    gy_gconf x = confs[f->conf];
    int ends = (g->flags[x.q] & GY_G_ACCEPT) && x.node != 0;
    return !ends && !(g->flags[x.q] & GY_G_CALLS) && !(groups & ~g->groups[x.q]);
}

static void walk(gy_grammar_runner *r, const gy_grammar *g, uint32_t *mask) {
    const gy_grammar_vocab *v = r->vocab;
    for (int32_t i = 0; i < v->n_node;) {
        gy_gframe *in = &r->frames[v->depth[i]], *out = in + 1;
        if (!gy_gw_step(r->w, g, in, v->byte[i], out)) {
            i = v->skip[i];
        } else if (takes_all(g, r->w->confs, out, v->groups[i])) {
            bits_set(v->ids, v->first[i], v->first[v->skip[i]], mask);
            i = v->skip[i];
        } else {
            bits_set(v->ids, v->first[i], v->first[i + 1], mask);
            i++;
        }
    }
}

static int is_empty(const uint32_t *mask, int32_t n_word) {
    for (int32_t i = 0; i < n_word; i++)
        if (mask[i]) return 0;
    return 1;
}

static gy_status stuck(const gy_grammar_runner *r, const gy_grammar_state *s, gy_err *err) {
    if (s->complete)
        return gy_err_set(err, GY_E_LIMIT, "grammar: the text is complete and the vocabulary has no eos token");
    if (r->w->overflow) return gy_err_set(err, GY_E_LIMIT, "grammar: it is too ambiguous here to be followed");
    return gy_err_set(err, GY_E_LIMIT,
                      "grammar: no token of the vocabulary can come next (%d of 256 bytes are a token by themselves)",
                      r->vocab->n_byte);
}

/* In the cache lie masks without eos: whether a text is complete is no part of the key. */
gy_status gy_grammar_mask(gy_grammar_runner *r, const gy_grammar *g, const gy_grammar_state *s, uint32_t *mask,
                          gy_err *err) {
    const gy_grammar_vocab *v = r->vocab;
    int32_t n_word = (v->n_vocab + 31) / 32;
    const uint32_t *known = r->masks ? gy_gmasks_find(r->masks, g, s, v->max_len) : NULL;
    r->stats.n_hit += known != NULL;
    r->stats.n_miss += !known;
    r->w->overflow = 0;
    if (known) {
        memcpy(mask, known, (size_t)n_word * sizeof *mask);
    } else {
        memset(mask, 0, (size_t)n_word * sizeof *mask);
        gy_gw_load(r->w, s, &r->frames[0]);
        walk(r, g, mask);
        if (r->masks && !r->w->overflow) gy_gmasks_keep(r->masks, g, s, v->max_len, r->w->deepest, r->w->grown, mask);
    }
    if (s->complete) bits_set(v->eos, 0, v->n_eos, mask);
    return is_empty(mask, n_word) ? stuck(r, s, err) : GY_OK;
}
