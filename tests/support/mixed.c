#include "support/mixed.h"

#include "base/philox.h"

#include <stdio.h>
#include <string.h>

uint32_t mixed_draw(uint32_t i, uint32_t k) {
    uint32_t w[4];
    gy_rand_block(20261129, i, k, GY_RAND_TEST, 0, w);
    return w[0];
}

/* Rules that the family has, in turn, so that depths mix in every pass. */
static void set_rule(gy_request *r, const gy_model_desc *d, uint32_t i, const mixed *w, int32_t max_out) {
    static const struct {
        gy_exit_kind kind;
        double threshold;
        int gate;
    } rules[] = {{GY_EXIT_FIXED, 1.0, 0},   {GY_EXIT_GATE, 0.6, 1},         {GY_EXIT_LATENT, 0.3, 0},
                 {GY_EXIT_KL, 0.05, 0},     {GY_EXIT_SELECT, 0.7, 1},       {GY_EXIT_TRACE, 0.0, 0},
                 {GY_EXIT_ENTROPY, 0.1, 0}, {GY_EXIT_GATE_DELAYED, 0.5, 1}, {GY_EXIT_ARGMAX, 1.0, 0}};
    uint32_t k = i % (sizeof rules / sizeof rules[0]);
    if (rules[k].gate && !d->has_gate) k = 2;
    r->exit.kind = rules[k].kind;
    r->exit.threshold = rules[k].threshold;
    r->exit.on_prompt = (rules[k].kind == GY_EXIT_LATENT && i != 2) ||
                        ((rules[k].kind == GY_EXIT_GATE || rules[k].kind == GY_EXIT_GATE_DELAYED) && i > 9);
    if (rules[k].kind == GY_EXIT_TRACE) {
        r->trace = w->trace;
        r->n_trace = max_out;
    }
    if (i == 9) r->exit.max_loops = d->n_loop - 1;
}

static void set_sampling(gy_request *r, uint32_t i, const mixed *w) {
    if (i % 3 == 1) {
        r->sample.temperature = 0.9f;
        r->sample.top_p = 0.95f;
        r->sample.top_k = 40;
        r->sample.seed = 1000 + i;
    }
    r->sample.n_logprobs = i % 4 ? (int32_t)(i % 4) : 0;
    if (i % 4 == 2 || i == 4) {
        r->sample.repetition_penalty = 1.3f;
        r->sample.frequency_penalty = 0.4f;
        r->sample.presence_penalty = -0.3f;
    }
    if (i % 5 == 4) {
        r->sample.bias = w->bias;
        r->sample.n_bias = 3;
    }
}

static void set_rest(gy_request *r, const gy_model_desc *d, uint32_t i, const mixed *w) {
    r->ignore_eos = 1;
    if (i % 6 == 1) { /* one token in twenty or so ends these */
        r->ignore_eos = 0;
        r->stop_ids = w->stop;
        r->n_stop_ids = 16;
        r->min_tokens = 2 + (int32_t)(i % 4);
        if (r->min_tokens >= r->max_tokens) r->min_tokens = r->max_tokens - 1;
    }
    if (i == 4 || i == 11) r->n = 3;
    if (i == 13) r->n = 2;
    if (i % 5 == 3) r->prompt_logprobs = (int32_t)(i % 3);
    r->want_gates = d->has_gate && i % 3 != 2;
    r->latent_noise = i % 2;
    r->latent_seed = i == 17 ? 8 : 7 + i / 4; /* as request 5 */
    r->priority = (int32_t)(i * 7 % 5) - 2;
    r->no_cache = i == 10;
    r->cache_salt = &w->salt[i];
    r->n_salt = i % 3 == 0;
}

/* All but the last token of request 5's prompt, and one more that is another. */
static void share_prefix(mixed *w, gy_request *r) {
    r->n_prompt = w->req[5].n_prompt;
    memcpy(w->ids[17], w->ids[5], sizeof w->ids[5]);
    w->ids[17][r->n_prompt - 1] ^= 1;
}

void mixed_make(mixed *w, const gy_model_desc *d, int32_t max_prompt, int32_t max_out) {
    memset(w, 0, sizeof *w);
    for (uint32_t k = 0; k < MIXED_MAX_OUT; k++)
        w->trace[k] = k ? (int32_t)(mixed_draw(99, k) % (uint32_t)d->n_loop) + 1 : d->n_loop;
    for (uint32_t k = 0; k < 16; k++) w->stop[k] = (int32_t)(k * (uint32_t)d->n_vocab / 16 + 3);
    for (int32_t k = 0; k < 3; k++) w->bias[k] = (gy_logit_bias){.id = 11 + 90 * k, .bias = (float)(3 - 4 * k)};
    for (uint32_t i = 0; i < MIXED_N; i++) {
        gy_request *r = &w->req[i];
        gy_request_default(r, d);
        r->n_prompt = 1 + (int32_t)(mixed_draw(i, 1000) % (uint32_t)max_prompt);
        if (i == 5) r->n_prompt = max_prompt;
        for (int32_t k = 0; k < MIXED_MAX_PROMPT; k++)
            w->ids[i][k] = (int32_t)(mixed_draw(i, (uint32_t)k) % (uint32_t)d->n_vocab);
        if (i == 17) share_prefix(w, r);
        w->salt[i] = (char)('a' + i % 2);
        r->prompt = w->ids[i];
        r->max_tokens = max_out - (int32_t)(i % 5);
        set_rule(r, d, i, w, max_out);
        set_sampling(r, i, w);
        set_rest(r, d, i, w);
    }
    w->n_result = gold_n_choice(w->req, MIXED_N);
}

int mixed_first(const mixed *w, int request) {
    return gold_n_choice(w->req, request);
}

static int odd(const gy_request *r, const gold_result *g) {
    int32_t n_lp = r->prompt_logprobs >= 0 && !g->fin.choice ? r->n_prompt - 1 : 0;
    if (g->n_prompt != n_lp || (r->want_gates && !g->n_gate[0])) return 1;
    if (g->reason == GY_FINISH_LENGTH) return g->n != r->max_tokens || g->fin.stop_id != -1;
    return g->reason != GY_FINISH_STOP || !r->n_stop_ids || g->n <= r->min_tokens ||
           g->fin.stop_id != g->tokens[g->n - 1];
}

int mixed_odd(const mixed *w, const gy_model_desc *d, const gold_result *res) {
    int n_odd = 0, n_early = 0, n_token = 0, n_other = 0;
    for (int i = 0, k = 0; i < MIXED_N; i++)
        for (int c = 0; c < w->req[i].n; c++, k++) {
            if (odd(&w->req[i], &res[k])) {
                printf("  request %d choice %d: %s, %d outputs, stop id %d, %d prompt logprobs, %d gates: not what it "
                       "asked for\n",
                       i, c, gy_finish_name(res[k].reason), res[k].n, res[k].fin.stop_id, res[k].n_prompt,
                       res[k].n_gate[0]);
                n_odd++;
            }
            for (int j = 0; j < res[k].n; j++) {
                n_early += res[k].loops[j] < d->n_loop;
                n_other += j && res[k].tokens[j] != res[k].tokens[0];
                n_token++;
            }
        }
    if (n_early * 20 < n_token || n_other * 4 < n_token) {
        printf("  %d tokens, %d early, %d unlike the first: nothing to compare\n", n_token, n_early, n_other);
        n_odd++;
    }
    return n_odd;
}

int mixed_compare(const gold_setup *s, const char *what, const gy_request *req, int first, int n,
                  const gold_result *base, const gold_result *got) {
    int bad = 0;
    char diff[160];
    for (int i = 0, k = 0; i < n; i++)
        for (int c = 0; c < req[first + i].n; c++, k++)
            if (gold_diff(&base[k], &got[k], diff, sizeof diff)) {
                printf("  %s %s layout %d, %s: request %d (%s%s) choice %d differs: %s\n", s->model,
                       s->act == GY_F32 ? "f32" : "bf16", s->layout, what, first + i,
                       gy_exit_name(req[first + i].exit.kind), req[first + i].exit.on_prompt ? ", on prompt" : "", c,
                       diff);
                bad++;
            }
    return bad;
}
