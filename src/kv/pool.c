/* Blocks of one group: a stack of free ones and a reference count each. Knows nothing of sequences or maps. O(1). */
#include "kv/kv_int.h"

#include <string.h>

/* Popped in the order 0, 1, 2, ..., so that a fresh engine's memory fills from its start. */
void gy_kv_pool_reset(kv_pool *p, int32_t n_seqs) {
    p->n_free = p->n_block;
    for (int32_t i = 0; i < p->n_block; i++) p->free[i] = p->n_block - 1 - i;
    for (int64_t i = 0; i < (int64_t)n_seqs * p->n_plane; i++) p->last[i] = -1;
}

int32_t gy_kv_pool_take(kv_pool *p) {
    if (p->n_free == 0) return -1;
    int32_t block = p->free[--p->n_free];
    GY_ASSERT(p->refs[block] == 0);
    p->refs[block] = 1;
    return block;
}

void gy_kv_pool_ref(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_block && p->refs[block] > 0);
    p->refs[block]++;
}

void gy_kv_pool_unref(kv_pool *p, int32_t block) {
    GY_CHECK(block >= 0 && block < p->n_block && p->refs[block] > 0);
    if (--p->refs[block] == 0) p->free[p->n_free++] = block;
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
