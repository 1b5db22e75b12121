/* The SentencePiece kind alone: against what the sentencepiece library gave (tests/golden/tokenizers), on damaged and
 * unsupported models, and for growth of the work with the text's length. The shared part (added tokens, prefix ids,
 * configuration) is tested by test_tok_golden.c. */
#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "text/spm_int.h"
#include "text/spm_proto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN GY_SOURCE_DIR "/tests/golden/tokenizers/"

/* ---- a tokenizer without the shared part ---- */

typedef struct bed {
    struct gy_tok t;
    struct gy_tok_ctx c;
    gy_err err;
} bed;

static gy_status bed_open(bed *b, const void *data, size_t len) {
    memset(b, 0, sizeof *b);
    b->t.added = gy_added_create();
    assert_non_null(b->t.added);
    gy_status st = gy_spm_open(&b->t, data, len, "test.model", &b->err);
    if (st < 0) return st;
    b->c.t = &b->t;
    assert_int_equal(b->t.ops->scratch_create(&b->t, &b->c.scratch), GY_OK);
    return GY_OK;
}

static void bed_close(bed *b) {
    if (b->t.ops) {
        b->t.ops->scratch_destroy(b->c.scratch);
        b->t.ops->destroy(b->t.impl);
    }
    gy_added_destroy(b->t.added);
}

static void bed_open_golden(bed *b, const char *folder) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s/tokenizer.model", folder);
    gy_str data = {0};
    gy_err err;
    assert_int_equal(gy_file_read(path, 64u << 20, &err, &data), GY_OK);
    if (bed_open(b, data.data, data.len) < 0) fail_msg("%s", b->err.msg);
    gy_str_free(&data);
}

static void bed_encode(bed *b, const char *text, size_t len, gy_vec_i32 *ids) {
    ids->len = 0;
    b->c.steps = 0;
    if (!len) return; /* the shared part passes no empty segments */
    if (b->t.ops->encode(&b->c, text, len, 1, 0, &b->err, ids) < 0) fail_msg("%s", b->err.msg);
}

/* ---- goldens ---- */

static const char *const folders[] = {"spm-bpe",    "spm-unigram", "spm-bpe-raw",     "spm-bpe-unk",
                                      "spm-suffix", "spm-odd-bpe", "spm-odd-unigram", "spm-rules"};

static void from_hex(const char *hex, gy_str *out) {
    for (; hex[0] && hex[1]; hex += 2) {
        char two[3] = {hex[0], hex[1], 0};
        gy_str_putc(out, (char)strtol(two, NULL, 16));
    }
}

/* Decodes id by id; checks that each push leaves whole characters. */
static void bed_decode(bed *b, const int32_t *ids, size_t n, int skip, gy_str *out) {
    uint64_t state[4] = {0};
    assert_true(b->t.ops->detok_bytes <= sizeof state);
    gy_str_clear(out);
    for (size_t i = 0; i < n; i++) {
        if (skip && b->t.ops->is_special(&b->t, ids[i])) continue;
        assert_int_equal(b->t.ops->detok_push(&b->t, state, ids[i], &b->err, out), GY_OK);
        assert_true(gy_utf8_valid(out->data, out->len));
    }
    assert_int_equal(b->t.ops->detok_finish(&b->t, state, &b->err, out), GY_OK);
    assert_true(gy_utf8_valid(out->data, out->len));
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) assert_int_equal(state[i], 0);
    b->t.ops->detok_fini(state);
}

static int decode_differs(bed *b, const gy_jv *j, const gy_vec_i32 *ids, const char *key, int skip) {
    gy_str got = {0};
    size_t len;
    const char *want = gy_jv_str(gy_jv_get(j, key), &len);
    assert_non_null(want);
    bed_decode(b, ids->data, ids->len, skip, &got);
    int differs = got.len != len || (len && memcmp(got.data, want, len));
    if (differs) print_error("%s: got \"%s\", expected \"%s\"\n", key, gy_str_z(&got), want);
    gy_str_free(&got);
    return differs;
}

/* What stands between the bos and eos that the case's tokenizer_config.json asks for. */
static void golden_core(const bed *b, const gy_vec_i32 *all, int add, int bos, int eos, const int32_t **ids,
                        size_t *n) {
    *ids = all->data;
    *n = all->len;
    if (add && bos) {
        assert_true(*n > 0 && (*ids)[0] == b->t.bos);
        ++*ids;
        --*n;
    }
    if (add && eos) {
        assert_true(*n > 0 && (*ids)[*n - 1] == b->t.eos);
        --*n;
    }
}

static int encode_differs(bed *b, const gy_jv *j, const gy_vec_i32 *all, int bos, int eos) {
    const char *hex = gy_jv_str(gy_jv_get(j, "text_hex"), NULL);
    if (!hex) return 0;
    gy_str raw = {0}, text = {0};
    gy_vec_i32 got = {0};
    from_hex(hex, &raw);
    gy_utf8_sanitize(raw.data ? raw.data : "", raw.len, &text);
    bed_encode(b, text.data, text.len, &got);
    const int32_t *want;
    size_t n;
    golden_core(b, all, gy_jv_bool(gy_jv_get(j, "add_special"), 0), bos, eos, &want, &n);
    int differs = got.len != n || (n && memcmp(got.data, want, n * sizeof *want));
    for (size_t i = 0; differs && i < 20; i++) {
        print_error("%zu: got %d, expected %d\n", i, i < got.len ? got.data[i] : -1, i < n ? want[i] : -1);
    }
    if (differs) print_error("text \"%.300s\": %zu ids, expected %zu\n", gy_str_z(&text), got.len, n);
    gy_vec_free(&got);
    gy_str_free(&raw);
    gy_str_free(&text);
    return differs;
}

static int golden_line(bed *b, const char *line, size_t len, int bos, int eos) {
    gy_json *doc = NULL;
    gy_vec_i32 ids = {0};
    gy_err err;
    if (gy_json_parse(line, len, NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
    const gy_jv *j = gy_json_root(doc), *a = gy_jv_get(j, "ids");
    for (size_t i = 0; i < gy_jv_len(a); i++) {
        assert_int_equal(gy_vec_push(&ids, GY_MEM_TEXT, (int32_t)gy_jv_int(gy_jv_at(a, i), -1)), 0);
    }
    int bad = encode_differs(b, j, &ids, bos, eos);
    bad += decode_differs(b, j, &ids, "decode", 0) + decode_differs(b, j, &ids, "decode_skip", 1);
    gy_vec_free(&ids);
    gy_json_free(doc);
    return bad;
}

static int golden_file(bed *b, const char *folder, const char *file, int bos, int eos) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s/%s", folder, file);
    if (!gy_file_exists(path)) return 0;
    gy_str data = {0};
    gy_err err;
    assert_int_equal(gy_file_read(path, 64u << 20, &err, &data), GY_OK);
    int n = 0, bad = 0;
    for (char *line = data.data, *end; line < data.data + data.len && bad < 10; line = end + 1, n++) {
        end = strchr(line, '\n');
        assert_non_null(end);
        int now = golden_line(b, line, (size_t)(end - line), bos, eos);
        if (now) print_error("%s/%s:%d\n", folder, file, n + 1);
        bad += now;
    }
    gy_str_free(&data);
    assert_int_equal(bad, 0);
    return n;
}

static void test_goldens(void **state) {
    (void)state;
    int n = 0;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        bed b;
        char path[512];
        gy_json *doc = NULL;
        bed_open_golden(&b, folders[i]);
        snprintf(path, sizeof path, GOLDEN "%s/tokenizer_config.json", folders[i]);
        assert_int_equal(gy_json_read(path, NULL, &b.err, &doc), GY_OK);
        int bos = gy_jv_bool(gy_jv_get(gy_json_root(doc), "add_bos_token"), 0);
        int eos = gy_jv_bool(gy_jv_get(gy_json_root(doc), "add_eos_token"), 0);
        n += golden_file(&b, folders[i], "cases.jsonl", bos, eos);
        n += golden_file(&b, folders[i], "decode.jsonl", bos, eos);
        gy_json_free(doc);
        bed_close(&b);
    }
    assert_true(n > 2500);
}

/* ---- wire format ---- */

static void put_varint(gy_str *s, uint64_t v) {
    for (; v >= 0x80; v >>= 7) gy_str_putc(s, (char)(v | 0x80));
    gy_str_putc(s, (char)v);
}

static void put_int(gy_str *s, uint32_t field, uint64_t v) {
    put_varint(s, field << 3 | GY_PB_VARINT);
    put_varint(s, v);
}

static void put_bytes(gy_str *s, uint32_t field, const char *data, size_t len) {
    put_varint(s, field << 3 | GY_PB_BYTES);
    put_varint(s, len);
    gy_str_append(s, data, len);
}

static void test_wire_fields(void **state) {
    (void)state;
    gy_str s = {0};
    put_int(&s, 1, 300);
    put_bytes(&s, 2, "ab", 2);
    gy_str_append(&s, "\x1d\x00\x00\x80\x3f", 5);                 /* field 3, fixed32: 1.0f */
    gy_str_append(&s, "\x21\x01\x02\x03\x04\x05\x06\x07\x08", 9); /* field 4, fixed64 */
    gy_pb pb;
    gy_pb_field f;
    gy_pb_init(&pb, s.data, s.len);
    assert_int_equal(gy_pb_next(&pb, &f), 1);
    assert_true(f.number == 1 && f.wire == GY_PB_VARINT && f.value == 300);
    assert_int_equal(gy_pb_next(&pb, &f), 1);
    assert_true(f.number == 2 && f.len == 2 && !memcmp(f.data, "ab", 2));
    assert_int_equal(gy_pb_next(&pb, &f), 1);
    assert_true(f.number == 3 && gy_pb_float(&f) == 1.0f);
    assert_int_equal(gy_pb_next(&pb, &f), 1);
    assert_true(f.number == 4 && f.value == 0x0807060504030201u);
    assert_int_equal(gy_pb_next(&pb, &f), 0);
    gy_str_free(&s);
}

static void test_wire_malformed(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
    } bad[] = {
        {"\x08", 1},                                              /* no value */
        {"\x80", 1},                                              /* half a tag */
        {"\x00\x01", 2},                                          /* field 0 */
        {"\x0b\x0c", 2},                                          /* a group */
        {"\x0e\x00", 2},                                          /* wire type 6 */
        {"\x0a\x05xx", 4},                                        /* longer than the rest */
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},     /* 2^64 - 1 bytes */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* 11 bytes of varint */
        {"\x0d\x01\x02\x03", 4},                                  /* 3 of 4 */
        {"\x09\x01\x02\x03\x04\x05\x06\x07", 8},                  /* 7 of 8 */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gy_pb pb;
        gy_pb_field f;
        char *copy = malloc(bad[i].len); /* so that ASan sees a read past the end */
        memcpy(copy, bad[i].bytes, bad[i].len);
        gy_pb_init(&pb, copy, bad[i].len);
        assert_int_equal(gy_pb_next(&pb, &f), -1);
        assert_int_equal(gy_pb_offset(&pb), 0);
        free(copy);
    }
}

/* ---- models by hand ---- */

static void put_piece(gy_str *model, const char *s, size_t len, float score, int type) {
    gy_str p = {0};
    uint32_t bits;
    memcpy(&bits, &score, 4);
    put_bytes(&p, 1, s, len);
    gy_str_putc(&p, 2 << 3 | GY_PB_FIXED32);
    for (int i = 0; i < 4; i++) gy_str_putc(&p, (char)(bits >> (8 * i)));
    put_int(&p, 3, (uint64_t)type);
    put_bytes(model, 1, p.data, p.len);
    gy_str_free(&p);
}

static void put_algo(gy_str *model, int algo) {
    gy_str spec = {0};
    put_int(&spec, 3, (uint64_t)algo);
    put_bytes(model, 2, spec.data, spec.len);
    gy_str_free(&spec);
}

static void small_model(gy_str *model, int algo) {
    put_piece(model, "<unk>", 5, 0, GY_SPM_UNKNOWN);
    put_piece(model, "<s>", 3, 0, GY_SPM_CONTROL);
    put_piece(model, "</s>", 4, 0, GY_SPM_CONTROL);
    put_piece(model, "a", 1, -1, GY_SPM_NORMAL);
    put_piece(model, "aa", 2, -1.5f, GY_SPM_NORMAL);
    put_piece(model, "\xe2\x96\x81", 3, -2, GY_SPM_NORMAL);
    put_algo(model, algo);
}

static void expect_refused(const gy_str *model, gy_status status, const char *part) {
    bed b;
    gy_status st = bed_open(&b, model->data, model->len);
    if (st != status || !strstr(b.err.msg, part)) {
        print_error("status %d, expected %d; \"%s\" must hold \"%s\"\n", st, status, b.err.msg, part);
        fail();
    }
    assert_non_null(strstr(b.err.msg, "test.model"));
    bed_close(&b);
}

static void test_model_by_hand(void **state) {
    (void)state;
    for (int algo = GY_SPM_UNIGRAM; algo <= GY_SPM_BPE; algo++) {
        gy_str model = {0};
        gy_vec_i32 ids = {0};
        bed b;
        small_model(&model, algo);
        assert_int_equal(bed_open(&b, model.data, model.len), GY_OK);
        assert_true(b.t.n_vocab == 6 && b.t.bos == 1 && b.t.eos == 2);
        assert_string_equal(b.t.kind, algo == GY_SPM_BPE ? "SentencePiece BPE" : "SentencePiece unigram");
        bed_encode(&b, "aaazz  a", 8, &ids); /* normalised: _aaazz_a; zz is one unknown */
        const int32_t bpe[] = {5, 4, 3, 0, 5, 3}, unigram[] = {5, 3, 4, 0, 5, 3}; /* as sentencepiece 0.2.3 gives */
        assert_int_equal(ids.len, 6);
        assert_memory_equal(ids.data, algo == GY_SPM_BPE ? bpe : unigram, sizeof bpe);
        size_t len;
        assert_string_equal(b.t.ops->piece(&b.t, 4, &len), "aa");
        assert_int_equal(len, 2);
        assert_null(b.t.ops->piece(&b.t, 6, &len));
        assert_null(b.t.ops->piece(&b.t, -1, &len));
        assert_int_equal(b.t.ops->id(&b.t, "</s>", 4), 2);
        assert_int_equal(b.t.ops->id(&b.t, "zz", 2), -1);
        unsigned flags = 0;
        assert_non_null(gy_added_piece(b.t.added, 1, &len, &flags)); /* controls can be parsed when asked for */
        assert_int_equal(flags, GY_ADDED_SPECIAL);
        assert_null(gy_added_piece(b.t.added, 3, &len, &flags));
        bed_close(&b);
        gy_vec_free(&ids);
        gy_str_free(&model);
    }
}

/* Whole characters come out at once, a broken one when it is known to be broken. */
static void test_stream_bytes(void **state) {
    (void)state;
    bed b;
    bed_open_golden(&b, "spm-bpe");
    gy_str out = {0};
    uint64_t st[4] = {0};
    const unsigned char euro[] = {0xE2, 0x82, 0xAC};
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", euro[i]);
        int32_t id = b.t.ops->id(&b.t, name, 6);
        assert_true(id >= 0);
        assert_int_equal(b.t.ops->detok_push(&b.t, st, id, &b.err, &out), GY_OK);
        assert_int_equal(out.len, i < 2 ? 0 : 3);
    }
    assert_string_equal(out.data, "\xe2\x82\xac");
    int32_t e2 = b.t.ops->id(&b.t, "<0xE2>", 6), x41 = b.t.ops->id(&b.t, "<0x41>", 6);
    assert_int_equal(b.t.ops->detok_push(&b.t, st, e2, &b.err, &out), GY_OK);
    assert_int_equal(out.len, 3);
    assert_int_equal(b.t.ops->detok_push(&b.t, st, x41, &b.err, &out), GY_OK);
    assert_string_equal(out.data, "\xe2\x82\xac\xef\xbf\xbd"
                                  "A");
    assert_int_equal(b.t.ops->detok_push(&b.t, st, e2, &b.err, &out), GY_OK);
    assert_int_equal(b.t.ops->detok_finish(&b.t, st, &b.err, &out), GY_OK);
    assert_string_equal(out.data, "\xe2\x82\xac\xef\xbf\xbd"
                                  "A\xef\xbf\xbd");
    gy_str_free(&out);
    bed_close(&b);
}

/* Ids beyond the model's own are added tokens: their text as it is, and the head of the text is over. */
static void test_decode_added(void **state) {
    (void)state;
    bed b;
    gy_str model = {0}, out = {0};
    small_model(&model, GY_SPM_BPE);
    assert_int_equal(bed_open(&b, model.data, model.len), GY_OK);
    assert_int_equal(gy_added_put(b.t.added, "<|im|>", 6, 6, GY_ADDED_SPECIAL, &b.err), GY_OK);
    const int32_t ids[] = {1, 5, 3, 6, 5, 3, 0, 2};
    bed_decode(&b, ids, 8, 0, &out);
    assert_string_equal(out.data, "a<|im|> a \xe2\x81\x87 ");
    gy_str_free(&out);
    gy_str_free(&model);
    bed_close(&b);
}

static void test_refused(void **state) {
    (void)state;
    gy_str m = {0};
    expect_refused(&m, GY_E_FORMAT, "no pieces");
    gy_str_puts(&m, "<!DOCTYPE html><html><body>404</body></html>");
    expect_refused(&m, GY_E_FORMAT, "not a SentencePiece model");
    gy_str_clear(&m);
    gy_str_puts(&m, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
    expect_refused(&m, GY_E_FORMAT, "not a SentencePiece model");
    static const struct {
        int algo;
        gy_status status;
        const char *part;
    } algos[] = {{3, GY_E_UNSUPPORTED, "model_type is word"},
                 {4, GY_E_UNSUPPORTED, "model_type is char"},
                 {9, GY_E_FORMAT, "model_type: found 9"}};
    for (int i = 0; i < 3; i++) {
        gy_str_clear(&m);
        small_model(&m, algos[i].algo);
        expect_refused(&m, algos[i].status, algos[i].part);
    }
    gy_str_free(&m);
}

static void test_refused_pieces(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t len;
        float score;
        int type;
        const char *part;
    } cases[] = {
        {"a", 1, 0, GY_SPM_NORMAL, "pieces[6] \"a\" is there twice"},
        {"<s>", 3, 0, GY_SPM_NORMAL, "pieces[6] \"<s>\" is there twice"},
        {"", 0, 0, GY_SPM_NORMAL, "pieces[6] is empty"},
        {"x\0y", 3, 0, GY_SPM_NORMAL, "pieces[6] holds a NUL"},
        {"\xff", 1, 0, GY_SPM_NORMAL, "pieces[6] is not valid UTF-8"},
        {"x", 1, 0, 0, "unknown type"},
        {"x", 1, 0, 7, "unknown type"},
        {"<?>", 3, 0, GY_SPM_UNKNOWN, "second unknown piece, beside [0]"},
        {"<0x41>", 6, 0, GY_SPM_BYTE, "byte_fallback is false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gy_str m = {0};
        small_model(&m, GY_SPM_BPE);
        put_piece(&m, cases[i].s, cases[i].len, cases[i].score, cases[i].type);
        expect_refused(&m, GY_E_FORMAT, cases[i].part);
        gy_str_free(&m);
    }
    char *big = malloc(8000);
    memset(big, 'x', 8000);
    gy_str m = {0};
    small_model(&m, GY_SPM_BPE);
    put_piece(&m, big, 8000, 0, GY_SPM_NORMAL);
    expect_refused(&m, GY_E_FORMAT, "8000 bytes or more");
    gy_str_clear(&m);
    small_model(&m, GY_SPM_UNIGRAM);
    put_piece(&m, "n", 1, (float)atof("nan"), GY_SPM_NORMAL);
    expect_refused(&m, GY_E_FORMAT, "not finite");
    gy_str_clear(&m);
    put_piece(&m, "a", 1, 0, GY_SPM_NORMAL);
    expect_refused(&m, GY_E_FORMAT, "no piece is of type unknown");
    gy_str_free(&m);
    free(big);
}

static void test_refused_specs(void **state) {
    (void)state;
    gy_str spec = {0}, m = {0};
    small_model(&m, GY_SPM_BPE);
    put_int(&spec, 35, 1);
    put_bytes(&m, 2, spec.data, spec.len);
    expect_refused(&m, GY_E_FORMAT, "byte piece <0x00> is missing");
    gy_str_clear(&m);
    gy_str_clear(&spec);
    small_model(&m, GY_SPM_BPE);
    put_bytes(&spec, 2, "xxxx", 4);
    put_bytes(&m, 5, spec.data, spec.len);
    expect_refused(&m, GY_E_UNSUPPORTED, "denormalizer_spec.precompiled_charsmap");
    gy_str_clear(&m);
    small_model(&m, GY_SPM_BPE);
    put_bytes(&m, 3, spec.data, spec.len);
    expect_refused(&m, GY_E_FORMAT, "precompiled_charsmap: found 4 bytes");
    gy_str_clear(&m);
    gy_str_clear(&spec);
    small_model(&m, GY_SPM_BPE);
    put_bytes(&spec, 3, "x", 1);
    put_bytes(&m, 3, spec.data, spec.len);
    expect_refused(&m, GY_E_FORMAT, "add_dummy_prefix: found bytes, expected a varint");
    gy_str_clear(&m);
    small_model(&m, GY_SPM_BPE);
    put_int(&m, 2, 7);
    expect_refused(&m, GY_E_FORMAT, "trainer_spec: found a varint, expected bytes");
    gy_str_free(&m);
    gy_str_free(&spec);
}

/* A charsmap with one damaged unit is refused or harmless: 2,000 of them, and each kind of damage at least once. */
static void test_charsmap_damage(void **state) {
    (void)state;
    gy_str data = {0};
    gy_err err;
    assert_int_equal(gy_file_read(GOLDEN "spm-unigram/tokenizer.model", 64u << 20, &err, &data), GY_OK);
    gy_spm whole = {0};
    assert_int_equal(gy_spm_load(&whole, data.data, data.len, "m", &err), GY_OK);
    size_t trie = whole.map.n_unit * 4, len = 4 + trie + whole.map.n_text;
    assert_true(whole.map.n_unit > 1000);
    char *blob = malloc(len);
    gy_spm_scratch scratch = {0};
    int refused = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t r[4];
        gy_rand_block(1, 0, i, GY_RAND_TEST, 0, r);
        for (int k = 0; k < 4; k++) blob[k] = (char)(trie >> (8 * k));
        for (size_t k = 0; k < trie; k++) blob[4 + k] = (char)(whole.map.unit[k / 4] >> (8 * (k % 4)));
        memcpy(blob + 4 + trie, whole.map.text, whole.map.n_text);
        blob[4 + r[0] % trie] = (char)r[1];
        gy_spm damaged = whole;
        memset(&damaged.map, 0, sizeof damaged.map);
        if (gy_spm_charsmap_load(&damaged.map, blob, len, &err) < 0) {
            refused++;
        } else {
            static const char text[] = "\xef\xbc\xa1\xc2\xbd  e\xcc\x81 \xe3\x8d\xbf";
            assert_int_equal(gy_spm_normalize(&damaged, &scratch, text, sizeof text - 1, &err), GY_OK);
        }
        gy_spm_charsmap_fini(&damaged.map);
    }
    assert_true(refused > 20 && refused < 1990);
    assert_int_equal(gy_spm_charsmap_load(&(gy_spm_charsmap){0}, blob, 3, &err), GY_E_FORMAT);
    gy_str_free(&scratch.norm);
    free(blob);
    gy_spm_fini(&whole);
    gy_str_free(&data);
}

/* Every prefix of a model is refused or opens; nothing is read past its end (ASan) and no memory is lost. */
static void test_truncated(void **state) {
    (void)state;
    gy_str model = {0};
    small_model(&model, GY_SPM_BPE);
    int refused = 0;
    for (size_t n = 0; n < model.len; n++) {
        char *copy = malloc(n + !n);
        memcpy(copy, model.data, n);
        bed b;
        refused += bed_open(&b, copy, n) < 0;
        bed_close(&b);
        free(copy);
    }
    assert_true((size_t)refused > model.len - 10);
    gy_str_free(&model);
}

/* The n-th allocation fails, n rising until all goes well: an error each time, nothing lost (LeakSanitizer). */
static void test_no_memory(void **state) {
    (void)state;
    gy_str data = {0};
    gy_err err;
    assert_int_equal(gy_file_read(GOLDEN "spm-odd-bpe/tokenizer.model", 64u << 20, &err, &data), GY_OK);
    int failures = 0;
    for (int64_t n = 1; n < 100000; n++) {
        bed b = {0};
        gy_vec_i32 ids = {0};
        b.t.added = gy_added_create();
        gy_mem_fail_after(n);
        gy_status st = gy_spm_open(&b.t, data.data, data.len, "m", &b.err);
        b.c.t = &b.t;
        if (st >= 0) st = b.t.ops->scratch_create(&b.t, &b.c.scratch);
        if (st >= 0) st = b.t.ops->encode(&b.c, "abc xxxx \xe2\x82\xac", 12, 1, 0, &b.err, &ids);
        gy_mem_fail_after(0);
        gy_vec_free(&ids);
        bed_close(&b);
        if (st >= 0) break;
        assert_int_equal(st, GY_E_NOMEM);
        failures++;
    }
    assert_true(failures > 15 && failures < 5000);
    gy_str_free(&data);
}

/* ---- growth ---- */

static int64_t steps_of(bed *b, const char *unit, size_t n_bytes) {
    size_t n = strlen(unit);
    gy_str text = {0};
    gy_vec_i32 ids = {0};
    while (text.len + n <= n_bytes) gy_str_append(&text, unit, n);
    bed_encode(b, text.data, text.len, &ids);
    gy_vec_free(&ids);
    gy_str_free(&text);
    return b->c.steps;
}

static void test_growth(void **state) {
    (void)state;
    static const char *const units[] = {"a",   " ",  "a\xcc\x81",           "\xe2\x96\x81", "0", "x", "\xe2\x82\xac",
                                        "ab ", "\n", "the quick brown fox "};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        bed b;
        bed_open_golden(&b, folders[i]);
        for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
            int64_t half = steps_of(&b, units[k], 1u << 19), whole = steps_of(&b, units[k], 1u << 20);
            assert_true(half > 0);
            if ((double)whole > 2.2 * (double)half)
                fail_msg("%s, \"%s\": %lld steps, half of it %lld", folders[i], units[k], (long long)whole,
                         (long long)half);
        }
        bed_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),        cmocka_unit_test(test_wire_fields),
        cmocka_unit_test(test_wire_malformed), cmocka_unit_test(test_model_by_hand),
        cmocka_unit_test(test_stream_bytes),   cmocka_unit_test(test_decode_added),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_refused_pieces),
        cmocka_unit_test(test_refused_specs),  cmocka_unit_test(test_charsmap_damage),
        cmocka_unit_test(test_truncated),      cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
