/* Connections over TLS. Certificates and keys are read in http_tls_files.c. */
#include "server/http_tls.h"

#include "base/log.h"
#include "base/mem.h"
#include "server/http_int.h"

#include <errno.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

struct gy_http_tls {
    const char *cert, *key;
    SSL_CTX *ctx;
    BIO_METHOD *bio;
};

/* ---- the descriptor, as OpenSSL sees it ---- */

static int bio_read(BIO *b, char *buf, int n) {
    gy_http_conn *c = BIO_get_data(b);
    ssize_t got;
    BIO_clear_retry_flags(b);
    do got = recv(c->fd, buf, (size_t)n, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) BIO_set_retry_read(b);
    if (got == 0) BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    return (int)got;
}

static int bio_write(BIO *b, const char *buf, int n) {
    gy_http_conn *c = BIO_get_data(b);
    ssize_t put;
    BIO_clear_retry_flags(b);
    do put = send(c->fd, buf, (size_t)n, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    if (put < 0 && errno == EAGAIN) {
        c->writable = 0;
        BIO_set_retry_write(b);
    }
    /* A record of 16 KiB counts as sent when all of it is; its parts are progress too. */
    if (put > 0 && c->due == GY_HTTP_DUE_WRITE) gy_http_due_set(c, GY_HTTP_DUE_WRITE);
    return (int)put;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr) {
    (void)num, (void)ptr;
    if (cmd == BIO_CTRL_EOF) return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
    return cmd == BIO_CTRL_FLUSH;
}

static BIO_METHOD *new_method(void) {
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "gyre connection");
    if (m && BIO_meth_set_read(m, bio_read) && BIO_meth_set_write(m, bio_write) && BIO_meth_set_ctrl(m, bio_ctrl))
        return m;
    BIO_meth_free(m);
    return NULL;
}

/* ---- of the server ---- */

gy_status gy_http_tls_open(const char *cert, const char *key, gy_err *err, gy_http_tls **out) {
    gy_http_tls *t = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *t);
    if (!t) return gy_err_set(err, GY_E_NOMEM, "TLS: no memory");
    t->cert = cert;
    t->key = key ? key : cert;
    t->bio = new_method();
    gy_status st =
        t->bio ? gy_http_tls_load(t->cert, t->key, err, &t->ctx) : gy_err_set(err, GY_E_NOMEM, "TLS: no memory");
    if (st != GY_OK) {
        gy_http_tls_close(t);
        return st;
    }
    *out = t;
    return GY_OK;
}

gy_status gy_http_tls_reload(gy_http_tls *t, gy_err *err) {
    SSL_CTX *fresh;
    GY_TRY(gy_http_tls_load(t->cert, t->key, err, &fresh));
    SSL_CTX_free(t->ctx);
    t->ctx = fresh;
    return GY_OK;
}

void gy_http_tls_close(gy_http_tls *t) {
    if (!t) return;
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->bio);
    gy_mem_free(t);
}

/* ---- of a connection ---- */

gy_status gy_http_tls_attach(gy_http_tls *t, gy_http_conn *c) {
    BIO *b = BIO_new(t->bio);
    SSL *ssl = b ? SSL_new(t->ctx) : NULL;
    if (!ssl) {
        BIO_free(b);
        ERR_clear_error();
        return GY_E_NOMEM;
    }
    BIO_set_data(b, c);
    BIO_set_init(b, 1);
    SSL_set_bio(ssl, b, b);
    SSL_set_accept_state(ssl);
    c->tls = ssl;
    return GY_OK;
}

/* After an error nothing may be asked of it but its end. */
static int is_usable(const gy_http_conn *c) {
    return !c->is_tls_bad && SSL_is_init_finished(c->tls);
}

int gy_http_tls_finish(gy_http_conn *c) {
    if (!is_usable(c) || SSL_get_shutdown(c->tls) & SSL_SENT_SHUTDOWN) return 1;
    ERR_clear_error();
    int rc = SSL_shutdown(c->tls);
    if (rc >= 0) return 1;
    if (SSL_get_error(c->tls, rc) == SSL_ERROR_WANT_WRITE) return 0;
    c->is_tls_bad = 1;
    return 1;
}

void gy_http_tls_detach(gy_http_conn *c, int quietly) {
    if (!c->tls) return;
    if (!quietly) gy_http_tls_finish(c);
    SSL_free(c->tls);
    c->tls = NULL;
    ERR_clear_error();
}

static const char *reason(void) {
    const char *s = ERR_reason_error_string(ERR_peek_error());
    return s ? s : "the client left";
}

gy_http_shake gy_http_tls_shake(gy_http_conn *c) {
    ERR_clear_error();
    int rc = SSL_do_handshake(c->tls);
    if (rc == 1) return GY_HTTP_SHAKE_DONE;
    int e = SSL_get_error(c->tls, rc);
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) return GY_HTTP_SHAKE_WAIT;
    c->is_tls_bad = 1;
    c->server->stats.n_shake_failed++;
    if (gy_log_enabled(GY_LOG_DEBUG)) {
        char peer[64], why[128];
        gy_http_address(&c->peer, peer);
        gy_log(GY_LOG_DEBUG, "server", "a TLS handshake failed", "peer=%s reason=%s", peer,
               gy_log_quote(reason(), why, sizeof why));
    }
    return ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST ? GY_HTTP_SHAKE_PLAIN : GY_HTTP_SHAKE_BAD;
}

static ssize_t outcome(gy_http_conn *c, int rc) {
    int e = SSL_get_error(c->tls, rc);
    if (e == SSL_ERROR_ZERO_RETURN) return 0;
    int is_wait = e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE;
    if (!is_wait) c->is_tls_bad = 1;
    errno = is_wait ? EAGAIN : ECONNRESET;
    return -1;
}

int gy_http_tls_is_over(gy_http_conn *c) {
    char byte;
    ERR_clear_error();
    int rc = SSL_peek(c->tls, &byte, 1);
    return rc <= 0 && !(outcome(c, rc) < 0 && errno == EAGAIN);
}

static int at_most(size_t n) {
    return n < INT_MAX ? (int)n : INT_MAX;
}

ssize_t gy_http_tls_recv(gy_http_conn *c, void *buf, size_t n) {
    ERR_clear_error();
    int rc = SSL_read(c->tls, buf, at_most(n));
    return rc > 0 ? rc : outcome(c, rc);
}

ssize_t gy_http_tls_send(gy_http_conn *c, const void *buf, size_t n) {
    ERR_clear_error();
    int rc = SSL_write(c->tls, buf, at_most(n));
    ssize_t put = rc > 0 ? rc : outcome(c, rc);
    /* A goodbye of the peer's side is no end of ours. */
    if (put == 0) errno = ECONNRESET;
    return put == 0 ? -1 : put;
}
