/* Attention of prompts: blocks of queries that read one map row.
 *
 * wgmma_prompt (Hopper): a thread block a walk over items (block of queries x KV head), 3 warpgroups. The last brings
 * the queries and, through a ring of four stages, K and V of a tile after the other. Sixteen positions that are one
 * block of the pool in order come by the copy engine (a box of a tensor map for each panel), others one by one
 * (cp.async, 16 bytes a thread, a position's slot looked up by the lane that owns it); the producing warp sees which
 * from the slot map. The first two warpgroups compute 64 queries each: while the weights of tile t are computed, the
 * products of t - 1 with V run; the two take turns in issuing products, so that one computes weights while the other's
 * products run. Full and empty stages are told by mbarriers. Sums of finished chunks lie in shared memory, one float4 a
 * thread and 8-wide piece. (4 + 1) x 128 x D x 2 + 256 x D / 8 x 16 bytes: 224 KiB at D = 128, so a fifth stage does
 * not fit.
 *
 * mma_prompt (other GPUs): blocks of up to 64 queries, 4 warps of 16; one K and one V tile, V on its way while scores
 * are computed and the next K while V is used.
 *
 * KV in I8 (attn_i8.cuh): who brings a tile loads bytes into registers, as long as its stage is not free yet, and
 * stores them as BF16. Scales of K and V come with K, which is told empty when weights have been scaled. 2 KiB more.
 */
#include "ops/cuda/attn_i8.cuh"
#include "ops/cuda/attn_int.cuh"
#include "ops/cuda/attn_wgmma.cuh"

#include <cudaTypedefs.h>

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

/* What a row does not see: -inf for scores, 0 for weights. */
static __device__ inline void mask_tile(float (&s)[TILE / 8][4], const lane_rows &r, int32_t tile,
                                        float masked = -INFINITY) {
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILE / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (tile * TILE + t * 8 + 2 * c + (e & 1) > r.pos[e >> 1]) s[t][e] = masked;
}

/* State of a chunk's sums, besides a. */
typedef struct soft {
    float m[2], l[2];
} soft;

static __device__ inline void soft_clear(soft *x) {
    x->m[0] = x->m[1] = -INFINITY;
    x->l[0] = x->l[1] = 0.0f;
}

/* Largest scores of the lane's two rows: in four strands each, because nothing else runs while one waits for itself. */
static __device__ inline void tile_tops(const float (&s)[TILE / 8][4], float top[2]) {
    float most[2][4];
#pragma unroll
    for (int t = 0; t < TILE / 8; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float two = fmaxf(s[t][2 * i], s[t][2 * i + 1]);
            most[i][t % 4] = t < 4 ? two : fmaxf(most[i][t % 4], two);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) top[i] = fmaxf(fmaxf(most[i][0], most[i][1]), fmaxf(most[i][2], most[i][3]));
#pragma unroll
    for (int o = 1; o <= 2; o++) {
        float other[2] = {__shfl_xor_sync(~0u, top[0], o), __shfl_xor_sync(~0u, top[1], o)};
        top[0] = fmaxf(top[0], other[0]);
        top[1] = fmaxf(top[1], other[1]);
    }
}

/* Scores become weights; f: factors of what was summed before. */
static __device__ inline void soft_tile(float (&s)[TILE / 8][4], float scale, soft *x, float f[2]) {
    float top[2], base[2], g[4][2];
    tile_tops(s, top);
#pragma unroll
    for (int i = 0; i < 2; i++) f[i] = attn_advance(top[i], scale, &x->m[i], &base[i]);
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

enum { GROUP_QUERIES = 64, COMPUTE = 256, PRODUCERS = 128, COMPUTE_WARPS = COMPUTE / 32, STAGES = 4 };
enum { PRODUCER_WARPS = PRODUCERS / 32, BOX = GY_BLOCK_SLOTS };

template <int D> struct prompt_smem {
    static constexpr int QUERIES = STAGES * panels<D>::ALL, SUMS = QUERIES + panels<D>::ALL,
                         BARS = SUMS + COMPUTE * D / 8 * 16;
    static constexpr int BARS_BYTES = (2 * STAGES + 2) * 8, BYTES = BARS + BARS_BYTES + 1024;
};
/* Scales (f32, K's then V's) of every second stage: those of K. */
enum { SCALES_BYTES = 2 * TILE * GY_KV_SCALE_BYTES, STARTS_AT = 128 };
template <int D> struct i8_prompt_smem {
    static constexpr int SCALES = prompt_smem<D>::BARS, BARS = SCALES + STAGES / 2 * SCALES_BYTES;
    static constexpr int BYTES = BARS + prompt_smem<D>::BARS_BYTES + 1024 - STARTS_AT;
    static_assert(BYTES <= 227 * 1024, "what a block may have");
};

/* A ring of stages, and units that go through it one after the other: of each block's tiles, K and then V. */
template <int D> struct ring {
    uint32_t smem, full, empty; /* shared addresses; barriers lie 8 bytes apart */
    uint32_t q_full, q_empty;
    __device__ inline uint32_t at(uint32_t unit) const { return smem + unit % STAGES * panels<D>::ALL; }
    __device__ inline uint32_t full_bar(uint32_t unit) const { return full + 8 * (unit % STAGES); }
    __device__ inline void wait_full(uint32_t unit) const { bar_wait(full_bar(unit), unit / STAGES % 2); }
    __device__ inline void wait_empty(uint32_t unit) const {
        bar_wait(empty + 8 * (unit % STAGES), unit / STAGES % 2 ^ 1);
    }
    __device__ inline uint32_t queries(void) const { return smem + prompt_smem<D>::QUERIES; }
    __device__ inline uint32_t k_scales(uint32_t unit) const {
        return smem + i8_prompt_smem<D>::SCALES + unit / 2 % (STAGES / 2) * SCALES_BYTES;
    }
    __device__ inline uint32_t v_scales(uint32_t unit) const { return k_scales(unit) + SCALES_BYTES / 2; }
    __device__ inline void warp_emptied(uint32_t unit) const {
        if (threadIdx.x % 32 == 0) bar_arrive(empty + 8 * (unit % STAGES));
    }
    __device__ inline void warp_emptied_queries(void) const {
        if (threadIdx.x % 32 == 0) bar_arrive(q_empty);
    }
};

/* What a producing warp knows of its 32 positions of a tile: two boxes, each whole (one block's slots in order, so that
 * the copy engine brings it) or not (then each position is copied by itself, and what is beyond the end is zeros). */
typedef struct warp_positions {
    int32_t place;    /* of the lane's position; -1: zeros, BROUGHT: the copy engine's */
    int32_t plane[2]; /* of a whole box: K's; -1 where it is not whole */
} warp_positions;
enum { BROUGHT = -2 };

template <int D> static __device__ inline warp_positions positions_of(const attn_args &a, int32_t slot, int use_boxes) {
    int lane = (int)threadIdx.x % 32;
    int32_t first = __shfl_sync(~0u, slot, lane & BOX);
    uint32_t in_order = __ballot_sync(~0u, use_boxes && slot >= 0 && first % BOX == 0 && slot == first + lane % BOX);
    int32_t plane = (slot / BOX * a.shape.n_layer + a.shape.il) * 2;
    warp_positions w;
    w.plane[0] = __shfl_sync(~0u, plane, 0);
    w.plane[1] = __shfl_sync(~0u, plane, BOX);
    if ((in_order & 0xffff) != 0xffff) w.plane[0] = -1;
    if (in_order >> BOX != 0xffff) w.plane[1] = -1;
    w.place = slot < 0 ? -1 : place_of<D>(a.shape, slot);
    if ((lane < BOX ? w.plane[0] : w.plane[1]) >= 0) w.place = BROUGHT;
    return w;
}

/* Positions of boxes that are not whole, as copy_rows. */
template <int D> static __device__ inline void copy_loose(uint32_t to, int first, const bf16 *from, int32_t place) {
    constexpr int UNITS = D / 8;
    int lane = lane_anew();
#pragma unroll 2
    for (int i = 0; i < UNITS; i++) {
        int p = (i * 32 + lane) / UNITS, u = (i * 32 + lane) % UNITS;
        int32_t at = __shfl_sync(~0u, place, p);
        if (at != BROUGHT)
            copy16(to + unit_at<D>(first + p, u), from + (int64_t)(at < 0 ? 0 : at) * D + u * 8, at >= 0);
    }
}

[[maybe_unused]] static __device__ inline void warp_told(uint32_t bar) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) bar_arrive(bar);
}

/* Begins to bring queries first.. of a block; round: how many blocks came before. */
template <int D>
static __device__ inline void bring_queries(const attn_args &a, const ring<D> &to, const prompt_block &b,
                                            int32_t kv_head, int first, uint32_t round) {
    constexpr int UNITS = D / 8;
    int lane = (int)threadIdx.x % 32, query = first + lane;
    int32_t mine = query < b.n_row * a.group ? query / a.group * a.q_stride + query % a.group * D : -1;
    const bf16 *from = a.q + (int64_t)b.row * a.q_stride + (int64_t)kv_head * a.group * D;
    bar_wait(to.q_empty, round % 2 ^ 1);
#pragma unroll 4
    for (int i = 0; i < UNITS; i++) {
        int p = (i * 32 + lane) / UNITS, u = (i * 32 + lane) % UNITS;
        int32_t at = __shfl_sync(~0u, mine, p);
        copy16(to.queries() + unit_at<D>(first + p, u), from + (at < 0 ? 0 : at) + u * 8, at >= 0);
    }
    copy_commit();
}

/* A producing warp. A unit of whole boxes is told full by the copy engine; one that has loose positions by the warp,
 * once it has seen them arrive and made them visible to the products: when BEHIND more units are on their way. More
 * would be waited for by those whose stage the warp waits for. */
template <int D> struct producer {
    enum { BEHIND = STAGES - 2 };
    const attn_args &a;
    const CUtensorMap *map;
    ring<D> to;
    int32_t kv_head;
    uint32_t unit, loose; /* the next one; bit k: whether the one k before the last had loose positions */

    __device__ inline void boxes(const warp_positions &w, int kv, int first) const {
        typedef panels<D> P;
        uint32_t n = (uint32_t)(w.plane[0] >= 0) + (uint32_t)(w.plane[1] >= 0), full = to.full_bar(unit);
        if (threadIdx.x % 32 || !n) return;
        bar_expect(full, n * BOX * D * 2);
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int i = 0; i < P::N; i++)
                if (w.plane[b] >= 0)
                    bring_box(to.at(unit) + (uint32_t)(i * P::BYTES + (first + b * BOX) * P::ROW), map, i * P::WIDE,
                              kv_head, 0, w.plane[b] + kv, full);
    }
    __device__ inline void settle(int k) const { /* what the unit k before the last copied is there */
        if (loose >> k & 1) {
            fence_for_wgmma();
            warp_told(to.full_bar(unit - 1 - (uint32_t)k));
        }
    }
    __device__ inline void bring(const warp_positions &w, int kv, int first) {
        int is_loose = w.plane[0] < 0 || w.plane[1] < 0;
        to.wait_empty(unit);
        boxes(w, kv, first);
        if (is_loose) {
            const bf16 *from = a.kv + (int64_t)kv_head * D + (kv ? (int64_t)BOX * a.shape.width : 0);
            copy_loose<D>(to.at(unit), first, from, w.place);
        } else {
            warp_told(to.full_bar(unit));
        }
        unit++;
        loose = loose << 1 | (uint32_t)is_loose;
        copy_commit();
        copy_wait<BEHIND>();
        settle(BEHIND);
    }
    __device__ inline void settle_queries(void) const { /* after exactly one more unit */
        copy_wait<1>();
        fence_for_wgmma();
        warp_told(to.q_full);
    }
    __device__ inline void end(void) {
        copy_wait<0>();
        for (int k = BEHIND - 1; k >= 0; k--) settle(k);
    }
};

/* A producing warp of KV in I8. */
template <int D> struct i8_producer {
    const ring<D> &to;
    uint32_t unit; /* the next one */

    /* row: of the lane's position, -1 for zeros. */
    __device__ inline void bring(const i8_head<D> &from, int32_t row, int is_v, int first) {
        float k_scale = 0.0f, v_scale = 0.0f;
        if (!is_v && row >= 0) k_scale = *from.scale_of(row), v_scale = *from.scale_of(row + BOX);
        bring_widened(from, is_v && row >= 0 ? row + BOX : row, to.at(unit), first, [&] { to.wait_empty(unit); });
        if (!is_v) {
            uint32_t mine = (uint32_t)(first + (int)threadIdx.x % 32) * GY_KV_SCALE_BYTES;
            store_f32(to.k_scales(unit) + mine, k_scale);
            store_f32(to.v_scales(unit) + mine, v_scale);
        }
        fence_for_wgmma();
        warp_told(to.full_bar(unit));
        unit++;
    }
    __device__ inline void settle_queries(void) const {
        copy_wait<0>();
        fence_for_wgmma();
        warp_told(to.q_full);
    }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* The walk's next block, after `round` of them. */
[[maybe_unused]] static __device__ inline int next_block(const prompt_work &work, int32_t round, prompt_block *b) {
    if (round == work.n_round) return 0;
    *b = work.item[round * work.n_walk + (int32_t)blockIdx.x];
    return b->n_row != 0;
}

/* The first queries come first. Later K of a block's first tile goes ahead of its queries: their place is free only
 * when the block before has no more scores to compute. */
template <int D>
static __device__ inline void bring_tiles(const attn_args &a, const prompt_work &work, prompt_block b,
                                          const CUtensorMap *boxes, int use_boxes, const ring<D> &ring_of) {
    int at = (int)threadIdx.x - COMPUTE, first = at / 32 * 32;
    producer<D> warp = {a, boxes, ring_of, 0, 0, 0};
    int32_t round = 0;
    do {
        const int32_t *map = a.map + b.map_off;
        warp.kv_head = b.kv_head;
        int32_t begin = b.first_tile * TILE + at, slot = begin < b.n_pos ? map[begin] : -1;
        if (round == 0) bring_queries(a, ring_of, b, b.kv_head, first, 0);
        for (int32_t j = begin; j - at < b.n_pos; j += TILE) {
            warp_positions w = positions_of<D>(a, slot, use_boxes);
            slot = j + TILE < b.n_pos ? map[j + TILE] : -1;
            warp.bring(w, 0, first);
            if (j == begin && round) bring_queries(a, ring_of, b, b.kv_head, first, (uint32_t)round);
            if (j == begin && !round) warp.settle_queries();
            warp.bring(w, 1, first);
            if (j == begin && round) warp.settle_queries();
        }
    } while (next_block(work, ++round, &b));
    warp.end();
}

/* The same of KV in I8. Nothing but queries is copied past the registers, so what is under way is theirs. */
template <int D>
static __device__ inline void bring_i8_tiles(const attn_args &a, const prompt_work &work, prompt_block b,
                                             const ring<D> &ring_of) {
    int at = (int)threadIdx.x - COMPUTE, first = at / 32 * 32;
    i8_producer<D> warp = {ring_of, 0};
    int32_t round = 0;
    do {
        const int32_t *map = a.map + b.map_off;
        const i8_head<D> from(a.kv, a.shape, b.kv_head);
        int32_t begin = b.first_tile * TILE + at, slot = begin < b.n_pos ? map[begin] : -1;
        if (round == 0) bring_queries(a, ring_of, b, b.kv_head, first, 0);
        for (int32_t j = begin; j - at < b.n_pos; j += TILE) {
            int32_t row = slot < 0 ? -1 : i8_row_of(a.shape, slot);
            slot = j + TILE < b.n_pos ? map[j + TILE] : -1;
            warp.bring(from, row, 0, first);
            if (j == begin && round) bring_queries(a, ring_of, b, b.kv_head, first, (uint32_t)round);
            if (j == begin && !round) warp.settle_queries();
            warp.bring(from, row, 1, first);
            if (j == begin && round) warp.settle_queries();
        }
    } while (next_block(work, ++round, &b));
}

/* q, k, v: operand_at of the group's queries and of the tile. */
template <int D> static __device__ inline void start_scores(float (&s)[TILE / 8][4], uint32_t q, uint32_t k) {
    typedef panels<D> P;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        const uint32_t step = (uint32_t)(d * 16 / P::WIDE * P::BYTES + d * 16 % P::WIDE * 2) / 16;
        wgmma_scores<D>(s, q + step, k + step, d > 0);
    }
    wgmma_commit();
}

template <int D>
static __device__ inline void start_sums(float (&a)[D / 8][4], const uint32_t (&p)[TILE / 16][4], uint32_t v, int add) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        wgmma_values<D>(a, p[k], v + (uint32_t)(k * 16 * panels<D>::ROW / 16), k > 0 || add);
    wgmma_commit();
}

/* write_rows by way of shared memory, so that 16 bytes a thread lie behind one another: a warp's 16 rows in its own
 * part of the sums' area (own: this thread's first float4 there), units exclusive-ored by row. */
template <int D>
static __device__ inline void write_wide(const attn_args &a, const lane_rows &r, const float (&sum)[D / 8][4],
                                         const soft &total, float4 *own) {
    constexpr int UNITS = D / 8, TWO_ROWS = COMPUTE * 16; /* bytes from two rows to the next two */
    int lane = (int)threadIdx.x % 32, g = lane / 4;
    uint32_t area = smem_at(own) - (uint32_t)lane * 16; /* a multiple of 512 */
    uint32_t mine = area + (uint32_t)(g / 2 * TWO_ROWS + g % 2 * 256 + g * 16 + lane % 4 * 4);
    float inverse[2] = {__frcp_rn(total.l[0]), __frcp_rn(total.l[1])};
    __syncwarp();
#pragma unroll
    for (int d = 0; d < UNITS; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("st.shared.b32 [%0], %1;" ::"r"((mine ^ (uint32_t)d * 16) + (uint32_t)i * 4 * TWO_ROWS),
                         "r"(pack_rn(__fmul_rn(sum[d][2 * i], inverse[i]), __fmul_rn(sum[d][2 * i + 1], inverse[i])))
                         : "memory");
    __syncwarp();
    int32_t place[2]; /* in heads, of the lane's two rows */
#pragma unroll
    for (int i = 0; i < 2; i++) place[i] = r.row[i] < 0 ? -1 : r.row[i] * a.n_head + r.head[i];
#pragma unroll 4
    for (int i = 0; i < 16 * UNITS / 32; i++) {
        int row = (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS;
        int32_t to0 = __shfl_sync(~0u, place[0], row % 8 * 4), to1 = __shfl_sync(~0u, place[1], row % 8 * 4);
        int32_t at = row < 8 ? to0 : to1;
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(area + (uint32_t)(row / 2 * TWO_ROWS + row % 2 * 256 + (unit ^ row % 8) * 16))
                     : "memory");
        if (at >= 0) *(uint4 *)(a.y + (int64_t)at * D + unit * 8) = v;
    }
    __syncwarp();
}

/* Tiles of a block, its own first one being tile 0. */
static __device__ inline int32_t tiles_of(const prompt_block &b) {
    return (b.n_pos + TILE - 1) / TILE - b.first_tile;
}

/* The sums of one chunk, for join_kernel. */
template <int D>
static __device__ inline void store_part(const attn_args &a, const prompt_block &b, const lane_rows &r,
                                         const float (&sum)[D / 8][4], const soft &x, float *part) {
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float l = attn_quad_sum(x.l[i]);
        if (r.row[i] < 0) continue;
        int64_t entry = b.part + (int64_t)(r.row[i] - b.row) * b.n_part + b.first_tile / CHUNK_TILES;
        float *to = part + (entry * a.n_head + r.head[i]) * (D + 2);
#pragma unroll
        for (int d = 0; d < D / 8; d++) *(float2 *)(to + d * 8 + 2 * c) = make_float2(sum[d][2 * i], sum[d][2 * i + 1]);
        if (c == 0) *(float2 *)(to + D) = make_float2(x.m[i], l);
    }
}

template <int N> static __device__ inline void clear(float (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) a[i][0] = a[i][1] = a[i][2] = a[i][3] = 0.0f;
}
static __device__ inline void pack_tile(const float (&s)[TILE / 8][4], uint32_t (&p)[TILE / 16][4]) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) pack_weights(s + 2 * k, p[k]);
}

/* KV in I8: weights times the scales of V, which came with K (unit); then K's place is free. */
template <int D>
static __device__ inline void scale_weights(float (&s)[TILE / 8][4], const ring<D> &ring, uint32_t unit,
                                            const lane_rows &r, int is_masked, int32_t tile) {
    scale_columns<GY_KV_SCALE_BYTES>(s, ring.v_scales(unit));
    __syncwarp(); /* all lanes have read */
    ring.warp_emptied(unit);
    if (is_masked) mask_tile(s, r, tile, 0.0f);
}

/* One warpgroup's 64 queries of a block whose units begin at unit `begun`. */
template <int D, bool I8>
static __device__ inline void compute_queries(const attn_args &a, const prompt_block &b, int32_t kv_head,
                                              const ring<D> &ring, uint32_t begun, uint32_t round, float4 *sums,
                                              float *out) {
    int half = (int)threadIdx.x / 128, query = half * GROUP_QUERIES + (int)threadIdx.x % 128 / 32 * 16;
    lane_rows r = rows_of(a, b, kv_head, query);
    uint32_t p[TILE / 16][4], q = operand_at(ring.queries() + (uint32_t)(half * GROUP_QUERIES * panels<D>::ROW), 16);
    int32_t n_all = tiles_of(b), n_tile = (half ? b.deepest[1] : b.deepest[0]) / TILE + 1 - b.first_tile;
    /* Tiles that every query sees whole. */
    int32_t n_open = (half ? b.shallowest[1] : b.shallowest[0]) / TILE - b.first_tile;
    if (n_tile < 1) n_tile = 1; /* none of these queries comes so far: all is masked */
    float s[TILE / 8][4], sum[D / 8][4], f[2];
    soft part, total;
    soft_clear(&part);
    soft_clear(&total);
    clear(s);
    clear(sum);
    bar_wait(ring.q_full, round % 2);
    ring.wait_full(begun);
    turn_wait(half);
    wgmma_fence();
    start_scores<D>(s, q, operand_at(ring.at(begun), 16));
    turn_give(half ^ 1);
    wgmma_wait<0>();
    wgmma_hold(s);
    if (!I8) ring.warp_emptied(begun);
    if (n_tile == 1) ring.warp_emptied_queries();
    if (I8) scale_columns<GY_KV_SCALE_BYTES>(s, ring.k_scales(begun));
    if (n_open <= 0) mask_tile(s, r, b.first_tile);
    soft_tile(s, a.scale, &part, f);
    if (I8) scale_weights(s, ring, begun, r, n_open <= 0, b.first_tile);
    pack_tile(s, p);
    for (int32_t t = 1; t < n_tile; t++) {
        uint32_t now = begun + 2 * (uint32_t)t, last = now - 1; /* K of this tile, V of the one before */
        ring.wait_full(now);
        ring.wait_full(last);
        turn_wait(half);
        wgmma_hold(sum);
        wgmma_fence();
        start_scores<D>(s, q, operand_at(ring.at(now), 16));
        start_sums<D>(sum, p, operand_at(ring.at(last), panels<D>::BYTES), (t - 1) % CHUNK_TILES != 0);
        turn_give(half ^ 1);
        wgmma_wait<1>();
        wgmma_hold(s);
        if (!I8) ring.warp_emptied(now);
        if (t == n_tile - 1) ring.warp_emptied_queries();
        soft ended = part;
        if (t % CHUNK_TILES == 0) soft_clear(&part);
        if (I8) scale_columns<GY_KV_SCALE_BYTES>(s, ring.k_scales(now));
        if (t >= n_open) mask_tile(s, r, b.first_tile + t);
        soft_tile(s, a.scale, &part, f);
        if (I8) scale_weights(s, ring, now, r, t >= n_open, b.first_tile + t);
        wgmma_hold(s);
        computed_here(fminf(part.l[0], part.l[1]));
        wgmma_wait<0>();
        wgmma_hold(sum);
        ring.warp_emptied(last);
        if (t % CHUNK_TILES == 0) {
            join_chunk<D, COMPUTE>(sum, ended, &total, sums, t == CHUNK_TILES);
            keep_sums<D, COMPUTE>(sum, sums);
        } else {
            rescale<D>(sum, f);
        }
        pack_tile(s, p);
    }
    uint32_t last = begun + 2 * (uint32_t)n_tile - 1;
    ring.wait_full(last);
    turn_wait(half);
    wgmma_hold(sum);
    wgmma_fence();
    start_sums<D>(sum, p, operand_at(ring.at(last), panels<D>::BYTES), (n_tile - 1) % CHUNK_TILES != 0);
    turn_give(half ^ 1);
    wgmma_wait<0>();
    wgmma_hold(sum);
    ring.warp_emptied(last);
    for (int32_t t = n_tile; t < n_all; t++) { /* only the other group sees them */
        uint32_t k = begun + 2 * (uint32_t)t;
        ring.wait_full(k);
        ring.warp_emptied(k);
        ring.wait_full(k + 1);
        ring.warp_emptied(k + 1);
        turn_wait(half); /* not before: the other group's next turn may wait for what takes these places */
        turn_give(half ^ 1);
    }
    if (b.n_part) {
        store_part<D>(a, b, r, sum, part, out);
    } else {
        join_chunk<D, COMPUTE>(sum, part, &total, sums, n_tile <= CHUNK_TILES);
        write_wide<D>(a, r, sum, total, sums);
    }
}

template <int D, bool I8>
static __device__ inline void compute_items(const attn_args &a, const prompt_work &work, prompt_block b,
                                            const ring<D> &ring, float4 *sums) {
    int half = (int)threadIdx.x / 128;
    uint32_t unit = 0;
    int32_t round = 0;
    if (half == 1) turn_give(0);
    do {
        compute_queries<D, I8>(a, b, b.kv_head, ring, unit, (uint32_t)round, sums, work.part);
        unit += 2 * (uint32_t)tiles_of(b);
    } while (next_block(work, ++round, &b));
    if (half == 0) turn_wait(0);
}

/* The thread block's barriers, at shared address bars, and where its ring lies. */
template <int D> static __device__ inline ring<D> open_ring(uint32_t smem, uint32_t bars) {
    const ring<D> ring = {smem, bars, bars + 8 * STAGES, bars + 16 * STAGES, bars + 16 * STAGES + 8};
    if (threadIdx.x == 0) {
        bar_init(ring.q_full, PRODUCER_WARPS);
        bar_init(ring.q_empty, COMPUTE_WARPS);
        for (uint32_t s = 0; s < STAGES; s++) {
            bar_init(ring.full + 8 * s, PRODUCER_WARPS);
            bar_init(ring.empty + 8 * s, COMPUTE_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    return ring;
}
#endif

template <int D>
static __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1)
    wgmma_prompt(attn_args a, prompt_work work, int use_boxes, const __grid_constant__ CUtensorMap boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char raw[];
    char *base = raw + (1024 - smem_at(raw) % 1024) % 1024;
    uint32_t smem = smem_at(base);
    if (threadIdx.x == COMPUTE && use_boxes) asm volatile("prefetch.tensormap [%0];" ::"l"(&boxes) : "memory");
    const ring<D> ring = open_ring<D>(smem, smem + prompt_smem<D>::BARS);
    const prompt_block first = work.item[blockIdx.x]; /* brought by a copy, so no kernel may still be writing it */
    wait_for_previous();
    if (threadIdx.x >= COMPUTE) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        bring_tiles<D>(a, work, first, &boxes, use_boxes, ring);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        compute_items<D, false>(a, work, first, ring, (float4 *)(base + prompt_smem<D>::SUMS) + threadIdx.x);
    }
#else
    (void)a;
    (void)work;
    (void)use_boxes;
#endif
}

template <int D>
static __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1) wgmma_i8_prompt(attn_args a, prompt_work work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(STARTS_AT) char raw_i8[];
    char *base = raw_i8 + (1024 - smem_at(raw_i8) % 1024) % 1024;
    uint32_t smem = smem_at(base);
    const ring<D> ring = open_ring<D>(smem, smem + i8_prompt_smem<D>::BARS);
    const prompt_block first = work.item[blockIdx.x];
    wait_for_previous();
    if (threadIdx.x >= COMPUTE) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        bring_i8_tiles<D>(a, work, first, ring);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        compute_items<D, true>(a, work, first, ring, (float4 *)(base + prompt_smem<D>::SUMS) + threadIdx.x);
    }
#else
    (void)a;
    (void)work;
#endif
}

/* ---- any GPU ----------------------------------------------------------------------------------------------------- */

enum { MMA_WARPS = 4, MMA_THREADS = 32 * MMA_WARPS };
template <int D> struct mma_smem {
    static constexpr int SUMS = 2 * panels<D>::ALL, SCALES = SUMS + MMA_THREADS * D / 8 * 16, BYTES = SCALES;
    static constexpr int I8_BYTES = SCALES + SCALES_BYTES;
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

/* Brings tiles of a block's K and V (to), and with K the scales of both. */
template <int D, bool I8> struct tiles_of_rows {
    const attn_args &a;
    const prompt_block &b;
    int32_t kv_head;
    uint32_t scales;

    __device__ inline int32_t slot(int32_t tile) const {
        int32_t j = tile * TILE + (int)threadIdx.x;
        return j < b.n_pos ? a.map[b.map_off + j] : -1;
    }
    __device__ inline void bring(uint32_t to, int is_v, int32_t tile) const {
        const bf16 *from = a.kv + (int64_t)kv_head * D + (is_v ? (int64_t)BOX * a.shape.width : 0);
        int32_t at = slot(tile);
        copy_rows<D, 4>(to, (int)threadIdx.x / 32 * 32, from, at < 0 ? -1 : place_of<D>(a.shape, at));
        copy_commit();
    }
};
template <int D> struct tiles_of_rows<D, true> : tiles_of_rows<D, false> {
    __device__ inline void bring(uint32_t to, int is_v, int32_t tile) const {
        const i8_head<D> from(this->a.kv, this->a.shape, this->kv_head);
        int32_t at = this->slot(tile), row = at < 0 ? -1 : i8_row_of(this->a.shape, at);
        bring_widened(from, is_v && row >= 0 ? row + BOX : row, to, (int)threadIdx.x / 32 * 32, [] {});
        copy_commit(); /* nothing; whoever waits counts it */
        if (is_v) return;
        uint32_t mine = this->scales + threadIdx.x * GY_KV_SCALE_BYTES;
        store_f32(mine, row < 0 ? 0.0f : *from.scale_of(row));
        store_f32(mine + SCALES_BYTES / 2, row < 0 ? 0.0f : *from.scale_of(row + BOX));
    }
};

template <int D, bool I8>
static __global__ void __launch_bounds__(MMA_THREADS, 2) mma_prompt(attn_args a, const prompt_block *blocks) {
    extern __shared__ __align__(128) char raw[];
    static_assert(MMA_THREADS == TILE, "a thread looks up one position of a tile");
    wait_for_previous();
    uint32_t k_at = smem_at(raw), v_at = k_at + panels<D>::ALL, scales = k_at + mma_smem<D>::SCALES;
    float4 *sums = (float4 *)(raw + mma_smem<D>::SUMS) + threadIdx.x;
    prompt_block b = blocks[blockIdx.y];
    int32_t kv_head = (int32_t)blockIdx.x, n_tile = (b.n_pos + TILE - 1) / TILE;
    const tiles_of_rows<D, I8> from = {a, b, kv_head, scales};
    int query = (int)threadIdx.x / 32 * 16;
    lane_rows r = rows_of(a, b, kv_head, query);
    uint32_t q[D / 16][4];
    float s[TILE / 8][4], sum[D / 8][4], f[2];
    soft part, total;
    soft_clear(&total);
    from.bring(k_at, 0, 0);
    block_queries<D>(a, b, kv_head, query, q);
    for (int32_t t = 0; t < n_tile; t++) {
        if (t % CHUNK_TILES == 0) {
            soft_clear(&part);
#pragma unroll
            for (int d = 0; d < D / 8; d++) sum[d][0] = sum[d][1] = sum[d][2] = sum[d][3] = 0.0f;
        }
        from.bring(v_at, 1, t);
        copy_wait<1>();
        __syncthreads();
        mma_scores<D>(s, q, k_at);
        if (I8) { /* the next K brings other scales */
            scale_columns<GY_KV_SCALE_BYTES>(s, scales);
            mask_tile(s, r, t);
            soft_tile(s, a.scale, &part, f);
            scale_columns<GY_KV_SCALE_BYTES>(s, scales + SCALES_BYTES / 2);
            mask_tile(s, r, t, 0.0f);
        }
        __syncthreads();
        if (t + 1 < n_tile) from.bring(k_at, 0, t + 1);
        if (!I8) {
            mask_tile(s, r, t);
            soft_tile(s, a.scale, &part, f);
        }
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

template <int D, bool I8>
static void launch_narrow(cuda_be *c, const attn_args &a, const prompt_block *blocks, int32_t n) {
    const int bytes = I8 ? mma_smem<D>::I8_BYTES : mma_smem<D>::BYTES;
    dim3 grid((unsigned)(a.n_head / a.group), (unsigned)n);
    cuda_ok(c, cudaFuncSetAttribute(mma_prompt<D, I8>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "attention: shared memory");
    launch_early(c, mma_prompt<D, I8>, grid, MMA_THREADS, (size_t)bytes, a, blocks);
}

template <bool I8>
static void narrow_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n) {
    if (d == 64)
        launch_narrow<64, I8>(c, a, blocks, n);
    else if (d == 96)
        launch_narrow<96, I8>(c, a, blocks, n);
    else
        launch_narrow<128, I8>(c, a, blocks, n);
}

void cuda_attn_prompt(cuda_be *c, int32_t d, const attn_args &a, const prompt_block *blocks, int32_t n) {
    if (a.is_i8)
        narrow_prompt<true>(c, d, a, blocks, n);
    else
        narrow_prompt<false>(c, d, a, blocks, n);
}

/* The pool as [plane][position of the block][head][element], a box of it 16 positions of a panel. The pool's end is not
 * known here, so the map has none: the slot map holds slots that exist. */
template <int D> static int map_pool(const attn_args &a, CUtensorMap *out) {
    typedef panels<D> P;
    void *fn = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return 0;
    }
    const cuuint64_t width = (cuuint64_t)a.shape.width * 2;
    const cuuint64_t dims[4] = {D, width / (D * 2), BOX, (cuuint64_t)1 << 31}, steps[3] = {D * 2, width, width * BOX};
    const cuuint32_t box[4] = {P::WIDE, 1, BOX, 1}, each[4] = {1, 1, 1, 1};
    return ((PFN_cuTensorMapEncodeTiled_v12000)fn)(
               out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)a.kv, dims, steps, box, each,
               CU_TENSOR_MAP_INTERLEAVE_NONE, P::ROW == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int D> static void launch_i8_wide(cuda_be *c, const attn_args &a, const prompt_work &work) {
    const int bytes = i8_prompt_smem<D>::BYTES;
    cuda_ok(c, cudaFuncSetAttribute(wgmma_i8_prompt<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "attention: shared memory");
    launch_early(c, wgmma_i8_prompt<D>, dim3((unsigned)work.n_walk), COMPUTE + PRODUCERS, (size_t)bytes, a, work);
}

template <int D> static void launch_wide(cuda_be *c, const attn_args &a, const prompt_work &work, kv_boxes *boxes) {
    if (a.is_i8) {
        launch_i8_wide<D>(c, a, work);
        return;
    }
    if (boxes->base != a.kv || boxes->n_layer != a.shape.n_layer || boxes->width != a.shape.width || boxes->d != D) {
        boxes->has = map_pool<D>(a, &boxes->map);
        boxes->base = a.kv;
        boxes->n_layer = a.shape.n_layer;
        boxes->width = a.shape.width;
        boxes->d = D;
    }
    cuda_ok(c,
            cudaFuncSetAttribute(wgmma_prompt<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, prompt_smem<D>::BYTES),
            "attention: shared memory");
    launch_early(c, wgmma_prompt<D>, dim3((unsigned)work.n_walk), COMPUTE + PRODUCERS, prompt_smem<D>::BYTES, a, work,
                 boxes->has, boxes->map);
}

void cuda_attn_wide(cuda_be *c, int32_t d, const attn_args &a, const prompt_work &work, kv_boxes *boxes) {
    if (d == 64)
        launch_wide<64>(c, a, work, boxes);
    else if (d == 96)
        launch_wide<96>(c, a, work, boxes);
    else
        launch_wide<128>(c, a, work, boxes);
}
