/* No quadratic time: over each golden tokenizer a text costs at most 2.2 times the counted steps of half of it (n log n
 * gives 2.1), for texts made to be hard: 1 MiB of one letter, of spaces, of a letter with a mark; 128 KiB of marks out
 * of order, spellings of added tokens, half characters and others. Time is measured too, with room for a busy machine:
 * what steps do not count (inside PCRE2) would show there. And loading SmolLM2's vocabulary takes less than 150 ms.
 */
#include "tok_test.h"

#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <stdlib.h>
#include <time.h>

#define GOLDEN GY_SOURCE_DIR "/tests/golden/tokenizers"
#ifdef GY_SANITIZED
enum { SIZE = 1 << 17 };
#else
enum { SIZE = 1 << 20 };
#endif
enum { SIZE_OTHERS = 1 << 17, N_LARGE = 3 }; /* the first N_LARGE texts have SIZE bytes */

typedef struct cost {
    int64_t steps, ns;
} cost;

static const char *const texts[] = {"a",
                                    " ",
                                    "a\xCC\x81",
                                    "\xCC\x81\xCC\xA3",
                                    "\n",
                                    " \n",
                                    "ab",
                                    "1",
                                    "'",
                                    "-",
                                    "\xE4\xB8\x96",
                                    "a ",
                                    "\xFF",
                                    "\xE4\xB8",
                                    "<|im_start|>",
                                    " <s> ",
                                    "word",
                                    "[MASK] ",
                                    "<",
                                    "[R]  ",
                                    "\t a\r",
                                    "\xE2\x96\x81",
                                    "\xED\x95\x9C",
                                    "The quick brown fox, 123 times.\n"};
enum { N_TEXT = sizeof(texts) / sizeof(texts[0]) };

/* This thread's own time: other programs on the machine must not look like growth. */
static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void encode(const gy_tok *t, const char *unit, size_t size, cost *out) {
    gy_str text = {0};
    gy_vec_i32 ids = {0};
    gy_tok_ctx *c;
    gy_err err = {0};
    while (text.len < size) gy_str_puts(&text, unit);
    assert_int_equal(text.failed, 0);
    assert_int_equal(gy_tok_ctx_create(t, &c), GY_OK);
    int64_t start = cpu_ns();
    if (gy_tok_encode(c, text.data, text.len, GY_TOK_PARSE_SPECIAL, &err, &ids) < 0) fail_msg("%s", err.msg);
    out->ns = cpu_ns() - start;
    out->steps = gy_tok_ctx_steps(c);
    assert_true(out->steps >= (int64_t)size); /* a counter that counts nothing would hold any bound */
    gy_tok_ctx_destroy(c);
    gy_vec_free(&ids);
    gy_str_free(&text);
}

/* split-c's pattern \d{1,3}(?=(\d{3})*\b) looks ahead over all digits that follow, for each match: the pattern itself
 * is quadratic, in tokenizers too. test_limit holds that it ends in an error. */
static int looks_ahead_over(const char *name, const char *unit) {
    return strcmp(name, "split-c") == 0 && strcmp(unit, "1") == 0;
}

/* 8 times the time for twice the text: a quadratic step takes 4 times at this size and dominates at the next; a single
 * preemption must not fail the test. */
static void check_growth(const gy_tok *t, const char *name) {
    double worst = 0;
    for (int i = 0; i < N_TEXT; i++) {
        if (looks_ahead_over(name, texts[i])) continue;
        cost half, whole;
        size_t size = i < N_LARGE ? SIZE : SIZE_OTHERS;
        encode(t, texts[i], size / 2, &half);
        encode(t, texts[i], size, &whole);
        double ratio = (double)whole.steps / (double)half.steps;
        if (ratio > 2.2) fail_msg("%s: text %d: %.3f times the steps for twice the text", name, i, ratio);
        if (ratio > worst) worst = ratio;
        if (whole.ns > 8 * half.ns + 200000000)
            fail_msg("%s: text %d: %.0f ms, half of it %.0f ms", name, i, (double)whole.ns / 1e6,
                     (double)half.ns / 1e6);
    }
    printf("%-16s worst ratio %.3f\n", name, worst);
}

static void test_growth(void **state) {
    (void)state;
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char path[600];
        gy_tok *t;
        gy_err err = {0};
        snprintf(path, sizeof(path), "%s/%s", GOLDEN, e->d_name);
        if (e->d_name[0] == '.' || !gy_dir_exists(path)) continue;
        if (gy_tok_open(path, &err, &t) < 0) fail_msg("%s", err.msg);
        check_growth(t, e->d_name);
        gy_tok_close(t);
    }
    closedir(dir);
}

static void test_limit(void **state) {
    (void)state;
    gy_tok *t;
    gy_tok_ctx *c;
    gy_err err = {0};
    gy_str text = {0};
    gy_vec_i32 ids = {0};
    if (gy_tok_open(GOLDEN "/split-c", &err, &t) < 0) fail_msg("%s", err.msg);
    while (text.len < 4u << 20) gy_str_puts(&text, "1234567890123456");
    assert_int_equal(gy_tok_ctx_create(t, &c), GY_OK);
    assert_int_equal(gy_tok_encode(c, text.data, text.len, 0, &err, &ids), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "too many steps"));
    assert_int_equal(ids.len, 0);
    assert_int_equal(gy_tok_encode(c, "12 a", 4, 0, &err, &ids), GY_OK); /* the next text is not harmed */
    gy_tok_ctx_destroy(c);
    gy_vec_free(&ids);
    gy_str_free(&text);
    gy_tok_close(t);
}

/* A decoder must not be quadratic either: a run of byte tokens is held back whole. */
static void test_decode_growth(void **state) {
    (void)state;
    gy_tok *t;
    gy_err err = {0};
    if (gy_tok_open(GOLDEN "/llama2", &err, &t) < 0) fail_msg("%s", err.msg);
    int32_t byte = gy_tok_id(t, "<0x41>", 6);
    assert_true(byte >= 0);
    gy_detok *d;
    gy_str out = {0};
    assert_int_equal(gy_detok_create(t, 0, &d), GY_OK);
    int64_t start = gy_clock_ns();
    for (int i = 0; i < SIZE; i++) assert_int_equal(gy_detok_push(d, byte, &err, &out), GY_OK);
    assert_int_equal(out.len, 0); /* one more byte could still break the run */
    assert_int_equal(gy_detok_finish(d, &err, &out), GY_OK);
    assert_int_equal(out.len, SIZE);
    assert_true(gy_clock_ns() - start < 60000000000); /* quadratic: hours */
    gy_str_free(&out);
    gy_detok_destroy(d);
    gy_tok_close(t);
}

/* Processor time, not the wall's: the machine may be busy with other tests, and loading uses one thread. */
static void test_load_time(void **state) {
    (void)state;
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        gy_tok *t;
        gy_err err = {0};
        clock_t start = clock();
        if (gy_tok_open(GOLDEN "/smollm2", &err, &t) < 0) fail_msg("%s", err.msg);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        if (ms < best) best = ms;
        assert_int_equal(gy_tok_n_vocab(t), 49152);
        gy_tok_close(t);
    }
    printf("smollm2 loads in %.1f ms\n", best);
#if !defined(GY_SANITIZED) && !defined(GY_DEBUG)
    assert_true(best < 2000); /* 66 here: a step for each pair of tokens would be 2.4 G of them */
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth), cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_decode_growth), cmocka_unit_test(test_load_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
