/* Recordings: the calls between record_begin and record_end as one CUDA graph.
 *
 * A launch costs the host 4.4 us on the machine where this was measured and a layer has ten of them, while a layer of
 * one row takes the GPU about as long: the GPU waited for the host. A recording holds the launches of a whole run, with
 * their early starts, and is started by one call. Its kernels are those of the operations with the same arguments, so
 * bits are theirs.
 *
 * A key (the caller's, and what attention's grids are rounded to) that comes for the second time is recorded; the least
 * recently used one gives way. So a batch that keeps its size records once while its contexts grow by some hundred
 * tokens, and one that changes all the time is left to the operations. record_rows makes few sizes of many.
 *
 * While a key is recorded its calls are kept in a list (record_call); record_end walks the list under stream capture.
 * A recording that cannot be made (no memory) is no error: the list is walked without, and nothing is recorded from
 * then on.
 *
 * Walking, calls that follow one another may become one launch with the same bits (fused): the calls stay the
 * definition, and what such a launch declines is done one by one. What it does not write must not be read by anybody:
 * is_read_later looks.
 *
 * Left to the operations: more than MAX_ROWS rows, prompts, F32.
 */
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/record.cuh"
#include "ops/cuda/stage.cuh"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 256, RECORDINGS = 64 };

typedef struct record_at { /* compared as bytes: cleared first */
    gy_record_key of;
    attn_recorded attn;
} record_at;

typedef struct recording {
    record_at key;
    uint64_t used;         /* when; 0: empty */
    cudaGraphExec_t graph; /* NULL: seen once */
} recording;

struct cuda_record { /* lifetime of the caller's memory */
    const char *scratch;
    size_t bytes;
    record_call *call; /* [cap] kept, in order */
    int32_t n_call, cap;
    recording *to; /* what the calls between begin and end are kept for; NULL: they are carried out */
    uint64_t clock;
    int is_off; /* a recording failed */
    recording all[RECORDINGS];
};

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Without memory for the list the calls of this time are carried out as they come. */
static void stop_keeping(cuda_be *c);

record_call *cuda_record_call(cuda_be *c, call_kind kind) {
    cuda_record *r = c->recording;
    if (!r) return NULL;
    if (r->n_call == r->cap) {
        int32_t cap = r->cap ? 2 * r->cap : 256;
        record_call *more = (record_call *)realloc(r->call, (size_t)cap * sizeof *more);
        if (!more) {
            stop_keeping(c);
            return NULL;
        }
        r->call = more;
        r->cap = cap;
    }
    record_call *call = &r->call[r->n_call++];
    memset(call, 0, sizeof *call);
    call->kind = kind;
    return call;
}

void cuda_record_copies(record_call *call, const gy_weight *w, const gy_kv_view *kv) {
    if (w) call->w = *w;
    if (kv) call->kv = *kv;
}

/* The list may have moved since. */
static void point_at_copies(record_call *k) {
    if (k->kind == CALL_EMBED) k->a.embed.table = &k->w;
    if (k->kind == CALL_LINEAR) k->a.linear.w = &k->w;
    if (k->kind == CALL_ROPE_KV) k->a.rope_kv.kv = &k->kv;
    if (k->kind == CALL_ATTN) k->a.attn.kv = &k->kv;
}

/* What a call reads and writes of activations: up to three pointers it reads, two that it writes whole. What it writes
 * in part (a scatter) counts as read. */
enum { MAX_READ = 3, MAX_WRITTEN = 2 };
typedef struct touched {
    const void *read[MAX_READ], *written[MAX_WRITTEN];
} touched;

static touched touched_by(const record_call *k) {
    switch (k->kind) {
    case CALL_EMBED:
        return {{}, {k->a.embed.y}};
    case CALL_NORM:
        return {{k->a.norm.x}, {k->a.norm.y}};
    case CALL_LINEAR:
        return {{k->a.linear.x}, {k->a.linear.y}};
    case CALL_ROPE_KV:
        return {{k->a.rope_kv.qkv}, {k->a.rope_kv.qkv}};
    case CALL_ATTN:
        return {{k->a.attn.q}, {k->a.attn.y}};
    case CALL_RESIDUAL:
        return {{k->a.residual.h, k->a.residual.b}, {k->a.residual.h}};
    case CALL_RESIDUAL_NORM:
        return {{k->a.residual_norm.r.h, k->a.residual_norm.r.b}, {k->a.residual_norm.r.h, k->a.residual_norm.y}};
    case CALL_SILU_MUL:
        return {{k->a.silu_mul.gu}, {k->a.silu_mul.y}};
    case CALL_CONCAT:
        return {{k->a.concat.a, k->a.concat.b}, {k->a.concat.y}};
    case CALL_GATHER:
        return {{k->a.move.x}, {k->a.move.y}};
    case CALL_SCATTER:
        return {{k->a.move.x, k->a.move.y}, {}};
    case CALL_GATE:
        return {{k->a.gate.x}, {k->a.gate.y}};
    case CALL_LATENT_DIFF:
        return {{k->a.latent_diff.x, k->a.latent_diff.x_prev}, {k->a.latent_diff.y}};
    }
    return {};
}

static int is_scratch(const cuda_record *r, const void *p) {
    return (const char *)p >= r->scratch && (const char *)p < r->scratch + r->bytes;
}

/* Whether what lies at p behind call i - 1 is read by i, by one behind it, or after all. */
static int is_read_later(const cuda_record *r, int32_t i, const void *p) {
    for (; i < r->n_call; i++) {
        touched t = touched_by(&r->call[i]);
        for (int k = 0; k < MAX_READ; k++)
            if (t.read[k] == p) return 1;
        for (int k = 0; k < MAX_WRITTEN; k++)
            if (t.written[k] == p) return 0;
    }
    return !is_scratch(r, p);
}

/* ---- one by one, and several as one ------------------------------------------------------------------------------ */

static void carry_out(gy_backend *be, const record_call *k) {
    switch (k->kind) {
    case CALL_EMBED:
        cuda_embed(be, &k->a.embed);
        break;
    case CALL_NORM:
        cuda_norm(be, &k->a.norm);
        break;
    case CALL_LINEAR:
        cuda_linear(be, &k->a.linear);
        break;
    case CALL_ROPE_KV:
        cuda_rope_kv(be, &k->a.rope_kv);
        break;
    case CALL_ATTN:
        cuda_attn_run(be, &k->a.attn);
        break;
    case CALL_RESIDUAL:
        cuda_residual(be, &k->a.residual);
        break;
    case CALL_RESIDUAL_NORM:
        cuda_residual_norm(be, &k->a.residual_norm);
        break;
    case CALL_SILU_MUL:
        cuda_silu_mul(be, &k->a.silu_mul);
        break;
    case CALL_CONCAT:
        cuda_concat(be, &k->a.concat);
        break;
    case CALL_GATHER:
        cuda_gather(be, &k->a.move);
        break;
    case CALL_SCATTER:
        cuda_scatter(be, &k->a.move);
        break;
    case CALL_GATE:
        cuda_gate(be, &k->a.gate);
        break;
    case CALL_LATENT_DIFF:
        cuda_latent_diff(be, &k->a.latent_diff);
        break;
    }
}

static const record_call *call_at(const cuda_record *r, int32_t i, call_kind kind) {
    return i < r->n_call && r->call[i].kind == kind ? &r->call[i] : NULL;
}

/* linear, silu_mul of what it left, which nobody else reads. */
static int32_t multiply_silu(gy_backend *be, const cuda_record *r, int32_t i) {
    const record_call *first = call_at(r, i, CALL_LINEAR), *second = call_at(r, i + 1, CALL_SILU_MUL);
    if (!first || !second) return 0;
    const gy_linear_args *a = &first->a.linear;
    const gy_silu_mul_args *silu = &second->a.silu_mul;
    if (a->y_f32 || silu->gu != a->y || silu->n_row != a->n_row || 2 * silu->n_ff != a->w->n) return 0;
    return !is_read_later(r, i + 2, a->y) && cuda_linear_silu(be, a->x, a->w, a->n_row, silu->y) ? 2 : 0;
}

/* The layer whose calls begin at i, of an input a and a residual stream h; 0: there is none. */
static int layer_at(const cuda_record *r, int32_t i, const void *a, const void *h, stage_calls *out) {
    static const call_kind order[] = {CALL_LINEAR,        CALL_ROPE_KV, CALL_ATTN,     CALL_LINEAR,
                                      CALL_RESIDUAL_NORM, CALL_LINEAR,  CALL_SILU_MUL, CALL_LINEAR};
    for (int k = 0; k < 8; k++)
        if (!call_at(r, i + k, order[k])) return 0;
    const record_call *c = r->call + i, *end = call_at(r, i + 8, CALL_RESIDUAL_NORM);
    *out = {{&c[0].a.linear, &c[3].a.linear, &c[5].a.linear, &c[7].a.linear},
            &c[1].a.rope_kv,
            &c[2].a.attn,
            &c[6].a.silu_mul,
            &c[4].a.residual_norm,
            end ? &end->a.residual_norm : NULL};
    for (int k = 0; k < STAGE_PRODUCTS; k++)
        if (out->w[k]->y_f32 || out->w[k]->n_row != 1) return 0;
    const gy_residual_norm_args *m = out->middle;
    return out->w[0]->x == a && out->rope->qkv == out->w[0]->y && out->attn->q == out->rope->qkv &&
           out->w[1]->x == out->attn->y && m->r.b == out->w[1]->y && m->r.h == h && out->w[2]->x == m->y &&
           out->silu->gu == out->w[2]->y && out->w[3]->x == out->silu->y &&
           (!end || (end->a.residual_norm.r.b == out->w[3]->y && end->a.residual_norm.r.h == h));
}

/* Nobody reads from call i on what the layers leave beside h and KV. */
static int leaves_nothing(const cuda_record *r, int32_t i, const void *a, const stage_calls *l) {
    const void *left[] = {a, l->w[0]->y, l->attn->y, l->w[1]->y, l->middle->y, l->w[2]->y, l->silu->y, l->w[3]->y};
    for (const void *p : left)
        if (is_read_later(r, i, p)) return 0;
    return 1;
}

/* All layers of a row from the norm in front of them to the residual behind. */
static int32_t stay(cuda_be *c, const cuda_record *r, int32_t i) {
    const record_call *first = call_at(r, i, CALL_NORM), *last = NULL;
    if (!c->stage || !first || first->a.norm.n_row != 1 || r->to->key.of.n_row != 1) return 0;
    stage_run run = {&first->a.norm, NULL, 0, (int32_t)r->to->key.attn.n_chunk, {}};
    const void *a = first->a.norm.y, *h = first->a.norm.x;
    int32_t at = i + 1;
    for (; !last; at += 9) {
        stage_calls *l = &run.layer[run.n_layer];
        if (run.n_layer == STAGE_LAYERS || !layer_at(r, at, a, h, l)) return 0;
        run.n_layer++;
        if (l->end)
            a = l->end->y;
        else if (!(last = call_at(r, at + 8, CALL_RESIDUAL)) || last->a.residual.h != h ||
                 last->a.residual.b != l->w[3]->y)
            return 0;
    }
    run.last = &last->a.residual;
    for (int32_t k = 0; k < run.n_layer; k++)
        if (!leaves_nothing(r, at, k ? run.layer[k - 1].end->y : first->a.norm.y, &run.layer[k])) return 0;
    return cuda_stage_run(c, c->stage, &run) ? at - i : 0;
}

/* How many calls from i on one launch has done; 0: none, they are to be carried out. */
static int32_t fused(cuda_be *c, const cuda_record *r, int32_t i) {
    int32_t n = stay(c, r, i);
    return n || c->without & GY_CUDA_FUSED ? n : multiply_silu(&c->head.be, r, i);
}

/* What follows a stage is not launched early: whether a graph may do that behind a cooperative kernel is not known. */
static void carry_out_behind(cuda_be *c, const record_call *k) {
    int overlaps = c->overlaps;
    c->overlaps = 0;
    carry_out(&c->head.be, k);
    c->overlaps = overlaps;
}

static void walk(cuda_be *c, const cuda_record *r) {
    int32_t behind = -1; /* a stage */
    for (int32_t i = 0; i < r->n_call;) {
        int32_t n = fused(c, r, i);
        if (!n && behind == i)
            carry_out_behind(c, &r->call[i]);
        else if (!n)
            carry_out(&c->head.be, &r->call[i]);
        i += n ? n : 1;
        if (n > 2) behind = i;
    }
}

/* ---- recordings -------------------------------------------------------------------------------------------------- */

/* The key's place; a new one takes the least recently used. */
static recording *find(cuda_record *r, const record_at *key, int *is_new) {
    recording *oldest = r->all;
    r->clock++;
    *is_new = 0;
    for (int i = 0; i < RECORDINGS; i++) {
        recording *x = r->all + i;
        if (x->used && !memcmp(&x->key, key, sizeof *key)) {
            x->used = r->clock;
            return x;
        }
        if (x->used < oldest->used) oldest = x;
    }
    if (oldest->graph) cudaGraphExecDestroy(oldest->graph); /* where it still runs, freed when it ends */
    oldest->graph = NULL;
    oldest->key = *key;
    oldest->used = r->clock;
    *is_new = 1;
    return oldest;
}

/* Only this thread's calls are held to the rules of recording: others may load or free meanwhile. Nothing has run when
 * it fails, so what was kept as an error is forgotten. */
static void record(cuda_be *c, cuda_record *r, recording *to) {
    cudaError_t before = c->first;
    cudaGraph_t graph = NULL;
    if (cuda_ok(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording")) {
        cuda_attn_record(c, 1);
        cuda_lt_let_next(c, !(c->without & GY_CUDA_EARLY));
        walk(c, r);
        cuda_lt_let_next(c, 0);
        cuda_attn_record(c, 0);
        if (cudaStreamEndCapture(c->stream, &graph) != cudaSuccess || c->first != before ||
            cudaGraphInstantiate(&to->graph, graph, 0) != cudaSuccess)
            to->graph = NULL;
    }
    if (graph) cudaGraphDestroy(graph);
    if (to->graph) return;
    r->is_off = 1;
    cudaGetLastError();
    c->first = before;
}

static void carry_out_all(cuda_be *c, cuda_record *r) {
    for (int32_t i = 0; i < r->n_call; i++) {
        point_at_copies(&r->call[i]);
        carry_out(&c->head.be, &r->call[i]);
    }
}

static void stop_keeping(cuda_be *c) {
    cuda_record *r = c->recording;
    c->recording = NULL;
    r->to = NULL;
    r->is_off = 1;
    carry_out_all(c, r);
}

static int key_of(cuda_be *c, const gy_record_key *of, record_at *key) {
    memset(key, 0, sizeof *key);
    key->of = *of;
    return !(of->has & GY_RECORD_ATTN) || cuda_attn_plan_ahead(c, &key->attn);
}

int cuda_record_begin(gy_backend *be, void *record, const gy_record_key *of) {
    cuda_be *c = of_be(be);
    cuda_record *r = (cuda_record *)record;
    record_at key;
    int is_new;
    if (r->is_off || of->n_row <= 0 || of->n_row > MAX_ROWS || of->n_other > MAX_ROWS || !key_of(c, of, &key)) return 0;
    recording *x = find(r, &key, &is_new);
    if (x->graph) {
        cuda_ok(c, cudaGraphLaunch(x->graph, c->stream), "a recording");
        return 1;
    }
    if (is_new) return 0;
    r->to = x;
    r->n_call = 0;
    c->recording = r;
    return 0;
}

void cuda_record_end(gy_backend *be, void *record_) {
    cuda_be *c = of_be(be);
    cuda_record *r = (cuda_record *)record_;
    if (!c->recording) return;
    c->recording = NULL;
    for (int32_t i = 0; i < r->n_call; i++) point_at_copies(&r->call[i]);
    record(c, r, r->to);
    if (r->to->graph)
        cuda_ok(c, cudaGraphLaunch(r->to->graph, c->stream), "a recording");
    else
        carry_out_all(c, r);
    r->to = NULL;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Exact up to 8: there a row more costs; then what our products round up to anyway (16, 32, 64) in quarters, because
 * attention's grids count rows too; above, cuBLASLt's tiles. */
int32_t cuda_record_rows(gy_backend *be, int32_t n_row) {
    (void)be;
    int32_t step = n_row <= 8 ? 1 : n_row <= 32 ? 4 : n_row <= 64 ? 8 : 32;
    if (n_row > MAX_ROWS) return n_row;
    return (n_row + step - 1) / step * step;
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

void cuda_record_close(gy_backend *be, void *record) {
    cuda_record *r = (cuda_record *)record;
    if (!r) return;
    cuda_enter(of_be(be));
    cuda_ok(of_be(be), cudaStreamSynchronize(of_be(be)->stream), "closing recordings");
    for (int i = 0; i < RECORDINGS; i++)
        if (r->all[i].graph) cudaGraphExecDestroy(r->all[i].graph);
    free(r->call);
    free(r);
}

void *cuda_record_open(gy_backend *be, void *scratch, size_t bytes) {
    if (be->act != GY_BF16 || of_be(be)->without & GY_CUDA_RECORDS) return NULL;
    cuda_record *r = (cuda_record *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->scratch = (const char *)scratch;
    r->bytes = bytes;
    return r;
}
