/* BF16 products by cuBLASLt, pinned so that a row's bits do not depend on how many rows run with it.
 *
 * cuBLASLt chooses an algorithm by the number of rows, and algorithms may differ in how they cut the inner dimension.
 * So the choice is made here, once for each shape (n, k, output), before any result is used:
 *
 *   classes   numbers of rows up to 16, 32, 64, ... 8192, and above: one algorithm each
 *   offered   cuBLASLt's heuristic for the class, without split-K and without workspace (so no stream-K either)
 *   the rule  the first algorithm offered for the class of 128 rows is the reference. A class may use another algorithm
 *             only if it gives the reference's bits for every element of a product of random rows with this weight, at
 *             the class's largest and smallest number of rows; the fastest of those is taken. Which it is may differ
 *             from start to start; the bits do not
 *   narrow    up to 64 rows our own kernel (narrow.cu) is one more candidate, by the same rule
 *
 *   E4M3      shapes of their own, by the same rule. cuBLASLt gets the weights widened to BF16, exact, and leaves sums
 * in f32, from which a kernel of ours makes y; both in memory that all such products share, because a stream's order
 * keeps them until they are used. (Scales as cuBLASLt's vector of alphas: not known to be offered.)
 *
 * The check is by example, not by proof: 16 rows x n outputs and up, all bits, at least 2 numbers of rows a class. It
 * finds what was found on an H200 (measured: docs/kernels.md): algorithms without split-K differ in no bit, those
 * with it in some of each product. tests/ops checks the same through the table.
 *
 * The library is opened here and not linked: F32 works without it, and where it is missing a sentence says so.
 */
#include "ops/cuda/eight_bits.cuh"
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/record.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LT_CALLS(X)                                                                                                    \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulAlgoConfigGetAttribute)

enum { N_CLASS = 11, REFERENCE_CLASS = 3, OFFERED = 12, TIMED = 3, MAX_SHAPES = 64, SUM_BYTES = 64 << 20 };

/* One product shape. Layouts of x and y are set to the number of rows before each call. */
typedef struct lt_shape {
    gy_dtype type; /* of the weights */
    int32_t n, k, ldy;
    int y_f32, usable;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo[N_CLASS];
    int is_narrow[N_CLASS]; /* our own kernel instead */
    int is_same[N_CLASS];   /* our own kernel has the reference's bits */
} lt_shape;

struct cuda_lt {
    void *lib;
#define LT_FIELD(f) decltype(&::f) f;
    LT_CALLS(LT_FIELD)
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc; /* the same for all: BF16 in, sums in f32, W transposed */
    bf16 *wide;                /* [n_wide] weights of 8 bits, widened for one product */
    float *sums;               /* [SUM_BYTES] of one such product, or of some of its rows */
    size_t n_wide;
    cublasLtMatmulPreference_t pref;
    cuda_narrow narrow;
    lt_shape shape[MAX_SHAPES];
    int n_shape;
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

static void *find_library(void) {
    static const char *const names[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (lib) return lib;
    }
    return NULL;
}

static int find_calls(cuda_lt *lt) {
    int missing = 0;
#define LT_FIND(f)                                                                                                     \
    {                                                                                                                  \
        void *p = dlsym(lt->lib, #f);                                                                                  \
        memcpy(&lt->f, &p, sizeof p);                                                                                  \
        missing += !p;                                                                                                 \
    }
    LT_CALLS(LT_FIND)
    return !missing;
}

static int make_desc(cuda_lt *lt) {
    cublasOperation_t t = CUBLAS_OP_T;
    size_t workspace = 0;
    uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    return !lt->cublasLtCreate(&lt->handle) &&
           !lt->cublasLtMatmulDescCreate(&lt->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           !lt->cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t) &&
           !lt->cublasLtMatmulPreferenceCreate(&lt->pref) &&
           !lt->cublasLtMatmulPreferenceSetAttribute(lt->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                     sizeof workspace) &&
           !lt->cublasLtMatmulPreferenceSetAttribute(lt->pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                     &no_reduction, sizeof no_reduction);
}

gy_status cuda_lt_open(cuda_be *c, gy_err *err) {
    cuda_lt *lt = (cuda_lt *)calloc(1, sizeof *lt);
    if (!lt) return cuda_err(err, GY_E_NOMEM, "out of memory");
    c->lt = lt;
    lt->lib = find_library();
    if (!lt->lib)
        return cuda_err(err, GY_E_DEVICE,
                        "device cuda: libcublasLt.so.13 was not found (looked where the system looks and in "
                        "/usr/local/cuda/lib64); install CUDA 13's cuBLAS, or use --dtype f32");
    if (!find_calls(lt)) return cuda_err(err, GY_E_DEVICE, "device cuda: libcublasLt.so.13 lacks a function");
    if (!make_desc(lt)) return cuda_err(err, GY_E_DEVICE, "device cuda:%d: cuBLASLt cannot start", c->device);
    cuda_narrow_open(c, &lt->narrow);
    return GY_OK;
}

static void shape_close(cuda_lt *lt, lt_shape *s) {
    if (s->w) lt->cublasLtMatrixLayoutDestroy(s->w);
    if (s->x) lt->cublasLtMatrixLayoutDestroy(s->x);
    if (s->y) lt->cublasLtMatrixLayoutDestroy(s->y);
}

void cuda_lt_close(cuda_be *c) {
    cuda_lt *lt = c->lt;
    if (!lt) return;
    for (int i = 0; i < lt->n_shape; i++) shape_close(lt, &lt->shape[i]);
    if (lt->pref) lt->cublasLtMatmulPreferenceDestroy(lt->pref);
    if (lt->desc) lt->cublasLtMatmulDescDestroy(lt->desc);
    cudaFree(lt->wide);
    cudaFree(lt->sums);
    if (lt->handle) lt->cublasLtDestroy(lt->handle);
    free(lt); /* the library stays loaded */
    c->lt = NULL;
}

/* ---- one product ------------------------------------------------------------------------------------------------- */

static int class_of(int32_t n_row) {
    int i = 0;
    while (i < N_CLASS - 1 && n_row > 16 << i) i++;
    return i;
}

static void set_rows(cuda_lt *lt, lt_shape *s, int32_t n_row) {
    uint64_t cols = (uint64_t)n_row;
    lt->cublasLtMatrixLayoutSetAttribute(s->x, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof cols);
    lt->cublasLtMatrixLayoutSetAttribute(s->y, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof cols);
}

/* f32 results to BF16's values, in place: what y_f32 asks for. */
static __global__ void round_kernel(float *y, int32_t n, int32_t ldy) {
    int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[(int64_t)blockIdx.y * ldy + i] = round_to<bf16>(y[(int64_t)blockIdx.y * ldy + i]);
}

static int multiply_lt(cuda_be *c, lt_shape *s, const cublasLtMatmulAlgo_t *algo, const void *w, const void *x,
                       int32_t n_row, void *y) {
    const float one = 1.0f, zero = 0.0f;
    set_rows(c->lt, s, n_row);
    return c->lt->cublasLtMatmul(c->lt->handle, c->lt->desc, &one, w, s->w, x, s->x, &zero, y, s->y, y, s->y, algo,
                                 NULL, 0, c->stream) == CUBLAS_STATUS_SUCCESS;
}

/* Eight elements a thread; n is a multiple of 8. */
static __global__ void widen_kernel(const uint2 *q, int64_t n8, uint4 *y) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n8) return;
    uint2 v = q[i];
    y[i] = make_uint4(widen_two(v.x), widen_two(v.x >> 16), widen_two(v.y), widen_two(v.y >> 16));
}

/* Sums [.., n] times the scales, as `out` says, to rows of ldy. */
static __global__ void scale_kernel(const float *sums, const float *scale, int32_t n, int32_t ldy, narrow_out out,
                                    void *y) {
    int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    int64_t to = (int64_t)blockIdx.y * ldy + i;
    float v = __fmul_rn(sums[(int64_t)blockIdx.y * n + i], scale[i]);
    if (out == NARROW_BF16)
        put((bf16 *)y, to, v);
    else
        put((float *)y, to, out == NARROW_F32_ROUNDED ? round_to<bf16>(v) : v);
}

/* As many rows at a time as there is room for sums. */
static int multiply_wide(cuda_be *c, lt_shape *s, const cublasLtMatmulAlgo_t *algo, const cuda_matrix *m, const bf16 *x,
                         int32_t n_row, narrow_out out, void *y) {
    cuda_lt *lt = c->lt;
    int64_t n8 = (int64_t)m->n * m->k / 8;
    int32_t room = SUM_BYTES / 4 / m->n, most = room < 65535 ? room : 65535;
    widen_kernel<<<blocks_for(n8, 256), 256, 0, c->stream>>>((const uint2 *)m->w, n8, (uint4 *)lt->wide);
    for (int32_t r = 0; r < n_row; r += most) {
        int32_t rows = n_row - r < most ? n_row - r : most;
        if (!multiply_lt(c, s, algo, lt->wide, x + (int64_t)r * m->k, rows, lt->sums)) return 0;
        scale_kernel<<<dim3(blocks_for(m->n, 256), (unsigned)rows), 256, 0, c->stream>>>(
            lt->sums, m->scale, m->n, s->ldy, out,
            (char *)y + (size_t)r * (size_t)s->ldy * (out == NARROW_BF16 ? 2 : 4));
    }
    return 1;
}

/* algo NULL: our own kernel. */
static int multiply(cuda_be *c, lt_shape *s, const cublasLtMatmulAlgo_t *algo, const cuda_matrix *m, const void *x,
                    int32_t n_row, narrow_out out, void *y) {
    narrow_plan p;
    if (!algo)
        return c->lt->narrow.encode && cuda_narrow_plan(c->n_sm, s->type, s->n, s->k, s->ldy, n_row, &p) &&
               cuda_narrow_run(c, &c->lt->narrow, &p, m, s->ldy, out, x, n_row, y);
    if (s->type != GY_BF16) return multiply_wide(c, s, algo, m, (const bf16 *)x, n_row, out, y);
    if (!multiply_lt(c, s, algo, m->w, x, n_row, y)) return 0;
    for (int32_t r = 0; out == NARROW_F32_ROUNDED && r < n_row; r += 65535) {
        dim3 grid(blocks_for(m->n, 256), (unsigned)(n_row - r < 65535 ? n_row - r : 65535));
        round_kernel<<<grid, 256, 0, c->stream>>>((float *)y + (int64_t)r * s->ldy, m->n, s->ldy);
    }
    return 1;
}

static lt_shape *find_shape(cuda_lt *lt, const cuda_matrix *m, int32_t ldy, int y_f32) {
    for (int i = 0; i < lt->n_shape; i++) {
        lt_shape *s = &lt->shape[i];
        if (s->type == m->type && s->n == m->n && s->k == m->k && s->ldy == ldy && s->y_f32 == y_f32) return s;
    }
    return NULL;
}

int cuda_lt_run(cuda_be *c, const cuda_matrix *m, int32_t ldy, int y_f32, const void *x, int32_t n_row, void *y) {
    lt_shape *s = find_shape(c->lt, m, ldy, y_f32);
    if (!s) {
        cuda_lt_prepare(c, m, ldy, y_f32);
        s = find_shape(c->lt, m, ldy, y_f32);
    }
    if (!s || !s->usable || ((uintptr_t)m->w | (uintptr_t)m->scale | (uintptr_t)x | (uintptr_t)y) % 16) return 0;
    int at = class_of(n_row);
    if (!multiply(c, s, s->is_narrow[at] ? NULL : &s->algo[at], m, x, n_row, y_f32 ? NARROW_F32_ROUNDED : NARROW_BF16,
                  y))
        cuda_ok(c, cudaErrorUnknown, "a product was refused that had been offered");
    return 1;
}

/* Our kernel where it has the bits of the product alone, fastest or not: it spares a launch. */
int cuda_lt_silu(cuda_be *c, const cuda_matrix *m, const void *x, int32_t n_row, void *y) {
    narrow_plan p;
    const lt_shape *s = find_shape(c->lt, m, m->n, 0);
    if (!s || !s->usable || !s->is_same[class_of(n_row)] || ((uintptr_t)m->w | (uintptr_t)x | (uintptr_t)y) % 16)
        return 0;
    return cuda_narrow_plan(c->n_sm, m->type, m->n, m->k, m->n / 2, n_row, &p) &&
           cuda_narrow_run(c, &c->lt->narrow, &p, m, m->n / 2, NARROW_SILU, x, n_row, y);
}

void cuda_lt_let_next(cuda_be *c, int on) {
    c->lt->narrow.lets_next = on;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* What a choice is tried on. x: random rows whose elements differ in size, so that another order of sums shows. */
typedef struct trial {
    const cuda_matrix *m;
    int32_t rows; /* of x, want and got */
    bf16 *x;
    void *want, *got;
    unsigned *n_unequal;
    size_t y_row; /* bytes */
    void *flush;  /* FLUSH_BYTES: written before a timing, so that weights come from memory as they do in a model */
    cudaEvent_t begin, end;
} trial;
enum { FLUSH_BYTES = 96 << 20 };

static __global__ void fill_kernel(bf16 *x, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t h = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15ull;
    h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29;
    float unit = (float)(uint32_t)(h >> 40) * 0x1p-23f - 1.0f;
    put(x, i, ldexpf(unit, (int)(h & 7) - 4));
}

static __global__ void compare_kernel(const uint16_t *a, const uint16_t *b, int64_t n, unsigned *n_unequal) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && a[i] != b[i]) atomicAdd(n_unequal, 1u);
}

static int trial_open(cuda_be *c, const lt_shape *s, trial *t) {
    enum { BYTES = 256 << 20 };
    t->y_row = (size_t)s->ldy * (s->y_f32 ? 4 : 2);
    t->rows = c->limits.max_row > 16 ? c->limits.max_row : 16;
    if ((size_t)t->rows > BYTES / t->y_row) t->rows = (int32_t)(BYTES / t->y_row);
    if (t->rows < 16) return 0;
    int64_t n = (int64_t)t->rows * s->k;
    if (cudaMalloc((void **)&t->x, (size_t)n * 2) || cudaMalloc(&t->want, (size_t)t->rows * t->y_row) ||
        cudaMalloc(&t->got, (size_t)t->rows * t->y_row) || cudaMalloc((void **)&t->n_unequal, sizeof *t->n_unequal) ||
        cudaMalloc(&t->flush, FLUSH_BYTES) || cudaEventCreate(&t->begin) || cudaEventCreate(&t->end)) {
        cudaGetLastError();
        return 0;
    }
    cudaMemsetAsync(t->want, 0, (size_t)t->rows * t->y_row, c->stream);
    fill_kernel<<<blocks_for(n, 256), 256, 0, c->stream>>>(t->x, n);
    return cudaStreamSynchronize(c->stream) == cudaSuccess;
}

static void trial_close(trial *t) {
    cudaFree(t->x);
    cudaFree(t->want);
    cudaFree(t->got);
    cudaFree(t->n_unequal);
    cudaFree(t->flush);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
}

static narrow_out trial_out(const lt_shape *s) {
    return s->y_f32 ? NARROW_F32_SUMS : NARROW_BF16;
}

/* The last n_row rows, computed by algo: the bits that are wanted? Both results are whole rows of ldy; what lies
 * between n and ldy is written by neither and cleared in both. */
static int same_bits(cuda_be *c, lt_shape *s, const cublasLtMatmulAlgo_t *algo, const trial *t, int32_t n_row) {
    unsigned n_unequal = 1;
    size_t first = (size_t)(t->rows - n_row);
    int64_t n = (int64_t)n_row * (int64_t)(t->y_row / 2);
    char *got = (char *)t->got;
    cudaMemsetAsync(got, 0, (size_t)n_row * t->y_row, c->stream);
    cudaMemsetAsync(t->n_unequal, 0, sizeof n_unequal, c->stream);
    if (!multiply(c, s, algo, t->m, t->x + first * (size_t)s->k, n_row, trial_out(s), got)) return 0;
    compare_kernel<<<blocks_for(n, 256), 256, 0, c->stream>>>(
        (const uint16_t *)((const char *)t->want + first * t->y_row), (const uint16_t *)got, n, t->n_unequal);
    cudaMemcpyAsync(&n_unequal, t->n_unequal, sizeof n_unequal, cudaMemcpyDeviceToHost, c->stream);
    return cudaStreamSynchronize(c->stream) == cudaSuccess && !n_unequal;
}

/* Offered for the class, without split-K. */
static int offers(cuda_lt *lt, lt_shape *s, int class_at, cublasLtMatmulHeuristicResult_t out[OFFERED]) {
    int n = 0, kept = 0;
    set_rows(lt, s, 16 << class_at);
    if (lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, lt->desc, s->w, s->x, s->y, s->y, lt->pref, OFFERED, out, &n))
        return 0;
    for (int i = 0; i < n; i++) {
        int32_t split = 0;
        size_t written;
        lt->cublasLtMatmulAlgoConfigGetAttribute(&out[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                                 &written);
        if (out[i].state == CUBLAS_STATUS_SUCCESS && split <= 1 && !out[i].workspaceSize) out[kept++] = out[i];
    }
    return kept;
}

/* Stands for the small kernels between two products of a model, about 3 us: a product that can begins beside it. */
static __global__ void pause_kernel(void) {
    wait_for_previous();
    for (long long begun = clock64(); clock64() - begun < 5000;) continue;
}

/* Shortest of TIMED products behind a pause, in ms. */
static float time_of(cuda_be *c, lt_shape *s, const cublasLtMatmulAlgo_t *algo, const trial *t, int32_t n_row) {
    float best = INFINITY;
    for (int i = 0; i < TIMED; i++) {
        float ms = INFINITY;
        cudaMemsetAsync(t->flush, i, FLUSH_BYTES, c->stream);
        cudaEventRecord(t->begin, c->stream);
        launch_early(c, pause_kernel, dim3(1), 32, 0);
        multiply(c, s, algo, t->m, t->x, n_row, trial_out(s), t->got);
        cudaEventRecord(t->end, c->stream);
        cudaEventSynchronize(t->end);
        cudaEventElapsedTime(&ms, t->begin, t->end);
        if (ms < best) best = ms;
    }
    return best;
}

/* Below NARROW_ROWS our kernel is tried too. It has other plans for 1..8 rows and for 9..16, which are one class. */
static int narrow_agrees(cuda_be *c, lt_shape *s, const trial *t, int32_t most, int32_t least) {
    return most <= NARROW_ROWS && same_bits(c, s, NULL, t, most) && same_bits(c, s, NULL, t, least);
}

static void choose_class(cuda_be *c, lt_shape *s, const trial *t, int class_at) {
    cublasLtMatmulHeuristicResult_t offered[OFFERED];
    int n = offers(c->lt, s, class_at, offered);
    int32_t most = class_at == N_CLASS - 1 ? t->rows : 16 << class_at, least = class_at ? (8 << class_at) + 1 : 1;
    if (most > t->rows) most = t->rows;
    if (least > t->rows) return; /* as many rows never come */
    float best = time_of(c, s, &s->algo[class_at], t, most);
    for (int i = 0; i < n; i++) {
        if (!same_bits(c, s, &offered[i].algo, t, most) || !same_bits(c, s, &offered[i].algo, t, least)) continue;
        float ms = time_of(c, s, &offered[i].algo, t, most);
        if (ms >= best) continue;
        best = ms;
        s->algo[class_at] = offered[i].algo;
    }
    s->is_same[class_at] = narrow_agrees(c, s, t, most, least);
    s->is_narrow[class_at] = s->is_same[class_at] && time_of(c, s, NULL, t, most) < best;
}

static void choose(cuda_be *c, lt_shape *s, const cuda_matrix *m) {
    cublasLtMatmulHeuristicResult_t offered[OFFERED];
    trial t = {};
    t.m = m;
    int n = offers(c->lt, s, REFERENCE_CLASS, offered);
    if (n && trial_open(c, s, &t) && multiply(c, s, &offered[0].algo, m, t.x, t.rows, trial_out(s), t.want)) {
        for (int i = 0; i < N_CLASS; i++) s->algo[i] = offered[0].algo;
        s->usable = same_bits(c, s, &offered[0].algo, &t, 1) && same_bits(c, s, &offered[0].algo, &t, t.rows);
        for (int i = 0; s->usable && i < N_CLASS; i++) choose_class(c, s, &t, i);
    }
    trial_close(&t);
    cuda_ok(c, cudaGetLastError(), "choosing an algorithm");
}

/* Room to widen the largest matrix in, and for sums; it only grows, while weights are put in place. */
static int take_wide(cuda_be *c, const cuda_matrix *m) {
    cuda_lt *lt = c->lt;
    size_t n = (size_t)m->n * (size_t)m->k;
    if (m->type == GY_BF16 || n <= lt->n_wide) return 1;
    cudaFree(lt->wide); /* waits for what uses it */
    lt->wide = NULL;
    lt->n_wide = 0;
    if ((lt->sums || cudaMalloc((void **)&lt->sums, SUM_BYTES) == cudaSuccess) &&
        cudaMalloc((void **)&lt->wide, n * sizeof *lt->wide) == cudaSuccess) {
        lt->n_wide = n;
        return 1;
    }
    cudaGetLastError();
    return 0;
}

void cuda_lt_prepare(cuda_be *c, const cuda_matrix *m, int32_t ldy, int y_f32) {
    cuda_lt *lt = c->lt;
    int32_t n = m->n, k = m->k;
    if (find_shape(lt, m, ldy, y_f32) || lt->n_shape == MAX_SHAPES) return;
    lt_shape *s = &lt->shape[lt->n_shape];
    *s = {};
    s->type = m->type, s->n = n, s->k = k, s->ldy = ldy, s->y_f32 = y_f32;
    if (n % 8 == 0 && k % 8 == 0 && ldy % 8 == 0 && ((uintptr_t)m->w | (uintptr_t)m->scale) % 16 == 0 &&
        take_wide(c, m)) {
        cudaDataType_t out = y_f32 || m->type != GY_BF16 ? CUDA_R_32F : CUDA_R_16BF;
        if (lt->cublasLtMatrixLayoutCreate(&s->w, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k) ||
            lt->cublasLtMatrixLayoutCreate(&s->x, CUDA_R_16BF, (uint64_t)k, 16, k) ||
            lt->cublasLtMatrixLayoutCreate(&s->y, out, (uint64_t)n, 16, m->type == GY_BF16 ? ldy : n))
            shape_close(lt, s), s->w = s->x = s->y = NULL;
        else
            choose(c, s, m);
    }
    lt->n_shape++;
}
