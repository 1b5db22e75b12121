/* The reference backend: its object, its table, and the operations that only move rows. Plain C, one obvious loop per
 * operation, never optimised: it says what right is, and every other backend is compared with it.
 * It holds nothing but its activation dtype and allocates nothing while it computes.
 */
#include "ops/ref/host.h"
#include "ops/ref/ref_ops.h"

void gy_ref_embed(gy_backend *be, const gy_embed_args *a) {
    int64_t n = a->table->k;
    for (int64_t r = 0; r < a->n_row; r++) {
        const void *row = gy_host_weight_row(a->table, gy_embed_id(a, r));
        for (int64_t i = 0; i < n; i++)
            gy_host_put(a->y, be->act, r * n + i, gy_host_get(row, a->table->dtype, i) * a->scale);
    }
}

static size_t act_bytes(const gy_backend *be) {
    return be->act == GY_F32 ? 4 : 2;
}

void gy_ref_concat(gy_backend *be, const gy_concat_args *a) {
    size_t na = (size_t)a->na * act_bytes(be), nb = (size_t)a->nb * act_bytes(be);
    for (size_t r = 0; r < (size_t)a->n_row; r++) {
        memcpy((char *)a->y + r * (na + nb), (const char *)a->a + r * na, na);
        memcpy((char *)a->y + r * (na + nb) + na, (const char *)a->b + r * nb, nb);
    }
}

static void row_copy(gy_backend *be, const gy_move_args *a, size_t dst, size_t src) {
    size_t n = (size_t)a->n * act_bytes(be);
    memcpy((char *)a->y + dst * n, (const char *)a->x + src * n, n);
}

void gy_ref_gather(gy_backend *be, const gy_move_args *a) {
    for (int64_t r = 0; r < a->n_row; r++)
        if (a->idx[r] >= 0) row_copy(be, a, (size_t)r, (size_t)a->idx[r]);
}

void gy_ref_scatter(gy_backend *be, const gy_move_args *a) {
    for (int64_t r = 0; r < a->n_row; r++)
        if (a->idx[r] >= 0) row_copy(be, a, (size_t)a->idx[r], (size_t)r);
}

void gy_ref_latent_init(gy_backend *be, const gy_latent_init_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) gy_host_latent_row(a, be->act, r);
}

static void ref_destroy(gy_backend *be) {
    gy_mem_free(be);
}

static int ref_n_member(gy_backend *be) {
    (void)be;
    return 1;
}

static void ref_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    (void)be;
    for (int32_t i = 0; i < n; i++) fn(arg, i, 0);
}

static const gy_ops ref_ops = {
    .name = "ref",
    .weight_types = GY_HOST_WEIGHT_TYPES,
    .kv_types = GY_HOST_KV_TYPES,
    .alloc = gy_host_alloc,
    .free = gy_host_free,
    .upload = gy_host_copy,
    .download = gy_host_copy,
    .sync = gy_host_sync,
    .destroy = ref_destroy,
    .mem_available = gy_host_mem_available,
    .n_member = ref_n_member,
    .parallel = ref_parallel,
    .embed = gy_ref_embed,
    .norm = gy_ref_norm,
    .linear = gy_ref_linear,
    .rope_table = gy_ref_rope_table,
    .rope_kv = gy_ref_rope_kv,
    .attn = gy_ref_attn,
    .residual = gy_ref_residual,
    .silu_mul = gy_ref_silu_mul,
    .concat = gy_ref_concat,
    .gather = gy_ref_gather,
    .scatter = gy_ref_scatter,
    .gate = gy_ref_gate,
    .latent_diff = gy_ref_latent_diff,
    .latent_init = gy_ref_latent_init,
};

gy_status gy_backend_ref_create(gy_dtype act, gy_err *err, gy_backend **out) {
    if (act != GY_F32 && act != GY_BF16)
        return gy_err_set(err, GY_E_UNSUPPORTED, "ref backend: activations in %s; use f32 or bf16", gy_dtype_name(act));
    gy_backend *be = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *be);
    if (!be) return gy_err_set(err, GY_E_NOMEM, "ref backend: no memory for %zu bytes", sizeof *be);
    be->ops = &ref_ops;
    be->act = act;
    be->is_host = 1;
    *out = be;
    return GY_OK;
}
