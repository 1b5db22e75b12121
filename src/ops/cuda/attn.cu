/* Attention over the slot map in BF16, KV in BF16 or I8, for head_dim 64, 96 and 128: who computes which tile
 * (attn_tile.cuh and attn_i8.cuh have the arithmetic). Anything else goes to attn_plain.cu.
 *
 * Rows that stand behind one another in the batch and read the same map row (a chunk of a prompt at one depth) are a
 * run. A run of at least MIN_RUN rows is cut into blocks of queries (rows x heads of one KV head); the other rows are
 * decoded one by one.
 *
 *   - prompt (attn_prompt.cu): on Hopper blocks of 128 queries, dealt to as many walks as there are multiprocessors;
 *     where that leaves most of them idle (a short run on a long context) blocks are cut by chunks. Elsewhere blocks of
 *     64, a thread block each.
 *   - decode (attn_decode.cu): a block a chunk of one row's context and KV head; writes (m, l, a) of each head, or y
 *     where the context is one chunk.
 *   - join: grid (rows, heads), D threads: a thread joins one element over the chunks, in order, and writes y.
 *
 * The plan (which blocks, which chunks) is made on the host once a batch, from the host copies that begin_rows brings,
 * and used by all layers. Partial sums are bounded: decode rows are taken in as many launches as that needs, and blocks
 * are cut as long as there is room. Behind the plan's items stand blank ones, up to the grids that a recorded launch
 * has (record.cuh).
 */
#include "ops/cuda/attn_int.cuh"
#include "ops/cuda/record.cuh"

#include <stdlib.h>
#include <string.h>

enum { MIN_RUN = 8, MAX_GROUP = 16 };
#define PART_BYTES ((size_t)192 << 20) /* of partial sums */

typedef struct join_item {
    int32_t row, n_chunk;
    int64_t first; /* its first chunk among the launch's */
} join_item;

typedef struct launch_range { /* decode rows whose partial sums fit together */
    int64_t chunk, n_chunk;
    int32_t join, n_join;
} launch_range;

/* Host arrays are engine lifetime and grow to what was needed; device arrays hold a copy each. */
typedef struct grown {
    void *host, *dev;
    size_t cap; /* bytes of both */
} grown;

struct cuda_attn {
    int has_wgmma;  /* the device is a Hopper and the library was built for its own instructions */
    int32_t n_row;  /* of the batch that begin_rows told; without those that fill it up */
    int32_t n_all;  /* with them */
    grown pos, off; /* host copies only */
    int is_stale;   /* the plan below is of another batch, or of another group */
    int32_t group, n_head, d;
    grown block, chunk, join, range;
    grown walk, deal;     /* prompt_work's items; how they are dealt: host only */
    grown piece, cut_row; /* what blocks are cut into: host only; join items of their rows */
    kv_boxes boxes;
    int32_t n_block, n_range, n_join, n_walk, n_round, n_cut_row;
    int64_t n_chunk;
    int64_t all_chunk; /* with blank ones */
    int32_t all_join;
    int is_recorded; /* launches take the blank ones too */
    float *part;     /* PART_BYTES, taken when first needed */
};

template <int D>
static __global__ void __launch_bounds__(D) join_kernel(attn_args a, const join_item *items, const float *part) {
    wait_for_previous();
    join_item it = items[blockIdx.x];
    if (!it.n_chunk) return; /* blank */
    int32_t head = (int32_t)blockIdx.y;
    const float *p = part + (it.first * a.n_head + head) * (D + 2);
    int64_t step = (int64_t)a.n_head * (D + 2);
    float m = -INFINITY, l = 0.0f, sum = 0.0f;
#pragma unroll 4
    for (int32_t t = 0; t < it.n_chunk; t++, p += step) {
        float2 ml = *(const float2 *)(p + D);
        float f_old, f_new;
        attn_factors(m, ml.x, &m, &f_old, &f_new);
        l = attn_join(l, f_old, ml.y, f_new);
        sum = attn_join(sum, f_old, p[threadIdx.x], f_new);
    }
    ((uint16_t *)a.y)[((int64_t)it.row * a.n_head + head) * D + threadIdx.x] = attn_result(sum, __frcp_rn(l));
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

/* What usual batches need, so that none of them waits for memory (grow waits for the device): all of max_row's rows, up
 * to USUAL_CHUNKS chunks of context each, and as many items of prompts as there are short runs. */
static int grow_to_usual(cuda_be *c, cuda_attn *p) {
    enum { USUAL_CHUNKS = 8, USUAL_HEADS = 16 };
    size_t n = (size_t)(c->limits.max_row > 0 ? c->limits.max_row : 1),
           items = n / MIN_RUN * USUAL_HEADS + (size_t)c->n_sm;
    return grow(c, &p->pos, n * sizeof(int32_t), 0) && grow(c, &p->off, n * sizeof(int64_t), 0) &&
           grow(c, &p->block, n * sizeof(prompt_block), !p->has_wgmma) &&
           grow(c, &p->chunk, n * USUAL_CHUNKS * sizeof(chunk_item), 1) &&
           grow(c, &p->join, n * sizeof(join_item), 1) && grow(c, &p->range, n * sizeof(launch_range), 0) &&
           grow(c, &p->walk, items * sizeof(prompt_block), 1) && grow(c, &p->cut_row, n * sizeof(join_item), 1) &&
           grow(c, &p->deal, (items + 3 * (size_t)c->n_sm) * sizeof(int32_t), 0);
}

gy_status cuda_attn_open(cuda_be *c, gy_err *err) {
    int major = 0, minor = -1;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->device);
    c->attn = (cuda_attn *)calloc(1, sizeof *c->attn);
    if (!c->attn) return cuda_err(err, GY_E_NOMEM, "out of memory");
    c->attn->has_wgmma = major == 9 && minor == 0 && strstr(GY_CUDA_BUILT_FOR, "90a") != NULL;
    if (!grow_to_usual(c, c->attn))
        return cuda_err(err, GY_E_NOMEM, "device cuda:%d: no memory for attention's plans", c->device);
    return GY_OK;
}

void cuda_attn_close(cuda_be *c) {
    cuda_attn *p = c->attn;
    if (!p) return;
    grown *all[] = {&p->pos,   &p->off,  &p->block, &p->chunk, &p->join,
                    &p->range, &p->walk, &p->deal,  &p->piece, &p->cut_row};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
    cudaFree(p->part);
    free(p);
    c->attn = NULL;
}

/* Rows that fill up the batch stand at its end and have no part in the plan. */
static int32_t rows_told(const gy_rows *host) {
    int32_t n = host->n_row;
    while (n && host->pos[n - 1] < 0) n--;
    return n;
}

void cuda_begin_rows(gy_backend *be, const gy_rows *host) {
    cuda_be *c = of_be(be);
    cuda_attn *p = c->attn;
    int32_t n_row = rows_told(host);
    size_t n = (size_t)n_row;
    cuda_enter(c);
    p->n_row = p->n_all = 0;
    p->is_stale = 1;
    if (!host->map_off || !grow(c, &p->pos, n * sizeof *host->pos, 0) ||
        !grow(c, &p->off, n * sizeof *host->map_off, 0))
        return;
    memcpy(p->pos.host, host->pos, n * sizeof *host->pos);
    memcpy(p->off.host, host->map_off, n * sizeof *host->map_off);
    p->n_row = n_row;
    p->n_all = host->n_row;
}

/* Rows from r on that read the same map row. */
static int32_t run_of(const cuda_attn *p, int32_t r) {
    const int64_t *off = (const int64_t *)p->off.host;
    int32_t n = 1;
    while (r + n < p->n_row && off[r + n] == off[r]) n++;
    return n;
}

static int32_t pos_of(const cuda_attn *p, int32_t r) {
    return ((const int32_t *)p->pos.host)[r];
}
static int32_t chunks_of(const cuda_attn *p, int32_t r) {
    return pos_of(p, r) / CHUNK + 1;
}

static void plan_prompt(cuda_attn *p, int32_t r, int32_t n) {
    int32_t most = (p->has_wgmma ? WIDE_QUERIES : NARROW_QUERIES) / p->group;
    for (int32_t i = 0, take; i < n; i += take) {
        take = n - i < most ? n - i : most;
        prompt_block one = {};
        one.map_off = ((const int64_t *)p->off.host)[r];
        one.row = r + i;
        one.n_row = take;
        one.shallowest[0] = one.shallowest[1] = INT32_MAX;
        for (int32_t k = 0; k < take; k++) {
            int32_t pos = pos_of(p, r + i + k);
            int first = k * p->group / NARROW_QUERIES, last = ((k + 1) * p->group - 1) / NARROW_QUERIES;
            for (int half = first; half <= last; half++) {
                if (pos > one.deepest[half]) one.deepest[half] = pos;
                if (pos < one.shallowest[half]) one.shallowest[half] = pos;
            }
            if (pos >= one.n_pos) one.n_pos = pos + 1;
        }
        ((prompt_block *)p->block.host)[p->n_block++] = one;
    }
}

static void plan_decode(cuda_attn *p, int32_t r, int64_t chunks_at_once) {
    launch_range *l = (launch_range *)p->range.host + p->n_range;
    int32_t n = chunks_of(p, r);
    if (!p->n_range || l[-1].n_chunk + n > chunks_at_once) {
        *l = {p->n_chunk, 0, p->n_join, 0};
        p->n_range++;
        l++;
    }
    if (n > 1) {
        ((join_item *)p->join.host)[p->n_join++] = {r, n, l[-1].n_chunk};
        l[-1].n_join++;
    }
    int64_t off = ((const int64_t *)p->off.host)[r];
    for (int32_t t = 0; t < n; t++) ((chunk_item *)p->chunk.host)[p->n_chunk++] = {r, t, n, pos_of(p, r) + 1, off};
    l[-1].n_chunk += n;
}

static int32_t tiles_of(const prompt_block *b) {
    return (b->n_pos + TILE - 1) / TILE - b->first_tile;
}

/* Longest first: a block of a prompt's end walks the whole context, one of its beginning a tile or two. */
static int longer_first(const void *x, const void *y) {
    const prompt_block *a = (const prompt_block *)x, *b = (const prompt_block *)y;
    int32_t na = tiles_of(a), nb = tiles_of(b);
    if (na != nb) return na > nb ? -1 : 1;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    return (a->first_tile > b->first_tile) - (a->first_tile < b->first_tile);
}

static int has_part(cuda_be *c, cuda_attn *p) {
    return p->part || cuda_ok(c, cudaMalloc((void **)&p->part, PART_BYTES), "attention: partial sums");
}

static int64_t chunks_at_once(const cuda_attn *p) {
    return (int64_t)(PART_BYTES / ((size_t)p->n_head * (size_t)(p->d + 2) * sizeof(float)));
}

/* Which blocks to cut: those that take more than twice a fair share of the work, as far as their partial sums fit.
 * Returns the number of pieces. */
static int32_t choose_cuts(cuda_be *c, cuda_attn *p) {
    prompt_block *block = (prompt_block *)p->block.host;
    int64_t tiles = 0, entries = 0;
    int32_t n_piece = 0;
    for (int32_t i = 0; i < p->n_block; i++) tiles += tiles_of(&block[i]);
    int64_t fair = tiles * (p->n_head / p->group) / c->n_sm;
    for (int32_t i = 0; i < p->n_block; i++) {
        int32_t n_chunk = (block[i].n_pos - 1) / CHUNK + 1;
        int64_t more = (int64_t)block[i].n_row * n_chunk;
        if (n_chunk == 1 || tiles_of(&block[i]) <= 2 * fair || entries + more > chunks_at_once(p)) continue;
        block[i].n_part = n_chunk;
        block[i].part = entries;
        entries += more;
        n_piece += n_chunk;
        p->n_cut_row += block[i].n_row;
    }
    return n_piece;
}

static prompt_block piece_of(prompt_block b, int32_t chunk) {
    b.first_tile = chunk * CHUNK_TILES;
    if (b.n_pos > (chunk + 1) * CHUNK) b.n_pos = (chunk + 1) * CHUNK;
    for (int half = 0; half < 2; half++)
        if (b.deepest[half] >= b.n_pos) b.deepest[half] = b.n_pos - 1;
    return b;
}

/* Few blocks on long contexts would leave multiprocessors idle: their rows are joined from chunks then, like decode
 * rows: the same sums in the same order. */
static int cut_by_chunks(cuda_be *c, cuda_attn *p) {
    const prompt_block *block = (const prompt_block *)p->block.host;
    p->n_cut_row = 0;
    int32_t n_piece = choose_cuts(c, p), n = 0, n_row = 0;
    if (!n_piece) return 1;
    if (!has_part(c, p) || !grow(c, &p->cut_row, (size_t)p->n_cut_row * sizeof(join_item), 1) ||
        !grow(c, &p->piece, (size_t)(p->n_block + n_piece) * sizeof(prompt_block), 0))
        return 0;
    prompt_block *piece = (prompt_block *)p->piece.host;
    join_item *row = (join_item *)p->cut_row.host;
    for (int32_t i = 0; i < p->n_block; i++) {
        if (!block[i].n_part) piece[n++] = block[i];
        for (int32_t k = 0; k < block[i].n_part; k++) piece[n++] = piece_of(block[i], k);
        for (int32_t r = 0; block[i].n_part && r < block[i].n_row; r++)
            row[n_row++] = {block[i].row + r, chunks_of(p, block[i].row + r),
                            block[i].part + (int64_t)r * block[i].n_part};
    }
    grown whole = p->block;
    p->block = p->piece;
    p->piece = whole;
    p->n_block = n;
    cuda_put(c, p->cut_row.dev, row, (size_t)n_row * sizeof *row);
    return 1;
}

/* Deals items (blocks x KV heads), longest first, to one walk a multiprocessor, each to the walk that is shortest so
 * far. A walk costs its tiles and, for each block, about a tile and a half of beginning and end. */
static void deal(cuda_attn *p, int32_t *walk_of, int32_t *n_of) {
    enum { TILE_COST = 2, BLOCK_COST = 3 };
    int32_t heads = p->n_head / p->group, n = p->n_walk, *cost = n_of + n, *heap = cost + n; /* shortest at 0 */
    const prompt_block *block = (const prompt_block *)p->block.host;
    for (int32_t w = 0; w < n; w++) n_of[w] = cost[w] = 0, heap[w] = w;
    for (int32_t i = 0; i < p->n_block * heads; i++) {
        int32_t w = heap[0], at = 0;
        walk_of[i] = w;
        n_of[w]++;
        cost[w] += tiles_of(&block[i / heads]) * TILE_COST + BLOCK_COST;
        for (int32_t kid; (kid = 2 * at + 1) < n; at = kid) {
            if (kid + 1 < n && cost[heap[kid + 1]] < cost[heap[kid]]) kid++;
            if (cost[heap[kid]] >= cost[w]) break;
            heap[at] = heap[kid];
        }
        heap[at] = w;
    }
}

/* The items of all walks, the first of each, then the second of each, and so on. */
static int lay_out_walks(cuda_be *c, cuda_attn *p) {
    int32_t heads = p->n_head / p->group, n_item = p->n_block * heads;
    p->n_walk = n_item < c->n_sm ? n_item : c->n_sm;
    p->n_round = 0;
    size_t n = (size_t)p->n_walk;
    if (!grow(c, &p->deal, ((size_t)n_item + 3 * n) * sizeof(int32_t), 0)) return 0;
    int32_t *walk_of = (int32_t *)p->deal.host, *n_of = walk_of + n_item;
    deal(p, walk_of, n_of);
    for (int32_t w = 0; w < p->n_walk; w++)
        if (n_of[w] > p->n_round) p->n_round = n_of[w];
    size_t bytes = n * (size_t)p->n_round * sizeof(prompt_block);
    if (!grow(c, &p->walk, bytes, 1)) return 0;
    prompt_block *item = (prompt_block *)p->walk.host;
    memset(item, 0, bytes);
    memset(n_of, 0, n * sizeof *n_of);
    for (int32_t i = 0; i < n_item; i++) {
        prompt_block *to = item + (size_t)n_of[walk_of[i]]++ * n + walk_of[i];
        *to = ((const prompt_block *)p->block.host)[i / heads];
        to->kv_head = i % heads;
    }
    cuda_put(c, p->walk.dev, item, bytes);
    return 1;
}

/* Few grids for many contexts: steps of 8, of an eighth for many. */
static int64_t rounded_chunks(int64_t n, int32_t n_row) {
    int64_t step = n_row < 8 ? n_row : n / 64 * 8 > 8 ? n / 64 * 8 : 8;
    return step ? (n + step - 1) / step * step : n;
}

static void add_blanks(cuda_attn *p) {
    p->all_chunk = rounded_chunks(p->n_chunk, p->n_all);
    p->all_join = p->n_join ? p->n_all : 0;
    for (int64_t i = p->n_chunk; i < p->all_chunk; i++) ((chunk_item *)p->chunk.host)[i] = {-1, 0, 0, 0, 0};
    for (int32_t i = p->n_join; i < p->all_join; i++) ((join_item *)p->join.host)[i] = {0, 0, 0};
}

static int plan(cuda_be *c, cuda_attn *p) {
    size_t n = (size_t)p->n_all;
    p->n_block = p->n_range = p->n_join = p->n_walk = p->n_cut_row = 0;
    p->n_chunk = 0;
    if (!grow(c, &p->block, n * sizeof(prompt_block), !p->has_wgmma) || !grow(c, &p->join, n * sizeof(join_item), 1) ||
        !grow(c, &p->range, n * sizeof(launch_range), 0))
        return 0;
    int64_t n_chunk = 0;
    for (int32_t r = 0, run; r < p->n_row; r += run)
        if ((run = run_of(p, r)) < MIN_RUN)
            for (int32_t i = 0; i < run; i++) n_chunk += chunks_of(p, r + i);
    if (n_chunk && !grow(c, &p->chunk, (size_t)rounded_chunks(n_chunk, p->n_all) * sizeof(chunk_item), 1)) return 0;
    for (int32_t r = 0, run; r < p->n_row; r += run) {
        run = run_of(p, r);
        if (run >= MIN_RUN)
            plan_prompt(p, r, run);
        else
            for (int32_t i = 0; i < run; i++) plan_decode(p, r + i, chunks_at_once(p));
    }
    if (p->has_wgmma && !cut_by_chunks(c, p)) return 0;
    qsort(p->block.host, (size_t)p->n_block, sizeof(prompt_block), longer_first);
    if (p->has_wgmma && p->n_block && !lay_out_walks(c, p)) return 0;
    if (!p->has_wgmma) cuda_put(c, p->block.dev, p->block.host, (size_t)p->n_block * sizeof(prompt_block));
    add_blanks(p);
    cuda_put(c, p->join.dev, p->join.host, (size_t)p->all_join * sizeof(join_item));
    cuda_put(c, p->chunk.dev, p->chunk.host, (size_t)p->all_chunk * sizeof(chunk_item));
    p->is_stale = 0;
    return 1;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void launch_join(cuda_be *c, int32_t d, const attn_args &a, const join_item *items, int32_t n,
                        const float *part) {
    dim3 grid((unsigned)n, (unsigned)a.n_head);
    if (d == 64)
        launch_early(c, join_kernel<64>, grid, 64, 0, a, items, part);
    else if (d == 96)
        launch_early(c, join_kernel<96>, grid, 96, 0, a, items, part);
    else
        launch_early(c, join_kernel<128>, grid, 128, 0, a, items, part);
}

static void launch_decode(cuda_be *c, cuda_attn *p, int32_t d, const attn_args &a) {
    if (!has_part(c, p)) return;
    if (p->is_recorded) {
        cuda_attn_chunks(c, d, a, (const chunk_item *)p->chunk.dev, (int32_t)p->all_chunk, p->part);
        if (p->all_join) launch_join(c, d, a, (const join_item *)p->join.dev, p->all_join, p->part);
        return;
    }
    for (int32_t i = 0; i < p->n_range; i++) {
        launch_range l = ((const launch_range *)p->range.host)[i];
        cuda_attn_chunks(c, d, a, (const chunk_item *)p->chunk.dev + l.chunk, (int32_t)l.n_chunk, p->part);
        if (l.n_join) launch_join(c, d, a, (const join_item *)p->join.dev + l.join, l.n_join, p->part);
    }
}

static void launch_prompt(cuda_be *c, cuda_attn *p, int32_t d, const attn_args &a) {
    if (!p->has_wgmma) {
        cuda_attn_prompt(c, d, a, (const prompt_block *)p->block.dev, p->n_block);
        return;
    }
    prompt_work work = {(const prompt_block *)p->walk.dev, p->part, p->n_walk, p->n_round};
    cuda_attn_wide(c, d, a, work, &p->boxes);
    if (p->n_cut_row) launch_join(c, d, a, (const join_item *)p->cut_row.dev, p->n_cut_row, p->part);
}

static int has_heads(const cuda_be *c, int32_t d, int32_t group) {
    return c->head.be.act == GY_BF16 && (d == 64 || d == 96 || d == 128) && group <= MAX_GROUP;
}
static int has_kernel(const cuda_be *c, const gy_attn_args *x) {
    uintptr_t all = (uintptr_t)x->q | (uintptr_t)x->y | (uintptr_t)x->kv->base; /* 16 bytes at a time */
    return has_heads(c, x->kv->head_dim, x->n_head / x->kv->n_head_kv) && x->q_stride % 8 == 0 && all % 16 == 0 &&
           x->scale > 0;
}

/* The plan of the rows that begin_rows told, for these heads. */
static int have_plan(cuda_be *c, cuda_attn *p, int32_t n_head, int32_t group, int32_t d) {
    if (p->group != group || p->n_head != n_head || p->d != d) p->is_stale = 1;
    p->group = group;
    p->n_head = n_head;
    p->d = d;
    return !p->is_stale || plan(c, p);
}

int cuda_attn_plan_ahead(cuda_be *c, attn_recorded *out) {
    cuda_attn *p = c->attn;
    if (!p->d || !has_heads(c, p->d, p->group) || !p->n_row || !have_plan(c, p, p->n_head, p->group, p->d)) return 0;
    if (p->n_block || p->n_range != 1 || !has_part(c, p)) return 0;
    *out = {p->all_chunk, p->all_join, p->chunk.dev, p->join.dev, p->part};
    return 1;
}

void cuda_attn_record(cuda_be *c, int on) {
    c->attn->is_recorded = on;
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
    if (p->n_all != x->rows.n_row) {
        cuda_ok(c, cudaErrorInvalidValue, "attention: rows that begin_rows was not told of");
        return;
    }
    if (!have_plan(c, p, x->n_head, group, d)) return;
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
                   {x->kv->n_layer, x->il, (int32_t)gy_kv_row(x->kv)},
                   x->kv->dtype == GY_I8};
    if (p->n_block) launch_prompt(c, p, d, a);
    if (p->n_range) launch_decode(c, p, d, a);
    cuda_launched(c, "attention");
}
