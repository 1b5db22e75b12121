/* Attention of the GPU backend alone: many launches over layers of a pool far larger than the L2, then one wait, so the
 * time is the device's (a launch takes less than a kernel). Prints us, TFLOP/s (causal: 2 x 2 x pairs x head_dim x
 * heads), GB/s of K and V against the ceilings of docs/kernels.md, and a hash of the result's bits.
 * gyre-bench-attn-gpu [--kv int8] [HEADS KV_HEADS HEAD_DIM [SHIFT]]: SHIFT not 0: slots are not whole blocks in order.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYER = 8, TIMES = 5, LAUNCHES = 96 };
#define READ_GBS 4244.0
#define BF16_TFLOPS 790.0

typedef struct fixture {
    gy_backend *be;
    int32_t n_head, n_kv, d, max_row, n_slot;
    gy_dtype kv_type;
    void *q, *y, *kv, *map, *pos, *slot, *off;
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

/* Random BF16 between -1 and 1 (no zeros, which run faster than data), the same 16 Mi over and over. */
static void *random_bf16(gy_backend *be, size_t n) {
    enum { PIECE = 16 << 20 };
    uint16_t *host = malloc(PIECE * sizeof *host), *p = on_device(be, NULL, n * sizeof *host);
    uint32_t z = 1;
    if (!host) exit(1);
    for (size_t i = 0; i < PIECE; i++) {
        z = z * 1664525u + 1013904223u;
        host[i] = (uint16_t)(0x3e80u + (z >> 20 & 0x17fu) + (z >> 31 << 15));
    }
    for (size_t i = 0; i < n; i += PIECE)
        be->ops->upload(be, p + i, host, (n - i < PIECE ? n - i : PIECE) * sizeof *host);
    free(host);
    return p;
}

/* Rows of KV in I8, the same 8192 over and over: any numbers but -128, scales from 1/254 to 1/127. */
static void *random_i8(const fixture *f, size_t n) {
    enum { ROWS = 8192 };
    const size_t numbers = (size_t)f->n_kv * (size_t)f->d, row = numbers + (size_t)f->n_kv * GY_KV_SCALE_BYTES;
    char *host = malloc(ROWS * row), *p = on_device(f->be, NULL, n * row);
    uint32_t z = 1;
    if (!host) exit(1);
    for (size_t i = 0; i < ROWS; i++) {
        char *to = host + i * row;
        for (size_t e = 0; e < numbers; e++) {
            z = z * 1664525u + 1013904223u;
            to[e] = (char)((int)((z >> 20) % 255u) - 127);
        }
        for (size_t h = 0; h < (size_t)f->n_kv; h++) {
            float scale = (1.0f + (float)((i * 7 + h * 13) % 256) / 256.0f) / 254.0f;
            memcpy(to + numbers + h * GY_KV_SCALE_BYTES, &scale, sizeof scale);
        }
    }
    for (size_t i = 0; i < n; i += ROWS)
        f->be->ops->upload(f->be, p + i * row, host, (n - i < ROWS ? n - i : ROWS) * row);
    free(host);
    return p;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One median of TIMES runs of LAUNCHES launches, in us. */
static double time_us(const fixture *f, const gy_rows *host) {
    gy_backend *be = f->be;
    size_t n = (size_t)host->n_row;
    be->ops->upload(be, f->pos, host->pos, n * 4);
    be->ops->upload(be, f->off, host->map_off, n * 8);
    be->ops->begin_rows(be, host);
    gy_kv_view kv = {
        .base = f->kv, .map = f->map, .dtype = f->kv_type, .n_layer = N_LAYER, .n_head_kv = f->n_kv, .head_dim = f->d};
    gy_attn_args a = {.q = f->q,
                      .q_stride = (f->n_head + 2 * f->n_kv) * f->d,
                      .n_head = f->n_head,
                      .scale = 0.088388f,
                      .kv = &kv,
                      .rows = {host->n_row, f->pos, f->slot, f->off},
                      .y = f->y};
    double us[TIMES + 1];
    gy_err err = {0};
    for (int t = 0; t <= TIMES; t++) {
        int64_t begun = gy_clock_ns();
        for (int i = 0; i < LAUNCHES; i++) {
            a.il = i % N_LAYER;
            be->ops->attn(be, &a);
        }
        if (be->ops->sync(be, &err) != GY_OK) {
            fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
        us[t] = (double)(gy_clock_ns() - begun) / 1e3 / LAUNCHES;
    }
    qsort(us + 1, TIMES, sizeof *us, by_value);
    return us[1 + TIMES / 2];
}

/* A number of all bits that the last launch wrote: versions that must agree print the same. */
static uint32_t result_hash(const fixture *f, int n) {
    size_t bytes = (size_t)n * (size_t)f->n_head * (size_t)f->d * 2;
    uint8_t *y = malloc(bytes);
    uint32_t hash = 2166136261u;
    if (!y) exit(1);
    f->be->ops->download(f->be, y, f->y, bytes);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ y[i]) * 16777619u;
    free(y);
    return hash;
}

/* n_seq sequences; each has its last n_new tokens in the batch. */
static void cell(const fixture *f, const char *what, int n_seq, int context, int n_new) {
    int32_t *pos = malloc((size_t)f->max_row * 4);
    int64_t *off = malloc((size_t)f->max_row * 8);
    double pairs = 0;
    int n = 0;
    if (!pos || !off) exit(1);
    for (int s = 0; s < n_seq; s++) {
        for (int i = context - n_new; i < context; i++, n++) {
            pos[n] = i;
            off[n] = (int64_t)s * context;
            pairs += i + 1;
        }
    }
    double us = time_us(f, &(gy_rows){n, pos, NULL, off});
    double tflops = 4 * pairs * f->d * f->n_head / us / 1e6;
    double kv_bytes = 2.0 * n_seq * context * f->n_kv * (f->kv_type == GY_I8 ? f->d + GY_KV_SCALE_BYTES : 2 * f->d);
    double bytes = kv_bytes + 4.0 * n * f->n_head * f->d, gbs = bytes / us / 1e3;
    printf("%-26s %4d rows, context %5d  %9.1f us  %7.1f TFLOP/s (%5.1f %%)  %8.1f GB/s (%5.1f %%)  %08x\n", what, n,
           context, us, tflops, 100 * tflops / BF16_TFLOPS, gbs, 100 * gbs / READ_GBS, result_hash(f, n));
    free(pos);
    free(off);
}

int main(int argc, char **argv) {
    gy_cuda_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = 4096, .max_k = 8192, .max_len = 65536}};
    gy_err err = {0};
    fixture f = {.n_head = 16, .n_kv = 16, .d = 128, .max_row = 4096, .n_slot = 32 * 2048};
    f.kv_type = argc > 2 && !strcmp(argv[1], "--kv") && !strcmp(argv[2], "int8") ? GY_I8 : GY_BF16;
    if (f.kv_type == GY_I8) argc -= 2, argv += 2;
    int32_t shift = argc == 5 ? atoi(argv[4]) : 0;
    if (argc >= 4) {
        f.n_head = atoi(argv[1]);
        f.n_kv = atoi(argv[2]);
        f.d = atoi(argv[3]);
    }
    if (gy_backend_cuda_create(&o, &err, &f.be) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    gy_backend *be = f.be;
    size_t row = (size_t)f.n_kv * (size_t)f.d;
    int32_t *map = malloc((size_t)f.n_slot * 4);
    if (!map) return 1;
    for (int32_t i = 0; i < f.n_slot; i++)
        map[i] = ((i / 16 * 1237 % (f.n_slot / 16)) * 16 + i % 16 + shift) % f.n_slot; /* blocks scattered */
    f.map = on_device(be, map, (size_t)f.n_slot * 4);
    const size_t rows = (size_t)f.n_slot * N_LAYER * 2;
    f.kv = f.kv_type == GY_I8 ? random_i8(&f, rows) : random_bf16(be, rows * row);
    f.q = random_bf16(be, (size_t)f.max_row * (size_t)(f.n_head + 2 * f.n_kv) * (size_t)f.d);
    f.y = on_device(be, NULL, (size_t)f.max_row * (size_t)f.n_head * (size_t)f.d * 2);
    f.pos = on_device(be, NULL, (size_t)f.max_row * 4);
    f.slot = on_device(be, NULL, (size_t)f.max_row * 4);
    f.off = on_device(be, NULL, (size_t)f.max_row * 8);
    printf("%d heads, %d KV heads, head_dim %d, BF16, KV in %s; ceilings %.0f TFLOP/s, %.0f GB/s\n", f.n_head, f.n_kv,
           f.d, f.kv_type == GY_I8 ? "int8" : "BF16", BF16_TFLOPS, READ_GBS);
    cell(&f, "prefill, causal", 1, 2048, 2048);
    cell(&f, "prefill, two prompts", 2, 2048, 2048);
    cell(&f, "prefill, causal", 1, 1024, 1024);
    cell(&f, "chunk of a prompt", 1, 2048, 256);
    cell(&f, "short run, long context", 1, 32768, 64);
    cell(&f, "decode", 32, 2048, 1);
    cell(&f, "decode", 32, 1024, 1);
    cell(&f, "decode", 128, 512, 1);
    cell(&f, "decode", 8, 2048, 1);
    cell(&f, "decode", 1, 2048, 1);
    cell(&f, "decode", 1, 128, 1);
    free(map);
    gy_backend_destroy(be);
    return 0;
}
