/* Discovery: which workers there are on other hosts. A name and an address for each; who they are and whether they are
 * alive is told by the connection to them (host.h), never from here: a worker that serves goes on while the file or
 * etcd cannot be read.
 *
 *   file   one worker a line: HOST:PORT ([v6]:PORT), `#` begins a comment. Read again when it changes (inotify on its
 *          folder, so that a rename in place is seen). A file that cannot be read or parsed changes nothing and is
 *          logged with its line. A line that goes away: `drain`.
 *   etcd   keys PREFIX + name -> address, put by the workers themselves under a lease (gy_disc_publish), over etcd's
 *          JSON gateway (v3 API: /v3/kv/range, /v3/watch, /v3/lease/...) by libcurl on a thread of its own. List, then
 *          watch from the list's revision + 1; a compacted revision or a broken stream: list again, and the difference
 *          is told. Several endpoints: the next one when one fails, with growing, jittered waits. A key that goes away:
 *          no more dialling; who is connected stays.
 */
#ifndef GY_PD_DISC_H
#define GY_PD_DISC_H

#include "base/status.h"

#include <stdint.h>

typedef struct gy_disc gy_disc;

enum { GY_DISC_MAX_WORKERS = 64, GY_DISC_NAME = 128, GY_DISC_ADDRESS = 272 };

typedef struct gy_disc_opts { /* strings are copied */
    const char *file;         /* or: */
    const char *etcd;         /* URLs, separated by commas: http://10.0.0.1:2379,... */
    const char *prefix;       /* of etcd's keys; "/gyre/default/" */
    const char *etcd_ca;      /* PEM file of whoever signs https endpoints; NULL: whom the system trusts */
    int32_t ttl_s;            /* of a published worker's lease; 5 */
} gy_disc_opts;

/* Reads the file, or lists once (2 s for each endpoint); GY_E_ARG with file and line, or an option that is wrong;
 * GY_E_IO: no endpoint answers. */
gy_status gy_disc_open(const gy_disc_opts *o, gy_err *err, gy_disc **out);
void gy_disc_close(gy_disc *d);   /* accepts NULL; withdraws what was published, for which it waits up to a second */
int gy_disc_fd(const gy_disc *d); /* readable while gy_disc_next may have something */

typedef enum gy_disc_kind { GY_DISC_ADD, GY_DISC_REMOVE } gy_disc_kind; /* an address that changes: REMOVE, ADD */
typedef struct gy_disc_event {
    gy_disc_kind kind;
    int drain; /* REMOVE: a person took it out: no new work, end when it holds nothing */
    char name[GY_DISC_NAME], address[GY_DISC_ADDRESS];
} gy_disc_event;
int gy_disc_next(gy_disc *d, gy_disc_event *out); /* 1: one was there */

/* A worker's side; etcd only. Done and kept alive by the thread until close, however often etcd goes away and comes
 * back: this call does not wait. Another name or address takes the place of the one before. Names of a cluster differ:
 * of two workers with one name the later one is seen. GY_E_ARG, GY_E_UNSUPPORTED. */
gy_status gy_disc_publish(gy_disc *d, const char *name, const char *address, gy_err *err);
void gy_disc_withdraw(gy_disc *d); /* at once, while others still work for what was begun; close does it too */

/* HOST:PORT, [v6]:PORT: checked and cut. GY_E_ARG. Empty host: all of this host's; port 0: any (both to listen on). */
gy_status gy_address_split(const char *text, gy_err *err, char host[256], char port[8]);

#endif
