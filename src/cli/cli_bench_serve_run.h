/* One run of a workload against a server: sends the requests when they are due, notes what comes when. Knows no options
 * and prints nothing but progress.
 *
 * A conversation holds one of the load's places from its first turn to its last; a turn is sent when the reply before
 * it has ended. A turn that failed ends its conversation: the turns behind it are not sent.
 */
#ifndef GY_CLI_CLI_BENCH_SERVE_RUN_H
#define GY_CLI_CLI_BENCH_SERVE_RUN_H

#include "cli/cli_bench_serve_load.h"
#include "cli/cli_bench_serve_stats.h"

#include <signal.h>

typedef struct gy_bserve_job {
    const gy_bserve_load *load;
    const char *label;                 /* of the progress, NULL: none */
    double max_seconds;                /* nothing is sent later; 0: no bound */
    const volatile sig_atomic_t *stop; /* becomes 1: nothing more is sent, what runs is cancelled */
} gy_bserve_job;

typedef struct gy_bserve_run {
    gy_bserve_record *rec; /* [n], by turn, then by stream */
    size_t n;
    int64_t begin_ns;
    double cpu_s;
    int stopped;
} gy_bserve_run;

/* Requests that fail are in the records and no error. What the outputs hold is to be freed in both cases. */
gy_status gy_bserve_run_go(gy_oai *c, const gy_bserve_job *j, gy_err *err, gy_bserve_run *out);
void gy_bserve_run_fini(gy_bserve_run *r);

#endif
