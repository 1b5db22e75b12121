/* What a server streams to gyre's client, as arbitrary bytes: the first byte chooses where the rest is cut in two. The
 * events are the same for every way in which the bytes arrive, and no longer than their bound; reading one, or the
 * error in it, does not crash, and what is shown of an error holds no control bytes.
 */
#include "cli/cli_bench_serve_event.h"
#include "cli/oai_client.h"
#include "cli/oai_sse.h"

#include "base/status.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EVENT_MAX = 300 };

static int collect(void *user, const char *data, size_t len) {
    gy_str *all = user;
    GY_CHECK(len <= EVENT_MAX && data[len] == '\0');
    gy_str_append(all, data, len);
    gy_str_append(all, "\0|", 2);
    return 0;
}

static int feed(const char *s, size_t n, size_t cut, size_t piece, gy_str *all) {
    gy_sse d = {0};
    int rc = 0;
    gy_sse_init(&d, EVENT_MAX);
    if (piece)
        for (size_t i = 0; i < n && !rc; i += piece)
            rc = gy_sse_feed(&d, s + i, n - i < piece ? n - i : piece, collect, all);
    else if (!(rc = gy_sse_feed(&d, s, cut, collect, all)))
        rc = gy_sse_feed(&d, s + cut, n - cut, collect, all);
    gy_sse_fini(&d);
    return rc;
}

static int read_event(void *user, const char *data, size_t len) {
    gy_bserve_event e;
    gy_str text = {0}, why = {0};
    (void)user;
    if (gy_bserve_event_read(data, len, &text, &e) == 0) GY_CHECK(e.n_loop_tok >= 0 && (!e.is_token || e.has_choice));
    gy_oai_put_error(data, len, &why);
    GY_CHECK(gy_utf8_valid(gy_str_z(&why), why.len));
    for (size_t i = 0; i < why.len; i++) GY_CHECK((unsigned char)why.data[i] >= ' ' && why.data[i] != 127);
    gy_str_free(&text);
    gy_str_free(&why);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    const char *s = (const char *)data + 1;
    const size_t n = size - 1, cut = n ? data[0] % (n + 1) : 0;
    gy_str whole = {0}, two = {0}, bytes = {0};
    const int rc = feed(s, n, n, 0, &whole);
    GY_CHECK(rc == feed(s, n, cut, 0, &two) && rc == feed(s, n, 0, 1, &bytes));
    GY_CHECK(whole.len == two.len && whole.len == bytes.len);
    GY_CHECK(!whole.len || (!memcmp(whole.data, two.data, whole.len) && !memcmp(whole.data, bytes.data, whole.len)));
    gy_sse d = {0};
    gy_sse_init(&d, EVENT_MAX);
    (void)gy_sse_feed(&d, s, n, read_event, NULL);
    gy_sse_fini(&d);
    gy_str_free(&whole);
    gy_str_free(&two);
    gy_str_free(&bytes);
    return 0;
}
