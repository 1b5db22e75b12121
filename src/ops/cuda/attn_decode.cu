/* Attention of decode rows: a thread block for each chunk of a row and KV head, 4 warps, up to 16 heads of a group as
 * the queries of one product. K and V of the chunk's tiles follow one another through three stages (cp.async); warp w
 * scores positions 32 w .. 32 w + 31 of a tile, the warps exchange maxima and then weights (as fragments) through
 * shared memory, and warp w sums a quarter of the head's elements.
 *
 * KV in BF16 (bf16_kv): grid (chunks of all rows, KV heads), elements w D / 4 ... 3 x 128 x D x 2 bytes and 5 KiB: two
 * blocks a multiprocessor at D = 128, so that 128 KiB or more are under way.
 *
 * KV in I8 (i8_kv; attn_i8.cuh): stages hold the rows' bytes, a position in PITCH of them (an odd number of 16 bytes:
 * eight positions lie in different banks), K's and V's scale behind K's numbers. Numbers become BF16 on the way from
 * shared memory into fragments: of K two neighbours at a time, in the order of the elements; of V by ldmatrix of two
 * neighbours as one element, so that the even and the odd of 16 elements are a product each. Warp w sums 16 elements of
 * each 64. Grid: heads first, because eight of them read their scales from the same 32 bytes. 3 blocks a
 * multiprocessor, 100 KiB under way.
 */
#include "ops/cuda/attn_i8.cuh"
#include "ops/cuda/attn_int.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, STAGES = 3, ROWS = 16 };
static_assert((int)THREADS == (int)TILE, "a thread looks up one position of a tile");

typedef struct exchange { /* between the warps, of one tile */
    uint4 weight[TILE / 16][32];
    float sum[WARPS][2][32], top[WARPS][ROWS];
} exchange;

/* ---- KV in BF16 -------------------------------------------------------------------------------------------------- */

template <int D> struct bf16_kv {
    static constexpr int STAGE = panels<D>::ALL, BLOCKS = 2;
    typedef float sums[D / 32][4];
    const bf16 *k;
    int64_t to_v;

    __device__ inline bf16_kv(const attn_args &a, int32_t kv_head)
        : k(a.kv + (int64_t)kv_head * D), to_v((int64_t)GY_BLOCK_SLOTS * a.shape.width) {}
    static __device__ inline void block_of(const attn_args &, int32_t *item, int32_t *kv_head) {
        *item = (int32_t)blockIdx.x;
        *kv_head = (int32_t)blockIdx.y;
    }
    static __device__ inline int32_t place(kv_shape shape, int32_t slot) { return place_of<D>(shape, slot); }
    __device__ inline void bring(uint32_t to, int is_v, int32_t place) const {
        copy_rows<D, 4>(to, (int)threadIdx.x / 32 * 32, is_v ? k + to_v : k, place);
    }

    /* Scores of this warp's 32 positions. */
    static __device__ inline void scores(float (&s)[4][4], const uint32_t (&q)[D / 16][4], uint32_t k, int warp) {
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
    static __device__ inline void scale_weights(float (&)[4][4], uint32_t, int) {}

    /* Adds the tile's weights times V to this warp's elements. */
    static __device__ inline void add(sums &a, const exchange *x, uint32_t v, int warp) {
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
    /* f(element, its sum, the next one's) of what this lane has of row i of its two. */
    template <typename F> static __device__ inline void each_two(const sums &a, int i, int warp, F f) {
        int at = warp * (D / 4) + 2 * ((int)threadIdx.x % 4);
#pragma unroll
        for (int n = 0; n < D / 32; n++) f(at + n * 8, a[n][2 * i], a[n][2 * i + 1]);
    }
};

/* ---- KV in I8 ---------------------------------------------------------------------------------------------------- */

template <int N> static __device__ inline void copy_some(uint32_t to, const void *from, int valid) {
    if constexpr (N == 16)
        copy16(to, from, valid);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(valid ? N : 0)
                     : "memory");
}

template <int D> struct i8_kv {
    static constexpr int PITCH = (D / 16 | 1) * 16, STAGE = TILE * PITCH, BLOCKS = 3;
    static constexpr int GROUPS = D / 16, OWN = (GROUPS + WARPS - 1) / WARPS; /* of 16 elements */
    static_assert(PITCH - D >= 2 * GY_KV_SCALE_BYTES, "room for the scales");
    typedef float sums[2 * OWN][4]; /* of each group the even elements, the odd ones */
    i8_head<D> head;
    int step;

    __device__ inline i8_kv(const attn_args &a, int32_t kv_head) : head(a.kv, a.shape, kv_head), step(head.step()) {}
    static __device__ inline void block_of(const attn_args &a, int32_t *item, int32_t *kv_head) {
        int32_t n = a.n_head / a.group;
        *item = (int32_t)blockIdx.x / n;
        *kv_head = (int32_t)blockIdx.x % n;
    }
    static __device__ inline int32_t place(kv_shape shape, int32_t slot) { return i8_row_of(shape, slot); }

    /* Numbers of the warp's 32 positions, N bytes at a time. */
    template <int N> __device__ inline void bring_numbers(uint32_t to, int32_t row) const {
        constexpr int UNITS = D / N;
        int lane = lane_anew(), first = (int)threadIdx.x / 32 * 32;
#pragma unroll 4
        for (int i = 0; i < UNITS; i++) {
            int p = (i * 32 + lane) / UNITS, u = (i * 32 + lane) % UNITS;
            int32_t at = __shfl_sync(~0u, row, p);
            copy_some<N>(to + (uint32_t)((first + p) * PITCH + u * N), head.numbers_of(at < 0 ? 0 : at) + u * N,
                         at >= 0);
        }
    }
    __device__ inline void bring(uint32_t to, int is_v, int32_t place) const {
        int32_t k = place < 0 ? 0 : place, row = place < 0 ? -1 : is_v ? place + GY_BLOCK_SLOTS : place;
        if (step == 16)
            bring_numbers<16>(to, row);
        else if (step == 8)
            bring_numbers<8>(to, row);
        else
            bring_numbers<4>(to, row);
        if (is_v) return;
        uint32_t scales = to + (uint32_t)((int)threadIdx.x * PITCH + D);
        copy_some<4>(scales, head.scale_of(k), place >= 0);
        copy_some<4>(scales + GY_KV_SCALE_BYTES, head.scale_of(k + GY_BLOCK_SLOTS), place >= 0);
    }

    static __device__ inline void scores(float (&s)[4][4], const uint32_t (&q)[D / 16][4], uint32_t k, int warp) {
        int lane = lane_anew();
        uint32_t own = k + (uint32_t)(warp * 32 * PITCH), at = own + (uint32_t)(lane / 4 * PITCH + lane % 4 * 2);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t two = at + (uint32_t)(t * 8 * PITCH + d * 16);
                mma(s[t], q[d], widen_i8(shared_two(two), PICK_01), widen_i8(shared_two(two + 8), PICK_01));
            }
        }
        scale_columns<PITCH>(s, own + D);
    }
    static __device__ inline void scale_weights(float (&s)[4][4], uint32_t k, int warp) {
        scale_columns<PITCH>(s, k + (uint32_t)(warp * 32 * PITCH + D + GY_KV_SCALE_BYTES));
    }

    static __device__ inline void add(sums &a, const exchange *x, uint32_t v, int warp) {
        int lane = lane_anew();
#pragma unroll
        for (int k = 0; k < TILE / 32; k++) {
            uint4 w0 = x->weight[2 * k][lane], w1 = x->weight[2 * k + 1][lane];
            const uint32_t p0[4] = {w0.x, w0.y, w0.z, w0.w}, p1[4] = {w1.x, w1.y, w1.z, w1.w};
#pragma unroll
            for (int n = 0; n < OWN; n++) {
                int group = warp + WARPS * n;
                uint32_t b[4];
                if (GROUPS % WARPS && group >= GROUPS) break;
                ldmatrix4_trans(b, v + (uint32_t)((k * 32 + lane) * PITCH + group * 16));
                mma(a[2 * n], p0, widen_i8(b[0], PICK_02), widen_i8(b[1], PICK_02));
                mma(a[2 * n], p1, widen_i8(b[2], PICK_02), widen_i8(b[3], PICK_02));
                mma(a[2 * n + 1], p0, widen_i8(b[0], PICK_13), widen_i8(b[1], PICK_13));
                mma(a[2 * n + 1], p1, widen_i8(b[2], PICK_13), widen_i8(b[3], PICK_13));
            }
        }
    }
    template <typename F> static __device__ inline void each_two(const sums &a, int i, int warp, F f) {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            int group = warp + WARPS * n, at = group * 16 + 4 * ((int)threadIdx.x % 4);
            if (GROUPS % WARPS && group >= GROUPS) break;
            f(at, a[2 * n][2 * i], a[2 * n + 1][2 * i]);
            f(at + 2, a[2 * n][2 * i + 1], a[2 * n + 1][2 * i + 1]);
        }
    }
};

/* ---- both -------------------------------------------------------------------------------------------------------- */

template <typename K> struct decode_smem {
    static constexpr int EXCHANGE = STAGES * K::STAGE, BYTES = EXCHANGE + (int)sizeof(exchange);
    static_assert(EXCHANGE % 128 == 0, "exchange is aligned");
};

/* What a block brings: unit 2 t is K of the chunk's tile t, 2 t + 1 is its V. */
template <typename K> struct source {
    K kv;
    int32_t place; /* of this thread's position in the tile that comes next; -1: none, zeros */
    const int32_t *map;
    int32_t first, n_pos;
    kv_shape shape;
    uint32_t smem;

    __device__ inline uint32_t at(int32_t unit) const { return smem + (uint32_t)(unit % STAGES) * K::STAGE; }
    __device__ inline void look_up(int32_t tile) {
        int32_t j = first + tile * TILE + (int)threadIdx.x;
        place = j < n_pos ? K::place(shape, map[j]) : -1;
    }
    __device__ inline void bring(int32_t unit) {
        kv.bring(at(unit), unit % 2, place);
        if (unit % 2) look_up(unit / 2 + 1);
    }
};

/* Weights of this warp's 32 positions, left in x; f: factors of what was summed before. All warps know m. Between the
 * two halves every warp has told its maxima, so this holds a barrier. k_at: the tile's K. */
template <typename K>
static __device__ inline void tile_weights(float (&s)[4][4], int32_t last, float scale, float m[2], float f[2],
                                           exchange *x, uint32_t k_at, int warp) {
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
    K::scale_weights(s, k_at, warp);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t p[4];
        pack_weights(s + 2 * k, p);
        x->weight[2 * warp + k][lane] = make_uint4(p[0], p[1], p[2], p[3]);
    }
}

template <int D, typename K>
static __device__ inline void store(const attn_args &a, const chunk_item &it, int32_t item, int32_t kv_head,
                                    float *part, const typename K::sums &sum, const float m[2], const float l[2],
                                    int warp) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (g + 8 * i >= a.group) continue;
        int32_t head = kv_head * a.group + g + 8 * i;
        if (it.n_chunk == 1) {
            float none, f_old, f_new;
            attn_factors(-INFINITY, m[i], &none, &f_old, &f_new);
            float inverse = __frcp_rn(attn_join(0.0f, f_old, l[i], f_new));
            bf16 *y = a.y + ((int64_t)it.row * a.n_head + head) * D;
            K::each_two(sum, i, warp, [&](int at, float v0, float v1) {
                float s0 = attn_join(0.0f, f_old, v0, f_new);
                float s1 = attn_join(0.0f, f_old, v1, f_new);
                *(uint32_t *)(y + at) = (uint32_t)attn_result(s0, inverse) | (uint32_t)attn_result(s1, inverse) << 16;
            });
        } else {
            float *to = part + ((int64_t)item * a.n_head + head) * (D + 2);
            K::each_two(sum, i, warp, [&](int at, float v0, float v1) { *(float2 *)(to + at) = make_float2(v0, v1); });
            if (warp == 0 && c == 0) *(float2 *)(to + D) = make_float2(m[i], l[i]);
        }
    }
}

template <int D, typename K>
static __global__ void __launch_bounds__(THREADS, K::BLOCKS)
    chunk_kernel(attn_args a, const chunk_item *items, float *part) {
    extern __shared__ __align__(128) char raw[];
    exchange *x = (exchange *)(raw + decode_smem<K>::EXCHANGE);
    int32_t item, kv_head;
    wait_for_previous();
    K::block_of(a, &item, &kv_head);
    chunk_item it = items[item];
    if (it.row < 0) return; /* blank */
    int32_t n_pos = it.n_pos, first = it.chunk * CHUNK;
    int32_t n_tile = (n_pos - first + TILE - 1) / TILE;
    if (n_tile > CHUNK_TILES) n_tile = CHUNK_TILES;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    source<K> from = {K(a, kv_head), 0, a.map + it.map_off, first, n_pos, a.shape, smem_at(raw)};
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
    typename K::sums sum = {};
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    for (int32_t t = 0; t < n_tile; t++) {
        float s[4][4], f[2];
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 2);
        copy_commit();
        K::scores(s, q, from.at(2 * t), warp);
        tile_weights<K>(s, n_pos - 1 - first - t * TILE, a.scale, m, f, x, from.at(2 * t), warp);
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 3);
        copy_commit();
#pragma unroll
        for (int i = 0; i < 2; i++)
            l[i] = attn_add_groups(l[i], f[i], x->sum[0][i][lane], x->sum[1][i][lane], x->sum[2][i][lane],
                                   x->sum[3][i][lane]);
#pragma unroll
        for (int n = 0; n < (int)(sizeof sum / sizeof *sum); n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] = __fmul_rn(sum[n][e], f[e >> 1]);
        K::add(sum, x, from.at(2 * t + 1), warp);
    }
    l[0] = attn_quad_sum(l[0]);
    l[1] = attn_quad_sum(l[1]);
    store<D, K>(a, it, item, kv_head, part, sum, m, l, warp);
}

template <int D, typename K>
static void launch_with(cuda_be *c, dim3 grid, const attn_args &a, const chunk_item *items, float *part) {
    cuda_ok(
        c, cudaFuncSetAttribute(chunk_kernel<D, K>, cudaFuncAttributeMaxDynamicSharedMemorySize, decode_smem<K>::BYTES),
        "attention: shared memory");
    launch_early(c, chunk_kernel<D, K>, grid, THREADS, decode_smem<K>::BYTES, a, items, part);
}

template <int D> static void launch(cuda_be *c, const attn_args &a, const chunk_item *items, int32_t n, float *part) {
    const unsigned heads = (unsigned)(a.n_head / a.group);
    if (a.is_i8)
        launch_with<D, i8_kv<D>>(c, dim3((unsigned)n * heads), a, items, part);
    else
        launch_with<D, bf16_kv<D>>(c, dim3((unsigned)n, heads), a, items, part);
}

void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_item *items, int32_t n, float *part) {
    if (d == 64)
        launch<64>(c, a, items, n, part);
    else if (d == 96)
        launch<96>(c, a, items, n, part);
    else
        launch<128>(c, a, items, n, part);
}
