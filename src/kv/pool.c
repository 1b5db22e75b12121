/* Blocks of one group: a stack of free ones and a reference count each; the same for park blocks, which have one owner
 * or none. Knows nothing of sequences or maps. A cached block tells its row when others begin or cease to use it, which
 * is what keeps n_cached and the rows' order right at O(1).
 */
#include "kv/kv_int.h"

/* Popped in the order 0, 1, 2, ..., so that a fresh engine's memory fills from its start. */
void gy_kv_pool_reset(kv_pool *p, int32_t n_seqs) {
    p->n_free = p->n_block;
    for (int32_t i = 0; i < p->n_block; i++) p->free[i] = p->n_block - 1 - i;
    p->n_park_free = p->n_park;
    for (int32_t i = 0; i < p->n_park; i++) p->park_free[i] = p->n_park - 1 - i;
    for (int64_t i = 0; i < (int64_t)n_seqs * p->n_plane; i++) p->last[i] = -1;
}

/* With n_cached > 0 evicting must succeed: at the latest when the last row is gone, all of them are free. */
int32_t gy_kv_pool_take(kv_pool *p, int32_t plane) {
    if (p->n_free == 0 && p->n_cached == 0) return -1;
    while (p->n_free == 0) gy_prefix_evict(p->prefix);
    int32_t block = p->free[--p->n_free];
    GY_ASSERT(p->refs[block] == 0);
    p->refs[block] = 1;
    p->plane[block] = plane;
    p->used[plane]++;
    return block;
}

void gy_kv_pool_ref(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_block && p->refs[block] > 0);
    if (p->refs[block]++ > 1 || !kv_is_cached(p, block)) return;
    p->n_cached--;
    gy_prefix_pin(p->prefix, p->row[block]);
}

void gy_kv_pool_unref(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_block && p->refs[block] > 0);
    p->refs[block]--;
    if (p->refs[block] == 0) {
        p->free[p->n_free++] = block;
        p->used[p->plane[block]]--;
    }
    if (p->refs[block] != 1 || !kv_is_cached(p, block)) return;
    p->n_cached++;
    gy_prefix_unpin(p->prefix, p->row[block]);
}

void gy_kv_pool_cache(kv_pool *p, int32_t block, int32_t row) {
    GY_CHECK(block >= 0 && block < p->n_block && p->refs[block] > 0 && p->row[block] < 0);
    p->refs[block]++;
    p->row[block] = row;
    gy_prefix_pin(p->prefix, row);
}

void gy_kv_pool_uncache(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_block && p->row[block] >= 0);
    if (p->refs[block] == 1) p->n_cached--;
    p->row[block] = -1;
    gy_kv_pool_unref(p, block);
}

int32_t gy_kv_park_take(kv_pool *p) {
    GY_CHECK(p->n_park_free > 0);
    int32_t block = p->park_free[--p->n_park_free];
    GY_ASSERT(p->park_refs[block] == 0);
    p->park_refs[block] = 1;
    return block;
}

void gy_kv_park_put(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_park && p->park_refs[block] == 1);
    p->park_refs[block] = 0;
    p->park_free[p->n_park_free++] = block;
}

void gy_kv_block_ref(gy_kv *kv, gy_kv_group g, int32_t block) {
    gy_kv_pool_ref(&kv->pool[g], block);
    kv->pool[g].held[block]++;
}

void gy_kv_block_unref(gy_kv *kv, gy_kv_group g, int32_t block) {
    GY_CHECK(block >= 0 && block < kv->pool[g].n_block && kv->pool[g].held[block] > 0);
    kv->pool[g].held[block]--;
    gy_kv_pool_unref(&kv->pool[g], block);
}
