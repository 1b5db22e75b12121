/* What the two host backends share: plain memory, and the access to one element of an activation or a weight.
 * Also the two operations that are computed in f64 by libm and have no faster form worth having: the cos and sin table
 * and the initial latent state.
 * Not here: anything that a backend could do faster. Both backends include this file; models never do.
 */
#ifndef GY_OPS_REF_HOST_H
#define GY_OPS_REF_HOST_H

#include "base/mem.h"
#include "base/philox.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* From this size on memory comes in pages from the system (lazily committed, huge pages), below it from the heap. The
 * size alone decides, so that free needs no other record. */
enum { GY_HOST_PAGES_FROM = 64 << 10 };

static inline void *gy_host_alloc(gy_backend *be, size_t bytes) {
    (void)be;
    if (bytes >= GY_HOST_PAGES_FROM) return gy_mem_map_pages(GY_MEM_ENGINE, bytes);
    return gy_mem_alloc(GY_MEM_ENGINE, bytes ? bytes : 1, 1);
}

static inline void gy_host_free(gy_backend *be, void *p, size_t bytes) {
    (void)be;
    if (!p) return;
    if (bytes >= GY_HOST_PAGES_FROM) {
        gy_mem_unmap_pages(GY_MEM_ENGINE, p, bytes);
    } else {
        gy_mem_free(p);
    }
}

static inline void gy_host_copy(gy_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes) memcpy(dst, src, bytes);
}

static inline size_t gy_host_mem_available(gy_backend *be) {
    (void)be;
    return gy_mem_available();
}

static inline gy_status gy_host_sync(gy_backend *be, gy_err *err) { /* host operations cannot fail */
    (void)be;
    (void)err;
    return GY_OK;
}

enum { GY_HOST_KV_TYPES = 1 << GY_I8 };

/* What both host backends' linear takes. */
enum {
    GY_HOST_WEIGHT_TYPES =
        1 << GY_F32 | 1 << GY_F16 | 1 << GY_BF16 | 1 << GY_F8_E4M3 | 1 << GY_Q8 | 1 << GY_Q4 | 1 << GY_Q8C
};

/* Element i of an array of F32, F16 or BF16, or of a weight in E4M3 or KV in I8, which its scale still lacks; other
 * types never reach an operation in such arrays (model loading refuses them; groups are read by tensor/quant.h). */
static inline float gy_host_get(const void *p, gy_dtype t, int64_t i) {
    if (t == GY_F32) return ((const float *)p)[i];
    if (t == GY_F8_E4M3) return gy_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    if (t == GY_I8) return (float)((const int8_t *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == GY_BF16 ? gy_bf16_to_f32(h) : gy_f16_to_f32(h);
}

static inline void gy_host_put(void *p, gy_dtype act, int64_t i, float v) {
    if (act == GY_F32) {
        ((float *)p)[i] = v;
    } else {
        ((uint16_t *)p)[i] = gy_f32_to_bf16(v);
    }
}

/* round() of the contracts: to act. */
static inline float gy_host_round(gy_dtype act, float v) {
    return act == GY_BF16 ? gy_bf16_round(v) : v;
}

/* The token of a row (gy_embed_args). */
static inline int32_t gy_embed_id(const gy_embed_args *a, int64_t r) {
    int32_t id = a->ids[r];
    if (id >= 0) return id;
    const gy_drawn *d = a->drawn - 1 - id;
    return d->refused ? 0 : d->id;
}

/* Elements [at, at + n) of an array of act. */
static inline void gy_host_widen(float *v, gy_dtype act, const void *x, int64_t at, int64_t n) {
    if (act == GY_F32) {
        memcpy(v, (const float *)x + at, (size_t)n * sizeof *v);
    } else {
        for (int64_t i = 0; i < n; i++) v[i] = gy_bf16_to_f32(((const uint16_t *)x)[at + i]);
    }
}

/* A group of an input row (ops.h, gy_linear_args), all 32 of v: returns its scale. Here, so that each kernel file
 * compiles it for its instruction set; all of it is exact or rounded as IEEE says, hence the same bits in each. */
static inline float gy_host_quant_group(int8_t *q, const float *v) {
    uint32_t u[GY_GROUP], most = 0;
    float largest, scale;
    memcpy(u, v, sizeof u);
    for (int j = 0; j < GY_GROUP; j++) most = (u[j] & 0x7fffffffu) > most ? (u[j] & 0x7fffffffu) : most; /* as sizes */
    int finite = most < 0x7f800000u;
    memcpy(&largest, &most, sizeof largest);
    scale = largest / 127.0f;
    scale = scale < 0x1p-126f ? 0x1p-126f : scale;
    const float big = 0x1.8p23f; /* the sum has no bits left for fractions: to nearest even */
    for (int j = 0; j < GY_GROUP; j++) q[j] = finite ? (int8_t)(v[j] / scale + big - big) : 0;
    return finite ? scale : NAN;
}

/* The scale of n elements of act, NaN where one is not finite, and one of them in whole numbers: a head of a row of KV
 * in I8 (ops.h, gy_rope_kv_args), or an input row for weights in Q8C. Here for the same reason. */
static inline float gy_host_quant_scale(gy_dtype act, const void *x, int64_t at, int64_t n) {
    uint32_t most = 0;
    float largest, scale;
    for (int64_t i = 0; i < n; i++) {
        float v = gy_host_get(x, act, at + i);
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        u &= 0x7fffffffu;
        most = u > most ? u : most;
    }
    memcpy(&largest, &most, sizeof largest);
    scale = largest / 127.0f;
    scale = scale < 0x1p-126f ? 0x1p-126f : scale;
    return most < 0x7f800000u ? scale : NAN;
}

static inline int gy_host_quant_value(float v, float scale) {
    const float big = 0x1.8p23f;
    return isnan(scale) ? 0 : (int)(v / scale + big - big);
}

/* All of them: returns their scale. */
static inline float gy_host_quant_head(int8_t *q, gy_dtype act, const void *x, int64_t at, int64_t n) {
    float scale = gy_host_quant_scale(act, x, at, n);
    int finite = !isnan(scale);
    const float big = 0x1.8p23f;
    for (int64_t i = 0; i < n; i++) q[i] = finite ? (int8_t)(gy_host_get(x, act, at + i) / scale + big - big) : 0;
    return scale;
}

/* The scale of head ih in a row of KV in I8. */
static inline float gy_host_kv_scale(const gy_kv_view *kv, const void *row, int64_t ih) {
    float s;
    memcpy(&s, (const char *)row + (int64_t)kv->n_head_kv * kv->head_dim + ih * GY_KV_SCALE_BYTES, sizeof s);
    return s;
}

/* A row of K or V, at element `at` of x, to its place in I8. */
static inline void gy_host_kv_quant_row(const gy_kv_view *kv, void *row, gy_dtype act, const void *x, int64_t at) {
    int64_t d = kv->head_dim, n = kv->n_head_kv;
    for (int64_t ih = 0; ih < n; ih++) {
        float s = gy_host_quant_head((int8_t *)row + ih * d, act, x, at + ih * d, d);
        memcpy((char *)row + n * d + ih * GY_KV_SCALE_BYTES, &s, sizeof s);
    }
}

/* Row i of a weight that may lie in several parts. */
static inline const void *gy_host_weight_row(const gy_weight *w, int64_t i) {
    int ip = 0;
    while (i >= w->part[ip].n) i -= w->part[ip++].n;
    return (const char *)w->part[ip].data + (size_t)i * (size_t)w->k *
                                                (w->dtype == GY_F32      ? 4
                                                 : gy_is_quant(w->dtype) ? 1
                                                                         : 2);
}

/* By what row i's sums are multiplied; 1, which changes no bit, where there are no scales. */
static inline float gy_host_weight_scale(const gy_weight *w, int64_t i) {
    int ip = 0;
    if (w->dtype != GY_F8_E4M3) return 1.0f;
    while (i >= w->part[ip].n) i -= w->part[ip++].n;
    return w->part[ip].scale[i];
}

static inline const void *gy_host_row(const void *p, gy_dtype act, int64_t i, int64_t stride) {
    return (const char *)p + i * stride * (act == GY_F32 ? 4 : 2);
}

/* cos and sin of one row (ops.h, gy_rope_table_args): libm's in f64 of the f32 angle, rounded once. */
static inline void gy_host_rope_row(const gy_rope_table_args *a, int64_t r) {
    if (a->pos[r] < 0) return;
    for (int64_t i = 0; i < a->half; i++) {
        float c, s;
        if (a->table) {
            c = a->table[((int64_t)a->pos[r] * a->half + i) * 2];
            s = a->table[((int64_t)a->pos[r] * a->half + i) * 2 + 1];
        } else {
            float angle = (float)a->pos[r] * a->inv_freq[i];
            c = (float)cos((double)angle);
            s = (float)sin((double)angle);
        }
        a->cos_out[r * a->half + i] = a->round_bf16 ? gy_bf16_round(c) : c;
        a->sin_out[r * a->half + i] = a->round_bf16 ? gy_bf16_round(s) : s;
    }
}

/* One draw of Huginn's initial state (ops.h, gy_latent_init_args; huginn.md, initial state). */
static inline float gy_host_latent(uint32_t hi, uint32_t lo, float std, float mult) {
    const double tail = 0.0013498980316300933; /* Phi(-3) */
    double u = gy_rand_unit_f64(hi, lo) + 0x1p-54;
    double x = gy_normal_quantile(tail + u * ((1.0 - tail) - tail));
    return (float)(x * (double)std) * mult;
}

static inline void gy_host_latent_row(const gy_latent_init_args *a, gy_dtype act, int64_t r) {
    for (int32_t i = 0; i < a->n; i += 2) {
        uint32_t word[4];
        gy_rand_block(a->seed[r], 0, (uint32_t)a->pos[r], GY_RAND_LATENT, (uint32_t)i / 2, word);
        for (int32_t e = 0; e < 2 && i + e < a->n; e++) {
            float v = a->zero[r] ? 0.0f : gy_host_latent(word[2 * e], word[2 * e + 1], a->std, a->mult);
            gy_host_put(a->y, act, r * a->n + i + e, v);
        }
    }
}

#endif
