/* Between the driver of grouped products (cpu_quant.c: threads, scratch) and their kernels (one file per instruction
 * set: plain_quant.c, avx2_quant.c, avx512_quant.c, all around quant.inc). The formula is ops.h's, the layout
 * tensor/quant.h's; sums are whole numbers and groups follow in order of k, so that all kernels give the same bits.
 */
#ifndef GY_OPS_CPU_QUANT_INT_H
#define GY_OPS_CPU_QUANT_INT_H

#include "ops/ops.h"

/* Rows of a product's input in groups. */
typedef struct gy_cpu_quant {
    const gy_linear_args *a;
    gy_dtype act;
    int8_t *q;     /* [n_row, n_group * 32] */
    float *scale;  /* [n_row, n_group] */
    int32_t *bias; /* [n_row, n_group]: what a dot with weights that are held as q + 128 (Q4: q + 8) has too much,
                      negative */
    int64_t n_group;
    int64_t row0, n_row; /* which rows of a->x these are */
} gy_cpu_quant;

typedef struct gy_cpu_quant_kernels {
    const char *name;
    void (*rows)(const gy_cpu_quant *t, int64_t lo, int64_t hi);   /* quantises rows [lo, hi) */
    void (*panels)(const gy_cpu_quant *t, int64_t lo, int64_t hi); /* outputs of panels [lo, hi), of all rows */
} gy_cpu_quant_kernels;

/* All processors have `plain`; the other two are x86-64's. They give the same bits. */
extern const gy_cpu_quant_kernels gy_cpu_quant_plain;
extern const gy_cpu_quant_kernels gy_cpu_quant_avx2;
extern const gy_cpu_quant_kernels gy_cpu_quant_vnni;

#endif
