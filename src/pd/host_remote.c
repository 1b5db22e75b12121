/* Slots that are connections to workers of other hosts: found by discovery, dialled, kept alive, lost, dialled again.
 * What a worker is and whether it lives is known from its connection alone. Never waits.
 */
#include "pd/host_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { FIRST_WAIT_MS = 100, LONGEST_WAIT_MS = 5000, PING_MS = 1000 };

static int64_t ms(int64_t n) {
    return n * GY_HOST_MS;
}

/* Waits of many coordinators must not fall together. 3/4 to 5/4 of it. */
static int64_t jittered(gy_host *h, int64_t wait_ns) {
    h->rng = h->rng * 6364136223846793005u + 1442695040888963407u;
    return wait_ns * 3 / 4 + (int64_t)((h->rng >> 33) % (uint64_t)(wait_ns / 2 + 1));
}

static int64_t wait_of(const gy_remote *r) {
    if (r->is_refused || r->n_dial > 6) return ms(LONGEST_WAIT_MS);
    int64_t wait_ms = (int64_t)FIRST_WAIT_MS << (r->n_dial ? r->n_dial - 1 : 0);
    return ms(wait_ms < LONGEST_WAIT_MS ? wait_ms : LONGEST_WAIT_MS);
}

/* ---- the end of a connection ------------------------------------------------------------------------------------- */

static void place_some(gy_host *h, int64_t now_ns);

static void make_empty(gy_host *h, gy_slot *s, int64_t now_ns) {
    gy_msg_stats_add_past(&h->gone.stats, &s->past);
    h->gone.n_death += s->w.n_death;
    s->w = (gy_host_worker){.state = GY_HOST_EMPTY, .name = "", .address = ""};
    s->past = (gy_msg_stats){0};
    s->r = (gy_remote){.fd = -1, .serial = s->r.serial + 1, .is_asked = s->r.is_asked};
    place_some(h, now_ns);
}

/* A worker that cannot be had says so again and again: it is logged when the reason is another one. */
static void tell(const gy_host *h, gy_slot *s, int was_running) {
    if (was_running)
        gy_slot_log(h, s->is_stopped ? GY_LOG_INFO : GY_LOG_WARN,
                    s->is_stopped ? "a worker has left" : "a worker on another host is lost", s);
    else if (strcmp(s->r.told, s->why) != 0)
        gy_slot_log(
            h, GY_LOG_WARN,
            s->r.is_refused ? "a worker on another host cannot be used" : "a worker on another host cannot be had", s);
    memcpy(s->r.told, s->why, sizeof s->r.told);
}

void gy_remote_lost(gy_host *h, gy_slot *s, int64_t now_ns) {
    int was_running = s->w.state == GY_HOST_RUNNING, was_met = s->w.state == GY_HOST_STARTING || was_running;
    tell(h, s, was_running);
    gy_slot_drop_chan(s);
    if (s->r.fd >= 0) close(s->r.fd);
    s->r.fd = -1;
    gy_slot_close_stats(s);
    s->w.n_death += was_running && !s->is_stopped;
    s->w.state = GY_HOST_DOWN;
    s->due_ns = now_ns + jittered(h, wait_of(&s->r));
    s->doomed = s->is_leaving = s->is_stopped = 0;
    s->w.pid = 0;
    if (was_met) gy_coord_dead(h->coord, gy_slot_index(h, s), now_ns);
    s->w.role = 0;
    if (!s->r.is_listed) make_empty(h, s, now_ns);
}

void gy_remote_hung_up(gy_host *h, gy_slot *s, const gy_err *why, int64_t now_ns) {
    s->r.is_refused |= s->w.state == GY_HOST_STARTING && s->why[0]; /* FATAL */
    gy_slot_say_why(s, why->msg[0] ? why->msg : "it closed the connection");
    gy_remote_lost(h, s, now_ns);
}

/* ---- dialling ---------------------------------------------------------------------------------------------------- */

static void failed(gy_host *h, gy_slot *s, const char *what, const char *why, int64_t now_ns) {
    char text[GY_HOST_WHAT];
    snprintf(text, sizeof text, "%s%.300s", what, why);
    gy_slot_say_why(s, text);
    gy_remote_lost(h, s, now_ns);
}

/* A cut link is seen by what it leaves unacknowledged: there is a PING each second. */
static void set_tcp(int fd, int timeout_ms) {
    const int one = 1;
    unsigned most = (unsigned)timeout_ms;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
}

static void connect_to(gy_host *h, gy_slot *s, const gy_address *a, int64_t now_ns) {
    int fd = socket(a->a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    s->r.fd = fd;
    if (fd < 0) {
        failed(h, s, "no socket: ", strerror(errno), now_ns);
        return;
    }
    set_tcp(fd, h->o.peer_ms);
    if ((connect(fd, (const struct sockaddr *)&a->a, a->len) < 0 && errno != EINPROGRESS) ||
        gy_host_watch(h, EPOLL_CTL_ADD, fd, EPOLLOUT, TAG_DIAL, s) < 0) {
        failed(h, s, "", strerror(errno), now_ns);
        return;
    }
    s->due_ns = now_ns + ms(h->o.peer_ms);
}

static void ask_name(gy_host *h, gy_slot *s, const char *host, const char *port, int64_t now_ns) {
    gy_err err = {0};
    s->due_ns = INT64_MAX; /* it always answers */
    if (s->r.is_asked) return;
    if (!h->resolver) {
        if (gy_resolver_create(&err, &h->resolver) < 0 ||
            gy_host_watch(h, EPOLL_CTL_ADD, gy_resolver_fd(h->resolver), EPOLLIN, TAG_RESOLVED, NULL) < 0) {
            gy_resolver_destroy(h->resolver);
            h->resolver = NULL;
            failed(h, s, "its name cannot be resolved: ", err.msg, now_ns);
            return;
        }
    }
    s->r.is_asked = 1;
    gy_resolver_ask(h->resolver, gy_slot_index(h, s), s->r.serial, host, port);
}

static void dial(gy_host *h, gy_slot *s, int64_t now_ns) {
    char host[256], port[8];
    gy_address a;
    gy_err err = {0};
    s->why[0] = 0;
    s->r.is_refused = 0;
    s->r.n_dial++;
    s->w.state = GY_HOST_DIALLING;
    if (gy_address_split(s->r.address, &err, host, port) < 0 || !host[0])
        failed(h, s, "its address cannot be used: ", err.msg[0] ? err.msg : "it names no host", now_ns);
    else if (gy_resolve_numeric(host, port, &a))
        connect_to(h, s, &a, now_ns);
    else
        ask_name(h, s, host, port, now_ns);
}

void gy_remote_on_resolved(gy_host *h, int64_t now_ns) {
    gy_resolved a;
    while (gy_resolver_next(h->resolver, &a)) {
        gy_slot *s = &h->slot[a.who];
        s->r.is_asked = 0;
        if (s->w.state != GY_HOST_DIALLING || s->r.fd >= 0) continue; /* or another worker's, being dialled */
        if (a.serial != s->r.serial)                                  /* another worker has the slot now */
            dial(h, s, now_ns);
        else if (!a.n)
            failed(h, s, "its name cannot be resolved: ", a.why, now_ns);
        else
            connect_to(h, s, &a.addr[s->r.n_dial % a.n], now_ns);
    }
}

/* ---- connected --------------------------------------------------------------------------------------------------- */

void gy_remote_on_dialled(gy_host *h, gy_slot *s, int64_t now_ns) {
    int e = 0, fd = s->r.fd;
    socklen_t len = sizeof e;
    gy_err err = {0};
    if (s->w.state != GY_HOST_DIALLING || fd < 0) return;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0 || e) {
        failed(h, s, "", strerror(e ? e : errno), now_ns);
        return;
    }
    s->r.fd = -1;
    gy_host_watch(h, EPOLL_CTL_DEL, fd, 0, TAG_DIAL, s);
    if (gy_chan_create_secret(fd, 0, &h->secret, GY_CHAN_OUT_MAX, &err, &s->chan) < 0 ||
        gy_host_watch(h, EPOLL_CTL_ADD, gy_chan_fd(s->chan), EPOLLIN | EPOLLOUT, TAG_CHAN, s) < 0) {
        failed(h, s, "no connection: ", err.msg, now_ns);
        return;
    }
    s->polled = EPOLLIN | EPOLLOUT;
    s->w.state = GY_HOST_STARTING;
    s->due_ns = now_ns + ms(2 * (int64_t)h->o.peer_ms);
}

/* Nothing that it says now is of interest, and it may hang in its end. */
void gy_remote_gave_up(gy_slot *s) {
    s->r.is_refused |= s->w.state == GY_HOST_STARTING;
    gy_slot_doom(s, "it gave up and did not say why");
}

gy_status gy_remote_accept(const gy_host *h, const gy_msg_ready *r, gy_err *err) {
    return h->o.accept ? h->o.accept(h->o.user, r, err) : GY_OK;
}

void gy_remote_on_ready(gy_slot *s, int64_t now_ns) {
    s->w.n_start++;
    s->r.n_dial = 0;
    s->r.told[0] = 0;
    s->r.ping_ns = now_ns;
    s->due_ns = INT64_MAX;
}

/* ---- discovery --------------------------------------------------------------------------------------------------- */

static gy_slot *find(gy_host *h, const gy_disc_event *e) {
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_slot *s = &h->slot[i];
        if (s->w.state != GY_HOST_EMPTY && !strcmp(s->r.name, e->name) && !strcmp(s->r.address, e->address)) return s;
    }
    return NULL;
}

static gy_slot *find_empty(gy_host *h) {
    for (int32_t i = 0; i < h->n_worker; i++)
        if (h->slot[i].w.state == GY_HOST_EMPTY) return &h->slot[i];
    return NULL;
}

static void place(gy_slot *s, const gy_disc_event *e, int64_t now_ns) {
    memcpy(s->r.name, e->name, sizeof s->r.name);
    memcpy(s->r.address, e->address, sizeof s->r.address);
    s->r.is_listed = 1;
    s->w = (gy_host_worker){.state = GY_HOST_DOWN, .name = s->r.name, .address = s->r.address};
    s->due_ns = now_ns;
}

static void place_some(gy_host *h, int64_t now_ns) {
    gy_slot *s;
    while (h->n_unplaced && (s = find_empty(h))) {
        place(s, &h->unplaced[0], now_ns);
        memmove(h->unplaced, h->unplaced + 1, (size_t)--h->n_unplaced * sizeof *h->unplaced);
    }
}

static void add(gy_host *h, const gy_disc_event *e, int64_t now_ns) {
    gy_slot *s = find(h, e);
    if (s) {
        s->r.is_listed = 1; /* it was still here */
        return;
    }
    if (h->n_unplaced == GY_DISC_MAX_WORKERS) return; /* discovery names no more than that */
    h->unplaced[h->n_unplaced++] = *e;
    place_some(h, now_ns);
    if (h->n_unplaced)
        gy_log(GY_LOG_WARN, "pd", "more workers than places: one waits until another one has left", "places=%d",
               (int)GY_COORD_MAX_WORKERS);
}

static void forget_unplaced(gy_host *h, const gy_disc_event *e) {
    for (int32_t i = 0; i < h->n_unplaced; i++)
        if (!strcmp(h->unplaced[i].name, e->name)) {
            memmove(h->unplaced + i, h->unplaced + i + 1, (size_t)(--h->n_unplaced - i) * sizeof *h->unplaced);
            return;
        }
}

static void take_out(gy_host *h, gy_slot *s, int drain, int64_t now_ns) {
    s->r.is_listed = 0;
    if (s->w.state == GY_HOST_RUNNING) {
        if (drain) gy_coord_leave(h->coord, gy_slot_index(h, s));
        s->is_leaving |= drain;
    } else {
        gy_slot_say_why(s, "it is listed no more");
        memcpy(s->r.told, s->why, sizeof s->r.told); /* nobody needs to be told */
        gy_remote_lost(h, s, now_ns);
    }
}

static void remove_worker(gy_host *h, const gy_disc_event *e, int64_t now_ns) {
    forget_unplaced(h, e);
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_slot *s = &h->slot[i];
        if (s->w.state != GY_HOST_EMPTY && s->r.is_listed && !strcmp(s->r.name, e->name))
            take_out(h, s, e->drain, now_ns);
    }
}

void gy_remote_on_disc(gy_host *h, int64_t now_ns) {
    gy_disc_event e;
    while (gy_disc_next(h->o.disc, &e))
        if (e.kind == GY_DISC_ADD)
            add(h, &e, now_ns);
        else
            remove_worker(h, &e, now_ns);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static int64_t ping_every(const gy_host *h) {
    int64_t quarter = ms(h->o.peer_ms) / 4;
    return quarter < ms(PING_MS) ? quarter : ms(PING_MS);
}

static void ping(gy_host *h, gy_slot *s, int64_t now_ns) {
    const gy_msg m = {.kind = GY_MSG_PING};
    gy_err err = {0};
    s->r.ping_ns = now_ns + ping_every(h);
    if (gy_chan_send(s->chan, &m, &err) < 0) gy_slot_doom(s, err.msg);
}

static void look_at_running(gy_host *h, gy_slot *s, int64_t now_ns) {
    char text[96];
    if (now_ns >= s->r.ping_ns) ping(h, s, now_ns);
    if (now_ns - s->r.heard_ns >= ms(h->o.stall_ms)) {
        snprintf(text, sizeof text, "it said nothing for %.1f s", (double)h->o.stall_ms / 1000);
        gy_slot_doom(s, text);
    } else if (now_ns >= s->due_ns)
        gy_slot_doom(s, "it was told to stop and did not");
}

void gy_remote_look_at_clock(gy_host *h, gy_slot *s, int64_t now_ns) {
    char text[96];
    switch (s->w.state) {
    case GY_HOST_DOWN:
        if (now_ns >= s->due_ns) dial(h, s, now_ns);
        break;
    case GY_HOST_DIALLING:
    case GY_HOST_STARTING:
        if (now_ns < s->due_ns) break;
        snprintf(text, sizeof text, "it did not answer within %.1f s",
                 (double)h->o.peer_ms / 1000 * (s->w.state == GY_HOST_STARTING ? 2 : 1));
        gy_slot_say_why(s, text);
        gy_remote_lost(h, s, now_ns);
        break;
    case GY_HOST_RUNNING:
        look_at_running(h, s, now_ns);
        break;
    default:
        break;
    }
}

int64_t gy_remote_next(const gy_host *h, const gy_slot *s) {
    if (s->w.state == GY_HOST_EMPTY) return INT64_MAX;
    if (s->w.state != GY_HOST_RUNNING) return s->due_ns;
    int64_t at = s->r.heard_ns + ms(h->o.stall_ms);
    if (s->r.ping_ns < at) at = s->r.ping_ns;
    return s->due_ns < at ? s->due_ns : at;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

gy_status gy_remote_open(gy_host *h, gy_err *err) {
    h->unplaced = gy_mem_alloc(GY_MEM_PD, GY_DISC_MAX_WORKERS, sizeof *h->unplaced);
    if (!h->unplaced) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    h->rng = (uint64_t)gy_clock_ns() ^ (uint64_t)getpid() << 32;
    if (gy_host_watch(h, EPOLL_CTL_ADD, gy_disc_fd(h->o.disc), EPOLLIN, TAG_DISC, NULL) < 0)
        return gy_err_set(err, GY_E_IO, "workers: discovery cannot be watched: %s", strerror(errno));
    gy_remote_on_disc(h, gy_clock_ns());
    return GY_OK;
}

static int read_rests(gy_host *h, struct pollfd *p, nfds_t *n_out) {
    *n_out = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_slot *s = &h->slot[i];
        gy_msg m;
        gy_status st;
        if (!s->chan) continue;
        while ((st = gy_chan_recv(s->chan, NULL, &m)) == GY_OK) {
        }
        if (st != GY_AGAIN || s->w.state != GY_HOST_RUNNING)
            gy_slot_drop_chan(s);
        else
            p[(*n_out)++] = (struct pollfd){.fd = gy_chan_fd(s->chan), .events = POLLIN};
    }
    return *n_out > 0;
}

/* Who was told to stop ends his side. Whoever does not is left to himself: he ends when the connection does. */
void gy_remote_close(gy_host *h) {
    struct pollfd p[GY_COORD_MAX_WORKERS];
    nfds_t n;
    int64_t end_ns = gy_clock_ns() + ms(h->o.stop_ms), left_ns;
    while (h->is_idle && read_rests(h, p, &n) && (left_ns = end_ns - gy_clock_ns()) > 0)
        poll(p, n, (int)(left_ns / GY_HOST_MS) + 1);
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_slot_drop_chan(&h->slot[i]);
        if (h->slot[i].r.fd >= 0) close(h->slot[i].r.fd);
    }
    gy_resolver_destroy(h->resolver);
    gy_mem_free(h->unplaced);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

gy_status gy_remote_describe(const gy_host *h, gy_err *err) {
    int n_listed = h->n_unplaced,
        n_ready[2] = {gy_coord_n_ready(h->coord, GY_PD_PREFILL), gy_coord_n_ready(h->coord, GY_PD_DECODE)};
    char text[900] = "";
    size_t at = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        const gy_slot *s = &h->slot[i];
        if (s->w.state == GY_HOST_EMPTY) continue;
        n_listed++;
        const char *why = s->why[0] ? s->why : s->r.told;
        if (s->w.state == GY_HOST_RUNNING || at >= 600 || !why[0]) continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "; %.100s: %.160s", s->r.address, why);
    }
    return gy_err_set(
        err, GY_E_PEER,
        "after %g s no worker is ready that %s (%d listed, %d ready that compute prompts, %d that decode)%s",
        (double)h->o.start_ms / 1000,
        n_ready[0]   ? "decodes"
        : n_ready[1] ? "computes prompts"
                     : "computes prompts or decodes",
        n_listed, n_ready[0], n_ready[1], text);
}
