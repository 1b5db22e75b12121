/* Equalities on the GPU, bit for bit, in BF16 on models whose heads the GPU's own attention takes (64, 96, 128
 * elements, groups of 1, 2 and 4) and whose contexts span several of its tiles. The rest of tests/golden runs there too
 * (./do test-gpu), on checkpoints whose heads are smaller. Skipped where there is no GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/gold.h"
#include "support/tiny.h"

enum { N = 9, MAX_PROMPT = 330, N_OUT = 10, MAX_LEN = 352 };

static const tiny_spec specs[] = {
    {.family = "ouro",
     .n_vocab = 320,
     .n_embd = 256,
     .n_ff = 512,
     .n_head = 2,
     .n_head_kv = 2,
     .head_dim = 128,
     .n_layer = {0, 2, 0},
     .n_loop = 3,
     .max_pos = 512,
     .eps = 1e-6,
     .theta = 1e6,
     .dtype = GY_BF16,
     .seed = 11},
    {.family = "nanbeige",
     .n_vocab = 264,
     .n_embd = 192,
     .n_ff = 320,
     .n_head = 8,
     .n_head_kv = 2,
     .head_dim = 64,
     .n_layer = {0, 3, 0},
     .n_loop = 2,
     .max_pos = 512,
     .eps = 1e-5,
     .theta = 1e5,
     .dtype = GY_BF16,
     .loss_weights = 1,
     .seed = 12},
    {.family = "huginn",
     .n_vocab = 272,
     .n_embd = 192,
     .n_ff = 256,
     .n_head = 2,
     .n_head_kv = 2,
     .head_dim = 96,
     .n_layer = {1, 2, 1},
     .n_loop = 4,
     .max_pos = 512,
     .eps = 1e-6,
     .theta = 5e4,
     .dtype = GY_BF16,
     .seed = 13},
};

static int has_gpu(void) {
    gy_cuda_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = 16, .max_k = 64, .max_len = 64}};
    gy_err err = {0};
    gy_backend *be = NULL;
    if (gy_backend_cuda_create(&o, &err, &be) < 0) print_message("    skipped: %s\n", err.msg);
    gy_backend_destroy(be);
    return be != NULL;
}

typedef struct load {
    int32_t ids[N][MAX_PROMPT];
    gy_request req[N];
    gold_result base[N], got[N];
    gy_kv_type kv_type;
} load;

/* Lengths around tiles and blocks; requests 7 and 8 begin as 6 does, for the prefix cache. */
static void make(load *w, const gy_model_desc *d) {
    static const int32_t lengths[N] = {1, 16, 63, 64, 65, 129, 200, 330, 208};
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < lengths[i]; k++) w->ids[i][k] = (k * 37 + (i > 6 && k < 192 ? 6 : i) * 11 + 5) % d->n_vocab;
        gy_request_default(&w->req[i], d);
        w->req[i].prompt = w->ids[i];
        w->req[i].n_prompt = lengths[i];
        w->req[i].max_tokens = N_OUT;
        w->req[i].ignore_eos = 1;
        w->req[i].latent_noise = d->inject && i % 2;
        w->req[i].latent_seed = 5;
        if (i % 3 == 2) w->req[i].exit = (gy_exit_rule){GY_EXIT_FIXED, 1.0, 1, d->n_loop - 1, 0};
        if (i % 3 == 1) w->req[i].sample.temperature = 0.8f, w->req[i].sample.seed = 99;
        if (d->has_gate && i == 5) w->req[i].exit = (gy_exit_rule){GY_EXIT_GATE, 0.5, 1, d->n_loop, 0};
    }
}

typedef struct way { /* of running the same requests */
    const char *name;
    int32_t max_rows, max_seqs, chunk;
    double share;
    int prefix, alone, parks;
} way;

static void set_way(gy_engine_opts *o, const void *arg) {
    const way *y = arg;
    o->sched.prefill_chunk = y->chunk;
    o->sched.prefill_share = y->share;
    o->prefix_cache = y->prefix;
}

static void park(void *arg, gy_engine *e, int step, const gold_result *res) {
    int *n = arg;
    if (step % 3 || *n >= 24) return;
    *n += gy_engine_preempt(e, res[step / 3 % N].id, 0, step / 3 % 4 == 3 ? GY_PREEMPT_RECOMPUTE : GY_PREEMPT_PARK) ==
          GY_OK;
}

static int differences(const char *family, const way *y, const load *w) {
    int bad = 0;
    char what[256];
    for (int i = 0; i < N; i++) {
        if (!gold_diff(&w->base[i], &w->got[i], what, sizeof what)) continue;
        print_error("    %s, %s, request %d: %s\n", family, y->name, i, what);
        bad++;
    }
    return bad;
}

static void run_way(gold_env *env, const way *y, load *w, gold_result *out) {
    gold_setup s = {.act = GY_BF16,
                    .max_rows = y->max_rows,
                    .max_seqs = y->max_seqs,
                    .max_len = MAX_LEN,
                    .kv_type = w->kv_type,
                    .patch = set_way,
                    .patch_arg = y};
    int n_park = 0;
    gold_hook hook = {.before_step = y->parks ? park : NULL, .arg = &n_park};
    gold_engine(&s, env);
    if (y->alone)
        for (int i = 0; i < N; i++) gold_run(env->e, &w->req[i], 1, &out[i]);
    else
        gold_run_hooked(env->e, w->req, N, out, &hook);
    assert_true(!y->parks || n_park > 4);
    if (!y->prefix) return;
    gy_engine_stats st;
    gold_run(env->e, w->req, N, out); /* from the cache */
    gy_engine_get_stats(env->e, &st);
    assert_true(st.prefix.n_hit > 0);
}

static const way ways[] = {
    {"all at once", 4096, 16, 4096, 1.0, 0, 0, 0},
    {"again", 4096, 16, 4096, 1.0, 0, 0, 0},
    {"alone", 512, 1, 512, 1.0, 0, 1, 0},
    {"rows 64", 64, 16, 4096, 1.0, 0, 0, 0},
    {"chunks of 7", 512, 16, 7, 0.5, 0, 0, 0},
    {"rows 16, chunks of 100", 16, 4, 100, 0.5, 0, 0, 0},
    {"one row a pass", 1, 3, 4096, 1.0, 0, 0, 0},
    {"prefix cache", 512, 16, 64, 0.5, 1, 0, 0},
    {"parked and dropped", 96, 16, 33, 0.5, 0, 0, 1},
};

/* Nothing recorded or fused, each token waited for. */
static const way plain = {"carried out one by one", 4096, 16, 4096, 1.0, 0, 0, 0};
enum { ALL_PARTS = GY_CUDA_RECORDS | GY_CUDA_FUSED | GY_CUDA_EARLY | GY_CUDA_LATE | GY_CUDA_STAGE };

/* Returns the number of requests that differ. */
static int in_all_ways(const char *name, const char *dir, gy_weight_form form, gy_kv_type kv_type) {
    int bad = 0;
    gold_env env;
    load *w = calloc(1, sizeof *w);
    w->kv_type = kv_type;
    gold_setup s = {
        .model = dir, .backend = "cuda", .act = GY_BF16, .max_rows = 4096, .max_len = MAX_LEN, .form = form};
    gold_open(&s, &env);
    make(w, &env.m->d);
    run_way(&env, &ways[0], w, w->base);
    for (int i = 0; i < N; i++) assert_true(w->base[i].n == N_OUT && w->base[i].reason == GY_FINISH_LENGTH);
    for (size_t k = 1; k < sizeof ways / sizeof *ways; k++) {
        run_way(&env, &ways[k], w, w->got);
        bad += differences(name, &ways[k], w);
    }
    gold_close(&env);
    s.without = ALL_PARTS;
    gold_open(&s, &env);
    run_way(&env, &plain, w, w->got);
    bad += differences(name, &plain, w);
    gold_close(&env);
    free(w);
    return bad;
}

static void equal_in_all_ways(void **state) {
    (void)state;
    if (!has_gpu()) skip();
    int bad = 0;
    for (size_t m = 0; m < sizeof specs / sizeof *specs; m++) {
        static tiny t;
        tiny_make(&specs[m], &t);
        bad += in_all_ways(specs[m].family, t.dir, GY_WEIGHTS_AS_FILE, GY_KV_AUTO);
        tiny_free(&t);
    }
    assert_int_equal(bad, 0);
}

static void equal_in_eight_bits(void **state) {
    (void)state;
    static tiny t;
    if (!has_gpu()) skip();
    tiny_make(&specs[0], &t);
    int bad = in_all_ways("ouro, fp8", t.dir, GY_WEIGHTS_FP8, GY_KV_AUTO);
    tiny_free(&t);
    assert_int_equal(bad, 0);
}

static void equal_with_kv_in_int8(void **state) {
    (void)state;
    if (!has_gpu()) skip();
    int bad = 0;
    for (size_t m = 0; m < sizeof specs / sizeof *specs; m++) {
        static tiny t;
        tiny_make(&specs[m], &t);
        bad += in_all_ways(specs[m].family, t.dir, GY_WEIGHTS_AS_FILE, GY_KV_INT8);
        tiny_free(&t);
    }
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_in_all_ways), cmocka_unit_test(equal_in_eight_bits),
                                       cmocka_unit_test(equal_with_kv_in_int8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
