/* The file of pack_cache.h, between its reader (pack_cache.c) and its writer (pack_write.c):
 *
 *   pack_head | sections [n_section] | a checksum for each piece, section by section | zeros to a multiple of 4096
 *   each section's bytes, from a multiple of 4096 on
 *
 * A piece is 1 MiB of one section, or its rest. Numbers are little-endian.
 */
#ifndef GY_MODEL_PACK_INT_H
#define GY_MODEL_PACK_INT_H

#include "base/file.h"
#include "base/vec.h"
#include "model/pack_cache.h"

enum {
    PACK_VERSION = 1, /* of this file's format, and of the layouts of tensor/quant.h */
    PACK_ALIGN = 4096,
    PACK_PIECE = 1 << 20,
    PACK_BATCH = 64, /* pieces between two looks at progress */
    PACK_NAME = 32
};
#define PACK_MAGIC "gyrepack"

typedef struct pack_identity {
    uint64_t sample; /* names, dtypes, shapes, samples of the bytes */
    uint64_t stamp;  /* sizes and times of the files */
    uint64_t whole;  /* all bytes of all tensors; 0 in a wanted one until it is asked for */
} pack_identity;

typedef struct pack_head {
    char magic[8];
    uint32_t version, n_section;
    uint64_t head_bytes, file_bytes; /* up to the first section; of all */
    pack_identity id;
    char form[PACK_NAME], layout[PACK_NAME];
    uint64_t n_piece;
    uint64_t sum; /* of head_bytes bytes in which this is 0 */
} pack_head;

typedef struct pack_section {
    uint32_t kind, type;
    int32_t index, n, k, zero;
    uint64_t at, bytes; /* in the file */
} pack_section;

struct gy_pack_cache {
    gy_pack_key key;
    char form[PACK_NAME], layout[PACK_NAME];
    pack_identity id; /* wanted */
    char *path[2];    /* NULL: none */
    int used;         /* which place map is from */
    gy_map map;
    const pack_section *section; /* in map; NULL: no file is used */
    uint32_t n_section;
    GY_VEC(gy_pack_part) part; /* what the file ought to hold */
    int has_new, lacks_memory;
};

static inline size_t pack_n_piece(size_t bytes) {
    return (bytes + PACK_PIECE - 1) / PACK_PIECE;
}

/* Checksums of pieces, on all threads of the backend. at[i]: a piece's first byte; PACK_PIECE bytes each, or len[i]. */
typedef struct pack_pieces {
    const char **at;
    uint32_t *len;
    uint64_t *sum;
    size_t n;
} pack_pieces;
int pack_pieces_make(pack_pieces *p, size_t n); /* 0, or -1 on no memory */
void pack_pieces_free(pack_pieces *p);
void pack_pieces_put(pack_pieces *p, const void *data, size_t bytes); /* in order; n counts those that were put */
void pack_pieces_sum(pack_pieces *p, gy_backend *be, gy_pack_progress progress, void *arg);

uint64_t pack_whole(const gy_pack_key *key); /* 0 on no memory */

/* Writes c->part to path. GY_AGAIN: another process is about to. */
gy_status pack_write(const gy_pack_cache *c, const char *path, gy_pack_progress progress, void *arg, gy_err *err);

#endif
