/* Moving bytes: what every transport must do (loopback, UCX over shared memory, UCX over tcp by messages), then what
 * the made-up network does to an op. Two ends in one thread, polled in turns.
 */
#include "base_test.h"

#include "base/mem.h"
#include "pd/stream.h"
#include "pd/xfer.h"
#include "pd/xfer_mock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REGION = 1 << 20, MAX_SEEN = 4096 };

typedef struct side {
    gy_xfer *x;
    unsigned char *mem[2];
    int n_done, n_fail, n_note;
    gy_status last;
    uint64_t from[MAX_SEEN];
    uint32_t note[MAX_SEEN];
    void (*check)(struct side *s, uint32_t note); /* at the moment a note arrives */
    void *arg;
} side;

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    side *s = user;
    (void)op;
    s->n_done++;
    s->n_fail += st < 0;
    s->last = st;
}

static void on_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    side *s = user;
    uint32_t v;
    assert_int_equal(len, sizeof v);
    memcpy(&v, bytes, sizeof v);
    assert_true(s->n_note < MAX_SEEN);
    s->from[s->n_note] = epoch;
    s->note[s->n_note++] = v;
    if (s->check) s->check(s, v);
}

typedef struct flavour {
    gy_xfer_kind kind;
    int across;
    gy_mock_net *net;
    size_t inflight; /* 0: a region */
} flavour;

static void open_side(side *s, const flavour *f, uint64_t epoch) {
    gy_err err = {0};
    gy_xfer_opts o = {.kind = f->kind,
                      .across_hosts = f->across,
                      .devices = f->across ? "lo" : NULL,
                      .mock = f->net,
                      .epoch = epoch,
                      .user = s,
                      .on_done = on_done,
                      .on_note = on_note};
    gy_xfer_limits_default(&o.limits);
    o.limits.inflight_bytes = f->inflight ? f->inflight : REGION;
    o.limits.chunk_bytes = o.limits.inflight_bytes;
    *s = (side){0};
    if (gy_xfer_open(&o, &err, &s->x) < 0) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++) {
        int32_t region;
        void *mem;
        if (gy_xfer_region_alloc(s->x, REGION, &err, &region, &mem) < 0) fail_msg("%s", err.msg);
        assert_int_equal(region, i);
        s->mem[i] = mem;
    }
}

static gy_xfer_peer *join(side *from, side *to) {
    static char blob[GY_XFER_MAX_BLOB];
    size_t len;
    gy_err err = {0};
    gy_xfer_peer *p = NULL;
    if (gy_xfer_export(to->x, blob, sizeof blob, &len, &err) < 0) fail_msg("%s", err.msg);
    if (gy_xfer_import(from->x, blob, len, &err, &p) < 0) fail_msg("%s", err.msg);
    assert_int_equal(gy_xfer_peer_region_bytes(p, 1), REGION);
    assert_int_equal(gy_xfer_peer_region_bytes(p, 2), 0);
    assert_int_equal(gy_xfer_peer_region_bytes(p, -1), 0);
    return p;
}

static void turn(const flavour *f, side *a, side *b) {
    if (f->net) gy_mock_net_step(f->net);
    if (a) gy_xfer_poll(a->x);
    if (b) gy_xfer_poll(b->x);
}

static uint64_t rng;
static uint32_t below(uint32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

/* ---- random copies ------------------------------------------------------------------------------------------------
 */

enum { N_OP = 300, N_COPY = 8 };

typedef struct job {
    gy_xfer_op op;
    gy_xfer_desc d[N_COPY];
    uint32_t note;
} job;

typedef struct scene {
    job *jobs;
    unsigned char *want[2]; /* [REGION] of the receiver once job k is in */
} scene;

/* Each op writes a stripe of its own, so that any order gives the same end. */
static void fill_job(job *j, uint32_t k) {
    uint32_t stripe = REGION / N_OP, n = below(N_COPY + 1), at = k * stripe;
    j->note = k;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = 1 + below(stripe / N_COPY - 1);
        j->d[i] = (gy_xfer_desc){.src_region = (int32_t)below(2),
                                 .dst_region = (int32_t)below(2),
                                 .src_off = below(REGION - bytes),
                                 .dst_off = at,
                                 .bytes = bytes};
        at += bytes;
    }
    j->op = (gy_xfer_op){.desc = j->d, .n_desc = (int32_t)n, .note = &j->note, .n_note = sizeof j->note};
}

/* All bytes of op k lie there when its note is read. */
static void check_stripe(side *s, uint32_t k) {
    const scene *sc = s->arg;
    const job *j = &sc->jobs[k];
    for (int32_t i = 0; i < j->op.n_desc; i++) {
        const gy_xfer_desc *d = &j->d[i];
        assert_memory_equal(s->mem[d->dst_region] + d->dst_off, sc->want[d->dst_region] + d->dst_off, d->bytes);
    }
}

static void random_copies(const flavour *f, uint64_t seed) {
    side a, b;
    scene sc = {.jobs = calloc(N_OP, sizeof(job))};
    rng = seed * 2 + 1;
    open_side(&a, f, 11);
    open_side(&b, f, 22);
    gy_xfer_peer *p = join(&a, &b);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < REGION; i++) a.mem[r][i] = (unsigned char)below(256);
        sc.want[r] = calloc(1, REGION);
    }
    for (uint32_t k = 0; k < N_OP; k++) {
        fill_job(&sc.jobs[k], k);
        for (int32_t i = 0; i < sc.jobs[k].op.n_desc; i++) {
            const gy_xfer_desc *d = &sc.jobs[k].d[i];
            memcpy(sc.want[d->dst_region] + d->dst_off, a.mem[d->src_region] + d->src_off, d->bytes);
        }
    }
    b.check = check_stripe;
    b.arg = &sc;
    size_t bytes = 0;
    for (uint32_t k = 0; k < N_OP;) {
        gy_err err = {0};
        gy_status st = gy_xfer_post(p, &sc.jobs[k].op, &err);
        if (st < 0) fail_msg("%s", err.msg);
        if (st == GY_OK) bytes += sc.jobs[k++].op.bytes;
        if (st == GY_AGAIN || below(4) == 0) turn(f, &a, &b);
    }
    for (long i = 0; (a.n_done < N_OP || b.n_note < N_OP) && i < 5000000; i++) turn(f, &a, &b);
    while (f->net && gy_mock_net_n_event(f->net)) turn(f, &a, &b);
    assert_int_equal(a.n_done, N_OP);
    assert_int_equal(a.n_fail, 0);
    for (int r = 0; r < 2; r++) assert_memory_equal(b.mem[r], sc.want[r], REGION);
    int seen[N_OP] = {0};
    for (int i = 0; i < b.n_note; i++) {
        assert_int_equal(b.from[i], 11);
        seen[b.note[i]]++;
    }
    for (int k = 0; k < N_OP; k++) assert_in_range(seen[k], 1, f->net ? 100 : 1);
    gy_xfer_stats st;
    gy_xfer_get_stats(a.x, &st);
    assert_int_equal(st.n_op, N_OP);
    assert_int_equal(st.bytes, bytes);
    assert_int_equal(st.inflight_bytes, 0);
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
    for (int r = 0; r < 2; r++) free(sc.want[r]);
    free(sc.jobs);
}

static const flavour loopback = {.kind = GY_XFER_LOOPBACK}, shm = {.kind = GY_XFER_UCX},
                     tcp = {.kind = GY_XFER_UCX, .across = 1};

static void test_copies_loopback(void **state) {
    (void)state;
    random_copies(&loopback, 1);
}
static void test_copies_shm(void **state) {
    (void)state;
    random_copies(&shm, 2);
}
static void test_copies_tcp(void **state) {
    (void)state;
    random_copies(&tcp, 3);
}

static void test_copies_mock(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        flavour f = {.kind = GY_XFER_MOCK};
        gy_mock_opts o = {
            .seed = seed, .latency_ns = 1000, .jitter_ns = (int64_t)seed * 900, .p_twice = 0.2, .p_lost = 0.2};
        assert_int_equal(gy_mock_net_create(&o, &f.net), GY_OK);
        random_copies(&f, seed);
        gy_mock_net_destroy(f.net);
    }
}

/* ---- the contract -------------------------------------------------------------------------------------------------
 */

static void large_copy(const flavour *f) {
    side a, b;
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    gy_xfer_peer *p = join(&a, &b);
    for (int i = 0; i < REGION; i++) a.mem[0][i] = (unsigned char)(i * 7 + i / 256);
    gy_xfer_desc d = {.bytes = REGION};
    gy_xfer_op op = {.desc = &d, .n_desc = 1};
    assert_int_equal(gy_xfer_post(p, &op, NULL), GY_OK);
    gy_xfer_op second = op;
    assert_int_equal(gy_xfer_post(p, &second, NULL), GY_AGAIN); /* the budget is one region */
    for (long i = 0; !a.n_done && i < 1000000; i++) turn(f, &a, &b);
    assert_int_equal(a.n_done, 1);
    assert_int_equal(a.last, GY_OK);
    assert_memory_equal(a.mem[0], b.mem[0], REGION);
    assert_int_equal(b.n_note, 0);
    assert_true(op.done_ns >= op.post_ns);
    assert_int_equal(gy_xfer_post(p, &second, NULL), GY_OK);
    /* UCX cannot take back what a peer that never progresses must answer. */
    for (long i = 0; f->kind == GY_XFER_UCX && a.n_done < 2 && i < 1000000; i++) turn(f, &a, &b);
    gy_xfer_close(a.x); /* fails what is under way, once */
    assert_int_equal(a.n_done, 2);
    gy_xfer_close(b.x);
}

static void test_large(void **state) {
    (void)state;
    large_copy(&loopback);
    large_copy(&shm);
    large_copy(&tcp);
}

static void refused(gy_xfer_peer *p, gy_xfer_desc d, gy_status want, const char *msg) {
    gy_err err = {0};
    gy_xfer_op op = {.desc = &d, .n_desc = 1};
    assert_int_equal(gy_xfer_post(p, &op, &err), want);
    assert_string_equal(err.msg, msg);
}

static void test_ranges(void **state) {
    (void)state;
    side a, b;
    open_side(&a, &loopback, 1);
    open_side(&b, &loopback, 2);
    gy_xfer_peer *p = join(&a, &b);
    refused(p, (gy_xfer_desc){.dst_off = REGION, .bytes = 1}, GY_E_ARG,
            "transfer: copy 0 writes region 0 at 1048576, 1 bytes: outside of it");
    refused(p, (gy_xfer_desc){.src_off = SIZE_MAX, .bytes = 2}, GY_E_ARG,
            "transfer: copy 0 reads region 0 at 18446744073709551615, 2 bytes: outside of it");
    refused(p, (gy_xfer_desc){.src_region = 2, .bytes = 1}, GY_E_ARG,
            "transfer: copy 0 reads region 2 at 0, 1 bytes: outside of it");
    refused(p, (gy_xfer_desc){.dst_region = -1, .bytes = 1}, GY_E_ARG,
            "transfer: copy 0 writes region -1 at 0, 1 bytes: outside of it");
    gy_xfer_desc two[2] = {{.bytes = REGION}, {.bytes = 1}};
    gy_xfer_op op = {.desc = two, .n_desc = 2};
    gy_err err;
    assert_int_equal(gy_xfer_post(p, &op, &err), GY_E_LIMIT);
    assert_string_equal(err.msg, "transfer: found an op of 1048577 bytes, expected at most 1048576 (in flight)");
    char note[GY_XFER_MAX_NOTE + 1] = {0};
    op = (gy_xfer_op){.note = note, .n_note = sizeof note};
    assert_int_equal(gy_xfer_post(p, &op, &err), GY_E_LIMIT);
    int32_t region;
    void *mem;
    assert_int_equal(gy_xfer_region_alloc(b.x, 64, &err, &region, &mem), GY_E_ARG); /* exported already */
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
}

static void bad_blob(const flavour *f) {
    side a, b;
    char blob[GY_XFER_MAX_BLOB];
    size_t len;
    gy_err err;
    gy_xfer_peer *p = NULL;
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    assert_int_equal(gy_xfer_export(b.x, blob, 8, &len, &err), GY_E_ARG);
    assert_int_equal(gy_xfer_export(b.x, blob, sizeof blob, &len, &err), GY_OK);
    assert_int_equal(gy_xfer_import(a.x, blob, len - 1, &err, &p), GY_E_FORMAT);
    assert_int_equal(gy_xfer_import(a.x, blob, 3, &err, &p), GY_E_FORMAT);
    blob[0] ^= 1;
    assert_int_equal(gy_xfer_import(a.x, blob, len, &err, &p), GY_E_FORMAT);
    assert_null(p);
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
}

static void test_bad_blob(void **state) {
    (void)state;
    bad_blob(&loopback);
    bad_blob(&shm);
    bad_blob(&tcp);
}

/* A peer that is dropped: each op ends once, with GY_E_PEER; the other peer goes on. */
static void drop(const flavour *f) {
    side a, b, c;
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    open_side(&c, f, 3);
    gy_xfer_peer *pb = join(&a, &b), *pc = join(&a, &c);
    gy_xfer_desc d[3] = {{.bytes = 1000}, {.bytes = 1000}, {.bytes = 1000}};
    gy_xfer_op op[3];
    for (int i = 0; i < 3; i++) op[i] = (gy_xfer_op){.desc = &d[i], .n_desc = 1};
    a.mem[0][999] = 77;
    assert_int_equal(gy_xfer_post(pb, &op[0], NULL), GY_OK);
    assert_int_equal(gy_xfer_post(pc, &op[1], NULL), GY_OK);
    assert_int_equal(gy_xfer_post(pb, &op[2], NULL), GY_OK);
    gy_xfer_peer_drop(pb);
    for (long i = 0; a.n_done < 3 && i < 1000000; i++) {
        turn(f, &a, &c);
        gy_xfer_poll(b.x);
    }
    for (int i = 0; i < 100; i++) turn(f, &a, &c);
    assert_int_equal(a.n_done, 3);
    assert_int_equal(a.n_fail, 2);
    assert_int_equal(op[0].status, GY_E_PEER);
    assert_int_equal(op[1].status, GY_OK);
    assert_int_equal(op[2].status, GY_E_PEER);
    assert_int_equal(c.mem[0][999], 77);
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
    gy_xfer_close(c.x);
}

static void test_drop(void **state) {
    (void)state;
    flavour f = {.kind = GY_XFER_MOCK};
    gy_mock_opts o = {.seed = 5, .latency_ns = 1000, .jitter_ns = 5000};
    drop(&loopback);
    drop(&shm);
    drop(&tcp);
    assert_int_equal(gy_mock_net_create(&o, &f.net), GY_OK);
    drop(&f);
    gy_mock_net_destroy(f.net);
}

/* Bytes of a killed writer stop somewhere in the middle, and no note of it comes that was not under way. */
static void test_mock_kill(void **state) {
    (void)state;
    int n_partly = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        flavour f = {.kind = GY_XFER_MOCK};
        gy_mock_opts o = {.seed = seed, .latency_ns = 100, .jitter_ns = 10000};
        side a, b;
        gy_xfer_desc d[32];
        uint32_t note = 1;
        assert_int_equal(gy_mock_net_create(&o, &f.net), GY_OK);
        open_side(&a, &f, 1);
        open_side(&b, &f, 2);
        gy_xfer_peer *p = join(&a, &b);
        for (int i = 0; i < 32; i++) {
            d[i] = (gy_xfer_desc){.src_off = (size_t)i, .dst_off = (size_t)i, .bytes = 1};
            a.mem[0][i] = 1;
        }
        gy_xfer_op op = {.desc = d, .n_desc = 32, .note = &note, .n_note = sizeof note};
        assert_int_equal(gy_xfer_post(p, &op, NULL), GY_OK);
        for (uint64_t i = 0; i < seed % 40; i++) turn(&f, &a, &b);
        gy_mock_net_kill(f.net, a.x);
        while (gy_mock_net_n_event(f.net)) turn(&f, NULL, &b);
        int sum = 0;
        for (int i = 0; i < 32; i++) sum += b.mem[0][i];
        if (b.n_note) assert_int_equal(sum, 32);
        n_partly += sum > 0 && sum < 32;
        gy_xfer_close(a.x);
        gy_xfer_close(b.x);
        gy_mock_net_destroy(f.net);
    }
    assert_true(n_partly > 50);
}

/* A writer that lives and goes on: from the moment it is forbidden no byte and no note of it comes, while another one
 * is heard. */
enum { N_LATE = 64, LATE = REGION / N_LATE };

static void post_late(gy_xfer_peer *p, gy_xfer_op *op, gy_xfer_desc *d, uint32_t *note) {
    for (uint32_t i = 0; i < N_LATE; i++) {
        note[i] = i;
        d[i] = (gy_xfer_desc){.src_off = (size_t)i * LATE, .dst_off = (size_t)i * LATE, .bytes = LATE};
        op[i] = (gy_xfer_op){.desc = &d[i], .n_desc = 1, .note = &note[i], .n_note = sizeof note[i]};
        assert_int_equal(gy_xfer_post(p, &op[i], NULL), GY_OK);
    }
}

static int is_all(const unsigned char *mem, unsigned char c) {
    for (int i = 0; i < REGION; i++)
        if (mem[i] != c) return 0;
    return 1;
}

/* Returns whether bytes were under way. */
static int forbid(const flavour *f, int n_again) {
    side a, b, c;
    gy_xfer_op op[N_LATE], last;
    gy_xfer_desc d[N_LATE], one = {.src_region = 1, .dst_region = 1, .bytes = REGION};
    uint32_t note[N_LATE], hello = 7;
    gy_err err;
    open_side(&a, f, 1);
    open_side(&b, f, 2);
    open_side(&c, f, 3);
    gy_xfer_peer *ab = join(&a, &b), *cb = join(&c, &b);
    memset(a.mem[0], 1, REGION);
    memset(c.mem[1], 2, REGION);
    post_late(ab, op, d, note);
    for (long i = 0; !b.n_note && i < 1000000; i++) turn(f, &a, &b);
    assert_true(b.n_note > 0);
    for (int i = 0; i < n_again; i++) assert_int_equal(gy_xfer_forbid(b.x, 1, &err), GY_AGAIN);
    for (int i = 0; i < 2; i++) assert_int_equal(gy_xfer_forbid(b.x, 1, &err), GY_OK);
    int heard = b.n_note, under_way = a.n_done < N_LATE;
    memset(b.mem[0], 0xee, REGION);
    last = (gy_xfer_op){.desc = &one, .n_desc = 1, .note = &hello, .n_note = sizeof hello};
    assert_int_equal(gy_xfer_post(cb, &last, NULL), GY_OK);
    for (long i = 0; (!c.n_done || b.n_note == heard) && i < 1000000; i++) {
        turn(f, &a, &b);
        gy_xfer_poll(c.x);
    }
    for (int i = 0; i < 2000; i++) turn(f, &a, &b);
    assert_true(is_all(b.mem[0], 0xee));
    assert_true(is_all(b.mem[1], 2));
    assert_int_equal(b.n_note, heard + 1);
    assert_int_equal(b.from[heard], 3);
    gy_xfer_peer_drop(ab);
    for (int i = 0; i < 100; i++) turn(f, &a, &b);
    assert_int_equal(a.n_done, N_LATE); /* each ends, one way or the other */
    gy_xfer_close(a.x);
    gy_xfer_close(c.x);
    gy_xfer_close(b.x);
    return under_way;
}

static void test_forbid(void **state) {
    (void)state;
    flavour f = {.kind = GY_XFER_MOCK};
    gy_mock_opts o = {.seed = 5, .latency_ns = 1000, .jitter_ns = 9000, .n_forbid_again = 2};
    assert_true(forbid(&tcp, 0));
    assert_int_equal(gy_mock_net_create(&o, &f.net), GY_OK);
    assert_true(forbid(&f, 2));
    gy_mock_net_destroy(f.net);
}

/* Stores of a process can only be stopped with it: it is always GY_OK, and notes are not heard. So many that the list
 * grows; memory may be short. */
static void test_forbid_inside(void **state) {
    (void)state;
    static const flavour *const f[2] = {&loopback, &shm};
    gy_err err;
    for (int k = 0; k < 2; k++) {
        side a, b;
        uint32_t hello = 7;
        open_side(&a, f[k], 1000);
        open_side(&b, f[k], 2);
        gy_xfer_peer *p = join(&a, &b);
        gy_xfer_op op = {.note = &hello, .n_note = sizeof hello};
        gy_mem_fail_after(1);
        assert_int_equal(gy_xfer_forbid(b.x, 5, &err), GY_E_NOMEM);
        gy_mem_fail_after(0);
        for (uint64_t e = 900; e < 999; e++) assert_int_equal(gy_xfer_forbid(b.x, e, &err), GY_OK);
        assert_int_equal(gy_xfer_post(p, &op, NULL), GY_OK);
        for (long i = 0; (!a.n_done || !b.n_note) && i < 1000000; i++) turn(f[k], &a, &b);
        assert_int_equal(gy_xfer_forbid(b.x, 1000, &err), GY_OK);
        assert_int_equal(gy_xfer_post(p, &op, NULL), GY_OK);
        for (long i = 0; a.n_done < 2 && i < 1000000; i++) turn(f[k], &a, &b);
        for (int i = 0; i < 1000; i++) turn(f[k], &a, &b);
        assert_int_equal(b.n_note, 1);
        gy_xfer_close(a.x);
        gy_xfer_close(b.x);
    }
}

/* Pieces, budgets and descriptors cut an op at every place; what arrives is the same. Nothing is serialised by a budget
 * beyond what it says: as many ops are under way at once as it has room for. */
static void test_budget_is_used(void **state) {
    (void)state;
    static const size_t budget[] = {LATE, 3 * LATE, 16 * LATE, REGION};
    for (size_t k = 0; k < sizeof budget / sizeof budget[0]; k++) {
        flavour f = {.kind = GY_XFER_MOCK, .inflight = budget[k]};
        gy_mock_opts o = {.seed = k, .latency_ns = 1000};
        side a, b;
        gy_xfer_op op[N_LATE];
        gy_xfer_desc d = {.bytes = LATE};
        gy_xfer_stats st;
        int posted = 0, turns = 0, room = (int)(budget[k] / LATE);
        assert_int_equal(gy_mock_net_create(&o, &f.net), GY_OK);
        open_side(&a, &f, 1);
        open_side(&b, &f, 2);
        gy_xfer_peer *p = join(&a, &b);
        for (; a.n_done < N_LATE; turns++) {
            while (posted < N_LATE) {
                op[posted] = (gy_xfer_op){.desc = &d, .n_desc = 1};
                if (gy_xfer_post(p, &op[posted], NULL) == GY_AGAIN) break;
                posted++;
            }
            gy_xfer_get_stats(a.x, &st);
            int want = N_LATE - a.n_done < room ? N_LATE - a.n_done : room;
            assert_int_equal(st.inflight_bytes, (size_t)want * LATE);
            while (gy_mock_net_step(f.net)) {
            }
            gy_xfer_poll(a.x);
        }
        assert_int_equal(turns, (N_LATE + room - 1) / room); /* rounds of the network, each as full as it may be */
        gy_xfer_close(a.x);
        gy_xfer_close(b.x);
        gy_mock_net_destroy(f.net);
    }
}

/* Every alignment of both sides at every kind of length, and nothing beside it. */
static void test_stream(void **state) {
    static const size_t len[] = {0, 1, 63, 4096, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100003};
    unsigned char *a = malloc(1 << 18), *b = malloc(1 << 18);
    (void)state;
    for (int i = 0; i < 1 << 18; i++) a[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t k = 0; k < sizeof len / sizeof len[0]; k++)
        for (size_t to = 1; to < 66; to += 3) {
            size_t from = to * 5 % 67;
            memset(b, 0xee, 1 << 18);
            gy_stream_copy(b + 64 + to, a + from, len[k]);
            assert_memory_equal(b + 64 + to, a + from, len[k]);
            for (size_t i = 0; i < 64 + to; i++) assert_int_equal(b[i], 0xee);
            for (size_t i = 0; i < 200; i++) assert_int_equal(b[64 + to + len[k] + i], 0xee);
        }
    free(a);
    free(b);
}

static void test_limits(void **state) {
    (void)state;
    gy_xfer_limits l;
    gy_err err;
    gy_xfer_limits_default(&l);
    assert_int_equal(l.chunk_bytes, 256 << 20);
    assert_int_equal(l.inflight_bytes, (size_t)2 << 30);
    assert_int_equal(l.max_desc, 256);
    assert_int_equal(gy_xfer_limits_check(&l, &err), GY_OK);
    l.inflight_bytes = l.chunk_bytes - 1;
    assert_int_equal(gy_xfer_limits_check(&l, &err), GY_E_ARG);
    assert_string_equal(err.msg, "transfer in flight: found 268435455 bytes, expected at least one chunk of 268435456");
    l.chunk_bytes = 0;
    assert_int_equal(gy_xfer_limits_check(&l, &err), GY_E_ARG);
    gy_xfer_limits_default(&l);
    l.max_desc = 0;
    assert_int_equal(gy_xfer_limits_check(&l, &err), GY_E_ARG);
}

/* Modes and lanes: no switch. What the environment says of transports changes nothing. */
static void test_lanes(void **state) {
    (void)state;
    side a, b;
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "none_such", 1);
    open_side(&a, &shm, 1);
    open_side(&b, &shm, 2);
    gy_xfer_peer *p = join(&a, &b);
    assert_null(strstr(gy_xfer_lanes(p), "tcp"));
    assert_true(strstr(gy_xfer_lanes(p), "sysv") || strstr(gy_xfer_lanes(p), "posix") ||
                strstr(gy_xfer_lanes(p), "self"));
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
    open_side(&a, &tcp, 1);
    open_side(&b, &tcp, 2);
    p = join(&a, &b);
    printf("lanes: %s\n", gy_xfer_lanes(p));
    gy_xfer_close(a.x);
    gy_xfer_close(b.x);
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
    gy_err err;
    gy_xfer *x;
    gy_xfer_opts o = {.kind = GY_XFER_UCX, .across_hosts = 1};
    gy_xfer_limits_default(&o.limits);
    assert_int_equal(gy_xfer_open(&o, &err, &x), GY_E_ARG);
    assert_string_equal(err.msg, "transfer: across hosts the network devices must be named (eth0, mlx5_0:1, ...)");
}

static void test_no_memory(void **state) {
    (void)state;
    int n = 1;
    for (; n < 50; n++) {
        gy_xfer *x = NULL;
        gy_err err;
        gy_xfer_opts o = {.kind = GY_XFER_UCX, .across_hosts = 1, .devices = "lo"};
        gy_xfer_limits_default(&o.limits);
        gy_mem_fail_after(n);
        gy_status st = gy_xfer_open(&o, &err, &x);
        gy_mem_fail_after(0);
        if (st == GY_OK) {
            gy_xfer_close(x);
            break;
        }
        assert_int_equal(st, GY_E_NOMEM);
    }
    assert_in_range(n, 3, 49);
    gy_mem_stats m;
    gy_mem_get_stats(&m);
    assert_int_equal(m.live_bytes[GY_MEM_PD], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_copies_loopback),
        cmocka_unit_test(test_copies_mock),
        cmocka_unit_test(test_copies_shm),
        cmocka_unit_test(test_copies_tcp),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_bad_blob),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_forbid),
        cmocka_unit_test(test_forbid_inside),
        cmocka_unit_test(test_budget_is_used),
        cmocka_unit_test(test_mock_kill),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
