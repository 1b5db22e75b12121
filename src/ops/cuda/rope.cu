/* Positions: the cos and sin table, rope with its KV write (act or I8), and Huginn's
 * initial state. Contracts: ops/ops.h. All are element-wise; bits are ref's
 * (cos, sin, log in f64 by CUDA's own functions, then rounded once to f32).
 */
#include "ops/cuda/bf16_two.cuh"

enum { THREADS = 256 };

static __global__ void rope_table_kernel(const int32_t *pos, const float *inv_freq, const float *table, int32_t n,
                                         int32_t half, int round_bf16, float *cos_out, float *sin_out) {
    wait_for_previous();
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    int64_t r = at / half, i = at % half;
    int32_t p = pos[r] < 0 ? 0 : pos[r];
    float c, s;
    if (table) {
        c = table[((int64_t)p * half + i) * 2];
        s = table[((int64_t)p * half + i) * 2 + 1];
    } else {
        double angle = (double)((float)p * inv_freq[i]);
        c = (float)cos(angle);
        s = (float)sin(angle);
    }
    cos_out[at] = round_bf16 ? round_to<bf16>(c) : c;
    sin_out[at] = round_bf16 ? round_to<bf16>(s) : s;
}

void cuda_rope_table(gy_backend *be, const gy_rope_table_args *a) {
    cuda_be *c = of_be(be);
    int32_t n = a->n_row * a->half;
    if (n <= 0) return;
    launch_early(c, rope_table_kernel, dim3(blocks_for(n, THREADS)), THREADS, 0, a->pos, a->inv_freq, a->table, n,
                 a->half, a->round_bf16, a->cos_out, a->sin_out);
    cuda_launched(c, "rope_table");
}

typedef struct rope_args {
    const float *cos, *sin;
    const int32_t *slot;
    int32_t n_head, n_head_kv, half;
    int is_pairs, round_each;
    kv_shape kv;
} rope_args;

/* One pair of one head, biased (bias0, bias1: where in bias) and rotated. */
template <typename T>
static __device__ inline void rotate(const rope_args &p, float v0, float v1, const T *bias, int64_t bias0,
                                     int64_t bias1, float c, float s, float *out0, float *out1) {
    if (bias) {
        v0 = round_to<T>(v0 + get(bias, bias0));
        v1 = round_to<T>(v1 + get(bias, bias1));
    }
    rotate_pair<T>(p.round_each, v0, v1, c, s, out0, out1);
}

/* Grid (pairs of a row / 256, rows). Item = one pair of a q, k or v head, in
 * this order. */
template <typename T>
static __global__ void rope_kv_kernel(rope_args p, T *qkv, const T *q_bias, const T *k_bias, T *kv_base) {
    wait_for_previous();
    int32_t item = (int32_t)(blockIdx.x * THREADS + threadIdx.x), r = (int32_t)blockIdx.y;
    int32_t head = item / p.half, i = item % p.half, d = 2 * p.half;
    if (head >= p.n_head + 2 * p.n_head_kv) return;
    int32_t i0 = p.is_pairs ? 2 * i : i, i1 = p.is_pairs ? 2 * i + 1 : i + p.half;
    T *x = qkv + (int64_t)r * (p.n_head + 2 * p.n_head_kv) * d + (int64_t)head * d;
    float c = p.cos[(int64_t)r * p.half + i], s = p.sin[(int64_t)r * p.half + i], a, b;
    if (head < p.n_head) {
        rotate(p, get(x, i0), get(x, i1), q_bias, head * d + i0, head * d + i1, c, s, &a, &b);
        put(x, i0, a);
        put(x, i1, b);
        return;
    }
    if (p.slot[r] < 0) return;
    head -= p.n_head;
    int is_v = head >= p.n_head_kv;
    if (is_v) head -= p.n_head_kv;
    T *to = kv_base + kv_offset(p.kv, p.slot[r], is_v) + head * d;
    if (is_v) {
        to[i0] = x[i0];
        to[i1] = x[i1];
        return;
    }
    rotate(p, get(x, i0), get(x, i1), k_bias, head * d + i0, head * d + i1, c, s, &a, &b);
    put(to, i0, a);
    put(to, i1, b);
}

/* ---- BF16, 16 bytes at a time
 * ------------------------------------------------------------------------------------
 */

enum { WIDE = 8 };
typedef struct __align__(16) piece {
    uint32_t x[WIDE / 2];
}
piece;

static __device__ inline void add_bias(piece *v, const bf16 *bias) {
    piece b = *(const piece *)bias;
#pragma unroll
    for (int k = 0; k < WIDE / 2; k++) v->x[k] = add_two(v->x[k], b.x[k]);
}

/* 8 pairs: with halves a pair is one element of each piece, with neighbours two
 * elements of one. */
static __device__ inline void rotate_wide(const rope_args &p, piece *v0, piece *v1, const float (&c)[WIDE],
                                          const float (&s)[WIDE]) {
#pragma unroll
    for (int k = 0; k < WIDE / 2; k++) {
        if (p.is_pairs) {
            uint32_t *w = k < WIDE / 4 ? v0->x + 2 * k : v1->x + 2 * k - WIDE / 2;
            uint32_t even = __byte_perm(w[0], w[1], 0x5410), odd = __byte_perm(w[0], w[1], 0x7632);
            rotate_two(p.round_each, &even, &odd, c + 2 * k, s + 2 * k);
            w[0] = __byte_perm(even, odd, 0x5410);
            w[1] = __byte_perm(even, odd, 0x7632);
        } else {
            rotate_two(p.round_each, v0->x + k, v1->x + k, c + 2 * k, s + 2 * k);
        }
    }
}

/* Halves of a multiple of 8. Grid (pieces of a row / WIDE_THREADS, rows). A
 * thread has 8 pairs, the same of up to HEADS heads `step` apart: cos and sin
 * are read once for them, and all their loads are under way at once. */
enum { WIDE_THREADS = 128 };
template <int HEADS>
static __global__ void rope_kv_wide_kernel(rope_args p, int32_t step, bf16 *qkv, const bf16 *q_bias, const bf16 *k_bias,
                                           bf16 *kv_base) {
    wait_for_previous();
    int32_t units = p.half / WIDE, item = (int32_t)(blockIdx.x * WIDE_THREADS + threadIdx.x), r = (int32_t)blockIdx.y;
    int32_t first = item / units, i = item % units * WIDE, d = 2 * p.half, n = p.n_head + 2 * p.n_head_kv;
    int32_t at0 = p.is_pairs ? 2 * i : i, at1 = p.is_pairs ? 2 * i + WIDE : i + p.half;
    if (first >= step) return;
    bf16 *row = qkv + (int64_t)r * n * d;
    piece v0[HEADS], v1[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int32_t head = first + k * step;
        if (head >= n) continue;
        v0[k] = *(const piece *)(row + head * d + at0);
        v1[k] = *(const piece *)(row + head * d + at1);
    }
    float c[WIDE], s[WIDE];
#pragma unroll
    for (int k = 0; k < WIDE; k += 4) {
        *(float4 *)(c + k) = *(const float4 *)(p.cos + (int64_t)r * p.half + i + k);
        *(float4 *)(s + k) = *(const float4 *)(p.sin + (int64_t)r * p.half + i + k);
    }
    const int32_t slot = p.slot[r];
    bf16 *k_to = kv_base + kv_offset(p.kv, slot, 0), *v_to = k_to + (int64_t)GY_BLOCK_SLOTS * p.kv.width;
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int32_t head = first + k * step, of_k = head - p.n_head, of_v = of_k - p.n_head_kv;
        if (head >= n || (of_k >= 0 && slot < 0)) continue;
        bf16 *to = of_k < 0 ? row + head * d : of_v < 0 ? k_to + of_k * d : v_to + of_v * d;
        if (of_v < 0) {
            if (q_bias) {
                const bf16 *bias = of_k < 0 ? q_bias + head * d : k_bias + of_k * d;
                add_bias(&v0[k], bias + at0);
                add_bias(&v1[k], bias + at1);
            }
            rotate_wide(p, &v0[k], &v1[k], c, s);
        }
        *(piece *)(to + at0) = v0[k];
        *(piece *)(to + at1) = v1[k];
    }
}

template <int HEADS>
static void rope_wide(cuda_be *c, const rope_args &p, int32_t rows, bf16 *qkv, const gy_rope_kv_args *a) {
    int32_t heads = p.n_head + 2 * p.n_head_kv, step = (heads + HEADS - 1) / HEADS;
    dim3 grid(blocks_for((int64_t)step * p.half / WIDE, WIDE_THREADS), (unsigned)rows);
    launch_early(c, rope_kv_wide_kernel<HEADS>, grid, WIDE_THREADS, 0, p, step, qkv, (const bf16 *)a->q_bias,
                 (const bf16 *)a->k_bias, (bf16 *)a->kv->base);
}

static int is_wide(const gy_rope_kv_args *a, const rope_args &p, const void *qkv) {
    uintptr_t all = (uintptr_t)qkv | (uintptr_t)a->kv->base | (uintptr_t)a->q_bias | (uintptr_t)a->k_bias |
                    (uintptr_t)p.cos | (uintptr_t)p.sin;
    return p.half % WIDE == 0 && all % 16 == 0;
}

/* ---- KV in I8 ----------------------------------------------------------------------------------------------------
 * A head's numbers follow from its largest element, so one warp, or a part of one, has all of a head. Bits are ref's
 * (gy_host_quant_head).
 */

/* most: of the sizes of a head's elements, as bits. */
static __device__ inline float i8_scale(uint32_t most) {
    float s = __fdiv_rn(__uint_as_float(most), 127.0f);
    s = s < 0x1p-126f ? 0x1p-126f : s;
    return most < 0x7f800000u ? s : __uint_as_float(0x7fc00000u);
}
/* The number of v, in the lowest byte alone: the sum with 1.5 x 2^23 has no bits left for fractions. */
static __device__ inline uint32_t i8_number(float v, float scale) {
    uint32_t sum = __float_as_uint(__fadd_rn(__fdiv_rn(v, scale), 0x1.8p23f));
    return scale == scale ? sum & 0xffu : 0;
}
static __device__ inline uint32_t largest(uint32_t most, int lanes) {
    for (int o = lanes / 2; o; o /= 2) most = max(most, __shfl_xor_sync(~0u, most, o));
    return most;
}

/* Any act and head. Grid (heads of a row / I8_WARPS, rows), a warp a head. K is rotated twice, first for its largest
 * element. */
enum { I8_WARPS = 4 };
template <typename T>
static __global__ void rope_i8_kernel(rope_args p, T *qkv, const T *q_bias, const T *k_bias, char *kv_base) {
    wait_for_previous();
    int32_t head = (int32_t)(blockIdx.x * I8_WARPS + threadIdx.x / 32), r = (int32_t)blockIdx.y, d = 2 * p.half;
    int32_t of_k = head - p.n_head, of_v = of_k - p.n_head_kv, slot = p.slot[r];
    if (of_v >= p.n_head_kv || (of_k >= 0 && slot < 0)) return;
    T *x = qkv + (int64_t)r * (p.n_head + 2 * p.n_head_kv) * d + (int64_t)head * d;
    const T *bias = of_k < 0 ? q_bias : k_bias;
    int64_t bias_at = (int64_t)(of_k < 0 ? head : of_k) * d;
    auto pair = [&](int32_t i, int32_t *i0, int32_t *i1, float *a, float *b) {
        *i0 = p.is_pairs ? 2 * i : i;
        *i1 = p.is_pairs ? 2 * i + 1 : i + p.half;
        *a = get(x, *i0);
        *b = get(x, *i1);
        if (of_v >= 0) return;
        rotate(p, *a, *b, bias, bias_at + *i0, bias_at + *i1, p.cos[(int64_t)r * p.half + i],
               p.sin[(int64_t)r * p.half + i], a, b);
        *a = round_to<T>(*a);
        *b = round_to<T>(*b);
    };
    int32_t i0, i1;
    float a, b;
    uint32_t most = 0;
    for (int32_t i = (int32_t)threadIdx.x % 32; i < p.half; i += 32) {
        pair(i, &i0, &i1, &a, &b);
        if (of_k < 0) {
            put(x, i0, a);
            put(x, i1, b);
        }
        most = max(most, max(__float_as_uint(a) & 0x7fffffffu, __float_as_uint(b) & 0x7fffffffu));
    }
    if (of_k < 0) return;
    int32_t h = of_v < 0 ? of_k : of_v;
    char *row = kv_base + kv_offset(p.kv, slot, of_v >= 0), *to = row + (int64_t)h * d;
    float scale = i8_scale(largest(most, 32));
    for (int32_t i = (int32_t)threadIdx.x % 32; i < p.half; i += 32) {
        pair(i, &i0, &i1, &a, &b);
        to[i0] = (char)i8_number(a, scale);
        to[i1] = (char)i8_number(b, scale);
    }
    if (threadIdx.x % 32 == 0)
        memcpy(row + (int64_t)p.n_head_kv * d + (int64_t)h * GY_KV_SCALE_BYTES, &scale, sizeof scale);
}

/* BF16, halves of a multiple of 8: `lanes` threads a head (a power of two), each with 8 pairs or none. Grid (threads of
 * a row / WIDE_THREADS, rows). */
static __device__ inline uint32_t size_of_piece(const piece &v) {
    const uint32_t size = 0x7fff7fffu;
    uint32_t m = __vmaxu2(__vmaxu2(v.x[0] & size, v.x[1] & size), __vmaxu2(v.x[2] & size, v.x[3] & size));
    return max(m & 0xffffu, m >> 16) << 16;
}
static __device__ inline void put_numbers(char *to, const piece &v, float scale) { /* to: a multiple of 4 */
#pragma unroll
    for (int k = 0; k < WIDE / 2; k += 2)
        *(uint32_t *)(to + 2 * k) = i8_number(low(v.x[k]), scale) | i8_number(high(v.x[k]), scale) << 8 |
                                    i8_number(low(v.x[k + 1]), scale) << 16 | i8_number(high(v.x[k + 1]), scale) << 24;
}
static __global__ void rope_i8_wide_kernel(rope_args p, int32_t lanes, bf16 *qkv, const bf16 *q_bias,
                                           const bf16 *k_bias, char *kv_base) {
    wait_for_previous();
    int32_t item = (int32_t)(blockIdx.x * WIDE_THREADS + threadIdx.x), r = (int32_t)blockIdx.y, d = 2 * p.half;
    int32_t head = item / lanes, i = item % lanes * WIDE, of_k = head - p.n_head, of_v = of_k - p.n_head_kv;
    int32_t at0 = p.is_pairs ? 2 * i : i, at1 = p.is_pairs ? 2 * i + WIDE : i + p.half;
    int has = i < p.half && of_v < p.n_head_kv;
    bf16 *x = qkv + (int64_t)r * (p.n_head + 2 * p.n_head_kv) * d + (int64_t)head * d;
    piece v0 = {}, v1 = {};
    if (has) {
        v0 = *(const piece *)(x + at0);
        v1 = *(const piece *)(x + at1);
    }
    if (has && of_v < 0) {
        float c[WIDE], s[WIDE];
#pragma unroll
        for (int k = 0; k < WIDE; k += 4) {
            *(float4 *)(c + k) = *(const float4 *)(p.cos + (int64_t)r * p.half + i + k);
            *(float4 *)(s + k) = *(const float4 *)(p.sin + (int64_t)r * p.half + i + k);
        }
        if (q_bias) {
            const bf16 *bias = of_k < 0 ? q_bias + head * d : k_bias + of_k * d;
            add_bias(&v0, bias + at0);
            add_bias(&v1, bias + at1);
        }
        rotate_wide(p, &v0, &v1, c, s);
    }
    uint32_t most = largest(max(size_of_piece(v0), size_of_piece(v1)), lanes);
    int32_t slot = p.slot[r], h = of_v < 0 ? of_k : of_v;
    if (!has || (of_k >= 0 && slot < 0)) return;
    if (of_k < 0) {
        *(piece *)(x + at0) = v0;
        *(piece *)(x + at1) = v1;
        return;
    }
    char *row = kv_base + kv_offset(p.kv, slot, of_v >= 0);
    float scale = i8_scale(most);
    put_numbers(row + h * d + at0, v0, scale);
    put_numbers(row + h * d + at1, v1, scale);
    if (i == 0) *(float *)(row + p.n_head_kv * d + h * GY_KV_SCALE_BYTES) = scale;
}

template <typename T>
static void rope_i8(cuda_be *c, const rope_args &p, int32_t rows, void *qkv, const gy_rope_kv_args *a) {
    dim3 grid(blocks_for(p.n_head + 2 * p.n_head_kv, I8_WARPS), (unsigned)rows);
    launch_early(c, rope_i8_kernel<T>, grid, I8_WARPS * 32, 0, p, (T *)qkv, (const T *)a->q_bias, (const T *)a->k_bias,
                 (char *)a->kv->base);
}

static void rope_i8_wide(cuda_be *c, const rope_args &p, int32_t rows, void *qkv, const gy_rope_kv_args *a) {
    int32_t lanes = 1, heads = p.n_head + 2 * p.n_head_kv;
    while (lanes * WIDE < p.half) lanes *= 2;
    dim3 grid(blocks_for((int64_t)heads * lanes, WIDE_THREADS), (unsigned)rows);
    launch_early(c, rope_i8_wide_kernel, grid, WIDE_THREADS, 0, p, lanes, (bf16 *)qkv, (const bf16 *)a->q_bias,
                 (const bf16 *)a->k_bias, (char *)a->kv->base);
}

static void rope_rows_i8(gy_backend *be, const rope_args &p, int32_t rows, void *qkv, const gy_rope_kv_args *a) {
    enum { MOST = 32 * WIDE }; /* pairs that a warp has 8 a lane of */
    cuda_be *c = of_be(be);
    if (be->act == GY_BF16 && is_wide(a, p, qkv) && p.half <= MOST)
        rope_i8_wide(c, p, rows, qkv, a);
    else if (be->act == GY_BF16)
        rope_i8<bf16>(c, p, rows, qkv, a);
    else
        rope_i8<float>(c, p, rows, qkv, a);
}

void cuda_rope_kv(gy_backend *be, const gy_rope_kv_args *a) {
    enum { GRID_ROWS = 65535, MANY_ROWS = 64 }; /* few rows: more threads, less for each */
    cuda_be *c = of_be(be);
    int32_t half = a->kv->head_dim / 2, heads = a->n_head + 2 * a->kv->n_head_kv;
    rope_args p = {a->cos,
                   a->sin,
                   a->rows.slot,
                   a->n_head,
                   a->kv->n_head_kv,
                   half,
                   a->kind == GY_ROPE_PAIRS,
                   a->round_each,
                   {a->kv->n_layer, a->il, (int32_t)gy_kv_row(a->kv)}};
    for (int32_t r = 0; r < a->rows.n_row; r += GRID_ROWS) {
        int32_t rows = a->rows.n_row - r < GRID_ROWS ? a->rows.n_row - r : GRID_ROWS;
        dim3 grid(blocks_for((int64_t)heads * half, THREADS), (unsigned)rows);
        char *qkv = (char *)a->qkv + (int64_t)r * heads * a->kv->head_dim * (int64_t)dtype_bytes(be->act);
        rope_args q = p;
        q.cos += (int64_t)r * half;
        q.sin += (int64_t)r * half;
        q.slot += r;
        if (a->kv->dtype == GY_I8) {
            rope_rows_i8(be, q, rows, qkv, a);
        } else if (be->act == GY_BF16 && is_wide(a, q, qkv)) {
            if (rows < MANY_ROWS)
                rope_wide<1>(c, q, rows, (bf16 *)qkv, a);
            else
                rope_wide<3>(c, q, rows, (bf16 *)qkv, a);
        } else if (be->act == GY_F32) {
            launch_early(c, rope_kv_kernel<float>, grid, THREADS, 0, q, (float *)qkv, (const float *)a->q_bias,
                         (const float *)a->k_bias, (float *)a->kv->base);
        } else {
            launch_early(c, rope_kv_kernel<bf16>, grid, THREADS, 0, q, (bf16 *)qkv, (const bf16 *)a->q_bias,
                         (const bf16 *)a->k_bias, (bf16 *)a->kv->base);
        }
    }
    cuda_launched(c, "rope_kv");
}

/* ---- Huginn's initial state: philox.c's functions on the device -------------------------------------------------- */

static __device__ void philox(uint64_t seed, uint32_t pos, uint32_t block, uint32_t out[4]) {
    uint32_t c0 = pos, c1 = 0, c2 = 2 /* GY_RAND_LATENT */, c3 = block, k0 = (uint32_t)seed,
             k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Wichura's AS241, PPND16 (philox.c has the source): coefficients of numerator
 * and denominator, by region. */
enum { PPND_TERMS = 8 };
static __constant__ double ppnd[3][2][PPND_TERMS] = {
    {{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
      4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3},
     {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
      3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3}},
    {{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
      1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
     {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
      1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}},
    {{6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
      2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
     {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
      1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}}};

static __device__ double ppnd_ratio(int region, double r) {
    double num = ppnd[region][0][PPND_TERMS - 1], den = ppnd[region][1][PPND_TERMS - 1];
    for (int i = PPND_TERMS - 2; i >= 0; i--) {
        num = num * r + ppnd[region][0][i];
        den = den * r + ppnd[region][1][i];
    }
    return num / den;
}

static __device__ double normal_quantile(double p) { /* 0 < p < 1 */
    double q = p - 0.5;
    if (fabs(q) <= 0.425) return q * ppnd_ratio(0, 0.180625 - q * q);
    double r = sqrt(-log(q < 0.0 ? p : 1.0 - p));
    double x = r <= 5.0 ? ppnd_ratio(1, r - 1.6) : ppnd_ratio(2, r - 5.0);
    return q < 0.0 ? -x : x;
}

static __device__ float latent(uint32_t hi, uint32_t lo, float std, float mult) {
    const double tail = 0.0013498980316300933; /* Phi(-3) */
    double u = (double)((((uint64_t)hi << 32) | lo) >> 11) * 0x1p-53 + 0x1p-54;
    double x = normal_quantile(tail + u * ((1.0 - tail) - tail));
    return (float)(x * (double)std) * mult;
}

/* Grid (pairs / 256, rows): a thread draws two elements from one block of
 * random words. */
template <typename T>
static __global__ void latent_init_kernel(const uint64_t *seed, const int32_t *pos, const uint8_t *zero, float std,
                                          float mult, int32_t n, T *y) {
    int32_t pair = (int32_t)(blockIdx.x * THREADS + threadIdx.x), r = (int32_t)blockIdx.y;
    uint32_t word[4];
    wait_for_previous();
    if (2 * pair >= n) return;
    philox(seed[r], (uint32_t)pos[r], (uint32_t)pair, word);
    for (int e = 0; e < 2 && 2 * pair + e < n; e++)
        put(y, (int64_t)r * n + 2 * pair + e, zero[r] ? 0.0f : latent(word[2 * e], word[2 * e + 1], std, mult));
}

/* Rows in pieces of what the arrays hold (limits.max_row). */
void cuda_latent_init(gy_backend *be, const gy_latent_init_args *a) {
    cuda_be *c = of_be(be);
    int32_t step = c->limits.max_row < 65535 ? c->limits.max_row : 65535;
    for (int32_t r = 0; r < a->n_row; r += step) {
        int32_t rows = a->n_row - r < step ? a->n_row - r : step;
        dim3 grid(blocks_for(a->n, 2 * THREADS), (unsigned)rows);
        cuda_put(c, c->seed, a->seed + r, (size_t)rows * sizeof *a->seed);
        cuda_put(c, c->pos, a->pos + r, (size_t)rows * sizeof *a->pos);
        cuda_put(c, c->zero, a->zero + r, (size_t)rows);
        if (be->act == GY_F32)
            launch_early(c, latent_init_kernel<float>, grid, THREADS, 0, (const uint64_t *)c->seed,
                         (const int32_t *)c->pos, (const uint8_t *)c->zero, a->std, a->mult, a->n,
                         (float *)a->y + (int64_t)r * a->n);
        else
            launch_early(c, latent_init_kernel<bf16>, grid, THREADS, 0, (const uint64_t *)c->seed,
                         (const int32_t *)c->pos, (const uint8_t *)c->zero, a->std, a->mult, a->n,
                         (bf16 *)a->y + (int64_t)r * a->n);
    }
    cuda_launched(c, "latent_init");
}
