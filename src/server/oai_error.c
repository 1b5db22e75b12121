/* The table of errors, and gyre's errors put into it. What is not here: which of them a connection survives (`close`
 * says it, http_* does it), and logging.
 */
#include "server/oai_error.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* openai-python and -node retry 408, 409, 429 and 5xx twice: what cannot succeed again says so (x-should-retry). */
typedef struct error_row {
    int http;
    const char *type, *code;
    int retry_after_s, close, no_retry;
    gy_status status;
} error_row;

static const char INVALID[] = "invalid_request_error";
static const char SERVER[] = "server_error";

static const error_row rows[GY_OAI_E_COUNT] = {
    [GY_OAI_E_BAD_REQUEST] = {400, INVALID, NULL, 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_UNSUPPORTED] = {400, INVALID, "unsupported_parameter", 0, 0, 0, GY_E_UNSUPPORTED},
    [GY_OAI_E_CONTEXT] = {400, INVALID, "context_length_exceeded", 0, 0, 0, GY_E_LIMIT},
    [GY_OAI_E_TOO_LARGE] = {400, INVALID, "request_too_large", 0, 0, 0, GY_E_LIMIT},
    [GY_OAI_E_KEY] = {401, "authentication_error", "invalid_api_key", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_FORBIDDEN] = {403, "permission_error", "forbidden", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_MODEL] = {404, INVALID, "model_not_found", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_ROUTE] = {404, INVALID, "unknown_url", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_METHOD] = {405, INVALID, "method_not_allowed", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_DEADLINE] = {408, "timeout_error", "deadline_exceeded", 0, 1, 0, GY_E_TIMEOUT},
    [GY_OAI_E_BODY_SIZE] = {413, INVALID, "body_too_large", 0, 1, 0, GY_E_LIMIT},
    [GY_OAI_E_CONTENT_TYPE] = {415, INVALID, "unsupported_media_type", 0, 0, 0, GY_E_ARG},
    [GY_OAI_E_HEADER_SIZE] = {431, INVALID, "headers_too_large", 0, 1, 0, GY_E_LIMIT},
    [GY_OAI_E_HTTP] = {400, INVALID, "bad_http_request", 0, 1, 0, GY_E_ARG},
    [GY_OAI_E_QUEUE] = {429, "rate_limit_error", "queue_full", 1, 0, 0, GY_E_LIMIT},
    [GY_OAI_E_NUMERIC] = {500, SERVER, "not_a_number", 0, 0, 1, GY_E_NUMERIC},
    [GY_OAI_E_INTERNAL] = {500, SERVER, "internal_error", 0, 0, 0, GY_E_BUG},
    [GY_OAI_E_LOADING] = {503, "unavailable_error", "loading", 5, 0, 0, GY_E_TIMEOUT},
    [GY_OAI_E_DRAINING] = {503, "unavailable_error", "draining", 5, 1, 0, GY_E_CANCELLED},
    [GY_OAI_E_DEAD] = {503, "unavailable_error", "engine_dead", 30, 0, 0, GY_E_DEVICE},
    [GY_OAI_E_BUSY] = {503, "unavailable_error", "busy", 1, 0, 0, GY_E_NOMEM},
    [GY_OAI_E_CANCELLED] = {503, "unavailable_error", "cancelled", 1, 0, 0, GY_E_CANCELLED},
};

gy_status gy_oai_error_set(gy_oai_error *e, gy_oai_error_kind kind, const char *param, const char *fmt, ...) {
    GY_CHECK(kind > GY_OAI_E_NONE && kind < GY_OAI_E_COUNT);
    const error_row *row = &rows[kind];
    *e = (gy_oai_error){.kind = kind, .http = row->http, .retry_after_s = row->retry_after_s, .close = row->close};
    if (param) snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return row->status;
}

/* ---- what gyre says --------------------------------------------------------------------------------------------- */

/* Names of gyre_request that are called otherwise in a body. */
static const char *const renamed[][2] = {
    {"bias", "logit_bias"},       {"stop_ids", "stop_token_ids"}, {"want_gates", "gates"}, {"prompt_ids", "prompt"},
    {"no_cache", "cache_prompt"}, {"plain_prompt", "prompt"},     {"n_prompt", "prompt"},
};

static const char *body_name(const char *name) {
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (!strcmp(name, renamed[i][0])) return renamed[i][1];
    return name;
}

/* gyre's sentences begin with "field: found" or "field of ...". Returns what stands behind the name, or msg. */
static const char *split_field(const char *msg, char *name, size_t cap) {
    size_t n = strspn(msg, "abcdefghijklmnopqrstuvwxyz_");
    name[0] = '\0';
    if (!n || n >= cap || (msg[n] != ':' && msg[n] != '[' && strncmp(msg + n, " of ", 4) != 0)) return msg;
    memcpy(name, msg, n);
    name[n] = '\0';
    return msg + n;
}

static gy_status from_request(gy_oai_error *e, gy_oai_error_kind kind, const char *msg) {
    char name[64];
    const char *rest = split_field(msg, name, sizeof name);
    return gy_oai_error_set(e, kind, name[0] ? body_name(name) : NULL, "%s%s", body_name(name), rest);
}

static gy_status from_limit(gy_oai_error *e, const char *msg) {
    gy_oai_error_kind kind = strstr(msg, "(context)") ? GY_OAI_E_CONTEXT : GY_OAI_E_TOO_LARGE;
    return from_request(e, kind, msg);
}

static gy_status from_inside(gy_oai_error *e, gyre_status s) {
    switch (s) {
    case GYRE_AGAIN:
        return gy_oai_error_set(e, GY_OAI_E_QUEUE, NULL, "too many requests wait; try again later");
    case GYRE_E_CANCELLED:
        return gy_oai_error_set(e, GY_OAI_E_CANCELLED, NULL, "the server ended this request");
    case GYRE_E_NUMERIC:
        return gy_oai_error_set(e, GY_OAI_E_NUMERIC, NULL,
                                "the model's output for this request is not a number or leaves no token to choose");
    case GYRE_E_PEER:
    case GYRE_E_TIMEOUT:
        return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "a worker that held this request was lost; try again");
    case GYRE_E_NOMEM:
        return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later");
    case GYRE_E_DEVICE:
        return gy_oai_error_set(e, GY_OAI_E_DEAD, NULL, "the engine cannot go on");
    default:
        return gy_oai_error_set(e, GY_OAI_E_INTERNAL, NULL, "internal error; the server's log says more");
    }
}

gy_status gy_oai_error_from_status(gy_oai_error *e, gyre_status s, const char *msg) {
    if (!msg || !msg[0]) msg = "the request cannot be served";
    if (s == GYRE_E_ARG) return from_request(e, GY_OAI_E_BAD_REQUEST, msg);
    if (s == GYRE_E_UNSUPPORTED) return from_request(e, GY_OAI_E_UNSUPPORTED, msg);
    if (s == GYRE_E_LIMIT) return from_limit(e, msg);
    return from_inside(e, s);
}

/* ---- on the wire ------------------------------------------------------------------------------------------------ */

const char *gy_oai_error_type(const gy_oai_error *e) {
    return rows[e->kind].type ? rows[e->kind].type : SERVER;
}

const char *gy_oai_error_code(const gy_oai_error *e) {
    return rows[e->kind].code;
}

void gy_oai_error_body(const gy_oai_error *e, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "error");
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "message");
    gy_jw_strz(&w, e->msg);
    gy_jw_key(&w, "type");
    gy_jw_strz(&w, gy_oai_error_type(e));
    gy_jw_key(&w, "param");
    gy_jw_strz(&w, e->param[0] ? e->param : NULL);
    gy_jw_key(&w, "code");
    gy_jw_strz(&w, gy_oai_error_code(e));
    gy_jw_obj_end(&w);
    gy_jw_obj_end(&w);
}

void gy_oai_error_frame(const gy_oai_error *e, gy_str *out) {
    gy_str_puts(out, "data: ");
    gy_oai_error_body(e, out);
    gy_str_puts(out, "\n\n");
}

void gy_oai_error_headers(const gy_oai_error *e, gy_str *out) {
    if (e->retry_after_s > 0) gy_str_printf(out, "Retry-After: %d\r\n", e->retry_after_s);
    if (e->kind == GY_OAI_E_KEY) gy_str_puts(out, "WWW-Authenticate: Bearer\r\n");
    if (e->allow) gy_str_printf(out, "Allow: %s\r\n", e->allow);
    if (rows[e->kind].no_retry) gy_str_puts(out, "x-should-retry: false\r\n");
}
