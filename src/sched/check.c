/* The scheduler's validity checker: recomputes the table of sched.h, every list and every count. It checks an index
 * before it follows it. Allocates nothing. Cost: all jobs and flights; tests and debug builds only.
 */
#include "sched/sched_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct checker {
    const gy_sched *s;
    int32_t *seen_job, *seen_flight; /* lists an index was found in */
    char *buf;
    size_t cap;
} checker;

/* Always 0, so that a rule reads `return bad(...)`. */
static int __attribute__((format(printf, 2, 3))) bad(const checker *c, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(c->buf, c->cap, "sched: ");
    if (n < 0 || (size_t)n >= c->cap) return 0;
    va_start(ap, fmt);
    vsnprintf(c->buf + n, c->cap - (size_t)n, fmt, ap);
    va_end(ap);
    return 0;
}

/* Links agree in both directions, the count is right, and nothing is in two lists that share `seen`. */
static int list_valid(const checker *c, const char *name, const sched_list *l, const sched_link *link, int32_t cap,
                      int32_t *seen) {
    int32_t n = 0, prev = -1;
    for (int32_t i = l->head; i >= 0; prev = i, i = link[i].next, n++) {
        if (i >= cap || n >= cap) return bad(c, "%s: %d after %d of %d", name, i, n, l->n);
        if (link[i].prev != prev) return bad(c, "%s: %d comes after %d, not %d", name, i, prev, link[i].prev);
        if (seen[i]++) return bad(c, "%s: %d is in another list too", name, i);
    }
    if (l->tail != prev || l->n != n) return bad(c, "%s: ends at %d, counts %d of %d", name, l->tail, n, l->n);
    return 1;
}

static int stack_valid(const checker *c, const char *name, const int32_t *stack, int32_t n, int32_t cap,
                       int32_t *seen) {
    if (n < 0 || n > cap) return bad(c, "%s: %d of %d free", name, n, cap);
    for (int32_t i = 0; i < n; i++) {
        if (stack[i] < 0 || stack[i] >= cap) return bad(c, "%s: %d is free", name, stack[i]);
        if (seen[stack[i]]++) return bad(c, "%s: %d is free and listed, or free twice", name, stack[i]);
    }
    return 1;
}

/* ---- flights ----------------------------------------------------------------------------------------------------- */

static int flight_lists_valid(const checker *c) {
    const gy_sched *s = c->s;
    static const char *const queue[2] = {"prompt queue", "decode queue"}, *const ready[2] = {"prompt coda",
                                                                                             "decode coda"};
    memset(c->seen_flight, 0, (size_t)s->n_flight * sizeof(int32_t));
    if (!stack_valid(c, "flights", s->flight_free, s->n_flight_free, s->n_flight, c->seen_flight)) return 0;
    for (int k = 0; k < 2; k++) {
        if (!list_valid(c, queue[k], &s->queue[k], s->flight_link, s->n_flight, c->seen_flight)) return 0;
        if (!list_valid(c, ready[k], &s->ready[k], s->flight_link, s->n_flight, c->seen_flight)) return 0;
        for (int32_t f = s->queue[k].head; f >= 0; f = s->flight_link[f].next)
            if (s->flight[f].where != FLIGHT_QUEUED || s->flight[f].is_decode != k)
                return bad(c, "flight %d in the %s: where %d", f, queue[k], s->flight[f].where);
        for (int32_t f = s->ready[k].head; f >= 0; f = s->flight_link[f].next)
            if (s->flight[f].where != FLIGHT_READY || s->flight[f].is_decode != k)
                return bad(c, "flight %d in the %s: where %d", f, ready[k], s->flight[f].where);
    }
    for (int32_t i = 0; i < s->n_flight_free; i++)
        if (s->flight[s->flight_free[i]].where != FLIGHT_FREE) return bad(c, "flight %d is free", s->flight_free[i]);
    return 1;
}

static int flight_valid(const checker *c, int32_t f) {
    const gy_sched *s = c->s;
    const sched_flight *x = &s->flight[f];
    int listed = x->where == FLIGHT_FREE || x->where == FLIGHT_QUEUED || x->where == FLIGHT_READY;
    if (x->where > FLIGHT_CODA || listed != c->seen_flight[f]) return bad(c, "flight %d: where %d", f, x->where);
    if (x->where == FLIGHT_FREE) return 1;
    if (x->job < 0 || x->job >= s->n_job || !sched_runs(&s->job[x->job]))
        return bad(c, "flight %d: of job %d, which does not run", f, x->job);
    const sched_job *j = &s->job[x->job];
    if (x->loops < 0 || x->loops > s->kc->n_loop) return bad(c, "flight %d: %d loops", f, x->loops);
    if (x->is_decode != (x->pos >= sched_prompt_end(j) && x->pos >= j->in.n_prompt))
        return bad(c, "flight %d: pos %d of %d known, decode %d", f, x->pos, j->n_known, x->is_decode);
    if (x->samples != (x->pos == j->n_known - 1)) return bad(c, "flight %d: samples %d", f, x->samples);
    if (x->samples && !x->wants) return bad(c, "flight %d: samples, but wants no logits", f);
    return 1;
}

static int flights_valid(const checker *c) {
    const gy_sched *s = c->s;
    int32_t n[2] = {0};
    if (!flight_lists_valid(c)) return 0;
    for (int32_t f = 0; f < s->n_flight; f++) {
        if (!flight_valid(c, f)) return 0;
        if (s->flight[f].where != FLIGHT_FREE) n[s->flight[f].is_decode]++;
    }
    if (n[0] != s->n_flying[0] || n[1] != s->n_flying[1])
        return bad(c, "%d + %d flights, counted %d + %d", n[0], n[1], s->n_flying[0], s->n_flying[1]);
    if (n[0] + n[1] + s->n_flight_free != s->n_flight) return bad(c, "%d flights are lost", n[0] + n[1]);
    return n[0] <= 2 * s->o.max_rows ? 1 : bad(c, "%d prompt flights", n[0]);
}

/* A job's flights stand in position order, between what is done and what has entered; HELD ones wait for one that is
 * not yet ready. */
static int chain_valid(const checker *c, int32_t job) {
    const gy_sched *s = c->s;
    const sched_job *j = &s->job[job];
    int32_t last = j->n_done - 1, due = 1;
    for (int32_t f = j->flights.head; f >= 0; f = s->flight_chain[f].next) {
        const sched_flight *x = &s->flight[f];
        if (x->job != job || x->where == FLIGHT_FREE) return bad(c, "job %d: flight %d is not its own", job, f);
        if (x->pos <= last || x->pos >= j->n_entered) return bad(c, "job %d: flight at %d after %d", job, x->pos, last);
        if (x->where == FLIGHT_HELD && due) return bad(c, "job %d: flight %d is held though it is due", job, f);
        due = x->where == FLIGHT_READY || x->where == FLIGHT_CODA;
        last = x->pos;
    }
    int32_t done = j->flights.n ? s->flight[j->flights.head].pos : j->n_entered;
    return done == j->n_done ? 1 : bad(c, "job %d: %d tokens done, not %d", job, done, j->n_done);
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static int counts_valid(const checker *c, int32_t job) {
    const sched_job *j = &c->s->job[job];
    if (j->n_done < 0 || j->n_done > j->n_entered || j->n_entered > j->n_known)
        return bad(c, "job %d: %d done, %d entered, %d known", job, j->n_done, j->n_entered, j->n_known);
    if (j->n_known < j->in.n_prompt || j->n_known > j->in.n_prompt + j->in.max_tokens)
        return bad(c, "job %d: %d tokens known", job, j->n_known);
    if (j->n_bypass < 0 || j->n_bypass > c->s->o.max_bypass)
        return bad(c, "job %d: bypassed %d times", job, j->n_bypass);
    if (j->arrival < 1 || j->arrival > c->s->n_arrival)
        return bad(c, "job %d: arrival %lld", job, (long long)j->arrival);
    return 1;
}

/* The state table of sched.h, for jobs that wait. */
static int waiting_valid(const checker *c, int32_t job) {
    const gy_sched *s = c->s;
    const sched_job *j = &s->job[job];
    int parked = j->state == GY_JOB_PARKED;
    if (j->flights.n) return bad(c, "job %d waits, but has %d flights", job, j->flights.n);
    if (j->place != PLACE_QUEUE) return bad(c, "job %d waits, but not in the queue (%d)", job, j->place);
    if (j->slot != -1 || j->run_at != -1) return bad(c, "job %d waits in slot %d", job, j->slot);
    if ((j->kv_seq >= 0) != parked) return bad(c, "job %d: state %d, sequence %d", job, j->state, j->kv_seq);
    if (parked && !gy_kv_is_parked(s->kv, j->kv_seq)) return bad(c, "job %d: its sequence is not parked", job);
    if (parked && j->parked_from != GY_JOB_PREFILL && j->parked_from != GY_JOB_DECODE)
        return bad(c, "job %d: parked from state %d", job, j->parked_from);
    if (j->n_entered != j->n_done || (!parked && j->n_done))
        return bad(c, "job %d waits with %d entered", job, j->n_entered);
    return 1;
}

static int running_valid(const checker *c, int32_t job) {
    const gy_sched *s = c->s;
    const sched_job *j = &s->job[job];
    if (j->kv_seq < 0 || gy_kv_is_parked(s->kv, j->kv_seq)) return bad(c, "job %d runs on sequence %d", job, j->kv_seq);
    if (j->run_at < 0 || j->run_at >= s->n_running || s->running[j->run_at] != job)
        return bad(c, "job %d is not at %d of the running ones", job, j->run_at);
    if (j->slot < 0 || j->slot >= s->o.max_seqs) return bad(c, "job %d: slot %d", job, j->slot);
    sched_place place = PLACE_NOWHERE;
    if (j->n_entered < sched_prompt_end(j))
        place = s->serial && j->flights.n ? PLACE_NOWHERE : PLACE_RING;
    else if (j->n_known > j->n_entered && j->n_entered < sched_life(j) && j->flights.n == 0)
        place = PLACE_PENDING;
    if (j->place != place) return bad(c, "job %d is in list %d, not %d", job, j->place, place);
    if (j->flights.n == 0 && place == PLACE_NOWHERE && j->n_entered < sched_life(j))
        return bad(c, "job %d has nothing to wait for", job);
    int32_t decode = j->flights.n && s->flight[j->flights.tail].is_decode;
    if ((decode || j->state == GY_JOB_DECODE || s->serial) && j->flights.n > 1)
        return bad(c, "job %d: %d flights", job, j->flights.n);
    if (j->state == GY_JOB_DECODE && j->n_entered != j->n_known - 1 + j->flights.n)
        return bad(c, "job %d decodes, but %d of %d have entered", job, j->n_entered, j->n_known);
    if (j->has_read && (j->state == GY_JOB_DECODE || !j->flights.n)) return bad(c, "job %d: should decode", job);
    return 1;
}

static int job_valid(const checker *c, int32_t job) {
    const gy_sched *s = c->s;
    const sched_job *j = &s->job[job];
    if ((j->state == GY_JOB_FREE || j->place != PLACE_NOWHERE) != c->seen_job[job])
        return bad(c, "job %d: state %d, place %d, in %d lists", job, j->state, j->place, c->seen_job[job]);
    if (j->state == GY_JOB_FREE) return j->flights.n ? bad(c, "job %d is free, but flies", job) : 1;
    if (!counts_valid(c, job)) return 0;
    return sched_runs(j) ? running_valid(c, job) : waiting_valid(c, job);
}

static int place_valid(const checker *c, const char *name, const sched_list *l, sched_place place) {
    const gy_sched *s = c->s;
    if (!list_valid(c, name, l, s->job_link, s->n_job, c->seen_job)) return 0;
    for (int32_t i = l->head; i >= 0; i = s->job_link[i].next)
        if (s->job[i].place != place) return bad(c, "%s: job %d says it is in list %d", name, i, s->job[i].place);
    return 1;
}

/* The head may be out of order within its chunk. */
static int ring_sorted(const checker *c) {
    const gy_sched *s = c->s;
    int32_t i = s->ring.head;
    if (s->turn_left < 0 || s->turn_left > s->o.prefill_chunk) return bad(c, "ring: %d tokens left", s->turn_left);
    if (i >= 0 && s->turn_left < s->o.prefill_chunk) i = s->job_link[i].next;
    for (; i >= 0 && s->job_link[i].next >= 0; i = s->job_link[i].next)
        if (!sched_sooner(s, i, s->job_link[i].next)) return bad(c, "ring: %d before %d", i, s->job_link[i].next);
    return 1;
}

static int job_lists_valid(const checker *c) {
    const gy_sched *s = c->s;
    memset(c->seen_job, 0, (size_t)s->n_job * sizeof(int32_t));
    if (!stack_valid(c, "jobs", s->job_free, s->n_job_free, s->n_job, c->seen_job)) return 0;
    for (int32_t i = 0; i < s->n_job_free; i++)
        if (s->job[s->job_free[i]].state != GY_JOB_FREE) return bad(c, "job %d is free", s->job_free[i]);
    if (!place_valid(c, "queue", &s->waiting, PLACE_QUEUE)) return 0;
    if (!place_valid(c, "ring", &s->ring, PLACE_RING)) return 0;
    if (!place_valid(c, "pending", &s->pending, PLACE_PENDING)) return 0;
    for (int32_t i = s->waiting.head; i >= 0 && s->job_link[i].next >= 0; i = s->job_link[i].next)
        if (!sched_better(s, i, s->job_link[i].next)) return bad(c, "queue: %d before %d", i, s->job_link[i].next);
    return ring_sorted(c);
}

static int jobs_valid(const checker *c) {
    const gy_sched *s = c->s;
    int32_t n[GY_JOB_DECODE + 1] = {0};
    int64_t n_wait_tok = 0;
    if (!job_lists_valid(c)) return 0;
    for (int32_t i = 0; i < s->n_job; i++) {
        if (s->job[i].state > GY_JOB_DECODE) return bad(c, "job %d: state %d", i, s->job[i].state);
        if (!job_valid(c, i)) return 0;
        n[s->job[i].state]++;
        if (s->job[i].state != GY_JOB_FREE && !s->job[i].was_admitted) n_wait_tok += s->job[i].in.n_prompt;
    }
    if (n_wait_tok != s->n_wait_tok) return bad(c, "%lld prompt tokens wait", (long long)n_wait_tok);
    if (n[GY_JOB_FREE] != s->n_job_free) return bad(c, "%d jobs free, not %d", s->n_job_free, n[GY_JOB_FREE]);
    if (n[GY_JOB_PARKED] != s->n_parked) return bad(c, "%d jobs parked, not %d", s->n_parked, n[GY_JOB_PARKED]);
    if (n[GY_JOB_WAITING] + n[GY_JOB_PARKED] != s->waiting.n) return bad(c, "%d jobs in the queue", s->waiting.n);
    if (n[GY_JOB_PREFILL] + n[GY_JOB_DECODE] != s->n_running) return bad(c, "%d jobs run", s->n_running);
    return 1;
}

/* Free and used slots are each one's own; seen_job has room for max_seqs (jobs are at least as many). */
static int slots_valid(const checker *c) {
    const gy_sched *s = c->s;
    memset(c->seen_job, 0, (size_t)s->n_job * sizeof(int32_t));
    if (s->n_slot_free + s->n_running != s->o.max_seqs) return bad(c, "%d slots free", s->n_slot_free);
    if (!stack_valid(c, "slots", s->slot_free, s->n_slot_free, s->o.max_seqs, c->seen_job)) return 0;
    for (int32_t i = 0; i < s->n_running; i++)
        if (c->seen_job[s->job[s->running[i]].slot]++)
            return bad(c, "slot %d is taken twice", s->job[s->running[i]].slot);
    return 1;
}

static int promises_valid(const checker *c) {
    const gy_sched *s = c->s;
    for (int g = 0; g < GY_KV_GROUPS && s->o.reserve_full; g++) {
        int64_t due = sched_promised(s, (gy_kv_group)g);
        if (due > gy_kv_n_avail(s->kv, (gy_kv_group)g))
            return bad(c, "group %d: %lld blocks are promised, %d are there", g, (long long)due,
                       gy_kv_n_avail(s->kv, (gy_kv_group)g));
    }
    return 1;
}

int gy_sched_is_valid(const gy_sched *s, char *buf, size_t cap) {
    checker c = {.s = s, .seen_job = s->scratch, .seen_flight = s->scratch + s->n_job, .buf = buf, .cap = cap};
    if (!gy_carve_check(&s->mem)) return bad(&c, "a red zone was written over");
    if (!flights_valid(&c) || !jobs_valid(&c)) return 0;
    memset(c.seen_flight, 0, (size_t)s->n_flight * sizeof(int32_t));
    for (int32_t i = 0; i < s->n_job; i++) {
        if (s->job[i].state == GY_JOB_FREE) continue;
        if (!list_valid(&c, "flights of a job", &s->job[i].flights, s->flight_chain, s->n_flight, c.seen_flight))
            return 0;
        if (!chain_valid(&c, i)) return 0;
    }
    return slots_valid(&c) && promises_valid(&c);
}
