/* Grammars in the engine, on tiny models with a made-up vocabulary: every output is a text of its own grammar, whatever
 * the seed, the temperature and the biases are; and it is the same, bit for bit, alone or among others, on one thread
 * or several, with its prompt cached, and preempted before any step. A running engine allocates nothing for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <regex.h>

#include "base/json.h"
#include "base/mem.h"
#include "support/gold.h"

/* ---- the vocabulary ---------------------------------------------------------------------------------------------- */

enum { FIRST_BYTE = 3, FIRST_WORD = FIRST_BYTE + 256 };

static const char *const words[] = {"{\"",  "\":",   "\": ",     " \"",  "\"}",     "\"]",  "true",  "false",
                                    "null", "12",    "34",       "ab",   "ba",      "yes",  "no",    "yesno",
                                    "no!",  "((",    "))",       "()",   ", \"",    ",\"",  "[true", "1]",
                                    "</t",  "hink>", "</think>", ">1",   ">x",      "k>12", "\xC3",  "\xC3\xA4",
                                    " ",    "  ",    "a\"",      "b\":", "\"a\": ", "0.5",  "e1",    "-"};
enum { N_WORD = sizeof words / sizeof *words };

static const char *token_text(int32_t id, size_t *len) {
    static char bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = (char)i;
    *len = 0;
    if (id <= FIRST_BYTE || id >= FIRST_WORD + N_WORD) return ""; /* no NUL */
    *len = id < FIRST_WORD ? 1 : strlen(words[id - FIRST_WORD]);
    return id < FIRST_WORD ? &bytes[id - FIRST_BYTE] : words[id - FIRST_WORD];
}

static gy_grammar_vocab *make_vocab(const gy_model_desc *d) {
    gy_grammar_token *t = calloc((size_t)d->n_vocab, sizeof *t);
    gy_grammar_vocab *v = NULL;
    gy_err err;
    for (int32_t i = 0; i < d->n_vocab; i++) t[i].s = token_text(i, &t[i].len);
    t[FIRST_WORD].flags = GY_GRAMMAR_NOT_FIRST;
    if (gy_grammar_vocab_create(t, d->n_vocab, d->eos, d->n_eos, &err, &v) < 0) fail_msg("%s", err.msg);
    free(t);
    return v;
}

static gy_grammar *must_compile(gy_grammar_kind kind, const char *text) {
    gy_grammar *g = NULL;
    gy_err err;
    if (gy_grammar_compile(kind, text, strlen(text), &err, &g) < 0) fail_msg("%s", err.msg);
    return g;
}

/* ---- what an output must be -------------------------------------------------------------------------------------- */

static int matches(const char *posix, const char *text) {
    regex_t re;
    assert_int_equal(regcomp(&re, posix, REG_EXTENDED | REG_NOSUB), 0);
    int ok = !regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    return ok;
}

static int is_number(const char *text) {
    return matches("^[0-9]{3}-[0-9]{4}$", text);
}
static int is_answer(const char *text) {
    return matches("^(yes|no)+!$", text);
}
static int is_2_to_8(const char *text) {
    return matches("^[ab]{8}$", text); /* goes on as long as it can: ignore_eos */
}
static int is_x(const char *text) {
    return matches("^x{5,30}$", text); /* not before min_tokens */
}

static int is_object(const char *text) {
    gy_json *doc = NULL;
    int ok =
        gy_json_parse(text, strlen(text), NULL, NULL, &doc) == GY_OK && gy_jv_type(gy_json_root(doc)) == GY_J_OBJECT;
    gy_json_free(doc);
    return ok;
}

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":99},\"b\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"maxItems\":2}},"
    "\"required\":[\"a\",\"b\"]}";

static int is_by_schema(const char *text) {
    gy_json *doc = NULL;
    if (gy_json_parse(text, strlen(text), NULL, NULL, &doc) < 0) return 0;
    const gy_jv *o = gy_json_root(doc), *b = gy_jv_get(o, "b");
    int64_t a = gy_jv_int(gy_jv_get(o, "a"), -1);
    int ok = gy_jv_len(o) == 2 && a >= 0 && a <= 99 && gy_jv_type(b) == GY_J_ARRAY && gy_jv_len(b) <= 2;
    for (size_t i = 0; i < gy_jv_len(b); i++) ok &= gy_jv_type(gy_jv_at(b, i)) == GY_J_BOOL;
    gy_json_free(doc);
    return ok;
}

static int is_balanced(const char *text) {
    int open = 0;
    for (; *text; text++) {
        open += *text == '(' ? 1 : *text == ')' ? -1 : 1000;
        if (open < 0 || open >= 1000) return 0;
    }
    return open == 0;
}

static int is_after_thought(const char *text) {
    const char *at = strstr(text, "</think>");
    return at && matches("^[0-9]{2}$", at + 8);
}

static int is_after_sign(const char *text) {
    const char *at = strchr(text, '>');
    return at && matches("^[0-9]{2}$", at + 1);
}

static int is_anything(const char *text) {
    (void)text;
    return 1;
}

typedef struct kind {
    gy_grammar_kind kind;
    const char *source;
    int (*is_good)(const char *text);
} kind;

static const kind kinds[] = {
    {GY_GRAMMAR_REGEX, "\\d{3}-\\d{4}", is_number},
    {GY_GRAMMAR_REGEX, "(yes|no)+!", is_answer},
    {GY_GRAMMAR_JSON_OBJECT, "", is_object},
    {GY_GRAMMAR_JSON_SCHEMA, schema, is_by_schema},
    {GY_GRAMMAR_EBNF, "root ::= \"(\" root \")\" root | \"\"", is_balanced},
    {GY_GRAMMAR_REGEX, "\\d\\d", is_after_thought},
    {GY_GRAMMAR_REGEX, "[ab]{2,8}", is_2_to_8},
    {GY_GRAMMAR_REGEX, "x{2,30}", is_x},
    {GY_GRAMMAR_REGEX, "\\d\\d", is_after_sign},
    {GY_GRAMMAR_REGEX, "", is_anything}, /* no grammar */
};
enum { N = sizeof kinds / sizeof *kinds, N_RESULT = N + 4, MAX_OUT = 40 };

/* ---- the requests ------------------------------------------------------------------------------------------------ */

typedef struct bench {
    gold_setup s;
    gold_env env;
    gy_grammar_vocab *vocab;
    gy_grammar *grammar[N];
    int32_t prompt[N][24];
    gy_logit_bias bias[18];
    gy_request req[N];
    gold_result base[N_RESULT], got[N_RESULT];
} bench;

static int32_t word_id(const char *word) {
    for (int i = 0; i < N_WORD; i++)
        if (!strcmp(words[i], word)) return FIRST_WORD + i;
    fail_msg("no word %s", word);
    return -1;
}

static void make_requests(bench *b) {
    const gy_model_desc *d = &b->env.m->d;
    /* What is forbidden, at the largest bias there is; and what the thought is made of. */
    b->bias[0] = (gy_logit_bias){FIRST_BYTE + 'q', 100};
    b->bias[1] = (gy_logit_bias){d->eos[0], 100};
    static const char *const thought[] = {"</t", "hink>", "</think>", "k>12", ">x", ">1"};
    for (int i = 0; i < 6; i++) b->bias[2 + i] = (gy_logit_bias){word_id(thought[i]), 12};
    static const char letters[] = "</thin";
    for (int i = 0; i < 6; i++) b->bias[8 + i] = (gy_logit_bias){FIRST_BYTE + letters[i], 9};
    for (int i = 0; i < N; i++) {
        gy_request *r = &b->req[i];
        gy_request_default(r, d);
        for (int k = 0; k < 24; k++) b->prompt[i][k] = 3 + (k * 7 + (k < 17 ? 0 : i)) % (d->n_vocab - 3);
        r->prompt = b->prompt[i];
        r->n_prompt = 18 + i % 6;
        r->max_tokens = MAX_OUT;
        r->sample.temperature = i % 3 ? 1.0f + (float)i * 0.2f : 0;
        r->sample.seed = (uint64_t)i;
        r->sample.n_logprobs = 2;
        if (i == N - 1) break;
        b->grammar[i] = must_compile(kinds[i].kind, kinds[i].source);
        r->grammar = b->grammar[i];
        r->vocab = b->vocab;
    }
    b->req[1].sample.bias = b->bias;
    b->req[1].sample.n_bias = 2;
    b->req[3].n = 3;
    b->req[3].sample.temperature = 1.5f;
    b->req[3].sample.repetition_penalty = 1.2f;
    b->req[5].n = 3;
    b->req[5].grammar_after = "</think>";
    b->req[5].n_grammar_after = 8;
    b->req[5].sample.bias = b->bias + 2;
    b->req[5].sample.n_bias = 12;
    b->bias[14] = (gy_logit_bias){word_id(">x"), 100}; /* would go on behind the sign with what is no digit */
    b->bias[15] = (gy_logit_bias){word_id(">1"), 8};
    b->bias[16] = (gy_logit_bias){FIRST_BYTE + '>', 8};
    b->req[8].grammar_after = ">";
    b->req[8].n_grammar_after = 1;
    b->req[8].sample.bias = b->bias + 14;
    b->req[8].sample.n_bias = 3;
    b->req[6].ignore_eos = 1;
    b->req[7].min_tokens = 5;
    if (d->has_gate)
        for (int i = 0; i < N; i += 2) {
            b->req[i].exit.kind = GY_EXIT_GATE;
            b->req[i].exit.threshold = 0.5;
            b->req[i].exit.min_loops = 1;
        }
}

static bench *open_bench(const char *model) {
    bench *b = calloc(1, sizeof *b);
    b->s = (gold_setup){
        .model = model, .backend = "cpu", .act = GY_F32, .n_thread = 1, .max_rows = 64, .max_seqs = 16, .max_len = 64};
    gold_open(&b->s, &b->env);
    b->vocab = make_vocab(&b->env.m->d);
    make_requests(b);
    gold_engine(&b->s, &b->env);
    gold_run(b->env.e, b->req, N, b->base);
    return b;
}

static void close_bench(bench *b) {
    gold_close(&b->env);
    for (int i = 0; i < N; i++) gy_grammar_put(b->grammar[i]);
    gy_grammar_vocab_destroy(b->vocab);
    free(b);
}

static int kind_of(int result) {
    return result < 3 ? result : result < 6 ? 3 : result < 7 ? 4 : result < 10 ? 5 : result - 4;
}

static void text_of(const bench *b, const gold_result *r, char *out) {
    size_t n = 0, len;
    for (int i = 0; i < r->n; i++) {
        if (r->tokens[i] == b->env.m->d.eos[0]) break;
        const char *s = token_text(r->tokens[i], &len);
        memcpy(out + n, s, len);
        n += len;
    }
    out[n] = 0;
}

/* What ended by its length is the beginning of a text. */
static int must_be_good(const bench *b, const gold_result *res) {
    int n_stop = 0;
    for (int k = 0; k < N_RESULT; k++) {
        char text[1024];
        text_of(b, &res[k], text);
        if (res[k].reason == GY_FINISH_ERROR) fail_msg("result %d: %s", k, res[k].error);
        int held = kind_of(k) != N - 1 && kind_of(k) != 5 && kind_of(k) != 8; /* from the first token on */
        if (held && res[k].tokens[0] == FIRST_WORD) fail_msg("result %d begins with what begins no text", k);
        if (res[k].reason != GY_FINISH_STOP) continue;
        n_stop += kind_of(k) != N - 1;
        if (!kinds[kind_of(k)].is_good(text)) fail_msg("%s: result %d is \"%s\"", b->s.model, k, text);
    }
    return n_stop;
}

/* ---- always right ------------------------------------------------------------------------------------------------ */

static void outputs_are_texts_of_their_grammar(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    for (int m = 0; m < 3; m++) {
        bench *b = open_bench(models[m]);
        int n_stop = must_be_good(b, b->base), thoughts = 0;
        for (uint64_t seed = 0; seed < 12; seed++) {
            for (int i = 0; i < N; i++) {
                b->req[i].sample.seed = 100 * seed + (uint64_t)i;
                b->req[i].sample.temperature = (float)(seed % 4) * 1.1f;
                b->req[i].sample.top_k = seed % 3 == 1 ? 5 : 0;
                b->req[i].sample.min_p = seed % 3 == 2 ? 0.1f : 0;
            }
            gold_run(b->env.e, b->req, N, b->got);
            n_stop += must_be_good(b, b->got);
            for (int k = 7; k < 10; k++) thoughts += b->got[k].reason == GY_FINISH_STOP;
        }
        assert_true(n_stop > 60);
        assert_true(thoughts > 6);
        close_bench(b);
    }
}

/* ---- always the same --------------------------------------------------------------------------------------------- */

static void same(const bench *b, const char *what, int first, int n) {
    char diff[256];
    for (int k = first; k < first + n; k++)
        if (gold_diff(&b->base[k], &b->got[k], diff, sizeof diff))
            fail_msg("%s, %s: result %d: %s", b->s.model, what, k, diff);
}

static void guard_from_first_step(void *arg, gy_engine *e, int step, const gold_result *res) {
    (void)arg;
    (void)e;
    (void)res;
    if (step == 0) gy_mem_guard_begin();
}

static void cached(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->prefix_cache = 1;
}
static void serial(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->sched.max_seqs = 2;
    o->sched.min_coda = 2;
    o->sched.no_refill = 1;
    o->mask_bytes = 0;
}

static void alone_or_among_others(void **state) {
    (void)state;
    bench *b = open_bench("ouro-tiny");
    int first[N] = {0};
    for (int i = 1; i < N; i++) first[i] = first[i - 1] + b->req[i - 1].n;
    for (int i = 0; i < N; i++) {
        gold_run(b->env.e, &b->req[i], 1, b->got + first[i]);
        same(b, "alone", first[i], b->req[i].n);
    }
    b->s.patch = cached;
    gold_engine(&b->s, &b->env);
    for (int round = 0; round < 2; round++) {
        gold_run_hooked(b->env.e, b->req, N, b->got, &(gold_hook){.before_step = guard_from_first_step});
        gy_mem_guard_end();
        same(b, "cached", 0, N_RESULT);
    }
    gy_engine_stats st;
    gy_engine_get_stats(b->env.e, &st);
    assert_true(st.prefix.n_hit > 0 && st.mask.n_hit > 0 && st.mask.n_miss > 0);
    b->s.patch = serial;
    gold_engine(&b->s, &b->env);
    gold_run(b->env.e, b->req, N, b->got);
    same(b, "two at a time, no masks kept", 0, N_RESULT);
    close_bench(b);
}

static void on_several_threads(void **state) {
    (void)state;
    bench *b = open_bench("ouro-tiny");
    gold_env one = b->env;
    b->s.n_thread = 3;
    gold_open(&b->s, &b->env);
    gold_engine(&b->s, &b->env);
    for (int round = 0; round < 3; round++) {
        gold_run(b->env.e, b->req, N, b->got);
        same(b, "three threads", 0, N_RESULT);
    }
    gold_close(&b->env);
    b->env = one;
    close_bench(b);
}

typedef struct disturb {
    int at, n_done;
} disturb;

static void preempt_all(void *arg, gy_engine *e, int step, const gold_result *res) {
    disturb *d = arg;
    if (step != d->at) return;
    for (int i = 0, k = 0; i < N; i++)
        for (int c = 0, n = i == 3 || i == 5 ? 3 : 1; c < n; c++, k++)
            d->n_done +=
                gy_engine_preempt(e, res[k].id, c, (step + k) % 2 ? GY_PREEMPT_PARK : GY_PREEMPT_RECOMPUTE) == GY_OK;
}

static void preempted_at_every_step(void **state) {
    (void)state;
#ifdef GY_SANITIZED
    enum { STRIDE = 13 };
#else
    enum { STRIDE = 1 };
#endif
    bench *b = open_bench("ouro-tiny");
    int n_step = 1, n_done = 0;
    for (int at = 0; at < n_step; at += STRIDE) {
        disturb d = {.at = at};
        int n = gold_run_hooked(b->env.e, b->req, N, b->got,
                                &(gold_hook){.before_step = preempt_all, .arg = &d, .unchecked = at % 8});
        if (at == 0) n_step = n;
        n_done += d.n_done;
        char what[40];
        snprintf(what, sizeof what, "preempted before step %d", at);
        same(b, what, 0, N_RESULT);
    }
    gy_engine_stats st;
    gy_engine_get_stats(b->env.e, &st);
    assert_true(n_done > 20 && st.sched.n_restore > 5 && st.sched.n_drop > 5);
    close_bench(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_texts_of_their_grammar),
        cmocka_unit_test(alone_or_among_others),
        cmocka_unit_test(on_several_threads),
        cmocka_unit_test(preempted_at_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
