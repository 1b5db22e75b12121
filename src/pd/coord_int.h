/* What the files of the coordinator share. A request is what the user sees; a try is what workers see of it.
 *
 *   request   WAITING <-> RUNNING -> GONE        GONE: every choice has had its finish event; freed with its last try
 *
 *   try       gy_try_begin_cross      -> RESERVING  D is asked for a place
 *             gy_try_begin_local      -> DECODE     one worker does it all (p is -1)
 *     RESERVING  gy_try_reserved      -> PREFILL    P writes
 *     PREFILL    gy_try_active        -> DECODE     D tells tokens
 *     DECODE     gy_try_done          -> CLEANUP    all choices said FINISH
 *     any        gy_try_abandon       -> CLEANUP    CANCEL to who holds something
 *     CLEANUP    gy_try_release_d, _p: both sides hold nothing -> free
 *
 *   A side is held from the message that tells a worker of the try until that worker's evidence that nothing of it is
 *   left: D: RELEASED, REJECTED, death. P: PREFILLED, RELEASED, REJECTED, death. Each side's credits are returned at
 *   that moment, once. A place for an import goes back earlier, with ACTIVE.
 *
 *   CANCEL_SAFE goes to D, once, when D was cancelled, said RESERVED and not ACTIVE, and P holds nothing: whatever the
 *   order in which these come true.
 *
 * At most MAX_TRIES tries of a request exist at once; they live inside it, and it is one allocation.
 */
#ifndef GY_PD_COORD_INT_H
#define GY_PD_COORD_INT_H

#include "pd/coord.h"
#include "pd/known.h"

typedef struct gy_coord_req gy_coord_req;
typedef struct gy_try gy_try;

typedef enum gy_try_phase { TRY_FREE, TRY_RESERVING, TRY_PREFILL, TRY_DECODE, TRY_CLEANUP } gy_try_phase;

struct gy_try {
    gy_try_phase phase;
    gy_tid tid;
    gy_coord_req *req;
    int32_t d, p;         /* slots of workers; p -1: LOCAL */
    int d_held, p_held;   /* the side was told and may hold something of this try */
    int p_taken;          /* P's credits are taken; from RESERVING on, when P is not told yet */
    int d_owes;           /* RESERVE was not answered soon; until D answers. P's credits went back with it .. */
    int p_away;           /* .. and it counts as one that may still come; until RESERVED or abandoned */
    int was_owed;         /* P's credits were taken again, whether it had room or not */
    int was_reserved;     /* RESERVED came: D keeps pages for a writer */
    int was_active;       /* ACTIVE came, or LOCAL: no writer any more */
    int was_cancelled;    /* CANCEL was sent to those who held */
    int is_unheard;       /* given up because D did not begin what is all there: if D answers, it is deaf */
    int was_safe;         /* CANCEL_SAFE was sent */
    int is_import;        /* counts as one of D's imports */
    int32_t tok_at;       /* worker that still computes the prompt, -1: none */
    int32_t n_tok;        /* of the prompt, that it computes by our estimate */
    int32_t p_est, d_est; /* tokens believed to be cached at who computes it, and at D */
    int32_t d_block, p_block;
    int32_t n_computed;                /* of PREFILLED; -1: not said */
    uint8_t said[GY_ENGINE_MAX_N / 8]; /* choices whose FINISH came, of this try */
    int32_t n_said;
    int64_t start_ns;    /* of this phase */
    int64_t due_ns;      /* when to look whether it takes too long; INT64_MAX: never */
    gy_try *prev, *next; /* all tries */
    gy_try *chain;       /* of its bucket */
};

typedef struct gy_coord_choice {
    int32_t n_told;
    int is_done; /* its finish event was sent */
    int64_t first_token_ns;
    /* Its outputs at D, as far as they may be shared, of the try that counts: */
    int can_share;           /* all so far ran the trained depth */
    int32_t n_seen, last;    /* outputs; the last one's token, which has no KV yet */
    uint64_t hash, row_hash; /* of all tokens but that one; of their last whole row, 0: none */
} gy_coord_choice;

typedef enum gy_req_state { REQ_WAITING, REQ_RUNNING, REQ_GONE } gy_req_state;

struct gy_coord_req {
    gy_req_state state;
    int32_t id;
    gy_msg_request q; /* as workers get it: arrays behind this struct, seed drawn, no callbacks */
    gy_verdict (*on_token)(void *arg, const gy_token_event *ev);
    void (*on_prompt)(void *arg, const gy_prompt_event *ev);
    void (*on_finish)(void *arg, const gy_finish_event *ev);
    void *arg;
    int can_cross, is_cancelled;
    int n_hold;       /* callbacks of it that are running: it may not be freed */
    int32_t n_bypass; /* others that were admitted past it while it waits */
    int32_t n_left, n_failed;
    int64_t deadline_ns, submit_ns, admit_ns, since_ns; /* since: of WAITING */
    gy_pd_cost pd;                                      /* of the latest try; at_ns without the end */
    gy_coord_choice *choice;                            /* [q.r.n] */
    uint64_t *row_hash;                                 /* [n_row]: ends of the prompt's rows (known.h) */
    uint64_t hash;                                      /* of the prompt */
    int32_t n_row;                                      /* 0: nothing of it is shared with others */
    uint8_t *pos_told;                                  /* bit of each prompt position; NULL: no prompt logprobs */
    gy_try *cur;                                        /* RUNNING: the try that counts */
    gy_try tries[GY_COORD_MAX_TRIES];
    gy_coord_req *prev, *next;   /* live or gone ones, by id */
    gy_coord_req *wprev, *wnext; /* WAITING ones, best first (gy_req_better) */
};

typedef enum gy_pair { PAIR_NONE, PAIR_ASKED, PAIR_OPEN, PAIR_FAILED } gy_pair;

typedef struct gy_coord_worker {
    int is_ready;   /* between READY and death */
    int is_leaving; /* nothing new; ends with its death */
    int is_suspect; /* was silent too long: nothing new until it speaks */
    int is_lost;    /* said FATAL or broke the protocol: nothing new until it has died */
    int32_t role;   /* 0: an empty slot */
    uint64_t epoch;
    gy_pd_info info;
    gy_known *known; /* what its prefix cache is believed to hold; NULL: it has none */
    void *blob;
    int32_t n_blob, plane_core;
    int64_t heard_ns;                   /* its last word */
    int64_t full_until_ns;              /* it rejected for want of room */
    int64_t answer_ns;                  /* what its last RESERVED took */
    int64_t owed_ns;                    /* when it began to owe the latest of n_owed */
    uint8_t pair[GY_COORD_MAX_WORKERS]; /* gy_pair of this P with each D */
    /* books */
    int32_t n_choice, n_import, n_export;
    int32_t n_owed, n_away; /* as D: answers that it owes; as P: prompts whose D owes one */
    int64_t n_block, n_tok; /* core blocks; prompt tokens to be computed */
} gy_coord_worker;

enum { COORD_BUCKETS = 1024 };

typedef struct gy_req_list {
    gy_coord_req *first, *last;
} gy_req_list;

struct gy_coord {
    gy_coord_opts o;
    gy_coord_worker w[GY_COORD_MAX_WORKERS];
    int has_info;
    gy_pd_info info;
    gy_req_list live, gone, waiting;
    gy_try *tries;
    gy_try *bucket[COORD_BUCKETS];
    int32_t next_id, n_wait; /* choices that wait */
    int32_t n_cancel;        /* live requests with is_cancelled */
    int64_t due_ns;          /* no deadline of a request or try is earlier */
    gy_coord_stats stats;    /* counters only */
};

/* ---- coord_req.c ---- */
gy_status gy_req_create(gy_coord *c, const gy_coord_request *in, gy_err *err, gy_coord_req **out);
void gy_req_add(gy_coord *c, gy_coord_req *r, int64_t now_ns); /* its id; WAITING */
void gy_req_free_if_gone(gy_coord *c, gy_coord_req *r);
void gy_req_wait(gy_coord *c, gy_coord_req *r, int64_t since_ns); /* new or RUNNING -> WAITING, in its place */
void gy_req_leave_queue(gy_coord *c, gy_coord_req *r);            /* WAITING -> RUNNING */
gy_try *gy_req_free_try(gy_coord_req *r);                         /* NULL: all clean up */
static inline int gy_req_better(const gy_coord *c, const gy_coord_req *a, const gy_coord_req *b) {
    int32_t x = a->q.r.priority, y = b->q.r.priority;
    return c->o.policy == GY_SCHED_PRIORITY && x != y ? x < y : a->id < b->id;
}
void gy_req_end(gy_coord *c, gy_coord_req *r, gy_finish reason, const gy_err *err, int64_t now_ns); /* all choices */
/* Its try failed: another one, or GY_E_PEER with the sentence. */
void gy_req_failed(gy_coord *c, gy_coord_req *r, const char *why, int64_t now_ns);
int gy_req_is_at_fault(gy_status st);
gy_status gy_req_token(gy_coord *c, gy_try *t, const gy_msg_token *m, int64_t now_ns, gy_err *err);
gy_status gy_req_prompt(gy_coord *c, gy_try *t, const gy_msg_token *m, gy_err *err);
gy_status gy_req_said_finish(gy_coord *c, gy_try *t, const gy_msg *m, int64_t now_ns, gy_err *err);

/* ---- coord_try.c ---- */
gy_try *gy_try_find(const gy_coord *c, gy_tid tid);
/* Takes the credits, then sends. GY_E_IO: no random numbers; nothing changed. */
gy_status gy_try_begin(gy_coord *c, gy_coord_req *r, int32_t d, int32_t p, int64_t now_ns);
void gy_try_owed(gy_coord *c, gy_try *t, int64_t now_ns); /* RESERVING: D did not answer soon */
void gy_try_reserved(gy_coord *c, gy_try *t, const gy_msg_tables *tables, int64_t now_ns);
void gy_try_prefilled(gy_coord *c, gy_try *t, int32_t n_computed, int64_t now_ns);
void gy_try_active(gy_coord *c, gy_try *t);
void gy_try_done(gy_coord *c, gy_try *t);
void gy_try_abandon(gy_coord *c, gy_try *t);
void gy_try_release_d(gy_coord *c, gy_try *t);
void gy_try_release_p(gy_coord *c, gy_try *t);
void gy_try_settle(gy_coord *c, gy_try *t); /* CLEANUP: what follows from who holds; may free t and its request */
void gy_try_prompt_done(gy_coord *c, gy_try *t);
void gy_try_grow(gy_coord *c, gy_try *t, int32_t n_block); /* blocks at D */
void gy_try_defer(gy_coord *c, gy_try *t, int64_t due_ns);
void gy_coord_due(gy_coord *c, int64_t due_ns);
void gy_try_know_prompt(gy_coord *c, const gy_try *t, int32_t worker); /* it has the prompt's rows now */

/* ---- coord_place.c ---- */
int gy_worker_is_usable(const gy_coord_worker *w, int32_t role);
int32_t gy_worker_blocks(const gy_coord_worker *w, int64_t n_tok);
int32_t gy_worker_cached(const gy_coord_worker *w, const gy_coord_req *r); /* prompt tokens, by our estimate */
int gy_coord_admit(gy_coord *c, int64_t now_ns);                           /* how many tries began */
int64_t gy_coord_admit_next(const gy_coord *c, int64_t now_ns); /* when waiting alone changes what it would do */

/* ---- coord_times.c ---- */
void gy_times_begin(gy_coord_req *r, int32_t d, int32_t p, int64_t now_ns);
void gy_times_mark(gy_coord_req *r, gy_pd_stage stage, int64_t at_ns);
void gy_times_active(gy_coord_req *r, const gy_msg_sent *x, int64_t now_ns);
void gy_times_sent(gy_coord_req *r, const gy_msg_sent *x, int64_t now_ns);
void gy_times_local(gy_coord_req *r, const gy_msg_finish *f, int64_t now_ns);
int64_t gy_times_wire(const gy_msg_sent *x); /* from the first byte to the last */

/* ---- coord_msg.c ---- */
void gy_coord_worker_down(gy_coord *c, int32_t worker); /* and the others hear GONE */

#endif
