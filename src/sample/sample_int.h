/* Between the files of this part: how a row walks the tokens that a sequence holds, and what the host's way to a token
 * shares with the way through a backend. */
#ifndef GY_SAMPLE_SAMPLE_INT_H
#define GY_SAMPLE_SAMPLE_INT_H

#include "sample/sample.h"

/* counts.c */

/* One of the different ids. Each was in the prompt or the output; n_out 0: in the prompt only. */
typedef struct gy_count {
    int32_t id;
    int32_t n_out;
} gy_count;

/* The different ids in order of appearance, *n_out of them; valid until the next add. */
const gy_count *gy_counts_list(const gy_counts *c, size_t *n_out);

/* draw_row.c: the random number of a row. */
uint64_t gy_sample_word(const gy_sample_in *in);

/* sample.c: log softmax of a logit, from the raw row's largest one and its mass. */
float gy_logprob_of(float x, float top, uint64_t mass, int32_t n_vocab);

#endif
