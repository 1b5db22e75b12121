/* Two byte buffers around a socket. What a message says is not looked at here, nor how TLS works (chan_tls.c). */
#include "pd/chan.h"

#include "pd/chan_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 1 << 16, ARENA_CHUNK = 1 << 14, KEEP = 1 << 20 };

struct gy_chan {
    int fd;
    gy_chan_tls *tls; /* NULL: plain bytes */
    size_t out_max;
    gy_str out; /* [out_at, out.len) waits */
    size_t out_at;
    char *in; /* [in_at, in_len) has come and was not decoded */
    size_t in_at, in_len, in_cap;
    gy_arena *arena;
    int closed; /* the peer writes nothing more */
    gy_err ended;
    gy_chan_stats stats;
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

gy_status gy_chan_create(int fd, size_t out_max, gy_err *err, gy_chan **out) {
    GY_CHECK(out_max >= GY_MSG_MAX);
    gy_chan *c = gy_mem_alloc(GY_MEM_PD, 1, sizeof *c);
    int flags = fcntl(fd, F_GETFL);
    if (!c) {
        close(fd);
        return gy_err_set(err, GY_E_NOMEM, "no memory for a control channel");
    }
    c->fd = fd;
    c->out_max = out_max;
    c->in_cap = PIECE;
    c->in = gy_mem_alloc(GY_MEM_PD, c->in_cap, 1);
    c->arena = gy_arena_create(GY_MEM_PD, ARENA_CHUNK);
    gy_status st = GY_OK;
    if (!c->in || !c->arena) st = gy_err_set(err, GY_E_NOMEM, "no memory for a control channel");
    if (st == GY_OK && (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0))
        st = gy_err_set(err, GY_E_IO, "control channel: descriptor %d: %s", fd, strerror(errno));
    if (st < 0)
        gy_chan_destroy(c);
    else
        *out = c;
    return st;
}

gy_status gy_chan_create_secret(int fd, int is_server, const gy_secret *s, size_t out_max, gy_err *err, gy_chan **out) {
    gy_chan *c;
    GY_TRY(gy_chan_create(fd, out_max, err, &c));
    gy_status st = gy_chan_tls_create(fd, is_server, s, err, &c->tls);
    if (st < 0) {
        gy_chan_destroy(c);
        if (err) gy_err_prefix(err, "control channel");
        return st;
    }
    *out = c;
    return GY_OK;
}

void gy_chan_destroy(gy_chan *c) {
    if (!c) return;
    gy_chan_tls_destroy(c->tls, c->out.len == c->out_at);
    close(c->fd);
    gy_str_free(&c->out);
    gy_mem_free(c->in);
    gy_arena_destroy(c->arena);
    gy_mem_free(c);
}

int gy_chan_fd(const gy_chan *c) {
    return c->fd;
}

int gy_chan_is_open(const gy_chan *c) {
    return !c->tls || gy_chan_tls_is_open(c->tls);
}

void gy_chan_get_stats(const gy_chan *c, gy_chan_stats *out) {
    *out = c->stats;
}

static gy_status end(gy_chan *c, gy_status st, const char *what, gy_err *err) {
    if (c->ended.status == GY_OK) gy_err_set(&c->ended, st, "control channel: %s", what);
    if (err) *err = c->ended;
    return c->ended.status;
}

static gy_status end_by(gy_chan *c, const gy_err *why, gy_err *err) {
    if (c->ended.status == GY_OK) c->ended = *why;
    if (err) *err = c->ended;
    return c->ended.status;
}

static gy_status ended(const gy_chan *c, gy_err *err) {
    if (err) *err = c->ended;
    return c->ended.status;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static size_t waiting(const gy_chan *c) {
    return c->out.len - c->out_at;
}

/* While the handshake waits for the peer, what waits here is no reason to poll for writing. */
int gy_chan_has_output(const gy_chan *c) {
    return gy_chan_is_open(c) ? waiting(c) > 0 : gy_chan_tls_wants_write(c->tls);
}

/* Moves what waits to the front when at least as much was written: each byte moves at most once. */
static void compact(gy_chan *c) {
    if (!c->out_at || c->out_at < waiting(c)) return;
    size_t n = waiting(c);
    if (n) memmove(c->out.data, c->out.data + c->out_at, n);
    c->out.len = n;
    c->out_at = 0;
    if (!n && c->out.cap > KEEP) gy_str_free(&c->out); /* a burst's; else it is kept */
}

gy_status gy_chan_send(gy_chan *c, const gy_msg *m, gy_err *err) {
    if (c->ended.status < 0) return ended(c, err);
    size_t before = c->out.len;
    gy_status st = gy_msg_encode(m, &c->out);
    if (c->out.failed) { /* what waited is lost with the buffer's state */
        c->out.failed = 0;
        c->out.len = before;
    }
    if (st == GY_E_NOMEM) return gy_err_set(err, st, "control channel: no memory for a message");
    if (st < 0) return gy_err_set(err, st, "control channel: a message %s of more than 64 MiB", gy_msg_name(m->kind));
    if (waiting(c) > c->out_max) {
        c->out.len = before;
        return end(c, GY_E_PEER, "the other side reads too slowly: its buffer is full", err);
    }
    c->stats.n_sent++;
    if (waiting(c) > c->stats.out_peak) c->stats.out_peak = waiting(c);
    return GY_OK;
}

/* GY_OK: *n bytes were taken. */
static gy_status put_plain(gy_chan *c, const char *bytes, size_t len, size_t *n, gy_err *err) {
    for (;;) {
        ssize_t put = send(c->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return GY_AGAIN;
        if (put < 0) return end(c, GY_E_PEER, errno == EPIPE ? "the other side is gone" : strerror(errno), err);
        *n = (size_t)put;
        return GY_OK;
    }
}

/* What TLS says ends the channel. */
static gy_status secret(gy_chan *c, gy_status st, gy_err *e, gy_err *err) {
    if (st >= 0) return st;
    gy_err_prefix(e, "control channel");
    return end_by(c, e, err);
}

static gy_status put_secret(gy_chan *c, const char *bytes, size_t len, size_t *n, gy_err *err) {
    gy_err e = {0};
    return secret(c, gy_chan_tls_write(c->tls, bytes, len, n, &e), &e, err);
}

static gy_status shake(gy_chan *c, gy_err *err) {
    gy_err e = {0};
    gy_status st = secret(c, gy_chan_tls_shake(c->tls, &e), &e, err);
    return st == GY_AGAIN && !gy_chan_has_output(c) && !waiting(c) ? GY_OK : st;
}

gy_status gy_chan_flush(gy_chan *c, gy_err *err) {
    if (c->ended.status < 0) return ended(c, err);
    if (!gy_chan_is_open(c)) {
        gy_status st = shake(c, err);
        if (st != GY_OK) return st;
    }
    while (waiting(c)) {
        const char *from = c->out.data + c->out_at;
        size_t n = 0;
        gy_status st = c->tls ? put_secret(c, from, waiting(c), &n, err) : put_plain(c, from, waiting(c), &n, err);
        if (st != GY_OK) return st;
        c->out_at += n;
        c->stats.bytes_out += (int64_t)n;
        compact(c);
    }
    return GY_OK;
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

/* Room for `more` bytes behind what is there. */
static gy_status make_room(gy_chan *c, size_t more, gy_err *err) {
    if (c->in_at) {
        memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
        c->in_len -= c->in_at;
        c->in_at = 0;
    }
    if (c->in_cap - c->in_len >= more) return GY_OK;
    size_t cap = c->in_cap;
    while (cap - c->in_len < more) cap *= 2;
    char *p = gy_mem_realloc(GY_MEM_PD, c->in, cap, 1);
    if (!p) return end(c, GY_E_NOMEM, "no memory for a message", err);
    c->in = p;
    c->in_cap = cap;
    return GY_OK;
}

/* How many bytes the frame that begins at in_at still lacks, as far as that is known; never more than a frame may
 * have, since its length was checked. */
static size_t lacking(const gy_chan *c) {
    uint32_t length = 0;
    size_t have = c->in_len - c->in_at;
    if (have < sizeof length) return 1;
    memcpy(&length, c->in + c->in_at, sizeof length);
    size_t whole = (size_t)length + sizeof length;
    return whole > have ? whole - have : 1;
}

/* GY_OK: *n bytes came; GY_DONE: no more will. */
static gy_status take_plain(gy_chan *c, char *to, size_t room, size_t *n, gy_err *err) {
    for (;;) {
        ssize_t got = recv(c->fd, to, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return GY_AGAIN;
        if (got < 0 && errno != ECONNRESET) return end(c, GY_E_PEER, strerror(errno), err);
        if (got <= 0) return GY_DONE;
        *n = (size_t)got;
        return GY_OK;
    }
}

static gy_status take_secret(gy_chan *c, char *to, size_t room, size_t *n, gy_err *err) {
    gy_err e = {0};
    return secret(c, gy_chan_tls_read(c->tls, to, room, n, &e), &e, err);
}

/* GY_OK: some bytes came, or the peer has closed. */
static gy_status fill(gy_chan *c, gy_err *err) {
    size_t want = lacking(c), n = 0;
    if (c->in_at == c->in_len) c->in_at = c->in_len = 0;
    if (c->in_cap - c->in_len < (want > PIECE ? want : 1)) GY_TRY(make_room(c, want > PIECE ? want : PIECE, err));
    char *to = c->in + c->in_len;
    size_t room = c->in_cap - c->in_len;
    gy_status st = c->tls ? take_secret(c, to, room, &n, err) : take_plain(c, to, room, &n, err);
    if (st < 0 || st == GY_AGAIN) return st;
    if (st == GY_DONE) c->closed = 1;
    c->in_len += n;
    c->stats.bytes_in += (int64_t)n;
    return GY_OK;
}

/* The whole frame at in_at becomes *out. GY_AGAIN: skipped. */
static gy_status decode(gy_chan *c, size_t frame, gy_err *err, gy_msg *out) {
    gy_err e = {0};
    gy_arena_reset(c->arena);
    gy_status st = gy_msg_decode(c->in + c->in_at, frame, c->arena, &e, out);
    c->in_at += frame;
    if (st < 0) return end_by(c, &e, err);
    if (st == GY_DONE) {
        c->stats.n_unknown++;
        return GY_AGAIN;
    }
    c->stats.n_received++;
    return GY_OK;
}

static gy_status hung_up(gy_chan *c, gy_err *err) {
    if (c->in_len != c->in_at) return end(c, GY_E_PEER, "the other side went away in the middle of a message", err);
    return GY_DONE;
}

gy_status gy_chan_recv(gy_chan *c, gy_err *err, gy_msg *out) {
    if (c->ended.status < 0 && c->ended.status != GY_E_PEER) return ended(c, err);
    for (;;) {
        gy_err e = {0};
        size_t frame;
        gy_status st = gy_msg_frame(c->in + c->in_at, c->in_len - c->in_at, &frame, &e);
        if (st < 0) return end_by(c, &e, err);
        if (frame) {
            st = decode(c, frame, err, out);
            if (st != GY_AGAIN) return st;
            continue;
        }
        if (c->closed) return hung_up(c, err);
        st = fill(c, err);
        if (st != GY_OK) return st;
    }
}
