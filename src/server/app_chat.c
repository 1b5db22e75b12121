/* Messages to a prompt, through the template that the model's folder holds (text/chat.h). */
#include "server/app_int.h"
#include "server/app_model.h"

#include "base/mem.h"
#include "text/chat.h"

#include <string.h>
#include <time.h>

struct gy_app_chat {
    gy_chat *chat; /* never NULL; may be without a template */
};

gy_status gy_app_chat_open(const gy_app_opts *o, gy_err *err, gy_app_chat **out) {
    gy_app_chat *c = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *c);
    if (!c) return gy_err_set(err, GY_E_NOMEM, "chat: no memory");
    gy_status st = gy_chat_load(o->dir, o->template_path, NULL, err, &c->chat);
    if (st < 0) {
        gy_app_chat_close(c);
        return st;
    }
    *out = c;
    return GY_OK;
}

void gy_app_chat_close(gy_app_chat *c) {
    if (!c) return;
    gy_chat_close(c->chat);
    gy_mem_free(c);
}

/* Where in the template it happened is told by the file's name; where that file lies is nobody's business. */
static const char *without_folder(const gy_app *a, const char *msg) {
    const char *path = a->o.template_path;
    const char *slash = path ? strrchr(path, '/') : NULL;
    size_t n = path ? (slash ? (size_t)(slash - path) : 0) : strlen(a->o.dir);
    if (n && !strncmp(msg, path ? path : a->o.dir, n)) return msg + n + strspn(msg + n, "/");
    return msg;
}

/* The sentences of text/chat.h are about what was sent, and name the field. */
static gy_status chat_error(const gy_app *a, gy_oai_error *e, gy_status st, const gy_err *err) {
    if (st == GY_E_ARG || st == GY_E_LIMIT || st == GY_E_UNSUPPORTED)
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, "messages", "%s", without_folder(a, err->msg));
    return gy_oai_error_from_status(e, (gyre_status)st, err->msg);
}

/* An effort that the template has no word for is at least a wish to think, or not to. */
static int enable_thinking(const gy_chat *c, const gy_oai_request *q) {
    int told = q->enable_thinking >= 0 || !q->reasoning_effort || gy_chat_reads(c, "reasoning_effort");
    return told ? q->enable_thinking : 1;
}

static gy_status render(gy_app *a, const gy_oai_request *q, gy_oai_error *e, gy_jinja_out *out) {
    gy_err err = {0};
    if (!gy_chat_has_template(a->model->chat->chat))
        return gy_oai_error_set(
            e, GY_OAI_E_BAD_REQUEST, "messages",
            "messages: this model has no chat template: start the server with --chat-template FILE, "
            "or send the whole prompt as text to /v1/completions");
    struct tm now;
    time_t t = time(NULL);
    const char *effort = q->reasoning_effort;
    localtime_r(&t, &now);
    const gy_chat_options o = {.add_generation_prompt = q->add_generation_prompt,
                               .continue_final_message = q->continue_final_message,
                               .enable_thinking = enable_thinking(a->model->chat->chat, q),
                               .reasoning_effort = effort && strcmp(effort, "none") != 0 ? effort : NULL,
                               .kwargs = q->template_kwargs,
                               .now = &now};
    const gy_jv *messages = gy_jv_get(gy_json_root(q->doc), "messages");
    const gy_jv *tools = q->tool_choice == GY_OAI_TOOL_NONE ? NULL : q->tools;
    gy_status st = gy_chat_render(a->model->chat->chat, messages, tools, &o, &err, out);
    return st < 0 ? chat_error(a, e, st, &err) : GY_OK;
}

gy_status gy_app_chat_text(gy_app *a, const gy_oai_request *q, gy_oai_error *e, gy_str *out) {
    gy_jinja_out text = {0};
    GY_TRY(render(a, q, e, &text));
    gy_str_append(out, gy_str_z(&text.text), text.text.len);
    gy_jinja_out_free(&text);
    return out->failed ? gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this text now; try again later")
                       : GY_OK;
}

int gy_app_has_template(const gy_app *a) {
    return gy_chat_has_template(a->model->chat->chat);
}

int gy_app_chat_says(const gy_app *a, const char *text) {
    return gy_chat_says(a->model->chat->chat, text);
}

int gy_app_chat_reads(const gy_app *a, const char *name) {
    return gy_chat_reads(a->model->chat->chat, name);
}

/* Nothing but white space behind a "<think>" that the template itself wrote. */
static int ends_in_thought(const gy_jinja_out *o) {
    static const char mark[] = "<think>";
    size_t end = o->text.len, n = sizeof mark - 1;
    while (end && strchr(" \t\r\n", o->text.data[end - 1])) end--;
    if (end < n || memcmp(o->text.data + end - n, mark, n) != 0) return 0;
    size_t i = o->seg.len;
    while (i && o->seg.data[i - 1].off >= end) i--;
    return i && !o->seg.data[i - 1].is_data && o->seg.data[i - 1].off <= end - n;
}

gy_status gy_app_chat_ids(gy_app_scratch *t, const gy_oai_request *q, gy_oai_error *e, gy_vec_i32 *ids,
                          int *in_reasoning) {
    gy_app *a = t->app;
    gy_jinja_out text = {0};
    gy_err err = {0};
    if (!a->model->tok)
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, "messages",
                                "messages: this model has no tokenizer; send a prompt of token ids to /v1/completions");
    GY_TRY(render(a, q, e, &text));
    gy_status st = gy_chat_encode(a->model->chat->chat, t->ctx, &text, &err, ids);
    if (in_reasoning) *in_reasoning = ends_in_thought(&text);
    gy_jinja_out_free(&text);
    return st < 0 ? chat_error(a, e, st, &err) : GY_OK;
}
