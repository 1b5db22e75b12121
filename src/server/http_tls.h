/* TLS under a connection: bytes in and out of OpenSSL, over the descriptor that the loop watches.
 *
 * OpenSSL is driven directly, not through libevent's bufferevents: those own the descriptor, read ahead and buffer
 * without our bounds, while here a connection is read only when its state wants bytes, output is counted against one
 * mark, and a peer that left shows as an edge. A BIO of our own passes bytes with MSG_NOSIGNAL and keeps `readable` and
 * `writable` true, so http_conn.c sees recv and send, plain or not.
 *
 * TLS 1.2 and 1.3, http/1.1 by ALPN (a client that offers only others is refused), no renegotiation, no session cache
 * (tickets only), no client certificates. A new connection costs the loop half a millisecond (measured, P-256; RSA
 * more) and 15 KiB while it is idle, which OpenSSL takes from the system and not from base/mem.h; its buffers are given
 * back between records.
 */
#ifndef GY_SERVER_HTTP_TLS_H
#define GY_SERVER_HTTP_TLS_H

#include "base/status.h"

#include <sys/types.h>

typedef struct gy_http_tls gy_http_tls; /* certificate and key of a server; the loop's thread only */
struct gy_http_conn;

/* PEM files: the certificate with what signs it behind it; its key (NULL: in the same file), without a passphrase.
 * Strings are borrowed until close. */
gy_status gy_http_tls_open(const char *cert, const char *key, gy_err *err, gy_http_tls **out);
/* The same files again, for connections from now on. On failure the old ones stay. */
gy_status gy_http_tls_reload(gy_http_tls *t, gy_err *err);
void gy_http_tls_close(gy_http_tls *t); /* accepts NULL; connections may outlive it */

/* Of one connection; attach comes first. */
gy_status gy_http_tls_attach(gy_http_tls *t, struct gy_http_conn *c);
void gy_http_tls_detach(struct gy_http_conn *c,
                        int quietly); /* not quietly: says goodbye if there is room. Again: nothing */

typedef enum gy_http_shake {
    GY_HTTP_SHAKE_WAIT,
    GY_HTTP_SHAKE_DONE,
    GY_HTTP_SHAKE_BAD,
    GY_HTTP_SHAKE_PLAIN /* the client speaks HTTP without TLS */
} gy_http_shake;
gy_http_shake gy_http_tls_shake(struct gy_http_conn *c);

/* As recv and send: bytes; 0 at the end of input; -1 with errno, EAGAIN to wait for an edge. A send that said EAGAIN is
 * repeated with the same bytes, at any address, and perhaps more behind them. */
ssize_t gy_http_tls_recv(struct gy_http_conn *c, void *buf, size_t n);
ssize_t gy_http_tls_send(struct gy_http_conn *c, const void *buf, size_t n);
/* Whether nothing can come any more: an end, a goodbye or an error, with nothing before it. Bytes that came stay. */
int gy_http_tls_is_over(struct gy_http_conn *c);
/* Tells the peer that nothing follows. 0: not out yet, wait for an edge. */
int gy_http_tls_finish(struct gy_http_conn *c);

/* http_tls_files.c: a reference that the caller frees. */
struct ssl_ctx_st;
gy_status gy_http_tls_load(const char *cert, const char *key, gy_err *err, struct ssl_ctx_st **out);

#endif
