/* Which block rows a worker's prefix cache is believed to hold (kv/prefix.h: a row is 16 tokens at a position that is a
 * multiple of 16). A worker does not say; the coordinator notes what it was seen to compute or to take in, and forgets
 * the oldest ones as the worker must. So this is an estimate: it decides where a prompt goes, never what comes out.
 *
 * A row's name is a hash of all tokens up to its end and of whose they are (salt, noise), 64 bits: two that are alike
 * by chance cost a bad guess. A row is never older than those behind it, as in the cache itself, so that the rows of a
 * prompt that are here are its first ones.
 *
 * Fixed memory: nothing allocates after create. One thread.
 */
#ifndef GY_PD_KNOWN_H
#define GY_PD_KNOWN_H

#include "engine/engine.h"

typedef struct gy_known gy_known;

enum { GY_KNOWN_MAX = 1 << 16 }; /* a million tokens; 2 MiB */

gy_status gy_known_create(int32_t n_max, gy_err *err, gy_known **out); /* 1..GY_KNOWN_MAX */
void gy_known_destroy(gy_known *x);                                    /* accepts NULL */

/* The hash of nothing yet, for these requests; then token by token. Never 0. */
uint64_t gy_known_begin(const gy_request *r);
uint64_t gy_known_next(uint64_t hash, int32_t tok);

/* hash[n]: ends of a prompt's rows, from its first one on. */
int32_t gy_known_match(const gy_known *x, const uint64_t *hash, int32_t n); /* how many of them are here */
void gy_known_put(gy_known *x, const uint64_t *hash, int32_t n);            /* all are here now, and the youngest */
void gy_known_grow(gy_known *x, uint64_t parent,
                   uint64_t hash); /* one behind parent (0: the first row), if that is here */
int32_t gy_known_count(const gy_known *x);
int gy_known_is_valid(const gy_known *x); /* lists, chains, ages; tests */

#endif
