/* What handlers call: reading a request, answering it. Calls append bytes and put the connection on the loop's list;
 * they never run callbacks and never free.
 */
#include "server/http_int.h"

#include <stdio.h>
#include <string.h>

enum { REPLY_HEAD_MAX = 8192, BIG_BODY = 16384 };

void gy_http_req_init(gy_http_req *r, gy_http_conn *c) {
    r->conn = c;
    r->phase = GY_HTTP_P_NONE;
    r->framing = GY_HTTP_BY_LENGTH;
    r->has_head = r->no_body = r->keep = 0;
    r->user = NULL;
    r->sent = 0;
    r->path_len = 0;
    gy_http_head_init(&r->head, c->server->opts.body_max);
}

/* ---- reading ---- */

const gy_http_head *gy_http_req_head(const gy_http_req *r) {
    return r->has_head ? &r->head : NULL;
}

const char *gy_http_req_bytes(const gy_http_req *r) {
    GY_CHECK(r->has_head);
    return r->conn->in;
}

const char *gy_http_req_path(const gy_http_req *r, size_t *len_out) {
    *len_out = r->path_len;
    return r->path;
}

const char *gy_http_req_body(const gy_http_req *r, size_t *len_out) {
    GY_CHECK(r->has_head && r->phase != GY_HTTP_P_HEAD);
    *len_out = r->conn->body_len;
    return r->conn->in + r->head.size;
}

int gy_http_req_field(const gy_http_req *r, const char *name, const char **value_out, size_t *len_out) {
    gy_http_span v;
    if (!r->has_head) return 0;
    int n = gy_http_head_find(&r->head, r->conn->in, name, &v);
    if (n > 0) {
        *value_out = r->conn->in + v.off;
        *len_out = v.len;
    }
    return n;
}

void gy_http_req_peer(const gy_http_req *r, char out[64]) {
    gy_http_address(&r->conn->peer, out);
}

void gy_http_req_set_user(gy_http_req *r, void *user) {
    r->user = user;
}

void *gy_http_req_user(const gy_http_req *r) {
    return r->user;
}

uint64_t gy_http_req_sent(const gy_http_req *r) {
    return r->sent;
}

/* ---- answering ---- */

static gy_status end(gy_http_req *r, gy_status st) {
    r->phase = GY_HTTP_P_ENDED;
    gy_http_server_todo(r->conn->server, r->conn);
    return st;
}

/* An unread body would be taken for the next request, so a refusal before it closes. */
static int may_keep(const gy_http_req *r) {
    int is_unread = r->phase == GY_HTTP_P_HEAD && r->head.body != GY_HTTP_BODY_NONE;
    return r->phase != GY_HTTP_P_REFUSED && r->head.keep_alive && !is_unread && !r->conn->server->draining;
}

/* err is not NULL. */
static gy_status put_head(gy_http_req *r, const gy_http_answer *a, size_t len, gy_err *err) {
    char buf[REPLY_HEAD_MAX];
    size_t n = 0;
    r->keep = may_keep(r) && r->framing != GY_HTTP_BY_CLOSE;
    const gy_http_reply_head head = {.status = a->status,
                                     .minor = r->head.minor,
                                     .keep_alive = r->keep,
                                     .framing = r->framing,
                                     .content_length = len,
                                     .content_type = a->content_type,
                                     .date = gy_http_server_date(r->conn->server),
                                     .extra = a->extra,
                                     .n_extra = a->n_extra};
    gy_status st = gy_http_reply_format(&head, err, buf, sizeof buf, &n);
    if (st != GY_OK) return err->status = GY_E_ARG;
    r->no_body |= !gy_http_status_has_body(a->status);
    return gy_http_conn_put(r->conn, buf, n) == 0 ? GY_OK : GY_E_NOMEM;
}

static gy_status put_body(gy_http_req *r, const char *body, size_t len) {
    int failed = len < BIG_BODY ? gy_http_conn_put(r->conn, body, len) : gy_http_conn_put_big(r->conn, body, len);
    r->sent += len;
    if (!failed) return GY_OK;
    return r->conn->gone == 1 + GY_HTTP_GONE_NOMEM ? GY_E_NOMEM : GY_E_PEER;
}

gy_status gy_http_reply(gy_http_req *r, const gy_http_answer *a, const char *body, size_t len, gy_err *err) {
    gy_err own;
    GY_CHECK(r->phase == GY_HTTP_P_HEAD || r->phase == GY_HTTP_P_REFUSED || r->phase == GY_HTTP_P_OPEN);
    if (r->conn->gone) return end(r, gy_err_set(err, GY_E_PEER, "the client is gone"));
    r->framing = GY_HTTP_BY_LENGTH;
    gy_status st = put_head(r, a, len, err ? err : &own);
    if (st == GY_E_ARG) return st;
    if (st == GY_OK && !r->no_body) st = put_body(r, body, len);
    if (st != GY_OK) gy_err_set(err, st, "the reply could not be %s", st == GY_E_NOMEM ? "kept: no memory" : "sent");
    return end(r, st);
}

void gy_http_req_refuse(gy_http_req *r, int status, const char *what) {
    char body[512];
    const gy_http_answer a = {.status = status, .content_type = "application/json"};
    const char *type = status >= 500 ? "server_error" : "invalid_request_error";
    int n = snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}",
                     what, type);
    gy_http_reply(r, &a, body, (size_t)n, NULL);
}

gy_status gy_http_stream_begin(gy_http_req *r, const gy_http_answer *a, gy_err *err) {
    gy_err own;
    GY_CHECK(r->phase == GY_HTTP_P_OPEN);
    if (r->conn->gone) return gy_err_set(err, GY_E_PEER, "the client is gone");
    r->framing = r->head.minor > 0 ? GY_HTTP_BY_CHUNKS : GY_HTTP_BY_CLOSE;
    gy_status st = put_head(r, a, 0, err ? err : &own);
    if (st == GY_OK) r->phase = GY_HTTP_P_STREAM;
    gy_http_server_todo(r->conn->server, r->conn);
    return st;
}

/* Above the mark even after the socket took what it would: the reader cannot keep up. One event may overshoot. */
static int is_slow(gy_http_conn *c) {
    size_t mark = c->server->opts.stream_max;
    if (c->out.len <= mark) return 0;
    gy_http_conn_flush(c);
    return c->out.len > mark;
}

static int put_chunk(gy_http_conn *c, const char *bytes, size_t len) {
    char head[GY_HTTP_CHUNK_HEAD_MAX];
    size_t n = gy_http_chunk_head(len, head);
    return gy_http_conn_put(c, head, n) || gy_http_conn_put(c, bytes, len) || gy_http_conn_put(c, GY_HTTP_CHUNK_END, 2);
}

gy_status gy_http_stream_write(gy_http_req *r, const char *bytes, size_t len) {
    gy_http_conn *c = r->conn;
    GY_CHECK(r->phase == GY_HTTP_P_STREAM);
    if (!c->gone && is_slow(c)) c->gone = 1 + GY_HTTP_GONE_SLOW;
    gy_http_server_todo(c->server, c);
    if (c->gone) return GY_E_PEER;
    if (len == 0 || r->no_body) return GY_OK;
    int failed = r->framing == GY_HTTP_BY_CHUNKS ? put_chunk(c, bytes, len) : gy_http_conn_put(c, bytes, len);
    if (failed) return GY_E_PEER;
    r->sent += len;
    return GY_OK;
}

void gy_http_stream_end(gy_http_req *r) {
    static const char last[] = GY_HTTP_LAST_CHUNK;
    GY_CHECK(r->phase == GY_HTTP_P_STREAM);
    if (r->framing == GY_HTTP_BY_CHUNKS && !r->no_body && !r->conn->gone)
        gy_http_conn_put(r->conn, last, sizeof last - 1);
    end(r, GY_OK);
}

void gy_http_stream_break(gy_http_req *r) {
    GY_CHECK(r->phase == GY_HTTP_P_OPEN || r->phase == GY_HTTP_P_STREAM);
    r->keep = 0;
    end(r, GY_OK);
}
