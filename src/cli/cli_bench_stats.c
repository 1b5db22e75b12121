/* Figures of a benchmark: see cli_bench_stats.h. */
#include "cli/cli_bench_stats.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

const char *gy_bench_dist_name(gy_bench_dist d) {
    static const char *const names[GY_BENCH_DISTS] = {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms", "tail_ms"};
    return names[d];
}

const char *gy_bench_stat_name(gy_bench_stat s) {
    static const char *const names[GY_BENCH_STATS] = {"mean", "p50", "p90", "p95", "p99", "max"};
    return names[s];
}

void gy_bench_figure_name(size_t i, char *buf, size_t cap) {
#define NAME(id, name) name,
    static const char *const names[] = {GY_BENCH_FIGURES(NAME)};
#undef NAME
    const size_t n = (size_t)GY_BENCH_DISTS * GY_BENCH_STATS;
    if (i < n)
        snprintf(buf, cap, "%s_%s", gy_bench_dist_name((gy_bench_dist)(i / GY_BENCH_STATS)),
                 gy_bench_stat_name((gy_bench_stat)(i % GY_BENCH_STATS)));
    else
        snprintf(buf, cap, "%s", names[i - n]);
}

/* ---- distributions ---- */

static int cmp_f64(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gy_bench_quantile(const double *sorted, size_t n, double q) {
    if (!n) return NAN;
    const double at = q * (double)(n - 1);
    const size_t lo = (size_t)at, hi = lo + 1 < n ? lo + 1 : lo;
    return sorted[lo] + (at - (double)lo) * (sorted[hi] - sorted[lo]);
}

void gy_bench_summarize(double *x, size_t n, double stats[GY_BENCH_STATS]) {
    double sum = 0;
    if (n) qsort(x, n, sizeof *x, cmp_f64);
    for (size_t i = 0; i < n; i++) sum += x[i];
    stats[GY_BENCH_MEAN] = n ? sum / (double)n : NAN;
    stats[GY_BENCH_P50] = gy_bench_quantile(x, n, 0.50);
    stats[GY_BENCH_P90] = gy_bench_quantile(x, n, 0.90);
    stats[GY_BENCH_P95] = gy_bench_quantile(x, n, 0.95);
    stats[GY_BENCH_P99] = gy_bench_quantile(x, n, 0.99);
    stats[GY_BENCH_MAX] = n ? x[n - 1] : NAN;
}

static double ms_between(int64_t a, int64_t b) {
    return (double)(b - a) * 1e-6;
}

/* The value of one request in a distribution of requests; 0 when it has none. */
static int record_value(const gy_bench_record *r, gy_bench_dist d, double *out) {
    if (d == GY_BENCH_QUEUE) {
        *out = ms_between(r->due_ns, r->admit_ns);
        return r->admit_ns != 0;
    }
    if (r->failed || !r->n_got) return 0;
    if (d == GY_BENCH_TAIL) {
        *out = (double)r->cross.tail_ns * 1e-6;
        return r->cross.bytes > 0 && r->cross.tail_ns >= 0;
    }
    const int64_t first = r->tok_ns[0], last = r->tok_ns[r->n_got - 1];
    if (d == GY_BENCH_TTFT) *out = ms_between(r->due_ns, first);
    if (d == GY_BENCH_E2E) *out = ms_between(r->due_ns, r->finish_ns);
    if (d != GY_BENCH_TPOT) return 1;
    *out = r->n_got > 1 ? ms_between(first, last) / (r->n_got - 1) : 0;
    return r->n_got > 1;
}

static size_t collect(const gy_bench_record *rec, size_t n, gy_bench_dist d, double *x) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (d != GY_BENCH_ITL) {
            m += (size_t)record_value(&rec[i], d, &x[m]);
            continue;
        }
        for (int32_t k = 1; !rec[i].failed && k < rec[i].n_got; k++)
            x[m++] = ms_between(rec[i].tok_ns[k - 1], rec[i].tok_ns[k]);
    }
    return m;
}

/* ---- totals ---- */

typedef struct record_sums {
    double prompt, cached, output, loops, failed, ended, crossed, bytes, overlap, desc;
    int64_t begin, end;
} record_sums;

static record_sums sum_records(const gy_bench_record *rec, size_t n) {
    record_sums s = {.begin = INT64_MAX};
    for (size_t i = 0; i < n; i++) {
        const gy_bench_record *r = &rec[i];
        s.failed += r->failed != 0;
        s.ended += !r->failed;
        s.cached += r->n_cached;
        s.output += r->n_got;
        s.crossed += r->cross.bytes > 0;
        s.bytes += (double)r->cross.bytes;
        s.overlap += (double)r->cross.overlap_bytes;
        s.desc += (double)r->cross.n_desc;
        if (r->n_got) s.prompt += r->n_prompt;
        for (int32_t k = 0; k < r->n_got; k++) s.loops += r->loops[k];
        if (r->due_ns < s.begin) s.begin = r->due_ns;
        if (r->finish_ns > s.end) s.end = r->finish_ns;
    }
    return s;
}

gy_status gy_bench_from_records(const gy_bench_record *rec, size_t n, gy_bench_result *io) {
    const record_sums s = sum_records(rec, n);
    const double seconds = n ? (double)(s.end - s.begin) * 1e-9 : NAN;
    double *x = gy_mem_alloc(GY_MEM_CLI, (size_t)s.output + n + 1, sizeof *x);
    if (!x) return GY_E_NOMEM;
    for (int d = 0; d < GY_BENCH_DISTS; d++) {
        const size_t m = collect(rec, n, (gy_bench_dist)d, x);
        gy_bench_summarize(x, m, io->f + gy_bench_at((gy_bench_dist)d, GY_BENCH_MEAN));
    }
    gy_mem_free(x);
    io->f[GY_BENCH_SECONDS] = seconds;
    if (s.crossed > 0) {
        io->f[GY_BENCH_CROSSED] = s.crossed;
        io->f[GY_BENCH_CROSSED_BYTES] = s.bytes;
        io->f[GY_BENCH_OVERLAP] = s.overlap / s.bytes;
        io->f[GY_BENCH_DESC] = s.desc;
    }
    io->f[GY_BENCH_REQUESTS] = (double)n;
    io->f[GY_BENCH_FAILED] = s.failed;
    io->f[GY_BENCH_PROMPT_TOK] = s.prompt;
    io->f[GY_BENCH_CACHED_TOK] = s.cached;
    io->f[GY_BENCH_OUTPUT_TOK] = s.output;
    io->f[GY_BENCH_OUTPUT_RATE] = s.output / seconds;
    io->f[GY_BENCH_TOTAL_RATE] = (s.prompt + s.output) / seconds;
    io->f[GY_BENCH_REQUEST_RATE] = s.ended / seconds;
    io->f[GY_BENCH_HIT_RATE] = s.prompt > 0 ? s.cached / s.prompt : NAN;
    io->f[GY_BENCH_MEAN_LOOPS] = s.output > 0 ? s.loops / s.output : NAN;
    return GY_OK;
}

/* ---- KV over time ---- */

/* Something that changes what KV a request must hold: k = -1 admission, 0..n_got-1 a token, n_got the end. */
typedef struct kv_event {
    int64_t at_ns;
    size_t req;
    int32_t k;
} kv_event;

static int cmp_event(const void *a, const void *b) {
    const kv_event *x = a, *y = b;
    if (x->at_ns != y->at_ns) return x->at_ns < y->at_ns ? -1 : 1;
    if (x->req != y->req) return x->req < y->req ? -1 : 1;
    return (x->k > y->k) - (x->k < y->k);
}

/* What the admitted requests hold at a moment, each way of counting. */
typedef struct kv_now {
    int64_t running, before_first;
    int64_t reserved; /* blocks of their whole life at full depth */
    int64_t full;     /* blocks at full depth, as long as they are now */
    int64_t slots;    /* token loops that ran: what had to be written */
} kv_now;

/* Tokens whose KV exists once output k is known: output k itself has not run yet. */
static int32_t tokens_at(const gy_bench_record *r, int32_t k) {
    return r->n_prompt + k;
}

static void now_apply(kv_now *w, const gy_kv_config *c, const gy_bench_record *r, int32_t k, int64_t *slots) {
    const int64_t life = gy_kv_blocks_for(c, GY_KV_CORE, (int64_t)r->n_prompt + r->n_out);
    if (k < 0) { /* admitted */
        w->running++, w->before_first++;
        w->reserved += life;
        return;
    }
    const int64_t before = k ? gy_kv_blocks_for(c, GY_KV_CORE, tokens_at(r, k - 1)) : 0;
    if (k == r->n_got) { /* ended: the books forget it */
        w->running--;
        w->before_first -= !r->n_got;
        w->reserved -= life;
        w->full -= before;
        w->slots -= *slots;
        return;
    }
    const int64_t ran = k ? r->loops[k] : (int64_t)r->n_prompt * gy_kv_n_plane(c, GY_KV_CORE);
    w->before_first -= !k;
    w->full += gy_kv_blocks_for(c, GY_KV_CORE, tokens_at(r, k)) - before;
    w->slots += ran;
    *slots += ran;
}

static size_t list_events(const gy_bench_record *rec, size_t n, kv_event *ev) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (!rec[i].admit_ns || !rec[i].finish_ns) continue;
        ev[m++] = (kv_event){rec[i].admit_ns, i, -1};
        for (int32_t k = 0; k < rec[i].n_got; k++) ev[m++] = (kv_event){rec[i].tok_ns[k], i, k};
        ev[m++] = (kv_event){rec[i].finish_ns, i, rec[i].n_got};
    }
    qsort(ev, m, sizeof *ev, cmp_event);
    return m;
}

typedef struct kv_sums {
    double used, reserved, peak_used, peak_reserved, peak_bytes;
    double d_steps, d_used, d_executed, d_full, d_reserved;
} kv_sums;

static void sums_add(kv_sums *t, const gy_kv_config *c, const kv_now *w, const gy_bench_sample *s) {
    const double used = s->used[GY_KV_CORE];
    double bytes = 0;
    for (int g = 0; g < GY_KV_GROUPS; g++) bytes += (double)s->used[g] * (double)gy_kv_block_bytes(c, (gy_kv_group)g);
    t->used += used;
    t->reserved += (double)w->reserved;
    t->peak_used = fmax(t->peak_used, used);
    t->peak_reserved = fmax(t->peak_reserved, (double)w->reserved);
    t->peak_bytes = fmax(t->peak_bytes, bytes);
    if (!w->running || w->before_first) return;
    t->d_steps++;
    t->d_used += used;
    t->d_executed += (double)w->slots / GY_KV_BLOCK_LEN;
    t->d_full += (double)w->full;
    t->d_reserved += (double)w->reserved;
}

static void sums_store(const kv_sums *t, size_t n, gy_bench_result *io) {
    const double steps = n ? (double)n : NAN, d = t->d_steps > 0 ? t->d_steps : NAN;
    io->f[GY_BENCH_KV_USED_MEAN] = t->used / steps;
    io->f[GY_BENCH_KV_USED_PEAK] = t->peak_used;
    io->f[GY_BENCH_KV_RESERVED_MEAN] = t->reserved / steps;
    io->f[GY_BENCH_KV_RESERVED_PEAK] = t->peak_reserved;
    io->f[GY_BENCH_KV_BYTES_PEAK] = t->peak_bytes;
    io->f[GY_BENCH_DECODE_STEPS] = t->d_steps;
    io->f[GY_BENCH_DECODE_USED] = t->d_used / d;
    io->f[GY_BENCH_DECODE_EXECUTED] = t->d_executed / d;
    io->f[GY_BENCH_DECODE_FULL] = t->d_full / d;
    io->f[GY_BENCH_DECODE_RESERVED] = t->d_reserved / d;
}

gy_status gy_bench_from_samples(const gy_kv_config *c, const gy_bench_record *rec, size_t n, const gy_bench_sample *s,
                                size_t n_sample, gy_bench_result *io) {
    size_t n_event = 2 * n, at = 0;
    for (size_t i = 0; i < n; i++) n_event += (size_t)rec[i].n_got;
    kv_event *ev = gy_mem_alloc(GY_MEM_CLI, n_event + 1, sizeof *ev);
    int64_t *slots = gy_mem_alloc(GY_MEM_CLI, n + 1, sizeof *slots);
    gy_status st = ev && slots ? GY_OK : GY_E_NOMEM;
    if (st == GY_OK) {
        kv_now now = {0};
        kv_sums sums = {0};
        n_event = list_events(rec, n, ev);
        for (size_t i = 0; i < n_sample; i++) {
            for (; at < n_event && ev[at].at_ns <= s[i].at_ns; at++)
                now_apply(&now, c, &rec[ev[at].req], ev[at].k, &slots[ev[at].req]);
            sums_add(&sums, c, &now, &s[i]);
        }
        sums_store(&sums, n_sample, io);
    }
    gy_mem_free(ev);
    gy_mem_free(slots);
    return st;
}

/* ---- the engine's counters ---- */

static double per(double a, double b) {
    return b > 0 ? a / b : NAN;
}

void gy_bench_from_stats(const gy_engine_stats *a, const gy_engine_stats *b, int32_t max_rows, gy_bench_result *io) {
    const double steps = (double)(b->n_step - a->n_step), passes = (double)(b->n_pass - a->n_pass);
    const double step = (double)(b->step_ns - a->step_ns), sample = (double)(b->sample_ns - a->sample_ns);
    const double host = step - sample - (double)(b->model_ns - a->model_ns);
    double *f = io->f;
    f[GY_BENCH_STEPS] = steps;
    f[GY_BENCH_PASSES] = passes;
    f[GY_BENCH_ROWS] = per((double)(b->n_row - a->n_row), passes);
    f[GY_BENCH_ROWS_SHARE] = f[GY_BENCH_ROWS] / max_rows;
    f[GY_BENCH_KV_TOTAL] = b->kv_total[GY_KV_CORE];
    f[GY_BENCH_KV_COPIED] = (double)(b->kv_copied_bytes - a->kv_copied_bytes);
    f[GY_BENCH_PREEMPTIONS] = (double)(b->sched.n_park - a->sched.n_park) + (double)(b->sched.n_drop - a->sched.n_drop);
    f[GY_BENCH_STEP_US] = per(step * 1e-3, steps);
    f[GY_BENCH_HOST_US] = per(host * 1e-3, steps);
    f[GY_BENCH_HOST_SHARE] = per(host, step);
    f[GY_BENCH_SAMPLE_US] = per(sample * 1e-3, steps);
    f[GY_BENCH_KV_BYTES] = (double)b->kv_bytes;
    f[GY_BENCH_WORKSPACE_BYTES] = (double)b->workspace_bytes;
}

void gy_bench_from_wait(int64_t wait_ns, gy_bench_result *io) {
    double *f = io->f;
    f[GY_BENCH_WAIT_US] = per((double)wait_ns * 1e-3, f[GY_BENCH_STEPS]);
    f[GY_BENCH_WORK_US] = f[GY_BENCH_STEP_US] - f[GY_BENCH_WAIT_US];
    f[GY_BENCH_WORK_SHARE] = per(f[GY_BENCH_WORK_US], f[GY_BENCH_STEP_US]);
}

/* ---- repeats ---- */

static double median_of(const gy_bench_result *r, size_t n, size_t figure) {
    double x[GY_BENCH_MAX_REPEAT];
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(r[i].f[figure])) x[m++] = r[i].f[figure];
    if (m) qsort(x, m, sizeof *x, cmp_f64);
    return gy_bench_quantile(x, m, 0.5);
}

void gy_bench_median(const gy_bench_result *r, size_t n, gy_bench_result *out) {
    for (size_t i = 0; i < GY_BENCH_N; i++) out->f[i] = median_of(r, n, i);
}
