/* One step of the engine: enter, pass, route, coda, sample. Drawn in engine_int.h. Everything here works on arrays
 * sized at open; nothing allocates.
 */
#include "engine/engine_int.h"

#include "base/clock.h"

/* ---- flights ---------------------------------------------------------------------------------------------------- */

static void fifo_push(gy_engine *e, int32_t f) {
    e->fifo[(e->fifo_head + e->fifo_len++) % e->o.max_rows] = f;
}

static int32_t fifo_pop(gy_engine *e) {
    int32_t f = e->fifo[e->fifo_head];
    e->fifo_head = (e->fifo_head + 1) % e->o.max_rows;
    e->fifo_len--;
    return f;
}

static void flight_free(gy_engine *e, int32_t f) {
    e->running[e->flight[f].slot].n_flight--;
    e->free_flight[e->n_free_flight++] = f;
    e->n_flight--;
}

void gy_engine_drop_flights(gy_engine *e, int32_t slot) {
    if (!e->running[slot].n_flight) return;
    for (int32_t n = e->fifo_len; n > 0; n--) { /* once round, order kept */
        int32_t f = fifo_pop(e);
        if (e->flight[f].slot == slot)
            flight_free(e, f);
        else
            fifo_push(e, f);
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < e->n_coda_wait; i++) {
        int32_t f = e->coda_wait[i];
        if (e->flight[f].slot == slot)
            flight_free(e, f);
        else
            e->coda_wait[kept++] = f;
    }
    e->n_coda_wait = kept;
}

/* The rule a token obeys: the request's for tokens that are read out after the prompt (and, if it says so, in it), full
 * depth for the others. select reads out at the prompt's last token too (ouro.md, leaving early). A trace says nothing
 * about prompt tokens but that they run at full depth (engine.h). */
static gy_exit_rule rule_for(const gy_engine *e, const gy_req *q, int is_decode, int is_last) {
    const gy_exit_rule *r = &q->r.exit;
    int in_prompt = r->on_prompt && r->kind != GY_EXIT_TRACE;
    if (is_decode || in_prompt || (r->kind == GY_EXIT_SELECT && is_last)) return *r;
    gy_exit_rule full;
    gy_exit_rule_default(&full, e->m->d.n_loop);
    return full;
}

/* ---- enter ------------------------------------------------------------------------------------------------------ */

/* Takes the next token of a running slot into flight and into row i of the batch. */
static void enter_row(gy_engine *e, int32_t slot, int32_t i) {
    gy_running *u = &e->running[slot];
    const gy_req *q = u->req;
    GY_CHECK(e->n_free_flight > 0); /* engine_int.h, capacities */
    int32_t pos = u->n_entered++, f = e->free_flight[--e->n_free_flight];
    int is_decode = pos >= q->r.n_prompt, is_last = pos == q->r.n_prompt - 1;
    e->n_flight++;
    u->n_flight++;
    e->flight[f] = (gy_flight){
        .slot = slot, .pos = pos, .wants_logits = is_decode || is_last, .rule = rule_for(e, q, is_decode, is_last)};
    gy_exit_begin(&e->flight[f].exit);
    e->row_flight[i] = e->row_state[i] = f;
    e->row_pos[i] = pos;
    e->row_id[i] = is_decode ? u->pending : q->r.prompt[pos];
    e->row_seed[i] = q->r.latent_seed;
    e->row_zero[i] = !q->r.latent_noise;
    if (is_decode) u->pending = -1;
    if (gy_desc_boundary_layers(&e->m->d)) {
        gy_status st = gy_kv_claim(e->kv, GY_KV_BOUNDARY, u->kv_seq, 0, pos, &e->row_slot[i]);
        GY_CHECK(st == GY_OK); /* reserved at admission */
        e->row_off[i] = gy_kv_map_off(e->kv, GY_KV_BOUNDARY, u->kv_seq, 0);
    }
}

static void run_prelude(gy_engine *e, int32_t n_row) {
    gy_loop_batch b = {
        .n_row = n_row, .state = e->row_state, .pos = e->row_pos, .slot = e->row_slot, .map_off = e->row_off};
    gy_loop_prelude(e->loop, &b, &(gy_loop_entry){.ids = e->row_id, .seed = e->row_seed, .zero = e->row_zero});
    for (int32_t i = 0; i < n_row; i++) fifo_push(e, e->row_flight[i]);
}

/* May the next token of this slot enter? Decode tokens always; prompt tokens while the rows of a pass are not used up,
 * one at a time under the layouts that need it. */
static int can_enter(const gy_engine *e, const gy_running *u) {
    if (!u->req) return 0;
    if (u->n_entered >= u->req->r.n_prompt) return u->pending >= 0;
    if (gy_kv_position_serial(gy_kv_get_config(e->kv)) && u->n_flight) return 0;
    return e->n_flight < e->o.max_rows;
}

static void enter(gy_engine *e) {
    int32_t n_row = 0;
    for (int pass_prompts = 0; pass_prompts < 2; pass_prompts++) /* decode tokens first */
        for (int32_t slot = 0; slot < e->o.max_seqs; slot++)
            while (can_enter(e, &e->running[slot]) &&
                   (pass_prompts || e->running[slot].n_entered >= e->running[slot].req->r.n_prompt)) {
                e->stats.n_prompt_tok += e->running[slot].n_entered < e->running[slot].req->r.n_prompt;
                enter_row(e, slot, n_row++);
            }
    run_prelude(e, n_row);
}

/* ---- sample and finish ------------------------------------------------------------------------------------------ */

static int ends_text(const gy_engine *e, const gy_request *r, int32_t id) {
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return 1;
    for (int32_t i = 0; i < e->m->d.n_eos && !r->ignore_eos; i++)
        if (e->m->d.eos[i] == id) return 1;
    return 0;
}

static void deliver(gy_engine *e, int32_t slot, int32_t loops) {
    gy_running *u = &e->running[slot];
    gy_req *q = u->req;
    int32_t id = e->sampled.id, index = q->n_output++;
    if (!index) q->first_token_ns = gy_clock_ns();
    e->stats.n_output_tok++;
    e->stats.n_loop_sum += loops;
    gy_verdict v = GY_CONTINUE;
    if (q->r.on_token)
        v = q->r.on_token(
            q->r.arg,
            &(gy_token_event){.request = q->id, .index = index, .token = id, .loops = loops, .sampled = &e->sampled});
    if (v == GY_STOP || ends_text(e, &q->r, id))
        gy_engine_finish(e, slot, GY_FINISH_STOP, NULL);
    else if (q->n_output == q->r.max_tokens)
        gy_engine_finish(e, slot, GY_FINISH_LENGTH, NULL);
    else
        u->pending = id;
}

/* The flight's logits are there: it ends here, and so may its request. */
static void sample_flight(gy_engine *e, int32_t f, const float *logits) {
    gy_flight fl = e->flight[f];
    const gy_req *q = e->running[fl.slot].req;
    int32_t loops = fl.rule.kind == GY_EXIT_SELECT ? fl.exit.selected : fl.exit.loops;
    flight_free(e, f);
    gy_err err;
    if (gy_sample_row(e->sampler, logits, &q->r.sample, fl.pos + 1, &err, &e->sampled) == GY_OK)
        deliver(e, fl.slot, loops);
    else
        gy_engine_finish(e, fl.slot, GY_FINISH_ERROR, &err);
}

/* ---- coda ------------------------------------------------------------------------------------------------------- */

static int32_t select_state(const gy_engine *e, int32_t slot) {
    return e->o.max_rows + slot;
}

/* Row i of a coda batch reads flight f. */
static void coda_row(gy_engine *e, int32_t f, int32_t i) {
    const gy_flight *fl = &e->flight[f];
    int selected_earlier = fl->rule.kind == GY_EXIT_SELECT && fl->exit.selected && fl->exit.selected < fl->exit.loops;
    e->row_flight[i] = f;
    e->row_state[i] = selected_earlier ? select_state(e, fl->slot) : f;
    e->row_pos[i] = fl->pos;
    if (gy_desc_boundary_layers(&e->m->d)) {
        e->row_off[i] = gy_kv_map_off(e->kv, GY_KV_BOUNDARY, e->running[fl->slot].kv_seq, 0);
        e->row_slot[i] = gy_kv_map(e->kv, GY_KV_BOUNDARY)[e->row_off[i] + fl->pos];
    }
}

static const float *run_coda(gy_engine *e, int32_t n_row, int32_t n_logit) {
    gy_loop_batch b = {
        .n_row = n_row, .state = e->row_state, .pos = e->row_pos, .slot = e->row_slot, .map_off = e->row_off};
    return gy_loop_coda(e->loop, &b, e->row_logit, n_logit);
}

/* Runs the coda of rows 0..n_row and ends their flights; rows that want logits are sampled. */
static void finish_coda(gy_engine *e, int32_t n_row, int32_t n_logit) {
    const float *logits = run_coda(e, n_row, n_logit);
    for (int32_t i = 0, k = 0; i < n_row; i++) {
        int32_t f = e->row_flight[i];
        if (k < n_logit && e->row_logit[k] == i)
            sample_flight(e, f, logits + (size_t)k++ * (size_t)e->m->d.n_vocab);
        else
            flight_free(e, f);
    }
}

/* A flight may run its coda when all earlier positions have: coda layers attend to them. Without coda layers only the
 * rows that want logits need one. */
static int coda_ready(const gy_engine *e, const gy_flight *fl, int32_t n_coda) {
    return !e->m->d.n_layer[GY_CODA] || fl->pos == n_coda;
}

/* One batch of what is ready in coda_wait; returns the number of flights that left it. */
static int32_t coda_batch(gy_engine *e) {
    int32_t n_row = 0, n_logit = 0, kept = 0, i = 0, has_layers = e->m->d.n_layer[GY_CODA] > 0, gone = 0;
    for (; i < e->n_coda_wait; i++) {
        int32_t f = e->coda_wait[i];
        gy_flight *fl = &e->flight[f];
        gy_running *u = &e->running[fl->slot];
        if (fl->wants_logits && n_logit == e->max_logit) break;
        if (!coda_ready(e, fl, u->n_coda)) {
            e->coda_wait[kept++] = f;
            continue;
        }
        u->n_coda = fl->pos + 1;
        gone++;
        if (!has_layers && !fl->wants_logits) {
            flight_free(e, f);
            continue;
        }
        if (fl->wants_logits) e->row_logit[n_logit++] = n_row;
        coda_row(e, f, n_row++);
    }
    for (; i < e->n_coda_wait; i++) e->coda_wait[kept++] = e->coda_wait[i];
    e->n_coda_wait = kept;
    finish_coda(e, n_row, n_logit);
    return gone;
}

static void coda(gy_engine *e) {
    while (e->n_coda_wait && coda_batch(e) > 0) {
    }
}

/* ---- pass and routing ------------------------------------------------------------------------------------------- */

static int32_t take_rows(gy_engine *e) {
    int32_t n_row = e->fifo_len;
    for (int32_t i = 0; i < n_row; i++) {
        int32_t f = fifo_pop(e);
        const gy_flight *fl = &e->flight[f];
        int32_t seq = e->running[fl->slot].kv_seq, depth = fl->exit.loops;
        gy_status st = gy_kv_claim(e->kv, GY_KV_CORE, seq, depth, fl->pos, &e->row_slot[i]);
        GY_CHECK(st == GY_OK); /* reserved at admission */
        e->row_flight[i] = e->row_state[i] = f;
        e->row_pos[i] = fl->pos;
        e->row_off[i] = gy_kv_map_off(e->kv, GY_KV_CORE, seq, depth);
    }
    return n_row;
}

static void run_pass(gy_engine *e, int32_t n_row) {
    int gate = 0, latent = 0;
    for (int32_t i = 0; i < n_row; i++) {
        gate |= gy_exit_needs_gate(&e->flight[e->row_flight[i]].rule);
        latent |= gy_exit_needs_latent(&e->flight[e->row_flight[i]].rule);
    }
    gy_loop_batch b = {
        .n_row = n_row, .state = e->row_state, .pos = e->row_pos, .slot = e->row_slot, .map_off = e->row_off};
    gy_loop_pass(e->loop, &b, gate ? e->row_gate : NULL, latent ? e->row_latent : NULL);
    e->stats.n_pass++;
    e->stats.n_row += n_row;
}

static gy_exit_verdict step_exit(gy_engine *e, int32_t f, float gate, double latent, const float *logits) {
    gy_flight *fl = &e->flight[f];
    const gy_req *q = e->running[fl->slot].req;
    gy_exit_obs o = {.gate = gate,
                     .latent = latent,
                     .logits = logits,
                     .prev_logp = q->prev_logp,
                     .n_vocab = e->m->d.n_vocab,
                     .trace_loops = fl->rule.kind == GY_EXIT_TRACE ? q->r.trace[q->n_output] : 0};
    gy_exit_verdict v = gy_exit_step(&fl->rule, &fl->exit, &o);
    if (fl->rule.kind == GY_EXIT_SELECT && fl->exit.selected == fl->exit.loops && fl->wants_logits)
        gy_loop_copy_state(e->loop, f, select_state(e, fl->slot));
    if (v == GY_EXIT_LEAVE) gy_kv_exit(e->kv, e->running[fl->slot].kv_seq, fl->pos, fl->exit.loops - 1);
    return v;
}

static void route_row(gy_engine *e, int32_t f, float gate, double latent) {
    if (step_exit(e, f, gate, latent, NULL) == GY_EXIT_LEAVE)
        e->coda_wait[e->n_coda_wait++] = f;
    else
        fifo_push(e, f);
}

/* Rows whose rule looks at the next-token distribution: the coda runs after each loop, and when the row leaves, its
 * logits are there already. Coda layers rewrite the row's boundary slot each time; the last one stays. n is at most
 * max_logit. */
static void route_by_logits(gy_engine *e, const int32_t *flights, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        coda_row(e, flights[i], i);
        e->row_logit[i] = i;
    }
    const float *logits = run_coda(e, n, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t f = e->row_flight[i];
        const float *row = logits + (size_t)i * (size_t)e->m->d.n_vocab;
        if (step_exit(e, f, 0.0f, 0.0, row) == GY_EXIT_LEAVE) {
            e->running[e->flight[f].slot].n_coda = e->flight[f].pos + 1;
            sample_flight(e, f, row);
        } else {
            fifo_push(e, f);
        }
    }
}

static void route(gy_engine *e, int32_t n_row) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_row; i++) {
        int32_t f = e->row_flight[i];
        if (gy_exit_needs_logits(&e->flight[f].rule))
            e->by_logits[n++] = f;
        else
            route_row(e, f, e->row_gate[i], e->row_latent[i]);
    }
    for (int32_t i = 0; i < n; i += e->max_logit) {
        int32_t len = n - i < e->max_logit ? n - i : e->max_logit;
        route_by_logits(e, e->by_logits + i, len);
    }
}

gy_status gy_engine_step(gy_engine *e, gy_err *err) {
    gy_engine_admit(e);
    if (!e->n_running) return GY_DONE;
    enter(e);
    int32_t n_row = take_rows(e);
    run_pass(e, n_row);
    route(e, n_row);
    coda(e);
    e->stats.n_step++;
    return gy_loop_sync(e->loop, err);
}
