/* Plain stores fetch each line that they overwrite: over a prompt's KV, larger than any cache, that is a third of all
 * traffic, and it drives out the weights. memcpy knows this from some size on, which is not ours (glibc: three quarters
 * of the cache): 9 GB/s up to 64 MiB, 12 above; with stores around the cache it is 20, whatever the size.
 */
#include "pd/stream.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64, LEAST = 32 << 10 }; /* below it what is copied may as well stay near */

static void copy_line(char *to, const char *from) {
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

void gy_stream_copy(void *to, const void *from, size_t n) {
    char *at = to;
    const char *src = from;
    size_t head = (LINE - (uintptr_t)at % LINE) % LINE;
    if (n < LEAST) {
        memcpy(at, src, n);
        return;
    }
    memcpy(at, src, head);
    for (at += head, src += head, n -= head; n >= LINE; at += LINE, src += LINE, n -= LINE) copy_line(at, src);
    memcpy(at, src, n);
    _mm_sfence(); /* such stores are ordered by nothing else */
}

#else

void gy_stream_copy(void *to, const void *from, size_t n) {
    memcpy(to, from, n);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

#endif
