/* gyre-bench-pd-gpu: KV transfers between two GPUs of a host as the transport makes them, beside the driver's own
 * copies, and what is left when either process is killed with puts under way. Needs two GPUs, libgyre_cuda.so and a UCX
 * with CUDA; every process is a fork of one that has touched neither.
 *
 *   gyre-bench-pd-gpu put|few|prove|refuse|pieces|descs|ipc|errors|unbound|kill-receiver|
 *                     kill-receiver-errors|kill-sender|memory...
 *
 * main steers: a sender asks it over a socket to start the next receiver, to kill it, to show the GPUs' memory. Sender
 * and receiver have a socket pair of their own for addresses and verdicts.
 */
#include "base/clock.h"
#include "ops/ops.h"
#include "pd/xfer.h"
#include "pd_gpu_ipc.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define POOL (2048 * MIB)
#define STAGE (64 * MIB)
enum { N_LIFE = 3, MAX_REP = 16, MAX_OP = 16, MAX_DESC = 256 };

typedef struct put_op {
    gy_xfer_op op;
    gy_xfer_desc d[MAX_DESC];
    uint32_t note;
    int is_under_way;
} put_op;

typedef struct end {
    gy_device *dev;
    gy_xfer *x;
    gy_xfer_peer *peer;
    char *mem;
    int64_t note_ns, fail_ns;
    uint32_t note;
    int n_done, n_fail;
} end;

typedef struct setup {
    size_t piece;
    int peer_errors, is_unbound;
    double least_gbs;
} setup;

typedef struct stage { /* what a receiver gives to whoever wants to write to it */
    size_t n_blob;
    ipc_handle ipc;
    char blob[GY_XFER_MAX_BLOB];
} stage;

typedef struct question {
    char what; /* a: address, c: are bytes of round there, n: the last note */
    uint32_t round;
    size_t bytes;
} question;

typedef struct answer {
    int64_t ns;
    uint32_t note;
    int is_good;
} answer;

static int steer[2], line[N_LIFE][2]; /* [0]: sender's, [1]: receiver's */

static _Noreturn void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("FAILED (%d): ", (int)getpid());
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    _exit(1);
}

static void tell(int fd, const void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
        if (k <= 0) die("the other side is gone");
        at += (size_t)k;
    }
}

static void hear(int fd, void *p, size_t n) {
    if (recv(fd, p, n, MSG_WAITALL) != (ssize_t)n) die("the other side is gone");
}

/* ---- both ends ---- */

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    end *e = user;
    ((put_op *)op->user)->is_under_way = 0;
    e->n_done++;
    if (st < 0 && !e->n_fail++) e->fail_ns = gy_clock_ns();
}

static void on_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    end *e = user;
    (void)epoch;
    e->note_ns = gy_clock_ns();
    if (len == sizeof e->note) memcpy(&e->note, bytes, len);
}

static gy_status stay_unbound(void *arg, gy_err *err) {
    (void)arg, (void)err;
    return GY_OK;
}

static void open_end(end *e, int gpu, const setup *s) {
    gy_err err = {0};
    int32_t region;
    *e = (end){0};
    if (gy_cuda_device_open(gpu, &err, &e->dev) < 0) die("%s", err.msg);
    if (s->is_unbound) e->dev->bind = stay_unbound;
    gy_xfer_opts o = {.kind = GY_XFER_UCX,
                      .limits = {.chunk_bytes = 1024 * MIB, .inflight_bytes = 4096 * MIB, .max_desc = MAX_DESC},
                      .device = e->dev,
                      .piece_bytes = s->piece,
                      .peer_errors = s->peer_errors,
                      .least_gbs = s->least_gbs,
                      .epoch = (uint64_t)getpid(),
                      .user = e,
                      .on_done = on_done,
                      .on_note = on_note};
    int64_t t = gy_clock_ns();
    if (gy_xfer_open(&o, &err, &e->x) < 0) die("open: %s", err.msg);
    e->mem = e->dev->alloc(e->dev->arg, POOL);
    if (!e->mem) die("no memory on GPU %d", gpu);
    int64_t t2 = gy_clock_ns();
    if (gy_xfer_region_map(e->x, e->mem, POOL, &err, &region) < 0) die("map: %s", err.msg);
    printf("  gpu %d: open %.1f ms, map of 2 GiB %.2f ms\n", gpu, (double)(t2 - t) * 1e-6,
           (double)(gy_clock_ns() - t2) * 1e-6);
    fflush(stdout);
}

static uint64_t word_at(uint32_t round, size_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)round << 56;
    return x ^ x >> 29;
}

/* Writes the words of round, or looks for them. */
static int move_words(end *e, size_t bytes, uint32_t round, int is_check) {
    gy_err err = {0};
    uint64_t *host = malloc(STAGE);
    size_t n_bad = 0;
    if (!host) die("no memory");
    for (size_t at = 0; at < bytes; at += STAGE) {
        size_t n = bytes - at < STAGE ? bytes - at : STAGE;
        if (is_check && e->dev->copy(e->dev->arg, host, e->mem + at, n, &err) < 0) die("%s", err.msg);
        for (size_t i = 0; i < n / 8; i++) {
            uint64_t w = word_at(round, at / 8 + i);
            if (is_check) n_bad += host[i] != w;
            if (!is_check) host[i] = w;
        }
        if (!is_check && e->dev->copy(e->dev->arg, e->mem + at, host, n, &err) < 0) die("%s", err.msg);
    }
    free(host);
    return n_bad == 0;
}

/* ---- the receiver ---- */

static void serve(end *e, int fd, const stage *s) {
    question q;
    answer a = {.ns = e->note_ns, .note = e->note};
    hear(fd, &q, sizeof q);
    if (q.what == 'a') tell(fd, s, sizeof *s);
    if (q.what == 'c') a.is_good = move_words(e, q.bytes, q.round, 1);
    if (q.what != 'a') tell(fd, &a, sizeof a);
}

/* Any of the lines may speak: two senders, one after the other. */
static _Noreturn void receive(int first, int n_line, const setup *s) {
    static stage out;
    struct pollfd fd[N_LIFE];
    end e;
    gy_err err = {0};
    const char *why;
    open_end(&e, 1, s);
    if (gy_xfer_export(e.x, out.blob, sizeof out.blob, &out.n_blob, &err) < 0) die("export: %s", err.msg);
    if ((why = ipc_load()) || (why = ipc_export(e.mem, &out.ipc))) die("%s", why);
    for (int i = 0; i < n_line; i++) fd[i] = (struct pollfd){.fd = line[first + i][1], .events = POLLIN};
    for (;;) {
        for (int k = 0; k < 16; k++) gy_xfer_poll(e.x);
        if (poll(fd, (nfds_t)n_line, 0) <= 0) continue;
        for (int i = 0; i < n_line; i++)
            if (fd[i].revents) serve(&e, fd[i].fd, &out);
    }
}

/* ---- the sender ---- */

static answer ask(int life, char what, size_t bytes, uint32_t round) {
    question q = {.what = what, .round = round, .bytes = bytes};
    answer a;
    tell(line[life][0], &q, sizeof q);
    hear(line[life][0], &a, sizeof a);
    return a;
}

static void ask_main(char what) {
    tell(steer[0], &what, 1);
    hear(steer[0], &what, 1);
}

static void join(end *e, int life, stage *got) {
    gy_err err = {0};
    question q = {.what = 'a'};
    tell(line[life][0], &q, sizeof q);
    hear(line[life][0], got, sizeof *got);
    int64_t t = gy_clock_ns();
    gy_status st;
    while ((st = gy_xfer_import(e->x, got->blob, got->n_blob, &err, &e->peer)) == GY_AGAIN) gy_xfer_poll(e->x);
    if (st < 0) die("import: %s", err.msg);
    printf("  import %.2f ms, blob %zu bytes, lanes: %s, proved %.1f GB/s\n", (double)(gy_clock_ns() - t) * 1e-6,
           got->n_blob, gy_xfer_lanes(e->peer), gy_xfer_peer_gbs(e->peer));
    fflush(stdout);
}

static void prepare(put_op *p, size_t bytes, int n_desc, uint32_t note) {
    *p = (put_op){.note = note};
    for (int i = 0; i < n_desc; i++) {
        size_t each = bytes / (size_t)n_desc, at = each * (size_t)i;
        p->d[i] = (gy_xfer_desc){.src_off = at, .dst_off = at, .bytes = each};
    }
    p->op = (gy_xfer_op){.desc = p->d, .n_desc = n_desc, .note = &p->note, .n_note = sizeof p->note, .user = p};
}

static void post(end *e, put_op *p) {
    gy_err err = {0};
    gy_status st;
    p->is_under_way = 1;
    while ((st = gy_xfer_post(e->peer, &p->op, &err)) == GY_AGAIN) gy_xfer_poll(e->x);
    if (st < 0) die("post: %s", err.msg);
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

/* One at a time: how long each takes, from post to remote completion, and to the note at the other side. */
static void time_one(end *e, int life, size_t bytes, int n_desc, int n_rep) {
    static put_op p;
    int64_t call[MAX_REP], done[MAX_REP], note[MAX_REP];
    static uint32_t n_note, round;
    move_words(e, bytes, ++round, 0);
    for (int i = -1; i < n_rep; i++) {
        prepare(&p, bytes, n_desc, ++n_note);
        post(e, &p);
        int64_t t = gy_clock_ns(), until = t + 5000000000;
        while (p.is_under_way && gy_clock_ns() < until) gy_xfer_poll(e->x);
        if (p.is_under_way) die("a put of %zu bytes was not done in 5 s", bytes);
        answer a = {0};
        while (a.note != n_note && gy_clock_ns() < until) {
            gy_xfer_poll(e->x);
            a = ask(life, 'n', 0, 0);
        }
        if (i < 0) continue;
        call[i] = t - p.op.post_ns;
        done[i] = p.op.done_ns - p.op.post_ns;
        note[i] = a.ns - p.op.post_ns;
    }
    answer a = ask(life, 'c', bytes, round);
    double d = median(done, n_rep);
    printf("  put %11zu B %3d desc: post %7.1f us  done %9.1f us = %6.1f GB/s (best %6.1f)  note %9.1f us  bytes %s\n",
           bytes, n_desc, median(call, n_rep) * 1e-3, d * 1e-3, (double)bytes / d, (double)bytes / (double)done[0],
           median(note, n_rep) * 1e-3, a.is_good && !e->n_fail ? "good" : "BAD");
    fflush(stdout);
}

/* One behind the other, as many under way as the budget and the table allow. */
static void time_row(end *e, size_t bytes, size_t total) {
    static put_op p[MAX_OP];
    int64_t t = gy_clock_ns(), call = 0;
    int n = (int)(total / bytes);
    e->n_done = 0;
    for (int i = 0; i < n; i++) {
        put_op *o = &p[i % MAX_OP];
        while (o->is_under_way) gy_xfer_poll(e->x);
        prepare(o, bytes, 1, 0);
        int64_t t2 = gy_clock_ns();
        post(e, o);
        call += gy_clock_ns() - t2;
    }
    while (e->n_done < n) gy_xfer_poll(e->x);
    t = gy_clock_ns() - t;
    printf("  row %11zu B x %5d: %6.1f GB/s, %6.1f us a put, in post %6.1f us a put\n", bytes, n,
           (double)bytes * n / (double)t, (double)t / n * 1e-3, (double)call / n * 1e-3);
    fflush(stdout);
}

static void close_end(end *e) {
    gy_xfer_close(e->x);
    e->dev->free(e->dev->arg, e->mem);
    gy_cuda_device_close(e->dev);
}

static void start(end *e, const setup *s, stage *got) {
    open_end(e, 0, s);
    ask_main('N');
    join(e, 0, got);
}

static void send_puts(const setup *s) {
    static const size_t mib[] = {1, 8, 16, 64, 256, 1024};
    static stage got;
    end e;
    start(&e, s, &got);
    time_one(&e, 0, 64, 1, 16);
    time_one(&e, 0, 65536, 1, 16);
    for (size_t i = 0; i < sizeof mib / sizeof *mib; i++) time_one(&e, 0, mib[i] * MIB, 1, mib[i] < 1024 ? 15 : 5);
    time_row(&e, 65536, 256 * MIB);
    time_row(&e, MIB, 2048 * MIB);
    for (size_t i = 1; i < sizeof mib / sizeof *mib; i++) time_row(&e, mib[i] * MIB, 16384 * MIB);
    close_end(&e);
}

static void send_few(const setup *s) {
    static stage got;
    end e;
    start(&e, s, &got);
    time_one(&e, 0, 65536, 1, 3);
    time_one(&e, 0, 64 * MIB, 1, 3);
    close_end(&e);
}

static void send_pieces(const setup *s) {
    static const size_t mib[] = {1, 4, 8, 16, 32, 64, 1024};
    static stage got;
    setup one = *s;
    end e;
    start(&e, s, &got);
    for (size_t i = 0; i < sizeof mib / sizeof *mib; i++) {
        close_end(&e);
        one.piece = mib[i] * MIB;
        printf(" pieces of %zu MiB\n", mib[i]);
        open_end(&e, 0, &one);
        join(&e, 0, &got);
        time_one(&e, 0, 64 * MIB, 1, 15);
        time_one(&e, 0, 256 * MIB, 1, 15);
        time_row(&e, 256 * MIB, 16384 * MIB);
    }
    close_end(&e);
}

/* A prompt's plane comes as few long runs or as many short ones. */
static void send_descs(const setup *s) {
    static const int n[] = {1, 8, 64, 256};
    static stage got;
    end e;
    start(&e, s, &got);
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) time_one(&e, 0, 16 * MIB, n[i], 15);
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) time_one(&e, 0, 256 * MIB, n[i], 15);
    close_end(&e);
}

static void send_ipc(const setup *s) {
    static const size_t kib[] = {64, 1024, 16384, 65536, 262144, 1048576};
    static const int n_stream[] = {1, 2, 4, 8};
    static stage got;
    end e;
    ipc_lane l;
    const char *why;
    start(&e, s, &got);
    if ((why = ipc_load()) || (why = ipc_open(&got.ipc, &l))) die("%s", why);
    for (size_t k = 0; k < sizeof n_stream / sizeof *n_stream; k++)
        for (size_t i = 0; i < sizeof kib / sizeof *kib; i++) {
            int64_t call[MAX_REP], done[MAX_REP];
            size_t bytes = kib[i] << 10;
            move_words(&e, bytes < STAGE ? bytes : STAGE, (uint32_t)(200 + k), 0);
            for (int r = -1; r < 11 && !why; r++)
                why = ipc_copy(&l, e.mem, bytes, n_stream[k], &call[r < 0 ? 0 : r], &done[r < 0 ? 0 : r]);
            if (why) die("%s", why);
            answer a = ask(0, 'c', bytes < STAGE ? bytes : STAGE, (uint32_t)(200 + k));
            double d = median(done, 11);
            printf("  ipc %11zu B %2d streams: post %7.1f us  done %9.1f us = %6.1f GB/s (best %6.1f)  bytes %s\n",
                   bytes, n_stream[k], median(call, 11) * 1e-3, d * 1e-3, (double)bytes / d,
                   (double)bytes / (double)done[0], a.is_good ? "good" : "BAD");
            fflush(stdout);
        }
    if ((why = ipc_close(&l))) die("%s", why);
    close_end(&e);
}

/* What gy_xfer_bind is there for: a thread that CUDA does not know takes the transport over. */
static void send_unbound(const setup *s) {
    static stage got;
    const char *why;
    end e;
    open_end(&e, 0, s);
    ask_main('N');
    if ((why = ipc_load()) || (why = ipc_unbind())) die("%s", why);
    join(&e, 0, &got);
    time_one(&e, 0, 64 * MIB, 1, 3);
    close_end(&e);
}

/* ---- deaths ---- */

/* Posts without end until until_ns, or main has answered. */
static void keep_posting(end *e, put_op *p, int64_t until_ns, int fd) {
    gy_err err = {0};
    struct pollfd f = {.fd = fd, .events = POLLIN};
    while (gy_clock_ns() < until_ns && !(fd >= 0 && poll(&f, 1, 0) > 0)) {
        for (int i = 0; i < MAX_OP; i++) {
            if (p[i].is_under_way) continue;
            prepare(&p[i], 256 * MIB, 1, 0);
            p[i].is_under_way = gy_xfer_post(e->peer, &p[i].op, &err) == GY_OK;
        }
        gy_xfer_poll(e->x);
    }
}

static void quiet(end *e, put_op *p) {
    int64_t until = gy_clock_ns() + 2000000000;
    int n = 1;
    while (n && gy_clock_ns() < until) {
        gy_xfer_poll(e->x);
        n = 0;
        for (int i = 0; i < MAX_OP; i++) n += p[i].is_under_way;
    }
    printf("  under way in the end: %d; done %d, failed %d\n", n, e->n_done, e->n_fail);
}

static void lose_one(end *e, int life) {
    static put_op p[MAX_OP];
    char what = 'K';
    e->n_done = e->n_fail = 0;
    keep_posting(e, p, gy_clock_ns() + 200000000, -1);
    int before = e->n_done;
    int64_t t = gy_clock_ns();
    tell(steer[0], &what, 1);
    keep_posting(e, p, t + 10000000000, steer[0]);
    hear(steer[0], &what, 1);
    int64_t reaped = gy_clock_ns();
    int between = e->n_done - before, fails = e->n_fail;
    keep_posting(e, p, reaped + 300000000, -1);
    printf(
        "  life %d: killed and reaped in %.1f ms; %d puts done meanwhile (%d failed), %d in 0.3 s after it (%d failed)",
        life, (double)(reaped - t) * 1e-6, between, fails, e->n_done - before - between, e->n_fail - fails);
    if (e->n_fail) printf(", the first %.1f ms after the kill", (double)(e->fail_ns - t) * 1e-6);
    printf("\n");
    fflush(stdout);
    ask_main('M');
    int64_t t2 = gy_clock_ns();
    gy_xfer_peer_drop(e->peer);
    printf("  drop %.2f ms\n", (double)(gy_clock_ns() - t2) * 1e-6);
    quiet(e, p);
    for (int i = 0; i < 1000; i++) gy_xfer_poll(e->x);
    printf("  after the drop:\n");
    fflush(stdout);
    ask_main('M');
}

static void outlive_receivers(const setup *s) {
    static stage got;
    end e;
    open_end(&e, 0, s);
    for (int life = 0; life < N_LIFE; life++) {
        ask_main('N');
        join(&e, life, &got);
        ask_main('M');
        time_one(&e, life, 256 * MIB, 1, 5);
        if (life + 1 < N_LIFE) lose_one(&e, life);
    }
    close_end(&e);
}

static _Noreturn void never_end(const setup *s) {
    static put_op p[MAX_OP];
    static stage got;
    end e;
    start(&e, s, &got);
    ask_main('R');
    for (;;) keep_posting(&e, p, INT64_MAX, -1);
}

static void write_again(const setup *s) {
    static stage got;
    end e;
    open_end(&e, 0, s);
    join(&e, 1, &got);
    time_one(&e, 1, 256 * MIB, 1, 5);
    close_end(&e);
}

/* ---- main ---- */

static void show_memory(void) {
    char text[128];
    FILE *f = popen("nvidia-smi --query-gpu=index,memory.used --format=csv,noheader; "
                    "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader",
                    "r");
    printf("  memory used:");
    while (f && fgets(text, sizeof text, f)) printf(" [%.*s]", (int)strcspn(text, "\n"), text);
    printf("\n");
    fflush(stdout);
    if (f) pclose(f);
}

static pid_t fork_child(void) {
    fflush(stdout);
    pid_t parent = getpid(), p = fork();
    if (p < 0) die("fork: %s", strerror(errno));
    if (p == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    return p;
}

static void end_child(pid_t p) {
    if (p > 0) {
        kill(p, SIGKILL);
        waitpid(p, NULL, 0);
    }
}

static void open_lines(void) {
    int all = !socketpair(AF_UNIX, SOCK_STREAM, 0, steer);
    for (int i = 0; i < N_LIFE; i++) all &= !socketpair(AF_UNIX, SOCK_STREAM, 0, line[i]);
    if (!all) die("no sockets");
}

static void close_lines(void) {
    for (int k = 0; k < 2; k++) {
        close(steer[k]);
        for (int i = 0; i < N_LIFE; i++) close(line[i][k]);
    }
}

/* Does what the sender asks until it ends; returns the receiver that is left. With until: when it has asked for that.
 */
static pid_t steer_sender(pid_t sender, const setup *s, int n_line, char until) {
    pid_t receiver = 0;
    int life = 0, status = 0;
    for (;;) {
        struct pollfd f = {.fd = steer[1], .events = POLLIN};
        char what = 0;
        if (poll(&f, 1, 20) > 0) hear(steer[1], &what, 1);
        if (what == 'N' && (receiver = fork_child()) == 0) receive(life, n_line, s);
        if (what == 'N') life++;
        if (what == 'K') end_child(receiver);
        if (what == 'K') receiver = 0;
        if (what == 'M') show_memory();
        if (what) tell(steer[1], &what, 1);
        if (what && what == until) return receiver;
        if (!what && waitpid(sender, &status, WNOHANG) == sender) break;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status)) printf("  the sender ended with status 0x%x\n", (unsigned)status);
    return receiver;
}

static void run(const char *name, void (*fn)(const setup *), const setup *s) {
    printf("%s\n", name);
    open_lines();
    pid_t sender = fork_child();
    if (sender == 0) {
        fn(s);
        fflush(stdout);
        _exit(0);
    }
    end_child(steer_sender(sender, s, 1, 0));
    close_lines();
}

static void call_never_end(const setup *s) {
    never_end(s);
}

static void kill_sender(const setup *s) {
    printf("kill-sender\n");
    open_lines();
    show_memory();
    pid_t sender = fork_child();
    if (sender == 0) call_never_end(s);
    pid_t receiver = steer_sender(sender, s, 2, 'R');
    usleep(300000);
    int64_t t = gy_clock_ns();
    end_child(sender);
    printf("  killed and reaped in %.1f ms; the receiver %s\n", (double)(gy_clock_ns() - t) * 1e-6,
           receiver > 0 && !kill(receiver, 0) && waitpid(receiver, NULL, WNOHANG) == 0 ? "lives" : "is GONE");
    show_memory();
    sender = fork_child();
    if (sender == 0) {
        write_again(s);
        fflush(stdout);
        _exit(0);
    }
    steer_sender(sender, s, 2, 0);
    end_child(receiver);
    printf("  after all ended:\n");
    show_memory();
    close_lines();
}

int main(int argc, char **argv) {
    const setup plain = {0}, errors = {.peer_errors = 1, .least_gbs = 100}, unbound = {.is_unbound = 1};
    const setup proved = {.least_gbs = 100}, refused = {.least_gbs = 10000};
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "put")) run(a, send_puts, &plain);
        if (!strcmp(a, "few")) run(a, send_few, &plain);
        if (!strcmp(a, "prove")) run(a, send_few, &proved);
        if (!strcmp(a, "refuse")) run(a, send_few, &refused);
        if (!strcmp(a, "pieces")) run(a, send_pieces, &plain);
        if (!strcmp(a, "descs")) run(a, send_descs, &plain);
        if (!strcmp(a, "ipc")) run(a, send_ipc, &plain);
        if (!strcmp(a, "errors")) run(a, send_puts, &errors);
        if (!strcmp(a, "unbound")) run(a, send_unbound, &unbound);
        if (!strcmp(a, "kill-receiver")) run(a, outlive_receivers, &proved);
        if (!strcmp(a, "kill-receiver-errors")) run(a, outlive_receivers, &errors);
        if (!strcmp(a, "kill-sender")) kill_sender(&plain);
        if (!strcmp(a, "memory")) show_memory();
    }
    return argc > 1 ? 0 : 2;
}
