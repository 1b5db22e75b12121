/* The options of `gyre bench serve`: their rows, and from their values what is to be done. */
#ifndef GY_CLI_CLI_BENCH_SERVE_ARGS_H
#define GY_CLI_CLI_BENCH_SERVE_ARGS_H

#include "cli/cli_args.h"
#include "cli/cli_bench_serve_load.h"
#include "cli/cli_bench_serve_stats.h"

extern const gy_cmd gy_cmd_bench_serve; /* cli_bench_serve.c; found by cli.c behind "bench" */
extern const gy_opt_group *const gy_bserve_groups[];

typedef enum gy_bserve_sweep { GY_BSERVE_ONE, GY_BSERVE_RATES, GY_BSERVE_CONCURRENCIES } gy_bserve_sweep;
enum { GY_BSERVE_MAX_POINT = 64 };

typedef struct gy_bserve_point {
    double rate;         /* INFINITY: no arrivals, all are due at the start */
    int32_t concurrency; /* 0: no bound */
    int32_t n_stream;
} gy_bserve_point;

typedef struct gy_bserve_plan {
    gy_bserve_load load; /* of all points; rate, concurrency and n_stream are the point's. fixed, data: not set */
    gy_bserve_sweep sweep;
    gy_bserve_point point[GY_BSERVE_MAX_POINT];
    size_t n_point;
    int32_t warmup;
    gy_bserve_slo slo;
    uint32_t shown; /* 1u << distribution: in the table */
} gy_bserve_plan;

/* Fills in defaults; refuses what does not go together, by the flag's name. */
gy_status gy_bserve_settle(const gy_args *a, gy_err *err, gy_bserve_plan *out);
/* gy_bserve_load.fixed. */
gy_status gy_bserve_put_fixed(const gy_args *a, const char *model, gy_err *err, gy_str *out);

/* "ttft:200", "tpot:50,e2e:5000" into slo. */
gy_status gy_bserve_parse_slo(const char *text, gy_err *err, gy_bserve_slo *io);

#endif
