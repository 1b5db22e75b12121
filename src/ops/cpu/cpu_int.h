/* Between the driver (cpu.c: threads, scratch; cpu_linear.c, cpu_attn.c: partition) and the kernels (one file per
 * instruction set, made of the same text: *.inc). The driver is compiled for the baseline and reaches kernels only
 * through gy_cpu_kernels.
 */
#ifndef GY_OPS_CPU_CPU_INT_H
#define GY_OPS_CPU_CPU_INT_H

#include "base/team.h"
#include "ops/ops.h"

/* Rows [lo, hi) of an operation whose rows do not meet; args is the operation's argument struct. */
typedef void (*gy_cpu_row_fn)(gy_dtype act, const void *args, int64_t lo, int64_t hi);

/* Rows of a linear's input as f32, in the order in which a weight row of w's dtype comes out of its unpacking, each
 * padded with zeros to `stride` floats (a multiple of two vectors). */
typedef struct gy_cpu_linear {
    const gy_linear_args *a;
    gy_dtype act;
    float *x; /* [n_row, stride] */
    int64_t stride;
    int64_t row0, n_row; /* which rows of a->x are packed */
} gy_cpu_linear;

/* Attention: query heads that walk the context together, and positions of a tile. */
enum { GY_CPU_ATTN_HEADS = 64, GY_CPU_ATTN_TILE = 64 };

typedef struct gy_cpu_kernels {
    const char *name;
    int32_t vl; /* floats of a vector */

    void (*linear_pack)(const gy_cpu_linear *t, int64_t lo, int64_t hi); /* packed rows [lo, hi) */
    void (*linear)(const gy_cpu_linear *t, int64_t lo, int64_t hi);      /* outputs [lo, hi) of all packed rows */
    /* Query heads [lo, hi) of one row. scratch: two rows of padded head_dim floats for each of GY_CPU_ATTN_HEADS heads.
     */
    void (*attn)(gy_dtype act, const gy_attn_args *a, int64_t row, int64_t lo, int64_t hi, float *scratch);
    gy_cpu_row_fn embed, norm, rope_kv, residual, silu_mul, gate, latent_diff;
} gy_cpu_kernels;

extern const gy_cpu_kernels gy_cpu_kernels_avx2;
extern const gy_cpu_kernels gy_cpu_kernels_avx512;
extern const gy_cpu_kernels gy_cpu_kernels_neon;
extern const gy_cpu_kernels gy_cpu_kernels_portable; /* there on every processor */

/* A row of n floats, padded to whole pairs of vectors. */
static inline int64_t gy_cpu_pad(const gy_cpu_kernels *k, int64_t n) {
    int64_t block = 2 * (int64_t)k->vl;
    return (n + block - 1) / block * block;
}

/* Below this many elements the fork costs more than it saves. */
enum { GY_CPU_FORK_FROM = 16384 };

/* Engine lifetime. */
typedef struct cpu_backend {
    gy_backend be; /* first: a gy_backend * is a cpu_backend * */
    gy_ops ops;
    const gy_cpu_kernels *kern;
    gy_team *team;
    float *scratch;
    size_t scratch_bytes;
    int64_t linear_floats; /* of scratch, for packed rows */
    int64_t attn_floats;   /* of scratch, for each member */
    int64_t max_k;
} cpu_backend;

static inline cpu_backend *cpu_of(gy_backend *be) {
    return (cpu_backend *)be;
}

/* gy_ops.linear and gy_ops.attn. */
void gy_cpu_linear_run(gy_backend *be, const gy_linear_args *a);
void gy_cpu_attn_run(gy_backend *be, const gy_attn_args *a);

#endif
