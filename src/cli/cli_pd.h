/* What the commands share about prefill and decode workers: options, and what they mean for the library. */
#ifndef GY_CLI_CLI_PD_H
#define GY_CLI_CLI_PD_H

#include "cli/cli_args.h"
#include "gyre.h"
#include "pd/xfer.h"

extern const gy_opt_group gy_group_workers;  /* run, serve */
extern const gy_opt_group gy_group_transfer; /* run, serve, worker, inspect */
extern const gy_opt_group gy_group_worker;   /* worker */
extern const gy_opt_group gy_group_peers;    /* run, serve, chat */
extern const gy_opt_group gy_group_listen;   /* worker */

int gy_cli_wants_workers(const gy_args *a); /* of this host */
int gy_cli_wants_peers(const gy_args *a);   /* of others */
/* --prefill without --decode, and what else does not fit together. */
gy_status gy_cli_check_workers(const gy_args *a, gy_err *err);
gy_status gy_cli_transfer_limits(const gy_args *a, gy_err *err, gy_xfer_limits *out);
/* The fields of gyre_options about workers; memory from the arena. */
gy_status gy_cli_set_workers(const gy_args *a, gy_err *err, gyre_options *o);

#endif
