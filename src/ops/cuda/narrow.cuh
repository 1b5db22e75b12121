/* Products of few rows by our own kernel (narrow.cu): how one is laid out, and its calls. The choice between it and
 * cuBLASLt is blaslt.cu's.
 */
#ifndef GY_OPS_CUDA_NARROW_CUH
#define GY_OPS_CUDA_NARROW_CUH

#include "ops/cuda/cuda_int.cuh"

#include <cuda.h>

enum { NARROW_ROWS = 64, NARROW_PANEL = 64, NARROW_STAGES = 16 };

/* How a product is cut. It follows from shape, rows and device alone; none of it changes a bit of the result. */
typedef struct narrow_plan {
    int32_t tile;           /* outputs of a block at a time: a multiple of 8 */
    int32_t rounds;         /* tiles of a block, one after another */
    int32_t grid;           /* blocks; tile number = round * grid + block */
    int32_t rows;           /* of x in shared memory: 8, 16, 32 or 64 */
    int32_t panels;         /* of 64 along k, in a stage */
    int32_t stages;         /* of the ring */
    int32_t steps;          /* stages along k */
    int32_t mt, nt;         /* products of 16 rows x 8 outputs a warp: mt x nt */
    int32_t warps, warps_n; /* that multiply; warps_n of them beside one another along the outputs */
} narrow_plan;

/* What is stored: y of an operation, or sums as they are, to be compared with others. */
typedef enum narrow_out {
    NARROW_BF16,
    NARROW_F32_ROUNDED,
    NARROW_F32_SUMS,
    NARROW_SILU /* W is gate, then up, n / 2 rows each: y [n_row, n / 2] = round(round(silu(g)) * u) */
} narrow_out;

typedef struct cuda_narrow {
    void *encode;  /* the driver's cuTensorMapEncodeTiled; NULL: no narrow products here */
    int lets_next; /* the next kernel may begin when the last weights are on the way; else when the product ends */
} cuda_narrow;

/* Sets encode to NULL where the device or the driver cannot. */
void cuda_narrow_open(cuda_be *c, cuda_narrow *out);
/* 0: not for this product (rows above NARROW_ROWS, k or ldy of odd size). */
int cuda_narrow_plan(int n_sm, gy_dtype type, int32_t n, int32_t k, int32_t ldy, int32_t n_row, narrow_plan *out);
/* x [n_row, k], y [n_row, ldy] (NARROW_SILU: ldy = n / 2, BF16); w, x and y at multiples of 16 bytes. Returns whether
 * it was queued. */
int cuda_narrow_run(cuda_be *c, const cuda_narrow *nw, const narrow_plan *p, const cuda_matrix *m, int32_t ldy,
                    narrow_out out, const void *x, int32_t n_row, void *y);

#endif
