/* What `gyre serve` owes to those who run it: TLS, deadlines and log files as options; telling systemd.
 */
#ifndef GY_CLI_CLI_SERVE_LIFE_H
#define GY_CLI_CLI_SERVE_LIFE_H

#include "base/status.h"
#include "cli/cli_serve_opts.h"
#include "server/app.h"

/* Checks v and fills o->http, request_ms, access_*. */
gy_status gy_serve_set_life(const gy_serve_opts *v, gy_err *err, gy_app_opts *o);

/* The program's log goes to that file from now on; process lifetime. NULL: nothing happens. Sets o->on_hangup, which
 * opens it again. */
gy_status gy_serve_open_log(const char *path, gy_err *err, gy_app_opts *o);

/* As many descriptors as the connections of o need, if the system's hard limit allows it: the soft one is often 1024.
 */
void gy_serve_raise_descriptors(const gy_app_opts *o);

/* sd_notify(3): a datagram to $NOTIFY_SOCKET, which only a service manager sets. Failures are of no concern. open once,
 * at start: it reads the environment; tell is async-signal-safe and does nothing when there is nobody to tell. */
void gy_serve_notify_open(void);
void gy_serve_notify(const char *state);

#endif
