/* An HTTP/1.1 server for many slow streams: one thread, one loop, epoll through libevent's core.
 *
 * The handler gets whole requests and answers with a whole reply or a stream. The server owns connections, deadlines,
 * framing, keep-alive, pipelining, 100-continue, limits and the noticing of clients that are gone. Every function and
 * callback belongs to the thread in gy_http_server_run, except gy_http_server_wake and _drain, which any thread and any
 * signal handler may call.
 *
 * Life of a gy_http_req:
 *
 *     (head read) --on_head--> (body read) --on_request--> OPEN --reply---------------------------> ended
 *          |  reply in on_head: refused early                |                                        ^
 *          v                                                 +--stream_begin--> STREAM --end, break---+
 *        ended                                               |                    |
 *                                                            +----on_gone---------+---------------> ended
 *
 *   - After on_request exactly one thing ends it: reply, stream_end, stream_break, or the return of on_gone. The
 * pointer is dead then (its memory serves the connection's next request). on_gone does not follow once the handler has
 * ended it.
 *   - Head and body bytes are valid until on_head or on_request returns; the handler copies what it needs for longer.
 *   - Callbacks never run inside a call of the handler: if a stream is too slow or the client gone, stream_write says
 *     GY_E_PEER and on_gone follows from the loop, unless the handler ends the request first.
 *   - on_gone may not reply. It is the place to cancel work; other requests may be used in it.
 *
 * A client that closes its sending side counts as gone as soon as its request is not answered at once (an end of input
 * is how a disconnect looks, and a closed reader must not cost compute). What is already answered is still delivered.
 *
 * With a certificate every connection is TLS (http_tls.h); nothing else changes for the handler.
 *
 * Deliberately not here: HTTP/2, compression, files, routing.
 */
#ifndef GY_SERVER_HTTP_SERVER_H
#define GY_SERVER_HTTP_SERVER_H

#include "base/status.h"
#include "server/http_parse.h"
#include "server/http_reply.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_http_server gy_http_server;
typedef struct gy_http_req gy_http_req;

typedef enum gy_http_gone {
    GY_HTTP_GONE_CLIENT,   /* closed or reset its side */
    GY_HTTP_GONE_SLOW,     /* read too slowly: high-water mark or write deadline */
    GY_HTTP_GONE_SHUTDOWN, /* the drain's deadline passed */
    GY_HTTP_GONE_NOMEM
} gy_http_gone;

typedef struct gy_http_handler {
    void *user;
    /* The head is complete, the body not read. A reply here refuses the request (then the connection closes if there is
     * a body). May be NULL. */
    void (*on_head)(void *user, gy_http_req *r);
    void (*on_request)(void *user, gy_http_req *r);
    void (*on_gone)(void *user, gy_http_req *r, gy_http_gone why);
    /* The server refuses (malformed, too large, too slow: 408, too many bytes: 503). The handler may reply, to give the
     * error its own shape; if it does not, or is NULL, a short JSON error goes out. gy_http_req_head may be NULL here.
     */
    void (*on_refused)(void *user, gy_http_req *r, int status, const char *what);
    void (*on_wake)(void *user); /* after one or more gy_http_server_wake; may be NULL */
    void (*on_tick)(void *user); /* every tick_ms; may be NULL */
} gy_http_handler;

typedef struct gy_http_server_opts {
    const char *host;   /* name or address; every address it has is bound. "/...": a Unix socket, without a port */
    int port;           /* 0: the system chooses (tests) */
    int backlog;        /* the system's somaxconn caps it */
    int max_conns;      /* further ones are told 503 and closed */
    size_t body_max;    /* of one request; at most 1 GiB */
    size_t input_max;   /* bytes of all requests being read: beyond it 503 */
    size_t stream_max;  /* high-water mark: a stream with more unsent bytes is too slow */
    int idle_ms;        /* between requests */
    int header_ms;      /* from the first byte of a head (for a new connection: from accept) to its end */
    int body_ms;        /* for each 64 KiB of a body */
    int write_ms;       /* without any progress of pending output */
    int linger_ms;      /* how long a closing connection is read, so that its last reply is not lost in a reset */
    int tick_ms;        /* 0: no ticks */
    int send_buf_bytes; /* SO_SNDBUF; 0: the system's */
    /* PEM files: certificate and chain; its key, NULL: in the same file. NULL, NULL: no TLS. Must outlive the server.
     */
    const char *tls_cert, *tls_key;
} gy_http_server_opts;

/* 127.0.0.1:8000, backlog 4096, 10,000 connections, bodies of 16 MiB, 1 GiB of input in all, 64 KiB a stream, idle 120
 * s, header 30 s, body 60 s, write 30 s, linger 2 s, no tick, no TLS. */
void gy_http_server_opts_default(gy_http_server_opts *o);

/* Binds and listens, so that a busy port is known before anything slow is done; clients wait in the backlog until run.
 * Copies opts and handler; `host` is not needed afterwards. */
gy_status gy_http_server_open(const gy_http_server_opts *opts, const gy_http_handler *handler, gy_err *err,
                              gy_http_server **out);
int gy_http_server_port(const gy_http_server *s);
/* on_ready runs in the loop whenever fd is readable (level-triggered: as long as it is), until close; one descriptor at
 * a time, borrowed. Before run, or by the loop's thread. */
gy_status gy_http_server_watch(gy_http_server *s, int fd, void (*on_ready)(void *user), void *user, gy_err *err);
/* Reads certificate and key again, for connections from now on; on failure the old ones stay. Without TLS: GY_OK. By
 * the loop's thread. */
gy_status gy_http_server_reload_tls(gy_http_server *s, gy_err *err);
/* Serves until a drain is complete. */
gy_status gy_http_server_run(gy_http_server *s, gy_err *err);
void gy_http_server_close(gy_http_server *s); /* accepts NULL; not during run; no callbacks */

/* on_wake will run in the loop. Calls before it runs are one. Async-signal-safe. */
void gy_http_server_wake(gy_http_server *s);
/* Stop accepting (what waits in the backlog is still heard), close idle connections, let requests end; what is left
 * after `ms` gets on_gone. Again with fewer ms: the earlier deadline holds. Async-signal-safe. */
void gy_http_server_drain(gy_http_server *s, int ms);

typedef struct gy_http_server_stats {
    int n_conn;
    uint64_t n_accepted, n_request, n_refused, n_gone;
    uint64_t n_turned_away;  /* over max_conns or out of descriptors */
    uint64_t n_shake_failed; /* TLS handshakes */
    size_t input_bytes;      /* held now by requests being read */
} gy_http_server_stats;
void gy_http_server_get_stats(const gy_http_server *s, gy_http_server_stats *out);

/* ---- a request: what it says (valid in on_head and on_request) ---- */

const gy_http_head *gy_http_req_head(const gy_http_req *r);          /* NULL in on_refused of a broken head */
const char *gy_http_req_bytes(const gy_http_req *r);                 /* what the head's spans are offsets of */
const char *gy_http_req_path(const gy_http_req *r, size_t *len_out); /* decoded once; route and authorise on this */
const char *gy_http_req_body(const gy_http_req *r, size_t *len_out); /* on_request only */
/* The number of fields with this name; the first one's value. */
int gy_http_req_field(const gy_http_req *r, const char *name, const char **value_out, size_t *len_out);

/* ---- valid until the request ends ---- */

void gy_http_req_peer(const gy_http_req *r, char out[64]); /* "127.0.0.1:4711", "[::1]:4711", "unix" */
void gy_http_req_set_user(gy_http_req *r, void *user);
void *gy_http_req_user(const gy_http_req *r);    /* NULL at first */
uint64_t gy_http_req_sent(const gy_http_req *r); /* body bytes handed to the server so far */

/* ---- answers ---- */

typedef struct gy_http_answer {
    int status;
    const char *content_type; /* NULL: none */
    const gy_http_header *extra;
    size_t n_extra;
} gy_http_answer;

/* A whole reply. The body is copied or sent before this returns. GY_E_ARG (a header that may not be sent): nothing
 * happened, the request is open. Any other result ends it. */
gy_status gy_http_reply(gy_http_req *r, const gy_http_answer *a, const char *body, size_t len, gy_err *err);

/* The head of a stream: chunked, or for HTTP/1.0 until the connection closes. Errors as above, but nothing ends it. */
gy_status gy_http_stream_begin(gy_http_req *r, const gy_http_answer *a, gy_err *err);
/* One chunk, sent at the end of this turn of the loop. GY_E_PEER: the client is gone or too slow. len 0 does nothing.
 */
gy_status gy_http_stream_write(gy_http_req *r, const char *bytes, size_t len);
void gy_http_stream_end(gy_http_req *r);
/* Closes without the end mark after what was written: the client sees a broken transfer. */
void gy_http_stream_break(gy_http_req *r);

#endif
