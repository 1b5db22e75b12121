/* The operations of the GPU backend that go row by row, alone: rope with its KV write, silu times up, residual and
 * norm. Each at 1, 32 and 2048 rows of Ouro-1.4B's shape, over buffers that take turns and together exceed the L2
 * (where there are rows enough), many launches and then one wait. Prints us a launch, GB/s (each input read and each
 * output written once) against the copy rate of docs/kernels.md, and a hash of the result's bits: versions that
 * must agree print the same. The elements go through all BF16 patterns, NaN and infinity among them.
 * gyre-bench-rows-gpu
 */
#include "base/clock.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_EMBD = 2048, N_FF = 5632, N_HEAD = 16, HEAD_DIM = 128, MAX_ROW = 2048, SETS = 4, N_LAYER = 4 };
enum { TIMES = 5, LAUNCHES = 96, WIDTH = N_HEAD * HEAD_DIM };
#define COPY_GBS 4244.0

typedef struct fixture {
    gy_backend *be;
    uint16_t *host; /* [MAX_ROW, 2 N_FF] */
    void *wide[SETS], *out[SETS], *h[SETS], *b[SETS], *w, *kv, *cs, *pos, *slot, *off;
} fixture;

static void *on_device(gy_backend *be, const void *host, size_t bytes) {
    void *p = be->ops->alloc(be, bytes);
    if (!p) {
        fprintf(stderr, "out of device memory\n");
        exit(1);
    }
    if (host) be->ops->upload(be, p, host, bytes);
    return p;
}

/* all: every pattern; else finite values of ordinary size. */
static void fill(fixture *f, void *to, size_t n, int all, uint32_t z) {
    for (size_t i = 0; i < n; i++) {
        z = z * 1664525u + 1013904223u;
        f->host[i] = (uint16_t)(all ? i * 40503u + (z >> 30) : 0x3e80u + (z >> 20 & 0x17fu) + (z >> 31 << 15));
    }
    f->be->ops->upload(f->be, to, f->host, n * 2);
}

static uint32_t hash_of(fixture *f, const void *p, size_t n) {
    uint32_t hash = 2166136261u;
    f->be->ops->download(f->be, f->host, p, n * 2);
    for (size_t i = 0; i < n; i++) hash = (hash ^ f->host[i]) * 16777619u;
    return hash;
}

typedef void run_fn(fixture *f, int set, int32_t n_row);

static void run_rope(fixture *f, int set, int32_t n_row) {
    gy_kv_view kv = {.base = f->kv, .dtype = GY_BF16, .n_layer = N_LAYER, .n_head_kv = N_HEAD, .head_dim = HEAD_DIM};
    gy_rope_kv_args a = {.qkv = f->wide[set],
                         .cos = f->cs,
                         .sin = (const float *)f->cs + MAX_ROW * HEAD_DIM / 2,
                         .kind = GY_ROPE_HALF,
                         .round_each = 1,
                         .n_head = N_HEAD,
                         .kv = &kv,
                         .il = set,
                         .rows = {n_row, f->pos, f->slot, f->off}};
    f->be->ops->rope_kv(f->be, &a);
}

static void run_silu(fixture *f, int set, int32_t n_row) {
    gy_silu_mul_args a = {.gu = f->wide[set], .n_row = n_row, .n_ff = N_FF, .y = f->out[set]};
    f->be->ops->silu_mul(f->be, &a);
}

static void run_residual(fixture *f, int set, int32_t n_row) {
    gy_residual_norm_args a = {.r = {.h = f->h[set],
                                     .b = f->b[set],
                                     .w = f->w,
                                     .kind = GY_RESIDUAL_BRANCH,
                                     .eps = 1e-6f,
                                     .n_row = n_row,
                                     .n = N_EMBD},
                               .w = (const uint16_t *)f->w + N_EMBD,
                               .eps = 1e-6f,
                               .y = f->out[set]};
    f->be->ops->residual_norm(f->be, &a);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_us(fixture *f, run_fn *run, int32_t n_row) {
    double us[TIMES + 1];
    gy_err err = {0};
    for (int t = 0; t <= TIMES; t++) {
        int64_t begun = gy_clock_ns();
        for (int i = 0; i < LAUNCHES; i++) run(f, i % SETS, n_row);
        if (f->be->ops->sync(f->be, &err) != GY_OK) {
            fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
        us[t] = (double)(gy_clock_ns() - begun) / 1e3 / LAUNCHES;
    }
    qsort(us + 1, TIMES, sizeof *us, by_value);
    return us[1 + TIMES / 2];
}

/* What one launch over fresh inputs leaves behind, all patterns and then ordinary values. */
static uint32_t result_hash(fixture *f, run_fn *run, int32_t n_row) {
    uint32_t hash = 0;
    for (int all = 1; all >= 0; all--) {
        size_t rows = (size_t)n_row;
        fill(f, f->wide[0], rows * 2 * N_FF, all, 7);
        fill(f, f->h[0], rows * N_EMBD, 0, 8);
        fill(f, f->b[0], rows * N_EMBD, 0, 9);
        if (all) fill(f, f->b[0], N_EMBD, 1, 9); /* one row of all patterns: NaN makes the whole row NaN */
        run(f, 0, n_row);
        uint32_t part[] = {run == run_rope ? 0 : hash_of(f, f->out[0], rows * (run == run_silu ? N_FF : N_EMBD)),
                           run == run_rope ? hash_of(f, f->kv, (rows < 512 ? rows : 512) * N_LAYER * 2 * WIDTH) : 0,
                           run == run_rope ? hash_of(f, f->wide[0], rows * 3 * WIDTH) : 0,
                           run == run_residual ? hash_of(f, f->h[0], rows * N_EMBD) : 0};
        for (int i = 0; i < 4; i++) hash = (hash ^ part[i]) * 16777619u;
    }
    return hash;
}

static void cells(fixture *f, const char *what, run_fn *run, double bytes_a_row) {
    static const int32_t rows[] = {1, 32, 2048};
    for (int i = 0; i < 3; i++) {
        uint32_t hash = result_hash(f, run, rows[i]);
        for (int s = 0; s < SETS; s++) fill(f, f->wide[s], (size_t)MAX_ROW * 2 * N_FF, 0, (uint32_t)s);
        double us = time_us(f, run, rows[i]), bytes = bytes_a_row * rows[i];
        printf("%-14s %4d rows  %7.2f us  %7.1f GB/s (%5.1f %%)  floor %6.2f us  %08x\n", what, rows[i], us,
               bytes / us / 1e3, 100 * bytes / us / 1e3 / COPY_GBS, bytes / COPY_GBS / 1e3, hash);
    }
}

static void open_fixture(fixture *f) {
    gy_backend *be = f->be;
    size_t row = MAX_ROW;
    static int32_t slot[MAX_ROW];
    static float cs[2 * MAX_ROW * HEAD_DIM / 2];
    uint32_t z = 1;
    for (int i = 0; i < MAX_ROW; i++) slot[i] = i;
    for (int i = 0; i < 2 * MAX_ROW * HEAD_DIM / 2; i++) {
        z = z * 1664525u + 1013904223u;
        cs[i] = (float)((int)(z >> 23) - 256) / 256.0f; /* BF16, as the table's */
    }
    f->host = malloc(row * 2 * N_FF * 2);
    if (!f->host) exit(1);
    for (int s = 0; s < SETS; s++) {
        f->wide[s] = on_device(be, NULL, row * 2 * N_FF * 2);
        f->out[s] = on_device(be, NULL, row * N_FF * 2);
        f->h[s] = on_device(be, NULL, row * N_EMBD * 2);
        f->b[s] = on_device(be, NULL, row * N_EMBD * 2);
    }
    f->w = on_device(be, NULL, 2 * N_EMBD * 2);
    fill(f, f->w, 2 * N_EMBD, 0, 3);
    f->kv = on_device(be, NULL, row * N_LAYER * 2 * WIDTH * 2);
    f->cs = on_device(be, cs, sizeof cs);
    f->slot = on_device(be, slot, sizeof slot);
    f->pos = on_device(be, slot, sizeof slot);
    f->off = on_device(be, NULL, row * 8);
}

int main(void) {
    gy_cuda_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = MAX_ROW, .max_k = 8192, .max_len = MAX_ROW}};
    gy_err err = {0};
    fixture f = {0};
    if (gy_backend_cuda_create(&o, &err, &f.be) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    open_fixture(&f);
    cells(&f, "rope_kv", run_rope, 2.0 * 3 * WIDTH * 2 + 2.0 * HEAD_DIM / 2 * 4);
    cells(&f, "silu_mul", run_silu, 3.0 * N_FF * 2);
    cells(&f, "residual_norm", run_residual, 4.0 * N_EMBD * 2);
    free(f.host);
    gy_backend_destroy(f.be);
    return 0;
}
