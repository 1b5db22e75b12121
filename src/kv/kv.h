/* The KV cache: block pools, planes and the slot map (ARCHITECTURE.md, KV is a map). Knows tokens, depths and slots;
 * never a model.
 *
 *   group  GY_KV_CORE: the core's layers, n_plane planes (one per depth, K for cyclic, 1 for shared);
 *          GY_KV_BOUNDARY: prelude and coda layers, one plane; absent when n_layer is 0.
 *   plane  of a sequence: an append-only log of blocks that holds only the tokens that were given a slot on it,
 * densely. map    slot(seq, depth, pos): where the KV of token pos is read by a query at `depth`.
 *
 * Layout rules (they fill the map, nothing else knows them):
 *   last_exited  claim(d) takes the next slot of plane d. exit(e): slot(d > e) = slot(e). No bytes are copied.
 *   shared       one plane; claim at any depth gives the same slot.
 *   cyclic K     K planes; claim(d) gives plane (d mod K)'s slot, the same one each time round. exit(e): for d > e,
 *                slot(d) = the slot of plane d mod K if the token got one, else slot(e).
 * Under shared and cyclic a later loop overwrites what an earlier one wrote, so prompts run position by position
 * (gy_kv_position_serial) or chunked would not equal whole.
 *
 * Blocks are reference counted: sequences, the prefix cache (prefix.h), outside holders. At every step, per group:
 * free + in use = total, where a block is in use iff somebody holds a reference. Blocks that only the prefix cache
 * holds are reclaimed by a claim that finds no free one. Parking: a sequence may leave the pool and stay open; its
 * bytes are then in blocks of a second, host-side pool of the caller (park blocks), its map says where. Nothing here
 * touches the bytes: the caller copies, told what by a callback. Engine lifetime; one thread (the engine's).
 */
#ifndef GY_KV_KV_H
#define GY_KV_KV_H

#include "base/status.h"
#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { GY_KV_BLOCK_LEN = 16 }; /* slots of a block (ops.h says the same as GY_BLOCK_SLOTS) */

typedef enum gy_kv_layout { GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC } gy_kv_layout;
typedef enum gy_kv_group { GY_KV_CORE, GY_KV_BOUNDARY, GY_KV_GROUPS } gy_kv_group;

/* What K and V are held in: as activations are, or as whole numbers with a scale for each slot and head (ops.h). */
typedef enum gy_kv_type { GY_KV_AUTO, GY_KV_F32, GY_KV_BF16, GY_KV_INT8 } gy_kv_type;

typedef struct gy_kv_config {
    gy_kv_layout layout;
    int32_t cyclic_k;              /* planes of the cyclic layout, 1..n_loop */
    int32_t n_loop;                /* depths 0..n_loop-1 */
    int32_t n_layer[GY_KV_GROUPS]; /* 0 boundary layers: the group is empty */
    int32_t n_head_kv, head_dim;
    gy_dtype dtype;                /* F32, BF16 or I8 */
    int32_t n_block[GY_KV_GROUPS]; /* pool sizes */
    int32_t n_park[GY_KV_GROUPS];  /* sizes of the park pools, 0 = parking is impossible */
    int32_t max_seqs;              /* sequences open at once */
    int32_t max_len;               /* longest sequence */
} gy_kv_config;

typedef struct gy_kv gy_kv;

int32_t gy_kv_n_plane(const gy_kv_config *c, gy_kv_group g); /* 0 for an empty group */
size_t gy_kv_row_bytes(const gy_kv_config *c);               /* of K of one slot in one layer; 0 when it does not fit */
size_t gy_kv_block_bytes(const gy_kv_config *c, gy_kv_group g);
/* Blocks that a sequence of n_tok tokens at full depth can ever need: ceil(n_tok / 16) * planes. */
int64_t gy_kv_blocks_for(const gy_kv_config *c, gy_kv_group g, int64_t n_tok);
int gy_kv_position_serial(const gy_kv_config *c);
/* "last_exited", "shared", "cyclic:K" */
gy_status gy_kv_layout_parse(const char *s, gy_err *err, gy_kv_layout *layout_out, int32_t *k_out);
/* "auto", "f32", "bf16", "int8" */
gy_status gy_kv_type_parse(const char *s, gy_err *err, gy_kv_type *out);
const char *gy_kv_type_name(gy_kv_type t);
gy_dtype gy_kv_type_dtype(gy_kv_type t, gy_dtype act);

/* arena[g]: gy_kv_block_bytes * n_block[g] bytes of the backend's memory, borrowed (NULL for an empty group). */
gy_status gy_kv_create(const gy_kv_config *c, void *const arena[GY_KV_GROUPS], gy_err *err, gy_kv **out);
void gy_kv_destroy(gy_kv *kv); /* accepts NULL */
const gy_kv_config *gy_kv_get_config(const gy_kv *kv);

/* Sequences are small integers 0..max_seqs-1. open: GY_AGAIN when all are taken. max_tok <= max_len: its capacity. */
gy_status gy_kv_seq_open(gy_kv *kv, int32_t max_tok, int32_t *seq_out);
void gy_kv_seq_close(gy_kv *kv, int32_t seq); /* drops its references; blocks at zero become free */

/* The slot that token pos at depth will write (and read itself from). Fills the map at (depth, pos). GY_AGAIN when the
 * pool has no free block: nothing changed. Claims of one plane come in position order; claiming again what is claimed
 * (a later loop under shared or cyclic) returns the same slot. Under shared and cyclic, the map of every depth of the
 * plane is filled at once. Boundary: depth must be 0. */
gy_status gy_kv_claim(gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos, int32_t *slot_out);
/* Token pos has left the core after `depth`: fills the map for deeper depths. */
void gy_kv_exit(gy_kv *kv, int32_t seq, int32_t pos, int32_t depth);
/* Would this claim take a block that the sequence does not hold yet? O(1). */
int gy_kv_claim_takes(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos);

/* Rewinds to n_tok tokens, as if later ones had never been claimed: their slots are dropped, blocks that become empty
 * go back, their map entries are unset. The blocks that stay partly filled must not be shared (GY_CHECK). O(what is
 * dropped * n_loop), plus a walk back to the newest remaining token of each plane. */
void gy_kv_truncate(gy_kv *kv, int32_t seq, int32_t n_tok);

/* Gives dst, open and empty, the first n_tok tokens of src: whole block rows, n_tok a multiple of 16, all of whose
 * tokens own slots on the same planes 0..n_own-1 (full-depth prompt tokens: slot j of every such plane is token j) and
 * have left the core. Blocks are shared, references + 1; dst's map is filled, deeper depths included. */
void gy_kv_share(gy_kv *kv, int32_t src, int32_t dst, int32_t n_tok);

/* Parking. copy is called once for each block the sequence holds, in any order: park: pool block -> park block,
 * restore: park block -> pool block. Shared blocks are copied too; after restore they are private. GY_AGAIN (no room in
 * the other pool) leaves everything as it was. A parked sequence can only be restored, closed, or asked for its blocks.
 */
typedef void (*gy_kv_copy_fn)(void *arg, gy_kv_group g, int32_t block, int32_t park_block);
gy_status gy_kv_park(gy_kv *kv, int32_t seq, gy_kv_copy_fn copy, void *arg);
gy_status gy_kv_restore(gy_kv *kv, int32_t seq, gy_kv_copy_fn copy, void *arg);
int gy_kv_is_parked(const gy_kv *kv, int32_t seq);
int32_t gy_kv_n_park_free(const gy_kv *kv, gy_kv_group g); /* O(1) */

/* Blocks the sequence holds (of the pool, or parked), shared ones included. O(1). */
int32_t gy_kv_seq_blocks(const gy_kv *kv, gy_kv_group g, int32_t seq);

/* The map, host memory: entry of (seq, depth, pos) is map[gy_kv_map_off(..) + pos]; -1 = not set. Boundary: depth 0. */
const int32_t *gy_kv_map(const gy_kv *kv, gy_kv_group g);
int64_t gy_kv_map_off(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth);
int64_t gy_kv_map_len(const gy_kv *kv, gy_kv_group g); /* entries */
void *gy_kv_arena(const gy_kv *kv, gy_kv_group g);

int32_t gy_kv_n_free(const gy_kv *kv, gy_kv_group g);   /* held by nobody. O(1) */
int32_t gy_kv_n_cached(const gy_kv *kv, gy_kv_group g); /* held by the prefix cache alone: can be reclaimed. O(1) */
/* What claims can take: free + cached alone. O(1) */
static inline int32_t gy_kv_n_avail(const gy_kv *kv, gy_kv_group g) {
    return gy_kv_n_free(kv, g) + gy_kv_n_cached(kv, g);
}
/* Blocks in use on a plane, each counted once however many share it: sequences', the cache's, outside holders'. O(1).
 */
int32_t gy_kv_plane_blocks(const gy_kv *kv, gy_kv_group g, int32_t plane);
/* A reference held by neither a sequence nor the free list (a cache, a transfer): the block, which must be in use,
 * outlives its sequence until unref. The holder gives back exactly what it took. */
void gy_kv_block_ref(gy_kv *kv, gy_kv_group g, int32_t block);
void gy_kv_block_unref(gy_kv *kv, gy_kv_group g, int32_t block);

/* Blocks of one plane's log, *n_out of them, in order of its tokens; valid until the sequence changes. For transfers:
 * full-depth tokens 0..n-1 lie in it densely. Not of a parked sequence. */
const int32_t *gy_kv_seq_log(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t plane, int32_t *n_out);

/* Tokens that hold a slot of their own on this plane. */
int32_t gy_kv_plane_len(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t plane);

/* Walks everything: reference counts against owners, free list, planes dense and in order, every map entry < -1 or
 * inside an owned block, layout rules hold. 1 = valid; else 0 and what is wrong in buf. Tests and debug builds. */
int gy_kv_is_valid(const gy_kv *kv, char *buf, size_t cap);

#endif
