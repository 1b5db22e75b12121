/* The shell around the coordinator (coord.h): starts the worker processes, carries messages, sees deaths, keeps time.
 * Everything with a descriptor is here or in chan.h; what to do about a death is the coordinator's.
 *
 *   DOWN --due--> STARTING --READY--> RUNNING
 *     ^              |  late           |  hang-up, nonsense, buffer full, exit
 *     |              v                 v
 *     +--- reaped -- DYING <--SIGKILL--+      dead for good: MAX_DEATHS within DEATH_WINDOW
 *
 * A worker is told dead after it was reaped: then none of its threads runs and nothing more of it is written anywhere.
 * Children are watched by pidfd; SIGCHLD and its handler are the program's. All children end with this process, however
 * it ends (PDEATHSIG), and that holds for whichever thread opened the host: they are started by a thread of its own.
 *
 * One thread calls everything (gy_host_fd is for any); the thread inside only starts processes.
 */
#ifndef GY_PD_HOST_H
#define GY_PD_HOST_H

#include "pd/chan.h"
#include "pd/coord.h"

typedef struct gy_host gy_host;

enum {
    GY_HOST_CONTROL_FD = 3, /* a worker's end of its control channel */
    GY_HOST_MAX_DEATHS = 5,
    GY_HOST_DEATH_WINDOW_MS = 60000
};

typedef struct gy_host_opts {
    gy_coord_opts coord;     /* n_worker, role[], limits; user and send are the host's */
    const char *program;     /* path; NULL: /proc/self/exe. Strings are copied */
    const char *const *argv; /* NULL-terminated, argv[0] first; "--role" and prefill, decode or both are put behind */
    int32_t start_ms;        /* from the start of a process to READY; 300,000 */
    int32_t stop_ms;         /* close: STOP, then SIGTERM, then SIGKILL, each so long after the one before; 3000 */
} gy_host_opts;
void gy_host_opts_default(gy_host_opts *o); /* and the coordinator's */

/* Starts all workers and waits until each is ready. The first one that dies, says something impossible or is too late
 * ends it, with the worker's own words where it had any. */
gy_status gy_host_open(const gy_host_opts *o, gy_err *err, gy_host **out);
/* Ends all workers; unfinished requests end without an event. Accepts NULL. */
void gy_host_close(gy_host *h);
gy_coord *gy_host_coord(gy_host *h);

/* What came, what is due, one turn of the coordinator, what goes out. Never waits. GY_OK: something was done; GY_DONE:
 * no request is left; GY_AGAIN: all wait for workers or time: gy_host_fd. GY_E_PEER: no worker that decodes is left. */
gy_status gy_host_turn(gy_host *h, gy_err *err);
/* Readable: a turn has something to do. Borrowed; for poll only. */
int gy_host_fd(const gy_host *h);

typedef enum gy_host_state {
    GY_HOST_DOWN,
    GY_HOST_STARTING,
    GY_HOST_RUNNING,
    GY_HOST_DYING,
    GY_HOST_LOST
} gy_host_state;
typedef struct gy_host_worker {
    gy_host_state state;
    int32_t role, pid;
    int32_t n_start, n_death;
    gy_msg_stats stats; /* what it said last; counts go on from life to life */
} gy_host_worker;
int32_t gy_host_n_worker(const gy_host *h);
void gy_host_get_worker(const gy_host *h, int32_t i, gy_host_worker *out);

#endif
