/* The page of `gyre bench serve`: one file of HTML with plots as inline SVG, without scripts and without anything from
 * elsewhere; follows the reader's light or dark. Pure. */
#ifndef GY_CLI_CLI_BENCH_SERVE_HTML_H
#define GY_CLI_CLI_BENCH_SERVE_HTML_H

#include "cli/cli_bench_serve_report.h"

/* GY_E_NOMEM. */
gy_status gy_bserve_put_html(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, gy_str *out);

#endif
