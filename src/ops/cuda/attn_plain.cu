/* Attention over the slot map for any activation dtype and any head_dim up to 512, in f32: what attn.cu has no products
 * for (F32, unusual heads). Slow and simple; the same contract, other bits than attn.cu.
 *
 * One warp takes one query (row, head) and walks the context in tiles of 32 positions from position 0. Lane j scores
 * position j (a chain of fused multiply-adds over the head); the tile's maximum moves the running one, sums are
 * rescaled by exp(old - new); then lane e owns elements e, e + 32, ... of the result and adds the positions in order.
 * All orders follow from the query's own position and head.
 *
 * KV in I8: scores are multiplied by their position's scale of K, weights by that of V (the sum of weights is not).
 */
#include "ops/cuda/cuda_int.cuh"

enum { TILE = 32, WARPS = 4, MAX_OWN = 16 };

typedef struct plain_args {
    const int32_t *map, *pos;
    const int64_t *map_off;
    int32_t n_row, q_stride, n_head, group, d;
    float scale;
    kv_shape shape;
} plain_args;

static __device__ inline float get(const int8_t *p, int64_t i) {
    return (float)p[i];
}

/* By what a head's numbers are multiplied; head: where they lie, kv_head of n. Scales lie anywhere. */
template <typename K> static __device__ inline float head_scale(const K *head, int32_t kv_head, int32_t n, int32_t d) {
    float s = 1.0f;
    if constexpr (sizeof(K) == 1) memcpy(&s, head + (int64_t)(n - kv_head) * d + kv_head * GY_KV_SCALE_BYTES, sizeof s);
    return s;
}

template <typename T, typename K> static __device__ inline float dot(const T *q, const K *k, int32_t d) {
    float s = 0.0f;
    for (int32_t e = 0; e < d; e++) s = __fmaf_rn(get(q, e), get(k, e), s);
    return s;
}

static __device__ inline float warp_max(float v) {
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

static __device__ inline float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

template <typename T, typename K> static __global__ void plain_kernel(plain_args a, const T *q, const K *kv, T *y) {
    constexpr int I8 = sizeof(K) == 1;
    int64_t query = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (query >= (int64_t)a.n_row * a.n_head) return;
    int32_t r = (int32_t)(query / a.n_head), head = (int32_t)(query % a.n_head), pos = a.pos[r];
    int32_t kv_head = head / a.group, n_kv = a.n_head / a.group;
    const T *qh = q + (int64_t)r * a.q_stride + (int64_t)head * a.d;
    const K *base = kv + (int64_t)kv_head * a.d;
    const int32_t *map = a.map + a.map_off[r];
    float max = -INFINITY, sum = 0.0f, acc[MAX_OWN] = {};
    for (int32_t j0 = 0; j0 <= pos; j0 += TILE) {
        int32_t slot = j0 + lane <= pos ? map[j0 + lane] : 0;
        float s = -INFINITY;
        if (j0 + lane <= pos) {
            const K *k = base + kv_offset(a.shape, slot, 0);
            s = dot(qh, k, a.d);
            if (I8) s *= head_scale(k, kv_head, n_kv, a.d);
            s *= a.scale;
        }
        float new_max = fmaxf(max, warp_max(s)), ref = new_max == -INFINITY ? 0.0f : new_max;
        float keep = expf(max - ref), weight = expf(s - ref);
        sum = sum * keep + warp_sum(weight);
        max = new_max;
        int32_t n = pos + 1 - j0 < TILE ? pos + 1 - j0 : TILE;
#pragma unroll
        for (int i = 0; i < MAX_OWN; i++) acc[i] *= keep;
        for (int32_t j = 0; j < n; j++) {
            float w = __shfl_sync(~0u, weight, j);
            const K *v = base + kv_offset(a.shape, __shfl_sync(~0u, slot, j), 1);
            if (I8) w *= head_scale(v, kv_head, n_kv, a.d);
#pragma unroll
            for (int i = 0; i < MAX_OWN; i++)
                if (lane + 32 * i < a.d) acc[i] = __fmaf_rn(w, get(v, lane + 32 * i), acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + 32 * i < a.d) put(y, query * a.d + lane + 32 * i, __fdiv_rn(acc[i], sum));
}

template <typename T, typename K> static void launch(cuda_be *c, const plain_args &a, const gy_attn_args *x) {
    unsigned grid = blocks_for((int64_t)a.n_row * a.n_head, WARPS);
    plain_kernel<<<grid, WARPS * 32, 0, c->stream>>>(a, (const T *)x->q, (const K *)x->kv->base, (T *)x->y);
}

void cuda_attn_plain(cuda_be *c, const gy_attn_args *x) {
    int32_t d = x->kv->head_dim;
    int is_f32 = c->head.be.act == GY_F32;
    if (d > 32 * MAX_OWN) {
        cuda_ok(c, cudaErrorNotSupported, "attention: head_dim above 512");
        return;
    }
    plain_args a = {x->kv->map,
                    x->rows.pos,
                    x->rows.map_off,
                    x->rows.n_row,
                    x->q_stride,
                    x->n_head,
                    x->n_head / x->kv->n_head_kv,
                    d,
                    x->scale,
                    {x->kv->n_layer, x->il, (int32_t)gy_kv_row(x->kv)}};
    if (x->kv->dtype == GY_I8)
        is_f32 ? launch<float, int8_t>(c, a, x) : launch<bf16, int8_t>(c, a, x);
    else
        is_f32 ? launch<float, float>(c, a, x) : launch<bf16, bf16>(c, a, x);
    cuda_launched(c, "attention");
}
