/* A stage of a batch of few decode rows as one recorded CUDA graph: gy_ops.stack.
 *
 * A launch costs the host 4.4 us on the machine where this was measured and a layer has ten of them, while a layer of
 * one row takes the GPU about as long: the GPU waited for the host. A recording holds the launches of all layers, with
 * their early starts, and is started by one call. Its kernels are those of the single operations with the same
 * arguments, so bits are theirs.
 *
 * What a launch's arguments and grids depend on is the key of a recording: pointers, rows, and attention's rounded
 * grids. A key that comes for the second time is recorded; the least recently used one gives way. So a batch that keeps
 * its size records once while its contexts grow by some hundred tokens, and one that changes all the time is
 * left to the single operations.
 *
 * A recording that cannot be made (no memory) is no error: the stage stays with the single operations from then on.
 *
 * Some launches do the work of several (enum fuse), with the same bits: the composition of single operations stays the
 * definition, and what such a launch declines is composed.
 *
 * Declined: more than MAX_ROWS rows (the GPU is then busy for longer than the host), prompts, F32.
 */
#include "ops/cuda/graph.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_ROWS_TRIED = 256, RECORDINGS = 64 };

/* What is done in one launch instead of several. Until they have been timed: by GY_FUSE, a sum of these, read when a
 * stage is opened. */
enum fuse {
    FUSE_SILU = 1,  /* silu_mul in the product of gate and up */
    FUSE_ROPE = 2,  /* rope and the KV write in attention */
    FUSE_JOIN = 4,  /* the join in attention */
    FUSE_AHEAD = 8, /* with FUSE_ROPE: K and V are on their way before the product in front has ended */
    LET_NEXT = 16,  /* the kernel behind one of our products begins before that ends */
    MANY_ROWS = 32, /* up to MAX_ROWS_TRIED rows are recorded */
    FUSE_NORM = 64  /* residual and norm in the product behind them */
};
enum { FUSED_ALWAYS = 0 };

typedef struct record_key { /* compared as bytes: cleared first */
    attn_recorded attn;
    const void *x, *cos, *sin, *kv, *map, *pos, *slot, *map_off;
    int64_t n_row;
} record_key;

typedef struct recording {
    record_key key;
    uint64_t used;         /* when; 0: empty */
    cudaGraphExec_t graph; /* NULL: seen once */
} recording;

typedef struct graph_layer {
    gy_weight w[4]; /* qkv, o, gate_up, down */
    const void *norm[4], *q_bias, *k_bias;
} graph_layer;

typedef struct graph_stack { /* engine lifetime */
    gy_stack_desc d;         /* layer: not to be used */
    graph_layer *layer;      /* [n_layer] */
    int32_t fuse, max_rows;
    char *mem;         /* device: activations of max_rows rows */
    uint32_t *arrived; /* [max_rows][n_head_kv], 0 between launches */
    void *a, *b, *qkv, *att, *gu, *f, *h;
    uint64_t clock;
    int is_off; /* a recording failed */
    recording all[RECORDINGS];
} graph_stack;

/* ---- the layers -------------------------------------------------------------------------------------------------- */

static void product(gy_backend *be, const void *x, const gy_weight *w, int32_t n_row, void *y) {
    gy_linear_args a = {x, w, n_row, 0, y};
    cuda_linear(be, &a);
}

static void attend(gy_backend *be, const graph_stack *g, const gy_rope_kv_args *rope, const gy_attn_args *attn) {
    int takes_rope = (g->fuse & FUSE_ROPE) != 0;
    if (!takes_rope) cuda_rope_kv(be, rope);
    cuda_attn_recorded(be, attn, takes_rope ? rope : NULL, (g->fuse & FUSE_AHEAD) != 0,
                       g->fuse & FUSE_JOIN ? g->arrived : NULL);
}

static void gate_and_up(gy_backend *be, const graph_stack *g, const gy_weight *w, int32_t n_row) {
    gy_silu_mul_args silu = {g->gu, n_row, g->d.n_ff, g->f};
    if (g->fuse & FUSE_SILU && cuda_linear_silu(be, g->a, w, n_row, g->f)) return;
    product(be, g->a, w, n_row, g->gu);
    cuda_silu_mul(be, &silu);
}

/* Where the residuals' sum is, and the memory that a launch which may not overwrite it puts the new one into. */
typedef struct residual_place {
    void *h, *other;
} residual_place;

static gy_residual_norm_args residual_of(const graph_stack *g, const gy_stack_args *a, const residual_place *at,
                                         const void *w, const void *next) {
    return {{at->h, g->b, w, g->d.norms, g->d.eps, a->rows.n_row, g->d.n_embd}, next, g->d.eps, g->a};
}

/* Residual, norm and the product behind in one launch? With FUSE_SILU that of gate and up leaves f. */
static int multiply_residual(gy_backend *be, const graph_stack *g, const gy_residual_norm_args *r, residual_place *at,
                             const gy_weight *w, int is_silu, void *y) {
    if (!(g->fuse & FUSE_NORM) || !cuda_linear_norm(be, r, at->other, w, is_silu, y)) return 0;
    *at = {at->other, at->h};
    return 1;
}

static void residual_gate_and_up(gy_backend *be, const graph_stack *g, const gy_residual_norm_args *r, int may_move,
                                 residual_place *at, const gy_weight *w) {
    gy_silu_mul_args silu = {g->gu, r->r.n_row, g->d.n_ff, g->f};
    int is_silu = (g->fuse & FUSE_SILU) != 0;
    if (may_move && multiply_residual(be, g, r, at, w, is_silu, is_silu ? g->f : g->gu)) {
        if (!is_silu) cuda_silu_mul(be, &silu);
        return;
    }
    cuda_residual_norm(be, r);
    gate_and_up(be, g, w, r->r.n_row);
}

static void residual_qkv(gy_backend *be, const graph_stack *g, const gy_residual_norm_args *r, residual_place *at,
                         const gy_weight *w) {
    if (multiply_residual(be, g, r, at, w, 0, g->qkv)) return;
    cuda_residual_norm(be, r);
    product(be, g->a, w, r->r.n_row, g->qkv);
}

/* From q, k, v of this layer to those of the next. The last layer leaves the residuals' sum in x: its first residual
 * moves it there, or does not move it. */
static void run_layer(gy_backend *be, const graph_stack *g, int32_t i, const gy_stack_args *a, residual_place *at) {
    const gy_stack_desc *d = &g->d;
    const graph_layer *l = g->layer + i;
    int32_t n = a->rows.n_row, is_last = i + 1 == d->n_layer;
    gy_rope_kv_args rope = {g->qkv,        l->q_bias, l->k_bias, a->cos,    a->sin, d->rope,
                            d->round_each, d->n_head, a->kv,     d->il + i, a->rows};
    gy_attn_args attn = {g->qkv,    (d->n_head + 2 * d->n_head_kv) * d->head_dim,
                         d->n_head, (float)(1.0 / sqrt((double)d->head_dim)),
                         a->kv,     d->il + i,
                         a->rows,   g->att};
    attend(be, g, &rope, &attn);
    product(be, g->att, &l->w[1], n, g->b);
    gy_residual_norm_args r = residual_of(g, a, at, l->norm[1], l->norm[2]);
    residual_gate_and_up(be, g, &r, !is_last || at->h != a->x, at, &l->w[2]);
    product(be, g->f, &l->w[3], n, g->b);
    r = residual_of(g, a, at, l->norm[3], is_last ? NULL : l[1].norm[0]);
    if (is_last)
        cuda_residual(be, &r.r);
    else
        residual_qkv(be, g, &r, at, &l[1].w[0]);
}

static void run_layers(cuda_be *c, const graph_stack *g, const gy_stack_args *a) {
    gy_backend *be = &c->head.be;
    int32_t n = a->rows.n_row;
    residual_place at = {a->x, g->h};
    gy_norm_args norm = {a->x, g->layer[0].norm[0], g->d.eps, n, g->d.n_embd, g->a};
    cuda_norm(be, &norm);
    product(be, g->a, &g->layer[0].w[0], n, g->qkv);
    for (int32_t i = 0; i < g->d.n_layer; i++) run_layer(be, g, i, a, &at);
    if (at.h == a->x) return;
    size_t bytes = (size_t)n * (size_t)g->d.n_embd * sizeof(bf16);
    cuda_ok(c, cudaMemcpyAsync(a->x, at.h, bytes, cudaMemcpyDeviceToDevice, c->stream), "recording");
}

/* ---- recordings -------------------------------------------------------------------------------------------------- */

/* The key's place; a new one takes the least recently used. */
static recording *find(cuda_be *c, graph_stack *g, const record_key *key) {
    recording *oldest = g->all;
    g->clock++;
    for (int i = 0; i < RECORDINGS; i++) {
        recording *r = g->all + i;
        if (r->used && !memcmp(&r->key, key, sizeof *key)) {
            r->used = g->clock;
            return r;
        }
        if (r->used < oldest->used) oldest = r;
    }
    if (oldest->graph) {
        cuda_ok(c, cudaStreamSynchronize(c->stream), "recording"); /* it may still run */
        cudaGraphExecDestroy(oldest->graph);
        oldest->graph = NULL;
    }
    oldest->key = *key;
    oldest->used = g->clock;
    return NULL;
}

/* With GY_FUSE_SAY: whether what was to be fused was. Goes with GY_FUSE. */
static void say_nodes(cudaGraph_t graph, const graph_stack *g, int32_t n_row) {
    size_t n = 0;
    if (!getenv("GY_FUSE_SAY") || cudaGraphGetNodes(graph, NULL, &n) != cudaSuccess) return;
    fprintf(stderr, "GY_FUSE %d, %d rows: %zu launches, %d layers\n", g->fuse, n_row, n, g->d.n_layer);
}

/* Only this thread's calls are held to the rules of recording: others may load or free meanwhile. Nothing has run when
 * it fails, so what was kept as an error is forgotten. */
static void record(cuda_be *c, graph_stack *g, const gy_stack_args *a, recording *r) {
    cudaError_t before = c->first;
    cudaGraph_t graph = NULL;
    if (cuda_ok(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording")) {
        cuda_attn_record(c, 1);
        cuda_lt_let_next(c, (g->fuse & LET_NEXT) != 0);
        run_layers(c, g, a);
        cuda_lt_let_next(c, 0);
        cuda_attn_record(c, 0);
        if (cudaStreamEndCapture(c->stream, &graph) != cudaSuccess || c->first != before ||
            cudaGraphInstantiate(&r->graph, graph, 0) != cudaSuccess)
            r->graph = NULL;
    }
    if (graph) say_nodes(graph, g, a->rows.n_row);
    if (graph) cudaGraphDestroy(graph);
    if (r->graph) return;
    g->is_off = 1;
    cudaGetLastError();
    c->first = before;
}

static int key_of(cuda_be *c, const graph_stack *g, const gy_stack_args *a, record_key *key) {
    memset(key, 0, sizeof *key);
    if (!cuda_attn_plan_ahead(c, g->d.n_head, g->d.n_head_kv, g->d.head_dim, &key->attn)) return 0;
    key->x = a->x, key->cos = a->cos, key->sin = a->sin;
    key->kv = a->kv->base, key->map = a->kv->map;
    key->pos = a->rows.pos, key->slot = a->rows.slot, key->map_off = a->rows.map_off;
    key->n_row = a->rows.n_row;
    return 1;
}

int cuda_graph_run(gy_backend *be, void *stack, const gy_stack_args *a) {
    cuda_be *c = of_be(be);
    graph_stack *g = (graph_stack *)stack;
    record_key key;
    if (g->is_off || a->rows.n_row <= 0 || a->rows.n_row > g->max_rows || !key_of(c, g, a, &key)) return 0;
    recording *r = find(c, g, &key);
    if (!r) return 0;
    if (!r->graph) record(c, g, a, r);
    if (!r->graph) return 0;
    cuda_ok(c, cudaGraphLaunch(r->graph, c->stream), "a recorded stage");
    return 1;
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

static int take_memory(cuda_be *c, graph_stack *g) {
    const gy_stack_desc *d = &g->d;
    size_t q = (size_t)d->n_head * (size_t)d->head_dim, kv = (size_t)d->n_head_kv * (size_t)d->head_dim;
    size_t embd = (size_t)d->n_embd, ff = (size_t)d->n_ff, rows = (size_t)g->max_rows,
           n[7] = {embd, embd, q + 2 * kv, q, 2 * ff, ff, embd};
    void **to[7] = {&g->a, &g->b, &g->qkv, &g->att, &g->gu, &g->f, &g->h};
    size_t at[8] = {};
    for (int i = 0; i < 7; i++) at[i + 1] = at[i] + (n[i] * rows * sizeof(bf16) + 255) / 256 * 256;
    size_t arrived = rows * (size_t)d->n_head_kv * sizeof *g->arrived;
    if (cudaMalloc((void **)&g->mem, at[7] + arrived) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    g->arrived = (uint32_t *)(g->mem + at[7]);
    cuda_ok(c, cudaMemsetAsync(g->arrived, 0, arrived, c->stream), "opening a stage");
    for (int i = 0; i < 7; i++) *to[i] = g->mem + at[i];
    return 1;
}

static int32_t fuse_wanted(void) {
    const char *text = getenv("GY_FUSE");
    return text ? atoi(text) : FUSED_ALWAYS;
}

static void copy_layer(const gy_stack_layer *l, graph_layer *out) {
    const gy_weight *w[4] = {l->qkv, l->o, l->gate_up, l->down};
    for (int i = 0; i < 4; i++) out->w[i] = *w[i], out->norm[i] = l->norm[i];
    out->q_bias = l->q_bias, out->k_bias = l->k_bias;
}

void cuda_graph_close(gy_backend *be, void *stack) {
    graph_stack *g = (graph_stack *)stack;
    if (!g) return;
    cuda_enter(of_be(be));
    cuda_ok(of_be(be), cudaStreamSynchronize(of_be(be)->stream), "closing a stage");
    for (int i = 0; i < RECORDINGS; i++)
        if (g->all[i].graph) cudaGraphExecDestroy(g->all[i].graph);
    cudaFree(g->mem);
    free(g->layer);
    free(g);
}

void *cuda_graph_open(gy_backend *be, const gy_stack_desc *d) {
    cuda_enter(of_be(be));
    if (be->act != GY_BF16 || d->n_layer <= 0) return NULL;
    graph_stack *g = (graph_stack *)calloc(1, sizeof *g);
    if (!g) return NULL;
    g->d = *d;
    g->fuse = fuse_wanted();
    g->max_rows = g->fuse & MANY_ROWS ? MAX_ROWS_TRIED : MAX_ROWS;
    g->layer = (graph_layer *)calloc((size_t)d->n_layer, sizeof *g->layer);
    if (!g->layer || !take_memory(of_be(be), g)) {
        cuda_graph_close(be, g);
        return NULL;
    }
    for (int32_t i = 0; i < d->n_layer; i++) copy_layer(&d->layer[i], &g->layer[i]);
    return g;
}
