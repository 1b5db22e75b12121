/* Shared inside the safetensors reader: safetensors.c (files, look-up, claims) and st_header.c (one image). */
#ifndef GY_TENSOR_ST_INT_H
#define GY_TENSOR_ST_INT_H

#include "base/arena.h"
#include "base/file.h"
#include "base/vec.h"
#include "tensor/safetensors.h"

enum { GY_ST_MAX_NAME = 512, GY_ST_JSON_DEPTH = 8 };

typedef struct gy_st_shard {
    char *path; /* in the arena */
    gy_map map;
    int borrowed; /* the image belongs to the caller: no unmapping */
} gy_st_shard;

struct gy_st {
    gy_arena *arena; /* paths and tensor names */
    GY_VEC(gy_st_shard) shards;
    GY_VEC(gy_tensor_info) tensors; /* by name once open */
    unsigned char *claimed;         /* beside tensors */
    size_t data_bytes;
    char *dir; /* what messages about the whole checkpoint name; in the arena */
};

/* ---- st_header.c ---- */

/* Appends the tensors of one image to st->tensors, in the order of their bytes, after every check that one image
 * allows. On failure st->tensors may hold some of them; the caller gives the whole st up. */
gy_status gy_st_parse_image(gy_st *st, const gy_st_shard *shard, gy_err *err);
/* Refuses names that are empty, too long, or hold control characters: later messages may then print them. what says
 * whose name it is ("tensor", "shard"). */
gy_status gy_st_check_name(const char *path, const char *what, const char *name, size_t len, gy_err *err);
/* Up to 47 bytes of s with everything that is not printable ASCII as '?': for messages about text that was refused. */
const char *gy_st_printable(const char *s, size_t len, char buf[48]);
/* "[2, 3]" into buf; returns buf. */
const char *gy_st_shape_text(const int64_t *shape, int n_dim, char buf[192]);
/* Product of the shape times the element size; nonzero on overflow or a negative value. Zeros do not hide an overflow
 * of the other factors, so the answer does not depend on their order. */
int gy_st_tensor_bytes(gy_dtype dtype, const int64_t *shape, int n_dim, size_t *bytes_out);

#endif
