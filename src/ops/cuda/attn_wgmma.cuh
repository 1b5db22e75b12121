/* Hopper's asynchronous products and what goes with them: wgmma (A in registers, B in shared memory, sums in
 * registers), mbarriers, and copies that arrive at one. sm_90a only: the callers' bodies are empty elsewhere.
 *
 * B lies in panels (attn_tile.cuh) whose rows are 128 or 64 bytes, 16-byte units exclusive-ored by row: the layouts
 * that PTX calls 128-byte and 64-byte swizzling; a panel begins at a multiple of 1024 bytes.
 */
#ifndef GY_OPS_CUDA_ATTN_WGMMA_CUH
#define GY_OPS_CUDA_ATTN_WGMMA_CUH

#include "ops/cuda/attn_int.cuh"

/* How a product is told where an operand lies, in two words. The upper one says the layout of panels. The lower one is
 * made once for a tile and stepped by adding bytes / 16: made anew for each product, from a shared address, it took as
 * long as the product itself. at: shared address; lead: bytes from panel to panel, where panels lie along n (V). */
template <int D> constexpr uint32_t b_layout = panels<D>::ROW == 128 ? 0x40000040u : 0x80000020u;
static __device__ inline uint32_t operand_at(uint32_t at, uint32_t lead) {
    return at >> 4 | lead >> 4 << 16;
}

/* d (+)= a b: add = 0 starts from nothing. d, a in registers and what lies in shared memory are the product's own until
 * wgmma_wait. Scores: q (64 rows) and k (128), both with rows along the head's elements. */
template <int D> static __device__ inline void wgmma_scores(float (&d)[16][4], uint32_t a, uint32_t b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %66, 0;\n"
                 "mov.b64 da, {%64, %67}; mov.b64 db, {%65, %67};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                 "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
                 "%31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "
                 "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "da, db, p, 1, 1, 0, 0;}\n"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
                 : "r"(a), "r"(b), "r"(add), "n"(b_layout<D>));
}

/* Weights (registers) and V, whose rows lie along the positions. */
template <int D>
static __device__ inline void wgmma_values(float (&d)[8][4], const uint32_t (&a)[4], uint32_t b, int add) {
    asm volatile(
        "{.reg .pred p; .reg .b64 db; setp.ne.b32 p, %37, 0; mov.b64 db, {%36, %38};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, db, p, 1, 1, 1;}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(b_layout<D>));
}

template <int D>
static __device__ inline void wgmma_values(float (&d)[12][4], const uint32_t (&a)[4], uint32_t b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 db; setp.ne.b32 p, %53, 0; mov.b64 db, {%52, %54};\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                 "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
                 "%31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "{%48, %49, %50, %51}, db, p, 1, 1, 1;}\n"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(b_layout<D>));
}

template <int D>
static __device__ inline void wgmma_values(float (&d)[16][4], const uint32_t (&a)[4], uint32_t b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 db; setp.ne.b32 p, %69, 0; mov.b64 db, {%68, %70};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                 "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
                 "%31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "
                 "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, db, p, 1, 1, 1;}\n"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(b_layout<D>));
}

static __device__ inline void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ inline void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ inline void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving reads of sums above the wait that makes them valid. */
template <int N> static __device__ inline void wgmma_hold(float (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

/* A branch that is never taken, on a value that all weights of a tile went into: they are computed before it. Without
 * it ptxas, which knows that nobody needs them yet, puts the wait for the products under way first and computes weights
 * when there is nothing left to run beside them. */
static __device__ inline void computed_here(float sum) {
    asm volatile("{.reg .pred p;\n"
                 "setp.geu.f32 p, %0, 0f00000000;\n"
                 "@p bra done;\n"
                 "nanosleep.u32 0;\n"
                 "done:\n}" ::"f"(sum)
                 : "memory");
}

static __device__ inline void bar_init(uint32_t bar, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
static __device__ inline void bar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* The phase does not end before so many more bytes have come. */
static __device__ inline void bar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ inline void bar_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@!p bra again;}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* One box of a tensor map, told to bar when it is there. */
static __device__ inline void bring_box(uint32_t to, const CUtensorMap *map, int32_t c0, int32_t c1, int32_t c2,
                                        int32_t c3, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar)
                 : "memory");
}
/* Barriers of the two warpgroups that compute: wait for one's own, tell the other's. */
static __device__ inline void turn_wait(int of) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + of) : "memory");
}
static __device__ inline void turn_give(int to) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + to) : "memory");
}

/* What ordinary copies wrote becomes visible to the products, which read past the ordinary path. */
static __device__ inline void fence_for_wgmma(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
