/* KV in I8 on its way into attention's products. A row of K or V is [KV heads][D] whole numbers, then [KV heads] f32
 * scales (ops.h). The numbers become BF16, which holds them exactly, and take the ways of a KV in BF16: the same tiles,
 * the same order of elements and positions. Scales stand outside of the sums over a head's elements (attn_tile.cuh has
 * the rest):
 *     s_j = (q . k8_j) k_scale_j      p_j as it is there      a += sum_j bf16(p_j v_scale_j) v8_j
 * so they cost two f32 products a query and position, and one rounding each; l is the sum of p_j. Scales of 2^n give
 * the bits of a KV in BF16 with the same values. A scale of NaN makes NaN of the rows that see its position, and of no
 * others: weights of masked positions are set to 0 behind the product.
 *
 * Rows begin at multiples of 4 bytes; of 8 or 16 where the number of KV heads is even or a multiple of 4 (STEP).
 */
#ifndef GY_OPS_CUDA_ATTN_I8_CUH
#define GY_OPS_CUDA_ATTN_I8_CUH

#include "ops/cuda/attn_tile.cuh"
#include "ops/cuda/eight_bits.cuh"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Two bytes of x as BF16: 0x43bb is 128 plus the seven lower bits b as long as b has no sign; less 128, or 256 where it
 * has one. pick: of which bytes, each below one of 0x43. */
enum { PICK_01 = 0x4140, PICK_23 = 0x4342, PICK_02 = 0x4240, PICK_13 = 0x4341 };
static __device__ inline uint32_t widen_i8(uint32_t x, uint32_t pick) {
    const uint32_t w = __byte_perm(x, 0x43434343u, pick);
    return bits_of_two(__hsub2_rn(two_of_bits(w & 0xff7fff7fu), two_of_bits(w & 0xff80ff80u)));
}

/* ---- where they lie ---------------------------------------------------------------------------------------------- */

/* Where the row of a slot's K in a layer is, counted in rows; that of its V is BLOCK_SLOTS further. */
static __device__ inline int32_t i8_row_of(kv_shape shape, int32_t slot) {
    int32_t plane = (slot / GY_BLOCK_SLOTS * shape.n_layer + shape.il) * 2;
    return plane * GY_BLOCK_SLOTS + slot % GY_BLOCK_SLOTS;
}

/* One KV head in the rows of the pool. */
template <int D> struct i8_head {
    const char *numbers; /* in row 0 */
    const char *scale;   /* likewise */
    int32_t row_bytes;

    __device__ inline i8_head(const void *kv, kv_shape shape, int32_t kv_head) {
        const int32_t n_head_kv = shape.width / (D + GY_KV_SCALE_BYTES);
        numbers = (const char *)kv + kv_head * D;
        scale = (const char *)kv + n_head_kv * D + kv_head * GY_KV_SCALE_BYTES;
        row_bytes = shape.width;
    }
    __device__ inline const char *numbers_of(int32_t row) const { return numbers + (int64_t)row * row_bytes; }
    __device__ inline const float *scale_of(int32_t row) const {
        return (const float *)(scale + (int64_t)row * row_bytes);
    }
    __device__ inline int step(void) const { return row_bytes % 16 == 0 ? 16 : row_bytes % 8 == 0 ? 8 : 4; }
};

/* ---- by registers, into a tile of BF16 --------------------------------------------------------------------------- */

/* A warp brings 32 positions of D / 16 pieces of 16 bytes, D / 16 pieces a lane. Eight lanes that store together have
 * rows and pieces that lie in different banks of the panels: 4 pieces of 2 rows, or 2 of 4. */
template <int D> struct i8_pieces {
    static constexpr int N = D / 16, LANES = D % 64 ? 2 : 4, ROWS = 32 / LANES, TURNS = N / LANES;
    static_assert(N % LANES == 0 && TURNS * LANES * 32 == N * 32, "every piece once");
    static __device__ inline int position(int i, int lane) { return i / TURNS * ROWS + lane / LANES; }
    static __device__ inline int piece(int i, int lane) { return i % TURNS * LANES + lane % LANES; }
};

static __device__ inline uint4 load_16(const char *p, int step) {
    if (step == 16) return *(const uint4 *)p;
    if (step == 8) {
        uint2 a = *(const uint2 *)p, b = *(const uint2 *)(p + 8);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
    const uint32_t *w = (const uint32_t *)p;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

static __device__ inline void store_16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

/* row: of this lane's position, -1 for zeros. */
template <int D>
static __device__ inline uint4 load_piece(const i8_head<D> &from, int32_t row, int i, int lane, int step) {
    typedef i8_pieces<D> P;
    int32_t at = __shfl_sync(~0u, row, P::position(i, lane));
    return at < 0 ? make_uint4(0, 0, 0, 0) : load_16(from.numbers_of(at) + P::piece(i, lane) * 16, step);
}
template <int D> static __device__ inline void store_piece(uint32_t to, int first, uint4 x, int i, int lane) {
    typedef i8_pieces<D> P;
    const int p = first + P::position(i, lane), u = 2 * P::piece(i, lane);
    store_16(to + unit_at<D>(p, u), widen_i8(x.x, PICK_01), widen_i8(x.x, PICK_23), widen_i8(x.y, PICK_01),
             widen_i8(x.y, PICK_23));
    store_16(to + unit_at<D>(p, u + 1), widen_i8(x.z, PICK_01), widen_i8(x.z, PICK_23), widen_i8(x.w, PICK_01),
             widen_i8(x.w, PICK_23));
}

/* Positions first.. of the tile at `to`, as BF16. AHEAD pieces are under way; ready() says when the tile may be
 * written: the first ones are asked for before. */
template <int D, typename F>
static __device__ inline void bring_widened(const i8_head<D> &from, int32_t row, uint32_t to, int first, F ready) {
    enum { N = i8_pieces<D>::N, AHEAD = 4 };
    const int lane = lane_anew(), step = from.step();
    uint4 raw[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) raw[i] = load_piece(from, row, i, lane, step);
    ready();
#pragma unroll
    for (int i = 0; i < N; i++) {
        store_piece<D>(to, first, raw[i % AHEAD], i, lane);
        if (i + AHEAD < N) raw[i % AHEAD] = load_piece(from, row, i + AHEAD, lane, step);
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

static __device__ inline float shared_f32(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
static __device__ inline void store_f32(uint32_t to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

static __device__ inline float2 shared_two_f32(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* Columns 8 t + 2 c, 8 t + 2 c + 1 of N products, times the scales of their positions, which lie STEP bytes apart. */
template <int STEP, int N> static __device__ inline void scale_columns(float (&s)[N][4], uint32_t scales) {
    const uint32_t at = scales + (uint32_t)(lane_anew() % 4 * 2 * STEP);
#pragma unroll
    for (int t = 0; t < N; t++) {
        const uint32_t here = at + (uint32_t)(t * 8 * STEP);
        const float2 f = STEP == 4 ? shared_two_f32(here) : make_float2(shared_f32(here), shared_f32(here + STEP));
        s[t][0] = __fmul_rn(s[t][0], f.x);
        s[t][1] = __fmul_rn(s[t][1], f.y);
        s[t][2] = __fmul_rn(s[t][2], f.x);
        s[t][3] = __fmul_rn(s[t][3], f.y);
    }
}

#endif
