/* A model in this process, behind the same door as any other: the server (server/app.h) in a thread, on a free port of
 * 127.0.0.1, with a key that nobody else knows. Single thread but for what app.h says.
 */
#ifndef GY_CLI_CLI_CHAT_LOCAL_H
#define GY_CLI_CLI_CHAT_LOCAL_H

#include "cli/cli_args.h"

typedef struct gy_chat_local gy_chat_local;

/* Returns when a request would be served, or with why not. a must outlive it. */
gy_status gy_chat_local_open(const gy_args *a, const char *dir, gy_err *err, gy_chat_local **out);
void gy_chat_local_close(gy_chat_local *l); /* accepts NULL; ends what runs */
const char *gy_chat_local_url(const gy_chat_local *l);
const char *gy_chat_local_key(const gy_chat_local *l);
int32_t gy_chat_local_loops(const gy_chat_local *l); /* of the model */
/* 1: the server has ended; *err says why. */
int gy_chat_local_is_gone(gy_chat_local *l, gy_err *err);

#endif
