/* Between the engine's events and the reply of a chat, without an engine: events by hand, with and without markers that
 * are special tokens; the schema of a call, read by the compiler of grammars; where constraints begin.
 */
#include "base_test.h"

#include "base/file.h"
#include "base/mem.h"
#include "sample/grammar.h"
#include "server/app_int.h"
#include "server/app_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- a request -------------------------------------------------------------------------------------------------- */

#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOL(name, par) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" par "}}"

static gy_oai_request *parse(const char *body) {
    gy_oai_config c;
    gy_oai_error e;
    gy_oai_request *q = NULL;
    gy_oai_config_default(&c);
    if (gy_oai_request_parse(GY_OAI_CHAT, body, strlen(body), &c, &e, &q) < 0) fail_msg("%s", e.msg);
    return q;
}

/* ---- the schema of a call --------------------------------------------------------------------------------------- */

static char *schema_of(const char *body) {
    gy_oai_error e;
    gy_str out = {0};
    gy_oai_request *q = parse(body);
    assert_true(gy_app_wants_call(q));
    if (gy_app_tool_schema(q, &e, &out) < 0) fail_msg("%s", e.msg);
    gy_oai_request_free(q);
    return out.data;
}

/* 1 if the schema's grammar takes all of the text and it is complete. */
static int takes(const char *schema, const char *text) {
    gy_grammar *g = NULL;
    gy_grammar_runner *r = NULL;
    gy_grammar_state s;
    gy_err err = {0};
    if (gy_grammar_compile(GY_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &err, &g) < 0)
        fail_msg("%s in %s", err.msg, schema);
    assert_int_equal(gy_grammar_runner_create(NULL, 0, &r), GY_OK);
    gy_grammar_start(g, &s);
    int ok = gy_grammar_accept(r, g, &s, text, strlen(text), &err) == GY_OK && gy_grammar_is_complete(&s);
    gy_grammar_runner_destroy(r);
    gy_grammar_put(g);
    return ok;
}

static void schema_of_one(void **state) {
    (void)state;
    char *s = schema_of(
        ASK ",\"tools\":[" TOOL("f", "") "," TOOL("g", "") "],\"tool_choice\":"
                                                           "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}");
    assert_string_equal(s, "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"g\"},\"arguments\":{\"type\":"
                           "\"object\",\"properties\":{},\"additionalProperties\":false}},\"required\":[\"name\","
                           "\"arguments\"],\"additionalProperties\":false}");
    assert_true(takes(s, "{\"name\": \"g\", \"arguments\": {}}"));
    assert_false(takes(s, "{\"name\": \"f\", \"arguments\": {}}"));
    assert_false(takes(s, "{\"name\": \"g\", \"arguments\": {\"a\": 1}}"));
    gy_mem_free(s);
}

/* References are paths from the root of the tool's schema, which is the root no more. */
static void schema_with_references(void **state) {
    (void)state;
    char *s = schema_of(ASK ",\"tool_choice\":\"required\",\"tools\":[" TOOL(
        "f",
        ",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},"
        "\"$ref\":{\"type\":\"boolean\"}},\"required\":[\"a\"],\"$defs\":{\"n\":{\"type\":\"integer\"},\"$ref\":{"
        "\"type\":\"null\"}}}") "," TOOL("g",
                                         ",\"parameters\":{\"$ref\":\"#/definitions/"
                                         "o\",\"definitions\":{\"o\":{\"type\":\"object\",\"properties\":{\"n\":{\"$"
                                         "ref\":\"#/definitions/o\"},"
                                         "\"k\":{\"const\":{\"$ref\":\"#/no\"}}}}}}") "," TOOL("h", ",\"parameters\":{"
                                                                                                    "\"properties\":{"
                                                                                                    "\"z\":{\"enum\":["
                                                                                                    "\"#\",1.5,null,"
                                                                                                    "true]}},"
                                                                                                    "\"required\":["
                                                                                                    "\"z\"]}") "]}");
    assert_true(takes(s, "{\"name\": \"f\", \"arguments\": {\"a\": 5}}"));
    assert_true(takes(s, "{\"name\": \"f\", \"arguments\": {\"a\": 5, \"$ref\": true}}"));
    assert_false(takes(s, "{\"name\": \"f\", \"arguments\": {\"a\": \"5\"}}"));
    assert_true(takes(s, "{\"name\": \"g\", \"arguments\": {\"n\": {\"n\": {}}}}"));
    assert_true(takes(s, "{\"name\": \"g\", \"arguments\": {\"k\": {\"$ref\": \"#/no\"}}}"));
    assert_false(takes(s, "{\"name\": \"g\", \"arguments\": {\"n\": 1}}"));
    assert_true(takes(s, "{\"name\": \"h\", \"arguments\": {\"z\": 1.5}}"));
    assert_true(takes(s, "{\"name\": \"h\", \"arguments\": {\"z\": null}}"));
    assert_false(takes(s, "{\"name\": \"h\", \"arguments\": \"z\"}"));
    gy_mem_free(s);
}

static void schema_refused(void **state) {
    (void)state;
    gy_oai_error e;
    gy_str out = {0};
    gy_oai_request *q = parse(ASK ",\"tool_choice\":\"required\",\"tools\":[" TOOL("f", "") "],\"regex\":\"a\"}");
    assert_true(gy_app_tool_schema(q, &e, &out) < 0);
    assert_string_equal(e.param, "tool_choice");
    assert_non_null(strstr(e.msg, "beside regex"));
    assert_int_equal(e.http, 400);
    gy_oai_request_free(q);
    gy_str_free(&out);
    q = parse(ASK ",\"tools\":[" TOOL("f", "") "]}");
    assert_false(gy_app_wants_call(q));
    gy_oai_request_free(q);
}

static void triggers(void **state) {
    (void)state;
    gy_app_req r = {.in_reasoning = 1};
    assert_string_equal(gy_app_chat_trigger(&r), "</think>");
    r.in_reasoning = 0;
    assert_string_equal(gy_app_chat_trigger(&r), "");
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

/* Ids 1 and 2 are the markers of thoughts, special as in Ouro's vocabulary, or ordinary as in Nanbeige's. */
static char *make_folder(int special) {
    char *dir = gy_mem_strdup(GY_MEM_TEXT, "/tmp/gy-chat-out-XXXXXX");
    gy_str tok = {0};
    assert_non_null(mkdtemp(dir));
    gy_str_puts(&tok, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 2; i++)
        gy_str_printf(&tok,
                      "%s{\"id\":%d,\"content\":\"<%sthink>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":%s}",
                      i ? "," : "", 1 + i, i ? "/" : "", special ? "true" : "false");
    gy_str_puts(&tok, "],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    char *path = gy_path_join(dir, "tokenizer.json"), *template = gy_path_join(dir, "chat_template.jinja");
    FILE *f = fopen(path, "w");
    fwrite(tok.data, 1, tok.len, f);
    fclose(f);
    f = fopen(template, "w");
    fputs("{{ messages[0].content }}{% if tools %}{{ tools }}{% endif %}", f);
    fclose(f);
    gy_mem_free(path);
    gy_mem_free(template);
    gy_str_free(&tok);
    return dir;
}

static void remove_folder(char *dir) {
    static const char *const files[] = {"tokenizer.json", "chat_template.jinja"};
    for (int i = 0; i < 2; i++) {
        char *path = gy_path_join(dir, files[i]);
        unlink(path);
        gy_mem_free(path);
    }
    rmdir(dir);
    gy_mem_free(dir);
}

typedef struct world {
    char *dir;
    gy_app app;
    gy_app_model model;
    gy_app_req req;
    gy_oai_error e;
} world;

static void world_open(world *w, int special, const char *body) {
    gy_err err = {0};
    *w = (world){.dir = make_folder(special)};
    w->app.model = &w->model;
    w->req.app = &w->app;
    const gy_app_opts o = {.dir = w->dir};
    if (gy_tok_open(w->dir, &err, &w->model.tok) < 0 || gy_app_chat_open(&o, &err, &w->model.chat) < 0)
        fail_msg("%s", err.msg);
    w->req.q = parse(body);
}

static void world_close(world *w) {
    gy_app_chat_out_close(w->req.chat_out);
    gy_oai_request_free(w->req.q);
    gy_app_chat_close(w->model.chat);
    gy_tok_close(w->model.tok);
    remove_folder(w->dir);
}

static gy_status say(world *w, int32_t choice, int32_t id, const char *text, gy_oai_delta *d) {
    const gyre_event ev = {.kind = GYRE_EVENT_TOKEN, .choice = choice, .id = id, .text = text, .n_text = strlen(text)};
    return gy_app_chat_out_event(&w->req, &ev, d);
}

static gy_status finish(world *w, int32_t choice, const char *text, int32_t stop, gy_oai_delta *d) {
    const gyre_finish f = {.reason = GYRE_FINISH_STOP, .stop_string = stop, .stop_id = -1};
    const gyre_event ev = {
        .kind = GYRE_EVENT_FINISH, .choice = choice, .id = -1, .text = text, .n_text = strlen(text), .finish = &f};
    return gy_app_chat_out_event(&w->req, &ev, d);
}

#define IS(member, text)                                                                                               \
    do {                                                                                                               \
        assert_int_equal(d.n_##member, strlen(text));                                                                  \
        assert_memory_equal(d.member, text, strlen(text));                                                             \
    } while (0)

static void special_markers(void **state) {
    (void)state;
    for (int special = 0; special < 2; special++) {
        world w;
        gy_oai_delta d;
        world_open(&w, special, ASK "}");
        assert_int_equal(gy_app_chat_out_open(&w.req, &w.e), GY_OK);
        assert_non_null(w.req.chat_out); /* the vocabulary has thoughts, though the template says nothing of them */
        assert_int_equal(say(&w, 0, 1, special ? "" : "<think>", &d), GY_OK);
        assert_int_equal(d.is_reasoning, 1);
        assert_int_equal(say(&w, 0, 0, "hm", &d), GY_OK);
        IS(reasoning, "hm");
        assert_int_equal(say(&w, 0, 2, special ? "" : "</think>", &d), GY_OK);
        assert_int_equal(d.n_reasoning + d.n_content, 0);
        assert_int_equal(d.is_reasoning, 1);
        assert_int_equal(say(&w, 0, 0, "\nHi", &d), GY_OK);
        IS(content, "Hi");
        assert_int_equal(d.is_reasoning, 0);
        assert_int_equal(say(&w, 0, 2, special ? "" : "</think>", &d), GY_OK); /* no marker here: it is text */
        IS(content, "</think>");
        assert_int_equal(finish(&w, 0, "!", -1, &d), GY_OK);
        IS(content, "!");
        world_close(&w);
    }
}

static void calls_get_ids(void **state) {
    (void)state;
    world w;
    gy_oai_delta d;
    char first[64];
    world_open(
        &w, 1,
        ASK ",\"n\":2,\"stop\":[\"</tool_call>\"],\"include_stop_str_in_output\":true,\"tools\":[" TOOL("f", "") "]}");
    assert_int_equal(gy_app_chat_out_open(&w.req, &w.e), GY_OK);
    assert_int_equal(say(&w, 0, 0, "<tool_call>{\"name\":\"f\",\"arguments\":{", &d), GY_OK);
    assert_int_equal(d.n_tool, 1);
    assert_string_equal(d.tools[0].name, "f");
    assert_memory_equal(d.tools[0].id, "call_", 5);
    assert_int_equal(strlen(d.tools[0].id), 5 + 24);
    snprintf(first, sizeof first, "%s", d.tools[0].id);
    assert_int_equal(say(&w, 1, 0, "<tool_call><function=g></function></tool_call><tool_call>{\"name\":\"h\"}", &d),
                     GY_OK);
    assert_int_equal(d.n_tool, 2);
    assert_string_not_equal(d.tools[0].id, d.tools[1].id);
    assert_string_not_equal(d.tools[0].id, first);
    assert_int_equal(say(&w, 0, 0, "}", &d), GY_OK);
    assert_null(d.tools[0].id);
    assert_null(d.tools[0].name);
    assert_int_equal(finish(&w, 0, "}", 0, &d), GY_OK); /* the stop string is the marker */
    assert_int_equal(d.n_content + d.n_reasoning, 0);
    world_close(&w);
}

static void nothing_to_look_for(void **state) {
    (void)state;
    world w;
    world_open(&w, 1, ASK ",\"separate_reasoning\":false}");
    assert_int_equal(gy_app_chat_out_open(&w.req, &w.e), GY_OK);
    assert_null(w.req.chat_out);
    world_close(&w);
}

static gy_status run_once(world *w) {
    gy_oai_delta d;
    GY_TRY(gy_app_chat_out_open(&w->req, &w->e));
    for (int32_t i = 0; i < 3; i++) {
        GY_TRY(say(w, i, 1, "", &d));
        GY_TRY(say(w, i, 0, "thoughts</think><tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>", &d));
        for (int k = 0; k < 40; k++) GY_TRY(say(w, i, 0, "<tool_call>{\"name\":\"f\"}</tool_call>some more text", &d));
        GY_TRY(finish(w, i, "<tool_c", -1, &d));
    }
    return GY_OK;
}

static void memory_runs_out(void **state) {
    (void)state;
    world w;
    int n = 0;
    world_open(&w, 1, ASK ",\"n\":3,\"tools\":[" TOOL("f", "") "]}");
    for (gy_status st = GY_E_NOMEM; st != GY_OK && n < 1000; n++) {
        gy_mem_fail_after(n + 1);
        st = run_once(&w);
        gy_mem_fail_after(0);
        gy_app_chat_out_close(w.req.chat_out);
        w.req.chat_out = NULL;
    }
    assert_in_range(n, 20, 999);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_of_one),       cmocka_unit_test(schema_with_references),
        cmocka_unit_test(schema_refused),      cmocka_unit_test(triggers),
        cmocka_unit_test(special_markers),     cmocka_unit_test(calls_get_ids),
        cmocka_unit_test(nothing_to_look_for), cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
