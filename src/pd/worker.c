/* A worker's life and its engine half: messages in, one turn, what is said. What it does for one request: worker_p.c,
 * worker_d.c. */
#include "pd/worker_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- saying ------------------------------------------------------------------------------------------------------ */

void gy_worker_say(gy_worker *w, gy_msg_kind kind, gy_tid tid) {
    gy_msg m = {.kind = kind, .tid = tid};
    w->o.send(w->o.user, &m);
}

static void say_status(gy_worker *w, gy_msg m, const gy_err *err) {
    m.status = err->status;
    m.text = err->msg;
    m.n_text = (int32_t)strlen(err->msg);
    w->o.send(w->o.user, &m);
}

void gy_worker_reject(gy_worker *w, gy_tid tid, const gy_err *err) {
    say_status(w, (gy_msg){.kind = GY_MSG_REJECTED, .tid = tid}, err);
}

/* ---- the other half ---------------------------------------------------------------------------------------------- */

void gy_worker_tell_xfer(gy_worker *w, gy_rec r) {
    gy_status st = gy_queue_push(w->to_xfer, &r);
    GY_CHECK(st == GY_OK);
    if (!atomic_exchange(&w->is_woken, 1)) gy_xfer_wake(w->x);
}

static void free_peer(gy_peer *p) {
    if (p) gy_mem_free(p->blob);
    gy_mem_free(p);
}

static void sweep_peer(gy_worker *w, gy_peer *p) {
    if (!p->is_dropped || p->n_push) return;
    for (gy_peer **at = &w->peers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    w->n_peer--;
    free_peer(p);
}

void gy_peer_unuse(gy_worker *w, gy_peer *p) {
    p->n_push--;
    sweep_peer(w, p);
}

static void connected(gy_worker *w, gy_peer *p) {
    w->n_asked--;
    if (p->state != GY_PEER_ASKED) return; /* gone meanwhile */
    p->state = p->err.status < 0 ? GY_PEER_FAILED : GY_PEER_UP;
    if (p->state == GY_PEER_UP)
        snprintf(p->err.msg, sizeof p->err.msg, "%s", p->lanes);
    else
        gy_log(GY_LOG_WARN, "transfer", "a worker cannot be written to", "reason=\"%s\"", p->err.msg);
    w->is_stale |= p->state == GY_PEER_FAILED && w->has_lost && p->err.status != GY_E_UNSUPPORTED;
    say_status(w, (gy_msg){.kind = GY_MSG_CONNECTED, .peer = p->epoch}, &p->err);
}

static void returned(gy_part *t) {
    if (t->kind == GY_PART_PREFILL)
        gy_part_p_returned(t);
    else
        gy_part_d_returned(t);
}

static void take(gy_worker *w, const gy_rec *r) {
    gy_peer *p = r->ptr;
    switch ((gy_rec_kind)r->kind) {
    case GY_REC_CONNECTED:
        connected(w, p);
        break;
    case GY_REC_DROPPED:
        w->n_gone--;
        if (!p) break;
        p->is_dropped = 1;
        sweep_peer(w, p);
        break;
    case GY_REC_UNSAFE:
        w->is_unsafe = 1;
        break;
    case GY_REC_RETURNED:
        returned(r->ptr);
        break;
    default:
        GY_CHECK(!"a record of the other direction");
    }
}

static int take_all(gy_worker *w) {
    gy_rec r;
    int n = 0;
    gy_queue_fd_clear(w->to_engine);
    for (; gy_queue_pop(w->to_engine, &r) == GY_OK; n++) take(w, &r);
    return n;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static gy_peer *find_peer(const gy_worker *w, uint64_t epoch) {
    for (gy_peer *p = w->peers; p; p = p->next)
        if (p->epoch == epoch) return p;
    return NULL;
}

static gy_peer *make_peer(gy_worker *w, const gy_msg *m) {
    gy_peer *p = gy_mem_alloc(GY_MEM_PD, 1, sizeof *p);
    if (!p) return NULL;
    p->blob = gy_mem_alloc(GY_MEM_PD, (size_t)m->n_blob + 1, 1);
    if (!p->blob) {
        free_peer(p);
        return NULL;
    }
    memcpy(p->blob, m->blob, (size_t)m->n_blob);
    p->n_blob = m->n_blob;
    p->epoch = m->peer;
    p->next = w->peers;
    w->peers = p;
    w->n_peer++;
    w->n_asked++;
    return p;
}

static void take_connect(gy_worker *w, const gy_msg *m) {
    gy_err err = {0};
    if (find_peer(w, m->peer)) {
        w->n_ignored++;
        return;
    }
    gy_peer *p = w->n_peer < GY_WORKER_MAX_PEERS ? make_peer(w, m) : NULL;
    if (p) {
        gy_worker_tell_xfer(w, (gy_rec){.kind = GY_REC_CONNECT, .ptr = p});
        return;
    }
    gy_err_set(&err, GY_E_LIMIT, "connect: no memory, or more than %d workers", GY_WORKER_MAX_PEERS);
    say_status(w, (gy_msg){.kind = GY_MSG_CONNECTED, .peer = m->peer}, &err);
}

/* Whoever is gone may have been writing here, whether this worker writes there or not: the other half keeps it out. */
static gy_status take_gone(gy_worker *w, const gy_msg *m, gy_err *err) {
    gy_peer *p = find_peer(w, m->peer);
    if (p && p->state == GY_PEER_GONE) {
        w->n_ignored++;
        return GY_OK;
    }
    if (w->n_gone == GY_WORKER_MAX_PEERS)
        return gy_err_set(err, GY_E_LIMIT, "message gone: of more than %d workers at once", GY_WORKER_MAX_PEERS);
    w->has_lost |= p && w->o.xfer.device; /* be it one that died while it was met: it may be mapped */
    if (p) p->state = GY_PEER_GONE;
    w->n_gone++;
    gy_worker_tell_xfer(w, (gy_rec){.kind = GY_REC_GONE, .ptr = p, .serial = m->peer});
    return GY_OK;
}

static gy_status check_role(const gy_worker *w, const gy_msg *m, gy_err *err) {
    int32_t need = m->kind == GY_MSG_PREFILL ? GY_PD_PREFILL : m->kind == GY_MSG_RESERVE ? GY_PD_DECODE : 0;
    if (w->is_stopping) return gy_err_set(err, GY_E_CANCELLED, "%s: this worker is ending", gy_msg_name(m->kind));
    if (!need || (w->o.role & need)) return GY_OK;
    return gy_err_set(err, GY_E_UNSUPPORTED, "%s: this worker has another role", gy_msg_name(m->kind));
}

static gy_status take_work(gy_worker *w, const gy_msg *m, gy_err *err) {
    gy_err why = {0};
    if (gy_part_find(w, m->tid))
        return gy_err_set(err, GY_E_FORMAT, "message %s: transfer %016llx%016llx is here already", gy_msg_name(m->kind),
                          (unsigned long long)m->tid.hi, (unsigned long long)m->tid.lo);
    gy_status st = check_role(w, m, &why);
    if (st >= 0)
        st = m->kind == GY_MSG_PREFILL   ? gy_part_prefill(w, m, &why)
             : m->kind == GY_MSG_RESERVE ? gy_part_reserve(w, m, &why)
                                         : gy_part_local(w, m, &why);
    if (st < 0) gy_worker_reject(w, m->tid, &why);
    return GY_OK;
}

static void take_cancel(gy_worker *w, const gy_msg *m) {
    gy_part *t = gy_part_find(w, m->tid);
    if (!t)
        w->n_ignored++; /* it ended, and said so */
    else if (t->kind == GY_PART_PREFILL)
        gy_part_p_cancel(t);
    else
        gy_part_d_cancel(t, m->kind == GY_MSG_CANCEL_SAFE || t->kind == GY_PART_LOCAL);
}

gy_status gy_worker_message(gy_worker *w, const gy_msg *m, gy_err *err) {
    w->n_work++;
    switch (m->kind) {
    case GY_MSG_CONNECT:
        take_connect(w, m);
        return GY_OK;
    case GY_MSG_GONE:
        return take_gone(w, m, err);
    case GY_MSG_RESERVE:
    case GY_MSG_PREFILL:
    case GY_MSG_LOCAL:
        return take_work(w, m, err);
    case GY_MSG_CANCEL:
    case GY_MSG_CANCEL_SAFE:
        take_cancel(w, m);
        return GY_OK;
    case GY_MSG_STOP:
        w->is_stopping = 1;
        return GY_OK;
    case GY_MSG_PING:
        gy_worker_say(w, GY_MSG_PONG, (gy_tid){0});
        return GY_OK;
    default:
        return gy_err_set(err, GY_E_FORMAT, "message %s: a worker does not get it", gy_msg_name(m->kind));
    }
}

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

/* Parts that wait, in order of arrival; of each kind the first that finds no place ends it. */
static int admit(gy_worker *w) {
    int n = 0, full[GY_PART_KINDS] = {0}, queue_full = 0;
    if (!(w->n_wait[GY_PART_PREFILL] + w->n_wait[GY_PART_DECODE] + w->n_wait[GY_PART_LOCAL] + w->n_there)) return 0;
    for (gy_part *t = w->first, *next; t; t = next) {
        next = t->next;
        gy_status st = GY_AGAIN;
        if (t->state == GY_PART_THERE || (t->state == GY_PART_WAIT && t->kind == GY_PART_LOCAL)) {
            if (!queue_full) st = gy_part_try_submit(t);
            queue_full |= st == GY_AGAIN;
        } else if (t->state == GY_PART_WAIT && !full[t->kind]) {
            int kind = (int)t->kind;
            st = kind == GY_PART_PREFILL ? gy_part_try_export(t) : gy_part_try_open(t);
            full[kind] = st == GY_AGAIN;
        }
        n += st != GY_AGAIN;
    }
    return n;
}

static int settle(gy_worker *w) {
    int n = 0;
    if (!w->n_over) return 0;
    w->n_over = 0;
    for (gy_part *t = w->first, *next; t; t = next) {
        next = t->next;
        n += t->kind == GY_PART_PREFILL ? gy_part_p_settle(t) : gy_part_d_settle(t);
    }
    return n;
}

static int64_t now_of(const gy_worker *w) {
    return w->o.now_ns ? w->o.now_ns(w->o.user) : gy_clock_ns();
}

/* Prompts that are to be computed here and that the engine has not heard of. */
static int64_t waiting_tokens(const gy_worker *w) {
    int64_t n = 0;
    if (!(w->n_wait[GY_PART_PREFILL] + w->n_wait[GY_PART_LOCAL])) return 0;
    for (const gy_part *t = w->first; t; t = t->next)
        if (t->state == GY_PART_WAIT && t->kind != GY_PART_DECODE)
            n += (int64_t)t->r.n_prompt * (t->kind == GY_PART_LOCAL ? t->r.n : 1);
    return n;
}

static void fill_xfer(const gy_worker *w, gy_msg_stats *out) {
    out->xfer_bytes = atomic_load_explicit(&w->counts.bytes, memory_order_relaxed);
    out->xfer_ops = atomic_load_explicit(&w->counts.ops, memory_order_relaxed);
    out->xfer_desc = atomic_load_explicit(&w->counts.desc, memory_order_relaxed);
    out->xfer_failed = atomic_load_explicit(&w->counts.failed, memory_order_relaxed);
    out->xfer_inflight = atomic_load_explicit(&w->counts.inflight, memory_order_relaxed);
}

static void fill_tables(const gy_worker *w, const gy_engine_stats *s, gy_msg_stats *out) {
    out->n_depth = w->depth < GY_STAT_DEPTHS ? w->depth : GY_STAT_DEPTHS;
    memcpy(out->n_row_at, s->n_row_at, sizeof out->n_row_at);
    memcpy(out->kv_plane, s->kv_plane, sizeof out->kv_plane);
    out->kv_boundary = s->kv_boundary;
}

static void fill_stats(const gy_worker *w, const gy_engine_stats *s, gy_msg_stats *out) {
    const int32_t *n = w->n_wait;
    *out = (gy_msg_stats){.n_waiting = s->sched.n_waiting + n[GY_PART_PREFILL] + n[GY_PART_DECODE] + n[GY_PART_LOCAL],
                          .n_running = s->sched.n_running,
                          .n_parked = s->sched.n_parked,
                          .n_handoff = gy_engine_n_handoff(w->e),
                          .kv_free = s->kv_free[GY_KV_CORE],
                          .kv_cached = s->kv_cached[GY_KV_CORE],
                          .kv_total = s->kv_total[GY_KV_CORE],
                          .wait_tok = s->sched.n_wait_tok + waiting_tokens(w),
                          .n_step = s->n_step,
                          .n_pass = s->n_pass,
                          .n_row = s->n_row,
                          .n_output_tok = s->n_output_tok,
                          .n_prompt_tok = s->n_prompt_tok,
                          .n_park = s->sched.n_park,
                          .n_restore = s->sched.n_restore,
                          .n_drop = s->sched.n_drop,
                          .n_recomputed_tok = s->sched.n_recomputed_tok,
                          .cache_query_tok = s->prefix.n_query_tok,
                          .cache_hit_tok = s->prefix.n_hit_tok,
                          .cache_evicted = s->prefix.n_evict,
                          .mask_hit = (int64_t)s->mask.n_hit,
                          .mask_miss = (int64_t)s->mask.n_miss,
                          .step_ns = s->step_ns,
                          .model_ns = s->model_ns,
                          .sample_ns = s->sample_ns};
    fill_xfer(w, out);
    fill_tables(w, s, out);
}

/* Each GY_WORKER_STATS_MS while anything happens, at once when an eighth of the pool has come or gone, and when nothing
 * is left. */
static void tell_stats(gy_worker *w, int is_last) {
    int64_t now = now_of(w);
    int32_t is_free = gy_kv_n_free(gy_engine_kv(w->e), GY_KV_CORE),
            total = gy_kv_get_config(gy_engine_kv(w->e))->n_block[GY_KV_CORE];
    int32_t moved = is_free > w->stats_free ? is_free - w->stats_free : w->stats_free - is_free;
    if (now < w->stats_due_ns && moved <= total / 8 && !is_last) return;
    gy_msg m = {.kind = GY_MSG_STATS};
    gy_engine_stats s;
    gy_engine_get_stats(w->e, &s);
    fill_stats(w, &s, &m.stats);
    w->stats_due_ns = now + (int64_t)GY_WORKER_STATS_MS * 1000000;
    w->stats_free = is_free;
    w->has_changed = 0;
    w->o.send(w->o.user, &m);
}

/* With prompts that cross, a step may find that all wait for others; GY_OK says that it ran, not that anything moved.
 * Twice in a row, so that what one step only prepared is not slept on. */
static int64_t work_done(const gy_worker *w) {
    gy_engine_stats s;
    gy_engine_get_stats(w->e, &s);
    int64_t n = s.n_row + s.n_output_tok + s.sched.n_park + s.sched.n_drop;
    for (int i = 0; i <= GY_FINISH_ERROR; i++) n += s.n_finish[i];
    return n;
}

static gy_status step(gy_worker *w, gy_err *err, int *worked_out) {
    gy_busy_begin(&w->busy, gy_clock_ns());
    gy_status st = gy_engine_step(w->e, err);
    int64_t done = work_done(w);
    gy_busy_end(&w->busy, gy_clock_ns(), done != w->done);
    w->n_idle = st == GY_OK && done == w->done ? w->n_idle + 1 : 0;
    w->done = done;
    *worked_out = st == GY_OK && w->n_idle < 2;
    return st;
}

static gy_status lost(gy_worker *w, const gy_err *err) {
    say_status(w, (gy_msg){.kind = GY_MSG_FATAL}, err);
    return err->status;
}

/* Memory that a stranger may write into serves nobody; it goes with this process. */
static gy_status unsafe(gy_err *why) {
    return gy_err_set(why, GY_E_PEER, "a worker that was cut off cannot be kept from writing here");
}

/* What is mapped of a dead one's device memory may stay mapped; then no other is reached in its place. */
static gy_status stale(gy_err *why) {
    return gy_err_set(why, GY_E_PEER, "a worker on a GPU is not reached behind one that is gone; this one begins anew");
}

gy_status gy_worker_turn(gy_worker *w, gy_err *err) {
    gy_err why = {0};
    int worked = 0;
    int64_t n = w->n_work;
    w->n_work = 0;
    n += take_all(w);
    n += admit(w);
    gy_status st = w->is_unsafe ? unsafe(&why) : w->is_stale ? stale(&why) : step(w, &why, &worked);
    if (st < 0) {
        if (err) *err = why;
        return lost(w, &why);
    }
    n += worked + settle(w);
    int is_empty = gy_worker_is_empty(w);
    w->has_changed |= n > 0;
    if (w->has_changed) tell_stats(w, is_empty);
    return n ? GY_OK : is_empty ? GY_DONE : GY_AGAIN;
}

int gy_worker_fd(const gy_worker *w) {
    return gy_queue_fd(w->to_engine);
}

int gy_worker_is_empty(const gy_worker *w) {
    return !w->first && !w->n_asked;
}

int gy_worker_is_stopping(const gy_worker *w) {
    return w->is_stopping;
}

const gy_engine *gy_worker_engine(const gy_worker *w) {
    return w->e;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static size_t gate_off(const gy_model_desc *d) {
    return GY_ALIGN_UP((size_t)d->n_embd * sizeof(float), 64);
}

size_t gy_worker_slot_bytes(const gy_model_desc *d, int32_t depth) {
    return gate_off(d) + GY_ALIGN_UP(2 * sizeof(int32_t) + (size_t)depth * sizeof(float), 64);
}

/* NULL without a word: the engine says how much could not be had. */
static gy_status lend_device(gy_worker *w, int group, size_t bytes, int32_t *region_out) {
    const gy_device *dev = w->o.xfer.device;
    void *mem = dev->alloc(dev->arg, bytes);
    if (!mem) return GY_E_NOMEM;
    w->device_mem[group] = mem;
    return gy_xfer_region_map(w->x, mem, bytes, &w->lend_err, region_out);
}

static void *lend_region(void *arg, int group, size_t bytes) {
    gy_worker *w = arg;
    int32_t region;
    gy_status st = w->o.xfer.device ? lend_device(w, group, bytes, &region)
                                    : gy_xfer_region_alloc(w->x, bytes, &w->lend_err, &region, &w->mem[group]);
    if (st < 0) return NULL;
    if (w->o.xfer.device) w->mem[group] = w->device_mem[group];
    GY_CHECK(region == group);
    w->n_region = region + 1;
    return w->mem[group];
}

static gy_status open_engine(gy_worker *w, gy_err *err) {
    gy_engine_opts o = w->o.engine;
    if (w->o.role == (GY_PD_PREFILL | GY_PD_DECODE)) o.max_handoff *= 2;
    o.kv_memory = lend_region;
    o.kv_memory_arg = w;
    gy_status st = gy_engine_open(w->o.model, &o, err, &w->e);
    if (st < 0 && w->lend_err.status < 0 && err) *err = w->lend_err;
    return st;
}

static void measure(gy_worker *w) {
    const gy_kv_config *c = gy_kv_get_config(gy_engine_kv(w->e));
    const gy_model_desc *d = &w->o.model->d;
    w->depth = c->n_loop;
    w->n_core = gy_kv_n_plane(c, GY_KV_CORE) < d->n_loop ? gy_kv_n_plane(c, GY_KV_CORE) : d->n_loop;
    w->n_plane = w->n_core + (gy_desc_boundary_layers(d) > 0);
    w->row_bytes = (size_t)d->n_embd * gy_dtype_bytes(w->o.model->be->act);
    w->gate_off = gate_off(d);
    w->slot_bytes = gy_worker_slot_bytes(d, w->depth);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        w->block_bytes[g] = gy_engine_get_plan(w->e)->block_bytes[g];
        w->group[g] = (gy_seg_group){.src_region = g,
                                     .dst_region = g,
                                     .n_layer = c->n_layer[g],
                                     .tok_bytes = gy_kv_row_bytes(c),
                                     .n_block_src = c->n_block[g]};
    }
}

static gy_status open_regions(gy_worker *w, gy_err *err) {
    while (w->n_region < GY_WORKER_REGIONS) {
        int32_t i = w->n_region;
        size_t bytes = i == GY_REGION_HIDDEN ? 2 * (size_t)w->max_handoff * w->slot_bytes : 4096;
        GY_TRY(gy_xfer_region_alloc(w->x, bytes, err, &w->n_region, &w->mem[i]));
        w->n_region = i + 1;
    }
    return GY_OK;
}

static gy_status no_memory(gy_err *err) {
    return gy_err_set(err, GY_E_NOMEM, "no memory for a worker's tables");
}

static gy_status open_tables(gy_worker *w, gy_err *err) {
    size_t places = (size_t)w->max_handoff, desc = (size_t)w->o.xfer.limits.max_desc;
    size_t cells = 16 * places + 4 * GY_WORKER_MAX_PEERS;
    w->live = gy_mem_alloc(GY_MEM_PD, 2 * places, sizeof(void *));
    w->slot_used = gy_mem_alloc(GY_MEM_PD, 2 * places, 1);
    w->hidden = gy_mem_alloc(GY_MEM_PD, (size_t)w->o.model->d.n_embd, sizeof(float));
    w->gates = gy_mem_alloc(GY_MEM_PD, (size_t)w->depth, sizeof(float));
    w->table = gy_mem_alloc(GY_MEM_PD, (size_t)w->n_plane, sizeof *w->table);
    w->ops = gy_mem_alloc(GY_MEM_PD, GY_WORKER_OPS, sizeof *w->ops);
    w->descs = gy_mem_alloc(GY_MEM_PD, GY_WORKER_OPS * desc, sizeof *w->descs);
    if (!w->live || !w->slot_used || !w->hidden || !w->gates || !w->table || !w->ops || !w->descs)
        return no_memory(err);
    for (size_t i = 0; i < GY_WORKER_OPS; i++) {
        w->ops[i].desc = w->descs + i * desc;
        w->ops[i].next = w->free_ops;
        w->free_ops = &w->ops[i];
    }
    if (gy_queue_create(cells, sizeof(gy_rec), &w->to_xfer) < 0) return no_memory(err);
    if (gy_queue_create(cells, sizeof(gy_rec), &w->to_engine) < 0) return no_memory(err);
    return GY_OK;
}

static void fill_info(const gy_worker *w, gy_pd_info *i) {
    const gy_kv_config *c = gy_kv_get_config(gy_engine_kv(w->e));
    const gy_model_desc *d = &w->o.model->d;
    *i = (gy_pd_info){.dtype = (int32_t)c->dtype,
                      .layout = (int32_t)c->layout,
                      .cyclic_k = c->cyclic_k,
                      .n_loop = d->n_loop,
                      .depth = w->depth,
                      .n_head_kv = c->n_head_kv,
                      .head_dim = c->head_dim,
                      .n_embd = d->n_embd,
                      .n_vocab = d->n_vocab,
                      .max_len = w->o.engine.max_len,
                      .max_seqs = w->o.engine.sched.max_seqs,
                      .max_queue = w->o.engine.sched.max_queue,
                      .max_handoff = w->max_handoff};
    strncpy(i->family, d->family, sizeof i->family - 1);
    memcpy(i->fingerprint, w->o.fingerprint, sizeof i->fingerprint);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        i->n_layer[g] = c->n_layer[g];
        i->n_block[g] = c->n_block[g];
    }
}

static gy_status say_ready(gy_worker *w, gy_err *err) {
    char *blob = gy_mem_alloc(GY_MEM_PD, GY_XFER_MAX_BLOB, 1);
    size_t len = 0;
    if (!blob) return no_memory(err);
    gy_status st = gy_xfer_export(w->x, blob, GY_XFER_MAX_BLOB, &len, err);
    if (st >= 0) {
        gy_msg m = {.kind = GY_MSG_READY, .peer = w->o.epoch, .blob = blob, .n_blob = (int32_t)len};
        m.ready.role = w->o.role;
        m.ready.pid = getpid();
        fill_info(w, &m.ready.info);
        w->o.send(w->o.user, &m);
    }
    gy_mem_free(blob);
    return st;
}

gy_status gy_worker_open(const gy_worker_opts *o, gy_err *err, gy_worker **out) {
    if (o->engine.max_handoff < 1)
        return gy_err_set(err, GY_E_ARG, "max_handoff: found %d, expected 1 or more", o->engine.max_handoff);
    gy_worker *w = gy_mem_alloc(GY_MEM_PD, 1, sizeof *w);
    if (!w) return no_memory(err);
    w->o = *o;
    w->max_handoff = o->engine.max_handoff;
    gy_status st;
    GY_TRY_GOTO(st, gy_worker_open_xfer(w, err), fail);
    GY_TRY_GOTO(st, open_engine(w, err), fail);
    measure(w);
    GY_TRY_GOTO(st, open_regions(w, err), fail);
    GY_TRY_GOTO(st, open_tables(w, err), fail);
    w->stats_free = gy_kv_n_free(gy_engine_kv(w->e), GY_KV_CORE);
    w->stats_due_ns = now_of(w);
    GY_TRY_GOTO(st, say_ready(w, err), fail);
    *out = w;
    return GY_OK;
fail:
    gy_worker_close(w);
    return st;
}

/* The engine first: its arenas are the transfer's. Ops that are under way end inside gy_xfer_close, into parts that are
 * still there. */
void gy_worker_close(gy_worker *w) {
    if (!w) return;
    gy_engine_close(w->e);
    for (gy_peer *p = w->peers; p; p = p->next) p->x = NULL; /* dropped by this, and not mended */
    gy_xfer_close(w->x);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (w->device_mem[g]) w->o.xfer.device->free(w->o.xfer.device->arg, w->device_mem[g]);
    for (gy_part *t = w->first, *next; t; t = next) {
        next = t->next;
        gy_part_free(t);
    }
    for (gy_peer *p = w->peers, *next; p; p = next) {
        next = p->next;
        free_peer(p);
    }
    gy_queue_destroy(w->to_xfer);
    gy_queue_destroy(w->to_engine);
    gy_mem_free(w->live);
    gy_mem_free(w->slot_used);
    gy_mem_free(w->hidden);
    gy_mem_free(w->gates);
    gy_mem_free(w->table);
    gy_mem_free(w->ops);
    gy_mem_free(w->descs);
    gy_mem_free(w);
}
