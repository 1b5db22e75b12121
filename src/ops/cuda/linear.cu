/* y = x W^T: which of two ways, and the plain one.
 *
 * BF16 activations with weights in BF16 or E4M3 go to cuBLASLt (blaslt.cu) where it has an algorithm that gives the
 * same bits for every number of rows; everything else, all F32 among it, to the kernel below. The way depends on the
 * weight alone.
 *
 * Plain kernel: y[r, i] = round(fma chain over j = 0 .. k-1 of x[r, j] w[i, j], from +0). One accumulator an output, in
 * order, so nothing about the batch can change a bit. A block of 256 threads makes 16 rows x 64 outputs from tiles of
 * 32 of the inner dimension in shared memory; thread (tx, ty) owns row ty and outputs tx + 16 i. It is compute bound at
 * a few TFLOP/s: meant for tests and for F32, not for speed.
 */
#include "ops/cuda/eight_bits.cuh"
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/record.cuh"

enum { TILE_ROWS = 16, TILE_OUT = 64, TILE_K = 32, SIDE = 16, OWN = TILE_OUT / SIDE, THREADS = SIDE * SIDE };

template <typename TX, typename TW>
static __global__ void __launch_bounds__(THREADS)
    plain_kernel(const TX *x, const TW *w, const float *scale, int32_t n_row, int32_t n, int32_t k, int32_t ldy,
                 int y_f32, void *y) {
    __shared__ float xs[TILE_ROWS][TILE_K + 1], ws[TILE_OUT][TILE_K + 1];
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    int32_t i0 = (int32_t)blockIdx.x * TILE_OUT, r0 = (int32_t)blockIdx.y * TILE_ROWS;
    float acc[OWN] = {};
    for (int32_t k0 = 0; k0 < k; k0 += TILE_K) {
        for (int e = (int)threadIdx.x; e < TILE_ROWS * TILE_K; e += THREADS) {
            int32_t r = r0 + e / TILE_K, j = k0 + e % TILE_K;
            xs[e / TILE_K][e % TILE_K] = r < n_row && j < k ? get(x, (int64_t)r * k + j) : 0.0f;
        }
        for (int e = (int)threadIdx.x; e < TILE_OUT * TILE_K; e += THREADS) {
            int32_t i = i0 + e / TILE_K, j = k0 + e % TILE_K;
            ws[e / TILE_K][e % TILE_K] = i < n && j < k ? get(w, (int64_t)i * k + j) : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < TILE_K; j++) {
            float xv = xs[ty][j];
#pragma unroll
            for (int o = 0; o < OWN; o++) acc[o] = __fmaf_rn(xv, ws[tx + SIDE * o][j], acc[o]);
        }
        __syncthreads();
    }
    int32_t r = r0 + ty;
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        int32_t i = i0 + tx + SIDE * o;
        if (r >= n_row || i >= n) continue;
        if (scale) acc[o] = __fmul_rn(acc[o], scale[i]);
        if (y_f32)
            put((float *)y, (int64_t)r * ldy + i, round_to<TX>(acc[o]));
        else
            put((TX *)y, (int64_t)r * ldy + i, acc[o]);
    }
}

template <typename TX, typename TW>
static void plain_launch(cuda_be *c, const gy_linear_args *a, const cuda_matrix *m, int32_t first) {
    const int32_t most = 32768 * TILE_ROWS; /* rows of a launch */
    const gy_weight *full = a->w;
    size_t y_bytes = a->y_f32 ? 4 : sizeof(TX);
    for (int32_t r = 0; r < a->n_row; r += most) {
        int32_t rows = a->n_row - r < most ? a->n_row - r : most;
        dim3 grid(blocks_for(m->n, TILE_OUT), blocks_for(rows, TILE_ROWS));
        plain_kernel<<<grid, THREADS, 0, c->stream>>>(
            (const TX *)a->x + (int64_t)r * full->k, (const TW *)m->w, m->scale, rows, m->n, full->k, full->n, a->y_f32,
            (char *)a->y + ((size_t)r * (size_t)full->n + (size_t)first) * y_bytes);
    }
}

template <typename TX> static void plain_of(cuda_be *c, const gy_linear_args *a, const cuda_matrix *m, int32_t first) {
    if (m->type == GY_F32)
        plain_launch<TX, float>(c, a, m, first);
    else if (m->type == GY_F16)
        plain_launch<TX, __half>(c, a, m, first);
    else if (m->type == GY_F8_E4M3)
        plain_launch<TX, e4m3>(c, a, m, first);
    else
        plain_launch<TX, bf16>(c, a, m, first);
}

/* Parts that lie behind one another, scales too, are one matrix: part ip and those that follow it without a gap. */
static cuda_matrix joined(const gy_weight *w, int *ip_io) {
    int ip = *ip_io;
    const float *scale = w->dtype == GY_F8_E4M3 ? w->part[ip].scale : NULL;
    cuda_matrix m = {w->part[ip].data, scale, w->dtype, w->part[ip].n, w->k};
    size_t row = (size_t)w->k * dtype_bytes(w->dtype);
    const char *end = (const char *)m.w + (size_t)m.n * row;
    for (ip++; ip < w->n_part && w->part[ip].data == (const void *)end; ip++) {
        if (m.scale && w->part[ip].scale != m.scale + m.n) break;
        m.n += w->part[ip].n;
        end += (size_t)w->part[ip].n * row;
    }
    *ip_io = ip;
    return m;
}

/* Types whose values are BF16's. */
static int is_bf16(gy_dtype t) {
    return t == GY_BF16 || t == GY_F8_E4M3;
}

void cuda_linear(gy_backend *be, const gy_linear_args *a) {
    cuda_be *c = of_be(be);
    int has_units = be->act == GY_BF16 && is_bf16(a->w->dtype);
    int32_t first = 0;
    if (a->n_row <= 0) return;
    for (int ip = 0; ip < a->w->n_part;) {
        cuda_matrix m = joined(a->w, &ip);
        char *y = (char *)a->y + (size_t)first * (a->y_f32 ? 4 : dtype_bytes(be->act));
        if (!has_units || !cuda_lt_run(c, &m, a->w->n, a->y_f32, a->x, a->n_row, y)) {
            if (be->act == GY_F32)
                plain_of<float>(c, a, &m, first);
            else
                plain_of<bf16>(c, a, &m, first);
        }
        first += m.n;
    }
    cuda_launched(c, "linear");
}

/* BF16, its parts behind one another. */
static int is_one_piece(const gy_backend *be, const gy_weight *w, cuda_matrix *out) {
    int ip = 0;
    if (be->act != GY_BF16 || w->dtype != GY_BF16) return 0;
    *out = joined(w, &ip);
    return out->n == w->n;
}

int cuda_linear_silu(gy_backend *be, const void *x, const gy_weight *w, int32_t n_row, void *y) {
    cuda_matrix m;
    if (!is_one_piece(be, w, &m) || n_row <= 0 || w->n % 16) return 0;
    return cuda_lt_silu(of_be(be), &m, x, n_row, y);
}

size_t cuda_prepare(gy_backend *be, gy_weight *w, int y_f32) {
    if (be->act != GY_BF16 || !is_bf16(w->dtype)) return 0;
    cuda_enter(of_be(be));
    for (int ip = 0; ip < w->n_part;) {
        cuda_matrix m = joined(w, &ip);
        cuda_lt_prepare(of_be(be), &m, w->n, y_f32);
    }
    return 0;
}
