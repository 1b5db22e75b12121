/* Values of the options that `gyre bench` alone has; a member of gy_args (cli_args.h). The rows are in
 * cli_bench_args.c. */
#ifndef GY_CLI_CLI_BENCH_OPTS_H
#define GY_CLI_CLI_BENCH_OPTS_H

#include "cli/cli_bench_serve_opts.h"
#include "cli/cli_opts.h"

#include <stdint.h>

typedef struct gy_bench_opts {
    const char *synthetic; /* shape; NULL: MODEL is a folder */
    int workload;          /* gy_bench_kind */
    int32_t concurrency;   /* 0: not given, like all below */
    int32_t requests, users, turns;
    const char *in, *out; /* "LEN" or "LEN:LEN2" */
    double rate;
    int32_t warmup; /* -1: not given */
    int32_t repeat;
    int compare;
    gy_opt_list cells;                /* "NAME --option value ...": several workloads on one loaded model */
    const char *steps_file;           /* CSV */
    const char *ceilings;             /* "GB/s:TFLOP/s" */
    const char *layouts;              /* "engine,2r,1p1d"; NULL: in this process */
    int part;                         /* bench pd: in the order of the words */
    const char *json_file, *csv_file; /* "-": standard output */
    const char *html_file;
    gy_bserve_opts serve; /* of `gyre bench serve`, which has none of those above */
} gy_bench_opts;

#endif
