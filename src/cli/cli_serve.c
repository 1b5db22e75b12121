/* gyre serve: options to the server's, signals, what is said on stderr. The server itself is src/server/app.h. */
#include "cli/cli.h"
#include "cli/cli_engine.h"
#include "cli/cli_model.h"
#include "cli/cli_serve_life.h"
#include "server/app.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- options ---- */

enum { STALL_MS = 60000 }; /* longer than a step of the largest model on the slowest machine that is any use */

static gy_status strings(const gy_args *a, const gy_opt_list *list, const char *flag, gy_err *err,
                         gy_app_strings *out) {
    const char **s = gy_arena_alloc(a->arena, list->n + 1, sizeof *s);
    if (!s) return gy_err_set(err, GY_E_NOMEM, "no memory for options");
    for (size_t i = 0; i < list->n; i++) {
        s[i] = list->items[i].text;
        if (!s[i][0] || strlen(s[i]) != list->items[i].len || !gy_http_value_ok(s[i]))
            return gy_err_set(err, GY_E_ARG, "%s: found an empty text or a control character", flag);
    }
    *out = (gy_app_strings){s, list->n};
    return GY_OK;
}

/* The folder's own name: what stands behind the last slash. */
static const char *own_name(gy_arena *arena, const char *dir) {
    size_t end = strlen(dir), at;
    while (end > 1 && dir[end - 1] == '/') end--;
    for (at = end; at > 0 && dir[at - 1] != '/';) at--;
    return at == end ? "model" : gy_arena_strndup(arena, dir + at, end - at);
}

static gy_status set_names(const gy_args *a, gy_err *err, gy_app_opts *o) {
    GY_TRY(strings(a, &a->served_names, "--served-model-name", err, &o->names));
    if (o->names.n) return GY_OK;
    const char **one = gy_arena_alloc(a->arena, 1, sizeof *one);
    const char *name = own_name(a->arena, o->dir);
    if (!one || !name) return gy_err_set(err, GY_E_NOMEM, "no memory for options");
    one[0] = name;
    o->names = (gy_app_strings){one, 1};
    return GY_OK;
}

static gy_status set_options(const gy_args *a, gy_err *err, gy_app_opts *o) {
    o->template_path = a->chat_template;
    gy_http_server_opts_default(&o->http);
    o->http.host = a->host;
    o->http.port = a->port;
    if (a->max_body.given) o->http.body_max = (size_t)a->max_body.v;
    if (a->max_body.given && (!a->max_body.v || a->max_body.v > (uint64_t)1 << 30))
        return gy_err_set(err, GY_E_ARG, "--max-body-bytes: found %llu, expected 1 to 1G",
                          (unsigned long long)a->max_body.v);
    GY_TRY(gy_cli_check_device(a, err));
    GY_TRY(gy_cli_gyre_options(a, err, &o->engine));
    GY_TRY(set_names(a, err, o));
    GY_TRY(strings(a, &a->api_keys, "--api-key", err, &o->keys));
    GY_TRY(strings(a, &a->allowed_origins, "--allowed-origin", err, &o->origins));
    GY_TRY(strings(a, &a->allowed_hosts, "--allowed-host", err, &o->hosts));
    o->access_log = (gy_app_log)a->access_log;
    o->access_fd = STDOUT_FILENO;
    o->drain_ms = (int)ceil(a->shutdown_timeout * 1000);
    o->stall_ms = STALL_MS;
    o->max_queue_tokens = a->max_queue_tokens;
    return gy_serve_set_life(&a->serve, err, o);
}

/* ---- signals ---- */

/* Handlers need it; set before they are installed, and they are taken out before the app is closed. */
static gy_app *served;

/* The first one drains, the second ends what still runs, a third one ends the process, whatever it does then. */
static void on_end(int signo) {
    static volatile sig_atomic_t n;
    if (++n == 2) signal(signo, SIG_DFL);
    gy_serve_notify("STOPPING=1");
    gy_app_drain(served);
}

static void on_hangup(int signo) {
    (void)signo;
    gy_app_hangup(served);
}

static void set_signals(void (*end)(int), void (*hangup)(int)) {
    struct sigaction e = {.sa_handler = end, .sa_flags = SA_RESTART},
                     h = {.sa_handler = hangup, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &e, NULL);
    sigaction(SIGTERM, &e, NULL);
    sigaction(SIGHUP, &h, NULL);
}

/* ---- the command ---- */

static void on_ready(void *user) {
    const gy_app_opts *o = user;
    const char *plan = gy_app_info(served)->plan;
    if (plan && plan[0]) gy_cli_note("memory: %s", plan);
    gy_cli_note("serving %s", o->names.s[0]);
    gy_serve_notify("READY=1\nSTATUS=serving");
}

static gy_status serve(gy_app_opts *o, gy_err *err) {
    gy_app *app;
    GY_TRY(gy_app_open(o, err, &app));
    served = app;
    set_signals(on_end, on_hangup);
    const char *colon = strchr(o->http.host, ':');
    if (o->http.host[0] == '/')
        gy_cli_note("listening on %s, loading %s", o->http.host, o->dir);
    else
        gy_cli_note("listening on http%s://%s%s%s:%d, loading %s", o->http.tls_cert ? "s" : "", colon ? "[" : "",
                    o->http.host, colon ? "]" : "", gy_app_port(app), o->dir);
    gy_serve_notify("STATUS=loading the model");
    gy_status st = gy_app_run(app, on_ready, o, err);
    set_signals(SIG_IGN, SIG_IGN);
    gy_serve_notify("STOPPING=1");
    gy_app_close(app);
    return st;
}

int gy_cmd_serve(const gy_args *a) {
    gy_err err = {0};
    gy_app_opts o = {.dir = a->n_pos ? a->pos[0] : gy_cli_find_shipped(a->arena, &err)};
    if (!o.dir || set_options(a, &err, &o) < 0) return gy_cli_fail(&err);
    gy_cli_note_synthetic(o.dir);
    gy_serve_notify_open();
    gy_serve_raise_descriptors(&o);
    if (gy_serve_open_log(a->serve.log_file, &err, &o) < 0 || serve(&o, &err) < 0) {
        gy_cli_name_flag(&err);
        return gy_cli_fail(&err);
    }
    return GY_CLI_OK;
}
