/* The server with an engine that the test plays: lost with or without a word, slow, silent. This file defines the
 * functions of gyre.h that the server calls, so that the linker takes these and not those of src/api.
 */
#include "base_test.h"

#include "server/app_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the engine: requests wait until the test says what happens to them --------------------------------------------
 */

enum { MAX_REQS = 64, MAX_EVENTS = 256 };

typedef struct fake_req {
    uint64_t id;
    void *user;
    int n_output;
} fake_req;

static struct {
    pthread_mutex_t lock;
    int fd, is_lost;
    atomic_int n_step;
    fake_req req[MAX_REQS]; /* id 0: free */
    gyre_event ev[MAX_EVENTS];
    gyre_finish fin[MAX_EVENTS];
    unsigned n_put, n_got;
    uint64_t n_id;
    atomic_int n_submit, n_cancel;
    atomic_llong cancel_ns;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

struct gyre {
    int unused;
};
static gyre fake_handle;
static const gyre_info fake_info = {.family = "fake",
                                    .dtype = "f32",
                                    .weights = "auto",
                                    .kv_dtype = "f32",
                                    .backend = "none",
                                    .n_vocab = 256,
                                    .n_loop = 4,
                                    .max_loops = 4,
                                    .max_len = 4096,
                                    .kv_limit = "none"};

/* Under the lock, as the next ones. */
static void put_event(gyre_event ev) {
    const uint64_t one = 1;
    assert_true(fake.n_put - fake.n_got < MAX_EVENTS);
    unsigned at = fake.n_put++ % MAX_EVENTS;
    if (ev.finish) {
        fake.fin[at] = *ev.finish;
        ev.finish = &fake.fin[at];
    }
    fake.ev[at] = ev;
    assert_int_equal(write(fake.fd, &one, sizeof one), sizeof one);
}

static void put_token(fake_req *q) {
    put_event((gyre_event){.kind = GYRE_EVENT_TOKEN,
                           .request = q->id,
                           .user = q->user,
                           .index = q->n_output++,
                           .id = 7,
                           .loops = 4,
                           .text = "",
                           .logprob = __builtin_nanf("")});
}

static void put_finish(fake_req *q, gyre_finish_reason reason, gyre_status error) {
    const gyre_finish f = {
        .reason = reason, .error = error, .stop_string = -1, .stop_id = -1, .n_prompt = 2, .n_output = q->n_output};
    put_event(
        (gyre_event){.kind = GYRE_EVENT_FINISH, .request = q->id, .user = q->user, .id = -1, .text = "", .finish = &f});
    q->id = 0;
}

static void fake_tokens(void) {
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_REQS; i++)
        if (fake.req[i].id) put_token(&fake.req[i]);
    pthread_mutex_unlock(&fake.lock);
}

/* With a word: each request is told, as src/api does it. */
static void fake_lose(int with_word) {
    pthread_mutex_lock(&fake.lock);
    fake.is_lost = 1;
    for (int i = 0; i < MAX_REQS; i++)
        if (fake.req[i].id && with_word) put_finish(&fake.req[i], GYRE_FINISH_ERROR, GYRE_E_DEVICE);
    pthread_mutex_unlock(&fake.lock);
}

static gyre_status fake_err(gyre_err *err, gyre_status st, const char *msg) {
    if (err) {
        err->status = st;
        snprintf(err->msg, sizeof err->msg, "%s", msg);
    }
    return st;
}

gyre_status gyre_open(const char *dir, const gyre_options *o, gyre_err *err, gyre **out) {
    (void)dir, (void)o, (void)err;
    fake.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    fake.is_lost = 0;
    memset(fake.req, 0, sizeof fake.req);
    fake.n_put = fake.n_got = 0;
    fake.n_submit = fake.n_cancel = 0;
    *out = &fake_handle;
    return GYRE_OK;
}

void gyre_close(gyre *g) {
    if (g) close(fake.fd);
}

gyre_status gyre_start(gyre *g, gyre_err *err) {
    (void)g, (void)err;
    return GYRE_OK;
}

gyre_status gyre_submit(gyre *g, const gyre_request *r, gyre_err *err, uint64_t *id_out) {
    int at = 0;
    (void)g;
    pthread_mutex_lock(&fake.lock);
    gyre_status st = fake.is_lost       ? fake_err(err, GYRE_E_DEVICE, "the engine is lost: it was unplugged")
                     : !r->n_prompt_ids ? fake_err(err, GYRE_E_ARG, "prompt: found nothing")
                                        : GYRE_OK;
    if (st == GYRE_OK) {
        while (fake.req[at].id) at++;
        fake.req[at] = (fake_req){.id = ++fake.n_id, .user = r->user};
        *id_out = fake.n_id;
        fake.n_submit++;
    }
    pthread_mutex_unlock(&fake.lock);
    return st;
}

void gyre_cancel(gyre *g, uint64_t id) {
    (void)g;
    pthread_mutex_lock(&fake.lock);
    fake.cancel_ns = gy_clock_ns();
    fake.n_cancel++;
    for (int i = 0; i < MAX_REQS && !fake.is_lost; i++)
        if (fake.req[i].id == id) put_finish(&fake.req[i], GYRE_FINISH_CANCELLED, GYRE_OK);
    pthread_mutex_unlock(&fake.lock);
}

gyre_status gyre_poll(gyre *g, int timeout_ms, const gyre_event **ev_out) {
    uint64_t count;
    (void)g, (void)timeout_ms;
    pthread_mutex_lock(&fake.lock);
    int any = fake.n_got != fake.n_put;
    if (any)
        *ev_out = &fake.ev[fake.n_got++ % MAX_EVENTS];
    else
        (void)!read(fake.fd, &count, sizeof count);
    pthread_mutex_unlock(&fake.lock);
    return any ? GYRE_OK : GYRE_AGAIN;
}

int gyre_event_fd(const gyre *g) {
    (void)g;
    return fake.fd;
}

const gyre_info *gyre_get_info(const gyre *g) {
    (void)g;
    return &fake_info;
}

void gyre_get_stats(const gyre *g, gyre_stats *out, size_t size) {
    (void)g;
    memset(out, 0, size);
    out->n_step = fake.n_step;
}

void gyre_options_default(gyre_options *o, size_t size) {
    memset(o, 0, size);
    *o = (gyre_options){.size = size, .max_queue = 100, .max_seqs = 16, .kv_layout = "last_exited"};
}

void gyre_request_default(gyre_request *r, size_t size) {
    memset(r, 0, size);
    *r = (gyre_request){.size = size, .max_tokens = 16, .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    r->prompt_logprobs = -1;
    r->exit_threshold = (double)__builtin_nanf("");
}

gyre_group gyre_status_group(gyre_status s) {
    return s >= 0 ? GYRE_GROUP_NONE : s > -32 ? GYRE_GROUP_REQUEST : s > -64 ? GYRE_GROUP_PEER : GYRE_GROUP_ENGINE;
}

const char *gyre_finish_name(gyre_finish_reason r) {
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return names[r];
}

const char *gyre_version(void) {
    return "0.0.0";
}

gyre_status gyre_grammar_compile(gyre *g, gyre_grammar_kind kind, const char *text, size_t n, gyre_err *err,
                                 gyre_grammar **out) {
    (void)g, (void)kind, (void)text, (void)n, (void)out;
    return fake_err(err, GYRE_E_UNSUPPORTED, "no grammars here");
}

void gyre_grammar_release(gyre_grammar *m) {
    (void)m;
}

const char *gyre_pd_stage_name(gyre_pd_stage s) {
    (void)s;
    return "";
}

gyre_status gyre_tokenize(gyre *g, const char *text, size_t n, unsigned flags, gyre_err *err, int32_t *ids, size_t cap,
                          size_t *n_out) {
    (void)g, (void)text, (void)n, (void)flags, (void)ids, (void)cap, (void)n_out;
    return fake_err(err, GYRE_E_UNSUPPORTED, "no tokenizer here");
}

gyre_status gyre_detokenize(gyre *g, const int32_t *ids, size_t n, int skip_special, gyre_err *err, char *buf,
                            size_t cap, size_t *n_out) {
    (void)g, (void)ids, (void)n, (void)skip_special, (void)buf, (void)cap, (void)n_out;
    return fake_err(err, GYRE_E_UNSUPPORTED, "no tokenizer here");
}

/* ---- the server ----------------------------------------------------------------------------------------------------
 */

typedef struct fixture {
    gy_app *a;
    pthread_t thread;
    gy_status status;
    gy_err err;
    atomic_int ready, ended;
    int64_t live;
} fixture;

static void on_ready(void *user) {
    fixture *f = user;
    f->ready = 1;
}

static void *fixture_main(void *arg) {
    fixture *f = arg;
    f->status = gy_app_run(f->a, on_ready, f, &f->err);
    f->ended = 1;
    return NULL;
}

static int64_t live_bytes(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_SERVER] + s.live_bytes[GY_MEM_JSON] + s.live_bytes[GY_MEM_TEXT];
}

static void start(fixture *f, gy_app_opts *o) {
    static const char *const names[] = {"fake"};
    *f = (fixture){.live = live_bytes()};
    o->dir = "fake";
    o->names = (gy_app_strings){names, 1};
    gyre_options_default(&o->engine, sizeof o->engine);
    gy_http_server_opts_default(&o->http);
    o->http.port = 0;
    if (gy_app_open(o, &f->err, &f->a) != GY_OK) fail_msg("%s", f->err.msg);
    assert_int_equal(pthread_create(&f->thread, NULL, fixture_main, f), 0);
    while (!f->ready) poll(NULL, 0, 1);
}

static void finish(fixture *f, gy_status want) {
    pthread_join(f->thread, NULL);
    assert_int_equal(f->status, want);
    gy_app_close(f->a);
    assert_int_equal(live_bytes(), f->live);
}

static int dial(const fixture *f) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)gy_app_port(f->a))};
    const struct timeval limit = {20, 0};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Sends it; the answer comes later. */
static int ask(const fixture *f, const char *body) {
    char text[1024];
    int fd = dial(f);
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

static int get(const fixture *f, const char *path) {
    char text[256];
    int fd = dial(f),
        n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

static char heard[1 << 16]; /* the last one's */

/* Until the needle is there, or (NULL) the connection ends. */
static void hear(int fd, const char *needle) {
    size_t len = 0;
    heard[0] = '\0';
    while (!needle || !strstr(heard, needle)) {
        ssize_t n = recv(fd, heard + len, sizeof heard - 1 - len, 0);
        if (n <= 0 && needle) fail_msg("ended before \"%s\": %s", needle, heard);
        if (n <= 0) return;
        len += (size_t)n;
        heard[len] = '\0';
    }
}

static void expect(const char *what) {
    if (!strstr(heard, what)) fail_msg("\"%s\" is not in: %s", what, heard);
}

/* A whole answer of 503 that says when to come back. */
static void expect_dead(int fd) {
    hear(fd, "}}");
    assert_memory_equal(heard, "HTTP/1.1 503 ", 13);
    expect("Retry-After: 30\r\n");
    expect("\"code\":\"engine_dead\"");
    expect("the engine cannot go on");
    close(fd);
}

static void expect_broken_stream(int fd, const char *code) {
    hear(fd, NULL);
    expect(code);
    const char *error = strstr(heard, "data: {\"error\":{");
    assert_non_null(error);
    assert_null(strstr(heard, "[DONE]"));
    assert_null(strstr(heard, "\r\n0\r\n\r\n"));
    close(fd);
}

static void wait_for(atomic_int *x, int want) {
    int64_t end = gy_clock_ns() + 20000000000;
    while (*x < want) {
        if (gy_clock_ns() > end) fail_msg("waited 20 s for %d, it is %d", want, *x);
        poll(NULL, 0, 1);
    }
}

static double seconds_since(int64_t t) {
    return (double)(gy_clock_ns() - t) * 1e-9;
}

static const char WHOLE[] = "{\"prompt\":[1,2],\"max_tokens\":9}";
static const char STREAM[] = "{\"prompt\":[1,2],\"max_tokens\":9,\"stream\":true,\"return_token_ids\":true}";

/* ---- tests ---- */

/* Running requests end at once, new ones are refused, /health says so; then the server ends with the engine's words. */
static void lose(int with_word) {
    fixture f;
    gy_app_opts o = {.drain_ms = 60000};
    gy_log_set_level(GY_LOG_ERROR);
    int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    gy_log_set_fd(quiet);
    start(&f, &o);
    int stream = ask(&f, STREAM), whole = ask(&f, WHOLE);
    wait_for(&fake.n_submit, 2);
    fake_tokens();
    int ok = get(&f, "/health");
    hear(ok, "200 OK");
    close(ok);
    int64_t t = gy_clock_ns();
    fake_lose(with_word);
    expect_broken_stream(stream, "\"code\":\"engine_dead\"");
    expect_dead(whole);
    assert_true(seconds_since(t) < 2);
    expect_dead(get(&f, "/health"));
    expect_dead(ask(&f, WHOLE));
    expect_dead(ask(&f, STREAM));
    while (!f.ended && seconds_since(t) < 10) poll(NULL, 0, 5);
    assert_true(f.ended && seconds_since(t) > 2.5 && seconds_since(t) < 8);
    finish(&f, GY_E_DEVICE);
    assert_string_equal(f.err.msg, "the engine is lost: it was unplugged");
    gy_log_set_fd(STDERR_FILENO);
    gy_log_set_level(GY_LOG_WARN);
    close(quiet);
}

static void test_lost(void **state) {
    (void)state;
    lose(1);
}

static void test_lost_silently(void **state) {
    (void)state;
    lose(0);
}

/* Time that is up: 408, or an error and a broken stream; the engine stops working for it; others are not touched. */
static void test_request_timeout(void **state) {
    (void)state;
    fixture f;
    gy_app_opts o = {.drain_ms = 60000, .request_ms = 1500}; /* the first one is answered sooner */
    start(&f, &o);
    int fast = ask(&f, WHOLE);
    wait_for(&fake.n_submit, 1);
    int64_t t = gy_clock_ns();
    int stream = ask(&f, STREAM), whole = ask(&f, WHOLE);
    wait_for(&fake.n_submit, 3);
    fake_tokens();
    pthread_mutex_lock(&fake.lock);
    put_finish(&fake.req[0], GYRE_FINISH_LENGTH, GYRE_OK);
    pthread_mutex_unlock(&fake.lock);
    hear(fast, "\"usage\"");
    assert_memory_equal(heard, "HTTP/1.1 200 ", 13);
    expect_broken_stream(stream, "\"code\":\"deadline_exceeded\"");
    expect("\"token_ids\":[7]");
    double took = seconds_since(t);
    assert_true(took >= 1.5 && took < 60);
    hear(whole, "}}");
    assert_memory_equal(heard, "HTTP/1.1 408 ", 13);
    expect("\"type\":\"timeout_error\"");
    expect("\"code\":\"deadline_exceeded\"");
    expect("not done within 1.5 s");
    wait_for(&fake.n_cancel, 2);
    /* A connection that waits for nothing is not ended by it. */
    poll(NULL, 0, 1600);
    static const char again[] = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fast, again, sizeof again - 1, MSG_NOSIGNAL), sizeof again - 1);
    hear(fast, "\"version\"");
    close(fast), close(whole);
    gy_app_drain(f.a);
    finish(&f, GY_OK);
}

static const char *log_text(int fd) {
    static char text[4096];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static const char STALLED[] = "the engine has work and has not ended a step for a long time";

static int count_stalls(int log) {
    int n = 0;
    for (const char *at = log_text(log); (at = strstr(at, STALLED)); at++) n++;
    return n;
}

static void wait_stalls(int log, int want) {
    int64_t t = gy_clock_ns();
    while (count_stalls(log) < want && seconds_since(t) < 20) poll(NULL, 0, 10);
    assert_int_equal(count_stalls(log), want);
}

static void note_longest(double *longest, int64_t *last) {
    double gap = seconds_since(*last);
    if (gap > *longest) *longest = gap;
    *last = gy_clock_ns();
}

/* Steps for 1.3 s: the lines by then; *longest: the longest time without a step up to the look at the log. */
static int end_steps(int log, int64_t *last, double *longest) {
    *longest = 0;
    for (int i = 0; i < 14; i++) {
        fake.n_step++;
        note_longest(longest, last);
        fake_tokens();
        poll(NULL, 0, 100);
    }
    int n = count_stalls(log);
    note_longest(longest, last);
    return n;
}

/* Work and no step: said once for each time; not without work, not while steps end. */
static void test_stall(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-stall-XXXXXX";
    fixture f;
    gy_app_opts o = {.drain_ms = 0, .stall_ms = 1000};
    int log = mkstemp(path), n = 0, was = -1;
    assert_true(log >= 0);
    gy_log_set_fd(log);
    start(&f, &o);
    poll(NULL, 0, 1300);
    assert_int_equal(count_stalls(log), 0);
    int64_t last = gy_clock_ns();
    int c = ask(&f, STREAM);
    wait_for(&fake.n_submit, 1);
    double longest = 9;
    for (int i = 0; i < 5 && longest > 0.7; i++) { /* where this thread was put aside for so long there was a stall */
        was = n;
        n = end_steps(log, &last, &longest);
    }
    assert_int_equal(n, was);
    wait_stalls(log, n + 1);
    poll(NULL, 0, 1300);
    assert_int_equal(count_stalls(log), n + 1);
    fake.n_step++;
    wait_stalls(log, n + 2);
    gy_app_drain(f.a);
    finish(&f, GY_OK);
    close(c), close(log), unlink(path);
    gy_log_set_fd(STDERR_FILENO);
}

/* Work before the first step ever: the time counts from here, not from the clock's beginning. */
static void test_no_stall_at_first(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-stall-XXXXXX";
    fixture f;
    gy_app_opts o = {.drain_ms = 0, .stall_ms = 30000};
    int log = mkstemp(path);
    assert_true(log >= 0);
    gy_log_set_fd(log);
    fake.n_step = 0;
    start(&f, &o);
    int c = ask(&f, STREAM);
    wait_for(&fake.n_submit, 1);
    poll(NULL, 0, 1300);
    assert_string_equal(log_text(log), "");
    gy_app_drain(f.a);
    finish(&f, GY_OK);
    close(c), close(log), unlink(path);
    gy_log_set_fd(STDERR_FILENO);
}

/* Nobody reads the access log: answers come all the same, and what is lost is counted. */
static void test_stuck_access_log(void **state) {
    (void)state;
    enum { ASKS = 8000, BATCH = 100 };
    static char batch[BATCH * 128];
    fixture f;
    int fd[2];
    gy_log_writer_stats st;
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    gy_app_opts o = {.drain_ms = 1000, .access_log = GY_APP_LOG_JSON, .access_fd = fd[1]};
    start(&f, &o);
    size_t n = 0;
    for (int i = 0; i < BATCH; i++)
        n += (size_t)snprintf(batch + n, sizeof batch - n, "HEAD /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
    int c = dial(&f);
    for (int i = 0; i < ASKS; i += BATCH) {
        assert_int_equal(send(c, batch, n, MSG_NOSIGNAL), n);
        int seen = 0;
        for (size_t len = 0; seen < BATCH;) {
            ssize_t got = recv(c, heard + len, sizeof heard - 1 - len, 0);
            assert_true(got > 0);
            len += (size_t)got;
            heard[len] = '\0';
            seen = 0;
            for (const char *at = heard; (at = strstr(at, "\r\n\r\n")); at += 4) seen++;
        }
        assert_int_equal(seen, BATCH);
    }
    close(c);
    gy_app_log_stats(f.a, &st);
    assert_in_range(st.n_dropped, 1, ASKS);
    assert_true(st.waiting > 0);
    int64_t t = gy_clock_ns();
    gy_app_drain(f.a);
    finish(&f, GY_OK);
    assert_true(seconds_since(t) < 60);
    close(fd[0]), close(fd[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost),  cmocka_unit_test(test_lost_silently),     cmocka_unit_test(test_request_timeout),
        cmocka_unit_test(test_stall), cmocka_unit_test(test_no_stall_at_first), cmocka_unit_test(test_stuck_access_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
