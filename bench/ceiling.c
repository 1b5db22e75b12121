/* The ceilings: see ceiling.h. The read loop is plain C on purpose: sums by AVX-512, with and without prefetches of 2
 * to 8 KiB ahead, were tried and are not faster (EPYC of family 25 model 17: 30.8 to 33.7 GB/s against 34.2 to 35.0).
 */
#include "ceiling.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

#include <immintrin.h>
#include <string.h>

enum { MAX_MEMBER = 64 };

static double now(void) {
    return (double)gy_clock_ns() * 1e-9;
}

/* ---- read ------------------------------------------------------------------------------------------------------ */

typedef struct read_task {
    const uint64_t *p;
    int64_t n;
    uint64_t sum[MAX_MEMBER]; /* keeps the loops alive */
} read_task;

enum { PAGE = 4096 / 8, SIDE_BY_SIDE = 8 };

/* One stream, left to the processor's prefetcher. */
static void read_stream(void *arg, int member, int n_member) {
    read_task *t = arg;
    int64_t lo, hi;
    uint64_t s[8] = {0};
    gy_team_share(t->n, PAGE, member, n_member, &lo, &hi);
    for (int64_t i = lo; i + 8 <= hi; i += 8)
        for (int e = 0; e < 8; e++) s[e] += t->p[i + e];
    t->sum[member % MAX_MEMBER] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

/* Eight pages side by side, the next eight prefetched: better on some processors. */
static void read_pages(void *arg, int member, int n_member) {
    read_task *t = arg;
    const int64_t group = SIDE_BY_SIDE * PAGE;
    int64_t lo, hi;
    uint64_t s[8] = {0};
    gy_team_share(t->n, group, member, n_member, &lo, &hi);
    for (int64_t g = lo; g + group <= hi; g += group) {
        for (int64_t j = 0; j < PAGE; j += 8) {
            for (int64_t i = g + j; i < g + group; i += PAGE) {
                _mm_prefetch((const char *)(t->p + i + group), _MM_HINT_T0);
                for (int e = 0; e < 8; e++) s[e] += t->p[i + e];
            }
        }
    }
    t->sum[member % MAX_MEMBER] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

double gy_ceiling_read(gy_team *team, const void *p, size_t bytes, int rounds) {
    const size_t piece = (size_t)32 << 20, n_piece = bytes / piece;
    double best = 0;
    for (size_t i = 0; i < 2 * (size_t)rounds * n_piece; i++) {
        read_task t = {.p = (const uint64_t *)p + i % n_piece * (piece / 8), .n = (int64_t)(piece / 8)};
        double t0 = now();
        gy_team_run(team, i / n_piece % 2 ? read_pages : read_stream, &t);
        double rate = (double)piece / (now() - t0);
        if (rate > best) best = rate;
    }
    return best;
}

double gy_ceiling_read_anonymous(gy_team *team, int rounds) {
    const size_t bytes = (size_t)1 << 30;
    void *p = gy_mem_map_pages(GY_MEM_BASE, bytes);
    if (!p) return 0;
    memset(p, 1, bytes); /* before this all pages are one page of zeros */
    double best = gy_ceiling_read(team, p, bytes, rounds);
    gy_mem_unmap_pages(GY_MEM_BASE, p, bytes);
    return best;
}

/* ---- multiply-adds --------------------------------------------------------------------------------------------- */

enum { FMA_STEPS = 100000, FMA_CHAINS = 12, FMA_TRIES = 200 };

__attribute__((target("avx512f"))) static float fma_avx512(void) {
    __m512 a[FMA_CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < FMA_CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (int64_t j = 0; j < FMA_STEPS; j++)
        for (int i = 0; i < FMA_CHAINS; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    for (int i = 1; i < FMA_CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx2,fma"))) static float fma_avx2(void) {
    __m256 a[FMA_CHAINS], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < FMA_CHAINS; i++) a[i] = _mm256_set1_ps((float)i);
    for (int64_t j = 0; j < FMA_STEPS; j++)
        for (int i = 0; i < FMA_CHAINS; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 1; i < FMA_CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_cvtss_f32(a[0]);
}

typedef struct fma_task {
    int wide;
    float sink[MAX_MEMBER]; /* keeps the loops alive */
} fma_task;

static void fma_member(void *arg, int member, int n_member) {
    fma_task *t = arg;
    (void)n_member;
    t->sink[member % MAX_MEMBER] = t->wide ? fma_avx512() : fma_avx2();
}

double gy_ceiling_fma(gy_team *team) {
    double best = 0;
    fma_task t = {.wide = (gy_cpu_features() & GY_CPU_AVX512) != 0};
    double flop = 2.0 * FMA_STEPS * FMA_CHAINS * (t.wide ? 16 : 8) * gy_team_size(team);
    for (int i = 0; i < FMA_TRIES; i++) {
        double t0 = now();
        gy_team_run(team, fma_member, &t);
        double rate = flop / (now() - t0);
        if (rate > best) best = rate;
    }
    return best;
}
