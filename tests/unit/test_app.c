/* The server inside this process: what the program's tests (tests/e2e/test_serve.py) cannot reach. Memory that fails at
 * each place in turn: an answer, or none at all, but never a wrong one, and nothing is left behind.
 */
#include "base_test.h"

#include "server/app.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *const names[] = {"demo"};

typedef struct fixture {
    gy_app *a;
    pthread_t thread;
    atomic_int ready;
    gy_status status;
    gy_err err;
} fixture;

static void on_ready(void *user) {
    fixture *f = user;
    f->ready = 1;
}

static void *fixture_main(void *arg) {
    fixture *f = arg;
    f->status = gy_app_run(f->a, on_ready, f, &f->err);
    return NULL;
}

static void set_options(gy_app_opts *o, const char *dir) {
    *o = (gy_app_opts){.dir = dir, .names = {names, 1}, .access_fd = -1, .drain_ms = 1000};
    gyre_options_default(&o->engine, sizeof o->engine);
    o->engine.kv_blocks = 512;
    o->engine.park_bytes = 0;
    o->engine.threads = 1;
    gy_http_server_opts_default(&o->http);
    o->http.port = 0;
}

static int64_t live_bytes(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_SERVER] + s.live_bytes[GY_MEM_JSON] + s.live_bytes[GY_MEM_TEXT];
}

static size_t ask(const fixture *f, const char *path, const char *body, char *out, size_t cap) {
    char head[256];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)gy_app_port(f->a))};
    const struct timeval limit = {20, 0};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int n =
        snprintf(head, sizeof head, "POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                 path, strlen(body));
    (void)!send(fd, head, (size_t)n, MSG_NOSIGNAL);
    (void)!send(fd, body, strlen(body), MSG_NOSIGNAL);
    size_t len = 0;
    ssize_t got;
    while (len < cap - 1 && (got = recv(fd, out + len, cap - 1 - len, 0)) > 0) len += (size_t)got;
    out[len] = '\0';
    close(fd);
    return len;
}

/* What a client may see when memory failed somewhere: the answer, an error of ours, a cut stream, or nothing. */
static void check_answer(const char *path, int64_t n, const char *got) {
    int is_fine = !got[0] || !strncmp(got, "HTTP/1.1 200 ", 13) || !strncmp(got, "HTTP/1.1 503 ", 13) ||
                  !strncmp(got, "HTTP/1.1 500 ", 13);
    if (!is_fine) fail_msg("%s, allocation %lld: %.300s", path, (long long)n, got);
    if (!strncmp(got, "HTTP/1.1 5", 10) && !strstr(got, "{\"error\":{\"message\":\"") &&
        !strstr(got, "Content-Length: 0"))
        fail_msg("%s, allocation %lld: an error without its sentence: %.300s", path, (long long)n, got);
}

static const char *write_template(char path[64]) {
    static const char text[] = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}";
    snprintf(path, 64, "/tmp/gyre_test_app_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    return path;
}

static void test_no_memory(void **state) {
    (void)state;
    static char long_body[4096];
    static const struct {
        const char *path, *body, *last;
    } asks[] = {
        {"/v1/completions",
         "{\"prompt\":[\"abc\",[5,6]],\"max_tokens\":4,\"n\":2,\"logprobs\":3,\"echo\":true,\"stop\":[\"zzz\"],\"x\":"
         "1}",
         "\"usage\":{"},
        {"/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":6,\"stream\":true,\"ignore_eos\":true}",
         "data: [DONE]\n\n"},
        {"/tokenize", "{\"prompt\":\"a text\",\"return_token_strs\":true}", "\"token_strs\":["},
        {"/detokenize", "{\"tokens\":[5,6,7,8]}", "\"prompt\":"},
        /* These go through a lane; the last one is read there too and moves to the other. */
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"}],\"max_tokens\":4,\"x\":1}",
         "\"usage\":{"},
        {"/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":9,\"guided_choice\":[\"yes\",\"n(o\"]}", "\"usage\":{"},
        {"/v1/completions", long_body, "\"usage\":{"},
    };
    static char got[1 << 16];
    snprintf(
        long_body, sizeof long_body,
        "{\"prompt\":\"abc\",\"max_tokens\":40,\"y\":\"%02000d\",\"guided_json\":{\"type\":\"object\",\"properties\":"
        "{\"a\":{\"enum\":[1,2.5,null,true,\"x\"]}},\"required\":[\"a\"]}}",
        0);
    int64_t before = live_bytes();
    gy_app_opts o;
    char path[64];
    fixture f = {.a = NULL};
    set_options(&o, GY_SOURCE_DIR "/models/demo");
    o.template_path = write_template(path);
    assert_int_equal(gy_app_open(&o, &f.err, &f.a), GY_OK);
    assert_int_equal(pthread_create(&f.thread, NULL, fixture_main, &f), 0);
    while (!f.ready) poll(NULL, 0, 1);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        for (int64_t n = 1; n <= 150; n++) {
            gy_mem_fail_after(n);
            ask(&f, asks[i].path, asks[i].body, got, sizeof got);
            gy_mem_fail_after(0);
            check_answer(asks[i].path, n, got);
        }
        ask(&f, asks[i].path, asks[i].body, got, sizeof got);
        if (strncmp(got, "HTTP/1.1 200 ", 13) != 0 || !strstr(got, asks[i].last))
            fail_msg("%s, after all failures: %.300s", asks[i].path, got);
    }
    gy_app_drain(f.a);
    pthread_join(f.thread, NULL);
    assert_int_equal(f.status, GY_OK);
    gy_app_close(f.a);
    unlink(path);
    assert_int_equal(live_bytes(), before);
}

/* Opening and loading with memory that fails: said, or survived; nothing stays behind. */
static void test_no_memory_to_load(void **state) {
    (void)state;
    int64_t before = live_bytes();
    int n_failed = 0;
    for (int64_t n = 1; n < 60; n++) {
        gy_app_opts o;
        fixture f = {.a = NULL};
        set_options(&o, GY_SOURCE_DIR "/tests/golden/models/ouro-tiny");
        gy_mem_fail_after(n);
        f.status = gy_app_open(&o, &f.err, &f.a);
        if (f.status == GY_OK) {
            assert_int_equal(pthread_create(&f.thread, NULL, fixture_main, &f), 0);
            while (!f.ready && pthread_tryjoin_np(f.thread, NULL) != 0) poll(NULL, 0, 1);
            if (f.ready) {
                gy_app_drain(f.a);
                pthread_join(f.thread, NULL);
            }
        }
        gy_mem_fail_after(0);
        if (f.status < 0) {
            n_failed++;
            assert_true(f.err.msg[0]);
        }
        gy_app_close(f.a);
        assert_int_equal(live_bytes(), before);
    }
    assert_true(n_failed > 20);
}

static void test_bad_model(void **state) {
    (void)state;
    gy_app_opts o;
    fixture f = {.a = NULL};
    set_options(&o, "/no/such/model");
    assert_int_equal(gy_app_open(&o, &f.err, &f.a), GY_OK);
    assert_true(gy_app_run(f.a, on_ready, &f, &f.err) < 0);
    assert_non_null(strstr(f.err.msg, "/no/such/model"));
    assert_int_equal(f.ready, 0);
    gy_app_close(f.a);
    gy_app_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_memory_to_load),
        cmocka_unit_test(test_bad_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
