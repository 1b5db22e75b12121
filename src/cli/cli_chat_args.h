/* The options of `gyre chat`: their rows, and what of them goes with every request. */
#ifndef GY_CLI_CLI_CHAT_ARGS_H
#define GY_CLI_CLI_CHAT_ARGS_H

#include "cli/cli_args.h"
#include "cli/cli_chat_talk.h"

/* What does not go together is refused by the flag's name. */
gy_status gy_chat_args_check(const gy_args *a, gy_err *err);
/* Request options that were given, here or in the config file, become settings; --system the system text. */
gy_status gy_chat_args_apply(const gy_args *a, gy_err *err, gy_chat_talk *t);
/* The key of --api-key, "@FILE" read from that file (first line); NULL: none. New memory in the arena. */
gy_status gy_chat_args_key(const gy_args *a, gy_err *err, const char **out);

#endif
