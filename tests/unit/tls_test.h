/* Certificates made on the spot and clients that speak TLS, for tests of the HTTP server. The client's side is OpenSSL
 * driven in its simplest way: a blocking descriptor.
 */
#ifndef TESTS_UNIT_TLS_TEST_H
#define TESTS_UNIT_TLS_TEST_H

#include "base_test.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TLS_FD_MAX = 8192 };

typedef struct tls_files {
    char dir[32], cert[64], key[64];
} tls_files;

static inline EVP_PKEY *tls_new_key(void) {
    EVP_PKEY *k = EVP_EC_gen("P-256");
    assert_non_null(k);
    return k;
}

/* Signed by its own key, for localhost and 127.0.0.1, valid from `from` to `until` seconds from now. */
static inline X509 *tls_new_cert(EVP_PKEY *k, const char *name, long from, long until) {
    X509 *x = X509_new();
    X509V3_CTX ctx;
    assert_non_null(x);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), from);
    X509_gmtime_adj(X509_getm_notAfter(x), until);
    X509_set_pubkey(x, k);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    assert_non_null(e);
    assert_true(X509_add_ext(x, e, -1));
    X509_EXTENSION_free(e);
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    return x;
}

static inline void tls_write_key(const char *path, EVP_PKEY *k) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL));
    fclose(f);
}

static inline void tls_write_cert(const char *path, X509 *x) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(PEM_write_X509(f, x));
    fclose(f);
}

/* A new pair into the files of f. */
static inline void tls_renew(const tls_files *f, const char *name, long from, long until) {
    EVP_PKEY *k = tls_new_key();
    X509 *x = tls_new_cert(k, name, from, until);
    tls_write_key(f->key, k);
    tls_write_cert(f->cert, x);
    X509_free(x);
    EVP_PKEY_free(k);
}

static inline void tls_files_make(tls_files *f) {
    strcpy(f->dir, "/tmp/gyre-tls-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->cert, sizeof f->cert, "%s/cert.pem", f->dir);
    snprintf(f->key, sizeof f->key, "%s/key.pem", f->dir);
    tls_renew(f, "first", -60, 3600);
}

static inline void tls_files_remove(const tls_files *f) {
    unlink(f->cert);
    unlink(f->key);
    assert_int_equal(rmdir(f->dir), 0);
}

/* Trusts what is in `ca` alone, as curl --cacert does. */
static inline SSL_CTX *tls_client_ctx(const char *ca) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    assert_non_null(ctx);
    assert_true(SSL_CTX_load_verify_locations(ctx, ca, NULL));
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    return ctx;
}

static inline SSL *tls_client(SSL_CTX *ctx, int fd) {
    SSL *s = SSL_new(ctx);
    assert_non_null(s);
    assert_true(SSL_set_fd(s, fd));
    assert_true(SSL_set1_host(s, "localhost"));
    return s;
}

#endif
