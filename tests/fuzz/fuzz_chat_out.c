/* Any bytes as what a chat model wrote. The first byte chooses what is looked for, the second where the text is cut.
 * However it is cut, all deltas together are the same; calls come in order; text stays text.
 */
#include "base/json.h"
#include "text/chat_out.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                            "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"o\":{\"$ref\":\"#/$defs/o\"}},"
                            "\"$defs\":{\"o\":{\"anyOf\":[{\"$ref\":\"#/$defs/o\"},{\"type\":\"object\"}]}}}}}]";

typedef struct result {
    gy_str thoughts, content, calls;
    int32_t n_call;
} result;

static void take(gy_chat_out *c, result *r) {
    gy_chat_delta d;
    GY_CHECK(gy_chat_out_take(c, &d) == GY_OK);
    gy_str_append(&r->thoughts, d.reasoning, d.n_reasoning);
    gy_str_append(&r->content, d.content, d.n_content);
    for (int32_t i = 0; i < d.n_call; i++) {
        if (d.calls[i].name) {
            GY_CHECK(d.calls[i].name[0] && d.calls[i].index == r->n_call++);
            gy_str_puts(&r->calls, d.calls[i].name);
        }
        GY_CHECK(d.calls[i].index == r->n_call - 1);
        gy_str_append(&r->calls, d.calls[i].arguments, d.calls[i].n_arguments);
    }
}

static result scan(const gy_chat_out_options *o, const char *s, size_t n, size_t step) {
    gy_chat_out *c = NULL;
    result r = {.n_call = 0};
    GY_CHECK(gy_chat_out_create(o, &c) == GY_OK);
    for (size_t i = 0; i < n; i += step) {
        gy_chat_out_push(c, s + i, n - i < step ? n - i : step);
        take(c, &r);
    }
    gy_chat_out_finish(c);
    take(c, &r);
    gy_chat_out_destroy(c);
    return r;
}

static void same(const gy_str *a, const gy_str *b) {
    GY_CHECK(a->len == b->len && !memcmp(gy_str_z(a), gy_str_z(b), a->len));
}

static void result_free(result *r) {
    gy_str_free(&r->thoughts);
    gy_str_free(&r->content);
    gy_str_free(&r->calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gy_json *doc = NULL;
    if (size < 2) return 0;
    GY_CHECK(gy_json_parse(tools, sizeof tools - 1, NULL, NULL, &doc) == GY_OK);
    const gy_chat_out_options o = {.reasoning = data[0] & 1,
                                   .in_reasoning = data[0] >> 1 & 1,
                                   .one_call = data[0] >> 2 & 1,
                                   .calls = (gy_chat_calls)((data[0] >> 3 & 3) % 3),
                                   .tools = gy_json_root(doc)};
    const char *s = (const char *)data + 2;
    result whole = scan(&o, s, size - 2, size), cut = scan(&o, s, size - 2, 1 + data[1] % 32u);
    same(&whole.thoughts, &cut.thoughts);
    same(&whole.content, &cut.content);
    same(&whole.calls, &cut.calls);
    GY_CHECK(!o.one_call || whole.n_call <= 1);
    if (gy_utf8_valid(s, size - 2)) {
        GY_CHECK(gy_utf8_valid(gy_str_z(&whole.thoughts), whole.thoughts.len));
        GY_CHECK(gy_utf8_valid(gy_str_z(&whole.content), whole.content.len));
        GY_CHECK(gy_utf8_valid(gy_str_z(&whole.calls), whole.calls.len));
    }
    result_free(&whole);
    result_free(&cut);
    gy_json_free(doc);
    return 0;
}
