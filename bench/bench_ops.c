/* gyre-bench-ops: linear and decode attention of the CPU backend at the shapes of ouro-1.4b and nanbeige-3b, beside the
 * two ceilings of the machine, measured in the same run: read bandwidth (sums over 1.5 GiB by all threads) and f32
 * multiply-adds per second (registers only).
 *
 *   gyre-bench-ops [--threads N] [--mask avx2] [--rows N] [--seconds S] [--small-pages] [--json]
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
    gy_backend *be;
    uint16_t *pool; /* BF16 values, pool_n of them */
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

enum { CONTEXT = 2048, KV_LAYERS = 24, MAX_ROWS = 8 };

typedef struct attn_case {
    gy_attn_args a;
    gy_kv_view kv;
    int32_t map[CONTEXT], pos[MAX_ROWS], slot[MAX_ROWS];
    int64_t off[MAX_ROWS];
    uint16_t q[MAX_ROWS * 48 * 128], y[MAX_ROWS * 48 * 128];
    int32_t n_ctx, at; /* contexts in the pool; the next one */
} attn_case;

/* Each call takes the next (context, layer): rows of one call have contexts of their own. */
static void attn_call(bench *b, void *arg) {
    attn_case *c = arg;
    c->a.il = c->at++ % KV_LAYERS;
    b->be->ops->attn(b->be, &c->a);
}

static int attn_bench(bench *b, const char *name, gy_dtype type, int n_head, int n_head_kv, int n_row) {
    attn_case *c = gy_mem_alloc(GY_MEM_BASE, 1, sizeof *c);
    if (!c) return 0;
    c->kv = (gy_kv_view){.base = b->pool, .dtype = type, .n_layer = KV_LAYERS, .n_head_kv = n_head_kv, .head_dim = 128};
    int64_t row_bytes = gy_kv_row(&c->kv) * (int64_t)gy_dtype_bytes(type);
    int32_t n_ctx = (int32_t)((int64_t)b->pool_n * 2 / (KV_LAYERS * 2 * row_bytes * CONTEXT));
    int32_t *map = gy_mem_alloc(GY_MEM_BASE, (size_t)n_ctx * CONTEXT, sizeof *map);
    if (map) {
        for (int32_t i = 0; i < n_ctx * CONTEXT; i++) map[i] = i;
        c->kv.map = map;
        for (int r = 0; r < n_row; r++) {
            c->pos[r] = CONTEXT - 1;
            c->off[r] = (int64_t)(r % n_ctx) * CONTEXT;
            c->slot[r] = map[c->off[r] + CONTEXT - 1];
        }
        memcpy(c->q, b->pool, sizeof c->q);
        c->a = (gy_attn_args){.q = c->q,
                              .q_stride = n_head * 128,
                              .n_head = n_head,
                              .scale = 0.0884f,
                              .kv = &c->kv,
                              .rows = {n_row, c->pos, c->slot, c->off},
                              .y = c->y};
        double bytes = (double)n_row * CONTEXT * 2 * (double)row_bytes;
        timing t = measure(b, attn_call, c);
        report(b, "attn", name, n_row, bytes, 4.0 * n_row * CONTEXT * n_head * 128, t);
    }
    int ok = map != NULL;
    gy_mem_free(map);
    gy_mem_free(c);
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
                            "[--small-pages] [--json]\n");
            return 0;
        }
    }
    return 1;
}

static int bench_open(bench *b) {
    gy_cpu_opts o = {.act = GY_BF16, .n_thread = b->n_thread, .limits = {256, 10752, CONTEXT}};
    gy_err err = {0};
    b->pool_n = (size_t)3 * (GIB / 4); /* 1.5 GiB of BF16 */
    b->pool = gy_mem_map_pages(GY_MEM_BASE, b->pool_n * 2);
    if (!b->pool || gy_team_create(b->n_thread, GY_PIN_AUTO, &b->team) < 0 ||
        gy_backend_cpu_create(&o, &err, &b->be) < 0) {
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

static int figures(bench *b) {
    const int rows[] = {1, 8, 64, 256};
    int ok = 1;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (b->only_rows && b->only_rows != rows[r]) continue;
        for (size_t i = 0; ok && i < sizeof linear_shapes / sizeof *linear_shapes; i++)
            ok = linear_bench(b, &linear_shapes[i], rows[r]);
        if (!ok || rows[r] > MAX_ROWS) continue;
        ok = attn_bench(b, "ouro-1.4b 16 heads, 16 kv, 2048", GY_BF16, 16, 16, rows[r]) &&
             attn_bench(b, "nanbeige-3b 48 heads, 8 kv, 2048", GY_BF16, 48, 8, rows[r]) &&
             attn_bench(b, "ouro-1.4b, KV in int8", GY_I8, 16, 16, rows[r]) &&
             attn_bench(b, "nanbeige-3b, KV in int8", GY_I8, 48, 8, rows[r]);
    }
    return ok;
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
