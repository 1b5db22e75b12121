/* HTTP requests of arbitrary bytes: the first byte chooses where the rest is cut in two. However it arrives, the answer
 * is the same, every span lies inside the head, the path decodes, and a body never grows beyond its limit. What was
 * accepted is then checked against rules that a second reader of the same bytes would apply: exactly one Host and one
 * framing.
 */
#include "server/http_parse.h"

#include "base/status.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BODY_MAX = 4096 };

static void check_span(const gy_http_head *h, gy_http_span s) {
    GY_CHECK(s.off <= h->size && s.len <= h->size - s.off);
}

static void check_head(const gy_http_head *h, const char *s) {
    gy_http_span v = {0, 0};
    check_span(h, h->target);
    check_span(h, h->path);
    check_span(h, h->query);
    check_span(h, h->host);
    for (int i = 0; i < h->n_field; i++) {
        check_span(h, h->field[i].name);
        check_span(h, h->field[i].value);
        GY_CHECK(h->field[i].name.len > 0);
    }
    GY_CHECK(memcmp(s + h->size - 4, "\r\n\r\n", 4) == 0);
    GY_CHECK(!memchr(s, '\0', h->size));
    int n_host = gy_http_head_find(h, s, "host", &v), n_te = gy_http_head_find(h, s, "transfer-encoding", &v);
    int n_cl = gy_http_head_find(h, s, "content-length", &v);
    GY_CHECK(n_host == 1 || (n_host == 0 && h->minor == 0));
    GY_CHECK(n_te + n_cl <= 1 && (n_te == 1) == (h->body == GY_HTTP_BODY_CHUNKED));
    GY_CHECK(h->content_length <= BODY_MAX);
    char *out = malloc(h->path.len + 1);
    if (out) GY_CHECK(gy_http_path_decode(s + h->path.off, h->path.len, out) > 0);
    free(out);
}

static gy_http_result chunked(const char *s, size_t n, size_t cut, size_t *total_out, size_t *used_out) {
    gy_http_chunked d;
    gy_http_result r = GY_HTTP_MORE;
    size_t at = 0, end = cut;
    gy_http_chunked_init(&d, BODY_MAX);
    *total_out = 0;
    for (;;) {
        size_t used = 0;
        gy_http_span run = {0, 0};
        r = gy_http_chunked_next(&d, s + at, end - at, &used, &run);
        GY_CHECK(used <= end - at && run.off + run.len <= end - at);
        at += used;
        if (r == GY_HTTP_DATA) *total_out += run.len;
        GY_CHECK(*total_out <= BODY_MAX);
        if (r == GY_HTTP_BAD || r == GY_HTTP_DONE) break;
        if (r == GY_HTTP_DATA && at < end) continue;
        if (end == n) break;
        end = n;
    }
    *used_out = at;
    GY_CHECK(r != GY_HTTP_BAD || (d.fault.status >= 400 && d.fault.what));
    return r == GY_HTTP_DATA ? GY_HTTP_MORE : r;
}

static void check_chunked(const char *s, size_t n, size_t cut) {
    size_t total[2], used[2];
    gy_http_result a = chunked(s, n, n, &total[0], &used[0]), b = chunked(s, n, cut, &total[1], &used[1]);
    GY_CHECK(a == b && total[0] == total[1] && used[0] == used[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gy_http_head whole, parts;
    if (size < 1) return 0;
    const char *s = (const char *)data + 1;
    size_t n = size - 1, cut = n * data[0] / 255;
    gy_http_head_init(&whole, BODY_MAX);
    gy_http_head_init(&parts, BODY_MAX);
    gy_http_result a = gy_http_head_parse(&whole, s, n), b = gy_http_head_parse(&parts, s, cut);
    if (b == GY_HTTP_MORE) b = gy_http_head_parse(&parts, s, n);
    GY_CHECK(a == b && whole.fault.status == parts.fault.status && whole.fault.what == parts.fault.what);
    GY_CHECK(a != GY_HTTP_BAD || (whole.fault.status >= 400 && whole.fault.what));
    if (a == GY_HTTP_DONE) {
        GY_CHECK(whole.size <= n && whole.size == parts.size && whole.n_field == parts.n_field);
        check_head(&whole, s);
        s += whole.size;
        n -= whole.size;
    }
    check_chunked(s, n, n * data[0] / 255);
    return 0;
}
