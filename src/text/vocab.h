/* The vocabulary: piece bytes <-> id. A pool of bytes indexed by id, and an open-addressing hash over it.
 * Ids may have holes. Not more than one id for a piece and one piece for an id. Filled while a tokenizer opens,
 * read-only afterwards (any thread). Model lifetime.
 *
 * Probe lengths are bounded: an insertion that would probe further re-hashes with another seed, so that a vocabulary
 * made to collide costs no more than a plain one.
 */
#ifndef GY_TEXT_VOCAB_H
#define GY_TEXT_VOCAB_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

#define GY_VOCAB_MAX_ID (1 << 24) /* ids are below this: a bound for files that lie */

typedef struct gy_vocab {
    gy_str pool;          /* the pieces, each followed by a NUL */
    uint32_t *off;        /* [cap_id] 1 + offset of the piece in the pool, 0 = no piece */
    uint32_t *len;        /* [cap_id] */
    int32_t n_id, cap_id; /* largest id + 1 */
    uint64_t *slot;       /* [mask + 1] hash tag << 32 | id + 1; 0 = empty */
    size_t mask, n_piece; /* mask + 1 slots, at most half of them used */
    uint64_t seed;
} gy_vocab;

void gy_vocab_fini(gy_vocab *v); /* accepts a zeroed one */
/* Copies the piece. 0 = added, 1 = refused: the piece or the id is there already or the id is out of range,
 * -1 = no memory. A zeroed gy_vocab is an empty one. */
int gy_vocab_put(gy_vocab *v, const char *piece, size_t len, int32_t id);
int32_t gy_vocab_get(const gy_vocab *v, const char *piece, size_t len);     /* -1 if absent */
const char *gy_vocab_piece(const gy_vocab *v, int32_t id, size_t *len_out); /* NULL if absent; NUL-terminated */

uint64_t gy_bytes_hash(const char *s, size_t len, uint64_t seed);

#endif
