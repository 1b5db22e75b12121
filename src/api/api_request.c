/* A gyre_request becomes a request of the engine: names resolved, everything checked, everything copied, memory taken
 * for all that it will ever say. Runs in the submitting thread and reads nothing of the handle that changes.
 */
#include "api/api_int.h"

#include "base/arena.h"
#include "base/clock.h"

#include <math.h>
#include <string.h>

void gyre_request_default(gyre_request *r, size_t size) {
    gyre_request d = {.size = size < sizeof d ? size : sizeof d,
                      .max_tokens = 16,
                      .n = 1,
                      .top_p = 1.0f,
                      .repetition_penalty = 1.0f,
                      .logprobs = -1,
                      .prompt_logprobs = -1,
                      .exit = "fixed",
                      .exit_threshold = NAN};
    memcpy(r, &d, d.size);
}

/* ---- the exit rule ---------------------------------------------------------------------------------------------- */

static gy_status resolve_exit(const gyre *g, const gyre_request *r, gy_err *err, gy_exit_rule *out) {
    gy_exit_rule x;
    gy_exit_rule_default(&x, g->m.d.n_loop);
    if (gy_exit_parse(r->exit ? r->exit : "fixed", &x.kind))
        return gy_err_set(
            err, GY_E_ARG,
            "exit: found '%.80s', expected fixed, gate, gate_delayed, select, latent, kl, entropy, argmax "
            "or trace",
            r->exit);
    x.on_prompt = r->exit_on_prompt != 0;
    if (r->max_loops) x.max_loops = r->max_loops;
    x.min_loops = r->min_loops;
    x.threshold = r->exit_threshold;
    GY_TRY(gy_exit_rule_complete(&x, g->m.d.has_gate, err));
    *out = x;
    return GY_OK;
}

/* ---- the copy of what came in ----------------------------------------------------------------------------------- */

typedef struct input { /* lengths first, then one block */
    gy_vec_i32 ids;    /* the prompt */
    const gyre *g;
    const gyre_request *r;
} input;

static gy_status check_count(const char *field, int32_t n, const void *p, int64_t most, gy_err *err) {
    if (n < 0 || n > most)
        return gy_err_set(err, GY_E_ARG, "%s: found %d entries, expected 0 to %lld", field, n, (long long)most);
    return n && !p ? gy_err_set(err, GY_E_ARG, "%s: found no array of the %d entries", field, n) : GY_OK;
}

static gy_status check_timeout(const gyre_request *r, gy_err *err) {
    const int64_t most = (int64_t)1 << 42; /* a century, in milliseconds */
    if (r->timeout_ms >= 0 && r->timeout_ms <= most) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "timeout_ms: found %lld, expected 0 to %lld", (long long)r->timeout_ms,
                      (long long)most);
}

static gy_status check_arrays(const gyre *g, const gyre_request *r, gy_err *err) {
    GY_TRY(check_count("bias", r->n_bias, r->bias, GY_MAX_LOGIT_BIAS, err));
    GY_TRY(check_count("trace", r->n_trace, r->trace, INT32_MAX, err));
    GY_TRY(check_count("stop_ids", r->n_stop_ids, r->stop_ids, g->m.d.n_vocab, err));
    GY_TRY(check_count("stop", r->n_stop, r->stop, GY_MAX_STOP, err));
    GY_TRY(check_count("cache_salt", r->n_cache_salt, r->cache_salt, GY_PREFIX_MAX_SALT, err));
    if (r->grammar_after.n > GY_GRAMMAR_MAX_AFTER || (r->grammar_after.n && !r->grammar_after.s))
        return gy_err_set(err, GY_E_ARG, "grammar_after: found %zu bytes%s, expected at most %d", r->grammar_after.n,
                          r->grammar_after.s ? "" : " and no text", GY_GRAMMAR_MAX_AFTER);
    if (r->n_stop && !g->m.tok)
        return gy_err_set(err, GY_E_ARG,
                          "stop: the model's folder holds no tokenizer, so there is no text to find it in");
    if (r->latent_noise && !g->m.d.inject)
        return gy_err_set(err, GY_E_ARG, "latent_noise: %s models have no initial state to fill", g->m.d.family);
    return GY_OK;
}

static gy_status read_prompt(gyre *g, const gyre_request *r, gy_err *err, gy_vec_i32 *ids) {
    if (r->prompt && r->prompt_ids)
        return gy_err_set(err, GY_E_ARG, "prompt: found both text and prompt_ids, expected one of them");
    if (r->prompt)
        return gy_api_encode(g, r->prompt, r->n_prompt,
                             GY_TOK_ADD_SPECIAL | (r->plain_prompt ? 0u : (unsigned)GY_TOK_PARSE_SPECIAL), err, ids);
    GY_TRY(check_count("prompt_ids", r->n_prompt_ids, r->prompt_ids, INT32_MAX, err));
    if (gy_vec_reserve(ids, GY_MEM_ENGINE, (size_t)r->n_prompt_ids))
        return gy_err_set(err, GY_E_NOMEM, "no memory for a prompt of %d tokens", r->n_prompt_ids);
    if (r->n_prompt_ids) memcpy(ids->data, r->prompt_ids, (size_t)r->n_prompt_ids * sizeof *ids->data);
    ids->len = (size_t)r->n_prompt_ids;
    return ids->len <= INT32_MAX ? GY_OK : gy_err_set(err, GY_E_LIMIT, "prompt: too long");
}

static const void *take_copy(gy_carve *c, const void *from, int32_t n, size_t elem) {
    void *p = n ? gy_carve_take(c, (size_t)n, elem) : NULL;
    if (p) memcpy(p, from, (size_t)n * elem);
    return p;
}

/* Runs twice (arena.h): the second time the pointers of rq are into the block. */
static void lay_out_input(const input *in, gy_carve *c, gy_request *rq) {
    const gyre_request *r = in->r;
    int32_t n_eos = r->ignore_eos ? 0 : in->g->m.n_eos, n_id = (int32_t)in->ids.len;
    rq->prompt = take_copy(c, in->ids.data, n_id, sizeof(int32_t));
    rq->trace = take_copy(c, r->trace, r->n_trace, sizeof(int32_t));
    rq->sample.bias = take_copy(c, r->bias, r->n_bias, sizeof(gy_logit_bias));
    rq->cache_salt = take_copy(c, r->cache_salt, r->n_cache_salt, 1);
    rq->grammar_after = take_copy(c, r->grammar_after.s, rq->n_grammar_after, 1);
    int32_t *ends = gy_carve_take(c, (size_t)r->n_stop_ids + (size_t)n_eos, sizeof *ends);
    if (!c->base) return;
    if (r->n_stop_ids) memcpy(ends, r->stop_ids, (size_t)r->n_stop_ids * sizeof *ends);
    if (n_eos) memcpy(ends + r->n_stop_ids, in->g->m.eos, (size_t)n_eos * sizeof *ends);
    rq->stop_ids = ends;
    rq->n_stop_ids = r->n_stop_ids + n_eos;
}

static gy_status copy_input(gy_api_req *q, const input *in, gy_err *err) {
    gy_carve size = {0};
    lay_out_input(in, &size, &q->rq);
    q->input = size.overflow ? NULL : gy_mem_alloc(GY_MEM_ENGINE, size.used + 1, 1);
    if (!q->input) return gy_err_set(err, GY_E_NOMEM, "no memory for a request of %zu tokens", in->ids.len);
    gy_carve c = {.base = q->input, .cap = size.used};
    lay_out_input(in, &c, &q->rq);
    return GY_OK;
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(gyre_bias) == sizeof(gy_logit_bias) && offsetof(gyre_bias, bias) == offsetof(gy_logit_bias, bias),
               "copied as bytes");

static void set_sample(const gyre_request *r, gy_sample_params *p) {
    p->temperature = r->temperature;
    p->top_k = r->top_k;
    p->top_p = r->top_p;
    p->min_p = r->min_p;
    p->seed = r->seed;
    p->n_logprobs = r->logprobs;
    p->repetition_penalty = r->repetition_penalty;
    p->frequency_penalty = r->frequency_penalty;
    p->presence_penalty = r->presence_penalty;
    p->n_bias = r->n_bias;
}

static void set_fields(const gyre *g, const gyre_request *r, int32_t n_prompt, gy_request *rq) {
    set_sample(r, &rq->sample);
    rq->n_prompt = n_prompt;
    rq->max_tokens = r->max_tokens;
    if (!rq->max_tokens) rq->max_tokens = n_prompt < g->info.max_len ? g->info.max_len - n_prompt : 1;
    rq->min_tokens = r->min_tokens;
    rq->n = r->n;
    rq->random_seed = !r->has_seed;
    rq->prompt_logprobs = r->prompt_logprobs;
    rq->n_trace = r->n_trace;
    rq->want_gates = r->want_gates != 0;
    rq->ignore_eos = r->ignore_eos != 0;
    rq->latent_noise = r->latent_noise != 0;
    rq->latent_seed = r->latent_seed;
    rq->priority = r->priority;
    rq->no_cache = r->no_cache != 0;
    rq->n_salt = r->n_cache_salt;
    rq->on_token = gy_api_on_token;
    rq->on_prompt = r->prompt_logprobs >= 0 ? gy_api_on_prompt : NULL;
    rq->on_finish = gy_api_on_finish;
}

/* ---- memory for what it will say -------------------------------------------------------------------------------- */

static gy_status open_log(gy_api_req *q, const gyre_request *r, gy_err *err) {
    const gy_request *rq = &q->rq;
    q->n_lp = rq->sample.n_logprobs > rq->prompt_logprobs ? rq->sample.n_logprobs : rq->prompt_logprobs;
    if (q->n_lp < 0) q->n_lp = 0;
    q->n_gate_max = rq->want_gates ? q->g->info.max_loops : 0;
    q->stride = sizeof(gy_api_rec) + (size_t)q->n_lp * sizeof(gyre_logprob) + (size_t)q->n_gate_max * sizeof(float);
    q->cap = (size_t)rq->n * ((size_t)rq->max_tokens + 1);
    if (rq->prompt_logprobs >= 0) q->cap += (size_t)rq->n_prompt;
    if (r->on_event) q->cap = 1;
    q->log = gy_mem_alloc(GY_MEM_ENGINE, q->cap, q->stride);
    return q->log ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for %zu events", q->cap);
}

static gy_status open_choices(gy_api_req *q, const gyre_request *r, gy_err *err) {
    int watched = r->n_stop && !r->on_event;
    q->choice = gy_mem_alloc(GY_MEM_ENGINE, (size_t)q->n, sizeof *q->choice);
    if (!q->choice) return gy_err_set(err, GY_E_NOMEM, "no memory for %d choices", q->n);
    for (int32_t k = 0; k < q->n; k++) {
        GY_TRY(gy_api_text_open(&q->choice[k].text, &q->g->m, r->stop, r->n_stop, err));
        if (watched) GY_TRY(gy_api_text_open(&q->choice[k].watch, &q->g->m, r->stop, r->n_stop, err));
    }
    return GY_OK;
}

static gy_status copy_ends(gy_api_req *q, gy_err *err) {
    int32_t n = q->rq.n_stop_ids, *ends = gy_mem_alloc(GY_MEM_ENGINE, (size_t)n + 1, sizeof *ends);
    if (!ends) return gy_err_set(err, GY_E_NOMEM, "no memory for %d stop ids", n);
    if (n) memcpy(ends, q->rq.stop_ids, (size_t)n * sizeof *ends);
    q->ends = ends;
    q->n_ends = n;
    return GY_OK;
}

/* The request's own reference; gy_api_req_free gives it back. */
static gy_status take_grammar(gy_api_req *q, const gyre_request *r, gy_err *err) {
    q->rq.n_grammar_after = (int32_t)r->grammar_after.n;
    if (!r->grammar) return GY_OK;
    GY_TRY(gy_api_vocab(q->g, err, &q->rq.vocab));
    q->rq.grammar = gy_grammar_get((gy_grammar *)(uintptr_t)r->grammar);
    return GY_OK;
}

static gy_status req_fill(gy_api_req *q, const gyre_request *r, const gy_vec_i32 *ids, gy_err *err) {
    const gyre *g = q->g;
    input in = {.ids = *ids, .g = g, .r = r};
    gy_request_default(&q->rq, &g->m.d);
    set_fields(g, r, (int32_t)ids->len, &q->rq);
    GY_TRY(take_grammar(q, r, err));
    q->rq.arg = q;
    GY_TRY(resolve_exit(g, r, err, &q->rq.exit));
    GY_TRY(copy_input(q, &in, err));
    GY_TRY(g->host->ops->check(g->host, &q->rq, err));
    q->n = q->n_left = q->rq.n;
    GY_TRY(copy_ends(q, err));
    GY_TRY(open_choices(q, r, err));
    return open_log(q, r, err);
}

static gy_status req_build(gyre *g, const gyre_request *r, gy_err *err, gy_api_req **out) {
    gy_vec_i32 ids = {0};
    GY_TRY(check_arrays(g, r, err));
    GY_TRY(check_timeout(r, err));
    gy_api_req *q = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *q);
    if (!q) return gy_err_set(err, GY_E_NOMEM, "no memory for a request");
    q->g = g;
    q->on_event = r->on_event;
    q->user = r->user;
    q->submit_ns = gy_clock_ns();
    if (r->timeout_ms) q->deadline_ns = q->submit_ns + r->timeout_ms * 1000000;
    gy_status st = read_prompt(g, r, err, &ids);
    if (st == GY_OK) st = req_fill(q, r, &ids, err);
    gy_vec_free(&ids);
    if (st == GY_OK)
        *out = q;
    else
        gy_api_req_free(q);
    return st;
}

/* Of the struct's first version, whose last field is `user`. */
#define FIRST_SIZE (offsetof(gyre_request, user) + sizeof(void *))

/* A smaller struct is an older caller's: what it does not know has its default. */
gy_status gy_api_req_create(gyre *g, const gyre_request *r, gy_err *err, gy_api_req **out) {
    gyre_request full;
    if (r->size < FIRST_SIZE || r->size > sizeof full)
        return gy_err_set(err, GY_E_ARG, "size: found %zu, expected %zu to %zu; begin with gyre_request_default",
                          r->size, FIRST_SIZE, sizeof full);
    gyre_request_default(&full, sizeof full);
    memcpy(&full, r, r->size);
    return req_build(g, &full, err, out);
}

void gy_api_req_free(gy_api_req *q) {
    if (!q) return;
    for (int32_t k = 0; q->choice && k < q->n; k++) {
        gy_api_text_close(&q->choice[k].text);
        gy_api_text_close(&q->choice[k].watch);
    }
    gy_grammar_put(q->rq.grammar);
    gy_mem_free(q->choice);
    gy_mem_free(q->ends);
    gy_mem_free(q->log);
    gy_mem_free(q->input);
    gy_mem_free(q);
}
