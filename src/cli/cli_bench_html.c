/* See cli_bench_html.h. Figures are medians over repeats, as in the table. */
#include "cli/cli_bench_html.h"

#include "cli/cli_bench_page.h"
#include "cli/cli_bench_serve_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BAR = 32, MAX_POINT = 64, N_LINE = 4, N_FIGURE = 4 };
static const double WIDTH = 430, HEIGHT = 270, BAR = 24, BAR_TOP = 30, BAR_LEFT = 130, BAR_RIGHT = 70;

typedef struct figure {
    size_t at;
    const char *title, *unit;
} figure;

typedef struct page {
    gy_str *s;
    int n_plot;
    figure f[N_FIGURE];
} page;

static page page_begin(gy_str *s) {
    page g = {.s = s,
              .f = {{GY_BENCH_OUTPUT_RATE, "Output tokens a second", ""},
                    {gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P95), "Time to first token, p95", "ms"},
                    {gy_bench_at(GY_BENCH_TPOT, GY_BENCH_P95), "Time of each further token, p95", "ms"},
                    {gy_bench_at(GY_BENCH_TAIL, GY_BENCH_P50), "Prompt's end until its KV is there, p50", "ms"}}};
    return g;
}

static void put_num(gy_str *s, double v) {
    if (isnan(v))
        gy_str_puts(s, "&ndash;");
    else
        gy_str_printf(s, fabs(v) >= 1000 ? "%.0f" : fabs(v) >= 100 ? "%.1f" : "%.2f", v);
}

static const char *name_of(const gy_bench_outcome *o, size_t i) {
    if (o->s[i].layout) return o->s[i].layout;
    if (o->n < 2) return "engine";
    return o->s[i].prefix_cache ? "cache on" : "cache off";
}

/* ---- bars -------------------------------------------------------------------------------------------------------- */

static void put_bar(gy_str *s, size_t i, const char *name, double v, double most) {
    const double y = BAR_TOP + BAR * (double)i, room = WIDTH - BAR_LEFT - BAR_RIGHT;
    const double width = isnan(v) || !(most > 0) ? 0 : room * v / most;
    gy_str_printf(s, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", BAR_LEFT - 8, y + 15);
    gy_svg_put_text(s, name);
    gy_str_printf(s,
                  "</text><rect class=\"f1\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"16\" rx=\"2\"/>"
                  "<text class=\"note\" x=\"%.1f\" y=\"%.1f\">",
                  BAR_LEFT, y + 3, width, BAR_LEFT + width + 6, y + 15);
    put_num(s, v);
    gy_str_puts(s, "</text>\n");
}

static void put_bars(page *g, const gy_bench_outcome *o, const gy_bench_result *r, size_t n, const figure *f) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, r[i].f[f->at]); /* fmax leaves NAN out */
    if (!(most > 0)) return;
    const int id = ++g->n_plot;
    gy_str_printf(g->s,
                  "<div><svg viewBox=\"0 0 %g %g\" font-size=\"12\" font-family=\"sans-serif\" role=\"img\" "
                  "aria-labelledby=\"plot%d-t plot%d-d\">\n<title id=\"plot%d-t\">%s</title>\n<desc "
                  "id=\"plot%d-d\">One bar a layout; the table has the figures.</desc>\n<text class=\"title\" x=\"0\" "
                  "y=\"16\">%s%s%s</text>\n",
                  WIDTH, BAR_TOP + BAR * (double)n, id, id, id, f->title, id, f->title, f->unit[0] ? ", " : "",
                  f->unit);
    for (size_t i = 0; i < n; i++) put_bar(g->s, i, name_of(o, i), r[i].f[f->at], most);
    gy_str_puts(g->s, "</svg></div>\n");
}

/* ---- a cell ------------------------------------------------------------------------------------------------------ */

static void put_table(page *g, const gy_bench_outcome *o, const gy_bench_result *r, size_t n) {
    static const struct {
        const char *head;
        gy_bench_dist d;
        gy_bench_stat s;
    } more[] = {{"TTFT p50", GY_BENCH_TTFT, GY_BENCH_P50}, {"p95", GY_BENCH_TTFT, GY_BENCH_P95},
                {"ITL p50", GY_BENCH_ITL, GY_BENCH_P50},   {"p99", GY_BENCH_ITL, GY_BENCH_P99},
                {"TPOT p50", GY_BENCH_TPOT, GY_BENCH_P50}, {"p95", GY_BENCH_TPOT, GY_BENCH_P95},
                {"E2E p50", GY_BENCH_E2E, GY_BENCH_P50},   {"tail p50", GY_BENCH_TAIL, GY_BENCH_P50}};
    enum { N_MORE = sizeof more / sizeof *more };
    gy_str_printf(g->s,
                  "<div class=\"scroll\"><table><caption>Medians of %zu; milliseconds</caption>\n<tr><th "
                  "scope=\"col\"></th><th scope=\"col\">output tokens/s</th>",
                  o->s->n);
    for (size_t k = 0; k < N_MORE; k++) gy_str_printf(g->s, "<th scope=\"col\">%s</th>", more[k].head);
    gy_str_puts(g->s, "</tr>\n");
    for (size_t i = 0; i < n; i++) {
        gy_str_puts(g->s, "<tr><td>");
        gy_svg_put_text(g->s, name_of(o, i));
        gy_str_puts(g->s, "</td><td>");
        put_num(g->s, r[i].f[GY_BENCH_OUTPUT_RATE]);
        for (size_t k = 0; k < N_MORE; k++) {
            gy_str_puts(g->s, "</td><td>");
            put_num(g->s, r[i].f[gy_bench_at(more[k].d, more[k].s)]);
        }
        gy_str_puts(g->s, "</td></tr>\n");
    }
    gy_str_puts(g->s, "</table></div>\n");
}

static void put_verdict(page *g, const gy_bench_outcome *o) {
    if (o->differ >= 0)
        gy_str_printf(g->s, "<p class=\"bad\">The outputs of request %d differ between two runs.</p>\n", o->differ);
    else if (o->n > 1 || o->s->n > 1)
        gy_str_puts(g->s, "<p>The outputs of all runs are equal.</p>\n");
}

/* 0: a series was not measured. */
static size_t medians(const gy_bench_outcome *o, gy_bench_result r[MAX_BAR]) {
    const size_t n = o->n < MAX_BAR ? o->n : MAX_BAR;
    for (size_t i = 0; i < n; i++) {
        if (!o->s[i].n) return 0;
        gy_bench_median(o->s[i].r, o->s[i].n, &r[i]);
    }
    return n;
}

static void put_cell(page *g, const gy_bench_outcome *o) {
    gy_bench_result r[MAX_BAR];
    const gy_bench_load *l = o->u.load;
    const size_t n = medians(o, r);
    if (!n) return;
    gy_str_puts(g->s, "<h2>");
    gy_svg_put_text(g->s, o->u.cell ? o->u.cell : "Workload");
    gy_str_printf(g->s, "</h2>\n<p class=\"soft\">%s, %d requests", gy_bench_kind_name(l->kind), l->n_stream);
    if (l->kind == GY_BENCH_POISSON) gy_str_printf(g->s, ", %g a second", l->rate);
    gy_str_puts(g->s, "</p>\n");
    put_verdict(g, o);
    put_table(g, o, r, n);
    gy_str_puts(g->s, "<div class=\"plots\">\n");
    for (int k = 0; k < N_FIGURE; k++) put_bars(g, o, r, n, &g->f[k]);
    gy_str_puts(g->s, "</div>\n");
}

/* ---- over the rate ----------------------------------------------------------------------------------------------- */

typedef struct curves { /* of the layouts of the first cell that has a rate, in the order of the cells */
    const char *name[N_LINE];
    size_t n_line, n;
    double x[MAX_POINT], y[N_LINE][MAX_POINT];
} curves;

static void fill_curves(const gy_bench_outcome *o, size_t n, const figure *f, curves *c) {
    *c = (curves){0};
    for (size_t k = 0; k < n && c->n < MAX_POINT; k++) {
        gy_bench_result r[MAX_BAR];
        const size_t n_bar = o[k].u.load->kind == GY_BENCH_POISSON ? medians(&o[k], r) : 0;
        if (!n_bar) continue;
        if (!c->n)
            for (; c->n_line < N_LINE && c->n_line < n_bar; c->n_line++) c->name[c->n_line] = name_of(&o[k], c->n_line);
        c->x[c->n] = o[k].u.load->rate;
        for (size_t i = 0; i < c->n_line; i++) {
            c->y[i][c->n] = NAN;
            for (size_t b = 0; b < n_bar; b++)
                if (!strcmp(c->name[i], name_of(&o[k], b))) c->y[i][c->n] = r[b].f[f->at];
        }
        c->n++;
    }
}

static int is_known(const curves *c) {
    for (size_t i = 0; i < c->n_line; i++)
        for (size_t k = 0; k < c->n; k++)
            if (!isnan(c->y[i][k])) return 1;
    return 0;
}

static gy_svg_axis axis_of(const curves *c, const char *label) {
    double v[N_LINE * MAX_POINT];
    size_t n = 0;
    for (size_t i = 0; i < c->n_line; i++)
        for (size_t k = 0; k < c->n; k++)
            if (!isnan(c->y[i][k])) v[n++] = c->y[i][k];
    return gy_svg_axis_for(v, n, 0, label);
}

static void put_curve(page *g, const curves *c, const figure *f) {
    gy_svg p;
    char id[16];
    snprintf(id, sizeof id, "plot%d", ++g->n_plot);
    const gy_svg_frame frame = {.id = id,
                                .title = f->title,
                                .text = "One line a layout, over the requests that arrive a second.",
                                .width = WIDTH,
                                .height = HEIGHT,
                                .x = gy_svg_axis_for(c->x, c->n, 0, "requests a second"),
                                .y = axis_of(c, f->unit[0] ? f->unit : "tokens/s")};
    gy_str_puts(g->s, "<div>");
    gy_svg_begin(&p, &frame, g->s);
    for (size_t i = 0; i < c->n_line; i++) {
        gy_svg_line(&p, c->x, c->y[i], c->n, (int)i + 1);
        gy_svg_dots(&p, c->x, c->y[i], c->n, 3, (int)i + 1);
    }
    gy_svg_end(&p);
    gy_str_puts(g->s, "</div>\n");
}

static void put_legend(page *g, const curves *c) {
    gy_str_puts(g->s, "<p>");
    for (size_t i = 0; i < c->n_line; i++) {
        gy_str_printf(g->s,
                      "<svg viewBox=\"0 0 18 8\" style=\"display:inline;width:18px\" aria-hidden=\"true\"><path "
                      "class=\"line s%zu\" d=\"M0 4h18\"/></svg> ",
                      i + 1);
        gy_svg_put_text(g->s, c->name[i]);
        gy_str_puts(g->s, i + 1 < c->n_line ? " &nbsp; " : "</p>\n");
    }
}

static void put_rates(page *g, const gy_bench_outcome *o, size_t n) {
    curves c;
    fill_curves(o, n, &g->f[0], &c);
    if (c.n < 2) return;
    gy_str_puts(g->s, "<h2>Over the rate of arrivals</h2>\n");
    put_legend(g, &c);
    gy_str_puts(g->s, "<div class=\"plots\">\n");
    for (int k = 0; k < N_FIGURE; k++) {
        fill_curves(o, n, &g->f[k], &c);
        if (is_known(&c)) put_curve(g, &c, &g->f[k]);
    }
    gy_str_puts(g->s, "</div>\n");
}

gy_status gy_bench_put_html(const gy_bench_outcome *o, size_t n, gy_str *out) {
    page g = page_begin(out);
    gy_str_puts(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                     "content=\"width=device-width\">\n<title>gyre bench: ");
    gy_svg_put_text(out, o->u.model);
    gy_str_puts(out, "</title>\n<style>\n");
    gy_str_puts(out, gy_bench_page_style);
    gy_str_puts(out, "</style>\n</head>\n<body>\n<h1>");
    gy_svg_put_text(out, o->u.model);
    gy_str_printf(out, "</h1>\n<p class=\"soft\">%s, %d loops, %s; ", o->u.family, o->u.n_loop, o->u.dtype);
    gy_svg_put_text(out, o->u.cpu);
    gy_str_printf(out, ", %d cores; gyre bench " GY_VERSION "</p>\n", o->u.n_core);
    put_rates(&g, o, n);
    for (size_t i = 0; i < n; i++) put_cell(&g, &o[i]);
    gy_str_puts(out, "</body>\n</html>\n");
    return out->failed ? GY_E_NOMEM : GY_OK;
}
