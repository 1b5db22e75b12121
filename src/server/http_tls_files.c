/* Certificate and key from PEM files, with errors that say what was found. */
#include "base/file.h"
#include "base/log.h"
#include "server/http_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <string.h>

enum { PEM_MAX_BYTES = 1 << 20, LABEL_BYTES = 64 };

/* The first label of a PEM block ("CERTIFICATE"), or "" without any. */
static void first_label(const char *text, char out[LABEL_BYTES]) {
    static const char mark[] = "-----BEGIN ";
    const char *at = strstr(text, mark);
    size_t n = 0;
    if (at) {
        at += sizeof mark - 1;
        while (n < LABEL_BYTES - 1 && at[n] >= ' ' && at[n] <= '~' && at[n] != '-') n++;
        memcpy(out, at, n);
    }
    out[n] = '\0';
}

static gy_status wrong_block(const char *path, const char *text, const char *want, gy_err *err) {
    char label[LABEL_BYTES];
    first_label(text, label);
    if (!label[0])
        return gy_err_set(err, GY_E_FORMAT, "%s: found no PEM block, expected -----BEGIN %s-----", path, want);
    return gy_err_set(err, GY_E_FORMAT, "%s: found a PEM block %s, expected %s", path, label, want);
}

static gy_status refused(const char *path, const char *what, gy_err *err) {
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    return gy_err_set(err, GY_E_FORMAT, "%s: %s: %s", path, what, why ? why : "not accepted");
}

/* What a client checks too; it is said here, where somebody can act on it. */
static void check_dates(const char *path, const X509 *x) {
    char name[512];
    int late = X509_cmp_current_time(X509_get0_notAfter(x))<0, early = X509_cmp_current_time(X509_get0_notBefore(x))> 0;
    if (late || early)
        gy_log(GY_LOG_WARN, "server", late ? "the TLS certificate has expired" : "the TLS certificate is not valid yet",
               "file=%s", gy_log_quote(path, name, sizeof name));
}

static gy_status use_chain(SSL_CTX *ctx, const char *path, BIO *b, gy_err *err) {
    for (;;) {
        X509 *x = PEM_read_bio_X509(b, NULL, NULL, NULL);
        if (!x) break;
        if (SSL_CTX_add0_chain_cert(ctx, x)) continue;
        X509_free(x);
        return refused(path, "a certificate of the chain", err);
    }
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        return refused(path, "a certificate of the chain", err);
    ERR_clear_error();
    return GY_OK;
}

static gy_status use_cert(SSL_CTX *ctx, const char *path, const char *text, BIO *b, gy_err *err) {
    if (!strstr(text, "-----BEGIN CERTIFICATE-----")) return wrong_block(path, text, "CERTIFICATE", err);
    X509 *x = PEM_read_bio_X509(b, NULL, NULL, NULL);
    if (!x) return refused(path, "the certificate cannot be read", err);
    gy_status st = SSL_CTX_use_certificate(ctx, x) ? GY_OK : refused(path, "the certificate cannot be used", err);
    if (st == GY_OK) check_dates(path, x);
    X509_free(x);
    return st == GY_OK ? use_chain(ctx, path, b, err) : st;
}

/* Without it OpenSSL would ask on the terminal. */
static int no_passphrase(char *buf, int size, int rwflag, void *user) {
    (void)buf, (void)size, (void)rwflag, (void)user;
    return -1;
}

static gy_status use_key(SSL_CTX *ctx, const char *path, const char *text, BIO *b, gy_err *err) {
    if (!strstr(text, "PRIVATE KEY-----")) return wrong_block(path, text, "PRIVATE KEY", err);
    if (strstr(text, "ENCRYPTED"))
        return gy_err_set(
            err, GY_E_FORMAT,
            "%s: the key is encrypted, expected one without a passphrase; openssl pkey -in FILE -out FILE2 "
            "writes one",
            path);
    EVP_PKEY *k = PEM_read_bio_PrivateKey(b, NULL, no_passphrase, NULL);
    if (!k) return refused(path, "the key cannot be read", err);
    gy_status st = GY_OK;
    if (!SSL_CTX_use_PrivateKey(ctx, k)) {
        int is_other = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
                       ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH;
        st = is_other ? gy_err_set(err, GY_E_FORMAT, "%s: this key does not belong to the certificate", path)
                      : refused(path, "the key cannot be used", err);
    }
    EVP_PKEY_free(k);
    return st;
}

typedef gy_status use_fn(SSL_CTX *ctx, const char *path, const char *text, BIO *b, gy_err *err);

static gy_status with_file(SSL_CTX *ctx, const char *path, use_fn *use, gy_err *err) {
    gy_str text = {0};
    gy_status st = gy_file_read(path, PEM_MAX_BYTES, err, &text);
    BIO *b = st == GY_OK ? BIO_new_mem_buf(gy_str_z(&text), (int)text.len) : NULL;
    ERR_clear_error();
    if (st == GY_OK) st = b ? use(ctx, path, gy_str_z(&text), b, err) : gy_err_set(err, GY_E_NOMEM, "TLS: no memory");
    ERR_clear_error();
    BIO_free(b);
    if (text.data) OPENSSL_cleanse(text.data, text.len);
    gy_str_free(&text);
    return st;
}

/* RFC 7301: what we speak, or an alert that says that we do not. Clients that offer nothing get HTTP/1.1 too. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out, const unsigned char *in,
                           unsigned n_in, void *user) {
    static const unsigned char own[] = "\x08http/1.1";
    unsigned char *chosen;
    (void)ssl, (void)user;
    if (SSL_select_next_proto(&chosen, n_out, own, sizeof own - 1, in, n_in) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

gy_status gy_http_tls_load(const char *cert, const char *key, gy_err *err, SSL_CTX **out) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return gy_err_set(err, GY_E_NOMEM, "TLS: no memory");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* An end without a goodbye is an end: HTTP's framing tells a whole request from a cut one. */
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    gy_status st = with_file(ctx, cert, use_cert, err);
    if (st == GY_OK) st = with_file(ctx, key, use_key, err);
    if (st != GY_OK) {
        SSL_CTX_free(ctx);
        return st;
    }
    *out = ctx;
    return GY_OK;
}
