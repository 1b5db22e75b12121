/* Is the coordinator what it should be? Everything that is kept is computed again from the tries and requests. For
 * tests and for a debugger; the first thing that is wrong is named.
 */
#include "pd/coord_int.h"

#include <stdio.h>

typedef struct check {
    const gy_coord *c;
    gy_err first; /* what is wrong; GY_OK: nothing */
} check;

#define EXPECT(k, is_true, ...)                                                                                        \
    do {                                                                                                               \
        if (!(is_true) && (k)->first.status == GY_OK) gy_err_set(&(k)->first, GY_E_BUG, __VA_ARGS__);                  \
    } while (0)

/* ---- requests ---- */

static void check_choices(check *k, const gy_coord_req *r) {
    int32_t n_left = 0;
    for (int32_t i = 0; i < r->q.r.n; i++) {
        n_left += !r->choice[i].is_done;
        int32_t told = r->choice[i].n_told;
        EXPECT(k, told >= 0 && told <= r->q.r.max_tokens, "request %d: choice %d was told %d tokens", r->id, i, told);
    }
    EXPECT(k, n_left == r->n_left, "request %d: n_left is %d, but %d choices go on", r->id, r->n_left, n_left);
    EXPECT(k, (r->state == REQ_GONE) == (n_left == 0), "request %d: state %d with %d choices", r->id, r->state, n_left);
}

static void check_tries_of(check *k, const gy_coord_req *r) {
    int n_used = 0, n_cur = 0;
    for (int i = 0; i < GY_COORD_MAX_TRIES; i++) {
        const gy_try *t = &r->tries[i];
        n_used += t->phase != TRY_FREE;
        n_cur += t->phase != TRY_FREE && t->phase != TRY_CLEANUP;
        if (t->phase != TRY_FREE && t->phase != TRY_CLEANUP)
            EXPECT(k, r->cur == t, "request %d: try %d is in phase %d and does not count", r->id, i, t->phase);
    }
    EXPECT(k, n_cur == (r->state == REQ_RUNNING), "request %d: state %d, %d tries that count", r->id, r->state, n_cur);
    EXPECT(k, (r->cur != NULL) == (r->state == REQ_RUNNING), "request %d: state %d, cur %p", r->id, r->state,
           (const void *)r->cur);
    EXPECT(k, r->state != REQ_GONE || n_used || r->n_hold, "request %d: gone, without tries, not freed", r->id);
    EXPECT(k, r->n_failed < GY_COORD_MAX_TRIES || r->state == REQ_GONE, "request %d: %d failed tries", r->id,
           r->n_failed);
}

static void check_due(check *k, const gy_coord_req *r) {
    EXPECT(k, !r->deadline_ns || r->is_cancelled || k->c->due_ns <= r->deadline_ns,
           "request %d: its deadline is before due", r->id);
    EXPECT(k, !r->cur || r->is_cancelled || k->c->due_ns <= r->cur->due_ns, "request %d: its try is due before due",
           r->id);
}

static void check_live(check *k) {
    int32_t n_cancel = 0, last = -1;
    for (const gy_coord_req *r = k->c->live.first; r; r = r->next) {
        EXPECT(k, r->id > last && r->state != REQ_GONE, "live list: request %d, state %d, after %d", r->id, r->state,
               last);
        last = r->id;
        n_cancel += r->is_cancelled;
        check_choices(k, r);
        check_tries_of(k, r);
        check_due(k, r);
    }
    EXPECT(k, n_cancel == k->c->n_cancel, "n_cancel is %d, found %d", k->c->n_cancel, n_cancel);
}

static void check_gone(check *k) {
    for (const gy_coord_req *r = k->c->gone.first; r; r = r->next) {
        EXPECT(k, r->state == REQ_GONE, "gone list: request %d, state %d", r->id, r->state);
        check_choices(k, r);
        check_tries_of(k, r);
    }
}

static void check_queue(check *k) {
    int32_t n_choice = 0, n_waiting = 0;
    for (const gy_coord_req *r = k->c->live.first; r; r = r->next) n_waiting += r->state == REQ_WAITING;
    for (const gy_coord_req *r = k->c->waiting.first; r; r = r->wnext) {
        EXPECT(k, r->state == REQ_WAITING, "queue: request %d, state %d", r->id, r->state);
        EXPECT(k, !r->wprev || gy_req_better(k->c, r->wprev, r), "queue: request %d behind another", r->id);
        EXPECT(k, !k->c->o.max_bypass || r->n_bypass <= k->c->o.max_bypass, "queue: request %d was passed %d times",
               r->id, r->n_bypass);
        n_choice += r->q.r.n;
        n_waiting--;
    }
    EXPECT(k, n_waiting == 0, "queue: %d waiting requests are not in it", n_waiting);
    EXPECT(k, n_choice == k->c->n_wait, "queue: n_wait is %d, found %d choices", k->c->n_wait, n_choice);
}

/* ---- tries ---- */

static void check_phase(check *k, const gy_try *t) {
    int is_over = t->phase == TRY_CLEANUP, id = t->req->id;
    EXPECT(k, t->phase != TRY_FREE, "request %d: a free try is in the list", id);
    EXPECT(k, is_over || t->d_held, "request %d: phase %d, D holds nothing", id, t->phase);
    EXPECT(k, !is_over || t->d_held || t->p_held, "request %d: cleaned up, not freed", id);
    EXPECT(k, t->phase != TRY_RESERVING || (!t->p_held && !t->was_reserved && t->p_taken == !t->d_owes),
           "request %d: reserving", id);
    EXPECT(k, t->p_away == (t->phase == TRY_RESERVING && t->d_owes), "request %d: away %d", id, t->p_away);
    EXPECT(k, !t->d_owes || (t->d_held && !t->was_reserved), "request %d: D owes no answer", id);
    EXPECT(k, t->phase != TRY_PREFILL || (t->was_reserved && !t->was_active), "request %d: prefill", id);
    EXPECT(k, t->phase != TRY_DECODE || t->was_active, "request %d: decode without active", id);
    EXPECT(k, t->phase == TRY_RESERVING || t->p_taken == t->p_held, "request %d: P's credits %d, held %d", id,
           t->p_taken, t->p_held);
    EXPECT(k, !t->was_cancelled || is_over, "request %d: cancelled in phase %d", id, t->phase);
    EXPECT(k, t->is_import == (t->p >= 0 && t->d_held && !t->was_active), "request %d: import %d", id, t->is_import);
}

/* The rule of CANCEL_SAFE, both ways. */
static void check_safe(check *k, const gy_try *t) {
    int is_due = t->was_cancelled && t->was_reserved && !t->was_active && !t->p_held && t->d_held;
    EXPECT(k, !is_due || t->was_safe, "request %d: D waits for CANCEL_SAFE", t->req->id);
    EXPECT(k, !t->was_safe || (t->was_cancelled && t->was_reserved && !t->p_held),
           "request %d: CANCEL_SAFE was said too early", t->req->id);
}

static void check_links(check *k, const gy_try *t) {
    int is_said = 0;
    for (int i = 0; i < GY_ENGINE_MAX_N; i++) is_said += t->said[i / 8] >> (i % 8) & 1;
    EXPECT(k, gy_try_find(k->c, t->tid) == t, "request %d: its tid finds another try", t->req->id);
    EXPECT(k, !t->next || t->next->prev == t, "request %d: list of tries", t->req->id);
    EXPECT(k, is_said == t->n_said, "request %d: %d choices said finish, n_said is %d", t->req->id, is_said, t->n_said);
    EXPECT(k, !t->d_held || k->c->w[t->d].is_ready, "request %d: held by a dead D", t->req->id);
    EXPECT(k, !t->p_taken || k->c->w[t->p].is_ready, "request %d: held by a dead P", t->req->id);
}

static void count_try(const gy_try *t, gy_coord_worker *books) {
    const gy_request *r = &t->req->q.r;
    if (t->d_held) {
        books[t->d].n_choice += r->n;
        books[t->d].n_import += t->is_import;
        books[t->d].n_owed += t->d_owes;
        books[t->d].n_block += t->d_block;
    }
    if (t->p_taken) {
        books[t->p].n_export++;
        books[t->p].n_block += t->p_block;
    }
    if (t->p_away) books[t->p].n_away++;
    if (t->tok_at >= 0) books[t->tok_at].n_tok += t->n_tok;
}

static void check_books(check *k) {
    gy_coord_worker books[GY_COORD_MAX_WORKERS] = {0};
    for (const gy_try *t = k->c->tries; t; t = t->next) count_try(t, books);
    for (int32_t i = 0; i < k->c->o.n_worker; i++) {
        const gy_coord_worker *w = &k->c->w[i], *b = &books[i];
        EXPECT(k, w->n_choice == b->n_choice, "worker %d: n_choice is %d, found %d", i, w->n_choice, b->n_choice);
        EXPECT(k, w->n_import == b->n_import, "worker %d: n_import is %d, found %d", i, w->n_import, b->n_import);
        EXPECT(k, w->n_export == b->n_export, "worker %d: n_export is %d, found %d", i, w->n_export, b->n_export);
        EXPECT(k, w->n_owed == b->n_owed, "worker %d: n_owed is %d, found %d", i, w->n_owed, b->n_owed);
        EXPECT(k, w->n_away == b->n_away, "worker %d: n_away is %d, found %d", i, w->n_away, b->n_away);
        EXPECT(k, w->n_block == b->n_block, "worker %d: n_block is %lld, found %lld", i, (long long)w->n_block,
               (long long)b->n_block);
        EXPECT(k, w->n_tok == b->n_tok, "worker %d: n_tok is %lld, found %lld", i, (long long)w->n_tok,
               (long long)b->n_tok);
        EXPECT(k, w->is_ready || !w->n_import, "worker %d: dead, with imports", i);
        EXPECT(k, (w->known != NULL) == (w->is_ready && k->c->o.prefix_cache), "worker %d: its cached rows", i);
    }
}

/* Places that were taken again without asking for room are beyond the limits. */
static int32_t exports_by_right(const gy_coord *c, int32_t worker) {
    int32_t n = c->w[worker].n_export;
    for (const gy_try *t = c->tries; t; t = t->next) n -= t->p == worker && t->p_taken && t->was_owed;
    return n;
}

static void check_limits(check *k) {
    for (int32_t i = 0; i < k->c->o.n_worker; i++) {
        const gy_coord_worker *w = &k->c->w[i];
        if (!w->is_ready) continue;
        int32_t n_export = exports_by_right(k->c, i);
        EXPECT(k, n_export <= k->c->o.max_prefill, "worker %d: %d prompts at once", i, n_export);
        EXPECT(k, w->n_import <= w->info.max_handoff && n_export <= w->info.max_handoff,
               "worker %d: %d imports, %d exports", i, w->n_import, n_export);
    }
}

static void check_pairs(check *k) {
    const gy_coord *c = k->c;
    for (int32_t p = 0; p < c->o.n_worker; p++)
        for (int32_t d = 0; d < c->o.n_worker; d++) {
            int can = p != d && c->w[p].is_ready && c->w[d].is_ready && (c->w[p].role & GY_PD_PREFILL) &&
                      (c->w[d].role & GY_PD_DECODE);
            EXPECT(k, can == (c->w[p].pair[d] != PAIR_NONE), "pair %d to %d: %d", p, d, c->w[p].pair[d]);
        }
}

int gy_coord_is_valid(const gy_coord *c, char *buf, size_t cap) {
    check k = {.c = c};
    check_live(&k);
    check_gone(&k);
    check_queue(&k);
    for (const gy_try *t = c->tries; t; t = t->next) {
        check_phase(&k, t);
        check_safe(&k, t);
        check_links(&k, t);
    }
    check_books(&k);
    check_limits(&k);
    check_pairs(&k);
    if (cap) (void)snprintf(buf, cap, "%s", k.first.msg);
    return k.first.status == GY_OK;
}
