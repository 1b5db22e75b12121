/* Synthetic checkpoints: see synth.h. A shape is a row of shape_table; a family is one function that lists its tensors
 * and one that writes its config. Tensors lie in the file sorted by name, as the published files do.
 *
 * Deliberately not here: reading back (model.c does, strictly), shards (each shape is one file), and any attempt at the
 * published initialisation: the scales below are chosen for sane activations, not for training.
 */
#include "model/synth.h"

#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/team.h"
#include "base/vec.h"
#include "tensor/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- shapes ----------------------------------------------------------------------------------------------------- */

typedef enum synth_family { OURO, NANBEIGE, HUGINN } synth_family;

typedef struct synth_shape {
    const char *name;
    synth_family family;
    int32_t n_vocab, n_embd, n_ff, n_layer, n_head, n_head_kv, head_dim, n_loop, max_pos;
    int32_t bos, eos[2], pad; /* -1: none */
    int32_t vocab_multiple;   /* Huginn */
} synth_shape;

/* Ouro's and Nanbeige's n_layer are the looped ones; Huginn's are the core's, with two prelude and two coda layers. */
static const synth_shape shape_table[] = {
    {"ouro-1.4b", OURO, 49152, 2048, 5632, 24, 16, 16, 128, 4, 65536, 0, {0, -1}, -1, 0},
    {"ouro-2.6b", OURO, 49152, 2048, 5632, 48, 16, 16, 128, 4, 65536, 0, {0, -1}, -1, 0},
    {"nanbeige-3b", NANBEIGE, 166144, 3072, 10752, 22, 48, 8, 128, 2, 262144, 166100, {166101, -1}, 0, 0},
    {"huginn", HUGINN, 65536, 5280, 17920, 4, 55, 55, 96, 32, 4096, 65504, {65505, 65508}, 65509, 4096},
    {"tiny-ouro", OURO, 320, 64, 176, 3, 4, 4, 16, 4, 512, 0, {0, -1}, -1, 0},
    {"tiny-huginn", HUGINN, 320, 60, 112, 4, 5, 5, 12, 8, 256, 1, {2, -1}, 3, 64},
    {"tiny-nanbeige", NANBEIGE, 384, 96, 160, 3, 12, 2, 16, 2, 512, 1, {2, -1}, 0, 0},
    /* The published widths divided by 4, 13.75 and 8, with fewer layers and the published depths: small enough for a
     * test machine, large enough that the products and not the bookkeeping take the time. */
    {"mini-ouro", OURO, 4096, 512, 1408, 8, 4, 4, 128, 4, 8192, 0, {0, -1}, -1, 0},
    {"mini-huginn", HUGINN, 4096, 384, 1312, 4, 4, 4, 96, 32, 4096, 1, {2, -1}, 3, 4096},
    {"mini-nanbeige", NANBEIGE, 8192, 384, 1344, 8, 6, 1, 128, 2, 8192, 1, {2, -1}, 0, 0},
    /* The published widths divided by 3, 6 query heads to a KV head as published: what other programs that know this
     * family are compared on (tools/llama_compare.py). */
    {"nanbeige-300m", NANBEIGE, 32768, 1024, 3584, 16, 12, 2, 128, 2, 8192, 1, {2, -1}, 0, 0},
};
enum { N_SHAPE = sizeof shape_table / sizeof *shape_table, HUGINN_PRELUDE = 2, HUGINN_CODA = 2 };

const char *const *gy_synth_shapes(void) {
    static const char *const names[N_SHAPE + 1] = {"ouro-1.4b",   "ouro-2.6b",     "nanbeige-3b",   "huginn",
                                                   "tiny-ouro",   "tiny-huginn",   "tiny-nanbeige", "mini-ouro",
                                                   "mini-huginn", "mini-nanbeige", "nanbeige-300m", NULL};
    return names;
}

static gy_status shape_find(const char *name, gy_err *err, const synth_shape **out) {
    for (int i = 0; i < N_SHAPE; i++) {
        if (strcmp(shape_table[i].name, name) != 0) continue;
        *out = &shape_table[i];
        return GY_OK;
    }
    gy_str list = {0};
    for (int i = 0; i < N_SHAPE; i++) gy_str_printf(&list, "%s%s", i ? ", " : "", shape_table[i].name);
    const gy_status s = gy_err_set(err, GY_E_ARG, "shape: found \"%.64s\", expected one of %s", name, gy_str_z(&list));
    gy_str_free(&list);
    return s;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

typedef struct synth_tensor {
    char name[64];
    const char *values_of; /* the name that the numbers belong to; NULL: its own */
    gy_st_entry e;         /* e.name points to name once the list is final */
    size_t n_elem;
    float mean, std;
    size_t damped;  /* so many leading columns of each row are scaled by STATE_DAMPING (adapter) */
    int rope_table; /* freqs_cis: computed, not drawn */
} synth_tensor;

typedef struct tensor_list {
    GY_VEC(synth_tensor) v;
    gy_dtype dtype;
    int failed;
} tensor_list;

static void tensor_add(tensor_list *l, const char *prefix, const char *name, int n_dim, const int64_t *shape,
                       float mean, float std) {
    synth_tensor t = {.e = {.dtype = l->dtype, .n_dim = n_dim}, .n_elem = 1, .mean = mean, .std = std};
    snprintf(t.name, sizeof t.name, "%s%s", prefix, name);
    for (int d = 0; d < n_dim; d++) {
        t.e.shape[d] = shape[d];
        t.n_elem *= (size_t)shape[d]; /* from shape_table: at most 2^29 */
    }
    if (gy_vec_push(&l->v, GY_MEM_MODEL, t)) l->failed = 1;
}

/* [n_out, n_in]; a row's product with an input of mean square one has variance one. */
static void matrix_add(tensor_list *l, const char *prefix, const char *name, int64_t n_out, int64_t n_in) {
    tensor_add(l, prefix, name, 2, (int64_t[]){n_out, n_in}, 0.0f, (float)(1.0 / sqrt((double)n_in)));
}

static void norm_add(tensor_list *l, const char *prefix, const char *name, int64_t n) {
    tensor_add(l, prefix, name, 1, &n, 1.0f, 0.02f);
}

/* Both Llama-like families; Ouro has two more norms a layer and the gate. */
static void list_llama(tensor_list *l, const synth_shape *s) {
    const int64_t q = (int64_t)s->n_head * s->head_dim, kv = (int64_t)s->n_head_kv * s->head_dim, d = s->n_embd;
    char p[32];
    tensor_add(l, "", "model.embed_tokens.weight", 2, (int64_t[]){s->n_vocab, d}, 0.0f, 1.0f);
    for (int i = 0; i < s->n_layer; i++) {
        snprintf(p, sizeof p, "model.layers.%d.", i);
        matrix_add(l, p, "self_attn.q_proj.weight", q, d);
        matrix_add(l, p, "self_attn.k_proj.weight", kv, d);
        matrix_add(l, p, "self_attn.v_proj.weight", kv, d);
        matrix_add(l, p, "self_attn.o_proj.weight", d, q);
        matrix_add(l, p, "mlp.gate_proj.weight", s->n_ff, d);
        matrix_add(l, p, "mlp.up_proj.weight", s->n_ff, d);
        matrix_add(l, p, "mlp.down_proj.weight", d, s->n_ff);
        norm_add(l, p, "input_layernorm.weight", d);
        norm_add(l, p, "post_attention_layernorm.weight", d);
        if (s->family != OURO) continue;
        norm_add(l, p, "input_layernorm_2.weight", d);
        norm_add(l, p, "post_attention_layernorm_2.weight", d);
    }
    norm_add(l, "", "model.norm.weight", d);
    matrix_add(l, "", "lm_head.weight", s->n_vocab, d);
}

/* The gate sees a normed state, so its logit is about N(-1, 1): one loop's exit probability is 0.12 to 0.5 for most
 * tokens, and a threshold of one half is passed after one to four loops. */
static void list_ouro_gate(tensor_list *l, const synth_shape *s) {
    matrix_add(l, "", "model.early_exit_gate.weight", 1, s->n_embd);
    tensor_add(l, "", "model.early_exit_gate.bias", 1, (int64_t[]){1}, -1.0f, 0.05f);
}

static void list_huginn_block(tensor_list *l, const synth_shape *s, const char *stage, int i) {
    const int64_t d = s->n_embd;
    char p[40];
    snprintf(p, sizeof p, "transformer.%s.%d.", stage, i);
    norm_add(l, p, "norm_1.weight", d);
    norm_add(l, p, "norm_2.weight", d);
    norm_add(l, p, "norm_3.weight", d);
    norm_add(l, p, "norm_4.weight", d);
    matrix_add(l, p, "attn.Wqkv.weight", 3 * d, d);
    tensor_add(l, p, "attn.qk_bias", 4, (int64_t[]){2, 1, s->n_head, s->head_dim}, 0.0f, 0.1f);
    matrix_add(l, p, "attn.proj.weight", d, d);
    matrix_add(l, p, "mlp.fc.weight", 2 * (int64_t)s->n_ff, d);
    matrix_add(l, p, "mlp.proj.weight", d, s->n_ff);
}

/* wte has the scale of a head; the model's factor sqrt(n_embd) then makes embeddings of mean square one. */
static void list_huginn(tensor_list *l, const synth_shape *s) {
    const int64_t d = s->n_embd;
    matrix_add(l, "", "transformer.wte.weight", s->n_vocab, d);
    for (int i = 0; i < HUGINN_PRELUDE; i++) list_huginn_block(l, s, "prelude", i);
    matrix_add(l, "", "transformer.adapter.weight", d, 2 * d);
    for (int i = 0; i < s->n_layer; i++) list_huginn_block(l, s, "core_block", i);
    for (int i = 0; i < HUGINN_CODA; i++) list_huginn_block(l, s, "coda", i);
    norm_add(l, "", "transformer.ln_f.weight", d);
    matrix_add(l, "", "lm_head.weight", s->n_vocab, d);
    tensor_add(l, "", "freqs_cis", 5, (int64_t[]){1, s->max_pos, 1, s->head_dim / 2, 2}, 0.0f, 0.0f);
}

static int tensor_cmp(const void *a, const void *b) {
    return strcmp(((const synth_tensor *)a)->name, ((const synth_tensor *)b)->name);
}

/* What needs the tensor's final place, and what is special in Huginn: two tensors that are not drawn (the copy of wte
 * and the rotation table), and the adapter's columns for the state. At full scale random loops never settle; damped
 * they converge slowly, as the trained model's do, so that its exit rules have something to find. */
static void tensor_settle(const synth_shape *s, synth_tensor *t) {
    t->e.name = t->name;
    if (s->family != HUGINN) return;
    if (!strcmp(t->name, "lm_head.weight")) t->values_of = "transformer.wte.weight";
    if (!strcmp(t->name, "transformer.adapter.weight")) t->damped = (size_t)s->n_embd;
    t->rope_table = !strcmp(t->name, "freqs_cis");
}

static gy_status tensors_list(const synth_shape *s, gy_err *err, tensor_list *l) {
    l->dtype = s->family == HUGINN ? GY_F32 : GY_BF16;
    if (s->family == HUGINN)
        list_huginn(l, s);
    else
        list_llama(l, s);
    if (s->family == OURO) list_ouro_gate(l, s);
    if (l->failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the tensor list of %s", s->name);
    qsort(l->v.data, l->v.len, sizeof *l->v.data, tensor_cmp);
    for (size_t i = 0; i < l->v.len; i++) tensor_settle(s, &l->v.data[i]);
    return GY_OK;
}

static uint64_t tensors_bytes(const tensor_list *l) {
    uint64_t n = 0;
    for (size_t i = 0; i < l->v.len; i++) n += (uint64_t)l->v.data[i].n_elem * gy_dtype_bytes(l->v.data[i].e.dtype);
    return n;
}

gy_status gy_synth_get_info(const char *shape, gy_err *err, gy_synth_info *out) {
    const synth_shape *s = NULL;
    tensor_list l = {0};
    GY_TRY(shape_find(shape, err, &s));
    const gy_status st = tensors_list(s, err, &l);
    if (st == GY_OK) *out = (gy_synth_info){s->name, s->n_vocab, l.v.len, tensors_bytes(&l)};
    gy_vec_free(&l.v);
    return st;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

enum { PIECE_ELEMS = 2 << 20, ELEMS_PER_BLOCK = 8 };

typedef struct fill_job {
    const synth_shape *shape;
    const synth_tensor *t;
    uint64_t seed, stream; /* stream: of the tensor's name */
    size_t first, n;       /* elements of this piece; first is a multiple of ELEMS_PER_BLOCK */
    void *dst;
} fill_job;

/* 64-bit FNV-1a (Fowler, Noll, Vo): names of one shape get distinct streams, whatever their order in the file. */
static uint64_t name_hash(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

/* Eight elements from one Philox block. Each is the sum of two of its bytes less their mean: a triangle, near enough to
 * a normal, symmetric, and within 2.5 of its own std.
 */
static void draw_block(const fill_job *j, size_t block, float scale, float x[ELEMS_PER_BLOCK]) {
    uint32_t r[4];
    gy_rand_block(j->seed, (uint32_t)j->stream, (uint32_t)(j->stream >> 32), GY_RAND_SYNTH, (uint32_t)block, r);
    for (int k = 0; k < 4; k++) {
        const uint32_t two = (r[k] & 0x00ff00ffu) + ((r[k] >> 8) & 0x00ff00ffu);
        x[2 * k] = j->t->mean + scale * (float)((int32_t)(two & 0xffffu) - 255);
        x[2 * k + 1] = j->t->mean + scale * (float)((int32_t)(two >> 16) - 255);
    }
}

#define STATE_DAMPING 0.5f

static void damp_columns(const fill_job *j, size_t first, float x[ELEMS_PER_BLOCK]) {
    const size_t row = (size_t)j->t->e.shape[1];
    for (size_t k = 0; k < ELEMS_PER_BLOCK; k++)
        if ((first + k) % row < j->t->damped) x[k] *= STATE_DAMPING;
}

/* Elements [lo, hi) of the piece; lo is a multiple of a block. The variance of one byte is (256^2 - 1) / 12. */
static void fill_random(const fill_job *j, size_t lo, size_t hi) {
    const float scale = (float)((double)j->t->std / sqrt(2.0 * 65535.0 / 12.0));
    float x[ELEMS_PER_BLOCK], *f32 = j->dst;
    uint16_t *bf16 = j->dst;
    for (size_t i = lo; i < hi; i += ELEMS_PER_BLOCK) {
        const size_t n = hi - i < ELEMS_PER_BLOCK ? hi - i : ELEMS_PER_BLOCK;
        draw_block(j, (j->first + i) / ELEMS_PER_BLOCK, scale, x);
        if (j->t->damped) damp_columns(j, j->first + i, x);
        if (j->t->e.dtype == GY_F32)
            memcpy(f32 + i, x, n * sizeof *x);
        else
            for (size_t k = 0; k < n; k++) bf16[i + k] = gy_f32_to_bf16(x[k]);
    }
}

/* freqs_cis[pos][i] = cos, sin of pos * base^(-2i / head_dim). Frequency and angle are rounded to F32 as the published
 * code does (huginn.md, initial state and rounding); cos and sin are rounded once. */
static void fill_rope(const fill_job *j, size_t lo, size_t hi) {
    const size_t half = (size_t)j->shape->head_dim / 2;
    float *dst = j->dst;
    for (size_t i = lo; i < hi; i++) {
        const size_t at = j->first + i, pos = at / 2 / half, k = at / 2 % half;
        const float freq = (float)(1.0 / pow(50000.0, 2.0 * (double)k / (double)j->shape->head_dim));
        const float angle = (float)pos * freq;
        dst[i] = (float)(at % 2 ? sin((double)angle) : cos((double)angle));
    }
}

static void fill_member(void *arg, int member, int n_member) {
    const fill_job *j = arg;
    int64_t lo, hi;
    gy_team_share((int64_t)j->n, ELEMS_PER_BLOCK, member, n_member, &lo, &hi);
    if (j->t->rope_table)
        fill_rope(j, (size_t)lo, (size_t)hi);
    else
        fill_random(j, (size_t)lo, (size_t)hi);
}

typedef struct writing {
    const synth_shape *shape;
    uint64_t seed;
    tensor_list list;
    gy_team *team;
    gy_st_writer *file;
    void *piece; /* PIECE_ELEMS elements */
    uint64_t done, total;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} writing;

static gy_status write_tensor(writing *w, const synth_tensor *t, gy_err *err) {
    fill_job j = {.shape = w->shape, .t = t, .seed = w->seed, .dst = w->piece};
    j.stream = name_hash(t->values_of ? t->values_of : t->name);
    for (; j.first < t->n_elem; j.first += j.n) {
        j.n = t->n_elem - j.first < PIECE_ELEMS ? t->n_elem - j.first : PIECE_ELEMS;
        gy_team_run(w->team, fill_member, &j);
        const size_t bytes = j.n * gy_dtype_bytes(t->e.dtype);
        GY_TRY(gy_st_writer_put(w->file, w->piece, bytes, err));
        w->done += bytes;
        if (w->progress) w->progress(w->arg, w->done, w->total);
    }
    return GY_OK;
}

static gy_status writing_open(writing *w, const char *path, gy_err *err) {
    const size_t n = w->list.v.len;
    gy_st_entry *e = gy_mem_alloc(GY_MEM_MODEL, n, sizeof *e);
    w->piece = gy_mem_alloc(GY_MEM_MODEL, PIECE_ELEMS, gy_dtype_bytes(w->list.dtype));
    gy_status s = GY_OK;
    if (!e || !w->piece) s = gy_err_set(err, GY_E_NOMEM, "%s: no memory for writing", path);
    for (size_t i = 0; s == GY_OK && i < n; i++) e[i] = w->list.v.data[i].e;
    if (s == GY_OK && (s = gy_team_create(0, GY_PIN_OFF, &w->team)) < 0)
        s = gy_err_set(err, s, "%s: cannot start the threads that compute it", path);
    if (s == GY_OK) s = gy_st_writer_open(path, e, n, err, &w->file);
    gy_mem_free(e);
    return s;
}

static gy_status write_weights(writing *w, const char *path, gy_err *err) {
    gy_status s = writing_open(w, path, err);
    for (size_t i = 0; s == GY_OK && i < w->list.v.len; i++) s = write_tensor(w, &w->list.v.data[i], err);
    if (s == GY_OK) {
        gy_st_writer *file = w->file;
        w->file = NULL;
        s = gy_st_writer_close(file, err);
    }
    gy_st_writer_abort(w->file);
    gy_team_destroy(w->team);
    gy_mem_free(w->piece);
    return s;
}

/* ---- config.json ------------------------------------------------------------------------------------------------ */

static void put_int(gy_jw *w, const char *key, int64_t v) {
    gy_jw_key(w, key);
    gy_jw_int(w, v);
}
static void put_num(gy_jw *w, const char *key, double v) {
    gy_jw_key(w, key);
    gy_jw_f64(w, v);
}
static void put_bool(gy_jw *w, const char *key, int v) {
    gy_jw_key(w, key);
    gy_jw_bool(w, v);
}
static void put_str(gy_jw *w, const char *key, const char *v) { /* NULL writes null */
    gy_jw_key(w, key);
    gy_jw_strz(w, v);
}

static void config_head(gy_jw *w, const char *architecture, const char *model_type, const char *dtype) {
    gy_jw_key(w, "architectures");
    gy_jw_arr_begin(w);
    gy_jw_strz(w, architecture);
    gy_jw_arr_end(w);
    put_str(w, "model_type", model_type);
    put_str(w, "torch_dtype", dtype);
}

static void config_ids(gy_jw *w, const synth_shape *s) {
    put_int(w, "bos_token_id", s->bos);
    gy_jw_key(w, "eos_token_id");
    if (s->eos[1] >= 0) {
        gy_jw_arr_begin(w);
        gy_jw_int(w, s->eos[0]);
        gy_jw_int(w, s->eos[1]);
        gy_jw_arr_end(w);
    } else {
        gy_jw_int(w, s->eos[0]);
    }
    if (s->pad >= 0) put_int(w, "pad_token_id", s->pad);
}

static void config_llama(gy_jw *w, const synth_shape *s, double eps, double theta) {
    put_int(w, "vocab_size", s->n_vocab);
    put_int(w, "hidden_size", s->n_embd);
    put_int(w, "intermediate_size", s->n_ff);
    put_int(w, "num_hidden_layers", s->n_layer);
    put_int(w, "num_attention_heads", s->n_head);
    put_int(w, "num_key_value_heads", s->n_head_kv);
    put_int(w, "head_dim", s->head_dim);
    put_str(w, "hidden_act", "silu");
    put_num(w, "rms_norm_eps", eps);
    put_num(w, "rope_theta", theta);
    put_int(w, "max_position_embeddings", s->max_pos);
    put_bool(w, "tie_word_embeddings", 0);
    put_num(w, "initializer_range", 0.02);
    put_bool(w, "use_cache", 1);
}

static void config_ouro(gy_jw *w, const synth_shape *s) {
    config_head(w, "OuroForCausalLM", "ouro", "bfloat16");
    config_llama(w, s, 1e-6, 1e6);
    put_int(w, "total_ut_steps", s->n_loop);
    put_num(w, "early_exit_threshold", 1.0);
    put_num(w, "attention_dropout", 0.0);
    put_bool(w, "use_sliding_window", 0);
    put_str(w, "sliding_window", NULL);
    put_int(w, "max_window_layers", s->n_layer);
    gy_jw_key(w, "layer_types");
    gy_jw_arr_begin(w);
    for (int i = 0; i < s->n_layer; i++) gy_jw_strz(w, "full_attention");
    gy_jw_arr_end(w);
}

static void config_nanbeige(gy_jw *w, const synth_shape *s) {
    config_head(w, "NanbeigeForCausalLM", "nanbeige", "bfloat16");
    config_llama(w, s, 1e-5, 7e7);
    put_str(w, "rope_scaling", NULL);
    put_int(w, "num_loops", s->n_loop);
    put_bool(w, "skip_loop_final_norm", 0);
    gy_jw_key(w, "loop_loss_weights");
    gy_jw_arr_begin(w);
    gy_jw_arr_end(w);
    put_bool(w, "attention_bias", 0);
    put_bool(w, "mlp_bias", 0);
}

/* The published file's numbers, not those that the weights here were drawn with. */
static void config_huginn_init(gy_jw *w, const synth_shape *s) {
    const double std = sqrt(2.0 / (5.0 * s->n_embd));
    const int depth = HUGINN_PRELUDE + s->n_layer * s->n_loop + HUGINN_CODA;
    gy_jw_key(w, "init_values");
    gy_jw_obj_begin(w);
    put_num(w, "std", std);
    put_num(w, "out_proj", std / sqrt(2.0 * depth));
    put_num(w, "embedding", std);
    put_num(w, "embed_scale", sqrt((double)s->n_embd));
    gy_jw_obj_end(w);
}

static void config_huginn_layers(gy_jw *w, const synth_shape *s) {
    put_int(w, "n_embd", s->n_embd);
    put_int(w, "n_heads", s->n_head);
    put_int(w, "num_key_value_heads", s->n_head_kv);
    put_int(w, "n_layers", HUGINN_PRELUDE + s->n_layer + HUGINN_CODA);
    put_int(w, "n_layers_in_prelude", HUGINN_PRELUDE);
    put_int(w, "n_layers_in_recurrent_block", s->n_layer);
    put_int(w, "n_layers_in_coda", HUGINN_CODA);
    put_int(w, "intermediate_size", s->n_ff);
    put_int(w, "vocab_size", s->n_vocab);
    put_int(w, "padded_vocab_size", s->n_vocab);
    put_int(w, "padding_multiple", s->vocab_multiple);
    put_int(w, "block_size", s->max_pos);
}

static void config_huginn(gy_jw *w, const synth_shape *s) {
    config_head(w, "RavenForCausalLM", "huginn_raven", "float32");
    put_str(w, "architecture_class_name", "RecurrentGPT");
    put_str(w, "block_class_name", "SandwichBlock");
    put_str(w, "norm_class_name", "RMSNorm_llama");
    put_str(w, "mlp_class_name", "GatedMLP");
    put_str(w, "nonlin_name", "SiLU");
    config_huginn_layers(w, s);
    put_num(w, "norm_eps", 1e-6);
    put_num(w, "rope_base", 50000.0);
    put_bool(w, "qk_bias", 1);
    put_bool(w, "bias", 0);
    put_bool(w, "tie_embeddings", 1);
    put_str(w, "injection_type", "linear");
    put_str(w, "state_init", "like-init");
    put_num(w, "test_time_noise", 0.0);
    put_str(w, "test_time_noise_type", "none");
    put_int(w, "mean_recurrence", s->n_loop);
    put_int(w, "mean_backprop_depth", 8);
    put_str(w, "sampling_scheme", "poisson-lognormal-filling");
    config_huginn_init(w, s);
}

static void config_text(const synth_shape *s, uint64_t seed, gy_str *out) {
    gy_jw w;
    char origin[96];
    snprintf(origin, sizeof origin, "random weights: gyre synth --shape %s --seed %" PRIu64, s->name, seed);
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    put_str(&w, "_name_or_path", origin);
    if (s->family == OURO)
        config_ouro(&w, s);
    else if (s->family == NANBEIGE)
        config_nanbeige(&w, s);
    else
        config_huginn(&w, s);
    config_ids(&w, s);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

/* ---- the folder ------------------------------------------------------------------------------------------------- */

static gy_status io_error(const char *path, int code, gy_err *err) {
    return gy_err_set(err, GY_E_IO, "%s: cannot write: %s", path, strerrordesc_np(code));
}

/* Creates or overwrites; a file that cannot be completed is removed. */
static gy_status file_put(const char *path, const gy_str *text, gy_err *err) {
    if (text->failed) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for its text", path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return io_error(path, errno, err);
    size_t at = 0;
    int code = 0;
    while (at < text->len && !code) {
        const ssize_t k = write(fd, text->data + at, text->len - at);
        if (k > 0)
            at += (size_t)k;
        else if (k == 0 || errno != EINTR)
            code = k ? errno : EIO;
    }
    if (close(fd) != 0 && !code) code = errno;
    if (!code) return GY_OK;
    unlink(path);
    return io_error(path, code, err);
}

static gy_status dir_file_put(const char *dir, const char *name, const gy_str *text, gy_err *err) {
    char *path = gy_path_join(dir, name);
    if (!path) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for a path", dir);
    const gy_status s = file_put(path, text, err);
    gy_mem_free(path);
    return s;
}

static gy_status dir_check_empty(const char *dir, gy_err *err) {
    DIR *d = opendir(dir);
    if (!d)
        return gy_err_set(err, GY_E_IO, "%s: cannot be read as a folder: %s: give a new or an empty one", dir,
                          strerrordesc_np(errno));
    gy_status s = GY_OK;
    for (struct dirent *e = readdir(d); e && s == GY_OK; e = readdir(d)) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        s = gy_err_set(err, GY_E_ARG,
                       "%s: the folder is not empty (it holds \"%.64s\"): nothing is overwritten, give a new or an "
                       "empty one",
                       dir, e->d_name);
    }
    closedir(d);
    return s;
}

/* *created_out: 1 if the folder is ours to remove again. */
static gy_status dir_prepare(const char *dir, gy_err *err, int *created_out) {
    if (mkdir(dir, 0777) == 0) {
        *created_out = 1;
        return GY_OK;
    }
    if (errno == EEXIST) return dir_check_empty(dir, err);
    return gy_err_set(err, GY_E_IO, "%s: cannot create the folder: %s: check its parent", dir, strerrordesc_np(errno));
}

static gy_status dir_check_space(const char *dir, uint64_t need, gy_err *err) {
    struct statvfs v;
    if (statvfs(dir, &v) != 0) return GY_OK; /* the writer will see */
    const uint64_t block = v.f_frsize ? v.f_frsize : v.f_bsize, blocks = v.f_bavail;
    if (!block || blocks > UINT64_MAX / block || blocks * block >= need) return GY_OK;
    return gy_err_set(err, GY_E_IO,
                      "%s: not enough room: found %" PRIu64 " MB free, expected %" PRIu64
                      " MB: free some or choose another disk",
                      dir, blocks * block / 1000000, need / 1000000 + 1);
}

/* Weights first: a folder with a config.json is a whole checkpoint. */
static gy_status write_files(writing *w, const char *dir, gy_err *err) {
    gy_str config = {0};
    char *path = gy_path_join(dir, "model.safetensors");
    gy_status s = path ? GY_OK : gy_err_set(err, GY_E_NOMEM, "%s: no memory for a path", dir);
    if (s == GY_OK) s = write_weights(w, path, err);
    if (s == GY_OK) {
        config_text(w->shape, w->seed, &config);
        s = dir_file_put(dir, "config.json", &config, err);
        if (s < 0) unlink(path);
    }
    gy_str_free(&config);
    gy_mem_free(path);
    return s;
}

gy_status gy_synth_write(const char *shape, uint64_t seed, const char *out_dir,
                         void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, gy_err *err) {
    enum { HEADER_AND_CONFIG = 1 << 20 };
    writing w = {.seed = seed, .progress = progress, .arg = arg};
    int created = 0;
    GY_TRY(shape_find(shape, err, &w.shape));
    gy_status s;
    GY_TRY_GOTO(s, tensors_list(w.shape, err, &w.list), done);
    w.total = tensors_bytes(&w.list);
    GY_TRY_GOTO(s, dir_prepare(out_dir, err, &created), done);
    GY_TRY_GOTO(s, dir_check_space(out_dir, w.total + HEADER_AND_CONFIG, err), done);
    s = write_files(&w, out_dir, err);
done:
    if (s < 0 && created) rmdir(out_dir);
    gy_vec_free(&w.list.v);
    return s;
}

/* ---- tokenizer -------------------------------------------------------------------------------------------------- */

enum { N_SPECIAL = 3, N_BYTE = 256 };
static const char *const special_tokens[N_SPECIAL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 upwards in their order. */
static uint32_t byte_char(int b) {
    uint32_t next = 0x100;
    for (int i = 0; i <= b; i++) {
        const int itself = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == b) return itself ? (uint32_t)b : next;
        next += !itself;
    }
    return next;
}

static void tokenizer_added(gy_jw *w) {
    gy_jw_key(w, "added_tokens");
    gy_jw_arr_begin(w);
    for (int i = 0; i < N_SPECIAL; i++) {
        gy_jw_obj_begin(w);
        put_int(w, "id", i);
        put_str(w, "content", special_tokens[i]);
        put_bool(w, "single_word", 0);
        put_bool(w, "lstrip", 0);
        put_bool(w, "rstrip", 0);
        put_bool(w, "normalized", 0);
        put_bool(w, "special", 1);
        gy_jw_obj_end(w);
    }
    gy_jw_arr_end(w);
}

static void tokenizer_byte_level(gy_jw *w, const char *key) {
    gy_jw_key(w, key);
    gy_jw_obj_begin(w);
    put_str(w, "type", "ByteLevel");
    put_bool(w, "add_prefix_space", 0);
    put_bool(w, "trim_offsets", 1);
    put_bool(w, "use_regex", 1);
    gy_jw_obj_end(w);
}

static void tokenizer_model(gy_jw *w) {
    gy_jw_key(w, "model");
    gy_jw_obj_begin(w);
    put_str(w, "type", "BPE");
    put_str(w, "dropout", NULL);
    put_str(w, "unk_token", NULL);
    put_str(w, "continuing_subword_prefix", NULL);
    put_str(w, "end_of_word_suffix", NULL);
    put_bool(w, "fuse_unk", 0);
    put_bool(w, "byte_fallback", 0);
    put_bool(w, "ignore_merges", 0);
    gy_jw_key(w, "vocab");
    gy_jw_obj_begin(w);
    for (int i = 0; i < N_SPECIAL; i++) put_int(w, special_tokens[i], i);
    for (int b = 0; b < N_BYTE; b++) {
        gy_str c = {0};
        gy_str_put_utf8(&c, byte_char(b));
        if (c.failed) w->out->failed = 1;
        put_int(w, gy_str_z(&c), N_SPECIAL + b);
        gy_str_free(&c);
    }
    gy_jw_obj_end(w);
    gy_jw_key(w, "merges");
    gy_jw_arr_begin(w);
    gy_jw_arr_end(w);
    gy_jw_obj_end(w);
}

static void tokenizer_text(gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    put_str(&w, "version", "1.0");
    put_str(&w, "truncation", NULL);
    put_str(&w, "padding", NULL);
    tokenizer_added(&w);
    put_str(&w, "normalizer", NULL);
    tokenizer_byte_level(&w, "pre_tokenizer");
    put_str(&w, "post_processor", NULL);
    tokenizer_byte_level(&w, "decoder");
    tokenizer_model(&w);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

static void tokenizer_config_text(gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    put_str(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    put_str(&w, "bos_token", special_tokens[0]);
    put_str(&w, "eos_token", special_tokens[0]);
    put_str(&w, "pad_token", special_tokens[0]);
    put_bool(&w, "add_prefix_space", 0);
    put_bool(&w, "clean_up_tokenization_spaces", 0);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

gy_status gy_synth_write_tokenizer(const char *out_dir, int32_t n_vocab, gy_err *err) {
    if (n_vocab < N_SPECIAL + N_BYTE)
        return gy_err_set(err, GY_E_ARG, "%s: a vocabulary of %d ids, expected at least %d for a byte-level tokenizer",
                          out_dir, n_vocab, N_SPECIAL + N_BYTE);
    gy_str tokenizer = {0}, config = {0};
    tokenizer_text(&tokenizer);
    tokenizer_config_text(&config);
    gy_status s = dir_file_put(out_dir, "tokenizer.json", &tokenizer, err);
    if (s == GY_OK) s = dir_file_put(out_dir, "tokenizer_config.json", &config, err);
    gy_str_free(&tokenizer);
    gy_str_free(&config);
    return s;
}
