/* Sources of grammars and texts under them: the first byte picks the language, the rest up to a line "%%" is the
 * source, what follows is fed in pieces. Nothing crashes; what compiles has a way to an end; masks agree with
 * accepting.
 */
#include "base/mem.h"
#include "base/str.h"
#include "sample/grammar.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKEN = 256 + 6 };

static gy_grammar_vocab *vocab_make(void) {
    static char bytes[256];
    static const char *const more[] = {"\":", "\"}", "]}", "\xC3\xA9", "aa", "1,"};
    gy_grammar_token tokens[N_TOKEN];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (gy_grammar_token){&bytes[i], 1, 0};
    }
    for (int i = 0; i < 6; i++) tokens[256 + i] = (gy_grammar_token){more[i], strlen(more[i]), 0};
    gy_grammar_vocab *v = NULL;
    GY_CHECK(gy_grammar_vocab_create(tokens, N_TOKEN, NULL, 0, NULL, &v) == GY_OK);
    return v;
}

static void mask_check(gy_grammar_runner *r, const gy_grammar *g, const gy_grammar_state *s) {
    uint32_t mask[(N_TOKEN + 31) / 32];
    gy_status st = gy_grammar_mask(r, g, s, mask, NULL);
    GY_CHECK(st == GY_OK || gy_grammar_is_complete(s)); /* every byte is a token, and there is no eos */
    for (int i = 0; i < 256; i++) {
        gy_grammar_state copy = *s;
        char c = (char)i;
        int can = gy_grammar_accept(r, g, &copy, &c, 1, NULL) == GY_OK;
        GY_CHECK(can == (int)(mask[i / 32] >> (i % 32) & 1));
    }
}

static void text_run(const gy_grammar *g, const uint8_t *text, size_t len) {
    gy_grammar_vocab *v = vocab_make();
    gy_grammar_runner *r = NULL;
    GY_CHECK(gy_grammar_runner_create(v, 1 << 16, &r) == GY_OK);
    gy_grammar_state s;
    gy_grammar_start(g, &s);
    mask_check(r, g, &s);
    for (size_t i = 0; i < len && i < 256;) {
        size_t n = 1 + text[i] % 3;
        if (n > len - i) n = len - i;
        if (gy_grammar_accept(r, g, &s, (const char *)text + i, n, NULL) == GY_OK && i % 4 == 0) mask_check(r, g, &s);
        i += n;
    }
    gy_grammar_runner_destroy(r);
    gy_grammar_vocab_destroy(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    static const char kinds[] = "rsoe";
    const char *kind = memchr(kinds, data[0], 4);
    if (!kind) return 0;
    const uint8_t *cut = memmem(data, size, "\n%%\n", 4);
    size_t len = cut ? (size_t)(cut - data) - 1 : size - 1;
    gy_err err = {0};
    gy_grammar *g = NULL;
    gy_status st = gy_grammar_compile((gy_grammar_kind)(kind - kinds), (const char *)data + 1, len, &err, &g);
    if (st == GY_OK)
        text_run(g, cut ? cut + 4 : NULL, cut ? size - len - 5 : 0);
    else
        GY_CHECK(!g && err.status == st && err.msg[0] && gy_utf8_valid(err.msg, strlen(err.msg)));
    gy_grammar_put(g);
    return 0;
}
