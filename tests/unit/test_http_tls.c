/* TLS of the HTTP server: files, versions, ALPN, handshakes that do not come, new certificates while it runs. That all
 * of HTTP goes over it is shown by test_http_server.c.
 */
#include "tls_test.h"

#include "server/http_server.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { HEADER_MS = 1500 };
static const char GET[] = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

typedef struct app {
    gy_http_server *s;
    pthread_t thread;
    tls_files files;
    SSL_CTX *ctx;
    int header_ms; /* 0: HEADER_MS */
    atomic_int reload, reloaded, n_gone, n_open;
    gy_status status;
    gy_err err;
    uint64_t n_shake_failed; /* after app_stop */
} app;

static void on_request(void *user, gy_http_req *r) {
    app *a = user;
    const gy_http_answer ok = {.status = 200};
    size_t n;
    const char *path = gy_http_req_path(r, &n);
    if (n == 5 && !memcmp(path, "/hold", 5))
        a->n_open++;
    else
        gy_http_reply(r, &ok, path, n, NULL);
}

static void on_gone(void *user, gy_http_req *r, gy_http_gone why) {
    app *a = user;
    (void)r;
    if (why == GY_HTTP_GONE_CLIENT) a->n_gone++;
}

static void on_wake(void *user) {
    app *a = user;
    if (!atomic_exchange(&a->reload, 0)) return;
    a->status = gy_http_server_reload_tls(a->s, &a->err);
    a->reloaded++;
}

static void *app_main(void *arg) {
    app *a = arg;
    gy_http_server_run(a->s, NULL);
    return NULL;
}

static gy_status app_open(app *a, const char *cert, const char *key, gy_err *err) {
    gy_http_server_opts o;
    const gy_http_handler h = {.user = a, .on_request = on_request, .on_gone = on_gone, .on_wake = on_wake};
    gy_http_server_opts_default(&o);
    o.port = 0;
    o.header_ms = a->header_ms ? a->header_ms : HEADER_MS;
    o.linger_ms = 20000;
    o.tls_cert = cert;
    o.tls_key = key;
    return gy_http_server_open(&o, &h, err, &a->s);
}

static void app_start_with(app *a, int header_ms) {
    gy_err err;
    memset(a, 0, sizeof *a);
    a->header_ms = header_ms;
    tls_files_make(&a->files);
    a->ctx = tls_client_ctx(a->files.cert);
    if (app_open(a, a->files.cert, a->files.key, &err) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(pthread_create(&a->thread, NULL, app_main, a), 0);
}

static void app_start(app *a) {
    app_start_with(a, 0);
}

static void app_stop(app *a) {
    gy_http_server_stats st;
    gy_http_server_drain(a->s, 0);
    pthread_join(a->thread, NULL);
    gy_http_server_get_stats(a->s, &st);
    a->n_shake_failed = st.n_shake_failed;
    gy_http_server_close(a->s);
    SSL_CTX_free(a->ctx);
    tls_files_remove(&a->files);
}

static gy_status app_reload(app *a) {
    int before = a->reloaded;
    a->reload = 1;
    gy_http_server_wake(a->s);
    while (a->reloaded == before) poll(NULL, 0, 1);
    return a->status;
}

static int dial(const app *a) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)gy_http_server_port(a->s))};
    const struct timeval limit = {20, 0};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static SSL *dial_tls(const app *a) {
    SSL *s = tls_client(a->ctx, dial(a));
    assert_int_equal(SSL_connect(s), 1);
    return s;
}

static void hang_up(SSL *s) {
    close(SSL_get_fd(s));
    SSL_free(s);
}

static void ask(SSL *s) {
    char got[1024];
    size_t len = 0;
    assert_true(SSL_write(s, GET, sizeof GET - 1) > 0);
    do {
        int n = SSL_read(s, got + len, (int)(sizeof got - 1 - len));
        assert_true(n > 0);
        len += (size_t)n;
        got[len] = '\0';
    } while (!strstr(got, "\r\n\r\n/x"));
    assert_memory_equal(got, "HTTP/1.1 200 ", 13);
}

/* ---- files ---- */

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect_error(const char *cert, const char *key, const char *file, const char *what) {
    app a = {0};
    gy_err err = {0};
    assert_true(app_open(&a, cert, key, &err) < 0);
    if (!strstr(err.msg, file) || !strstr(err.msg, what)) fail_msg("\"%s\" lacks %s or %s", err.msg, file, what);
}

static void put_encrypted_key(const char *path) {
    char pass[] = "secret";
    EVP_PKEY *k = tls_new_key();
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(PEM_write_PKCS8PrivateKey(f, k, EVP_aes_128_cbc(), pass, 6, NULL, NULL));
    fclose(f);
    EVP_PKEY_free(k);
}

static void test_files(void **state) {
    (void)state;
    tls_files f, g;
    char cut[320];
    tls_files_make(&f);
    tls_files_make(&g);
    expect_error("/no/such/cert.pem", f.key, "/no/such/cert.pem", "No such file");
    expect_error(f.cert, "/no/such/key.pem", "/no/such/key.pem", "No such file");
    expect_error(f.dir, f.key, f.dir, "");
    expect_error(f.key, f.key, f.key, "found a PEM block PRIVATE KEY, expected CERTIFICATE");
    expect_error(f.cert, f.cert, f.cert, "found a PEM block CERTIFICATE, expected PRIVATE KEY");
    expect_error(f.cert, NULL, f.cert, "found a PEM block CERTIFICATE, expected PRIVATE KEY");
    expect_error(f.cert, g.key, g.key, "does not belong to the certificate");
    put_text(g.cert, "not a certificate\n");
    expect_error(g.cert, f.key, g.cert, "found no PEM block, expected -----BEGIN CERTIFICATE-----");
    put_text(g.cert, "");
    expect_error(g.cert, f.key, g.cert, "found no PEM block");
    put_text(g.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    expect_error(g.cert, f.key, g.cert, "the certificate cannot be read");
    put_text(g.key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    expect_error(f.cert, g.key, g.key, "the key cannot be read");
    put_encrypted_key(g.key);
    expect_error(f.cert, g.key, g.key, "the key is encrypted, expected one without a passphrase");
    /* A chain whose second certificate is cut. */
    snprintf(cut, sizeof cut, "cat %s > %s; head -n 3 %s >> %s", f.cert, g.cert, f.cert, g.cert);
    assert_int_equal(system(cut), 0);
    expect_error(g.cert, f.key, g.cert, "a certificate of the chain");
    tls_files_remove(&f);
    tls_files_remove(&g);
}

/* Certificate and key in one file, as some tools write them. */
static void test_one_file(void **state) {
    (void)state;
    app a = {0};
    gy_err err;
    char both[320];
    tls_files_make(&a.files);
    a.ctx = tls_client_ctx(a.files.cert);
    snprintf(both, sizeof both, "cat %s >> %s", a.files.key, a.files.cert);
    assert_int_equal(system(both), 0);
    if (app_open(&a, a.files.cert, NULL, &err) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(pthread_create(&a.thread, NULL, app_main, &a), 0);
    SSL *s = dial_tls(&a);
    ask(s);
    hang_up(s);
    app_stop(&a);
}

/* ---- handshakes ---- */

/* The protocol that was agreed on, "" for none; NULL: no handshake. */
static const char *agree(app *a, int version, const char *alpn, size_t n, char out[32]) {
    unsigned len;
    const unsigned char *got;
    SSL *s = tls_client(a->ctx, dial(a));
    SSL_set_min_proto_version(s, version);
    SSL_set_max_proto_version(s, version);
    if (version < TLS1_2_VERSION) SSL_set_security_level(s, 0);
    SSL_set_alpn_protos(s, (const unsigned char *)alpn, (unsigned)n);
    int ok = SSL_connect(s) == 1;
    if (ok) {
        SSL_get0_alpn_selected(s, &got, &len);
        snprintf(out, 32, "%.*s", (int)len, (const char *)got);
        ask(s);
    }
    ERR_clear_error();
    hang_up(s);
    return ok ? out : NULL;
}

static void test_versions(void **state) {
    (void)state;
    static const char h2_first[] = "\x02h2\x08http/1.1", h2[] = "\x02h2";
    app a;
    char got[32];
    app_start(&a);
    for (int v = TLS1_2_VERSION; v <= TLS1_3_VERSION; v++) {
        assert_string_equal(agree(&a, v, h2_first, sizeof h2_first - 1, got), "http/1.1");
        assert_string_equal(agree(&a, v, NULL, 0, got), "");
        assert_null(agree(&a, v, h2, sizeof h2 - 1, got));
    }
    assert_null(agree(&a, TLS1_1_VERSION, NULL, 0, got));
    app_stop(&a);
    assert_int_equal(a.n_shake_failed, 3);
}

/* A client without TLS learns what is wrong; one that says nothing, or not enough, is not waited for. */
static void test_no_handshake(void **state) {
    (void)state;
    app a;
    char got[1024];
    app_start(&a);
    int64_t t = gy_clock_ns();
    int plain = dial(&a), mute = dial(&a), half = dial(&a), junk = dial(&a);
    assert_true(send(plain, GET, sizeof GET - 1, MSG_NOSIGNAL) > 0);
    assert_true(send(half, "\x16\x03\x01\x02\x00\x01\x00", 7, MSG_NOSIGNAL) > 0);
    assert_true(send(junk, "\x16\x03\x01\x00\x05hello hello hello", 22, MSG_NOSIGNAL) > 0);
    size_t len = 0;
    for (ssize_t n; len < sizeof got - 1 && (n = recv(plain, got + len, sizeof got - 1 - len, 0)) > 0;)
        len += (size_t)n;
    got[len] = '\0';
    assert_memory_equal(got, "HTTP/1.1 400 ", 13);
    assert_non_null(strstr(got, "this port speaks TLS; use https://"));
    /* An alert, then the end. */
    while (recv(junk, got, sizeof got, 0) > 0) continue;
    assert_true(gy_clock_ns() - t < (HEADER_MS - 100) * 1000000ll);
    assert_int_equal(recv(mute, got, sizeof got, 0), 0);
    assert_int_equal(recv(half, got, sizeof got, 0), 0);
    int64_t took = gy_clock_ns() - t;
    assert_true(took >= HEADER_MS * 1000000ll && took < 20000000000);
    close(plain), close(mute), close(half), close(junk);
    app_stop(&a);
}

/* A drain waits for requests; a handshake is none. The good client's answer says that the others were accepted. */
static void test_drain_while_shaking(void **state) {
    (void)state;
    app a;
    app_start_with(&a, 20000);
    int mute = dial(&a), half = dial(&a);
    assert_true(send(half, "\x16\x03\x01\x02\x00\x01\x00", 7, MSG_NOSIGNAL) > 0);
    SSL *good = dial_tls(&a);
    ask(good);
    int64_t t = gy_clock_ns();
    gy_http_server_drain(a.s, 60000);
    pthread_join(a.thread, NULL);
    assert_true(gy_clock_ns() - t < 10000000000);
    hang_up(good);
    close(mute), close(half);
    gy_http_server_close(a.s);
    SSL_CTX_free(a.ctx);
    tls_files_remove(&a.files);
}

/* A handshake and a request whose bytes come one at a time. */
static void test_drip(void **state) {
    (void)state;
    app a;
    app_start(&a);
    int fd = dial(&a);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL *s = SSL_new(a.ctx);
    char buf[16384];
    SSL_set_bio(s, in, out);
    assert_true(SSL_set1_host(s, "localhost"));
    SSL_set_connect_state(s);
    int asked = 0, len = 0;
    for (int turn = 0; turn < 50 && len <= 0; turn++) {
        if (SSL_do_handshake(s) == 1 && !asked++) SSL_write(s, GET, sizeof GET - 1);
        for (char byte; BIO_read(out, &byte, 1) == 1;) assert_int_equal(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        assert_true(n > 0);
        BIO_write(in, buf, (int)n);
        if (asked) len = SSL_read(s, buf, sizeof buf);
    }
    assert_true(len > 13);
    assert_memory_equal(buf, "HTTP/1.1 200 ", 13);
    SSL_free(s);
    close(fd);
    app_stop(&a);
}

/* A client that says goodbye is gone, whether it closes the connection or not; bytes that it sent before do not hide
 * it. */
static void test_goodbye(void **state) {
    (void)state;
    static const char hold[] = "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
    app a;
    app_start(&a);
    for (int i = 0; i < 3; i++) {
        SSL *s = dial_tls(&a);
        assert_true(SSL_write(s, hold, sizeof hold - 1) > 0);
        while (a.n_open <= i) poll(NULL, 0, 1);
        int64_t t = gy_clock_ns();
        if (i == 1) assert_true(SSL_write(s, GET, sizeof GET - 1) > 0);
        if (i < 2) SSL_shutdown(s);
        if (i > 0) shutdown(SSL_get_fd(s), SHUT_WR);
        while (a.n_gone <= i && gy_clock_ns() - t < 15000000000) poll(NULL, 0, 1);
        assert_true(gy_clock_ns() - t < 10000000000); /* not by the server's timers, of 20 s and more */
        hang_up(s);
    }
    app_stop(&a);
}

/* ---- new certificates ---- */

static void subject(SSL *s, char out[64]) {
    X509 *x = SSL_get1_peer_certificate(s);
    assert_non_null(x);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, 64);
    X509_free(x);
}

static void expect_subject(const app *a, const char *want) {
    char got[64];
    SSL_CTX *ctx = tls_client_ctx(a->files.cert);
    SSL *s = tls_client(ctx, dial(a));
    SSL_set_verify(s, SSL_VERIFY_NONE, NULL);
    assert_int_equal(SSL_connect(s), 1);
    subject(s, got);
    assert_string_equal(got, want);
    ask(s);
    hang_up(s);
    SSL_CTX_free(ctx);
}

static void test_reload(void **state) {
    (void)state;
    app a;
    app_start(&a);
    SSL *old = dial_tls(&a);
    ask(old);
    tls_renew(&a.files, "second", -60, 3600);
    expect_subject(&a, "first");
    assert_int_equal(app_reload(&a), GY_OK);
    expect_subject(&a, "second");
    ask(old);
    /* Half of a renewal: the key is another one's. */
    EVP_PKEY *k = tls_new_key();
    tls_write_key(a.files.key, k);
    EVP_PKEY_free(k);
    assert_true(app_reload(&a) < 0);
    assert_non_null(strstr(a.err.msg, "does not belong to the certificate"));
    unlink(a.files.cert);
    assert_true(app_reload(&a) < 0);
    tls_renew(&a.files, "third", -60, 3600); /* for expect_subject's own trust */
    expect_subject(&a, "second");
    /* What has expired is served, as it was asked for; clients judge. */
    tls_renew(&a.files, "expired", -7200, -3600);
    assert_int_equal(app_reload(&a), GY_OK);
    expect_subject(&a, "expired");
    SSL *s = tls_client(a.ctx, dial(&a));
    assert_true(SSL_connect(s) != 1);
    ERR_clear_error();
    hang_up(s);
    ask(old);
    hang_up(old);
    app_stop(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_no_handshake),
        cmocka_unit_test(test_drain_while_shaking),
        cmocka_unit_test(test_drip),
        cmocka_unit_test(test_goodbye),
        cmocka_unit_test(test_reload),
    };
    signal(SIGPIPE, SIG_IGN); /* for the clients' sake */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
