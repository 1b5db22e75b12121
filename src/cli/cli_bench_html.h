/* The page of `gyre bench engine` and `gyre bench pd`: one file of HTML with plots as inline SVG, without scripts and
 * without anything from elsewhere. A table and bars for each cell, one bar a layout; where cells differ in the rate of
 * arrivals, curves over it, one line a layout. Pure. */
#ifndef GY_CLI_CLI_BENCH_HTML_H
#define GY_CLI_CLI_BENCH_HTML_H

#include "cli/cli_bench_report.h"

typedef struct gy_bench_outcome { /* of a cell, or of the command line */
    gy_bench_setup u;
    const gy_bench_series *s; /* [n] */
    size_t n;
    int32_t differ; /* as for the table */
} gy_bench_outcome;

/* What was not measured (no repeat ended) is left out. GY_E_NOMEM. */
gy_status gy_bench_put_html(const gy_bench_outcome *o, size_t n, gy_str *out);

#endif
