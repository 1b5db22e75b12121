/* Between the files of this part: how a row walks the tokens that a sequence holds. */
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

#endif
