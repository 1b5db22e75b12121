/* ref, which defines right, against values worked out by hand or by another route; and the backend objects: choice of
 * variant, refusals, failing allocations, memory functions.
 * The cpu variants run the same hand-made cases, so that one mistake in both would have to be made three times.
 */
#include "ops_fixture.h"

static gy_backend *backends[8];
static int n_backend;

static void backends_open(gy_dtype act) {
    n_backend = 0;
    backends[n_backend++] = ref_open(act);
    for (int iv = 0; iv < COUNT(variants); iv++)
        if (!variant_missing(&variants[iv])) backends[n_backend++] = cpu_open(&variants[iv], act, 2);
}

static void backends_close(void) {
    for (int i = 0; i < n_backend; i++) gy_backend_destroy(backends[i]);
}

static void near(double got, double want, double bound) {
    worst w = {0};
    close_check(&w, got, want, bound, "known value", 0);
}

static void test_linear_known(void **state) {
    (void)state;
    float x[2][3] = {{1, 2, 3}, {-1, 0.5f, 0}}, q[2][3] = {{1, 0, 0}, {0, 0, 2}}, k[1][3] = {{1, 1, 1}}, y[2][3];
    gy_weight w = {.dtype = GY_F32, .n = 3, .k = 3, .n_part = 2, .part = {{q, 2}, {k, 1}}};
    const float want[2][3] = {{1, 6, 6}, {-1, 0, -0.5f}};
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        backends[b]->ops->linear(backends[b], &(gy_linear_args){.x = x, .w = &w, .n_row = 2, .y = y});
        for (int i = 0; i < 6; i++) assert_true(y[i / 3][i % 3] == want[i / 3][i % 3]);
    }
    backends_close();
}

/* 1 + 2^-8 lies between two BF16 numbers (1 and 1 + 2^-7), a tie that goes to even; 1 + 3 * 2^-8 ties upwards. */
static void test_linear_rounds_once(void **state) {
    (void)state;
    uint16_t x[2][2], w0[2], y[2];
    gy_weight w = {.dtype = GY_BF16, .n = 1, .k = 2, .n_part = 1, .part = {{w0, 1}}};
    for (int i = 0; i < 2; i++) x[i][0] = gy_f32_to_bf16(1.0f), w0[i] = gy_f32_to_bf16(1.0f);
    x[0][1] = gy_f32_to_bf16(0x1p-8f);
    x[1][1] = gy_f32_to_bf16(3 * 0x1p-8f);
    backends_open(GY_BF16);
    for (int b = 0; b < n_backend; b++) {
        backends[b]->ops->linear(backends[b], &(gy_linear_args){.x = x, .w = &w, .n_row = 2, .y = y});
        assert_true(gy_bf16_to_f32(y[0]) == 1.0f);
        assert_true(gy_bf16_to_f32(y[1]) == 1.0f + 0x1p-6f);
    }
    backends_close();
}

/* RMS of (3, 4) with eps 0: sqrt(12.5). */
static void test_norm_known(void **state) {
    (void)state;
    float x[2] = {3, 4}, w[2] = {1, 10}, y[2];
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        backends[b]->ops->norm(backends[b], &(gy_norm_args){.x = x, .w = w, .n_row = 1, .n = 2, .y = y});
        near(y[0], 0.848528137423857, 3 * 0.85 * U_F32);
        near(y[1], 11.31370849898476, 3 * 11.4 * U_F32);
        backends[b]->ops->norm(backends[b], &(gy_norm_args){.x = x, .w = w, .eps = 87.5f, .n_row = 1, .n = 2, .y = y});
        near(y[0], 0.3, 3 * 0.3 * U_F32); /* sqrt(12.5 + 87.5) = 10 */
    }
    backends_close();
}

/* The first rounding can only be seen where it moves the second: over 128 weights it does for some. */
static void test_norm_rounds_twice(void **state) {
    (void)state;
    uint16_t x[2] = {gy_f32_to_bf16(3), gy_f32_to_bf16(4)}, w[2] = {gy_f32_to_bf16(1), 0}, y[2];
    double scale = 1 / sqrt(12.5);
    int n_differ = 0;
    backends_open(GY_BF16);
    for (int i = 0; i < 128; i++) {
        float weight = 1.0f + (float)i / 128;
        w[1] = gy_f32_to_bf16(weight);
        uint16_t twice = gy_f32_to_bf16(gy_bf16_round((float)(4 * scale)) * weight);
        n_differ += twice != gy_f32_to_bf16((float)(4 * scale * (double)weight));
        for (int b = 0; b < n_backend; b++) {
            backends[b]->ops->norm(backends[b], &(gy_norm_args){.x = x, .w = w, .n_row = 1, .n = 2, .y = y});
            assert_int_equal(y[1], twice);
        }
    }
    assert_true(n_differ > 10);
    backends_close();
}

static void test_residual_known(void **state) {
    (void)state;
    const float b0[2] = {3, 4}, w[2] = {1, 1};
    const double want[3][2] = {
        {13, 24}, {10.848528137423857, 21.131370849898477}, {0.6735660881960918, 1.2435066243620156}};
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        for (int kind = 0; kind < 3; kind++) {
            float h[2] = {10, 20};
            gy_residual_args a = {.h = h, .b = b0, .w = w, .kind = (gy_residual_kind)kind, .n_row = 1, .n = 2};
            backends[b]->ops->residual(backends[b], &a);
            for (int i = 0; i < 2; i++) near(h[i], want[kind][i], 5 * want[kind][i] * U_F32);
        }
    }
    backends_close();
}

static void test_silu_known(void **state) {
    (void)state;
    const float gu[8] = {0, 1, -1, 200, 3, 2, 1, 0.5f}; /* g then u */
    const double want[4] = {0, 1.4621171572600098, -0.2689414213699951, 100};
    float y[4];
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        backends[b]->ops->silu_mul(backends[b], &(gy_silu_mul_args){.gu = gu, .n_row = 1, .n_ff = 4, .y = y});
        for (int i = 0; i < 4; i++) near(y[i], want[i], 8 * fabs(want[i]) * U_F32);
    }
    backends_close();
}

static void test_gate_and_latent_diff_known(void **state) {
    (void)state;
    const float x[2][3] = {{1, 2, 2}, {0, 0, 0}}, prev[2][3] = {{1, 2, -1}, {3e-9f, 0, 4e-9f}}, w[3] = {0.5f, 1, -1};
    const float bias = 0.25f;
    float y[2];
    double diff[2];
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        gy_gate_args g = {.x = x, .w = w, .b = &bias, .n_row = 2, .n = 3, .y = y};
        gy_latent_diff_args d = {.x = x, .x_prev = prev, .n_row = 2, .n = 3, .y = diff};
        backends[b]->ops->gate(backends[b], &g);
        backends[b]->ops->latent_diff(backends[b], &d);
        assert_true(y[0] == 0.75f && y[1] == 0.25f);
        near(diff[0], 1.0, 1e-15);
        near(diff[1], 5.0, 1e-6); /* 5e-9 / max(0, 1e-9); the inputs are f32 */
    }
    backends_close();
}

/* Angle pos * inv_freq; table rows as they are; BF16 rounding of the result only. */
static void test_rope_table_known(void **state) {
    (void)state;
    const int32_t pos[2] = {0, 3};
    const float inv_freq[2] = {1.0f, 0.5f}, table[4][2][2] = {{{1, 2}, {3, 4}}, {{0}}, {{0}}, {{5, 6}, {7, 8.01f}}};
    float c[4], s[4];
    backends_open(GY_BF16);
    for (int b = 0; b < n_backend; b++) {
        gy_rope_table_args a = {.pos = pos, .inv_freq = inv_freq, .n_row = 2, .half = 2, .cos_out = c, .sin_out = s};
        backends[b]->ops->rope_table(backends[b], &a);
        assert_true(c[0] == 1 && s[0] == 0);
        near(c[2], -0.9899924966004454, U_F32);
        near(s[2], 0.1411200080598672, U_F32 / 4);
        near(c[3], 0.0707372016677029, U_F32 / 8);
        near(s[3], 0.9974949866040544, U_F32);
        a.round_bf16 = 1;
        backends[b]->ops->rope_table(backends[b], &a);
        assert_true(c[2] == -0.98828125f && s[3] == 0.99609375f); /* -253/256 and 255/256 */
        a.round_bf16 = 0;
        a.table = &table[0][0][0];
        backends[b]->ops->rope_table(backends[b], &a);
        assert_true(c[0] == 1 && s[0] == 2 && c[1] == 3 && s[1] == 4);
        assert_true(c[2] == 5 && s[2] == 6 && c[3] == 7 && s[3] == 8.01f);
    }
    backends_close();
}

/* A quarter turn: (a, b) -> (-b, a) for the pairs of either kind; biases come first; k and v reach their slot. */
static void test_rope_kv_known(void **state) {
    (void)state;
    const float bias_q[8] = {1, 0, 0, 0, 0, 0, 0, 0}, bias_k[4] = {0, 0, 0, 0.5f}, c[2] = {0, 1}, s[2] = {1, 0};
    const float want_q[2][8] = {{-3, 2, 2, 4, -7, 6, 5, 8}, {-2, 2, 3, 4, -6, 5, 7, 8}};
    const float want_k[2][4] = {{-11, 10, 9, 12.5f}, {-10, 9, 11, 12.5f}};
    const int32_t pos = 0, slot = 21, map = 21;
    const int64_t off = 0;
    static float pool[2 * 3 * 2 * 16 * 4];
    backends_open(GY_F32);
    for (int i = 0; i < 2 * n_backend; i++) {
        float qkv[16];
        for (int e = 0; e < 16; e++) qkv[e] = (float)(e + 1);
        memset(pool, 0, sizeof pool);
        gy_kv_view kv = {.base = pool, .map = &map, .dtype = GY_F32, .n_layer = 3, .n_head_kv = 1, .head_dim = 4};
        gy_rope_kv_args a = {.qkv = qkv,
                             .q_bias = bias_q,
                             .k_bias = bias_k,
                             .cos = c,
                             .sin = s,
                             .kind = i & 1 ? GY_ROPE_PAIRS : GY_ROPE_HALF,
                             .n_head = 2,
                             .kv = &kv,
                             .il = 2,
                             .rows = {1, &pos, &slot, &off}};
        backends[i / 2]->ops->rope_kv(backends[i / 2], &a);
        for (int e = 0; e < 8; e++) assert_true(qkv[e] == want_q[i & 1][e]);
        /* block 1, layer 2, K then V, slot 5 of the block */
        for (int e = 0; e < 4; e++) {
            float *k = pool + (((1 * 3 + 2) * 2 + 0) * 16 + 5) * 4, *v = pool + (((1 * 3 + 2) * 2 + 1) * 16 + 5) * 4;
            assert_true(k[e] == want_k[i & 1][e] && v[e] == (float)(13 + e));
            k[e] = v[e] = 0;
        }
        for (int e = 0; e < COUNT(pool); e++) assert_true(pool[e] == 0);
    }
    backends_close();
}

/* round_each: a cos and b sin are rounded before they are added. With a = b = 1 + 2^-7, cos = 1 + 2^-7, sin = 1: the
 * product 1 + 2^-6 + 2^-14 rounds to 1 + 2^-6, so a' = 2^-7 exactly; kept in f32 it is 2^-7 + 2^-14 = 129 * 2^-14. */
static void test_rope_rounding(void **state) {
    (void)state;
    const float c = 1 + 0x1p-7f, s = 1;
    const int32_t zero = 0;
    const int64_t off = 0;
    static uint16_t pool[2 * 16 * 2];
    backends_open(GY_BF16);
    for (int i = 0; i < 2 * n_backend; i++) {
        uint16_t qkv[6];
        for (int e = 0; e < 6; e++) qkv[e] = gy_f32_to_bf16(1 + 0x1p-7f);
        gy_kv_view kv = {.base = pool, .map = &zero, .dtype = GY_BF16, .n_layer = 1, .n_head_kv = 1, .head_dim = 2};
        gy_rope_kv_args a = {.qkv = qkv,
                             .cos = &c,
                             .sin = &s,
                             .kind = GY_ROPE_HALF,
                             .round_each = i & 1,
                             .n_head = 1,
                             .kv = &kv,
                             .rows = {1, &zero, &zero, &off}};
        backends[i / 2]->ops->rope_kv(backends[i / 2], &a);
        assert_true(gy_bf16_to_f32(qkv[0]) == (i & 1 ? 128 * 0x1p-14f : 129 * 0x1p-14f));
    }
    backends_close();
}

/* Equal keys: the mean of the values seen. A key that dominates: its value. Heads read their group's KV head, and a row
 * sees nothing behind its own position. */
static void test_attn_known(void **state) {
    (void)state;
    enum { D = 2, KV = 2 };
    static float pool[16 * 2 * KV * D];
    const int32_t pos[2] = {1, 2}, slot[2] = {9, 4}, map[4] = {3, 9, 4, 15};
    const int64_t off[2] = {0, 0};
    float q[2][4 * D], y[2][4 * D];
    gy_kv_view kv = {.base = pool, .map = map, .dtype = GY_F32, .n_layer = 1, .n_head_kv = KV, .head_dim = D};
    for (int j = 0; j < 4; j++) {
        for (int e = 0; e < KV * D; e++) {
            pool[gy_kv_offset(&kv, map[j], 0, 0) + e] = e < D ? 1 : (float)j; /* KV head 0: equal keys */
            pool[gy_kv_offset(&kv, map[j], 0, 1) + e] = (float)(10 * j + e) + (j == 3 ? 1e6f : 0);
        }
    }
    for (int i = 0; i < 2 * 4 * D; i++) q[i / 8][i % 8] = i % 8 < 4 ? 1.0f : 1000.0f;
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        gy_attn_args a = {
            .q = q, .q_stride = 4 * D, .n_head = 4, .scale = 0.5f, .kv = &kv, .rows = {2, pos, slot, off}, .y = y};
        backends[b]->ops->attn(backends[b], &a);
        for (int h = 0; h < 4; h++) {
            for (int e = 0; e < D; e++) {
                near(y[0][h * D + e], h < 2 ? 5 + e : 10 + 2 + e, 20 * 16 * U_F32);
                near(y[1][h * D + e], h < 2 ? 10 + e : 20 + 2 + e, 40 * 16 * U_F32);
            }
        }
    }
    backends_close();
}

/* KV in I8: rows of three positions as rope_kv leaves them, and attention over them. KV head 0 has equal keys: the mean
 * of the values; in head 1 the last position's key dominates. */
static void test_kv_i8_known(void **state) {
    (void)state;
    enum { D = 4, KV = 2, N = 3 };
    static char pool[2 * 16 * KV * (D + GY_KV_SCALE_BYTES)];
    const float form[D] = {127, -127, 64, 0.5f}, c[D / 2 * N] = {1, 1, 1, 1, 1, 1}, s[D / 2 * N] = {0};
    const int8_t whole[D] = {127, -127, 64, 0};
    const int32_t pos[N] = {0, 1, 2}, slot[N] = {9, 4, 15};
    const int64_t off[N] = {0};
    gy_kv_view kv = {.base = pool, .map = slot, .dtype = GY_I8, .n_layer = 1, .n_head_kv = KV, .head_dim = D};
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        if (!(backends[b]->ops->kv_types >> GY_I8 & 1)) continue;
        float qkv[N][3 * KV * D], y[N][KV * D];
        for (int j = 0; j < N; j++) { /* sizes of V: 1, 2, 4; of K: 1 in head 0; 1, 2, 4 in head 1 */
            for (int e = 0; e < KV * D; e++) {
                qkv[j][e] = form[e % D];
                qkv[j][KV * D + e] = form[e % D] * (e < D ? 1.0f : (float)(1 << j));
                qkv[j][2 * KV * D + e] = form[e % D] * (float)(1 << j);
            }
        }
        gy_rope_kv_args r = {.qkv = qkv, .cos = c, .sin = s, .n_head = KV, .kv = &kv, .rows = {N, pos, slot, off}};
        memset(pool, 0x55, sizeof pool);
        backends[b]->ops->rope_kv(backends[b], &r);
        for (int i = 0; i < 2 * N * KV; i++) {
            const char *row = pool + gy_kv_offset(&kv, slot[i / 2 / KV], 0, i % 2);
            float scale = i % 2 || i / 2 % KV ? (float)(1 << i / 2 / KV) : 1, got;
            memcpy(&got, row + KV * D + i / 2 % KV * GY_KV_SCALE_BYTES, sizeof got);
            assert_true(got == scale);
            assert_memory_equal(row + i / 2 % KV * D, whole, D);
        }
        gy_attn_args a = {.q = qkv, .q_stride = 3 * KV * D, .n_head = KV, .scale = 0.5f, .kv = &kv, .y = y};
        a.rows = r.rows;
        backends[b]->ops->attn(backends[b], &a);
        for (int j = 0; j < N; j++)
            for (int e = 0; e < KV * D; e++) {
                double mean = e < D ? ((1 << (j + 1)) - 1) / (j + 1.0) : 1 << j;
                near(y[j][e], mean * whole[e % D], 127 * 4 * 16 * U_F32);
            }
    }
    backends_close();
}

/* By the other direction: Phi of the draw, through erfc, gives back the Philox words' place between Phi(-3) and Phi(3).
 * Zero rows are zero; the second draw of a block is words 2 and 3. */
static void test_latent_init_known(void **state) {
    (void)state;
    enum { N = 301 };
    const uint64_t seed[2] = {0x123456789abcdefull, 5};
    const int32_t pos[2] = {17, 17};
    const uint8_t zero[2] = {0, 1};
    float y[2 * N];
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        gy_latent_init_args a = {
            .seed = seed, .pos = pos, .zero = zero, .std = 0.5f, .mult = 4.0f, .n_row = 2, .n = N, .y = y};
        double sum = 0;
        backends[b]->ops->latent_init(backends[b], &a);
        for (int i = 0; i < N; i++) {
            uint32_t w[4];
            gy_rand_block(seed[0], 0, 17, GY_RAND_LATENT, (uint32_t)i / 2, w);
            double u = ((double)w[i % 2 * 2] * 0x1p-32) + (double)w[i % 2 * 2 + 1] * 0x1p-64;
            double p = 0.5 * erfc(-(double)y[i] / 2 / sqrt(2.0)), tail = 0.5 * erfc(3 / sqrt(2.0));
            near((p - tail) / (1 - 2 * tail), u, 0.25 * 2 * U_F32); /* one rounding of y; |x| pdf(x) < 0.25 */
            assert_true(fabsf(y[i]) <= 6.0f && y[N + i] == 0.0f);
            sum += (double)y[i];
        }
        assert_true(fabs(sum / N) < 0.6); /* 5 standard errors of the mean: 2 / sqrt(301) * 5 = 0.58 */
    }
    backends_close();
}

/* ---- the objects ----------------------------------------------------------------------------------------------- */

static const gy_cpu_opts usual = {.act = GY_F32, .n_thread = 2, .limits = {.max_row = 4, .max_k = 64, .max_len = 64}};

static void refused(gy_cpu_opts o, gy_status want, const char *words) {
    gy_err err = {0};
    gy_backend *be = NULL;
    assert_int_equal(gy_backend_cpu_create(&o, &err, &be), want);
    assert_null(be);
    if (!strstr(err.msg, words)) print_error("message: %s\n", err.msg);
    assert_non_null(strstr(err.msg, words));
}

static void test_refusals(void **state) {
    (void)state;
    gy_cpu_opts o = usual;
    o.act = GY_F16;
    refused(o, GY_E_UNSUPPORTED, "F16");
    o = usual;
    o.n_thread = -3;
    refused(o, GY_E_ARG, "-3 threads");
    o = usual;
    o.limits.max_k = 0;
    refused(o, GY_E_ARG, "max_k 0");
    gy_err err = {0};
    gy_backend *be = NULL;
    assert_int_equal(gy_backend_ref_create(GY_F16, &err, &be), GY_E_UNSUPPORTED);
    assert_null(be);
    assert_non_null(strstr(err.msg, "F16"));
}

static int64_t live_bytes(void) {
    gy_mem_stats s;
    int64_t sum = 0;
    gy_mem_get_stats(&s);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += s.live_bytes[i];
    return sum;
}

/* The n-th allocation fails, n rising until creation succeeds: an error each time, nothing kept. */
static void test_failing_allocations(void **state) {
    (void)state;
    if (variant_missing(&variants[1])) return;
    int64_t before = live_bytes();
    int n = 1;
    for (gy_status st = GY_E_NOMEM; st != GY_OK; n++) {
        gy_backend *be = NULL;
        gy_err err = {0};
        gy_mem_fail_after(n);
        st = gy_backend_cpu_create(&usual, &err, &be);
        gy_mem_fail_after(0);
        if (st != GY_OK) assert_true(st == GY_E_NOMEM && !be && err.msg[0]);
        gy_backend_destroy(be);
        assert_int_equal(live_bytes(), before);
        assert_true(n < 100);
    }
    assert_true(n > 3); /* object, scratch and team are three at least */
    gy_backend *be = NULL;
    gy_mem_fail_after(1);
    assert_int_equal(gy_backend_ref_create(GY_F32, NULL, &be), GY_E_NOMEM);
    gy_mem_fail_after(0);
    assert_null(be);
    gy_backend_destroy(NULL);
}

static void test_memory(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 100, 65535, 65536, 3000000};
    backends_open(GY_F32);
    for (int b = 0; b < n_backend; b++) {
        gy_backend *be = backends[b];
        assert_true(be->is_host && be->act == GY_F32);
        int64_t before = live_bytes();
        for (int i = 0; i < COUNT(sizes); i++) {
            unsigned char *p = be->ops->alloc(be, sizes[i]), back = 0;
            assert_non_null(p);
            for (size_t e = 0; e < sizes[i]; e++) assert_int_equal(p[e], 0);
            be->ops->upload(be, p, "x", sizes[i] ? 1 : 0);
            be->ops->download(be, &back, p, sizes[i] ? 1 : 0);
            assert_int_equal(back, sizes[i] ? 'x' : 0);
            be->ops->free(be, p, sizes[i]);
            assert_int_equal(live_bytes(), before);
        }
        gy_mem_fail_after(1);
        assert_null(be->ops->alloc(be, 5));
        gy_mem_fail_after(1);
        assert_null(be->ops->alloc(be, 1 << 20));
        gy_mem_fail_after(0);
        be->ops->free(be, NULL, 7);
        assert_int_equal(be->ops->sync(be, NULL), GY_OK);
    }
    backends_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_known),
        cmocka_unit_test(test_linear_rounds_once),
        cmocka_unit_test(test_norm_known),
        cmocka_unit_test(test_norm_rounds_twice),
        cmocka_unit_test(test_residual_known),
        cmocka_unit_test(test_silu_known),
        cmocka_unit_test(test_gate_and_latent_diff_known),
        cmocka_unit_test(test_rope_table_known),
        cmocka_unit_test(test_rope_kv_known),
        cmocka_unit_test(test_rope_rounding),
        cmocka_unit_test(test_attn_known),
        cmocka_unit_test(test_kv_i8_known),
        cmocka_unit_test(test_latent_init_known),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
