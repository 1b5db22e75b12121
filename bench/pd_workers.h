/* A coordinator with worker processes, as `gyre run` has it, on a synthetic checkpoint. */
#ifndef GY_BENCH_PD_WORKERS_H
#define GY_BENCH_PD_WORKERS_H

#include "api/api_host.h"
#include "pd_parts.h"

#include <sys/types.h>

typedef struct pd_workers { /* open struct, does not move; a zeroed one can be closed */
    gy_api_model m;
    gy_api_host *h;
} pd_workers;

/* One that prefills and one that decodes, a thread each; n_pair 0: one engine in this process, on the first device. */
gy_status pd_workers_open(const pd_bench *b, const char *dir, int32_t max_len, int32_t max_seqs, int32_t n_pair,
                          gy_err *err, pd_workers *w);
void pd_workers_close(pd_workers *w);
/* Turns, and sleeps until there is something to do or max_ms have passed. */
gy_status pd_workers_turn(pd_workers *w, int max_ms, gy_err *err);
gyre_worker_stats pd_workers_stats(const pd_workers *w);
/* The process with that --role; 0: there is none. */
pid_t pd_workers_pid(const char *role);

#endif
