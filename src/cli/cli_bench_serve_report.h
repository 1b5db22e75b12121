/* Figures of `gyre bench serve` to text: a table for people, JSON with everything, CSV with a line a request. Pure.
 * The page with plots is cli_bench_serve_html.h. */
#ifndef GY_CLI_CLI_BENCH_SERVE_REPORT_H
#define GY_CLI_CLI_BENCH_SERVE_REPORT_H

#include "cli/cli_bench_serve_args.h"
#include "cli/cli_bench_serve_run.h"

/* What was asked of whom. Strings are borrowed. */
typedef struct gy_bserve_setup {
    const char *url, *model;
    const char *when;  /* UTC, as ISO 8601 has it */
    const char *fixed; /* gy_bserve_load.fixed */
    const char *dataset;
    int words_counted; /* the server's /tokenize said how long words are */
    const gy_bserve_plan *plan;
} gy_bserve_setup;

typedef struct gy_bserve_outcome {
    gy_bserve_point point;
    gy_bserve_run run;
    gy_bserve_result result;
} gy_bserve_outcome;

void gy_bserve_put_table(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, gy_str *out);
void gy_bserve_put_json(const gy_bserve_setup *u, const gy_bserve_outcome *o, size_t n, int samples, gy_str *out);
void gy_bserve_put_csv(const gy_bserve_outcome *o, size_t n, gy_str *out);

/* "poisson 4 a second, 100 requests", one line. */
void gy_bserve_put_workload(const gy_bserve_setup *u, const gy_bserve_point *p, gy_str *out);
/* Why the figures may say more of the generator than of the server; nothing if there is no reason to think so. */
void gy_bserve_put_warnings(const gy_bserve_outcome *o, gy_str *out);

#endif
