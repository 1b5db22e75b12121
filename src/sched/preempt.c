/* Who gives way, and how: rewind, then park or drop. All walks here are over running jobs or the queue and happen only
 * when blocks, slots or sequences are short.
 */
#include "sched/sched_int.h"

int32_t sched_worst_running(const gy_sched *s) {
    int32_t worst = -1;
    for (int32_t i = 0; i < s->n_running; i++) {
        if (s->job[s->running[i]].in.is_pinned) continue;
        if (worst < 0 || sched_better(s, worst, s->running[i])) worst = s->running[i];
    }
    return worst;
}

/* The rows of a job leave the batch that is being built; the order of the others stays. */
static void leave_batch(const gy_sched *s, gy_sched_rows *r, int32_t job) {
    int32_t kept = 0, n_decode = 0;
    for (int32_t i = 0; i < r->n_row; i++) {
        const sched_flight *f = &s->flight[r->flight[i]];
        if (f->job == job) continue;
        r->flight[kept] = r->flight[i];
        r->pos[kept] = r->pos[i];
        r->slot[kept] = r->slot[i];
        r->map_off[kept] = r->map_off[i];
        n_decode += f->is_decode;
        kept++;
    }
    r->n_row = kept;
    r->n_decode = n_decode;
}

void sched_rewind(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(sched_runs(j));
    if (s->building) leave_batch(s, s->building, job);
    while (j->flights.n) sched_flight_end(s, j->flights.head);
    if (j->n_entered > j->n_seen) j->n_seen = j->n_entered;
    if (j->n_done > j->n_told) j->n_told = j->n_done;
    if (j->n_entered > j->n_done) gy_kv_truncate(s->kv, j->kv_seq, j->n_done);
    j->n_entered = j->n_done;
}

/* After a rewind. What was in PREFILL, or has not finished all that comes before its last token, enters prompt rows
 * first. */
gy_status sched_park_job(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(sched_runs(j) && j->flights.n == 0 && j->n_entered == j->n_done);
    if (!s->o.park_copy || s->kc->n_park[GY_KV_CORE] == 0) return GY_AGAIN;
    gy_status st = gy_kv_park(s->kv, j->kv_seq, s->o.park_copy, s->o.copy_arg);
    if (st != GY_OK) return st;
    j->parked_from = j->state;
    j->n_preempt++;
    s->n_park++;
    s->n_parked++;
    sched_stop_running(s, job, GY_JOB_PARKED);
    sched_queue_insert(s, job);
    return GY_OK;
}

static void forget_kv(gy_sched *s, sched_job *j) {
    gy_kv_seq_close(s->kv, j->kv_seq);
    j->kv_seq = -1;
    j->n_entered = j->n_done = 0;
    s->n_drop++;
}

void sched_drop_job(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(sched_runs(j) && j->flights.n == 0);
    forget_kv(s, j);
    j->n_preempt++;
    sched_stop_running(s, job, GY_JOB_WAITING);
    sched_queue_insert(s, job);
}

void sched_forget_job(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_PARKED);
    forget_kv(s, j);
    j->state = GY_JOB_WAITING;
    s->n_parked--;
    s->dirty = 1;
}

/* A job of which nothing is finished has nothing to park. */
static int has_kv(const gy_sched *s, const sched_job *j) {
    return gy_kv_seq_blocks(s->kv, GY_KV_CORE, j->kv_seq) + gy_kv_seq_blocks(s->kv, GY_KV_BOUNDARY, j->kv_seq) > 0;
}

static void give_way(gy_sched *s, int32_t job, gy_preempt how) {
    sched_rewind(s, job);
    int keep = how == GY_PREEMPT_PARK || (how == GY_PREEMPT_AUTO && has_kv(s, &s->job[job]));
    if (!keep || sched_park_job(s, job) != GY_OK) sched_drop_job(s, job);
}

void sched_preempt_job(gy_sched *s, int32_t job) {
    give_way(s, job, s->o.preempt);
}

/* Seen before the rewind, which only ever gives blocks back: a yes is kept. */
static int park_has_room(const gy_sched *s, const sched_job *j) {
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (gy_kv_seq_blocks(s->kv, (gy_kv_group)g, j->kv_seq) > gy_kv_n_park_free(s->kv, (gy_kv_group)g)) return 0;
    return s->o.park_copy != NULL && s->kc->n_park[GY_KV_CORE] > 0;
}

gy_status gy_sched_preempt(gy_sched *s, int32_t job, gy_preempt how) {
    GY_CHECK(job >= 0 && job < s->n_job);
    const sched_job *j = &s->job[job];
    if (!sched_runs(j) || j->in.is_pinned || (how == GY_PREEMPT_PARK && !park_has_room(s, j))) return GY_AGAIN;
    give_way(s, job, how);
    GY_CHECK(how != GY_PREEMPT_PARK || j->state == GY_JOB_PARKED);
    return GY_OK;
}

void sched_shortage(gy_sched *s) {
    GY_CHECK(!s->o.reserve_full); /* all of a job's life is set aside when it is admitted */
    int32_t worst = sched_worst_running(s);
    GY_CHECK(worst >= 0);
    sched_preempt_job(s, worst);
}

gy_status sched_open_seq(gy_sched *s, int32_t max_tok, int32_t *seq_out) {
    gy_status st = gy_kv_seq_open(s->kv, max_tok, seq_out);
    if (st == GY_OK || s->n_parked == 0) return st;
    int32_t worst = s->waiting.tail;
    while (s->job[worst].state != GY_JOB_PARKED) worst = s->job_link[worst].prev;
    sched_forget_job(s, worst);
    return gy_kv_seq_open(s->kv, max_tok, seq_out);
}
