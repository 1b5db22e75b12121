/* Inside of src/kv, shared by its files and by the test that plants corruption. Nobody else includes it.
 *
 * Both groups and all layouts are one rule, because a layout is nothing but its number of planes:
 *   plane(d) = d mod n_plane        last_exited: n_plane = n_loop; shared and boundary: 1; cyclic: K
 *   claim    fills map[plane(d)], map[plane(d) + n_plane], map[plane(d) + 2 n_plane], ...
 *   exit(e)  fills every entry d > e that is still -1 with map[e]
 * A token owns a slot on plane p iff map[p] is set and p is 0 or map[p] differs from map[p - 1]: slots of different
 * planes lie in different blocks, and only exit makes neighbours equal. Owned planes are a prefix 0..e.
 */
#ifndef GY_KV_KV_INT_H
#define GY_KV_KV_INT_H

#include "kv/kv.h"

#include "base/arena.h"

/* One group: its blocks, the logs of all sequences' planes, and the map. Engine lifetime, all carved at create. */
typedef struct kv_pool {
    void *arena;        /* borrowed, never read or written here */
    int32_t n_block;    /* 0: the group is empty and everything below is NULL */
    int32_t n_free;     /* free[0..n_free) is a stack */
    int32_t n_plane;    /* per sequence */
    int32_t n_map;      /* map rows per sequence: n_loop, or 1 for the boundary */
    int32_t log_blocks; /* ceil(max_len / 16): room of one plane's block list */
    int32_t *free;      /* [n_block] */
    int32_t *refs;      /* [n_block] sequences + outside holders; 0 = free */
    int32_t *held;      /* [n_block] references of outside holders */
    int32_t *scratch;   /* [n_block] the checker's, so that it allocates nothing */
    int32_t *log;       /* [max_seqs][n_plane][log_blocks] block ids; the first ceil(len / 16) count */
    int32_t *len;       /* [max_seqs][n_plane] slots used */
    int32_t *last;      /* [max_seqs][n_plane] position of the newest slot, -1 = none */
    int32_t *map;       /* [max_seqs][n_map][max_len] */
} kv_pool;

typedef struct kv_seq {
    int32_t open;    /* 0 or 1 */
    int32_t max_tok; /* capacity while open */
    int32_t ready;   /* map entries [0, ready) of every row hold -1 or a slot; those above were never used and hold 0.
                        Grows when a longer sequence opens: memory that nobody needs is never touched */
} kv_seq;

struct gy_kv {
    gy_kv_config cfg;
    kv_pool pool[GY_KV_GROUPS];
    kv_seq *seq;       /* [max_seqs] */
    int32_t *seq_free; /* [max_seqs] stack */
    int32_t n_seq_free;
    gy_carve mem; /* pages that all arrays lie in: only what sequences really use gets committed */
};

/* pool.c */
int32_t gy_kv_pool_take(kv_pool *p);               /* a free block with one reference, -1 = none */
void gy_kv_pool_ref(kv_pool *p, int32_t block);    /* one more reference to a block in use */
void gy_kv_pool_unref(kv_pool *p, int32_t block);  /* one less; at zero the block is free */
void gy_kv_pool_reset(kv_pool *p, int32_t n_seqs); /* at create: all free, all logs empty */

static inline int64_t kv_plane_index(const kv_pool *p, int32_t seq, int32_t plane) {
    return (int64_t)seq * p->n_plane + plane;
}
static inline int32_t *kv_log(const kv_pool *p, int32_t seq, int32_t plane) {
    return p->log + kv_plane_index(p, seq, plane) * p->log_blocks;
}
static inline int32_t *kv_map_row(const gy_kv *kv, const kv_pool *p, int32_t seq, int32_t depth) {
    return p->map + ((int64_t)seq * p->n_map + depth) * kv->cfg.max_len;
}
static inline int kv_owns(const gy_kv *kv, const kv_pool *p, int32_t seq, int32_t plane, int32_t pos) {
    int32_t slot = kv_map_row(kv, p, seq, plane)[pos];
    return slot >= 0 && (plane == 0 || slot != kv_map_row(kv, p, seq, plane - 1)[pos]);
}

#endif
