/* The scheduler: which jobs run, and which rows the next prelude, pass and coda are made of. Pure logic over a gy_kv:
 * counts blocks and claims slots, never sees a tensor, a model or a clock (times are arguments). One thread; allocates
 * nothing after create.
 *
 * A job is one sequence: a prompt and what is sampled after it (one choice of a request). It is named by a small index
 * that is reused as soon as it is free. A flight is one token of a job between prelude and coda; its index names the
 * driver's state too.
 *
 *                       admit                      last known token sampled
 *   submit            (enter..)                     the first time
 *  -------> WAITING ------------> PREFILL ---------------------------------> DECODE --- remove --> (free)
 *              ^  ^                 |  ^                                      |  ^
 *              |  +---- drop -------+--|------------- drop -------------------+  |
 *              |                    |  | restore                              |  | restore
 *              |                    v  |                                      v  |
 *              |                   PARKED <---------------- park ------------- PARKED
 *              ^                    |
 *              +------ forget ------+   its sequence went to another job: like a drop
 *   remove: from any state (cancel, finish, error)
 *
 *   state    holds KV blocks   kv sequence   flights   where it is listed
 *   WAITING  no                no            no        the queue, in order of (priority,) arrival
 *   PARKED   park blocks       yes           no        the queue
 *   PREFILL  yes               yes           maybe     running; the ring of prompts while tokens are left to enter
 *   DECODE   yes               yes           0 or 1    running; the list of pending tokens between sample and entry
 *
 * A job knows n_known tokens: its prompt and its outputs so far; token n_known - 1 has no KV yet or is in flight.
 * Tokens before it enter as prompt rows, also outputs that a dropped job computes again; the last known one, when it is
 * an output, enters as the decode row.
 *
 *   flight: enter -> queue (prompt or decode) -> pass -> stay: the queue's tail, one deeper
 *                                                     -> leave: coda_wait, in order of leaving -> coda -> done |
 * sampled
 *
 * Why two first-in first-out queues give every row what it must read: a queue is taken from its head and what stays
 * goes to its tail, so the flights of a sequence keep their cyclic order, and when token p is taken, each earlier token
 * in flight has done p's depth, or is in the same pass before it. A decode row enters only when no prompt row of its
 * sequence flies. Under layouts that overwrite (gy_kv_position_serial) one flight of a sequence flies at a time.
 *
 * A pass: decode rows first; then prompt rows, up to max_rows; when there are decode rows, at most prefill_share *
 * max_rows prompt rows (1 at least), so that a pass grows by a bounded amount and each loop of a decoding token stays
 * short, and so many fewer that both fill whole tiles of 256 rows where that leaves half of them or more. Prompt tokens
 * enter until the passes to come are full; what is left of a prompt enters early when that fills a pass in which the
 * chunk before it is deeper (wavefront).
 *
 * Whose prompt tokens: those of the prompt that is due first (of the best priority). A prompt is due when, since it was
 * submitted, four prompt rows have entered for each of its own, whosever. So prompts of one length go first come, first
 * served, each as fast as the machine can, and half of a burst waits less than half of the time that all take (in turns
 * all would wait for the last); a short one overtakes a long one that came shortly before; and what is due is overtaken
 * by nobody who comes later: a long prompt waits for at most four times its own length of later ones. One that was
 * preempted is due as if it came anew: what the best job waits for may not come back before it again and again.
 *
 * Shortage: a claim that finds no block preempts the worst running job (highest priority number, then latest arrival),
 * which may be the one that asked. Preempting rewinds the job to its last finished token (what flies is computed again,
 * which is exact: every value is a function of the tokens and of how deep each ran), then parks it, or drops its KV
 * when the park pool is full: then its known tokens run again, outputs at the depths they ran. The best job is never
 * preempted by others, so it ends; with it gone the next one is best.
 *
 * Bounds: at most scan_limit waiting jobs are looked at in an admission; when jobs behind a job that did not fit have
 * been admitted max_bypass times past it, nothing behind it is admitted until it is. So with fcfs a job waits for at
 * most max_bypass later ones.
 */
#ifndef GY_SCHED_SCHED_H
#define GY_SCHED_SCHED_H

#include "kv/kv.h"
#include "kv/prefix.h"

typedef struct gy_sched gy_sched;

typedef enum gy_sched_policy { GY_SCHED_FCFS, GY_SCHED_PRIORITY } gy_sched_policy;
typedef enum gy_preempt { GY_PREEMPT_AUTO, GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE } gy_preempt;

typedef struct gy_sched_opts {
    int32_t max_rows;      /* rows of one batch (prelude, pass, coda), >= 1 */
    int32_t max_seqs;      /* jobs running at once, >= 1 */
    int32_t max_queue;     /* jobs waiting at once, >= 1; submit says GY_AGAIN beyond */
    int32_t prefill_chunk; /* prompt tokens of one job that enter before one due sooner may, >= 1 */
    double prefill_share;  /* (0, 1] */
    int no_refill;    /* 1: pending tokens enter only when no decode row flies, decode rows leave the coda_wait only
                         when no decode row waits for a pass: cohorts, for comparison */
    int32_t min_coda; /* coda batches of models with coda layers are held until so many flights wait for it, or
                         nothing else can run; 1 = never held */
    int reserve_full; /* 1: admit only what fits with its whole life at full depth: nothing is ever preempted for
                         blocks. 0: admit by the known tokens, grow, preempt */
    double watermark; /* [0, 1) of the core blocks stay free at admission while anything runs */
    gy_sched_policy policy;
    gy_preempt preempt;                    /* AUTO: park if there is room, else recompute */
    int32_t scan_limit, max_bypass;        /* >= 1 */
    int32_t n_loop;                        /* trained depth: what prompt tokens run, what may be shared */
    int has_boundary;                      /* the model has prelude or coda layers: entering claims a boundary slot */
    int has_coda;                          /* coda layers: coda runs for every token, in position order */
    gy_kv_copy_fn park_copy, restore_copy; /* the bytes; may be NULL when kv has no park blocks */
    void *copy_arg;
} gy_sched_opts;

/* max_rows 256, max_seqs 16, max_queue 1024, prefill_chunk 128, prefill_share 0.5, refill, min_coda 1, grow, watermark
 * 0.01, fcfs, auto, scan 64, bypass 8; the rest must be set. */
void gy_sched_opts_default(gy_sched_opts *o);

/* Flights at once: states that the driver needs. max_seqs decode rows and two passes of prompt rows. */
int32_t gy_sched_n_flight(const gy_sched_opts *o);

/* kv is borrowed; it must offer max_seqs sequences, and more if parked jobs are to keep theirs (else they are dropped).
 */
gy_status gy_sched_create(const gy_sched_opts *o, gy_kv *kv, gy_err *err, gy_sched **out);
void gy_sched_destroy(gy_sched *s); /* accepts NULL */

typedef struct gy_sched_job {
    const int32_t *tok; /* [n_prompt + max_tokens], borrowed until the job is removed. The owner writes outputs behind
                           the prompt before it reports them sampled */
    int32_t n_prompt, max_tokens; /* >= 1 */
    int32_t priority;             /* lower runs sooner; only under GY_SCHED_PRIORITY */
    int full_prompt;              /* 1: prompt tokens but the last one run n_loop loops: rows may be shared */
    int use_cache;                /* 1: look up and publish in the prefix cache (if there is one and full_prompt) */
    int all_logits;               /* 1: every prompt row wants logits (prompt logprobs): no look-up, no sharing */
    gy_prefix_space space;        /* salt borrowed until removal */
    int is_pinned; /* 1: never preempted, because others read its blocks (an export): whoever has such jobs must also
                      run others, or none that decode */
    int has_kv; /* 1: kv_seq, open, holds the whole prompt at the trained depth, claimed and exited, and only the last
                   token's coda is to come (an import): the job takes it over, at submit */
    int32_t kv_seq;
    int32_t leader; /* a job with the same prompt whose rows this one shares, -1: none. It waits until the
                       leader's whole rows are written, or the leader is gone */
} gy_sched_job;

/* Can it ever run? GY_E_LIMIT with the numbers if its whole life at full depth is more than the pool. Pure. */
gy_status gy_sched_fits(const gy_sched *s, int32_t n_prompt, int32_t max_tokens, gy_err *err);
gy_status gy_sched_fits_pool(const gy_kv_config *c, int32_t n_prompt, int32_t max_tokens, gy_err *err);
/* Queues a job; it must fit. GY_AGAIN: the queue is full. */
gy_status gy_sched_submit(gy_sched *s, const gy_sched_job *j, int64_t now_ns, int32_t *job_out);
/* Ends a job in whatever state: flights, blocks, sequence, place in the queue. Not between gy_sched_pass and the
 * routing of its rows; for a flight being sampled see gy_sched_sampled. */
void gy_sched_remove(gy_sched *s, int32_t job);

/* As gy_sched_remove, but the job's KV sequence stays open and is the caller's from now on; -1: it has none. flight: in
 * the coda, of its last token, which counts as done (and is published); or -1. */
int32_t gy_sched_detach(gy_sched *s, int32_t job, int32_t flight);
/* Would so many blocks fit beside what running jobs may still take, and the watermark? */
int gy_sched_spare(const gy_sched *s, const int64_t need[GY_KV_GROUPS]);

/* ---- one step, in this order ---- */

/* Admits, restores, and under GY_SCHED_PRIORITY preempts for better jobs that wait. */
void gy_sched_admit(gy_sched *s, int64_t now_ns);

/* Flights of jobs with has_kv that this admission let in: the next one, or -1. The driver fills the flight's state
 * (what left the core elsewhere) before the coda. */
int32_t gy_sched_landed(gy_sched *s);

/* A batch. Arrays [max_rows] of the scheduler, valid until its next call. */
typedef struct gy_sched_rows {
    int32_t n_row, n_decode; /* n_decode: of them decode rows (enter, pass) */
    int32_t *flight;         /* index; also the driver's state */
    int32_t *pos, *slot;     /* slot: boundary (enter, coda) or core (pass) */
    int64_t *map_off;
    int32_t n_logit;
    int32_t *logit; /* coda: rows whose logits are wanted, ascending */
} gy_sched_rows;

/* Tokens that enter now; call until n_row is 0, running the prelude of each batch. */
const gy_sched_rows *gy_sched_enter(gy_sched *s);
/* Rows of the next pass, slots claimed; n_row 0: nothing flies. Each row must be reported by stay or leave. */
const gy_sched_rows *gy_sched_pass(gy_sched *s);
void gy_sched_stay(gy_sched *s, int32_t flight);
/* coda_done 1: its coda has run already (rules that look at logits); it is then reported sampled or done, after all
 * rows of its job in this pass have been routed. Not for a row of an all_logits job with earlier tokens in flight. */
void gy_sched_leave(gy_sched *s, int32_t flight, int coda_done);
/* Where rows of these flights stand in the boundary group: for judging a row that has not left (n <= max_rows). */
const gy_sched_rows *gy_sched_judge(gy_sched *s, const int32_t *flight, int32_t n);
/* Rows whose coda may run now, at most max_logit of them wanting logits; call until n_row is 0. Each row must be
 * reported by done or sampled. Rows that need no coda at all (no coda layers, no logits) never appear. */
const gy_sched_rows *gy_sched_coda(gy_sched *s, int32_t max_logit);
/* Rows wait for the next one. */
int gy_sched_coda_waits(const gy_sched *s);
void gy_sched_done(gy_sched *s, int32_t flight);
/* A token was sampled from the flight's logits and stands in tok[], at the latest when its own coda ends: it is known
 * now. The job goes on unless it is removed, which is allowed right after, or whenever; its last output does not enter.
 */
void gy_sched_sampled(gy_sched *s, int32_t flight);

/* ---- what can be asked ---- */

int32_t gy_sched_flight_job(const gy_sched *s, int32_t flight);
int32_t gy_sched_flight_pos(const gy_sched *s, int32_t flight);
int32_t gy_sched_flight_loops(const gy_sched *s, int32_t flight); /* done so far */
/* 1: the row wants logits to sample from: the last known token of its job. (Prompt logprobs: also rows with
 * all_logits; those have sample 0.) */
int gy_sched_flight_samples(const gy_sched *s, int32_t flight);

/* Leading tokens of a running job whose KV is written at each depth: done[n_loop]; between steps. */
void gy_sched_planes_done(const gy_sched *s, int32_t job, int32_t *done);

typedef enum gy_job_state { GY_JOB_FREE, GY_JOB_WAITING, GY_JOB_PARKED, GY_JOB_PREFILL, GY_JOB_DECODE } gy_job_state;
typedef struct gy_job_info {
    gy_job_state state;
    int32_t slot;                       /* running: 0..max_seqs-1, else -1 */
    int32_t kv_seq;                     /* -1: none */
    int32_t n_known, n_entered, n_done; /* n_done: leading tokens that are finished, coda included */
    int32_t n_cached; /* prompt tokens that were not computed: prefix cache or leader, at the first admission */
    int32_t n_bypass, n_preempt;
    int64_t submit_ns, admit_ns; /* first admission; 0 before */
} gy_job_info;
void gy_sched_job_info(const gy_sched *s, int32_t job, gy_job_info *out);
/* Preempts now, in whatever state it runs: GY_OK, or GY_AGAIN when it does not run or cannot be parked and `how`
 * insists. Tests, and owners that need room. Between steps. */
gy_status gy_sched_preempt(gy_sched *s, int32_t job, gy_preempt how);

typedef struct gy_sched_stats {
    int32_t n_waiting, n_parked, n_running; /* n_waiting without the parked ones */
    int32_t n_flight;
    /* n_drop: KV dropped, of running jobs and of parked ones whose sequence was needed; n_recomputed_tok: tokens
     * entered again after a preemption. */
    int64_t n_admit, n_park, n_restore, n_drop, n_recomputed_tok;
    int64_t n_wait_tok; /* prompt tokens of jobs that were never admitted */
} gy_sched_stats;
void gy_sched_get_stats(const gy_sched *s, gy_sched_stats *out);
int gy_sched_idle(const gy_sched *s); /* no job at all */

/* The table above and the queues, recomputed: 1, or 0 and what is wrong. Tests and debug builds. Does not call
 * gy_kv_is_valid. */
int gy_sched_is_valid(const gy_sched *s, char *buf, size_t cap);

#endif
