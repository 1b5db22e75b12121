/* The operations that go row by row: every variant against ref. Where the arithmetic is element-wise and free of
 * transcendentals, bits must be equal; where a sum or an exp is involved, a bound is computed. Then: rows alone = rows
 * in a batch = any number of threads, bit for bit, and NaN stays in its row.
 */
#include "ops_fixture.h"

#include <math.h>

static const int lengths[] = {1, 7, 12, 31, 33, 60, 63, 64, 65, 96, 100, 128, 176, 257, 640};
static const int rows_of[] = {1, 2, 3, 5, 16, 17, 64};

/* One operation on n_row rows of n elements: inputs a, b (n each a row; silu reads 2 n from a), w [n]; y: n_out
 * elements of type out a row. from: first row, so that rows can be run alone. */
typedef struct inputs {
    gy_dtype act;
    int n, n_row;
    const buf *a, *b, *w;
} inputs;

typedef struct op_test {
    const char *name;
    void (*run)(gy_backend *be, const inputs *in, int from, int n_row, void *y);
    int in_scale;  /* a holds in_scale * n elements a row */
    int out_scale; /* y holds out_scale * n elements a row, or 1 f32 (0) or 1 f64 (-1) */
    int exact;     /* ref's bits */
    double (*bound)(gy_dtype act, const inputs *in, int r, int i, double want);
    int flop; /* of an element, for --bench: sums, products, quotients; an exp is one */
} op_test;

static void *at(const buf *b, gy_dtype t, int64_t i) {
    return b->p + i * (int64_t)dt_bytes(t);
}

static void run_norm(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_norm_args a = {.x = at(in->a, in->act, (int64_t)from * in->n),
                      .w = in->w->p,
                      .eps = 1e-6f,
                      .n_row = n_row,
                      .n = in->n,
                      .y = y};
    be->ops->norm(be, &a);
}

static void run_norm_in_place(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    memcpy(y, at(in->a, in->act, (int64_t)from * in->n), (size_t)n_row * (size_t)in->n * dt_bytes(in->act));
    gy_norm_args a = {.x = y, .w = in->w->p, .eps = 1e-6f, .n_row = n_row, .n = in->n, .y = y};
    be->ops->norm(be, &a);
}

static void run_residual(gy_backend *be, const inputs *in, int from, int n_row, void *y, gy_residual_kind kind) {
    memcpy(y, at(in->a, in->act, (int64_t)from * in->n), (size_t)n_row * (size_t)in->n * dt_bytes(in->act));
    gy_residual_args a = {.h = y,
                          .b = at(in->b, in->act, (int64_t)from * in->n),
                          .w = in->w->p,
                          .kind = kind,
                          .eps = 1e-5f,
                          .n_row = n_row,
                          .n = in->n};
    be->ops->residual(be, &a);
}

static void run_residual_pre(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    run_residual(be, in, from, n_row, y, GY_RESIDUAL_PRE);
}

static void run_residual_branch(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    run_residual(be, in, from, n_row, y, GY_RESIDUAL_BRANCH);
}

static void run_residual_sum(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    run_residual(be, in, from, n_row, y, GY_RESIDUAL_SUM);
}

static void run_silu_mul(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_silu_mul_args a = {.gu = at(in->a, in->act, (int64_t)from * 2 * in->n), .n_row = n_row, .n_ff = in->n, .y = y};
    be->ops->silu_mul(be, &a);
}

static void run_concat(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_concat_args a = {.a = at(in->a, in->act, (int64_t)from * in->n),
                        .b = at(in->b, in->act, (int64_t)from * in->n),
                        .n_row = n_row,
                        .na = in->n,
                        .nb = in->n,
                        .y = y};
    be->ops->concat(be, &a);
}

static void run_gate(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_gate_args a = {.x = at(in->a, in->act, (int64_t)from * in->n),
                      .w = in->w->p,
                      .b = in->b->p,
                      .n_row = n_row,
                      .n = in->n,
                      .y = y};
    be->ops->gate(be, &a);
}

static void run_latent_diff(gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_latent_diff_args a = {.x = at(in->a, in->act, (int64_t)from * in->n),
                             .x_prev = at(in->b, in->act, (int64_t)from * in->n),
                             .n_row = n_row,
                             .n = in->n,
                             .y = y};
    be->ops->latent_diff(be, &a);
}

/* ---- bounds ---------------------------------------------------------------------------------------------------- */

/* The f64 mean of squares differs in its last bits, so its f32 value by one step at most, the scale by two. In BF16
 * such a step may cross a rounding boundary of the first rounding (one step of it) and so of the second. */
static double bound_norm(gy_dtype act, const inputs *in, int r, int i, double want) {
    (void)in, (void)r, (void)i;
    double first = act == GY_BF16 ? 2 * U_BF16 : 4 * U_F32;
    return fabs(want) * first * (1 + first) + 2 * round_err(act, want);
}

/* As the norm, then a sum: the norm's result is what want - h is, up to the last rounding. */
static double bound_branch(gy_dtype act, const inputs *in, int r, int i, double want) {
    double h = dt_get(in->a->p, act, (int64_t)r * in->n + i);
    double branch = fabs(want - h) + round_err(act, want);
    return bound_norm(act, in, r, i, branch) + 2 * round_err(act, want);
}

/* exp within 2 ulp on either side moves 1 + exp by as much, then a sum and a quotient; where exp overflows in one and
 * not yet in the other, |silu| is below 89 / FLT_MAX. */
static double bound_silu(gy_dtype act, const inputs *in, int r, int i, double want) {
    double u = dt_get(in->a->p, act, ((int64_t)r * 2 + 1) * in->n + i);
    double first = act == GY_BF16 ? 2 * U_BF16 : (2 * 4 + 4) * U_F32;
    return fabs(want) * first * (1 + first) + (89.0 / (double)FLT_MAX + TINY_BF16) * fabs(u) + 2 * round_err(act, want);
}

static double bound_gate(gy_dtype act, const inputs *in, int r, int i, double want) {
    double size = fabs((double)dt_get(in->b->p, act, 0));
    (void)i;
    for (int j = 0; j < in->n; j++)
        size += fabs((double)dt_get(in->a->p, act, (int64_t)r * in->n + j) * dt_get(in->w->p, act, j));
    double err = 2 * gamma_of(2 * in->n + 1) * size + in->n * TINY_F32;
    return err + (act == GY_BF16 ? 2 * round_err(act, fabs(want) + err) : 0);
}

static double bound_latent_diff(gy_dtype act, const inputs *in, int r, int i, double want) {
    (void)act, (void)r, (void)i;
    return fabs(want) * (2 * in->n + 8) * 0x1p-53;
}

static const op_test op_tests[] = {
    {"norm", run_norm, 1, 1, 0, bound_norm, 4},
    {"norm in place", run_norm_in_place, 1, 1, 0, bound_norm, 4},
    {"residual pre", run_residual_pre, 1, 1, 1, NULL, 1},
    {"residual branch", run_residual_branch, 1, 1, 0, bound_branch, 5},
    {"residual sum", run_residual_sum, 1, 1, 0, bound_norm, 5},
    {"silu_mul", run_silu_mul, 2, 1, 0, bound_silu, 5},
    {"concat", run_concat, 1, 2, 1, NULL, 0},
    {"gate", run_gate, 1, 0, 0, bound_gate, 2},
    {"latent_diff", run_latent_diff, 1, -1, 0, bound_latent_diff, 5},
};

static size_t out_bytes(const op_test *op, const inputs *in) {
    if (op->out_scale < 0) return sizeof(double);
    if (op->out_scale == 0) return sizeof(float);
    return (size_t)(op->out_scale * in->n) * dt_bytes(in->act);
}

static double out_at(const op_test *op, const inputs *in, const void *y, int64_t i) {
    double d;
    if (op->out_scale > 0) return dt_get(y, in->act, i);
    if (op->out_scale == 0) return dt_get(y, GY_F32, i);
    memcpy(&d, (const char *)y + i * 8, 8);
    return d;
}

static void guarded(const op_test *op, gy_backend *be, const inputs *in, int from, int n_row, void *y) {
    gy_mem_guard_begin();
    op->run(be, in, from, n_row, y);
    gy_mem_guard_end();
}

static void compare(const op_test *op, gy_backend *ref, gy_backend *be, const inputs *in, worst *w) {
    size_t row = out_bytes(op, in);
    buf want = buf_make(row * (size_t)in->n_row), got = buf_make(row * (size_t)in->n_row);
    char what[64];
    snprintf(what, sizeof what, "%s %s m %d n %d", op->name, gy_dtype_name(in->act), in->n_row, in->n);
    guarded(op, ref, in, 0, in->n_row, want.p);
    guarded(op, be, in, 0, in->n_row, got.p);
    if (op->exact) same_check(got.p, want.p, got.n, what);
    double elem = (double)in->n * in->n_row; /* the second input, where there is one, is left out */
    TIMED(be, 0, op->in_scale * elem * (double)dt_bytes(in->act) + (double)got.n, op->flop * elem,
          guarded(op, be, in, 0, in->n_row, got.p));
    int n = op->out_scale > 0 ? op->out_scale * in->n : 1;
    for (int r = 0; r < in->n_row && !op->exact; r++) {
        for (int i = 0; i < n; i++) {
            double v = out_at(op, in, want.p, (int64_t)r * n + i);
            close_check(w, out_at(op, in, got.p, (int64_t)r * n + i), v, op->bound(in->act, in, r, i, v), what,
                        (int64_t)r * n + i);
        }
    }
    w->n += op->exact ? (int64_t)n * in->n_row : 0;
    buf_free(&want);
    buf_free(&got);
}

static void with_inputs(const op_test *op, gy_dtype act, int n, int n_row, value_kind kind, buf b[3], inputs *in) {
    b[0] = buf_values(act, (int64_t)op->in_scale * n * n_row, kind, 31);
    b[1] = buf_values(act, (int64_t)n * n_row, kind, 32);
    b[2] = buf_values(act, n, kind == V_HUGE ? V_UNIT : kind, 33);
    *in = (inputs){.act = act, .n = n, .n_row = n_row, .a = &b[0], .b = &b[1], .w = &b[2]};
}

static void each_op(void (*fn)(const op_test *op, const variant *v, gy_dtype act)) {
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int io = 0; io < COUNT(op_tests); io++)
            for (int ia = 0; ia < 2; ia++) fn(&op_tests[io], &variants[iv], acts[ia]);
    }
}

static void sweep(const op_test *op, const variant *v, gy_dtype act) {
    gy_backend *ref = ref_open(act), *be = cpu_open(v, act, 2);
    worst w = {0};
    for (int i = 0; i < COUNT(lengths) * V_KIND_COUNT; i++) {
        buf b[3];
        inputs in;
        with_inputs(op, act, lengths[i % COUNT(lengths)], rows_of[i % COUNT(rows_of)], (value_kind)(i / COUNT(lengths)),
                    b, &in);
        compare(op, ref, be, &in, &w);
        for (int e = 0; e < 3; e++) buf_free(&b[e]);
    }
    worst_print(op->name, v->name, act, &w);
    bench_print((const char *const[]){op->name, NULL}, v->name, gy_dtype_name(act));
    gy_backend_destroy(ref);
    gy_backend_destroy(be);
}

static void test_against_ref(void **state) {
    (void)state;
    each_op(sweep);
}

static void equalities(const op_test *op, const variant *v, gy_dtype act) {
    enum { M = 64, N = 600 };
    buf b[3];
    inputs in;
    with_inputs(op, act, N, M, V_UNIT, b, &in);
    size_t row = out_bytes(op, &in);
    buf first = buf_make(row * M), again = buf_make(row * M);
    for (int n_thread = 1; n_thread <= 3; n_thread++) {
        gy_backend *be = cpu_open(v, act, n_thread);
        if (n_thread == 1) guarded(op, be, &in, 0, M, first.p);
        guarded(op, be, &in, 0, M, again.p);
        same_check(again.p, first.p, first.n, op->name);
        for (int r = M - 1; r >= 0; r--) guarded(op, be, &in, r, 1, again.p + (size_t)r * row);
        same_check(again.p, first.p, first.n, op->name);
        gy_backend_destroy(be);
    }
    for (int e = 0; e < 3; e++) buf_free(&b[e]);
    buf_free(&first);
    buf_free(&again);
}

static void test_equalities(void **state) {
    (void)state;
    each_op(equalities);
}

/* NaN in the last element of row 1, infinity in row 3: as ref there, and nothing elsewhere. */
static void no_leak(const op_test *op, const variant *v, gy_dtype act) {
    enum { M = 5, N = 45 };
    buf b[3];
    inputs in;
    with_inputs(op, act, N, M, V_UNIT, b, &in);
    size_t row = out_bytes(op, &in);
    buf clean = buf_make(row * M), got = buf_make(row * M), want = buf_make(row * M);
    gy_backend *ref = ref_open(act), *be = cpu_open(v, act, 2);
    guarded(op, be, &in, 0, M, clean.p);
    dt_put(b[0].p, act, (int64_t)2 * op->in_scale * N - 1, NAN);
    dt_put(b[0].p, act, (int64_t)3 * op->in_scale * N, INFINITY);
    guarded(op, be, &in, 0, M, got.p);
    guarded(op, ref, &in, 0, M, want.p);
    for (int r = 0; r < M; r += r == 2 ? 2 : r == 0 ? 2 : 1)
        same_check(got.p + (size_t)r * row, clean.p + (size_t)r * row, row, op->name);
    int n = op->out_scale > 0 ? op->out_scale * N : 1;
    for (int i = 0; i < M * n; i++) {
        double a = out_at(op, &in, got.p, i), c = out_at(op, &in, want.p, i);
        assert_int_equal(isnan(a), isnan(c));
        if (isinf(c)) assert_true(a == c);
    }
    int last = op->out_scale > 0 ? 2 * n - (op->out_scale == 2 ? N : 0) - 1 : 1;
    assert_true(isnan(out_at(op, &in, got.p, last)));
    for (int e = 0; e < 3; e++) buf_free(&b[e]);
    buf_free(&clean);
    buf_free(&got);
    buf_free(&want);
    gy_backend_destroy(ref);
    gy_backend_destroy(be);
}

static void test_no_leak(void **state) {
    (void)state;
    each_op(no_leak);
}

/* A fused operation gives the bits of its parts, in both of its outputs. */
static void fused_case(gy_backend *be, gy_residual_kind kind, int n, int n_row, value_kind values) {
    size_t bytes = (size_t)n * (size_t)n_row * dt_bytes(be->act);
    buf h = buf_values(be->act, (int64_t)n * n_row, values, 71),
        b = buf_values(be->act, (int64_t)n * n_row, values, 72);
    buf w = buf_values(be->act, n, V_UNIT, 73), w2 = buf_values(be->act, n, V_UNIT, 74);
    buf h2 = buf_bytes(h.p, bytes), y = buf_make(bytes), y2 = buf_make(bytes);
    gy_residual_args r = {.h = h.p, .b = b.p, .w = w.p, .kind = kind, .eps = 1e-5f, .n_row = n_row, .n = n};
    be->ops->residual(be, &r);
    be->ops->norm(be, &(gy_norm_args){.x = h.p, .w = w2.p, .eps = 1e-6f, .n_row = n_row, .n = n, .y = y.p});
    gy_residual_norm_args fused = {.r = r, .w = w2.p, .eps = 1e-6f, .y = y2.p};
    fused.r.h = h2.p;
    be->ops->residual_norm(be, &fused);
    same_check(h2.p, h.p, bytes, "residual of residual_norm");
    same_check(y2.p, y.p, bytes, "norm of residual_norm");
    buf *all[] = {&h, &b, &w, &w2, &h2, &y, &y2};
    for (int i = 0; i < COUNT(all); i++) buf_free(all[i]);
}

static void test_fused(void **state) {
    (void)state;
    static const int more[] = {192, 1000, 2048, 2056, 4096, 5280, 6144, 6152};
    for (int iv = 0; iv < 2 * COUNT(variants); iv++) {
        if (variant_missing(&variants[iv / 2])) continue;
        gy_backend *be = cpu_open(&variants[iv / 2], acts[iv % 2], 2);
        for (int i = 0; be->ops->residual_norm && i < 3 * (COUNT(lengths) + COUNT(more)); i++) {
            int n = i / 3 < COUNT(lengths) ? lengths[i / 3] : more[i / 3 - COUNT(lengths)];
            fused_case(be, (gy_residual_kind)(i % 3), n, 1 + i % 5, i % 4 == 3 ? V_MIXED : V_UNIT);
        }
        gy_backend_destroy(be);
    }
}

/* ---- embed, gather, scatter, the cos and sin table, the initial state: ref's bits ------------------------------ */

static void embed_case(gy_backend *ref, gy_backend *be, gy_dtype t, int n, float scale) {
    enum { VOCAB = 11, M = 6 };
    const int32_t ids[M] = {10, 0, 3, 3, 7, 4};
    buf part[2] = {buf_values(t, 4 * n, V_MIXED, 41), buf_values(t, 7 * n, V_UNIT, 42)};
    gy_weight w = {.dtype = t, .n = VOCAB, .k = n, .n_part = 2, .part = {{part[0].p, 4}, {part[1].p, 7}}};
    if (t == GY_F32) memset(part[1].p, 0xff, 4); /* a NaN that rounding to BF16 by addition alone would turn into -0 */
    buf y[2] = {buf_make((size_t)(M * n) * dt_bytes(be->act)), buf_make((size_t)(M * n) * dt_bytes(be->act))};
    gy_backend *both[2] = {ref, be};
    for (int i = 0; i < 2; i++) {
        gy_embed_args a = {.table = &w, .ids = ids, .scale = scale, .n_row = M, .y = y[i].p};
        both[i]->ops->embed(both[i], &a);
    }
    same_check(y[1].p, y[0].p, y[0].n, "embed");
    gy_embed_args a = {.table = &w, .ids = ids, .scale = scale, .n_row = M, .y = y[1].p};
    TIMED(be, 0, (double)y[1].n + (double)(M * n) * (double)dt_bytes(t), (double)(M * n), be->ops->embed(be, &a));
    for (int r = 0; r < M && scale == 1.0f && t == be->act; r++) {
        const buf *from = &part[ids[r] >= 4];
        size_t row = (size_t)n * dt_bytes(t);
        const unsigned char *src = from->p + (size_t)(ids[r] >= 4 ? ids[r] - 4 : ids[r]) * row;
        same_check(y[1].p + (size_t)r * row, src, row, "embed: exact copy");
    }
    for (int i = 0; i < 2; i++) {
        buf_free(&y[i]);
        buf_free(&part[i]);
    }
}

static void move_case(gy_backend *be, int n) {
    enum { M = 9 };
    int32_t idx[M], back[M];
    for (int r = 0; r < M; r++) idx[r] = (r * 4 + 2) % M;
    for (int r = 0; r < M; r++) back[r] = idx[r];
    buf x = buf_values(be->act, M * n, V_UNIT, 51), y = buf_make(x.n), z = buf_make(x.n);
    gy_move_args to = {.x = x.p, .idx = idx, .n_row = M, .n = n, .y = y.p};
    be->ops->gather(be, &to);
    size_t row = x.n / M;
    for (int r = 0; r < M; r++) same_check(y.p + (size_t)r * row, x.p + (size_t)idx[r] * row, row, "gather");
    gy_move_args from = {.x = y.p, .idx = back, .n_row = M, .n = n, .y = z.p};
    be->ops->scatter(be, &from);
    same_check(z.p, x.p, x.n, "scatter undoes gather");
    TIMED(be, 1, 2 * (double)x.n, 0, be->ops->gather(be, &to));
    TIMED(be, 2, 2 * (double)x.n, 0, be->ops->scatter(be, &from));
    buf_free(&x);
    buf_free(&y);
    buf_free(&z);
}

static void rope_table_case(gy_backend *ref, gy_backend *be, int half, int bits) {
    enum { M = 40, MAX_POS = 64 };
    int32_t pos[M];
    for (int r = 0; r < M; r++) pos[r] = bits & 1 ? r * 13 % MAX_POS : r * 1601;
    buf freq = buf_values(GY_F32, half, V_UNIT, 61), table = buf_values(GY_F32, MAX_POS * half * 2, V_UNIT, 62);
    buf out[4];
    gy_backend *both[2] = {ref, be};
    for (int i = 0; i < 4; i++) out[i] = buf_make((size_t)(M * half) * 4);
    for (int i = 0; i < 2; i++) {
        gy_rope_table_args a = {.pos = pos,
                                .inv_freq = (const float *)freq.p,
                                .table = bits & 1 ? (const float *)table.p : NULL,
                                .n_row = M,
                                .half = half,
                                .round_bf16 = bits >> 1,
                                .cos_out = (float *)out[2 * i].p,
                                .sin_out = (float *)out[2 * i + 1].p};
        both[i]->ops->rope_table(both[i], &a);
        if (i) TIMED(be, 3, 8.0 * M * half, 3.0 * M * half, be->ops->rope_table(be, &a)); /* an angle, two values */
    }
    same_check(out[2].p, out[0].p, out[0].n, "cos");
    same_check(out[3].p, out[1].p, out[1].n, "sin");
    for (int i = 0; i < 4; i++) buf_free(&out[i]);
    buf_free(&freq);
    buf_free(&table);
}

static void latent_init_case(gy_backend *ref, gy_backend *be, int n) {
    enum { M = 24 };
    uint64_t seed[M];
    int32_t pos[M];
    uint8_t zero[M];
    for (int r = 0; r < M; r++) seed[r] = 77u + (uint64_t)(r / 3), pos[r] = r % 5, zero[r] = r % 7 == 6;
    buf y[2] = {buf_make((size_t)(M * n) * dt_bytes(be->act)), buf_make((size_t)(M * n) * dt_bytes(be->act))};
    gy_backend *both[2] = {ref, be};
    for (int i = 0; i < 2; i++) {
        gy_latent_init_args a = {
            .seed = seed, .pos = pos, .zero = zero, .std = 0.0087f, .mult = 72.66f, .n_row = M, .n = n, .y = y[i].p};
        both[i]->ops->latent_init(both[i], &a);
        if (i) TIMED(be, 4, (double)y[1].n, 0, be->ops->latent_init(be, &a));
    }
    same_check(y[1].p, y[0].p, y[0].n, "latent_init");
    buf_free(&y[0]);
    buf_free(&y[1]);
}

static void test_same_bits(void **state) {
    (void)state;
    const gy_dtype types[] = {GY_F32, GY_F16, GY_BF16};
    for (int iv = 0; iv < 2 * COUNT(variants); iv++) {
        if (variant_missing(&variants[iv / 2])) continue;
        gy_backend *ref = ref_open(acts[iv % 2]), *be = cpu_open(&variants[iv / 2], acts[iv % 2], 2);
        for (int i = 0; i < COUNT(lengths); i++) {
            for (int it = 0; it < 3; it++) {
                embed_case(ref, be, types[it], lengths[i], 1.0f);
                embed_case(ref, be, types[it], lengths[i], 72.66f);
            }
            move_case(be, lengths[i]);
            move_case(ref, lengths[i]);
            for (int bits = 0; bits < 4; bits++) rope_table_case(ref, be, lengths[i], bits);
            latent_init_case(ref, be, lengths[i]);
        }
        bench_print((const char *const[]){"embed", "gather", "scatter", "rope_table", "latent_init", NULL},
                    variants[iv / 2].name, gy_dtype_name(acts[iv % 2]));
        gy_backend_destroy(ref);
        gy_backend_destroy(be);
    }
}

/* The kernels' own exp, through silu, over its whole range, against f64: 2 ulp of exp (4 U_F32), a sum, a quotient. */
static void test_silu_range(void **state) {
    (void)state;
    enum { N = 44000 };
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        gy_backend *be = cpu_open(&variants[iv], GY_F32, 1);
        worst w = {0};
        buf gu = buf_make(2 * N * 4), y = buf_make(N * 4);
        for (int i = 0; i < N; i++) {
            dt_put(gu.p, GY_F32, i, -110.0f + (float)i * 0.005f);
            dt_put(gu.p, GY_F32, N + i, 1.0f);
        }
        be->ops->silu_mul(be, &(gy_silu_mul_args){.gu = gu.p, .n_row = 1, .n_ff = N, .y = y.p});
        for (int i = 0; i < N; i++) {
            double g = dt_get(gu.p, GY_F32, i), want = g / (1 + exp(-g));
            close_check(&w, dt_get(y.p, GY_F32, i), want, fabs(want) * 6 * U_F32 + 89.0 / (double)FLT_MAX, "silu", i);
        }
        worst_print("silu, -110 to 110", variants[iv].name, GY_F32, &w);
        buf_free(&gu);
        buf_free(&y);
        gy_backend_destroy(be);
    }
}

/* Empty batches touch nothing. */
static void test_no_rows(void **state) {
    (void)state;
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        gy_backend *be = cpu_open(&variants[iv], GY_F32, 2);
        float x[4] = {1, 2, 3, 4}, y[4] = {9, 9, 9, 9};
        gy_weight w = {.dtype = GY_F32, .n = 2, .k = 2, .n_part = 1, .part = {{x, 2}}};
        gy_kv_view kv = {.base = x, .dtype = GY_F32, .n_layer = 1, .n_head_kv = 1, .head_dim = 2};
        be->ops->linear(be, &(gy_linear_args){.x = x, .w = &w, .n_row = 0, .y = y});
        be->ops->norm(be, &(gy_norm_args){.x = x, .w = x, .n_row = 0, .n = 4, .y = y});
        be->ops->attn(be, &(gy_attn_args){.q = x, .q_stride = 6, .n_head = 1, .kv = &kv, .y = y});
        be->ops->rope_kv(be, &(gy_rope_kv_args){.qkv = y, .n_head = 1, .kv = &kv});
        be->ops->silu_mul(be, &(gy_silu_mul_args){.gu = x, .n_row = 0, .n_ff = 2, .y = y});
        for (int i = 0; i < 4; i++) assert_true(y[i] == 9);
        gy_backend_destroy(be);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest timed[] = {cmocka_unit_test(test_against_ref), cmocka_unit_test(test_same_bits)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_ref), cmocka_unit_test(test_equalities), cmocka_unit_test(test_no_leak),
        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_no_rows),    cmocka_unit_test(test_silu_range),
        cmocka_unit_test(test_fused),
    };
    bench_open(argc, argv);
    if (bench.on) return cmocka_run_group_tests(timed, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
