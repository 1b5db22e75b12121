/* A set of requests in which everything that a request can ask for occurs, for tests that state equalities: every exit
 * rule that the family has, on the prompt or not, greedy and seeded, penalties, bias, n, prompt logprobs, gates,
 * min_tokens with ids that stop, priorities, salts, noise, one prompt that begins as another. Made-up tokens, the same
 * ones each time.
 */
#ifndef GY_TESTS_MIXED_H
#define GY_TESTS_MIXED_H

#include "support/gold.h"

enum { MIXED_N = 20, MIXED_MAX_PROMPT = 48, MIXED_MAX_OUT = 12, MIXED_MAX_RESULT = MIXED_N + 8 };

typedef struct mixed {
    int32_t ids[MIXED_N][MIXED_MAX_PROMPT];
    int32_t trace[MIXED_MAX_OUT], stop[16];
    gy_logit_bias bias[3];
    char salt[MIXED_N];
    gy_request req[MIXED_N];
    int n_result; /* of all requests */
} mixed;

/* Prompts of 1..max_prompt tokens (<= MIXED_MAX_PROMPT), max_out outputs and up to 4 fewer (5..MIXED_MAX_OUT). */
void mixed_make(mixed *w, const gy_model_desc *d, int32_t max_prompt, int32_t max_out);
int mixed_first(const mixed *w, int request); /* index of its first result */
/* Every choice ended as its request allows; the set as a whole does vary in depth and tokens. 0, or prints what not. */
int mixed_odd(const mixed *w, const gy_model_desc *d, const gold_result *res);

/* Tells apart what two runs of requests [first, first + n) gave: prints each difference behind `what`, returns how
 * many.
 */
int mixed_compare(const gold_setup *s, const char *what, const gy_request *req, int first, int n,
                  const gold_result *base, const gold_result *got);

uint32_t mixed_draw(uint32_t i, uint32_t k); /* a number of its own for each (i, k) */

#endif
