/* linear: every variant against the exact sum (f64) and against ref, over shapes that leave every kind of tail; the
 * equalities of ARCHITECTURE.md, determinism; rows that do not leak into each other; borders.
 */
#include "ops_fixture.h"

static const int rows_of[] = {1, 2, 3, 5, 16, 17, 64};
static const int sizes[] = {1, 7, 12, 31, 33, 60, 63, 64, 65, 96, 100, 128, 176, 257};

typedef struct problem {
    gy_weight w;
    buf part[GY_WEIGHT_PARTS], scale[GY_WEIGHT_PARTS], x, y;
    int n_row;
} problem;

/* Scales of all sizes; also those of the smallest weights. */
static float scale_of(value_kind kind, uint32_t i) {
    uint32_t r = test_rand(55, i);
    return kind == V_TINY ? 0x1p-126f : ldexpf(0.5f + gy_rand_unit_f32(r), (int)(r % 16) - 12);
}

/* The n rows of W over n_part parts as unequal as they can be; each part at the end of its own mapping. */
static problem problem_make(gy_dtype act, gy_dtype t, int n_row, int n, int k, int n_part, value_kind kind) {
    problem p = {.w = {.dtype = t, .n = n, .k = k, .n_part = n_part}, .n_row = n_row};
    for (int i = 0, left = n; i < n_part; i++) {
        int rows = i == n_part - 1 ? left : left / (n_part - i + 1);
        p.part[i] = buf_values(t, (int64_t)rows * k, kind, (uint32_t)(100 + i));
        p.w.part[i].data = p.part[i].p;
        p.w.part[i].n = rows;
        if (gy_is_quant(t)) {
            p.scale[i] = buf_make((size_t)rows * sizeof(float));
            for (int r = 0; r < rows; r++) dt_put(p.scale[i].p, GY_F32, r, scale_of(kind, (uint32_t)(r + 64 * i)));
            p.w.part[i].scale = (const float *)(const void *)p.scale[i].p;
        }
        left -= rows;
    }
    p.x = buf_values(act, (int64_t)n_row * k, kind, 7);
    p.y = buf_make((size_t)n_row * (size_t)n * dt_bytes(act));
    return p;
}

static void problem_free(problem *p) {
    for (int i = 0; i < p->w.n_part; i++) {
        buf_free(&p->part[i]);
        if (gy_is_quant(p->w.dtype)) buf_free(&p->scale[i]);
    }
    buf_free(&p->x);
    buf_free(&p->y);
}

static void run(gy_backend *be, const void *x, const gy_weight *w, int n_row, void *y, int y_f32) {
    gy_linear_args a = {.x = x, .w = w, .n_row = n_row, .y = y, .y_f32 = y_f32};
    gy_mem_guard_begin();
    be->ops->linear(be, &a);
    gy_mem_guard_end();
    assert_int_equal(be->ops->sync(be, NULL), GY_OK);
}

static double bytes_of(const problem *p, gy_dtype act) {
    double n = p->w.n, k = p->w.k, m = p->n_row;
    return n * k * (double)dt_bytes(p->w.dtype) + m * (k + n) * (double)dt_bytes(act);
}

static double flop_of(const problem *p) {
    return 2.0 * p->w.n * p->w.k * p->n_row;
}

/* A weight in a form of the backend's own gives the bits of the rows as they are, and the rows are looked at no more.
 */
static void packed_check(gy_backend *be, const problem *p, const char *what) {
    gy_weight w = p->w;
    if (!be->ops->unprepare) return;
    buf y = buf_make(p->y.n);
    size_t bytes = be->ops->prepare(be, &w, 0);
    assert_int_equal(bytes != 0, w.packed != NULL);
    for (int i = 0; i < w.n_part && w.packed; i++) w.part[i].data = NULL;
    run(be, p->x.p, &w, p->n_row, y.p, 0);
    same_check(y.p, p->y.p, y.n, what);
    if (w.packed) TIMED(be, 1, bytes_of(p, be->act), flop_of(p), run(be, p->x.p, &w, p->n_row, y.p, 0));
    be->ops->unprepare(be, &w);
    assert_null(w.packed);
    be->ops->unprepare(be, &w);
    buf_free(&y);
}

static float weight_at(const gy_weight *w, int64_t i, int64_t j) {
    int ip = 0;
    while (i >= w->part[ip].n) i -= w->part[ip++].n;
    return dt_get(w->part[ip].data, w->dtype, i * w->k + j);
}

static float scale_at(const gy_weight *w, int64_t i) {
    int ip = 0;
    while (i >= w->part[ip].n) i -= w->part[ip++].n;
    return gy_is_quant(w->dtype) ? w->part[ip].scale[i] : 1.0f;
}

/* How many roundings a sum of k products has. CPU variants: chains of at most 512 fused multiply-adds (the portable
 * one's round twice), then an addition for each; others: one chain. */
static double n_round_of(const variant *v, int k) {
    int chain = is_cuda(v) || k < 512 ? k : 512;
    return (v->needs ? 1 : 2) * (chain + 1) + k / 512.0;
}

/* ref: k roundings of products and k of sums at most. With a scale one more. flushes: subnormal numbers may count as
 * zero (ops.h): what such an element gives is lost, and each of the k sums may lose one. */
static void against_exact(const problem *p, gy_dtype act, double n_round, int flushes, worst *w, const char *what) {
    for (int64_t r = 0; r < p->n_row; r++) {
        for (int64_t i = 0; i < p->w.n; i++) {
            double sum = 0, size = 0, lost = flushes ? p->w.k * 0x1p-126 : 0;
            for (int64_t j = 0; j < p->w.k; j++) {
                float a = dt_get(p->x.p, act, r * p->w.k + j), b = weight_at(&p->w, i, j);
                double v = (double)a * b;
                if (flushes && (fabsf(a) < 0x1p-126f || fabsf(b) < 0x1p-126f)) lost += fabs(v);
                sum += v;
                size += fabs(v);
            }
            double scale = scale_at(&p->w, i), bound = gamma_of(n_round) * size + p->w.k * TINY_F32 + lost;
            sum *= scale;
            bound *= scale;
            if (gy_is_quant(p->w.dtype)) bound += round_err(GY_F32, fabs(sum) + bound);
            bound += act == GY_BF16 ? round_err(act, fabs(sum) + bound) : 0;
            close_check(w, dt_get(p->y.p, act, r * p->w.n + i), sum, bound, what, r * p->w.n + i);
        }
    }
}

static void shape_check(gy_backend *ref, gy_backend *be, const variant *v, problem *p, worst *w_ref, worst *w_be) {
    char what[96];
    int k = p->w.k;
    snprintf(what, sizeof what, "linear %s %s/%s m %d n %d k %d", v->name, gy_dtype_name(be->act),
             gy_dtype_name(p->w.dtype), p->n_row, p->w.n, k);
    run(ref, p->x.p, &p->w, p->n_row, p->y.p, 0);
    against_exact(p, be->act, 2 * k, 0, w_ref, "ref");
    memset(p->y.p, 0xc3, p->y.n);
    run(be, p->x.p, &p->w, p->n_row, p->y.p, 0);
    against_exact(p, be->act, n_round_of(v, k), v->needs == GY_CPU_AVX512_BF16, w_be, what);
    TIMED(be, 0, bytes_of(p, be->act), flop_of(p), run(be, p->x.p, &p->w, p->n_row, p->y.p, 0));
    packed_check(be, p, "weights packed");
}

/* All sizes of n and k with one n_row, and all n_row with some, so that each pair of tails meets. */
static void sweep(const variant *v, gy_dtype act, gy_dtype t) {
    gy_backend *ref = ref_open(act), *be = cpu_open(v, act, 2);
    worst w_ref = {0}, w_be = {0};
    char name[32];
    for (int ik = 0; ik < COUNT(sizes); ik++) {
        for (int in = 0; in < COUNT(sizes); in++) {
            int n = sizes[in], k = sizes[ik], n_row = rows_of[(in + ik) % 5];
            value_kind kind = (value_kind)((in + 2 * ik) % V_KIND_COUNT);
            problem p = problem_make(act, t, n_row, n, k, n < 3 ? 1 : 1 + in % 3, kind);
            shape_check(ref, be, v, &p, &w_ref, &w_be);
            problem_free(&p);
        }
    }
    for (int ir = 0; ir < COUNT(rows_of); ir++) {
        problem p = problem_make(act, t, rows_of[ir], 65, 100, 2, V_UNIT);
        shape_check(ref, be, v, &p, &w_ref, &w_be);
        problem_free(&p);
    }
    const int long_k[] = {1023, 1024, 1025, 2100}; /* across the chunks of k that many rows are cut into */
    for (int i = 0; i < COUNT(long_k); i++) {
        problem p = problem_make(act, t, 15 + 2 * i, 9, long_k[i], 1, V_UNIT);
        shape_check(ref, be, v, &p, &w_ref, &w_be);
        problem_free(&p);
    }
    snprintf(name, sizeof name, "linear, weights %s", gy_dtype_name(t));
    worst_print(name, "ref", act, &w_ref);
    worst_print(name, v->name, act, &w_be);
    char packed[48];
    snprintf(packed, sizeof packed, "%s, packed", name);
    bench_print((const char *const[]){name, packed, NULL}, v->name, gy_dtype_name(act));
    gy_backend_destroy(ref);
    gy_backend_destroy(be);
}

/* A backend says which weights it takes. */
static int takes(const variant *v, gy_dtype act, gy_dtype t) {
    gy_backend *be = cpu_open(v, act, 1);
    int yes = be->ops->weight_types >> t & 1;
    gy_backend_destroy(be);
    if (!yes) print_message("    skipped: %s takes no weights in %s\n", v->name, gy_dtype_name(t));
    return yes;
}

static void each_variant(void (*fn)(const variant *v, gy_dtype act, gy_dtype t)) {
    const gy_dtype types[] = {GY_F32, GY_F16, GY_BF16, GY_F8_E4M3};
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int ia = 0; ia < 2; ia++)
            for (int it = 0; it < COUNT(types); it++)
                if (takes(&variants[iv], acts[ia], types[it])) fn(&variants[iv], acts[ia], types[it]);
    }
}

static void test_shapes(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* most of it is arithmetic of one thread; test_equalities runs the same kernels with one to three */
#endif
    each_variant(sweep);
}

/* Row by row alone, in another order, with 1, 2 and 3 threads, and again: the same bits. */
static void equalities(const variant *v, gy_dtype act, gy_dtype t) {
    enum { M = 17, N = 83 };
    const int ks[] = {60, 257, 2100};
    for (int ik = 0; ik < 3; ik++) {
        int k = ks[ik];
        size_t row_bytes = (size_t)k * dt_bytes(act), y_bytes = N * dt_bytes(act);
        problem p = problem_make(act, t, M, N, k, 3, V_MIXED);
        buf alone = buf_make(M * y_bytes), mixed = buf_make(p.x.n);
        for (int n_thread = 1; n_thread <= 3; n_thread++) {
            gy_backend *be = cpu_open(v, act, n_thread);
            if (n_thread == 1) run(be, p.x.p, &p.w, M, p.y.p, 0);
            run(be, p.x.p, &p.w, M, alone.p, 0);
            same_check(alone.p, p.y.p, alone.n, "again, or with more threads");
            packed_check(be, &p, "packed, with more threads");
            for (int r = 0; r < M; r++) run(be, p.x.p + r * row_bytes, &p.w, 1, alone.p + r * y_bytes, 0);
            same_check(alone.p, p.y.p, alone.n, "each row alone");
            for (int r = 0; r < M; r++) memcpy(mixed.p + r * row_bytes, p.x.p + (r * 5 % M) * row_bytes, row_bytes);
            run(be, mixed.p, &p.w, M, alone.p, 0);
            for (int r = 0; r < M; r++)
                same_check(alone.p + r * y_bytes, p.y.p + (r * 5 % M) * y_bytes, y_bytes, "rows in another order");
            gy_backend_destroy(be);
        }
        buf_free(&alone);
        buf_free(&mixed);
        problem_free(&p);
    }
}

static void test_equalities(void **state) {
    (void)state;
    each_variant(equalities);
}

/* NaN and infinities reach every output of their row as in ref, and no other row. */
static void no_leak(const variant *v, gy_dtype act, gy_dtype t) {
    enum { M = 6, N = 37, K = 70 };
    problem p = problem_make(act, t, M, N, K, 2, V_UNIT);
    gy_backend *ref = ref_open(act), *be = cpu_open(v, act, 2);
    buf clean = buf_make(p.y.n), want = buf_make(p.y.n);
    run(be, p.x.p, &p.w, M, clean.p, 0);
    dt_put(p.x.p, act, 1 * K + 69, NAN);
    dt_put(p.x.p, act, 2 * K + 0, INFINITY);
    dt_put(p.x.p, act, 4 * K + 33, -INFINITY);
    run(ref, p.x.p, &p.w, M, want.p, 0);
    run(be, p.x.p, &p.w, M, p.y.p, 0);
    size_t y_bytes = N * dt_bytes(act);
    for (int r = 0; r < M; r++) {
        if (r == 0 || r == 3 || r == 5) same_check(p.y.p + r * y_bytes, clean.p + r * y_bytes, y_bytes, "clean row");
        for (int i = 0; i < N && (r == 1 || r == 2 || r == 4); i++) {
            float a = dt_get(p.y.p, act, r * N + i), b = dt_get(want.p, act, r * N + i);
            assert_true(isnan(a) ? isnan(b) : isinf(a) && a == b);
            assert_true(r != 1 || isnan(a));
        }
    }
    buf_free(&clean);
    buf_free(&want);
    problem_free(&p);
    gy_backend_destroy(ref);
    gy_backend_destroy(be);
}

static void test_no_leak(void **state) {
    (void)state;
    each_variant(no_leak);
}

/* y_f32: the same rounded values, widened. */
static void f32_output(const variant *v, gy_dtype act, gy_dtype t) {
    enum { M = 3, N = 21, K = 64 };
    problem p = problem_make(act, t, M, N, K, 1, V_UNIT);
    gy_backend *be[2] = {ref_open(act), cpu_open(v, act, 1)};
    buf wide = buf_make(M * N * sizeof(float));
    for (int b = 0; b < 2; b++) {
        run(be[b], p.x.p, &p.w, M, p.y.p, 0);
        run(be[b], p.x.p, &p.w, M, wide.p, 1);
        for (int i = 0; i < M * N; i++) assert_true(dt_get(wide.p, GY_F32, i) == dt_get(p.y.p, act, i));
        gy_backend_destroy(be[b]);
    }
    buf_free(&wide);
    problem_free(&p);
}

static void test_f32_output(void **state) {
    (void)state;
    each_variant(f32_output);
}

/* The same values in BF16: their sums times the scale, bit for bit. In act BF16 the sums are not to be had unrounded,
 * so scales are 1 there. */
static void sums_of_bf16(gy_backend *be, problem *p, const char *what) {
    problem q = *p;
    buf part[GY_WEIGHT_PARTS], want = buf_make((size_t)p->n_row * (size_t)p->w.n * 4), got = buf_make(want.n);
    q.w.dtype = GY_BF16;
    for (int i = 0; i < p->w.n_part; i++) {
        int64_t n = (int64_t)p->w.part[i].n * p->w.k;
        part[i] = buf_make((size_t)n * 2);
        for (int64_t e = 0; e < n; e++) dt_put(part[i].p, GY_BF16, e, dt_get(p->part[i].p, p->w.dtype, e));
        for (int64_t e = 0; e < n; e++)
            assert_true(dt_get(part[i].p, GY_BF16, e) == dt_get(p->part[i].p, p->w.dtype, e));
        for (int r = 0; r < p->w.part[i].n && be->act == GY_BF16; r++) dt_put(p->scale[i].p, GY_F32, r, 1.0f);
        q.w.part[i].data = part[i].p;
        q.w.part[i].scale = NULL;
    }
    run(be, p->x.p, &q.w, p->n_row, want.p, 1);
    run(be, p->x.p, &p->w, p->n_row, got.p, 1);
    for (int64_t i = 0; i < (int64_t)p->n_row * p->w.n; i++)
        dt_put(want.p, GY_F32, i, dt_get(want.p, GY_F32, i) * scale_at(&p->w, i % p->w.n));
    same_check(got.p, want.p, got.n, what);
    for (int i = 0; i < p->w.n_part; i++) buf_free(&part[i]);
    buf_free(&want);
    buf_free(&got);
}

static void quant_as_bf16(const variant *v, gy_dtype act, gy_dtype t) {
    if (!gy_is_quant(t)) return;
    gy_backend *ref = ref_open(act), *be = cpu_open(v, act, 2);
    const int ks[] = {1, 31, 33, 64, 100, 257, 1024, 2100};
    for (int i = 0; i < COUNT(ks) * V_KIND_COUNT; i++) {
        problem p = problem_make(act, t, rows_of[i % COUNT(rows_of)], 83, ks[i % COUNT(ks)], 1 + i % 3,
                                 (value_kind)(i / COUNT(ks)));
        sums_of_bf16(ref, &p, "ref: sums of the same values in BF16");
        sums_of_bf16(be, &p, "sums of the same values in BF16");
        problem_free(&p);
    }
    gy_backend_destroy(ref);
    gy_backend_destroy(be);
}

static void test_quant_as_bf16(void **state) {
    (void)state;
    each_variant(quant_as_bf16);
}

/* Each code in each place of a block, alone in its row: comes out as it is defined. */
static void each_code(const variant *v, gy_dtype act, gy_dtype t) {
    enum { K = 64, N = 254 };
    if (!gy_is_quant(t)) return;
    gy_backend *be = cpu_open(v, act, 1);
    problem p = problem_make(act, t, 1, N, K, 1, V_ZERO);
    for (int at = 0; at < K; at++) {
        for (int i = 0; i < K; i++) dt_put(p.x.p, act, i, i == at ? 1.0f : 0.0f);
        memset(p.part[0].p, 0, p.part[0].n);
        for (int i = 0; i < N; i++) {
            int code = i < 127 ? i : i + 1; /* not 7f, ff: E4M3's NaN */
            p.part[0].p[i * K + at] = (unsigned char)code;
            dt_put(p.scale[0].p, GY_F32, i, 1.0f);
        }
        run(be, p.x.p, &p.w, 1, p.y.p, 0);
        for (int i = 0; i < N; i++) assert_true(dt_get(p.y.p, act, i) == dt_get(p.part[0].p, t, (int64_t)i * K + at));
    }
    problem_free(&p);
    gy_backend_destroy(be);
}

static void test_each_code(void **state) {
    (void)state;
    each_variant(each_code);
}

/* More rows than the packed scratch holds at once: the pieces join. 16 MiB / 4 B / 640 = 6553 rows of k 640. */
static void test_many_rows(void **state) {
    (void)state;
    enum { M = 6600, N = 9, K = 640 };
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        problem p = problem_make(GY_BF16, GY_BF16, M, N, K, 1, V_UNIT);
        gy_backend *be = cpu_open(&variants[iv], GY_BF16, 2);
        uint16_t alone[N];
        run(be, p.x.p, &p.w, M, p.y.p, 0);
        for (int r = 0; r < M; r += r < 6540 ? 327 : 1) {
            run(be, p.x.p + (size_t)r * K * 2, &p.w, 1, alone, 0);
            same_check(alone, p.y.p + (size_t)r * N * 2, sizeof alone, "row of a long batch");
        }
        gy_backend_destroy(be);
        problem_free(&p);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest timed[] = {cmocka_unit_test(test_shapes)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_equalities), cmocka_unit_test(test_no_leak),
        cmocka_unit_test(test_f32_output), cmocka_unit_test(test_many_rows),  cmocka_unit_test(test_quant_as_bf16),
        cmocka_unit_test(test_each_code),
    };
    bench_open(argc, argv);
    if (bench.on) return cmocka_run_group_tests(timed, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
