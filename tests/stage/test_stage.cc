/* A stage's kernel (src/ops/cuda/stage_kernel.cuh) on a made-up GPU (machine.h), against a plain composition of the
 * same functions, bit for bit: the residual stream and all of the KV memory, over drawn schedules, so that no order in
 * which blocks run, copies end and words become visible deadlocks or changes a bit. Small shapes; contexts across
 * groups, tiles and chunks; a chunk shared by 1, 2 and 4 blocks; rings that go round within a product; rounds of more
 * than 11 tiles; several launches on one memory.
 *
 * test_stage [SCHEDULES [FIRST_SEED]]: so many for each case.
 */
#include "machine.h"

#include "ops/cuda/stage_kernel.cuh"

#include <cstdio>
#include <map>
#include <vector>

typedef struct emu_case {
    const char *name;
    int32_t n_embd, n_ff, n_head, n_kv, n_layer, blocks, n_part, context;
    gy_residual_kind norms;
    stage_tuning tune;
} emu_case;

#define TUNE(flight, kv, counters)                                                                                     \
    { flight, kv, kv, counters, 4 }
static const emu_case cases[] = {
    {"one position", 128, 192, 2, 2, 2, 8, 4, 1, GY_RESIDUAL_BRANCH, TUNE(4, 6, 8)},
    {"a group", 128, 192, 2, 2, 2, 8, 4, 32, GY_RESIDUAL_BRANCH, TUNE(4, 6, 0)},
    {"a group and one", 128, 192, 2, 2, 2, 8, 2, 33, GY_RESIDUAL_PRE, TUNE(1, 1, 1)},
    {"a tile", 192, 192, 2, 2, 2, 8, 1, 128, GY_RESIDUAL_BRANCH, TUNE(5, 8, 8)},
    {"a tile and one", 128, 192, 2, 2, 2, 8, 4, 129, GY_RESIDUAL_BRANCH, TUNE(14, 14, 0)},
    {"a chunk but one", 128, 192, 2, 2, 1, 8, 4, 511, GY_RESIDUAL_PRE, TUNE(4, 8, 8)},
    {"a chunk", 128, 192, 2, 2, 2, 8, 4, 512, GY_RESIDUAL_BRANCH, TUNE(4, 14, 8)},
    {"a chunk and one", 128, 192, 2, 2, 2, 8, 2, 513, GY_RESIDUAL_BRANCH, TUNE(4, 8, 8)},
    {"three chunks", 128, 192, 2, 2, 2, 8, 1, 1100, GY_RESIDUAL_BRANCH, TUNE(14, 14, 4)},
    {"heads of a group", 192, 192, 6, 1, 2, 8, 2, 600, GY_RESIDUAL_PRE, TUNE(5, 8, 8)},
    {"sixteen of a group", 128, 192, 16, 1, 1, 4, 4, 200, GY_RESIDUAL_BRANCH, TUNE(5, 8, 2)},
    {"rounds", 576, 640, 2, 2, 2, 4, 2, 300, GY_RESIDUAL_BRANCH, TUNE(14, 14, 8)},
    {"a long product", 1088, 1216, 2, 2, 1, 6, 2, 140, GY_RESIDUAL_BRANCH, TUNE(14, 14, 0)},
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct emu_model {
    const emu_case *c;
    std::vector<uint16_t> w[8][STAGE_PRODUCTS], norm[8][4], x, kv;
    std::vector<int32_t> map;
    std::vector<float> cos, sin;
    std::vector<uint64_t> words;
    std::vector<stage_report> report;
    int32_t pos, slot;
    int64_t map_off;
} emu_model;

static uint64_t drawn = 1;
static float next_value(void) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (float)(drawn >> 40) * 0x1p-23f - 1.0f;
}
static void fill(std::vector<uint16_t> *v, size_t n, float base, float size) {
    v->resize(n);
    for (auto &x : *v) x = emu_bf16(base + size * next_value());
}

static void make_model(emu_model *m, const emu_case *c) {
    int32_t att = c->n_head * STAGE_D, n_slot = (c->context + 47) / 16 * 16;
    if (n_slot % 7 == 0) n_slot += 16; /* position j is at 7 j */
    int32_t n[STAGE_PRODUCTS] = {att + 2 * c->n_kv * STAGE_D, c->n_embd, 2 * c->n_ff, c->n_embd};
    int32_t k[STAGE_PRODUCTS] = {c->n_embd, att, c->n_embd, c->n_ff};
    m->c = c;
    for (int32_t l = 0; l < c->n_layer; l++) {
        for (int i = 0; i < STAGE_PRODUCTS; i++) fill(&m->w[l][i], (size_t)n[i] * (size_t)k[i], 0.0f, 0.15f);
        for (int i = 0; i < 4; i++) fill(&m->norm[l][i], (size_t)c->n_embd, 1.0f, 0.5f);
    }
    fill(&m->x, (size_t)c->n_embd, 0.0f, 1.0f);
    fill(&m->kv, (size_t)n_slot * (size_t)c->n_layer * 2 * (size_t)c->n_kv * STAGE_D, 0.0f, 1.5f);
    m->map_off = 3;
    m->map.assign(3 + (size_t)c->context, -1);
    for (int32_t j = 0; j < c->context; j++) m->map[3 + (size_t)j] = (int32_t)((int64_t)j * 7 % n_slot);
    m->pos = c->context - 1;
    m->slot = m->map.back();
    for (int i = 0; i < STAGE_D / 2; i++) {
        float angle = (float)m->pos / (float)(1 + i);
        m->cos.push_back(cosf(angle));
        m->sin.push_back(sinf(angle));
    }
    m->report.resize(STAGE_BLOCKS);
}

/* As stage.cu does; slots of 8 bytes. */
static void lay_out(emu_model *m, stage_args *a) {
    const emu_case *c = m->c;
    size_t att = (size_t)c->n_head * 64, heads = att + 2 * (size_t)c->n_kv * 64, embd = (size_t)c->n_embd / 2;
    size_t part = (size_t)(c->n_head * a->n_chunk * a->n_part) * (size_t)(STAGE_D / a->n_part + 2);
    size_t counters = (size_t)4 * STAGE_COUNTERS * STAGE_LINE / 2;
    m->words.resize(counters + 2 + heads + att + 2 * embd + (size_t)c->n_ff / 2 + part + 2);
    uint64_t *at = (uint64_t *)(((uintptr_t)m->words.data() + 15) / 16 * 16);
    a->to.counter = (uint32_t *)at, at += counters;
    a->to.epoch = (uint32_t *)at, at += 2;
    a->to.qkv = at, at += heads;
    a->to.att = at, at += att;
    a->to.out = at, at += embd;
    a->to.f = at, at += c->n_ff / 2;
    a->to.down = at, at += embd;
    a->to.part = at;
}

static void make_args(emu_model *m, stage_args *a) {
    const emu_case *c = m->c;
    int32_t att = c->n_head * STAGE_D;
    int32_t n[STAGE_PRODUCTS] = {att + 2 * c->n_kv * STAGE_D, c->n_embd, 2 * c->n_ff, c->n_embd};
    int32_t k[STAGE_PRODUCTS] = {c->n_embd, att, c->n_embd, c->n_ff};
    memset((void *)a, 0, sizeof *a);
    for (int32_t l = 0; l < c->n_layer; l++) {
        for (int i = 0; i < STAGE_PRODUCTS; i++) a->map[l][i] = {m->w[l][i].data(), n[i], k[i], i == STAGE_GATE_UP};
        for (int i = 0; i < 4; i++) a->layer[l].norm[i] = (const bf16 *)m->norm[l][i].data();
    }
    a->n_layer = a->kv_layers = c->n_layer;
    a->n_embd = c->n_embd, a->n_ff = c->n_ff, a->n_head = c->n_head, a->n_head_kv = c->n_kv;
    a->n_chunk = (c->context - 1) / STAGE_CHUNK + 1;
    a->n_part = c->n_part;
    a->round_each = 1;
    a->norms = c->norms;
    a->eps = 1e-6f;
    a->scale = 0.0883883f * 1.442695f;
    a->by_n_embd = c->n_embd & (c->n_embd - 1) ? 0.0 : 1.0 / c->n_embd;
    a->tune = c->tune;
    a->x = (bf16 *)m->x.data(), a->kv = (bf16 *)m->kv.data();
    a->map_of = m->map.data(), a->map_off = &m->map_off, a->pos = &m->pos, a->slot = &m->slot;
    a->cos = m->cos.data(), a->sin = m->sin.data();
    a->report = m->report.data();
    a->patience = (long long)1 << 60;
    lay_out(m, a);
}

/* ---- the composition --------------------------------------------------------------------------------------------- */

static float wide(uint16_t v) {
    return __uint_as_float((uint32_t)v << 16);
}
static float rounded(float v) {
    return wide(emu_bf16(v));
}

static std::vector<float> product_of(const std::vector<uint16_t> &w, const std::vector<float> &x) {
    std::vector<float> y(w.size() / x.size());
    for (size_t i = 0; i < y.size(); i++) {
        float sum = 0.0f;
        for (size_t k = 0; k < x.size(); k++) sum = fmaf(x[k], wide(w[i * x.size() + k]), sum);
        y[i] = rounded(sum);
    }
    return y;
}

/* rows.cu's tree: eight elements a thread, 32 lanes, 8 warps. */
static float scale_in_order(const std::vector<float> &v, float eps) {
    double lane[256] = {}, sum = 0.0;
    for (size_t i = 0; i < v.size(); i++) lane[i / 8] += (double)v[i] * (double)v[i];
    for (int w = 0; w < 8; w++) {
        double *l = lane + w * 32;
        for (int o = 16; o; o >>= 1)
            for (int i = 0; i < o; i++) l[i] += l[i + o];
        sum = w ? sum + l[0] : l[0];
    }
    return 1.0f / sqrtf((float)(sum / (double)v.size()) + eps);
}
static std::vector<float> normed_row(const std::vector<float> &v, const std::vector<uint16_t> &w, float eps) {
    float scale = scale_in_order(v, eps);
    std::vector<float> y(v.size());
    for (size_t i = 0; i < v.size(); i++) y[i] = rounded(rounded(v[i] * scale) * wide(w[i]));
    return y;
}

static void turn(std::vector<float> *v, size_t at, const emu_model *m) {
    for (size_t i = 0; i < STAGE_D / 2; i++) {
        float *a = &(*v)[at + i], *b = a + STAGE_D / 2, c = m->cos[i], s = m->sin[i], x = *a, y = *b;
        *a = rounded(rounded(x * c) - rounded(y * s));
        *b = rounded(rounded(y * c) + rounded(x * s));
    }
}

static size_t kv_at(const emu_model *m, int32_t slot, int32_t layer, int is_v, int32_t head) {
    size_t row = (size_t)m->c->n_kv * STAGE_D;
    return (((size_t)(slot / 16) * (size_t)m->c->n_layer + (size_t)layer) * 2 + (size_t)is_v) * 16 * row +
           (size_t)(slot % 16) * row + (size_t)head * STAGE_D;
}

typedef struct head_state {
    float m, l[4], a[STAGE_D];
} head_state;

/* A tile of 128 positions from `first` on, as attn_tile.cuh says. */
static void add_tile(const emu_model *m, head_state *h, const float *q, int32_t layer, int32_t kv_head, int32_t first,
                     float scale) {
    float s[128], top = -INFINITY, group[4][4] = {};
    for (int32_t j = 0; j < 128; j++) {
        s[j] = -INFINITY;
        if (first + j > m->pos) continue;
        const uint16_t *k = &m->kv[kv_at(m, m->map[(size_t)(3 + first + j)], layer, 0, kv_head)];
        s[j] = 0.0f;
        for (int d = 0; d < STAGE_D; d++) s[j] = fmaf(q[d], wide(k[d]), s[j]);
        top = fmaxf(top, s[j]);
    }
    float t = top * scale, old = h->m;
    h->m = t > old + LAG ? t : old;
    float base = h->m == -INFINITY ? 0.0f : h->m, f = exp2f(old - base);
    for (int32_t j = 0; j < 128; j++) {
        s[j] = exp2f(fmaf(s[j], scale, -base));
        group[j / 32][j % 8 / 2] += s[j];
    }
    for (int c = 0; c < 4; c++) h->l[c] = fmaf(h->l[c], f, (group[0][c] + group[1][c]) + (group[2][c] + group[3][c]));
    for (int d = 0; d < STAGE_D; d++) h->a[d] *= f;
    for (int32_t j = 0; j < 128 && first + j <= m->pos; j++) {
        const uint16_t *v = &m->kv[kv_at(m, m->map[(size_t)(3 + first + j)], layer, 1, kv_head)];
        for (int d = 0; d < STAGE_D; d++) h->a[d] = fmaf(rounded(s[j]), wide(v[d]), h->a[d]);
    }
}

static void attend_head(const emu_model *m, const float *q, int32_t layer, int32_t kv_head, float scale, float *y) {
    float top = -INFINITY, l = 0.0f, a[STAGE_D] = {}, f_old, f_new;
    for (int32_t first = 0; first <= m->pos; first += STAGE_CHUNK) {
        head_state h = {-INFINITY, {}, {}};
        for (int32_t t = first; t < first + STAGE_CHUNK && t <= m->pos; t += 128)
            add_tile(m, &h, q, layer, kv_head, t, scale);
        attn_factors(top, h.m, &top, &f_old, &f_new);
        l = attn_join(l, f_old, (h.l[0] + h.l[1]) + (h.l[2] + h.l[3]), f_new);
        for (int d = 0; d < STAGE_D; d++) a[d] = attn_join(a[d], f_old, h.a[d], f_new);
    }
    for (int d = 0; d < STAGE_D; d++) y[d] = wide(attn_result(a[d], 1.0f / l));
}

static std::vector<float> attention_of(emu_model *m, std::vector<float> *qkv, int32_t layer, float scale) {
    const emu_case *c = m->c;
    std::vector<float> y((size_t)c->n_head * STAGE_D);
    for (int32_t i = 0; i < c->n_head + c->n_kv; i++) turn(qkv, (size_t)i * STAGE_D, m);
    for (int is_v = 0; is_v < 2; is_v++)
        for (int32_t i = 0; i < c->n_kv; i++)
            for (size_t d = 0; d < STAGE_D; d++)
                m->kv[kv_at(m, m->slot, layer, is_v, i) + d] =
                    emu_bf16((*qkv)[(size_t)(c->n_head + is_v * c->n_kv + i) * STAGE_D + d]);
    for (int32_t i = 0; i < c->n_head; i++)
        attend_head(m, &(*qkv)[(size_t)i * STAGE_D], layer, i / (c->n_head / c->n_kv), scale, &y[(size_t)i * STAGE_D]);
    return y;
}

static void add_branch(const emu_case *c, std::vector<float> *h, std::vector<float> b, const std::vector<uint16_t> &w,
                       float eps) {
    if (c->norms == GY_RESIDUAL_BRANCH) b = normed_row(b, w, eps);
    for (size_t i = 0; i < h->size(); i++) (*h)[i] = rounded((*h)[i] + b[i]);
}

static void compose(emu_model *m, const stage_args *a) {
    const emu_case *c = m->c;
    std::vector<float> h;
    for (uint16_t v : m->x) h.push_back(wide(v));
    for (int32_t l = 0; l < c->n_layer; l++) {
        std::vector<float> qkv = product_of(m->w[l][STAGE_QKV], normed_row(h, m->norm[l][0], a->eps));
        std::vector<float> y = attention_of(m, &qkv, l, a->scale);
        add_branch(c, &h, product_of(m->w[l][STAGE_O], y), m->norm[l][1], a->eps);
        std::vector<float> gu = product_of(m->w[l][STAGE_GATE_UP], normed_row(h, m->norm[l][2], a->eps));
        std::vector<float> f((size_t)c->n_ff);
        for (size_t i = 0; i < f.size(); i++) f[i] = rounded(silu_mul_of<bf16>(gu[i], gu[i + f.size()]));
        add_branch(c, &h, product_of(m->w[l][STAGE_DOWN], f), m->norm[l][3], a->eps);
    }
    for (size_t i = 0; i < h.size(); i++) m->x[i] = emu_bf16(h[i]);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void run_body(const void *arg) {
    stage_body(*(const stage_args *)arg);
}

static int differs(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b, const char *what, char said[256]) {
    for (size_t i = 0; i < a.size(); i++)
        if (a[i] != b[i]) {
            snprintf(said, 256, "%s: element %zu is %g, expected %g", what, i, (double)wide(a[i]), (double)wide(b[i]));
            return 1;
        }
    return 0;
}

/* LAUNCHES one after another, each on what the one before left. */
static int run_case(const emu_case *c, int schedules, uint64_t seed) {
    enum { LAUNCHES = 2 };
    static stage_args a;
    emu_model *first = new emu_model(), *want;
    make_model(first, c);
    make_args(first, &a);
    want = new emu_model(*first);
    std::vector<emu_model> after;
    for (int i = 0; i < LAUNCHES; i++) {
        compose(want, &a);
        after.push_back(*want);
    }
    char said[256] = "";
    int bad = 0;
    for (int s = 0; s < schedules && !bad; s++) {
        emu_model *m = new emu_model(*first);
        make_args(m, &a);
        for (int i = 0; i < LAUNCHES && !bad; i++) {
            memset(a.to.counter, 0, (size_t)4 * STAGE_COUNTERS * STAGE_LINE * sizeof(uint32_t));
            bad = emu_run(c->blocks, STAGE_THREADS, STAGE_SMEM, run_body, &a, seed + (uint64_t)(s * LAUNCHES + i),
                          said) ||
                  differs(m->x, after[(size_t)i].x, "x", said) || differs(m->kv, after[(size_t)i].kv, "KV", said);
            if (bad)
                printf("%s, context %d, seed %llu, launch %d: %s\n", c->name, c->context,
                       (unsigned long long)(seed + (uint64_t)(s * LAUNCHES + i)), i, said);
        }
        delete m;
    }
    if (!bad)
        printf("%-20s context %4d, %d blocks, shared by %d: %d schedules\n", c->name, c->context, c->blocks, c->n_part,
               schedules);
    fflush(stdout);
    delete first;
    delete want;
    return bad;
}

int main(int argc, char **argv) {
    int schedules = argc > 1 ? atoi(argv[1]) : 1, bad = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (const emu_case &c : cases)
        if (argc < 4 || strstr(c.name, argv[3])) bad += run_case(&c, schedules, seed);
    return bad != 0;
}
