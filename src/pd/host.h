/* The shell around the coordinator (coord.h): starts the worker processes or dials workers of other hosts, carries
 * messages, sees deaths, keeps time. Everything with a descriptor is here or in chan.h; what to do about a death is the
 * coordinator's.
 *
 * A process of this host:
 *
 *   DOWN --due--> STARTING --READY--> RUNNING
 *     ^              |  late           |  it lets go (alive.h), hang-up, FATAL, nonsense, buffer full
 *     |              v                 v
 *     +--- reaped -- DYING <-----------+      dead for good: MAX_DEATHS within DEATH_WINDOW
 *
 *   DYING: its channel is closed here; it says and takes in nothing any more, and may still write. SIGKILL comes at
 *   once, or a second after a hang-up or FATAL. The coordinator is told (gy_coord_dying): what it had begins again
 *   elsewhere. When it ends by itself and does not let go first (no such word on this system), there is no DYING.
 *   Reaped: none of its threads runs, its GPU's work is over, and nothing more of it is written anywhere. Only then is
 *   it told dead: pages that it wrote to are used again, others let go of its memory, and its next life begins.
 *
 * Children are watched by pidfd; SIGCHLD and its handler are the program's. All children end with this process, however
 * it ends (PDEATHSIG), and that holds for whichever thread opened the host: they are started by a thread of its own.
 *
 * A worker of another host (each connection is a life of it; gyre worker --listen begins the next):
 *
 *           REMOVE                       +------ gone, late, refused: after 0.1 s .. 5 s, growing, jittered ------+
 *   EMPTY <--------+                     v                                                                        |
 *     |            +-- DOWN <------------+                                                                        |
 *     +-- ADD -------> DOWN --due--> DIALLING --connected--> STARTING --handshake, READY, accepted--> RUNNING ----+
 *
 * Refused: FATAL before READY (it serves another coordinator), READY of another model. Such a one is there and is no
 * use: 5 s. Each reason is logged once, also that the secret is another one.
 *
 * RUNNING: PING each second. Gone: hang-up, nonsense, buffer full; nothing acknowledged for peer_ms (its host, or the
 * way there); nothing said for stall_ms (its process: a step may take as long as it likes within that).
 *
 * RUNNING and leaving (REMOVE of one that a person took out, or it says LEAVING): nothing new goes there, STOP once it
 * holds nothing; then it hangs up, which is no death. REMOVE without drain: it stays as long as it lives.
 *
 * The coordinator is told dead as soon as the connection is closed here: nothing can be reaped. That no byte of it
 * lands in pages that are used again is the others' part: GONE reaches them before anything else (xfer.h, forbid).
 *
 * One thread calls everything (gy_host_fd is for any); threads inside only start processes and resolve names.
 */
#ifndef GY_PD_HOST_H
#define GY_PD_HOST_H

#include "pd/chan.h"
#include "pd/coord.h"
#include "pd/disc.h"

typedef struct gy_host gy_host;

enum {
    GY_HOST_CONTROL_FD = 3, /* a worker's end of its control channel */
    GY_HOST_ALIVE_FD = 4,   /* what it holds until its end (alive.h) */
    GY_HOST_MAX_DEATHS = 5,
    GY_HOST_DEATH_WINDOW_MS = 60000
};

typedef struct gy_host_opts {
    gy_coord_opts coord;       /* n_worker, role[], limits; user and send are the host's */
    const char *program;       /* path; NULL: /proc/self/exe. Strings are copied */
    const char *const *argv;   /* NULL-terminated, argv[0] first; "--role" and prefill, decode or both are put behind */
    const char *const *device; /* [n_worker] put behind that, after "--device"; NULL: nothing is */
    int32_t start_ms;          /* from the start of a process to READY; of all remote ones together; 300,000 */
    int32_t stop_ms;           /* close: STOP, then SIGTERM, then SIGKILL, each so long after the one before; 3000 */

    /* Not NULL: workers of other hosts, as it names them; program, argv, coord.n_worker and role[] do not count then.
       Borrowed, and nobody else's until close. */
    gy_disc *disc;
    const gy_secret *secret; /* copied */
    int32_t peer_ms;         /* 5000 */
    int32_t stall_ms;        /* 60,000 */
    /* NULL, or: may a worker that says this of itself be used? GY_E_ARG with a sentence. */
    gy_status (*accept)(void *user, const gy_msg_ready *r, gy_err *err);
    void *user;

    /* NULL, or: asked ten times a second while open waits; not 0: GY_E_CANCELLED. */
    int (*should_stop)(void *user);
    void *should_stop_user;
} gy_host_opts;
void gy_host_opts_default(gy_host_opts *o); /* and the coordinator's */

/* Starts all workers and waits until each is ready. The first one that dies, says something impossible or is too late
 * ends it, with the worker's own words where it had any. Remote ones: until there is a ready one for each kind of work;
 * GY_E_PEER after start_ms, with what was found. */
gy_status gy_host_open(const gy_host_opts *o, gy_err *err, gy_host **out);
/* Ends all workers, or the connections to them; unfinished requests end without an event. Accepts NULL. */
void gy_host_close(gy_host *h);
gy_coord *gy_host_coord(gy_host *h);

/* What came, what is due, one turn of the coordinator, what goes out. Never waits. GY_OK: something was done; GY_DONE:
 * no request is left; GY_AGAIN: all wait for workers or time: gy_host_fd. GY_E_PEER: no worker that decodes is left (of
 * remote ones one may always come back: requests wait). */
gy_status gy_host_turn(gy_host *h, gy_err *err);
/* Readable: a turn has something to do. Borrowed; for poll only. */
int gy_host_fd(const gy_host *h);

typedef enum gy_host_state {
    GY_HOST_EMPTY, /* no worker */
    GY_HOST_DOWN,
    GY_HOST_DIALLING,
    GY_HOST_STARTING,
    GY_HOST_RUNNING,
    GY_HOST_DYING,
    GY_HOST_LOST
} gy_host_state;
typedef struct gy_host_worker {
    gy_host_state state;
    int32_t role, pid;
    int32_t n_start, n_death;
    const char *name, *address; /* of a remote one, the slot's; else "" */
    gy_msg_stats stats;         /* what it said last; counts go on from life to life */
} gy_host_worker;
int32_t gy_host_n_worker(const gy_host *h); /* slots */
void gy_host_get_worker(const gy_host *h, int32_t i, gy_host_worker *out);
/* The same without a copy, until the next turn. -1: what those counted whose slots are empty or another one's now:
 * n_death and what grows of stats; EMPTY. */
const gy_host_worker *gy_host_look(const gy_host *h, int32_t i);

#endif
