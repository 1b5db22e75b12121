/* What follows from a KV configuration alone: sizes, the layout's name, and the check that create runs first. Pure. */
#include "kv/kv.h"

#include "base/mem.h"

#include <string.h>

enum { SCALE_BYTES = 4 }; /* of a head in I8 (ops.h says the same as GY_KV_SCALE_BYTES) */

int32_t gy_kv_n_plane(const gy_kv_config *c, gy_kv_group g) {
    if (c->n_layer[g] <= 0) return 0;
    if (g == GY_KV_BOUNDARY || c->layout == GY_KV_SHARED) return 1;
    return c->layout == GY_KV_CYCLIC ? c->cyclic_k : c->n_loop;
}

size_t gy_kv_row_bytes(const gy_kv_config *c) {
    size_t head = gy_dtype_bytes(c->dtype), n;
    if (gy_size_mul(head, (size_t)c->head_dim, &head)) return 0;
    if (c->dtype == GY_I8 && gy_size_add(head, SCALE_BYTES, &head)) return 0;
    return gy_size_mul(head, (size_t)c->n_head_kv, &n) ? 0 : n;
}

/* 0 for an empty group, and when the product does not fit (gy_kv_create refuses that). */
size_t gy_kv_block_bytes(const gy_kv_config *c, gy_kv_group g) {
    size_t n;
    if (c->n_layer[g] <= 0 || gy_size_mul((size_t)c->n_layer[g], 2 * GY_KV_BLOCK_LEN, &n)) return 0;
    return gy_size_mul(n, gy_kv_row_bytes(c), &n) ? 0 : n;
}

int64_t gy_kv_blocks_for(const gy_kv_config *c, gy_kv_group g, int64_t n_tok) {
    return (n_tok + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN * gy_kv_n_plane(c, g);
}

int gy_kv_position_serial(const gy_kv_config *c) {
    return gy_kv_n_plane(c, GY_KV_CORE) < c->n_loop;
}

/* Decimal digits only, no sign, no leading zero, at most INT32_MAX; 0 = not such a number. */
static int32_t count_parse(const char *s) {
    int64_t k = 0;
    if (*s == '0' || *s == '\0') return 0;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return 0;
        k = k * 10 + (*s - '0');
        if (k > INT32_MAX) return 0;
    }
    return (int32_t)k;
}

gy_status gy_kv_layout_parse(const char *s, gy_err *err, gy_kv_layout *layout_out, int32_t *k_out) {
    static const char cyclic[] = "cyclic:";
    int32_t k = 0;
    gy_kv_layout layout = GY_KV_CYCLIC;
    if (strcmp(s, "last_exited") == 0) {
        layout = GY_KV_LAST_EXITED;
    } else if (strcmp(s, "shared") == 0) {
        layout = GY_KV_SHARED;
    } else {
        if (strncmp(s, cyclic, sizeof cyclic - 1) == 0) k = count_parse(s + sizeof cyclic - 1);
        if (k == 0)
            return gy_err_set(err, GY_E_ARG,
                              "kv_layout: found \"%.64s\"; use last_exited, shared or cyclic:K with K planes (1 or "
                              "more, at most the model's loops)",
                              s);
    }
    *layout_out = layout;
    *k_out = k;
    return GY_OK;
}

static const char *const type_names[] = {
    [GY_KV_AUTO] = "auto", [GY_KV_F32] = "f32", [GY_KV_BF16] = "bf16", [GY_KV_INT8] = "int8"};

gy_status gy_kv_type_parse(const char *s, gy_err *err, gy_kv_type *out) {
    for (int t = GY_KV_AUTO; t <= GY_KV_INT8; t++)
        if (strcmp(s, type_names[t]) == 0) {
            *out = (gy_kv_type)t;
            return GY_OK;
        }
    return gy_err_set(err, GY_E_ARG, "kv_dtype: found \"%.64s\"; use auto (as activations), f32, bf16 or int8", s);
}

const char *gy_kv_type_name(gy_kv_type t) {
    return type_names[t];
}

gy_dtype gy_kv_type_dtype(gy_kv_type t, gy_dtype act) {
    return t == GY_KV_AUTO ? act : t == GY_KV_INT8 ? GY_I8 : t == GY_KV_BF16 ? GY_BF16 : GY_F32;
}
