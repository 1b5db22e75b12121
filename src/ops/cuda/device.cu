/* What a transfer needs of a GPU (base/device.h). Takes no part in computing: its copies go through the default stream
 * of whoever calls, and only the bell is put behind the backend's own work.
 */
#include "ops/cuda/cuda_int.cuh"

static const gy_cuda_device *of_arg(void *arg) {
    return (const gy_cuda_device *)arg;
}

static gy_status say(cudaError_t rc, const gy_cuda_device *d, const char *what, gy_err *err) {
    if (rc == cudaSuccess) return GY_OK;
    cudaGetLastError();
    return cuda_err(err, rc == cudaErrorMemoryAllocation ? GY_E_NOMEM : GY_E_DEVICE, "device cuda:%d: %s: %s (%s)",
                    d->dev.ordinal, what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* The free of nothing makes the primary context, if it is not there yet, and makes it this thread's. */
static gy_status dev_bind(void *arg, gy_err *err) {
    const gy_cuda_device *d = of_arg(arg);
    cudaError_t rc = cudaSetDevice(d->dev.ordinal);
    if (rc == cudaSuccess) rc = cudaFree(NULL);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorNoDevice || rc == cudaErrorInvalidDevice) {
        cudaGetLastError();
        return cuda_no_device(d->dev.ordinal, rc, err);
    }
    return say(rc, d, "binding a thread", err);
}

static void *dev_alloc(void *arg, size_t bytes) {
    void *p = NULL;
    (void)arg;
    if (cudaMalloc(&p, bytes) == cudaSuccess) {
        if (cudaMemset(p, 0, bytes) == cudaSuccess && cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess) return p;
        cudaFree(p);
    }
    cudaGetLastError();
    return NULL;
}

static void dev_free(void *arg, void *mem) {
    (void)arg;
    cudaFree(mem);
}

/* A copy between two GPUs, or within one, returns before it is done. */
static gy_status dev_copy(void *arg, void *dst, const void *src, size_t bytes, gy_err *err) {
    cudaError_t rc = cudaMemcpy(dst, src, bytes, cudaMemcpyDefault);
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(cudaStreamLegacy);
    return say(rc, of_arg(arg), "copying", err);
}

static gy_status dev_when_done(void *arg, void (*fn)(void *user), void *user, gy_err *err) {
    const gy_cuda_device *d = of_arg(arg);
    cuda_enter(of_be(d->be));
    return say(cudaLaunchHostFunc(of_be(d->be)->stream, fn, user), d, "queueing a call", err);
}

extern "C" __attribute__((visibility("default"))) void gy_cuda_device_entry(int32_t ordinal, gy_backend *be,
                                                                            gy_cuda_device *d) {
    d->be = be;
    d->dev.kind = GY_DEVICE_CUDA;
    d->dev.ordinal = ordinal;
    d->dev.arg = d;
    d->dev.bind = dev_bind;
    d->dev.alloc = dev_alloc;
    d->dev.free = dev_free;
    d->dev.copy = dev_copy;
    d->dev.when_done = be ? dev_when_done : NULL;
}
