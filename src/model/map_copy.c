/* See map_copy.h. A step costs a comparison of what its rows read (memory speed). In decoding one entry of each
 * sequence has changed: these go over together, because every copy of its own costs the device a microsecond or two.
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
    m->room = be->ops->patch ? GY_MAP_PATCH : 0;
    m->idx = gy_mem_alloc(GY_MEM_KV, GY_MAP_PATCH, sizeof *m->idx);
    m->v = gy_mem_alloc(GY_MEM_KV, GY_MAP_PATCH, sizeof *m->v);
    if (!m->dev || !m->idx || !m->v) {
        gy_map_copy_close(m);
        return gy_err_set(err, GY_E_NOMEM, "no memory for %zu bytes of slot map; lower max_seqs or max_len",
                          (size_t)view->n_map * sizeof *m->dev);
    }
    view->map = m->dev;
    return GY_OK;
}

void gy_map_copy_close(gy_map_copy *m) {
    if (m->be) m->be->ops->free(m->be, m->dev, m->bytes);
    gy_mem_free(m->idx);
    gy_mem_free(m->v);
    if (m->shown) gy_mem_unmap_pages(GY_MEM_KV, m->shown, m->bytes);
    *m = (gy_map_copy){0};
}

/* Entries [at, at + n) differ somewhere. */
static void collect(gy_map_copy *m, int64_t at, int64_t n) {
    for (int64_t i = at; i < at + n; i++) {
        if (m->host[i] == m->shown[i]) continue;
        m->idx[m->n] = i;
        m->v[m->n++] = m->host[i];
    }
}

/* Entries [first, first + n): from the first that differs to the last. */
static void bring(gy_map_copy *m, int64_t first, int64_t n) {
    enum { STEP = 256, SHORT = 16 };
    const int32_t *host = m->host + first;
    int32_t *shown = m->shown + first;
    int64_t lo = 0, hi = n;
    while (hi - lo >= STEP && !memcmp(host + lo, shown + lo, STEP * sizeof *host)) lo += STEP;
    while (lo < hi && host[lo] == shown[lo]) lo++;
    while (lo < hi && host[hi - 1] == shown[hi - 1]) hi--;
    if (lo == hi) return;
    int single = hi - lo <= SHORT && m->n + (hi - lo) <= m->room;
    if (single) collect(m, first + lo, hi - lo);
    memcpy(shown + lo, host + lo, (size_t)(hi - lo) * sizeof *host);
    if (!single) m->be->ops->upload(m->be, m->dev + first + lo, shown + lo, (size_t)(hi - lo) * sizeof *host);
}

int32_t gy_map_copy_update(gy_map_copy *m, int32_t n_row, const int32_t *pos, const int64_t *map_off) {
    m->n = 0;
    if (!m->be) return 0;
    for (int32_t r = 0; r < n_row;) {
        int64_t off = map_off[r], n = 0;
        for (; r < n_row && map_off[r] == off; r++) /* a chunk of one sequence: once for all */
            if (pos[r] >= n) n = pos[r] + 1;
        bring(m, off, n);
    }
    return m->n;
}
