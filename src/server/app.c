/* The server's begin and end: the port, then the model in a thread of its own, then the loop; draining. */
#include "server/app_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int gy_app_is_ready(const gy_app *a, gy_oai_error *e) {
    if (atomic_load(&a->n_drain))
        gy_oai_error_set(e, GY_OAI_E_DRAINING, NULL, "the server is shutting down");
    else if (!a->is_serving)
        gy_oai_error_set(e, GY_OAI_E_LOADING, NULL, "the model is loading");
    else if (a->is_lost)
        gy_oai_error_set(e, GY_OAI_E_DEAD, NULL, "the engine cannot go on");
    else
        return 1;
    return 0;
}

/* The engine tells whoever submits that it is lost, before it looks at the request. This one is refused in any case,
 * and before memory is taken for it, so that none of that can be short. An error that an event reports is not enough:
 * memory may be short for one request only. */
void gy_app_check_lost(gy_app *a) {
    gyre_request r;
    gyre_err err = {0};
    uint64_t id;
    char why[600];
    gyre_request_default(&r, sizeof r);
    r.n_bias = -1;
    gyre_status st = gyre_submit(a->g, &r, &err, &id);
    GY_CHECK(st != GYRE_OK);
    if (a->is_lost || gyre_status_group(st) != GYRE_GROUP_ENGINE) return;
    a->is_lost = 1;
    gy_err_set(&a->lost_err, (gy_status)st, "%s", err.msg);
    gy_log(GY_LOG_ERROR, "server", "nothing can be served any more", "error=%s",
           gy_log_quote(err.msg, why, sizeof why));
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

static int is_drained(void *user) {
    return atomic_load(&((gy_app *)user)->n_drain) > 0;
}

static gy_status load(gy_app *a, gy_err *err) {
    gyre_err ge = {0};
    gyre_options o = a->o.engine;
    o.should_stop = is_drained;
    o.should_stop_user = a;
    gyre_status st = gyre_open(a->o.dir, &o, &ge, &a->g);
    if (st >= 0) st = gyre_start(a->g, &ge);
    if (st < 0) return gy_err_set(err, (gy_status)st, "%s", ge.msg);
    a->info = gyre_get_info(a->g);
    GY_TRY(gy_app_model_open(&a->o, a->info->has_tokenizer, err, &a->model));
    GY_TRY(gy_app_scratch_open(a, err, &a->scratch));
    return gy_app_lanes_open(a, err);
}

static void *load_main(void *arg) {
    gy_app *a = arg;
    gy_status st = load(a, &a->load_err);
    atomic_store(&a->state, st < 0 ? GY_APP_FAILED : GY_APP_READY);
    gy_http_server_wake(a->http);
    return NULL;
}

const gyre_info *gy_app_info(const gy_app *a) {
    return a->info;
}

static void set_config(gy_app *a) {
    const gyre_info *i = a->info;
    gy_oai_config_default(&a->cfg);
    a->cfg.models = a->o.names.s;
    a->cfg.n_model = (int32_t)a->o.names.n;
    a->cfg.n_vocab = i->n_vocab;
    a->cfg.max_len = i->max_len;
    a->cfg.max_loops = i->max_loops;
    a->cfg.has_tokenizer = i->has_tokenizer;
    a->cfg.has_gate = i->has_gate;
    /* What can never wait in the queue together is refused, not told to try again. */
    if (a->o.engine.max_queue < a->cfg.max_choices) a->cfg.max_choices = a->o.engine.max_queue;
}

/* FNV-1a. Not a secret: the same number for the same model and configuration. */
static uint32_t mix(uint32_t h, const void *p, size_t n) {
    for (const unsigned char *c = p; n--; c++) h = (h ^ *c) * 16777619u;
    return h;
}

static void set_fingerprint(gy_app *a) {
    const gyre_info *i = a->info;
    uint32_t h = mix(2166136261u, i->family, strlen(i->family));
    h = mix(h, i->dtype, strlen(i->dtype));
    h = mix(h, i->weights, strlen(i->weights));
    h = mix(h, i->kv_dtype, strlen(i->kv_dtype));
    h = mix(h, i->backend, strlen(i->backend));
    h = mix(h, a->o.engine.kv_layout, strlen(a->o.engine.kv_layout));
    h = mix(h, &i->n_vocab, sizeof i->n_vocab);
    h = mix(h, &i->n_loop, sizeof i->n_loop);
    h = mix(h, &i->weight_bytes, sizeof i->weight_bytes);
    snprintf(a->fingerprint, sizeof a->fingerprint, "gyre-%.16s-%08x", gyre_version(), h);
}

static gy_status make_metrics(gy_app *a) {
    const gyre_info *i = a->info;
    gyre_stats s;
    gyre_get_stats(a->g, &s, sizeof s);
    const gy_oai_metrics_info m = {.model_name = a->o.names.s[0],
                                   .max_len = i->max_len,
                                   .max_loops = i->max_loops,
                                   .block_size = 16,
                                   .n_block = s.kv_blocks_total,
                                   .cache_dtype = i->kv_dtype,
                                   .kv_layout = a->o.engine.kv_layout,
                                   .prefix_cache = a->o.engine.prefix_cache,
                                   .kv_bytes = i->kv_bytes,
                                   .weight_bytes = i->weight_bytes,
                                   .max_queue = a->o.engine.max_queue,
                                   .max_queue_tokens = a->o.max_queue_tokens,
                                   .has_workers = s.worker.n_worker > 0};
    a->metrics = gy_oai_metrics_create(&m);
    return a->metrics ? GY_OK : gy_err_set(&a->load_err, GY_E_NOMEM, "metrics: no memory");
}

static gy_status begin_serving(gy_app *a) {
    set_config(a);
    set_fingerprint(a);
    GY_TRY(make_metrics(a));
    GY_TRY(gy_http_server_watch(a->http, gyre_event_fd(a->g), gy_app_on_events, a, &a->load_err));
    a->is_serving = 1;
    if (a->on_ready) a->on_ready(a->ready_user);
    return GY_OK;
}

/* ---- the loop's calls ------------------------------------------------------------------------------------------- */

static void on_wake(void *user) {
    gy_app *a = user;
    if (atomic_exchange(&a->hangup, 0)) gy_app_reopen(a);
    int state = atomic_load(&a->state);
    if (state == GY_APP_READY && !a->is_serving && begin_serving(a) < 0) {
        state = GY_APP_FAILED;
        atomic_store(&a->state, state);
    }
    if (state == GY_APP_FAILED) gy_http_server_drain(a->http, 0);
    if (a->is_serving) gy_app_on_work(a);
}

void gy_app_drain(gy_app *a) {
    int before = atomic_fetch_add(&a->n_drain, 1);
    gy_http_server_drain(a->http, before ? 0 : a->o.drain_ms);
}

void gy_app_hangup(gy_app *a) {
    atomic_store(&a->hangup, 1);
    gy_http_server_wake(a->http);
}

/* ---- open, run, close ------------------------------------------------------------------------------------------- */

gy_status gy_app_open(const gy_app_opts *o, gy_err *err, gy_app **out) {
    gy_app *a = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *a);
    if (!a) return gy_err_set(err, GY_E_NOMEM, "server: no memory");
    GY_CHECK(o->names.n > 0);
    a->o = *o;
    a->created_s = gy_clock_wall_ns() / 1000000000;
    snprintf(a->server, sizeof a->server, "gyre/%.16s", gyre_version());
    const gy_http_handler h = {.user = a,
                               .on_head = gy_app_on_head,
                               .on_request = gy_app_on_request,
                               .on_gone = gy_app_on_gone,
                               .on_refused = gy_app_on_refused,
                               .on_wake = on_wake,
                               .on_tick = gy_app_on_tick};
    a->o.http.tick_ms = gy_app_tick_ms(o->request_ms);
    gy_status st = gy_http_server_open(&a->o.http, &h, err, &a->http);
    if (st == GY_OK) st = gy_app_log_open(a, err);
    if (st == GY_OK && !(a->seen = gy_oai_seen_create())) st = gy_err_set(err, GY_E_NOMEM, "server: no memory");
    if (st == GY_OK && getrandom(a->id_key, sizeof a->id_key, 0) != sizeof a->id_key)
        st = gy_err_set(err, GY_E_IO, "server: the system gave no random bytes");
    if (st != GY_OK) {
        gy_app_close(a);
        return st;
    }
    *out = a;
    return GY_OK;
}

int gy_app_port(const gy_app *a) {
    return gy_http_server_port(a->http);
}

gy_status gy_app_run(gy_app *a, void (*on_ready)(void *user), void *user, gy_err *err) {
    a->on_ready = on_ready;
    a->ready_user = user;
    if (pthread_create(&a->loader, NULL, load_main, a) != 0)
        return gy_err_set(err, GY_E_NOMEM, "server: no thread to load the model in");
    a->has_loader = 1;
    gy_status st = gy_http_server_run(a->http, err);
    pthread_join(a->loader, NULL);
    a->has_loader = 0;
    int is_stopped = a->load_err.status == GY_E_CANCELLED && is_drained(a); /* nobody wants it any more */
    if (st == GY_OK && atomic_load(&a->state) == GY_APP_FAILED && !is_stopped)
        st = gy_err_set(err, a->load_err.status, "%s", a->load_err.msg);
    if (st == GY_OK && a->is_lost) st = gy_err_set(err, a->lost_err.status, "%s", a->lost_err.msg);
    return st;
}

void gy_app_close(gy_app *a) {
    if (!a) return;
    gy_app_lanes_close(a);
    gy_http_server_close(a->http);
    gyre_close(a->g); /* after it no event can point into a request */
    while (a->reqs) {
        a->reqs->n_live = 0;
        gy_app_release(a->reqs);
    }
    gy_app_scratch_close(a->scratch);
    gy_app_model_close(a->model);
    gy_oai_metrics_destroy(a->metrics);
    gy_oai_seen_destroy(a->seen);
    gy_app_log_close(a);
    gy_str_free(&a->out);
    gy_str_free(&a->line);
    gy_mem_free(a);
}
