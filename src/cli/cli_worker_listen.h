/* gyre worker --listen: what outlives its lives. It has no model; it owns the address, the key in etcd, and a child
 * that does the work for one coordinator and ends with it.
 *
 *   bound --> child: loading --listens--> waiting --a coordinator comes--> serving --it goes--> exit 0 --+
 *     ^                                                                                                  |
 *     +--- at once; exit 1 or a signal: after 0, 0.5, 2 s, five of them in a minute end it all ----------+
 *
 *   SIGTERM, SIGINT: the key goes, the child is asked to leave, and with it this ends. Again, or after --stop-timeout:
 *   SIGKILL.
 *
 * Nobody listens while a model is loaded: who dials is refused by the system, and comes back.
 */
#ifndef GY_CLI_CLI_WORKER_LISTEN_H
#define GY_CLI_CLI_WORKER_LISTEN_H

#include "cli/cli_args.h"

/* A life's exit code when it got ready and then failed: the next one may do better. */
enum { GY_WORKER_BROKEN = 3 };

int gy_worker_listens(const gy_args *a); /* it was asked for, or one of its options was */
int gy_worker_listen(const gy_args *a);  /* the exit code */

#endif
