/* What comes back on a call: bytes to events or a whole reply, the end to a verdict with its sentence. */
#include "cli/oai_client_int.h"

#include "base/clock.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *gy_oai_end_name(gy_oai_end e) {
    static const char *const names[GY_OAI_ENDS] = {"done", "cancelled", "unreached", "timeout",   "broken",
                                                   "http", "error",     "malformed", "too_large", "no_memory"};
    return names[e];
}

void oai_call_judge(gy_oai_call *k, gy_oai_end end, const char *fmt, ...) {
    char text[512];
    va_list ap;
    if (k->verdict != GY_OAI_ENDS) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    k->verdict = end;
    oai_put_clean(text, strlen(text), sizeof text, &k->why);
}

/* ---- events ---- */

static int is_error_event(const char *data, size_t len) {
    gy_json *doc = NULL;
    /* Nearly all events stop here: only one that holds the word is worth parsing. */
    if (!memmem(data, len, "\"error\"", 7) || gy_json_parse(data, len, NULL, NULL, &doc) < 0) return 0;
    const gy_jtype t = gy_jv_type(gy_jv_get(gy_json_root(doc), "error"));
    gy_json_free(doc);
    return t != GY_J_NONE && t != GY_J_NULL;
}

static void judge_error_event(gy_oai_call *k, const char *data, size_t len) {
    gy_str s = {0};
    gy_oai_put_error(data, len, &s);
    oai_call_judge(k, GY_OAI_ERROR, "the stream says: %s", gy_str_z(&s));
    gy_str_free(&s);
}

static int on_event(void *call, const char *data, size_t len) {
    gy_oai_call *k = call;
    if (k->done) return 0;
    if (len == 6 && !memcmp(data, "[DONE]", 6)) {
        k->done = 1;
        return 0;
    }
    if (is_error_event(data, len)) {
        judge_error_event(k, data, len);
        return 1;
    }
    if (k->hooks.on_event(k->user, k->last_ns, data, len))
        oai_call_judge(k, GY_OAI_MALFORMED, "an event is not what a server of this API sends: %.200s", data);
    return k->verdict != GY_OAI_ENDS;
}

static int feed_stream(gy_oai_call *k, const char *bytes, size_t n) {
    const int rc = gy_sse_feed(&k->sse, bytes, n, on_event, k);
    if (rc == GY_SSE_TOO_LARGE)
        oai_call_judge(k, GY_OAI_TOO_LARGE, "an event of the stream has more than %zu bytes", k->c->event_max);
    if (rc == GY_SSE_NO_MEMORY) oai_call_judge(k, GY_OAI_NO_MEMORY, "no memory for the reply");
    return rc;
}

/* ---- whole replies ---- */

static int is_good(const gy_oai_call *k) {
    return k->status >= 200 && k->status < 300;
}

static int feed_reply(gy_oai_call *k, const char *bytes, size_t n) {
    if (!is_good(k)) {
        const size_t room = OAI_ERROR_BODY_MAX - k->reply.len;
        gy_str_append(&k->reply, bytes, n < room ? n : room);
    } else if (n > k->c->body_max - k->reply.len) {
        oai_call_judge(k, GY_OAI_TOO_LARGE, "the reply has more than %zu bytes", k->c->body_max);
        return 1;
    } else {
        gy_str_append(&k->reply, bytes, n);
    }
    if (k->reply.failed) oai_call_judge(k, GY_OAI_NO_MEMORY, "no memory for the reply");
    return k->reply.failed;
}

static void call_begun(gy_oai_call *k) {
    const char *type = NULL;
    long status = 0;
    if (k->begun) return;
    curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(k->easy, CURLINFO_CONTENT_TYPE, &type);
    k->begun = 1;
    k->status = (int)status;
    k->is_stream = is_good(k) && k->hooks.on_event && type && !strncasecmp(type, "text/event-stream", 17);
}

size_t oai_call_bytes(char *bytes, size_t size, size_t n, void *call) {
    gy_oai_call *k = call;
    k->last_ns = gy_clock_ns();
    if (k->verdict != GY_OAI_ENDS) return 0; /* libcurl then gives the transfer up */
    call_begun(k);
    const int stop = k->is_stream ? feed_stream(k, bytes, size * n) : feed_reply(k, bytes, size * n);
    return stop ? 0 : size * n;
}

/* A connection that ends within the head is a good transfer to libcurl, with an empty body. */
size_t oai_call_head(char *line, size_t size, size_t n, void *call) {
    gy_oai_call *k = call;
    (void)line;
    k->in_head = size * n > 2;
    return size * n;
}

/* ---- the end ---- */

static gy_oai_end end_of_code(CURLcode code) {
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        return GY_OAI_TIMEOUT;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT:
        return GY_OAI_UNREACHED;
    case CURLE_OUT_OF_MEMORY:
        return GY_OAI_NO_MEMORY;
    case CURLE_UNSUPPORTED_PROTOCOL: /* not HTTP */
    case CURLE_WEIRD_SERVER_REPLY:
        return GY_OAI_MALFORMED;
    default:
        return GY_OAI_BROKEN;
    }
}

static void judge_status(gy_oai_call *k) {
    gy_str s = {0};
    gy_oai_put_error(gy_str_z(&k->reply), k->reply.len, &s);
    oai_call_judge(k, GY_OAI_HTTP, "HTTP %d%s%s", k->status, s.len ? ": " : "", gy_str_z(&s));
    gy_str_free(&s);
}

static void judge_end(gy_oai_call *k, CURLcode code) {
    call_begun(k);
    if (k->done) {
        /* What a server leaves undone after that concerns the connection only. */
        gy_str_clear(&k->why);
        if (k->verdict != GY_OAI_CANCELLED) k->verdict = GY_OAI_DONE;
    } else if (k->verdict != GY_OAI_ENDS) {
        return;
    } else if (k->status && !is_good(k)) {
        judge_status(k);
    } else if (code != CURLE_OK) {
        oai_call_judge(k, end_of_code(code), "%s", k->curl_why[0] ? k->curl_why : curl_easy_strerror(code));
    } else if (k->in_head) {
        oai_call_judge(k, GY_OAI_BROKEN, "the connection ended within the head of the reply");
    } else if (k->is_stream) {
        oai_call_judge(k, GY_OAI_BROKEN, "the stream ended before [DONE]");
    } else if (k->hooks.on_event) {
        oai_call_judge(k, GY_OAI_MALFORMED, "the reply is no stream of events: %.200s", gy_str_z(&k->reply));
    } else {
        k->verdict = GY_OAI_DONE;
    }
}

static int retry_after(const gy_oai_call *k) {
    curl_off_t s = 0;
    if (k->status != 429 && k->status != 503) return -1;
    curl_easy_getinfo(k->easy, CURLINFO_RETRY_AFTER, &s);
    return s > 0 && s < 1 << 30 ? (int)s : -1;
}

void oai_call_tell(gy_oai_call *k, CURLcode code) {
    judge_end(k, code);
    if (k->verdict == GY_OAI_CANCELLED && !k->why.len) gy_str_puts(&k->why, "cancelled");
    const gy_oai_result r = {.end = k->verdict,
                             .http_status = k->status,
                             .retry_after = retry_after(k),
                             .begin_ns = k->begin_ns,
                             .end_ns = k->verdict == GY_OAI_DONE ? k->last_ns : gy_clock_ns(),
                             .body = gy_str_z(&k->reply),
                             .body_len = k->reply.len,
                             .msg = gy_str_z(&k->why)};
    k->hooks.on_end(k->user, &r);
}
