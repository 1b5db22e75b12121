/* The host: one epoll of control channels, processes, a timer and discovery; messages between slots and the
 * coordinator; turns. A slot is ended from inside a message or a send only by a mark (doom): its descriptors go when
 * the turn is back at the top, so that nobody's loop loses what it stands on. What a slot is: host_proc.c,
 * host_remote.c.
 */
#include "pd/host_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MAX_EVENTS = 64, MAX_MESSAGES = 4096, STOP_MS = 100 };

void gy_host_opts_default(gy_host_opts *o) {
    *o = (gy_host_opts){.start_ms = 300000, .stop_ms = 3000, .peer_ms = 5000, .stall_ms = 60000};
    gy_coord_opts_default(&o->coord);
}

static int is_remote(const gy_host *h) {
    return h->o.disc != NULL;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

const char *gy_role_name(int32_t role) {
    return role == GY_PD_PREFILL ? "prefill" : role == GY_PD_DECODE ? "decode" : role ? "both" : "unknown";
}

void gy_slot_say_why(gy_slot *s, const char *text) {
    if (!s->why[0]) snprintf(s->why, sizeof s->why, "%.600s", text);
}

void gy_slot_log(const gy_host *h, int level, const char *what, const gy_slot *s) {
    char why[GY_HOST_WHAT + 64], at[GY_DISC_ADDRESS + 64];
    gy_log_quote(s->why, why, (int)sizeof why);
    if (is_remote(h))
        gy_log((gy_log_level)level, "pd", what, "worker=%d role=%s address=%s why=%s", gy_slot_index(h, s),
               gy_role_name(s->w.role), gy_log_quote(s->r.address, at, (int)sizeof at), why);
    else
        gy_log((gy_log_level)level, "pd", what, "worker=%d role=%s pid=%d why=%s", gy_slot_index(h, s),
               gy_role_name(s->w.role), s->w.pid, why);
}

static void set_stats(gy_slot *s, const gy_msg_stats *now) {
    s->w.stats = *now;
    gy_msg_stats_add_past(&s->w.stats, &s->past);
}

void gy_slot_close_stats(gy_slot *s) {
    s->past = s->w.stats;
    set_stats(s, &(gy_msg_stats){0});
}

void gy_slot_drop_chan(gy_slot *s) {
    gy_chan_destroy(s->chan);
    s->chan = NULL;
}

void gy_slot_doom(gy_slot *s, const char *why) {
    if (s->w.state != GY_HOST_STARTING && s->w.state != GY_HOST_RUNNING) return;
    gy_slot_say_why(s, why);
    s->doomed = 1;
}

static void end_doomed(gy_host *h, gy_slot *s, int64_t now_ns) {
    if (!s->doomed) return;
    s->doomed = 0;
    if (is_remote(h))
        gy_remote_lost(h, s, now_ns);
    else
        gy_proc_kill(h, s, now_ns);
}

/* ---- epoll ------------------------------------------------------------------------------------------------------- */

int gy_host_watch(const gy_host *h, int op, int fd, uint32_t events, gy_host_tag tag, const gy_slot *s) {
    uint32_t worker = s ? (uint32_t)gy_slot_index(h, s) : 0;
    struct epoll_event e = {.events = events, .data = {.u64 = (uint64_t)tag << 32 | worker}};
    return epoll_ctl(h->epoll_fd, op, fd, &e);
}

static void watch_output(const gy_host *h, gy_slot *s) {
    uint32_t want = EPOLLIN | (gy_chan_has_output(s->chan) ? (uint32_t)EPOLLOUT : 0);
    if (want == s->polled) return;
    s->polled = want;
    gy_host_watch(h, EPOLL_CTL_MOD, gy_chan_fd(s->chan), want, TAG_CHAN, s);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void look_at(gy_host *h, gy_slot *s, const gy_msg *m, int64_t now_ns) {
    if (m->kind == GY_MSG_STATS) set_stats(s, &m->stats);
    if (m->kind == GY_MSG_FATAL) {
        gy_slot_say_why(s, m->text ? m->text : "");
        if (is_remote(h))
            gy_remote_gave_up(s);
        else
            gy_proc_hung_up(h, s, now_ns); /* it may hang in its end, as with a device that is gone */
    }
    if (m->kind == GY_MSG_LEAVING) s->is_leaving = 1;
    if (m->kind != GY_MSG_READY || s->w.state != GY_HOST_STARTING) return;
    s->w.state = GY_HOST_RUNNING;
    s->w.role = m->ready.role;
    int32_t n_block = m->ready.info.n_block[GY_KV_CORE]; /* until it tells itself */
    set_stats(s, &(gy_msg_stats){.kv_total = n_block, .kv_free = n_block});
    if (is_remote(h)) gy_remote_on_ready(s, now_ns);
    gy_slot_log(h, GY_LOG_INFO, "a worker is ready", s);
}

static gy_status check_ready(const gy_host *h, const gy_slot *s, const gy_msg *m, gy_err *err) {
    if (is_remote(h)) return gy_remote_accept(h, &m->ready, err);
    if (m->ready.role != s->w.role) return gy_err_set(err, GY_E_ARG, "it says that it has another role");
    return GY_OK;
}

static void on_message(gy_host *h, gy_slot *s, const gy_msg *m, int64_t now_ns) {
    gy_err err = {0};
    gy_status st = GY_OK;
    s->r.heard_ns = now_ns;
    if (m->kind == GY_MSG_PONG) return; /* that it is there; the coordinator asks what it does */
    if (m->kind == GY_MSG_READY) st = check_ready(h, s, m, &err);
    if (st >= 0) st = gy_coord_message(h->coord, gy_slot_index(h, s), m, now_ns, &err);
    if (st >= 0) {
        look_at(h, s, m, now_ns);
        return;
    }
    s->r.is_refused |= s->w.state == GY_HOST_STARTING;
    gy_slot_doom(s, err.msg);
}

void gy_slot_take_rest(gy_host *h, gy_slot *s, int64_t now_ns) {
    gy_msg m;
    while (s->chan && !s->doomed && gy_chan_recv(s->chan, NULL, &m) == GY_OK) on_message(h, s, &m, now_ns);
    s->doomed = 0;
}

static void take_messages(gy_host *h, gy_slot *s, int64_t now_ns) {
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
    if (st != GY_DONE && st != GY_E_PEER)
        gy_slot_doom(s, err.msg);
    else if (is_remote(h))
        gy_remote_hung_up(h, s, &err, now_ns);
    else
        gy_proc_hung_up(h, s, now_ns);
}

/* Called by the coordinator. What cannot be queued ends the worker, never the request directly. */
static void send_to(void *user, int32_t worker, const gy_msg *m) {
    gy_host *h = user;
    gy_slot *s = &h->slot[worker];
    gy_err err = {0};
    if (!s->chan || s->doomed) return;
    if (gy_chan_send(s->chan, m, &err) < 0) gy_slot_doom(s, err.msg);
}

/* Between hosts a note can be lost with its connection, which is mended: that is no reason to end anybody. */
static void on_deaf(void *user, int32_t worker) {
    gy_host *h = user;
    if (!is_remote(h)) gy_slot_doom(&h->slot[worker], "it did not hear of a prompt that had arrived");
}

static void flush(gy_host *h, gy_slot *s) {
    gy_err err = {0};
    if (!s->chan || s->doomed) return;
    if (gy_chan_has_output(s->chan)) gy_chan_flush(s->chan, &err); /* a hang-up is seen, with the last words, in recv */
    watch_output(h, s);
}

static void say_stop(gy_slot *s) {
    const gy_msg m = {.kind = GY_MSG_STOP};
    if (!s->chan) return;
    gy_chan_send(s->chan, &m, NULL);
    gy_chan_flush(s->chan, NULL);
}

/* Who leaves and has nothing left. */
static void let_go(gy_host *h, gy_slot *s, int64_t now_ns) {
    if (!s->is_leaving || s->is_stopped || s->w.state != GY_HOST_RUNNING) return;
    if (!gy_coord_may_stop(h->coord, gy_slot_index(h, s))) return;
    s->is_stopped = 1;
    s->due_ns = now_ns + (int64_t)h->o.stop_ms * GY_HOST_MS;
    say_stop(s);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void look_at_clock(gy_host *h, gy_slot *s, int64_t now_ns) {
    if (is_remote(h))
        gy_remote_look_at_clock(h, s, now_ns);
    else
        gy_proc_look_at_clock(h, s, now_ns);
}

static int64_t next_of(const gy_host *h, const gy_slot *s) {
    if (is_remote(h)) return gy_remote_next(h, s);
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

static void on_event(gy_host *h, const struct epoll_event *e, int64_t now_ns) {
    gy_slot *s = &h->slot[(uint32_t)e->data.u64];
    uint64_t rings;
    switch ((gy_host_tag)(e->data.u64 >> 32)) {
    case TAG_CHAN:
        if (e->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_messages(h, s, now_ns);
        break;
    case TAG_PROCESS:
        gy_proc_on_exit(h, s, now_ns);
        break;
    case TAG_ALIVE:
        gy_proc_on_word(h, s, now_ns);
        break;
    case TAG_TIMER:
        if (read(h->timer_fd, &rings, sizeof rings) > 0) h->timer_ns = INT64_MAX;
        break;
    case TAG_DISC:
        gy_remote_on_disc(h, now_ns);
        break;
    case TAG_RESOLVED:
        gy_remote_on_resolved(h, now_ns);
        break;
    case TAG_DIAL:
        gy_remote_on_dialled(h, s, now_ns);
        break;
    }
}

static int on_events(gy_host *h, int64_t now_ns) {
    struct epoll_event e[MAX_EVENTS];
    int n = epoll_wait(h->epoll_fd, e, MAX_EVENTS, 0), any = 0;
    for (int i = 0; i < n; i++) {
        any |= e[i].data.u64 >> 32 != TAG_TIMER;
        on_event(h, &e[i], now_ns);
    }
    return any;
}

static gy_status decoders_left(const gy_host *h, gy_err *err) {
    const gy_slot *last = NULL;
    if (is_remote(h)) return GY_OK; /* one may come back, or join, at any time */
    for (int32_t i = 0; i < h->n_worker; i++) {
        if (!(h->slot[i].w.role & GY_PD_DECODE)) continue;
        if (h->slot[i].w.state != GY_HOST_LOST) return GY_OK;
        last = &h->slot[i];
    }
    return gy_err_set(err, GY_E_PEER, "no worker that decodes is left; the last one died %d times: %s",
                      last ? last->w.n_death : 0, last ? last->why : "");
}

static int64_t earliest(const gy_host *h, int64_t next) {
    for (int32_t i = 0; i < h->n_worker; i++) {
        int64_t at = next_of(h, &h->slot[i]);
        if (at < next) next = at;
    }
    return next;
}

gy_status gy_host_turn(gy_host *h, gy_err *err) {
    int64_t now_ns = gy_clock_ns(), next_ns = INT64_MAX;
    int was_more = h->more;
    h->more = 0;
    int any = on_events(h, now_ns);
    for (int32_t i = 0; i < h->n_worker; i++) {
        if (was_more) take_messages(h, &h->slot[i], now_ns);
        end_doomed(h, &h->slot[i], now_ns);
        look_at_clock(h, &h->slot[i], now_ns);
    }
    gy_status st = gy_coord_turn(h->coord, now_ns, &next_ns);
    for (int32_t i = 0; i < h->n_worker; i++) {
        let_go(h, &h->slot[i], now_ns);
        flush(h, &h->slot[i]);
        end_doomed(h, &h->slot[i], now_ns);
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

const gy_host_worker *gy_host_look(const gy_host *h, int32_t i) {
    return i < 0 ? &h->gone : &h->slot[i].w;
}

void gy_host_get_worker(const gy_host *h, int32_t i, gy_host_worker *out) {
    *out = h->slot[i].w;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static gy_status open_descriptors(gy_host *h, gy_err *err) {
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->timer_fd < 0 ||
        gy_host_watch(h, EPOLL_CTL_ADD, h->timer_fd, EPOLLIN, TAG_TIMER, NULL) < 0)
        return gy_err_set(err, GY_E_IO, "workers: the system gives no descriptors: %s", strerror(errno));
    return GY_OK;
}

static int is_ready(const gy_host *h) {
    if (is_remote(h)) return gy_coord_n_ready(h->coord, GY_PD_PREFILL) && gy_coord_n_ready(h->coord, GY_PD_DECODE);
    for (int32_t i = 0; i < h->n_worker; i++)
        if (h->slot[i].w.state != GY_HOST_RUNNING) return 0;
    return 1;
}

/* Remote ones: how long it may take. Processes have deadlines of their own. */
static int wait_ms(const gy_host *h, int64_t end_ns) {
    int64_t left_ms = INT64_MAX;
    if (is_remote(h)) left_ms = (end_ns - gy_clock_ns()) / GY_HOST_MS + 1;
    if (h->o.should_stop && left_ms > STOP_MS) left_ms = STOP_MS;
    return left_ms == INT64_MAX ? -1 : left_ms < 0 ? 0 : (int)left_ms;
}

static int is_late(const gy_host *h, int64_t end_ns) {
    return is_remote(h) && gy_clock_ns() >= end_ns;
}

static gy_status wait_until_ready(gy_host *h, gy_err *err) {
    int64_t end_ns = gy_clock_ns() + (int64_t)h->o.start_ms * GY_HOST_MS;
    h->opening = 1;
    while (!is_ready(h)) {
        gy_status st = gy_host_turn(h, err);
        if (h->open_err.status < 0) {
            if (err) *err = h->open_err;
            return h->open_err.status;
        }
        GY_TRY(st);
        if (is_ready(h)) break;
        if (is_late(h, end_ns)) return gy_remote_describe(h, err);
        if (h->o.should_stop && h->o.should_stop(h->o.should_stop_user))
            return gy_err_set(err, GY_E_CANCELLED, "stopped while it waited for workers");
        struct pollfd p = {.fd = h->epoll_fd, .events = POLLIN};
        poll(&p, 1, wait_ms(h, end_ns));
    }
    h->opening = 0;
    return GY_OK;
}

static gy_status open_all(gy_host *h, const char *program, gy_err *err) {
    GY_TRY(open_descriptors(h, err));
    gy_coord_opts c = h->o.coord;
    c.user = h;
    c.send = send_to;
    c.deaf = on_deaf;
    GY_TRY(gy_coord_create(&c, err, &h->coord));
    GY_TRY(is_remote(h) ? gy_remote_open(h, err) : gy_proc_open(h, program, err));
    return wait_until_ready(h, err);
}

static int has_decoder(const gy_coord_opts *c) {
    for (int32_t i = 0; i < c->n_worker; i++)
        if (c->role[i] & GY_PD_DECODE) return 1;
    return 0;
}

static gy_status check_opts(const gy_host_opts *o, gy_err *err) {
    if (o->disc) return GY_OK;
    if (o->coord.n_worker < 1 || o->coord.n_worker > GY_COORD_MAX_WORKERS)
        return gy_err_set(err, GY_E_ARG, "workers: found %d, expected 1 to %d", o->coord.n_worker,
                          GY_COORD_MAX_WORKERS);
    if (!has_decoder(&o->coord)) return gy_err_set(err, GY_E_ARG, "workers: found none that decodes");
    return GY_OK;
}

static void set_slots(gy_host *h) {
    if (is_remote(h)) {
        h->o.coord.n_worker = GY_COORD_MAX_WORKERS;
        memset(h->o.coord.role, 0, sizeof h->o.coord.role);
    }
    h->n_worker = h->o.coord.n_worker;
    for (int32_t i = 0; i < h->n_worker; i++) {
        h->slot[i].pidfd = h->slot[i].r.fd = -1;
        h->slot[i].w = (gy_host_worker){.state = is_remote(h) ? GY_HOST_EMPTY : GY_HOST_DOWN,
                                        .role = h->o.coord.role[i],
                                        .name = "",
                                        .address = ""};
    }
}

gy_status gy_host_open(const gy_host_opts *o, gy_err *err, gy_host **out) {
    GY_TRY(check_opts(o, err));
    gy_host *h = gy_mem_alloc(GY_MEM_PD, 1, sizeof *h);
    if (!h) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    h->o = *o;
    h->o.program = NULL;
    if (o->secret) h->secret = *o->secret;
    h->o.secret = NULL;
    h->epoll_fd = h->timer_fd = -1;
    h->timer_ns = INT64_MAX;
    set_slots(h);
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

void gy_host_close(gy_host *h) {
    if (!h) return;
    h->is_idle = !has_work(h);
    for (int32_t i = 0; h->is_idle && i < h->n_worker; i++) say_stop(&h->slot[i]);
    if (is_remote(h))
        gy_remote_close(h);
    else
        gy_proc_close(h);
    gy_coord_destroy(h->coord);
    gy_spawner_destroy(h->spawner);
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_proc_detach(&h->slot[i]);
        gy_mem_free(h->slot[i].device);
    }
    for (size_t i = 0; i < h->n_arg; i++) gy_mem_free(h->argv_text[i]);
    if (h->timer_fd >= 0) close(h->timer_fd);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    gy_mem_free(h);
}
