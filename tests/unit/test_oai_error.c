/* Errors: every row of the table on the wire, headers, what gyre says put into it, and hostile text in messages. */
#include "base_test.h"

#include "base/json.h"
#include "server/oai_error.h"

typedef struct wire {
    gy_oai_error_kind kind;
    int http;
    const char *type, *code; /* code NULL: null */
    const char *headers;
    int close;
} wire;

static const wire table[] = {
    {GY_OAI_E_BAD_REQUEST, 400, "invalid_request_error", NULL, "", 0},
    {GY_OAI_E_UNSUPPORTED, 400, "invalid_request_error", "unsupported_parameter", "", 0},
    {GY_OAI_E_CONTEXT, 400, "invalid_request_error", "context_length_exceeded", "", 0},
    {GY_OAI_E_TOO_LARGE, 400, "invalid_request_error", "request_too_large", "", 0},
    {GY_OAI_E_KEY, 401, "authentication_error", "invalid_api_key", "WWW-Authenticate: Bearer\r\n", 0},
    {GY_OAI_E_FORBIDDEN, 403, "permission_error", "forbidden", "", 0},
    {GY_OAI_E_MODEL, 404, "invalid_request_error", "model_not_found", "", 0},
    {GY_OAI_E_ROUTE, 404, "invalid_request_error", "unknown_url", "", 0},
    {GY_OAI_E_METHOD, 405, "invalid_request_error", "method_not_allowed", "Allow: GET, HEAD\r\n", 0},
    {GY_OAI_E_DEADLINE, 408, "timeout_error", "deadline_exceeded", "", 1},
    {GY_OAI_E_BODY_SIZE, 413, "invalid_request_error", "body_too_large", "", 1},
    {GY_OAI_E_CONTENT_TYPE, 415, "invalid_request_error", "unsupported_media_type", "", 0},
    {GY_OAI_E_HEADER_SIZE, 431, "invalid_request_error", "headers_too_large", "", 1},
    {GY_OAI_E_HTTP, 400, "invalid_request_error", "bad_http_request", "", 1},
    {GY_OAI_E_QUEUE, 429, "rate_limit_error", "queue_full", "Retry-After: 1\r\n", 0},
    {GY_OAI_E_NUMERIC, 500, "server_error", "not_a_number", "x-should-retry: false\r\n", 0},
    {GY_OAI_E_INTERNAL, 500, "server_error", "internal_error", "", 0},
    {GY_OAI_E_LOADING, 503, "unavailable_error", "loading", "Retry-After: 5\r\n", 0},
    {GY_OAI_E_DRAINING, 503, "unavailable_error", "draining", "Retry-After: 5\r\n", 1},
    {GY_OAI_E_DEAD, 503, "unavailable_error", "engine_dead", "Retry-After: 30\r\n", 0},
    {GY_OAI_E_BUSY, 503, "unavailable_error", "busy", "Retry-After: 1\r\n", 0},
    {GY_OAI_E_CANCELLED, 503, "unavailable_error", "cancelled", "Retry-After: 1\r\n", 0},
};

static gy_json *parse(const char *text, size_t n) {
    gy_json *doc = NULL;
    gy_err err;
    if (gy_json_parse(text, n, NULL, &err, &doc) < 0) fail_msg("%s in %.*s", err.msg, (int)n, text);
    return doc;
}

static void check_row(const wire *w) {
    gy_oai_error e;
    gy_str s = {0};
    gy_status st = gy_oai_error_set(&e, w->kind, "x.y", "x.y: found %d, expected 3", 7);
    assert_true(st < 0);
    assert_int_equal(e.http, w->http);
    assert_int_equal(e.close, w->close);
    if (w->kind == GY_OAI_E_METHOD) e.allow = "GET, HEAD";
    gy_oai_error_headers(&e, &s);
    assert_string_equal(gy_str_z(&s), w->headers);
    gy_str_clear(&s);
    gy_oai_error_body(&e, &s);
    gy_json *doc = parse(s.data, s.len);
    const gy_jv *body = gy_json_root(doc), *err = gy_jv_get(body, "error");
    assert_int_equal(gy_jv_len(body), 1);
    assert_int_equal(gy_jv_len(err), 4);
    assert_true(gy_jv_is_str(gy_jv_get(err, "message"), "x.y: found 7, expected 3"));
    assert_true(gy_jv_is_str(gy_jv_get(err, "type"), w->type));
    assert_true(gy_jv_is_str(gy_jv_get(err, "param"), "x.y"));
    if (w->code)
        assert_true(gy_jv_is_str(gy_jv_get(err, "code"), w->code));
    else
        assert_int_equal(gy_jv_type(gy_jv_get(err, "code")), GY_J_NULL);
    gy_json_free(doc);
    gy_str_free(&s);
}

static void every_kind(void **state) {
    (void)state;
    assert_int_equal(sizeof table / sizeof *table, GY_OAI_E_COUNT - 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_row(&table[i]);
}

static void golden_body_and_frame(void **state) {
    (void)state;
    gy_oai_error e;
    gy_str s = {0};
    gy_oai_error_set(&e, GY_OAI_E_MODEL, "model", "the model 'x' is not served here");
    gy_oai_error_body(&e, &s);
    assert_string_equal(s.data,
                        "{\"error\":{\"message\":\"the model 'x' is not served here\","
                        "\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}");
    gy_str_clear(&s);
    gy_oai_error_set(&e, GY_OAI_E_INTERNAL, NULL, "internal error");
    gy_oai_error_frame(&e, &s);
    assert_string_equal(s.data, "data: {\"error\":{\"message\":\"internal error\",\"type\":\"server_error\","
                                "\"param\":null,\"code\":\"internal_error\"}}\n\n");
    gy_str_free(&s);
}

/* Invalid UTF-8, quotes and line ends in the error path: still one line of valid JSON. */
static void hostile_message(void **state) {
    (void)state;
    gy_oai_error e;
    gy_str s = {0};
    gy_oai_error_set(&e, GY_OAI_E_BAD_REQUEST, "a\xff\"b", "\xC3 \n\n \"q\" \x01 \xED\xA0\xBD end");
    gy_oai_error_frame(&e, &s);
    assert_non_null(strstr(s.data, "\\n\\n"));
    assert_ptr_equal(strstr(s.data, "\n\n"), s.data + s.len - 2);
    assert_true(gy_utf8_valid(s.data, s.len));
    gy_json *doc = parse(s.data + 6, s.len - 8);
    gy_json_free(doc);
    gy_str_free(&s);
}

static void long_message_is_cut(void **state) {
    (void)state;
    gy_oai_error e;
    char big[4000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    gy_oai_error_set(&e, GY_OAI_E_BAD_REQUEST, big, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_int_equal(strlen(e.param), sizeof e.param - 1);
}

typedef struct said {
    gyre_status status;
    const char *msg;
    gy_oai_error_kind kind;
    const char *param, *out;
} said;

static const said sayings[] = {
    {GYRE_E_ARG, "temperature: found -1; allowed 0 (greedy) or more, finite", GY_OAI_E_BAD_REQUEST, "temperature",
     "temperature: found -1; allowed 0 (greedy) or more, finite"},
    {GYRE_E_ARG, "stop_ids: found 3 ids, expected 0 or more", GY_OAI_E_BAD_REQUEST, "stop_token_ids",
     "stop_token_ids: found 3 ids, expected 0 or more"},
    {GYRE_E_ARG, "trace[3]: found 9 loops, expected 1 to 4", GY_OAI_E_BAD_REQUEST, "trace",
     "trace[3]: found 9 loops, expected 1 to 4"},
    {GYRE_E_ARG, "want_gates: a huginn model has no exit gate", GY_OAI_E_BAD_REQUEST, "gates",
     "gates: a huginn model has no exit gate"},
    {GYRE_E_ARG, "something without a field", GY_OAI_E_BAD_REQUEST, "", "something without a field"},
    {GYRE_E_ARG, NULL, GY_OAI_E_BAD_REQUEST, "", "the request cannot be served"},
    {GYRE_E_LIMIT, "prompt of 9 tokens + max_tokens 9 = 18, expected at most 16 (context)", GY_OAI_E_CONTEXT, "prompt",
     "prompt of 9 tokens + max_tokens 9 = 18, expected at most 16 (context)"},
    {GYRE_E_LIMIT, "prompt of 9 tokens + max_tokens 9: needs 8 KV blocks at full depth, the pool has 4",
     GY_OAI_E_TOO_LARGE, "prompt",
     "prompt of 9 tokens + max_tokens 9: needs 8 KV blocks at full depth, the pool has 4"},
    {GYRE_E_LIMIT, "n: found 99 choices, the queue holds 8; raise max_queue", GY_OAI_E_TOO_LARGE, "n",
     "n: found 99 choices, the queue holds 8; raise max_queue"},
    {GYRE_E_UNSUPPORTED, "exit_on_prompt: the rule would need the head", GY_OAI_E_UNSUPPORTED, "exit_on_prompt",
     "exit_on_prompt: the rule would need the head"},
    {GYRE_AGAIN, "queue", GY_OAI_E_QUEUE, "", NULL},
    {GYRE_E_CANCELLED, "x", GY_OAI_E_CANCELLED, "", NULL},
    {GYRE_E_NUMERIC, "row 3 at 0x7ffd1234", GY_OAI_E_NUMERIC, "", NULL},
    {GYRE_E_PEER, "10.0.0.7:99", GY_OAI_E_BUSY, "", NULL},
    {GYRE_E_TIMEOUT, "x", GY_OAI_E_BUSY, "", NULL},
    {GYRE_E_NOMEM, "no memory for 3 events", GY_OAI_E_BUSY, "", NULL},
    {GYRE_E_IO, "/secret/path: no such file", GY_OAI_E_INTERNAL, "", NULL},
    {GYRE_E_FORMAT, "/secret/path: bad", GY_OAI_E_INTERNAL, "", NULL},
    {GYRE_E_DEVICE, "/secret/path", GY_OAI_E_DEAD, "", NULL},
    {GYRE_E_BUG, "src/engine/step.c:12", GY_OAI_E_INTERNAL, "", NULL},
};

/* What comes from inside is never quoted: no path, no address, no host. */
static void gyre_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sayings / sizeof *sayings; i++) {
        const said *s = &sayings[i];
        gy_oai_error e;
        assert_true(gy_oai_error_from_status(&e, s->status, s->msg) < 0);
        assert_int_equal(e.kind, s->kind);
        assert_string_equal(e.param, s->param);
        if (s->out) assert_string_equal(e.msg, s->out);
        if (!s->out) assert_null(strstr(e.msg, s->msg));
        assert_null(strchr(e.msg, '/'));
        assert_null(strstr(e.msg, "0x"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),      cmocka_unit_test(golden_body_and_frame),
        cmocka_unit_test(hostile_message), cmocka_unit_test(long_message_is_cut),
        cmocka_unit_test(gyre_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
