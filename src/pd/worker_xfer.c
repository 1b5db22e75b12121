/* The transfer half: records in, notes and completions, ops out. What an op is made of: worker_push.c. */
#include "pd/worker_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

void gy_worker_tell_engine(gy_worker *w, gy_rec_kind kind, void *ptr) {
    gy_status st = gy_queue_push(w->to_engine, &(gy_rec){.kind = kind, .ptr = ptr});
    GY_CHECK(st == GY_OK);
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

static int connect_peer(gy_worker *w, gy_peer *p) {
    p->err = (gy_err){0};
    gy_status st = gy_xfer_import(w->x, p->blob, (size_t)p->n_blob, &p->err, &p->x);
    if (st == GY_AGAIN) return 0;
    if (st >= 0) {
        for (int32_t i = 0; i < GY_WORKER_REGIONS; i++) p->region_bytes[i] = gy_xfer_peer_region_bytes(p->x, i);
        snprintf(p->lanes, sizeof p->lanes, "%s", gy_xfer_lanes(p->x));
    }
    gy_worker_tell_engine(w, GY_REC_CONNECTED, p);
    return 1;
}

/* Others go on meanwhile. */
static int connect_all(gy_worker *w) {
    int n = 0;
    for (gy_peer *p; (p = w->waiting) && connect_peer(w, p); n++) w->waiting = p->next_waiting;
    return n;
}

static void ask(gy_worker *w, gy_peer *p) {
    gy_peer **at = &w->waiting;
    while (*at) at = &(*at)->next_waiting;
    p->next_waiting = NULL;
    *at = p;
    connect_all(w);
}

static void unask(gy_worker *w, gy_peer *p) {
    for (gy_peer **at = &w->waiting; *at; at = &(*at)->next_waiting) {
        if (*at != p) continue;
        *at = p->next_waiting;
        gy_err_set(&p->err, GY_E_PEER, "it is gone");
        gy_worker_tell_engine(w, GY_REC_CONNECTED, p);
        return;
    }
}

static void drop_peer(gy_worker *w, gy_peer *p) {
    unask(w, p);
    for (int32_t i = w->max_handoff; i < 2 * w->max_handoff; i++)
        if (w->live[i] && w->live[i]->push.peer == p) gy_push_fail(w->live[i], GY_E_PEER, "it is gone");
    gy_peer_forget(w, p);
    gy_xfer_peer_drop(p->x);
    p->x = NULL;
}

/* It may live on, cut off from the coordinator alone, and have writes under way. A FORGET that gives pages away comes
 * behind GONE in the same queue, and finds this done. */
static void keep_out(gy_worker *w) {
    gy_err err = {0};
    gy_status st = gy_xfer_forbid(w->x, w->gone.serial, &err);
    if (st == GY_AGAIN || w->told_unsafe) return;
    if (st < 0) {
        gy_log(GY_LOG_ERROR, "transfer", "this worker ends: a writer cannot be kept out", "reason=\"%s\"", err.msg);
        w->told_unsafe = 1;
        gy_worker_tell_engine(w, GY_REC_UNSAFE, NULL);
        return;
    }
    w->has_gone = 0;
    gy_worker_tell_engine(w, GY_REC_DROPPED, w->gone.ptr);
}

static void begin_gone(gy_worker *w, const gy_rec *r) {
    if (r->ptr) drop_peer(w, r->ptr);
    w->gone = *r;
    w->has_gone = 1;
    keep_out(w);
}

/* ---- notes ------------------------------------------------------------------------------------------------------- */

static gy_part *listener(const gy_worker *w, const gy_pd_note *n, uint64_t from) {
    for (int32_t i = 0; i < w->max_handoff; i++) {
        gy_part *t = w->live[i];
        if (t && gy_tid_same(t->tid, n->tid)) return t->peer == from ? t : NULL;
    }
    return NULL;
}

/* On our clock: as if the last op had been posted when it was heard of. Any numbers may have come. */
static void lay_out(gy_msg_sent *s, const gy_pd_note *n, int64_t now) {
    *s = (gy_msg_sent){.bytes = n->bytes, .n_op = n->total, .n_desc = n->n_desc};
    s->start_ns = (int64_t)((uint64_t)now - (uint64_t)n->start_ago_ns);
    s->compute_ns = (int64_t)((uint64_t)now - (uint64_t)n->compute_ago_ns);
    s->last_post_ns = now;
}

/* A set of what came; whatever does not fit together is not heard. */
static void hear(gy_hear *h, const gy_pd_note *n) {
    uint32_t bit = 1u << n->seq % 32;
    if (n->total && h->total && n->total != h->total) return;
    if (h->seen[n->seq / 32] & bit) return;
    h->seen[n->seq / 32] |= bit;
    h->n_seen++;
    if (n->seq >= h->top) h->top = n->seq + 1;
    if (!n->total) return;
    h->total = n->total;
    h->loops = (int32_t)n->loops;
    lay_out(&h->sent, n, gy_clock_ns());
}

static void deliver(gy_worker *w, const gy_pd_note *n, uint64_t from) {
    gy_part *t = listener(w, n, from);
    if (!t) return;
    hear(&t->hear, n);
    if (!t->hear.total || t->hear.n_seen != t->hear.total || t->hear.top != t->hear.total) return;
    t->hear.is_complete = 1;
    w->live[t->slot] = NULL;
    gy_worker_tell_engine(w, GY_REC_RETURNED, t);
}

/* A note may come before its part's record was taken, if that was queued after this turn had looked: so notes wait for
 * the end of the poll, and records are taken once more before they are heard. */
static void on_note(void *user, uint64_t from_epoch, const void *bytes, size_t len) {
    gy_worker *w = user;
    gy_pd_note n;
    if (len != sizeof n) return;
    memcpy(&n, bytes, sizeof n);
    if (n.magic != GY_PD_NOTE_MAGIC || n.seq >= GY_PD_MAX_OPS || n.total > GY_PD_MAX_OPS) return;
    if (w->n_heard < GY_WORKER_HEARD)
        w->heard[w->n_heard++] = (gy_heard){n, from_epoch};
    else
        deliver(w, &n, from_epoch); /* so many come of parts that have been here for long */
}

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    gy_push_done(user, op, st);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static gy_part *live_at(const gy_worker *w, const gy_rec *r) {
    gy_part *t = w->live[r->slot];
    return t && t->serial == r->serial ? t : NULL;
}

static void start(gy_worker *w, gy_part *t) {
    w->live[t->slot] = t;
    if (t->kind == GY_PART_PREFILL) gy_push_begin(t);
}

static void forget(gy_worker *w, gy_part *t) {
    if (!t) return; /* it has gone back already */
    w->live[t->slot] = NULL;
    gy_worker_tell_engine(w, GY_REC_RETURNED, t);
}

static void take(gy_worker *w, const gy_rec *r) {
    gy_part *t;
    switch ((gy_rec_kind)r->kind) {
    case GY_REC_CONNECT:
        ask(w, r->ptr);
        break;
    case GY_REC_GONE:
        begin_gone(w, r);
        break;
    case GY_REC_START:
        start(w, r->ptr);
        break;
    case GY_REC_NEWS:
        t = live_at(w, r);
        if (t) atomic_store(&t->push.news, 0); /* before what is ready is read */
        break;
    case GY_REC_FORGET:
        forget(w, live_at(w, r));
        break;
    default:
        GY_CHECK(!"a record of the other direction");
    }
}

static int take_all(gy_worker *w) {
    gy_rec r;
    int n = 0;
    if (w->has_gone) keep_out(w);
    for (; !w->has_gone && gy_queue_pop(w->to_xfer, &r) == GY_OK; n++) take(w, &r);
    return n;
}

static int hear_all(gy_worker *w) {
    int n = w->n_heard ? take_all(w) : 0;
    for (int32_t i = 0; i < w->n_heard; i++) deliver(w, &w->heard[i].note, w->heard[i].from);
    w->n_heard = 0;
    return n;
}

static void publish(gy_worker *w) {
    gy_xfer_stats s;
    gy_xfer_get_stats(w->x, &s);
    atomic_store_explicit(&w->counts.bytes, s.bytes, memory_order_relaxed);
    atomic_store_explicit(&w->counts.ops, s.n_op, memory_order_relaxed);
    atomic_store_explicit(&w->counts.desc, s.n_desc, memory_order_relaxed);
    atomic_store_explicit(&w->counts.failed, s.n_failed, memory_order_relaxed);
    atomic_store_explicit(&w->counts.inflight, (int64_t)s.inflight_bytes, memory_order_relaxed);
}

gy_status gy_worker_xfer_begin(gy_worker *w, gy_err *err) {
    return gy_xfer_bind(w->x, err);
}

int gy_worker_xfer_turn(gy_worker *w) {
    atomic_store(&w->is_woken, 0);
    int n = take_all(w);
    n += gy_xfer_poll(w->x);
    n += connect_all(w);
    n += hear_all(w);
    n += gy_peer_mend(w);
    n += gy_push_all(w);
    if (n) publish(w); /* before the engine half hears that all is over, and tells so */
    return n + gy_push_give_back(w);
}

/* A wake may have been used up by poll after the queue was empty: what it was for lies in the queue. Nobody rings when
 * a writer can be kept out, or when it is time to connect, or to do so again. */
void gy_worker_xfer_wait(gy_worker *w, int timeout_ms) {
    if (w->has_gone || w->waiting || w->broken)
        gy_xfer_wait(w->x, w->has_gone || w->waiting ? 1 : 10);
    else if (!gy_queue_len(w->to_xfer))
        gy_xfer_wait(w->x, timeout_ms);
}

void gy_worker_xfer_wake(gy_worker *w) {
    gy_xfer_wake(w->x);
}

gy_status gy_worker_open_xfer(gy_worker *w, gy_err *err) {
    gy_xfer_opts o = w->o.xfer;
    o.epoch = w->o.epoch;
    o.user = w;
    o.on_done = on_done;
    o.on_note = on_note;
    w->patience_ns = (int64_t)GY_WORKER_PATIENCE_MS * 1000000;
    return gy_xfer_open(&o, err, &w->x);
}
