/* Values of the options about workers (gy_args.pd). */
#ifndef GY_CLI_CLI_PD_OPTS_H
#define GY_CLI_CLI_PD_OPTS_H

#include "cli/cli_opts.h"

typedef struct gy_pd_args {
    int32_t prefill, decode, hybrid; /* workers; all 0: none */
    int32_t local_below, local_queue;
    double start_timeout; /* seconds */
    gy_opt_u64 chunk_bytes, inflight_bytes;
    int32_t descriptors; /* 0: not given */
    int errors;          /* in the order of the words: none, peer */
    double min_share;    /* of a copy in memory, or of NVLink; NAN: not given */
    /* across hosts */
    const char *peers, *etcd, *etcd_ca, *cluster, *secret_file; /* NULL: not given */
    double peer_timeout;                                        /* seconds */
    /* of a worker itself */
    int role; /* in the order of the words: prefill, decode, both */
    int32_t max_handoff;
    gy_opt_u64 grammar_bytes;
    const char *listen, *advertise, *name, *device; /* NULL: not given */
    double stop_timeout;                            /* seconds */
    int on_listener; /* it is the child of one that listens: descriptor 3 is a socket that is bound */
} gy_pd_args;

#endif
