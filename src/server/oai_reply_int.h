/* Shared by the files of the reply (oai_reply.c, oai_stream.c, oai_body.c, oai_logprobs.c) and nobody else. */
#ifndef GY_SERVER_OAI_REPLY_INT_H
#define GY_SERVER_OAI_REPLY_INT_H

#include "base/vec.h"
#include "server/oai_reply.h"

/* Logprobs of consecutive tokens, as the insides of JSON arrays. Chat fills only `token`, with whole objects. */
typedef struct gy_oai_lp {
    gy_str offset, logprob, token, top;
} gy_oai_lp;

/* Where a token begins, in characters of the text: whole characters before it. The tail is a character under way. */
typedef struct gy_oai_chars {
    int64_t n;
    char tail[4];
    size_t n_tail;
} gy_oai_chars;

typedef struct gy_oai_call { /* one tool call of a choice */
    gy_str id, name, arguments;
} gy_oai_call;

typedef struct gy_oai_choice {
    int32_t n_tok, n_reasoning;
    int started; /* a frame of it was sent */
    int has_tools;
    gyre_finish_reason reason;
    int32_t stop_string, stop_id; /* as in gyre_finish; stop_id only if the client named it */
    uint64_t seed;
    gy_oai_chars chars;
    /* Without stream: what the body will say. */
    gy_str text, reasoning, loops, gates, ids;
    gy_oai_lp lp;
    GY_VEC(gy_oai_call) calls;
} gy_oai_choice;

typedef struct gy_oai_rprompt {
    int32_t *ids; /* [n_ids], NULL unless a reply needs them */
    int32_t n_ids;
    gy_str text; /* echo */
    int32_t n_prompt, n_cached;
    int32_t n_lp; /* entries below, the first (null) one included */
    gy_oai_chars chars;
    gy_oai_lp lp;    /* echo with logprobs */
    gy_str explicit; /* prompt_logprobs */
} gy_oai_rprompt;

struct gy_oai_reply {
    const gy_oai_request *q;
    gy_oai_reply_options o; /* strings of it are dead after create; piece lives */
    int chat, n;            /* n: choices of one prompt */
    int over;               /* nothing is appended any more */
    int32_t n_left;
    int64_t loop_sum;
    gy_oai_choice *choices; /* [n_prompt * n] */
    gy_oai_rprompt *prompts;
    gy_str head;      /* of each frame, up to the choice's index */
    gy_str head_last; /* likewise, with the fingerprint */
    gy_str body_head; /* without stream: up to the list of choices */
    gy_str scratch;
    gy_oai_lp one; /* logprobs of the token in hand */
};

static inline int gy_oai_failed_lp(const gy_oai_lp *lp) {
    return lp->offset.failed | lp->logprob.failed | lp->token.failed | lp->top.failed;
}

/* ---- oai_logprobs.c ---- */

void gy_oai_lp_add(gy_oai_reply *r, gy_oai_lp *lp, gy_oai_chars *at, const gyre_event *ev);
void gy_oai_lp_add_first(gy_oai_reply *r, gy_oai_rprompt *p); /* the token without a probability: null */
void gy_oai_lp_add_prompt(gy_oai_reply *r, gy_oai_rprompt *p, const gyre_event *ev);
void gy_oai_lp_put(const gy_oai_reply *r, const gy_oai_lp *before, const gy_oai_lp *lp, gy_str *out);
void gy_oai_lp_clear(gy_oai_lp *lp);
void gy_oai_lp_free(gy_oai_lp *lp);

/* ---- oai_stream.c ---- */

void gy_oai_stream_token(gy_oai_reply *r, int32_t index, const gyre_event *ev, const gy_oai_delta *d, gy_str *out);
void gy_oai_stream_finish(gy_oai_reply *r, int32_t index, const gy_oai_delta *d, gy_str *out);
void gy_oai_stream_end(gy_oai_reply *r, gy_str *out);

/* ---- oai_body.c ---- */

void gy_oai_body_token(gy_oai_reply *r, int32_t index, const gyre_event *ev, const gy_oai_delta *d);
void gy_oai_body_text(const gy_oai_reply *r, gy_oai_choice *c, const gy_oai_delta *d);
void gy_oai_body_end(gy_oai_reply *r, gy_str *out);

/* ---- shared writers (oai_body.c) ---- */

void gy_oai_put_ids(const int32_t *ids, int32_t n, gy_str *out); /* "1,2,3" */
void gy_oai_put_gates(const gyre_event *ev, gy_str *out);        /* "[0.1,0.9]" */
void gy_oai_put_usage(const gy_oai_reply *r, const gy_oai_usage *u, int details, gy_str *out);
void gy_oai_put_stop(const gy_oai_reply *r, const gy_oai_choice *c, gy_str *out); /* ,"stop_reason":... */
const char *gy_oai_choice_reason(const gy_oai_choice *c);
void gy_oai_put_reasoning(const char *s, size_t n, gy_str *out); /* under both of its names */

#endif
