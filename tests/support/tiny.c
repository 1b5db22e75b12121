#include "support/tiny.h"

#include "base/philox.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what, const gy_err *err) {
    fprintf(stderr, "tiny: %s: %s\n", what, err ? err->msg : "");
    exit(1);
}

static int is(const tiny *t, const char *family) {
    return !strcmp(t->s.family, family);
}

/* ---- the checkpoint --------------------------------------------------------------------------------------------- */

static double uniform(uint64_t seed, const char *name, size_t i) {
    uint32_t w[4];
    for (const char *p = name; *p; p++) seed = seed * 1099511628211u + (unsigned char)*p;
    gy_rand_block(seed, 0, 0, GY_RAND_TEST, (uint32_t)i, w);
    return 2.0 * gy_rand_unit_f64(w[0], w[1]) - 1.0;
}

static double as_stored(double x, gy_dtype dtype) {
    if (dtype == GY_BF16) return (double)gy_bf16_round((float)x);
    return dtype == GY_F16 ? (double)gy_f16_to_f32(gy_f32_to_f16((float)x)) : (double)(float)x;
}

static void glue(char out[TINY_NAME], const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b);
    if (la + lb >= TINY_NAME) die(b, NULL);
    memcpy(out, a, la);
    memcpy(out + la, b, lb + 1);
}

/* base + scale * uniform(-1, 1) */
static tiny_tensor *add(tiny *t, const char *name, int n_dim, const int64_t *shape, double base, double scale) {
    if (t->n_tensor == TINY_MAX_TENSOR) die("too many tensors", NULL);
    tiny_tensor *x = &t->t[t->n_tensor++];
    glue(x->name, "", name);
    x->dtype = t->s.dtype;
    x->n_dim = n_dim;
    x->n = 1;
    for (int i = 0; i < n_dim; i++) x->n *= (size_t)(x->shape[i] = shape[i]);
    x->v = calloc(x->n, sizeof *x->v);
    for (size_t i = 0; i < x->n; i++) x->v[i] = as_stored(base + scale * uniform(t->s.seed, name, i), x->dtype);
    return x;
}

static void add_matrix(tiny *t, const char *prefix, const char *name, int64_t n, int64_t k) {
    char full[TINY_NAME];
    glue(full, prefix, name);
    add(t, full, 2, (int64_t[]){n, k}, 0.0, sqrt(3.0 / (double)k));
}

static void add_norm(tiny *t, const char *prefix, const char *name) {
    char full[TINY_NAME];
    glue(full, prefix, name);
    add(t, full, 1, (int64_t[]){t->s.n_embd}, 1.0, 0.4);
}

static void llama_layer(tiny *t, int32_t il) {
    const tiny_spec *s = &t->s;
    int64_t q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    char p[40];
    snprintf(p, sizeof p, "model.layers.%d.", il);
    add_norm(t, p, "input_layernorm.weight");
    add_norm(t, p, "post_attention_layernorm.weight");
    if (is(t, "ouro")) {
        add_norm(t, p, "input_layernorm_2.weight");
        add_norm(t, p, "post_attention_layernorm_2.weight");
    }
    add_matrix(t, p, "self_attn.q_proj.weight", q, s->n_embd);
    add_matrix(t, p, "self_attn.k_proj.weight", kv, s->n_embd);
    add_matrix(t, p, "self_attn.v_proj.weight", kv, s->n_embd);
    add_matrix(t, p, "self_attn.o_proj.weight", s->n_embd, q);
    add_matrix(t, p, "mlp.gate_proj.weight", s->n_ff, s->n_embd);
    add_matrix(t, p, "mlp.up_proj.weight", s->n_ff, s->n_embd);
    add_matrix(t, p, "mlp.down_proj.weight", s->n_embd, s->n_ff);
}

static void llama_tensors(tiny *t) {
    const tiny_spec *s = &t->s;
    add_matrix(t, "", "model.embed_tokens.weight", s->n_vocab, s->n_embd);
    add_norm(t, "", "model.norm.weight");
    if (!s->tied || s->stored_head) add_matrix(t, "", "lm_head.weight", s->n_vocab, s->n_embd);
    if (is(t, "ouro")) {
        add_matrix(t, "", "model.early_exit_gate.weight", 1, s->n_embd);
        add(t, "model.early_exit_gate.bias", 1, (int64_t[]){1}, 0.0, 0.5);
    }
    for (int32_t il = 0; il < s->n_layer[1]; il++) llama_layer(t, il);
}

static void huginn_layer(tiny *t, const char *stage, int32_t il) {
    const tiny_spec *s = &t->s;
    char p[40], name[TINY_NAME];
    snprintf(p, sizeof p, "transformer.%s.%d.", stage, il);
    for (int i = 1; i <= 4; i++) {
        snprintf(name, sizeof name, "norm_%d.weight", i);
        add_norm(t, p, name);
    }
    add_matrix(t, p, "attn.Wqkv.weight", 3 * s->n_embd, s->n_embd);
    add_matrix(t, p, "attn.proj.weight", s->n_embd, s->n_embd);
    add_matrix(t, p, "mlp.fc.weight", 2 * s->n_ff, s->n_embd);
    add_matrix(t, p, "mlp.proj.weight", s->n_embd, s->n_ff);
    glue(name, p, "attn.qk_bias");
    if (!s->no_bias) add(t, name, 4, (int64_t[]){2, 1, s->n_head, s->head_dim}, 0.0, 0.5);
}

static void huginn_table(tiny *t) {
    const tiny_spec *s = &t->s;
    int64_t half = s->head_dim / 2;
    tiny_tensor *x = add(t, "freqs_cis", 5, (int64_t[]){1, s->max_pos, 1, half, 2}, 0.0, 0.0);
    x->dtype = GY_F32;
    for (int64_t p = 0; p < s->max_pos; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = 1.25 * (double)p * pow(s->theta, -2.0 * (double)i / s->head_dim) + 0.1;
            x->v[2 * (p * half + i)] = (double)(float)cos(angle);
            x->v[2 * (p * half + i) + 1] = (double)(float)sin(angle);
        }
}

static void huginn_tensors(tiny *t) {
    static const char *const stages[] = {"prelude", "core_block", "coda"};
    const tiny_spec *s = &t->s;
    add_matrix(t, "", "transformer.wte.weight", s->n_vocab, s->n_embd);
    add_norm(t, "", "transformer.ln_f.weight");
    add_matrix(t, "", "transformer.adapter.weight", s->n_embd, 2 * s->n_embd);
    if (s->rope_table) huginn_table(t);
    for (int g = 0; g < 3; g++)
        for (int32_t il = 0; il < s->n_layer[g]; il++) huginn_layer(t, stages[g], il);
    if (!s->stored_head) return;
    add_matrix(t, "", "lm_head.weight", s->n_vocab, s->n_embd);
    memcpy(t->t[t->n_tensor - 1].v, t->t[0].v, t->t[0].n * sizeof(double));
}

static void llama_config(const tiny_spec *s, gy_str *out) {
    gy_str_printf(out,
                  "{\"model_type\": \"%s\", \"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
                  "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
                  "\"head_dim\": %d, \"max_position_embeddings\": %d, \"rms_norm_eps\": %.9g, \"rope_theta\": %.9g, "
                  "\"tie_word_embeddings\": %s",
                  s->family, s->n_vocab, s->n_embd, s->n_ff, s->n_layer[1], s->n_head, s->n_head_kv, s->head_dim,
                  s->max_pos, s->eps, s->theta, s->tied ? "true" : "false");
    if (!strcmp(s->family, "ouro")) {
        gy_str_printf(out, ", \"total_ut_steps\": %d}", s->n_loop);
        return;
    }
    gy_str_printf(out, ", \"num_loops\": %d, \"skip_loop_final_norm\": %s, \"loop_loss_weights\": [",
                  s->loss_weights ? 77 : s->n_loop, s->skip_norm ? "true" : "false");
    for (int i = 0; i < s->loss_weights; i++) gy_str_printf(out, "%s0.5", i ? ", " : "");
    gy_str_puts(out, "]}");
}

static void huginn_config(const tiny_spec *s, gy_str *out) {
    gy_str_printf(out,
                  "{\"model_type\": \"huginn_raven\", \"vocab_size\": %d, \"n_embd\": %d, \"intermediate_size\": %d, "
                  "\"n_heads\": %d, \"n_layers_in_prelude\": %d, \"n_layers_in_recurrent_block\": %d, "
                  "\"n_layers_in_coda\": %d, \"block_size\": %d, \"mean_recurrence\": %d, \"norm_eps\": %.9g, "
                  "\"rope_base\": %.9g, \"tie_embeddings\": true, \"injection_type\": \"linear\"",
                  s->n_vocab, s->n_embd, s->n_ff, s->n_head, s->n_layer[0], s->n_layer[1], s->n_layer[2], s->max_pos,
                  s->n_loop, s->eps, s->theta);
    if (s->no_bias) gy_str_puts(out, ", \"qk_bias\": false");
    if (s->embed_scale > 0.0)
        gy_str_printf(out, ", \"init_values\": {\"embed_scale\": %.17g, \"std\": %.17g, \"out_proj\": 0.1}",
                      s->embed_scale, s->std);
    gy_str_puts(out, "}");
}

static void write_config(const tiny *t) {
    char path[64];
    gy_str text = {0};
    if (is(t, "huginn"))
        huginn_config(&t->s, &text);
    else
        llama_config(&t->s, &text);
    snprintf(path, sizeof path, "%s/config.json", t->dir);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text.data, 1, text.len, f) != text.len || fclose(f)) die(path, NULL);
    gy_str_free(&text);
}

static void put_tensor(gy_st_writer *w, const tiny_tensor *x) {
    gy_err err;
    float *f = calloc(x->n, sizeof *f), *stored = calloc(x->n, sizeof *stored);
    for (size_t i = 0; i < x->n; i++) f[i] = (float)x->v[i];
    gy_convert(stored, x->dtype, f, GY_F32, x->n);
    if (gy_st_writer_put(w, stored, x->n * gy_dtype_bytes(x->dtype), &err) < 0) die(x->name, &err);
    free(f);
    free(stored);
}

void tiny_rewrite(tiny *t) {
    static gy_st_entry entries[TINY_MAX_TENSOR];
    char path[64];
    gy_err err;
    gy_st_writer *w;
    snprintf(path, sizeof path, "%s/model.safetensors", t->dir);
    for (int i = 0; i < t->n_tensor; i++) {
        entries[i] = (gy_st_entry){.name = t->t[i].name, .dtype = t->t[i].dtype, .n_dim = t->t[i].n_dim};
        memcpy(entries[i].shape, t->t[i].shape, sizeof t->t[i].shape);
    }
    if (gy_st_writer_open(path, entries, (size_t)t->n_tensor, &err, &w) < 0) die(path, &err);
    for (int i = 0; i < t->n_tensor; i++) put_tensor(w, &t->t[i]);
    if (gy_st_writer_close(w, &err) < 0) die(path, &err);
}

void tiny_make(const tiny_spec *s, tiny *out) {
    *out = (tiny){.s = *s, .dir = "/tmp/gyre-tiny-XXXXXX"};
    if (!mkdtemp(out->dir)) die(out->dir, NULL);
    if (is(out, "huginn"))
        huginn_tensors(out);
    else
        llama_tensors(out);
    write_config(out);
    tiny_rewrite(out);
}

void tiny_free(tiny *t) {
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", t->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", t->dir);
    unlink(path);
    rmdir(t->dir);
    for (int i = 0; i < t->n_tensor; i++) free(t->t[i].v);
}

tiny_tensor *tiny_find(tiny *t, const char *name) {
    for (int i = 0; i < t->n_tensor; i++, t->next = (t->next + 1) % t->n_tensor)
        if (!strcmp(t->t[t->next].name, name)) return &t->t[t->next];
    die(name, NULL);
    return NULL;
}

/* ---- the forward pass ------------------------------------------------------------------------------------------- */

typedef struct fwd {
    tiny *t;
    tiny_run *r;
    int32_t n_plane;
    double *kv[3]; /* by stage: [plane][layer][pos][k, v] of n_head_kv * head_dim each */
} fwd;

static double rnd(const fwd *w, double x) {
    return w->r->act == GY_BF16 ? (double)gy_bf16_round((float)x) : x;
}

static const double *weight(const fwd *w, const char *prefix, const char *name) {
    char full[TINY_NAME];
    glue(full, prefix, name);
    return tiny_find(w->t, full)->v;
}

/* Groups of n to whole numbers of 1/127 of a group's largest size. */
static void round_groups(const double *x, int32_t k, int32_t n, double *y) {
    for (int32_t g = 0; g < k; g += n) {
        double most = 0.0;
        for (int32_t j = g; j < k && j < g + n; j++) most = fmax(most, fabs(x[j]));
        double step = (double)fmaxf((float)most / 127.0f, 0x1p-126f);
        for (int32_t j = g; j < k && j < g + n; j++) y[j] = step * nearbyint(x[j] / step);
    }
}

static int group_of(const fwd *w, const double *m) {
    for (int i = 0; i < w->t->n_tensor; i++) {
        const tiny_tensor *x = &w->t->t[i];
        if (m >= x->v && m < x->v + x->n) return x->group;
    }
    return 0;
}

/* y = W x, W [n, k] held in the activation dtype when that is BF16. */
static void matmul(const fwd *w, const double *m, const double *x, int32_t n, int32_t k, double *y) {
    double rounded[TINY_MOST_GROUP];
    int group = group_of(w, m);
    if (group && k <= TINY_MOST_GROUP) {
        round_groups(x, k, group, rounded);
        x = rounded;
    }
    for (int32_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int32_t j = 0; j < k; j++) sum += rnd(w, m[(size_t)i * (size_t)k + (size_t)j]) * x[j];
        y[i] = rnd(w, sum);
    }
}

static void rms(const fwd *w, const double *x, const double *g, double *y) {
    int32_t n = w->t->s.n_embd;
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += x[i] * x[i];
    double scale = 1.0 / sqrt(sum / n + w->t->s.eps);
    for (int32_t i = 0; i < n; i++) y[i] = rnd(w, rnd(w, x[i] * scale) * rnd(w, g[i]));
}

static void rotation(const fwd *w, int32_t pos, int32_t i, double *c, double *s) {
    const tiny_spec *sp = &w->t->s;
    if (sp->rope_table) {
        const double *table = weight(w, "", "freqs_cis") + 2 * ((size_t)pos * (size_t)(sp->head_dim / 2) + (size_t)i);
        *c = table[0];
        *s = table[1];
        return;
    }
    double angle = (double)pos * pow(sp->theta, -2.0 * i / sp->head_dim);
    int rounded = !is(w->t, "huginn"); /* docs/models, rounding */
    *c = rounded ? rnd(w, cos(angle)) : cos(angle);
    *s = rounded ? rnd(w, sin(angle)) : sin(angle);
}

static void rotate_head(const fwd *w, int32_t pos, double *x) {
    int32_t half = w->t->s.head_dim / 2, pairs = is(w->t, "huginn"), each = !pairs != !!w->r->other_rope;
    for (int32_t i = 0; i < half; i++) {
        double c, s, *p = &x[pairs ? 2 * i : i], *q = &x[pairs ? 2 * i + 1 : i + half], a = *p, b = *q;
        rotation(w, pos, i, &c, &s);
        *p = each ? rnd(w, rnd(w, a * c) - rnd(w, b * s)) : rnd(w, a * c - b * s);
        *q = each ? rnd(w, rnd(w, b * c) + rnd(w, a * s)) : rnd(w, b * c + a * s);
    }
}

static double *kv_at(const fwd *w, int stage, int32_t plane, int32_t il, int32_t pos) {
    const tiny_spec *s = &w->t->s;
    size_t row = ((size_t)plane * (size_t)s->n_layer[stage] + (size_t)il) * (size_t)w->r->n_tok + (size_t)pos;
    return w->kv[stage] + row * 2 * (size_t)(s->n_head_kv * s->head_dim);
}

/* Where a query at this depth finds token j (kv.h): its own plane d mod n, or the one it left with. */
static int32_t plane_of(const fwd *w, int stage, int32_t depth, int32_t loops_of_j) {
    if (stage != 1) return 0;
    int32_t plane = depth % w->n_plane;
    return plane < loops_of_j ? plane : (loops_of_j - 1) % w->n_plane;
}

static void attend(const fwd *w, int stage, int32_t il, int32_t depth, int32_t pos, const double *q, double *y) {
    const tiny_spec *s = &w->t->s;
    int32_t hd = s->head_dim, kv = s->n_head_kv * hd;
    double *score = calloc((size_t)pos + 1, sizeof *score);
    for (int32_t h = 0; h < s->n_head; h++) {
        int32_t at = h / (s->n_head / s->n_head_kv) * hd;
        double top = -1e300, sum = 0.0;
        for (int32_t j = 0; j <= pos; j++) {
            const double *k =
                kv_at(w, stage, plane_of(w, stage, depth, j < pos ? w->r->loops[j] : depth + 1), il, j) + at;
            for (int32_t i = 0; i < hd; i++) score[j] += q[h * hd + i] * k[i];
            score[j] /= sqrt(hd);
            top = fmax(top, score[j]);
        }
        for (int32_t j = 0; j <= pos; j++) sum += score[j] = exp(score[j] - top);
        for (int32_t i = 0; i < hd; i++) {
            double out = 0.0;
            for (int32_t j = 0; j <= pos; j++)
                out += score[j] / sum *
                       kv_at(w, stage, plane_of(w, stage, depth, j < pos ? w->r->loops[j] : depth + 1), il,
                             j)[kv + at + i];
            y[h * hd + i] = rnd(w, out);
        }
        memset(score, 0, ((size_t)pos + 1) * sizeof *score);
    }
    free(score);
}

enum { WIDE = 1024 };

static void qkv_of(const fwd *w, const char *p, const double *a, double *q, double *kv_out) {
    const tiny_spec *s = &w->t->s;
    int32_t nq = s->n_head * s->head_dim, nkv = s->n_head_kv * s->head_dim, n = s->n_embd;
    if (is(w->t, "huginn")) {
        double all[WIDE];
        matmul(w, weight(w, p, "attn.Wqkv.weight"), a, 3 * n, n, all);
        const double *bias = s->no_bias ? NULL : weight(w, p, "attn.qk_bias");
        for (int32_t i = 0; i < 2 * n && bias; i++) all[i] = rnd(w, all[i] + rnd(w, bias[i]));
        memcpy(q, all, (size_t)n * sizeof *q);
        memcpy(kv_out, all + n, 2 * (size_t)n * sizeof *q);
        return;
    }
    matmul(w, weight(w, p, "self_attn.q_proj.weight"), a, nq, n, q);
    matmul(w, weight(w, p, "self_attn.k_proj.weight"), a, nkv, n, kv_out);
    matmul(w, weight(w, p, "self_attn.v_proj.weight"), a, nkv, n, kv_out + nkv);
}

static void mlp(const fwd *w, const char *p, const double *a, double *y) {
    int32_t n = w->t->s.n_embd, ff = w->t->s.n_ff;
    double g[WIDE], u[WIDE];
    if (is(w->t, "huginn")) {
        const double *fc = weight(w, p, "mlp.fc.weight");
        matmul(w, fc, a, ff, n, g);
        matmul(w, fc + (size_t)ff * (size_t)n, a, ff, n, u);
    } else {
        matmul(w, weight(w, p, "mlp.gate_proj.weight"), a, ff, n, g);
        matmul(w, weight(w, p, "mlp.up_proj.weight"), a, ff, n, u);
    }
    for (int32_t i = 0; i < ff; i++) g[i] = rnd(w, rnd(w, g[i] / (1.0 + exp(-g[i]))) * u[i]);
    matmul(w, weight(w, p, is(w->t, "huginn") ? "mlp.proj.weight" : "mlp.down_proj.weight"), g, n, ff, y);
}

/* docs/models, forward pass: the residuals */
static void join(const fwd *w, const double *branch, const double *norm, double *x) {
    int32_t n = w->t->s.n_embd;
    double y[WIDE];
    memcpy(y, branch, (size_t)n * sizeof *y);
    if (is(w->t, "ouro")) rms(w, branch, norm, y);
    for (int32_t i = 0; i < n; i++) x[i] = rnd(w, x[i] + y[i]);
    if (is(w->t, "huginn")) rms(w, x, norm, x);
}

static void block(const fwd *w, int stage, int32_t il, int32_t depth, int32_t pos, double *x) {
    static const char *const prefix[] = {"transformer.prelude.", "transformer.core_block.", "transformer.coda."};
    static const char *const names[2][4] = {{"input_layernorm.weight", "input_layernorm_2.weight",
                                             "post_attention_layernorm.weight", "post_attention_layernorm_2.weight"},
                                            {"norm_1.weight", "norm_2.weight", "norm_3.weight", "norm_4.weight"}};
    const tiny_spec *s = &w->t->s;
    int hug = is(w->t, "huginn"), has_post = !is(w->t, "nanbeige");
    double a[WIDE], q[WIDE], kv[WIDE], y[WIDE];
    char p[40];
    snprintf(p, sizeof p, "%s%d.", hug ? prefix[stage] : "model.layers.", il);
    rms(w, x, weight(w, p, names[hug][0]), a);
    qkv_of(w, p, a, q, kv);
    for (int32_t h = 0; h < s->n_head; h++) rotate_head(w, pos, q + h * s->head_dim);
    for (int32_t h = 0; h < s->n_head_kv; h++) rotate_head(w, pos, kv + h * s->head_dim);
    if (w->r->kv_int8) round_groups(kv, 2 * s->n_head_kv * s->head_dim, s->head_dim, kv);
    memcpy(kv_at(w, stage, stage == 1 ? depth % w->n_plane : 0, il, pos), kv,
           2 * (size_t)(s->n_head_kv * s->head_dim) * sizeof *kv);
    attend(w, stage, il, depth, pos, q, a);
    matmul(w, weight(w, p, hug ? "attn.proj.weight" : "self_attn.o_proj.weight"), a, s->n_embd, s->n_head * s->head_dim,
           y);
    join(w, y, has_post ? weight(w, p, names[hug][1]) : NULL, x);
    rms(w, x, weight(w, p, names[hug][2]), a);
    mlp(w, p, a, y);
    join(w, y, has_post ? weight(w, p, names[hug][3]) : NULL, x);
}

static void enter(const fwd *w, int32_t pos, double *e, double *state) {
    const tiny_spec *s = &w->t->s;
    int32_t n = s->n_embd, hug = is(w->t, "huginn");
    const double *table = weight(w, "", hug ? "transformer.wte.weight" : "model.embed_tokens.weight");
    double scale = !hug ? 1.0 : s->embed_scale > 0.0 ? s->embed_scale : sqrt(n);
    for (int32_t i = 0; i < n; i++)
        e[i] = rnd(w, rnd(w, table[(size_t)w->r->ids[pos] * (size_t)n + (size_t)i]) * scale);
    for (int32_t il = 0; il < s->n_layer[0]; il++) block(w, 0, il, 0, pos, e);
    for (int32_t i = 0; i < n; i++)
        state[i] = !hug ? e[i] : w->r->init ? rnd(w, w->r->init[(size_t)pos * (size_t)n + (size_t)i]) : 0.0;
}

static void one_loop(const fwd *w, int32_t pos, int32_t depth, const double *e, double *state) {
    const tiny_spec *s = &w->t->s;
    int32_t n = s->n_embd;
    if (is(w->t, "huginn")) {
        double both[WIDE];
        memcpy(both, state, (size_t)n * sizeof *both);
        memcpy(both + n, e, (size_t)n * sizeof *both);
        matmul(w, weight(w, "", "transformer.adapter.weight"), both, n, 2 * n, state);
    }
    for (int32_t il = 0; il < s->n_layer[1]; il++) block(w, 1, il, depth, pos, state);
    if (is(w->t, "ouro") || (is(w->t, "nanbeige") && !s->skip_norm))
        rms(w, state, weight(w, "", "model.norm.weight"), state);
}

static void observe(const fwd *w, int32_t pos, int32_t depth, const double *before, const double *state) {
    int32_t n = w->t->s.n_embd;
    double diff = 0.0, size = 0.0, gate = 0.0;
    for (int32_t i = 0; i < n; i++) {
        diff += (state[i] - before[i]) * (state[i] - before[i]);
        size += state[i] * state[i];
    }
    w->r->latent = sqrt(diff) / fmax(sqrt(size), 1e-9);
    memcpy(w->r->hidden + ((size_t)pos * (size_t)w->r->depth + (size_t)depth) * (size_t)n, state,
           (size_t)n * sizeof *state);
    if (!is(w->t, "ouro")) return;
    const double *g = weight(w, "", "model.early_exit_gate.weight");
    for (int32_t i = 0; i < n; i++) gate += rnd(w, g[i]) * state[i];
    w->r->gate = rnd(w, gate + rnd(w, weight(w, "", "model.early_exit_gate.bias")[0]));
    w->r->gates[(size_t)pos * (size_t)w->r->depth + (size_t)depth] = w->r->gate;
}

static void read_out(const fwd *w, int32_t pos, const double *state) {
    const tiny_spec *s = &w->t->s;
    int32_t hug = is(w->t, "huginn");
    const char *final_norm = hug ? "transformer.ln_f.weight" : "model.norm.weight";
    const char *embed = hug ? "transformer.wte.weight" : "model.embed_tokens.weight";
    double x[WIDE];
    memcpy(x, state, (size_t)s->n_embd * sizeof *x);
    if (hug) rms(w, x, weight(w, "", final_norm), x);
    for (int32_t il = 0; il < s->n_layer[2]; il++) block(w, 2, il, 0, pos, x);
    if (hug || s->skip_norm) rms(w, x, weight(w, "", final_norm), x);
    matmul(w, weight(w, "", hug || s->tied ? embed : "lm_head.weight"), x, s->n_vocab, s->n_embd,
           w->r->logits + (size_t)pos * (size_t)s->n_vocab);
}

static void one_token(const fwd *w, int32_t pos) {
    tiny_run *r = w->r;
    size_t n = (size_t)w->t->s.n_embd;
    double e[WIDE], state[WIDE], before[WIDE];
    enter(w, pos, e, state);
    r->read = 0;
    for (int32_t depth = 0;; depth++) {
        memcpy(before, state, n * sizeof *state);
        one_loop(w, pos, depth, e, state);
        observe(w, pos, depth, before, state);
        r->loops[pos] = depth + 1;
        if (depth + 1 == r->depth || r->leave(r, pos, depth + 1)) break;
    }
    int32_t read = r->read ? r->read : r->loops[pos];
    r->read_loops[pos] = read;
    read_out(w, pos, r->hidden + ((size_t)pos * (size_t)r->depth + (size_t)read - 1) * n);
}

void tiny_forward(tiny *t, tiny_run *r) {
    const tiny_spec *s = &t->s;
    size_t n_tok = (size_t)r->n_tok, depth = (size_t)r->depth;
    fwd w = {.t = t, .r = r};
    w.n_plane = r->layout == GY_KV_SHARED ? 1 : r->layout == GY_KV_CYCLIC ? r->cyclic_k : r->depth;
    r->logits = calloc(n_tok * (size_t)s->n_vocab, sizeof(double));
    r->hidden = calloc(n_tok * depth * (size_t)s->n_embd, sizeof(double));
    r->gates = calloc(n_tok * depth, sizeof(double));
    r->loops = calloc(n_tok, sizeof(int32_t));
    r->read_loops = calloc(n_tok, sizeof(int32_t));
    for (int g = 0; g < 3; g++) {
        size_t rows = (g == 1 ? (size_t)w.n_plane : 1) * (size_t)s->n_layer[g] * n_tok;
        w.kv[g] = calloc(rows * 2 * (size_t)(s->n_head_kv * s->head_dim) + 1, sizeof(double));
    }
    for (int32_t pos = 0; pos < r->n_tok; pos++) one_token(&w, pos);
    for (int g = 0; g < 3; g++) free(w.kv[g]);
}

void tiny_run_free(tiny_run *r) {
    free(r->logits);
    free(r->hidden);
    free(r->gates);
    free(r->loops);
    free(r->read_loops);
}
