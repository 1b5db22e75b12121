/* Events: the engine's callbacks write records, the poller (or the driver, for a callback) makes events of them. */
#include "api/api_int.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const char *gyre_finish_name(gyre_finish_reason r) {
    return (unsigned)r <= GYRE_FINISH_ERROR ? gy_finish_name((gy_finish)r) : "unknown";
}

_Static_assert((int)GYRE_PD_STAGES == (int)GY_PD_STAGES, "the same ones");

const char *gyre_pd_stage_name(gyre_pd_stage s) {
    return gy_pd_stage_name((gy_pd_stage)s);
}

/* ---- a record becomes an event ---------------------------------------------------------------------------------- */

static int ends_text(const gy_api_req *q, int32_t id) {
    for (int32_t i = 0; i < q->n_ends; i++)
        if (q->ends[i] == id) return 1;
    return 0;
}

/* 1 if this token, output `index`, completes a stop string. Text of the first min_tokens outputs goes past them. */
static int push_text(const gy_api_req *q, gy_api_text *t, int32_t index, int32_t id) {
    if (ends_text(q, id))
        gy_str_clear(&t->out);
    else
        gy_api_text_push(t, q->g->m.tok, id, index >= q->rq.min_tokens);
    return t->hit;
}

/* The rest of a text that ended by its length may complete a stop string. */
static void finish_text(const gy_api_req *q, gy_api_choice *c, gy_api_text *t) {
    gyre_finish *f = &c->fin;
    gy_api_text_end(t, f->n_output > q->rq.min_tokens);
    if (f->reason == GYRE_FINISH_LENGTH && t->hit) f->reason = GYRE_FINISH_STOP;
    if (f->reason == GYRE_FINISH_STOP && t->hit && f->stop_id < 0) f->stop_string = (int32_t)t->which;
    gy_status lost = t->status < 0 ? t->status : c->watch.status;
    if (lost >= 0) return;
    f->reason = GYRE_FINISH_ERROR;
    f->error = (gyre_status)lost;
    f->message = "no memory for the text";
}

/* Text of a token is made by `push_text` before, so that the driver can use its verdict. */
static void make_event(gy_api_req *q, const gy_api_rec *rec, gyre_event *ev) {
    gy_api_choice *c = &q->choice[rec->choice];
    gy_api_text *t = &c->text;
    const gyre_logprob *top = (const gyre_logprob *)(const void *)(rec + 1);
    *ev = (gyre_event){.kind = rec->kind,
                       .request = q->id,
                       .user = q->user,
                       .choice = rec->choice,
                       .index = rec->index,
                       .id = rec->id,
                       .loops = rec->loops,
                       .text = "",
                       .logprob = rec->logprob,
                       .top = top,
                       .n_top = rec->n_top,
                       .gates = (const float *)(const void *)(top + q->n_lp),
                       .n_gate = rec->n_gate};
    if (rec->kind == GYRE_EVENT_PROMPT) return;
    if (rec->kind == GYRE_EVENT_FINISH) {
        finish_text(q, c, t);
        ev->finish = &c->fin;
    }
    ev->text = gy_str_z(&t->out);
    ev->n_text = t->out.len;
}

/* ---- driver: records -------------------------------------------------------------------------------------------- */

static gy_api_rec *rec_at(const gy_api_req *q, size_t i) {
    return (gy_api_rec *)(void *)(q->log + i * q->stride);
}

static gy_api_rec *rec_begin(gy_api_req *q, gyre_event_kind kind, int32_t choice) {
    GY_CHECK(q->on_event || q->n_written < q->cap);
    gy_api_rec *rec = rec_at(q, q->on_event ? 0 : q->n_written);
    *rec = (gy_api_rec){.kind = kind, .choice = choice, .id = -1, .logprob = NAN};
    return rec;
}

static void rec_end(gy_api_req *q, const gy_api_rec *rec) {
    q->n_written++;
    if (q->on_event) {
        gyre_event ev;
        make_event(q, rec, &ev);
        q->on_event(q->user, &ev);
    } else if (!q->touched) {
        q->touched = 1;
        q->touch_next = q->g->touched;
        q->g->touched = q;
    }
}

static void put_sampled(const gy_api_req *q, gy_api_rec *rec, const gy_sampled *s) {
    gyre_logprob *top = (gyre_logprob *)(void *)(rec + 1);
    rec->logprob = s->logprob;
    rec->n_top = s->n_top < q->n_lp ? s->n_top : q->n_lp;
    for (int32_t i = 0; i < rec->n_top; i++) top[i] = (gyre_logprob){s->top_id[i], s->top_logprob[i]};
}

static void put_gates(const gy_api_req *q, gy_api_rec *rec, const float *gates, int32_t n) {
    gyre_logprob *top = (gyre_logprob *)(void *)(rec + 1);
    rec->n_gate = n < q->n_gate_max ? n : q->n_gate_max;
    memcpy(top + q->n_lp, gates, (size_t)rec->n_gate * sizeof *gates);
}

gy_verdict gy_api_on_token(void *arg, const gy_token_event *ev) {
    gy_api_req *q = arg;
    gy_api_choice *c = &q->choice[ev->choice];
    gy_api_text *judge = q->on_event ? &c->text : &c->watch;
    gy_api_rec *rec = rec_begin(q, GYRE_EVENT_TOKEN, ev->choice);
    rec->index = ev->index;
    rec->id = ev->token;
    rec->loops = ev->loops;
    if (q->rq.sample.n_logprobs >= 0) put_sampled(q, rec, ev->sampled);
    if (ev->gates) put_gates(q, rec, ev->gates, ev->n_gate);
    int hit = push_text(q, judge, ev->index, ev->token);
    gy_status lost = judge->status;
    rec_end(q, rec);
    return hit || lost < 0 ? GY_STOP : GY_CONTINUE;
}

void gy_api_on_prompt(void *arg, const gy_prompt_event *ev) {
    gy_api_req *q = arg;
    gy_api_rec *rec = rec_begin(q, GYRE_EVENT_PROMPT, 0);
    rec->index = ev->pos;
    rec->id = ev->sampled->id;
    put_sampled(q, rec, ev->sampled);
    rec_end(q, rec);
}

/* The request may be gone when this returns. */
static void record_finish(gy_api_req *q, int32_t choice, const gyre_finish *fin, const gy_err *err) {
    gy_api_choice *c = &q->choice[choice];
    c->fin = *fin;
    c->fin.n_left = --q->n_left;
    c->fin.stop_string = -1;
    c->fin.submit_ns = q->submit_ns;
    c->fin.message = c->message;
    if (err) {
        c->fin.error = (gyre_status)err->status;
        memccpy(c->message, err->msg, '\0', sizeof c->message - 1);
    }
    c->done = 1;
    if (!q->n_left) gy_api_live_remove(q);
    int last = !q->n_left && q->on_event != NULL;
    rec_end(q, rec_begin(q, GYRE_EVENT_FINISH, choice));
    if (last) gy_api_release(q);
}

static gyre_pd_cost cost_of(const gy_pd_cost *c) {
    gyre_pd_cost out = {.n_try = c->n_try,
                        .prefill = c->prefill,
                        .decode = c->decode,
                        .bytes = c->bytes,
                        .n_transfer = c->n_op,
                        .n_descriptor = c->n_desc,
                        .is_measured = c->is_measured,
                        .post_ns = c->post_ns,
                        .wire_ns = c->wire_ns,
                        .tail_ns = c->tail_ns,
                        .overlap_ns = c->overlap_ns,
                        .overlap_bytes = c->overlap_bytes,
                        .n_overlap = c->n_overlap};
    memcpy(out.at_ns, c->at_ns, sizeof out.at_ns);
    return out;
}

void gy_api_on_finish(void *arg, const gy_finish_event *ev) {
    gy_api_req *q = arg;
    const gy_err *err = ev->reason == GY_FINISH_ERROR ? ev->err : NULL;
    gy_err late;
    gyre_finish fin = {.reason = (gyre_finish_reason)ev->reason,
                       .stop_id = ev->stop_id,
                       .n_prompt = ev->n_prompt,
                       .n_output = ev->n_output,
                       .n_cached = ev->n_cached,
                       .n_preempt = ev->n_preempt,
                       .seed = ev->seed,
                       .admit_ns = ev->admit_ns,
                       .first_token_ns = ev->first_token_ns,
                       .finish_ns = ev->finish_ns,
                       .pd = cost_of(&ev->pd)};
    if (q->is_late && ev->reason == GY_FINISH_CANCELLED) {
        fin.reason = GYRE_FINISH_ERROR;
        gy_err_set(&late, GY_E_TIMEOUT, "request: its deadline of %.1f s passed",
                   (double)(q->deadline_ns - q->submit_ns) * 1e-9);
        err = &late;
    }
    record_finish(q, ev->choice, &fin, err);
}

void gy_api_fail(gy_api_req *q, const gy_err *why) {
    gyre_finish fin = {
        .reason = GYRE_FINISH_ERROR, .stop_id = -1, .n_prompt = q->rq.n_prompt, .finish_ns = gy_clock_ns()};
    for (int32_t k = 0, left = q->n_left, n = q->n; left > 0 && k < n; k++) {
        if (q->choice[k].done) continue;
        left--;
        record_finish(q, k, &fin, why);
    }
}

/* ---- driver to poller ------------------------------------------------------------------------------------------- */

/* All requests of the step become one push, and the descriptor rings once: when the stack was empty. */
void gy_api_publish(gyre *g) {
    gy_api_req *top = NULL, *bottom = NULL;
    for (gy_api_req *q = g->touched, *next; q; q = next) {
        next = q->touch_next;
        q->touched = 0;
        if (atomic_exchange_explicit(&q->state, 2 * q->n_written + 1, memory_order_acq_rel) & 1) continue;
        q->next = NULL;
        if (!top) top = q;
        if (bottom) bottom->next = q;
        bottom = q;
    }
    g->touched = NULL;
    if (!top) return;
    gy_api_req *old = atomic_load_explicit(&g->ready, memory_order_relaxed);
    do bottom->next = old;
    while (!atomic_compare_exchange_weak_explicit(&g->ready, &old, top, memory_order_acq_rel, memory_order_relaxed));
    const uint64_t one = 1;
    while (!old && write(g->event_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* ---- poller ----------------------------------------------------------------------------------------------------- */

static void list_append(gyre *g, gy_api_req *q) {
    q->next = NULL;
    *(g->tail ? &g->tail->next : &g->head) = q;
    g->tail = q;
}

static void list_pop(gyre *g) {
    g->head = g->head->next;
    if (!g->head) g->tail = NULL;
}

static size_t n_published(gy_api_req *q) {
    return atomic_load_explicit(&q->state, memory_order_acquire) >> 1;
}

/* The stack's oldest comes first. */
static void take_ready(gyre *g) {
    gy_api_req *q = atomic_exchange_explicit(&g->ready, NULL, memory_order_acquire), *oldest = NULL;
    while (q) {
        gy_api_req *next = q->next;
        q->next = oldest;
        oldest = q;
        q = next;
    }
    while (oldest) {
        gy_api_req *next = oldest->next;
        oldest->n_seen = n_published(oldest);
        list_append(g, oldest);
        oldest = next;
    }
}

/* A request with a record to read, at the head of the list. Each has its turn: what came while others were read waits.
 */
static gy_api_req *next_request(gyre *g) {
    for (;;) {
        if (!g->head) take_ready(g);
        gy_api_req *q = g->head;
        if (!q || q->n_read < q->n_seen) return q;
        list_pop(g);
        size_t all = 2 * q->n_read + 1;
        if (atomic_compare_exchange_strong_explicit(&q->state, &all, all - 1, memory_order_acq_rel,
                                                    memory_order_acquire))
            continue; /* the driver's from here on */
        q->n_seen = all >> 1;
        list_append(g, q);
    }
}

static void deliver(gyre *g, gy_api_req *q) {
    const gy_api_rec *rec = rec_at(q, q->n_read++);
    if (rec->kind == GYRE_EVENT_TOKEN) push_text(q, &q->choice[rec->choice].text, rec->index, rec->id);
    make_event(q, rec, &g->event);
    if (rec->kind != GYRE_EVENT_FINISH || q->choice[rec->choice].fin.n_left) return;
    list_pop(g);
    g->spent = q;
}

static void wait_events(const gyre *g, int64_t deadline_ns) {
    struct pollfd p = {.fd = g->event_fd, .events = POLLIN};
    int64_t left_ms = deadline_ns < 0 ? -1 : (deadline_ns - gy_clock_ns() + 999999) / 1000000;
    if (left_ms > INT32_MAX) left_ms = INT32_MAX;
    poll(&p, 1, (int)left_ms);
}

static gyre_status poll_event(gyre *g, int timeout_ms, const gyre_event **ev_out) {
    int64_t deadline_ns = timeout_ms < 0 ? -1 : gy_clock_ns() + (int64_t)timeout_ms * 1000000;
    uint64_t count;
    gy_api_req *q;
    if (g->spent) gy_api_release(g->spent);
    g->spent = NULL;
    while (!(q = next_request(g))) {
        /* Made unreadable first, then looked at again: what is pushed in between rings again. */
        while (read(g->event_fd, &count, sizeof count) < 0 && errno == EINTR) {
        }
        if ((q = next_request(g))) break;
        if (deadline_ns >= 0 && gy_clock_ns() >= deadline_ns) return GYRE_AGAIN;
        wait_events(g, deadline_ns);
    }
    deliver(g, q);
    *ev_out = &g->event;
    return GYRE_OK;
}

gyre_status gyre_poll(gyre *g, int timeout_ms, const gyre_event **ev_out) {
    if (atomic_flag_test_and_set_explicit(&g->polling, memory_order_acquire)) return GYRE_E_ARG;
    gyre_status st = poll_event(g, timeout_ms, ev_out);
    atomic_flag_clear_explicit(&g->polling, memory_order_release);
    return st;
}

int gyre_event_fd(const gyre *g) {
    return g->event_fd;
}
