/* Discovery by etcd against a gateway that the test plays itself, byte by byte: what is asked, what any answer does,
 * and how it ends. Against the real one: tests/e2e/test_disc_etcd.py. */
#include "base_test.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "pd/disc.h"
#include "pd/disc_etcd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* ---- the gateway: connections whose requests are taken one by one ------------------------------------------------ */

enum { MAX_CONN = 32, MAX_REQ = 4096 };

typedef struct conn {
    int fd, n;
    char buf[MAX_REQ];
} conn;

typedef struct gateway {
    int fd, port, n;
    conn conns[MAX_CONN];
} gateway;

typedef struct request {
    int fd;
    char path[64], body[MAX_REQ];
} request;

static void gateway_open(gateway *g) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    g->n = 0;
    g->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(g->fd, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(g->fd, 16), 0);
    assert_int_equal(getsockname(g->fd, (struct sockaddr *)&at, &n), 0);
    g->port = ntohs(at.sin_port);
}

static void drop(gateway *g, int fd) {
    for (int i = 0; i < g->n; i++) {
        if (g->conns[i].fd != fd) continue;
        close(fd);
        g->conns[i] = g->conns[--g->n];
    }
}

static void gateway_close(gateway *g) {
    while (g->n) drop(g, g->conns[0].fd);
    if (g->fd >= 0) close(g->fd);
    g->fd = -1;
}

/* A whole request of this connection, if it is for path (NULL: any). */
static int take(conn *c, const char *path, request *r) {
    char *end = strstr(c->buf, "\r\n\r\n"), *length;
    if (!end) return 0;
    assert_non_null(length = strstr(c->buf, "Content-Length: "));
    assert_non_null(strstr(c->buf, "Content-Type: application/json\r\n"));
    assert_null(strstr(c->buf, "Expect:"));
    int n_body = atoi(length + 16), n_head = (int)(end - c->buf) + 4;
    if (c->n < n_head + n_body) return 0;
    assert_int_equal(sscanf(c->buf, "POST %63s HTTP/1.1\r\n", r->path), 1);
    if (path && strcmp(r->path, path)) return 0;
    r->fd = c->fd;
    memcpy(r->body, c->buf + n_head, (size_t)n_body);
    r->body[n_body] = '\0';
    c->n -= n_head + n_body;
    memmove(c->buf, c->buf + n_head + n_body, (size_t)c->n + 1);
    return 1;
}

static void read_conns(gateway *g, int ms) {
    struct pollfd p[MAX_CONN + 1] = {{.fd = g->fd, .events = POLLIN}};
    int n = g->n;
    for (int i = 0; i < n; i++) p[i + 1] = (struct pollfd){.fd = g->conns[i].fd, .events = POLLIN};
    if (poll(p, (nfds_t)n + 1, ms) <= 0) return;
    for (int i = n; i-- > 0;) {
        conn *c = &g->conns[i];
        if (!p[i + 1].revents) continue;
        ssize_t got = recv(c->fd, c->buf + c->n, MAX_REQ - 1 - (size_t)c->n, MSG_DONTWAIT);
        if (got <= 0) {
            drop(g, c->fd);
            continue;
        }
        c->n += (int)got;
        c->buf[c->n] = '\0';
    }
    if (p[0].revents & POLLIN) {
        assert_true(g->n < MAX_CONN);
        g->conns[g->n] = (conn){.fd = accept4(g->fd, NULL, NULL, SOCK_CLOEXEC)};
        g->n++;
    }
}

/* Waits for a request; 0: none within ms. */
static int await(gateway *g, const char *path, int ms, request *r) {
    int64_t until = gy_clock_ns() + ms * INT64_C(1000000);
    for (;;) {
        for (int i = 0; i < g->n; i++)
            if (take(&g->conns[i], path, r)) return 1;
        int64_t left = until - gy_clock_ns();
        if (left <= 0) return 0;
        read_conns(g, (int)(left / 1000000) + 1);
    }
}

static request expect(gateway *g, const char *path) {
    request r;
    if (!await(g, path, 20000, &r)) fail_msg("nobody asks for %s", path);
    return r;
}

static void put(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t w = send(fd, bytes, n, MSG_NOSIGNAL);
        if (w < 0) return; /* hung up: the test says whether it may */
        bytes += w;
        n -= (size_t)w;
    }
}

static void answer(const request *r, int status, const char *body) {
    char head[128];
    int n =
        snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                 status, strlen(body));
    put(r->fd, head, (size_t)n);
    put(r->fd, body, strlen(body));
}

static void chunk(int fd, const char *bytes, size_t n) {
    char head[32];
    put(fd, head, (size_t)snprintf(head, sizeof head, "%zx\r\n", n));
    put(fd, bytes, n);
    put(fd, "\r\n", 2);
}

#define HEADER(revision)                                                                                               \
    "\"header\":{\"cluster_id\":\"14841639068965178418\",\"member_id\":\"1\",\"revision\":\"" revision                 \
    "\",\"raft_term\":\"2\"}"
static const char CREATED[] = "{\"result\":{" HEADER("1") ",\"created\":true}}\n";

static void begin_watch(const request *r) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    put(r->fd, head, sizeof head - 1);
    chunk(r->fd, CREATED, sizeof CREATED - 1);
}

/* ---- keys in base64, by OpenSSL ---- */

static const char *b64(const char *s) {
    static char ring[8][2048];
    static int at;
    char *out = ring[at++ % 8];
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)s, (int)strlen(s));
    return out;
}

static const char *from_b64(const char *s, size_t n) {
    static char ring[4][2048];
    static int at;
    char *out = ring[at++ % 4];
    int len = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)s, (int)n);
    assert_true(len >= 0);
    for (size_t i = n; i && s[i - 1] == '='; i--) len--;
    out[len] = '\0';
    return out;
}

/* The string member of a body. */
static const char *member(const char *body, const char *key) {
    static char ring[4][2048];
    static int at;
    char *out = ring[at++ % 4], quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":\"", key);
    const char *from = strstr(body, quoted);
    if (!from) fail_msg("no %s in %s", key, body);
    from += strlen(quoted);
    size_t n = (size_t)(strchr(from, '"') - from);
    memcpy(out, from, n);
    out[n] = '\0';
    return out;
}

static void add_kv(gy_str *s, const char *key, const char *value, int revision) {
    gy_str_printf(s, "{\"key\":\"%s\",\"create_revision\":\"1\",\"mod_revision\":\"%d\",\"version\":\"1\"", b64(key),
                  revision);
    if (value) gy_str_printf(s, ",\"value\":\"%s\"", b64(value));
    gy_str_puts(s, "}");
}

static void add_worker(gy_str *s, const char *name, const char *address, int revision) {
    char key[300], value[400];
    snprintf(key, sizeof key, "/gyre/default/%s", name);
    snprintf(value, sizeof value, "{\"address\":\"%s\",\"role\":\"both\",\"version\":\"0.1.0\"}", address);
    if (s->len && s->data[s->len - 1] == '}') gy_str_putc(s, ',');
    add_kv(s, key, value, revision);
}

static void answer_list(const request *r, int revision, const char *kvs) {
    gy_str s = {0};
    gy_str_printf(&s, "{\"header\":{\"revision\":\"%d\"}", revision);
    if (kvs && *kvs) gy_str_printf(&s, ",\"kvs\":[%s],\"count\":\"9\"", kvs);
    gy_str_puts(&s, "}");
    answer(r, 200, gy_str_z(&s));
    gy_str_free(&s);
}

/* ---- the side that is tested ------------------------------------------------------------------------------------- */

typedef struct opening {
    pthread_t thread;
    gy_disc_opts opts;
    gy_status st;
    gy_err err;
    gy_disc *d;
} opening;

static void *open_on_thread(void *user) {
    opening *o = user;
    o->st = gy_disc_open(&o->opts, &o->err, &o->d);
    return NULL;
}

static void begin_open(opening *o, const char *urls) {
    *o = (opening){.opts = {.etcd = urls, .ttl_s = 3}};
    assert_int_equal(pthread_create(&o->thread, NULL, open_on_thread, o), 0);
}

static gy_disc *end_open(opening *o) {
    pthread_join(o->thread, NULL);
    if (o->st != GY_OK) fail_msg("%s", o->err.msg);
    return o->d;
}

static const char *url_of(const gateway *g) {
    static char ring[4][64];
    static int at;
    char *out = ring[at++ % 4];
    sprintf(out, "http://127.0.0.1:%d", g->port);
    return out;
}

static gy_disc *open_with(gateway *g, int revision, const char *kvs) {
    opening o;
    begin_open(&o, url_of(g));
    request r = expect(g, "/v3/kv/range");
    answer_list(&r, revision, kvs);
    return end_open(&o);
}

/* "+name=address -name=address ", after at most ms; nothing is left then. */
static const char *told(gy_disc *d, int ms) {
    static char text[GY_DISC_MAX_WORKERS * 300];
    gy_disc_event ev;
    text[0] = '\0';
    poll(&(struct pollfd){.fd = gy_disc_fd(d), .events = POLLIN}, 1, ms);
    while (gy_disc_next(d, &ev)) {
        assert_int_equal(ev.drain, 0);
        sprintf(text + strlen(text), "%c%s=%s ", ev.kind == GY_DISC_ADD ? '+' : '-', ev.name, ev.address);
    }
    assert_int_equal(poll(&(struct pollfd){.fd = gy_disc_fd(d), .events = POLLIN}, 1, 0), 0);
    return text;
}

static int log_fd;

static int set_up(void **state) {
    (void)state;
    log_fd = memfd_create("log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    gy_log_set_fd(log_fd);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    gy_log_set_fd(2);
    close(log_fd);
    return 0;
}

/* That nothing waited for one of the timers, of a second or two, only a clock can say, and on a busy machine it is late
 * at times: of three runs of a test one must be in time. All else must hold in each. */
static int n_late;

static void soon(int64_t begun_ns, int64_t most_ms) {
    n_late += gy_clock_ns() - begun_ns > most_ms * 1000000;
}

static void in_time(void **state) {
    void (*test)(void **) = (void (*)(void **))(uintptr_t)*state;
    for (int i = 0; i < 3; i++) {
        n_late = 0;
        test(state);
        if (!n_late) return;
        tear_down(state);
        set_up(state);
    }
    fail_msg("late in each of three runs");
}

static const char *logged(void) {
    static char text[1 << 16];
    ssize_t n = pread(log_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

/* The end is prompt; a published worker's lease is revoked. */
static void end_disc(gy_disc *d, gateway *g) {
    int64_t begun = gy_clock_ns();
    gy_disc_close(d);
    soon(begun, 900);
    gateway_close(g);
}

/* ---- who is there ------------------------------------------------------------------------------------------------ */

static void list_and_watch(void **state) {
    (void)state;
    gateway g;
    opening o;
    gy_str kvs = {0};
    gateway_open(&g);
    begin_open(&o, url_of(&g));
    request r = expect(&g, "/v3/kv/range");
    assert_string_equal(from_b64(member(r.body, "key"), strlen(member(r.body, "key"))), "/gyre/default/");
    assert_string_equal(from_b64(member(r.body, "range_end"), strlen(member(r.body, "range_end"))), "/gyre/default0");
    assert_string_equal(member(r.body, "limit"), "256");
    add_worker(&kvs, "a", "10.0.0.1:1", 3);
    add_worker(&kvs, "b:8100", "[fe80::1]:1", 7);
    answer_list(&r, 41, kvs.data);
    gy_disc *d = end_open(&o);
    assert_string_equal(told(d, 0), "+a=10.0.0.1:1 +b:8100=[fe80::1]:1 ");
    r = expect(&g, "/v3/watch");
    assert_string_equal(from_b64(member(r.body, "key"), strlen(member(r.body, "key"))), "/gyre/default/");
    assert_string_equal(from_b64(member(r.body, "range_end"), strlen(member(r.body, "range_end"))), "/gyre/default0");
    assert_string_equal(member(r.body, "start_revision"), "42");
    assert_non_null(strstr(r.body, "\"progress_notify\":true"));
    begin_watch(&r);
    assert_string_equal(told(d, 50), "");
    end_disc(d, &g);
    assert_string_equal(logged(), "");
    gy_str_free(&kvs);
}

/* What anybody may have put there: each is complained about once, as long as it does not change. */
static void bad_values(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *says;
    } bad[] = {
        {"none", NULL, "the value: expected a JSON object"},
        {"text", "hello", "the value: expected a JSON object"},
        {"list", "[1]", "expected an object with \\\"address\\\""},
        {"no-address", "{\"role\":\"both\"}", "expected an object with \\\"address\\\""},
        {"number", "{\"address\":5}", "expected an object with \\\"address\\\""},
        {"no-port", "{\"address\":\"h\"}", "the value's address: found 'h', expected HOST:PORT"},
        {"zero", "{\"address\":\"h:0\"}", "no port to go to"},
        {"any", "{\"address\":\":80\"}", "no host to go to"},
        {"nul", "{\"address\":\"h:1\\u0000\"}", "found a NUL byte"},
        {"two words", "{\"address\":\"h:1\"}", "the key: expected 1 to 127 visible ASCII characters"},
        {"", "{\"address\":\"h:1\"}", "the key: expected 1 to 127"},
    };
    gateway g;
    gy_str kvs = {0};
    char key[300], name[200];
    gateway_open(&g);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(key, sizeof key, "/gyre/default/%s", bad[i].name);
        if (i) gy_str_putc(&kvs, ',');
        add_kv(&kvs, key, bad[i].value, 5);
    }
    memset(name, 'n', 128);
    name[128] = '\0';
    add_worker(&kvs, name, "h:1", 5);
    add_worker(&kvs, name + 1, "h:1", 5); /* 127: good */
    gy_str_puts(&kvs, ",{\"key\":\"!!!!\",\"value\":\"e30=\",\"mod_revision\":\"5\"},{},7,");
    add_kv(&kvs, "/other/x", "{\"address\":\"h:1\"}", 6);
    gy_str_putc(&kvs, ',');
    add_kv(&kvs, "/gyre/default/more", "{\"address\":\"h:2\",\"address2\":[{\"x\":null}],\"t\":true}", 6);
    gy_disc *d = open_with(&g, 9, kvs.data);
    const char *text = told(d, 0);
    assert_int_equal(count(text, "+"), 2);
    assert_non_null(strstr(text, "+more=h:2 "));
    assert_non_null(strstr(text, "+nnnn"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!strstr(logged(), bad[i].says)) fail_msg("%s: not in %s", bad[i].says, logged());
    int n = count(logged(), "a key of etcd is no worker");
    assert_int_equal(n, sizeof bad / sizeof *bad + 4);
    for (int i = 0; i < 2; i++) { /* listed again: silence */
        request r = expect(&g, "/v3/watch");
        begin_watch(&r);
        drop(&g, r.fd);
        r = expect(&g, "/v3/kv/range");
        answer_list(&r, 9, kvs.data);
    }
    request r = expect(&g, "/v3/watch");
    assert_int_equal(count(logged(), "a key of etcd is no worker"), n);
    assert_string_equal(told(d, 0), "");
    /* A good one that turns bad is gone. */
    gy_str line = {0};
    begin_watch(&r);
    gy_str_puts(&line, "{\"result\":{\"events\":[{\"kv\":");
    add_kv(&line, "/gyre/default/more", "oops", 10);
    gy_str_puts(&line, "}]}}\n");
    chunk(r.fd, line.data, line.len);
    assert_string_equal(told(d, 20000), "-more=h:2 ");
    assert_int_equal(count(logged(), "a key of etcd is no worker"), n + 1);
    end_disc(d, &g);
    gy_str_free(&kvs);
    gy_str_free(&line);
}

static void add_put(gy_str *s, const char *name, const char *address, int revision) {
    gy_str_puts(s, s->len ? ",{\"kv\":" : "{\"kv\":");
    gy_str kv = {0};
    add_worker(&kv, name, address, revision);
    gy_str_append(s, kv.data, kv.len);
    gy_str_free(&kv);
    gy_str_puts(s, "}");
}

static void add_delete(gy_str *s, const char *name, int revision) {
    char key[300];
    snprintf(key, sizeof key, "/gyre/default/%s", name);
    gy_str_printf(s, "%s{\"type\":\"DELETE\",\"kv\":{\"key\":\"%s\",\"mod_revision\":\"%d\"}}", s->len ? "," : "",
                  b64(key), revision);
}

static void send_events(int fd, gy_str *events, size_t cut) {
    gy_str s = {0};
    gy_str_printf(&s, "{\"result\":{" HEADER("99") ",\"events\":[%s]}}\n", events->data);
    if (cut > s.len) cut = s.len;
    if (cut) chunk(fd, s.data, cut);
    if (cut && cut < s.len) usleep(300);
    if (cut < s.len) chunk(fd, s.data + cut, s.len - cut);
    gy_str_free(&s);
    gy_str_clear(events);
}

static void events(void **state) {
    (void)state;
    gateway g;
    gy_str kvs = {0}, ev = {0};
    gateway_open(&g);
    add_worker(&kvs, "a", "h:1", 3);
    gy_disc *d = open_with(&g, 10, kvs.data);
    assert_string_equal(told(d, 0), "+a=h:1 ");
    request r = expect(&g, "/v3/watch");
    begin_watch(&r);
    add_put(&ev, "b", "h:2", 11);
    add_put(&ev, "c", "h:3", 11); /* one transaction */
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 20000), "+b=h:2 +c=h:3 ");
    add_put(&ev, "b", "h:9", 12);
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 20000), "-b=h:2 +b=h:9 ");
    add_put(&ev, "c", "h:3", 13); /* put again by the same: no news */
    add_delete(&ev, "x", 14);     /* never known */
    add_delete(&ev, "b", 15);
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 20000), "-b=h:9 ");
    add_delete(&ev, "a", 9); /* older than the list */
    add_put(&ev, "old", "h:1", 10);
    add_put(&ev, "new", "h:1", 16);
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 20000), "+new=h:1 ");
    add_put(&ev, "d", "h:4", 17);
    add_delete(&ev, "d", 18); /* came and went */
    add_delete(&ev, "a", 19);
    add_put(&ev, "a", "h:1", 20);
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 100), "");
    static const char progress[] = "{\"result\":{" HEADER("77") "}}\n\n\n{\"result\":{\"events\":[]}}\n";
    chunk(r.fd, progress, sizeof progress - 1);
    /* Cut anywhere. */
    char want[64];
    for (int i = 0; i < 300; i++) {
        char address[32];
        snprintf(address, sizeof address, "cut:%d", i + 1);
        add_put(&ev, "c", address, 21 + i);
        send_events(r.fd, &ev, (size_t)i + 1);
        snprintf(want, sizeof want, "-c=%s%d +c=%s ", i ? "cut:" : "h:", i ? i : 3, address);
        assert_string_equal(told(d, 20000), want);
    }
    assert_false(await(&g, "/v3/kv/range", 0, &r)); /* all this on one watch */
    assert_string_equal(logged(), "");
    end_disc(d, &g);
    gy_str_free(&kvs);
    gy_str_free(&ev);
}

/* Whatever ends a watch: a list, and what has changed meanwhile is told. */
static void broken_watches(void **state) {
    (void)state;
    static const char *const lines[] = {
        "{\"result\":{\"header\":{},\"canceled\":true,\"compact_revision\":\"12\"}}\n",
        "{\"result\":{\"header\":{},\"canceled\":true,\"cancel_reason\":\"etcdserver: no leader\"}}\n",
        "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: server stopped\"}}\n",
        "{\"error\":\"oops\"}\n",
        "<html>\n",
        "{}\n",
        "[\n",
    };
    enum { N = sizeof lines / sizeof *lines };
    for (int i = 0; i < N + 4; i++) {
        gateway g, other;
        opening o;
        gy_str kvs = {0};
        char urls[128];
        gateway_open(&g);
        gateway_open(&other);
        snprintf(urls, sizeof urls, "%s,%s", url_of(&g), url_of(&other));
        add_worker(&kvs, "a", "h:1", 3);
        begin_open(&o, urls);
        request r = expect(&g, "/v3/kv/range");
        answer_list(&r, 10, kvs.data);
        gy_disc *d = end_open(&o);
        assert_string_equal(told(d, 0), "+a=h:1 ");
        r = expect(&g, "/v3/watch");
        assert_string_equal(member(r.body, "start_revision"), "11");
        if (i != N + 1) begin_watch(&r);
        if (i < N) chunk(r.fd, lines[i], strlen(lines[i]));
        if (i == N) put(r.fd, "0\r\n\r\n", 5); /* a clean end */
        if (i == N + 1) answer(&r, 503, "{\"error\":\"busy\",\"code\":14,\"message\":\"busy\"}");
        if (i == N + 2) { /* a line without an end */
            char *big = calloc(1, GY_ETCD_MAX_REPLY + 10);
            memset(big, 'x', GY_ETCD_MAX_REPLY + 9);
            chunk(r.fd, big, GY_ETCD_MAX_REPLY + 9);
            free(big);
        }
        if (i == N + 3) drop(&g, r.fd);
        gateway *next = i ? &other : &g; /* a compaction is no failure of the endpoint */
        r = expect(next, "/v3/kv/range");
        gy_str_clear(&kvs);
        add_worker(&kvs, "b", "h:2", 15);
        answer_list(&r, 20, kvs.data);
        const char *text = told(d, 20000);
        if (strcmp(text, "-a=h:1 +b=h:2 ")) fail_msg("line %d: %s", i, text);
        r = expect(next, "/v3/watch");
        assert_string_equal(member(r.body, "start_revision"), "21");
        end_disc(d, &g);
        gateway_close(&other);
        gy_str_free(&kvs);
    }
}

/* Between hosts a connection can die without a word. The list that is made now and then finds it out. */
static void silent_watch(void **state) {
    (void)state;
    gateway g;
    gy_str kvs = {0};
    gateway_open(&g);
    gy_disc *d = open_with(&g, 10, NULL);
    request r = expect(&g, "/v3/watch"), w = r;
    begin_watch(&r);
    assert_true(await(&g, "/v3/kv/range", 30000, &r));
    add_worker(&kvs, "a", "h:1", 15);
    answer_list(&r, 15, kvs.data);
    assert_string_equal(told(d, 20000), "+a=h:1 ");
    r = expect(&g, "/v3/watch");
    assert_string_equal(member(r.body, "start_revision"), "16");
    gy_str ev = {0}; /* what the old one says late finds nobody */
    add_delete(&ev, "a", 17);
    send_events(w.fd, &ev, 0);
    assert_string_equal(told(d, 100), "");
    end_disc(d, &g);
    gy_str_free(&kvs);
    gy_str_free(&ev);
}

static void too_many(void **state) {
    (void)state;
    gateway g;
    gy_str kvs = {0}, ev = {0}, body = {0};
    gateway_open(&g);
    for (int i = 0; i < GY_DISC_MAX_WORKERS + 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%02d", i);
        add_worker(&kvs, name, "h:1", 5);
    }
    gy_disc *d = open_with(&g, 10, kvs.data);
    assert_int_equal(count(told(d, 0), "+w"), GY_DISC_MAX_WORKERS);
    assert_int_equal(count(logged(), "etcd has more workers than are used"), 1);
    request r = expect(&g, "/v3/watch");
    begin_watch(&r);
    add_delete(&ev, "w07", 11);
    send_events(r.fd, &ev, 0);
    assert_string_equal(told(d, 20000), "-w07=h:1 ");
    r = expect(&g, "/v3/kv/range"); /* there is room for another */
    gy_str_puts(&body, "{\"header\":{\"revision\":\"11\"},\"more\":true,\"kvs\":[");
    for (int i = 0; i < GY_DISC_MAX_WORKERS + 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%02d", i);
        gy_str kv = {0};
        add_worker(&kv, name, "h:1", 5);
        if (i != 7) gy_str_printf(&body, "%s%s", i ? "," : "", kv.data);
        gy_str_free(&kv);
    }
    gy_str_puts(&body, "]}");
    answer(&r, 200, body.data);
    assert_string_equal(told(d, 20000), "+w64=h:1 ");
    end_disc(d, &g);
    gy_str_free(&kvs);
    gy_str_free(&ev);
    gy_str_free(&body);
}

/* ---- endpoints --------------------------------------------------------------------------------------------------- */

static void nobody_answers(void **state) {
    (void)state;
    gateway a, b;
    opening o;
    char urls[128];
    gateway_open(&a);
    gateway_open(&b);
    snprintf(urls, sizeof urls, "%s/,%s", url_of(&a), url_of(&b));
    gateway_close(&a); /* refused */
    begin_open(&o, urls);
    request r = expect(&b, "/v3/kv/range");
    answer(&r, 503, "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\",\"code\":14}");
    pthread_join(o.thread, NULL);
    assert_int_equal(o.st, GY_E_IO);
    assert_non_null(strstr(o.err.msg, "etcd: no endpoint answers: http://127.0.0.1:"));
    assert_non_null(strstr(o.err.msg, "onnect"));
    assert_non_null(strstr(o.err.msg, "HTTP status 503: etcdserver: no leader"));
    gateway_close(&b);
}

/* Not all that answers is etcd. */
static void bad_replies(void **state) {
    (void)state;
    static const char *const bodies[] = {"",
                                         "hello",
                                         "{}",
                                         "[]",
                                         "{\"header\":{\"revision\":\"x\"}}",
                                         "{\"header\":{\"revision\":\"5\"},\"kvs\":7}",
                                         "{\"header\":{\"revision\":\"5\"}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        gateway g;
        opening o;
        gateway_open(&g);
        begin_open(&o, url_of(&g));
        request r = expect(&g, "/v3/kv/range");
        answer(&r, 200, bodies[i]);
        pthread_join(o.thread, NULL);
        assert_int_equal(o.st, GY_E_IO);
        if (!strstr(o.err.msg, "not what etcd says")) fail_msg("case %zu: %s", i, o.err.msg);
        gateway_close(&g);
    }
}

static void next_endpoint(void **state) {
    (void)state;
    gateway a, b;
    opening o;
    char urls[128];
    gateway_open(&a);
    gateway_open(&b);
    snprintf(urls, sizeof urls, "%s,%s", url_of(&a), url_of(&b));
    int64_t begun = gy_clock_ns();
    begin_open(&o, urls); /* a takes the connection and says nothing */
    request r = expect(&b, "/v3/kv/range");
    assert_true(gy_clock_ns() - begun > 1900000000);
    soon(begun, 4900);
    expect(&a, "/v3/kv/range"); /* was given up */
    answer_list(&r, 5, NULL);
    gy_disc *d = end_open(&o);
    r = expect(&b, "/v3/watch");
    begin_watch(&r);
    /* b dies in the middle of an answer; a has come to life. */
    drop(&b, r.fd);
    r = expect(&a, "/v3/kv/range");
    static const char half[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"header\":";
    put(r.fd, half, sizeof half - 1);
    drop(&a, r.fd);
    r = expect(&b, "/v3/kv/range");
    gy_str kvs = {0};
    add_worker(&kvs, "a", "h:1", 6);
    answer_list(&r, 6, kvs.data);
    assert_string_equal(told(d, 20000), "+a=h:1 ");
    gy_disc_close(d);
    gy_str_free(&kvs);
    gateway_close(&a);
    gateway_close(&b);
}

/* etcd is away for long: waits grow and are not all the same; who is known stays; one line in the log. */
static void long_outage(void **state) {
    (void)state;
    gateway g;
    gy_str kvs = {0};
    int64_t at[8];
    gateway_open(&g);
    add_worker(&kvs, "a", "h:1", 3);
    gy_disc *d = open_with(&g, 10, kvs.data);
    assert_string_equal(told(d, 0), "+a=h:1 ");
    request r = expect(&g, "/v3/watch");
    begin_watch(&r);
    drop(&g, r.fd);
    for (int i = 0; i < 6; i++) {
        r = expect(&g, "/v3/kv/range");
        at[i] = gy_clock_ns();
        answer(&r, 500, "no");
    }
    for (int i = 1; i < 6; i++) {
        int64_t most = 100000000ll << (i - 1);
        if (most > 3000000000) most = 3000000000;
        assert_true(at[i] - at[i - 1] >= most / 2 - 1000000);
        n_late += at[i] - at[i - 1] > most + 300000000;
    }
    assert_string_equal(told(d, 0), "");
    assert_int_equal(count(logged(), "etcd does not answer: who is known stays"), 1);
    r = expect(&g, "/v3/kv/range");
    answer_list(&r, 10, kvs.data);
    r = expect(&g, "/v3/watch");
    assert_int_equal(count(logged(), "etcd does not answer"), 1);
    end_disc(d, &g);
    gy_str_free(&kvs);
}

/* ---- who is published -------------------------------------------------------------------------------------------- */

static void answer_lease(const request *r, const char *id, const char *ttl) {
    char text[256];
    snprintf(text, sizeof text, "{" HEADER("5") ",\"ID\":\"%s\",\"TTL\":\"%s\"}", id, ttl);
    answer(r, 200, text);
}

static void answer_alive(const request *r, const char *id, const char *ttl) {
    char text[256];
    snprintf(text, sizeof text, "{\"result\":{" HEADER("5") ",\"ID\":\"%s\"%s%s%s}}\n", id, ttl ? ",\"TTL\":\"" : "",
             ttl ? ttl : "", ttl ? "\"" : "");
    answer(r, 200, text);
}

static void assert_put(const request *r, const char *name, const char *address, const char *lease) {
    char key[200], value[200];
    snprintf(key, sizeof key, "/gyre/default/%s", name);
    snprintf(value, sizeof value, "{\"address\":\"%s\",\"version\":\"" GY_VERSION "\"}", address);
    assert_string_equal(from_b64(member(r->body, "key"), strlen(member(r->body, "key"))), key);
    assert_string_equal(from_b64(member(r->body, "value"), strlen(member(r->body, "value"))), value);
    assert_string_equal(member(r->body, "lease"), lease);
}

static const char NOT_FOUND[] = "{\"error\":\"etcdserver: requested lease not found\",\"message\":\"etcdserver: "
                                "requested lease not found\",\"code\":5}";

static void publish(gy_disc *d, const char *name, const char *address) {
    gy_err err = {0};
    if (gy_disc_publish(d, name, address, &err) != GY_OK) fail_msg("%s", err.msg);
}

static void grant_and_put(gateway *g, const char *name, const char *address, const char *id) {
    request r = expect(g, "/v3/lease/grant");
    assert_string_equal(r.body, "{\"TTL\":\"3\"}");
    answer_lease(&r, id, "3");
    r = expect(g, "/v3/kv/put");
    assert_put(&r, name, address, id);
    answer(&r, 200, "{}");
}

static void lease_life(void **state) {
    (void)state;
    gateway g;
    char body[64];
    gateway_open(&g);
    gy_disc *d = open_with(&g, 1, NULL);
    request r = expect(&g, "/v3/watch");
    begin_watch(&r);
    publish(d, "w", "10.0.0.1:8100");
    int64_t begun = gy_clock_ns();
    grant_and_put(&g, "w", "10.0.0.1:8100", "7587862094067839491");
    for (int i = 0; i < 2; i++) { /* every third of its time */
        r = expect(&g, "/v3/lease/keepalive");
        assert_string_equal(r.body, "{\"ID\":\"7587862094067839491\"}");
        assert_true(gy_clock_ns() - begun > 900000000);
        soon(begun, 2500);
        begun = gy_clock_ns();
        answer_alive(&r, "7587862094067839491", "3");
    }
    /* Gone: etcd was away for longer than it, or was restored. */
    r = expect(&g, "/v3/lease/keepalive");
    answer_alive(&r, "7587862094067839491", NULL);
    begun = gy_clock_ns();
    grant_and_put(&g, "w", "10.0.0.1:8100", "22");
    soon(begun, 900);
    assert_int_equal(count(logged(), "etcd has dropped this worker's lease"), 1);
    /* Gone between the grant and the put. */
    r = expect(&g, "/v3/lease/keepalive");
    answer_alive(&r, "22", "0");
    r = expect(&g, "/v3/lease/grant");
    answer_lease(&r, "33", "3");
    r = expect(&g, "/v3/kv/put");
    answer(&r, 404, NOT_FOUND);
    grant_and_put(&g, "w", "10.0.0.1:8100", "44");
    /* An etcd that does not answer is asked again, in less than the lease's time. */
    r = expect(&g, "/v3/lease/keepalive");
    answer(&r, 503, "{}");
    begun = gy_clock_ns();
    r = expect(&g, "/v3/lease/keepalive");
    soon(begun, 900);
    assert_string_equal(r.body, "{\"ID\":\"44\"}");
    assert_int_equal(count(logged(), "this worker's place in etcd cannot be kept"), 1);
    drop(&g, r.fd);
    r = expect(&g, "/v3/lease/keepalive");
    answer_alive(&r, "44", "3");
    assert_int_equal(count(logged(), "this worker's place in etcd cannot be kept"), 1);
    /* Withdrawn at once, and not published again by itself. */
    gy_disc_withdraw(d);
    begun = gy_clock_ns();
    r = expect(&g, "/v3/lease/revoke");
    soon(begun, 900);
    assert_string_equal(r.body, "{\"ID\":\"44\"}");
    answer(&r, 200, "{}");
    assert_false(await(&g, "/v3/lease/grant", 300, &r));
    gy_disc_withdraw(d); /* of nothing */
    /* Another name: the old one goes first. */
    publish(d, "x", "h:1");
    grant_and_put(&g, "x", "h:1", "55");
    publish(d, "y", "h:2");
    r = expect(&g, "/v3/lease/revoke");
    snprintf(body, sizeof body, "{\"ID\":\"%s\"}", "55");
    assert_string_equal(r.body, body);
    answer(&r, 404, NOT_FOUND); /* as good */
    grant_and_put(&g, "y", "h:2", "66");
    gy_disc_withdraw(d);
    r = expect(&g, "/v3/lease/revoke");
    answer(&r, 200, "{}");
    await(&g, "/v3/lease/grant", 50, &r);
    end_disc(d, &g);
}

/* The owner ends: the lease is revoked if etcd answers within a second, and left to expire if not. */
static void ends(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        gateway g;
        opening o;
        gateway_open(&g);
        gy_disc *d = open_with(&g, 1, NULL);
        request r = expect(&g, "/v3/watch");
        begin_watch(&r);
        publish(d, "w", "h:1");
        if (i == 3) r = expect(&g, "/v3/lease/grant"); /* in the middle of it */
        if (i != 3) grant_and_put(&g, "w", "h:1", "7");
        if (i == 4) r = expect(&g, "/v3/lease/keepalive");
        int64_t begun = gy_clock_ns();
        o.d = d;
        if (i == 0 || i == 4) { /* answered */
            pid_t pid = fork();
            if (!pid) {
                r = expect(&g, "/v3/lease/revoke");
                answer(&r, 200, "{}");
                _exit(strcmp(r.body, "{\"ID\":\"7\"}") != 0);
            }
            gy_disc_close(o.d);
            int status = -1;
            waitpid(pid, &status, 0);
            assert_int_equal(status, 0);
            soon(begun, 950);
        } else if (i == 1) { /* hangs */
            gy_disc_close(o.d);
            assert_true(gy_clock_ns() - begun > 900000000);
            soon(begun, 3000);
        } else { /* refused: no use in waiting */
            gateway_close(&g);
            gy_disc_close(o.d);
            soon(begun, 500);
        }
        gateway_close(&g);
    }
}

static void hanging_end(void **state) {
    (void)state;
    gateway g;
    gateway_open(&g);
    gy_disc *d = open_with(&g, 1, NULL);
    request r = expect(&g, "/v3/watch"); /* asked, and never answered */
    (void)r;
    end_disc(d, &g);
    gy_disc_close(NULL);
}

static void bad_arguments(void **state) {
    (void)state;
    static const struct {
        gy_disc_opts o;
        const char *says;
    } bad[] = {
        {{.etcd = ""}, "found no endpoint"},
        {{.etcd = ",,"}, "found no endpoint"},
        {{.etcd = "10.0.0.1:2379"}, "found '10.0.0.1:2379', expected http://HOST:PORT or https://HOST:PORT"},
        {{.etcd = "http://"}, "found 'http://'"},
        {{.etcd = "http://a,ftp://b"}, "found 'ftp://b'"},
        {{.etcd = "http://a b"}, "found 'http://a b'"},
        {{.etcd = "http://a?x=1"}, "found 'http://a?x=1'"},
        {{.etcd = "http://a", .ttl_s = 1}, "found a lease of 1 s, expected 2 to 3600"},
        {{.etcd = "http://a", .ttl_s = -5}, "found a lease of -5 s"},
        {{.etcd = "http://a", .prefix = ""}, "the prefix: expected 1 to 127 visible ASCII characters"},
        {{.etcd = "http://a", .prefix = "/gyre/a b/"}, "the prefix"},
        {{.etcd = "http://a,http://a,http://a,http://a,http://a,http://a,http://a,http://a,http://a,http://a,http://a,"
                  "http://a,http://a,http://a,http://a,http://a,http://a"},
         "found more than 16 endpoints"},
    };
    gy_err err = {0};
    gy_disc *d = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (gy_disc_open(&bad[i].o, &err, &d) != GY_E_ARG || !strstr(err.msg, bad[i].says))
            fail_msg("%zu: %s", i, err.msg);
        assert_null(d);
    }
    gateway g;
    gateway_open(&g);
    d = open_with(&g, 1, NULL);
    assert_int_equal(gy_disc_publish(d, "", "h:1", &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "a worker's name"));
    assert_int_equal(gy_disc_publish(d, "a b", "h:1", &err), GY_E_ARG);
    assert_int_equal(gy_disc_publish(d, "a", "h", &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "a worker's address: found 'h', expected HOST:PORT"));
    assert_int_equal(gy_disc_publish(d, "a", ":80", &err), GY_E_ARG);
    request r;
    assert_false(await(&g, "/v3/lease/grant", 100, &r));
    end_disc(d, &g);
}

/* ---- no memory: an etcd that answers by itself ------------------------------------------------------------------- */

typedef struct automaton {
    gateway g;
    volatile int stop;
    pthread_t thread;
} automaton;

static void *serve(void *user) {
    automaton *a = user;
    request r;
    while (!__atomic_load_n(&a->stop, __ATOMIC_RELAXED)) {
        if (!await(&a->g, NULL, 20, &r)) continue;
        if (!strcmp(r.path, "/v3/kv/range"))
            answer(&r, 200,
                   "{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"L2d5cmUvZGVmYXVsdC9h\",\"mod_revision\":\"3\","
                   "\"value\":\"eyJhZGRyZXNzIjoiaDoxIn0=\"}]}");
        else if (!strcmp(r.path, "/v3/watch"))
            begin_watch(&r);
        else
            answer_lease(&r, "7", "3");
    }
    return NULL;
}

static void no_memory(void **state) {
    (void)state;
    automaton a = {.stop = 0};
    gateway_open(&a.g);
    assert_int_equal(pthread_create(&a.thread, NULL, serve, &a), 0);
    for (int n = 1; n < 60; n++) {
        gy_disc *d = NULL;
        gy_err err = {0};
        gy_disc_opts o = {.etcd = url_of(&a.g)};
        gy_mem_fail_after(n);
        gy_status st = gy_disc_open(&o, &err, &d);
        if (st == GY_OK) {
            publish(d, "w", "h:1");
            assert_string_equal(told(d, 20000), "+a=h:1 ");
        } else {
            assert_true(st == GY_E_NOMEM || st == GY_E_IO);
            assert_true(err.msg[0]);
        }
        gy_disc_close(d);
        gy_mem_fail_after(0);
    }
    __atomic_store_n(&a.stop, 1, __ATOMIC_RELAXED);
    pthread_join(a.thread, NULL);
    gateway_close(&a.g);
}

int main(void) {
#define TEST(f)                                                                                                        \
    { #f, in_time, set_up, tear_down, (void *)(uintptr_t)f }
    const struct CMUnitTest tests[] = {
        TEST(list_and_watch), TEST(bad_values),  TEST(events),         TEST(broken_watches), TEST(silent_watch),
        TEST(too_many),       TEST(bad_replies), TEST(nobody_answers), TEST(next_endpoint),  TEST(long_outage),
        TEST(lease_life),     TEST(ends),        TEST(hanging_end),    TEST(bad_arguments),  TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
