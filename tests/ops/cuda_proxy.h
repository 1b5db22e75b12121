/* The CUDA backend as the operation tests want it: a host backend. Each operation's arguments are laid out in a block
 * of host memory, every buffer between borders of poison, brought to the device in one copy, computed on, and brought
 * back: outputs are handed over, and every other byte (inputs, borders) must be what it was. Nothing is allocated
 * meanwhile. One at a time.
 */
#ifndef GY_TESTS_OPS_CUDA_PROXY_H
#define GY_TESTS_OPS_CUDA_PROXY_H

#include "ops/ops.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { PX_BORDER = 256, PX_CAP = 192 << 20, PX_OUT = 4 };

static struct {
    gy_backend be;
    gy_ops ops;
    gy_backend *inner;
    char *dev, *sent, *back; /* [PX_CAP] each: on the device, what was brought there, what came back */
    size_t used;
    struct {
        void *host;
        size_t at, n;
    } out[PX_OUT];
    int n_out;
} px;

static size_t px_place(const void *host, size_t n) {
    size_t at = px.used + PX_BORDER;
    px.used = (at + n + PX_BORDER + 255) / 256 * 256;
    assert_true(px.used <= PX_CAP);
    memset(px.sent + at - PX_BORDER, 0xa5, px.used - at + PX_BORDER);
    if (n) memcpy(px.sent + at, host, n);
    return at;
}

static void *px_in(const void *host, size_t n) {
    return host ? px.dev + px_place(host, n) : NULL;
}

/* Starts with what the host has there: a test's poison, or the operand of an operation in place. */
static void *px_out(void *host, size_t n) {
    size_t at = px_place(host, n);
    assert_true(px.n_out < PX_OUT);
    px.out[px.n_out].host = host;
    px.out[px.n_out].at = at;
    px.out[px.n_out++].n = n;
    return px.dev + at;
}

static void px_send(void) {
    px.inner->ops->upload(px.inner, px.dev, px.sent, px.used);
}

static void px_fetch(void) {
    px.inner->ops->download(px.inner, px.back, px.dev, px.used);
    gy_err err = {0};
    if (px.inner->ops->sync(px.inner, &err) != GY_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < px.n_out; i++) {
        if (px.out[i].n) memcpy(px.out[i].host, px.back + px.out[i].at, px.out[i].n);
        memcpy(px.back + px.out[i].at, px.sent + px.out[i].at, px.out[i].n);
    }
    if (memcmp(px.back, px.sent, px.used)) fail_msg("the device wrote outside its outputs");
    px.used = 0;
    px.n_out = 0;
}

static size_t px_act(void) {
    return px.be.act == GY_F32 ? 4 : 2;
}

/* Parts behind one another for every second shape: then they are one product. */
static gy_weight px_weight(const gy_weight *w) {
    gy_weight d = *w;
    size_t row = (size_t)w->k * (w->dtype == GY_F32 ? 4 : gy_is_quant(w->dtype) ? 1 : 2);
    int joined = (w->n + w->k) & 1;
    size_t at = joined ? px_place(w->part[0].data, 0) : 0;
    for (int i = 0; i < w->n_part; i++) {
        size_t n = (size_t)w->part[i].n * row;
        if (!joined) {
            d.part[i].data = px_in(w->part[i].data, n);
            continue;
        }
        assert_true(at + n + PX_BORDER <= PX_CAP);
        memcpy(px.sent + at, w->part[i].data, n);
        d.part[i].data = px.dev + at;
        at += n;
        memset(px.sent + at, 0xa5, PX_BORDER + 256);
        px.used = (at + PX_BORDER + 255) / 256 * 256;
    }
    for (int i = 0; i < w->n_part && gy_is_quant(w->dtype); i++)
        d.part[i].scale = px_in(w->part[i].scale, (size_t)w->part[i].n * sizeof(float));
    return d;
}

#define PX_RUN(op, args)                                                                                               \
    px_send();                                                                                                         \
    px.inner->ops->op(px.inner, args);                                                                                 \
    px_fetch()

static void px_embed(gy_backend *be, const gy_embed_args *a) {
    (void)be;
    gy_embed_args d = *a;
    gy_weight w = px_weight(a->table);
    d.table = &w;
    d.ids = px_in(a->ids, (size_t)a->n_row * 4);
    d.y = px_out(a->y, (size_t)a->n_row * (size_t)w.k * px_act());
    PX_RUN(embed, &d);
}

static void px_norm(gy_backend *be, const gy_norm_args *a) {
    (void)be;
    gy_norm_args d = *a;
    size_t n = (size_t)a->n_row * (size_t)a->n * px_act();
    d.w = px_in(a->w, (size_t)a->n * px_act());
    d.y = px_out(a->y, n);
    d.x = a->x == a->y ? d.y : px_in(a->x, n);
    PX_RUN(norm, &d);
}

static void px_linear(gy_backend *be, const gy_linear_args *a) {
    (void)be;
    gy_linear_args d = *a;
    gy_weight w = px_weight(a->w);
    d.w = &w;
    d.x = px_in(a->x, (size_t)a->n_row * (size_t)w.k * px_act());
    d.y = px_out(a->y, (size_t)a->n_row * (size_t)w.n * (a->y_f32 ? 4 : px_act()));
    PX_RUN(linear, &d);
}

static void px_rope_table(gy_backend *be, const gy_rope_table_args *a) {
    (void)be;
    gy_rope_table_args d = *a;
    size_t n = (size_t)a->n_row * (size_t)a->half * 4, rows = 1;
    for (int r = 0; r < a->n_row; r++)
        if ((size_t)a->pos[r] >= rows) rows = (size_t)a->pos[r] + 1;
    d.pos = px_in(a->pos, (size_t)a->n_row * 4);
    d.inv_freq = px_in(a->inv_freq, (size_t)a->half * 4);
    d.table = a->table ? px_in(a->table, rows * (size_t)a->half * 8) : NULL;
    d.cos_out = px_out(a->cos_out, n);
    d.sin_out = px_out(a->sin_out, n);
    PX_RUN(rope_table, &d);
}

/* What of the pool the slots below `slots` are. */
static size_t px_pool(const gy_kv_view *v, int32_t slots) {
    size_t block = (size_t)v->n_layer * 2 * GY_BLOCK_SLOTS * (size_t)gy_kv_row(v) * (v->dtype == GY_I8 ? 1 : px_act());
    return (size_t)((slots + GY_BLOCK_SLOTS - 1) / GY_BLOCK_SLOTS) * block;
}

static void px_rope_kv(gy_backend *be, const gy_rope_kv_args *a) {
    (void)be;
    gy_rope_kv_args d = *a;
    gy_kv_view kv = *a->kv;
    size_t n_row = (size_t)a->rows.n_row, dim = (size_t)kv.head_dim * px_act(), half = (size_t)kv.head_dim / 2;
    int32_t slots = 0;
    for (int r = 0; r < a->rows.n_row; r++)
        if (a->rows.slot[r] >= slots) slots = a->rows.slot[r] + 1;
    d.qkv = px_out(a->qkv, n_row * (size_t)(a->n_head + 2 * kv.n_head_kv) * dim);
    d.q_bias = px_in(a->q_bias, (size_t)a->n_head * dim);
    d.k_bias = px_in(a->k_bias, (size_t)kv.n_head_kv * dim);
    d.cos = px_in(a->cos, n_row * half * 4);
    d.sin = px_in(a->sin, n_row * half * 4);
    kv.base = px_out(kv.base, px_pool(&kv, slots));
    d.kv = &kv;
    d.rows.slot = px_in(a->rows.slot, n_row * 4);
    PX_RUN(rope_kv, &d);
}

static void px_attn(gy_backend *be, const gy_attn_args *a) {
    (void)be;
    gy_attn_args d = *a;
    gy_kv_view kv = *a->kv;
    size_t n_row = (size_t)a->rows.n_row, n_map = 0;
    int32_t slots = 0;
    for (size_t r = 0; r < n_row; r++) {
        size_t end = (size_t)a->rows.map_off[r] + (size_t)a->rows.pos[r] + 1;
        if (end > n_map) n_map = end;
    }
    for (size_t i = 0; i < n_map; i++)
        if (kv.map[i] >= slots) slots = kv.map[i] + 1;
    size_t last = n_row ? (n_row - 1) * (size_t)a->q_stride + (size_t)(a->n_head * kv.head_dim) : 0;
    d.q = px_in(a->q, last * px_act());
    kv.base = px_in(kv.base, px_pool(&kv, slots));
    kv.map = px_in(kv.map, n_map * 4);
    d.kv = &kv;
    d.rows.pos = px_in(a->rows.pos, n_row * 4);
    d.rows.map_off = px_in(a->rows.map_off, n_row * 8);
    d.y = px_out(a->y, n_row * (size_t)(a->n_head * kv.head_dim) * px_act());
    px_send();
    if (n_row) px.inner->ops->begin_rows(px.inner, &a->rows);
    px.inner->ops->attn(px.inner, &d);
    px_fetch();
}

static void px_residual(gy_backend *be, const gy_residual_args *a) {
    (void)be;
    gy_residual_args d = *a;
    size_t n = (size_t)a->n_row * (size_t)a->n * px_act();
    d.h = px_out(a->h, n);
    d.b = px_in(a->b, n);
    d.w = px_in(a->w, (size_t)a->n * px_act());
    PX_RUN(residual, &d);
}

static void px_residual_norm(gy_backend *be, const gy_residual_norm_args *a) {
    (void)be;
    gy_residual_norm_args d = *a;
    size_t n = (size_t)a->r.n_row * (size_t)a->r.n * px_act();
    d.r.h = px_out(a->r.h, n);
    d.r.b = px_in(a->r.b, n);
    d.r.w = px_in(a->r.w, (size_t)a->r.n * px_act());
    d.w = px_in(a->w, (size_t)a->r.n * px_act());
    d.y = px_out(a->y, n);
    PX_RUN(residual_norm, &d);
}

static void px_silu_mul(gy_backend *be, const gy_silu_mul_args *a) {
    (void)be;
    gy_silu_mul_args d = *a;
    size_t n = (size_t)a->n_row * (size_t)a->n_ff * px_act();
    d.gu = px_in(a->gu, 2 * n);
    d.y = px_out(a->y, n);
    PX_RUN(silu_mul, &d);
}

static void px_concat(gy_backend *be, const gy_concat_args *a) {
    (void)be;
    gy_concat_args d = *a;
    d.a = px_in(a->a, (size_t)a->n_row * (size_t)a->na * px_act());
    d.b = px_in(a->b, (size_t)a->n_row * (size_t)a->nb * px_act());
    d.y = px_out(a->y, (size_t)a->n_row * (size_t)(a->na + a->nb) * px_act());
    PX_RUN(concat, &d);
}

/* The rows that an index reaches, of the side that it indexes. */
static size_t px_reach(const gy_move_args *a) {
    size_t n = 0;
    for (int r = 0; r < a->n_row; r++)
        if ((size_t)a->idx[r] >= n) n = (size_t)a->idx[r] + 1;
    return n * (size_t)a->n * px_act();
}

static void px_gather(gy_backend *be, const gy_move_args *a) {
    (void)be;
    gy_move_args d = *a;
    d.x = px_in(a->x, px_reach(a));
    d.idx = px_in(a->idx, (size_t)a->n_row * 4);
    d.y = px_out(a->y, (size_t)a->n_row * (size_t)a->n * px_act());
    PX_RUN(gather, &d);
}

static void px_scatter(gy_backend *be, const gy_move_args *a) {
    (void)be;
    gy_move_args d = *a;
    d.x = px_in(a->x, (size_t)a->n_row * (size_t)a->n * px_act());
    d.idx = px_in(a->idx, (size_t)a->n_row * 4);
    d.y = px_out(a->y, px_reach(a));
    PX_RUN(scatter, &d);
}

static void px_gate(gy_backend *be, const gy_gate_args *a) {
    (void)be;
    gy_gate_args d = *a;
    d.x = px_in(a->x, (size_t)a->n_row * (size_t)a->n * px_act());
    d.w = px_in(a->w, (size_t)a->n * px_act());
    d.b = px_in(a->b, px_act());
    d.y = px_out(a->y, (size_t)a->n_row * 4);
    PX_RUN(gate, &d);
}

static void px_latent_diff(gy_backend *be, const gy_latent_diff_args *a) {
    (void)be;
    gy_latent_diff_args d = *a;
    size_t n = (size_t)a->n_row * (size_t)a->n * px_act();
    d.x = px_in(a->x, n);
    d.x_prev = px_in(a->x_prev, n);
    d.y = px_out(a->y, (size_t)a->n_row * 8);
    PX_RUN(latent_diff, &d);
}

static void px_latent_init(gy_backend *be, const gy_latent_init_args *a) {
    (void)be;
    gy_latent_init_args d = *a;
    d.y = px_out(a->y, (size_t)a->n_row * (size_t)a->n * px_act());
    PX_RUN(latent_init, &d);
}

/* Memory of this backend is the host's: what ref does. */
static void *px_alloc(gy_backend *be, size_t bytes) {
    (void)be;
    return gy_mem_alloc(GY_MEM_ENGINE, bytes ? bytes : 1, 1);
}
static void px_free(gy_backend *be, void *p, size_t bytes) {
    (void)be;
    (void)bytes;
    gy_mem_free(p);
}
static void px_copy(gy_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes) memcpy(dst, src, bytes);
}
static gy_status px_sync(gy_backend *be, gy_err *err) {
    (void)be;
    return px.inner->ops->sync(px.inner, err);
}
static size_t px_mem_available(gy_backend *be) {
    (void)be;
    return px.inner->ops->mem_available(px.inner);
}
static int px_n_member(gy_backend *be) {
    (void)be;
    return px.inner->ops->n_member(px.inner);
}
static void px_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    (void)be;
    px.inner->ops->parallel(px.inner, n, fn, arg);
}

static void px_destroy(gy_backend *be) {
    (void)be;
    px.inner->ops->free(px.inner, px.dev, PX_CAP);
    gy_backend_destroy(px.inner);
    px.inner = NULL;
}

/* NULL with the reason when there is no GPU. */
static __attribute__((unused)) gy_backend *px_open(gy_dtype act, int n_thread, gy_err *err) {
    gy_cuda_opts o = {.act = act, .n_thread = n_thread, .limits = {.max_row = 64, .max_k = 4608, .max_len = 512}};
    static char sent[PX_CAP], back[PX_CAP];
    assert_null(px.inner);
    if (gy_backend_cuda_create(&o, err, &px.inner) < 0) return NULL;
    px.sent = sent;
    px.back = back;
    px.dev = px.inner->ops->alloc(px.inner, PX_CAP);
    assert_non_null(px.dev);
    px.ops = (gy_ops){.name = "cuda",
                      .weight_types = px.inner->ops->weight_types,
                      .kv_types = px.inner->ops->kv_types,
                      .alloc = px_alloc,
                      .free = px_free,
                      .upload = px_copy,
                      .download = px_copy,
                      .sync = px_sync,
                      .destroy = px_destroy,
                      .mem_available = px_mem_available,
                      .n_member = px_n_member,
                      .parallel = px_parallel,
                      .embed = px_embed,
                      .norm = px_norm,
                      .linear = px_linear,
                      .rope_table = px_rope_table,
                      .rope_kv = px_rope_kv,
                      .attn = px_attn,
                      .residual = px_residual,
                      .silu_mul = px_silu_mul,
                      .concat = px_concat,
                      .gather = px_gather,
                      .scatter = px_scatter,
                      .gate = px_gate,
                      .latent_diff = px_latent_diff,
                      .latent_init = px_latent_init,
                      .residual_norm = px_residual_norm};
    px.be = (gy_backend){.ops = &px.ops, .act = act, .is_host = 1};
    return &px.be;
}

#endif
