/* linear with weights in groups (Q8, Q4; Q8C, whose group is the row): one definition, the same bits from everybody.
 * ref against the formula of ops.h written once more here; every kernel, those of other instruction sets too, against
 * ref, over shapes that leave every kind of tail; and against the exact product of the values that are held. A row's
 * bits depend on nothing but the row.
 */
#include "ops_fixture.h"

#include "ops/cpu/quant_int.h"
#include "tensor/quant.h"

static const gy_dtype types[] = {GY_Q8, GY_Q4, GY_Q8C};
static const int sizes[] = {1, 7, 31, 32, 33, 64, 70, 257};
enum { MOST_K = 2100, MOST_N = 300 };

typedef struct problem {
    gy_weight w;
    buf data, x, y;
    int n_row;
} problem;

static float weight_of(value_kind kind, int64_t i, int64_t j) {
    return value_of(kind, GY_F32, (uint32_t)(100 + i), (uint32_t)j);
}

static problem problem_make(gy_dtype act, gy_dtype t, int n_row, int n, int k, value_kind kind) {
    problem p = {.w = {.dtype = t, .n = n, .k = k, .n_part = 1}, .n_row = n_row};
    float row[MOST_K];
    assert_true(k <= MOST_K);
    p.data = buf_make(gy_quant_bytes(t, n, k));
    memset(p.data.p, 0, p.data.n);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < k; j++) row[j] = weight_of(kind, i, j);
        assert_int_equal(gy_quant_groups_row(p.data.p, t, i, row, GY_F32, (size_t)k), 0);
    }
    p.w.part[0].data = p.data.p;
    p.w.part[0].n = n;
    p.x = buf_values(act, (int64_t)n_row * k, kind, 7);
    p.y = buf_make((size_t)n_row * (size_t)n * dt_bytes(act));
    return p;
}

static void problem_free(problem *p) {
    buf_free(&p->data);
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

/* ---- the definition --------------------------------------------------------------------------------------------- */

/* The scale of block g of row r, which is that of its group, or of the row (Q8C). */
static float input_scale(const problem *p, gy_dtype act, int r, int g) {
    float most = 0;
    int whole = p->w.dtype == GY_Q8C, finite = 1;
    for (int j = whole ? 0 : g * 32; j < p->w.k && (whole || j < g * 32 + 32); j++) {
        float v = dt_get(p->x.p, act, (int64_t)r * p->w.k + j);
        finite = finite && isfinite(v);
        most = fmaxf(most, fabsf(v));
    }
    return finite ? fmaxf(most / 127.0f, 0x1p-126f) : NAN;
}

/* Block g of row r: its scale, and whole numbers. */
static float input_group(const problem *p, gy_dtype act, int r, int g, int q[32]) {
    float s = input_scale(p, act, r, g);
    for (int j = 0; j < 32; j++) {
        int is_there = !isnan(s) && g * 32 + j < p->w.k;
        q[j] = is_there ? (int)nearbyintf(dt_get(p->x.p, act, (int64_t)r * p->w.k + g * 32 + j) / s) : 0;
    }
    return s;
}

static long block_dot(const problem *p, const int q[32], int i, int g) {
    long dot = 0;
    for (int j = 0; j < 32 && g * 32 + j < p->w.k; j++)
        dot += (long)q[j] * gy_quant_value(p->data.p, p->w.dtype, p->w.k, i, g * 32 + j);
    return dot;
}

/* By the formula of Q8C. */
static float output_channel(const problem *p, gy_dtype act, int r, int i, double *exact, double *size) {
    int q[32];
    long dot = 0;
    float s = input_scale(p, act, r, 0), sw = gy_quant_scale(p->data.p, GY_Q8C, p->w.k, i, 0);
    for (int g = 0; g < (p->w.k + 31) / 32; g++) {
        input_group(p, act, r, g, q);
        dot += block_dot(p, q, i, g);
    }
    *exact = (double)dot * s * sw;
    *size = fabs(*exact);
    return (float)dot * (s * sw);
}

/* By the formula; size: of all that is summed, for a bound. */
static float output(const problem *p, gy_dtype act, int r, int i, double *exact, double *size) {
    float sum = 0;
    *exact = *size = 0;
    if (p->w.dtype == GY_Q8C) return output_channel(p, act, r, i, exact, size);
    for (int g = 0; g < (p->w.k + 31) / 32; g++) {
        int q[32];
        float s = input_group(p, act, r, g, q), sw = gy_quant_scale(p->data.p, p->w.dtype, p->w.k, i, g);
        long dot = block_dot(p, q, i, g);
        assert_true(labs(dot) < 1 << 24);
        sum = fmaf((float)dot, s * sw, sum);
        *exact += (double)dot * s * sw;
        *size += fabs((double)dot * s * sw);
    }
    return sum;
}

/* ref's bits are the formula's; the sum is as near to its exact value as one rounding of each term and of each product
 * of scales allows (Q8C: one of the sum, of the scales' product, and of their product). */
static void check_definition(gy_backend *ref, gy_dtype act, problem *p) {
    run(ref, p->x.p, &p->w, p->n_row, p->y.p, 0);
    for (int r = 0; r < p->n_row; r++)
        for (int i = 0; i < p->w.n; i++) {
            double exact, size;
            float want = output(p, act, r, i, &exact, &size);
            if (act == GY_BF16) want = gy_bf16_round(want);
            float got = dt_get(p->y.p, act, (int64_t)r * p->w.n + i);
            assert_true(got == want || (isnan(got) && isnan(want)));
            int n_group = p->w.dtype == GY_Q8C ? 2 : (p->w.k + 31) / 32;
            double bound = gamma_of(n_group + 1) * size + n_group * (TINY_F32 * 0x1p24);
            bound += act == GY_BF16 ? round_err(act, fabs(exact) + bound) : 0;
            assert_true(fabs((double)got - exact) <= bound);
        }
}

static void test_definition(void **state) {
    (void)state;
    for (int ia = 0; ia < 2; ia++) {
        gy_backend *ref = ref_open(acts[ia]);
        for (int i = 0; i < COUNT(sizes) * V_KIND_COUNT; i++) {
            int k = sizes[i % COUNT(sizes)];
            problem p = problem_make(acts[ia], types[(i + i / 9) % 3], 1 + i % 3, sizes[(i / 3) % 5], k,
                                     (value_kind)(i / COUNT(sizes)));
            check_definition(ref, acts[ia], &p);
            problem_free(&p);
        }
        gy_backend_destroy(ref);
    }
}

/* The product that is meant: by how much quantising x moves it. Half a step of each element, 1/254 of its group's
 * largest value, times the weight. */
static void test_means_the_product(void **state) {
    (void)state;
    enum { M = 5, N = 40, K = 300 };
    gy_backend *ref = ref_open(GY_F32);
    for (int t = 0; t < COUNT(types); t++) {
        problem p = problem_make(GY_F32, types[t], M, N, K, V_UNIT);
        run(ref, p.x.p, &p.w, M, p.y.p, 0);
        for (int r = 0; r < M; r++)
            for (int i = 0; i < N; i++) {
                double sum = 0, off = 0;
                for (int j = 0; j < K; j++) {
                    int q[32];
                    double s = gy_quant_scale(p.data.p, types[t], K, i, j / 32);
                    double w = s * gy_quant_value(p.data.p, types[t], K, i, j);
                    sum += w * (double)dt_get(p.x.p, GY_F32, r * K + j);
                    off += fabs(w) * (double)input_group(&p, GY_F32, r, j / 32, q) * 0.5;
                }
                assert_true(fabs((double)dt_get(p.y.p, GY_F32, r * N + i) - sum) <= off * (1 + 1e-5));
            }
        problem_free(&p);
    }
    gy_backend_destroy(ref);
}

/* ---- the same bits from everybody ---------------------------------------------------------------------------------
 */

typedef struct kernel {
    const gy_cpu_quant_kernels *k;
    uint32_t needs;
} kernel;
static const kernel kernels[] = {
    {&gy_cpu_quant_plain, 0},
#if defined(__x86_64__)
    {&gy_cpu_quant_avx2, GY_CPU_AVX2},
    {&gy_cpu_quant_vnni, GY_CPU_AVX512_VNNI},
#endif
};

/* All panels in two calls. Scratch ends where a touch is noticed. */
static void kernel_run(const gy_cpu_quant_kernels *k, gy_dtype act, const problem *p, void *y, int y_f32) {
    gy_linear_args a = {.x = p->x.p, .w = &p->w, .n_row = p->n_row, .y = y, .y_f32 = y_f32};
    int64_t n_group = gy_quant_groups(p->w.k), n_panel = (p->w.n + GY_PANEL - 1) / GY_PANEL;
    int64_t n_scale = gy_quant_scales(p->w.dtype, p->w.k);
    size_t n = (size_t)p->n_row * (size_t)n_scale;
    buf q = buf_make((size_t)p->n_row * (size_t)n_group * GY_GROUP), scale = buf_make(n * 4), bias = buf_make(n * 4);
    gy_cpu_quant t = {.a = &a,
                      .act = act,
                      .q = (int8_t *)(void *)q.p,
                      .scale = (float *)(void *)scale.p,
                      .bias = (int32_t *)(void *)bias.p,
                      .n_group = n_group,
                      .n_scale = n_scale,
                      .n_row = p->n_row};
    k->rows(&t, 0, p->n_row / 2);
    k->rows(&t, p->n_row / 2, p->n_row);
    k->panels(&t, n_panel / 2, n_panel);
    k->panels(&t, 0, n_panel / 2);
    buf_free(&q);
    buf_free(&scale);
    buf_free(&bias);
}

static void same_as_ref(gy_backend *ref, gy_dtype act, problem *p) {
    buf want = buf_make(p->y.n), wide = buf_make((size_t)p->n_row * (size_t)p->w.n * 4), got = buf_make(wide.n);
    run(ref, p->x.p, &p->w, p->n_row, want.p, 0);
    run(ref, p->x.p, &p->w, p->n_row, wide.p, 1);
    for (int i = 0; i < COUNT(kernels); i++) {
        if (kernels[i].needs & ~gy_cpu_features()) continue;
        kernel_run(kernels[i].k, act, p, p->y.p, 0);
        same_check(p->y.p, want.p, want.n, kernels[i].k->name);
        kernel_run(kernels[i].k, act, p, got.p, 1);
        same_check(got.p, wide.p, wide.n, kernels[i].k->name);
    }
    buf_free(&want);
    buf_free(&wide);
    buf_free(&got);
}

enum { N_PROBLEM = COUNT(types) * V_KIND_COUNT * COUNT(sizes) };

static problem kernel_problem(gy_dtype act, int i) {
    int n = sizes[(i / 3 + i / 7) % COUNT(sizes)], k = sizes[i / 3 % COUNT(sizes)];
    return problem_make(act, types[i % 3], 1 + i % 14, n, k, (value_kind)(i / 3 % V_KIND_COUNT));
}

static void test_kernels(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(kernels); i++)
        if (kernels[i].needs & ~gy_cpu_features())
            print_message("    skipped: this processor has no %s\n", kernels[i].k->name);
    for (int ia = 0; ia < 2; ia++) {
        gy_backend *ref = ref_open(acts[ia]);
        for (int i = 0; i < N_PROBLEM; i++) {
            problem p = kernel_problem(acts[ia], i);
            same_as_ref(ref, acts[ia], &p);
            problem_free(&p);
        }
        for (int t = 0; t < COUNT(types); t++) {
            problem p = problem_make(acts[ia], types[t], 3, 33, MOST_K, V_MIXED);
            same_as_ref(ref, acts[ia], &p);
            problem_free(&p);
        }
        gy_backend_destroy(ref);
    }
}

/* Weights and inputs at their ends, of the same and of opposite signs, side by side: no instruction's 16 bits overflow
 * unseen. */
static void test_ends(void **state) {
    (void)state;
    gy_backend *ref = ref_open(GY_F32);
    for (int t = 0; t < COUNT(types); t++) {
        problem p = problem_make(GY_F32, types[t], 6, 64, 32, V_ZERO);
        for (int i = 0; i < 64; i++) {
            float row[32];
            for (int j = 0; j < 32; j++) row[j] = i % 4 == 0 ? 1.0f : i % 4 == 1 ? -1.0f : (j + i) % 3 ? 1.0f : -1.0f;
            row[i / 4 % 32] *= i % 2 ? 1.0f : 0.99f;
            assert_int_equal(gy_quant_groups_row(p.data.p, types[t], i, row, GY_F32, 32), 0);
        }
        for (int r = 0; r < 6; r++)
            for (int j = 0; j < 32; j++)
                dt_put(p.x.p, GY_F32, r * 32 + j, r == 0 ? 1.0f : r == 1 ? -1.0f : (j + r) % r ? -1.0f : 1.0f);
        same_as_ref(ref, GY_F32, &p);
        check_definition(ref, GY_F32, &p);
        problem_free(&p);
    }
    gy_backend_destroy(ref);
}

/* Q8C's sum at its ends in rows of the greatest length: no kernel's 32 bits overflow. */
static void test_longest(void **state) {
    (void)state;
    enum { K = GY_CHANNEL_MOST_K, N = 4 };
    gy_backend *ref = ref_open(GY_F32);
    float *row = malloc(K * sizeof *row);
    problem p = {.w = {.dtype = GY_Q8C, .n = N, .k = K, .n_part = 1}, .n_row = 3};
    p.data = buf_make(gy_quant_bytes(GY_Q8C, N, K));
    memset(p.data.p, 0, p.data.n);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < K; j++) row[j] = i % 2 ? -1.0f : 1.0f;
        assert_int_equal(gy_quant_groups_row(p.data.p, GY_Q8C, i, row, GY_F32, K), 0);
    }
    p.w.part[0].data = p.data.p;
    p.w.part[0].n = N;
    p.x = buf_make((size_t)3 * K * 4);
    p.y = buf_make((size_t)3 * N * 4);
    for (int j = 0; j < 3 * K; j++) dt_put(p.x.p, GY_F32, j, j < K ? 1.0f : j < 2 * K ? -1.0f : j % 2 ? 1.0f : -1.0f);
    same_as_ref(ref, GY_F32, &p);
    run(ref, p.x.p, &p.w, 3, p.y.p, 0);
    for (int e = 0; e < 3 * N; e++) {
        float want = e / N == 2 ? 0.0f : (e / N + e) % 2 ? -(float)K : (float)K;
        assert_true(fabsf(dt_get(p.y.p, GY_F32, e) - want) <= (float)K * 0x1p-21f);
    }
    problem_free(&p);
    free(row);
    gy_backend_destroy(ref);
}

/* ---- backends --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t mask, needs;
} masks[] = {{"all", ~0u, 0},
             {"without vnni", ~(uint32_t)GY_CPU_AVX512_VNNI, GY_CPU_AVX2},
             {"avx2", GY_CPU_AVX2, GY_CPU_AVX2},
             {"plain", 0, 0}};

static gy_backend *backend_open(int i, gy_dtype act, int n_thread) {
    gy_cpu_opts o = {.act = act, .n_thread = n_thread, .limits = {.max_row = 64, .max_k = MOST_K, .max_len = 64}};
    gy_backend *be = NULL;
    gy_cpu_set_mask(masks[i].mask);
    int there = !(masks[i].needs & ~gy_cpu_features());
    gy_status st = there ? gy_backend_cpu_create(&o, NULL, &be) : GY_OK;
    gy_cpu_set_mask(~0u);
    assert_int_equal(st, GY_OK);
    return be;
}

/* --bench: what test_kernels compares, through backends. */
static void test_timed(void **state) {
    (void)state;
    for (int im = 0; im < 2 * COUNT(masks); im++) {
        gy_dtype act = acts[im % 2];
        gy_backend *be = backend_open(im / 2, act, BENCH_THREADS);
        for (int i = 0; be && i < N_PROBLEM; i++) {
            problem p = kernel_problem(act, i);
            double m = p.n_row, n = p.w.n, k = p.w.k;
            TIMED(be, i % 3, (double)p.data.n + m * (k + n) * (double)dt_bytes(act), 2 * m * n * k,
                  run(be, p.x.p, &p.w, p.n_row, p.y.p, 0));
            problem_free(&p);
        }
        bench_print((const char *const[]){"linear, weights Q8", "linear, weights Q4", "linear, weights Q8C", NULL},
                    masks[im / 2].name, gy_dtype_name(act));
        gy_backend_destroy(be);
    }
}

/* Many rows are one row at a time, with any number of threads, and ref's; rows move about. */
static void batch_is_alone(gy_dtype act, gy_dtype t, int n_row, int n, int k) {
    problem p = problem_make(act, t, n_row, n, k, V_UNIT);
    gy_backend *ref = ref_open(act);
    size_t x_bytes = (size_t)k * dt_bytes(act), y_bytes = (size_t)n * dt_bytes(act);
    buf want = buf_make(p.y.n);
    run(ref, p.x.p, &p.w, n_row, want.p, 0);
    for (int i = 0; i < COUNT(masks) * 3; i++) {
        gy_backend *be = backend_open(i / 3, act, i % 3 + 1);
        if (!be) continue;
        run(be, p.x.p, &p.w, n_row, p.y.p, 0);
        same_check(p.y.p, want.p, want.n, masks[i / 3].name);
        for (int r = 0; r < n_row; r++) {
            run(be, p.x.p + (size_t)r * x_bytes, &p.w, 1, p.y.p, 0);
            same_check(p.y.p, want.p + (size_t)r * y_bytes, y_bytes, "alone");
        }
        gy_backend_destroy(be);
    }
    buf_free(&want);
    gy_backend_destroy(ref);
    problem_free(&p);
}

static void test_batch_is_alone(void **state) {
    (void)state;
    for (int i = 0; i < 2 * COUNT(types); i++) {
        batch_is_alone(acts[i % 2], types[i / 2], 17, 257, 320);
        batch_is_alone(acts[i % 2], types[i / 2], 3, 33, 2050);
    }
}

/* A row that is not finite gives NaN in all of its outputs and nowhere else. */
static void test_not_finite(void **state) {
    (void)state;
    enum { M = 7, N = 70, K = 100 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 18; i++) {
        gy_dtype act = acts[i % 2];
        problem p = problem_make(act, types[i / 2 % 3], M, N, K, V_UNIT);
        gy_backend *ref = ref_open(act);
        dt_put(p.x.p, act, 3 * K + 40 + i, bad[i % 3]);
        same_as_ref(ref, act, &p);
        run(ref, p.x.p, &p.w, M, p.y.p, 0);
        for (int e = 0; e < M * N; e++) assert_int_equal(isnan(dt_get(p.y.p, act, e)) != 0, e / N == 3);
        gy_backend_destroy(ref);
        problem_free(&p);
    }
}

/* More rows than the scratch holds at once (16 MiB, 40 bytes for a group: 6553 rows of k 2048). */
static void test_many_rows(void **state) {
    (void)state;
    enum { M = 6700, N = 3, K = 2048 };
    problem p = problem_make(GY_BF16, GY_Q4, M, N, K, V_UNIT);
    gy_backend *be = backend_open(0, GY_BF16, 2);
    uint16_t alone[N];
    run(be, p.x.p, &p.w, M, p.y.p, 0);
    for (int r = 0; r < M; r += r < 6500 ? 500 : 7) {
        run(be, p.x.p + (size_t)r * K * 2, &p.w, 1, alone, 0);
        same_check(alone, p.y.p + (size_t)r * N * 2, sizeof alone, "row of a long batch");
    }
    gy_backend_destroy(be);
    problem_free(&p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest timed[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_timed)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition), cmocka_unit_test(test_means_the_product), cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_ends),       cmocka_unit_test(test_batch_is_alone),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_many_rows),  cmocka_unit_test(test_longest),
    };
    bench_open(argc, argv);
    if (bench.on) return cmocka_run_group_tests(timed, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
