/* What the two ways to workers share: processes of this host (api_workers.c), workers of other hosts (api_peers.c). */
#ifndef GY_API_API_WORKERS_H
#define GY_API_API_WORKERS_H

#include "api/api_host.h"
#include "pd/host.h"

typedef struct gy_worker_host {
    gy_api_host h;
    gy_host *host;
    gy_engine_bounds bounds; /* does not change once the host is open: any thread reads it */
    /* workers of other hosts */
    gy_disc *disc;
    const gy_api_model *m;
    gy_pd_info least; /* of those that were ready when it opened: what all have in common, and the smallest pools */
    int is_open;
} gy_worker_host;

extern const gy_api_host_ops gy_worker_host_ops;

/* All are ready: what each of them takes, and the plan as they say it. own: what was asked for. api_peers.c */
gy_status gy_api_workers_set_bounds(gy_worker_host *w, gy_api_model *m, const gy_engine_opts *own, gy_err *err);

/* Who goes where and when: the options about it. */
void gy_api_set_placement(const gyre_options *o, const gy_engine_opts *e, gy_coord_opts *c);

#endif
