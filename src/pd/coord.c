/* The coordinator's outside: made and ended, requests in, turns, deaths. The life of a try is in coord_try.c, of a
 * request in coord_req.c, what workers say in coord_msg.c, where work goes in coord_place.c.
 */
#include "pd/coord_int.h"

#include <sys/random.h>

/* ---- made and ended
 * -------------------------------------------------------------------------------------------------- */

static int system_random(void *user, void *bytes, size_t n) {
    (void)user;
    return getrandom(bytes, n, 0) == (ssize_t)n ? 0 : -1;
}

void gy_coord_opts_default(gy_coord_opts *o) {
    *o = (gy_coord_opts){.max_queue = 1024,
                         .max_prefill = 4,
                         .prefix_cache = 1,
                         .ask_ns = 5000000,
                         .suspect_ns = 2000000000,
                         .reserve_ns = 30000000000,
                         .prefill_ns = 60000000000,
                         .random = system_random};
}

static gy_status check_opts(const gy_coord_opts *o, gy_err *err) {
    if (o->n_worker < 1 || o->n_worker > GY_COORD_MAX_WORKERS)
        return gy_err_set(err, GY_E_ARG, "workers: found %d, expected 1 to %d", o->n_worker, GY_COORD_MAX_WORKERS);
    for (int32_t i = 0; i < o->n_worker; i++)
        if (o->role[i] < 0 || o->role[i] > (GY_PD_PREFILL | GY_PD_DECODE))
            return gy_err_set(err, GY_E_ARG,
                              "role of worker %d: found %d, expected 0 (any), 1 (prefill), 2 (decode) or 3", i,
                              o->role[i]);
    if (o->max_queue < 1) return gy_err_set(err, GY_E_ARG, "max_queue: found %d, expected 1 or more", o->max_queue);
    if (o->max_prefill < 1)
        return gy_err_set(err, GY_E_ARG, "max_prefill: found %d, expected 1 or more", o->max_prefill);
    if (o->local_below < 0)
        return gy_err_set(err, GY_E_ARG, "local_below: found %d, expected 0 or more", o->local_below);
    if (o->reserve_ns < 1 || o->prefill_ns < 1)
        return gy_err_set(err, GY_E_ARG, "reserve_ns, prefill_ns: found %lld and %lld, expected 1 or more",
                          (long long)o->reserve_ns, (long long)o->prefill_ns);
    if (o->ask_ns < 1 || o->suspect_ns < 1 || o->ask_ns > o->suspect_ns)
        return gy_err_set(err, GY_E_ARG, "ask_ns, suspect_ns: found %lld and %lld, expected 1 or more, the first less",
                          (long long)o->ask_ns, (long long)o->suspect_ns);
    if (o->local_queue < 0)
        return gy_err_set(err, GY_E_ARG, "local_queue: found %d, expected 0 or more", o->local_queue);
    if (o->max_bypass < 0) return gy_err_set(err, GY_E_ARG, "max_bypass: found %d, expected 0 or more", o->max_bypass);
    if (!o->send || !o->random) return gy_err_set(err, GY_E_ARG, "send, random: found none");
    return GY_OK;
}

gy_status gy_coord_create(const gy_coord_opts *o, gy_err *err, gy_coord **out) {
    GY_TRY(check_opts(o, err));
    gy_coord *c = gy_mem_alloc(GY_MEM_PD, 1, sizeof *c);
    if (!c) return gy_err_set(err, GY_E_NOMEM, "no memory for a coordinator");
    c->o = *o;
    c->due_ns = INT64_MAX;
    for (int32_t i = 0; i < o->n_worker; i++) c->w[i].role = o->role[i];
    *out = c;
    return GY_OK;
}

static void free_list(gy_req_list *l) {
    for (gy_coord_req *r = l->first, *next; r; r = next) {
        next = r->next;
        gy_mem_free(r);
    }
}

void gy_coord_destroy(gy_coord *c) {
    if (!c) return;
    free_list(&c->live);
    free_list(&c->gone);
    for (int32_t i = 0; i < c->o.n_worker; i++) {
        gy_mem_free(c->w[i].blob);
        gy_known_destroy(c->w[i].known);
    }
    gy_mem_free(c);
}

/* ---- requests
 * -------------------------------------------------------------------------------------------------------- */

static gy_status check_request(const gy_coord *c, const gy_request *r, gy_err *err) {
    if (r->n_prompt < 1) return gy_err_set(err, GY_E_ARG, "prompt: found no tokens, expected at least one");
    if (r->max_tokens < 1) return gy_err_set(err, GY_E_ARG, "max_tokens: found %d, expected 1 or more", r->max_tokens);
    if (r->n < 1 || r->n > GY_ENGINE_MAX_N)
        return gy_err_set(err, GY_E_ARG, "n: found %d choices, expected 1 to %d", r->n, GY_ENGINE_MAX_N);
    if (r->n > c->o.max_queue)
        return gy_err_set(err, GY_E_LIMIT, "n: found %d choices, the queue holds %d; raise max_queue", r->n,
                          c->o.max_queue);
    if (r->n_trace < 0 || r->n_stop_ids < 0 || r->n_salt < 0 || r->n_grammar_after < 0 || r->sample.n_bias < 0)
        return gy_err_set(err, GY_E_ARG, "request: found a negative count");
    return GY_OK;
}

gy_status gy_coord_submit(gy_coord *c, const gy_coord_request *in, int64_t now_ns, gy_err *err, int32_t *id_out) {
    const gy_request *r = &in->q->r;
    gy_coord_req *q = NULL;
    GY_TRY(check_request(c, r, err));
    if (c->n_wait + r->n > c->o.max_queue)
        return gy_err_set(err, GY_AGAIN, "the queue is full: %d of %d places are taken, %d are needed; try again later",
                          c->n_wait, c->o.max_queue, r->n);
    GY_TRY(gy_req_create(c, in, err, &q));
    gy_req_add(c, q, now_ns);
    c->stats.n_submit++;
    *id_out = q->id;
    return GY_OK;
}

void gy_coord_cancel(gy_coord *c, int32_t id) {
    gy_coord_req *r = c->live.first;
    while (r && r->id != id) r = r->next;
    if (!r || r->is_cancelled) return;
    r->is_cancelled = 1;
    c->n_cancel++;
}

void gy_coord_set_deadline(gy_coord *c, int32_t id, int64_t deadline_ns) {
    gy_coord_req *r = c->live.last; /* it came just now, as a rule */
    while (r && r->id != id) r = r->prev;
    if (!r) return;
    r->deadline_ns = deadline_ns;
    if (deadline_ns) gy_coord_due(c, deadline_ns);
}

/* ---- turns
 * ------------------------------------------------------------------------------------------------------------ */

static void end_at_deadline(gy_coord *c, gy_coord_req *r, int64_t now_ns) {
    static const char *const where[] = {"", "while a place for its KV was reserved", "while its prompt was computed",
                                        "while it was decoded", ""};
    gy_err err;
    int64_t had_ns = r->deadline_ns > r->submit_ns ? r->deadline_ns - r->submit_ns : 0;
    gy_err_set(&err, GY_E_TIMEOUT, "request: its deadline of %.1f s passed %s", (double)had_ns * 1e-9,
               r->cur ? where[r->cur->phase] : "while it waited");
    gy_req_end(c, r, GY_FINISH_ERROR, &err, now_ns);
}

/* Who should have spoken: D of a reservation; P until it said PREFILLED, then D. */
static int32_t silent_one(const gy_try *t) {
    return t->phase == TRY_PREFILL && t->p_held ? t->p : t->d;
}

/* Of this phase: a worker that had nothing to do was silent before it. */
static int64_t silent_since(const gy_coord *c, const gy_try *t) {
    int64_t heard_ns = c->w[silent_one(t)].heard_ns;
    return heard_ns > t->start_ns ? heard_ns : t->start_ns;
}

/* A worker that speaks is alive, and may have much to do before it comes to this try. Not when all that is missing is a
 * note of P's last op: it comes now or never. */
static int64_t really_due(const gy_coord *c, const gy_try *t) {
    int64_t limit = t->phase == TRY_RESERVING ? c->o.reserve_ns : c->o.prefill_ns;
    int64_t silent = silent_since(c, t) + limit, most = t->start_ns + GY_COORD_PATIENCE * limit;
    if (t->phase == TRY_PREFILL && !t->p_held) return t->start_ns + limit;
    return silent < most ? silent : most;
}

static const char *what_is_missing(const gy_try *t) {
    if (t->phase == TRY_RESERVING) return "reserve a place";
    return t->p_held ? "compute its prompt" : "begin to decode it";
}

static void fail_overdue(gy_coord *c, gy_try *t, int64_t now_ns) {
    gy_coord_req *r = t->req;
    int32_t worker = silent_one(t);
    gy_err why;
    gy_err_set(&why, GY_E_TIMEOUT, "worker %d did not %s in %.1f s", worker, what_is_missing(t),
               (double)(now_ns - t->start_ns) * 1e-9);
    c->w[worker].is_suspect = 1;
    t->is_unheard = t->phase == TRY_PREFILL && !t->p_held;
    gy_try_abandon(c, t);
    gy_req_failed(c, r, why.msg, now_ns);
}

/* Somebody else decodes, and answers. */
static int has_other(const gy_coord *c, int32_t d) {
    for (int32_t i = 0; i < c->o.n_worker; i++)
        if (i != d && gy_worker_is_usable(&c->w[i], GY_PD_DECODE) && !c->w[i].n_owed) return 1;
    return 0;
}

/* Not a failed try: nothing was lost but time, and it keeps its age. What D still has of it ends behind it. */
static void move(gy_coord *c, gy_try *t) {
    gy_coord_req *r = t->req;
    c->w[t->d].is_suspect = 1;
    c->stats.n_move++;
    gy_try_abandon(c, t);
    gy_req_wait(c, r, r->since_ns);
}

static int give_way(gy_coord *c, gy_try *t, int64_t due_ns, int64_t now_ns) {
    int64_t look_ns = silent_since(c, t) + c->o.suspect_ns;
    int is_new = !t->d_owes;
    if (is_new) gy_try_owed(c, t, now_ns);
    if (look_ns <= now_ns && gy_req_free_try(t->req) && has_other(c, t->d)) {
        move(c, t);
        return 1;
    }
    if (look_ns <= now_ns) look_ns = now_ns + c->o.suspect_ns;
    gy_try_defer(c, t, look_ns < due_ns ? look_ns : due_ns);
    return is_new;
}

static int end_if_overdue(gy_coord *c, gy_try *t, int64_t now_ns) {
    int64_t due_ns = t->due_ns <= now_ns ? really_due(c, t) : t->due_ns;
    if (due_ns <= now_ns) {
        fail_overdue(c, t, now_ns);
        return 1;
    }
    if (t->phase == TRY_RESERVING && t->due_ns <= now_ns) return give_way(c, t, due_ns, now_ns);
    gy_try_defer(c, t, due_ns);
    return 0;
}

/* What stays is noted for the next time. */
static int end_if_due(gy_coord *c, gy_coord_req *r, int64_t now_ns) {
    if (r->is_cancelled)
        gy_req_end(c, r, GY_FINISH_CANCELLED, NULL, now_ns);
    else if (r->deadline_ns && r->deadline_ns <= now_ns)
        end_at_deadline(c, r, now_ns);
    else {
        if (r->deadline_ns) gy_coord_due(c, r->deadline_ns);
        return r->cur && r->cur->due_ns < INT64_MAX && end_if_overdue(c, r->cur, now_ns);
    }
    return 1;
}

static int end_what_is_due(gy_coord *c, int64_t now_ns) {
    int n = 0;
    if (!c->n_cancel && c->due_ns > now_ns) return 0;
    c->due_ns = INT64_MAX;
    for (gy_coord_req *r = c->live.first, *next; r; r = next) {
        next = r->next;
        n += end_if_due(c, r, now_ns);
    }
    return n;
}

gy_status gy_coord_turn(gy_coord *c, int64_t now_ns, int64_t *next_ns_out) {
    int n = end_what_is_due(c, now_ns);
    n += gy_coord_admit(c, now_ns);
    int64_t next_ns = gy_coord_admit_next(c, now_ns);
    *next_ns_out = next_ns < c->due_ns ? next_ns : c->due_ns;
    if (c->n_cancel) *next_ns_out = now_ns; /* of callbacks in this turn */
    if (n) return GY_OK;
    return c->live.first || c->tries ? GY_AGAIN : GY_DONE;
}

/* ---- deaths
 * ------------------------------------------------------------------------------------------------------------ */

/* After ACTIVE every byte is at D, and P's death harms nobody; before, D waits for a note that may never come. */
static int ends_with(const gy_try *t, int32_t worker) {
    return t->d == worker || t->phase != TRY_DECODE;
}

static void fail_for(gy_coord *c, gy_coord_req *r, int32_t worker, int64_t now_ns) {
    gy_err why;
    gy_err_set(&why, GY_E_PEER, "worker %d died", worker);
    gy_req_failed(c, r, why.msg, now_ns);
}

static void die_in(gy_coord *c, gy_try *t, int32_t worker, int64_t now_ns) {
    gy_coord_req *r = t->req;
    int is_over = t->phase == TRY_CLEANUP, is_fatal = !is_over && ends_with(t, worker);
    if (t->d == worker) gy_try_release_d(c, t);
    if (t->p == worker) gy_try_release_p(c, t);
    if (is_fatal || (is_over && t->p_held)) /* p_held: the dead one is D, and P has nobody to write to */
        gy_try_abandon(c, t);
    else if (is_over)
        gy_try_settle(c, t);
    if (is_fatal) fail_for(c, r, worker, now_ns);
}

/* Both sides stay held until who holds says or is dead. */
static void give_up(gy_coord *c, gy_try *t, int32_t worker, int64_t now_ns) {
    gy_coord_req *r = t->req;
    gy_try_abandon(c, t);
    fail_for(c, r, worker, now_ns);
}

void gy_coord_dying(gy_coord *c, int32_t worker, int64_t now_ns) {
    if (worker < 0 || worker >= c->o.n_worker) return;
    c->w[worker].is_lost = 1;
    for (gy_try *t = c->tries, *next; t; t = next) {
        next = t->next;
        if ((t->d == worker || t->p == worker) && t->phase != TRY_CLEANUP && ends_with(t, worker))
            give_up(c, t, worker, now_ns);
    }
}

void gy_coord_dead(gy_coord *c, int32_t worker, int64_t now_ns) {
    if (worker < 0 || worker >= c->o.n_worker) return;
    c->stats.n_death += !gy_coord_may_stop(c, worker);
    gy_coord_worker_down(c, worker);
    for (gy_try *t = c->tries, *next; t; t = next) {
        next = t->next;
        if (t->d == worker || t->p == worker) die_in(c, t, worker, now_ns);
    }
}

/* ---- what can be asked
 * --------------------------------------------------------------------------------------------------- */

void gy_coord_leave(gy_coord *c, int32_t worker) {
    if (c->w[worker].is_ready) c->w[worker].is_leaving = 1;
}

/* Until ACTIVE: its last note may be behind its word that all bytes are there. */
static int writes(const gy_try *t) {
    return t->p_held || t->phase == TRY_RESERVING || t->phase == TRY_PREFILL;
}

int gy_coord_may_stop(const gy_coord *c, int32_t worker) {
    if (!c->w[worker].is_leaving) return 0;
    for (const gy_try *t = c->tries; t; t = t->next)
        if ((t->d == worker && t->d_held) || (t->p == worker && writes(t))) return 0;
    return 1;
}

int gy_coord_n_ready(const gy_coord *c, gy_pd_role role) {
    int n = 0;
    for (int32_t i = 0; i < c->o.n_worker; i++) n += c->w[i].is_ready && (c->w[i].role & (int32_t)role);
    return n;
}

const gy_pd_info *gy_coord_info(const gy_coord *c) {
    return c->has_info ? &c->info : NULL;
}

const gy_pd_info *gy_coord_worker_info(const gy_coord *c, int32_t worker) {
    return c->w[worker].is_ready ? &c->w[worker].info : NULL;
}

void gy_coord_get_stats(const gy_coord *c, gy_coord_stats *out) {
    *out = c->stats;
    for (const gy_coord_req *r = c->waiting.first; r; r = r->wnext) {
        out->n_waiting++;
        out->wait_tok += (int64_t)r->q.r.n_prompt * r->q.r.n;
    }
    for (int32_t i = 0; i < c->o.n_worker; i++) out->used_blocks += c->w[i].n_block;
    for (const gy_try *t = c->tries; t; t = t->next) {
        if (t->phase == TRY_RESERVING) out->wait_tok += (int64_t)t->req->q.r.n_prompt * t->req->q.r.n;
        out->n_reserving += t->phase == TRY_RESERVING;
        out->n_prefill += t->phase == TRY_PREFILL;
        out->n_decode += t->phase == TRY_DECODE;
        out->n_cleanup += t->phase == TRY_CLEANUP;
    }
    out->n_live = out->n_waiting + out->n_reserving + out->n_prefill + out->n_decode;
}
