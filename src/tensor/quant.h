/* Rows of weights in 8 bits: w[i, j] is held as q[i, j] * scale[i], with q in E4M3 or I8 and one f32 scale for each
 * row. Defines the numbers; who computes with them is src/ops, which weights are held so is src/model. Nothing is
 * fitted and no data are looked at: a row's bits depend on that row alone.
 *
 *   scale = max(max_j |w[j]| / most, 2^-126)      most: 448 (E4M3), 127 (I8); in f32
 *   q[j]  = to nearest even, saturating(w[j] / scale), the quotient in f32
 *
 * The floor keeps the scale a normal number: a row of zeros, or of less, has scale 2^-126 and loses at most what lies
 * below 2^-136 (E4M3; I8: 2^-127).
 */
#ifndef GY_TENSOR_QUANT_H
#define GY_TENSOR_QUANT_H

#include "tensor/dtype.h"

/* Is it one of the dtypes that bring scales? */
static inline int gy_is_quant(gy_dtype t) {
    return t == GY_I8 || t == GY_F8_E4M3;
}

/* One row of k elements of F32, F16 or BF16 into q (1 byte each) and its scale. -1 where an element is not finite: then
 * nothing is written. */
int gy_quant_row(uint8_t *q, float *scale, gy_dtype to, const void *src, gy_dtype src_type, size_t k);

#endif
