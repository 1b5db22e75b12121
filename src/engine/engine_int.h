/* Inside the engine: the structures that engine.c (life of requests) and step.c (one step) share.
 *
 * Life of a request:
 *
 *   submit        admit              prompt tokens enter,          last prompt token exits,
 *     |             |                run, exit (step.c)            is sampled
 *   WAITING ----> RUNNING: entering ------------------> RUNNING: one decode flight at a time ----> finished
 *     |                       |                                         |       ^   |
 *     +------- cancel --------+---------------- cancel -----------------+       +---+ exit, sample, enter
 *
 * A flight is one token on its way through the loops:
 *
 *   enter (prelude) -> FIFO -> pass -> stay: back to the FIFO's tail
 *                                   -> leave: coda_wait (for the coda of all earlier tokens) -> coda -> sampled
 *
 * Why one FIFO gives every row what it needs: if flight j stands before p in the queue then j has done at least as many
 * loops as p, and more if it stands behind; so when p is taken, each earlier token of its sequence has done p's depth
 * or left before it, or is in the same batch at the same depth.
 *
 * Capacities: flights and pending tokens together are never more than max_rows. A pending token enters before any
 * prompt token and takes the place of the flight that it was sampled from; a prompt token enters only while fewer than
 * max_rows fly. So one pass takes all that wait, no batch overflows, and at most max_rows sequences decode at once;
 * further ones wait with their prompts. State i of the loop driver belongs to flight i; state max_rows + s keeps the
 * selected state of running slot s.
 */
#ifndef GY_ENGINE_ENGINE_INT_H
#define GY_ENGINE_ENGINE_INT_H

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/kvmem.h"
#include "model/loop.h"

typedef struct gy_req {  /* request lifetime: one allocation, with its arrays behind it */
    struct gy_req *next; /* in the waiting list */
    int32_t id;
    gy_request r;     /* pointers into this allocation */
    float *prev_logp; /* [n_vocab] for the kl rule, else NULL */
    int32_t n_output;
    int32_t cancelled;
    int64_t submit_ns, first_token_ns;
} gy_req;

typedef struct gy_running { /* engine lifetime; index = running slot */
    gy_req *req;            /* NULL: free */
    int32_t kv_seq;
    int32_t n_entered; /* tokens that have entered: positions 0..n_entered-1 */
    int32_t n_coda;    /* positions whose coda has run */
    int32_t n_flight;
    int32_t pending; /* the sampled token that enters next, -1 = none */
    int64_t reserved[GY_KV_GROUPS];
} gy_running;

typedef struct gy_flight {
    int32_t slot; /* running slot */
    int32_t pos;
    int32_t wants_logits;
    gy_exit_rule rule; /* the rule this token obeys */
    gy_exit_state exit;
} gy_flight;

struct gy_engine {
    gy_model *m;
    gy_engine_opts o;
    gy_kvmem kvmem;
    gy_kv *kv; /* kvmem's */
    gy_loop *loop;
    gy_sampler *sampler;
    void *mem; /* everything below that is an array */
    size_t mem_bytes;
    gy_carve carve; /* of mem */

    gy_req *waiting_head, *waiting_tail;
    int32_t n_waiting, n_running, next_id;
    int32_t n_cancel; /* cancel calls since the last admission */
    int64_t reserved[GY_KV_GROUPS];
    gy_running *running; /* [max_seqs] */

    int32_t n_flight;
    gy_flight *flight;    /* [max_rows] */
    int32_t *free_flight; /* stack */
    int32_t n_free_flight;
    int32_t *fifo; /* ring of flight indices, [max_rows] */
    int32_t fifo_head, fifo_len;
    int32_t *coda_wait; /* [max_rows] in the order they left the core */
    int32_t n_coda_wait;

    /* One batch, [max_rows]; step lifetime. */
    int32_t *row_flight, *row_state, *row_pos, *row_slot, *row_id, *row_logit;
    int32_t *by_logits; /* flights of the pass whose rule looks at logits */
    int64_t *row_off;
    uint64_t *row_seed;
    uint8_t *row_zero;
    float *row_gate;
    double *row_latent;
    int32_t max_logit;

    gy_sampled sampled;
    gy_engine_stats stats;
};

/* engine.c */
void gy_engine_finish(gy_engine *e, int32_t slot, gy_finish reason, const gy_err *err);
void gy_engine_admit(gy_engine *e);

/* step.c: the flights of a running slot leave every queue (cancel, finish). */
void gy_engine_drop_flights(gy_engine *e, int32_t slot);

#endif
