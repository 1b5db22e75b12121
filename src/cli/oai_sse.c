/* Lines to events: see oai_sse.h. */
#include "cli/oai_sse.h"

#include <string.h>

void gy_sse_init(gy_sse *s, size_t max) {
    s->max = max;
    s->has_data = 0;
    gy_str_clear(&s->line);
    gy_str_clear(&s->data);
}

void gy_sse_fini(gy_sse *s) {
    gy_str_free(&s->line);
    gy_str_free(&s->data);
}

static int sse_dispatch(gy_sse *s, gy_sse_fn fn, void *user) {
    if (!s->has_data) return 0;
    const int rc = fn(user, gy_str_z(&s->data), s->data.len);
    s->has_data = 0;
    gy_str_clear(&s->data);
    return rc;
}

/* "data: x" and "data:x" are the same; "data" alone is an empty line of data. */
static int sse_add_data(gy_sse *s, const char *line, size_t n) {
    static const size_t name = sizeof "data" - 1;
    if (n < name || memcmp(line, "data", name) != 0 || (n > name && line[name] != ':')) return 0;
    const size_t skip = n <= name ? name : name + 1 + (n > name + 1 && line[name + 1] == ' ');
    if (s->has_data) gy_str_putc(&s->data, '\n');
    gy_str_append(&s->data, line + skip, n - skip);
    s->has_data = 1;
    return s->data.failed ? GY_SSE_NO_MEMORY : s->data.len > s->max ? GY_SSE_TOO_LARGE : 0;
}

static int sse_line(gy_sse *s, const char *line, size_t n, gy_sse_fn fn, void *user) {
    if (n && line[n - 1] == '\r') n--;
    return n ? sse_add_data(s, line, n) : sse_dispatch(s, fn, user);
}

/* The rest of a line that began in an earlier piece. */
static int sse_line_end(gy_sse *s, const char *rest, size_t n, gy_sse_fn fn, void *user) {
    gy_str_append(&s->line, rest, n);
    if (s->line.failed) return GY_SSE_NO_MEMORY;
    if (s->line.len > s->max) return GY_SSE_TOO_LARGE;
    const int rc = sse_line(s, s->line.data, s->line.len, fn, user);
    gy_str_clear(&s->line);
    return rc;
}

int gy_sse_feed(gy_sse *s, const char *bytes, size_t n, gy_sse_fn fn, void *user) {
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        const size_t len = end ? (size_t)(end - bytes) : n;
        if (s->line.len + len > s->max) return GY_SSE_TOO_LARGE;
        if (!end) {
            gy_str_append(&s->line, bytes, n);
            return s->line.failed ? GY_SSE_NO_MEMORY : 0;
        }
        const int rc = s->line.len ? sse_line_end(s, bytes, len, fn, user) : sse_line(s, bytes, len, fn, user);
        if (rc) return rc;
        bytes += len + 1;
        n -= len + 1;
    }
    return 0;
}
