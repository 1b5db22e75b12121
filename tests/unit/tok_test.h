/* Shared by the tests of src/text: small tokenizers from parts of a tokenizer.json, and checks that read in a line. */
#ifndef GY_TESTS_TOK_TEST_H
#define GY_TESTS_TOK_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* The parts are JSON; NULL is null (added_tokens: []). */
typedef struct tok_parts {
    const char *added, *normalizer, *pre_tokenizer, *post_processor, *decoder, *model;
} tok_parts;

/* Letters a, b, c, the space, U+2581 and some merges: enough to see where text was cut. */
#define TOK_MODEL                                                                                                      \
    "{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"c\":3,\" \":4,\"\\u2581\":5,"          \
    "\"ab\":6,\"abc\":7,\"\\u2581a\":8,\"bc\":9},\"merges\":[\"a b\",\"ab c\",\"\\u2581 a\",\"b c\"]}"

static inline void tok_parts_json(const tok_parts *p, gy_str *json) {
    const char *part[] = {p->added, p->normalizer, p->pre_tokenizer, p->post_processor, p->decoder};
    const char *name[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"};
    gy_str_puts(json, "{\"version\":\"1.0\"");
    for (int i = 0; i < 5; i++) gy_str_printf(json, ",\"%s\":%s", name[i], part[i] ? part[i] : i ? "null" : "[]");
    gy_str_printf(json, ",\"model\":%s}", p->model ? p->model : TOK_MODEL);
}

static inline gy_status tok_open_parts(const tok_parts *p, gy_err *err, gy_tok **out) {
    gy_str json = {0};
    tok_parts_json(p, &json);
    gy_status st = gy_tok_open_json(gy_str_z(&json), json.len, "test.json", err, out);
    gy_str_free(&json);
    return st;
}

/* Opening must fail with the status and a message that has all of the three parts. */
static inline void tok_refused(const tok_parts *p, gy_status want, const char *where, const char *what) {
    gy_tok *t = NULL;
    gy_err err = {0};
    gy_status st = tok_open_parts(p, &err, &t);
    if (st != want || err.status != want || !strstr(err.msg, "test.json") || !strstr(err.msg, where) ||
        !strstr(err.msg, what))
        fail_msg("status %d (want %d), message \"%s\" (want \"%s\" and \"%s\")", st, want, err.msg, where, what);
    assert_null(t);
}

/* Ids as text: "1 2 3". */
static inline void tok_encodes(const gy_tok *t, const char *text, size_t len, unsigned flags, const char *want) {
    gy_tok_ctx *c;
    gy_vec_i32 ids = {0};
    gy_err err = {0};
    gy_str got = {0};
    assert_int_equal(gy_tok_ctx_create(t, &c), GY_OK);
    if (gy_tok_encode(c, text, len, flags, &err, &ids) < 0) fail_msg("\"%s\": %s", text, err.msg);
    for (size_t i = 0; i < ids.len; i++) gy_str_printf(&got, i ? " %d" : "%d", ids.data[i]);
    if (strcmp(gy_str_z(&got), want) != 0) fail_msg("\"%s\": got %s, want %s", text, gy_str_z(&got), want);
    gy_str_free(&got);
    gy_vec_free(&ids);
    gy_tok_ctx_destroy(c);
}

/* Opens, encodes one text, closes. */
static inline void parts_encode(const tok_parts *p, const char *text, unsigned flags, const char *want) {
    gy_tok *t = NULL;
    gy_err err = {0};
    if (tok_open_parts(p, &err, &t) < 0) fail_msg("%s", err.msg);
    tok_encodes(t, text, strlen(text), flags, want);
    gy_tok_close(t);
}

#endif
