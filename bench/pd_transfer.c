/* Puts between two processes, beside memcpy of as much by the sender, in turns: what disturbs one disturbs the other.
 * Both walk through 256 MiB, so that small sizes do not stay in a cache either.
 */
#include "pd_ends.h"
#include "pd_parts.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY = 256 << 20, BATCH = 16 << 20, SMALL = 64, N_LATENCY = 500, SCATTER = 3 * 4096 + 64 };

static const size_t SIZES[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
enum { N_SIZE = sizeof SIZES / sizeof *SIZES };

/* ---- in the sender ---- */

typedef struct put_job {
    size_t bytes;
    int32_t batch, rounds, with_copy;
} put_job;

static void copy(unsigned char *const mem[2], size_t at, size_t bytes, int32_t n) {
    for (int32_t i = 0; i < n; i++, at += bytes) {
        memcpy(mem[1] + at, mem[0] + at, bytes);
        __asm__ volatile("" : : "r"(mem[1]) : "memory"); /* somebody reads it */
    }
}

/* Of a turn: a batch of puts, of copies in plain pages, of copies in huge ones, by the clock and by the processor. */
enum { STEPS = 3, WIDTH = 2 * STEPS };

static gy_status turn(pd_end *e, const put_job *j, size_t at, gy_err *err, int64_t ns[WIDTH]) {
    int64_t t[STEPS + 1], c[STEPS + 1];
    for (int k = 0; k <= STEPS; k++) {
        if (k == 1) GY_TRY(pd_stream(e, at, j->bytes, j->batch, err));
        if (k == 2 && j->with_copy) copy(e->plain, at, j->bytes, j->batch);
        if (k == 3 && j->with_copy) copy(e->huge, at, j->bytes, j->batch);
        t[k] = gy_clock_ns();
        c[k] = pd_cpu_ns();
    }
    for (int k = 0; k < STEPS; k++) {
        ns[k] = t[k + 1] - t[k];
        ns[STEPS + k] = c[k + 1] - c[k];
    }
    return GY_OK;
}

static gy_status time_puts(pd_end *e, const void *arg, int64_t *ns, int32_t *n_ns, gy_err *err) {
    const put_job *j = arg;
    const size_t all = j->bytes * (size_t)j->batch;
    size_t at = 0;
    GY_TRY(pd_forget(e, err));
    for (int32_t i = -1; i < j->rounds; i++) { /* the first one is written over: it finds cold tables */
        GY_TRY(turn(e, j, at, err, ns + (i < 0 ? 0 : i) * WIDTH));
        at = at + 2 * all <= e->bytes ? at + all : 0;
    }
    *n_ns = j->rounds * WIDTH;
    return pd_check(e, all, err);
}

typedef struct scatter_job {
    size_t bytes; /* of each */
    int32_t n, rounds;
} scatter_job;

/* An op of n copies, none beside the next. */
static gy_status time_scattered(pd_end *e, const void *arg, int64_t *ns, int32_t *n_ns, gy_err *err) {
    const scatter_job *j = arg;
    gy_xfer_desc d[256];
    for (int32_t i = 0; i < j->n; i++) {
        size_t at = (size_t)i * (j->bytes + SCATTER) / 64 * 64;
        d[i] = (gy_xfer_desc){.src_off = at, .dst_off = at, .bytes = j->bytes};
    }
    for (int32_t i = 0; i < j->rounds; i++) {
        int64_t t = gy_clock_ns();
        GY_TRY(pd_put(e, d, j->n, err));
        ns[(*n_ns)++] = gy_clock_ns() - t;
    }
    return GY_OK;
}

typedef struct latency_job {
    int32_t rounds, sleepy;
} latency_job;

/* Notes of earlier ops may still come. */
static gy_status settle(pd_end *e, gy_err *err, uint64_t *n_note) {
    int64_t at_ns;
    for (uint64_t n = 0, same = 0; same < 10; n = *n_note) {
        gy_xfer_poll(e->x);
        GY_TRY(pd_last_note(e, err, &at_ns, n_note));
        same = *n_note == n ? same + 1 : 0;
    }
    return GY_OK;
}

/* ns: until the sender knows, until the note is at the receiver; in turns. */
static gy_status time_latency(pd_end *e, const void *arg, int64_t *ns, int32_t *n_ns, gy_err *err) {
    const latency_job *j = arg;
    uint64_t want, n;
    int64_t at_ns;
    GY_TRY(pd_set_sleepy(e, j->sleepy, err));
    GY_TRY(settle(e, err, &want));
    for (int32_t i = 0; i < j->rounds; i++) {
        gy_xfer_desc d = {.bytes = SMALL};
        int64_t t = gy_clock_ns();
        GY_TRY(pd_put(e, &d, 1, err));
        ns[(*n_ns)++] = gy_clock_ns() - t;
        want++;
        do { /* the note may still be on its way */
            gy_xfer_poll(e->x);
            GY_TRY(pd_last_note(e, err, &at_ns, &n));
            if (gy_clock_ns() - t > 10000000000) return gy_err_set(err, GY_E_TIMEOUT, "a note did not arrive in 10 s");
        } while (n < want);
        ns[(*n_ns)++] = at_ns - t;
    }
    return pd_set_sleepy(e, 1, err);
}

/* ---- in the parent ---- */

static int32_t rounds_of(size_t bytes, size_t all, int32_t most) {
    size_t n = all / bytes;
    return n < 8 ? 8 : n > (size_t)most ? most : (int32_t)n;
}

static double gbs(size_t bytes, double us) {
    return (double)bytes * 1e-3 / us;
}

/* Of n groups of `width` times: the k-th of each. */
static void column(const int64_t *ns, int32_t n, int32_t width, int32_t k, int64_t *out) {
    for (int32_t i = 0; i < n; i++) out[i] = ns[i * width + k];
}

/* Processor time of the k-th step over that of the puts: the middle one. */
static double median_share(const int64_t *ns, int32_t n, int32_t k) {
    static int64_t r[PD_MAX_NS];
    for (int32_t i = 0; i < n; i++)
        r[i] = (int64_t)(1e9 * (double)ns[i * WIDTH + STEPS + k] / (double)ns[i * WIDTH + STEPS]);
    return pd_quantile_us(r, n, 0.5) * 1e-6;
}

typedef struct lanes {
    pd_ends *shm, *tcp;
} lanes;

typedef struct figures { /* GB/s: puts, memcpy in plain pages, in huge ones, puts over tcp */
    double median[4], best[4], share[2];
} figures;

static gy_status measure(const lanes *l, size_t bytes, gy_err *err, figures *f) {
    static int64_t ns[PD_MAX_NS], x[PD_MAX_NS];
    const int32_t batch = bytes < BATCH ? (int32_t)(BATCH / bytes) : 1;
    const size_t all = bytes * (size_t)batch;
    put_job j = {.bytes = bytes, .batch = batch, .rounds = rounds_of(all, (size_t)3 << 30, 100), .with_copy = 1};
    int32_t n;
    GY_TRY(pd_ends_do(l->shm, 0, time_puts, &j, sizeof j, err, ns, &n));
    for (int32_t k = 0; k < STEPS; k++) {
        column(ns, n / WIDTH, WIDTH, k, x);
        f->median[k] = gbs(all, pd_quantile_us(x, n / WIDTH, 0.5));
        f->best[k] = gbs(all, (double)x[0] * 1e-3);
    }
    for (int32_t k = 0; k < 2; k++) f->share[k] = median_share(ns, n / WIDTH, k + 1);
    j = (put_job){.bytes = bytes, .batch = batch, .rounds = rounds_of(all, (size_t)1 << 29, 100)};
    GY_TRY(pd_ends_do(l->tcp, 0, time_puts, &j, sizeof j, err, ns, &n));
    column(ns, n / WIDTH, WIDTH, 0, x);
    f->median[3] = gbs(all, pd_quantile_us(x, n / WIDTH, 0.5));
    f->best[3] = gbs(all, (double)x[0] * 1e-3);
    return GY_OK;
}

static gy_status one_size(const pd_bench *b, const lanes *l, size_t bytes, gy_err *err) {
    figures f;
    GY_TRY(measure(l, bytes, err, &f));
    if (b->json)
        printf("{\"what\":\"pd_put\",\"bytes\":%zu,\"shm_gbs\":%.3f,\"memcpy_gbs\":%.3f,\"share\":%.4f,"
               "\"memcpy_huge_gbs\":%.3f,\"share_huge\":%.4f,\"tcp_gbs\":%.3f,\"shm_best_gbs\":%.3f,"
               "\"memcpy_best_gbs\":%.3f,\"memcpy_huge_best_gbs\":%.3f}\n",
               bytes, f.median[0], f.median[1], f.share[0], f.median[2], f.share[1], f.median[3], f.best[0], f.best[1],
               f.best[2]);
    else
        printf("  %8zu KiB %9.2f %9.2f %8.1f %% %9.2f %8.1f %% %9.2f    %6.2f %6.2f %6.2f\n", bytes >> 10, f.median[0],
               f.median[1], 100 * f.share[0], f.median[2], 100 * f.share[1], f.median[3], f.best[0], f.best[1],
               f.best[2]);
    return GY_OK;
}

static gy_status sizes(const pd_bench *b, const lanes *l, gy_err *err) {
    if (!b->json)
        printf("\nputs of a size, GB/s: 16 MiB of them (or one), then memcpy of as much, in turns; medians; shares: "
               "processor time\n  %12s %9s %9s %10s %9s %10s %9s    %s\n  %12s %9s %9s %10s %9s %10s %9s    %s\n",
               "size", "shm", "memcpy", "share", "memcpy", "share", "tcp (lo)", "best of", "", "", "4K pages", "",
               "huge", "", "", "shm, memcpy, huge");
    for (int i = 0; i < N_SIZE; i++) GY_TRY(one_size(b, l, SIZES[i], err));
    return GY_OK;
}

static gy_status scattered(pd_ends *p, size_t bytes, int32_t n_desc, gy_err *err, double *us) {
    static int64_t ns[PD_MAX_NS];
    scatter_job j = {.bytes = bytes, .n = n_desc, .rounds = n_desc > 64 ? 300 : 1000};
    int32_t n;
    GY_TRY(pd_ends_do(p, 0, time_scattered, &j, sizeof j, err, ns, &n));
    *us = pd_quantile_us(ns, n, 0.1); /* the middle ones are with and without waking the receiver, by luck */
    return GY_OK;
}

static gy_status descriptors(const pd_bench *b, const lanes *l, gy_err *err) {
    static const int32_t counts[] = {1, 4, 16, 64, 256};
    enum { N = sizeof counts / sizeof *counts };
    double us[2][2][N]; /* lane, bytes */
    static const size_t bytes[] = {SMALL, 16 << 10};
    if (!b->json)
        printf("\nan op of so many copies, us (fastest tenth)\n  %8s %14s %14s %14s %14s\n", "copies", "shm, 64 B",
               "shm, 16 KiB", "tcp, 64 B", "tcp, 16 KiB");
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            GY_TRY(scattered(l->shm, bytes[k], counts[i], err, &us[0][k][i]));
            GY_TRY(scattered(l->tcp, bytes[k], counts[i], err, &us[1][k][i]));
        }
        if (b->json)
            printf("{\"what\":\"pd_copies\",\"copies\":%d,\"shm_64b_us\":%.3f,\"shm_16k_us\":%.3f,\"tcp_64b_us\":%.3f,"
                   "\"tcp_16k_us\":%.3f}\n",
                   counts[i], us[0][0][i], us[0][1][i], us[1][0][i], us[1][1][i]);
        else
            printf("  %8d %14.2f %14.2f %14.2f %14.2f\n", counts[i], us[0][0][i], us[0][1][i], us[1][0][i],
                   us[1][1][i]);
    }
    const double more = counts[N - 1] - counts[0];
    const double shm_ns = 1e3 * (us[0][0][N - 1] - us[0][0][0]) / more,
                 tcp_ns = 1e3 * (us[1][0][N - 1] - us[1][0][0]) / more;
    if (b->json)
        printf("{\"what\":\"pd_copy_cost\",\"shm_ns\":%.1f,\"tcp_ns\":%.1f}\n", shm_ns, tcp_ns);
    else
        printf("  each further copy of 64 bytes: %.0f ns over shm, %.0f ns over tcp\n", shm_ns, tcp_ns);
    return GY_OK;
}

static gy_status latency(const pd_bench *b, pd_ends *p, const char *name, int sleepy, gy_err *err) {
    static int64_t ns[PD_MAX_NS], done[PD_MAX_NS], note[PD_MAX_NS];
    latency_job j = {.rounds = N_LATENCY, .sleepy = sleepy};
    int32_t n;
    GY_TRY(pd_ends_do(p, 0, time_latency, &j, sizeof j, err, ns, &n));
    column(ns, n / 2, 2, 0, done);
    column(ns, n / 2, 2, 1, note);
    double d50 = pd_quantile_us(done, n / 2, 0.5), d99 = pd_quantile_us(done, n / 2, 0.99);
    double n50 = pd_quantile_us(note, n / 2, 0.5), n99 = pd_quantile_us(note, n / 2, 0.99);
    if (b->json)
        printf("{\"what\":\"pd_latency\",\"lane\":\"%s\",\"receiver_sleeps\":%s,\"done_us\":%.2f,\"done_p99_us\":%.2f,"
               "\"note_us\":%.2f,\"note_p99_us\":%.2f}\n",
               name, sleepy ? "true" : "false", d50, d99, n50, n99);
    else
        printf("  %-4s %-22s %12.2f %12.2f %12.2f %12.2f\n", name, sleepy ? "receiver sleeps" : "receiver polls", d50,
               d99, n50, n99);
    return GY_OK;
}

static gy_status latencies(const pd_bench *b, const lanes *l, gy_err *err) {
    if (!b->json)
        printf("\n64 bytes and a note, us\n  %-27s %12s %12s %12s %12s\n", "", "done p50", "p99", "note p50", "p99");
    for (int sleepy = 0; sleepy < 2; sleepy++) {
        GY_TRY(latency(b, l->shm, "shm", sleepy, err));
        GY_TRY(latency(b, l->tcp, "tcp", sleepy, err));
    }
    return GY_OK;
}

gy_status pd_transfer(const pd_bench *b, gy_err *err) {
    pd_ends_opts o = {.src_bytes = MEMORY, .dst_bytes = MEMORY, .copy_bytes = MEMORY, .n_sender = 1};
    lanes l = {0};
    gy_xfer_limits_default(&o.limits[0]);
    gy_status st = pd_ends_open(&o, err, &l.shm);
    o.across_hosts = 1;
    o.copy_bytes = 0;
    if (st >= 0) st = pd_ends_open(&o, err, &l.tcp);
    if (st >= 0 && !b->json) printf("\nlanes: shm: %s; tcp: %s\n", pd_ends_lanes(l.shm), pd_ends_lanes(l.tcp));
    if (st >= 0) st = sizes(b, &l, err);
    if (st >= 0) st = descriptors(b, &l, err);
    if (st >= 0) st = latencies(b, &l, err);
    pd_ends_close(l.shm);
    pd_ends_close(l.tcp);
    return st;
}
