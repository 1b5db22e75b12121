/* A file that keeps what loading makes of a checkpoint: weights in fewer bits, and panels for the host's products. A
 * start that finds it reads it instead of making them again. What is in it has the same bits as what is made, so that a
 * file that does not fit, is cut or damaged costs time and one line of the log, and never a load. Host backends only.
 *
 * A file is used when all of this holds, else it is written anew:
 *   its format version, form of weights and layout of panels are the ones that are wanted;
 *   it was made of this checkpoint: names, dtypes, shapes and samples of the bytes are equal, and the files have the
 *   sizes and times that they had, or else all of their bytes have the sum that they had;
 *   its header and each piece of 1 MiB have their checksums (sum64.h): all of it is read once, by all threads, when it
 *   is opened. Reading on demand would let a damaged piece speak in the middle of an answer.
 *
 * Written to NAME.part under a lock, synced, renamed: readers see a whole file or none; of several processes that start
 * together one writes. A failure (no room, a read-only folder) leaves nothing and costs a line.
 *
 * Places: exactly one file; or beside the model and, where that cannot be written, in a folder of the user's. Reading
 * tries both. No function here ends a load. One thread; owned by the model, whose panels may lie in the mapping.
 */
#ifndef GY_MODEL_PACK_CACHE_H
#define GY_MODEL_PACK_CACHE_H

#include "ops/ops.h"
#include "tensor/safetensors.h"

typedef struct gy_pack_where {
    const char *file; /* this one; NULL: */
    int beside;       /* gyre-FORM-LAYOUT.pack in the model's folder, or NUMBER-FORM-LAYOUT.pack in home */
    const char *home; /* made when it is needed, its last two levels at most; NULL: none */
} gy_pack_where;      /* all zero: no cache */

static inline int gy_pack_where_any(const gy_pack_where *w) {
    return w->file || w->beside;
}

/* What a file must have been made with. Borrowed while the cache lives, but for the two names. */
typedef struct gy_pack_key {
    gy_backend *be;
    const gy_st *st;
    const char *dir;  /* of the checkpoint */
    const char *form; /* of weights: letters, digits and '-', at most 31 */
} gy_pack_key;

typedef enum gy_pack_kind { GY_PACK_WEIGHT, GY_PACK_SCALES, GY_PACK_PANELS, GY_PACK_KINDS } gy_pack_kind;

/* One piece of memory: the index-th of its kind, in the order in which a load asks for them. */
typedef struct gy_pack_part {
    gy_pack_kind kind;
    int32_t index, n, k;
    gy_dtype type;
    const void *data;
    size_t bytes;
} gy_pack_part;

typedef struct gy_pack_cache gy_pack_cache;
typedef void (*gy_pack_progress)(void *arg, size_t bytes); /* so many more */

/* Looks for a file at the places; one that does not fit is named in the log. NULL on no memory. */
gy_pack_cache *gy_pack_cache_open(const gy_pack_where *w, const gy_pack_key *key);
void gy_pack_cache_close(gy_pack_cache *c);         /* accepts NULL, as all of the following */
size_t gy_pack_cache_bytes(const gy_pack_cache *c); /* of the sections of the file that was found; 0: none was */
/* Reads them, bytes as above; a file that is damaged is no longer used. */
void gy_pack_cache_check(gy_pack_cache *c, gy_pack_progress progress, void *arg);

/* Where p (its data aside) lies in the file, until close; at a multiple of 4096. NULL: not there. */
const void *gy_pack_cache_find(const gy_pack_cache *c, const gy_pack_part *p);
int gy_pack_cache_has(const gy_pack_cache *c, gy_pack_kind kind);

/* p belongs into the file; its data stays where it is until finish. is_new: it was not found there. */
void gy_pack_cache_add(gy_pack_cache *c, const gy_pack_part *p, int is_new);
size_t gy_pack_cache_new_bytes(const gy_pack_cache *c); /* that finish will write; 0: nothing new was added */
/* When all is in place. */
void gy_pack_cache_finish(gy_pack_cache *c, gy_pack_progress progress, void *arg);

#endif
