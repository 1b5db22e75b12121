/* The server as a program: one model behind OpenAI's routes. It joins the three parts that know nothing of each other:
 * HTTP (http_server.h), schema (oai_*.h) and the engine (gyre.h).
 *
 * Threads. gy_app_run's thread owns everything: connections, requests, metrics, polling of the engine's events. Two
 * lanes (app_work.h) prepare requests that would hold it up: large bodies, templates, grammars. One writes the access
 * log (log_writer.h), another one loads the model and ends; the engine's own thread (gyre_start) is seen only through
 * gyre_event_fd.
 *
 * Life: open binds the port, so that a busy one is known before anything slow is done; run loads and serves. Until a
 * real request would be served all routes but "/" and /version answer 503 with Retry-After, /health too. drain refuses
 * new work and lets what runs end; run then returns.
 *
 * Deliberately not here: more than one model.
 */
#ifndef GY_SERVER_APP_H
#define GY_SERVER_APP_H

#include "base/status.h"
#include "gyre.h"
#include "server/http_server.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_app gy_app;

typedef enum gy_app_log { GY_APP_LOG_OFF, GY_APP_LOG_JSON, GY_APP_LOG_LOGFMT } gy_app_log;

typedef struct gy_app_strings {
    const char *const *s;
    size_t n;
} gy_app_strings;

typedef struct gy_app_opts {   /* everything is borrowed and must outlive the app */
    const char *dir;           /* the model's folder */
    const char *template_path; /* a chat template to take instead of the folder's; NULL: that one */
    gyre_options engine;
    gy_http_server_opts http;
    gy_app_strings names;   /* that requests may call the model; at least one: the first answers those that name none */
    gy_app_strings keys;    /* none: everybody may ask */
    gy_app_strings origins; /* of web pages that may ask, "http://host:port" or "*"; a page of this server always may */
    /* Names that a Host field may have, without port, or "*". None: bound to loopback, "localhost" and addresses (a
     * foreign name that resolves to this machine is how a web page gets past its browser's rules); else any. */
    gy_app_strings hosts;
    gy_app_log access_log;
    const char *access_path; /* opened again on gy_app_hangup; NULL: access_fd */
    int access_fd;
    int drain_ms;   /* how long a drain waits for what runs */
    int request_ms; /* from a request's last byte to its answer's last one, else 408 or a broken stream; 0: any */
    int64_t max_queue_tokens; /* prompt tokens that may wait for their first output, beyond it 429; 0: any number */
    int stall_ms;             /* the engine has work and ends no step for so long: said in the log; 0: never */
    void (*on_hangup)(void *user); /* may be NULL: what else gy_app_hangup is about; on the loop's thread */
    void *hangup_user;
} gy_app_opts;

gy_status gy_app_open(const gy_app_opts *o, gy_err *err, gy_app **out);
int gy_app_port(const gy_app *a);
const gyre_info *gy_app_info(const gy_app *a); /* from on_ready on */
/* Until a drain is complete (GY_OK), the model cannot be opened, or the engine was lost (app_life.c). on_ready (may be
 * NULL): once, when the first request would be served. */
gy_status gy_app_run(gy_app *a, void (*on_ready)(void *user), void *user, gy_err *err);
void gy_app_close(gy_app *a); /* accepts NULL; not during run */

/* Async-signal-safe, any thread. The second call ends what still runs. */
void gy_app_drain(gy_app *a);
/* Async-signal-safe: log files are opened and the certificate is read again; what fails stays as it was and the log
 * says so. */
void gy_app_hangup(gy_app *a);

#endif
