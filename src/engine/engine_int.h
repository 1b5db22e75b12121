/* Inside the engine: the structures that plan.c (sizes), submit.c (a request comes in), engine.c (life, finish) and
 * step.c (one step) share.
 *
 * Who decides what: the scheduler (sched.h) decides which rows run and owns the life of jobs and flights, drawn there.
 * The engine runs them on the model, decides exits and tokens, and reports both back.
 *
 *   request --n choices--> gy_choice = one job of the scheduler = one sequence
 *
 *   submit -> [job: waits, runs, is parked, ...] -> token events -> finish event -> gone
 *                                                                    (the last choice takes the request with it)
 *
 * State f of the loop driver belongs to flight f; state n_flight + s keeps the selected state of running slot s.
 */
#ifndef GY_ENGINE_ENGINE_INT_H
#define GY_ENGINE_ENGINE_INT_H

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/handoff.h"
#include "engine/kvmem.h"
#include "model/loop.h"

struct gy_req;

typedef struct gy_choice { /* request lifetime */
    struct gy_req *req;
    int32_t index;      /* among the request's choices */
    int32_t job;        /* of the scheduler; -1 once finished */
    int32_t *tok;       /* [n_prompt + max_tokens] prompt, then outputs */
    int32_t *depth;     /* [max_tokens] loops that output i ran when it was the input: what a dropped choice repeats */
    float *prev_logp;   /* [n_vocab] for the kl rule, else NULL */
    gy_counts *counts;  /* for penalties, else NULL */
    gy_sample_params p; /* the request's, with this choice's index */
    int32_t n_output;
    int32_t late; /* 1: one more was drawn and is not known here yet: token late_row of the engine's last draw */
    int32_t late_row;
    int64_t first_token_ns;
    /* Where the n_output tokens stand in the grammar; NULL: there is none. Advanced when a token is drawn, so once for
     * each: what a dropped choice computes again is drawn from nothing. */
    gy_grammar_state *text;
    int32_t is_free; /* grammar_after has not appeared yet */
    int32_t matched; /* bytes of it that the output ends with */
} gy_choice;

typedef enum gy_handoff_kind {
    GY_HANDOFF_FREE,
    GY_HANDOFF_EXPORT, /* its request lives */
    GY_HANDOFF_HELD,   /* an export whose request is over: only its blocks are left */
    GY_HANDOFF_IMPORT
} gy_handoff_kind;

typedef struct gy_handoff { /* handoff.c */
    gy_handoff_kind kind;
    int32_t id;       /* the request's (export), the index here (import) */
    int32_t kv_seq;   /* HELD, IMPORT: owned; -1: none */
    int32_t flight;   /* EXPORT: of the last token once its coda ran; -1 before */
    struct gy_req *q; /* EXPORT */
    gy_export x;
    int32_t *told; /* [n_loop + 1] what on_planes said last */
    int32_t *next; /* [n_loop + 1] how far it was after step next_no */
    int64_t next_no;
} gy_handoff;

typedef struct gy_req {         /* request lifetime: one allocation, with its arrays behind it */
    struct gy_req *prev, *next; /* all live requests, in order of submission */
    int32_t id;
    int32_t n_left; /* choices that go on */
    int32_t cancelled;
    gy_request r; /* pointers into this allocation */
    int64_t submit_ns;
    int32_t *ends; /* [n_ends] ids that end the text: what min_tokens bans */
    int32_t n_ends;
    gy_grammar_after *after; /* NULL: the grammar holds from the first token on */
    gy_choice *choice;       /* [r.n] */
    gy_handoff *handoff;     /* of an export, else NULL */
    gy_arrival arrival;      /* of an import: pointers into this allocation; hidden NULL: computed here */
} gy_req;

/* What a row has to show after each loop. */
enum { GY_SHOW_GATE = 1u << 0, GY_SHOW_LATENT = 1u << 1, GY_SHOW_LOGITS = 1u << 2, GY_LOG_GATE = 1u << 3 };

/* Beside the scheduler's flight of the same index, from enter to done. What a pass reads of every row comes first: with
 * many sequences the cache misses of a pass are what the host costs. */
typedef struct gy_flight {
    int32_t settled; /* leaves after this many loops whatever it shows; 0: the rule decides */
    int32_t pos;
    uint32_t shows; /* GY_SHOW_*, GY_LOG_GATE */
    int32_t samples;
    gy_exit_state exit;
    gy_choice *c;
    gy_exit_rule rule; /* the rule this token obeys */
    int32_t n_gate;    /* values in gate_log */
} gy_flight;

typedef struct gy_logit_item { /* one row of logits on its way to a token; step lifetime */
    gy_choice *c;              /* NULL: its request ended earlier in the batch */
    int32_t flight, pos, loops;
    int32_t samples;     /* 0: prompt logprob */
    int32_t row;         /* of the coda's logits */
    const float *logits; /* NULL: on the backend */
    size_t lists;        /* where its lists lie among those of a drawing (token.c) */
    int32_t is_last;     /* nothing can follow this token */
    int32_t ends;        /* told; its choice ends, with reason and stop_id, or by what st says */
    int32_t was_refused; /* by the device, which drew it */
    gy_finish reason;
    int32_t stop_id;
    gy_status st; /* GY_DONE: the text is complete and no token can be drawn */
    gy_err err;
    gy_sampled out;
} gy_logit_item;

struct gy_engine {
    gy_model *m;
    gy_engine_opts o;
    gy_engine_plan plan;
    gy_kvmem kvmem;
    gy_kv *kv; /* kvmem's */
    gy_sched *sched;
    gy_loop *loop;
    gy_sampler *sampler;
    const gy_grammar_vocab *vocab; /* of the first request with a grammar, NULL before; then these are there too */
    gy_grammar_runner **runner;    /* [n_member] */
    uint32_t *mask;                /* [n_member, n_mask] */
    int32_t n_mask;                /* words */
    void *park[GY_KV_GROUPS];      /* host copies of parked blocks, page-mapped */
    size_t park_bytes[GY_KV_GROUPS];
    void *mem; /* everything below that is an array */
    size_t mem_bytes;
    gy_carve carve; /* of mem */

    gy_req *first, *last;
    int32_t next_id;
    int32_t n_cancel; /* cancel calls since the last step */
    int32_t n_idle;   /* steps in a row that did nothing although jobs are there */

    int32_t depth, n_flight, max_job;
    gy_choice **by_job;  /* [max_job] */
    gy_handoff *handoff; /* [o.max_handoff] */
    int32_t n_handoff;
    /* Steps that have begun; of them those whose device work is known to be done. What a step wrote may be told to who
     * reads it from outside the device's order, and what it may still write be given to who writes from there, from
     * done_no on. */
    int64_t step_no, done_no;
    int64_t mark_no;   /* the step that the loop's last mark is the end of */
    float *hidden;     /* [n_embd] */
    gy_flight *flight; /* [n_flight] */
    float *gate_log;   /* [n_flight, depth] raw gates of flights whose request wants them */

    /* One batch, [max_rows] unless said otherwise; step lifetime. */
    int32_t *row_flight, *row_id, *row_logit, *row_state;
    int32_t *judged; /* flights of the pass whose rule looks at logits */
    uint64_t *row_seed;
    uint8_t *row_zero;
    float *row_gate;
    double *row_latent;
    gy_logit_item *item; /* [max_logits] */
    int32_t n_sampled;   /* in this step */

    /* Where the engine need not wait for tokens (late.c): drawn, not read yet. */
    int runs_ahead;
    gy_logit_item *late; /* [max_logits] */
    int32_t n_late;
    int late_is_told;  /* but for what follows from it */
    int32_t n_judging; /* live requests whose rule looks at logits: then it waits */
    gy_err lost;       /* negative: what the backend said; no step does anything any more */

    gy_engine_stats stats;
};

static inline int32_t gy_stat_depth(int32_t depth) {
    return depth < GY_STAT_DEPTHS ? depth : GY_STAT_DEPTHS - 1;
}

/* plan.c */
int32_t gy_engine_depth(const gy_model_desc *d, const gy_engine_opts *o);
int32_t gy_engine_max_logits(const gy_engine_opts *o);
gy_kv_config gy_engine_kv_config(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o,
                                 const gy_engine_plan *p);
gy_loop_config gy_engine_loop_config(const gy_engine_opts *o);

/* submit.c */
typedef struct gy_crossing {   /* what a request is beside what it says; zeroed: nothing */
    gy_handoff *handoff;       /* an export */
    const gy_arrival *arrival; /* an import, with */
    int32_t kv_seq;            /* its sequence, taken over on GY_OK */
} gy_crossing;
gy_status gy_engine_queue(gy_engine *e, const gy_request *r, const gy_crossing *x, gy_err *err, int32_t *id_out);
void gy_req_free(gy_req *q); /* accepts NULL */

/* handoff.c */
void gy_handoff_tell(gy_engine *e); /* end of a step: how far exports are */
/* An export's last token is through its coda; its state is that of the coda's input. Ends the request. */
void gy_handoff_done(gy_engine *e, const gy_logit_item *it, int32_t state);
void gy_handoff_detach(gy_engine *e, gy_req *q, int32_t job);     /* its request ends, in whatever way */
void gy_handoff_land(gy_engine *e, int32_t flight, gy_choice *c); /* an import's row is there */

/* constrain.c */
gy_status gy_constrain_check(const gy_model_desc *d, const gy_request *r, gy_err *err);
/* What the threads that sample need for grammars, taken when the first request with one comes: not inside a step. */
gy_status gy_constrain_open(gy_engine *e, const gy_grammar_vocab *vocab, gy_err *err);
void gy_constrain_close(gy_engine *e);
void gy_constrain_begin(gy_choice *c); /* before its first token */
/* Which tokens may come next, into in->mask (and no ban) or, where anything may, not at all. GY_DONE: the text is
 * complete and none may. */
gy_status gy_constrain_next(gy_engine *e, const gy_choice *c, int member, gy_sample_in *in, gy_err *err);
/* The token that was drawn. *is_last_out: nothing can follow it. */
gy_status gy_constrain_follow(gy_engine *e, gy_choice *c, int member, int32_t id, gy_err *err, int32_t *is_last_out);

/* step.c: the backend has failed, so what it gave means nothing; asked before anybody is told a token. */
int gy_engine_is_lost(gy_engine *e);
/* token.c: out, st, err, is_last of the first n items. Items whose logits are on the backend are not mixed with others.
 * Does nothing more once the backend is lost. */
void gy_engine_sample(gy_engine *e, int32_t n);

/* late.c. draw: the n items' tokens will be known a step later; 0: not these, nothing was done. tell: they are known
 * from here on. take: likewise, and choices that end with them end; how many there were. forget: the choice ends
 * before. */
int gy_late_draw(gy_engine *e, int32_t n);
void gy_late_tell(gy_engine *e);
int32_t gy_late_take(gy_engine *e);
void gy_late_forget(gy_engine *e, const gy_choice *c);
/* token.c, for it: wishes of all n items to the loop's room; its bytes, 0: no room for all. Tokens from drawn. */
size_t gy_engine_pack(gy_engine *e, gy_logit_item *item, int32_t n);
void gy_engine_unpack(gy_engine *e, gy_logit_item *item, int32_t n, const gy_drawn *drawn);
/* The last mark is reached. One of the step that still goes on says nothing of what that step queues behind it. */
static inline void gy_engine_reached(gy_engine *e) {
    int64_t no = e->mark_no < e->step_no ? e->mark_no : e->step_no - 1;
    if (no > e->done_no) e->done_no = no;
}
/* step.c: a token that is known, told; it->ends: the choice is to end. */
void gy_engine_tell(gy_engine *e, gy_logit_item *it);
void gy_engine_end(gy_engine *e, gy_logit_item *it); /* and does */
/* submit.c: whether the request's rule looks at logits. */
int gy_engine_judges(const gy_request *r);

/* engine.c: the choice's last event, and everything it held; frees the request with its last choice. */
void gy_engine_finish(gy_engine *e, gy_choice *c, gy_finish reason, int32_t stop_id, const gy_err *err);

#endif
