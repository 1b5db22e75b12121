/* Between http_server.c (loop, accept, deadlines), http_conn.c (one connection's states), http_req.c (what handlers
 * call) and http_listen.c (sockets to accept from).
 *
 * States of a connection:
 *
 *     SHAKE (TLS only) --handshake done--> HEAD
 *     HEAD --head complete--> BODY --body complete--> ACTIVE --reply sent--> HEAD (keep-alive)
 *      |  refused               |  refused              |  reply sent, no keep-alive; stream broken
 *      +------> ACTIVE <--------+                       +-----> LINGER --end of input or deadline--> closed
 *
 * Order in a turn of the loop: a callback notes what happened in flags and puts the connection on `todo`; server_settle
 * then advances each once, which also sends. Handlers' calls only append bytes and put on `todo`. So nothing is freed
 * under a caller, and all that a turn wrote to a stream leaves in one system call. Closed connections are freed at the
 * end of settle.
 *
 * A connection's descriptor is registered once, edge-triggered, for input, output and the peer's half-close. `readable`
 * and `writable` remember the edges until a call says EAGAIN. While ACTIVE nothing is read: pipelined requests wait in
 * the kernel's buffer, which bounds them (with TLS: and one record of 16 KiB in OpenSSL's; `readable` stays set then).
 */
#ifndef GY_SERVER_HTTP_INT_H
#define GY_SERVER_HTTP_INT_H

#include "server/http_ring.h"
#include "server/http_server.h"
#include "server/http_tls.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { GY_HTTP_PATH_MAX = 512, GY_HTTP_LISTEN_MAX = 4, GY_HTTP_SCRATCH_BYTES = 16384 };

typedef enum gy_http_state {
    GY_HTTP_S_HEAD,
    GY_HTTP_S_BODY,
    GY_HTTP_S_ACTIVE,
    GY_HTTP_S_LINGER,
    GY_HTTP_S_SHAKE
} gy_http_state;

/* NONE: no request. HEAD: in on_head. REFUSED: in on_refused. */
typedef enum gy_http_phase {
    GY_HTTP_P_NONE,
    GY_HTTP_P_HEAD,
    GY_HTTP_P_REFUSED,
    GY_HTTP_P_OPEN,
    GY_HTTP_P_STREAM,
    GY_HTTP_P_ENDED
} gy_http_phase;

typedef enum gy_http_due {
    GY_HTTP_DUE_IDLE,
    GY_HTTP_DUE_HEADER,
    GY_HTTP_DUE_BODY,
    GY_HTTP_DUE_WRITE,
    GY_HTTP_DUE_LINGER,
    GY_HTTP_DUE_COUNT,
    GY_HTTP_DUE_NONE = GY_HTTP_DUE_COUNT
} gy_http_due;

typedef struct gy_http_conn gy_http_conn;

struct gy_http_req {
    gy_http_conn *conn;
    gy_http_phase phase;
    gy_http_framing framing; /* of a stream */
    int has_head;            /* the head is complete and its bytes are at conn->in */
    int no_body;             /* HEAD, 204: bytes of the reply's body are not sent */
    int keep;                /* the reply promised to keep the connection */
    void *user;
    uint64_t sent;
    size_t path_len;
    char path[GY_HTTP_PATH_MAX];
    gy_http_head head;
};

struct gy_http_conn {
    gy_http_server *server;
    struct event ev;
    int fd;
    struct ssl_st *tls; /* NULL: plain */
    int is_tls_bad;     /* TLS cannot go on */
    int is_shut;        /* lingering: the peer was told that nothing follows */
    gy_http_state state;
    int readable, writable;
    int edge;                                     /* input or an error since is_broken looked */
    int eof;                                      /* the peer closed its sending side, or the connection is broken */
    int gone;                                     /* 0, or 1 + gy_http_gone: on_gone is due */
    int fresh;                                    /* no request yet */
    int is_todo, is_later, is_running, is_closed; /* running: being advanced; it needs no place on a list */
    gy_http_conn *prev, *next;                    /* of all connections; next also of the closed ones */
    gy_http_conn *next_todo;                      /* of todo or later */
    gy_http_due due;                              /* the queue it is in */
    int64_t due_ns;
    gy_http_conn *due_prev, *due_next; /* of that queue */
    /* [head][body, decoded][bytes not looked at]. While ACTIVE only the last part. */
    char *in;
    size_t in_len, in_cap;
    size_t body_len, body_mark; /* body_mark: body_len when its deadline was set */
    gy_http_chunked chunked;
    gy_http_ring out;
    struct sockaddr_storage peer;
    gy_http_req req;
};

struct gy_http_server {
    gy_http_server_opts opts;
    gy_http_handler handler;
    struct event_base *base;
    struct event *listen_ev[GY_HTTP_LISTEN_MAX], *wake_ev, *due_ev, *later_ev, *tick_ev, *drain_ev, *retry_ev,
        *watch_ev;
    void (*on_watched)(void *user);
    void *watch_user;
    gy_http_tls *tls; /* NULL: plain */
    int listen_fd[GY_HTTP_LISTEN_MAX];
    int n_listen, port, wake_fd, spare_fd;
    int draining, is_fd_warned;
    int64_t drain_at_ns; /* 0: none */
    atomic_int wake_pending;
    atomic_llong drain_ms; /* what was asked for and not yet seen; -1: nothing */
    gy_http_conn *conns, *todo, *todo_last, *later, *closed;
    struct {
        gy_http_conn *first, *last;
        int64_t ns; /* the same for all in the queue, so the queue is in order */
    } due[GY_HTTP_DUE_COUNT];
    int64_t due_armed_ns; /* when due_ev fires; 0: not armed */
    gy_http_server_stats stats;
    time_t date_s;
    char date[30];
    char scratch[GY_HTTP_SCRATCH_BYTES];
};

/* http_listen.c: n sockets that accept, or none. The port is that of the first. */
gy_status gy_http_listen(const char *host, int port, int backlog, gy_err *err, int fd_out[GY_HTTP_LISTEN_MAX],
                         int *n_out, int *port_out);
void gy_http_listen_end(int fd); /* closes it, removes a Unix socket's file */
void gy_http_address(const struct sockaddr_storage *a, char out[64]);

/* http_server.c */
void gy_http_server_todo(gy_http_server *s, gy_http_conn *c);
void gy_http_server_later(gy_http_server *s, gy_http_conn *c); /* todo after the next poll */
void gy_http_server_settle(gy_http_server *s);
void gy_http_due_set(gy_http_conn *c, gy_http_due due); /* from now; NONE takes it out */
const char *gy_http_server_date(gy_http_server *s);

/* http_conn.c */
gy_status gy_http_conn_open(gy_http_server *s, int fd, const struct sockaddr_storage *peer); /* takes fd on GY_OK */
void gy_http_conn_advance(gy_http_conn *c);
void gy_http_conn_expire(gy_http_conn *c, gy_http_due due);
void gy_http_conn_shutdown(gy_http_conn *c); /* now: on_gone if a request is open */
void gy_http_conn_close(gy_http_conn *c, int reset);
void gy_http_conn_flush(gy_http_conn *c);                               /* as much as the socket takes */
int gy_http_conn_put(gy_http_conn *c, const char *bytes, size_t n);     /* to the ring; -1: no memory, gone is set */
int gy_http_conn_put_big(gy_http_conn *c, const char *bytes, size_t n); /* the same; straight to the socket if it can */

/* http_req.c */
void gy_http_req_init(gy_http_req *r, gy_http_conn *c);
void gy_http_req_refuse(gy_http_req *r, int status, const char *what); /* the short JSON error */

#endif
