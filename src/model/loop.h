/* The loop driver: runs any gy_model on rows. It knows three things to do with a batch of rows, whatever their
 * sequences:
 *
 *   prelude  tokens enter: embedding, prelude layers, initial state                        -> states
 *   pass     one run of the core over rows, each at its own depth         states -> states (+ gate, latent change)
 *   coda     rows are read out: coda layers, LM head for some of them     states -> logits; states unchanged
 *
 * A state is the hidden vector (and, with inject, the injected prelude output) of one token on its way through the
 * loops. States live in a pool here and are named by index; who uses which index is the caller's business. The KV slots
 * that rows write and read are the caller's too: the driver sees views and row arrays only (kv.h fills them).
 *
 * Rules the caller keeps: a row at position p and some depth may run only when all earlier tokens of its sequence have
 * run that depth, left before it, or are in the same batch at that depth; prelude and coda rows of a sequence come in
 * position order. Engine lifetime, one thread. Allocates nothing after create.
 */
#ifndef GY_MODEL_LOOP_H
#define GY_MODEL_LOOP_H

#include "model/model.h"

typedef struct gy_loop gy_loop;

typedef struct gy_loop_config {
    int32_t max_row;           /* rows of one batch */
    int32_t n_state;           /* states in the pool */
    int32_t max_logit;         /* logits rows of one coda call */
    gy_kv_view core, boundary; /* boundary.base NULL when the model has no such layers */
} gy_loop_config;

/* Bounds for the backend that will run batches of max_row rows with contexts up to max_len. Pure. */
gy_ops_limits gy_loop_limits(const gy_model_desc *d, int32_t max_row, int32_t max_len);

/* Bytes of backend memory that create will take; 0 = overflow. Views in c do not matter. Pure. */
size_t gy_loop_plan_bytes(const gy_model_desc *d, gy_dtype act, const gy_loop_config *c);

gy_status gy_loop_create(gy_model *m, const gy_loop_config *c, gy_err *err, gy_loop **out);
void gy_loop_destroy(gy_loop *l); /* accepts NULL */

/* Host arrays, [n_row] each, read during the call. */
typedef struct gy_loop_batch {
    int32_t n_row;
    const int32_t *state;   /* index in the pool, distinct within a batch */
    const int32_t *pos;     /* absolute position */
    const int32_t *slot;    /* the slot a row writes (core for pass, boundary for prelude and coda; else unused) */
    const int64_t *map_off; /* as gy_rows.map_off, same group */
} gy_loop_batch;

typedef struct gy_loop_entry { /* prelude only */
    const int32_t *ids;        /* [n_row]; -1 - k: the token that row k of the last draw gave (draw_later) */
    const uint64_t *seed;      /* [n_row] latent seed; NULL without inject */
    const uint8_t *zero;       /* [n_row] 1 = zero initial state; NULL without inject */
} gy_loop_entry;

void gy_loop_prelude(gy_loop *l, const gy_loop_batch *b, const gy_loop_entry *in);

/* Does not wait. What it is to show: the gate (only with has_gate), how much the state changed. */
void gy_loop_pass(gy_loop *l, const gy_loop_batch *b, int shows_gate, int shows_latent);
/* What the last pass showed of its n_row rows, to host memory; each NULL if not wanted. Waits when one is. */
void gy_loop_shown(gy_loop *l, int32_t n_row, float *gate_out, double *latent_out);

/* Coda layers for all rows; logits for the rows logit_row[0..n_logit) of the batch, n_logit <= max_logit: they stay on
 * the backend until the next call. Does not wait. */
void gy_loop_read_out(gy_loop *l, const gy_loop_batch *b, const int32_t *logit_row, int32_t n_logit);
/* Logits first..first + n - 1 of the last read_out as host memory [n, n_vocab] f32, valid until the next one. Waits. */
const float *gy_loop_logits(gy_loop *l, int32_t first, int32_t n);
/* Both, for all of them; NULL when n_logit is 0. */
const float *gy_loop_coda(gy_loop *l, const gy_loop_batch *b, const int32_t *logit_row, int32_t n_logit);

/* Tokens by the backend (gy_ops.sample), from logits that stay there. room: host memory for n gy_draw_row and behind
 * them their lists and masks (base/draw.h), aligned to 8; NULL: this backend does not draw, or not from such a
 * vocabulary. draw: for logits first..first + n - 1 of the last read_out, from the first `bytes` of room; [n], valid
 * until the next call. Waits. */
void *gy_loop_draw_room(gy_loop *l, size_t *bytes_out);
const gy_drawn *gy_loop_draw(gy_loop *l, int32_t first, int32_t n, size_t bytes);

/* The same without waiting, where may_run_ahead: draw_later for logits 0..n - 1; a prelude may then enter the tokens
 * that nobody here knows yet. Behind it, whenever: mark, and after that, whatever was asked for since, reached: waits
 * for what came before the mark, says what draw_later gave [n] and the first error known, which stays. draw_later 0:
 * no memory; the draw must be repeated by draw. */
int gy_loop_may_run_ahead(const gy_loop *l);
int gy_loop_draw_later(gy_loop *l, int32_t n, size_t bytes);
void gy_loop_mark(gy_loop *l);
gy_status gy_loop_reached(gy_loop *l, gy_err *err, const gy_drawn **out);

/* dst state := src state (hidden and injection). */
void gy_loop_copy_state(gy_loop *l, int32_t src, int32_t dst);
/* The hidden vector of a state as f32 [n_embd], to or from the host (eval, tests). */
void gy_loop_get_state(gy_loop *l, int32_t state, float *out);
void gy_loop_set_state(gy_loop *l, int32_t state, const float *in);
gy_status gy_loop_sync(gy_loop *l, gy_err *err);
size_t gy_loop_workspace_bytes(const gy_loop *l);

#endif
