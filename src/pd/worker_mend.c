/* The transfer half of P: connections between hosts that are lost while both ends live.
 *
 * An op that failed, or did not end, says nothing about its bytes: the kernel of this host may have them and send them
 * when the link is back, into pages that D has given to somebody else by then. So a part that lost an op does not go
 * back (and D is not told that nobody writes any more) before a new connection is fenced (xfer.h), or D is gone. Until
 * then its peer is broken, and nothing is posted to it; parts that lost nothing go on afterwards where they stood.
 *
 * Inside a host nothing of this happens: there an op fails with its peer's process.
 */
#include "pd/worker_int.h"

#include "base/clock.h"
#include "base/log.h"

void gy_peer_broke(gy_worker *w, gy_peer *p) {
    if (!w->o.xfer.across_hosts || p->is_broken || !p->x) return;
    gy_log(GY_LOG_WARN, "transfer", "the connection to a worker is lost; a new one is made", "epoch=%016llx",
           (unsigned long long)p->epoch);
    p->is_broken = 1;
    p->mend_ns = 0;
    p->next_broken = w->broken;
    w->broken = p;
}

static void take_off(gy_worker *w, gy_peer *p) {
    for (gy_peer **at = &w->broken; *at; at = &(*at)->next_broken)
        if (*at == p) {
            *at = p->next_broken;
            break;
        }
    p->is_broken = 0;
}

static void leave_fence(gy_peer *p) {
    if (p->fence) p->fence->mended = NULL;
    p->fence = NULL;
}

void gy_peer_forget(gy_worker *w, gy_peer *p) {
    leave_fence(p);
    if (p->is_broken) take_off(w, p);
}

void gy_peer_fenced(gy_worker *w, gy_peer *p, gy_status st) {
    p->fence = NULL;
    if (st == GY_OK)
        take_off(w, p);
    else
        p->mend_ns = gy_clock_ns() + (int64_t)GY_WORKER_MEND_MS * 1000000;
}

static gy_status post_fence(gy_worker *w, gy_peer *p, gy_err *err) {
    gy_out_op *o = w->free_ops;
    if (!o) return GY_AGAIN;
    o->op = (gy_xfer_op){.user = o};
    o->part = NULL;
    o->mended = p;
    gy_status st = gy_xfer_post(p->x, &o->op, err);
    if (st != GY_OK) return st;
    w->free_ops = o->next;
    p->fence = o;
    return GY_OK;
}

static int connect_again(gy_worker *w, gy_peer *p, int64_t now) {
    gy_err err = {0};
    leave_fence(p);
    gy_xfer_peer_drop(p->x);
    p->x = NULL;
    gy_status st = gy_xfer_import(w->x, p->blob, (size_t)p->n_blob, &err, &p->x);
    if (st >= 0) st = post_fence(w, p, &err);
    p->mend_ns = now + (int64_t)(st == GY_OK ? GY_WORKER_FENCE_MS : GY_WORKER_MEND_MS) * 1000000;
    return 1;
}

static void find_stuck(gy_worker *w, int64_t now) {
    for (int32_t i = w->max_handoff; i < 2 * w->max_handoff; i++) {
        const gy_part *t = w->live[i];
        if (t && t->push.n_flight && now - t->push.peer->heard_ns > w->patience_ns) gy_peer_broke(w, t->push.peer);
    }
}

int gy_peer_mend(gy_worker *w) {
    int n = 0;
    if (!w->o.xfer.across_hosts) return 0;
    int64_t now = gy_clock_ns();
    find_stuck(w, now);
    for (gy_peer *p = w->broken; p; p = p->next_broken)
        if (p->mend_ns <= now) n += connect_again(w, p, now);
    return n;
}
