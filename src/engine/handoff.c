/* Prompts that cross between engines (handoff.h). The scheduler knows two things of it: jobs that may not be preempted,
 * and jobs that bring their KV along. Everything else is here: a small table of exports and open imports.
 */
#include "engine/handoff.h"

#include "engine/engine_int.h"

#include <string.h>

int gy_handoff_can(const gy_engine *e, const gy_request *r, const char **why_out) {
    return gy_handoff_can_model(&e->m->d, r, why_out);
}

int gy_handoff_can_model(const gy_model_desc *d, const gy_request *r, const char **why_out) {
    const char *why = NULL;
    if (r->exit.on_prompt && r->exit.kind != GY_EXIT_TRACE)
        why = "exit_on_prompt: prompt tokens leave at depths of their own";
    else if (r->prompt_logprobs >= 0)
        why = "prompt_logprobs: they need the logits of every prompt token";
    else if (r->exit.kind == GY_EXIT_SELECT && r->exit.max_loops != d->n_loop)
        why = "select with max_loops: the prompt's last token does not run the trained depth";
    if (why_out) *why_out = why;
    return why == NULL;
}

static gy_status check_can(const gy_engine *e, const gy_request *r, gy_err *err) {
    const char *why;
    if (gy_handoff_can(e, r, &why)) return GY_OK;
    return gy_err_set(err, GY_E_UNSUPPORTED, "%s, so this prompt cannot be computed elsewhere", why);
}

static gy_handoff *find(const gy_engine *e, int32_t id, int want_import) {
    for (int32_t i = 0; i < e->o.max_handoff; i++) {
        gy_handoff *h = &e->handoff[i];
        if (h->kind != GY_HANDOFF_FREE && (h->kind == GY_HANDOFF_IMPORT) == want_import && h->id == id) return h;
    }
    return NULL;
}

static gy_handoff *take(gy_engine *e, gy_handoff_kind kind) {
    for (int32_t i = 0; i < e->o.max_handoff; i++) {
        gy_handoff *h = &e->handoff[i];
        if (h->kind != GY_HANDOFF_FREE) continue;
        int32_t *told = h->told, *next = h->next;
        memset(told, 0, ((size_t)e->m->d.n_loop + 1) * sizeof *told);
        memset(next, 0, ((size_t)e->m->d.n_loop + 1) * sizeof *next);
        *h = (gy_handoff){.kind = kind, .kv_seq = -1, .flight = -1, .told = told, .next = next};
        e->n_handoff++;
        return h;
    }
    return NULL;
}

static void give_back(gy_engine *e, gy_handoff *h) {
    if (h->kv_seq >= 0) gy_kv_seq_close(e->kv, h->kv_seq);
    h->kind = GY_HANDOFF_FREE;
    h->kv_seq = -1;
    e->n_handoff--;
}

static gy_status no_place(const gy_engine *e, gy_err *err) {
    return gy_err_set(err, GY_AGAIN, "all %d places for prompts that cross are taken; try again later",
                      e->o.max_handoff);
}

int32_t gy_engine_n_handoff(const gy_engine *e) {
    return e->n_handoff;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

gy_status gy_engine_submit_export(gy_engine *e, const gy_request *r, const gy_export *x, gy_err *err, int32_t *id_out) {
    gy_request p = *r;
    GY_TRY(check_can(e, r, err));
    gy_sample_params_default(&p.sample);
    p.max_tokens = p.n = 1;
    p.min_tokens = p.n_stop_ids = p.n_trace = p.n_grammar_after = p.random_seed = 0;
    p.ignore_eos = 1;
    p.grammar = NULL;
    p.on_token = NULL;
    if (p.exit.kind == GY_EXIT_TRACE) gy_exit_rule_default(&p.exit, e->m->d.n_loop);
    gy_handoff *h = take(e, GY_HANDOFF_EXPORT);
    if (!h) return no_place(e, err);
    h->x = *x;
    gy_status st = gy_engine_queue(e, &p, &(gy_crossing){.handoff = h}, err, &h->id);
    if (st != GY_OK) {
        give_back(e, h);
        return st;
    }
    *id_out = h->id;
    return GY_OK;
}

static void tell_planes(const gy_engine *e, gy_handoff *h) {
    size_t n = (size_t)e->m->d.n_loop + 1;
    if (!memcmp(h->told, h->next, n * sizeof *h->next)) return;
    memcpy(h->told, h->next, n * sizeof *h->next);
    h->x.on_planes(h->x.arg, h->id, h->told, (int32_t)n - 1, h->told[n - 1]);
}

/* Prelude layers write when a token enters, coda layers when it is done. */
static int32_t boundary_done(const gy_engine *e, const gy_job_info *info) {
    if (!gy_desc_boundary_layers(&e->m->d)) return 0;
    return e->m->d.n_layer[GY_CODA] ? info->n_done : info->n_entered;
}

static void look(const gy_engine *e, gy_handoff *h) {
    gy_job_info info;
    gy_sched_job_info(e->sched, h->q->choice[0].job, &info);
    if (info.state != GY_JOB_PREFILL) return;
    gy_sched_planes_done(e->sched, h->q->choice[0].job, h->next);
    h->next[e->m->d.n_loop] = boundary_done(e, &info);
    h->next_no = e->step_no;
}

/* The scheduler counts what is queued; readers outside the device's order are told what is done. Where a step ends
 * while its work goes on, that is what the step before had queued. */
void gy_handoff_tell(gy_engine *e) {
    for (int32_t i = 0; e->n_handoff && i < e->o.max_handoff; i++) {
        gy_handoff *h = &e->handoff[i];
        if (h->kind != GY_HANDOFF_EXPORT) continue;
        if (h->next_no <= e->done_no) tell_planes(e, h);
        look(e, h);
        if (h->next_no <= e->done_no) tell_planes(e, h);
    }
}

/* The state is read first: that waits for all that was queued before, the planes with it. */
void gy_handoff_done(gy_engine *e, const gy_logit_item *it, int32_t state) {
    gy_choice *c = it->c;
    gy_handoff *h = c->req->handoff;
    int32_t n_prompt = c->req->r.n_prompt, n_gate = c->req->r.want_gates ? e->flight[it->flight].n_gate : 0;
    gy_loop_get_state(e->loop, state, e->hidden);
    for (int32_t d = 0; d < e->m->d.n_loop; d++) h->next[d] = n_prompt;
    h->next[e->m->d.n_loop] = gy_desc_boundary_layers(&e->m->d) ? n_prompt : 0;
    tell_planes(e, h);
    h->x.on_hidden(h->x.arg, h->id, e->hidden, it->loops,
                   n_gate ? e->gate_log + (size_t)it->flight * (size_t)e->depth : NULL, n_gate);
    h->flight = it->flight;
    gy_engine_finish(e, c, GY_FINISH_STOP, -1, NULL);
}

void gy_handoff_detach(gy_engine *e, gy_req *q, int32_t job) {
    gy_handoff *h = q->handoff;
    h->kv_seq = gy_sched_detach(e->sched, job, h->flight);
    h->kind = GY_HANDOFF_HELD;
    h->q = NULL;
}

static const int32_t *blocks_of(const gy_engine *e, int32_t seq, gy_kv_group g, int32_t plane, int32_t *n_out) {
    *n_out = 0;
    return seq < 0 ? NULL : gy_kv_seq_log(e->kv, g, seq, plane, n_out);
}

const int32_t *gy_engine_export_blocks(const gy_engine *e, int32_t id, gy_kv_group g, int32_t plane, int32_t *n_out) {
    const gy_handoff *h = find(e, id, 0);
    int32_t seq = h ? h->kv_seq : -1;
    if (h && h->kind == GY_HANDOFF_EXPORT) {
        gy_job_info info;
        gy_sched_job_info(e->sched, h->q->choice[0].job, &info);
        seq = info.kv_seq;
    }
    return blocks_of(e, seq, g, plane, n_out);
}

int64_t gy_engine_export_admit_ns(const gy_engine *e, int32_t id) {
    const gy_handoff *h = find(e, id, 0);
    gy_job_info info = {0};
    if (h && h->kind == GY_HANDOFF_EXPORT) gy_sched_job_info(e->sched, h->q->choice[0].job, &info);
    return info.admit_ns;
}

void gy_engine_export_release(gy_engine *e, int32_t id) {
    gy_handoff *h = find(e, id, 0);
    if (h && h->kind == GY_HANDOFF_HELD) give_back(e, h);
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

static gy_prefix_space space_of(const gy_engine *e, const gy_request *r) {
    return (gy_prefix_space){.salt = r->cache_salt,
                             .n_salt = r->n_salt,
                             .latent_noise = r->latent_noise && e->m->d.inject,
                             .latent_seed = r->latent_seed};
}

static int looks_up(const gy_engine *e, const gy_request *r) {
    return !r->no_cache && gy_prefix_enabled(e->kv);
}

/* Blocks of the prompt that the pool must give now (admit.c's rule for a job that waits). */
static void need_of(const gy_engine *e, const gy_request *r, int64_t need[GY_KV_GROUPS]) {
    const gy_kv_config *c = gy_kv_get_config(e->kv);
    int32_t alone[GY_KV_GROUPS] = {0}, shared = 0;
    gy_prefix_space sp = space_of(e, r);
    if (looks_up(e, r)) shared = gy_prefix_match(e->kv, &sp, r->prompt, r->n_prompt - 1, alone);
    int64_t rows = (r->n_prompt + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN - shared / GY_KV_BLOCK_LEN;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int32_t planes = gy_kv_n_plane(c, (gy_kv_group)g);
        if (planes > e->m->d.n_loop) planes = e->m->d.n_loop;
        need[g] = rows * planes + alone[g];
    }
}

static gy_status claim_plane(gy_engine *e, gy_kv_group g, int32_t seq, int32_t depth, int32_t from, int32_t to) {
    int32_t slot;
    for (int32_t pos = from; pos < to; pos++)
        if (gy_kv_claim(e->kv, g, seq, depth, pos, &slot) != GY_OK) return GY_AGAIN;
    return GY_OK;
}

/* Plane by plane: blocks that are taken one after another lie beside each other, and become one copy. */
static gy_status claim_prompt(gy_engine *e, const gy_request *r, int32_t seq, int32_t *n_have_out) {
    gy_prefix_cursor cursor = {0};
    gy_prefix_space sp = space_of(e, r);
    int32_t n = 0, n_loop = e->m->d.n_loop;
    if (looks_up(e, r)) n = gy_prefix_attach(e->kv, &sp, r->prompt, r->n_prompt - 1, seq, &cursor);
    *n_have_out = n;
    for (int32_t d = 0; d < n_loop; d++)
        if (claim_plane(e, GY_KV_CORE, seq, d, n, r->n_prompt) != GY_OK) return GY_AGAIN;
    for (int32_t pos = n; pos < r->n_prompt; pos++) gy_kv_exit(e->kv, seq, pos, n_loop - 1);
    if (!gy_desc_boundary_layers(&e->m->d)) return GY_OK;
    return claim_plane(e, GY_KV_BOUNDARY, seq, 0, n, r->n_prompt);
}

static gy_status no_blocks(const gy_request *r, gy_err *err) {
    return gy_err_set(err, GY_AGAIN, "no KV blocks for a prompt of %d tokens now; try again later", r->n_prompt);
}

/* Blocks that are free may be written yet by what ended without being waited for; a writer from outside is not in the
 * device's order. */
static gy_status catch_up(gy_engine *e) {
    if (e->done_no == e->step_no) return GY_OK;
    if (!gy_engine_is_lost(e)) e->done_no = e->step_no;
    return e->lost.status;
}

gy_status gy_engine_import_open(gy_engine *e, const gy_request *r, gy_err *err, int32_t *import_out,
                                int32_t *n_have_out) {
    int64_t need[GY_KV_GROUPS];
    int32_t n_have;
    GY_TRY(gy_engine_check(e, r, err));
    GY_TRY(check_can(e, r, err));
    need_of(e, r, need);
    if (!gy_sched_spare(e->sched, need)) return no_blocks(r, err);
    if (catch_up(e) < 0) return *err = e->lost, e->lost.status;
    gy_handoff *h = take(e, GY_HANDOFF_IMPORT);
    if (!h) return no_place(e, err);
    h->id = (int32_t)(h - e->handoff);
    if (gy_kv_seq_open(e->kv, r->n_prompt + r->max_tokens - 1, &h->kv_seq) != GY_OK) h->kv_seq = -1;
    if (h->kv_seq < 0 || claim_prompt(e, r, h->kv_seq, &n_have) != GY_OK) {
        give_back(e, h);
        return no_blocks(r, err);
    }
    *import_out = h->id;
    *n_have_out = n_have;
    return GY_OK;
}

const int32_t *gy_engine_import_blocks(const gy_engine *e, int32_t import, gy_kv_group g, int32_t plane,
                                       int32_t *n_out) {
    const gy_handoff *h = find(e, import, 1);
    return blocks_of(e, h ? h->kv_seq : -1, g, plane, n_out);
}

gy_status gy_engine_import_submit(gy_engine *e, int32_t import, const gy_request *r, const gy_arrival *a, gy_err *err,
                                  int32_t *id_out) {
    gy_handoff *h = find(e, import, 1);
    if (!h) return gy_err_set(err, GY_E_ARG, "import %d is not open", import);
    if (a->n_gate < 0 || a->n_gate > e->depth || a->loops < 1 || a->loops > e->depth)
        return gy_err_set(err, GY_E_ARG, "import %d: found %d loops and %d gates, expected at most %d", import,
                          a->loops, a->n_gate, e->depth);
    gy_status st = gy_engine_queue(e, r, &(gy_crossing){.arrival = a, .kv_seq = h->kv_seq}, err, id_out);
    if (st != GY_OK) return st;
    h->kv_seq = -1; /* the request's now */
    give_back(e, h);
    return GY_OK;
}

void gy_engine_import_drop(gy_engine *e, int32_t import) {
    gy_handoff *h = find(e, import, 1);
    if (h) give_back(e, h);
}

/* The row stands where it would after its last loop here. */
void gy_handoff_land(gy_engine *e, int32_t f, gy_choice *c) {
    const gy_req *q = c->req;
    const gy_arrival *a = &q->arrival;
    e->flight[f] = (gy_flight){
        .settled = a->loops, .pos = q->r.n_prompt - 1, .samples = 1, .c = c, .rule = q->r.exit, .n_gate = a->n_gate};
    gy_exit_begin(&e->flight[f].exit);
    e->flight[f].exit.loops = e->flight[f].exit.selected = a->loops;
    if (a->n_gate) memcpy(e->gate_log + (size_t)f * (size_t)e->depth, a->gates, (size_t)a->n_gate * sizeof(float));
    gy_loop_set_state(e->loop, f, a->hidden);
}
