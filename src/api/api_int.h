/* Inside the API: what a handle and a request are made of, and who may touch which part of them.
 *
 * Three roles, each played by one thread at a time; any of them may be the same thread:
 *   submitters  gyre_submit, gyre_cancel: any thread, any number
 *   the driver  gyre_step, or the own thread: calls the host (an engine, or workers), writes events
 *   the poller  gyre_poll: reads events
 *
 *   submitter                      driver                                      poller
 *     api_req made, checked
 *     inbox (gy_queue) ----------> the host, live list
 *                                  engine's callbacks: records in q->log
 *                                  end of step: q->state, ready stack -------> event made from the record
 *     slot (ring) <-------------------------------------------------------- last event taken: request freed
 *
 * A request's records lie in q->log, which has room for all of them: nothing is ever overwritten, so driver and poller
 * share only how many there are. q->state = 2 * records written + 1 while the poller knows of the request (it is on the
 * ready stack or in the poller's list). The driver sets it by one exchange per request and step, and does not touch a
 * request again that the poller knew: it may be freed already. The poller takes the low bit away by compare-and-swap
 * when it has read all records; it fails when there is more.
 *
 * Text is made where events are taken: by the poller, or by the driver for requests with a callback. Only a request
 * with stop strings that is polled has its text made twice (watch: the driver must know when to stop).
 */
#ifndef GY_API_API_INT_H
#define GY_API_API_INT_H

#include "api/api_host.h"
#include "base/queue.h"
#include "engine/engine.h"
#include "gyre.h"
#include "sample/stop.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GY_API_MESSAGE = 512, GY_API_CTX = 16 };

typedef struct gy_api_text { /* of one choice; a zeroed one is closed and gives no text */
    gy_detok *detok;         /* NULL without a tokenizer */
    gy_stop *stop;           /* NULL without stop strings */
    gy_str raw, out;         /* out: what became certain with the last token */
    int hit;                 /* a stop string was found */
    size_t which;            /* its index */
    gy_status status;        /* < 0: text was lost */
} gy_api_text;

typedef struct gy_api_choice {
    gy_api_text text;  /* driver (callback) or poller */
    gy_api_text watch; /* driver */
    gyre_finish fin;   /* driver, until its record is published; then the poller */
    char message[GY_API_MESSAGE];
    int done; /* driver: its finish has been recorded */
} gy_api_choice;

typedef struct gy_api_rec {
    gyre_event_kind kind;
    int32_t choice, index, id, loops, n_top, n_gate;
    float logprob;
    /* behind it: gyre_logprob top[n_lp], float gates[n_gate_max] of the request */
} gy_api_rec;

typedef struct gy_api_req {
    struct gyre *g;
    uint64_t id;
    int32_t slot;
    int32_t n; /* choices */
    gy_api_choice *choice;
    void (*on_event)(void *user, const gyre_event *ev);
    void *user;
    int32_t *ends; /* [n_ends] ids that end the text and have none */
    int32_t n_ends;

    gy_request rq; /* for the engine; its pointers are into input, but for the grammar, which is a reference */
    void *input;   /* prompt, ids, trace, bias, salt, grammar_after: until the engine has its copy */
    int64_t submit_ns, deadline_ns; /* 0: none */

    char *log; /* [cap] records of `stride` bytes; with a callback one */
    size_t cap, stride;
    int32_t n_lp, n_gate_max;

    /* driver */
    int32_t engine_id, n_left, cancelled;
    int is_late; /* cancelled because of its deadline */
    size_t n_written;
    int touched; /* in the driver's list of this step */
    struct gy_api_req *touch_next, *live_next, *live_prev;

    _Atomic size_t state;
    struct gy_api_req *next; /* ready stack, then the poller's list */

    /* poller */
    size_t n_read, n_seen;
} gy_api_req;

typedef struct gy_api_slot {
    _Atomic uint64_t issued; /* id of the latest request here */
    _Atomic uint64_t cancel; /* largest id that was asked to be cancelled */
    uint64_t round;          /* of whoever took the slot */
    gy_api_req *held;        /* for gyre_close */
} gy_api_slot;

typedef enum gy_api_driver { GY_API_IDLE, GY_API_STEP, GY_API_THREAD, GY_API_STOPPING } gy_api_driver;

struct gyre {
    gy_api_model m;
    gy_api_host *host;
    gyre_info info;
    char plan_text[GY_PLAN_TEXT]; /* info.plan */
    int32_t max_len;              /* of the engine; info's is no more than the pool holds */

    gy_grammar_cache *grammars;
    pthread_mutex_t vocab_lock;
    gy_grammar_vocab *vocab; /* NULL until the first grammar */

    pthread_mutex_t ctx_lock;
    gy_tok_ctx *ctx[GY_API_CTX]; /* idle ones */
    int n_ctx;

    int32_t n_slot; /* requests at most, and choices at most: max_seqs + max_queue */
    gy_api_slot *slot;
    pthread_mutex_t room_lock;
    int32_t *free_slot; /* ring [n_slot] of n_free from free_head on */
    int32_t free_head, n_free;
    int32_t n_choice; /* taken, of n_slot */
    gy_queue *inbox;  /* gy_api_req *. Never full: it has room for every request there can be */
    _Atomic int cancel_any;

    /* driver */
    _Atomic int driver, stop; /* gy_api_driver */
    _Atomic int32_t driver_tid;
    pthread_t thread;
    int wake_fd; /* readable: the thread is to look at `stop` */
    gy_api_req *live, *touched;
    int32_t n_live;
    int64_t due_ns; /* no deadline that is kept here is earlier; 0: there is none */
    gy_err lost;    /* status < 0: the engine is lost; written before lost_set */
    _Atomic int lost_set;
    pthread_mutex_t stats_lock;
    gyre_stats stats;

    _Atomic(gy_api_req *) ready;
    int event_fd;

    /* poller */
    atomic_flag polling;
    gy_api_req *head, *tail, *spent; /* spent: its last event is out, freed by the next poll */
    gyre_event event;
};

/* api_text.c */
gy_status gy_api_text_open(gy_api_text *t, const gy_api_model *m, const gyre_string *stop, int32_t n_stop, gy_err *err);
void gy_api_text_close(gy_api_text *t);
/* What became certain is in t->out. search: stop strings in this token's text count. */
void gy_api_text_push(gy_api_text *t, const gy_tok *tok, int32_t id, int search);
void gy_api_text_end(gy_api_text *t, int search); /* the rest is in t->out */
gy_status gy_api_encode(gyre *g, const char *text, size_t len, unsigned flags, gy_err *err, gy_vec_i32 *ids);

/* api_grammar.c: what the model's tokens stand for, made by the first call. Any thread. */
gy_status gy_api_vocab(gyre *g, gy_err *err, const gy_grammar_vocab **out);

/* api_request.c: everything checked and copied; in nobody's list yet. */
gy_status gy_api_req_create(gyre *g, const gyre_request *r, gy_err *err, gy_api_req **out);
void gy_api_req_free(gy_api_req *q); /* accepts NULL and half-built ones; gives nothing back to g */

/* api_events.c */
gy_verdict gy_api_on_token(void *arg, const gy_token_event *ev);
void gy_api_on_prompt(void *arg, const gy_prompt_event *ev);
void gy_api_on_finish(void *arg, const gy_finish_event *ev);
void gy_api_fail(gy_api_req *q,
                 const gy_err *why); /* driver: every choice that has not finished does, with this error */
void gy_api_publish(gyre *g);        /* driver, end of a step: polled requests' new records */

/* api_drive.c */
void gy_api_live_add(gy_api_req *q);
void gy_api_live_remove(gy_api_req *q);
void gy_api_release(gy_api_req *q); /* its last event is out: memory, slot and choices back */
void gy_api_drive_fini(gyre *g);    /* stops the thread if one runs */
int gy_api_inside_callback(const gyre *g);
void gy_api_mirror_stats(gyre *g); /* what gyre_get_stats says from now on */

/* The engine's error goes out under its public name. */
static inline gyre_status gy_api_status(const gy_err *from, gyre_err *to) {
    if (to) {
        to->status = (gyre_status)from->status;
        __builtin_memcpy(to->msg, from->msg, sizeof to->msg);
    }
    return (gyre_status)from->status;
}

#endif
