/* Exit rules: the formulas of exit.h, and nothing about batches, KV or who asks. All arithmetic is double and runs in
 * ascending token order, so a decision depends on the row alone.
 *
 * What every rule does with values that are not numbers follows from one principle: a comparison with NaN is false, so
 * a row whose gate, state or logits are broken runs on to max_loops, where its logits are judged (GY_E_NUMERIC), and
 * never leaves early by accident. Infinite gates are numbers: sigmoid(+inf) = 1, sigmoid(-inf) = 0. A logit of -inf is
 * a mask: probability 0, no term in any sum; a token that loses its mask or gains one between two loops makes the KL
 * infinite or drops out of it, both as the formula says. p_0 of kl is uniform over the tokens that are not masked.
 *
 * At max_loops a token leaves whatever it shows: nothing of the observation is read, so the caller need not compute it.
 */
#include "engine/exit.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Entropy before the first loop: far above any real one, so that loop 1 never looks converged (the reference's value).
 */
static const double ENTROPY_START = 100.0;

static const char *const kind_names[] = {
    [GY_EXIT_FIXED] = "fixed",     [GY_EXIT_GATE] = "gate",     [GY_EXIT_GATE_DELAYED] = "gate_delayed",
    [GY_EXIT_SELECT] = "select",   [GY_EXIT_LATENT] = "latent", [GY_EXIT_KL] = "kl",
    [GY_EXIT_ENTROPY] = "entropy", [GY_EXIT_ARGMAX] = "argmax", [GY_EXIT_TRACE] = "trace"};
enum { N_KIND = sizeof kind_names / sizeof *kind_names };

int gy_exit_parse(const char *name, gy_exit_kind *out) {
    for (int k = 0; k < N_KIND; k++) {
        if (strcmp(name, kind_names[k]) != 0) continue;
        *out = (gy_exit_kind)k;
        return 0;
    }
    return -1;
}

const char *gy_exit_name(gy_exit_kind k) {
    return (unsigned)k < N_KIND ? kind_names[k] : "unknown";
}

void gy_exit_rule_default(gy_exit_rule *r, int32_t n_loop) {
    *r = (gy_exit_rule){.kind = GY_EXIT_FIXED, .threshold = 1.0, .min_loops = 1, .max_loops = n_loop};
}

/* ---- completing and checking a rule ---- */

static int kind_reads_gate(gy_exit_kind k) {
    return k == GY_EXIT_GATE || k == GY_EXIT_GATE_DELAYED || k == GY_EXIT_SELECT;
}

/* Published thresholds of the zero-shot rules: docs/models/huginn.md, leaving early. No threshold of a gate is right
 * for every model (1.0, that of the published Ouro code, never leaves early): NaN, it has to be given. */
static double default_threshold(gy_exit_kind k) {
    if (kind_reads_gate(k)) return NAN;
    switch (k) {
    case GY_EXIT_LATENT:
        return 0.03;
    case GY_EXIT_KL:
        return 5e-4;
    case GY_EXIT_ENTROPY:
        return 1e-3;
    case GY_EXIT_ARGMAX:
        return 5;
    default:
        return 1;
    }
}

/* 2 for the rules that leave by the gate, as the published engine has it; never more than max_loops allows. */
static int32_t default_min_loops(const gy_exit_rule *r) {
    return (r->kind == GY_EXIT_GATE || r->kind == GY_EXIT_GATE_DELAYED) && r->max_loops >= 2 ? 2 : 1;
}

gy_status gy_exit_rule_complete(gy_exit_rule *r, int has_gate, gy_err *err) {
    double threshold = isnan(r->threshold) ? default_threshold(r->kind) : r->threshold;
    if (isnan(threshold) && has_gate)
        return gy_err_set(err, GY_E_ARG,
                          "exit_threshold: not given; exit %s needs one (0 to 1; typical are 0.5 to 0.9)",
                          gy_exit_name(r->kind));
    r->threshold = threshold;
    if (!r->min_loops) r->min_loops = default_min_loops(r);
    return GY_OK;
}

/* What the rule's threshold must be, NULL if it is fine. fixed and trace have none: any number will do. */
static const char *threshold_fault(const gy_exit_rule *r) {
    double t = r->threshold;
    if (isnan(t)) return "a number";
    if (kind_reads_gate(r->kind)) return t >= 0 && t <= 1 ? NULL : "0..1";
    if (r->kind == GY_EXIT_ARGMAX)
        return t >= 1 && t <= INT32_MAX && t == floor(t) ? NULL : "a whole number, 1 or more";
    if (r->kind == GY_EXIT_FIXED || r->kind == GY_EXIT_TRACE) return NULL;
    return t >= 0 && isfinite(t) ? NULL : "0 or more, finite";
}

static gy_status loops_check(const gy_exit_rule *r, const gy_exit_caps *caps, gy_err *err) {
    if (r->min_loops < 1)
        return gy_err_set(err, GY_E_ARG, "min_loops: found %d; allowed 1..%d", r->min_loops, caps->n_loop);
    if (r->max_loops < 1)
        return gy_err_set(err, GY_E_ARG, "max_loops: found %d; allowed 1..%d", r->max_loops, caps->n_loop);
    if (r->min_loops > r->max_loops)
        return gy_err_set(err, GY_E_ARG, "min_loops: found %d; allowed 1..%d (max_loops)", r->min_loops, r->max_loops);
    if (r->max_loops > caps->n_loop && !caps->allow_deeper)
        return gy_err_set(err, GY_E_ARG,
                          "max_loops: found %d; the model was trained with %d loops, deeper has to be forced",
                          r->max_loops, caps->n_loop);
    return GY_OK;
}

gy_status gy_exit_rule_check(const gy_exit_rule *r, const gy_exit_caps *caps, gy_err *err) {
    if ((unsigned)r->kind >= N_KIND)
        return gy_err_set(err, GY_E_ARG, "exit: found rule number %d; allowed 0..%d", (int)r->kind, N_KIND - 1);
    if (kind_reads_gate(r->kind) && !caps->has_gate)
        return gy_err_set(err, GY_E_ARG,
                          "exit: found %s, which needs an exit gate, and this model has none; use fixed, latent, kl, "
                          "entropy, argmax or trace",
                          kind_names[r->kind]);
    const char *allowed = threshold_fault(r);
    if (allowed)
        return gy_err_set(err, GY_E_ARG, "exit_threshold: found %g; %s allows %s", r->threshold, kind_names[r->kind],
                          allowed);
    return loops_check(r, caps, err);
}

/* ---- what a rule looks at ---- */

/* The depth is settled before the token starts: nothing has to be observed. */
static int rule_is_fixed(const gy_exit_rule *r) {
    if (r->kind == GY_EXIT_FIXED || r->min_loops >= r->max_loops) return 1;
    return (r->kind == GY_EXIT_GATE || r->kind == GY_EXIT_GATE_DELAYED) && r->threshold >= 1;
}

int gy_exit_needs_gate(const gy_exit_rule *r) {
    return kind_reads_gate(r->kind) && !rule_is_fixed(r);
}

int gy_exit_needs_latent(const gy_exit_rule *r) {
    return r->kind == GY_EXIT_LATENT && !rule_is_fixed(r);
}

int gy_exit_needs_logits(const gy_exit_rule *r) {
    return (r->kind == GY_EXIT_KL || r->kind == GY_EXIT_ENTROPY || r->kind == GY_EXIT_ARGMAX) && !rule_is_fixed(r);
}

/* ---- scores ---- */

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* 1 - S_r: the probability of having left by now. */
static double gate_score(gy_exit_state *s, const gy_exit_obs *o) {
    s->remaining *= 1.0 - sigmoid(o->gate);
    return 1.0 - s->remaining;
}

/* log(sum(exp(x))) over n logits. NaN if one is NaN or +inf, or if all are -inf. */
static double log_sum_exp(const float *x, int32_t n) {
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (x[i] > top) top = x[i];
    for (int32_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

static double entropy(const float *x, int32_t n) {
    double lse = log_sum_exp(x, n), h = 0;
    for (int32_t i = 0; i < n; i++) {
        double logp = x[i] - lse, p = exp(logp);
        if (p != 0) h -= p * logp; /* a NaN is not 0 either: it must not get lost */
    }
    return h;
}

static double uniform_logp(const float *x, int32_t n) {
    int32_t n_open = 0;
    for (int32_t i = 0; i < n; i++) n_open += x[i] != -INFINITY;
    return -log(n_open);
}

/* KL(p_(r-1) || p_r); leaves log p_r in prev. Both sides are rounded to the float that prev can hold, so that equal
 * logits give exactly 0; a divergence below 0 can only be rounding. */
static double kl_step(const gy_exit_state *s, const gy_exit_obs *o) {
    int first = s->loops == 1;
    double lse = log_sum_exp(o->logits, o->n_vocab), kl = 0;
    float start = first ? (float)uniform_logp(o->logits, o->n_vocab) : 0;
    for (int32_t i = 0; i < o->n_vocab; i++) {
        float now = (float)(o->logits[i] - lse);
        float before = !first ? o->prev_logp[i] : o->logits[i] == -INFINITY ? -INFINITY : start;
        double p = exp(before);
        if (p != 0) kl += p * ((double)before - now);
        o->prev_logp[i] = now;
    }
    if (isnan(lse)) return NAN; /* all masked: no term would have shown it */
    return kl < 0 ? 0 : kl;
}

/* The largest logit, the lowest id among equals; -1 if one is NaN. */
static int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i])) return -1;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

static double entropy_change(gy_exit_state *s, const gy_exit_obs *o) {
    double h = entropy(o->logits, o->n_vocab), change = fabs(h - s->entropy);
    s->entropy = h;
    return change;
}

static int32_t argmax_streak(gy_exit_state *s, const gy_exit_obs *o) {
    int32_t id = argmax(o->logits, o->n_vocab);
    s->streak = id >= 0 && id == s->argmax ? s->streak + 1 : 0;
    s->argmax = id;
    return s->streak;
}

/* ---- the decision ---- */

void gy_exit_begin(gy_exit_state *s) {
    *s = (gy_exit_state){.remaining = 1.0, .entropy = ENTROPY_START, .argmax = -1};
}

/* Consumes the observation; 1 when the rule's own condition is met, min_loops aside. */
static int rule_is_met(const gy_exit_rule *r, gy_exit_state *s, const gy_exit_obs *o) {
    switch (r->kind) {
    case GY_EXIT_GATE:
    case GY_EXIT_GATE_DELAYED:
    case GY_EXIT_SELECT:
        return gate_score(s, o) >= r->threshold;
    case GY_EXIT_LATENT:
        return o->latent < r->threshold;
    case GY_EXIT_KL:
        return kl_step(s, o) < r->threshold;
    case GY_EXIT_ENTROPY:
        return entropy_change(s, o) < r->threshold;
    case GY_EXIT_ARGMAX:
        return argmax_streak(s, o) >= r->threshold;
    case GY_EXIT_TRACE:
        return s->loops >= o->trace_loops;
    case GY_EXIT_FIXED:
        break;
    }
    return 0;
}

gy_exit_verdict gy_exit_step(const gy_exit_rule *r, gy_exit_state *s, const gy_exit_obs *o) {
    s->loops++;
    if (s->loops >= r->max_loops || s->loops == s->pending) {
        if (r->kind == GY_EXIT_SELECT && !s->selected) s->selected = s->loops; /* it takes all the mass that is left */
        return GY_EXIT_LEAVE;
    }
    if (rule_is_fixed(r) || !rule_is_met(r, s, o) || s->loops < r->min_loops) return GY_EXIT_STAY;
    if (r->kind == GY_EXIT_SELECT) {
        if (!s->selected) s->selected = s->loops;
        return GY_EXIT_STAY;
    }
    if (r->kind != GY_EXIT_GATE_DELAYED) return GY_EXIT_LEAVE;
    s->pending = s->loops + 1;
    return GY_EXIT_STAY;
}
