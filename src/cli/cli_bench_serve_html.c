/* Sections, tables and what is plotted: see cli_bench_serve_html.h. The plots' drawing is cli_bench_serve_svg.h. */
#include "cli/cli_bench_serve_html.h"

#include "base/mem.h"
#include "cli/cli_bench_page.h"
#include "cli/cli_bench_serve_svg.h"

#include <math.h>
#include <stdio.h>

enum { N_BUCKET = 120, MAX_CURVE = 400, MAX_DOT = 2000 };
static const double WIDTH = 430, HEIGHT = 270, WIDE_WIDTH = 880, WIDE_HEIGHT = 220;

typedef struct page {
    const gy_bserve_setup *u;
    gy_str *s;
    int failed;
    int n_plot;
} page;

/* ---- words and numbers ---- */

static void put_tag(page *g, const char *tag, const char *text) {
    gy_str_printf(g->s, "<%s>", tag);
    gy_svg_put_text(g->s, text);
    gy_str_printf(g->s, "</%s>\n", tag);
}

static void put_num(gy_str *s, double v) {
    if (isnan(v))
        gy_str_puts(s, "&ndash;");
    else
        gy_str_printf(s, fabs(v) >= 1000 ? "%.0f" : fabs(v) >= 100 ? "%.1f" : "%.2f", v);
}

static void put_card(page *g, const char *label, double v, const char *unit) {
    if (isnan(v)) return;
    gy_str_puts(g->s, "<div class=\"card\"><b>");
    put_num(g->s, v);
    gy_str_printf(g->s, "</b><span>%s%s%s</span></div>\n", label, unit[0] ? ", " : "", unit);
}

static void put_cards(page *g, const gy_bserve_result *r) {
    gy_str_puts(g->s, "<div class=\"cards\">\n");
    put_card(g, "output tokens", r->f[GY_BSERVE_OUTPUT_RATE], "per second");
    put_card(g, "requests", r->f[GY_BSERVE_REQUEST_RATE], "per second");
    put_card(g, "good requests", r->f[GY_BSERVE_GOODPUT], "per second");
    put_card(g, "TTFT p50", r->dist[GY_BSERVE_TTFT][GY_BENCH_P50], "ms");
    put_card(g, "TTFT p99", r->dist[GY_BSERVE_TTFT][GY_BENCH_P99], "ms");
    put_card(g, "TPOT p50", r->dist[GY_BSERVE_TPOT][GY_BENCH_P50], "ms");
    put_card(g, "E2E p50", r->dist[GY_BSERVE_E2E][GY_BENCH_P50], "ms");
    put_card(g, "loops a token", r->f[GY_BSERVE_MEAN_LOOPS], "");
    gy_str_puts(g->s, "</div>\n");
}

static void put_latencies(page *g, const gy_bserve_result *r) {
    static const char *const names[GY_BSERVE_DISTS] = {"TTFT: first output", "TPOT: each further token",
                                                       "ITL: between two outputs", "E2E: whole request",
                                                       "lag: the generator's own delay"};
    gy_str_puts(
        g->s, "<div class=\"scroll\"><table><caption>Latencies in milliseconds</caption>\n<tr><th scope=\"col\"></th>");
    for (int k = 0; k < GY_BENCH_STATS; k++)
        gy_str_printf(g->s, "<th scope=\"col\">%s</th>", gy_bench_stat_name((gy_bench_stat)k));
    gy_str_puts(g->s, "</tr>\n");
    for (int d = 0; d < GY_BSERVE_DISTS; d++) {
        gy_str_printf(g->s, "<tr><td>%s</td>", names[d]);
        for (int k = 0; k < GY_BENCH_STATS; k++) {
            gy_str_puts(g->s, "<td>");
            put_num(g->s, r->dist[d][k]);
            gy_str_puts(g->s, "</td>");
        }
        gy_str_puts(g->s, "</tr>\n");
    }
    gy_str_puts(g->s, "</table></div>\n");
}

static void put_totals(page *g, const gy_bserve_result *r) {
    const double *f = r->f;
    gy_str_printf(g->s,
                  "<p>%.0f of %.0f requests completed in %.2f s, %.1f under way on average and %.0f at most. "
                  "%.0f prompt tokens",
                  f[GY_BSERVE_COMPLETED], f[GY_BSERVE_REQUESTS], f[GY_BSERVE_SECONDS], f[GY_BSERVE_RUNNING_MEAN],
                  f[GY_BSERVE_RUNNING_PEAK], f[GY_BSERVE_PROMPT_TOK]);
    if (!isnan(f[GY_BSERVE_CACHED_TOK])) gy_str_printf(g->s, " (%.0f of them cached)", f[GY_BSERVE_CACHED_TOK]);
    gy_str_printf(g->s, ", %.0f output tokens. The generator used %.0f %% of a core.</p>\n", f[GY_BSERVE_OUTPUT_TOK],
                  100 * f[GY_BSERVE_CPU_SHARE]);
}

static void put_errors(page *g, const gy_bserve_outcome *o) {
    const gy_bserve_result *r = &o->result;
    gy_str warn = {0};
    gy_bserve_put_warnings(o, &warn);
    if (warn.failed) g->failed = 1;
    if (warn.len) {
        gy_str_puts(g->s, "<p class=\"bad\">");
        gy_svg_put_text(g->s, gy_str_z(&warn));
        gy_str_puts(g->s, "</p>\n");
    }
    gy_str_free(&warn);
    if (r->f[GY_BSERVE_NOT_SENT] > 0)
        gy_str_printf(g->s, "<p class=\"bad\">%.0f requests were not sent.</p>\n", r->f[GY_BSERVE_NOT_SENT]);
    if (!r->n_error) return;
    gy_str_printf(
        g->s,
        "<div class=\"scroll\"><table><caption class=\"bad\">%.0f requests failed</caption>\n<tr><th "
        "scope=\"col\">kind</th><th scope=\"col\">requests</th><th scope=\"col\">the first one's reason</th></tr>\n",
        r->f[GY_BSERVE_FAILED]);
    for (int i = 0; i < r->n_error; i++) {
        char name[32];
        const char *msg = o->run.rec[r->error[i].first].msg;
        gy_bserve_error_name(r->error[i].end, r->error[i].http_status, name, sizeof name);
        gy_str_printf(g->s, "<tr><td>%s</td><td>%d</td><td class=\"text\">", name, r->error[i].n);
        gy_svg_put_text(g->s, msg ? msg : "");
        gy_str_puts(g->s, "</td></tr>\n");
    }
    gy_str_puts(g->s, "</table></div>\n");
}

/* ---- plots of a run ---- */

static void plot_open(page *g, gy_svg *p, gy_svg_frame f, char id[16]) {
    snprintf(id, 16, "plot%d", ++g->n_plot);
    f.id = id;
    gy_str_puts(g->s, f.width > WIDTH ? "<div class=\"wide\">" : "<div>");
    gy_svg_begin(p, &f, g->s);
}

static void plot_close(page *g, gy_svg *p) {
    gy_svg_end(p);
    gy_str_puts(g->s, "</div>\n");
}

/* The steps of the share, at evenly spaced ranks when there are more values than a curve can show. */
static size_t cdf_steps(const double *v, size_t n, double *x, double *y) {
    const size_t m = n < MAX_CURVE ? n : MAX_CURVE;
    for (size_t i = 0; i < m; i++) {
        const size_t k = m < 2 ? 0 : i * (n - 1) / (m - 1);
        x[2 * i] = x[2 * i + 1] = v[k];
        y[2 * i] = i ? y[2 * i - 1] : 0;
        y[2 * i + 1] = 100 * (double)(k + 1) / (double)n;
    }
    return 2 * m;
}

/* The axis leaves out the lowest hundredth: two outputs that came in one packet are microseconds apart, and would take
 * half of a logarithmic axis. The curve begins at its edge then. */
static void put_cdf(page *g, const gy_bserve_outcome *o, int dist, const char *title, const char *label) {
    double x[2 * MAX_CURVE], y[2 * MAX_CURVE];
    size_t n = 0;
    gy_svg p;
    char id[16], text[160];
    double *v = gy_bserve_sorted(o->run.rec, o->run.n, dist, &n);
    const double *st = o->result.dist[dist];
    if (!v) {
        g->failed = 1;
        return;
    }
    const size_t m = cdf_steps(v, n, x, y);
    snprintf(text, sizeof text,
             "Share of %zu values that are at most so long. Median %.4g ms, p99 %.4g ms, largest %.4g ms.", n,
             st[GY_BENCH_P50], st[GY_BENCH_P99], st[GY_BENCH_MAX]);
    plot_open(g, &p,
              (gy_svg_frame){.title = title,
                             .text = text,
                             .width = WIDTH,
                             .height = HEIGHT,
                             .x = gy_svg_axis_for(x + m / 50, m - m / 50, 1, label),
                             .y = {0, 100, 0, "share at most, %"}},
              id);
    gy_svg_mark(&p, st[GY_BENCH_P50], "p50");
    if (n >= 20) gy_svg_mark(&p, st[GY_BENCH_P99], "p99");
    gy_svg_line(&p, x, y, m, 1);
    plot_close(g, &p);
    gy_mem_free(v);
}

static size_t input_lengths(const gy_bserve_outcome *o, double *x, double *y) {
    const size_t stride = o->run.n / MAX_DOT + 1;
    size_t n = 0;
    for (size_t i = 0; i < o->run.n && n < MAX_DOT; i += stride) {
        const gy_bserve_record *r = &o->run.rec[i];
        const double ttft = gy_bserve_value(r, GY_BSERVE_TTFT);
        if (isnan(ttft)) continue;
        x[n] = (double)(r->has_usage ? r->n_prompt : r->n_prompt_asked);
        y[n++] = ttft;
    }
    return n;
}

static void put_scatter(page *g, const gy_bserve_outcome *o) {
    double *x = gy_mem_alloc(GY_MEM_CLI, MAX_DOT, 2 * sizeof *x), *y = x + MAX_DOT;
    gy_svg p;
    char id[16];
    if (!x) {
        g->failed = 1;
        return;
    }
    const size_t n = input_lengths(o, x, y);
    plot_open(g, &p,
              (gy_svg_frame){.title = "TTFT by prompt length",
                             .text = "One dot a request: prompt tokens against the time to its first output.",
                             .width = WIDTH,
                             .height = HEIGHT,
                             .x = gy_svg_axis_for(x, n, 0, "prompt tokens"),
                             .y = gy_svg_axis_for(y, n, 0, "TTFT, ms")},
              id);
    gy_svg_dots(&p, x, y, n, n > 300 ? 2 : 3, 1);
    plot_close(g, &p);
    gy_mem_free(x);
}

typedef struct timeline {
    double at[N_BUCKET], running[N_BUCKET], tok[N_BUCKET];
} timeline;

static double overlap(double a0, double a1, double b0, double b1) {
    const double v = fmin(a1, b1) - fmax(a0, b0);
    return v > 0 ? v : 0;
}

static void fill_timeline(const gy_bserve_outcome *o, double seconds, timeline *t) {
    const double width = seconds / N_BUCKET;
    for (int b = 0; b < N_BUCKET; b++) t->at[b] = (b + 0.5) * width;
    for (size_t i = 0; i < o->run.n; i++) {
        const gy_bserve_record *r = &o->run.rec[i];
        if (!r->sent) continue;
        const double from = (double)(r->sent_ns - o->run.begin_ns) * 1e-9,
                     to = (double)(r->end_ns - o->run.begin_ns) * 1e-9;
        for (int b = (int)(from / width); b >= 0 && b < N_BUCKET && b * width < to; b++)
            t->running[b] += overlap(from, to, b * width, (b + 1) * width) / width;
        for (size_t k = 0; k < r->n_tok; k++) {
            const int b = (int)((double)(r->tok_ns[k] - o->run.begin_ns) * 1e-9 / width);
            if (b >= 0 && b < N_BUCKET) t->tok[b] += 1 / width;
        }
    }
}

static void put_timeline(page *g, const gy_bserve_outcome *o) {
    const double seconds = o->result.f[GY_BSERVE_SECONDS];
    timeline t = {{0}, {0}, {0}};
    gy_svg p;
    char id[16];
    if (isnan(seconds)) return;
    fill_timeline(o, seconds, &t);
    gy_svg_frame f = {.title = "Requests under way",
                      .text = "Requests that were sent and had not ended, over the run's time.",
                      .width = WIDE_WIDTH,
                      .height = WIDE_HEIGHT,
                      .x = {0, seconds, 0, "seconds after the start"},
                      .y = gy_svg_axis_for(t.running, N_BUCKET, 0, "requests")};
    plot_open(g, &p, f, id);
    gy_svg_area(&p, t.at, t.running, N_BUCKET, 1);
    plot_close(g, &p);
    f.title = "Outputs a second";
    f.text = "Events with output that came in each of 120 parts of the run.";
    f.y = gy_svg_axis_for(t.tok, N_BUCKET, 0, "outputs per second");
    plot_open(g, &p, f, id);
    gy_svg_area(&p, t.at, t.tok, N_BUCKET, 3);
    plot_close(g, &p);
}

/* ---- a sweep ---- */

static double point_x(const gy_bserve_setup *u, const gy_bserve_outcome *o) {
    return u->plan->sweep == GY_BSERVE_RATES ? o->point.rate : o->point.concurrency;
}

static void put_sweep_table(page *g, const gy_bserve_outcome *o, size_t n) {
    gy_str_printf(g->s,
                  "<div class=\"scroll\"><table><tr><th scope=\"col\">%s</th><th scope=\"col\">requests/s</th><th "
                  "scope=\"col\">tokens/s</th><th scope=\"col\">good/s</th><th scope=\"col\">TTFT p50, ms</th><th "
                  "scope=\"col\">p99</th><th scope=\"col\">TPOT p50, ms</th><th scope=\"col\">p99</th><th "
                  "scope=\"col\">E2E p50, ms</th><th scope=\"col\">failed</th></tr>\n",
                  g->u->plan->sweep == GY_BSERVE_RATES ? "rate, requests/s" : "at once");
    for (size_t i = 0; i < n; i++) {
        const gy_bserve_result *r = &o[i].result;
        const double v[] = {r->f[GY_BSERVE_REQUEST_RATE],
                            r->f[GY_BSERVE_OUTPUT_RATE],
                            r->f[GY_BSERVE_GOODPUT],
                            r->dist[GY_BSERVE_TTFT][GY_BENCH_P50],
                            r->dist[GY_BSERVE_TTFT][GY_BENCH_P99],
                            r->dist[GY_BSERVE_TPOT][GY_BENCH_P50],
                            r->dist[GY_BSERVE_TPOT][GY_BENCH_P99],
                            r->dist[GY_BSERVE_E2E][GY_BENCH_P50]};
        gy_str_printf(g->s, "<tr><td>%g</td>", point_x(g->u, &o[i]));
        for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
            gy_str_puts(g->s, "<td>");
            put_num(g->s, v[k]);
            gy_str_puts(g->s, "</td>");
        }
        gy_str_printf(g->s, "<td>%.0f</td></tr>\n", r->f[GY_BSERVE_FAILED]);
    }
    gy_str_puts(g->s, "</table></div>\n");
}

typedef struct curve {
    double x[GY_BSERVE_MAX_POINT], a[GY_BSERVE_MAX_POINT], b[GY_BSERVE_MAX_POINT];
} curve;

/* Two values of each point: the lower one with a full line. */
static void put_curve(page *g, const char *title, const char *x_label, const char *y_label, const char *key_a,
                      const char *key_b, const curve *c, size_t n) {
    gy_svg p;
    char id[16];
    double all[2 * GY_BSERVE_MAX_POINT];
    for (size_t i = 0; i < n; i++) {
        all[2 * i] = c->a[i];
        all[2 * i + 1] = key_b ? c->b[i] : NAN;
    }
    plot_open(g, &p,
              (gy_svg_frame){.title = title,
                             .text = "The values are those of the table above.",
                             .width = WIDTH,
                             .height = HEIGHT,
                             .x = gy_svg_axis_for(c->x, n, 1, x_label),
                             .y = gy_svg_axis_for(all, 2 * n, 1, y_label)},
              id);
    gy_svg_line(&p, c->x, c->a, n, 1);
    gy_svg_dots(&p, c->x, c->a, n, 3.5, 1);
    if (key_b) {
        gy_svg_line(&p, c->x, c->b, n, 2);
        gy_svg_dots(&p, c->x, c->b, n, 3.5, 2);
        gy_svg_key(&p, key_a, 1);
        gy_svg_key(&p, key_b, 2);
    }
    plot_close(g, &p);
}

static void put_dist_curve(page *g, const gy_bserve_outcome *o, size_t n, int dist, const char *title,
                           const char *x_label) {
    curve c;
    for (size_t i = 0; i < n; i++) {
        c.x[i] = point_x(g->u, &o[i]);
        c.a[i] = o[i].result.dist[dist][GY_BENCH_P50];
        c.b[i] = o[i].result.dist[dist][GY_BENCH_P99];
    }
    put_curve(g, title, x_label, "ms", "p50", "p99", &c, n);
}

static void put_sweep(page *g, const gy_bserve_outcome *o, size_t n) {
    const char *x = g->u->plan->sweep == GY_BSERVE_RATES ? "rate asked for, requests per second" : "requests at once";
    const int goodput = g->u->plan->slo.given;
    curve c;
    gy_str_puts(g->s, "<h2>Over all runs</h2>\n");
    put_sweep_table(g, o, n);
    for (size_t i = 0; i < n; i++) {
        c.x[i] = point_x(g->u, &o[i]);
        c.a[i] = o[i].result.f[GY_BSERVE_REQUEST_RATE];
        c.b[i] = o[i].result.f[GY_BSERVE_GOODPUT];
    }
    gy_str_puts(g->s, "<div class=\"plots\">\n");
    put_curve(g, "Requests completed", x, "requests per second", "completed", goodput ? "good" : NULL, &c, n);
    for (size_t i = 0; i < n; i++) c.a[i] = o[i].result.f[GY_BSERVE_OUTPUT_RATE];
    put_curve(g, "Output tokens", x, "tokens per second", NULL, NULL, &c, n);
    put_dist_curve(g, o, n, GY_BSERVE_TTFT, "TTFT", x);
    put_dist_curve(g, o, n, GY_BSERVE_TPOT, "TPOT", x);
    gy_str_puts(g->s, "</div>\n");
}

/* ---- the page ---- */

static void put_run(page *g, const gy_bserve_outcome *o, int titled) {
    gy_str s = {0};
    gy_bserve_put_workload(g->u, &o->point, &s);
    if (s.failed) g->failed = 1;
    if (titled)
        put_tag(g, "h2", gy_str_z(&s));
    else
        put_tag(g, "p", gy_str_z(&s));
    gy_str_free(&s);
    put_cards(g, &o->result);
    put_totals(g, &o->result);
    put_errors(g, o);
    put_latencies(g, &o->result);
    gy_str_puts(g->s, "<div class=\"plots\">\n");
    put_cdf(g, o, GY_BSERVE_TTFT, "Time to first token (TTFT)", "TTFT, ms");
    put_cdf(g, o, GY_BSERVE_ITL, "Time between two outputs (ITL)", "ITL, ms");
    put_cdf(g, o, GY_BSERVE_E2E, "Whole request (E2E)", "E2E, ms");
    put_scatter(g, o);
    put_timeline(g, o);
    gy_str_puts(g->s, "</div>\n");
}

static void put_head(page *g) {
    const gy_bserve_setup *u = g->u;
    gy_str_puts(g->s, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                      "content=\"width=device-width\">\n<title>gyre bench serve: ");
    gy_svg_put_text(g->s, u->model);
    gy_str_puts(g->s, "</title>\n<style>\n");
    gy_str_puts(g->s, gy_bench_page_style);
    gy_str_puts(g->s, "</style>\n</head>\n<body>\n");
    put_tag(g, "h1", u->model);
    gy_str_puts(g->s, "<p class=\"soft\">");
    gy_svg_put_text(g->s, u->url);
    gy_str_printf(g->s, "%s, %s, gyre bench serve %s</p>\n",
                  u->plan->load.chat ? "/v1/chat/completions" : "/v1/completions", u->when, GY_VERSION);
}

gy_status gy_bserve_put_html(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, gy_str *out) {
    page g = {.u = u, .s = out};
    put_head(&g);
    const int sweep = u->plan->sweep != GY_BSERVE_ONE;
    if (sweep) put_sweep(&g, o, n);
    for (size_t i = 0; i < n; i++) put_run(&g, &o[i], sweep);
    gy_str_puts(
        out, "<p class=\"soft\">Each request is timed from its sending. Percentiles are of all values. Failed requests "
             "are in no latency and no count of tokens.</p>\n</body>\n</html>\n");
    return g.failed || out->failed ? GY_E_NOMEM : GY_OK;
}
