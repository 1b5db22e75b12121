/* Growth of the typed arrays of vec.h: doubling, so that n pushes cost O(n). Shrinking is not offered. */
#include "base/vec.h"

int gy_vec_grow_(void **data, size_t *cap, size_t len, size_t more, size_t elem_bytes, gy_mem_tag tag) {
    size_t need;
    if (gy_size_add(len, more, &need)) return -1;
    if (need <= *cap) return 0;
    size_t want = *cap < 8 ? 8 : *cap;
    while (want < need) want = want > SIZE_MAX / 2 ? need : want * 2;
    void *p = gy_mem_realloc(tag, *data, want, elem_bytes);
    if (!p) return -1;
    *data = p;
    *cap = want;
    return 0;
}
