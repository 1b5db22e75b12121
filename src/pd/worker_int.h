/* What the files of a worker share. A part is what this worker does for one try of a request.
 *
 *   D (RESERVE)  WAIT --import opens, RESERVED--> OPEN --all is there--> THERE --submitted, ACTIVE--> RUN --> RELEASED
 *                 |                                | CANCEL_SAFE           |                           ^ CANCEL: ends
 * soon
 *                 +--> RELEASED                    +--> LEAVING --> RELEASED
 *                CANCEL while OPEN or THERE: stays OPEN, is never submitted, goes with CANCEL_SAFE.
 *
 *   P (PREFILL)  WAIT --export is queued--> RUN --engine is over, and no op is left--> PREFILLED, RELEASED or REJECTED
 *                CANCEL, a failed op, an error of the engine: both halves are told to end, the same two conditions end
 * it.
 *
 *   LOCAL        WAIT --submitted--> RUN --> RELEASED
 *
 * Who owns a part: the engine half, always, but for its `push` (P) or `hear` (D), which belong to the transfer half
 * from GY_REC_START until GY_REC_RETURNED. Meanwhile the engine half touches of a push only what is atomic, the hidden
 * slot before `hidden` is set, and rows of `src` behind what `ready` says.
 *
 * Records never fail to be queued: at most one of each kind is under way for a part or a peer, and both are bounded.
 */
#ifndef GY_PD_WORKER_INT_H
#define GY_PD_WORKER_INT_H

#include "base/arena.h"
#include "base/queue.h"
#include "pd/segs.h"
#include "pd/worker.h"

#include <stdatomic.h>

enum {
    GY_WORKER_OPS = 128,       /* ops that may be under way at once; the budget counts bytes, not ops */
    GY_WORKER_ROUND_RUNS = 16, /* a ragged tail of more runs than this is sent as its whole block */
    GY_WORKER_MIN_SHARE =
        1024, /* before the prompt is done an op has at least this share of its bytes: ops are counted */
    GY_WORKER_MAX_PEERS = 256,
    GY_WORKER_PATIENCE_MS = 20000, /* 256 MiB take as long at 13 MB/s */
    GY_WORKER_MEND_MS = 1000,      /* from one try to the next */
    GY_WORKER_FENCE_MS = 5000,
    GY_REGION_HIDDEN = GY_KV_GROUPS, /* behind the arenas */
    GY_WORKER_REGIONS
};

typedef struct gy_part gy_part;

typedef enum gy_rec_kind {
    /* to the transfer half */
    GY_REC_CONNECT, /* peer */
    GY_REC_GONE,    /* peer, or NULL; serial: its epoch, that writes no more from then on. No later record is taken
                       before that holds */
    GY_REC_START,   /* part: post what becomes ready, or collect notes */
    GY_REC_NEWS,    /* slot, serial: a push's atomics have changed */
    GY_REC_FORGET,  /* slot, serial: a hear ends */
    /* to the engine half */
    GY_REC_CONNECTED, /* peer: tried; err says how it went */
    GY_REC_DROPPED,   /* peer, or NULL: GONE holds */
    GY_REC_UNSAFE,    /* GONE can never hold */
    GY_REC_RETURNED   /* part: push or hear is the engine half's again */
} gy_rec_kind;

typedef struct gy_rec {
    int32_t kind, slot;
    uint64_t serial; /* of the part in that slot: one that has been returned since finds nobody */
    void *ptr;
} gy_rec;

typedef enum gy_peer_state { GY_PEER_ASKED, GY_PEER_UP, GY_PEER_FAILED, GY_PEER_GONE } gy_peer_state;

typedef struct gy_peer { /* a worker that this one writes to; engine half */
    struct gy_peer *next;
    uint64_t epoch;
    gy_peer_state state;
    int32_t n_push; /* parts that name it; freed when GONE, dropped, and 0 */
    int is_dropped;
    void *blob;
    int32_t n_blob;
    /* Transfer half, until CONNECTED: */
    gy_err err;
    size_t region_bytes[GY_WORKER_REGIONS];
    char lanes[64];
    /* Transfer half, always: */
    gy_xfer_peer *x;
    struct gy_peer *next_waiting;
    int is_broken; /* the connection is lost: a new one is made, and the parts that lost an op stay until it is fenced
                    */
    int32_t n_flight;
    int64_t heard_ns, mend_ns; /* of an op that ended, or the first of some; when to try again */
    struct gy_out_op *fence;   /* under way on the new connection */
    struct gy_peer *next_broken;
} gy_peer;

typedef struct gy_out_op { /* transfer half */
    gy_xfer_op op;
    gy_xfer_desc *desc; /* [limits.max_desc] */
    gy_pd_note note;
    gy_part *part;   /* NULL: a fence, of */
    gy_peer *mended; /* NULL: nobody waits for it any more */
    int64_t busy_ns; /* of gy_busy when it was posted */
    struct gy_out_op *next;
} gy_out_op;

typedef struct gy_push { /* what P sends */
    gy_peer *peer;
    gy_seg_group group[GY_KV_GROUPS];
    int32_t n_plane, n_row; /* planes of both groups, boundary last; blocks of each */
    int32_t *src, *dst;     /* [n_plane, n_row] */
    gy_seg_raw raw[2];      /* hidden row, gates */
    int32_t loops;
    /* Written by the engine half at any time: */
    _Atomic int32_t *ready; /* [n_plane] tokens that may be read: whole blocks, or all */
    _Atomic int32_t hidden; /* ready is n_prompt everywhere, the slot is filled */
    _Atomic int32_t stop;   /* post nothing more */
    _Atomic int32_t news;   /* a record is on its way */
    /* Transfer half: */
    int32_t *sent;       /* [n_plane] tokens that batches have covered */
    gy_seg_plane *plane; /* [n_plane] of the batch */
    gy_seg_plan plan;    /* the batch: what was ready when the one before was cut */
    gy_seg_cursor cursor;
    int has_batch, is_last, is_cut; /* is_last: the batch is all that is left; is_cut: its last op is made */
    size_t min_bytes;
    gy_out_op *held; /* made, and there was no budget, or no connection */
    int32_t n_flight;
    int has_lost; /* an op, that may still arrive */
    uint32_t seq;
    int64_t bytes, n_desc; /* of all ops that were made */
    gy_err err;            /* status < 0: it failed */
    gy_msg_sent sum;
} gy_push;

typedef struct gy_hear {         /* what D has heard */
    uint32_t total, n_seen, top; /* top: highest seq + 1 */
    int32_t loops;
    int is_complete;
    gy_msg_sent sent; /* for ACTIVE */
    uint32_t seen[GY_PD_MAX_OPS / 32];
} gy_hear;

typedef enum gy_part_kind { GY_PART_PREFILL, GY_PART_DECODE, GY_PART_LOCAL, GY_PART_KINDS } gy_part_kind;
typedef enum gy_part_state { GY_PART_WAIT, GY_PART_OPEN, GY_PART_THERE, GY_PART_RUN, GY_PART_LEAVING } gy_part_state;

struct gy_part {
    gy_part *prev, *next; /* all, in order of arrival */
    gy_worker *w;
    gy_part_kind kind;
    gy_part_state state;
    gy_tid tid;
    uint64_t serial, peer; /* peer: epoch of the other side */
    gy_request r;          /* arrays behind this struct */
    gy_grammar *grammar;   /* a reference */
    int32_t id;            /* RUN: of the engine's request or export */
    int32_t import;        /* D: of the engine */
    int32_t slot;          /* hidden slot, and index among live ones; -1: none */
    int32_t n_have;
    int is_cancelled;
    int engine_over; /* its last finish event was told */
    int with_xfer;   /* push or hear is the transfer half's */
    gy_err why;      /* status < 0: it failed here */
    int64_t start_ns, compute_ns;
    int32_t n_computed;
    gy_push push;
    gy_hear hear;
};

/* Time that this worker's engine has spent in steps, as a function of time; read from the other thread. An op's overlap
 * is the difference between its two ends: the intersection of [post, done] with all compute intervals. */
typedef struct gy_busy {
    _Atomic uint32_t seq;         /* odd while the two are being changed */
    _Atomic int64_t total, since; /* since: of the step that runs, 0: none */
} gy_busy;

typedef struct gy_xfer_counts { /* the transfer half's, for STATS */
    _Atomic int64_t bytes, ops, desc, failed, inflight;
} gy_xfer_counts;

enum { GY_WORKER_HEARD = 256 };
typedef struct gy_heard {
    gy_pd_note note;
    uint64_t from;
} gy_heard;

struct gy_worker {
    gy_worker_opts o;
    gy_xfer *x;
    gy_engine *e;
    void *mem[GY_WORKER_REGIONS];
    void *device_mem[GY_KV_GROUPS]; /* of these what lies on the device of o.xfer */
    int32_t n_region;
    gy_err lend_err;
    gy_seg_group group[GY_KV_GROUPS]; /* n_block_dst is the peer's */
    size_t block_bytes[GY_KV_GROUPS];
    int32_t n_core, n_plane; /* planes that a prompt writes; with the boundary's */
    int32_t depth, max_handoff;
    size_t row_bytes, gate_off, slot_bytes;
    gy_queue *to_xfer, *to_engine;
    gy_busy busy;
    gy_xfer_counts counts;
    _Atomic int32_t is_woken;
    gy_heard heard[GY_WORKER_HEARD]; /* the transfer half's: notes of this turn, [n_heard] */
    int32_t n_heard;

    /* engine half */
    gy_part *first, *last;
    int32_t n_wait[GY_PART_KINDS], n_there, n_over; /* parts to look at */
    uint64_t next_serial;
    gy_peer *peers;
    int32_t n_peer, n_asked, n_gone; /* n_gone: under way */
    int is_unsafe;
    int has_lost, is_stale; /* a peer on a device is gone; behind it one was not reached, not for a slow lane alone */
    int is_stopping;
    uint8_t *slot_used; /* [2 * max_handoff] */
    float *hidden, *gates;
    gy_msg_table *table; /* [n_plane] of RESERVED */
    int64_t stats_due_ns, n_ignored, n_work;
    int64_t done;   /* by the engine, when a step looked last */
    int32_t n_idle; /* steps since then that did nothing */
    int32_t stats_free;
    int has_changed; /* since the last STATS */

    /* transfer half */
    gy_part **live; /* [2 * max_handoff] by slot */
    gy_rec gone;    /* while has_gone: what the records behind it wait for */
    int has_gone, told_unsafe;
    gy_peer *waiting; /* to be connected, in order: the memory of one that is gone is being let go of */
    gy_peer *broken;
    int64_t patience_ns; /* without an op that ends, before a connection counts as lost */
    int32_t turn_at;
    gy_out_op *ops, *free_ops; /* [GY_WORKER_OPS] */
    gy_xfer_desc *descs;
};

/* worker.c */
void gy_worker_tell_xfer(gy_worker *w, gy_rec r);
void gy_worker_say(gy_worker *w, gy_msg_kind kind, gy_tid tid);
void gy_worker_reject(gy_worker *w, gy_tid tid, const gy_err *err);
void gy_peer_unuse(gy_worker *w, gy_peer *p); /* one push less */

/* worker_part.c */
gy_status gy_part_create(gy_worker *w, gy_part_kind kind, const gy_msg *m, gy_err *err, gy_part **out);
void gy_part_free(gy_part *t); /* not linked; accepts NULL */
void gy_part_remove(gy_part *t);
gy_part *gy_part_find(const gy_worker *w, gy_tid tid);
int gy_part_take_slot(gy_part *t); /* 0: there is none */
void gy_part_give_slot(gy_part *t);
void gy_part_set_state(gy_part *t, gy_part_state s); /* keeps n_wait, n_there */

/* worker_events.c: a request's callbacks become messages */
void gy_part_listen(gy_part *t);

/* worker_p.c, worker_d.c: the engine half of each. try: GY_AGAIN: no place now; else it went on (or ended). */
gy_status gy_part_prefill(gy_worker *w, const gy_msg *m, gy_err *err);
gy_status gy_part_try_export(gy_part *t);
void gy_part_p_returned(gy_part *t);
void gy_part_p_cancel(gy_part *t);
int gy_part_p_settle(gy_part *t); /* 1: it is gone */

gy_status gy_part_reserve(gy_worker *w, const gy_msg *m, gy_err *err);
gy_status gy_part_local(gy_worker *w, const gy_msg *m, gy_err *err);
gy_status gy_part_try_open(gy_part *t);
gy_status gy_part_try_submit(gy_part *t); /* D: THERE, LOCAL: WAIT */
void gy_part_d_returned(gy_part *t);
void gy_part_d_cancel(gy_part *t, int is_safe);
int gy_part_d_settle(gy_part *t);

/* worker_push.c: transfer half of P */
gy_status gy_push_lay_out(gy_part *t, gy_carve *c);
void gy_push_begin(gy_part *t);
void gy_push_fail(gy_part *t, gy_status st, const char *what);
int gy_push_all(gy_worker *w);
int gy_push_give_back(gy_worker *w); /* those that are over */
void gy_push_done(gy_worker *w, gy_xfer_op *op, gy_status st);

/* worker_mend.c: transfer half of P */
void gy_peer_broke(gy_worker *w, gy_peer *p);
void gy_peer_forget(gy_worker *w, gy_peer *p); /* it is gone: nothing is mended */
void gy_peer_fenced(gy_worker *w, gy_peer *p, gy_status st);
int gy_peer_mend(gy_worker *w); /* what is lost; how many things happened */

/* worker_xfer.c */
gy_status gy_worker_open_xfer(gy_worker *w, gy_err *err);
void gy_worker_tell_engine(gy_worker *w, gy_rec_kind kind, void *ptr);

void gy_busy_begin(gy_busy *b, int64_t now);
void gy_busy_end(gy_busy *b, int64_t now, int was_work); /* a step that found nothing to do was none */
int64_t gy_busy_at(gy_busy *b, int64_t t);

#endif
