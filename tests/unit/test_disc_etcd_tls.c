/* etcd over https: who signed its certificate is trusted or not, by the file that was named. A server of one page. */
#include "tls_test.h"

#include "pd/disc.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_CONN = 16 };

typedef struct site {
    SSL_CTX *ctx;
    int fd, n_conn, n_open; /* n_open: connections whose client believed the certificate */
    int conn[MAX_CONN];
    SSL *ssl[MAX_CONN];
    pthread_t thread;
    char url[64];
} site;

static const char PAGE[] =
    "{\"header\":{\"cluster_id\":\"1\",\"member_id\":\"1\",\"revision\":\"7\",\"raft_term\":\"1\"}}";

/* The first request on a connection is answered if it is for the list; a watch hears nothing. */
static void serve(site *s, SSL *ssl) {
    char text[4096];
    int n = SSL_read(ssl, text, sizeof text - 1);
    if (n <= 0) return;
    text[n] = '\0';
    s->n_open++;
    if (!strstr(text, "POST /v3/kv/range")) return;
    n = snprintf(text, sizeof text,
                 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", sizeof PAGE - 1,
                 PAGE);
    SSL_write(ssl, text, n);
}

static void *site_main(void *arg) {
    site *s = arg;
    int fd;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0 && s->n_conn < MAX_CONN) {
        SSL *ssl = SSL_new(s->ctx);
        SSL_set_fd(ssl, fd);
        s->conn[s->n_conn] = fd;
        s->ssl[s->n_conn++] = ssl;
        if (SSL_accept(ssl) == 1) serve(s, ssl);
    }
    return NULL;
}

static void site_open(site *s, const tls_files *f) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    *s = (site){.ctx = SSL_CTX_new(TLS_server_method()), .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(SSL_CTX_use_certificate_file(s->ctx, f->cert, SSL_FILETYPE_PEM));
    assert_true(SSL_CTX_use_PrivateKey_file(s->ctx, f->key, SSL_FILETYPE_PEM));
    assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s->fd, 8), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&at, &len), 0);
    snprintf(s->url, sizeof s->url, "https://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, site_main, s), 0);
}

static void site_close(site *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < s->n_conn; i++) {
        SSL_free(s->ssl[i]);
        close(s->conn[i]);
    }
    close(s->fd);
    SSL_CTX_free(s->ctx);
}

/* On a loaded machine the handshake may take longer than a connection is given: that says nothing of trust. */
static gy_status open_disc(const site *s, const char *ca, gy_err *err, gy_disc **out) {
    gy_status st = GY_E_IO;
    for (int i = 0; i < 5; i++) {
        st = gy_disc_open(&(gy_disc_opts){.etcd = s->url, .etcd_ca = ca}, err, out);
        if (st == GY_OK || (!strstr(err->msg, "timed out") && !strstr(err->msg, "timeout"))) break;
    }
    return st;
}

static void trusted_by_a_file(void **state) {
    (void)state;
    tls_files ours, others;
    site s;
    tls_files_make(&ours);
    tls_files_make(&others);
    const struct {
        const char *ca, *says;
    } cases[] = {{ours.cert, NULL},
                 {others.cert, "certificate"},
                 {NULL, "certificate"}, /* the system knows nothing of it */
                 {ours.key, "etcd: no endpoint answers"},
                 {"/nowhere/ca.pem", "etcd: /nowhere/ca.pem, of CA certificates: cannot be read: No such file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_err err = {0};
        gy_disc *d = NULL;
        site_open(&s, &ours);
        gy_status st = open_disc(&s, cases[i].ca, &err, &d);
        if (!cases[i].says && st != GY_OK) fail_msg("%s", err.msg);
        if (cases[i].says && (st != GY_E_IO || !strstr(err.msg, cases[i].says))) fail_msg("case %zu: %s", i, err.msg);
        gy_disc_close(d);
        site_close(&s);
        assert_int_equal(s.n_open > 0, !cases[i].says);
    }
    tls_files_remove(&ours);
    tls_files_remove(&others);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trusted_by_a_file)};
    signal(SIGPIPE, SIG_IGN); /* of the server: its client hangs up when it does not believe it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
