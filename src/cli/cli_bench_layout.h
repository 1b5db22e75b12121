/* Ways of laying out the same work over processes, for gyre bench engine: one engine, several replicas that share the
 * requests out, workers that prefill and decode (docs/pd.md). Each run is in processes of its own, forked from one that
 * has neither threads nor weights; times of all of them are of one clock, and their records come back over sockets.
 */
#ifndef GY_CLI_CLI_BENCH_LAYOUT_H
#define GY_CLI_CLI_BENCH_LAYOUT_H

#include "cli/cli_bench_run.h"
#include "cli/cli_model.h"

enum { GY_BENCH_MAX_LAYOUT = 16 };

typedef struct gy_bench_layout {
    char name[24];                        /* "engine", "2r", "1p1d" */
    int32_t replicas;                     /* engines in processes of their own; 0: workers */
    int32_t prefill, decode, hybrid;      /* workers */
    int32_t n_thread;                     /* of each process */
    uint64_t chunk_bytes, inflight_bytes; /* of transfers; 0: as the options say */
    int peer_errors;
} gy_bench_layout;

static inline int32_t gy_bench_layout_processes(const gy_bench_layout *l) {
    return l->replicas + l->prefill + l->decode + l->hybrid;
}

/* What --layouts says ("engine,2r,1p1d,2h"), or --prefill and its kin (one layout); *n_out 0: neither was given. cores:
 * to be shared out evenly. */
gy_status gy_bench_layouts_of(const gy_args *a, int32_t cores, gy_err *err, gy_bench_layout out[GY_BENCH_MAX_LAYOUT],
                              size_t *n_out);

typedef struct gy_bench_site { /* what all layouts have in common; borrowed */
    const gy_args *a;
    gy_cli_model *m; /* open, not loaded; its folder stays */
    const gy_engine_opts *o;
    const gy_ops_limits *limits;
    gy_bench_job job, warm; /* warm.load NULL: none */
} gy_bench_site;

/* A run of site->job. seconds: of processors, where they are known (not of workers), else NAN. */
gy_status gy_bench_layout_run(const gy_bench_site *s, const gy_bench_layout *l, gy_err *err, gy_bench_run **out);

#endif
