/* Parking: a sequence's blocks leave the pool for park blocks and come back. Logs and map are rewritten block by block
 * (slot % 16 stays), so what a map entry says about who owns which plane stays true while parked. The bytes are the
 * caller's: it is called back once for each block. O(tokens * n_loop); no allocation.
 */
#include "kv/kv_int.h"

static void map_move(gy_kv *kv, const kv_pool *p, int32_t seq) {
    int32_t n_tok = kv_seq_len(p, seq);
    for (int32_t d = 0; d < p->n_map; d++) {
        int32_t *row = kv_map_row(kv, p, seq, d);
        for (int32_t pos = 0; pos < n_tok; pos++)
            if (row[pos] >= 0)
                row[pos] = p->moved[row[pos] / GY_KV_BLOCK_LEN] * GY_KV_BLOCK_LEN + row[pos] % GY_KV_BLOCK_LEN;
    }
}

/* New blocks for all that are in the logs. There must be enough of them. Where the pool's blocks come from evicting
 * cached rows, the blocks of this sequence cannot be among the evicted: it is parked, it holds none. */
static void pool_move(gy_kv *kv, gy_kv_group g, int32_t seq, int park, gy_kv_copy_fn copy, void *arg) {
    kv_pool *p = &kv->pool[g];
    for (int32_t plane = 0; plane < p->n_plane; plane++) {
        int32_t *log = kv_log(p, seq, plane), n_block = kv_blocks_of(p->len[kv_plane_index(p, seq, plane)]);
        for (int32_t k = 0; k < n_block; k++) {
            int32_t from = log[k], to = park ? gy_kv_park_take(p) : gy_kv_pool_take(p, plane);
            GY_CHECK(to >= 0);
            copy(arg, g, park ? from : to, park ? to : from);
            p->moved[from] = to;
            log[k] = to;
            if (park)
                gy_kv_pool_unref(p, from);
            else
                gy_kv_park_put(p, from);
        }
    }
    map_move(kv, p, seq);
}

gy_status gy_kv_park(gy_kv *kv, int32_t seq, gy_kv_copy_fn copy, void *arg) {
    GY_CHECK(kv_seq_is_live(kv, seq));
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (gy_kv_seq_blocks(kv, (gy_kv_group)g, seq) > kv->pool[g].n_park_free) return GY_AGAIN;
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (kv->pool[g].n_block) pool_move(kv, (gy_kv_group)g, seq, 1, copy, arg);
    kv->seq[seq].parked = 1;
    return GY_OK;
}

/* Evicting for one group never takes from what the other can get: a block that only the cache holds becomes free. */
gy_status gy_kv_restore(gy_kv *kv, int32_t seq, gy_kv_copy_fn copy, void *arg) {
    GY_CHECK(kv_seq_is_open(kv, seq) && kv->seq[seq].parked);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (gy_kv_seq_blocks(kv, (gy_kv_group)g, seq) > gy_kv_n_avail(kv, (gy_kv_group)g)) return GY_AGAIN;
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (kv->pool[g].n_block) pool_move(kv, (gy_kv_group)g, seq, 0, copy, arg);
    kv->seq[seq].parked = 0;
    return GY_OK;
}

int gy_kv_is_parked(const gy_kv *kv, int32_t seq) {
    GY_CHECK(seq >= 0 && seq < kv->cfg.max_seqs);
    return kv->seq[seq].parked;
}

int32_t gy_kv_n_park_free(const gy_kv *kv, gy_kv_group g) {
    return kv->pool[g].n_park_free;
}
