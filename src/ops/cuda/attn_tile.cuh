/* The arithmetic of attention, once for prompts and for decoding.
 *
 * The unit is a tile of 128 positions, counted from position 0; CHUNK_TILES tiles are a chunk. Within a chunk a query
 * (row and head) walks its tiles in order, from nothing:
 *     s_j = q . k_j              t = max_j s_j scale log2(e)          m' = t > m + LAG ? t : m
 *     p_j = 2^(s_j scale log2(e) - m')      l = l 2^(m - m') + sum_j p_j      a = a 2^(m - m') + sum_j bf16(p_j) v_j
 * and chunks are joined strictly in order:
 *     M' = max(M, m)    A' = A 2^(M - M') + a 2^(m - M')    L' likewise            y = A (1 / L) at the end
 * m is a reference, not the maximum: it follows only when the maximum has outgrown it by LAG (weights stay below
 * 2^LAG), so sums are almost never rescaled; a factor of 1 changes no bit, so it may be left out.
 *
 * Sums: q . k_j and sum_j p_j v_j are chains of 16-wide products (k ascending) with f32 sums; mma.m16n8k16 and Hopper's
 * wgmma give the same bits for them (docs/kernels.md). sum_j p_j: lane 4 g + c of a fragment adds positions
 * 8 t + 2 c, 8 t + 2 c + 1 of four t (group_weights), the four groups of 32 positions are added as (0 + 1) + (2 + 3),
 * lanes c at the end of the chunk (attn_quad_sum). Prompts join in the kernel, decoding stores (m, l, a) of each chunk
 * and joins afterwards. So a query's bits depend on its own q, k, v alone: not on which queries share its product, nor
 * on how many rows run.
 *
 * A masked position has weight 0, and what lies beyond the last position of a block is loaded as 0. The one leak: V of
 * a later token of the same tile enters an earlier row's sum times 0, so if it is NaN or infinite that row becomes NaN
 * too.
 */
#ifndef GY_OPS_CUDA_ATTN_TILE_CUH
#define GY_OPS_CUDA_ATTN_TILE_CUH

#include "ops/cuda/cuda_int.cuh"

enum { TILE = 128, CHUNK_TILES = 4, CHUNK = TILE * CHUNK_TILES };
#define LAG 8.0f

/* A tile of K or V in shared memory: panels of 64 (or 32, where 64 does not divide D) of the head's elements, a
 * position a row of 128 (64) bytes, its 16-byte units exclusive-ored by position so that 8 positions of one unit lie in
 * different banks. The layout is wgmma's; ldmatrix is content with it. */
template <int D> struct panels {
    static_assert(D % 32 == 0, "panels of 32 or 64 elements");
    static constexpr int WIDE = D % 64 ? 32 : 64, N = D / WIDE, ROW = WIDE * 2, UNITS = WIDE / 8;
    static constexpr int BYTES = TILE * ROW, ALL = N * BYTES; /* of a panel, of all */
};
template <int D> static __device__ inline uint32_t unit_at(int row, int unit) {
    typedef panels<D> P;
    int turn = P::UNITS == 8 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(unit / P::UNITS * P::BYTES + row * P::ROW + (unit % P::UNITS ^ turn) * 16);
}

static __device__ inline uint32_t smem_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The lane, such that addresses made of it are made anew in each tile: kept over the walk they would take more
 * registers than the sums leave. */
static __device__ inline int lane_anew(void) {
    int lane = (int)threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    return lane;
}

#ifndef GY_EMULATED /* tests/stage has its own of these */
static __device__ inline void ldmatrix4(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ inline void ldmatrix4_trans(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ inline void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline float exp2_fast(float x) { /* 2 ulp; 2^0 = 1 exactly; -inf gives 0 */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 16 bytes to shared memory, zeros instead when !valid. */
static __device__ inline void copy16(uint32_t to, const void *from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
static __device__ inline void copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ inline void copy_wait(void) { /* until at most N groups are under way */
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

/* Where a slot's K of a layer lies, counted in heads (of D elements: 31 bits reach over any GPU's memory). */
template <int D> static __device__ inline int32_t place_of(kv_shape shape, int32_t slot) {
    int32_t plane = (slot / GY_BLOCK_SLOTS * shape.n_layer + shape.il) * 2;
    return (plane * GY_BLOCK_SLOTS + slot % GY_BLOCK_SLOTS) * (shape.width / D);
}

/* One warp brings 32 positions of one head's K (or V), first.. of the tile at `to`: from is the head's elements in slot
 * 0, place that of this lane's position, or -1 for zeros. */
template <int D, int UNROLL>
static __device__ inline void copy_rows(uint32_t to, int first, const bf16 *from, int32_t place) {
    constexpr int UNITS = D / 8;
    int lane = lane_anew();
#pragma unroll UNROLL
    for (int i = 0; i < UNITS; i++) {
        int p = (i * 32 + lane) / UNITS, u = (i * 32 + lane) % UNITS;
        int32_t at = __shfl_sync(~0u, place, p);
        copy16(to + unit_at<D>(first + p, u), from + (int64_t)(at < 0 ? 0 : at) * D + u * 8, at >= 0);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Largest score of the lane's row over the lane's four columns' quads. */
static __device__ inline float attn_quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ inline float attn_quad_sum(float v) {
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    return __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
}

/* The reference after a tile whose largest score is top; base is what scores are taken relative to, the result the
 * factor of what was summed before. */
static __device__ inline float attn_advance(float top, float scale, float *m, float *base) {
    float t = __fmul_rn(top, scale), old = *m;
    *m = t > __fadd_rn(old, LAG) ? t : old;
    *base = *m == -INFINITY ? 0.0f : *m;
    return exp2_fast(__fsub_rn(old, *base));
}

/* Scores of 32 positions become weights; sum: of each row's. */
static __device__ inline void group_weights(float (*s)[4], float scale, const float base[2], float sum[2]) {
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int t = 0; t < 4; t++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[t][e] = exp2_fast(__fmaf_rn(s[t][e], scale, -base[e >> 1]));
            sum[e >> 1] = __fadd_rn(sum[e >> 1], s[t][e]);
        }
    }
}
static __device__ inline float attn_add_groups(float l, float f, float g0, float g1, float g2, float g3) {
    return __fmaf_rn(l, f, __fadd_rn(__fadd_rn(g0, g1), __fadd_rn(g2, g3)));
}

static __device__ inline uint32_t pack_rn(float lo, float hi) {
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&h;
}
/* Weights of 16 positions as the left operand. */
static __device__ inline void pack_weights(const float (*s)[4], uint32_t p[4]) {
    p[0] = pack_rn(s[0][0], s[0][1]);
    p[1] = pack_rn(s[0][2], s[0][3]);
    p[2] = pack_rn(s[1][0], s[1][1]);
    p[3] = pack_rn(s[1][2], s[1][3]);
}

/* Factors of attn_join. Where nothing was seen yet (-inf on either side) the other side stands as it is. */
static __device__ inline void attn_factors(float m_old, float m_new, float *m_out, float *f_old, float *f_new) {
    float m = fmaxf(m_old, m_new), base = m == -INFINITY ? 0.0f : m;
    *f_old = exp2_fast(__fsub_rn(m_old, base));
    *f_new = exp2_fast(__fsub_rn(m_new, base));
    *m_out = m;
}
static __device__ inline float attn_join(float sum, float f_old, float part, float f_new) {
    return __fmaf_rn(part, f_new, __fmul_rn(sum, f_old));
}
static __device__ inline uint16_t attn_result(float a, float inverse) {
    return bf16_bits(__fmul_rn(a, inverse));
}

/* Fragments of 16 queries: of query i, head's elements at q_of(i), or zeros where that is NULL. */
template <int D, typename F> static __device__ inline void load_queries(F q_of, uint32_t (&q)[D / 16][4]) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bf16 *p = q_of(g + 8 * i);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            q[d][i] = p ? *(const uint32_t *)(p + d * 16 + 2 * c) : 0;
            q[d][i + 2] = p ? *(const uint32_t *)(p + d * 16 + 8 + 2 * c) : 0;
        }
    }
}

#endif
