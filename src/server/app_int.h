/* Between the files of the app: app.c (begin, end), app_life.c (time, a lost engine, logs), app_route.c (who may ask
 * for what), app_answer.c (replies, log, counters), app_take.c (a body becomes a request, on the loop or on a lane),
 * app_generate.c (a request becomes work of the engine), app_rule.c (what an output must be), app_events.c (events
 * become bytes), app_info.c (small routes), app_page.c (the page), app_text.c (text and ids), app_chat.c (messages to
 * ids).
 *
 * Life of a gy_app_req:
 *
 *     PREPARING -----all prompts taken by the engine-----> SUBMITTED --first frame--> STREAMING
 *      |  ^  |  |                                           |      |                    |    |
 *      |  |  |  +-- error, or the answer of a text route    |      +-- whole reply, ----+    |
 *      v  |  |                  |                           |          end or error |        |
 *     a lane |                  +--------> DONE <-----------|-----------------------+        |
 *      |     +-- client gone ------------> GONE <-----------+--- client gone ----------------+
 *      +-------- client gone ----------------^
 *
 * While a lane has it (in_work) all but http, phase, call, prev and next is the lane's; the loop gets it back by
 * gy_app_on_work, and only then a request whose client left meanwhile (GONE, is_unwanted) is released. `http` is NULL
 * from DONE or GONE on. The struct lives until the lane gave it back and the engine has told the last event of each
 * prompt (n_live 0): events carry pointers into it. What is given up with prompts alive is cancelled at once.
 */
#ifndef GY_SERVER_APP_INT_H
#define GY_SERVER_APP_INT_H

#include "base/vec.h"
#include "server/app.h"
#include "server/app_work.h"
#include "server/log_writer.h"
#include "server/oai_error.h"
#include "server/oai_metrics.h"
#include "server/oai_reply.h"
#include "server/oai_request.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GY_APP_MAX_TARGET = 512, GY_APP_MAX_ID = 128 };

typedef enum gy_app_state { GY_APP_LOADING, GY_APP_READY, GY_APP_FAILED } gy_app_state;

/* What of a request is needed after its head is gone. */
typedef struct gy_app_call {
    const struct gy_app_route *route; /* NULL: there is none */
    int64_t start_ns, wall_ns;
    size_t bytes_in;
    size_t n_target;
    const char *cors; /* value of Access-Control-Allow-Origin, NULL: no such header; borrowed from the options */
    char id[GY_APP_MAX_ID + 1];
    char peer[64], method[GY_HTTP_METHOD_MAX + 1], target[GY_APP_MAX_TARGET], agent[128];
} gy_app_call;

typedef struct gy_app_req gy_app_req;
typedef struct gy_app_scratch gy_app_scratch; /* app_text.c: what a thread that works on texts has of its own */

typedef struct gy_app_route {
    const char *path; /* a path that ends in "*" is a prefix */
    const char *method, *allow;
    gy_oai_route metric;
    gy_oai_kind kind; /* of the body, POST only */
    int open;         /* no key is asked for */
    int early;        /* answered before the model is there */
    void (*run)(gy_app *a, gy_http_req *r, const gy_app_call *c);
    /* What gy_app_take does to a request that was read: all that takes time. On a lane or on the loop, with the
     * thread's scratch. */
    gy_status (*prepare)(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e);
} gy_app_route;

typedef enum gy_app_phase {
    GY_APP_PREPARING,
    GY_APP_SUBMITTED,
    GY_APP_STREAMING,
    GY_APP_DONE,
    GY_APP_GONE
} gy_app_phase;

/* QUICK: small bodies of messages. SLOW: large bodies and what must be compiled, behind everything else. */
typedef enum gy_app_lane_id { GY_APP_QUICK, GY_APP_SLOW, GY_APP_LANES } gy_app_lane_id;
typedef struct gy_app_chat_out gy_app_chat_out; /* app_chat_out.c: what looks for thoughts and calls in outputs */

typedef struct gy_app_sub { /* one prompt: one request of the engine. Events' `user` */
    gy_app_req *req;
    int32_t prompt;
    int live;
    uint64_t id;
    int64_t submit_ns;
    int64_t *last_ns; /* [n] when the choice's last token came; 0: none yet */
    int32_t max_output;
    gy_vec_i32 ids;   /* until submitted */
    int is_cut;       /* ids are no longer all of the prompt's */
    int64_t wait_tok; /* prompt tokens that count in the app's wait_tok: until its first event */
} gy_app_sub;

struct gy_app_req {
    gy_app_job job; /* the first member: a lane gives it back as this */
    gy_app *app;
    int in_work, is_moving; /* moving: from the quick lane to the slow one */
    gy_app_lane_id lane;
    atomic_int is_unwanted; /* its client left: what a lane has not begun need not be done */
    char *body;             /* to be read by a lane; NULL: q is there, or a lane read it */
    size_t n_body;          /* 0: what is unknown in it was counted already */
    char own_id[32];
    gy_status status; /* of the work; error says more */
    gy_oai_error error;
    gy_str answer; /* of a text route */
    gyre_grammar *grammar;
    gy_http_req *http;
    gy_app_phase phase;
    gy_app_call call;
    gy_oai_request *q;
    gy_oai_reply *reply;
    gy_app_sub *sub; /* [q->n_prompt] */
    int32_t n_live;
    int64_t first_ns;          /* first token of any choice; 0: none yet */
    const char *finish;        /* reason of the last choice that ended */
    gyre_pd_cost pd;           /* of it */
    int in_reasoning;          /* the prompt of a chat ends inside a thought: the output begins there */
    gy_app_chat_out *chat_out; /* NULL: text is content */
    gy_app_req *prev, *next;
};

typedef struct gy_app_model gy_app_model; /* app_text.c: tokenizer and template beside the engine */

/* Prompt tokens that wait for their first output, and how fast such waiting ends. */
typedef struct gy_app_backlog {
    int64_t tok;
    int64_t seen_tok, seen_ns; /* of the engine's counters when they were last looked at */
    double tok_sum, ns_sum;    /* prompt tokens and the time of the steps that had some; old ones fade */
} gy_app_backlog;

struct gy_app {
    gy_app_opts o;
    gy_http_server *http;
    atomic_int state; /* gy_app_state; written by the loading thread */
    gy_err load_err;  /* of GY_APP_FAILED */
    gyre *g;          /* g, model: from GY_APP_READY on */
    gy_app_model *model;
    gy_app_scratch *scratch; /* the loop's */
    gy_app_lane *lane[GY_APP_LANES];
    gy_app_scratch *lane_scratch[GY_APP_LANES];
    gy_app_backlog backlog;
    size_t held_bytes; /* bodies of all in reqs */
    const gyre_info *info;
    pthread_t loader;
    int has_loader, is_serving, is_lost; /* serving: READY was seen by the loop. lost: the engine cannot go on */
    atomic_int n_drain;                  /* times that a drain was asked for */
    atomic_int hangup;
    void (*on_ready)(void *user);
    void *ready_user;
    gy_oai_config cfg;
    gy_oai_metrics *metrics; /* from serving on */
    gy_oai_seen *seen;
    gy_app_req *reqs;
    gy_str out, line; /* scratch of one turn */
    int64_t created_s;
    uint64_t n_id, id_key[2];
    char fingerprint[48];
    char server[32];

    gy_err lost_err;       /* of is_lost */
    int64_t lost_ns;       /* when running requests were told of it; 0: not yet */
    int64_t step, step_ns; /* the engine's last step, and when it was seen or there was no work; -1: a stall was said */
    gy_log_writer *log;    /* of access; NULL: off */
};

/* app.c */
int gy_app_is_ready(const gy_app *a, gy_oai_error *e); /* 0: *e says why a request would not be served */

void gy_app_check_lost(gy_app *a); /* asks the engine; is_lost from then on if it is */

/* app_life.c */
int gy_app_tick_ms(int request_ms); /* how often on_tick must come for that deadline */
void gy_app_on_tick(void *user);
void gy_app_reopen(gy_app *a); /* of SIGHUP */
gy_status gy_app_log_open(gy_app *a, gy_err *err);
void gy_app_log_close(gy_app *a);
void gy_app_log_stats(gy_app *a, gy_log_writer_stats *out); /* zeros without an access log */

/* app_route.c */
void gy_app_on_head(void *user, gy_http_req *r);
void gy_app_on_request(void *user, gy_http_req *r);
void gy_app_on_refused(void *user, gy_http_req *r, int status, const char *what);
void gy_app_new_id(gy_app *a, char *out, size_t cap); /* 24 hex digits; differs each time */

/* app_answer.c: each ends the HTTP request, writes its line of the log and counts it. q may be NULL. */
void gy_app_answer(gy_app *a, gy_http_req *r, const gy_app_call *c, const char *type, const gy_str *body);
/* With headers of its own behind those of each answer. */
void gy_app_answer_as(gy_app *a, gy_http_req *r, const gy_app_call *c, const gy_http_answer *own, const char *body,
                      size_t n);
void gy_app_refuse(gy_app *a, gy_http_req *r, const gy_app_call *c, const gy_oai_error *e, gy_app_req *q);
void gy_app_empty(gy_app *a, gy_http_req *r, const gy_app_call *c); /* 204, of a preflight */
gy_status gy_app_stream_begin(gy_app_req *q);                       /* GY_E_PEER: on_gone follows */
void gy_app_body(gy_app_req *q, const gy_str *body);
void gy_app_note(gy_app *a, const gy_app_call *c, int status, uint64_t sent, gy_app_req *q, const char *error);

/* app_take.c */
gy_status gy_app_lanes_open(gy_app *a, gy_err *err); /* after the model */
void gy_app_lanes_close(gy_app *a);                  /* no request is in_work after it; before requests are released */
void gy_app_take(gy_app *a, gy_http_req *r, const gy_app_call *c); /* each POST's run */
void gy_app_on_work(gy_app *a);                                    /* what lanes have done; after a wake */
void gy_app_release(gy_app_req *q);                                /* not in_work, n_live is 0 */

/* app_generate.c */
gy_status gy_app_generate(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e); /* prepare */
gy_status gy_app_submit(gy_app_req *r, gy_oai_error *e);
void gy_app_started(gy_app_sub *s); /* its first event: its prompt waits no more */
void gy_app_backlog_note(gy_app *a, const gyre_stats *s);
double gy_app_prefill_rate(const gy_app *a); /* prompt tokens a second, lately; 0: not known */

/* app_rule.c: the constraint of r->q becomes r->grammar and that of each run. Any thread. */
gy_status gy_app_constrain(gy_app_req *r, gy_oai_error *e);

/* app_events.c */
void gy_app_on_events(void *user);
void gy_app_on_gone(void *user, gy_http_req *r, gy_http_gone why);
void gy_app_fail(gy_app_req *q, const gy_oai_error *e); /* from outside; q may be freed */
void gy_app_cancel(gy_app_req *q);

/* app_info.c */
void gy_app_list(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_health(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_version(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_openapi(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_models(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_one_model(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_stats(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_metrics(gy_app *a, gy_http_req *r, const gy_app_call *c);

/* app_page.c */
void gy_app_root(gy_app *a, gy_http_req *r, const gy_app_call *c);
void gy_app_page(gy_app *a, gy_http_req *r, const gy_app_call *c);

/* prepare of the text routes: into r->answer */
gy_status gy_app_tokenize(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e);
gy_status gy_app_detokenize(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e);
gy_status gy_app_template(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e);

/* app_text.c */
gy_status gy_app_model_open(const gy_app_opts *o, int has_tokenizer, gy_err *err, gy_app_model **out);
void gy_app_model_close(gy_app_model *m); /* accepts NULL */
/* After the model. */
gy_status gy_app_scratch_open(gy_app *a, gy_err *err, gy_app_scratch **out);
void gy_app_scratch_close(gy_app_scratch *t); /* accepts NULL; before the model */
/* A token as it reads in the middle of a text. user: gy_app_scratch. Valid until the next call. */
const char *gy_app_piece(void *user, int32_t id, size_t *n_out);
/* Both append. */
gy_status gy_app_encode(gy_app *a, const char *text, size_t n, unsigned flags, gy_oai_error *e, gy_vec_i32 *ids);
gy_status gy_app_decode(gy_app *a, const int32_t *ids, size_t n, int skip_special, gy_oai_error *e, gy_str *out);
/* Prompt i of q, special tokens and truncation included. */
gy_status gy_app_prompt(gy_app *a, const gy_oai_request *q, int32_t i, gy_oai_error *e, gy_vec_i32 *ids, int *is_cut);

/* app_chat.c. Both append. in_reasoning (may be NULL): 1 if the prompt ends with a "<think>" of the template's. */
gy_status gy_app_chat_text(gy_app *a, const gy_oai_request *q, gy_oai_error *e, gy_str *out);
gy_status gy_app_chat_ids(gy_app_scratch *t, const gy_oai_request *q, gy_oai_error *e, gy_vec_i32 *ids,
                          int *in_reasoning);

int gy_app_has_template(const gy_app *a);
int gy_app_chat_says(const gy_app *a, const char *text);  /* the template's own text has it */
int gy_app_chat_reads(const gy_app *a, const char *name); /* a variable of the template */

/* app_chat_out.c */
/* Makes r->chat_out if there is something to look for in r's outputs. After gy_app_chat_ids; any thread. */
gy_status gy_app_chat_out_open(gy_app_req *r, gy_oai_error *e);
void gy_app_chat_out_close(gy_app_chat_out *c); /* accepts NULL */
/* A token or a finish of r, which has a chat_out, in order. *d is valid until the next one. GY_E_NOMEM. */
gy_status gy_app_chat_out_event(gy_app_req *r, const gyre_event *ev, gy_oai_delta *d);
/* The text behind which a constraint holds (gyre_request.grammar_after), "" from the first token on. After the prompt
 * was made; static. A thought that the template did not open is not waited for: it might never come. */
const char *gy_app_chat_trigger(const gy_app_req *r);
/* 1: tool_choice wants a call, so that the output is a JSON text of gy_app_tool_schema. */
int gy_app_wants_call(const gy_oai_request *q);
/* Appends the JSON schema of such a call: {"name": one of the tools, "arguments": by its parameters}. An error (beside
 * a constraint of the request's own) has its param; what the compiler says of the schema belongs to "tools". Any
 * thread. */
gy_status gy_app_tool_schema(const gy_oai_request *q, gy_oai_error *e, gy_str *out);

#endif
