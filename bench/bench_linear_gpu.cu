/* Products of the GPU backend alone, shape by shape and number of rows by number of rows, by three ways: cuBLASLt's
 * pinned algorithm, our own kernel for few rows, and whatever cuBLASLt has when bits may depend on the rows (split-K,
 * workspace). It checks that the first two agree in every bit. Prints us, GB/s or TFLOP/s, and what part of the floor
 * was reached; sums over a layer last: what determinism costs.
 *
 * A time is a stream's: a graph of launches over copies of the weights that together exceed the L2 several times, so
 * each product reads its weights from memory and may overlap its neighbours as in a model. Not a part of gyre's build,
 * because it needs the inside of libgyre_cuda.so:
 *   nvcc -std=c++20 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude bench/bench_linear_gpu.cu \
 *     src/ops/cuda/narrow.cu -ldl -o gyre-bench-linear-gpu
 * gyre-bench-linear-gpu [ouro|nanbeige|huginn] [most rows]
 */
#include "ops/cuda/blaslt.cu"

#include <stdarg.h>
#include <stdio.h>

#define READ_GBS 4244.0
#define BF16_TFLOPS 790.0
enum { REPEAT = 3, WORKSPACE = 64 << 20, FREE_OFFERED = 32, LEAST_BYTES = 300 << 20 };

/* What backend.cu has for the others. */
gy_status cuda_err(gy_err *err, gy_status st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return st;
}
int cuda_ok(cuda_be *c, cudaError_t rc, const char *where) {
    (void)c;
    if (rc != cudaSuccess) printf("%s: %s\n", where, cudaGetErrorString(rc)), exit(1);
    return 1;
}
void cuda_enter(cuda_be *c) {
    (void)c;
}

typedef struct bench_shape {
    const char *name;
    int32_t n, k;
    int y_f32, per_layer;
} bench_shape;

typedef struct bench_family {
    const char *name;
    bench_shape shape[6];
} bench_family;

static const bench_family families[] = {
    {"ouro",
     {{"qkv", 6144, 2048, 0, 1},
      {"o", 2048, 2048, 0, 1},
      {"gate_up", 11264, 2048, 0, 1},
      {"down", 2048, 5632, 0, 1},
      {"head", 49152, 2048, 1, 0}}},
    {"nanbeige",
     {{"qkv", 5120, 3072, 0, 1}, {"o", 3072, 3072, 0, 1}, {"gate_up", 21504, 3072, 0, 1}, {"down", 3072, 10752, 0, 1}}},
    {"huginn",
     {{"qkv", 15840, 5280, 0, 1},
      {"o", 5280, 5280, 0, 1},
      {"gate_up", 35840, 5280, 0, 1},
      {"down", 5280, 17920, 0, 1}}},
};

/* What is timed: launch(arg, i) queues product i. */
typedef struct way {
    cuda_be *c;
    lt_shape *s;
    const cublasLtMatmulAlgo_t *algo; /* NULL: narrow by plan */
    narrow_plan plan;
    const char *w;
    int32_t copies, n_row;
    const void *x;
    void *y, *workspace;
} way;

static int launch(const way *v, int i) {
    const lt_shape *s = v->s;
    const void *w = v->w + (size_t)(i % v->copies) * (size_t)s->n * (size_t)s->k * 2;
    const float one = 1.0f, zero = 0.0f;
    const cuda_matrix m = {w, NULL, GY_BF16, s->n, s->k};
    if (!v->algo)
        return cuda_narrow_run(v->c, &v->c->lt->narrow, &v->plan, &m, s->ldy, s->y_f32 ? NARROW_F32_SUMS : NARROW_BF16,
                               v->x, v->n_row, v->y);
    return !v->c->lt->cublasLtMatmul(v->c->lt->handle, v->c->lt->desc, &one, w, s->w, v->x, s->x, &zero, v->y, s->y,
                                     v->y, s->y, v->algo, v->workspace, v->workspace ? WORKSPACE : 0, v->c->stream);
}

/* All products as one graph, so that the host's launches do not show. NULL where one does not run. */
static cudaGraphExec_t graph_of(const way *v, int count) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int runs = 1;
    set_rows(v->c->lt, v->s, v->n_row);
    cudaStreamBeginCapture(v->c->stream, cudaStreamCaptureModeRelaxed);
    for (int i = 0; runs && i < count; i++) runs = launch(v, i);
    cudaStreamEndCapture(v->c->stream, &graph);
    if (runs && graph) cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return exec;
}

/* Least of REPEAT means, in us; 0 where it does not run. */
static double time_way(const way *v) {
    cudaEvent_t begin, end;
    int count = v->copies > 12 ? v->copies : 12;
    float best = INFINITY;
    cudaGraphExec_t exec = graph_of(v, count);
    if (!exec) return 0;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int t = 0; t <= REPEAT; t++) {
        float ms;
        cudaEventRecord(begin, v->c->stream);
        cudaGraphLaunch(exec, v->c->stream);
        cudaEventRecord(end, v->c->stream);
        cuda_ok(v->c, cudaEventSynchronize(end), "a product");
        cudaEventElapsedTime(&ms, begin, end);
        if (t && ms < best) best = ms;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    return (double)best * 1e3 / count;
}

/* The fastest of what cuBLASLt offers with nothing forbidden. */
static double time_free(way v) {
    cublasLtMatmulHeuristicResult_t out[FREE_OFFERED];
    cublasLtMatmulPreference_t pref;
    size_t bytes = WORKSPACE;
    cuda_lt *lt = v.c->lt;
    int n = 0;
    double best = INFINITY;
    lt->cublasLtMatmulPreferenceCreate(&pref);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    set_rows(lt, v.s, v.n_row);
    lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, lt->desc, v.s->w, v.s->x, v.s->y, v.s->y, pref, FREE_OFFERED, out,
                                       &n);
    for (int i = 0; i < n; i++) {
        v.algo = &out[i].algo;
        double us = out[i].state ? 0 : time_way(&v);
        if (us > 0 && us < best) best = us;
    }
    lt->cublasLtMatmulPreferenceDestroy(pref);
    return best;
}

static unsigned unequal(cuda_be *c, const void *a, const void *b, size_t bytes) {
    unsigned *dev, n = 1;
    cudaMalloc((void **)&dev, 4);
    cudaMemset(dev, 0, 4);
    compare_kernel<<<blocks_for((int64_t)bytes / 2, 256), 256, 0, c->stream>>>((const uint16_t *)a, (const uint16_t *)b,
                                                                               (int64_t)bytes / 2, dev);
    cudaStreamSynchronize(c->stream);
    cudaMemcpy(&n, dev, 4, cudaMemcpyDeviceToHost);
    cudaFree(dev);
    return n;
}

static double floor_us(const lt_shape *s, int32_t n_row) {
    double bytes = 2.0 * s->n * s->k + 2.0 * n_row * ((double)s->k + (s->y_f32 ? 2.0 : 1.0) * s->n);
    double by_bytes = bytes / READ_GBS / 1e3, by_flops = 2.0 * s->n * s->k * n_row / BF16_TFLOPS / 1e6;
    return by_bytes > by_flops ? by_bytes : by_flops;
}

/* One shape's memory. */
typedef struct bench_mem {
    char *w;
    bf16 *x;
    void *y, *want, *workspace;
    int32_t copies;
} bench_mem;

/* us of a layer by each way; taken: what the backend chose. */
typedef struct bench_sum {
    double pinned, taken, any, least;
} bench_sum;

/* Our kernel's time, or 0 where it has no plan. *differ: values that are not the pinned algorithm's. */
static double time_narrow(way v, const bench_mem *m, unsigned *differ) {
    const lt_shape *s = v.s;
    size_t bytes = (size_t)v.n_row * (size_t)s->ldy * (s->y_f32 ? 4 : 2);
    if (!v.c->lt->narrow.encode || !cuda_narrow_plan(v.c->n_sm, GY_BF16, s->n, s->k, s->ldy, v.n_row, &v.plan))
        return 0;
    v.y = m->want;
    launch(&v, 0); /* the pinned algorithm */
    v.y = m->y, v.algo = NULL;
    double us = time_way(&v);
    cudaMemsetAsync(m->y, 0xff, bytes, v.c->stream);
    launch(&v, 0);
    *differ = unequal(v.c, m->want, m->y, bytes);
    return us;
}

/* Returns whether all bits were equal. */
static int bench_one(cuda_be *c, lt_shape *s, const bench_shape *b, const bench_mem *m, int32_t n_row, bench_sum *sum) {
    int at = class_of(n_row), is_narrow = s->is_narrow[at];
    unsigned differ = 0;
    way v = {c, s, &s->algo[at], {}, m->w, m->copies, n_row, m->x, m->y, NULL};
    double pinned = time_way(&v), narrow = time_narrow(v, m, &differ), least = floor_us(s, n_row);
    v.workspace = m->workspace;
    double any = time_free(v), taken = is_narrow ? narrow : pinned, n = b->per_layer;
    printf("%-8s %5d  pinned %8.2f  narrow %8.2f %-7s free %8.2f  floor %8.2f  %5.1f %%  %6.0f GB/s %6.1f TFLOP/s\n",
           b->name, n_row, pinned, narrow,
           differ      ? "DIFFERS"
           : is_narrow ? "taken"
                       : "",
           any, least, 100.0 * least / taken, 2.0 * s->n * s->k / taken / 1e3, 2.0 * s->n * s->k * n_row / taken / 1e6);
    fflush(stdout);
    sum->pinned += n * pinned, sum->taken += n * taken, sum->any += n * any, sum->least += n * least;
    return !differ;
}

static const int32_t row_counts[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
enum { N_COUNT = sizeof row_counts / sizeof *row_counts };

static int bench_shape_of(cuda_be *c, const bench_shape *b, int32_t most, bench_sum *sum) {
    size_t w_bytes = (size_t)b->n * (size_t)b->k * 2, y_bytes = (size_t)most * (size_t)b->n * (b->y_f32 ? 4 : 2);
    bench_mem m = {};
    int all_equal = 1;
    m.copies = (int32_t)(LEAST_BYTES / w_bytes) + 1;
    cuda_ok(c, cudaMalloc((void **)&m.w, w_bytes * (size_t)m.copies), "weights");
    cuda_ok(c, cudaMalloc((void **)&m.x, (size_t)most * (size_t)b->k * 2), "x");
    cuda_ok(c, cudaMalloc(&m.y, y_bytes), "y");
    cuda_ok(c, cudaMalloc(&m.want, y_bytes), "y");
    cuda_ok(c, cudaMalloc(&m.workspace, WORKSPACE), "workspace");
    int64_t nw = (int64_t)m.copies * b->n * b->k, nx = (int64_t)most * b->k;
    fill_kernel<<<blocks_for(nw, 256), 256, 0, c->stream>>>((bf16 *)m.w, nw);
    fill_kernel<<<blocks_for(nx, 256), 256, 0, c->stream>>>(m.x, nx);
    const cuda_matrix w = {m.w, NULL, GY_BF16, b->n, b->k};
    cuda_lt_prepare(c, &w, b->n, b->y_f32);
    lt_shape *s = find_shape(c->lt, &w, b->n, b->y_f32);
    for (int i = 0; s->usable && i < N_COUNT; i++)
        if (row_counts[i] <= most) all_equal &= bench_one(c, s, b, &m, row_counts[i], &sum[i]);
    cudaFree(m.w), cudaFree(m.x), cudaFree(m.y), cudaFree(m.want), cudaFree(m.workspace);
    return all_equal;
}

int main(int argc, char **argv) {
    const bench_family *f = &families[0];
    cuda_be c = {};
    gy_err err = {};
    bench_sum sum[N_COUNT] = {};
    int all_equal = 1;
    int32_t most = argc > 2 ? atoi(argv[2]) : 2048;
    for (size_t i = 0; argc > 1 && i < sizeof families / sizeof *families; i++)
        if (!strcmp(argv[1], families[i].name)) f = &families[i];
    c.limits.max_row = most;
    c.overlaps = 1;
    cuda_ok(&c, cudaDeviceGetAttribute(&c.n_sm, cudaDevAttrMultiProcessorCount, 0), "device");
    cuda_ok(&c, cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), "stream");
    if (cuda_lt_open(&c, &err) != GY_OK) return printf("%s\n", err.msg), 1;
    for (int i = 0; i < 6 && f->shape[i].name; i++) all_equal &= bench_shape_of(&c, &f->shape[i], most, sum);
    for (int i = 0; i < N_COUNT && row_counts[i] <= most; i++)
        printf("layer %5d rows: pinned %8.2f  taken %8.2f  free %8.2f  floor %8.2f us; taken over free %+5.1f %%\n",
               row_counts[i], sum[i].pinned, sum[i].taken, sum[i].any, sum[i].least,
               100.0 * (sum[i].taken / sum[i].any - 1.0));
    cuda_lt_close(&c);
    return !all_equal;
}
