/* The engine half of prompts that are computed here for others. */
#include "pd/worker_int.h"

#include "base/clock.h"
#include "tensor/dtype.h"

#include <string.h>

enum { BLOCK = GY_KV_BLOCK_LEN };

/* ---- PREFILL comes ----------------------------------------------------------------------------------------------- */

static gy_peer *find_peer(const gy_worker *w, uint64_t epoch) {
    for (gy_peer *p = w->peers; p; p = p->next)
        if (p->epoch == epoch && p->state == GY_PEER_UP) return p;
    return NULL;
}

static gy_status check_tables(const gy_worker *w, const gy_peer *p, const gy_msg *m, gy_err *err) {
    const gy_msg_tables *b = &m->tables;
    int32_t n_prompt = m->request.r.n_prompt;
    if (b->n_have < 0 || b->n_have > n_prompt || b->n_have % BLOCK)
        return gy_err_set(err, GY_E_ARG, "prefill: D has %d tokens of %d, expected whole blocks of %d", b->n_have,
                          n_prompt, BLOCK);
    if (b->hidden_slot < 0 || (size_t)b->hidden_slot >= p->region_bytes[GY_REGION_HIDDEN] / w->slot_bytes)
        return gy_err_set(err, GY_E_ARG, "prefill: found hidden slot %d, expected one of D's %zu", b->hidden_slot,
                          p->region_bytes[GY_REGION_HIDDEN] / w->slot_bytes);
    return GY_OK;
}

static const gy_msg_table *find_table(const gy_worker *w, const gy_msg_tables *b, int32_t i) {
    int32_t group = i < w->n_core ? GY_KV_CORE : GY_KV_BOUNDARY, plane = i < w->n_core ? i : 0;
    for (int32_t k = 0; k < b->n_table; k++)
        if (b->table[k].group == group && b->table[k].plane == plane) return &b->table[k];
    return NULL;
}

static gy_status copy_tables(gy_part *t, const gy_msg_tables *b, gy_err *err) {
    gy_push *p = &t->push;
    for (int32_t i = 0; i < p->n_plane; i++) {
        const gy_msg_table *from = find_table(t->w, b, i);
        if (!from || from->n < p->n_row)
            return gy_err_set(err, GY_E_ARG, "prefill: found %d blocks for plane %d of %d, expected %d",
                              from ? from->n : 0, i, p->n_plane, p->n_row);
        memcpy(p->dst + (size_t)i * (size_t)p->n_row, from->ids, (size_t)p->n_row * sizeof *p->dst);
    }
    return GY_OK;
}

static void aim(gy_part *t, gy_peer *peer, const gy_msg_tables *b) {
    gy_worker *w = t->w;
    gy_push *p = &t->push;
    p->peer = peer;
    peer->n_push++;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        p->group[g] = w->group[g];
        if (w->block_bytes[g]) p->group[g].n_block_dst = (int32_t)(peer->region_bytes[g] / w->block_bytes[g]);
    }
    for (int k = 0; k < 2; k++)
        p->raw[k] = (gy_seg_raw){.src_region = GY_REGION_HIDDEN,
                                 .dst_region = GY_REGION_HIDDEN,
                                 .dst_off = (size_t)b->hidden_slot * w->slot_bytes + (k ? w->gate_off : 0)};
    p->raw[0].bytes = w->row_bytes;
    t->n_have = b->n_have;
}

gy_status gy_part_prefill(gy_worker *w, const gy_msg *m, gy_err *err) {
    gy_part *t = NULL;
    gy_msg plain = *m;
    gy_peer *peer = find_peer(w, m->peer);
    if (!peer)
        return gy_err_set(err, GY_E_PEER, "prefill: no connection to worker %016llx", (unsigned long long)m->peer);
    plain.request.r.n_grammar_after = 0; /* D's affair, as the grammar is */
    plain.request.r.grammar_after = NULL;
    GY_TRY(gy_engine_check(w->e, &plain.request.r, err));
    GY_TRY(check_tables(w, peer, m, err));
    GY_TRY(gy_part_create(w, GY_PART_PREFILL, &plain, err, &t));
    gy_status st = copy_tables(t, &m->tables, err);
    if (st < 0)
        gy_part_remove(t);
    else
        aim(t, peer, &m->tables);
    return st;
}

/* ---- it runs ----------------------------------------------------------------------------------------------------- */

static void tell_news(gy_part *t) {
    if (!t->with_xfer || atomic_exchange(&t->push.news, 1)) return;
    gy_worker_tell_xfer(t->w, (gy_rec){.kind = GY_REC_NEWS, .slot = t->slot, .serial = t->serial});
}

/* Block ids are copied when their tokens are final: the log may be read between steps only. */
static int grow(gy_part *t, int32_t i, int32_t to) {
    gy_push *p = &t->push;
    int32_t had = atomic_load_explicit(&p->ready[i], memory_order_relaxed), n;
    if (to < t->r.n_prompt) to -= to % BLOCK;
    if (to <= had) return 0;
    int is_core = i < t->w->n_core;
    const int32_t *ids =
        gy_engine_export_blocks(t->w->e, t->id, is_core ? GY_KV_CORE : GY_KV_BOUNDARY, is_core ? i : 0, &n);
    int32_t first = had / BLOCK, end = (to + BLOCK - 1) / BLOCK;
    GY_CHECK(ids && end <= n && end <= p->n_row);
    memcpy(p->src + (size_t)i * (size_t)p->n_row + first, ids + first, (size_t)(end - first) * sizeof *ids);
    atomic_store_explicit(&p->ready[i], to, memory_order_release);
    return 1;
}

static void on_planes(void *arg, int32_t id, const int32_t *core, int32_t n_plane, int32_t boundary) {
    gy_part *t = arg;
    int grew = 0;
    (void)id;
    for (int32_t i = 0; i < t->push.n_plane; i++) grew |= grow(t, i, i < t->w->n_core ? core[i] : boundary);
    GY_CHECK(t->w->n_core <= n_plane);
    if (grew) tell_news(t);
}

static void on_hidden(void *arg, int32_t id, const float *hidden, int32_t loops, const float *gates, int32_t n_gate) {
    gy_part *t = arg;
    gy_worker *w = t->w;
    const gy_model *model = w->o.model;
    char *at = (char *)w->mem[GY_REGION_HIDDEN] + (size_t)t->slot * w->slot_bytes;
    int32_t head[2] = {n_gate, 0};
    gy_convert(at, model->be->act, hidden, GY_F32, (size_t)model->d.n_embd);
    if (t->r.want_gates) {
        memcpy(at + w->gate_off, head, sizeof head);
        if (n_gate) memcpy(at + w->gate_off + sizeof head, gates, (size_t)n_gate * sizeof *gates);
        t->push.raw[1].bytes = sizeof head + (size_t)n_gate * sizeof *gates;
    }
    t->push.loops = loops;
    t->start_ns = gy_engine_export_admit_ns(w->e, id);
    t->compute_ns = gy_clock_ns();
    atomic_store_explicit(&t->push.hidden, 1, memory_order_release);
    tell_news(t);
}

static void stop(gy_part *t) {
    atomic_store(&t->push.stop, 1);
    tell_news(t);
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gy_part *t = arg;
    t->engine_over = 1;
    t->w->n_over++;
    t->n_computed = ev->n_prompt - ev->n_cached;
    if (ev->err && t->why.status >= 0) t->why = *ev->err;
    if (ev->reason != GY_FINISH_STOP) stop(t);
}

static void end(gy_part *t, const gy_err *failed);

static gy_status queue_export(gy_part *t, gy_err *err) {
    const gy_export x = {.on_planes = on_planes, .on_hidden = on_hidden, .arg = t};
    t->r.on_finish = on_finish;
    t->r.arg = t;
    return gy_engine_submit_export(t->w->e, &t->r, &x, err, &t->id);
}

gy_status gy_part_try_export(gy_part *t) {
    gy_worker *w = t->w;
    gy_err err;
    if (t->push.peer->state == GY_PEER_GONE) { /* while it waited here: the transfer half knows nobody of that name */
        gy_err_set(&err, GY_E_PEER, "prefill: worker %016llx is gone", (unsigned long long)t->push.peer->epoch);
        end(t, &err);
        return GY_OK;
    }
    if (!gy_part_take_slot(t)) return GY_AGAIN;
    gy_status st = queue_export(t, &err);
    if (st == GY_AGAIN) return GY_AGAIN;
    if (st < 0) {
        end(t, &err);
        return GY_OK;
    }
    for (int k = 0; k < 2; k++) t->push.raw[k].src_off = (size_t)t->slot * w->slot_bytes + (k ? w->gate_off : 0);
    gy_part_set_state(t, GY_PART_RUN);
    t->with_xfer = 1;
    gy_worker_tell_xfer(w, (gy_rec){.kind = GY_REC_START, .slot = t->slot, .serial = t->serial, .ptr = t});
    return GY_OK;
}

/* ---- it ends ----------------------------------------------------------------------------------------------------- */

static void say_prefilled(gy_part *t) {
    gy_msg m = {.kind = GY_MSG_PREFILLED, .tid = t->tid, .sent = t->push.sum};
    m.sent.start_ns = t->start_ns;
    m.sent.compute_ns = t->compute_ns;
    m.sent.n_computed = t->n_computed;
    m.sent.said_ns = gy_clock_ns();
    t->w->o.send(t->w->o.user, &m);
}

static void end(gy_part *t, const gy_err *failed) {
    gy_worker *w = t->w;
    if (t->state == GY_PART_RUN) gy_engine_export_release(w->e, t->id);
    gy_peer_unuse(w, t->push.peer);
    if (t->is_cancelled)
        gy_worker_say(w, GY_MSG_RELEASED, t->tid);
    else if (failed)
        gy_worker_reject(w, t->tid, failed);
    else
        say_prefilled(t);
    gy_part_remove(t);
}

void gy_part_p_returned(gy_part *t) {
    t->with_xfer = 0;
    if (t->push.err.status < 0 && t->why.status >= 0) t->why = t->push.err;
    if (t->engine_over)
        t->w->n_over++;
    else if (t->push.err.status < 0 || t->is_cancelled)
        gy_engine_cancel(t->w->e, t->id);
}

int gy_part_p_settle(gy_part *t) {
    if (!t->engine_over || t->with_xfer) return 0;
    end(t, t->why.status < 0 ? &t->why : NULL);
    return 1;
}

void gy_part_p_cancel(gy_part *t) {
    t->is_cancelled = 1;
    if (t->state == GY_PART_WAIT) {
        end(t, NULL);
        return;
    }
    if (!t->engine_over) gy_engine_cancel(t->w->e, t->id);
    stop(t);
}
