/* gyre bench pd: cells (cli_bench_args.h) of gyre bench engine that are decided here, each over several layouts. Knows
 * which workloads and which layouts; runs nothing.
 */
#ifndef GY_CLI_CLI_BENCH_PD_H
#define GY_CLI_CLI_BENCH_PD_H

#include "cli/cli_args.h"

/* *out: a with the cells of --part; memory from a's arena. */
gy_status gy_bench_pd_args(const gy_args *a, gy_err *err, gy_args *out);

#endif
