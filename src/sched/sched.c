/* The scheduler's life and the life of jobs: create, submit, remove, the lists that a state implies, what can be asked.
 * Which job is admitted is admit.c's, which rows are taken rows.c's, who gives way preempt.c's.
 */
#include "sched/sched_int.h"

enum { MAX_COUNT = 1 << 24 }; /* sums and products of a few of these fit 64 bits, n_flight 32 */

/* ---- create ------------------------------------------------------------------------------------------------------ */

void gy_sched_opts_default(gy_sched_opts *o) {
    *o = (gy_sched_opts){.max_rows = 256,
                         .max_seqs = 16,
                         .max_queue = 1024,
                         .prefill_chunk = 128,
                         .prefill_share = 0.5,
                         .min_coda = 1,
                         .watermark = 0.01,
                         .policy = GY_SCHED_FCFS,
                         .preempt = GY_PREEMPT_AUTO,
                         .scan_limit = 64,
                         .max_bypass = 8};
}

int32_t gy_sched_n_flight(const gy_sched_opts *o) {
    return o->max_seqs + 2 * o->max_rows;
}

static gy_status check_range(const char *name, int64_t v, int64_t lo, int64_t hi, gy_err *err) {
    if (v >= lo && v <= hi) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: found %lld, expected %lld to %lld", name, (long long)v, (long long)lo,
                      (long long)hi);
}

static gy_status check_numbers(const gy_sched_opts *o, const gy_kv_config *c, gy_err *err) {
    GY_TRY(check_range("max_rows", o->max_rows, 1, MAX_COUNT, err));
    GY_TRY(check_range("max_seqs", o->max_seqs, 1, MAX_COUNT, err));
    GY_TRY(check_range("max_queue", o->max_queue, 1, MAX_COUNT, err));
    GY_TRY(check_range("prefill_chunk", o->prefill_chunk, 1, INT32_MAX, err));
    GY_TRY(check_range("min_coda", o->min_coda, 1, INT32_MAX, err));
    GY_TRY(check_range("scan_limit", o->scan_limit, 1, INT32_MAX, err));
    GY_TRY(check_range("max_bypass", o->max_bypass, 1, INT32_MAX, err));
    GY_TRY(check_range("n_loop", o->n_loop, 1, c->n_loop, err));
    GY_TRY(check_range("policy", (int64_t)o->policy, GY_SCHED_FCFS, GY_SCHED_PRIORITY, err));
    GY_TRY(check_range("preempt", (int64_t)o->preempt, GY_PREEMPT_AUTO, GY_PREEMPT_RECOMPUTE, err));
    if (!(o->prefill_share > 0 && o->prefill_share <= 1))
        return gy_err_set(err, GY_E_ARG, "prefill_share: found %g, expected above 0 and at most 1", o->prefill_share);
    if (!(o->watermark >= 0 && o->watermark < 1))
        return gy_err_set(err, GY_E_ARG, "watermark: found %g, expected 0 or more and below 1", o->watermark);
    return GY_OK;
}

static gy_status check_kv(const gy_sched_opts *o, const gy_kv_config *c, gy_err *err) {
    if (c->max_seqs < o->max_seqs)
        return gy_err_set(err, GY_E_ARG, "max_seqs: found %d, but the KV cache offers %d sequences; raise those",
                          o->max_seqs, c->max_seqs);
    if ((o->has_boundary || o->has_coda) && !gy_kv_n_plane(c, GY_KV_BOUNDARY))
        return gy_err_set(err, GY_E_ARG, "%s: set, but the KV cache has no boundary layers",
                          o->has_boundary ? "has_boundary" : "has_coda");
    if (o->has_coda && !o->has_boundary)
        return gy_err_set(err, GY_E_ARG, "has_coda: coda layers are boundary layers: set has_boundary too");
    if (c->n_park[GY_KV_CORE] > 0 && (!o->park_copy || !o->restore_copy))
        return gy_err_set(err, GY_E_ARG, "park_copy, restore_copy: needed, the KV cache has %d park blocks",
                          c->n_park[GY_KV_CORE]);
    return GY_OK;
}

static void rows_carve(gy_carve *c, size_t n, gy_sched_rows *r) {
    r->flight = gy_carve_take(c, n, sizeof *r->flight);
    r->pos = gy_carve_take(c, n, sizeof *r->pos);
    r->slot = gy_carve_take(c, n, sizeof *r->slot);
    r->map_off = gy_carve_take(c, n, sizeof *r->map_off);
    r->logit = gy_carve_take(c, n, sizeof *r->logit);
}

static void carve(gy_carve *c, gy_sched *s) {
    size_t jobs = (size_t)s->n_job, flights = (size_t)s->n_flight, rows = (size_t)s->o.max_rows;
    s->job = gy_carve_take(c, jobs, sizeof *s->job);
    s->job_link = gy_carve_take(c, jobs, sizeof *s->job_link);
    s->job_free = gy_carve_take(c, jobs, sizeof *s->job_free);
    s->running = gy_carve_take(c, (size_t)s->o.max_seqs, sizeof *s->running);
    s->slot_free = gy_carve_take(c, (size_t)s->o.max_seqs, sizeof *s->slot_free);
    s->flight = gy_carve_take(c, flights, sizeof *s->flight);
    s->flight_link = gy_carve_take(c, flights, sizeof *s->flight_link);
    s->flight_chain = gy_carve_take(c, flights, sizeof *s->flight_chain);
    s->flight_free = gy_carve_take(c, flights, sizeof *s->flight_free);
    s->landed = gy_carve_take(c, (size_t)s->o.max_seqs, sizeof *s->landed);
    s->scratch = gy_carve_take(c, jobs + flights, sizeof *s->scratch);
    rows_carve(c, rows, &s->enter);
    rows_carve(c, rows, &s->pass);
    rows_carve(c, rows, &s->coda);
}

static const sched_list NO_LIST = {.head = -1, .tail = -1, .n = 0};

static int32_t stack_fill(int32_t *stack, int32_t n) { /* 0 is on top */
    for (int32_t i = 0; i < n; i++) stack[i] = n - 1 - i;
    return n;
}

static void begin(gy_sched *s) {
    s->serial = gy_kv_position_serial(s->kc);
    int32_t planes = gy_kv_n_plane(s->kc, GY_KV_CORE);
    s->row_blocks[GY_KV_CORE] = planes < s->o.n_loop ? planes : s->o.n_loop;
    s->row_blocks[GY_KV_BOUNDARY] = s->o.has_boundary ? gy_kv_n_plane(s->kc, GY_KV_BOUNDARY) : 0;
    s->waiting = s->ring = s->pending = NO_LIST;
    for (int k = 0; k < 2; k++) s->queue[k] = s->ready[k] = NO_LIST;
    s->n_job_free = stack_fill(s->job_free, s->n_job);
    s->n_slot_free = stack_fill(s->slot_free, s->o.max_seqs);
    s->n_flight_free = stack_fill(s->flight_free, s->n_flight);
}

gy_status gy_sched_create(const gy_sched_opts *o, gy_kv *kv, gy_err *err, gy_sched **out) {
    const gy_kv_config *c = gy_kv_get_config(kv);
    GY_TRY(check_numbers(o, c, err));
    GY_TRY(check_kv(o, c, err));
    gy_sched *s = gy_mem_alloc(GY_MEM_SCHED, 1, sizeof *s);
    if (!s) return gy_err_set(err, GY_E_NOMEM, "no memory for the scheduler");
    s->o = *o;
    s->kv = kv;
    s->kc = c;
    s->n_job = o->max_queue + o->max_seqs;
    s->n_flight = gy_sched_n_flight(o);
    gy_carve size = {0};
    carve(&size, s);
    s->mem.base = size.overflow ? NULL : gy_mem_alloc(GY_MEM_SCHED, size.used, 1);
    if (!s->mem.base) {
        gy_sched_destroy(s);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the scheduler: %zu bytes for %d jobs and %d flights",
                          size.used, o->max_queue + o->max_seqs, gy_sched_n_flight(o));
    }
    s->mem.cap = size.used;
    carve(&s->mem, s);
    begin(s);
    *out = s;
    return GY_OK;
}

void gy_sched_destroy(gy_sched *s) {
    if (!s) return;
    gy_mem_free(s->mem.base);
    gy_mem_free(s);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* A job that comes back is older than most that wait, a new one the youngest: from the nearer end. */
void sched_queue_insert(gy_sched *s, int32_t job) {
    int32_t at = s->waiting.head;
    if (s->waiting.tail >= 0 && sched_better(s, s->waiting.tail, job)) at = -1;
    while (at >= 0 && sched_better(s, at, job)) at = s->job_link[at].next;
    sched_list_insert(&s->waiting, s->job_link, at, job);
    s->job[job].place = PLACE_QUEUE;
    s->dirty = 1;
}

/* Before the first one that is due later, but not before a head that is within its chunk. Who joins is mostly the
 * latest; tokens of position-serial layouts come back in the order in which they left. */
void sched_ring_insert(gy_sched *s, int32_t job) {
    int32_t at = s->ring.head;
    if (at >= 0 && s->turn_left < s->o.prefill_chunk) at = s->job_link[at].next;
    if (s->ring.tail >= 0 && sched_sooner(s, s->ring.tail, job)) at = -1;
    while (at >= 0 && sched_sooner(s, at, job)) at = s->job_link[at].next;
    sched_list_insert(&s->ring, s->job_link, at, job);
    if (s->ring.head == job) s->turn_left = s->o.prefill_chunk;
}

static void ring_remove(gy_sched *s, int32_t job) {
    if (s->ring.head == job) s->turn_left = s->o.prefill_chunk; /* the next one's chunk begins */
    sched_list_remove(&s->ring, s->job_link, job);
}

static void list_leave(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    if (j->place == PLACE_QUEUE) sched_list_remove(&s->waiting, s->job_link, job);
    if (j->place == PLACE_RING) ring_remove(s, job);
    if (j->place == PLACE_PENDING) sched_list_remove(&s->pending, s->job_link, job);
    j->place = PLACE_NOWHERE;
}

void sched_start_running(gy_sched *s, int32_t job, gy_job_state state) {
    sched_job *j = &s->job[job];
    GY_CHECK(s->n_slot_free > 0 && j->kv_seq >= 0);
    list_leave(s, job);
    j->slot = s->slot_free[--s->n_slot_free];
    j->run_at = s->n_running;
    s->running[s->n_running++] = job;
    j->state = state;
    j->has_read = 0;
    if (j->n_preempt) j->born = s->n_prompt_row; /* else it would overtake the best job again and again: a livelock */
    j->due = j->born + SCHED_STRETCH * (int64_t)(sched_prompt_end(j) - j->n_entered);
    sched_arm(s, job);
}

void sched_stop_running(gy_sched *s, int32_t job, gy_job_state state) {
    sched_job *j = &s->job[job];
    GY_CHECK(sched_runs(j) && j->flights.n == 0);
    list_leave(s, job);
    int32_t last = s->running[--s->n_running];
    s->running[j->run_at] = last;
    s->job[last].run_at = j->run_at;
    s->slot_free[s->n_slot_free++] = j->slot;
    j->slot = j->run_at = -1;
    j->has_read = 0;
    j->state = state;
    s->dirty = 1;
}

static sched_place place_for(const gy_sched *s, const sched_job *j) {
    if (j->n_entered < sched_prompt_end(j)) return s->serial && j->flights.n ? PLACE_NOWHERE : PLACE_RING;
    if (j->n_entered == sched_life(j)) return PLACE_NOWHERE; /* its last output is known: it is about to be removed */
    return j->flights.n == 0 && j->n_known > j->n_entered ? PLACE_PENDING : PLACE_NOWHERE;
}

void sched_arm(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    if (j->has_read && j->flights.n == 0) sched_begin_decode(s, job);
    sched_place place = place_for(s, j);
    if (j->place == place) return;
    list_leave(s, job);
    if (place == PLACE_RING) sched_ring_insert(s, job);
    if (place == PLACE_PENDING) sched_list_push(&s->pending, s->job_link, job);
    j->place = place;
}

void sched_begin_decode(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_PREFILL && j->flights.n == 0 && j->n_entered == j->n_known - 1);
    j->state = GY_JOB_DECODE;
    j->has_read = 0;
    s->dirty = 1; /* the promise of its prompt is kept: less is set aside */
}

/* ---- submit and remove ------------------------------------------------------------------------------------------- */

gy_status gy_sched_fits_pool(const gy_kv_config *c, int32_t n_prompt, int32_t max_tokens, gy_err *err) {
    int64_t n_tok = (int64_t)n_prompt + max_tokens - 1;
    if (n_tok > c->max_len)
        return gy_err_set(err, GY_E_LIMIT,
                          "prompt of %d tokens + max_tokens %d: %lld tokens of KV, expected at most %d (context)",
                          n_prompt, max_tokens, (long long)n_tok, c->max_len);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int64_t need = gy_kv_blocks_for(c, (gy_kv_group)g, n_tok);
        if (need > c->n_block[g])
            return gy_err_set(err, GY_E_LIMIT,
                              "prompt of %d tokens + max_tokens %d: needs %lld KV blocks%s at full depth, the pool has "
                              "%d; raise kv_blocks or lower max_tokens",
                              n_prompt, max_tokens, (long long)need, g == GY_KV_CORE ? "" : " of the boundary layers",
                              c->n_block[g]);
    }
    return GY_OK;
}

gy_status gy_sched_fits(const gy_sched *s, int32_t n_prompt, int32_t max_tokens, gy_err *err) {
    return gy_sched_fits_pool(s->kc, n_prompt, max_tokens, err);
}

/* Rows can be shared only if both run their prompt at full depth; else, or with a leader that is gone, nobody waits. */
static void follow_leader(gy_sched *s, sched_job *j) {
    int32_t l = j->in.leader;
    GY_CHECK(l >= -1 && l < s->n_job);
    if (l < 0) return;
    sched_job *lead = &s->job[l];
    int alike = lead->state != GY_JOB_FREE && lead->in.full_prompt && lead->in.n_prompt == j->in.n_prompt;
    if (!alike || !j->in.full_prompt || j->in.all_logits) {
        j->in.leader = -1;
        return;
    }
    lead->is_leader = 1;
    j->leader_arrival = lead->arrival;
}

static void sched_submit_job(gy_sched *s, int32_t job, const gy_sched_job *in, int64_t now_ns) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_FREE);
    *j = (sched_job){.in = *in,
                     .state = GY_JOB_WAITING,
                     .slot = -1,
                     .run_at = -1,
                     .kv_seq = -1,
                     .arrival = ++s->n_arrival,
                     .born = s->n_prompt_row,
                     .n_known = in->n_prompt,
                     .n_full = INT32_MAX,
                     .flights = NO_LIST,
                     .submit_ns = now_ns};
    s->n_wait_tok += in->n_prompt;
    follow_leader(s, j);
    sched_queue_insert(s, job);
}

gy_status gy_sched_submit(gy_sched *s, const gy_sched_job *in, int64_t now_ns, int32_t *job_out) {
    GY_CHECK(in->n_prompt >= 1 && in->max_tokens >= 1);
    GY_CHECK(gy_sched_fits(s, in->n_prompt, in->max_tokens, NULL) == GY_OK);
    if (s->waiting.n >= s->o.max_queue) return GY_AGAIN;
    GY_CHECK(s->n_job_free > 0); /* running jobs and a queue that has room are fewer than n_job */
    int32_t job = s->job_free[--s->n_job_free];
    sched_submit_job(s, job, in, now_ns);
    *job_out = job;
    return GY_OK;
}

static sched_job *live(const gy_sched *s, int32_t job) {
    GY_CHECK(job >= 0 && job < s->n_job && s->job[job].state != GY_JOB_FREE);
    return &s->job[job];
}

static void sched_free_job(gy_sched *s, int32_t job) {
    sched_job *j = live(s, job);
    while (j->flights.n) {
        GY_CHECK(s->flight[j->flights.head].where != FLIGHT_PASS); /* sched.h, remove */
        sched_flight_end(s, j->flights.head);
    }
    if (j->kv_seq >= 0) gy_kv_seq_close(s->kv, j->kv_seq);
    if (j->in.has_kv) gy_kv_seq_close(s->kv, j->in.kv_seq);
    s->n_parked -= j->state == GY_JOB_PARKED;
    if (!j->was_admitted) s->n_wait_tok -= j->in.n_prompt;
    if (sched_runs(j))
        sched_stop_running(s, job, GY_JOB_FREE);
    else
        list_leave(s, job);
    *j = (sched_job){.state = GY_JOB_FREE, .slot = -1, .run_at = -1, .kv_seq = -1, .flights = NO_LIST};
    s->job_free[s->n_job_free++] = job;
    s->dirty = 1;
}

void gy_sched_remove(gy_sched *s, int32_t job) {
    sched_free_job(s, job);
}

int32_t gy_sched_detach(gy_sched *s, int32_t job, int32_t flight) {
    sched_job *j = live(s, job);
    GY_CHECK(j->state != GY_JOB_PARKED);
    if (flight >= 0) sched_prompt_done(s, flight);
    while (j->flights.n) {
        GY_CHECK(s->flight[j->flights.head].where != FLIGHT_PASS);
        sched_flight_end(s, j->flights.head);
    }
    int32_t seq = j->in.has_kv ? j->in.kv_seq : j->kv_seq;
    j->in.has_kv = 0;
    j->kv_seq = -1;
    sched_free_job(s, job);
    return seq;
}

/* ---- what can be asked ------------------------------------------------------------------------------------------- */

void gy_sched_job_info(const gy_sched *s, int32_t job, gy_job_info *out) {
    GY_CHECK(job >= 0 && job < s->n_job);
    const sched_job *j = &s->job[job];
    *out = (gy_job_info){.state = j->state,
                         .slot = j->state == GY_JOB_FREE ? -1 : j->slot,
                         .kv_seq = j->state == GY_JOB_FREE ? -1 : j->kv_seq,
                         .n_known = j->n_known,
                         .n_entered = j->n_entered,
                         .n_done = j->n_done,
                         .n_cached = j->n_cached,
                         .n_bypass = j->n_bypass,
                         .n_preempt = j->n_preempt,
                         .submit_ns = j->submit_ns,
                         .admit_ns = j->admit_ns};
}

void gy_sched_get_stats(const gy_sched *s, gy_sched_stats *out) {
    *out = (gy_sched_stats){.n_waiting = s->waiting.n - s->n_parked,
                            .n_parked = s->n_parked,
                            .n_running = s->n_running,
                            .n_flight = s->n_flight - s->n_flight_free,
                            .n_admit = s->n_admit,
                            .n_park = s->n_park,
                            .n_restore = s->n_restore,
                            .n_drop = s->n_drop,
                            .n_recomputed_tok = s->n_recomputed_tok,
                            .n_wait_tok = s->n_wait_tok};
}

int gy_sched_idle(const gy_sched *s) {
    return s->n_job_free == s->n_job;
}
