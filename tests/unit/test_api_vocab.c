/* What grammars think a token stands for, against the decoder: for every kind of tokenizer, the bytes of tokens put
 * together are the text that the decoder makes of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_model.h"
#include "base/mem.h"
#include "base/philox.h"

#define TOKENIZERS GY_SOURCE_DIR "/tests/golden/tokenizers/"

static uint32_t n_drawn;

static uint32_t draw(uint32_t below) {
    uint32_t w[4];
    gy_rand_block(1, 0, 0, GY_RAND_TEST, n_drawn++, w);
    return w[0] % below;
}

static void model_begin(gy_api_model *m, const char *name) {
    char dir[300];
    gy_err err = {0};
    *m = (gy_api_model){.long_id = -1};
    snprintf(dir, sizeof dir, TOKENIZERS "%s", name);
    if (gy_tok_open(dir, &err, &m->tok) < 0) fail_msg("%s", err.msg);
    m->d.n_vocab = gy_tok_n_vocab(m->tok) + 3; /* padded */
}

static int may_begin(const gy_grammar_vocab *v, int32_t id) {
    uint32_t *mask = calloc((size_t)(gy_grammar_vocab_n(v) + 31) / 32, sizeof *mask);
    mask[id / 32] = 1u << (id % 32);
    gy_grammar_vocab_drop_not_first(v, mask);
    int ok = mask[id / 32] != 0;
    free(mask);
    return ok;
}

/* Returns 1 if the bytes were a text. */
static int compare(const gy_api_model *m, const gy_grammar_vocab *v, const char *name) {
    int32_t ids[12];
    size_t n_ids = 1 + draw(12), len;
    gy_str due = {0}, got = {0};
    for (size_t i = 0; i < n_ids;) {
        ids[i] = (int32_t)draw((uint32_t)gy_tok_n_vocab(m->tok));
        if (gy_tok_is_special(m->tok, ids[i]) || (!i && !may_begin(v, ids[i]))) continue;
        i++;
    }
    for (size_t i = 0; i < n_ids; i++) {
        const char *s = gy_grammar_vocab_token(v, ids[i], &len);
        gy_str_append(&got, s, len);
    }
    int is_text = gy_utf8_valid(gy_str_z(&got), got.len);
    assert_int_equal(gy_tok_decode(m->tok, ids, n_ids, 1, NULL, &due), GY_OK);
    if (is_text && (got.len != due.len || memcmp(gy_str_z(&got), gy_str_z(&due), got.len) != 0))
        fail_msg("%s: \"%s\" is decoded to \"%s\"", name, gy_str_z(&got), gy_str_z(&due));
    gy_str_free(&due);
    gy_str_free(&got);
    return is_text;
}

static void tokens_put_together_are_the_text(void **state) {
    (void)state;
    static const char *const names[] = {
        "gpt2",      "huginn",          "llama2",      "llama3",      "smollm2",         "spm-bpe",    "spm-bpe-raw",
        "metaspace", "metaspace-first", "spm-unigram", "spm-odd-bpe", "spm-odd-unigram", "spm-suffix", "spm-rules"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gy_api_model m;
        gy_grammar_vocab *v = NULL;
        gy_err err = {0};
        int n_text = 0;
        model_begin(&m, names[i]);
        if (gy_api_model_vocab(&m, &err, &v) < 0) fail_msg("%s: %s", names[i], err.msg);
        assert_int_equal(gy_grammar_vocab_n(v), m.d.n_vocab);
        for (int k = 0; k < 3000; k++) n_text += compare(&m, v, names[i]);
        assert_true(n_text > 300);
        gy_grammar_vocab_destroy(v);
        gy_tok_close(m.tok);
    }
}

static void special_tokens_have_bytes_and_never_come(void **state) {
    (void)state;
    gy_api_model m;
    gy_grammar_vocab *v = NULL;
    gy_grammar *g = NULL;
    gy_grammar_runner *r = NULL;
    gy_grammar_state s;
    size_t len;
    model_begin(&m, "llama3");
    m.eos[0] = gy_tok_eos(m.tok);
    m.n_eos = 1;
    assert_int_equal(gy_api_model_vocab(&m, NULL, &v), GY_OK);
    uint32_t *mask = calloc((size_t)m.d.n_vocab, sizeof *mask);
    assert_int_equal(gy_grammar_compile(GY_GRAMMAR_REGEX, "[^\\n]*\\n", 9, NULL, &g), GY_OK);
    assert_int_equal(gy_grammar_runner_create(v, 0, &r), GY_OK);
    gy_grammar_start(g, &s);
    assert_int_equal(gy_grammar_mask(r, g, &s, mask, NULL), GY_OK);
    int n_special = 0, n_allowed = 0;
    for (int32_t id = 0; id < m.d.n_vocab; id++) {
        int is_special = gy_tok_is_special(m.tok, id), bit = (int)(mask[id / 32] >> (id % 32) & 1);
        if (is_special) assert_true(gy_grammar_vocab_token(v, id, &len) && len > 0);
        if (is_special || id >= gy_tok_n_vocab(m.tok)) assert_false(bit);
        n_special += is_special;
        n_allowed += bit;
    }
    assert_true(n_special > 0 && n_allowed > 200);
    gy_grammar_runner_destroy(r);
    gy_grammar_put(g);
    gy_grammar_vocab_destroy(v);
    gy_tok_close(m.tok);
    free(mask);
}

static void without_memory(void **state) {
    (void)state;
    gy_api_model m;
    gy_mem_stats before, after;
    model_begin(&m, "spm-bpe");
    gy_mem_get_stats(&before);
    gy_status st = GY_E_NOMEM;
    for (int n = 1; st != GY_OK; n++) {
        gy_grammar_vocab *v = NULL;
        gy_err err = {0};
        gy_mem_fail_after(n);
        st = gy_api_model_vocab(&m, &err, &v);
        gy_mem_fail_after(0);
        if (st != GY_OK) {
            assert_int_equal(st, GY_E_NOMEM);
            assert_non_null(strstr(err.msg, "no memory for"));
            assert_null(v);
        }
        gy_grammar_vocab_destroy(v);
        gy_mem_get_stats(&after);
        for (int t = 0; t < GY_MEM_TAG_COUNT; t++) assert_int_equal(before.live_bytes[t], after.live_bytes[t]);
        assert_true(n < 200);
    }
    gy_tok_close(m.tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_put_together_are_the_text),
        cmocka_unit_test(special_tokens_have_bytes_and_never_come),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
