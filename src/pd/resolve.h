/* Names of hosts become addresses on a thread of its own: the system's resolver waits as long as it likes. Destroying
 * does not wait for it; the thread then ends by itself, with what it is about.
 */
#ifndef GY_PD_RESOLVE_H
#define GY_PD_RESOLVE_H

#include "base/status.h"

#include <stdint.h>
#include <sys/socket.h>

typedef struct gy_resolver gy_resolver;

enum { GY_RESOLVE_ADDRESSES = 4, GY_RESOLVE_QUEUE = 64 };

typedef struct gy_address {
    struct sockaddr_storage a;
    socklen_t len;
} gy_address;

typedef struct gy_resolved {
    int32_t who;     /* as asked */
    uint32_t serial; /* likewise */
    int32_t n;
    gy_address addr[GY_RESOLVE_ADDRESSES];
    char why[128]; /* n 0 */
} gy_resolved;

gy_status gy_resolver_create(gy_err *err, gy_resolver **out);
void gy_resolver_destroy(gy_resolver *r); /* accepts NULL */
int gy_resolver_fd(const gy_resolver *r); /* readable while gy_resolver_next has something */

/* Numbers only, at once. 1: *out is one. */
int gy_resolve_numeric(const char *host, const char *port, gy_address *out);
/* At most one question of each `who` at a time, who < GY_RESOLVE_QUEUE. */
void gy_resolver_ask(gy_resolver *r, int32_t who, uint32_t serial, const char *host, const char *port);
int gy_resolver_next(gy_resolver *r, gy_resolved *out); /* 1: one was there */

#endif
