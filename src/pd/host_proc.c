/* Slots that are processes of this host: start, death in every way, the next life, the end. */
#include "pd/host_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { HANG_UP_MS = 1000 };

/* ---- start ------------------------------------------------------------------------------------------------------- */

static gy_status attach(gy_host *h, gy_slot *s, int fd, gy_err *err) {
    GY_TRY(gy_chan_create(fd, GY_CHAN_OUT_MAX, err, &s->chan));
    s->polled = EPOLLIN;
    if (gy_host_watch(h, EPOLL_CTL_ADD, gy_chan_fd(s->chan), EPOLLIN, TAG_CHAN, s) < 0 ||
        gy_host_watch(h, EPOLL_CTL_ADD, s->pidfd, EPOLLIN, TAG_PROCESS, s) < 0 ||
        (s->alive && gy_host_watch(h, EPOLL_CTL_ADD, gy_alive_fd(s->alive), EPOLLIN, TAG_ALIVE, s) < 0))
        return gy_err_set(err, GY_E_IO, "worker %d: cannot be watched: %s", gy_slot_index(h, s), strerror(errno));
    return GY_OK;
}

void gy_proc_detach(gy_slot *s) {
    gy_slot_drop_chan(s);
    if (s->pidfd >= 0) close(s->pidfd);
    s->pidfd = -1;
    gy_alive_destroy(s->alive);
    s->alive = NULL;
}

static void end_process(gy_slot *s) {
    gy_child_end e;
    if (s->pidfd < 0) return;
    gy_child_signal(s->pidfd, SIGKILL);
    struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
    while (!gy_child_reap(s->pidfd, &e)) poll(&p, 1, -1);
}

static gy_status start(gy_host *h, gy_slot *s, int64_t now_ns, gy_err *err) {
    const char *argv[GY_HOST_MAX_ARGS + 5] = {NULL};
    size_t n = h->n_arg;
    int fd[2], alive_fd = -1;
    memcpy(argv, h->argv_text, n * sizeof *argv);
    argv[n++] = "--role";
    argv[n++] = gy_role_name(s->w.role);
    if (s->device) {
        argv[n++] = "--device";
        argv[n] = s->device;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "worker %d: no control channel: %s", gy_slot_index(h, s), strerror(errno));
    s->alive = gy_alive_create(&alive_fd);
    gy_status st = gy_spawner_start(h->spawner, argv, (const int[2]){fd[1], alive_fd}, err, &s->w.pid, &s->pidfd);
    close(fd[1]);
    if (alive_fd >= 0) close(alive_fd);
    if (st < 0) {
        close(fd[0]);
        gy_proc_detach(s);
        return st;
    }
    st = attach(h, s, fd[0], err);
    if (st < 0) {
        end_process(s);
        gy_proc_detach(s);
        return st;
    }
    s->why[0] = 0;
    s->doomed = s->is_leaving = s->is_stopped = 0;
    s->w.state = GY_HOST_STARTING;
    s->w.n_start++;
    s->due_ns = now_ns + (int64_t)h->o.start_ms * GY_HOST_MS;
    return GY_OK;
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

/* Nobody hears what it says now. */
static void begin_dying(gy_host *h, gy_slot *s, int64_t due_ns, int64_t now_ns) {
    s->w.state = GY_HOST_DYING;
    s->due_ns = due_ns;
    gy_slot_drop_chan(s);
    gy_coord_dying(h->coord, gy_slot_index(h, s), now_ns);
}

void gy_proc_kill(gy_host *h, gy_slot *s, int64_t now_ns) {
    gy_child_signal(s->pidfd, SIGKILL);
    begin_dying(h, s, INT64_MAX, now_ns);
}

/* It closed its end: it is ending, with an exit code that is worth a moment. */
void gy_proc_hung_up(gy_host *h, gy_slot *s, int64_t now_ns) {
    begin_dying(h, s, now_ns + (int64_t)HANG_UP_MS * GY_HOST_MS, now_ns);
}

/* Killed, whether or not the word is true: one that ends keeps its exit code, and one that only looks so is of no use.
 */
void gy_proc_on_word(gy_host *h, gy_slot *s, int64_t now_ns) {
    if (!s->alive || !gy_alive_has_ended(s->alive)) return;
    gy_slot_take_rest(h, s, now_ns);
    if (s->w.state == GY_HOST_STARTING || s->w.state == GY_HOST_RUNNING) gy_proc_kill(h, s, now_ns);
}

static int recent_deaths(const gy_slot *s, int64_t now_ns) {
    int n = 0;
    for (int i = 0; i < GY_HOST_MAX_DEATHS; i++)
        n += s->death_ns[i] && now_ns - s->death_ns[i] < (int64_t)GY_HOST_DEATH_WINDOW_MS * GY_HOST_MS;
    return n;
}

static void plan_next_life(const gy_host *h, gy_slot *s, int64_t now_ns) {
    static const int wait_ms[] = {0, 500, 2000};
    s->death_ns[s->w.n_death++ % GY_HOST_MAX_DEATHS] = now_ns;
    int n = recent_deaths(s, now_ns);
    s->w.state = n >= GY_HOST_MAX_DEATHS ? GY_HOST_LOST : GY_HOST_DOWN;
    s->due_ns = now_ns + (int64_t)wait_ms[n > 3 ? 2 : n - 1] * GY_HOST_MS;
    gy_slot_log(h, GY_LOG_WARN, s->w.state == GY_HOST_LOST ? "a worker died too often and stays down" : "a worker died",
                s);
}

static void describe_end(gy_slot *s, const gy_child_end *e) {
    char text[64];
    if (!e->known)
        snprintf(text, sizeof text, "it ended");
    else if (e->signal)
        snprintf(text, sizeof text, "it was killed by signal %d", e->signal);
    else
        snprintf(text, sizeof text, "it ended with exit code %d", e->code);
    gy_slot_say_why(s, text);
}

static void fail_opening(gy_host *h, const gy_slot *s) {
    if (!h->opening || h->open_err.status < 0) return;
    gy_err_set(&h->open_err, GY_E_PEER, "worker %d (%s) did not start: %s", gy_slot_index(h, s),
               gy_role_name(s->w.role), s->why);
}

void gy_proc_on_exit(gy_host *h, gy_slot *s, int64_t now_ns) {
    gy_child_end e;
    if (s->pidfd < 0 || !gy_child_reap(s->pidfd, &e)) return;
    gy_slot_take_rest(h, s, now_ns);
    describe_end(s, &e);
    gy_proc_detach(s);
    gy_slot_close_stats(s);
    fail_opening(h, s);
    plan_next_life(h, s, now_ns);
    gy_coord_dead(h->coord, gy_slot_index(h, s), now_ns);
}

void gy_proc_look_at_clock(gy_host *h, gy_slot *s, int64_t now_ns) {
    gy_err err = {0};
    if (s->w.state == GY_HOST_STARTING && now_ns >= s->due_ns) {
        char text[96];
        snprintf(text, sizeof text, "it was not ready after %d s", h->o.start_ms / 1000);
        gy_slot_doom(s, text);
    }
    if (s->w.state == GY_HOST_DYING && now_ns >= s->due_ns) {
        s->due_ns = INT64_MAX;
        gy_slot_say_why(s, "it closed its control channel and lived on");
        gy_child_signal(s->pidfd, SIGKILL);
    }
    if (s->w.state != GY_HOST_DOWN || now_ns < s->due_ns || start(h, s, now_ns, &err) == GY_OK) return;
    s->why[0] = 0;
    gy_slot_say_why(s, err.msg);
    fail_opening(h, s);
    plan_next_life(h, s, now_ns);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static gy_status copy_args(gy_host *h, gy_err *err) {
    for (; h->o.argv[h->n_arg]; h->n_arg++) {
        if (h->n_arg == GY_HOST_MAX_ARGS)
            return gy_err_set(err, GY_E_LIMIT, "workers: more than %d arguments", GY_HOST_MAX_ARGS);
        h->argv_text[h->n_arg] = gy_mem_strdup(GY_MEM_PD, h->o.argv[h->n_arg]);
        if (!h->argv_text[h->n_arg]) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    }
    h->o.argv = NULL;
    for (int32_t i = 0; h->o.device && i < h->n_worker; i++) {
        h->slot[i].device = gy_mem_strdup(GY_MEM_PD, h->o.device[i]);
        if (!h->slot[i].device) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    }
    h->o.device = NULL;
    return GY_OK;
}

gy_status gy_proc_open(gy_host *h, const char *program, gy_err *err) {
    GY_TRY(copy_args(h, err));
    return gy_spawner_create(program ? program : "/proc/self/exe", err, &h->spawner);
}

static void signal_all(gy_host *h, int signo) {
    for (int32_t i = 0; i < h->n_worker; i++)
        if (h->slot[i].pidfd >= 0) gy_child_signal(h->slot[i].pidfd, signo);
}

/* What they still say is read, so that nobody waits for room to say it. 1: nobody is left. */
static int reap_all(gy_host *h) {
    int left = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        gy_slot *s = &h->slot[i];
        gy_child_end e;
        gy_msg m;
        gy_status st = GY_AGAIN;
        if (s->pidfd < 0) continue;
        while (s->chan && (st = gy_chan_recv(s->chan, NULL, &m)) == GY_OK) {
        }
        if (s->chan && st != GY_AGAIN) gy_slot_drop_chan(s);
        if (gy_child_reap(s->pidfd, &e))
            gy_proc_detach(s);
        else
            left++;
    }
    return !left;
}

static void wait_for_any(const gy_host *h, int wait_ms) {
    struct pollfd p[2 * GY_COORD_MAX_WORKERS];
    nfds_t n = 0;
    for (int32_t i = 0; i < h->n_worker; i++) {
        const gy_slot *s = &h->slot[i];
        if (s->pidfd >= 0) p[n++] = (struct pollfd){.fd = s->pidfd, .events = POLLIN};
        if (s->chan) p[n++] = (struct pollfd){.fd = gy_chan_fd(s->chan), .events = POLLIN};
    }
    poll(p, n, wait_ms);
}

/* 1: nobody is left. wait_ms < 0: until then. */
static int wait_for_ends(gy_host *h, int wait_ms) {
    int64_t end_ns = gy_clock_ns() + (int64_t)wait_ms * GY_HOST_MS;
    while (!reap_all(h)) {
        int64_t left_ms = (end_ns - gy_clock_ns() + GY_HOST_MS - 1) / GY_HOST_MS;
        if (wait_ms >= 0 && left_ms <= 0) return 0;
        wait_for_any(h, wait_ms < 0 ? -1 : (int)left_ms);
    }
    return 1;
}

void gy_proc_close(gy_host *h) {
    if (h->is_idle && wait_for_ends(h, h->o.stop_ms)) return;
    signal_all(h, SIGTERM);
    if (wait_for_ends(h, h->o.stop_ms)) return;
    signal_all(h, SIGKILL);
    wait_for_ends(h, -1);
}
