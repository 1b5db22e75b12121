/* Attention, and rope with its KV write: every variant against f64 or ref, over head sizes, groups, contexts across
 * tile and block edges and scattered slots; the equalities of ARCHITECTURE.md, determinism; rows that do not leak into
 * each other. KV in act, and in I8.
 */
#include "ops_fixture.h"

enum { N_LAYER = 3, IL = 1, N_BLOCK = 80 };

/* A batch in which row r has its own context of pos[r] + 1 tokens; slots come in runs, or scattered, or in whole blocks
 * as the engine hands them out (the last row's context from the first block down; the others' tokens at the end). */
enum { IN_RUNS, SCATTERED, IN_BLOCKS };
typedef struct batch {
    int n_row, n_head, n_head_kv, head_dim, q_stride;
    gy_dtype act, type; /* type: of the KV */
    gy_kv_view kv;
    gy_rows rows;
    buf pool, map, pos, slot, off, q, y;
} batch;

static int kv_in_i8; /* of the batches that are made from now on */

static int batch_width(const batch *b) {
    return b->n_head_kv * b->head_dim;
}

/* i counts through all contexts; j: position in the last row's, -1 in others'. */
static int32_t slot_of(int layout, int i, int j, int last) {
    if (layout == IN_RUNS) return i + 5;
    if (layout == SCATTERED) return (i * 269 + 11) % (N_BLOCK * GY_BLOCK_SLOTS);
    if (j < 0) return N_BLOCK * GY_BLOCK_SLOTS - 1 - i;
    return (last / GY_BLOCK_SLOTS - j / GY_BLOCK_SLOTS) * GY_BLOCK_SLOTS + j % GY_BLOCK_SLOTS;
}

static char *kv_row(const batch *b, int slot, int kv) {
    int64_t bytes = b->type == GY_I8 ? 1 : (int64_t)dt_bytes(b->type);
    return (char *)b->kv.base + gy_kv_offset(&b->kv, slot, IL, kv) * bytes;
}

static char *kv_scale(const batch *b, int slot, int kv, int head) {
    return kv_row(b, slot, kv) + batch_width(b) + 4 * head;
}

static double kv_get(const batch *b, int slot, int kv, int e) {
    float scale;
    if (b->type != GY_I8) return dt_get(kv_row(b, slot, kv), b->type, e);
    memcpy(&scale, kv_scale(b, slot, kv, e / b->head_dim), sizeof scale);
    return (double)((int8_t *)kv_row(b, slot, kv))[e] * (double)scale;
}

/* I8: NaN and infinities become the head's scale, as NaN. */
static void kv_put(const batch *b, int slot, int kv, int e, float f) {
    float nan = NAN;
    if (b->type != GY_I8) {
        dt_put(kv_row(b, slot, kv), b->type, e, f);
    } else if (isfinite(f)) {
        ((int8_t *)kv_row(b, slot, kv))[e] = (int8_t)f;
    } else {
        memcpy(kv_scale(b, slot, kv, e / b->head_dim), &nan, sizeof nan);
    }
}

/* Whole numbers of -127 to 127, scales about 1 / 100 of what the kind gives, of either sign. */
static void kv_place_i8(const batch *b, int slot, int kv, value_kind kind, uint32_t stream, int j) {
    for (int e = 0; e < batch_width(b); e++)
        kv_put(b, slot, kv, e, (float)((int)(test_rand(stream, (uint32_t)(j * batch_width(b) + e)) % 255) - 127));
    for (int h = 0; h < b->n_head_kv; h++) {
        float scale = value_of(kind, GY_F32, stream + 5000, (uint32_t)(j * b->n_head_kv + h)) / 100;
        memcpy(kv_scale(b, slot, kv, h), &scale, sizeof scale);
    }
}

/* Position j of row r at slot order[i], i counting through all contexts. The KV itself depends on (r, j) only, so that
 * two batches that differ in `scattered` hold the same values at other places. */
static void batch_place(batch *b, const int *pos, int scattered, value_kind kind) {
    int32_t *map = (int32_t *)b->map.p;
    int64_t *off = (int64_t *)b->off.p;
    int i = 0;
    for (int r = 0; r < b->n_row; r++) {
        off[r] = i;
        for (int j = 0; j <= pos[r]; j++, i++) {
            map[i] = slot_of(scattered, i, r == b->n_row - 1 ? j : -1, pos[b->n_row - 1]);
            for (int kv = 0; kv < 2; kv++) {
                uint32_t stream = (uint32_t)(1000 + 2 * r + kv);
                if (b->type == GY_I8) kv_place_i8(b, map[i], kv, kind, stream, j);
                for (int e = 0; e < batch_width(b) && b->type != GY_I8; e++)
                    kv_put(b, map[i], kv, e, value_of(kind, b->act, stream, (uint32_t)(j * batch_width(b) + e)));
            }
        }
        ((int32_t *)b->pos.p)[r] = pos[r];
        ((int32_t *)b->slot.p)[r] = map[off[r] + pos[r]];
    }
}

static batch batch_make(gy_dtype act, int n_head, int n_head_kv, int head_dim, const int *pos, int n_row, int scattered,
                        value_kind kind) {
    batch b = {.n_row = n_row, .n_head = n_head, .n_head_kv = n_head_kv, .head_dim = head_dim, .act = act};
    int n = 0;
    b.type = kv_in_i8 ? GY_I8 : act;
    for (int r = 0; r < n_row; r++) n += pos[r] + 1;
    assert_true(n + 5 <= N_BLOCK * GY_BLOCK_SLOTS);
    b.q_stride = (n_head + 2 * n_head_kv) * head_dim;
    b.kv = (gy_kv_view){.dtype = b.type, .n_layer = N_LAYER, .n_head_kv = n_head_kv, .head_dim = head_dim};
    int64_t pool = (int64_t)N_BLOCK * N_LAYER * 2 * GY_BLOCK_SLOTS * gy_kv_row(&b.kv);
    b.pool = kv_in_i8 ? buf_make((size_t)pool) : buf_values(act, pool, V_UNIT, 3);
    if (kv_in_i8) memset(b.pool.p, 0xff, b.pool.n); /* scales are NaN: whoever reads one that he should not is seen */
    b.map = buf_make((size_t)n * 4);
    b.pos = buf_make((size_t)n_row * 4);
    b.slot = buf_make((size_t)n_row * 4);
    b.off = buf_make((size_t)n_row * 8);
    b.q = buf_values(act, (int64_t)n_row * b.q_stride, kind, 4);
    b.y = buf_make((size_t)n_row * (size_t)n_head * (size_t)head_dim * dt_bytes(act));
    b.kv.base = b.pool.p;
    b.kv.map = (int32_t *)b.map.p;
    b.rows = (gy_rows){
        .n_row = n_row, .pos = (int32_t *)b.pos.p, .slot = (int32_t *)b.slot.p, .map_off = (int64_t *)b.off.p};
    batch_place(&b, pos, scattered, kind);
    return b;
}

static void batch_free(batch *b) {
    buf *all[] = {&b->pool, &b->map, &b->pos, &b->slot, &b->off, &b->q, &b->y};
    for (int i = 0; i < COUNT(all); i++) buf_free(all[i]);
}

static float batch_scale(const batch *b) {
    return 1.0f / sqrtf((float)b->head_dim);
}

/* Rows [from, from + n) into y. */
static void attn_run(gy_backend *be, const batch *b, int from, int n, void *y) {
    gy_attn_args a = {.q = b->q.p + (size_t)from * (size_t)b->q_stride * dt_bytes(b->act),
                      .q_stride = b->q_stride,
                      .n_head = b->n_head,
                      .scale = batch_scale(b),
                      .kv = &b->kv,
                      .il = IL,
                      .rows = {n, b->rows.pos + from, b->rows.slot + from, b->rows.map_off + from},
                      .y = y};
    gy_mem_guard_begin();
    be->ops->attn(be, &a);
    gy_mem_guard_end();
}

/* Elements of K and V that the rows see. */
static double kv_elems(const batch *b) {
    double n = 0;
    for (int r = 0; r < b->n_row; r++) n += b->rows.pos[r] + 1;
    return 2 * n * batch_width(b);
}

static void attn_timed(gy_backend *be, const batch *b) {
    double kv = kv_elems(b), rows = 2.0 * b->n_row * b->n_head * b->head_dim;
    TIMED(be, 0, kv * (b->type == GY_I8 ? 1 : (double)dt_bytes(b->type)) + rows * (double)dt_bytes(b->act),
          2 * kv * b->n_head / b->n_head_kv, attn_run(be, b, 0, b->n_row, b->y.p));
}

static double kv_at(const batch *b, int r, int j, int kv, int head, int e) {
    return kv_get(b, b->kv.map[b->rows.map_off[r] + j], kv, head * b->head_dim + e);
}

/* Exact scores of one head, and how far a computed score can lie off: n_dot roundings of the dot product, one of the
 * scaling, one of the difference to the maximum. Returns the latter's largest value. */
static double exact_scores(const batch *b, int r, int h, double n_dot, double *s) {
    int head_kv = h / (b->n_head / b->n_head_kv);
    double off = 0, largest = 0, max = -INFINITY;
    for (int j = 0; j <= b->rows.pos[r]; j++) {
        double dot = 0, size = 0;
        for (int e = 0; e < b->head_dim; e++) {
            double v = (double)dt_get(b->q.p, b->act, (int64_t)r * b->q_stride + h * b->head_dim + e) *
                       kv_at(b, r, j, 0, head_kv, e);
            dot += v;
            size += fabs(v);
        }
        s[j] = dot * (double)batch_scale(b);
        size *= (double)batch_scale(b);
        if (gamma_of(n_dot) * size > off) off = gamma_of(n_dot) * size;
        if (fabs(s[j]) > largest) largest = fabs(s[j]);
        if (s[j] > max) max = s[j];
    }
    for (int j = 0; j <= b->rows.pos[r]; j++) s[j] = exp(s[j] - max);
    return off + 3 * largest * U_F32 + b->head_dim * TINY_F32;
}

/* Roundings of a dot product of d elements: two chains and their sum (CPU); the GPU's are one chain at most. */
static double n_dot_of(const variant *v, int d) {
    return is_cuda(v) ? d + 5 : (d + 1) / 2 + 1;
}

/* A weight is off by e^(2 off) - 1 relatively (its own score and the maximum's), by 2 ulp of exp, and by 3 roundings
 * for each merge of a tile of 64 and of a chunk of 256; the sum over n positions adds n roundings, the division two.
 * What the denominator adds is of the same size: hence the factor 2. Weights below f32's range count as their smallest
 * step. weight_err: what else a weight is rounded by. */
static double attn_bound(double off, int n, double size, double weight_err) {
    int merges = n / 64 + n / 256 + 2;
    double rel = 2 * (expm1(2 * off) + 4 * U_F32 + 3 * merges * U_F32) + gamma_of(n + 4) + weight_err;
    return rel * size + n * 0x1p-126;
}

/* What a sanitizer looks for is in the kernels, which run all the same: of the heads in double precision, which take
 * ten times as long then, it computes each fourth, another one in each row. */
#ifdef GY_SANITIZED
enum { EACH_HEAD = 4 };
#else
enum { EACH_HEAD = 1 };
#endif

/* With scales, a dot product and a weight are rounded once more each. */
static void against_exact(const batch *b, double n_dot, double weight_err, worst *w, const char *what) {
    static double s[2048]; /* longer than any context here */
    double err = (b->act == GY_BF16 ? weight_err : 0) + (b->type == GY_I8 ? U_F32 : 0);
    n_dot += b->type == GY_I8;
    for (int r = 0; r < b->n_row; r++) {
        for (int h = r % EACH_HEAD; h < b->n_head; h += EACH_HEAD) {
            int n = b->rows.pos[r] + 1, head_kv = h / (b->n_head / b->n_head_kv);
            double off = exact_scores(b, r, h, n_dot, s), sum = 0;
            for (int j = 0; j < n; j++) sum += s[j];
            for (int e = 0; e < b->head_dim; e++) {
                double y = 0, size = 0;
                for (int j = 0; j < n; j++) {
                    double p = s[j] / sum * kv_at(b, r, j, 1, head_kv, e);
                    y += p;
                    size += fabs(p);
                }
                int64_t at = ((int64_t)r * b->n_head + h) * b->head_dim + e;
                double bound = attn_bound(off, n, size, err);
                bound += b->act == GY_BF16 ? round_err(b->act, fabs(y) + bound) : 0;
                close_check(w, dt_get(b->y.p, b->act, at), y, bound, what, at);
            }
        }
    }
}

static const int dims[] = {2, 12, 16, 64, 80, 96, 128};
static const int groups[] = {1, 2, 6, 8, 11};
static const int contexts[] = {0, 1, 14, 15, 16, 62, 63, 64, 127, 128, 150};

static void test_exact(void **state) {
    (void)state;
    int with_ref = 1; /* the first variant's problems are all variants' problems */
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int ia = 0; ia < 2; ia++) {
            gy_backend *be = cpu_open(&variants[iv], acts[ia], 2), *ref = ref_open(acts[ia]);
            worst w = {0}, w_ref = {0};
            for (int i = 0; i < COUNT(dims) * COUNT(groups) * 2; i++) {
                int d = dims[i % COUNT(dims)], g = groups[i / COUNT(dims) % COUNT(groups)], n_kv = i % 2 ? 3 : 1;
                const int pos[] = {contexts[i % COUNT(contexts)], contexts[(i + 4) % COUNT(contexts)], 5};
                value_kind kind = i % 5 == 4 ? V_TINY : i % 3 == 2 ? V_MIXED : V_UNIT;
                batch b = batch_make(acts[ia], g * n_kv, n_kv, d, pos, 3, i & 1, kind);
                if (with_ref) {
                    attn_run(ref, &b, 0, 3, b.y.p);
                    against_exact(&b, d + 2, 0, &w_ref, "attn ref");
                    memset(b.y.p, 0xc3, b.y.n);
                }
                attn_run(be, &b, 0, 3, b.y.p);
                against_exact(&b, n_dot_of(&variants[iv], d), variants[iv].weight_err, &w, "attn");
                attn_timed(be, &b);
                batch_free(&b);
            }
            const int pos[] = {70, 3}; /* more query heads than walk the context together, cut inside a group of 3 */
            batch b = batch_make(acts[ia], 72, 24, 12, pos, 2, 1, V_UNIT);
            attn_run(be, &b, 0, 2, b.y.p);
            against_exact(&b, n_dot_of(&variants[iv], 12), 0, &w, "attn, 72 heads");
            attn_timed(be, &b);
            batch_free(&b);
            if (with_ref) worst_print("attn", "ref", acts[ia], &w_ref);
            worst_print("attn", variants[iv].name, acts[ia], &w);
            bench_print((const char *const[]){"attn", NULL}, variants[iv].name, gy_dtype_name(acts[ia]));
            gy_backend_destroy(be);
            gy_backend_destroy(ref);
        }
        with_ref = 0;
    }
}

/* Alone, in another order of rows, with scattered slots, with 1, 2, 3 threads, again: the same bits. */
static void equalities(const variant *v, gy_dtype act, int head_dim) {
    enum { M = 5 };
    const int pos[M] = {130, 63, 64, 3, 200};
    batch b = batch_make(act, 6, 3, head_dim, pos, M, 0, V_UNIT);
    batch far = batch_make(act, 6, 3, head_dim, pos, M, 1, V_UNIT);
    size_t y_bytes = b.y.n / M;
    for (int n_thread = 1; n_thread <= 3; n_thread++) {
        gy_backend *be = cpu_open(v, act, n_thread);
        if (n_thread == 1) attn_run(be, &b, 0, M, b.y.p);
        attn_run(be, &far, 0, M, far.y.p);
        same_check(far.y.p, b.y.p, b.y.n, "scattered slots, more threads");
        memset(far.y.p, 0, far.y.n);
        for (int r = M - 1; r >= 0; r--) attn_run(be, &b, r, 1, far.y.p + (size_t)r * y_bytes);
        same_check(far.y.p, b.y.p, b.y.n, "each row alone, last first");
        gy_backend_destroy(be);
    }
    batch_free(&b);
    batch_free(&far);
}

static void test_equalities(void **state) {
    (void)state;
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int i = 0; i < COUNT(dims); i++) equalities(&variants[iv], acts[i & 1], dims[i]);
        for (int i = 0; i < COUNT(dims); i++) equalities(&variants[iv], acts[!(i & 1)], dims[i]);
    }
}

/* Scores by BF16 dot products have the bits of those by multiply-adds: the odd product first, then the even one. */
static void dot_bits(int group, int head_dim) {
    const int pos[] = {150, 63, 5};
    batch b = batch_make(GY_BF16, 2 * group, 2, head_dim, pos, 3, SCATTERED, V_UNIT);
    buf y[2];
    for (int i = 0; i < 2; i++) {
        gy_backend *be = cpu_open(&variants[i], GY_BF16, 2);
        attn_run(be, &b, 0, 3, b.y.p);
        y[i] = buf_bytes(b.y.p, b.y.n);
        gy_backend_destroy(be);
    }
    same_check(y[0].p, y[1].p, y[0].n, "with and without BF16 dot products");
    for (int i = 0; i < 2; i++) buf_free(&y[i]);
    batch_free(&b);
}

static void test_dot_bits(void **state) {
    (void)state;
    if (variant_missing(&variants[0]) || variant_missing(&variants[1])) return; /* avx512bf16, avx512 */
    for (int i = 0; i < 2 * COUNT(dims); i++) {
        kv_in_i8 = i / COUNT(dims);
        dot_bits(groups[i % COUNT(groups)], dims[i % COUNT(dims)]);
    }
    kv_in_i8 = 0;
}

/* A chunk of one sequence: its rows read the same map row. Whole = in two pieces = each row alone, bit for bit, and
 * close to f64, whatever way a backend takes for many rows and for one. first: position of the chunk's first row. */
static void one_sequence(const variant *v, gy_dtype act, int group, int n_kv, int head_dim, int first, int n_row,
                         int layout) {
    int pos[256], last = first + n_row - 1;
    for (int r = 0; r < n_row; r++) pos[r] = 0;
    pos[n_row - 1] = last; /* batch_make lays out the contexts: one token for all rows but the last */
    batch b = batch_make(act, group * n_kv, n_kv, head_dim, pos, n_row, layout, V_UNIT);
    for (int r = 0; r < n_row; r++) {
        ((int64_t *)b.off.p)[r] = n_row - 1;
        ((int32_t *)b.pos.p)[r] = first + r;
        ((int32_t *)b.slot.p)[r] = b.kv.map[n_row - 1 + first + r];
    }
    gy_backend *be = cpu_open(v, act, 2);
    worst w = {0};
    size_t row = b.y.n / (size_t)n_row;
    int half = n_row / 2;
    attn_run(be, &b, 0, n_row, b.y.p);
    against_exact(&b, n_dot_of(v, head_dim), v->weight_err, &w, "attn, one sequence");
    buf whole = buf_bytes(b.y.p, b.y.n);
    memset(b.y.p, 0, b.y.n);
    attn_run(be, &b, 0, half, b.y.p);
    attn_run(be, &b, half, n_row - half, b.y.p + (size_t)half * row);
    same_check(b.y.p, whole.p, whole.n, "one sequence in two pieces");
    memset(b.y.p, 0, b.y.n);
    for (int r = 0; r < n_row; r++) attn_run(be, &b, r, 1, b.y.p + (size_t)r * row);
    same_check(b.y.p, whole.p, whole.n, "one sequence row by row");
    buf_free(&whole);
    batch_free(&b);
    gy_backend_destroy(be);
}

static void test_one_sequence(void **state) {
    (void)state;
    static const int big[] = {64, 96, 128};
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int i = 0; i < 3 * 8; i++) {
            int group = 1 + i / 3, first = i % 4 == 3 ? 130 : i % 4 * 21;
            one_sequence(&variants[iv], i % 8 == 7 ? GY_F32 : GY_BF16, group, 1 + i % 2, big[i % 3], first,
                         20 + 7 * (i % 9), i % 3 ? SCATTERED : IN_BLOCKS);
        }
        one_sequence(&variants[iv], GY_BF16, 16, 1, 64, 60, 9, SCATTERED);
        for (int layout = SCATTERED; layout <= IN_BLOCKS; layout++) {
            one_sequence(&variants[iv], GY_BF16, 1, 2, 128, 0, 200, layout); /* several blocks of queries */
            /* Across the borders of the GPU's chunks of 512, wide and narrow blocks, a block that straddles one. */
            one_sequence(&variants[iv], GY_BF16, 1, 2, 128, 440, 150, layout);
            one_sequence(&variants[iv], GY_BF16, 4, 1, 128, 505, 60, layout);
            one_sequence(&variants[iv], GY_BF16, 3, 1, 96, 500, 70, layout);
            one_sequence(&variants[iv], GY_BF16, 8, 1, 64, 1000, 30, layout);
            one_sequence(&variants[iv], GY_BF16, 1, 1, 128, 1100, 40, layout); /* half a block, cut by chunks */
        }
    }
}

/* Rows [lo, lo + n) become a chunk of the last one's sequence: they read its map row, at the positions before its. */
static void batch_share(batch *b, int lo, int n) {
    int64_t *off = (int64_t *)b->off.p;
    int32_t *pos = (int32_t *)b->pos.p, *slot = (int32_t *)b->slot.p;
    for (int r = lo; r < lo + n; r++) {
        off[r] = off[lo + n - 1];
        pos[r] = pos[lo + n - 1] - (lo + n - 1 - r);
        slot[r] = b->kv.map[off[r] + pos[r]];
    }
}

/* A step's rows: a decode row, a chunk, two decode rows, a chunk that crosses a border of the CPU's chunks of 256, a
 * decode row. Whole, with other numbers of threads (whose pieces end inside chunks, and inside a row's head) = each row
 * alone, last first = pieces of 3, which cut the chunks elsewhere. */
static void mixed(const variant *v, gy_dtype act, int group, int n_kv, int head_dim, int first, int n) {
    enum { B = 5 };
    static const int threads[] = {1, 2, 3, 7};
    int pos[128] = {0}, m = n + B + 4;
    pos[0] = 130;
    pos[n] = first + n - 1;
    pos[n + 1] = 64;
    pos[n + 2] = 300;
    pos[n + 2 + B] = 257;
    pos[m - 1] = 63;
    batch b = batch_make(act, group * n_kv, n_kv, head_dim, pos, m, SCATTERED, V_UNIT);
    batch_share(&b, 1, n);
    batch_share(&b, n + 3, B);
    size_t row = b.y.n / (size_t)m;
    buf alone = buf_make(b.y.n);
    for (int i = 0; i < COUNT(threads); i++) {
        gy_backend *be = cpu_open(v, act, threads[i]);
        for (int r = m - 1; i == 0 && r >= 0; r--) attn_run(be, &b, r, 1, alone.p + (size_t)r * row);
        memset(b.y.p, 0, b.y.n);
        attn_run(be, &b, 0, m, b.y.p);
        same_check(b.y.p, alone.p, alone.n, "a mixed step, each row alone");
        memset(b.y.p, 0, b.y.n);
        for (int r = 0; r < m; r += 3) attn_run(be, &b, r, m - r < 3 ? m - r : 3, b.y.p + (size_t)r * row);
        same_check(b.y.p, alone.p, alone.n, "a mixed step in pieces of 3");
        gy_backend_destroy(be);
    }
    buf_free(&alone);
    batch_free(&b);
}

static void test_mixed(void **state) {
    (void)state;
    static const int firsts[] = {0, 1, 57, 62, 63, 64, 120, 128, 190, 250, 255, 256};
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int i = 0; i < 24; i++) {
            int n = i < 8 ? 1 + i : 1 + (i * 17 + i / 8) % 70;
            mixed(&variants[iv], acts[i % 3 != 1], 1 + i % 9, 1 + i % 2 * 2, dims[(i * 5 + 2) % COUNT(dims)],
                  firsts[i % COUNT(firsts)], n);
        }
        mixed(&variants[iv], GY_BF16, 20, 1, 12, 40, 70); /* more queries than a walk takes */
        mixed(&variants[iv], GY_BF16, 110, 1, 16, 60, 9); /* a single row has them */
        mixed(&variants[iv], GY_F32, 1, 17, 128, 255, 7);
    }
}

/* One long row on many threads: it is cut between chunks, and between heads of a chunk, and joined. */
static void test_cut_heads(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 4, 5, 8};
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int i = 0; i < 6; i++) {
            const int pos[] = {i % 2 ? 1023 : 1024, i < 3 ? 0 : 200};
            batch b =
                batch_make(acts[i & 1], (1 + i) * (1 + i % 3), 1 + i % 3, i < 4 ? 64 : 24, pos, 2, SCATTERED, V_UNIT);
            buf one = buf_make(b.y.n);
            for (int t = 0; t < COUNT(threads); t++) {
                gy_backend *be = cpu_open(&variants[iv], b.act, threads[t]);
                memset(b.y.p, 0, b.y.n);
                attn_run(be, &b, 0, i < 3 ? 1 : 2, b.y.p);
                if (t == 0) memcpy(one.p, b.y.p, b.y.n);
                same_check(b.y.p, one.p, one.n, "a long row on many threads");
                gy_backend_destroy(be);
            }
            buf_free(&one);
            batch_free(&b);
        }
    }
}

/* NaN in the K or V of one row of a chunk: the rows before it see nothing of it, though they share its tile, and the
 * next batch sees nothing of what the scratch still holds. */
static void nan_in_chunk(const variant *v, gy_dtype act, int kv, int bad) {
    enum { M = 40, D = 64, FIRST = 50 };
    int pos[M] = {0};
    pos[M - 1] = FIRST + M - 1;
    batch b = batch_make(act, 4, 2, D, pos, M, SCATTERED, V_UNIT);
    batch_share(&b, 0, M);
    gy_backend *be = cpu_open(v, act, 2);
    attn_run(be, &b, 0, M, b.y.p);
    buf clean = buf_bytes(b.y.p, b.y.n);
    buf pool = buf_bytes(b.pool.p, b.pool.n);
    kv_put(&b, b.rows.slot[bad], kv, 5, NAN); /* of KV head 0: query heads 0 and 1 */
    /* Known, attn_tile.cuh: in the GPU's products a masked weight of 0 meets the NaN of a V in BF16. */
    int leaks = is_cuda(v) && act == GY_BF16 && kv && !kv_in_i8;
    attn_run(be, &b, 0, M, b.y.p);
    for (int i = 0; i < M * 4 * D; i++) {
        int hit = i / (4 * D) >= bad && i / D % 4 < 2 && (kv == 0 || kv_in_i8 || i % D == 5);
        if (hit) {
            assert_true(isnan(dt_get(b.y.p, act, i)));
        } else if (!(leaks && i / D % 4 < 2 && i % D == 5)) {
            assert_true(dt_get(b.y.p, act, i) == dt_get(clean.p, act, i));
        }
    }
    memcpy(b.pool.p, pool.p, pool.n);
    attn_run(be, &b, 0, M, b.y.p);
    same_check(b.y.p, clean.p, clean.n, "after NaN");
    gy_backend_destroy(be);
    buf_free(&pool);
    buf_free(&clean);
    batch_free(&b);
}

static void test_nan_in_chunk(void **state) {
    (void)state;
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        for (int i = 0; i < 8; i++) nan_in_chunk(&variants[iv], acts[i & 1], i >> 1 & 1, i < 4 ? 12 + i : 39 - i);
    }
}

/* NaN and infinity in one row's KV make that row's head NaN, and touch nothing else. */
static void test_no_leak(void **state) {
    (void)state;
    enum { M = 3, D = 64 };
    const int pos[M] = {70, 70, 20};
    for (int iv = 0; iv < 2 * COUNT(variants); iv++) {
        const variant *v = &variants[iv / 2];
        if (variant_missing(v)) continue;
        batch b = batch_make(acts[iv % 2], 4, 2, D, pos, M, 1, V_UNIT);
        gy_backend *be[2] = {ref_open(b.act), cpu_open(v, b.act, 2)};
        for (int i = 0; i < 2; i++) {
            batch_place(&b, pos, 1, V_UNIT);
            attn_run(be[i], &b, 0, M, b.y.p);
            buf clean = buf_bytes(b.y.p, b.y.n);
            dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[b.rows.map_off[1] + 66], IL, 0) + 5, NAN);
            dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[b.rows.map_off[2] + 3], IL, 1) + D + 5, INFINITY);
            attn_run(be[i], &b, 0, M, b.y.p);
            for (int e = 0; e < M * 4 * D; e++) {
                float got = dt_get(b.y.p, b.act, e), was = dt_get(clean.p, b.act, e);
                int r = e / (4 * D), h = e / D % 4;
                if (r == 1 && h < 2) {
                    assert_true(isnan(got));
                } else if (r == 2 && h >= 2 && e % D == 5) {
                    assert_true(isinf(got) || (v->weight_err && isnan(got))); /* inf times 0 where p = hi + 0 */
                } else {
                    assert_true(got == was);
                }
            }
            buf_free(&clean);
            gy_backend_destroy(be[i]);
        }
        batch_free(&b);
    }
}

/* Scores of -inf have weight 0 even when a whole tile of them comes first; +inf cannot be weighed and gives NaN. */
static void test_infinite_scores(void **state) {
    (void)state;
    enum { D = 16 };
    const int pos[1] = {80};
    for (int iv = 0; iv < COUNT(variants); iv++) {
        if (variant_missing(&variants[iv])) continue;
        batch b = batch_make(GY_F32, 1, 1, D, pos, 1, 0, V_UNIT);
        gy_backend *be[2] = {ref_open(b.act), cpu_open(&variants[iv], b.act, 1)};
        for (int e = 0; e < D; e++) dt_put(b.q.p, b.act, e, e == 0 ? 1.0f : 0.0f);
        for (int j = 0; j <= 80; j++) {
            for (int e = 0; e < D; e++) {
                dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[j], IL, 0) + e, j < 80 && e == 0 ? -INFINITY : 0);
                dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[j], IL, 1) + e, j < 80 ? 7.0f : 2.5f);
            }
        }
        for (int i = 0; i < 2; i++) {
            attn_run(be[i], &b, 0, 1, b.y.p);
            for (int e = 0; e < D; e++) assert_true(dt_get(b.y.p, b.act, e) == 2.5f);
            dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[80], IL, 0), INFINITY);
            attn_run(be[i], &b, 0, 1, b.y.p);
            for (int e = 0; e < D; e++) assert_true(isnan(dt_get(b.y.p, b.act, e)));
            dt_put(b.kv.base, b.act, gy_kv_offset(&b.kv, b.kv.map[80], IL, 0), 0.0f);
            gy_backend_destroy(be[i]);
        }
        batch_free(&b);
    }
}

/* rope_kv is element-wise: ref's bits, in q, in the written slots, and no other slot touched. */
static void rope_run(gy_backend *be, const batch *b, gy_rope_kind kind, int round_each, const buf *bias,
                     const buf *cs) {
    gy_rope_kv_args a = {.qkv = b->q.p,
                         .q_bias = bias ? bias[0].p : NULL,
                         .k_bias = bias ? bias[1].p : NULL,
                         .cos = (const float *)cs[0].p,
                         .sin = (const float *)cs[1].p,
                         .kind = kind,
                         .round_each = round_each,
                         .n_head = b->n_head,
                         .kv = &b->kv,
                         .il = IL,
                         .rows = b->rows};
    gy_mem_guard_begin();
    be->ops->rope_kv(be, &a);
    gy_mem_guard_end();
}

static void rope_case(gy_backend *ref, gy_backend *be, int head_dim, int bits, value_kind values) {
    const int pos[] = {17, 0, 40, 3};
    gy_rope_kind kind = bits & 1 ? GY_ROPE_PAIRS : GY_ROPE_HALF;
    batch a = batch_make(be->act, 6, 2, head_dim, pos, 4, 1, values),
          b = batch_make(be->act, 6, 2, head_dim, pos, 4, 1, values);
    buf bias[2] = {buf_values(be->act, 6 * head_dim, V_UNIT, 21), buf_values(be->act, 2 * head_dim, V_UNIT, 22)};
    buf cs[2] = {buf_values(GY_F32, 4 * head_dim / 2, V_UNIT, 23), buf_values(GY_F32, 4 * head_dim / 2, V_UNIT, 24)};
    rope_run(ref, &a, kind, bits >> 1 & 1, bits & 4 ? bias : NULL, cs);
    rope_run(be, &b, kind, bits >> 1 & 1, bits & 4 ? bias : NULL, cs);
    for (int r = 0; r < 4; r++) {
        size_t row = (size_t)r * (size_t)a.q_stride * dt_bytes(be->act);
        same_check(b.q.p + row, a.q.p + row, (size_t)(6 * head_dim) * dt_bytes(be->act), "rotated q");
    }
    same_check(b.pool.p, a.pool.p, a.pool.n, "KV");
    double n =
        4.0 * head_dim; /* rows; q and k are read and written, v too; turning an element is two products, a sum */
    TIMED(be, 0, 2 * n * (6 + 2 + 2) * (double)dt_bytes(be->act) + n * 4, n * (6 + 2) * 3,
          rope_run(be, &b, kind, bits >> 1 & 1, bits & 4 ? bias : NULL, cs));
    for (int i = 0; i < 2; i++) {
        buf_free(&bias[i]);
        buf_free(&cs[i]);
    }
    batch_free(&a);
    batch_free(&b);
}

static void test_rope(void **state) {
    (void)state;
    for (int iv = 0; iv < 2 * COUNT(variants); iv++) {
        if (variant_missing(&variants[iv / 2])) continue;
        gy_backend *ref = ref_open(acts[iv % 2]), *be = cpu_open(&variants[iv / 2], acts[iv % 2], 2);
        for (int i = 0; i < COUNT(dims); i++)
            for (int bits = 0; bits < 8; bits++) rope_case(ref, be, dims[i], bits, bits % 3 ? V_UNIT : V_MIXED);
        bench_print((const char *const[]){"rope_kv", NULL}, variants[iv / 2].name, gy_dtype_name(acts[iv % 2]));
        gy_backend_destroy(ref);
        gy_backend_destroy(be);
    }
}

/* ---- KV in I8 ---------------------------------------------------------------------------------------------------- */

static int i8_missing(const variant *v) {
    if (variant_missing(v)) return 1;
    gy_backend *be = cpu_open(v, GY_F32, 1);
    int missing = !(be->ops->kv_types >> GY_I8 & 1);
    gy_backend_destroy(be);
    return missing;
}

/* The definition, worked out by hand: one row of one KV head of d elements, x and zeros, k as it is (cos 1, sin 0), v
 * likewise. */
static void i8_row(gy_backend *be, int d, const float *x, float scale, const int *q) {
    enum { N = 8 };
    const int pos[1] = {0};
    float cos[64], sin[64] = {0};
    for (int i = 0; i < d / 2; i++) cos[i] = 1;
    batch b = batch_make(be->act, 1, 1, d, pos, 1, 0, V_UNIT);
    buf cs[2] = {buf_bytes(cos, (size_t)d * 2), buf_bytes(sin, (size_t)d * 2)};
    for (int e = 0; e < 2 * d; e++) dt_put(b.q.p, b.act, d + e, e % d < N ? x[e % d] : 0);
    rope_run(be, &b, GY_ROPE_HALF, 1, NULL, cs);
    for (int kv = 0; kv < 2; kv++) {
        float got;
        memcpy(&got, kv_scale(&b, b.rows.slot[0], kv, 0), sizeof got);
        assert_true(got == scale || (isnan(got) && isnan(scale)));
        for (int e = 0; e < d; e++) assert_int_equal(((int8_t *)kv_row(&b, b.rows.slot[0], kv))[e], e < N ? q[e] : 0);
    }
    for (int i = 0; i < 2; i++) buf_free(&cs[i]);
    batch_free(&b);
}

static void test_i8_rows(void **state) {
    (void)state;
    static const struct {
        float x[8], scale;
        int q[8];
    } rows[] = {
        {{127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127, 126.5f}, 1, {127, 0, 2, 2, 0, -2, -127, 126}},
        {{-254, 1, 3, 5, 253, 0, -0.0f, 255 - 2}, 2, {-127, 0, 2, 2, 126, 0, 0, 126}},
        {{0, 0, -0.0f, 0, 0, 0, 0, 0}, 0x1p-126f, {0}},
        {{0x1p-126f, 0x1p-127f, -0x1p-126f, 0x3p-127f, 0, 0, 0, 0}, 0x1p-126f, {1, 0, -1, 2, 0, 0, 0, 0}},
        {{1, 2, NAN, 3, 4, 5, 6, 7}, NAN, {0}},
        {{1, 2, 3, 4, 5, 6, 7, -INFINITY}, NAN, {0}},
        {{0x1.fcp127f, -0x1.fcp127f, 0x1p127f, 0, 1, 0, 0, 0}, 0x1p121f, {127, -127, 64, 0, 0, 0, 0, 0}},
    };
    kv_in_i8 = 1;
    for (int iv = -1; iv < COUNT(variants); iv++) {
        if (iv >= 0 && i8_missing(&variants[iv])) continue;
        for (int ia = 0; ia < 2; ia++) {
            gy_backend *be = iv < 0 ? ref_open(acts[ia]) : cpu_open(&variants[iv], acts[ia], 1);
            for (int i = 0; i < 3 * COUNT(rows); i++)
                i8_row(be, 8 << i % 3 * 2, rows[i / 3].x, rows[i / 3].scale, rows[i / 3].q);
            gy_backend_destroy(be);
        }
    }
    kv_in_i8 = 0;
}

static void test_i8_rope(void **state) {
    (void)state;
    kv_in_i8 = 1;
    for (int iv = 0; iv < 2 * COUNT(variants); iv++) {
        if (i8_missing(&variants[iv / 2])) continue;
        gy_backend *ref = ref_open(acts[iv % 2]), *be = cpu_open(&variants[iv / 2], acts[iv % 2], 2);
        for (int i = 0; i < 8 * COUNT(dims); i++)
            rope_case(ref, be, dims[i % COUNT(dims)], i / COUNT(dims), i % 4 == 3 ? V_TINY : i % 2 ? V_UNIT : V_MIXED);
        gy_backend_destroy(ref);
        gy_backend_destroy(be);
    }
    kv_in_i8 = 0;
}

/* Scales that are powers of two change no bit: attention over KV in I8 is then attention over KV in act with the same
 * values, bit for bit. */
static void i8_as_act(const variant *v, gy_dtype act, int group, int head_dim) {
    const int pos[] = {150, 63, 5};
    batch b[2];
    for (int i = 0; i < 2; i++) {
        kv_in_i8 = i;
        b[i] = batch_make(act, 2 * group, 2, head_dim, pos, 3, 1, V_UNIT);
    }
    kv_in_i8 = 0;
    for (int n = 0; n < 151 + 64 + 6; n++) {
        int slot = b[0].kv.map[n];
        for (int i = 0; i < 4; i++) {
            float scale = ldexpf(1, (n * 5 + i) % 3 - 9);
            memcpy(kv_scale(&b[1], slot, i / 2, i % 2), &scale, sizeof scale);
            for (int e = i % 2 * head_dim; e < (i % 2 + 1) * head_dim; e++)
                kv_put(&b[0], slot, i / 2, e, (float)kv_get(&b[1], slot, i / 2, e));
        }
    }
    gy_backend *be = cpu_open(v, act, 2);
    for (int i = 0; i < 2; i++) attn_run(be, &b[i], 0, 3, b[i].y.p);
    same_check(b[1].y.p, b[0].y.p, b[0].y.n, "I8 with scales of 2^n");
    gy_backend_destroy(be);
    for (int i = 0; i < 2; i++) batch_free(&b[i]);
}

static void i8_exact(gy_backend *be, const variant *v, worst *w) {
    for (int i = 0; i < COUNT(dims); i++) {
        const int pos[] = {contexts[(3 * i + 1) % COUNT(contexts)], contexts[(2 * i) % COUNT(contexts)]};
        value_kind kind = i == 2 ? V_TINY : i % 3 ? V_UNIT : V_MIXED;
        batch b = batch_make(be->act, groups[i % COUNT(groups)] * 3, 3, dims[i], pos, 2, 1, kind);
        attn_run(be, &b, 0, 2, b.y.p);
        against_exact(&b, v ? n_dot_of(v, dims[i]) : dims[i] + 2, v ? v->weight_err : 0, w, "attn, I8");
        if (v) attn_timed(be, &b);
        batch_free(&b);
    }
}

static void test_i8_exact(void **state) {
    (void)state;
    for (int iv = -1; iv < COUNT(variants); iv++) {
        const variant *v = iv < 0 ? NULL : &variants[iv];
        if (v && i8_missing(v)) continue;
        for (int ia = 0; ia < 2; ia++) {
            worst w = {0};
            gy_backend *be = v ? cpu_open(v, acts[ia], 2) : ref_open(acts[ia]);
            kv_in_i8 = 1;
            i8_exact(be, v, &w);
            kv_in_i8 = 0;
            worst_print("attn, KV in I8", v ? v->name : "ref", acts[ia], &w);
            bench_print((const char *const[]){"attn, KV in I8", NULL}, v ? v->name : "ref", gy_dtype_name(acts[ia]));
            gy_backend_destroy(be);
            for (int i = 0; v && i < COUNT(dims); i++)
                i8_as_act(v, acts[ia], groups[(i + ia) % COUNT(groups)], dims[i]);
        }
    }
}

/* The GPU's own ways: rows that begin at multiples of 4, 8 and 16 bytes, wide and narrow blocks of queries, chunks of
 * 512 and their borders, a block that is cut by them. */
static void i8_on_gpu(const variant *v) {
    static const int big[] = {64, 96, 128};
    for (int i = 0; i < 3 * 6; i++)
        one_sequence(v, GY_BF16, 1 + i % 5, i % 4 == 3 ? 4 : 1 + i % 4, big[i % 3], i % 4 == 3 ? 130 : i % 4 * 21,
                     20 + 7 * (i % 9), i % 2 ? SCATTERED : IN_BLOCKS);
    for (int n_kv = 1; n_kv <= 4; n_kv *= 2) {
        one_sequence(v, GY_BF16, 1, n_kv, 128, 0, 200 / n_kv, IN_BLOCKS);
        one_sequence(v, GY_BF16, 1, n_kv, 128, 440, 150 / n_kv, SCATTERED);
        one_sequence(v, GY_BF16, 4, n_kv, 128, 505, 60, IN_BLOCKS);
        one_sequence(v, GY_BF16, 3, n_kv, 96, 500, 70, SCATTERED);
        one_sequence(v, GY_BF16, 8, n_kv, 64, 1000, 30, SCATTERED);
        one_sequence(v, GY_BF16, 1, n_kv, 128, 1100, 40, IN_BLOCKS);
        mixed(v, GY_BF16, 2, n_kv, big[n_kv % 3], 62, 9 * n_kv);
    }
    one_sequence(v, GY_BF16, 16, 1, 64, 60, 9, SCATTERED);
}

/* What holds for KV in act, with fewer shapes. */
static void test_i8_equalities(void **state) {
    (void)state;
    kv_in_i8 = 1;
    for (int iv = 0; iv < COUNT(variants); iv++) {
        const variant *v = &variants[iv];
        if (i8_missing(v)) continue;
        equalities(v, GY_BF16, 128);
        equalities(v, GY_F32, 12);
        one_sequence(v, GY_BF16, 1, 2, 128, 57, 40, IN_BLOCKS);
        one_sequence(v, GY_F32, 6, 1, 96, 130, 21, SCATTERED);
        mixed(v, GY_BF16, 2, 3, 64, 62, 9);
        mixed(v, GY_F32, 3, 1, 80, 255, 7);
        for (int i = 0; i < 4; i++) nan_in_chunk(v, acts[i & 1], i >> 1 & 1, 12 + i);
        if (is_cuda(v)) i8_on_gpu(v);
    }
    kv_in_i8 = 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest timed[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_rope),
                                       cmocka_unit_test(test_i8_exact)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),           cmocka_unit_test(test_equalities), cmocka_unit_test(test_no_leak),
        cmocka_unit_test(test_infinite_scores), cmocka_unit_test(test_rope),       cmocka_unit_test(test_one_sequence),
        cmocka_unit_test(test_mixed),           cmocka_unit_test(test_cut_heads),  cmocka_unit_test(test_nan_in_chunk),
        cmocka_unit_test(test_i8_rows),         cmocka_unit_test(test_i8_rope),    cmocka_unit_test(test_i8_exact),
        cmocka_unit_test(test_i8_equalities),   cmocka_unit_test(test_dot_bits),
    };
    bench_open(argc, argv);
    if (bench.on) return cmocka_run_group_tests(timed, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
