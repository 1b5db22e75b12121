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
    float *gate;      /* [1] */
    double *latent;   /* [1] */
    float *cos, *sin; /* [head_dim / 2] */

    /* Scratch of a recording: from x to cat. */
    void *x;       /* [n_embd] the residual stream */
    void *prev;    /* [n_embd] the state before the loop */
    void *a;       /* [n_embd] normed input of a branch */
    void *b;       /* [n_embd] a branch's output */
    void *qkv;     /* [(n_head + 2 n_head_kv) head_dim] */
    void *att;     /* [n_head head_dim] */
    void *gu;      /* [2 n_ff] */
    void *f;       /* [n_ff] */
    void *cat;     /* [2 n_embd] */
    void *end;     /* of the scratch */
    float *logits; /* [max_logit, n_vocab] */

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

    float *host_logits;   /* [max_logit, n_vocab], NULL on a host backend */
    const gy_drawn *late; /* of draw_later */
    void *host_row;       /* [n_embd] act, for get and set */
    void *record;         /* the backend's recordings, NULL where it has none */
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
    l->cos = take(l, c, row, half * sizeof(float));
    l->sin = take(l, c, row, half * sizeof(float));
    l->gate = take(l, c, row, sizeof(float));
    l->latent = take(l, c, row, sizeof(double));
    l->x = take(l, c, row, embd);
    l->prev = take(l, c, row, embd);
    l->a = take(l, c, row, embd);
    l->b = take(l, c, row, embd);
    l->qkv = take(l, c, row, q + 2 * kv);
    l->att = take(l, c, row, q);
    l->gu = take(l, c, row, 2 * (size_t)d->n_ff * act);
    l->f = take(l, c, row, (size_t)d->n_ff * act);
    l->cat = d->inject ? take(l, c, row, 2 * embd) : NULL;
    l->end = take(l, c, 1, 1);
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

static int32_t first_layer(const gy_model_desc *d, gy_stage stage) {
    return stage == GY_CODA ? d->n_layer[GY_PRELUDE] : 0;
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
    if (st == GY_OK && m->be->ops->record_open)
        l->record = m->be->ops->record_open(m->be, l->x, (size_t)((char *)l->end - (char *)l->x));
    if (st == GY_OK)
        *out = l;
    else
        gy_loop_destroy(l);
    return st;
}

void gy_loop_destroy(gy_loop *l) {
    if (!l) return;
    GY_CHECK(gy_carve_check(&l->carve));
    if (l->record) l->m->be->ops->record_close(l->m->be, l->record);
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

/* What is recorded, and all that the calls depend on beside what the loop's life decides (gy_record_key). */
typedef enum run_kind { RUN_PRELUDE, RUN_PASS, RUN_CODA } run_kind;
enum { HAS_SLOT = 2u, HAS_GATE = 4u, HAS_LATENT = 8u, HAS_MAP = 16u };

/* Room for n elements behind what the batch has: where they are now, and where they will be on the backend. */
static void *stage_room(gy_loop *l, size_t n, size_t elem_bytes, const void **there) {
    size_t at = l->n_stage, bytes = n * elem_bytes;
    GY_CHECK(at + bytes <= l->stage_bytes);
    l->n_stage = (at + bytes + 7) / 8 * 8;
    *there = l->batch + at;
    return l->stage + at;
}

/* Appends n numbers and as many of `filler` as make n_row; returns where they will be. here: where they are now. */
static const int32_t *stage_numbers(gy_loop *l, const int32_t *src, int32_t n, int32_t n_row, int32_t filler,
                                    const int32_t **here) {
    const void *there;
    int32_t *to = stage_room(l, (size_t)n_row, sizeof *to, &there);
    memcpy(to, src, (size_t)n * sizeof *to);
    for (int32_t i = n; i < n_row; i++) to[i] = filler;
    if (here) *here = to;
    return there;
}

static const int64_t *stage_offsets(gy_loop *l, const int64_t *src, int32_t n, int32_t n_row, const int64_t **here) {
    const void *there;
    int64_t *to = stage_room(l, (size_t)n_row, sizeof *to, &there);
    memcpy(to, src, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)(n_row - n) * sizeof *to);
    *here = to;
    return there;
}

static void stage_patch(gy_loop *l, const gy_map_copy *map, gy_patch_args *out) {
    size_t n = (size_t)map->n;
    const void *idx, *v;
    memcpy(stage_room(l, n, sizeof *map->idx, &idx), map->idx, n * sizeof *map->idx);
    memcpy(stage_room(l, n, sizeof *map->v, &v), map->v, n * sizeof *map->v);
    *out = (gy_patch_args){.idx = idx, .v = v, .n = map->n, .y = map->dev};
}

/* With how many rows n of at most `most` run. */
static int32_t filled_up(const gy_loop *l, int32_t n, int32_t most) {
    if (!l->record) return n;
    int32_t rows = l->m->be->ops->record_rows(l->m->be, n);
    return rows < most ? rows : most > n ? most : n;
}

/* What goes over besides the rows' places. */
typedef struct run_special {
    const int32_t *ids; /* of a prelude; logit rows of a coda */
    int32_t n;
    int32_t n_filled; /* with 0s up to here */
} run_special;

/* The rows of a batch, its special numbers, and what the map rows that they will read in the group of map have that
 * the backend has not: one copy. */
static void begin_rows(gy_loop *l, const gy_loop_batch *b, const gy_kv_view *kv, gy_map_copy *map, run_special more) {
    GY_CHECK(b->n_row <= l->c.max_row);
    gy_backend *be = l->m->be;
    int32_t n = b->n_row, rows = filled_up(l, n, l->c.max_row);
    gy_rows host = {.n_row = rows};
    gy_patch_args patch = {0};
    l->n_stage = 0;
    l->rows = (gy_rows){.n_row = rows};
    if (b->map_off) l->rows.map_off = stage_offsets(l, b->map_off, n, rows, &host.map_off);
    l->state = stage_numbers(l, b->state, n, rows, -1, NULL);
    l->rows.pos = stage_numbers(l, b->pos, n, rows, -1, &host.pos);
    if (b->slot) l->rows.slot = stage_numbers(l, b->slot, n, rows, -1, NULL);
    if (more.n_filled) l->special = stage_numbers(l, more.ids, more.n, more.n_filled, 0, NULL);
    if (kv->base && gy_map_copy_update(map, n, b->pos, b->map_off)) stage_patch(l, map, &patch);
    if (!l->host) be->ops->upload(be, l->batch, l->stage, l->n_stage);
    if (patch.n) be->ops->patch(be, &patch);
    if (kv->base && be->ops->begin_rows) be->ops->begin_rows(be, &host);
}

/* A run's calls, or the recording of them. calls changes nothing of the loop. */
static void run(gy_loop *l, gy_stage stage, gy_record_key key, void (*calls)(gy_loop *l, const gy_record_key *key)) {
    const gy_ops *ops = l->m->be->ops;
    key.n_row = l->rows.n_row;
    key.has |= l->d->n_layer[stage] ? GY_RECORD_ATTN : 0;
    key.has |= (l->rows.slot ? HAS_SLOT : 0) | (l->rows.map_off ? HAS_MAP : 0);
    if (l->record && ops->record_begin(l->m->be, l->record, &key)) return;
    calls(l, &key);
    if (l->record) ops->record_end(l->m->be, l->record);
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

static void stage_forward(gy_loop *l, gy_stage stage) {
    const gy_model *m = l->m;
    const gy_kv_view *kv = stage == GY_CORE ? &l->c.core : &l->c.boundary;
    int32_t first = first_layer(l->d, stage), n = m->d.n_layer[stage];
    const gy_layer *w = m->layer[stage];
    if (n) norm(l, l->x, w[0].norm[0], l->rows.n_row, l->a);
    for (int32_t il = 0; il < n; il++) layer_forward(l, &w[il], il + 1 < n ? w[il + 1].norm[0] : NULL, kv, first + il);
}

static void prelude_calls(gy_loop *l, const gy_record_key *key) {
    gy_model *m = l->m;
    m->be->ops->embed(m->be, &(gy_embed_args){.table = &m->embed,
                                              .ids = l->special,
                                              .drawn = l->drawn,
                                              .scale = m->d.embed_scale,
                                              .n_row = key->n_row,
                                              .y = l->x});
    stage_forward(l, GY_PRELUDE);
    move_rows(l, 1, l->x, l->state, key->n_row, m->d.inject ? l->state_e : l->state_h);
}

void gy_loop_prelude(gy_loop *l, const gy_loop_batch *b, const gy_loop_entry *in) {
    gy_model *m = l->m;
    gy_backend *be = m->be;
    if (!b->n_row) return;
    begin_rows(l, b, &l->c.boundary, &l->bound_map,
               (run_special){in->ids, b->n_row, filled_up(l, b->n_row, l->c.max_row)});
    if (m->d.n_layer[GY_PRELUDE]) fill_rope(l);
    run(l, GY_PRELUDE, (gy_record_key){.what = RUN_PRELUDE}, prelude_calls);
    if (!m->d.inject) return;
    be->ops->latent_init(be, &(gy_latent_init_args){.seed = in->seed,
                                                    .pos = b->pos,
                                                    .zero = in->zero,
                                                    .std = m->d.state_std,
                                                    .mult = m->d.state_mult,
                                                    .n_row = b->n_row,
                                                    .n = m->d.n_embd,
                                                    .y = l->x});
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

static void show_gate(gy_loop *l) {
    gy_model *m = l->m;
    m->be->ops->gate(
        m->be, &(gy_gate_args){
                   .x = l->x, .w = m->gate_w, .b = m->gate_b, .n_row = l->rows.n_row, .n = m->d.n_embd, .y = l->gate});
}

static void show_latent(gy_loop *l) {
    gy_model *m = l->m;
    m->be->ops->latent_diff(
        m->be,
        &(gy_latent_diff_args){.x = l->x, .x_prev = l->prev, .n_row = l->rows.n_row, .n = m->d.n_embd, .y = l->latent});
}

static void pass_calls(gy_loop *l, const gy_record_key *key) {
    const gy_model *m = l->m;
    int32_t n = key->n_row;
    move_rows(l, 0, l->state_h, l->state, n, l->x);
    if (key->has & HAS_LATENT) move_rows(l, 0, l->state_h, l->state, n, l->prev);
    if (m->d.inject) inject(l);
    stage_forward(l, GY_CORE);
    if (m->d.loop_norm) norm(l, l->x, m->final_norm, n, l->x);
    move_rows(l, 1, l->x, l->state, n, l->state_h);
    if (key->has & HAS_GATE) show_gate(l);
    if (key->has & HAS_LATENT) show_latent(l);
}

void gy_loop_pass(gy_loop *l, const gy_loop_batch *b, int shows_gate, int shows_latent) {
    uint32_t has = (shows_gate && l->d->has_gate ? HAS_GATE : 0) | (shows_latent ? HAS_LATENT : 0);
    if (!b->n_row) return;
    begin_rows(l, b, &l->c.core, &l->core_map, (run_special){0});
    fill_rope(l);
    run(l, GY_CORE, (gy_record_key){.what = RUN_PASS, .has = has}, pass_calls);
}

void gy_loop_shown(gy_loop *l, int32_t n_row, float *gate_out, double *latent_out) {
    gy_backend *be = l->m->be;
    size_t n = (size_t)n_row;
    if (n && gate_out && l->d->has_gate) be->ops->download(be, gate_out, l->gate, n * sizeof(float));
    if (n && latent_out) be->ops->download(be, latent_out, l->latent, n * sizeof(double));
}

static void coda_calls(gy_loop *l, const gy_record_key *key) {
    gy_model *m = l->m;
    int32_t n = key->n_row, n_logit = key->n_other;
    move_rows(l, 0, l->state_h, l->state, n, l->x);
    if (m->d.coda_norm) norm(l, l->x, m->final_norm, n, l->x);
    stage_forward(l, GY_CODA);
    if (!n_logit) return;
    move_rows(l, 0, l->x, l->special, n_logit, l->a);
    if (m->d.head_norm) norm(l, l->a, m->final_norm, n_logit, l->a);
    m->be->ops->linear(m->be,
                       &(gy_linear_args){.x = l->a, .w = &m->head, .n_row = n_logit, .y_f32 = 1, .y = l->logits});
}

void gy_loop_read_out(gy_loop *l, const gy_loop_batch *b, const int32_t *logit_row, int32_t n_logit) {
    int has_layers = l->d->n_layer[GY_CODA] > 0;
    GY_CHECK(n_logit <= l->c.max_logit && n_logit <= b->n_row);
    if (!b->n_row || (!n_logit && !has_layers)) return;
    int32_t most = l->c.max_logit < l->c.max_row ? l->c.max_logit : l->c.max_row;
    int32_t filled = n_logit ? filled_up(l, n_logit, most) : 0;
    begin_rows(l, b, &l->c.boundary, &l->bound_map, (run_special){logit_row, n_logit, filled});
    if (has_layers) fill_rope(l);
    run(l, GY_CODA, (gy_record_key){.what = RUN_CODA, .n_other = filled}, coda_calls);
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

static void draw(gy_loop *l, int32_t first, int32_t n, size_t bytes) {
    gy_backend *be = l->m->be;
    GY_CHECK(first >= 0 && n >= 0 && first <= l->c.max_logit - n && bytes <= l->draw_bytes);
    be->ops->upload(be, l->draw, l->host_draw, bytes);
    be->ops->sample(be, &(gy_sample_args){.logits = l->logits + (size_t)first * (size_t)l->d->n_vocab,
                                          .n_row = n,
                                          .n_vocab = l->d->n_vocab,
                                          .rows = (const gy_draw_row *)l->draw,
                                          .out = l->drawn});
}

const gy_drawn *gy_loop_draw(gy_loop *l, int32_t first, int32_t n, size_t bytes) {
    gy_backend *be = l->m->be;
    draw(l, first, n, bytes);
    be->ops->download(be, l->host_out, l->drawn, (size_t)n * sizeof *l->drawn);
    return l->host_out;
}

/* ---- not waiting ------------------------------------------------------------------------------------------------- */

int gy_loop_may_run_ahead(const gy_loop *l) {
    return l->host_draw && l->m->be->ops->fetch;
}

int gy_loop_draw_later(gy_loop *l, int32_t n, size_t bytes) {
    gy_backend *be = l->m->be;
    draw(l, 0, n, bytes);
    l->late = be->ops->fetch(be, l->drawn, (size_t)n * sizeof *l->drawn);
    return l->late != NULL;
}

void gy_loop_mark(gy_loop *l) {
    l->m->be->ops->mark(l->m->be);
}

gy_status gy_loop_reached(gy_loop *l, gy_err *err, const gy_drawn **out) {
    *out = l->late;
    return l->m->be->ops->reached(l->m->be, err);
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
