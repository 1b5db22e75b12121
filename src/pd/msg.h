/* What coordinator and workers say to each other: versioned binary messages. Fixed structs, explicit lengths, little
 * endian; no pointers, no serialised objects. Pure functions: bytes to struct and back.
 *
 *   frame = u32 length of what follows | u16 kind | u16 version | body
 *
 * A reader checks every length against the frame and every count against its bound before it allocates; what is left
 * over at the end of a body is an error. Kinds that a reader does not know are skipped by it (GY_DONE): a newer side
 * may say more. A body that cannot be read is GY_E_FORMAT, and ends the connection of whoever sent it.
 *
 * A transfer id (tid) is 128 random bits, new for each try of a request: what comes late of an earlier try finds
 * nobody.
 */
#ifndef GY_PD_MSG_H
#define GY_PD_MSG_H

#include "base/arena.h"
#include "base/str.h"
#include "engine/engine.h"
#include "pd/xfer.h"

enum {
    GY_MSG_VERSION = 2,
    GY_MSG_MAX = 64 << 20,    /* bytes of a frame */
    GY_MSG_HEAD = 8,          /* length, kind, version */
    GY_MSG_MAX_TEXT = 1 << 16 /* bytes of a sentence */
};

typedef struct gy_tid {
    uint64_t hi, lo;
} gy_tid;
static inline int gy_tid_same(gy_tid a, gy_tid b) {
    return a.hi == b.hi && a.lo == b.lo;
}

typedef enum gy_msg_kind {
    /* worker -> coordinator */
    GY_MSG_READY = 1, /* ready */
    GY_MSG_CONNECTED, /* peer, status, text: why it failed, or the lanes that it has, as UCX names them */
    GY_MSG_RESERVED,  /* tid, tables */
    GY_MSG_REJECTED,  /* tid, status, text: of RESERVE, PREFILL or LOCAL; nothing of it is left at the worker */
    GY_MSG_PREFILLED, /* tid, sent: every byte is at D */
    GY_MSG_ACTIVE,    /* tid, sent: D decodes it; what P's last note told, laid out on D's clock */
    GY_MSG_TOKEN,     /* tid, token */
    GY_MSG_PROMPT,    /* tid, token (a prompt logprob) */
    GY_MSG_FINISH,    /* tid, finish: of one choice */
    GY_MSG_RELEASED,  /* tid: the worker holds nothing of it any more */
    GY_MSG_STATS,     /* stats */
    GY_MSG_FATAL,     /* text; the worker ends */
    GY_MSG_PONG,      /* answers a PING */
    GY_MSG_LEAVING,   /* give it nothing new; STOP once nothing of it is left */
    /* coordinator -> worker */
    GY_MSG_CONNECT = 64, /* peer, blob */
    GY_MSG_GONE,         /* peer: its process is reaped, no writer of it exists */
    GY_MSG_RESERVE,      /* tid, peer (who will write), request */
    GY_MSG_PREFILL,      /* tid, peer (D), request, tables */
    GY_MSG_LOCAL,        /* tid, request: prompt and decode there */
    GY_MSG_CANCEL,       /* tid */
    GY_MSG_CANCEL_SAFE,  /* tid: no writer is left, pages may go */
    GY_MSG_STOP,         /* end once nothing is left */
    GY_MSG_PING          /* are you there: between hosts, where no process descriptor tells of a death */
} gy_msg_kind;
const char *gy_msg_name(gy_msg_kind k); /* "ready", ...; "unknown" */

typedef enum gy_pd_role { GY_PD_PREFILL = 1, GY_PD_DECODE = 2 } gy_pd_role; /* bits; both: hybrid */

/* What must be the same everywhere before anything is spawned or accepted, and what may differ (behind the line). */
typedef struct gy_pd_info {
    char family[32];
    int32_t dtype, layout, cyclic_k; /* dtype: of the KV */
    int32_t n_loop, depth;           /* trained; deepest that a request may ask for */
    int32_t n_layer[GY_KV_GROUPS], n_head_kv, head_dim;
    int32_t n_embd, n_vocab, max_len;
    uint8_t fingerprint[32]; /* of checkpoint, options that decide bits, ABI version */
    /* ---- */
    int32_t n_block[GY_KV_GROUPS], max_seqs, max_queue, max_handoff;
} gy_pd_info;
/* GY_E_ARG: the first field above the line that differs, with both values. */
gy_status gy_pd_info_match(const gy_pd_info *a, const gy_pd_info *b, gy_err *err);

typedef struct gy_msg_ready {
    int32_t role, pid;
    gy_pd_info info;
} gy_msg_ready;

typedef struct gy_msg_table { /* block ids of one plane */
    int32_t group, plane, n;
    const int32_t *ids; /* [n] */
} gy_msg_table;

typedef struct gy_msg_tables { /* where P is to write */
    int32_t n_have;            /* tokens that D has already */
    int32_t hidden_slot;
    int32_t n_table;
    const gy_msg_table *table; /* [n_table] */
} gy_msg_tables;

typedef struct gy_msg_request {
    gy_request r;         /* arrays in the arena; callbacks, grammar and vocab NULL */
    int32_t grammar_kind; /* -1: none; else gy_grammar_kind, compiled by the receiver */
    const char *grammar;  /* [n_grammar] */
    int32_t n_grammar;
} gy_msg_request;

typedef struct gy_msg_token {
    int32_t choice, index, token, loops; /* PROMPT: index is the position, loops 0 */
    float logprob;
    int32_t n_top;
    int32_t top_id[GY_MAX_LOGPROBS];
    float top_logprob[GY_MAX_LOGPROBS];
    int32_t n_gate;
    const float *gates; /* [n_gate] */
} gy_msg_token;

typedef struct gy_msg_finish {
    int32_t choice, n_left, reason; /* gy_finish */
    int32_t stop_id, n_prompt, n_output, n_cached, n_preempt;
    uint64_t seed;
    int64_t admit_ns, first_token_ns, finish_ns; /* CLOCK_MONOTONIC of the worker */
} gy_msg_finish;

typedef struct gy_msg_sent { /* what moving a prompt took */
    int64_t bytes, n_op, n_desc;
    /* Clock of P, whose differences alone mean something elsewhere: work began; the last row left the core; the first
       and the last op were posted; the last byte was there; this was said. */
    int64_t start_ns, compute_ns, first_post_ns, last_post_ns, last_done_ns, said_ns;
    /* Inside post; of the wire time, what P's steps cover, and the bytes and ops that it is of. */
    int64_t post_ns, overlap_ns, overlap_bytes, n_overlap;
    int32_t n_computed; /* prompt tokens that were not in P's cache */
} gy_msg_sent;

/* Numbers that are only added up and shown: a worker that tells negative ones, or larger ones, is broken. A sum stays
 * at the most. */
#define GY_MSG_MOST ((int64_t)1 << 60)
#define GY_MSG_MOST_I32 (INT32_MAX / 64) /* of 64 workers */
static inline int64_t gy_msg_add(int64_t a, int64_t b) {
    return a + b < GY_MSG_MOST ? a + b : GY_MSG_MOST;
}

/* What only ever grows in one life of a worker. */
#define GY_MSG_COUNTS(X)                                                                                               \
    X(n_step)                                                                                                          \
    X(n_pass)                                                                                                          \
    X(n_row)                                                                                                           \
    X(n_output_tok)                                                                                                    \
    X(n_prompt_tok)                                                                                                    \
    X(n_park)                                                                                                          \
    X(n_restore)                                                                                                       \
    X(n_drop)                                                                                                          \
    X(n_recomputed_tok)                                                                                                \
    X(cache_query_tok)                                                                                                 \
    X(cache_hit_tok)                                                                                                   \
    X(cache_evicted)                                                                                                   \
    X(mask_hit)                                                                                                        \
    X(mask_miss)                                                                                                       \
    X(step_ns)                                                                                                         \
    X(model_ns)                                                                                                        \
    X(sample_ns)                                                                                                       \
    X(xfer_bytes)                                                                                                      \
    X(xfer_ops)                                                                                                        \
    X(xfer_desc)                                                                                                       \
    X(xfer_failed)

typedef struct gy_msg_stats { /* as gy_engine_stats and gy_xfer_stats have them */
    int32_t n_waiting, n_running, n_parked, n_handoff;
    int32_t kv_free, kv_cached, kv_total; /* core blocks */
    int64_t wait_tok, xfer_inflight;
#define GY_MSG_COUNT(name) int64_t name;
    GY_MSG_COUNTS(GY_MSG_COUNT)
#undef GY_MSG_COUNT
    int32_t n_depth; /* entries of the tables that mean something */
    int64_t n_row_at[2][GY_STAT_DEPTHS];
    int32_t kv_plane[GY_STAT_DEPTHS], kv_boundary;
} gy_msg_stats;
/* What grows, of earlier lives of the same worker. */
void gy_msg_stats_add_past(gy_msg_stats *s, const gy_msg_stats *past);

typedef struct gy_msg { /* one message of any kind; which fields count: gy_msg_kind */
    gy_msg_kind kind;
    gy_tid tid;
    uint64_t peer; /* epoch of a worker; READY: the sender's own */
    int32_t status;
    const char *text; /* [n_text] also NUL-terminated after decoding */
    int32_t n_text;
    const void *blob; /* [n_blob] */
    int32_t n_blob;
    gy_msg_ready ready;
    gy_msg_tables tables;
    gy_msg_request request;
    gy_msg_token token;
    gy_msg_finish finish;
    gy_msg_sent sent;
    gy_msg_stats stats;
} gy_msg;

/* Appends one frame. GY_E_NOMEM; GY_E_LIMIT: larger than GY_MSG_MAX. */
gy_status gy_msg_encode(const gy_msg *m, gy_str *out);

/* Bytes of the frame that begins at bytes[0..len): 0: not there yet. GY_E_FORMAT: no frame can begin so. */
gy_status gy_msg_frame(const char *bytes, size_t len, size_t *frame_out, gy_err *err);
/* A whole frame. Pointers of *out are into a, which the caller resets when it is done with the message. GY_DONE: of a
 * kind that this side does not know. */
gy_status gy_msg_decode(const char *frame, size_t len, gy_arena *a, gy_err *err, gy_msg *out);

/* P to D, with the bytes (a note of xfer.h). */
typedef struct gy_pd_note {
    uint32_t magic; /* GY_PD_NOTE_MAGIC */
    uint32_t seq;   /* op of this transfer, from 0 */
    uint32_t total; /* ops of this transfer; 0: not known yet */
    uint32_t loops; /* of the hidden row; said with total, as is what follows tid */
    gy_tid tid;
    int64_t start_ago_ns, compute_ago_ns; /* gy_msg_sent's, before this was made */
    int64_t bytes, n_desc;                /* of all ops */
} gy_pd_note;
enum { GY_PD_NOTE_MAGIC = 0x47594e32, GY_PD_MAX_OPS = 4096 };

#endif
