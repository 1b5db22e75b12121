/* What only the CUDA backend has: sentences when it cannot be, copies larger than its staging memory, and products of
 * the sizes of real models, whose bits may not depend on the number of rows (cuBLASLt, src/ops/cuda/blaslt.cu). The
 * other op tests run on it as one more variant. Skipped where there is no GPU; the sentences are tested everywhere.
 */
#include "ops_fixture.h"

static void test_sentences(void **state) {
    (void)state;
    gy_err err = {0};
    gy_backend *be = NULL;
    int32_t n = -1;
    gy_cuda_opts o = {.act = GY_F16, .limits = {.max_row = 1, .max_k = 8, .max_len = 8}};
    assert_int_equal(gy_backend_cuda_create(&o, &err, &be), GY_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "activations in F16; use f32 or bf16"));
    o.act = GY_F32;
    o.device = 999;
    assert_int_equal(gy_backend_cuda_create(&o, &err, &be), GY_E_DEVICE);
    assert_non_null(strstr(err.msg, "device cuda"));
    print_message("    device 999: %s\n", err.msg);
    assert_null(be);
    assert_int_equal(gy_cuda_parse_device("cuda", &err, &n), GY_OK);
    assert_int_equal(n, 0);
    assert_int_equal(gy_cuda_parse_device("cuda:17", &err, &n), GY_OK);
    assert_int_equal(n, 17);
    assert_int_equal(gy_cuda_parse_device("cuda:3-stage", &err, &n), GY_OK);
    assert_int_equal(n, 3);
    assert_int_equal(gy_cuda_parse_device("cuda-stage", &err, &n), GY_OK);
    assert_int_equal(n, 0);
    assert_true(gy_cuda_without_stage("cuda-stage") && gy_cuda_without_stage("cuda:3-stage"));
    assert_false(gy_cuda_without_stage("cuda") || gy_cuda_without_stage("cuda:3") || gy_cuda_without_stage("-stage"));
    assert_int_equal(gy_cuda_parse_device("cuda:17", &err, &n), GY_OK);
    static const char *const wrong[] = {
        "cuda:", "cuda:-1", "cuda:1x", "cuda:1-stages", "cuda:-stage", "cudax", "cuda:99999999999999999999", "gpu"};
    for (int i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(gy_cuda_parse_device(wrong[i], &err, &n), GY_E_ARG);
        assert_non_null(strstr(err.msg, wrong[i]));
    }
    assert_int_equal(n, 17);
}

static gy_backend *open_gpu(gy_dtype act, int32_t max_row) {
    gy_cuda_opts o = {.act = act, .n_thread = 1, .limits = {.max_row = max_row, .max_k = 8192, .max_len = 4096}};
    gy_err err = {0};
    gy_backend *be = NULL;
    if (gy_backend_cuda_create(&o, &err, &be) < 0) fail_msg("%s", err.msg);
    return be;
}

/* Odd sizes across the segments of the ring, written and read back; memory starts at zero. */
static void test_copies(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    const size_t n = (40u << 20) + 12345;
    gy_backend *be = open_gpu(GY_F32, 16);
    unsigned char *a = malloc(n), *b = malloc(n), *dev = be->ops->alloc(be, n);
    assert_non_null(dev);
    be->ops->download(be, b, dev, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(b[i], 0);
    for (size_t i = 0; i < n; i++) a[i] = (unsigned char)(i * 2654435761u >> 13);
    size_t at = 0;
    for (size_t step = 1; at < n; at += step, step = step * 3 + 1) {
        if (step > n - at) step = n - at;
        be->ops->upload(be, dev + at, a + at, step);
    }
    memset(b, 0, n);
    be->ops->download(be, b, dev, n);
    assert_memory_equal(a, b, n);
    assert_true(be->ops->mem_available(be) > 1 << 20);
    gy_err err = {0};
    assert_null(be->ops->alloc(be, (size_t)1 << 50)); /* more than there is: the caller hears, nothing is broken */
    assert_int_equal(be->ops->sync(be, &err), GY_OK);
    be->ops->free(be, dev, n);
    gy_backend_destroy(be);
    free(a);
    free(b);
}

typedef struct shape {
    int32_t n, k, parts;
    int y_f32;
} shape;

/* Row r of a batch of n_row that begins at row first: the bits it has in the whole. */
static void same_rows(gy_backend *be, const gy_weight *w, int y_f32, const char *x, const char *whole, char *y_dev,
                      char *got, int32_t first, int32_t n_row) {
    size_t row = (size_t)w->n * (y_f32 ? 4 : 2);
    gy_linear_args a = {.x = x + (size_t)first * (size_t)w->k * 2, .w = w, .n_row = n_row, .y_f32 = y_f32, .y = y_dev};
    be->ops->linear(be, &a);
    be->ops->download(be, got, y_dev, (size_t)n_row * row);
    char what[96];
    snprintf(what, sizeof what, "%d x %d: rows %d to %d", w->n, w->k, first, first + n_row - 1);
    same_check(got, whole + (size_t)first * row, (size_t)n_row * row, what);
}

/* f64 sums of some elements: the product is a product. */
static void near_exact(const gy_weight *w, const uint16_t *x, const uint16_t *wt, const void *y, int y_f32, int32_t r) {
    for (int32_t i = 0; i < w->n; i += 997) {
        double sum = 0, size = 0;
        for (int32_t j = 0; j < w->k; j++) {
            double v = (double)gy_bf16_to_f32(x[(size_t)r * (size_t)w->k + (size_t)j]) *
                       (double)gy_bf16_to_f32(wt[(size_t)i * (size_t)w->k + (size_t)j]);
            sum += v;
            size += fabs(v);
        }
        double bound = gamma_of(w->k + 4) * size;
        bound += round_err(GY_BF16, fabs(sum) + bound);
        worst e = {0};
        close_check(&e, dt_get(y, y_f32 ? GY_F32 : GY_BF16, (int64_t)r * w->n + i), sum, bound, "product", i);
    }
}

static void pinned(gy_backend *be, const shape *s) {
    enum { M = 1100 };
    static const int32_t sizes[] = {1,  2,  3,  7,   8,   9,   15,  16,  17,  24,  31,   32,   33,  48,
                                    63, 64, 65, 100, 127, 128, 129, 256, 300, 513, 1000, 1024, 1025};
    int32_t m = s->y_f32 ? 260 : M;
    size_t nx = (size_t)m * (size_t)s->k, nw = (size_t)s->n * (size_t)s->k, ny = (size_t)m * (size_t)s->n;
    size_t y_bytes = ny * (s->y_f32 ? 4 : 2);
    uint16_t *x = malloc(nx * 2), *wt = malloc(nw * 2);
    char *whole = malloc(y_bytes), *got = malloc(y_bytes);
    for (size_t i = 0; i < nx; i++) x[i] = gy_f32_to_bf16(value_of(i % 7 ? V_UNIT : V_MIXED, GY_F32, 1, (uint32_t)i));
    uint32_t z = 12345;
    for (size_t i = 0; i < nw; i++) { /* philox for 100 million elements would take a minute */
        z = z * 1664525u + 1013904223u;
        wt[i] = gy_f32_to_bf16(((float)(z >> 8) * 0x1p-23f - 1.0f) * 0.05f);
    }
    char *dx = be->ops->alloc(be, nx * 2), *dw = be->ops->alloc(be, nw * 2), *dy = be->ops->alloc(be, y_bytes);
    be->ops->upload(be, dx, x, nx * 2);
    be->ops->upload(be, dw, wt, nw * 2);
    gy_weight w = {.dtype = GY_BF16, .n = s->n, .k = s->k, .n_part = s->parts};
    for (int i = 0; i < s->parts; i++) {
        w.part[i].n = s->n / s->parts;
        w.part[i].data = dw + (size_t)i * (size_t)w.part[i].n * (size_t)s->k * 2;
    }
    be->ops->prepare(be, &w, s->y_f32);
    be->ops->linear(be, &(gy_linear_args){.x = dx, .w = &w, .n_row = m, .y_f32 = s->y_f32, .y = dy});
    be->ops->download(be, whole, dy, y_bytes);
    near_exact(&w, x, wt, whole, s->y_f32, 0);
    near_exact(&w, x, wt, whole, s->y_f32, m - 1);
    for (int i = 0; i < COUNT(sizes); i++)
        if (sizes[i] <= m)
            same_rows(be, &w, s->y_f32, dx, whole, dy, got, (m - sizes[i]) / 3 / 8 * 8 + i % 2, sizes[i]);
    gy_err err = {0};
    if (be->ops->sync(be, &err) != GY_OK) fail_msg("%s", err.msg);
    be->ops->free(be, dx, nx * 2);
    be->ops->free(be, dw, nw * 2);
    be->ops->free(be, dy, y_bytes);
    free(x);
    free(wt);
    free(whole);
    free(got);
}

static void test_pinned_products(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    /* Ouro-1.4B, Nanbeige-3B, Huginn, two small ones; n no multiple of 16, k of 8 alone (half a panel of narrow.cu at
     * the end), with sums in f32 too; and two sizes that only the plain kernel takes. */
    static const shape shapes[] = {{6144, 2048, 3, 0},  {2048, 2048, 1, 0},  {11264, 2048, 2, 0}, {2048, 5632, 1, 0},
                                   {49152, 2048, 1, 1}, {5120, 3072, 1, 0},  {3072, 3072, 1, 0},  {21504, 3072, 2, 0},
                                   {3072, 10752, 1, 0}, {15840, 5280, 1, 0}, {5280, 5280, 1, 0},  {5280, 17920, 1, 0},
                                   {5280, 10560, 1, 0}, {768, 256, 3, 0},    {256, 512, 1, 0},    {1000, 2056, 1, 0},
                                   {1000, 2056, 1, 1},  {2040, 2040, 1, 0},  {24, 72, 1, 0},      {1001, 2056, 1, 0},
                                   {1000, 2052, 1, 0}};
    gy_backend *be = open_gpu(GY_BF16, 1100);
    for (int i = 0; i < COUNT(shapes); i++) {
        pinned(be, &shapes[i]);
        print_message("    %5d x %5d: 27 numbers of rows, the same bits\n", shapes[i].n, shapes[i].k);
    }
    gy_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sentences), cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_pinned_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
