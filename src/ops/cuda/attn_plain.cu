/* Attention over the slot map for any activation dtype and any head_dim up to 512, in f32: what attn.cu has no products
 * for (F32, unusual heads). Slow and simple; the same contract, other bits than attn.cu.
 *
 * One warp takes one query (row, head) and walks the context in tiles of 32 positions from position 0. Lane j scores
 * position j (a chain of fused multiply-adds over the head); the tile's maximum moves the running one, sums are
 * rescaled by exp(old - new); then lane e owns elements e, e + 32, ... of the result and adds the positions in order.
 * All orders follow from the query's own position and head.
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

template <typename T> static __device__ inline float dot(const T *q, const T *k, int32_t d) {
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

template <typename T> static __global__ void plain_kernel(plain_args a, const T *q, const T *kv, T *y) {
    int64_t query = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (query >= (int64_t)a.n_row * a.n_head) return;
    int32_t r = (int32_t)(query / a.n_head), head = (int32_t)(query % a.n_head), pos = a.pos[r];
    const T *qh = q + (int64_t)r * a.q_stride + (int64_t)head * a.d, *base = kv + (int64_t)(head / a.group) * a.d;
    const int32_t *map = a.map + a.map_off[r];
    float max = -INFINITY, sum = 0.0f, acc[MAX_OWN] = {};
    for (int32_t j0 = 0; j0 <= pos; j0 += TILE) {
        int32_t slot = j0 + lane <= pos ? map[j0 + lane] : 0;
        float s = j0 + lane <= pos ? dot(qh, base + kv_offset(a.shape, slot, 0), a.d) * a.scale : -INFINITY;
        float new_max = fmaxf(max, warp_max(s)), ref = new_max == -INFINITY ? 0.0f : new_max;
        float keep = expf(max - ref), weight = expf(s - ref);
        sum = sum * keep + warp_sum(weight);
        max = new_max;
        int32_t n = pos + 1 - j0 < TILE ? pos + 1 - j0 : TILE;
#pragma unroll
        for (int i = 0; i < MAX_OWN; i++) acc[i] *= keep;
        for (int32_t j = 0; j < n; j++) {
            float w = __shfl_sync(~0u, weight, j);
            const T *v = base + kv_offset(a.shape, __shfl_sync(~0u, slot, j), 1);
#pragma unroll
            for (int i = 0; i < MAX_OWN; i++)
                if (lane + 32 * i < a.d) acc[i] = __fmaf_rn(w, get(v, lane + 32 * i), acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + 32 * i < a.d) put(y, query * a.d + lane + 32 * i, __fdiv_rn(acc[i], sum));
}

void cuda_attn_plain(cuda_be *c, const gy_attn_args *x) {
    int32_t d = x->kv->head_dim;
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
                    {x->kv->n_layer, x->il, x->kv->n_head_kv * d}};
    unsigned grid = blocks_for((int64_t)x->rows.n_row * x->n_head, WARPS);
    if (c->head.be.act == GY_F32)
        plain_kernel<<<grid, WARPS * 32, 0, c->stream>>>(a, (const float *)x->q, (const float *)x->kv->base,
                                                         (float *)x->y);
    else
        plain_kernel<<<grid, WARPS * 32, 0, c->stream>>>(a, (const bf16 *)x->q, (const bf16 *)x->kv->base,
                                                         (bf16 *)x->y);
    cuda_launched(c, "attention");
}
