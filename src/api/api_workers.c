/* Worker processes as a host: options become the command line of `gyre worker`, requests become messages. */
#include "api/api_workers.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/status.h"
#include "base/str.h"
#include "engine/handoff.h"
#include "model/loop.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ARGS = 96, MOST = GY_COORD_MAX_WORKERS, MAX_HANDOFF = 16 };

/* ---- devices ----------------------------------------------------------------------------------------------------- */

typedef struct devices { /* n 0: the workers' memory is the host's */
    int32_t n;
    char text[MOST][16]; /* "cuda:N" */
    const char *of[MOST];
    int32_t most; /* workers of one device */
} devices;

static gy_status read_device(const char *at, size_t len, int32_t i, gy_err *err, devices *out) {
    char word[48];
    int32_t number;
    snprintf(word, sizeof word, "%.*s", (int)(len < 40 ? len : 40), at);
    GY_TRY(gy_cuda_parse_device(word, err, &number));
    snprintf(out->text[i], sizeof out->text[i], "cuda:%d", strcmp(word, "cuda") ? number : i);
    out->of[i] = out->text[i];
    return GY_OK;
}

/* "cuda:0,cuda:2": in the order of the workers, those that prefill first, then those that decode, then those that do
 * both; from the beginning again where workers are more. "cuda": each has the GPU of its own number. */
static gy_status read_devices(const gyre_options *o, int32_t n, gy_err *err, devices *out) {
    const char *at = o->backend;
    int32_t listed = 1;
    *out = (devices){.n = strncmp(at, "cuda", 4) ? 0 : n};
    for (const char *c = at; *c; c++) listed += *c == ',';
    if (out->n && listed > n)
        return gy_err_set(err, GY_E_ARG, "backend: found %d devices for %d workers, expected at most as many", listed,
                          n);
    for (int32_t i = 0; i < out->n; i++) {
        size_t len = strcspn(at, ",");
        GY_TRY(read_device(at, len, i, err, out));
        at = at[len] ? at + len + 1 : o->backend;
    }
    for (int32_t i = 0; i < out->n; i++) {
        int32_t same = 0;
        for (int32_t k = 0; k < out->n; k++) same += !strcmp(out->text[i], out->text[k]);
        if (same > out->most) out->most = same;
    }
    return GY_OK;
}

/* ---- the command line of a worker -------------------------------------------------------------------------------- */

typedef struct command {
    gy_str text; /* all words, each with its NUL */
    size_t n;
} command;

static void word(command *c, const char *text) {
    gy_str_append(&c->text, text, strlen(text) + 1);
    c->n++;
}

static void flag(command *c, const char *name, const char *value) {
    word(c, name);
    word(c, value);
}

static void flag_int(command *c, const char *name, int64_t v) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    flag(c, name, text);
}

static void flag_num(command *c, const char *name, double v) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", v);
    flag(c, name, text);
}

/* Whatever follows from memory or the machine is decided here, once, so that all workers are alike. What a device's
 * memory holds is known to who has the device. */
static void put_engine(command *c, const gy_api_model *m, const gy_engine_opts *e, const gyre_options *o,
                       const devices *dev) {
    flag(c, "--dtype", m->act == GY_BF16 ? "bf16" : "f32");
    if (m->form != GY_WEIGHTS_AS_FILE) flag(c, "--weights", gy_weight_form_name(m->form));
    if (m->quant_head) word(c, "--weights-head");
    flag(c, "--pack", gy_pack_name(m->pack));
    flag(c, "--pin", "off"); /* workers share the cores: each would be bound to the same */
    if (gy_pack_where_any(&m->cache)) flag(c, "--pack-cache", m->cache_text);
    if (!dev->n) flag(c, "--backend", !strcmp(m->be->ops->name, "ref") ? "ref" : "cpu");
    flag_int(c, "--max-rows", e->sched.max_rows);
    flag_int(c, "--max-seqs", e->sched.max_seqs);
    flag_int(c, "--max-queue", e->sched.max_queue);
    flag_int(c, "--max-len", e->max_len);
    if (e->max_loops) flag_int(c, "--max-loops", e->max_loops);
    flag(c, "--kv-layout", o->kv_layout);
    flag(c, "--kv-dtype", gy_kv_type_name(e->kv_type));
    if (e->kv_blocks)
        flag_int(c, "--kv-blocks", e->kv_blocks);
    else
        flag_num(c, "--kv-fraction", e->kv_fraction / dev->most);
    flag_int(c, "--park-bytes", (int64_t)e->park_bytes);
    flag(c, "--prefix-cache", e->prefix_cache ? "on" : "off");
    flag_int(c, "--max-handoff", e->max_handoff);
    flag_int(c, "--grammar-bytes", (int64_t)e->mask_bytes);
}

static void put_sched(command *c, const gy_engine_opts *e) {
    const gy_sched_opts *s = &e->sched;
    static const char *const preempts[] = {
        [GY_PREEMPT_AUTO] = "auto", [GY_PREEMPT_PARK] = "park", [GY_PREEMPT_RECOMPUTE] = "recompute"};
    flag(c, "--policy", s->policy == GY_SCHED_PRIORITY ? "priority" : "fcfs");
    flag_int(c, "--prefill-chunk", s->prefill_chunk);
    flag_num(c, "--prefill-share", s->prefill_share);
    flag_int(c, "--fuse-loops", e->fuse_loops);
    flag(c, "--reserve", s->reserve_full ? "full" : "grow");
    flag_num(c, "--watermark", s->watermark);
    flag(c, "--preempt", preempts[s->preempt]);
    flag_int(c, "--min-coda", s->min_coda);
    if (s->no_refill) word(c, "--no-refill");
}

static int32_t n_worker(const gyre_options *o) {
    return o->prefill + o->decode + o->hybrid;
}

/* Cores are shared out: more threads than cores make every worker slower. */
static int32_t threads_of(const gyre_options *o) {
    int32_t share = gy_cpu_count_physical() / n_worker(o);
    return o->threads ? o->threads : share < 1 ? 1 : share;
}

static void put_rest(command *c, const gyre_options *o) {
    flag_int(c, "--threads", threads_of(o));
    flag_int(c, "--transfer-chunk-bytes", (int64_t)o->transfer_chunk_bytes);
    flag_int(c, "--transfer-inflight-bytes", (int64_t)o->transfer_inflight_bytes);
    flag_int(c, "--transfer-descriptors", o->transfer_descriptors);
    for (const char *const *a = o->worker_args; a && *a; a++) word(c, *a);
}

static gy_status split(const command *c, gy_err *err, const char *argv[MAX_ARGS]) {
    if (c->text.failed) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    if (c->n >= MAX_ARGS) return gy_err_set(err, GY_E_ARG, "worker_args: too many of them");
    const char *at = c->text.data;
    for (size_t i = 0; i < c->n; i++, at += strlen(at) + 1) argv[i] = at;
    argv[c->n] = NULL;
    return GY_OK;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static const gy_worker_host *self_of(const gy_api_host *h) {
    return (const gy_worker_host *)h;
}

static gy_status workers_check(const gy_api_host *h, const gy_request *r, gy_err *err) {
    return gy_request_check(&self_of(h)->bounds, r, err);
}

/* A grammar travels as its text. */
static gy_msg_request message_of(const gy_request *r) {
    gy_msg_request q = {.r = *r, .grammar_kind = -1};
    gy_grammar_kind kind;
    size_t n;
    if (!r->grammar) return q;
    q.grammar = gy_grammar_source(r->grammar, &kind, &n);
    q.grammar_kind = (int32_t)kind;
    q.n_grammar = (int32_t)n; /* at most GY_GRAMMAR_MAX_SOURCE */
    q.r.grammar = NULL;
    q.r.vocab = NULL;
    return q;
}

static gy_status workers_submit(gy_api_host *h, const gy_request *r, gy_err *err, int32_t *id_out) {
    const gy_worker_host *w = self_of(h);
    GY_TRY(workers_check(h, r, err));
    gy_msg_request q = message_of(r);
    gy_coord_request c = {.q = &q, .can_cross = gy_handoff_can_model(w->bounds.d, r, NULL)};
    return gy_coord_submit(gy_host_coord(w->host), &c, gy_clock_ns(), err, id_out);
}

static void workers_cancel(gy_api_host *h, int32_t id) {
    gy_coord_cancel(gy_host_coord(self_of(h)->host), id);
}

static void workers_set_deadline(gy_api_host *h, int32_t id, int64_t at_ns) {
    gy_coord_set_deadline(gy_host_coord(self_of(h)->host), id, at_ns);
}

static gy_status workers_step(gy_api_host *h, gy_err *err) {
    return gy_host_turn(self_of(h)->host, err);
}

/* ---- stats ------------------------------------------------------------------------------------------------------- */

#define ADD(sum, v) (sum) = gy_msg_add(sum, v)
static void add_engine(gy_engine_stats *e, const gy_msg_stats *s) {
    ADD(e->n_step, s->n_step);
    ADD(e->n_pass, s->n_pass);
    ADD(e->n_row, s->n_row);
    ADD(e->n_prompt_tok, s->n_prompt_tok);
    ADD(e->step_ns, s->step_ns);
    ADD(e->model_ns, s->model_ns);
    ADD(e->sample_ns, s->sample_ns);
    e->sched.n_parked += s->n_parked;
    ADD(e->sched.n_wait_tok, s->wait_tok);
    ADD(e->sched.n_park, s->n_park);
    ADD(e->sched.n_restore, s->n_restore);
    ADD(e->sched.n_drop, s->n_drop);
    ADD(e->sched.n_recomputed_tok, s->n_recomputed_tok);
    ADD(e->prefix.n_query_tok, s->cache_query_tok);
    ADD(e->prefix.n_hit_tok, s->cache_hit_tok);
    ADD(e->prefix.n_evict, s->cache_evicted);
    e->mask.n_hit += (uint64_t)s->mask_hit;
    e->mask.n_miss += (uint64_t)s->mask_miss;
    e->kv_free[GY_KV_CORE] += s->kv_free;
    e->kv_cached[GY_KV_CORE] += s->kv_cached;
    e->kv_total[GY_KV_CORE] += s->kv_total;
    e->kv_boundary += s->kv_boundary;
    for (int32_t i = 0; i < s->n_depth; i++) {
        ADD(e->n_row_at[0][i], s->n_row_at[0][i]);
        ADD(e->n_row_at[1][i], s->n_row_at[1][i]);
        e->kv_plane[i] += s->kv_plane[i];
    }
}

static void add_worker(gyre_worker_stats *w, const gy_host_worker *s) {
    w->n_worker += s->state != GY_HOST_EMPTY;
    w->n_ready += s->state == GY_HOST_RUNNING;
    w->n_decoder += s->state == GY_HOST_RUNNING && (s->role & GY_PD_DECODE);
    w->n_death += s->n_death;
    ADD(w->xfer_inflight_bytes, s->stats.xfer_inflight);
    ADD(w->xfer_failed, s->stats.xfer_failed);
}

static void add_coord(const gy_coord_stats *c, gy_api_host_stats *out) {
    gyre_worker_stats *w = &out->w;
    out->e.n_request = c->n_submit;
    for (int i = 0; i <= GY_FINISH_ERROR; i++) out->e.n_finish[i] = c->n_finish[i];
    out->e.n_output_tok = c->n_output_tok;
    out->e.n_loop_sum = c->n_loop_sum;
    memcpy(out->e.n_exit, c->n_exit, sizeof out->e.n_exit);
    out->e.sched.n_waiting = c->n_waiting;
    out->e.sched.n_wait_tok += c->wait_tok;
    out->e.sched.n_running = c->n_reserving + c->n_prefill + c->n_decode;
    w->n_reserving = c->n_reserving;
    w->n_prefill = c->n_prefill;
    w->n_decode = c->n_decode;
    w->n_crossed = c->n_crossed;
    w->n_local = c->n_local;
    w->n_retry = c->n_retry;
    w->xfer_bytes = c->bytes;
    w->xfer_ops = c->n_op;
    w->xfer_descriptors = c->n_desc;
    w->xfer_ns = c->wire_ns;
    w->overlap_ns = c->overlap_ns;
    w->overlap_bytes = c->overlap_bytes;
    w->n_overlap = c->n_overlap;
    w->used_blocks = c->used_blocks;
    _Static_assert(sizeof w->lane == sizeof c->lane, "a copy");
    memcpy(w->lane, c->lane, sizeof w->lane);
}

static void workers_stats(const gy_api_host *h, gy_api_host_stats *out) {
    gy_host *host = self_of(h)->host;
    gy_coord_stats c;
    *out = (gy_api_host_stats){0};
    for (int32_t i = -1; i < gy_host_n_worker(host); i++) {
        const gy_host_worker *s = gy_host_look(host, i);
        if (i >= 0 && s->state == GY_HOST_EMPTY) continue;
        add_engine(&out->e, &s->stats);
        add_worker(&out->w, s);
    }
    gy_coord_get_stats(gy_host_coord(host), &c);
    add_coord(&c, out);
}

static void workers_close(gy_api_host *h) {
    gy_host_close(self_of(h)->host);
    gy_disc_close(self_of(h)->disc);
    gy_mem_free(h);
}

const gy_api_host_ops gy_worker_host_ops = {workers_check, workers_submit, workers_cancel,      workers_step,
                                            workers_stats, workers_close,  workers_set_deadline};

/* ---- open -------------------------------------------------------------------------------------------------------- */

static gy_status check_counts(const gyre_options *o, gy_err *err) {
    const int32_t n[] = {o->prefill, o->decode, o->hybrid};
    static const char *const names[] = {"prefill", "decode", "hybrid"};
    for (int i = 0; i < 3; i++)
        if (n[i] < 0 || n[i] >= MOST)
            return gy_err_set(err, GY_E_ARG, "%s: found %d workers, expected 0 to %d", names[i], n[i], MOST - 1);
    if (n_worker(o) > MOST)
        return gy_err_set(err, GY_E_ARG, "prefill, decode, hybrid: found %d workers, expected at most %d", n_worker(o),
                          MOST);
    if (!o->hybrid && (!o->prefill || !o->decode))
        return gy_err_set(err, GY_E_ARG, "%s: found no such worker, and no hybrid one: both kinds of work are needed",
                          o->prefill ? "decode" : "prefill");
    if (o->local_prefill_below < 0)
        return gy_err_set(err, GY_E_ARG, "local_prefill_below: found %d, expected 0 or more", o->local_prefill_below);
    if (o->local_prefill_queue < 0)
        return gy_err_set(err, GY_E_ARG, "local_prefill_queue: found %d, expected 0 or more", o->local_prefill_queue);
    if (o->worker_start_ms < 1)
        return gy_err_set(err, GY_E_ARG, "worker_start_ms: found %d, expected 1 or more", o->worker_start_ms);
    gy_xfer_limits l = {o->transfer_chunk_bytes, o->transfer_inflight_bytes, o->transfer_descriptors};
    return gy_xfer_limits_check(&l, err);
}

static gy_status plan_pool(gy_api_model *m, const gyre_options *o, gy_engine_opts *e, gy_err *err,
                           gy_engine_plan *out) {
    int32_t n = n_worker(o);
    GY_CHECK(n > 0);
    size_t each = gy_mem_available() / (size_t)n, share = e->kv_blocks || e->kv_bytes ? 0 : each;
    gy_engine_plan fixed;
    GY_TRY(gy_api_model_settle_pack(m, each, err));
    GY_TRY(gy_api_model_left(m, share, err, &share)); /* each worker holds weights of its own */
    e->max_handoff = MAX_HANDOFF;
    GY_TRY(gy_engine_make_plan(&m->d, m->act, e, share, err, out));
    e->kv_blocks = out->n_block[GY_KV_CORE];
    e->kv_bytes = 0;
    GY_TRY(gy_engine_make_plan(&m->d, m->act, e, 0, err, &fixed)); /* as each worker will */
    fixed.limit = out->limit;
    *out = fixed;
    return GY_OK;
}

void gy_api_set_placement(const gyre_options *o, const gy_engine_opts *e, gy_coord_opts *c) {
    c->local_below = o->local_prefill_below;
    c->local_queue = o->local_prefill_queue;
    c->policy = e->sched.policy;
    c->max_bypass = c->policy == GY_SCHED_PRIORITY ? e->sched.max_bypass : 0;
}

static void set_coord(const gyre_options *o, const gy_engine_opts *e, gy_coord_opts *c) {
    c->n_worker = n_worker(o);
    for (int32_t i = 0; i < c->n_worker; i++)
        c->role[i] = i < o->prefill               ? GY_PD_PREFILL
                     : i < o->prefill + o->decode ? GY_PD_DECODE
                                                  : GY_PD_PREFILL | GY_PD_DECODE;
    c->max_queue = e->sched.max_queue;
    gy_api_set_placement(o, e, c);
    c->prefix_cache = e->prefix_cache;
}

static gy_status start_workers(gy_worker_host *w, const gy_api_model *m, const gy_engine_opts *e, const gyre_options *o,
                               const devices *dev, gy_err *err) {
    const char *argv[MAX_ARGS];
    command c = {0};
    gy_host_opts ho;
    gy_host_opts_default(&ho);
    set_coord(o, e, &ho.coord);
    word(&c, "gyre");
    word(&c, "worker");
    word(&c, m->dir);
    put_engine(&c, m, e, o, dev);
    put_sched(&c, e);
    put_rest(&c, o);
    gy_status st = split(&c, err, argv);
    ho.program = o->worker_program;
    ho.argv = argv;
    ho.device = dev->n ? dev->of : NULL;
    ho.start_ms = o->worker_start_ms;
    ho.should_stop = o->should_stop;
    ho.should_stop_user = o->should_stop_user;
    if (st == GY_OK) st = gy_host_open(&ho, err, &w->host);
    gy_str_free(&c.text);
    return st;
}

/* Devices: sizes are known when the workers are ready. */
static gy_status open_on_devices(gy_worker_host *w, gy_api_model *m, gy_engine_opts *e, const gyre_options *o,
                                 const devices *dev, gy_err *err) {
    gy_engine_plan fixed;
    e->max_handoff = MAX_HANDOFF;
    if (e->kv_bytes) {
        GY_TRY(gy_engine_make_plan(&m->d, m->act, e, 0, err, &fixed));
        e->kv_blocks = fixed.n_block[GY_KV_CORE];
        e->kv_bytes = 0;
    }
    GY_TRY(start_workers(w, m, e, o, dev, err));
    return gy_api_workers_set_bounds(w, m, e, err);
}

static gy_status open_on_host(gy_worker_host *w, gy_api_model *m, gy_engine_opts *e, const gyre_options *o,
                              const devices *dev, gy_err *err) {
    GY_TRY(plan_pool(m, o, e, err, &w->h.plan));
    w->bounds = gy_engine_plan_bounds(&m->d, m->act, e, &w->h.plan);
    gy_api_host_set_limits(&w->h, m, e);
    return start_workers(w, m, e, o, dev, err);
}

gy_status gy_api_workers_open(gy_api_model *m, const gy_engine_opts *opts, const gyre_options *o, gy_err *err,
                              gy_api_host **out) {
    gy_engine_opts e = *opts;
    devices dev;
    if (gy_api_wants_peers(o)) return gy_api_peers_open(m, opts, o, err, out);
    GY_TRY(check_counts(o, err));
    GY_TRY(read_devices(o, n_worker(o), err, &dev));
    gy_ops_limits limits = gy_loop_limits(&m->d, 1, e.max_len);
    gy_api_load_opts load = {.backend = dev.n ? "auto" : o->backend, .threads = 1, .limits = &limits};
    GY_TRY(gy_api_model_open_backend(m, &load, err));
    gy_worker_host *w = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *w);
    if (!w) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    w->h.ops = &gy_worker_host_ops;
    w->h.backend = dev.n ? "cuda" : NULL;
    gy_status st = dev.n ? open_on_devices(w, m, &e, o, &dev, err) : open_on_host(w, m, &e, o, &dev, err);
    if (st < 0) {
        w->h.ops->close(&w->h);
        return st;
    }
    w->h.fd = gy_host_fd(w->host);
    *out = &w->h;
    return GY_OK;
}
