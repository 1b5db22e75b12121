/* A device that is lost: an embedding reads far outside its table, as a broken kernel would, and the context is
 * unusable from then on. Said once by each sync, results are ones and not what was there before, nothing hangs, and an
 * engine ends without having told a token of it. A program of its own, because nothing on this GPU works in it
 * afterwards. Skipped where there is no GPU.
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

enum { N_EMBD = 256, N_OUT = 24, N_STEP = 14, N_LATE = 2 };

static const tiny_spec spec = {.family = "ouro",
                               .n_vocab = 320,
                               .n_embd = N_EMBD,
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
                               .seed = 11};

static int has_gpu(void) {
    gy_cuda_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = 16, .max_k = 64, .max_len = 64}};
    gy_err err = {0};
    gy_backend *be = NULL;
    if (gy_backend_cuda_create(&o, &err, &be) < 0) print_message("    skipped: %s\n", err.msg);
    gy_backend_destroy(be);
    return be != NULL;
}

/* Row 2^30 of a table of one row: 512 GB behind it. */
static void break_device(gy_backend *be) {
    int32_t far = 1 << 30;
    gy_weight table = {.dtype = GY_BF16, .n = INT32_MAX, .k = N_EMBD, .n_part = 1};
    char *p = be->ops->alloc(be, 4096);
    table.part[0].data = p;
    table.part[0].n = INT32_MAX;
    be->ops->upload(be, p + 2048, &far, sizeof far);
    be->ops->embed(
        be, &(gy_embed_args){.table = &table, .ids = (int32_t *)(p + 2048), .scale = 1.0f, .n_row = 1, .y = p + 1024});
}

static void check_lost(gy_backend *be) {
    gy_err err = {0};
    assert_int_equal(be->ops->sync(be, &err), GY_E_DEVICE);
    assert_non_null(strstr(err.msg, "cudaErrorIllegalAddress"));
    assert_non_null(strstr(err.msg, "start it again"));
}

static void make_requests(gy_request *r, int32_t *ids, const gy_model_desc *d, int n) {
    for (int i = 0; i < n; i++) {
        gy_request_default(&r[i], d);
        for (int k = 0; k < 40; k++) ids[i * 40 + k] = (i * 31 + k * 7 + 3) % spec.n_vocab;
        r[i].prompt = ids + (ptrdiff_t)i * 40;
        r[i].n_prompt = 20 + 3 * i;
        r[i].max_tokens = N_OUT;
        r[i].ignore_eos = 1;
    }
}

static void lost_in_a_step(void **state) {
    (void)state;
    enum { N = 4 };
    static tiny t;
    static gold_result whole[N], cut[N];
    static int32_t ids[N * 40];
    gy_request r[N];
    gold_env env;
    gy_err err = {0};
    int32_t row[64];
    gy_status st = GY_OK;
    int n_tok = 0, left = 0;
    if (!has_gpu()) skip();
    tiny_make(&spec, &t);
    gold_setup s = {.model = t.dir, .backend = "cuda", .act = GY_BF16, .max_rows = 64};
    gold_open(&s, &env);
    gold_engine(&s, &env);
    make_requests(r, ids, &env.m->d, N);
    gold_run(env.e, r, N, whole);
    for (int i = 0; i < N; i++) assert_true(gold_submit(env.e, &r[i], &cut[i]));
    for (int i = 0; i < N_STEP; i++) assert_int_equal(gy_engine_step(env.e, &err), GY_OK);
    for (int i = 0; i < N; i++) n_tok += cut[i].n;
    assert_true(n_tok > 0 && n_tok < N * N_OUT);
    break_device(env.be);
    /* What was queued in front of it is good, and a step may still tell it; the next one cannot. */
    for (int i = 0; i < N_LATE && st == GY_OK; i++) st = gy_engine_step(env.e, &err);
    assert_int_equal(st, GY_E_DEVICE);
    print_message("    %s\n", err.msg);
    assert_non_null(strstr(err.msg, "start it again"));
    n_tok = 0;
    for (int i = 0; i < N; i++) {
        assert_memory_equal(cut[i].tokens, whole[i].tokens, (size_t)cut[i].n * sizeof(int32_t));
        n_tok += cut[i].n;
    }
    assert_true(n_tok < N * N_OUT);
    assert_int_equal(gy_engine_step(env.e, &err), GY_E_DEVICE);
    for (int i = 0; i < N; i++) left += cut[i].n;
    assert_int_equal(left, n_tok); /* nothing was told after the loss */
    check_lost(env.be);
    check_lost(env.be); /* again: a sync clears what it reports, the device stays lost */
    memset(row, 0x55, sizeof row);
    env.be->ops->download(env.be, row, env.m->final_norm, sizeof row);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) assert_int_equal(row[i], -1);
    assert_null(env.be->ops->alloc(env.be, 1 << 20));
    assert_int_equal(env.be->ops->mem_available(env.be), 0);
    gold_close(&env);
    gy_backend *be = NULL;
    gy_cuda_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = 16, .max_k = 64, .max_len = 64}};
    assert_int_equal(gy_backend_cuda_create(&o, &err, &be), GY_E_DEVICE);
    assert_non_null(strstr(err.msg, "no GPU can be used: an illegal memory access"));
    print_message("    again: %s\n", err.msg);
    tiny_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lost_in_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
