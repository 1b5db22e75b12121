/* Bodies: every way in which one can be wrong has its status, param and sentence; every form that clients send is
 * taken. Sources of the cases: OpenAI's, vLLM's and llama.cpp's fields and what their users reported
 * (docs/pitfalls.md).
 */
#include "base_test.h"

#include "server/oai_request.h"

#include <math.h>
#include <stdlib.h>

static const char *const served[] = {"ouro-1.4b", "alias"};

static gy_oai_config make_config(void) {
    gy_oai_config c;
    gy_oai_config_default(&c);
    c.models = served;
    c.n_model = 2;
    c.n_vocab = 100;
    c.max_len = 4096;
    c.max_loops = 4;
    return c;
}

static gy_oai_request *take_n(gy_oai_kind kind, const char *body, size_t len) {
    gy_oai_config c = make_config();
    gy_oai_error e = {0};
    gy_oai_request *r = NULL;
    if (gy_oai_request_parse(kind, body, len, &c, &e, &r) < 0) fail_msg("%s: %s", body, e.msg);
    assert_non_null(r);
    return r;
}

static gy_oai_request *take(gy_oai_kind kind, const char *body) {
    return take_n(kind, body, strlen(body));
}

static void refuse_n(gy_oai_kind kind, const gy_oai_config *c, const char *body, size_t len, gy_oai_error *e) {
    gy_oai_request *r = (gy_oai_request *)(uintptr_t)1;
    memset(e, 0, sizeof *e);
    if (gy_oai_request_parse(kind, body, len, c, e, &r) >= 0) fail_msg("taken: %s", body);
    assert_ptr_equal(r, (gy_oai_request *)(uintptr_t)1);
    assert_true(gy_utf8_valid(e->msg, strlen(e->msg)));
}

typedef struct bad {
    gy_oai_kind kind;
    const char *body;
    gy_oai_error_kind error;
    const char *param;
    const char *says; /* part of the sentence */
} bad;

static void check_bad(const bad *b, size_t n) {
    gy_oai_config c = make_config();
    for (size_t i = 0; i < n; i++) {
        gy_oai_error e;
        refuse_n(b[i].kind, &c, b[i].body, strlen(b[i].body), &e);
        if (e.kind != b[i].error || strcmp(e.param, b[i].param) || !strstr(e.msg, b[i].says))
            fail_msg("%s\n  kind %d param '%s' says: %s\n  expected kind %d param '%s' says: %s", b[i].body, e.kind,
                     e.param, e.msg, b[i].error, b[i].param, b[i].says);
    }
}

#define CHECK_BAD(rows) check_bad(rows, sizeof rows / sizeof *rows)
#define P "{\"prompt\":\"x\","
#define U "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
#define BAD GY_OAI_E_BAD_REQUEST
#define NOT GY_OAI_E_UNSUPPORTED
#define C GY_OAI_COMPLETION
#define H GY_OAI_CHAT
#define T GY_OAI_TOKENIZE
#define D GY_OAI_DETOKENIZE
#define A GY_OAI_TEMPLATE

/* ---- bodies that are no object of JSON -------------------------------------------------------------------------- */

static void not_json(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, "", BAD, "", "empty"},
        {C, "   ", BAD, "", "not valid JSON"},
        {C, "prompt", BAD, "", "not valid JSON"},
        {C, "\"text\"", BAD, "", "found a string, expected an object"},
        {H, "[]", BAD, "", "found an array, expected an object"},
        {H, "12", BAD, "", "found an integer, expected an object"},
        {H, "null", BAD, "", "found null, expected an object"},
        {C, "{\"prompt\":\"x\"", BAD, "prompt", "not valid JSON"},
        {C, "{\"prompt\":\"x\"} trailing", BAD, "", "not valid JSON"},
        {C, "\xEF\xBB\xBF{\"prompt\":\"x\"}", BAD, "", "byte order mark"},
        {C, P "\"temperature\":NaN}", BAD, "temperature", "line 1"},
        {C, P "\"temperature\":-Infinity}", BAD, "temperature", "not valid JSON"},
        {C, P "\n \"top_p\" : Infinity}", BAD, "top_p", "line 2"},
        {C, P "\"temperature\":1e999}", BAD, "temperature", "not valid JSON"},
        {C, P "\"seed\":9223372036854775808}", BAD, "seed", "too big"},
        {C, P "\"max_tokens\":1000000000000000000000000000000}", BAD, "max_tokens", "too big"},
        {C, P "\"prompt\":\"y\"}", BAD, "prompt", "duplicate"},
        {C, P "\"logit_bias\":{\"1\":1,\"1\":2}}", BAD, "logit_bias", "duplicate"},
        {C, "{\"model\":\"alias\",\"prompt\":\"a\\ud83d\"}", BAD, "prompt", "Unicode"},
        {H, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ude00\"}],\"n\":1}", BAD, "messages", "Unicode"},
        {C, "{\"prompt\":\"\xff\"}", BAD, "prompt", "unable to decode byte 0xff"},
        {C, "{\"prompt\":\"\xed\xa0\xbd\"}", BAD, "prompt", "unable to decode byte 0xed"},
        {C, "{'prompt':'x'}", BAD, "", "not valid JSON"},
        {C, "{\"prompt\":\"x\",}", BAD, "", "not valid JSON"},
        {C, "{\"prompt\":\"a\nb\"}", BAD, "prompt", "unexpected newline"},
        {C, "{\"pr\\\"ompt\":nope}", BAD, "", "not valid JSON"},
        {C, "{\"\xC3\xA4\":1, \"\xC3\xB6\xC3\xB6\":\"\xE2\x82\xAC\xE2\x82\xAC\", \"top_k\":NaN}", BAD, "top_k",
         "column"},
    };
    CHECK_BAD(rows);
}

static void too_deep(void **state) {
    (void)state;
    gy_oai_config c = make_config();
    gy_oai_error e;
    size_t n = 60000;
    gy_str s = {0};
    gy_str_puts(&s, P "\"response_format\":");
    for (size_t i = 0; i < n; i++) gy_str_putc(&s, '[');
    for (size_t i = 0; i < n; i++) gy_str_putc(&s, ']');
    gy_str_putc(&s, '}');
    refuse_n(C, &c, s.data, s.len, &e);
    assert_int_equal(e.kind, BAD);
    assert_int_equal(e.http, 400);
    assert_non_null(strstr(e.msg, "nested 60001 deep, at most 64"));
    gy_str_free(&s);
}

/* ---- wrong types and values ------------------------------------------------------------------------------------- */

static void wrong_types(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, P "\"temperature\":\"hot\"}", BAD, "temperature",
         "found the string 'hot', expected a number from 0 to 100"},
        {C, P "\"temperature\":true}", BAD, "temperature", "found true"},
        {C, P "\"max_tokens\":\"5\"}", BAD, "max_tokens", "expected an integer"},
        {C, P "\"max_tokens\":5.0}", BAD, "max_tokens", "found 5 (a real number)"},
        {C, P "\"max_tokens\":true}", BAD, "max_tokens", "found true"},
        {C, P "\"stream\":1}", BAD, "stream", "found 1, expected true or false"},
        {C, P "\"stream\":\"true\"}", BAD, "stream", "expected true or false"},
        {C, P "\"ignore_eos\":0}", BAD, "ignore_eos", "expected true or false"},
        {C, P "\"stop\":5}", BAD, "stop", "found 5"},
        {C, P "\"stop\":[5]}", BAD, "stop[0]", "found 5"},
        {C, P "\"logit_bias\":\"1\"}", BAD, "logit_bias", "expected an object"},
        {C, P "\"logprobs\":true}", BAD, "logprobs", "expected an integer from 0 to 20"},
        {H, U "\"logprobs\":3}", BAD, "logprobs", "expected true or false"},
        {H, U "\"tools\":5}", BAD, "tools", "found 5"},
        {H, U "\"response_format\":\"json\"}", BAD, "response_format", "expected an object"},
        {H, U "\"stream\":true,\"stream_options\":1}", BAD, "stream_options", "expected an object"},
        {H, U "\"stream\":true,\"stream_options\":{\"include_usage\":1}}", BAD, "stream_options.include_usage", "true"},
        {H, U "\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"y\"}}", BAD,
         "stream_options.continuous_usage_stats", "true or false"},
        {C, P "\"model\":5}", BAD, "model", "expected a string"},
        {C, P "\"model\":\"a\\u0000b\"}", BAD, "model", "without NUL"},
        {H, U "\"chat_template_kwargs\":[]}", BAD, "chat_template_kwargs", "expected an object"},
        {H, U "\"chat_template_kwargs\":{\"enable_thinking\":1}}", BAD, "chat_template_kwargs.enable_thinking", "true"},
        {C, P "\"seed\":1.5}", BAD, "seed", "expected an integer"},
        {C, P "\"request_id\":7}", BAD, "request_id", "expected a string"},
    };
    CHECK_BAD(rows);
}

static void wrong_values(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, P "\"temperature\":-0.1}", BAD, "temperature", "found -0.1 (a real number), expected a number from 0"},
        {C, P "\"top_p\":0}", BAD, "top_p", "expected a number above 0 to 1"},
        {C, P "\"top_p\":1.01}", BAD, "top_p", "above 0 to 1"},
        {C, P "\"min_p\":1}", BAD, "min_p", "from 0 to below 1"},
        {C, P "\"top_k\":-2}", BAD, "top_k", "from -1"},
        {C, P "\"repetition_penalty\":0}", BAD, "repetition_penalty", "above 0"},
        {C, P "\"frequency_penalty\":2.5}", BAD, "frequency_penalty", "from -2 to 2"},
        {C, P "\"presence_penalty\":-3}", BAD, "presence_penalty", "from -2 to 2"},
        {C, P "\"max_tokens\":-1}", BAD, "max_tokens", "found -1"},
        {C, P "\"max_tokens\":0}", BAD, "max_tokens", "echo"},
        {H, U "\"max_tokens\":0}", BAD, "max_tokens", "found 0"},
        {H, U "\"max_completion_tokens\":0}", BAD, "max_completion_tokens", "from 1"},
        {C, P "\"max_tokens\":5000}", GY_OAI_E_CONTEXT, "max_tokens",
         "found 5000 tokens, expected at most 4096 (context)"},
        {C, P "\"max_tokens\":2147483648}", BAD, "max_tokens", "found 2147483648"},
        {C, P "\"min_tokens\":17}", BAD, "min_tokens", "found 17, expected at most 16 (max_tokens)"},
        {C, P "\"min_tokens\":-1}", BAD, "min_tokens", "found -1"},
        {C, P "\"n\":0}", BAD, "n", "from 1 to 128"},
        {C, P "\"n\":129}", BAD, "n", "from 1 to 128"},
        {C, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"],\"n\":128}", BAD, "n", "at most 1024"},
        {C, P "\"best_of\":5}", NOT, "best_of", "found 5"},
        {C, P "\"best_of\":99999999999}", BAD, "best_of", "99999999999"},
        {C, P "\"logprobs\":21}", BAD, "logprobs", "from 0 to 20"},
        {C, P "\"logprobs\":-1}", BAD, "logprobs", "from 0 to 20"},
        {C, P "\"prompt_logprobs\":21}", BAD, "prompt_logprobs", "from 0 to 20"},
        {H, U "\"logprobs\":true,\"top_logprobs\":21}", BAD, "top_logprobs", "from 0 to 20"},
        {H, U "\"top_logprobs\":2}", BAD, "top_logprobs", "only with logprobs true"},
        {H, U "\"logprobs\":false,\"top_logprobs\":2}", BAD, "top_logprobs", "only with logprobs true"},
        {C, P "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", BAD, "stop",
         "an array of 5, expected a string or at most 4"},
        {C, P "\"stop\":\"\"}", BAD, "stop", "1 to 1024 bytes"},
        {C, P "\"stop\":[\"a\",\"\"]}", BAD, "stop[1]", "1 to 1024 bytes"},
        {C, P "\"stop_token_ids\":[3,100]}", BAD, "stop_token_ids[1]", "found 100, expected an integer from 0 to 99"},
        {C, P "\"stop_token_ids\":[-1]}", BAD, "stop_token_ids[0]", "found -1"},
        {C, P "\"stop_token_ids\":5}", BAD, "stop_token_ids", "array of token ids"},
        {C, P "\"logit_bias\":{\"100\":1}}", BAD, "logit_bias", "from 0 to 99"},
        {C, P "\"logit_bias\":{\"-1\":1}}", BAD, "logit_bias", "no token id"},
        {C, P "\"logit_bias\":{\"01\":1}}", BAD, "logit_bias", "no token id"},
        {C, P "\"logit_bias\":{\"\":1}}", BAD, "logit_bias", "no token id"},
        {C, P "\"logit_bias\":{\"99999999999999999999\":1}}", BAD, "logit_bias", "no token id"},
        {C, P "\"logit_bias\":{\"5\":101}}", BAD, "logit_bias.5", "from -100 to 100"},
        {C, P "\"logit_bias\":{\"5\":true}}", BAD, "logit_bias.5", "found true"},
        {C, P "\"logit_bias\":[[5,1],[5,2]]}", BAD, "logit_bias[1]", "one bias for a token"},
        {C, P "\"logit_bias\":[[5]]}", BAD, "logit_bias[0]", "a pair"},
        {C, P "\"stream_options\":{\"include_usage\":true}}", BAD, "stream_options", "only with stream true"},
        {C, P "\"stream\":true,\"prompt_logprobs\":1}", BAD, "prompt_logprobs", "stream"},
        {C, P "\"cache_salt\":\"\"}", BAD, "cache_salt", "1 to 1024 bytes"},
        {C, P "\"priority\":2147483648}", BAD, "priority", "found 2147483648"},
        {C, P "\"truncate_prompt_tokens\":0}", BAD, "truncate_prompt_tokens", "1 or more"},
        {H, U "\"reasoning_effort\":\"huge\"}", BAD, "reasoning_effort", "none, minimal"},
    };
    CHECK_BAD(rows);
}

static void wrong_depth(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, P "\"exit\":\"soon\"}", BAD, "exit", "found the string 'soon', expected fixed, gate"},
        {C, P "\"exit\":1}", BAD, "exit", "found 1"},
        {C, P "\"exit_threshold\":\"x\"}", BAD, "exit_threshold", "a number"},
        {C, P "\"min_loops\":0}", BAD, "min_loops", "from 1 to 4"},
        {C, P "\"max_loops\":5}", BAD, "max_loops", "from 1 to 4"},
        {C, P "\"min_loops\":3,\"max_loops\":2}", BAD, "min_loops", "at most 2 (max_loops)"},
        {C, P "\"trace\":[]}", BAD, "trace", "an array"},
        {C, P "\"trace\":[4,5]}", BAD, "trace[1]", "from 1 to 4"},
        {C, P "\"exit\":\"gate\",\"trace\":[4]}", BAD, "trace", "only there"},
        {C, P "\"exit\":\"trace\"}", BAD, "trace", "found nothing"},
        {C, P "\"latent_seed\":-1}", BAD, "latent_seed", "found -1"},
        {C, P "\"initial_state\":\"one\"}", BAD, "initial_state", "zero or noise"},
        {C, P "\"initial_state\":\"zero\",\"latent_noise\":true}", BAD, "initial_state", "contradicts"},
        {C, P "\"gates\":\"yes\"}", BAD, "gates", "true or false"},
    };
    CHECK_BAD(rows);
}

/* Understood and not honoured: refused by name, not dropped. */
static void unsupported(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, P "\"suffix\":\"end\"}", NOT, "suffix", "not supported"},
        {C, P "\"use_beam_search\":true}", NOT, "use_beam_search", "only false"},
        {C, P "\"skip_special_tokens\":false}", NOT, "skip_special_tokens", "only true"},
        {C, P "\"bad_words\":[\"x\"]}", NOT, "bad_words", "not supported"},
        {C, P "\"allowed_token_ids\":[1]}", NOT, "allowed_token_ids", "not supported"},
        {C, P "\"prompt_embeds\":\"AAAA\"}", NOT, "prompt_embeds", "not supported"},
        {H, U "\"echo\":true}", NOT, "echo", "only false"},
        {H, U "\"chat_template\":\"{{ 1 }}\"}", NOT, "chat_template", "not supported"},
        {H, U "\"chat_template_kwargs\":{\"chat_template\":\"{% for x in y %}\"}}", NOT, "chat_template_kwargs",
         "never taken from requests"},
        {H, U "\"structured_outputs\":{\"structural_tag\":{}}}", NOT, "structured_outputs", "structural_tag"},
    };
    CHECK_BAD(rows);
}

static void unknown_model(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, P "\"model\":\"gpt-4\"}", GY_OAI_E_MODEL, "model", "the model 'gpt-4' is not served here, 'ouro-1.4b' is"},
        {H, U "\"model\":\"\"}", GY_OAI_E_MODEL, "model", "''"},
        {T, P "\"model\":\"ouro\"}", GY_OAI_E_MODEL, "model", "'ouro'"},
    };
    CHECK_BAD(rows);
    gy_oai_request *r = take(C, P "\"model\":\"alias\"}");
    assert_string_equal(r->model, "alias");
    gy_oai_request_free(r);
    r = take(C, P "\"model\":null}");
    assert_string_equal(r->model, "ouro-1.4b");
    gy_oai_request_free(r);
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static void wrong_prompts(void **state) {
    (void)state;
    static const bad rows[] = {
        {C, "{}", BAD, "prompt", "found nothing"},
        {C, "{\"prompt\":null}", BAD, "prompt", "found nothing"},
        {C, "{\"prompt\":\"\"}", BAD, "prompt", "empty prompt"},
        {C, "{\"prompt\":[]}", BAD, "prompt", "at least one"},
        {C, "{\"prompt\":[\"\"]}", BAD, "prompt[0]", "empty prompt"},
        {C, "{\"prompt\":[\"a\",\"\"]}", BAD, "prompt[1]", "empty prompt"},
        {C, "{\"prompt\":[[]]}", BAD, "prompt[0]", "empty prompt"},
        {C, "{\"prompt\":[[1,2],[]]}", BAD, "prompt[1]", "empty prompt"},
        {C, "{\"prompt\":5}", BAD, "prompt", "found 5"},
        {C, "{\"prompt\":{\"text\":\"x\"}}", BAD, "prompt", "found an object"},
        {C, "{\"prompt\":[1,null]}", BAD, "prompt[1]", "found null"},
        {C, "{\"prompt\":[true]}", BAD, "prompt[0]", "found true"},
        {C, "{\"prompt\":[1.5]}", BAD, "prompt[0]", "found 1.5"},
        {C, "{\"prompt\":[1,[2]]}", BAD, "prompt[1]", "found an array of 1, expected a token id or a string"},
        {C, "{\"prompt\":[1,100]}", BAD, "prompt[1]", "found 100, expected an integer from 0 to 99"},
        {C, "{\"prompt\":[-1]}", BAD, "prompt[0]", "found -1"},
        {C, "{\"prompt\":[[1],[2,4294967297]]}", BAD, "prompt[1][1]", "found 4294967297"},
        {C, "{\"prompt\":[[[1]]]}", BAD, "prompt[0][0]", "found an array of 1"},
        {T, "{\"tokens\":[1]}", BAD, "prompt", "found nothing"},
        {T, "{\"prompt\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", BAD, "prompt", "one of them"},
        {T, "{\"content\":5}", BAD, "content", "content: found 5"},
        {T, "{\"content\":[\"x\",-1]}", BAD, "content[1]", "found -1"},
        {T, "{\"prompt\":\"x\",\"content\":\"x\"}", BAD, "content", "beside prompt, expected one"},
        {T, "{\"messages\":[]}", BAD, "messages", "at least one message"},
        {D, "{}", BAD, "tokens", "found nothing"},
        {D, "{\"tokens\":\"x\"}", BAD, "tokens", "array of token ids"},
        {D, "{\"tokens\":[-1]}", BAD, "tokens[0]", "found -1"},
        {D, "{\"tokens\":[100]}", BAD, "tokens[0]", "found 100"},
        {A, "{\"prompt\":\"x\"}", BAD, "messages", "found nothing"},
    };
    CHECK_BAD(rows);
}

static void too_many_prompts(void **state) {
    (void)state;
    gy_oai_config c = make_config();
    gy_oai_error e;
    gy_str s = {0};
    gy_str_puts(&s, "{\"prompt\":[\"a\"");
    for (int i = 0; i < 256; i++) gy_str_puts(&s, ",\"a\"");
    gy_str_puts(&s, "]}");
    refuse_n(C, &c, s.data, s.len, &e);
    assert_string_equal(e.param, "prompt");
    assert_non_null(strstr(e.msg, "an array of 257, expected at most 256 prompts"));
    gy_str_free(&s);
}

static void assert_text(const gy_oai_seg *s, const char *text) {
    assert_non_null(s->text);
    assert_int_equal(s->n_text, strlen(text));
    assert_memory_equal(s->text, text, s->n_text);
    assert_int_equal(s->n_ids, 0);
}

static void assert_ids(const gy_oai_seg *s, const int32_t *ids, int32_t n) {
    assert_null(s->text);
    assert_int_equal(s->n_ids, n);
    assert_memory_equal(s->ids, ids, (size_t)n * sizeof *ids);
}

static void prompt_forms(void **state) {
    (void)state;
    const int32_t one[] = {1, 2, 3}, two[] = {4};
    gy_oai_request *r = take(C, "{\"prompt\":\"Hi \\ud83d\\ude00\"}");
    assert_int_equal(r->n_prompt, 1);
    assert_text(&r->prompts[0].seg[0], "Hi \xF0\x9F\x98\x80");
    assert_memory_equal(r->run[0].prompt, "Hi \xF0\x9F\x98\x80", r->run[0].n_prompt);
    assert_null(r->run[0].prompt_ids);
    assert_int_equal(r->add_special_tokens, 1);
    gy_oai_request_free(r);

    r = take(C, "{\"prompt\":[\"a\",\"bc\"]}");
    assert_int_equal(r->n_prompt, 2);
    assert_text(&r->prompts[0].seg[0], "a");
    assert_text(&r->prompts[1].seg[0], "bc");
    assert_int_equal(r->run[1].n_prompt, 2);
    gy_oai_request_free(r);

    r = take(C, "{\"prompt\":[1,2,3]}");
    assert_int_equal(r->n_prompt, 1);
    assert_ids(&r->prompts[0].seg[0], one, 3);
    assert_null(r->run[0].prompt);
    assert_int_equal(r->run[0].n_prompt_ids, 3);
    gy_oai_request_free(r);

    r = take(C, "{\"prompt\":[[1,2,3],[4]]}");
    assert_int_equal(r->n_prompt, 2);
    assert_ids(&r->prompts[0].seg[0], one, 3);
    assert_ids(&r->prompts[1].seg[0], two, 1);
    gy_oai_request_free(r);
}

static void mixed_prompts(void **state) {
    (void)state;
    const int32_t one[] = {1, 2, 3}, two[] = {4};
    gy_oai_request *r = take(C, "{\"prompt\":[1,2,3,\"mid\",4,\"\"]}");
    assert_int_equal(r->n_prompt, 1);
    assert_int_equal(r->prompts[0].n_seg, 4);
    assert_ids(&r->prompts[0].seg[0], one, 3);
    assert_text(&r->prompts[0].seg[1], "mid");
    assert_ids(&r->prompts[0].seg[2], two, 1);
    assert_text(&r->prompts[0].seg[3], "");
    assert_null(r->run[0].prompt);
    assert_null(r->run[0].prompt_ids);
    gy_oai_request_free(r);

    r = take(C, "{\"prompt\":[\"a\",[4],[\"b\",4,\"c\"]]}");
    assert_int_equal(r->n_prompt, 3);
    assert_text(&r->prompts[0].seg[0], "a");
    assert_ids(&r->prompts[1].seg[0], two, 1);
    assert_int_equal(r->prompts[2].n_seg, 3);
    assert_ids(&r->prompts[2].seg[1], two, 1);
    gy_oai_request_free(r);
}

/* NUL is text like any other: lengths are carried end to end. */
static void nul_in_prompt(void **state) {
    (void)state;
    gy_oai_request *r = take(C, "{\"prompt\":\"a\\u0000b\",\"stop\":\"\\u0000\"}");
    assert_int_equal(r->run[0].n_prompt, 3);
    assert_memory_equal(r->run[0].prompt, "a\0b", 3);
    assert_int_equal(r->run[0].stop[0].n, 1);
    gy_oai_request_free(r);
}

static void without_tokenizer(void **state) {
    (void)state;
    gy_oai_config c = make_config();
    gy_oai_error e;
    gy_oai_request *r = NULL;
    c.has_tokenizer = 0;
    static const char *const texts[] = {"{\"prompt\":\"x\"}", "{\"prompt\":[\"x\"]}", "{\"prompt\":[1,\"x\"]}",
                                        "{\"prompt\":[1],\"stop\":\"x\"}"};
    for (size_t i = 0; i < 4; i++) {
        refuse_n(C, &c, texts[i], strlen(texts[i]), &e);
        assert_int_equal(e.http, 400);
        assert_non_null(strstr(e.msg, "holds no tokenizer"));
    }
    refuse_n(H, &c, U "\"n\":1}", strlen(U "\"n\":1}"), &e);
    assert_non_null(strstr(e.msg, "holds no tokenizer"));
    assert_int_equal(gy_oai_request_parse(C, "{\"prompt\":[1]}", 14, &c, &e, &r), GY_OK);
    gy_oai_request_free(r);
}

static void tokenize_forms(void **state) {
    (void)state;
    gy_oai_request *r = take(T, "{\"prompt\":\"\",\"return_token_strs\":true}");
    assert_int_equal(r->run[0].n_prompt, 0);
    assert_non_null(r->run[0].prompt);
    assert_int_equal(r->return_token_strs, 1);
    assert_int_equal(r->add_special_tokens, 1);
    gy_oai_request_free(r);
    r = take(T, "{\"content\":\"x\",\"add_special\":false,\"with_pieces\":true,\"parse_special\":false}");
    assert_int_equal(r->add_special_tokens, 0);
    assert_int_equal(r->parse_special, 0);
    assert_int_equal(r->return_token_strs, 1);
    gy_oai_request_free(r);
    r = take(T, U "\"add_generation_prompt\":false}");
    assert_int_equal(r->n_message, 1);
    assert_int_equal(r->add_generation_prompt, 0);
    assert_int_equal(r->add_special_tokens, 0);
    gy_oai_request_free(r);
    r = take(D, "{\"model\":\"alias\",\"tokens\":[5,6],\"skip_special_tokens\":true}");
    assert_int_equal(r->prompts[0].seg[0].n_ids, 2);
    assert_int_equal(r->skip_special, 1);
    gy_oai_request_free(r);
    r = take(D, "{\"tokens\":[]}");
    assert_int_equal(r->prompts[0].seg[0].n_ids, 0);
    gy_oai_request_free(r);
}

/* ---- chat ------------------------------------------------------------------------------------------------------- */

#define MSG(m) "{\"messages\":[" m "]}"

static void wrong_messages(void **state) {
    (void)state;
    static const bad rows[] = {
        {H, "{}", BAD, "messages", "found nothing"},
        {H, "{\"messages\":[]}", BAD, "messages", "at least one message"},
        {H, "{\"messages\":\"hi\"}", BAD, "messages", "found the string 'hi'"},
        {H, "{\"messages\":{}}", BAD, "messages", "found an object"},
        {H, MSG("\"hi\""), BAD, "messages[0]", "expected an object"},
        {H, MSG("{\"content\":\"x\"}"), BAD, "messages[0].role", "found nothing, expected system"},
        {H, MSG("{\"role\":\"bot\",\"content\":\"x\"}"), BAD, "messages[0].role", "'bot'"},
        {H, MSG("{\"role\":\"user\"}"), BAD, "messages[0].content", "found nothing"},
        {H, MSG("{\"role\":\"user\",\"content\":null}"), BAD, "messages[0].content", "found null"},
        {H, MSG("{\"role\":\"assistant\",\"content\":null}"), BAD, "messages[0].content", "found null"},
        {H, MSG("{\"role\":\"user\",\"content\":5}"), BAD, "messages[0].content", "found 5"},
        {H, MSG("{\"role\":\"user\",\"content\":[5]}"), BAD, "messages[0].content[0]", "an object with type"},
        {H, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}"), BAD,
         "messages[0].content[0].type", "'image_url'"},
        {H, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), BAD, "messages[0].content[0].text",
         "nothing"},
        {H, MSG("{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}"), BAD, "messages[0].content[0].type", "nothing"},
        {H, MSG("{\"role\":\"user\",\"content\":\"x\",\"name\":7}"), BAD, "messages[0].name", "found 7"},
        {H, MSG("{\"role\":\"assistant\",\"tool_calls\":{}}"), BAD, "messages[0].tool_calls", "an array"},
        {H, MSG("{\"role\":\"assistant\",\"tool_calls\":[1]}"), BAD, "messages[0].tool_calls[0]", "an object"},
        {H, MSG("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}"), BAD,
         "messages[0].tool_calls[0].function.name", "a string"},
        {H, MSG("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}]}"), BAD,
         "messages[0].tool_calls[0].function.arguments", "found 5"},
        {H, MSG("{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":1}"), BAD, "messages[0].tool_call_id",
         "found 1"},
        {H, U "\"add_generation_prompt\":true,\"continue_final_message\":true}", BAD, "continue_final_message",
         "one of"},
    };
    CHECK_BAD(rows);
}

static void message_forms(void **state) {
    (void)state;
    gy_oai_request *r = take(
        H, MSG("{\"role\":\"system\",\"content\":\"\"},"
               "{\"role\":\"user\",\"name\":\"bob\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
               "\"text\":\"b\"}]},"
               "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"c1\","
               "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"},"
               "{\"role\":\"developer\",\"content\":[]}"));
    assert_int_equal(r->n_message, 5);
    assert_int_equal(r->messages[0].role, GY_OAI_SYSTEM);
    assert_int_equal(r->messages[0].n_content, 0);
    assert_non_null(r->messages[0].content);
    assert_string_equal(r->messages[1].content, "a\nb");
    assert_int_equal(r->messages[1].n_content, 3);
    assert_string_equal(r->messages[1].name, "bob");
    assert_null(r->messages[2].content);
    assert_string_equal(r->messages[2].reasoning, "hm");
    assert_int_equal(gy_jv_len(r->messages[2].tool_calls), 1);
    assert_string_equal(r->messages[3].tool_call_id, "c1");
    assert_int_equal(r->messages[4].n_content, 0);
    assert_int_equal(r->n_prompt, 1);
    assert_null(r->run[0].prompt);
    assert_int_equal(r->add_generation_prompt, 1);
    assert_int_equal(r->add_special_tokens, 0);
    assert_int_equal(r->base.max_tokens, 0);
    gy_oai_request_free(r);
}

static void chat_options(void **state) {
    (void)state;
    gy_oai_request *r = take(H, U "\"continue_final_message\":true,\"max_completion_tokens\":7,\"max_tokens\":9,"
                                  "\"chat_template_kwargs\":{\"enable_thinking\":false,\"k\":1},\"logprobs\":true,"
                                  "\"parallel_tool_calls\":false,\"reasoning_effort\":\"low\"}");
    assert_int_equal(r->add_generation_prompt, 0);
    assert_int_equal(r->base.max_tokens, 7);
    assert_int_equal(r->enable_thinking, 0);
    assert_int_equal(gy_jv_int(gy_jv_get(r->template_kwargs, "k"), 0), 1);
    assert_int_equal(r->logprobs, 0);
    assert_int_equal(r->run[0].logprobs, 0);
    assert_int_equal(r->parallel_tool_calls, 0);
    assert_string_equal(r->reasoning_effort, "low");
    gy_oai_request_free(r);
    r = take(H, U "\"reasoning_effort\":\"none\",\"logprobs\":true,\"top_logprobs\":5}");
    assert_int_equal(r->enable_thinking, 0);
    assert_int_equal(r->run[0].logprobs, 5);
    assert_int_equal(r->parallel_tool_calls, 1);
    gy_oai_request_free(r);
    r = take(H, U "\"n\":2}");
    assert_int_equal(r->enable_thinking, -1);
    assert_int_equal(r->run[0].n, 2);
    assert_true(r->run[0].temperature == 1.0f);
    gy_oai_request_free(r);
}

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{\"type\":\"object\"}}}"

static void wrong_tools(void **state) {
    (void)state;
    static const bad rows[] = {
        {H, U "\"tools\":[]}", BAD, "tools", "at least one tool"},
        {H, U "\"tools\":[1]}", BAD, "tools[0]", "an object"},
        {H, U "\"tools\":[{\"type\":\"retrieval\"}]}", BAD, "tools[0].type", "'retrieval'"},
        {H, U "\"tools\":[{\"type\":\"function\"}]}", BAD, "tools[0].function", "nothing"},
        {H, U "\"tools\":[{\"type\":\"function\",\"function\":{}}]}", BAD, "tools[0].function.name", "1 to 64"},
        {H, U "\"tools\":[" TOOL("a b") "]}", BAD, "tools[0].function.name", "'a b'"},
        {H, U "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":\"x\"}}]}", BAD,
         "tools[0].function.parameters", "JSON schema"},
        {H, U "\"tool_choice\":\"auto\"}", BAD, "tool_choice", "tools beside it"},
        {H, U "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}", BAD, "tool_choice", "tools"},
        {H, U "\"tools\":[" TOOL("f") "],\"tool_choice\":\"maybe\"}", BAD, "tool_choice", "'maybe'"},
        {H, U "\"tools\":[" TOOL("f") "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}", BAD,
         "tool_choice.function.name", "'g'"},
        {H, U "\"tools\":[" TOOL("f") "],\"tool_choice\":{}}", BAD, "tool_choice.type", "nothing"},
    };
    CHECK_BAD(rows);
}

static void tool_forms(void **state) {
    (void)state;
    gy_oai_request *r = take(H, U "\"tools\":[" TOOL("f") "," TOOL("g") "]}");
    assert_int_equal(gy_jv_len(r->tools), 2);
    assert_int_equal(r->tool_choice, GY_OAI_TOOL_AUTO);
    gy_oai_request_free(r);
    r = take(H, U "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}},\"tools\":[" TOOL("g") "]}");
    assert_int_equal(r->tool_choice, GY_OAI_TOOL_NAMED);
    assert_string_equal(r->tool_name, "g");
    gy_oai_request_free(r);
    r = take(H, U "\"tools\":[" TOOL("f") "],\"tool_choice\":\"required\"}");
    assert_int_equal(r->tool_choice, GY_OAI_TOOL_REQUIRED);
    gy_oai_request_free(r);
    r = take(H, U "\"tools\":null,\"tool_choice\":\"none\"}");
    assert_int_equal(r->tool_choice, GY_OAI_TOOL_NONE);
    assert_null(r->tools);
    gy_oai_request_free(r);
}

/* ---- constraints ------------------------------------------------------------------------------------------------ */

static void wrong_constraints(void **state) {
    (void)state;
    static const bad rows[] = {
        {H, U "\"response_format\":{}}", BAD, "response_format.type", "found nothing"},
        {H, U "\"response_format\":{\"type\":\"xml\"}}", BAD, "response_format.type", "'xml'"},
        {H, U "\"response_format\":{\"type\":\"json_schema\"}}", BAD, "response_format.json_schema", "nothing"},
        {H, U "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}}", BAD,
         "response_format.json_schema.schema", "found nothing"},
        {H, U "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":1,\"schema\":{}}}}", BAD,
         "response_format.json_schema.name", "found 1"},
        {H, U "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":[]}}}", BAD,
         "response_format.json_schema.schema", "JSON schema"},
        {C, P "\"guided_regex\":\"\"}", BAD, "guided_regex", "not empty"},
        {C, P "\"guided_regex\":[]}", BAD, "guided_regex", "an array of 0"},
        {C, P "\"grammar\":5}", BAD, "grammar", "found 5"},
        {C, P "\"guided_choice\":[]}", BAD, "guided_choice", "1 to 1024"},
        {C, P "\"guided_choice\":[\"a\",\"\"]}", BAD, "guided_choice[1]", "not empty"},
        {C, P "\"guided_json\":\"{}\"}", BAD, "guided_json", "JSON schema"},
        {C, P "\"guided_regex\":\"a\",\"grammar\":\"b\"}", BAD, "grammar", "second constraint beside guided_regex"},
        {C, P "\"structured_outputs\":{\"regex\":\"a\",\"json\":{}}}", BAD, "structured_outputs.regex",
         "second constraint beside structured_outputs.json"},
        {C, P "\"structured_outputs\":5}", BAD, "structured_outputs", "an object"},
    };
    CHECK_BAD(rows);
}

static void constraint_forms(void **state) {
    (void)state;
    static const struct {
        gy_oai_kind kind;
        const char *body;
        gy_oai_constraint_kind want;
        const char *text;
    } rows[] = {
        {H, U "\"response_format\":{\"type\":\"text\"}}", GY_OAI_FREE, NULL},
        {H, U "\"response_format\":null}", GY_OAI_FREE, NULL},
        {H, U "\"response_format\":{\"type\":\"json_object\"}}", GY_OAI_JSON_OBJECT, NULL},
        {H, U "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"object\"}}}", GY_OAI_JSON_SCHEMA,
         NULL},
        {H,
         U "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":"
           "\"object\"},\"strict\":true}}}",
         GY_OAI_JSON_SCHEMA, NULL},
        {C, P "\"guided_json\":{\"type\":\"string\"}}", GY_OAI_JSON_SCHEMA, NULL},
        {C, P "\"guided_regex\":\"a+\"}", GY_OAI_REGEX, "a+"},
        {C, P "\"regex\":\"a+\"}", GY_OAI_REGEX, "a+"},
        {C, P "\"grammar\":\"root ::= x\"}", GY_OAI_GRAMMAR, "root ::= x"},
        {C, P "\"ebnf\":\"root ::= x\"}", GY_OAI_GRAMMAR, "root ::= x"},
        {C, P "\"guided_choice\":[\"a\",\"b\"]}", GY_OAI_CHOICE, NULL},
        {C, P "\"structured_outputs\":{\"regex\":\"b\"}}", GY_OAI_REGEX, "b"},
        {C, P "\"structured_outputs\":{\"json_object\":true}}", GY_OAI_JSON_OBJECT, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gy_oai_request *r = take(rows[i].kind, rows[i].body);
        assert_int_equal(r->constraint.kind, rows[i].want);
        if (rows[i].text) assert_string_equal(r->constraint.text, rows[i].text);
        if (rows[i].want == GY_OAI_JSON_SCHEMA) assert_int_equal(gy_jv_type(r->constraint.schema), GY_J_OBJECT);
        if (rows[i].want == GY_OAI_CHOICE) assert_int_equal(gy_jv_len(r->constraint.list), 2);
        gy_oai_request_free(r);
    }
}

/* ---- sampling, depth, the rest ---------------------------------------------------------------------------------- */

static void all_values_arrive(void **state) {
    (void)state;
    gy_oai_request *r = take(
        C,
        P "\"max_tokens\":32,\"min_tokens\":2,\"n\":3,\"best_of\":3,\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,"
          "\"top_k\":7,\"seed\":-5,\"repetition_penalty\":1.5,\"frequency_penalty\":-0.5,\"presence_penalty\":2,"
          "\"logit_bias\":{\"3\":-100,\"99\":1.5,\"0\":false},\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[4,5],"
          "\"ignore_eos\":true,\"include_stop_str_in_output\":true,\"exit\":\"gate\",\"exit_threshold\":0.75,"
          "\"min_loops\":2,\"max_loops\":3,\"exit_on_prompt\":true,\"gates\":true,\"latent_noise\":true,"
          "\"initial_state\":\"noise\",\"latent_seed\":77,\"cache_salt\":\"t1\",\"priority\":-3,\"cache_prompt\":false,"
          "\"logprobs\":4,\"prompt_logprobs\":6,\"return_token_ids\":true,\"return_tokens_as_token_ids\":true,"
          "\"request_id\":\"abc\",\"truncate_prompt_tokens\":9,\"add_special_tokens\":false}");
    const gyre_request *q = &r->run[0];
    assert_int_equal(q->max_tokens, 32);
    assert_int_equal(q->min_tokens, 2);
    assert_int_equal(q->n, 3);
    assert_true(q->temperature == 0.5f && q->top_p == 0.25f && q->min_p == 0.125f);
    assert_int_equal(q->top_k, 7);
    assert_int_equal(q->has_seed, 1);
    assert_true(q->seed == (uint64_t)-5);
    assert_true(q->repetition_penalty == 1.5f && q->frequency_penalty == -0.5f && q->presence_penalty == 2.0f);
    assert_int_equal(q->n_bias, 3);
    for (int i = 0; i < 3; i++)
        assert_true(q->bias[i].bias == (q->bias[i].id == 3 ? -100.0f : q->bias[i].id == 99 ? 1.5f : -100.0f));
    assert_int_equal(q->n_stop, 2);
    assert_memory_equal(q->stop[1].s, "bc", 2);
    assert_int_equal(q->n_stop_ids, 2);
    assert_int_equal(q->stop_ids[1], 5);
    assert_true(q->ignore_eos && r->include_stop && q->exit_on_prompt && q->want_gates && q->latent_noise);
    assert_string_equal(q->exit, "gate");
    assert_true(q->exit_threshold == 0.75);
    assert_int_equal(q->min_loops, 2);
    assert_int_equal(q->max_loops, 3);
    assert_true(q->latent_seed == 77);
    assert_memory_equal(q->cache_salt, "t1", 2);
    assert_int_equal(q->n_cache_salt, 2);
    assert_int_equal(q->priority, -3);
    assert_int_equal(q->no_cache, 1);
    assert_int_equal(q->logprobs, 4);
    assert_int_equal(q->prompt_logprobs, 6);
    assert_true(r->return_token_ids && r->tokens_as_ids);
    assert_string_equal(r->request_id, "abc");
    assert_int_equal(r->truncate_prompt, 9);
    assert_int_equal(r->add_special_tokens, 0);
    assert_int_equal(r->n_unknown, 0);
    assert_int_equal(q->size, sizeof *q);
    gy_oai_request_free(r);
}

static void defaults(void **state) {
    (void)state;
    gy_oai_request *r = take(C, "{\"prompt\":\"x\"}");
    const gyre_request *q = &r->run[0];
    assert_int_equal(q->max_tokens, 16);
    assert_true(q->temperature == 1.0f && q->top_p == 1.0f && q->min_p == 0.0f && q->repetition_penalty == 1.0f);
    assert_int_equal(q->has_seed, 0);
    assert_int_equal(q->logprobs, -1);
    assert_int_equal(q->prompt_logprobs, -1);
    assert_string_equal(q->exit, "fixed");
    assert_true(isnan(q->exit_threshold));
    assert_int_equal(r->stream, 0);
    gy_oai_request_free(r);
    r = take(C, P "\"seed\":-1}");
    assert_int_equal(r->run[0].has_seed, 0);
    gy_oai_request_free(r);
    r = take(C, P "\"seed\":9223372036854775807,\"max_tokens\":4096,\"top_k\":-1,\"temperature\":0,\"trace\":[4,1,2]}");
    assert_true(r->run[0].seed == INT64_MAX);
    assert_int_equal(r->run[0].top_k, 0);
    assert_true(r->run[0].temperature == 0.0f);
    assert_string_equal(r->run[0].exit, "trace");
    assert_int_equal(r->run[0].trace[2], 2);
    gy_oai_request_free(r);
}

/* Rounding to float must not leave the range that was checked: the engine would refuse it. */
static void narrowing(void **state) {
    (void)state;
    gy_oai_request *r = take(C, P "\"top_p\":1e-300,\"min_p\":0.99999999999,\"repetition_penalty\":1e-300}");
    assert_true(r->run[0].top_p > 0 && r->run[0].min_p < 1 && r->run[0].repetition_penalty > 0);
    gy_oai_request_free(r);
}

static void null_is_absent(void **state) {
    (void)state;
    static const char *const names[] = {"model",
                                        "max_tokens",
                                        "min_tokens",
                                        "n",
                                        "best_of",
                                        "temperature",
                                        "top_p",
                                        "min_p",
                                        "top_k",
                                        "seed",
                                        "repetition_penalty",
                                        "frequency_penalty",
                                        "presence_penalty",
                                        "logit_bias",
                                        "stop",
                                        "stop_token_ids",
                                        "ignore_eos",
                                        "include_stop_str_in_output",
                                        "exit",
                                        "exit_threshold",
                                        "min_loops",
                                        "max_loops",
                                        "exit_on_prompt",
                                        "trace",
                                        "gates",
                                        "latent_noise",
                                        "initial_state",
                                        "latent_seed",
                                        "cache_salt",
                                        "cache_prompt",
                                        "priority",
                                        "request_id",
                                        "truncate_prompt_tokens",
                                        "stream",
                                        "stream_options",
                                        "echo",
                                        "logprobs",
                                        "prompt_logprobs",
                                        "return_token_ids",
                                        "return_tokens_as_token_ids",
                                        "response_format",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_grammar",
                                        "guided_choice",
                                        "grammar",
                                        "add_special_tokens",
                                        "suffix",
                                        "skip_special_tokens",
                                        "user",
                                        "bad_words",
                                        "allowed_token_ids"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gy_str s = {0};
        gy_str_printf(&s, P "\"%s\":null}", names[i]);
        gy_oai_request *r = take(C, s.data);
        assert_int_equal(r->n_unknown, 0);
        assert_int_equal(r->run[0].max_tokens, 16);
        gy_oai_request_free(r);
        gy_str_free(&s);
    }
}

/* lm-eval: token lists, echo, logprobs, max_tokens 0 or 1. */
static void scoring(void **state) {
    (void)state;
    gy_oai_request *r =
        take(C, "{\"prompt\":[[1,2],[3]],\"echo\":true,\"logprobs\":1,\"max_tokens\":0,\"temperature\":0,"
                "\"seed\":1234}");
    assert_int_equal(r->score_only, 1);
    assert_int_equal(r->run[1].max_tokens, 1);
    assert_int_equal(r->run[1].prompt_logprobs, 1);
    assert_int_equal(r->run[1].logprobs, 1);
    gy_oai_request_free(r);
    r = take(C, "{\"prompt\":[[1,2]],\"echo\":true,\"logprobs\":10,\"max_tokens\":1}");
    assert_int_equal(r->score_only, 0);
    assert_int_equal(r->run[0].prompt_logprobs, 10);
    gy_oai_request_free(r);
    r = take(C, P "\"echo\":true}");
    assert_int_equal(r->run[0].prompt_logprobs, -1);
    gy_oai_request_free(r);
}

static void stream_options(void **state) {
    (void)state;
    gy_oai_request *r =
        take(H, U "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":"
                  "true,\"include_obfuscation\":false}}");
    assert_true(r->stream && r->include_usage && r->continuous_usage);
    gy_oai_request_free(r);
    r = take(H, U "\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}");
    assert_true(!r->include_usage && !r->continuous_usage);
    gy_oai_request_free(r);
    r = take(H, U "\"stream\":false,\"stream_options\":null}");
    assert_int_equal(r->stream, 0);
    gy_oai_request_free(r);
}

/* What newer SDKs send is known and says nothing; what nobody knows is listed. */
static void unknown_fields(void **state) {
    (void)state;
    gy_oai_request *r = take(
        H,
        U "\"audio\":null,\"metadata\":{\"a\":\"b\"},\"modalities\":[\"text\"],\"prediction\":{},\"service_tier\":"
          "\"auto\","
          "\"store\":false,\"user\":\"u\",\"verbosity\":\"low\",\"web_search_options\":{},\"safety_identifier\":\"x\","
          "\"prompt_cache_key\":\"k\",\"prompt_cache_options\":{},\"prompt_cache_retention\":\"24h\",\"moderation\":{},"
          "\"function_call\":\"auto\",\"functions\":[],\"frobnicate\":1,\"gr\\u00fcn\":null}");
    assert_int_equal(r->n_unknown, 2);
    for (int i = 0; i < 2; i++)
        assert_true(!strcmp(r->unknown[i], "frobnicate") || !strcmp(r->unknown[i], "gr\xC3\xBCn"));
    gy_oai_request_free(r);

    gy_str s = {0};
    gy_str_puts(&s, "{\"prompt\":\"x\"");
    for (int i = 0; i < 40; i++) gy_str_printf(&s, ",\"u%d\":0", i);
    gy_str_putc(&s, '}');
    r = take(C, s.data);
    assert_int_equal(r->n_unknown, 40);
    gy_oai_request_free(r);
    gy_str_free(&s);
}

static void names_are_reported_once(void **state) {
    (void)state;
    gy_oai_seen *s = gy_oai_seen_create();
    char name[100];
    assert_int_equal(gy_oai_seen_add(s, "a"), 1);
    assert_int_equal(gy_oai_seen_add(s, "a"), 0);
    assert_int_equal(gy_oai_seen_add(s, "ab"), 1);
    memset(name, 'x', 99);
    name[99] = '\0';
    assert_int_equal(gy_oai_seen_add(s, name), 1);
    assert_int_equal(gy_oai_seen_add(s, name), 0);
    for (int i = 3; i < GY_OAI_MAX_SEEN; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(gy_oai_seen_add(s, name), 1);
    }
    assert_int_equal(gy_oai_seen_add(s, "one more"), 0);
    gy_oai_seen_destroy(s);
    gy_oai_seen_destroy(NULL);
}

static void length_check(void **state) {
    (void)state;
    gy_oai_error e;
    gy_oai_request *r = take(C, P "\"max_tokens\":10}");
    assert_int_equal(gy_oai_request_check_length(r, 90, 100, &e), GY_OK);
    assert_true(gy_oai_request_check_length(r, 91, 100, &e) < 0);
    assert_int_equal(e.kind, GY_OAI_E_CONTEXT);
    assert_string_equal(e.param, "prompt");
    assert_string_equal(e.msg, "prompt: found 91 tokens, with 10 to make that is 101, expected at most 100 (context)");
    assert_true(gy_oai_request_check_length(r, 0, 100, &e) < 0);
    assert_int_equal(e.kind, BAD);
    gy_oai_request_free(r);
    r = take(H, U "\"n\":1}"); /* as many as fit: one must */
    assert_int_equal(gy_oai_request_check_length(r, 99, 100, &e), GY_OK);
    assert_true(gy_oai_request_check_length(r, 100, 100, &e) < 0);
    assert_string_equal(e.param, "messages");
    gy_oai_request_free(r);
}

/* A found value is quoted short, on one line, cut between characters. */
static void found_is_quoted_safely(void **state) {
    (void)state;
    gy_oai_config c = make_config();
    gy_oai_error e;
    const char *body = P "\"exit\":\"0123456789012345678901234567890123456789012345\\n\xE2\x82\xAC\xE2\x82\xAC tail\"}";
    refuse_n(C, &c, body, strlen(body), &e);
    assert_non_null(strstr(e.msg, "found the string '0123456789012345678901234567890123456789012345?...'"));
    assert_null(strchr(e.msg, '\n'));
}

static int64_t allocations_of_parser(const char *body) {
    gy_mem_stats before, after;
    gy_json *doc = NULL;
    gy_err err;
    gy_mem_get_stats(&before);
    assert_int_equal(gy_json_parse(body, strlen(body), NULL, &err, &doc), GY_OK);
    gy_mem_get_stats(&after);
    gy_json_free(doc);
    return after.n_alloc - before.n_alloc;
}

/* Ours only: jansson 2.14 reads past a token whose buffer could not grow. */
static void memory_runs_out(void **state) {
    (void)state;
    gy_str many = {0};
    gy_str_puts(&many, "{\"prompt\":[[1,2],\"x\",[1,\"y\",2],[0");
    for (int i = 0; i < 5000; i++) gy_str_puts(&many, ",7");
    gy_str_puts(&many, "]],\"stop\":[\"a\"],\"logit_bias\":{\"1\":2},\"stop_token_ids\":[1],\"trace\":[4]}");
    const char *bodies[] = {U "\"tools\":[" TOOL("f") "],\"stop\":[\"a\"],\"n\":2}", many.data};
    for (int k = 0; k < 2; k++) {
        gy_oai_config c = make_config();
        int64_t parser = allocations_of_parser(bodies[k]), n = 1;
        int failed = 0;
        for (gy_status st = GY_E_NOMEM; st < 0; n = n == 2 ? 3 + parser : n + 1) {
            gy_oai_error e = {0};
            gy_oai_request *r = NULL;
            gy_mem_fail_after(n);
            st = gy_oai_request_parse(k ? C : H, bodies[k], strlen(bodies[k]), &c, &e, &r);
            gy_mem_fail_after(0);
            gy_oai_request_free(r);
            failed += st < 0;
            if (st < 0) assert_int_equal(e.kind, GY_OAI_E_BUSY);
            assert_true(n < parser + 100);
        }
        assert_true(failed >= 2 + k);
    }
    gy_str_free(&many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_json),
        cmocka_unit_test(too_deep),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(wrong_depth),
        cmocka_unit_test(unsupported),
        cmocka_unit_test(unknown_model),
        cmocka_unit_test(wrong_prompts),
        cmocka_unit_test(too_many_prompts),
        cmocka_unit_test(prompt_forms),
        cmocka_unit_test(mixed_prompts),
        cmocka_unit_test(nul_in_prompt),
        cmocka_unit_test(without_tokenizer),
        cmocka_unit_test(tokenize_forms),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(message_forms),
        cmocka_unit_test(chat_options),
        cmocka_unit_test(wrong_tools),
        cmocka_unit_test(tool_forms),
        cmocka_unit_test(wrong_constraints),
        cmocka_unit_test(constraint_forms),
        cmocka_unit_test(all_values_arrive),
        cmocka_unit_test(defaults),
        cmocka_unit_test(narrowing),
        cmocka_unit_test(null_is_absent),
        cmocka_unit_test(scoring),
        cmocka_unit_test(stream_options),
        cmocka_unit_test(unknown_fields),
        cmocka_unit_test(names_are_reported_once),
        cmocka_unit_test(length_check),
        cmocka_unit_test(found_is_quoted_safely),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
