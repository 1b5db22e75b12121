/* A GPU made up on the CPU, enough of it to run src/ops/cuda/stage_kernel.cuh: blocks that are all there at once, warps
 * of 32 lanes that meet at each instruction which they execute together, named barriers, mbarriers, and copies and
 * words that arrive later, in any order. Every lane is a fiber; who runs next and what arrives next is drawn, so a seed
 * is a schedule. A schedule in which nothing can happen any more is a deadlock and is told.
 *
 * It stands for cuda.h, cuda_runtime.h, cuda_bf16.h and cuda_fp16.h (shim/). Arithmetic is IEEE's; mma is one chain of
 * fused multiply-adds in the order of k, exp2 and exp are libm's: the same bits as a GPU's are not what it gives, but
 * the same as a plain composition of the same functions (test_stage.cc).
 */
#ifndef GY_TESTS_STAGE_MACHINE_H
#define GY_TESTS_STAGE_MACHINE_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

/* ---- CUDA's words ------------------------------------------------------------------------------------------------ */

#define GY_EMULATED 1
#define __device__ __attribute__((unused))
#define __host__
#define __global__
#define __shared__ static
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

typedef struct dim3 {
    unsigned x, y, z;
} dim3;
typedef struct float2 {
    float x, y;
} float2;
typedef struct __align__(16) float4 {
    float x, y, z, w;
}
float4;
typedef struct __align__(16) uint4 {
    uint32_t x, y, z, w;
}
uint4;
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) {
    return {x, y};
}

typedef struct __nv_bfloat16 {
    uint16_t bits;
} __nv_bfloat16;
typedef struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
} __nv_bfloat162;
typedef struct __half {
    uint16_t bits;
} __half;
typedef int cudaError_t;
typedef struct stream *cudaStream_t;
typedef struct event *cudaEvent_t;
enum { cudaSuccess, cudaLaunchAttributeProgrammaticStreamSerialization };
typedef struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
} cudaLaunchAttribute;
typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;
cudaError_t cudaGetLastError(void);
cudaError_t cudaLaunchKernelEx(...);

/* A weight as the copy engine sees it. */
typedef struct CUtensorMap {
    const uint16_t *w;
    int32_t n, k;
    int32_t is_units; /* gates, then ups */
} CUtensorMap;

/* ---- the machine ------------------------------------------------------------------------------------------------- */

typedef struct emu_ids {
    dim3 thread, block, grid;
} emu_ids;
const emu_ids &emu_self(void);
/* Objects whose x is the running lane's: members elsewhere have these names too. */
template <dim3 emu_ids::*OF> struct emu_id {
    struct {
        operator unsigned() const { return (emu_self().*OF).x; }
    } x;
};
static const emu_id<&emu_ids::thread> threadIdx;
static const emu_id<&emu_ids::block> blockIdx;
static const emu_id<&emu_ids::grid> gridDim;

/* Runs body(arg) on all threads of all blocks. A line that says why in said, or 0. */
int emu_run(int blocks, int threads, size_t smem, void (*body)(const void *arg), const void *arg, uint64_t seed,
            char said[256]);

/* ---- instructions of a warp -------------------------------------------------------------------------------------- */

uint64_t emu_shuffle(uint64_t v, int from);
void emu_sync_warp(void);
void emu_meet(int id, int threads);
static inline void __syncwarp(void) {
    emu_sync_warp();
}
static inline void __syncthreads(void) {
    emu_meet(0, 0);
}
template <typename T> static inline T emu_shuffled(T v, int from) {
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emu_shuffle(bits, from);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int from) {
    return emu_shuffled(v, from);
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int with) {
    return emu_shuffled(v, (int)threadIdx.x % 32 ^ with);
}
int emu_all(int v);
static inline int __all_sync(unsigned, int v) {
    return emu_all(v);
}
void ldmatrix4(uint32_t r[4], uint32_t at);
void ldmatrix4_trans(uint32_t r[4], uint32_t at);
void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
uint32_t emu_smem_address(const void *p);
#define __cvta_generic_to_shared(p) emu_smem_address(p)

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __frcp_rn(float a) {
    return 1.0f / a;
}
static inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float exp2_fast(float x) {
    return exp2f(x);
}
static inline float __half2float(__half h) {
    return (float)h.bits; /* nobody calls it */
}
static inline uint16_t emu_bf16(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float lo, float hi) {
    return {{emu_bf16(lo)}, {emu_bf16(hi)}};
}
static inline uint32_t __byte_perm(uint32_t, uint32_t, uint32_t) {
    abort(); /* nobody calls it */
}
static inline uint32_t __vmaxu2(uint32_t, uint32_t) {
    abort();
}
static inline uint32_t __vminu2(uint32_t, uint32_t) {
    abort();
}

/* ---- attn_tile.cuh's copies, stage_hw.cuh ------------------------------------------------------------------------ */

void copy16(uint32_t to, const void *from, int valid);
char *hw_smem(void);
void hw_bar_init(uint32_t bar);
static inline void hw_bars_made(void) {}
void hw_bar_arrive(uint32_t bar);
void hw_bar_expect(uint32_t bar, uint32_t bytes);
int hw_bar_test(uint32_t bar, uint32_t parity);
int hw_bar_try(uint32_t bar, uint32_t parity);
void hw_bar_copies(uint32_t bar);
static inline void hw_map_ready(const CUtensorMap *) {}
void hw_bring_rows(uint32_t to, const CUtensorMap *map, int32_t row, int32_t panel, uint32_t bar);
void hw_bring_unit(uint32_t to, const CUtensorMap *map, int32_t unit, int32_t panel, uint32_t bar);
void hw_bring_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar);
void hw_load_some(uint32_t v[4], uint32_t at, int has);
void hw_put_word(uint64_t *to, uint64_t word);
uint64_t hw_get_word(const uint64_t *from);
void hw_get_words(const uint64_t *from, uint64_t w[2]);
void hw_count(uint32_t *counter);
uint32_t hw_counted(const uint32_t *counter);
template <int ID, int THREADS> static inline void hw_meet(void) {
    emu_meet(ID, THREADS);
}
long long hw_clock(void);
void hw_stop(void);

#endif
