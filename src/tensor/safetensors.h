/* A checkpoint in safetensors format (huggingface/safetensors README, "Format"), read in place by mmap:
 *   8 bytes little-endian header length | JSON header | data
 * One file `model.safetensors`, or shards named by `model.safetensors.index.json`. Read-only, model lifetime, any
 * thread after open (gy_st_claim excepted). Everything that can be wrong with the files is refused at open, with file,
 * tensor, found and expected in the message: truncated, empty, LFS pointer, HTML page, header too long or not JSON,
 * unknown dtype, shape product != bytes, range outside the data, misaligned, overlapping, holes, duplicate names within
 * and across shards, index naming a missing file, a path, or a shard that lacks the tensor or has one not in the index.
 */
#ifndef GY_TENSOR_SAFETENSORS_H
#define GY_TENSOR_SAFETENSORS_H

#include "base/status.h"
#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { GY_MAX_DIM = 8, GY_ST_MAX_HEADER = 100 * 1000 * 1000 };

typedef struct gy_st gy_st;

typedef struct gy_tensor_info {
    const char *name; /* owned by the gy_st */
    const char *file; /* path of the shard, owned by the gy_st */
    gy_dtype dtype;
    int n_dim;
    int64_t shape[GY_MAX_DIM];
    const void *data; /* in the mapping, aligned to its element size */
    size_t bytes;
} gy_tensor_info;

/* dir: a folder holding the checkpoint. On failure nothing stays open. */
gy_status gy_st_open(const char *dir, gy_err *err, gy_st **out);
/* One file by its path, no index. */
gy_status gy_st_open_file(const char *path, gy_err *err, gy_st **out);
/* One image in memory (borrowed until close), for tests and the fuzzer. `name` is used in messages. */
gy_status gy_st_open_memory(const void *data, size_t size, const char *name, gy_err *err, gy_st **out);
void gy_st_close(gy_st *st); /* accepts NULL */

size_t gy_st_count(const gy_st *st);
const gy_tensor_info *gy_st_at(const gy_st *st, size_t i);           /* sorted by name; borrowed */
const gy_tensor_info *gy_st_find(const gy_st *st, const char *name); /* NULL if absent */
size_t gy_st_data_bytes(const gy_st *st);                            /* sum of all tensors */

/* The loader's way: find `name`, check that it has exactly this shape and is F32, F16 or BF16, and mark it used.
 * A second claim of one name is GY_E_BUG. A missing tensor lists the closest stored name. */
gy_status gy_st_claim(gy_st *st, const char *name, const int64_t *shape, int n_dim, gy_err *err,
                      const gy_tensor_info **out);
/* After loading: each tensor that was not claimed is an error unless its name ends with one of known[0..n_known). */
gy_status gy_st_check_unclaimed(const gy_st *st, const char *const *known, int n_known, gy_err *err);

/* ---- writing (gyre synth, tests) ------------------------------------------------------------------------------- */

typedef struct gy_st_writer gy_st_writer;

typedef struct gy_st_entry {
    const char *name;
    gy_dtype dtype;
    int n_dim;
    int64_t shape[GY_MAX_DIM];
} gy_st_entry;

/* Writes the header for n entries (data will follow in this order) to path + ".tmp". Entries are borrowed until return.
 */
gy_status gy_st_writer_open(const char *path, const gy_st_entry *entries, size_t n, gy_err *err, gy_st_writer **out);
/* The next bytes of data, in order; any piece size. */
gy_status gy_st_writer_put(gy_st_writer *w, const void *data, size_t bytes, gy_err *err);
/* Checks that all bytes came, renames into place and frees w. */
gy_status gy_st_writer_close(gy_st_writer *w, gy_err *err);
void gy_st_writer_abort(gy_st_writer *w); /* accepts NULL; removes the temporary file */

#endif
