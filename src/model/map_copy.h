/* The slot map of a KV group on a backend with memory of its own. The KV cache keeps the map in host memory; before a
 * batch, what changed of the map rows that the batch reads is brought over. What changed is found by comparing with a
 * host copy of what the device has, so it does not matter who changed the map and when. On a host backend nothing is
 * copied. Lifetime of the loop driver. Open struct: a zeroed one is closed.
 */
#ifndef GY_MODEL_MAP_COPY_H
#define GY_MODEL_MAP_COPY_H

#include "ops/ops.h"

enum { GY_MAP_PATCH = 4096 }; /* single entries of one update */

typedef struct gy_map_copy {
    gy_backend *be;      /* NULL: the host's map is used as it is */
    const int32_t *host; /* the KV cache's, borrowed */
    int32_t *dev;        /* the backend's */
    int32_t *shown;      /* host memory: what dev holds */
    size_t bytes;        /* of each */

    /* What the last update left to be patched into dev. */
    int32_t n, room; /* room 0: the backend has no patch */
    int64_t *idx;    /* [room] */
    int32_t *v;      /* [room] */
} gy_map_copy;

/* Makes view->map the copy. No view->base: there is no map. GY_E_NOMEM. */
gy_status gy_map_copy_open(gy_map_copy *m, gy_backend *be, gy_kv_view *view, gy_err *err);
void gy_map_copy_close(gy_map_copy *m);
/* Rows of a batch are going to read map[map_off[r] .. map_off[r] + pos[r]]. Long stretches are uploaded; of the rest
 * the caller brings idx and v [n] over with what else he has and patches dev. Returns n. */
int32_t gy_map_copy_update(gy_map_copy *m, int32_t n_row, const int32_t *pos, const int64_t *map_off);

#endif
