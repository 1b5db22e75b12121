/* A stage as one launch: which stages, what they need, and the launch. The kernel is stage_kernel.cuh.
 *
 * One row of BF16, heads of 128, rope of halves, without biases, norms before or behind a branch, sizes of whole panels
 * (64 of k). What does not fit is left to the launches of record.cu. It is launched as a cooperative kernel: blocks
 * wait for one another, so either all of them are on the device at once or none is.
 *
 * What it gains: docs/kernels.md. GY_CUDA_STAGE goes without.
 */
#include "ops/cuda/stage_kernel.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_BYTES = 8 << 20, PATIENCE_MS = 500, CLOCK_KHZ = 1500000 };

struct cuda_stage {                    /* lifetime of the backend */
    void *encode;                      /* the driver's cuTensorMapEncodeTiled */
    char *shared;                      /* [SHARED_BYTES] on the device, zero at first */
    stage_report *report, *report_dev; /* [STAGE_BLOCKS] of the host, and where the device sees it */
    stage_tuning tune;
    stage_args args; /* of the launch that is made: too large for a stack */
};

static __global__ void __launch_bounds__(STAGE_THREADS, 1) stage_kernel(const __grid_constant__ stage_args a) {
#if __CUDA_ARCH__ >= 900
    stage_body(a);
#endif
}
static_assert(sizeof(stage_args) <= 32764, "a kernel's parameters");

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Each block has a tile of each product: only so does its part in a word's kind tell that it has read what was before.
 * A chunk is shared by as many as there are blocks for. */
int32_t cuda_stage_blocks(const stage_args *a, int32_t n_sm, int32_t *n_part_out) {
    int32_t blocks = least(STAGE_BLOCKS, n_sm), chunks = a->n_head_kv * a->n_chunk, n_part = 4;
    blocks = least(blocks, (a->n_head + 2 * a->n_head_kv) * STAGE_D / 8);
    blocks = least(blocks, least(a->n_embd / 8, a->n_ff / 4));
    while (n_part > 1 && (n_part > a->tune.parts || chunks * n_part > blocks)) n_part /= 2;
    *n_part_out = n_part;
    return chunks <= blocks ? blocks : 0;
}

static char *take(char **at, size_t bytes) {
    char *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Counters first: they are cleared before each launch, epoch and words are not. */
size_t cuda_stage_lay_out(const stage_args *a, char *base, stage_shared *to) {
    char *at = base;
    size_t heads = (size_t)(a->n_head + 2 * a->n_head_kv), half = STAGE_D / 2;
    size_t row = (size_t)(STAGE_D / a->n_part + 2), rows = (size_t)(a->n_head * a->n_chunk * a->n_part);
    to->counter = (uint32_t *)take(&at, (size_t)4 * STAGE_COUNTERS * STAGE_LINE * sizeof(uint32_t));
    to->epoch = (uint32_t *)take(&at, sizeof(uint32_t));
    to->qkv = (uint64_t *)take(&at, heads * half * sizeof(uint64_t));
    to->att = (uint64_t *)take(&at, (size_t)a->n_head * half * sizeof(uint64_t));
    to->out = (uint64_t *)take(&at, (size_t)a->n_embd / 2 * sizeof(uint64_t));
    to->f = (uint64_t *)take(&at, (size_t)a->n_ff / 2 * sizeof(uint64_t));
    to->down = (uint64_t *)take(&at, (size_t)a->n_embd / 2 * sizeof(uint64_t));
    to->part = (uint64_t *)take(&at, rows * row * sizeof(uint64_t));
    return (size_t)(at - base);
}

static int fits(const stage_args *a) {
    int32_t att = a->n_head * STAGE_D, group = a->n_head_kv ? a->n_head / a->n_head_kv : 0;
    return a->n_embd % 64 == 0 && a->n_ff % 64 == 0 && a->n_embd <= STAGE_EMBD && a->n_ff <= STAGE_FF &&
           att <= STAGE_ATT && group > 0 && group <= STAGE_HEADS && a->n_chunk > 0 &&
           (a->norms == GY_RESIDUAL_BRANCH || a->norms == GY_RESIDUAL_PRE);
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* Eight rows of W and eight panels of 64 of k: a slot. As units: four gates, the ups of the same numbers. */
int cuda_stage_map(void *encode, CUtensorMap *map, const void *w, int32_t n, int32_t k, int is_units) {
    typedef decltype(&cuTensorMapEncodeTiled) encode_fn;
    cuuint64_t row = (cuuint64_t)k * 2, panels = (cuuint64_t)k / 64, half = (cuuint64_t)n / 2;
    cuuint64_t dim3d[3] = {64, (cuuint64_t)n, panels}, by3d[2] = {row, 128};
    cuuint64_t dim5d[5] = {64, 4, 2, half / 4, panels}, by5d[4] = {row, half * row, 4 * row, 128};
    cuuint32_t box3d[3] = {64, 8, STAGE_K / 64}, box5d[5] = {64, 4, 2, 1, STAGE_K / 64}, one[5] = {1, 1, 1, 1, 1};
    return ((encode_fn)encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, is_units ? 5 : 3, (void *)w,
                               is_units ? dim5d : dim3d, is_units ? by5d : by3d, is_units ? box5d : box3d, one,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* BF16 of n x k, parts behind one another, at a multiple of 16 bytes; NULL: another. */
static const void *whole(const gy_weight *w, int32_t n, int32_t k) {
    const char *at = (const char *)w->part[0].data;
    if (w->dtype != GY_BF16 || w->n != n || w->k != k || (uintptr_t)at % 16) return NULL;
    for (int i = 0; i < w->n_part; i++) {
        if (w->part[i].data != (const void *)at) return NULL;
        at += (size_t)w->part[i].n * (size_t)k * 2;
    }
    return w->part[0].data;
}

static int take_layer(const cuda_stage *s, const stage_args *a, const stage_calls *l, CUtensorMap *map) {
    int32_t att = a->n_head * STAGE_D;
    int32_t n[STAGE_PRODUCTS] = {att + 2 * a->n_head_kv * STAGE_D, a->n_embd, 2 * a->n_ff, a->n_embd};
    int32_t k[STAGE_PRODUCTS] = {a->n_embd, att, a->n_embd, a->n_ff};
    for (int i = 0; i < STAGE_PRODUCTS; i++) {
        const void *w = whole(l->w[i]->w, n[i], k[i]);
        if (!w || !cuda_stage_map(s->encode, &map[i], w, n[i], k[i], i == STAGE_GATE_UP)) return 0;
    }
    return 1;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static int is_aligned(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

/* What all layers have alike, from the first one's calls. */
static void take_sizes(cuda_stage *s, const stage_run *run) {
    const stage_calls *l = run->layer;
    const gy_kv_view *kv = l->rope->kv;
    stage_args *a = &s->args;
    a->n_layer = run->n_layer;
    a->n_chunk = run->n_chunk;
    a->n_embd = run->first->n;
    a->n_ff = l->silu->n_ff;
    a->n_head = l->attn->n_head;
    a->n_head_kv = kv->n_head_kv;
    a->kv_layers = kv->n_layer;
    a->il = l->rope->il;
    a->round_each = l->rope->round_each;
    a->norms = run->last->kind;
    a->eps = run->first->eps;
    a->scale = (float)((double)l->attn->scale * 1.4426950408889634); /* as attn.cu */
    a->by_n_embd = a->n_embd & (a->n_embd - 1) ? 0.0 : 1.0 / a->n_embd;
}

static void take_memory(cuda_stage *s, const stage_run *run) {
    const gy_rope_kv_args *rope = run->layer->rope;
    stage_args *a = &s->args;
    a->x = (bf16 *)run->last->h;
    a->kv = (bf16 *)rope->kv->base;
    a->map_of = rope->kv->map;
    a->pos = rope->rows.pos;
    a->slot = rope->rows.slot;
    a->map_off = rope->rows.map_off;
    a->cos = rope->cos;
    a->sin = rope->sin;
    a->report = s->report_dev;
    a->patience = (long long)PATIENCE_MS * CLOCK_KHZ;
    a->tune = s->tune;
}

/* Layer i as the first one, with norms that have one eps. */
static int is_alike(const stage_run *run, int32_t i) {
    const stage_calls *l = &run->layer[i], *one = run->layer;
    const gy_rope_kv_args *r = l->rope;
    const gy_attn_args *t = l->attn;
    const gy_residual_args *end = l->end ? &l->end->r : run->last, *middle = &l->middle->r;
    float eps = run->first->eps;
    return r->kv->base == one->rope->kv->base && r->kv->map == one->rope->kv->map && r->kv->dtype == GY_BF16 &&
           r->kv->head_dim == STAGE_D && r->il == one->rope->il + i && t->il == r->il && t->kv->base == r->kv->base &&
           t->scale == one->attn->scale && t->scale > 0 && !r->q_bias && !r->k_bias && r->kind == GY_ROPE_HALF &&
           r->round_each == one->rope->round_each && r->n_head == t->n_head && t->n_head == one->attn->n_head &&
           t->q_stride == (t->n_head + 2 * r->kv->n_head_kv) * STAGE_D && r->cos == one->rope->cos &&
           r->sin == one->rope->sin && r->rows.slot == one->rope->rows.slot && r->rows.pos == one->rope->rows.pos &&
           r->rows.map_off == one->rope->rows.map_off && l->silu->n_ff == one->silu->n_ff &&
           middle->kind == run->last->kind && end->kind == run->last->kind && middle->eps == eps &&
           l->middle->eps == eps && end->eps == eps && (!l->end || l->end->eps == eps);
}

static int take_layers(cuda_stage *s, const stage_run *run) {
    stage_args *a = &s->args;
    for (int32_t i = 0; i < run->n_layer; i++) {
        const stage_calls *l = &run->layer[i];
        const gy_residual_args *end = l->end ? &l->end->r : run->last;
        const void *norm[4] = {i ? run->layer[i - 1].end->w : run->first->w, l->middle->r.w, l->middle->w, end->w};
        if (!is_alike(run, i) || !take_layer(s, a, l, a->map[i])) return 0;
        for (int k = 0; k < 4; k++) {
            if (!is_aligned(norm[k])) return 0;
            a->layer[i].norm[k] = (const bf16 *)norm[k];
        }
    }
    return 1;
}

cudaError_t cuda_stage_launch(cudaStream_t stream, const stage_args *a, int32_t blocks) {
    cudaError_t rc = cudaMemsetAsync(a->to.counter, 0, (size_t)4 * STAGE_COUNTERS * STAGE_LINE * 4, stream);
    cudaLaunchAttribute together = {};
    cudaLaunchConfig_t config = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(STAGE_THREADS);
    config.dynamicSmemBytes = STAGE_SMEM;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    if (rc == cudaSuccess)
        rc = cudaFuncSetAttribute((const void *)stage_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGE_SMEM);
    return rc == cudaSuccess ? cudaLaunchKernelEx(&config, stage_kernel, *a) : rc;
}

int cuda_stage_run(cuda_be *c, cuda_stage *s, const stage_run *run) {
    stage_args *a = &s->args;
    memset(a, 0, sizeof *a);
    take_sizes(s, run);
    take_memory(s, run);
    if (!fits(a) || !is_aligned(a->x) || !is_aligned(a->kv) || !is_aligned(a->cos) || !is_aligned(a->sin)) return 0;
    int32_t blocks = cuda_stage_blocks(a, c->n_sm, &a->n_part);
    if (!blocks || cuda_stage_lay_out(a, s->shared, &a->to) > SHARED_BYTES || !take_layers(s, run)) return 0;
    return cuda_ok(c, cuda_stage_launch(c->stream, a, blocks), "a stage");
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

/* Whether the device has the code, and room for a block on a multiprocessor. */
static int is_there(int device) {
    cudaFuncAttributes has;
    int n = 0, together = 0;
    return !cudaFuncGetAttributes(&has, (const void *)stage_kernel) && has.binaryVersion >= 90 &&
           !cudaFuncSetAttribute((const void *)stage_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGE_SMEM) &&
           !cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, stage_kernel, STAGE_THREADS, STAGE_SMEM) && n > 0 &&
           !cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device) && together;
}

static int32_t within(int32_t v, int32_t usual, int32_t low, int32_t high) {
    if (!v) v = usual;
    return v < low ? low : v > high ? high : v;
}

/* What is 0 is as usual; a count of -1 is 0. */
static stage_tuning tuning_of(const gy_cuda_stage *o) {
    stage_tuning t;
    t.flight = within(o->flight, 4, 1, STAGE_FLIGHT);
    t.flight_up = within(o->flight_up, 4, 1, STAGE_FLIGHT);
    t.flight_kv = within(o->flight_kv, 4, 1, STAGE_FLIGHT);
    t.n_counter = within(o->n_counter, STAGE_COUNTERS, 0, STAGE_COUNTERS);
    while (t.n_counter & (t.n_counter - 1)) t.n_counter &= t.n_counter - 1;
    t.parts = within(o->parts, 4, 1, 4);
    return t;
}

void cuda_stage_close(cuda_stage *s) {
    if (!s) return;
    cudaFree(s->shared);
    if (s->report) cudaFreeHost(s->report);
    free(s);
}

cuda_stage *cuda_stage_open(cuda_be *c, const gy_cuda_stage *o) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cuda_stage *s = is_there(c->device) ? (cuda_stage *)calloc(1, sizeof *s) : NULL;
    if (s &&
        !cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &s->encode, 12000, cudaEnableDefault, &found) &&
        found == cudaDriverEntryPointSuccess && !cudaMalloc((void **)&s->shared, SHARED_BYTES) &&
        !cudaMemset(s->shared, 0, SHARED_BYTES) &&
        !cudaHostAlloc((void **)&s->report, STAGE_BLOCKS * sizeof *s->report, cudaHostAllocMapped) &&
        !cudaHostGetDevicePointer((void **)&s->report_dev, s->report, 0)) {
        memset(s->report, 0, STAGE_BLOCKS * sizeof *s->report);
        s->tune = tuning_of(o);
        return s;
    }
    cuda_stage_close(s);
    cudaGetLastError();
    return NULL;
}

static const char *const waits[] = {"nothing", "a slot to be given back", "a slot on its way", "a slot", "a counter",
                                    "a word"};

int cuda_stage_failure(const cuda_stage *s, char *buf, size_t cap) {
    for (int i = 0; s && i < STAGE_BLOCKS; i++) {
        const volatile stage_report *r = &s->report[i];
        if (!r->what) continue;
        snprintf(buf, cap, "; block %d, warp %d, layer %d waited in vain for %s %d: found %u, wanted %u", i, r->warp,
                 r->layer, waits[r->what], r->index, r->found, r->wanted);
        return 1;
    }
    return 0;
}
