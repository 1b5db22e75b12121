/* Inside of src/kv, shared by its files and by the tests that plant corruption. Nobody else includes it.
 *
 * Both groups and all layouts are one rule, because a layout is nothing but its number of planes:
 *   plane(d) = d mod n_plane        last_exited: n_plane = n_loop; shared and boundary: 1; cyclic: K
 *   claim    fills map[plane(d)], map[plane(d) + n_plane], map[plane(d) + 2 n_plane], ...
 *   exit(e)  fills every entry d > e that is still -1 with map[e]
 * A token owns a slot on plane p iff map[p] is set and p is 0 or map[p] differs from map[p - 1]: slots of different
 * planes lie in different blocks, and only exit makes neighbours equal. Owned planes are a prefix 0..e.
 *
 * A block may be in the logs of several sequences, always at the same place (plane, index), and in one row of the
 * prefix cache; then it is full. A block that is not full is in one log alone, so that appending never writes into what
 * others read. Outside holders may hold any block.
 */
#ifndef GY_KV_KV_INT_H
#define GY_KV_KV_INT_H

#include "kv/kv.h"

#include "base/arena.h"

typedef struct kv_prefix kv_prefix; /* prefix_int.h */

/* One group: its blocks, the logs of all sequences' planes, and the map. Engine lifetime, all carved at create. */
typedef struct kv_pool {
    void *arena;         /* borrowed, never read or written here */
    int32_t n_block;     /* 0: the group is empty and everything below is NULL */
    int32_t n_free;      /* free[0..n_free) is a stack */
    int32_t n_cached;    /* blocks that a row of the prefix cache holds and nobody else */
    int32_t n_park;      /* park blocks */
    int32_t n_park_free; /* park_free[0..n_park_free) is a stack */
    int32_t n_plane;     /* per sequence */
    int32_t n_map;       /* map rows per sequence: n_loop, or 1 for the boundary */
    int32_t log_blocks;  /* ceil(max_len / 16): room of one plane's block list */
    int32_t *free;       /* [n_block] */
    int32_t *refs;       /* [n_block] sequences + cache + outside holders; 0 = free */
    int32_t *plane;      /* [n_block] of a block in use: the plane it is on, in whosever log */
    int32_t *used;       /* [n_plane] blocks in use */
    int32_t *held;       /* [n_block] references of outside holders */
    int32_t *park_free;  /* [n_park] */
    int32_t *park_refs;  /* [n_park] 1 = in the log of a parked sequence, 0 = free */
    int32_t *moved;      /* [max(n_block, n_park)] where park and restore put the blocks of the sequence at hand */
    int32_t *scratch;    /* [max(n_block, n_park)] the checker's, so that it allocates nothing */
    int64_t *place;      /* [n_block] the checker's */
    int32_t *log;        /* [max_seqs][n_plane][log_blocks] block ids; the first ceil(len / 16) count */
    int32_t *len;        /* [max_seqs][n_plane] slots used */
    int32_t *last;       /* [max_seqs][n_plane] position of the newest slot, -1 = none */
    int32_t *blocks;     /* [max_seqs] blocks in all logs of the sequence */
    int32_t *map;        /* [max_seqs][n_map][max_len] */

    kv_prefix *prefix; /* NULL: no prefix cache */
    int32_t *row;      /* [n_block] the cache's row that holds the block, -1 = none; NULL without a cache */
} kv_pool;

typedef struct kv_seq {
    int32_t open;    /* 0 or 1 */
    int32_t parked;  /* 0 or 1: logs and map speak of park blocks */
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
    kv_prefix *prefix; /* NULL: no prefix cache */
    gy_carve mem;      /* pages that all arrays lie in: only what sequences really use gets committed */
};

/* pool.c */
/* A block with one reference, for this plane, evicting cached rows if need be; -1 = none. */
int32_t gy_kv_pool_take(kv_pool *p, int32_t plane);
void gy_kv_pool_ref(kv_pool *p, int32_t block);                /* one more reference to a block in use */
void gy_kv_pool_unref(kv_pool *p, int32_t block);              /* one less; at zero the block is free */
void gy_kv_pool_cache(kv_pool *p, int32_t block, int32_t row); /* the cache's reference; the block is used, in no row */
void gy_kv_pool_uncache(kv_pool *p, int32_t block);            /* gives it back; does not unpin the row */
void gy_kv_pool_reset(kv_pool *p, int32_t n_seqs);             /* at create: all free, all logs empty */
int32_t gy_kv_park_take(kv_pool *p);                           /* there must be one */
void gy_kv_park_put(kv_pool *p, int32_t park_block);

/* seq.c. The next whole block row of an open sequence: n_own core blocks, core[0], core[stride], ..., and the boundary
 * block (any value when that group is empty), all in use, become the KV of its next 16 tokens. References + 1; the map
 * is filled as if the tokens had been claimed at depths 0..n_own-1 and had exited. */
void gy_kv_adopt(gy_kv *kv, int32_t seq, const int32_t *core, int64_t stride, int32_t n_own, int32_t boundary);

/* prefix.c */
void gy_prefix_destroy(kv_prefix *x);            /* accepts NULL */
void gy_prefix_evict(kv_prefix *x);              /* drops the oldest row; there must be one */
void gy_prefix_pin(kv_prefix *x, int32_t row);   /* one more block of the row is used by others than the cache */
void gy_prefix_unpin(kv_prefix *x, int32_t row); /* one less */

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
static inline int32_t kv_blocks_of(int32_t n_slot) { /* no overflow for n_slot near INT32_MAX */
    return n_slot / GY_KV_BLOCK_LEN + (n_slot % GY_KV_BLOCK_LEN != 0);
}
/* Slot n of a plane that starts at this log. */
static inline int32_t kv_log_slot(const int32_t *log, int32_t n) {
    return log[n / GY_KV_BLOCK_LEN] * GY_KV_BLOCK_LEN + n % GY_KV_BLOCK_LEN;
}
static inline int32_t kv_seq_len(const kv_pool *p, int32_t seq) { /* tokens with a slot on plane 0; 0: empty group */
    return p->n_block ? p->len[kv_plane_index(p, seq, 0)] : 0;
}
static inline int kv_seq_is_open(const gy_kv *kv, int32_t seq) {
    return seq >= 0 && seq < kv->cfg.max_seqs && kv->seq[seq].open;
}
static inline int kv_seq_is_live(const gy_kv *kv, int32_t seq) { /* open and in the pool */
    return kv_seq_is_open(kv, seq) && !kv->seq[seq].parked;
}
static inline int kv_is_cached(const kv_pool *p, int32_t block) {
    return p->row && p->row[block] >= 0;
}

#endif
