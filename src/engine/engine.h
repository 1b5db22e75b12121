/* The engine: runs requests on a model, all of them as rows of common passes (ARCHITECTURE.md, the one idea). Owns KV,
 * states, sampler.
 *
 * One step = admit waiting requests; let tokens enter (prelude); one pass of the core over up to max_rows rows at
 * whatever depths they are; route each row (stay or exit); coda and sampling of the rows that exited. Prompt tokens and
 * decode tokens are the same kind of row. Outputs of a request do not depend on what else runs, on max_rows or on the
 * number of threads (ARCHITECTURE.md, determinism).
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
#include "sample/sample.h"

typedef struct gy_engine gy_engine;

enum { GY_ENGINE_MAX_LOOPS = 4096 };

typedef struct gy_engine_opts {
    int32_t max_rows;  /* rows of one pass, >= 1 */
    int32_t max_seqs;  /* sequences running at once, >= 1 */
    int32_t max_len;   /* longest sequence: prompt + outputs, <= the model's max_pos */
    int32_t max_loops; /* deepest depth any request may use, at most GY_ENGINE_MAX_LOOPS. 0 and anything below the
                          trained depth mean the trained depth; more must be forced by the caller */
    int32_t kv_blocks; /* blocks of the core pool; 0 = max_seqs sequences of max_len at full depth */
    gy_kv_layout kv_layout;
    int32_t cyclic_k;
} gy_engine_opts;

void gy_engine_opts_default(gy_engine_opts *o); /* 256 rows, 16 sequences, max_len 0 (must be set), last_exited */

/* Memory that these options ask for, before opening: for a printed plan and for refusing what cannot fit. */
typedef struct gy_engine_plan {
    int32_t n_block[GY_KV_GROUPS];
    size_t block_bytes[GY_KV_GROUPS];
    size_t kv_bytes;
    size_t kv_token_bytes; /* of one token at full depth */
} gy_engine_plan;
gy_status gy_engine_make_plan(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, gy_err *err,
                              gy_engine_plan *out);

/* model is borrowed. Its backend must have been made for gy_loop_limits(desc, max_rows, max_len). */
gy_status gy_engine_open(gy_model *m, const gy_engine_opts *o, gy_err *err, gy_engine **out);
void gy_engine_close(gy_engine *e); /* accepts NULL; unfinished requests end without an event */

typedef enum gy_finish { GY_FINISH_STOP, GY_FINISH_LENGTH, GY_FINISH_CANCELLED, GY_FINISH_ERROR } gy_finish;
const char *gy_finish_name(gy_finish f); /* "stop", "length", "cancelled", "error" */

typedef struct gy_token_event {
    int32_t request;
    int32_t index; /* among the request's outputs, from 0 */
    int32_t token;
    int32_t loops; /* run (select: read out) for it; the first output's come from the prompt's last token */
    const gy_sampled *sampled;
} gy_token_event;

typedef struct gy_finish_event {
    int32_t request;
    gy_finish reason;
    const gy_err *err; /* for GY_FINISH_ERROR, else NULL */
    int32_t n_prompt, n_output;
    int64_t submit_ns, first_token_ns, finish_ns; /* gy_clock_ns; first_token_ns 0 if there was none */
} gy_finish_event;

typedef enum gy_verdict { GY_CONTINUE, GY_STOP } gy_verdict;

typedef struct gy_request {
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;      /* >= 1 */
    int32_t max_tokens;    /* >= 1 */
    gy_sample_params sample;
    gy_exit_rule exit;
    const int32_t
        *trace; /* exit trace: loops per output, [n_trace], copied; trace[0] belongs to the prompt: full depth */
    int32_t n_trace;
    int ignore_eos;
    const int32_t *stop_ids; /* further ids that end the text, copied */
    int32_t n_stop_ids;
    int latent_noise; /* Huginn: 0 = zero initial state, 1 = noise keyed by (latent_seed, position) */
    uint64_t latent_seed;
    /* Called inside gy_engine_step. on_token may return GY_STOP: the request finishes with reason stop (stop strings).
     */
    gy_verdict (*on_token)(void *arg, const gy_token_event *ev);
    void (*on_finish)(void *arg, const gy_finish_event *ev); /* exactly once, last */
    void *arg;
} gy_request;

void gy_request_default(gy_request *r, const gy_model_desc *d); /* greedy, fixed depth, 16 tokens */

/* Checks everything (ids in range, lengths against max_len and the pool, rule, sampling) and queues a copy. A request
 * that can never fit is refused here, with the numbers. *id_out counts up from 0. */
gy_status gy_engine_submit(gy_engine *e, const gy_request *r, gy_err *err, int32_t *id_out);
void gy_engine_cancel(gy_engine *e,
                      int32_t id); /* takes effect at the next step; unknown or finished ids are ignored */

/* One step. GY_OK: work was done; GY_DONE: nothing is left. Negative: the engine is lost. */
gy_status gy_engine_step(gy_engine *e, gy_err *err);

typedef struct gy_engine_stats {
    int64_t n_step, n_pass, n_row;                  /* n_row: rows of all passes */
    int64_t n_prompt_tok, n_output_tok, n_loop_sum; /* n_loop_sum: loops of all outputs */
    int32_t n_waiting, n_running;
    int32_t kv_free[GY_KV_GROUPS], kv_total[GY_KV_GROUPS];
    size_t workspace_bytes, kv_bytes;
} gy_engine_stats;
void gy_engine_get_stats(const gy_engine *e, gy_engine_stats *out);
const gy_kv *gy_engine_kv(const gy_engine *e); /* for the checker in tests */

#endif
