/* The life of a handle: options to a model, a backend and an engine, and the way back. */
#include "api/api_int.h"

#include "base/log.h"
#include "pd/host.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const char *gyre_version(void) {
    return GY_VERSION;
}

/* ---- status ----------------------------------------------------------------------------------------------------- */

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "the public header says the same")
SAME(GYRE_OK, GY_OK);
SAME(GYRE_AGAIN, GY_AGAIN);
SAME(GYRE_DONE, GY_DONE);
SAME(GYRE_E_ARG, GY_E_ARG);
SAME(GYRE_E_LIMIT, GY_E_LIMIT);
SAME(GYRE_E_CANCELLED, GY_E_CANCELLED);
SAME(GYRE_E_NUMERIC, GY_E_NUMERIC);
SAME(GYRE_E_UNSUPPORTED, GY_E_UNSUPPORTED);
SAME(GYRE_E_PEER, GY_E_PEER);
SAME(GYRE_E_TIMEOUT, GY_E_TIMEOUT);
SAME(GYRE_E_NOMEM, GY_E_NOMEM);
SAME(GYRE_E_IO, GY_E_IO);
SAME(GYRE_E_FORMAT, GY_E_FORMAT);
SAME(GYRE_E_DEVICE, GY_E_DEVICE);
SAME(GYRE_E_BUG, GY_E_BUG);
SAME(GYRE_GROUP_NONE, GY_GROUP_NONE);
SAME(GYRE_GROUP_REQUEST, GY_GROUP_REQUEST);
SAME(GYRE_GROUP_PEER, GY_GROUP_PEER);
SAME(GYRE_GROUP_ENGINE, GY_GROUP_ENGINE);
SAME(GYRE_FINISH_STOP, GY_FINISH_STOP);
SAME(GYRE_FINISH_LENGTH, GY_FINISH_LENGTH);
SAME(GYRE_FINISH_CANCELLED, GY_FINISH_CANCELLED);
SAME(GYRE_FINISH_ERROR, GY_FINISH_ERROR);
SAME(GYRE_STAT_DEPTHS, GY_STAT_DEPTHS);
SAME(sizeof(((gyre_err *)0)->msg), sizeof(((gy_err *)0)->msg));

gyre_group gyre_status_group(gyre_status s) {
    return (gyre_group)gy_status_get_group((gy_status)s);
}

const char *gyre_status_name(gyre_status s) {
    return gy_status_name((gy_status)s);
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

void gyre_options_default(gyre_options *o, size_t size) {
    gy_engine_opts e;
    gy_host_opts w;
    gy_xfer_limits l;
    gy_engine_opts_default(&e);
    gy_host_opts_default(&w);
    gy_xfer_limits_default(&l);
    gyre_options d = {.size = size < sizeof d ? size : sizeof d,
                      .dtype = "auto",
                      .weights = "auto",
                      .pack = "auto",
                      .pack_cache = "off",
                      .pin = "auto",
                      .backend = "auto",
                      .max_rows = e.sched.max_rows,
                      .max_seqs = e.sched.max_seqs,
                      .max_queue = e.sched.max_queue,
                      .prefix_cache = 1,
                      .kv_layout = "last_exited",
                      .kv_dtype = "auto",
                      .kv_fraction = e.kv_fraction,
                      .park_bytes = e.park_bytes,
                      .policy = "fcfs",
                      .prefill_chunk = e.sched.prefill_chunk,
                      .prefill_share = e.sched.prefill_share,
                      .fuse_loops = e.fuse_loops,
                      .reserve = "grow",
                      .watermark = e.sched.watermark,
                      .preempt = "park",
                      .min_coda = e.sched.min_coda,
                      .grammar_bytes = e.mask_bytes,
                      .worker_start_ms = w.start_ms,
                      .transfer_chunk_bytes = l.chunk_bytes,
                      .transfer_inflight_bytes = l.inflight_bytes,
                      .transfer_descriptors = l.max_desc,
                      .cluster = "default",
                      .peer_timeout_ms = w.peer_ms};
    memcpy(o, &d, d.size);
}

/* Of the struct's first version, whose last field is fuse_loops. */
#define FIRST_SIZE (offsetof(gyre_options, fuse_loops) + sizeof(int32_t))

/* A smaller struct is an older caller's; NULL strings are defaults. */
static gy_status complete(const gyre_options *o, gy_err *err, gyre_options *full) {
    gyre_options d;
    gyre_options_default(&d, sizeof d);
    *full = d;
    if (o && (o->size < FIRST_SIZE || o->size > sizeof d))
        return gy_err_set(err, GY_E_ARG, "size: found %zu, expected %zu to %zu; begin with gyre_options_default",
                          o->size, FIRST_SIZE, sizeof d);
    if (o) memcpy(full, o, o->size);
    if (!full->dtype) full->dtype = d.dtype;
    if (!full->weights) full->weights = d.weights;
    if (!full->pack) full->pack = d.pack;
    if (!full->pack_cache) full->pack_cache = d.pack_cache;
    if (!full->pin) full->pin = d.pin;
    if (!full->backend) full->backend = d.backend;
    if (!full->kv_layout) full->kv_layout = d.kv_layout;
    if (!full->kv_dtype) full->kv_dtype = d.kv_dtype;
    if (!full->policy) full->policy = d.policy;
    if (!full->reserve) full->reserve = d.reserve;
    if (!full->preempt) full->preempt = d.preempt;
    if (!full->cluster) full->cluster = d.cluster;
    return GY_OK;
}

/* The place of a word in a list that ends with NULL. */
static gy_status choose(const char *field, const char *found, const char *const *names, const char *expected,
                        gy_err *err, int *out) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(found, names[i])) {
            *out = i;
            return GY_OK;
        }
    return gy_err_set(err, GY_E_ARG, "%s: found '%.40s', expected %s", field, found, expected);
}

static gy_status sched_opts(const gyre_options *o, gy_err *err, gy_sched_opts *s) {
    static const char *const reserves[] = {"grow", "full", NULL}, *const preempts[] = {"park", "recompute", NULL};
    static const char *const policies[] = {"fcfs", "priority", NULL};
    int policy = 0, preempt = 0;
    GY_TRY(choose("policy", o->policy, policies, "fcfs or priority", err, &policy));
    GY_TRY(choose("reserve", o->reserve, reserves, "grow or full", err, &s->reserve_full));
    GY_TRY(choose("preempt", o->preempt, preempts, "park or recompute", err, &preempt));
    if (!(o->watermark >= 0 && o->watermark <= 0.5))
        return gy_err_set(err, GY_E_ARG, "watermark: found %g, expected 0 to 0.5", o->watermark);
    s->policy = policy ? GY_SCHED_PRIORITY : GY_SCHED_FCFS;
    s->preempt = preempt ? GY_PREEMPT_RECOMPUTE : GY_PREEMPT_AUTO;
    s->watermark = o->watermark;
    s->no_refill = o->no_refill != 0;
    s->min_coda = o->min_coda;
    s->prefill_chunk = o->prefill_chunk;
    s->prefill_share = o->prefill_share;
    return GY_OK;
}

/* The engine's queue has room for all that the API lets in: it never says GY_AGAIN. */
static gy_status engine_opts(const gyre_options *o, gy_err *err, gy_engine_opts *out) {
    gy_engine_opts e;
    gy_engine_opts_default(&e);
    if (o->max_queue < 0 || o->max_queue > 1 << 20)
        return gy_err_set(err, GY_E_ARG, "max_queue: found %d, expected 0 to %d", o->max_queue, 1 << 20);
    if (o->max_seqs < 1 || o->max_seqs > 1 << 16)
        return gy_err_set(err, GY_E_ARG, "max_seqs: found %d, expected 1 to %d", o->max_seqs, 1 << 16);
    if (o->threads < 0 || o->threads > 4096)
        return gy_err_set(err, GY_E_ARG, "threads: found %d, expected 0 to 4096", o->threads);
    GY_TRY(sched_opts(o, err, &e.sched));
    GY_TRY(gy_kv_layout_parse(o->kv_layout, err, &e.kv_layout, &e.cyclic_k));
    GY_TRY(gy_kv_type_parse(o->kv_dtype, err, &e.kv_type));
    e.sched.max_rows = o->max_rows;
    e.sched.max_seqs = o->max_seqs;
    e.sched.max_queue = o->max_queue + o->max_seqs;
    e.max_len = o->max_len;
    e.max_loops = o->max_loops;
    e.fuse_loops = o->fuse_loops;
    e.prefix_cache = o->prefix_cache != 0;
    e.kv_blocks = o->kv_blocks;
    e.kv_bytes = o->kv_bytes;
    e.kv_fraction = o->kv_fraction;
    e.park_bytes = o->park_bytes;
    e.mask_bytes = o->grammar_bytes;
    *out = e;
    return GY_OK;
}

/* 0: the model's context, or what the pool would hold if that is less. */
static gy_status choose_max_len(const gyre *g, const char *backend, int64_t n_engine, gy_engine_opts *e, gy_err *err) {
    gy_engine_plan plan;
    size_t left;
    if (e->max_len) return GY_OK;
    e->max_len = g->m.d.max_pos;
    if (!strncmp(backend, "cuda", 4)) return GY_OK; /* its memory is not the host's: the engine's pool decides */
    GY_TRY(gy_api_model_left(&g->m, gy_mem_available() / (size_t)n_engine, err, &left));
    GY_TRY(gy_engine_make_plan(&g->m.d, g->m.act, e, left, err, &plan));
    if (plan.kv_tokens < e->max_len) e->max_len = (int32_t)plan.kv_tokens;
    if (e->max_len < 1) e->max_len = 1;
    return GY_OK;
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static gy_status open_queues(gyre *g, const gyre_options *o, gy_err *err) {
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->event_fd < 0 || g->wake_fd < 0) return gy_err_set(err, GY_E_IO, "the system gives no event descriptor");
    g->n_slot = o->max_seqs + o->max_queue;
    g->slot = gy_mem_alloc(GY_MEM_ENGINE, (size_t)g->n_slot, sizeof *g->slot);
    g->free_slot = gy_mem_alloc(GY_MEM_ENGINE, (size_t)g->n_slot, sizeof *g->free_slot);
    if (!g->slot || !g->free_slot || gy_queue_create((size_t)g->n_slot, sizeof(gy_api_req *), &g->inbox) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory (or no event descriptor) for a queue of %d requests", g->n_slot);
    for (int32_t i = 0; i < g->n_slot; i++) g->free_slot[i] = i;
    g->n_free = g->n_slot;
    return GY_OK;
}

static const char *kv_dtype(const gyre *g) {
    if (g->host->plan.kv_type) return g->host->plan.kv_type;
    return g->m.act == GY_BF16 ? "bf16" : "f32";
}

static void set_info(gyre *g) {
    const gy_engine_plan *p = &g->host->plan;
    const gy_model_desc *d = &g->m.d;
    int64_t len = p->kv_tokens < g->host->max_len ? p->kv_tokens : g->host->max_len;
    g->info = (gyre_info){.family = d->family,
                          .dtype = g->m.act == GY_BF16 ? "bf16" : "f32",
                          .backend = g->host->backend ? g->host->backend : g->m.be->ops->name,
                          .n_vocab = d->n_vocab,
                          .n_loop = d->n_loop,
                          .max_loops = g->host->max_loops,
                          .max_len = (int32_t)len,
                          .has_gate = d->has_gate,
                          .has_tokenizer = g->m.tok != NULL,
                          .eos = g->m.eos,
                          .n_eos = g->m.n_eos,
                          .kv_bytes = p->kv_bytes,
                          .kv_token_bytes = p->kv_token_bytes,
                          .kv_tokens = p->kv_tokens,
                          .kv_limit = p->limit,
                          .park_bytes = p->park_bytes,
                          .workspace_bytes = p->workspace_bytes,
                          .weight_bytes = g->m.model ? g->m.model->weight_bytes : 0,
                          .plan = g->plan_text,
                          .weights = gy_weight_form_name(g->m.form),
                          .kv_dtype = kv_dtype(g)};
    if (p->free_bytes) gy_engine_plan_text(p, g->plan_text);
}

static gy_status open_all(gyre *g, const char *dir, const gyre_options *o, gy_err *err) {
    gy_engine_opts e = {0};
    gyre_options full;
    GY_TRY(complete(o, err, &full));
    GY_TRY(engine_opts(&full, err, &e));
    int has_peers = gy_api_wants_peers(&full); /* then no weights are needed here, and no memory for KV */
    GY_TRY(gy_api_model_open(&g->m, dir, has_peers ? "f32" : full.dtype, 1, err));
    if (!has_peers) GY_TRY(gy_api_model_set_weights(&g->m, full.weights, full.weights_head != 0, err));
    if (!has_peers) GY_TRY(gy_api_model_set_pack(&g->m, full.pack, err));
    if (!has_peers) GY_TRY(gy_api_model_set_cache(&g->m, full.pack_cache, err));
    if (!has_peers) GY_TRY(gy_api_model_set_pin(&g->m, full.pin, err));
    int64_t n_worker = (int64_t)full.prefill + full.decode + full.hybrid;
    if (!has_peers) GY_TRY(choose_max_len(g, full.backend, n_worker > 0 ? n_worker : 1, &e, err));
    GY_TRY(open_queues(g, &full, err));
    if (gy_grammar_cache_create(full.grammar_bytes, &g->grammars) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory for grammars");
    GY_TRY(gy_api_host_open(&g->m, &e, &full, NULL, NULL, err, &g->host));
    g->max_len = g->host->max_len;
    set_info(g);
    gy_api_mirror_stats(g);
    return GY_OK;
}

gyre_status gyre_open(const char *dir, const gyre_options *o, gyre_err *err, gyre **out) {
    gy_err e = {0};
    gyre *g = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *g);
    if (!g) {
        gy_err_set(&e, GY_E_NOMEM, "no memory for a handle");
        return gy_api_status(&e, err);
    }
    g->event_fd = g->wake_fd = -1;
    pthread_mutex_init(&g->room_lock, NULL);
    pthread_mutex_init(&g->ctx_lock, NULL);
    pthread_mutex_init(&g->vocab_lock, NULL);
    pthread_mutex_init(&g->stats_lock, NULL);
    gy_status st = open_all(g, dir, o, &e);
    if (st < 0) {
        if (e.status >= 0) gy_err_set(&e, st, "%.900s: cannot be opened: %s", dir, gy_status_name(st));
        gyre_close(g);
        return gy_api_status(&e, err);
    }
    *out = g;
    return GYRE_OK;
}

static void close_queues(gyre *g) {
    for (int32_t i = 0; g->slot && i < g->n_slot; i++) gy_api_req_free(g->slot[i].held);
    gy_queue_destroy(g->inbox);
    gy_mem_free(g->free_slot);
    gy_mem_free(g->slot);
    if (g->event_fd >= 0) close(g->event_fd);
    if (g->wake_fd >= 0) close(g->wake_fd);
}

void gyre_close(gyre *g) {
    if (!g) return;
    if (gy_api_inside_callback(g)) {
        gy_log(GY_LOG_ERROR, "api", "gyre_close inside a callback does nothing: the step needs the handle", NULL);
        return;
    }
    gy_api_drive_fini(g);
    gy_api_host_close(g->host); /* before the requests: they are its callbacks' argument */
    close_queues(g);
    while (g->n_ctx) gy_tok_ctx_destroy(g->ctx[--g->n_ctx]);
    gy_grammar_cache_destroy(g->grammars);
    gy_grammar_vocab_destroy(g->vocab);
    gy_api_model_close(&g->m);
    pthread_mutex_destroy(&g->room_lock);
    pthread_mutex_destroy(&g->ctx_lock);
    pthread_mutex_destroy(&g->vocab_lock);
    pthread_mutex_destroy(&g->stats_lock);
    gy_mem_free(g);
}

const gyre_info *gyre_get_info(const gyre *g) {
    return &g->info;
}
