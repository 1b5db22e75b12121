/* The request side of HTTP/1.1 (RFC 9112), strictly, as pure functions on bytes: no socket, no allocation, no clock.
 *
 * A head is parsed in the caller's buffer: spans are offsets into it, so the buffer may grow and move between calls.
 * The answer does not depend on how the bytes arrived: each prefix of a message gives MORE or the message's own answer.
 * What two parties could read in two ways is refused, even where the RFC lets a recipient repair it: bare LF or CR,
 * folded lines, space before a colon, a second Content-Length (even an equal one), Content-Length beside
 * Transfer-Encoding, codings other than exactly `chunked`, control bytes anywhere. A refused connection must be closed:
 * where its next request would begin is not known.
 *
 * Deliberately not here: responses (http_reply.h), upgrades, CONNECT (501), multipart, cookies, query parameters.
 */
#ifndef GY_SERVER_HTTP_PARSE_H
#define GY_SERVER_HTTP_PARSE_H

#include <stddef.h>
#include <stdint.h>

enum {
    GY_HTTP_HEAD_MAX = 32768, /* bytes of a head, request line and last CRLF included: more is 431 */
    GY_HTTP_LINE_MAX = 8192,  /* bytes of the request line: more is 414 */
    GY_HTTP_FIELD_MAX = 100,  /* more is 431 */
    GY_HTTP_METHOD_MAX = 32,  /* longer than any method there is: 501 */
    GY_HTTP_EXT_MAX = 16384,  /* bytes of chunk extensions of one body: more is 400 */
    GY_HTTP_TRAILER_MAX = 8192
};

typedef enum gy_http_result {
    GY_HTTP_BAD = -1, /* `fault` says what to answer; final */
    GY_HTTP_MORE = 0, /* right so far */
    GY_HTTP_DONE = 1,
    GY_HTTP_DATA = 2 /* chunked bodies only: some bytes of the body */
} gy_http_result;

typedef struct gy_http_span {
    uint32_t off, len;
} gy_http_span;

typedef struct gy_http_field {
    gy_http_span name, value; /* the value without the white space around it */
} gy_http_field;

typedef struct gy_http_fault {
    int status;       /* 400, 413, 414, 417, 431, 501, 505 */
    const char *what; /* a static sentence that quotes nothing the client sent */
} gy_http_fault;

typedef enum gy_http_body { GY_HTTP_BODY_NONE, GY_HTTP_BODY_LENGTH, GY_HTTP_BODY_CHUNKED } gy_http_body;

/* Everything up to `fault` is set when DONE, `fault` when BAD. */
typedef struct gy_http_head {
    gy_http_span method, target; /* as sent */
    gy_http_span path, query;    /* parts of target; path has len 0 for "http://host" and "*"; query without "?" */
    gy_http_span host; /* the authority that counts: the target's in absolute form, else Host. 1.0: may be empty */
    int minor;         /* 0 for HTTP/1.0, 1 for 1.1 and later minors */
    gy_http_body body;
    uint64_t content_length; /* of BODY_LENGTH */
    int keep_alive;          /* the client is willing to go on after this request */
    int expect_continue;     /* the client waits for "100 Continue" before it sends the body */
    uint32_t size;           /* bytes of the head: the body begins there */
    int n_field;
    gy_http_field field[GY_HTTP_FIELD_MAX];

    gy_http_fault fault;

    /* Only for http_parse.c: how far it has come, what has been seen. */
    uint64_t body_max;
    uint32_t line, scan;
    int stage, n_host, n_length, n_coding, is_close, is_keep, is_absolute;
} gy_http_head;

/* A body announced longer than body_max is 413. */
void gy_http_head_init(gy_http_head *h, uint64_t body_max);

/* buf[0, len) is the message from its first byte; what an earlier call saw must be unchanged. Each byte is looked at
 * once over all calls. One empty line before the request line is skipped. DONE: bytes after h->size are untouched (the
 * body, then whatever was pipelined). Never needs more than GY_HTTP_HEAD_MAX bytes to be sure. */
gy_http_result gy_http_head_parse(gy_http_head *h, const char *buf, size_t len);

/* How many fields have this name (any case); the first one's value in *value_out, untouched when there is none. */
int gy_http_head_find(const gy_http_head *h, const char *buf, const char *name, gy_http_span *value_out);
/* 1 when the span holds exactly `text`; _nocase for ASCII letters of any case. */
int gy_http_span_is(const char *buf, gy_http_span s, const char *text);
int gy_http_span_is_nocase(const char *buf, gy_http_span s, const char *text);

/* Decodes %XX once, for routing and authorisation alike. Refused (-1): a broken escape, a control byte, a result that
 * is not UTF-8, "." or ".." as a segment. An empty path becomes "/". Writes at most max(n, 1) bytes, no NUL; returns
 * how many. The path of a DONE head never fails. `out` may not overlap `path`. */
int gy_http_path_decode(const char *path, size_t n, char *out);

/* A chunked body. Extensions and trailers are checked and dropped. */
typedef struct gy_http_chunked {
    uint64_t left, total, body_max; /* of this chunk; of all chunks begun; the limit: more is 413 */
    uint32_t n_ext, n_trailer;
    int state, n_digit;
    gy_http_fault fault; /* when BAD */
} gy_http_chunked;

void gy_http_chunked_init(gy_http_chunked *d, uint64_t body_max);

/* Reads buf[0, len), the bytes after those used by earlier calls. DATA: data_out is a piece of the body (len > 0): call
 * again with what is left after *used_out. MORE: all were used. DONE: the body ended after *used_out. */
gy_http_result gy_http_chunked_next(gy_http_chunked *d, const char *buf, size_t len, size_t *used_out,
                                    gy_http_span *data_out);

/* tchar of RFC 9110 5.6.2: what methods and field names are made of. */
int gy_http_is_token_char(unsigned char c);

#endif
