/* The reply side of HTTP/1.1: heads, chunk frames, dates. Pure functions into the caller's buffer; no allocation.
 * What goes into a head is checked: a value with a line break in it (an echoed id, say) cannot split a reply.
 */
#ifndef GY_SERVER_HTTP_REPLY_H
#define GY_SERVER_HTTP_REPLY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct gy_http_header {
    const char *name, *value;
} gy_http_header;

typedef enum gy_http_framing {
    GY_HTTP_BY_LENGTH,
    GY_HTTP_BY_CHUNKS,
    GY_HTTP_BY_CLOSE /* HTTP/1.0 streams: the body ends where the connection does */
} gy_http_framing;

typedef struct gy_http_reply_head {
    int status;               /* 100..599 */
    int minor;                /* the client's: 0 for HTTP/1.0 */
    int keep_alive;           /* 0 announces "Connection: close" */
    gy_http_framing framing;  /* 204 and 304 have no body: then no length and no coding is written */
    uint64_t content_length;  /* BY_LENGTH */
    const char *content_type; /* NULL: none */
    const char *date;         /* of gy_http_date; NULL: none */
    const gy_http_header *extra;
    size_t n_extra;
} gy_http_reply_head;

/* Status line, fields, empty line. GY_E_ARG: a name or value that may not be sent, or a field that this function itself
 * writes (Content-Length, Transfer-Encoding, Connection, Content-Type, Date). GY_E_LIMIT: longer than cap. No NUL. */
gy_status gy_http_reply_format(const gy_http_reply_head *r, gy_err *err, char *buf, size_t cap, size_t *len_out);

int gy_http_status_has_body(int status);   /* 0 for 1xx, 204, 304 */
const char *gy_http_reason(int status);    /* static; "Unknown" for codes that gyre does not send */
void gy_http_date(time_t t, char out[30]); /* "Sun, 06 Nov 1994 08:49:37 GMT", NUL-terminated; t from 1970 to 9999 */
int gy_http_value_ok(const char *z);       /* may be a field's value: no control character but tab */

#define GY_HTTP_CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

/* A chunk is: its head, n > 0 bytes, GY_HTTP_CHUNK_END; the body ends with GY_HTTP_LAST_CHUNK. */
enum { GY_HTTP_CHUNK_HEAD_MAX = 18 };
size_t gy_http_chunk_head(size_t n, char out[GY_HTTP_CHUNK_HEAD_MAX]);
#define GY_HTTP_CHUNK_END "\r\n"
#define GY_HTTP_LAST_CHUNK "0\r\n\r\n"

#endif
