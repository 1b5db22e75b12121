/* Axes, ticks, lines: see cli_bench_serve_svg.h. */
#include "cli/cli_bench_serve_svg.h"

#include <math.h>
#include <stdio.h>

/* Where the page's style sheet does not reach, in a plot that was copied out of it, lines are still lines. */
#define DRAWN " fill=\"none\" stroke=\"#777\""

enum { LEFT = 58, RIGHT = 16, TOP = 30, BOTTOM = 44, N_TICK = 5 };
static const double HEADROOM = 1.03; /* a line at the very top would be cut in half */
static const double WIDE = 20;       /* largest over smallest from which on a linear axis hides the small ones */

void gy_svg_put_text(gy_str *out, const char *z) {
    for (; *z; z++) switch (*z) {
        case '&':
            gy_str_puts(out, "&amp;");
            break;
        case '<':
            gy_str_puts(out, "&lt;");
            break;
        case '>':
            gy_str_puts(out, "&gt;");
            break;
        case '"':
            gy_str_puts(out, "&quot;");
            break;
        default:
            gy_str_putc(out, *z);
        }
}

/* ---- axes ---- */

/* The least of 1, 2, 5 times a power of ten that is at least v; the largest that is at most v. */
static double round_up(double v) {
    const double p = pow(10, floor(log10(v))), m = v / p;
    return p * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static double round_down(double v) {
    const double p = pow(10, floor(log10(v))), m = v / p;
    return p * (m >= 5 ? 5 : m >= 2 ? 2 : 1);
}

static double tick_step(const gy_svg_axis *a) {
    return round_up((a->hi - a->lo) / N_TICK);
}

gy_svg_axis gy_svg_axis_for(const double *v, size_t n, int wide, const char *label) {
    double lo = INFINITY, hi = 0, low = INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i])) continue;
        lo = fmin(lo, v[i]);
        hi = fmax(hi, v[i]);
        if (v[i] > 0) low = fmin(low, v[i]);
    }
    gy_svg_axis a = {0, hi > 0 ? hi * HEADROOM : 1, 0, label};
    if (wide && low < INFINITY && hi / low > WIDE) return (gy_svg_axis){round_down(low), round_up(hi), 1, label};
    const double step = tick_step(&a);
    a.hi = ceil(a.hi / step - 1e-9) * step;
    return a;
}

static double share(const gy_svg_axis *a, double v) {
    if (a->log) return (log10(fmax(v, a->lo)) - log10(a->lo)) / (log10(a->hi) - log10(a->lo));
    return (v - a->lo) / (a->hi - a->lo);
}

static double at_x(const gy_svg *p, double v) {
    return LEFT + share(&p->f.x, v) * (p->f.width - LEFT - RIGHT);
}

static double at_y(const gy_svg *p, double v) {
    return p->f.height - BOTTOM - share(&p->f.y, v) * (p->f.height - TOP - BOTTOM);
}

/* 1500 as "1.5k": what fits beside an axis. */
static void tick_text(double v, char *buf, size_t cap) {
    if (v >= 1e6)
        snprintf(buf, cap, "%gM", v / 1e6);
    else if (v >= 1e4)
        snprintf(buf, cap, "%gk", v / 1e3);
    else
        snprintf(buf, cap, "%g", fabs(v) < 1e-12 ? 0 : v);
}

static void put_tick(gy_svg *p, int is_x, double v) {
    const double right = p->f.width - RIGHT, floor_y = p->f.height - BOTTOM;
    char text[32];
    tick_text(v, text, sizeof text);
    if (is_x) {
        const double x = at_x(p, v);
        gy_str_printf(p->out, "<path class=\"grid\"" DRAWN " d=\"M%.1f %dV%.1f\"/>", x, TOP, floor_y);
        gy_str_printf(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x, floor_y + 15, text);
    } else {
        const double y = at_y(p, v);
        gy_str_printf(p->out, "<path class=\"grid\"" DRAWN " d=\"M%d %.1fH%.1f\"/>", LEFT, y, right);
        gy_str_printf(p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + 4, text);
    }
}

static void put_ticks(gy_svg *p, int is_x) {
    const gy_svg_axis *a = is_x ? &p->f.x : &p->f.y;
    if (!a->log) {
        const double step = tick_step(a);
        for (int i = 0; a->lo + i * step <= a->hi + step * 1e-6; i++) put_tick(p, is_x, a->lo + i * step);
        return;
    }
    static const double within[] = {1, 2, 5};
    const int first = (int)floor(log10(a->lo)), last = (int)ceil(log10(a->hi)), n_within = last - first > 4 ? 1 : 3;
    for (int e = first; e <= last; e++)
        for (int i = 0; i < n_within; i++) {
            const double v = pow(10, e) * within[i];
            if (v >= a->lo * 0.9999 && v <= a->hi * 1.0001) put_tick(p, is_x, v);
        }
}

/* ---- the plot ---- */

static void put_labels(gy_svg *p) {
    const double mid_x = (LEFT + p->f.width - RIGHT) / 2, mid_y = (TOP + p->f.height - BOTTOM) / 2;
    gy_str_printf(p->out, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", mid_x,
                  p->f.height - 8);
    gy_svg_put_text(p->out, p->f.x.label);
    gy_str_printf(p->out,
                  "</text>\n<text class=\"label\" transform=\"translate(13 %.1f) rotate(-90)\" text-anchor=\"middle\">",
                  mid_y);
    gy_svg_put_text(p->out, p->f.y.label);
    gy_str_puts(p->out, "</text>\n");
}

void gy_svg_begin(gy_svg *p, const gy_svg_frame *f, gy_str *out) {
    *p = (gy_svg){.f = *f, .out = out};
    gy_str_printf(out,
                  "<svg viewBox=\"0 0 %g %g\" font-size=\"12\" font-family=\"sans-serif\" role=\"img\" "
                  "aria-labelledby=\"%s-t %s-d\">\n<title id=\"%s-t\">",
                  f->width, f->height, f->id, f->id, f->id);
    gy_svg_put_text(out, f->title);
    gy_str_printf(out, "</title>\n<desc id=\"%s-d\">", f->id);
    gy_svg_put_text(out, f->text);
    gy_str_printf(out, "</desc>\n<text class=\"title\" x=\"%d\" y=\"16\">", LEFT);
    gy_svg_put_text(out, f->title);
    gy_str_puts(out, "</text>\n");
    put_ticks(p, 1);
    put_ticks(p, 0);
    gy_str_printf(out, "<path class=\"axis\"" DRAWN " d=\"M%d %dV%.1fH%.1f\"/>\n", LEFT, TOP, f->height - BOTTOM,
                  f->width - RIGHT);
    put_labels(p);
}

static size_t put_points(gy_svg *p, const double *x, const double *y, size_t n) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]) || isnan(y[i])) continue;
        gy_str_printf(p->out, "%s%.1f %.1f", m++ ? "L" : "M", at_x(p, x[i]), at_y(p, y[i]));
    }
    return m;
}

void gy_svg_line(gy_svg *p, const double *x, const double *y, size_t n, int series) {
    gy_str_printf(p->out, "<path class=\"line s%d\"" DRAWN " d=\"", series);
    put_points(p, x, y, n);
    gy_str_puts(p->out, "\"/>\n");
}

void gy_svg_area(gy_svg *p, const double *x, const double *y, size_t n, int series) {
    const double base = p->f.height - BOTTOM;
    if (!n) return;
    gy_str_printf(p->out, "<path class=\"area f%d\" d=\"", series);
    put_points(p, x, y, n);
    gy_str_printf(p->out, "V%.1fH%.1fZ\"/>\n", base, at_x(p, x[0]));
    gy_svg_line(p, x, y, n, series);
}

void gy_svg_dots(gy_svg *p, const double *x, const double *y, size_t n, double radius, int series) {
    gy_str_printf(p->out, "<g class=\"f%d\">\n", series);
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i]) && !isnan(y[i]))
            gy_str_printf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"/>\n", at_x(p, x[i]), at_y(p, y[i]), radius);
    gy_str_puts(p->out, "</g>\n");
}

void gy_svg_mark(gy_svg *p, double v, const char *label) {
    if (isnan(v) || v < p->f.x.lo || v > p->f.x.hi) return;
    const double x = at_x(p, v);
    const int left = x > p->f.width - RIGHT - 60;
    gy_str_printf(p->out,
                  "<path class=\"mark\"" DRAWN
                  " d=\"M%.1f %dV%.1f\"/><text class=\"note\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
                  x, TOP, p->f.height - BOTTOM, left ? x - 4 : x + 4, p->f.height - BOTTOM - 6 - 15 * p->n_mark++,
                  left ? "end" : "start");
    gy_svg_put_text(p->out, label);
    gy_str_puts(p->out, "</text>\n");
}

void gy_svg_key(gy_svg *p, const char *label, int series) {
    const double x = p->f.width - RIGHT - 190 + 100 * p->n_key++, y = 16;
    gy_str_printf(p->out,
                  "<path class=\"line s%d\"" DRAWN " d=\"M%.1f %.1fh18\"/><text class=\"note\" x=\"%.1f\" y=\"%.1f\">",
                  series, x, y - 4, x + 24, y);
    gy_svg_put_text(p->out, label);
    gy_str_puts(p->out, "</text>\n");
}

void gy_svg_end(gy_svg *p) {
    gy_str_puts(p->out, "</svg>\n");
}
