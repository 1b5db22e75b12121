/* The life of one try: its transitions, its credits, and who hears CANCEL and CANCEL_SAFE when. Nothing here calls the
 * user.
 */
#include "pd/coord_int.h"

static gy_try **bucket_of(gy_coord *c, gy_tid tid) {
    return &c->bucket[tid.lo % COORD_BUCKETS];
}

gy_try *gy_try_find(const gy_coord *c, gy_tid tid) {
    gy_try *t = c->bucket[tid.lo % COORD_BUCKETS];
    while (t && !gy_tid_same(t->tid, tid)) t = t->chain;
    return t;
}

static void link_try(gy_coord *c, gy_try *t) {
    gy_try **b = bucket_of(c, t->tid);
    t->chain = *b;
    *b = t;
    t->prev = NULL;
    t->next = c->tries;
    if (c->tries) c->tries->prev = t;
    c->tries = t;
}

static void unlink_try(gy_coord *c, gy_try *t) {
    gy_try **at = bucket_of(c, t->tid);
    while (*at != t) at = &(*at)->chain;
    *at = t->chain;
    *(t->prev ? &t->prev->next : &c->tries) = t->next;
    if (t->next) t->next->prev = t->prev;
}

static void say(gy_coord *c, int32_t worker, gy_msg_kind kind, const gy_try *t) {
    c->o.send(c->o.user, worker, &(gy_msg){.kind = kind, .tid = t->tid});
}

void gy_coord_due(gy_coord *c, int64_t due_ns) {
    if (due_ns < c->due_ns) c->due_ns = due_ns;
}

void gy_try_defer(gy_coord *c, gy_try *t, int64_t due_ns) {
    t->due_ns = due_ns;
    gy_coord_due(c, due_ns);
}

static int64_t clamp(int64_t v, int64_t low, int64_t high) {
    return v < low ? low : v > high ? high : v;
}

/* How long a D may take to answer before others need not wait for it: it answers between two steps, so a busy one is
 * measured by itself. */
static int64_t answer_window(const gy_coord *c, int32_t d) {
    return clamp(4 * c->w[d].answer_ns, c->o.ask_ns, 20 * c->o.ask_ns);
}

static void begin_phase(gy_coord *c, gy_try *t, gy_try_phase phase, int64_t now_ns) {
    t->phase = phase;
    t->start_ns = now_ns;
    gy_try_defer(c, t, now_ns + (phase == TRY_RESERVING ? answer_window(c, t->d) : c->o.prefill_ns));
}

/* ---- credits ---------------------------------------------------------------------------------------------------- */

static void take_d(gy_coord *c, gy_try *t) {
    gy_coord_worker *w = &c->w[t->d];
    t->d_block = gy_worker_blocks(w, t->req->q.r.n_prompt);
    t->is_import = t->p >= 0;
    w->n_choice += t->req->q.r.n;
    w->n_import += t->is_import;
    w->n_block += t->d_block;
}

static void take_tok(gy_coord *c, gy_try *t, int32_t worker) {
    t->tok_at = worker;
    c->w[worker].n_tok += t->n_tok;
}

static void take_p(gy_coord *c, gy_try *t) {
    gy_coord_worker *w = &c->w[t->p];
    t->p_block = gy_worker_blocks(w, t->req->q.r.n_prompt);
    t->p_taken = 1;
    w->n_export++;
    w->n_block += t->p_block;
    take_tok(c, t, t->p);
}

static void end_import(gy_coord *c, gy_try *t) {
    c->w[t->d].n_import -= t->is_import;
    t->is_import = 0;
}

void gy_try_prompt_done(gy_coord *c, gy_try *t) {
    if (t->tok_at >= 0) c->w[t->tok_at].n_tok -= t->n_tok;
    t->tok_at = -1;
}

void gy_try_grow(gy_coord *c, gy_try *t, int32_t n_block) {
    t->d_block += n_block;
    c->w[t->d].n_block += n_block;
}

static void end_owing(gy_coord *c, gy_try *t) {
    c->w[t->d].n_owed -= t->d_owes;
    t->d_owes = 0;
}

static void end_away(gy_coord *c, gy_try *t) {
    if (t->p_away) c->w[t->p].n_away--;
    t->p_away = 0;
}

void gy_try_know_prompt(gy_coord *c, const gy_try *t, int32_t worker) {
    gy_known *x = c->w[worker].known;
    if (x) gy_known_put(x, t->req->row_hash, t->req->n_row);
}

void gy_try_release_d(gy_coord *c, gy_try *t) {
    if (!t->d_held) return;
    gy_coord_worker *w = &c->w[t->d];
    t->d_held = 0;
    end_import(c, t);
    end_owing(c, t);
    if (t->tok_at == t->d) gy_try_prompt_done(c, t);
    w->n_choice -= t->req->q.r.n;
    w->n_block -= t->d_block;
    w->full_until_ns = 0;
}

static void give_p(gy_coord *c, gy_try *t) {
    gy_coord_worker *w = &c->w[t->p];
    t->p_taken = 0;
    if (t->tok_at == t->p) gy_try_prompt_done(c, t);
    w->n_export--;
    w->n_block -= t->p_block;
}

void gy_try_release_p(gy_coord *c, gy_try *t) {
    t->p_held = 0;
    end_away(c, t);
    if (!t->p_taken) return;
    give_p(c, t);
    c->w[t->p].full_until_ns = 0;
}

/* ---- transitions ------------------------------------------------------------------------------------------------- */

static gy_status draw_tid(gy_coord *c, gy_tid *out) {
    do
        if (c->o.random(c->o.user, out, sizeof *out) != 0) return GY_E_IO;
    while (gy_try_find(c, *out));
    return GY_OK;
}

static void begin_local(gy_coord *c, gy_try *t) {
    t->phase = TRY_DECODE;
    t->was_active = 1;
    take_tok(c, t, t->d);
    c->stats.n_local++;
    c->o.send(c->o.user, t->d, &(gy_msg){.kind = GY_MSG_LOCAL, .tid = t->tid, .request = t->req->q});
}

static void begin_cross(gy_coord *c, gy_try *t, int64_t now_ns) {
    take_p(c, t);
    begin_phase(c, t, TRY_RESERVING, now_ns);
    c->o.send(c->o.user, t->d,
              &(gy_msg){.kind = GY_MSG_RESERVE, .tid = t->tid, .peer = c->w[t->p].epoch, .request = t->req->q});
}

gy_status gy_try_begin(gy_coord *c, gy_coord_req *r, int32_t d, int32_t p, int64_t now_ns) {
    gy_tid tid;
    GY_TRY(draw_tid(c, &tid));
    gy_try *t = gy_req_free_try(r);
    *t = (gy_try){
        .tid = tid, .req = r, .d = d, .p = p, .d_held = 1, .tok_at = -1, .n_computed = -1, .due_ns = INT64_MAX};
    t->p_est = gy_worker_cached(&c->w[p < 0 ? d : p], r);
    t->d_est = gy_worker_cached(&c->w[d], r);
    t->n_tok = r->q.r.n_prompt - t->p_est;
    gy_req_leave_queue(c, r);
    r->cur = t;
    if (!r->admit_ns) r->admit_ns = now_ns;
    gy_times_begin(r, d, p, now_ns);
    c->stats.n_try++;
    link_try(c, t);
    take_d(c, t);
    if (p < 0)
        begin_local(c, t);
    else
        begin_cross(c, t, now_ns);
    return GY_OK;
}

void gy_try_owed(gy_coord *c, gy_try *t, int64_t now_ns) {
    give_p(c, t);
    t->d_owes = t->p_away = 1;
    c->w[t->d].n_owed++;
    c->w[t->d].owed_ns = now_ns;
    c->w[t->p].n_away++;
    c->stats.n_owed++;
}

void gy_try_reserved(gy_coord *c, gy_try *t, const gy_msg_tables *tables, int64_t now_ns) {
    t->was_reserved = 1;
    end_owing(c, t);
    c->stats.have_est_tok += t->d_est;
    c->stats.have_tok += tables->n_have;
    if (t->phase == TRY_CLEANUP) {
        gy_try_settle(c, t);
        return;
    }
    c->w[t->d].answer_ns = now_ns - t->start_ns;
    if (t->p_away) {
        end_away(c, t);
        take_p(c, t);
        t->was_owed = 1;
    }
    t->p_held = 1;
    gy_times_mark(t->req, GY_PD_D_RESERVED, now_ns);
    begin_phase(c, t, TRY_PREFILL, now_ns);
    c->o.send(
        c->o.user, t->p,
        &(gy_msg){
            .kind = GY_MSG_PREFILL, .tid = t->tid, .peer = c->w[t->d].epoch, .request = t->req->q, .tables = *tables});
}

void gy_try_prefilled(gy_coord *c, gy_try *t, int32_t n_computed, int64_t now_ns) {
    t->n_computed = n_computed;
    c->stats.prefix_est_tok += t->p_est;
    c->stats.prefix_tok += t->req->q.r.n_prompt - n_computed;
    gy_try_know_prompt(c, t, t->p);
    if (t->phase == TRY_PREFILL) begin_phase(c, t, TRY_PREFILL, now_ns);
    gy_try_release_p(c, t);
    if (t->phase == TRY_CLEANUP) gy_try_settle(c, t);
}

void gy_try_active(gy_coord *c, gy_try *t) {
    t->was_active = 1;
    end_import(c, t);
    gy_try_know_prompt(c, t, t->d);
    if (t->phase != TRY_PREFILL) return;
    t->phase = TRY_DECODE;
    t->due_ns = INT64_MAX;
    c->stats.n_crossed++;
}

static void enter_cleanup(gy_try *t) {
    t->phase = TRY_CLEANUP;
    t->due_ns = INT64_MAX;
    t->req->cur = NULL;
}

void gy_try_done(gy_coord *c, gy_try *t) {
    enter_cleanup(t);
    gy_try_settle(c, t);
}

void gy_try_abandon(gy_coord *c, gy_try *t) {
    if (t->phase != TRY_CLEANUP) enter_cleanup(t);
    if (!t->p_held) gy_try_release_p(c, t); /* never told: nothing to wait for */
    if (!t->was_cancelled && t->p_held) say(c, t->p, GY_MSG_CANCEL, t);
    if (!t->was_cancelled && t->d_held) say(c, t->d, GY_MSG_CANCEL, t);
    t->was_cancelled = 1;
    gy_try_settle(c, t);
}

static int is_safe(const gy_try *t) {
    return t->was_cancelled && t->was_reserved && !t->was_active && !t->p_held;
}

void gy_try_settle(gy_coord *c, gy_try *t) {
    if (t->d_held && !t->was_safe && is_safe(t)) {
        t->was_safe = 1;
        say(c, t->d, GY_MSG_CANCEL_SAFE, t);
    }
    if (t->d_held || t->p_held) return;
    gy_coord_req *r = t->req;
    unlink_try(c, t);
    t->phase = TRY_FREE;
    gy_req_free_if_gone(c, r);
}
