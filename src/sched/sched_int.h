/* Inside of src/sched, shared by its files. Nobody else includes it.
 *
 * Jobs. Each arrow is one function, which checks the state it starts from:
 *
 *   (free) --sched_submit_job--> WAITING --sched_admit_job--> PREFILL --sched_begin_decode--> DECODE
 *                                 ^   ^                        |    ^                          |   ^
 *                                 |   +---- sched_drop_job ----+----|--------------------------+   |
 *                   sched_forget_job                           |    sched_restore_job              |
 *                                 |                            v    |                              |
 *                               PARKED <--- sched_park_job --- PREFILL, DECODE      PARKED --------+
 *   sched_free_job: any state --> (free)
 *
 * A job's link is in one list at most, which `place` names:
 *   QUEUE    WAITING and PARKED jobs, best first (sched_better)
 *   RING     running, tokens left below prompt_end, and (position-serial layouts) no flight; soonest first
 *            (sched_sooner), only the head may be out of order, until its chunk has entered
 *   PENDING  running, all tokens but the last known one are finished: that one enters as the decode row
 *   NOWHERE  running, waits for its flights
 * Running jobs are besides in running[0..n_running), unordered.
 *
 * Flights:
 *   FREE --sched_flight_enter--> QUEUED --flight_take--> PASS --flight_stay--> QUEUED (tail)
 *                                                        PASS --leave--> HELD --> READY --coda--> CODA --> FREE
 *                                                                        or FREE at once, or CODA (its coda has run)
 *   QUEUED  in queue[is_decode]
 *   HELD    left the core; its coda must wait for an earlier position of its job. In no list but its job's
 *   READY   in ready[is_decode], in order of leaving
 *   PASS, CODA: in the batch that the caller works on
 * The flights of a job are chained in position order, whatever their place: tokens enter in that order. So the oldest
 * one says what is finished (n_done), also when tokens leave out of order, and dropping a job's flights costs O(those).
 */
#ifndef GY_SCHED_SCHED_INT_H
#define GY_SCHED_SCHED_INT_H

#include "sched/sched.h"

#include "base/arena.h"
#include "base/mem.h"

typedef struct sched_link {
    int32_t prev, next;
} sched_link;

typedef struct sched_list { /* of indices, their links in an array beside; -1 = none */
    int32_t head, tail, n;
} sched_list;

typedef enum sched_place { PLACE_NOWHERE, PLACE_QUEUE, PLACE_RING, PLACE_PENDING } sched_place;

typedef struct sched_job {
    gy_sched_job in;
    gy_job_state state;
    sched_place place;
    gy_job_state parked_from; /* PARKED: PREFILL or DECODE */
    int32_t slot, run_at;     /* running: slot 0..max_seqs-1 (stable), index in running[]; else -1 */
    int32_t kv_seq;           /* -1: none */
    int64_t arrival;          /* 1, 2, ...: order of submission, and this life of the index */
    int64_t born, due;        /* on the clock of prompt rows: submitted, and the order of prompts (sched_sooner) */
    int64_t leader_arrival;   /* of in.leader when submitted: another one means that the leader is gone */
    int32_t n_known, n_entered, n_done;
    int32_t n_seen;   /* tokens that had entered before a preemption: entering them again is counted */
    int32_t n_told;   /* all_logits: prompt rows reported before a preemption */
    int32_t n_full;   /* leading tokens not known to have run other than n_loop loops; INT32_MAX: all so far */
    int32_t n_row;    /* block rows that publishing has passed */
    int32_t has_read; /* PREFILL: the last known token was sampled, but earlier flights still fly */
    int32_t is_leader;
    int32_t was_admitted;
    sched_list flights; /* chained by position */
    int32_t n_cached, n_bypass, n_preempt;
    int64_t submit_ns, admit_ns;
    gy_prefix_cursor cursor;
} sched_job;

typedef enum sched_where {
    FLIGHT_FREE,
    FLIGHT_QUEUED,
    FLIGHT_PASS,
    FLIGHT_HELD,
    FLIGHT_READY,
    FLIGHT_CODA
} sched_where;

typedef struct sched_flight {
    int32_t job, pos, loops;
    uint8_t where, is_decode, wants, samples;
} sched_flight;

struct gy_sched {
    gy_sched_opts o;
    gy_kv *kv; /* borrowed */
    const gy_kv_config *kc;
    int32_t n_job, n_flight;          /* capacities */
    int32_t serial;                   /* gy_kv_position_serial */
    int32_t row_blocks[GY_KV_GROUPS]; /* blocks of 16 tokens at the trained depth */

    sched_job *job;       /* [n_job] */
    sched_link *job_link; /* [n_job] */
    int32_t *job_free;    /* stack */
    int32_t n_job_free;
    sched_list waiting, ring, pending; /* of jobs */
    int32_t turn_left;                 /* tokens that the ring's head enters before one that is due sooner may */
    int64_t n_prompt_row;              /* prompt rows that ever entered: the clock of the ring */
    int32_t *running;                  /* [max_seqs] */
    int32_t n_running;
    int32_t *slot_free; /* [max_seqs] stack */
    int32_t n_slot_free;
    int32_t n_parked;
    int64_t n_arrival;
    int dirty; /* something changed since the last admission that failed */

    sched_flight *flight;     /* [n_flight] */
    sched_link *flight_link;  /* [n_flight] of queue, ready */
    sched_link *flight_chain; /* [n_flight] of sched_job.flights */
    int32_t *flight_free;     /* stack */
    int32_t n_flight_free;
    int32_t n_flying[2];           /* flights by is_decode, wherever they are */
    sched_list queue[2], ready[2]; /* by is_decode */
    int entering;                  /* within a round of enter calls, which ends with an empty batch */
    int cohort_open; /* this round lets pending tokens in; no_refill: only if no decode row flew at its start */
    int coda_open;   /* min_coda is met for this round of coda batches */

    gy_sched_rows enter, pass, coda; /* batches; pass and coda may be in the caller's hands at once */
    gy_sched_rows *building;         /* a preemption takes the job's rows out of it; NULL outside enter and pass */

    int32_t *landed; /* [max_seqs] flights that gy_sched_landed has not told */
    int32_t n_landed;

    int64_t n_admit, n_park, n_restore, n_drop, n_recomputed_tok, n_wait_tok;
    int32_t *scratch; /* [n_job + n_flight] the checker's */
    gy_carve mem;
};

/* ---- lists ---- */

static inline void sched_list_insert(sched_list *l, sched_link *link, int32_t before, int32_t i) {
    int32_t prev = before < 0 ? l->tail : link[before].prev;
    link[i] = (sched_link){.prev = prev, .next = before};
    if (prev < 0)
        l->head = i;
    else
        link[prev].next = i;
    if (before < 0)
        l->tail = i;
    else
        link[before].prev = i;
    l->n++;
}

static inline void sched_list_push(sched_list *l, sched_link *link, int32_t i) {
    sched_list_insert(l, link, -1, i);
}

static inline void sched_list_remove(sched_list *l, sched_link *link, int32_t i) {
    int32_t prev = link[i].prev, next = link[i].next;
    if (prev < 0)
        l->head = next;
    else
        link[prev].next = next;
    if (next < 0)
        l->tail = prev;
    else
        link[next].prev = prev;
    l->n--;
}

/* ---- facts of a job ---- */

/* Tokens below it enter as prompt rows. */
static inline int32_t sched_prompt_end(const sched_job *j) {
    return j->n_known > j->in.n_prompt ? j->n_known - 1 : j->in.n_prompt;
}

/* Tokens that ever enter: the last output does not. */
static inline int32_t sched_life(const sched_job *j) {
    return j->in.n_prompt + j->in.max_tokens - 1;
}

static inline int sched_runs(const sched_job *j) {
    return j->state == GY_JOB_PREFILL || j->state == GY_JOB_DECODE;
}

static inline int sched_may_publish(const gy_sched *s, const sched_job *j) {
    return j->in.use_cache && j->in.full_prompt && gy_prefix_enabled(s->kv);
}

static inline int sched_may_look_up(const gy_sched *s, const sched_job *j) {
    return sched_may_publish(s, j) && !j->in.all_logits && !j->in.has_kv;
}

/* Tokens of the prompt that a follower can take over: whole block rows, without the last token, which it computes. */
static inline int32_t sched_whole_rows(const sched_job *j) {
    return (j->in.n_prompt - 1) / GY_KV_BLOCK_LEN * GY_KV_BLOCK_LEN;
}

/* A runs sooner than b. Total: arrivals differ. */
static inline int sched_better(const gy_sched *s, int32_t a, int32_t b) {
    const sched_job *x = &s->job[a], *y = &s->job[b];
    if (s->o.policy == GY_SCHED_PRIORITY && x->in.priority != y->in.priority) return x->in.priority < y->in.priority;
    return x->arrival < y->arrival;
}

/* The prompt of a enters before that of b. Total. */
static inline int sched_sooner(const gy_sched *s, int32_t a, int32_t b) {
    const sched_job *x = &s->job[a], *y = &s->job[b];
    if (s->o.policy == GY_SCHED_PRIORITY && x->in.priority != y->in.priority) return x->in.priority < y->in.priority;
    return x->due != y->due ? x->due < y->due : x->arrival < y->arrival;
}

/* ---- sched.c: states ---- */

/* A prompt is due when so many prompt rows have entered for each token of its own. */
enum { SCHED_STRETCH = 4 };

void sched_ring_insert(gy_sched *s, int32_t job);

void sched_queue_insert(gy_sched *s, int32_t job); /* where its order says */
void sched_start_running(gy_sched *s, int32_t job, gy_job_state state);
void sched_stop_running(gy_sched *s, int32_t job, gy_job_state state); /* its flights are gone */
/* Puts a running job where its next token waits: ring, pending, or nowhere. After anything that may change that. */
void sched_arm(gy_sched *s, int32_t job);
void sched_begin_decode(gy_sched *s, int32_t job);

/* ---- rows.c ---- */

void sched_flight_end(gy_sched *s, int32_t flight); /* from wherever it is; the job's books are the caller's */

void sched_prompt_done(gy_sched *s, int32_t flight); /* in the coda, of the last token: no token is sampled from it */
void sched_land(gy_sched *s, int32_t job); /* the last prompt token of a job with has_kv flies, behind its last loop */

/* ---- preempt.c ---- */

int32_t sched_worst_running(const gy_sched *s); /* -1: nothing runs that may be preempted */
void sched_rewind(gy_sched *s, int32_t job);    /* to n_done: no flights, KV truncated */
gy_status sched_park_job(gy_sched *s, int32_t job);
void sched_drop_job(gy_sched *s, int32_t job);
void sched_forget_job(gy_sched *s, int32_t job);
/* Parks, or drops where it cannot: always makes room. */
void sched_preempt_job(gy_sched *s, int32_t job);
/* A claim found no block: the worst running job gives way, which may be the one that claims. */
void sched_shortage(gy_sched *s);
/* A kv sequence, at the expense of the worst parked job if all are taken. */
gy_status sched_open_seq(gy_sched *s, int32_t max_tok, int32_t *seq_out);

/* ---- admit.c: blocks ---- */

/* What a running job may come to hold by right, and what all of them may still take of that (walks them). */
int64_t sched_promise(const gy_sched *s, const sched_job *j, gy_kv_group g);
int64_t sched_promised(const gy_sched *s, gy_kv_group g);

#endif
