/* A client of OpenAI's API over HTTP/1.1, for any server that speaks it: requests with JSON bodies, replies whole or as
 * server-sent events. One thread and one loop drive thousands of connections (libcurl's multi interface over epoll).
 *
 * It does not know what the JSON means, but for errors: bodies of failed requests and events that hold "error". It
 * follows no redirects, uses no proxy, reads no environment and no .netrc. It asks once: only when a kept connection
 * turns out to be closed before a byte of the reply came does libcurl send the request again, on a new one (RFC
 * 9110, 9.2.2 leaves that to the client; servers close idle connections).
 *
 *     gy_oai_open -> gy_oai_post ... gy_oai_step, gy_oai_step ... -> on_event, on_event, on_end -> gy_oai_close
 *
 * A call's life: post or get makes it, on_end is its last word and comes once, always out of gy_oai_step; the pointer
 * is dead after that. Callbacks may post, get and cancel; they may not step or close. What they are given is valid
 * during the callback. Single thread, but for gy_oai_wake.
 */
#ifndef GY_CLI_OAI_CLIENT_H
#define GY_CLI_OAI_CLIENT_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_oai gy_oai;
typedef struct gy_oai_call gy_oai_call;

typedef struct gy_oai_opts {
    const char *url;     /* "http://host:8000", "https://host/prefix"; "/v1" at its end is left out, paths bring it */
    const char *api_key; /* sent as "Authorization: Bearer ..."; NULL: none */
    const char *const *headers; /* "Name: value" */
    size_t n_header;
    const char *cacert; /* PEM file of authorities to trust instead of the system's; NULL */
    int insecure;       /* 1: certificates are not checked */
    int connect_timeout_ms;
    int silence_timeout_s; /* no byte for so long ends a call; 0: never */
    int32_t max_conn;      /* connections that are kept open for later calls */
    size_t event_max;      /* bytes of one event */
    size_t body_max;       /* bytes of a whole reply */
} gy_oai_opts;

void gy_oai_opts_default(gy_oai_opts *o); /* url stays NULL */

/* How a call ended. */
typedef enum gy_oai_end {
    GY_OAI_DONE,      /* whole reply with status 2xx, or a stream up to "data: [DONE]" */
    GY_OAI_CANCELLED, /* gy_oai_cancel */
    GY_OAI_UNREACHED, /* no connection: name, refused, TLS */
    GY_OAI_TIMEOUT,   /* connecting took too long, or silence */
    GY_OAI_BROKEN,    /* the connection ended before the reply did, or the stream before [DONE] */
    GY_OAI_HTTP,      /* status that is not 2xx */
    GY_OAI_ERROR,     /* an event with "error" */
    GY_OAI_MALFORMED, /* neither JSON nor events; on_event said so */
    GY_OAI_TOO_LARGE, /* an event or reply beyond its bound */
    GY_OAI_NO_MEMORY,
    GY_OAI_ENDS
} gy_oai_end;
const char *gy_oai_end_name(gy_oai_end e); /* "done", "unreached", ... */

typedef struct gy_oai_result {
    gy_oai_end end;
    int http_status;  /* 0: there was no reply */
    int retry_after;  /* seconds that a 429 or 503 named; -1: none */
    int64_t begin_ns; /* post or get was called */
    int64_t end_ns;   /* the last byte, or when the failure was seen */
    const char *body; /* whole replies and bodies of errors; never NULL, ends with NUL. Of a stream: empty */
    size_t body_len;
    const char *msg; /* why it failed, a sentence for a terminal (no control bytes); "" when it did not */
} gy_oai_result;

typedef struct gy_oai_hooks {
    /* The data of one event, without "[DONE]" and error events; NUL-terminated. at_ns: CLOCK_MONOTONIC when its last
     * bytes were read from the socket. Nonzero: this is not what it must be, and the call ends as malformed. NULL: a
     * stream is kept as a whole reply. */
    int (*on_event)(void *user, int64_t at_ns, const char *data, size_t len);
    void (*on_end)(void *user, const gy_oai_result *r);
} gy_oai_hooks;

gy_status gy_oai_open(const gy_oai_opts *o, gy_err *err, gy_oai **out); /* copies what o points to */
void gy_oai_close(gy_oai *c); /* accepts NULL; drops open calls without a word */

/* path: "/v1/completions". Takes the bytes of *body (empty after, also on failure). hooks are copied, user is passed
 * on. out may be NULL. */
gy_status gy_oai_post(gy_oai *c, const char *path, gy_str *body, const gy_oai_hooks *hooks, void *user, gy_err *err,
                      gy_oai_call **out);
gy_status gy_oai_get(gy_oai *c, const char *path, const gy_oai_hooks *hooks, void *user, gy_err *err,
                     gy_oai_call **out);
/* The connection is dropped; on_end says GY_OAI_CANCELLED, not before the next step or the rest of this one. */
void gy_oai_cancel(gy_oai_call *call);

/* Waits until something happened, gy_oai_wake, a signal, or gy_clock_ns() reaches until_ns (0: not at all, -1: for
 * ever), and runs the callbacks that are due. Errors are the client's own, never a call's. */
gy_status gy_oai_step(gy_oai *c, int64_t until_ns, gy_err *err);
size_t gy_oai_n_open(const gy_oai *c); /* calls whose on_end has not come yet */
void gy_oai_wake(gy_oai *c);           /* ends a wait, or the next one; any thread, signal handlers too */

/* GET and wait: status 2xx puts the body into body_out (appended). Else GY_E_PEER (GY_E_TIMEOUT), with the sentence; a
 * server that answered otherwise: its status in *http_status_out (may be NULL; 0: no reply). Other calls go on. */
gy_status gy_oai_fetch(gy_oai *c, const char *path, gy_err *err, gy_str *body_out, int *http_status_out);
/* The first name of GET /v1/models, new memory (gy_mem_free). */
gy_status gy_oai_first_model(gy_oai *c, gy_err *err, char **name_out);

/* What a server said went wrong: OpenAI's {"error": {"message"}}, FastAPI's {"detail"}, or the text itself, cut and
 * without control bytes. Appends to out. */
void gy_oai_put_error(const char *body, size_t len, gy_str *out);

#endif
