/* The reply to one request: events of the engine in, bytes of a body or of a stream out.
 *
 * One object per HTTP request; all prompts and choices of it go through it. It does no I/O and knows no sockets: what
 * it appends to `out` is the next piece to send. A stream is made of frames "data: {...}" LF LF, one for each token
 * (also with an empty text), each to be written at once; the role comes with the first token, because clients take the
 * first frame for the time to the first token; "data: [DONE]" LF LF ends it. After an error's frame the server breaks
 * the transfer without the last chunk and without [DONE].
 *
 * Loops: each choice reports `loops`, one entry per token; in a stream each frame has those of its token, so that the
 * lists of all frames put together are the list of the whole reply. The same holds for gates, token_ids and logprobs.
 *
 * Not thread-safe; the thread that polls events owns it. Per token nothing is allocated but growth of `out` (stream).
 */
#ifndef GY_SERVER_OAI_REPLY_H
#define GY_SERVER_OAI_REPLY_H

#include "base/str.h"
#include "gyre.h"
#include "server/oai_error.h"
#include "server/oai_request.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_oai_reply gy_oai_reply;

typedef struct gy_oai_reply_options { /* strings are read during create only */
    const char *id;                   /* "cmpl-..." or "chatcmpl-..." */
    int64_t created_s;                /* Unix time */
    const char *fingerprint;          /* of model and configuration; NULL: null */
    /* The bytes of one token, valid until the next call; NULL or n 0: a token without text. Only called for logprobs.
     */
    const char *(*piece)(void *user, int32_t id, size_t *n_out);
    void *piece_user;
} gy_oai_reply_options;

/* Borrows q, which must outlive the reply. GY_E_NOMEM. */
gy_status gy_oai_reply_create(const gy_oai_request *q, const gy_oai_reply_options *o, gy_oai_reply **out);
void gy_oai_reply_destroy(gy_oai_reply *r); /* accepts NULL */

/* The tokens of a prompt and, for echo, its text; before the first event of that prompt. Copies what it needs. */
gy_status gy_oai_reply_prompt(gy_oai_reply *r, int32_t prompt, const int32_t *ids, int32_t n_ids, const char *text,
                              size_t n_text);

typedef struct gy_oai_tool_delta {
    int32_t index;         /* of the call, from 0; in order */
    const char *id;        /* with the first delta of a call, else NULL */
    const char *name;      /* likewise */
    const char *arguments; /* [n_arguments] */
    size_t n_arguments;
} gy_oai_tool_delta;

/* What a chat's filters made of an event's text, and of the stop string where the client wants to see it; without one
 * the text is the content. */
typedef struct gy_oai_delta {
    const char *content; /* [n_content] */
    size_t n_content;
    const char *reasoning; /* [n_reasoning] */
    size_t n_reasoning;
    const gy_oai_tool_delta *tools; /* [n_tool] */
    int32_t n_tool;
    int32_t is_reasoning; /* this token counts as one of reasoning */
} gy_oai_delta;

/* GY_OK: go on. GY_DONE: the reply is complete, its end is in `out` (a body without stream: all of it). Negative: the
 * reply failed, *e says how; in a stream the error's frame is in `out`, else the error's body. Events after that, or of
 * a request that was cancelled because of it, are swallowed (GY_OK, nothing appended). d may be NULL. */
gy_status gy_oai_reply_event(gy_oai_reply *r, int32_t prompt, const gyre_event *ev, const gy_oai_delta *d, gy_str *out,
                             gy_oai_error *e);

/* Ends the reply from outside: a deadline, a drain, a submit that failed. Appends as above. Once. */
void gy_oai_reply_fail(gy_oai_reply *r, const gy_oai_error *e, gy_str *out);

typedef struct gy_oai_usage {
    int64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, loop_sum;
    int32_t max_output; /* of one choice */
} gy_oai_usage;
void gy_oai_reply_usage(const gy_oai_reply *r, gy_oai_usage *out);

/* "stop", "length", "tool_calls": what a client reads. Cancelled and failed choices have none: they end in an error. */
const char *gy_oai_finish_reason(gyre_finish_reason reason, int has_tools);

#endif
