/* See map_copy.h. A step costs a comparison of what its rows read (memory speed) and one upload for each map row that
 * changed: in decoding one entry of each sequence.
 */
#include "model/map_copy.h"

#include "base/mem.h"

#include <string.h>

gy_status gy_map_copy_open(gy_map_copy *m, gy_backend *be, gy_kv_view *view, gy_err *err) {
    *m = (gy_map_copy){0};
    if (be->is_host || !view->base) return GY_OK;
    *m = (gy_map_copy){.be = be, .host = view->map, .bytes = (size_t)view->n_map * sizeof *m->dev};
    m->shown = gy_mem_map_pages(GY_MEM_KV, m->bytes); /* zeros, as alloc's */
    m->dev = m->shown ? be->ops->alloc(be, m->bytes) : NULL;
    if (!m->dev) {
        gy_map_copy_close(m);
        return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of slot map; lower max_seqs or max_len",
                          (size_t)view->n_map * sizeof *m->dev);
    }
    view->map = m->dev;
    return GY_OK;
}

void gy_map_copy_close(gy_map_copy *m) {
    if (m->be) m->be->ops->free(m->be, m->dev, m->bytes);
    if (m->shown) gy_mem_unmap_pages(GY_MEM_KV, m->shown, m->bytes);
    *m = (gy_map_copy){0};
}

/* Entries [first, first + n): from the first that differs to the last. */
static void bring(gy_map_copy *m, int64_t first, int64_t n) {
    enum { STEP = 256 };
    const int32_t *host = m->host + first;
    int32_t *shown = m->shown + first;
    int64_t lo = 0, hi = n;
    while (hi - lo >= STEP && !memcmp(host + lo, shown + lo, STEP * sizeof *host)) lo += STEP;
    while (lo < hi && host[lo] == shown[lo]) lo++;
    while (lo < hi && host[hi - 1] == shown[hi - 1]) hi--;
    if (lo == hi) return;
    memcpy(shown + lo, host + lo, (size_t)(hi - lo) * sizeof *host);
    m->be->ops->upload(m->be, m->dev + first + lo, shown + lo, (size_t)(hi - lo) * sizeof *host);
}

void gy_map_copy_update(gy_map_copy *m, int32_t n_row, const int32_t *pos, const int64_t *map_off) {
    if (!m->be) return;
    for (int32_t r = 0; r < n_row;) {
        int64_t off = map_off[r], n = 0;
        for (; r < n_row && map_off[r] == off; r++) /* a chunk of one sequence: once for all */
            if (pos[r] >= n) n = pos[r] + 1;
        bring(m, off, n);
    }
}
