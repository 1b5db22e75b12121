/* Admission: which waiting and parked jobs begin or go on, in what order, and whether their blocks are there.
 *
 * A job is admitted when, in each group,
 *
 *   need - shared + alone + promised + watermark <= avail
 *
 *   need      blocks of its known tokens at the trained depth (reserve_full: of its whole life at the pool's depth).
 *             What was preempted asks for one block row more, as deep as the pool goes, so that its next token can end
 *             (else it could come and go for ever, and hold up prompts when max_rows is 1); never for
 *             more than its whole life, so that each job fits alone.
 *   shared    of them, blocks that the prefix cache or the leader gives
 *   alone     of those, blocks that nobody but the cache holds: they are counted in avail and stop being so
 *   promised  what running jobs may still take of their own need; in the grow mode only while they are in PREFILL:
 *             after that they take from the watermark, and preempt
 *   avail     free blocks and those that the cache would give up
 *
 * Look-ups hash prompts, so a scan that admitted nobody is not repeated until something has changed (dirty), and
 * a job that would not even fit with all its rows shared is not looked up.
 */
#include "sched/sched_int.h"

typedef struct plan {
    int32_t n_shared;           /* tokens */
    int32_t by_leader;          /* 1: the leader's rows, 0: the cache's */
    int64_t take[GY_KV_GROUPS]; /* need - shared + alone */
} plan;

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static int64_t rows_of(int64_t n_tok) {
    return (n_tok + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN;
}

static int64_t life_blocks(const gy_sched *s, const sched_job *j, gy_kv_group g) {
    return gy_kv_blocks_for(s->kc, g, sched_life(j));
}

int64_t sched_promise(const gy_sched *s, const sched_job *j, gy_kv_group g) {
    if (s->o.reserve_full) return life_blocks(s, j, g);
    return j->state == GY_JOB_DECODE ? 0 : rows_of(j->n_known) * s->row_blocks[g];
}

int64_t sched_promised(const gy_sched *s, gy_kv_group g) {
    int64_t sum = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        const sched_job *j = &s->job[s->running[i]];
        int64_t left = sched_promise(s, j, g) - gy_kv_seq_blocks(s->kv, g, j->kv_seq);
        if (left > 0) sum += left;
    }
    return sum;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Before anything is shared. */
static int64_t need_blocks(const gy_sched *s, const sched_job *j, gy_kv_group g) {
    int64_t life = life_blocks(s, j, g), known = rows_of(j->n_known) * s->row_blocks[g];
    if (j->in.has_kv) return s->o.reserve_full ? life - gy_kv_seq_blocks(s->kv, g, j->in.kv_seq) : 0;
    if (s->o.reserve_full) return life;
    if (j->state == GY_JOB_PARKED) {
        int64_t held = gy_kv_seq_blocks(s->kv, g, j->kv_seq), more = held + gy_kv_n_plane(s->kc, g);
        return max64(held, min64(j->parked_from == GY_JOB_PREFILL ? max64(more, known) : more, life));
    }
    return min64(j->n_preempt ? known + gy_kv_n_plane(s->kc, g) : known, life);
}

static int64_t watermark(const gy_sched *s, gy_kv_group g) {
    if (g != GY_KV_CORE || s->n_running == 0) return 0;
    double blocks = s->o.watermark * s->kc->n_block[g];
    int64_t whole = (int64_t)blocks;
    return whole + (blocks > (double)whole);
}

static int blocks_fit(const gy_sched *s, const int64_t take[GY_KV_GROUPS]) {
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        gy_kv_group group = (gy_kv_group)g;
        if (take[g] + sched_promised(s, group) + watermark(s, group) > gy_kv_n_avail(s->kv, group)) return 0;
    }
    return 1;
}

int gy_sched_spare(const gy_sched *s, const int64_t need[GY_KV_GROUPS]) {
    return blocks_fit(s, need);
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

static const sched_job *leader_of(const gy_sched *s, const sched_job *j) {
    if (j->in.leader < 0) return NULL;
    const sched_job *lead = &s->job[j->in.leader];
    return lead->state != GY_JOB_FREE && lead->arrival == j->leader_arrival ? lead : NULL;
}

static int leader_is_written(const sched_job *j, const sched_job *lead) {
    return sched_runs(lead) && lead->n_done >= sched_whole_rows(j);
}

/* Only before the first admission, and only for a leader that comes first: it runs, or stands ahead in the queue. */
static int waits_for_leader(const gy_sched *s, int32_t job) {
    const sched_job *j = &s->job[job], *lead = leader_of(s, j);
    if (!lead || j->was_admitted || sched_whole_rows(j) == 0 || leader_is_written(j, lead)) return 0;
    return sched_runs(lead) || sched_better(s, j->in.leader, job);
}

/* The last known token must be computed, and outputs are shared only as far as they ran like prompt tokens. */
static int32_t share_limit(const sched_job *j) {
    return j->n_known - 1 < j->n_full ? j->n_known - 1 : j->n_full;
}

/* Tokens that may be shared at best: what is known without a look-up. */
static int32_t share_most(const gy_sched *s, const sched_job *j) {
    if (j->state == GY_JOB_PARKED || (!sched_may_look_up(s, j) && !leader_of(s, j))) return 0;
    return share_limit(j) / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
}

static void plan_sharing(const gy_sched *s, const sched_job *j, plan *p) {
    int32_t alone[GY_KV_GROUPS] = {0};
    const sched_job *lead = leader_of(s, j);
    if (sched_may_look_up(s, j)) p->n_shared = gy_prefix_match(s->kv, &j->in.space, j->in.tok, share_limit(j), alone);
    int32_t more = lead && leader_is_written(j, lead) ? sched_whole_rows(j) - p->n_shared : -1;
    if (more > 0 || (more == 0 && alone[GY_KV_CORE] > 0)) { /* the leader's rows are held already: they cost nothing */
        p->n_shared = sched_whole_rows(j);
        p->by_leader = 1;
        alone[GY_KV_CORE] = alone[GY_KV_BOUNDARY] = 0;
    }
    for (int g = 0; g < GY_KV_GROUPS; g++)
        p->take[g] += alone[g] - (int64_t)(p->n_shared / GY_KV_BLOCK_LEN) * s->row_blocks[g];
}

static void plan_make(const gy_sched *s, const sched_job *j, plan *p) {
    *p = (plan){0};
    for (int g = 0; g < GY_KV_GROUPS; g++) p->take[g] = need_blocks(s, j, (gy_kv_group)g);
    if (j->state == GY_JOB_WAITING) plan_sharing(s, j, p);
}

/* Would it fit if all that may be shared were? Then a look-up is worth its cost. */
static int may_fit(const gy_sched *s, const sched_job *j) {
    int64_t least[GY_KV_GROUPS], n_row = share_most(s, j) / GY_KV_BLOCK_LEN;
    for (int g = 0; g < GY_KV_GROUPS; g++) least[g] = need_blocks(s, j, (gy_kv_group)g) - n_row * s->row_blocks[g];
    return blocks_fit(s, least);
}

static int plan_fits(const gy_sched *s, const sched_job *j, plan *p) {
    if (!may_fit(s, j)) return 0;
    plan_make(s, j, p);
    return blocks_fit(s, p->take);
}

/* ---- giving way to a better priority ----------------------------------------------------------------------------- */

static int is_worse(const gy_sched *s, int32_t running, const sched_job *j) {
    const sched_job *r = &s->job[running];
    return s->o.policy == GY_SCHED_PRIORITY && !r->in.is_pinned && r->in.priority > j->in.priority;
}

/* Would it help if all worse jobs went? Exact where they share no blocks; else it may say yes too early, as it counts
 * all that they hold. */
static int fits_without_worse(const gy_sched *s, const sched_job *j) {
    plan p;
    plan_make(s, j, &p);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        gy_kv_group group = (gy_kv_group)g;
        int64_t room = gy_kv_n_avail(s->kv, group) - p.take[g];
        int32_t n_worse = 0;
        for (int32_t i = 0; i < s->n_running; i++) {
            const sched_job *r = &s->job[s->running[i]];
            int64_t held = gy_kv_seq_blocks(s->kv, group, r->kv_seq);
            int worse = is_worse(s, s->running[i], j);
            room += worse ? held : -max64(sched_promise(s, r, group) - held, 0);
            n_worse += worse;
        }
        if (room < (n_worse < s->n_running ? watermark(s, group) : 0)) return 0;
    }
    return 1;
}

/* A slot and blocks for the job, at the expense of worse ones if need be. */
static int make_room(gy_sched *s, int32_t job, plan *p) {
    const sched_job *j = &s->job[job];
    for (int asked = 0;; asked = 1) {
        if (s->n_slot_free > 0 && plan_fits(s, j, p)) return 1;
        int32_t worst = sched_worst_running(s);
        if (worst < 0 || !is_worse(s, worst, j)) return 0;
        if (!asked && !fits_without_worse(s, j)) return 0;
        sched_preempt_job(s, worst);
    }
}

/* ---- transitions ------------------------------------------------------------------------------------------------- */

static void share(gy_sched *s, sched_job *j, const plan *p) {
    int32_t n = 0;
    if (p->n_shared && p->by_leader) {
        n = p->n_shared;
        gy_kv_share(s->kv, s->job[j->in.leader].kv_seq, j->kv_seq, n);
    } else if (sched_may_look_up(s, j)) { /* also without a hit: it sets the cursor, and counts */
        n = gy_prefix_attach(s->kv, &j->in.space, j->in.tok, share_limit(j), j->kv_seq, &j->cursor);
        j->n_row = n / GY_KV_BLOCK_LEN;
        GY_CHECK(n == p->n_shared);
    }
    j->n_entered = j->n_done = n;
}

static void admit_with(gy_sched *s, int32_t job, const plan *p, int64_t now_ns) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_WAITING && j->flights.n == 0);
    j->cursor = (gy_prefix_cursor){0};
    j->n_row = 0;
    share(s, j, p);
    if (!j->was_admitted) {
        j->admit_ns = now_ns;
        j->n_cached = j->n_done;
        j->was_admitted = 1;
        s->n_wait_tok -= j->in.n_prompt;
    }
    s->n_admit++;
    sched_start_running(s, job, GY_JOB_PREFILL);
}

/* The sequence came with the job: nothing is opened, shared or computed. */
static void sched_land_job(gy_sched *s, int32_t job, int64_t now_ns) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_WAITING && j->flights.n == 0);
    j->kv_seq = j->in.kv_seq;
    j->in.has_kv = 0;
    j->cursor = (gy_prefix_cursor){0};
    j->n_row = 0;
    j->n_entered = j->in.n_prompt;
    j->n_done = j->in.n_prompt - 1;
    j->admit_ns = now_ns;
    j->was_admitted = 1;
    s->n_wait_tok -= j->in.n_prompt;
    s->n_admit++;
    sched_start_running(s, job, GY_JOB_PREFILL);
    sched_land(s, job);
}

static gy_status sched_admit_job(gy_sched *s, int32_t job, const plan *p, int64_t now_ns) {
    gy_status st = sched_open_seq(s, sched_life(&s->job[job]), &s->job[job].kv_seq);
    if (st == GY_OK) admit_with(s, job, p, now_ns);
    return st;
}

static gy_status sched_restore_job(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(j->state == GY_JOB_PARKED);
    gy_status st = gy_kv_restore(s->kv, j->kv_seq, s->o.restore_copy, s->o.copy_arg);
    if (st != GY_OK) return st;
    s->n_restore++;
    s->n_parked--;
    sched_start_running(s, job, j->parked_from);
    return GY_OK;
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

static int try_job(gy_sched *s, int32_t job, int64_t now_ns) {
    plan p;
    if (waits_for_leader(s, job) || !make_room(s, job, &p)) return 0;
    if (s->job[job].state == GY_JOB_PARKED) return sched_restore_job(s, job) == GY_OK;
    if (s->job[job].in.has_kv) {
        if (s->n_flying[0] >= 2 * s->o.max_rows) return 0;
        sched_land_job(s, job, now_ns);
        return 1;
    }
    return sched_admit_job(s, job, &p, now_ns) == GY_OK;
}

/* A job behind `last` was admitted: those from the head to it were passed. 1: one of them has been passed too often. */
static int count_bypass(gy_sched *s, int32_t last) {
    int full = 0;
    for (int32_t i = last; i >= 0; i = s->job_link[i].prev) full |= ++s->job[i].n_bypass >= s->o.max_bypass;
    return full;
}

/* Nobody can be admitted, whatever it asks for. */
static int is_closed(const gy_sched *s) {
    int32_t best = s->waiting.head;
    if (best < 0) return 1;
    if (s->n_running == 0) return 0;
    if (!s->dirty) return 1;
    if (s->n_slot_free > 0) return 0;
    int32_t worst = sched_worst_running(s);
    return s->o.policy == GY_SCHED_FCFS || worst < 0 || !is_worse(s, worst, &s->job[best]);
}

/* Returns how many were admitted. */
static int32_t scan(gy_sched *s, int64_t now_ns) {
    s->dirty = 0;
    int32_t job = s->waiting.head, n_admitted = 0;
    for (int32_t n = 0; job >= 0 && n < s->o.scan_limit; n++) {
        int32_t ahead = s->job_link[job].prev; /* what gives way to the job stands behind it */
        if (try_job(s, job, now_ns)) {
            n_admitted++;
            if (count_bypass(s, ahead)) return n_admitted;
            job = ahead < 0 ? s->waiting.head : s->job_link[ahead].next;
        } else {
            if (s->job[job].n_bypass >= s->o.max_bypass) return n_admitted;
            job = s->job_link[job].next;
        }
    }
    if (job >= 0 && n_admitted) s->dirty = 1; /* the next scan reaches further */
    return n_admitted;
}

/* The last in the queue that brought its KV computes its prompt here instead. */
static int forget_worst_import(gy_sched *s) {
    int32_t job = s->waiting.tail;
    while (job >= 0 && !s->job[job].in.has_kv) job = s->job_link[job].prev;
    if (job < 0) return 0;
    gy_kv_seq_close(s->kv, s->job[job].in.kv_seq);
    s->job[job].in.has_kv = 0;
    s->n_drop++;
    return 1;
}

/* When nothing runs and the best job does not fit, what waits behind it holds the blocks: imports do. */
void gy_sched_admit(gy_sched *s, int64_t now_ns) {
    if (is_closed(s)) return;
    while (!scan(s, now_ns) && s->n_running == 0 && forget_worst_import(s)) {
    }
}
