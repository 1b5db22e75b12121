/* Inside of the CUDA backend: its object, how errors are kept, and the few device helpers that several files use.
 *
 * One stream, in order: an operation is launched when it is called and nothing here waits but download, sync and the
 * ring of staging memory when it is full. The first error is kept and reported by sync.
 *
 * Floating point: everything is compiled with -fmad=false, so a fused multiply-add stands where one is written
 * (__fmaf_rn) and nowhere else. That is what makes two kernels that share a device function give the same bits.
 */
#ifndef GY_OPS_CUDA_CUDA_INT_CUH
#define GY_OPS_CUDA_CUDA_INT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define _Noreturn __attribute__((noreturn)) /* C's spelling, in headers that are C */
extern "C" {
#include "ops/cuda_abi.h"
}
#undef _Noreturn

typedef __nv_bfloat16 bf16;

struct cuda_lt;     /* blaslt.cu */
struct cuda_attn;   /* attn.cu */
struct cuda_record; /* record.cu */
struct cuda_stage;  /* stage.cu */

/* Pinned memory that uploads go through, in segments: a segment is written again when the copies out of it are done. */
enum { RING_SEGMENTS = 4, RING_SEGMENT_BYTES = 8 << 20 };
typedef struct cuda_ring {
    char *base;
    cudaEvent_t done[RING_SEGMENTS];
    int segment;
    size_t used; /* of the segment */
} cuda_ring;

typedef struct cuda_be {
    gy_cuda_head head; /* first: the backend is this */
    int device, n_sm;
    int overlaps;     /* compute capability 9 or later: launch_early means something */
    uint32_t without; /* gy_cuda_opts */
    gy_ops_limits limits;
    cudaStream_t stream;
    cudaError_t first; /* error since the last sync */
    char where[48];
    cuda_ring ring;
    uint64_t *seed; /* [max_row] of latent_init, on the device */
    int32_t *pos;
    uint8_t *zero;
    cuda_lt *lt;            /* act BF16 only */
    cuda_attn *attn;        /* plan and partial sums */
    cuda_record *recording; /* calls are kept for it; NULL: carried out */
    cuda_stage *stage;      /* NULL: stages are not one launch */
    void *late;             /* pinned: what is fetched */
    size_t late_bytes;
    cudaEvent_t mark;
} cuda_be;

static inline cuda_be *of_be(gy_backend *be) {
    return (cuda_be *)be;
}

/* Makes the device this thread's. Engine and loader may be different threads, so each copy does it: all of a batch's
 * operations come after one. */
void cuda_enter(cuda_be *c);
/* Keeps the first error. Returns whether rc is success. */
int cuda_ok(cuda_be *c, cudaError_t rc, const char *where);
static inline void cuda_launched(cuda_be *c, const char *where) {
    cuda_ok(c, cudaGetLastError(), where);
}
/* A status with its sentence, for what is found while opening. */
gy_status cuda_err(gy_err *err, gy_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The sentence of a device that cannot be opened. */
gy_status cuda_no_device(int32_t device, cudaError_t rc, gy_err *err);
/* Queues a copy to the device; src may change as soon as this returns. */
void cuda_put(cuda_be *c, void *dst, const void *src, size_t bytes);

/* ops of the other files */
void cuda_embed(gy_backend *be, const gy_embed_args *a);
void cuda_norm(gy_backend *be, const gy_norm_args *a);
void cuda_linear(gy_backend *be, const gy_linear_args *a);
void cuda_rope_table(gy_backend *be, const gy_rope_table_args *a);
void cuda_rope_kv(gy_backend *be, const gy_rope_kv_args *a);
void cuda_residual(gy_backend *be, const gy_residual_args *a);
void cuda_residual_norm(gy_backend *be, const gy_residual_norm_args *a);
void cuda_silu_mul(gy_backend *be, const gy_silu_mul_args *a);
void cuda_concat(gy_backend *be, const gy_concat_args *a);
void cuda_gather(gy_backend *be, const gy_move_args *a);
void cuda_scatter(gy_backend *be, const gy_move_args *a);
void cuda_gate(gy_backend *be, const gy_gate_args *a);
void cuda_latent_diff(gy_backend *be, const gy_latent_diff_args *a);
void cuda_latent_init(gy_backend *be, const gy_latent_init_args *a);
int cuda_sample(gy_backend *be, const gy_sample_args *a);
void cuda_patch(gy_backend *be, const gy_patch_args *a);

/* attn.cu */
gy_status cuda_attn_open(cuda_be *c, gy_err *err);
void cuda_attn_close(cuda_be *c);
void cuda_begin_rows(gy_backend *be, const gy_rows *host);
void cuda_attn_run(gy_backend *be, const gy_attn_args *a);
/* attn_plain.cu: any dtype and head_dim */
void cuda_attn_plain(cuda_be *c, const gy_attn_args *a);

/* A matrix of weights as its rows lie: any dtype, E4M3 with a scale for each row. */
typedef struct cuda_matrix {
    const void *w;      /* [n, k] */
    const float *scale; /* [n]; NULL where there is none */
    gy_dtype type;
    int32_t n, k;
} cuda_matrix;

/* blaslt.cu. run: 1 = queued; 0 = no pinned algorithm for this product, so the plain kernel has it. */
gy_status cuda_lt_open(cuda_be *c, gy_err *err);
void cuda_lt_close(cuda_be *c);
void cuda_lt_prepare(cuda_be *c, const cuda_matrix *m, int32_t ldy, int y_f32);
int cuda_lt_run(cuda_be *c, const cuda_matrix *m, int32_t ldy, int y_f32, const void *x, int32_t n_row, void *y);
/* m: BF16, n / 2 gates and as many ups. 0: not by our kernel, nothing was done. */
int cuda_lt_silu(cuda_be *c, const cuda_matrix *m, const void *x, int32_t n_row, void *y);
size_t cuda_prepare(gy_backend *be, gy_weight *w, int y_f32); /* linear.cu */

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Small kernels cost their launch. One that is launched early may be started while the kernel before it still runs; it
 * begins with wait_for_previous(), before it touches memory, and so sees all that came before. */
template <typename... P, typename... A>
static inline void launch_early(cuda_be *c, void (*kernel)(P...), dim3 grid, int threads, size_t smem, A... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = smem;
    config.stream = c->stream;
    config.attrs = &early;
    config.numAttrs = c->overlaps ? 1 : 0;
    cuda_ok(c, cudaLaunchKernelEx(&config, kernel, args...), "launch");
}

/* ---- on the device ---------------------------------------------------------------------------------------------- */

/* First statement of a kernel for launch_early: the next one may be started from now on; this one goes on when the one
 * before it is complete and its results are visible. */
static __device__ inline void let_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ inline void wait_only(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ inline void wait_for_previous(void) {
    let_next();
    wait_only();
}

static inline size_t dtype_bytes(gy_dtype t) {
    return t == GY_F32 ? 4 : t == GY_F8_E4M3 ? 1 : 2;
}

static inline unsigned blocks_for(int64_t n, int64_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* dtype.h's rounding, NaN payloads included. */
static __device__ inline uint16_t bf16_bits(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static __device__ inline float get(const float *p, int64_t i) {
    return p[i];
}
static __device__ inline float get(const bf16 *p, int64_t i) {
    return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}
static __device__ inline float get(const __half *p, int64_t i) {
    return __half2float(p[i]);
}
static __device__ inline void put(float *p, int64_t i, float v) {
    p[i] = v;
}
static __device__ inline void put(bf16 *p, int64_t i, float v) {
    ((uint16_t *)p)[i] = bf16_bits(v);
}

template <typename T> static __device__ inline float round_to(float v);
template <> __device__ inline float round_to<float>(float v) {
    return v;
}
template <> __device__ inline float round_to<bf16>(float v) {
    return __uint_as_float((uint32_t)bf16_bits(v) << 16);
}

/* gy_kv_offset of ops.h: elements before slot's K (kv 0) or V (kv 1) of layer il. */
typedef struct kv_shape {
    int32_t n_layer, il, width; /* width: gy_kv_row */
} kv_shape;
static __device__ inline int64_t kv_offset(kv_shape s, int32_t slot, int kv) {
    int64_t plane = ((int64_t)(slot / GY_BLOCK_SLOTS) * s.n_layer + s.il) * 2 + kv;
    return (plane * GY_BLOCK_SLOTS + slot % GY_BLOCK_SLOTS) * s.width;
}

/* Sum over a block of THREADS, the same tree for any number of rows. All threads get it. */
template <int THREADS, typename S> static __device__ inline S block_sum(S v) {
    __shared__ S part[THREADS / 32];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    S sum = part[0];
    for (int i = 1; i < THREADS / 32; i++) sum += part[i];
    return sum;
}

#endif
