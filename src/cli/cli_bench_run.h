/* One run of a workload on an engine: sends the requests when they are due, steps the engine, notes what happens when.
 * Knows no options and prints nothing but progress.
 *
 * All memory is made before the first request (but for the list of samples, which grows between two steps), so that the
 * measured time holds no page faults and no allocations of the benchmark's own.
 */
#ifndef GY_CLI_CLI_BENCH_RUN_H
#define GY_CLI_CLI_BENCH_RUN_H

#include "api/api_host.h"
#include "cli/cli_bench_stats.h"
#include "cli/cli_rule.h"

typedef struct gy_bench_run gy_bench_run;

typedef struct gy_bench_job {
    const gy_bench_load *load;
    const gy_bench_item *items; /* [n_stream * n_turn], from gy_bench_items; borrowed */
    const gy_request *proto;    /* what all requests have in common; borrowed */
    const gy_trace *trace; /* recorded depths: request i follows list i, from the first again after the last. NULL */
    int32_t n_vocab;
    gy_backend *be;    /* the engine's: waiting for a device is timed. NULL: not known */
    const char *label; /* of the progress line, NULL: none */
} gy_bench_job;

gy_status gy_bench_run_create(const gy_bench_job *j, gy_err *err, gy_bench_run **out);
void gy_bench_run_destroy(gy_bench_run *r); /* accepts NULL */

/* Runs until every request has ended. Requests that fail are counted, not an error; once for each run. */
gy_status gy_bench_run_go(gy_bench_run *r, gy_engine *e, gy_err *err);
/* The same with workers, whose engines' inner figures are not known: they stay NAN in the result. */
gy_status gy_bench_run_go_workers(gy_bench_run *r, gy_api_host *h, gy_err *err);

/* Over several processes: before it goes, a run can be told to send only streams k, k + n, ... (and then as many of n
 * at once); afterwards its records go to the process that made all of them, over a socket. -1: the other side is gone.
 */
void gy_bench_run_set_share(gy_bench_run *r, int32_t k, int32_t n);
int gy_bench_run_send(const gy_bench_run *r, int fd);
int gy_bench_run_take(gy_bench_run *r, int fd);
int gy_bench_write_all(int fd, const void *p, size_t n);
int gy_bench_read_all(int fd, void *p, size_t n);

/* Figures of the run; max_rows as the engine has it. e NULL: what records alone tell, all else is NAN. */
gy_status gy_bench_run_result(const gy_bench_run *r, const gy_engine *e, int32_t max_rows, gy_err *err,
                              gy_bench_result *out);

/* All steps in their order; until the run is destroyed. */
const gy_bench_sample *gy_bench_run_steps(const gy_bench_run *r, size_t *n_out);

/* Same tokens, same loops, in every request? The number of the first one that differs, or -1. */
int32_t gy_bench_run_differ(const gy_bench_run *a, const gy_bench_run *b);
/* The first request that failed: its number and sentence; NULL when none did. */
const gy_err *gy_bench_run_failed(const gy_bench_run *r, int32_t *index_out);

#endif
