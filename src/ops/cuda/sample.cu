/* sample: logits to tokens, all rows of a batch in one launch. What each step means stands in sample/sample.h; weights,
 * masses and keys are those of base/draw.h, which the host sampler uses too: both draw the same token and both get the
 * same bits of a logprob. tests/ops/test_ops_sample.c compares them.
 *
 * A row is a cluster of 1 to 8 blocks: as few as hold it in shared memory, and as many as the device has room for. Each
 * block loads its slice once, everything else walks it there. All that is summed are integers (counts, masses), all
 * that is compared are keys, so neither the number of blocks nor the order of atomics shows in a result: a row alone
 * and a row in a batch have the same bits although they use other clusters.
 *
 * pick_max: the largest (key, lowest id) of the cluster; NaN and +inf win over all.
 *
 * pick_bar: radix select on keys, 11 + 11 + 10 bits, by number of tokens (top-k, alternatives) or by mass (top-p): the
 * largest key v such that what has a key >= v reaches the due amount. Histograms of 2048 bins in each block; a warp
 * of each block then reads the sums of 32 groups of bins of all blocks, and the bins of the group that matters.
 *
 * pick_at: the first token in order of ids whose running sum is above an amount: the draw (masses), or the id of the
 * m-th among equals (ones). A warp sums a stretch of ids; the one that holds the amount is gone through by the block.
 *
 * Block: 1024 threads; a warp's stretch is [warp * seg, +seg) of the slice, so warps and blocks stand in order of ids.
 * Shared memory: the slice and 18 KiB. Rows need sm_90's clusters where one block does not hold them.
 */
#include "ops/cuda/cuda_int.cuh"

#include <cooperative_groups.h>

enum { THREADS = 1024, WARPS = THREADS / 32, BINS = 2048, MAX_SIZE = 8, SLOTS = 12, LINE = 128 };
static constexpr uint32_t MINUS_INF = 0x007fffffu; /* its key */
static constexpr uint64_t BROKEN = ~(uint64_t)0;

/* What of the row counts: keys lo..hi, of those equal to cut only the ids up to cut_id. */
typedef struct keep {
    uint32_t lo, hi, cut;
    int32_t cut_id;
    double top, per_t, min_p; /* weight = exp((x - top) * per_t), 0 below min_p */
} keep;

typedef struct shared {
    uint64_t slot[SLOTS]; /* what other blocks of the row read: each written once, between two cluster barriers */
    uint64_t warp[WARPS], scan[WARPS], group[WARPS], found[4];
    uint64_t list[GY_DRAW_MAX_TOP], all[GY_DRAW_MAX_TOP]; /* alternatives: this block's; the row's (first block) */
    uint32_t n_list;
    alignas(16) uint32_t lo[BINS];
    alignas(16) uint32_t hi[BINS]; /* the upper halves of 64-bit bins: there is no 64-bit atomic in shared memory */
} shared;

/* A block's part of its row. */
typedef struct part {
    shared *s;
    float *x;              /* [n] */
    int32_t first, n, seg; /* ids first..first + n */
    uint32_t rank, size;   /* of the cluster */
    double unit;
} part;

/* ---- the cluster ------------------------------------------------------------------------------------------------- */

/* Barrier of all threads of the row; what was written to shared memory before is seen by all behind it. */
static __device__ inline void row_sync(void) {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
}

/* Where p, in this block's shared memory, lies in another's. */
template <typename T> static __device__ inline T *of_rank(T *p, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(p, rank);
#else
    (void)rank;
    return p;
#endif
}

static __device__ inline uint64_t warp_sum(uint64_t v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

static __device__ inline uint64_t warp_max(uint64_t v) {
    for (int o = 16; o; o >>= 1) {
        uint64_t w = __shfl_xor_sync(~0u, v, o);
        if (w > v) v = w;
    }
    return v;
}

/* The threads' values, one a thread, to one of the block in its slot; visible to the row afterwards. s->warp: of each
 * warp. */
template <int MAX> static __device__ inline void publish(const part &p, int slot, uint64_t v) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = MAX ? warp_max(v) : warp_sum(v);
    if (lane == 0) p.s->warp[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = MAX ? warp_max(p.s->warp[lane]) : warp_sum(p.s->warp[lane]);
        if (lane == 0) p.s->slot[slot] = v;
    }
    row_sync();
}

/* Inclusive sums over the threads of the block. s->scan: of each warp. */
static __device__ inline uint64_t block_scan(const part &p, uint64_t v) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int o = 1; o < 32; o *= 2) {
        uint64_t w = __shfl_up_sync(~0u, v, o);
        if (lane >= o) v += w;
    }
    if (lane == 31) p.s->scan[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++) v += p.s->scan[i];
    return v;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Larger: a larger logit, then a lower id. */
static __device__ inline uint64_t place_of(float x, int32_t id) {
    if (isnan(x) || x == INFINITY) return BROKEN;
    return (uint64_t)gy_float_key(x) << 32 | ~(uint32_t)id;
}

static __device__ inline int32_t id_of(uint64_t place) {
    return (int32_t) ~(uint32_t)place;
}

/* 1 or the mass of a token that counts, else 0. */
template <int MASS> static __device__ inline uint64_t amount(const part &p, const keep &f, int32_t i) {
    float x = p.x[i];
    uint32_t key = gy_float_key(x);
    if (key < f.lo || key > f.hi || (key == f.cut && p.first + i > f.cut_id)) return 0;
    if (!MASS) return 1;
    double w = gy_draw_weight(((double)x - f.top) * f.per_t);
    return w < f.min_p ? 0 : gy_mass(w, p.unit);
}

template <int MASS> static __device__ inline uint64_t stretch_sum(const part &p, const keep &f) {
    int32_t begin = (int32_t)(threadIdx.x / 32) * p.seg, end = min(begin + p.seg, p.n);
    uint64_t sum = 0;
    for (int32_t i = begin + (int32_t)(threadIdx.x % 32); i < end; i += 32) sum += amount<MASS>(p, f, i);
    return sum;
}

/* ---- pick_max ---------------------------------------------------------------------------------------------------- */

static __device__ uint64_t max_of_slots(const part &p, int slot) {
    uint64_t v = 0;
    for (uint32_t r = 0; r < p.size; r++) {
        uint64_t w = *of_rank(&p.s->slot[slot], r);
        if (w > v) v = w;
    }
    return v;
}

static __device__ uint64_t pick_max(const part &p, int slot) {
    uint64_t v = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < p.n; i += THREADS) {
        uint64_t w = place_of(p.x[i], p.first + i);
        if (w > v) v = w;
    }
    publish<1>(p, slot, v);
    return max_of_slots(p, slot);
}

/* The slice into shared memory, and pick_max of it. src is the slice's first logit. */
static __device__ uint64_t load(const part &p, const float *src, int slot) {
    uint64_t v = 0, w;
    int32_t n4 = (uintptr_t)src % 16 == 0 ? p.n / 4 : 0;
    for (int32_t i = (int32_t)threadIdx.x; i < n4; i += THREADS) {
        float4 a = __ldg((const float4 *)src + i);
        ((float4 *)p.x)[i] = a;
        if ((w = place_of(a.x, p.first + 4 * i)) > v) v = w;
        if ((w = place_of(a.y, p.first + 4 * i + 1)) > v) v = w;
        if ((w = place_of(a.z, p.first + 4 * i + 2)) > v) v = w;
        if ((w = place_of(a.w, p.first + 4 * i + 3)) > v) v = w;
    }
    for (int32_t i = 4 * n4 + (int32_t)threadIdx.x; i < p.n; i += THREADS) {
        p.x[i] = __ldg(src + i);
        if ((w = place_of(p.x[i], p.first + i)) > v) v = w;
    }
    publish<1>(p, slot, v);
    return max_of_slots(p, slot);
}

/* ---- pick_at ----------------------------------------------------------------------------------------------------- */

/* Of this block's tokens the first whose sum is above due, which is below the block's sum; s->warp has the warps'. */
template <int MASS> static __device__ void locate(const part &p, const keep &f, uint64_t due, int slot) {
    int warp = 0;
    for (; due >= p.s->warp[warp]; warp++) due -= p.s->warp[warp];
    int32_t begin = warp * p.seg, end = min(begin + p.seg, p.n), per = (p.seg + THREADS - 1) / THREADS;
    int32_t i = min(begin + (int32_t)threadIdx.x * per, end), stop = min(i + per, end);
    uint64_t mine = 0;
    for (int32_t k = i; k < stop; k++) mine += amount<MASS>(p, f, k);
    uint64_t sum = block_scan(p, mine) - mine;
    if (due < sum || due - sum >= mine) return;
    for (; (sum += amount<MASS>(p, f, i)) <= due; i++) {
    }
    p.s->slot[slot] = (uint64_t)(p.first + i);
}

/* The first token whose running sum is above due: MASS: gy_mass_at(word, all), else word. Uses two slots. */
template <int MASS> static __device__ int32_t pick_at(const part &p, const keep &f, uint64_t word, int slot) {
    publish<0>(p, slot, stretch_sum<MASS>(p, f));
    uint64_t total = 0, before = 0, mine = p.s->slot[slot];
    for (uint32_t r = 0; r < p.size; r++) total += *of_rank(&p.s->slot[slot], r);
    uint64_t due = MASS ? gy_mass_at(word, total) : word;
    uint32_t owner = 0;
    for (; owner + 1 < p.size; owner++) {
        uint64_t sum = *of_rank(&p.s->slot[slot], owner);
        if (due < before + sum) break;
        before += sum;
    }
    if (owner == p.rank && due - before < mine) locate<MASS>(p, f, due - before, slot + 1);
    row_sync();
    return (int32_t)*of_rank(&p.s->slot[slot + 1], owner);
}

/* ---- pick_bar ---------------------------------------------------------------------------------------------------- */

template <int MASS> static __device__ inline void bin_add(shared *s, uint32_t bin, uint64_t a) {
    uint32_t low = (uint32_t)a, old = atomicAdd(&s->lo[bin], low);
    if (!MASS) return;
    uint32_t high = (uint32_t)(a >> 32) + ((uint32_t)(old + low) < low);
    if (high) atomicAdd(&s->hi[bin], high);
}

/* Adds what counts of the tokens whose key begins with prefix. A warp whose tokens all fall into one bin adds once:
 * rows of equal logits would otherwise queue up at it. */
template <int MASS>
static __device__ void histogram(const part &p, const keep &f, int shift, int bits, uint32_t prefix) {
    int32_t begin = (int32_t)(threadIdx.x / 32) * p.seg, end = min(begin + p.seg, p.n);
    for (int32_t at = begin; at < end; at += 32) {
        int32_t i = at + (int32_t)(threadIdx.x % 32);
        uint32_t key = i < end ? gy_float_key(p.x[i]) : 0, bin = key >> shift & ((1u << bits) - 1);
        int in = i < end && (shift + bits == 32 || key >> (shift + bits) == prefix);
        uint64_t a = in ? amount<MASS>(p, f, i) : 0;
        uint32_t some = __ballot_sync(~0u, a != 0);
        if (!some) continue;
        uint32_t bin0 = __shfl_sync(~0u, bin, __ffs((int)some) - 1);
        if (__any_sync(~0u, a != 0 && bin != bin0)) {
            if (a) bin_add<MASS>(p.s, bin, a);
        } else {
            a = MASS ? warp_sum(a) : (uint64_t)__popc(some);
            if (threadIdx.x % 32 == 0) bin_add<MASS>(p.s, bin0, a);
        }
    }
}

/* Each warp's 64 bins together, for the row to see. */
static __device__ void publish_groups(const part &p) {
    const uint2 low = ((const uint2 *)p.s->lo)[threadIdx.x], high = ((const uint2 *)p.s->hi)[threadIdx.x];
    uint64_t sum = warp_sum(((uint64_t)high.x << 32 | low.x) + ((uint64_t)high.y << 32 | low.y));
    if (threadIdx.x % 32 == 0) p.s->group[threadIdx.x / 32] = sum;
    row_sync();
}

/* Sums of a warp's values from its last lane down to this one. */
static __device__ inline uint64_t sum_from_above(uint64_t v) {
    int lane = threadIdx.x % 32;
    for (int o = 1; o < 32; o *= 2) {
        uint64_t w = __shfl_down_sync(~0u, v, o);
        if (lane + o < 32) v += w;
    }
    return v;
}

/* One warp: in which bin of all blocks, counted from above, the sum reaches due. found: the bin, and the sum above it.
 * groups: the sum of each group, a lane each, from above. */
static __device__ void find_bin(const part &p, uint64_t due, uint64_t groups, uint64_t own) {
    int lane = threadIdx.x, g = 31 - __clz((int)__ballot_sync(~0u, groups >= due));
    uint64_t above = __shfl_sync(~0u, groups - own, g), even = 0, odd = 0;
    for (uint32_t r = 0; r < p.size; r++) {
        uint2 low = ((const uint2 *)of_rank(p.s->lo, r))[32 * g + lane];
        uint2 high = ((const uint2 *)of_rank(p.s->hi, r))[32 * g + lane];
        even += (uint64_t)high.x << 32 | low.x;
        odd += (uint64_t)high.y << 32 | low.y;
    }
    uint64_t sum = above + sum_from_above(even + odd), before = sum - even - odd;
    if (before >= due || due > sum) return;
    int in_odd = due <= before + odd;
    p.s->found[0] = (uint64_t)(64 * g + 2 * lane + in_odd);
    p.s->found[1] = in_odd ? before : before + odd;
}

/* The largest key v such that what counts with keys >= v reaches due; *above_out: what has keys > v. MASS: due is what
 * gy_mass_due says of share and of all that counts, given back. 0: all together do not reach it. */
template <int MASS>
static __device__ uint32_t pick_bar(const part &p, const keep &f, float share, uint64_t *due_io, uint64_t *above_out) {
    uint32_t prefix = 0;
    uint64_t above = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bits = pass == 2 ? 10 : 11;
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS) p.s->lo[i] = p.s->hi[i] = 0;
        __syncthreads();
        histogram<MASS>(p, f, shift, bits, prefix);
        __syncthreads();
        publish_groups(p);
        if (threadIdx.x < 32) {
            uint64_t own = 0;
            for (uint32_t r = 0; r < p.size; r++) own += of_rank(p.s->group, r)[threadIdx.x];
            uint64_t groups = sum_from_above(own), total = __shfl_sync(~0u, groups, 0);
            if (MASS && pass == 0) *due_io = gy_mass_due(share, total);
            if (threadIdx.x == 0) p.s->found[2] = *due_io;
            if (threadIdx.x == 0) p.s->found[3] = total;
            if (above + total >= *due_io) find_bin(p, *due_io - above, groups, own);
        }
        row_sync(); /* and nobody reads these bins any more */
        *due_io = p.s->found[2];
        if (above + p.s->found[3] < *due_io) return 0;
        prefix = prefix << bits | (uint32_t)p.s->found[0];
        above += p.s->found[1];
    }
    *above_out = above;
    return prefix;
}

/* Of the tokens whose key is v the m-th in order of ids is the last that counts. */
static __device__ void cut_ties(const part &p, keep *f, uint32_t v, uint64_t m, int slot) {
    keep ties = *f;
    ties.lo = ties.hi = v;
    f->lo = f->cut = v;
    f->cut_id = pick_at<0>(p, ties, m - 1, slot);
}

/* ---- what is made of it ------------------------------------------------------------------------------------------ */

static __device__ keep keep_all(uint32_t top_key, double per_t) {
    keep f = {MINUS_INF + 1, ~0u, 0, INT32_MAX, (double)gy_float_of_key(top_key), per_t, 0.0};
    return f;
}

/* The n largest of the row as it came, in order, by the first block. */
static __device__ void alternatives(const part &p, keep f, int32_t n, const float *row, gy_drawn *out) {
    uint64_t due = (uint64_t)n, above = 0;
    uint32_t v = pick_bar<0>(p, f, 0, &due, &above);
    if (v) cut_ties(p, &f, v, due - above, 2);
    if (threadIdx.x == 0) p.s->n_list = 0;
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < p.n; i += THREADS)
        if (amount<0>(p, f, i)) p.s->list[atomicAdd(&p.s->n_list, 1u)] = place_of(p.x[i], p.first + i);
    row_sync();
    if (p.rank) return;
    uint32_t t = threadIdx.x, of = t / GY_DRAW_MAX_TOP, k = t % GY_DRAW_MAX_TOP, before = 0, total = 0;
    for (uint32_t r = 0; r < p.size; r++) {
        uint32_t here = *of_rank(&p.s->n_list, r);
        if (r < of) before += here;
        total += here;
    }
    if (of < p.size && k < *of_rank(&p.s->n_list, of)) p.s->all[before + k] = of_rank(p.s->list, of)[k];
    __syncthreads();
    if (t == 0) out->n_top = (int32_t)total;
    if (t >= total) return;
    uint64_t mine = p.s->all[t];
    int rank = 0;
    for (uint32_t i = 0; i < total; i++) rank += p.s->all[i] > mine;
    out->top_id[rank] = id_of(mine);
    out->top_x[rank] = row[id_of(mine)];
}

/* Mask, bans, bias, penalties on the slice. */
static __device__ void change(const part &p, const gy_draw_row &r, const char *lists) {
    const uint32_t *mask = (const uint32_t *)(lists + r.mask);
    const int32_t *ban = (const int32_t *)(lists + r.ban);
    const gy_draw_pair *bias = (const gy_draw_pair *)(lists + r.bias), *count = (const gy_draw_pair *)(lists + r.count);
    for (int32_t i = (int32_t)threadIdx.x; r.mask && i < p.n; i += THREADS)
        if (!(mask[(p.first + i) / 32] >> (p.first + i) % 32 & 1)) p.x[i] = -INFINITY;
    __syncthreads();
    for (int32_t k = (int32_t)threadIdx.x; k < r.n_ban; k += THREADS)
        if ((uint32_t)(ban[k] - p.first) < (uint32_t)p.n) p.x[ban[k] - p.first] = -INFINITY;
    __syncthreads();
    for (int32_t k = (int32_t)threadIdx.x; k < r.n_bias; k += THREADS)
        if ((uint32_t)(bias[k].id - p.first) < (uint32_t)p.n) p.x[bias[k].id - p.first] += bias[k].v.f;
    __syncthreads();
    for (int32_t k = (int32_t)threadIdx.x; k < r.n_count; k += THREADS) {
        if ((uint32_t)(count[k].id - p.first) >= (uint32_t)p.n) continue;
        float *x = &p.x[count[k].id - p.first];
        *x = gy_penalized(*x, count[k].v.i, r.repetition, r.frequency, r.presence);
    }
    __syncthreads();
}

/* temperature > 0. */
static __device__ int32_t draw(const part &p, const gy_draw_row &r, int32_t n_vocab, uint32_t top_key) {
    keep f = keep_all(top_key, 1.0 / (double)r.temperature);
    uint64_t due = (uint64_t)r.top_k, above = 0;
    if (r.top_k > 0 && r.top_k < n_vocab) {
        uint32_t v = pick_bar<0>(p, f, 0, &due, &above);
        if (v) f.lo = v;
    }
    if (r.top_p < 1) {
        uint32_t v = pick_bar<1>(p, f, r.top_p, &due, &above);
        uint64_t each = gy_mass(gy_draw_weight(((double)gy_float_of_key(v) - f.top) * f.per_t), p.unit);
        cut_ties(p, &f, v, (due - above + each - 1) / each, 5);
    }
    f.min_p = (double)r.min_p;
    return pick_at<1>(p, f, r.word, 7);
}

/* One row from the loaded slice; best: its largest. Returns the token, -1: refused. */
static __device__ int32_t choose(const part &p, const gy_draw_row &r, int32_t n_vocab, const char *lists,
                                 uint64_t best) {
    if (r.id >= 0) return r.id;
    if (r.mask || r.n_ban || r.n_bias || r.n_count) {
        change(p, r, lists);
        best = pick_max(p, 4);
        if (best == BROKEN || (uint32_t)(best >> 32) == MINUS_INF) return -1;
    }
    return r.temperature > 0 ? draw(p, r, n_vocab, (uint32_t)(best >> 32)) : id_of(best);
}

/* What logprobs are made of, from the row as it came. */
static __device__ void say_raw(const part &p, int32_t n_top, const float *row, uint64_t best, gy_drawn *out) {
    keep f = keep_all((uint32_t)(best >> 32), 1.0);
    publish<0>(p, 1, stretch_sum<1>(p, f));
    uint64_t mass = 0;
    for (uint32_t k = 0; k < p.size; k++) mass += *of_rank(&p.s->slot[1], k);
    if (n_top > 0) alternatives(p, f, n_top, row, out);
    if (p.rank || threadIdx.x) return;
    if (n_top == 0) out->n_top = 0;
    out->mass = mass;
    out->top = row[id_of(best)];
}

static __global__ void __launch_bounds__(THREADS, 1)
    sample_kernel(const float *logits, int32_t n_vocab, int32_t per, uint32_t size, const gy_draw_row *rows,
                  double unit, gy_drawn *outs) {
    extern __shared__ __align__(16) char memory[];
    uint32_t at = blockIdx.x / size, rank = blockIdx.x % size;
    int32_t first = (int32_t)rank * per, n = max(0, min(per, n_vocab - first));
    part p = {(shared *)memory,
              (float *)(memory + sizeof(shared)),
              first,
              n,
              (per + WARPS * 32 - 1) / (WARPS * 32) * 32,
              rank,
              size,
              unit};
    const gy_draw_row r = rows[at];
    const float *row = logits + (int64_t)at * n_vocab;
    gy_drawn *out = &outs[at];
    uint64_t best = load(p, row + first, 0);
    int32_t id = -1;
    if (best != BROKEN && (uint32_t)(best >> 32) != MINUS_INF) {
        if (r.n_top >= 0) say_raw(p, r.n_top, row, best, out);
        __syncthreads(); /* the slice is about to change */
        id = choose(p, r, n_vocab, (const char *)rows, best);
    }
    if (rank == 0 && threadIdx.x == 0) {
        out->refused = id < 0;
        out->id = id;
        out->x = id < 0 ? 0.0f : row[id];
    }
    row_sync(); /* nobody leaves while another may read what he has */
}

/* ---- the launch -------------------------------------------------------------------------------------------------- */

/* Blocks of a row: the fewest that hold it, then twice as many as long as three quarters of the device hold the batch:
 * it cannot be cut into clusters without remainder (32 rows as 4 blocks each came in two waves, 9.3 us against 6.9 as
 * 2). 0: too long. */
static int cluster_size(const cuda_be *c, int32_t n_row, int32_t n_vocab, int32_t most) {
    int size = 1, limit = c->overlaps ? MAX_SIZE : 1;
    while (size <= limit && (int64_t)size * most < n_vocab) size *= 2;
    if (size > limit) return 0;
    while (2 * size <= limit && 4 * (int64_t)n_row * 2 * size <= 3 * c->n_sm && n_vocab / (2 * size) >= 4 * THREADS)
        size *= 2;
    return size;
}

int cuda_sample(gy_backend *be, const gy_sample_args *a) {
    cuda_be *c = of_be(be);
    int limit = 0;
    cuda_enter(c);
    if (!cuda_ok(c, cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->device), "sample"))
        return 0;
    int32_t most = (int32_t)(((size_t)limit - sizeof(shared)) / sizeof(float)) / LINE * LINE;
    int size = cluster_size(c, a->n_row, a->n_vocab, most);
    if (!size || !a->n_row) return size != 0;
    int32_t per = ((a->n_vocab + size - 1) / size + LINE - 1) / LINE * LINE;
    size_t smem = sizeof(shared) + (size_t)per * sizeof(float);
    cuda_ok(c, cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "sample");
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)size;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(a->n_row * size));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = smem;
    config.stream = c->stream;
    config.attrs = &cluster;
    config.numAttrs = size > 1 ? 1 : 0;
    cuda_ok(c,
            cudaLaunchKernelEx(&config, sample_kernel, a->logits, a->n_vocab, per, (uint32_t)size, a->rows,
                               gy_mass_unit(a->n_vocab), a->out),
            "sample");
    return 1;
}
