/* Attention of prompts: blocks of queries that read one map row.
 *
 * wgmma_prompt (Hopper): grid (KV heads, blocks), longest first; 3 warpgroups. The last brings K and V of a tile after
 * the other into a ring of five stages (cp.async, 16 bytes a thread, a position's slot looked up by the lane that owns
 * it); the first two hold 64 queries each in registers and walk the tiles on their own: while the weights of tile t are
 * computed, the products of t - 1 with V run. A full stage is told by an mbarrier that the copies arrive at, an empty
 * one by an mbarrier that each warp arrives at. Sums of finished chunks lie in shared memory, one float4 a thread and
 * 8-wide piece. 5 x 128 x D x 2 + 256 x D / 8 x 16 bytes: 224 KiB at D = 128.
 *
 * mma_prompt (other GPUs, and blocks of up to 64 queries): 4 warps of 16 queries, one K and one V tile, V on its way
 * while scores are computed and the next K while V is used.
 */
#include "ops/cuda/attn_int.cuh"
#include "ops/cuda/attn_wgmma.cuh"

/* The lane's rows of the product: queries warp_query + lane / 4 and 8 more. */
typedef struct lane_rows {
    int32_t row[2], head[2], pos[2]; /* row -1: none */
} lane_rows;

static __device__ inline lane_rows rows_of(const attn_args &a, const prompt_block &b, int32_t kv_head, int warp_query) {
    lane_rows r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t query = warp_query + (int)threadIdx.x % 32 / 4 + 8 * i;
        r.row[i] = query < b.n_row * a.group ? b.row + query / a.group : -1;
        r.head[i] = kv_head * a.group + query % a.group;
        r.pos[i] = r.row[i] < 0 ? -1 : a.pos[r.row[i]];
    }
    return r;
}

template <int D>
static __device__ inline void block_queries(const attn_args &a, const prompt_block &b, int32_t kv_head, int warp_query,
                                            uint32_t (&q)[D / 16][4]) {
    load_queries<D>(
        [&](int i) -> const bf16 * {
            int32_t query = warp_query + i;
            if (query >= b.n_row * a.group) return NULL;
            return a.q + (int64_t)(b.row + query / a.group) * a.q_stride +
                   (int64_t)(kv_head * a.group + query % a.group) * D;
        },
        q);
}

template <int D>
static __device__ inline int32_t place_at(const attn_args &a, const int32_t *map, int32_t j, int32_t n_pos) {
    return j < n_pos ? place_of<D>(a.shape, map[j]) : -1;
}

static __device__ inline void mask_tile(float (&s)[TILE / 8][4], const lane_rows &r, int32_t tile) {
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILE / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (tile * TILE + t * 8 + 2 * c + (e & 1) > r.pos[e >> 1]) s[t][e] = -INFINITY;
}

/* State of a chunk's sums, besides a. */
typedef struct soft {
    float m[2], l[2];
} soft;

static __device__ inline void soft_clear(soft *x) {
    x->m[0] = x->m[1] = -INFINITY;
    x->l[0] = x->l[1] = 0.0f;
}

/* Scores become weights; f: factors of what was summed before. */
static __device__ inline void soft_tile(float (&s)[TILE / 8][4], float scale, soft *x, float f[2]) {
    float base[2], g[4][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = -INFINITY;
#pragma unroll
        for (int t = 0; t < TILE / 8; t++) top = fmaxf(top, fmaxf(s[t][2 * i], s[t][2 * i + 1]));
        f[i] = attn_advance(attn_quad_max(top), scale, &x->m[i], &base[i]);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) group_weights(s + 4 * k, scale, base, g[k]);
#pragma unroll
    for (int i = 0; i < 2; i++) x->l[i] = attn_add_groups(x->l[i], f[i], g[0][i], g[1][i], g[2][i], g[3][i]);
}

template <int D> static __device__ inline void rescale(float (&a)[D / 8][4], const float f[2]) {
    if (__all_sync(~0u, f[0] == 1.0f && f[1] == 1.0f)) return;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++) a[d][e] = __fmul_rn(a[d][e], f[e >> 1]);
}

/* Joins a chunk to the sums of those before it, which lie at sums (STEP float4 apart); a becomes the new sums.
 * Whether they go back there is the caller's affair. */
template <int D, int STEP>
static __device__ inline void join_chunk(float (&a)[D / 8][4], soft part, soft *total, const float4 *sums, int first) {
    float f_old[2], f_new[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        attn_factors(total->m[i], part.m[i], &total->m[i], &f_old[i], &f_new[i]);
        total->l[i] = attn_join(total->l[i], f_old[i], attn_quad_sum(part.l[i]), f_new[i]);
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++) {
        float4 old = first ? make_float4(0, 0, 0, 0) : sums[d * STEP];
        a[d][0] = attn_join(old.x, f_old[0], a[d][0], f_new[0]);
        a[d][1] = attn_join(old.y, f_old[0], a[d][1], f_new[0]);
        a[d][2] = attn_join(old.z, f_old[1], a[d][2], f_new[1]);
        a[d][3] = attn_join(old.w, f_old[1], a[d][3], f_new[1]);
    }
}
template <int D, int STEP> static __device__ inline void keep_sums(const float (&a)[D / 8][4], float4 *sums) {
#pragma unroll
    for (int d = 0; d < D / 8; d++) sums[d * STEP] = make_float4(a[d][0], a[d][1], a[d][2], a[d][3]);
}

template <int D>
static __device__ inline void write_rows(const attn_args &a, const lane_rows &r, const float (&sum)[D / 8][4],
                                         const soft &total) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (r.row[i] < 0) continue;
        bf16 *y = a.y + ((int64_t)r.row[i] * a.n_head + r.head[i]) * D + (int)threadIdx.x % 4 * 2;
        float inverse = __frcp_rn(total.l[i]);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *(uint32_t *)(y + d * 8) =
                (uint32_t)attn_result(sum[d][2 * i], inverse) | (uint32_t)attn_result(sum[d][2 * i + 1], inverse) << 16;
    }
}

/* ---- Hopper ------------------------------------------------------------------------------------------------------ */

enum { GROUP_QUERIES = 64, COMPUTE = 256, PRODUCERS = 128, COMPUTE_WARPS = COMPUTE / 32, STAGES = 5 };

template <int D> struct prompt_smem {
    static constexpr int SUMS = STAGES * panels<D>::ALL, BARS = SUMS + COMPUTE * D / 8 * 16;
    static constexpr int BYTES = BARS + 2 * STAGES * 8 + 1024;
};

/* A ring of stages: unit 2 t is K of tile t, 2 t + 1 its V. */
template <int D> struct ring {
    uint32_t smem, full, empty; /* shared addresses; barriers lie 8 bytes apart */
    __device__ inline uint32_t at(uint32_t unit) const { return smem + unit % STAGES * panels<D>::ALL; }
    __device__ inline void wait_full(uint32_t unit) const { bar_wait(full + 8 * (unit % STAGES), unit / STAGES % 2); }
    __device__ inline void wait_empty(uint32_t unit) const {
        bar_wait(empty + 8 * (unit % STAGES), unit / STAGES % 2 ^ 1);
    }
    __device__ inline void told_full(uint32_t unit) const { bar_arrive_copied(full + 8 * (unit % STAGES)); }
    __device__ inline void warp_emptied(uint32_t unit) const {
        if (threadIdx.x % 32 == 0) bar_arrive(empty + 8 * (unit % STAGES));
    }
};

template <int D>
static __device__ inline void bring_tiles(const attn_args &a, const prompt_block &b, int32_t kv_head,
                                          const ring<D> &ring) {
    int at = (int)threadIdx.x - COMPUTE, first = at / 32 * 32;
    const int32_t *map = a.map + b.map_off;
    const bf16 *k = a.kv + (int64_t)kv_head * D, *v = k + (int64_t)GY_BLOCK_SLOTS * a.shape.width;
    uint32_t n_tile = (uint32_t)(b.n_pos + TILE - 1) / TILE;
    int32_t place = place_at<D>(a, map, at, b.n_pos);
    for (uint32_t t = 0; t < n_tile; t++) {
        int32_t j = (int32_t)(t + 1) * TILE + at, slot = j < b.n_pos ? map[j] : -1;
        ring.wait_empty(2 * t);
        copy_rows<D, 4>(ring.at(2 * t), first, k, place);
        ring.told_full(2 * t);
        ring.wait_empty(2 * t + 1);
        copy_rows<D, 4>(ring.at(2 * t + 1), first, v, place);
        ring.told_full(2 * t + 1);
        place = slot < 0 ? -1 : place_of<D>(a.shape, slot);
    }
    copy_commit();
    copy_wait<0>();
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int D>
static __device__ inline void start_scores(float (&s)[TILE / 8][4], const uint32_t (&q)[D / 16][4], uint32_t k) {
    typedef panels<D> P;
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        wgmma<0>(s, q[d], wgmma_b<D>(k + (uint32_t)(d * 16 / P::WIDE * P::BYTES + d * 16 % P::WIDE * 2), 16), d > 0);
    wgmma_commit();
}

template <int D>
static __device__ inline void start_sums(float (&a)[D / 8][4], const uint32_t (&p)[TILE / 16][4], uint32_t v, int add) {
    typedef panels<D> P;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        wgmma<1>(a, p[k], wgmma_b<D>(v + (uint32_t)(k * 16 * P::ROW), P::BYTES), k > 0 || add);
    wgmma_commit();
}

/* One warpgroup's 64 queries. */
template <int D>
static __device__ inline void compute_queries(const attn_args &a, const prompt_block &b, int32_t kv_head,
                                              const ring<D> &ring, float4 *sums) {
    int half = (int)threadIdx.x / 128, query = half * GROUP_QUERIES + (int)threadIdx.x % 128 / 32 * 16;
    lane_rows r = rows_of(a, b, kv_head, query);
    uint32_t q[D / 16][4], p[TILE / 16][4];
    block_queries<D>(a, b, kv_head, query, q);
    int32_t n_all = (b.n_pos + TILE - 1) / TILE, n_tile = (half ? b.deepest[1] : b.deepest[0]) / TILE + 1;
    int32_t n_open = (half ? b.shallowest[1] : b.shallowest[0]) / TILE; /* tiles that every query sees whole */
    float s[TILE / 8][4], sum[D / 8][4], f[2];
    soft part, total;
    soft_clear(&part);
    soft_clear(&total);
#pragma unroll
    for (int t = 0; t < TILE / 8; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 8; d++) sum[d][0] = sum[d][1] = sum[d][2] = sum[d][3] = 0.0f;
    ring.wait_full(0);
    fence_for_wgmma();
    wgmma_fence();
    start_scores<D>(s, q, ring.at(0));
    wgmma_wait<0>();
    wgmma_hold(s);
    ring.warp_emptied(0);
    if (n_open == 0) mask_tile(s, r, 0);
    soft_tile(s, a.scale, &part, f);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) pack_weights(s + 2 * k, p[k]);
    for (int32_t t = 1; t < n_tile; t++) {
        uint32_t now = 2 * (uint32_t)t, last = now - 1; /* K of this tile, V of the one before */
        ring.wait_full(now);
        ring.wait_full(last);
        fence_for_wgmma();
        wgmma_hold(sum);
        wgmma_fence();
        start_scores<D>(s, q, ring.at(now));
        start_sums<D>(sum, p, ring.at(last), (t - 1) % CHUNK_TILES != 0);
        wgmma_wait<1>();
        wgmma_hold(s);
        ring.warp_emptied(now);
        soft ended = part;
        if (t % CHUNK_TILES == 0) soft_clear(&part);
        if (t >= n_open) mask_tile(s, r, t);
        soft_tile(s, a.scale, &part, f);
        wgmma_wait<0>();
        wgmma_hold(sum);
        ring.warp_emptied(last);
        if (t % CHUNK_TILES == 0) {
            join_chunk<D, COMPUTE>(sum, ended, &total, sums, t == CHUNK_TILES);
            keep_sums<D, COMPUTE>(sum, sums);
        } else {
            rescale<D>(sum, f);
        }
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) pack_weights(s + 2 * k, p[k]);
    }
    uint32_t last = 2 * (uint32_t)n_tile - 1;
    ring.wait_full(last);
    fence_for_wgmma();
    wgmma_hold(sum);
    wgmma_fence();
    start_sums<D>(sum, p, ring.at(last), (n_tile - 1) % CHUNK_TILES != 0);
    wgmma_wait<0>();
    wgmma_hold(sum);
    ring.warp_emptied(last);
    for (uint32_t unit = 2 * (uint32_t)n_tile; unit < 2 * (uint32_t)n_all;
         unit++) { /* only the other group sees them */
        ring.wait_full(unit);
        ring.warp_emptied(unit);
    }
    join_chunk<D, COMPUTE>(sum, part, &total, sums, n_tile <= CHUNK_TILES);
    write_rows<D>(a, r, sum, total);
}
#endif

template <int D>
static __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1) wgmma_prompt(attn_args a, const prompt_block *blocks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char raw[];
    char *base = raw + (1024 - smem_at(raw) % 1024) % 1024;
    uint32_t smem = smem_at(base), bars = smem + prompt_smem<D>::BARS;
    const ring<D> ring = {smem, bars, bars + 8 * STAGES};
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; s++) {
            bar_init(ring.full + 8 * s, PRODUCERS);
            bar_init(ring.empty + 8 * s, COMPUTE_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    prompt_block b = blocks[blockIdx.y];
    int32_t kv_head = (int32_t)blockIdx.x;
    if (threadIdx.x >= COMPUTE) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        bring_tiles<D>(a, b, kv_head, ring);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        compute_queries<D>(a, b, kv_head, ring, (float4 *)(base + prompt_smem<D>::SUMS) + threadIdx.x);
    }
#else
    (void)a;
    (void)blocks;
#endif
}

/* ---- any GPU ----------------------------------------------------------------------------------------------------- */

enum { MMA_WARPS = 4, MMA_THREADS = 32 * MMA_WARPS };
template <int D> struct mma_smem {
    static constexpr int SUMS = 2 * panels<D>::ALL, BYTES = SUMS + MMA_THREADS * D / 8 * 16;
};

template <int D>
static __device__ inline void mma_scores(float (&s)[TILE / 8][4], const uint32_t (&q)[D / 16][4], uint32_t k) {
    int lane = lane_anew();
#pragma unroll
    for (int t = 0; t < TILE / 8; t++) {
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
        for (int d = 0; d < D / 32; d++) {
            uint32_t b[4];
            ldmatrix4(b, k + unit_at<D>(t * 8 + lane % 8, d * 4 + lane / 8));
            mma(s[t], q[2 * d], b[0], b[1]);
            mma(s[t], q[2 * d + 1], b[2], b[3]);
        }
    }
}

template <int D>
static __device__ inline void mma_sums(float (&a)[D / 8][4], const float (&s)[TILE / 8][4], uint32_t v) {
    int lane = lane_anew();
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        uint32_t p[4];
        pack_weights(s + 2 * k, p);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            ldmatrix4_trans(b, v + unit_at<D>(k * 16 + lane % 16, 2 * d + lane / 16));
            mma(a[2 * d], p, b[0], b[1]);
            mma(a[2 * d + 1], p, b[2], b[3]);
        }
    }
}

template <int D>
static __device__ inline void bring_rows(const attn_args &a, const prompt_block &b, const bf16 *from, uint32_t to,
                                         int32_t tile) {
    int warp = (int)threadIdx.x / 32;
    copy_rows<D, 4>(to, warp * 32, from, place_at<D>(a, a.map + b.map_off, tile * TILE + (int)threadIdx.x, b.n_pos));
    copy_commit();
}

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) mma_prompt(attn_args a, const prompt_block *blocks) {
    extern __shared__ __align__(128) char raw[];
    static_assert(MMA_THREADS == TILE, "a thread looks up one position of a tile");
    uint32_t k_at = smem_at(raw), v_at = k_at + panels<D>::ALL;
    float4 *sums = (float4 *)(raw + mma_smem<D>::SUMS) + threadIdx.x;
    prompt_block b = blocks[blockIdx.y];
    int32_t kv_head = (int32_t)blockIdx.x, n_tile = (b.n_pos + TILE - 1) / TILE;
    const bf16 *k = a.kv + (int64_t)kv_head * D, *v = k + (int64_t)GY_BLOCK_SLOTS * a.shape.width;
    int query = (int)threadIdx.x / 32 * 16;
    lane_rows r = rows_of(a, b, kv_head, query);
    uint32_t q[D / 16][4];
    float s[TILE / 8][4], sum[D / 8][4], f[2];
    soft part, total;
    soft_clear(&total);
    bring_rows<D>(a, b, k, k_at, 0);
    block_queries<D>(a, b, kv_head, query, q);
    for (int32_t t = 0; t < n_tile; t++) {
        if (t % CHUNK_TILES == 0) {
            soft_clear(&part);
#pragma unroll
            for (int d = 0; d < D / 8; d++) sum[d][0] = sum[d][1] = sum[d][2] = sum[d][3] = 0.0f;
        }
        bring_rows<D>(a, b, v, v_at, t);
        copy_wait<1>();
        __syncthreads();
        mma_scores<D>(s, q, k_at);
        __syncthreads();
        if (t + 1 < n_tile) bring_rows<D>(a, b, k, k_at, t + 1);
        mask_tile(s, r, t);
        soft_tile(s, a.scale, &part, f);
        rescale<D>(sum, f);
        if (t + 1 < n_tile)
            copy_wait<1>();
        else
            copy_wait<0>();
        __syncthreads();
        mma_sums<D>(sum, s, v_at);
        __syncthreads();
        if ((t + 1) % CHUNK_TILES == 0 || t + 1 == n_tile) {
            join_chunk<D, MMA_THREADS>(sum, part, &total, sums, t < CHUNK_TILES);
            if (t + 1 < n_tile) keep_sums<D, MMA_THREADS>(sum, sums);
        }
    }
    write_rows<D>(a, r, sum, total);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

template <int D> static void launch(cuda_be *c, const attn_args &a, const prompt_block *blocks, int32_t n, int wide) {
    dim3 grid((unsigned)(a.n_head / a.group), (unsigned)n);
    int bytes = wide ? prompt_smem<D>::BYTES : mma_smem<D>::BYTES;
    cuda_ok(c,
            cudaFuncSetAttribute(wide ? wgmma_prompt<D> : mma_prompt<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 bytes),
            "attention: shared memory");
    if (wide)
        wgmma_prompt<D><<<grid, COMPUTE + PRODUCERS, bytes, c->stream>>>(a, blocks);
    else
        mma_prompt<D><<<grid, MMA_THREADS, bytes, c->stream>>>(a, blocks);
}

void cuda_attn_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n, int wide) {
    if (d == 64)
        launch<64>(c, a, blocks, n, wide);
    else if (d == 96)
        launch<96>(c, a, blocks, n, wide);
    else
        launch<128>(c, a, blocks, n, wide);
}
