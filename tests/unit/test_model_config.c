/* config.json and the loader: what is honoured, what is refused and by which name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/model.h"

static void read_golden(const char *model, gy_str *out) {
    char path[512];
    gy_err err;
    snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s/config.json", model);
    assert_int_equal(gy_file_read(path, 1 << 20, &err, out), GY_OK);
}

/* The golden files hold one `"key": value` a line. value NULL removes the key; a key that is not there is added. */
static void set_key(gy_str *s, const char *key, const char *value) {
    char pattern[80];
    gy_str out = {0};
    snprintf(pattern, sizeof pattern, " \"%s\": ", key);
    char *at = strstr(s->data, pattern);
    if (at) {
        char *end = at + strlen(pattern);
        for (int depth = 0; depth > 0 || (*end != ',' && *end != '\n' && *end != '}'); end++)
            depth += (*end == '[') - (*end == ']');
        gy_str_append(&out, s->data, (size_t)(at - s->data));
        if (value) gy_str_printf(&out, "%s%s", pattern, value);
        gy_str_puts(&out, value ? end : end + 1);
    } else {
        char *brace = strrchr(s->data, '}');
        gy_str_append(&out, s->data, (size_t)(brace - s->data));
        gy_str_printf(&out, ", \"%s\": %s}", key, value);
    }
    gy_str_free(s);
    *s = out;
}

static gy_status parse_with(const char *model, const char *key, const char *value, gy_err *err, gy_model_desc *d) {
    gy_str s = {0};
    read_golden(model, &s);
    if (key) set_key(&s, key, value);
    *err = (gy_err){0};
    gy_status st = gy_model_parse_desc(s.data, s.len, err, d);
    gy_str_free(&s);
    return st;
}

static void families(void **state) {
    (void)state;
    gy_err err;
    gy_model_desc d;
    assert_int_equal(parse_with("ouro-tiny", NULL, NULL, &err, &d), GY_OK);
    assert_string_equal(d.family, "ouro");
    assert_true(d.n_embd == 64 && d.n_loop == 4 && d.n_layer[GY_CORE] == 3 && d.loop_norm && d.has_gate && !d.inject);
    assert_true(d.norms == GY_RESIDUAL_BRANCH && d.rope == GY_ROPE_HALF && d.rope_round && d.n_eos == 1 &&
                d.eos[0] == 0);
    assert_int_equal(parse_with("huginn-tiny", NULL, NULL, &err, &d), GY_OK);
    assert_true(d.n_loop == 8 && d.n_layer[GY_PRELUDE] == 2 && d.n_layer[GY_CORE] == 4 && d.n_layer[GY_CODA] == 2);
    assert_true(d.inject && d.coda_norm && d.head_norm && !d.loop_norm && d.tied && d.qk_bias && !d.rope_round);
    assert_true(fabsf(d.embed_scale - sqrtf(60.0f)) < 1e-6f && fabsf(d.state_std - sqrtf(2.0f / 300.0f)) < 1e-8f);
    assert_int_equal(parse_with("nanbeige-tiny", NULL, NULL, &err, &d), GY_OK);
    assert_true(d.n_loop == 2 && d.n_head == 12 && d.n_head_kv == 2 && d.loop_norm && !d.head_norm && !d.has_gate);
}

/* nanbeige.md, constants: which loops run, and where the final norm stands. */
static void nanbeige_loops(void **state) {
    (void)state;
    gy_err err;
    gy_model_desc d;
    assert_int_equal(parse_with("nanbeige-tiny", "loop_loss_weights", "[0.1, 0.2, 0.3]", &err, &d), GY_OK);
    assert_int_equal(d.n_loop, 4);
    assert_int_equal(parse_with("nanbeige-tiny", "skip_loop_final_norm", "true", &err, &d), GY_OK);
    assert_true(!d.loop_norm && d.head_norm);
    assert_true(parse_with("nanbeige-tiny", "num_loops", NULL, &err, &d) < 0);
    assert_non_null(strstr(err.msg, "\"num_loops\" is missing"));
}

static void accepted(void **state) {
    (void)state;
    static const char *const ok[][3] = {
        {"ouro-tiny", "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 500000}"},
        {"ouro-tiny", "layer_types", "[\"full_attention\", \"full_attention\"]"},
        {"ouro-tiny", "eos_token_id", "[1, 2]"},
        {"ouro-tiny", "some_future_switch", "false"},
        {"ouro-tiny", "some_future_list", "[]"},
        {"ouro-tiny", "tie_word_embeddings", "true"},
        {"nanbeige-tiny", "enable_double_loop_split", "false"},
        {"huginn-tiny", "qk_bias", "false"},
    };
    for (size_t i = 0; i < sizeof ok / sizeof ok[0]; i++) {
        gy_err err;
        gy_model_desc d;
        if (parse_with(ok[i][0], ok[i][1], ok[i][2], &err, &d) != GY_OK)
            fail_msg("%s %s: %s", ok[i][1], ok[i][2], err.msg);
        if (i == 0) assert_true(d.rope_theta == 500000.0);
        if (i == 2) assert_int_equal(d.n_eos, 2);
    }
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *key, *value, *part;
    } bad[] = {
        {"ouro-tiny", "model_type", "\"llama\"", "\"model_type\": found \"llama\", gyre runs ouro"},
        {"ouro-tiny", "model_type", "7", "\"model_type\": found an integer"},
        {"ouro-tiny", "hidden_size", "\"64\"", "\"hidden_size\": found a string, expected an integer"},
        {"ouro-tiny", "hidden_size", "-1", "\"hidden_size\": found -1, expected 2 to"},
        {"ouro-tiny", "hidden_size", NULL, "\"hidden_size\" is missing"},
        {"ouro-tiny", "total_ut_steps", "0", "\"total_ut_steps\": found 0"},
        {"ouro-tiny", "hidden_act", "\"gelu\"", "\"hidden_act\": found \"gelu\", gyre computes \"silu\" only"},
        {"ouro-tiny", "use_sliding_window", "true", "\"use_sliding_window\" is true: gyre does not honour"},
        {"ouro-tiny", "sliding_window", "4096", "\"sliding_window\" is 4096"},
        {"ouro-tiny", "rope_scaling", "{\"type\": \"yarn\"}", "\"rope_scaling\" is an object"},
        {"ouro-tiny", "rope_parameters", "{\"rope_type\": \"llama3\"}",
         "\"rope_parameters.rope_type\": found \"llama3\""},
        {"ouro-tiny", "rope_parameters", "{\"factor\": 8}", "\"rope_parameters.factor\""},
        {"ouro-tiny", "rope_theta", "-1", "\"rope_theta\": found -1, expected 1 to 1e+12"},
        {"ouro-tiny", "rope_theta", "\"1e6\"", "\"rope_theta\": found a string, expected a number"},
        {"ouro-tiny", "rms_norm_eps", "1e-46", "\"rms_norm_eps\": found 1e-46, expected 1e-12 to 1"},
        {"ouro-tiny", "layer_types", "[\"sliding_attention\"]", "\"layer_types[0]\""},
        {"ouro-tiny", "num_key_value_heads", "3", "\"num_key_value_heads\": found 3, expected a divisor"},
        {"ouro-tiny", "head_dim", "15", "\"head_dim\": found 15, expected an even number"},
        {"ouro-tiny", "eos_token_id", "320", "\"eos_token_id\": found 320, expected less than vocab_size 320"},
        {"ouro-tiny", "eos_token_id", "\"</s>\"", "\"eos_token_id\": expected a token id"},
        {"ouro-tiny", "quantization_config", "{\"quant_method\":\"fbgemm_fp8\"}",
         "\"quantization_config\": found a checkpoint quantised by \"fbgemm_fp8\", which gyre does not read"},
        {"huginn-tiny", "compression_config", "{\"format\": 1}",
         "quantised by a method without a name, which gyre does not read"},
        {"ouro-tiny", "some_future_switch", "true", "\"some_future_switch\" is true: gyre does not honour"},
        {"ouro-tiny", "some_future_mode", "\"x\"", "\"some_future_mode\" is \"x\""},
        {"nanbeige-tiny", "loop_share_kv", "true", "\"loop_share_kv\" is true"},
        {"nanbeige-tiny", "enable_double_loop_split", "true", "\"enable_double_loop_split\" is true"},
        {"nanbeige-tiny", "hyper_connection_rate", "4", "\"hyper_connection_rate\" is 4"},
        {"nanbeige-tiny", "depth_attention", "true", "\"depth_attention\" is true"},
        {"nanbeige-tiny", "ngram_embeddings", "[2, 3]", "\"ngram_embeddings\" is an array"},
        {"nanbeige-tiny", "attention_bias", "true", "\"attention_bias\" is true"},
        {"huginn-tiny", "test_time_noise", "0.1", "\"test_time_noise\" is 0.1"},
        {"huginn-tiny", "injection_type", "\"add\"",
         "\"injection_type\": found \"add\", gyre computes \"linear\" only"},
        {"huginn-tiny", "tie_embeddings", "false", "\"tie_embeddings\": found false, gyre needs true"},
        {"huginn-tiny", "bias", "true", "\"bias\" is true"},
        {"huginn-tiny", "n_layers", "9", "\"n_layers\": found 9, expected 8"},
        {"huginn-tiny", "n_heads", "7", "expected a divisor of n_embd 60"},
        {"huginn-tiny", "num_key_value_heads", "1", "\"num_key_value_heads\": found 1"},
        {"huginn-tiny", "state_init", "\"zero\"", "\"state_init\": found \"zero\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gy_err err;
        gy_model_desc d;
        gy_status st = parse_with(bad[i].model, bad[i].key, bad[i].value, &err, &d);
        if (st == GY_OK)
            fail_msg("%s: %s = %s was accepted", bad[i].model, bad[i].key, bad[i].value ? bad[i].value : "(none)");
        if (!strstr(err.msg, bad[i].part)) fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].key, err.msg, bad[i].part);
    }
}

/* ---- the loader, on a folder made of a golden checkpoint and another config ------------------------------------- */

static void write_file(const char *dir, const char *name, const char *data, size_t len) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static gy_status load_with(const char *model, const char *key, const char *value, gy_err *err) {
    char dir[] = "/tmp/gyre-config-XXXXXX", path[512];
    gy_str cfg = {0}, weights = {0};
    assert_non_null(mkdtemp(dir));
    read_golden(model, &cfg);
    if (key) set_key(&cfg, key, value);
    snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s/model.safetensors", model);
    assert_int_equal(gy_file_read(path, 8 << 20, err, &weights), GY_OK);
    write_file(dir, "config.json", cfg.data, cfg.len);
    write_file(dir, "model.safetensors", weights.data, weights.len);
    gy_backend *be;
    gy_model *m = NULL;
    *err = (gy_err){0};
    assert_int_equal(gy_backend_ref_create(GY_BF16, err, &be), GY_OK);
    gy_status st = gy_model_load(dir, &(gy_model_load_opts){.be = be}, err, &m);
    assert_true((st == GY_OK) == (m != NULL));
    gy_model_free(m);
    gy_backend_destroy(be);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
    gy_str_free(&cfg);
    gy_str_free(&weights);
    return st;
}

static void load_says(const char *model, const char *key, const char *value, const char *part) {
    gy_err err;
    if (load_with(model, key, value, &err) == GY_OK) fail_msg("%s = %s was loaded", key, value);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
}

static void weights_must_fit_the_config(void **state) {
    (void)state;
    gy_err err;
    assert_int_equal(load_with("ouro-tiny", NULL, NULL, &err), GY_OK);
    assert_int_equal(load_with("huginn-tiny", NULL, NULL, &err), GY_OK);
    load_says("ouro-tiny", "intermediate_size", "128", "model.layers.0.mlp.gate_proj.weight");
    load_says("ouro-tiny", "intermediate_size", "128", "[176, 64]");
    load_says("ouro-tiny", "num_hidden_layers", "4", "model.layers.3.input_layernorm.weight");
    load_says("ouro-tiny", "num_hidden_layers", "2", "model.layers.2.");
    load_says("huginn-tiny", "qk_bias", "false", "qk_bias");
    load_says("huginn-tiny", "block_size", "128", "freqs_cis");
    load_says("nanbeige-tiny", "num_key_value_heads", "4", "model.layers.0.self_attn.k_proj.weight");
}

static void a_folder_is_needed(void **state) {
    (void)state;
    gy_err err;
    gy_model_desc d;
    assert_int_equal(gy_model_read_desc("/nowhere/at/all", &err, &d), GY_E_IO);
    assert_non_null(strstr(err.msg, "/nowhere/at/all: not a folder"));
    assert_int_equal(gy_model_read_desc(GY_SOURCE_DIR "/tests", &err, &d), GY_E_IO);
    assert_non_null(strstr(err.msg, "config.json: not found"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(nanbeige_loops),
        cmocka_unit_test(accepted),
        cmocka_unit_test(refused),
        cmocka_unit_test(weights_must_fit_the_config),
        cmocka_unit_test(a_folder_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
