/* What the files of the host share: slots, and what may happen to them. A slot is a process of this host (host_proc.c)
 * or a connection to a worker of another one (host_remote.c), never both; all slots of a host are of one kind.
 */
#ifndef GY_PD_HOST_INT_H
#define GY_PD_HOST_INT_H

#include "pd/alive.h"
#include "pd/host.h"
#include "pd/resolve.h"
#include "pd/spawn.h"

#include <sys/socket.h>

enum { GY_HOST_MS = 1000000, GY_HOST_MAX_ARGS = 128, GY_HOST_WHAT = 640 };

typedef enum gy_host_tag { TAG_CHAN, TAG_PROCESS, TAG_ALIVE, TAG_TIMER, TAG_DISC, TAG_RESOLVED, TAG_DIAL } gy_host_tag;

typedef struct gy_remote { /* of a slot whose worker is on another host */
    char name[GY_DISC_NAME], address[GY_DISC_ADDRESS];
    int is_listed;   /* discovery names it: it is dialled again */
    int is_asked;    /* its name is being resolved */
    int is_refused;  /* it is there, and is not what we can use: dialled again after long waits only */
    uint32_t serial; /* of the address: an answer of the resolver for another one is late */
    int fd;          /* DIALLING: a socket that is being connected; else -1 */
    int32_t n_dial;  /* in a row, without a READY */
    int64_t heard_ns, ping_ns;
    char told[GY_HOST_WHAT]; /* why it cannot be had, as logged last */
} gy_remote;

typedef struct gy_slot {
    gy_host_worker w;
    gy_msg_stats past; /* what earlier lives counted */
    char *device;      /* of a process, for its command line; owned, may be NULL */
    gy_chan *chan;     /* NULL unless somebody has the other end */
    int pidfd;         /* -1: no process */
    gy_alive *alive;   /* of it; NULL: there will be no early word */
    int doomed;        /* to be ended at the top of the turn */
    int is_leaving;    /* nothing new goes there; STOP once it holds nothing */
    int is_stopped;    /* STOP was said for that */
    uint32_t polled;
    int64_t due_ns; /* DOWN: when it starts or is dialled again; DIALLING, STARTING, DYING: when it is too late;
                       RUNNING and is_stopped: likewise */
    int64_t death_ns[GY_HOST_MAX_DEATHS]; /* ring */
    char why[GY_HOST_WHAT];               /* its death, in words: a worker's own come first */
    gy_remote r;
} gy_slot;

struct gy_host {
    gy_host_opts o;
    gy_secret secret;
    char *argv_text[GY_HOST_MAX_ARGS];
    size_t n_arg;
    gy_spawner *spawner;
    gy_resolver *resolver;
    gy_coord *coord;
    int epoll_fd, timer_fd;
    int64_t timer_ns;        /* what the timer is set to; INT64_MAX: nothing */
    int opening, more;       /* more: messages were left for the next turn */
    int is_idle;             /* closing: all were told to stop, nothing of theirs is lost by it */
    gy_err open_err;         /* the first death while opening */
    uint64_t rng;            /* of waits only */
    gy_disc_event *unplaced; /* [GY_DISC_MAX_WORKERS] workers that are listed and found no slot */
    int32_t n_unplaced;
    int32_t n_worker;
    gy_host_worker gone; /* sums of workers whose slots were emptied */
    gy_slot slot[GY_COORD_MAX_WORKERS];
};

/* ---- host.c ---- */
const char *gy_role_name(int32_t role);
void gy_slot_say_why(gy_slot *s, const char *text); /* the first reason counts */
void gy_slot_log(const gy_host *h, int level, const char *what, const gy_slot *s);
void gy_slot_doom(gy_slot *s, const char *why);
void gy_slot_close_stats(gy_slot *s); /* a life has ended: what it counted stays, what it held is gone */
void gy_slot_drop_chan(gy_slot *s);
int gy_host_watch(const gy_host *h, int op, int fd, uint32_t events, gy_host_tag tag, const gy_slot *s);
/* What it said before it died counts. */
void gy_slot_take_rest(gy_host *h, gy_slot *s, int64_t now_ns);
static inline int32_t gy_slot_index(const gy_host *h, const gy_slot *s) {
    return (int32_t)(s - h->slot);
}

/* ---- host_proc.c ---- */
gy_status gy_proc_open(gy_host *h, const char *program, gy_err *err);
void gy_proc_close(gy_host *h);
void gy_proc_detach(gy_slot *s); /* descriptors only */
void gy_proc_kill(gy_host *h, gy_slot *s, int64_t now_ns);
void gy_proc_hung_up(gy_host *h, gy_slot *s, int64_t now_ns);
void gy_proc_on_word(gy_host *h, gy_slot *s, int64_t now_ns); /* it ends, if it does */
void gy_proc_on_exit(gy_host *h, gy_slot *s, int64_t now_ns);
void gy_proc_look_at_clock(gy_host *h, gy_slot *s, int64_t now_ns);

/* ---- host_remote.c ---- */
gy_status gy_remote_open(gy_host *h, gy_err *err);
void gy_remote_close(gy_host *h);
void gy_remote_lost(gy_host *h, gy_slot *s, int64_t now_ns); /* its connection ends here, in whatever state */
void gy_remote_hung_up(gy_host *h, gy_slot *s, const gy_err *why, int64_t now_ns);
void gy_remote_gave_up(gy_slot *s); /* FATAL */
/* READY, before the coordinator gets it. */
gy_status gy_remote_accept(const gy_host *h, const gy_msg_ready *r, gy_err *err);
void gy_remote_on_ready(gy_slot *s, int64_t now_ns);
void gy_remote_on_dialled(gy_host *h, gy_slot *s, int64_t now_ns);
void gy_remote_on_resolved(gy_host *h, int64_t now_ns);
void gy_remote_on_disc(gy_host *h, int64_t now_ns);
void gy_remote_look_at_clock(gy_host *h, gy_slot *s, int64_t now_ns);
int64_t gy_remote_next(const gy_host *h, const gy_slot *s);
gy_status gy_remote_describe(const gy_host *h, gy_err *err); /* why the host cannot open, in one sentence */

#endif
