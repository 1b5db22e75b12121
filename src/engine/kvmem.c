/* KV memory of a model: see kvmem.h. */
#include "engine/kvmem.h"

#include "base/mem.h"

gy_kv_config gy_kvmem_config(const gy_model_desc *d, gy_dtype act, int32_t max_len) {
    return (gy_kv_config){.layout = GY_KV_LAST_EXITED,
                          .n_loop = d->n_loop,
                          .n_layer = {gy_desc_core_layers(d), gy_desc_boundary_layers(d)},
                          .n_head_kv = d->n_head_kv,
                          .head_dim = d->head_dim,
                          .dtype = act,
                          .max_seqs = 1,
                          .max_len = max_len};
}

gy_status gy_kvmem_check_type(const gy_backend *be, gy_dtype t, gy_err *err) {
    const char *act = be->act == GY_BF16 ? "bf16" : "f32";
    if (t == be->act || (t == GY_I8 && be->ops->kv_types >> t & 1)) return GY_OK;
    if (t == GY_I8)
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "kv_dtype: found int8, which backend %s does not compute with; use auto, or device cpu",
                          be->ops->name);
    return gy_err_set(err, GY_E_UNSUPPORTED, "kv_dtype: found %s while activations are in %s; use auto, %s or int8",
                      t == GY_BF16 ? "bf16" : "f32", act, act);
}

static gy_status open_arena(gy_kvmem *s, const gy_kv_config *c, gy_kv_group g, const gy_kvmem_lender *lender,
                            gy_err *err) {
    if (c->n_block[g] > INT32_MAX / GY_BLOCK_SLOTS)
        return gy_err_set(err, GY_E_LIMIT, "KV of %d blocks: slots are 32 bit numbers, at most %d blocks",
                          c->n_block[g], INT32_MAX / GY_BLOCK_SLOTS);
    if (gy_size_mul(gy_kv_block_bytes(c, g), (size_t)c->n_block[g], &s->arena_bytes[g]))
        return gy_err_set(err, GY_E_LIMIT, "KV of %d blocks: its size overflows", c->n_block[g]);
    if (!s->arena_bytes[g]) return GY_OK;
    s->arena[g] =
        lender ? lender->memory(lender->arg, (int)g, s->arena_bytes[g]) : s->be->ops->alloc(s->be, s->arena_bytes[g]);
    if (s->arena[g]) return GY_OK;
    return gy_err_set(err, GY_E_NOMEM,
                      "no memory for %zu bytes of KV; fewer sequences, shorter ones, or fewer blocks need less",
                      s->arena_bytes[g]);
}

gy_status gy_kvmem_open(gy_kvmem *s, gy_backend *be, const gy_kv_config *c, const gy_kvmem_lender *lender,
                        gy_err *err) {
    *s = (gy_kvmem){.be = be, .is_lent = lender != NULL};
    gy_status st = gy_kvmem_check_type(be, c->dtype, err);
    if (st < 0) return st;
    for (int g = 0; g < GY_KV_GROUPS && st == GY_OK; g++) st = open_arena(s, c, (gy_kv_group)g, lender, err);
    if (st == GY_OK) st = gy_kv_create(c, s->arena, err, &s->kv);
    if (st != GY_OK) {
        gy_kvmem_close(s);
        return st;
    }
    for (int g = 0; g < GY_KV_GROUPS; g++)
        s->view[g] = (gy_kv_view){.base = s->arena[g],
                                  .map = gy_kv_map(s->kv, (gy_kv_group)g),
                                  .n_map = gy_kv_map_len(s->kv, (gy_kv_group)g),
                                  .dtype = c->dtype,
                                  .n_layer = c->n_layer[g],
                                  .n_head_kv = c->n_head_kv,
                                  .head_dim = c->head_dim};
    return GY_OK;
}

void gy_kvmem_close(gy_kvmem *s) {
    gy_kv_destroy(s->kv);
    for (int g = 0; g < GY_KV_GROUPS && s->be && !s->is_lent; g++)
        s->be->ops->free(s->be, s->arena[g], s->arena_bytes[g]);
    *s = (gy_kvmem){.be = NULL};
}
