/* Tokens that the engine does not wait for. Where the backend draws (token.c) and the next token's embedding can read
 * what it drew, a step ends with the draw queued: the scheduler counts the token as known, the next step enters it and
 * queues its first pass, and only then, while the device is at that, the tokens of the step before are read and told.
 * So the device always has a pass before it when the host comes to think.
 *
 *   step k      ... coda, draw (tokens unknown here), mark
 *   step k + 1  enter: ids -1 - row of the draw; pass queued; rows routed; reached: tokens of step k are told; coda ...
 *
 * Where rows are routed by what the pass shows (gates, latent changes), the host has to wait for it: tokens of step k,
 * which the device had before, are told first (gy_late_tell), while it computes. What follows from them, ends of
 * choices and rows to be computed again, comes where it always does: between a pass and its routing no job may be
 * removed.
 *
 * In between a choice has n_output tokens and one that is late. What nobody may need of it meanwhile: its id (entered
 * by the device; shared prefixes hold finished tokens only, and this one's coda comes after it is told), whether it
 * ends the text (then what flies behind it is removed with the job). Slots that such a flight wrote are written again
 * by whoever gets them, later in the device's order.
 *
 * Not late: draws for which something must be known at once. Logprobs of prompts and exports (the flight stays),
 * gates in the event (they are kept by flight), grammars (their mask is made of the text, and a text may be complete),
 * and everything as long as a request lives whose rule looks at logits: those are drawn in the middle of routing.
 */
#include "engine/engine_int.h"

#include "base/clock.h"

#include <string.h>

static int may_be_late(const gy_logit_item *it) {
    const gy_req *q = it->c->req;
    return it->samples && !it->logits && !q->handoff && !q->r.want_gates && !it->c->text;
}

static void become_late(gy_engine *e, const gy_logit_item *it, int32_t k) {
    gy_choice *c = it->c;
    GY_CHECK(!c->late);
    c->late = 1;
    c->late_row = k;
    c->tok[c->req->r.n_prompt + c->n_output] = 0;
    gy_sched_sampled(e->sched, it->flight);
}

int gy_late_draw(gy_engine *e, int32_t n) {
    if (!e->runs_ahead || e->n_judging || e->n_late) return 0;
    for (int32_t k = 0; k < n; k++)
        if (!may_be_late(&e->item[k])) return 0;
    int64_t t = gy_clock_ns();
    size_t bytes = gy_engine_pack(e, e->item, n);
    int drawn = bytes && gy_loop_draw_later(e->loop, n, bytes);
    e->stats.sample_ns += gy_clock_ns() - t;
    if (!drawn) return 0;
    gy_loop_mark(e->loop);
    e->mark_no = e->step_no; /* all of it: nothing is queued behind a draw that stays late, and if it does not, another
                                mark comes */
    memcpy(e->late, e->item, (size_t)n * sizeof *e->late);
    e->n_late = n;
    e->n_sampled += n;
    for (int32_t k = 0; k < n; k++) become_late(e, &e->late[k], k);
    return 1;
}

/* Waits for what was drawn and tells it; of a device that was lost by then nobody is told anything. */
void gy_late_tell(gy_engine *e) {
    const gy_drawn *drawn;
    gy_err err = {0};
    if (!e->n_late || e->late_is_told || e->lost.status < 0) return;
    int64_t t = gy_clock_ns();
    gy_status st = gy_loop_reached(e->loop, &err, &drawn);
    e->stats.model_ns += gy_clock_ns() - t;
    if (st < 0) {
        e->lost = err;
        return;
    }
    gy_engine_reached(e);
    gy_engine_unpack(e, e->late, e->n_late, drawn);
    e->late_is_told = 1;
    for (int32_t k = 0; k < e->n_late; k++) {
        gy_logit_item *it = &e->late[k];
        it->was_refused = drawn[k].refused;
        if (!it->c) continue;
        it->c->late = 0;
        gy_engine_tell(e, it);
    }
}

/* One that the device refused and the host's sampler did not was entered as token 0: what flies of it is computed
 * again. */
static void conclude(gy_engine *e, gy_logit_item *it) {
    if (!it->c) return;
    if (it->ends)
        gy_engine_end(e, it);
    else if (it->was_refused)
        gy_sched_preempt(e->sched, it->c->job, GY_PREEMPT_RECOMPUTE);
}

int32_t gy_late_take(gy_engine *e) {
    gy_late_tell(e);
    int32_t n = e->n_late;
    if (e->lost.status < 0) return n;
    e->n_late = e->late_is_told = 0;
    for (int32_t k = 0; k < n; k++) conclude(e, &e->late[k]);
    return n;
}

void gy_late_forget(gy_engine *e, const gy_choice *c) {
    for (int32_t k = 0; k < e->n_late; k++)
        if (e->late[k].c == c) e->late[k].c = NULL;
}
