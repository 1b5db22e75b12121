/* Any bytes as the body of any POST. The first byte chooses the route, the rest is the body. Either it is refused with
 * a status of a client's mistake, a sentence and a body that is JSON; or it becomes a request that holds together, and
 * a reply to it is made of valid frames.
 */
#include "base/json.h"
#include "server/oai_reply.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(const char *text, size_t n) {
    gy_json *doc = NULL;
    gy_err err;
    GY_CHECK(gy_json_parse(text, n, NULL, &err, &doc) == GY_OK);
    gy_json_free(doc);
}

static void check_error(const gy_oai_error *e) {
    gy_str s = {0};
    GY_CHECK(e->http == 400 || e->http == 404);
    GY_CHECK(e->msg[0] && gy_utf8_valid(e->msg, strlen(e->msg)) && gy_utf8_valid(e->param, strlen(e->param)));
    gy_oai_error_body(e, &s);
    check_json(s.data, s.len);
    gy_str_free(&s);
}

static void check_run(const gy_oai_request *r, const gyre_request *q) {
    GY_CHECK(q->size == sizeof *q && q->n >= 1 && q->n <= 128 && !(q->prompt && q->prompt_ids));
    GY_CHECK(q->temperature >= 0 && q->top_p > 0 && q->top_p <= 1 && q->min_p >= 0 && q->min_p < 1);
    GY_CHECK(q->repetition_penalty > 0 && isfinite(q->repetition_penalty) && q->max_tokens >= 0 && q->top_k >= 0);
    GY_CHECK(q->logprobs >= -1 && q->logprobs <= 20 && q->prompt_logprobs >= -1 && q->prompt_logprobs <= 20);
    GY_CHECK(q->n_stop >= 0 && q->n_stop <= 4 && (q->max_tokens == 0 || q->min_tokens <= q->max_tokens));
    for (int32_t i = 0; i < q->n_stop; i++) GY_CHECK(q->stop[i].n > 0 && gy_utf8_valid(q->stop[i].s, q->stop[i].n));
    for (int32_t i = 0; i < q->n_bias; i++)
        GY_CHECK(q->bias[i].id >= 0 && q->bias[i].id < 1000 && fabsf(q->bias[i].bias) <= 100);
    for (int32_t i = 0; i < q->n_prompt_ids; i++) GY_CHECK(q->prompt_ids[i] >= 0 && q->prompt_ids[i] < 1000);
    GY_CHECK((int64_t)r->n_prompt * q->n <= 1024 && q->exit);
}

static const char *piece(void *user, int32_t id, size_t *n) {
    (void)user;
    *n = 2;
    return id % 2 ? "\xE2\x82" : "ab";
}

static void reply_to(const gy_oai_request *q) {
    static const int32_t ids[] = {1, 2};
    gy_oai_reply_options o = {.id = "id", .created_s = 1, .piece = piece};
    gy_oai_reply *r = NULL;
    gy_oai_error e = {.kind = GY_OAI_E_NONE};
    gy_str out = {0};
    gyre_logprob top[2] = {{3, -1.0f}, {4, NAN}};
    float gate = 0.3f;
    gyre_finish f = {.reason = GYRE_FINISH_LENGTH, .stop_string = -1, .stop_id = -1, .n_prompt = 2, .n_output = 1};
    gy_status st = GY_OK;
    GY_CHECK(gy_oai_reply_create(q, &o, &r) == GY_OK);
    for (int32_t p = 0; p < q->n_prompt; p++) {
        GY_CHECK(gy_oai_reply_prompt(r, p, ids, 2, "ab\xE2", 3) == GY_OK);
        for (int32_t k = 0; k < q->base.n; k++) {
            gyre_event ev = {
                .kind = GYRE_EVENT_TOKEN, .choice = k, .id = 3, .loops = 2, .text = "\n\n\xff", .n_text = 3};
            ev.top = top;
            ev.n_top = 2;
            ev.gates = &gate;
            ev.n_gate = 1;
            GY_CHECK(gy_oai_reply_event(r, p, &ev, NULL, &out, &e) == GY_OK);
            ev.kind = GYRE_EVENT_FINISH;
            ev.finish = &f;
            st = gy_oai_reply_event(r, p, &ev, NULL, &out, &e);
        }
    }
    GY_CHECK(st == GY_DONE);
    if (!q->stream) check_json(out.data, out.len);
    for (char *s = out.data, *gap; q->stream && (gap = strstr(s, "\n\n")); s = gap + 2)
        if (s[6] == '{') check_json(s + 6, (size_t)(gap - s - 6));
    gy_oai_reply_destroy(r);
    gy_str_free(&out);
}

static gy_oai_kind route_of(uint8_t c) {
    switch (c) {
    case 'c':
        return GY_OAI_COMPLETION;
    case 't':
        return GY_OAI_TOKENIZE;
    case 'd':
        return GY_OAI_DETOKENIZE;
    case 'a':
        return GY_OAI_TEMPLATE;
    default:
        return GY_OAI_CHAT;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const models[] = {"m"};
    gy_oai_config c;
    gy_oai_error e = {.kind = GY_OAI_E_NONE};
    gy_oai_request *r = NULL;
    if (!size) return 0;
    gy_oai_kind kind = route_of(data[0]);
    gy_oai_config_default(&c);
    c.models = models;
    c.n_model = 1;
    c.n_vocab = 1000;
    c.max_len = 4096;
    c.max_loops = 4;
    if (gy_oai_request_parse(kind, (const char *)data + 1, size - 1, &c, &e, &r) < 0) {
        check_error(&e);
        return 0;
    }
    GY_CHECK(r->n_prompt >= 1);
    for (int32_t i = 0; i < r->n_prompt; i++) check_run(r, &r->run[i]);
    if (kind == GY_OAI_COMPLETION || kind == GY_OAI_CHAT) reply_to(r);
    gy_oai_request_free(r);
    return 0;
}
