/* Channels on a pre-shared key: handshakes in every order, cut and changed at every byte, wrong secrets, strangers,
 * small buffers, ends with and without a goodbye; the file that holds the secret. */
#include "base_test.h"

#include "pd/chan.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

static const gy_secret SECRET = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, OTHER = {{1, 2, 3, 4, 5, 6, 7, 8, 8}};

typedef struct pair {
    gy_chan *client, *server;
} pair;

static gy_chan *open_chan(int fd, int is_server, const gy_secret *s) {
    gy_chan *c = NULL;
    gy_err err = {0};
    if (gy_chan_create_secret(fd, is_server, s, GY_CHAN_OUT_MAX, &err, &c) != GY_OK) fail_msg("%s", err.msg);
    return c;
}

static void open_sockets(int fd[2]) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
}

/* Over TCP; with the smallest buffers that the kernel lets one have if small is 1. */
static void open_tcp(int fd[2], int small) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int on = small, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (small) setsockopt(l, SOL_SOCKET, SO_RCVBUF, &on, sizeof on);
    assert_int_equal(bind(l, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&at, &n), 0);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (small) setsockopt(fd[0], SOL_SOCKET, SO_RCVBUF, &on, sizeof on);
    assert_int_equal(connect(fd[0], (struct sockaddr *)&at, n), 0);
    fd[1] = accept(l, NULL, NULL);
    assert_true(fd[1] >= 0);
    for (int i = 0; i < 2 && small; i++) setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &on, sizeof on);
    close(l);
}

static pair chans_on(int fd[2], const gy_secret *client, const gy_secret *server) {
    return (pair){open_chan(fd[0], 0, client), open_chan(fd[1], 1, server)};
}

static pair open_pair(void) {
    int fd[2];
    open_sockets(fd);
    return chans_on(fd, &SECRET, &SECRET);
}

static void close_pair(pair *p) {
    gy_chan_destroy(p->client);
    gy_chan_destroy(p->server);
}

static gy_msg fatal(const char *text, int32_t n) {
    return (gy_msg){.kind = GY_MSG_FATAL, .text = text, .n_text = n};
}

static void say(gy_chan *c, const char *text) {
    gy_msg m = fatal(text, (int32_t)strlen(text));
    gy_err err = {0};
    if (gy_chan_send(c, &m, &err) != GY_OK) fail_msg("%s", err.msg);
}

/* The loopback device delivers at once, but where the kernel has much to do: then each turn waits, for 20 s in all. */
static int has_turn(int i) {
    if (i >= 100) poll(NULL, 0, 1);
    return i < 20000;
}

/* What one end says is heard by the other, after however many turns. */
static void hear(gy_chan *from, gy_chan *to, const char *text) {
    gy_msg m;
    gy_err err = {0};
    for (int i = 0; has_turn(i); i++) {
        assert_true(gy_chan_flush(from, &err) >= 0);
        gy_status st = gy_chan_recv(to, &err, &m);
        if (st == GY_OK) {
            assert_string_equal(m.text, text);
            return;
        }
        if (st != GY_AGAIN) fail_msg("%s: %s", text, err.msg);
        gy_status back = gy_chan_recv(from, &err, &m);
        if (back != GY_AGAIN) fail_msg("%s: %s", text, err.msg);
        assert_true(gy_chan_flush(to, &err) >= 0);
    }
    fail_msg("nobody hears '%s'", text);
}

static void shake(pair *p) {
    gy_msg m;
    for (int i = 0; i < 100 && !(gy_chan_is_open(p->client) && gy_chan_is_open(p->server)); i++) {
        assert_int_equal(gy_chan_recv(p->client, NULL, &m), GY_AGAIN);
        assert_int_equal(gy_chan_recv(p->server, NULL, &m), GY_AGAIN);
    }
    assert_true(gy_chan_is_open(p->client) && gy_chan_is_open(p->server));
}

/* Whoever reads or writes first, and however often: 4^5 beginnings. */
static void every_order(void **state) {
    (void)state;
    for (int code = 0; code < 1024; code++) {
        pair p = open_pair();
        gy_msg m;
        say(p.client, "from the client");
        say(p.server, "from the server");
        for (int i = 0, rest = code; i < 5; i++, rest /= 4) {
            gy_chan *c = rest & 1 ? p.client : p.server;
            if (rest & 2)
                assert_true(gy_chan_flush(c, NULL) >= 0);
            else if (gy_chan_recv(c, NULL, &m) == GY_OK)
                say(c == p.client ? p.server : p.client, m.text); /* heard early: once more for below */
        }
        hear(p.server, p.client, "from the server");
        hear(p.client, p.server, "from the client");
        assert_true(gy_chan_is_open(p.client) && gy_chan_is_open(p.server));
        close_pair(&p);
    }
}

/* When to poll for writing: never for what the handshake does not let out yet. */
static void output_while_shaking(void **state) {
    (void)state;
    pair p = open_pair();
    gy_msg m;
    gy_err err = {0};
    assert_false(gy_chan_is_open(p.client) || gy_chan_is_open(p.server));
    assert_true(gy_chan_has_output(p.client)); /* its hello */
    assert_false(gy_chan_has_output(p.server));
    assert_int_equal(gy_chan_flush(p.server, &err), GY_OK); /* nothing to say yet */
    say(p.client, "hello");
    say(p.server, "welcome");
    assert_false(gy_chan_has_output(p.server));
    assert_int_equal(gy_chan_flush(p.server, &err), GY_AGAIN);
    assert_int_equal(gy_chan_flush(p.client, &err), GY_AGAIN);
    assert_false(gy_chan_has_output(p.client));
    assert_int_equal(gy_chan_recv(p.server, &err, &m), GY_AGAIN);
    assert_false(gy_chan_is_open(p.server));
    assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_AGAIN);
    assert_true(gy_chan_is_open(p.client));
    assert_true(gy_chan_has_output(p.client));
    assert_int_equal(gy_chan_flush(p.client, &err), GY_OK);
    assert_false(gy_chan_has_output(p.client));
    assert_int_equal(gy_chan_recv(p.server, &err, &m), GY_OK);
    assert_string_equal(m.text, "hello");
    assert_true(gy_chan_has_output(p.server));
    assert_int_equal(gy_chan_flush(p.server, &err), GY_OK);
    assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_OK);
    assert_string_equal(m.text, "welcome");
    gy_chan_stats s;
    gy_chan_get_stats(p.server, &s);
    assert_int_equal(s.n_sent, 1);
    assert_int_equal(s.n_received, 1);
    close_pair(&p);
}

/* ---- a line in between ------------------------------------------------------------------------------------------- */

typedef struct line {
    int fd[2];         /* of the client, of the server */
    int n[2];          /* bytes that came from each */
    int stop_at[2];    /* no more bytes than these; -1: any number */
    int flip_at[2];    /* this byte is changed; -1: none */
    char *bytes[2];    /* if not NULL: what passed */
    int piece, is_cut; /* most bytes at once */
} line;

static pair open_line(line *l) {
    int a[2], b[2];
    open_sockets(a);
    open_sockets(b);
    *l = (line){.fd = {a[1], b[1]}, .stop_at = {-1, -1}, .flip_at = {-1, -1}, .piece = 1 << 14};
    fcntl(a[1], F_SETFL, O_NONBLOCK);
    fcntl(b[1], F_SETFL, O_NONBLOCK);
    return (pair){open_chan(a[0], 0, &SECRET), open_chan(b[0], 1, &SECRET)};
}

static void line_cut(line *l) {
    for (int i = 0; i < 2 && !l->is_cut; i++) close(l->fd[i]);
    l->is_cut = 1;
}

static void line_pass(line *l, int from) {
    char buf[1 << 14];
    size_t most = (size_t)l->piece;
    int left = l->stop_at[from] - l->n[from];
    if (l->stop_at[from] >= 0 && (size_t)left < most) most = (size_t)left;
    ssize_t got = most ? read(l->fd[from], buf, most) : 0;
    for (ssize_t i = 0; i < got; i++)
        if (l->n[from] + i == l->flip_at[from]) buf[i] = (char)(buf[i] ^ 0x11);
    if (got > 0) {
        if (l->bytes[from]) memcpy(l->bytes[from] + l->n[from], buf, (size_t)got);
        l->n[from] += (int)got;
        ssize_t put = write(l->fd[!from], buf, (size_t)got);
        (void)put;
    }
    if (l->stop_at[from] >= 0 && l->n[from] == l->stop_at[from]) line_cut(l);
}

/* Both sides say one thing; *heard counts. Ends when nothing moves any more. */
static void line_run(line *l, pair *p, gy_status last[2], gy_err err[2], int *heard) {
    gy_chan *c[2] = {p->client, p->server};
    say(c[0], "ping");
    say(c[1], "pong");
    *heard = 0;
    for (int turn = 0; turn < (l->piece == 1 ? 4000 : 20); turn++) {
        for (int i = 0; i < 2; i++) {
            gy_msg m;
            gy_chan_flush(c[i], &err[i]);
            last[i] = gy_chan_recv(c[i], &err[i], &m);
            if (last[i] == GY_OK) {
                assert_string_equal(m.text, i ? "ping" : "pong");
                ++*heard;
            }
            if (!l->is_cut) line_pass(l, i);
        }
    }
}

static void byte_by_byte(void **state) {
    (void)state;
    line l;
    pair p = open_line(&l);
    gy_status last[2];
    gy_err err[2] = {0};
    int heard;
    l.piece = 1;
    line_run(&l, &p, last, err, &heard);
    assert_int_equal(heard, 2);
    assert_int_equal(last[0], GY_AGAIN);
    assert_int_equal(last[1], GY_AGAIN);
    close_pair(&p);
    line_cut(&l);
}

static void line_whole(int n[2]) {
    line l;
    pair p = open_line(&l);
    gy_status last[2];
    gy_err err[2] = {0};
    int heard;
    line_run(&l, &p, last, err, &heard);
    assert_int_equal(heard, 2);
    memcpy(n, l.n, sizeof l.n);
    assert_in_range(n[0], 200, 1000);
    assert_in_range(n[1], 150, 1000);
    close_pair(&p);
    line_cut(&l);
}

static void cut_at_every_byte(void **state) {
    (void)state;
    int n[2];
    line_whole(n);
    for (int from = 0; from < 2; from++) {
        for (int at = 0; at < n[from]; at++) {
            line l;
            pair p = open_line(&l);
            gy_status last[2];
            gy_err err[2] = {0};
            int heard;
            l.stop_at[from] = at;
            line_run(&l, &p, last, err, &heard);
            for (int i = 0; i < 2; i++) {
                if (last[i] != GY_E_PEER) fail_msg("side %d, cut at byte %d of %d: %d", i, at, from, last[i]);
                if (!strstr(err[i].msg, "went away") && !strstr(err[i].msg, "gone") && !strstr(err[i].msg, "broke"))
                    fail_msg("side %d, cut at byte %d of %d: %s", i, at, from, err[i].msg);
            }
            assert_true(heard < 2);
            close_pair(&p);
            line_cut(&l);
        }
    }
}

/* Whatever byte is changed on the way: nobody hears what was not said. All but the versions in the outer records, which
 * nobody reads (RFC 8446, 5.1), end the connection at once or leave a side waiting for more. */
static void flip_at_every_byte(void **state) {
    (void)state;
    int n[2], n_same = 0;
    line_whole(n);
    for (int from = 0; from < 2; from++) {
        for (int at = 0; at < n[from]; at++) {
            line l;
            pair p = open_line(&l);
            gy_status last[2];
            gy_err err[2] = {0};
            int heard;
            l.flip_at[from] = at;
            line_run(&l, &p, last, err, &heard);
            n_same += heard == 2;
            if (heard == 2) assert_true(last[0] == GY_AGAIN && last[1] == GY_AGAIN);
            for (int i = 0; i < 2; i++) assert_true(last[i] == GY_AGAIN || last[i] == GY_E_PEER);
            close_pair(&p);
            line_cut(&l);
        }
    }
    assert_in_range(n_same, 0, 8);
}

/* What a client once said does not open another connection. */
static void replay(void **state) {
    (void)state;
    line l;
    pair p = open_line(&l);
    gy_status last[2];
    gy_err err[2] = {0};
    gy_msg m;
    int heard, fd[2];
    char bytes[4096];
    l.bytes[0] = bytes;
    line_run(&l, &p, last, err, &heard);
    assert_int_equal(heard, 2);
    open_sockets(fd);
    gy_chan *c = open_chan(fd[1], 1, &SECRET);
    assert_int_equal(write(fd[0], bytes, (size_t)l.n[0]), l.n[0]);
    assert_int_equal(gy_chan_recv(c, err, &m), GY_E_PEER);
    assert_false(gy_chan_is_open(c));
    gy_chan_destroy(c);
    close(fd[0]);
    close_pair(&p);
    line_cut(&l);
}

/* ---- who is there ------------------------------------------------------------------------------------------------ */

static void wrong_secret(void **state) {
    (void)state;
    for (int swap = 0; swap < 2; swap++) {
        int fd[2];
        gy_err err = {0};
        gy_msg m, f = fatal("x", 1);
        open_sockets(fd);
        pair p = chans_on(fd, swap ? &OTHER : &SECRET, swap ? &SECRET : &OTHER);
        say(p.client, "my pages");
        assert_int_equal(gy_chan_flush(p.client, &err), GY_AGAIN);
        assert_int_equal(gy_chan_recv(p.server, &err, &m), GY_E_PEER);
        assert_string_equal(err.msg, "control channel: the other side has another secret");
        assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_E_PEER);
        assert_string_equal(err.msg, "control channel: the other side has another secret");
        for (int i = 0; i < 2; i++) { /* for good */
            gy_chan *c = i ? p.client : p.server;
            assert_false(gy_chan_is_open(c));
            assert_false(gy_chan_has_output(c));
            assert_int_equal(gy_chan_recv(c, &err, &m), GY_E_PEER);
            assert_int_equal(gy_chan_send(c, &f, &err), GY_E_PEER);
            assert_int_equal(gy_chan_flush(c, &err), GY_E_PEER);
            assert_non_null(strstr(err.msg, "another secret"));
        }
        close_pair(&p);
    }
}

static void garbage(void **state) {
    (void)state;
    static char zeros[70000], noise[70000],
        ssl2[48] = "\x80\x2e\x01\0\x02\0\x15\0\0\0\x10\x01\0\x80\x02\0\x80\x03\0\x80";
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)((i * 2654435761u) >> 13);
    const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
        {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", 32},
        {zeros, sizeof zeros},
        {noise, sizeof noise},
        {"\x16\x03\x01\xff\xff\x01\0\xff\xfb", 9},  /* a record that is too long */
        {"\x16\x03\x01\0\x04\x01\xff\xff\xff", 9},  /* a hello of 16 MiB */
        {"\x15\x03\x01\0\x02\x02\x28", 7},          /* an alert */
        {"\x17\x03\x03\0\x05hello", 10},            /* data before a handshake */
        {"\x16\x03\x01\0\x05\x01\0\0\x01\x03", 10}, /* a hello of one byte */
        {ssl2, sizeof ssl2},                        /* a hello of SSL 2 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int is_server = 0; is_server < 2; is_server++) {
            int fd[2], big = 1 << 18;
            gy_err err = {0};
            gy_msg m;
            open_sockets(fd);
            setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
            gy_chan *c = open_chan(fd[1], is_server, &SECRET);
            assert_int_equal(send(fd[0], cases[i].bytes, cases[i].n, MSG_DONTWAIT), cases[i].n);
            gy_status st = gy_chan_recv(c, &err, &m);
            if (st != GY_E_PEER) fail_msg("case %zu, server %d: %d", i, is_server, st);
            if (!strstr(err.msg, "what came is no TLS handshake of a gyre with a secret: "))
                fail_msg("case %zu, server %d: %s", i, is_server, err.msg);
            assert_false(gy_chan_is_open(c));
            gy_chan_destroy(c);
            close(fd[0]);
        }
    }
}

/* A side without a secret: its first message is no handshake. */
static void plain_client(void **state) {
    (void)state;
    int fd[2];
    gy_err err = {0};
    gy_msg m;
    gy_chan *plain = NULL;
    open_sockets(fd);
    gy_chan *c = open_chan(fd[1], 1, &SECRET);
    assert_int_equal(gy_chan_create(fd[0], GY_CHAN_OUT_MAX, &err, &plain), GY_OK);
    assert_true(gy_chan_is_open(plain));
    say(plain, "let me in");
    assert_int_equal(gy_chan_flush(plain, &err), GY_OK);
    assert_int_equal(gy_chan_recv(c, &err, &m), GY_E_PEER);
    assert_non_null(strstr(err.msg, "no TLS handshake of a gyre with a secret"));
    gy_chan_destroy(c);
    assert_true(gy_chan_recv(plain, &err, &m) != GY_OK);
    gy_chan_destroy(plain);
}

/* Other users of TLS, played by OpenSSL itself. */

typedef struct stranger {
    SSL_CTX *ctx;
    SSL *ssl;
} stranger;

static stranger open_stranger(int fd, int is_server, int version) {
    stranger s = {.ctx = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method())};
    assert_non_null(s.ctx);
    SSL_CTX_set_max_proto_version(s.ctx, version);
    s.ssl = SSL_new(s.ctx);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    SSL_set_fd(s.ssl, fd);
    if (is_server)
        SSL_set_accept_state(s.ssl);
    else
        SSL_set_connect_state(s.ssl);
    return s;
}

static void close_stranger(stranger *s, int fd) {
    SSL_free(s->ssl);
    SSL_CTX_free(s->ctx);
    close(fd);
}

/* The channel's last status against the stranger; the stranger must not get through either. */
static gy_status meet(stranger *s, gy_chan *c, gy_err *err) {
    gy_status st = GY_AGAIN;
    gy_msg m;
    for (int i = 0; i < 10 && st == GY_AGAIN; i++) {
        SSL_do_handshake(s->ssl);
        st = gy_chan_recv(c, err, &m);
    }
    assert_false(gy_chan_is_open(c));
    return st;
}

static void clients_without_key(void **state) {
    (void)state;
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (int i = 0; i < 2; i++) {
        int fd[2];
        gy_err err = {0};
        open_sockets(fd);
        gy_chan *c = open_chan(fd[1], 1, &SECRET);
        stranger s = open_stranger(fd[0], 0, versions[i]);
        assert_int_equal(meet(&s, c, &err), GY_E_PEER);
        assert_non_null(strstr(err.msg, "what came is no TLS handshake of a gyre with a secret"));
        assert_int_equal(SSL_do_handshake(s.ssl), -1);
        gy_chan_destroy(c);
        close_stranger(&s, fd[0]);
    }
}

/* A client that knows the key and wants no fresh Diffie-Hellman keys, or another name of the key. */
static const char *the_name;

static int offer(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **out) {
    static const unsigned char suite[] = {0x13, 0x02};
    (void)md;
    SSL_SESSION *s = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(s, SECRET.key, sizeof SECRET.key);
    SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, suite));
    SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION);
    *id = (const unsigned char *)the_name;
    *n = strlen(the_name);
    *out = s;
    return 1;
}

static void clients_with_key(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int is_good;
    } cases[] = {{"gyre 1", 1}, {"gyre 2", 0}, {"gyre", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd[2];
        gy_err err = {0};
        gy_msg m;
        open_sockets(fd);
        gy_chan *c = open_chan(fd[1], 1, &SECRET);
        stranger s = open_stranger(fd[0], 0, TLS1_3_VERSION);
        the_name = cases[i].name;
        SSL_set_psk_use_session_callback(s.ssl, offer);
        for (int k = 0; k < 10; k++) {
            SSL_do_handshake(s.ssl);
            gy_chan_recv(c, &err, &m);
        }
        assert_int_equal(gy_chan_is_open(c), cases[i].is_good);
        assert_int_equal(SSL_is_init_finished(s.ssl), cases[i].is_good);
        if (cases[i].is_good) { /* the suite and what the server sends behind its handshake: nothing */
            char byte;
            assert_string_equal(SSL_get_cipher_name(s.ssl), "TLS_AES_256_GCM_SHA384");
            assert_int_equal(SSL_read(s.ssl, &byte, 1), -1);
            assert_int_equal(SSL_get_error(s.ssl, -1), SSL_ERROR_WANT_READ);
            assert_false(SSL_SESSION_has_ticket(SSL_get_session(s.ssl)));
        }
        gy_chan_destroy(c);
        close_stranger(&s, fd[0]);
    }
}

/* A server with a certificate and no key is nobody. */
static void server_with_certificate(void **state) {
    (void)state;
    int fd[2];
    gy_err err = {0};
    open_sockets(fd);
    gy_chan *c = open_chan(fd[0], 0, &SECRET);
    stranger s = open_stranger(fd[1], 1, TLS1_3_VERSION);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_use_certificate(s.ssl, x), 1);
    assert_int_equal(SSL_use_PrivateKey(s.ssl, key), 1);
    assert_int_equal(meet(&s, c, &err), GY_E_PEER);
    assert_non_null(strstr(err.msg, "certificate verify failed"));
    X509_free(x);
    EVP_PKEY_free(key);
    gy_chan_destroy(c);
    close_stranger(&s, fd[1]);
}

/* ---- much ----------------------------------------------------------------------------------------------------------
 */

/* n messages of some 60 KiB each way at once, through small buffers, read in turns of different length. */
static void both_ways(int fd[2], int n) {
    enum { BIG = 61000 };
    pair p = chans_on(fd, &SECRET, &SECRET);
    gy_chan *c[2] = {p.client, p.server};
    char *text = malloc(BIG);
    int got[2] = {0}, n_again = 0;
    for (int i = 0; i < BIG; i++) text[i] = (char)('a' + i % 23);
    for (int i = 0; i < n; i++) {
        gy_msg m = fatal(text + i % 7, BIG - i % 1000 - 7);
        for (int k = 0; k < 2; k++) assert_int_equal(gy_chan_send(c[k], &m, NULL), GY_OK);
    }
    for (int turn = 0; got[0] < n || got[1] < n; turn++) {
        for (int k = 0; k < 2; k++) {
            gy_msg m;
            gy_err err = {0};
            gy_status st = gy_chan_flush(c[k], &err);
            if (st < 0) fail_msg("%s", err.msg);
            n_again += st == GY_AGAIN;
            if (turn % 3 == k) continue; /* does not read now */
            while ((st = gy_chan_recv(c[k], &err, &m)) == GY_OK) {
                int i = got[k]++;
                assert_int_equal(m.n_text, BIG - i % 1000 - 7);
                assert_memory_equal(m.text, text + i % 7, (size_t)m.n_text);
            }
            if (st != GY_AGAIN) fail_msg("%s", err.msg);
        }
    }
    assert_true(n_again > 10);
    gy_chan_stats s;
    gy_chan_get_stats(p.client, &s);
    assert_true(s.bytes_in > (int64_t)n * (BIG - 1100) && s.bytes_out == s.bytes_in);
    free(text);
    close_pair(&p);
}

static void much_over_tcp(void **state) {
    (void)state;
    int fd[2];
    open_tcp(fd, 1);
    both_ways(fd, 100);
    open_tcp(fd, 0);
    both_ways(fd, 1120); /* 64 MiB */
}

static void much_over_unix(void **state) {
    (void)state;
    int fd[2], one = 1;
    open_sockets(fd);
    for (int i = 0; i < 2; i++) setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &one, sizeof one);
    both_ways(fd, 1120);
}

/* More records than a key may serve, each way. And no memory of ours in the steady state. */
static void many_records(void **state) {
    (void)state;
    pair p = open_pair();
    gy_mem_stats before = {0}, after;
    gy_msg m, in;
    shake(&p);
    for (int i = 0; i < 530000; i++) {
        m = fatal("turn", 4);
        gy_chan *from = i & 1 ? p.client : p.server, *to = i & 1 ? p.server : p.client;
        assert_int_equal(gy_chan_send(from, &m, NULL), GY_OK);
        assert_int_equal(gy_chan_flush(from, NULL), GY_OK);
        assert_int_equal(gy_chan_recv(to, NULL, &in), GY_OK);
        if (i == 100) gy_mem_get_stats(&before);
    }
    gy_mem_get_stats(&after);
    assert_int_equal(before.n_alloc, after.n_alloc);
    close_pair(&p);
}

static void slow_reader(void **state) {
    (void)state;
    static char text[GY_MSG_MAX_TEXT];
    pair p = open_pair();
    gy_msg m = fatal(text, sizeof text), in;
    gy_err err = {0};
    gy_status st = GY_OK;
    int n = 0;
    shake(&p);
    say(p.server, "bye");
    assert_int_equal(gy_chan_flush(p.server, &err), GY_OK);
    while (st == GY_OK && n < 4000) {
        st = gy_chan_send(p.client, &m, &err);
        if (st == GY_OK) assert_true(gy_chan_flush(p.client, &err) >= 0);
        n++;
    }
    assert_int_equal(st, GY_E_PEER);
    assert_non_null(strstr(err.msg, "too slowly"));
    assert_int_equal(gy_chan_recv(p.client, &err, &in), GY_OK); /* what it still says is heard */
    assert_string_equal(in.text, "bye");
    close_pair(&p);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

static void goodbye(void **state) {
    (void)state;
    for (int is_tcp = 0; is_tcp < 2; is_tcp++) {
        int fd[2];
        gy_err err = {0};
        gy_msg m, f = fatal("x", 1);
        if (is_tcp)
            open_tcp(fd, 0);
        else
            open_sockets(fd);
        pair p = chans_on(fd, &SECRET, &SECRET);
        hear(p.server, p.client, (say(p.server, "first"), "first"));
        /* Unread bytes of the other side do not turn the goodbye into a reset. */
        say(p.client, "not read");
        assert_int_equal(gy_chan_flush(p.client, &err), GY_OK);
        if (is_tcp) poll(&(struct pollfd){.fd = fd[1], .events = POLLIN}, 1, 20000);
        say(p.server, "last words");
        assert_int_equal(gy_chan_flush(p.server, &err), GY_OK);
        gy_chan_destroy(p.server);
        if (is_tcp) poll(&(struct pollfd){.fd = fd[0], .events = POLLRDHUP}, 1, 20000);
        assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_OK);
        assert_string_equal(m.text, "last words");
        for (int i = 0; i < 2; i++) assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_DONE);
        gy_chan_send(p.client, &f, &err);
        gy_status st = gy_chan_flush(p.client, &err);
        for (int i = 0; st == GY_OK && has_turn(i); i++) { /* TCP says so after the first try */
            gy_chan_send(p.client, &f, &err);
            st = gy_chan_flush(p.client, &err);
        }
        assert_int_equal(st, GY_E_PEER);
        assert_true(strstr(err.msg, "gone") || strstr(err.msg, "reset"));
        gy_chan_destroy(p.client);
    }
}

/* A process that dies says no goodbye: its socket is closed behind its back. */
static void cut(void **state) {
    (void)state;
    int fd[2];
    gy_err err = {0};
    gy_msg m;
    open_sockets(fd);
    pair p = chans_on(fd, &SECRET, &SECRET);
    shake(&p);
    say(p.server, "last words");
    assert_int_equal(gy_chan_flush(p.server, &err), GY_OK);
    shutdown(fd[1], SHUT_RDWR);
    assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_OK);
    assert_string_equal(m.text, "last words");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_E_PEER);
        assert_string_equal(err.msg, "control channel: the other side went away without a goodbye");
    }
    close_pair(&p);
}

/* Writing to a dead peer fails first; what it had said is heard all the same. */
static void last_words(void **state) {
    (void)state;
    pair p = open_pair();
    gy_err err = {0};
    gy_msg m, f = fatal("x", 1);
    shake(&p);
    say(p.server, "out of memory");
    assert_int_equal(gy_chan_flush(p.server, &err), GY_OK);
    gy_chan_destroy(p.server);
    assert_int_equal(gy_chan_send(p.client, &f, &err), GY_OK);
    assert_int_equal(gy_chan_flush(p.client, &err), GY_E_PEER);
    assert_string_equal(err.msg, "control channel: the other side is gone");
    assert_int_equal(gy_chan_recv(p.client, &err, &m), GY_OK);
    assert_string_equal(m.text, "out of memory");
    assert_true(gy_chan_recv(p.client, &err, &m) != GY_OK);
    gy_chan_destroy(p.client);
}

/* An end that still had something to say is no end that was meant. */
static void destroyed_with_output(void **state) {
    (void)state;
    pair p = open_pair();
    gy_err err = {0};
    gy_msg m;
    static char text[GY_MSG_MAX_TEXT];
    gy_msg big = fatal(text, sizeof text);
    shake(&p);
    for (int i = 0; i < 20; i++) gy_chan_send(p.server, &big, &err);
    assert_int_equal(gy_chan_flush(p.server, &err), GY_AGAIN);
    gy_chan_destroy(p.server);
    gy_status st;
    while ((st = gy_chan_recv(p.client, &err, &m)) == GY_OK) {
    }
    assert_int_equal(st, GY_E_PEER);
    assert_non_null(strstr(err.msg, "without a goodbye"));
    gy_chan_destroy(p.client);
}

static void no_memory(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        int fd[2];
        gy_chan *c = NULL;
        gy_err err = {0};
        char byte;
        open_sockets(fd);
        gy_mem_fail_after(n);
        gy_status st = gy_chan_create_secret(fd[0], 0, &SECRET, GY_CHAN_OUT_MAX, &err, &c);
        gy_mem_fail_after(0);
        if (st < 0) {
            assert_int_equal(err.status, GY_E_NOMEM);
            assert_non_null(strstr(err.msg, "no memory for"));
            assert_null(c);
            assert_int_equal(read(fd[1], &byte, 1), 0); /* closed */
        }
        gy_chan_destroy(c);
        close(fd[1]);
        if (st == GY_OK) break;
        assert_true(n < 50);
    }
}

/* ---- the file ------------------------------------------------------------------------------------------------------
 */

static void write_secret(const char *path, const char *bytes, size_t n, mode_t mode) {
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_int_equal(write(fd, bytes, n), n);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void secret_file(void **state) {
    (void)state;
    char dir[] = "/tmp/gyre-secret-XXXXXX", path[64], link[64], big[GY_SECRET_MAX + 2];
    gy_secret a, b, c;
    gy_err err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/secret", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    memset(big, 'k', sizeof big);
    write_secret(path, "0123456789abcdef", 16, 0600);
    assert_int_equal(gy_secret_read(path, &err, &a), GY_OK);
    /* sha256sum of these 16 bytes */
    static const unsigned char want[] = {0x9f, 0x9f, 0x51, 0x11, 0xf7, 0xb2, 0x7a, 0x78, 0x1f, 0x1f, 0x1d,
                                         0xdd, 0xe5, 0xeb, 0xc2, 0xdd, 0x2b, 0x79, 0x6b, 0xfc, 0x73, 0x65,
                                         0xc9, 0xc2, 0x8b, 0x54, 0x8e, 0x56, 0x41, 0x76, 0x92, 0x9f};
    assert_memory_equal(a.key, want, 32);
    write_secret(path, "0123456789abcdef\n", 17, 0400);
    assert_int_equal(gy_secret_read(path, &err, &b), GY_OK);
    assert_memory_equal(a.key, b.key, 32);
    assert_int_equal(symlink(path, link), 0); /* what a link leads to counts */
    assert_int_equal(gy_secret_read(link, &err, &c), GY_OK);
    assert_memory_equal(a.key, c.key, 32);
    write_secret(path, "0123456789abcdef\n\n", 18, 0600);
    assert_int_equal(gy_secret_read(path, &err, &b), GY_OK);
    assert_memory_not_equal(a.key, b.key, 32);
    write_secret(path, big, GY_SECRET_MAX, 0600);
    assert_int_equal(gy_secret_read(path, &err, &b), GY_OK);

    static const struct {
        size_t n;
        mode_t mode;
        gy_status st;
        const char *says;
    } bad[] = {
        {32, 0644, GY_E_ARG, "found mode 0644, expected 0600 or 0400: chmod 600 it"},
        {32, 0640, GY_E_ARG, "found mode 0640"},
        {32, 0604, GY_E_ARG, "found mode 0604"},
        {32, 0620, GY_E_ARG, "found mode 0620"},
        {15, 0600, GY_E_ARG, "found 15 bytes, expected 16 to 4096: openssl rand -hex 32 makes one"},
        {0, 0600, GY_E_ARG, "found 0 bytes"},
        {GY_SECRET_MAX + 1, 0600, GY_E_ARG, "found more than 4096 bytes"},
        {GY_SECRET_MAX + 2, 0600, GY_E_ARG, "found more than 4096 bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&b, 7, sizeof b);
        c = b;
        write_secret(path, big, bad[i].n, bad[i].mode);
        assert_int_equal(gy_secret_read(path, &err, &b), bad[i].st);
        if (!strstr(err.msg, bad[i].says) || strncmp(err.msg, path, strlen(path))) fail_msg("%zu: %s", i, err.msg);
        assert_memory_equal(&b, &c, sizeof b); /* untouched */
    }
    unlink(path);
    assert_int_equal(gy_secret_read(path, &err, &b), GY_E_IO);
    assert_non_null(strstr(err.msg, "the secret: No such file or directory"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gy_secret_read(path, &err, &b), GY_E_ARG);
    assert_non_null(strstr(err.msg, "expected a regular file"));
    assert_int_equal(gy_secret_read(dir, &err, &b), GY_E_ARG);
    unlink(path);
    unlink(link);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order),
        cmocka_unit_test(output_while_shaking),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(flip_at_every_byte),
        cmocka_unit_test(replay),
        cmocka_unit_test(wrong_secret),
        cmocka_unit_test(garbage),
        cmocka_unit_test(plain_client),
        cmocka_unit_test(clients_without_key),
        cmocka_unit_test(clients_with_key),
        cmocka_unit_test(server_with_certificate),
        cmocka_unit_test(much_over_tcp),
        cmocka_unit_test(much_over_unix),
        cmocka_unit_test(many_records),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(goodbye),
        cmocka_unit_test(cut),
        cmocka_unit_test(last_words),
        cmocka_unit_test(destroyed_with_output),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(secret_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
