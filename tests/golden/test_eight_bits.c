/* Weights in fewer bits (--weights fp8, int8, int4, int8-channel), and KV in int8 (--kv-dtype), in whole models:
 *   which    matrices are held so, and that what is held is the quantiser's; the rest stays the file's
 *   right    logits and gates against a forward pass in float64 on weights that were quantised and widened here. With
 *            groups that pass rounds inputs as ops.h says; where one lies between two whole numbers f32 and float64 may
 *            choose differently, so that the mean difference is small there, not the largest
 *   equal    a set of requests does not depend on threads, max_rows, what else runs, or the prefix cache: bit for bit
 *   how far  a table: golden tokens as input, agreement of the best token with the same run of the file's weights (and
 *            KV as activations are), and how far logits are apart. The checkpoints have random weights, so that half
 *            of the gaps are noise's size: the table says what changed between two builds, not what a trained model
 *            would lose
 *   refused  what is not finite, and backends that do not take it
 * With a GPU in the CPU's place (GY_TEST_BACKEND) what it takes: KV in int8, and of the table the forms it has.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "support/mixed.h"
#include "support/tiny.h"

static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
static const gy_weight_form forms[] = {GY_WEIGHTS_FP8, GY_WEIGHTS_INT8, GY_WEIGHTS_INT4, GY_WEIGHTS_INT8_CHANNEL};
enum { N_FORM = sizeof forms / sizeof *forms };

static gy_dtype type_of(gy_weight_form f) {
    return f == GY_WEIGHTS_FP8 ? GY_F8_E4M3 : f == GY_WEIGHTS_INT8 ? GY_Q8 : f == GY_WEIGHTS_INT4 ? GY_Q4 : GY_Q8C;
}

/* ---- which ------------------------------------------------------------------------------------------------------ */

static size_t check_matrix(const gy_weight *w, gy_dtype t) {
    size_t bytes = 0;
    assert_int_equal(w->dtype, t);
    if (gy_is_grouped(t)) {
        assert_int_equal(w->n_part, 1);
        assert_int_equal(w->part[0].n, w->n);
        return gy_quant_bytes(t, w->n, w->k);
    }
    for (int i = 0; i < w->n_part; i++) {
        bytes += (size_t)w->part[i].n * ((size_t)w->k + sizeof(float));
        for (int32_t r = 0; r < w->part[i].n; r++) assert_true(w->part[i].scale[r] >= 0x1p-126f);
    }
    return bytes;
}

/* Row `at` of a matrix in groups, and in a matrix of one row by the quantiser. */
static void check_groups(const gy_weight *w, int32_t at, const void *row, gy_dtype t) {
    size_t bytes = gy_quant_bytes(w->dtype, 1, w->k);
    uint8_t *one = calloc(bytes, 1);
    assert_int_equal(gy_quant_groups_row(one, w->dtype, 0, row, t, (size_t)w->k), 0);
    for (int32_t j = 0; j < w->k; j++) {
        const void *all = w->part[0].data;
        assert_int_equal(gy_quant_value(all, w->dtype, w->k, at, j), gy_quant_value(one, w->dtype, w->k, 0, j));
        assert_true(gy_quant_scale(all, w->dtype, w->k, at, j / GY_GROUP) ==
                    gy_quant_scale(one, w->dtype, w->k, 0, j / GY_GROUP));
    }
    free(one);
}

static void check_row(const gy_weight *w, int part, int32_t r, const void *row, gy_dtype t) {
    float scale;
    uint8_t *q = malloc((size_t)w->k);
    assert_int_equal(gy_quant_row(q, &scale, row, t, (size_t)w->k), 0);
    assert_true(scale == w->part[part].scale[r]);
    assert_memory_equal(q, (const uint8_t *)w->part[part].data + (size_t)r * (size_t)w->k, (size_t)w->k);
    free(q);
}

/* A part, which begins at row n0 of the matrix, is the quantiser's for the tensor; returns the row behind it. */
static int32_t check_part(const gy_weight *w, int part, int32_t n0, const char *file, const char *name) {
    gy_st *st;
    gy_err err;
    if (gy_st_open(file, &err, &st) < 0) fail_msg("%s", err.msg);
    const gy_tensor_info *t = gy_st_find(st, name);
    assert_non_null(t);
    int32_t n = (int32_t)t->shape[0];
    if (!gy_is_grouped(w->dtype)) assert_int_equal(n, w->part[part].n);
    for (int32_t r = 0; r < n; r++) {
        const char *row = (const char *)t->data + (size_t)r * (size_t)w->k * gy_dtype_bytes(t->dtype);
        if (gy_is_grouped(w->dtype)) {
            check_groups(w, n0 + r, row, t->dtype);
        } else {
            check_row(w, part, r, row, t->dtype);
        }
    }
    gy_st_close(st);
    return n0 + n;
}

static void check_held(const char *model, gy_dtype act, gy_weight_form form, int head) {
    char path[256];
    gold_env env;
    gy_dtype t = type_of(form);
    gold_setup s = {.model = model, .backend = "cpu", .act = act, .form = form, .quant_head = head};
    snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s", model);
    gold_open(&s, &env);
    const gy_model *m = env.m;
    size_t bytes = 0;
    for (gy_stage g = GY_PRELUDE; g < GY_STAGES; g++)
        for (int32_t il = 0; il < m->d.n_layer[g]; il++) {
            const gy_layer *y = &m->layer[g][il];
            bytes += check_matrix(&y->qkv, t) + check_matrix(&y->o, t);
            bytes += check_matrix(&y->gate_up, t) + check_matrix(&y->down, t);
        }
    if (m->d.inject) bytes += check_matrix(&m->adapter, t);
    if (head) bytes += check_matrix(&m->head, t);
    assert_true(head || !gy_is_quant(m->head.dtype));
    assert_false(gy_is_quant(m->embed.dtype));
    assert_true(m->converted_bytes >= bytes && m->own_bytes >= m->converted_bytes);
    if (!strcmp(m->d.family, "ouro")) {
        const gy_layer *y = &m->layer[GY_CORE][m->d.n_layer[GY_CORE] - 1];
        static const char *const names[] = {"q", "k", "v"};
        for (int32_t i = 0, at = 0; i < 3; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s_proj.weight", m->d.n_layer[GY_CORE] - 1,
                     names[i]);
            at = check_part(&y->qkv, i, at, path, name);
        }
        if (head) check_part(&m->head, 0, 0, path, "lm_head.weight");
    }
    if (!strcmp(m->d.family, "huginn") && head) check_part(&m->head, 0, 0, path, "transformer.wte.weight");
    gold_close(&env);
}

static void what_is_held(void **state) {
    (void)state;
    for (int i = 0; i < 6 * N_FORM; i++) check_held(models[i % 3], i / 3 % 2 ? GY_BF16 : GY_F32, forms[i / 6], i % 2);
}

/* ---- right ------------------------------------------------------------------------------------------------------ */

enum { N_TOK = 35 };
static const double BOUND = 2e-4; /* tests/golden/README.md, F32 */

static const tiny_spec specs[] = {{.family = "ouro",
                                   .n_vocab = 61,
                                   .n_embd = 24,
                                   .n_ff = 36,
                                   .n_head = 4,
                                   .n_head_kv = 2,
                                   .head_dim = 10,
                                   .n_layer = {0, 2, 0},
                                   .n_loop = 4,
                                   .max_pos = 96,
                                   .eps = 3e-3,
                                   .theta = 300.0,
                                   .dtype = GY_F32,
                                   .seed = 11},
                                  {.family = "nanbeige",
                                   .n_vocab = 61,
                                   .n_embd = 24,
                                   .n_ff = 36,
                                   .n_head = 6,
                                   .n_head_kv = 1,
                                   .head_dim = 8,
                                   .n_layer = {0, 2, 0},
                                   .n_loop = 3,
                                   .max_pos = 96,
                                   .eps = 2e-3,
                                   .theta = 900.0,
                                   .dtype = GY_F32,
                                   .seed = 12},
                                  {.family = "huginn",
                                   .n_vocab = 61,
                                   .n_embd = 24,
                                   .n_ff = 20,
                                   .n_head = 3,
                                   .n_head_kv = 3,
                                   .head_dim = 8,
                                   .n_layer = {1, 2, 1},
                                   .n_loop = 4,
                                   .max_pos = 96,
                                   .eps = 2e-3,
                                   .theta = 700.0,
                                   .dtype = GY_F32,
                                   .seed = 13}};

/* By name alone: matrices but the embedding, the gate and, unless wanted, the head. */
static int is_quantised(const tiny_tensor *x, int head) {
    static const char *const never[] = {"embed_tokens", "wte", "early_exit_gate"};
    if (x->n_dim != 2) return 0;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strstr(x->name, never[i])) return 0;
    return head || !strstr(x->name, "lm_head");
}

static void quantise_row(double *v, size_t k, gy_dtype t) {
    float row[128], scale;
    uint8_t q[128], panel[4 * 1088] = {0};
    assert_true(k <= 128);
    for (size_t j = 0; j < k; j++) row[j] = (float)v[j];
    if (t == GY_F8_E4M3) {
        assert_int_equal(gy_quant_row(q, &scale, row, GY_F32, k), 0);
        for (size_t j = 0; j < k; j++) v[j] = (double)scale * (double)gy_f8e4m3_to_f32(q[j]);
        return;
    }
    int64_t n = (int64_t)k;
    assert_int_equal(gy_quant_groups_row(panel, t, 0, row, GY_F32, k), 0);
    for (int64_t j = 0; j < n; j++)
        v[j] = (double)gy_quant_scale(panel, t, n, 0, j / GY_GROUP) * gy_quant_value(panel, t, n, 0, j);
}

typedef struct seen {
    size_t n_vocab;
    float *logits;
} seen;

static gy_status keep_logits(void *arg, int32_t pos, const float *logits, gy_err *err) {
    (void)err;
    seen *s = arg;
    memcpy(s->logits + (size_t)pos * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return GY_OK;
}

static int never(tiny_run *r, int32_t pos, int32_t loops) {
    (void)r, (void)pos, (void)loops;
    return 0;
}

static double mean(const float *got, const double *want, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += fabs((double)got[i] - want[i]);
    return sum / (double)n;
}

static double worst(const float *got, const double *want, size_t n) {
    double most = 0.0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)got[i] - want[i]));
    return most;
}

static void check_right(const tiny_spec *spec, const char *backend, gy_weight_form form, int head) {
    tiny t;
    gold_env env;
    gy_err err;
    int32_t ids[N_TOK];
    tiny_make(spec, &t);
    gold_open(&(gold_setup){.model = t.dir, .backend = backend, .act = GY_F32, .form = form, .quant_head = head}, &env);
    seen s = {.n_vocab = (size_t)env.m->d.n_vocab};
    s.logits = calloc(N_TOK * s.n_vocab, sizeof *s.logits);
    float *gates = calloc((size_t)N_TOK * (size_t)env.m->d.n_loop, sizeof *gates);
    for (int i = 0; i < N_TOK; i++) ids[i] = i * 17 % spec->n_vocab;
    gy_eval_opts o = {.ids = ids, .n_tok = N_TOK, .max_rows = 7, .on_logits = keep_logits, .arg = &s};
    if (env.m->d.has_gate) o.gates = gates;
    if (gy_eval(env.m, &o, &err) < 0) fail_msg("%s", err.msg);
    tiny_run r = {.ids = ids, .n_tok = N_TOK, .depth = env.m->d.n_loop, .leave = never};
    tiny_forward(&t, &r);
    double off = worst(s.logits, r.logits, N_TOK * s.n_vocab); /* from the weights of the file */
    double off_mean = mean(s.logits, r.logits, N_TOK * s.n_vocab);
    tiny_run_free(&r);
    for (int i = 0; i < t.n_tensor; i++) {
        size_t k = t.t[i].n_dim == 2 ? (size_t)t.t[i].shape[1] : 0;
        if (is_quantised(&t.t[i], head) && gy_is_grouped(type_of(form)))
            t.t[i].group = type_of(form) == GY_Q8C ? TINY_MOST_GROUP : GY_GROUP;
        for (size_t at = 0; is_quantised(&t.t[i], head) && at < t.t[i].n; at += k)
            quantise_row(t.t[i].v + at, k, type_of(form));
    }
    tiny_forward(&t, &r);
    double logits = worst(s.logits, r.logits, N_TOK * s.n_vocab);
    double gate = o.gates ? worst(gates, r.gates, (size_t)N_TOK * (size_t)env.m->d.n_loop) : 0;
    double near = mean(s.logits, r.logits, N_TOK * s.n_vocab);
    int right = gy_is_grouped(type_of(form)) ? near < 0.01 * off_mean : logits <= BOUND && gate <= BOUND;
    printf("  %-9s %-4s %s head %d: logits off by %.5f, from the file's weights %.5f\n", spec->family, backend,
           gy_weight_form_name(form), head, near, off_mean);
    if (!right || off < 10 * BOUND)
        fail_msg("%s %s %s head %d: logits %.1e, gates %.1e; from the file's weights %.1e", spec->family, backend,
                 gy_weight_form_name(form), head, logits, gate, off);
    tiny_run_free(&r);
    free(s.logits);
    free(gates);
    gold_close(&env);
    tiny_free(&t);
}

static void logits_are_those_of_the_widened_weights(void **state) {
    (void)state;
    for (int i = 0; i < 6 * N_FORM; i++)
        for (int head = 0; head < (i % 3 == 2 ? 1 : 2);
             head++) /* huginn's is tied: the forward pass knows one matrix */
            check_right(&specs[i % 3], i / 3 % 2 ? "ref" : "cpu", forms[i / 6], head);
}

/* KV in int8, the weights as they are: the same measure. */
static void check_right_kv(const tiny_spec *spec, const char *backend) {
    tiny t;
    gold_env env;
    gy_err err;
    int32_t ids[N_TOK];
    tiny_make(spec, &t);
    gold_open(&(gold_setup){.model = t.dir, .backend = backend, .act = GY_F32}, &env);
    seen s = {.n_vocab = (size_t)env.m->d.n_vocab};
    s.logits = calloc(N_TOK * s.n_vocab, sizeof *s.logits);
    for (int i = 0; i < N_TOK; i++) ids[i] = i * 17 % spec->n_vocab;
    gy_eval_opts o = {.ids = ids, .n_tok = N_TOK, .max_rows = 7, .on_logits = keep_logits, .arg = &s};
    o.kv_type = GY_KV_INT8;
    if (gy_eval(env.m, &o, &err) < 0) fail_msg("%s", err.msg);
    double off[2];
    for (int i = 0; i < 2; i++) {
        tiny_run r = {.ids = ids, .n_tok = N_TOK, .depth = env.m->d.n_loop, .leave = never, .kv_int8 = i};
        tiny_forward(&t, &r);
        off[i] = mean(s.logits, r.logits, N_TOK * s.n_vocab);
        tiny_run_free(&r);
    }
    printf("  %-9s %-4s KV in int8: logits off by %.6f, from KV in F32 %.6f\n", spec->family, backend, off[1], off[0]);
    assert_true(off[1] < 0.02 * off[0] && off[0] > 1e-4);
    free(s.logits);
    gold_close(&env);
    tiny_free(&t);
}

static void logits_are_those_of_the_widened_kv(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) check_right_kv(&specs[i % 3], i / 3 ? "ref" : "cpu");
}

/* ---- equal ------------------------------------------------------------------------------------------------------ */

typedef struct results {
    mixed w;
    gold_result base[MIXED_MAX_RESULT], got[MIXED_MAX_RESULT];
} results;

static void with_cache(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->prefix_cache = 1;
}

static void run(const gold_setup *s, results *r, int first, int n, gold_result *out) {
    gold_env env;
    gold_open(s, &env);
    gold_engine(s, &env);
    mixed_make(&r->w, &env.m->d, 28, MIXED_MAX_OUT);
    gold_run(env.e, r->w.req + first, n, out);
    if (!s->patch) gold_idle(env.e);
    gold_close(&env);
}

static int differs(const gold_setup *s, const char *what, results *r) {
    run(s, r, 0, MIXED_N, r->got);
    return mixed_compare(s, what, r->w.req, 0, MIXED_N, r->base, r->got);
}

/* Against one run with one thread and many rows: several threads, few rows (prompts in chunks), the prefix cache, and
 * requests alone. */
static int check_setup(gold_setup s) {
    results *r = malloc(sizeof *r);
    int bad = 0;
    s.n_thread = 1;
    s.max_rows = 4096;
    run(&s, r, 0, MIXED_N, r->base);
    s.n_thread = 3;
    s.max_rows = 3;
    bad += differs(&s, "3 threads, max_rows 3", r);
    s.max_rows = 64;
    s.patch = with_cache;
    bad += differs(&s, "max_rows 64, prefix cache", r);
    s.patch = NULL;
    for (int i = 0; i < MIXED_N; i += 9) {
        run(&s, r, i, 1, r->got);
        bad += mixed_compare(&s, "alone", r->w.req, i, 1, r->base + mixed_first(&r->w, i), r->got);
    }
    free(r);
    return bad;
}

/* Each model and each form: above the kernels, forms share their code (what kernels do with a batch: tests/ops).
 */
static int check_variant(const char *backend, int n) {
    int bad = 0;
    for (int i = 0; i < n; i++)
        bad += check_setup((gold_setup){.model = models[i % 3],
                                        .backend = backend,
                                        .act = i == 1 ? GY_F32 : GY_BF16,
                                        .form = forms[(i + 1) % N_FORM],
                                        .quant_head = i != 2,
                                        .kv_type = i == 2 ? GY_KV_INT8 : GY_KV_AUTO});
    return bad;
}

/* KV in int8, in each layout: one is read at other depths than it was written, in two it is written over. */
static int check_kv(const char *backend, int n) {
    static const gy_kv_layout layouts[] = {GY_KV_LAST_EXITED, GY_KV_SHARED, GY_KV_CYCLIC};
    int bad = 0;
    for (int i = 0; i < n; i++)
        bad += check_setup((gold_setup){.model = models[i % 2 ? 2 : 0],
                                        .backend = backend,
                                        .act = i % 2 ? GY_F32 : GY_BF16,
                                        .layout = layouts[i],
                                        .cyclic_k = 2,
                                        .kv_type = GY_KV_INT8});
    return bad;
}

#ifdef GY_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static void batched_is_alone(void **state) {
    (void)state;
    assert_int_equal(check_variant("cpu", SANITIZED ? 1 : N_FORM) + check_kv("cpu", SANITIZED ? 1 : 3), 0);
}

static void batched_is_alone_on_avx2(void **state) {
    (void)state;
    if (SANITIZED || strcmp(gold_backend("cpu"), "cpu") != 0) skip();
    gy_cpu_set_mask(GY_CPU_AVX2);
    int bad = check_variant("cpu", 1) + check_kv("cpu", 1);
    gy_cpu_set_mask(~0u);
    assert_int_equal(bad, 0);
}

/* ---- how far ---------------------------------------------------------------------------------------------------- */

enum { MOST_POS = 1024 };

typedef struct forced { /* of one run over all cases */
    int32_t n_vocab, n;
    float *logits; /* [MOST_POS, n_vocab] of outputs */
    int32_t first, last;
} forced;

static gy_status keep_output(void *arg, int32_t pos, const float *logits, gy_err *err) {
    (void)err;
    forced *f = arg;
    if (pos < f->first || pos > f->last) return GY_OK;
    assert_true(f->n < MOST_POS);
    memcpy(f->logits + (size_t)f->n++ * (size_t)f->n_vocab, logits, (size_t)f->n_vocab * sizeof *logits);
    return GY_OK;
}

static void force(const gold_setup *s, const gold_case *cases, int n, forced *f) {
    gold_env env;
    gy_err err;
    gold_open(s, &env);
    *f = (forced){.n_vocab = env.m->d.n_vocab};
    f->logits = calloc(MOST_POS * (size_t)f->n_vocab, sizeof *f->logits);
    for (int i = 0; i < n; i++) {
        const gold_case *c = &cases[i];
        if (!c->n_out || strcmp(c->exit, "fixed") != 0) continue;
        int32_t n_tok = c->n_ids + c->n_out - 1, *ids = calloc((size_t)n_tok, sizeof *ids);
        memcpy(ids, c->ids, (size_t)c->n_ids * sizeof *ids);
        memcpy(ids + c->n_ids, c->tokens, (size_t)(c->n_out - 1) * sizeof *ids);
        f->first = c->n_ids - 1;
        f->last = n_tok - 1;
        gy_eval_opts o = {.ids = ids, .n_tok = n_tok, .max_rows = 16, .on_logits = keep_output, .arg = f};
        o.kv_type = s->kv_type;
        if (gy_eval(env.m, &o, &err) < 0) fail_msg("%s", err.msg);
        free(ids);
    }
    gold_close(&env);
}

static int32_t best_of(const float *l, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (l[i] > l[best]) best = i;
    return best;
}

typedef struct distance {
    int same, n;
    double most, mean, size; /* of differences; size: standard deviation of the logits */
} distance;

static distance compare(const forced *a, const forced *b) {
    distance d = {.n = a->n};
    size_t v = (size_t)a->n_vocab, n = (size_t)a->n * v;
    double sum = 0, squares = 0;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        d.same += best_of(a->logits + (size_t)i * v, a->n_vocab) == best_of(b->logits + (size_t)i * v, a->n_vocab);
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)a->logits[i] - (double)b->logits[i]);
        d.most = fmax(d.most, diff);
        d.mean += diff / (double)n;
        sum += (double)a->logits[i];
        squares += (double)a->logits[i] * (double)a->logits[i];
    }
    d.size = sqrt(squares / (double)n - sum / (double)n * (sum / (double)n));
    return d;
}

static uint32_t weight_types(const gold_setup *s) {
    gold_env env;
    gold_open(s, &env);
    uint32_t types = env.be->ops->weight_types;
    gold_close(&env);
    return types;
}

static void table_of(const char *model, gy_dtype act) {
    gold_case *cases;
    int n = gold_read_cases(model, &cases);
    forced base, got;
    gold_setup s = {.model = model, .backend = "cpu", .act = act};
    uint32_t types = weight_types(&s);
    force(&s, cases, n, &base);
    for (int i = 0; i <= N_FORM + 1; i++) { /* 0: BF16, which changes no weight; last: the file's weights, KV in int8 */
        int is_kv = i == N_FORM + 1;
        if (i && !is_kv && !(types >> type_of(forms[i - 1]) & 1)) continue;
        s.form = is_kv ? GY_WEIGHTS_AS_FILE : i ? forms[i - 1] : GY_WEIGHTS_BF16;
        s.kv_type = is_kv ? GY_KV_INT8 : GY_KV_AUTO;
        force(&s, cases, n, &got);
        distance d = compare(&base, &got);
        printf("  %-13s %-4s %-12s  same best token %3d of %3d   logits (size %.3f): mean difference %.4f, most %.4f\n",
               model, gy_dtype_name(act), is_kv ? "KV int8" : gy_weight_form_name(s.form), d.same, d.n, d.size, d.mean,
               d.most);
        assert_true(d.n >= 24);
        if (!i)
            assert_true(d.most < (act == GY_BF16 ? 1e-30 : 1e-3)); /* exact in BF16; F32 has another order of sums */
        if (i) assert_true(d.most > 0 && d.mean < d.size);         /* they were used, and it is still that model */
        free(got.logits);
    }
    free(base.logits);
    gold_free_cases(cases, n);
}

static void how_far(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) table_of(models[i / 2], i % 2 ? GY_BF16 : GY_F32);
}

/* ---- refused ---------------------------------------------------------------------------------------------------- */

static void refused(const char *dir, gy_backend *be, gy_weight_form form, gy_status want, const char *part) {
    gy_err err = {0};
    gy_model *m = NULL;
    gy_model_load_opts o = {.be = be, .form = form};
    assert_int_equal(gy_model_load(dir, &o, &err, &m), want);
    assert_null(m);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
}

static void what_is_not_finite(void **state) {
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    tiny t;
    gy_backend *be;
    tiny_make(&specs[0], &t);
    assert_int_equal(gy_backend_ref_create(GY_F32, NULL, &be), GY_OK);
    for (int i = 0; i < 3 * N_FORM; i++) {
        tiny_tensor *x = tiny_find(&t, "model.layers.1.mlp.down_proj.weight");
        double keep = x->v[5 * x->shape[1] + 2];
        x->v[5 * x->shape[1] + 2] = bad[i % 3];
        tiny_rewrite(&t);
        refused(t.dir, be, forms[i / 3], GY_E_FORMAT, "\"model.layers.1.mlp.down_proj.weight\" row 5 holds a value");
        x->v[5 * x->shape[1] + 2] = keep;
    }
    gy_backend_destroy(be);
    tiny_free(&t);
}

static void a_row_that_is_too_long(void **state) {
    (void)state;
    tiny t;
    tiny_spec s = specs[0];
    gy_backend *be;
    s.n_ff = GY_CHANNEL_MOST_K + 1;
    s.n_layer[GY_CORE] = 1;
    tiny_make(&s, &t);
    assert_int_equal(gy_backend_ref_create(GY_F32, NULL, &be), GY_OK);
    refused(
        t.dir, be, GY_WEIGHTS_INT8_CHANNEL, GY_E_UNSUPPORTED,
        "\"model.layers.0.mlp.down_proj.weight\" has rows of 65537 elements, of which int8-channel sums at most 65536");
    gy_backend_destroy(be);
    tiny_free(&t);
}

static void a_backend_that_takes_none(void **state) {
    (void)state;
    gy_backend *be;
    gy_ops ops;
    assert_int_equal(gy_backend_ref_create(GY_F32, NULL, &be), GY_OK);
    const gy_ops *real = be->ops;
    ops = *real;
    ops.name = "other";
    ops.weight_types = 1 << GY_F32 | 1 << GY_Q8;
    be->ops = &ops;
    refused(GY_SOURCE_DIR "/tests/golden/models/ouro-tiny", be, GY_WEIGHTS_FP8, GY_E_UNSUPPORTED,
            "found fp8, which backend other does not take");
    be->ops = real;
    gy_backend_destroy(be);
}

static void not_opened(gold_env *env, gy_kv_type t, const char *part) {
    gy_engine_opts o;
    gy_err err = {0};
    gy_engine *e = NULL;
    const int32_t ids[] = {1, 2};
    gy_eval_opts v = {.ids = ids, .n_tok = 2, .max_rows = 2, .kv_type = t};
    gy_engine_opts_default(&o);
    o.sched.max_rows = 16;
    o.max_len = 64;
    o.kv_type = t;
    assert_int_equal(gy_engine_open(env->m, &o, &err, &e), GY_E_UNSUPPORTED);
    assert_null(e);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_int_equal(gy_eval(env->m, &v, &err), GY_E_UNSUPPORTED);
}

static void a_backend_that_takes_no_such_kv(void **state) {
    (void)state;
    gold_env env;
    gold_open(&(gold_setup){.model = "ouro-tiny", .backend = "ref", .act = GY_F32}, &env);
    const gy_ops *real = env.be->ops;
    gy_ops ops = *real;
    not_opened(&env, GY_KV_BF16, "kv_dtype: found bf16 while activations are in f32; use auto, f32 or int8");
    ops.name = "other";
    ops.kv_types = 0;
    env.be->ops = &ops;
    not_opened(&env, GY_KV_INT8, "kv_dtype: found int8, which backend other does not compute with");
    env.be->ops = real;
    gold_close(&env);
}

static void kv_batched_is_alone(void **state) {
    (void)state;
    assert_int_equal(check_kv("cpu", 3), 0);
}

int main(void) {
    const struct CMUnitTest elsewhere[] = {
        cmocka_unit_test(logits_are_those_of_the_widened_kv),
        cmocka_unit_test(kv_batched_is_alone),
        cmocka_unit_test(how_far),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_held),
        cmocka_unit_test(logits_are_those_of_the_widened_weights),
        cmocka_unit_test(logits_are_those_of_the_widened_kv),
        cmocka_unit_test(batched_is_alone),
        cmocka_unit_test(batched_is_alone_on_avx2),
        cmocka_unit_test(how_far),
        cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(a_row_that_is_too_long),
        cmocka_unit_test(a_backend_that_takes_none),
        cmocka_unit_test(a_backend_that_takes_no_such_kv),
    };
    if (strcmp(gold_backend("cpu"), "cpu") != 0) return cmocka_run_group_tests(elsewhere, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
