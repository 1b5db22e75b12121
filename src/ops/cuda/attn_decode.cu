/* Attention of decode rows: grid (chunks of all rows, KV heads), 4 warps, up to 16 heads of a group as the queries of
 * one product. K and V of the chunk's tiles follow one another through three stages (cp.async); warp w scores positions
 * 32 w .. 32 w + 31 of a tile, the warps exchange maxima and then weights (as fragments) through shared memory, and
 * warp w sums elements w D / 4 .. of the head. 3 x 128 x D x 2 bytes and 5 KiB: two blocks a multiprocessor at D = 128,
 * so that 128 KiB or more are under way.
 */
#include "ops/cuda/attn_int.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, STAGES = 3, ROWS = 16 };

typedef struct exchange { /* between the warps, of one tile */
    uint4 weight[TILE / 16][32];
    float sum[WARPS][2][32], top[WARPS][ROWS];
} exchange;

template <int D> struct decode_smem {
    static constexpr int EXCHANGE = STAGES * panels<D>::ALL, BYTES = EXCHANGE + (int)sizeof(exchange);
};

/* What a block brings: unit 2 t is K of the chunk's tile t, 2 t + 1 is its V. */
template <int D> struct source {
    const bf16 *k;
    int64_t to_v;
    int32_t place; /* of this thread's position in the tile that comes next */
    const int32_t *map;
    int32_t first, n_pos;
    kv_shape shape;
    uint32_t smem;

    __device__ inline void look_up(int32_t tile) {
        int32_t j = first + tile * TILE + (int)threadIdx.x;
        place = j < n_pos ? place_of<D>(shape, map[j]) : -1;
    }
    __device__ inline void bring(int32_t unit) {
        uint32_t to = smem + (uint32_t)(unit % STAGES) * panels<D>::ALL;
        copy_rows<D, 4>(to, (int)threadIdx.x / 32 * 32, unit % 2 ? k + to_v : k, place);
        if (unit % 2) look_up(unit / 2 + 1);
    }
};

/* Scores of this warp's 32 positions. */
template <int D>
static __device__ inline void warp_scores(float (&s)[4][4], const uint32_t (&q)[D / 16][4], uint32_t k, int warp) {
    int lane = lane_anew();
#pragma unroll
    for (int t = 0; t < 4; t++) {
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
        for (int d = 0; d < D / 32; d++) {
            uint32_t b[4];
            ldmatrix4(b, k + unit_at<D>(warp * 32 + t * 8 + lane % 8, d * 4 + lane / 8));
            mma(s[t], q[2 * d], b[0], b[1]);
            mma(s[t], q[2 * d + 1], b[2], b[3]);
        }
    }
}

/* Adds the tile's weights times V to this warp's elements. */
template <int D>
static __device__ inline void warp_sums(float (&a)[D / 32][4], const exchange *x, uint32_t v, int warp) {
    int lane = lane_anew();
#pragma unroll
    for (int k = 0; k < TILE / 32; k++) {
        uint4 w0 = x->weight[2 * k][lane], w1 = x->weight[2 * k + 1][lane];
        const uint32_t p0[4] = {w0.x, w0.y, w0.z, w0.w}, p1[4] = {w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int n = 0; n < D / 32; n++) {
            uint32_t b[4];
            ldmatrix4_trans(b, v + unit_at<D>(k * 32 + lane, warp * (D / 32) + n));
            mma(a[n], p0, b[0], b[1]);
            mma(a[n], p1, b[2], b[3]);
        }
    }
}

/* Weights of this warp's 32 positions, left in x; f: factors of what was summed before. All warps know m. Between the
 * two halves every warp has told its maxima, so this holds a barrier. */
static __device__ inline void tile_weights(float (&s)[4][4], int32_t last, float scale, float m[2], float f[2],
                                           exchange *x, int warp) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float base[2], sum[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = -INFINITY;
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (warp * 32 + t * 8 + 2 * c + e > last) s[t][2 * i + e] = -INFINITY;
                top = fmaxf(top, s[t][2 * i + e]);
            }
        }
        top = attn_quad_max(top);
        if (c == 0) x->top[warp][g + 8 * i] = top;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = x->top[0][g + 8 * i];
#pragma unroll
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, x->top[w][g + 8 * i]);
        f[i] = attn_advance(top, scale, &m[i], &base[i]);
    }
    group_weights(s, scale, base, sum);
    x->sum[warp][0][lane] = sum[0];
    x->sum[warp][1][lane] = sum[1];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t p[4];
        pack_weights(s + 2 * k, p);
        x->weight[2 * warp + k][lane] = make_uint4(p[0], p[1], p[2], p[3]);
    }
}

template <int D>
static __device__ inline void store(const attn_args &a, const chunk_item &it, int32_t kv_head, float *part,
                                    const float (&sum)[D / 32][4], const float m[2], const float l[2], int warp) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (g + 8 * i >= a.group) continue;
        int32_t head = kv_head * a.group + g + 8 * i;
        int at = warp * (D / 4) + 2 * c;
        if (it.n_chunk == 1) {
            float none, f_old, f_new;
            attn_factors(-INFINITY, m[i], &none, &f_old, &f_new);
            float inverse = __frcp_rn(attn_join(0.0f, f_old, l[i], f_new));
            bf16 *y = a.y + ((int64_t)it.row * a.n_head + head) * D + at;
#pragma unroll
            for (int n = 0; n < D / 32; n++) {
                float s0 = attn_join(0.0f, f_old, sum[n][2 * i], f_new);
                float s1 = attn_join(0.0f, f_old, sum[n][2 * i + 1], f_new);
                *(uint32_t *)(y + n * 8) = (uint32_t)attn_result(s0, inverse) | (uint32_t)attn_result(s1, inverse)
                                                                                    << 16;
            }
        } else {
            float *to = part + ((int64_t)blockIdx.x * a.n_head + head) * (D + 2);
#pragma unroll
            for (int n = 0; n < D / 32; n++)
                *(float2 *)(to + at + n * 8) = make_float2(sum[n][2 * i], sum[n][2 * i + 1]);
            if (warp == 0 && c == 0) *(float2 *)(to + D) = make_float2(m[i], l[i]);
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2) chunk_kernel(attn_args a, const chunk_item *items, float *part) {
    extern __shared__ __align__(128) char raw[];
    static_assert(THREADS == TILE, "a thread looks up one position of a tile");
    exchange *x = (exchange *)(raw + decode_smem<D>::EXCHANGE);
    wait_for_previous();
    chunk_item it = items[blockIdx.x];
    if (it.row < 0) return; /* blank */
    int32_t kv_head = (int32_t)blockIdx.y, n_pos = it.n_pos, first = it.chunk * CHUNK;
    int32_t n_tile = (n_pos - first + TILE - 1) / TILE;
    if (n_tile > CHUNK_TILES) n_tile = CHUNK_TILES;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    source<D> from = {a.kv + (int64_t)kv_head * D,
                      (int64_t)GY_BLOCK_SLOTS * a.shape.width,
                      0,
                      a.map + it.map_off,
                      first,
                      n_pos,
                      a.shape,
                      smem_at(raw)};
    from.look_up(0);
    from.bring(0);
    copy_commit();
    from.bring(1);
    copy_commit();
    uint32_t q[D / 16][4];
    load_queries<D>(
        [&](int i) -> const bf16 * {
            if (i >= a.group) return NULL;
            return a.q + (int64_t)it.row * a.q_stride + (int64_t)(kv_head * a.group + i) * D;
        },
        q);
    float sum[D / 32][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    for (int32_t t = 0; t < n_tile; t++) {
        float s[4][4], f[2];
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 2);
        copy_commit();
        warp_scores<D>(s, q, from.smem + (uint32_t)(2 * t % STAGES) * panels<D>::ALL, warp);
        tile_weights(s, n_pos - 1 - first - t * TILE, a.scale, m, f, x, warp);
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 3);
        copy_commit();
#pragma unroll
        for (int i = 0; i < 2; i++)
            l[i] = attn_add_groups(l[i], f[i], x->sum[0][i][lane], x->sum[1][i][lane], x->sum[2][i][lane],
                                   x->sum[3][i][lane]);
#pragma unroll
        for (int n = 0; n < D / 32; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] = __fmul_rn(sum[n][e], f[e >> 1]);
        warp_sums<D>(sum, x, from.smem + (uint32_t)((2 * t + 1) % STAGES) * panels<D>::ALL, warp);
    }
    l[0] = attn_quad_sum(l[0]);
    l[1] = attn_quad_sum(l[1]);
    store<D>(a, it, kv_head, part, sum, m, l, warp);
}

template <int D> static void launch(cuda_be *c, const attn_args &a, const chunk_item *items, int32_t n, float *part) {
    dim3 grid((unsigned)n, (unsigned)(a.n_head / a.group));
    cuda_ok(c,
            cudaFuncSetAttribute(chunk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, decode_smem<D>::BYTES),
            "attention: shared memory");
    launch_early(c, chunk_kernel<D>, grid, THREADS, decode_smem<D>::BYTES, a, items, part);
}

void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_item *items, int32_t n, float *part) {
    if (d == 64)
        launch<64>(c, a, items, n, part);
    else if (d == 96)
        launch<96>(c, a, items, n, part);
    else
        launch<128>(c, a, items, n, part);
}
