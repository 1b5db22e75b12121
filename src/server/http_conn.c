/* One connection: its states (drawn in http_int.h), its input buffer, its output. */
#include "server/http_int.h"

#include "base/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

enum {
    IN_FIRST = 4096,
    IN_ROOM = 1024, /* a chunked body is read with at least so much room, for its framing */
    IN_KEEP = 65536,
    OUT_KEEP = 16384,         /* a larger ring is given back between requests */
    BODY_PROGRESS = 64 << 10, /* renews the body's deadline */
    REQUESTS_PER_TURN = 32,   /* pipelined: then others have their turn */
    /* Values of `readable` above 1: a short read does not end it, as an error may stand behind the bytes; it was short,
     * and that is all that is left to look for. A request that was whole needs no look: its answer meets the error. */
    READ_TO_END = 2,
    READ_ERROR_ONLY = 3,
    DISCARD_MAX = 4 << 20 /* bytes read and dropped in one turn while lingering */
};

/* ---- opening, closing ---- */

static void on_socket(evutil_socket_t fd, short what, void *arg) {
    gy_http_conn *c = arg;
    (void)fd;
    if (what & EV_READ) c->edge = 1;
    /* libevent tells a reset as both, without EV_CLOSED. */
    if (what & EV_READ) c->readable = what & EV_WRITE ? READ_TO_END : 1;
    if (what & EV_WRITE) c->writable = 1;
    if (what & EV_CLOSED) c->eof = c->readable = 1;
    /* OpenSSL may have to write in order to read, and the reverse. */
    if (c->tls) c->readable = c->writable = 1;
    gy_http_server_todo(c->server, c);
    gy_http_server_settle(c->server);
}

/* A host that vanished is noticed within a minute and a half even if nothing is to be sent (a long prompt). */
static void set_socket(const gy_http_server *s, int fd) {
    const int on = 1, idle = 60, interval = 10, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    if (s->opts.send_buf_bytes > 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &s->opts.send_buf_bytes, sizeof s->opts.send_buf_bytes);
}

gy_status gy_http_conn_open(gy_http_server *s, int fd, const struct sockaddr_storage *peer) {
    gy_http_conn *c = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *c);
    if (!c) return GY_E_NOMEM;
    c->server = s;
    c->fd = fd;
    c->peer = *peer;
    c->writable = c->fresh = 1;
    c->due = GY_HTTP_DUE_NONE;
    gy_http_req_init(&c->req, c);
    if (s->tls) c->state = GY_HTTP_S_SHAKE;
    if (s->tls && gy_http_tls_attach(s->tls, c) != GY_OK) {
        gy_mem_free(c);
        return GY_E_NOMEM;
    }
    if (event_assign(&c->ev, s->base, fd, EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST, on_socket, c) != 0 ||
        event_add(&c->ev, NULL) != 0) {
        gy_http_tls_detach(c, 1);
        gy_mem_free(c);
        return GY_E_IO;
    }
    set_socket(s, fd);
    c->next = s->conns;
    if (c->next) c->next->prev = c;
    s->conns = c;
    s->stats.n_conn++;
    s->stats.n_accepted++;
    gy_http_due_set(c, GY_HTTP_DUE_HEADER);
    return GY_OK;
}

static void free_input(gy_http_conn *c) {
    c->server->stats.input_bytes -= c->in_cap;
    gy_mem_free(c->in);
    c->in = NULL;
    c->in_len = c->in_cap = 0;
}

static void leave_later(gy_http_conn *c) {
    if (!c->is_later) return;
    for (gy_http_conn **at = &c->server->later; *at; at = &(*at)->next_todo) {
        if (*at != c) continue;
        *at = c->next_todo;
        return;
    }
}

/* The struct itself lives until the end of settle; on `todo` it is passed over. */
void gy_http_conn_close(gy_http_conn *c, int reset) {
    gy_http_server *s = c->server;
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    GY_CHECK(!c->is_closed);
    event_del(&c->ev);
    gy_http_due_set(c, GY_HTTP_DUE_NONE);
    leave_later(c);
    /* A reset gives back what the kernel still holds for a client that does not read. */
    gy_http_tls_detach(c, reset);
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(c->fd);
    free_input(c);
    gy_http_ring_free(&c->out);
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    if (c->next) c->next->prev = c->prev;
    c->is_closed = 1;
    c->next = s->closed;
    s->closed = c;
    s->stats.n_conn--;
}

static int is_held(const gy_http_conn *c) {
    return c->state == GY_HTTP_S_ACTIVE && (c->req.phase == GY_HTTP_P_OPEN || c->req.phase == GY_HTTP_P_STREAM);
}

/* Ends a connection whose request is with the handler, or not. */
static void give_up(gy_http_conn *c, gy_http_gone why) {
    gy_http_server *s = c->server;
    if (is_held(c)) {
        /* Marked first, so that a handler that writes to it in on_gone is told GY_E_PEER. */
        c->gone = 1 + (int)why;
        s->stats.n_gone++;
        s->handler.on_gone(s->handler.user, &c->req, why);
    }
    gy_http_conn_close(c, why != GY_HTTP_GONE_CLIENT);
}

void gy_http_conn_shutdown(gy_http_conn *c) {
    give_up(c, GY_HTTP_GONE_SHUTDOWN);
}

/* ---- the socket, plain or not ---- */

static ssize_t receive(gy_http_conn *c, void *buf, size_t n) {
    return c->tls ? gy_http_tls_recv(c, buf, n) : recv(c->fd, buf, n, 0);
}

/* At least the first byte, or -1 with errno. */
static ssize_t transmit(gy_http_conn *c, struct iovec *part, int n_part) {
    const struct msghdr msg = {.msg_iov = part, .msg_iovlen = (size_t)n_part};
    return c->tls ? gy_http_tls_send(c, part[0].iov_base, part[0].iov_len) : sendmsg(c->fd, &msg, MSG_NOSIGNAL);
}

/* ---- output ---- */

static void note_sent(gy_http_conn *c, size_t n) {
    gy_http_ring_drop(&c->out, n);
    if (c->out.len == 0) {
        if (c->due == GY_HTTP_DUE_WRITE) gy_http_due_set(c, GY_HTTP_DUE_NONE);
    } else if (c->due == GY_HTTP_DUE_WRITE) {
        gy_http_due_set(c, GY_HTTP_DUE_WRITE);
    }
}

void gy_http_conn_flush(gy_http_conn *c) {
    while (c->out.len > 0 && c->writable && !c->gone) {
        struct iovec part[2];
        ssize_t n = transmit(c, part, gy_http_ring_peek(&c->out, part));
        if (n >= 0)
            note_sent(c, (size_t)n);
        else if (errno == EAGAIN)
            c->writable = 0;
        else if (errno != EINTR)
            c->gone = 1 + GY_HTTP_GONE_CLIENT;
    }
    if (c->out.len > 0 && c->state == GY_HTTP_S_ACTIVE && c->due != GY_HTTP_DUE_WRITE)
        gy_http_due_set(c, GY_HTTP_DUE_WRITE);
}

int gy_http_conn_put(gy_http_conn *c, const char *bytes, size_t n) {
    if (gy_http_ring_reserve(&c->out, n) != 0) {
        c->gone = 1 + GY_HTTP_GONE_NOMEM;
        return -1;
    }
    gy_http_ring_put(&c->out, bytes, n);
    return 0;
}

int gy_http_conn_put_big(gy_http_conn *c, const char *bytes, size_t n) {
    gy_http_conn_flush(c);
    while (n > 0 && c->out.len == 0 && c->writable && !c->gone) {
        ssize_t sent = c->tls ? gy_http_tls_send(c, bytes, n) : send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes += sent;
            n -= (size_t)sent;
        } else if (errno == EAGAIN) {
            c->writable = 0;
        } else if (errno != EINTR) {
            c->gone = 1 + GY_HTTP_GONE_CLIENT;
        }
    }
    return c->gone ? -1 : gy_http_conn_put(c, bytes, n);
}

/* ---- steps: 1 go on, 0 wait or closed ---- */

static int refuse(gy_http_conn *c, int status, const char *what) {
    gy_http_server *s = c->server;
    c->state = GY_HTTP_S_ACTIVE;
    c->req.phase = GY_HTTP_P_REFUSED;
    s->stats.n_refused++;
    gy_http_due_set(c, GY_HTTP_DUE_NONE);
    if (s->handler.on_refused) s->handler.on_refused(s->handler.user, &c->req, status, what);
    if (c->req.phase == GY_HTTP_P_REFUSED) gy_http_req_refuse(&c->req, status, what);
    /* A stream cannot be the answer: nobody would end it. */
    GY_CHECK(c->req.phase == GY_HTTP_P_ENDED);
    c->req.has_head = 0;
    free_input(c);
    return 1;
}

/* The largest the buffer may become now. */
static size_t input_limit(const gy_http_conn *c) {
    const gy_http_head *h = &c->req.head;
    if (c->state == GY_HTTP_S_HEAD) return GY_HTTP_HEAD_MAX;
    if (h->body == GY_HTTP_BODY_LENGTH) return h->size + (size_t)h->content_length;
    return h->size + c->server->opts.body_max + IN_FIRST;
}

/* Doubles up to the limit: what a client announces costs nothing until it sends it. 1: there is room; else refused. */
static int make_room(gy_http_conn *c) {
    gy_http_server *s = c->server;
    size_t least = c->state == GY_HTTP_S_BODY && c->req.head.body == GY_HTTP_BODY_CHUNKED ? IN_ROOM : 1;
    size_t cap = c->in_cap ? c->in_cap * 2 : IN_FIRST, limit = input_limit(c);
    if (c->in_cap - c->in_len >= least) return 1;
    if (cap > limit) cap = limit;
    if (cap - c->in_len < least) cap = c->in_len + least;
    char *in = NULL;
    if (s->stats.input_bytes - c->in_cap + cap <= s->opts.input_max) in = gy_mem_realloc(GY_MEM_SERVER, c->in, cap, 1);
    if (!in) {
        refuse(c, 503, "too many bytes of requests are being read; try again later");
        return 0;
    }
    s->stats.input_bytes += cap - c->in_cap;
    c->in = in;
    c->in_cap = cap;
    return 1;
}

static void await_input(gy_http_conn *c) {
    if (c->state == GY_HTTP_S_HEAD) {
        gy_http_due due = c->in_len == 0 && !c->fresh ? GY_HTTP_DUE_IDLE : GY_HTTP_DUE_HEADER;
        if (c->due != due) gy_http_due_set(c, due);
    } else if (c->due != GY_HTTP_DUE_BODY || c->body_len - c->body_mark >= BODY_PROGRESS) {
        c->body_mark = c->body_len;
        gy_http_due_set(c, GY_HTTP_DUE_BODY);
    }
}

static int read_more(gy_http_conn *c) {
    if (!c->readable) {
        if (c->in_len == 0 && c->in) free_input(c);
        await_input(c);
        return 0;
    }
    if (!make_room(c)) return 1;
    size_t room = c->in_cap - c->in_len;
    ssize_t n = receive(c, c->in + c->in_len, room);
    if (n > 0) {
        c->in_len += (size_t)n;
        /* A short read emptied the socket; the next byte is a new edge. After a half-close one more read sees the end.
         * With TLS it only emptied a record. */
        if ((size_t)n < room && !c->eof && !c->tls) c->readable = c->readable >= READ_TO_END ? READ_ERROR_ONLY : 0;
        return 1;
    }
    if (n < 0 && errno == EINTR) return 1;
    if (n < 0 && errno == EAGAIN) {
        c->readable = 0;
        return 1;
    }
    gy_http_conn_close(c, 0);
    return 0;
}

/* What is pipelined behind a large body does not hold its memory. */
static void shrink_input(gy_http_conn *c) {
    char *in = gy_mem_realloc(GY_MEM_SERVER, c->in, IN_KEEP, 1);
    if (!in) return;
    c->server->stats.input_bytes -= c->in_cap - IN_KEEP;
    c->in = in;
    c->in_cap = IN_KEEP;
}

static void consume(gy_http_conn *c, size_t n) {
    c->req.has_head = 0;
    memmove(c->in, c->in + n, c->in_len - n);
    c->in_len -= n;
    if (c->in_len == 0) free_input(c);
    if (c->in_cap > IN_KEEP && c->in_len < IN_KEEP) shrink_input(c);
}

static int dispatch(gy_http_conn *c) {
    gy_http_server *s = c->server;
    c->state = GY_HTTP_S_ACTIVE;
    c->req.phase = GY_HTTP_P_OPEN;
    s->stats.n_request++;
    if (c->readable == READ_ERROR_ONLY) c->readable = 0;
    gy_http_due_set(c, GY_HTTP_DUE_NONE);
    s->handler.on_request(s->handler.user, &c->req);
    consume(c, c->req.head.size + c->body_len);
    return 1;
}

/* RFC 9110 10.1.1: not needed when the body is already coming. */
static void invite_body(gy_http_conn *c) {
    if (!c->req.head.expect_continue || c->in_len > c->req.head.size) return;
    gy_http_conn_put(c, GY_HTTP_CONTINUE, sizeof GY_HTTP_CONTINUE - 1);
    gy_http_conn_flush(c);
}

static int take_head(gy_http_conn *c) {
    gy_http_server *s = c->server;
    gy_http_req *r = &c->req;
    r->has_head = 1;
    r->no_body = gy_http_span_is(c->in, r->head.method, "HEAD");
    if (r->head.path.len > GY_HTTP_PATH_MAX) return refuse(c, 414, "the path is longer than 512 bytes");
    int n = gy_http_span_is(c->in, r->head.target, "*")
                ? (r->path[0] = '*', 1)
                : gy_http_path_decode(c->in + r->head.path.off, r->head.path.len, r->path);
    GY_CHECK(n > 0);
    r->path_len = (size_t)n;
    r->phase = GY_HTTP_P_HEAD;
    if (s->handler.on_head) s->handler.on_head(s->handler.user, r);
    if (r->phase == GY_HTTP_P_ENDED) {
        c->state = GY_HTTP_S_ACTIVE;
        consume(c, r->head.size);
        return 1;
    }
    c->state = GY_HTTP_S_BODY;
    c->body_len = c->body_mark = 0;
    gy_http_chunked_init(&c->chunked, s->opts.body_max);
    invite_body(c);
    return 1;
}

static int step_head(gy_http_conn *c) {
    gy_http_result r = c->in_len ? gy_http_head_parse(&c->req.head, c->in, c->in_len) : GY_HTTP_MORE;
    if (r == GY_HTTP_BAD) return refuse(c, c->req.head.fault.status, c->req.head.fault.what);
    return r == GY_HTTP_DONE ? take_head(c) : read_more(c);
}

/* Decodes in place: the body grows over its own framing. Afterwards nothing between body and in_len is undecoded. */
static gy_http_result decode_chunks(gy_http_conn *c) {
    size_t body = c->req.head.size + c->body_len, raw = body;
    gy_http_result r = GY_HTTP_MORE;
    while (raw < c->in_len) {
        size_t used = 0;
        gy_http_span data = {0, 0};
        r = gy_http_chunked_next(&c->chunked, c->in + raw, c->in_len - raw, &used, &data);
        if (r == GY_HTTP_DATA) {
            memmove(c->in + body, c->in + raw + data.off, data.len);
            body += data.len;
        }
        raw += used;
        if (r == GY_HTTP_BAD || r == GY_HTTP_DONE) break;
    }
    c->body_len = body - c->req.head.size;
    memmove(c->in + body, c->in + raw, c->in_len - raw);
    c->in_len -= raw - body;
    return r == GY_HTTP_DATA ? GY_HTTP_MORE : r;
}

static int step_body(gy_http_conn *c) {
    const gy_http_head *h = &c->req.head;
    if (h->body == GY_HTTP_BODY_NONE) return dispatch(c);
    if (h->body == GY_HTTP_BODY_CHUNKED) {
        gy_http_result r = decode_chunks(c);
        if (r == GY_HTTP_BAD) return refuse(c, c->chunked.fault.status, c->chunked.fault.what);
        return r == GY_HTTP_DONE ? dispatch(c) : read_more(c);
    }
    size_t have = c->in_len - h->size;
    c->body_len = have < h->content_length ? have : (size_t)h->content_length;
    return c->body_len == h->content_length ? dispatch(c) : read_more(c);
}

/* While a request is with the handler nothing is read, so a reset shows only as an edge. */
static int is_broken(gy_http_conn *c) {
    int error = 0;
    char byte;
    socklen_t len = sizeof error;
    if (c->eof || !c->edge) return c->eof;
    c->edge = 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) return 1;
    if (c->tls) return gy_http_tls_is_over(c);
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static int finish(gy_http_conn *c) {
    if (c->tls && !gy_http_tls_finish(c)) return 0;
    shutdown(c->fd, SHUT_WR);
    return 1;
}

static int begin_linger(gy_http_conn *c) {
    c->is_shut = finish(c);
    c->state = GY_HTTP_S_LINGER;
    gy_http_due_set(c, GY_HTTP_DUE_LINGER);
    return 1;
}

static int next_request(gy_http_conn *c) {
    c->state = GY_HTTP_S_HEAD;
    c->fresh = 0;
    if (c->out.cap > OUT_KEEP || c->in_len == 0) gy_http_ring_free(&c->out);
    gy_http_req_init(&c->req, c);
    return 1;
}

static int step_active(gy_http_conn *c) {
    gy_http_conn_flush(c);
    if (is_held(c)) {
        if (!c->gone && is_broken(c)) c->gone = 1 + GY_HTTP_GONE_CLIENT;
        if (c->gone) give_up(c, (gy_http_gone)(c->gone - 1));
        return 0;
    }
    if (c->gone) {
        gy_http_conn_close(c, 1);
        return 0;
    }
    if (c->out.len > 0) return 0;
    gy_http_due_set(c, GY_HTTP_DUE_NONE);
    /* A stream that began before the drain had promised to keep the connection; it ends all the same. */
    return c->req.keep && !c->server->draining ? next_request(c) : begin_linger(c);
}

static int step_linger(gy_http_conn *c) {
    if (!c->is_shut && c->writable) c->is_shut = finish(c);
    for (size_t total = 0; c->readable && total < DISCARD_MAX;) {
        ssize_t n = receive(c, c->server->scratch, GY_HTTP_SCRATCH_BYTES);
        if (n > 0) {
            total += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            c->readable = 0;
        } else if (n == 0 || errno != EINTR) {
            gy_http_conn_close(c, 0);
            return 0;
        }
    }
    if (c->readable) gy_http_server_later(c->server, c);
    return 0;
}

/* A client without TLS is told so in the clear. */
static int step_shake(gy_http_conn *c) {
    switch (gy_http_tls_shake(c)) {
    case GY_HTTP_SHAKE_WAIT:
        return 0;
    case GY_HTTP_SHAKE_DONE:
        c->state = GY_HTTP_S_HEAD;
        return 1;
    case GY_HTTP_SHAKE_PLAIN:
        gy_http_tls_detach(c, 1);
        return refuse(c, 400, "this port speaks TLS; use https://");
    default:
        gy_http_conn_close(c, 0);
        return 0;
    }
}

void gy_http_conn_advance(gy_http_conn *c) {
    static int (*const step[])(gy_http_conn *) = {step_head, step_body, step_active, step_linger, step_shake};
    uint64_t until = c->server->stats.n_request + REQUESTS_PER_TURN;
    while (step[c->state](c)) {
        if (c->server->stats.n_request < until || c->state != GY_HTTP_S_HEAD) continue;
        gy_http_server_later(c->server, c);
        return;
    }
}

void gy_http_conn_expire(gy_http_conn *c, gy_http_due due) {
    int is_unheard = due == GY_HTTP_DUE_HEADER && c->in_len == 0;
    if (due == GY_HTTP_DUE_WRITE) {
        give_up(c, GY_HTTP_GONE_SLOW);
    } else if (due == GY_HTTP_DUE_IDLE || due == GY_HTTP_DUE_LINGER || is_unheard) {
        gy_http_conn_close(c, 0);
    } else {
        refuse(c, 408, due == GY_HTTP_DUE_BODY ? "the body came too slowly" : "the request head came too slowly");
        gy_http_server_todo(c->server, c);
    }
}
