/* The forwarding backend: see timed.h. One thread calls it, as with every backend. */
#include "timed.h"

#include "base/clock.h"

#include <string.h>

static timed_backend *timed_of(gy_backend *be) {
    return (timed_backend *)be;
}

/* The entry of (op, n, k), made when it is new. More kinds than there is room for are added up in the last entry. */
static timed_entry *entry_of(timed_backend *t, const char *op, int32_t n, int32_t k) {
    for (int i = 0; i < t->n_entry; i++) {
        timed_entry *e = &t->entry[i];
        if (e->n == n && e->k == k && strcmp(e->op, op) == 0) return e;
    }
    if (t->n_entry == TIMED_ENTRIES) return &t->entry[TIMED_ENTRIES - 1];
    t->entry[t->n_entry] = (timed_entry){.op = op, .n = n, .k = k};
    return &t->entry[t->n_entry++];
}

static timed_entry *add(timed_backend *t, const char *op, int32_t n, int32_t k, int64_t ns) {
    timed_entry *e = entry_of(t, op, n, k);
    if (!e->calls++ || ns < e->best_ns) e->best_ns = ns;
    e->ns += ns;
    return e;
}

static void timed_linear(gy_backend *be, const gy_linear_args *a) {
    timed_backend *t = timed_of(be);
    int64_t t0 = gy_clock_ns();
    t->inner->ops->linear(t->inner, a);
    timed_entry *e = add(t, "linear", a->w->n, a->w->k, gy_clock_ns() - t0);
    e->weight_bytes += (gy_is_grouped(a->w->dtype) ? (double)gy_quant_bytes(a->w->dtype, a->w->n, a->w->k)
                                                   : (double)a->w->n * a->w->k * (double)gy_dtype_bytes(a->w->dtype));
}

#define TIMED_OP(op, args)                                                                                             \
    static void timed_##op(gy_backend *be, const args *a) {                                                            \
        timed_backend *t = timed_of(be);                                                                               \
        int64_t t0 = gy_clock_ns();                                                                                    \
        t->inner->ops->op(t->inner, a);                                                                                \
        add(t, #op, 0, 0, gy_clock_ns() - t0);                                                                         \
    }

TIMED_OP(embed, gy_embed_args)
TIMED_OP(norm, gy_norm_args)
TIMED_OP(rope_table, gy_rope_table_args)
TIMED_OP(rope_kv, gy_rope_kv_args)
TIMED_OP(attn, gy_attn_args)
TIMED_OP(residual, gy_residual_args)
TIMED_OP(residual_norm, gy_residual_norm_args)
TIMED_OP(silu_mul, gy_silu_mul_args)
TIMED_OP(concat, gy_concat_args)
TIMED_OP(gather, gy_move_args)
TIMED_OP(scatter, gy_move_args)
TIMED_OP(gate, gy_gate_args)
TIMED_OP(latent_diff, gy_latent_diff_args)
TIMED_OP(latent_init, gy_latent_init_args)

/* Memory and waiting, what happens at load: forwarded, not counted. */
static size_t timed_prepare(gy_backend *be, gy_weight *w, int y_f32) {
    gy_backend *inner = timed_of(be)->inner;
    return inner->ops->prepare(inner, w, y_f32);
}

static void timed_unprepare(gy_backend *be, gy_weight *w) {
    gy_backend *inner = timed_of(be)->inner;
    inner->ops->unprepare(inner, w);
}

static void *timed_alloc(gy_backend *be, size_t bytes) {
    gy_backend *inner = timed_of(be)->inner;
    return inner->ops->alloc(inner, bytes);
}

static void timed_free(gy_backend *be, void *p, size_t bytes) {
    gy_backend *inner = timed_of(be)->inner;
    inner->ops->free(inner, p, bytes);
}

static void timed_upload(gy_backend *be, void *dst, const void *src, size_t bytes) {
    gy_backend *inner = timed_of(be)->inner;
    inner->ops->upload(inner, dst, src, bytes);
}

static void timed_download(gy_backend *be, void *dst, const void *src, size_t bytes) {
    gy_backend *inner = timed_of(be)->inner;
    inner->ops->download(inner, dst, src, bytes);
}

static gy_status timed_sync(gy_backend *be, gy_err *err) {
    gy_backend *inner = timed_of(be)->inner;
    return inner->ops->sync(inner, err);
}

static size_t timed_mem_available(gy_backend *be) {
    gy_backend *inner = timed_of(be)->inner;
    return inner->ops->mem_available(inner);
}

static int timed_n_member(gy_backend *be) {
    gy_backend *inner = timed_of(be)->inner;
    return inner->ops->n_member(inner);
}

static void timed_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    gy_backend *inner = timed_of(be)->inner;
    inner->ops->parallel(inner, n, fn, arg);
}

static void timed_destroy(gy_backend *be) {
    timed_fini(timed_of(be));
}

void timed_init(timed_backend *t, gy_backend *inner) {
    *t = (timed_backend){
        .ops = {.name = inner->ops->name,
                .weight_types = inner->ops->weight_types,
                .prepare = inner->ops->prepare ? timed_prepare : NULL,
                .unprepare = inner->ops->unprepare ? timed_unprepare : NULL,
                .residual_norm = inner->ops->residual_norm ? timed_residual_norm : NULL,
                .alloc = timed_alloc,
                .free = timed_free,
                .upload = timed_upload,
                .download = timed_download,
                .sync = timed_sync,
                .destroy = timed_destroy,
                .mem_available = timed_mem_available,
                .n_member = timed_n_member,
                .parallel = timed_parallel,
                .embed = timed_embed,
                .norm = timed_norm,
                .linear = timed_linear,
                .rope_table = timed_rope_table,
                .rope_kv = timed_rope_kv,
                .attn = timed_attn,
                .residual = timed_residual,
                .silu_mul = timed_silu_mul,
                .concat = timed_concat,
                .gather = timed_gather,
                .scatter = timed_scatter,
                .gate = timed_gate,
                .latent_diff = timed_latent_diff,
                .latent_init = timed_latent_init},
        .inner = inner,
    };
    t->be = (gy_backend){.ops = &t->ops, .act = inner->act, .is_host = inner->is_host};
}

void timed_fini(timed_backend *t) {
    gy_backend_destroy(t->inner);
    t->inner = NULL;
}

void timed_reset(timed_backend *t) {
    t->n_entry = 0;
    memset(t->entry, 0, sizeof t->entry);
}
