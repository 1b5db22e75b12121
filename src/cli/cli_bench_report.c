/* Table, JSON, CSV of a benchmark: see cli_bench_report.h. */
#include "cli/cli_bench_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *gy_bench_kind_name(gy_bench_kind k) {
    static const char *const names[] = {"burst", "closed", "poisson", "session"};
    return names[k];
}

static int cmp_f64(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void gy_bench_ratio(const gy_bench_series *a, const gy_bench_series *b, double out[3]) {
    double x[GY_BENCH_MAX_REPEAT];
    for (size_t i = 0; i < a->n; i++) x[i] = b->r[i].f[GY_BENCH_OUTPUT_RATE] / a->r[i].f[GY_BENCH_OUTPUT_RATE];
    qsort(x, a->n, sizeof *x, cmp_f64);
    out[0] = gy_bench_quantile(x, a->n, 0.5);
    out[1] = x[0];
    out[2] = x[a->n - 1];
}

/* ---- table ---- */

static void put_range(gy_str *s, gy_bench_range r) {
    gy_str_printf(s, r.lo == r.hi ? "%d" : "%d:%d", r.lo, r.hi);
}

static void put_load(const gy_bench_load *l, gy_str *s) {
    static const char *const spreads[] = {"", " by turns", " as sharegpt"};
    gy_str_printf(s, "workload  %s: ", gy_bench_kind_name(l->kind));
    if (l->kind == GY_BENCH_SESSION)
        gy_str_printf(s, "%d users, %d turns", l->n_stream, l->n_turn);
    else
        gy_str_printf(s, "%d requests", l->n_stream);
    if (l->kind == GY_BENCH_CLOSED) gy_str_printf(s, ", %d at once", l->concurrency);
    if (l->kind == GY_BENCH_POISSON) gy_str_printf(s, ", %g a second", l->rate);
    gy_str_puts(s, ", in ");
    put_range(s, l->in);
    gy_str_puts(s, spreads[l->in_spread]);
    gy_str_puts(s, ", out ");
    put_range(s, l->out);
    gy_str_printf(s, ", seed %llu\n", (unsigned long long)l->seed);
}

static void put_setup(const gy_bench_setup *u, gy_str *s) {
    if (u->cell) gy_str_printf(s, "cell      %s\n", u->cell);
    gy_str_printf(s, "model     %s%s: %s, %d loops, %s\n", u->model, u->synthetic ? " (random weights)" : "", u->family,
                  u->n_loop, u->dtype);
    gy_str_printf(s, "machine   %s, %d cores", u->cpu, u->n_core);
    if (u->variant) gy_str_printf(s, "; %s, %d threads", u->variant, u->n_thread);
    gy_str_putc(s, '\n');
    put_load(u->load, s);
    gy_str_printf(s, "engine    max_rows %d, max_seqs %d, max_len %d, kv %s %s, exit %s", u->engine->sched.max_rows,
                  u->engine->sched.max_seqs, u->engine->max_len, u->kv_layout, u->kv_dtype, u->exit);
    if (u->proto->exit.kind != GY_EXIT_FIXED && u->proto->exit.kind != GY_EXIT_TRACE)
        gy_str_printf(s, " %g", u->proto->exit.threshold);
    gy_str_printf(s, " (%d to %d loops)%s\n", u->proto->exit.min_loops, u->proto->exit.max_loops,
                  u->proto->latent_noise ? ", noise" : "");
}

static void put_ms(gy_str *s, double v) {
    if (isnan(v))
        gy_str_printf(s, "%10s", "-");
    else
        gy_str_printf(s, v < 100 ? "%10.2f" : "%10.1f", v);
}

static void put_latencies(const gy_bench_result *m, gy_str *s) {
    static const char *const labels[GY_BENCH_DISTS] = {"TTFT", "TPOT", "ITL", "E2E", "queue", "tail"};
    static const int order[] = {GY_BENCH_QUEUE, GY_BENCH_TTFT, GY_BENCH_TPOT, GY_BENCH_ITL, GY_BENCH_E2E};
    gy_str_printf(s, "\n%-14s", "ms");
    for (int k = 0; k < GY_BENCH_STATS; k++) gy_str_printf(s, "%10s", gy_bench_stat_name((gy_bench_stat)k));
    gy_str_putc(s, '\n');
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        gy_str_printf(s, "  %-12s", labels[order[i]]);
        for (int k = 0; k < GY_BENCH_STATS; k++)
            put_ms(s, m->f[gy_bench_at((gy_bench_dist)order[i], (gy_bench_stat)k)]);
        gy_str_putc(s, '\n');
    }
}

/* Smallest and largest over repeats. */
static void put_spread(const gy_bench_series *r, size_t figure, gy_str *s) {
    double lo = INFINITY, hi = -INFINITY;
    if (r->n < 2) return;
    for (size_t i = 0; i < r->n; i++) {
        lo = fmin(lo, r->r[i].f[figure]);
        hi = fmax(hi, r->r[i].f[figure]);
    }
    gy_str_printf(s, "  (%.1f to %.1f)", lo, hi);
}

static void put_rate(const gy_bench_series *r, const gy_bench_result *m, const char *label, size_t figure, gy_str *s) {
    gy_str_printf(s, "  %-28s%10.1f", label, m->f[figure]);
    put_spread(r, figure, s);
    gy_str_putc(s, '\n');
}

static void put_rates(const gy_bench_series *r, const gy_bench_result *m, gy_str *s) {
    gy_str_printf(s, "\nrates, median%s of %zu\n", r->n > 1 ? " (least to most)" : "", r->n);
    put_rate(r, m, "output tokens/s", GY_BENCH_OUTPUT_RATE, s);
    put_rate(r, m, "prompt + output tokens/s", GY_BENCH_TOTAL_RATE, s);
    put_rate(r, m, "requests/s", GY_BENCH_REQUEST_RATE, s);
    put_rate(r, m, "rows of a pass", GY_BENCH_ROWS, s);
    gy_str_printf(s, "  %-28s%10.1f %%\n", "of max_rows", 100 * m->f[GY_BENCH_ROWS_SHARE]);
    gy_str_printf(s, "  %-28s%10.2f  of %.2f\n", "processor seconds", m->f[GY_BENCH_CPU_SECONDS],
                  m->f[GY_BENCH_SECONDS]);
    gy_str_printf(s, "  %-28s%10.3f\n", "mean loops", m->f[GY_BENCH_MEAN_LOOPS]);
}

static void put_blocks(gy_str *s, const char *label, double v, double of, const char *what) {
    gy_str_printf(s, "  %-28s%10.1f", label, v);
    if (of > 0) gy_str_printf(s, "  %.1f %% of %s", 100 * v / of, what);
    gy_str_putc(s, '\n');
}

static void put_kv(const gy_bench_result *m, gy_str *s) {
    const double *f = m->f;
    gy_str_puts(s, "\nKV blocks\n");
    put_blocks(s, "in use, mean", f[GY_BENCH_KV_USED_MEAN], f[GY_BENCH_KV_TOTAL], "all");
    put_blocks(s, "in use, peak", f[GY_BENCH_KV_USED_PEAK], f[GY_BENCH_KV_TOTAL], "all");
    put_blocks(s, "full reservation, mean", f[GY_BENCH_KV_RESERVED_MEAN], 0, "");
    if (f[GY_BENCH_DECODE_STEPS] > 0) {
        gy_str_printf(s, "  while all decode (%.0f steps)\n", f[GY_BENCH_DECODE_STEPS]);
        put_blocks(s, "  in use", f[GY_BENCH_DECODE_USED], f[GY_BENCH_DECODE_FULL], "full depth");
        put_blocks(s, "  loops that ran / 16", f[GY_BENCH_DECODE_EXECUTED], f[GY_BENCH_DECODE_FULL], "full depth");
        put_blocks(s, "  full depth", f[GY_BENCH_DECODE_FULL], 0, "");
        put_blocks(s, "  full reservation", f[GY_BENCH_DECODE_RESERVED], 0, "");
    }
    gy_str_printf(s, "  %-28s%10.1f %%\n", "prompt tokens from the cache", 100 * f[GY_BENCH_HIT_RATE]);
    gy_str_printf(s, "  %-28s%10.0f\n", "preemptions", f[GY_BENCH_PREEMPTIONS]);
    gy_str_printf(s, "  %-28s%10.0f\n", "bytes copied", f[GY_BENCH_KV_COPIED]);
}

static void put_host(const gy_bench_result *m, gy_str *s) {
    const double *f = m->f;
    gy_str_printf(s, "\nsteps\n  %-28s%10.0f\n", "steps", f[GY_BENCH_STEPS]);
    gy_str_printf(s, "  %-28s%10.1f us\n", "step", f[GY_BENCH_STEP_US]);
    gy_str_printf(s, "  %-28s%10.2f us  %.2f %% of it\n", "  host part", f[GY_BENCH_HOST_US],
                  100 * f[GY_BENCH_HOST_SHARE]);
    gy_str_printf(s, "  %-28s%10.2f us\n", "  sampler", f[GY_BENCH_SAMPLE_US]);
    if (!isnan(f[GY_BENCH_WAIT_US])) {
        gy_str_printf(s, "  %-28s%10.1f us\n", "  waiting for the device", f[GY_BENCH_WAIT_US]);
        gy_str_printf(s, "  %-28s%10.1f us  %.2f %% of it\n", "  the host at work", f[GY_BENCH_WORK_US],
                      100 * f[GY_BENCH_WORK_SHARE]);
    }
    if (!isnan(f[GY_BENCH_FLOOR_TOKEN]))
        gy_str_printf(s, "  %-28s%10.3f ms, a prompt alone %.3f\n", "floor of a token", f[GY_BENCH_FLOOR_TOKEN],
                      f[GY_BENCH_FLOOR_PROMPT]);
    gy_str_printf(s, "\nmemory, MB\n  %-28s%10.1f\n", "KV pools", f[GY_BENCH_KV_BYTES] / 1e6);
    gy_str_printf(s, "  %-28s%10.1f\n", "  of it in use, peak", f[GY_BENCH_KV_BYTES_PEAK] / 1e6);
    gy_str_printf(s, "  %-28s%10.1f\n", "workspace", f[GY_BENCH_WORKSPACE_BYTES] / 1e6);
    gy_str_printf(s, "  %-28s%10.1f\n", "process, peak resident", f[GY_BENCH_RSS_PEAK] / 1e6);
}

/* ---- table of layouts ---- */

static void put_layout(const gy_bench_series *first, const gy_bench_series *s, gy_str *out) {
    static const struct {
        gy_bench_dist d;
        gy_bench_stat s;
    } cols[] = {{GY_BENCH_TTFT, GY_BENCH_P50}, {GY_BENCH_TTFT, GY_BENCH_P95}, {GY_BENCH_TTFT, GY_BENCH_P99},
                {GY_BENCH_ITL, GY_BENCH_P50},  {GY_BENCH_ITL, GY_BENCH_P99},  {GY_BENCH_TPOT, GY_BENCH_P50},
                {GY_BENCH_TPOT, GY_BENCH_P95}, {GY_BENCH_E2E, GY_BENCH_P50},  {GY_BENCH_TAIL, GY_BENCH_P50}};
    gy_bench_result m;
    double ratio[3];
    gy_bench_median(s->r, s->n, &m);
    gy_bench_ratio(first, s, ratio);
    gy_str_printf(out, "  %-14s%4d x %-3d%10.1f%8.2f", s->layout, s->n_process, s->n_thread, m.f[GY_BENCH_OUTPUT_RATE],
                  ratio[0]);
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) put_ms(out, m.f[gy_bench_at(cols[i].d, cols[i].s)]);
    put_spread(s, GY_BENCH_OUTPUT_RATE, out);
    if (m.f[GY_BENCH_FAILED] > 0) gy_str_printf(out, "  %.0f FAILED", m.f[GY_BENCH_FAILED]);
    gy_str_putc(out, '\n');
}

static void put_layouts(const gy_bench_series *s, size_t n, gy_str *out) {
    static const char *const head[][2] = {{"TTFT", "p50"}, {"TTFT", "p95"}, {"TTFT", "p99"},
                                          {"ITL", "p50"},  {"ITL", "p99"},  {"TPOT", "p50"},
                                          {"TPOT", "p95"}, {"E2E", "p50"},  {"tail", "p50"}};
    gy_str_printf(out, "\nlayouts, median%s of %zu in turns; ms\n", s[0].n > 1 ? " (least to most tokens/s)" : "",
                  s[0].n);
    for (int k = 0; k < 2; k++) {
        gy_str_printf(out, "  %-14s%10s%10s%8s", "", k ? "x threads" : "processes", k ? "tokens/s" : "output",
                      k ? "first" : "of the");
        for (size_t i = 0; i < sizeof head / sizeof *head; i++) gy_str_printf(out, "%10s", head[i][k]);
        gy_str_putc(out, '\n');
    }
    for (size_t i = 0; i < n; i++) put_layout(&s[0], &s[i], out);
}

static void put_outputs(const gy_bench_series *s, size_t n, int32_t differ, gy_str *out) {
    double ratio[3];
    if (n == 2 && !s->layout) {
        gy_bench_ratio(&s[0], &s[1], ratio);
        gy_str_printf(out, "\nprefix cache on over off: %.2f times the output tokens/s (%.2f to %.2f)\n", ratio[0],
                      ratio[1], ratio[2]);
    }
    if (n * s[0].n < 2) return;
    if (differ < 0)
        gy_str_printf(out, "\noutputs of all %zu runs are equal\n", n * s[0].n);
    else
        gy_str_printf(out, "\nOUTPUTS DIFFER, first in request %d\n", differ);
}

void gy_bench_put_steps(const gy_bench_sample *s, size_t n, gy_str *out) {
    gy_str_puts(out, "ms,passes,prompt_rows,decode_rows,outputs,step_us,wait_us\n");
    for (size_t i = 0; i < n; i++)
        gy_str_printf(out, "%.3f,%d,%d,%d,%d,%.1f,%.1f\n", (double)(s[i].at_ns - s[0].at_ns) * 1e-6, s[i].n_pass,
                      s[i].n_row[0], s[i].n_row[1], s[i].n_output, (double)s[i].step_ns * 1e-3,
                      (double)s[i].wait_ns * 1e-3);
}

void gy_bench_put_cell_head(gy_str *out) {
    static const char *const cols[] = {"TTFT p50", "floor", "p99",  "TPOT p50", "floor",   "ITL p99", "tok/s",
                                       "least",    "most",  "rows", "loops",    "step us", "host %"};
    gy_str_printf(out, "%-24s", "cell; times in ms");
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) gy_str_printf(out, "%10s", cols[i]);
    gy_str_putc(out, '\n');
}

static void put_cell_value(gy_str *out, double v) {
    if (isnan(v))
        gy_str_printf(out, "%10s", "-");
    else
        gy_str_printf(out, v < 10 ? "%10.3f" : v < 1000 ? "%10.2f" : "%10.0f", v);
}

void gy_bench_put_cell(const char *name, const gy_bench_series *s, int32_t differ, gy_str *out) {
    gy_bench_result m;
    gy_bench_median(s->r, s->n, &m);
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < s->n; i++) {
        least = fmin(least, s->r[i].f[GY_BENCH_OUTPUT_RATE]);
        most = fmax(most, s->r[i].f[GY_BENCH_OUTPUT_RATE]);
    }
    const double v[] = {m.f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P50)],
                        m.f[GY_BENCH_FLOOR_PROMPT],
                        m.f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P99)],
                        m.f[gy_bench_at(GY_BENCH_TPOT, GY_BENCH_P50)],
                        m.f[GY_BENCH_FLOOR_TOKEN],
                        m.f[gy_bench_at(GY_BENCH_ITL, GY_BENCH_P99)],
                        m.f[GY_BENCH_OUTPUT_RATE],
                        least,
                        most,
                        m.f[GY_BENCH_ROWS],
                        m.f[GY_BENCH_MEAN_LOOPS],
                        m.f[GY_BENCH_STEP_US],
                        100 * m.f[GY_BENCH_WORK_SHARE]};
    gy_str_printf(out, "%-24s", name);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) put_cell_value(out, v[i]);
    if (m.f[GY_BENCH_FAILED] > 0) gy_str_printf(out, "  %.0f FAILED", m.f[GY_BENCH_FAILED]);
    if (differ >= 0) gy_str_puts(out, "  OUTPUTS DIFFER");
    gy_str_putc(out, '\n');
}

void gy_bench_put_table(const gy_bench_setup *u, const gy_bench_series *s, size_t n, int32_t differ, gy_str *out) {
    put_setup(u, out);
    if (s->layout) put_layouts(s, n, out);
    for (size_t i = 0; i < n && !s->layout; i++) {
        gy_bench_result m;
        gy_bench_median(s[i].r, s[i].n, &m);
        gy_str_printf(out, "%sprefix cache %s\n", n > 1 ? "\n---- " : "", s[i].prefix_cache ? "on" : "off");
        put_latencies(&m, out);
        put_rates(&s[i], &m, out);
        put_kv(&m, out);
        put_host(&m, out);
        if (m.f[GY_BENCH_FAILED] > 0) gy_str_printf(out, "\n%.0f REQUESTS FAILED\n", m.f[GY_BENCH_FAILED]);
    }
    put_outputs(s, n, differ, out);
}

/* ---- JSON ---- */

static void key_str(gy_jw *w, const char *key, const char *v) {
    gy_jw_key(w, key);
    gy_jw_strz(w, v);
}
static void key_int(gy_jw *w, const char *key, int64_t v) {
    gy_jw_key(w, key);
    gy_jw_int(w, v);
}
static void key_num(gy_jw *w, const char *key, double v) {
    gy_jw_key(w, key);
    gy_jw_f64(w, v);
}
static void key_bool(gy_jw *w, const char *key, int v) {
    gy_jw_key(w, key);
    gy_jw_bool(w, v);
}
static void key_range(gy_jw *w, const char *key, gy_bench_range r) {
    gy_jw_key(w, key);
    gy_jw_arr_begin(w);
    gy_jw_int(w, r.lo);
    gy_jw_int(w, r.hi);
    gy_jw_arr_end(w);
}
static void key_obj(gy_jw *w, const char *key) {
    gy_jw_key(w, key);
    gy_jw_obj_begin(w);
}

static void json_load(gy_jw *w, const gy_bench_setup *u) {
    const gy_bench_load *l = u->load;
    key_obj(w, "workload");
    key_str(w, "kind", gy_bench_kind_name(l->kind));
    key_int(w, "requests", (int64_t)l->n_stream * l->n_turn);
    if (l->kind == GY_BENCH_SESSION) {
        key_int(w, "users", l->n_stream);
        key_int(w, "turns", l->n_turn);
    } else if (l->kind == GY_BENCH_POISSON) {
        key_num(w, "rate", l->rate);
    } else {
        key_int(w, "concurrency", l->concurrency);
    }
    key_range(w, "in", l->in);
    key_range(w, "out", l->out);
    gy_jw_key(w, "seed");
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)l->seed);
    gy_jw_strz(w, seed); /* a double could not hold every seed */
    key_int(w, "warmup", u->warmup);
    gy_jw_obj_end(w);
}

static void json_request(gy_jw *w, const gy_request *q, const char *exit) {
    key_obj(w, "request");
    key_str(w, "exit", exit);
    key_num(w, "exit_threshold", q->exit.threshold);
    key_int(w, "min_loops", q->exit.min_loops);
    key_int(w, "max_loops", q->exit.max_loops);
    key_str(w, "initial_state", q->latent_noise ? "noise" : "zero");
    key_num(w, "temperature", (double)q->sample.temperature);
    key_int(w, "top_k", q->sample.top_k);
    key_num(w, "top_p", (double)q->sample.top_p);
    key_num(w, "min_p", (double)q->sample.min_p);
    key_int(w, "logprobs", q->sample.n_logprobs);
    gy_jw_obj_end(w);
}

static void json_engine(gy_jw *w, const gy_bench_setup *u) {
    const gy_engine_opts *o = u->engine;
    static const char *const preempt[] = {"auto", "park", "recompute"};
    key_obj(w, "engine");
    key_int(w, "max_rows", o->sched.max_rows);
    key_int(w, "max_seqs", o->sched.max_seqs);
    key_int(w, "max_queue", o->sched.max_queue);
    key_int(w, "max_len", o->max_len);
    key_int(w, "prefill_chunk", o->sched.prefill_chunk);
    key_num(w, "prefill_share", o->sched.prefill_share);
    key_bool(w, "refill", !o->sched.no_refill);
    key_int(w, "min_coda", o->sched.min_coda);
    key_bool(w, "reserve_full", o->sched.reserve_full);
    key_num(w, "watermark", o->sched.watermark);
    key_str(w, "policy", o->sched.policy == GY_SCHED_PRIORITY ? "priority" : "fcfs");
    key_str(w, "preempt", preempt[o->sched.preempt]);
    key_int(w, "fuse_loops", o->fuse_loops);
    key_str(w, "kv_layout", u->kv_layout);
    key_str(w, "kv_dtype", u->kv_dtype);
    gy_jw_obj_end(w);
}

static void json_machine(gy_jw *w, const gy_bench_setup *u) {
    key_obj(w, "model");
    key_str(w, u->synthetic ? "shape" : "folder", u->model);
    key_str(w, "family", u->family);
    key_int(w, "n_loop", u->n_loop);
    key_str(w, "dtype", u->dtype);
    gy_jw_obj_end(w);
    key_obj(w, "machine");
    key_str(w, "cpu", u->cpu);
    key_int(w, "physical_cores", u->n_core);
    if (u->variant) key_int(w, "threads", u->n_thread);
    if (u->variant) key_str(w, "variant", u->variant);
    gy_jw_obj_end(w);
}

static void json_result(gy_jw *w, const gy_bench_result *r) {
    char name[64];
    gy_jw_obj_begin(w);
    for (int d = 0; d < GY_BENCH_DISTS; d++) {
        key_obj(w, gy_bench_dist_name((gy_bench_dist)d));
        for (int k = 0; k < GY_BENCH_STATS; k++)
            key_num(w, gy_bench_stat_name((gy_bench_stat)k), r->f[gy_bench_at((gy_bench_dist)d, (gy_bench_stat)k)]);
        gy_jw_obj_end(w);
    }
    for (size_t i = (size_t)GY_BENCH_DISTS * GY_BENCH_STATS; i < GY_BENCH_N; i++) {
        gy_bench_figure_name(i, name, sizeof name);
        key_num(w, name, r->f[i]);
    }
    gy_jw_obj_end(w);
}

static void json_series(gy_jw *w, const gy_bench_series *s) {
    gy_bench_result m;
    gy_jw_obj_begin(w);
    key_bool(w, "prefix_cache", s->prefix_cache);
    if (s->layout) {
        key_str(w, "layout", s->layout);
        key_int(w, "processes", s->n_process);
        key_int(w, "threads_of_each", s->n_thread);
    }
    gy_bench_median(s->r, s->n, &m);
    gy_jw_key(w, "median");
    json_result(w, &m);
    gy_jw_key(w, "repeats");
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < s->n; i++) json_result(w, &s->r[i]);
    gy_jw_arr_end(w);
    gy_jw_obj_end(w);
}

void gy_bench_put_json(const gy_bench_setup *u, const gy_bench_series *s, size_t n, int32_t differ, gy_str *out) {
    double ratio[3];
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    json_machine(&w, u);
    json_load(&w, u);
    json_request(&w, u->proto, u->exit);
    json_engine(&w, u);
    gy_jw_key(&w, "series");
    gy_jw_arr_begin(&w);
    for (size_t i = 0; i < n; i++) json_series(&w, &s[i]);
    gy_jw_arr_end(&w);
    if (n == 2 && !s->layout) {
        gy_bench_ratio(&s[0], &s[1], ratio);
        key_obj(&w, "on_over_off");
        key_num(&w, "median", ratio[0]);
        key_num(&w, "min", ratio[1]);
        key_num(&w, "max", ratio[2]);
        gy_jw_obj_end(&w);
    }
    key_bool(&w, "outputs_equal", differ < 0);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

/* ---- CSV ---- */

void gy_bench_csv_text(gy_str *s, const char *v) {
    gy_str_putc(s, '"');
    for (; *v; v++) {
        if (*v == '"') gy_str_putc(s, '"');
        gy_str_putc(s, *v);
    }
    gy_str_putc(s, '"');
}

static void csv_line(const gy_bench_setup *u, const gy_bench_series *s, size_t repeat, gy_str *out) {
    if (u->cell) gy_str_printf(out, "%s,", u->cell);
    gy_bench_csv_text(out, u->model);
    gy_str_printf(out, ",%s,", gy_bench_kind_name(u->load->kind));
    if (s->layout) gy_str_printf(out, "%s,", s->layout);
    gy_str_printf(out, "%s,%d,%zu", s->prefix_cache ? "on" : "off", u->load->concurrency, repeat);
    for (size_t i = 0; i < GY_BENCH_N; i++) {
        const double v = s->r[repeat].f[i];
        if (isnan(v))
            gy_str_putc(out, ',');
        else
            gy_str_printf(out, ",%.9g", v);
    }
    gy_str_putc(out, '\n');
}

static void csv_head(const gy_bench_setup *u, const gy_bench_series *s, gy_str *out) {
    char name[64];
    gy_str_printf(out, "%smodel,workload,%sprefix_cache,concurrency,repeat", u->cell ? "cell," : "",
                  s->layout ? "layout," : "");
    for (size_t i = 0; i < GY_BENCH_N; i++) {
        gy_bench_figure_name(i, name, sizeof name);
        gy_str_printf(out, ",%s", name);
    }
    gy_str_putc(out, '\n');
}

void gy_bench_put_csv(const gy_bench_setup *u, const gy_bench_series *s, size_t n, gy_str *out) {
    if (!out->len) csv_head(u, s, out);
    for (size_t k = 0; k < s[0].n; k++)
        for (size_t i = 0; i < n; i++) csv_line(u, &s[i], k, out);
}
