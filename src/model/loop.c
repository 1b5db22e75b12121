/* The loop driver: see loop.h for what it does and desc.h for the model it runs. The forward pass reads like
 * docs/models; where the families differ, the description says so and nothing here asks for a family's
 * name.
 */
#include "model/loop.h"

#include "base/arena.h"
#include "model/map_copy.h"

#include <math.h>
#include <string.h>

struct gy_loop {
    gy_model *m;
    const gy_model_desc *d; /* the model's */
    gy_dtype act;           /* its backend's */
    int host;               /* the backend's memory is the host's */
    gy_loop_config c;
    void *mem; /* backend memory: everything below is carved from it */
    size_t bytes;
    gy_carve carve;                  /* of mem; base NULL where it is not the host's */
    gy_map_copy core_map, bound_map; /* of c.core, c.boundary */

    void *state_h, *state_e; /* [n_state, n_embd] act: hidden, injection (inject only) */

    /* One batch's activations, [max_row, ...] act. */
    void *x;          /* [n_embd] the residual stream */
    void *prev;       /* [n_embd] the state before the loop */
    void *a;          /* [n_embd] normed input of a branch */
    void *b;          /* [n_embd] a branch's output */
    void *qkv;        /* [(n_head + 2 n_head_kv) head_dim] */
    void *att;        /* [n_head head_dim] */
    void *gu;         /* [2 n_ff] */
    void *f;          /* [n_ff] */
    void *cat;        /* [2 n_embd] */
    float *cos, *sin; /* [head_dim / 2] */
    float *gate;      /* [1] */
    double *latent;   /* [1] */
    float *logits;    /* [max_logit, n_vocab] */

    int32_t *one; /* [1] */

    /* The batch's row arrays, brought over in one copy: written to stage as they come, behind one another in batch. */
    char *batch, *stage; /* [stage_bytes]; one memory on a host backend */
    size_t stage_bytes, n_stage;
    const int32_t *state;   /* in batch */
    const int32_t *special; /* in batch: ids of a prelude, logit rows of a coda */
    gy_rows rows;           /* of the running batch, in batch */

    /* Drawing, where the backend does it. */
    char *draw;         /* [draw_bytes] */
    gy_drawn *drawn;    /* [max_logit] */
    char *host_draw;    /* [draw_bytes]; NULL: it does not */
    gy_drawn *host_out; /* [max_logit] */
    size_t draw_bytes;

    float *host_logits;     /* [max_logit, n_vocab], NULL on a host backend */
    void *host_row;         /* [n_embd] act, for get and set */
    void *stack[GY_STAGES]; /* the backend's, NULL where it has none */
};

/* The next piece of the backend's memory. Where the host cannot touch it the carve only measures: a debug build would
 * write its red zones there. */
static void *take(gy_loop *l, gy_carve *c, size_t n, size_t elem_bytes) {
    size_t at = c->used;
    void *p = gy_carve_take(c, n, elem_bytes);
    return l->host || !l->mem ? p : (char *)l->mem + at;
}

static void lay_out(gy_loop *l, gy_carve *c) {
    const gy_model_desc *d = l->d;
    size_t act = gy_dtype_bytes(l->act), row = (size_t)l->c.max_row, state = (size_t)l->c.n_state;
    size_t embd = (size_t)d->n_embd * act, q = (size_t)d->n_head * (size_t)d->head_dim * act;
    size_t kv = (size_t)d->n_head_kv * (size_t)d->head_dim * act, half = (size_t)d->head_dim / 2;
    l->state_h = take(l, c, state, embd);
    l->state_e = d->inject ? take(l, c, state, embd) : NULL;
    l->x = take(l, c, row, embd);
    l->prev = take(l, c, row, embd);
    l->a = take(l, c, row, embd);
    l->b = take(l, c, row, embd);
    l->qkv = take(l, c, row, q + 2 * kv);
    l->att = take(l, c, row, q);
    l->gu = take(l, c, row, 2 * (size_t)d->n_ff * act);
    l->f = take(l, c, row, (size_t)d->n_ff * act);
    l->cat = d->inject ? take(l, c, row, 2 * embd) : NULL;
    l->cos = take(l, c, row, half * sizeof(float));
    l->sin = take(l, c, row, half * sizeof(float));
    l->gate = take(l, c, row, sizeof(float));
    l->latent = take(l, c, row, sizeof(double));
    l->one = take(l, c, 1, sizeof(int32_t));
    l->batch = take(l, c, l->stage_bytes, 1);
    l->draw = take(l, c, l->draw_bytes, 1);
    l->drawn = take(l, c, l->draw_bytes ? (size_t)l->c.max_logit : 0, sizeof *l->drawn);
    l->logits = take(l, c, (size_t)l->c.max_logit, (size_t)d->n_vocab * sizeof(float));
}

/* map_off, state, pos, slot, ids or logit rows, and what is to be changed of the map; each begins at a multiple of 8.
 */
static size_t stage_bytes(const gy_loop_config *c) {
    return (size_t)c->max_row * (sizeof(int64_t) + 4 * sizeof(int32_t)) +
           (size_t)GY_MAP_PATCH * (sizeof(int64_t) + sizeof(int32_t)) + 8 * sizeof(int64_t);
}

/* Any one row's lists twice (a count for every token, the largest bias list, a mask, what may be banned), and short
 * ones for all. */
static size_t draw_bytes(const gy_model_desc *d, const gy_loop_config *c) {
    size_t longest = (size_t)d->n_vocab * (sizeof(gy_draw_pair) + 1) + 16384;
    return 2 * longest + (size_t)c->max_logit * 1024;
}

gy_ops_limits gy_loop_limits(const gy_model_desc *d, int32_t max_row, int32_t max_len) {
    int32_t k = d->n_embd * (d->inject ? 2 : 1), q = d->n_head * d->head_dim;
    if (d->n_ff > k) k = d->n_ff;
    if (q > k) k = q;
    return (gy_ops_limits){.max_row = max_row, .max_k = k, .max_len = max_len};
}

size_t gy_loop_plan_bytes(const gy_model_desc *d, gy_dtype act, const gy_loop_config *c) {
    gy_loop l = {.d = d, .act = act, .host = 1, .c = *c, .stage_bytes = stage_bytes(c), .draw_bytes = draw_bytes(d, c)};
    gy_carve measure = {0};
    lay_out(&l, &measure);
    return measure.overflow ? 0 : measure.used;
}

static gy_stack_layer stack_layer(const gy_layer *w) {
    return (gy_stack_layer){.qkv = &w->qkv,
                            .o = &w->o,
                            .gate_up = &w->gate_up,
                            .down = &w->down,
                            .norm = {w->norm[0], w->norm[1], w->norm[2], w->norm[3]},
                            .q_bias = w->q_bias,
                            .k_bias = w->k_bias};
}

static int32_t first_layer(const gy_model_desc *d, gy_stage stage) {
    return stage == GY_CODA ? d->n_layer[GY_PRELUDE] : 0;
}

static gy_status open_stack(gy_loop *l, gy_stage stage, gy_err *err) {
    const gy_model_desc *d = l->d;
    gy_backend *be = l->m->be;
    int32_t n = d->n_layer[stage];
    if (!n || !be->ops->stack_open) return GY_OK;
    gy_stack_layer *layer = gy_mem_alloc(GY_MEM_MODEL, (size_t)n, sizeof *layer);
    if (!layer) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    for (int32_t i = 0; i < n; i++) layer[i] = stack_layer(&l->m->layer[stage][i]);
    l->stack[stage] = be->ops->stack_open(be, &(gy_stack_desc){.layer = layer,
                                                               .n_layer = n,
                                                               .il = first_layer(d, stage),
                                                               .n_embd = d->n_embd,
                                                               .n_ff = d->n_ff,
                                                               .n_head = d->n_head,
                                                               .n_head_kv = d->n_head_kv,
                                                               .head_dim = d->head_dim,
                                                               .eps = d->eps,
                                                               .norms = d->norms,
                                                               .rope = d->rope,
                                                               .round_each = d->rope_round});
    gy_mem_free(layer);
    return GY_OK;
}

static gy_status open_stacks(gy_loop *l, gy_err *err) {
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++) GY_TRY(open_stack(l, s, err));
    return GY_OK;
}

static int draws(const gy_loop *l) {
    gy_backend *be = l->m->be;
    return be->ops->sample && be->ops->sample(be, &(gy_sample_args){.n_vocab = l->d->n_vocab});
}

/* Host memory beside a backend's own. */
static int open_host(gy_loop *l) {
    size_t n = (size_t)l->c.max_logit;
    l->host_row = gy_mem_alloc(GY_MEM_MODEL, (size_t)l->d->n_embd, sizeof(float));
    if (l->host) return l->host_row != NULL;
    l->stage = gy_mem_alloc(GY_MEM_MODEL, l->stage_bytes, 1);
    l->host_logits = gy_mem_alloc(GY_MEM_MODEL, n, (size_t)l->d->n_vocab * sizeof(float));
    if (!l->host_row || !l->stage || !l->host_logits) return 0;
    if (!draws(l)) return 1;
    l->host_draw = gy_mem_alloc(GY_MEM_MODEL, l->draw_bytes, 1);
    l->host_out = gy_mem_alloc(GY_MEM_MODEL, n, sizeof *l->host_out);
    return l->host_draw && l->host_out;
}

static gy_status open_memory(gy_loop *l, gy_err *err) {
    gy_carve measure = {0};
    lay_out(l, &measure);
    l->bytes = measure.used;
    if (!measure.overflow) l->mem = l->m->be->ops->alloc(l->m->be, l->bytes);
    if (!l->mem || !open_host(l))
        return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of workspace; lower --max-rows or --max-seqs",
                          l->bytes);
    if (l->host) l->carve = (gy_carve){.base = l->mem, .cap = l->bytes};
    lay_out(l, &l->carve);
    if (l->host) l->stage = l->batch;
    return GY_OK;
}

gy_status gy_loop_create(gy_model *m, const gy_loop_config *c, gy_err *err, gy_loop **out) {
    gy_loop *l = gy_mem_alloc(GY_MEM_MODEL, 1, sizeof *l);
    if (!l) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    l->m = m;
    l->d = &m->d;
    l->act = m->be->act;
    l->host = m->be->is_host;
    l->c = *c;
    l->stage_bytes = stage_bytes(c);
    l->draw_bytes = draw_bytes(l->d, c);
    gy_status st = open_memory(l, err);
    if (st == GY_OK) st = gy_map_copy_open(&l->core_map, m->be, &l->c.core, err);
    if (st == GY_OK) st = gy_map_copy_open(&l->bound_map, m->be, &l->c.boundary, err);
    if (st == GY_OK) st = open_stacks(l, err);
    if (st == GY_OK)
        *out = l;
    else
        gy_loop_destroy(l);
    return st;
}

void gy_loop_destroy(gy_loop *l) {
    if (!l) return;
    GY_CHECK(gy_carve_check(&l->carve));
    for (int s = 0; s < GY_STAGES; s++)
        if (l->stack[s]) l->m->be->ops->stack_close(l->m->be, l->stack[s]);
    gy_map_copy_close(&l->core_map);
    gy_map_copy_close(&l->bound_map);
    l->m->be->ops->free(l->m->be, l->mem, l->bytes);
    if (!l->host) gy_mem_free(l->stage);
    gy_mem_free(l->host_draw);
    gy_mem_free(l->host_out);
    gy_mem_free(l->host_logits);
    gy_mem_free(l->host_row);
    gy_mem_free(l);
}

size_t gy_loop_workspace_bytes(const gy_loop *l) {
    return l->bytes;
}

/* ---- one batch -------------------------------------------------------------------------------------------------- */

/* Appends an array to the batch; returns where it will be on the backend. */
static void *stage(gy_loop *l, const void *src, size_t n, size_t elem_bytes) {
    size_t at = l->n_stage, bytes = n * elem_bytes;
    GY_CHECK(at + bytes <= l->stage_bytes);
    memcpy(l->stage + at, src, bytes);
    l->n_stage = (at + bytes + 7) / 8 * 8;
    return l->batch + at;
}

/* The rows of a batch, n_special ids or logit rows, and what the map rows that they will read in the group of map have
 * that the backend has not: one copy. */
static void begin_rows(gy_loop *l, const gy_loop_batch *b, const gy_kv_view *kv, gy_map_copy *map,
                       const int32_t *special, int32_t n_special) {
    GY_CHECK(b->n_row <= l->c.max_row);
    gy_backend *be = l->m->be;
    size_t n = (size_t)b->n_row;
    gy_patch_args patch = {0};
    l->n_stage = 0;
    l->rows = (gy_rows){.n_row = b->n_row};
    if (b->map_off) l->rows.map_off = stage(l, b->map_off, n, sizeof(int64_t));
    l->state = stage(l, b->state, n, sizeof(int32_t));
    l->rows.pos = stage(l, b->pos, n, sizeof(int32_t));
    if (b->slot) l->rows.slot = stage(l, b->slot, n, sizeof(int32_t));
    if (n_special) l->special = stage(l, special, (size_t)n_special, sizeof(int32_t));
    if (kv->base && gy_map_copy_update(map, b->n_row, b->pos, b->map_off))
        patch = (gy_patch_args){.idx = stage(l, map->idx, (size_t)map->n, sizeof *map->idx),
                                .v = stage(l, map->v, (size_t)map->n, sizeof *map->v),
                                .n = map->n,
                                .y = map->dev};
    if (!l->host) be->ops->upload(be, l->batch, l->stage, l->n_stage);
    if (patch.n) be->ops->patch(be, &patch);
    if (kv->base && be->ops->begin_rows)
        be->ops->begin_rows(be, &(gy_rows){.n_row = b->n_row, .pos = b->pos, .map_off = b->map_off});
}

static void fill_rope(gy_loop *l) {
    gy_model *m = l->m;
    m->be->ops->rope_table(m->be, &(gy_rope_table_args){.pos = l->rows.pos,
                                                        .inv_freq = m->inv_freq,
                                                        .table = m->rope_table,
                                                        .n_row = l->rows.n_row,
                                                        .half = m->d.head_dim / 2,
                                                        .round_bf16 = m->d.rope_round && m->be->act == GY_BF16,
                                                        .cos_out = l->cos,
                                                        .sin_out = l->sin});
}

static void norm(gy_loop *l, const void *x, const void *w, int32_t n_row, void *y) {
    gy_model *m = l->m;
    m->be->ops->norm(m->be, &(gy_norm_args){.x = x, .w = w, .eps = m->d.eps, .n_row = n_row, .n = m->d.n_embd, .y = y});
}

static void linear(gy_loop *l, const void *x, const gy_weight *w, void *y) {
    gy_backend *be = l->m->be;
    be->ops->linear(be, &(gy_linear_args){.x = x, .w = w, .n_row = l->rows.n_row, .y = y});
}

static void residual(gy_loop *l, const void *branch, const void *w) {
    gy_model *m = l->m;
    m->be->ops->residual(m->be, &(gy_residual_args){.h = l->x,
                                                    .b = branch,
                                                    .w = w,
                                                    .kind = m->d.norms,
                                                    .eps = m->d.eps,
                                                    .n_row = l->rows.n_row,
                                                    .n = m->d.n_embd});
}

/* a = norm of x with next, after the residual; next NULL: the residual alone. */
static void residual_norm(gy_loop *l, const void *branch, const void *w, const void *next) {
    gy_model *m = l->m;
    if (!next || !m->be->ops->residual_norm) {
        residual(l, branch, w);
        if (next) norm(l, l->x, next, l->rows.n_row, l->a);
        return;
    }
    m->be->ops->residual_norm(m->be, &(gy_residual_norm_args){.r = {.h = l->x,
                                                                    .b = branch,
                                                                    .w = w,
                                                                    .kind = m->d.norms,
                                                                    .eps = m->d.eps,
                                                                    .n_row = l->rows.n_row,
                                                                    .n = m->d.n_embd},
                                                              .w = next,
                                                              .eps = m->d.eps,
                                                              .y = l->a});
}

static void move_rows(gy_loop *l, int scatter, const void *x, const int32_t *idx, int32_t n_row, void *y) {
    gy_model *m = l->m;
    gy_move_args args = {.x = x, .idx = idx, .n_row = n_row, .n = m->d.n_embd, .y = y};
    if (scatter)
        m->be->ops->scatter(m->be, &args);
    else
        m->be->ops->gather(m->be, &args);
}

/* One layer over the batch: x (n_row, n_embd) in place. a holds the norm of x, and at the end that of the new x with
 * next, the following layer's (NULL: there is none). il counts within the KV group of view kv. */
static void layer_forward(gy_loop *l, const gy_layer *w, const void *next, const gy_kv_view *kv, int32_t il) {
    const gy_model_desc *d = &l->m->d;
    gy_backend *be = l->m->be;
    linear(l, l->a, &w->qkv, l->qkv);
    be->ops->rope_kv(be, &(gy_rope_kv_args){.qkv = l->qkv,
                                            .q_bias = w->q_bias,
                                            .k_bias = w->k_bias,
                                            .cos = l->cos,
                                            .sin = l->sin,
                                            .kind = d->rope,
                                            .round_each = d->rope_round,
                                            .n_head = d->n_head,
                                            .kv = kv,
                                            .il = il,
                                            .rows = l->rows});
    be->ops->attn(be, &(gy_attn_args){.q = l->qkv,
                                      .q_stride = (d->n_head + 2 * d->n_head_kv) * d->head_dim,
                                      .n_head = d->n_head,
                                      .scale = (float)(1.0 / sqrt((double)d->head_dim)),
                                      .kv = kv,
                                      .il = il,
                                      .rows = l->rows,
                                      .y = l->att});
    linear(l, l->att, &w->o, l->b);
    residual_norm(l, l->b, w->norm[1], w->norm[2]);
    linear(l, l->a, &w->gate_up, l->gu);
    be->ops->silu_mul(be, &(gy_silu_mul_args){.gu = l->gu, .n_row = l->rows.n_row, .n_ff = d->n_ff, .y = l->f});
    linear(l, l->f, &w->down, l->b);
    residual_norm(l, l->b, w->norm[3], next);
}

static int stack_forward(gy_loop *l, gy_stage stage, const gy_kv_view *kv) {
    gy_backend *be = l->m->be;
    if (!l->stack[stage]) return 0;
    return be->ops->stack(be, l->stack[stage],
                          &(gy_stack_args){.x = l->x, .cos = l->cos, .sin = l->sin, .kv = kv, .rows = l->rows});
}

static void stage_forward(gy_loop *l, gy_stage stage) {
    const gy_model *m = l->m;
    const gy_kv_view *kv = stage == GY_CORE ? &l->c.core : &l->c.boundary;
    int32_t first = first_layer(l->d, stage), n = m->d.n_layer[stage];
    const gy_layer *w = m->layer[stage];
    if (stack_forward(l, stage, kv)) return;
    if (n) norm(l, l->x, w[0].norm[0], l->rows.n_row, l->a);
    for (int32_t il = 0; il < n; il++) layer_forward(l, &w[il], il + 1 < n ? w[il + 1].norm[0] : NULL, kv, first + il);
}

void gy_loop_prelude(gy_loop *l, const gy_loop_batch *b, const gy_loop_entry *in) {
    gy_model *m = l->m;
    gy_backend *be = m->be;
    if (!b->n_row) return;
    begin_rows(l, b, &l->c.boundary, &l->bound_map, in->ids, b->n_row);
    be->ops->embed(be,
                   &(gy_embed_args){
                       .table = &m->embed, .ids = l->special, .scale = m->d.embed_scale, .n_row = b->n_row, .y = l->x});
    if (m->d.n_layer[GY_PRELUDE]) {
        fill_rope(l);
        stage_forward(l, GY_PRELUDE);
    }
    if (m->d.inject) {
        move_rows(l, 1, l->x, l->state, b->n_row, l->state_e);
        be->ops->latent_init(be, &(gy_latent_init_args){.seed = in->seed,
                                                        .pos = b->pos,
                                                        .zero = in->zero,
                                                        .std = m->d.state_std,
                                                        .mult = m->d.state_mult,
                                                        .n_row = b->n_row,
                                                        .n = m->d.n_embd,
                                                        .y = l->x});
    }
    move_rows(l, 1, l->x, l->state, b->n_row, l->state_h);
}

/* s = adapter(concat(state, injection)) */
static void inject(gy_loop *l) {
    const gy_model *m = l->m;
    move_rows(l, 0, l->state_e, l->state, l->rows.n_row, l->b);
    m->be->ops->concat(
        m->be, &(gy_concat_args){
                   .a = l->x, .b = l->b, .n_row = l->rows.n_row, .na = m->d.n_embd, .nb = m->d.n_embd, .y = l->cat});
    linear(l, l->cat, &m->adapter, l->x);
}

static void read_gate(gy_loop *l, float *gate_out) {
    gy_model *m = l->m;
    size_t n = (size_t)l->rows.n_row;
    m->be->ops->gate(
        m->be, &(gy_gate_args){
                   .x = l->x, .w = m->gate_w, .b = m->gate_b, .n_row = l->rows.n_row, .n = m->d.n_embd, .y = l->gate});
    m->be->ops->download(m->be, gate_out, l->gate, n * sizeof(float));
}

static void read_latent(gy_loop *l, double *latent_out) {
    gy_model *m = l->m;
    size_t n = (size_t)l->rows.n_row;
    m->be->ops->latent_diff(
        m->be,
        &(gy_latent_diff_args){.x = l->x, .x_prev = l->prev, .n_row = l->rows.n_row, .n = m->d.n_embd, .y = l->latent});
    m->be->ops->download(m->be, latent_out, l->latent, n * sizeof(double));
}

void gy_loop_pass(gy_loop *l, const gy_loop_batch *b, float *gate_out, double *latent_out) {
    gy_model *m = l->m;
    if (!b->n_row) return;
    begin_rows(l, b, &l->c.core, &l->core_map, NULL, 0);
    fill_rope(l);
    move_rows(l, 0, l->state_h, l->state, b->n_row, l->x);
    if (latent_out) move_rows(l, 0, l->state_h, l->state, b->n_row, l->prev);
    if (m->d.inject) inject(l);
    stage_forward(l, GY_CORE);
    if (m->d.loop_norm) norm(l, l->x, m->final_norm, b->n_row, l->x);
    move_rows(l, 1, l->x, l->state, b->n_row, l->state_h);
    if (gate_out && m->d.has_gate) read_gate(l, gate_out);
    if (latent_out) read_latent(l, latent_out);
}

void gy_loop_read_out(gy_loop *l, const gy_loop_batch *b, const int32_t *logit_row, int32_t n_logit) {
    gy_model *m = l->m;
    gy_backend *be = m->be;
    GY_CHECK(n_logit <= l->c.max_logit && n_logit <= b->n_row);
    if (!b->n_row || (!n_logit && !m->d.n_layer[GY_CODA])) return;
    begin_rows(l, b, &l->c.boundary, &l->bound_map, logit_row, n_logit);
    move_rows(l, 0, l->state_h, l->state, b->n_row, l->x);
    if (m->d.coda_norm) norm(l, l->x, m->final_norm, b->n_row, l->x);
    if (m->d.n_layer[GY_CODA]) {
        fill_rope(l);
        stage_forward(l, GY_CODA);
    }
    if (!n_logit) return;
    move_rows(l, 0, l->x, l->special, n_logit, l->a);
    if (m->d.head_norm) norm(l, l->a, m->final_norm, n_logit, l->a);
    be->ops->linear(be, &(gy_linear_args){.x = l->a, .w = &m->head, .n_row = n_logit, .y_f32 = 1, .y = l->logits});
}

const float *gy_loop_logits(gy_loop *l, int32_t first, int32_t n) {
    gy_backend *be = l->m->be;
    size_t row = (size_t)l->d->n_vocab, at = (size_t)first * row;
    GY_CHECK(first >= 0 && n >= 0 && first <= l->c.max_logit - n);
    if (l->host) return l->logits + at;
    be->ops->download(be, l->host_logits + at, l->logits + at, (size_t)n * row * sizeof(float));
    return l->host_logits + at;
}

const float *gy_loop_coda(gy_loop *l, const gy_loop_batch *b, const int32_t *logit_row, int32_t n_logit) {
    gy_loop_read_out(l, b, logit_row, n_logit);
    return n_logit ? gy_loop_logits(l, 0, n_logit) : NULL;
}

void *gy_loop_draw_room(gy_loop *l, size_t *bytes_out) {
    *bytes_out = l->draw_bytes;
    return l->host_draw;
}

const gy_drawn *gy_loop_draw(gy_loop *l, int32_t first, int32_t n, size_t bytes) {
    gy_backend *be = l->m->be;
    GY_CHECK(first >= 0 && n >= 0 && first <= l->c.max_logit - n && bytes <= l->draw_bytes);
    be->ops->upload(be, l->draw, l->host_draw, bytes);
    be->ops->sample(be, &(gy_sample_args){.logits = l->logits + (size_t)first * (size_t)l->d->n_vocab,
                                          .n_row = n,
                                          .n_vocab = l->d->n_vocab,
                                          .rows = (const gy_draw_row *)l->draw,
                                          .out = l->drawn});
    be->ops->download(be, l->host_out, l->drawn, (size_t)n * sizeof *l->drawn);
    return l->host_out;
}

/* ---- states ----------------------------------------------------------------------------------------------------- */

static char *state_row(const gy_loop *l, void *pool, int32_t state) {
    return (char *)pool + (size_t)state * (size_t)l->m->d.n_embd * gy_dtype_bytes(l->m->be->act);
}

void gy_loop_copy_state(gy_loop *l, int32_t src, int32_t dst) {
    gy_backend *be = l->m->be;
    be->ops->upload(be, l->one, &dst, sizeof dst);
    move_rows(l, 1, state_row(l, l->state_h, src), l->one, 1, l->state_h);
    if (l->state_e) move_rows(l, 1, state_row(l, l->state_e, src), l->one, 1, l->state_e);
}

void gy_loop_get_state(gy_loop *l, int32_t state, float *out) {
    gy_backend *be = l->m->be;
    size_t n = (size_t)l->m->d.n_embd;
    be->ops->download(be, l->host_row, state_row(l, l->state_h, state), n * gy_dtype_bytes(be->act));
    gy_convert(out, GY_F32, l->host_row, be->act, n);
}

void gy_loop_set_state(gy_loop *l, int32_t state, const float *in) {
    gy_backend *be = l->m->be;
    size_t n = (size_t)l->m->d.n_embd;
    gy_convert(l->host_row, be->act, in, GY_F32, n);
    be->ops->upload(be, state_row(l, l->state_h, state), l->host_row, n * gy_dtype_bytes(be->act));
}

gy_status gy_loop_sync(gy_loop *l, gy_err *err) {
    return l->m->be->ops->sync(l->m->be, err);
}
