/* The driver's own way between two processes' GPU memories: an exported handle, a mapping of it, copies on streams.
 * What a transport over it can at best do. The driver is loaded at run time and needs no headers. A thread must be
 * bound to its GPU (base/device.h).
 */
#ifndef GY_BENCH_PD_GPU_IPC_H
#define GY_BENCH_PD_GPU_IPC_H

#include <stddef.h>
#include <stdint.h>

enum { IPC_MAX_STREAM = 16 };

typedef struct ipc_handle {
    char bytes[64];
} ipc_handle;

typedef struct ipc_lane {
    void *at; /* the other process's memory, as this GPU sees it */
    void *stream[IPC_MAX_STREAM], *event[IPC_MAX_STREAM];
} ipc_lane;

/* All: NULL, or what failed. */
const char *ipc_load(void);
const char *ipc_unbind(void); /* the calling thread has no GPU any more */
const char *ipc_export(void *mem, ipc_handle *out);
const char *ipc_open(const ipc_handle *h, ipc_lane *out);
const char *ipc_close(ipc_lane *l);
/* A copy from here, cut among n_stream streams. *post_ns: until all were queued, *done_ns: until all are done. */
const char *ipc_copy(const ipc_lane *l, const void *src, size_t bytes, int n_stream, int64_t *post_ns,
                     int64_t *done_ns);

#endif
