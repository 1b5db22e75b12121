/* tokenizer.json and texts. Input: one byte n, n bytes of text, the JSON. Whatever the file, opening ends in a
 * tokenizer or an error with a message; what opens encodes any text to ids of its own or reports an error, and decodes
 * any ids of its own to UTF-8, streamed as whole. */
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const gy_tok *t, const int32_t *ids, size_t n, int skip) {
    gy_str whole = {0}, parts = {0};
    gy_err err = {0};
    gy_detok *d;
    GY_CHECK(gy_tok_decode(t, ids, n, skip, &err, &whole) == GY_OK);
    GY_CHECK(gy_utf8_valid(gy_str_z(&whole), whole.len));
    GY_CHECK(gy_detok_create(t, skip, &d) == GY_OK);
    for (size_t i = 0; i < n; i++) {
        size_t before = parts.len;
        GY_CHECK(gy_detok_push(d, ids[i], &err, &parts) == GY_OK);
        GY_CHECK(gy_utf8_valid(gy_str_z(&parts) + before, parts.len - before));
    }
    GY_CHECK(gy_detok_finish(d, &err, &parts) == GY_OK);
    GY_CHECK(parts.len == whole.len && memcmp(gy_str_z(&parts), gy_str_z(&whole), whole.len) == 0);
    gy_detok_destroy(d);
    gy_str_free(&whole);
    gy_str_free(&parts);
}

static void encode(const gy_tok *t, gy_tok_ctx *c, const char *text, size_t len, unsigned flags) {
    gy_vec_i32 ids = {0};
    gy_err err = {0};
    gy_status st = gy_tok_encode(c, text, len, flags, &err, &ids);
    GY_CHECK(st == GY_OK || (err.status == st && err.msg[0] && ids.len == 0));
    for (size_t i = 0; i < ids.len; i++) GY_CHECK(ids.data[i] >= 0 && ids.data[i] < gy_tok_n_vocab(t));
    decode(t, ids.data, ids.len, (int)(flags & 1));
    gy_vec_free(&ids);
}

static void run(const gy_tok *t, const char *text, size_t len) {
    gy_tok_ctx *c;
    int32_t ids[256];
    GY_CHECK(gy_tok_ctx_create(t, &c) == GY_OK);
    for (unsigned flags = 0; flags < 4; flags++) encode(t, c, text, len, flags);
    for (size_t i = 0; i < len; i++) ids[i] = (uint8_t)text[i] * 3 % gy_tok_n_vocab(t);
    decode(t, ids, len, 0);
    gy_tok_ctx_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size || (size_t)data[0] + 1 > size) return 0;
    size_t n = data[0];
    gy_tok *t = NULL;
    gy_err err = {0};
    gy_status st = gy_tok_open_json((const char *)data + 1 + n, size - 1 - n, "fuzz", &err, &t);
    if (st == GY_OK)
        run(t, (const char *)data + 1, n);
    else
        GY_CHECK(st < 0 && err.status == st && err.msg[0] && !t);
    gy_tok_close(t);
    return 0;
}
