/* The streaming detokenizer: when text appears, what is held back, and that pieces add up to the whole for random ids
 * over every golden tokenizer. */
#include "tok_test.h"

#include "base/file.h"
#include "base/philox.h"

#include <dirent.h>

#define GOLDEN GY_SOURCE_DIR "/tests/golden/tokenizers"

/* Pushes ids one by one; want[i] is what must appear with id i, want[n] what finish gives. */
static void streams(const gy_tok *t, int skip, const int32_t *ids, size_t n, const char *const *want) {
    gy_detok *d;
    gy_err err = {0};
    assert_int_equal(gy_detok_create(t, skip, &d), GY_OK);
    for (int round = 0; round < 2; round++) { /* finish leaves it as new */
        for (size_t i = 0; i <= n; i++) {
            gy_str out = {0};
            gy_status st = i < n ? gy_detok_push(d, ids[i], &err, &out) : gy_detok_finish(d, &err, &out);
            assert_int_equal(st, GY_OK);
            if (strcmp(gy_str_z(&out), want[i]) != 0)
                fail_msg("round %d, step %zu: \"%s\", want \"%s\"", round, i, gy_str_z(&out), want[i]);
            gy_str_free(&out);
        }
    }
    gy_detok_destroy(d);
}

static gy_tok *open_with(const char *decoder, const char *vocab) {
    char model[1024];
    gy_tok *t = NULL;
    gy_err err = {0};
    snprintf(model, sizeof(model), "{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[]}", vocab);
    tok_parts p = {.decoder = decoder, .model = model};
    if (tok_open_parts(&p, &err, &t) < 0) fail_msg("%s", err.msg);
    return t;
}

#define IDS(...)                                                                                                       \
    (const int32_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }
#define WANT(...)                                                                                                      \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__                                                                                                    \
    }

static void test_byte_level(void **state) {
    (void)state;
    /* E4 B8 96 as GPT-2 spells them, a space, a token with a character outside the alphabet */
    gy_tok *t = open_with("{\"type\":\"ByteLevel\"}",
                          "\"\\u00e4\":0,\"\\u00b8\":1,\"\\u0138\":2,\"\\u0120a\":3,\"\\u4e16b\":4,\"<x>\":5");
    streams(t, 0, IDS(0, 1, 2, 3), 4, WANT("", "", "\xE4\xB8\x96", " a", ""));
    streams(t, 0, IDS(0, 1, 3, 0), 4, WANT("", "", "\xEF\xBF\xBD a", "", "\xEF\xBF\xBD"));
    streams(t, 0, IDS(0, 0, 1), 3, WANT("", "\xEF\xBF\xBD", "", "\xEF\xBF\xBD"));
    streams(t, 0, IDS(4, 1, 5), 3,
            WANT("\xE4\xB8\x96"
                 "b",
                 "\xEF\xBF\xBD", "<x>", ""));
    gy_tok_close(t);
}

static void test_byte_fallback(void **state) {
    (void)state;
    gy_tok *t = open_with("{\"type\":\"ByteFallback\"}",
                          "\"<0xE4>\":0,\"<0xb8>\":1,\"<0x96>\":2,\"a\":3,\"<0xFF>\":4,\"<0x41>\":5,\"<0xG1>\":6");
    streams(t, 0, IDS(0, 1, 2, 3), 4,
            WANT("", "", "",
                 "\xE4\xB8\x96"
                 "a",
                 ""));
    streams(t, 0, IDS(5, 5), 2, WANT("", "", "AA"));
    /* A later byte breaks the whole run; from then on each byte is certain. */
    streams(t, 0, IDS(5, 4, 5, 3, 5), 5, WANT("", "\xEF\xBF\xBD\xEF\xBF\xBD", "\xEF\xBF\xBD", "a", "", "A"));
    streams(t, 0, IDS(0, 1), 2, WANT("", "", "\xEF\xBF\xBD\xEF\xBF\xBD"));
    streams(t, 0, IDS(6, 3), 2, WANT("<0xG1>", "a", ""));
    gy_tok_close(t);
}

static void test_strip_replace_fuse(void **state) {
    (void)state;
    gy_tok *t =
        open_with("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},"
                  "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                  "\"content\":\" \",\"start\":1,\"stop\":0}]}",
                  "\"\\u2581a\":0,\"\\u2581\":1,\"<0x20>\":2");
    streams(t, 0, IDS(0, 0), 2, WANT("a", " a", ""));
    streams(t, 0, IDS(1, 1, 0), 3, WANT("", " ", " a", ""));
    streams(t, 0, IDS(2, 0), 2, WANT("", " a", "")); /* the byte's space is the one at the start */
    gy_tok_close(t);
    t = open_with(
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"aab\"},\"content\":\"-\"},{\"type\":\"Strip\",\"content\":\"c\",\"start\":0,\"stop\":1}]}",
        "\"a\":0,\"b\":1,\"c\":2");
    streams(t, 0, IDS(0, 0, 0, 1, 0), 5, WANT("", "", "a", "-", "", "a"));
    streams(t, 0, IDS(2, 2, 0, 2), 4, WANT("", "c", "", "ca", "")); /* one c may still be the last, "a" begins "aab" */
    gy_tok_close(t);
}

static void test_metaspace_and_none(void **state) {
    (void)state;
    gy_tok *t = open_with("{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\"}",
                          "\"\\u2581a\\u2581\":0,\"b\":1");
    streams(t, 0, IDS(0, 0, 1), 3, WANT("a", " a ", "b", ""));
    gy_tok_close(t);
    t = open_with("null", "\"a\":0,\"b\":1,\"c\":3");
    streams(t, 0, IDS(0, 1, 2, 3), 4, WANT("a", " b", "", " c", "")); /* 2 is a hole */
    gy_detok *d;
    gy_err err = {0};
    gy_str out = {0};
    assert_int_equal(gy_detok_create(t, 0, &d), GY_OK);
    assert_int_equal(gy_detok_push(d, 4, &err, &out), GY_E_ARG);
    assert_non_null(strstr(err.msg, "4"));
    assert_int_equal(gy_detok_push(d, -1, &err, &out), GY_E_ARG);
    gy_str_puts(&out, "kept");
    assert_int_equal(gy_tok_decode(t, IDS(0, 9), 2, 0, &err, &out), GY_E_ARG);
    assert_string_equal(gy_str_z(&out), "kept"); /* outputs only on success */
    gy_str_free(&out);
    gy_detok_destroy(d);
    gy_tok_close(t);
}

static void test_skip_special(void **state) {
    (void)state;
    gy_tok *t = NULL;
    gy_err err = {0};
    tok_parts p = {.added = "[{\"id\":10,\"content\":\"<s>\",\"special\":true},{\"id\":11,\"content\":\"zz\"}]",
                   .decoder = "{\"type\":\"Fuse\"}"};
    assert_int_equal(tok_open_parts(&p, &err, &t), GY_OK);
    streams(t, 1, IDS(10, 1, 10, 11), 4, WANT("", "a", "", "zz", ""));
    streams(t, 0, IDS(10, 1, 10, 11), 4, WANT("<s>", "a", "<s>", "zz", ""));
    gy_tok_close(t);
}

/* ---- random ids ---- */

static void random_ids(const gy_tok *t, uint32_t seed, int32_t *ids, size_t n) {
    int32_t n_vocab = gy_tok_n_vocab(t);
    for (size_t i = 0; i < n; i++) {
        uint32_t r[4];
        gy_rand_block(seed, 0, (uint32_t)i, GY_RAND_TEST, 0, r);
        /* Bytes sit near the beginning of most vocabularies: take every third id from there. */
        uint32_t range = r[1] % 3 == 0 && n_vocab > 300 ? 300 : (uint32_t)n_vocab;
        ids[i] = (int32_t)(r[0] % range);
    }
}

static int check_random(const gy_tok *t, uint32_t seed) {
    int32_t ids[24];
    size_t n = 1 + seed % 24;
    gy_str whole = {0}, parts = {0};
    gy_detok *d;
    gy_err err = {0};
    int skip = (int)(seed & 1);
    random_ids(t, seed, ids, n);
    assert_int_equal(gy_tok_decode(t, ids, n, skip, &err, &whole), GY_OK);
    assert_int_equal(gy_detok_create(t, skip, &d), GY_OK);
    for (size_t i = 0; i < n; i++) {
        size_t before = parts.len;
        assert_int_equal(gy_detok_push(d, ids[i], &err, &parts), GY_OK);
        if (parts.len > before) assert_true(gy_utf8_valid(parts.data + before, parts.len - before));
        /* What came out so far is a beginning of the whole: nothing is taken back. */
        assert_true(parts.len <= whole.len && (!parts.len || memcmp(parts.data, whole.data, parts.len) == 0));
    }
    assert_int_equal(gy_detok_finish(d, &err, &parts), GY_OK);
    assert_string_equal(gy_str_z(&parts), gy_str_z(&whole));
    assert_int_equal(parts.len, whole.len);
    gy_detok_destroy(d);
    gy_str_free(&whole);
    gy_str_free(&parts);
    return 1;
}

static void test_random_ids(void **state) {
    (void)state;
    int n = 0;
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char path[600];
        gy_tok *t;
        gy_err err = {0};
        snprintf(path, sizeof(path), "%s/%s", GOLDEN, e->d_name);
        if (e->d_name[0] == '.' || !gy_dir_exists(path)) continue;
        if (gy_tok_open(path, &err, &t) < 0) fail_msg("%s", err.msg);
        for (uint32_t seed = 0; seed < 1000; seed++) n += check_random(t, seed);
        gy_tok_close(t);
    }
    closedir(dir);
    printf("%d sequences\n", n);
    assert_true(n >= 6000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),         cmocka_unit_test(test_byte_fallback),
        cmocka_unit_test(test_strip_replace_fuse), cmocka_unit_test(test_metaspace_and_none),
        cmocka_unit_test(test_skip_special),       cmocka_unit_test(test_random_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
