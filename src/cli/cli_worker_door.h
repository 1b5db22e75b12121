/* The door of a worker that other hosts reach: a listening socket, and whoever has come through it and is not known
 * yet. One of them becomes the coordinator; those who come later, and know the secret, are told that there is one.
 * Nobody without the secret holds anything up. Never waits. One thread.
 */
#ifndef GY_CLI_CLI_WORKER_DOOR_H
#define GY_CLI_CLI_WORKER_DOOR_H

#include "pd/chan.h"

#include <poll.h>

typedef struct gy_door gy_door;

enum { GY_DOOR_VISITORS = 4, GY_DOOR_POLLS = GY_DOOR_VISITORS + 1 };

/* fd: bound; listens from now on, and is closed by close. peer_ms: how long a visitor may take; how long what is sent
 * to it may stay unacknowledged. */
gy_status gy_door_open(int fd, const gy_secret *s, int32_t peer_ms, gy_err *err, gy_door **out);
void gy_door_close(gy_door *d); /* accepts NULL */

int gy_door_polls(const gy_door *d, struct pollfd *out); /* [GY_DOOR_POLLS]; how many */
int64_t gy_door_next_ns(const gy_door *d);               /* when to call at the latest; INT64_MAX */
/* wants: the first one who knows the secret is handed out, and is the caller's. NULL: nobody. */
gy_chan *gy_door_turn(gy_door *d, int64_t now_ns, int wants);

#endif
