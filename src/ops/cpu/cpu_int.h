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

/* Some rows of a linear, packed in tiles of up to panel_rows (panel.inc). */
typedef struct gy_cpu_linear {
    const gy_linear_args *a;
    gy_dtype act;
    const void *w;       /* all panels of a->w; NULL: they are packed on the way */
    char *x;             /* n_row times k, k even, up to 4 bytes an element */
    int64_t row0, n_row; /* which rows of a->x are packed */
} gy_cpu_linear;

/* What gy_weight.packed of this backend points to, whatever the dtype. Made by prepare. Model lifetime. */
typedef struct gy_cpu_packed {
    const void *data; /* pages; each member wrote, and so placed, what it will read */
    size_t bytes;
    int is_borrowed; /* adopted: a file's, mapped */
} gy_cpu_packed;

/* Attention: positions of a tile and of a chunk (they fix the order of sums), queries (a row's heads) that walk the
 * context together, and how many of them registers hold at most. */
enum {
    GY_CPU_ATTN_TILE = 64,
    GY_CPU_ATTN_CHUNK = 256,
    GY_CPU_ATTN_QUERIES = 96,
    GY_CPU_ATTN_ROWS = 6,
    GY_CPU_ATTN_QUERY_FLOATS = 16, /* of scratch, for what is known about a query */
};

/* Rows that read the same map row, KV heads and positions to walk: attn.inc. */
typedef struct gy_cpu_attn {
    const gy_attn_args *a;
    int64_t row0, n_row, head0, n_head;
    int64_t from, to; /* from: a chunk's beginning; to: a chunk's end or all that the longest row sees */
    float *part;      /* one row: its chunks' states are stored here, [chunk][n_head]; NULL: results go to y */
} gy_cpu_attn;

typedef struct gy_cpu_kernels {
    const char *name;
    int32_t vl; /* floats of a vector */

    int32_t panel_n, panel_rows; /* outputs of a panel; most rows of a tile */
    size_t panel_scratch;        /* bytes that panel needs for itself */
    void (*panel_pack)(const gy_weight *w, int64_t lo, int64_t hi, char *out);    /* panels [lo, hi), to their places */
    void (*panel_x)(const gy_cpu_linear *t, int64_t lo, int64_t hi);              /* tiles [lo, hi) of x */
    void (*panel)(const gy_cpu_linear *t, int64_t lo, int64_t hi, void *scratch); /* panels [lo, hi), all packed rows */
    void (*attn)(gy_dtype act, const gy_cpu_attn *w, float *scratch);             /* a walk */
    void (*attn_join)(gy_dtype act, const gy_cpu_attn *w, float *scratch); /* stored chunks from 0 to w->to into y */
    gy_cpu_row_fn embed, norm, rope_kv, residual, silu_mul, gate, latent_diff;
} gy_cpu_kernels;

extern const gy_cpu_kernels gy_cpu_kernels_avx2;
extern const gy_cpu_kernels gy_cpu_kernels_avx512;
extern const gy_cpu_kernels gy_cpu_kernels_avx512bf16;
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
    const struct gy_cpu_quant_kernels *quant; /* of grouped products */
    gy_team *team;
    float *scratch;
    size_t scratch_bytes;
    int64_t linear_floats; /* of scratch, for packed rows */
    int64_t attn_floats;   /* of scratch, for each member */
    int64_t panel_floats;  /* likewise, for a product's panels, in the same place */
    int64_t max_k;
} cpu_backend;

static inline cpu_backend *cpu_of(gy_backend *be) {
    return (cpu_backend *)be;
}

/* Floats that attention needs behind linear_floats; sets attn_floats. After max_k and the team are there. */
int64_t gy_cpu_attn_floats(cpu_backend *c);

/* gy_ops.linear and gy_ops.attn; prepare and unprepare. */
size_t gy_cpu_prepare(gy_backend *be, gy_weight *w, int y_f32);
void gy_cpu_unprepare(gy_backend *be, gy_weight *w);
const char *gy_cpu_form_name(const gy_cpu_kernels *k); /* of panels; gy_ops.form */
size_t gy_cpu_form_of(gy_backend *be, const gy_weight *w, const void **data_out);
int gy_cpu_adopt(gy_backend *be, gy_weight *w, const void *data, int copies);
void gy_cpu_linear_run(gy_backend *be, const gy_linear_args *a);
void gy_cpu_attn_run(gy_backend *be, const gy_attn_args *a);

/* Linear with weights in groups (cpu_quant.c). */
const struct gy_cpu_quant_kernels *gy_cpu_quant_choose(uint32_t features);
void gy_cpu_quant_run(cpu_backend *c, const gy_linear_args *a);

#endif
