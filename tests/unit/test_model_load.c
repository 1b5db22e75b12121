/* Loading beyond the golden files: defaults of config.json, files of several element types, what is refused after the
 * config was read, progress, memory. tests/support/tiny.h makes the files.
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

#include "base/mem.h"
#include "model/model.h"
#include "support/tiny.h"

static const tiny_spec OURO = {.family = "ouro",
                               .n_vocab = 40,
                               .n_embd = 16,
                               .n_ff = 24,
                               .n_head = 2,
                               .n_head_kv = 1,
                               .head_dim = 8,
                               .n_layer = {0, 1, 0},
                               .n_loop = 2,
                               .max_pos = 32,
                               .eps = 1e-5,
                               .theta = 1e4,
                               .dtype = GY_F32};
static const tiny_spec HUGINN = {.family = "huginn",
                                 .n_vocab = 40,
                                 .n_embd = 16,
                                 .n_ff = 24,
                                 .n_head = 2,
                                 .n_head_kv = 2,
                                 .head_dim = 8,
                                 .n_layer = {1, 1, 1},
                                 .n_loop = 2,
                                 .max_pos = 32,
                                 .eps = 1e-5,
                                 .theta = 1e4,
                                 .dtype = GY_F32,
                                 .rope_table = 1,
                                 .stored_head = 1};

/* ---- config.json ------------------------------------------------------------------------------------------------ */

#define NANBEIGE_REQUIRED                                                                                              \
    "\"model_type\": \"nanbeige\", \"vocab_size\": 50, \"hidden_size\": 24, \"intermediate_size\": 8, "                \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 3, \"max_position_embeddings\": 16, \"num_loops\": 2"
#define OURO_REQUIRED                                                                                                  \
    "\"model_type\": \"ouro\", \"vocab_size\": 50, \"hidden_size\": 24, \"intermediate_size\": 8, "                    \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 3, \"max_position_embeddings\": 16, \"total_ut_steps\": 2"
#define HUGINN_REQUIRED                                                                                                \
    "\"model_type\": \"huginn_raven\", \"vocab_size\": 50, \"n_embd\": 24, \"intermediate_size\": 8, "                 \
    "\"n_heads\": 3, \"n_layers_in_prelude\": 0, \"n_layers_in_recurrent_block\": 1, \"n_layers_in_coda\": 0, "        \
    "\"block_size\": 16, \"mean_recurrence\": 2, \"norm_eps\": 1e-6, \"rope_base\": 500, \"tie_embeddings\": true, "   \
    "\"injection_type\": \"linear\""

static gy_status parse(const char *fields, gy_err *err, gy_model_desc *d) {
    char json[2048];
    snprintf(json, sizeof json, "{%s}", fields);
    *err = (gy_err){0};
    return gy_model_parse_desc(json, strlen(json), err, d);
}

static void parsed(const char *fields, gy_model_desc *d) {
    gy_err err;
    if (parse(fields, &err, d) != GY_OK) fail_msg("%s", err.msg);
}

/* docs/models, constants: what the published code assumes when a key is absent. */
static void defaults(void **state) {
    (void)state;
    gy_model_desc d;
    parsed(NANBEIGE_REQUIRED, &d);
    assert_true(d.eps == 1e-5f && d.rope_theta == 7e7 && !d.tied && !d.head_norm && d.loop_norm);
    assert_true(d.n_head_kv == 3 && d.head_dim == 8 && d.bos == -1 && d.pad == -1 && d.n_eos == 0);
    parsed(OURO_REQUIRED, &d);
    assert_true(d.eps == 1e-6f && d.rope_theta == 1e6 && !d.tied && d.n_head_kv == 3 && d.head_dim == 8);
    parsed(HUGINN_REQUIRED, &d);
    assert_true(d.qk_bias && d.n_head_kv == 3 && d.head_dim == 8 && d.n_vocab == 50);
    assert_true(d.embed_scale == (float)sqrt(24.0) && d.state_mult == d.embed_scale);
    parsed(HUGINN_REQUIRED ", \"padded_vocab_size\": 64, \"init_values\": null", &d);
    assert_int_equal(d.n_vocab, 64); /* the rows of wte */
    parsed(HUGINN_REQUIRED ", \"init_values\": {\"std\": 0.25, \"embed_scale\": 3.0, \"embedding\": 0.1}", &d);
    assert_true(d.state_std == 0.25f && d.embed_scale == 3.0f && d.state_mult == 3.0f);
    parsed(OURO_REQUIRED ", \"head_dim\": null, \"rope_parameters\": {}, \"layer_types\": null", &d);
    parsed(OURO_REQUIRED ", \"some_future_number\": 0, \"another\": 0.0, \"third\": \"\"", &d);
}

static void refusals(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {NANBEIGE_REQUIRED ", \"loop_loss_weights\": 0.5",
         "\"loop_loss_weights\": found a real number, expected an array"},
        {NANBEIGE_REQUIRED ", \"loop_loss_weights\": {\"a\": 1}", "\"loop_loss_weights\": found an object"},
        {NANBEIGE_REQUIRED ", \"layer_types\": \"sliding_attention\"", "\"layer_types\": found a string"},
        {OURO_REQUIRED ", \"rope_parameters\": \"yarn\"", "\"rope_parameters\": found a string, expected an object"},
        {OURO_REQUIRED ", \"head_dim\": 1026", "\"head_dim\": found 1026, expected 2 to 1024"},
        {OURO_REQUIRED ", \"head_dim\": 99999999999", "\"head_dim\": found 99999999999"},
        {OURO_REQUIRED ", \"early_exit_gate_bias\": -0.5", "\"early_exit_gate_bias\" is -0.5"},
        {HUGINN_REQUIRED ", \"padded_vocab_size\": 49",
         "\"padded_vocab_size\": found 49, expected vocab_size 50 or more"},
        {HUGINN_REQUIRED ", \"init_values\": [1]", "\"init_values\": found an array, expected an object"},
        {HUGINN_REQUIRED ", \"init_values\": {\"std\": \"x\"}", "init_values: field \"std\": found a string"},
        {HUGINN_REQUIRED ", \"init_values\": {\"embed_scale\": 0}", "init_values: field \"embed_scale\": found 0"},
        {HUGINN_REQUIRED ", \"init_values\": {\"lambda\": 2}", "init_values: field \"lambda\" is 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gy_err err;
        gy_model_desc d;
        if (parse(bad[i][0], &err, &d) == GY_OK) fail_msg("%s was accepted", bad[i][1]);
        if (!strstr(err.msg, bad[i][1])) fail_msg("\"%s\" does not say \"%s\"", err.msg, bad[i][1]);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

typedef struct watch {
    size_t n, done, total;
    int falls;
} watch;

static void note(void *arg, size_t done, size_t total) {
    watch *w = arg;
    w->falls += done < w->done;
    w->n++;
    w->done = done;
    w->total = total;
}

typedef struct loaded {
    gy_backend *be;
    gy_model *m;
    watch w;
} loaded;

static gy_status load(const tiny *t, gy_dtype act, gy_err *err, loaded *l) {
    *l = (loaded){0};
    *err = (gy_err){0};
    assert_int_equal(gy_backend_ref_create(act, err, &l->be), GY_OK);
    gy_model_load_opts o = {.be = l->be, .progress = note, .progress_arg = &l->w};
    return gy_model_load(t->dir, &o, err, &l->m);
}

static void unload(loaded *l) {
    gy_model_free(l->m);
    gy_backend_destroy(l->be);
}

static void load_says(tiny *t, const char *part) {
    loaded l;
    gy_err err;
    tiny_rewrite(t);
    if (load(t, GY_F32, &err, &l) == GY_OK) fail_msg("loaded, expected: %s", part);
    assert_null(l.m);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    unload(&l);
    tiny_free(t);
}

static void what_the_files_may_not_hold(void **state) {
    (void)state;
    tiny t;
    tiny_make(&OURO, &t);
    tiny_find(&t, "model.layers.0.mlp.up_proj.weight")->dtype = GY_F16;
    load_says(&t, "\"model.layers.0.mlp.up_proj.weight\" is F16 while its neighbours are F32");
    tiny_make(&OURO, &t);
    snprintf(tiny_find(&t, "model.layers.0.self_attn.o_proj.weight")->name, 80, "model.layers.0.self_attn.lm_head");
    load_says(&t, "model.layers.0.self_attn.o_proj.weight");
    tiny_make(&HUGINN, &t);
    tiny_find(&t, "freqs_cis")->dtype = GY_BF16;
    load_says(&t, "\"freqs_cis\": found BF16, expected F32");
    tiny_make(&HUGINN, &t);
    tiny_find(&t, "lm_head.weight")->v[7 * 16] += 1.0;
    load_says(&t, "\"lm_head.weight\" row 7 differs from the embedding");
    tiny_make(&HUGINN, &t);
    tiny_find(&t, "lm_head.weight")->dtype = GY_F16;
    load_says(&t, "\"lm_head.weight\" and the embedding differ in dtype");
    tiny_spec s = OURO; /* only a tied file may hold a head that nothing reads */
    s.tied = s.stored_head = 1;
    tiny_make(&s, &t);
    snprintf(tiny_find(&t, "lm_head.weight")->name, 80, "other.head.weight");
    load_says(&t, "other.head.weight");
    s = HUGINN; /* no head_dim in the file: what n_embd / n_heads gives must be in range too */
    s.n_embd = s.head_dim = 1026;
    s.n_head = s.n_head_kv = 1;
    s.n_layer[0] = s.n_layer[2] = 0;
    s.rope_table = s.stored_head = 0;
    tiny_make(&s, &t);
    load_says(&t, "head_dim 1026");
}

static void a_second_head_in_an_untied_file(void **state) {
    (void)state;
    tiny t;
    tiny_make(&OURO, &t);
    tiny_tensor *x = &t.t[t.n_tensor++], *head = tiny_find(&t, "lm_head.weight");
    *x = *head;
    snprintf(x->name, sizeof x->name, "model.lm_head.weight");
    x->v = calloc(x->n, sizeof *x->v);
    load_says(&t, "model.lm_head.weight");
}

/* Every byte is accounted for, once, also those of tensors that are only compared (lm_head) or never read. */
static void progress_ends_at_the_total(void **state) {
    (void)state;
    tiny_spec tied = OURO;
    tied.tied = tied.stored_head = 1;
    const tiny_spec *const specs[] = {&OURO, &HUGINN, &tied};
    for (int i = 0; i < 6; i++) {
        tiny t;
        loaded l;
        gy_err err;
        tiny_make(specs[i / 2], &t);
        assert_int_equal(load(&t, i % 2 ? GY_BF16 : GY_F32, &err, &l), GY_OK);
        size_t bytes = 0;
        for (int k = 0; k < t.n_tensor; k++) bytes += t.t[k].n * gy_dtype_bytes(t.t[k].dtype);
        assert_int_equal(l.w.total, bytes);
        assert_int_equal(l.w.done, bytes);
        assert_int_equal(l.m->weight_bytes, bytes);
        assert_int_equal(l.w.falls, 0);
        assert_true(l.w.n >= (size_t)t.n_tensor - 2);
        unload(&l);
        tiny_free(&t);
    }
}

/* Converted once where the activation type asks for it, else used where they lie in the mapped file. */
static void weights_are_converted_only_if_they_must(void **state) {
    (void)state;
    static const struct {
        gy_dtype file, act;
        int converts;
    } cases[] = {{GY_F32, GY_F32, 0},  {GY_F16, GY_F32, 0},  {GY_BF16, GY_F32, 0},
                 {GY_F32, GY_BF16, 1}, {GY_F16, GY_BF16, 1}, {GY_BF16, GY_BF16, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny t;
        loaded l;
        gy_err err;
        tiny_spec s = OURO;
        s.dtype = cases[i].file;
        tiny_make(&s, &t);
        assert_int_equal(load(&t, cases[i].act, &err, &l), GY_OK);
        size_t elems = 0;
        for (int k = 0; k < t.n_tensor; k++)
            if (t.t[k].n_dim == 2 && t.t[k].shape[0] > 1) elems += t.t[k].n;
        assert_int_equal(l.m->converted_bytes, cases[i].converts ? 2 * elems : 0);
        assert_int_equal(l.m->embed.dtype, cases[i].converts ? GY_BF16 : cases[i].file);
        assert_int_equal(l.m->layer[GY_CORE][0].down.dtype, l.m->embed.dtype);
        unload(&l);
        tiny_free(&t);
    }
}

/* Conversion goes in pieces of 2^20 elements. */
static void a_tensor_of_several_pieces(void **state) {
    (void)state;
    tiny t;
    loaded l;
    gy_err err;
    tiny_spec s = OURO;
    s.n_vocab = 131077; /* 2 pieces and a rest */
    s.tied = 1;
    tiny_make(&s, &t);
    assert_int_equal(load(&t, GY_BF16, &err, &l), GY_OK);
    const tiny_tensor *e = tiny_find(&t, "model.embed_tokens.weight");
    const uint16_t *got = l.m->embed.part[0].data;
    for (size_t i = 0; i < e->n; i++)
        if (got[i] != gy_f32_to_bf16((float)e->v[i])) fail_msg("element %zu of %zu differs", i, e->n);
    assert_ptr_equal(l.m->head.part[0].data, got);
    unload(&l);
    tiny_free(&t);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static int64_t live_bytes(void) {
    gy_mem_stats st;
    int64_t sum = 0;
    gy_mem_get_stats(&st);
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) sum += st.live_bytes[i];
    return sum;
}

/* The n-th allocation fails, n rising until the model loads: an error each time and nothing left behind. */
static void failing_allocations(void **state) {
    (void)state;
    const tiny_spec *const specs[] = {&OURO, &HUGINN};
    for (int i = 0; i < 2; i++) {
        tiny t;
        int failures = 0;
        tiny_make(specs[i], &t);
        int64_t before = live_bytes();
        for (int n = 1;; n++) {
            loaded l = {0};
            gy_err err = {0};
            assert_int_equal(gy_backend_ref_create(GY_BF16, &err, &l.be), GY_OK);
            gy_mem_fail_after(n);
            gy_status st = gy_model_load(t.dir, &(gy_model_load_opts){.be = l.be}, &err, &l.m);
            gy_mem_fail_after(0);
            assert_true((st == GY_OK) == (l.m != NULL));
            unload(&l);
            assert_int_equal(live_bytes(), before);
            if (st == GY_OK) break;
            assert_true(err.msg[0] && n < 2000);
            failures++;
        }
        assert_true(failures > 20);
        tiny_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(refusals),
        cmocka_unit_test(what_the_files_may_not_hold),
        cmocka_unit_test(a_second_head_in_an_untied_file),
        cmocka_unit_test(progress_ends_at_the_total),
        cmocka_unit_test(weights_are_converted_only_if_they_must),
        cmocka_unit_test(a_tensor_of_several_pieces),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
