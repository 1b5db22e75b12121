/* Where a request goes and when. Credits are book entries: a worker that holds nothing takes anything, so that what is
 * estimated here cannot keep a request out that the worker itself would take. Only free core blocks are estimated; what
 * a worker has really free is its own affair (it waits, preempts, or rejects).
 */
#include "pd/coord_int.h"

enum { SCAN = 64 }; /* waiting requests that are looked at in a turn without finding a place */

int gy_worker_is_usable(const gy_coord_worker *w, int32_t role) {
    return w->is_ready && !w->is_leaving && !w->is_suspect && !w->is_lost && (w->role & role);
}

int32_t gy_worker_blocks(const gy_coord_worker *w, int64_t n_tok) {
    int64_t n = (n_tok + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN * w->plane_core;
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

static int is_empty(const gy_coord_worker *w) {
    return !w->n_choice && !w->n_export;
}

static int has_blocks(const gy_coord_worker *w, const gy_coord_req *r) {
    return is_empty(w) || w->n_block + gy_worker_blocks(w, r->q.r.n_prompt) <= w->info.n_block[GY_KV_CORE];
}

/* More choices than run at once: the next ones are there when a place gets free, and no further. */
static int has_room(const gy_coord_worker *w, const gy_coord_req *r, int64_t now_ns) {
    int64_t most = (int64_t)w->info.max_seqs + w->info.max_handoff;
    return w->full_until_ns <= now_ns && (is_empty(w) || w->n_choice + r->q.r.n <= most) && has_blocks(w, r);
}

/* It owes an answer, and has said nothing else since then: it may be stopped. */
static int is_quiet(const gy_coord_worker *w) {
    return w->n_owed && w->heard_ns < w->owed_ns;
}

static int takes_decode(const gy_coord_worker *w, const gy_coord_req *r, int64_t now_ns) {
    return gy_worker_is_usable(w, GY_PD_DECODE) && !is_quiet(w) && has_room(w, r, now_ns);
}

/* Prompts that may still come count for half of the places, so that the others go on. */
static int has_place(const gy_coord *c, const gy_coord_worker *w) {
    int32_t half = c->o.max_prefill / 2, away = w->n_away < half ? w->n_away : half;
    return w->n_export + away < c->o.max_prefill && w->n_export < w->info.max_handoff;
}

static int takes_prefill(const gy_coord *c, const gy_coord_worker *w, const gy_coord_req *r, int64_t now_ns) {
    return gy_worker_is_usable(w, GY_PD_PREFILL) && w->full_until_ns <= now_ns && has_place(c, w) && has_blocks(w, r);
}

static int less_loaded(const gy_coord_worker *a, const gy_coord_worker *b) {
    int64_t la = (int64_t)(a->n_choice + a->n_export) * b->info.max_seqs;
    int64_t lb = (int64_t)(b->n_choice + b->n_export) * a->info.max_seqs;
    if (la != lb) return la < lb;
    return a->n_block * b->info.n_block[GY_KV_CORE] < b->n_block * a->info.n_block[GY_KV_CORE];
}

static int shorter_queue(const gy_coord_worker *a, const gy_coord_worker *b) {
    if (a->n_tok != b->n_tok) return a->n_tok < b->n_tok;
    return a->n_choice + a->n_export < b->n_choice + b->n_export;
}

static int32_t find_local(const gy_coord *c, const gy_coord_req *r, int64_t now_ns) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->o.n_worker; i++)
        if (takes_decode(&c->w[i], r, now_ns) && (best < 0 || less_loaded(&c->w[i], &c->w[best]))) best = i;
    return best;
}

/* -1: none can write to d now. d itself, when it does both: nothing has to cross, so it wins where it is equal. */
static int32_t find_writer(const gy_coord *c, const gy_coord_req *r, int32_t d, int64_t now_ns) {
    int32_t best = gy_worker_is_usable(&c->w[d], GY_PD_PREFILL) ? d : -1;
    if (c->w[d].n_owed || c->w[d].n_import >= c->w[d].info.max_handoff) return best;
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        if (i == d || c->w[i].pair[d] != PAIR_OPEN || !takes_prefill(c, &c->w[i], r, now_ns)) continue;
        if (best < 0 || shorter_queue(&c->w[i], &c->w[best])) best = i;
    }
    return best;
}

static int find_pair(const gy_coord *c, const gy_coord_req *r, int64_t now_ns, int32_t *d_out, int32_t *p_out) {
    int32_t best = -1, writer = -1;
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        if (!takes_decode(&c->w[i], r, now_ns)) continue;
        if (best >= 0 && !less_loaded(&c->w[i], &c->w[best])) continue;
        int32_t p = find_writer(c, r, i, now_ns);
        if (p >= 0) best = i, writer = p;
    }
    *d_out = best;
    *p_out = writer == best ? -1 : writer;
    return best >= 0;
}

/* Nobody computes prompts for others, now or soon. */
static int has_no_writer(const gy_coord *c) {
    for (int32_t p = 0; p < c->o.n_worker; p++) {
        if (!gy_worker_is_usable(&c->w[p], GY_PD_PREFILL)) continue;
        for (int32_t d = 0; d < c->o.n_worker; d++)
            if (c->w[p].pair[d] == PAIR_ASKED || c->w[p].pair[d] == PAIR_OPEN) return 0;
    }
    return 1;
}

static int64_t patience(const gy_coord *c) {
    return c->o.reserve_ns / 2;
}

static int find_place(const gy_coord *c, const gy_coord_req *r, int64_t now_ns, int32_t *d_out, int32_t *p_out) {
    int is_short = r->q.r.n_prompt < c->o.local_below;
    if (r->can_cross && !is_short) {
        if (find_pair(c, r, now_ns, d_out, p_out)) return 1;
        if (now_ns - r->since_ns < patience(c) && !has_no_writer(c)) return 0;
    }
    *d_out = find_local(c, r, now_ns);
    *p_out = -1;
    return *d_out >= 0;
}

static int begin(gy_coord *c, gy_coord_req *r, int64_t now_ns) {
    int32_t d, p;
    if (!find_place(c, r, now_ns, &d, &p)) return 0;
    if (gy_try_begin(c, r, d, p, now_ns) < 0) {
        gy_err err;
        gy_err_set(&err, GY_E_IO, "request: the system gives no random numbers for a transfer id");
        gy_req_end(c, r, GY_FINISH_ERROR, &err, now_ns);
    }
    return 1;
}

/* One that stood before `next` was admitted: those from the first one on were passed. 1: nobody may pass any more. */
static int count_bypass(const gy_coord *c, const gy_coord_req *next) {
    int full = 0;
    for (gy_coord_req *r = c->waiting.first; r && r != next; r = r->wnext)
        if (gy_req_free_try(r)) full |= ++r->n_bypass == c->o.max_bypass;
    return full;
}

/* Nobody passes it, though it does not fit. */
static int bars_the_way(const gy_coord *c, const gy_coord_req *r, int is_first, int64_t now_ns) {
    if (is_first && now_ns - r->since_ns >= patience(c)) return 1;
    return c->o.max_bypass && r->n_bypass >= c->o.max_bypass;
}

/* A request all of whose tries are still cleaned up waits for that, not for room: it is as if it was not there. */
int gy_coord_admit(gy_coord *c, int64_t now_ns) {
    int n_begun = 0, n_passed = 0, n_seen = 0;
    for (gy_coord_req *r = c->waiting.first, *next; r && n_seen < SCAN; r = next) {
        next = r->wnext;
        if (!gy_req_free_try(r)) {
            n_seen++;
        } else if (begin(c, r, now_ns)) {
            n_begun++;
            if (n_passed && count_bypass(c, next)) break;
        } else if (bars_the_way(c, r, !n_passed, now_ns)) {
            break;
        } else {
            n_passed++;
            n_seen++;
        }
    }
    return n_begun;
}

int64_t gy_coord_admit_next(const gy_coord *c, int64_t now_ns) {
    int64_t next_ns = INT64_MAX;
    int n = 0;
    for (const gy_coord_req *r = c->waiting.first; r && n < SCAN; r = r->wnext, n++) {
        int64_t at = r->since_ns + patience(c);
        if (at > now_ns && at < next_ns) next_ns = at;
    }
    for (int32_t i = 0; n && i < c->o.n_worker; i++) {
        int64_t at = c->w[i].full_until_ns;
        if (at > now_ns && at < next_ns) next_ns = at;
    }
    return next_ns;
}
