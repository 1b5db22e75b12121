/* Random tokenizers (tests/golden/tok_random.jsonl, made by tools/make_tok_random.py with PyPI tokenizers 0.23.3): each
 * normalizer, pre-tokenizer and decoder in random sequences, with random texts and ids. Ids and decoded text must be
 * equal; text comes whole and streamed.
 * With a path as argument that file is read instead: longer comparisons with other seeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHOWN = 5 };
static const char *data_path = GY_SOURCE_DIR "/tests/golden/tok_random.jsonl";

typedef struct tally {
    int n_tokenizer, n_encode, n_decode, n_bad;
} tally;

static void unhex(const char *hex, gy_str *out) {
    for (; hex[0] && hex[1]; hex += 2) {
        char two[3] = {hex[0], hex[1], 0};
        gy_str_putc(out, (char)strtol(two, NULL, 16));
    }
}

static void read_ids(const gy_jv *v, gy_vec_i32 *out) {
    for (size_t i = 0; i < gy_jv_len(v); i++)
        assert_int_equal(gy_vec_push(out, GY_MEM_TEXT, (int32_t)gy_jv_int(gy_jv_at(v, i), -1)), 0);
}

/* Prints a difference; the first few only. */
static void report(tally *n, int line, const char *what, const gy_jv *v, const char *msg) {
    const char *hex = gy_jv_str(gy_jv_at(v, 0), NULL);
    if (n->n_bad++ < MAX_SHOWN)
        printf("  line %d: %s of %s differs%s%s\n", line, what, hex ? hex : "ids", msg[0] ? ": " : "", msg);
}

static void check_encode(gy_tok_ctx *c, const gy_jv *v, int line, tally *n) {
    gy_str text = {0};
    gy_vec_i32 want = {0}, got = {0};
    gy_err err = {0};
    unhex(gy_jv_str(gy_jv_at(v, 0), NULL), &text);
    read_ids(gy_jv_at(v, 3), &want);
    unsigned flags = (gy_jv_bool(gy_jv_at(v, 1), 0) ? GY_TOK_ADD_SPECIAL : 0u) |
                     (gy_jv_bool(gy_jv_at(v, 2), 0) ? GY_TOK_PARSE_SPECIAL : 0u);
    gy_status st = gy_tok_encode(c, gy_str_z(&text), text.len, flags, &err, &got);
    if (st < 0 || got.len != want.len || (got.len && memcmp(got.data, want.data, got.len * sizeof(int32_t)) != 0))
        report(n, line, "encode", v, err.msg);
    n->n_encode++;
    gy_str_free(&text);
    gy_vec_free(&want);
    gy_vec_free(&got);
}

static int stream(const gy_tok *t, const gy_vec_i32 *ids, int skip, gy_str *out) {
    gy_detok *d;
    gy_err err;
    int whole = 1;
    assert_int_equal(gy_detok_create(t, skip, &d), GY_OK);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = out->len;
        assert_int_equal(gy_detok_push(d, ids->data[i], &err, out), GY_OK);
        whole &= out->len == before || gy_utf8_valid(out->data + before, out->len - before);
    }
    assert_int_equal(gy_detok_finish(d, &err, out), GY_OK);
    gy_detok_destroy(d);
    return whole;
}

static void check_decode(const gy_tok *t, const gy_jv *v, int line, tally *n) {
    gy_str whole = {0}, parts = {0};
    gy_vec_i32 ids = {0};
    gy_err err = {0};
    size_t len = 0;
    const char *want = gy_jv_str(gy_jv_at(v, 2), &len);
    int skip = gy_jv_bool(gy_jv_at(v, 1), 0);
    read_ids(gy_jv_at(v, 0), &ids);
    if (gy_tok_decode(t, ids.data, ids.len, skip, &err, &whole) < 0 || whole.len != len ||
        memcmp(gy_str_z(&whole), want, len) != 0)
        report(n, line, "decode", v, gy_str_z(&whole));
    if (!stream(t, &ids, skip, &parts) || parts.len != len || memcmp(gy_str_z(&parts), want, len) != 0)
        report(n, line, "streamed decode", v, gy_str_z(&parts));
    n->n_decode++;
    gy_str_free(&whole);
    gy_str_free(&parts);
    gy_vec_free(&ids);
}

static void check_tokenizer(const gy_jv *root, int line, tally *n) {
    size_t len = 0;
    const char *json = gy_jv_str(gy_jv_get(root, "tokenizer"), &len);
    gy_tok *t;
    gy_tok_ctx *c;
    gy_err err = {0};
    if (gy_tok_open_json(json, len, "random tokenizer", &err, &t) < 0) fail_msg("line %d: %s", line, err.msg);
    assert_int_equal(gy_tok_ctx_create(t, &c), GY_OK);
    const gy_jv *list = gy_jv_get(root, "encode");
    for (size_t i = 0; i < gy_jv_len(list); i++) check_encode(c, gy_jv_at(list, i), line, n);
    list = gy_jv_get(root, "decode");
    for (size_t i = 0; i < gy_jv_len(list); i++) check_decode(t, gy_jv_at(list, i), line, n);
    gy_tok_ctx_destroy(c);
    gy_tok_close(t);
    n->n_tokenizer++;
}

static void test_random(void **state) {
    (void)state;
    gy_str file = {0};
    gy_err err = {0};
    tally n = {0};
    if (gy_file_read(data_path, (size_t)1 << 30, &err, &file) < 0) fail_msg("%s", err.msg);
    for (size_t i = 0; i < file.len;) {
        const char *nl = memchr(file.data + i, '\n', file.len - i);
        size_t len = nl ? (size_t)(nl - file.data) - i : file.len - i;
        gy_json *doc = NULL;
        if (gy_json_parse(file.data + i, len, NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
        check_tokenizer(gy_json_root(doc), n.n_tokenizer + 1, &n);
        gy_json_free(doc);
        i += len + 1;
    }
    gy_str_free(&file);
    printf("%d tokenizers, %d texts, %d decodings, %d differ\n", n.n_tokenizer, n.n_encode, n.n_decode, n.n_bad);
    assert_true(n.n_tokenizer >= 50 && n.n_encode >= 700 && n.n_decode >= 700);
    assert_int_equal(n.n_bad, 0);
}

int main(int argc, char **argv) {
    if (argc > 1) data_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
