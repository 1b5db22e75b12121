/* A part's memory: one allocation that holds the request's arrays and, for P, the tables of what it sends. */
#include "pd/worker_int.h"

#include <string.h>

static const void *keep(gy_carve *c, const void *p, int32_t n, size_t elem) {
    if (n <= 0 || !p) return NULL;
    void *to = gy_carve_take(c, (size_t)n, elem);
    return to ? memcpy(to, p, (size_t)n * elem) : NULL;
}

static void keep_request(gy_part *t, gy_carve *c) {
    gy_request r = t->r;
    r.prompt = keep(c, r.prompt, r.n_prompt, sizeof *r.prompt);
    r.sample.bias = keep(c, r.sample.bias, r.sample.n_bias, sizeof *r.sample.bias);
    r.trace = keep(c, r.trace, r.n_trace, sizeof *r.trace);
    r.stop_ids = keep(c, r.stop_ids, r.n_stop_ids, sizeof *r.stop_ids);
    r.cache_salt = keep(c, r.cache_salt, r.n_salt, 1);
    r.grammar_after = keep(c, r.grammar_after, r.n_grammar_after, 1);
    if (c->base) t->r = r;
}

static gy_status lay_out(gy_part *t, gy_carve *c) {
    keep_request(t, c);
    return t->kind == GY_PART_PREFILL ? gy_push_lay_out(t, c) : GY_OK;
}

static void link_part(gy_worker *w, gy_part *t) {
    t->prev = w->last;
    *(w->last ? &w->last->next : &w->first) = t;
    w->last = t;
    w->n_wait[t->kind]++;
}

gy_status gy_part_create(gy_worker *w, gy_part_kind kind, const gy_msg *m, gy_err *err, gy_part **out) {
    gy_part probe = {.kind = kind, .w = w, .r = m->request.r};
    gy_carve measure = {0};
    size_t head = GY_ALIGN_UP(sizeof probe, 64), total = 0;
    lay_out(&probe, &measure);
    gy_part *t = measure.overflow || gy_size_add(head, measure.used, &total) ? NULL : gy_mem_alloc(GY_MEM_PD, total, 1);
    if (!t) return gy_err_set(err, GY_E_NOMEM, "no memory for a request of %d tokens", probe.r.n_prompt);
    t->kind = kind;
    t->w = w;
    t->r = probe.r;
    t->tid = m->tid;
    t->peer = m->peer;
    t->slot = t->id = t->import = -1;
    t->serial = w->next_serial++;
    gy_carve c = {.base = (char *)t + head, .cap = measure.used};
    lay_out(t, &c);
    link_part(w, t);
    *out = t;
    return GY_OK;
}

void gy_part_free(gy_part *t) {
    if (t) gy_grammar_put(t->grammar);
    gy_mem_free(t);
}

static void count(gy_part *t, int32_t by) {
    if (t->state == GY_PART_WAIT) t->w->n_wait[t->kind] += by;
    if (t->state == GY_PART_THERE) t->w->n_there += by;
}

void gy_part_set_state(gy_part *t, gy_part_state s) {
    count(t, -1);
    t->state = s;
    count(t, 1);
}

/* What comes in has the first half of them, what goes out the second: neither can wait for the other. */
int gy_part_take_slot(gy_part *t) {
    gy_worker *w = t->w;
    int32_t first = t->kind == GY_PART_PREFILL ? w->max_handoff : 0;
    for (int32_t i = first; t->slot < 0 && i < first + w->max_handoff; i++)
        if (!w->slot_used[i]) t->slot = i;
    if (t->slot < 0) return 0;
    w->slot_used[t->slot] = 1;
    return 1;
}

void gy_part_give_slot(gy_part *t) {
    if (t->slot >= 0) t->w->slot_used[t->slot] = 0;
    t->slot = -1;
}

void gy_part_remove(gy_part *t) {
    gy_worker *w = t->w;
    GY_CHECK(!t->with_xfer);
    count(t, -1);
    gy_part_give_slot(t);
    *(t->prev ? &t->prev->next : &w->first) = t->next;
    *(t->next ? &t->next->prev : &w->last) = t->prev;
    gy_part_free(t);
}

gy_part *gy_part_find(const gy_worker *w, gy_tid tid) {
    for (gy_part *t = w->first; t; t = t->next)
        if (gy_tid_same(t->tid, tid)) return t;
    return NULL;
}
