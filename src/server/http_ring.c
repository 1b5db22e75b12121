/* A power-of-two ring. Growing straightens it: the bytes begin at 0 in the new memory. */
#include "server/http_ring.h"

#include "base/mem.h"
#include "base/status.h"

#include <string.h>

enum { RING_FIRST = 1024 };

int gy_http_ring_peek(const gy_http_ring *r, struct iovec out[2]) {
    if (r->len == 0) return 0;
    size_t first = r->cap - r->head;
    if (first > r->len) first = r->len;
    out[0] = (struct iovec){r->data + r->head, first};
    if (first == r->len) return 1;
    out[1] = (struct iovec){r->data, r->len - first};
    return 2;
}

int gy_http_ring_reserve(gy_http_ring *r, size_t more) {
    size_t need, cap = r->cap ? r->cap : RING_FIRST;
    if (gy_size_add(r->len, more, &need) || need > SIZE_MAX / 4) return -1;
    if (need <= r->cap) return 0;
    while (cap < need) cap *= 2;
    char *data = gy_mem_realloc(GY_MEM_SERVER, NULL, cap, 1);
    if (!data) return -1;
    struct iovec part[2];
    size_t at = 0;
    for (int i = 0, n = gy_http_ring_peek(r, part); i < n; i++) {
        memcpy(data + at, part[i].iov_base, part[i].iov_len);
        at += part[i].iov_len;
    }
    gy_mem_free(r->data);
    *r = (gy_http_ring){.data = data, .cap = cap, .len = r->len};
    return 0;
}

void gy_http_ring_put(gy_http_ring *r, const char *bytes, size_t n) {
    if (n == 0) return;
    GY_CHECK(n <= r->cap - r->len);
    size_t at = (r->head + r->len) & (r->cap - 1), first = r->cap - at;
    if (first > n) first = n;
    memcpy(r->data + at, bytes, first);
    memcpy(r->data, bytes + first, n - first);
    r->len += n;
}

void gy_http_ring_drop(gy_http_ring *r, size_t n) {
    GY_CHECK(n <= r->len);
    r->len -= n;
    /* An empty ring starts over, so that a short write is one piece. */
    r->head = r->len ? (r->head + n) & (r->cap - 1) : 0;
}

void gy_http_ring_free(gy_http_ring *r) {
    gy_mem_free(r->data);
    *r = (gy_http_ring){0};
}
