/* Our own kernels of the GPU in both dtypes, and with KV in I8, on shapes as small as reach each of them, and none of
 * cuBLASLt's: what compute-sanitizer's racecheck, which stops inside that library and is slow, can walk
 * (tests/tools/gpu.sh). The same batch twice must give the same bits, which a race may not; whether they are right is
 * what the other tests ask.
 */
#include "ops_fixture.h"

enum {
    HEADS = 4,
    KV_HEADS = 2,
    BLOCKS = 48, /* 768 slots: two chunks of 512 */
    SLOTS = BLOCKS * GY_BLOCK_SLOTS,
    ROWS = 150, /* wide blocks of queries and a rest */
    N_LAYER = 2,
    WIDE = 520,
    N_FF = 136
};

typedef struct race {
    gy_backend *be;
    gy_dtype act;
    int is_i8; /* the KV */
    int32_t d; /* head size */
    gy_kv_view kv;
    gy_rows rows;
    void *qkv, *y, *x, *h, *w, *gate, *small;
    float *cos_out, *sin_out;
    void *out; /* host, what was read back */
} race;

static void *device_bytes(race *r, const void *host, size_t bytes) {
    void *p = r->be->ops->alloc(r->be, bytes);
    assert_non_null(p);
    if (host) r->be->ops->upload(r->be, p, host, bytes);
    return p;
}

static void *device_values(race *r, int64_t n, uint32_t stream) {
    buf b = buf_values(r->act, n, V_UNIT, stream);
    void *p = device_bytes(r, b.p, b.n);
    r->be->ops->sync(r->be, NULL);
    buf_free(&b);
    return p;
}

/* KV of n rows in I8: numbers, then scales of about 1 / 127. */
static void *device_i8(race *r, int64_t n) {
    const int64_t numbers = KV_HEADS * r->d, row = numbers + KV_HEADS * GY_KV_SCALE_BYTES;
    buf b = buf_make((size_t)(n * row));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t e = 0; e < numbers; e++)
            b.p[i * row + e] = (unsigned char)(test_rand(3, (uint32_t)(i * numbers + e)) % 255 - 127);
        for (int64_t h = 0; h < KV_HEADS; h++) {
            const float scale = (1.5f + value_of(V_UNIT, GY_F32, 10, (uint32_t)(i * KV_HEADS + h))) / 127.0f;
            memcpy(b.p + i * row + numbers + h * GY_KV_SCALE_BYTES, &scale, sizeof scale);
        }
    }
    void *p = device_bytes(r, b.p, b.n);
    r->be->ops->sync(r->be, NULL);
    buf_free(&b);
    return p;
}

/* One sequence: rows [0, ROWS) at the end of its SLOTS positions; block i lies at BLOCKS - 1 - i. */
static void race_rows(race *r) {
    int32_t map[SLOTS], pos[ROWS], slot[ROWS];
    int64_t off[ROWS] = {0};
    for (int i = 0; i < SLOTS; i++) map[i] = SLOTS - GY_BLOCK_SLOTS - i / GY_BLOCK_SLOTS * GY_BLOCK_SLOTS + i % 16;
    for (int i = 0; i < ROWS; i++) pos[i] = SLOTS - ROWS + i, slot[i] = map[pos[i]];
    r->rows = (gy_rows){.n_row = ROWS,
                        .pos = device_bytes(r, pos, sizeof pos),
                        .slot = device_bytes(r, slot, sizeof slot),
                        .map_off = device_bytes(r, off, sizeof off)};
    const int64_t rows = (int64_t)SLOTS * N_LAYER * 2;
    r->kv = (gy_kv_view){.base = r->is_i8 ? device_i8(r, rows) : device_values(r, rows * KV_HEADS * r->d, 3),
                         .map = device_bytes(r, map, sizeof map),
                         .n_map = SLOTS,
                         .dtype = r->is_i8 ? GY_I8 : r->act,
                         .n_layer = N_LAYER,
                         .n_head_kv = KV_HEADS,
                         .head_dim = r->d};
    r->be->ops->sync(r->be, NULL);
}

static void race_open(race *r, gy_dtype act, int is_i8, int32_t d, gy_backend *be) {
    *r = (race){.be = be, .act = act, .is_i8 = is_i8, .d = d};
    race_rows(r);
    r->qkv = device_values(r, (int64_t)ROWS * (HEADS + 2 * KV_HEADS) * d, 4);
    r->y = device_values(r, (int64_t)ROWS * HEADS * d, 5);
    r->x = device_values(r, (int64_t)ROWS * WIDE, 6);
    r->h = device_values(r, (int64_t)ROWS * WIDE, 7);
    r->w = device_values(r, WIDE, 8);
    r->gate = device_values(r, (int64_t)ROWS * 2 * N_FF, 9);
    r->small = device_bytes(r, NULL, ROWS * sizeof(double));
    r->cos_out = device_bytes(r, NULL, sizeof(float) * ROWS * (size_t)(d / 2));
    r->sin_out = device_bytes(r, NULL, sizeof(float) * ROWS * (size_t)(d / 2));
}

/* Rows as a host would give them (begin_rows), then attention of the whole chunk or of its last rows one by one. */
static void run_attention(race *r, int32_t from, int32_t n) {
    int32_t pos[ROWS], slot[ROWS] = {0};
    int64_t off[ROWS] = {0};
    for (int i = 0; i < n; i++) pos[i] = SLOTS - ROWS + from + i;
    const gy_rows host = {n, pos, slot, off};
    if (r->be->ops->begin_rows) r->be->ops->begin_rows(r->be, &host);
    size_t row = (size_t)(HEADS + 2 * KV_HEADS) * (size_t)r->d * dt_bytes(r->act);
    r->be->ops->attn(r->be,
                     &(gy_attn_args){.q = (char *)r->qkv + (size_t)from * row,
                                     .q_stride = (HEADS + 2 * KV_HEADS) * r->d,
                                     .n_head = HEADS,
                                     .scale = 0.125f,
                                     .kv = &r->kv,
                                     .il = 1,
                                     .rows = {n, r->rows.pos + from, r->rows.slot + from, r->rows.map_off + from},
                                     .y = (char *)r->y + (size_t)from * HEADS * (size_t)r->d * dt_bytes(r->act)});
}

static void run_rope(race *r) {
    float freq[64];
    for (int i = 0; i < r->d / 2; i++) freq[i] = 1.0f / (float)(i + 1);
    float *f = device_bytes(r, freq, sizeof(float) * (size_t)(r->d / 2));
    const gy_ops *ops = r->be->ops;
    ops->rope_table(r->be, &(gy_rope_table_args){.pos = r->rows.pos,
                                                 .inv_freq = f,
                                                 .n_row = ROWS,
                                                 .half = r->d / 2,
                                                 .cos_out = r->cos_out,
                                                 .sin_out = r->sin_out});
    ops->rope_kv(r->be, &(gy_rope_kv_args){.qkv = r->qkv,
                                           .cos = r->cos_out,
                                           .sin = r->sin_out,
                                           .kind = r->d == 96 ? GY_ROPE_PAIRS : GY_ROPE_HALF,
                                           .round_each = r->d != 96,
                                           .n_head = HEADS,
                                           .kv = &r->kv,
                                           .il = 1,
                                           .rows = r->rows});
    ops->sync(r->be, NULL);
    ops->free(r->be, f, sizeof(float) * (size_t)(r->d / 2));
}

static void run_rows(race *r) {
    const gy_ops *ops = r->be->ops;
    gy_residual_args res = {
        .h = r->h, .b = r->x, .w = r->w, .kind = GY_RESIDUAL_BRANCH, .eps = 1e-6f, .n_row = ROWS, .n = WIDE};
    ops->norm(r->be, &(gy_norm_args){.x = r->h, .w = r->w, .eps = 1e-6f, .n_row = ROWS, .n = WIDE, .y = r->x});
    ops->residual(r->be, &res);
    if (ops->residual_norm)
        ops->residual_norm(r->be, &(gy_residual_norm_args){.r = res, .w = r->w, .eps = 1e-6f, .y = r->x});
    ops->gate(r->be, &(gy_gate_args){.x = r->h, .w = r->w, .b = r->w, .n_row = ROWS, .n = WIDE, .y = r->small});
    ops->latent_diff(r->be, &(gy_latent_diff_args){.x = r->h, .x_prev = r->x, .n_row = ROWS, .n = WIDE, .y = r->small});
    ops->silu_mul(r->be, &(gy_silu_mul_args){.gu = r->gate, .n_row = ROWS, .n_ff = N_FF, .y = r->x});
}

/* F32 alone: in BF16 the first product of a shape asks cuBLASLt. */
static void run_linear(race *r) {
    if (r->act != GY_F32) return;
    gy_weight w = {.dtype = GY_F32, .n = 40, .k = N_FF, .n_part = 1, .part[0] = {r->gate, 40}};
    r->be->ops->linear(r->be, &(gy_linear_args){.x = r->h, .w = &w, .n_row = 33, .y = r->x});
}

static void read_back(race *r, void *out) {
    const size_t e = dt_bytes(r->act), n_y = ROWS * HEADS * (size_t)r->d * e, n_x = (size_t)ROWS * WIDE * e;
    r->be->ops->download(r->be, out, r->y, n_y);
    r->be->ops->download(r->be, (char *)out + n_y, r->x, n_x);
    r->be->ops->download(r->be, (char *)out + n_y + n_x, r->h, n_x);
    gy_err err = {0};
    if (r->be->ops->sync(r->be, &err) != GY_OK) fail_msg("%s", err.msg);
}

static void once(gy_dtype act, int is_i8, int32_t d, gy_backend *be, void *out) {
    race r;
    race_open(&r, act, is_i8, d, be);
    run_rope(&r);
    run_attention(&r, 0, ROWS);
    run_rows(&r);
    run_linear(&r);
    read_back(&r, out);
    for (int i = ROWS - 3; i < ROWS; i++) run_attention(&r, i, 1);
    const size_t n_y = ROWS * HEADS * (size_t)d * dt_bytes(act);
    buf again = buf_make(n_y);
    be->ops->download(be, again.p, r.y, n_y);
    same_check(again.p, out, n_y, "rows alone");
    buf_free(&again);
    void *all[] = {(void *)(uintptr_t)r.rows.pos,
                   (void *)(uintptr_t)r.rows.slot,
                   (void *)(uintptr_t)r.rows.map_off,
                   (void *)(uintptr_t)r.kv.map,
                   r.kv.base,
                   r.qkv,
                   r.y,
                   r.x,
                   r.h,
                   r.w,
                   r.gate,
                   r.small,
                   r.cos_out,
                   r.sin_out};
    for (int i = 0; i < COUNT(all); i++) be->ops->free(be, all[i], 0);
}

static void test_twice(void **state) {
    (void)state;
    static const int32_t dims[] = {64, 96, 128};
    const size_t most = (size_t)ROWS * (HEADS * 128 + 2 * WIDE) * 4;
    for (int i = 0; i < COUNT(dims) * 4; i++) {
        const gy_dtype act = acts[i % 2];
        const int is_i8 = i / 2 % 2;
        const gy_cuda_opts o = {
            .act = act, .n_thread = 1, .limits = {.max_row = ROWS, .max_k = WIDE, .max_len = SLOTS}};
        gy_backend *be = NULL;
        gy_err err = {0};
        if (gy_backend_cuda_create(&o, &err, &be) < 0) {
            print_message("    skipped: %s\n", err.msg);
            return;
        }
        buf a = buf_make(most), b = buf_make(most);
        once(act, is_i8, dims[i / 4], be, a.p);
        once(act, is_i8, dims[i / 4], be, b.p);
        same_check(a.p, b.p, most, "the same again");
        buf_free(&a);
        buf_free(&b);
        gy_backend_destroy(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_twice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
