/* Bytes on their way to one client: a ring that grows to what it must hold and then costs no allocation per event.
 * Not thread-safe. A zeroed ring is empty and owns nothing.
 */
#ifndef GY_SERVER_HTTP_RING_H
#define GY_SERVER_HTTP_RING_H

#include <stddef.h>
#include <sys/uio.h>

typedef struct gy_http_ring {
    char *data;
    size_t cap; /* 0 or a power of two */
    size_t head, len;
} gy_http_ring;

int gy_http_ring_reserve(gy_http_ring *r, size_t more);              /* room for `more` further bytes; -1: no memory */
void gy_http_ring_put(gy_http_ring *r, const char *bytes, size_t n); /* after a reserve that covers it */
int gy_http_ring_peek(const gy_http_ring *r, struct iovec out[2]);   /* 0..2 pieces, in order; borrowed */
void gy_http_ring_drop(gy_http_ring *r, size_t n);                   /* the first n <= len bytes */
void gy_http_ring_free(gy_http_ring *r);                             /* empty and zeroed afterwards */

#endif
