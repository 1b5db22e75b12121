/* gyre worker: one process of --prefill and --decode, started by gyre itself (pd/host.h) with its control channel on
 * descriptor 3. Not for people: it is in no list of commands.
 */
#ifndef GY_CLI_CLI_WORKER_H
#define GY_CLI_CLI_WORKER_H

#include "cli/cli_args.h"

extern const gy_cmd gy_cmd_worker;

#endif
