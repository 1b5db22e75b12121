/* sched_clock.h. A step is an admission and one pass; a first token counts at the end of the pass that its last prompt
 * token left the core in. KV never runs short: the pool holds every running request at full depth.
 */
#include "sched_clock.h"

#include "base/mem.h"
#include "base/philox.h"
#include "sched/sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LOOP = 4 };
static const double LONG_SHARE = 0.125; /* of the longest prompt: shorter ones are "short" in the table */

typedef struct request {
    int32_t n_in, n_got, job;
    double due, first, last; /* us */
} request;

typedef struct sim {
    const sched_cost *cost;
    const sched_load *load;
    gy_kv *kv;
    gy_sched *sched;
    request *req; /* [n_request], in order of arrival */
    int32_t *by_job, *tok, *flight;
    int32_t n_sent, n_over;
    double now; /* us */
    int64_t n_pass;
} sim;

/* ---- the load ---- */

/* In [0, 1), the k-th number of request i. */
static double chance(int32_t i, uint32_t k) {
    const uint32_t ctr[4] = {(uint32_t)i, k, 0, 0}, key[2] = {1, 0};
    uint32_t out[4];
    gy_philox4x32_10(ctr, key, out);
    return out[0] / 4294967296.0;
}

static void make_requests(sim *s) {
    const sched_load *l = s->load;
    double at = 0, octaves = log2((double)l->in_hi / l->in_lo);
    for (int32_t i = 0; i < l->n_request; i++) {
        if (!l->concurrency) at += -log(1 - chance(i, 0)) / l->rate * 1e6;
        s->req[i] = (request){.n_in = (int32_t)(l->in_lo * exp2(octaves * chance(i, 1))), .due = at, .job = -1};
    }
}

static int is_due(const sim *s) {
    const sched_load *l = s->load;
    if (s->n_sent == l->n_request) return 0;
    return l->concurrency ? s->n_sent - s->n_over < l->concurrency : s->req[s->n_sent].due <= s->now;
}

static void send(sim *s) {
    while (is_due(s)) {
        request *r = &s->req[s->n_sent];
        gy_sched_job j = {
            .tok = s->tok, .n_prompt = r->n_in, .max_tokens = s->load->out, .full_prompt = 1, .leader = -1};
        if (s->load->concurrency) r->due = s->now;
        gy_status st = gy_sched_submit(s->sched, &j, (int64_t)(s->now * 1e3), &r->job);
        GY_CHECK(st == GY_OK);
        s->by_job[r->job] = s->n_sent++;
    }
}

/* ---- a step ---- */

static double pass_us(const sim *s, const gy_sched_rows *b) {
    const sched_cost *c = s->cost;
    int32_t rows = b->n_row > c->tile ? (b->n_row + c->tile - 1) / c->tile * c->tile : b->n_row;
    double us = fmax(c->pass_us, rows * c->row_us);
    for (int32_t i = 0; i < b->n_decode; i++) us += b->pos[i] * c->read_ns * 1e-3;
    return us;
}

static void token(sim *s, int32_t flight) {
    int32_t job = gy_sched_flight_job(s->sched, flight);
    request *r = &s->req[s->by_job[job]];
    if (!r->n_got++) r->first = s->now;
    gy_sched_sampled(s->sched, flight);
    if (r->n_got < s->load->out) return;
    r->last = s->now;
    s->n_over++;
    gy_sched_remove(s->sched, job);
}

static int32_t keep(sim *s, const gy_sched_rows *b) {
    memcpy(s->flight, b->flight, (size_t)b->n_row * sizeof *s->flight);
    return b->n_row;
}

static void step(sim *s) {
    send(s);
    gy_sched_admit(s->sched, (int64_t)(s->now * 1e3));
    while (gy_sched_enter(s->sched)->n_row) {
    }
    const gy_sched_rows *b = gy_sched_pass(s->sched);
    if (b->n_row) {
        s->now += pass_us(s, b);
        s->n_pass++;
    } else if (s->n_sent < s->load->n_request && s->req[s->n_sent].due > s->now) {
        s->now = s->req[s->n_sent].due;
    }
    int32_t n = keep(s, b);
    for (int32_t i = 0; i < n; i++) {
        if (gy_sched_flight_loops(s->sched, s->flight[i]) + 1 == N_LOOP)
            gy_sched_leave(s->sched, s->flight[i], 0);
        else
            gy_sched_stay(s->sched, s->flight[i]);
    }
    while ((n = keep(s, gy_sched_coda(s->sched, s->load->max_seqs))) > 0) {
        s->now += s->cost->coda_us + n * s->cost->coda_row_us;
        for (int32_t i = 0; i < n; i++) token(s, s->flight[i]);
    }
}

/* ---- setting up ---- */

static gy_status open_kv(sim *s, gy_err *err) {
    static char arena[1]; /* nothing here touches KV memory */
    void *const arenas[GY_KV_GROUPS] = {arena, NULL};
    const sched_load *l = s->load;
    gy_kv_config c = {.layout = GY_KV_LAST_EXITED,
                      .n_loop = N_LOOP,
                      .n_layer = {24, 0},
                      .n_head_kv = 16,
                      .head_dim = 128,
                      .dtype = GY_BF16,
                      .max_seqs = l->max_seqs,
                      .max_len = l->in_hi + l->out};
    c.n_block[GY_KV_CORE] = (int32_t)gy_kv_blocks_for(&c, GY_KV_CORE, c.max_len) * l->max_seqs;
    return gy_kv_create(&c, arenas, err, &s->kv);
}

static gy_status open_sched(sim *s, gy_err *err) {
    const sched_load *l = s->load;
    gy_sched_opts o;
    gy_sched_opts_default(&o);
    o.max_rows = l->max_rows;
    o.max_seqs = l->max_seqs;
    o.max_queue = l->n_request;
    o.prefill_chunk = l->prefill_chunk;
    o.prefill_share = l->prefill_share;
    o.n_loop = N_LOOP;
    o.watermark = 0.0;
    return gy_sched_create(&o, s->kv, err, &s->sched);
}

static gy_status sim_open(sim *s, gy_err *err) {
    const sched_load *l = s->load;
    s->req = gy_mem_alloc(GY_MEM_BASE, (size_t)l->n_request, sizeof *s->req);
    s->by_job = gy_mem_alloc(GY_MEM_BASE, (size_t)l->n_request + (size_t)l->max_seqs, sizeof *s->by_job);
    s->tok = gy_mem_alloc(GY_MEM_BASE, (size_t)l->in_hi + (size_t)l->out, sizeof *s->tok);
    s->flight = gy_mem_alloc(GY_MEM_BASE, (size_t)l->max_rows, sizeof *s->flight);
    if (!s->req || !s->by_job || !s->tok || !s->flight) return gy_err_set(err, GY_E_NOMEM, "no memory");
    make_requests(s);
    GY_TRY(open_kv(s, err));
    return open_sched(s, err);
}

static void sim_close(sim *s) {
    gy_sched_destroy(s->sched);
    gy_kv_destroy(s->kv);
    gy_mem_free(s->req);
    gy_mem_free(s->by_job);
    gy_mem_free(s->tok);
    gy_mem_free(s->flight);
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figures {
    double p50, p99, short_p50, short_p99, long_p99, token_ms, rate;
} figures;

static double at(double *x, int32_t n, double q) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n ? x[(int32_t)(q * (n - 1) + 0.5)] : NAN;
}

static double first_of(const sim *s, int is_short, int is_long, double q, double *x) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->load->n_request; i++) {
        const request *r = &s->req[i];
        int small = r->n_in < LONG_SHARE * s->load->in_hi;
        if ((small && is_short) || (!small && is_long)) x[n++] = (r->first - r->due) * 1e-6;
    }
    return at(x, n, q);
}

static figures figures_of(const sim *s, double *x) {
    int32_t n = s->load->n_request;
    figures f = {.p50 = first_of(s, 1, 1, 0.5, x),
                 .p99 = first_of(s, 1, 1, 0.99, x),
                 .short_p50 = first_of(s, 1, 0, 0.5, x),
                 .short_p99 = first_of(s, 1, 0, 0.99, x),
                 .long_p99 = first_of(s, 0, 1, 0.99, x)};
    for (int32_t i = 0; i < n; i++) x[i] = (s->req[i].last - s->req[i].first) * 1e-3 / (s->load->out - 1);
    f.token_ms = at(x, n, 0.5);
    f.rate = n * (double)s->load->out / (s->now * 1e-6);
    return f;
}

static void print_line(const sim *s, const figures *f, int json) {
    const sched_load *l = s->load;
    if (json)
        printf("{\"what\":\"sched_clock\",\"concurrency\":%d,\"requests\":%d,\"rate\":%g,\"in\":[%d,%d],\"out\":%d,"
               "\"ttft_p50_s\":%.4f,\"ttft_p99_s\":%.4f,\"token_ms\":%.3f,\"tok_s\":%.1f,\"passes\":%lld}\n",
               l->concurrency, l->n_request, l->rate, l->in_lo, l->in_hi, l->out, f->p50, f->p99, f->token_ms, f->rate,
               (long long)s->n_pass);
    else
        printf("%4d %5d %5.0f %5d:%-5d %4d %5.2f %8.3f %8.3f %9.3f %9.3f %9.3f %9.2f %8.0f %7lld\n", l->concurrency,
               l->n_request, l->rate, l->in_lo, l->in_hi, l->out, l->prefill_share, f->p50, f->p99, f->short_p50,
               f->short_p99, f->long_p99, f->token_ms, f->rate, (long long)s->n_pass);
    fflush(stdout);
}

static int run(const sched_cost *cost, const sched_load *load, int json) {
    sim s = {.cost = cost, .load = load};
    gy_err err = {0};
    double *x = gy_mem_alloc(GY_MEM_BASE, (size_t)load->n_request, sizeof *x);
    int ok = x && sim_open(&s, &err) == GY_OK;
    if (ok) {
        while (s.n_over < load->n_request) step(&s);
        figures f = figures_of(&s, x);
        print_line(&s, &f, json);
    } else {
        fprintf(stderr, "gyre-bench-sched: %s\n", err.msg);
    }
    sim_close(&s);
    gy_mem_free(x);
    return ok;
}

int sched_clock_table(const sched_cost *cost, double prefill_share, int json) {
    static const sched_load loads[] = {
        {.concurrency = 1, .n_request = 4, .in_lo = 1024, .in_hi = 1024, .out = 128, .max_seqs = 1},
        {.concurrency = 32, .n_request = 64, .in_lo = 1024, .in_hi = 1024, .out = 128, .max_seqs = 32},
        {.concurrency = 128, .n_request = 256, .in_lo = 1024, .in_hi = 1024, .out = 128, .max_seqs = 128},
        {.concurrency = 32, .n_request = 256, .in_lo = 64, .in_hi = 8192, .out = 128, .max_seqs = 32},
        {.n_request = 400, .rate = 6, .in_lo = 64, .in_hi = 8192, .out = 64, .max_seqs = 64},
        {.n_request = 400, .rate = 12, .in_lo = 64, .in_hi = 8192, .out = 64, .max_seqs = 64},
    };
    int ok = 1;
    if (!json)
        printf("pass max(%.0f us, rows x %.1f us, tiles of %d) + %.0f ns for each token that a decode row reads, coda "
               "%.0f us + "
               "%.0f us a row\n"
               "%4s %5s %5s %11s %4s %5s %8s %8s %9s %9s %9s %9s %8s %7s\n",
               cost->pass_us, cost->row_us, cost->tile, cost->read_ns, cost->coda_us, cost->coda_row_us, "C", "reqs",
               "rate", "in", "out", "share", "TTFT p50", "p99", "short p50", "short p99", "long p99", "token ms",
               "tok/s", "passes");
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        sched_load l = loads[i];
        l.max_rows = 2048;
        l.prefill_chunk = 128;
        l.prefill_share = prefill_share;
        ok &= run(cost, &l, json);
    }
    return ok;
}
