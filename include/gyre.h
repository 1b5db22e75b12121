/* gyre: looped (recurrent-depth) language models as a C library.
 *
 * One handle is one model and its engine. Requests go in, events come out; all requests run together, and what one of
 * them says depends neither on the others nor on any option of scheduling. This header needs nothing else of gyre.
 *
 *     gyre_options o;
 *     gyre_options_default(&o, sizeof o);
 *     gyre *g;
 *     gyre_err err;
 *     if (gyre_open("models/ouro-1.4b", &o, &err, &g) < 0) { puts(err.msg); return 1; }
 *     gyre_start(g, &err);                                // an own thread drives it (or call gyre_step yourself)
 *
 *     gyre_request r;
 *     gyre_request_default(&r, sizeof r);
 *     r.prompt = "Once upon a time";
 *     r.n_prompt = strlen(r.prompt);
 *     uint64_t id;
 *     if (gyre_submit(g, &r, &err, &id) < 0) puts(err.msg);
 *
 *     const gyre_event *ev;
 *     while (gyre_poll(g, -1, &ev) == GYRE_OK) {          // waits for the next event of any request
 *         fwrite(ev->text, 1, ev->n_text, stdout);
 *         if (ev->kind == GYRE_EVENT_FINISH && ev->finish->n_left == 0) break;
 *     }
 *     gyre_close(g);
 *
 * Threads. gyre_submit, gyre_cancel, gyre_get_stats, gyre_get_info, gyre_tokenize and gyre_detokenize may be called by
 * any thread at any time between gyre_open and gyre_close, also inside a callback, and never wait for a step.
 * gyre_poll: by one thread at a time, which may be another one than drives. gyre_start, gyre_stop, gyre_step,
 * gyre_close: by the owner of the handle; a call that does not fit (gyre_step while the thread runs, ...) is refused
 * with a sentence.
 *
 * Memory. What is passed in is copied before the call returns. Everything else belongs to the handle; each comment says
 * how long a pointer lives. Structs that the caller fills carry their size, so that they can grow without breaking
 * callers: always begin with the defaults function.
 */
#ifndef GYRE_H
#define GYRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GYRE_API __attribute__((visibility("default")))

/* ---- status --------------------------------------------------------------------------------------------------------
 */

typedef enum gyre_status {
    GYRE_OK = 0,
    GYRE_AGAIN = 1, /* not now: nothing changed, try later */
    GYRE_DONE = 2,  /* nothing is left to do */

    /* One request is lost, or this call did nothing. */
    GYRE_E_ARG = -1,         /* a value that the caller gave is wrong */
    GYRE_E_LIMIT = -2,       /* it can never fit: context, KV pool */
    GYRE_E_CANCELLED = -3,   /* somebody asked for it to stop */
    GYRE_E_NUMERIC = -4,     /* the model's output is NaN, or leaves no token to choose */
    GYRE_E_UNSUPPORTED = -5, /* understood and deliberately not honoured */

    /* A worker or a connection is lost. */
    GYRE_E_PEER = -32,
    GYRE_E_TIMEOUT = -33,

    /* The model or the engine cannot go on (from gyre_submit: this call could not). */
    GYRE_E_NOMEM = -64,
    GYRE_E_IO = -65,     /* a file cannot be opened, read or mapped */
    GYRE_E_FORMAT = -66, /* a file is not what it must be */
    GYRE_E_DEVICE = -67,
    GYRE_E_BUG = -68 /* an internal promise was broken */
} gyre_status;

typedef enum gyre_group { GYRE_GROUP_NONE, GYRE_GROUP_REQUEST, GYRE_GROUP_PEER, GYRE_GROUP_ENGINE } gyre_group;
GYRE_API gyre_group gyre_status_group(gyre_status s); /* what is lost */
GYRE_API const char *gyre_status_name(gyre_status s); /* "bad_argument", ...; static */

/* A sentence for a person: which file or field, what was found, what was expected. Caller's memory; every `err` below
 * may be NULL and is written only when the call fails or says GYRE_AGAIN. */
typedef struct gyre_err {
    gyre_status status;
    char msg[1024];
} gyre_err;

GYRE_API const char *gyre_version(void); /* "0.1.0"; static */

/* ---- open ----------------------------------------------------------------------------------------------------------
 */

typedef struct gyre gyre;

typedef struct gyre_options { /* strings are read during gyre_open only */
    size_t size;              /* of this struct, set by gyre_options_default */

    const char *dtype; /* of activations, and of KV (see kv_dtype): "auto" (the dtype of most weights; default), "f32",
                          "bf16" */
    const char *backend; /* "auto" (cpu where the processor can, else ref; default), "cpu", "ref" (plain C, slow),
                            "cuda", "cuda:N" (needs libgyre_cuda.so beside the program or library). With workers
                            also a list, "cuda:0,cuda:1": their GPUs in the order prefill, decode, hybrid, from the
                            first again where workers are more; "cuda": each has the GPU of its own number */
    int32_t threads;     /* compute threads, the driving one included; 0 = physical cores (default) */

    int32_t max_rows;  /* tokens of one batch; 256 */
    int32_t max_seqs;  /* choices that run at once; 16 */
    int32_t max_queue; /* choices beyond these that may wait, or wait to be polled; then GYRE_AGAIN; 1024 */
    int32_t max_len;   /* longest prompt + output; 0 = the model's context, or what the KV pool holds if that is less */
    int32_t max_loops; /* deepest depth a request may ask for; 0 = the trained depth (default), more is forced here */

    int32_t prefix_cache;  /* 1: prompts that begin alike share their KV (default); 0: no */
    const char *kv_layout; /* "last_exited" (default), "shared", "cyclic:K" */
    /* Size of the KV pool: the first of these that is not 0, else a fraction of the free memory. */
    int32_t kv_blocks; /* blocks of 16 tokens at one depth */
    size_t kv_bytes;
    double kv_fraction; /* (0, 1]; 0.9 */
    size_t park_bytes;  /* memory for the KV of preempted choices; 1 GiB; 0: they are computed again */

    const char *policy;    /* "fcfs" (default), "priority" */
    int32_t prefill_chunk; /* prompt tokens of one request before the next one's turn; 128 */
    double prefill_share;  /* of a pass for prompts while others decode, (0, 1]; 0.5 */
    int32_t fuse_loops;    /* passes of one step while no token is due; 1 = none fused */

    const char
        *reserve;     /* "grow" (default): KV is taken as a choice needs it; "full": for its whole life at admission */
    double watermark; /* [0, 0.5]: share of the blocks that admission leaves free; 0.01 */
    const char *preempt;  /* who makes room: "park" (to host memory while there is room, else recompute; default),
                             "recompute" */
    int32_t no_refill;    /* 1: a batch runs to its end before the next is admitted; 0 (default) */
    int32_t min_coda;     /* rows that wait for the LM head before it runs; 1 (default) */
    size_t grammar_bytes; /* of compiled grammars and of their masks, each, that are kept for later requests; 64 MiB */

    /* Worker processes; all 0 (default): the engine runs in this process. Sizes above are then each worker's; events
     * and outputs are the same. `prefill` of them compute prompts, `decode` go on from there, `hybrid` do both: at
     * least one of each kind of work is needed. docs/pd.md. */
    int32_t prefill, decode, hybrid;
    int32_t local_prefill_below;    /* shorter prompts (tokens) are computed where they are decoded; 0 = none */
    int32_t worker_start_ms;        /* how long a worker may take until it is ready; 300,000 */
    const char *worker_program;     /* the program gyre; NULL = this program's own file, which must then be gyre */
    const char *const *worker_args; /* NULL-terminated: further options of `gyre worker`; NULL = none */
    size_t transfer_chunk_bytes, transfer_inflight_bytes; /* flow control between workers; 256 MiB, 2 GiB */
    int32_t transfer_descriptors;                         /* 256 */

    /* Workers on other hosts instead (gyre worker --listen), which may join and leave at any time: named by a file with
     * one HOST:PORT a line, which is read again when it changes, or by an etcd cluster where they publish themselves.
     * NULL (default): none. How large their pools are, how long a sequence may be and how deep a request may go is then
     * theirs to say: of the options above only max_seqs and max_queue (requests that may be here), max_len (if it is
     * less), policy, local_prefill_below, local_prefill_queue and worker_start_ms (until one of each kind of work is
     * ready) count. While nobody decodes, requests wait. Somebody must drive: one who does not for longer than
     * peer_timeout_ms loses them. */
    const char *peers;       /* the file */
    const char *etcd;        /* "http://10.0.0.1:2379,..." */
    const char *cluster;     /* which of etcd's; "default" */
    const char *secret_file; /* of 16 bytes or more, the same for all; only its owner may read it */
    int32_t peer_timeout_ms; /* a host that answers nothing for so long is lost; 5000 */

    /* Prompts are computed where they are decoded while more tokens than this wait for the least busy worker that
     * computes prompts; 0 = none for that (default). Workers of this host or of others. */
    int32_t local_prefill_queue;

    /* Asked ten times a second while gyre_open waits for workers; not 0: it gives up, GYRE_E_CANCELLED. NULL: never. */
    int (*should_stop)(void *user);
    void *should_stop_user;

    /* What weight matrices are held in: "auto" (as the file has them; default), "bf16", or in fewer bits, made while
     * loading: "fp8" (E4M3, a scale for each row), "int8" and "int4" (groups of 32 with a scale each, and integer
     * products: inputs are rounded to 8 bits too), "int8-channel" (a scale for each row, integer products). They change
     * results; docs/quantised.md says by how much. The embedding, norms and the exit gate stay as they are, the LM head
     * too without weights_head. */
    const char *weights;
    int32_t weights_head; /* 1: the head too; 0 (default) */

    /* Whether the processor's products read weights from copies made while loading, which is faster, or where the files
     * are mapped: "auto" (copies where they take at most half of the free memory; default), "on", "off". Results are
     * the same. Copies take the room of the weights in memory of the process; pages of the files are then not kept. */
    const char *pack;

    /* What K and V are held in: "auto" (dtype; default), "f32", "bf16" (where dtype is that), or "int8": 8 bits with a
     * scale for each token, depth, layer and head, about half the bytes of BF16. It changes results
     * (docs/quantised.md). */
    const char *kv_dtype;

    /* A file that keeps what is made while loading (weights in fewer bits, copies for products), so that the next start
     * reads it instead: "off" (default), "auto" (in the model's folder), "auto:FOLDER" (in FOLDER where the model's
     * cannot be written), or its path. About as large as the weights. One that does not fit is written anew; results
     * are the same. */
    const char *pack_cache;

    /* Whether compute threads are bound to physical cores: "auto" (default: where there are several NUMA nodes), "on",
     * "off". The thread that steps is never bound, nor are more threads than cores, nor workers, which share them. */
    const char *pin;

    /* A file of CA certificates (PEM), one of which must have signed that of an etcd over https; NULL: the system's
     * (default). */
    const char *etcd_ca;
} gyre_options;

GYRE_API void gyre_options_default(gyre_options *o, size_t size); /* size: sizeof *o */

/* Reads the model folder (config.json, *.safetensors, a tokenizer if there is one), takes all memory of the engine and
 * starts nothing. o may be NULL: defaults. On failure *out is untouched and nothing stays behind. Weights stay mapped:
 * the files must not change while the handle lives. */
GYRE_API gyre_status gyre_open(const char *dir, const gyre_options *o, gyre_err *err, gyre **out);

/* Stops the thread if one runs, drops unfinished requests without further events, frees everything. Accepts NULL. Not
 * inside a callback; no other call on g may be in progress or follow. */
GYRE_API void gyre_close(gyre *g);

typedef struct gyre_info { /* constant; lives as long as the handle */
    const char *family;    /* "ouro", "huginn", "nanbeige" */
    const char *dtype, *backend;
    int32_t n_vocab;
    int32_t n_loop;    /* trained depth */
    int32_t max_loops; /* deepest that a request may ask for */
    int32_t max_len;   /* longest prompt + output */
    int32_t has_gate, has_tokenizer;
    const int32_t *eos; /* [n_eos] ids that end a text unless ignore_eos */
    int32_t n_eos;
    size_t kv_bytes, kv_token_bytes; /* of the pool; of one token at full depth */
    int64_t kv_tokens;               /* full-depth tokens that the pool holds */
    const char *kv_limit;            /* what decided its size: "memory", "kv_blocks", ... */
    size_t park_bytes, workspace_bytes, weight_bytes;
    const char *plan;     /* what takes how much memory and what limits, a line for a person; "" with workers */
    const char *weights;  /* gyre_options.weights; "auto" with workers on other hosts */
    const char *kv_dtype; /* "f32", "bf16", "int8" */
} gyre_info;
GYRE_API const gyre_info *gyre_get_info(const gyre *g);

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

typedef struct gyre_event gyre_event;
typedef struct gyre_bias {
    int32_t id;
    float bias; /* added to the logit, -100..100 */
} gyre_bias;
typedef struct gyre_string {
    const char *s; /* [n] bytes */
    size_t n;
} gyre_string;

/* ---- what an output must be ---- */

typedef enum gyre_grammar_kind {
    GYRE_GRAMMAR_REGEX,       /* the whole text matches */
    GYRE_GRAMMAR_JSON_SCHEMA, /* a JSON text that the schema describes */
    GYRE_GRAMMAR_JSON_OBJECT, /* any JSON object; text is not read */
    GYRE_GRAMMAR_EBNF         /* in the manner of GBNF, first rule "root" */
} gyre_grammar_kind;
typedef struct gyre_grammar gyre_grammar;

/* Any thread; takes bounded time and memory (docs/api.md has the limits and what each language offers). Compiled once
 * for a text as long as gyre_options.grammar_bytes has room for it. GYRE_E_ARG: not a sentence of its language, or this
 * model has no tokenizer; GYRE_E_UNSUPPORTED: a construct that is refused by name; GYRE_E_LIMIT. The text need not be
 * NUL-terminated and is not kept. */
GYRE_API gyre_status gyre_grammar_compile(gyre *g, gyre_grammar_kind kind, const char *text, size_t n, gyre_err *err,
                                          gyre_grammar **out);
GYRE_API void gyre_grammar_release(gyre_grammar *m); /* accepts NULL; any thread, also after gyre_close */

typedef struct gyre_request { /* everything is copied by gyre_submit */
    size_t size;              /* of this struct, set by gyre_request_default */

    /* Either text or ids. Text gets the tokens that the model's tokenizer puts around it (bos). */
    const char *prompt; /* [n_prompt] bytes; NULL: prompt_ids count */
    size_t n_prompt;
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    int32_t n_prompt_ids;
    int32_t plain_prompt; /* 1: spellings of special tokens inside the text are plain text; 0: they become their ids */

    int32_t max_tokens; /* outputs of a choice; 16; 0 = as many as max_len leaves */
    int32_t min_tokens; /* before so many outputs nothing may end the text; 0 */
    int32_t n;          /* choices, 1..128; they share the prompt's KV; 1 */

    float temperature;                                             /* 0 = greedy (default) */
    int32_t top_k;                                                 /* 0 = off */
    float top_p;                                                   /* (0, 1]; 1 = off */
    float min_p;                                                   /* [0, 1); 0 = off */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0 = off */
    const gyre_bias *bias;                                         /* [n_bias], distinct ids */
    int32_t n_bias;
    int32_t has_seed; /* 0: a seed is drawn and reported by the finish event; 1: seed counts */
    uint64_t seed;

    int32_t logprobs;        /* -1 = none (default); 0 = of the chosen token; up to 20 alternatives */
    int32_t prompt_logprobs; /* likewise, for prompt tokens */
    int32_t want_gates;      /* 1: the gate's value after each loop, in token events */

    /* Depth: "fixed" (default), "gate", "gate_delayed", "select", "latent", "kl", "entropy", "argmax", "trace". */
    const char *exit;
    double exit_threshold;  /* NaN (default): the rule's own, where it has one */
    int32_t min_loops;      /* 0 = the rule's own */
    int32_t max_loops;      /* 0 = the trained depth */
    int32_t exit_on_prompt; /* 1: prompt tokens obey the rule too */
    const int32_t *trace;   /* [n_trace] loops of each output, for "trace" */
    int32_t n_trace;

    int32_t ignore_eos;
    const int32_t *stop_ids; /* [n_stop_ids] further ids that end the text */
    int32_t n_stop_ids;
    const gyre_string *stop; /* [n_stop] strings that end the text and are not part of it */
    int32_t n_stop;

    int32_t latent_noise; /* Huginn: 1 = the initial state is noise of latent_seed, 0 = zero */
    uint64_t latent_seed;

    int32_t priority;       /* lower runs sooner, under the priority policy */
    int32_t no_cache;       /* 1: neither read nor fill the prefix cache */
    const char *cache_salt; /* [n_cache_salt]; only requests with the same one share prefixes */
    int32_t n_cache_salt;

    /* NULL: events are kept for gyre_poll. Else called for each event, inside the step, by the thread that drives; it
     * may call what any thread may call, must not wait, and the event dies when it returns. */
    void (*on_event)(void *user, const gyre_event *ev);
    void *user; /* given back in each event */

    /* What the output must be (gyre_grammar_compile); NULL: anything. gyre_submit takes a reference of its own. The
     * text ends when it is complete and nothing can follow, or by eos, which is drawn only where it is complete. */
    const gyre_grammar *grammar;
    /* The grammar holds for what follows the first appearance of this text in the output ("</think>"); until then
     * anything goes. n 0: from the first token on. */
    gyre_string grammar_after;

    /* Milliseconds from gyre_submit on, 0 (default): any. Then each choice that has not finished does so with
     * GYRE_FINISH_ERROR and GYRE_E_TIMEOUT; what it had said stands. */
    int64_t timeout_ms;
} gyre_request;

GYRE_API void gyre_request_default(gyre_request *r, size_t size); /* size: sizeof *r */

/* Checks everything and queues a copy; the request joins the engine before its next step. Memory for all its events is
 * taken here. Errors name the field, and then no event follows. GYRE_AGAIN: too many choices wait (or are not polled).
 * *id_out: never 0, never used again. */
GYRE_API gyre_status gyre_submit(gyre *g, const gyre_request *r, gyre_err *err, uint64_t *id_out);

/* Takes effect before the next step: each choice that has not finished does so with GYRE_FINISH_CANCELLED. Ids of
 * finished or unknown requests are ignored. Never fails. */
GYRE_API void gyre_cancel(gyre *g, uint64_t id);

/* ---- events --------------------------------------------------------------------------------------------------------
 */

typedef enum gyre_event_kind {
    GYRE_EVENT_TOKEN,
    GYRE_EVENT_PROMPT, /* prompt_logprobs: one for each prompt token but the first, in order */
    GYRE_EVENT_FINISH  /* exactly one for each choice, its last event */
} gyre_event_kind;

typedef enum gyre_finish_reason {
    GYRE_FINISH_STOP,   /* eos, a stop id, a stop string, or a grammar's text that is complete */
    GYRE_FINISH_LENGTH, /* max_tokens */
    GYRE_FINISH_CANCELLED,
    GYRE_FINISH_ERROR
} gyre_finish_reason;
GYRE_API const char *gyre_finish_name(gyre_finish_reason r); /* "stop", "length", "cancelled", "error"; static */

typedef struct gyre_logprob {
    int32_t id;
    float logprob;
} gyre_logprob;

/* What a request took on workers. D is the one that decodes it; the other one computes its prompt. */
typedef enum gyre_pd_stage {
    GYRE_PD_ADMITTED,          /* it has its places, and its workers were told */
    GYRE_PD_D_RESERVED,        /* D has promised memory */
    GYRE_PD_PREFILL_STARTED,   /* its prompt is computed */
    GYRE_PD_PREFILL_COMPLETED, /* .. was computed */
    GYRE_PD_PREFILL_SUBMITTED, /* .. and all of it is on its way */
    GYRE_PD_D_ACTIVATED,       /* D has all of it */
    GYRE_PD_FIRST_TOKEN,
    GYRE_PD_FINISHED,
    GYRE_PD_STAGES
} gyre_pd_stage;
/* "admitted", "d_reserved", "prefill_started", "prefill_compute_completed", "prefill_submitted", "d_activated",
 * "first_token", "finished"; static */
GYRE_API const char *gyre_pd_stage_name(gyre_pd_stage s);

typedef struct gyre_pd_cost {
    int32_t n_try;           /* times it was begun; 0: no workers, or it never came to one: all else is 0 */
    int32_t prefill, decode; /* workers of the last time; prefill -1: its prompt was computed where it was decoded */
    /* CLOCK_MONOTONIC, as this process saw it or as durations of another clock lead to it, never falling; 0 = did not
     * happen. */
    int64_t at_ns[GYRE_PD_STAGES];
    int64_t bytes, n_transfer,
        n_descriptor; /* that moved between the two; pieces, and copies that these consisted of */
    /* Time inside the calls that send, from the first piece to the last byte, and from the end of computing to the last
     * byte; the part of the pieces' time in which the sender computed, and the bytes and pieces that it is of. 0 unless
     * is_measured: the sender had told before the last choice ended. Outputs of a token or two may be faster. */
    int32_t is_measured;
    int64_t post_ns, wire_ns, tail_ns, overlap_ns, overlap_bytes, n_overlap;
} gyre_pd_cost;

typedef struct gyre_finish {
    gyre_finish_reason reason;
    int32_t n_left;    /* choices of the request that go on; 0: this is the request's last event */
    gyre_status error; /* GYRE_OK unless reason is GYRE_FINISH_ERROR */
    const char *message;
    int32_t stop_string; /* index of the one that ended the text, -1 if none did */
    int32_t stop_id;     /* id that ended the text, -1 if none did */
    int32_t n_prompt, n_output;
    int32_t n_cached;                                       /* prompt tokens whose KV was there already */
    int32_t n_preempt;                                      /* times that the choice had to make room */
    uint64_t seed;                                          /* given or drawn: with it as seed the same comes out */
    int64_t submit_ns, admit_ns, first_token_ns, finish_ns; /* CLOCK_MONOTONIC; 0 = did not happen */
    gyre_pd_cost pd;                                        /* workers only */
} gyre_finish;

/* Valid, with all it points to, until the next gyre_poll (events of gyre_poll) or until the callback returns. */
struct gyre_event {
    gyre_event_kind kind;
    uint64_t request;
    void *user;
    int32_t choice;
    int32_t index; /* TOKEN: among the choice's outputs, from 0. PROMPT: position in the prompt */
    int32_t id;    /* the token; -1 in FINISH */
    int32_t loops; /* TOKEN: loops run for it (the first output's: by the prompt's last token) */
    const char
        *text; /* [n_text] what became certain: whole UTF-8 sequences, also NUL-terminated, never NULL. Empty while
                  a stop string or a character may go on. All of a choice's, FINISH included, are its text */
    size_t n_text;
    float logprob;           /* NaN if none was asked for */
    const gyre_logprob *top; /* [n_top] alternatives, most likely first */
    int32_t n_top;
    const float *gates; /* [n_gate] raw gate value after each loop */
    int32_t n_gate;
    const gyre_finish *finish; /* FINISH, else NULL */
};

/* The next event of the requests without a callback; of one request they come in order. Waits up to timeout_ms (0: not
 * at all, negative: as long as it takes). GYRE_AGAIN: there is none. No event is ever lost and the engine never waits
 * for this: a request's events lie in memory taken at its submit, which is freed after its last event was polled. Steps
 * nothing: somebody must drive. */
GYRE_API gyre_status gyre_poll(gyre *g, int timeout_ms, const gyre_event **ev_out);

/* For poll(2) and its kin: readable when events may be there; then call gyre_poll(g, 0, ..) until it says GYRE_AGAIN,
 * which also makes it unreadable. Borrowed; do not read, write or close it. */
GYRE_API int gyre_event_fd(const gyre *g);

/* ---- driving: one of the two at a time -----------------------------------------------------------------------------
 */

/* An own thread steps while there is work and sleeps while there is none. It blocks all signals. */
GYRE_API gyre_status gyre_start(gyre *g, gyre_err *err);
/* Waits for the step that runs, then for the thread's end. Requests stay and go on with the next gyre_start or
 * gyre_step. */
GYRE_API gyre_status gyre_stop(gyre *g, gyre_err *err);

/* One step by hand. GYRE_OK: work was done; GYRE_DONE: nothing is left. GYRE_E_ARG: the thread runs, or a step does.
 * Other errors: the engine is lost, its requests have finished with that error and no new ones are taken (with
 * gyre_start the events tell, and gyre_submit does). */
GYRE_API gyre_status gyre_step(gyre *g, gyre_err *err);

/* ---- what goes on --------------------------------------------------------------------------------------------------
 */

typedef struct gyre_worker_stats {                  /* all 0 without workers */
    int32_t n_worker, n_ready;                      /* processes; of them those that work */
    int32_t n_reserving, n_prefill, n_decode;       /* requests that wait for a place, are computed, are decoded */
    int64_t n_crossed, n_local;                     /* prompts computed for another worker; computed where decoded */
    int64_t n_retry, n_death;                       /* requests begun again; workers that died */
    int64_t xfer_bytes, xfer_ops, xfer_descriptors; /* of prompts that crossed */
    int64_t xfer_failed, xfer_inflight_bytes;
    int64_t xfer_ns, overlap_ns, overlap_bytes; /* time on the wire, of it while the sender computed; bytes then */
    int64_t n_overlap;                          /* and pieces */
    int64_t used_blocks;                        /* of the core's: promised to requests; 0 when none is left */
    char lane[48];                              /* what KV travels over, as UCX names it; "": not known yet */
    int32_t n_decoder;                          /* ready ones that decode; 0: requests wait */
} gyre_worker_stats;

enum { GYRE_STAT_DEPTHS = 64 };
typedef struct gyre_stats {                         /* as of the end of the last step */
    int64_t n_step, n_pass, n_row;                  /* n_row: tokens times loops, of all passes */
    int64_t n_prompt_tok, n_output_tok, n_loop_sum; /* n_loop_sum: loops of all outputs */
    int64_t n_request, n_finish[GYRE_FINISH_ERROR + 1];
    int32_t n_waiting, n_parked, n_running;
    int64_t n_park, n_restore, n_drop, n_recomputed_tok;
    int64_t cache_query_tok, cache_hit_tok, cache_evicted;
    int32_t kv_blocks_free, kv_blocks_cached, kv_blocks_total; /* of the core; cached: can be reclaimed */
    int64_t step_ns, model_ns, sample_ns;                      /* time inside steps, and of it in model and sampler */

    /* Rows of all passes, by depth; those deeper than the last entry are counted there. */
    int64_t n_row_prompt[GYRE_STAT_DEPTHS], n_row_decode[GYRE_STAT_DEPTHS];
    int64_t n_exit[GYRE_STAT_DEPTHS]; /* outputs by loops - 1 */
    /* Blocks of 16 tokens that hold KV, by plane (depth) of the core, and of the boundary; bytes of one block of each.
     */
    int32_t kv_plane_blocks[GYRE_STAT_DEPTHS], kv_boundary_blocks;
    size_t kv_block_bytes, kv_boundary_block_bytes;
    int32_t kv_owned; /* of the core's blocks: in use by running choices; the rest is free or cached */
    int64_t wait_tok; /* prompt tokens of choices that were not admitted yet */
    int64_t grammar_mask_hit, grammar_mask_miss;
    int32_t n_live; /* requests that have not ended */
    gyre_worker_stats worker;
} gyre_stats;
GYRE_API void gyre_get_stats(const gyre *g, gyre_stats *out, size_t size); /* size: sizeof *out */

/* ---- text ----------------------------------------------------------------------------------------------------------
 */

enum {
    GYRE_ADD_SPECIAL = 1u << 0,
    GYRE_PARSE_SPECIAL = 1u << 1
}; /* put bos, eos around it; read <|spellings|> as ids */

/* ids_out: [cap]. *n_out is how many there are; GYRE_AGAIN, and none written, if cap is less. */
GYRE_API gyre_status gyre_tokenize(gyre *g, const char *text, size_t n_text, unsigned flags, gyre_err *err,
                                   int32_t *ids_out, size_t cap, size_t *n_out);
/* The whole text of ids[n_ids], valid UTF-8. text_out: [cap] bytes, with a NUL behind *n_out bytes of text; GYRE_AGAIN,
 * and nothing written, if cap is not more than *n_out. */
GYRE_API gyre_status gyre_detokenize(gyre *g, const int32_t *ids, size_t n_ids, int skip_special, gyre_err *err,
                                     char *text_out, size_t cap, size_t *n_out);

#ifdef __cplusplus
}
#endif
#endif
