/* Between gyre and libgyre_cuda.so, which is a file of its own so that gyre runs where there is no CUDA. The library
 * exports GY_CUDA_ENTRY and nothing else; cuda_load.c finds it, checks that both were built from the same contracts,
 * and puts host threads behind the two table entries that a GPU has no use for (n_member, parallel).
 */
#ifndef GY_OPS_CUDA_ABI_H
#define GY_OPS_CUDA_ABI_H

#include "ops/ops.h"

enum { GY_CUDA_ABI = 7 }; /* raised whenever this struct or ops.h changes without changing a size below */

typedef struct gy_cuda_abi {
    /* Filled by the library, compared by the loader with its own values. */
    uint32_t version, ops_bytes, weight_bytes, rows_bytes;
    const char *built_for; /* "sm_90a", or several with commas */
    /* The backend; its ops say 1 member and run `parallel` on the caller. */
    gy_status (*create)(const gy_cuda_opts *o, gy_err *err, gy_backend **out);
} gy_cuda_abi;

#define GY_CUDA_ENTRY "gy_cuda_entry"
typedef void (*gy_cuda_entry_fn)(gy_cuda_abi *out);

/* A second entry, which a transfer asks for: fills d->dev, whose arg is d (the caller's memory). be: whose work
 * when_done waits for; NULL: of no backend, and when_done is NULL. */
typedef struct gy_cuda_device {
    gy_device dev;
    gy_backend *be;
} gy_cuda_device;
#define GY_CUDA_DEVICE_ENTRY "gy_cuda_device_entry"
typedef void (*gy_cuda_device_entry_fn)(int32_t ordinal, gy_backend *be, gy_cuda_device *d);

/* What a backend of the library begins with. */
typedef struct gy_cuda_head {
    gy_backend be;
    void *host; /* the loader's */
} gy_cuda_head;

#endif
