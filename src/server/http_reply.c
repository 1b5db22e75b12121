/* Reply heads (RFC 9112 2-4, RFC 9110 5.6.7 for dates) and chunk frames (RFC 9112 7.1). */
#include "server/http_reply.h"

#include "server/http_parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    {100, "Continue"},
    {200, "OK"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const char *gy_http_reason(int status) {
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Unknown";
}

int gy_http_status_has_body(int status) {
    return status >= 200 && status != 204 && status != 304;
}

int gy_http_value_ok(const char *z) {
    for (; *z; z++)
        if (((unsigned char)*z < 0x20 && *z != '\t') || *z == 0x7F) return 0;
    return 1;
}

static int name_ok(const char *z) {
    if (!*z) return 0;
    for (; *z; z++)
        if (!gy_http_is_token_char((unsigned char)*z)) return 0;
    return 1;
}

static int is_own(const char *name) {
    static const char *const own[] = {"content-length", "transfer-encoding", "connection", "content-type", "date"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcasecmp(name, own[i]) == 0) return 1;
    return 0;
}

static gy_status check_fields(const gy_http_reply_head *r, gy_err *err) {
    if (r->content_type && !gy_http_value_ok(r->content_type))
        return gy_err_set(err, GY_E_ARG, "reply: Content-Type holds a control character");
    for (size_t i = 0; i < r->n_extra; i++) {
        const gy_http_header *f = &r->extra[i];
        if (!name_ok(f->name)) return gy_err_set(err, GY_E_ARG, "reply: header %zu has no valid name", i);
        if (is_own(f->name)) return gy_err_set(err, GY_E_ARG, "reply: %s is written by the server itself", f->name);
        if (!gy_http_value_ok(f->value))
            return gy_err_set(err, GY_E_ARG, "reply: the value of %s holds a control character", f->name);
    }
    return GY_OK;
}

typedef struct pen {
    char *buf;
    size_t cap, len; /* len > cap: it did not fit */
} pen;

static void put(pen *p, const char *s) {
    size_t n = strlen(s);
    if (p->len > p->cap) return;
    if (n > p->cap - p->len) {
        p->len = p->cap + 1;
        return;
    }
    memcpy(p->buf + p->len, s, n);
    p->len += n;
}

static void put_field(pen *p, const char *name, const char *value) {
    put(p, name);
    put(p, ": ");
    put(p, value);
    put(p, "\r\n");
}

static void put_framing(pen *p, const gy_http_reply_head *r) {
    char number[24];
    if (!gy_http_status_has_body(r->status)) return;
    if (r->framing == GY_HTTP_BY_CHUNKS) put_field(p, "Transfer-Encoding", "chunked");
    if (r->framing != GY_HTTP_BY_LENGTH) return;
    snprintf(number, sizeof number, "%llu", (unsigned long long)r->content_length);
    put_field(p, "Content-Length", number);
}

gy_status gy_http_reply_format(const gy_http_reply_head *r, gy_err *err, char *buf, size_t cap, size_t *len_out) {
    pen p = {buf, cap, 0};
    char line[64];
    GY_CHECK(r->status >= 100 && r->status <= 599);
    GY_TRY(check_fields(r, err));
    snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\n", r->status, gy_http_reason(r->status));
    put(&p, line);
    if (r->date) put_field(&p, "Date", r->date);
    if (r->content_type) put_field(&p, "Content-Type", r->content_type);
    put_framing(&p, r);
    if (!r->keep_alive)
        put_field(&p, "Connection", "close");
    else if (r->minor == 0)
        put_field(&p, "Connection", "keep-alive");
    for (size_t i = 0; i < r->n_extra; i++) put_field(&p, r->extra[i].name, r->extra[i].value);
    put(&p, "\r\n");
    if (p.len > cap) return gy_err_set(err, GY_E_LIMIT, "reply: the head is longer than %zu bytes", cap);
    *len_out = p.len;
    return GY_OK;
}

void gy_http_date(time_t t, char out[30]) {
    static const char day[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char month[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    struct tm tm;
    char text[64];
    gmtime_r(&t, &tm);
    snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", day[tm.tm_wday], tm.tm_mday, month[tm.tm_mon],
             tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
    memcpy(out, text, 29);
    out[29] = '\0';
}

size_t gy_http_chunk_head(size_t n, char out[GY_HTTP_CHUNK_HEAD_MAX]) {
    char digit[16];
    size_t len = 0, i = 0;
    do {
        digit[len++] = "0123456789abcdef"[n & 15];
        n >>= 4;
    } while (n > 0);
    while (len > 0) out[i++] = digit[--len];
    out[i++] = '\r';
    out[i++] = '\n';
    return i;
}
