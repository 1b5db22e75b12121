/* Shared by the tests of operations: backends of each variant, memory that notices a touch outside it, values that
 * hurt, and comparison against computed bounds. Static, one copy per test program.
 *
 * Memory: every buffer ends exactly at a page that may not be touched, and carries a pattern before it that
 * buf_check() looks at. Buffers come from mmap, not from gy_mem_*, so that the allocation guard can stay on while
 * operations run.
 */
#ifndef GY_TESTS_OPS_FIXTURE_H
#define GY_TESTS_OPS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda_proxy.h"
#include "ops_bench.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/philox.h"
#include "ops/ops.h"

#include <float.h>
#include <math.h>
#include <sys/mman.h>

#define UNUSED __attribute__((unused))
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- memory ---------------------------------------------------------------------------------------------------- */

enum { PAGE = 4096, GUARD = 64 };

typedef struct buf {
    unsigned char *map, *p; /* p: the n bytes */
    size_t map_bytes, n;
} buf;

static UNUSED buf buf_make(size_t n) {
    size_t body = GY_ALIGN_UP(n + GUARD, PAGE);
    buf b = {.map_bytes = body + PAGE, .n = n};
    b.map = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.map != MAP_FAILED);
    assert_int_equal(mprotect(b.map + body, PAGE, PROT_NONE), 0);
    b.p = b.map + body - n;
    memset(b.p - GUARD, 0xa5, GUARD);
    memset(b.p, 0xc3, n);
    return b;
}

static UNUSED void buf_check(const buf *b) {
    for (int i = 1; i <= GUARD; i++) assert_int_equal(b->p[-i], 0xa5);
}

static UNUSED void buf_free(buf *b) {
    buf_check(b);
    munmap(b->map, b->map_bytes);
    *b = (buf){0};
}

/* ---- dtypes ---------------------------------------------------------------------------------------------------- */

static UNUSED size_t dt_bytes(gy_dtype t) {
    return t == GY_F32 ? 4 : gy_is_quant(t) ? 1 : 2;
}

/* Of E4M3 the stored value, without its scale. */
static UNUSED float dt_get(const void *p, gy_dtype t, int64_t i) {
    uint16_t h;
    float f;
    if (t == GY_F8_E4M3) return gy_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    if (t == GY_F32) {
        memcpy(&f, (const char *)p + i * 4, 4);
        return f;
    }
    memcpy(&h, (const char *)p + i * 2, 2);
    return t == GY_BF16 ? gy_bf16_to_f32(h) : gy_f16_to_f32(h);
}

static UNUSED void dt_put(void *p, gy_dtype t, int64_t i, float f) {
    if (t == GY_F8_E4M3) ((uint8_t *)p)[i] = gy_f32_to_f8e4m3(f);
    if (gy_is_quant(t)) return;
    uint16_t h = t == GY_BF16 ? gy_f32_to_bf16(f) : gy_f32_to_f16(f);
    if (t == GY_F32) {
        memcpy((char *)p + i * 4, &f, 4);
    } else {
        memcpy((char *)p + i * 2, &h, 2);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

typedef enum value_kind { V_UNIT, V_MIXED, V_TINY, V_HUGE, V_ZERO, V_KIND_COUNT } value_kind;

/* Four numbers come out of a block, and they are asked for in turn. */
static UNUSED uint32_t test_rand(uint32_t stream, uint32_t i) {
    static uint32_t w[4], of_stream, of_block = UINT32_MAX;
    if (of_stream != stream || of_block != i / 4) gy_rand_block(20240607, stream, 0, GY_RAND_TEST, i / 4, w);
    of_stream = stream;
    of_block = i / 4;
    return w[i % 4];
}

/* Between -1 and 1, times what the kind says. Products of two huge values summed 600 times stay finite. */
static UNUSED float value_of(value_kind kind, gy_dtype t, uint32_t stream, uint32_t i) {
    uint32_t r = test_rand(stream, i);
    float v = gy_rand_unit_f32(r) * 2.0f - 1.0f;
    int e = (int)(r & 31);
    if (kind == V_ZERO) return (r & 1) ? 0.0f : -0.0f;
    if (kind == V_MIXED) return e < 4 ? 0.0f : ldexpf(v, e - 18);
    if (kind == V_TINY) return e < 8 ? ldexpf(v, t == GY_F16 ? -14 : -126) : ldexpf(v, t == GY_F16 ? -16 : -132);
    if (kind == V_HUGE) return v * (t == GY_F16 ? 6e4f : 1e17f);
    return v;
}

static UNUSED void fill(void *p, gy_dtype t, int64_t n, value_kind kind, uint32_t stream) {
    for (int64_t i = 0; i < n; i++) dt_put(p, t, i, value_of(kind, t, stream, (uint32_t)i));
}

static UNUSED buf buf_values(gy_dtype t, int64_t n, value_kind kind, uint32_t stream) {
    buf b = buf_make((size_t)n * dt_bytes(t));
    fill(b.p, t, n, kind, stream);
    return b;
}

static UNUSED buf buf_bytes(const void *src, size_t n) {
    buf b = buf_make(n);
    memcpy(b.p, src, n);
    return b;
}

/* ---- backends -------------------------------------------------------------------------------------------------- */

typedef struct variant {
    const char *name, *ops_name;
    uint32_t mask, needs;
    int vl;            /* lanes that share a sum: how many roundings one takes */
    double weight_err; /* of attention's weights in BF16: ops.h allows a GPU's */
} variant;
static const variant variants[] = {
    {"avx512bf16", "cpu-avx512bf16", ~0u, GY_CPU_AVX512_BF16, 16, 0},
    {"avx512", "cpu-avx512", ~(uint32_t)GY_CPU_AVX512_BF16, GY_CPU_AVX512, 16, 0},
    {"avx2", "cpu-avx2", ~(uint32_t)GY_CPU_AVX512, GY_CPU_AVX2, 8, 0},
    {"neon", "cpu-neon", ~0u, GY_CPU_NEON, 4, 0},
    {"portable", "cpu-portable", 0, 0, 2, 0}, /* four lanes that round twice a term: as two that round once */
    {"cuda", "cuda", ~0u, 0, 1, 0x1p-8},
};

static UNUSED int is_cuda(const variant *v) {
    return !strcmp(v->name, "cuda");
}

/* Asked once in a program; the reason is worth one line. */
static UNUSED int cuda_missing(void) {
    static int known, missing;
    gy_err err = {0};
    if (known) return missing;
    known = 1;
    gy_backend *be = px_open(GY_F32, 1, &err);
    missing = !be;
    if (missing) print_message("    cuda skipped: %s\n", err.msg);
    gy_backend_destroy(be);
    return missing;
}

static UNUSED int variant_missing(const variant *v) {
    if (is_cuda(v)) return cuda_missing();
    gy_cpu_set_mask(v->mask);
    int missing = (gy_cpu_features() & v->needs) != v->needs;
    if (v->needs == GY_CPU_AVX512_BF16) missing |= !gy_cpu_has_fast_bf16_dot();
    gy_cpu_set_mask(~0u);
    if (missing) print_message("    skipped: this processor has no %s\n", v->name);
    return missing;
}

static UNUSED gy_backend *cpu_open(const variant *v, gy_dtype act, int n_thread) {
    gy_cpu_opts o = {.act = act, .n_thread = n_thread, .limits = {.max_row = 64, .max_k = 4608, .max_len = 1280}};
    gy_backend *be = NULL;
    gy_err err = {0};
    if (is_cuda(v)) {
        be = px_open(act, n_thread, &err);
        if (!be) fail_msg("%s", err.msg);
        return be;
    }
    gy_cpu_set_mask(v->mask);
    gy_status st = gy_backend_cpu_create(&o, &err, &be);
    gy_cpu_set_mask(~0u);
    if (st != GY_OK) print_error("%s\n", err.msg);
    assert_int_equal(st, GY_OK);
    assert_string_equal(be->ops->name, v->ops_name);
    return be;
}

static UNUSED gy_backend *ref_open(gy_dtype act) {
    gy_backend *be = NULL;
    assert_int_equal(gy_backend_ref_create(act, NULL, &be), GY_OK);
    return be;
}

static const gy_dtype acts[] = {GY_F32, GY_BF16};

/* ---- comparison ------------------------------------------------------------------------------------------------ */

#define U_F32 0x1p-24 /* unit roundoff: half a unit in the last place, relative */
#define U_BF16 0x1p-8
#define TINY_F32 0x1p-149
#define TINY_BF16 0x1p-133

/* Worst error of n roundings one after the other (Higham's gamma_n). */
static UNUSED double gamma_of(double n) {
    return n * U_F32 / (1.0 - n * U_F32);
}

/* The largest change that rounding v to act can make. */
static UNUSED double round_err(gy_dtype act, double v) {
    return act == GY_BF16 ? fabs(v) * U_BF16 + TINY_BF16 / 2 : fabs(v) * U_F32 + TINY_F32 / 2;
}

typedef struct worst {
    double abs, share; /* largest |difference|, and largest |difference| / bound */
    int64_t n, n_unequal;
} worst;

static UNUSED void worst_print(const char *what, const char *variant_name, gy_dtype act, const worst *w) {
    print_message("    %-22s %-7s %-4s  max error %9.3g  %5.1f %% of the bound  %lld of %lld elements unequal\n", what,
                  variant_name, gy_dtype_name(act), w->abs, 100.0 * w->share, (long long)w->n_unequal, (long long)w->n);
}

/* Finite values within the bound; NaN with NaN; infinities equal. */
static UNUSED void close_check(worst *w, double got, double want, double bound, const char *what, int64_t at) {
    w->n++;
    if (isnan(got) && isnan(want)) return;
    if (got == want) return;
    w->n_unequal++;
    double diff = fabs(got - want);
    if (!(diff <= bound)) {
        print_error("%s: element %lld: got %.9g, want %.9g, difference %.3g, bound %.3g\n", what, (long long)at, got,
                    want, diff, bound);
        fail();
    }
    if (diff > w->abs) w->abs = diff;
    if (diff / bound > w->share) w->share = diff / bound;
}

/* Equal bits, NaN payloads included. */
static UNUSED void same_check(const void *a, const void *b, size_t n, const char *what) {
    if (memcmp(a, b, n) == 0) return;
    for (size_t i = 0; i < n; i++) {
        if (((const unsigned char *)a)[i] == ((const unsigned char *)b)[i]) continue;
        print_error("%s: byte %zu of %zu differs\n", what, i, n);
        fail();
    }
}

#endif
