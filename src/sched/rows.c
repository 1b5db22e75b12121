/* Flights: which tokens enter, which rows a pass and a coda batch are made of, and what follows when a row stays,
 * leaves or is done. Everything here costs O(rows of the batch).
 */
#include "sched/sched_int.h"

/* ---- flights ----------------------------------------------------------------------------------------------------- */

static void sched_flight_enter(gy_sched *s, int32_t job, int is_decode, int32_t *out) {
    sched_job *j = &s->job[job];
    GY_CHECK(s->n_flight_free > 0 && j->n_entered < sched_life(j));
    int32_t f = s->flight_free[--s->n_flight_free], pos = j->n_entered++;
    int samples = pos == j->n_known - 1;
    int told = !j->in.all_logits || pos >= j->in.n_prompt || pos < j->n_told;
    s->flight[f] = (sched_flight){.job = job,
                                  .pos = pos,
                                  .where = FLIGHT_QUEUED,
                                  .is_decode = (uint8_t)is_decode,
                                  .wants = (uint8_t)(samples || !told),
                                  .samples = (uint8_t)samples};
    s->n_flying[is_decode]++;
    s->n_prompt_row += !is_decode;
    s->n_recomputed_tok += pos < j->n_seen;
    sched_list_push(&j->flights, s->flight_chain, f);
    sched_list_push(&s->queue[is_decode], s->flight_link, f);
    *out = f;
}

void sched_flight_end(gy_sched *s, int32_t flight) {
    sched_flight *f = &s->flight[flight];
    GY_CHECK(f->where != FLIGHT_FREE);
    for (int32_t i = 0; i < s->n_landed; i++) /* not told yet: admissions only */
        if (s->landed[i] == flight) s->landed[i--] = s->landed[--s->n_landed];
    if (f->where == FLIGHT_QUEUED) sched_list_remove(&s->queue[f->is_decode], s->flight_link, flight);
    if (f->where == FLIGHT_READY) sched_list_remove(&s->ready[f->is_decode], s->flight_link, flight);
    sched_list_remove(&s->job[f->job].flights, s->flight_chain, flight);
    f->where = FLIGHT_FREE;
    s->n_flying[f->is_decode]--;
    s->flight_free[s->n_flight_free++] = flight;
}

static sched_flight *flight_at(const gy_sched *s, int32_t flight, sched_where where) {
    GY_CHECK(flight >= 0 && flight < s->n_flight && s->flight[flight].where == (uint8_t)where);
    return &s->flight[flight];
}

static void rows_clear(gy_sched_rows *r) {
    r->n_row = r->n_decode = r->n_logit = 0;
}

static void rows_add(gy_sched_rows *r, int32_t flight, const sched_flight *f, int32_t slot, int64_t map_off) {
    int32_t i = r->n_row++;
    r->flight[i] = flight;
    r->pos[i] = f->pos;
    r->slot[i] = slot;
    r->map_off[i] = map_off;
    r->n_decode += f->is_decode;
}

/* ---- finished tokens --------------------------------------------------------------------------------------------- */

/* Block rows that are finished and ran at the trained depth all through. */
static void publish(gy_sched *s, sched_job *j) {
    int32_t n = j->n_done < j->n_full ? j->n_done : j->n_full;
    if (n / GY_KV_BLOCK_LEN <= j->n_row || !sched_may_publish(s, j)) return;
    j->n_row = n / GY_KV_BLOCK_LEN;
    gy_prefix_publish(s->kv, &j->in.space, j->in.tok, n, j->kv_seq, &j->cursor);
    /* Whoever waits may share this prompt; its outputs are known to nobody before the job is removed. */
    if (j->state == GY_JOB_PREFILL) s->dirty = 1;
}

static void advance(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    int32_t done = j->flights.n ? s->flight[j->flights.head].pos : j->n_entered;
    if (done != j->n_done) {
        int32_t before = j->n_done;
        j->n_done = done;
        publish(s, j);
        if (j->is_leader && before < sched_whole_rows(j) && done >= sched_whole_rows(j)) s->dirty = 1;
    }
    if (j->flights.n == 0) sched_arm(s, job);
}

static void finish(gy_sched *s, int32_t flight) {
    int32_t job = s->flight[flight].job;
    sched_flight_end(s, flight);
    advance(s, job);
}

/* ---- enter ------------------------------------------------------------------------------------------------------- */

/* Products run in tiles of rows, and rows that begin another tile cost as much as all of it: on an H200 a pass of 1024
 * rows of Ouro-1.4B takes 5.4 ms, one of 1026 7.7 ms. So where a share cuts prompts, they and the decode rows, taken as
 * a multiple of DECODE_STEP, fill whole tiles. */
static int32_t fill_tiles(int32_t n_prompt, int32_t n_decode) {
    enum { TILE = 256, DECODE_STEP = 32 };
    int32_t steps = (n_decode + DECODE_STEP - 1) / DECODE_STEP * DECODE_STEP;
    int32_t tiled = (n_prompt + n_decode) / TILE * TILE - steps;
    return tiled >= n_prompt / 2 && tiled > 0 && tiled < n_prompt ? tiled : n_prompt;
}

/* Prompt rows of a pass in which so many decode rows wait (sched.h, a pass). */
static int32_t prompt_budget(const gy_sched *s, int32_t n_decode) {
    int32_t max = s->o.max_rows;
    if (n_decode == 0) return max;
    int32_t share = (int32_t)(s->o.prefill_share * max), left = max - n_decode;
    if (share < 1) share = 1;
    if (left < 1) left = max > 1;
    return fill_tiles(left < share ? left : share, n_decode);
}

/* The next token of the job takes a boundary slot and flies. When blocks are short the job itself may have to go. */
static void enter_token(gy_sched *s, int32_t job, int is_decode) {
    sched_job *j = &s->job[job];
    int32_t slot = -1, flight;
    if (s->o.has_boundary)
        while (gy_kv_claim(s->kv, GY_KV_BOUNDARY, j->kv_seq, 0, j->n_entered, &slot) != GY_OK) {
            sched_shortage(s);
            if (!sched_runs(j)) return;
        }
    sched_flight_enter(s, job, is_decode, &flight);
    rows_add(&s->enter, flight, &s->flight[flight], slot,
             s->o.has_boundary ? gy_kv_map_off(s->kv, GY_KV_BOUNDARY, j->kv_seq, 0) : 0);
    sched_arm(s, job);
}

static int batch_has_room(const gy_sched *s) {
    return s->enter.n_row < s->o.max_rows;
}

static void enter_decode(gy_sched *s) {
    if (!s->cohort_open) return;
    while (s->pending.n && batch_has_room(s)) enter_token(s, s->pending.head, 1);
}

/* Prompt tokens may fly as long as they leave room for every decode row. */
static int prompt_may_fly(const gy_sched *s) {
    return s->ring.n && batch_has_room(s) && s->n_flying[0] < 2 * s->o.max_rows;
}

/* Who is due sooner may go first now. */
static void chunk_end(gy_sched *s) {
    int32_t job = s->ring.head;
    s->turn_left = s->o.prefill_chunk;
    sched_list_remove(&s->ring, s->job_link, job);
    sched_ring_insert(s, job);
}

static void enter_prompt(gy_sched *s, int32_t budget) {
    while (prompt_may_fly(s) && s->queue[0].n < budget) {
        if (s->turn_left == 0) chunk_end(s);
        s->turn_left--;
        enter_token(s, s->ring.head, 0);
    }
}

/* Wavefront: the rest of the only prompt that is left, if its earlier tokens fly and it cannot fill a pass by itself.
 */
static void enter_tail(gy_sched *s, int32_t budget) {
    if (s->ring.n != 1 || s->serial) return;
    int32_t job = s->ring.head;
    const sched_job *j = &s->job[job];
    if (j->flights.n == 0 || sched_prompt_end(j) - j->n_entered >= budget) return;
    while (prompt_may_fly(s) && s->ring.head == job) enter_token(s, job, 0);
}

const gy_sched_rows *gy_sched_enter(gy_sched *s) {
    if (!s->entering) s->cohort_open = !s->o.no_refill || s->n_flying[1] == 0;
    s->entering = 1;
    rows_clear(&s->enter);
    s->building = &s->enter;
    enter_decode(s);
    int32_t n_decode = s->queue[1].n + (s->cohort_open ? s->pending.n : 0);
    int32_t budget = prompt_budget(s, n_decode);
    enter_prompt(s, budget);
    enter_tail(s, budget);
    s->building = NULL;
    s->entering = s->enter.n_row > 0;
    return &s->enter;
}

/* ---- pass -------------------------------------------------------------------------------------------------------- */

/* The head of a queue becomes a row; when blocks are short its job may have to go instead, and the flight with it. */
static void flight_take(gy_sched *s, int is_decode) {
    int32_t flight = s->queue[is_decode].head, slot;
    sched_flight *f = &s->flight[flight];
    const sched_job *j = &s->job[f->job];
    sched_list_remove(&s->queue[is_decode], s->flight_link, flight);
    f->where = FLIGHT_PASS;
    while (gy_kv_claim(s->kv, GY_KV_CORE, j->kv_seq, f->loops, f->pos, &slot) != GY_OK) {
        sched_shortage(s);
        if (!sched_runs(j)) return;
    }
    rows_add(&s->pass, flight, f, slot, gy_kv_map_off(s->kv, GY_KV_CORE, j->kv_seq, f->loops));
}

const gy_sched_rows *gy_sched_pass(gy_sched *s) {
    int32_t n_prompt = prompt_budget(s, s->queue[1].n);
    if (n_prompt > s->queue[0].n) n_prompt = s->queue[0].n;
    int32_t n_decode = s->o.max_rows - n_prompt;
    rows_clear(&s->pass);
    s->entering = 0;
    s->building = &s->pass;
    while (s->queue[1].n && s->pass.n_row < n_decode) flight_take(s, 1);
    while (s->queue[0].n && s->pass.n_row - s->pass.n_decode < n_prompt) flight_take(s, 0);
    s->building = NULL;
    return &s->pass;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

void gy_sched_stay(gy_sched *s, int32_t flight) {
    sched_flight *f = flight_at(s, flight, FLIGHT_PASS);
    f->loops++;
    GY_CHECK(f->loops < s->kc->n_loop);
    f->where = FLIGHT_QUEUED;
    sched_list_push(&s->queue[f->is_decode], s->flight_link, flight);
}

/* Coda layers attend to earlier positions; prompt logits are reported in the order of the prompt. */
static int in_order(const gy_sched *s, const sched_flight *f) {
    return s->o.has_coda || (f->wants && s->job[f->job].in.all_logits);
}

/* May the coda of this flight run, as far as earlier positions are concerned? */
static int is_due(const gy_sched *s, int32_t flight) {
    int32_t prev = s->flight_chain[flight].prev;
    return prev < 0 || s->flight[prev].where == FLIGHT_READY || s->flight[prev].where == FLIGHT_CODA;
}

static void make_ready(gy_sched *s, int32_t flight) {
    sched_flight *f = &s->flight[flight];
    f->where = FLIGHT_READY;
    sched_list_push(&s->ready[f->is_decode], s->flight_link, flight);
}

/* Flights from this one on that wait for earlier positions alone, and for those no longer. */
static void release_held(gy_sched *s, int32_t flight) {
    while (flight >= 0 && s->flight[flight].where == FLIGHT_HELD && is_due(s, flight)) {
        make_ready(s, flight);
        flight = s->flight_chain[flight].next;
    }
}

static void wait_for_coda(gy_sched *s, int32_t flight) {
    s->flight[flight].where = FLIGHT_HELD;
    if (in_order(s, &s->flight[flight]))
        release_held(s, flight);
    else
        make_ready(s, flight);
}

/* What it ran decides what may be shared of its job. */
static void note_depth(gy_sched *s, const sched_flight *f) {
    sched_job *j = &s->job[f->job];
    int is_full = f->loops == s->o.n_loop;
    GY_CHECK(is_full || !j->in.full_prompt || f->pos >= j->in.n_prompt - 1);
    if (!is_full && f->pos < j->n_full) j->n_full = f->pos;
}

/* Whichever way the flight goes, one behind it may have waited for that: also behind a row whose prompt logits were
 * told before a preemption and that now ends without a coda. */
void gy_sched_leave(gy_sched *s, int32_t flight, int coda_done) {
    sched_flight *f = flight_at(s, flight, FLIGHT_PASS);
    int32_t next = s->flight_chain[flight].next;
    gy_kv_exit(s->kv, s->job[f->job].kv_seq, f->pos, f->loops++);
    note_depth(s, f);
    if (coda_done) {
        GY_CHECK(!in_order(s, f) || s->flight_chain[flight].prev < 0);
        f->where = FLIGHT_CODA;
    } else if (s->o.has_coda || f->wants) {
        wait_for_coda(s, flight);
    } else {
        finish(s, flight);
    }
    release_held(s, next);
}

/* ---- prompts computed elsewhere, and for elsewhere --------------------------------------------------------------- */

void sched_land(gy_sched *s, int32_t job) {
    sched_job *j = &s->job[job];
    GY_CHECK(s->n_flight_free > 0 && s->n_landed < s->o.max_seqs);
    int32_t f = s->flight_free[--s->n_flight_free];
    s->flight[f] = (sched_flight){
        .job = job, .pos = j->in.n_prompt - 1, .loops = s->o.n_loop, .where = FLIGHT_HELD, .wants = 1, .samples = 1};
    s->n_flying[0]++;
    sched_list_push(&j->flights, s->flight_chain, f);
    publish(s, j);
    s->landed[s->n_landed++] = f;
    make_ready(s, f);
}

/* One that was preempted in the same admission is gone. */
int32_t gy_sched_landed(gy_sched *s) {
    return s->n_landed ? s->landed[--s->n_landed] : -1;
}

void sched_prompt_done(gy_sched *s, int32_t flight) {
    const sched_flight *f = flight_at(s, flight, FLIGHT_CODA);
    GY_CHECK(f->samples && f->pos == s->job[f->job].in.n_prompt - 1);
    finish(s, flight);
}

void gy_sched_planes_done(const gy_sched *s, int32_t job, int32_t *done) {
    const sched_job *j = &s->job[job];
    int32_t depth = 0;
    if (s->serial) {
        for (; depth < s->o.n_loop; depth++) done[depth] = j->n_done;
        return;
    }
    /* Earlier tokens have done at least as many loops: the chain is walked from its end, whose loops are the fewest. */
    for (int32_t d = 0; d < s->o.n_loop; d++) done[d] = j->n_entered;
    for (int32_t f = j->flights.tail; f >= 0; f = s->flight_chain[f].prev) {
        const sched_flight *x = &s->flight[f];
        int32_t loops =
            x->where == FLIGHT_HELD || x->where == FLIGHT_READY || x->where == FLIGHT_CODA ? s->o.n_loop : x->loops;
        for (depth = loops; depth < s->o.n_loop; depth++) done[depth] = x->pos;
    }
}

/* ---- coda -------------------------------------------------------------------------------------------------------- */

static void add_boundary_row(gy_sched *s, int32_t flight) {
    const sched_flight *f = &s->flight[flight];
    int64_t off = 0;
    int32_t slot = -1;
    if (s->o.has_boundary) {
        off = gy_kv_map_off(s->kv, GY_KV_BOUNDARY, s->job[f->job].kv_seq, 0);
        slot = gy_kv_map(s->kv, GY_KV_BOUNDARY)[off + f->pos];
    }
    rows_add(&s->coda, flight, f, slot, off);
}

const gy_sched_rows *gy_sched_judge(gy_sched *s, const int32_t *flight, int32_t n) {
    GY_CHECK(n <= s->o.max_rows);
    rows_clear(&s->coda);
    for (int32_t i = 0; i < n; i++) {
        flight_at(s, flight[i], FLIGHT_PASS);
        s->coda.logit[s->coda.n_logit++] = i;
        add_boundary_row(s, flight[i]);
    }
    return &s->coda;
}

/* no_refill: a cohort's rows leave together. */
static int decode_may_leave(const gy_sched *s) {
    return !s->o.no_refill || s->queue[1].n == 0;
}

static void take_ready(gy_sched *s, int is_decode, int32_t max_logit) {
    while (s->ready[is_decode].n && s->coda.n_row < s->o.max_rows) {
        int32_t flight = s->ready[is_decode].head;
        sched_flight *f = &s->flight[flight];
        if (f->wants && s->coda.n_logit == max_logit) return;
        sched_list_remove(&s->ready[is_decode], s->flight_link, flight);
        f->where = FLIGHT_CODA;
        if (f->wants) s->coda.logit[s->coda.n_logit++] = s->coda.n_row;
        add_boundary_row(s, flight);
    }
}

/* Once open it stays so until all that is ready has gone: max_rows and max_logit may split what min_coda let through.
 */
static int coda_may_run(gy_sched *s) {
    int32_t n = s->ready[0].n + (decode_may_leave(s) ? s->ready[1].n : 0);
    int nothing_else = s->queue[0].n + s->queue[1].n == 0;
    if (!s->o.has_coda || n >= s->o.min_coda || nothing_else) s->coda_open = 1;
    if (n == 0) s->coda_open = 0;
    return s->coda_open;
}

const gy_sched_rows *gy_sched_coda(gy_sched *s, int32_t max_logit) {
    GY_CHECK(max_logit >= 1);
    rows_clear(&s->coda);
    if (!coda_may_run(s)) return &s->coda;
    if (decode_may_leave(s)) take_ready(s, 1, max_logit);
    take_ready(s, 0, max_logit);
    return &s->coda;
}

int gy_sched_coda_waits(const gy_sched *s) {
    return s->ready[0].n + s->ready[1].n > 0;
}

void gy_sched_done(gy_sched *s, int32_t flight) {
    const sched_flight *f = flight_at(s, flight, FLIGHT_CODA);
    GY_CHECK(!f->samples);
    finish(s, flight);
}

void gy_sched_sampled(gy_sched *s, int32_t flight) {
    sched_flight *f = flight_at(s, flight, FLIGHT_CODA);
    int32_t job = f->job;
    sched_job *j = &s->job[job];
    GY_CHECK(f->samples);
    sched_flight_end(s, flight);
    j->n_known++;
    j->has_read = j->state == GY_JOB_PREFILL;
    advance(s, job);
}

/* ---- what can be asked ------------------------------------------------------------------------------------------- */

static const sched_flight *flying(const gy_sched *s, int32_t flight) {
    GY_CHECK(flight >= 0 && flight < s->n_flight && s->flight[flight].where != FLIGHT_FREE);
    return &s->flight[flight];
}

int32_t gy_sched_flight_job(const gy_sched *s, int32_t flight) {
    return flying(s, flight)->job;
}

int32_t gy_sched_flight_pos(const gy_sched *s, int32_t flight) {
    return flying(s, flight)->pos;
}

int32_t gy_sched_flight_loops(const gy_sched *s, int32_t flight) {
    return flying(s, flight)->loops;
}

int gy_sched_flight_samples(const gy_sched *s, int32_t flight) {
    return flying(s, flight)->samples;
}
