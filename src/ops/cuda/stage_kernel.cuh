/* The layers of a stage for one row in one kernel whose blocks stay from the first norm to the last residual.
 *
 * Blocks: up to 128, one a multiprocessor, all there at once. Tile t of 8 outputs of a product is block t mod blocks';
 * each block has one or more of every product. 11 warps compute, the last one brings.
 *
 * Ring: 25 slots of 8 KiB: 8 outputs x 512 of k (one tensor copy), 32 positions of K, as many bytes of V. They come in
 * one order (a layer: qkv, K, V, o, gate and up, down; within a product up to 11 tiles by turns), as far ahead as there
 * is room, over layers' borders. K and V of older positions do not wait for this layer's q.
 *
 * Sums: as in narrow.cu (a chain of mma.m16n8k16 an output), rows.cu (block_sum over 256 threads), attn_decode.cu
 * (attn_tile.cuh): the same functions in the same order, so the same bits.
 *
 * Words: what one block makes and others read goes as 64-bit words: two outputs and the number of the layer. A word
 * with another number is not there yet. Counters say when to look; they are hints and order nothing. Each block writes
 * words of every product, and writes a kind again only when it has read all of the kind before the next one of that
 * kind: then every block has read what is overwritten.
 *
 * Residual: each block keeps the whole row (8 elements a thread) and makes all norms itself.
 *
 * Attention: a chunk of 512 positions of a KV head is one block's, or that of 2 or 4 blocks which have 1/2 or 1/4 of
 * V's columns each and K whole (from the L2). All scores of a chunk first, then the references of its tiles, then all
 * weights, then the chain with V. The block of the last chunk joins what the others leave.
 *
 * Parity: a slot's barrier tells rounds apart by one bit. A warp asks for slot i + w (w <= 11) when it has seen slot i
 * full, so all up to i - flight were filled (the one who brings has waited for each), and with flight <= 25 - 11 the
 * slot's round before is among them. Between products all warps have met, and have read all before. Lanes of the one
 * who brings stay within one slot of each other.
 *
 * docs/kernels.md, "A whole stage in one persistent kernel", has what was measured. tests/stage runs this file on a
 * machine made up on the CPU.
 */
#ifndef GY_OPS_CUDA_STAGE_KERNEL_CUH
#define GY_OPS_CUDA_STAGE_KERNEL_CUH

#include "ops/cuda/attn_int.cuh"
#include "ops/cuda/bf16_two.cuh"
#include "ops/cuda/stage.cuh"
#ifndef GY_EMULATED
#include "ops/cuda/stage_hw.cuh"
#endif

enum {
    COMPUTING = 11,
    TEAM = 32 * COMPUTING, /* threads that compute */
    ATTENDING = 8,         /* warps of attention; of norms, whose sums are of 256 threads */
    MEET_TEAM = 1,
    MEET_HALF = 2,
    GROUP = 32, /* positions */
    GROUPS = STAGE_CHUNK / GROUP,
    GROUP_TILE = TILE / GROUP,
    QUERY_ROW = STAGE_D / 2 + 4, /* words of a query in shared memory */
    DEEP = 128,                  /* of k: loaded while as much is multiplied */
    DEEPS = 4                    /* of a slot */
};
static_assert((int)STAGE_FLIGHT + (int)COMPUTING <= (int)STAGE_SLOTS, "parity");
static_assert(DEEP * DEEPS == (int)STAGE_K, "a slot");
static_assert(ATTENDING * 32 == ROW_THREADS, "norms are summed as in rows.cu");
static_assert((int)STAGE_CHUNK == (int)CHUNK && GROUPS == 2 * ATTENDING, "two groups a warp");

/* Kinds of slots, in the order of a layer; and of words that are counted. */
enum { PART_QKV, PART_K, PART_V, PART_O, PART_GATE_UP, PART_DOWN, PARTS };
enum { KIND_ATT, KIND_OUT, KIND_F, KIND_DOWN };

typedef struct stage_plan { /* of a block */
    int32_t tiles[STAGE_PRODUCTS], steps[STAGE_PRODUCTS], k[STAGE_PRODUCTS];
    int32_t base[PARTS + 1];                          /* first slot of each part; [PARTS]: slots of a layer */
    int32_t has_attn, kv_head, chunk, part, halvings; /* 1 << halvings blocks share a chunk */
    int32_t first, n_pos, n_group, n_v, is_last;      /* n_v: slots of V; is_last: has the row's own position */
    int32_t n_older;                                  /* of the chunk's positions, those before the row's own */
    int32_t counter_bits;
    uint32_t layers_before;
} stage_plan;

typedef struct stage_head { /* the beginning of shared memory */
    uint64_t full[STAGE_SLOTS], empty[STAGE_SLOTS];
    double sum[2][ATTENDING];
    __align__(16) uint32_t k_own[STAGE_D / 2];
    __align__(16) uint32_t v_own[STAGE_D / 2];
    float top[GROUPS][16];
    int32_t place[STAGE_CHUNK]; /* where a position's K lies, in heads, without the layer */
    stage_plan p;
} stage_head;

enum {
    X_BYTES = STAGE_EMBD * 2,
    U_BYTES = GROUPS * 2 * 32 * 16, /* weights of attention; queries before; then inputs of o and down */
    STAGE_SMEM = (int)sizeof(stage_head) + 1024 + STAGE_SLOTS * STAGE_SLOT + X_BYTES + U_BYTES
};
static_assert(STAGE_ATT * 2 + STAGE_FF * 2 <= U_BYTES && GROUPS * 2 * 32 * 4 <= X_BYTES, "they lie over one another");
static_assert(STAGE_SMEM <= 232448, "of a block on sm_90");

/* What every function is told. Inputs of products lie as lanes read them: 32 of k are 64 bytes, lane c of a quad has
 * elements 2 c, 2 c + 1 of each 8. */
typedef struct stage_block {
    const stage_args &a;
    stage_head *h;
    uint32_t full, empty, ring; /* shared addresses */
    uint32_t *x, *x_att, *x_f;
    int32_t warp; /* all lanes agree */
    int32_t layer;
    uint32_t tag;
} stage_block;

static __device__ inline int my_lane(void) { /* anew, so that nothing made of it is kept over a layer */
    return lane_anew();
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* A wait that does not end is told to the host, and ends the kernel: a GPU that hangs is lost to everybody. */
static __device__ __attribute__((noinline)) void give_up(stage_report *to, stage_wait what, int32_t layer,
                                                         int32_t index, uint32_t found, uint32_t wanted) {
    to += blockIdx.x;
    to->warp = (int32_t)threadIdx.x / 32;
    to->layer = layer;
    to->index = index;
    to->found = found;
    to->wanted = wanted;
    to->what = what;
    hw_stop();
}

/* Of a wait: how often it was looked, and when the clock was first looked at. */
typedef struct waiting {
    uint32_t times;
    long long since;
} waiting;

/* Every 256th time the clock is looked at. */
static __device__ inline void be_patient(const stage_args &a, waiting *w, stage_wait what, int32_t layer, int32_t index,
                                         uint32_t found, uint32_t wanted) {
    if (++w->times % 256) return;
    long long now = hw_clock();
    if (!w->since)
        w->since = now;
    else if (now - w->since > a.patience)
        give_up(a.report, what, layer, index, found, wanted);
}

/* A slot of the stream in the ring, and the parity of its round. */
typedef struct ring_at {
    uint32_t slot, parity;
} ring_at;

static __device__ inline ring_at ring_of(int32_t i) {
    return {(uint32_t)i % STAGE_SLOTS, (uint32_t)i / STAGE_SLOTS & 1};
}
static __device__ inline ring_at behind(ring_at at, uint32_t n) { /* n <= STAGE_SLOTS slots further */
    at.slot += n;
    if (at.slot >= STAGE_SLOTS) {
        at.slot -= STAGE_SLOTS;
        at.parity ^= 1;
    }
    return at;
}
static __device__ inline uint32_t slot_at(const stage_block &b, ring_at at) {
    return b.ring + at.slot * STAGE_SLOT;
}

static __device__ __attribute__((noinline)) void wait_long(const stage_args &a, uint32_t bar, ring_at at,
                                                           stage_wait what, int32_t layer) {
    waiting w = {};
    while (!hw_bar_try(bar, at.parity)) be_patient(a, &w, what, layer, (int32_t)at.slot, 0, at.parity);
}
static __device__ inline void wait_bar(const stage_block &b, uint32_t bars, ring_at at, stage_wait what) {
    uint32_t bar = bars + at.slot * 8;
    if (!hw_bar_try(bar, at.parity)) wait_long(b.a, bar, at, what, b.layer);
}
static __device__ inline void wait_full(const stage_block &b, ring_at at) {
    wait_bar(b, b.full, at, WAIT_FULL);
}
static __device__ inline void give_back(const stage_block &b, ring_at at) {
    hw_bar_arrive(b.empty + at.slot * 8);
}

/* A bench's: when thread 0 was where. */
static __device__ inline void note(const stage_block &b, int what) {
#ifdef GY_STAGE_TRACE
    if (b.a.trace && threadIdx.x == 0)
        b.a.trace[((int64_t)b.layer * gridDim.x + blockIdx.x) * STAGE_TRACE + what] = hw_clock();
#else
    (void)b, (void)what;
#endif
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static __device__ inline void put_word(const stage_block &b, uint64_t *to, uint32_t data) {
    hw_put_word(to, (uint64_t)b.tag << 32 | data);
}
static __device__ inline int is_there(const stage_block &b, uint64_t word) {
    return (uint32_t)(word >> 32) == b.tag || b.a.less & LESS_WAITS;
}
static __device__ inline uint32_t get_word(const stage_block &b, const uint64_t *from, int32_t index) {
    waiting t = {};
    uint64_t w = hw_get_word(from);
    for (; !is_there(b, w); w = hw_get_word(from))
        be_patient(b.a, &t, WAIT_WORD, b.layer, index, (uint32_t)(w >> 32), b.tag);
    return (uint32_t)w;
}
/* N times two words, step words apart, all asked for at once; has: how many of them. */
template <int N>
static __device__ inline void get_words(const stage_block &b, const uint64_t *from, int32_t step, int32_t has,
                                        uint32_t (&v)[N][2]) {
    uint64_t w[N][2];
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < has) hw_get_words(from + i * step, w[i]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= has) continue;
        waiting t = {};
        while (!is_there(b, w[i][0]) || !is_there(b, w[i][1])) {
            be_patient(b.a, &t, WAIT_WORD, b.layer, i, (uint32_t)(w[i][0] >> 32), b.tag);
            hw_get_words(from + i * step, w[i]);
        }
        v[i][0] = (uint32_t)w[i][0];
        v[i][1] = (uint32_t)w[i][1];
    }
}

static __device__ inline uint32_t *counter_of(const stage_block &b, int kind, int32_t i) {
    return b.a.to.counter + (kind * STAGE_COUNTERS + i) * STAGE_LINE;
}
/* One that is counted is made; who: which. */
static __device__ inline void count(const stage_block &b, int kind, int32_t who) {
    int32_t all = b.a.tune.n_counter;
    if (all) hw_count(counter_of(b, kind, who & (all - 1)));
}
/* Until n of each layer so far have been counted, times of each; one warp. */
static __device__ inline void wait_count(const stage_block &b, int kind, int32_t n, int32_t of_each) {
    int32_t all = b.a.tune.n_counter, i = my_lane();
    if (i >= all || b.a.less & LESS_WAITS) return;
    uint32_t wanted = (uint32_t)((b.layer + 1) * of_each * ((n - i + all - 1) >> b.h->p.counter_bits)), found;
    waiting t = {};
    while ((int32_t)((found = hw_counted(counter_of(b, kind, i))) - wanted) < 0)
        be_patient(b.a, &t, WAIT_COUNTER, b.layer, kind, found, wanted);
}

/* Where pair p of an input lies (in words): a lane's four words of 32 of k are what it has in two instructions, by
 * turns. */
static __device__ inline int32_t x_at(int32_t p) {
    return p / 16 * 16 + p % 4 * 4 + p / 4 % 2 * 2 + p / 8 % 2;
}

/* All words of an input, into shared memory: n pairs and zeros up to DEEP. kind, n_made, of_each: as counted. */
static __device__ inline void gather(const stage_block &b, const uint64_t *from, int32_t n, uint32_t *x, int kind,
                                     int32_t n_made, int32_t of_each) {
    enum { AT_ONCE = 4 };
    int32_t end = (n + DEEP / 2 - 1) / (DEEP / 2) * (DEEP / 2);
    if (threadIdx.x < 32) wait_count(b, kind, n_made, of_each);
    hw_meet<MEET_TEAM, TEAM>();
#pragma unroll 1
    for (int32_t at = 2 * (int32_t)threadIdx.x; at < n; at += 2 * AT_ONCE * TEAM) {
        uint32_t v[AT_ONCE][2];
        int32_t has = (n - at + 2 * TEAM - 1) / (2 * TEAM);
        get_words<AT_ONCE>(b, from + at, 2 * TEAM, has, v);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i >= has) continue;
            uint32_t *to = x + x_at(at + i * 2 * TEAM);
            to[0] = v[i][0];
            to[4] = v[i][1];
        }
    }
#pragma unroll 1
    for (int32_t at = n + (int32_t)threadIdx.x; at < end; at += TEAM) x[x_at(at)] = 0;
    hw_meet<MEET_TEAM, TEAM>();
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Chunks of all KV heads, shared by n_part each, are spread over the blocks. */
static __device__ inline void plan_attention(const stage_args &a, stage_plan *p) {
    int32_t blocks = (int32_t)gridDim.x, me = (int32_t)blockIdx.x, n = a.n_head_kv * a.n_chunk * a.n_part,
            q = (me * n + blocks - 1) / blocks;
    p->has_attn = q < n && q * blocks / n == me;
    p->halvings = a.n_part == 4 ? 2 : a.n_part == 2 ? 1 : 0;
    p->part = q % a.n_part;
    p->chunk = q / a.n_part % a.n_chunk;
    p->kv_head = q / a.n_part / a.n_chunk;
    p->n_pos = a.pos[0] + 1;
    p->first = p->chunk * STAGE_CHUNK;
    p->is_last = p->chunk == a.n_chunk - 1;
    int32_t left = p->n_pos - p->first;
    p->n_group = left >= STAGE_CHUNK ? GROUPS : (left + GROUP - 1) / GROUP;
    if (a.less & LESS_ATTENTION) p->has_attn = 0;
    if (!p->has_attn) p->n_group = left = 0;
    p->n_older = left > STAGE_CHUNK ? STAGE_CHUNK : left > 0 ? left - 1 : 0;
    p->n_v = (p->n_group + (1 << p->halvings) - 1) >> p->halvings;
}

static __device__ inline void make_plan(const stage_args &a, stage_plan *p) {
    int32_t att = a.n_head * STAGE_D, blocks = (int32_t)gridDim.x, at = 0;
    int32_t n[STAGE_PRODUCTS] = {att + 2 * a.n_head_kv * STAGE_D, a.n_embd, 2 * a.n_ff, a.n_embd};
    int32_t k[STAGE_PRODUCTS] = {a.n_embd, att, a.n_embd, a.n_ff};
    plan_attention(a, p);
    for (int w = 0; w < STAGE_PRODUCTS; w++) {
        p->k[w] = k[w];
        p->steps[w] = (k[w] + STAGE_K - 1) / STAGE_K;
        p->tiles[w] = (n[w] / 8 - (int32_t)blockIdx.x + blocks - 1) / blocks;
    }
    for (int part = 0; part < PARTS; part++) {
        int w = part < PART_K ? STAGE_QKV : part - PART_O + STAGE_O;
        p->base[part] = at;
        at += part == PART_K ? p->n_group : part == PART_V ? p->n_v : p->tiles[w] * p->steps[w];
    }
    p->base[PARTS] = at;
    p->counter_bits = 0;
    while (2 << p->counter_bits <= a.tune.n_counter) p->counter_bits++;
    p->layers_before = *(volatile uint32_t *)a.to.epoch;
}

/* The row's own position is nowhere yet; what is nowhere is not read. */
static __device__ inline void find_places(const stage_args &a, stage_head *h) {
    const int32_t *map = a.map_of + a.map_off[0] + h->p.first;
    for (int32_t j = (int32_t)threadIdx.x; j < STAGE_CHUNK; j += STAGE_THREADS) {
        int32_t slot = j < h->p.n_older ? map[j] : 0;
        int32_t row = slot / GY_BLOCK_SLOTS * a.kv_layers * 2 * GY_BLOCK_SLOTS + slot % GY_BLOCK_SLOTS;
        h->place[j] = row * a.n_head_kv;
    }
}

/* ---- bringing ---------------------------------------------------------------------------------------------------- */

/* All lanes have it alike. */
typedef struct bringing {
    ring_at next, seen; /* seen: the first that has not been seen full */
    int32_t under_way;  /* from seen to next */
} bringing;

/* Until the next slot may be filled. */
static __device__ inline void wait_room(const stage_block &b, bringing *s, int32_t flight) {
#pragma unroll 1
    for (; s->under_way >= flight; s->under_way--) {
        wait_bar(b, b.full, s->seen, WAIT_FLIGHT);
        s->seen = behind(s->seen, 1);
    }
    ring_at before = {s->next.slot, s->next.parity ^ 1}; /* of the first round: over */
    wait_bar(b, b.empty, before, WAIT_ROOM);
    __syncwarp(); /* no lane falls a round behind */
}
static __device__ inline void brought(bringing *s) {
    s->next = behind(s->next, 1);
    s->under_way++;
}

/* What a slot of weights is: rows of a map, units of a map, bytes of repacked weights. */
enum { AS_ROWS, AS_UNITS, AS_BYTES };

/* Tiles of a product in rounds of as many as compute; in a round the same 512 of k of each. */
template <int AS> static __device__ inline void bring_tiles(const stage_block &b, bringing *s, int w, int32_t flight) {
    const int32_t tile_rows = AS == AS_ROWS ? 8 : 1, by = (int32_t)gridDim.x * tile_rows, steps = b.h->p.steps[w];
    const CUtensorMap *map = &b.a.map[b.layer][w];
    const char *bytes = (const char *)b.a.layer[b.layer].w[w];
    int32_t row = (int32_t)blockIdx.x * tile_rows;
    int is_one = my_lane() == 0;
#pragma unroll 1
    for (int32_t left = b.h->p.tiles[w]; left > 0; left -= COMPUTING, row += by * COMPUTING) {
        int32_t wide = left < COMPUTING ? left : COMPUTING;
#pragma unroll 1
        for (int32_t step = 0; step < steps; step++) {
#pragma unroll 1
            for (int32_t j = 0, at = row; j < wide; j++, at += by) {
                wait_room(b, s, flight);
                uint32_t to = slot_at(b, s->next), bar = b.full + s->next.slot * 8;
                if (is_one) {
                    hw_bar_expect(bar, STAGE_SLOT);
                    if (AS == AS_ROWS) hw_bring_rows(to, map, at, step * (STAGE_K / 64), bar);
                    if (AS == AS_UNITS) hw_bring_unit(to, map, at, step * (STAGE_K / 64), bar);
                    if (AS == AS_BYTES)
                        hw_bring_bytes(to, bytes + (int64_t)(at * steps + step) * STAGE_SLOT, STAGE_SLOT, bar);
                }
                brought(s);
            }
        }
    }
}

static __device__ inline void bring_product(const stage_block &b, bringing *s, int w, int32_t flight) {
    if (b.a.is_linear)
        bring_tiles<AS_BYTES>(b, s, w, flight);
    else if (w == STAGE_GATE_UP)
        bring_tiles<AS_UNITS>(b, s, w, flight);
    else
        bring_tiles<AS_ROWS>(b, s, w, flight);
}

/* Where 16 bytes of a row lie in a slot: rows of 128 bytes, or of 64 where four blocks share a chunk; two panels where
 * a row is longer. */
static __device__ inline uint32_t unit_of(int halvings, int32_t row, int32_t unit) {
    if (halvings == 2) return (uint32_t)(row * 64 + ((unit ^ (row >> 1 & 3)) << 4));
    return (uint32_t)((unit >> 3) * (STAGE_SLOT / 2) + row * 128 + (((unit & 7) ^ (row & 7)) << 4));
}

/* One slot of rows, of the chunk's position `first` on; from: elements of the head. All lanes: a lane has one unit of
 * every ROWS-th row, so the row's part of unit_of is a constant that is added and one that is exclusive-ored. */
template <int HALVINGS>
static __device__ inline void bring_rows(const stage_block &b, uint32_t to, const bf16 *from, int32_t first) {
    enum { UNITS = 16 >> HALVINGS, ROWS = 32 / UNITS, TIMES = STAGE_SLOT / 16 / 32, TURNS = 4 >> HALVINGS };
    const uint32_t step = HALVINGS ? 512 : 256;
    int32_t lane = my_lane(), row = lane / UNITS, unit = lane % UNITS, n = b.h->p.n_older - first - row;
    uint32_t at = to + unit_of(HALVINGS, row, unit);
    const char *source[TIMES]; /* all places are read before the first copy: behind one the compiler would not */
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        source[i] = (const char *)(from + unit * 8) + (int64_t)b.h->place[first + row + i * ROWS] * (STAGE_D * 2);
    if (first + (GROUP << HALVINGS) <= b.h->p.n_older) n = GROUP << HALVINGS;
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        copy16((at ^ (uint32_t)(i % TURNS) << (5 + HALVINGS)) + (uint32_t)i * step, source[i], i * ROWS < n);
}

/* n slots of K, or of V with its columns from `from` on. */
template <int HALVINGS>
static __device__ inline void bring_slots(const stage_block &b, bringing *s, const bf16 *from, int32_t n) {
#pragma unroll 1
    for (int32_t k = 0; k < n; k++) {
        wait_room(b, s, b.a.tune.flight_kv);
        uint32_t bar = b.full + s->next.slot * 8;
        bring_rows<HALVINGS>(b, slot_at(b, s->next), from, (GROUP << HALVINGS) * k);
        hw_bar_copies(bar);
        __syncwarp();
        if (my_lane() == 0) hw_bar_arrive(bar);
        brought(s);
    }
}

static __device__ inline void bring_kv(const stage_block &b, bringing *s) {
    const stage_plan &p = b.h->p;
    const int64_t plane = (int64_t)GY_BLOCK_SLOTS * b.a.n_head_kv * STAGE_D;
    const bf16 *k = b.a.kv + (b.a.il + b.layer) * 2 * plane + (int64_t)p.kv_head * STAGE_D;
    const bf16 *v = k + plane + p.part * (STAGE_D >> p.halvings);
    bring_slots<0>(b, s, k, p.n_group);
    if (p.halvings == 0)
        bring_slots<0>(b, s, v, p.n_v);
    else if (p.halvings == 1)
        bring_slots<1>(b, s, v, p.n_v);
    else
        bring_slots<2>(b, s, v, p.n_v);
}

/* One warp. */
static __device__ inline void bring_all(stage_block &b) {
    bringing s = {};
    for (; b.layer < b.a.n_layer; b.layer++) {
        int lane = my_lane();
        if (lane < STAGE_PRODUCTS && b.layer + 1 < b.a.n_layer) hw_map_ready(&b.a.map[b.layer + 1][lane]);
#pragma unroll 1
        for (int w = 0; w < STAGE_PRODUCTS; w++) {
            bring_product(b, &s, w, w == STAGE_GATE_UP ? b.a.tune.flight_up : b.a.tune.flight);
            if (w == STAGE_QKV && b.h->p.has_attn) bring_kv(b, &s);
        }
    }
    /* The block may not end while something is on its way into it. All has been read by then but where nobody waits. */
#pragma unroll 1
    for (; s.under_way; s.under_way--) {
        wait_bar(b, b.full, s.seen, WAIT_FLIGHT);
        s.seen = behind(s.seen, 1);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* 128 of k: 8 outputs, and the input, which is row 0 of the instructions: lanes 0..3 have it, the others zeros. */
typedef struct fragments {
    uint32_t w[4][4], x[4][4];
} fragments;

/* Where a lane reads: weights of even and of odd 32 of k of a slot, the input of the slot's k. */
typedef struct reader {
    uint32_t even, odd, x;
    int has_x;
} reader;

static __device__ inline reader reader_of(const stage_block &b, int lane, ring_at at, uint32_t x) {
    uint32_t l = (uint32_t)lane, unit = l % 8 * 128 + ((l / 8 ^ l % 8) << 4), slot = slot_at(b, at);
    return {slot + unit, slot + (unit ^ 64), x + l % 4 * 16, lane < 4};
}

/* The i-th 32 of a slot's k. */
static __device__ inline void load(fragments *f, const reader &r, int i) {
    ldmatrix4(f->w[i % 4], (i % 2 ? r.odd : r.even) + (uint32_t)(i / 2 * 1024));
    hw_load_some(f->x[i % 4], r.x + (uint32_t)(i * 64), r.has_x);
}
static __device__ inline void load_all(fragments *f, const reader &r) {
#pragma unroll
    for (int i = 0; i < 4; i++) load(f, r, i);
}

/* 32 of k. Nobody reads what the instructions' rows 8 to 15 give, so it does not matter what the first has there. */
static __device__ inline void multiply(float (&d)[4], const fragments &f, int i) {
    const uint32_t second[4] = {f.x[i][1], 0, f.x[i][3], 0};
    mma(d, f.x[i], f.w[i][0], f.w[i][1]);
    mma(d, second, f.w[i][2], f.w[i][3]);
}

/* 128 of k; among them the loads of the next, which is part q of its slot. */
static __device__ inline void multiply_and_load(float (&d)[4], const fragments &f, fragments *next, const reader &r,
                                                int q) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        multiply(d, f, i);
        load(next, r, q * 4 + i);
    }
}
static __device__ inline void multiply_all(float (&d)[4], const fragments &f) {
#pragma unroll
    for (int i = 0; i < 4; i++) multiply(d, f, i);
}

/* n > 0 whole slots from `at` on, every wide-th; at and x go behind them. The next slot's beginning is loaded with the
 * end of this one if it is there by then. */
static __device__ inline void chain_slots(const stage_block &b, float (&d)[4], fragments (&f)[2], int lane, ring_at *at,
                                          uint32_t *x, uint32_t wide, int32_t n) {
    reader r = reader_of(b, lane, *at, *x);
    wait_full(b, *at);
    load_all(&f[0], r);
    for (;;) {
        ring_at next = behind(*at, wide);
        reader there = reader_of(b, lane, next, *x += STAGE_K * 2);
        multiply_and_load(d, f[0], &f[1], r, 1);
        multiply_and_load(d, f[1], &f[0], r, 2);
        int is_full = hw_bar_test(b.full + next.slot * 8, next.parity);
        multiply_and_load(d, f[0], &f[1], r, 3);
        is_full = __all_sync(~0u, is_full && n > 1);
        if (is_full)
            multiply_and_load(d, f[1], &f[0], there, 0);
        else
            multiply_all(d, f[1]);
        if (lane == 0) give_back(b, *at);
        *at = next;
        if (--n == 0) break;
        r = there;
        if (is_full) continue;
        wait_full(b, *at);
        load_all(&f[0], r);
    }
}

/* The last slot where it is not whole: n times 128. */
static __device__ inline void chain_rest(const stage_block &b, float (&d)[4], fragments *f, int lane, ring_at at,
                                         uint32_t x, int32_t n) {
    reader r = reader_of(b, lane, at, x);
    wait_full(b, at);
#pragma unroll 1
    for (; n > 0; n--) {
        load_all(f, r);
        multiply_all(d, *f);
        r.even += DEEP / 64 * 1024;
        r.odd += DEEP / 64 * 1024;
        r.x += DEEP * 2;
    }
    if (lane == 0) give_back(b, at);
}

typedef struct tile_sums {
    float d[4];
} tile_sums;

/* One chain over k from slot `at` on, every wide-th; x: of the input. Not inline: one copy for all products. */
static __device__ __attribute__((noinline)) tile_sums chain(stage_block b, int lane, ring_at at, uint32_t wide,
                                                            int32_t k, uint32_t x) {
    fragments f[2] = {};
    tile_sums d = {};
    if (k >= STAGE_K) chain_slots(b, d.d, f, lane, &at, &x, wide, k / STAGE_K);
    if (k % STAGE_K) chain_rest(b, d.d, &f[0], lane, at, x, (k % STAGE_K + DEEP - 1) / DEEP);
    return d;
}

/* Lanes 0..3 have outputs 2 c, 2 c + 1 of the tile. */
static __device__ inline void put_tile(const stage_block &b, int lane, uint64_t *to, int32_t tile,
                                       const float (&d)[4]) {
    if (lane < 4) put_word(b, to + tile * 4 + lane, two_of(d[0], d[1]));
}
/* Lanes 0, 1 have gates, 2, 3 the ups of the same numbers. */
static __device__ inline void put_silu(const stage_block &b, int lane, uint64_t *to, int32_t tile,
                                       const float (&d)[4]) {
    uint32_t gate = two_of(d[0], d[1]), up = __shfl_xor_sync(~0u, gate, 2);
    if (lane < 2) put_word(b, to + tile * 2 + lane, silu_mul_two(gate, up));
}

/* The block's tiles of a product, a warp each, in rounds. kind: counted as, or -1. */
static __device__ inline void product(const stage_block &b, stage_weight w, int part, const uint32_t *x, uint64_t *to,
                                      int kind) {
    const stage_plan &p = b.h->p;
    int32_t warp = b.warp, tiles = p.tiles[w], steps = p.steps[w], k = p.k[w];
    int32_t first = b.layer * p.base[PARTS] + p.base[part] + warp;
    int lane = my_lane();
#pragma unroll 1
    for (int32_t done = 0; done + warp < tiles; done += COMPUTING) {
        int32_t left = tiles - done, wide = left < COMPUTING ? left : COMPUTING;
        int32_t tile = (int32_t)blockIdx.x + (int32_t)gridDim.x * (done + warp);
        tile_sums sum = chain(b, lane, ring_of(first + done * steps), (uint32_t)wide, k, smem_at(x));
        if (w == STAGE_GATE_UP)
            put_silu(b, lane, to, tile, sum.d);
        else
            put_tile(b, lane, to, tile, sum.d);
        if (kind >= 0 && lane == 0) count(b, kind, tile);
    }
}

/* ---- residual and norm ------------------------------------------------------------------------------------------- */

typedef struct eight { /* elements 8 t.. of a row, of thread t */
    uint32_t x[4];
} eight;

static __device__ inline int owns(const stage_args &a) {
    return threadIdx.x < ROW_THREADS && (int32_t)threadIdx.x * 8 < a.n_embd;
}
static __device__ inline eight eight_at(const stage_args &a, const bf16 *p) {
    eight v = {};
    if (p && owns(a)) v = *(const eight *)(p + threadIdx.x * 8);
    return v;
}

/* block_sum's tree over 256 threads. */
static __device__ inline double half_sum(const stage_block &b, double v, int which) {
    double *part = b.h->sum[which];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (my_lane() == 0) part[threadIdx.x / 32] = v;
    hw_meet<MEET_HALF, ROW_THREADS>();
    double sum = part[0];
    for (int i = 1; i < ATTENDING; i++) sum += part[i];
    return sum;
}
static __device__ inline float norm_scale(const stage_block &b, const eight &v, int which) {
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = add_squares_two(sum, v.x[i]);
    sum = half_sum(b, sum, which);
    /* the same as scale_of; a product is exact where the division is */
    float mean = b.a.by_n_embd != 0.0 ? (float)(sum * b.a.by_n_embd) : (float)(sum / (double)b.a.n_embd);
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + b.a.eps));
}

/* Zeros behind the row, up to DEEP. */
static __device__ inline void leave_normed(const stage_block &b, const eight &h, const eight &w, int which) {
    float scale = norm_scale(b, h, which);
    int32_t t = (int32_t)threadIdx.x, end = (b.a.n_embd + DEEP - 1) / DEEP * (DEEP / 8);
    uint32_t *to = b.x + x_at(4 * t); /* the next pair is the next lane's */
    if (t >= end) return;
#pragma unroll
    for (int i = 0; i < 4; i++) to[4 * i] = owns(b.a) ? normed_two(h.x[i], scale, w.x[i]) : 0;
}

/* h (+)= what o or down left; then the next norm, unless there is none. Weights are asked for before anybody waits. */
static __device__ inline void residual(const stage_block &b, eight *h, const bf16 *w, const bf16 *next,
                                       const uint64_t *from, int kind) {
    const stage_args &a = b.a;
    eight wv = eight_at(a, w), nv = eight_at(a, next), v = {};
    if (threadIdx.x < 32) wait_count(b, kind, a.n_embd / 8, 1);
    hw_meet<MEET_TEAM, TEAM>();
    if (threadIdx.x < ROW_THREADS) {
        uint32_t got[2][2] = {};
        get_words<2>(b, from + 4 * threadIdx.x, 2, owns(a) ? 2 : 0, got);
#pragma unroll
        for (int i = 0; i < 4; i++) v.x[i] = got[i / 2][i % 2];
        if (a.norms == GY_RESIDUAL_BRANCH) {
            float scale = norm_scale(b, v, 0);
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] = normed_two(v.x[i], scale, wv.x[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) h->x[i] = add_two(h->x[i], v.x[i]);
        if (next) leave_normed(b, *h, nv, 1);
    }
    hw_meet<MEET_TEAM, TEAM>();
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct references { /* of a chunk's tiles, for rows g and g + 8 */
    float base[GROUP_TILE][2], f[GROUP_TILE][2], m[2];
} references;
static_assert(GROUPS / GROUP_TILE == 4, "tiles of a chunk");

/* Vector v of the KV head: its queries, then k, then v; a lane has words lane and lane + 32 of 64. */
static __device__ inline void fetch_vector(const stage_block &b, int lane, int32_t v, int32_t group) {
    const stage_args &a = b.a;
    const stage_plan &p = b.h->p;
    int is_v = v == group + 1;
    int32_t head = v < group ? p.kv_head * group + v : a.n_head + (is_v ? a.n_head_kv : 0) + p.kv_head;
    const uint64_t *from = a.to.qkv + head * (STAGE_D / 2);
    float2 c = *(const float2 *)(a.cos + 2 * lane), s = *(const float2 *)(a.sin + 2 * lane);
    const float cs[2] = {c.x, c.y}, sn[2] = {s.x, s.y};
    uint64_t w0 = hw_get_word(from + lane), w1 = hw_get_word(from + lane + 32);
    uint32_t lo = is_there(b, w0) ? (uint32_t)w0 : get_word(b, from + lane, head * 64 + lane);
    uint32_t hi = is_there(b, w1) ? (uint32_t)w1 : get_word(b, from + lane + 32, head * 64 + lane + 32);
    if (!is_v) rotate_two(a.round_each, &lo, &hi, cs, sn);
    uint32_t *to = v < group ? b.x_att + v * QUERY_ROW : is_v ? b.h->v_own : b.h->k_own;
    to[lane] = lo;
    to[lane + 32] = hi;
    if (v < group || p.part || a.slot[0] < 0) return;
    kv_shape shape = {a.kv_layers, a.il + b.layer, a.n_head_kv * STAGE_D};
    uint32_t *kept = (uint32_t *)(a.kv + kv_offset(shape, a.slot[0], is_v) + (int64_t)p.kv_head * STAGE_D);
    kept[lane] = lo;
    kept[lane + 32] = hi;
}

static __device__ inline void load_query(const stage_block &b, int lane, int32_t group,
                                         uint32_t (&q)[STAGE_D / 16][4]) {
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t *row = b.x_att + (g + 8 * i) * QUERY_ROW + c;
#pragma unroll
        for (int d = 0; d < STAGE_D / 16; d++) {
            q[d][i] = g + 8 * i < group ? row[d * 8] : 0;
            q[d][i + 2] = g + 8 * i < group ? row[d * 8 + 4] : 0;
        }
    }
}

/* The row's own k (v) into its place among the others'. One warp; the slot is full. */
static __device__ inline void put_own(const stage_block &b, int lane, uint32_t slot, int32_t row, int halvings,
                                      const uint32_t *own) {
    if (lane < 16 >> halvings) {
        uint4 v = *(const uint4 *)(own + lane * 4);
        *(uint4 *)((char *)b.h + (slot + unit_of(halvings, row, lane) - smem_at(b.h))) = v;
    }
    __syncwarp();
}

/* Scores of 32 positions and their maxima; of none where the group has none. at: its slot. */
static __device__ inline void group_scores(const stage_block &b, int lane, float (&s)[4][4],
                                           const uint32_t (&q)[STAGE_D / 16][4], int32_t group, ring_at at) {
    const stage_plan &p = b.h->p;
    int g = lane / 4, c = lane % 4, is_any = group < p.n_group;
    int32_t last = p.n_pos - 1 - p.first - group * GROUP;
    uint32_t k = slot_at(b, at);
    if (is_any) {
        wait_full(b, at);
        if (p.is_last && last < GROUP) put_own(b, lane, k, last, 0, b.h->k_own);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
        if (!is_any) continue;
#pragma unroll
        for (int d = 0; d < STAGE_D / 32; d++) {
            uint32_t w[4];
            ldmatrix4(w, k + unit_of(0, t * 8 + lane % 8, d * 4 + lane / 8));
            mma(s[t], q[2 * d], w[0], w[1]);
            mma(s[t], q[2 * d + 1], w[2], w[3]);
        }
    }
    if (is_any && lane == 0) give_back(b, at);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY;
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!is_any || t * 8 + 2 * c + e > last) s[t][2 * r + e] = -INFINITY;
                top = fmaxf(top, s[t][2 * r + e]);
            }
        }
        top = attn_quad_max(top);
        if (c == 0) b.h->top[group][g + 8 * r] = top;
    }
}

/* All warps know all maxima: what each tile's scores are taken relative to, in order. */
static __device__ inline void find_references(const stage_block &b, int lane, references *r) {
    int g = lane / 4;
    int32_t n_tile = (b.h->p.n_group + GROUP_TILE - 1) / GROUP_TILE;
    r->m[0] = r->m[1] = -INFINITY;
#pragma unroll
    for (int t = 0; t < 4; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r->base[t][i] = r->f[t][i] = 0.0f;
            if (t >= n_tile) continue;
            float top = b.h->top[t * GROUP_TILE][g + 8 * i];
#pragma unroll
            for (int k = 1; k < GROUP_TILE; k++) top = fmaxf(top, b.h->top[t * GROUP_TILE + k][g + 8 * i]);
            r->f[t][i] = attn_advance(top, b.a.scale, &r->m[i], &r->base[t][i]);
        }
    }
}

/* Where attention's exchange lies: weights as fragments of 16 positions, sums of groups. */
static __device__ inline uint4 *weights_at(const stage_block &b, int32_t k) {
    return (uint4 *)b.x_att + k * 32;
}
static __device__ inline float *sums_at(const stage_block &b, int32_t group, int i) {
    return (float *)b.x + (group * 2 + i) * 32;
}

/* low, high: what the group's tile is taken relative to, if this warp is one of the first four, and if not. */
static __device__ inline void leave_weights(const stage_block &b, int lane, float (&s)[4][4], const float (&low)[2],
                                            const float (&high)[2], int32_t group) {
    int is_low = b.warp < GROUP_TILE;
    float base[2] = {is_low ? low[0] : high[0], is_low ? low[1] : high[1]}, sum[2];
    group_weights(s, b.a.scale, base, sum);
    sums_at(b, group, 0)[lane] = sum[0];
    sums_at(b, group, 1)[lane] = sum[1];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t p[4];
        pack_weights(s + 2 * k, p);
        weights_at(b, 2 * group + k)[lane] = make_uint4(p[0], p[1], p[2], p[3]);
    }
}

/* Adds 32 positions of V with their weights to this warp's columns, eight from 8 (warp + 8 n) on. */
template <int HALVINGS, int N>
static __device__ inline void add_values(const stage_block &b, int lane, uint32_t slot, int32_t k, float (&sum)[N][4]) {
    int32_t row = (k & ((1 << HALVINGS) - 1)) * GROUP + lane;
    uint4 w0 = weights_at(b, 2 * k)[lane], w1 = weights_at(b, 2 * k + 1)[lane];
    const uint32_t p0[4] = {w0.x, w0.y, w0.z, w0.w}, p1[4] = {w1.x, w1.y, w1.z, w1.w};
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t v[4];
        ldmatrix4_trans(v, slot + unit_of(HALVINGS, row, b.warp + ATTENDING * n));
        mma(sum[n], p0, v[0], v[1]);
        mma(sum[n], p1, v[2], v[3]);
    }
}

/* Tile t, from slot `at` on. Whole ones without a branch, so that loads go ahead of the chain. */
template <int HALVINGS, int N>
static __device__ inline void add_tile_values(const stage_block &b, int lane, ring_at *at, int32_t t,
                                              float (&sum)[N][4]) {
    int32_t k = t * GROUP_TILE, n = b.h->p.n_group - k;
    ring_at slot[GROUP_TILE >> HALVINGS];
#pragma unroll
    for (int i = 0; i < GROUP_TILE >> HALVINGS; i++) {
        slot[i] = *at;
        *at = behind(*at, 1);
        if (i << HALVINGS < n) wait_full(b, slot[i]);
    }
    if (n >= GROUP_TILE) {
#pragma unroll
        for (int i = 0; i < GROUP_TILE; i++)
            add_values<HALVINGS, N>(b, lane, slot_at(b, slot[i >> HALVINGS]), k + i, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP_TILE - 1; i++)
        if (i < n) add_values<HALVINGS, N>(b, lane, slot_at(b, slot[i >> HALVINGS]), k + i, sum);
}

/* Over all of the chunk's positions; and the sum of weights. */
template <int HALVINGS, int N>
static __device__ inline void sum_values(const stage_block &b, int lane, const references &r, float (&sum)[N][4],
                                         float (&l)[2]) {
    ring_at at = ring_of(b.layer * b.h->p.base[PARTS] + b.h->p.base[PART_V]);
    float f[4][2];
#pragma unroll
    for (int t = 0; t < 4; t++) f[t][0] = r.f[t][0], f[t][1] = r.f[t][1];
    l[0] = l[1] = 0.0f;
#pragma unroll 1
    for (int32_t t = 0; t * GROUP_TILE < b.h->p.n_group; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            l[i] = attn_add_groups(l[i], f[0][i], sums_at(b, 4 * t, i)[lane], sums_at(b, 4 * t + 1, i)[lane],
                                   sums_at(b, 4 * t + 2, i)[lane], sums_at(b, 4 * t + 3, i)[lane]);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] = __fmul_rn(sum[n][e], f[0][e >> 1]);
        add_tile_values<HALVINGS, N>(b, lane, &at, t, sum);
#pragma unroll
        for (int i = 0; i < 3; i++) f[i][0] = f[i + 1][0], f[i][1] = f[i + 1][1]; /* no index that is not known */
    }
    l[0] = attn_quad_sum(l[0]);
    l[1] = attn_quad_sum(l[1]);
}

/* Entry of a row of the KV head and of a chunk: columns of this block's part, then m, l. */
static __device__ inline uint64_t *entry_of(const stage_block &b, int32_t chunk, int32_t row) {
    const stage_plan &p = b.h->p;
    int32_t group = b.a.n_head / b.a.n_head_kv, wide = (STAGE_D >> p.halvings) + 2;
    int32_t unit = (p.kv_head * b.a.n_chunk + chunk) * b.a.n_part + p.part;
    return b.a.to.part + (int64_t)(unit * group + row) * wide;
}

template <int N>
static __device__ inline void leave_part(const stage_block &b, int lane, int32_t row, int i, const references &r,
                                         const float (&sum)[N][4], float l) {
    int c = lane % 4, warp = b.warp;
    int32_t columns = STAGE_D >> b.h->p.halvings;
    uint64_t *to = entry_of(b, b.h->p.chunk, row);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            put_word(b, to + (warp + ATTENDING * n) * 8 + 2 * c + e, __float_as_uint(sum[n][2 * i + e]));
    if (warp == 0 && c == 0) {
        put_word(b, to + columns, __float_as_uint(r.m[i]));
        put_word(b, to + columns + 1, __float_as_uint(l));
    }
}

/* What a lane reads of a chunk: its columns, and m, l. */
template <int N> struct chunk_words { uint64_t v[N][2], ml[2]; };
template <int N>
static __device__ inline void ask_chunk(const stage_block &b, int lane, int32_t chunk, int32_t row, chunk_words<N> *w) {
    const uint64_t *from = entry_of(b, chunk, row);
    hw_get_words(from + (STAGE_D >> b.h->p.halvings), w->ml);
#pragma unroll
    for (int n = 0; n < N; n++) hw_get_words(from + (b.warp + ATTENDING * n) * 8 + 2 * (lane % 4), w->v[n]);
}
template <int N> static __device__ inline int has_chunk(const stage_block &b, const chunk_words<N> &w) {
    int all = is_there(b, w.ml[0]) && is_there(b, w.ml[1]);
#pragma unroll
    for (int n = 0; n < N; n++) all = all && is_there(b, w.v[n][0]) && is_there(b, w.v[n][1]);
    return all;
}

/* Of all chunks in order, this block's last: as join_kernel (attn.cu). Four are asked for at once: a way through the L2
 * is longer than all the rest. */
template <int N>
static __device__ inline void join_parts(const stage_block &b, int lane, int32_t row, int i, const references &r,
                                         const float (&sum)[N][4], float l) {
    enum { AT_ONCE = N == 1 ? 3 : 1 };
    const stage_plan &p = b.h->p;
    int c = lane % 4, warp = b.warp;
    int32_t columns = STAGE_D >> p.halvings, head = p.kv_head * (b.a.n_head / b.a.n_head_kv) + row;
    float m = -INFINITY, all = 0.0f, y[N][2] = {}, f_old, f_new;
#pragma unroll 1
    for (int32_t first = 0; first < p.chunk; first += AT_ONCE) {
        chunk_words<N> w[AT_ONCE];
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++)
            if (first + t < p.chunk) ask_chunk<N>(b, lane, first + t, row, &w[t]);
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) {
            if (first + t >= p.chunk) continue;
            waiting wait = {};
            while (!has_chunk<N>(b, w[t])) {
                be_patient(b.a, &wait, WAIT_WORD, b.layer, first + t, (uint32_t)(w[t].ml[0] >> 32), b.tag);
                ask_chunk<N>(b, lane, first + t, row, &w[t]);
            }
            attn_factors(m, __uint_as_float((uint32_t)w[t].ml[0]), &m, &f_old, &f_new);
            all = attn_join(all, f_old, __uint_as_float((uint32_t)w[t].ml[1]), f_new);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    y[n][e] = attn_join(y[n][e], f_old, __uint_as_float((uint32_t)w[t].v[n][e]), f_new);
        }
    }
    attn_factors(m, r.m[i], &m, &f_old, &f_new);
    float inverse = __frcp_rn(attn_join(all, f_old, l, f_new));
#pragma unroll
    for (int n = 0; n < N; n++) {
        float y0 = attn_join(y[n][0], f_old, sum[n][2 * i], f_new);
        float y1 = attn_join(y[n][1], f_old, sum[n][2 * i + 1], f_new);
        int32_t at = head * STAGE_D + p.part * columns + (warp + ATTENDING * n) * 8 + 2 * c;
        put_word(b, b.a.to.att + at / 2, (uint32_t)attn_result(y0, inverse) | (uint32_t)attn_result(y1, inverse) << 16);
    }
}

template <int HALVINGS> static __device__ inline void finish(const stage_block &b, int lane, const references &r) {
    constexpr int N = HALVINGS ? 1 : 2;
    const stage_plan &p = b.h->p;
    int32_t group = b.a.n_head / b.a.n_head_kv, g = lane / 4;
    float sum[N][4] = {}, l[2];
    sum_values<HALVINGS, N>(b, lane, r, sum, l);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (g + 8 * i >= group) continue;
        if (p.is_last)
            join_parts<N>(b, lane, g + 8 * i, i, r, sum, l[i]);
        else
            leave_part<N>(b, lane, g + 8 * i, i, r, sum, l[i]);
    }
    __syncwarp();
    if (p.is_last && lane == 0) count(b, KIND_ATT, p.kv_head * b.a.n_part + p.part);
}

/* How many warps have columns. */
static __device__ inline int32_t column_warps(const stage_args &a) {
    return a.n_part == 4 ? ATTENDING / 2 : ATTENDING;
}

/* The row's own v, when its slot is there; one warp. */
static __device__ inline void put_own_value(const stage_block &b, int lane) {
    const stage_plan &p = b.h->p;
    int32_t row = p.n_pos - 1 - p.first, shift = 5 + p.halvings; /* positions of a slot */
    ring_at at = ring_of(b.layer * p.base[PARTS] + p.base[PART_V] + (row >> shift));
    wait_full(b, at);
    put_own(b, lane, slot_at(b, at), row & ((1 << shift) - 1), p.halvings,
            b.h->v_own + p.part * (STAGE_D / 2 >> p.halvings));
}
static_assert(GROUP == 1 << 5, "positions of a slot");

/* 8 warps. */
static __device__ inline void attend(const stage_block &b) {
    const stage_plan &p = b.h->p;
    int lane = my_lane();
    int32_t warp = b.warp, group = b.a.n_head / b.a.n_head_kv, n = group + (p.is_last ? 2 : 0);
    ring_at k = ring_of(b.layer * p.base[PARTS] + p.base[PART_K] + warp);
    uint32_t q[STAGE_D / 16][4];
    float s[2][4][4];
    references r;
    note(b, 2);
#pragma unroll 1
    for (int32_t v = warp; v < n; v += ATTENDING) fetch_vector(b, lane, v, group);
    hw_meet<MEET_HALF, ROW_THREADS>();
    note(b, 3);
    load_query(b, lane, group, q);
    group_scores(b, lane, s[0], q, warp, k);
    group_scores(b, lane, s[1], q, warp + ATTENDING, behind(k, ATTENDING));
    hw_meet<MEET_HALF, ROW_THREADS>();
    note(b, 4);
    find_references(b, lane, &r);
    leave_weights(b, lane, s[0], r.base[0], r.base[1], warp);
    leave_weights(b, lane, s[1], r.base[2], r.base[3], warp + ATTENDING);
    if (p.is_last && warp == ATTENDING - 1) put_own_value(b, lane);
    hw_meet<MEET_HALF, ROW_THREADS>();
    note(b, 5);
    if (p.halvings == 0)
        finish<0>(b, lane, r);
    else if (p.halvings == 1)
        finish<1>(b, lane, r);
    else if (warp < column_warps(b.a))
        finish<2>(b, lane, r);
    hw_meet<MEET_HALF, ROW_THREADS>(); /* V is read */
    if (threadIdx.x < (unsigned)p.n_v)
        give_back(b, ring_of(b.layer * p.base[PARTS] + p.base[PART_V] + (int32_t)threadIdx.x));
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* The inputs of o and of down. */
static __device__ inline void gather_for(const stage_block &b, stage_weight w) {
    const stage_args &a = b.a;
    if (w == STAGE_O)
        gather(b, a.to.att, a.n_head * (STAGE_D / 2), b.x_att, KIND_ATT, a.n_head_kv * a.n_part, column_warps(a));
    else
        gather(b, a.to.f, a.n_ff / 2, b.x_f, KIND_F, a.n_ff / 4, 1);
}

/* Behind o and behind down. */
static __device__ inline void residual_behind(const stage_block &b, eight *h, stage_weight w) {
    const stage_args &a = b.a;
    const stage_layer &l = a.layer[b.layer];
    int is_branch = a.norms == GY_RESIDUAL_BRANCH, is_o = w == STAGE_O;
    const bf16 *own = is_o ? l.norm[1] : l.norm[3];
    const bf16 *next = is_o ? l.norm[2] : b.layer + 1 < a.n_layer ? a.layer[b.layer + 1].norm[0] : NULL;
    residual(b, h, is_branch ? own : NULL, next, is_o ? a.to.out : a.to.down, is_o ? KIND_OUT : KIND_DOWN);
}

/* No loop over the products: in one the compiler no longer sees that the warp that brings is of one mind, and its
 * addresses go through registers, 500 instead of 280 cycles a slot. */
static __device__ inline void compute_layer(const stage_block &b, eight *h) {
    const stage_shared &to = b.a.to;
    note(b, 0);
    product(b, STAGE_QKV, PART_QKV, b.x, to.qkv, -1);
    note(b, 1);
    if (b.h->p.has_attn) {
        hw_meet<MEET_TEAM, TEAM>(); /* x is read: sums of weights go over it */
        if (threadIdx.x < ROW_THREADS) attend(b);
    }
    note(b, 6);
    gather_for(b, STAGE_O);
    note(b, 7);
    product(b, STAGE_O, PART_O, b.x_att, to.out, KIND_OUT);
    note(b, 8);
    residual_behind(b, h, STAGE_O);
    note(b, 9);
    product(b, STAGE_GATE_UP, PART_GATE_UP, b.x, to.f, KIND_F);
    note(b, 10);
    gather_for(b, STAGE_DOWN);
    note(b, 11);
    product(b, STAGE_DOWN, PART_DOWN, b.x_f, to.down, KIND_DOWN);
    note(b, 12);
    residual_behind(b, h, STAGE_DOWN);
    note(b, 13);
}

/* All slots of a layer are given back as they come. */
static __device__ inline void compute_nothing(const stage_block &b) {
    int32_t slots = b.h->p.base[PARTS];
    int lane = my_lane();
    note(b, 0);
#pragma unroll 1
    for (int32_t i = b.warp; i < slots; i += COMPUTING) {
        ring_at at = ring_of(b.layer * slots + i);
        wait_full(b, at);
        if (lane == 0) give_back(b, at);
    }
    hw_meet<MEET_TEAM, TEAM>();
}

static __device__ inline void compute_all(stage_block &b) {
    const stage_args &a = b.a;
    eight h = eight_at(a, a.x), w = eight_at(a, a.layer[0].norm[0]);
    if (threadIdx.x < ROW_THREADS) leave_normed(b, h, w, 1);
    hw_meet<MEET_TEAM, TEAM>();
    for (; b.layer < a.n_layer; b.layer++, b.tag++) {
        if (a.less & LESS_SUMS)
            compute_nothing(b);
        else
            compute_layer(b, &h);
    }
    if (blockIdx.x == 0 && owns(a)) *(eight *)(a.x + threadIdx.x * 8) = h;
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.to.epoch = b.h->p.layers_before + (uint32_t)a.n_layer;
}

static __device__ inline void stage_body(const stage_args &a) {
    char *raw = hw_smem();
    stage_head *h = (stage_head *)raw;
    uint32_t head = smem_at(raw), ring = (head + (uint32_t)sizeof *h + 1023) / 1024 * 1024;
    uint32_t *x = (uint32_t *)(raw + (ring - head) + STAGE_SLOTS * STAGE_SLOT), *u = x + X_BYTES / 4;
    if (threadIdx.x == 0) {
        make_plan(a, &h->p);
        for (int i = 0; i < STAGE_SLOTS; i++) {
            hw_bar_init(smem_at(h->full + i));
            hw_bar_init(smem_at(h->empty + i));
        }
        hw_bars_made();
    }
    __syncthreads();
    find_places(a, h);
    __syncthreads();
    int32_t warp = __shfl_sync(~0u, (int32_t)threadIdx.x / 32, 0);
    stage_block b = {a,    h, smem_at(h->full),      smem_at(h->empty), ring, x, u, u + STAGE_ATT / 2,
                     warp, 0, h->p.layers_before + 1};
    if (warp == COMPUTING)
        bring_all(b);
    else
        compute_all(b);
}

#endif
