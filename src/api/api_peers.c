/* Workers on other hosts: where they are said to be, which of them can be used, and what requests they take.
 *
 * A worker is accepted when what it says of its model is what config.json says here; among themselves they are alike
 * by the coordinator's rule (msg.h). Requests are checked by the smallest of those that were there when the host
 * opened. One that joins later must take at least as much, so that what was let in fits wherever it goes.
 */
#include "api/api_workers.h"

#include "engine/kvmem.h"
#include "model/loop.h"

#include <stdio.h>
#include <string.h>

enum { MIN_PEER_MS = 100 };

/* ---- options ----------------------------------------------------------------------------------------------------- */

static gy_status check_which(const gyre_options *o, gy_err *err) {
    if (o->peers && o->etcd) return gy_err_set(err, GY_E_ARG, "peers, etcd: found both, expected one of them");
    if (o->prefill || o->decode || o->hybrid)
        return gy_err_set(err, GY_E_ARG,
                          "%s: found together with prefill, decode or hybrid; workers of this host, too, are then "
                          "started by gyre worker --listen",
                          o->peers ? "peers" : "etcd");
    if (!o->secret_file)
        return gy_err_set(err, GY_E_ARG,
                          "secret_file: found none; workers on other hosts are spoken to over a secret that all share");
    return GY_OK;
}

static gy_status check(const gyre_options *o, gy_err *err) {
    GY_TRY(check_which(o, err));
    if (o->peer_timeout_ms < MIN_PEER_MS)
        return gy_err_set(err, GY_E_ARG, "peer_timeout_ms: found %d, expected %d or more", o->peer_timeout_ms,
                          MIN_PEER_MS);
    if (o->local_prefill_below < 0)
        return gy_err_set(err, GY_E_ARG, "local_prefill_below: found %d, expected 0 or more", o->local_prefill_below);
    if (o->local_prefill_queue < 0)
        return gy_err_set(err, GY_E_ARG, "local_prefill_queue: found %d, expected 0 or more", o->local_prefill_queue);
    if (o->worker_start_ms < 1)
        return gy_err_set(err, GY_E_ARG, "worker_start_ms: found %d, expected 1 or more", o->worker_start_ms);
    if (o->etcd && (!o->cluster[0] || strchr(o->cluster, '/') || strlen(o->cluster) > 100))
        return gy_err_set(err, GY_E_ARG, "cluster: found '%.120s', expected a name of 1 to 100 bytes without '/'",
                          o->cluster);
    return GY_OK;
}

static gy_status open_disc(const gyre_options *o, gy_err *err, gy_disc **out) {
    char prefix[128];
    (void)snprintf(prefix, sizeof prefix, "/gyre/%s/workers/", o->cluster);
    gy_disc_opts d = {.file = o->peers, .etcd = o->etcd, .etcd_ca = o->etcd_ca, .prefix = o->etcd ? prefix : NULL};
    return gy_disc_open(&d, err, out);
}

/* ---- which workers ----------------------------------------------------------------------------------------------- */

static gy_status same(const char *what, int64_t found, int64_t expected, gy_err *err) {
    if (found == expected) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: the worker has %lld, config.json here says %lld", what, (long long)found,
                      (long long)expected);
}

static gy_status check_model(const gy_model_desc *d, const gy_pd_info *i, gy_err *err) {
    gy_kv_config c = gy_kvmem_config(d, (gy_dtype)i->dtype, d->max_pos);
    if (strcmp(i->family, d->family) != 0)
        return gy_err_set(err, GY_E_ARG, "family: the worker has %.31s, config.json here says %s", i->family,
                          d->family);
    GY_TRY(same("n_embd", i->n_embd, d->n_embd, err));
    GY_TRY(same("n_vocab", i->n_vocab, d->n_vocab, err));
    GY_TRY(same("n_loop", i->n_loop, d->n_loop, err));
    GY_TRY(same("n_head_kv", i->n_head_kv, c.n_head_kv, err));
    GY_TRY(same("head_dim", i->head_dim, c.head_dim, err));
    for (int g = 0; g < GY_KV_GROUPS; g++) GY_TRY(same("layers with KV", i->n_layer[g], c.n_layer[g], err));
    return GY_OK;
}

static int is_sane(const gy_pd_info *i) {
    int known = i->dtype == GY_F32 || i->dtype == GY_BF16 || i->dtype == GY_I8;
    return known && i->layout >= GY_KV_LAST_EXITED && i->layout <= GY_KV_CYCLIC && i->depth >= i->n_loop &&
           i->depth <= GY_ENGINE_MAX_LOOPS && i->max_len > 0 && i->max_seqs > 0 && i->max_queue > 0 &&
           i->max_handoff > 0;
}

static gy_status at_least(const char *what, int32_t found, int32_t least, gy_err *err) {
    if (found >= least) return GY_OK;
    return gy_err_set(err, GY_E_ARG,
                      "%s: the worker has %d, requests that were let in may need %d (the smallest worker when this "
                      "began); give it as much, or begin again with it",
                      what, found, least);
}

static gy_status accept_worker(void *user, const gy_msg_ready *r, gy_err *err) {
    gy_worker_host *w = user;
    const gy_pd_info *i = &r->info, *l = &w->least;
    if (!is_sane(i)) return gy_err_set(err, GY_E_ARG, "worker: what it says of itself is impossible");
    GY_TRY(check_model(&w->m->d, i, err));
    if (!w->is_open) return GY_OK;
    for (int g = 0; g < GY_KV_GROUPS; g++) GY_TRY(at_least("KV blocks", i->n_block[g], l->n_block[g], err));
    return at_least("max_queue", i->max_queue, l->max_queue, err);
}

/* ---- what requests they take ------------------------------------------------------------------------------------- */

static gy_engine_opts opts_of(const gy_pd_info *i, const gy_model_desc *d, const gy_engine_opts *own) {
    gy_engine_opts e = *own;
    e.kv_layout = (gy_kv_layout)i->layout;
    e.cyclic_k = i->cyclic_k;
    e.kv_type = i->dtype == GY_I8 ? GY_KV_INT8 : GY_KV_AUTO;
    e.max_len = own->max_len && own->max_len < i->max_len ? own->max_len : i->max_len;
    e.max_loops = i->depth > d->n_loop ? i->depth : 0;
    e.max_handoff = i->max_handoff;
    e.kv_blocks = i->n_block[GY_KV_CORE];
    e.kv_bytes = e.park_bytes = 0;
    if (i->max_queue < e.sched.max_queue) e.sched.max_queue = i->max_queue;
    e.sched.max_seqs = i->max_seqs;
    return e;
}

static void lower(int32_t *field, int32_t v) {
    if (v < *field) *field = v;
}

static void find_least(gy_worker_host *w) {
    const gy_coord *c = gy_host_coord(w->host);
    w->least = *gy_coord_info(c);
    for (int32_t k = 0; k < gy_host_n_worker(w->host); k++) {
        const gy_pd_info *i = gy_coord_worker_info(c, k);
        if (!i) continue;
        for (int g = 0; g < GY_KV_GROUPS; g++) lower(&w->least.n_block[g], i->n_block[g]);
        lower(&w->least.max_queue, i->max_queue);
        lower(&w->least.max_seqs, i->max_seqs);
    }
}

gy_status gy_api_workers_set_bounds(gy_worker_host *w, gy_api_model *m, const gy_engine_opts *own, gy_err *err) {
    find_least(w);
    m->act = (gy_dtype)w->least.dtype;
    gy_engine_opts e = opts_of(&w->least, &m->d, own);
    GY_TRY(gy_engine_make_plan(&m->d, m->act, &e, 0, err, &w->h.plan));
    memcpy(w->h.plan.n_block, w->least.n_block, sizeof w->h.plan.n_block);
    w->h.plan.limit = "workers";
    w->bounds = gy_engine_plan_bounds(&m->d, m->act, &e, &w->h.plan);
    gy_api_host_set_limits(&w->h, m, &e);
    return GY_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static gy_status open_host(gy_worker_host *w, const gy_engine_opts *e, const gyre_options *o, gy_err *err) {
    gy_secret secret;
    gy_host_opts ho;
    GY_TRY(gy_secret_read(o->secret_file, err, &secret));
    GY_TRY(open_disc(o, err, &w->disc));
    gy_host_opts_default(&ho);
    ho.coord.max_queue = e->sched.max_queue;
    gy_api_set_placement(o, e, &ho.coord);
    ho.disc = w->disc;
    ho.secret = &secret;
    ho.start_ms = o->worker_start_ms;
    ho.peer_ms = o->peer_timeout_ms;
    ho.accept = accept_worker;
    ho.user = w;
    ho.should_stop = o->should_stop;
    ho.should_stop_user = o->should_stop_user;
    return gy_host_open(&ho, err, &w->host);
}

static gy_status open_backend(gy_api_model *m, const gy_worker_host *w, const gyre_options *o, gy_err *err) {
    gy_ops_limits limits = gy_loop_limits(&m->d, 1, w->h.max_len);
    gy_api_load_opts load = {.backend = o->backend, .threads = 1, .limits = &limits};
    return gy_api_model_open_backend(m, &load, err);
}

gy_status gy_api_peers_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o, gy_err *err,
                            gy_api_host **out) {
    GY_TRY(check(o, err));
    gy_worker_host *w = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *w);
    if (!w) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    w->h.ops = &gy_worker_host_ops;
    w->m = m;
    gy_status st = open_host(w, e, o, err);
    if (st >= 0) st = gy_api_workers_set_bounds(w, m, e, err);
    if (st >= 0) st = open_backend(m, w, o, err);
    if (st < 0) {
        w->h.ops->close(&w->h);
        return st;
    }
    w->is_open = 1;
    w->h.fd = gy_host_fd(w->host);
    *out = &w->h;
    return GY_OK;
}
