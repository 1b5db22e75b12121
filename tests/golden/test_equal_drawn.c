/* Tokens drawn by a backend = tokens drawn by the host: the same requests, of all kinds, on the reference backend and
 * on one that calls its memory its own and has gy_ops.sample and patch, and on one that besides records what is called
 * between record_begin and record_end, fills batches up, and gives what is fetched only when it is reached. Its sample
 * is an obvious one (full sort, plain loops) over base/draw.h's words, so what the engine packs and takes back is
 * tested where there is no GPU; the GPU's own is compared with the host sampler in tests/ops/test_ops_sample.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/handoff.h"
#include "support/gold.h"

enum { MAX_V = 512, MAX_SLOT = 1 << 16 };

/* ---- a backend that draws ---------------------------------------------------------------------------------------- */

static struct {
    const gy_ops *real;
    int drawn, refused, refuse_all, masked, known, patched, fetched, replayed, lost_at;
    const gold_result *told; /* of the only request; downloads are compared with it */
    int downloaded, n_behind;
} seen;

static const float *key;
static int by_logit_then_id(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    if (key[i] != key[j]) return key[i] > key[j] ? -1 : 1;
    return i - j;
}

/* Ids by logit, masked ones last; -1: broken, or nothing is left. Returns how many are above -inf. */
static int order_of(const float *x, int n, int *order) {
    int open = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(x[i]) || x[i] == INFINITY) return -1;
        open += x[order[i] = i] != -INFINITY;
    }
    key = x;
    qsort(order, (size_t)n, sizeof *order, by_logit_then_id);
    return open ? open : -1;
}

static void change(float *x, int n, const gy_draw_row *r, const char *lists) {
    const uint32_t *mask = (const uint32_t *)(lists + r->mask);
    const int32_t *ban = (const int32_t *)(lists + r->ban);
    const gy_draw_pair *bias = (const gy_draw_pair *)(lists + r->bias),
                       *count = (const gy_draw_pair *)(lists + r->count);
    for (int i = 0; r->mask && i < n; i++)
        if (!(mask[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
    for (int k = 0; k < r->n_ban; k++)
        if (ban[k] >= 0 && ban[k] < n) x[ban[k]] = -INFINITY;
    for (int k = 0; k < r->n_bias; k++) x[bias[k].id] += bias[k].v.f;
    for (int k = 0; k < r->n_count; k++) {
        float *y = &x[count[k].id];
        *y = gy_penalized(*y, count[k].v.i, r->repetition, r->frequency, r->presence);
    }
}

static int draw(const float *x, int n, const gy_draw_row *r, const int *order, int n_open) {
    uint64_t mass[MAX_V] = {0}, total = 0, sum = 0;
    double unit = gy_mass_unit(n), per_t = 1.0 / (double)r->temperature;
    int kept = n_open;
    if (r->top_k > 0 && r->top_k < n_open)
        for (kept = r->top_k; kept < n_open && x[order[kept]] == x[order[r->top_k - 1]];) kept++;
    for (int i = 0; i < kept; i++)
        total += mass[order[i]] = gy_mass(gy_draw_weight(((double)x[order[i]] - x[order[0]]) * per_t), unit);
    uint64_t due = r->top_p < 1 ? gy_mass_due(r->top_p, total) : total;
    for (int i = 0; i < kept; i++) {
        double w = gy_draw_weight(((double)x[order[i]] - x[order[0]]) * per_t);
        uint64_t m = mass[order[i]];
        if (sum >= due || w < (double)r->min_p) mass[order[i]] = 0;
        sum += m;
    }
    total = sum = 0;
    for (int i = 0; i < n; i++) total += mass[i];
    due = gy_mass_at(r->word, total);
    for (int i = 0; i < n; i++)
        if ((sum += mass[i]) > due) return i;
    return -1;
}

static void say_raw(const float *x, int n, int n_top, const int *order, int n_open, gy_drawn *o) {
    double unit = gy_mass_unit(n);
    o->top = x[order[0]];
    o->mass = 0;
    o->n_top = n_top < n_open ? n_top : n_open;
    for (int i = 0; i < n; i++) o->mass += gy_mass(gy_draw_weight((double)x[i] - o->top), unit);
    for (int i = 0; i < o->n_top; i++) o->top_x[i] = x[o->top_id[i] = order[i]];
}

static void draw_row(const float *logits, int n, const gy_draw_row *r, const char *lists, gy_drawn *o) {
    float x[MAX_V];
    int order[MAX_V], open = order_of(logits, n, order);
    memset(o, 0x5a, sizeof *o);
    o->refused = open < 0;
    if (o->refused) return;
    if (r->n_top >= 0) say_raw(logits, n, r->n_top, order, open, o);
    memcpy(x, logits, (size_t)n * sizeof *x);
    if (r->id < 0) {
        change(x, n, r, lists);
        open = order_of(x, n, order);
        o->refused = open < 0 || seen.refuse_all;
        if (o->refused) return;
    }
    o->id = r->id >= 0 ? r->id : r->temperature > 0 ? draw(x, n, r, order, open) : order[0];
    o->x = logits[o->id];
}

static int own_sample(gy_backend *be, const gy_sample_args *a) {
    (void)be;
    assert_true(a->n_vocab <= MAX_V);
    for (int i = 0; i < a->n_row; i++) {
        draw_row(a->logits + (size_t)i * (size_t)a->n_vocab, a->n_vocab, &a->rows[i], (const char *)a->rows,
                 &a->out[i]);
        seen.drawn += a->rows[i].id < 0;
        seen.known += a->rows[i].id >= 0 && a->rows[i].n_top >= 0;
        seen.masked += a->rows[i].mask != 0;
        seen.refused += a->out[i].refused;
    }
    return 1;
}

static void own_patch(gy_backend *be, const gy_patch_args *a) {
    (void)be;
    for (int i = 0; i < a->n; i++) {
        assert_true(a->y[a->idx[i]] != a->v[i]);
        a->y[a->idx[i]] = a->v[i];
    }
    seen.patched += a->n;
}

/* ---- and records, and does not wait ------------------------------------------------------------------------------ */

typedef enum call_kind {
    CALL_EMBED,
    CALL_NORM,
    CALL_LINEAR,
    CALL_ROPE_KV,
    CALL_ATTN,
    CALL_RESIDUAL,
    CALL_SILU_MUL,
    CALL_CONCAT,
    CALL_GATHER,
    CALL_SCATTER,
    CALL_GATE,
    CALL_LATENT_DIFF
} call_kind;

typedef struct call {
    call_kind kind;
    union {
        gy_embed_args embed;
        gy_norm_args norm;
        gy_linear_args linear;
        gy_rope_kv_args rope_kv;
        gy_attn_args attn;
        gy_residual_args residual;
        gy_silu_mul_args silu_mul;
        gy_concat_args concat;
        gy_move_args move;
        gy_gate_args gate;
        gy_latent_diff_args latent_diff;
    } a;
    gy_kv_view kv;
    gy_weight w;
} call;

enum { MAX_CALLS = 256, MAX_TAPES = 512, ROUND = 4, MAX_FETCH = 64 << 10 };
typedef struct tape {
    gy_record_key key;
    int n, times;
    call *call;
} tape;

static struct {
    int is_open, n_tape;
    tape tape[MAX_TAPES];
    tape *to; /* being filled; NULL: none */
    char *scratch;
    size_t bytes;
    char due[MAX_FETCH], ready[MAX_FETCH]; /* fetched; reached */
    int is_marked;
} rec;

/* KV that was written, by the number of its call; which calls somebody has waited for. */
static struct {
    int64_t seq, marked, done;
    const void *base[GY_KV_GROUPS];
    int64_t at[GY_KV_GROUPS][MAX_SLOT];
} wrote;

static void note_writes(const gy_rope_kv_args *a) {
    int g = 0;
    while (g < GY_KV_GROUPS - 1 && wrote.base[g] && wrote.base[g] != a->kv->base) g++;
    wrote.base[g] = a->kv->base;
    wrote.seq++;
    for (int32_t i = 0; i < a->rows.n_row; i++)
        if (a->rows.slot[i] >= 0) wrote.at[g][a->rows.slot[i]] = wrote.seq;
}

static void do_call(gy_backend *be, const call *c) {
    const gy_ops *o = seen.real;
    switch (c->kind) {
    case CALL_EMBED:
        o->embed(be, &c->a.embed);
        break;
    case CALL_NORM:
        o->norm(be, &c->a.norm);
        break;
    case CALL_LINEAR:
        o->linear(be, &c->a.linear);
        break;
    case CALL_ROPE_KV:
        note_writes(&c->a.rope_kv);
        o->rope_kv(be, &c->a.rope_kv);
        break;
    case CALL_ATTN:
        o->attn(be, &c->a.attn);
        break;
    case CALL_RESIDUAL:
        o->residual(be, &c->a.residual);
        break;
    case CALL_SILU_MUL:
        o->silu_mul(be, &c->a.silu_mul);
        break;
    case CALL_CONCAT:
        o->concat(be, &c->a.concat);
        break;
    case CALL_GATHER:
        o->gather(be, &c->a.move);
        break;
    case CALL_SCATTER:
        o->scatter(be, &c->a.move);
        break;
    case CALL_GATE:
        o->gate(be, &c->a.gate);
        break;
    case CALL_LATENT_DIFF:
        o->latent_diff(be, &c->a.latent_diff);
        break;
    }
}

/* Kept, and carried out by record_end; else carried out. Structs behind the arguments are the call's: copied. */
static void keep_call(gy_backend *be, call c) {
    if (!rec.to) {
        do_call(be, &c);
        return;
    }
    assert_true(rec.to->n < MAX_CALLS);
    call *k = &rec.to->call[rec.to->n++];
    *k = c;
    if (c.kind == CALL_ROPE_KV) k->kv = *c.a.rope_kv.kv, k->a.rope_kv.kv = &k->kv;
    if (c.kind == CALL_ATTN) k->kv = *c.a.attn.kv, k->a.attn.kv = &k->kv;
    if (c.kind == CALL_LINEAR) k->w = *c.a.linear.w, k->a.linear.w = &k->w;
    if (c.kind == CALL_EMBED) k->w = *c.a.embed.table, k->a.embed.table = &k->w;
}

#define KEPT(op, type, member, kind)                                                                                   \
    static void rec_##op(gy_backend *be, const type *a) {                                                              \
        keep_call(be, (call){kind, {.member = *a}, {0}, {0}});                                                         \
    }
KEPT(embed, gy_embed_args, embed, CALL_EMBED)
KEPT(norm, gy_norm_args, norm, CALL_NORM)
KEPT(linear, gy_linear_args, linear, CALL_LINEAR)
KEPT(rope_kv, gy_rope_kv_args, rope_kv, CALL_ROPE_KV)
KEPT(attn, gy_attn_args, attn, CALL_ATTN)
KEPT(residual, gy_residual_args, residual, CALL_RESIDUAL)
KEPT(silu_mul, gy_silu_mul_args, silu_mul, CALL_SILU_MUL)
KEPT(concat, gy_concat_args, concat, CALL_CONCAT)
KEPT(gather, gy_move_args, move, CALL_GATHER)
KEPT(scatter, gy_move_args, move, CALL_SCATTER)
KEPT(gate, gy_gate_args, gate, CALL_GATE)
KEPT(latent_diff, gy_latent_diff_args, latent_diff, CALL_LATENT_DIFF)

static void *rec_open(gy_backend *be, void *scratch, size_t bytes) {
    (void)be;
    assert_int_equal(rec.is_open, 0);
    memset(&rec, 0, sizeof rec);
    rec.is_open = 1;
    rec.scratch = scratch;
    rec.bytes = bytes;
    return &rec;
}

static void rec_close(gy_backend *be, void *record) {
    (void)be;
    assert_ptr_equal(record, &rec);
    for (int i = 0; i < rec.n_tape; i++) free(rec.tape[i].call);
    rec.is_open = 0;
}

static int32_t rec_rows(gy_backend *be, int32_t n_row) {
    (void)be;
    return (n_row + ROUND - 1) / ROUND * ROUND;
}

static tape *tape_of(const gy_record_key *of) {
    for (int i = 0; i < rec.n_tape; i++)
        if (!memcmp(&rec.tape[i].key, of, sizeof *of)) return &rec.tape[i];
    assert_true(rec.n_tape < MAX_TAPES);
    rec.tape[rec.n_tape].key = *of;
    return &rec.tape[rec.n_tape++];
}

/* Nobody may read what a recording left there: NaN in either dtype. */
static void spoil(void) {
    memset(rec.scratch, 0xff, rec.bytes);
}

static int rec_begin(gy_backend *be, void *record, const gy_record_key *of) {
    tape *t = tape_of(of);
    assert_ptr_equal(record, &rec);
    if (t->call) {
        for (int i = 0; i < t->n; i++) do_call(be, &t->call[i]);
        seen.replayed++;
        spoil();
        return 1;
    }
    if (t->times++) {
        t->call = calloc(MAX_CALLS, sizeof *t->call);
        rec.to = t;
    }
    return 0;
}

static void rec_end(gy_backend *be, void *record) {
    tape *t = rec.to;
    (void)record;
    rec.to = NULL;
    for (int i = 0; t && i < t->n; i++) do_call(be, &t->call[i]);
    spoil();
}

static const void *rec_fetch(gy_backend *be, const void *src, size_t bytes) {
    (void)be;
    assert_true(bytes <= MAX_FETCH);
    memset(rec.ready, 0x5a, sizeof rec.ready);
    memcpy(rec.due, src, bytes);
    rec.is_marked = 0;
    seen.fetched++;
    return rec.ready;
}

static void rec_mark(gy_backend *be) {
    (void)be;
    rec.is_marked = 1;
    wrote.marked = wrote.seq;
}

static gy_status rec_reached(gy_backend *be, gy_err *err) {
    (void)be;
    if (seen.lost_at && --seen.lost_at == 0) {
        seen.lost_at = 1; /* and stays so */
        return gy_err_set(err, GY_E_DEVICE, "lost");
    }
    if (rec.is_marked) memcpy(rec.ready, rec.due, sizeof rec.ready);
    if (rec.is_marked) wrote.done = wrote.marked;
    return GY_OK;
}

static void rec_download(gy_backend *be, void *dst, const void *src, size_t bytes) {
    wrote.done = wrote.seq;
    seen.downloaded++;
    seen.n_behind += seen.told && seen.told->n < seen.fetched;
    seen.real->download(be, dst, src, bytes);
}

static gy_status rec_sync(gy_backend *be, gy_err *err) {
    wrote.done = wrote.seq;
    return seen.real->sync(be, err);
}

static void add_recording(gy_ops *o) {
    o->embed = rec_embed, o->norm = rec_norm, o->linear = rec_linear, o->rope_kv = rec_rope_kv, o->attn = rec_attn;
    o->residual = rec_residual, o->silu_mul = rec_silu_mul, o->concat = rec_concat, o->gather = rec_gather;
    o->scatter = rec_scatter, o->gate = rec_gate, o->latent_diff = rec_latent_diff;
    o->record_open = rec_open, o->record_close = rec_close, o->record_rows = rec_rows;
    o->record_begin = rec_begin, o->record_end = rec_end;
    o->fetch = rec_fetch, o->mark = rec_mark, o->reached = rec_reached;
    o->download = rec_download, o->sync = rec_sync;
}

static void own_destroy(gy_backend *be) {
    be->ops = seen.real;
    be->ops->destroy(be);
}

static gy_backend *own_create(gy_dtype act, int records) {
    static gy_ops ops;
    gy_backend *be;
    gy_err err;
    assert_int_equal(gy_backend_ref_create(act, &err, &be), GY_OK);
    seen.real = be->ops;
    ops = *be->ops;
    ops.destroy = own_destroy;
    ops.sample = own_sample;
    ops.patch = own_patch;
    if (records) add_recording(&ops);
    be->ops = &ops;
    be->is_host = 0;
    return be;
}

/* ---- the same requests on both ----------------------------------------------------------------------------------- */

enum { N = 12, N_ID = 24, N_BIAS = 30, N_TRACE = 20 };

static gy_grammar_vocab *make_vocab(const gy_model_desc *d) {
    static char bytes[256];
    gy_grammar_token *t = calloc((size_t)d->n_vocab, sizeof *t);
    gy_grammar_vocab *v = NULL;
    gy_err err;
    for (int32_t i = 0; i < d->n_vocab; i++) {
        bytes[i % 256] = (char)(i % 256);
        t[i].s = &bytes[i % 256];
        t[i].len = i > 3 && i < 256;
    }
    if (gy_grammar_vocab_create(t, d->n_vocab, d->eos, d->n_eos, &err, &v) < 0) fail_msg("%s", err.msg);
    free(t);
    return v;
}

typedef struct work {
    int32_t ids[N_ID], stop[2], trace[N_TRACE];
    gy_logit_bias bias[N_BIAS];
    gy_grammar_vocab *vocab;
    gy_grammar *grammar;
    gy_request r[N];
} work;

/* Nothing for which the engine must wait (late.c): other depths instead of rules that look at logits. */
static void set_unwaiting(work *w, const gy_model_desc *d) {
    for (int i = 0; i < N_TRACE; i++) w->trace[i] = i ? i * 5 % d->n_loop + 1 : d->n_loop;
    w->r[1].prompt_logprobs = -1;
    w->r[7].exit = (gy_exit_rule){GY_EXIT_TRACE, 0, 1, d->n_loop, 0};
    w->r[7].trace = w->trace;
    w->r[7].n_trace = N_TRACE;
    w->r[8].exit = (gy_exit_rule){GY_EXIT_FIXED, 0, 1, 1, 0};
    if (d->has_gate) w->r[8].exit = (gy_exit_rule){GY_EXIT_GATE, 0.6, 1, d->n_loop, 0};
    if (d->has_gate) w->r[3].exit = (gy_exit_rule){GY_EXIT_GATE_DELAYED, 0.4, 1, d->n_loop, 0};
    if (!d->has_gate) w->r[3].exit = (gy_exit_rule){GY_EXIT_LATENT, 0.5, 1, d->n_loop, 0};
    w->r[9].grammar = w->r[10].grammar = NULL;
    w->r[9].vocab = w->r[10].vocab = NULL;
}

static void set_requests(work *w, const gy_model_desc *d, int waits) {
    gy_err err;
    static const char digits[] = "[0-9a-f]{3,40}";
    for (int i = 0; i < N_ID; i++) w->ids[i] = (i * 37 + 11) % d->n_vocab;
    for (int i = 0; i < N_BIAS; i++) w->bias[i] = (gy_logit_bias){i * 7 + 3, (float)(i % 11) - 4};
    w->vocab = make_vocab(d);
    if (gy_grammar_compile(GY_GRAMMAR_REGEX, digits, strlen(digits), &err, &w->grammar) < 0) fail_msg("%s", err.msg);
    for (int i = 0; i < N; i++) {
        gy_request *r = &w->r[i];
        gy_request_default(r, d);
        r->prompt = w->ids + i;
        r->n_prompt = N_ID - i;
        r->max_tokens = 20;
        r->ignore_eos = i != 4;
        r->sample.seed = (uint64_t)(i * 1000 + 7);
        r->sample.temperature = i < 2 ? 0 : 1;
        r->sample.n_logprobs = i % 4 - 1;
    }
    w->r[1].prompt_logprobs = 3;
    w->r[3].sample.top_k = 20;
    w->r[3].sample.top_p = .8f;
    w->r[4].n_stop_ids = 2;
    w->r[4].stop_ids = w->stop;
    w->r[4].min_tokens = 12;
    w->stop[0] = 40;
    w->stop[1] = 41;
    w->r[4].sample.bias = w->bias;
    w->r[4].sample.n_bias = N_BIAS;
    w->r[5].sample.repetition_penalty = 1.3f;
    w->r[5].sample.frequency_penalty = .5f;
    w->r[6].n = 3;
    w->r[6].sample.presence_penalty = 1;
    w->r[6].sample.min_p = .02f;
    w->r[7].exit = (gy_exit_rule){GY_EXIT_KL, 0.1, 1, d->n_loop, 0}; /* these logits are the host's */
    w->r[8].exit = (gy_exit_rule){GY_EXIT_ENTROPY, 0.2, 1, d->n_loop, 0};
    for (int i = 9; i < 11; i++) {
        w->r[i].grammar = w->grammar;
        w->r[i].vocab = w->vocab;
        w->r[i].sample.temperature = i == 9 ? 0 : 1.5f;
    }
    w->r[11].sample.temperature = 5;
    w->r[11].sample.top_p = .6f;
    if (!waits) set_unwaiting(w, d);
}

static void few_logits(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->prefix_cache = 1;
    o->max_logits = 7;
    o->sched.prefill_chunk = 9;
}

enum { N_RES = N + 2 };
static void run(gold_env *env, const gold_setup *s, int waits, gold_result *res) {
    work w = {0};
    set_requests(&w, &env->m->d, waits);
    assert_int_equal(gold_n_choice(w.r, N), N_RES);
    gold_engine(s, env);
    gold_run(env->e, w.r, N, res);
    gy_grammar_put(w.grammar);
    gy_grammar_vocab_destroy(w.vocab);
}

typedef struct way {
    int records, waits, refuses; /* refuses: once more, with every draw refused */
} way;

static void on_both(const char *model, gy_dtype act, way y, gold_result *host, gold_result *own) {
    gold_setup s = {.model = model, .backend = "ref", .act = act, .max_rows = 40, .patch = few_logits};
    gold_env env;
    gy_err err;
    char path[512];
    gold_open(&s, &env);
    run(&env, &s, y.waits, host);
    gold_close(&env);
    memset(&seen, 0, sizeof seen);
    env = (gold_env){.be = own_create(act, y.records)};
    snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s", model);
    if (gy_model_load(path, &(gy_model_load_opts){.be = env.be}, &err, &env.m) != GY_OK) fail_msg("%s", err.msg);
    for (seen.refuse_all = 0; seen.refuse_all <= y.refuses; seen.refuse_all++, own += N_RES)
        run(&env, &s, y.waits, own);
    gold_close(&env);
}

#ifdef GY_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Once as it is, once with every draw refused: then the host sampler judges each row by itself. Where nothing waits, a
 * refused token computes its sequence again: on one model. */
static void on_models(int records, int waits) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static gold_result host[N_RES], own[2 * N_RES];
    char why[256];
    for (int i = 0; i < 6; i++) {
        way y = {records, waits, waits || i == 1};
        if (records && (i % 2 == 0 || (waits && i == 5))) continue; /* what differs there, one dtype shows */
        if (SANITIZED && (records ? waits && i > 1 : i % 2 == (i / 2 & 1)))
            continue; /* its memory: one dtype, one model */
        on_both(models[i / 2], i % 2 ? GY_BF16 : GY_F32, y, host, own);
        for (int k = 0; k < (1 + y.refuses) * N_RES; k++)
            if (gold_diff(&host[k % N_RES], &own[k], why, sizeof why))
                fail_msg("%s, choice %d%s: %s", models[i / 2], k % N_RES, k < N_RES ? "" : " refused", why);
        for (int k = 0; k < N_RES; k++) assert_true(host[k].n > 0);
        assert_true(seen.drawn > 200 && seen.patched > 100 && (!y.refuses || seen.refused > 100));
        assert_true(!waits || (seen.masked > 20 && seen.known > 20));
        assert_true(!records || seen.replayed > 50);
        assert_true(waits || seen.fetched > 30);
    }
}

static void drawn_by_either(void **state) {
    (void)state;
    on_models(0, 1);
}

static void recorded(void **state) {
    (void)state;
    on_models(1, 1);
}

static void not_waited_for(void **state) {
    (void)state;
    on_models(1, 0);
}

/* ---- while a token is late --------------------------------------------------------------------------------------- */

enum { CANCELLED = 2, STOPPED = 8, STOP_AT = 7 };

/* Preempted in every way at every stage, one is cancelled, a stop id ends one in the middle; a pool that cannot hold
 * all. Before a step some tokens are late: the engine was told to preempt, cancel and shrink just then. */
static void disturb(void *arg, gy_engine *e, int step, const gold_result *res) {
    static const gy_preempt ways[] = {GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE, GY_PREEMPT_AUTO};
    int *n_done = arg;
    if (step == 11) gy_engine_cancel(e, res[CANCELLED].id);
    if (step % 3 != 0 || step > 60) return;
    int k = step / 3 % N;
    if (!res[k].n_finish && gy_engine_preempt(e, res[k].id, 0, ways[step % 9 / 3]) == GY_OK) ++*n_done;
}

static void small_pool(gy_engine_opts *o, const void *arg) {
    few_logits(o, arg);
    o->max_logits = 16;
    o->kv_blocks = 60;
    o->park_bytes = 64 << 10;
}

static void one_run(gold_env *env, gold_setup *s, const gold_hook *hook, const int32_t *stop, gold_result *res) {
    work w = {0};
    set_requests(&w, &env->m->d, 0);
    if (stop) w.r[STOPPED].n_stop_ids = 1, w.r[STOPPED].stop_ids = stop;
    gold_engine(s, env);
    gold_run_hooked(env->e, w.r, N, res, hook);
    gy_grammar_put(w.grammar);
    gy_grammar_vocab_destroy(w.vocab);
}

static void disturbed(void **state) {
    (void)state;
    static gold_result calm[N_RES], own[N_RES];
    gold_setup s = {.model = "ouro-tiny", .backend = "ref", .act = GY_BF16, .max_rows = 40, .patch = few_logits};
    gold_env env;
    gy_err err;
    char why[256];
    int n_done = 0;
    gold_open(&s, &env);
    one_run(&env, &s, &(gold_hook){0}, NULL, calm);
    gold_close(&env);
    memset(&seen, 0, sizeof seen);
    env = (gold_env){.be = own_create(GY_BF16, 1)};
    if (gy_model_load(GY_SOURCE_DIR "/tests/golden/models/ouro-tiny", &(gy_model_load_opts){.be = env.be}, &err,
                      &env.m) != GY_OK)
        fail_msg("%s", err.msg);
    s.patch = small_pool;
    const int at_stopped = STOPPED + 2; /* results: request 6 has three */
    one_run(&env, &s, &(gold_hook){.before_step = disturb, .arg = &n_done}, &calm[at_stopped].tokens[STOP_AT], own);
    for (int k = 0; k < N_RES; k++) {
        if (k == at_stopped || k == CANCELLED) {
            assert_true(own[k].n <= calm[k].n &&
                        (k == CANCELLED ? own[k].reason == GY_FINISH_CANCELLED : own[k].reason == GY_FINISH_STOP));
            assert_memory_equal(own[k].tokens, calm[k].tokens, (size_t)own[k].n * sizeof *own[k].tokens);
        } else if (gold_diff(&calm[k], &own[k], why, sizeof why)) {
            fail_msg("disturbed, choice %d: %s", k, why);
        }
    }
    assert_true(own[at_stopped].n <= STOP_AT + 1);
    gold_idle(env.e);
    gold_close(&env);
    assert_true(n_done > 8 && seen.fetched > 20);
}

/* Nobody is told a token that came from a device that was lost by then. */
static void lost_while_late(void **state) {
    (void)state;
    static gold_result res;
    gold_setup s = {.model = "ouro-tiny", .backend = "ref", .act = GY_BF16, .max_rows = 40, .patch = few_logits};
    static const int32_t ids[3] = {5, 6, 7};
    gold_env env = {0};
    gy_err err;
    gy_status st;
    memset(&seen, 0, sizeof seen);
    memset(&res, 0, sizeof res);
    env.be = own_create(GY_BF16, 1);
    if (gy_model_load(GY_SOURCE_DIR "/tests/golden/models/ouro-tiny", &(gy_model_load_opts){.be = env.be}, &err,
                      &env.m) != GY_OK)
        fail_msg("%s", err.msg);
    gold_engine(&s, &env);
    gy_request r;
    gy_request_default(&r, &env.m->d);
    r.prompt = ids, r.n_prompt = 3, r.max_tokens = 30, r.ignore_eos = 1;
    assert_true(gold_submit(env.e, &r, &res));
    while (res.n < 4) assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    seen.lost_at = 1;
    for (st = GY_OK; st == GY_OK;) st = gy_engine_step(env.e, &err);
    assert_int_equal(st, GY_E_DEVICE);
    assert_int_equal(gy_engine_step(env.e, &err), GY_E_DEVICE);
    assert_string_equal(err.msg, "lost");
    assert_true(res.n == 4 && !res.n_finish);
    gold_close(&env);
}

/* Gates are waited for when the tokens that the device had drawn before are told, and only as long as the rule may
 * still decide by them. */
static void told_before_gates(void **state) {
    (void)state;
    static gold_result res;
    gold_setup s = {.model = "ouro-tiny", .backend = "ref", .act = GY_BF16, .max_rows = 40, .patch = few_logits};
    static const int32_t ids[3] = {5, 6, 7};
    gold_env env = {0};
    gy_err err;
    memset(&seen, 0, sizeof seen);
    env.be = own_create(GY_BF16, 1);
    if (gy_model_load(GY_SOURCE_DIR "/tests/golden/models/ouro-tiny", &(gy_model_load_opts){.be = env.be}, &err,
                      &env.m) != GY_OK)
        fail_msg("%s", err.msg);
    gold_engine(&s, &env);
    gy_request r;
    gy_request_default(&r, &env.m->d);
    r.prompt = ids, r.n_prompt = 3, r.max_tokens = 40, r.ignore_eos = 1;
    r.exit = (gy_exit_rule){GY_EXIT_GATE, 0.6, 1, env.m->d.n_loop, 0};
    seen.told = &res;
    gold_run(env.e, &r, 1, &res);
    int32_t n_wait = 0, n_last = 0, n_loop = env.m->d.n_loop;
    for (int i = 1; i < res.n; i++) { /* the first comes from the prompt, at full depth */
        n_wait += res.loops[i] < n_loop ? res.loops[i] : n_loop - 1;
        n_last += res.loops[i] == n_loop;
    }
    assert_true(res.n == 40 && seen.fetched == 40 && n_last > 2 && n_last < 37);
    assert_int_equal(seen.downloaded, n_wait);
    assert_int_equal(seen.n_behind, 0);
    gold_close(&env);
}

/* ---- prompts that cross while a step's work goes on ---------------------------------------------------------------
 */

enum { N_EXPORT = 5, EXPORT_LEN = 90 };

typedef struct told {
    gy_engine *e;
    int n_call, n_tokens, n_behind, n_hidden, n_bad;
} told;

/* Whoever reads from outside the device's order may read what is told: it was waited for. */
static void check_plane(told *t, int32_t id, int g, int32_t plane, int32_t n_tok) {
    int32_t n;
    if (!n_tok) return;
    const int32_t *ids = gy_engine_export_blocks(t->e, id, (gy_kv_group)g, plane, &n);
    assert_true(ids && n * GY_BLOCK_SLOTS >= n_tok);
    const int b = wrote.base[0] != gy_kv_arena(gy_engine_kv(t->e), (gy_kv_group)g); /* which came first */
    for (int32_t k = 0; k < n_tok; k++) {
        int64_t at = wrote.at[b][ids[k / GY_BLOCK_SLOTS] * GY_BLOCK_SLOTS + k % GY_BLOCK_SLOTS];
        assert_true(at > 0);
        t->n_bad += at > wrote.done;
        t->n_tokens++;
    }
}

static void on_planes(void *arg, int32_t id, const int32_t *core, int32_t n_plane, int32_t boundary) {
    told *t = arg;
    t->n_call++;
    t->n_behind += wrote.seq > wrote.done;
    for (int32_t d = 0; d < n_plane; d++) check_plane(t, id, GY_KV_CORE, d, core[d]);
    check_plane(t, id, GY_KV_BOUNDARY, 0, boundary);
}

static void on_hidden(void *arg, int32_t id, const float *hidden, int32_t loops, const float *gates, int32_t n_gate) {
    told *t = arg;
    (void)id, (void)hidden, (void)loops, (void)gates, (void)n_gate;
    t->n_hidden++;
}

static void crossing(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->max_handoff = N_EXPORT;
    o->fuse_loops = 2;
    o->sched.prefill_chunk = 16;
}

/* Between two steps, with some of their work queued: blocks are given out to a writer from outside when it is done. */
static int open_import(gy_engine *e, const gy_request *r) {
    int32_t import, n_have;
    gy_err err;
    const int was_behind = wrote.seq > wrote.done;
    if (gy_engine_import_open(e, r, &err, &import, &n_have) != GY_OK) return 0;
    assert_true(wrote.done == wrote.seq);
    gy_engine_import_drop(e, import);
    return was_behind;
}

static void cross(gold_env *env, told *t) {
    static int32_t ids[EXPORT_LEN];
    static gold_result res[3];
    gy_request r;
    gy_err err;
    int32_t id[N_EXPORT], n_sent = 0, n_open = 0;
    memset(res, 0, sizeof res);
    for (int i = 0; i < EXPORT_LEN; i++) ids[i] = (i * 31 + 5) % env->m->d.n_vocab;
    gy_request_default(&r, &env->m->d);
    r.prompt = ids, r.ignore_eos = 1, r.max_tokens = 60;
    for (int i = 0; i < 3; i++) {
        r.n_prompt = 5 + i;
        assert_true(gold_submit(env->e, &r, &res[i]));
    }
    for (int step = 0; n_sent < N_EXPORT || t->n_hidden < N_EXPORT; step++) {
        const gy_export x = {.on_planes = on_planes, .on_hidden = on_hidden, .arg = t};
        r.n_prompt = EXPORT_LEN - n_sent;
        if (step % 7 == 3 && n_sent < N_EXPORT) {
            r.on_token = NULL, r.on_finish = NULL;
            assert_int_equal(gy_engine_submit_export(env->e, &r, &x, &err, &id[n_sent]), GY_OK);
            n_sent++;
        }
        assert_int_equal(gy_engine_step(env->e, &err), GY_OK);
        for (int i = 0; i < n_sent; i++) gy_engine_export_release(env->e, id[i]); /* those that are over */
        assert_true(step < 3000);
        if (step % 5 == 4 && n_sent < N_EXPORT) n_open += open_import(env->e, &r);
    }
    assert_true(n_open > 1);
}

static void told_when_done(void **state) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        gold_setup s = {.model = models[i], .backend = "ref", .act = GY_BF16, .max_rows = 24, .patch = crossing};
        gold_env env = {0};
        gy_err err;
        char path[512];
        told t = {0};
        memset(&seen, 0, sizeof seen);
        memset(&wrote, 0, sizeof wrote);
        env.be = own_create(GY_BF16, 1);
        snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s", models[i]);
        if (gy_model_load(path, &(gy_model_load_opts){.be = env.be}, &err, &env.m) != GY_OK) fail_msg("%s", err.msg);
        gold_engine(&s, &env);
        t.e = env.e;
        cross(&env, &t);
        assert_int_equal(t.n_bad, 0);
        assert_true(t.n_call > 3 * N_EXPORT && t.n_behind > N_EXPORT && t.n_tokens > 1000);
        gold_close(&env);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_by_either), cmocka_unit_test(recorded),
                                       cmocka_unit_test(not_waited_for),  cmocka_unit_test(disturbed),
                                       cmocka_unit_test(lost_while_late), cmocka_unit_test(told_before_gates),
                                       cmocka_unit_test(told_when_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
