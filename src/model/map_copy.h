/* The slot map of a KV group on a backend with memory of its own. The KV cache keeps the map in host memory; before a
 * batch, what changed of the map rows that the batch reads is brought over. What changed is found by comparing with a
 * host copy of what the device has, so it does not matter who changed the map and when. On a host backend nothing is
 * copied. Lifetime of the loop driver. Open struct: a zeroed one is closed.
 */
#ifndef GY_MODEL_MAP_COPY_H
#define GY_MODEL_MAP_COPY_H

#include "ops/ops.h"

typedef struct gy_map_copy {
    gy_backend *be;      /* NULL: the host's map is used as it is */
    const int32_t *host; /* the KV cache's, borrowed */
    int32_t *dev;        /* the backend's */
    int32_t *shown;      /* host memory: what dev holds */
    size_t bytes;        /* of each */
} gy_map_copy;

/* Makes view->map the copy. No view->base: there is no map. GY_E_NOMEM. */
gy_status gy_map_copy_open(gy_map_copy *m, gy_backend *be, gy_kv_view *view, gy_err *err);
void gy_map_copy_close(gy_map_copy *m);
/* Rows of a batch are going to read map[map_off[r] .. map_off[r] + pos[r]]. */
void gy_map_copy_update(gy_map_copy *m, int32_t n_row, const int32_t *pos, const int64_t *map_off);

#endif
