/* Server-sent events (WHATWG HTML, 9.2), as OpenAI's servers use them: bytes in any pieces, the data of each event out.
 * Lines end with LF or CRLF. Fields other than "data" and comments are passed over; an event without data is none; one
 * that the end of the stream cuts off is never told. Knows no HTTP and no JSON. Single thread.
 */
#ifndef GY_CLI_OAI_SSE_H
#define GY_CLI_OAI_SSE_H

#include "base/str.h"

typedef struct gy_sse {
    size_t max;  /* bytes of an event, and of a line */
    gy_str line; /* what came of a line that is not over */
    gy_str data; /* of the event so far, its lines joined by LF */
    int has_data;
} gy_sse;

enum { GY_SSE_TOO_LARGE = -1, GY_SSE_NO_MEMORY = -2 };

/* The data is NUL-terminated and valid during the call. Nonzero (positive) ends the feeding. */
typedef int (*gy_sse_fn)(void *user, const char *data, size_t len);

void gy_sse_init(gy_sse *s, size_t max); /* zeroed memory or one that was used before, whose buffers it keeps */
void gy_sse_fini(gy_sse *s);
/* 0, what fn returned, or an error of the enum. After anything but 0 nothing more may be fed. */
int gy_sse_feed(gy_sse *s, const char *bytes, size_t n, gy_sse_fn fn, void *user);

#endif
