/* Logits to token. One row at a time, pure: the draw is a function of (logits, parameters, counts, seed, choice,
 * position).
 *
 * Order (vLLM's): f32 logits -> masked and banned ids to -inf -> logit_bias added -> repetition, frequency, presence
 * penalty -> temperature -> top-k -> top-p -> min-p -> softmax -> one draw. bans, bias, penalties: f32, each step
 * rounded (product of frequency and count too). top-k: keep values >= the k-th largest (ties survive). top-p: sort
 * descending (ties by lower id first), keep the smallest prefix whose probability reaches p; the token that crosses p
 * stays. min-p: keep probabilities >= min_p * the largest one. draw:  u from Philox (seed, choice, position,
 * GY_RAND_SAMPLE); tokens in ascending id order, first sum > u * total. temperature 0 = greedy: the largest logit, the
 * lowest id among equals. What is summed are weights as whole multiples of 2^-b (base/draw.h): such sums are exact, so
 * results depend neither on threads or batches nor on whether the host samples or a GPU.
 */
#ifndef GY_SAMPLE_SAMPLE_H
#define GY_SAMPLE_SAMPLE_H

#include "base/draw.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { GY_MAX_LOGPROBS = GY_DRAW_MAX_TOP };

enum { GY_MAX_LOGIT_BIAS = 1024 };
typedef struct gy_logit_bias {
    int32_t id;
    float bias;
} gy_logit_bias;

typedef struct gy_sample_params {
    float temperature; /* >= 0, finite */
    int32_t top_k;     /* <= 0: off */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    uint64_t seed;
    uint32_t choice;    /* index among n choices of one request */
    int32_t n_logprobs; /* -1: none; 0: the sampled token's only; up to GY_MAX_LOGPROBS alternatives */
    /* Of tokens in prompt or output: l > 0 ? l / r : l * r (CTRL, arXiv 1909.05858, 4.1). (0, 100]; 1: off */
    float repetition_penalty;
    /* Of tokens in the output: l -= frequency * count, l -= presence. [-2, 2]; 0: off (OpenAI's API reference) */
    float frequency_penalty, presence_penalty;
    const gy_logit_bias *bias; /* [n_bias] distinct ids, each -100..100; -100 and 100 do not mean never and always */
    int32_t n_bias;            /* borrowed as long as the params are used */
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

/* Checks what needs the vocabulary: ids of the bias in range and distinct. */
gy_status gy_sample_params_check_vocab(const gy_sample_params *p, int32_t n_vocab, gy_err *err);
int gy_sample_needs_counts(const gy_sample_params *p); /* a penalty is on */

/* Which tokens a sequence holds, for the penalties. Lives in caller's memory of gy_counts_bytes (request lifetime):
 * room for n_prompt + max_tokens different ids. add is O(1); a row costs O(different ids). */
typedef struct gy_counts gy_counts;
size_t gy_counts_bytes(int32_t n_prompt, int32_t max_tokens); /* 0: overflow */
gy_counts *gy_counts_init(void *mem, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens);
void gy_counts_add(gy_counts *c, int32_t id); /* one more output */

/* Scratch for n_member threads: sized for n_vocab, no allocation afterwards. Members may work at the same time. */
typedef struct gy_sampler gy_sampler;
gy_status gy_sampler_create(int32_t n_vocab, int n_member, gy_sampler **out);
void gy_sampler_destroy(gy_sampler *s); /* accepts NULL */

typedef struct gy_sample_in {
    const float *logits; /* [n_vocab] f32, not changed */
    const gy_sample_params *p;
    const gy_counts *counts; /* NULL allowed when no penalty is on */
    const int32_t *ban; /* [n_ban] may not be drawn (min_tokens: what would end the text); ids of no token: ignored */
    int32_t n_ban;
    const uint32_t *mask; /* [(n_vocab + 31) / 32] bit (id % 32) of word id / 32: may be drawn (grammar.h). NULL: all */
    int32_t position;     /* absolute position of the token being drawn */
} gy_sample_in;

/* NaN anywhere, +inf, or all -inf (before or after mask, bans, bias and penalties): GY_E_NUMERIC, which ends that
 * request only. (-inf for single tokens is a mask and fine.) */
gy_status gy_sample_row(gy_sampler *s, int member, const gy_sample_in *in, gy_err *err, gy_sampled *out);

/* The same by a backend that samples (gy_ops.sample): a row as plain data, and what came out of it. In between nothing
 * of `in` is needed but its memory's content. draw_row.c. */
size_t gy_sample_pack_bytes(const gy_sample_in *in, int32_t n_vocab); /* that its lists and its mask take */
/* Lists and mask to base + at, which is aligned to 8. Parameters have been checked, ids of the bias too. */
void gy_sample_pack(const gy_sample_in *in, int32_t n_vocab, void *base, size_t at, gy_draw_row *row_out);
void gy_sample_pack_known(int32_t id, int32_t n_top, gy_draw_row *row_out); /* gy_logprob_row's */
/* Not for a row that was refused: gy_sample_row or gy_logprob_row say what is wrong with it. */
void gy_sample_unpack(const gy_drawn *d, int32_t n_logprobs, int32_t n_vocab, gy_sampled *out);

/* What the logits say of a token that is known already (prompt logprobs): out->id = id, its logprob, n_top
 * alternatives. Errors as gy_sample_row. */
gy_status gy_logprob_row(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top, int32_t position, gy_err *err,
                         gy_sampled *out);

#endif
