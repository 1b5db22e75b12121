/* tokenizer.json part by part, on a vocabulary small enough to check by eye; all expected ids come from PyPI tokenizers
 * 0.23.3. Then what must be refused, and tokenizer_config.json around it.
 */
#include "tok_test.h"

#include "base/file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_bpe(void **state) {
    (void)state;
    tok_parts p = {0};
    parts_encode(&p, "abc", 0, "7");
    parts_encode(&p, "aabcbc", 0, "1 7 9");
    parts_encode(&p, "xabx", 0, "0 6 0");
    parts_encode(&p, "xxa", 0, "0 0 1");
    parts_encode(&p, "bcabc", 0, "9 7");
    parts_encode(&p, "", 0, "");
}

static void test_bpe_options(void **state) {
    (void)state;
    tok_parts p = {
        .model = "{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"vocab\":{\"?\":0,\"a\":1},\"merges\":[]}"};
    parts_encode(&p, "xxaxyz", 0, "0 1 0");
    p.model = "{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":1,\"b\":2,\"c\":3,\"ab\":6,\"cab\":10},"
              "\"merges\":[[\"a\",\"b\"]]}";
    p.pre_tokenizer = "{\"type\":\"WhitespaceSplit\"}";
    parts_encode(&p, "cab cabc", 0, "10 3 6 3");
    p = (tok_parts){.model = "{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,"
                             "\"<0xC3>\":2,\"<0xA9>\":3},\"merges\":[]}"};
    parts_encode(&p, "a\xC3\xA9\xC3\xA8", 0, "1 2 3 0"); /* e grave has a byte without a token: unknown as a whole */
    p.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[]}";
    parts_encode(&p, "xax", 0, "1"); /* no unk_token: dropped */
    p.model =
        "{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0,"
        "\"##a\":1,\"##b\":2,\"##b</w>\":3,\"a##\":4,\"a</w>\":5,\"ab</w>\":6,\"##ab</w>\":7},"
        "\"merges\":[\"a ##b</w>\",\"##a ##b</w>\"]}";
    parts_encode(&p, "ab", 0, "6");
    parts_encode(&p, "aab", 0, "0 7");
    parts_encode(&p, "a", 0, "5");
}

static void test_normalizers(void **state) {
    (void)state;
    tok_parts p = {.normalizer = "{\"type\":\"Lowercase\"}"};
    parts_encode(&p, " ABC", 0, "4 7");
    p.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}";
    parts_encode(&p, " abc ", 0, "7 4");
    p.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"}";
    parts_encode(&p, "axc", 0, "8 0 3");
    parts_encode(&p, "", 0, ""); /* nothing is put before nothing */
    p.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"bc\"}";
    parts_encode(&p, "a xxbc ", 0, "1 4 9 9 9 4");
    p.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+|(?=c)\"},\"content\":\"b\"}";
    parts_encode(&p, "a xxbc ", 0, "1 4 2 2 9 4");
    parts_encode(&p, "axc", 0, "7"); /* the empty match directly behind x is none */
    p.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"},{\"type\":\"Replace\",\"pattern\":"
                   "{\"String\":\" \"},\"content\":\"\\u2581\"}]}";
    parts_encode(&p, "A xxBC ", 0, "1 5 0 0 9 5");
    p.normalizer = "{\"type\":\"NFKC\"}";
    parts_encode(&p, "\xEF\xBD\x81\xEF\xBD\x82", 0, "6"); /* full width a b */
}

static void test_split(void **state) {
    (void)state;
    static const char *const want[][2] = {{"Removed", "1 3 3 1"},
                                          {"Isolated", "1 2 3 2 2 3 1"},
                                          {"MergedWithPrevious", "6 3 2 2 3 1"},
                                          {"MergedWithNext", "1 9 2 9 1"},
                                          {"Contiguous", "1 2 3 2 2 3 1"}};
    char json[160];
    tok_parts p = {.pre_tokenizer = json};
    for (size_t i = 0; i < 5; i++) {
        snprintf(json, sizeof(json),
                 "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"%s\",\"invert\":false}",
                 want[i][0]);
        parts_encode(&p, "abcbbca", 0, want[i][1]);
    }
    p.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\",\"invert\":true}";
    parts_encode(&p, "abcbbca", 0, "2 2 2");
    p.pre_tokenizer =
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b|(?<=c)a\"},\"behavior\":\"Removed\",\"invert\":false}";
    parts_encode(&p, "abcbbca", 0, "1 3 3");
}

static void test_pretokenizers(void **state) {
    (void)state;
    tok_parts p = {.pre_tokenizer = "{\"type\":\"Whitespace\"}"};
    parts_encode(&p, " a.bc", 0, "1 0 9");
    p.pre_tokenizer = "{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}";
    parts_encode(&p, "ab a bc", 0, "6 4 1 4 9");
    p.pre_tokenizer =
        "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\",\"split\":true}";
    parts_encode(&p, "ab a bc", 0, "5 6 8 5 9");
    p.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"add_prefix_space\":true}";
    parts_encode(&p, " a.bc", 0, "8 0 9");
    p.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"never\"}";
    parts_encode(&p, "ab a bc", 0, "6 8 5 9");
}

#define TOKEN(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\"" more "}"

static void test_added(void **state) {
    (void)state;
    tok_parts p = {.added = "[" TOKEN(10, "<s>", ",\"special\":true") "," TOKEN(11, "zz", ",\"normalized\":false") "]"};
    parts_encode(&p, "a<s>bzz", GY_TOK_PARSE_SPECIAL, "1 10 2 11");
    parts_encode(&p, "a<s>bzz", 0, "1 0 0 0 2 11");
    p.added = "[" TOKEN(10, "<s>", ",\"lstrip\":true,\"rstrip\":true,\"normalized\":false") "]";
    parts_encode(&p, "a <s> b<s>  <s>c", 0, "1 10 2 10 10 3");
    p.added = "[" TOKEN(10, "zz", ",\"single_word\":true,\"normalized\":false") "]";
    parts_encode(&p, "zz azz zza zz_ -zz", 0, "10 4 1 0 0 4 0 0 1 4 0 0 0 4 0 10");
    p.added = "[" TOKEN(10, "ca", ",\"normalized\":false") "," TOKEN(11, "cabb", ",\"normalized\":false") "]";
    parts_encode(&p, "cabcabbca", 0, "10 2 11 10");
    p.added =
        "[" TOKEN(10, "z", ",\"rstrip\":true,\"normalized\":false") "," TOKEN(11, "  ", ",\"normalized\":false") "]";
    parts_encode(&p, "az   b", 0, "1 10 11 4 2"); /* the stripped spaces are matched once more */
    p.added = "[" TOKEN(10, "<s>", ",\"special\":true") "," TOKEN(11, "s>a", ",\"normalized\":false") "]";
    parts_encode(&p, "<s>a s>a", 0, "0 0 0 1 4 11"); /* a match that stays text has consumed its bytes */
    p.added = "[" TOKEN(10, "ZZ", ",\"normalized\":true") "]";
    p.normalizer = "{\"type\":\"Lowercase\"}";
    parts_encode(&p, "aZZ zz", 0, "1 10 4 10");
}

#define TEMPLATE                                                                                                       \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":"    \
    "{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"e\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":"   \
    "{\"<s>\":{\"ids\":[10,3]},\"e\":{\"ids\":[11]}}}"
#define TWO_ADDED "[" TOKEN(10, "<s>", ",\"special\":true") "," TOKEN(11, "</s>", ",\"special\":true") "]"

static void test_post(void **state) {
    (void)state;
    tok_parts p = {.added = TWO_ADDED, .post_processor = TEMPLATE};
    parts_encode(&p, "ab", GY_TOK_ADD_SPECIAL, "10 3 6 11");
    parts_encode(&p, "", GY_TOK_ADD_SPECIAL, "10 3 11");
    parts_encode(&p, "ab", 0, "6");
    p.post_processor = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE "]}";
    parts_encode(&p, "ab", GY_TOK_ADD_SPECIAL, "10 3 6 11");
    p.post_processor = "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",10],\"sep\":[\"</s>\",11]}";
    parts_encode(&p, "ab", GY_TOK_ADD_SPECIAL, "10 6 11");
}

static void test_refused_parts(void **state) {
    (void)state;
    tok_refused(&(tok_parts){.normalizer = "{\"type\":\"BertNormalizer\"}"}, GY_E_UNSUPPORTED, "normalizer",
                "BertNormalizer");
    tok_refused(
        &(tok_parts){.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]}"},
        GY_E_UNSUPPORTED, "normalizers[1]", "Nmt");
    tok_refused(&(tok_parts){.pre_tokenizer = "{\"type\":\"UnicodeScripts\"}"}, GY_E_UNSUPPORTED, "pre_tokenizer",
                "UnicodeScripts");
    tok_refused(
        &(tok_parts){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Eaten\"}"},
        GY_E_FORMAT, "behavior", "Eaten");
    tok_refused(&(tok_parts){.pre_tokenizer =
                                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Removed\"}"},
                GY_E_UNSUPPORTED, "pre_tokenizer", "&&");
    tok_refused(
        &(tok_parts){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Removed\"}"},
        GY_E_UNSUPPORTED, "pre_tokenizer", "parenthesis");
    tok_refused(&(tok_parts){.decoder = "{\"type\":\"WordPiece\",\"prefix\":\"##\"}"}, GY_E_UNSUPPORTED, "decoder",
                "WordPiece");
    tok_refused(&(tok_parts){.decoder = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"},
                GY_E_UNSUPPORTED, "decoder", "Regex");
    tok_refused(&(tok_parts){.post_processor = "{\"type\":\"Other\"}"}, GY_E_UNSUPPORTED, "post_processor", "Other");
    tok_refused(&(tok_parts){.added = TWO_ADDED,
                             .post_processor = "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE "," TEMPLATE "]}"},
                GY_E_UNSUPPORTED, "processors[1]", "more than one");
    tok_refused(&(tok_parts){.post_processor = TEMPLATE}, GY_E_FORMAT, "post_processor", "id 10");
}

static void test_refused_models(void **state) {
    (void)state;
    tok_refused(&(tok_parts){.model = "{\"type\":\"Unigram\",\"vocab\":[]}"}, GY_E_UNSUPPORTED, "model", "Unigram");
    tok_refused(&(tok_parts){.model = "{\"type\":\"WordPiece\",\"vocab\":{}}"}, GY_E_UNSUPPORTED, "model", "WordPiece");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}"},
                GY_E_UNSUPPORTED, "model", "dropout");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}"}, GY_E_FORMAT, "model", "vocab");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"}, GY_E_FORMAT,
                "model", "same id 0");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":16777216},\"merges\":[]}"}, GY_E_FORMAT,
                "model", "id from 0");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}"}, GY_E_FORMAT, "model",
                "id from 0");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}"},
                GY_E_FORMAT, "merges[0]", "\"ab\"");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}"}, GY_E_FORMAT,
                "merges[0]", "\"b\"");
    tok_refused(&(tok_parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}"}, GY_E_FORMAT,
                "merges[0]", "blank");
    tok_refused(&(tok_parts){.model = "[]"}, GY_E_FORMAT, "model", "object");
}

static void test_refused_added(void **state) {
    (void)state;
    tok_refused(&(tok_parts){.added = "[" TOKEN(50, "zz", "") "]"}, GY_E_FORMAT, "added_tokens[0]", "gives it 10");
    tok_refused(&(tok_parts){.added = "[" TOKEN(5, "a", "") "]"}, GY_E_FORMAT, "added_tokens[0]", "gives it 1");
    tok_refused(&(tok_parts){.added = "[" TOKEN(10, "", "") "]"}, GY_E_FORMAT, "added_tokens[0]", "0 bytes");
    tok_refused(&(tok_parts){.added = "[{\"content\":\"x\"}]"}, GY_E_FORMAT, "added_tokens[0]", "id");
    gy_tok *t = NULL;
    gy_err err = {0};
    assert_int_equal(gy_tok_open_json("{\"model\":", 9, "short.json", &err, &t), GY_E_FORMAT);
    assert_non_null(strstr(err.msg, "short.json"));
    assert_int_equal(gy_tok_open_json("", 0, "empty.json", &err, &t), GY_E_FORMAT);
    assert_int_equal(gy_tok_open_json("[1]", 3, "list.json", &err, &t), GY_E_FORMAT);
    assert_null(t);
}

/* An unk_token that is not in the vocabulary matters only when it is needed. */
static void test_unk_missing(void **state) {
    (void)state;
    gy_tok *t;
    gy_tok_ctx *c;
    gy_err err = {0};
    gy_vec_i32 ids = {0};
    tok_parts p = {.model = "{\"type\":\"BPE\",\"unk_token\":\"[U]\",\"vocab\":{\"a\":1},\"merges\":[]}"};
    assert_int_equal(tok_open_parts(&p, &err, &t), GY_OK);
    tok_encodes(t, "aa", 2, 0, "1 1");
    assert_int_equal(gy_tok_ctx_create(t, &c), GY_OK);
    assert_int_equal(gy_vec_push(&ids, GY_MEM_TEXT, 99), 0);
    assert_int_equal(gy_tok_encode(c, "axa", 3, 0, &err, &ids), GY_E_ARG);
    assert_non_null(strstr(err.msg, "[U]"));
    assert_int_equal(ids.len, 1); /* outputs only on success */
    gy_vec_free(&ids);
    gy_tok_ctx_destroy(c);
    gy_tok_close(t);
}

static void test_invalid_utf8(void **state) {
    (void)state;
    gy_tok *t;
    gy_err err = {0};
    tok_parts p = {.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"\\uFFFD\":2},\"merges\":[]}"};
    assert_int_equal(tok_open_parts(&p, &err, &t), GY_OK);
    tok_encodes(t,
                "a\xFF"
                "a",
                3, 0, "1 2 1");
    tok_encodes(t,
                "\xE2\x96"
                "a\xE2\x96",
                5, 0, "2 1 2"); /* one U+FFFD for a maximal subpart */
    tok_encodes(t, "\xC0\x80", 2, 0, "2 2");
    tok_encodes(t,
                "\xED\xA0\x80"
                "a",
                4, 0, "2 2 2 1"); /* a surrogate */
    gy_tok_close(t);
}

/* ---- folders ---- */

static char *folder_make(void) {
    char *dir = strdup("/tmp/gy_tok_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void file_put(const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void folder_remove(char *dir) {
    static const char *const names[] = {
        "tokenizer.json",          "vocab.json",     "merges.txt", "tokenizer_config.json",
        "special_tokens_map.json", "tokenizer.model"};
    char path[300];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

static gy_tok *folder_open(const char *dir) {
    gy_tok *t = NULL;
    gy_err err = {0};
    if (gy_tok_open(dir, &err, &t) < 0) fail_msg("%s", err.msg);
    return t;
}

static void test_gpt2_files(void **state) {
    (void)state;
    char *dir = folder_make();
    gy_err err = {0};
    gy_tok *t = NULL;
    assert_int_equal(gy_tok_exists(dir), 0);
    assert_int_equal(gy_tok_open(dir, &err, &t), GY_E_IO);
    assert_non_null(strstr(err.msg, "no tokenizer"));
    file_put(dir, "vocab.json", "{\"a\":0,\"b\":1,\"\\u0120\":2,\"\\u0120a\":3,\"ab\":4,\"<|end|>\":5}");
    assert_int_equal(gy_tok_exists(dir), 0);
    file_put(dir, "merges.txt", "#version: 0.2\n\xC4\xA0 a\r\na b\n");
    file_put(dir, "special_tokens_map.json", "{\"eos_token\":{\"content\":\"<|end|>\"}}");
    assert_int_equal(gy_tok_exists(dir), 1);
    t = folder_open(dir);
    assert_string_equal(gy_tok_kind(t), "vocab.json + merges.txt BPE");
    assert_int_equal(gy_tok_n_vocab(t), 6);
    assert_int_equal(gy_tok_bos(t), -1);
    assert_int_equal(gy_tok_eos(t), 5);
    assert_int_equal(gy_tok_is_special(t, 5), 1);
    assert_int_equal(gy_tok_is_special(t, 4), 0);
    tok_encodes(t, "ab ab", 5, 0, "4 3 1");
    tok_encodes(t, "a<|end|>", 8, GY_TOK_PARSE_SPECIAL, "0 5");
    gy_tok_close(t);
    file_put(dir, "tokenizer_config.json",
             "{\"add_prefix_space\":true,\"add_bos_token\":true,\"bos_token\":\"<|end|>\"}");
    t = folder_open(dir);
    tok_encodes(t, "ab", 2, GY_TOK_ADD_SPECIAL, "5 3 1");
    gy_tok_close(t);
    file_put(dir, "merges.txt", "a b c\n");
    assert_int_equal(gy_tok_open(dir, &err, &t), GY_E_FORMAT);
    assert_non_null(strstr(err.msg, "merges.txt"));
    folder_remove(dir);
}

static const char *const JSON_FILE = "{\"version\":\"1.0\",\"added_tokens\":[" TOKEN(
    10, "<s>", ",\"special\":true") "],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":"
                                    "null,\"model\":" TOK_MODEL "}";

static void test_config(void **state) {
    (void)state;
    char *dir = folder_make();
    file_put(dir, "tokenizer.json", JSON_FILE);
    file_put(dir, "tokenizer_config.json",
             "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"[E]\"},\"add_bos_token\":true,\"add_eos_token\":true,"
             "\"added_tokens_decoder\":{\"11\":{\"content\":\"[E]\",\"special\":true},\"12\":{\"content\":\"zz\","
             "\"normalized\":false,\"special\":false}},\"additional_special_tokens\":[\"abc\",\"nowhere\"]}");
    gy_tok *t = folder_open(dir);
    assert_int_equal(gy_tok_bos(t), 10);
    assert_int_equal(gy_tok_eos(t), 11);
    assert_int_equal(gy_tok_n_vocab(t), 13);
    assert_int_equal(gy_tok_id(t, "zz", 2), 12);
    assert_int_equal(gy_tok_id(t, "nowhere", 7), -1);
    assert_int_equal(gy_tok_is_special(t, 7), 1); /* abc */
    size_t len = 0;
    assert_memory_equal(gy_tok_piece(t, 11, &len), "[E]", 4);
    assert_int_equal(len, 3);
    assert_null(gy_tok_piece(t, 13, &len));
    tok_encodes(t, "ab[E]zz", 7, GY_TOK_ADD_SPECIAL | GY_TOK_PARSE_SPECIAL, "10 6 11 12 11");
    tok_encodes(t, "[E]", 3, 0, "0 0 0");
    gy_tok_close(t);
    folder_remove(dir);
}

static void config_refused(const char *config, const char *what) {
    char *dir = folder_make();
    gy_tok *t = NULL;
    gy_err err = {0};
    file_put(dir, "tokenizer.json", JSON_FILE);
    file_put(dir, "tokenizer_config.json", config);
    if (gy_tok_open(dir, &err, &t) >= 0 || !strstr(err.msg, "tokenizer_config.json") || !strstr(err.msg, what))
        fail_msg("%s: message \"%s\", want \"%s\"", config, err.msg, what);
    assert_null(t);
    folder_remove(dir);
}

static void test_config_refused(void **state) {
    (void)state;
    config_refused("{\"bos_token\":\"[B]\"}", "[B]");
    config_refused("{\"bos_token\":7}", "bos_token");
    config_refused("{\"added_tokens_decoder\":{\"x\":{\"content\":\"q\"}}}", "\"x\"");
    config_refused("{\"added_tokens_decoder\":{\"3\":{\"content\":\"q\"}}}", "id 3");
    config_refused("{\"added_tokens_decoder\":{\"12\":{\"content\":\"a\"}}}", "elsewhere");
    config_refused("{", "tokenizer_config.json");
}

/* Opens, encodes and decodes; ids and text go to out. */
static gy_status use_all(const gy_str *json, gy_str *out) {
    gy_tok *t = NULL;
    gy_tok_ctx *c = NULL;
    gy_vec_i32 ids = {0};
    gy_str text = {0};
    gy_err err = {0};
    gy_status st = gy_tok_open_json(gy_str_z(json), json->len, "test.json", &err, &t);
    if (st == GY_OK) st = gy_tok_ctx_create(t, &c);
    if (st == GY_OK) st = gy_tok_encode(c, "ab e\xCC\x81\xCC\xA3 \xFF", 10, GY_TOK_ADD_SPECIAL, &err, &ids);
    if (st == GY_OK) st = gy_tok_decode(t, ids.data, ids.len, 0, &err, &text);
    if (st == GY_OK) {
        for (size_t i = 0; i < ids.len; i++) gy_str_printf(out, "%d ", ids.data[i]);
        gy_str_append(out, gy_str_z(&text), text.len);
    }
    gy_str_free(&text);
    gy_vec_free(&ids);
    gy_tok_ctx_destroy(c);
    gy_tok_close(t);
    return st;
}

/* Each allocation of opening and using a tokenizer fails once: an error or success, never a crash or a leak. */
static void test_no_memory(void **state) {
    (void)state;
    tok_parts p = {.added = TWO_ADDED,
                   .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\","
                                 "\"pattern\":{\"Regex\":\"x\"},\"content\":\"a\"}]}",
                   .pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
                   .post_processor = TEMPLATE,
                   .decoder =
                       "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},"
                       "\"content\":\"-\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"};
    gy_str want = {0}, json = {0};
    gy_mem_stats stats;
    tok_parts_json(&p, &json);
    int64_t used = 1;
    assert_int_equal(use_all(&json, &want), GY_OK);
    /* Failure n hits the n-th allocation, as long as there are that many. A run may survive one (PCRE2's JIT), but then
     * its result is the same. */
    for (int64_t n = 1; n <= used; n++) {
        gy_str got = {0};
        gy_mem_get_stats(&stats);
        int64_t before = stats.n_alloc;
        gy_mem_fail_after(n);
        gy_status st = use_all(&json, &got);
        gy_mem_fail_after(0);
        gy_mem_get_stats(&stats);
        used = stats.n_alloc - before;
        if (st == GY_OK)
            assert_string_equal(gy_str_z(&got), gy_str_z(&want));
        else
            assert_int_equal(st, GY_E_NOMEM);
        gy_str_free(&got);
        assert_int_equal(stats.live_bytes[GY_MEM_TEXT], 0);
        assert_true(n < 20000);
    }
    gy_str_free(&want);
    gy_str_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_bpe_options),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_pretokenizers),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_post),
        cmocka_unit_test(test_refused_parts),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_refused_added),
        cmocka_unit_test(test_unk_missing),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_gpt2_files),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
