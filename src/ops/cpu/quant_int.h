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
    float *scale;  /* [n_row, n_scale] */
    int32_t *bias; /* [n_row, n_scale]: what a dot with weights that are held as q + 128 (Q4: q + 8) has too much,
                      negative */
    int64_t n_group, n_scale; /* n_scale: n_group, or 1 (Q8C) */
    int64_t row0, n_row;      /* which rows of a->x these are */
} gy_cpu_quant;

/* What a tile brings into the L2 while it computes. `near` (one tile of few rows, bound by memory): the stream that it
 * reads, QUANT_NEAR bytes on; the processor's own prefetcher follows that. Else n lines of the next panel for each
 * group, from p on. */
typedef struct gy_cpu_ahead {
    const uint8_t *p;
    int64_t n;
    int near;
} gy_cpu_ahead;
enum { QUANT_NEAR = 1088 };

/* Before a block is used. */
static inline __attribute__((always_inline)) void gy_cpu_fetch(gy_dtype type, const uint8_t *block, gy_cpu_ahead *a) {
    if (a->near) {
        for (int64_t i = 0; i < gy_block_bytes(type); i += 64) __builtin_prefetch(block + QUANT_NEAR + i, 0, 2);
    } else {
        for (int64_t i = 0; i < a->n; i++, a->p += 64) __builtin_prefetch(a->p, 0, 2);
    }
}

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
