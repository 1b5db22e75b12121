/* The arithmetic of attention, once for prompts and for decoding.
 *
 * The unit is a tile of 64 positions, counted from position 0. For one query (row and head) a tile gives
 *     m = max_j s_j     l = sum_j 2^(s_j - m)     a = sum_j 2^(s_j - m) v_j        s_j = (q . k_j) scale log2(e)
 * each from nothing, and tiles are joined strictly in order:
 *     M' = max(M, m)    A' = A 2^(M - M') + a 2^(m - M')    L' likewise            y = A / L at the end
 * Prompts join in registers as they walk the context; decoding spreads the tiles of a row over the device, stores (m,
 * l, a) and joins afterwards. Both call attn_tile and attn_join, so a query's bits depend on its own q, k, v alone: not
 * on which queries share its 16-row product, nor on how many rows run.
 *
 * attn_tile is one warp's work on 16 queries: mma.m16n8k16 of BF16 with f32 sums. Fragments (lane = 4 g + c): a thread
 * holds, of queries g and g + 8, columns 2 c and 2 c + 1 of each 8-wide tile. Weights enter the second product as two
 * BF16 terms, p = hi + lo, so they are good to 2^-17 (ops.h) where one term would be good to 2^-9.
 *
 * A masked position has weight 0, and what lies beyond the last position of a block is loaded as 0. The one leak: V of
 * a later token of the same tile enters an earlier row's sum times 0, so if it is NaN or infinite that row becomes NaN
 * too.
 */
#ifndef GY_OPS_CUDA_ATTN_TILE_CUH
#define GY_OPS_CUDA_ATTN_TILE_CUH

#include "ops/cuda/cuda_int.cuh"

enum { TILE = 64 };

/* Rows of K and V in shared memory are padded by 16 bytes: the 8 addresses of an ldmatrix then fall into different
 * banks. */
template <int D> struct attn_smem {
    static_assert(D % 32 == 0, "scores take 32 of the head's elements at a time");
    enum { ROW = D + 8, ELEMS = TILE * ROW }; /* of K or V */
};

static __device__ inline uint32_t smem_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

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

/* Factors of attn_join. Where nothing was seen yet (-inf on either side) the other side stands as it is. */
static __device__ inline void attn_factors(float m_old, float m_tile, float *m_out, float *f_old, float *f_tile) {
    float m = fmaxf(m_old, m_tile), base = m == -INFINITY ? 0.0f : m;
    *f_old = exp2_fast(m_old - base);
    *f_tile = exp2_fast(m_tile - base);
    *m_out = m;
}
static __device__ inline float attn_join(float sum, float f_old, float tile, float f_tile) {
    return __fmaf_rn(tile, f_tile, __fmul_rn(sum, f_old));
}

static __device__ inline uint32_t pack(uint16_t lo, uint16_t hi) {
    return (uint32_t)lo | (uint32_t)hi << 16;
}
/* p0, p1 as two pairs of BF16 whose sum is p to 2^-17. */
static __device__ inline void split(float p0, float p1, uint32_t *hi, uint32_t *lo) {
    __nv_bfloat162 h = __floats2bfloat162_rn(p0, p1);
    __nv_bfloat162 l = __floats2bfloat162_rn(__fsub_rn(p0, __low2float(h)), __fsub_rn(p1, __high2float(h)));
    *hi = *(uint32_t *)&h;
    *lo = *(uint32_t *)&l;
}

template <int D> struct attn_part { /* of queries g (index 0) and g + 8 (index 1) */
    float m[2], l[2];
    float a[D / 8][4]; /* 8-wide pieces of the head; [0], [1] of query g, [2], [3] of g + 8 */
};

/* q: fragments of the 16 queries. last[i]: the last position in this tile that query g + 8 i may see, 0..63; negative:
 * none. k, v: shared memory. scale is times log2(e). */
template <int D>
static __device__ inline void attn_tile(const uint32_t q[D / 16][4], const bf16 *k, const bf16 *v, const int last[2],
                                        float scale, attn_part<D> *out) {
    enum { ROW = attn_smem<D>::ROW };
    int lane = (int)threadIdx.x % 32, c = lane % 4;
    float s[TILE / 8][4];
    /* ldmatrix address of this lane: row lane % 8 of matrix lane / 8. */
    uint32_t k_at = smem_at(k + (lane % 8) * ROW + lane / 8 * 8);
    /* Positions innermost: a score's products follow one another through the head, and 8 scores are under way at once.
     */
#pragma unroll
    for (int t = 0; t < TILE / 8; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 32; d++) {
#pragma unroll
        for (int t = 0; t < TILE / 8; t += 2) {
            uint32_t b[2][4];
            ldmatrix4(b[0], k_at + (uint32_t)((t * 8 * ROW + d * 32) * 2));
            ldmatrix4(b[1], k_at + (uint32_t)(((t + 1) * 8 * ROW + d * 32) * 2));
            mma(s[t], q[2 * d], b[0][0], b[0][1]);
            mma(s[t + 1], q[2 * d], b[1][0], b[1][1]);
            mma(s[t], q[2 * d + 1], b[0][2], b[0][3]);
            mma(s[t + 1], q[2 * d + 1], b[1][2], b[1][3]);
        }
    }
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < TILE / 8; t++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[t][e] = t * 8 + 2 * c + (e & 1) <= last[e >> 1] ? __fmul_rn(s[t][e], scale) : -INFINITY;
            m[e >> 1] = fmaxf(m[e >> 1], s[t][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(m[i], __shfl_xor_sync(~0u, m[i], 1));
        m[i] = fmaxf(m[i], __shfl_xor_sync(~0u, m[i], 2));
        out->m[i] = m[i];
        if (m[i] == -INFINITY) m[i] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < TILE / 8; t++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[t][e] = exp2_fast(__fsub_rn(s[t][e], m[e >> 1]));
            l[e >> 1] = __fadd_rn(l[e >> 1], s[t][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        l[i] = __fadd_rn(l[i], __shfl_xor_sync(~0u, l[i], 1));
        out->l[i] = __fadd_rn(l[i], __shfl_xor_sync(~0u, l[i], 2));
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++) out->a[d][0] = out->a[d][1] = out->a[d][2] = out->a[d][3] = 0.0f;
    /* Matrices 0, 1: positions 0..7 and 8..15 of 8 columns of V; 2, 3: of the next 8. */
    uint32_t v_at = smem_at(v + (lane % 8 + lane / 8 % 2 * 8) * ROW + lane / 16 * 8);
#pragma unroll
    for (int t = 0; t < TILE / 16; t++) {
        uint32_t hi[4], lo[4];
        split(s[2 * t][0], s[2 * t][1], &hi[0], &lo[0]);
        split(s[2 * t][2], s[2 * t][3], &hi[1], &lo[1]);
        split(s[2 * t + 1][0], s[2 * t + 1][1], &hi[2], &lo[2]);
        split(s[2 * t + 1][2], s[2 * t + 1][3], &hi[3], &lo[3]);
#pragma unroll
        for (int d = 0; d < D / 16; d += 2) { /* 4 pieces of the head are under way at once */
            uint32_t b[2][4];
            ldmatrix4_trans(b[0], v_at + (uint32_t)((t * 16 * ROW + d * 16) * 2));
            ldmatrix4_trans(b[1], v_at + (uint32_t)((t * 16 * ROW + (d + 1) * 16) * 2));
#pragma unroll
            for (int e = 0; e < 4; e++) mma(out->a[2 * d + e], hi, b[e / 2][e % 2 * 2], b[e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int e = 0; e < 4; e++) mma(out->a[2 * d + e], lo, b[e / 2][e % 2 * 2], b[e / 2][e % 2 * 2 + 1]);
        }
    }
}

#endif
