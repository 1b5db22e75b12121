/* When what happened to a request's latest try, on the coordinator's clock.
 *
 * What the coordinator sees itself (admitted, reserved, active, first token, finished) is the time at which it saw it.
 * What P did is known on P's clock, which may be another host's: only differences of it count. PREFILLED has them; they
 * are laid out backwards from the moment at which it came: what P did x ns before it said so is x ns before that. So
 * all of P's times are late by what the message took, and never early. P may be in the middle of a step then, and its
 * word overtaken by the end of a short output; so P's last note has its times too, D lays them out on its clock from
 * when it heard of it, and ACTIVE brings them, in front of everything that D says. What PREFILLED has replaces them if
 * it comes in time, and it alone has what was measured on the wire.
 *
 * A time never falls behind one of an earlier stage nor in front of a later one that is known: messages of P and D
 * cross, and a clock may jump. Times of a try that has ended are kept until the next one begins.
 */
#include "pd/coord_int.h"

#include <string.h>

void gy_times_begin(gy_coord_req *r, int32_t d, int32_t p, int64_t now_ns) {
    r->pd = (gy_pd_cost){.n_try = r->pd.n_try + 1, .prefill = p, .decode = d};
    gy_times_mark(r, GY_PD_ADMITTED, now_ns);
}

void gy_times_mark(gy_coord_req *r, gy_pd_stage stage, int64_t at_ns) {
    int64_t *at = r->pd.at_ns;
    for (int s = GY_PD_STAGES - 1; s > (int)stage; s--)
        if (at[s] && at_ns > at[s]) at_ns = at[s];
    for (int s = 0; s < (int)stage; s++)
        if (at_ns < at[s]) at_ns = at[s];
    at[stage] = at_ns;
}

/* Unsigned: what a worker says may be any number. */
static int64_t since(int64_t from_ns, int64_t to_ns) {
    int64_t d = (int64_t)((uint64_t)to_ns - (uint64_t)from_ns);
    return d > 0 ? d : 0;
}

static void mark_before(gy_coord_req *r, gy_pd_stage stage, int64_t ago_ns, int64_t now_ns) {
    gy_times_mark(r, stage, ago_ns < now_ns ? now_ns - ago_ns : 0);
}

/* Computed where it is decoded: FINISH knows when that began. */
void gy_times_local(gy_coord_req *r, const gy_msg_finish *f, int64_t now_ns) {
    if (r->pd.prefill >= 0 || r->pd.at_ns[GY_PD_PREFILL_STARTED] || !f->admit_ns) return;
    mark_before(r, GY_PD_PREFILL_STARTED, since(f->admit_ns, f->finish_ns), now_ns);
}

int64_t gy_times_wire(const gy_msg_sent *x) {
    return since(x->first_post_ns, x->last_done_ns);
}

static void mark_sent(gy_coord_req *r, const gy_msg_sent *x, int64_t now_ns) {
    gy_pd_cost *c = &r->pd;
    memset(c->at_ns + GY_PD_PREFILL_STARTED, 0, 3 * sizeof *c->at_ns);
    mark_before(r, GY_PD_PREFILL_STARTED, since(x->start_ns, x->said_ns), now_ns);
    mark_before(r, GY_PD_PREFILL_COMPLETED, since(x->compute_ns, x->said_ns), now_ns);
    mark_before(r, GY_PD_PREFILL_SUBMITTED, since(x->last_post_ns, x->said_ns), now_ns);
    c->bytes = x->bytes;
    c->n_op = x->n_op;
    c->n_desc = x->n_desc;
}

void gy_times_active(gy_coord_req *r, const gy_msg_sent *x, int64_t now_ns) {
    gy_times_mark(r, GY_PD_D_ACTIVATED, now_ns);
    if (x->said_ns && !r->pd.is_measured) mark_sent(r, x, now_ns);
}

void gy_times_sent(gy_coord_req *r, const gy_msg_sent *x, int64_t now_ns) {
    gy_pd_cost *c = &r->pd;
    mark_sent(r, x, now_ns);
    c->is_measured = 1;
    c->post_ns = x->post_ns;
    c->wire_ns = gy_times_wire(x);
    c->tail_ns = since(x->compute_ns, x->last_done_ns);
    c->overlap_ns = x->overlap_ns;
    c->overlap_bytes = x->overlap_bytes;
    c->n_overlap = x->n_overlap;
}
