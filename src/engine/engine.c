/* The engine's life, and the end of its requests. Sizes: plan.c; the beginning of a request: submit.c; the step:
 * step.c.
 */
#include "engine/engine_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

void gy_engine_opts_default(gy_engine_opts *o) {
    *o = (gy_engine_opts){.fuse_loops = 1,
                          .kv_layout = GY_KV_LAST_EXITED,
                          .kv_fraction = 0.9,
                          .park_bytes = (size_t)1 << 30,
                          .mask_bytes = (size_t)64 << 20};
    gy_sched_opts_default(&o->sched);
}

void gy_request_default(gy_request *r, const gy_model_desc *d) {
    *r = (gy_request){.max_tokens = 16, .n = 1, .prompt_logprobs = -1};
    gy_sample_params_default(&r->sample);
    gy_exit_rule_default(&r->exit, d->n_loop);
}

const char *gy_finish_name(gy_finish f) {
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return names[f];
}

const char *gy_pd_stage_name(gy_pd_stage s) {
    static const char *const names[] = {
        "admitted",          "d_reserved",  "prefill_started", "prefill_compute_completed",
        "prefill_submitted", "d_activated", "first_token",     "finished"};
    return (unsigned)s < GY_PD_STAGES ? names[s] : "unknown";
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static void lay_out_handoff(gy_engine *e, gy_carve *c) {
    size_t n = (size_t)e->o.max_handoff, loops = (size_t)e->m->d.n_loop;
    if (!n) return;
    int32_t *told = gy_carve_take(c, 2 * n * (loops + 1), sizeof *told);
    e->handoff = gy_carve_take(c, n, sizeof *e->handoff);
    e->hidden = gy_carve_take(c, (size_t)e->m->d.n_embd, sizeof *e->hidden);
    for (size_t i = 0; c->base && i < n; i++) {
        e->handoff[i].told = told + 2 * i * (loops + 1);
        e->handoff[i].next = e->handoff[i].told + loops + 1;
    }
}

static void lay_out(gy_engine *e, gy_carve *c) {
    size_t rows = (size_t)e->o.sched.max_rows, flights = (size_t)e->n_flight;
    e->by_job = gy_carve_take(c, (size_t)e->max_job, sizeof(void *));
    e->flight = gy_carve_take(c, flights, sizeof *e->flight);
    lay_out_handoff(e, c);
    e->gate_log = e->m->d.has_gate ? gy_carve_take(c, flights, (size_t)e->depth * sizeof(float)) : NULL;
    e->row_flight = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_id = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_logit = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_state = gy_carve_take(c, rows, sizeof(int32_t));
    e->judged = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_seed = gy_carve_take(c, rows, sizeof(uint64_t));
    e->row_zero = gy_carve_take(c, rows, sizeof(uint8_t));
    e->row_gate = gy_carve_take(c, rows, sizeof(float));
    e->row_latent = gy_carve_take(c, rows, sizeof(double));
    e->item = gy_carve_take(c, (size_t)e->o.max_logits, sizeof *e->item);
    e->late = gy_carve_take(c, (size_t)e->o.max_logits, sizeof *e->late);
}

static gy_status open_memory(gy_engine *e, gy_err *err) {
    gy_carve measure = {0};
    lay_out(e, &measure);
    e->mem_bytes = measure.used;
    if (!measure.overflow) e->mem = gy_mem_alloc(GY_MEM_ENGINE, e->mem_bytes, 1);
    if (!e->mem) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of row lists", measure.used);
    e->carve = (gy_carve){.base = e->mem, .cap = e->mem_bytes};
    lay_out(e, &e->carve);
    return GY_OK;
}

static gy_status open_kv(gy_engine *e, gy_err *err) {
    gy_kv_config c = gy_engine_kv_config(&e->m->d, e->m->be->act, &e->o, &e->plan);
    const gy_kvmem_lender lender = {.memory = e->o.kv_memory, .arg = e->o.kv_memory_arg};
    GY_TRY(gy_kvmem_open(&e->kvmem, e->m->be, &c, lender.memory ? &lender : NULL, err));
    e->kv = e->kvmem.kv;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        size_t bytes = (size_t)e->plan.n_park[g] * e->plan.block_bytes[g];
        if (!bytes) continue;
        e->park[g] = gy_mem_map_pages(GY_MEM_ENGINE, bytes);
        if (!e->park[g])
            return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of parked KV; lower park_bytes", bytes);
        e->park_bytes[g] = bytes;
    }
    return e->o.prefix_cache ? gy_prefix_create(e->kv, e->m->d.n_loop, err) : GY_OK;
}

static void *kv_block(const gy_engine *e, gy_kv_group g, int32_t block) {
    return (char *)gy_kv_arena(e->kv, g) + (size_t)block * e->plan.block_bytes[g];
}

static void *park_block(const gy_engine *e, gy_kv_group g, int32_t block) {
    return (char *)e->park[g] + (size_t)block * e->plan.block_bytes[g];
}

static void park_copy(void *arg, gy_kv_group g, int32_t block, int32_t parked) {
    gy_engine *e = arg;
    size_t bytes = e->plan.block_bytes[g];
    e->m->be->ops->download(e->m->be, park_block(e, g, parked), kv_block(e, g, block), bytes);
    e->stats.kv_copied_bytes += (int64_t)bytes;
}

static void restore_copy(void *arg, gy_kv_group g, int32_t block, int32_t parked) {
    gy_engine *e = arg;
    size_t bytes = e->plan.block_bytes[g];
    e->m->be->ops->upload(e->m->be, kv_block(e, g, block), park_block(e, g, parked), bytes);
    e->stats.kv_copied_bytes += (int64_t)bytes;
}

static gy_status open_sched(gy_engine *e, gy_err *err) {
    const gy_model_desc *d = &e->m->d;
    gy_sched_opts *s = &e->o.sched;
    s->n_loop = d->n_loop;
    s->has_boundary = gy_desc_boundary_layers(d) > 0;
    s->has_coda = d->n_layer[GY_CODA] > 0;
    s->park_copy = park_copy;
    s->restore_copy = restore_copy;
    s->copy_arg = e;
    return gy_sched_create(s, e->kv, err, &e->sched);
}

static gy_status open_loop(gy_engine *e, gy_err *err) {
    gy_loop_config c = gy_engine_loop_config(&e->o);
    c.core = e->kvmem.view[GY_KV_CORE];
    c.boundary = e->kvmem.view[GY_KV_BOUNDARY];
    GY_TRY(gy_loop_create(e->m, &c, err, &e->loop));
    e->runs_ahead = gy_loop_may_run_ahead(e->loop);
    e->stats.workspace_bytes = gy_loop_workspace_bytes(e->loop);
    e->stats.kv_bytes = e->plan.kv_bytes;
    return GY_OK;
}

/* Memory is asked for only when it decides the size. */
static gy_status make_plan(gy_engine *e, gy_err *err) {
    gy_backend *be = e->m->be;
    size_t available = e->o.kv_blocks || e->o.kv_bytes ? 0 : be->ops->mem_available(be);
    GY_TRY(gy_engine_make_plan(&e->m->d, be->act, &e->o, available, err, &e->plan));
    e->o.max_logits = gy_engine_max_logits(&e->o);
    e->depth = gy_engine_depth(&e->m->d, &e->o);
    e->n_flight = gy_sched_n_flight(&e->o.sched);
    e->max_job = e->o.sched.max_queue + e->o.sched.max_seqs;
    return GY_OK;
}

/* What the plan could not know. */
static void complete_plan(gy_engine *e) {
    gy_engine_plan *p = &e->plan;
    const gy_model *m = e->m;
    p->weight_bytes = m->own_bytes;
    p->mapped_bytes = m->mapped_bytes;
    p->weights = m->form >= GY_WEIGHTS_FP8 ? gy_weight_form_name(m->form) : NULL;
    p->free_bytes = m->be->ops->mem_available(m->be);
    gy_log(GY_LOG_INFO, "engine", "memory plan",
           "backend=%s form=%s weights=%zu mapped=%zu workspace=%zu map=%zu kv=%zu kv_dtype=%s blocks=%d tokens=%lld "
           "limit=\"%s\" "
           "parked=%zu "
           "free=%zu",
           m->be->ops->name, gy_weight_form_name(m->form), p->weight_bytes, p->mapped_bytes, p->workspace_bytes,
           p->map_bytes, p->kv_bytes, gy_kv_type_name(e->o.kv_type), p->n_block[GY_KV_CORE], (long long)p->kv_tokens,
           p->limit, p->park_bytes, p->free_bytes);
}

gy_status gy_engine_open(gy_model *m, const gy_engine_opts *o, gy_err *err, gy_engine **out) {
    gy_engine *e = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *e);
    if (!e) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    e->m = m;
    e->o = *o;
    gy_status st;
    GY_TRY_GOTO(st, make_plan(e, err), fail);
    GY_TRY_GOTO(st, open_memory(e, err), fail);
    GY_TRY_GOTO(st, open_kv(e, err), fail);
    GY_TRY_GOTO(st, open_sched(e, err), fail);
    GY_TRY_GOTO(st, open_loop(e, err), fail);
    GY_TRY_GOTO(st, gy_sampler_create(m->d.n_vocab, m->be->ops->n_member(m->be), &e->sampler), no_memory);
    complete_plan(e);
    *out = e;
    return GY_OK;
no_memory:
    gy_err_set(err, st, "no memory for the sampler of %d tokens", m->d.n_vocab);
fail:
    gy_engine_close(e);
    return st;
}

void gy_engine_close(gy_engine *e) {
    if (!e) return;
    GY_CHECK(gy_carve_check(&e->carve));
    for (gy_req *q = e->first; q;) {
        gy_req *next = q->next;
        gy_req_free(q);
        q = next;
    }
    gy_constrain_close(e);
    gy_sampler_destroy(e->sampler);
    gy_loop_destroy(e->loop);
    gy_sched_destroy(e->sched);
    gy_kvmem_close(&e->kvmem);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (e->park[g]) gy_mem_unmap_pages(GY_MEM_ENGINE, e->park[g], e->park_bytes[g]);
    gy_mem_free(e->mem);
    gy_mem_free(e);
}

const gy_engine_plan *gy_engine_get_plan(const gy_engine *e) {
    return &e->plan;
}

/* ---- cancel, finish --------------------------------------------------------------------------------------------- */

static gy_req *find(const gy_engine *e, int32_t id) {
    for (gy_req *q = e->first; q; q = q->next)
        if (q->id == id) return q;
    return NULL;
}

void gy_engine_cancel(gy_engine *e, int32_t id) {
    gy_req *q = find(e, id);
    if (!q) return;
    q->cancelled = 1;
    e->n_cancel++;
}

gy_status gy_engine_preempt(gy_engine *e, int32_t id, int32_t choice, gy_preempt how) {
    gy_req *q = find(e, id);
    if (!q || choice < 0 || choice >= q->r.n || q->choice[choice].job < 0) return GY_AGAIN;
    return gy_sched_preempt(e->sched, q->choice[choice].job, how);
}

static void unlink_req(gy_engine *e, gy_req *q) {
    *(q->prev ? &q->prev->next : &e->first) = q->next;
    *(q->next ? &q->next->prev : &e->last) = q->prev;
}

/* The books are closed before the callback, which may submit. */
void gy_engine_finish(gy_engine *e, gy_choice *c, gy_finish reason, int32_t stop_id, const gy_err *err) {
    gy_req *q = c->req;
    gy_job_info info;
    gy_sched_job_info(e->sched, c->job, &info);
    gy_late_forget(e, c);
    if (q->handoff)
        gy_handoff_detach(e, q, c->job);
    else
        gy_sched_remove(e->sched, c->job);
    e->by_job[c->job] = NULL;
    c->job = -1;
    q->n_left--;
    e->stats.n_finish[reason]++;
    if (!q->n_left) {
        unlink_req(e, q);
        e->n_judging -= gy_engine_judges(&q->r);
    }
    if (q->r.on_finish) {
        gy_finish_event ev = {.request = q->id,
                              .choice = c->index,
                              .n_left = q->n_left,
                              .reason = reason,
                              .err = err,
                              .stop_id = stop_id,
                              .n_prompt = q->r.n_prompt,
                              .n_output = c->n_output,
                              .n_cached = info.n_cached,
                              .n_preempt = info.n_preempt,
                              .seed = c->p.seed,
                              .submit_ns = q->submit_ns,
                              .admit_ns = info.admit_ns,
                              .first_token_ns = c->first_token_ns,
                              .finish_ns = gy_clock_ns()};
        q->r.on_finish(q->r.arg, &ev);
    }
    if (!q->n_left) gy_req_free(q);
}

/* ---- what can be asked ------------------------------------------------------------------------------------------ */

void gy_engine_get_stats(const gy_engine *e, gy_engine_stats *out) {
    *out = e->stats;
    gy_sched_get_stats(e->sched, &out->sched);
    gy_prefix_get_stats(e->kv, &out->prefix);
    for (int i = 0; e->vocab && i < e->m->be->ops->n_member(e->m->be); i++) {
        gy_grammar_mask_stats m;
        gy_grammar_runner_get_stats(e->runner[i], &m);
        out->mask.n_hit += m.n_hit;
        out->mask.n_miss += m.n_miss;
    }
    const gy_kv_config *c = gy_kv_get_config(e->kv);
    for (int32_t p = 0; p < gy_kv_n_plane(c, GY_KV_CORE); p++)
        out->kv_plane[gy_stat_depth(p)] += gy_kv_plane_blocks(e->kv, GY_KV_CORE, p);
    if (gy_kv_n_plane(c, GY_KV_BOUNDARY)) out->kv_boundary = gy_kv_plane_blocks(e->kv, GY_KV_BOUNDARY, 0);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        out->kv_free[g] = gy_kv_n_free(e->kv, (gy_kv_group)g);
        out->kv_cached[g] = gy_kv_n_cached(e->kv, (gy_kv_group)g);
        out->kv_total[g] = c->n_block[g];
    }
}

const gy_kv *gy_engine_kv(const gy_engine *e) {
    return e->kv;
}

const gy_sched *gy_engine_sched(const gy_engine *e) {
    return e->sched;
}
