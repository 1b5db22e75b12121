/* Plots as inline SVG for the page of `gyre bench serve`: axes with round ticks, lines, dots, marks. Knows nothing of
 * what is plotted. Colours are classes of the page's style sheet (s1, s2, s3, grid, axis), so that it decides light and
 * dark. Every plot has a title and a sentence for those who do not see it. Pure.
 *
 *     gy_svg p; gy_svg_begin(&p, &frame, out); gy_svg_line(...); gy_svg_end(&p);
 */
#ifndef GY_CLI_CLI_BENCH_SERVE_SVG_H
#define GY_CLI_CLI_BENCH_SERVE_SVG_H

#include "base/str.h"

typedef struct gy_svg_axis {
    double lo, hi;
    int log;           /* lo > 0 */
    const char *label; /* with its unit */
} gy_svg_axis;

typedef struct gy_svg_frame {
    const char *id; /* unique in the page */
    const char *title, *text;
    double width, height;
    gy_svg_axis x, y;
} gy_svg_frame;

typedef struct gy_svg {
    gy_svg_frame f;
    gy_str *out;
    int n_key, n_mark; /* entries of the legend and marks so far: which place is the next one's */
} gy_svg;

/* An axis that shows all of values[0..n): round ends; from 0 unless logarithmic. wide: logarithmic if they span much.
 */
gy_svg_axis gy_svg_axis_for(const double *values, size_t n, int wide, const char *label);

void gy_svg_begin(gy_svg *p, const gy_svg_frame *f, gy_str *out);
/* series 1..3 */
void gy_svg_line(gy_svg *p, const double *x, const double *y, size_t n, int series);
void gy_svg_area(gy_svg *p, const double *x, const double *y, size_t n, int series); /* down to the x axis */
void gy_svg_dots(gy_svg *p, const double *x, const double *y, size_t n, double radius, int series);
void gy_svg_mark(gy_svg *p, double x, const char *label); /* a vertical line */
/* Beside the title: at most two of up to ten letters. */
void gy_svg_key(gy_svg *p, const char *label, int series);
void gy_svg_end(gy_svg *p);

/* Text of HTML and SVG: & < > " escaped. */
void gy_svg_put_text(gy_str *out, const char *z);

#endif
