/* The operations that models are made of, one contract each, and the table through which a backend offers them.
 *
 * Backends: `ref` (plain C, never optimised: the definition of right), `cpu` (AVX2, AVX-512, NEON, portable C), `cuda`.
 * A model runs on a gy_backend and knows nothing else. All pointers in argument structs are memory of that backend
 * (gy_ops.alloc) unless marked "host". Argument structs are read during the call only.
 *
 * Names: n_row rows in the batch; act = the backend's activation dtype (F32 or BF16, chosen at creation): every
 * activation is stored in it, and the KV where that is not I8. Sums, products and norms are computed in f32 (f64 where
 * said) and rounded to act exactly where a contract says "round": docs/models, rounding.
 *
 * Determinism (ARCHITECTURE.md, determinism): element (row r) of any output depends on row r's inputs only, and each
 * sum's order depends on the shape of one row only: never on n_row, on other rows, on the number of threads, or on
 * where slots lie.
 *
 * Errors: operations return nothing. A backend that can fail keeps its first error; gy_ops.sync returns it.
 * Threads: one caller at a time.
 */
#ifndef GY_OPS_OPS_H
#define GY_OPS_OPS_H

#include "base/device.h"
#include "base/draw.h"
#include "base/status.h"
#include "base/team.h"
#include "tensor/quant.h"

#include <stddef.h>
#include <stdint.h>

/* A weight matrix [n, k], row-major, of up to three row blocks that need not be neighbours in memory (q, k, v; gate,
 * up). It points into the mapped checkpoint, or at a converted copy. dtype: F32, F16 or BF16 (act BF16: BF16, or one of
 * the next ones). For linear also, of tensor/quant.h: F8_E4M3 (codes 7f and ff do not occur) with a scale for each row;
 * Q8, Q4 and Q8C, groups in panels, of one part that begins at a multiple of 64 bytes. Model lifetime. */
enum { GY_WEIGHT_PARTS = 3 };
typedef struct gy_weight {
    gy_dtype dtype;
    int32_t n, k;   /* n = sum of part[i].n */
    int32_t n_part; /* 1..GY_WEIGHT_PARTS */
    struct {
        const void *data; /* [part.n, k] */
        int32_t n;
        const float *scale; /* [part.n]; F8_E4M3 only */
    } part[GY_WEIGHT_PARTS];
    void *packed; /* a backend's own form of it (gy_ops.prepare), or NULL */
} gy_weight;

/* The KV memory of one group of layers (core or boundary): ARCHITECTURE.md, KV is a map. A slot is the KV of one token
 * on one plane. Block b holds 16 slots: [n_layer][K|V][16] rows of [n_head_kv][head_dim] elements of dtype. Step
 * lifetime: a view, owns nothing.
 * I8: a row is [n_head_kv][head_dim] whole numbers q, then [n_head_kv] f32 scales s (aligned to nothing); what it
 * stands for is s[head] * q, and one row's bits follow from that row's values alone (gy_rope_kv_args). */
enum { GY_BLOCK_SLOTS = 16 };
typedef struct gy_kv_view {
    void *base;         /* [n_block][n_layer][2][16] rows */
    const int32_t *map; /* the slot map: rows index into it by gy_rows.map_off. The KV cache's own lies in host memory
                           and the loop driver gives operations a copy of it where the backend has memory of its own */
    int64_t n_map;      /* entries of map */
    gy_dtype dtype;     /* act, or I8 where the backend takes it (gy_ops.kv_types) */
    int32_t n_layer, n_head_kv, head_dim;
} gy_kv_view;

enum { GY_KV_SCALE_BYTES = 4 }; /* of a head of a row in I8 */

/* Elements of a row, scales of I8 counted by their bytes. */
static inline int64_t gy_kv_row(const gy_kv_view *v) {
    return (int64_t)v->n_head_kv * (v->head_dim + (v->dtype == GY_I8 ? GY_KV_SCALE_BYTES : 0));
}

/* Element offset of slot's K (kv = 0) or V (kv = 1) of a layer, where a row begins. */
static inline int64_t gy_kv_offset(const gy_kv_view *v, int32_t slot, int32_t il, int kv) {
    int64_t d = gy_kv_row(v);
    int64_t plane = ((int64_t)(slot / GY_BLOCK_SLOTS) * v->n_layer + il) * 2 + kv;
    return (plane * GY_BLOCK_SLOTS + slot % GY_BLOCK_SLOTS) * d;
}

/* Where the rows of a batch stand. A row at position p reads, for j = 0..p, the KV at slot map[map_off[r] + j], and
 * writes its own at slot[r] = map[map_off[r] + p] before attention, so that it sees itself. No two rows of a batch
 * share a written slot. A row may read what another row of the batch writes (an earlier token of its chunk).
 *
 * A row that fills up a batch (pos -1, slot -1; only where a backend's record_rows asked for it) is computed like
 * others but reads no KV and writes none. */
typedef struct gy_rows {
    int32_t n_row;
    const int32_t *pos;     /* [n_row] absolute token position >= 0 */
    const int32_t *slot;    /* [n_row] */
    const int64_t *map_off; /* [n_row] */
} gy_rows;

/* y[r] = round(table[id[r]] * scale); the product in f32. scale = 1: exact copy (converted to act).
 * ids[r] below 0: the token that drawn[-1 - ids[r]] says, 0 where that was refused. */
typedef struct gy_embed_args {
    const gy_weight *table; /* [n_vocab, n_embd] */
    const int32_t *ids;     /* [n_row] below n_vocab */
    const gy_drawn *drawn;  /* NULL where no id is below 0 */
    float scale;
    int32_t n_row;
    void *y; /* [n_row, n_embd] act */
} gy_embed_args;

/* y = round(round(x / sqrt(mean(x^2) + eps)) * w): two roundings (ouro.md, rounding). y may be x. */
typedef struct gy_norm_args {
    const void *x; /* [n_row, n] act */
    const void *w; /* [n] act */
    float eps;
    int32_t n_row, n;
    void *y; /* [n_row, n] act */
} gy_norm_args;

/* y[r, i] = round(sum_j x[r, j] * w[i, j]); f32 products and sums of the exact values. Where act is BF16 a subnormal
 * number (below 2^-126) may count as zero, as a product's factor and as a sum.
 * F8_E4M3: y[r, i] = round(scale[i] * sum_j x[r, j] * q[i, j]), the sum's bits as if q were stored in BF16, then
 * one f32 product.
 * Q8, Q4: integer products. The input row is quantised as well, each group g of 32 elements (of what is left, at the
 * end) for itself: s_x[g] = max(max |x| / 127, 2^-126) in f32, q_x = x / s_x[g] in f32 to the nearest even whole
 * number; where a value of the group is not finite, q_x = 0 and s_x[g] = NaN. Then y[r, i] = round(sum), where for each
 * g in order of k sum = fma(f32(sum_j q_x[r, j] * q[i, j]), s_x[g] * s[i, g], sum)      the inner sum is whole and
 * below 2^24 which leaves nothing open: all backends that take these types give the same bits.
 * Q8C: one group is as long as the row, of weights and of input: y[r, i] = round(f32(sum_j q_x[r, j] * q[i, j]) * (s_x
 * * s[i])), the sum whole and below 2^31, f32() to nearest even. */
typedef struct gy_linear_args {
    const void *x; /* [n_row, w->k] act */
    const gy_weight *w;
    int32_t n_row;
    int y_f32; /* 0: y is act; 1: y is f32 holding values that were rounded to act (LM head: ouro.md, rounding "logits")
                */
    void *y;   /* [n_row, w->n], must not overlap x */
} gy_linear_args;

/* cos and sin of each row's position, computed once a pass and shared by all layers.
 * table NULL: angle = f32(pos) * inv_freq[i] in f32; then cos, sin in f32, rounded to BF16 if round_bf16.
 * table given (Huginn's freqs_cis): copied from table[pos][i][cos|sin], f32. */
typedef struct gy_rope_table_args {
    const int32_t *pos;    /* [n_row] */
    const float *inv_freq; /* [half] */
    const float *table;    /* [max_pos, half, 2] or NULL */
    int32_t n_row, half;   /* half = head_dim / 2 */
    int round_bf16;
    float *cos_out, *sin_out; /* [n_row, half] */
} gy_rope_table_args;

typedef enum gy_rope_kind {
    GY_ROPE_HALF, /* pairs (i, i + half): rotate-half; Ouro, Nanbeige */
    GY_ROPE_PAIRS /* pairs (2i, 2i + 1), interleaved; Huginn */
} gy_rope_kind;

/* Adds biases, rotates q and k, writes k and v to the rows' slots. q stays in qkv (rotated, in place); k and v in qkv
 * are unspecified afterwards.
 *  - bias (where one is given): q = round(q + q_bias), k = round(k + k_bias)
 *  - round_each: a' = round(round(a cos) - round(b sin)), b' = round(round(b cos) + round(a sin))  (ouro.md, rounding)
 *  - else: a' = round(a cos - b sin), b' = round(b cos + a sin), f32 inside  (huginn.md, rounding)
 * With act F32 both are plain f32 arithmetic.
 * KV in I8: of these k and v, each head x of a row for itself: s = max(max |x| / 127, 2^-126) in f32, q = x / s in f32
 * to the nearest even whole number; where a value of the head is not finite, q = 0 and s = NaN. */
typedef struct gy_rope_kv_args {
    void *qkv;                   /* [n_row, (n_head + 2 n_head_kv) * head_dim] act: q heads, then k, then v */
    const void *q_bias, *k_bias; /* [n_head * head_dim], [n_head_kv * head_dim] act, or both NULL */
    const float *cos, *sin;      /* [n_row, head_dim / 2] */
    gy_rope_kind kind;
    int round_each;
    int32_t n_head;
    const gy_kv_view *kv; /* host struct */
    int32_t il;           /* layer within the group */
    gy_rows rows;
} gy_rope_kv_args;

/* Causal attention over the slot map. Query head h reads kv head h / (n_head / n_head_kv).
 *   s_j = (q . k_j) * scale for j = 0..pos[r];  y = round( sum_j softmax(s)_j v_j ), all in f32
 * (the flash form: scores and weights are not rounded, the result is; ouro.md, rounding). KV in I8: q . k_j is
 * (q . q8_j) * s_j, and softmax(s)_j v_j is (softmax(s)_j * s_j) q8_j, with the scales of K and of V. A backend whose
 * product units take BF16 alone may use weights rounded to BF16 (what they sum to is not), as flash kernels do: an
 * error of the size of the result's own rounding. */
typedef struct gy_attn_args {
    const void *q;    /* [n_row, q_stride] act: the first n_head * head_dim of each row */
    int32_t q_stride; /* elements from row to row */
    int32_t n_head;
    float scale;
    const gy_kv_view *kv; /* host struct */
    int32_t il;
    gy_rows rows;
    void *y; /* [n_row, n_head * head_dim] act */
} gy_attn_args;

/* The residual connection, in the three places a family may put its norm. RMS as in gy_norm_args. */
typedef enum gy_residual_kind {
    GY_RESIDUAL_PRE,    /* h = round(h + b)                 Nanbeige (its norms come before the branch) */
    GY_RESIDUAL_BRANCH, /* h = round(h + RMS(b; w))         Ouro */
    GY_RESIDUAL_SUM     /* h = RMS(round(b + h); w)         Huginn */
} gy_residual_kind;
typedef struct gy_residual_args {
    void *h;       /* [n_row, n] act, in place */
    const void *b; /* [n_row, n] act */
    const void *w; /* [n] act; unused for PRE */
    gy_residual_kind kind;
    float eps;
    int32_t n_row, n;
} gy_residual_args;

/* A residual and the norm that follows: residual(r), then y = norm of the new h with w. Bits are those of the two. */
typedef struct gy_residual_norm_args {
    gy_residual_args r;
    const void *w; /* [n] act */
    float eps;
    void *y; /* [n_row, n] act; not h */
} gy_residual_norm_args;

/* y = round(round(silu(g)) * u), silu(g) = g / (1 + exp(-g)). */
typedef struct gy_silu_mul_args {
    const void *gu; /* [n_row, 2 n_ff] act: g then u */
    int32_t n_row, n_ff;
    void *y; /* [n_row, n_ff] act */
} gy_silu_mul_args;

/* y = [a, b] row by row (the adapter's input: concat(state, injection)). */
typedef struct gy_concat_args {
    const void *a; /* [n_row, na] act */
    const void *b; /* [n_row, nb] act */
    int32_t n_row, na, nb;
    void *y; /* [n_row, na + nb] act */
} gy_concat_args;

/* gather: y[r] = x[idx[r]]; scatter: y[idx[r]] = x[r] (idx distinct). Rows of n elements of act. idx[r] -1 (a row that
 * fills up a batch): nothing is moved. */
typedef struct gy_move_args {
    const void *x;
    const int32_t *idx; /* [n_row] */
    int32_t n_row, n;
    void *y;
} gy_move_args;

/* Which calls a recording holds: the same key, the same calls with the same arguments. What the arguments point to may
 * differ. Compared as bytes. */
typedef struct gy_record_key {
    int32_t what;  /* the caller's */
    int32_t n_row; /* of each call but those for n_other */
    int32_t n_other;
    uint32_t has; /* the caller's; bit GY_RECORD_ATTN: attn is among them, for the rows that begin_rows was told */
} gy_record_key;
enum { GY_RECORD_ATTN = 1u };

/* The exit gate: y[r] = round(w . x[r] + b), one rounding, as f32. */
typedef struct gy_gate_args {
    const void *x; /* [n_row, n] act */
    const void *w; /* [n] act */
    const void *b; /* [1] act */
    int32_t n_row, n;
    float *y; /* [n_row] */
} gy_gate_args;

/* y[r] = ||x[r] - x_prev[r]|| / max(||x[r]||, 1e-9), sums in f64 (huginn.md, leaving early, latent-diff per token). */
typedef struct gy_latent_diff_args {
    const void *x, *x_prev; /* [n_row, n] act */
    int32_t n_row, n;
    double *y; /* [n_row] */
} gy_latent_diff_args;

/* Huginn's initial state (huginn.md, initial state): truncated normal, mean 0, std, cut at +-3 std, times mult, as a
 * pure function of (seed[r], pos[r], element): u = (m + 0.5) * 2^-53 with m the 53-bit Philox draw of purpose
 * GY_RAND_LATENT (two elements per block: words 0,1 and 2,3), x = Phi^-1(Phi(-3) + u (Phi(3) - Phi(-3))), y =
 * round(f32(x * std) * mult). zero[r] != 0: the row is all zeros. */
typedef struct gy_latent_init_args {
    const uint64_t *seed; /* [n_row] host */
    const int32_t *pos;   /* [n_row] host */
    const uint8_t *zero;  /* [n_row] host */
    float std, mult;
    int32_t n_row, n;
    void *y; /* [n_row, n] act */
} gy_latent_init_args;

/* A token for each row of logits, as its gy_draw_row says (base/draw.h; what each step means: sample/sample.h). */
typedef struct gy_sample_args {
    const float *logits; /* [n_row, n_vocab], not changed */
    int32_t n_row, n_vocab;
    const gy_draw_row *rows; /* [n_row], at the beginning of the piece of memory with their lists and masks */
    gy_drawn *out;           /* [n_row] */
} gy_sample_args;

/* y[idx[i]] = v[i]; idx distinct. */
typedef struct gy_patch_args {
    const int64_t *idx; /* [n] */
    const int32_t *v;   /* [n] */
    int32_t n;
    int32_t *y;
} gy_patch_args;

typedef struct gy_backend gy_backend;

typedef struct gy_ops {
    const char *name;      /* "ref", "cpu-avx512", ... */
    uint32_t weight_types; /* bit 1 << dtype: weights that linear takes; others are refused when a model is loaded */
    uint32_t kv_types;     /* likewise: KV that rope_kv and attn take beside act's; others are refused on opening */

    /* Memory of the backend. alloc returns zeroed memory or NULL. For host backends upload and download are copies. */
    void *(*alloc)(gy_backend *be, size_t bytes);
    void (*free)(gy_backend *be, void *p, size_t bytes); /* accepts NULL */
    void (*upload)(gy_backend *be, void *dst, const void *host_src, size_t bytes);
    void (*download)(gy_backend *be, void *host_dst, const void *src, size_t bytes); /* waits for what was queued */
    gy_status (*sync)(gy_backend *be, gy_err *err); /* waits; returns and clears the first error since the last sync */
    void (*destroy)(gy_backend *be);
    size_t (*mem_available)(gy_backend *be); /* bytes that alloc could still give; 0 = unknown. Not for a step */
    /* Host work on the backend's threads: fn(arg, item, member) for item 0..n-1, each once, on member 0..n_member()-1;
     * returns when all are done. Which member takes which item is not said: results may not depend on it. */
    int (*n_member)(gy_backend *be);
    void (*parallel)(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg);

    /* Hints that a backend may leave NULL; nothing computed may depend on whether they were called.
     * prepare: w is in place and will be used by linear (y_f32 as there). At load: takes its time. It may leave a form
     * of its own in w->packed and returns the bytes that this holds, else 0. From then on linear looks at part[].data
     * no more, and copies of the struct share the form; unprepare gives it back, once, after the last use. begin_rows:
     * host copies of the rows that the next operations get (slot is not looked at); read during the call.
     */
    size_t (*prepare)(gy_backend *be, gy_weight *w, int y_f32);
    void (*unprepare)(gy_backend *be, gy_weight *w); /* NULL where prepare leaves nothing; accepts w->packed NULL */
    /* Forms that are kept in a file. form names how prepare lays them out: equal names, equal bytes for equal weights.
     * form_of gives the bytes of w's form, made or not (0: it has none), and where it lies, or NULL. adopt takes such
     * bytes for the form of w, instead of prepare: copies of them, or in place, where they stay as they are until
     * unprepare; -1: no memory. All NULL where there are no such forms. */
    const char *form;
    size_t (*form_of)(gy_backend *be, const gy_weight *w, const void **data_out);
    int (*adopt)(gy_backend *be, gy_weight *w, const void *data, int copies);
    void (*begin_rows)(gy_backend *be, const gy_rows *host);

    void (*embed)(gy_backend *be, const gy_embed_args *a);
    void (*norm)(gy_backend *be, const gy_norm_args *a);
    void (*linear)(gy_backend *be, const gy_linear_args *a);
    void (*rope_table)(gy_backend *be, const gy_rope_table_args *a);
    void (*rope_kv)(gy_backend *be, const gy_rope_kv_args *a);
    void (*attn)(gy_backend *be, const gy_attn_args *a);
    void (*residual)(gy_backend *be, const gy_residual_args *a);
    void (*silu_mul)(gy_backend *be, const gy_silu_mul_args *a);
    void (*concat)(gy_backend *be, const gy_concat_args *a);
    void (*gather)(gy_backend *be, const gy_move_args *a);
    void (*scatter)(gy_backend *be, const gy_move_args *a);
    void (*gate)(gy_backend *be, const gy_gate_args *a);
    void (*latent_diff)(gy_backend *be, const gy_latent_diff_args *a);
    void (*latent_init)(gy_backend *be, const gy_latent_init_args *a);

    /* Fused operations. NULL: the caller calls the parts. */
    void (*residual_norm)(gy_backend *be, const gy_residual_norm_args *a);

    /* Recordings: many calls as one. NULL: there are none.
     *   begin   1: all that the key stands for was done, neither the calls nor end are to be made. 0: they are
     *   end     behind the calls, which may only now be carried out
     * Calls between them are operations from embed to gate but latent_init. scratch: memory whose content nobody reads
     * after end. All that is recorded is forgotten by close. record_rows: with how many rows, n_row or more, a batch is
     * best recorded; the caller fills it up. */
    void *(*record_open)(gy_backend *be, void *scratch, size_t bytes);
    void (*record_close)(gy_backend *be, void *record); /* accepts NULL */
    int32_t (*record_rows)(gy_backend *be, int32_t n_row);
    int (*record_begin)(gy_backend *be, void *record, const gy_record_key *key);
    void (*record_end)(gy_backend *be, void *record);

    /* For a caller that does not wait for what it has asked for. NULL: not here, all three.
     *   fetch    bytes of src as they are when all before is done; they lie behind the pointer when that is reached,
     *            until the next fetch. NULL: no memory
     *   mark     up to here
     *   reached  waits until all before the last mark is done, not for what was queued since; the first error known
     *            by then, which it keeps, or GY_OK */
    const void *(*fetch)(gy_backend *be, const void *src, size_t bytes);
    void (*mark)(gy_backend *be);
    gy_status (*reached)(gy_backend *be, gy_err *err);
    /* NULL where logits are the host's anyway. sample returns 0, having done nothing: not for such a vocabulary. No
     * rows: a question. */
    int (*sample)(gy_backend *be, const gy_sample_args *a);
    void (*patch)(gy_backend *be, const gy_patch_args *a);
} gy_ops;

/* The part of a backend that everyone may see; each backend's own struct begins with it. Engine lifetime. */
struct gy_backend {
    const gy_ops *ops;
    gy_dtype act;
    int is_host; /* its memory can be read and written by plain loads and stores */
};

/* Upper bounds that let a backend size its workspace once: no operation may exceed them. */
typedef struct gy_ops_limits {
    int32_t max_row; /* rows of one batch */
    int32_t max_k;   /* longest row of any linear's input */
    int32_t max_len; /* longest context: pos < max_len */
} gy_ops_limits;

/* ---- the host backends ----------------------------------------------------------------------------------------- */

gy_status gy_backend_ref_create(gy_dtype act, gy_err *err, gy_backend **out);

typedef struct gy_cpu_opts {
    gy_dtype act;
    int n_thread; /* 0 = physical cores */
    gy_pin pin;
    gy_ops_limits limits;
} gy_cpu_opts;
/* Chooses the variant by gy_cpu_features() (mask included); portable C where none of them is offered. */
gy_status gy_backend_cpu_create(const gy_cpu_opts *o, gy_err *err, gy_backend **out);

/* ---- the GPU (src/ops/cuda, a shared object that is loaded when it is there) ------------------------------------- */

/* Of all layers of a pass of one row as one launch (ops/cuda/stage.cuh). What is 0 is as usual. */
typedef struct gy_cuda_stage {
    int32_t flight, flight_up, flight_kv; /* slots under way */
    int32_t n_counter, parts;             /* -1 counters: none */
} gy_cuda_stage;

typedef struct gy_cuda_opts {
    gy_dtype act;
    int32_t device; /* as CUDA counts them */
    int n_thread;   /* host threads that sample; 0 = physical cores */
    gy_ops_limits limits;
    uint32_t without; /* of these; tests and timings only: slower, the same bits */
    gy_cuda_stage stage;
} gy_cuda_opts;
enum { GY_CUDA_RECORDS = 1, GY_CUDA_FUSED = 2, GY_CUDA_EARLY = 4, GY_CUDA_LATE = 8, GY_CUDA_STAGE = 16 };
/* GY_E_DEVICE with a sentence: no library, no driver, no such device, another build, another architecture. */
gy_status gy_backend_cuda_create(const gy_cuda_opts *o, gy_err *err, gy_backend **out);
/* "cuda" or "cuda:N"; behind it may stand "-stage", to go without GY_CUDA_STAGE: whether it does. */
gy_status gy_cuda_parse_device(const char *text, gy_err *err, int32_t *device_out);
int gy_cuda_without_stage(const char *text);

/* A GPU for transfers alone, of no backend (when_done is NULL); the calling thread is bound to it. */
gy_status gy_cuda_device_open(int32_t ordinal, gy_err *err, gy_device **out);
void gy_cuda_device_close(gy_device *d); /* accepts NULL */

/* For a transfer into or out of its memory (base/device.h); the backend's until destroy. NULL: a host backend, whose
 * memory needs none. */
const gy_device *gy_backend_get_device(gy_backend *be);

void gy_backend_destroy(gy_backend *be); /* accepts NULL */

#endif
