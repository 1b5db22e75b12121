/* What the engine will refuse, told in the submitting thread: the same conditions as gy_engine_submit, of what does not
 * change while the engine lives. The engine checks again; what only it finds ends the request with an error event.
 */
#include "api/api_int.h"

static gy_status check_range(const char *field, int64_t found, int64_t lo, int64_t hi, gy_err *err) {
    if (found >= lo && found <= hi) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: found %lld, expected %lld to %lld", field, (long long)found, (long long)lo,
                      (long long)hi);
}

static gy_status check_ids(const int32_t *ids, int32_t n, int32_t n_vocab, const char *what, gy_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "%s[%d]: found token id %d, expected 0 to %d", what, i, ids[i],
                              n_vocab - 1);
    return GY_OK;
}

static gy_status check_trace(const gyre *g, const gy_request *r, gy_err *err) {
    int32_t n_loop = g->m.d.n_loop;
    if (r->exit.kind != GY_EXIT_TRACE) return GY_OK;
    if (r->n_trace < r->max_tokens)
        return gy_err_set(err, GY_E_ARG, "trace: found %d depths, expected one for each of the %d outputs", r->n_trace,
                          r->max_tokens);
    for (int32_t i = 0; i < r->n_trace; i++) {
        int32_t lo = i ? r->exit.min_loops : n_loop, hi = i ? r->exit.max_loops : n_loop;
        if (r->trace[i] < lo || r->trace[i] > hi)
            return gy_err_set(err, GY_E_ARG, "trace[%d]: found %d loops, expected %d to %d%s", i, r->trace[i], lo, hi,
                              i ? "" : " (the prompt runs at full depth)");
    }
    return GY_OK;
}

static gy_status check_exit(const gyre *g, const gy_request *r, gy_err *err) {
    const gy_model_desc *d = &g->m.d;
    gy_exit_caps caps = {.n_loop = d->n_loop, .has_gate = d->has_gate, .allow_deeper = g->info.max_loops > d->n_loop};
    GY_TRY(gy_exit_rule_check(&r->exit, &caps, err));
    GY_TRY(check_range("max_loops", r->exit.max_loops, 1, g->info.max_loops, err));
    if (r->exit.on_prompt && gy_exit_needs_logits(&r->exit))
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "exit_on_prompt: the rule \"%s\" would need the LM head at each prompt token; use gate, "
                          "gate_delayed or latent",
                          gy_exit_name(r->exit.kind));
    if (r->want_gates && !d->has_gate)
        return gy_err_set(err, GY_E_ARG, "want_gates: %s models have no exit gate", d->family);
    return check_trace(g, r, err);
}

/* Of choices, the API's own bound is the tighter one: all of a request's run or wait in it at once. */
static gy_status check_size(const gyre *g, const gy_request *r, gy_err *err) {
    int64_t len = (int64_t)r->n_prompt + r->max_tokens;
    if (len > g->max_len)
        return gy_err_set(err, GY_E_LIMIT, "prompt of %d tokens + max_tokens %d = %lld, expected at most %d (max_len)",
                          r->n_prompt, r->max_tokens, (long long)len, g->max_len);
    if (r->n > g->n_slot)
        return gy_err_set(err, GY_E_LIMIT, "n: found %d choices, max_seqs + max_queue are %d", r->n, g->n_slot);
    return gy_sched_fits(gy_engine_sched(g->engine), r->n_prompt, r->max_tokens, err);
}

gy_status gy_api_check(const gyre *g, const gy_request *r, gy_err *err) {
    int32_t n_vocab = g->m.d.n_vocab;
    if (r->n_prompt < 1) return gy_err_set(err, GY_E_ARG, "prompt: found no tokens, expected at least one");
    GY_TRY(check_range("max_tokens", r->max_tokens, 1, INT32_MAX - 1, err));
    GY_TRY(check_range("min_tokens", r->min_tokens, 0, r->max_tokens, err));
    GY_TRY(check_range("n", r->n, 1, GY_ENGINE_MAX_N, err));
    GY_TRY(check_range("prompt_logprobs", r->prompt_logprobs, -1, GY_MAX_LOGPROBS, err));
    GY_TRY(check_ids(r->prompt, r->n_prompt, n_vocab, "prompt", err));
    GY_TRY(check_ids(r->stop_ids, r->n_stop_ids, n_vocab, "stop_ids", err));
    GY_TRY(gy_sample_params_check(&r->sample, err));
    GY_TRY(gy_sample_params_check_vocab(&r->sample, n_vocab, err));
    GY_TRY(check_exit(g, r, err));
    return check_size(g, r, err);
}
