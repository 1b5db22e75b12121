/* A body becomes a request. What is small and of bounded cost is done at once, by the loop; the rest goes to a lane,
 * so that no stream waits for a stranger's prompt. What comes back is given to the engine, or answered.
 *
 * Deliberately not here: what preparing means (app_generate.c, app_info.c).
 */
#include "server/app_int.h"
#include "server/app_model.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* In bytes of the body. Measured on 2 GHz cores: handing over and taking back costs the loop 4 us and delays the
 * request by 10 us or more; to read a KiB costs 12 us, to make tokens of it 25 us (bytes) to 100 us (merges). What
 * stays here so holds up streams by a tenth of a millisecond, and a quick job those behind it by less than ten. */
enum { MAX_HERE = 1 << 10, MAX_QUICK = 64 << 10 };

/* Bodies of all requests that live, from their last byte to their end. A document takes up to 20 times its text
 * ("0,0,"), mostly about as much as it. */
enum { MAX_HELD = 128 << 20 };

static gy_status no_memory(gy_oai_error *e) {
    return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later");
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static gy_app_req *new_req(gy_app *a, gy_http_req *http, const gy_app_call *c) {
    gy_app_req *r = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *r);
    if (!r) return NULL;
    r->app = a;
    r->http = http;
    r->call = *c;
    gy_app_new_id(a, r->own_id, sizeof r->own_id);
    r->next = a->reqs;
    if (a->reqs) a->reqs->prev = r;
    a->reqs = r;
    a->held_bytes += c->bytes_in;
    return r;
}

static void free_req(gy_app_req *r) {
    gy_oai_reply_destroy(r->reply); /* borrows q */
    gy_app_chat_out_close(r->chat_out);
    for (int32_t i = 0; r->sub && r->q && i < r->q->n_prompt; i++) {
        gy_vec_free(&r->sub[i].ids);
        gy_mem_free(r->sub[i].last_ns);
    }
    gy_mem_free(r->sub);
    gyre_grammar_release(r->grammar);
    gy_oai_request_free(r->q);
    gy_mem_free(r->body);
    gy_str_free(&r->answer);
    gy_mem_free(r);
}

static void run_free(gy_app_job *j, void *worker) {
    (void)worker;
    free_req((gy_app_req *)j);
}

/* To take a large document apart takes as long as to build it: nothing for the loop either. */
void gy_app_release(gy_app_req *r) {
    gy_app *a = r->app;
    GY_CHECK(r->n_live == 0 && !r->in_work);
    *(r->prev ? &r->prev->next : &a->reqs) = r->next;
    if (r->next) r->next->prev = r->prev;
    a->held_bytes -= r->call.bytes_in;
    if (r->call.bytes_in <= MAX_QUICK || !a->lane[GY_APP_SLOW]) {
        free_req(r);
        return;
    }
    r->job = (gy_app_job){.run = run_free, .is_last = 1};
    GY_CHECK(gy_app_lane_push(a->lane[GY_APP_SLOW], &r->job) == GY_OK);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void note_unknown(gy_app *a, const gy_oai_request *q) {
    if (!q->n_unknown) return;
    gy_oai_metrics_unknown_fields(a->metrics, q->n_unknown);
    for (int32_t i = 0; i < q->n_unknown && i < GY_OAI_MAX_UNKNOWN; i++) {
        char name[300];
        if (gy_oai_seen_add(a->seen, q->unknown[i]))
            gy_log(GY_LOG_WARN, "server", "a request has a field that is not known: ignored", "field=%s",
                   gy_log_quote(q->unknown[i], name, sizeof name));
    }
}

static gy_status read_body(gy_app_req *r, const char *body, size_t n, gy_oai_error *e) {
    return gy_oai_request_parse(r->call.route->kind, body, n, &r->app->cfg, e, &r->q);
}

/* ---- on a lane --------------------------------------------------------------------------------------------------- */

/* What must be compiled may take long, however short it is. */
static int is_slow(const gy_oai_request *q) {
    return q->constraint.kind != GY_OAI_FREE || gy_app_wants_call(q);
}

static gy_status work(gy_app_req *r, gy_app_scratch *t) {
    if (r->body) {
        gy_status st = read_body(r, r->body, r->n_body, &r->error);
        gy_mem_free(r->body);
        r->body = NULL;
        if (st < 0) return st;
    }
    r->is_moving = r->lane == GY_APP_QUICK && is_slow(r->q);
    return r->is_moving ? GY_OK : r->call.route->prepare(r, t, &r->error);
}

static void run_work(gy_app_job *j, void *worker) {
    gy_app_req *r = (gy_app_req *)j;
    if (!atomic_load(&r->is_unwanted)) r->status = work(r, worker);
}

/* Beyond a lane's bounds the request is refused as one that finds the engine's queue full. */
static gy_status hand_over(gy_app_req *r, gy_app_lane_id lane, gy_oai_error *e) {
    r->job = (gy_app_job){.run = run_work, .bytes = sizeof *r + r->call.bytes_in};
    r->in_work = 1;
    r->lane = lane;
    if (gy_app_lane_push(r->app->lane[lane], &r->job) == GY_OK) return GY_OK;
    r->in_work = 0;
    return gy_oai_error_set(e, GY_OAI_E_QUEUE, NULL, "too many requests wait to be read; try again later");
}

static gy_status hand_over_body(gy_app_req *r, const char *body, size_t n, gy_oai_error *e) {
    r->body = gy_mem_alloc(GY_MEM_SERVER, n, 1);
    if (!r->body) return no_memory(e);
    memcpy(r->body, body, n);
    r->n_body = n;
    return hand_over(r, n <= MAX_QUICK ? GY_APP_QUICK : GY_APP_SLOW, e);
}

/* ---- on the loop ------------------------------------------------------------------------------------------------- */

/* Prepared: to the engine, or the answer. */
static gy_status conclude(gy_app_req *r, gy_oai_error *e) {
    GY_CHECK(r->q); /* what could not be read has failed before */
    if (r->q->kind == GY_OAI_COMPLETION || r->q->kind == GY_OAI_CHAT) return gy_app_submit(r, e);
    if (r->answer.failed) return no_memory(e);
    gy_app_answer(r->app, r->http, &r->call, "application/json", &r->answer);
    r->http = NULL;
    r->phase = GY_APP_DONE;
    gy_app_release(r);
    return GY_OK;
}

static gy_status take_small(gy_app_req *r, const char *body, size_t n, gy_oai_error *e) {
    GY_TRY(read_body(r, body, n, e));
    note_unknown(r->app, r->q);
    if (is_slow(r->q)) return hand_over(r, GY_APP_SLOW, e);
    /* How long a template takes is not said by the size of what it is given. */
    if (r->q->n_message) return hand_over(r, GY_APP_QUICK, e);
    GY_TRY(r->call.route->prepare(r, r->app->scratch, e));
    return conclude(r, e);
}

/* One that is larger than all of it is taken when there is no other. */
static gy_app_req *accept_req(gy_app *a, gy_http_req *http, const gy_app_call *c, gy_oai_error *e) {
    if (a->held_bytes && (c->bytes_in > MAX_HELD || a->held_bytes > MAX_HELD - c->bytes_in)) {
        gy_oai_error_set(e, GY_OAI_E_QUEUE, NULL, "the requests that are here hold too many bytes; try again later");
        return NULL;
    }
    gy_app_req *r = new_req(a, http, c);
    if (!r) no_memory(e);
    return r;
}

void gy_app_take(gy_app *a, gy_http_req *http, const gy_app_call *c) {
    size_t n;
    gy_oai_error e;
    const char *body = gy_http_req_body(http, &n);
    gy_app_req *r = accept_req(a, http, c, &e);
    if (!r) {
        gy_app_refuse(a, http, c, &e, NULL);
        return;
    }
    gy_http_req_set_user(http, r);
    gy_status st = n <= MAX_HERE ? take_small(r, body, n, &e) : hand_over_body(r, body, n, &e);
    if (st < 0) gy_app_fail(r, &e);
}

static gy_status go_on(gy_app_req *r, gy_oai_error *e) {
    if (!r->is_moving) return conclude(r, e);
    r->is_moving = 0;
    return hand_over(r, GY_APP_SLOW, e);
}

static void take_back(gy_app_req *r) {
    r->in_work = 0;
    if (r->q && r->n_body) note_unknown(r->app, r->q);
    r->n_body = 0;
    if (!r->http)
        gy_app_release(r);
    else if (r->status < 0 || go_on(r, &r->error) < 0)
        gy_app_fail(r, &r->error);
}

void gy_app_on_work(gy_app *a) {
    for (int i = 0; i < GY_APP_LANES; i++)
        for (gy_app_job *j; a->lane[i] && (j = gy_app_lane_take(a->lane[i]));) take_back((gy_app_req *)j);
}

/* ---- the lanes --------------------------------------------------------------------------------------------------- */

static void on_done(void *user) {
    gy_app *a = user;
    gy_http_server_wake(a->http);
}

gy_status gy_app_lanes_open(gy_app *a, gy_err *err) {
    static const struct {
        const char *name;
        int nice;
    } lanes[GY_APP_LANES] = {[GY_APP_QUICK] = {"gyre-quick", 0}, [GY_APP_SLOW] = {"gyre-slow", 10}};
    for (int i = 0; i < GY_APP_LANES; i++) {
        GY_TRY(gy_app_scratch_open(a, err, &a->lane_scratch[i]));
        const gy_app_lane_opts o = {.name = lanes[i].name,
                                    .nice = lanes[i].nice,
                                    .max_jobs = (size_t)a->o.engine.max_queue + (size_t)a->o.engine.max_seqs,
                                    .max_bytes = MAX_HELD,
                                    .on_done = on_done,
                                    .user = a,
                                    .worker = a->lane_scratch[i]};
        GY_TRY(gy_app_lane_open(&o, err, &a->lane[i]));
    }
    return GY_OK;
}

void gy_app_lanes_close(gy_app *a) {
    for (int i = 0; i < GY_APP_LANES; i++) {
        gy_app_lane_close(a->lane[i]);
        a->lane[i] = NULL;
        gy_app_scratch_close(a->lane_scratch[i]);
        a->lane_scratch[i] = NULL;
    }
    for (gy_app_req *r = a->reqs; r; r = r->next) r->in_work = 0;
}
