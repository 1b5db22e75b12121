/* A request at the coordinator: its one allocation, its places in lists, and what the user is told of it. What was told
 * is known per choice (and per prompt position), so a later try that says it again is not heard.
 *
 * Books are closed before a callback, which may submit and cancel; n_hold keeps the request alive meanwhile.
 */
#include "pd/coord_int.h"

#include <string.h>

/* ---- the copy --------------------------------------------------------------------------------------------------- */

static void take(gy_carve *c, const void **p, size_t n, size_t elem) {
    void *to = n ? gy_carve_take(c, n, elem) : NULL;
    if (to) memcpy(to, *p, n * elem);
    if (c->base) *p = to;
}
#define TAKE(c, p, n)                                                                                                  \
    do {                                                                                                               \
        const void *take_ = (p);                                                                                       \
        take(c, &take_, (size_t)(n), sizeof *(p));                                                                     \
        (p) = take_;                                                                                                   \
    } while (0)

/* Everything behind the struct; twice (arena.h). */
static void lay_out(gy_coord_req *q, gy_carve *c) {
    gy_request *r = &q->q.r;
    q->choice = gy_carve_take(c, (size_t)r->n, sizeof *q->choice);
    q->row_hash = q->n_row ? gy_carve_take(c, (size_t)q->n_row, sizeof *q->row_hash) : NULL;
    q->pos_told = r->prompt_logprobs >= 0 ? gy_carve_take(c, (size_t)r->n_prompt / 8 + 1, 1) : NULL;
    TAKE(c, r->prompt, r->n_prompt);
    TAKE(c, r->trace, r->n_trace);
    TAKE(c, r->stop_ids, r->n_stop_ids);
    TAKE(c, r->sample.bias, r->sample.n_bias);
    TAKE(c, r->cache_salt, r->n_salt);
    TAKE(c, r->grammar_after, r->n_grammar_after);
    TAKE(c, q->q.grammar, q->q.n_grammar);
}

static void take_callbacks(gy_coord_req *q) {
    gy_request *r = &q->q.r;
    q->on_token = r->on_token;
    q->on_prompt = r->on_prompt;
    q->on_finish = r->on_finish;
    q->arg = r->arg;
    r->on_token = NULL;
    r->on_prompt = NULL;
    r->on_finish = NULL;
    r->arg = NULL;
    r->grammar = NULL;
    r->vocab = NULL;
}

/* Drawn once, so that every try draws alike. 53 bits, as in the engine. */
static gy_status draw_seed(gy_coord *c, gy_request *r, gy_err *err) {
    uint64_t seed;
    if (!r->random_seed) return GY_OK;
    if (c->o.random(c->o.user, &seed, sizeof seed) != 0)
        return gy_err_set(err, GY_E_IO, "random seed: the system gives no random numbers");
    r->sample.seed = seed >> 11;
    r->random_seed = 0;
    return GY_OK;
}

static gy_status copy(const gy_coord_req *probe, gy_err *err, gy_coord_req **out) {
    gy_coord_req measured = *probe;
    gy_carve size = {0};
    size_t head = GY_ALIGN_UP(sizeof *probe, 64), total = 0;
    lay_out(&measured, &size);
    gy_coord_req *q = size.overflow || gy_size_add(head, size.used, &total) ? NULL : gy_mem_alloc(GY_MEM_PD, total, 1);
    if (!q)
        return gy_err_set(err, GY_E_NOMEM, "no memory for a request of %d tokens and %d choices", probe->q.r.n_prompt,
                          probe->q.r.n);
    *q = *probe;
    lay_out(q, &(gy_carve){.base = (char *)q + head, .cap = size.used});
    *out = q;
    return GY_OK;
}

static void name_rows(gy_coord_req *q) {
    const gy_request *r = &q->q.r;
    uint64_t h = gy_known_begin(r);
    for (int32_t i = 0; q->n_row && i < r->n_prompt; i++) {
        h = gy_known_next(h, r->prompt[i]);
        if ((i + 1) % GY_KV_BLOCK_LEN == 0) q->row_hash[i / GY_KV_BLOCK_LEN] = h;
    }
    q->hash = h;
}

/* As the engine has it: of prompts that leave early nothing is shared, and who wants logits looks nothing up. */
static int32_t count_rows(const gy_coord *c, const gy_coord_request *in) {
    const gy_request *r = &in->q->r;
    return c->o.prefix_cache && in->can_cross && !r->no_cache ? r->n_prompt / GY_KV_BLOCK_LEN : 0;
}

gy_status gy_req_create(gy_coord *c, const gy_coord_request *in, gy_err *err, gy_coord_req **out) {
    gy_coord_req probe = {
        .q = *in->q, .can_cross = in->can_cross, .deadline_ns = in->deadline_ns, .n_row = count_rows(c, in)};
    GY_TRY(draw_seed(c, &probe.q.r, err));
    take_callbacks(&probe);
    probe.n_left = probe.q.r.n;
    GY_TRY(copy(&probe, err, out));
    name_rows(*out);
    return GY_OK;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void list_add(gy_req_list *l, gy_coord_req *r) {
    r->prev = l->last;
    r->next = NULL;
    *(l->last ? &l->last->next : &l->first) = r;
    l->last = r;
}

static void list_drop(gy_req_list *l, gy_coord_req *r) {
    *(r->prev ? &r->prev->next : &l->first) = r->next;
    *(r->next ? &r->next->prev : &l->last) = r->prev;
}

void gy_req_add(gy_coord *c, gy_coord_req *r, int64_t now_ns) {
    r->id = c->next_id++;
    r->submit_ns = now_ns;
    list_add(&c->live, r);
    if (r->deadline_ns) gy_coord_due(c, r->deadline_ns);
    gy_req_wait(c, r, now_ns);
}

/* Who was running and comes back is older than those who wait, so the walk from the tail is for new ones. */
void gy_req_wait(gy_coord *c, gy_coord_req *r, int64_t since_ns) {
    gy_coord_req *before = c->waiting.last;
    while (before && gy_req_better(c, r, before)) before = before->wprev;
    r->state = REQ_WAITING;
    r->n_bypass = 0;
    r->since_ns = since_ns;
    r->wprev = before;
    r->wnext = before ? before->wnext : c->waiting.first;
    *(before ? &before->wnext : &c->waiting.first) = r;
    *(r->wnext ? &r->wnext->wprev : &c->waiting.last) = r;
    c->n_wait += r->q.r.n;
}

void gy_req_leave_queue(gy_coord *c, gy_coord_req *r) {
    *(r->wprev ? &r->wprev->wnext : &c->waiting.first) = r->wnext;
    *(r->wnext ? &r->wnext->wprev : &c->waiting.last) = r->wprev;
    r->wprev = r->wnext = NULL;
    r->state = REQ_RUNNING;
    c->n_wait -= r->q.r.n;
}

gy_try *gy_req_free_try(gy_coord_req *r) {
    for (int i = 0; i < GY_COORD_MAX_TRIES; i++)
        if (r->tries[i].phase == TRY_FREE) return &r->tries[i];
    return NULL;
}

static int has_tries(const gy_coord_req *r) {
    for (int i = 0; i < GY_COORD_MAX_TRIES; i++)
        if (r->tries[i].phase != TRY_FREE) return 1;
    return 0;
}

void gy_req_free_if_gone(gy_coord *c, gy_coord_req *r) {
    if (r->state != REQ_GONE || r->n_hold || has_tries(r)) return;
    list_drop(&c->gone, r);
    gy_mem_free(r);
}

static void hold(gy_coord_req *r) {
    r->n_hold++;
}

static void let_go(gy_coord *c, gy_coord_req *r) {
    r->n_hold--;
    gy_req_free_if_gone(c, r);
}

/* The last choice has ended: ids are unknown from here on, and the try, if D still runs it, is not wanted any more. */
static void leave(gy_coord *c, gy_coord_req *r) {
    if (r->state == REQ_WAITING) gy_req_leave_queue(c, r);
    if (r->is_cancelled) c->n_cancel--;
    list_drop(&c->live, r);
    list_add(&c->gone, r);
    r->state = REQ_GONE;
    gy_try *t = r->cur;
    if (!t) return;
    if (t->n_said == r->q.r.n)
        gy_try_done(c, t);
    else
        gy_try_abandon(c, t);
}

/* ---- finishing ----------------------------------------------------------------------------------------------------
 */

/* ev: what only the caller knows. */
static void finish(gy_coord *c, gy_coord_req *r, gy_finish_event *ev, int64_t now_ns) {
    gy_coord_choice *k = &r->choice[ev->choice];
    GY_CHECK(!k->is_done);
    k->is_done = 1;
    ev->request = r->id;
    ev->n_left = --r->n_left;
    ev->n_prompt = r->q.r.n_prompt;
    ev->n_output = k->n_told;
    ev->seed = r->q.r.sample.seed;
    ev->submit_ns = r->submit_ns;
    ev->admit_ns = r->admit_ns;
    ev->first_token_ns = k->first_token_ns;
    ev->finish_ns = now_ns;
    ev->pd = r->pd;
    if (ev->pd.n_try) ev->pd.at_ns[GY_PD_FINISHED] = now_ns;
    c->stats.n_finish[ev->reason]++;
    hold(r);
    if (!r->n_left) leave(c, r);
    if (r->on_finish) r->on_finish(r->arg, ev);
    let_go(c, r);
}

void gy_req_end(gy_coord *c, gy_coord_req *r, gy_finish reason, const gy_err *err, int64_t now_ns) {
    hold(r);
    if (r->cur) gy_try_abandon(c, r->cur);
    for (int32_t k = 0; k < r->q.r.n; k++) {
        if (r->choice[k].is_done) continue;
        gy_finish_event ev = {.choice = k, .reason = reason, .err = err, .stop_id = -1};
        finish(c, r, &ev, now_ns);
    }
    let_go(c, r);
}

void gy_req_failed(gy_coord *c, gy_coord_req *r, const char *why, int64_t now_ns) {
    GY_CHECK(!r->cur);
    if (++r->n_failed < GY_COORD_MAX_TRIES) {
        c->stats.n_retry++;
        gy_req_wait(c, r, now_ns);
        return;
    }
    gy_err err;
    gy_err_set(&err, GY_E_PEER, "request: given up after %d tries on the workers; the last one failed because %s",
               r->n_failed, why);
    gy_req_end(c, r, GY_FINISH_ERROR, &err, now_ns);
}

/* Wrong with the request itself: it would be so at any worker. "Cancelled" is a worker that ends. */
int gy_req_is_at_fault(gy_status st) {
    return gy_status_get_group(st) == GY_GROUP_REQUEST && st != GY_E_CANCELLED;
}

/* ---- what D says ----------------------------------------------------------------------------------------------------
 */

static gy_status check_choice(const gy_coord_req *r, int32_t choice, gy_err *err) {
    if (choice >= 0 && choice < r->q.r.n) return GY_OK;
    return gy_err_set(err, GY_E_FORMAT, "token: found choice %d of a request with %d", choice, r->q.r.n);
}

static void begin_outputs(const gy_coord_req *r, gy_coord_choice *k) {
    k->can_share = r->n_row > 0;
    k->n_seen = 0;
    k->hash = r->hash;
    k->row_hash = r->n_row ? r->row_hash[r->n_row - 1] : 0;
}

/* With output i the token before it has its KV, from as many loops as are said with i. */
static void know_output(const gy_coord *c, const gy_try *t, const gy_msg_token *m) {
    const gy_coord_req *r = t->req;
    gy_coord_choice *k = &r->choice[m->choice];
    if (m->index == 0) begin_outputs(r, k);
    k->can_share &= m->index == k->n_seen && m->loops == c->info.n_loop;
    if (!k->can_share || !c->w[t->d].known) return;
    if (m->index) k->hash = gy_known_next(k->hash, k->last);
    if (m->index && (r->q.r.n_prompt + m->index) % GY_KV_BLOCK_LEN == 0) {
        gy_known_grow(c->w[t->d].known, k->row_hash, k->hash);
        k->row_hash = k->hash;
    }
    k->last = m->token;
    k->n_seen++;
}

static void account(gy_coord *c, gy_try *t, const gy_msg_token *m) {
    if (t->tok_at == t->d) gy_try_know_prompt(c, t, t->d); /* LOCAL, its first token */
    gy_try_prompt_done(c, t);
    know_output(c, t, m);
    if (((int64_t)t->req->q.r.n_prompt + m->index) % GY_KV_BLOCK_LEN == 0) gy_try_grow(c, t, c->w[t->d].plane_core);
}

static gy_sampled sampled_of(const gy_msg_token *m) {
    gy_sampled s = {.id = m->token, .n_top = m->n_top, .logprob = m->logprob};
    memcpy(s.top_id, m->top_id, sizeof s.top_id);
    memcpy(s.top_logprob, m->top_logprob, sizeof s.top_logprob);
    return s;
}

static gy_verdict tell_token(gy_coord_req *r, const gy_msg_token *m) {
    if (!r->on_token) return GY_CONTINUE;
    gy_sampled s = sampled_of(m);
    gy_token_event ev = {.request = r->id,
                         .choice = m->choice,
                         .index = m->index,
                         .token = m->token,
                         .loops = m->loops,
                         .sampled = &s,
                         .gates = m->n_gate ? m->gates : NULL,
                         .n_gate = m->n_gate};
    return r->on_token(r->arg, &ev);
}

static int depth_of(int32_t loops) {
    return loops < 1 ? 0 : loops > GY_STAT_DEPTHS ? GY_STAT_DEPTHS - 1 : loops - 1;
}

/* GY_STOP ends this choice here; D hears of it when the last choice has ended (CANCEL is for a whole try). */
gy_status gy_req_token(gy_coord *c, gy_try *t, const gy_msg_token *m, int64_t now_ns, gy_err *err) {
    gy_coord_req *r = t->req;
    GY_TRY(check_choice(r, m->choice, err));
    gy_coord_choice *k = &r->choice[m->choice];
    if (m->index < 0 || m->index >= r->q.r.max_tokens || (!k->is_done && m->index > k->n_told))
        return gy_err_set(err, GY_E_FORMAT, "token: found output %d of choice %d, expected %d of at most %d", m->index,
                          m->choice, k->n_told, r->q.r.max_tokens);
    account(c, t, m);
    if (!r->pd.at_ns[GY_PD_FIRST_TOKEN]) gy_times_mark(r, GY_PD_FIRST_TOKEN, now_ns);
    if (k->is_done || m->index < k->n_told) {
        c->stats.n_swallowed++;
        return GY_OK;
    }
    k->n_told++;
    c->stats.n_output_tok++;
    c->stats.n_loop_sum += m->loops;
    c->stats.n_exit[depth_of(m->loops)]++;
    if (!k->first_token_ns) k->first_token_ns = now_ns;
    hold(r);
    gy_finish_event ev = {.choice = m->choice, .reason = GY_FINISH_STOP, .stop_id = -1};
    if (tell_token(r, m) == GY_STOP) finish(c, r, &ev, now_ns);
    let_go(c, r);
    return GY_OK;
}

gy_status gy_req_prompt(gy_coord *c, gy_try *t, const gy_msg_token *m, gy_err *err) {
    gy_coord_req *r = t->req;
    int32_t pos = m->index;
    if (!r->pos_told || pos < 1 || pos >= r->q.r.n_prompt)
        return gy_err_set(err, GY_E_FORMAT, "prompt: found position %d, expected 1 to %d", pos,
                          r->pos_told ? r->q.r.n_prompt - 1 : 0);
    uint8_t bit = (uint8_t)(1u << (pos % 8));
    if (r->pos_told[pos / 8] & bit) {
        c->stats.n_swallowed++;
        return GY_OK;
    }
    r->pos_told[pos / 8] |= bit;
    gy_sampled s = sampled_of(m);
    hold(r);
    if (r->on_prompt) r->on_prompt(r->arg, &(gy_prompt_event){.request = r->id, .pos = pos, .sampled = &s});
    let_go(c, r);
    return GY_OK;
}

/* Something went wrong at the worker that another one may not have: again elsewhere. */
static int ends_try(const gy_msg *m) {
    if (m->finish.reason == GY_FINISH_CANCELLED) return 1;
    return m->finish.reason == GY_FINISH_ERROR && !gy_req_is_at_fault((gy_status)m->status);
}

static void lost_at_worker(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns) {
    gy_coord_req *r = t->req;
    gy_err why;
    gy_err_set(&why, GY_E_PEER, "worker %d said: %.*s", t->d, m->n_text, m->text ? m->text : "");
    gy_try_abandon(c, t);
    gy_req_failed(c, r, why.msg, now_ns);
}

static int32_t cached_of(const gy_try *t, const gy_msg_finish *f) {
    return t->n_computed >= 0 ? t->req->q.r.n_prompt - t->n_computed : f->n_cached;
}

/* Of the choice that looked up; the others share with it. */
static void count_cached(gy_coord *c, const gy_try *t, const gy_msg_finish *f) {
    if (t->p >= 0 || f->choice) return;
    c->stats.prefix_est_tok += t->p_est;
    c->stats.prefix_tok += f->n_cached;
}

static gy_status check_finish(const gy_coord_req *r, const gy_msg_finish *f, gy_err *err) {
    int is_whole = f->reason == GY_FINISH_STOP || f->reason == GY_FINISH_LENGTH;
    int32_t n_told = r->choice[f->choice].n_told;
    if (!is_whole || f->n_output == n_told) return GY_OK;
    return gy_err_set(err, GY_E_FORMAT, "finish: found %d outputs of choice %d, but %d were told", f->n_output,
                      f->choice, n_told);
}

static void tell_finish(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns) {
    const gy_msg_finish *f = &m->finish;
    gy_err why;
    gy_err_set(&why, (gy_status)m->status, "%.*s", m->n_text, m->text ? m->text : "");
    gy_finish_event ev = {.choice = f->choice,
                          .reason = (gy_finish)f->reason,
                          .err = f->reason == GY_FINISH_ERROR ? &why : NULL,
                          .stop_id = f->stop_id,
                          .n_cached = cached_of(t, f),
                          .n_preempt = f->n_preempt};
    finish(c, t->req, &ev, now_ns);
}

gy_status gy_req_said_finish(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err) {
    const gy_msg_finish *f = &m->finish;
    GY_TRY(check_choice(t->req, f->choice, err));
    uint8_t bit = (uint8_t)(1u << (f->choice % 8)), *said = &t->said[f->choice / 8];
    if (*said & bit) {
        c->stats.n_late++;
        return GY_OK;
    }
    int is_told = t->req->choice[f->choice].is_done; /* by an earlier try, or stopped by the user */
    if (!is_told && ends_try(m)) {
        lost_at_worker(c, t, m, now_ns);
        return GY_OK;
    }
    if (!is_told) GY_TRY(check_finish(t->req, f, err));
    gy_times_local(t->req, f, now_ns);
    count_cached(c, t, f);
    *said |= bit;
    t->n_said++;
    if (!is_told) tell_finish(c, t, m, now_ns);
    return GY_OK;
}
