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
 * Walking, some calls that follow one another become one launch (enum fuse), with the same bits: the calls stay the
 * definition, and what such a launch declines is done one by one. What it does not write (a sum, a norm, rotated
 * queries) must not be read by anybody: is_read_later looks.
 *
 * Left to the operations: more than max_rows rows, prompts, F32.
 */
#include "ops/cuda/narrow.cuh"
#include "ops/cuda/record.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_ROWS_TRIED = 256, RECORDINGS = 64, MAX_HEADS_KV = 64 };

/* What is done in one launch instead of several. Until they have been timed: by GY_FUSE, a sum of these, read when
 * recordings are opened. */
enum fuse {
    FUSE_SILU = 1,    /* silu_mul in the product of gate and up */
    FUSE_ROPE = 2,    /* rope and the KV write in attention */
    FUSE_JOIN = 4,    /* the join in attention */
    FUSE_AHEAD = 8,   /* with FUSE_ROPE: K and V are on their way before the product in front has ended */
    LET_NEXT = 16,    /* the kernel behind one of our products begins before that ends */
    MANY_ROWS = 32,   /* up to MAX_ROWS_TRIED rows are recorded */
    FUSE_NORM = 64,   /* residual and norm in the product behind them */
    NO_RECORDS = 4096 /* nothing is recorded */
};
enum { FUSED_ALWAYS = 0 };

typedef struct record_at { /* compared as bytes: cleared first */
    gy_record_key of;
    attn_recorded attn;
} record_at;

typedef struct recording {
    record_at key;
    uint64_t used;         /* when; 0: empty */
    cudaGraphExec_t graph; /* NULL: seen once */
} recording;

/* Where the residuals' sum is that the calls find at home, and the memory that a launch which may not overwrite it puts
 * the new one into. */
typedef struct residual_place {
    const void *home;
    void *now, *other;
    size_t bytes;
} residual_place;

struct cuda_record { /* lifetime of the caller's memory */
    const char *scratch;
    size_t bytes;
    int32_t fuse, max_rows;
    char *mem;         /* device */
    void *h;           /* [NORM_ROWS][NORM_ELEMENTS] the other place of a residuals' sum */
    uint32_t *arrived; /* [max_rows][MAX_HEADS_KV], 0 between launches */
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
    const void **read[MAX_READ], **written[MAX_WRITTEN];
} touched;
#define AT(p) ((const void **)&(p))

static touched touched_by(record_call *k) {
    switch (k->kind) {
    case CALL_EMBED:
        return {{}, {AT(k->a.embed.y)}};
    case CALL_NORM:
        return {{AT(k->a.norm.x)}, {AT(k->a.norm.y)}};
    case CALL_LINEAR:
        return {{AT(k->a.linear.x)}, {AT(k->a.linear.y)}};
    case CALL_ROPE_KV:
        return {{AT(k->a.rope_kv.qkv)}, {AT(k->a.rope_kv.qkv)}};
    case CALL_ATTN:
        return {{AT(k->a.attn.q)}, {AT(k->a.attn.y)}};
    case CALL_RESIDUAL:
        return {{AT(k->a.residual.h), AT(k->a.residual.b)}, {AT(k->a.residual.h)}};
    case CALL_RESIDUAL_NORM:
        return {{AT(k->a.residual_norm.r.h), AT(k->a.residual_norm.r.b)},
                {AT(k->a.residual_norm.r.h), AT(k->a.residual_norm.y)}};
    case CALL_SILU_MUL:
        return {{AT(k->a.silu_mul.gu)}, {AT(k->a.silu_mul.y)}};
    case CALL_CONCAT:
        return {{AT(k->a.concat.a), AT(k->a.concat.b)}, {AT(k->a.concat.y)}};
    case CALL_GATHER:
        return {{AT(k->a.move.x)}, {AT(k->a.move.y)}};
    case CALL_SCATTER:
        return {{AT(k->a.move.x), AT(k->a.move.y)}, {}};
    case CALL_GATE:
        return {{AT(k->a.gate.x)}, {AT(k->a.gate.y)}};
    case CALL_LATENT_DIFF:
        return {{AT(k->a.latent_diff.x), AT(k->a.latent_diff.x_prev)}, {AT(k->a.latent_diff.y)}};
    }
    return {};
}

static int is_scratch(const cuda_record *r, const void *p) {
    return (const char *)p >= r->scratch && (const char *)p < r->scratch + r->bytes;
}

/* Whether what lies at p behind call i - 1 is read by i, by one behind it, or after all. */
static int is_read_later(cuda_record *r, int32_t i, const void *p) {
    for (; i < r->n_call; i++) {
        touched t = touched_by(&r->call[i]);
        for (int k = 0; k < MAX_READ; k++)
            if (t.read[k] && *t.read[k] == p) return 1;
        for (int k = 0; k < MAX_WRITTEN; k++)
            if (t.written[k] && *t.written[k] == p) return 0;
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

static record_call *call_at(cuda_record *r, int32_t i, call_kind kind) {
    return i < r->n_call && r->call[i].kind == kind ? &r->call[i] : NULL;
}

static int touches(record_call *k, const void *p) {
    touched t = touched_by(k);
    for (int i = 0; i < MAX_READ; i++)
        if (t.read[i] && *t.read[i] == p) return 1;
    for (int i = 0; i < MAX_WRITTEN; i++)
        if (t.written[i] && *t.written[i] == p) return 1;
    return 0;
}

/* A call that may join the one before it: it has nothing to do with the residuals' sum. */
static record_call *joining(cuda_record *r, int32_t i, call_kind kind, const void *home) {
    record_call *k = call_at(r, i, kind);
    return k && !(home && touches(k, home)) ? k : NULL;
}

/* rope_kv, attn. Returns how many calls were carried out; so do those below. */
static int32_t attend(gy_backend *be, cuda_record *r, int32_t i, const void *home) {
    record_call *rope = call_at(r, i, CALL_ROPE_KV);
    record_call *attn = rope ? joining(r, i + 1, CALL_ATTN, home) : call_at(r, i, CALL_ATTN);
    if (!attn || (rope && (rope->a.rope_kv.qkv != attn->a.attn.q || rope->a.rope_kv.il != attn->a.attn.il))) return 0;
    const gy_attn_args *a = &attn->a.attn;
    int takes_rope = rope && r->fuse & FUSE_ROPE && !is_read_later(r, i + 2, a->q);
    if (rope && !takes_rope) cuda_rope_kv(be, &rope->a.rope_kv);
    cuda_attn_recorded(be, a, takes_rope ? &rope->a.rope_kv : NULL, (r->fuse & FUSE_AHEAD) != 0,
                       r->fuse & FUSE_JOIN && a->kv->n_head_kv <= MAX_HEADS_KV ? r->arrived : NULL);
    return rope ? 2 : 1;
}

/* linear, silu_mul: whether call i is the silu_mul of what the linear before it left, which nobody else reads. */
static const gy_silu_mul_args *silu_behind(cuda_record *r, int32_t i, const gy_linear_args *a, const void *home) {
    record_call *k = joining(r, i, CALL_SILU_MUL, home);
    if (!(r->fuse & FUSE_SILU) || !k || a->y_f32 || k->a.silu_mul.gu != a->y) return NULL;
    if (k->a.silu_mul.n_row != a->n_row || 2 * k->a.silu_mul.n_ff != a->w->n) return NULL;
    return is_read_later(r, i + 1, a->y) ? NULL : &k->a.silu_mul;
}

static int32_t multiply(gy_backend *be, cuda_record *r, int32_t i, const void *home) {
    record_call *k = call_at(r, i, CALL_LINEAR);
    if (!k) return 0;
    const gy_silu_mul_args *silu = silu_behind(r, i + 1, &k->a.linear, home);
    return silu && cuda_linear_silu(be, k->a.linear.x, k->a.linear.w, silu->n_row, silu->y) ? 2 : 0;
}

/* residual_norm, linear, and silu_mul where that is. */
static int32_t multiply_residual(gy_backend *be, cuda_record *r, int32_t i, residual_place *at) {
    record_call *first = call_at(r, i, CALL_RESIDUAL_NORM);
    if (!(r->fuse & FUSE_NORM) || !first) return 0;
    const gy_residual_norm_args *n = &first->a.residual_norm;
    const void *home = at->home ? at->home : n->r.h;
    record_call *second = joining(r, i + 1, CALL_LINEAR, home);
    if (!second) return 0;
    const gy_linear_args *l = &second->a.linear;
    size_t bytes = (size_t)n->r.n_row * (size_t)n->r.n * sizeof(bf16);
    if (n->y != l->x || l->y_f32 || n->r.n_row != l->n_row || n->r.n_row > NORM_ROWS || n->r.n > NORM_ELEMENTS ||
        is_read_later(r, i + 2, n->y))
        return 0;
    if (!at->home) *at = {n->r.h, n->r.h, r->h, bytes};
    if (n->r.h != at->now || bytes != at->bytes) return 0;
    const gy_silu_mul_args *silu = silu_behind(r, i + 2, l, home);
    if (!cuda_linear_norm(be, n, at->other, l->w, silu != NULL, silu ? silu->y : l->y)) return 0;
    *at = {at->home, at->other, at->now, bytes};
    return silu ? 3 : 2;
}

/* What the call says of the residuals' home it means of the place where they are. */
static void follow(const residual_place *at, record_call *k) {
    touched t = touched_by(k);
    if (!at->home || at->now == at->home) return;
    for (int i = 0; i < MAX_READ; i++)
        if (t.read[i] && *t.read[i] == at->home) *t.read[i] = at->now;
    for (int i = 0; i < MAX_WRITTEN; i++)
        if (t.written[i] && *t.written[i] == at->home) *t.written[i] = at->now;
}

/* The list is used up by it. */
static void walk(cuda_be *c, cuda_record *r) {
    gy_backend *be = &c->head.be;
    residual_place at = {};
    for (int32_t i = 0; i < r->n_call; i++) point_at_copies(&r->call[i]);
    for (int32_t i = 0, n; i < r->n_call; i += n) {
        follow(&at, &r->call[i]);
        n = attend(be, r, i, at.home);
        if (!n) n = multiply_residual(be, r, i, &at);
        if (!n) n = multiply(be, r, i, at.home);
        if (n) continue;
        carry_out(be, &r->call[i]);
        n = 1;
    }
    if (!at.home || at.now == at.home || is_scratch(r, at.home)) return;
    cuda_ok(c, cudaMemcpyAsync((void *)at.home, at.now, at.bytes, cudaMemcpyDeviceToDevice, c->stream), "recording");
}

/* ---- recordings -------------------------------------------------------------------------------------------------- */

/* The key's place; a new one takes the least recently used. */
static recording *find(cuda_be *c, cuda_record *r, const record_at *key, int *is_new) {
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
    if (oldest->graph) {
        cuda_ok(c, cudaStreamSynchronize(c->stream), "recording"); /* it may still run */
        cudaGraphExecDestroy(oldest->graph);
        oldest->graph = NULL;
    }
    oldest->key = *key;
    oldest->used = r->clock;
    *is_new = 1;
    return oldest;
}

/* With GY_FUSE_SAY: whether what was to be fused was. Goes with GY_FUSE. */
static void say_nodes(cudaGraph_t graph, const cuda_record *r) {
    size_t n = 0;
    if (!getenv("GY_FUSE_SAY") || cudaGraphGetNodes(graph, NULL, &n) != cudaSuccess) return;
    fprintf(stderr, "GY_FUSE %d, what %d, %d rows: %zu launches of %d calls\n", r->fuse, r->to->key.of.what,
            r->to->key.of.n_row, n, r->n_call);
}

/* Only this thread's calls are held to the rules of recording: others may load or free meanwhile. Nothing has run when
 * it fails, so what was kept as an error is forgotten. walk changes the list, so it walks a copy of it. */
static void record(cuda_be *c, cuda_record *r, recording *to) {
    cudaError_t before = c->first;
    cudaGraph_t graph = NULL;
    if (cuda_ok(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording")) {
        cuda_attn_record(c, 1);
        cuda_lt_let_next(c, (r->fuse & LET_NEXT) != 0);
        walk(c, r);
        cuda_lt_let_next(c, 0);
        cuda_attn_record(c, 0);
        if (cudaStreamEndCapture(c->stream, &graph) != cudaSuccess || c->first != before ||
            cudaGraphInstantiate(&to->graph, graph, 0) != cudaSuccess)
            to->graph = NULL;
    }
    if (graph) say_nodes(graph, r);
    if (graph) cudaGraphDestroy(graph);
    if (to->graph) return;
    r->is_off = 1;
    cudaGetLastError();
    c->first = before;
}

static void run_all(cuda_be *c, const record_call *call, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        record_call k = call[i];
        point_at_copies(&k);
        carry_out(&c->head.be, &k);
    }
}

static void stop_keeping(cuda_be *c) {
    cuda_record *r = c->recording;
    c->recording = NULL;
    r->to = NULL;
    r->is_off = 1;
    run_all(c, r->call, r->n_call);
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
    if (r->is_off || of->n_row <= 0 || of->n_row > r->max_rows || of->n_other > r->max_rows || !key_of(c, of, &key))
        return 0;
    recording *x = find(c, r, &key, &is_new);
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
    int32_t n = r->n_call;
    size_t bytes = (size_t)n * sizeof *r->call;
    record_call *kept = (record_call *)malloc(bytes ? bytes : 1);
    if (kept) memcpy(kept, r->call, bytes);
    if (kept) record(c, r, r->to);
    if (r->to->graph)
        cuda_ok(c, cudaGraphLaunch(r->to->graph, c->stream), "a recording");
    else
        run_all(c, kept ? kept : r->call, n);
    free(kept);
    r->to = NULL;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Exact up to 8: there a row more costs; then what our products round up to anyway (16, 32, 64) in quarters, because
 * attention's grids count rows too; above, cuBLASLt's tiles. */
int32_t cuda_record_rows(gy_backend *be, int32_t n_row) {
    int32_t step = n_row <= 8 ? 1 : n_row <= 32 ? 4 : n_row <= 64 ? 8 : 32;
    if (n_row > of_be(be)->most_recorded) return n_row;
    return (n_row + step - 1) / step * step;
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

static int take_memory(cuda_be *c, cuda_record *r) {
    size_t h = (size_t)NORM_ROWS * NORM_ELEMENTS * sizeof(bf16);
    size_t arrived = (size_t)r->max_rows * MAX_HEADS_KV * sizeof *r->arrived;
    if (cudaMalloc((void **)&r->mem, h + arrived) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    r->h = r->mem;
    r->arrived = (uint32_t *)(r->mem + h);
    return cuda_ok(c, cudaMemsetAsync(r->arrived, 0, arrived, c->stream), "opening recordings");
}

static int32_t fuse_wanted(void) {
    const char *text = getenv("GY_FUSE");
    return text ? atoi(text) : FUSED_ALWAYS;
}

void cuda_record_close(gy_backend *be, void *record) {
    cuda_record *r = (cuda_record *)record;
    if (!r) return;
    cuda_enter(of_be(be));
    cuda_ok(of_be(be), cudaStreamSynchronize(of_be(be)->stream), "closing recordings");
    for (int i = 0; i < RECORDINGS; i++)
        if (r->all[i].graph) cudaGraphExecDestroy(r->all[i].graph);
    cudaFree(r->mem);
    free(r->call);
    free(r);
}

void *cuda_record_open(gy_backend *be, void *scratch, size_t bytes) {
    cuda_enter(of_be(be));
    int32_t fuse = fuse_wanted();
    if (be->act != GY_BF16 || fuse & NO_RECORDS) return NULL;
    cuda_record *r = (cuda_record *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->scratch = (const char *)scratch;
    r->bytes = bytes;
    r->fuse = fuse;
    r->max_rows = of_be(be)->most_recorded = fuse & MANY_ROWS ? MAX_ROWS_TRIED : MAX_ROWS;
    if (take_memory(of_be(be), r)) return r;
    cuda_record_close(be, r);
    return NULL;
}
