/* OpenSSL over a descriptor, with an external pre-shared key (RFC 8446, 2.2 and 4.2.11) and fresh Diffie-Hellman keys
 * in each handshake. No certificates, no tickets, no early data, no resumption, one cipher suite. How long a handshake
 * may take is its owner's business. */
#include "pd/chan_tls.h"

#include "base/mem.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/socket.h>

/* A key is good for 2^24.5 records of 16 KiB (RFC 8446, 5.5); ours change long before that. */
enum { RECORDS_OF_KEY = 1 << 18, MAX_CERT_BYTES = 4096, MAX_DISCARD = 1 << 20 };

static const char IDENTITY[] = "gyre 1";
static const unsigned char SUITE[] = {0x13, 0x02}; /* TLS_AES_256_GCM_SHA384 */

struct gy_chan_tls {
    int fd, is_server;
    SSL_CTX *ctx;
    BIO_METHOD *bio;
    SSL *ssl;
    uint8_t key[sizeof(gy_secret)];
    int is_open, wants_write;
    int is_bad;      /* OpenSSL may be asked nothing more */
    int write_errno; /* the descriptor takes nothing more */
    int read_errno;
    int is_pending; /* the last write has to be offered again */
    int n_record;   /* of this key */
};

/* ---- the descriptor, as OpenSSL sees it ---- */

static int bio_read(BIO *b, char *buf, int n) {
    gy_chan_tls *t = BIO_get_data(b);
    ssize_t got;
    BIO_clear_retry_flags(b);
    do got = recv(t->fd, buf, (size_t)n, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(b);
    else if (got < 0)
        t->read_errno = errno;
    if (got == 0) BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    return (int)got;
}

/* A peer that reads nothing more may have left last words: OpenSSL, which gives up on both directions, is not told. */
static int bio_write(BIO *b, const char *buf, int n) {
    gy_chan_tls *t = BIO_get_data(b);
    ssize_t put;
    BIO_clear_retry_flags(b);
    if (t->write_errno) return n;
    do put = send(t->fd, buf, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (put < 0 && errno == EINTR);
    if (put >= 0) return (int)put;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        BIO_set_retry_write(b);
        return -1;
    }
    t->write_errno = errno;
    return n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr) {
    (void)num, (void)ptr;
    if (cmd == BIO_CTRL_EOF) return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
    return cmd == BIO_CTRL_FLUSH;
}

static BIO_METHOD *new_method(void) {
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "gyre control channel");
    if (m && BIO_meth_set_read(m, bio_read) && BIO_meth_set_write(m, bio_write) && BIO_meth_set_ctrl(m, bio_ctrl))
        return m;
    BIO_meth_free(m);
    return NULL;
}

/* ---- the key ---- */

static SSL_SESSION *session_of_key(SSL *ssl) {
    const gy_chan_tls *t = SSL_get_app_data(ssl);
    const SSL_CIPHER *suite = SSL_CIPHER_find(ssl, SUITE);
    SSL_SESSION *s = suite ? SSL_SESSION_new() : NULL;
    if (s && SSL_SESSION_set1_master_key(s, t->key, sizeof t->key) && SSL_SESSION_set_cipher(s, suite) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n_id, SSL_SESSION **out) {
    (void)md; /* there is one suite */
    *out = session_of_key(ssl);
    *id = (const unsigned char *)IDENTITY;
    *n_id = sizeof IDENTITY - 1;
    return *out != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t n_id, SSL_SESSION **out) {
    *out = NULL;
    if (n_id != sizeof IDENTITY - 1 || memcmp(id, IDENTITY, n_id)) return 1;
    *out = session_of_key(ssl);
    return *out != NULL;
}

/* ---- life ---- */

static SSL_CTX *new_context(int is_server) {
    SSL_CTX *ctx = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    if (!ctx) return NULL;
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(ctx, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(ctx, MAX_CERT_BYTES);
    /* A server of somebody else would show a certificate: nobody's is trusted. */
    if (!is_server) SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    if (is_server)
        SSL_CTX_set_psk_find_session_callback(ctx, find_key);
    else
        SSL_CTX_set_psk_use_session_callback(ctx, offer_key);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) && SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
        SSL_CTX_set_ciphersuites(ctx, "TLS_AES_256_GCM_SHA384") && SSL_CTX_set_num_tickets(ctx, 0) &&
        SSL_CTX_set_max_early_data(ctx, 0) && SSL_CTX_set_recv_max_early_data(ctx, 0))
        return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

static int attach(gy_chan_tls *t) {
    t->bio = new_method();
    t->ctx = new_context(t->is_server);
    BIO *b = t->bio && t->ctx ? BIO_new(t->bio) : NULL;
    t->ssl = b ? SSL_new(t->ctx) : NULL;
    if (!t->ssl || !SSL_set_app_data(t->ssl, t)) {
        BIO_free(b);
        return 0;
    }
    BIO_set_data(b, t);
    BIO_set_init(b, 1);
    SSL_set_bio(t->ssl, b, b);
    if (t->is_server)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    return 1;
}

gy_status gy_chan_tls_create(int fd, int is_server, const gy_secret *s, gy_err *err, gy_chan_tls **out) {
    gy_chan_tls *t = gy_mem_alloc(GY_MEM_PD, 1, sizeof *t);
    if (!t) return gy_err_set(err, GY_E_NOMEM, "no memory for TLS");
    t->fd = fd;
    t->is_server = is_server;
    t->wants_write = !is_server; /* the client speaks first */
    memcpy(t->key, s->key, sizeof t->key);
    if (!attach(t)) {
        const char *why = ERR_reason_error_string(ERR_peek_error());
        gy_err_set(err, GY_E_NOMEM, "TLS 1.3 cannot be set up: %s", why ? why : "no memory");
        ERR_clear_error();
        gy_chan_tls_destroy(t, 0);
        return GY_E_NOMEM;
    }
    *out = t;
    return GY_OK;
}

/* close() on bytes that nobody read resets a TCP connection, and a reset can overtake the goodbye. */
static void say_goodbye(gy_chan_tls *t) {
    char sink[4096];
    ERR_clear_error();
    if (SSL_shutdown(t->ssl) < 0) return;
    shutdown(t->fd, SHUT_WR);
    for (size_t n = 0; n < MAX_DISCARD;) {
        ssize_t got = recv(t->fd, sink, sizeof sink, MSG_DONTWAIT);
        if (got <= 0) return;
        n += (size_t)got;
    }
}

void gy_chan_tls_destroy(gy_chan_tls *t, int is_whole) {
    if (!t) return;
    if (is_whole && t->is_open && !t->is_bad && !t->write_errno) say_goodbye(t);
    SSL_free(t->ssl);
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->bio);
    ERR_clear_error();
    OPENSSL_cleanse(t->key, sizeof t->key);
    gy_mem_free(t);
}

int gy_chan_tls_is_open(const gy_chan_tls *t) {
    return t->is_open;
}

int gy_chan_tls_wants_write(const gy_chan_tls *t) {
    return t->wants_write;
}

/* ---- what went wrong ---- */

static gy_status gone(const gy_chan_tls *t, int code, gy_err *err) {
    if (code) return gy_err_set(err, GY_E_PEER, "the connection broke: %s", strerrordesc_np(code));
    return gy_err_set(err, GY_E_PEER,
                      t->is_open ? "the other side went away without a goodbye"
                                 : "the other side went away in the TLS handshake");
}

/* The side that checks first is the server, by the client's binder; the client is told by an alert: decrypt_error by
 * RFC 8446, 4.2.11.2, illegal_parameter by OpenSSL 3.0, which has no other use for it between two of us. */
static int is_other_secret(int reason) {
    return reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR ||
           reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
}

static gy_status refuse(const gy_chan_tls *t, gy_err *err) {
    const unsigned long e = ERR_peek_error();
    const int reason = ERR_GET_LIB(e) == ERR_LIB_SSL ? ERR_GET_REASON(e) : 0;
    const char *text = ERR_reason_error_string(e);
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return gone(t, t->read_errno, err);
    if (!t->is_open && is_other_secret(reason)) return gy_err_set(err, GY_E_PEER, "the other side has another secret");
    return gy_err_set(err, GY_E_PEER,
                      t->is_open ? "what came is not what was sent: %s"
                                 : "what came is no TLS handshake of a gyre with a secret: %s",
                      text ? text : "unknown error");
}

/* Of a call that gave rc <= 0. */
static gy_status judge(gy_chan_tls *t, int rc, gy_err *err) {
    const int e = SSL_get_error(t->ssl, rc);
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) return GY_AGAIN;
    if (e == SSL_ERROR_ZERO_RETURN && t->is_open) return GY_DONE;
    t->is_bad = 1;
    t->wants_write = 0;
    gy_status st = e == SSL_ERROR_SSL ? refuse(t, err) : gone(t, t->read_errno, err);
    ERR_clear_error();
    return st;
}

static gy_status end(gy_err *err) {
    return gy_err_set(err, GY_E_PEER, "the TLS connection has ended");
}

/* ---- bytes ---- */

/* A certificate that somebody trusts would do for OpenSSL, not for us. */
static gy_status check_key(gy_chan_tls *t, gy_err *err) {
    if (SSL_session_reused(t->ssl)) return GY_OK;
    t->is_bad = 1;
    return gy_err_set(err, GY_E_PEER, "the other side did not prove that it has the secret");
}

gy_status gy_chan_tls_shake(gy_chan_tls *t, gy_err *err) {
    if (t->is_open) return GY_OK;
    if (t->is_bad) return end(err);
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    t->wants_write = rc != 1 && SSL_want_write(t->ssl);
    if (rc != 1) return judge(t, rc, err);
    GY_TRY(check_key(t, err));
    t->is_open = 1;
    return GY_OK;
}

gy_status gy_chan_tls_read(gy_chan_tls *t, char *to, size_t room, size_t *n, gy_err *err) {
    gy_status st = gy_chan_tls_shake(t, err);
    if (st != GY_OK) return st;
    if (t->is_bad) return end(err);
    ERR_clear_error();
    int rc = SSL_read_ex(t->ssl, to, room, n);
    return rc == 1 ? GY_OK : judge(t, rc, err);
}

static void renew_key(gy_chan_tls *t) {
    if (t->is_pending || t->n_record < RECORDS_OF_KEY) return;
    if (SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED)) t->n_record = 0;
}

gy_status gy_chan_tls_write(gy_chan_tls *t, const char *bytes, size_t len, size_t *n, gy_err *err) {
    gy_status st = gy_chan_tls_shake(t, err);
    if (st != GY_OK) return st;
    if (t->is_bad) return end(err);
    ERR_clear_error();
    renew_key(t);
    int rc = SSL_write_ex(t->ssl, bytes, len, n);
    st = rc == 1 ? GY_OK : judge(t, rc, err);
    t->is_pending = st == GY_AGAIN;
    t->n_record += st == GY_OK;
    if (t->write_errno)
        return gy_err_set(err, GY_E_PEER, "%s",
                          t->write_errno == EPIPE ? "the other side is gone" : strerrordesc_np(t->write_errno));
    return st;
}
