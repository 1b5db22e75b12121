/* One step of the engine: the scheduler's plan carried out. enter, pass, route, coda, sample. Everything here works on
 * arrays sized at open; nothing allocates. Arrays of a gy_sched_rows are valid only until the scheduler is told
 * something, so what outlives that is copied first.
 */
#include "engine/engine_int.h"

#include "base/clock.h"

#include <string.h>

enum { MAX_IDLE = 1000 }; /* steps that may do nothing in a row (preempted rows) before it is called a bug */

static gy_choice *choice_of(const gy_engine *e, int32_t flight) {
    return e->by_job[gy_sched_flight_job(e->sched, flight)];
}

/* ---- enter ------------------------------------------------------------------------------------------------------ */

static gy_exit_rule fixed_rule(int32_t loops) {
    gy_exit_rule r;
    gy_exit_rule_default(&r, loops);
    return r;
}

/* The rule a token obeys: the request's for the token that is sampled from (after the prompt), and in the prompt if it
 * says so; full depth for other prompt tokens. Outputs that a dropped choice computes again run what they ran. select
 * reads out at the prompt's last token too (ouro.md, leaving early). A trace says nothing about prompt tokens. */
static gy_exit_rule rule_for(const gy_engine *e, const gy_choice *c, int32_t pos, int samples) {
    const gy_request *r = &c->req->r;
    int in_prompt = pos < r->n_prompt;
    if (!in_prompt) return samples ? r->exit : fixed_rule(c->depth[pos - r->n_prompt]);
    if (r->exit.on_prompt && r->exit.kind != GY_EXIT_TRACE) return r->exit;
    if (r->exit.kind == GY_EXIT_SELECT && pos == r->n_prompt - 1)
        return samples ? r->exit : fixed_rule(r->exit.max_loops);
    return fixed_rule(e->m->d.n_loop);
}

static uint32_t shows(const gy_exit_rule *rule, int log_gate) {
    return (gy_exit_needs_gate(rule) ? GY_SHOW_GATE : 0) | (gy_exit_needs_latent(rule) ? GY_SHOW_LATENT : 0) |
           (gy_exit_needs_logits(rule) ? GY_SHOW_LOGITS : 0) | (log_gate ? GY_SHOW_GATE | GY_LOG_GATE : 0);
}

/* Depths that stand before the token starts. trace says how deep the output that is sampled from it is. */
static int32_t settled_depth(const gy_exit_rule *rule, const gy_choice *c) {
    if (rule->kind == GY_EXIT_FIXED) return rule->max_loops;
    return rule->kind == GY_EXIT_TRACE ? c->req->r.trace[c->n_output + c->late] : 0;
}

/* The token at pos, or where the backend finds it. */
static int32_t id_of(const gy_choice *c, int32_t pos) {
    return c->late && pos == c->req->r.n_prompt + c->n_output ? -1 - c->late_row : c->tok[pos];
}

static void enter_row(gy_engine *e, const gy_sched_rows *b, int32_t i) {
    int32_t f = b->flight[i], pos = b->pos[i], samples = gy_sched_flight_samples(e->sched, f);
    gy_choice *c = choice_of(e, f);
    const gy_request *r = &c->req->r;
    gy_exit_rule rule = rule_for(e, c, pos, samples);
    e->flight[f] = (gy_flight){.settled = settled_depth(&rule, c),
                               .pos = pos,
                               .shows = shows(&rule, samples && r->want_gates),
                               .samples = samples,
                               .c = c,
                               .rule = rule};
    gy_exit_begin(&e->flight[f].exit);
    e->row_id[i] = id_of(c, pos);
    e->row_seed[i] = r->latent_seed;
    e->row_zero[i] = !r->latent_noise;
    e->stats.n_prompt_tok += pos < r->n_prompt;
}

static gy_loop_batch batch_of(const gy_sched_rows *b) {
    return (gy_loop_batch){
        .n_row = b->n_row, .state = b->flight, .pos = b->pos, .slot = b->slot, .map_off = b->map_off};
}

static int32_t enter(gy_engine *e) {
    int32_t n = 0;
    for (const gy_sched_rows *b; (b = gy_sched_enter(e->sched))->n_row; n += b->n_row) {
        for (int32_t i = 0; i < b->n_row; i++) enter_row(e, b, i);
        gy_loop_batch batch = batch_of(b);
        int64_t t = gy_clock_ns();
        gy_loop_prelude(e->loop, &batch, &(gy_loop_entry){.ids = e->row_id, .seed = e->row_seed, .zero = e->row_zero});
        e->stats.model_ns += gy_clock_ns() - t;
    }
    return n;
}

/* ---- deliver ---------------------------------------------------------------------------------------------------- */

static int32_t stop_id_of(const gy_req *q, int32_t id) {
    for (int32_t i = 0; i < q->n_ends; i++)
        if (q->ends[i] == id) return id;
    return -1;
}

static gy_verdict tell_token(const gy_engine *e, const gy_choice *c, const gy_logit_item *it) {
    const gy_request *r = &c->req->r;
    if (!r->on_token) return GY_CONTINUE;
    gy_token_event ev = {.request = c->req->id,
                         .choice = c->index,
                         .index = c->n_output - 1,
                         .token = it->out.id,
                         .loops = it->loops,
                         .sampled = &it->out};
    if (r->want_gates) {
        ev.gates = e->gate_log + (size_t)it->flight * (size_t)e->depth;
        ev.n_gate = e->flight[it->flight].n_gate;
    }
    return r->on_token(r->arg, &ev);
}

static void note_token(const gy_logit_item *it) {
    gy_choice *c = it->c;
    c->tok[c->req->r.n_prompt + c->n_output++] = it->out.id;
    if (c->counts) gy_counts_add(c->counts, it->out.id);
    if (c->n_output == 1) c->first_token_ns = gy_clock_ns();
}

/* Whether the choice ends with it. */
static int announce(gy_engine *e, gy_logit_item *it) {
    gy_choice *c = it->c;
    e->stats.n_output_tok++;
    e->stats.n_loop_sum += it->loops;
    e->stats.n_exit[gy_stat_depth(it->loops - 1)]++;
    gy_verdict v = tell_token(e, c, it);
    it->stop_id = stop_id_of(c->req, it->out.id);
    int stops = v == GY_STOP || it->stop_id >= 0 || it->is_last;
    it->reason = stops ? GY_FINISH_STOP : GY_FINISH_LENGTH;
    return stops || c->n_output >= c->req->r.max_tokens;
}

/* The token is known from here on; the scheduler hears of it before the callback, which may submit. 1: the choice has
 * ended. */
static int deliver_token(gy_engine *e, gy_logit_item *it) {
    note_token(it);
    gy_sched_sampled(e->sched, it->flight);
    e->n_sampled++;
    if (!announce(e, it)) return 0;
    gy_engine_finish(e, it->c, it->reason, it->stop_id, NULL);
    return 1;
}

static int deliver_prompt(gy_engine *e, const gy_logit_item *it) {
    const gy_request *r = &it->c->req->r;
    gy_sched_done(e->sched, it->flight);
    if (r->on_prompt)
        r->on_prompt(r->arg, &(gy_prompt_event){.request = it->c->req->id, .pos = it->pos + 1, .sampled = &it->out});
    return 0;
}

static int32_t select_state(const gy_engine *e, int32_t flight) {
    gy_job_info info;
    gy_sched_job_info(e->sched, gy_sched_flight_job(e->sched, flight), &info);
    return e->n_flight + info.slot;
}

/* Where a row's state for the coda is: select may have kept an earlier one. */
static int32_t coda_state(const gy_engine *e, int32_t f) {
    const gy_flight *fl = &e->flight[f];
    int kept =
        fl->rule.kind == GY_EXIT_SELECT && fl->exit.selected && fl->exit.selected < fl->exit.loops && fl->samples;
    return kept ? select_state(e, f) : f;
}

/* It has no token. */
static int end_choice(gy_engine *e, gy_logit_item *it) {
    if (it->st == GY_DONE)
        gy_engine_finish(e, it->c, GY_FINISH_STOP, -1, NULL);
    else
        gy_engine_finish(e, it->c, GY_FINISH_ERROR, -1, &it->err);
    return 1;
}

static int deliver_item(gy_engine *e, gy_logit_item *it) {
    if (it->c->req->handoff) {
        gy_handoff_done(e, it, coda_state(e, it->flight));
        return 1;
    }
    if (it->st != GY_OK) return end_choice(e, it);
    return it->samples ? deliver_token(e, it) : deliver_prompt(e, it);
}

void gy_engine_tell(gy_engine *e, gy_logit_item *it) {
    it->ends = 1;
    if (it->st != GY_OK) return;
    note_token(it);
    it->ends = announce(e, it);
}

void gy_engine_end(gy_engine *e, gy_logit_item *it) {
    if (it->st != GY_OK)
        end_choice(e, it);
    else
        gy_engine_finish(e, it->c, it->reason, it->stop_id, NULL);
}

/* A choice that ends takes its other rows of the batch with it. */
static void deliver(gy_engine *e, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const gy_choice *c = e->item[i].c;
        if (!c || !deliver_item(e, &e->item[i])) continue;
        for (int32_t k = i + 1; k < n; k++)
            if (e->item[k].c == c) e->item[k].c = NULL;
    }
}

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

/* A device that failed gives logits that mean nothing: it is asked before anybody is told a token. What was not
 * delivered then stays where it is; the engine is lost. */
int gy_engine_is_lost(gy_engine *e) {
    gy_status st = e->lost.status;
    if (st >= 0) e->lost.status = st = gy_loop_sync(e->loop, &e->lost);
    return st < 0;
}

static void sample_items(gy_engine *e, int32_t n) {
    if (!n) return;
    if (gy_late_draw(e, n)) return;
    gy_engine_sample(e, n);
    if (e->lost.status >= 0) deliver(e, n);
}

static void set_item(gy_engine *e, int32_t i, int32_t f, const float *logits) {
    const gy_flight *fl = &e->flight[f];
    gy_logit_item *it = &e->item[i];
    it->c = fl->c;
    it->flight = f;
    it->pos = fl->pos;
    it->loops = fl->rule.kind == GY_EXIT_SELECT ? fl->exit.selected : fl->exit.loops;
    it->samples = fl->samples;
    it->logits = logits;
    it->row = i;
}

/* ---- coda ------------------------------------------------------------------------------------------------------- */

/* here: the logits are wanted as host memory, which is what it returns; NULL: they stay where the backend draws. */
static const float *run_coda(gy_engine *e, const gy_sched_rows *b, const int32_t *logit, int32_t n_logit, int here) {
    gy_loop_batch batch = batch_of(b);
    size_t room;
    for (int32_t i = 0; i < b->n_row; i++) e->row_state[i] = coda_state(e, b->flight[i]);
    batch.state = e->row_state;
    int64_t t = gy_clock_ns();
    gy_loop_read_out(e->loop, &batch, logit, n_logit);
    const float *logits = NULL;
    if (n_logit && (here || !gy_loop_draw_room(e->loop, &room))) logits = gy_loop_logits(e->loop, 0, n_logit);
    e->stats.model_ns += gy_clock_ns() - t;
    return logits;
}

static int32_t coda(gy_engine *e) {
    int32_t n_row = 0;
    for (;;) {
        if (gy_sched_coda_waits(e->sched)) gy_late_take(e); /* one draw at a time, and its logits stay until then */
        if (e->lost.status < 0) break;
        const gy_sched_rows *b = gy_sched_coda(e->sched, e->o.max_logits);
        if (!b->n_row) break;
        const float *logits = run_coda(e, b, b->logit, b->n_logit, 0);
        int32_t n = b->n_row, n_logit = b->n_logit, k = 0;
        memcpy(e->row_flight, b->flight, (size_t)n * sizeof *e->row_flight);
        memcpy(e->row_logit, b->logit, (size_t)n_logit * sizeof *e->row_logit);
        for (int32_t i = 0; i < n; i++) {
            if (k < n_logit && e->row_logit[k] == i) {
                set_item(e, k, e->row_flight[i], logits ? logits + (size_t)k * (size_t)e->m->d.n_vocab : NULL);
                k++;
            } else {
                gy_sched_done(e->sched, e->row_flight[i]);
            }
        }
        sample_items(e, n_logit);
        n_row += n;
    }
    return n_row;
}

/* ---- pass and routing ------------------------------------------------------------------------------------------- */

/* What a row's rule will look at after this loop: at the last one it looks at nothing. */
static uint32_t shows_now(const gy_flight *fl) {
    int is_last = fl->exit.loops + 1 >= fl->rule.max_loops && !(fl->shows & GY_LOG_GATE);
    return is_last ? fl->shows & GY_SHOW_LOGITS : fl->shows;
}

/* Where it has to be waited for, tokens of the step before are told meanwhile. */
static void run_pass(gy_engine *e, const gy_sched_rows *b) {
    uint32_t show = 0;
    int32_t n_row = b->n_row;
    for (int32_t i = 0; i < n_row; i++) {
        const gy_flight *fl = &e->flight[b->flight[i]];
        show |= shows_now(fl);
        e->stats.n_row_at[i < b->n_decode][gy_stat_depth(fl->exit.loops)]++;
    }
    gy_loop_batch batch = batch_of(b);
    int64_t t = gy_clock_ns();
    gy_loop_pass(e->loop, &batch, (show & GY_SHOW_GATE) != 0, (show & GY_SHOW_LATENT) != 0);
    e->stats.model_ns += gy_clock_ns() - t;
    e->stats.n_pass++;
    e->stats.n_row += n_row;
    memcpy(e->row_flight, b->flight, (size_t)n_row * sizeof *e->row_flight); /* a callback may tell the scheduler */
    if (!(show & (GY_SHOW_GATE | GY_SHOW_LATENT))) return;
    gy_late_tell(e);
    t = gy_clock_ns();
    gy_loop_shown(e->loop, n_row, show & GY_SHOW_GATE ? e->row_gate : NULL,
                  show & GY_SHOW_LATENT ? e->row_latent : NULL);
    e->stats.model_ns += gy_clock_ns() - t;
}

static gy_exit_verdict ask_rule(const gy_engine *e, gy_flight *fl, float gate, double latent, const float *logits) {
    gy_exit_obs o = {
        .gate = gate, .latent = latent, .logits = logits, .prev_logp = fl->c->prev_logp, .n_vocab = e->m->d.n_vocab};
    return gy_exit_step(&fl->rule, &fl->exit, &o);
}

/* A token that leaves is remembered with its depth, so that a dropped choice can repeat it. */
static void remember_depth(const gy_flight *fl) {
    int32_t i = fl->pos - fl->c->req->r.n_prompt;
    if (i >= 0) fl->c->depth[i] = fl->exit.loops;
}

static gy_exit_verdict step_exit(gy_engine *e, int32_t f, float gate, double latent, const float *logits) {
    gy_flight *fl = &e->flight[f];
    gy_exit_verdict v = GY_EXIT_STAY;
    if (!fl->settled)
        v = ask_rule(e, fl, gate, latent, logits);
    else if (++fl->exit.loops == fl->settled)
        v = GY_EXIT_LEAVE;
    if (fl->rule.kind == GY_EXIT_SELECT && fl->exit.selected == fl->exit.loops && fl->samples)
        gy_loop_copy_state(e->loop, f, select_state(e, f));
    if (v == GY_EXIT_LEAVE) remember_depth(fl);
    return v;
}

static void log_gate(gy_engine *e, int32_t f, float gate) {
    gy_flight *fl = &e->flight[f];
    e->gate_log[(size_t)f * (size_t)e->depth + (size_t)fl->n_gate++] = gate;
}

static void route_row(gy_engine *e, int32_t f, float gate, double latent) {
    if (step_exit(e, f, gate, latent, NULL) == GY_EXIT_LEAVE)
        gy_sched_leave(e->sched, f, 0);
    else
        gy_sched_stay(e->sched, f);
}

/* Rows whose rule looks at the next-token distribution: the coda runs after each loop, and when the row leaves, its
 * logits are there already. Coda layers rewrite the row's boundary slot each time; the last one stays. n is at most
 * max_logits. */
static void route_by_logits(gy_engine *e, const int32_t *flights, int32_t n) {
    for (int32_t i = 0; i < n; i++) e->row_logit[i] = i;
    const float *logits = run_coda(e, gy_sched_judge(e->sched, flights, n), e->row_logit, n, 1);
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * (size_t)e->m->d.n_vocab;
        if (step_exit(e, flights[i], 0.0f, 0.0, row) == GY_EXIT_LEAVE) {
            gy_sched_leave(e->sched, flights[i], 1);
            set_item(e, k++, flights[i], row);
        } else {
            gy_sched_stay(e->sched, flights[i]);
        }
    }
    sample_items(e, k);
}

/* Rows of the pass that was run, which stand in row_flight. */
static void route(gy_engine *e, int32_t n_row) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_row; i++) {
        int32_t f = e->row_flight[i];
        if (e->flight[f].shows & GY_LOG_GATE) log_gate(e, f, e->row_gate[i]);
        if (e->flight[f].shows & GY_SHOW_LOGITS)
            e->judged[n++] = f;
        else
            route_row(e, f, e->row_gate[i], e->row_latent[i]);
    }
    for (int32_t i = 0; i < n; i += e->o.max_logits) {
        int32_t len = n - i < e->o.max_logits ? n - i : e->o.max_logits;
        route_by_logits(e, e->judged + i, len);
    }
}

/* Enter, pass, route, what was drawn before, coda; returns the rows that did something. */
static int32_t turn(gy_engine *e) {
    int32_t n = e->n_judging ? gy_late_take(e) : 0;
    n += enter(e);
    const gy_sched_rows *b = gy_sched_pass(e->sched);
    int32_t n_row = b->n_row;
    n += n_row;
    if (n_row) {
        run_pass(e, b);
        route(e, n_row);
    }
    n += gy_late_take(e);
    return n + coda(e);
}

/* Where nothing waits for tokens, a step waits for the end of the one before: the device has one before it, not more.
 */
static int ends_lost(gy_engine *e) {
    const gy_drawn *drawn;
    gy_err err = {0};
    if (!e->runs_ahead) {
        e->done_no = e->step_no;
        return gy_engine_is_lost(e);
    }
    if (e->lost.status >= 0 && !e->n_late) {
        int64_t t = gy_clock_ns();
        if (gy_loop_reached(e->loop, &err, &drawn) < 0) e->lost = err;
        gy_engine_reached(e);
        gy_loop_mark(e->loop);
        e->mark_no = e->step_no;
        e->stats.model_ns += gy_clock_ns() - t;
    }
    return e->lost.status < 0;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

/* A callback may submit, which only appends; it may end no request. The next one is read before the callback all the
 * same, because the request goes with its last choice. */
static void drop_cancelled(gy_engine *e) {
    if (!e->n_cancel) return;
    e->n_cancel = 0;
    for (gy_req *q = e->first, *next; q; q = next) {
        next = q->next;
        if (!q->cancelled) continue;
        for (int32_t k = 0, n = q->n_left; n > 0; k++) {
            if (q->choice[k].job < 0) continue;
            n--;
            gy_engine_finish(e, &q->choice[k], GY_FINISH_CANCELLED, -1, NULL);
        }
    }
}

gy_status gy_engine_step(gy_engine *e, gy_err *err) {
    int64_t t = gy_clock_ns();
    if (e->lost.status < 0) return *err = e->lost, e->lost.status;
    drop_cancelled(e);
    if (gy_sched_idle(e->sched)) return GY_DONE;
    e->step_no++;
    gy_sched_admit(e->sched, t);
    for (int32_t f; (f = gy_sched_landed(e->sched)) >= 0;) gy_handoff_land(e, f, choice_of(e, f));
    int32_t n = 0;
    e->n_sampled = 0;
    for (int32_t k = 0; k < e->o.fuse_loops && !e->n_sampled && e->lost.status >= 0; k++) {
        int32_t done = turn(e);
        n += done;
        if (!done) break;
    }
    if (ends_lost(e)) return *err = e->lost, e->lost.status;
    gy_handoff_tell(e);
    e->stats.n_step++;
    e->n_idle = n || e->n_handoff ? 0 : e->n_idle + 1; /* open imports may hold what the others wait for */
    e->stats.step_ns += gy_clock_ns() - t;
    if (e->n_idle >= MAX_IDLE)
        return gy_err_set(err, GY_E_BUG, "%d steps did nothing although requests wait: please report this", e->n_idle);
    return GY_OK;
}
