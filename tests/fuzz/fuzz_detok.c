/* The streaming detokenizer over chains of decoders. Input: one byte that chooses the chain, one for skip_special, then
 * ids, a byte each. What comes out piece by piece is whole characters, never taken back, and adds up to the text of
 * decoding all ids at once. */
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Pieces that meet each decoder's edges: the alphabet of ByteLevel with halves of characters, byte tokens that begin
 * and break characters, spaces in three spellings, beginnings of what Replace looks for. */
static const char VOCAB[] =
    "\"a\":0,\"b\":1,\"ab\":2,\"aab\":3,\" "
    "\":4,\"\\u2581\":5,\"\\u2581a\":6,\"\\u2581\\u2581\":7,\"\\u0120\":8,\"\\u00e4\":9,"
    "\"\\u00b8\":10,\"\\u0138\":11,\"\\u00f0\\u0141\":12,\"\\u4e16\":13,\"<0xE4>\":14,\"<0xB8>\":15,\"<0x96>\":16,"
    "\"<0xFF>\":17,\"<0x41>\":18,\"<0x20>\":19,\"<0xe2>\":20,\"<0x+1>\":21,\"\\uFFFD\":22,\"e\\u0301\":23,\"\\u0302\":"
    "24,"
    "\"\\u00ff\":25";
static const char ADDED[] = "{\"id\":26,\"content\":\"<s>\",\"special\":true},{\"id\":27,\"content\":\"\\u00e9 x\"}";
enum { N_VOCAB = 28 };

#define REPLACE(from, to) "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"
#define STRIP(c, start, stop) "{\"type\":\"Strip\",\"content\":\"" c "\",\"start\":" #start ",\"stop\":" #stop "}"
#define TYPE(name) "{\"type\":\"" name "\"}"
#define META(scheme) "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"" scheme "\"}"
#define SEQ(list) "{\"type\":\"Sequence\",\"decoders\":[" list "]}"
static const char *const chains[] = {
    "null",
    TYPE("ByteLevel"),
    TYPE("ByteFallback"),
    META("first"),
    META("never"),
    SEQ(REPLACE("\\u2581", " ") "," TYPE("ByteFallback") "," TYPE("Fuse") "," STRIP(" ", 1, 0)),
    SEQ(TYPE("ByteFallback") "," STRIP("a", 1, 1) "," REPLACE("aab", "") "," META("always")),
    SEQ(TYPE("Fuse") "," REPLACE("aab", "a") "," STRIP("a", 2, 2)),
    SEQ(TYPE("ByteLevel") "," REPLACE("\\u4e16", "\\u2581") "," META("always")),
    SEQ(TYPE("ByteLevel") "," TYPE("ByteFallback") "," TYPE("ByteLevel")),
    SEQ(META("first") "," TYPE("Fuse") "," TYPE("ByteLevel") "," STRIP(" ", 0, 3)),
};
enum { N_CHAIN = sizeof(chains) / sizeof(chains[0]) };

static gy_tok *open_chain(const char *chain) {
    gy_str json = {0};
    gy_tok *t = NULL;
    gy_err err = {0};
    gy_str_printf(&json,
                  "{\"added_tokens\":[%s],\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[]}}",
                  ADDED, chain, VOCAB);
    GY_CHECK(gy_tok_open_json(gy_str_z(&json), json.len, "fuzz", &err, &t) == GY_OK);
    GY_CHECK(gy_tok_n_vocab(t) == N_VOCAB);
    gy_str_free(&json);
    return t;
}

static void check_stream(const gy_tok *t, int skip, const int32_t *ids, size_t n) {
    gy_str whole = {0}, parts = {0};
    gy_err err = {0};
    gy_detok *d;
    GY_CHECK(gy_tok_decode(t, ids, n, skip, &err, &whole) == GY_OK);
    GY_CHECK(gy_detok_create(t, skip, &d) == GY_OK);
    for (size_t i = 0; i <= n; i++) {
        size_t before = parts.len;
        gy_status st = i < n ? gy_detok_push(d, ids[i], &err, &parts) : gy_detok_finish(d, &err, &parts);
        GY_CHECK(st == GY_OK);
        GY_CHECK(gy_utf8_valid(gy_str_z(&parts) + before, parts.len - before));
        GY_CHECK(parts.len <= whole.len && memcmp(gy_str_z(&parts), gy_str_z(&whole), parts.len) == 0);
    }
    GY_CHECK(parts.len == whole.len);
    gy_detok_destroy(d);
    gy_str_free(&whole);
    gy_str_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    gy_tok *t = open_chain(chains[data[0] % N_CHAIN]);
    size_t n = size - 2;
    gy_vec_i32 ids = {0};
    for (size_t i = 0; i < n; i++) GY_CHECK(!gy_vec_push(&ids, GY_MEM_TEXT, data[2 + i] % N_VOCAB));
    check_stream(t, data[1] & 1, ids.data, ids.len);
    gy_vec_free(&ids);
    gy_tok_close(t);
    return 0;
}
