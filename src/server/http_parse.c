/* Strict request heads: request line, fields, framing (RFC 9112 2-6, RFC 9110 5, 7.2, 10.1.1, RFC 3986 2-3).
 *
 * Two levels. next_line finds the end of a line and refuses control bytes, bare CR and bare LF as it goes; take_line
 * reads a whole line. So a fault is always that of the earliest byte or line that has one, however the bytes arrived.
 * Chunked bodies are in http_chunked.c.
 */
#include "server/http_parse.h"

#include "base/str.h"

#include <string.h>

enum { STAGE_FIRST, STAGE_REQUEST, STAGE_FIELDS, STAGE_DONE, STAGE_BAD };

void gy_http_head_init(gy_http_head *h, uint64_t body_max) {
    memset(h, 0, sizeof *h);
    h->body_max = body_max;
}

static gy_http_result head_refuse(gy_http_head *h, int status, const char *what) {
    h->fault = (gy_http_fault){status, what};
    h->stage = STAGE_BAD;
    return GY_HTTP_BAD;
}

static int is_alpha(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int is_digit(unsigned char c) {
    return c >= '0' && c <= '9';
}

static int hex_value(unsigned char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static unsigned char to_lower(unsigned char c) {
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c + 32) : c;
}

int gy_http_is_token_char(unsigned char c) {
    return is_alpha(c) || is_digit(c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

int gy_http_span_is(const char *buf, gy_http_span s, const char *text) {
    return strlen(text) == s.len && memcmp(buf + s.off, text, s.len) == 0;
}

int gy_http_span_is_nocase(const char *buf, gy_http_span s, const char *text) {
    if (strlen(text) != s.len) return 0;
    for (uint32_t i = 0; i < s.len; i++)
        if (to_lower((unsigned char)buf[s.off + i]) != to_lower((unsigned char)text[i])) return 0;
    return 1;
}

int gy_http_head_find(const gy_http_head *h, const char *buf, const char *name, gy_http_span *value_out) {
    int n = 0;
    for (int i = 0; i < h->n_field; i++) {
        if (!gy_http_span_is_nocase(buf, h->field[i].name, name)) continue;
        if (n++ == 0) *value_out = h->field[i].value;
    }
    return n;
}

/* ---- targets ---- */

/* pchar, "/" and "?" of RFC 3986, without "%": that one is checked with its digits. */
static int is_target_char(unsigned char c) {
    return is_alpha(c) || is_digit(c) || (c != '\0' && strchr("-._~!$&'()*+,;=:@/?", c) != NULL);
}

static int is_uri_text(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%') {
            if (!is_target_char((unsigned char)s[i])) return 0;
        } else {
            if (n - i < 3 || hex_value((unsigned char)s[i + 1]) < 0 || hex_value((unsigned char)s[i + 2]) < 0) return 0;
            i += 2;
        }
    }
    return 1;
}

static int has_dot_segment(const char *s, size_t n) {
    for (size_t i = 0, start = 0; i <= n; i++) {
        if (i < n && s[i] != '/') continue;
        size_t len = i - start;
        if ((len == 1 && s[start] == '.') || (len == 2 && s[start] == '.' && s[start + 1] == '.')) return 1;
        start = i + 1;
    }
    return 0;
}

int gy_http_path_decode(const char *path, size_t n, char *out) {
    size_t len = 0;
    if (!is_uri_text(path, n) || n > INT32_MAX) return -1;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)path[i];
        if (c == '%') {
            c = hex_value((unsigned char)path[i + 1]) * 16 + hex_value((unsigned char)path[i + 2]);
            i += 2;
        }
        if (c < 0x20 || c == 0x7F) return -1;
        out[len++] = (char)c;
    }
    if (len == 0) out[len++] = '/';
    if (!gy_utf8_valid(out, len) || has_dot_segment(out, len)) return -1;
    return (int)len;
}

static int is_port(const char *s, size_t n) {
    unsigned port = 0;
    if (n > 5) return 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit((unsigned char)s[i])) return 0;
        port = port * 10 + (unsigned)(s[i] - '0');
    }
    return port <= 65535;
}

/* Length of the host at the start of s: an address in brackets, or letters, digits and the marks that names have in
 * practice. RFC 3986 also lets a registered name hold escapes and sub-delims; no host that can be reached has them. */
static size_t host_length(const char *s, size_t n) {
    size_t i = 0;
    if (n > 0 && s[0] == '[') {
        for (i = 1; i < n && (hex_value((unsigned char)s[i]) >= 0 || s[i] == ':' || s[i] == '.'); i++) {
        }
        return i > 1 && i < n && s[i] == ']' ? i + 1 : 0;
    }
    while (i < n && (is_alpha((unsigned char)s[i]) || is_digit((unsigned char)s[i]) || strchr("-._", s[i]))) i++;
    return i;
}

static int is_authority(const char *s, size_t n) {
    if (memchr(s, '\0', n)) return 0;
    size_t host = host_length(s, n);
    if (host == 0) return 0;
    return host == n || (s[host] == ':' && is_port(s + host + 1, n - host - 1));
}

static size_t scheme_length(const char *buf, gy_http_span t) {
    static const char *const scheme[] = {"http://", "https://"};
    for (int i = 0; i < 2; i++) {
        uint32_t n = (uint32_t)strlen(scheme[i]);
        if (t.len >= n && gy_http_span_is_nocase(buf, (gy_http_span){t.off, n}, scheme[i])) return n;
    }
    return 0;
}

/* target.off + from is where the path begins. The path of every accepted head can be decoded. */
static int split_target(gy_http_head *h, const char *buf, uint32_t from) {
    char decoded[GY_HTTP_LINE_MAX];
    gy_http_span t = h->target;
    uint32_t end = from;
    while (end < t.len && buf[t.off + end] != '?') end++;
    h->path = (gy_http_span){t.off + from, end - from};
    if (end < t.len) h->query = (gy_http_span){t.off + end + 1, t.len - end - 1};
    return is_uri_text(buf + h->query.off, h->query.len) &&
           gy_http_path_decode(buf + h->path.off, h->path.len, decoded) > 0;
}

static int take_absolute(gy_http_head *h, const char *buf) {
    uint32_t from = (uint32_t)scheme_length(buf, h->target), end = from;
    if (from == 0) return 0;
    while (end < h->target.len && !strchr("/?", buf[h->target.off + end])) end++;
    h->host = (gy_http_span){h->target.off + from, end - from};
    h->is_absolute = 1;
    return is_authority(buf + h->host.off, h->host.len) && split_target(h, buf, end);
}

static gy_http_result take_target(gy_http_head *h, const char *buf) {
    int ok;
    if (gy_http_span_is(buf, h->method, "CONNECT")) return head_refuse(h, 501, "CONNECT is not offered");
    if (h->target.len == 0) return head_refuse(h, 400, "the request line has no target");
    if (buf[h->target.off] == '/')
        ok = split_target(h, buf, 0);
    else if (gy_http_span_is(buf, h->target, "*"))
        ok = gy_http_span_is(buf, h->method, "OPTIONS");
    else
        ok = take_absolute(h, buf);
    return ok ? GY_HTTP_DONE : head_refuse(h, 400, "the request target is not a valid path or http URL");
}

/* ---- request line ---- */

static gy_http_result take_version(gy_http_head *h, const char *s, size_t n) {
    if (n != 8 || memcmp(s, "HTTP/", 5) != 0 || !is_digit((unsigned char)s[5]) || s[6] != '.' ||
        !is_digit((unsigned char)s[7]))
        return head_refuse(h, 400, "the request line must end with HTTP/1.1 or HTTP/1.0");
    if (s[5] != '1') return head_refuse(h, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    h->minor = s[7] != '0';
    return GY_HTTP_DONE;
}

/* Exactly: method SP target SP version. The target cannot hold a space, so the last SP is before the version. */
static gy_http_result take_request_line(gy_http_head *h, const char *buf, gy_http_span line) {
    uint32_t at = line.off, end = line.off + line.len;
    while (at < end && gy_http_is_token_char((unsigned char)buf[at])) at++;
    h->method = (gy_http_span){line.off, at - line.off};
    if (h->method.len == 0 || at == end || buf[at] != ' ')
        return head_refuse(h, 400, "the request line must be: method, space, target, space, version");
    if (h->method.len > GY_HTTP_METHOD_MAX) return head_refuse(h, 501, "there is no method with so long a name");
    uint32_t from = ++at;
    while (at < end && buf[at] != ' ') at++;
    if (at == end) return head_refuse(h, 400, "the request line must be: method, space, target, space, version");
    h->target = (gy_http_span){from, at - from};
    if (take_version(h, buf + at + 1, end - at - 1) == GY_HTTP_BAD) return GY_HTTP_BAD;
    if (take_target(h, buf) == GY_HTTP_BAD) return GY_HTTP_BAD;
    h->stage = STAGE_FIELDS;
    return GY_HTTP_MORE;
}

/* ---- fields ---- */

static gy_http_result take_length(gy_http_head *h, const char *buf, gy_http_span v) {
    uint64_t n = 0;
    if (h->n_length++ > 0) return head_refuse(h, 400, "Content-Length was sent twice");
    if (v.len == 0) return head_refuse(h, 400, "Content-Length must be a decimal number");
    for (uint32_t i = 0; i < v.len; i++) {
        unsigned char c = (unsigned char)buf[v.off + i];
        if (!is_digit(c)) return head_refuse(h, 400, "Content-Length must be a decimal number");
        /* Saturates: what does not fit is over any limit. */
        n = n > (UINT64_MAX - 9) / 10 ? UINT64_MAX : n * 10 + (uint64_t)(c - '0');
    }
    h->content_length = n;
    return GY_HTTP_MORE;
}

/* RFC 9112 6.1, 6.3: a last coding other than chunked leaves the length unknown (400); others before it: 501. */
static gy_http_result take_coding(gy_http_head *h, const char *buf, gy_http_span v) {
    static const char last[] = "chunked";
    const uint32_t n = sizeof last - 1;
    if (h->n_coding++ > 0) return head_refuse(h, 400, "Transfer-Encoding was sent twice");
    if (gy_http_span_is_nocase(buf, v, last)) return GY_HTTP_MORE;
    if (v.len > n && gy_http_span_is_nocase(buf, (gy_http_span){v.off + v.len - n, n}, last) &&
        strchr(", \t", buf[v.off + v.len - n - 1]))
        return head_refuse(h, 501, "the only transfer coding understood is chunked, once");
    return head_refuse(h, 400, "Transfer-Encoding must be exactly: chunked");
}

static gy_http_span trim(const char *buf, uint32_t off, uint32_t end) {
    while (off < end && (buf[off] == ' ' || buf[off] == '\t')) off++;
    while (off < end && (buf[end - 1] == ' ' || buf[end - 1] == '\t')) end--;
    return (gy_http_span){off, end - off};
}

static void take_connection(gy_http_head *h, const char *buf, gy_http_span v) {
    uint32_t end = v.off + v.len;
    for (uint32_t from = v.off; from < end;) {
        uint32_t at = from;
        while (at < end && buf[at] != ',') at++;
        gy_http_span option = trim(buf, from, at);
        h->is_close |= gy_http_span_is_nocase(buf, option, "close");
        h->is_keep |= gy_http_span_is_nocase(buf, option, "keep-alive");
        from = at + 1;
    }
}

static gy_http_result take_host(gy_http_head *h, const char *buf, gy_http_span v) {
    if (h->n_host++ > 0) return head_refuse(h, 400, "Host was sent twice");
    if (!is_authority(buf + v.off, v.len)) return head_refuse(h, 400, "Host must be: name or address, optional :port");
    if (!h->is_absolute) h->host = v;
    return GY_HTTP_MORE;
}

static gy_http_result take_expect(gy_http_head *h, const char *buf, gy_http_span v) {
    if (!gy_http_span_is_nocase(buf, v, "100-continue"))
        return head_refuse(h, 417, "the only expectation that can be met is 100-continue");
    h->expect_continue = 1;
    return GY_HTTP_MORE;
}

static gy_http_result note_field(gy_http_head *h, const char *buf, gy_http_field f) {
    if (gy_http_span_is_nocase(buf, f.name, "host")) return take_host(h, buf, f.value);
    if (gy_http_span_is_nocase(buf, f.name, "content-length")) return take_length(h, buf, f.value);
    if (gy_http_span_is_nocase(buf, f.name, "transfer-encoding")) return take_coding(h, buf, f.value);
    if (gy_http_span_is_nocase(buf, f.name, "expect")) return take_expect(h, buf, f.value);
    if (gy_http_span_is_nocase(buf, f.name, "connection")) take_connection(h, buf, f.value);
    return GY_HTTP_MORE;
}

static gy_http_result take_field(gy_http_head *h, const char *buf, gy_http_span line) {
    uint32_t at = line.off, end = line.off + line.len;
    if (buf[at] == ' ' || buf[at] == '\t') return head_refuse(h, 400, "a header field is folded over two lines");
    while (at < end && gy_http_is_token_char((unsigned char)buf[at])) at++;
    if (at == line.off) return head_refuse(h, 400, "a header field has no name");
    if (at == end || buf[at] != ':') return head_refuse(h, 400, "a header field's name must be followed by a colon");
    if (h->n_field == GY_HTTP_FIELD_MAX) return head_refuse(h, 431, "the request has more than 100 header fields");
    gy_http_field f = {.name = {line.off, at - line.off}, .value = trim(buf, at + 1, end)};
    h->field[h->n_field++] = f;
    return note_field(h, buf, f);
}

static gy_http_result finish_head(gy_http_head *h) {
    if (h->n_host == 0 && h->minor > 0) return head_refuse(h, 400, "HTTP/1.1 needs a Host field");
    if (h->n_coding && h->n_length) return head_refuse(h, 400, "Content-Length beside Transfer-Encoding");
    if (h->n_coding && h->minor == 0) return head_refuse(h, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (h->content_length > h->body_max) return head_refuse(h, 413, "the body is longer than this server accepts");
    if (h->n_coding)
        h->body = GY_HTTP_BODY_CHUNKED;
    else if (h->content_length > 0)
        h->body = GY_HTTP_BODY_LENGTH;
    h->keep_alive = !h->is_close && (h->minor > 0 || h->is_keep);
    /* RFC 9110 10.1.1: nothing to wait for without a body, and 1.0 does not know interim replies. */
    if (h->minor == 0 || h->body == GY_HTTP_BODY_NONE) h->expect_continue = 0;
    h->size = h->scan;
    h->stage = STAGE_DONE;
    return GY_HTTP_DONE;
}

/* ---- lines ---- */

static gy_http_result take_line(gy_http_head *h, const char *buf, gy_http_span line) {
    if (h->stage == STAGE_FIELDS) return line.len > 0 ? take_field(h, buf, line) : finish_head(h);
    if (line.len > 0) return take_request_line(h, buf, line);
    if (h->stage == STAGE_REQUEST) return head_refuse(h, 400, "two empty lines where a request should begin");
    h->stage = STAGE_REQUEST;
    return GY_HTTP_MORE;
}

/* Moves scan over buf[.., n). DONE: the line is buf[h->line, h->scan - 2). */
static gy_http_result next_line(gy_http_head *h, const char *buf, uint32_t n) {
    while (h->scan < n) {
        unsigned char c = (unsigned char)buf[h->scan];
        int after_cr = h->scan > h->line && buf[h->scan - 1] == '\r';
        if (after_cr != (c == '\n')) return head_refuse(h, 400, "lines must end with CR LF");
        h->scan++;
        if (after_cr) return GY_HTTP_DONE;
        if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7F)
            return head_refuse(h, 400, "a control character in the request head");
    }
    return GY_HTTP_MORE;
}

/* How many bytes of the current line and head may be looked at. */
static uint32_t scan_end(const gy_http_head *h, size_t len) {
    uint32_t max = GY_HTTP_HEAD_MAX;
    if (h->stage < STAGE_FIELDS) max = h->line + GY_HTTP_LINE_MAX;
    return len < max ? (uint32_t)len : max;
}

static gy_http_result out_of_bytes(gy_http_head *h, uint32_t end) {
    if (h->stage < STAGE_FIELDS && end == h->line + GY_HTTP_LINE_MAX)
        return head_refuse(h, 414, "the request line is longer than 8192 bytes");
    if (end == GY_HTTP_HEAD_MAX) return head_refuse(h, 431, "the request head is longer than 32768 bytes");
    return GY_HTTP_MORE;
}

gy_http_result gy_http_head_parse(gy_http_head *h, const char *buf, size_t len) {
    if (h->stage == STAGE_DONE) return GY_HTTP_DONE;
    if (h->stage == STAGE_BAD) return GY_HTTP_BAD;
    for (;;) {
        uint32_t end = scan_end(h, len);
        gy_http_result r = next_line(h, buf, end);
        if (r == GY_HTTP_MORE) return out_of_bytes(h, end);
        if (r == GY_HTTP_DONE) {
            gy_http_span line = {h->line, h->scan - 2 - h->line};
            h->line = h->scan;
            r = take_line(h, buf, line);
        }
        if (r != GY_HTTP_MORE) return r;
    }
}
