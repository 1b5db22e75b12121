/* What workers say: who may say it, and which transition it is. Late messages (of tries and sides that are gone) are
 * counted and nothing else; what no honest worker can say ends that worker (the shell's part) and is named.
 */
#include "pd/coord_int.h"

#include <stdio.h>
#include <string.h>

enum { FULL_NS = 100000000 }; /* a worker that said "not now" is left alone so long, or until it gives something back */

static gy_status late(gy_coord *c) {
    c->stats.n_late++;
    return GY_OK;
}

/* ---- READY, CONNECTED ---------------------------------------------------------------------------------------------
 */

static gy_status check_counts(const gy_pd_info *i, gy_err *err) {
    if (i->max_seqs < 1) return gy_err_set(err, GY_E_ARG, "max_seqs: found %d, expected 1 or more", i->max_seqs);
    if (i->max_handoff < 1)
        return gy_err_set(err, GY_E_ARG, "max_handoff: found %d, expected 1 or more", i->max_handoff);
    if (i->n_block[GY_KV_CORE] < 1)
        return gy_err_set(err, GY_E_ARG, "core blocks: found %d, expected 1 or more", i->n_block[GY_KV_CORE]);
    return GY_OK;
}

static int32_t find_epoch(const gy_coord *c, uint64_t epoch) {
    for (int32_t i = 0; i < c->o.n_worker; i++)
        if (c->w[i].is_ready && c->w[i].epoch == epoch) return i;
    return -1;
}

static gy_status check_ready(const gy_coord *c, const gy_coord_worker *w, const gy_msg *m, gy_err *err) {
    if (w->is_ready) return gy_err_set(err, GY_E_FORMAT, "said ready twice in one life");
    if (m->ready.role < GY_PD_PREFILL || m->ready.role > (GY_PD_PREFILL | GY_PD_DECODE))
        return gy_err_set(err, GY_E_ARG, "role: found %d, expected 1 (prefill), 2 (decode) or 3", m->ready.role);
    if (w->role && m->ready.role != w->role)
        return gy_err_set(err, GY_E_ARG, "role: found %d, expected %d (bits: 1 prefill, 2 decode)", m->ready.role,
                          w->role);
    if (find_epoch(c, m->peer) >= 0)
        return gy_err_set(err, GY_E_ARG, "epoch %016llx: another worker has it", (unsigned long long)m->peer);
    GY_TRY(check_counts(&m->ready.info, err));
    return c->has_info ? gy_pd_info_match(&c->info, &m->ready.info, err) : GY_OK;
}

static int32_t count_planes(const gy_pd_info *i) {
    gy_kv_config k = {.layout = (gy_kv_layout)i->layout, .cyclic_k = i->cyclic_k, .n_loop = i->n_loop};
    k.n_layer[GY_KV_CORE] = i->n_layer[GY_KV_CORE];
    int32_t n = gy_kv_n_plane(&k, GY_KV_CORE);
    return n > 0 ? n : 1;
}

/* Who writes must know who is written to, never the other way round. */
static void connect_pair(gy_coord *c, int32_t p, int32_t d) {
    gy_coord_worker *to = &c->w[d];
    if (p == d || !(c->w[p].role & GY_PD_PREFILL) || !(to->role & GY_PD_DECODE)) return;
    c->w[p].pair[d] = PAIR_ASKED;
    c->o.send(c->o.user, p,
              &(gy_msg){.kind = GY_MSG_CONNECT, .peer = to->epoch, .blob = to->blob, .n_blob = to->n_blob});
}

/* As many rows as its pool holds: what it runs takes some of them, so it forgets earlier than we do. */
static gy_status open_known(const gy_coord *c, const gy_pd_info *i, gy_err *err, gy_known **out) {
    int32_t n = i->n_block[GY_KV_CORE] / count_planes(i);
    if (!c->o.prefix_cache) return GY_OK;
    return gy_known_create(n < 1 ? 1 : n > GY_KNOWN_MAX ? GY_KNOWN_MAX : n, err, out);
}

static gy_status on_ready(gy_coord *c, int32_t worker, const gy_msg *m, gy_err *err) {
    gy_coord_worker *w = &c->w[worker];
    GY_TRY(check_ready(c, w, m, err));
    void *blob = gy_mem_alloc(GY_MEM_PD, (size_t)m->n_blob + 1, 1);
    if (!blob) return gy_err_set(err, GY_E_NOMEM, "ready: no memory for %d bytes of keys", m->n_blob);
    gy_status st = open_known(c, &m->ready.info, err, &w->known);
    if (st < 0) {
        gy_mem_free(blob);
        return st;
    }
    if (m->n_blob) memcpy(blob, m->blob, (size_t)m->n_blob);
    w->blob = blob;
    w->n_blob = m->n_blob;
    w->role = m->ready.role;
    w->info = m->ready.info;
    w->epoch = m->peer;
    w->plane_core = count_planes(&w->info);
    w->is_ready = 1;
    if (!c->has_info) c->info = w->info;
    c->has_info = 1;
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        if (!c->w[i].is_ready) continue;
        connect_pair(c, worker, i);
        connect_pair(c, i, worker);
    }
    return GY_OK;
}

static gy_status on_connected(gy_coord *c, gy_coord_worker *w, const gy_msg *m) {
    int32_t d = find_epoch(c, m->peer);
    if (d < 0 || w->pair[d] != PAIR_ASKED) return late(c);
    w->pair[d] = m->status == GY_OK ? PAIR_OPEN : PAIR_FAILED;
    if (w->pair[d] == PAIR_OPEN && m->n_text) snprintf(c->stats.lane, sizeof c->stats.lane, "%.*s", m->n_text, m->text);
    return GY_OK;
}

void gy_coord_worker_down(gy_coord *c, int32_t worker) {
    gy_coord_worker *w = &c->w[worker];
    int was_ready = w->is_ready;
    w->is_ready = w->is_leaving = w->is_suspect = w->is_lost = 0;
    w->role = c->o.role[worker];
    w->full_until_ns = 0;
    w->answer_ns = 0;
    gy_known_destroy(w->known);
    w->known = NULL;
    gy_mem_free(w->blob);
    w->blob = NULL;
    w->n_blob = 0;
    memset(w->pair, PAIR_NONE, sizeof w->pair);
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        c->w[i].pair[worker] = PAIR_NONE;
        if (was_ready && c->w[i].is_ready) c->o.send(c->o.user, i, &(gy_msg){.kind = GY_MSG_GONE, .peer = w->epoch});
    }
}

/* ---- of a try ------------------------------------------------------------------------------------------------------
 */

static gy_status out_of_place(const gy_try *t, const gy_msg *m, gy_err *err) {
    static const char *const phase[] = {"free", "reserving", "prefill", "decode", "cleanup"};
    return gy_err_set(err, GY_E_FORMAT, "said %s of a request in state %s%s", gy_msg_name(m->kind), phase[t->phase],
                      t->p < 0 ? ", which it runs alone" : "");
}

static gy_status on_reserved(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err) {
    if (t->p < 0) return out_of_place(t, m, err);
    if (t->was_reserved) return late(c);
    if (m->tables.n_have < 0 || m->tables.n_have > t->req->q.r.n_prompt)
        return gy_err_set(err, GY_E_FORMAT, "reserved: found %d tokens at hand, expected 0 to %d", m->tables.n_have,
                          t->req->q.r.n_prompt);
    gy_try_reserved(c, t, &m->tables, now_ns);
    return GY_OK;
}

static gy_status on_active(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err) {
    if (!t->was_reserved && t->p >= 0) return out_of_place(t, m, err);
    if (t->was_active) return late(c);
    if (t->phase != TRY_CLEANUP) gy_times_active(t->req, &m->sent, now_ns);
    gy_try_active(c, t);
    return GY_OK;
}

static gy_status on_output(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err) {
    if (t->phase == TRY_CLEANUP) return late(c);
    if (t->phase != TRY_DECODE) return out_of_place(t, m, err);
    if (m->kind == GY_MSG_TOKEN) return gy_req_token(c, t, &m->token, now_ns, err);
    if (m->kind == GY_MSG_PROMPT) return gy_req_prompt(c, t, &m->token, err);
    return gy_req_said_finish(c, t, m, now_ns, err);
}

static void count_sent(gy_coord_stats *s, const gy_msg_sent *x) {
    int64_t wire_ns = gy_times_wire(x); /* of another clock: any number */
    s->bytes = gy_msg_add(s->bytes, x->bytes);
    s->n_op = gy_msg_add(s->n_op, x->n_op);
    s->n_desc = gy_msg_add(s->n_desc, x->n_desc);
    s->overlap_ns = gy_msg_add(s->overlap_ns, x->overlap_ns);
    s->overlap_bytes = gy_msg_add(s->overlap_bytes, x->overlap_bytes);
    s->n_overlap = gy_msg_add(s->n_overlap, x->n_overlap);
    s->wire_ns = gy_msg_add(s->wire_ns, wire_ns < GY_MSG_MOST ? wire_ns : GY_MSG_MOST);
}

static gy_status on_prefilled(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err) {
    if (m->sent.n_computed < 0 || m->sent.n_computed > t->req->q.r.n_prompt)
        return gy_err_set(err, GY_E_FORMAT, "prefilled: found %d computed tokens, expected 0 to %d", m->sent.n_computed,
                          t->req->q.r.n_prompt);
    count_sent(&c->stats, &m->sent);
    if (t->phase != TRY_CLEANUP) gy_times_sent(t->req, &m->sent, now_ns);
    gy_try_prefilled(c, t, m->sent.n_computed, now_ns);
    return GY_OK;
}

static void release(gy_coord *c, gy_try *t, int is_d) {
    if (is_d)
        gy_try_release_d(c, t);
    else
        gy_try_release_p(c, t);
}

static gy_status on_released(gy_coord *c, gy_try *t, const gy_msg *m, int is_d, gy_err *err) {
    if (t->phase != TRY_CLEANUP && (is_d || t->phase != TRY_DECODE)) return out_of_place(t, m, err);
    int is_deaf = is_d && t->is_unheard && !t->was_active;
    int32_t d = t->d;
    release(c, t, is_d);
    if (t->phase == TRY_CLEANUP) gy_try_settle(c, t);
    if (is_deaf && c->o.deaf) c->o.deaf(c->o.user, d);
    return GY_OK;
}

/* "Not now" is no failure: it keeps its age, and that worker is left alone for a while. What is wrong with the request
 * is told to the user; what is wrong with the worker is tried elsewhere. */
static void rejected(gy_coord *c, gy_coord_req *r, int32_t worker, const gy_msg *m, int64_t now_ns) {
    gy_err err;
    if (m->status >= 0) {
        c->w[worker].full_until_ns = now_ns + FULL_NS;
        gy_req_wait(c, r, r->since_ns);
    } else if (gy_req_is_at_fault((gy_status)m->status)) {
        gy_err_set(&err, (gy_status)m->status, "%.*s", m->n_text, m->text ? m->text : "");
        gy_req_end(c, r, GY_FINISH_ERROR, &err, now_ns);
    } else {
        gy_err_set(&err, GY_E_PEER, "worker %d said: %.*s", worker, m->n_text, m->text ? m->text : "");
        gy_req_failed(c, r, err.msg, now_ns);
    }
}

static gy_status on_rejected(gy_coord *c, gy_try *t, const gy_msg *m, int is_d, int64_t now_ns) {
    gy_coord_req *r = t->req;
    int32_t worker = is_d ? t->d : t->p;
    int is_over = t->phase == TRY_CLEANUP, matters = !is_over && (is_d || t->phase == TRY_PREFILL);
    release(c, t, is_d);
    if (matters) {
        gy_try_abandon(c, t);
        rejected(c, r, worker, m, now_ns);
    } else if (is_over)
        gy_try_settle(c, t);
    return GY_OK;
}

static int is_from_d_only(gy_msg_kind k) {
    return k == GY_MSG_RESERVED || k == GY_MSG_ACTIVE || k == GY_MSG_TOKEN || k == GY_MSG_PROMPT || k == GY_MSG_FINISH;
}

static gy_status of_try(gy_coord *c, int32_t worker, const gy_msg *m, int64_t now_ns, gy_err *err) {
    gy_try *t = gy_try_find(c, m->tid);
    if (!t) return late(c);
    int is_d = t->d == worker, is_p = t->p == worker;
    if ((!is_d && !is_p) || (is_from_d_only(m->kind) && !is_d) || (m->kind == GY_MSG_PREFILLED && !is_p))
        return gy_err_set(err, GY_E_FORMAT, "said %s of a request that it has no such part in", gy_msg_name(m->kind));
    if (is_d ? !t->d_held : !t->p_held) return late(c);
    if (m->kind == GY_MSG_RESERVED) return on_reserved(c, t, m, now_ns, err);
    if (m->kind == GY_MSG_ACTIVE) return on_active(c, t, m, now_ns, err);
    if (m->kind == GY_MSG_PREFILLED) return on_prefilled(c, t, m, now_ns, err);
    if (m->kind == GY_MSG_RELEASED) return on_released(c, t, m, is_d, err);
    if (m->kind == GY_MSG_REJECTED) return on_rejected(c, t, m, is_d, now_ns);
    return on_output(c, t, m, now_ns, err);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------
 */

static int is_of_try(gy_msg_kind k) {
    return k >= GY_MSG_RESERVED && k <= GY_MSG_RELEASED;
}

static gy_status dispatch(gy_coord *c, int32_t worker, const gy_msg *m, int64_t now_ns, gy_err *err) {
    gy_coord_worker *w = &c->w[worker];
    if (m->kind == GY_MSG_READY) return on_ready(c, worker, m, err);
    if (m->kind == GY_MSG_FATAL) {
        w->is_lost = 1;
        return GY_OK;
    }
    if (m->kind > GY_MSG_LEAVING || m->kind < GY_MSG_READY)
        return gy_err_set(err, GY_E_FORMAT, "said %s, which only a coordinator says", gy_msg_name(m->kind));
    if (!w->is_ready) return gy_err_set(err, GY_E_FORMAT, "said %s before ready", gy_msg_name(m->kind));
    if (m->kind == GY_MSG_CONNECTED) return on_connected(c, w, m);
    if (m->kind == GY_MSG_LEAVING) gy_coord_leave(c, worker);
    return is_of_try(m->kind) ? of_try(c, worker, m, now_ns, err) : GY_OK;
}

gy_status gy_coord_message(gy_coord *c, int32_t worker, const gy_msg *m, int64_t now_ns, gy_err *err) {
    if (worker < 0 || worker >= c->o.n_worker)
        return gy_err_set(err, GY_E_ARG, "worker: found %d, expected 0 to %d", worker, c->o.n_worker - 1);
    gy_coord_worker *w = &c->w[worker];
    if (w->is_lost)
        return gy_err_set(err, GY_E_FORMAT, "worker %d: said %s after its end", worker, gy_msg_name(m->kind));
    w->is_suspect = 0;
    w->heard_ns = now_ns;
    gy_status st = dispatch(c, worker, m, now_ns, err);
    if (st >= 0) return st;
    w->is_lost = 1;
    return err ? gy_err_prefix(err, "worker %d", worker) : st;
}
