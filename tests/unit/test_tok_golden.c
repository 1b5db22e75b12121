/* Every string of tests/golden/tokenizers/ through our tokenizers: ids and both decodings must equal what PyPI's
 * tokenizers and sentencepiece gave (tools/make_tok_goldens.py). Each decoding is also made by the streaming
 * detokenizer, whose pieces must be whole characters and add up to the same text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN GY_SOURCE_DIR "/tests/golden/tokenizers"
enum { MAX_SHOWN = 5 };

typedef struct run {
    const char *name;
    gy_tok *t;
    gy_tok_ctx *c;
    gy_detok *stream[2]; /* by skip_special */
    int n_case, n_bad;
} run;

static void show_ids(const char *what, const int32_t *ids, size_t n) {
    printf("    %s:", what);
    for (size_t i = 0; i < n && i < 40; i++) printf(" %d", ids[i]);
    printf(n > 40 ? " ...\n" : "\n");
}

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

static int check_encode(run *r, const gy_jv *v, const gy_vec_i32 *want) {
    gy_str text = {0};
    gy_vec_i32 got = {0};
    gy_err err = {0};
    unhex(gy_jv_str(gy_jv_get(v, "text_hex"), NULL), &text);
    unsigned flags = (gy_jv_bool(gy_jv_get(v, "add_special"), 0) ? GY_TOK_ADD_SPECIAL : 0u) |
                     (gy_jv_bool(gy_jv_get(v, "parse_special"), 0) ? GY_TOK_PARSE_SPECIAL : 0u);
    gy_status st = gy_tok_encode(r->c, gy_str_z(&text), text.len, flags, &err, &got);
    int bad = st != GY_OK || got.len != want->len ||
              (got.len && memcmp(got.data, want->data, got.len * sizeof(int32_t)) != 0);
    if (bad && r->n_bad < MAX_SHOWN) {
        printf("  %s: encode of %s (flags %u) differs%s%s\n", r->name, gy_jv_str(gy_jv_get(v, "text_hex"), NULL), flags,
               st < 0 ? ": " : "", st < 0 ? err.msg : "");
        show_ids("want", want->data, want->len);
        show_ids("got ", got.data, got.len);
    }
    gy_str_free(&text);
    gy_vec_free(&got);
    return bad;
}

static int check_decode(run *r, const gy_vec_i32 *ids, const gy_jv *want, int skip) {
    gy_str whole = {0}, streamed = {0};
    gy_err err = {0};
    size_t want_len = 0;
    const char *want_text = gy_jv_str(want, &want_len);
    int broken = 0;
    gy_status st = gy_tok_decode(r->t, ids->data, ids->len, skip, &err, &whole);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = streamed.len;
        assert_int_equal(gy_detok_push(r->stream[skip], ids->data[i], &err, &streamed), GY_OK);
        broken |= streamed.len > before && !gy_utf8_valid(streamed.data + before, streamed.len - before);
    }
    assert_int_equal(gy_detok_finish(r->stream[skip], &err, &streamed), GY_OK);
    int bad_whole = st != GY_OK || whole.len != want_len || memcmp(gy_str_z(&whole), want_text, want_len) != 0;
    int bad_stream = streamed.len != want_len || memcmp(gy_str_z(&streamed), want_text, want_len) != 0;
    if ((bad_whole || bad_stream || broken) && r->n_bad < MAX_SHOWN) {
        printf("  %s: decode (skip_special %d) differs%s%s\n    want: %s\n    got : %s\n    streamed: %s\n", r->name,
               skip, broken ? ", broken UTF-8" : "", st < 0 ? err.msg : "", want_text, gy_str_z(&whole),
               gy_str_z(&streamed));
        show_ids("ids", ids->data, ids->len);
    }
    gy_str_free(&whole);
    gy_str_free(&streamed);
    return bad_whole || bad_stream || broken;
}

static void check_case(run *r, const gy_jv *v) {
    gy_vec_i32 ids = {0};
    read_ids(gy_jv_get(v, "ids"), &ids);
    int bad = gy_jv_get(v, "text_hex") ? check_encode(r, v, &ids) : 0;
    bad |= check_decode(r, &ids, gy_jv_get(v, "decode"), 0);
    bad |= check_decode(r, &ids, gy_jv_get(v, "decode_skip"), 1);
    r->n_case++;
    r->n_bad += bad;
    gy_vec_free(&ids);
}

static void check_lines(run *r, const char *path) {
    gy_str file = {0};
    gy_err err = {0};
    if (!gy_file_exists(path)) return;
    assert_int_equal(gy_file_read(path, 64u << 20, &err, &file), GY_OK);
    for (size_t i = 0; i < file.len;) {
        const char *nl = memchr(file.data + i, '\n', file.len - i);
        size_t n = nl ? (size_t)(nl - file.data) - i : file.len - i;
        gy_json *doc = NULL;
        if (gy_json_parse(file.data + i, n, NULL, &err, &doc) != GY_OK) fail_msg("%s: %s", path, err.msg);
        check_case(r, gy_json_root(doc));
        gy_json_free(doc);
        i += n + 1;
    }
    gy_str_free(&file);
}

static void check_folder(const char *name, int *n_case, int *n_bad) {
    char dir[512], path[600];
    run r = {.name = name};
    gy_err err = {0};
    snprintf(dir, sizeof(dir), "%s/%s", GOLDEN, name);
    assert_true(gy_tok_exists(dir));
    if (gy_tok_open(dir, &err, &r.t) != GY_OK) fail_msg("%s", err.msg);
    assert_int_equal(gy_tok_ctx_create(r.t, &r.c), GY_OK);
    for (int skip = 0; skip < 2; skip++) assert_int_equal(gy_detok_create(r.t, skip, &r.stream[skip]), GY_OK);
    snprintf(path, sizeof(path), "%s/cases.jsonl", dir);
    check_lines(&r, path);
    snprintf(path, sizeof(path), "%s/decode.jsonl", dir);
    check_lines(&r, path);
    printf("%-16s %-24s %d of %d pass\n", name, gy_tok_kind(r.t), r.n_case - r.n_bad, r.n_case);
    for (int skip = 0; skip < 2; skip++) gy_detok_destroy(r.stream[skip]);
    gy_tok_ctx_destroy(r.c);
    gy_tok_close(r.t);
    *n_case += r.n_case;
    *n_bad += r.n_bad;
}

static void test_all(void **state) {
    (void)state;
    int n_folder = 0, n_case = 0, n_bad = 0;
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char path[600];
        snprintf(path, sizeof(path), "%s/%s", GOLDEN, e->d_name);
        if (e->d_name[0] == '.' || !gy_dir_exists(path)) continue;
        check_folder(e->d_name, &n_case, &n_bad);
        n_folder++;
    }
    closedir(dir);
    printf("%d tokenizers, %d cases, %d differ\n", n_folder, n_case, n_bad);
    assert_true(n_folder >= 6);
    assert_true(n_case >= 3000);
    assert_int_equal(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
