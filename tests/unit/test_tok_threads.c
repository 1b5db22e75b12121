/* A tokenizer is read-only: several threads, each with its own context and detokenizer, get what one thread gets. Worth
 * most under ThreadSanitizer. */
#include "tok_test.h"

#include "base/philox.h"

#include <pthread.h>
#include <stdlib.h>

enum { N_THREAD = 4, N_TEXT = 40 };

typedef struct job {
    const gy_tok *t;
    gy_str out; /* ids and decoded text of all texts */
    int failed;
} job;

/* Text i: words, digits, marks and emoji in an order that depends on i alone. */
static void text_make(uint32_t i, gy_str *out) {
    static const char *const unit[] = {"the ", "e\xCC\x81",        "12",     "<|im_end|>",
                                       "\n\n", "\xF0\x9F\x98\x80", " don't", "\xE4\xB8\x96"};
    for (uint32_t k = 0; k < 30; k++) {
        uint32_t r[4];
        gy_rand_block(7, i, k, GY_RAND_TEST, 0, r);
        gy_str_puts(out, unit[r[0] % 8]);
    }
}

static void *work(void *arg) {
    job *j = arg;
    gy_tok_ctx *c = NULL;
    gy_vec_i32 ids = {0};
    gy_err err;
    j->failed = gy_tok_ctx_create(j->t, &c) < 0;
    for (uint32_t i = 0; i < N_TEXT && !j->failed; i++) {
        gy_str text = {0};
        ids.len = 0;
        text_make(i, &text);
        j->failed = gy_tok_encode(c, text.data, text.len, GY_TOK_PARSE_SPECIAL, &err, &ids) < 0 ||
                    gy_tok_decode(j->t, ids.data, ids.len, (int)(i & 1), &err, &j->out) < 0;
        for (size_t k = 0; k < ids.len; k++) gy_str_printf(&j->out, " %d", ids.data[k]);
        gy_str_free(&text);
    }
    gy_vec_free(&ids);
    gy_tok_ctx_destroy(c);
    return NULL;
}

static void check_folder(const char *name) {
    char path[600];
    gy_tok *t;
    gy_err err = {0};
    job one = {0}, many[N_THREAD];
    pthread_t thread[N_THREAD];
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizers/%s", GY_SOURCE_DIR, name);
    if (gy_tok_open(path, &err, &t) < 0) fail_msg("%s", err.msg);
    one.t = t;
    work(&one);
    assert_true(!one.failed && one.out.len > 1000);
    for (int i = 0; i < N_THREAD; i++) {
        many[i] = (job){.t = t};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &many[i]), 0);
    }
    for (int i = 0; i < N_THREAD; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_false(many[i].failed);
        assert_string_equal(gy_str_z(&many[i].out), gy_str_z(&one.out));
        gy_str_free(&many[i].out);
    }
    gy_str_free(&one.out);
    gy_tok_close(t);
}

static void test_threads(void **state) {
    (void)state;
    check_folder("smollm2");
    check_folder("metaspace");
    check_folder("spm-bpe");
    check_folder("spm-unigram");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
