/* Exit rules as pure functions (docs/models, leaving early). One row, one loop at a time.
 *
 *   fixed         max_loops loops
 *   gate          S_r = S_(r-1) * (1 - sigmoid(g_r)), f64; leave after loop r when 1 - S_r >= threshold
 *   gate_delayed  the same score, but the token leaves one loop after the loop that met the threshold; the score of the
 *                 loop it leaves at is not consumed
 *   select        all loops run; read out the first loop with cumulative probability >= threshold, else the last
 *                 (the published Ouro code's rule); the prompt's last position too
 *   latent        ||s_r - s_(r-1)|| / ||s_r|| < threshold
 *   kl            KL(p_(r-1) || p_r) < threshold, p_0 uniform
 *   entropy       |H(p_r) - H(p_(r-1))| < threshold, H_0 = 100
 *   argmax        the argmax has been the same for threshold loops in a row: streak of unchanged steps >= threshold
 *   trace         the depth is given per output
 *
 * In every rule min_loops and max_loops bound the depth; loops below min_loops still feed the score. In gate and
 * gate_delayed a threshold >= 1 means fixed depth, the gate is not consulted, and 0 leaves at min_loops.
 */
#ifndef GY_ENGINE_EXIT_H
#define GY_ENGINE_EXIT_H

#include "base/status.h"

#include <stdint.h>

typedef enum gy_exit_kind {
    GY_EXIT_FIXED,
    GY_EXIT_GATE,
    GY_EXIT_GATE_DELAYED,
    GY_EXIT_SELECT,
    GY_EXIT_LATENT,
    GY_EXIT_KL,
    GY_EXIT_ENTROPY,
    GY_EXIT_ARGMAX,
    GY_EXIT_TRACE
} gy_exit_kind;

typedef struct gy_exit_rule {
    gy_exit_kind kind;
    double threshold;
    int32_t min_loops, max_loops; /* 1 <= min <= max */
    int on_prompt; /* 1: prompt tokens obey the rule too; 0: trained depth, of which select still chooses what is read
                      out at the last prompt token */
} gy_exit_rule;

/* What the model can offer to a rule. */
typedef struct gy_exit_caps {
    int32_t n_loop; /* trained depth */
    int has_gate;
    int allow_deeper; /* forced: max_loops may exceed n_loop */
} gy_exit_caps;

int gy_exit_parse(const char *name,
                  gy_exit_kind *out); /* "gate_delayed" -> ...; -1 unknown; "trace:FILE" is the CLI's */
const char *gy_exit_name(gy_exit_kind k);
void gy_exit_rule_default(gy_exit_rule *r, int32_t n_loop); /* fixed, min 1, max n_loop */
/* What was not asked for: a NaN threshold and 0 min_loops become the rule's defaults; kind and max_loops are set.
 * Refuses only a threshold that has to be given and was not (where there is a gate: without one, the check below says
 * so). */
gy_status gy_exit_rule_complete(gy_exit_rule *r, int has_gate, gy_err *err);
/* Refuses: thresholds outside the rule's range or NaN, min > max, min < 1, max above the trained depth unless forced,
 * gate rules without a gate. Names field, found, allowed. */
gy_status gy_exit_rule_check(const gy_exit_rule *r, const gy_exit_caps *caps, gy_err *err);

/* What a rule needs to see after each loop: lets the engine compute only that. */
int gy_exit_needs_gate(const gy_exit_rule *r);
int gy_exit_needs_latent(const gy_exit_rule *r);
int gy_exit_needs_logits(const gy_exit_rule *r);

/* Per token state; step through the loops of one token. Plain data, request lifetime. */
typedef struct gy_exit_state {
    double remaining; /* S_r */
    double entropy;   /* H_(r-1) */
    int32_t loops;    /* done so far */
    int32_t pending;  /* gate_delayed: leave after this many loops, 0 = none */
    int32_t selected; /* select: loops of the state to read out, 0 = none yet */
    int32_t argmax, streak;
} gy_exit_state;

/* What was observed after a loop. Only what the rule needs has to be set. */
typedef struct gy_exit_obs {
    float gate;          /* raw gate value (before the sigmoid) */
    double latent;       /* relative change of the state */
    const float *logits; /* [n_vocab] after this loop */
    float *prev_logp;    /* [n_vocab] in, out: log probabilities of the loop before; the caller keeps it per token (kl
                            only) */
    int32_t n_vocab;
    int32_t trace_loops; /* trace: the depth for this output */
} gy_exit_obs;

typedef enum gy_exit_verdict { GY_EXIT_STAY, GY_EXIT_LEAVE } gy_exit_verdict;

void gy_exit_begin(gy_exit_state *s); /* a new token: loops 0, S = 1, H = 100, no argmax */
/* One loop has run. LEAVE: s->loops is the number of loops run; for select the caller reads out loop s->selected
 * (1-based; set to loops when nothing reached the threshold). */
gy_exit_verdict gy_exit_step(const gy_exit_rule *r, gy_exit_state *s, const gy_exit_obs *o);

#endif
