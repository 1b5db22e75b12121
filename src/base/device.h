/* device: memory that the CPU of this process must not touch, as far as a transfer needs to know it: how it is had, how
 * a thread is made fit to name it, a copy, a call when it is ready. The backend that owns a GPU fills this in
 * (gy_backend_get_device); tests make one up. Knows no streams and computes nothing.
 */
#ifndef GY_BASE_DEVICE_H
#define GY_BASE_DEVICE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_device_kind {
    GY_DEVICE_CUDA,
    GY_DEVICE_FAKE /* of tests: pages of the host that only `copy` may touch; UCX is told that they are host memory */
} gy_device_kind;

typedef struct gy_device {
    gy_device_kind kind;
    int32_t ordinal; /* as CUDA counts them */
    void *arg;
    /* Any thread; from then on it may call what is below and UCX. CUDA: makes the device's primary context current. */
    gy_status (*bind)(void *arg, gy_err *err);
    /* Any bound thread. Zeroed, one cudaMalloc of its own (what cuda_ipc can export), filled when it returns. */
    void *(*alloc)(void *arg, size_t bytes);
    void (*free)(void *arg, void *mem); /* accepts NULL; after every process that imported it has let go of it */
    /* Any bound thread, between any two memories (host, this device, a neighbour); done when it returns. For tests,
     * probes and loopback: it waits. */
    gy_status (*copy)(void *arg, void *dst, const void *src, size_t bytes, gy_err *err);
    /* The backend's own thread. fn runs once, on some other thread, when all that was queued on the backend before is
     * done and visible to copies of other engines of the GPU; it may set atomics and ring a bell (gy_xfer_wake), and
     * must not call CUDA or UCX. After an error of the GPU it never runs: sync tells of that. */
    gy_status (*when_done)(void *arg, void (*fn)(void *user), void *user, gy_err *err);
} gy_device;

#endif
