/* Values of the options that `gyre chat` alone has; a member of gy_args (cli_args.h). The rows are in cli_chat_args.c.
 */
#ifndef GY_CLI_CLI_CHAT_OPTS_H
#define GY_CLI_CLI_CHAT_OPTS_H

#include "cli/cli_opts.h"

typedef struct gy_chat_opts {
    const char *url, *model, *api_key, *cacert;
    int insecure;
    const char *system, *load, *history;
    gy_opt_list messages;
    int raw;
    int depth;                   /* gy_chat_depth_mode */
    const char *enable_thinking; /* NULL: the template decides */
} gy_chat_opts;

#endif
