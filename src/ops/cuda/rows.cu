/* Operations that go row by row or element by element. Contracts: ops/ops.h.
 *
 * Reductions (norm, residual, gate, latent_diff): one block of 256 threads a
 * row. Thread t owns elements [8 t + 2048 i, + 8) for i = 0, 1, ...: up to 16
 * bytes of BF16 in one load. It adds its elements in order, then one fixed tree
 * joins the threads (block_sum). So the order of a sum follows from n alone.
 * The mean of squares is summed in f64, as in ref; its bytes, not its
 * arithmetic, are what a norm costs.
 */
#include "ops/cuda/bf16_two.cuh"

/* Calls f(j, count) for the runs of elements that this thread owns in a row of
 * n. */
template <typename F> static __device__ inline void own_elements(int32_t n, F f) {
    for (int32_t j = (int32_t)threadIdx.x * LANE; j < n; j += ROW_THREADS * LANE) f(j, n - j < LANE ? n - j : LANE);
}

/* 8 elements from p + j as f32, or fewer. aligned: 16-byte loads may be used.
 */
template <typename T>
static __device__ inline void load_lane(const T *p, int64_t j, int count, int aligned, float v[LANE]) {
    if (aligned && count == LANE) {
        T raw[LANE];
#pragma unroll
        for (int i = 0; i < (int)(LANE * sizeof(T) / 16); i++) ((uint4 *)raw)[i] = ((const uint4 *)(p + j))[i];
#pragma unroll
        for (int i = 0; i < LANE; i++) v[i] = get(raw, i);
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE; i++) v[i] = i < count ? get(p, j + i) : 0.0f;
}

template <typename T>
static __device__ inline void store_lane(T *p, int64_t j, int count, int aligned, const float v[LANE]) {
    if (aligned && count == LANE) {
        __align__(16) T raw[LANE];
#pragma unroll
        for (int i = 0; i < LANE; i++) put(raw, i, v[i]);
#pragma unroll
        for (int i = 0; i < (int)(LANE * sizeof(T) / 16); i++) ((uint4 *)(p + j))[i] = ((const uint4 *)raw)[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE; i++)
        if (i < count) put(p, j + i, v[i]);
}

static int aligned16(const void *p) {
    return ((uintptr_t)p & 15) == 0;
}

/* ---- norm and residual
 * ------------------------------------------------------------------------------------------
 */

template <typename T>
static __global__ void norm_kernel(const T *x, const T *w, float eps, int32_t n, T *y, int aligned) {
    const T *xr = x + (int64_t)blockIdx.x * n;
    T *yr = y + (int64_t)blockIdx.x * n;
    double sum = 0.0;
    float v[LANE], wv[LANE];
    wait_for_previous();
    own_elements(n, [&](int32_t j, int count) {
        load_lane(xr, j, count, aligned, v);
        sum = add_squares<T>(sum, v);
    });
    float scale = scale_of(block_sum<ROW_THREADS>(sum), n, eps);
    own_elements(n, [&](int32_t j, int count) {
        load_lane(xr, j, count, aligned, v);
        load_lane(w, j, count, aligned, wv);
#pragma unroll
        for (int i = 0; i < LANE; i++) v[i] = normed<T>(v[i], scale, wv[i]);
        store_lane(yr, j, count, aligned, v);
    });
}

template <typename T> static void norm_launch(cuda_be *c, const gy_norm_args *a) {
    int aligned = a->n % LANE == 0 && aligned16(a->x) && aligned16(a->w) && aligned16(a->y);
    launch_early(c, norm_kernel<T>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (const T *)a->x, (const T *)a->w, a->eps,
                 a->n, (T *)a->y, aligned);
}

void cuda_norm(gy_backend *be, const gy_norm_args *a) {
    cuda_be *c = of_be(be);
    if (a->n_row <= 0) return;
    if (be->act == GY_F32)
        norm_launch<float>(c, a);
    else
        norm_launch<bf16>(c, a);
    cuda_launched(c, "norm");
}

/* KIND as gy_residual_kind. SUM keeps round(b + h) in h between the two walks:
 * each thread reads what it wrote. */
template <typename T, int KIND>
static __global__ void residual_kernel(T *h, const T *b, const T *w, float eps, int32_t n, int aligned) {
    T *hr = h + (int64_t)blockIdx.x * n;
    const T *br = b + (int64_t)blockIdx.x * n;
    double sum = 0.0;
    float v[LANE], bv[LANE], wv[LANE];
    wait_for_previous();
    own_elements(n, [&](int32_t j, int count) {
        load_lane(br, j, count, aligned, bv);
        if (KIND != GY_RESIDUAL_BRANCH) {
            load_lane(hr, j, count, aligned, v);
#pragma unroll
            for (int i = 0; i < LANE; i++) bv[i] = round_to<T>(v[i] + bv[i]);
            store_lane(hr, j, count, aligned, bv);
        }
        if (KIND != GY_RESIDUAL_PRE) sum = add_squares<T>(sum, bv);
    });
    if (KIND == GY_RESIDUAL_PRE) return;
    float scale = scale_of(block_sum<ROW_THREADS>(sum), n, eps);
    own_elements(n, [&](int32_t j, int count) {
        load_lane(KIND == GY_RESIDUAL_SUM ? (const T *)hr : br, j, count, aligned, bv);
        load_lane(w, j, count, aligned, wv);
        if (KIND == GY_RESIDUAL_BRANCH) load_lane(hr, j, count, aligned, v);
#pragma unroll
        for (int i = 0; i < LANE; i++) {
            bv[i] = normed<T>(bv[i], scale, wv[i]);
            if (KIND == GY_RESIDUAL_BRANCH) bv[i] = v[i] + bv[i];
        }
        store_lane(hr, j, count, aligned, bv);
    });
}

template <typename T, int KIND> static void residual_launch(cuda_be *c, const gy_residual_args *a) {
    int aligned = a->n % LANE == 0 && aligned16(a->h) && aligned16(a->b) && aligned16(a->w);
    launch_early(c, residual_kernel<T, KIND>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (T *)a->h, (const T *)a->b,
                 (const T *)a->w, a->eps, a->n, aligned);
}

template <typename T> static void residual_of(cuda_be *c, const gy_residual_args *a) {
    if (a->kind == GY_RESIDUAL_PRE)
        residual_launch<T, GY_RESIDUAL_PRE>(c, a);
    else if (a->kind == GY_RESIDUAL_BRANCH)
        residual_launch<T, GY_RESIDUAL_BRANCH>(c, a);
    else
        residual_launch<T, GY_RESIDUAL_SUM>(c, a);
}

void cuda_residual(gy_backend *be, const gy_residual_args *a) {
    cuda_be *c = of_be(be);
    if (a->n_row <= 0) return;
    if (be->act == GY_F32)
        residual_of<float>(c, a);
    else
        residual_of<bf16>(c, a);
    cuda_launched(c, "residual");
}

/* Eight elements as one load brings them. */
typedef struct __align__(16) lane_words {
    uint32_t x[LANE / 2];
}
lane_words;

static __device__ inline lane_words words_at(const bf16 *p, int64_t j) {
    return *(const lane_words *)(p + j);
}

/* Residual and the norm after it in one walk over memory, BF16: LANES runs of 8
 * elements a thread stay in registers, and all loads are under way before the
 * first sum; those of the weights, which nobody writes, before the kernel ahead
 * has ended. Sums and roundings are those of the two kernels above, in their
 * order. */
template <int KIND, int LANES>
static __global__ void __launch_bounds__(ROW_THREADS, LANES == 1 ? 6 : 1)
    residual_norm_kernel(bf16 *h, const bf16 *b, const bf16 *w, float eps, const bf16 *w2, float eps2, int32_t n,
                         bf16 *y) {
    enum { RUN = ROW_THREADS * LANE };
    int32_t own = (int32_t)threadIdx.x * LANE;
    int64_t row = (int64_t)blockIdx.x * n;
    lane_words v[LANES] = {}, hv[LANES] = {}, wv[LANES] = {}, w2v[LANES] = {}; /* zeros add nothing to a sum */
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < LANES; k++) {
        if (own + k * RUN >= n) continue;
        if (KIND != GY_RESIDUAL_PRE) wv[k] = words_at(w, own + k * RUN);
        w2v[k] = words_at(w2, own + k * RUN);
    }
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < LANES; k++) {
        if (own + k * RUN >= n) continue;
        v[k] = words_at(b, row + own + k * RUN);
        hv[k] = words_at(h, row + own + k * RUN);
    }
#pragma unroll
    for (int k = 0; k < LANES; k++)
#pragma unroll
        for (int i = 0; i < LANE / 2; i++) {
            if (KIND != GY_RESIDUAL_BRANCH) v[k].x[i] = add_two(hv[k].x[i], v[k].x[i]);
            sum = add_squares_two(sum, v[k].x[i]);
        }
    if (KIND != GY_RESIDUAL_PRE) {
        float scale = scale_of(block_sum<ROW_THREADS>(sum), n, eps);
        sum = 0.0;
#pragma unroll
        for (int k = 0; k < LANES; k++)
#pragma unroll
            for (int i = 0; i < LANE / 2; i++) {
                v[k].x[i] = normed_two(v[k].x[i], scale, wv[k].x[i]);
                if (KIND == GY_RESIDUAL_BRANCH) v[k].x[i] = add_two(hv[k].x[i], v[k].x[i]);
                sum = add_squares_two(sum, v[k].x[i]);
            }
    }
    float scale = scale_of(block_sum<ROW_THREADS>(sum), n, eps2);
#pragma unroll
    for (int k = 0; k < LANES; k++) {
        if (own + k * RUN >= n) continue;
        *(lane_words *)(h + row + own + k * RUN) = v[k];
#pragma unroll
        for (int i = 0; i < LANE / 2; i++) v[k].x[i] = normed_two(v[k].x[i], scale, w2v[k].x[i]);
        *(lane_words *)(y + row + own + k * RUN) = v[k];
    }
}

template <int KIND, int LANES> static void fused_launch(cuda_be *c, const gy_residual_norm_args *a) {
    launch_early(c, residual_norm_kernel<KIND, LANES>, dim3((unsigned)a->r.n_row), ROW_THREADS, 0, (bf16 *)a->r.h,
                 (const bf16 *)a->r.b, (const bf16 *)a->r.w, a->r.eps, (const bf16 *)a->w, a->eps, a->r.n,
                 (bf16 *)a->y);
}

template <int LANES> static void fused_of(cuda_be *c, const gy_residual_norm_args *a) {
    if (a->r.kind == GY_RESIDUAL_PRE)
        fused_launch<GY_RESIDUAL_PRE, LANES>(c, a);
    else if (a->r.kind == GY_RESIDUAL_BRANCH)
        fused_launch<GY_RESIDUAL_BRANCH, LANES>(c, a);
    else
        fused_launch<GY_RESIDUAL_SUM, LANES>(c, a);
}

/* BF16 rows of up to 6144 elements, aligned; the two kernels otherwise. */
void cuda_residual_norm(gy_backend *be, const gy_residual_norm_args *a) {
    enum { RUN = ROW_THREADS * LANE };
    cuda_be *c = of_be(be);
    const gy_residual_args *r = &a->r;
    int aligned =
        r->n % LANE == 0 && aligned16(r->h) && aligned16(r->b) && aligned16(r->w) && aligned16(a->w) && aligned16(a->y);
    if (r->n_row <= 0) return;
    if (be->act != GY_BF16 || !aligned || r->n > 3 * RUN) {
        gy_norm_args norm = {r->h, a->w, a->eps, r->n_row, r->n, a->y};
        cuda_residual(be, r);
        cuda_norm(be, &norm);
        return;
    }
    if (r->n <= RUN)
        fused_of<1>(c, a);
    else if (r->n <= 2 * RUN)
        fused_of<2>(c, a);
    else
        fused_of<3>(c, a);
    cuda_launched(c, "residual and norm");
}

/* ---- gate, latent_diff
 * -------------------------------------------------------------------------------------------
 */

template <typename T> static __global__ void gate_kernel(const T *x, const T *w, const T *b, int32_t n, float *y) {
    const T *xr = x + (int64_t)blockIdx.x * n;
    float sum = 0.0f, v[LANE], wv[LANE];
    wait_for_previous();
    own_elements(n, [&](int32_t j, int count) {
        load_lane(xr, j, count, 0, v);
        load_lane(w, j, count, 0, wv);
#pragma unroll
        for (int i = 0; i < LANE; i++) sum = __fmaf_rn(v[i], wv[i], sum);
    });
    sum = block_sum<ROW_THREADS>(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = round_to<T>(sum + get(b, 0));
}

void cuda_gate(gy_backend *be, const gy_gate_args *a) {
    cuda_be *c = of_be(be);
    if (a->n_row <= 0) return;
    if (be->act == GY_F32)
        launch_early(c, gate_kernel<float>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (const float *)a->x,
                     (const float *)a->w, (const float *)a->b, a->n, a->y);
    else
        launch_early(c, gate_kernel<bf16>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (const bf16 *)a->x,
                     (const bf16 *)a->w, (const bf16 *)a->b, a->n, a->y);
    cuda_launched(c, "gate");
}

template <typename T> static __global__ void latent_diff_kernel(const T *x, const T *prev, int32_t n, double *y) {
    const T *xr = x + (int64_t)blockIdx.x * n, *pr = prev + (int64_t)blockIdx.x * n;
    double diff = 0.0, norm = 0.0;
    float v[LANE], pv[LANE];
    wait_for_previous();
    own_elements(n, [&](int32_t j, int count) {
        load_lane(xr, j, count, 0, v);
        load_lane(pr, j, count, 0, pv);
#pragma unroll
        for (int i = 0; i < LANE; i++) {
            double d = (double)v[i] - (double)pv[i];
            diff += d * d;
            norm += (double)v[i] * (double)v[i];
        }
    });
    diff = block_sum<ROW_THREADS>(diff);
    norm = sqrt(block_sum<ROW_THREADS>(norm));
    if (threadIdx.x == 0) y[blockIdx.x] = sqrt(diff) / (norm < 1e-9 ? 1e-9 : norm);
}

void cuda_latent_diff(gy_backend *be, const gy_latent_diff_args *a) {
    cuda_be *c = of_be(be);
    if (a->n_row <= 0) return;
    if (be->act == GY_F32)
        launch_early(c, latent_diff_kernel<float>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (const float *)a->x,
                     (const float *)a->x_prev, a->n, a->y);
    else
        launch_early(c, latent_diff_kernel<bf16>, dim3((unsigned)a->n_row), ROW_THREADS, 0, (const bf16 *)a->x,
                     (const bf16 *)a->x_prev, a->n, a->y);
    cuda_launched(c, "latent_diff");
}

/* ---- silu_mul
 * ----------------------------------------------------------------------------------------------------
 */

/* Grid (elements of a row / 2048, rows): thread t of block i takes elements [8
 * t + 2048 i, + 8). */
template <typename T> static __global__ void silu_mul_kernel(const T *gu, int32_t n_ff, T *y, int aligned) {
    int32_t j = ((int32_t)blockIdx.x * ROW_THREADS + (int32_t)threadIdx.x) * LANE;
    int count = n_ff - j < LANE ? n_ff - j : LANE;
    const T *g = gu + (int64_t)blockIdx.y * 2 * n_ff;
    float gv[LANE], uv[LANE];
    wait_for_previous();
    if (j >= n_ff) return;
    load_lane(g, j, count, aligned, gv);
    load_lane(g + n_ff, j, count, aligned, uv);
#pragma unroll
    for (int i = 0; i < LANE; i++) gv[i] = silu_mul_of<T>(gv[i], uv[i]);
    store_lane(y + (int64_t)blockIdx.y * n_ff, j, count, aligned, gv);
}

/* The same for aligned BF16. Elements that need the careful division are rare
 * (a zero is one), so eight go together. */
static __global__ void silu_mul_wide_kernel(const bf16 *gu, int32_t n_ff, bf16 *y) {
    int32_t j = ((int32_t)blockIdx.x * ROW_THREADS + (int32_t)threadIdx.x) * LANE;
    const bf16 *g = gu + (int64_t)blockIdx.y * 2 * n_ff;
    wait_for_previous();
    if (j >= n_ff) return;
    lane_words gv = words_at(g, j), uv = words_at(g, n_ff + j);
    if (are_plain(gv.x)) {
#pragma unroll
        for (int i = 0; i < LANE / 2; i++) gv.x[i] = silu_mul_two_plain(gv.x[i], uv.x[i]);
    } else {
        for (int i = 0; i < LANE / 2; i++) gv.x[i] = silu_mul_two(gv.x[i], uv.x[i]);
    }
    *(lane_words *)(y + (int64_t)blockIdx.y * n_ff + j) = gv;
}

/* Rows in the grid's second dimension: at most 65535 of them. */
enum { GRID_ROWS = 65535 };

template <typename T> static void silu_launch(cuda_be *c, const gy_silu_mul_args *a) {
    int aligned = a->n_ff % LANE == 0 && aligned16(a->gu) && aligned16(a->y);
    for (int32_t r = 0; r < a->n_row; r += GRID_ROWS) {
        int32_t rows = a->n_row - r < GRID_ROWS ? a->n_row - r : GRID_ROWS;
        dim3 grid(blocks_for(a->n_ff, ROW_THREADS * LANE), (unsigned)rows);
        const T *gu = (const T *)a->gu + (int64_t)r * 2 * a->n_ff;
        T *y = (T *)a->y + (int64_t)r * a->n_ff;
        if (aligned && sizeof(T) == sizeof(bf16))
            launch_early(c, silu_mul_wide_kernel, grid, ROW_THREADS, 0, (const bf16 *)gu, a->n_ff, (bf16 *)y);
        else
            launch_early(c, silu_mul_kernel<T>, grid, ROW_THREADS, 0, gu, a->n_ff, y, aligned);
    }
}

void cuda_silu_mul(gy_backend *be, const gy_silu_mul_args *a) {
    cuda_be *c = of_be(be);
    if (a->n_row <= 0 || a->n_ff <= 0) return;
    if (be->act == GY_F32)
        silu_launch<float>(c, a);
    else
        silu_launch<bf16>(c, a);
    cuda_launched(c, "silu_mul");
}

/* ---- embed: one block a row
 * --------------------------------------------------------------------------------------
 */

typedef struct weight_parts { /* of a gy_weight, by value */
    const void *data[GY_WEIGHT_PARTS];
    int32_t n[GY_WEIGHT_PARTS];
} weight_parts;

/* Scale 1 copies, and a NaN keeps its payload, as on the host. */
template <typename TW, typename T>
static __global__ void embed_kernel(weight_parts w, const int32_t *ids, const gy_drawn *drawn, float scale, int32_t n,
                                    T *y) {
    wait_for_previous();
    int32_t id = ids[blockIdx.x], ip = 0;
    if (id < 0) id = drawn[-1 - id].refused ? 0 : drawn[-1 - id].id;
    while (id >= w.n[ip]) id -= w.n[ip++];
    const TW *row = (const TW *)w.data[ip] + (int64_t)id * n;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) {
        float v = get(row, i);
        put(y, (int64_t)blockIdx.x * n + i, scale == 1.0f || v != v ? v : v * scale);
    }
}

template <typename T> static void embed_launch(cuda_be *c, const gy_embed_args *a, weight_parts w) {
    dim3 grid((unsigned)a->n_row);
    int32_t n = a->table->k;
    if (a->table->dtype == GY_F32)
        launch_early(c, embed_kernel<float, T>, grid, ROW_THREADS, 0, w, a->ids, a->drawn, a->scale, n, (T *)a->y);
    else if (a->table->dtype == GY_F16)
        launch_early(c, embed_kernel<__half, T>, grid, ROW_THREADS, 0, w, a->ids, a->drawn, a->scale, n, (T *)a->y);
    else
        launch_early(c, embed_kernel<bf16, T>, grid, ROW_THREADS, 0, w, a->ids, a->drawn, a->scale, n, (T *)a->y);
}

void cuda_embed(gy_backend *be, const gy_embed_args *a) {
    cuda_be *c = of_be(be);
    weight_parts w = {};
    if (a->n_row <= 0) return;
    for (int i = 0; i < a->table->n_part; i++) {
        w.data[i] = a->table->part[i].data;
        w.n[i] = a->table->part[i].n;
    }
    if (be->act == GY_F32)
        embed_launch<float>(c, a, w);
    else
        embed_launch<bf16>(c, a, w);
    cuda_launched(c, "embed");
}

/* ---- rows that only move
 * -----------------------------------------------------------------------------------------
 */

/* Block (row): len units of V from src row to dst row; from and to index rows
 * where given. */
template <typename V>
static __global__ void move_kernel(const V *x, const int32_t *from, const int32_t *to, int32_t len, int64_t stride_x,
                                   int64_t stride_y, V *y) {
    wait_for_previous();
    int64_t r = blockIdx.x, at_x = from ? from[r] : r, at_y = to ? to[r] : r;
    if (at_x < 0 || at_y < 0) return;
    const V *src = x + at_x * stride_x;
    V *dst = y + at_y * stride_y;
    for (int32_t i = (int32_t)threadIdx.x; i < len; i += (int32_t)blockDim.x) dst[i] = src[i];
}

/* In the widest unit that all rows are aligned to. Lengths and strides in
 * bytes. */
static void move_rows(cuda_be *c, const void *x, const int32_t *from, const int32_t *to, int32_t n_row, int64_t bytes,
                      int64_t stride_x, int64_t stride_y, void *y) {
    uintptr_t all = (uintptr_t)x | (uintptr_t)y | (uintptr_t)bytes | (uintptr_t)stride_x | (uintptr_t)stride_y;
    dim3 grid((unsigned)n_row);
    if (all % 16 == 0)
        launch_early(c, move_kernel<uint4>, grid, ROW_THREADS, 0, (const uint4 *)x, from, to, (int32_t)(bytes / 16),
                     stride_x / 16, stride_y / 16, (uint4 *)y);
    else
        launch_early(c, move_kernel<uint16_t>, grid, ROW_THREADS, 0, (const uint16_t *)x, from, to,
                     (int32_t)(bytes / 2), stride_x / 2, stride_y / 2, (uint16_t *)y);
}

void cuda_gather(gy_backend *be, const gy_move_args *a) {
    int64_t bytes = (int64_t)a->n * (int64_t)dtype_bytes(be->act);
    if (a->n_row <= 0) return;
    move_rows(of_be(be), a->x, a->idx, NULL, a->n_row, bytes, bytes, bytes, a->y);
    cuda_launched(of_be(be), "gather");
}

void cuda_scatter(gy_backend *be, const gy_move_args *a) {
    int64_t bytes = (int64_t)a->n * (int64_t)dtype_bytes(be->act);
    if (a->n_row <= 0) return;
    move_rows(of_be(be), a->x, NULL, a->idx, a->n_row, bytes, bytes, bytes, a->y);
    cuda_launched(of_be(be), "scatter");
}

void cuda_concat(gy_backend *be, const gy_concat_args *a) {
    int64_t na = (int64_t)a->na * (int64_t)dtype_bytes(be->act), nb = (int64_t)a->nb * (int64_t)dtype_bytes(be->act);
    if (a->n_row <= 0) return;
    move_rows(of_be(be), a->a, NULL, NULL, a->n_row, na, na, na + nb, a->y);
    move_rows(of_be(be), a->b, NULL, NULL, a->n_row, nb, nb, na + nb, (char *)a->y + na);
    cuda_launched(of_be(be), "concat");
}
