/* SHA-256 against FIPS 180-4's examples (NIST CSRC, "SHA256.pdf" and the Secure Hash Standard's vectors). */
#include "base_test.h"

#include "base/sha256.h"

static void digest(const void *bytes, size_t n, size_t piece, char hex[65]) {
    gy_sha256 s;
    uint8_t out[32];
    gy_sha256_init(&s);
    for (size_t at = 0; at < n; at += piece)
        gy_sha256_put(&s, (const char *)bytes + at, n - at < piece ? n - at : piece);
    gy_sha256_end(&s, out);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", out[i]);
}

static void known_answers(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstno"
         "pqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 70; piece++) {
            char hex[65];
            digest(cases[i].text, strlen(cases[i].text), piece, hex);
            assert_string_equal(hex, cases[i].hex);
        }
}

static void a_million(void **state) {
    (void)state;
    static char a[1000000];
    memset(a, 'a', sizeof a);
    static const size_t pieces[] = {1, 63, 64, 65, 4096, sizeof a};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char hex[65];
        digest(a, sizeof a, pieces[i], hex);
        assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

/* Where the padding needs a block of its own: lengths about 55, 56, 63, 64. Each differs from the next by one byte. */
static void every_length(void **state) {
    (void)state;
    static const char text[130] = {0};
    char before[65] = "", hex[65], whole[65];
    for (size_t n = 0; n < sizeof text; n++) {
        digest(text, n, 7, hex);
        digest(text, n, 200, whole);
        assert_string_equal(hex, whole);
        assert_string_not_equal(hex, before);
        memcpy(before, hex, sizeof hex);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(a_million),
                                       cmocka_unit_test(every_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
