/* The engine's two interfaces for prefill/decode disaggregation: a prompt that is computed here and continued elsewhere
 * (export), and one that was computed elsewhere and is continued here (import).
 *
 * What crosses: the KV of prompt tokens [n_have, n_prompt) on every plane at the trained depth, then the hidden row of
 * the prompt's last token (what its coda reads) and the loops it ran. The importing side runs the coda for that row,
 * samples every token and owns all random numbers; the exporting side never samples. Nothing here moves bytes.
 *
 *   export:  submit -> passes: on_planes.. -> on_hidden -> on_finish(STOP)   -> HELD --release--> gone
 *                          \-- cancel, error: on_finish(CANCELLED, ERROR) --/
 *   import:  open: blocks are claimed -> OPEN -- bytes arrive, nothing runs -- submit -> request as any other
 *                                            \-- drop: blocks back
 *
 * Blocks of an export belong to it from the first on_planes until release, of an import from open until its request
 * ends or it is dropped: whoever reads or writes them from outside must have ended before release, drop, and submit.
 * An export runs to its end without being preempted. A request that was imported and is preempted later is parked, or
 * computed again here: both give the same bits.
 *
 * Only requests whose prompt runs the trained depth can cross (gy_handoff_can). Under layouts that overwrite (shared,
 * cyclic) planes are final when the prompt is. Of n choices the first crosses; the others share its rows.
 *
 * The engine's thread, between steps or in callbacks. engine options: max_handoff.
 */
#ifndef GY_ENGINE_HANDOFF_H
#define GY_ENGINE_HANDOFF_H

#include "engine/engine.h"

/* 0: this request must be prefilled where it decodes, and why (static; may be NULL). */
int gy_handoff_can(const gy_engine *e, const gy_request *r, const char **why_out);
int gy_handoff_can_model(const gy_model_desc *d, const gy_request *r, const char **why_out);

/* ---- export ---- */

typedef struct gy_export {
    /* Tokens whose KV is final, leading ones: core[d] for depth d of n_plane planes, and boundary. Called after a step
     * in which one of them grew; all are n_prompt in the last call, which comes before on_hidden. */
    void (*on_planes)(void *arg, int32_t id, const int32_t *core, int32_t n_plane, int32_t boundary);
    /* hidden [n_embd], gates [n_gate] (want_gates only): valid during the call. */
    void (*on_hidden)(void *arg, int32_t id, const float *hidden, int32_t loops, const float *gates, int32_t n_gate);
    void *arg;
} gy_export;

/* r: n, max_tokens, sampling, stop ids and grammar are not looked at; on_finish is called once, with reason STOP when
 * the prompt is done. GY_AGAIN: the queue or max_handoff is full. */
gy_status gy_engine_submit_export(gy_engine *e, const gy_request *r, const gy_export *x, gy_err *err, int32_t *id_out);
/* Blocks of a plane's log, *n_out of them; NULL before the export runs. Valid until the next step or release. */
const int32_t *gy_engine_export_blocks(const gy_engine *e, int32_t id, gy_kv_group g, int32_t plane, int32_t *n_out);
/* When its first row could run; 0: not yet, or it is over. */
int64_t gy_engine_export_admit_ns(const gy_engine *e, int32_t id);
void gy_engine_export_release(gy_engine *e, int32_t id); /* after on_finish; unknown ids are ignored */

/* ---- import ---- */

/* r as it will be submitted. Claims blocks for the whole prompt at the trained depth, of which the first n_have tokens
 * (a multiple of 16) came from the prefix cache here. GY_AGAIN: no room now beside what runs, or max_handoff is full.
 */
gy_status gy_engine_import_open(gy_engine *e, const gy_request *r, gy_err *err, int32_t *import_out,
                                int32_t *n_have_out);
const int32_t *gy_engine_import_blocks(const gy_engine *e, int32_t import, gy_kv_group g, int32_t plane,
                                       int32_t *n_out);
typedef struct gy_arrival { /* what on_hidden told; copied */
    const float *hidden;    /* [n_embd] */
    const float *gates;     /* [n_gate] */
    int32_t loops, n_gate;
} gy_arrival;
/* Everything is here: queued as a request, which owns the import from now on (also when it is cancelled). On failure
 * and GY_AGAIN the import stays open. r must say what it said at open. */
gy_status gy_engine_import_submit(gy_engine *e, int32_t import, const gy_request *r, const gy_arrival *a, gy_err *err,
                                  int32_t *id_out);
void gy_engine_import_drop(gy_engine *e, int32_t import);

int32_t gy_engine_n_handoff(const gy_engine *e); /* exports not released, imports open */

#endif
