/* The capacity table of docs/benchmarks.md: KV bytes of a token and tokens that a GiB holds, for the published
 * configurations. Expected: (layer planes) x K and V x heads x head_dim x bytes, worked out by hand from the published
 * numbers (docs/models, constants); tokens of a GiB in whole block rows, with the boundary pool twice as deep.
 */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char ouro[] =
    "{\"architectures\":[\"OuroForCausalLM\"],\"model_type\":\"ouro\",\"vocab_size\":49152,\"hidden_size\":2048,"
    "\"intermediate_size\":5632,\"num_hidden_layers\":%d,\"num_attention_heads\":16,\"num_key_value_heads\":16,"
    "\"head_dim\":128,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
    "\"max_position_embeddings\":65536,\"total_ut_steps\":4,\"early_exit_threshold\":1.0,\"tie_word_embeddings\":false,"
    "\"attention_dropout\":0.0,\"use_sliding_window\":false,\"sliding_window\":null,\"bos_token_id\":0,"
    "\"eos_token_id\":0,\"torch_dtype\":\"bfloat16\",\"use_cache\":true}";
static const char huginn[] =
    "{\"architectures\":[\"RavenForCausalLM\"],\"model_type\":\"huginn_raven\",\"n_embd\":5280,\"n_heads\":55,"
    "\"num_key_value_heads\":55,\"n_layers\":8,\"n_layers_in_prelude\":2,\"n_layers_in_recurrent_block\":%d,"
    "\"n_layers_in_coda\":2,\"intermediate_size\":17920,\"vocab_size\":65536,\"padded_vocab_size\":65536,"
    "\"padding_multiple\":4096,\"block_size\":4096,\"norm_eps\":1e-06,\"rope_base\":50000.0,\"qk_bias\":true,"
    "\"bias\":false,\"tie_embeddings\":true,\"injection_type\":\"linear\",\"state_init\":\"like-init\","
    "\"test_time_noise\":0,\"test_time_noise_type\":\"none\",\"mean_recurrence\":32,\"mean_backprop_depth\":8,"
    "\"sampling_scheme\":\"poisson-lognormal-filling\",\"bos_token_id\":65504,\"eos_token_id\":65505,"
    "\"pad_token_id\":65509,\"torch_dtype\":\"float32\"}";
static const char nanbeige[] =
    "{\"architectures\":[\"NanbeigeForCausalLM\"],\"model_type\":\"nanbeige\",\"vocab_size\":166144,"
    "\"hidden_size\":3072,\"intermediate_size\":10752,\"num_hidden_layers\":%d,\"num_attention_heads\":48,"
    "\"num_key_value_heads\":8,\"head_dim\":128,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":70000000.0,\"rope_scaling\":null,\"max_position_embeddings\":262144,\"num_loops\":2,"
    "\"skip_loop_final_norm\":false,\"loop_loss_weights\":[],\"attention_bias\":false,\"mlp_bias\":false,"
    "\"tie_word_embeddings\":false,\"bos_token_id\":166100,\"eos_token_id\":166101,\"pad_token_id\":0,"
    "\"torch_dtype\":\"bfloat16\"}";

static void read_desc(const char *config, int n_layer, gy_model_desc *d) {
    char dir[] = "/tmp/gy_capacity_XXXXXX", path[64];
    gy_err err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    fprintf(f, config, n_layer);
#pragma GCC diagnostic pop
    fclose(f);
    const gy_status st = gy_model_read_desc(dir, &err, d);
    unlink(path);
    rmdir(dir);
    if (st != GY_OK) fail_msg("%s", err.msg);
}

typedef struct capacity {
    const char *config;
    int n_layer;
    gy_kv_layout layout;
    int32_t cyclic_k;
    size_t token_bytes;
    int64_t gib_tokens; /* that a pool of one GiB holds */
} capacity;

/* Ouro: 8,192 bytes a layer plane (2 x 16 x 128 x 2). Huginn: 21,120 (2 x 55 x 96 x 2), 4 boundary planes. Nanbeige:
 * 4,096 (2 x 8 x 128 x 2). A GiB in rows of 16 tokens: floor(2^30 / (16 x planes x bytes)), Huginn with 4 more planes.
 */
static const capacity table[] = {
    {ouro, 24, GY_KV_LAST_EXITED, 0, 24 * 4 * 8192, 85 * 16},
    {ouro, 24, GY_KV_SHARED, 0, 24 * 8192, 341 * 16},
    {ouro, 48, GY_KV_LAST_EXITED, 0, 48 * 4 * 8192, 42 * 16},
    {huginn, 4, GY_KV_LAST_EXITED, 0, (4 + 4 * 32) * 21120, 23 * 16},
    {huginn, 4, GY_KV_CYCLIC, 4, (4 + 4 * 4) * 21120, 158 * 16},
    {huginn, 4, GY_KV_SHARED, 0, (4 + 4) * 21120, 397 * 16},
    {nanbeige, 22, GY_KV_LAST_EXITED, 0, 22 * 2 * 4096, 372 * 16},
    {nanbeige, 22, GY_KV_SHARED, 0, 22 * 4096, 744 * 16},
};

static void a_token_and_a_gib(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const capacity *c = &table[i];
        gy_model_desc d;
        gy_engine_opts o;
        gy_engine_plan p;
        gy_err err = {0};
        read_desc(c->config, c->n_layer, &d);
        gy_engine_opts_default(&o);
        o.max_len = 2048;
        o.kv_layout = c->layout;
        o.cyclic_k = c->cyclic_k;
        o.kv_bytes = (size_t)1 << 30;
        if (gy_engine_make_plan(&d, GY_BF16, &o, 0, &err, &p) != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(p.kv_token_bytes, c->token_bytes);
        assert_int_equal(p.kv_tokens, c->gib_tokens);
        assert_true(p.kv_bytes <= (size_t)1 << 30);
        assert_string_equal(p.limit, "kv_bytes");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_token_and_a_gib)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
