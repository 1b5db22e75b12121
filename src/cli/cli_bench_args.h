/* The options of `gyre bench`: their rows, and from their values the workload. */
#ifndef GY_CLI_CLI_BENCH_ARGS_H
#define GY_CLI_CLI_BENCH_ARGS_H

#include "cli/cli_args.h"
#include "cli/cli_bench_load.h"

/* Fills in defaults; refuses what has no meaning with this workload or at all in a benchmark, by the flag's name. */
gy_status gy_bench_settle(const gy_args *a, gy_err *err, gy_bench_load *out);

#endif
