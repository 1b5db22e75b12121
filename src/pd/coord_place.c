/* Where a request goes and when: by load and by what of its prompt is believed to be cached. Credits are book entries:
 * a worker that holds nothing takes anything, so that what is estimated here cannot keep a request out that the worker
 * itself would take. Only free core blocks are estimated; what a worker has really free is its own affair (it waits,
 * preempts, or rejects).
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

/* ---- what a place costs ------------------------------------------------------------------------------------------ */

/* In prompt tokens, as computing one is what the rest is measured by: a pair of workers costs
 *
 *   compute   what is queued before this prompt, and what of it is not cached there; twice that where others decode, as
 *             they get half of each pass (prefill_share)
 *   cross     when D is another one: a fixed cost, and an eighth of a token for each that D has not cached: most of the
 *             bytes move while the next tokens are computed
 *   load      of D: FULL_COST for all places taken, and for all blocks taken
 *
 * So a prefix that is cached draws its prompts to one worker until its queue is as long as what the cache saves, or
 * until it is fuller than another one by saved tokens / FULL_COST; there is no threshold to tune. Ties go to the lower
 * slot. Only what is known without asking is in it.
 */
enum { FULL_COST = 4096, CROSS_COST = 16, CROSS_SHARE = 8 };

int32_t gy_worker_cached(const gy_coord_worker *w, const gy_coord_req *r) {
    int32_t most = (r->q.r.n_prompt - 1) / GY_KV_BLOCK_LEN; /* the last token is always computed */
    if (!w->known || !r->n_row) return 0;
    return gy_known_match(w->known, r->row_hash, most < r->n_row ? most : r->n_row) * GY_KV_BLOCK_LEN;
}

static int64_t compute_cost(const gy_coord_worker *w, const gy_coord_req *r) {
    int64_t n = w->n_tok + r->q.r.n_prompt - gy_worker_cached(w, r);
    return w->n_choice ? 2 * n : n;
}

static int64_t cross_cost(const gy_coord_worker *w, const gy_coord_req *r) {
    return CROSS_COST + (r->q.r.n_prompt - gy_worker_cached(w, r)) / CROSS_SHARE;
}

static int64_t load_cost(const gy_coord_worker *w) {
    return FULL_COST * (int64_t)(w->n_choice + w->n_export) / w->info.max_seqs +
           FULL_COST * w->n_block / w->info.n_block[GY_KV_CORE];
}

/* ---- the cheapest one -------------------------------------------------------------------------------------------- */

typedef struct place {
    int32_t d, p; /* -1: none; p -1: it stays at d */
    int64_t cost;
} place;

static void prefer(place *best, int32_t d, int32_t p, int64_t cost) {
    if (best->d < 0 || cost < best->cost) *best = (place){d, p, cost};
}

static place find_local(const gy_coord *c, const gy_coord_req *r, int64_t now_ns) {
    place best = {-1, -1, 0};
    for (int32_t i = 0; i < c->o.n_worker; i++)
        if (takes_decode(&c->w[i], r, now_ns)) prefer(&best, i, -1, compute_cost(&c->w[i], r) + load_cost(&c->w[i]));
    return best;
}

typedef struct writers { /* what they cost does not depend on who is written to; -1: not now */
    int n;
    int64_t cost[GY_COORD_MAX_WORKERS];
} writers;

static void find_writers(const gy_coord *c, const gy_coord_req *r, int64_t now_ns, writers *out) {
    out->n = 0;
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        int takes = takes_prefill(c, &c->w[i], r, now_ns);
        out->cost[i] = takes ? compute_cost(&c->w[i], r) : -1;
        out->n += takes;
    }
}

static int takes_import(const gy_coord_worker *w) {
    return !w->n_owed && w->n_import < w->info.max_handoff;
}

static void find_for(const gy_coord *c, const gy_coord_req *r, int32_t d, const writers *from, place *best) {
    const gy_coord_worker *w = &c->w[d];
    int64_t load = load_cost(w);
    if (gy_worker_is_usable(w, GY_PD_PREFILL)) prefer(best, d, -1, load + compute_cost(w, r));
    if (!from->n || !takes_import(w)) return;
    int64_t cross = cross_cost(w, r);
    for (int32_t p = 0; p < c->o.n_worker; p++)
        if (p != d && from->cost[p] >= 0 && c->w[p].pair[d] == PAIR_OPEN)
            prefer(best, d, p, load + cross + from->cost[p]);
}

static place find_pair(const gy_coord *c, const gy_coord_req *r, int64_t now_ns) {
    writers from = {0};
    place best = {-1, -1, 0};
    find_writers(c, r, now_ns, &from);
    for (int32_t d = 0; d < c->o.n_worker; d++)
        if (takes_decode(&c->w[d], r, now_ns)) find_for(c, r, d, &from, &best);
    return best;
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

/* Prompt tokens before the least busy P, with its share of those that wait here. */
static int64_t queue_for_p(const gy_coord *c, int64_t ahead_tok) {
    int64_t least = INT64_MAX;
    int32_t n = 0;
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        if (!gy_worker_is_usable(&c->w[i], GY_PD_PREFILL)) continue;
        if (c->w[i].n_tok < least) least = c->w[i].n_tok;
        n++;
    }
    return n ? least + ahead_tok / n : 0;
}

/* Short, or the queue is long: it is computed where it is decoded, if anybody has room for that. */
static int stays(const gy_coord *c, const gy_coord_req *r, int64_t ahead_tok) {
    if (!r->can_cross || r->q.r.n_prompt < c->o.local_below) return 1;
    return c->o.local_queue && queue_for_p(c, ahead_tok) > c->o.local_queue;
}

static place find_place(const gy_coord *c, const gy_coord_req *r, int64_t ahead_tok, int64_t now_ns) {
    if (!stays(c, r, ahead_tok)) {
        place best = find_pair(c, r, now_ns);
        if (best.d >= 0 || (now_ns - r->since_ns < patience(c) && !has_no_writer(c))) return best;
    }
    return find_local(c, r, now_ns);
}

static int begin(gy_coord *c, gy_coord_req *r, int64_t ahead_tok, int64_t now_ns) {
    place at = find_place(c, r, ahead_tok, now_ns);
    if (at.d < 0) return 0;
    if (gy_try_begin(c, r, at.d, at.p, now_ns) < 0) {
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
    int64_t ahead_tok = 0;
    for (gy_coord_req *r = c->waiting.first, *next; r && n_seen < SCAN; r = next) {
        next = r->wnext;
        if (!gy_req_free_try(r)) {
            n_seen++;
        } else if (begin(c, r, ahead_tok, now_ns)) {
            n_begun++;
            if (n_passed && count_bypass(c, next)) break;
        } else if (bars_the_way(c, r, !n_passed, now_ns)) {
            break;
        } else {
            if (r->can_cross) ahead_tok += r->q.r.n_prompt;
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
