/* Attention of decode rows: grid (chunks of all rows, KV heads), 4 warps, up to 16 heads of a group as the queries of
 * one product. K and V of the chunk's tiles follow one another through three stages (cp.async); warp w scores positions
 * 32 w .. 32 w + 31 of a tile, the warps exchange maxima and then weights (as fragments) through shared memory, and
 * warp w sums elements w D / 4 .. of the head. 3 x 128 x D x 2 bytes and 5 KiB: two blocks a multiprocessor at D = 128,
 * so that 128 KiB or more are under way.
 *
 * In a recording (record.cu) two kernels beside it are done here, with their bits:
 *   - rope and the KV write (ROPE): q is rotated in its fragments; the row's own k and v come from the product, are
 *     rotated by the first threads of the block that has the row's last chunk, and go to the slot and, as they are, to
 *     their place in shared memory. No other block reads that slot: only for batches whose rows stand on map rows of
 *     their own.
 *   - the join: the block of a row and KV head that arrives last joins the chunks of all.
 */
#include "ops/cuda/attn_int.cuh"
#include "ops/cuda/rope_wide.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, STAGES = 3, ROWS = 16 };

typedef struct exchange { /* between the warps, of one tile */
    uint4 weight[TILE / 16][32];
    float sum[WARPS][2][32], top[WARPS][ROWS];
} exchange;

template <int D> struct decode_smem {
    static constexpr int EXCHANGE = STAGES * panels<D>::ALL, BYTES = EXCHANGE + (int)sizeof(exchange);
};

/* ---- what a block brings ----------------------------------------------------------------------------------------- */

enum { OWN = -2 }; /* place of the row's own position, where it does not come from a slot */

/* copy_rows without the row's own. */
template <int D> static __device__ inline void copy_others(uint32_t to, int first, const bf16 *from, int32_t place) {
    constexpr int UNITS = D / 8;
    int lane = lane_anew();
#pragma unroll 4
    for (int i = 0; i < UNITS; i++) {
        int p = (i * 32 + lane) / UNITS, u = (i * 32 + lane) % UNITS;
        int32_t at = __shfl_sync(~0u, place, p);
        if (at != OWN) copy16(to + unit_at<D>(first + p, u), from + (int64_t)(at < 0 ? 0 : at) * D + u * 8, at >= 0);
    }
}

/* Unit 2 t is K of the chunk's tile t, 2 t + 1 is its V. */
template <int D, int ROPE> struct source {
    const bf16 *k;
    int64_t to_v;
    int32_t place; /* of this thread's position in the tile that comes next */
    const int32_t *map;
    int32_t first, n_pos;
    kv_shape shape;
    uint32_t smem;

    __device__ inline void look_up(int32_t tile) {
        int32_t j = first + tile * TILE + (int)threadIdx.x;
        place = j < n_pos - ROPE ? place_of<D>(shape, map[j]) : ROPE && j == n_pos - 1 ? (int32_t)OWN : -1;
    }
    __device__ inline void bring(int32_t unit) {
        uint32_t to = smem + (uint32_t)(unit % STAGES) * panels<D>::ALL;
        const bf16 *from = unit % 2 ? k + to_v : k;
        if (ROPE)
            copy_others<D>(to, (int)threadIdx.x / 32 * 32, from, place);
        else
            copy_rows<D, 4>(to, (int)threadIdx.x / 32 * 32, from, place);
        if (unit % 2) look_up(unit / 2 + 1);
    }
};

/* ---- rope -------------------------------------------------------------------------------------------------------- */

/* Of the pairs in this lane's fragments of q: word t of fragments 8 elements apart. With halves the pairs of two
 * neighbouring elements, with neighbours one of each of the two words of a fragment. */
template <int D> struct __align__(8) angles {
    float c[D / 16][2], s[D / 16][2];
};

template <int D> static __device__ inline void load_angles(const chunk_extra &e, int32_t row, angles<D> &to) {
    const float *cs = e.cos + (int64_t)row * (D / 2), *sn = e.sin + (int64_t)row * (D / 2);
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < D / 16; t++) {
        if (e.is_pairs) {
            to.c[t][0] = cs[8 * t + c], to.c[t][1] = cs[8 * t + 4 + c];
            to.s[t][0] = sn[8 * t + c], to.s[t][1] = sn[8 * t + 4 + c];
        } else {
            *(float2 *)to.c[t] = *(const float2 *)(cs + 8 * t + 2 * c);
            *(float2 *)to.s[t] = *(const float2 *)(sn + 8 * t + 2 * c);
        }
    }
}

/* Query i of the lane's two, biased and rotated in its registers: both elements of a pair are there. */
template <int D>
static __device__ inline void rotate_query(const chunk_extra &e, const angles<D> &by, int i, const bf16 *bias,
                                           uint32_t (&q)[D / 16][4]) {
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        if (!bias) break;
        q[d][i] = add_two(q[d][i], *(const uint32_t *)(bias + d * 16 + 2 * c));
        q[d][i + 2] = add_two(q[d][i + 2], *(const uint32_t *)(bias + d * 16 + 8 + 2 * c));
    }
#pragma unroll
    for (int t = 0; t < D / 16; t++) {
        if (e.is_pairs)
            rotate_neighbours(e.round_each, &q[t][i], &q[t][i + 2], by.c[t], by.s[t]);
        else
            rotate_two(e.round_each, &q[t / 2][i + t % 2 * 2], &q[t / 2 + D / 32][i + t % 2 * 2], by.c[t], by.s[t]);
    }
}

template <int D>
static __device__ inline void rotate_queries(const attn_args &a, const chunk_extra &e, const angles<D> &by,
                                             int32_t kv_head, uint32_t (&q)[D / 16][4]) {
    int g = (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (g + 8 * i >= a.group) continue;
        rotate_query<D>(e, by, i, e.q_bias ? e.q_bias + (kv_head * a.group + g + 8 * i) * D : NULL, q);
    }
}

/* 16 elements of the row's own K (the first D / 16 threads of the block that has the row's last chunk) or V (the next
 * D / 16), in two pieces. */
template <int D> struct own_row {
    piece v[2];
    int unit[2];        /* of the head, in pieces */
    int32_t tile, line; /* of the chunk, of the tile */
    int kind;           /* K 0, V 1, none -1 */

    /* To its place among what bring(unit) brings, when that may be written. Visible after the next barrier. */
    __device__ inline void put(char *raw, int32_t of) const {
        if (kind != of % 2 || tile != of / 2) return;
        char *to = raw + of % STAGES * panels<D>::ALL;
#pragma unroll
        for (int i = 0; i < 2; i++) *(piece *)(to + unit_at<D>(line, unit[i])) = v[i];
    }
};

/* Rotates K and fills the slot. */
template <int D>
static __device__ inline void own_take(const attn_args &a, const chunk_extra &e, const chunk_item &it, int32_t kv_head,
                                       int32_t n_pos, own_row<D> *own) {
    constexpr int SHARE = D / 16;
    int t = (int)threadIdx.x, pair = t % SHARE * WIDE, kind = t / SHARE;
    int at[2] = {e.is_pairs ? 2 * pair : pair, e.is_pairs ? 2 * pair + WIDE : pair + D / 2};
    int32_t last = n_pos - 1 - it.chunk * CHUNK;
    own->kind = kind < 2 && it.chunk + 1 == it.n_chunk ? kind : -1;
    own->tile = last / TILE;
    own->line = last % TILE;
    if (own->kind < 0) return;
    int64_t head = a.n_head + (int64_t)kind * (a.n_head / a.group) + kv_head;
    const bf16 *from = a.q + (int64_t)it.row * a.q_stride + head * D;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        own->v[i] = *(const piece *)(from + at[i]);
        own->unit[i] = at[i] / WIDE;
        if (kind == 0 && e.k_bias) add_bias(&own->v[i], e.k_bias + kv_head * D + at[i]);
    }
    if (kind == 0) {
        float c[WIDE], s[WIDE];
#pragma unroll
        for (int k = 0; k < WIDE; k += 4) {
            *(float4 *)(c + k) = *(const float4 *)(e.cos + (int64_t)it.row * (D / 2) + pair + k);
            *(float4 *)(s + k) = *(const float4 *)(e.sin + (int64_t)it.row * (D / 2) + pair + k);
        }
        rotate_wide(e.is_pairs, e.round_each, &own->v[0], &own->v[1], c, s);
    }
    bf16 *to = e.kv + kv_offset(a.shape, e.slot[it.row], kind) + kv_head * D;
#pragma unroll
    for (int i = 0; i < 2; i++) *(piece *)(to + at[i]) = own->v[i];
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

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

/* Whether this block is the last of n to arrive; what all of them wrote is then visible to it. The count is 0 again
 * after the last. */
static __device__ inline int all_arrived(uint32_t *count, int32_t n) {
    int is_last = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(count, (uint32_t)n - 1) == (uint32_t)n - 1;
        __threadfence();
    }
    return __syncthreads_or(is_last);
}

/* The chunks of a row, whose first one's sums are at `part`, joined for the KV head's group. */
template <int D>
static __device__ inline void join_group(const attn_args &a, const chunk_item &it, int32_t kv_head, const float *part) {
    for (int i = (int)threadIdx.x; i < a.group * D; i += THREADS) {
        int32_t head = kv_head * a.group + i / D;
        ((uint16_t *)a.y)[((int64_t)it.row * a.n_head + head) * D + i % D] =
            join_chunks<D>(part + (int64_t)head * (D + 2), (int64_t)a.n_head * (D + 2), it.n_chunk, i % D);
    }
}

template <int D, int ROPE>
static __global__ void __launch_bounds__(THREADS, 2)
    chunk_kernel(attn_args a, chunk_extra e, const chunk_item *items, float *part) {
    extern __shared__ __align__(128) char raw[];
    static_assert(THREADS == TILE, "a thread looks up one position of a tile");
    exchange *x = (exchange *)(raw + decode_smem<D>::EXCHANGE);
    const bool is_ahead = ROPE && e.is_ahead;
    let_next();
    if (!is_ahead) wait_only();
    chunk_item it = items[blockIdx.x];
    if (it.row < 0) return; /* blank */
    int32_t kv_head = (int32_t)blockIdx.y, n_pos = it.n_pos, first = it.chunk * CHUNK;
    int32_t n_tile = (n_pos - first + TILE - 1) / TILE;
    if (n_tile > CHUNK_TILES) n_tile = CHUNK_TILES;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    source<D, ROPE> from = {a.kv + (int64_t)kv_head * D,
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
    angles<D> by;
    own_row<D> own;
    if (ROPE) load_angles<D>(e, it.row, by);
    if (is_ahead) wait_only();
    uint32_t q[D / 16][4];
    load_queries<D>(
        [&](int i) -> const bf16 * {
            if (i >= a.group) return NULL;
            return a.q + (int64_t)it.row * a.q_stride + (int64_t)(kv_head * a.group + i) * D;
        },
        q);
    if (ROPE) {
        own_take<D>(a, e, it, kv_head, n_pos, &own);
        own.put(raw, 0);
        own.put(raw, 1);
        rotate_queries<D>(a, e, by, kv_head, q);
    }
    float sum[D / 32][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    for (int32_t t = 0; t < n_tile; t++) {
        float s[4][4], f[2];
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 2);
        if (ROPE) own.put(raw, 2 * t + 2);
        copy_commit();
        warp_scores<D>(s, q, from.smem + (uint32_t)(2 * t % STAGES) * panels<D>::ALL, warp);
        tile_weights(s, n_pos - 1 - first - t * TILE, a.scale, m, f, x, warp);
        copy_wait<1>();
        __syncthreads();
        if (t + 1 < n_tile) from.bring(2 * t + 3);
        if (ROPE) own.put(raw, 2 * t + 3);
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
    if (it.n_chunk == 1 || !e.arrived) return;
    uint32_t *arrived = e.arrived + (int64_t)it.row * (a.n_head / a.group) + kv_head;
    int64_t first_chunk = (int64_t)blockIdx.x - it.chunk;
    if (all_arrived(arrived, it.n_chunk)) join_group<D>(a, it, kv_head, part + first_chunk * a.n_head * (D + 2));
}

template <int D, int ROPE>
static void launch(cuda_be *c, const attn_args &a, const chunk_extra &e, const chunk_item *items, int32_t n,
                   float *part) {
    dim3 grid((unsigned)n, (unsigned)(a.n_head / a.group));
    cuda_ok(
        c,
        cudaFuncSetAttribute(chunk_kernel<D, ROPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, decode_smem<D>::BYTES),
        "attention: shared memory");
    launch_early(c, chunk_kernel<D, ROPE>, grid, THREADS, decode_smem<D>::BYTES, a, e, items, part);
}

template <int D>
static void launch_of(cuda_be *c, const attn_args &a, const chunk_extra &e, const chunk_item *items, int32_t n,
                      float *part) {
    if (e.cos)
        launch<D, 1>(c, a, e, items, n, part);
    else
        launch<D, 0>(c, a, e, items, n, part);
}

void cuda_attn_chunks(cuda_be *c, int32_t d, const attn_args &a, const chunk_extra &more, const chunk_item *items,
                      int32_t n, float *part) {
    if (d == 64)
        launch_of<64>(c, a, more, items, n, part);
    else if (d == 96)
        launch_of<96>(c, a, more, items, n, part);
    else
        launch_of<128>(c, a, more, items, n, part);
}

template <int D> static void ready(void) {
    cudaFuncAttributes has;
    cudaFuncGetAttributes(&has, chunk_kernel<D, 0>);
    cudaFuncGetAttributes(&has, chunk_kernel<D, 1>);
}

void cuda_attn_chunks_ready(void) {
    ready<64>();
    ready<96>();
    ready<128>();
    cudaGetLastError();
}
