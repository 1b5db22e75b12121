/* The receiver serves its transport and, between two polls, what a sender asks over the socket pair. */
#include "pd_ends.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE_S = 60 };

typedef struct child {
    pid_t pid;
    int fd;
} child;

struct pd_ends {
    pd_ends_opts o;
    char lanes[128];
    char blob[GY_XFER_MAX_BLOB];
    size_t n_blob;
    child receiver[PD_MAX_SENDER]; /* pid of the first only; a pair of sockets for each sender */
    int sender_side[PD_MAX_SENDER];
    child sender[PD_MAX_SENDER];
};

typedef struct order { /* parent to sender */
    pd_job job;        /* NULL: end. The same address in all of them: they are forks */
    char arg[PD_MAX_JOB];
} order;

typedef struct report {
    gy_status status;
    int32_t n_ns;
    char why[1024];
} report;

typedef struct question { /* sender to receiver */
    char what;
    size_t bytes;
} question;

typedef struct answer {
    int64_t note_ns;
    uint64_t n_note;
    int is_good;
} answer;

/* ---- sockets ---- */

static int write_all(int fd, const void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
        if (k <= 0 && errno != EINTR) return -1;
        if (k > 0) at += (size_t)k;
    }
    return 0;
}

static int read_all(int fd, void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t k = recv(fd, (char *)p + at, n - at, 0);
        if (k == 0 || (k < 0 && errno != EINTR)) return -1;
        if (k > 0) at += (size_t)k;
    }
    return 0;
}

/* ---- both ends ---- */

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    pd_end *e = user;
    (void)op;
    e->n_done++;
    if (st < 0) e->status = st;
}

static void on_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    pd_end *e = user;
    (void)epoch, (void)bytes, (void)len;
    e->note_ns = gy_clock_ns();
    e->n_note++;
}

static gy_status open_end(pd_end *e, int across, uint64_t epoch, gy_err *err) {
    gy_xfer_opts x = {.kind = GY_XFER_UCX,
                      .limits = e->limits,
                      .across_hosts = across,
                      .devices = across ? "lo" : NULL,
                      .epoch = epoch,
                      .user = e,
                      .on_done = on_done,
                      .on_note = on_note};
    int32_t region;
    void *mem;
    GY_TRY(gy_xfer_open(&x, err, &e->x));
    GY_TRY(gy_xfer_region_alloc(e->x, e->bytes, err, &region, &mem));
    e->mem = mem;
    return GY_OK;
}

static uint64_t word_at(size_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static int is_filled(const unsigned char *mem, size_t bytes) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t w = word_at(i);
        if (memcmp(mem + 8 * i, &w, sizeof w) != 0) return 0;
    }
    return 1;
}

static void fill(unsigned char *mem, size_t bytes) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t w = word_at(i);
        memcpy(mem + 8 * i, &w, sizeof w);
    }
}

/* ---- the receiver ---- */

/* 0: that sender is gone. */
static int serve(pd_end *e, int fd) {
    question q;
    if (read_all(fd, &q, sizeof q)) return 0;
    answer a = {.is_good = 1};
    if (q.what == 'z') memset(e->mem, 0, e->bytes);
    if (q.what == 'c') a.is_good = is_filled(e->mem, q.bytes);
    if (q.what == 's') e->is_sleepy = (int)q.bytes;
    a.note_ns = e->note_ns;
    a.n_note = e->n_note;
    return !write_all(fd, &a, sizeof a);
}

static void progress(pd_end *e) {
    enum { ROUNDS = 64 };
    for (int i = 0; i < ROUNDS; i++)
        if (!gy_xfer_poll(e->x) && e->is_sleepy) {
            gy_xfer_wait(e->x, 1);
            return;
        }
}

static _Noreturn void run_receiver(pd_ends *p) {
    pd_end e = {.bytes = p->o.dst_bytes, .limits = p->o.limits[0], .is_sleepy = 1};
    struct pollfd fd[PD_MAX_SENDER] = {{0}};
    int n_open = p->o.n_sender;
    gy_err err = {0};
    GY_CHECK(n_open > 0);
    report r = {.status = open_end(&e, p->o.across_hosts, 1000, &err)};
    if (r.status >= 0) r.status = gy_xfer_export(e.x, p->blob, sizeof p->blob, &p->n_blob, &err);
    snprintf(r.why, sizeof r.why, "%s", err.msg);
    for (int i = 0; i < n_open; i++) fd[i] = (struct pollfd){.fd = p->receiver[i].fd, .events = POLLIN};
    if (write_all(fd[0].fd, &r, sizeof r) || write_all(fd[0].fd, &p->n_blob, sizeof p->n_blob) ||
        write_all(fd[0].fd, p->blob, p->n_blob))
        _exit(1);
    while (r.status >= 0 && n_open) {
        progress(&e);
        if (poll(fd, (nfds_t)p->o.n_sender, 0) <= 0) continue;
        for (int i = 0; i < p->o.n_sender; i++)
            if (fd[i].fd >= 0 && fd[i].revents && !serve(&e, fd[i].fd)) {
                fd[i].fd = -1;
                n_open--;
            }
    }
    gy_xfer_close(e.x);
    _exit(0);
}

/* ---- a sender ---- */

static gy_status open_sender(pd_end *e, const pd_ends *p, int i, gy_err *err) {
    GY_TRY(open_end(e, p->o.across_hosts, (uint64_t)i + 1, err));
    fill(e->mem, e->bytes);
    for (int k = 0; k < 2 && e->copy_bytes; k++) {
        e->plain[k] = gy_mem_map_pages(GY_MEM_PD, e->copy_bytes);
        e->huge[k] = gy_mem_map_pages(GY_MEM_PD, e->copy_bytes); /* which asks for huge pages */
        if (!e->plain[k] || !e->huge[k])
            return gy_err_set(err, GY_E_NOMEM, "no memory for four times %zu bytes", e->copy_bytes);
        madvise(e->plain[k], e->copy_bytes, MADV_NOHUGEPAGE);
        memset(e->plain[k], 1, e->copy_bytes);
        memset(e->huge[k], 1, e->copy_bytes);
    }
    return gy_xfer_import(e->x, p->blob, p->n_blob, err, &e->peer);
}

static _Noreturn void run_sender(const pd_ends *p, int i, int fd) {
    static int64_t ns[PD_MAX_NS];
    pd_end e = {.bytes = p->o.src_bytes,
                .dst_bytes = p->o.dst_bytes,
                .copy_bytes = p->o.copy_bytes,
                .limits = p->o.limits[i],
                .fd = p->sender_side[i]};
    gy_err err = {0};
    report r = {.status = open_sender(&e, p, i, &err)};
    order o;
    snprintf(r.why, sizeof r.why, "%s", r.status < 0 ? err.msg : gy_xfer_lanes(e.peer));
    if (write_all(fd, &r, sizeof r)) _exit(1);
    while (r.status >= 0 && !read_all(fd, &o, sizeof o) && o.job) {
        int32_t n = 0;
        e.status = GY_OK;
        report done = {.status = o.job(&e, o.arg, ns, &n, &err), .n_ns = n};
        snprintf(done.why, sizeof done.why, "%s", err.msg);
        if (write_all(fd, &done, sizeof done) || write_all(fd, ns, (size_t)n * sizeof *ns)) break;
    }
    gy_xfer_peer_drop(e.peer);
    gy_xfer_close(e.x);
    _exit(0);
}

static gy_status ask(pd_end *e, question q, gy_err *err, answer *out) {
    if (write_all(e->fd, &q, sizeof q) || read_all(e->fd, out, sizeof *out))
        return gy_err_set(err, GY_E_PEER, "the receiving process is gone");
    return GY_OK;
}

gy_status pd_put(pd_end *e, const gy_xfer_desc *desc, int32_t n_desc, gy_err *err) {
    int64_t until_ns = gy_clock_ns() + (int64_t)DEADLINE_S * 1000000000;
    gy_xfer_op op = {.desc = desc, .n_desc = n_desc, .note = "note", .n_note = 4};
    e->n_done = 0;
    gy_status st = gy_xfer_post(e->peer, &op, err);
    if (st < 0) return st;
    if (st != GY_OK) return gy_err_set(err, GY_E_BUG, "the budget is taken with nothing under way");
    while (!e->n_done) {
        gy_xfer_poll(e->x);
        if (gy_clock_ns() > until_ns) return gy_err_set(err, GY_E_TIMEOUT, "a put was not done in %d s", DEADLINE_S);
    }
    return e->status < 0 ? gy_err_set(err, e->status, "a put failed") : GY_OK;
}

gy_status pd_stream(pd_end *e, size_t at, size_t bytes, int32_t n, gy_err *err) {
    enum { WINDOW = 16 };
    static gy_xfer_desc d[PD_MAX_STREAM];
    static gy_xfer_op op[PD_MAX_STREAM]; /* each once: ops may end in another order */
    GY_CHECK(n <= PD_MAX_STREAM);
    int64_t until_ns = gy_clock_ns() + (int64_t)DEADLINE_S * 1000000000;
    int32_t posted = 0;
    e->n_done = 0;
    while (e->n_done < n) {
        while (posted < n && posted - e->n_done < WINDOW) {
            const int32_t k = posted;
            d[k] = (gy_xfer_desc){.src_off = at, .dst_off = at, .bytes = bytes};
            op[k] = (gy_xfer_op){.desc = &d[k], .n_desc = 1, .note = "note", .n_note = 4};
            gy_status st = gy_xfer_post(e->peer, &op[k], err);
            if (st < 0) return st;
            if (st != GY_OK) break;
            at += bytes;
            posted++;
        }
        gy_xfer_poll(e->x);
        if (gy_clock_ns() > until_ns) {
            gy_xfer_stats x;
            gy_xfer_get_stats(e->x, &x);
            return gy_err_set(err, GY_E_TIMEOUT,
                              "puts of %zu bytes over %s: %d of %d done in %d s, %d posted, %zu bytes under way", bytes,
                              gy_xfer_lanes(e->peer), e->n_done, n, DEADLINE_S, posted, x.inflight_bytes);
        }
    }
    return e->status < 0 ? gy_err_set(err, e->status, "a put failed") : GY_OK;
}

gy_status pd_forget(pd_end *e, gy_err *err) {
    answer a;
    return ask(e, (question){.what = 'z'}, err, &a);
}

gy_status pd_check(pd_end *e, size_t bytes, gy_err *err) {
    answer a;
    GY_TRY(ask(e, (question){.what = 'c', .bytes = bytes}, err, &a));
    return a.is_good ? GY_OK : gy_err_set(err, GY_E_PEER, "other bytes arrived than were sent");
}

gy_status pd_set_sleepy(pd_end *e, int is_sleepy, gy_err *err) {
    answer a;
    return ask(e, (question){.what = 's', .bytes = (size_t)is_sleepy}, err, &a);
}

gy_status pd_last_note(pd_end *e, gy_err *err, int64_t *at_ns, uint64_t *n_note) {
    answer a;
    GY_TRY(ask(e, (question){.what = 'n'}, err, &a));
    *at_ns = a.note_ns;
    *n_note = a.n_note;
    return GY_OK;
}

/* ---- the parent ---- */

static pid_t fork_child(void) {
    pid_t parent = getpid(), pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    return 0;
}

static gy_status take_report(int fd, gy_err *err, report *r) {
    if (read_all(fd, r, sizeof *r)) return gy_err_set(err, GY_E_PEER, "a process of this benchmark is gone");
    return r->status < 0 ? gy_err_set(err, r->status, "%s", r->why) : GY_OK;
}

static gy_status start_receiver(pd_ends *p, gy_err *err) {
    report r;
    for (int i = 0; i < p->o.n_sender; i++) {
        int fd[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
            return gy_err_set(err, GY_E_IO, "no socket: %s", strerror(errno));
        p->receiver[i].fd = fd[0];
        p->sender_side[i] = fd[1];
    }
    p->receiver[0].pid = fork_child();
    if (p->receiver[0].pid < 0) return gy_err_set(err, GY_E_IO, "no process: %s", strerror(errno));
    if (!p->receiver[0].pid) {
        for (int i = 0; i < p->o.n_sender; i++) close(p->sender_side[i]);
        run_receiver(p);
    }
    for (int i = 0; i < p->o.n_sender; i++) close(p->receiver[i].fd);
    GY_TRY(take_report(p->sender_side[0], err, &r));
    if (read_all(p->sender_side[0], &p->n_blob, sizeof p->n_blob) || p->n_blob > sizeof p->blob ||
        read_all(p->sender_side[0], p->blob, p->n_blob))
        return gy_err_set(err, GY_E_PEER, "the receiving process is gone");
    return GY_OK;
}

/* A sender keeps its own socket to the receiver and no other's: the receiver ends when all are closed. */
static gy_status start_sender(pd_ends *p, int i, gy_err *err) {
    report r;
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "no socket: %s", strerror(errno));
    pid_t pid = fork_child();
    if (!pid) {
        close(fd[0]);
        for (int k = 0; k < p->o.n_sender; k++) {
            if (k != i && p->sender_side[k] >= 0) close(p->sender_side[k]);
            if (k < i) close(p->sender[k].fd);
        }
        run_sender(p, i, fd[1]);
    }
    close(fd[1]);
    close(p->sender_side[i]);
    p->sender_side[i] = -1;
    p->sender[i] = (child){pid, fd[0]};
    if (pid < 0) return gy_err_set(err, GY_E_IO, "no process: %s", strerror(errno));
    GY_TRY(take_report(fd[0], err, &r));
    snprintf(p->lanes, sizeof p->lanes, "%.120s", r.why);
    return GY_OK;
}

gy_status pd_ends_open(const pd_ends_opts *o, gy_err *err, pd_ends **out) {
    pd_ends *p = gy_mem_alloc(GY_MEM_PD, 1, sizeof *p);
    if (!p) return gy_err_set(err, GY_E_NOMEM, "no memory");
    p->o = *o;
    for (int i = 0; i < PD_MAX_SENDER; i++) p->sender_side[i] = p->sender[i].fd = -1;
    fflush(stdout); /* or children would print it again */
    gy_status st = start_receiver(p, err);
    for (int i = 0; i < o->n_sender && st >= 0; i++) st = start_sender(p, i, err);
    if (st < 0) {
        pd_ends_close(p);
        return st;
    }
    *out = p;
    return GY_OK;
}

static void reap(pid_t pid) {
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

void pd_ends_close(pd_ends *p) {
    const order end = {.job = NULL};
    if (!p) return;
    for (int i = 0; i < p->o.n_sender; i++) {
        if (p->sender[i].fd >= 0 && !write_all(p->sender[i].fd, &end, sizeof end)) close(p->sender[i].fd);
        if (p->sender_side[i] >= 0) close(p->sender_side[i]);
    }
    for (int i = 0; i < p->o.n_sender; i++) reap(p->sender[i].pid);
    reap(p->receiver[0].pid);
    gy_mem_free(p);
}

const char *pd_ends_lanes(const pd_ends *p) {
    return p->lanes;
}

gy_status pd_ends_do(pd_ends *p, int sender, pd_job job, const void *arg, size_t n_arg, gy_err *err, int64_t *ns,
                     int32_t *n_ns) {
    order o = {.job = job};
    report r;
    GY_CHECK(n_arg <= sizeof o.arg);
    memcpy(o.arg, arg, n_arg);
    if (write_all(p->sender[sender].fd, &o, sizeof o)) return gy_err_set(err, GY_E_PEER, "a sender is gone");
    GY_TRY(take_report(p->sender[sender].fd, err, &r));
    if (r.n_ns < 0 || r.n_ns > PD_MAX_NS || read_all(p->sender[sender].fd, ns, (size_t)r.n_ns * sizeof *ns))
        return gy_err_set(err, GY_E_PEER, "a sender is gone");
    *n_ns = r.n_ns;
    return GY_OK;
}

int64_t pd_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double pd_quantile_us(int64_t *ns, int32_t n, double q) {
    if (n < 1) return 0;
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    double at = q * (n - 1);
    int32_t lo = (int32_t)at, hi = lo + 1 < n ? lo + 1 : lo;
    return ((double)ns[lo] + (at - lo) * (double)(ns[hi] - ns[lo])) * 1e-3;
}
