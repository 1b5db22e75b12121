/* The engine's events become bytes: each goes to the request that its `user` names. The end of requests, from either
 * side.
 */
#include "server/app_int.h"

#include "base/clock.h"

enum { EVENTS_PER_TURN = 2048, STATUS_GONE = 499 };

void gy_app_cancel(gy_app_req *r) {
    if (r->in_work) {
        atomic_store(&r->is_unwanted, 1);
        return;
    }
    for (int32_t i = 0; r->sub && i < r->q->n_prompt; i++)
        if (r->sub[i].live) gyre_cancel(r->app->g, r->sub[i].id);
}

/* The HTTP side has ended; what a lane or the engine still does for it is not wanted. */
static void end(gy_app_req *r, gy_app_phase phase) {
    r->http = NULL;
    r->phase = phase;
    if (r->in_work || r->n_live)
        gy_app_cancel(r);
    else
        gy_app_release(r);
}

static void break_stream(gy_app_req *r, const gy_oai_error *e) {
    const char *code = gy_oai_error_code(e);
    if (!r->app->out.failed) gy_http_stream_write(r->http, gy_str_z(&r->app->out), r->app->out.len);
    uint64_t sent = gy_http_req_sent(r->http);
    gy_http_stream_break(r->http);
    /* The head said 200; the log says what it came to. */
    gy_app_note(r->app, &r->call, e->http, sent, r, code ? code : e->msg);
}

void gy_app_fail(gy_app_req *r, const gy_oai_error *e) {
    if (r->phase == GY_APP_STREAMING) {
        gy_str_clear(&r->app->out);
        gy_oai_reply_fail(r->reply, e, &r->app->out);
        break_stream(r, e);
    } else {
        gy_app_refuse(r->app, r->http, &r->call, e, r);
    }
    end(r, GY_APP_DONE);
}

/* ---- one event --------------------------------------------------------------------------------------------------- */

static void count_token(gy_app_req *r, gy_app_sub *s, const gyre_event *ev, int64_t now) {
    int64_t last = s->last_ns[ev->choice];
    int is_first = last == 0;
    gy_oai_metrics_token(r->app->metrics, ev->loops, is_first, (double)(now - (is_first ? s->submit_ns : last)) * 1e-9);
    s->last_ns[ev->choice] = now;
    if (!r->first_ns) r->first_ns = now;
}

static void count_finish(gy_app_req *r, gy_app_sub *s, const gyre_event *ev) {
    const gyre_finish *f = ev->finish;
    if (f->n_output > s->max_output) s->max_output = f->n_output;
    gy_oai_metrics_finish(r->app->metrics, ev->choice, f, s->max_output);
    r->finish = gyre_finish_name(f->reason);
    r->pd = f->pd;
    if (f->reason == GYRE_FINISH_ERROR && gyre_status_group(f->error) == GYRE_GROUP_ENGINE) gy_app_check_lost(r->app);
    if (f->n_left) return;
    s->live = 0;
    r->n_live--;
}

static void finish_reply(gy_app_req *r, gy_str *out) {
    if (r->phase == GY_APP_STREAMING) {
        gy_http_stream_write(r->http, out->data, out->len);
        uint64_t sent = gy_http_req_sent(r->http);
        gy_http_stream_end(r->http);
        gy_app_note(r->app, &r->call, 200, sent, r, NULL);
    } else {
        gy_app_body(r, out);
    }
    end(r, GY_APP_DONE);
}

/* GY_E_PEER: on_gone follows from the loop. */
static gy_status send_frames(gy_app_req *r, const gy_str *out) {
    if (r->phase != GY_APP_STREAMING) GY_TRY(gy_app_stream_begin(r));
    return gy_http_stream_write(r->http, out->data, out->len);
}

static void deliver(gy_app_req *r, const gy_app_sub *s, const gyre_event *ev) {
    gy_oai_error e;
    gy_oai_delta delta;
    gy_str *out = &r->app->out;
    int is_filtered = r->chat_out && ev->kind != GYRE_EVENT_PROMPT;
    if (is_filtered && gy_app_chat_out_event(r, ev, &delta) < 0) {
        gy_oai_error_from_status(&e, GYRE_E_NOMEM, NULL);
        gy_app_fail(r, &e);
        return;
    }
    if (out->failed) gy_str_free(out);
    *out = (gy_str){.data = out->data, .cap = out->cap};
    gy_str_clear(out);
    gy_status st = gy_oai_reply_event(r->reply, s->prompt, ev, is_filtered ? &delta : NULL, out, &e);
    if (st < 0) {
        /* Before the first frame an error can still have its own status. */
        if (r->phase == GY_APP_STREAMING)
            break_stream(r, &e);
        else
            gy_app_refuse(r->app, r->http, &r->call, &e, r);
        end(r, GY_APP_DONE);
    } else if (st == GY_DONE) {
        if (r->q->stream && r->phase != GY_APP_STREAMING && gy_app_stream_begin(r) < 0) return;
        finish_reply(r, out);
    } else if (r->q->stream && out->len) {
        (void)send_frames(r, out);
    }
}

static void on_event(const gyre_event *ev, int64_t now) {
    gy_app_sub *s = ev->user;
    gy_app_req *r = s->req;
    gy_app_started(s);
    if (ev->kind == GYRE_EVENT_TOKEN) count_token(r, s, ev, now);
    if (ev->kind == GYRE_EVENT_FINISH) count_finish(r, s, ev);
    if (r->http)
        deliver(r, s, ev);
    else if (r->n_live == 0)
        gy_app_release(r);
}

/* The descriptor stays readable until gyre_poll says that there is no more, so a turn that stops before goes on in the
 * next one, after the sockets. */
void gy_app_on_events(void *user) {
    gy_app *a = user;
    const gyre_event *ev;
    gyre_stats s;
    int64_t now = gy_clock_ns();
    for (int i = 0; i < EVENTS_PER_TURN && gyre_poll(a->g, 0, &ev) == GYRE_OK; i++) on_event(ev, now);
    gyre_get_stats(a->g, &s, sizeof s);
    gy_app_backlog_note(a, &s);
    gy_oai_metrics_stats(a->metrics, &s);
}

/* ---- the client's side ------------------------------------------------------------------------------------------- */

static const char *gone_name(gy_http_gone why) {
    switch (why) {
    case GY_HTTP_GONE_SLOW:
        return "slow_reader";
    case GY_HTTP_GONE_SHUTDOWN:
        return "shutdown";
    case GY_HTTP_GONE_NOMEM:
        return "no_memory";
    default:
        return "client_gone";
    }
}

void gy_app_on_gone(void *user, gy_http_req *http, gy_http_gone why) {
    gy_app_req *r = gy_http_req_user(http);
    (void)user;
    GY_CHECK(r && r->http == http);
    gy_app_note(r->app, &r->call, STATUS_GONE, gy_http_req_sent(http), r, gone_name(why));
    end(r, GY_APP_GONE);
}
