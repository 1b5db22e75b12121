/* An engine in this process, and the choice between it and workers. */
#include "api/api_host.h"

#include "base/mem.h"
#include "model/loop.h"

typedef struct local_host {
    gy_api_host h;
    gy_engine *engine;
} local_host;

static gy_engine *engine_of(const gy_api_host *h) {
    return ((const local_host *)h)->engine;
}

static gy_status local_check(const gy_api_host *h, const gy_request *r, gy_err *err) {
    return gy_engine_check(engine_of(h), r, err);
}

static gy_status local_submit(gy_api_host *h, const gy_request *r, gy_err *err, int32_t *id_out) {
    return gy_engine_submit(engine_of(h), r, err, id_out);
}

static void local_cancel(gy_api_host *h, int32_t id) {
    gy_engine_cancel(engine_of(h), id);
}

static gy_status local_step(gy_api_host *h, gy_err *err) {
    return gy_engine_step(engine_of(h), err);
}

static void local_stats(const gy_api_host *h, gy_api_host_stats *out) {
    out->w = (gyre_worker_stats){0};
    gy_engine_get_stats(engine_of(h), &out->e);
}

static void local_close(gy_api_host *h) {
    gy_engine_close(engine_of(h));
    gy_mem_free(h);
}

static const gy_api_host_ops local_ops = {local_check, local_submit, local_cancel, local_step,
                                          local_stats, local_close,  NULL};

static gy_status local_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o,
                            void (*progress)(void *arg, size_t done, size_t total), void *progress_arg, gy_err *err,
                            gy_api_host **out) {
    gy_ops_limits limits = gy_loop_limits(&m->d, e->sched.max_rows, e->max_len);
    gy_api_load_opts load = {.backend = o->backend,
                             .threads = o->threads,
                             .limits = &limits,
                             .engine = e,
                             .progress = progress,
                             .progress_arg = progress_arg};
    local_host *h = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *h);
    if (!h) return gy_err_set(err, GY_E_NOMEM, "no memory for an engine");
    h->h = (gy_api_host){.ops = &local_ops, .fd = -1};
    gy_status st = gy_api_model_load(m, &load, err);
    if (st >= 0) st = gy_engine_open(m->model, e, err, &h->engine);
    if (st < 0) {
        gy_mem_free(h);
        return st;
    }
    h->h.plan = *gy_engine_get_plan(h->engine);
    gy_api_host_set_limits(&h->h, m, e);
    *out = &h->h;
    return GY_OK;
}

void gy_api_host_set_limits(gy_api_host *h, const gy_api_model *m, const gy_engine_opts *e) {
    h->max_len = e->max_len;
    h->max_loops = e->max_loops > m->d.n_loop ? e->max_loops : m->d.n_loop;
}

int gy_api_wants_peers(const gyre_options *o) {
    return o->peers || o->etcd;
}

int gy_api_wants_workers(const gyre_options *o) {
    return o->prefill != 0 || o->decode != 0 || o->hybrid != 0 || gy_api_wants_peers(o);
}

gy_status gy_api_host_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o,
                           void (*progress)(void *arg, size_t done, size_t total), void *progress_arg, gy_err *err,
                           gy_api_host **out) {
    if (gy_api_wants_workers(o)) return gy_api_workers_open(m, e, o, err, out);
    return local_open(m, e, o, progress, progress_arg, err, out);
}

void gy_api_host_close(gy_api_host *h) {
    if (h) h->ops->close(h);
}
