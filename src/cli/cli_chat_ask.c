/* Events to text and figures. What servers call things: "content", "reasoning_content" (vLLM, llama.cpp, gyre) or
 * "reasoning" (newer vLLM), "text" of /v1/completions; "loops" is gyre's own.
 */
#include "cli/cli_chat_ask.h"

#include "base/clock.h"
#include "cli/cli_args.h"
#include "cli/cli_chat_signal.h"
#include "cli/cli_chat_term.h"

#include <stdio.h>
#include <string.h>

typedef struct asking {
    gy_chat_reply *r;
    gy_chat_view *v;
    int32_t most; /* loops of the model, or the deepest seen */
    int is_done;
} asking;

/* ---- an event ---------------------------------------------------------------------------------------------------- */

static size_t put_piece(asking *q, gy_chat_kind kind, const gy_jv *text, int32_t loops, gy_str *keep) {
    size_t n = 0;
    const char *s = gy_jv_str(text, &n);
    if (!s || !n) return 0;
    if (keep) gy_str_append(keep, s, n);
    gy_chat_view_text(q->v, kind, s, n, loops, q->most);
    return n;
}

/* name({"argument": ...}), as the pieces come. */
static size_t put_tools(asking *q, const gy_jv *calls, int32_t loops) {
    size_t n = 0;
    for (size_t i = 0; i < gy_jv_len(calls); i++) {
        const gy_jv *f = gy_jv_get(gy_jv_at(calls, i), "function");
        size_t named = put_piece(q, GY_CHAT_TOOL, gy_jv_get(f, "name"), loops, NULL);
        if (named) gy_chat_view_text(q->v, GY_CHAT_TOOL, " ", 1, loops, q->most);
        n += named + put_piece(q, GY_CHAT_TOOL, gy_jv_get(f, "arguments"), loops, NULL);
    }
    return n;
}

static size_t put_choice(asking *q, const gy_jv *choice, int32_t loops) {
    const gy_jv *delta = gy_jv_get(choice, "delta");
    size_t n = put_piece(q, GY_CHAT_REASONING, gy_jv_get(delta, "reasoning_content"), loops, &q->r->reasoning);
    if (!n) n = put_piece(q, GY_CHAT_REASONING, gy_jv_get(delta, "reasoning"), loops, &q->r->reasoning);
    n += put_piece(q, GY_CHAT_CONTENT, gy_jv_get(delta, "content"), loops, &q->r->answer);
    n += put_piece(q, GY_CHAT_CONTENT, gy_jv_get(choice, "text"), loops, &q->r->answer);
    return n + put_tools(q, gy_jv_get(delta, "tool_calls"), loops);
}

static void take_usage(gy_chat_reply *r, const gy_jv *usage) {
    if (gy_jv_type(usage) != GY_J_OBJECT) return;
    r->n_prompt = gy_jv_int(gy_jv_get(usage, "prompt_tokens"), r->n_prompt);
    r->n_output = gy_jv_int(gy_jv_get(usage, "completion_tokens"), r->n_output);
    r->n_cached = gy_jv_int(gy_jv_get(gy_jv_get(usage, "prompt_tokens_details"), "cached_tokens"), r->n_cached);
}

static int32_t take_loops(asking *q, const gy_jv *loops) {
    int32_t last = 0;
    for (size_t i = 0; i < gy_jv_len(loops); i++) {
        int64_t x = gy_jv_int(gy_jv_at(loops, i), 0);
        if (x < 1 || x > 1 << 20) continue;
        last = (int32_t)x;
        gy_chat_depths_add(&q->r->depths, last);
        if (last > q->most) q->most = last;
    }
    return last;
}

static int on_event(void *user, int64_t at_ns, const char *data, size_t len) {
    asking *q = user;
    gy_json *doc = NULL;
    if (gy_json_parse(data, len, NULL, NULL, &doc) < 0) return -1;
    const gy_jv *root = gy_json_root(doc), *choice = gy_jv_at(gy_jv_get(root, "choices"), 0);
    const char *finish = gy_jv_str(gy_jv_get(choice, "finish_reason"), NULL);
    size_t n_loops = gy_jv_len(gy_jv_get(choice, "loops"));
    int32_t loops = take_loops(q, gy_jv_get(choice, "loops"));
    size_t n = put_choice(q, choice, loops);
    if (n || n_loops) {
        if (!q->r->first_ns) q->r->first_ns = at_ns;
        q->r->last_ns = at_ns;
        q->r->n_seen += n_loops ? (int64_t)n_loops : 1;
    }
    if (finish) snprintf(q->r->finish, sizeof q->r->finish, "%s", finish);
    take_usage(q->r, gy_jv_get(root, "usage"));
    int is_object = gy_jv_type(root) == GY_J_OBJECT;
    gy_json_free(doc);
    return is_object ? 0 : -1;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Codes are gyre's and llama.cpp's; sentences where a server has no code for it (vLLM). */
static gy_chat_why reason(const char *body, size_t n, const char *msg) {
    static const char *const context[] = {"context length", "context size", "context window", "(context)"};
    gy_json *doc = NULL;
    gy_chat_why why = GY_CHAT_WHY_OTHER;
    if (n && gy_json_parse(body, n, NULL, NULL, &doc) >= 0) {
        const gy_jv *e = gy_jv_get(gy_json_root(doc), "error");
        if (gy_jv_is_str(gy_jv_get(e, "code"), "context_length_exceeded") ||
            gy_jv_is_str(gy_jv_get(e, "type"), "exceed_context_size_error"))
            why = GY_CHAT_WHY_CONTEXT;
        gy_json_free(doc);
    }
    for (size_t i = 0; i < sizeof context / sizeof *context; i++)
        if (strstr(msg, context[i])) why = GY_CHAT_WHY_CONTEXT;
    return strstr(msg, "chat template") ? GY_CHAT_WHY_TEMPLATE : why;
}

static void on_end(void *user, const gy_oai_result *res) {
    asking *q = user;
    gy_chat_reply *r = q->r;
    q->is_done = 1;
    r->end = res->end;
    r->http_status = res->http_status;
    if (res->end == GY_OAI_DONE || res->end == GY_OAI_CANCELLED) return;
    r->why = reason(res->body, res->body_len, res->msg);
    gy_chat_clean_line(res->msg, strlen(res->msg), &r->msg);
}

void gy_chat_reply_fini(gy_chat_reply *r) {
    gy_str_free(&r->answer);
    gy_str_free(&r->reasoning);
    gy_str_free(&r->msg);
}

double gy_chat_reply_rate(const gy_chat_reply *r) {
    int64_t n = r->n_output > r->n_seen ? r->n_output : r->n_seen;
    return n > 1 && r->last_ns > r->first_ns ? (double)(n - 1) * 1e9 / (double)(r->last_ns - r->first_ns) : 0;
}

double gy_chat_reply_ttft(const gy_chat_reply *r) {
    return r->first_ns ? (double)(r->first_ns - r->begin_ns) / 1e9 : 0;
}

/* ---- the wait ---------------------------------------------------------------------------------------------------- */

static gy_chat_status status_of(const gy_chat_reply *r, int32_t most) {
    return (gy_chat_status){.depths = &r->depths,
                            .most = most,
                            .n_tok = r->n_output > 0 ? r->n_output : r->n_seen,
                            .tok_s = gy_chat_reply_rate(r),
                            .ttft_s = gy_chat_reply_ttft(r)};
}

static gy_status wait_end(gy_oai *c, gy_oai_call *call, asking *q, gy_err *err) {
    int cancelled = 0;
    int64_t drawn_for = 0;
    while (!q->is_done) {
        int64_t until = -1;
        if (!cancelled && (gy_chat_took_interrupt() || gy_chat_is_ending() || gy_cli_flush())) {
            gy_oai_cancel(call);
            cancelled = 1;
        }
        if (gy_chat_took_resize()) {
            gy_chat_view_resize(q->v, gy_chat_term_width());
            drawn_for = 0;
        }
        if (q->r->n_seen > drawn_for) {
            gy_chat_status s = status_of(q->r, q->most);
            int64_t again = gy_chat_view_status(q->v, &s, gy_clock_ns());
            if (again)
                until = again;
            else
                drawn_for = q->r->n_seen;
        }
        GY_TRY(gy_oai_step(c, until, err));
    }
    return GY_OK;
}

static const char *note_of(const gy_chat_reply *r) {
    if (r->end == GY_OAI_CANCELLED) return "stopped";
    if (r->end != GY_OAI_DONE) return r->n_seen ? "failed" : NULL;
    return !strcmp(r->finish, "length") ? "cut (length)" : NULL;
}

gy_status gy_chat_ask(gy_oai *c, const gy_chat_talk *t, const char *model, const gy_str *question, int32_t most,
                      gy_chat_view *v, gy_err *err, gy_chat_reply *out) {
    *out = (gy_chat_reply){.n_prompt = -1, .n_output = -1, .n_cached = -1};
    gy_str body = {0};
    asking q = {.r = out, .v = v, .most = most};
    const gy_oai_hooks hooks = {on_event, on_end};
    gy_oai_call *call = NULL;
    gy_chat_talk_body(t, model, gy_str_z(question), question->len, &body);
    if (body.failed) {
        gy_str_free(&body);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the request");
    }
    gy_chat_view_begin(v);
    out->begin_ns = gy_clock_ns();
    gy_status st = gy_oai_post(c, t->raw ? "/v1/completions" : "/v1/chat/completions", &body, &hooks, &q, err, &call);
    gy_str_free(&body);
    if (st < 0) return st;
    st = wait_end(c, call, &q, err);
    gy_chat_status s = status_of(out, q.most);
    s.note = note_of(out);
    gy_chat_view_end(v, &s);
    return st;
}
