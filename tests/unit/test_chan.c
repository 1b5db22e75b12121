/* Framed messages over a socket: cut anywhere, too much output, garbage, hang-ups, the largest frame. */
#include "base_test.h"

#include "pd/chan.h"

#include <stdlib.h>
#include <sys/socket.h>

typedef struct ends {
    gy_chan *c;
    int fd; /* the other side, raw */
} ends;

static ends open_ends(void) {
    ends e;
    int fd[2];
    gy_err err = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(gy_chan_create(fd[0], GY_CHAN_OUT_MAX, &err, &e.c), GY_OK);
    e.fd = fd[1];
    return e;
}

static void close_ends(ends *e) {
    gy_chan_destroy(e->c);
    if (e->fd >= 0) close(e->fd);
}

static void put(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t w = write(fd, bytes, n);
        assert_true(w > 0);
        bytes += w;
        n -= (size_t)w;
    }
}

static gy_msg fatal(const char *text, int32_t n) {
    return (gy_msg){.kind = GY_MSG_FATAL, .text = text, .n_text = n};
}

static void append(gy_str *s, const gy_msg *m) {
    assert_int_equal(gy_msg_encode(m, s), GY_OK);
}

/* Three messages, the second of an unknown kind, arrive in two pieces, cut at every byte. */
static void cut_at_every_byte(void **state) {
    (void)state;
    static const int32_t prompt[] = {5, 6, 7};
    gy_str s = {0};
    gy_msg reserve = {.kind = GY_MSG_RESERVE, .tid = {1, 2}, .peer = 3};
    gy_request *r = &reserve.request.r;
    *r = (gy_request){.prompt = prompt, .n_prompt = 3, .max_tokens = 4, .n = 1};
    gy_sample_params_default(&r->sample);
    reserve.request.grammar_kind = -1;
    append(&s, &reserve);
    const unsigned char unknown[] = {9, 0, 0, 0, 0xfe, 0xff, 9, 0, 'h', 'e', 'l', 'l', 'o'};
    gy_str_append(&s, (const char *)unknown, sizeof unknown);
    gy_msg f = fatal("no luck", 7);
    append(&s, &f);
    for (size_t cut = 0; cut <= s.len; cut++) {
        ends e = open_ends();
        gy_msg m;
        gy_err err = {0};
        int n = 0;
        for (int half = 0; half < 2; half++) {
            put(e.fd, s.data + (half ? cut : 0), half ? s.len - cut : cut);
            gy_status st;
            while ((st = gy_chan_recv(e.c, &err, &m)) == GY_OK) {
                if (n++ == 0) {
                    assert_int_equal(m.kind, GY_MSG_RESERVE);
                    assert_int_equal(m.tid.lo, 2);
                    assert_int_equal(m.request.r.n_prompt, 3);
                    assert_memory_equal(m.request.r.prompt, prompt, sizeof prompt);
                } else {
                    assert_int_equal(m.kind, GY_MSG_FATAL);
                    assert_string_equal(m.text, "no luck");
                }
            }
            assert_int_equal(st, GY_AGAIN);
        }
        assert_int_equal(n, 2);
        gy_chan_stats st;
        gy_chan_get_stats(e.c, &st);
        assert_int_equal(st.n_unknown, 1);
        assert_int_equal(st.n_received, 2);
        assert_int_equal(st.bytes_in, s.len);
        close_ends(&e);
    }
    gy_str_free(&s);
}

/* What one end sends the other one hears, in order, however small the pieces are that the socket takes. */
static void both_ways(void **state) {
    (void)state;
    int fd[2], small = 4096;
    gy_chan *a, *b;
    gy_err err = {0};
    enum { N = 300, BIG = 60000 };
    char *text = malloc(BIG);
    memset(text, 'x', BIG);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    assert_int_equal(gy_chan_create(fd[0], GY_CHAN_OUT_MAX, &err, &a), GY_OK);
    assert_int_equal(gy_chan_create(fd[1], GY_CHAN_OUT_MAX, &err, &b), GY_OK);
    for (int i = 0; i < N; i++) {
        gy_msg m = fatal(text, i * 199);
        assert_int_equal(gy_chan_send(a, &m, &err), GY_OK);
    }
    for (int got = 0, again = 0; got < N;) {
        gy_msg m;
        gy_status st = gy_chan_flush(a, &err);
        assert_true(st == GY_OK || st == GY_AGAIN);
        again += st == GY_AGAIN;
        assert_int_equal(gy_chan_has_output(a), st == GY_AGAIN);
        while ((st = gy_chan_recv(b, &err, &m)) == GY_OK) {
            assert_int_equal(m.n_text, got * 199);
            got++;
        }
        assert_int_equal(st, GY_AGAIN);
        if (got == N) assert_true(again > 10);
    }
    free(text);
    gy_chan_destroy(a);
    gy_chan_destroy(b);
}

static void slow_reader(void **state) {
    (void)state;
    ends e;
    int fd[2];
    gy_err err = {0};
    static char text[GY_MSG_MAX_TEXT];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(gy_chan_create(fd[0], GY_MSG_MAX, &err, &e.c), GY_OK);
    e.fd = fd[1];
    gy_msg m = fatal(text, sizeof text);
    gy_status st = GY_OK;
    int n = 0;
    while (st == GY_OK && n < 2000) {
        st = gy_chan_send(e.c, &m, &err);
        if (st == GY_OK) n++;
        if (st == GY_OK) assert_true(gy_chan_flush(e.c, &err) >= 0);
    }
    assert_int_equal(st, GY_E_PEER);
    assert_non_null(strstr(err.msg, "too slowly"));
    assert_in_range(n, GY_MSG_MAX / (int)sizeof text - 2, GY_MSG_MAX / (int)sizeof text + 16); /* and the socket's */
    assert_int_equal(gy_chan_flush(e.c, &err), GY_E_PEER);                                     /* for good */
    gy_msg last = fatal("bye", 3), in; /* what it still says is heard */
    gy_str bytes = {0};
    append(&bytes, &last);
    put(e.fd, bytes.data, bytes.len);
    assert_int_equal(gy_chan_recv(e.c, &err, &in), GY_OK);
    assert_string_equal(in.text, "bye");
    gy_str_free(&bytes);
    close_ends(&e);
}

static void garbage(void **state) {
    (void)state;
    static const char shorter[] = {5, 0, 0, 0, GY_MSG_ACTIVE, 0, GY_MSG_VERSION, 0, 'x'};
    static const char longer[] = {
        21,  0,   0,   0,   GY_MSG_CANCEL, 0,  GY_MSG_VERSION, 0, 'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K',
        'L', 'M', 'N', 'O', 'P',           'Q'};
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {{"\0\0\0\0", 4, "a frame of 0 bytes"},
                 {"\x03\0\0\0", 4, "a frame of 3 bytes"},
                 {"GET / HTTP/1.1\r\n", 16, "a frame of 542393671 bytes"},
                 {"\xff\xff\xff\xff", 4, "expected 4 to 67108860"},
                 {"\x04\0\0\0\x06\0\x63\0", 8, "found version 99, expected "},
                 {shorter, sizeof shorter, "cannot be read"},
                 {longer, sizeof longer, "1 bytes too many"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ends e = open_ends();
        gy_msg m;
        gy_err err = {0};
        put(e.fd, cases[i].bytes, cases[i].n);
        gy_status st = gy_chan_recv(e.c, &err, &m);
        assert_int_equal(st, GY_E_FORMAT);
        if (!strstr(err.msg, cases[i].says)) fail_msg("case %zu: %s", i, err.msg);
        gy_msg good = fatal("x", 1);
        gy_str s = {0};
        append(&s, &good);
        put(e.fd, s.data, s.len);
        assert_int_equal(gy_chan_recv(e.c, &err, &m), GY_E_FORMAT); /* no way back */
        assert_int_equal(gy_chan_send(e.c, &good, &err), GY_E_FORMAT);
        gy_str_free(&s);
        close_ends(&e);
    }
}

static void hang_ups(void **state) {
    (void)state;
    gy_str s = {0};
    gy_msg f = fatal("the end", 7);
    append(&s, &f);
    for (size_t n = 0; n <= s.len; n++) {
        ends e = open_ends();
        gy_msg m;
        gy_err err = {0};
        put(e.fd, s.data, n);
        close(e.fd);
        e.fd = -1;
        gy_status want = n == 0 || n == s.len ? GY_DONE : GY_E_PEER;
        if (n == s.len) assert_int_equal(gy_chan_recv(e.c, &err, &m), GY_OK);
        for (int i = 0; i < 2; i++) assert_int_equal(gy_chan_recv(e.c, &err, &m), want);
        if (want < 0) assert_non_null(strstr(err.msg, "in the middle of a message"));
        assert_int_equal(gy_chan_send(e.c, &f, &err), want < 0 ? GY_E_PEER : GY_OK);
        assert_int_equal(gy_chan_flush(e.c, &err), GY_E_PEER);
        if (want >= 0) assert_non_null(strstr(err.msg, "gone"));
        assert_int_equal(gy_chan_send(e.c, &f, &err), GY_E_PEER);
        close_ends(&e);
    }
    gy_str_free(&s);
}

/* A dead peer's last words arrive although writing to it has failed already. */
static void last_words(void **state) {
    (void)state;
    ends e = open_ends();
    gy_str s = {0};
    gy_err err = {0};
    gy_msg f = fatal("out of memory", 13), m;
    append(&s, &f);
    put(e.fd, s.data, s.len);
    close(e.fd);
    e.fd = -1;
    assert_int_equal(gy_chan_send(e.c, &f, &err), GY_OK);
    assert_int_equal(gy_chan_flush(e.c, &err), GY_E_PEER);
    assert_int_equal(gy_chan_recv(e.c, &err, &m), GY_OK);
    assert_string_equal(m.text, "out of memory");
    assert_true(gy_chan_recv(e.c, &err, &m) != GY_OK);
    gy_str_free(&s);
    close_ends(&e);
}

static gy_msg big_reserve(const int32_t *prompt, int32_t n) {
    gy_msg m = {.kind = GY_MSG_LOCAL};
    m.request.r = (gy_request){.prompt = prompt, .n_prompt = n, .max_tokens = 1, .n = 1};
    gy_sample_params_default(&m.request.r.sample);
    m.request.grammar_kind = -1;
    return m;
}

static void largest_frame(void **state) {
    (void)state;
    enum { MOST = GY_MSG_MAX / 4 };
    int32_t *prompt = calloc(MOST, sizeof *prompt), n = MOST;
    gy_err err = {0};
    int fd[2];
    gy_chan *a, *b;
    assert_non_null(prompt);
    for (int32_t i = 0; i < MOST; i++) prompt[i] = i;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(gy_chan_create(fd[0], GY_MSG_MAX, &err, &a), GY_OK);
    assert_int_equal(gy_chan_create(fd[1], GY_MSG_MAX, &err, &b), GY_OK);
    gy_msg m = big_reserve(prompt, n), in;
    assert_int_equal(gy_chan_send(a, &m, &err), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "64 MiB"));
    assert_false(gy_chan_has_output(a)); /* nothing of it is left, and the channel lives */
    n -= 1000;
    m = big_reserve(prompt, n);
    assert_int_equal(gy_chan_send(a, &m, &err), GY_OK);
    gy_status st;
    while ((st = gy_chan_recv(b, &err, &in)) == GY_AGAIN) assert_true(gy_chan_flush(a, &err) >= 0);
    assert_int_equal(st, GY_OK);
    assert_int_equal(in.request.r.n_prompt, n);
    assert_memory_equal(in.request.r.prompt, prompt, (size_t)n * sizeof *prompt);
    /* And small ones still work, without new memory. */
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    m = big_reserve(prompt, 3);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(gy_chan_send(a, &m, &err), GY_OK);
        assert_int_equal(gy_chan_flush(a, &err), GY_OK);
        assert_int_equal(gy_chan_recv(b, &err, &in), GY_OK);
        if (i == 10) gy_mem_get_stats(&before);
    }
    gy_mem_get_stats(&after);
    assert_int_equal(before.n_alloc, after.n_alloc);
    free(prompt);
    gy_chan_destroy(a);
    gy_chan_destroy(b);
}

static void no_memory(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        int fd[2];
        gy_chan *c = NULL;
        gy_err err = {0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
        gy_mem_fail_after(n);
        gy_status st = gy_chan_create(fd[0], GY_CHAN_OUT_MAX, &err, &c);
        static char text[5000];
        gy_msg m = fatal(text, sizeof text);
        gy_str whole = {0};
        if (st == GY_OK) {
            st = gy_chan_send(c, &m, &err);
            gy_mem_fail_after(0);
            if (st < 0) { /* the channel lives and nothing is half said */
                assert_int_equal(gy_chan_send(c, &m, &err), GY_OK);
                assert_int_equal(gy_chan_flush(c, &err), GY_OK);
                char buf[6000];
                append(&whole, &m);
                assert_int_equal(read(fd[1], buf, sizeof buf), whole.len);
                assert_memory_equal(buf, whole.data, whole.len);
                gy_str_free(&whole);
            }
        }
        gy_mem_fail_after(0);
        if (st < 0) assert_int_equal(err.status, GY_E_NOMEM);
        gy_chan_destroy(c);
        close(fd[1]);
        if (st == GY_OK) break;
        assert_true(n < 50);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_at_every_byte), cmocka_unit_test(both_ways), cmocka_unit_test(slow_reader),
        cmocka_unit_test(garbage),           cmocka_unit_test(hang_ups),  cmocka_unit_test(last_words),
        cmocka_unit_test(largest_frame),     cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
