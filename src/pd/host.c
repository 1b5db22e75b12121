/* Slots of workers, one epoll of control channels, process descriptors and a timer. A slot is killed from inside a
 * message or a send only by a mark (doom): its descriptors go when the turn is back at the top, so that nobody's loop
 * loses what it stands on.
 */
#include "pd/host.h"

#include "base/clock.h"
#include "base/log.h"
#include "pd/spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MS = 1000000, MAX_EVENTS = 64, MAX_MESSAGES = 4096, MAX_ARGS = 128, WHAT = 640, HANG_UP_MS = 1000 };

typedef enum tag { TAG_CHAN, TAG_PROCESS, TAG_TIMER } tag;

typedef struct slot {
    gy_host_worker w;
    gy_msg_stats past; /* what earlier lives counted */
    gy_chan *chan;     /* NULL unless a process has the other end */
    int pidfd;         /* -1: no process */
    int doomed;        /* to be killed at the top of the turn */
    uint32_t polled;
    int64_t due_ns;                       /* DOWN: when it starts again; STARTING: when it is too late */
    int64_t death_ns[GY_HOST_MAX_DEATHS]; /* ring */
    char why[WHAT];                       /* its death, in words: a worker's own come first */
} slot;

struct gy_host {
    gy_host_opts o;
    char *argv_text[MAX_ARGS];
    size_t n_arg;
    gy_spawner *spawner;
    gy_coord *coord;
    int epoll_fd, timer_fd;
    int64_t timer_ns;  /* what the timer is set to; INT64_MAX: nothing */
    int opening, more; /* more: messages were left for the next turn */
    gy_err open_err;   /* the first death while opening */
    int32_t n_worker;
    slot slot[GY_COORD_MAX_WORKERS];
};

void gy_host_opts_default(gy_host_opts *o) {
    *o = (gy_host_opts){.start_ms = 300000, .stop_ms = 3000};
    gy_coord_opts_default(&o->coord);
}

static const char *role_name(int32_t role) {
    return role == GY_PD_PREFILL ? "prefill" : role == GY_PD_DECODE ? "decode" : "both";
}

static int32_t index_of(const gy_host *h, const slot *s) {
    return (int32_t)(s - h->slot);
}

/* The first reason counts. */
static void say_why(slot *s, const char *text) {
    if (!s->why[0]) snprintf(s->why, sizeof s->why, "%.600s", text);
}

static void log_worker(const gy_host *h, gy_log_level level, const char *what, const slot *s) {
    char quoted[WHAT + 64];
    gy_log(level, "pd", what, "worker=%d role=%s pid=%d why=%s", index_of(h, s), role_name(s->w.role), s->w.pid,
           gy_log_quote(s->why, quoted, (int)sizeof quoted));
}

/* ---- epoll ------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(tag t, int32_t worker) {
    return (uint64_t)t << 32 | (uint32_t)worker;
}

static int watch(const gy_host *h, int op, int fd, uint32_t events, uint64_t key) {
    struct epoll_event e = {.events = events, .data = {.u64 = key}};
    return epoll_ctl(h->epoll_fd, op, fd, &e);
}

static void watch_output(const gy_host *h, slot *s) {
    uint32_t want = EPOLLIN | (gy_chan_has_output(s->chan) ? (uint32_t)EPOLLOUT : 0);
    if (want == s->polled) return;
    s->polled = want;
    watch(h, EPOLL_CTL_MOD, gy_chan_fd(s->chan), want, key_of(TAG_CHAN, index_of(h, s)));
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

static gy_status attach(gy_host *h, slot *s, int fd, gy_err *err) {
    int32_t i = index_of(h, s);
    GY_TRY(gy_chan_create(fd, GY_CHAN_OUT_MAX, err, &s->chan));
    s->polled = EPOLLIN;
    if (watch(h, EPOLL_CTL_ADD, gy_chan_fd(s->chan), EPOLLIN, key_of(TAG_CHAN, i)) < 0 ||
        watch(h, EPOLL_CTL_ADD, s->pidfd, EPOLLIN, key_of(TAG_PROCESS, i)) < 0)
        return gy_err_set(err, GY_E_IO, "worker %d: cannot be watched: %s", i, strerror(errno));
    return GY_OK;
}

static void detach(slot *s) {
    gy_chan_destroy(s->chan);
    s->chan = NULL;
    if (s->pidfd >= 0) close(s->pidfd);
    s->pidfd = -1;
}

static void end_process(slot *s) {
    gy_child_end e;
    if (s->pidfd < 0) return;
    gy_child_signal(s->pidfd, SIGKILL);
    struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
    while (!gy_child_reap(s->pidfd, &e)) poll(&p, 1, -1);
}

static void set_stats(slot *s, const gy_msg_stats *now) {
    s->w.stats = *now;
    gy_msg_stats_add_past(&s->w.stats, &s->past);
}

/* A life has ended: what it counted stays, what it held is gone. */
static void close_stats(slot *s) {
    s->past = s->w.stats;
    set_stats(s, &(gy_msg_stats){0});
}

static gy_status start(gy_host *h, slot *s, int64_t now_ns, gy_err *err) {
    const char *argv[MAX_ARGS + 3];
    int fd[2];
    memcpy(argv, h->argv_text, h->n_arg * sizeof *argv);
    argv[h->n_arg] = "--role";
    argv[h->n_arg + 1] = role_name(s->w.role);
    argv[h->n_arg + 2] = NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "worker %d: no control channel: %s", index_of(h, s), strerror(errno));
    gy_status st = gy_spawner_start(h->spawner, argv, fd[1], err, &s->w.pid, &s->pidfd);
    close(fd[1]);
    if (st < 0) {
        close(fd[0]);
        return st;
    }
    st = attach(h, s, fd[0], err);
    if (st < 0) {
        end_process(s);
        detach(s);
        return st;
    }
    s->why[0] = 0;
    s->doomed = 0;
    s->w.state = GY_HOST_STARTING;
    s->w.n_start++;
    s->due_ns = now_ns + (int64_t)h->o.start_ms * MS;
    return GY_OK;
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

static void doom(slot *s, const char *why) {
    if (s->w.state != GY_HOST_STARTING && s->w.state != GY_HOST_RUNNING) return;
    say_why(s, why);
    s->doomed = 1;
}

/* Its channel goes at once: nothing that it says now is of interest. */
static void kill_doomed(slot *s) {
    if (!s->doomed) return;
    s->doomed = 0;
    s->w.state = GY_HOST_DYING;
    s->due_ns = INT64_MAX;
    gy_chan_destroy(s->chan);
    s->chan = NULL;
    gy_child_signal(s->pidfd, SIGKILL);
}

/* It closed its end: it is ending, with an exit code that is worth a moment. */
static void hung_up(slot *s, int64_t now_ns) {
    s->w.state = GY_HOST_DYING;
    s->due_ns = now_ns + (int64_t)HANG_UP_MS * MS;
    gy_chan_destroy(s->chan);
    s->chan = NULL;
}

static int recent_deaths(const slot *s, int64_t now_ns) {
    int n = 0;
    for (int i = 0; i < GY_HOST_MAX_DEATHS; i++)
        n += s->death_ns[i] && now_ns - s->death_ns[i] < (int64_t)GY_HOST_DEATH_WINDOW_MS * MS;
    return n;
}

static void plan_next_life(const gy_host *h, slot *s, int64_t now_ns) {
    static const int wait_ms[] = {0, 500, 2000};
    s->death_ns[s->w.n_death++ % GY_HOST_MAX_DEATHS] = now_ns;
    int n = recent_deaths(s, now_ns);
    s->w.state = n >= GY_HOST_MAX_DEATHS ? GY_HOST_LOST : GY_HOST_DOWN;
    s->due_ns = now_ns + (int64_t)wait_ms[n > 3 ? 2 : n - 1] * MS;
    log_worker(h, GY_LOG_WARN, s->w.state == GY_HOST_LOST ? "a worker died too often and stays down" : "a worker died",
               s);
}

static void describe_end(slot *s, const gy_child_end *e) {
    char text[64];
    if (!e->known)
        snprintf(text, sizeof text, "it ended");
    else if (e->signal)
        snprintf(text, sizeof text, "it was killed by signal %d", e->signal);
    else
        snprintf(text, sizeof text, "it ended with exit code %d", e->code);
    say_why(s, text);
}

static void fail_opening(gy_host *h, const slot *s) {
    if (!h->opening || h->open_err.status < 0) return;
    gy_err_set(&h->open_err, GY_E_PEER, "worker %d (%s) did not start: %s", index_of(h, s), role_name(s->w.role),
               s->why);
}

static void on_message(gy_host *h, slot *s, const gy_msg *m, int64_t now_ns);

/* What it said before it died counts. */
static void drain(gy_host *h, slot *s, int64_t now_ns) {
    gy_msg m;
    while (s->chan && !s->doomed && gy_chan_recv(s->chan, NULL, &m) == GY_OK) on_message(h, s, &m, now_ns);
    s->doomed = 0;
}

static void on_exit(gy_host *h, slot *s, int64_t now_ns) {
    gy_child_end e;
    if (s->pidfd < 0 || !gy_child_reap(s->pidfd, &e)) return;
    drain(h, s, now_ns);
    describe_end(s, &e);
    detach(s);
    close_stats(s);
    fail_opening(h, s);
    plan_next_life(h, s, now_ns);
    gy_coord_dead(h->coord, index_of(h, s), now_ns);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void look_at(gy_host *h, slot *s, const gy_msg *m) {
    if (m->kind == GY_MSG_STATS) set_stats(s, &m->stats);
    if (m->kind == GY_MSG_FATAL) say_why(s, m->text ? m->text : "");
    if (m->kind != GY_MSG_READY || s->w.state != GY_HOST_STARTING) return;
    s->w.state = GY_HOST_RUNNING;
    int32_t n_block = m->ready.info.n_block[GY_KV_CORE]; /* until it tells itself */
    set_stats(s, &(gy_msg_stats){.kv_total = n_block, .kv_free = n_block});
    log_worker(h, GY_LOG_INFO, "a worker is ready", s);
}

static void on_message(gy_host *h, slot *s, const gy_msg *m, int64_t now_ns) {
    gy_err err = {0};
    if (m->kind == GY_MSG_READY && m->ready.role != s->w.role) {
        doom(s, "it says that it has another role");
        return;
    }
    if (gy_coord_message(h->coord, index_of(h, s), m, now_ns, &err) < 0)
        doom(s, err.msg);
    else
        look_at(h, s, m);
}

static void take_messages(gy_host *h, slot *s, int64_t now_ns) {
    gy_err err = {0};
    gy_msg m;
    gy_status st = GY_OK;
    for (int n = 0; s->chan && !s->doomed && (st = gy_chan_recv(s->chan, &err, &m)) == GY_OK; n++) {
        on_message(h, s, &m, now_ns);
        if (n < MAX_MESSAGES) continue;
        h->more = 1;
        return;
    }
    if (s->doomed || st == GY_AGAIN || !s->chan) return;
    if (st == GY_DONE || st == GY_E_PEER)
        hung_up(s, now_ns);
    else
        doom(s, err.msg);
}

/* Called by the coordinator. What cannot be queued ends the worker, never the request directly. */
static void send_to(void *user, int32_t worker, const gy_msg *m) {
    gy_host *h = user;
    slot *s = &h->slot[worker];
    gy_err err = {0};
    if (!s->chan || s->doomed) return;
    if (gy_chan_send(s->chan, m, &err) < 0) doom(s, err.msg);
}

static void flush(gy_host *h, slot *s) {
    gy_err err = {0};
    if (!s->chan || s->doomed) return;
    if (gy_chan_has_output(s->chan)) gy_chan_flush(s->chan, &err); /* a hang-up is seen, with the last words, in recv */
    watch_output(h, s);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void look_at_clock(gy_host *h, slot *s, int64_t now_ns) {
    gy_err err = {0};
    if (s->w.state == GY_HOST_STARTING && now_ns >= s->due_ns) {
        char text[96];
        snprintf(text, sizeof text, "it was not ready after %d s", h->o.start_ms / 1000);
        doom(s, text);
    }
    if (s->w.state == GY_HOST_DYING && now_ns >= s->due_ns) {
        s->due_ns = INT64_MAX;
        say_why(s, "it closed its control channel and lived on");
        gy_child_signal(s->pidfd, SIGKILL);
    }
    if (s->w.state != GY_HOST_DOWN || now_ns < s->due_ns || start(h, s, now_ns, &err) == GY_OK) return;
    s->why[0] = 0;
    say_why(s, err.msg);
    fail_opening(h, s);
    plan_next_life(h, s, now_ns);
}

static int64_t next_of(const slot *s) {
    return s->w.state == GY_HOST_RUNNING || s->w.state == GY_HOST_LOST ? INT64_MAX : s->due_ns;
}

static void set_timer(gy_host *h, int64_t at_ns) {
    struct itimerspec t = {0};
    if (at_ns == h->timer_ns) return;
    h->timer_ns = at_ns;
    if (at_ns != INT64_MAX) {
        if (at_ns < 1) at_ns = 1; /* zero would switch it off */
        t.it_value.tv_sec = at_ns / 1000000000;
        t.it_value.tv_nsec = at_ns % 1000000000;
    }
    timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

static int on_events(gy_host *h, int64_t now_ns) {
    struct epoll_event e[MAX_EVENTS];
    int n = epoll_wait(h->epoll_fd, e, MAX_EVENTS, 0), any = 0;
    uint64_t rings;
    for (int i = 0; i < n; i++) {
        int32_t worker = (int32_t)(uint32_t)e[i].data.u64;
        switch ((tag)(e[i].data.u64 >> 32)) {
        case TAG_CHAN:
            any = 1;
            if (e[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_messages(h, &h->slot[worker], now_ns);
            break;
        case TAG_PROCESS:
            any = 1;
            on_exit(h, &h->slot[worker], now_ns);
            break;
        case TAG_TIMER:
            if (read(h->timer_fd, &rings, sizeof rings) > 0) h->timer_ns = INT64_MAX;
        }
    }
    return any;
}

static gy_status decoders_left(const gy_host *h, gy_err *err) {
    const slot *last = NULL;
    for (int32_t i = 0; i < h->n_worker; i++) {
        if (!(h->slot[i].w.role & GY_PD_DECODE)) continue;
        if (h->slot[i].w.state != GY_HOST_LOST) return GY_OK;
        last = &h->slot[i];
    }
    return gy_err_set(err, GY_E_PEER, "no worker that decodes is left; the last one died %d times: %s",
                      last ? last->w.n_death : 0, last ? last->why : "");
}

static int64_t earliest(const gy_host *h, int64_t next) {
    for (int32_t i = 0; i < h->n_worker; i++)
        if (next_of(&h->slot[i]) < next) next = next_of(&h->slot[i]);
    return next;
}

gy_status gy_host_turn(gy_host *h, gy_err *err) {
    int64_t now_ns = gy_clock_ns(), next_ns = INT64_MAX;
    int was_more = h->more;
    h->more = 0;
    int any = on_events(h, now_ns);
    for (int32_t i = 0; i < h->n_worker; i++) {
        if (was_more) take_messages(h, &h->slot[i], now_ns);
        kill_doomed(&h->slot[i]);
        look_at_clock(h, &h->slot[i], now_ns);
    }
    gy_status st = gy_coord_turn(h->coord, now_ns, &next_ns);
    for (int32_t i = 0; i < h->n_worker; i++) {
        flush(h, &h->slot[i]);
        kill_doomed(&h->slot[i]);
    }
    set_timer(h, earliest(h, next_ns));
    if (st < 0) return gy_err_set(err, st, "coordinator: %s", gy_status_name(st));
    GY_TRY(decoders_left(h, err));
    return h->more || (any && st == GY_AGAIN) ? GY_OK : st;
}

int gy_host_fd(const gy_host *h) {
    return h->epoll_fd;
}

gy_coord *gy_host_coord(gy_host *h) {
    return h->coord;
}

int32_t gy_host_n_worker(const gy_host *h) {
    return h->n_worker;
}

void gy_host_get_worker(const gy_host *h, int32_t i, gy_host_worker *out) {
    *out = h->slot[i].w;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static gy_status copy_args(gy_host *h, gy_err *err) {
    for (; h->o.argv[h->n_arg]; h->n_arg++) {
        if (h->n_arg == MAX_ARGS) return gy_err_set(err, GY_E_LIMIT, "workers: more than %d arguments", MAX_ARGS);
        h->argv_text[h->n_arg] = gy_mem_strdup(GY_MEM_PD, h->o.argv[h->n_arg]);
        if (!h->argv_text[h->n_arg]) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    }
    h->o.argv = NULL;
    return GY_OK;
}

static gy_status open_descriptors(gy_host *h, gy_err *err) {
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->timer_fd < 0 || watch(h, EPOLL_CTL_ADD, h->timer_fd, EPOLLIN, key_of(TAG_TIMER, 0)) < 0)
        return gy_err_set(err, GY_E_IO, "workers: the system gives no descriptors: %s", strerror(errno));
    return GY_OK;
}

static int all_ready(const gy_host *h) {
    for (int32_t i = 0; i < h->n_worker; i++)
        if (h->slot[i].w.state != GY_HOST_RUNNING) return 0;
    return 1;
}

static gy_status wait_until_ready(gy_host *h, gy_err *err) {
    h->opening = 1;
    while (!all_ready(h)) {
        gy_status st = gy_host_turn(h, err);
        if (h->open_err.status < 0) {
            if (err) *err = h->open_err;
            return h->open_err.status;
        }
        GY_TRY(st);
        struct pollfd p = {.fd = h->epoll_fd, .events = POLLIN};
        if (!all_ready(h)) poll(&p, 1, -1);
    }
    h->opening = 0;
    return GY_OK;
}

static gy_status open_all(gy_host *h, const char *program, gy_err *err) {
    GY_TRY(copy_args(h, err));
    GY_TRY(open_descriptors(h, err));
    GY_TRY(gy_spawner_create(program ? program : "/proc/self/exe", err, &h->spawner));
    gy_coord_opts c = h->o.coord;
    c.user = h;
    c.send = send_to;
    GY_TRY(gy_coord_create(&c, err, &h->coord));
    return wait_until_ready(h, err);
}

static int has_decoder(const gy_coord_opts *c) {
    for (int32_t i = 0; i < c->n_worker; i++)
        if (c->role[i] & GY_PD_DECODE) return 1;
    return 0;
}

gy_status gy_host_open(const gy_host_opts *o, gy_err *err, gy_host **out) {
    if (o->coord.n_worker < 1 || o->coord.n_worker > GY_COORD_MAX_WORKERS)
        return gy_err_set(err, GY_E_ARG, "workers: found %d, expected 1 to %d", o->coord.n_worker,
                          GY_COORD_MAX_WORKERS);
    if (!has_decoder(&o->coord)) return gy_err_set(err, GY_E_ARG, "workers: found none that decodes");
    gy_host *h = gy_mem_alloc(GY_MEM_PD, 1, sizeof *h);
    if (!h) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    h->o = *o;
    h->o.program = NULL;
    h->epoll_fd = h->timer_fd = -1;
    h->timer_ns = INT64_MAX;
    h->n_worker = o->coord.n_worker;
    for (int32_t i = 0; i < h->n_worker; i++) {
        h->slot[i].pidfd = -1;
        h->slot[i].w.role = o->coord.role[i];
    }
    gy_status st = open_all(h, o->program, err);
    if (st < 0)
        gy_host_close(h);
    else
        *out = h;
    return st < 0 ? st : GY_OK;
}

/* ---- close ------------------------------------------------------------------------------------------------------- */

static int has_work(const gy_host *h) {
    gy_coord_stats s;
    if (h->opening || !h->coord) return 1;
    gy_coord_get_stats(h->coord, &s);
    return s.n_waiting + s.n_reserving + s.n_prefill + s.n_decode > 0;
}

static void say_stop(slot *s) {
    gy_msg m = {.kind = GY_MSG_STOP};
    if (!s->chan) return;
    gy_chan_send(s->chan, &m, NULL);
    gy_chan_flush(s->chan, NULL);
}

static void signal_all(gy_host *h, int signo) {
    for (int32_t i = 0; i < h->n_worker; i++)
        if (h->slot[i].pidfd >= 0) gy_child_signal(h->slot[i].pidfd, signo);
}

/* What they still say is read, so that nobody waits for room to say it. 1: nobody is left. */
static int reap_all(gy_host *h) {
    int left = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        slot *s = &h->slot[i];
        gy_child_end e;
        gy_msg m;
        gy_status st = GY_AGAIN;
        if (s->pidfd < 0) continue;
        while (s->chan && (st = gy_chan_recv(s->chan, NULL, &m)) == GY_OK) {
        }
        if (s->chan && st != GY_AGAIN) {
            gy_chan_destroy(s->chan);
            s->chan = NULL;
        }
        if (gy_child_reap(s->pidfd, &e))
            detach(s);
        else
            left++;
    }
    return !left;
}

static void wait_for_any(const gy_host *h, int wait_ms) {
    struct pollfd p[2 * GY_COORD_MAX_WORKERS];
    nfds_t n = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        const slot *s = &h->slot[i];
        if (s->pidfd >= 0) p[n++] = (struct pollfd){.fd = s->pidfd, .events = POLLIN};
        if (s->chan) p[n++] = (struct pollfd){.fd = gy_chan_fd(s->chan), .events = POLLIN};
    }
    poll(p, n, wait_ms);
}

/* 1: nobody is left. wait_ms < 0: until then. */
static int wait_for_ends(gy_host *h, int wait_ms) {
    int64_t end_ns = gy_clock_ns() + (int64_t)wait_ms * MS;
    while (!reap_all(h)) {
        int64_t left_ms = (end_ns - gy_clock_ns() + MS - 1) / MS;
        if (wait_ms >= 0 && left_ms <= 0) return 0;
        wait_for_any(h, wait_ms < 0 ? -1 : (int)left_ms);
    }
    return 1;
}

static void end_workers(gy_host *h) {
    if (!has_work(h)) {
        for (int32_t i = 0; i < h->n_worker; i++) say_stop(&h->slot[i]);
        if (wait_for_ends(h, h->o.stop_ms)) return;
    }
    signal_all(h, SIGTERM);
    if (wait_for_ends(h, h->o.stop_ms)) return;
    signal_all(h, SIGKILL);
    wait_for_ends(h, -1);
}

void gy_host_close(gy_host *h) {
    if (!h) return;
    end_workers(h);
    gy_coord_destroy(h->coord);
    gy_spawner_destroy(h->spawner);
    for (int32_t i = 0; i < h->n_worker; i++) detach(&h->slot[i]);
    for (size_t i = 0; i < h->n_arg; i++) gy_mem_free(h->argv_text[i]);
    if (h->timer_fd >= 0) close(h->timer_fd);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    gy_mem_free(h);
}
