/* Regions that lie on a device, without one: loopback and the made-up network with memory that the CPU cannot touch at
 * all, UCX with plain pages that it is to reach by puts alone. Two ends in one thread, polled in turns; region 0 is the
 * host's, region 1 the device's.
 */
#include "base_test.h"

#include "base/mem.h"
#include "pd/xfer_int.h"
#include "pd/xfer_mock.h"
#include "support/fake_device.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REGION = 1 << 20, N_OP = 64, N_COPY = 4, STRIPE = REGION / N_OP };

typedef struct flavour {
    gy_xfer_kind kind;
    int is_guarded;
    gy_mock_net *net;
    double least_gbs;
} flavour;

typedef struct side {
    gy_xfer *x;
    fake_device f;
    unsigned char *host;
    void *dev;
    int n_done, n_fail, n_note;
    void (*check)(struct side *s, uint32_t note);
    void *arg;
} side;

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    side *s = user;
    (void)op;
    s->n_done++;
    s->n_fail += st < 0;
}

static void on_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    side *s = user;
    uint32_t v;
    (void)epoch;
    assert_int_equal(len, sizeof v);
    memcpy(&v, bytes, sizeof v);
    s->n_note++;
    if (s->check) s->check(s, v);
}

static void open_side(side *s, const flavour *f, uint64_t epoch) {
    gy_err err = {0};
    int32_t region;
    void *mem;
    memset(s, 0, sizeof *s);
    fake_device_open(&s->f, f->is_guarded);
    gy_xfer_opts o = {.kind = f->kind,
                      .device = &s->f.dev,
                      .piece_bytes = 3000, /* several puts of most copies, the last one short */
                      .mock = f->net,
                      .least_gbs = f->least_gbs,
                      .epoch = epoch,
                      .user = s,
                      .on_done = on_done,
                      .on_note = on_note};
    gy_xfer_limits_default(&o.limits);
    o.limits.chunk_bytes = o.limits.inflight_bytes = REGION;
    if (gy_xfer_open(&o, &err, &s->x) < 0) fail_msg("%s", err.msg);
    assert_true(s->f.n_bind > 0);
    if (gy_xfer_region_alloc(s->x, REGION, &err, &region, &mem) < 0) fail_msg("%s", err.msg);
    s->host = mem;
    s->dev = s->f.dev.alloc(&s->f, REGION);
    assert_int_equal(gy_xfer_region_map(s->x, NULL, REGION, &err, &region), GY_E_ARG);
    if (gy_xfer_region_map(s->x, s->dev, REGION, &err, &region) < 0) fail_msg("%s", err.msg);
    assert_int_equal(region, 1);
}

static void close_side(side *s) {
    gy_xfer_close(s->x);
    s->f.dev.free(&s->f, s->dev);
    fake_device_close(&s->f);
}

static gy_xfer_peer *join(side *from, side *to) {
    static char blob[GY_XFER_MAX_BLOB];
    size_t len;
    gy_err err = {0};
    gy_xfer_peer *p = NULL;
    if (gy_xfer_export(to->x, blob, sizeof blob, &len, &err) < 0) fail_msg("%s", err.msg);
    if (gy_xfer_import(from->x, blob, len, &err, &p) < 0) fail_msg("%s", err.msg);
    assert_int_equal(gy_xfer_peer_region_bytes(p, 1), REGION);
    return p;
}

static void turn(const flavour *f, side *a, side *b) {
    if (f->net) gy_mock_net_step(f->net);
    gy_xfer_poll(a->x);
    gy_xfer_poll(b->x);
}

static uint64_t rng = 1;
static uint32_t below(uint32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

static void get(side *s, void *out, const void *dev, size_t bytes) {
    assert_int_equal(s->f.dev.copy(&s->f, out, dev, bytes, NULL), GY_OK);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

typedef struct job {
    gy_xfer_op op;
    gy_xfer_desc d[N_COPY];
    uint32_t note;
} job;

typedef struct scene {
    job jobs[N_OP];
    unsigned char src[2][REGION]; /* what the writer's regions hold */
    unsigned char there[REGION];
} scene;

/* Host to host and device to device, in one op; each op has a stripe of its own. */
static void fill_job(job *j, uint32_t k) {
    uint32_t n = below(N_COPY + 1), at = k * STRIPE;
    j->note = k;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = 1 + below(STRIPE / N_COPY - 1);
        int32_t region = (int32_t)below(2);
        j->d[i] = (gy_xfer_desc){.src_region = region,
                                 .dst_region = region,
                                 .src_off = below(REGION - bytes),
                                 .dst_off = at,
                                 .bytes = bytes};
        at += bytes;
    }
    j->op = (gy_xfer_op){.desc = j->d, .n_desc = (int32_t)n, .note = &j->note, .n_note = sizeof j->note};
}

static void check_stripe(side *s, uint32_t k) {
    scene *sc = s->arg;
    const job *j = &sc->jobs[k];
    for (int32_t i = 0; i < j->op.n_desc; i++) {
        const gy_xfer_desc *d = &j->d[i];
        const void *at = d->dst_region ? sc->there : s->host + d->dst_off;
        if (d->dst_region) get(s, sc->there, (char *)s->dev + d->dst_off, d->bytes);
        assert_memory_equal(at, sc->src[d->src_region] + d->src_off, d->bytes);
    }
}

static void copies(const flavour *f) {
    side a, b;
    scene *sc = calloc(1, sizeof *sc);
    assert_non_null(sc);
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    b.check = check_stripe;
    b.arg = sc;
    for (size_t i = 0; i < 2 * REGION; i++) sc->src[i / REGION][i % REGION] = (unsigned char)below(256);
    memcpy(a.host, sc->src[0], REGION);
    assert_int_equal(a.f.dev.copy(&a.f, a.dev, sc->src[1], REGION, NULL), GY_OK);
    gy_xfer_peer *p = join(&a, &b);
    for (uint32_t k = 0; k < N_OP; k++) {
        gy_err err = {0};
        fill_job(&sc->jobs[k], k);
        if (gy_xfer_post(p, &sc->jobs[k].op, &err) != GY_OK) fail_msg("%s", err.msg);
        if (below(3) == 0) turn(f, &a, &b);
    }
    for (int i = 0; (a.n_done < N_OP || b.n_note < N_OP) && i < 10000000; i++) turn(f, &a, &b);
    assert_int_equal(a.n_done, N_OP);
    assert_int_equal(a.n_fail, 0);
    assert_int_equal(b.n_note, N_OP);
    for (uint32_t k = 0; k < N_OP; k++) check_stripe(&b, k); /* nothing wrote over it later */
    close_side(&a);
    close_side(&b);
    free(sc);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(const flavour *f) {
    side a, b;
    gy_err err = {0};
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    gy_xfer_peer *p = join(&a, &b);
    for (int32_t from = 0; from < 2; from++) {
        gy_xfer_desc d = {.src_region = from, .dst_region = 1 - from, .bytes = 64};
        gy_xfer_op op = {.desc = &d, .n_desc = 1};
        assert_int_equal(gy_xfer_post(p, &op, &err), GY_E_ARG);
        assert_non_null(strstr(err.msg, "lies on a device"));
    }
    gy_xfer_desc d = {.src_region = 1, .dst_region = 1, .dst_off = REGION - 63, .bytes = 64};
    gy_xfer_op op = {.desc = &d, .n_desc = 1};
    assert_int_equal(gy_xfer_post(p, &op, &err), GY_E_ARG);
    int32_t region;
    assert_int_equal(gy_xfer_region_map(b.x, b.dev, REGION, &err, &region), GY_E_ARG); /* exported already */
    close_side(&a);
    close_side(&b);
}

static void no_device(void **state) {
    (void)state;
    gy_xfer *x = NULL;
    gy_err err = {0};
    int32_t region;
    int here;
    fake_device f;
    fake_device_open(&f, 1);
    gy_xfer_opts o = {.kind = GY_XFER_LOOPBACK};
    gy_xfer_limits_default(&o.limits);
    assert_int_equal(gy_xfer_open(&o, &err, &x), GY_OK);
    assert_int_equal(gy_xfer_bind(x, &err), GY_OK);
    assert_int_equal(gy_xfer_region_map(x, &here, sizeof here, &err, &region), GY_E_ARG);
    gy_xfer_close(x);
    o = (gy_xfer_opts){.kind = GY_XFER_UCX, .across_hosts = 1, .devices = "lo", .device = &f.dev};
    gy_xfer_limits_default(&o.limits);
    assert_int_equal(gy_xfer_open(&o, &err, &x), GY_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "inside a host"));
    fake_device_close(&f);
}

/* A peer that dies and comes back, again and again: what its memory was mapped by is let go of each time. */
static void again(const flavour *f) {
    side a;
    open_side(&a, f, 1);
    for (int life = 0; life < 5; life++) {
        side b;
        open_side(&b, f, (uint64_t)(2 + life));
        gy_xfer_peer *p = join(&a, &b);
        unsigned char mark[4096], found[4096];
        memset(mark, 1 + life, sizeof mark);
        assert_int_equal(a.f.dev.copy(&a.f, a.dev, mark, sizeof mark, NULL), GY_OK);
        gy_xfer_desc d = {.src_region = 1, .dst_region = 1, .bytes = sizeof mark};
        gy_xfer_op op = {.desc = &d, .n_desc = 1, .note = &life, .n_note = sizeof life};
        assert_int_equal(gy_xfer_post(p, &op, NULL), GY_OK);
        for (int i = 0; !b.n_note && i < 10000000; i++) turn(f, &a, &b);
        get(&b, found, b.dev, sizeof found);
        assert_memory_equal(found, mark, sizeof mark);
        gy_xfer_peer_drop(p);
        for (int i = 0; i < 100; i++) turn(f, &a, &b);
        close_side(&b);
    }
    assert_int_equal(a.n_fail, 0);
    close_side(&a);
}

/* ---- lanes that are proved --------------------------------------------------------------------------------------- */

static void prove_loopback(void **state) {
    (void)state;
    static const struct {
        double least;
        int spoils;
        gy_status st;
        const char *why; /* NULL: taken */
    } cases[] = {{0.001, 0, GY_OK, NULL},
                 {1e6, 0, GY_E_UNSUPPORTED, "expected 1000000"},
                 {0.001, 1, GY_E_PEER, "other bytes arrived"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const flavour f = {.kind = GY_XFER_LOOPBACK, .is_guarded = 1, .least_gbs = cases[i].least};
        static char blob[GY_XFER_MAX_BLOB];
        side a, b;
        size_t len;
        gy_err err = {0};
        gy_xfer_peer *p = NULL;
        open_side(&a, &f, 1);
        open_side(&b, &f, 2);
        a.f.spoils = cases[i].spoils;
        assert_int_equal(gy_xfer_export(a.x, blob, sizeof blob, &len, &err), GY_OK);
        assert_int_equal(gy_xfer_export(b.x, blob, sizeof blob, &len, &err), GY_OK);
        assert_int_equal(gy_xfer_import(a.x, blob, len, &err, &p), cases[i].st);
        if (cases[i].why)
            assert_non_null(strstr(err.msg, cases[i].why));
        else
            assert_true(gy_xfer_peer_gbs(p) >= cases[i].least);
        gy_xfer_poll(a.x);
        assert_int_equal(a.n_done, 0);
        close_side(&a);
        close_side(&b);
    }
}

/* What is reached is not who was asked for. */
static void prove_tag(void **state) {
    (void)state;
    static const flavour f = {.kind = GY_XFER_LOOPBACK, .is_guarded = 1, .least_gbs = 0.001};
    static char blob[GY_XFER_MAX_BLOB];
    side a, b;
    size_t len;
    gy_err err = {0};
    gy_xfer_peer *p = NULL;
    open_side(&a, &f, 1);
    open_side(&b, &f, 2);
    assert_int_equal(gy_xfer_export(a.x, blob, sizeof blob, &len, &err), GY_OK);
    assert_int_equal(gy_xfer_export(b.x, blob, sizeof blob, &len, &err), GY_OK);
    b.x->o.epoch = 3; /* the next life's, whose memory it is not */
    assert_int_equal(gy_xfer_import(a.x, blob, len, &err, &p), GY_E_PEER);
    assert_non_null(strstr(err.msg, "not the new peer's"));
    b.x->o.epoch = 2;
    assert_int_equal(gy_xfer_import(a.x, blob, len, &err, &p), GY_OK);
    close_side(&a);
    close_side(&b);
}

/* The receiver is a process that knows nothing of it. */
static void prove_ucx(void **state) {
    (void)state;
    static char blob[GY_XFER_MAX_BLOB];
    const flavour f = {.kind = GY_XFER_UCX, .least_gbs = 1e-6};
    side a;
    gy_err err = {0};
    gy_xfer_peer *p = NULL;
    size_t len;
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    if (child == 0) {
        side b;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        open_side(&b, &f, 2);
        if (gy_xfer_export(b.x, blob, sizeof blob, &len, &err) < 0) _exit(1);
        if (write(fd[1], &len, sizeof len) != sizeof len || write(fd[1], blob, len) != (ssize_t)len) _exit(1);
        for (;;) gy_xfer_poll(b.x);
    }
    close(fd[1]);
    open_side(&a, &f, 1);
    assert_int_equal(gy_xfer_export(a.x, blob, sizeof blob, &len, &err), GY_OK);
    assert_int_equal(read(fd[0], &len, sizeof len), sizeof len);
    assert_int_equal(read(fd[0], blob, len), len); /* a pipe holds more than that */
    if (gy_xfer_import(a.x, blob, len, &err, &p) < 0) fail_msg("%s", err.msg);
    assert_true(gy_xfer_peer_gbs(p) > 0);
    close_side(&a);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(fd[0]);
}

/* ---- a dead receiver whose queue is full ------------------------------------------------------------------------- */

enum { N_WAIT = 600, MAX_TURN = 100000000 }; /* notes: more than a queue holds, fewer than there are slots */

typedef struct receiver {
    pid_t pid;
    int fd;
} receiver;

static const flavour plain = {.kind = GY_XFER_UCX};

static _Noreturn void receive(uint64_t epoch, int fd) {
    static char blob[GY_XFER_MAX_BLOB];
    static side b;
    size_t len;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_side(&b, &plain, epoch);
    if (gy_xfer_export(b.x, blob, sizeof blob, &len, NULL) < 0) _exit(1);
    if (write(fd, &len, sizeof len) != sizeof len || write(fd, blob, len) != (ssize_t)len) _exit(1);
    for (;;) gy_xfer_poll(b.x);
}

static receiver begin_receiver(uint64_t epoch) {
    int fd[2];
    if (pipe(fd) < 0) _exit(2);
    receiver r = {.pid = fork(), .fd = fd[0]};
    if (r.pid == 0) receive(epoch, fd[1]);
    close(fd[1]);
    return r;
}

static gy_status meet(side *a, const receiver *r, gy_err *err, gy_xfer_peer **out) {
    static char blob[GY_XFER_MAX_BLOB];
    size_t len;
    gy_status st;
    if (read(r->fd, &len, sizeof len) != sizeof len || read(r->fd, blob, len) != (ssize_t)len) return GY_E_IO;
    while ((st = gy_xfer_import(a->x, blob, len, err, out)) == GY_AGAIN) gy_xfer_poll(a->x);
    return st;
}

static int is_written(side *a, gy_xfer_peer *p) {
    uint32_t note = 7;
    gy_xfer_desc d = {.src_region = 1, .dst_region = 1, .bytes = 5000};
    gy_xfer_op op = {.desc = &d, .n_desc = 1, .note = &note, .n_note = sizeof note};
    int before = a->n_done;
    if (gy_xfer_post(p, &op, NULL) != GY_OK) return 0;
    for (int i = 0; a->n_done == before && i < MAX_TURN; i++) gy_xfer_poll(a->x);
    return a->n_done == before + 1 && op.status == GY_OK;
}

static int fill_queue(side *a, gy_xfer_peer *p) {
    static gy_xfer_op ops[N_WAIT];
    static const uint32_t note = 7;
    int before = a->n_done;
    for (int i = 0; i < N_WAIT; i++) {
        ops[i] = (gy_xfer_op){.note = &note, .n_note = sizeof note};
        if (gy_xfer_post(p, &ops[i], NULL) != GY_OK) return 0;
        gy_xfer_poll(a->x);
    }
    return a->n_done > before && a->n_done < before + N_WAIT;
}

/* NULL: all is as it should be. No assertion in here: cmocka would go on with the next test in this process. */
static const char *outlive(const receiver *r, gy_err *err) {
    static side a;
    gy_xfer_peer *p = NULL;
    open_side(&a, &plain, 1);
    if (meet(&a, &r[0], err, &p) != GY_OK) return "the first was not met";
    if (!is_written(&a, p)) return "the first was not written to";
    kill(r[0].pid, SIGSTOP);
    if (!fill_queue(&a, p)) return "the queue is not full";
    kill(r[0].pid, SIGKILL);
    waitpid(r[0].pid, NULL, 0);
    gy_xfer_peer_drop(p);
    gy_xfer_poll(a.x); /* what waited has failed */
    if (meet(&a, &r[1], err, &p) != GY_OK) return "the second was not met";
    if (!is_written(&a, p)) return "the second was not written to";
    kill(r[1].pid, SIGKILL);
    waitpid(r[1].pid, NULL, 0);
    return NULL;
}

/* A receiver stops, is told more than it has room for, and dies: its device memory must not stay mapped because nobody
 * empties its queue any more. In a process of its own, whose UCX keeps what waits for the dead one. */
static void full_queue(void **state) {
    int status;
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        gy_err err = {0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const receiver r[2] = {begin_receiver(2), begin_receiver(3)};
        const char *what = outlive(r, &err);
        if (what) fprintf(stderr, "full queue: %s: %s\n", what, err.msg);
        _exit(what != NULL);
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- what is run ------------------------------------------------------------------------------------------------- */

static const flavour loopback = {.kind = GY_XFER_LOOPBACK, .is_guarded = 1}, ucx = {.kind = GY_XFER_UCX};

static void test_loopback(void **state) {
    (void)state;
    copies(&loopback);
    refuse(&loopback);
    again(&loopback);
}

static void test_ucx(void **state) {
    (void)state;
    copies(&ucx);
    refuse(&ucx);
    again(&ucx);
}

static void test_mock(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const gy_mock_opts o = {.seed = seed, .latency_ns = 1000, .jitter_ns = 5000};
        gy_mock_net *net = NULL;
        assert_int_equal(gy_mock_net_create(&o, &net), GY_OK);
        const flavour f = {.kind = GY_XFER_MOCK, .is_guarded = 1, .net = net};
        copies(&f);
        refuse(&f);
        gy_mock_net_destroy(net);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loopback),  cmocka_unit_test(test_mock),
                                       cmocka_unit_test(prove_loopback), cmocka_unit_test(prove_tag),
                                       cmocka_unit_test(full_queue),     cmocka_unit_test(prove_ucx),
                                       cmocka_unit_test(test_ucx),       cmocka_unit_test(no_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
