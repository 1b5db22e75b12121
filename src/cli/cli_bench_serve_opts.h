/* Values of the options that `gyre bench serve` has; a member of gy_args (cli_args.h). The rows are in
 * cli_bench_serve_args.c. 0 and NULL: not given. Key and certificates are those of `gyre chat`. */
#ifndef GY_CLI_CLI_BENCH_SERVE_OPTS_H
#define GY_CLI_CLI_BENCH_SERVE_OPTS_H

#include "cli/cli_opts.h"

typedef struct gy_bserve_opts {
    /* the server */
    const char *url, *model, *endpoint;
    gy_opt_list headers;
    int32_t timeout;
    /* the workload */
    const char *rate, *rates, *concurrencies;
    double burstiness;
    int32_t concurrency, n_prompts, turns, warmup;
    const char *in, *out;
    double range_ratio;
    int32_t prefix_len, vocab;
    int prompts; /* gy_bserve_prompts */
    const char *dataset;
    uint64_t seed;
    double max_seconds;
    /* fields of each request */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k;
    const char *extra_body;
    int ignore_eos;
    /* the report */
    const char *goodput, *metrics;
    const char *json_file, *csv_file, *html_file;
    int samples, save_result;
} gy_bserve_opts;

#endif
