/* A question and its answer: asked, shown, counted, kept; and what is said when it failed. */
#include "cli/cli_chat_int.h"

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static int is_usage(const gy_chat_reply *r) {
    int s = r->http_status;
    return r->end == GY_OAI_HTTP && s >= 400 && s < 500 && s != 408 && s != 429;
}

static void hint(const gy_chat_session *c, gy_chat_why why) {
    if (why == GY_CHAT_WHY_CONTEXT && c->interactive)
        fprintf(
            stderr,
            "gyre: the conversation is too long for the model's context. /trim forgets its oldest message (/save FILE "
            "keeps all), /clear everything; /retry then asks again.\n");
    if (why != GY_CHAT_WHY_TEMPLATE) return;
    if (c->interactive)
        fprintf(stderr, "gyre: /raw lets the model continue plain text, /retry then asks again%s\n",
                c->local ? "; or start with --chat-template FILE." : ".");
    else
        fprintf(stderr, "gyre: --raw lets the model continue plain text%s\n",
                c->local ? "; so does gyre run. Or give a --chat-template FILE." : ".");
}

static void tell_failure(gy_chat_session *c, const gy_chat_reply *r) {
    gy_err why;
    if (c->local && gy_chat_local_is_gone(c->local, &why)) {
        gy_chat_complain(&why);
        c->is_over = 1;
        c->rc = GY_CLI_FAILED;
        return;
    }
    fprintf(stderr, "gyre: %s\n", r->msg.len ? gy_str_z(&r->msg) : gy_oai_end_name(r->end));
    hint(c, r->why);
    if (!c->interactive) c->rc = is_usage(r) ? GY_CLI_USAGE : GY_CLI_FAILED;
}

static void count(gy_chat_session *c, const gy_chat_reply *r) {
    int64_t out = r->n_output >= 0 ? r->n_output : r->n_seen;
    if (!r->first_ns) return;
    c->n_answer++;
    c->n_output += out;
    if (r->n_prompt > 0) c->n_prompt += r->n_prompt;
    if (r->n_cached > 0) c->n_cached += r->n_cached;
    c->sum_ttft += gy_chat_reply_ttft(r);
    c->sum_s += (double)(r->last_ns - r->first_ns) / 1e9;
    c->used = r->n_prompt >= 0 ? r->n_prompt + out : -1;
    if (r->depths.deepest > c->most) c->most = r->depths.deepest;
    gy_chat_depths_merge(&c->depths, &r->depths);
}

static void warn_of_context(const gy_chat_session *c) {
    int64_t left = c->max_len - c->used;
    if (c->interactive && c->max_len && c->used > 0 && left < c->max_len / 10)
        gy_cli_note("%lld of %lld tokens of context are left; /trim forgets the oldest message",
                    (long long)(left < 0 ? 0 : left), (long long)c->max_len);
}

/* The question and what came of its answer join the conversation; nothing came: it waits for /retry. */
static gy_status keep(gy_chat_session *c, gy_chat_reply *r, gy_err *err) {
    if (!r->answer.len && r->end != GY_OAI_DONE) return GY_OK;
    gy_chat_turn turn = {
        .question = c->question, .answer = r->answer, .reasoning = r->reasoning, .stopped = r->end != GY_OAI_DONE};
    c->question = r->answer = r->reasoning = (gy_str){0};
    return gy_chat_talk_add(&c->talk, &turn, err);
}

void gy_chat_answer(gy_chat_session *c) {
    gy_chat_reply r;
    gy_err err = {0};
    if (c->interactive) gy_chat_term_mute(c->term, 1);
    c->view.width = gy_chat_term_width();
    gy_status st = gy_chat_ask(c->client, &c->talk, c->model, &c->question, c->most, &c->view, &err, &r);
    if (c->interactive) gy_chat_term_mute(c->term, 0);
    if (st >= 0) {
        count(c, &r);
        if (r.end != GY_OAI_DONE && r.end != GY_OAI_CANCELLED) tell_failure(c, &r);
        if (r.end == GY_OAI_CANCELLED && !c->interactive) c->rc = GY_CLI_FAILED;
        st = keep(c, &r, &err);
        warn_of_context(c);
    }
    gy_chat_reply_fini(&r);
    if (st >= 0) return;
    gy_chat_complain(&err);
    c->is_over = 1;
    c->rc = GY_CLI_FAILED;
}

void gy_chat_ask_text(gy_chat_session *c, const char *text, size_t n) {
    gy_str_clear(&c->question);
    gy_str_append(&c->question, text, n);
    if (!c->question.failed) {
        gy_chat_answer(c);
        return;
    }
    gy_err err = {.status = GY_E_NOMEM, .msg = "no memory for the message"};
    gy_chat_complain(&err);
    c->is_over = 1;
    c->rc = GY_CLI_FAILED;
}
