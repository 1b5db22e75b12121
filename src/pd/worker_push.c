/* The transfer half of P: from what is ready to ops.
 *
 * A batch is a snapshot of what became ready since the last one, one range of tokens for each plane; ops are cut from
 * it until it is used up, and the next one takes what has become ready meanwhile. So an op is as large as the limits
 * and what is ready allow, and planes cost memory, not tokens. What ended early is cut off at whole blocks: ragged
 * tails exist once, at the end.
 */
#include "pd/worker_int.h"

#include "base/clock.h"

#include <string.h>

/* ---- time in steps ----------------------------------------------------------------------------------------------- */

void gy_busy_begin(gy_busy *b, int64_t now) {
    atomic_fetch_add(&b->seq, 1);
    atomic_store(&b->since, now);
    atomic_fetch_add(&b->seq, 1);
}

void gy_busy_end(gy_busy *b, int64_t now, int was_work) {
    int64_t since = atomic_load(&b->since);
    atomic_fetch_add(&b->seq, 1);
    if (was_work) atomic_fetch_add(&b->total, now - since);
    atomic_store(&b->since, 0);
    atomic_fetch_add(&b->seq, 1);
}

int64_t gy_busy_at(gy_busy *b, int64_t t) {
    for (;;) {
        uint32_t seq = atomic_load(&b->seq);
        int64_t total = atomic_load(&b->total), since = atomic_load(&b->since);
        if (seq % 2 || atomic_load(&b->seq) != seq) continue;
        return total + (since && t > since ? t - since : 0);
    }
}

/* ---- a push begins ----------------------------------------------------------------------------------------------- */

gy_status gy_push_lay_out(gy_part *t, gy_carve *c) {
    gy_push *p = &t->push;
    size_t planes = (size_t)t->w->n_plane, rows = ((size_t)t->r.n_prompt + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN, n;
    if (gy_size_mul(planes, rows, &n)) c->overflow = 1;
    if (c->overflow) return GY_E_NOMEM;
    p->n_plane = t->w->n_plane;
    p->n_row = (int32_t)rows;
    p->src = gy_carve_take(c, n, sizeof *p->src);
    p->dst = gy_carve_take(c, n, sizeof *p->dst);
    p->ready = gy_carve_take(c, planes, sizeof *p->ready);
    p->sent = gy_carve_take(c, planes, sizeof *p->sent);
    p->plane = gy_carve_take(c, planes, sizeof *p->plane);
    return GY_OK;
}

static size_t token_bytes(const gy_part *t, int32_t i) {
    const gy_seg_group *g = &t->push.group[i < t->w->n_core ? GY_KV_CORE : GY_KV_BOUNDARY];
    return 2 * (size_t)g->n_layer * g->tok_bytes;
}

void gy_push_begin(gy_part *t) {
    gy_push *p = &t->push;
    size_t all = 0;
    for (int32_t i = 0; i < p->n_plane; i++) {
        p->sent[i] = t->n_have;
        all += (size_t)(t->r.n_prompt - t->n_have) * token_bytes(t, i);
    }
    p->min_bytes = all / GY_WORKER_MIN_SHARE;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static int32_t gather(gy_part *t, size_t *bytes_out) {
    gy_push *p = &t->push;
    int32_t n = 0;
    *bytes_out = 0;
    for (int32_t i = 0; i < p->n_plane; i++) {
        int32_t to = atomic_load_explicit(&p->ready[i], memory_order_acquire);
        if (to <= p->sent[i]) continue;
        *bytes_out += (size_t)(to - p->sent[i]) * token_bytes(t, i);
        p->plane[n++] = (gy_seg_plane){.group = &p->group[i < t->w->n_core ? GY_KV_CORE : GY_KV_BOUNDARY],
                                       .src = p->src + (size_t)i * (size_t)p->n_row,
                                       .dst = p->dst + (size_t)i * (size_t)p->n_row,
                                       .from = p->sent[i],
                                       .to = to};
    }
    return n;
}

static void mark_sent(gy_part *t) {
    gy_push *p = &t->push;
    for (int32_t k = 0; k < p->plan.n_plane; k++) {
        int32_t i = (int32_t)((p->plane[k].src - p->src) / p->n_row);
        p->sent[i] = p->plane[k].to;
    }
}

static int rounds(const gy_push *p) {
    int32_t most = 0;
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (p->group[g].n_layer > most) most = p->group[g].n_layer;
    return 2 * most > GY_WORKER_ROUND_RUNS;
}

static int next_batch(gy_part *t) {
    gy_push *p = &t->push;
    size_t bytes;
    gy_err err;
    int hidden = atomic_load_explicit(&p->hidden, memory_order_acquire); /* before ready: then all of it is */
    int32_t n = gather(t, &bytes);
    if (!hidden && (n == 0 || bytes < p->min_bytes)) return 0;
    p->plan = (gy_seg_plan){.plane = p->plane, .n_plane = n, .round_tail = rounds(p)};
    if (hidden) {
        p->plan.raw = p->raw;
        p->plan.n_raw = 2;
        p->is_last = 1;
    }
    mark_sent(t);
    p->cursor = (gy_seg_cursor){0};
    p->has_batch = 1;
    gy_status st = gy_seg_check(&p->plan, &err);
    if (st < 0) gy_push_fail(t, st, err.msg);
    return st == GY_OK;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static void put_op(gy_worker *w, gy_out_op *o) {
    o->next = w->free_ops;
    w->free_ops = o;
}

static int is_used_up(const gy_push *p) {
    const gy_xfer_limits one = {.chunk_bytes = 1, .max_desc = 1};
    gy_seg_cursor c = p->cursor;
    gy_xfer_desc d;
    return gy_seg_next(&p->plan, p->plan.n_plane + 1, &one, &c, &d) == 0;
}

/* D tells it on with ACTIVE: our own word may come after a short output has ended. */
static void sum_up(const gy_part *t, gy_pd_note *n) {
    const gy_push *p = &t->push;
    int64_t now = gy_clock_ns();
    n->start_ago_ns = now - t->start_ns;
    n->compute_ago_ns = now - t->compute_ns;
    n->bytes = p->bytes;
    n->n_desc = p->n_desc;
}

/* NULL: nothing is ready, no op is free, or it failed. */
static gy_out_op *cut(gy_worker *w, gy_part *t) {
    gy_push *p = &t->push;
    gy_out_op *o = w->free_ops;
    if (!o || p->is_cut || (!p->has_batch && !next_batch(t))) return NULL;
    if (p->seq == GY_PD_MAX_OPS) {
        gy_push_fail(t, GY_E_LIMIT, "more transfers for one prompt than can be counted: raise the transfer's chunk");
        return NULL;
    }
    w->free_ops = o->next;
    int32_t n = gy_seg_next(&p->plan, p->plan.n_plane + 1, &w->o.xfer.limits, &p->cursor, o->desc);
    p->has_batch = !is_used_up(p);
    p->is_cut = p->is_last && !p->has_batch;
    o->part = t;
    o->note = (gy_pd_note){.magic = GY_PD_NOTE_MAGIC, .seq = p->seq++, .tid = t->tid};
    p->n_desc += n;
    for (int32_t i = 0; i < n; i++) p->bytes += (int64_t)o->desc[i].bytes;
    if (p->is_cut) {
        sum_up(t, &o->note);
        o->note.total = p->seq;
        o->note.loops = (uint32_t)p->loops;
    }
    o->op = (gy_xfer_op){.desc = o->desc, .n_desc = n, .note = &o->note, .n_note = sizeof o->note, .user = o};
    return o;
}

static void count_posted(gy_worker *w, gy_push *p, gy_out_op *o) {
    if (!p->sum.first_post_ns) p->sum.first_post_ns = o->op.post_ns;
    p->sum.last_post_ns = o->op.post_ns;
    p->sum.post_ns += gy_clock_ns() - o->op.post_ns;
    o->busy_ns = gy_busy_at(&w->busy, o->op.post_ns);
}

/* One op. 1: posted; 0: nothing to post; -1: the budget is taken. */
static int post_one(gy_worker *w, gy_part *t) {
    gy_push *p = &t->push;
    gy_err err = {0};
    if (p->err.status < 0 || atomic_load(&p->stop) || p->peer->is_broken) return 0;
    gy_out_op *o = p->held ? p->held : cut(w, t);
    if (!o) return 0;
    p->held = NULL;
    gy_status st = gy_xfer_post(p->peer->x, &o->op, &err);
    if (st == GY_AGAIN) {
        p->held = o;
        return -1;
    }
    if (st == GY_E_PEER) gy_peer_broke(w, p->peer);
    if (p->peer->is_broken) {
        p->held = o;
        return 0;
    }
    if (st < 0) {
        put_op(w, o);
        gy_push_fail(t, st, err.msg);
        return 0;
    }
    p->n_flight++;
    if (!p->peer->n_flight++) p->peer->heard_ns = o->op.post_ns;
    count_posted(w, p, o);
    return 1;
}

void gy_push_fail(gy_part *t, gy_status st, const char *what) {
    gy_push *p = &t->push;
    if (p->err.status < 0) return;
    gy_err_set(&p->err, st, "transfer to worker %016llx: %s", (unsigned long long)t->peer, what);
}

void gy_push_done(gy_worker *w, gy_xfer_op *op, gy_status st) {
    gy_out_op *o = op->user;
    gy_part *t = o->part;
    if (!t) {
        if (o->mended) gy_peer_fenced(w, o->mended, st);
        put_op(w, o);
        return;
    }
    gy_push *p = &t->push;
    p->n_flight--;
    p->peer->n_flight--;
    p->peer->heard_ns = op->done_ns;
    if (st < 0) {
        p->has_lost = 1;
        gy_push_fail(t, st, "lost");
        gy_peer_broke(w, p->peer);
    } else {
        int64_t overlap = gy_busy_at(&w->busy, op->done_ns) - o->busy_ns;
        p->sum.bytes += (int64_t)op->bytes;
        p->sum.n_op++;
        p->sum.n_desc += op->n_desc;
        p->sum.last_done_ns = op->done_ns;
        if (overlap > 0) {
            p->sum.overlap_ns += overlap;
            p->sum.overlap_bytes += (int64_t)op->bytes;
            p->sum.n_overlap++;
        }
    }
    put_op(w, o);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int is_over(gy_worker *w, gy_push *p) {
    int stops = p->err.status < 0 || atomic_load(&p->stop);
    if (p->has_lost && p->peer->is_broken) return 0; /* what it lost may still be written */
    if (stops && p->held) {
        put_op(w, p->held);
        p->held = NULL;
    }
    return (stops || p->is_cut) && !p->held && !p->n_flight;
}

int gy_push_give_back(gy_worker *w) {
    int n = 0;
    for (int32_t i = w->max_handoff; i < 2 * w->max_handoff; i++) {
        gy_part *t = w->live[i];
        if (!t || !is_over(w, &t->push)) continue;
        w->live[i] = NULL;
        gy_worker_tell_engine(w, GY_REC_RETURNED, t);
        n++;
    }
    return n;
}

/* One op of each in turn, until the budget is taken or nothing is ready; the one that found it taken is first next
 * time. */
int gy_push_all(gy_worker *w) {
    int n = 0;
    for (int32_t idle = 0; idle < w->max_handoff;) {
        gy_part *t = w->live[w->max_handoff + w->turn_at];
        int posted = t ? post_one(w, t) : 0;
        if (posted < 0) break;
        idle = posted ? 0 : idle + 1;
        n += posted;
        w->turn_at = (w->turn_at + 1) % w->max_handoff;
    }
    return n;
}
