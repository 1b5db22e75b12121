/* gyre-bench-ops: linear and decode attention of the CPU backend at the shapes of ouro-1.4b, nanbeige-3b and huginn,
 * beside the two ceilings of the machine, measured in the same run: read bandwidth (sums over 1.5 GiB by all threads)
 * and f32 multiply-adds per second (registers only). Memory that changes its speed within a run (docs/kernels.md) would
 * spoil the shares of attention: there the bandwidth is probed again before each few calls, and their median call is
 * set against that probe.
 *
 *   gyre-bench-ops [--threads N] [--mask avx2] [--rows N] [--seconds S] [--only linear|attn] [--small-pages] [--json]
 *
 * --small-pages: 4 KiB pages, as a mapped checkpoint has them; without it huge pages, as KV memory has them.
 * Weights and KV are cold: calls walk through more than 1 GiB, so that nothing is found in a cache that a real step
 * would not find there. Shares compare the best call with ceilings that are the best of several tries; the median is
 * printed beside it and tells how quiet the machine was.
 */
#include "ceiling.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/team.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GIB = 1 << 30, MAX_SAMPLE = 4096 };

typedef struct bench {
    int n_thread, json, only_rows, small_pages;
    double seconds; /* for each figure */
    gy_team *team;
    const char *only;        /* operation, or NULL */
    gy_backend *be, *be_f32; /* activations in BF16, in F32 */
    uint16_t *pool;          /* BF16 values, pool_n of them */
    size_t pool_n, pool_at;
    double peak_read, peak_fma; /* bytes/s, flop/s */
} bench;

static double now(void) {
    return (double)gy_clock_ns() * 1e-9;
}

/* ---- figures --------------------------------------------------------------------------------------------------- */

static int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct timing {
    double best, median; /* seconds of a call */
} timing;

/* One call that is not counted, then calls for b->seconds. */
static timing measure(bench *b, void (*fn)(bench *b, void *arg), void *arg) {
    static double sample[MAX_SAMPLE];
    int n = 0;
    fn(b, arg);
    for (double end = now() + b->seconds; n < 5 || (now() < end && n < MAX_SAMPLE); n++) {
        double t0 = now();
        fn(b, arg);
        sample[n] = now() - t0;
    }
    qsort(sample, (size_t)n, sizeof *sample, double_order);
    return (timing){.best = sample[0], .median = sample[n / 2]};
}

static void report(const bench *b, const char *op, const char *shape, int n_row, double bytes, double flop, timing t) {
    double read = bytes / t.best, fma = flop / t.best, read_share = read / b->peak_read, fma_share = fma / b->peak_fma;
    if (b->json) {
        printf("{\"op\":\"%s\",\"shape\":\"%s\",\"n_row\":%d,\"best_us\":%.1f,\"median_us\":%.1f,"
               "\"gbytes_per_s\":%.2f,\"read_share\":%.3f,\"gflop_per_s\":%.1f,\"fma_share\":%.3f}\n",
               op, shape, n_row, t.best * 1e6, t.median * 1e6, read * 1e-9, read_share, fma * 1e-9, fma_share);
    } else {
        printf("%-7s %-32s %4d rows %10.1f us (median %10.1f) %7.2f GB/s %5.3f %8.1f GFLOP/s %5.3f\n", op, shape, n_row,
               t.best * 1e6, t.median * 1e6, read * 1e-9, read_share, fma * 1e-9, fma_share);
    }
    fflush(stdout);
}

typedef struct linear_shape {
    const char *name;
    int n[GY_WEIGHT_PARTS], k;
} linear_shape;

static const linear_shape linear_shapes[] = {
    {"ouro-1.4b qkv 6144x2048", {2048, 2048, 2048}, 2048}, {"ouro-1.4b out 2048x2048", {2048}, 2048},
    {"ouro-1.4b gate+up 11264x2048", {5632, 5632}, 2048},  {"ouro-1.4b down 2048x5632", {2048}, 5632},
    {"ouro-1.4b head 49152x2048", {49152}, 2048},          {"nanbeige-3b qkv 8192x3072", {6144, 1024, 1024}, 3072},
    {"nanbeige-3b out 3072x6144", {3072}, 6144},           {"nanbeige-3b gate+up 21504x3072", {10752, 10752}, 3072},
    {"nanbeige-3b down 3072x10752", {3072}, 10752},        {"nanbeige-3b head 166144x3072", {166144}, 3072},
};

typedef struct linear_case {
    const linear_shape *shape;
    gy_weight w;
    void *x, *y;
    int n_row;
} linear_case;

static const uint16_t *pool_take(bench *b, size_t n) {
    if (b->pool_at + n > b->pool_n) b->pool_at = 0;
    const uint16_t *p = b->pool + b->pool_at;
    b->pool_at += n;
    return p;
}

static void linear_call(bench *b, void *arg) {
    linear_case *c = arg;
    for (int i = 0; i < c->w.n_part; i++)
        c->w.part[i].data = pool_take(b, (size_t)c->shape->n[i] * (size_t)c->shape->k);
    gy_linear_args a = {.x = c->x, .w = &c->w, .n_row = c->n_row, .y = c->y};
    b->be->ops->linear(b->be, &a);
}

static int linear_bench(bench *b, const linear_shape *shape, int n_row) {
    linear_case c = {.shape = shape, .n_row = n_row, .w = {.dtype = GY_BF16, .k = shape->k}};
    for (int i = 0; i < GY_WEIGHT_PARTS && shape->n[i]; i++) {
        c.w.part[i].n = shape->n[i];
        c.w.n += shape->n[i];
        c.w.n_part++;
    }
    size_t x_bytes = (size_t)n_row * (size_t)c.w.k * 2, y_bytes = (size_t)n_row * (size_t)c.w.n * 2;
    c.x = gy_mem_alloc(GY_MEM_BASE, x_bytes, 1);
    c.y = gy_mem_alloc(GY_MEM_BASE, y_bytes, 1);
    if (c.x && c.y) {
        double weights = (double)c.w.n * c.w.k;
        memcpy(c.x, b->pool, x_bytes);
        memset(c.y, 0, y_bytes);
        timing t = measure(b, linear_call, &c);
        report(b, "linear", shape->name, n_row, weights * 2, weights * 2 * n_row, t);
    }
    int ok = c.x && c.y;
    gy_mem_free(c.x);
    gy_mem_free(c.y);
    return ok;
}

/* ---- decode attention ------------------------------------------------------------------------------------------- */

enum { CONTEXT = 2048, KV_LAYERS = 24, MAX_ROWS = 32, MAX_WIDTH = 48 * 128 };
enum { SLICES = 5, SLICE_CALLS = 20, BLOCK_STRIDE = 7919 }; /* a prime */
#define PROBE_BYTES ((size_t)256 << 20)

typedef struct attn_shape {
    const char *name;
    int n_head, n_head_kv, head_dim;
} attn_shape;

static const attn_shape attn_shapes[] = {
    {"ouro-1.4b, 16 heads of 128", 16, 16, 128},
    {"nanbeige-3b, 48 heads, 8 kv", 48, 8, 128},
    {"huginn, 55 heads of 96", 55, 55, 96},
};

typedef struct attn_case {
    gy_attn_args a;
    gy_kv_view kv;
    gy_backend *be;
    int32_t pos[MAX_ROWS], slot[MAX_ROWS];
    int64_t off[MAX_ROWS];
    uint16_t q[MAX_ROWS * MAX_WIDTH * 2];
    float y[MAX_ROWS * MAX_WIDTH];
} attn_case;

/* Each call takes the next layer. */
static void attn_call(attn_case *c) {
    c->a.il = (c->a.il + 1) % c->kv.n_layer;
    c->be->ops->attn(c->be, &c->a);
}

/* A context for each row as far as the pool holds them, and as many layers as it then holds; blocks in no order that a
 * prefetcher could know. NULL: no memory. */
static int32_t *attn_place(const bench *b, attn_case *c, int n_row) {
    int64_t pool = (int64_t)b->pool_n * 2, layer = 2 * gy_kv_row(&c->kv) * (int64_t)gy_dtype_bytes(c->kv.dtype);
    int64_t n_ctx = pool / (layer * CONTEXT) < n_row ? pool / (layer * CONTEXT) : n_row;
    int64_t n_layer = pool / (layer * CONTEXT * n_ctx), n_block = n_ctx * (CONTEXT / GY_BLOCK_SLOTS);
    int32_t *map = gy_mem_alloc(GY_MEM_BASE, (size_t)n_ctx * CONTEXT, sizeof *map);
    if (!map) return NULL;
    for (int64_t i = 0; i < n_ctx * CONTEXT; i++)
        map[i] = (int32_t)(i / GY_BLOCK_SLOTS * BLOCK_STRIDE % n_block * GY_BLOCK_SLOTS + i % GY_BLOCK_SLOTS);
    for (int r = 0; r < n_row; r++) {
        c->pos[r] = CONTEXT - 1;
        c->off[r] = r % n_ctx * CONTEXT;
        c->slot[r] = map[c->off[r] + CONTEXT - 1];
    }
    c->kv.n_layer = (int32_t)(n_layer < KV_LAYERS ? n_layer : KV_LAYERS);
    c->kv.map = map;
    c->kv.n_map = n_ctx * CONTEXT;
    return map;
}

typedef struct attn_figure {
    double best, median, ceiling, share; /* seconds of a call; bytes per second; medians but the first */
} attn_figure;

static double median_of(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, double_order);
    return x[n / 2];
}

/* The bandwidth, then some calls; this SLICES times. */
static attn_figure attn_measure(bench *b, attn_case *c, double bytes) {
    double ceiling[SLICES], share[SLICES], all[SLICES * SLICE_CALLS];
    int n_all = 0;
    attn_call(c);
    for (int i = 0; i < SLICES; i++) {
        double t[SLICE_CALLS], end;
        int n = 0;
        ceiling[i] = gy_ceiling_read(b->team, (char *)b->pool + (size_t)i * PROBE_BYTES, PROBE_BYTES, 1);
        for (end = now() + b->seconds / SLICES; n < 3 || (now() < end && n < SLICE_CALLS); n++, n_all++) {
            double t0 = now();
            attn_call(c);
            all[n_all] = t[n] = now() - t0;
        }
        share[i] = bytes / median_of(t, n) / ceiling[i];
    }
    double median = median_of(all, n_all);
    return (attn_figure){all[0], median, median_of(ceiling, SLICES), median_of(share, SLICES)};
}

static void attn_report(const bench *b, const attn_case *c, const char *shape, double bytes, attn_figure f) {
    const char *kv = gy_dtype_name(c->kv.dtype);
    double flop = 4.0 * c->a.rows.n_row * CONTEXT * c->a.n_head * c->kv.head_dim, fma = flop / f.median;
    if (b->json) {
        printf("{\"op\":\"attn\",\"shape\":\"%s\",\"kv\":\"%s\",\"n_row\":%d,\"context\":%d,\"best_us\":%.1f,"
               "\"median_us\":%.1f,\"gbytes_per_s\":%.2f,\"read_gbytes_per_s\":%.2f,\"read_share\":%.3f,"
               "\"gflop_per_s\":%.1f,\"fma_share\":%.3f}\n",
               shape, kv, c->a.rows.n_row, CONTEXT, f.best * 1e6, f.median * 1e6, bytes / f.median * 1e-9,
               f.ceiling * 1e-9, f.share, fma * 1e-9, fma / b->peak_fma);
    } else {
        printf("attn %-28s %-4s %2d rows, median %8.1f us (best %8.1f) %6.2f GB/s of %6.2f, share %.3f; %5.1f GFLOP/s "
               "%.3f\n",
               shape, kv, c->a.rows.n_row, f.median * 1e6, f.best * 1e6, bytes / f.median * 1e-9, f.ceiling * 1e-9,
               f.share, fma * 1e-9, fma / b->peak_fma);
    }
    fflush(stdout);
}

static int attn_bench(bench *b, const attn_shape *s, gy_dtype type, int n_row) {
    attn_case *c = gy_mem_alloc(GY_MEM_BASE, 1, sizeof *c);
    if (!c) return 0;
    c->be = type == GY_F32 ? b->be_f32 : b->be;
    c->kv = (gy_kv_view){.base = b->pool, .dtype = type, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    int32_t *map = attn_place(b, c, n_row);
    if (map) {
        memcpy(c->q, b->pool, sizeof c->q);
        c->a = (gy_attn_args){.q = c->q,
                              .q_stride = s->n_head * s->head_dim,
                              .n_head = s->n_head,
                              .scale = 0.0884f,
                              .kv = &c->kv,
                              .rows = {n_row, c->pos, c->slot, c->off},
                              .y = c->y};
        double row_bytes = (double)gy_kv_row(&c->kv) * (double)gy_dtype_bytes(type);
        double bytes = 2.0 * n_row * CONTEXT * row_bytes;
        attn_report(b, c, s->name, bytes, attn_measure(b, c, bytes));
    }
    int ok = map != NULL;
    gy_mem_free(map);
    gy_mem_free(c);
    return ok;
}

static int attn_figures(bench *b) {
    static const int rows[] = {1, 8, MAX_ROWS};
    static const gy_dtype types[] = {GY_BF16, GY_I8, GY_F32};
    int ok = 1;
    for (int i = 0; ok && i < 27; i++) {
        int n_row = rows[i / 9];
        if (!b->only_rows || b->only_rows == n_row) ok = attn_bench(b, &attn_shapes[i / 3 % 3], types[i % 3], n_row);
    }
    return ok;
}

/* ---- main ------------------------------------------------------------------------------------------------------ */

static int options_read(bench *b, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        uint32_t mask;
        if (strcmp(argv[i], "--json") == 0) {
            b->json = 1;
        } else if (strcmp(argv[i], "--small-pages") == 0) {
            b->small_pages = 1;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            b->only = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            b->n_thread = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            b->only_rows = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            b->seconds = atof(argv[++i]);
        } else if (strcmp(argv[i], "--mask") == 0 && i + 1 < argc && gy_cpu_parse_mask(argv[i + 1], &mask) == 0) {
            gy_cpu_set_mask(mask);
            i++;
        } else {
            fprintf(stderr, "usage: gyre-bench-ops [--threads N] [--mask avx2,avx512] [--rows N] [--seconds S] "
                            "[--only linear|attn] [--small-pages] [--json]\n");
            return 0;
        }
    }
    return 1;
}

static int bench_open(bench *b) {
    gy_cpu_opts o = {.act = GY_BF16, .n_thread = b->n_thread, .limits = {256, 10752, CONTEXT}};
    gy_cpu_opts o32 = o;
    gy_err err = {0};
    o32.act = GY_F32;
    b->pool_n = (size_t)3 * (GIB / 4); /* 1.5 GiB of BF16 */
    b->pool = gy_mem_map_pages(GY_MEM_BASE, b->pool_n * 2);
    if (!b->pool || gy_team_create(b->n_thread, GY_PIN_AUTO, &b->team) < 0 ||
        gy_backend_cpu_create(&o, &err, &b->be) < 0 || gy_backend_cpu_create(&o32, &err, &b->be_f32) < 0) {
        fprintf(stderr, "gyre-bench-ops: %s\n", err.msg[0] ? err.msg : "no memory");
        return 0;
    }
    if (b->small_pages) madvise(b->pool, b->pool_n * 2, MADV_NOHUGEPAGE);
    uint32_t w[4096];
    for (uint32_t i = 0; i < 1024; i++) gy_rand_block(1, 0, 0, GY_RAND_TEST, i, w + 4 * i);
    for (size_t i = 0; i < b->pool_n; i++) /* between -1 and 1, not periodic in a row's length */
        b->pool[i] = gy_f32_to_bf16(gy_rand_unit_f32(w[(i + i / 4093) % 4096] + (uint32_t)i * 0x9e3779b9u) * 2 - 1);
    return 1;
}

static void bench_close(bench *b) {
    gy_backend_destroy(b->be);
    gy_backend_destroy(b->be_f32);
    gy_team_destroy(b->team);
    if (b->pool) gy_mem_unmap_pages(GY_MEM_BASE, b->pool, b->pool_n * 2);
}

static void ceilings_print(const bench *b) {
    const char *name = b->be->ops->name, *cpu = gy_cpu_model();
    double read = b->peak_read * 1e-9, fma = b->peak_fma * 1e-9;
    int n = gy_team_size(b->team);
    if (b->json) {
        printf("{\"backend\":\"%s\",\"cpu\":\"%s\",\"threads\":%d,\"read_gbytes_per_s\":%.2f,"
               "\"fma_gflop_per_s\":%.1f}\n",
               name, cpu, n, read, fma);
    } else {
        printf("%s on %s, %d threads; ceilings: read %.2f GB/s, f32 fma %.1f GFLOP/s\n", name, cpu, n, read, fma);
    }
}

static int linear_figures(bench *b) {
    static const int rows[] = {1, 8, 64, 256};
    int ok = 1;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (b->only_rows && b->only_rows != rows[r]) continue;
        for (size_t i = 0; ok && i < sizeof linear_shapes / sizeof *linear_shapes; i++)
            ok = linear_bench(b, &linear_shapes[i], rows[r]);
    }
    return ok;
}

static int figures(bench *b) {
    if ((!b->only || strcmp(b->only, "linear") == 0) && !linear_figures(b)) return 0;
    return b->only && strcmp(b->only, "attn") != 0 ? 1 : attn_figures(b);
}

int main(int argc, char **argv) {
    bench b = {.seconds = 0.4};
    if (!options_read(&b, argc, argv)) return 2;
    int ok = bench_open(&b);
    if (ok) {
        b.peak_read = gy_ceiling_read(b.team, b.pool, b.pool_n * 2, 4);
        b.peak_fma = gy_ceiling_fma(b.team);
        ceilings_print(&b);
        ok = figures(&b);
    }
    bench_close(&b);
    return ok ? 0 : 1;
}
