/* A request comes in: every field is checked against the model and the engine, then a copy is queued, one job of the
 * scheduler for each choice.
 */
#include "engine/engine_int.h"

#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static gy_status check_ids(const int32_t *ids, int32_t n, int32_t n_vocab, const char *what, gy_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "%s[%d]: found token id %d, expected 0 to %d", what, i, ids[i],
                              n_vocab - 1);
    return GY_OK;
}

static gy_status check_trace(const gy_engine_bounds *b, const gy_request *r, gy_err *err) {
    if (r->exit.kind != GY_EXIT_TRACE) return GY_OK;
    if (r->n_trace < r->max_tokens)
        return gy_err_set(err, GY_E_ARG, "trace: found %d depths, expected one for each of the %d outputs", r->n_trace,
                          r->max_tokens);
    for (int32_t i = 0; i < r->n_trace; i++) {
        int32_t lo = i ? r->exit.min_loops : b->d->n_loop, hi = i ? r->exit.max_loops : b->d->n_loop;
        if (r->trace[i] < lo || r->trace[i] > hi)
            return gy_err_set(err, GY_E_ARG, "trace[%d]: found %d loops, expected %d to %d%s", i, r->trace[i], lo, hi,
                              i ? "" : " (the prompt runs at full depth)");
    }
    return GY_OK;
}

static gy_status check_exit(const gy_engine_bounds *b, const gy_request *r, gy_err *err) {
    const gy_model_desc *d = b->d;
    gy_exit_caps caps = {.n_loop = d->n_loop, .has_gate = d->has_gate, .allow_deeper = b->max_loops > d->n_loop};
    GY_TRY(gy_exit_rule_check(&r->exit, &caps, err));
    if (r->exit.max_loops > b->depth)
        return gy_err_set(err, GY_E_ARG, "max_loops: found %d, expected at most %d, the engine's depth",
                          r->exit.max_loops, b->depth);
    if (r->exit.on_prompt && gy_exit_needs_logits(&r->exit))
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "exit_on_prompt: the rule \"%s\" would need the LM head at each prompt token; "
                          "use gate, gate_delayed or latent",
                          gy_exit_name(r->exit.kind));
    if (r->want_gates && !d->has_gate)
        return gy_err_set(err, GY_E_ARG, "want_gates: a %s model has no exit gate", d->family);
    return check_trace(b, r, err);
}

static gy_status check_counts(const gy_request *r, gy_err *err) {
    if (r->n_prompt < 1) return gy_err_set(err, GY_E_ARG, "prompt: found no tokens, expected at least one");
    if (r->max_tokens < 1) return gy_err_set(err, GY_E_ARG, "max_tokens: found %d, expected 1 or more", r->max_tokens);
    if (r->min_tokens < 0 || r->min_tokens > r->max_tokens)
        return gy_err_set(err, GY_E_ARG, "min_tokens: found %d, expected 0 to %d (max_tokens)", r->min_tokens,
                          r->max_tokens);
    if (r->n < 1 || r->n > GY_ENGINE_MAX_N)
        return gy_err_set(err, GY_E_ARG, "n: found %d choices, expected 1 to %d", r->n, GY_ENGINE_MAX_N);
    if (r->n_trace < 0) return gy_err_set(err, GY_E_ARG, "trace: found %d depths, expected 0 or more", r->n_trace);
    if (r->n_stop_ids < 0)
        return gy_err_set(err, GY_E_ARG, "stop_ids: found %d ids, expected 0 or more", r->n_stop_ids);
    if (r->prompt_logprobs < -1 || r->prompt_logprobs > GY_MAX_LOGPROBS)
        return gy_err_set(err, GY_E_ARG, "prompt_logprobs: found %d; allowed -1 (none) to %d", r->prompt_logprobs,
                          GY_MAX_LOGPROBS);
    if (r->n_salt < 0 || r->n_salt > GY_PREFIX_MAX_SALT)
        return gy_err_set(err, GY_E_ARG, "cache_salt: found %d bytes, expected at most %d", r->n_salt,
                          GY_PREFIX_MAX_SALT);
    return GY_OK;
}

static gy_status check_fits(const gy_engine_bounds *b, const gy_request *r, gy_err *err) {
    int64_t len = (int64_t)r->n_prompt + r->max_tokens;
    if (len > b->max_len)
        return gy_err_set(err, GY_E_LIMIT, "prompt of %d tokens + max_tokens %d = %lld, expected at most %d (context)",
                          r->n_prompt, r->max_tokens, (long long)len, b->max_len);
    if (r->n > b->max_queue)
        return gy_err_set(err, GY_E_LIMIT, "n: found %d choices, the queue holds %d; raise max_queue", r->n,
                          b->max_queue);
    return gy_sched_fits_pool(&b->kv, r->n_prompt, r->max_tokens, err);
}

gy_status gy_request_check(const gy_engine_bounds *b, const gy_request *r, gy_err *err) {
    int32_t n_vocab = b->d->n_vocab;
    GY_TRY(check_counts(r, err));
    GY_TRY(check_ids(r->prompt, r->n_prompt, n_vocab, "prompt", err));
    GY_TRY(check_ids(r->stop_ids, r->n_stop_ids, n_vocab, "stop_ids", err));
    GY_TRY(gy_sample_params_check(&r->sample, err));
    GY_TRY(gy_sample_params_check_vocab(&r->sample, n_vocab, err));
    GY_TRY(check_exit(b, r, err));
    GY_TRY(gy_constrain_check(b->d, r, err));
    return check_fits(b, r, err);
}

static gy_engine_bounds bounds_of(const gy_model_desc *d, const gy_engine_opts *o) {
    return (gy_engine_bounds){.d = d,
                              .max_len = o->max_len,
                              .max_loops = o->max_loops,
                              .depth = gy_engine_depth(d, o),
                              .max_queue = o->sched.max_queue};
}

gy_engine_bounds gy_engine_plan_bounds(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o,
                                       const gy_engine_plan *p) {
    gy_engine_bounds b = bounds_of(d, o);
    b.kv = gy_engine_kv_config(d, act, o, p);
    return b;
}

gy_status gy_engine_check(const gy_engine *e, const gy_request *r, gy_err *err) {
    gy_engine_bounds b = bounds_of(&e->m->d, &e->o);
    b.kv = *gy_kv_get_config(e->kv);
    return gy_request_check(&b, r, err);
}

/* ---- the copy --------------------------------------------------------------------------------------------------- */

static void take_ids(gy_carve *c, const int32_t **ids, int32_t n) {
    int32_t *p = n ? gy_carve_take(c, (size_t)n, sizeof *p) : NULL;
    if (p) memcpy(p, *ids, (size_t)n * sizeof *p);
    if (c->base) *ids = p;
}

static void lay_out_choice(const gy_engine *e, gy_req *q, gy_carve *c, gy_choice *h) {
    const gy_request *r = &q->r;
    size_t counts = gy_sample_needs_counts(&r->sample) ? gy_counts_bytes(r->n_prompt, r->max_tokens) : 0;
    int32_t *tok = gy_carve_take(c, (size_t)r->n_prompt + (size_t)r->max_tokens, sizeof(int32_t));
    int32_t *depth = gy_carve_take(c, (size_t)r->max_tokens, sizeof(int32_t));
    float *logp = r->exit.kind == GY_EXIT_KL ? gy_carve_take(c, (size_t)e->m->d.n_vocab, sizeof(float)) : NULL;
    void *mem = counts ? gy_carve_take(c, counts, 1) : NULL;
    gy_grammar_state *text = r->grammar ? gy_carve_take(c, 1, sizeof *text) : NULL;
    if (!h) return;
    h->text = text;
    h->tok = tok;
    h->depth = depth;
    h->prev_logp = logp;
    memcpy(tok, r->prompt, (size_t)r->n_prompt * sizeof *tok);
    if (mem) h->counts = gy_counts_init(mem, r->prompt, r->n_prompt, r->max_tokens);
}

/* Everything behind the gy_req. Runs twice: measuring, it reads the caller's arrays and leaves them alone. */
static void lay_out_req(const gy_engine *e, gy_req *q, gy_carve *c) {
    gy_request *r = &q->r;
    const gy_model_desc *d = &e->m->d;
    gy_choice *choice = gy_carve_take(c, (size_t)r->n, sizeof *choice);
    gy_logit_bias *bias = r->sample.n_bias ? gy_carve_take(c, (size_t)r->sample.n_bias, sizeof *bias) : NULL;
    const gy_arrival *a = &q->arrival;
    float *hidden = a->hidden ? gy_carve_take(c, (size_t)d->n_embd, sizeof *hidden) : NULL;
    float *gates = a->n_gate ? gy_carve_take(c, (size_t)a->n_gate, sizeof *gates) : NULL;
    char *salt = r->n_salt ? gy_carve_take(c, (size_t)r->n_salt, 1) : NULL;
    size_t n_after = (size_t)r->n_grammar_after;
    char *after = n_after ? gy_carve_take(c, n_after, 1) : NULL;
    void *automaton = n_after ? gy_carve_take(c, gy_grammar_after_bytes(n_after), 1) : NULL;
    int32_t n_eos = r->ignore_eos ? 0 : d->n_eos;
    int32_t *ends = gy_carve_take(c, (size_t)r->n_stop_ids + (size_t)n_eos, sizeof *ends);
    take_ids(c, &r->trace, r->n_trace);
    for (int32_t k = 0; k < r->n; k++) lay_out_choice(e, q, c, c->base ? &choice[k] : NULL);
    if (!c->base) return;
    q->choice = choice;
    q->ends = ends;
    for (int32_t i = 0; i < r->n_stop_ids; i++) ends[q->n_ends++] = r->stop_ids[i];
    for (int32_t i = 0; i < n_eos; i++) ends[q->n_ends++] = d->eos[i];
    if (bias) r->sample.bias = memcpy(bias, r->sample.bias, (size_t)r->sample.n_bias * sizeof *bias);
    if (hidden) q->arrival.hidden = memcpy(hidden, a->hidden, (size_t)d->n_embd * sizeof *hidden);
    if (gates) q->arrival.gates = memcpy(gates, a->gates, (size_t)a->n_gate * sizeof *gates);
    if (salt) r->cache_salt = memcpy(salt, r->cache_salt, (size_t)r->n_salt);
    if (after) {
        r->grammar_after = memcpy(after, r->grammar_after, n_after);
        q->after = gy_grammar_after_init(automaton, r->vocab, after, n_after);
    }
    r->prompt = choice[0].tok;
    r->stop_ids = NULL; /* in ends now */
}

void gy_req_free(gy_req *q) {
    if (q) gy_grammar_put(q->r.grammar);
    gy_mem_free(q);
}

static gy_status req_copy(const gy_engine *e, const gy_request *r, const gy_crossing *x, gy_err *err, gy_req **out) {
    gy_req probe = {.r = *r};
    if (x->arrival) probe.arrival = *x->arrival;
    gy_carve size = {0};
    size_t head = GY_ALIGN_UP(sizeof probe, 64), total = 0;
    lay_out_req(e, &probe, &size);
    gy_req *q = size.overflow || gy_size_add(head, size.used, &total) ? NULL : gy_mem_alloc(GY_MEM_ENGINE, total, 1);
    if (!q)
        return gy_err_set(err, GY_E_NOMEM, "no memory for a request of %d tokens and %d choices", r->n_prompt, r->n);
    q->r = *r;
    q->arrival = probe.arrival;
    gy_carve c = {.base = (char *)q + head, .cap = size.used};
    lay_out_req(e, q, &c);
    if (r->grammar) gy_grammar_get(r->grammar);
    *out = q;
    return GY_OK;
}

/* ---- queueing --------------------------------------------------------------------------------------------------- */

static gy_status draw_seed(gy_request *r, gy_err *err) {
    uint64_t seed;
    if (!r->random_seed) return GY_OK;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return gy_err_set(err, GY_E_IO, "random seed: the system gives no random numbers (%s)", strerror(errno));
    r->sample.seed = seed >> 11; /* 53 bits: any JSON reader holds them */
    return GY_OK;
}

static gy_status check_room(const gy_engine *e, const gy_request *r, gy_err *err) {
    gy_sched_stats s;
    gy_sched_get_stats(e->sched, &s);
    int32_t n = s.n_waiting + s.n_parked;
    if (n + r->n <= e->o.sched.max_queue) return GY_OK;
    return gy_err_set(err, GY_AGAIN, "the queue is full: %d of %d places are taken, %d are needed; try again later", n,
                      e->o.sched.max_queue, r->n);
}

/* Prompt tokens run the trained depth unless the request's rule is for them too (a trace says nothing about them). */
static int full_prompt(const gy_request *r) {
    return !r->exit.on_prompt || r->exit.kind == GY_EXIT_TRACE;
}

static void queue_choice(gy_engine *e, gy_req *q, int32_t k, const gy_crossing *x) {
    gy_choice *c = &q->choice[k];
    const gy_request *r = &q->r;
    gy_sched_job j = {.tok = c->tok,
                      .n_prompt = r->n_prompt,
                      .max_tokens = r->max_tokens,
                      .priority = r->priority,
                      .full_prompt = full_prompt(r),
                      .use_cache = !r->no_cache,
                      .all_logits = k == 0 && r->prompt_logprobs >= 0,
                      .space = {.salt = r->cache_salt,
                                .n_salt = r->n_salt,
                                .latent_noise = r->latent_noise && e->m->d.inject,
                                .latent_seed = r->latent_seed},
                      .is_pinned = x->handoff != NULL,
                      .has_kv = k == 0 && x->arrival,
                      .kv_seq = x->kv_seq,
                      .leader = k && full_prompt(r) ? q->choice[0].job : -1};
    c->req = q;
    c->index = k;
    c->p = r->sample;
    c->p.choice = r->sample.choice + (uint32_t)k;
    gy_constrain_begin(c);
    gy_status st = gy_sched_submit(e->sched, &j, q->submit_ns, &c->job);
    GY_CHECK(st == GY_OK && c->job < e->max_job); /* check_fits, check_room */
    e->by_job[c->job] = c;
}

gy_status gy_engine_submit(gy_engine *e, const gy_request *r, gy_err *err, int32_t *id_out) {
    return gy_engine_queue(e, r, &(gy_crossing){0}, err, id_out);
}

int gy_engine_judges(const gy_request *r) {
    return gy_exit_needs_logits(&r->exit);
}

gy_status gy_engine_queue(gy_engine *e, const gy_request *r, const gy_crossing *x, gy_err *err, int32_t *id_out) {
    gy_req *q = NULL;
    GY_TRY(gy_engine_check(e, r, err));
    gy_status st = check_room(e, r, err);
    if (st != GY_OK) return st;
    gy_request drawn = *r;
    GY_TRY(draw_seed(&drawn, err));
    if (r->grammar) GY_TRY(gy_constrain_open(e, r->vocab, err));
    GY_TRY(req_copy(e, &drawn, x, err, &q));
    q->id = e->next_id++;
    q->n_left = r->n;
    q->submit_ns = gy_clock_ns();
    q->prev = e->last;
    *(e->last ? &e->last->next : &e->first) = q;
    e->last = q;
    for (int32_t k = 0; k < r->n; k++) queue_choice(e, q, k, x);
    q->handoff = x->handoff;
    if (q->handoff) q->handoff->q = q;
    e->n_judging += gy_engine_judges(r);
    e->stats.n_request++;
    *id_out = q->id;
    return GY_OK;
}
