/* The engine: runs requests on a model, all of them as rows of common passes (ARCHITECTURE.md, the one idea). Owns KV,
 * states, sampler, scheduler.
 *
 * One step = the scheduler's plan (sched.h) carried out: admit; prelude of the tokens that enter; one pass of the core
 * over up to max_rows rows at whatever depths they are; route each row (stay or exit); coda of the rows that exited,
 * all of a batch sampled together. Prompt tokens and decode tokens are the same kind of row. Outputs of a request do
 * not depend on what else runs, on any option of the scheduler, on the prefix cache, on preemption or on the number of
 * threads (ARCHITECTURE.md, determinism).
 *
 * Engine lifetime; one thread calls everything, callbacks run on it inside gy_engine_step. A step allocates nothing.
 * A callback may call gy_engine_submit, gy_engine_cancel (its own request too; both take effect at the next step) and
 * what only reads (get_stats, kv). It may not call gy_engine_step or gy_engine_close.
 */
#ifndef GY_ENGINE_ENGINE_H
#define GY_ENGINE_ENGINE_H

#include "engine/exit.h"
#include "kv/kv.h"
#include "model/model.h"
#include "sample/grammar.h"
#include "sample/sample.h"
#include "sched/sched.h"

typedef struct gy_engine gy_engine;

enum { GY_ENGINE_MAX_LOOPS = 4096, GY_ENGINE_MAX_N = 128 };

typedef struct gy_engine_opts {
    /* max_rows, max_seqs, max_queue and every choice of scheduling. The engine sets n_loop, has_boundary, has_coda and
     * the copy functions itself. */
    gy_sched_opts sched;
    int32_t max_len;    /* longest sequence: prompt + outputs, <= the model's max_pos */
    int32_t max_loops;  /* deepest depth any request may use, at most GY_ENGINE_MAX_LOOPS. 0 and anything below the
                           trained depth mean the trained depth; more must be forced by the caller */
    int32_t max_logits; /* rows of one LM head batch, all sampled together. 0 = max_seqs, at most max_rows and 256 */
    int32_t
        fuse_loops; /* passes of one step while no token is due to be sampled: 1 = none fused. Depths that are settled
                       beforehand need nobody's decision between two loops; each pass keeps its own prefill share */
    int32_t max_handoff; /* prompts that cross at once (handoff.h): exports not released and open imports; 0 = none */
    gy_kv_layout kv_layout;
    int32_t cyclic_k;
    gy_kv_type kv_type; /* of all planes; int8 where the backend takes it (gy_ops.kv_types) */
    int prefix_cache;   /* 1: keep block rows of finished prompts for later ones */
    /* Size of the KV pool. The first of these that is not 0 counts; if all are 0, what kv_fraction of the backend's
     * free memory holds after the workspace, and no more than max_seqs sequences of max_len at full depth can use (with
     * the prefix cache: twice that). */
    int32_t kv_blocks;  /* blocks of the core pool; the boundary pool gets as many tokens' worth */
    size_t kv_bytes;    /* of both pools */
    double kv_fraction; /* (0, 1] */
    size_t park_bytes;  /* host memory for parked sequences, committed as it is used; 0 = none: recompute */
    /* Arenas of the pools from somewhere else (kvmem.h, gy_kvmem_lender); NULL: the backend's memory. */
    void *(*kv_memory)(void *arg, int group, size_t bytes);
    void *kv_memory_arg;
    size_t mask_bytes; /* masks of grammars that are kept, of all sampling threads together */
} gy_engine_opts;

/* The scheduler's defaults; max_len 0 (must be set), last_exited, no cache, fraction 0.9, parking up to 1 GiB, 64 MiB
 * of masks. */
void gy_engine_opts_default(gy_engine_opts *o);

/* Memory that these options ask for, before opening: for a printed plan and for refusing what cannot fit. */
typedef struct gy_engine_plan {
    int32_t n_block[GY_KV_GROUPS], n_park[GY_KV_GROUPS];
    size_t block_bytes[GY_KV_GROUPS];
    size_t kv_bytes, park_bytes;
    size_t kv_token_bytes;  /* of one token at full depth, both groups */
    int64_t kv_tokens;      /* full-depth tokens that the pools hold */
    size_t workspace_bytes; /* of the loop driver: states, activations, logits */
    size_t available_bytes; /* what the backend had free; 0 = unknown or not asked for (explicit sizes) */
    const char *limit;      /* static: what decided the size: "kv_blocks", "kv_bytes", "memory", "max_seqs x max_len" */
    double kv_fraction;     /* of available_bytes, where "memory" is the limit */
    size_t map_bytes;       /* of the slot map, on the host and once more on a backend that has memory of its own */
    /* Of an open engine; 0 before: what of the checkpoint is used where it is mapped, what the model holds in memory of
     * the backend, what the backend has left. */
    size_t mapped_bytes, weight_bytes, free_bytes;
    const char *weights; /* static: "fp8", "int8", "int4", "int8-channel"; NULL for others */
    const char *kv_type; /* static: "int8"; NULL: as activations */
} gy_engine_plan;
/* Before the weights are loaded: do they and the engine fit into `have` bytes of a device? GY_E_NOMEM with the numbers.
 * Pure. */
gy_status gy_engine_check_fits(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, size_t weights,
                               size_t have, gy_err *err);
enum { GY_PLAN_TEXT = 512 };
/* The plan for a person, in one line: what takes how much, what limits, what stays free. */
void gy_engine_plan_text(const gy_engine_plan *p, char buf[GY_PLAN_TEXT]);
/* available: bytes the backend has free (gy_ops.mem_available), 0 = unknown: then memory does not limit. Pure. */
gy_status gy_engine_make_plan(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, size_t available,
                              gy_err *err, gy_engine_plan *out);

/* model is borrowed. Its backend must have been made for gy_loop_limits(desc, max_rows, max_len). */
gy_status gy_engine_open(gy_model *m, const gy_engine_opts *o, gy_err *err, gy_engine **out);
void gy_engine_close(gy_engine *e); /* accepts NULL; unfinished requests end without an event */
const gy_engine_plan *gy_engine_get_plan(const gy_engine *e);

typedef enum gy_finish { GY_FINISH_STOP, GY_FINISH_LENGTH, GY_FINISH_CANCELLED, GY_FINISH_ERROR } gy_finish;
const char *gy_finish_name(gy_finish f); /* "stop", "length", "cancelled", "error" */

typedef struct gy_token_event {
    int32_t request, choice;
    int32_t index; /* among the choice's outputs, from 0 */
    int32_t token;
    int32_t loops; /* run (select: read out) for it; the first output's come from the prompt's last token */
    const gy_sampled *sampled;
    const float *gates; /* want_gates: raw gate value of each loop that ran [n_gate]; else NULL */
    int32_t n_gate;
} gy_token_event;

typedef struct gy_prompt_event { /* prompt_logprobs: one for each prompt token but the first; in order of position
                                    unless prompt tokens leave early (on_prompt) */
    int32_t request;
    int32_t pos;
    const gy_sampled *sampled; /* id = the prompt's token at pos */
} gy_prompt_event;

/* What a request took on workers (pd/coord_times.c says whose clock that is). */
typedef enum gy_pd_stage {
    GY_PD_ADMITTED,          /* it has its places, and its workers were told */
    GY_PD_D_RESERVED,        /* D has promised pages */
    GY_PD_PREFILL_STARTED,   /* its prompt is computed */
    GY_PD_PREFILL_COMPLETED, /* .. was computed */
    GY_PD_PREFILL_SUBMITTED, /* .. and everything of it posted */
    GY_PD_D_ACTIVATED,       /* D has all of it and goes on */
    GY_PD_FIRST_TOKEN,
    GY_PD_FINISHED,
    GY_PD_STAGES
} gy_pd_stage;
const char *gy_pd_stage_name(gy_pd_stage s); /* "admitted", ...: gyre.h */
typedef struct gy_pd_cost {
    int32_t n_try;           /* 0: it never was at a worker, and all else is 0; what follows is of the last try */
    int32_t prefill, decode; /* slots of the workers; prefill -1: where it was decoded */
    /* gy_clock_ns, never falling from one that is set to the next that is; 0: did not happen. */
    int64_t at_ns[GY_PD_STAGES];
    int64_t bytes, n_op, n_desc;
    /* tail: from the last computed row until the last byte was there. 0 unless is_measured: P had told before the last
     * choice ended. Outputs of a token or two may be faster. */
    int32_t is_measured;
    int64_t post_ns, wire_ns, tail_ns, overlap_ns, overlap_bytes, n_overlap;
} gy_pd_cost;

typedef struct gy_finish_event {
    int32_t request, choice;
    int32_t n_left; /* choices of the request that still go on; 0: this is the request's last event */
    gy_finish reason;
    const gy_err *err; /* for GY_FINISH_ERROR, else NULL */
    int32_t stop_id;   /* the id that ended the text, -1 if none did */
    int32_t n_prompt, n_output;
    int32_t n_cached;                                       /* prompt tokens that were not computed */
    int32_t n_preempt;                                      /* times it was parked or dropped */
    uint64_t seed;                                          /* of sampling: given, or drawn */
    int64_t submit_ns, admit_ns, first_token_ns, finish_ns; /* gy_clock_ns; 0 = did not happen */
    gy_pd_cost pd;                                          /* of an engine alone: zeros */
} gy_finish_event;

typedef enum gy_verdict { GY_CONTINUE, GY_STOP } gy_verdict;

typedef struct gy_request {
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;      /* >= 1 */
    int32_t max_tokens;    /* >= 1 */
    int32_t min_tokens;    /* before so many outputs eos and stop ids cannot be drawn; 0..max_tokens */
    int32_t n; /* choices, 1..GY_ENGINE_MAX_N; choice k draws with sample.choice + k. They share the prompt's
                  blocks */
    gy_sample_params sample; /* bias is copied */
    int random_seed;         /* 1: sample.seed is drawn from the system and reported in the finish event */
    int32_t prompt_logprobs; /* -1: none; else as sample.n_logprobs, for prompt tokens (choice 0) */
    gy_exit_rule exit;
    const int32_t
        *trace; /* exit trace: loops per output, [n_trace], copied; trace[0] belongs to the prompt: full depth */
    int32_t n_trace;
    int want_gates; /* 1: gate values in token events, whatever the rule; refused without a gate */
    int ignore_eos;
    const int32_t *stop_ids; /* further ids that end the text, copied */
    int32_t n_stop_ids;
    int latent_noise; /* Huginn: 0 = zero initial state, 1 = noise keyed by (latent_seed, position) */
    uint64_t latent_seed;
    int32_t priority;       /* lower runs sooner; under the priority policy */
    int no_cache;           /* 1: neither read nor fill the prefix cache */
    const char *cache_salt; /* [n_salt], copied; only requests with the same one share prefixes */
    int32_t n_salt;         /* 0..GY_PREFIX_MAX_SALT */
    /* What the output must be; NULL: anything. A reference is taken. A choice ends with reason stop where its text is
     * complete and nothing can follow, without an eos; eos is drawn only where it is complete, and under ignore_eos
     * never. min_tokens bans as ever, but a text to which nothing can be added ends before. Stop ids and stop strings
     * end a text wherever they come. Rules that look at logits see them without the mask. */
    gy_grammar *grammar;
    const gy_grammar_vocab *vocab; /* with a grammar: the model's, the same for all requests; outlives the engine */
    const char *grammar_after;     /* [n_grammar_after], copied; the grammar holds behind its first appearance in the
                                      output, until then anything goes */
    int32_t n_grammar_after;       /* 0..GY_GRAMMAR_MAX_AFTER; 0: from the first token on */
    /* Called inside gy_engine_step; each may be NULL. on_token may return GY_STOP: the choice finishes with reason stop
     * (stop strings). */
    gy_verdict (*on_token)(void *arg, const gy_token_event *ev);
    void (*on_prompt)(void *arg, const gy_prompt_event *ev);
    void (*on_finish)(void *arg, const gy_finish_event *ev); /* exactly once for each choice, its last event */
    void *arg;
} gy_request;

void gy_request_default(gy_request *r, const gy_model_desc *d); /* greedy, fixed depth, 16 tokens, one choice */

/* What submit refuses for good, without queueing: reads nothing that changes while the engine lives, so that any thread
 * may call it. */
gy_status gy_engine_check(const gy_engine *e, const gy_request *r, gy_err *err);
/* The same without an engine: for one in another process that has these options. d is borrowed. */
typedef struct gy_engine_bounds {
    const gy_model_desc *d;
    int32_t max_len, max_loops, depth, max_queue;
    gy_kv_config kv;
} gy_engine_bounds;
gy_engine_bounds gy_engine_plan_bounds(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o,
                                       const gy_engine_plan *p);
gy_status gy_request_check(const gy_engine_bounds *b, const gy_request *r, gy_err *err);
/* Checks everything (ids in range, lengths against max_len and the pool, rule, sampling) and queues a copy. A request
 * that can never fit is refused here, with the numbers. GY_AGAIN, with a sentence: the queue has no room for its n
 * choices now. *id_out counts up from 0. */
gy_status gy_engine_submit(gy_engine *e, const gy_request *r, gy_err *err, int32_t *id_out);
void gy_engine_cancel(gy_engine *e,
                      int32_t id); /* takes effect at the next step; unknown or finished ids are ignored */
/* Parks or drops a running choice between two steps; GY_AGAIN if it does not run (or cannot be parked). Tests. */
gy_status gy_engine_preempt(gy_engine *e, int32_t id, int32_t choice, gy_preempt how);

/* One step. GY_OK: work was done; GY_DONE: nothing is left. Negative: the engine is lost. */
gy_status gy_engine_step(gy_engine *e, gy_err *err);

enum { GY_STAT_DEPTHS = 64 }; /* what is deeper counts at the last one */
typedef struct gy_engine_stats {
    int64_t n_step, n_pass, n_row;                  /* n_row: rows of all passes */
    int64_t n_prompt_tok, n_output_tok, n_loop_sum; /* n_loop_sum: loops of all outputs */
    int64_t n_request, n_finish[GY_FINISH_ERROR + 1];
    gy_sched_stats sched;
    gy_prefix_stats prefix;
    int32_t kv_free[GY_KV_GROUPS], kv_cached[GY_KV_GROUPS], kv_total[GY_KV_GROUPS];
    int64_t kv_copied_bytes;              /* by parking and restoring; nothing else copies KV */
    int64_t step_ns, model_ns, sample_ns; /* time inside steps: all of it, in the loop driver, in the sampler. The
                                             rest is the host's: planning, bookkeeping, events */
    size_t workspace_bytes, kv_bytes;
    gy_grammar_mask_stats mask;
    int64_t n_row_at[2][GY_STAT_DEPTHS]; /* of n_row, by what they are (0 prompt, 1 decode) and depth */
    int64_t n_exit[GY_STAT_DEPTHS];      /* of n_output_tok, by loops - 1 */
    int32_t kv_plane[GY_STAT_DEPTHS];    /* blocks in use on the core's planes */
    int32_t kv_boundary;                 /* and of the boundary */
} gy_engine_stats;
void gy_engine_get_stats(const gy_engine *e, gy_engine_stats *out);
const gy_kv *gy_engine_kv(const gy_engine *e);       /* for the checker in tests */
const gy_sched *gy_engine_sched(const gy_engine *e); /* likewise */

#endif
