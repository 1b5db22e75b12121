/* Errors as OpenAI's clients read them: a status, and a body {"error":{"message","type","param","code"}}.
 *
 * One table (oai_error.c) says for each kind of error which status, type and code it has and which headers go with it;
 * nobody else chooses a status. Messages are sentences: field, found, expected. What comes from inside the engine is
 * replaced by a fixed sentence, so that no path, address or internal word reaches a client.
 */
#ifndef GY_SERVER_OAI_ERROR_H
#define GY_SERVER_OAI_ERROR_H

#include "base/status.h"
#include "base/str.h"
#include "gyre.h"

#include <stddef.h>

typedef enum gy_oai_error_kind {
    GY_OAI_E_NONE,
    GY_OAI_E_BAD_REQUEST,  /* 400: body, field or value */
    GY_OAI_E_UNSUPPORTED,  /* 400: understood and not honoured */
    GY_OAI_E_CONTEXT,      /* 400 context_length_exceeded */
    GY_OAI_E_TOO_LARGE,    /* 400: can never fit in the KV pool or the queue */
    GY_OAI_E_KEY,          /* 401 + WWW-Authenticate */
    GY_OAI_E_FORBIDDEN,    /* 403: Host or Origin */
    GY_OAI_E_MODEL,        /* 404 model_not_found */
    GY_OAI_E_ROUTE,        /* 404 */
    GY_OAI_E_METHOD,       /* 405 + Allow */
    GY_OAI_E_DEADLINE,     /* 408 */
    GY_OAI_E_BODY_SIZE,    /* 413, then close */
    GY_OAI_E_CONTENT_TYPE, /* 415 */
    GY_OAI_E_HEADER_SIZE,  /* 431, then close */
    GY_OAI_E_HTTP,         /* 400 of the parser, then close */
    GY_OAI_E_QUEUE,        /* 429 + Retry-After */
    GY_OAI_E_NUMERIC,      /* 500: NaN logits of this request; the same again would be the same */
    GY_OAI_E_INTERNAL,     /* 500 */
    GY_OAI_E_LOADING,      /* 503 + Retry-After */
    GY_OAI_E_DRAINING,     /* 503 + Retry-After */
    GY_OAI_E_DEAD,         /* 503 + Retry-After: the engine cannot go on */
    GY_OAI_E_BUSY,         /* 503 + Retry-After: no memory, a peer lost */
    GY_OAI_E_CANCELLED,    /* 503: ended by the server */
    GY_OAI_E_COUNT
} gy_oai_error_kind;

typedef struct gy_oai_error {
    gy_oai_error_kind kind;
    int http;          /* status; 0 without an error */
    int retry_after_s; /* 0: no such header. May be overwritten before the headers are written */
    int close;         /* the connection must end after this answer */
    const char *allow; /* of GY_OAI_E_METHOD: "GET, HEAD"; borrowed. NULL otherwise */
    char param[96];    /* "": null */
    char msg[1024];
} gy_oai_error;

/* Fills e (never NULL) and returns the gy_status of that kind, so that a reader can end with it. param may be NULL. */
gy_status gy_oai_error_set(gy_oai_error *e, gy_oai_error_kind kind, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* What gyre_submit said or a finish event reports. msg is a sentence of gyre's; of request errors it is passed on, with
 * its field's name as it is called in a request body. */
gy_status gy_oai_error_from_status(gy_oai_error *e, gyre_status s, const char *msg);

const char *gy_oai_error_type(const gy_oai_error *e); /* "invalid_request_error", ...; static */
const char *gy_oai_error_code(const gy_oai_error *e); /* static, NULL for null */

void gy_oai_error_body(const gy_oai_error *e, gy_str *out);    /* one line of JSON */
void gy_oai_error_frame(const gy_oai_error *e, gy_str *out);   /* as an event of a stream; then break the transfer */
void gy_oai_error_headers(const gy_oai_error *e, gy_str *out); /* "Name: value\r\n" each, none of Content-* */

#endif
