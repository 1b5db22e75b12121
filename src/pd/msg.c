/* One visitor per struct reads and writes it, so that both sides cannot disagree: `wire` is either a writer that
 * appends or a reader that checks. After the first error every visit does nothing.
 */
#include "pd/msg.h"

#include <string.h>

typedef struct wire {
    gy_str *out;    /* writing, else NULL */
    const char *at; /* reading */
    size_t left;
    gy_arena *arena;
    const char *bad; /* what could not be read; NULL: all well */
    int no_memory;
} wire;

static void fail(wire *w, const char *what) {
    if (!w->bad) w->bad = what;
}

static void raw(wire *w, void *p, size_t n, const char *what) {
    if (w->bad || n == 0) return;
    if (w->out) {
        gy_str_append(w->out, p, n);
        return;
    }
    if (n > w->left) {
        fail(w, what);
        return;
    }
    memcpy(p, w->at, n);
    w->at += n;
    w->left -= n;
}

/* The machines that gyre runs on are little endian: bytes go as they lie. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "messages are little endian"
#endif
#define FIELD(w, x) raw(w, &(x), sizeof(x), #x)

/* A count that must lie in [0, most] and whose elements must fit what is left of the frame. */
static void count(wire *w, int32_t *n, int64_t most, size_t elem, const char *what) {
    raw(w, n, sizeof *n, what);
    if (w->bad || w->out) return;
    if (*n < 0 || *n > most || (size_t)*n > w->left / elem) fail(w, what);
}

/* An array behind its count. Reading: a copy in the arena, with a NUL behind it. */
static void array(wire *w, const void **p, int32_t *n, int64_t most, size_t elem, const char *what) {
    count(w, n, most, elem, what);
    if (w->bad) return;
    if (w->out) {
        if (*n) gy_str_append(w->out, *p, (size_t)*n * elem);
        return;
    }
    char *copy = gy_arena_alloc(w->arena, (size_t)*n * elem + 1, 1);
    if (!copy) {
        w->no_memory = 1;
        fail(w, what);
        return;
    }
    raw(w, copy, (size_t)*n * elem, what);
    *p = copy;
}
#define ARRAY(w, p, n, most)                                                                                           \
    do {                                                                                                               \
        const void *array_ = (p);                                                                                      \
        array(w, &array_, &(n), most, sizeof *(p), #p);                                                                \
        (p) = array_;                                                                                                  \
    } while (0)

/* ---- structs ----------------------------------------------------------------------------------------------------- */

static void info(wire *w, gy_pd_info *i) {
    raw(w, i->family, sizeof i->family, "family");
    if (!w->out) i->family[sizeof i->family - 1] = 0;
    FIELD(w, i->dtype);
    FIELD(w, i->layout);
    FIELD(w, i->cyclic_k);
    FIELD(w, i->n_loop);
    FIELD(w, i->depth);
    FIELD(w, i->n_layer);
    FIELD(w, i->n_head_kv);
    FIELD(w, i->head_dim);
    FIELD(w, i->n_embd);
    FIELD(w, i->n_vocab);
    FIELD(w, i->max_len);
    FIELD(w, i->fingerprint);
    FIELD(w, i->n_block);
    FIELD(w, i->max_seqs);
    FIELD(w, i->max_queue);
    FIELD(w, i->max_handoff);
}

static void ready(wire *w, gy_msg_ready *r) {
    FIELD(w, r->role);
    FIELD(w, r->pid);
    info(w, &r->info);
}

static void table(wire *w, gy_msg_table *t) {
    FIELD(w, t->group);
    FIELD(w, t->plane);
    ARRAY(w, t->ids, t->n, GY_MSG_MAX / 4);
    if (!w->bad && !w->out && (t->group < 0 || t->group >= GY_KV_GROUPS || t->plane < 0)) fail(w, "table");
}

enum { MAX_TABLES = GY_ENGINE_MAX_LOOPS + 1, MIN_TABLE = 12 };

static void tables(wire *w, gy_msg_tables *t) {
    FIELD(w, t->n_have);
    FIELD(w, t->hidden_slot);
    count(w, &t->n_table, MAX_TABLES, MIN_TABLE, "n_table");
    if (w->bad) return;
    gy_msg_table *into = NULL;
    if (!w->out) {
        into = gy_arena_alloc(w->arena, (size_t)t->n_table + 1, sizeof *into);
        if (!into) {
            w->no_memory = 1;
            fail(w, "tables");
            return;
        }
        t->table = into;
    }
    for (int32_t i = 0; i < t->n_table; i++) {
        gy_msg_table copy = {0};
        if (w->out) copy = t->table[i];
        table(w, &copy);
        if (into) into[i] = copy;
    }
}

static void sampling(wire *w, gy_sample_params *p) {
    FIELD(w, p->temperature);
    FIELD(w, p->top_k);
    FIELD(w, p->top_p);
    FIELD(w, p->min_p);
    FIELD(w, p->seed);
    FIELD(w, p->choice);
    FIELD(w, p->n_logprobs);
    FIELD(w, p->repetition_penalty);
    FIELD(w, p->frequency_penalty);
    FIELD(w, p->presence_penalty);
    ARRAY(w, p->bias, p->n_bias, GY_MAX_LOGIT_BIAS);
}

static void rule(wire *w, gy_exit_rule *x) {
    int32_t kind = (int32_t)x->kind, on_prompt = x->on_prompt;
    FIELD(w, kind);
    FIELD(w, x->threshold);
    FIELD(w, x->min_loops);
    FIELD(w, x->max_loops);
    FIELD(w, on_prompt);
    if (w->out) return;
    if (kind < 0 || kind > GY_EXIT_TRACE) fail(w, "exit rule");
    x->kind = (gy_exit_kind)kind;
    x->on_prompt = on_prompt != 0;
}

static void flag(wire *w, int *f, const char *what) {
    int32_t v = *f;
    raw(w, &v, sizeof v, what);
    if (!w->out) *f = v != 0;
}

static void request(wire *w, gy_msg_request *q) {
    gy_request *r = &q->r;
    ARRAY(w, r->prompt, r->n_prompt, INT32_MAX);
    FIELD(w, r->max_tokens);
    FIELD(w, r->min_tokens);
    FIELD(w, r->n);
    sampling(w, &r->sample);
    flag(w, &r->random_seed, "random_seed");
    FIELD(w, r->prompt_logprobs);
    rule(w, &r->exit);
    ARRAY(w, r->trace, r->n_trace, INT32_MAX);
    flag(w, &r->want_gates, "want_gates");
    flag(w, &r->ignore_eos, "ignore_eos");
    ARRAY(w, r->stop_ids, r->n_stop_ids, INT32_MAX);
    flag(w, &r->latent_noise, "latent_noise");
    FIELD(w, r->latent_seed);
    FIELD(w, r->priority);
    flag(w, &r->no_cache, "no_cache");
    ARRAY(w, r->cache_salt, r->n_salt, GY_PREFIX_MAX_SALT);
    ARRAY(w, r->grammar_after, r->n_grammar_after, GY_GRAMMAR_MAX_AFTER);
    FIELD(w, q->grammar_kind);
    ARRAY(w, q->grammar, q->n_grammar, GY_GRAMMAR_MAX_SOURCE);
}

static void token(wire *w, gy_msg_token *t) {
    FIELD(w, t->choice);
    FIELD(w, t->index);
    FIELD(w, t->token);
    FIELD(w, t->loops);
    FIELD(w, t->logprob);
    count(w, &t->n_top, GY_MAX_LOGPROBS, 8, "n_top");
    for (int32_t i = 0; !w->bad && i < t->n_top; i++) {
        FIELD(w, t->top_id[i]);
        FIELD(w, t->top_logprob[i]);
    }
    ARRAY(w, t->gates, t->n_gate, GY_ENGINE_MAX_LOOPS);
}

static void finish(wire *w, gy_msg_finish *f) {
    FIELD(w, f->choice);
    FIELD(w, f->n_left);
    FIELD(w, f->reason);
    FIELD(w, f->stop_id);
    FIELD(w, f->n_prompt);
    FIELD(w, f->n_output);
    FIELD(w, f->n_cached);
    FIELD(w, f->n_preempt);
    FIELD(w, f->seed);
    FIELD(w, f->admit_ns);
    FIELD(w, f->first_token_ns);
    FIELD(w, f->finish_ns);
    if (!w->bad && !w->out && (f->reason < 0 || f->reason > GY_FINISH_ERROR)) fail(w, "finish reason");
}

/* Added up and shown, nothing else. */
static void amount(wire *w, int64_t *v, const char *what) {
    raw(w, v, sizeof *v, what);
    if (!w->bad && !w->out && (*v < 0 || *v > GY_MSG_MOST)) fail(w, what);
}

static void amount_i32(wire *w, int32_t *v, const char *what) {
    raw(w, v, sizeof *v, what);
    if (!w->bad && !w->out && (*v < 0 || *v > GY_MSG_MOST_I32)) fail(w, what);
}
#define AMOUNT(w, x) amount(w, &(x), #x)
#define AMOUNT_I32(w, x) amount_i32(w, &(x), #x)

static void sent(wire *w, gy_msg_sent *s) {
    AMOUNT(w, s->bytes);
    AMOUNT(w, s->n_op);
    AMOUNT(w, s->n_desc);
    FIELD(w, s->start_ns);
    FIELD(w, s->compute_ns);
    FIELD(w, s->first_post_ns);
    FIELD(w, s->last_post_ns);
    FIELD(w, s->last_done_ns);
    FIELD(w, s->said_ns);
    AMOUNT(w, s->post_ns);
    AMOUNT(w, s->overlap_ns);
    AMOUNT(w, s->overlap_bytes);
    AMOUNT(w, s->n_overlap);
    FIELD(w, s->n_computed);
}

static void stats(wire *w, gy_msg_stats *s) {
    AMOUNT_I32(w, s->n_waiting);
    AMOUNT_I32(w, s->n_running);
    AMOUNT_I32(w, s->n_parked);
    AMOUNT_I32(w, s->n_handoff);
    AMOUNT_I32(w, s->kv_free);
    AMOUNT_I32(w, s->kv_cached);
    AMOUNT_I32(w, s->kv_total);
    AMOUNT(w, s->wait_tok);
    AMOUNT(w, s->xfer_inflight);
#define COUNT(name) AMOUNT(w, s->name);
    GY_MSG_COUNTS(COUNT)
#undef COUNT
    AMOUNT_I32(w, s->kv_boundary);
    count(w, &s->n_depth, GY_STAT_DEPTHS, 2 * sizeof **s->n_row_at + sizeof *s->kv_plane, "n_depth");
    for (int32_t i = 0; !w->bad && i < s->n_depth; i++) {
        AMOUNT(w, s->n_row_at[0][i]);
        AMOUNT(w, s->n_row_at[1][i]);
        AMOUNT_I32(w, s->kv_plane[i]);
    }
}

void gy_msg_stats_add_past(gy_msg_stats *s, const gy_msg_stats *past) {
#define COUNT(name) s->name = gy_msg_add(s->name, past->name);
    GY_MSG_COUNTS(COUNT)
#undef COUNT
    if (s->n_depth < past->n_depth) s->n_depth = past->n_depth;
    for (int32_t i = 0; i < past->n_depth; i++) {
        s->n_row_at[0][i] = gy_msg_add(s->n_row_at[0][i], past->n_row_at[0][i]);
        s->n_row_at[1][i] = gy_msg_add(s->n_row_at[1][i], past->n_row_at[1][i]);
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

enum {
    HAS_TID = 1,
    HAS_PEER = 2,
    HAS_STATUS = 4,
    HAS_TEXT = 8,
    HAS_BLOB = 16,
    HAS_READY = 32,
    HAS_TABLES = 64,
    HAS_REQUEST = 128,
    HAS_TOKEN = 256,
    HAS_FINISH = 512,
    HAS_SENT = 1024,
    HAS_STATS = 2048
};

static const struct {
    const char *name;
    int has;
} kinds[] = {
    [GY_MSG_READY] = {"ready", HAS_PEER | HAS_READY | HAS_BLOB},
    [GY_MSG_CONNECTED] = {"connected", HAS_PEER | HAS_STATUS | HAS_TEXT},
    [GY_MSG_RESERVED] = {"reserved", HAS_TID | HAS_TABLES},
    [GY_MSG_REJECTED] = {"rejected", HAS_TID | HAS_STATUS | HAS_TEXT},
    [GY_MSG_PREFILLED] = {"prefilled", HAS_TID | HAS_SENT},
    [GY_MSG_ACTIVE] = {"active", HAS_TID | HAS_SENT},
    [GY_MSG_TOKEN] = {"token", HAS_TID | HAS_TOKEN},
    [GY_MSG_PROMPT] = {"prompt", HAS_TID | HAS_TOKEN},
    [GY_MSG_FINISH] = {"finish", HAS_TID | HAS_FINISH | HAS_STATUS | HAS_TEXT},
    [GY_MSG_RELEASED] = {"released", HAS_TID},
    [GY_MSG_STATS] = {"stats", HAS_STATS},
    [GY_MSG_FATAL] = {"fatal", HAS_STATUS | HAS_TEXT},
    [GY_MSG_PONG] = {"pong", 0},
    [GY_MSG_LEAVING] = {"leaving", 0},
    [GY_MSG_CONNECT] = {"connect", HAS_PEER | HAS_BLOB},
    [GY_MSG_GONE] = {"gone", HAS_PEER},
    [GY_MSG_RESERVE] = {"reserve", HAS_TID | HAS_PEER | HAS_REQUEST},
    [GY_MSG_PREFILL] = {"prefill", HAS_TID | HAS_PEER | HAS_REQUEST | HAS_TABLES},
    [GY_MSG_LOCAL] = {"local", HAS_TID | HAS_REQUEST},
    [GY_MSG_CANCEL] = {"cancel", HAS_TID},
    [GY_MSG_CANCEL_SAFE] = {"cancel_safe", HAS_TID},
    [GY_MSG_STOP] = {"stop", 0},
    [GY_MSG_PING] = {"ping", 0},
};

static int is_known(unsigned kind) {
    return kind < sizeof kinds / sizeof kinds[0] && kinds[kind].name;
}

const char *gy_msg_name(gy_msg_kind k) {
    return is_known((unsigned)k) ? kinds[k].name : "unknown";
}

static void body(wire *w, gy_msg *m) {
    int has = kinds[m->kind].has;
    if (has & HAS_TID) FIELD(w, m->tid);
    if (has & HAS_PEER) FIELD(w, m->peer);
    if (has & HAS_STATUS) FIELD(w, m->status);
    if (has & HAS_TEXT) ARRAY(w, m->text, m->n_text, GY_MSG_MAX_TEXT);
    if (has & HAS_READY) ready(w, &m->ready);
    if (has & HAS_BLOB) array(w, &m->blob, &m->n_blob, GY_XFER_MAX_BLOB, 1, "blob");
    if (has & HAS_TABLES) tables(w, &m->tables);
    if (has & HAS_REQUEST) request(w, &m->request);
    if (has & HAS_TOKEN) token(w, &m->token);
    if (has & HAS_FINISH) finish(w, &m->finish);
    if (has & HAS_SENT) sent(w, &m->sent);
    if (has & HAS_STATS) stats(w, &m->stats);
}

gy_status gy_msg_encode(const gy_msg *m, gy_str *out) {
    size_t begin = out->len;
    uint32_t length = 0;
    uint16_t head[2] = {(uint16_t)m->kind, GY_MSG_VERSION};
    wire w = {.out = out};
    gy_msg copy = *m;
    GY_CHECK(is_known((unsigned)m->kind));
    gy_str_append(out, (const char *)&length, sizeof length);
    gy_str_append(out, (const char *)head, sizeof head);
    body(&w, &copy);
    if (out->failed) return GY_E_NOMEM;
    if (out->len - begin > GY_MSG_MAX) {
        out->len = begin;
        return GY_E_LIMIT;
    }
    length = (uint32_t)(out->len - begin - sizeof length);
    memcpy(out->data + begin, &length, sizeof length);
    return GY_OK;
}

gy_status gy_msg_frame(const char *bytes, size_t len, size_t *frame_out, gy_err *err) {
    uint32_t length;
    *frame_out = 0;
    if (len < sizeof length) return GY_OK;
    memcpy(&length, bytes, sizeof length);
    if (length < GY_MSG_HEAD - sizeof length || length > GY_MSG_MAX - sizeof length)
        return gy_err_set(err, GY_E_FORMAT, "message: a frame of %u bytes, expected %zu to %zu", length,
                          GY_MSG_HEAD - sizeof length, GY_MSG_MAX - sizeof length);
    if (len >= length + sizeof length) *frame_out = length + sizeof length;
    return GY_OK;
}

gy_status gy_msg_decode(const char *frame, size_t len, gy_arena *a, gy_err *err, gy_msg *out) {
    uint16_t head[2];
    GY_CHECK(len >= GY_MSG_HEAD);
    memcpy(head, frame + sizeof(uint32_t), sizeof head);
    if (!is_known(head[0])) return GY_DONE;
    if (head[1] != GY_MSG_VERSION)
        return gy_err_set(err, GY_E_FORMAT,
                          "message %s: found version %u, expected %d: both ends must run the same gyre",
                          kinds[head[0]].name, head[1], GY_MSG_VERSION);
    *out = (gy_msg){.kind = (gy_msg_kind)head[0]};
    wire w = {.at = frame + GY_MSG_HEAD, .left = len - GY_MSG_HEAD, .arena = a};
    body(&w, out);
    if (w.no_memory) return gy_err_set(err, GY_E_NOMEM, "message %s: no memory", kinds[head[0]].name);
    if (w.bad) return gy_err_set(err, GY_E_FORMAT, "message %s: %s cannot be read", kinds[head[0]].name, w.bad);
    if (w.left) return gy_err_set(err, GY_E_FORMAT, "message %s: %zu bytes too many", kinds[head[0]].name, w.left);
    return GY_OK;
}

/* ---- model info -------------------------------------------------------------------------------------------------- */

static gy_status same(const char *field, int64_t a, int64_t b, gy_err *err) {
    if (a == b) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "worker: %s is %lld, the others have %lld: all must serve the same model alike",
                      field, (long long)b, (long long)a);
}

static const char *kv_name(int32_t t) {
    return t == GY_F32 ? "f32" : t == GY_BF16 ? "bf16" : t == GY_I8 ? "int8" : "an unknown dtype";
}

static gy_status same_dtype(int32_t a, int32_t b, gy_err *err) {
    if (a == b) return GY_OK;
    return gy_err_set(
        err, GY_E_ARG,
        "worker: dtype of its KV is %s, the others have %s: all must serve the same model alike (--dtype, "
        "--kv-dtype)",
        kv_name(b), kv_name(a));
}

gy_status gy_pd_info_match(const gy_pd_info *a, const gy_pd_info *b, gy_err *err) {
    if (memcmp(a->family, b->family, sizeof a->family) != 0)
        return gy_err_set(err, GY_E_ARG, "worker: family is %s, the others have %s", b->family, a->family);
    GY_TRY(same_dtype(a->dtype, b->dtype, err));
    GY_TRY(same("kv layout", a->layout, b->layout, err));
    GY_TRY(same("cyclic planes", a->cyclic_k, b->cyclic_k, err));
    GY_TRY(same("n_loop", a->n_loop, b->n_loop, err));
    GY_TRY(same("max_loops", a->depth, b->depth, err));
    GY_TRY(same("core layers", a->n_layer[GY_KV_CORE], b->n_layer[GY_KV_CORE], err));
    GY_TRY(same("boundary layers", a->n_layer[GY_KV_BOUNDARY], b->n_layer[GY_KV_BOUNDARY], err));
    GY_TRY(same("n_head_kv", a->n_head_kv, b->n_head_kv, err));
    GY_TRY(same("head_dim", a->head_dim, b->head_dim, err));
    GY_TRY(same("n_embd", a->n_embd, b->n_embd, err));
    GY_TRY(same("n_vocab", a->n_vocab, b->n_vocab, err));
    GY_TRY(same("max_len", a->max_len, b->max_len, err));
    if (memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) == 0) return GY_OK;
    return gy_err_set(err, GY_E_ARG,
                      "worker: its checkpoint or options differ from the others' (fingerprints): all must "
                      "serve the same files with the same options");
}
