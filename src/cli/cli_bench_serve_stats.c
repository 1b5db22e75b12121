/* Figures of a run against a server: see cli_bench_serve_stats.h. */
#include "cli/cli_bench_serve_stats.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *gy_bserve_dist_name(int d) {
    static const char *const names[GY_BSERVE_DISTS] = {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "lag_ms"};
    return names[d];
}

const char *gy_bserve_figure_name(int i) {
#define NAME(id, name) name,
    static const char *const names[] = {GY_BSERVE_FIGURES(NAME)};
#undef NAME
    return names[i];
}

void gy_bserve_error_name(gy_oai_end end, int http_status, char *buf, size_t cap) {
    if (end == GY_OAI_HTTP)
        snprintf(buf, cap, "http_%d", http_status);
    else
        snprintf(buf, cap, "%s", gy_oai_end_name(end));
}

/* ---- one request ---- */

static double ms_between(int64_t a, int64_t b) {
    return (double)(b - a) * 1e-6;
}

static int is_done(const gy_bserve_record *r) {
    return r->sent && r->end == GY_OAI_DONE;
}

double gy_bserve_value(const gy_bserve_record *r, int dist) {
    if (dist == GY_BSERVE_LAG) return r->sent ? ms_between(r->due_ns, r->sent_ns) : NAN;
    if (!is_done(r) || !r->n_tok) return NAN;
    const double ttft = ms_between(r->sent_ns, r->tok_ns[0]), e2e = ms_between(r->sent_ns, r->last_ns);
    switch (dist) {
    case GY_BSERVE_TTFT:
        return ttft;
    case GY_BSERVE_E2E:
        return e2e;
    case GY_BSERVE_TPOT:
        return r->n_out > 1 ? (e2e - ttft) / (double)(r->n_out - 1) : NAN;
    default:
        return NAN;
    }
}

/* A value that a request does not have breaks no promise, as a TPOT of one token. */
static int within(double v, double limit) {
    return isnan(limit) || isnan(v) || v <= limit;
}

int gy_bserve_is_good(const gy_bserve_record *r, const gy_bserve_slo *slo) {
    return is_done(r) && r->n_tok && within(gy_bserve_value(r, GY_BSERVE_TTFT), slo->ttft) &&
           within(gy_bserve_value(r, GY_BSERVE_TPOT), slo->tpot) && within(gy_bserve_value(r, GY_BSERVE_E2E), slo->e2e);
}

/* ---- distributions ---- */

static size_t collect(const gy_bserve_record *rec, size_t n, int dist, double *x) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (dist != GY_BSERVE_ITL) {
            x[m] = gy_bserve_value(&rec[i], dist);
            m += !isnan(x[m]);
            continue;
        }
        for (size_t k = 1; is_done(&rec[i]) && k < rec[i].n_tok; k++)
            x[m++] = ms_between(rec[i].tok_ns[k - 1], rec[i].tok_ns[k]);
    }
    return m;
}

static double *room_for(const gy_bserve_record *rec, size_t n) {
    size_t m = n + 1;
    for (size_t i = 0; i < n; i++) m += rec[i].n_tok;
    return gy_mem_alloc(GY_MEM_CLI, m, sizeof(double));
}

double *gy_bserve_sorted(const gy_bserve_record *rec, size_t n, int dist, size_t *n_out) {
    double *x = room_for(rec, n), unused[GY_BENCH_STATS];
    if (!x) return NULL;
    *n_out = collect(rec, n, dist, x);
    gy_bench_summarize(x, *n_out, unused);
    return x;
}

/* ---- totals ---- */

/* The status tells failures apart only when it is the failure: a stream that breaks had 200 or none yet. */
static void add_error(gy_bserve_result *out, const gy_bserve_record *r, int32_t i) {
    const int status = r->end == GY_OAI_HTTP ? r->http_status : 0;
    int k = 0;
    while (k < out->n_error && (out->error[k].end != r->end || out->error[k].http_status != status)) k++;
    if (k == GY_BSERVE_MAX_ERROR) k--;
    if (k == out->n_error)
        out->error[out->n_error++] = (gy_bserve_error){.end = r->end, .http_status = status, .first = i};
    out->error[k].n++;
}

static void add_done(double *f, const gy_bserve_record *r, double *loop_tok) {
    f[GY_BSERVE_COMPLETED]++;
    f[GY_BSERVE_PROMPT_TOK] += (double)r->n_prompt;
    f[GY_BSERVE_OUTPUT_TOK] += (double)r->n_out;
    if (r->n_cached >= 0)
        f[GY_BSERVE_CACHED_TOK] = (isnan(f[GY_BSERVE_CACHED_TOK]) ? 0 : f[GY_BSERVE_CACHED_TOK]) + (double)r->n_cached;
    f[GY_BSERVE_NO_USAGE] += !r->has_usage;
    f[GY_BSERVE_MEAN_LOOPS] += (double)r->loops;
    *loop_tok += r->n_loop_tok;
}

/* A request that a bound on concurrency kept from being sent when it arrived. */
static void add_held(double *f, const gy_bserve_record *r) {
    if (!r->arrival_ns || r->due_ns <= r->arrival_ns) return;
    f[GY_BSERVE_HELD_BACK]++;
    f[GY_BSERVE_HELD_BACK_MS] += ms_between(r->arrival_ns, r->due_ns);
}

static int64_t add_all(const gy_bserve_record *rec, size_t n, const gy_bserve_slo *slo, int64_t begin_ns,
                       gy_bserve_result *out) {
    double *f = out->f, loop_tok = 0, busy = 0;
    int64_t end = begin_ns;
    f[GY_BSERVE_CACHED_TOK] = NAN;
    for (size_t i = 0; i < n; i++) {
        const gy_bserve_record *r = &rec[i];
        f[GY_BSERVE_NOT_SENT] += !r->sent;
        if (!r->sent) continue;
        if (r->end_ns > end) end = r->end_ns;
        busy += (double)(r->end_ns - r->sent_ns);
        add_held(f, r);
        if (r->end == GY_OAI_DONE)
            add_done(f, r, &loop_tok);
        else
            add_error(out, r, (int32_t)i);
        f[GY_BSERVE_FAILED] += r->end != GY_OAI_DONE;
        f[GY_BSERVE_GOOD] += gy_bserve_is_good(r, slo);
    }
    f[GY_BSERVE_REQUESTS] = (double)n;
    f[GY_BSERVE_MEAN_LOOPS] = loop_tok > 0 ? f[GY_BSERVE_MEAN_LOOPS] / loop_tok : NAN;
    f[GY_BSERVE_HELD_BACK_MS] = f[GY_BSERVE_HELD_BACK] > 0 ? f[GY_BSERVE_HELD_BACK_MS] / f[GY_BSERVE_HELD_BACK] : 0;
    f[GY_BSERVE_RUNNING_MEAN] = end > begin_ns ? busy / (double)(end - begin_ns) : NAN;
    return end;
}

typedef struct edge {
    int64_t at_ns;
    int step;
} edge;

static int cmp_edge(const void *a, const void *b) {
    const edge *x = a, *y = b;
    if (x->at_ns != y->at_ns) return x->at_ns < y->at_ns ? -1 : 1;
    return x->step - y->step; /* an end comes before a beginning at the same time */
}

static gy_status find_peak(const gy_bserve_record *rec, size_t n, double *out) {
    edge *e = gy_mem_alloc(GY_MEM_CLI, 2 * n + 1, sizeof *e);
    size_t m = 0;
    int now = 0, peak = 0;
    if (!e) return GY_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!rec[i].sent) continue;
        e[m++] = (edge){rec[i].sent_ns, 1};
        e[m++] = (edge){rec[i].end_ns, -1};
    }
    qsort(e, m, sizeof *e, cmp_edge);
    for (size_t i = 0; i < m; i++) {
        now += e[i].step;
        if (now > peak) peak = now;
    }
    gy_mem_free(e);
    *out = peak;
    return GY_OK;
}

static void set_rates(double *f, double seconds, double cpu_s, const gy_bserve_slo *slo) {
    f[GY_BSERVE_SECONDS] = seconds;
    f[GY_BSERVE_REQUEST_RATE] = f[GY_BSERVE_COMPLETED] / seconds;
    f[GY_BSERVE_OUTPUT_RATE] = f[GY_BSERVE_OUTPUT_TOK] / seconds;
    f[GY_BSERVE_TOTAL_RATE] = (f[GY_BSERVE_PROMPT_TOK] + f[GY_BSERVE_OUTPUT_TOK]) / seconds;
    f[GY_BSERVE_GOODPUT] = f[GY_BSERVE_GOOD] / seconds;
    if (!slo->given) f[GY_BSERVE_GOOD] = f[GY_BSERVE_GOODPUT] = NAN;
    f[GY_BSERVE_CPU_SECONDS] = cpu_s;
    f[GY_BSERVE_CPU_SHARE] = cpu_s / seconds;
    f[GY_BSERVE_CPU_US_TOK] = f[GY_BSERVE_OUTPUT_TOK] > 0 ? cpu_s * 1e6 / f[GY_BSERVE_OUTPUT_TOK] : NAN;
}

gy_status gy_bserve_figures(const gy_bserve_record *rec, size_t n, int64_t begin_ns, double cpu_s,
                            const gy_bserve_slo *slo, gy_bserve_result *out) {
    gy_bserve_result r = {.n_error = 0};
    double *x = room_for(rec, n);
    if (!x) return GY_E_NOMEM;
    for (int d = 0; d < GY_BSERVE_DISTS; d++) gy_bench_summarize(x, collect(rec, n, d, x), r.dist[d]);
    gy_mem_free(x);
    const int64_t end = add_all(rec, n, slo, begin_ns, &r);
    set_rates(r.f, end > begin_ns ? (double)(end - begin_ns) * 1e-9 : NAN, cpu_s, slo);
    GY_TRY(find_peak(rec, n, &r.f[GY_BSERVE_RUNNING_PEAK]));
    *out = r;
    return GY_OK;
}
