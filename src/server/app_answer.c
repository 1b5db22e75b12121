/* Answers leave here: the headers that each one has, its line in the access log, its counters. */
#include "server/app_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/oai_log.h"

#include <string.h>

enum { MAX_HEADERS = 16, MAX_LINES = 512 };

typedef struct headers {
    gy_http_header h[MAX_HEADERS];
    size_t n;
    char lines[MAX_LINES]; /* what the error table says, cut into names and values */
} headers;

static void add(headers *hs, const char *name, const char *value) {
    GY_CHECK(hs->n < MAX_HEADERS);
    hs->h[hs->n++] = (gy_http_header){name, value};
}

static void headers_init(headers *hs, const gy_app *a, const gy_app_call *c) {
    hs->n = 0;
    add(hs, "Server", a->server);
    add(hs, "x-request-id", c->id);
    if (!c->cors) return;
    add(hs, "Access-Control-Allow-Origin", c->cors);
    add(hs, "Access-Control-Expose-Headers", "x-request-id, Retry-After");
    add(hs, "Vary", "Origin");
}

/* "Name: value\r\n" each. */
static void add_lines(headers *hs, const gy_str *s) {
    if (!s->len || s->failed || s->len >= sizeof hs->lines) return;
    memcpy(hs->lines, s->data, s->len + 1);
    for (char *p = hs->lines, *end; *p; p = end + 2) {
        char *colon = strstr(p, ": ");
        end = strstr(p, "\r\n");
        if (!colon || !end) return;
        *colon = *end = '\0';
        add(hs, p, colon + 2);
    }
}

/* ---- the log and the counters ----------------------------------------------------------------------------------- */

static int64_t span(const gyre_pd_cost *c, gyre_pd_stage from, gyre_pd_stage to) {
    return c->at_ns[from] && c->at_ns[to] ? c->at_ns[to] - c->at_ns[from] : 0;
}

static void fill_workers(gy_oai_access *l, const gyre_pd_cost *c) {
    l->n_try = c->n_try;
    l->prefill = c->prefill;
    l->decode = c->decode;
    l->prefill_ns = span(c, GYRE_PD_PREFILL_STARTED, GYRE_PD_PREFILL_COMPLETED);
    l->handoff_ns = span(c, GYRE_PD_PREFILL_COMPLETED, GYRE_PD_D_ACTIVATED);
}

static void fill_tokens(gy_oai_access *l, const gy_app_req *q) {
    gy_oai_usage u;
    l->model = q->q ? q->q->model : NULL;
    l->finish = q->finish;
    l->ttft_ns = q->first_ns ? q->first_ns - q->call.start_ns : 0;
    fill_workers(l, &q->pd);
    if (!q->reply) return;
    gy_oai_reply_usage(q->reply, &u);
    l->has_tokens = 1;
    l->prompt_tokens = u.prompt_tokens;
    l->cached_tokens = u.cached_tokens;
    l->output_tokens = u.completion_tokens;
    l->loop_sum = u.loop_sum;
}

static void write_line(gy_app *a, const gy_oai_access *l) {
    gy_str_clear(&a->line);
    gy_oai_access_line(l, a->o.access_log == GY_APP_LOG_JSON ? GY_OAI_LOG_JSON : GY_OAI_LOG_LOGFMT, &a->line);
    if (a->line.failed) {
        gy_str_free(&a->line);
        return;
    }
    (void)gy_log_writer_put(a->log, a->line.data, a->line.len); /* what is dropped is counted there */
}

void gy_app_note(gy_app *a, const gy_app_call *c, int status, uint64_t sent, gy_app_req *q, const char *error) {
    int64_t took = gy_clock_ns() - c->start_ns;
    gy_oai_route route = c->route ? c->route->metric : GY_OAI_R_OTHER;
    if (a->metrics) gy_oai_metrics_http(a->metrics, route, status, (double)took * 1e-9, c->bytes_in, (size_t)sent);
    if (a->o.access_log == GY_APP_LOG_OFF) return;
    gy_oai_access l = {.wall_ns = c->wall_ns,
                       .remote = c->peer,
                       .method = c->method,
                       .target = c->target,
                       .n_target = c->n_target,
                       .status = status,
                       .duration_ns = took,
                       .bytes_in = c->bytes_in,
                       .bytes_out = (size_t)sent,
                       .request_id = c->id,
                       .user_agent = c->agent[0] ? c->agent : NULL,
                       .error = error};
    if (q && !q->in_work) fill_tokens(&l, q);
    write_line(a, &l);
}

/* ---- whole replies ---------------------------------------------------------------------------------------------- */

/* The head is made of our own values and an id that was checked: it cannot be refused. */
static void send_reply(gy_app *a, gy_http_req *r, const headers *hs, int status, const char *type, const char *body,
                       size_t n) {
    gy_err err = {0};
    const gy_http_answer ans = {.status = status, .content_type = type, .extra = hs->h, .n_extra = hs->n};
    (void)a;
    GY_CHECK(gy_http_reply(r, &ans, body, n, &err) != GY_E_ARG);
}

static void no_memory(gy_app *a, gy_http_req *r, const gy_app_call *c, gy_app_req *q) {
    static const char body[] = "{\"error\":{\"message\":\"no memory for this reply now; try again later\",\"type\":"
                               "\"unavailable_error\",\"param\":null,\"code\":\"busy\"}}";
    headers hs;
    headers_init(&hs, a, c);
    add(&hs, "Retry-After", "1");
    send_reply(a, r, &hs, 503, "application/json", body, sizeof body - 1);
    gy_app_note(a, c, 503, sizeof body - 1, q, "busy");
}

void gy_app_answer(gy_app *a, gy_http_req *r, const gy_app_call *c, const char *type, const gy_str *body) {
    headers hs;
    if (body->failed) {
        no_memory(a, r, c, NULL);
        return;
    }
    headers_init(&hs, a, c);
    send_reply(a, r, &hs, 200, type, gy_str_z(body), body->len);
    gy_app_note(a, c, 200, body->len, NULL, NULL);
}

void gy_app_answer_as(gy_app *a, gy_http_req *r, const gy_app_call *c, const gy_http_answer *own, const char *body,
                      size_t n) {
    headers hs;
    headers_init(&hs, a, c);
    for (size_t i = 0; i < own->n_extra; i++) add(&hs, own->extra[i].name, own->extra[i].value);
    send_reply(a, r, &hs, own->status, own->content_type, body, n);
    gy_app_note(a, c, own->status, n, NULL, NULL);
}

void gy_app_body(gy_app_req *q, const gy_str *body) {
    headers hs;
    headers_init(&hs, q->app, &q->call);
    send_reply(q->app, q->http, &hs, 200, "application/json", gy_str_z(body), body->len);
    gy_app_note(q->app, &q->call, 200, body->len, q, NULL);
}

void gy_app_refuse(gy_app *a, gy_http_req *r, const gy_app_call *c, const gy_oai_error *e, gy_app_req *q) {
    headers hs;
    gy_str body = {0}, lines = {0};
    gy_oai_error_body(e, &body);
    gy_oai_error_headers(e, &lines);
    if (body.failed || lines.failed) {
        no_memory(a, r, c, q);
    } else {
        headers_init(&hs, a, c);
        add_lines(&hs, &lines);
        send_reply(a, r, &hs, e->http, "application/json", body.data, body.len);
        const char *code = gy_oai_error_code(e);
        gy_app_note(a, c, e->http, body.len, q, code ? code : e->msg);
    }
    gy_str_free(&body);
    gy_str_free(&lines);
}

void gy_app_empty(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    headers hs;
    headers_init(&hs, a, c);
    add(&hs, "Allow", c->route->allow);
    if (c->cors) {
        add(&hs, "Access-Control-Allow-Methods", c->route->allow);
        add(&hs, "Access-Control-Allow-Headers", "Authorization, Content-Type, x-request-id");
        add(&hs, "Access-Control-Max-Age", "600");
    }
    send_reply(a, r, &hs, 204, NULL, "", 0);
    gy_app_note(a, c, 204, 0, NULL, NULL);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

gy_status gy_app_stream_begin(gy_app_req *q) {
    headers hs;
    gy_err err = {0};
    headers_init(&hs, q->app, &q->call);
    add(&hs, "Cache-Control", "no-cache");
    add(&hs, "X-Accel-Buffering", "no");
    const gy_http_answer ans = {.status = 200, .content_type = "text/event-stream", .extra = hs.h, .n_extra = hs.n};
    gy_status st = gy_http_stream_begin(q->http, &ans, &err);
    GY_CHECK(st != GY_E_ARG);
    if (st == GY_OK) q->phase = GY_APP_STREAMING;
    return st;
}
