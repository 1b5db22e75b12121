/* The prefix cache: block rows of prompts that later requests begin with (ARCHITECTURE.md, KV is a map).
 *
 * A row is 16 consecutive tokens, at a position that is a multiple of 16, with all blocks that hold their KV: one block
 * on each plane that they ran, and the boundary block. Only tokens that ran exactly `depth` loops, as all tokens before
 * them did, may be published: then slot j of each plane is token j, and the bits are those that any request with the
 * same beginning would compute.
 *
 *   namespace (salt, latent start) -- row 0 -- row 1 -- row 2        a tree: a child is found by (parent, 16 tokens)
 *                                          \\- row 1'
 *
 * A hash only finds candidates; a hit is what compares equal: the namespace byte for byte, then token by token. The
 * model's fingerprint needs no place in the key: a cache belongs to one engine and one model.
 * Eviction is leaf first, least recently used first: touching a path moves it to the young end leaf before root, so
 * that a child is always older than its parent and the oldest row is always a leaf. A row that a sequence uses, or
 * below which there is one, is younger than all others; it becomes the youngest of those when its last user is gone.
 * Evicting happens only inside a claim or restore that needs a block and that it can satisfy.
 *
 * Owned by its gy_kv (created with it attached, destroyed with it). Engine lifetime, the engine's thread, no allocation
 * after create.
 */
#ifndef GY_KV_PREFIX_H
#define GY_KV_PREFIX_H

#include "kv/kv.h"

enum { GY_PREFIX_MAX_SALT = 1024 }; /* as long as the salts that vLLM takes */

/* Whose rows a request may see. Two requests share rows only if all of this is equal. */
typedef struct gy_prefix_space {
    const char *salt; /* [n_salt] bytes, copied by publish; the request's cache_salt */
    int32_t n_salt;   /* 0..GY_PREFIX_MAX_SALT */
    int latent_noise; /* Huginn: 0 = zero initial state (latent_seed does not count), 1 = noise of latent_seed */
    uint64_t latent_seed;
} gy_prefix_space;

/* Where publishing a sequence goes on: row `n_row` under `node`. Zero it for a new sequence, and for one that was
 * truncated below n_row * 16 tokens if other tokens may follow. */
typedef struct gy_prefix_cursor {
    int32_t node, n_row;
    uint64_t stamp; /* of the node when it was seen: an evicted and reused one is noticed */
} gy_prefix_cursor;

typedef struct gy_prefix_stats {
    int64_t n_query, n_query_tok, n_hit, n_hit_tok; /* attach calls and their prompt tokens; those with a hit, tokens */
    int64_t n_publish, n_evict;                     /* rows */
    int32_t n_row;                                  /* now in the cache */
} gy_prefix_stats;

/* Attaches a cache to kv, once. depth: loops that a publishable token has run (the trained depth), 1..n_loop. */
gy_status gy_prefix_create(gy_kv *kv, int32_t depth, gy_err *err);

/* The longest cached run of whole rows that tok[0..n_tok) begins with. Changes nothing. Returns tokens (a multiple of
 * 16, <= n_tok); alone_out: blocks of the run that only the cache holds (they stop being reclaimable when attached). */
int32_t gy_prefix_match(const gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_tok,
                        int32_t alone_out[GY_KV_GROUPS]);
/* The same run becomes the beginning of seq (open, empty): references + 1, map filled, rows touched. Returns tokens and
 * sets the cursor behind them. */
int32_t gy_prefix_attach(gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_tok, int32_t seq,
                         gy_prefix_cursor *cursor_out);
/* Publishes the whole rows of seq up to n_done tokens: tok[0..n_done) have been written on every plane and layer, all
 * at full depth. Rows that exist already are kept as they are (the sequence keeps its own). Stops for good (cursor's
 * node -1) when the cursor's row was evicted meanwhile; a zeroed cursor starts again. Costs O(new rows). */
void gy_prefix_publish(gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_done, int32_t seq,
                       gy_prefix_cursor *cursor);
void gy_prefix_clear(gy_kv *kv); /* drops all rows */
int gy_prefix_enabled(const gy_kv *kv);
void gy_prefix_get_stats(const gy_kv *kv, gy_prefix_stats *out); /* zeros when there is no cache */

#endif
