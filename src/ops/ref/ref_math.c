/* The reference arithmetic. Every sum runs in index order.
 *
 * Where f32 and where f64: dot products (linear, gate, q.k) and the weighted sum of V are f32, as the contracts say.
 * The mean of squares of a norm, the sum of softmax weights and both norms of latent_diff are f64, because a sequential
 * f32 sum of some thousand equal-signed terms would make the definition itself wrong by more than the rounding that
 * the contracts place after it; any sensible f32 or f64 order of a faster backend then lies close to this one.
 * Transcendentals are libm's, in f32; cos and sin of the f32 angle are libm's in f64, rounded once.
 */
#include "ops/ref/host.h"
#include "ops/ref/ref_ops.h"

#include <math.h>

enum { GROUPED_OUT = 256 }; /* outputs that share the quantising of a group */

/* Outputs [lo, hi) of row r, groups in order of k. */
static void grouped_row(gy_backend *be, const gy_linear_args *a, int64_t r, int64_t lo, int64_t hi) {
    const gy_weight *w = a->w;
    float sum[GROUPED_OUT] = {0};
    for (int64_t g = 0, j = 0; j < w->k; g++, j += GY_GROUP) {
        int64_t n = w->k - j < GY_GROUP ? w->k - j : GY_GROUP;
        float v[GY_GROUP] = {0};
        int8_t q[GY_GROUP];
        gy_host_widen(v, be->act, a->x, r * w->k + j, n);
        float scale = gy_host_quant_group(q, v);
        for (int64_t i = lo; i < hi; i++) {
            int32_t dot = 0;
            for (int64_t e = 0; e < n; e++) dot += q[e] * gy_quant_value(w->part[0].data, w->dtype, w->k, i, j + e);
            float s = scale * gy_quant_scale(w->part[0].data, w->dtype, w->k, i, g);
            sum[i - lo] = fmaf((float)dot, s, sum[i - lo]);
        }
    }
    for (int64_t i = lo; i < hi; i++)
        gy_host_put(a->y, a->y_f32 ? GY_F32 : be->act, r * w->n + i, gy_host_round(be->act, sum[i - lo]));
}

/* Q8C: quantises element by element for each piece of outputs, as there is no memory for a row. */
static void channel_row(gy_backend *be, const gy_linear_args *a, int64_t r, int64_t lo, int64_t hi) {
    const gy_weight *w = a->w;
    int32_t dot[GROUPED_OUT] = {0};
    float scale = gy_host_quant_scale(be->act, a->x, r * w->k, w->k);
    for (int64_t j = 0; j < w->k; j++) {
        int q = gy_host_quant_value(gy_host_get(a->x, be->act, r * w->k + j), scale);
        for (int64_t i = lo; i < hi; i++) dot[i - lo] += q * gy_quant_value(w->part[0].data, w->dtype, w->k, i, j);
    }
    for (int64_t i = lo; i < hi; i++) {
        float v = (float)dot[i - lo] * (scale * gy_quant_scale(w->part[0].data, w->dtype, w->k, i, 0));
        gy_host_put(a->y, a->y_f32 ? GY_F32 : be->act, r * w->n + i, gy_host_round(be->act, v));
    }
}

static void linear_grouped(gy_backend *be, const gy_linear_args *a) {
    void (*row)(gy_backend * be, const gy_linear_args *a, int64_t r, int64_t lo, int64_t hi) =
        a->w->dtype == GY_Q8C ? channel_row : grouped_row;
    for (int64_t r = 0; r < a->n_row; r++)
        for (int64_t i = 0; i < a->w->n; i += GROUPED_OUT)
            row(be, a, r, i, a->w->n - i < GROUPED_OUT ? a->w->n : i + GROUPED_OUT);
}

void gy_ref_linear(gy_backend *be, const gy_linear_args *a) {
    const gy_weight *w = a->w;
    if (gy_is_grouped(w->dtype)) {
        linear_grouped(be, a);
        return;
    }
    for (int64_t r = 0; r < a->n_row; r++) {
        for (int64_t i = 0; i < w->n; i++) {
            const void *row = gy_host_weight_row(w, i);
            float sum = 0.0f, scale = gy_host_weight_scale(w, i);
            for (int64_t j = 0; j < w->k; j++)
                sum += gy_host_get(a->x, be->act, r * w->k + j) * gy_host_get(row, w->dtype, j);
            gy_host_put(a->y, a->y_f32 ? GY_F32 : be->act, r * w->n + i, gy_host_round(be->act, sum * scale));
        }
    }
}

/* 1 / sqrt(mean of squares + eps) of row r. */
static float rms_scale(const void *x, gy_dtype t, int64_t r, int64_t n, float eps) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double v = gy_host_get(x, t, r * n + i);
        sum += v * v;
    }
    return 1.0f / sqrtf((float)(sum / (double)n) + eps);
}

void gy_ref_norm(gy_backend *be, const gy_norm_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) {
        float scale = rms_scale(a->x, be->act, r, a->n, a->eps);
        for (int64_t i = 0; i < a->n; i++) {
            float v = gy_host_round(be->act, gy_host_get(a->x, be->act, r * a->n + i) * scale);
            gy_host_put(a->y, be->act, r * a->n + i, v * gy_host_get(a->w, be->act, i));
        }
    }
}

static void residual_add(gy_backend *be, const gy_residual_args *a, int64_t r) {
    for (int64_t i = r * a->n; i < (r + 1) * a->n; i++)
        gy_host_put(a->h, be->act, i, gy_host_get(a->h, be->act, i) + gy_host_get(a->b, be->act, i));
}

static void residual_branch(gy_backend *be, const gy_residual_args *a, int64_t r) {
    float scale = rms_scale(a->b, be->act, r, a->n, a->eps);
    for (int64_t i = 0; i < a->n; i++) {
        float v = gy_host_round(be->act, gy_host_get(a->b, be->act, r * a->n + i) * scale);
        v = gy_host_round(be->act, v * gy_host_get(a->w, be->act, i));
        gy_host_put(a->h, be->act, r * a->n + i, gy_host_get(a->h, be->act, r * a->n + i) + v);
    }
}

void gy_ref_residual(gy_backend *be, const gy_residual_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) {
        if (a->kind == GY_RESIDUAL_BRANCH) {
            residual_branch(be, a, r);
        } else {
            residual_add(be, a, r);
        }
    }
    if (a->kind == GY_RESIDUAL_SUM) {
        gy_norm_args norm = {.x = a->h, .w = a->w, .eps = a->eps, .n_row = a->n_row, .n = a->n, .y = a->h};
        gy_ref_norm(be, &norm);
    }
}

void gy_ref_silu_mul(gy_backend *be, const gy_silu_mul_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) {
        for (int64_t i = 0; i < a->n_ff; i++) {
            float g = gy_host_get(a->gu, be->act, r * 2 * a->n_ff + i);
            float u = gy_host_get(a->gu, be->act, (r * 2 + 1) * a->n_ff + i);
            float s = gy_host_round(be->act, g / (1.0f + expf(-g)));
            gy_host_put(a->y, be->act, r * a->n_ff + i, s * u);
        }
    }
}

void gy_ref_gate(gy_backend *be, const gy_gate_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < a->n; i++)
            sum += gy_host_get(a->x, be->act, r * a->n + i) * gy_host_get(a->w, be->act, i);
        a->y[r] = gy_host_round(be->act, sum + gy_host_get(a->b, be->act, 0));
    }
}

void gy_ref_latent_diff(gy_backend *be, const gy_latent_diff_args *a) {
    for (int64_t r = 0; r < a->n_row; r++) {
        double diff = 0.0, norm = 0.0;
        for (int64_t i = r * a->n; i < (r + 1) * a->n; i++) {
            double x = gy_host_get(a->x, be->act, i), d = x - gy_host_get(a->x_prev, be->act, i);
            diff += d * d;
            norm += x * x;
        }
        norm = sqrt(norm);
        a->y[r] = sqrt(diff) / (norm < 1e-9 ? 1e-9 : norm);
    }
}

void gy_ref_rope_table(gy_backend *be, const gy_rope_table_args *a) {
    (void)be;
    for (int64_t r = 0; r < a->n_row; r++) gy_host_rope_row(a, r);
}

/* One head in place: bias, then the rotation of each pair. */
static void rope_head(gy_backend *be, const gy_rope_kv_args *a, int64_t r, void *x, int64_t at, const void *bias,
                      int64_t bias_at) {
    int64_t half = a->kv->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        int64_t i0 = a->kind == GY_ROPE_HALF ? i : 2 * i, i1 = a->kind == GY_ROPE_HALF ? i + half : 2 * i + 1;
        float v0 = gy_host_get(x, be->act, at + i0), v1 = gy_host_get(x, be->act, at + i1);
        if (bias) {
            v0 = gy_host_round(be->act, v0 + gy_host_get(bias, be->act, bias_at + i0));
            v1 = gy_host_round(be->act, v1 + gy_host_get(bias, be->act, bias_at + i1));
        }
        float c = a->cos[r * half + i], s = a->sin[r * half + i];
        float p0 = v0 * c, p1 = v1 * s, p2 = v1 * c, p3 = v0 * s;
        if (a->round_each) {
            p0 = gy_host_round(be->act, p0), p1 = gy_host_round(be->act, p1);
            p2 = gy_host_round(be->act, p2), p3 = gy_host_round(be->act, p3);
        }
        gy_host_put(x, be->act, at + i0, p0 - p1);
        gy_host_put(x, be->act, at + i1, p2 + p3);
    }
}

/* A row of K or V from element `from` of qkv to element `to` of the KV. */
static void kv_put(gy_backend *be, const gy_rope_kv_args *a, int64_t to, int64_t from) {
    if (a->kv->dtype == GY_I8) {
        gy_host_kv_quant_row(a->kv, (char *)a->kv->base + to, be->act, a->qkv, from);
        return;
    }
    for (int64_t i = 0; i < (int64_t)a->kv->n_head_kv * a->kv->head_dim; i++)
        gy_host_put(a->kv->base, be->act, to + i, gy_host_get(a->qkv, be->act, from + i));
}

void gy_ref_rope_kv(gy_backend *be, const gy_rope_kv_args *a) {
    int64_t d = a->kv->head_dim, d_kv = a->kv->n_head_kv * d, stride = (int64_t)a->n_head * d + 2 * d_kv;
    for (int64_t r = 0; r < a->rows.n_row; r++) {
        int64_t q = r * stride, k = q + (int64_t)a->n_head * d, v = k + d_kv;
        int32_t slot = a->rows.slot[r];
        if (slot < 0) continue;
        for (int32_t ih = 0; ih < a->n_head; ih++) rope_head(be, a, r, a->qkv, q + ih * d, a->q_bias, ih * d);
        for (int32_t ih = 0; ih < a->kv->n_head_kv; ih++) rope_head(be, a, r, a->qkv, k + ih * d, a->k_bias, ih * d);
        kv_put(be, a, gy_kv_offset(a->kv, slot, a->il, 0), k);
        kv_put(be, a, gy_kv_offset(a->kv, slot, a->il, 1), v);
    }
}

/* One query head against one KV head. The scores are computed three times (maximum, sum, weighted V) instead of being
 * kept: the reference has no workspace, and a context has no bound here. */
typedef struct attn_head {
    const gy_attn_args *a;
    gy_dtype act;
    int64_t r;       /* row */
    int64_t q_at;    /* element offset of the query head in a->q */
    int64_t head_kv; /* the KV head */
    float max;       /* of the scores */
    double sum;      /* of exp(score - max) */
} attn_head;

/* Element offset of position j's row. */
static int64_t attn_row(const attn_head *h, int64_t j, int kv) {
    int32_t slot = h->a->kv->map[h->a->rows.map_off[h->r] + j];
    return gy_kv_offset(h->a->kv, slot, h->a->il, kv);
}

/* By what the row's elements are multiplied; 1, which changes no bit, where there are no scales. */
static float attn_row_scale(const attn_head *h, int64_t row) {
    if (h->a->kv->dtype != GY_I8) return 1.0f;
    return gy_host_kv_scale(h->a->kv, (const char *)h->a->kv->base + row, h->head_kv);
}

static float attn_score(const attn_head *h, int64_t j) {
    const gy_kv_view *kv = h->a->kv;
    int64_t row = attn_row(h, j, 0), k = row + h->head_kv * kv->head_dim;
    float dot = 0.0f;
    for (int64_t i = 0; i < kv->head_dim; i++)
        dot += gy_host_get(h->a->q, h->act, h->q_at + i) * gy_host_get(kv->base, kv->dtype, k + i);
    return dot * attn_row_scale(h, row) * h->a->scale;
}

enum { ATTN_CHUNK = 256 }; /* elements of V summed together: one pass over the scores for any usual head_dim */

static void attn_values(const attn_head *h, int64_t y_at) {
    const gy_kv_view *kv = h->a->kv;
    float acc[ATTN_CHUNK];
    for (int64_t i0 = 0; i0 < kv->head_dim; i0 += ATTN_CHUNK) {
        int64_t n = kv->head_dim - i0 < ATTN_CHUNK ? kv->head_dim - i0 : ATTN_CHUNK;
        for (int64_t i = 0; i < n; i++) acc[i] = 0.0f;
        for (int64_t j = 0; j <= h->a->rows.pos[h->r]; j++) {
            int64_t row = attn_row(h, j, 1), v = row + h->head_kv * kv->head_dim + i0;
            float weight = expf(attn_score(h, j) - h->max) * attn_row_scale(h, row);
            for (int64_t i = 0; i < n; i++) acc[i] += weight * gy_host_get(kv->base, kv->dtype, v + i);
        }
        for (int64_t i = 0; i < n; i++) gy_host_put(h->a->y, h->act, y_at + i0 + i, (float)(acc[i] / h->sum));
    }
}

void gy_ref_attn(gy_backend *be, const gy_attn_args *a) {
    int64_t d = a->kv->head_dim, n_group = a->n_head / a->kv->n_head_kv;
    for (int64_t r = 0; r < a->rows.n_row; r++) {
        for (int64_t ih = 0; a->rows.pos[r] >= 0 && ih < a->n_head; ih++) {
            attn_head h = {.a = a,
                           .act = be->act,
                           .r = r,
                           .q_at = r * a->q_stride + ih * d,
                           .head_kv = ih / n_group,
                           .max = -INFINITY};
            for (int64_t j = 0; j <= a->rows.pos[r]; j++) h.max = fmaxf(h.max, attn_score(&h, j));
            for (int64_t j = 0; j <= a->rows.pos[r]; j++) h.sum += (double)expf(attn_score(&h, j) - h.max);
            attn_values(&h, (r * a->n_head + ih) * d);
        }
    }
}
