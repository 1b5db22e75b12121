/* The engine half of requests that decode here: imports (D) and those that are computed here from the start (LOCAL). */
#include "pd/worker_int.h"

#include "base/clock.h"
#include "tensor/dtype.h"

#include <string.h>

static gy_status compile(gy_worker *w, gy_part *t, const gy_msg_request *q, gy_err *err) {
    if (q->grammar_kind < 0) return GY_OK;
    if (!w->o.compile)
        return gy_err_set(err, GY_E_UNSUPPORTED, "grammar: this worker has no vocabulary to check it against");
    GY_TRY(w->o.compile(w->o.user, q->grammar_kind, q->grammar, q->n_grammar, err, &t->grammar, &t->r.vocab));
    t->r.grammar = t->grammar;
    return GY_OK;
}

static gy_status begin(gy_worker *w, gy_part_kind kind, const gy_msg *m, gy_err *err) {
    gy_part *t = NULL;
    GY_TRY(gy_part_create(w, kind, m, err, &t));
    gy_part_listen(t);
    gy_status st = compile(w, t, &m->request, err);
    if (st >= 0) st = gy_engine_check(w->e, &t->r, err);
    if (st < 0) gy_part_remove(t);
    return st;
}

gy_status gy_part_reserve(gy_worker *w, const gy_msg *m, gy_err *err) {
    return begin(w, GY_PART_DECODE, m, err);
}

gy_status gy_part_local(gy_worker *w, const gy_msg *m, gy_err *err) {
    return begin(w, GY_PART_LOCAL, m, err);
}

static void end(gy_part *t, const gy_err *failed) {
    if (failed)
        gy_worker_reject(t->w, t->tid, failed);
    else
        gy_worker_say(t->w, GY_MSG_RELEASED, t->tid);
    gy_part_remove(t);
}

static void drop(gy_part *t, const gy_err *failed) {
    gy_engine_import_drop(t->w->e, t->import);
    end(t, failed);
}

/* ---- reserve ----------------------------------------------------------------------------------------------------- */

static void say_reserved(gy_part *t) {
    gy_worker *w = t->w;
    gy_msg m = {.kind = GY_MSG_RESERVED, .tid = t->tid};
    for (int32_t i = 0; i < w->n_plane; i++) {
        gy_msg_table *b = &w->table[i];
        *b = (gy_msg_table){.group = i < w->n_core ? GY_KV_CORE : GY_KV_BOUNDARY, .plane = i < w->n_core ? i : 0};
        b->ids = gy_engine_import_blocks(w->e, t->import, (gy_kv_group)b->group, b->plane, &b->n);
    }
    m.tables = (gy_msg_tables){.n_have = t->n_have, .hidden_slot = t->slot, .n_table = w->n_plane, .table = w->table};
    w->o.send(w->o.user, &m);
}

gy_status gy_part_try_open(gy_part *t) {
    gy_worker *w = t->w;
    gy_err err;
    if (!gy_part_take_slot(t)) return GY_AGAIN;
    gy_status st = gy_engine_import_open(w->e, &t->r, &err, &t->import, &t->n_have);
    if (st == GY_AGAIN) return GY_AGAIN;
    if (st < 0) {
        end(t, &err);
        return GY_OK;
    }
    gy_part_set_state(t, GY_PART_OPEN);
    t->with_xfer = 1;
    gy_worker_tell_xfer(w, (gy_rec){.kind = GY_REC_START, .slot = t->slot, .serial = t->serial, .ptr = t});
    say_reserved(t);
    return GY_OK;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

/* What lies in the slot. A count that makes no sense is left for the engine to name. */
static gy_arrival read_slot(const gy_part *t) {
    gy_worker *w = t->w;
    const char *at = (const char *)w->mem[GY_REGION_HIDDEN] + (size_t)t->slot * w->slot_bytes;
    const gy_model *model = w->o.model;
    gy_arrival a = {.hidden = w->hidden, .gates = w->gates, .loops = t->hear.loops};
    gy_convert(w->hidden, GY_F32, at, model->be->act, (size_t)model->d.n_embd);
    if (!t->r.want_gates) return a;
    memcpy(&a.n_gate, at + w->gate_off, sizeof a.n_gate);
    if (a.n_gate > 0 && a.n_gate <= w->depth)
        memcpy(w->gates, at + w->gate_off + 2 * sizeof a.n_gate, (size_t)a.n_gate * sizeof *w->gates);
    return a;
}

static gy_status submit(gy_part *t, gy_err *err) {
    if (t->kind == GY_PART_LOCAL) return gy_engine_submit(t->w->e, &t->r, err, &t->id);
    gy_arrival a = read_slot(t);
    return gy_engine_import_submit(t->w->e, t->import, &t->r, &a, err, &t->id);
}

static void say_active(const gy_part *t) {
    gy_msg m = {.kind = GY_MSG_ACTIVE, .tid = t->tid, .sent = t->hear.sent};
    m.sent.said_ns = gy_clock_ns();
    t->w->o.send(t->w->o.user, &m);
}

gy_status gy_part_try_submit(gy_part *t) {
    gy_err err;
    gy_status st = submit(t, &err);
    if (st == GY_AGAIN) return GY_AGAIN;
    if (st < 0) {
        if (t->kind == GY_PART_DECODE)
            drop(t, &err);
        else
            end(t, &err);
        return GY_OK;
    }
    gy_part_set_state(t, GY_PART_RUN);
    gy_part_give_slot(t); /* it was copied */
    if (t->kind == GY_PART_DECODE) say_active(t);
    return GY_OK;
}

void gy_part_d_returned(gy_part *t) {
    t->with_xfer = 0;
    if (t->state == GY_PART_LEAVING)
        drop(t, NULL);
    else if (!t->is_cancelled)
        gy_part_set_state(t, GY_PART_THERE);
}

int gy_part_d_settle(gy_part *t) {
    if (!t->engine_over) return 0;
    end(t, NULL);
    return 1;
}

/* ---- cancel ------------------------------------------------------------------------------------------------------ */

static void leave(gy_part *t) {
    if (!t->with_xfer) {
        drop(t, NULL);
        return;
    }
    gy_part_set_state(t, GY_PART_LEAVING);
    gy_worker_tell_xfer(t->w, (gy_rec){.kind = GY_REC_FORGET, .slot = t->slot, .serial = t->serial});
}

/* Pages that a writer may still write go with is_safe only. */
void gy_part_d_cancel(gy_part *t, int is_safe) {
    t->is_cancelled = 1;
    switch (t->state) {
    case GY_PART_WAIT:
        end(t, NULL);
        break;
    case GY_PART_OPEN:
    case GY_PART_THERE:
        gy_part_set_state(t, GY_PART_OPEN);
        if (is_safe) leave(t);
        break;
    case GY_PART_RUN:
        gy_engine_cancel(t->w->e, t->id);
        break;
    case GY_PART_LEAVING:
        break;
    }
}
