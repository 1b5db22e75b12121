/* The loop: accepting, deadlines, wake-ups from other threads, draining. States of a connection are in http_conn.c. */
#include "server/http_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 256, ACCEPT_RETRY_MS = 100 };

void gy_http_server_opts_default(gy_http_server_opts *o) {
    *o = (gy_http_server_opts){.host = "127.0.0.1",
                               .port = 8000,
                               .backlog = 4096,
                               .max_conns = 10000,
                               .body_max = (size_t)16 << 20,
                               .input_max = (size_t)1 << 30,
                               .stream_max = 64 << 10,
                               .idle_ms = 120000,
                               .header_ms = 30000,
                               .body_ms = 60000,
                               .write_ms = 30000,
                               .linger_ms = 2000};
}

/* ---- what is to be done ---- */

void gy_http_server_todo(gy_http_server *s, gy_http_conn *c) {
    if (c->is_todo || c->is_later || c->is_running || c->is_closed) return;
    c->is_todo = 1;
    c->next_todo = NULL;
    if (s->todo)
        s->todo_last->next_todo = c;
    else
        s->todo = c;
    s->todo_last = c;
}

void gy_http_server_later(gy_http_server *s, gy_http_conn *c) {
    const struct timeval now = {0, 0};
    if (c->is_todo || c->is_later || c->is_closed) return;
    c->is_later = 1;
    c->next_todo = s->later;
    s->later = c;
    event_add(s->later_ev, &now);
}

static void free_closed(gy_http_server *s) {
    while (s->closed) {
        gy_http_conn *c = s->closed;
        s->closed = c->next;
        gy_mem_free(c);
    }
}

void gy_http_server_settle(gy_http_server *s) {
    while (s->todo) {
        gy_http_conn *c = s->todo;
        s->todo = c->next_todo;
        c->is_todo = 0;
        if (c->is_closed) continue;
        c->is_running = 1;
        gy_http_conn_advance(c);
        c->is_running = 0;
    }
    free_closed(s);
    if (s->draining && !s->conns) event_base_loopbreak(s->base);
}

static void on_later(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    gy_http_conn *c = s->later;
    (void)fd, (void)what;
    s->later = NULL;
    while (c) {
        gy_http_conn *next = c->next_todo;
        c->is_later = 0;
        gy_http_server_todo(s, c);
        c = next;
    }
    gy_http_server_settle(s);
}

/* ---- deadlines: one queue for each kind, in order because each kind has one length ---- */

static void set_timer(struct event *ev, int64_t ns) {
    if (ns < 0) ns = 0;
    /* Rounded up: a timer that fires early would find nothing due. */
    const int64_t us = (ns + 999) / 1000;
    const struct timeval tv = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    event_add(ev, &tv);
}

static void due_unlink(gy_http_conn *c) {
    gy_http_server *s = c->server;
    if (c->due == GY_HTTP_DUE_NONE) return;
    *(c->due_prev ? &c->due_prev->due_next : &s->due[c->due].first) = c->due_next;
    *(c->due_next ? &c->due_next->due_prev : &s->due[c->due].last) = c->due_prev;
    c->due_prev = c->due_next = NULL;
    c->due = GY_HTTP_DUE_NONE;
}

void gy_http_due_set(gy_http_conn *c, gy_http_due due) {
    gy_http_server *s = c->server;
    due_unlink(c);
    if (due == GY_HTTP_DUE_NONE) return;
    int64_t now = gy_clock_ns();
    c->due = due;
    c->due_ns = now + s->due[due].ns;
    c->due_prev = s->due[due].last;
    *(c->due_prev ? &c->due_prev->due_next : &s->due[due].first) = c;
    s->due[due].last = c;
    if (s->due_armed_ns && s->due_armed_ns <= c->due_ns) return;
    s->due_armed_ns = c->due_ns;
    set_timer(s->due_ev, c->due_ns - now);
}

static void on_due(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    int64_t now = gy_clock_ns(), next = 0;
    (void)fd, (void)what;
    s->due_armed_ns = 0;
    for (int kind = 0; kind < GY_HTTP_DUE_COUNT; kind++) {
        for (gy_http_conn *c; (c = s->due[kind].first) && c->due_ns <= now;) {
            due_unlink(c);
            gy_http_conn_expire(c, (gy_http_due)kind);
        }
    }
    gy_http_server_settle(s);
    for (int kind = 0; kind < GY_HTTP_DUE_COUNT; kind++) {
        const gy_http_conn *c = s->due[kind].first;
        if (c && (next == 0 || c->due_ns < next)) next = c->due_ns;
    }
    if (next == 0 || (s->due_armed_ns && s->due_armed_ns <= next)) return;
    s->due_armed_ns = next;
    set_timer(s->due_ev, next - now);
}

/* ---- accepting ---- */

static void turn_away(gy_http_server *s, int fd) {
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                               "Connection: close\r\n\r\n";
    s->stats.n_turned_away++;
    /* Best effort: there may be no room to wait until it is read, nor for a handshake. */
    if (!s->tls) (void)send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    close(fd);
}

static int accept_one(int listen_fd, struct sockaddr_storage *peer) {
    socklen_t n = sizeof *peer;
    return accept4(listen_fd, (struct sockaddr *)peer, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

static void pause_listening(gy_http_server *s) {
    const struct timeval tv = {0, ACCEPT_RETRY_MS * 1000};
    for (int i = 0; i < s->n_listen; i++) event_del(s->listen_ev[i]);
    event_add(s->retry_ev, &tv);
}

static void on_retry(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    (void)fd, (void)what;
    if (s->spare_fd < 0) s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < s->n_listen; i++) event_add(s->listen_ev[i], NULL);
}

/* No descriptor is left. The spare one is given up to take the connection and say so; without it a level-triggered
 * listener would spin. If that fails too, listening pauses. 1: go on accepting. */
static int accept_without_fd(gy_http_server *s, int listen_fd) {
    struct sockaddr_storage peer;
    int fd = -1;
    if (s->spare_fd >= 0) {
        close(s->spare_fd);
        fd = accept_one(listen_fd, &peer);
        if (fd >= 0) turn_away(s, fd);
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (!s->is_fd_warned)
        gy_log(GY_LOG_WARN, "server", "no file descriptor left: connections are turned away; raise ulimit -n",
               "conns=%d", s->stats.n_conn);
    s->is_fd_warned = 1;
    if (fd >= 0 && s->spare_fd >= 0) return 1;
    pause_listening(s);
    return 0;
}

static void on_accept(evutil_socket_t listen_fd, short what, void *arg) {
    gy_http_server *s = arg;
    (void)what;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage peer = {0};
        int fd = accept_one(listen_fd, &peer);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            if (!accept_without_fd(s, listen_fd)) break;
            continue;
        }
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) break;
        if (s->stats.n_conn >= s->opts.max_conns || gy_http_conn_open(s, fd, &peer) != GY_OK) turn_away(s, fd);
    }
    gy_http_server_settle(s);
}

/* ---- life ---- */

static void on_tick(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    (void)fd, (void)what;
    s->handler.on_tick(s->handler.user);
    gy_http_server_settle(s);
}

static void on_drained(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    (void)fd, (void)what;
    while (s->conns) gy_http_conn_shutdown(s->conns);
    gy_http_server_settle(s);
}

static void stop_listening(gy_http_server *s) {
    for (int i = 0; i < s->n_listen; i++) {
        if (s->listen_ev[i]) event_free(s->listen_ev[i]);
        s->listen_ev[i] = NULL;
        gy_http_listen_end(s->listen_fd[i]);
    }
    s->n_listen = 0;
    if (s->retry_ev) event_del(s->retry_ev);
}

/* What was sent before the drain is answered, with a 503 if need be, instead of being lost in a reset: the backlog is
 * taken, and each connection that waits is read once more. */
static void hear_all(gy_http_server *s) {
    for (int i = 0; i < s->n_listen; i++) on_accept(s->listen_fd[i], 0, s);
    for (gy_http_conn *c = s->conns; c; c = c->next) {
        if (c->state != GY_HTTP_S_HEAD) continue;
        c->readable = 1;
        gy_http_server_todo(s, c);
    }
    gy_http_server_settle(s);
}

static void begin_drain(gy_http_server *s, int64_t ms) {
    int64_t now = gy_clock_ns(), at = now + ms * 1000000;
    s->draining = 1;
    hear_all(s);
    stop_listening(s);
    if (s->drain_at_ns == 0 || at < s->drain_at_ns) {
        s->drain_at_ns = at;
        set_timer(s->drain_ev, at - now);
    }
    for (gy_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        int is_silent = c->state == GY_HTTP_S_HEAD && c->in_len == 0 && !c->readable;
        if (is_silent || c->state == GY_HTTP_S_SHAKE) gy_http_conn_close(c, 0);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    uint64_t count;
    (void)what;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got;
    /* Cleared before looking, so that whatever is noted from here on rings again. */
    atomic_store(&s->wake_pending, 0);
    long long ms = atomic_exchange(&s->drain_ms, -1);
    if (ms >= 0) begin_drain(s, ms);
    if (s->handler.on_wake) s->handler.on_wake(s->handler.user);
    gy_http_server_settle(s);
}

static void on_watched(evutil_socket_t fd, short what, void *arg) {
    gy_http_server *s = arg;
    (void)fd, (void)what;
    s->on_watched(s->watch_user);
    gy_http_server_settle(s);
}

gy_status gy_http_server_watch(gy_http_server *s, int fd, void (*on_ready)(void *user), void *user, gy_err *err) {
    GY_CHECK(!s->watch_ev);
    s->on_watched = on_ready;
    s->watch_user = user;
    s->watch_ev = event_new(s->base, fd, EV_READ | EV_PERSIST, on_watched, s);
    if (s->watch_ev && event_add(s->watch_ev, NULL) == 0) return GY_OK;
    return gy_err_set(err, GY_E_IO, "http server: descriptor %d cannot be watched: %s", fd, strerror(errno));
}

void gy_http_server_wake(gy_http_server *s) {
    const uint64_t one = 1;
    if (atomic_exchange(&s->wake_pending, 1)) return;
    int saved = errno;
    ssize_t put = write(s->wake_fd, &one, sizeof one);
    (void)put;
    errno = saved;
}

void gy_http_server_drain(gy_http_server *s, int ms) {
    atomic_store(&s->drain_ms, ms < 0 ? 0 : ms);
    gy_http_server_wake(s);
}

gy_status gy_http_server_reload_tls(gy_http_server *s, gy_err *err) {
    return s->tls ? gy_http_tls_reload(s->tls, err) : GY_OK;
}

const char *gy_http_server_date(gy_http_server *s) {
    time_t now = (time_t)(gy_clock_wall_ns() / 1000000000);
    if (now != s->date_s) gy_http_date(s->date_s = now, s->date);
    return s->date;
}

/* ---- open, run, close ---- */

static struct event_base *new_base(void) {
    struct event_config *cfg = event_config_new();
    if (!cfg) return NULL;
    struct event_base *base = NULL;
    if (event_config_require_features(cfg, EV_FEATURE_ET | EV_FEATURE_O1 | EV_FEATURE_EARLY_CLOSE) == 0 &&
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) == 0 &&
        event_config_set_flag(cfg, EVENT_BASE_FLAG_IGNORE_ENV) == 0)
        base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    return base;
}

static int add_event(gy_http_server *s, struct event **ev, int fd, short what, event_callback_fn fn,
                     const struct timeval *tv, int add) {
    *ev = event_new(s->base, fd, what, fn, s);
    return *ev && (!add || event_add(*ev, tv) == 0) ? 0 : -1;
}

static int add_events(gy_http_server *s) {
    const struct timeval tick = {s->opts.tick_ms / 1000, s->opts.tick_ms % 1000 * 1000};
    int ticks = s->opts.tick_ms > 0 && s->handler.on_tick;
    s->base = new_base();
    if (!s->base) return -1;
    for (int i = 0; i < s->n_listen; i++)
        if (add_event(s, &s->listen_ev[i], s->listen_fd[i], EV_READ | EV_PERSIST, on_accept, NULL, 1)) return -1;
    return add_event(s, &s->wake_ev, s->wake_fd, EV_READ | EV_PERSIST, on_wake, NULL, 1) ||
           add_event(s, &s->due_ev, -1, 0, on_due, NULL, 0) || add_event(s, &s->later_ev, -1, 0, on_later, NULL, 0) ||
           add_event(s, &s->retry_ev, -1, 0, on_retry, NULL, 0) ||
           add_event(s, &s->drain_ev, -1, 0, on_drained, NULL, 0) ||
           add_event(s, &s->tick_ev, -1, EV_PERSIST, on_tick, &tick, ticks);
}

static void set_options(gy_http_server *s, const gy_http_server_opts *o) {
    const int ms[GY_HTTP_DUE_COUNT] = {o->idle_ms, o->header_ms, o->body_ms, o->write_ms, o->linger_ms};
    s->opts = *o;
    s->opts.host = NULL;
    if (s->opts.body_max > (size_t)1 << 30) s->opts.body_max = (size_t)1 << 30;
    for (int i = 0; i < GY_HTTP_DUE_COUNT; i++) s->due[i].ns = (int64_t)ms[i] * 1000000;
}

gy_status gy_http_server_open(const gy_http_server_opts *opts, const gy_http_handler *handler, gy_err *err,
                              gy_http_server **out) {
    gy_http_server *s = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *s);
    if (!s) return gy_err_set(err, GY_E_NOMEM, "http server: no memory");
    s->wake_fd = s->spare_fd = -1;
    s->handler = *handler;
    set_options(s, opts);
    atomic_init(&s->drain_ms, -1);
    gy_status st = opts->tls_cert ? gy_http_tls_open(opts->tls_cert, opts->tls_key, err, &s->tls) : GY_OK;
    if (st == GY_OK)
        st = gy_http_listen(opts->host, opts->port, opts->backlog, err, s->listen_fd, &s->n_listen, &s->port);
    if (st == GY_OK) {
        s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (s->wake_fd < 0 || s->spare_fd < 0 || add_events(s))
            st = gy_err_set(err, GY_E_IO, "http server: no event loop: %s", strerror(errno));
    }
    if (st != GY_OK) {
        gy_http_server_close(s);
        return st;
    }
    *out = s;
    return GY_OK;
}

int gy_http_server_port(const gy_http_server *s) {
    return s->port;
}

gy_status gy_http_server_run(gy_http_server *s, gy_err *err) {
    if (event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0)
        return gy_err_set(err, GY_E_IO, "http server: the event loop failed: %s", strerror(errno));
    return GY_OK;
}

void gy_http_server_get_stats(const gy_http_server *s, gy_http_server_stats *out) {
    *out = s->stats;
}

static void free_event(struct event *ev) {
    if (ev) event_free(ev);
}

void gy_http_server_close(gy_http_server *s) {
    if (!s) return;
    while (s->conns) gy_http_conn_close(s->conns, 0);
    free_closed(s);
    stop_listening(s);
    free_event(s->wake_ev);
    free_event(s->due_ev);
    free_event(s->later_ev);
    free_event(s->retry_ev);
    free_event(s->drain_ev);
    free_event(s->tick_ev);
    free_event(s->watch_ev);
    gy_http_tls_close(s->tls);
    if (s->base) event_base_free(s->base);
    if (s->wake_fd >= 0) close(s->wake_fd);
    if (s->spare_fd >= 0) close(s->spare_fd);
    gy_mem_free(s);
}
