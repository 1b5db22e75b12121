/* Logits to token. One row at a time, pure: the draw is a function of (logits, parameters, seed, choice, position).
 *
 * Order (vLLM's and HF's): f32 logits -> temperature -> top-k -> top-p -> min-p -> softmax -> one draw.
 *   top-k: keep values >= the k-th largest (ties survive).
 *   top-p: sort descending (ties by lower id first), keep the smallest prefix whose probability reaches p; the token
 * that crosses p stays. min-p: keep probabilities >= min_p * the largest one. draw:  u from Philox (seed, choice,
 * position, GY_RAND_SAMPLE); tokens in ascending id order, first cumulative f64 sum > u * total. temperature 0 =
 * greedy: the largest logit, the lowest id among equals. Sums run in a fixed order over f64; results do not depend on
 * threads or batches.
 */
#ifndef GY_SAMPLE_SAMPLE_H
#define GY_SAMPLE_SAMPLE_H

#include "base/status.h"

#include <stdint.h>

enum { GY_MAX_LOGPROBS = 20 };

typedef struct gy_sample_params {
    float temperature; /* >= 0, finite */
    int32_t top_k;     /* <= 0: off */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    uint64_t seed;
    uint32_t choice;    /* index among n choices of one request */
    int32_t n_logprobs; /* -1: none; 0: the sampled token's only; up to GY_MAX_LOGPROBS alternatives */
} gy_sample_params;

void gy_sample_params_default(gy_sample_params *p);                       /* greedy, everything off, no logprobs */
gy_status gy_sample_params_check(const gy_sample_params *p, gy_err *err); /* names the field, found and allowed */

typedef struct gy_sampled {
    int32_t id;
    int32_t n_top;                   /* alternatives filled */
    float logprob;                   /* raw: log softmax of the untouched f32 logits at id */
    int32_t top_id[GY_MAX_LOGPROBS]; /* by logit descending, lower id first among equals */
    float top_logprob[GY_MAX_LOGPROBS];
} gy_sampled;

/* Scratch for one thread: sized for n_vocab, no allocation afterwards. */
typedef struct gy_sampler gy_sampler;
gy_status gy_sampler_create(int32_t n_vocab, gy_sampler **out);
void gy_sampler_destroy(gy_sampler *s); /* accepts NULL */

/* logits [n_vocab] f32, not changed. position: absolute position of the token being drawn. NaN anywhere, +inf, or all
 * -inf: GY_E_NUMERIC, which ends that request only. (-inf for single tokens is a mask and fine.) */
gy_status gy_sample_row(gy_sampler *s, const float *logits, const gy_sample_params *p, int32_t position, gy_err *err,
                        gy_sampled *out);

#endif
