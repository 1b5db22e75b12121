/* Attention over the slot map in BF16 for head_dim 64, 96 and 128: who computes which tile (attn_tile.cuh has the
 * arithmetic). Anything else goes to attn_plain.cu.
 *
 * Rows that stand behind one another in the batch and read the same map row (a chunk of a prompt at one depth) are a
 * run. A run of at least MIN_RUN rows is cut into blocks of 64 queries (rows x heads of one KV head); the other rows
 * are decoded one by one.
 *
 *   prompt   grid blocks of rows x KV heads, longest contexts first (blocks start in order), 128 threads: 4 warps of 16
 * queries walk the tiles together, K and V of the next tile on their way (cp.async) while this one is computed; 2 x 2 x
 * 64 x (D + 8) x 2 bytes of shared memory. Each warp joins its tiles in registers and writes y. decode   grid (tiles of
 * all rows, KV heads), 32 threads: one warp, one tile, up to 16 heads of a group as its queries; 2 x 64 x (D + 8) x 2
 * bytes. Writes (m, l, a) of each head. join     grid (rows, heads), D threads: factors of D tiles at once, then a
 * thread joins one element over the tiles, in order, and writes y.
 *
 * The plan (which blocks, which tiles) is made on the host once a batch, from the host copies that begin_rows brings,
 * and used by all layers. Partial sums are bounded: decode rows are taken in as many launches as that needs.
 */
#include "ops/cuda/attn_tile.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_RUN = 8,
    QUERIES = 64, /* of a prompt block */
    WARPS = QUERIES / 16,
    MAX_GROUP = 16
};
#define PART_BYTES ((size_t)192 << 20) /* of partial sums */

typedef struct prompt_block {
    int64_t map_off;
    int32_t row, n_row, n_pos; /* n_pos: of its longest row */
} prompt_block;

typedef struct tile_item { /* one tile of one decode row */
    int32_t row, tile;
} tile_item;

typedef struct join_item {
    int32_t row, n_tile;
    int64_t first; /* its first tile among the launch's */
} join_item;

typedef struct launch_range { /* decode rows whose partial sums fit together */
    int64_t tile, n_tile;
    int32_t join, n_join;
} launch_range;

/* Host arrays are engine lifetime and grow to what was needed; device arrays hold a copy each. */
typedef struct grown {
    void *host, *dev;
    size_t cap; /* bytes of both */
} grown;

struct cuda_attn {
    int32_t n_row;  /* of the batch that begin_rows told */
    grown pos, off; /* host copies only */
    int is_stale;   /* the plan below is of another batch, or of another group */
    int32_t group, n_head, d;
    grown prompt, tile, join, range;
    int32_t n_prompt, n_range;
    int64_t n_tile;
    int32_t n_join;
    float *part; /* PART_BYTES, taken when first needed */
};

/* ---- device ------------------------------------------------------------------------------------------------------ */

typedef struct attn_args { /* of a launch, by value */
    const bf16 *q;
    const bf16 *kv;
    const int32_t *map, *pos;
    const int64_t *map_off;
    bf16 *y;
    int32_t q_stride, n_head, group;
    float scale; /* times log2(e) */
    kv_shape shape;
} attn_args;

/* Copies tile `tile` of K and V of one KV head into shared memory; positions from n_pos on become zeros. Each warp has
 * TILE / (THREADS / 32) positions; a lane looks up the slot of one position of 32, and the others learn it from there.
 */
template <int D, int THREADS>
static __device__ inline void load_tile(const attn_args &a, const int32_t *map, int32_t tile, int32_t n_pos,
                                        int32_t kv_head, bf16 *k, bf16 *v) {
    enum {
        ROW = attn_smem<D>::ROW,
        UNITS = D / 8,
        PER_WARP = TILE / (THREADS / 32),
        STEP = PER_WARP < 32 ? PER_WARP : 32
    };
    static_assert(STEP * UNITS % 32 == 0, "a warp copies in whole steps");
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t to_v = (int64_t)GY_BLOCK_SLOTS * a.shape.width;
    const bf16 *base = a.kv + (int64_t)kv_head * D;
#pragma unroll
    for (int first = 0; first < PER_WARP; first += STEP) {
        int32_t at = warp * PER_WARP + first, j = tile * TILE + at + lane;
        int32_t slot = lane < STEP && j < n_pos ? map[j] : -1;
#pragma unroll
        for (int u = 0; u < STEP * UNITS / 32; u++) {
            int p = (u * 32 + lane) / UNITS, e = (u * 32 + lane) % UNITS * 8;
            int32_t from = __shfl_sync(~0u, slot, p);
            const bf16 *src = base + kv_offset(a.shape, from < 0 ? 0 : from, 0) + e;
            copy16(smem_at(k + (at + p) * ROW + e), src, from >= 0);
            copy16(smem_at(v + (at + p) * ROW + e), src + to_v, from >= 0);
        }
    }
}

/* Fragments of 16 queries: of query i, head's elements at q_of(i), or zeros where that is NULL. */
template <int D, typename F> static __device__ inline void load_queries(F q_of, uint32_t q[D / 16][4]) {
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

template <int D>
static __global__ void __launch_bounds__(QUERIES / 16 * 32) prompt_kernel(attn_args a, const prompt_block *blocks) {
    enum { ELEMS = attn_smem<D>::ELEMS, THREADS = WARPS * 32 };
    extern __shared__ __align__(16) bf16 smem[]; /* [2][K, V] */
    int32_t n_kv = a.n_head / a.group, kv_head = (int32_t)blockIdx.x % n_kv;
    prompt_block b = blocks[(int32_t)blockIdx.x / n_kv];
    int32_t n_query = b.n_row * a.group;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int32_t row[2], head[2], pos[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t query = warp * 16 + lane / 4 + 8 * i;
        row[i] = query < n_query ? b.row + query / a.group : -1;
        head[i] = kv_head * a.group + query % a.group;
        pos[i] = row[i] < 0 ? -1 : a.pos[row[i]];
    }
    uint32_t q[D / 16][4];
    load_queries<D>(
        [&](int i) -> const bf16 * {
            int32_t query = warp * 16 + i;
            if (query >= n_query) return NULL;
            return a.q + (int64_t)(b.row + query / a.group) * a.q_stride +
                   (int64_t)(kv_head * a.group + query % a.group) * D;
        },
        q);
    int32_t deepest = pos[0] > pos[1] ? pos[0] : pos[1];
    deepest = __reduce_max_sync(~0u, deepest);
    const int32_t *map = a.map + b.map_off;
    int32_t n_pos = b.n_pos;
    attn_part<D> sum, part;
    sum.m[0] = sum.m[1] = -INFINITY;
    sum.l[0] = sum.l[1] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 8; d++) sum.a[d][0] = sum.a[d][1] = sum.a[d][2] = sum.a[d][3] = 0.0f;
    load_tile<D, THREADS>(a, map, 0, n_pos, kv_head, smem, smem + ELEMS);
    copy_commit();
    int32_t n_tile = (n_pos + TILE - 1) / TILE;
    for (int32_t t = 0; t < n_tile; t++) {
        bf16 *now = smem + t % 2 * 2 * ELEMS, *next = smem + (t + 1) % 2 * 2 * ELEMS;
        if (t + 1 < n_tile) load_tile<D, THREADS>(a, map, t + 1, n_pos, kv_head, next, next + ELEMS);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (t * TILE <= deepest) {
            const int last[2] = {pos[0] - t * TILE, pos[1] - t * TILE};
            attn_tile<D>(q, now, now + ELEMS, last, a.scale, &part);
            float f_old[2], f_tile[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                attn_factors(sum.m[i], part.m[i], &sum.m[i], &f_old[i], &f_tile[i]);
                sum.l[i] = attn_join(sum.l[i], f_old[i], part.l[i], f_tile[i]);
            }
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum.a[d][e] = attn_join(sum.a[d][e], f_old[e / 2], part.a[d][e], f_tile[e / 2]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (row[i] < 0) continue;
        bf16 *y = a.y + ((int64_t)row[i] * a.n_head + head[i]) * D + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *(uint32_t *)(y + d * 8) = pack(bf16_bits(__fdiv_rn(sum.a[d][2 * i], sum.l[i])),
                                            bf16_bits(__fdiv_rn(sum.a[d][2 * i + 1], sum.l[i])));
    }
}

/* part: [tile][head][D + 2]: a, then m, l. */
template <int D>
static __global__ void __launch_bounds__(32) decode_kernel(attn_args a, const tile_item *items, float *part) {
    enum { ELEMS = attn_smem<D>::ELEMS };
    extern __shared__ __align__(16) bf16 smem[];
    wait_for_previous();
    tile_item it = items[blockIdx.x];
    int32_t kv_head = (int32_t)blockIdx.y, pos = a.pos[it.row];
    int lane = (int)threadIdx.x, g = lane / 4, c = lane % 4;
    load_tile<D, 32>(a, a.map + a.map_off[it.row], it.tile, pos + 1, kv_head, smem, smem + ELEMS);
    copy_commit();
    uint32_t q[D / 16][4];
    load_queries<D>(
        [&](int i) -> const bf16 * {
            if (i >= a.group) return NULL;
            return a.q + (int64_t)it.row * a.q_stride + (int64_t)(kv_head * a.group + i) * D;
        },
        q);
    copy_wait<0>();
    __syncwarp();
    const int last[2] = {pos - it.tile * TILE, pos - it.tile * TILE};
    attn_part<D> out;
    attn_tile<D>(q, smem, smem + ELEMS, last, a.scale, &out);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (g + 8 * i >= a.group) continue;
        float *to = part + ((int64_t)blockIdx.x * a.n_head + kv_head * a.group + g + 8 * i) * (D + 2);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *(float2 *)(to + d * 8 + 2 * c) = make_float2(out.a[d][2 * i], out.a[d][2 * i + 1]);
        if (c == 0) *(float2 *)(to + D) = make_float2(out.m[i], out.l[i]);
    }
}

/* Largest of v over this thread and those before it in a block of D, and over carry. */
template <int D> static __device__ inline float max_so_far(float v, float carry) {
    __shared__ float of_warp[D / 32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        float before = __shfl_up_sync(~0u, v, o);
        if (lane >= o) v = fmaxf(v, before);
    }
    if (lane == 31) of_warp[warp] = v;
    __syncthreads();
    v = fmaxf(v, carry);
    for (int i = 0; i < warp; i++) v = fmaxf(v, of_warp[i]);
    __syncthreads();
    return v;
}

/* Only the sums have to go tile by tile. A running maximum does not depend on the order in which it is found, so the
 * factors of D tiles are computed at once, one a thread; then each thread joins its element of them. */
template <int D>
static __global__ void __launch_bounds__(D) join_kernel(attn_args a, const join_item *items, const float *part) {
    enum { AHEAD = 32 }; /* elements a thread has on their way */
    __shared__ float f_old[D], f_tile[D], l_tile[D], m_upto[D + 1];
    wait_for_previous();
    join_item it = items[blockIdx.x];
    int32_t head = (int32_t)blockIdx.y, me = (int32_t)threadIdx.x;
    const float *p = part + (it.first * a.n_head + head) * (D + 2);
    int64_t step = (int64_t)a.n_head * (D + 2);
    float m = -INFINITY, l = 0.0f, sum = 0.0f, v[AHEAD];
    for (int32_t t0 = 0; t0 < it.n_tile; t0 += D) {
        int32_t n = it.n_tile - t0 < D ? it.n_tile - t0 : D;
        float2 ml = me < n ? *(const float2 *)(p + me * step + D) : make_float2(-INFINITY, 0.0f);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) v[i] = i < n ? p[i * step + me] : 0.0f;
        float upto = max_so_far<D>(ml.x, m), unused;
        m_upto[me + 1] = upto;
        if (me == 0) m_upto[0] = m;
        __syncthreads();
        attn_factors(m_upto[me], ml.x, &unused, &f_old[me], &f_tile[me]);
        l_tile[me] = ml.y;
        m = m_upto[D];
        __syncthreads();
        for (int32_t t = 0; t < n; t += AHEAD) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (t + i >= n) break;
                l = attn_join(l, f_old[t + i], l_tile[t + i], f_tile[t + i]);
                sum = attn_join(sum, f_old[t + i], v[i], f_tile[t + i]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) v[i] = t + AHEAD + i < n ? p[(t + AHEAD + i) * step + me] : 0.0f;
        }
        p += n * step;
        __syncthreads();
    }
    put(a.y, ((int64_t)it.row * a.n_head + head) * D + me, __fdiv_rn(sum, l));
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* At least bytes of host memory, and of device memory if with_dev. What was there is lost. */
static int grow(cuda_be *c, grown *g, size_t bytes, int with_dev) {
    if (g->cap >= bytes) return 1;
    size_t cap = bytes + bytes / 2;
    if (g->dev) cuda_ok(c, cudaStreamSynchronize(c->stream), "attention");
    free(g->host);
    cudaFree(g->dev);
    *g = {};
    g->host = malloc(cap);
    if (g->host && with_dev && cudaMalloc(&g->dev, cap) != cudaSuccess) g->dev = NULL;
    if (g->host && (g->dev || !with_dev)) {
        g->cap = cap;
        return 1;
    }
    free(g->host);
    g->host = NULL;
    cudaGetLastError();
    return cuda_ok(c, cudaErrorMemoryAllocation, "attention: the plan of a batch");
}

static void drop(grown *g) {
    free(g->host);
    cudaFree(g->dev);
    *g = {};
}

gy_status cuda_attn_open(cuda_be *c, gy_err *err) {
    c->attn = (cuda_attn *)calloc(1, sizeof *c->attn);
    return c->attn ? GY_OK : cuda_err(err, GY_E_NOMEM, "out of memory");
}

void cuda_attn_close(cuda_be *c) {
    cuda_attn *p = c->attn;
    if (!p) return;
    grown *all[] = {&p->pos, &p->off, &p->prompt, &p->tile, &p->join, &p->range};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
    cudaFree(p->part);
    free(p);
    c->attn = NULL;
}

void cuda_begin_rows(gy_backend *be, const gy_rows *host) {
    cuda_be *c = of_be(be);
    cuda_attn *p = c->attn;
    size_t n = (size_t)host->n_row;
    cuda_enter(c);
    p->n_row = 0;
    p->is_stale = 1;
    if (!host->map_off || !grow(c, &p->pos, n * sizeof *host->pos, 0) ||
        !grow(c, &p->off, n * sizeof *host->map_off, 0))
        return;
    memcpy(p->pos.host, host->pos, n * sizeof *host->pos);
    memcpy(p->off.host, host->map_off, n * sizeof *host->map_off);
    p->n_row = host->n_row;
}

/* Rows from r on that read the same map row. */
static int32_t run_of(const cuda_attn *p, int32_t r) {
    const int64_t *off = (const int64_t *)p->off.host;
    int32_t n = 1;
    while (r + n < p->n_row && off[r + n] == off[r]) n++;
    return n;
}

static int32_t tiles_of(const cuda_attn *p, int32_t r) {
    return ((const int32_t *)p->pos.host)[r] / TILE + 1;
}

static void plan_prompt(cuda_attn *p, int32_t r, int32_t n) {
    prompt_block *b = (prompt_block *)p->prompt.host;
    int32_t per_block = QUERIES / p->group;
    for (int32_t i = 0; i < n; i += per_block) {
        prompt_block one = {((const int64_t *)p->off.host)[r], r + i, n - i < per_block ? n - i : per_block, 0};
        for (int32_t k = 0; k < one.n_row; k++) {
            int32_t pos = ((const int32_t *)p->pos.host)[one.row + k];
            if (pos >= one.n_pos) one.n_pos = pos + 1;
        }
        b[p->n_prompt++] = one;
    }
}

static void plan_decode(cuda_attn *p, int32_t r, int64_t tiles_at_once) {
    launch_range *l = (launch_range *)p->range.host + p->n_range;
    int32_t n = tiles_of(p, r);
    if (!p->n_range || l[-1].n_tile + n > tiles_at_once) {
        *l = {p->n_tile, 0, p->n_join, 0};
        p->n_range++;
        l++;
    }
    ((join_item *)p->join.host)[p->n_join++] = {r, n, l[-1].n_tile};
    for (int32_t t = 0; t < n; t++) ((tile_item *)p->tile.host)[p->n_tile++] = {r, t};
    l[-1].n_tile += n;
    l[-1].n_join++;
}

/* Longest first: a block of a prompt's end walks the whole context, one of its beginning a tile or two. */
static int longer_first(const void *x, const void *y) {
    const prompt_block *a = (const prompt_block *)x, *b = (const prompt_block *)y;
    if (a->n_pos != b->n_pos) return a->n_pos > b->n_pos ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static int64_t tiles_at_once(const cuda_attn *p) {
    return (int64_t)(PART_BYTES / ((size_t)p->n_head * (size_t)(p->d + 2) * sizeof(float)));
}

static int plan(cuda_be *c, cuda_attn *p) {
    size_t n = (size_t)p->n_row;
    p->n_prompt = p->n_range = p->n_join = 0;
    p->n_tile = 0;
    if (!grow(c, &p->prompt, n * sizeof(prompt_block), 1) || !grow(c, &p->join, n * sizeof(join_item), 1) ||
        !grow(c, &p->range, n * sizeof(launch_range), 0))
        return 0;
    int64_t n_tile = 0;
    for (int32_t r = 0, run; r < p->n_row; r += run)
        if ((run = run_of(p, r)) < MIN_RUN)
            for (int32_t i = 0; i < run; i++) n_tile += tiles_of(p, r + i);
    if (n_tile && !grow(c, &p->tile, (size_t)n_tile * sizeof(tile_item), 1)) return 0;
    for (int32_t r = 0, run; r < p->n_row; r += run) {
        run = run_of(p, r);
        if (run >= MIN_RUN)
            plan_prompt(p, r, run);
        else
            for (int32_t i = 0; i < run; i++) plan_decode(p, r + i, tiles_at_once(p));
    }
    qsort(p->prompt.host, (size_t)p->n_prompt, sizeof(prompt_block), longer_first);
    cuda_put(c, p->prompt.dev, p->prompt.host, (size_t)p->n_prompt * sizeof(prompt_block));
    cuda_put(c, p->join.dev, p->join.host, (size_t)p->n_join * sizeof(join_item));
    cuda_put(c, p->tile.dev, p->tile.host, (size_t)p->n_tile * sizeof(tile_item));
    p->is_stale = 0;
    return 1;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

template <int D> static void launch_decode(cuda_be *c, cuda_attn *p, const attn_args &a) {
    enum { BYTES = 2 * attn_smem<D>::ELEMS * (int)sizeof(bf16) };
    if (!p->part && !cuda_ok(c, cudaMalloc((void **)&p->part, PART_BYTES), "attention: partial sums")) return;
    for (int32_t i = 0; i < p->n_range; i++) {
        launch_range l = ((const launch_range *)p->range.host)[i];
        dim3 tiles((unsigned)l.n_tile, (unsigned)(a.n_head / a.group)), rows((unsigned)l.n_join, (unsigned)a.n_head);
        launch_early(c, decode_kernel<D>, tiles, 32, BYTES, a, (const tile_item *)p->tile.dev + l.tile, p->part);
        launch_early(c, join_kernel<D>, rows, D, 0, a, (const join_item *)p->join.dev + l.join, (const float *)p->part);
    }
}

template <int D> static void launch(cuda_be *c, cuda_attn *p, const attn_args &a) {
    enum { BYTES = 4 * attn_smem<D>::ELEMS * (int)sizeof(bf16) };
    if (p->n_prompt) {
        unsigned grid = (unsigned)p->n_prompt * (unsigned)(a.n_head / a.group);
        cuda_ok(c, cudaFuncSetAttribute(prompt_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES),
                "attention: shared memory");
        prompt_kernel<D><<<grid, WARPS * 32, BYTES, c->stream>>>(a, (const prompt_block *)p->prompt.dev);
    }
    if (p->n_range) launch_decode<D>(c, p, a);
}

static int has_kernel(const cuda_be *c, const gy_attn_args *x) {
    int32_t d = x->kv->head_dim, group = x->n_head / x->kv->n_head_kv;
    return c->head.be.act == GY_BF16 && (d == 64 || d == 96 || d == 128) && group <= MAX_GROUP && x->q_stride % 2 == 0;
}

void cuda_attn_run(gy_backend *be, const gy_attn_args *x) {
    cuda_be *c = of_be(be);
    cuda_attn *p = c->attn;
    int32_t d = x->kv->head_dim, group = x->n_head / x->kv->n_head_kv;
    if (x->rows.n_row <= 0) return;
    if (!has_kernel(c, x)) {
        cuda_attn_plain(c, x);
        return;
    }
    if (p->n_row != x->rows.n_row) {
        cuda_ok(c, cudaErrorInvalidValue, "attention: rows that begin_rows was not told of");
        return;
    }
    if (p->group != group || p->n_head != x->n_head || p->d != d) p->is_stale = 1;
    p->group = group;
    p->n_head = x->n_head;
    p->d = d;
    if (p->is_stale && !plan(c, p)) return;
    attn_args a = {(const bf16 *)x->q,
                   (const bf16 *)x->kv->base,
                   x->kv->map,
                   x->rows.pos,
                   x->rows.map_off,
                   (bf16 *)x->y,
                   x->q_stride,
                   x->n_head,
                   group,
                   (float)((double)x->scale * 1.4426950408889634),
                   {x->kv->n_layer, x->il, x->kv->n_head_kv * d}};
    if (d == 64)
        launch<64>(c, p, a);
    else if (d == 96)
        launch<96>(c, p, a);
    else
        launch<128>(c, p, a);
    cuda_launched(c, "attention");
}
