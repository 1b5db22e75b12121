/* The pieces under the tokenizers: vocabulary, patterns, code point properties and normal forms. Expected matches and
 * classes were measured with PyPI tokenizers 0.23.3 (Oniguruma, Unicode 16). */
#include "tok_test.h"

#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/vocab.h"

/* ---- vocabulary ---- */

static void test_vocab(void **state) {
    (void)state;
    gy_vocab v = {0};
    size_t len = 7;
    assert_int_equal(gy_vocab_get(&v, "a", 1), -1); /* an empty one */
    assert_null(gy_vocab_piece(&v, 0, &len));
    assert_int_equal(gy_vocab_put(&v, "a", 1, 5), 0);
    assert_int_equal(gy_vocab_put(&v, "a", 1, 6), 1); /* one id for a piece */
    assert_int_equal(gy_vocab_put(&v, "b", 1, 5), 1); /* one piece for an id */
    assert_int_equal(gy_vocab_put(&v, "b", 1, -1), 1);
    assert_int_equal(gy_vocab_put(&v, "b", 1, GY_VOCAB_MAX_ID), 1);
    assert_int_equal(gy_vocab_put(&v, "", 0, 0), 0);
    assert_int_equal(gy_vocab_put(&v, "a\0b", 3, 1), 0); /* NUL is a byte like others */
    assert_int_equal(gy_vocab_get(&v, "a\0b", 3), 1);
    assert_int_equal(gy_vocab_get(&v, "a\0c", 3), -1);
    assert_int_equal(gy_vocab_get(&v, "", 0), 0);
    assert_memory_equal(gy_vocab_piece(&v, 1, &len), "a\0b", 4);
    assert_int_equal(len, 3);
    assert_null(gy_vocab_piece(&v, 2, &len)); /* a hole */
    assert_int_equal(v.n_id, 6);
    gy_vocab_fini(&v);
}

static void test_vocab_many(void **state) {
    (void)state;
    gy_vocab v = {0};
    char s[32];
    for (int i = 0; i < 60000; i++) {
        int n = snprintf(s, sizeof(s), "piece %d", i * 7);
        assert_int_equal(gy_vocab_put(&v, s, (size_t)n, 60000 - i), 0);
    }
    for (int i = 0; i < 60000; i++) {
        int n = snprintf(s, sizeof(s), "piece %d", i * 7);
        assert_int_equal(gy_vocab_get(&v, s, (size_t)n), 60000 - i);
        n = snprintf(s, sizeof(s), "piece %d", i * 7 + 1);
        assert_int_equal(gy_vocab_get(&v, s, (size_t)n), -1);
    }
    gy_vocab_fini(&v);
}

/* Pieces whose hash under the first seed (0) begins at the same slot: the table must take another seed and still find
 * all of them. */
static void test_vocab_collisions(void **state) {
    (void)state;
    gy_vocab v = {0};
    GY_VEC(uint32_t) chosen = {0};
    char s[32];
    for (uint32_t i = 0; chosen.len < 400; i++) {
        int n = snprintf(s, sizeof(s), "%u", i);
        if ((gy_bytes_hash(s, (size_t)n, 0) & 0x7FF) == 3) assert_int_equal(gy_vec_push(&chosen, GY_MEM_TEXT, i), 0);
    }
    for (size_t i = 0; i < chosen.len; i++) {
        int n = snprintf(s, sizeof(s), "%u", chosen.data[i]);
        assert_int_equal(gy_vocab_put(&v, s, (size_t)n, (int32_t)i), 0);
    }
    for (size_t i = 0; i < chosen.len; i++) {
        int n = snprintf(s, sizeof(s), "%u", chosen.data[i]);
        assert_int_equal(gy_vocab_get(&v, s, (size_t)n), i);
    }
    assert_int_not_equal(v.seed, 0);
    gy_vec_free(&chosen);
    gy_vocab_fini(&v);
}

/* ---- patterns ---- */

/* All matches, each as "start-end", blank between. */
static void matches(const char *pattern, const char *text, const char *want) {
    gy_regex *r = NULL;
    gy_regex_scratch *s;
    gy_err err = {0};
    gy_str got = {0};
    gy_regex_walk walk = GY_REGEX_WALK_INIT;
    size_t start = 0, end = 0;
    int64_t steps = 0;
    if (gy_regex_create(pattern, strlen(pattern), &err, &r) < 0) fail_msg("%s: %s", pattern, err.msg);
    assert_int_equal(gy_regex_scratch_create(&s), GY_OK);
    while (gy_regex_next(r, s, text, strlen(text), &walk, &steps, &err, &start, &end) == GY_OK)
        gy_str_printf(&got, got.len ? " %zu-%zu" : "%zu-%zu", start, end);
    if (strcmp(gy_str_z(&got), want) != 0) fail_msg("%s on %s: %s, want %s", pattern, text, gy_str_z(&got), want);
    gy_str_free(&got);
    gy_regex_scratch_destroy(s);
    gy_regex_destroy(r);
}

static void test_regex_alike(void **state) {
    (void)state;
    matches("a*", "baac", "0-0 1-3 4-4"); /* no empty match directly behind a match */
    matches("\\s+(?!\\S)|\\s+", "a   b ", "1-3 3-4 5-6");
    matches("(?i:'s|'t)", "'S'\xC5\xBF", "0-2 2-5"); /* long s folds to s */
    matches("(?<=a)b", "abb", "1-2");
    matches("[^\\r\\n]+", "a\rb\n", "0-1 2-3");
    matches("(?<x>a)\\k<x>", "aaa", "0-2");
    matches("a\\z|a\\Z", "a\na\n", "2-3");
    matches("a]|}", "a]}", "0-2 2-3");
    matches("[]a]+", "x]a", "1-3");
    matches("x{|a{1,2}", "x{aaa", "0-2 2-4 4-5");
}

static void test_regex_rewritten(void **state) {
    (void)state;
    matches("^.", "a\nb", "0-1 2-3"); /* lines, always */
    matches(".$", "a\nb", "0-1 2-3");
    matches("(?m)a.", "a\n", "0-2");
    matches("(?m:a.)|.", "a\n", "0-2");
    matches("\\h+", "xAf09 ", "1-5");
    matches("\\v", "\v\n", "0-1");
    matches("a{,2}b", "aaab", "1-4");
    matches("\\u00e9|\\x{61}",
            "\xC3\xA9"
            "a",
            "0-2 2-3");
    matches("\\O", "\n", "0-1");
    matches("\\s", "\xE1\xA0\x8E \xC2\x85", "3-4 4-6"); /* U+180E is no space since Unicode 6.3 */
    matches("[\\S]", "\xE1\xA0\x8E ", "0-3");
    matches("[^\\S\\n]+", " \n\t", "0-1 2-3");
    matches("\\w+", "a\xCC\x81_\xE2\x93\x90\xC2\xBD-", "0-9"); /* marks, circled letters; 1/2 only outside classes */
    matches("[\\w]+", "a\xC2\xBD", "0-1");
    matches("\\b", "a\xCC\x81-", "0-0 3-3");
    matches("\\B", "a\xCC\x81-", "1-1 4-4");
    matches("\\p{^L}", "a1", "1-2");
    matches("[\\P{L}]", "a1", "1-2");
    matches("\\p{Letter}|\\p{Nd}", "a1", "0-1 1-2");
    matches("[[:alpha:][:digit:]]+",
            "-a\xC3\xA9"
            "9-",
            "1-5");
    matches("\\p{Han}", "a\xE4\xB8\x96\xE3\x80\x81", "1-4"); /* the script, not its extensions: no ideographic comma */
}

/* Code points of Unicode 15 and 16, which PCRE2's tables lack. */
static void test_regex_new_code_points(void **state) {
    (void)state;
    matches("\\p{L}", "\xF0\x90\x97\x80", "0-4"); /* U+105C0 Todhri */
    matches("[^\\p{N}]", "\xF0\x9E\x97\xB1", ""); /* U+1E5F1 Ol Onal digit */
    matches("\\P{M}", "\xE0\xA2\x97", "");        /* U+0897 Arabic pepet */
    matches("\\d\\w", "\xF0\x9E\x97\xB1\xE0\xA2\x97", "0-7");
    matches("\\p{Han}", "\xF0\xB1\x8D\x90", "0-4"); /* U+31350, extension H */
}

static void refused(const char *pattern, gy_status want, const char *what) {
    gy_regex *r = NULL;
    gy_err err = {0};
    gy_status st = gy_regex_create(pattern, strlen(pattern), &err, &r);
    if (st != want || !strstr(err.msg, what))
        fail_msg("%s: status %d, \"%s\", want %d, \"%s\"", pattern, st, err.msg, want, what);
    assert_null(r);
}

static void test_regex_refused(void **state) {
    (void)state;
    refused("[a-c&&b]", GY_E_UNSUPPORTED, "&&");
    refused("[[a]b]", GY_E_UNSUPPORTED, "[ inside a class");
    refused("[[:graph:]]", GY_E_UNSUPPORTED, "[ inside a class");
    refused("a{2}+", GY_E_UNSUPPORTED, "{n}+");
    refused("a(?i)b|c", GY_E_UNSUPPORTED, "(?i)");
    refused("(?~a)", GY_E_UNSUPPORTED, "(?");
    refused("(*FAIL)", GY_E_UNSUPPORTED, "(*");
    refused("\\X", GY_E_UNSUPPORTED, "\\X");
    refused("\\Qa\\E", GY_E_UNSUPPORTED, "\\Q");
    refused("[\\W]", GY_E_UNSUPPORTED, "\\W");
    refused("\\p{Script=Han}", GY_E_UNSUPPORTED, "\\p{...}");
    refused("\\p{Nonsense}", GY_E_UNSUPPORTED, "Nonsense");
    refused("\\pL", GY_E_UNSUPPORTED, "\\p");
    refused("\\xe9", GY_E_UNSUPPORTED, "\\x");
    refused("(a", GY_E_UNSUPPORTED, "parenthesis");
    refused("[a", GY_E_UNSUPPORTED, "[ without ]");
    refused("a\\", GY_E_UNSUPPORTED, "\\ at the end");
    refused("\xFF", GY_E_FORMAT, "UTF-8");
    char *big = gy_mem_alloc(GY_MEM_TEXT, 70001, 1);
    memset(big, 'a', 70000);
    refused(big, GY_E_LIMIT, "70000 bytes");
    gy_mem_free(big);
}

/* ---- code points ---- */

static void test_unicode(void **state) {
    (void)state;
    assert_string_equal(gy_uni_category('a'), "Ll");
    assert_string_equal(gy_uni_category(0x105C0), "Lo"); /* Unicode 16 */
    assert_string_equal(gy_uni_category(0x11F5A), "Mn");
    assert_string_equal(gy_uni_category(0x0378), "Cn");
    assert_true(gy_uni_is_space(0x85) && gy_uni_is_space(0x3000) && gy_uni_is_space(0x2028));
    assert_false(gy_uni_is_space(0x200B) || gy_uni_is_space(0x180E) || gy_uni_is_space(0x1F));
    assert_true(gy_uni_is_numeric(0xBD) && gy_uni_is_numeric(0x2163) && gy_uni_is_numeric(0x11DE0));
    assert_false(gy_uni_is_numeric(0x4E00));
    assert_true(gy_uni_is_word('_') && gy_uni_is_word(0x301) && gy_uni_is_word(0x200D) && gy_uni_is_word(0x24D0));
    assert_false(gy_uni_is_word('-') || gy_uni_is_word(0xBD));
    assert_true(gy_uni_is_punct('$') && gy_uni_is_punct('`') && gy_uni_is_punct(0x3002) && gy_uni_is_punct(0x166D));
    assert_false(gy_uni_is_punct(0x20AC) || gy_uni_is_punct(0x61D)); /* euro; punctuation since Unicode 14 */
    gy_str s = {0};
    gy_uni_put_lower(&s, 0x130);
    gy_uni_put_lower(&s, 0x3A3);
    gy_uni_put_lower(&s, 0x1E9E);
    assert_string_equal(gy_str_z(&s), "i\xCC\x87\xCF\x83\xC3\x9F");
    gy_str_free(&s);
    assert_int_equal(gy_uni_space_suffix("a \xE3\x80\x80", 5), 4);
    assert_int_equal(gy_uni_space_prefix("\xC2\xA0\ta", 4), 3);
    assert_int_equal(gy_uni_space_prefix("", 0), 0);
}

static void normal(gy_uni_form form, const char *text, const char *want) {
    gy_str got = {0};
    assert_int_equal(gy_uni_normalize(text, strlen(text), form, NULL, &got), GY_OK);
    assert_string_equal(gy_str_z(&got), want);
    gy_str_free(&got);
}

static void test_normal_forms(void **state) {
    (void)state;
    normal(GY_UNI_NFC, "e\xCC\x81", "\xC3\xA9");
    normal(GY_UNI_NFD, "\xC3\xA9", "e\xCC\x81");
    normal(GY_UNI_NFC, "s\xCC\x87\xCC\xA3", "\xE1\xB9\xA9"); /* dot above, dot below: ordered, composed twice */
    normal(GY_UNI_NFD, "\xE1\xB9\xA9", "s\xCC\xA3\xCC\x87");
    normal(GY_UNI_NFC, "\xE2\x84\xAB", "\xC3\x85");                             /* Angstrom sign */
    normal(GY_UNI_NFC, "\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* U+0958: excluded from composition */
    normal(GY_UNI_NFC, "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"); /* Hangul */
    normal(GY_UNI_NFC, "\xEA\xB0\x81\xE1\x86\xA8", "\xEA\xB0\x81\xE1\x86\xA8"); /* LVT takes no second T */
    normal(GY_UNI_NFKC, "\xEF\xAC\x81\xC2\xBD",
           "fi1\xE2\x81\x84"
           "2");
    normal(GY_UNI_NFKD, "\xEF\xBC\xA1", "A");
    normal(GY_UNI_NFKC, "\xE3\x8B\xBF", "\xE3\x8B\xBF"); /* U+32FF, Unicode 12.1: tokenizers' tables are older */
    normal(GY_UNI_NFC, "a\xE0\xA2\x98\xCC\x81", "a\xE0\xA2\x98\xCC\x81"); /* U+0898 has no class there: it blocks */
    normal(GY_UNI_NFC, "a\xCC\xA1\xCC\x81", "\xC3\xA1\xCC\xA1");          /* a lower class does not */
    normal(GY_UNI_NFC, "a\xCC\x81\xCC\x81", "\xC3\xA1\xCC\x81");
    normal(GY_UNI_NFC, "", "");
}

/* ---- pieces that are bytes ---- */

static void bytes(const char *piece, const char *expected) {
    gy_str s = {0};
    gy_str_puts(&s, "_");
    int ok = gy_tok_piece_bytes(piece, strlen(piece), &s);
    assert_int_equal(ok, expected != NULL);
    assert_string_equal(gy_str_z(&s) + 1, expected ? expected : "");
    gy_str_free(&s);
}

/* Letters after bytes_to_unicode of GPT-2's encoder: 0x0A is U+010A, space U+0120, 0x7F U+0121, 0xA0 U+0142, 0xAD
 * U+0143. */
static void test_byte_pieces(void **state) {
    (void)state;
    bytes("<0x41>", "A");
    bytes("<0xE2>", "\xE2");
    bytes("<0xe2>", "<0xe2>"); /* no byte in SentencePiece's spelling: six letters of a byte-level one */
    bytes("\xC4\xA0\xC4\x8A", " \n");
    bytes("\xC4\xA1\xC5\x82\xC5\x83", "\x7F\xA0\xAD");
    bytes("\xC3\xA2\xC4\xA3", "\xE2\x81");
    bytes("a\xC5\x84", NULL); /* U+0144: behind the last letter */
    bytes("a b", NULL);
    bytes("\xE2\x96\x81x", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_vocab_many),
        cmocka_unit_test(test_vocab_collisions),
        cmocka_unit_test(test_regex_alike),
        cmocka_unit_test(test_regex_rewritten),
        cmocka_unit_test(test_regex_new_code_points),
        cmocka_unit_test(test_regex_refused),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_byte_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
