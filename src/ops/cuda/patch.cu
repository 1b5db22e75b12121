/* patch: y[idx[i]] = v[i]. What a batch changes of the slot map, one entry here and there, in one launch. */
#include "ops/cuda/cuda_int.cuh"

enum { THREADS = 256 };

static __global__ void patch_kernel(const int64_t *idx, const int32_t *v, int32_t n, int32_t *y) {
    wait_for_previous();
    int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (i < n) y[idx[i]] = v[i];
}

void cuda_patch(gy_backend *be, const gy_patch_args *a) {
    if (a->n)
        launch_early(of_be(be), patch_kernel, dim3(blocks_for(a->n, THREADS)), THREADS, 0, a->idx, a->v, a->n, a->y);
}
