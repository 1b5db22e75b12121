/* A worker: a whole engine that computes prompts for others (P), decodes prompts that others computed (D), or both. Two
 * halves that may run on two threads, joined by two bounded queues and nothing else:
 *
 *   engine half    the engine, requests, messages from and to the coordinator         gy_worker_message, gy_worker_turn
 *   transfer half  the gy_xfer: posts what became final, hears notes and completions    gy_worker_xfer_turn, _xfer_wait
 *
 * P: PREFILL -> an export; each on_planes queues the planes' new tokens, on_hidden the hidden slot; the transfer half
 * cuts ops of what is ready (segs.h), each with a gy_pd_note; the last one says how many there are. PREFILLED when all
 * are done remotely and the export is released (msg.h, gy_msg_sent; the last note has most of it too, and D's ACTIVE
 * tells it on). CANCEL: nothing more is posted, ops in flight end, then RELEASED. D:
 * RESERVE -> an import (GY_AGAIN: it waits in order of arrival) -> RESERVED with block tables and a hidden slot; notes
 *    are collected per tid (a set: late, repeated, reordered); complete -> the import is submitted, ACTIVE, TOKENs,
 *    FINISHes, RELEASED. CANCEL before it is complete: its pages stay until CANCEL_SAFE. CANCEL after: engine cancel.
 * LOCAL: an ordinary request; TOKENs, FINISHes, RELEASED.
 * GONE peer: imports that it was writing to wait for the coordinator's CANCEL_SAFE; the peer is dropped, and what it
 * may still write, living and cut off, is kept out (gy_xfer_forbid) before pages of a CANCEL_SAFE that comes later go.
 *
 * Regions (xfer.h), the same everywhere: 0 core arena, 1 boundary arena (a page if the model has none), 2 hidden slots
 * of gy_worker_slot_bytes, twice max_handoff: 0.. for what comes in, max_handoff.. for what goes out. A slot is the
 * hidden row [n_embd] as the model holds it (its activation dtype), then, sent with want_gates only, {u32 n_gate, u32
 * 0, f32 gates[n_gate]}. The loops it ran come with the last note.
 */
#ifndef GY_PD_WORKER_H
#define GY_PD_WORKER_H

#include "engine/handoff.h"
#include "pd/msg.h"

typedef struct gy_worker gy_worker;

typedef struct gy_worker_opts {
    gy_model *model;       /* borrowed */
    gy_engine_opts engine; /* max_handoff >= 1, in each direction: workers that do both would wait for each other if
                              imports could take the places of exports. Its KV arenas are the transfer's regions */
    gy_xfer_opts xfer;     /* kind, limits, across_hosts, ...: callbacks and user are the worker's. device: the one that
                              the model is on (gy_backend_get_device); NULL: its memory is the host's */
    int32_t role;          /* gy_pd_role bits */
    uint64_t epoch;        /* of this process: random */
    uint8_t fingerprint[32];
    /* Grammars arrive as text. May be NULL: requests with one are rejected. Engine half. */
    gy_status (*compile)(void *user, int32_t kind, const char *text, int32_t n, gy_err *err, gy_grammar **out,
                         const gy_grammar_vocab **vocab_out);
    void *user;
    void (*send)(void *user, const gy_msg *m); /* engine half; must queue a copy */
    int64_t (*now_ns)(void *user);             /* what STATS go by; NULL: gy_clock_ns */
} gy_worker_opts;

enum { GY_WORKER_STATS_MS = 100 };

size_t gy_worker_slot_bytes(const gy_model_desc *d, int32_t depth); /* whatever the dtype */

/* Opens the transfer, its regions, the engine on them; says READY through send. */
gy_status gy_worker_open(const gy_worker_opts *o, gy_err *err, gy_worker **out);
void gy_worker_close(gy_worker *w); /* accepts NULL; both halves have stopped */

/* ---- engine half ---- */
/* GY_E_FORMAT: a message that a worker does not get. */
gy_status gy_worker_message(gy_worker *w, const gy_msg *m, gy_err *err);
/* What came from the other half, then one step. GY_OK: something was done; GY_DONE: nothing is left; GY_AGAIN: all wait
 * for others (sleep until gy_worker_fd or the channel). Negative: the worker is lost (FATAL was sent). */
gy_status gy_worker_turn(gy_worker *w, gy_err *err);
int gy_worker_fd(const gy_worker *w);                  /* readable: the other half has something */
int gy_worker_is_empty(const gy_worker *w);            /* no request, no import, no export, no op: it may stop */
int gy_worker_is_stopping(const gy_worker *w);         /* STOP came: new work is rejected; end once it is empty */
const gy_engine *gy_worker_engine(const gy_worker *w); /* for what only reads */

/* ---- transfer half ---- */
gy_status gy_worker_xfer_begin(gy_worker *w, gy_err *err); /* first, on the thread that it is to have */
int gy_worker_xfer_turn(gy_worker *w);                     /* how many things happened */
void gy_worker_xfer_wait(gy_worker *w, int timeout_ms);
void gy_worker_xfer_wake(gy_worker *w); /* any thread */

#endif
