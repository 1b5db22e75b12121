/* Table, JSON, CSV: see cli_bench_serve_report.h. */
#include "cli/cli_bench_serve_report.h"

#include "cli/cli_bench_report.h"

#include <math.h>
#include <stdio.h>

static const char *const dist_labels[GY_BSERVE_DISTS] = {"TTFT", "TPOT", "ITL", "E2E", "lag"};

/* ---- what was asked ---- */

static void put_range(gy_str *s, gy_bench_range r) {
    gy_str_printf(s, r.lo == r.hi ? "%d" : "%d:%d", r.lo, r.hi);
}

static void put_prompts(const gy_bserve_setup *u, gy_str *s) {
    const gy_bserve_load *l = &u->plan->load;
    if (l->prompts == GY_BSERVE_DATASET) {
        gy_str_printf(s, "prompts from %s, ", u->dataset);
    } else {
        gy_str_puts(s, "in ");
        if (l->n_prefix) gy_str_printf(s, "%d in common + ", l->n_prefix);
        put_range(s, l->in);
        gy_str_puts(s, l->prompts == GY_BSERVE_IDS             ? " ids, "
                       : l->word_tok == 1 && !u->words_counted ? " words, "
                                                               : ", ");
    }
    gy_str_puts(s, "out ");
    put_range(s, l->out);
    gy_str_printf(s, ", seed %llu", (unsigned long long)l->seed);
}

void gy_bserve_put_workload(const gy_bserve_setup *u, const gy_bserve_point *p, gy_str *s) {
    const gy_bserve_load *l = &u->plan->load;
    if (l->n_turn > 1)
        gy_str_printf(s, "%d conversations of %d turns", p->n_stream, l->n_turn);
    else
        gy_str_printf(s, "%d requests", p->n_stream);
    if (!isinf(p->rate))
        gy_str_printf(s, ", %g a second on average", p->rate);
    else if (!p->concurrency)
        gy_str_puts(s, ", all at the start");
    if (!isinf(p->rate) && l->burstiness != 1) gy_str_printf(s, " (burstiness %g)", l->burstiness);
    if (p->concurrency) gy_str_printf(s, ", at most %d at once", p->concurrency);
    gy_str_puts(s, ", ");
    put_prompts(u, s);
}

static void put_setup(const gy_bserve_setup *u, gy_str *s) {
    gy_str_printf(s, "server    %s, %s\n", u->url, u->plan->load.chat ? "/v1/chat/completions" : "/v1/completions");
    gy_str_printf(s, "model     %s\n", u->model);
}

/* ---- table of one run ---- */

static void put_ms(gy_str *s, double v) {
    if (isnan(v))
        gy_str_printf(s, "%10s", "-");
    else
        gy_str_printf(s, v < 100 ? "%10.2f" : "%10.1f", v);
}

static void put_latencies(const gy_bserve_setup *u, const gy_bserve_result *r, gy_str *s) {
    gy_str_printf(s, "\n%-14s", "ms");
    for (int k = 0; k < GY_BENCH_STATS; k++) gy_str_printf(s, "%10s", gy_bench_stat_name((gy_bench_stat)k));
    gy_str_putc(s, '\n');
    for (int d = 0; d < GY_BSERVE_DISTS; d++) {
        if (!(u->plan->shown >> d & 1)) continue;
        gy_str_printf(s, "  %-12s", dist_labels[d]);
        for (int k = 0; k < GY_BENCH_STATS; k++) put_ms(s, r->dist[d][k]);
        gy_str_putc(s, '\n');
    }
}

static void put_count(gy_str *s, const char *label, double v) {
    gy_str_printf(s, "  %-28s%10.0f\n", label, v);
}

static void put_rates(const gy_bserve_result *r, gy_str *s) {
    const double *f = r->f;
    gy_str_printf(s, "\n  %-28s%10.2f s\n", "duration", f[GY_BSERVE_SECONDS]);
    gy_str_printf(s, "  %-28s%10.2f /s   %.0f of %.0f\n", "requests completed", f[GY_BSERVE_REQUEST_RATE],
                  f[GY_BSERVE_COMPLETED], f[GY_BSERVE_REQUESTS]);
    if (!isnan(f[GY_BSERVE_GOODPUT]))
        gy_str_printf(s, "  %-28s%10.2f /s   %.0f requests keep to --goodput\n", "goodput", f[GY_BSERVE_GOODPUT],
                      f[GY_BSERVE_GOOD]);
    gy_str_printf(s, "  %-28s%10.1f /s   %.0f\n", "output tokens", f[GY_BSERVE_OUTPUT_RATE], f[GY_BSERVE_OUTPUT_TOK]);
    gy_str_printf(s, "  %-28s%10.1f /s   %.0f of prompts", "prompt + output tokens", f[GY_BSERVE_TOTAL_RATE],
                  f[GY_BSERVE_PROMPT_TOK]);
    if (!isnan(f[GY_BSERVE_CACHED_TOK])) gy_str_printf(s, ", %.0f of them cached", f[GY_BSERVE_CACHED_TOK]);
    gy_str_printf(s, "\n  %-28s%10.1f      peak %.0f\n", "requests under way, mean", f[GY_BSERVE_RUNNING_MEAN],
                  f[GY_BSERVE_RUNNING_PEAK]);
    if (!isnan(f[GY_BSERVE_MEAN_LOOPS])) gy_str_printf(s, "  %-28s%10.3f\n", "loops a token", f[GY_BSERVE_MEAN_LOOPS]);
    gy_str_printf(s, "  %-28s%10.1f %%    %.1f us a token\n", "generator's processor", 100 * f[GY_BSERVE_CPU_SHARE],
                  f[GY_BSERVE_CPU_US_TOK]);
    if (f[GY_BSERVE_HELD_BACK] > 0)
        gy_str_printf(s, "  %-28s%10.0f      by --concurrency, %.1f ms on average\n", "requests held back",
                      f[GY_BSERVE_HELD_BACK], f[GY_BSERVE_HELD_BACK_MS]);
}

static void put_errors(const gy_bserve_outcome *o, gy_str *s) {
    const gy_bserve_result *r = &o->result;
    char name[32];
    if (r->f[GY_BSERVE_FAILED] > 0) gy_str_printf(s, "\n%.0f REQUESTS FAILED\n", r->f[GY_BSERVE_FAILED]);
    for (int i = 0; i < r->n_error; i++) {
        const char *msg = o->run.rec[r->error[i].first].msg;
        gy_bserve_error_name(r->error[i].end, r->error[i].http_status, name, sizeof name);
        gy_str_printf(s, "  %-14s%6d  %s\n", name, r->error[i].n, msg ? msg : "");
    }
    if (r->f[GY_BSERVE_NOT_SENT] > 0) put_count(s, "NOT SENT", r->f[GY_BSERVE_NOT_SENT]);
    if (r->f[GY_BSERVE_NO_USAGE] > 0)
        gy_str_printf(s, "  %.0f replies held no usage: their tokens are events, their prompts count as nothing\n",
                      r->f[GY_BSERVE_NO_USAGE]);
}

/* A generator that is late by more than a tenth of the time to the first token, or that needs most of a core. */
void gy_bserve_put_warnings(const gy_bserve_outcome *o, gy_str *s) {
    const gy_bserve_result *r = &o->result;
    const double lag = r->dist[GY_BSERVE_LAG][GY_BENCH_P99], ttft = r->dist[GY_BSERVE_TTFT][GY_BENCH_P50];
    if (lag > 5 && lag > ttft / 10)
        gy_str_printf(
            s,
            "requests left up to %.1f ms (p99) after they were due: the generator, or the machine it runs on, "
            "is a bottleneck\n",
            lag);
    if (r->f[GY_BSERVE_CPU_SHARE] > 0.8)
        gy_str_printf(s,
                      "the generator used %.0f %% of a core: it may be the bottleneck; more of them, or fewer requests "
                      "at once, would tell\n",
                      100 * r->f[GY_BSERVE_CPU_SHARE]);
}

static void put_run(const gy_bserve_setup *u, const gy_bserve_outcome *o, gy_str *s) {
    gy_str warn = {0};
    gy_str_puts(s, "workload  ");
    gy_bserve_put_workload(u, &o->point, s);
    gy_str_putc(s, '\n');
    put_latencies(u, &o->result, s);
    put_rates(&o->result, s);
    put_errors(o, s);
    gy_bserve_put_warnings(o, &warn);
    if (warn.len) gy_str_printf(s, "\nWARNING: %s", gy_str_z(&warn));
    gy_str_free(&warn);
}

/* ---- table of a sweep ---- */

static void put_point(const gy_bserve_outcome *o, int rates, int goodput, gy_str *s) {
    const gy_bserve_result *r = &o->result;
    if (rates)
        gy_str_printf(s, "%9g", o->point.rate);
    else
        gy_str_printf(s, "%9d", o->point.concurrency);
    gy_str_printf(s, "%8.2f%10.1f", r->f[GY_BSERVE_REQUEST_RATE], r->f[GY_BSERVE_OUTPUT_RATE]);
    if (goodput) gy_str_printf(s, "%9.2f", r->f[GY_BSERVE_GOODPUT]);
    put_ms(s, r->dist[GY_BSERVE_TTFT][GY_BENCH_P50]);
    put_ms(s, r->dist[GY_BSERVE_TTFT][GY_BENCH_P99]);
    put_ms(s, r->dist[GY_BSERVE_TPOT][GY_BENCH_P50]);
    put_ms(s, r->dist[GY_BSERVE_TPOT][GY_BENCH_P99]);
    put_ms(s, r->dist[GY_BSERVE_E2E][GY_BENCH_P50]);
    gy_str_printf(s, "%8.0f\n", r->f[GY_BSERVE_FAILED]);
}

static void put_sweep(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, gy_str *s) {
    const int rates = u->plan->sweep == GY_BSERVE_RATES, goodput = u->plan->slo.given;
    gy_str_printf(s, "\n%9s%8s%10s%s%10s%10s%10s%10s%10s%8s\n", rates ? "rate" : "at once", "req/s", "tok/s",
                  goodput ? "   good/s" : "", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "failed");
    for (size_t i = 0; i < n; i++) put_point(&o[i], rates, goodput, s);
}

void gy_bserve_put_table(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, gy_str *out) {
    put_setup(u, out);
    for (size_t i = 0; i < n; i++) {
        if (n > 1) gy_str_puts(out, "\n----\n");
        put_run(u, &o[i], out);
    }
    if (u->plan->sweep != GY_BSERVE_ONE) put_sweep(u, o, n, out);
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
static void key_range(gy_jw *w, const char *key, gy_bench_range r) {
    gy_jw_key(w, key);
    gy_jw_arr_begin(w);
    gy_jw_int(w, r.lo);
    gy_jw_int(w, r.hi);
    gy_jw_arr_end(w);
}

static void json_workload(gy_jw *w, const gy_bserve_setup *u) {
    static const char *const kinds[] = {"words", "ids", "dataset"};
    const gy_bserve_load *l = &u->plan->load;
    char seed[24];
    gy_jw_key(w, "workload");
    gy_jw_obj_begin(w);
    key_str(w, "prompts", kinds[l->prompts]);
    if (u->dataset) key_str(w, "dataset", u->dataset);
    key_range(w, "in", l->in);
    key_range(w, "out", l->out);
    key_int(w, "prefix", l->n_prefix);
    key_int(w, "turns", l->n_turn);
    key_num(w, "burstiness", l->burstiness);
    key_num(w, "tokens_per_word", u->words_counted ? l->word_tok : NAN);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)l->seed);
    key_str(w, "seed", seed); /* a double could not hold every seed */
    key_int(w, "warmup", u->plan->warmup);
    gy_jw_obj_end(w);
}

static void json_errors(gy_jw *w, const gy_bserve_outcome *o) {
    char name[32];
    gy_jw_key(w, "errors");
    gy_jw_arr_begin(w);
    for (int i = 0; i < o->result.n_error; i++) {
        const gy_bserve_error *e = &o->result.error[i];
        gy_bserve_error_name(e->end, e->http_status, name, sizeof name);
        gy_jw_obj_begin(w);
        key_str(w, "kind", name);
        key_int(w, "count", e->n);
        key_str(w, "first", o->run.rec[e->first].msg);
        gy_jw_obj_end(w);
    }
    gy_jw_arr_end(w);
}

/* Times are milliseconds after the run's start. */
static void json_sample(gy_jw *w, const gy_bserve_record *r, int64_t begin_ns) {
    char name[32];
    gy_jw_obj_begin(w);
    key_int(w, "conversation", r->stream);
    key_int(w, "turn", r->turn);
    gy_bserve_error_name(r->end, r->http_status, name, sizeof name);
    key_str(w, "end", r->sent ? name : "not_sent");
    if (r->msg) key_str(w, "error", r->msg);
    key_num(w, "due_ms", r->sent ? (double)(r->due_ns - begin_ns) * 1e-6 : NAN);
    key_num(w, "sent_ms", r->sent ? (double)(r->sent_ns - begin_ns) * 1e-6 : NAN);
    for (int d = 0; d < GY_BSERVE_DISTS; d++)
        if (d != GY_BSERVE_ITL) key_num(w, gy_bserve_dist_name(d), gy_bserve_value(r, d));
    key_int(w, "prompt_tokens", r->n_prompt);
    key_int(w, "output_tokens", r->n_out);
    key_int(w, "output_tokens_asked", r->n_out_asked);
    key_num(w, "mean_loops", r->n_loop_tok ? (double)r->loops / r->n_loop_tok : NAN);
    gy_jw_key(w, "output_ms");
    gy_jw_arr_begin(w);
    for (size_t i = 0; i < r->n_tok; i++) gy_jw_f64(w, (double)(r->tok_ns[i] - begin_ns) * 1e-6);
    gy_jw_arr_end(w);
    gy_jw_obj_end(w);
}

static void json_run(gy_jw *w, const gy_bserve_outcome *o, int samples) {
    gy_jw_obj_begin(w);
    key_num(w, "rate", o->point.rate);
    gy_jw_key(w, "concurrency");
    if (o->point.concurrency)
        gy_jw_int(w, o->point.concurrency);
    else
        gy_jw_null(w);
    for (int d = 0; d < GY_BSERVE_DISTS; d++) {
        gy_jw_key(w, gy_bserve_dist_name(d));
        gy_jw_obj_begin(w);
        for (int k = 0; k < GY_BENCH_STATS; k++) key_num(w, gy_bench_stat_name((gy_bench_stat)k), o->result.dist[d][k]);
        gy_jw_obj_end(w);
    }
    for (int i = 0; i < GY_BSERVE_N; i++) key_num(w, gy_bserve_figure_name(i), o->result.f[i]);
    json_errors(w, o);
    if (samples) {
        gy_jw_key(w, "samples");
        gy_jw_arr_begin(w);
        for (size_t i = 0; i < o->run.n; i++) json_sample(w, &o->run.rec[i], o->run.begin_ns);
        gy_jw_arr_end(w);
    }
    gy_jw_obj_end(w);
}

static void json_slo(gy_jw *w, const gy_bserve_slo *slo) {
    gy_jw_key(w, "goodput");
    gy_jw_obj_begin(w);
    key_num(w, "ttft_ms", slo->ttft);
    key_num(w, "tpot_ms", slo->tpot);
    key_num(w, "e2e_ms", slo->e2e);
    gy_jw_obj_end(w);
}

/* rate null: all requests are due at the start. concurrency null: no bound. */
void gy_bserve_put_json(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, int samples, gy_str *out) {
    gy_str fixed = {0};
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    key_str(&w, "date", u->when);
    key_str(&w, "gyre", GY_VERSION);
    key_str(&w, "url", u->url);
    key_str(&w, "endpoint", u->plan->load.chat ? "chat" : "completions");
    key_str(&w, "model", u->model);
    json_workload(&w, u);
    gy_str_printf(&fixed, "%s}", u->fixed);
    key_str(&w, "request", gy_str_z(&fixed));
    if (u->plan->slo.given) json_slo(&w, &u->plan->slo);
    gy_jw_key(&w, "runs");
    gy_jw_arr_begin(&w);
    for (size_t i = 0; i < n; i++) json_run(&w, &o[i], samples);
    gy_jw_arr_end(&w);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
    gy_str_free(&fixed);
}

/* ---- CSV ---- */

static void csv_num(gy_str *s, double v) {
    if (isnan(v) || isinf(v))
        gy_str_putc(s, ',');
    else
        gy_str_printf(s, ",%.9g", v);
}

static void csv_line(const gy_bserve_outcome *o, size_t run, const gy_bserve_record *r, gy_str *s) {
    char name[32];
    gy_bserve_error_name(r->end, r->http_status, name, sizeof name);
    gy_str_printf(s, "%zu", run);
    csv_num(s, o->point.rate);
    csv_num(s, o->point.concurrency ? o->point.concurrency : NAN);
    gy_str_printf(s, ",%d,%d,%s", r->stream, r->turn, r->sent ? name : "not_sent");
    csv_num(s, r->sent ? (double)(r->due_ns - o->run.begin_ns) * 1e-9 : NAN);
    csv_num(s, r->sent ? (double)(r->sent_ns - o->run.begin_ns) * 1e-9 : NAN);
    for (int d = 0; d < GY_BSERVE_DISTS; d++)
        if (d != GY_BSERVE_ITL) csv_num(s, gy_bserve_value(r, d));
    gy_str_printf(s, ",%lld,%lld,%d", (long long)r->n_prompt, (long long)r->n_out, r->n_out_asked);
    csv_num(s, r->n_cached >= 0 ? (double)r->n_cached : NAN);
    csv_num(s, r->n_loop_tok ? (double)r->loops / r->n_loop_tok : NAN);
    gy_str_putc(s, ',');
    gy_bench_csv_text(s, r->msg ? r->msg : "");
    gy_str_putc(s, '\n');
}

void gy_bserve_put_csv(const gy_bserve_outcome *o, size_t n, gy_str *out) {
    gy_str_puts(out,
                "run,rate,concurrency,conversation,turn,end,due_s,sent_s,ttft_ms,tpot_ms,e2e_ms,lag_ms,prompt_tokens,"
                "output_tokens,output_tokens_asked,cached_prompt_tokens,mean_loops,error\n");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < o[i].run.n; k++) csv_line(&o[i], i, &o[i].run.rec[k], out);
}
