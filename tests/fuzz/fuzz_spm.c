/* SentencePiece models and texts. Input: one byte n, n bytes of text, the model. Whatever the model, opening ends in a
 * model or an error with a message; what opens encodes any text to ids of its own, and decodes any ids to UTF-8. */
#include "text/tok_int.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(gy_tok *t, const int32_t *ids, size_t n) {
    uint64_t state[4] = {0};
    gy_str out = {0};
    gy_err err;
    GY_CHECK(t->ops->detok_bytes <= sizeof state);
    for (size_t i = 0; i < n; i++) {
        GY_CHECK(t->ops->detok_push(t, state, ids[i], &err, &out) == GY_OK);
        GY_CHECK(gy_utf8_valid(out.data, out.len));
    }
    GY_CHECK(t->ops->detok_finish(t, state, &err, &out) == GY_OK);
    GY_CHECK(gy_utf8_valid(out.data, out.len));
    t->ops->detok_fini(state);
    gy_str_free(&out);
}

static void run(gy_tok *t, const char *text, size_t len) {
    struct gy_tok_ctx c = {.t = t};
    gy_str clean = {0};
    gy_vec_i32 ids = {0};
    gy_err err;
    GY_CHECK(t->ops->scratch_create(t, &c.scratch) == GY_OK);
    gy_utf8_sanitize(text, len, &clean);
    if (clean.len) GY_CHECK(t->ops->encode(&c, clean.data, clean.len, 1, 0, &err, &ids) == GY_OK);
    for (size_t i = 0; i < ids.len; i++) GY_CHECK(ids.data[i] >= 0 && ids.data[i] < t->n_vocab);
    decode(t, ids.data, ids.len);
    ids.len = 0;
    for (size_t i = 0; i < len; i++) GY_CHECK(!gy_vec_push(&ids, GY_MEM_TEXT, (uint8_t)text[i] * 3 % t->n_vocab));
    decode(t, ids.data, ids.len);
    t->ops->scratch_destroy(c.scratch);
    gy_vec_free(&ids);
    gy_str_free(&clean);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size || (size_t)data[0] + 1 > size) return 0;
    size_t n = data[0];
    gy_tok t = {.added = gy_added_create()};
    gy_err err = {0};
    GY_CHECK(t.added != NULL);
    gy_status st = gy_spm_open(&t, data + 1 + n, size - 1 - n, "fuzz", &err);
    if (st == GY_OK) {
        run(&t, (const char *)data + 1, n);
    } else {
        GY_CHECK(st < 0 && err.status == st && err.msg[0]);
    }
    if (t.ops) t.ops->destroy(t.impl);
    gy_added_destroy(t.added);
    return 0;
}
