/* y = x W^T for up to 64 rows, BF16: the weights are read once, at the rate of memory, and begin to come before the
 * kernel in front of this one has ended.
 *
 * Formula   y[r, i] = round(sum over k of x[r, k] w[i, k]): one f32 chain an output from +0, k ascending in steps of
 *           16 (mma.m16n8k16). That is cuBLASLt's chain without split-K, bit for bit; blaslt.cu tries it first.
 * Layout    a block owns a tile of 8 to 128 outputs, whole rows of W: one accumulator an output, no sums meet. x is
 *           the A operand (16 rows), W the B operand (8 outputs), both as stored, in panels of 64 of k with 128-byte
 *           swizzle. A warp owns MT x NT products of 16 x 8; fragments of the next 32 of k are loaded while those of
 *           the last are multiplied, so a chain costs its products' latency.
 * Ring      a stage = P panels of x and of W; one thread brings W by TMA, one brings x, mbarriers tell full and
 *           empty. Tiles of a block follow one another without a gap. P is larger for few outputs: what goes with a
 *           stage (a wait, a release, addresses) stands between two products of a chain.
 * Silu      W is gate and up: eight outputs are four of each, of the same numbers, brought by one box of four
 *           dimensions. So a quad of lanes holds both and leaves silu(g) u, rounded as silu_mul_kernel (rows.cu) does.
 * Early     the weights are constant: no kernel writes them, and an upload (a copy, not a kernel) lies between their
 *           writing and any use. So the ring is filled with them before griddepcontrol.wait. x and y are touched
 *           after it only, by threads that have waited themselves.
 *
 * 8 bits    W's panels are 64 bytes a row with 64-byte swizzle, half of what is brought. A lane reads the two bytes of
 *           k, k + 1 that the instruction wants from it and widens them to BF16 (exactly: eight_bits.cuh), so products
 *           and chain are those of a BF16 weight with these values; the row's scale is one product behind the chain.
 *
 * Tried, the same bits each time: wgmma m64n16k16, whose chain took 37 ns a step, twice mma's; x brought once for a
 * cluster of 2 or 4 blocks, no gain up to 32 rows; asking the L2 for weights beyond the ring, slower for every shape
 * (gate and up 14.1 to 19.8 us); a ring of 104 KiB, so that two kernels' blocks fit a multiprocessor, and letting the
 * next kernel begin at once: alone the fastest for one row, but in a model a step of 32 rows took 15.5 ms, not 14.2.
 */
#include "ops/cuda/attn_wgmma.cuh"
#include "ops/cuda/bf16_two.cuh"
#include "ops/cuda/eight_bits.cuh"
#include "ops/cuda/narrow.cuh"

enum {
    PANEL_ROW = 128,
    RING_BYTES = 150 << 10,
    SMEM_MOST = 160 << 10,
    HEAD_BYTES = 1024,
    MAX_TILE = 128,
    MAX_WARPS = 8,
    MAX_NT = 4
};

typedef struct narrow_args {
    narrow_plan p;
    int32_t n_row, n, ldy;
    narrow_out out;
    int32_t lets_next;
    void *y;
} narrow_args;

/* ---- plan -------------------------------------------------------------------------------------------------------- */

static int32_t div_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

static int32_t rows_of(int32_t n_row) {
    int32_t rows = 8;
    while (rows < n_row) rows *= 2;
    return rows;
}

/* Bytes of an output's panel. */
static __host__ __device__ constexpr int32_t w_row(gy_dtype type) {
    return type == GY_BF16 ? (int32_t)PANEL_ROW : (int32_t)NARROW_PANEL;
}

/* Of the ring; x's panels lie at multiples of 1024. */
static int32_t stage_bytes(const narrow_plan *p, gy_dtype type) {
    return (p->panels * (p->rows * PANEL_ROW + p->tile * w_row(type)) + 1023) / 1024 * 1024;
}

/* Each block's work is rounds * (tile + its x); the least of it, the larger tile where two are equal. */
static void plan_tiles(int n_sm, gy_dtype type, int32_t n, narrow_plan *p) {
    int32_t best = INT32_MAX;
    for (int32_t tile = MAX_TILE; tile >= 8; tile -= 8) {
        int32_t tiles = div_up(n, tile), rounds = div_up(tiles, n_sm),
                cost = rounds * (w_row(type) / 16 * tile + 2 * p->rows);
        if (cost >= best) continue;
        best = cost;
        p->tile = tile;
        p->rounds = rounds;
        p->grid = div_up(tiles, rounds);
    }
}

static __host__ __device__ constexpr int32_t panels_of(int32_t nt) {
    return nt == 1 ? 4 : nt == 2 ? 2 : 1;
}

/* Chains over the warps: short ones (few outputs) as many warps as there are, else up to 2 x 4 products a warp. */
static void plan_warps(narrow_plan *p) {
    int32_t outs = p->tile / 8, ms = p->rows < 16 ? 1 : p->rows / 16;
    p->nt = div_up(outs, MAX_NT);
    p->mt = ms > 1 && (p->nt > 2 || ms * div_up(outs, p->nt) > MAX_WARPS) ? 2 : 1;
    p->warps_n = div_up(outs, p->nt);
    p->warps = ms / p->mt * p->warps_n;
}

int cuda_narrow_plan(int n_sm, gy_dtype type, int32_t n, int32_t k, int32_t ldy, int32_t n_row, narrow_plan *out) {
    narrow_plan p = {};
    if (n_row < 1 || n_row > NARROW_ROWS || n < 8 || k < NARROW_PANEL || n % 8 || k % (type == GY_BF16 ? 8 : 16) ||
        ldy % 8)
        return 0;
    p.rows = rows_of(n_row);
    plan_tiles(n_sm, type, n, &p);
    plan_warps(&p);
    p.panels = panels_of(p.nt);
    p.steps = div_up(div_up(k, NARROW_PANEL), p.panels);
    p.stages = RING_BYTES / stage_bytes(&p, type);
    if (p.stages > NARROW_STAGES) p.stages = NARROW_STAGES;
    *out = p;
    return 1;
}

/* Fragments of 16 rows of x and of whole warps of outputs are read to their end, past the ring's last panel. */
static size_t smem_bytes(const narrow_plan *p, gy_dtype type) {
    return HEAD_BYTES + 1024 + (size_t)(p->stages * stage_bytes(p, type)) + 8 * MAX_NT * PANEL_ROW;
}

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

/* Shared addresses of the ring's parts. */
typedef struct ring {
    uint32_t full, empty, base;
    int32_t x_panel, w_panel, stage, brought; /* bytes; a stage begins at a multiple of 1024 */
} ring;

template <gy_dtype W> [[maybe_unused]] static __device__ inline ring ring_of(const narrow_plan &p) {
    extern __shared__ char raw[];
    ring g;
    g.full = (uint32_t)__cvta_generic_to_shared(raw);
    g.empty = g.full + NARROW_STAGES * 8;
    g.base = (g.full + HEAD_BYTES + 1023) / 1024 * 1024;
    g.x_panel = p.rows * PANEL_ROW;
    g.w_panel = p.tile * w_row(W);
    g.brought = p.panels * (g.x_panel + g.w_panel);
    g.stage = W == GY_BF16 ? g.brought : (g.brought + 1023) / 1024 * 1024;
    return g;
}

#if __CUDA_ARCH__ >= 900
static __device__ inline void bar_expect(uint32_t bar, int32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ inline void tma_bring(uint32_t to, const CUtensorMap *map, int32_t k, int32_t row, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(k), "r"(row), "r"(bar)
                 : "memory");
}
static __device__ inline void tma_bring_units(uint32_t to, const CUtensorMap *map, int32_t k, int32_t unit,
                                              uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(k), "r"(0), "r"(unit), "r"(bar)
                 : "memory");
}
/* Whether the phase is over, without waiting for it. */
static __device__ inline int bar_test(uint32_t bar, uint32_t parity) {
    int over;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over;
}
static __device__ inline void tma_ready(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static __device__ inline void bars_init(const ring &g, const narrow_plan &p, int32_t readers) {
    for (int32_t s = 0; s < p.stages; s++) {
        bar_init(g.full + 8 * s, 1);
        bar_init(g.empty + 8 * s, readers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

/* A walk over the block's stages: slot of the ring, how often (parity) the ring has been gone round; round and k of the
 * weights there. Counted on, because a division costs as much as a stage's products. */
typedef struct walk {
    int32_t i, slot, step, round;
    uint32_t parity;
} walk;

static __device__ inline void advance(const narrow_plan &p, walk *at) {
    at->i++;
    if (++at->slot == p.stages) at->slot = 0, at->parity ^= 1;
    if (++at->step == p.steps) at->step = 0, at->round++;
}

static __device__ inline int32_t first_output(const narrow_plan &p, const walk &at) {
    return (at.round * p.grid + (int32_t)blockIdx.x) * p.tile;
}

static __device__ inline void wait_empty(const ring &g, const narrow_plan &p, const walk &at) {
    if (at.i >= p.stages) bar_wait(g.empty + 8 * at.slot, at.parity ^ 1);
}

template <int SILU>
static __device__ inline void bring_weights(const ring &g, const narrow_args &a, const CUtensorMap *w, const walk &at) {
    const narrow_plan &p = a.p;
    int32_t k = at.step * p.panels * NARROW_PANEL, row = first_output(p, at);
    uint32_t to = g.base + (uint32_t)(at.slot * g.stage + p.panels * g.x_panel), full = g.full + 8 * at.slot;
    bar_expect(full, g.brought);
    for (int32_t j = 0; j < p.panels; j++) {
        if (SILU)
            tma_bring_units(to + (uint32_t)(j * g.w_panel), w, k + j * NARROW_PANEL, row / 8, full);
        else
            tma_bring(to + (uint32_t)(j * g.w_panel), w, k + j * NARROW_PANEL, row, full);
    }
}

/* Does not wait for the kernel before this one. */
template <int SILU>
static __device__ inline void produce_weights(const ring &g, const narrow_args &a, const CUtensorMap *w) {
    const narrow_plan &p = a.p;
    for (walk at = {}; at.i < p.rounds * p.steps; advance(p, &at)) {
        wait_empty(g, p, at);
        bring_weights<SILU>(g, a, w, at);
    }
    if (a.lets_next) let_next();
}

static __device__ inline void produce_x(const ring &g, const narrow_plan &p, const CUtensorMap *x) {
    for (walk at = {}; at.i < p.rounds * p.steps; advance(p, &at)) {
        wait_empty(g, p, at);
        uint32_t to = g.base + (uint32_t)(at.slot * g.stage);
        int32_t k = at.step * p.panels * NARROW_PANEL;
        for (int32_t j = 0; j < p.panels; j++)
            tma_bring(to + (uint32_t)(j * g.x_panel), x, k + j * NARROW_PANEL, 0, g.full + 8 * at.slot);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Fragments of 32 of k: MT x 16 rows of x, NT x 8 outputs. */
template <int MT, int NT> struct fragments { uint32_t x[MT][2][4], w[NT][4]; };

/* Where this lane's rows are in a panel of x and of W: bytes, without the 16-byte unit, which swizzling makes of k. */
typedef struct lane_place {
    uint32_t x, w, x_unit, w_unit;
} lane_place;

/* Of 8 bits: row lane / 4 and, within a unit of 16 of k, its bytes 2 (lane % 4); 64-byte swizzle. */
template <gy_dtype W> static __device__ inline lane_place place_of_lane(int32_t m, int32_t n) {
    uint32_t lane = threadIdx.x % 32, row = lane % 8;
    lane_place l;
    l.x = ((uint32_t)m * 16 + lane % 16) * PANEL_ROW;
    l.w =
        W == GY_BF16 ? ((uint32_t)n * 8 + row) * PANEL_ROW : ((uint32_t)n * 8 + lane / 4) * NARROW_PANEL + lane % 4 * 2;
    l.x_unit = (lane / 16 ^ row) * 16;
    l.w_unit = W == GY_BF16 ? (lane / 8 ^ row) * 16 : lane / 8 * 16;
    return l;
}

/* 8 outputs x 32 of k. */
static __device__ inline void load_eight_bits(uint32_t (&f)[4], uint32_t at, uint32_t unit, int half) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint32_t from = at + (unit ^ (uint32_t)(half * 32 + s * 16));
        f[2 * s] = widen_two(shared_two(from));
        f[2 * s + 1] = widen_two(shared_two(from + 8));
    }
}

/* half: which 32 of the panel's 64. */
template <gy_dtype W, int MT, int NT>
static __device__ inline void load(fragments<MT, NT> &f, uint32_t x, uint32_t w, lane_place l, int half) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int s = 0; s < 2; s++)
            ldmatrix4(f.x[m][s],
                      x + l.x + (uint32_t)(m * 16 * PANEL_ROW) + (l.x_unit ^ (uint32_t)(half * 64 + s * 32)));
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t at = w + l.w + (uint32_t)(n * 8 * w_row(W));
        if constexpr (W == GY_BF16)
            ldmatrix4(f.w[n], at + (l.w_unit ^ (uint32_t)(half * 64)));
        else
            load_eight_bits(f.w[n], at, l.w_unit, half);
    }
}

template <int MT, int NT> static __device__ inline void multiply(float (&d)[MT][NT][4], const fragments<MT, NT> &f) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int n = 0; n < NT; n++) mma(d[m][n], f.x[m][s], f.w[n][2 * s], f.w[n][2 * s + 1]);
        }
    }
}

static __device__ inline void put_pair(const narrow_args &a, int32_t row, int32_t at, float v0, float v1) {
    int64_t to = (int64_t)row * a.ldy + at;
    if (a.out == NARROW_BF16)
        *(uint32_t *)((bf16 *)a.y + to) = (uint32_t)bf16_bits(v0) | (uint32_t)bf16_bits(v1) << 16;
    else if (a.out == NARROW_F32_ROUNDED)
        *(float2 *)((float *)a.y + to) = make_float2(round_to<bf16>(v0), round_to<bf16>(v1));
    else
        *(float2 *)((float *)a.y + to) = make_float2(v0, v1);
}

template <gy_dtype W> static __device__ inline float times(float v, float scale) {
    if constexpr (W == GY_BF16)
        return v;
    else
        return __fmul_rn(v, scale);
}

/* Lane has rows lane / 4 (+ 8) of 16, outputs 2 (lane % 4) (+ 1) of 8. end: of the tile, and of W. */
template <gy_dtype W, int MT, int NT>
static __device__ inline void store(const narrow_args &a, const float *scale, const float (&d)[MT][NT][4], int32_t row,
                                    int32_t at, int32_t end) {
    int32_t lane = (int32_t)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        int32_t r = row + m * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (at + n * 8 >= end) break;
            int32_t to = at + n * 8 + lane % 4 * 2;
            float s0 = 1.0f, s1 = 1.0f;
            if constexpr (W != GY_BF16) s0 = scale[to], s1 = scale[to + 1];
            if (r < a.n_row) put_pair(a, r, to, times<W>(d[m][n][0], s0), times<W>(d[m][n][1], s1));
            if (r + 8 < a.n_row) put_pair(a, r + 8, to, times<W>(d[m][n][2], s0), times<W>(d[m][n][3], s1));
        }
    }
}

/* Gates are outputs 0..3 of 8, ups 4..7: lanes 0, 1 of a quad have gates, lanes 2, 3 the ups of the same numbers. They
 * exchange, so that the former have both of the upper row, the latter both of the lower. */
template <int MT, int NT>
static __device__ inline void store_silu(const narrow_args &a, const float (&d)[MT][NT][4], int32_t row, int32_t at,
                                         int32_t end) {
    int32_t lane = (int32_t)threadIdx.x % 32, has_up = lane / 2 % 2;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        int32_t r = row + m * 16 + lane / 4 + 8 * has_up;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (at + n * 8 >= end) break;
            uint32_t upper = (uint32_t)bf16_bits(d[m][n][0]) | (uint32_t)bf16_bits(d[m][n][1]) << 16;
            uint32_t lower = (uint32_t)bf16_bits(d[m][n][2]) | (uint32_t)bf16_bits(d[m][n][3]) << 16;
            uint32_t got = __shfl_xor_sync(~0u, has_up ? upper : lower, 2);
            int64_t to = (int64_t)r * a.ldy + (at + n * 8) / 2 + lane % 2 * 2;
            if (r < a.n_row) *(uint32_t *)((bf16 *)a.y + to) = silu_mul_two(has_up ? got : upper, has_up ? lower : got);
        }
    }
}

/* Half h of a stage's panels. */
template <gy_dtype W, int MT, int NT>
static __device__ inline void load_half(fragments<MT, NT> &f, const ring &g, const walk &at, lane_place l, int h) {
    constexpr int P = panels_of(NT);
    uint32_t stage = g.base + (uint32_t)(at.slot * g.stage);
    load<W>(f, stage + (uint32_t)(h / 2 * g.x_panel), stage + (uint32_t)(P * g.x_panel + h / 2 * g.w_panel), l, h % 2);
}

/* A stage: each half is loaded while the one before it is multiplied, the next stage's first half (of the next tile,
 * too) while the last is. Whether that stage is full is asked early, so that the answer is there. */
template <gy_dtype W, int MT, int NT>
static __device__ inline void multiply_stage(float (&d)[MT][NT][4], fragments<MT, NT> (&f)[2], const ring &g,
                                             const narrow_plan &p, lane_place l, walk &at) {
    constexpr int HALVES = 2 * panels_of(NT);
    walk next = at;
    advance(p, &next);
    int is_last = next.i == p.rounds * p.steps, full = is_last || bar_test(g.full + 8 * next.slot, next.parity);
#pragma unroll
    for (int h = 0; h < HALVES - 1; h++) {
        load_half<W, MT, NT>(f[(h + 1) % 2], g, at, l, h + 1);
        multiply(d, f[h % 2]);
    }
    if (!full) bar_wait(g.full + 8 * next.slot, next.parity);
    load_half<W, MT, NT>(f[0], g, next, l, 0); /* after the last stage: what lies there, not used */
    multiply(d, f[1]);
    if (threadIdx.x % 32 == 0) bar_arrive(g.empty + 8 * at.slot);
    at = next;
}

template <gy_dtype W, int MT, int NT, int SILU>
static __device__ inline void consume(const ring &g, const narrow_args &a, const float *scale, int32_t warp) {
    const narrow_plan &p = a.p;
    int32_t m = warp / p.warps_n * MT, n = warp % p.warps_n * NT;
    lane_place l = place_of_lane<W>(m, n);
    fragments<MT, NT> f[2];
    walk at = {};
    bar_wait(g.full, 0);
    load_half<W, MT, NT>(f[0], g, at, l, 0);
    for (int32_t round = 0; round < p.rounds; round++) {
        float d[MT][NT][4] = {};
        int32_t tile = first_output(p, at), end = tile + p.tile < a.n ? tile + p.tile : a.n;
        for (int32_t step = 0; step < p.steps; step++) multiply_stage<W, MT, NT>(d, f, g, p, l, at);
        if (SILU)
            store_silu<MT, NT>(a, d, m * 16, tile + n * 8, end);
        else
            store<W, MT, NT>(a, scale, d, m * 16, tile + n * 8, end);
    }
}

#endif

/* Warps that multiply, then the one that brings W, then the one that brings x. SILU: W is BF16. */
template <gy_dtype W, int MT, int NT, int SILU>
static __global__ void __launch_bounds__(32 * (MAX_WARPS + 2))
    narrow_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ narrow_args a, const float *scale) {
#if __CUDA_ARCH__ >= 900
    const ring g = ring_of<W>(a.p);
    int32_t readers = a.p.warps, warp = __shfl_sync(~0u, (int32_t)threadIdx.x / 32, 0); /* all lanes agree */
    int leads = threadIdx.x % 32 == 0;
    if (warp == readers && leads) bars_init(g, a.p, readers);
    if (warp == readers + 1 && leads) tma_ready(&x);
    __syncthreads(); /* the barriers are there */
    if (warp == readers) {
        if (leads) produce_weights<SILU>(g, a, &w);
        return;
    }
    wait_only();
    if (warp < readers)
        consume<W, MT, NT, SILU>(g, a, scale, warp);
    else if (leads)
        produce_x(g, a.p, &x);
#endif
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

typedef void (*narrow_fn)(CUtensorMap, CUtensorMap, narrow_args, const float *);

template <gy_dtype W, int SILU> static narrow_fn kernel_for(int32_t mt, int32_t nt) {
    static const narrow_fn all[2][MAX_NT] = {{narrow_kernel<W, 1, 1, SILU>, narrow_kernel<W, 1, 2, SILU>,
                                              narrow_kernel<W, 1, 3, SILU>, narrow_kernel<W, 1, 4, SILU>},
                                             {narrow_kernel<W, 2, 1, SILU>, narrow_kernel<W, 2, 2, SILU>,
                                              narrow_kernel<W, 2, 3, SILU>, narrow_kernel<W, 2, 4, SILU>}};
    return all[mt - 1][nt - 1];
}
static narrow_fn kernel_of(gy_dtype type, int32_t mt, int32_t nt, int is_silu) {
    if (type == GY_F8_E4M3) return kernel_for<GY_F8_E4M3, 0>(mt, nt);
    return is_silu ? kernel_for<GY_BF16, 1>(mt, nt) : kernel_for<GY_BF16, 0>(mt, nt);
}

/* Whether the device has the code. */
static int is_there(narrow_fn kernel, int smem) {
    cudaFuncAttributes has;
    return !cudaFuncGetAttributes(&has, (const void *)kernel) && has.binaryVersion >= 90 &&
           !cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
}

void cuda_narrow_open(cuda_be *c, cuda_narrow *out) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    int major = 0;
    *out = {};
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->device);
    if (major < 9) return;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &out->encode, 12000, cudaEnableDefault, &found) ||
        found != cudaDriverEntryPointSuccess)
        out->encode = NULL;
    for (int32_t i = 0; i < 6 * MAX_NT && out->encode; i++) {
        int32_t nt = 1 + i % MAX_NT, mt = 1 + i / MAX_NT % 2, way = i / (2 * MAX_NT); /* BF16, with silu, 8 bits */
        if (!is_there(kernel_of(way == 2 ? GY_F8_E4M3 : GY_BF16, mt, nt, way == 1), SMEM_MOST)) out->encode = NULL;
    }
    cudaGetLastError();
}

/* A matrix of rows x k in boxes of 64 of k and box_rows rows. What lies outside is read as zero. */
static int encode(const cuda_narrow *nw, CUtensorMap *map, gy_dtype type, const void *base, int32_t rows, int32_t k,
                  int32_t box_rows) {
    typedef decltype(&cuTensorMapEncodeTiled) encode_fn;
    int is_bf16 = type == GY_BF16;
    cuuint64_t dim[2] = {(cuuint64_t)k, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)k * (is_bf16 ? 2 : 1)};
    cuuint32_t box[2] = {NARROW_PANEL, (cuuint32_t)box_rows}, step[2] = {1, 1};
    return ((encode_fn)nw->encode)(map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                                   (void *)base, dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   is_bf16 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Gate and up, n_ff rows each, as units of four rows of both: in boxes of 64 of k and n_unit units. */
static int encode_units(const cuda_narrow *nw, CUtensorMap *map, const void *base, int32_t n_ff, int32_t k,
                        int32_t n_unit) {
    typedef decltype(&cuTensorMapEncodeTiled) encode_fn;
    cuuint64_t row = (cuuint64_t)k * 2, dim[4] = {(cuuint64_t)k, 4, 2, (cuuint64_t)n_ff / 4};
    cuuint64_t stride[3] = {row, row * (cuuint64_t)n_ff, row * 4};
    cuuint32_t box[4] = {NARROW_PANEL, 4, 2, (cuuint32_t)n_unit}, step[4] = {1, 1, 1, 1};
    return ((encode_fn)nw->encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)base, dim, stride, box, step,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static int encode_weight(const cuda_narrow *nw, CUtensorMap *map, const narrow_plan *p, const cuda_matrix *m,
                         narrow_out out) {
    return out == NARROW_SILU ? encode_units(nw, map, m->w, m->n / 2, m->k, p->tile / 8)
                              : encode(nw, map, m->type, m->w, m->n, m->k, p->tile);
}

int cuda_narrow_run(cuda_be *c, const cuda_narrow *nw, const narrow_plan *p, const cuda_matrix *m, int32_t ldy,
                    narrow_out out, const void *x, int32_t n_row, void *y) {
    CUtensorMap map_w, map_x;
    narrow_args a = {*p, n_row, m->n, ldy, out, nw->lets_next, y};
    if (!encode_weight(nw, &map_w, p, m, out) || !encode(nw, &map_x, GY_BF16, x, n_row, m->k, p->rows)) return 0;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)p->grid);
    config.blockDim = dim3((unsigned)(32 * (p->warps + 2)));
    config.dynamicSmemBytes = smem_bytes(p, m->type);
    config.stream = c->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cuda_ok(
        c, cudaLaunchKernelEx(&config, kernel_of(m->type, p->mt, p->nt, out == NARROW_SILU), map_w, map_x, a, m->scale),
        "launch");
}
