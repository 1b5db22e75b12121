/* Reply heads byte by byte, what may not be sent, chunk frames, dates (values from RFC 9110 and `date -u`), the ring.
 */
#include "base_test.h"

#include "server/http_reply.h"
#include "server/http_ring.h"

#include "base/mem.h"

#include <stdlib.h>

static const char *format(const gy_http_reply_head *r) {
    static char buf[1024];
    size_t n = 0;
    gy_err err;
    assert_int_equal(gy_http_reply_format(r, &err, buf, sizeof buf - 1, &n), GY_OK);
    buf[n] = '\0';
    return buf;
}

static void test_heads(void **state) {
    (void)state;
    const gy_http_header extra[] = {{"x-request-id", "a b\t\xc3\xa9"}, {"Retry-After", "1"}};
    gy_http_reply_head r = {.status = 200, .minor = 1, .keep_alive = 1, .content_length = 12};
    assert_string_equal(format(&r), "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n");
    r.minor = 0;
    r.content_type = "text/plain";
    assert_string_equal(format(&r), "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n"
                                    "Connection: keep-alive\r\n\r\n");
    r = (gy_http_reply_head){.status = 429, .minor = 1, .framing = GY_HTTP_BY_CHUNKS, .extra = extra, .n_extra = 2};
    assert_string_equal(format(&r),
                        "HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
                        "x-request-id: a b\t\xc3\xa9\r\nRetry-After: 1\r\n\r\n");
    r = (gy_http_reply_head){.status = 200, .framing = GY_HTTP_BY_CLOSE, .date = "D"};
    assert_string_equal(format(&r), "HTTP/1.1 200 OK\r\nDate: D\r\nConnection: close\r\n\r\n");
    r = (gy_http_reply_head){.status = 204, .minor = 1, .keep_alive = 1};
    assert_string_equal(format(&r), "HTTP/1.1 204 No Content\r\n\r\n");
    r = (gy_http_reply_head){.status = 299, .minor = 1, .keep_alive = 1, .content_length = UINT64_MAX};
    assert_string_equal(format(&r), "HTTP/1.1 299 Unknown\r\nContent-Length: 18446744073709551615\r\n\r\n");
}

static void assert_refused(gy_http_header h, const char *needle) {
    char buf[256];
    size_t n = 77;
    gy_err err = {0};
    gy_http_reply_head r = {.status = 200, .extra = &h, .n_extra = 1};
    assert_int_equal(gy_http_reply_format(&r, &err, buf, sizeof buf, &n), GY_E_ARG);
    assert_non_null(strstr(err.msg, needle));
    assert_int_equal(n, 77);
}

static void test_no_splitting(void **state) {
    (void)state;
    assert_refused((gy_http_header){"x-id", "a\r\nSet-Cookie: b"}, "value of x-id holds a control character");
    assert_refused((gy_http_header){"x-id", "a\nb"}, "control character");
    assert_refused((gy_http_header){"x-id", "\x7f"}, "control character");
    assert_refused((gy_http_header){"x id", "a"}, "no valid name");
    assert_refused((gy_http_header){"", "a"}, "no valid name");
    assert_refused((gy_http_header){"x:", "a"}, "no valid name");
    assert_refused((gy_http_header){"content-LENGTH", "0"}, "written by the server");
    assert_refused((gy_http_header){"Transfer-Encoding", "chunked"}, "written by the server");
    assert_refused((gy_http_header){"connection", "close"}, "written by the server");
    gy_http_reply_head r = {.status = 200, .content_type = "a\rb"};
    char buf[64];
    size_t n;
    assert_int_equal(gy_http_reply_format(&r, NULL, buf, sizeof buf, &n), GY_E_ARG);
}

/* Every length too short is refused, and nothing is written behind the buffer. */
static void test_cap(void **state) {
    (void)state;
    const gy_http_header extra = {"x-request-id", "0123456789"};
    gy_http_reply_head r = {.status = 200, .content_type = "a/b", .extra = &extra, .n_extra = 1, .date = "D"};
    size_t need = strlen(format(&r));
    for (size_t cap = 0; cap <= need; cap++) {
        char *buf = malloc(cap ? cap : 1);
        size_t n = 0;
        gy_err err = {0};
        assert_non_null(buf);
        assert_int_equal(gy_http_reply_format(&r, &err, buf, cap, &n), cap < need ? GY_E_LIMIT : GY_OK);
        assert_int_equal(n, cap < need ? 0 : need);
        if (cap < need) assert_non_null(strstr(err.msg, "longer than"));
        free(buf);
    }
}

static void test_dates(void **state) {
    (void)state;
    static const struct {
        time_t t;
        const char *text;
    } rows[] = {
        {784111777, "Sun, 06 Nov 1994 08:49:37 GMT"},  {0, "Thu, 01 Jan 1970 00:00:00 GMT"},
        {951782399, "Mon, 28 Feb 2000 23:59:59 GMT"},  {951782400, "Tue, 29 Feb 2000 00:00:00 GMT"},
        {4102444800, "Fri, 01 Jan 2100 00:00:00 GMT"}, {253402300799, "Fri, 31 Dec 9999 23:59:59 GMT"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[30];
        gy_http_date(rows[i].t, out);
        assert_string_equal(out, rows[i].text);
    }
}

static void test_chunk_heads(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 9, 10, 15, 16, 190, 255, 256, 65535, 65536, 0xABCDEF, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char out[GY_HTTP_CHUNK_HEAD_MAX], want[32];
        size_t n = gy_http_chunk_head(sizes[i], out);
        assert_int_equal(n, snprintf(want, sizeof want, "%zx\r\n", sizes[i]));
        assert_memory_equal(out, want, n);
    }
}

static void test_reasons(void **state) {
    (void)state;
    assert_string_equal(gy_http_reason(413), "Content Too Large");
    assert_string_equal(gy_http_reason(599), "Unknown");
    assert_false(gy_http_status_has_body(204) || gy_http_status_has_body(304) || gy_http_status_has_body(100));
    assert_true(gy_http_status_has_body(200) && gy_http_status_has_body(404));
}

/* ---- ring ---- */

/* Against a plain array: puts and drops of all sizes, so that every wrap and every growth is met. */
static void test_ring(void **state) {
    (void)state;
    gy_http_ring r = {0};
    static char sent[1 << 20];
    size_t put = 0, got = 0;
    for (unsigned i = 0; put + 3000 < sizeof sent; i++) {
        size_t n = (i * 7919) % 2500;
        for (size_t k = 0; k < n; k++) sent[put + k] = (char)((put + k) * 31 >> 3);
        assert_int_equal(gy_http_ring_reserve(&r, n), 0);
        gy_http_ring_put(&r, sent + put, n);
        put += n;
        struct iovec part[2];
        size_t drop = (i * 104729) % (r.len + 1), seen = 0;
        for (int k = 0, np = gy_http_ring_peek(&r, part); k < np; k++) {
            assert_memory_equal(part[k].iov_base, sent + got + seen, part[k].iov_len);
            seen += part[k].iov_len;
        }
        assert_int_equal(seen, r.len);
        assert_int_equal(r.len, put - got);
        gy_http_ring_drop(&r, drop);
        got += drop;
    }
    gy_http_ring_drop(&r, r.len);
    assert_int_equal(r.head, 0);
    gy_http_ring_free(&r);
    gy_http_ring_free(&r);
    assert_null(r.data);
}

/* Once it has its size, a stream costs no allocation: the guard would end the process. */
static void test_ring_steady(void **state) {
    (void)state;
    gy_http_ring r = {0};
    static const char event[300];
    assert_int_equal(gy_http_ring_reserve(&r, 4096), 0);
    gy_mem_guard_begin();
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(gy_http_ring_reserve(&r, sizeof event), 0);
        gy_http_ring_put(&r, event, sizeof event);
        if (r.len > 3000) gy_http_ring_drop(&r, r.len - 77);
    }
    gy_mem_guard_end();
    gy_http_ring_free(&r);
}

static void test_ring_no_memory(void **state) {
    (void)state;
    gy_http_ring r = {0};
    gy_mem_fail_after(1);
    assert_int_equal(gy_http_ring_reserve(&r, 10), -1);
    assert_int_equal(gy_http_ring_reserve(&r, 10), 0);
    gy_http_ring_put(&r, "0123456789", 10);
    gy_mem_fail_after(1);
    assert_int_equal(gy_http_ring_reserve(&r, 5000), -1);
    gy_mem_fail_after(0);
    assert_int_equal(gy_http_ring_reserve(&r, SIZE_MAX), -1);
    struct iovec part[2];
    assert_int_equal(gy_http_ring_peek(&r, part), 1);
    assert_memory_equal(part[0].iov_base, "0123456789", 10);
    gy_http_ring_free(&r);
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    assert_int_equal(s.live_bytes[GY_MEM_SERVER], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads), cmocka_unit_test(test_no_splitting), cmocka_unit_test(test_cap),
        cmocka_unit_test(test_dates), cmocka_unit_test(test_chunk_heads),  cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_ring),  cmocka_unit_test(test_ring_steady),  cmocka_unit_test(test_ring_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
