/* What happens to a server that runs: time that is up, an engine that is lost, SIGHUP, the access log.
 *
 * A lost engine. Nothing but a new process brings it back, so the server says so and then ends with an error, which is
 * what a supervisor restarts (docs/gyre.service): at once every request that runs ends with an error, /health and new
 * requests get 503 with Retry-After for LOST_MS, so that whoever asks /health can turn away, then the port closes. That
 * is also what makes it seen where nobody looks at /health.
 */
#include "server/app_int.h"

#include "base/clock.h"
#include "base/log.h"

enum {
    LOG_BYTES = 1 << 20,
    LOG_WAIT_MS = 2000,
    LOST_MS = 3000,
    LOST_DRAIN_MS = 1000,
    TICK_MAX_MS = 200,
    TICK_MIN_MS = 10
};

/* ---- time -------------------------------------------------------------------------------------------------------- */

int gy_app_tick_ms(int request_ms) {
    int ms = request_ms / 10;
    if (!request_ms || ms > TICK_MAX_MS) return TICK_MAX_MS;
    return ms < TICK_MIN_MS ? TICK_MIN_MS : ms;
}

static void expire(gy_app *a, int64_t now) {
    gy_oai_error e;
    int64_t most = (int64_t)a->o.request_ms * 1000000;
    for (gy_app_req *r = a->reqs, *next; r; r = next) {
        next = r->next;
        if (!r->http || now - r->call.start_ns < most) continue;
        gy_oai_error_set(&e, GY_OAI_E_DEADLINE, NULL, "not done within %g s, as long as a request may take here",
                         a->o.request_ms * 1e-3);
        gy_app_fail(r, &e);
    }
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

/* Its events say the same of each request; this is for what they do not reach. */
static void fail_all(gy_app *a) {
    gy_oai_error e;
    for (gy_app_req *r = a->reqs, *next; r; r = next) {
        next = r->next;
        if (!r->http) continue;
        gy_oai_error_set(&e, GY_OAI_E_DEAD, NULL, "the engine cannot go on");
        gy_app_fail(r, &e);
    }
}

static void attend_loss(gy_app *a, int64_t now) {
    if (!a->lost_ns) a->lost_ns = now;
    fail_all(a);
    if (now - a->lost_ns >= (int64_t)LOST_MS * 1000000) gy_http_server_drain(a->http, LOST_DRAIN_MS);
}

static int has_work(const gy_app *a) {
    for (const gy_app_req *r = a->reqs; r; r = r->next)
        if (r->n_live) return 1;
    return 0;
}

/* A step that does not end (a device that hangs) looks like nothing from outside. It cannot be ended either, so it is
 * said, once; deadlines of requests hold meanwhile. */
static void watch_steps(gy_app *a, int64_t now) {
    gyre_stats s;
    gyre_get_stats(a->g, &s, sizeof s);
    if (s.n_step != a->step || !a->step_ns || !has_work(a)) {
        a->step = s.n_step;
        a->step_ns = now;
    } else if (a->step_ns >= 0 && now - a->step_ns >= (int64_t)a->o.stall_ms * 1000000) {
        gy_log(GY_LOG_ERROR, "server", "the engine has work and has not ended a step for a long time", "seconds=%lld",
               (long long)((now - a->step_ns) / 1000000000));
        a->step_ns = -1;
    }
}

void gy_app_on_tick(void *user) {
    gy_app *a = user;
    int64_t now = gy_clock_ns();
    if (!a->is_serving) return;
    if (a->o.request_ms) expire(a, now);
    if (a->o.stall_ms && !a->is_lost) watch_steps(a, now);
    gy_app_check_lost(a);
    if (a->is_lost) attend_loss(a, now);
}

/* ---- SIGHUP ------------------------------------------------------------------------------------------------------ */

static void reload_tls(gy_app *a) {
    gy_err err = {0};
    char why[600];
    if (gy_http_server_reload_tls(a->http, &err) == GY_OK)
        gy_log(GY_LOG_INFO, "server", "SIGHUP: the TLS certificate was read again", NULL);
    else
        gy_log(GY_LOG_ERROR, "server", "SIGHUP: the TLS certificate stays the old one", "error=%s",
               gy_log_quote(err.msg, why, sizeof why));
}

void gy_app_reopen(gy_app *a) {
    int has_log = a->log && a->o.access_path;
    if (a->o.on_hangup) a->o.on_hangup(a->o.hangup_user);
    if (has_log) gy_log_writer_reopen(a->log);
    if (a->o.http.tls_cert) reload_tls(a);
    if (!has_log && !a->o.http.tls_cert && !a->o.on_hangup)
        gy_log(GY_LOG_WARN, "server", "SIGHUP: there is no log file to reopen, lines go to stdout and stderr", NULL);
}

/* ---- the access log ---------------------------------------------------------------------------------------------- */

gy_status gy_app_log_open(gy_app *a, gy_err *err) {
    if (a->o.access_log == GY_APP_LOG_OFF) return GY_OK;
    return gy_log_writer_open(a->o.access_path, a->o.access_fd, LOG_BYTES, err, &a->log);
}

void gy_app_log_close(gy_app *a) {
    gy_log_writer_close(a->log, LOG_WAIT_MS);
    a->log = NULL;
}

void gy_app_log_stats(gy_app *a, gy_log_writer_stats *out) {
    *out = (gy_log_writer_stats){0};
    if (a->log) gy_log_writer_get_stats(a->log, out);
}
