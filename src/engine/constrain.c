/* Grammars in the engine: what a choice may draw next and where its text stands. Called for one row each by the threads
 * that sample, every one with its own runner and mask; a choice is only in one of them at a time, and only its own
 * state is written. What a mask depends on is the choice's text and the grammar, so neither batches nor preemption nor
 * the number of threads change it.
 *
 *   free  --grammar_after has appeared-->  held  --nothing can follow-->  finished
 */
#include "engine/engine_int.h"

#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------------------- */

gy_status gy_constrain_check(const gy_model_desc *d, const gy_request *r, gy_err *err) {
    if (r->n_grammar_after < 0 || r->n_grammar_after > GY_GRAMMAR_MAX_AFTER)
        return gy_err_set(err, GY_E_ARG, "grammar_after: found %d bytes, expected at most %d", r->n_grammar_after,
                          GY_GRAMMAR_MAX_AFTER);
    if (!r->grammar && r->n_grammar_after)
        return gy_err_set(err, GY_E_ARG, "grammar_after: found a text but no grammar that holds behind it");
    if (!r->grammar) return GY_OK;
    if (!r->vocab) return gy_err_set(err, GY_E_ARG, "grammar: no vocabulary says what the tokens stand for");
    if (gy_grammar_vocab_n(r->vocab) != d->n_vocab)
        return gy_err_set(err, GY_E_ARG, "grammar: its vocabulary has %d tokens, expected the model's %d",
                          gy_grammar_vocab_n(r->vocab), d->n_vocab);
    return GY_OK;
}

gy_status gy_constrain_open(gy_engine *e, const gy_grammar_vocab *vocab, gy_err *err) {
    int n = e->m->be->ops->n_member(e->m->be);
    if (e->vocab == vocab) return GY_OK;
    if (e->vocab) return gy_err_set(err, GY_E_ARG, "grammar: found another vocabulary than earlier requests had");
    int32_t n_mask = (gy_grammar_vocab_n(vocab) + 31) / 32;
    e->runner = gy_mem_alloc(GY_MEM_ENGINE, (size_t)n, sizeof(gy_grammar_runner *));
    e->mask = gy_mem_alloc(GY_MEM_ENGINE, (size_t)n, (size_t)n_mask * sizeof *e->mask);
    gy_status st = e->runner && e->mask ? GY_OK : GY_E_NOMEM;
    for (int i = 0; i < n && st == GY_OK; i++)
        st = gy_grammar_runner_create(vocab, e->o.mask_bytes / (size_t)n, &e->runner[i]);
    if (st < 0) {
        gy_constrain_close(e);
        return gy_err_set(err, st, "no memory for masks of %d tokens", gy_grammar_vocab_n(vocab));
    }
    e->n_mask = n_mask;
    e->vocab = vocab;
    return GY_OK;
}

void gy_constrain_close(gy_engine *e) {
    for (int i = 0; e->runner && i < e->m->be->ops->n_member(e->m->be); i++) gy_grammar_runner_destroy(e->runner[i]);
    gy_mem_free(e->runner);
    gy_mem_free(e->mask);
    e->runner = NULL;
    e->mask = NULL;
    e->vocab = NULL;
}

void gy_constrain_begin(gy_choice *c) {
    if (!c->text) return;
    c->is_free = c->req->after != NULL;
    gy_grammar_start(c->req->r.grammar, c->text);
}

/* ---- what may come next ----------------------------------------------------------------------------------------- */

static void drop_ends(const gy_engine *e, const gy_req *q, uint32_t *mask) {
    for (int32_t i = 0; i < q->n_ends; i++) mask[q->ends[i] / 32] &= ~(1u << (q->ends[i] % 32));
    gy_grammar_vocab_drop_eos(e->vocab, mask);
}

static int is_empty(const uint32_t *mask, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (mask[i]) return 0;
    return 1;
}

static gy_status next_held(const gy_engine *e, const gy_choice *c, gy_grammar_runner *r, uint32_t *mask, gy_err *err) {
    const gy_req *q = c->req;
    int complete = gy_grammar_is_complete(c->text), early = c->n_output < q->r.min_tokens;
    gy_status st = gy_grammar_mask(r, q->r.grammar, c->text, mask, err);
    if (st < 0) return st == GY_E_LIMIT && complete ? GY_DONE : st;
    if (q->r.ignore_eos) gy_grammar_vocab_drop_eos(e->vocab, mask);
    if (early) drop_ends(e, q, mask);
    if (!c->n_output) gy_grammar_vocab_drop_not_first(e->vocab, mask);
    if (!is_empty(mask, e->n_mask)) return GY_OK;
    if (complete) return GY_DONE;
    return gy_err_set(err, GY_E_LIMIT,
                      "grammar: no token can come next as output %d: those that it allows %s (min_tokens is %d)",
                      c->n_output, early ? "end the text" : "cannot begin a text", q->r.min_tokens);
}

gy_status gy_constrain_next(gy_engine *e, const gy_choice *c, int member, gy_sample_in *in, gy_err *err) {
    const gy_req *q = c->req;
    gy_grammar_runner *r = e->runner[member];
    uint32_t *mask = e->mask + (size_t)member * (size_t)e->n_mask;
    if (c->is_free) {
        if (gy_grammar_after_mask(r, q->r.grammar, q->after, c->matched, mask)) in->mask = mask;
        return GY_OK;
    }
    gy_status st = next_held(e, c, r, mask, err);
    if (st != GY_OK) return st;
    in->mask = mask;
    in->n_ban = 0; /* out of the mask already */
    return GY_OK;
}

/* ---- what came -------------------------------------------------------------------------------------------------- */

static int ends_text(const gy_engine *e, const gy_choice *c, int32_t id) {
    const gy_req *q = c->req;
    for (int32_t i = 0; i < q->n_ends; i++)
        if (q->ends[i] == id) return 1;
    return !c->is_free && gy_grammar_vocab_is_eos(e->vocab, id);
}

gy_status gy_constrain_follow(gy_engine *e, gy_choice *c, int member, int32_t id, gy_err *err, int32_t *is_last_out) {
    const gy_req *q = c->req;
    size_t len, from = 0;
    const char *bytes = gy_grammar_vocab_token(e->vocab, id, &len);
    *is_last_out = ends_text(e, c, id);
    if (*is_last_out) return GY_OK;
    if (c->is_free) {
        int64_t behind = gy_grammar_after_push(q->after, bytes, len, &c->matched);
        if (behind < 0) return GY_OK;
        c->is_free = 0;
        from = len - (size_t)behind;
    }
    GY_TRY(gy_grammar_accept(e->runner[member], q->r.grammar, c->text, bytes + from, len - from, err));
    *is_last_out = gy_grammar_is_final(c->text);
    return GY_OK;
}
