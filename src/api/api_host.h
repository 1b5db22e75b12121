/* What runs the requests: an engine in this process, or worker processes behind a coordinator (pd/host.h). The commands
 * of `cli` use it too. One thread calls everything but check and fd.
 *
 * Requests, callbacks and outputs are the engine's own (engine.h); only where the work is done differs.
 */
#ifndef GY_API_API_HOST_H
#define GY_API_API_HOST_H

#include "api/api_model.h"
#include "engine/engine.h"
#include "gyre.h"

typedef struct gy_api_host gy_api_host;

typedef struct gy_api_host_stats {
    gy_engine_stats e; /* of all engines; what workers do not tell is 0 */
    gyre_worker_stats w;
} gy_api_host_stats;

typedef struct gy_api_host_ops {
    gy_status (*check)(const gy_api_host *h, const gy_request *r, gy_err *err); /* gy_engine_check; any thread */
    gy_status (*submit)(gy_api_host *h, const gy_request *r, gy_err *err, int32_t *id_out);
    void (*cancel)(gy_api_host *h, int32_t id);
    /* GY_OK, GY_DONE, negative: as gy_engine_step. GY_AGAIN: there is nothing to do before `fd` is readable. */
    gy_status (*step)(gy_api_host *h, gy_err *err);
    void (*get_stats)(const gy_api_host *h, gy_api_host_stats *out);
    void (*close)(gy_api_host *h); /* unfinished requests end without an event */
    /* Ends it with GY_E_TIMEOUT at that time (gy_clock_ns). NULL: it has no clock, whoever submits cancels. */
    void (*set_deadline)(gy_api_host *h, int32_t id, int64_t at_ns);
} gy_api_host_ops;

struct gy_api_host { /* the head of either kind */
    const gy_api_host_ops *ops;
    gy_engine_plan plan;        /* of one engine */
    int32_t max_len, max_loops; /* longest sequence, deepest request that it takes */
    int fd;                     /* to be polled while a step has nothing to do; -1: never */
    const char *backend;        /* static: of workers on devices; NULL: the model's */
};

/* m is borrowed. It is loaded here, for an engine in this process, and else gets a backend that is only asked for its
 * name. e: the engine's options; with workers its pool is chosen here, for each the same. o: what is about workers and,
 * for them, the options that e does not hold. */
gy_status gy_api_host_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o,
                           void (*progress)(void *arg, size_t done, size_t total), void *progress_arg, gy_err *err,
                           gy_api_host **out);
void gy_api_host_close(gy_api_host *h); /* accepts NULL */
/* Of an engine with these options. */
void gy_api_host_set_limits(gy_api_host *h, const gy_api_model *m, const gy_engine_opts *e);

int gy_api_wants_workers(const gyre_options *o); /* of this host, or of others */
int gy_api_wants_peers(const gyre_options *o);   /* of others */

/* api_workers.c, api_peers.c */
gy_status gy_api_workers_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o, gy_err *err,
                              gy_api_host **out);
gy_status gy_api_peers_open(gy_api_model *m, const gy_engine_opts *e, const gyre_options *o, gy_err *err,
                            gy_api_host **out);

#endif
