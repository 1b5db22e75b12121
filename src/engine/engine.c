/* The engine's life and the life of its requests: sizing, submit, admission, finish. The step itself is in step.c.
 *
 * Admission is first come first served with full-life reservation: a request runs when a sequence is free and the
 * blocks of its prompt and all its outputs at full depth are not promised to others, so that a running request never
 * waits for KV.
 */
#include "engine/engine_int.h"

#include "base/arena.h"
#include "base/clock.h"

#include <string.h>

void gy_engine_opts_default(gy_engine_opts *o) {
    *o = (gy_engine_opts){.max_rows = 256, .max_seqs = 16, .kv_layout = GY_KV_LAST_EXITED};
}

void gy_request_default(gy_request *r, const gy_model_desc *d) {
    *r = (gy_request){.max_tokens = 16};
    gy_sample_params_default(&r->sample);
    gy_exit_rule_default(&r->exit, d->n_loop);
}

const char *gy_finish_name(gy_finish f) {
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return names[f];
}

static int32_t depth_of(const gy_model_desc *d, const gy_engine_opts *o) {
    return o->max_loops > d->n_loop ? o->max_loops : d->n_loop;
}

static gy_kv_config kv_config(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o) {
    gy_kv_config c = gy_kvmem_config(d, act, o->max_len);
    c.layout = o->kv_layout;
    c.cyclic_k = o->cyclic_k;
    c.n_loop = depth_of(d, o);
    c.max_seqs = o->max_seqs;
    return c;
}

static gy_status check_opts(const gy_model_desc *d, const gy_engine_opts *o, gy_err *err) {
    if (o->max_rows < 1 || o->max_rows > 1 << 20)
        return gy_err_set(err, GY_E_ARG, "max_rows: found %d, expected 1 to 1048576", o->max_rows);
    if (o->max_seqs < 1 || o->max_seqs > 1 << 16)
        return gy_err_set(err, GY_E_ARG, "max_seqs: found %d, expected 1 to 65536", o->max_seqs);
    if (o->max_len < 1 || o->max_len > d->max_pos)
        return gy_err_set(err, GY_E_LIMIT, "max_len: found %d tokens, expected 1 to %d, the model's context",
                          o->max_len, d->max_pos);
    if (o->max_loops < 0 || o->max_loops > GY_ENGINE_MAX_LOOPS)
        return gy_err_set(err, GY_E_ARG, "max_loops: found %d, expected 0 to %d", o->max_loops, GY_ENGINE_MAX_LOOPS);
    if (o->kv_blocks < 0) return gy_err_set(err, GY_E_ARG, "kv_blocks: found %d, expected 0 or more", o->kv_blocks);
    if (o->kv_layout == GY_KV_CYCLIC && (o->cyclic_k < 1 || o->cyclic_k > depth_of(d, o)))
        return gy_err_set(err, GY_E_ARG, "kv_layout: found cyclic:%d, expected cyclic:1 to cyclic:%d", o->cyclic_k,
                          depth_of(d, o));
    return GY_OK;
}

gy_status gy_engine_make_plan(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, gy_err *err,
                              gy_engine_plan *out) {
    GY_TRY(check_opts(d, o, err));
    gy_kv_config c = kv_config(d, act, o);
    gy_engine_plan p = {0};
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int64_t n = gy_kv_blocks_for(&c, (gy_kv_group)g, o->max_len) * o->max_seqs;
        if (g == GY_KV_CORE && o->kv_blocks) n = o->kv_blocks;
        if (n > INT32_MAX / GY_BLOCK_SLOTS)
            return gy_err_set(
                err, GY_E_LIMIT,
                "KV needs %lld blocks, slots are 32 bit numbers: lower max_seqs or max_len, or set kv_blocks",
                (long long)n);
        p.n_block[g] = (int32_t)n;
        p.block_bytes[g] = gy_kv_block_bytes(&c, (gy_kv_group)g);
        size_t bytes;
        if (gy_size_mul(p.block_bytes[g], (size_t)n, &bytes) || gy_size_add(p.kv_bytes, bytes, &p.kv_bytes))
            return gy_err_set(err, GY_E_LIMIT, "KV size overflows: lower max_seqs or max_len");
        p.kv_token_bytes += p.block_bytes[g] / GY_BLOCK_SLOTS * (size_t)gy_kv_n_plane(&c, (gy_kv_group)g);
    }
    *out = p;
    return GY_OK;
}

static void lay_out(gy_engine *e, gy_carve *c) {
    size_t rows = (size_t)e->o.max_rows, seqs = (size_t)e->o.max_seqs;
    e->running = gy_carve_take(c, seqs, sizeof *e->running);
    e->flight = gy_carve_take(c, rows, sizeof *e->flight);
    e->free_flight = gy_carve_take(c, rows, sizeof(int32_t));
    e->fifo = gy_carve_take(c, rows, sizeof(int32_t));
    e->coda_wait = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_flight = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_state = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_pos = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_slot = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_id = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_logit = gy_carve_take(c, rows, sizeof(int32_t));
    e->by_logits = gy_carve_take(c, rows, sizeof(int32_t));
    e->row_off = gy_carve_take(c, rows, sizeof(int64_t));
    e->row_seed = gy_carve_take(c, rows, sizeof(uint64_t));
    e->row_zero = gy_carve_take(c, rows, sizeof(uint8_t));
    e->row_gate = gy_carve_take(c, rows, sizeof(float));
    e->row_latent = gy_carve_take(c, rows, sizeof(double));
}

static gy_status open_memory(gy_engine *e, gy_err *err) {
    gy_carve measure = {0};
    lay_out(e, &measure);
    e->mem_bytes = measure.used;
    if (!measure.overflow) e->mem = gy_mem_alloc(GY_MEM_ENGINE, e->mem_bytes, 1);
    if (!e->mem) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of engine state", e->mem_bytes);
    e->carve = (gy_carve){.base = e->mem, .cap = e->mem_bytes};
    lay_out(e, &e->carve);
    for (int32_t i = 0; i < e->o.max_rows; i++) e->free_flight[i] = e->o.max_rows - 1 - i;
    e->n_free_flight = e->o.max_rows;
    return GY_OK;
}

static gy_status open_kv(gy_engine *e, gy_err *err) {
    gy_backend *be = e->m->be;
    gy_engine_plan plan;
    GY_TRY(gy_engine_make_plan(&e->m->d, be->act, &e->o, err, &plan));
    gy_kv_config c = kv_config(&e->m->d, be->act, &e->o);
    for (int g = 0; g < GY_KV_GROUPS; g++) c.n_block[g] = plan.n_block[g];
    GY_TRY(gy_kvmem_open(&e->kvmem, be, &c, err));
    e->kv = e->kvmem.kv;
    e->stats.kv_bytes = plan.kv_bytes;
    return GY_OK;
}

static gy_status open_loop(gy_engine *e, gy_err *err) {
    e->max_logit = e->o.max_seqs < 32 ? e->o.max_seqs : 32;
    if (e->max_logit > e->o.max_rows) e->max_logit = e->o.max_rows;
    gy_loop_config c = {.max_row = e->o.max_rows,
                        .n_state = e->o.max_rows + e->o.max_seqs,
                        .max_logit = e->max_logit,
                        .core = e->kvmem.view[GY_KV_CORE],
                        .boundary = e->kvmem.view[GY_KV_BOUNDARY]};
    GY_TRY(gy_loop_create(e->m, &c, err, &e->loop));
    e->stats.workspace_bytes = gy_loop_workspace_bytes(e->loop);
    return GY_OK;
}

gy_status gy_engine_open(gy_model *m, const gy_engine_opts *o, gy_err *err, gy_engine **out) {
    GY_TRY(check_opts(&m->d, o, err));
    gy_engine *e = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *e);
    if (!e) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    e->m = m;
    e->o = *o;
    gy_status st;
    GY_TRY_GOTO(st, open_memory(e, err), fail);
    GY_TRY_GOTO(st, open_kv(e, err), fail);
    GY_TRY_GOTO(st, open_loop(e, err), fail);
    GY_TRY_GOTO(st, gy_sampler_create(m->d.n_vocab, &e->sampler), no_memory);
    *out = e;
    return GY_OK;
no_memory:
    gy_err_set(err, st, "no memory for the sampler of %d tokens", m->d.n_vocab);
fail:
    gy_engine_close(e);
    return st;
}

static void req_free(gy_req *q) {
    if (!q) return;
    gy_mem_free(q->prev_logp);
    gy_mem_free(q);
}

void gy_engine_close(gy_engine *e) {
    if (!e) return;
    GY_CHECK(gy_carve_check(&e->carve));
    for (gy_req *q = e->waiting_head; q;) {
        gy_req *next = q->next;
        req_free(q);
        q = next;
    }
    if (e->running)
        for (int32_t i = 0; i < e->o.max_seqs; i++) req_free(e->running[i].req);
    gy_sampler_destroy(e->sampler);
    gy_loop_destroy(e->loop);
    gy_kvmem_close(&e->kvmem);
    gy_mem_free(e->mem);
    gy_mem_free(e);
}

/* ---- submit ----------------------------------------------------------------------------------------------------- */

/* Tokens of a request that ever enter: the last sampled one does not. */
static int64_t n_kv_tok(const gy_request *r) {
    return (int64_t)r->n_prompt + r->max_tokens - 1;
}

static gy_status check_ids(const int32_t *ids, int32_t n, int32_t n_vocab, const char *what, gy_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "%s[%d]: found token id %d, expected 0 to %d", what, i, ids[i],
                              n_vocab - 1);
    return GY_OK;
}

static gy_status check_trace(const gy_engine *e, const gy_request *r, gy_err *err) {
    if (r->exit.kind != GY_EXIT_TRACE) return GY_OK;
    if (r->n_trace < r->max_tokens)
        return gy_err_set(err, GY_E_ARG, "trace: found %d depths, expected one for each of the %d outputs", r->n_trace,
                          r->max_tokens);
    for (int32_t i = 0; i < r->n_trace; i++) {
        int32_t lo = i ? r->exit.min_loops : e->m->d.n_loop, hi = i ? r->exit.max_loops : e->m->d.n_loop;
        if (r->trace[i] < lo || r->trace[i] > hi)
            return gy_err_set(err, GY_E_ARG, "trace[%d]: found %d loops, expected %d to %d%s", i, r->trace[i], lo, hi,
                              i ? "" : " (the prompt runs at full depth)");
    }
    return GY_OK;
}

static gy_status check_fits(const gy_engine *e, const gy_request *r, gy_err *err) {
    int64_t len = (int64_t)r->n_prompt + r->max_tokens;
    if (len > e->o.max_len)
        return gy_err_set(err, GY_E_LIMIT, "prompt of %d tokens + max_tokens %d = %lld, expected at most %d (context)",
                          r->n_prompt, r->max_tokens, (long long)len, e->o.max_len);
    const gy_kv_config *c = gy_kv_get_config(e->kv);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int64_t need = gy_kv_blocks_for(c, (gy_kv_group)g, n_kv_tok(r));
        if (need > c->n_block[g])
            return gy_err_set(err, GY_E_LIMIT,
                              "request needs %lld KV blocks at full depth, the pool has %d; raise kv_blocks",
                              (long long)need, c->n_block[g]);
    }
    return GY_OK;
}

static gy_status check_request(const gy_engine *e, const gy_request *r, gy_err *err) {
    const gy_model_desc *d = &e->m->d;
    if (r->n_prompt < 1) return gy_err_set(err, GY_E_ARG, "prompt: found no tokens, expected at least one");
    if (r->max_tokens < 1) return gy_err_set(err, GY_E_ARG, "max_tokens: found %d, expected 1 or more", r->max_tokens);
    if (r->n_trace < 0) return gy_err_set(err, GY_E_ARG, "trace: found %d depths, expected 0 or more", r->n_trace);
    if (r->n_stop_ids < 0)
        return gy_err_set(err, GY_E_ARG, "stop_ids: found %d ids, expected 0 or more", r->n_stop_ids);
    GY_TRY(check_ids(r->prompt, r->n_prompt, d->n_vocab, "prompt", err));
    GY_TRY(gy_sample_params_check(&r->sample, err));
    gy_exit_caps caps = {.n_loop = d->n_loop, .has_gate = d->has_gate, .allow_deeper = e->o.max_loops > d->n_loop};
    GY_TRY(gy_exit_rule_check(&r->exit, &caps, err));
    if (r->exit.max_loops > depth_of(d, &e->o))
        return gy_err_set(err, GY_E_ARG, "max_loops: found %d, expected at most %d, the engine's depth",
                          r->exit.max_loops, depth_of(d, &e->o));
    if (r->exit.on_prompt && gy_exit_needs_logits(&r->exit))
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "on_prompt: the rule \"%s\" would need the LM head at each prompt token; "
                          "use gate, gate_delayed or latent",
                          gy_exit_name(r->exit.kind));
    GY_TRY(check_trace(e, r, err));
    return check_fits(e, r, err);
}

/* One allocation: the struct, then prompt, trace and stop ids. */
static gy_req *req_copy(const gy_request *r) {
    size_t n = (size_t)r->n_prompt + (size_t)r->n_trace + (size_t)r->n_stop_ids;
    gy_req *q = gy_mem_alloc(GY_MEM_ENGINE, sizeof *q + n * sizeof(int32_t), 1);
    if (!q) return NULL;
    int32_t *p = (int32_t *)(void *)(q + 1);
    q->r = *r;
    q->r.prompt = memcpy(p, r->prompt, (size_t)r->n_prompt * sizeof *p);
    p += r->n_prompt;
    if (r->n_trace) q->r.trace = memcpy(p, r->trace, (size_t)r->n_trace * sizeof *p);
    p += r->n_trace;
    if (r->n_stop_ids) q->r.stop_ids = memcpy(p, r->stop_ids, (size_t)r->n_stop_ids * sizeof *p);
    return q;
}

gy_status gy_engine_submit(gy_engine *e, const gy_request *r, gy_err *err, int32_t *id_out) {
    GY_TRY(check_request(e, r, err));
    gy_req *q = req_copy(r);
    if (q && r->exit.kind == GY_EXIT_KL)
        q->prev_logp = gy_mem_alloc(GY_MEM_ENGINE, (size_t)e->m->d.n_vocab, sizeof(float));
    if (!q || (r->exit.kind == GY_EXIT_KL && !q->prev_logp)) {
        req_free(q);
        return gy_err_set(err, GY_E_NOMEM, "no memory for a request of %d tokens", r->n_prompt);
    }
    q->id = e->next_id++;
    q->submit_ns = gy_clock_ns();
    if (e->waiting_tail)
        e->waiting_tail->next = q;
    else
        e->waiting_head = q;
    e->waiting_tail = q;
    e->n_waiting++;
    *id_out = q->id;
    return GY_OK;
}

void gy_engine_cancel(gy_engine *e, int32_t id) {
    e->n_cancel++;
    for (gy_req *q = e->waiting_head; q; q = q->next)
        if (q->id == id) q->cancelled = 1;
    for (int32_t i = 0; i < e->o.max_seqs; i++)
        if (e->running[i].req && e->running[i].req->id == id) e->running[i].req->cancelled = 1;
}

/* ---- admission and finish --------------------------------------------------------------------------------------- */

static void report_finish(const gy_req *q, gy_finish reason, const gy_err *err) {
    if (!q->r.on_finish) return;
    gy_finish_event ev = {.request = q->id,
                          .reason = reason,
                          .err = err,
                          .n_prompt = q->r.n_prompt,
                          .n_output = q->n_output,
                          .submit_ns = q->submit_ns,
                          .first_token_ns = q->first_token_ns,
                          .finish_ns = gy_clock_ns()};
    q->r.on_finish(q->r.arg, &ev);
}

static gy_req *pop_waiting(gy_engine *e) {
    gy_req *q = e->waiting_head;
    e->waiting_head = q->next;
    if (!e->waiting_head) e->waiting_tail = NULL;
    e->n_waiting--;
    return q;
}

static void drop_cancelled_waiting(gy_engine *e) {
    gy_req **link = &e->waiting_head, *last = NULL, *gone = NULL, **gone_link = &gone;
    while (*link) {
        gy_req *q = *link;
        if (!q->cancelled) {
            last = q;
            link = &q->next;
            continue;
        }
        *link = q->next;
        q->next = NULL;
        *gone_link = q;
        gone_link = &q->next;
        e->n_waiting--;
    }
    e->waiting_tail = last;
    while (gone) { /* the list is whole again: on_finish may submit */
        gy_req *q = gone;
        gone = q->next;
        report_finish(q, GY_FINISH_CANCELLED, NULL);
        req_free(q);
    }
}

static void drop_cancelled(gy_engine *e) {
    if (!e->n_cancel) return;
    e->n_cancel = 0;
    drop_cancelled_waiting(e);
    for (int32_t i = 0; i < e->o.max_seqs; i++)
        if (e->running[i].req && e->running[i].req->cancelled) gy_engine_finish(e, i, GY_FINISH_CANCELLED, NULL);
}

static int32_t free_slot(const gy_engine *e) {
    for (int32_t i = 0; i < e->o.max_seqs; i++)
        if (!e->running[i].req) return i;
    return -1;
}

static int fits_now(const gy_engine *e, const gy_request *r, int64_t need[GY_KV_GROUPS]) {
    const gy_kv_config *c = gy_kv_get_config(e->kv);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        need[g] = gy_kv_blocks_for(c, (gy_kv_group)g, n_kv_tok(r));
        if (e->reserved[g] + need[g] > c->n_block[g]) return 0;
    }
    return 1;
}

void gy_engine_admit(gy_engine *e) {
    drop_cancelled(e);
    while (e->waiting_head) {
        gy_request *r = &e->waiting_head->r;
        int64_t need[GY_KV_GROUPS];
        int32_t slot = free_slot(e), seq;
        if (slot < 0 || !fits_now(e, r, need)) return;
        if (gy_kv_seq_open(e->kv, (int32_t)n_kv_tok(r), &seq) != GY_OK) return;
        for (int g = 0; g < GY_KV_GROUPS; g++) e->reserved[g] += need[g];
        e->running[slot] = (gy_running){
            .req = pop_waiting(e), .kv_seq = seq, .pending = -1, .reserved = {need[GY_KV_CORE], need[GY_KV_BOUNDARY]}};
        e->n_running++;
    }
}

void gy_engine_finish(gy_engine *e, int32_t slot, gy_finish reason, const gy_err *err) {
    gy_running *u = &e->running[slot];
    gy_req *q = u->req;
    gy_engine_drop_flights(e, slot);
    gy_kv_seq_close(e->kv, u->kv_seq);
    for (int g = 0; g < GY_KV_GROUPS; g++) e->reserved[g] -= u->reserved[g];
    *u = (gy_running){.req = NULL};
    e->n_running--;
    report_finish(q, reason, err);
    req_free(q);
}

void gy_engine_get_stats(const gy_engine *e, gy_engine_stats *out) {
    *out = e->stats;
    out->n_waiting = e->n_waiting;
    out->n_running = e->n_running;
    const gy_kv_config *c = gy_kv_get_config(e->kv);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        out->kv_free[g] = gy_kv_n_free(e->kv, (gy_kv_group)g);
        out->kv_total[g] = c->n_block[g];
    }
}

const gy_kv *gy_engine_kv(const gy_engine *e) {
    return e->kv;
}
