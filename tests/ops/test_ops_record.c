/* The layers of a stage recorded (gy_ops.record_begin, record_end) against the same calls carried out, on the GPU, bit
 * for bit: what comes out, all of the KV memory (slots that no row owns among it), and what lies around the rows.
 * Shapes of the three families at full width, and small ones; 1 to 8 rows of contexts within a tile, across tiles and
 * across chunks; several times in a row, each on what the one before left: the first of a key is carried out, the next
 * is recorded, and then started again with other positions. Recorded are as many rows as record_rows says. Skipped
 * where there is no GPU.
 *
 * Rows alone once more with the stage as one launch (gy_cuda_opts.stage), where a shape fits it.
 *
 * test_ops_record --shape N: the Nth alone. --kv int8: the KV of --time. --without MASK,...: without these parts
 * (gy_cuda_opts), one after another.
 * --time [ROWS CONTEXT]...: us a layer of Ouro-1.4B's 24, by operations and recorded without each of the masks,
 * instead; beside it what the host took to queue it. --stage FLIGHT,FLIGHT_KV,AHEAD,PACE,COUNTERS,PARTS ...: the stage
 * with this instead of 0,0,0,0,0,0 (as usual); several are tried one after another, by --time too, in one process.
 */
#include "ops_fixture.h"

#include "base/clock.h"

enum {
    MAX_ROWS = 256,
    TEST_ROWS = 64,
    RUN_ROWS = 9,
    MAX_LAYERS = 24,
    SHARED = 2048 + 64,
    OWN = 8,
    N_SLOT = SHARED + MAX_ROWS * OWN,
    CALLS = 5
};

typedef struct shape {
    const char *name;
    int32_t n_layer, kv_layers, il, n_embd, n_ff, n_head, n_kv, d;
    gy_residual_kind norms;
    gy_rope_kind rope;
    int round_each, bias, kv_i8;
} shape;

static const shape shapes[] = {
    {"ouro-1.4b", 3, 3, 0, 2048, 5632, 16, 16, 128, GY_RESIDUAL_BRANCH, GY_ROPE_HALF, 1, 0, 0},
    {"nanbeige-3b", 2, 2, 0, 3072, 10752, 48, 8, 128, GY_RESIDUAL_PRE, GY_ROPE_HALF, 1, 0, 0},
    {"huginn", 2, 4, 1, 5280, 17920, 55, 55, 96, GY_RESIDUAL_SUM, GY_ROPE_PAIRS, 0, 1, 0},
    {"small ouro", 2, 2, 0, 256, 512, 2, 2, 128, GY_RESIDUAL_BRANCH, GY_ROPE_HALF, 1, 0, 0},
    {"small nanbeige", 3, 3, 0, 192, 320, 8, 2, 64, GY_RESIDUAL_PRE, GY_ROPE_HALF, 1, 0, 0},
    {"small huginn", 1, 2, 1, 192, 256, 2, 2, 96, GY_RESIDUAL_SUM, GY_ROPE_PAIRS, 0, 1, 0},
    {"mini huginn", 4, 4, 0, 384, 1312, 4, 4, 96, GY_RESIDUAL_SUM, GY_ROPE_PAIRS, 0, 1, 0},
    {"mini nanbeige", 3, 3, 0, 384, 1344, 6, 1, 128, GY_RESIDUAL_PRE, GY_ROPE_HALF, 1, 0, 0},
    {"small ouro, KV in int8", 2, 2, 0, 256, 512, 2, 2, 128, GY_RESIDUAL_BRANCH, GY_ROPE_HALF, 1, 0, 1},
    {"small nanbeige, KV in int8", 3, 3, 0, 192, 320, 8, 2, 64, GY_RESIDUAL_PRE, GY_ROPE_HALF, 1, 0, 1},
    {"mini huginn, KV in int8", 4, 4, 0, 384, 1312, 4, 4, 96, GY_RESIDUAL_SUM, GY_ROPE_PAIRS, 0, 1, 1},
    {"mini nanbeige, KV in int8", 3, 3, 0, 384, 1344, 6, 1, 128, GY_RESIDUAL_PRE, GY_ROPE_HALF, 1, 0, 1},
};

/* Random BF16 between -1 and 1; a tensor is a run of it, scaled where it is made. Its length is odd, so that rows of
 * one tensor do not repeat. */
enum { POOL = 8388593 };
typedef struct layer {
    const gy_weight *qkv, *o, *gate_up, *down;
    const void *norm[4], *q_bias, *k_bias;
} layer;

typedef struct fixture {
    gy_backend *be;
    uint32_t without;
    const shape *s;
    float *unit;     /* [POOL] host */
    uint16_t *piece; /* [POOL] of the last tensor's base and amplitude */
    float base, amplitude;
    size_t drawn;
    gy_weight w[MAX_LAYERS][4];
    layer layer[MAX_LAYERS];
    gy_kv_view kv[2]; /* of the composition, of the stack */
    void *held[MAX_LAYERS * 10 + 64];
    int n_held;
    size_t kv_bytes;
    int32_t *map; /* host, [MAX_ROWS][SHARED + OWN] */
    char *x[2];   /* rows with a border before and behind */
    char *scratch;
    size_t scratch_bytes;
    void *a, *b, *qkv, *att, *gu, *f, *pos, *slot, *off, *dev_map;
    float *cos, *sin;
    void *record;
    int32_t n_layer;
    int is_stage;
} fixture;

enum { BORDER = 1024, KV_OFTEN = 64 << 20 }; /* more KV memory than that is compared at the end */

static void *hold(fixture *f, size_t bytes) {
    void *p = f->be->ops->alloc(f->be, bytes);
    assert_non_null(p);
    assert_true(f->n_held < COUNT(f->held));
    return f->held[f->n_held++] = p;
}

/* n elements of base + amplitude * random. */
static void *tensor(fixture *f, size_t n, float base, float amplitude) {
    char *p = hold(f, n * 2);
    if (base != f->base || amplitude != f->amplitude)
        for (size_t i = 0; i < POOL; i++) f->piece[i] = gy_f32_to_bf16(base + amplitude * f->unit[i]);
    f->base = base;
    f->amplitude = amplitude;
    size_t at = f->drawn * 977 % POOL;
    for (size_t i = 0, take; i < n; i += take, at = 0) {
        take = n - i < POOL - at ? n - i : POOL - at;
        f->be->ops->upload(f->be, p + i * 2, f->piece + at, take * 2);
    }
    f->drawn += n + 12345;
    return p;
}

static gy_weight matrix(fixture *f, int32_t n, int32_t k) {
    gy_weight w = {.dtype = GY_BF16, .n = n, .k = k, .n_part = 1};
    w.part[0].data = tensor(f, (size_t)n * (size_t)k, 0.0f, 0.035f);
    w.part[0].n = n;
    return w;
}

static void make_layer(fixture *f, int i) {
    const shape *s = f->s;
    int32_t q = s->n_head * s->d, kv = s->n_kv * s->d;
    gy_weight *w = f->w[i];
    w[0] = matrix(f, q + 2 * kv, s->n_embd);
    w[1] = matrix(f, s->n_embd, q);
    w[2] = matrix(f, 2 * s->n_ff, s->n_embd);
    w[3] = matrix(f, s->n_embd, s->n_ff);
    layer *l = &f->layer[i];
    *l = (layer){.qkv = &w[0], .o = &w[1], .gate_up = &w[2], .down = &w[3]};
    for (int k = 0; k < 4; k++)
        if (s->norms != GY_RESIDUAL_PRE || k % 2 == 0) l->norm[k] = tensor(f, (size_t)s->n_embd, 1.0f, 0.5f);
    if (s->bias) l->q_bias = tensor(f, (size_t)q, 0.0f, 0.1f), l->k_bias = tensor(f, (size_t)kv, 0.0f, 0.1f);
    for (int k = 0; k < 4; k++) f->be->ops->prepare(f->be, &w[k], 0);
}

/* n rows of KV in I8: random numbers, scales of about 1 / 127. */
static void *rows_in_i8(fixture *f, const gy_kv_view *kv, size_t n) {
    size_t row = (size_t)gy_kv_row(kv), numbers = (size_t)(kv->n_head_kv * kv->head_dim);
    char *host = malloc(n * row), *p = hold(f, n * row);
    for (size_t i = 0; i < n; i++) {
        for (size_t e = 0; e < numbers; e++)
            host[i * row + e] = (char)(int)(127.0f * f->unit[(i * numbers + e) % POOL]);
        for (size_t h = 0; h < (size_t)kv->n_head_kv; h++) {
            float scale = (1.0f + 0.5f * f->unit[(i * 31 + h) % POOL]) / 127.0f;
            memcpy(host + i * row + numbers + h * GY_KV_SCALE_BYTES, &scale, sizeof scale);
        }
    }
    f->be->ops->upload(f->be, p, host, n * row);
    free(host);
    return p;
}

static void make_kv(fixture *f) {
    const shape *s = f->s;
    size_t rows = (size_t)(N_SLOT + 15) / 16 * 16 * (size_t)s->kv_layers * 2;
    for (int i = 0; i < 2; i++) {
        size_t drawn = f->drawn;
        f->kv[i] = (gy_kv_view){.map = f->dev_map,
                                .n_map = MAX_ROWS * (SHARED + OWN),
                                .dtype = s->kv_i8 ? GY_I8 : GY_BF16,
                                .n_layer = s->kv_layers,
                                .n_head_kv = s->n_kv,
                                .head_dim = s->d};
        size_t n = rows * (size_t)gy_kv_row(&f->kv[i]);
        f->kv_bytes = n * (s->kv_i8 ? 1 : 2);
        f->kv[i].base = s->kv_i8 ? rows_in_i8(f, &f->kv[i], rows) : tensor(f, n, 0.0f, 1.0f);
        if (!i) f->drawn = drawn; /* the same again */
    }
}

/* Residuals are read afterwards, all else is not. */
static void open_record(fixture *f) {
    f->record = f->be->ops->record_open(f->be, f->scratch, f->scratch_bytes);
    assert_non_null(f->record);
}

static void fixture_open(fixture *f, const shape *s, int32_t n_layer, uint32_t without, const gy_cuda_stage *stage) {
    *f = (fixture){.s = s, .n_layer = n_layer, .without = without, .is_stage = stage != NULL};
    gy_cuda_opts o = {.act = GY_BF16,
                      .n_thread = 1,
                      .limits = {.max_row = MAX_ROWS, .max_k = 17920, .max_len = 4096},
                      .without = without | (stage ? 0 : GY_CUDA_STAGE)};
    gy_err err = {0};
    if (stage) o.stage = *stage;
    if (gy_backend_cuda_create(&o, &err, &f->be) < 0) fail_msg("%s", err.msg);
    f->unit = malloc(POOL * sizeof *f->unit);
    f->piece = malloc(POOL * sizeof *f->piece);
    f->map = malloc(MAX_ROWS * (SHARED + OWN) * sizeof *f->map);
    uint64_t z = 12345;
    for (size_t i = 0; i < POOL; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        f->unit[i] = (float)(z >> 40) * 0x1p-23f - 1.0f;
    }
    for (int32_t i = 0; i < n_layer; i++) make_layer(f, i);
    size_t rows = MAX_ROWS, q = (size_t)(s->n_head * s->d), kv = (size_t)(s->n_kv * s->d);
    for (int i = 0; i < 2; i++) f->x[i] = hold(f, rows * (size_t)s->n_embd * 2 + 2 * BORDER);
    void **part[6] = {&f->a, &f->b, &f->qkv, &f->att, &f->gu, &f->f};
    size_t embd = (size_t)s->n_embd, ff = (size_t)s->n_ff, width[6] = {embd, embd, q + 2 * kv, q, 2 * ff, ff}, at = 0;
    for (int i = 0; i < 6; i++) f->scratch_bytes += (width[i] * rows * 2 + 255) / 256 * 256;
    f->scratch = hold(f, f->scratch_bytes);
    for (int i = 0; i < 6; at += (width[i++] * rows * 2 + 255) / 256 * 256) *part[i] = f->scratch + at;
    f->cos = hold(f, rows * (size_t)s->d * 2);
    f->sin = hold(f, rows * (size_t)s->d * 2);
    f->pos = hold(f, rows * 4);
    f->slot = hold(f, rows * 4);
    f->off = hold(f, rows * 8);
    f->dev_map = hold(f, MAX_ROWS * (SHARED + OWN) * 4);
    make_kv(f);
    open_record(f);
}

static void fixture_close(fixture *f) {
    f->be->ops->record_close(f->be, f->record);
    for (int i = 0; i < f->n_held; i++) f->be->ops->free(f->be, f->held[i], 0);
    gy_backend_destroy(f->be);
    free(f->unit);
    free(f->piece);
    free(f->map);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------
 */

/* Position j of a row that starts at pos is slot 17 j mod N_SLOT of what all share, from pos on the row's own. */
static void place_rows(fixture *f, int32_t n_row, const int32_t *pos) {
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t j = 0; j < SHARED + OWN; j++) {
            int32_t at = j < pos[r] ? j : j - pos[r] < OWN ? SHARED + r * OWN + j - pos[r] : 0;
            f->map[r * (SHARED + OWN) + j] = (int32_t)((int64_t)at * 17 % N_SLOT);
        }
    f->be->ops->upload(f->be, f->dev_map, f->map, MAX_ROWS * (SHARED + OWN) * sizeof *f->map);
}

/* Where the batch's rows stand, in the host's memory; filled up. */
typedef struct places {
    int32_t pos[MAX_ROWS];
    int64_t off[MAX_ROWS];
} places;

static gy_rows tell_rows(fixture *f, const places *at, int32_t n_row) {
    f->be->ops->begin_rows(f->be, &(gy_rows){.n_row = n_row, .pos = at->pos, .map_off = at->off});
    return (gy_rows){.n_row = n_row, .pos = f->pos, .slot = f->slot, .map_off = f->off};
}

/* The rows' positions step further; all may stand on the map row of the first. */
static int32_t begin(fixture *f, int32_t n, const int32_t *pos, int32_t step, int one_sequence, places *at) {
    int32_t *p = at->pos, slot[MAX_ROWS], n_row = f->be->ops->record_rows(f->be, n);
    int64_t *off = at->off;
    float inv_freq[64];
    for (int32_t r = n; r < n_row; r++) p[r] = slot[r] = -1, off[r] = 0;
    for (int32_t r = 0; r < n; r++) {
        p[r] = pos[r] + step;
        off[r] = one_sequence ? 0 : r * (SHARED + OWN);
        slot[r] = f->map[off[r] + p[r]];
    }
    for (int i = 0; i < f->s->d / 2; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)f->s->d);
    gy_backend *be = f->be;
    be->ops->upload(be, f->pos, p, (size_t)n_row * 4);
    be->ops->upload(be, f->slot, slot, (size_t)n_row * 4);
    be->ops->upload(be, f->off, off, (size_t)n_row * 8);
    be->ops->upload(be, f->gu, inv_freq, sizeof inv_freq);
    be->ops->rope_table(be, &(gy_rope_table_args){.pos = f->pos,
                                                  .inv_freq = f->gu,
                                                  .n_row = n_row,
                                                  .half = f->s->d / 2,
                                                  .round_bf16 = f->s->round_each,
                                                  .cos_out = f->cos,
                                                  .sin_out = f->sin});
    return n_row;
}

static void residual_norm(fixture *f, void *x, int32_t n_row, const void *w, const void *next) {
    gy_backend *be = f->be;
    gy_residual_args r = {
        .h = x, .b = f->b, .w = w, .kind = f->s->norms, .eps = 1e-6f, .n_row = n_row, .n = f->s->n_embd};
    if (next)
        be->ops->residual_norm(be, &(gy_residual_norm_args){.r = r, .w = next, .eps = 1e-6f, .y = f->a});
    else
        be->ops->residual(be, &r);
}

static void linear(fixture *f, const void *x, const gy_weight *w, int32_t n_row, void *y) {
    f->be->ops->linear(f->be, &(gy_linear_args){.x = x, .w = w, .n_row = n_row, .y = y});
}

/* which: 0 what is expected, 1 what is tried. */
static void compose(fixture *f, int which, gy_rows rows) {
    const shape *s = f->s;
    gy_backend *be = f->be;
    void *x = f->x[which] + BORDER;
    int32_t n = rows.n_row, n_layer = f->n_layer;
    be->ops->norm(
        be, &(gy_norm_args){.x = x, .w = f->layer[0].norm[0], .eps = 1e-6f, .n_row = n, .n = s->n_embd, .y = f->a});
    for (int32_t i = 0; i < n_layer; i++) {
        const layer *l = &f->layer[i];
        linear(f, f->a, l->qkv, n, f->qkv);
        be->ops->rope_kv(be, &(gy_rope_kv_args){.qkv = f->qkv,
                                                .q_bias = l->q_bias,
                                                .k_bias = l->k_bias,
                                                .cos = f->cos,
                                                .sin = f->sin,
                                                .kind = s->rope,
                                                .round_each = s->round_each,
                                                .n_head = s->n_head,
                                                .kv = &f->kv[which],
                                                .il = s->il + i,
                                                .rows = rows});
        be->ops->attn(be, &(gy_attn_args){.q = f->qkv,
                                          .q_stride = (s->n_head + 2 * s->n_kv) * s->d,
                                          .n_head = s->n_head,
                                          .scale = (float)(1.0 / sqrt((double)s->d)),
                                          .kv = &f->kv[which],
                                          .il = s->il + i,
                                          .rows = rows,
                                          .y = f->att});
        linear(f, f->att, l->o, n, f->b);
        residual_norm(f, x, n, l->norm[1], l->norm[2]);
        linear(f, f->a, l->gate_up, n, f->gu);
        be->ops->silu_mul(be, &(gy_silu_mul_args){.gu = f->gu, .n_row = n, .n_ff = s->n_ff, .y = f->f});
        linear(f, f->f, l->down, n, f->b);
        residual_norm(f, x, n, l->norm[3], i + 1 < n_layer ? f->layer[i + 1].norm[0] : NULL);
    }
}

/* Whether it was started as a recording that was there. */
static int run_recorded(fixture *f, gy_rows rows) {
    gy_record_key key = {.what = 1, .n_row = rows.n_row, .has = GY_RECORD_ATTN};
    if (f->be->ops->record_begin(f->be, f->record, &key)) return 1;
    compose(f, 1, rows);
    f->be->ops->record_end(f->be, f->record);
    return 0;
}

static void fill_rows(fixture *f, int32_t n_row) {
    size_t n = (size_t)n_row * (size_t)f->s->n_embd, all = MAX_ROWS * (size_t)f->s->n_embd * 2 + 2 * BORDER;
    uint16_t *host = malloc(all);
    memset(host, 0x5a, all);
    for (size_t i = 0; i < n; i++) host[BORDER / 2 + i] = gy_f32_to_bf16(f->unit[(i * 7 + f->drawn) % POOL]);
    f->drawn += 1009;
    for (int i = 0; i < 2; i++) f->be->ops->upload(f->be, f->x[i], host, all);
    free(host);
}

static void compare(fixture *f, const void *a, const void *b, size_t bytes, const char *what) {
    char *ha = malloc(bytes), *hb = malloc(bytes);
    gy_err err = {0};
    f->be->ops->download(f->be, ha, a, bytes);
    f->be->ops->download(f->be, hb, b, bytes);
    if (f->be->ops->sync(f->be, &err) != GY_OK) fail_msg("%s: %s", what, err.msg);
    same_check(hb, ha, bytes, what);
    free(ha);
    free(hb);
}

/* ---- the test -----------------------------------------------------------------------------------------------------
 */

typedef struct batch {
    int32_t n_row, pos[8];
} batch;
static const batch batches[] = {
    {1, {0}},
    {1, {1}},
    {1, {63}},
    {1, {64}},
    {1, {127}},
    {1, {300}},
    {1, {511}},
    {1, {1100}},
    {1, {2040}},
    {1, {1022}},
    {1, {510}},
    {2, {5, 513}},
    {3, {128, 0, 1023}},
    {4, {1, 2, 3, 4}},
    {5, {510, 64, 1130, 31, 200}},
    {8, {0, 1300, 127, 63, 512, 90, 1024, 33}},
    {16, {100, 127, 128, 0, 1023, 511, 640, 7}},
    {33, {0, 255, 300, 1100, 20, 512, 64, 130}},
    {64, {5, 500, 90, 128, 1, 700, 1023, 60}},
};
static int32_t pos_of(const batch *b, int32_t r) {
    return b->pos[r % 8] + 13 * (r / 8);
}

/* Both ways, and what became of it. Rows that fill up are nobody's. */
static int run_both(fixture *f, int32_t n_row, const int32_t *pos, int32_t step, int one_sequence, const char *what) {
    places at;
    int32_t n_all = begin(f, n_row, pos, step, one_sequence, &at);
    int has_run = run_recorded(f, tell_rows(f, &at, n_all));
    compose(f, 0, tell_rows(f, &at, n_row));
    size_t rows = (size_t)(n_all > n_row ? n_row : MAX_ROWS), border = n_all > n_row ? BORDER : 2 * BORDER;
    compare(f, f->x[0], f->x[1], rows * (size_t)f->s->n_embd * 2 + border, what);
    return has_run;
}

/* How often the layers ran as a recording. */
static int run_batch(fixture *f, const batch *b) {
    char what[128];
    int n_ran = 0;
    int32_t pos[TEST_ROWS];
    for (int32_t r = 0; r < b->n_row; r++) pos[r] = pos_of(b, r);
    place_rows(f, b->n_row, pos);
    fill_rows(f, b->n_row);
    for (int32_t call = 0; call < CALLS; call++) {
        snprintf(what, sizeof what, "%s, without %u%s, %d rows, row 0 at %d, call %d", f->s->name, f->without,
                 f->is_stage ? ", stage" : "", b->n_row, b->pos[0], call);
        n_ran += run_both(f, b->n_row, pos, call, 0, what);
    }
    if (f->kv_bytes < KV_OFTEN || b == &batches[COUNT(batches) - 1])
        compare(f, f->kv[0].base, f->kv[1].base, f->kv_bytes, what);
    return n_ran;
}

/* Rows that read what others of the batch write: composed, whatever is fused. */
static void run_shared(fixture *f) {
    static const int32_t pos[5] = {40, 41, 42, 43, 44};
    int32_t n_ran = 0;
    place_rows(f, 5, pos);
    fill_rows(f, 5);
    for (int i = 0; i < 4; i++) n_ran += run_both(f, 5, pos, 0, 1, "rows of one sequence");
    assert_true(n_ran > 0);
}

/* A prompt: carried out, however often it comes. */
static void run_prompt(fixture *f) {
    static const int32_t pos[RUN_ROWS] = {3, 4, 5, 6, 7, 8, 9, 10, 11};
    place_rows(f, RUN_ROWS, pos);
    fill_rows(f, RUN_ROWS);
    for (int i = 0; i < 4; i++) assert_int_equal(run_both(f, RUN_ROWS, pos, 0, 1, "a prompt"), 0);
}

static int only = -1;               /* this shape alone */
static int times_kv_i8;             /* --kv int8 */
static const char *masks = "0,2,4"; /* of --without */

/* Whether gate and up stay unwritten: silu_mul was done where they were made. Tells it, because a test that compares
 * what is not there compares nothing. */
static int leaves_gate_up(fixture *f) {
    uint16_t poison = 0x1234, found = 0;
    char *last = (char *)f->gu + (2 * f->s->n_ff - 1) * 2;
    int32_t pos[1] = {9};
    places at;
    place_rows(f, 1, pos);
    int32_t n_all = begin(f, 1, pos, 0, 0, &at);
    f->be->ops->upload(f->be, last, &poison, sizeof poison);
    for (int i = 0; i < 3; i++) {
        gy_rows rows = tell_rows(f, &at, n_all);
        if (run_recorded(f, rows)) break;
        f->be->ops->upload(f->be, last, &poison, sizeof poison);
    }
    f->be->ops->download(f->be, &found, last, sizeof found);
    return found == poison;
}

static void run_shape(fixture *f) {
    for (int k = 0; k < COUNT(batches); k++) assert_true(run_batch(f, &batches[k]) > 0);
    run_shared(f);
    run_prompt(f);
    int is_fused = leaves_gate_up(f);
    assert_true(!is_fused || !(f->without & GY_CUDA_FUSED));
    print_message("    %s, without %u: equal%s\n", f->s->name, f->without, is_fused ? ", silu in gate_up" : "");
}

/* Ways that are tried one after another; none given: as usual. */
static gy_cuda_stage stages[32];
static int n_stage;

static void add_stage(char *text) {
    gy_cuda_stage *s = &stages[n_stage++];
    int32_t *const field[] = {&s->flight, &s->flight_up, &s->flight_kv, &s->n_counter, &s->parts};
    *s = (gy_cuda_stage){0};
    for (int i = 0; i < COUNT(field); i++) {
        char *word = strtok_r(text, ",", &text);
        if (word) *field[i] = atoi(word);
    }
}

/* What layers leave between them stays unwritten where all of them are one launch. */
static int leaves_nothing(fixture *f) {
    uint16_t poison = 0x1234, found = 0;
    int32_t pos[1] = {9};
    places at;
    place_rows(f, 1, pos);
    int32_t n_all = begin(f, 1, pos, 0, 0, &at);
    for (int i = 0; i < 3; i++) {
        f->be->ops->upload(f->be, f->att, &poison, sizeof poison);
        if (run_recorded(f, tell_rows(f, &at, n_all))) break;
    }
    f->be->ops->download(f->be, &found, f->att, sizeof found);
    return found == poison;
}

/* Rows alone, with the stage as one launch. */
static void run_stages(const shape *s) {
    static fixture f;
    int fits =
        s->d == 128 && s->n_embd <= 2048 && s->n_ff <= 5632 && s->norms != GY_RESIDUAL_SUM && !s->bias && !s->kv_i8;
    for (int i = 0; i < (n_stage ? n_stage : 1); i++) {
        fixture_open(&f, s, s->n_layer, 0, &stages[i]);
        for (int k = 0; k < COUNT(batches); k++)
            if (batches[k].n_row == 1) assert_true(run_batch(&f, &batches[k]) > 0);
        compare(&f, f.kv[0].base, f.kv[1].base, f.kv_bytes, s->name);
        int is_one = leaves_nothing(&f);
        print_message("    %s, stage %d: equal%s\n", s->name, i, is_one ? ", one launch" : "");
        assert_int_equal(is_one, fits);
        fixture_close(&f);
    }
}

static void test_stages(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    for (int i = 0; i < COUNT(shapes); i++)
        if (only < 0 || i == only) run_stages(&shapes[i]);
}

static void test_shapes(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    for (int i = 0; i < COUNT(shapes); i++) {
        char all[256], *rest = all;
        if (only >= 0 && i != only) continue;
        snprintf(all, sizeof all, "%s", i < 3 && only < 0 ? "0" : masks); /* the wide ones take their time */
        for (char *mask; (mask = strtok_r(rest, ",", &rest));) {
            static fixture f;
            fixture_open(&f, &shapes[i], shapes[i].n_layer, (uint32_t)atoi(mask), NULL);
            run_shape(&f);
            fixture_close(&f);
        }
    }
}

/* ---- times --------------------------------------------------------------------------------------------------------
 */

typedef struct timed {
    double all, queued; /* us a layer: until the device is done, until the host has queued it */
} timed;

/* The shortest of a few runs of several passes; 0: not recorded. */
static timed time_of(fixture *f, int is_recorded, gy_rows rows) {
    enum { REPEATS = 12, RUNS = 4 };
    timed best = {1e9, 1e9};
    gy_err err = {0};
    for (int i = 0; is_recorded && i < 3; i++)
        if (!run_recorded(f, rows) && i == 2) return (timed){0.0, 0.0};
    for (int run = 0; run < RUNS; run++) {
        if (f->be->ops->sync(f->be, &err) != GY_OK) fail_msg("%s", err.msg);
        int64_t begun = gy_clock_ns();
        for (int i = 0; i < REPEATS; i++) {
            if (is_recorded)
                run_recorded(f, rows);
            else
                compose(f, 0, rows);
        }
        double queued = (double)(gy_clock_ns() - begun) / 1e3 / REPEATS / MAX_LAYERS;
        if (f->be->ops->sync(f->be, &err) != GY_OK) fail_msg("%s", err.msg);
        double all = (double)(gy_clock_ns() - begun) / 1e3 / REPEATS / MAX_LAYERS;
        if (all < best.all) best = (timed){all, queued};
    }
    return best;
}

static void print_cell(fixture *f, int32_t n_row, int32_t context) {
    int32_t pos[MAX_ROWS];
    for (int r = 0; r < n_row; r++) pos[r] = context - 1;
    place_rows(f, n_row, pos);
    fill_rows(f, n_row);
    places at;
    int32_t n_all = begin(f, n_row, pos, 0, 0, &at);
    gy_rows rows = tell_rows(f, &at, n_all);
    timed one = time_of(f, 0, rows), all = time_of(f, 1, rows);
    printf(
        "%3d rows, context %4d, without %u%s: by operations %.2f us a layer (queued in %.2f), recorded %.2f (%.2f)\n",
        n_row, context, f->without, f->is_stage ? ", stage" : "", one.all, one.queued, all.all, all.queued);
    fflush(stdout);
}

static void print_cells(const shape *s, uint32_t without, const gy_cuda_stage *stage, int n, char **args) {
    static const char *const usual[] = {"1", "128", "1", "2048", "2", "512", "4", "1024", "8", "128", "8", "1024"};
    static fixture f;
    fixture_open(&f, s, MAX_LAYERS, without, stage);
    for (int i = 0; i + 1 < (n ? n : COUNT(usual)); i += 2)
        print_cell(&f, atoi(n ? args[i] : usual[i]), atoi(n ? args[i + 1] : usual[i + 1]));
    fixture_close(&f);
}

static void print_times(int n, char **args) {
    char all[256], *rest = all;
    shape s = shapes[0];
    s.n_layer = s.kv_layers = MAX_LAYERS;
    s.kv_i8 = times_kv_i8;
    snprintf(all, sizeof all, "%s", masks);
    for (char *mask; (mask = strtok_r(rest, ",", &rest));) print_cells(&s, (uint32_t)atoi(mask), NULL, n, args);
    for (int i = 0; i < n_stage; i++) {
        const gy_cuda_stage *t = &stages[i];
        printf("stage: flight %d, of gate and up %d, of K and V %d, counters %d, parts %d\n", t->flight, t->flight_up,
               t->flight_kv, t->n_counter, t->parts);
        print_cells(&s, 0, t, n, args);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_stages)};
    const struct CMUnitTest one[] = {cmocka_unit_test(test_stages)};
    for (; argc > 2; argc -= 2, argv += 2) {
        if (!strcmp(argv[1], "--kv"))
            times_kv_i8 = !strcmp(argv[2], "int8");
        else if (!strcmp(argv[1], "--without"))
            masks = argv[2];
        else if (strcmp(argv[1], "--stage") != 0)
            break;
        else if (n_stage < COUNT(stages))
            add_stage(argv[2]);
    }
    if (argc > 1 && !strcmp(argv[1], "--time")) {
        if (!cuda_missing()) print_times(argc - 2, argv + 2);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "--shape")) only = atoi(argv[2]);
    if (n_stage) return cmocka_run_group_tests(one, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
