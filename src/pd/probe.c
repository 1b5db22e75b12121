/* Sender and receiver are children: what they load is gone with them. Over their socket pair: the receiver's blob, then
 * a byte for each put: 1 as it was sent, 0 not. The round is in the note, and decides the bytes.
 */
#include "pd/probe.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 60000, SMALL = 64, SENDER = 1, RECEIVER = 2 /* epochs */ };

typedef struct put_note {
    uint32_t round, bytes;
} put_note;

typedef struct end {
    gy_xfer *x;
    gy_device *dev;             /* NULL: the host's memory */
    unsigned char *mem, *stage; /* stage: of the host, for what mem cannot be read or written by */
    size_t bytes;
    int fd;
    int n_done;
    gy_status status;
} end;

size_t gy_probe_bytes(void) {
    enum { WANTED = 256 << 20, LEAST = 1 << 20 };
    struct statvfs fs;
    size_t n = WANTED, memory = gy_mem_available() / 8;
    if (memory && memory < n) n = memory;
    if (statvfs("/dev/shm", &fs) == 0 && (size_t)fs.f_bavail * fs.f_frsize / 8 < n)
        n = (size_t)fs.f_bavail * fs.f_frsize / 8;
    n &= ~(size_t)4095;
    return n < LEAST ? LEAST : n;
}

/* Eight bytes at a time that no shift, no other round and no other place has. */
static uint64_t word_at(uint32_t round, size_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)round << 56;
    return x ^ x >> 29;
}

static void fill(unsigned char *mem, size_t bytes, uint32_t round) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t w = word_at(round, i);
        memcpy(mem + 8 * i, &w, sizeof w);
    }
}

static int is_filled(const unsigned char *mem, size_t bytes, uint32_t round) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t w = word_at(round, i);
        if (memcmp(mem + 8 * i, &w, sizeof w) != 0) return 0;
    }
    return 1;
}

static gy_status fill_end(end *e, size_t bytes, uint32_t round, gy_err *err) {
    fill(e->stage, bytes, round);
    return e->dev ? e->dev->copy(e->dev->arg, e->mem, e->stage, bytes, err) : GY_OK;
}

static int end_is_filled(end *e, size_t bytes, uint32_t round) {
    if (e->dev && e->dev->copy(e->dev->arg, e->stage, e->mem, bytes, NULL) < 0) return 0;
    return is_filled(e->stage, bytes, round);
}

static gy_status open_memory(end *e, size_t bytes, gy_err *err) {
    int32_t region;
    void *mem;
    e->bytes = bytes;
    if (!e->dev) {
        GY_TRY(gy_xfer_region_alloc(e->x, bytes, err, &region, &mem));
        e->mem = e->stage = mem;
        return GY_OK;
    }
    e->mem = e->dev->alloc(e->dev->arg, bytes);
    e->stage = gy_mem_map_pages(GY_MEM_PD, bytes);
    if (!e->mem || !e->stage)
        return gy_err_set(err, GY_E_NOMEM, "transport: no memory for %zu bytes on GPU %d and in the host", bytes,
                          e->dev->ordinal);
    return gy_xfer_region_map(e->x, e->mem, bytes, err, &region);
}

static gy_status open_end(end *e, const gy_probe_opts *o, uint64_t epoch,
                          void (*on_done)(void *, gy_xfer_op *, gy_status),
                          void (*on_note)(void *, uint64_t, const void *, size_t), gy_err *err) {
    gy_xfer_opts x = {.kind = GY_XFER_UCX,
                      .limits = o->limits,
                      .across_hosts = o->across_hosts,
                      .devices = o->across_hosts ? "lo" : NULL,
                      .epoch = epoch,
                      .user = e,
                      .on_done = on_done,
                      .on_note = on_note};
    if (o->open_device) GY_TRY(o->open_device(o->arg, epoch == RECEIVER, err, &e->dev));
    x.device = e->dev;
    GY_TRY(gy_xfer_open(&x, err, &e->x));
    return open_memory(e, o->bytes, err);
}

/* All n bytes. A process that is stopped and goes on finds its recv ended, with what was there or with nothing. */
static int recv_all(int fd, void *to, size_t n) {
    for (char *at = to; n;) {
        ssize_t got = recv(fd, at, n, MSG_WAITALL);
        if (got == 0 || (got < 0 && errno != EINTR)) return 0;
        at += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
    return 1;
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static void got_done(void *user, gy_xfer_op *op, gy_status st) {
    end *e = user;
    (void)op;
    e->n_done++;
    if (st < 0) e->status = st;
}

static void got_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    end *e = user;
    put_note n = {0};
    (void)epoch;
    if (len == sizeof n) memcpy(&n, bytes, sizeof n);
    unsigned char good = n.bytes > 0 && n.bytes <= e->bytes && end_is_filled(e, n.bytes, n.round);
    if (send(e->fd, &good, 1, MSG_NOSIGNAL) != 1) e->status = GY_E_PEER;
}

static void no_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    (void)user, (void)epoch, (void)bytes, (void)len;
}

static int is_closed(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Its only way to say what went wrong is the sentence in place of a blob. */
static _Noreturn void receive(int fd, const gy_probe_opts *o) {
    static char blob[GY_XFER_MAX_BLOB];
    end e = {.fd = fd};
    gy_err err = {0};
    size_t n = 0;
    gy_status st = open_end(&e, o, RECEIVER, got_done, got_note, &err);
    if (st >= 0) st = gy_xfer_export(e.x, blob, sizeof blob, &n, &err);
    int32_t head[2] = {st, (int32_t)(st < 0 ? strlen(err.msg) : n)};
    if (send(fd, head, sizeof head, MSG_NOSIGNAL) != (ssize_t)sizeof head ||
        send(fd, st < 0 ? err.msg : blob, (size_t)head[1], MSG_NOSIGNAL) != head[1])
        _exit(1);
    while (st >= 0 && e.status >= 0 && !is_closed(fd))
        if (!gy_xfer_poll(e.x)) gy_xfer_wait(e.x, 1);
    gy_xfer_close(e.x);
    _exit(0);
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static gy_status take_blob(int fd, gy_err *err, void *blob, size_t *len_out) {
    int32_t head[2];
    if (!recv_all(fd, head, sizeof head) || head[1] < 0 || head[1] > GY_XFER_MAX_BLOB ||
        !recv_all(fd, blob, (size_t)head[1]))
        return gy_err_set(err, GY_E_PEER, "transport: the receiving process is gone");
    *len_out = (size_t)head[1];
    if (head[0] < 0) return gy_err_set(err, (gy_status)head[0], "%.*s", head[1], (const char *)blob);
    return GY_OK;
}

static gy_status wait_for_verdict(end *e, uint32_t round, gy_err *err) {
    unsigned char good = 0;
    int64_t until_ns = gy_clock_ns() + (int64_t)WAIT_MS * 1000000;
    for (;;) {
        struct pollfd p = {.fd = e->fd, .events = POLLIN};
        gy_xfer_poll(e->x); /* a note may still be on its way out */
        if (poll(&p, 1, 1) > 0) break;
        if (gy_clock_ns() > until_ns)
            return gy_err_set(err, GY_E_PEER, "transport: the note of put %u did not arrive", round);
    }
    if (!recv_all(e->fd, &good, 1))
        return gy_err_set(err, GY_E_PEER, "transport: the receiving process is gone (put %u)", round);
    if (!good) return gy_err_set(err, GY_E_PEER, "transport: put %u: other bytes arrived than were sent", round);
    return GY_OK;
}

/* One op after the other, as large as the limits allow; the note is with the last. */
static gy_status put(end *e, gy_xfer_peer *peer, const gy_xfer_limits *l, size_t bytes, uint32_t round, gy_err *err,
                     int64_t *took_ns) {
    put_note note = {round, (uint32_t)bytes};
    int64_t t = gy_clock_ns(), until_ns = t + (int64_t)WAIT_MS * 1000000;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < l->chunk_bytes ? bytes - at : l->chunk_bytes;
        gy_xfer_desc d = {.src_off = at, .dst_off = at, .bytes = n};
        gy_xfer_op op = {.desc = &d, .n_desc = 1};
        if (at + n == bytes) {
            op.note = &note;
            op.n_note = sizeof note;
        }
        e->n_done = 0;
        gy_status st = gy_xfer_post(peer, &op, err);
        if (st < 0) return st;
        GY_CHECK(st == GY_OK); /* nothing else is under way */
        while (!e->n_done) {
            gy_xfer_poll(e->x);
            if (gy_clock_ns() > until_ns)
                return gy_err_set(err, GY_E_TIMEOUT, "transport: put %u was not done in %d s", round, WAIT_MS / 1000);
        }
        if (e->status < 0) return gy_err_set(err, e->status, "transport: put %u failed", round);
        at += n;
    }
    *took_ns = gy_clock_ns() - t;
    return wait_for_verdict(e, round, err);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static double median(int64_t *ns, int n) {
    int middle = n / 2;
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    return (double)ns[middle];
}

static gy_status time_puts(end *e, gy_xfer_peer *peer, const gy_probe_opts *o, gy_err *err, gy_probe_result *r) {
    int64_t ns[GY_PROBE_ROUNDS + 1], small[GY_PROBE_ROUNDS];
    for (uint32_t i = 0; i <= GY_PROBE_ROUNDS; i++) { /* the first one also touches the pages */
        GY_TRY(fill_end(e, o->bytes, i, err));
        GY_TRY(put(e, peer, &o->limits, o->bytes, i, err, &ns[i]));
    }
    for (uint32_t i = 0; i < GY_PROBE_ROUNDS; i++) {
        GY_TRY(fill_end(e, SMALL, 100 + i, err));
        GY_TRY(put(e, peer, &o->limits, SMALL, 100 + i, err, &small[i]));
    }
    r->put_gbs = (double)o->bytes / median(ns + 1, GY_PROBE_ROUNDS);
    r->latency_us = median(small, GY_PROBE_ROUNDS) * 1e-3;
    return GY_OK;
}

static gy_status time_copies(size_t bytes, gy_err *err, gy_probe_result *r) {
    int64_t ns[GY_PROBE_ROUNDS];
    char *a = gy_mem_map_pages(GY_MEM_PD, bytes), *b = gy_mem_map_pages(GY_MEM_PD, bytes);
    gy_status st = a && b ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for two times %zu bytes", bytes);
    if (st == GY_OK) memset(a, 1, bytes);
    for (int i = -1; i < GY_PROBE_ROUNDS && st == GY_OK; i++) {
        int64_t t = gy_clock_ns();
        memcpy(b, a, bytes);
        __asm__ volatile("" : : "r"(b) : "memory"); /* b is read by somebody */
        if (i >= 0) ns[i] = gy_clock_ns() - t;
    }
    if (st == GY_OK) r->copy_gbs = (double)bytes / median(ns, GY_PROBE_ROUNDS);
    if (a) gy_mem_unmap_pages(GY_MEM_PD, a, bytes);
    if (b) gy_mem_unmap_pages(GY_MEM_PD, b, bytes);
    return st;
}

static gy_status time_device_copies(const end *e, gy_err *err, gy_probe_result *r) {
    int64_t ns[GY_PROBE_ROUNDS];
    char *to = e->dev->alloc(e->dev->arg, e->bytes);
    gy_status st = to ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes on a GPU", e->bytes);
    for (int i = -1; i < GY_PROBE_ROUNDS && st == GY_OK; i++) {
        int64_t t = gy_clock_ns();
        st = e->dev->copy(e->dev->arg, to, e->mem, e->bytes, err);
        if (i >= 0) ns[i] = gy_clock_ns() - t;
    }
    if (st == GY_OK) r->copy_gbs = (double)e->bytes / median(ns, GY_PROBE_ROUNDS);
    e->dev->free(e->dev->arg, to);
    return st;
}

static gy_status send_all(int fd, const gy_probe_opts *o, gy_err *err, gy_probe_result *r) {
    static const struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    char *blob = gy_mem_alloc(GY_MEM_PD, GY_XFER_MAX_BLOB, 1);
    end e = {.fd = fd};
    gy_xfer_peer *peer = NULL;
    size_t n = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    gy_status st = blob ? take_blob(fd, err, blob, &n) : gy_err_set(err, GY_E_NOMEM, "no memory for a blob");
    if (st >= 0) st = open_end(&e, o, SENDER, got_done, no_note, err);
    if (st >= 0) st = gy_xfer_import(e.x, blob, n, err, &peer);
    if (st >= 0) snprintf(r->lanes, sizeof r->lanes, "%s", gy_xfer_lanes(peer));
    if (st >= 0) st = time_puts(&e, peer, o, err, r);
    if (st >= 0) st = e.dev ? time_device_copies(&e, err, r) : time_copies(o->bytes, err, r);
    gy_xfer_peer_drop(peer);
    gy_xfer_close(e.x);
    gy_mem_free(blob);
    return st;
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

typedef struct verdict {
    gy_status status;
    gy_err err;
    gy_probe_result r;
} verdict;

static pid_t fork_child(void) {
    pid_t parent = getpid(), child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    return 0;
}

static void reap(pid_t child) {
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
}

static gy_status both_ends(const gy_probe_opts *o, gy_err *err, gy_probe_result *r) {
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "transport: no socket: %s", strerror(errno));
    pid_t child = fork_child();
    if (child == 0) {
        close(fd[0]);
        receive(fd[1], o);
    }
    close(fd[1]);
    gy_status st =
        child < 0 ? gy_err_set(err, GY_E_IO, "transport: no process: %s", strerror(errno)) : send_all(fd[0], o, err, r);
    close(fd[0]);
    reap(child);
    return st;
}

static _Noreturn void send_from_child(int fd, const gy_probe_opts *o) {
    verdict v = {.r.bytes = o->bytes};
    v.status = both_ends(o, &v.err, &v.r);
    _exit(send(fd, &v, sizeof v, MSG_NOSIGNAL) != (ssize_t)sizeof v);
}

gy_status gy_probe(const gy_probe_opts *o, gy_err *err, gy_probe_result *out) {
    int fd[2];
    verdict v = {0};
    GY_TRY(gy_xfer_limits_check(&o->limits, err));
    if (o->bytes < SMALL || o->bytes > UINT32_MAX || o->bytes % 8)
        return gy_err_set(err, GY_E_ARG, "transport: found puts of %zu bytes, expected 64 to 4 G, a multiple of 8",
                          o->bytes);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "transport: no socket: %s", strerror(errno));
    pid_t child = fork_child();
    if (child == 0) send_from_child(fd[1], o);
    close(fd[1]);
    int is_there = child > 0 && recv_all(fd[0], &v, sizeof v);
    close(fd[0]);
    reap(child);
    if (!is_there) return gy_err_set(err, GY_E_PEER, "transport: the sending process is gone");
    if (v.status < 0) return gy_err_set(err, v.status, "%s", v.err.msg);
    *out = v.r;
    return GY_OK;
}
