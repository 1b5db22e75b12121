/* The client of OpenAI's API against small servers on loopback: what comes out for every way in which bytes can arrive
 * and replies can go wrong. Times are bounded from above only.
 */
#include "base_test.h"

#include "base/clock.h"
#include "base/mem.h"
#include "cli/oai_client.h"
#include "cli/oai_sse.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

/* ---- events out of bytes ---- */

typedef struct seen {
    gy_str text; /* events, each with '|' behind it */
    int stop_at; /* the n-th one answers 7; 0: none */
    int n;
} seen;

static int see(void *user, const char *data, size_t len) {
    seen *s = user;
    assert_int_equal(strlen(data), len);
    gy_str_append(&s->text, data, len);
    gy_str_putc(&s->text, '|');
    return ++s->n == s->stop_at ? 7 : 0;
}

static const char STREAM[] = "data: {\"a\":1}\n\n"
                             ": a comment\n\n"
                             "data:{\"b\": 2}\r\n\r\n"
                             "event: x\nid: 7\nretry: 1\ndata: two\ndata:  lines\n\n"
                             "\n\n\r\n"
                             "data\n\n"
                             "data-x: no\ndatum: no\n\n"
                             "data: [DONE]\n\n"
                             "data: cut off";
static const char EVENTS[] = "{\"a\":1}|{\"b\": 2}|two\n lines||[DONE]|";

static void events_in_every_split(void **state) {
    (void)state;
    const size_t n = sizeof STREAM - 1;
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b += a % 7 ? n : 1) { /* all pairs for every seventh a */
            gy_sse s = {0};
            seen got = {0};
            gy_sse_init(&s, 100);
            assert_int_equal(gy_sse_feed(&s, STREAM, a, see, &got), 0);
            assert_int_equal(gy_sse_feed(&s, STREAM + a, b - a, see, &got), 0);
            assert_int_equal(gy_sse_feed(&s, STREAM + b, n - b, see, &got), 0);
            assert_string_equal(gy_str_z(&got.text), EVENTS);
            gy_str_free(&got.text);
            gy_sse_fini(&s);
        }
}

static void events_are_bounded(void **state) {
    (void)state;
    static const char *const too_long[] = {"data: 0123456789abcdef\n\n", "0123456789abcdefg", ": 0123456789abcdefg\n",
                                           "data: 01234567\ndata: 89abcdefg\n\n"};
    for (size_t i = 0; i < sizeof too_long / sizeof *too_long; i++)
        for (int whole = 0; whole < 2; whole++) {
            gy_sse s = {0};
            seen got = {0};
            int rc = 0;
            gy_sse_init(&s, 16);
            const size_t n = strlen(too_long[i]);
            for (size_t k = 0; k < n && !rc; k += whole ? n : 1)
                rc = gy_sse_feed(&s, too_long[i] + k, whole ? n : 1, see, &got);
            assert_int_equal(rc, GY_SSE_TOO_LARGE);
            assert_int_equal(got.n, 0);
            assert_true(s.line.cap <= 64 && s.data.cap <= 64);
            gy_sse_fini(&s);
        }
}

static void events_stop_where_told(void **state) {
    (void)state;
    gy_sse s = {0};
    seen got = {.stop_at = 2};
    gy_sse_init(&s, 100);
    assert_int_equal(gy_sse_feed(&s, STREAM, sizeof STREAM - 1, see, &got), 7);
    assert_string_equal(gy_str_z(&got.text), "{\"a\":1}|{\"b\": 2}|");
    gy_str_free(&got.text);
    gy_sse_fini(&s);
}

static void events_without_memory(void **state) {
    (void)state;
    for (int n = 1; n < 3; n++) {
        gy_sse s = {0};
        seen got = {0};
        gy_sse_init(&s, 100);
        gy_mem_fail_after(n);
        int rc = gy_sse_feed(&s, "data: a", 7, see, &got);
        if (!rc) rc = gy_sse_feed(&s, "b\n\n", 3, see, &got);
        gy_mem_fail_after(0);
        assert_int_equal(rc, GY_SSE_NO_MEMORY);
        assert_int_equal(got.n, 0);
        gy_sse_fini(&s);
    }
}

/* ---- a server: a thread a connection, what it answers is in the table by path ---- */

#define HEAD(status, type, more) "HTTP/1.1 " status "\r\nContent-Type: " type "\r\n" more "\r\n"
#define EVENT_STREAM HEAD("200 OK", "text/event-stream; charset=utf-8", "Transfer-Encoding: chunked\r\n")
#define TOKENS "data: {\"t\":1}\n\ndata: {\"t\":2}\n\n" /* 30 bytes */
#define TOKENS_HEX "1e"

typedef struct route {
    const char *path, *reply;
    enum { KEEP, CLOSE, BYTES, HANG, FLOOD_LINE, FLOOD_EVENTS, FLOOD_BODY, REFUSE } then;
} route;

static const route routes[] = {
    {"/whole", HEAD("200 OK", "application/json", "Content-Length: 7\r\n") "{\"a\":1}", KEEP},
    {"/v1/models",
     HEAD("200 OK", "application/json",
          "Content-Length: 48\r\n") "{\"object\":\"list\",\"data\":[{\"id\":\"m\"},{\"id\":\"n\"}]}",
     KEEP},
    {"/stream", EVENT_STREAM TOKENS_HEX "\r\n" TOKENS "\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", KEEP},
    {"/bytes", EVENT_STREAM TOKENS_HEX "\r\n" TOKENS "\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", BYTES},
    {"/behind", EVENT_STREAM "1d\r\ndata: [DONE]\n\ndata: {\"t\":1}\n\n\r\n0\r\n\r\n", KEEP},
    {"/until-close", HEAD("200 OK", "text/event-stream", "Connection: close\r\n") TOKENS "data: [DONE]\n\n", CLOSE},
    {"/no-done", EVENT_STREAM TOKENS_HEX "\r\n" TOKENS "\r\n0\r\n\r\n", KEEP},
    {"/cut-done", HEAD("200 OK", "text/event-stream", "Connection: close\r\n") TOKENS "data: [DON", CLOSE},
    {"/cut", EVENT_STREAM TOKENS_HEX "\r\n" TOKENS "\r\n20\r\ndata: {\"t\"", CLOSE},
    {"/cut-reply", HEAD("200 OK", "application/json", "Content-Length: 100\r\n") "{\"a\":1}", CLOSE},
    {"/cut-head", "HTTP/1.1 200 OK\r\nContent-Ty", CLOSE},
    {"/nothing", "", CLOSE},
    {"/garbage", "this is no HTTP\r\n\r\n", CLOSE},
    {"/error-event",
     EVENT_STREAM TOKENS_HEX
     "\r\n" TOKENS
     "\r\n45\r\ndata: {\"error\":{\"message\":\"the engine\\u001b[31m ended\",\"code\":500}}\n\n\r\n0\r\n\r\n",
     KEEP},
    {"/null-error", EVENT_STREAM "2a\r\ndata: {\"t\":1,\"error\":null}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n", KEEP},
    {"/word-error", EVENT_STREAM "27\r\ndata: {\"t\":\"\\\"error\\\"\"}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n", KEEP},
    {"/html", HEAD("200 OK", "text/html", "Content-Length: 8\r\n") "<p>hello", KEEP},
    {"/404",
     HEAD("404 Not Found", "application/json",
          "Content-Length: 63\r\n") "{\"error\":{\"message\":\"no such model: x\",\"type\":\"NotFoundError\"}}",
     KEEP},
    {"/422", HEAD("422 X", "application/json", "Content-Length: 21\r\n") "{\"detail\":\"too long\"}", KEEP},
    {"/429",
     HEAD("429 Too Many Requests", "application/json",
          "Retry-After: 12\r\nContent-Length: 29\r\n") "{\"error\":\"the queue is full\"}",
     KEEP},
    {"/502", HEAD("502 Bad Gateway", "text/plain", "Content-Length: 6\r\n") "a\tb\033\377c", KEEP},
    {"/500", HEAD("500 Oops", "text/plain", "Content-Length: 0\r\n"), KEEP},
    {"/302", HEAD("302 Found", "text/plain", "Location: /whole\r\nContent-Length: 0\r\n"), KEEP},
    {"/hang", "", HANG},
    {"/hang-stream", EVENT_STREAM TOKENS_HEX "\r\n" TOKENS "\r\n", HANG},
    {"/hang-done", EVENT_STREAM "e\r\ndata: [DONE]\n\n\r\n", HANG},
    {"/flood-line", EVENT_STREAM, FLOOD_LINE},
    {"/flood-body", HEAD("200 OK", "application/json", "Connection: close\r\n"), FLOOD_BODY},
    {"/flood-error", HEAD("500 Oops", "text/plain", "Content-Length: 1048576\r\n"), FLOOD_BODY},
    {"/flood-events", EVENT_STREAM, FLOOD_EVENTS},
    {"/last", HEAD("200 OK", "application/json", "Connection: close\r\nContent-Length: 2\r\n") "{}", CLOSE},
};

enum { MAX_CONN_TEST = 600 };

typedef struct server {
    int fd, port;
    pthread_t thread;
    pthread_t conn[MAX_CONN_TEST];
    int conn_fd[MAX_CONN_TEST];
    int n_conn; /* of the accepting thread, read after it was joined */
    atomic_int n_accept, n_request, stop;
    char last_head[4096]; /* of the last request, whose body is not kept; read after its reply */
    size_t last_body_len;
} server;

static server *srv;

static int send_all(int fd, const char *s, size_t n) {
    while (n) {
        const ssize_t got = send(fd, s, n, MSG_NOSIGNAL);
        if (got <= 0) return -1;
        s += got;
        n -= (size_t)got;
    }
    return 0;
}

/* Until the client goes away or the test ends. */
static void hang(int fd) {
    char c;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (!srv->stop && (poll(&p, 1, 20) == 0 || recv(fd, &c, 1, MSG_DONTWAIT) > 0)) continue;
}

static void flood(int fd, int then) {
    static char block[4096];
    static const char event[] = "11\r\ndata: {\"t\":123}\n\n\r\n";
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 256; i++) {
        if (then == FLOOD_LINE && send_all(fd, "1000\r\n", 6)) return;
        const int bad =
            then == FLOOD_EVENTS ? send_all(fd, event, sizeof event - 1) : send_all(fd, block, sizeof block);
        if (bad || (then == FLOOD_LINE && send_all(fd, "\r\n", 2))) return;
    }
    if (then == FLOOD_EVENTS) hang(fd);
}

/* 1: the connection may be asked again. */
static int answer(int fd, const char *head) {
    const route *r = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const size_t n = strlen(routes[i].path);
        const char *path = strchr(head, ' ') + 1;
        if (!strncmp(path, routes[i].path, n) && path[n] == ' ') r = &routes[i];
    }
    assert_non_null(r);
    const size_t n = strlen(r->reply);
    for (size_t i = 0; r->then == BYTES && i < n; i++)
        if (send_all(fd, r->reply + i, 1)) return 0;
    if (r->then != BYTES && send_all(fd, r->reply, n)) return 0;
    if (r->then == HANG) hang(fd);
    if (r->then == FLOOD_LINE || r->then == FLOOD_EVENTS || r->then == FLOOD_BODY) flood(fd, (int)r->then);
    return r->then == KEEP || r->then == BYTES;
}

/* Reads a request; 0 at the end of the connection. */
static int read_request(int fd, char *head, size_t cap) {
    size_t n = 0, body = 0;
    char *end = NULL;
    while (!end) {
        const ssize_t got = recv(fd, head + n, 1, 0); /* never beyond the head */
        if (got <= 0) return 0;
        n += (size_t)got;
        assert_true(n + 1 < cap);
        head[n] = '\0';
        end = strstr(head, "\r\n\r\n");
    }
    const char *length = strcasestr(head, "\r\ncontent-length: ");
    if (length) body = (size_t)atoll(length + 18);
    srv->last_body_len = body;
    for (char skip[4096]; body;) {
        const ssize_t got = recv(fd, skip, body < sizeof skip ? body : sizeof skip, 0);
        if (got <= 0) return 0;
        body -= (size_t)got;
    }
    return 1;
}

static void *serve_conn(void *arg) {
    const int fd = (int)(intptr_t)arg, one = 1;
    char head[4096];
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (read_request(fd, head, sizeof head)) {
        strcpy(srv->last_head, head);
        srv->n_request++;
        if (!answer(fd, head)) break;
    }
    shutdown(fd, SHUT_RDWR);
    return NULL;
}

static void *serve(void *arg) {
    server *s = arg;
    for (;;) {
        const int fd = accept(s->fd, NULL, NULL);
        if (fd < 0) return NULL;
        assert_true(s->n_conn < MAX_CONN_TEST);
        s->n_accept++;
        s->conn_fd[s->n_conn] = fd;
        assert_int_equal(pthread_create(&s->conn[s->n_conn++], NULL, serve_conn, (void *)(intptr_t)fd), 0);
    }
}

static int listen_any(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int server_start(void **state) {
    srv = calloc(1, sizeof *srv);
    srv->fd = listen_any(&srv->port);
    assert_int_equal(listen(srv->fd, 1024), 0);
    assert_int_equal(pthread_create(&srv->thread, NULL, serve, srv), 0);
    *state = srv;
    return 0;
}

static int server_stop(void **state) {
    (void)state;
    srv->stop = 1;
    shutdown(srv->fd, SHUT_RDWR);
    pthread_join(srv->thread, NULL);
    for (int i = 0; i < srv->n_conn; i++) {
        shutdown(srv->conn_fd[i], SHUT_RDWR);
        pthread_join(srv->conn[i], NULL);
        close(srv->conn_fd[i]);
    }
    close(srv->fd);
    free(srv);
    srv = NULL;
    return 0;
}

/* ---- the client under test ---- */

typedef struct told {
    gy_str events;
    int n_event, n_end;
    int refuse_at; /* the n-th event is not what it must be */
    int cancel_at;
    gy_oai_call *call;
    int64_t first_ns, last_ns;
    gy_oai_result r; /* without the texts */
    char body[512], msg[512];
    gy_oai *c; /* post once more from on_event or on_end */
    int again_in_event, again_at_end;
} told;

static void ask(gy_oai *c, const char *path, told *t);

static int on_event(void *user, int64_t at_ns, const char *data, size_t len) {
    told *t = user;
    assert_int_equal(strlen(data), len);
    assert_int_equal(t->n_end, 0);
    assert_true(at_ns >= t->last_ns && at_ns <= gy_clock_ns());
    if (!t->n_event) t->first_ns = at_ns;
    t->last_ns = at_ns;
    t->n_event++;
    if (t->events.len < 4096) {
        gy_str_append(&t->events, data, len);
        gy_str_putc(&t->events, '|');
    }
    if (t->again_in_event-- > 0) ask(t->c, "/stream", t + 1);
    if (t->n_event == t->cancel_at) gy_oai_cancel(t->call);
    return t->n_event == t->refuse_at;
}

static void on_end(void *user, const gy_oai_result *r) {
    told *t = user;
    t->n_end++;
    t->r = *r;
    assert_int_equal(strlen(r->body), r->body_len);
    assert_true(r->begin_ns <= r->end_ns);
    snprintf(t->body, sizeof t->body, "%s", r->body);
    snprintf(t->msg, sizeof t->msg, "%s", r->msg);
    if (t->again_at_end-- > 0) ask(t->c, "/stream", t + 1);
}

static const gy_oai_hooks stream_hooks = {on_event, on_end}, whole_hooks = {NULL, on_end};

static void ask(gy_oai *c, const char *path, told *t) {
    gy_str body = {0};
    gy_str_puts(&body, "{\"x\":1}");
    assert_int_equal(gy_oai_post(c, path, &body, &stream_hooks, t, NULL, &t->call), GY_OK);
    assert_null(body.data);
}

static gy_oai *client_for(int port, int silence_s) {
    gy_oai_opts o;
    gy_oai *c = NULL;
    gy_err err = {0};
    char url[64];
    static const char *const headers[] = {"X-Test: yes"};
    gy_oai_opts_default(&o);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/", port);
    o.url = url;
    o.api_key = "sk-1";
    o.headers = headers;
    o.n_header = 1;
    o.silence_timeout_s = silence_s;
    o.event_max = o.body_max = 100000;
    if (gy_oai_open(&o, &err, &c) < 0) fail_msg("%s", err.msg);
    return c;
}

static void run_all(gy_oai *c) {
    const int64_t until = gy_clock_ns() + 20000000000;
    gy_err err = {0};
    while (gy_oai_n_open(c)) {
        if (gy_oai_step(c, until, &err) < 0) fail_msg("%s", err.msg);
        assert_true(gy_clock_ns() < until);
    }
}

static void told_free(told *t) {
    gy_str_free(&t->events);
}

static void one(const char *path, int whole, told *t) {
    gy_oai *c = client_for(srv->port, !strncmp(path, "/hang", 5) ? 1 : 20);
    *t = (told){0};
    if (whole)
        assert_int_equal(gy_oai_get(c, path, &whole_hooks, t, NULL, NULL), GY_OK);
    else
        ask(c, path, t);
    run_all(c);
    assert_int_equal(t->n_end, 1);
    gy_oai_close(c);
}

typedef struct expect {
    const char *path;
    int whole;
    gy_oai_end end;
    int status;
    const char *events, *body, *msg; /* msg: what it holds */
} expect;

static const expect table[] = {
    {"/whole", 1, GY_OAI_DONE, 200, "", "{\"a\":1}", ""},
    {"/stream", 0, GY_OAI_DONE, 200, "{\"t\":1}|{\"t\":2}|", "", ""},
    {"/bytes", 0, GY_OAI_DONE, 200, "{\"t\":1}|{\"t\":2}|", "", ""},
    {"/behind", 0, GY_OAI_DONE, 200, "", "", ""},
    {"/until-close", 0, GY_OAI_DONE, 200, "{\"t\":1}|{\"t\":2}|", "", ""},
    {"/stream", 1, GY_OAI_DONE, 200, "", TOKENS "data: [DONE]\n\n", ""},
    {"/no-done", 0, GY_OAI_BROKEN, 200, "{\"t\":1}|{\"t\":2}|", "", "the stream ended before [DONE]"},
    {"/cut-done", 0, GY_OAI_BROKEN, 200, "{\"t\":1}|{\"t\":2}|", "", "the stream ended before [DONE]"},
    {"/cut", 0, GY_OAI_BROKEN, 200, "{\"t\":1}|{\"t\":2}|", "", " "},
    {"/cut-reply", 1, GY_OAI_BROKEN, 200, "", "{\"a\":1}", "93 bytes"},
    {"/cut-head", 0, GY_OAI_BROKEN, 200, "", "", "ended within the head"},
    {"/nothing", 0, GY_OAI_BROKEN, 0, "", "", "Empty reply"},
    {"/garbage", 0, GY_OAI_MALFORMED, 0, "", "", "HTTP/0.9"},
    {"/error-event", 0, GY_OAI_ERROR, 200, "{\"t\":1}|{\"t\":2}|", "", "the stream says: the engine [31m ended"},
    {"/null-error", 0, GY_OAI_DONE, 200, "{\"t\":1,\"error\":null}|", "", ""},
    {"/word-error", 0, GY_OAI_DONE, 200, "{\"t\":\"\\\"error\\\"\"}|", "", ""},
    {"/html", 0, GY_OAI_MALFORMED, 200, "", "<p>hello", "the reply is no stream of events: <p>hello"},
    {"/404", 0, GY_OAI_HTTP, 404, "", "{\"error\":{\"message\":\"no such model: x\",\"type\":\"NotFoundError\"}}",
     "HTTP 404: no such model: x"},
    {"/422", 1, GY_OAI_HTTP, 422, "", "{\"detail\":\"too long\"}", "HTTP 422: too long"},
    {"/429", 0, GY_OAI_HTTP, 429, "", "{\"error\":\"the queue is full\"}", "HTTP 429: the queue is full"},
    {"/502", 0, GY_OAI_HTTP, 502, "", "a\tb\033\377c", "HTTP 502: a b \357\277\275c"},
    {"/500", 1, GY_OAI_HTTP, 500, "", "", "HTTP 500"},
    {"/302", 1, GY_OAI_HTTP, 302, "", "", "HTTP 302"},
    {"/hang", 0, GY_OAI_TIMEOUT, 0, "", "", "nothing came for 1 seconds"},
    {"/hang-stream", 0, GY_OAI_TIMEOUT, 200, "{\"t\":1}|{\"t\":2}|", "", "nothing came for 1 seconds"},
    {"/hang-done", 0, GY_OAI_DONE, 200, "", "", ""},
    {"/flood-line", 0, GY_OAI_TOO_LARGE, 200, "", "", "more than 100000 bytes"},
    {"/flood-body", 1, GY_OAI_TOO_LARGE, 200, "", NULL, "more than 100000 bytes"},
    {"/flood-error", 0, GY_OAI_HTTP, 500, "", NULL, "HTTP 500: xxx"},
};

static void every_end(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const expect *e = &table[i];
        told t;
        one(e->path, e->whole, &t);
        if (t.r.end != e->end || t.r.http_status != e->status || !strstr(t.msg, e->msg) || !e->msg[0] != !t.msg[0] ||
            strcmp(gy_str_z(&t.events), e->events) != 0 || (e->body && strcmp(t.body, e->body) != 0))
            fail_msg("%s: %s, status %d, '%s', events '%s', body '%s'", e->path, gy_oai_end_name(t.r.end),
                     t.r.http_status, t.msg, gy_str_z(&t.events), t.body);
        assert_int_equal(t.r.retry_after, t.r.http_status == 429 ? 12 : -1);
        told_free(&t);
    }
}

static void unreached(void **state) {
    (void)state;
    int port;
    const int fd = listen_any(&port); /* bound and not listening: refused */
    gy_oai *c = client_for(port, 1);
    told t = {0};
    ask(c, "/x", &t);
    run_all(c);
    assert_int_equal(t.r.end, GY_OAI_UNREACHED);
    assert_int_equal(t.r.http_status, 0);
    assert_non_null(strstr(t.msg, "connect"));
    gy_str body = {0};
    gy_err err = {0};
    int status = 9;
    assert_int_equal(gy_oai_fetch(c, "/health", &err, &body, &status), GY_E_PEER);
    assert_int_equal(status, 0);
    assert_non_null(strstr(err.msg, "/health: "));
    gy_oai_close(c);
    close(fd);
}

static void what_is_sent(void **state) {
    (void)state;
    told t;
    one("/stream", 0, &t);
    const char *h = srv->last_head;
    assert_memory_equal(h, "POST /stream HTTP/1.1\r\n", 23); /* "/v1/" of the URL is not doubled */
    assert_non_null(strstr(h, "\r\nAuthorization: Bearer sk-1\r\n"));
    assert_non_null(strstr(h, "\r\nX-Test: yes\r\n"));
    assert_non_null(strstr(h, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(h, "\r\nContent-Length: 7\r\n"));
    assert_null(strstr(h, "Expect"));
    told_free(&t);
    one("/whole", 1, &t);
    assert_memory_equal(h, "GET /whole HTTP/1.1\r\n", 21);
    assert_null(strstr(h, "Content-Length"));
    assert_null(strstr(h, "Content-Type"));
}

/* A long body goes out at once, and whole. */
static void long_body(void **state) {
    (void)state;
    enum { LONG = 5 << 20 };
    gy_oai *c = client_for(srv->port, 5);
    gy_str body = {0};
    told t = {0};
    const int64_t begin = gy_clock_ns();
    for (int i = 0; i < LONG / 8; i++) gy_str_append(&body, "12345678", 8);
    assert_int_equal(gy_oai_post(c, "/stream", &body, &stream_hooks, &t, NULL, NULL), GY_OK);
    run_all(c);
    assert_int_equal(t.r.end, GY_OAI_DONE);
    assert_int_equal(srv->last_body_len, LONG);
    assert_true(gy_clock_ns() - begin < 20000000000);
    told_free(&t);
    gy_oai_close(c);
}

/* Calls after each other use one connection; a server that closes it is asked on a new one. */
static void connections_are_kept(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 5);
    for (int i = 0; i < 10; i++) {
        told t = {0};
        ask(c, i == 4 ? "/last" : "/stream", &t);
        run_all(c);
        assert_int_equal(t.r.end, i == 4 ? GY_OAI_MALFORMED : GY_OAI_DONE);
        told_free(&t);
    }
    assert_int_equal(srv->n_accept, 2);
    gy_oai_close(c);
}

static void many_at_once(void **state) {
    (void)state;
    enum { N = 500 };
    gy_oai *c = client_for(srv->port, 10);
    told *t = calloc(N, sizeof *t);
    for (int i = 0; i < N; i++) ask(c, "/stream", &t[i]);
    assert_int_equal(gy_oai_n_open(c), N);
    run_all(c);
    for (int i = 0; i < N; i++) {
        assert_int_equal(t[i].r.end, GY_OAI_DONE);
        assert_string_equal(gy_str_z(&t[i].events), "{\"t\":1}|{\"t\":2}|");
        told_free(&t[i]);
    }
    free(t);
    gy_oai_close(c);
}

static void on_event_refuses(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 5);
    told t = {.refuse_at = 2};
    ask(c, "/stream", &t);
    run_all(c);
    assert_int_equal(t.r.end, GY_OAI_MALFORMED);
    assert_int_equal(t.n_event, 2);
    assert_non_null(strstr(t.msg, "an event is not what a server of this API sends: {\"t\":2}"));
    told_free(&t);
    gy_oai_close(c);
}

static void cancel_inside_and_outside(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 30);
    told t[4] = {{.cancel_at = 5}};
    gy_err err;
    const int64_t begin = gy_clock_ns();
    ask(c, "/flood-events", &t[0]); /* cancels itself at its fifth event */
    ask(c, "/hang-stream", &t[1]);
    ask(c, "/hang", &t[2]);
    ask(c, "/stream", &t[3]); /* cancelled before it was ever sent */
    gy_oai_cancel(t[3].call);
    while (t[1].n_event < 2 || !t[0].n_end) assert_int_equal(gy_oai_step(c, begin + 20000000000, &err), GY_OK);
    gy_oai_cancel(t[1].call);
    gy_oai_cancel(t[2].call);
    assert_int_equal(t[1].n_end, 0); /* not out of cancel */
    run_all(c);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(t[i].n_end, 1);
        assert_int_equal(t[i].r.end, GY_OAI_CANCELLED);
        assert_string_equal(t[i].msg, "cancelled");
        told_free(&t[i]);
    }
    assert_int_equal(t[0].n_event, 5);
    assert_int_equal(t[3].n_event, 0);
    assert_true(gy_clock_ns() - begin < 20000000000);
    gy_oai_close(c);
}

/* Where nothing comes from anywhere: silence is seen when it has lasted, without turns before; a cancel at once. */
static void nothing_else_wakes(void **state) {
    (void)state;
    told t[2] = {{.c = NULL}};
    gy_err err;
    int n_step = 0;
    gy_oai *c = client_for(srv->port, 1);
    int64_t begin = gy_clock_ns();
    ask(c, "/hang", &t[0]);
    for (; !t[0].n_end; n_step++) assert_int_equal(gy_oai_step(c, begin + 60000000000, &err), GY_OK);
    assert_int_equal(t[0].r.end, GY_OAI_TIMEOUT);
    assert_true(gy_clock_ns() - begin < 20000000000);
    assert_true(n_step < 50);
    gy_oai_close(c);
    c = client_for(srv->port, 0);
    ask(c, "/hang-stream", &t[1]);
    while (t[1].n_event < 2) assert_int_equal(gy_oai_step(c, -1, &err), GY_OK);
    /* What libcurl has timers for is over then. */
    for (begin = gy_clock_ns(); gy_clock_ns() < begin + 700000000;)
        assert_int_equal(gy_oai_step(c, begin + 700000000, &err), GY_OK);
    begin = gy_clock_ns();
    gy_oai_cancel(t[1].call);
    assert_int_equal(gy_oai_step(c, begin + 60000000000, &err), GY_OK);
    assert_int_equal(t[1].n_end, 1);
    assert_true(gy_clock_ns() - begin < 20000000000);
    gy_oai_close(c);
    for (int i = 0; i < 2; i++) told_free(&t[i]);
}

static void callbacks_may_ask(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 5);
    told t[3] = {{.c = c, .again_in_event = 1}, {.c = c, .again_at_end = 1}, {.c = c}};
    ask(c, "/stream", &t[0]);
    run_all(c);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].r.end, GY_OAI_DONE);
        assert_int_equal(t[i].n_event, 2);
        told_free(&t[i]);
    }
    gy_oai_close(c);
}

static void *wake_soon(void *arg) {
    poll(NULL, 0, 50);
    gy_oai_wake(arg);
    return NULL;
}

static void waits_end(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 0);
    gy_err err;
    told t = {0};
    pthread_t th;
    int64_t begin = gy_clock_ns();
    ask(c, "/hang", &t);
    while (gy_clock_ns() < begin + 30000000) gy_oai_step(c, begin + 30000000, &err); /* its time comes */
    assert_true(gy_clock_ns() - begin < 20000000000);
    gy_oai_wake(c); /* a wake before the wait counts */
    begin = gy_clock_ns();
    assert_int_equal(gy_oai_step(c, -1, &err), GY_OK);
    assert_int_equal(pthread_create(&th, NULL, wake_soon, c), 0);
    while (gy_clock_ns() - begin < 40000000) gy_oai_step(c, -1, &err);
    pthread_join(th, NULL);
    assert_true(gy_clock_ns() - begin < 20000000000);
    assert_int_equal(t.n_end, 0);
    gy_oai_close(c); /* with an open call, which hears nothing */
    assert_int_equal(t.n_end, 0);
}

static void fetch_and_first_model(void **state) {
    (void)state;
    gy_oai *c = client_for(srv->port, 5);
    gy_str body = {0};
    gy_err err = {0};
    char *name = NULL;
    int status = 0;
    assert_int_equal(gy_oai_fetch(c, "/whole", &err, &body, &status), GY_OK);
    assert_string_equal(body.data, "{\"a\":1}");
    assert_int_equal(status, 200);
    assert_int_equal(gy_oai_first_model(c, &err, &name), GY_OK);
    assert_string_equal(name, "m");
    gy_mem_free(name);
    gy_str_clear(&body);
    assert_int_equal(gy_oai_fetch(c, "/404", &err, &body, &status), GY_E_PEER);
    assert_int_equal(status, 404);
    assert_non_null(strstr(err.msg, "/404: HTTP 404: no such model: x"));
    assert_int_equal(body.len, 0);
    gy_str_free(&body);
    gy_oai_close(c);
}

static void bad_options(void **state) {
    (void)state;
    static const char *const urls[] = {NULL,      "",         "127.0.0.1:8000", "ftp://x",
                                       "http://", "https://", "http://a b",     "http://x/?q"};
    static const char *const headers[] = {"no colon", ": x", "A: b\r\nC: d"};
    gy_oai_opts o;
    gy_oai *c = NULL;
    gy_err err = {0};
    gy_oai_opts_default(&o);
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        o.url = urls[i];
        assert_int_equal(gy_oai_open(&o, &err, &c), GY_E_ARG);
        assert_non_null(strstr(err.msg, "--url: found '"));
    }
    o.url = "http://x";
    o.n_header = 1;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        o.headers = &headers[i];
        assert_int_equal(gy_oai_open(&o, &err, &c), GY_E_ARG);
        assert_non_null(strstr(err.msg, "--header: found '"));
    }
    o.n_header = 0;
    o.api_key = "a\nb";
    assert_int_equal(gy_oai_open(&o, &err, &c), GY_E_ARG);
    assert_non_null(strstr(err.msg, "--api-key: "));
    o.api_key = NULL;
    o.cacert = "/nonexistent.pem";
    assert_int_equal(gy_oai_open(&o, &err, &c), GY_E_ARG);
    assert_non_null(strstr(err.msg, "--cacert: /nonexistent.pem: cannot read"));
    assert_null(c);
}

/* The n-th allocation fails, for all n: the call ends with a word or was never made, and nothing is left behind. */
static void failing_memory(void **state) {
    (void)state;
    int ended_well = 0;
    for (int n = 1; n < 40 && !ended_well; n++) {
        gy_mem_stats before, after;
        gy_mem_get_stats(&before);
        gy_oai_opts o;
        gy_oai *c = NULL;
        gy_err err = {0};
        told t = {0};
        gy_str body = {0};
        char url[64];
        snprintf(url, sizeof url, "http://127.0.0.1:%d", srv->port);
        gy_oai_opts_default(&o);
        o.url = url;
        gy_str_puts(&body, "{}");
        gy_mem_fail_after(n);
        gy_status st = gy_oai_open(&o, &err, &c);
        if (st == GY_OK) st = gy_oai_post(c, "/stream", &body, &stream_hooks, &t, &err, NULL);
        if (st == GY_OK) run_all(c);
        gy_mem_fail_after(0);
        if (st < 0) assert_int_equal(st, GY_E_NOMEM);
        if (st == GY_OK) {
            assert_int_equal(t.n_end, 1);
            ended_well = t.r.end == GY_OAI_DONE && t.n_event == 2 && !t.events.failed;
            if (t.r.end != GY_OAI_DONE) assert_int_equal(t.r.end, GY_OAI_NO_MEMORY);
        }
        gy_str_free(&body);
        told_free(&t);
        gy_oai_close(c);
        gy_mem_get_stats(&after);
        for (int i = 0; i < GY_MEM_TAG_COUNT; i++) assert_int_equal(before.live_bytes[i], after.live_bytes[i]);
    }
    assert_true(ended_well);
}

#define WITH_SERVER(f) cmocka_unit_test_setup_teardown(f, server_start, server_stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_in_every_split),
        cmocka_unit_test(events_are_bounded),
        cmocka_unit_test(events_stop_where_told),
        cmocka_unit_test(events_without_memory),
        WITH_SERVER(every_end),
        WITH_SERVER(unreached),
        WITH_SERVER(what_is_sent),
        WITH_SERVER(long_body),
        WITH_SERVER(connections_are_kept),
        WITH_SERVER(many_at_once),
        WITH_SERVER(on_event_refuses),
        WITH_SERVER(cancel_inside_and_outside),
        WITH_SERVER(nothing_else_wakes),
        WITH_SERVER(callbacks_may_ask),
        WITH_SERVER(waits_end),
        WITH_SERVER(fetch_and_first_model),
        cmocka_unit_test(bad_options),
        WITH_SERVER(failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
