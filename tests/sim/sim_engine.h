/* The fake engine of the simulation: drives a gy_sched over a gy_kv as src/engine does, with sim_model.h in the place
 * of the model. KV lies in arrays of fingerprints, one for each slot of the pools and of the park pools.
 *
 * It checks each answer of the scheduler as it comes: rows against flights, flights against jobs, every map entry that
 * is read, every state and output against the oracle. The first thing that is wrong ends the workload (sim_fail) with a
 * sentence. What happens between the phases of a step (arrivals, cancels, books) is test_sim.c's.
 */
#ifndef GY_TESTS_SIM_ENGINE_H
#define GY_TESTS_SIM_ENGINE_H

#include "sim/sim_workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    SIM_MAX_BLOCKS = 512,
    SIM_MAX_SLOTS = SIM_MAX_BLOCKS * GY_KV_BLOCK_LEN,
    SIM_MAX_ROWS = 64,
    SIM_MAX_FLIGHTS = 256,
    SIM_MAX_IDS = 256
};

/* What must have happened somewhere in a whole run of the test. */
#define SIM_EVENTS(X)                                                                                                  \
    X(PARK, "sequences parked")                                                                                        \
    X(RESTORE, "restored")                                                                                             \
    X(DROP, "dropped")                                                                                                 \
    X(RECOMPUTED, "tokens computed again")                                                                             \
    X(GIVE_WAY, "preempted for a better priority")                                                                     \
    X(FORCED_PARK, "parked because a test said so")                                                                    \
    X(FORCED_DROP, "dropped because a test said so")                                                                   \
    X(FORCED_AGAIN, "refusals to preempt")                                                                             \
    X(HIT, "prefix hits")                                                                                              \
    X(PUBLISH, "rows published")                                                                                       \
    X(EVICT, "rows evicted")                                                                                           \
    X(FOLLOW, "choices that shared their leader's rows")                                                               \
    X(CANCEL_WAITING, "cancelled: waiting")                                                                            \
    X(CANCEL_DROPPED, "cancelled: dropped")                                                                            \
    X(CANCEL_PARKED, "cancelled: parked")                                                                              \
    X(CANCEL_PREFILL, "cancelled: prompt, with flights")                                                               \
    X(CANCEL_PREFILL_IDLE, "cancelled: prompt, without flights")                                                       \
    X(CANCEL_DECODE, "cancelled: decode, in flight")                                                                   \
    X(CANCEL_PENDING, "cancelled: decode, token not entered")                                                          \
    X(CANCEL_CODA, "cancelled: waiting for the coda")                                                                  \
    X(CANCEL_SAMPLED, "cancelled: just sampled")                                                                       \
    X(CANCEL_LEADER, "cancelled: leader of a waiting choice")                                                          \
    X(CANCEL_FOLLOWER, "cancelled: choice that waits for its leader")                                                  \
    X(QUEUE_FULL, "submits to a full queue")                                                                           \
    X(REFUSED, "jobs that can never fit")                                                                              \
    X(BYPASS, "jobs admitted past a waiting one")                                                                      \
    X(BYPASS_LIMIT, "jobs that were passed as often as allowed")                                                       \
    X(MIXED, "passes with decode and prompt rows")                                                                     \
    X(WAVEFRONT, "passes with a job at two depths")                                                                    \
    X(PACKED, "passes with prompt rows of several jobs")                                                               \
    X(JUDGED, "rows judged by their coda")                                                                             \
    X(REPLAYED, "outputs that ran at their recorded depth")                                                            \
    X(EARLY_EXIT, "tokens that left before the last loop")                                                             \
    X(DEEPER, "tokens that ran deeper than trained")                                                                   \
    X(CODA_HELD, "steps that held a coda batch")                                                                       \
    X(PROMPT_LOGITS, "prompt rows with logits")                                                                        \
    X(FINISHED, "jobs finished")                                                                                       \
    X(TOKEN, "tokens sampled")                                                                                         \
    X(PASS_ROW, "rows of passes")                                                                                      \
    X(STEP, "steps")                                                                                                   \
    X(BOUND, "% of its bound of steps that a workload took at most")

#define SIM_EVENT_ENUM(name, text) SIM_##name,
typedef enum sim_event { SIM_EVENTS(SIM_EVENT_ENUM) SIM_N_EVENT } sim_event;

/* Faults planted into the fake engine, to show that the checks see them. */
typedef enum sim_plant {
    SIM_PLANT_NONE,
    SIM_PLANT_SKIP_WRITE,  /* a row's KV is not written */
    SIM_PLANT_STALE_READ,  /* a read takes its neighbour's slot */
    SIM_PLANT_OTHER_DEPTH, /* a read looks at the depth above */
    SIM_PLANT_PARK,        /* a park copies one slot too few */
    SIM_PLANT_RESTORE,     /* a restore copies nothing */
    SIM_PLANT_EXIT,        /* a token stays one loop longer when it is computed again */
    SIM_PLANT_SKIP_CODA,   /* a coda's KV is not written */
    SIM_PLANT_SALT,        /* salts do not reach the cache */
    SIM_PLANT_LEAK,        /* a block reference is not given back */
    SIM_PLANT_NO_ADMIT,    /* nothing is admitted after a while */
    SIM_N_PLANT
} sim_plant;

typedef struct sim_flight {
    int32_t live, left; /* left: out of the core, coda not run */
    int32_t job, pos, loops;
    int32_t step;      /* of entry */
    int32_t n_preempt; /* of the job at entry: a preemption ends all flights */
    uint64_t h;
} sim_flight;

typedef enum sim_job_state { SIM_LATER, SIM_LIVE, SIM_OVER } sim_job_state;

typedef struct sim_job {
    sim_job_state state;
    int32_t id; /* the scheduler's, while live */
    int32_t n_known;
    int32_t tok[SIM_MAX_LEN];
    int32_t depth[SIM_MAX_LEN];  /* loops run; 0 = has not left the core yet */
    int32_t logit[SIM_MAX_LEN];  /* prompt logits that came */
    int32_t n_passed;            /* later jobs first admitted while this one waited */
    int32_t admitted, n_preempt; /* as last seen */
} sim_job;

typedef struct sim_tags { /* one fingerprint a slot: [0] core; [0], [1] prelude and coda of the boundary */
    uint64_t tag[GY_KV_GROUPS][2][SIM_MAX_SLOTS];
} sim_tags;

typedef struct sim {
    sim_workload w;
    sim_rand rand;
    sim_plant plant;
    int32_t n_plant; /* chances so far */
    gy_kv *kv;
    gy_sched *sched;
    sim_tags pool, park;
    sim_job job[SIM_MAX_JOBS];
    int32_t by_id[SIM_MAX_IDS]; /* the scheduler's job -> ours, -1 */
    sim_flight flight[SIM_MAX_FLIGHTS];
    int32_t n_flight;
    int32_t step, n_forced;
    int64_t now, budget; /* steps that this workload may take */
    int progress;        /* something happened in this step */
    int64_t *event;      /* [SIM_N_EVENT] */
    jmp_buf failed;
    char why[512];
} sim;

static inline _Noreturn void __attribute__((format(printf, 2, 3))) sim_fail(sim *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
    longjmp(s->failed, 1);
}
#define SIM_CHECK(s, cond, ...) ((cond) ? (void)0 : sim_fail((s), __VA_ARGS__))

/* Every 5th chance of a planted fault is taken. */
static inline int sim_planted(sim *s, sim_plant p) {
    return s->plant == p && ++s->n_plant % 5 == 0;
}

static inline gy_job_info sim_info(const sim *s, const sim_job *j) {
    gy_job_info info;
    gy_sched_job_info(s->sched, j->id, &info);
    return info;
}

/* ---- parking ---- */

static inline void sim_copy_block(sim *s, gy_kv_group g, sim_tags *to, int32_t b, const sim_tags *from, int32_t a,
                                  int32_t n) {
    SIM_CHECK(s, a >= 0 && b >= 0 && a < SIM_MAX_BLOCKS && b < SIM_MAX_BLOCKS, "copy of block %d to %d", a, b);
    for (int k = 0; k < 2; k++)
        memcpy(to->tag[g][k] + b * GY_KV_BLOCK_LEN, from->tag[g][k] + a * GY_KV_BLOCK_LEN,
               (size_t)n * sizeof(uint64_t));
}

static inline void sim_park_copy(void *arg, gy_kv_group g, int32_t block, int32_t park_block) {
    sim *s = arg;
    SIM_CHECK(s, block < s->w.kv.n_block[g] && park_block < s->w.kv.n_park[g], "park: block out of its pool");
    sim_copy_block(s, g, &s->park, park_block, &s->pool, block, GY_KV_BLOCK_LEN - sim_planted(s, SIM_PLANT_PARK));
}

static inline void sim_restore_copy(void *arg, gy_kv_group g, int32_t block, int32_t park_block) {
    sim *s = arg;
    SIM_CHECK(s, block < s->w.kv.n_block[g] && park_block < s->w.kv.n_park[g], "restore: block out of its pool");
    if (sim_planted(s, SIM_PLANT_RESTORE)) return;
    sim_copy_block(s, g, &s->pool, block, &s->park, park_block, GY_KV_BLOCK_LEN);
}

/* ---- flights ---- */

static inline int sim_flying(const sim *s, const sim_flight *f) {
    return f->live && s->job[f->job].state == SIM_LIVE && s->job[f->job].n_preempt == f->n_preempt;
}

/* Takes note of preemptions, which end flights; returns how many there were. */
static inline int32_t sim_see_preempted(sim *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->w.n_job; i++) {
        sim_job *j = &s->job[i];
        if (j->state != SIM_LIVE) continue;
        int32_t now = sim_info(s, j).n_preempt;
        n += now - j->n_preempt;
        j->n_preempt = now;
    }
    return n;
}

static inline sim_flight *sim_flight_of(sim *s, int32_t i) {
    SIM_CHECK(s, i >= 0 && i < s->n_flight, "flight %d of %d", i, s->n_flight);
    sim_flight *f = &s->flight[i];
    SIM_CHECK(s, sim_flying(s, f), "flight %d does not fly", i);
    SIM_CHECK(s, gy_sched_flight_job(s->sched, i) == s->job[f->job].id, "flight %d changed its job", i);
    SIM_CHECK(s, gy_sched_flight_pos(s->sched, i) == f->pos, "flight %d changed its position", i);
    SIM_CHECK(s, gy_sched_flight_loops(s->sched, i) == f->loops, "flight %d: %d loops, not %d", i,
              gy_sched_flight_loops(s->sched, i), f->loops);
    return f;
}

static inline void sim_check_row(sim *s, const gy_sched_rows *r, int32_t i, gy_kv_group g, const sim_flight *f) {
    int32_t depth = g == GY_KV_CORE ? f->loops : 0, seq = sim_info(s, &s->job[f->job]).kv_seq;
    SIM_CHECK(s, r->pos[i] == f->pos, "row %d: position %d, not %d", i, r->pos[i], f->pos);
    SIM_CHECK(s, seq >= 0, "a flying job has no sequence");
    SIM_CHECK(s, r->map_off[i] == gy_kv_map_off(s->kv, g, seq, depth), "row %d: wrong map row", i);
    SIM_CHECK(s, r->slot[i] == gy_kv_map(s->kv, g)[r->map_off[i] + f->pos], "row %d: slot is not the map's", i);
    SIM_CHECK(s, r->slot[i] >= 0 && r->slot[i] < s->w.kv.n_block[g] * GY_KV_BLOCK_LEN, "row %d: slot %d", i,
              r->slot[i]);
}

/* Sum over what a row at pos reads through this map row. */
static inline uint64_t sim_read(sim *s, gy_kv_group g, int kind, int64_t off, int32_t pos) {
    const int32_t *map = gy_kv_map(s->kv, g) + off;
    const uint64_t *tag = s->pool.tag[g][kind];
    int32_t n_slot = s->w.kv.n_block[g] * GY_KV_BLOCK_LEN;
    uint64_t sum = 0;
    for (int32_t j = 0; j <= pos; j++) {
        SIM_CHECK(s, map[j] >= 0 && map[j] < n_slot, "map entry of position %d, read at %d, is %d", j, pos, map[j]);
        sum += sim_term(tag[map[j]], j);
    }
    return sum;
}

static inline void sim_check_rows(sim *s, const gy_sched_rows *r) {
    SIM_CHECK(s, r->n_row >= 0 && r->n_row <= s->w.sched.max_rows, "%d rows of %d", r->n_row, s->w.sched.max_rows);
}

static inline int sim_is_decode(const sim *s, const sim_flight *f) {
    const sim_job *j = &s->job[f->job];
    return f->pos >= s->w.job[f->job].n_prompt && f->pos == j->n_known - 1;
}

/* ---- enter ---- */

static inline void sim_enter_row(sim *s, int32_t i) {
    int32_t id = gy_sched_flight_job(s->sched, i);
    SIM_CHECK(s, i >= 0 && i < s->n_flight, "flight %d of %d", i, s->n_flight);
    SIM_CHECK(s, id >= 0 && id < SIM_MAX_IDS && s->by_id[id] >= 0, "flight %d of unknown job %d", i, id);
    sim_flight *f = &s->flight[i];
    SIM_CHECK(s, !sim_flying(s, f), "flight %d enters, but flies", i);
    int32_t job = s->by_id[id];
    *f = (sim_flight){.live = 1, .job = job, .step = s->step, .pos = gy_sched_flight_pos(s->sched, i)};
    f->n_preempt = s->job[job].n_preempt;
    SIM_CHECK(s, f->pos >= 0 && f->pos < s->job[job].n_known, "position %d of %d", f->pos, s->job[job].n_known);
    SIM_CHECK(s, gy_sched_flight_loops(s->sched, i) == 0, "a new flight has loops");
    f->h = sim_start(&s->w.job[job], s->job[job].tok[f->pos], f->pos);
}

static inline void sim_prelude(sim *s, const gy_sched_rows *r) {
    for (int32_t i = 0; i < r->n_row; i++) {
        sim_enter_row(s, r->flight[i]);
        const sim_flight *f = &s->flight[r->flight[i]];
        SIM_CHECK(s, (i < r->n_decode) == sim_is_decode(s, f), "row %d of %d decode rows", i, r->n_decode);
        if (!s->w.shape.has_boundary) continue;
        sim_check_row(s, r, i, GY_KV_BOUNDARY, f);
        s->pool.tag[GY_KV_BOUNDARY][0][r->slot[i]] = sim_prelude_tag(f->h);
    }
    for (int32_t i = 0; i < r->n_row && s->w.shape.has_boundary; i++) {
        sim_flight *f = &s->flight[r->flight[i]];
        f->h = sim_boundary_end(f->h, sim_read(s, GY_KV_BOUNDARY, 0, r->map_off[i], f->pos));
    }
}

/* Decode rows that entered before this step and have not left the core. */
static inline int32_t sim_n_decode_in_core(const sim *s, int32_t step) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_flight; i++) {
        const sim_flight *f = &s->flight[i];
        n += sim_flying(s, f) && f->step < step && !f->left && sim_is_decode(s, f);
    }
    return n;
}

/* A prompt has tokens to enter and no prompt row flies, but decode rows do: they would keep it out for ever. */
static inline int sim_prompt_starves(const sim *s) {
    int32_t decodes = 0, starves = 0;
    for (int32_t i = 0; i < s->n_flight; i++) {
        if (!sim_flying(s, &s->flight[i])) continue;
        if (!sim_is_decode(s, &s->flight[i])) return 0;
        decodes += !s->flight[i].left;
    }
    for (int32_t i = 0; i < s->w.n_job && decodes && !starves; i++) {
        if (s->job[i].state != SIM_LIVE) continue;
        gy_job_info info = sim_info(s, &s->job[i]);
        int32_t n_prompt = s->w.job[i].n_prompt, end = info.n_known > n_prompt ? info.n_known - 1 : n_prompt;
        starves = info.state == GY_JOB_PREFILL && info.n_entered < end;
    }
    return starves;
}

static inline void sim_enter(sim *s) {
    int32_t n_preempted = 0;
    for (;;) {
        const gy_sched_rows *r = gy_sched_enter(s->sched);
        n_preempted += sim_see_preempted(s);
        sim_check_rows(s, r);
        if (!r->n_row) break;
        int32_t before = s->w.sched.no_refill && r->n_decode ? sim_n_decode_in_core(s, s->step) : 0;
        SIM_CHECK(s, !before, "no_refill: %d decode rows enter beside %d", r->n_decode, before);
        s->progress = 1;
        sim_prelude(s, r);
    }
    SIM_CHECK(s, s->w.sched.max_rows == 1 || n_preempted || !sim_prompt_starves(s), "decode rows keep a prompt out");
}

/* ---- pass ---- */

static inline void sim_count_pass(sim *s, const gy_sched_rows *r) {
    int mixed = r->n_decode && r->n_row > r->n_decode, wave = 0, packed = 0;
    for (int32_t i = r->n_decode + 1; i < r->n_row; i++) {
        const sim_flight *a = &s->flight[r->flight[i - 1]], *b = &s->flight[r->flight[i]];
        if (a->job != b->job) packed = 1;
        if (a->job == b->job && a->loops != b->loops) wave = 1;
    }
    s->event[SIM_MIXED] += mixed;
    s->event[SIM_WAVEFRONT] += wave;
    s->event[SIM_PACKED] += packed;
    s->event[SIM_PASS_ROW] += r->n_row;
}

static inline void sim_check_pass(sim *s, const gy_sched_rows *r) {
    int32_t most = (int32_t)(s->w.sched.prefill_share * s->w.sched.max_rows), n = r->n_row - r->n_decode;
    SIM_CHECK(s, r->n_decode >= 0 && n >= 0, "%d decode rows of %d", r->n_decode, r->n_row);
    SIM_CHECK(s, !r->n_decode || n <= (most > 1 ? most : 1), "%d prompt rows beside %d decode rows, at most %d", n,
              r->n_decode, most);
}

static inline void sim_pass_row(sim *s, const gy_sched_rows *r, int32_t i) {
    sim_flight *f = &s->flight[r->flight[i]];
    int64_t off = r->map_off[i];
    int32_t depth = f->loops, last = f->pos;
    if (sim_planted(s, SIM_PLANT_OTHER_DEPTH) && depth > 0)
        off = gy_kv_map_off(s->kv, GY_KV_CORE, sim_info(s, &s->job[f->job]).kv_seq, depth - 1);
    uint64_t sum = sim_read(s, GY_KV_CORE, 0, off, last);
    if (sim_planted(s, SIM_PLANT_STALE_READ)) sum += sim_term(s->pool.tag[GY_KV_CORE][0][r->slot[i] ^ 1], last);
    f->h = sim_loop_end(f->h, sum, depth);
    f->loops++;
}

/* As on a real backend: all rows write, then all rows read. Flights of the pass to out; returns their number. */
static inline int32_t sim_pass(sim *s, int32_t *out) {
    const gy_sched_rows *r = gy_sched_pass(s->sched);
    sim_see_preempted(s);
    sim_check_rows(s, r);
    sim_check_pass(s, r);
    for (int32_t i = 0; i < r->n_row; i++) {
        const sim_flight *f = sim_flight_of(s, r->flight[i]);
        out[i] = r->flight[i];
        SIM_CHECK(s, !f->left, "a flight that left is in a pass");
        SIM_CHECK(s, (i < r->n_decode) == sim_is_decode(s, f), "row %d of %d decode rows", i, r->n_decode);
        sim_check_row(s, r, i, GY_KV_CORE, f);
        if (!sim_planted(s, SIM_PLANT_SKIP_WRITE))
            s->pool.tag[GY_KV_CORE][0][r->slot[i]] = sim_core_tag(f->h, f->loops);
    }
    sim_count_pass(s, r);
    for (int32_t i = 0; i < r->n_row; i++) sim_pass_row(s, r, i);
    if (r->n_row) s->progress = 1;
    return r->n_row;
}

/* ---- coda and sampling ---- */

/* Outputs of the coda for rows whose KV it writes. */
static inline void sim_coda_run(sim *s, const gy_sched_rows *r, uint64_t *out) {
    for (int32_t i = 0; i < r->n_row && s->w.shape.has_coda; i++) {
        const sim_flight *f = &s->flight[r->flight[i]];
        SIM_CHECK(s, r->pos[i] == f->pos, "coda row %d: position %d, not %d", i, r->pos[i], f->pos);
        int32_t seq = sim_info(s, &s->job[f->job]).kv_seq;
        SIM_CHECK(s, r->map_off[i] == gy_kv_map_off(s->kv, GY_KV_BOUNDARY, seq, 0), "coda row %d: wrong map row", i);
        SIM_CHECK(s, r->slot[i] == gy_kv_map(s->kv, GY_KV_BOUNDARY)[r->map_off[i] + f->pos], "coda row %d: slot", i);
        SIM_CHECK(s, r->slot[i] >= 0, "coda row %d: no slot", i);
        if (!sim_planted(s, SIM_PLANT_SKIP_CODA)) s->pool.tag[GY_KV_BOUNDARY][1][r->slot[i]] = sim_coda_tag(f->h);
    }
    for (int32_t i = 0; i < r->n_row; i++) {
        const sim_flight *f = &s->flight[r->flight[i]];
        uint64_t sum = s->w.shape.has_coda ? sim_read(s, GY_KV_BOUNDARY, 1, r->map_off[i], f->pos) : 0;
        out[i] = sim_boundary_end(f->h, sum);
    }
}

static inline void sim_over(sim *s, int32_t job) {
    sim_job *j = &s->job[job];
    gy_sched_remove(s->sched, j->id);
    s->by_id[j->id] = -1;
    j->state = SIM_OVER;
}

static inline void sim_finish(sim *s, int32_t job) {
    const sim_spec *q = &s->w.job[job];
    for (int32_t p = 0; q->all_logits && p < q->n_prompt; p++)
        SIM_CHECK(s, s->job[job].logit[p], "job %d: no logits of prompt position %d", job, p);
    s->event[SIM_FINISHED]++;
    sim_over(s, job);
}

static inline void sim_sampled(sim *s, int32_t i, uint64_t out) {
    sim_flight *f = &s->flight[i];
    int32_t job = f->job, pos = f->pos;
    sim_job *j = &s->job[job];
    const sim_spec *q = &s->w.job[job];
    SIM_CHECK(s, pos == j->n_known - 1, "job %d: sampled at %d of %d known tokens", job, pos, j->n_known);
    j->tok[j->n_known++] = sim_token(q, out, pos);
    f->live = 0;
    gy_sched_sampled(s->sched, i);
    s->event[SIM_TOKEN]++;
    SIM_CHECK(s, j->tok[pos + 1] == s->w.want[job].tok[pos + 1], "job %d: another token at %d", job, pos + 1);
    SIM_CHECK(s, sim_info(s, j).n_known == j->n_known, "job %d: known tokens", job);
    if (sim_is_last(q, j->n_known - q->n_prompt, j->tok[pos + 1])) {
        sim_finish(s, job);
    } else if (sim_chance(&s->rand, s->w.cancel_sampled_percent)) {
        s->event[SIM_CANCEL_SAMPLED]++;
        sim_over(s, job);
    }
}

static inline int sim_wants_prompt_logits(const sim *s, const sim_flight *f) {
    return s->w.job[f->job].all_logits && f->pos < s->w.job[f->job].n_prompt;
}

/* The coda of flight i has run: compared, and reported. */
static inline void sim_coda_end(sim *s, int32_t i, uint64_t out) {
    sim_flight *f = &s->flight[i];
    SIM_CHECK(s, out == s->w.want[f->job].out[f->pos], "job %d: another output of the coda at %d", f->job, f->pos);
    if (sim_wants_prompt_logits(s, f)) {
        s->job[f->job].logit[f->pos] = 1;
        s->event[SIM_PROMPT_LOGITS]++;
    }
    if (gy_sched_flight_samples(s->sched, i)) {
        sim_sampled(s, i, out);
    } else {
        f->live = 0;
        gy_sched_done(s->sched, i);
    }
}

static inline void sim_check_logits(sim *s, const gy_sched_rows *r) {
    int32_t k = 0;
    SIM_CHECK(s, r->n_logit <= s->w.max_logit, "%d rows with logits, at most %d", r->n_logit, s->w.max_logit);
    for (int32_t i = 0; i < r->n_row; i++) {
        int has = k < r->n_logit && r->logit[k] == i, samples = gy_sched_flight_samples(s->sched, r->flight[i]);
        SIM_CHECK(s, has || !samples, "coda row %d samples and has no logits", i);
        SIM_CHECK(s, !has || samples || sim_wants_prompt_logits(s, &s->flight[r->flight[i]]), "logits for nobody");
        SIM_CHECK(s, has || s->w.shape.has_coda, "a coda row that wants nothing");
        k += has;
    }
    SIM_CHECK(s, k == r->n_logit, "rows with logits: not ascending");
}

static inline void sim_coda(sim *s) {
    int cohort_flies = s->w.sched.no_refill && sim_n_decode_in_core(s, s->step + 1) > 0;
    int32_t flight[SIM_MAX_ROWS], n;
    uint64_t out[SIM_MAX_ROWS];
    do {
        const gy_sched_rows *r = gy_sched_coda(s->sched, s->w.max_logit);
        sim_check_rows(s, r);
        n = r->n_row;
        for (int32_t i = 0; i < n; i++) {
            const sim_flight *f = sim_flight_of(s, r->flight[i]);
            flight[i] = r->flight[i];
            SIM_CHECK(s, f->left, "coda of a flight that did not leave");
            SIM_CHECK(s, !cohort_flies || !sim_is_decode(s, f), "no_refill: a decode row leaves before the others");
        }
        sim_check_logits(s, r);
        sim_coda_run(s, r, out);
        for (int32_t i = 0; i < n; i++) sim_coda_end(s, flight[i], out[i]);
        if (n) s->progress = 1;
    } while (n);
}

/* ---- routing ---- */

static inline int sim_flight_is_judged(const sim *s, const sim_flight *f) {
    if (!sim_is_judged(&s->w.shape, &s->w.job[f->job], f->pos)) return 0;
    return !s->w.shape.has_coda || f->pos == s->job[f->job].n_known - 1;
}

/* An output that is computed again below coda layers cannot be judged as it was: it runs as deep as it did. */
static inline int sim_flight_leaves(sim *s, const sim_flight *f, int judged, uint64_t out) {
    const sim_spec *q = &s->w.job[f->job];
    const sim_job *j = &s->job[f->job];
    int replay = !judged && sim_is_judged(&s->w.shape, q, f->pos);
    if (replay) {
        SIM_CHECK(s, j->depth[f->pos] > 0, "job %d: position %d has no recorded depth", f->job, f->pos);
        s->event[SIM_REPLAYED]++;
        return f->loops >= j->depth[f->pos];
    }
    if (j->depth[f->pos] && f->loops < s->w.shape.n_depth && sim_planted(s, SIM_PLANT_EXIT)) return 0;
    return sim_leaves(&s->w.shape, q, f->pos, f->loops, judged ? out : f->h);
}

/* What judged a row may be its last coda, or that may come in its turn (with prompt logits it must, unless the row is
 * alone: they come in order). */
static inline int sim_leave(sim *s, int32_t i, int judged) {
    sim_flight *f = &s->flight[i];
    const sim_oracle *want = &s->w.want[f->job];
    int in_order = s->w.job[f->job].all_logits && !sim_is_decode(s, f);
    int coda_done = judged && !in_order && sim_chance(&s->rand, 75);
    SIM_CHECK(s, f->loops == want->depth[f->pos], "job %d: position %d left after %d loops, not %d", f->job, f->pos,
              f->loops, want->depth[f->pos]);
    SIM_CHECK(s, f->h == want->end[f->pos], "job %d: another state at position %d", f->job, f->pos);
    s->job[f->job].depth[f->pos] = f->loops;
    s->event[SIM_EARLY_EXIT] += f->loops < s->w.shape.n_loop;
    s->event[SIM_DEEPER] += f->loops > s->w.shape.n_loop;
    f->left = 1;
    gy_sched_leave(s->sched, i, coda_done);
    return coda_done;
}

/* Outputs of the judged flights among them; is_judged[i] says which. */
static inline void sim_judge(sim *s, const int32_t *flight, int32_t n, int *is_judged, uint64_t *out) {
    int32_t judged[SIM_MAX_ROWS], n_judged = 0;
    uint64_t by_row[SIM_MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        is_judged[i] = sim_flight_is_judged(s, &s->flight[flight[i]]);
        if (is_judged[i]) judged[n_judged++] = flight[i];
    }
    if (!n_judged) return;
    const gy_sched_rows *r = gy_sched_judge(s->sched, judged, n_judged);
    SIM_CHECK(s, r->n_row == n_judged, "%d rows to judge, not %d", r->n_row, n_judged);
    for (int32_t i = 0; i < n_judged; i++)
        SIM_CHECK(s, r->flight[i] == judged[i], "row %d to judge is flight %d, not %d", i, r->flight[i], judged[i]);
    sim_coda_run(s, r, by_row);
    s->event[SIM_JUDGED] += n_judged;
    for (int32_t i = 0, k = 0; i < n; i++)
        if (is_judged[i]) out[i] = by_row[k++];
}

/* Tokens whose coda is done are sampled when all rows have been routed: a job that ends must have none in the pass. */
static inline void sim_route(sim *s, const int32_t *flight, int32_t n) {
    int32_t done[SIM_MAX_ROWS], n_done = 0;
    int is_judged[SIM_MAX_ROWS];
    uint64_t out[SIM_MAX_ROWS] = {0};
    sim_judge(s, flight, n, is_judged, out);
    for (int32_t i = 0; i < n; i++) {
        if (!sim_flight_leaves(s, &s->flight[flight[i]], is_judged[i], out[i]))
            gy_sched_stay(s->sched, flight[i]);
        else if (sim_leave(s, flight[i], is_judged[i]))
            done[n_done++] = i;
    }
    for (int32_t k = 0; k < n_done; k++)
        if (sim_flying(s, &s->flight[flight[done[k]]])) sim_coda_end(s, flight[done[k]], out[done[k]]);
}

#endif
