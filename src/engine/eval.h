/* Teacher-forced evaluation: the given ids at full depth, in chunks, without sampling. What `gyre eval` prints and the
 * golden tests compare. Uses the loop driver and KV directly; one call, no engine needed.
 */
#ifndef GY_ENGINE_EVAL_H
#define GY_ENGINE_EVAL_H

#include "kv/kv.h"
#include "model/model.h"

typedef struct gy_eval_opts {
    const int32_t *ids; /* [n_tok] */
    int32_t n_tok;
    int32_t max_rows; /* rows of a chunk; results do not depend on it */
    gy_kv_layout kv_layout;
    int32_t cyclic_k;
    gy_kv_type kv_type;
    int latent_noise;
    uint64_t latent_seed;
    const float *initial_state; /* [n_tok, n_embd] given instead of zero or noise (models with inject); else NULL */
    /* Each position's logits [n_vocab], in order of pos; NULL: only the last position is computed and nothing is
     * called. */
    gy_status (*on_logits)(void *arg, int32_t pos, const float *logits, gy_err *err);
    void *arg;
    float *last_logits; /* [n_vocab] or NULL */
    float *
        hidden; /* [n_loop, n_embd] of the last position, or NULL: after the loop's norm where there is one, else raw */
    float *gates; /* [n_tok, n_loop] raw gate values, or NULL */
} gy_eval_opts;

/* The model's backend must have been made for gy_loop_limits(desc, max_rows, n_tok). */
gy_status gy_eval(gy_model *m, const gy_eval_opts *o, gy_err *err);

#endif
