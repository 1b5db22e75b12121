/* The options of `gyre bench`: their rows, and from their values the workload. */
#ifndef GY_CLI_CLI_BENCH_ARGS_H
#define GY_CLI_CLI_BENCH_ARGS_H

#include "cli/cli_args.h"
#include "cli/cli_bench_load.h"

/* A cell: the command line with options of its own. Does not move: args points to opts. */
typedef struct gy_bench_cell {
    const char *name;
    gy_args args;
    gy_opts opts; /* gy_opts_fini */
} gy_bench_cell;

/* Fills in defaults; refuses what has no meaning with this workload or at all in a benchmark, by the flag's name. */
gy_status gy_bench_settle(const gy_args *a, gy_err *err, gy_bench_load *out);
/* *c is zeroed. Text and values live in the arena of a. */
gy_status gy_bench_cell_read(const gy_args *a, const gy_opt_item *item, gy_err *err, gy_bench_cell *c);

#endif
