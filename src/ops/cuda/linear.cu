/* y = x W^T: which of two ways, and the plain one.
 *
 * BF16 activations and weights go to cuBLASLt (blaslt.cu) where it has an algorithm that gives the same bits for every
 * number of rows; everything else, all F32 among it, to the kernel below. The way depends on the weight alone.
 *
 * Plain kernel: y[r, i] = round(fma chain over j = 0 .. k-1 of x[r, j] w[i, j], from +0). One accumulator an output, in
 * order, so nothing about the batch can change a bit. A block of 256 threads makes 16 rows x 64 outputs from tiles of
 * 32 of the inner dimension in shared memory; thread (tx, ty) owns row ty and outputs tx + 16 i. It is compute bound at
 * a few TFLOP/s: meant for tests and for F32, not for speed.
 */
#include "ops/cuda/graph.cuh"
#include "ops/cuda/narrow.cuh"

enum { TILE_ROWS = 16, TILE_OUT = 64, TILE_K = 32, SIDE = 16, OWN = TILE_OUT / SIDE, THREADS = SIDE * SIDE };

template <typename TX, typename TW>
static __global__ void __launch_bounds__(THREADS)
    plain_kernel(const TX *x, const TW *w, int32_t n_row, int32_t n, int32_t k, int32_t ldy, int y_f32, void *y) {
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
        if (y_f32)
            put((float *)y, (int64_t)r * ldy + i, round_to<TX>(acc[o]));
        else
            put((TX *)y, (int64_t)r * ldy + i, acc[o]);
    }
}

template <typename TX, typename TW>
static void plain_launch(cuda_be *c, const gy_linear_args *a, const void *w, int32_t n, int32_t first) {
    const int32_t most = 32768 * TILE_ROWS; /* rows of a launch */
    const gy_weight *full = a->w;
    size_t y_bytes = a->y_f32 ? 4 : sizeof(TX);
    for (int32_t r = 0; r < a->n_row; r += most) {
        int32_t rows = a->n_row - r < most ? a->n_row - r : most;
        dim3 grid(blocks_for(n, TILE_OUT), blocks_for(rows, TILE_ROWS));
        plain_kernel<<<grid, THREADS, 0, c->stream>>>(
            (const TX *)a->x + (int64_t)r * full->k, (const TW *)w, rows, n, full->k, full->n, a->y_f32,
            (char *)a->y + ((size_t)r * (size_t)full->n + (size_t)first) * y_bytes);
    }
}

template <typename TX>
static void plain_of(cuda_be *c, const gy_linear_args *a, const void *w, int32_t n, int32_t first) {
    if (a->w->dtype == GY_F32)
        plain_launch<TX, float>(c, a, w, n, first);
    else if (a->w->dtype == GY_F16)
        plain_launch<TX, __half>(c, a, w, n, first);
    else
        plain_launch<TX, bf16>(c, a, w, n, first);
}

/* Parts that lie behind one another are one matrix: part ip and how many rows follow it without a gap. */
static int32_t joined_rows(const gy_weight *w, int *ip_io) {
    int32_t n = w->part[*ip_io].n;
    size_t row = (size_t)w->k * dtype_bytes(w->dtype);
    int ip = *ip_io + 1;
    const char *end = (const char *)w->part[*ip_io].data + (size_t)n * row;
    for (; ip < w->n_part && w->part[ip].data == (const void *)end; ip++) {
        n += w->part[ip].n;
        end += (size_t)w->part[ip].n * row;
    }
    *ip_io = ip;
    return n;
}

void cuda_linear(gy_backend *be, const gy_linear_args *a) {
    cuda_be *c = of_be(be);
    int is_bf16 = be->act == GY_BF16 && a->w->dtype == GY_BF16;
    int32_t first = 0;
    if (a->n_row <= 0) return;
    for (int ip = 0; ip < a->w->n_part;) {
        const void *w = a->w->part[ip].data;
        int32_t n = joined_rows(a->w, &ip);
        char *y = (char *)a->y + (size_t)first * (a->y_f32 ? 4 : dtype_bytes(be->act));
        if (!is_bf16 || !cuda_lt_run(c, w, n, a->w->k, a->w->n, a->y_f32, a->x, a->n_row, y)) {
            if (be->act == GY_F32)
                plain_of<float>(c, a, w, n, first);
            else
                plain_of<bf16>(c, a, w, n, first);
        }
        first += n;
    }
    cuda_launched(c, "linear");
}

/* BF16, its parts behind one another. */
static int is_one_piece(const gy_backend *be, const gy_weight *w) {
    int ip = 0;
    return be->act == GY_BF16 && w->dtype == GY_BF16 && joined_rows(w, &ip) == w->n;
}

int cuda_linear_norm(gy_backend *be, const gy_residual_norm_args *r, void *h_out, const gy_weight *w, int is_silu,
                     void *y) {
    narrow_norm norm = {(const bf16 *)r->r.h,
                        (const bf16 *)r->r.b,
                        (const bf16 *)r->r.w,
                        (const bf16 *)r->w,
                        (bf16 *)h_out,
                        r->r.eps,
                        r->eps,
                        r->r.kind,
                        r->r.n};
    uintptr_t all = (uintptr_t)norm.h | (uintptr_t)norm.b | (uintptr_t)norm.w | (uintptr_t)norm.next | (uintptr_t)h_out;
    if (!is_one_piece(be, w) || r->r.n_row <= 0 || r->r.n != w->k || r->r.n % 8 || all % 16) return 0;
    if (is_silu && w->n % 16) return 0;
    return cuda_lt_norm(of_be(be), w->part[0].data, w->n, w->k, is_silu, &norm, r->r.n_row, y);
}

int cuda_linear_silu(gy_backend *be, const void *x, const gy_weight *w, int32_t n_row, void *y) {
    if (!is_one_piece(be, w) || n_row <= 0 || w->n % 16) return 0;
    return cuda_lt_silu(of_be(be), w->part[0].data, w->n, w->k, x, n_row, y);
}

void cuda_prepare(gy_backend *be, const gy_weight *w, int y_f32) {
    if (be->act != GY_BF16 || w->dtype != GY_BF16) return;
    cuda_enter(of_be(be));
    for (int ip = 0; ip < w->n_part;) {
        const void *data = w->part[ip].data;
        int32_t n = joined_rows(w, &ip);
        cuda_lt_prepare(of_be(be), data, n, w->k, w->n, y_f32);
    }
}
