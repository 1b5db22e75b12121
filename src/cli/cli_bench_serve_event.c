/* Fields of OpenAI's chunks, vLLM's and gyre's: see cli_bench_serve_event.h. */
#include "cli/cli_bench_serve_event.h"

#include "base/json.h"

static size_t add_text(const gy_jv *v, gy_str *text) {
    size_t len = 0;
    const char *s = gy_jv_str(v, &len);
    if (s && text) gy_str_append(text, s, len);
    return s ? len : 0;
}

/* Reasoning is output, but no part of what a later turn repeats. */
static size_t output_bytes(const gy_jv *choice, gy_str *text) {
    const gy_jv *delta = gy_jv_get(choice, "delta");
    if (!delta) return add_text(gy_jv_get(choice, "text"), text);
    return add_text(gy_jv_get(delta, "content"), text) + add_text(gy_jv_get(delta, "reasoning_content"), NULL) +
           add_text(gy_jv_get(delta, "reasoning"), NULL) + gy_jv_len(gy_jv_get(delta, "tool_calls"));
}

static void read_choice(const gy_jv *choice, gy_str *text, gy_bserve_event *out) {
    const gy_jtype reason = gy_jv_type(gy_jv_get(choice, "finish_reason"));
    const int silent = gy_jv_get(gy_jv_get(choice, "delta"), "role") || reason == GY_J_STRING;
    const gy_jv *loops = gy_jv_get(choice, "loops");
    out->has_choice = 1;
    if (output_bytes(choice, text) || !silent) out->is_token = 1;
    for (size_t i = 0; i < gy_jv_len(loops); i++) out->loops += gy_jv_int(gy_jv_at(loops, i), 0);
    out->n_loop_tok += (int32_t)gy_jv_len(loops);
}

static void read_usage(const gy_jv *usage, gy_bserve_event *out) {
    const gy_jv *details = gy_jv_get(usage, "prompt_tokens_details");
    out->n_prompt = gy_jv_int(gy_jv_get(usage, "prompt_tokens"), -1);
    out->n_out = gy_jv_int(gy_jv_get(usage, "completion_tokens"), -1);
    out->n_cached = gy_jv_int(gy_jv_get(details, "cached_tokens"), -1);
}

int gy_bserve_event_read(const char *data, size_t len, gy_str *text, gy_bserve_event *out) {
    gy_json *doc = NULL;
    gy_bserve_event e = {.n_prompt = -1, .n_out = -1, .n_cached = -1};
    if (gy_json_parse(data, len, NULL, NULL, &doc) < 0) return -1;
    const gy_jv *root = gy_json_root(doc), *choices = gy_jv_get(root, "choices");
    const int bad = gy_jv_type(root) != GY_J_OBJECT;
    for (size_t i = 0; i < gy_jv_len(choices); i++) read_choice(gy_jv_at(choices, i), text, &e);
    if (gy_jv_type(gy_jv_get(root, "usage")) == GY_J_OBJECT) read_usage(gy_jv_get(root, "usage"), &e);
    gy_json_free(doc);
    if (bad) return -1;
    *out = e;
    return 0;
}
