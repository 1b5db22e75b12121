/* See cli_worker_door.h. */
#include "cli/cli_worker_door.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 16, REST_NS = 100000000 };

typedef struct visitor {
    gy_chan *chan; /* NULL: nobody */
    int64_t due_ns;
    int is_told;
} visitor;

struct gy_door {
    int fd;
    gy_secret secret;
    int32_t peer_ms;
    int64_t rest_ns; /* until then nobody is let in; 0: all are */
    int has_warned;  /* of somebody without the secret; once is enough */
    int has_rested;
    visitor v[GY_DOOR_VISITORS];
};

gy_status gy_door_open(int fd, const gy_secret *s, int32_t peer_ms, gy_err *err, gy_door **out) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || listen(fd, BACKLOG) < 0)
        return gy_err_set(err, GY_E_IO, "--listen: nobody can be waited for: %s", strerror(errno));
    gy_door *d = gy_mem_alloc(GY_MEM_PD, 1, sizeof *d);
    if (!d) return gy_err_set(err, GY_E_NOMEM, "no memory for a door");
    d->fd = fd;
    d->secret = *s;
    d->peer_ms = peer_ms;
    *out = d;
    return GY_OK;
}

static void send_away(visitor *v) {
    gy_chan_destroy(v->chan);
    *v = (visitor){0};
}

void gy_door_close(gy_door *d) {
    if (!d) return;
    for (int i = 0; i < GY_DOOR_VISITORS; i++) send_away(&d->v[i]);
    close(d->fd);
    gy_mem_free(d);
}

int gy_door_polls(const gy_door *d, struct pollfd *out) {
    int n = 0;
    out[n++] = (struct pollfd){.fd = d->rest_ns ? -1 : d->fd, .events = POLLIN}; /* -1: not looked at */
    for (int i = 0; i < GY_DOOR_VISITORS; i++) {
        gy_chan *c = d->v[i].chan;
        if (!c) continue;
        out[n++] =
            (struct pollfd){.fd = gy_chan_fd(c), .events = (short)(POLLIN | (gy_chan_has_output(c) ? POLLOUT : 0))};
    }
    return n;
}

int64_t gy_door_next_ns(const gy_door *d) {
    int64_t at = d->rest_ns ? d->rest_ns : INT64_MAX;
    for (int i = 0; i < GY_DOOR_VISITORS; i++)
        if (d->v[i].chan && d->v[i].due_ns < at) at = d->v[i].due_ns;
    return at;
}

/* ---- who comes in ------------------------------------------------------------------------------------------------ */

static visitor *find_place(gy_door *d) {
    for (int i = 0; i < GY_DOOR_VISITORS; i++)
        if (!d->v[i].chan) return &d->v[i];
    return NULL;
}

static void let_in(gy_door *d, int fd, int64_t now_ns) {
    const int one = 1;
    unsigned most = (unsigned)d->peer_ms;
    visitor *v = find_place(d);
    if (!v) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
    *v = (visitor){.due_ns = now_ns + (int64_t)d->peer_ms * 1000000};
    if (gy_chan_create_secret(fd, 1, &d->secret, GY_CHAN_OUT_MAX, NULL, &v->chan) < 0) v->chan = NULL;
}

static void warn(gy_door *d, const char *why) {
    char text[512];
    if (d->has_warned) return;
    d->has_warned = 1;
    gy_log(GY_LOG_WARN, "pd", "somebody came who is no coordinator of ours", "why=%s",
           gy_log_quote(why, text, (int)sizeof text));
}

/* Without descriptors or memory the socket stays readable, and nothing would sleep any more: it rests a while. */
static void rest(gy_door *d, int64_t now_ns) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    if (!d->has_rested)
        gy_log(GY_LOG_WARN, "pd", "nobody can be let in for the moment", "why=\"%s\"", strerrordesc_np(errno));
    d->has_rested = 1;
    d->rest_ns = now_ns + REST_NS;
}

static void let_all_in(gy_door *d, int64_t now_ns) {
    int fd;
    if (now_ns < d->rest_ns) return;
    d->rest_ns = 0;
    while ((fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) let_in(d, fd, now_ns);
    rest(d, now_ns);
}

/* A coordinator says nothing before it has heard READY: who does is none. 1: he may go on. */
static int hear(gy_door *d, visitor *v, int64_t now_ns) {
    gy_err err = {0};
    gy_msg m;
    int was_open = gy_chan_is_open(v->chan);
    int is_good = gy_chan_recv(v->chan, &err, &m) == GY_AGAIN && now_ns < v->due_ns;
    if (is_good && gy_chan_has_output(v->chan)) is_good = gy_chan_flush(v->chan, &err) >= 0;
    if (is_good) return 1;
    if (!was_open && err.msg[0]) warn(d, err.msg);
    send_away(v);
    return 0;
}

/* It hears why, and closes its side. */
static void refuse(visitor *v) {
    static const char text[] = "this worker serves another coordinator";
    const gy_msg m = {.kind = GY_MSG_FATAL, .status = GY_E_PEER, .text = text, .n_text = (int32_t)sizeof text - 1};
    if (v->is_told) return;
    v->is_told = 1;
    gy_chan_send(v->chan, &m, NULL);
    gy_chan_flush(v->chan, NULL);
}

gy_chan *gy_door_turn(gy_door *d, int64_t now_ns, int wants) {
    gy_chan *found = NULL;
    let_all_in(d, now_ns);
    for (int i = 0; i < GY_DOOR_VISITORS; i++) {
        visitor *v = &d->v[i];
        if (!v->chan || !hear(d, v, now_ns) || !gy_chan_is_open(v->chan)) continue;
        if (wants && !found) {
            found = v->chan;
            *v = (visitor){0};
        } else
            refuse(v);
    }
    return found;
}
