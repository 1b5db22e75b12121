/* The scheduler and the KV cache under random workloads, with hashes for a model and a fake clock.
 *
 * Whatever happens to a request (batches, chunks, prefix hits, parking, recomputation, cancels of others), each state,
 * output, depth and token equals that of the request alone. After each step the books balance; everything ends within a
 * bound of steps; under fcfs nobody is passed more often than allowed; nothing allocates after the start.
 *
 *   test_sim                 the tests: all workloads, then each planted fault, which must be found
 *   test_sim SEED            one workload, with what happened in it
 *   test_sim SEED COUNT      that many from SEED on, with the events counted
 */
#include "sim/sim_engine.h"

#include "base/mem.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Under sanitizers a workload takes ten times as long, and what they look for needs fewer. */
#if defined(GY_SANITIZED)
enum { N_WORKLOAD = 2000 };
#else
enum { N_WORKLOAD = 20000 };
#endif
enum { MAX_FORCED = 12 }; /* preemptions by the test in one workload: more of them and nothing would ever end */

/* ---- cancels and forced preemption ---- */

static int has_waiting_follower(const sim *s, int32_t job) {
    for (int32_t i = job + 1; i < s->w.n_job; i++)
        if (s->job[i].state == SIM_LIVE && s->w.job[i].leader == job && !s->job[i].admitted) return 1;
    return 0;
}

static int leader_lives(const sim *s, int32_t job) {
    int32_t leader = s->w.job[job].leader;
    return leader >= 0 && s->job[leader].state == SIM_LIVE;
}

static sim_event cancel_kind(const sim *s, int32_t job) {
    const sim_job *j = &s->job[job];
    gy_job_info info = sim_info(s, j);
    int flies = 0, left = 0;
    for (int32_t i = 0; i < s->n_flight; i++)
        if (sim_flying(s, &s->flight[i]) && s->flight[i].job == job) flies = 1, left |= s->flight[i].left;
    if (info.state == GY_JOB_PARKED) return SIM_CANCEL_PARKED;
    if (info.state == GY_JOB_WAITING && j->admitted) return SIM_CANCEL_DROPPED;
    if (info.state == GY_JOB_WAITING) return leader_lives(s, job) ? SIM_CANCEL_FOLLOWER : SIM_CANCEL_WAITING;
    if (left) return SIM_CANCEL_CODA;
    if (info.state == GY_JOB_PREFILL) return flies ? SIM_CANCEL_PREFILL : SIM_CANCEL_PREFILL_IDLE;
    return flies ? SIM_CANCEL_DECODE : SIM_CANCEL_PENDING;
}

static int32_t some_live_job(sim *s) {
    int32_t first = sim_in(&s->rand, 0, s->w.n_job - 1);
    for (int32_t k = 0; k < s->w.n_job; k++)
        if (s->job[(first + k) % s->w.n_job].state == SIM_LIVE) return (first + k) % s->w.n_job;
    return -1;
}

static void maybe_cancel(sim *s) {
    if (!sim_chance(&s->rand, s->w.cancel_percent)) return;
    int32_t job = some_live_job(s);
    if (job < 0) return;
    s->event[cancel_kind(s, job)]++;
    s->event[SIM_CANCEL_LEADER] += has_waiting_follower(s, job);
    sim_over(s, job);
    s->progress = 1;
}

static int64_t work_of(const sim *s, int32_t job) {
    int64_t rows = 0;
    for (int32_t p = 0; p < s->w.want[job].n_tok; p++) rows += s->w.want[job].depth[p] + 1;
    return rows;
}

static void maybe_preempt(sim *s) {
    if (s->n_forced == MAX_FORCED || !sim_chance(&s->rand, s->w.preempt_percent)) return;
    int32_t job = some_live_job(s);
    if (job < 0) return;
    gy_job_state before = sim_info(s, &s->job[job]).state;
    gy_preempt how = (gy_preempt)sim_in(&s->rand, 0, 2);
    gy_status st = gy_sched_preempt(s->sched, s->job[job].id, how);
    gy_job_state after = sim_info(s, &s->job[job]).state;
    int ran = before == GY_JOB_PREFILL || before == GY_JOB_DECODE;
    if (st == GY_OK) {
        SIM_CHECK(s, ran && (after == GY_JOB_PARKED || after == GY_JOB_WAITING), "preempted: state %d to %d", before,
                  after);
        SIM_CHECK(s, how != GY_PREEMPT_PARK || after == GY_JOB_PARKED, "dropped, though it had to be parked");
        SIM_CHECK(s, how != GY_PREEMPT_RECOMPUTE || after == GY_JOB_WAITING, "parked, though it had to be dropped");
        s->event[after == GY_JOB_PARKED ? SIM_FORCED_PARK : SIM_FORCED_DROP]++;
        s->n_forced++;
        s->budget += 2 * work_of(s, job);
    } else {
        SIM_CHECK(s, st == GY_AGAIN && after == before, "refused to preempt: status %d, state %d to %d", st, before,
                  after);
        SIM_CHECK(s, !ran || how == GY_PREEMPT_PARK, "a running job was not preempted");
        s->event[SIM_FORCED_AGAIN]++;
    }
    sim_see_preempted(s);
}

/* ---- arrivals ---- */

static int fits(sim *s, int32_t job) {
    const sim_spec *q = &s->w.job[job];
    gy_err err = {0};
    gy_status st = gy_sched_fits(s->sched, q->n_prompt, q->max_tokens, &err);
    if (st == GY_OK) return 1;
    int too_much = 0;
    for (int g = 0; g < GY_KV_GROUPS; g++)
        too_much |= gy_kv_blocks_for(&s->w.kv, (gy_kv_group)g, q->n_prompt + q->max_tokens) > s->w.kv.n_block[g];
    SIM_CHECK(s, st == GY_E_LIMIT && err.msg[0], "fits: status %d, \"%s\"", st, err.msg);
    SIM_CHECK(s, too_much, "refused, but it fits: %s", err.msg);
    return 0;
}

static gy_sched_job job_make(sim *s, int32_t job) {
    const sim_spec *q = &s->w.job[job];
    return (gy_sched_job){.tok = s->job[job].tok,
                          .n_prompt = q->n_prompt,
                          .max_tokens = q->max_tokens,
                          .priority = q->priority,
                          .full_prompt = q->full_prompt,
                          .use_cache = q->use_cache,
                          .all_logits = q->all_logits,
                          .space = q->space,
                          .leader = leader_lives(s, job) ? s->job[q->leader].id : -1};
}

static int submit(sim *s, int32_t job) {
    sim_job *j = &s->job[job];
    gy_sched_job request = job_make(s, job);
    if (s->plant == SIM_PLANT_SALT) request.space = (gy_prefix_space){0};
    int32_t id = -1;
    gy_status st = gy_sched_submit(s->sched, &request, s->now, &id);
    if (st == GY_AGAIN) {
        gy_sched_stats stats;
        gy_sched_get_stats(s->sched, &stats);
        SIM_CHECK(s, stats.n_waiting + stats.n_parked >= s->w.sched.max_queue, "queue full at %d + %d of %d",
                  stats.n_waiting, stats.n_parked, s->w.sched.max_queue);
        s->event[SIM_QUEUE_FULL]++;
        return 0;
    }
    SIM_CHECK(s, st == GY_OK && id >= 0 && id < SIM_MAX_IDS, "submit: status %d, job %d", st, id);
    SIM_CHECK(s, s->by_id[id] < 0, "job %d is in use", id);
    j->state = SIM_LIVE;
    j->id = id;
    s->by_id[id] = job;
    s->budget += 2 * work_of(s, job) + 8;
    return 1;
}

/* In order; a full queue holds back the rest. Returns whether some are still to come. */
static int arrivals(sim *s) {
    for (int32_t i = 0; i < s->w.n_job; i++) {
        sim_job *j = &s->job[i];
        if (j->state != SIM_LATER) continue;
        if (s->w.arrive[i] > s->step) return 1;
        if (!fits(s, i)) {
            j->state = SIM_OVER;
            s->event[SIM_REFUSED]++;
        } else if (!submit(s, i)) {
            return 1;
        }
    }
    return 0;
}

/* ---- admission: nobody is passed more often than allowed ---- */

static int waits(gy_job_state st) {
    return st == GY_JOB_WAITING || st == GY_JOB_PARKED;
}

/* Job `late` was admitted for the first time: who waited before it and waits still, was passed. Choices that wait for
 * their leader could not have run. */
static void count_passed(sim *s, int32_t late, const gy_job_state *before) {
    for (int32_t i = 0; i < late; i++) {
        sim_job *j = &s->job[i];
        if (j->state != SIM_LIVE || !waits(before[i]) || !waits(sim_info(s, j).state) || leader_lives(s, i)) continue;
        j->n_passed++;
        s->event[SIM_BYPASS]++;
        s->event[SIM_BYPASS_LIMIT] += j->n_passed == s->w.sched.max_bypass;
        SIM_CHECK(s, j->n_passed <= s->w.sched.max_bypass, "job %d was passed %d times, at most %d", i, j->n_passed,
                  s->w.sched.max_bypass);
    }
}

/* The waiting job that comes first, -1 = none waits. */
static int32_t first_waiting(const sim *s) {
    int32_t best = -1;
    for (int32_t i = 0; i < s->w.n_job; i++) {
        if (s->job[i].state != SIM_LIVE || !waits(sim_info(s, &s->job[i]).state)) continue;
        int better =
            s->w.sched.policy == GY_SCHED_PRIORITY && s->w.job[i].priority < s->w.job[best < 0 ? 0 : best].priority;
        if (best < 0 || better) best = i;
    }
    return best;
}

/* Is there room for the whole lives, at full depth, of this job and of all that run? */
static int has_ample_room(const sim *s, int32_t job) {
    int32_t n_run = 0, n_seq = 0;
    int64_t need[GY_KV_GROUPS] = {0};
    for (int32_t i = 0; i < s->w.n_job; i++) {
        if (s->job[i].state != SIM_LIVE) continue;
        gy_job_info info = sim_info(s, &s->job[i]);
        n_run += info.slot >= 0;
        n_seq += info.kv_seq >= 0;
        for (int g = 0; g < GY_KV_GROUPS && (info.slot >= 0 || i == job); g++)
            need[g] += gy_kv_blocks_for(&s->w.kv, (gy_kv_group)g, s->w.job[i].n_prompt + s->w.job[i].max_tokens);
    }
    need[GY_KV_CORE] += (int64_t)(s->w.sched.watermark * s->w.kv.n_block[GY_KV_CORE]) + 1;
    return n_run < s->w.sched.max_seqs && n_seq < s->w.kv.max_seqs && need[0] <= s->w.kv.n_block[0] &&
           need[1] <= s->w.kv.n_block[1];
}

static void admit(sim *s) {
    gy_job_state before[SIM_MAX_JOBS] = {GY_JOB_FREE};
    int32_t n_admitted = 0;
    if (s->plant == SIM_PLANT_NO_ADMIT && s->step > 5) return;
    for (int32_t i = 0; i < s->w.n_job; i++)
        if (s->job[i].state == SIM_LIVE) before[i] = sim_info(s, &s->job[i]).state;
    gy_sched_admit(s->sched, s->now);
    int32_t n_gave_way = sim_see_preempted(s);
    SIM_CHECK(s, !n_gave_way || s->w.sched.policy == GY_SCHED_PRIORITY, "fcfs: preempted for a job that waits");
    s->event[SIM_GIVE_WAY] += n_gave_way;
    for (int32_t i = 0; i < s->w.n_job; i++) {
        sim_job *j = &s->job[i];
        if (j->state != SIM_LIVE) continue;
        gy_job_info info = sim_info(s, j);
        if (waits(before[i]) && !waits(info.state)) j->n_passed = 0, n_admitted++;
        if (j->admitted || info.admit_ns == 0) continue;
        SIM_CHECK(s, info.admit_ns == s->now, "job %d: admitted at another time", i);
        j->admitted = 1;
        s->event[SIM_FOLLOW] += s->w.job[i].leader >= 0 && !s->w.prefix_cache && info.n_cached > 0;
        SIM_CHECK(s, info.n_cached < s->w.job[i].n_prompt, "job %d: all of the prompt is cached", i);
        if (s->w.sched.policy == GY_SCHED_FCFS) count_passed(s, i, before);
    }
    int32_t first = first_waiting(s);
    s->progress |= n_admitted > 0;
    SIM_CHECK(s, n_admitted || first < 0 || leader_lives(s, first) || !has_ample_room(s, first),
              "job %d waits, though there is room", first);
}

/* ---- books ---- */

/* Blocks that maps of running sequences show, each once; and what parked ones hold. */
static int32_t blocks_in_maps(const sim *s, gy_kv_group g, int32_t *parked_out) {
    unsigned char seen[SIM_MAX_BLOCKS] = {0};
    int32_t n = 0;
    for (int32_t i = 0; i < s->w.n_job; i++) {
        if (s->job[i].state != SIM_LIVE) continue;
        gy_job_info info = sim_info(s, &s->job[i]);
        if (info.state == GY_JOB_PARKED) *parked_out += gy_kv_seq_blocks(s->kv, g, info.kv_seq);
        if (info.kv_seq < 0 || info.state == GY_JOB_PARKED) continue;
        for (int32_t d = 0; d < (g == GY_KV_CORE ? s->w.shape.n_plane : 1); d++) {
            const int32_t *map = gy_kv_map(s->kv, g) + gy_kv_map_off(s->kv, g, info.kv_seq, d);
            for (int32_t p = 0; p < info.n_known; p++)
                if (map[p] >= 0 && !seen[map[p] / GY_KV_BLOCK_LEN]) n += seen[map[p] / GY_KV_BLOCK_LEN] = 1;
        }
    }
    return n;
}

static void check_books(sim *s) {
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int32_t parked = 0;
        if (!s->w.kv.n_layer[g]) continue;
        int32_t used = blocks_in_maps(s, (gy_kv_group)g, &parked), park_free = gy_kv_n_park_free(s->kv, (gy_kv_group)g);
        int32_t n_free = gy_kv_n_free(s->kv, (gy_kv_group)g), cached = gy_kv_n_cached(s->kv, (gy_kv_group)g);
        SIM_CHECK(s, n_free + cached + used == s->w.kv.n_block[g],
                  "group %d: %d free + %d cached alone + %d in sequences of %d blocks", g, n_free, cached, used,
                  s->w.kv.n_block[g]);
        SIM_CHECK(s, park_free + parked == s->w.kv.n_park[g], "group %d: %d free + %d parked of %d park blocks", g,
                  park_free, parked, s->w.kv.n_park[g]);
    }
}

static void check_stats(sim *s) {
    gy_sched_stats st;
    int32_t live = 0, flying = 0, n[GY_JOB_DECODE + 1] = {0};
    gy_sched_get_stats(s->sched, &st);
    for (int32_t i = 0; i < s->w.n_job; i++)
        if (s->job[i].state == SIM_LIVE) live++, n[sim_info(s, &s->job[i]).state]++;
    for (int32_t i = 0; i < s->n_flight; i++) flying += sim_flying(s, &s->flight[i]);
    SIM_CHECK(s,
              n[GY_JOB_WAITING] == st.n_waiting && n[GY_JOB_PARKED] == st.n_parked && !n[GY_JOB_FREE] &&
                  n[GY_JOB_PREFILL] + n[GY_JOB_DECODE] == st.n_running,
              "%d waiting + %d parked + %d running of %d jobs", st.n_waiting, st.n_parked, st.n_running, live);
    SIM_CHECK(s, st.n_running <= s->w.sched.max_seqs, "%d jobs run, at most %d", st.n_running, s->w.sched.max_seqs);
    SIM_CHECK(s, flying == st.n_flight, "%d flights, the scheduler has %d", flying, st.n_flight);
    SIM_CHECK(s, (live == 0) == gy_sched_idle(s->sched), "%d jobs, idle %d", live, gy_sched_idle(s->sched));
}

static void check_valid(sim *s) {
    char why[256] = "";
    SIM_CHECK(s, gy_kv_is_valid(s->kv, why, sizeof why), "%s", why);
    SIM_CHECK(s, gy_sched_is_valid(s->sched, why, sizeof why), "%s", why);
    check_books(s);
    check_stats(s);
}

/* ---- a workload ---- */

/* Without coda layers a token that nobody reads ends with its last loop. Others may be held: by min_coda, by no_refill,
 * and prompt logits by those of earlier positions. */
static void end_step(sim *s) {
    int held = 0;
    for (int32_t i = 0; i < s->n_flight; i++) {
        sim_flight *f = &s->flight[i];
        if (!f->left || !sim_flying(s, f)) continue;
        int prompt_logits = sim_wants_prompt_logits(s, f) && !s->job[f->job].logit[f->pos];
        if (!s->w.shape.has_coda && !prompt_logits && f->pos != s->job[f->job].n_known - 1) f->live = 0;
        held |= f->live;
        SIM_CHECK(s, !f->live || s->w.shape.has_coda || s->w.sched.no_refill || s->w.job[f->job].all_logits,
                  "logits are held for nothing");
    }
    s->event[SIM_CODA_HELD] += held && s->w.shape.has_coda;
}

static void step(sim *s) {
    int32_t flight[SIM_MAX_ROWS];
    maybe_cancel(s);
    maybe_preempt(s);
    admit(s);
    sim_enter(s);
    maybe_cancel(s);
    sim_route(s, flight, sim_pass(s, flight));
    maybe_cancel(s);
    sim_coda(s);
    end_step(s);
    check_valid(s);
}

static void take_leak(sim *s) {
    for (int32_t i = 0; i < s->w.n_job && s->plant == SIM_PLANT_LEAK && s->n_plant == 0; i++) {
        gy_job_info info = {0};
        if (s->job[i].state == SIM_LIVE) info = sim_info(s, &s->job[i]);
        if (info.state != GY_JOB_DECODE) continue;
        const int32_t *map = gy_kv_map(s->kv, GY_KV_CORE) + gy_kv_map_off(s->kv, GY_KV_CORE, info.kv_seq, 0);
        gy_kv_block_ref(s->kv, GY_KV_CORE, map[0] / GY_KV_BLOCK_LEN);
        s->n_plant++;
    }
}

/* A step in which nothing moves, nothing arrives and jobs are there would be repeated for ever. */
static void run_steps(sim *s) {
    int32_t still = 0;
    s->budget = 64 + s->w.arrive[s->w.n_job - 1];
    for (;; s->step++) {
        int more = arrivals(s);
        if (!more && gy_sched_idle(s->sched)) return;
        s->now += sim_in(&s->rand, 1, 1000);
        s->progress = 0;
        step(s);
        take_leak(s);
        still = s->progress || more ? 0 : still + 1;
        SIM_CHECK(s, still < 3, "nothing moves");
        SIM_CHECK(s, s->step < s->budget, "not finished after %d steps", s->step);
    }
}

static void check_end(sim *s) {
    gy_sched_stats st;
    gy_prefix_stats px;
    int32_t preempted = 0;
    gy_sched_get_stats(s->sched, &st);
    gy_prefix_get_stats(s->kv, &px);
    s->event[SIM_PARK] += st.n_park;
    s->event[SIM_RESTORE] += st.n_restore;
    s->event[SIM_DROP] += st.n_drop;
    s->event[SIM_RECOMPUTED] += st.n_recomputed_tok;
    s->event[SIM_HIT] += px.n_hit;
    s->event[SIM_PUBLISH] += px.n_publish;
    s->event[SIM_EVICT] += px.n_evict;
    s->event[SIM_STEP] += s->step;
    if (100 * (int64_t)s->step / s->budget > s->event[SIM_BOUND])
        s->event[SIM_BOUND] = 100 * (int64_t)s->step / s->budget;
    for (int32_t i = 0; i < s->w.n_job; i++) preempted += s->job[i].n_preempt;
    if (s->w.sched.reserve_full && s->w.sched.policy == GY_SCHED_FCFS)
        SIM_CHECK(s, preempted == s->n_forced, "reserved in full, but preempted %d times", preempted - s->n_forced);
    if (gy_prefix_enabled(s->kv)) gy_prefix_clear(s->kv);
    check_valid(s);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        if (!s->w.kv.n_layer[g]) continue;
        int32_t n = gy_kv_n_free(s->kv, (gy_kv_group)g), park = gy_kv_n_park_free(s->kv, (gy_kv_group)g);
        SIM_CHECK(s, n == s->w.kv.n_block[g], "group %d: %d of %d blocks are free at the end", g, n,
                  s->w.kv.n_block[g]);
        SIM_CHECK(s, park == s->w.kv.n_park[g], "group %d: %d of %d park blocks are free at the end", g, park,
                  s->w.kv.n_park[g]);
    }
}

static void sim_open(sim *s) {
    static char arena[1]; /* nothing under test touches KV memory */
    void *const arenas[GY_KV_GROUPS] = {arena, arena};
    gy_sched_opts o = s->w.sched;
    gy_err err = {0};
    SIM_CHECK(s, gy_kv_create(&s->w.kv, arenas, &err, &s->kv) == GY_OK, "%s", err.msg);
    if (s->w.prefix_cache) SIM_CHECK(s, gy_prefix_create(s->kv, s->w.shape.n_loop, &err) == GY_OK, "%s", err.msg);
    if (s->w.kv.n_park[GY_KV_CORE]) {
        o.park_copy = sim_park_copy;
        o.restore_copy = sim_restore_copy;
        o.copy_arg = s;
    }
    SIM_CHECK(s, gy_sched_create(&o, s->kv, &err, &s->sched) == GY_OK, "%s", err.msg);
    s->n_flight = gy_sched_n_flight(&o);
    SIM_CHECK(s, s->n_flight >= 1 && s->n_flight <= SIM_MAX_FLIGHTS, "%d flights", s->n_flight);
}

static void sim_reset(sim *s, uint64_t seed, sim_plant plant, int64_t *event) {
    memset(s, 0, sizeof *s);
    sim_make_workload(seed, &s->w);
    s->rand = (sim_rand){.seed = seed + (UINT64_C(1) << 63)};
    s->plant = plant;
    s->event = event;
    s->now = 1000;
    for (int32_t i = 0; i < SIM_MAX_IDS; i++) s->by_id[i] = -1;
    for (int32_t i = 0; i < s->w.n_job; i++) {
        s->job[i].n_known = s->w.job[i].n_prompt;
        memcpy(s->job[i].tok, s->w.want[i].tok, (size_t)s->w.job[i].n_prompt * sizeof(int32_t));
    }
}

static void describe(const sim *s, char *buf, size_t cap) {
    const gy_sched_opts *o = &s->w.sched;
    const gy_kv_config *c = &s->w.kv;
    static const char *const layout[] = {"last_exited", "shared", "cyclic"}, *const how[] = {"auto", "park",
                                                                                             "recompute"};
    snprintf(
        buf, cap,
        "%s:%d, %d loops of %d, boundary %d coda %d, blocks %d %d, park %d %d, seqs %d of %d, rows %d, queue %d, "
        "chunk %d, share %g, no_refill %d, min_coda %d, reserve %d, watermark %g, %s, %s, scan %d, bypass %d, cache "
        "%d, max_logit %d, %d jobs, cancel %d %d, preempt %d",
        layout[c->layout], c->cyclic_k, s->w.shape.n_loop, c->n_loop, s->w.shape.has_boundary, s->w.shape.has_coda,
        c->n_block[0], c->n_block[1], c->n_park[0], c->n_park[1], o->max_seqs, c->max_seqs, o->max_rows, o->max_queue,
        o->prefill_chunk, o->prefill_share, o->no_refill, o->min_coda, o->reserve_full, o->watermark,
        o->policy == GY_SCHED_FCFS ? "fcfs" : "priority", how[o->preempt], o->scan_limit, o->max_bypass,
        s->w.prefix_cache, s->w.max_logit, s->w.n_job, s->w.cancel_percent, s->w.cancel_sampled_percent,
        s->w.preempt_percent);
}

/* An abort or a hang inside the code under test names its seed too. */
static char now_running[64];
static void say_seed(int sig) {
    ssize_t n = write(STDERR_FILENO, now_running, strlen(now_running));
    (void)n;
    if (sig == SIGALRM) {
        static const char hang[] = "test_sim: no end in sight\n";
        n = write(STDERR_FILENO, hang, sizeof hang - 1);
    }
    signal(SIGABRT, SIG_DFL);
    raise(SIGABRT);
}

/* 1: all well. 0: s->why. */
static int sim_run(sim *s, uint64_t seed, sim_plant plant, int64_t *event) {
    snprintf(now_running, sizeof now_running, "test_sim: in workload %llu\n", (unsigned long long)seed);
    alarm(120);
    sim_reset(s, seed, plant, event);
    volatile int ok = 0, guarded = 0;
    if (!setjmp(s->failed)) {
        sim_open(s);
        gy_mem_guard_begin();
        guarded = 1;
        run_steps(s);
        check_end(s);
        ok = 1;
    }
    if (guarded) gy_mem_guard_end();
    gy_sched_destroy(s->sched);
    gy_kv_destroy(s->kv);
    return ok;
}

/* ---- tests ---- */

static const char *const EVENT_TEXT[] = {
#define EVENT_TEXT_OF(name, text) text,
    SIM_EVENTS(EVENT_TEXT_OF)
#undef EVENT_TEXT_OF
};

static void print_events(const int64_t *event) {
    for (int i = 0; i < SIM_N_EVENT; i++) printf("%12lld  %s\n", (long long)event[i], EVENT_TEXT[i]);
}

static int run_many(sim *s, uint64_t first, int64_t n, int64_t *event) {
    char what[640];
    for (int64_t i = 0; i < n; i++) {
        if (sim_run(s, first + (uint64_t)i, SIM_PLANT_NONE, event)) continue;
        describe(s, what, sizeof what);
        fprintf(stderr, "workload %llu failed at step %d: %s\n  (%s)\n  again: test_sim %llu\n",
                (unsigned long long)first + (unsigned long long)i, s->step, s->why, what,
                (unsigned long long)first + (unsigned long long)i);
        return 0;
    }
    return 1;
}

static void random_workloads_equal_each_request_alone(void **state) {
    int64_t event[SIM_N_EVENT] = {0};
    assert_true(run_many(*state, 1, N_WORKLOAD, event));
    printf("%d workloads\n", N_WORKLOAD);
    print_events(event);
    for (int i = 0; i < SIM_N_EVENT; i++)
        if (!event[i]) fail_msg("the workloads cover no case of: %s", EVENT_TEXT[i]);
}

/* The message that the plant has to cause in one of its first workloads, else the simulation is blind. */
static void planted_faults_are_found(void **state) {
    static const char *const due[SIM_N_PLANT] = {
        [SIM_PLANT_SKIP_WRITE] = "another state",  [SIM_PLANT_STALE_READ] = "another state",
        [SIM_PLANT_OTHER_DEPTH] = "another state", [SIM_PLANT_PARK] = "another state",
        [SIM_PLANT_RESTORE] = "another state",     [SIM_PLANT_EXIT] = "loops, not",
        [SIM_PLANT_SKIP_CODA] = "another output",  [SIM_PLANT_SALT] = "another state",
        [SIM_PLANT_LEAK] = "in sequences of",      [SIM_PLANT_NO_ADMIT] = "nothing moves"};
    sim *s = *state;
    int64_t event[SIM_N_EVENT] = {0};
    for (int p = SIM_PLANT_NONE + 1; p < SIM_N_PLANT; p++) {
        int32_t found = 0;
        for (uint64_t seed = 1; seed <= 300 && !found; seed++)
            found = !sim_run(s, seed, (sim_plant)p, event) && strstr(s->why, due[p]);
        if (!found) fail_msg("planted fault %d was not found as \"%s\"", p, due[p]);
    }
}

static int setup(void **state) {
    *state = malloc(sizeof(sim));
    signal(SIGABRT, say_seed);
    signal(SIGALRM, say_seed);
    return *state ? 0 : -1;
}

static int teardown(void **state) {
    alarm(0);
    free(*state);
    return 0;
}

static int replay(int argc, char **argv) {
    int64_t event[SIM_N_EVENT] = {0}, n = argc > 2 ? atoll(argv[2]) : 1;
    uint64_t first = strtoull(argv[1], NULL, 10);
    void *s = NULL;
    char what[640];
    if (setup(&s)) return 2;
    int ok = run_many(s, first, n, event);
    describe(s, what, sizeof what);
    printf("%s\n", what);
    print_events(event);
    teardown(&s);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_workloads_equal_each_request_alone),
        cmocka_unit_test(planted_faults_are_found),
    };
    if (argc > 1) return replay(argc, argv);
    return cmocka_run_group_tests(tests, setup, teardown);
}
