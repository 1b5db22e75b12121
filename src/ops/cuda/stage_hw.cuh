/* What a stage asks of the machine: copies that arrive at barriers, words that go from block to block, named barriers.
 * tests/stage has the same names for a made-up machine on the CPU (GY_EMULATED), so nothing else of a stage holds
 * PTX. sm_90 only: bodies are used behind __CUDA_ARCH__ >= 900.
 */
#ifndef GY_OPS_CUDA_STAGE_HW_CUH
#define GY_OPS_CUDA_STAGE_HW_CUH

#include "ops/cuda/attn_int.cuh"

static __device__ inline char *hw_smem(void) {
    extern __shared__ __align__(1024) char raw[];
    return raw;
}

/* ---- barriers of the ring ---------------------------------------------------------------------------------------- */

static __device__ inline void hw_bar_init(uint32_t bar) { /* one arrival a phase */
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory");
}
static __device__ inline void hw_bars_made(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ inline void hw_bar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
static __device__ inline void hw_bar_expect(uint32_t bar, uint32_t bytes) { /* and arrives */
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* Whether the phase of that parity is over, now; the same after a while. */
static __device__ inline int hw_bar_test(uint32_t bar, uint32_t parity) {
    int over;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over;
}
static __device__ inline int hw_bar_try(uint32_t bar, uint32_t parity) {
    int over;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over;
}
/* Of this thread's 16-byte copies: the phase does not end before they have come. In front of the phase's arrival. */
static __device__ inline void hw_bar_copies(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(bar) : "memory");
}

/* ---- the copy engine --------------------------------------------------------------------------------------------- */

static __device__ inline void hw_map_ready(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* 8 outputs x 512 of k: panels of 64 of k from `panel` on. */
static __device__ inline void hw_bring_rows(uint32_t to, const CUtensorMap *map, int32_t row, int32_t panel,
                                            uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(panel), "r"(bar)
                 : "memory");
}
/* 4 gates and the ups of the same numbers. */
static __device__ inline void hw_bring_unit(uint32_t to, const CUtensorMap *map, int32_t unit, int32_t panel,
                                            uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %2, "
                 "%3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(unit), "r"(panel), "r"(bar)
                 : "memory");
}
static __device__ inline void hw_bring_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
/* ---- from block to block ----------------------------------------------------------------------------------------- */

/* A word is 32 bits of data and, above them, 32 of tag: they are seen together or not at all. No order with others. */
static __device__ inline void hw_put_word(uint64_t *to, uint64_t word) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
static __device__ inline uint64_t hw_get_word(const uint64_t *from) {
    uint64_t w;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
    return w;
}
static __device__ inline void hw_get_words(const uint64_t *from, uint64_t w[2]) { /* each as above */
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(from) : "memory");
}
static __device__ inline void hw_count(uint32_t *counter) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
static __device__ inline uint32_t hw_counted(const uint32_t *counter) {
    uint32_t n;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
    return n;
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

/* 16 bytes of the lanes that have some; the others keep what they had, and cost nothing. */
static __device__ inline void hw_load_some(uint32_t v[4], uint32_t at, int has) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0; @p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                 : "r"(at), "r"(has)
                 : "memory");
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

template <int ID, int THREADS> static __device__ inline void hw_meet(void) { /* of whole warps */
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
static __device__ inline long long hw_clock(void) {
    return clock64();
}
static __device__ inline void hw_stop(void) {
    __threadfence_system();
    __trap();
}

#endif
