/* The coordinator's mind: which worker does what for which request. Pure: no clock, no I/O, no process; messages come
 * in as structs, what is to be done goes out through callbacks. One thread (the API's driver). The shell around it
 * (pd/host.h) owns sockets, processes and time.
 *
 * A request may be tried several times, each try with a tid of its own; its outputs do not depend on where and how
 * often it runs (ARCHITECTURE.md, determinism), so outputs that were told already are swallowed when a later try says
 * them again. Random seeds are drawn here, once.
 *
 *             +-------------------- died, rejected, failed (new tid, at most MAX_TRIES) ----------------+
 *             v                                                                                        |
 *   submit -> WAITING --RESERVE to D--> RESERVING --RESERVED: PREFILL to P--> PREFILL --ACTIVE--> DECODE --last
 * FINISH--> gone |                                                                               ^
 *                +-- LOCAL to a worker that decodes ---------------------------------------------+
 *   WAITING: cannot cross, prompt below local_below, no worker for prefill, or its queue is longer than patience. Who
 *   waits is admitted by (priority,) age; who does not fit is passed, at most max_bypass times, and not once it is the
 *   first one and older than patience.
 *
 *   cancel, deadline, error: the request's finish event at once; what workers hold of the try is cleaned up behind it:
 *   WAITING    nothing
 *   RESERVING  CANCEL to D -> RELEASED (a RESERVED on its way is answered by CANCEL_SAFE)
 *   PREFILL    CANCEL to both -> RELEASED of P -> CANCEL_SAFE to D -> RELEASED of D
 *   DECODE     CANCEL to D -> RELEASED of D; also to P, if it has not said PREFILLED
 *
 * The end of a worker has two steps, and either may be all there is of it:
 *
 *   lives --gy_coord_dying--> dying --gy_coord_dead--> dead      READY: the next life
 *     dying (it ends, and may still write): nothing new goes there. Tries that need it are given up, P's work for a
 *           dying D gets CANCEL, and their requests begin again elsewhere. What it holds of them stays held: D's pages
 * of a dying P get no CANCEL_SAFE, its own credits are not returned. dead  (reaped: no copy of it is under way): what
 * it held is free. D's pages of a dead P's try get CANCEL_SAFE, and all others are told GONE first: they let go of its
 * memory. Others go on. Of a worker on another host only the connection is known to be dead: with GONE all others write
 * or take in nothing of it, whatever it still does.
 *
 * Where a prompt goes is decided by load and by what of it is believed to be cached (known.h): coord_place.c.
 *
 * Credits: a try takes its places (a reservation at D, a prefill at P) before a message is sent and gives them back
 * with RELEASED, REJECTED or the worker's death, once. One exception, so that a D that is slow or stopped does not hold
 * up the prompts of all others: P's place goes back when D has not answered RESERVE soon (ask_ns), and is taken again
 * with RESERVED, whether P has room or not (it queues). A D that owes such an answer gets nothing new; of a P's places
 * such prompts still count for half at most. So D's pages wait for at most max_prefill prompts of one P, and
 * (max_prefill + 1) / 2 more for each further D that was slow. After suspect_ns the prompt is moved to another D.
 */
#ifndef GY_PD_COORD_H
#define GY_PD_COORD_H

#include "pd/msg.h"

typedef struct gy_coord gy_coord;

enum { GY_COORD_MAX_WORKERS = 64, GY_COORD_MAX_TRIES = 3, GY_COORD_PATIENCE = 10 };

typedef struct gy_coord_opts {
    int32_t n_worker;
    int32_t role[GY_COORD_MAX_WORKERS]; /* gy_pd_role bits of each slot; 0: empty until a READY says who it is */
    int32_t max_queue;                  /* choices that wait; then GY_AGAIN */
    int32_t local_below;                /* prompts of fewer tokens are prefilled where they decode; 0: none */
    int32_t max_prefill;                /* prompts that one P has at once (its queue included); 4 */
    gy_sched_policy policy;             /* who waits goes by age, or by (priority, age), as in sched.h */
    int32_t max_bypass;                 /* admissions past one that did not fit, then nobody passes it; 0: only its age
                                           counts */
    int32_t local_queue;                /* prompt tokens before the least busy P above which a prompt is computed where
                                           it is decoded; 0: never for that */
    int prefix_cache;                   /* workers keep prefixes: prompts go where their beginning is */
    int64_t ask_ns;                     /* RESERVE without an answer (or 4 times what D took last, up to 20 ask_ns) */
    int64_t suspect_ns;                 /* ... and not a word meanwhile: to another D, if one owes no answer */
    /* A RESERVE without an answer, a PREFILL without PREFILLED: the try fails when the worker has said nothing at all
       for so long (it is suspected: no new work until it speaks), or nothing about this try for GY_COORD_PATIENCE times
       as long. PREFILLED without ACTIVE: after prefill_ns. */
    int64_t reserve_ns, prefill_ns;
    void *user;
    void (*send)(void *user, int32_t worker, const gy_msg *m); /* must queue: nothing comes back from inside */
    int (*random)(void *user, void *bytes, size_t n);          /* tids, seeds; 0: done. Default: the system's */
    /* May be NULL. A prompt was all at D for prefill_ns, D did not begin it, and answers: it does not hear of what
       arrives (docs/pitfalls.md, a deaf receiver), and only a new life helps. The shell may end it; not from inside. */
    void (*deaf)(void *user, int32_t worker);
} gy_coord_opts;
/* local_below 0, max_queue 1024, max_prefill 4, fcfs, 0, 0, prefix cache, 5 ms, 2 s, 30 s, 60 s; the rest must be set.
 */
void gy_coord_opts_default(gy_coord_opts *o);

gy_status gy_coord_create(const gy_coord_opts *o, gy_err *err, gy_coord **out);
void gy_coord_destroy(gy_coord *c); /* accepts NULL; requests end without an event */

/* ---- workers ---- */

/* What it says; GY_E_ARG, GY_E_FORMAT: it may not say that (another model, a message of the other direction): the shell
 * ends it. READY makes it known, tells it of the others and them of it. */
gy_status gy_coord_message(gy_coord *c, int32_t worker, const gy_msg *m, int64_t now_ns, gy_err *err);
/* It is ending: it takes in and says nothing any more, and may still write. gy_coord_dead follows. */
void gy_coord_dying(gy_coord *c, int32_t worker, int64_t now_ns);
void gy_coord_dead(gy_coord *c, int32_t worker, int64_t now_ns); /* its process is reaped, or its connection closed */
/* Nothing new goes there; what it has goes on. LEAVING says the same from the other side. Until it is dead. */
void gy_coord_leave(gy_coord *c, int32_t worker);
/* 1: it leaves, and holds nothing of any request: STOP ends it without a loss. gy_coord_dead then counts no death. */
int gy_coord_may_stop(const gy_coord *c, int32_t worker);
int gy_coord_n_ready(const gy_coord *c, gy_pd_role role);
const gy_pd_info *gy_coord_info(const gy_coord *c);                        /* of the first READY; NULL before */
const gy_pd_info *gy_coord_worker_info(const gy_coord *c, int32_t worker); /* NULL: not ready */

/* ---- requests: as gy_engine_submit, gy_engine_cancel; callbacks run inside gy_coord_message, _dead and _turn ---- */

typedef struct gy_coord_request {
    const gy_msg_request *q; /* copied; q->r's callbacks count */
    int can_cross;           /* gy_handoff_can's answer, by its rule */
    int64_t deadline_ns;     /* on the clock of now_ns; 0: none */
} gy_coord_request;
gy_status gy_coord_submit(gy_coord *c, const gy_coord_request *r, int64_t now_ns, gy_err *err, int32_t *id_out);
void gy_coord_cancel(gy_coord *c, int32_t id);                            /* takes effect in the next turn */
void gy_coord_set_deadline(gy_coord *c, int32_t id, int64_t deadline_ns); /* another one; unknown ids are ignored */

/* Admits what fits, ends what is overdue. GY_OK: something was done; GY_DONE: nothing runs or waits or is cleaned up
 * (all books are at zero); GY_AGAIN: all wait for workers. *next_ns_out: when to call again at the latest (INT64_MAX:
 * only after a message). */
gy_status gy_coord_turn(gy_coord *c, int64_t now_ns, int64_t *next_ns_out);

typedef struct gy_coord_stats {
    int32_t n_waiting, n_reserving, n_prefill, n_decode, n_cleanup; /* requests; tries that only clean up */
    int64_t n_submit, n_finish[GY_FINISH_ERROR + 1];
    int64_t n_try, n_retry, n_local, n_crossed, n_death, n_swallowed,
        n_late; /* n_late: messages for tids that are gone */
    int64_t bytes, n_op, n_desc, overlap_ns, overlap_bytes, n_overlap, wire_ns; /* of prompts that crossed */
    int64_t n_output_tok, n_loop_sum, n_exit[GY_STAT_DEPTHS]; /* told; loops of all of them; by loops - 1 */
    int32_t n_live;                                           /* requests that have not ended */
    int64_t used_blocks;    /* core blocks that tries hold on paper; 0 when nothing runs */
    int64_t wait_tok;       /* prompts that no worker has been given yet */
    char lane[48];          /* of the pair that was connected last */
    int64_t n_owed, n_move; /* RESERVEs that were not answered soon; tries that went to another D for it */
    /* Prompt tokens that were believed to be cached when a try began, and how many workers said there were: at who
       computed the prompt (n_computed, n_cached), and at D of those that crossed (n_have). */
    int64_t prefix_est_tok, prefix_tok, have_est_tok, have_tok;
} gy_coord_stats;
void gy_coord_get_stats(const gy_coord *c, gy_coord_stats *out);
int gy_coord_is_valid(const gy_coord *c, char *buf, size_t cap); /* credits, lists, states recomputed; tests */

#endif
