/* oneDNN's side of the comparison: y = x w^T by its C API (version 2), weights in the form that it asked for. One
 * product is one shape, with as many copies of the weight as the caller wants, so that calls in turn find none of them
 * in a cache. Not a backend, and nothing here knows ours. Threads are libgomp's (OMP_NUM_THREADS). Caller's thread.
 */
#ifndef GY_BENCH_ONEDNN_SIDE_H
#define GY_BENCH_ONEDNN_SIDE_H

#include <stdint.h>

typedef enum onednn_form {
    ONEDNN_BF16, /* x, w BF16 */
    ONEDNN_F32,
    ONEDNN_S8 /* x u8, w s8, one scale for each output; y F32 or BF16 */
} onednn_form;

typedef struct onednn_shape {
    onednn_form form;
    int y_f32;  /* else BF16; a product of F32 is F32 */
    int matmul; /* which of its operations: inner product or matmul */
    int64_t n_row, n, k;
} onednn_shape;

typedef struct onednn_product onednn_product;

/* plain: [n, k] in the form's type, packed n_copy times. x [n_row, k] and y [n_row, n] are borrowed until destroy.
 * NULL: not offered for this shape, or no memory. */
onednn_product *onednn_create(const onednn_shape *s, const void *plain, const void *x, void *y, int n_copy);
void onednn_destroy(onednn_product *p);           /* accepts NULL */
void onednn_run(onednn_product *p, int copy);     /* waits until y is there */
const char *onednn_impl(const onednn_product *p); /* what oneDNN calls its kernel; borrowed until destroy */
const char *onednn_version(void);

#endif
