/* Replies byte for byte as clients read them, and parsed back: streams and bodies of both endpoints, logprobs in both
 * shapes, echo, usage, several prompts and choices, failures. The goldens follow OpenAI's published shapes.
 */
#include "base_test.h"

#include "base/clock.h"
#include "base/json.h"
#include "server/oai_info.h"
#include "server/oai_reply.h"
#include "server/oai_write.h"

#include <math.h>
#include <stdlib.h>

/* ---- a request, a reply and events by hand ---------------------------------------------------------------------- */

static const char *const pieces[] = {"<s>", "Hi",           " you",  "\xF0\x9F", "\x98\x80", "\n\n",
                                     "\"",  "\xE2\x82\xAC", "<eos>", "\xFF",     "\xF0\x9F", "a"};
enum { N_PIECE = sizeof pieces / sizeof *pieces };

static const char *piece(void *user, int32_t id, size_t *n) {
    (void)user;
    if (id < 0 || id >= N_PIECE) return NULL;
    *n = strlen(pieces[id]);
    return pieces[id];
}

typedef struct talk {
    gy_oai_request *q;
    gy_oai_reply *r;
    gy_str out;
    gy_oai_error e;
} talk;

#define BEGIN(kind, body) begin(kind, body)

static talk begin(gy_oai_kind kind, const char *body) {
    static const char *const models[] = {"ouro"};
    talk t = {.q = NULL};
    gy_oai_config c;
    gy_oai_config_default(&c);
    c.models = models;
    c.n_model = 1;
    if (gy_oai_request_parse(kind, body, strlen(body), &c, &t.e, &t.q) < 0) fail_msg("%s", t.e.msg);
    gy_oai_reply_options o = {
        .id = kind == GY_OAI_CHAT ? "chatcmpl-1" : "cmpl-1", .created_s = 1, .fingerprint = "fp_1", .piece = piece};
    assert_int_equal(gy_oai_reply_create(t.q, &o, &t.r), GY_OK);
    return t;
}

static void end(talk *t) {
    gy_oai_reply_destroy(t->r);
    gy_oai_request_free(t->q);
    gy_str_free(&t->out);
}

static gyre_event token_event(int32_t choice, int32_t index, int32_t id, const char *text) {
    return (gyre_event){.kind = GYRE_EVENT_TOKEN,
                        .choice = choice,
                        .index = index,
                        .id = id,
                        .loops = 4,
                        .text = text,
                        .n_text = strlen(text),
                        .logprob = NAN};
}

static gy_status say(talk *t, int32_t prompt, int32_t choice, int32_t index, int32_t id, const char *text) {
    gyre_event ev = token_event(choice, index, id, text);
    return gy_oai_reply_event(t->r, prompt, &ev, NULL, &t->out, &t->e);
}

static gyre_finish plain_finish(gyre_finish_reason reason, int32_t n_output, int32_t n_left) {
    return (gyre_finish){
        .reason = reason, .n_left = n_left, .stop_string = -1, .stop_id = -1, .n_prompt = 9, .n_output = n_output};
}

static gy_status finish_with(talk *t, int32_t prompt, int32_t choice, const char *text, const gyre_finish *f) {
    gyre_event ev = {.kind = GYRE_EVENT_FINISH,
                     .choice = choice,
                     .id = -1,
                     .text = text,
                     .n_text = strlen(text),
                     .logprob = NAN,
                     .finish = f};
    return gy_oai_reply_event(t->r, prompt, &ev, NULL, &t->out, &t->e);
}

static gy_status finish(talk *t, int32_t prompt, int32_t choice, gyre_finish_reason reason, int32_t n_output) {
    gyre_finish f = plain_finish(reason, n_output, 0);
    return finish_with(t, prompt, choice, "", &f);
}

static gy_json *parse(const char *text, size_t n) {
    gy_json *doc = NULL;
    gy_err err;
    if (gy_json_parse(text, n, NULL, &err, &doc) < 0) fail_msg("%s in %.*s", err.msg, (int)n, text);
    return doc;
}

/* Every frame: "data: " JSON LF LF, LF LF nowhere else. Returns how many there are; the last may be [DONE]. */
static int check_frames(const gy_str *s) {
    int n = 0;
    for (const char *p = s->data, *stop = s->data + s->len; p < stop; n++) {
        const char *gap = strstr(p, "\n\n");
        assert_non_null(gap);
        assert_memory_equal(p, "data: ", 6);
        assert_null(memchr(p, '\n', (size_t)(gap - p)));
        if (strncmp(p, "data: [DONE]\n\n", 14) != 0)
            gy_json_free(parse(p + 6, (size_t)(gap - p - 6)));
        else
            assert_ptr_equal(p + 14, stop);
        p = gap + 2;
    }
    return n;
}

#define U "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define P "{\"prompt\":\"x\""
#define CHAT_HEAD "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"ouro\","
#define TEXT_HEAD "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"ouro\","
#define FP "\"system_fingerprint\":\"fp_1\","

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static void chat_stream(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true}");
    const int32_t ids[] = {0, 1};
    assert_int_equal(gy_oai_reply_prompt(t.r, 0, ids, 2, NULL, 0), GY_OK);
    assert_int_equal(t.out.len, 0); /* no role before the first token */
    assert_int_equal(say(&t, 0, 0, 0, 1, "Hi"), GY_OK);
    assert_string_equal(t.out.data,
                        CHAT_HEAD "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                  "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
                                  "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"logprobs\":null,"
                                  "\"finish_reason\":null,\"loops\":[4]}]}\n\n");
    gy_str_clear(&t.out);
    assert_int_equal(say(&t, 0, 0, 1, 3, ""), GY_OK); /* one event a token, also without text */
    assert_string_equal(t.out.data,
                        CHAT_HEAD "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                                  "\"finish_reason\":null,\"loops\":[4]}]}\n\n");
    gy_str_clear(&t.out);
    assert_int_equal(finish(&t, 0, 0, GYRE_FINISH_STOP, 2), GY_DONE);
    assert_string_equal(t.out.data, CHAT_HEAD FP
                        "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
                        "\"stop_reason\":null}]}\n\ndata: [DONE]\n\n");
    gy_str_clear(&t.out);
    assert_int_equal(say(&t, 0, 0, 2, 1, "late"), GY_OK);
    assert_int_equal(t.out.len, 0);
    end(&t);
}

static void completion_stream(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"stream\":true,\"max_tokens\":2}");
    say(&t, 0, 0, 0, 1, "Hi");
    assert_int_equal(finish(&t, 0, 0, GYRE_FINISH_LENGTH, 1), GY_DONE);
    assert_string_equal(t.out.data, TEXT_HEAD
                        "\"choices\":[{\"index\":0,\"text\":\"Hi\",\"logprobs\":null,\"finish_reason\":null,"
                        "\"loops\":[4]}]}\n\n" TEXT_HEAD FP
                        "\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\","
                        "\"stop_reason\":null}]}\n\ndata: [DONE]\n\n");
    end(&t);
}

static void stream_usage(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    say(&t, 0, 0, 0, 1, "Hi");
    gyre_finish f = plain_finish(GYRE_FINISH_STOP, 1, 0);
    f.n_cached = 4;
    finish_with(&t, 0, 0, "", &f);
    const char *last = CHAT_HEAD FP
        "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10,"
        "\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n"
        "data: [DONE]\n\n";
    assert_string_equal(t.out.data + t.out.len - strlen(last), last);
    assert_int_equal(check_frames(&t.out), 5);
    int n = 0; /* every other chunk says null */
    for (const char *p = t.out.data; (p = strstr(p, "}],\"usage\":null}\n\n")); p++) n++;
    assert_int_equal(n, 3);
    end(&t);
}

static void stream_usage_continuous(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                                        "\"continuous_usage_stats\":true}}");
    const int32_t ids[9] = {0};
    gy_oai_reply_prompt(t.r, 0, ids, 9, NULL, 0);
    say(&t, 0, 0, 0, 1, "Hi");
    assert_non_null(
        strstr(t.out.data, "}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}"));
    gy_str_clear(&t.out);
    say(&t, 0, 0, 1, 2, " you");
    assert_non_null(strstr(t.out.data, "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}"));
    finish(&t, 0, 0, GYRE_FINISH_STOP, 2);
    assert_non_null(strstr(t.out.data, "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
                                       "\"total_tokens\":11,\"prompt_tokens_details\":{\"cached_tokens\":0}}}"));
    check_frames(&t.out);
    end(&t);
}

/* Text that contains frame separators, quotes, controls or broken bytes stays inside its line. */
static void hostile_text(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"logprobs\":true}");
    say(&t, 0, 0, 0, 5, "\n\n");
    say(&t, 0, 0, 1, 6, "data: [DONE]\n\n\"\\\x01");
    say(&t, 0, 0, 2, 9, "\xFF\x85\xED\xA0\xBD");
    finish(&t, 0, 0, GYRE_FINISH_STOP, 3);
    assert_true(gy_utf8_valid(t.out.data, t.out.len));
    assert_int_equal(check_frames(&t.out), 6);
    end(&t);
}

/* Choices come as they come; each starts with its role and ends by itself; [DONE] once. */
static void choices_interleave(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"n\":2}");
    say(&t, 0, 1, 0, 1, "b");
    say(&t, 0, 0, 0, 1, "a");
    assert_int_equal(finish(&t, 0, 1, GYRE_FINISH_STOP, 1), GY_OK);
    say(&t, 0, 0, 1, 1, "a");
    assert_int_equal(finish(&t, 0, 0, GYRE_FINISH_LENGTH, 2), GY_DONE);
    static const char *const order[] = {"\"index\":1,\"delta\":{\"role\"",
                                        "\"index\":1,\"delta\":{\"content\":\"b\"}",
                                        "\"index\":0,\"delta\":{\"role\"",
                                        "\"index\":0,\"delta\":{\"content\":\"a\"}",
                                        "\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"",
                                        "\"index\":0,\"delta\":{\"content\":\"a\"}",
                                        "\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"",
                                        "data: [DONE]"};
    const char *p = t.out.data;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        p = strstr(p, order[i]);
        if (!p) fail_msg("no %s in its place", order[i]);
        p++;
    }
    assert_int_equal(check_frames(&t.out), 8);
    end(&t);
}

static void prompts_and_choices_are_numbered(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true}");
    for (int32_t p = 0; p < 2; p++)
        for (int32_t k = 0; k < 2; k++) say(&t, p, k, 0, 1, "x");
    for (int i = 0; i < 4; i++) {
        char want[32];
        snprintf(want, sizeof want, "{\"index\":%d,\"text\":\"x\"", i);
        assert_non_null(strstr(t.out.data, want));
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(finish(&t, i / 2, i % 2, GYRE_FINISH_STOP, 1), i == 3 ? GY_DONE : GY_OK);
    gy_oai_usage u;
    gy_oai_reply_usage(t.r, &u);
    assert_int_equal(u.prompt_tokens, 18); /* of both prompts, once each */
    assert_int_equal(u.completion_tokens, 4);
    assert_int_equal(u.loop_sum, 16);
    assert_int_equal(u.max_output, 1);
    end(&t);
}

/* Held back text comes with the end; the stop string only if asked for. */
static void stop_strings(void **state) {
    (void)state;
    for (int include = 0; include < 2; include++) {
        talk t =
            BEGIN(GY_OAI_CHAT, include ? U ",\"stream\":true,\"stop\":[\"A\",\"DEF\"],\"include_stop_str_in_output\":"
                                           "true}"
                                       : U ",\"stream\":true,\"stop\":[\"A\",\"DEF\"]}");
        gyre_finish f = plain_finish(GYRE_FINISH_STOP, 1, 0);
        f.stop_string = 1;
        assert_int_equal(finish_with(&t, 0, 0, "rest ", &f), GY_DONE);
        assert_non_null(strstr(t.out.data, include ? "\"delta\":{\"content\":\"rest DEF\"},\"logprobs\":null,"
                                                     "\"finish_reason\":\"stop\",\"stop_reason\":\"DEF\""
                                                   : "\"delta\":{\"content\":\"rest \"},\"logprobs\":null,"
                                                     "\"finish_reason\":\"stop\",\"stop_reason\":\"DEF\""));
        end(&t);
    }
}

/* The id that the client named is told; eos is not. */
static void stop_ids(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"stop_token_ids\":[7]}");
    gyre_finish f = plain_finish(GYRE_FINISH_STOP, 1, 0);
    f.stop_id = 7;
    finish_with(&t, 0, 0, "", &f);
    assert_non_null(strstr(t.out.data, "\"stop_reason\":7,"));
    end(&t);
    t = BEGIN(GY_OAI_COMPLETION, P ",\"stop_token_ids\":[7]}");
    f.stop_id = 8;
    finish_with(&t, 0, 0, "", &f);
    assert_non_null(strstr(t.out.data, "\"finish_reason\":\"stop\",\"stop_reason\":null,"));
    end(&t);
}

static void token_ids_and_gates_in_stream(void **state) {
    (void)state;
    const int32_t ids[] = {0, 11};
    const float gates[] = {0.25f, 1.0f};
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"stream\":true,\"return_token_ids\":true,\"gates\":true}");
    gy_oai_reply_prompt(t.r, 0, ids, 2, NULL, 0);
    gyre_event ev = token_event(0, 0, 1, "Hi");
    ev.gates = gates;
    ev.n_gate = 2;
    gy_oai_reply_event(t.r, 0, &ev, NULL, &t.out, &t.e);
    assert_non_null(
        strstr(t.out.data, ",\"loops\":[4],\"gates\":[[0.25,1]],\"token_ids\":[1],\"prompt_token_ids\":[0,11]}]}"));
    gy_str_clear(&t.out);
    gy_oai_reply_event(t.r, 0, &ev, NULL, &t.out, &t.e);
    assert_null(strstr(t.out.data, "prompt_token_ids"));
    end(&t);
    t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"return_token_ids\":true}");
    gy_oai_reply_prompt(t.r, 0, ids, 2, NULL, 0);
    say(&t, 0, 0, 0, 1, "Hi");
    assert_non_null(strstr(t.out.data, "\"finish_reason\":null}],\"prompt_token_ids\":[0,11]}\n\n"));
    end(&t);
}

/* ---- reasoning and tools ---------------------------------------------------------------------------------------- */

static gy_status say_delta(talk *t, const gy_oai_delta *d) {
    gyre_event ev = token_event(0, 0, 1, "not used");
    return gy_oai_reply_event(t->r, 0, &ev, d, &t->out, &t->e);
}

static void feed_tools(talk *t) {
    gy_oai_delta think = {.reasoning = "hm", .n_reasoning = 2, .is_reasoning = 1}, quiet = {.is_reasoning = 1};
    gy_oai_tool_delta open = {.index = 0, .id = "call_1", .name = "f", .arguments = "", .n_arguments = 0},
                      more = {.index = 0, .arguments = "{\"a\":", .n_arguments = 5},
                      rest = {.index = 0, .arguments = "1}", .n_arguments = 2},
                      second = {.index = 1, .id = "call_2", .name = "g", .arguments = "{}", .n_arguments = 2};
    say_delta(t, &think);
    say_delta(t, &quiet);
    say_delta(t, &(gy_oai_delta){.tools = &open, .n_tool = 1});
    say_delta(t, &(gy_oai_delta){.tools = &more, .n_tool = 1});
    const gy_oai_tool_delta both[] = {rest, second};
    say_delta(t, &(gy_oai_delta){.tools = both, .n_tool = 2});
    assert_int_equal(finish(t, 0, 0, GYRE_FINISH_STOP, 5), GY_DONE);
}

static void tools_and_reasoning_stream(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true}");
    feed_tools(&t);
    static const char *const order[] = {
        "\"delta\":{\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"}",
        "\"delta\":{\"reasoning_content\":\"\",\"reasoning\":\"\"}",
        ("\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"\"}}]}"),
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}},{\"index\":1,\"id\":\"call_2\"",
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\""};
    const char *p = t.out.data;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        p = strstr(p, order[i]);
        if (!p) fail_msg("no %s in its place", order[i]);
    }
    check_frames(&t.out);
    end(&t);
}

static void reasoning_left_out(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        talk t = stream ? BEGIN(GY_OAI_CHAT, U ",\"include_reasoning\":false,\"stream\":true,\"stream_options\":{"
                                               "\"include_usage\":true}}")
                        : BEGIN(GY_OAI_CHAT, U ",\"include_reasoning\":false}");
        feed_tools(&t);
        assert_null(strstr(t.out.data, "\"reasoning_content\"")); /* generated and counted, not told */
        assert_null(strstr(t.out.data, "\"reasoning\""));
        assert_non_null(strstr(t.out.data, "\"completion_tokens_details\":{\"reasoning_tokens\":2}"));
        if (stream) assert_int_equal(check_frames(&t.out), 1 + 5 + 1 + 1 + 1); /* one a token all the same */
        end(&t);
    }
}

/* What a filter made of the text has the stop string in it, where it belongs; it does not come again as content. */
static void stop_string_of_a_filter(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stop\":[\"</tool_call>\"],\"include_stop_str_in_output\":true}");
    gyre_finish f = plain_finish(GYRE_FINISH_STOP, 0, 0);
    f.stop_string = 0;
    const gyre_event ev = {.kind = GYRE_EVENT_FINISH, .id = -1, .text = "", .finish = &f};
    const gy_oai_delta d = {.content = "kept", .n_content = 4};
    assert_int_equal(gy_oai_reply_event(t.r, 0, &ev, &d, &t.out, &t.e), GY_DONE);
    assert_non_null(strstr(t.out.data, "\"content\":\"kept\"}"));
    end(&t);
}

static void tools_and_reasoning_body(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U "}");
    feed_tools(&t);
    assert_non_null(strstr(
        t.out.data,
        "\"message\":{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\",\"reasoning\":\"hm\",\"tool_"
        "calls\":["
        "{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},"
        "{\"id\":\"call_2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}"));
    assert_non_null(strstr(t.out.data, "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(t.out.data, "\"completion_tokens_details\":{\"reasoning_tokens\":2}"));
    gy_json_free(parse(t.out.data, t.out.len));
    end(&t);
}

/* ---- bodies ----------------------------------------------------------------------------------------------------- */

static void chat_body(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U "}");
    assert_int_equal(say(&t, 0, 0, 0, 1, "Hi"), GY_OK);
    say(&t, 0, 0, 1, 2, " you");
    assert_int_equal(t.out.len, 0);
    gyre_finish f = plain_finish(GYRE_FINISH_STOP, 2, 0);
    f.n_cached = 3;
    assert_int_equal(finish_with(&t, 0, 0, "!", &f), GY_DONE);
    assert_string_equal(t.out.data,
                        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"ouro\"," FP
                        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi you!\"},"
                        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"loops\":[4,4]}],"
                        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11,"
                        "\"prompt_tokens_details\":{\"cached_tokens\":3},"
                        "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}");
    end(&t);
}

static void completion_body(void **state) {
    (void)state;
    const int32_t ids[] = {0, 11};
    const float gates[] = {0.5f};
    talk t = BEGIN(GY_OAI_COMPLETION, "{\"prompt\":[0,11],\"n\":2,\"return_token_ids\":true,\"gates\":true}");
    gy_oai_reply_prompt(t.r, 0, ids, 2, NULL, 0);
    for (int32_t k = 1; k >= 0; k--) {
        gyre_event ev = token_event(k, 0, k, k ? "B" : "A");
        ev.gates = gates;
        ev.n_gate = 1;
        gy_oai_reply_event(t.r, 0, &ev, NULL, &t.out, &t.e);
    }
    finish(&t, 0, 1, GYRE_FINISH_LENGTH, 1);
    assert_int_equal(finish(&t, 0, 0, GYRE_FINISH_STOP, 1), GY_DONE);
    assert_string_equal(
        t.out.data,
        "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"ouro\"," FP
        "\"choices\":[{\"index\":0,\"text\":\"A\",\"logprobs\":null,\"finish_reason\":\"stop\","
        "\"stop_reason\":null,\"loops\":[4],\"gates\":[[0.5]],\"token_ids\":[0],\"prompt_token_ids\":[0,11]},"
        "{\"index\":1,\"text\":\"B\",\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null,\"loops\":[4],\"gates\":[[0.5]],\"token_ids\":[1],\"prompt_token_ids\":[0,11]}],"
        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11,"
        "\"prompt_tokens_details\":{\"cached_tokens\":0}}}");
    end(&t);
}

/* ---- logprobs --------------------------------------------------------------------------------------------------- */

static gy_status say_lp(talk *t, gyre_event_kind kind, int32_t id, float lp, const gyre_logprob *top, int32_t n_top) {
    size_t n = 0;
    const char *s = kind == GYRE_EVENT_TOKEN ? piece(NULL, id, &n) : "";
    gyre_event ev = {
        .kind = kind, .id = id, .loops = 2, .text = s, .n_text = n, .logprob = lp, .top = top, .n_top = n_top};
    return gy_oai_reply_event(t->r, 0, &ev, NULL, &t->out, &t->e);
}

static void completion_logprobs(void **state) {
    (void)state;
    const gyre_logprob top[] = {{2, -0.25f}, {6, -1.5f}}, bytes[] = {{3, -0.5f}, {10, -0.75f}};
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"logprobs\":2}");
    say_lp(&t, GYRE_EVENT_TOKEN, 7, -3.0f, top, 2);     /* the chosen one beyond the alternatives */
    say_lp(&t, GYRE_EVENT_TOKEN, 3, -0.5f, bytes, 2);   /* two alternatives with one spelling */
    say_lp(&t, GYRE_EVENT_TOKEN, 4, -INFINITY, top, 1); /* continues the character before */
    say_lp(&t, GYRE_EVENT_TOKEN, 2, NAN, NULL, 0);
    finish(&t, 0, 0, GYRE_FINISH_LENGTH, 4);
    assert_non_null(strstr(t.out.data,
                           "\"logprobs\":{\"text_offset\":[0,1,1,2],\"token_logprobs\":[-3,-0.5,-9999.0,-9999.0],"
                           "\"tokens\":[\"\xE2\x82\xAC\",\"bytes:\\\\xf0\\\\x9f\",\"bytes:\\\\x98\\\\x80\",\" you\"],"
                           "\"top_logprobs\":[{\" you\":-0.25,\"\\\"\":-1.5,\"\xE2\x82\xAC\":-3},"
                           "{\"bytes:\\\\xf0\\\\x9f\":-0.5},{\" you\":-0.25,\"bytes:\\\\x98\\\\x80\":-9999.0},"
                           "{\" you\":-9999.0}]}"));
    gy_json_free(parse(t.out.data, t.out.len)); /* refuses duplicate names */
    end(&t);
}

static void completion_logprobs_zero_and_stream(void **state) {
    (void)state;
    const gyre_logprob top[] = {{2, -0.25f}};
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"logprobs\":0,\"stream\":true}");
    say_lp(&t, GYRE_EVENT_TOKEN, 1, -0.5f, top, 1);
    assert_non_null(strstr(t.out.data,
                           "\"logprobs\":{\"text_offset\":[0],\"token_logprobs\":[-0.5],\"tokens\":[\"Hi\"],"
                           "\"top_logprobs\":[{\"Hi\":-0.5}]}"));
    gy_str_clear(&t.out);
    say_lp(&t, GYRE_EVENT_TOKEN, 2, -0.125f, top, 1);
    assert_non_null(strstr(t.out.data, "{\"text_offset\":[2],\"token_logprobs\":[-0.125],\"tokens\":[\" you\"]"));
    end(&t);
}

static void chat_logprobs(void **state) {
    (void)state;
    const gyre_logprob top[] = {{1, -0.5f}, {3, -2.0f}, {2, -4.0f}};
    const char *want =
        "\"logprobs\":{\"content\":[{\"token\":\"Hi\",\"logprob\":-0.5,\"bytes\":[72,105],\"top_logprobs\":["
        "{\"token\":\"Hi\",\"logprob\":-0.5,\"bytes\":[72,105]},"
        "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-2,\"bytes\":[240,159]}]}";
    talk t = BEGIN(GY_OAI_CHAT, U ",\"logprobs\":true,\"top_logprobs\":2,\"stream\":true}");
    say_lp(&t, GYRE_EVENT_TOKEN, 1, -0.5f, top, 3);
    assert_non_null(strstr(t.out.data, want));
    assert_non_null(strstr(t.out.data, "]}]},\"finish_reason\":null"));
    end(&t);
    t = BEGIN(GY_OAI_CHAT, U ",\"logprobs\":true,\"top_logprobs\":2}");
    say_lp(&t, GYRE_EVENT_TOKEN, 1, -0.5f, top, 3);
    say_lp(&t, GYRE_EVENT_TOKEN, 8, -1.0f, NULL, 0);
    finish(&t, 0, 0, GYRE_FINISH_STOP, 2);
    assert_non_null(strstr(t.out.data, want));
    assert_non_null(strstr(t.out.data, ",{\"token\":\"<eos>\",\"logprob\":-1,\"bytes\":[60,101,111,115,62],"
                                       "\"top_logprobs\":[]}]},\"finish_reason\":\"stop\""));
    end(&t);
}

static void tokens_as_ids(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"logprobs\":0,\"return_tokens_as_token_ids\":true}");
    say_lp(&t, GYRE_EVENT_TOKEN, 3, -0.5f, NULL, 0);
    finish(&t, 0, 0, GYRE_FINISH_LENGTH, 1);
    assert_non_null(strstr(t.out.data, "\"tokens\":[\"token_id:3\"],\"top_logprobs\":[{\"token_id:3\":-0.5}]"));
    end(&t);
}

/* ---- echo ------------------------------------------------------------------------------------------------------- */

/* lm-eval's call: arrays aligned with the tokens, the first without a value; max_tokens 0 leaves the output out. */
static void scoring(void **state) {
    (void)state;
    const int32_t ids[] = {0, 1, 7, 2};
    const gyre_logprob top[] = {{1, -0.25f}};
    for (int32_t max = 0; max < 2; max++) {
        talk t = BEGIN(GY_OAI_COMPLETION, max ? "{\"prompt\":[0,1,7,2],\"echo\":true,\"logprobs\":1,\"max_tokens\":1}"
                                              : "{\"prompt\":[0,1,7,2],\"echo\":true,\"logprobs\":1,\"max_tokens\":0}");
        gy_oai_reply_prompt(t.r, 0, ids, 4, "<s>Hi\xE2\x82\xAC you", 12);
        for (int i = 1; i < 4; i++) say_lp(&t, GYRE_EVENT_PROMPT, ids[i], -0.25f * (float)i, top, 1);
        say_lp(&t, GYRE_EVENT_TOKEN, 11, -2.0f, top, 1);
        assert_int_equal(finish(&t, 0, 0, GYRE_FINISH_LENGTH, 1), GY_DONE);
        gy_json *doc = parse(t.out.data, t.out.len);
        const gy_jv *c = gy_jv_at(gy_jv_get(gy_json_root(doc), "choices"), 0), *lp = gy_jv_get(c, "logprobs");
        size_t n = max ? 5 : 4;
        assert_true(gy_jv_is_str(gy_jv_get(c, "text"), max ? "<s>Hi\xE2\x82\xAC you"
                                                             "a"
                                                           : "<s>Hi\xE2\x82\xAC you"));
        assert_int_equal(gy_jv_len(gy_jv_get(lp, "tokens")), n);
        assert_int_equal(gy_jv_len(gy_jv_get(lp, "token_logprobs")), n);
        assert_int_equal(gy_jv_len(gy_jv_get(lp, "top_logprobs")), n);
        assert_int_equal(gy_jv_len(gy_jv_get(lp, "text_offset")), n);
        assert_int_equal(gy_jv_type(gy_jv_at(gy_jv_get(lp, "token_logprobs"), 0)), GY_J_NULL);
        assert_int_equal(gy_jv_type(gy_jv_at(gy_jv_get(lp, "top_logprobs"), 0)), GY_J_NULL);
        assert_true(gy_jv_num(gy_jv_at(gy_jv_get(lp, "token_logprobs"), 3), 0) == -0.75);
        static const int offsets[] = {0, 3, 5, 6, 10};
        for (size_t i = 0; i < n; i++)
            assert_int_equal(gy_jv_int(gy_jv_at(gy_jv_get(lp, "text_offset"), i), -1), offsets[i]);
        assert_int_equal(gy_jv_int(gy_jv_get(gy_jv_get(gy_json_root(doc), "usage"), "completion_tokens"), -1), max);
        assert_true(gy_jv_is_str(gy_jv_get(c, "finish_reason"), "length"));
        assert_int_equal(gy_jv_len(gy_jv_get(c, "loops")), (size_t)max);
        gy_json_free(doc);
        end(&t);
    }
}

static void echo_of_one_token(void **state) {
    (void)state;
    const int32_t ids[] = {1};
    talk t = BEGIN(GY_OAI_COMPLETION, "{\"prompt\":[1],\"echo\":true,\"logprobs\":1,\"max_tokens\":0}");
    gy_oai_reply_prompt(t.r, 0, ids, 1, "Hi", 2);
    say_lp(&t, GYRE_EVENT_TOKEN, 11, -2.0f, NULL, 0);
    finish(&t, 0, 0, GYRE_FINISH_LENGTH, 1);
    assert_non_null(strstr(t.out.data, "\"text\":\"Hi\",\"logprobs\":{\"text_offset\":[0],\"token_logprobs\":[null],"
                                       "\"tokens\":[\"Hi\"],\"top_logprobs\":[null]}"));
    end(&t);
}

static void echo_stream(void **state) {
    (void)state;
    const int32_t ids[] = {0, 1};
    talk t = BEGIN(GY_OAI_COMPLETION, "{\"prompt\":[0,1],\"echo\":true,\"logprobs\":0,\"stream\":true,\"n\":2}");
    gy_oai_reply_prompt(t.r, 0, ids, 2, "<s>Hi", 5);
    say_lp(&t, GYRE_EVENT_PROMPT, 1, -0.5f, NULL, 0);
    for (int32_t k = 0; k < 2; k++) {
        gyre_event ev = token_event(k, 0, 11, "a");
        ev.logprob = -1.0f;
        gy_oai_reply_event(t.r, 0, &ev, NULL, &t.out, &t.e);
        const char *echo =
            "\"text\":\"<s>Hi\",\"logprobs\":{\"text_offset\":[0,3],\"token_logprobs\":[null,-0.5],"
            "\"tokens\":[\"<s>\",\"Hi\"],\"top_logprobs\":[null,{\"Hi\":-0.5}]},\"finish_reason\":null}]}";
        assert_non_null(strstr(t.out.data, echo));
        assert_non_null(strstr(t.out.data, "\"text\":\"a\",\"logprobs\":{\"text_offset\":[5],\"token_logprobs\":[-1]"));
        gy_str_clear(&t.out);
    }
    end(&t);
}

static void prompt_logprobs(void **state) {
    (void)state;
    const int32_t ids[] = {0, 1, 2};
    const gyre_logprob top[] = {{6, -0.25f}, {1, -0.5f}};
    talk t = BEGIN(GY_OAI_CHAT, U ",\"prompt_logprobs\":2}");
    gy_oai_reply_prompt(t.r, 0, ids, 3, NULL, 0);
    say_lp(&t, GYRE_EVENT_PROMPT, 1, -0.5f, top, 2);
    say_lp(&t, GYRE_EVENT_PROMPT, 2, -INFINITY, top, 2);
    say_lp(&t, GYRE_EVENT_TOKEN, 1, NAN, NULL, 0);
    finish(&t, 0, 0, GYRE_FINISH_STOP, 1);
    assert_non_null(strstr(t.out.data,
                           "\"prompt_logprobs\":[null,{\"1\":{\"logprob\":-0.5,\"rank\":2,\"decoded_token\":"
                           "\"Hi\"},\"6\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"\\\"\"}},"
                           "{\"2\":{\"logprob\":-9999.0,\"rank\":null,\"decoded_token\":\" you\"},"));
    gy_json_free(parse(t.out.data, t.out.len));
    end(&t);
}

/* ---- failures --------------------------------------------------------------------------------------------------- */

static void failed_choice_in_stream(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"n\":2}");
    say(&t, 0, 0, 0, 1, "Hi");
    gy_str_clear(&t.out);
    gyre_finish f = plain_finish(GYRE_FINISH_ERROR, 1, 1);
    f.error = GYRE_E_NUMERIC;
    f.message = "NaN at 0x1234";
    assert_int_equal(finish_with(&t, 0, 0, "", &f), GY_E_NUMERIC);
    assert_int_equal(t.e.http, 500);
    assert_string_equal(
        t.out.data, "data: {\"error\":{\"message\":\"the model's output for this request is not a number or leaves no "
                    "token to choose\",\"type\":\"server_error\",\"param\":null,\"code\":\"not_a_number\"}}\n\n");
    gy_str_clear(&t.out);
    assert_int_equal(say(&t, 0, 1, 0, 1, "Hi"), GY_OK); /* the other choice is swallowed, no [DONE] */
    assert_int_equal(finish(&t, 0, 1, GYRE_FINISH_CANCELLED, 1), GY_OK);
    assert_int_equal(t.out.len, 0);
    end(&t);
}

static void failed_body_and_outside(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P "}");
    gyre_finish f = plain_finish(GYRE_FINISH_CANCELLED, 1, 0);
    assert_int_equal(finish_with(&t, 0, 0, "", &f), GY_E_CANCELLED);
    assert_int_equal(t.e.http, 503);
    assert_memory_equal(t.out.data, "{\"error\":{", 10);
    gy_json_free(parse(t.out.data, t.out.len));
    end(&t);
    t = BEGIN(GY_OAI_COMPLETION, P ",\"stream\":true}");
    gy_oai_error e;
    gy_oai_error_set(&e, GY_OAI_E_DEADLINE, NULL, "the deadline has passed");
    gy_oai_reply_fail(t.r, &e, &t.out);
    size_t n = t.out.len;
    assert_memory_equal(t.out.data, "data: {\"error\":{", 16);
    gy_oai_reply_fail(t.r, &e, &t.out);
    assert_int_equal(t.out.len, n);
    end(&t);
}

static void memory_runs_out(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        const char *body =
            stream ? U ",\"stream\":true,\"logprobs\":true,\"n\":2}" : U ",\"logprobs\":true,\"gates\":true}";
        gy_status st = GY_E_NOMEM;
        int failed = 0;
        for (int64_t n = 1; st != GY_DONE && n < 200; n++) {
            talk t = BEGIN(GY_OAI_CHAT, body);
            gy_mem_fail_after(n);
            st = GY_OK;
            for (int32_t k = 0; k <= stream && st >= 0; k++) {
                st = say(&t, 0, k, 0, 1, "some text that is not so short");
                if (st >= 0) st = finish(&t, 0, k, GYRE_FINISH_STOP, 1);
            }
            gy_mem_fail_after(0);
            failed += st < 0;
            if (st < 0) assert_int_equal(t.e.http, 503);
            end(&t);
        }
        assert_int_equal(st, GY_DONE);
        assert_true(failed > 0);
    }
}

static void create_without_memory(void **state) {
    (void)state;
    talk t = BEGIN(GY_OAI_COMPLETION, P ",\"stream\":true}");
    for (int64_t n = 1; n < 6; n++) {
        gy_oai_reply *r = NULL;
        gy_oai_reply_options o = {.id = "x"};
        gy_mem_fail_after(n);
        assert_int_equal(gy_oai_reply_create(t.q, &o, &r), GY_E_NOMEM);
        gy_mem_fail_after(0);
        assert_null(r);
    }
    end(&t);
}

/* ---- small bodies and writers ----------------------------------------------------------------------------------- */

#define FACTS                                                                                                          \
    "\"gyre\":{\"family\":\"ouro\",\"n_loop\":4,\"max_loops\":6,\"has_gate\":true,\"has_tokenizer\":false,"            \
    "\"has_chat_template\":true}"

static void small_bodies(void **state) {
    (void)state;
    static const char *const models[] = {"ouro", "alias\"2"};
    static const int32_t ids[] = {1, 3};
    gy_str s = {0};
    const gy_oai_model_facts f = {
        .family = "ouro", .max_len = 4096, .n_loop = 4, .max_loops = 6, .has_gate = 1, .has_template = 1};
    gy_oai_models_body(models, 2, 7, &f, &s);
    assert_string_equal(s.data,
                        "{\"object\":\"list\",\"data\":[{\"id\":\"ouro\",\"object\":\"model\",\"created\":7,"
                        "\"owned_by\":\"gyre\",\"root\":\"ouro\",\"parent\":null,\"max_model_len\":4096," FACTS "},"
                        "{\"id\":\"alias\\\"2\",\"object\":\"model\",\"created\":7,\"owned_by\":\"gyre\","
                        "\"root\":\"ouro\",\"parent\":null,\"max_model_len\":4096," FACTS "}]}");
    gy_str_clear(&s);
    gy_oai_version_body("0.1.0", &s);
    gy_oai_health_body("loading", &s);
    assert_string_equal(s.data, "{\"version\":\"0.1.0\"}{\"status\":\"loading\"}");
    gy_str_clear(&s);
    gy_oai_tokenize_body(ids, 2, 64, piece, NULL, &s);
    assert_string_equal(s.data,
                        "{\"count\":2,\"max_model_len\":64,\"tokens\":[1,3],\"token_strs\":[\"Hi\",\"\xEF\xBF\xBD\"]}");
    gy_str_clear(&s);
    gy_oai_tokenize_body(NULL, 0, 64, NULL, NULL, &s);
    assert_string_equal(s.data, "{\"count\":0,\"max_model_len\":64,\"tokens\":[],\"token_strs\":null}");
    gy_str_clear(&s);
    gy_oai_detokenize_body("a\0b\xff", 4, &s);
    assert_string_equal(s.data, "{\"prompt\":\"a\\u0000b\xEF\xBF\xBD\"}");
    gy_str_free(&s);
}

static void numbers(void **state) {
    (void)state;
    gy_str s = {0};
    static const int64_t ints[] = {0, 7, -1, 1234567890123, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < 6; i++) {
        gy_oai_put_int(&s, ints[i]);
        assert_true(strtoll(s.data, NULL, 10) == ints[i]);
        gy_str_clear(&s);
    }
    uint32_t x = 1;
    for (int i = 0; i < 200000; i++) {
        union {
            uint32_t u;
            float f;
        } v = {.u = x = x * 1664525u + 1013904223u};
        if (!isfinite(v.f)) continue;
        float f = i % 2 ? v.f : -(float)(x >> 8) / 1e6f;
        gy_str_clear(&s);
        gy_oai_put_f32(&s, f);
        assert_true((float)strtod(s.data, NULL) == f);
        assert_true(s.len <= 16);
    }
    static const struct {
        float v;
        const char *text;
    } rows[] = {{0.5f, "0.5"},           {-0.1f, "-0.1"},     {1.0f, "1"},
                {-12345.5f, "-12345.5"}, {0.0001f, "0.0001"}, {100.0f, "100"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gy_str_clear(&s);
        gy_oai_put_f32(&s, rows[i].v);
        assert_string_equal(s.data, rows[i].text);
    }
    static const float unlikely[] = {NAN, -INFINITY, -10000.0f, -9999.0f};
    for (int i = 0; i < 4; i++) {
        gy_str_clear(&s);
        gy_oai_put_logprob(&s, unlikely[i]);
        assert_string_equal(s.data, "-9999.0");
    }
    gy_str_free(&s);
}

static void finish_reasons(void **state) {
    (void)state;
    assert_string_equal(gy_oai_finish_reason(GYRE_FINISH_STOP, 0), "stop");
    assert_string_equal(gy_oai_finish_reason(GYRE_FINISH_STOP, 1), "tool_calls");
    assert_string_equal(gy_oai_finish_reason(GYRE_FINISH_LENGTH, 1), "length");
    assert_null(gy_oai_finish_reason(GYRE_FINISH_CANCELLED, 0));
    assert_null(gy_oai_finish_reason(GYRE_FINISH_ERROR, 0));
}

/* ---- cost ------------------------------------------------------------------------------------------------------- */

static int64_t ns_per_event(const char *body, gy_oai_kind kind, int32_t n_top) {
    gyre_logprob top[20];
    const float gates[4] = {0.01234f, 0.2345f, 0.6789f, 0.999f};
    for (int i = 0; i < 20; i++) top[i] = (gyre_logprob){i % N_PIECE, -0.123456f * (float)(i + 1)};
    talk t = BEGIN(kind, body);
    int64_t start = gy_clock_ns();
    const int n = 100000;
    for (int32_t i = 0; i < n; i++) {
        gyre_event ev = token_event(0, i, 2, " you");
        ev.logprob = -0.345678f;
        ev.top = top;
        ev.n_top = n_top;
        ev.gates = gates;
        ev.n_gate = 4;
        gy_oai_reply_event(t.r, 0, &ev, NULL, &t.out, &t.e);
        if (t.out.len > 1 << 16) gy_str_clear(&t.out);
    }
    int64_t ns = (gy_clock_ns() - start) / n;
    end(&t);
    return ns;
}

/* Printed, not judged: the machine is shared. Only growth of `out` may allocate. */
static void cost_of_an_event(void **state) {
    (void)state;
    printf(
        "ns per event: chat %lld, completion %lld, gates + ids + usage %lld, logprobs 0 %lld, chat logprobs 20 %lld\n",
        (long long)ns_per_event(U ",\"stream\":true}", GY_OAI_CHAT, 0),
        (long long)ns_per_event(P ",\"stream\":true}", GY_OAI_COMPLETION, 0),
        (long long)ns_per_event(P ",\"stream\":true,\"gates\":true,\"return_token_ids\":true,\"stream_options\":"
                                  "{\"include_usage\":true,\"continuous_usage_stats\":true}}",
                                GY_OAI_COMPLETION, 0),
        (long long)ns_per_event(P ",\"stream\":true,\"logprobs\":0}", GY_OAI_COMPLETION, 0),
        (long long)ns_per_event(U ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20}", GY_OAI_CHAT, 20));
    talk t = BEGIN(GY_OAI_CHAT, U ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":2}");
    say(&t, 0, 0, 0, 1, "Hi");
    gy_mem_guard_begin();
    for (int i = 0; i < 1000; i++) {
        gy_str_clear(&t.out);
        say(&t, 0, 0, i + 1, 1, "Hi");
    }
    gy_mem_guard_end();
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_stream),
        cmocka_unit_test(completion_stream),
        cmocka_unit_test(stream_usage),
        cmocka_unit_test(stream_usage_continuous),
        cmocka_unit_test(hostile_text),
        cmocka_unit_test(choices_interleave),
        cmocka_unit_test(prompts_and_choices_are_numbered),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_ids),
        cmocka_unit_test(token_ids_and_gates_in_stream),
        cmocka_unit_test(tools_and_reasoning_stream),
        cmocka_unit_test(tools_and_reasoning_body),
        cmocka_unit_test(reasoning_left_out),
        cmocka_unit_test(stop_string_of_a_filter),
        cmocka_unit_test(chat_body),
        cmocka_unit_test(completion_body),
        cmocka_unit_test(completion_logprobs),
        cmocka_unit_test(completion_logprobs_zero_and_stream),
        cmocka_unit_test(chat_logprobs),
        cmocka_unit_test(tokens_as_ids),
        cmocka_unit_test(scoring),
        cmocka_unit_test(echo_of_one_token),
        cmocka_unit_test(echo_stream),
        cmocka_unit_test(prompt_logprobs),
        cmocka_unit_test(failed_choice_in_stream),
        cmocka_unit_test(failed_body_and_outside),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(create_without_memory),
        cmocka_unit_test(small_bodies),
        cmocka_unit_test(numbers),
        cmocka_unit_test(finish_reasons),
        cmocka_unit_test(cost_of_an_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
