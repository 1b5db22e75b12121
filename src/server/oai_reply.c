/* The life of a reply: create, events to the stream's or the body's writer, end, failure. */
#include "server/oai_reply.h"

#include "server/oai_reply_int.h"
#include "server/oai_write.h"

#include <string.h>

const char *gy_oai_finish_reason(gyre_finish_reason reason, int has_tools) {
    if (reason == GYRE_FINISH_STOP) return has_tools ? "tool_calls" : "stop";
    return reason == GYRE_FINISH_LENGTH ? "length" : NULL;
}

/* ---- create and destroy ----------------------------------------------------------------------------------------- */

static void put_head(gy_str *s, const gy_oai_request *q, const gy_oai_reply_options *o, const char *object,
                     int with_fp) {
    GY_OAI_PUT(s, "{\"id\":");
    gy_oai_put_strz(s, o->id);
    GY_OAI_PUT(s, ",\"object\":");
    gy_oai_put_strz(s, object);
    GY_OAI_PUT(s, ",\"created\":");
    gy_oai_put_int(s, o->created_s);
    GY_OAI_PUT(s, ",\"model\":");
    gy_oai_put_strz(s, q->model);
    if (with_fp) {
        GY_OAI_PUT(s, ",\"system_fingerprint\":");
        gy_oai_put_strz(s, o->fingerprint);
    }
    GY_OAI_PUT(s, ",\"choices\":[");
}

static int make_heads(gy_oai_reply *r, const gy_oai_reply_options *o) {
    const char *chunk = r->chat ? "chat.completion.chunk" : "text_completion";
    if (r->q->stream) {
        GY_OAI_PUT(&r->head, "data: ");
        put_head(&r->head, r->q, o, chunk, 0);
        GY_OAI_PUT(&r->head_last, "data: ");
        put_head(&r->head_last, r->q, o, chunk, 1);
    } else {
        put_head(&r->body_head, r->q, o, r->chat ? "chat.completion" : chunk, 1);
    }
    return r->head.failed | r->head_last.failed | r->body_head.failed;
}

gy_status gy_oai_reply_create(const gy_oai_request *q, const gy_oai_reply_options *o, gy_oai_reply **out) {
    gy_oai_reply *r = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *r);
    if (!r) return GY_E_NOMEM;
    r->q = q;
    r->o = *o;
    r->chat = q->kind == GY_OAI_CHAT;
    r->n = q->base.n;
    r->n_left = q->n_prompt * q->base.n;
    r->choices = gy_mem_alloc(GY_MEM_SERVER, (size_t)r->n_left, sizeof *r->choices);
    r->prompts = gy_mem_alloc(GY_MEM_SERVER, (size_t)q->n_prompt, sizeof *r->prompts);
    if (!r->choices || !r->prompts || make_heads(r, o)) {
        gy_oai_reply_destroy(r);
        return GY_E_NOMEM;
    }
    r->o.id = r->o.fingerprint = NULL;
    *out = r;
    return GY_OK;
}

static void choice_free(gy_oai_choice *c) {
    gy_str_free(&c->text);
    gy_str_free(&c->reasoning);
    gy_str_free(&c->loops);
    gy_str_free(&c->gates);
    gy_str_free(&c->ids);
    gy_oai_lp_free(&c->lp);
    for (size_t i = 0; i < c->calls.len; i++) {
        gy_str_free(&c->calls.data[i].id);
        gy_str_free(&c->calls.data[i].name);
        gy_str_free(&c->calls.data[i].arguments);
    }
    gy_vec_free(&c->calls);
}

static void prompt_free(gy_oai_rprompt *p) {
    gy_mem_free(p->ids);
    gy_str_free(&p->text);
    gy_oai_lp_free(&p->lp);
    gy_str_free(&p->explicit);
}

void gy_oai_reply_destroy(gy_oai_reply *r) {
    if (!r) return;
    for (int32_t i = 0; r->choices && i < r->q->n_prompt * r->n; i++) choice_free(&r->choices[i]);
    for (int32_t i = 0; r->prompts && i < r->q->n_prompt; i++) prompt_free(&r->prompts[i]);
    gy_mem_free(r->choices);
    gy_mem_free(r->prompts);
    gy_str_free(&r->head);
    gy_str_free(&r->head_last);
    gy_str_free(&r->body_head);
    gy_str_free(&r->scratch);
    gy_oai_lp_free(&r->one);
    gy_mem_free(r);
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static int needs_ids(const gy_oai_request *q) {
    return q->return_token_ids || q->base.prompt_logprobs >= 0;
}

gy_status gy_oai_reply_prompt(gy_oai_reply *r, int32_t prompt, const int32_t *ids, int32_t n_ids, const char *text,
                              size_t n_text) {
    GY_CHECK(prompt >= 0 && prompt < r->q->n_prompt);
    gy_oai_rprompt *p = &r->prompts[prompt];
    p->n_ids = n_ids;
    if (r->q->echo && text) gy_str_append(&p->text, text, n_text);
    if (p->text.failed) return GY_E_NOMEM;
    if (!needs_ids(r->q) || n_ids <= 0) return GY_OK;
    p->ids = gy_mem_alloc(GY_MEM_SERVER, (size_t)n_ids, sizeof *ids);
    if (!p->ids) return GY_E_NOMEM;
    memcpy(p->ids, ids, (size_t)n_ids * sizeof *ids);
    return GY_OK;
}

/* The first token's entry, if no event brought it with it (a prompt of one token); and where outputs begin. */
static void close_prompt(gy_oai_reply *r, gy_oai_rprompt *p, gy_oai_choice *c) {
    if (c->n_tok) return;
    if (p->ids && r->q->base.prompt_logprobs >= 0) gy_oai_lp_add_first(r, p);
    c->chars = p->chars;
}

/* ---- failure ---------------------------------------------------------------------------------------------------- */

void gy_oai_reply_fail(gy_oai_reply *r, const gy_oai_error *e, gy_str *out) {
    if (r->over) return;
    r->over = 1;
    if (r->q->stream)
        gy_oai_error_frame(e, out);
    else
        gy_oai_error_body(e, out);
}

static gy_status fail(gy_oai_reply *r, gyre_status s, const char *msg, gy_str *out, gy_oai_error *e) {
    gy_status st = gy_oai_error_from_status(e, s, msg);
    gy_oai_reply_fail(r, e, out);
    return st;
}

/* Strings remember a failed growth, so that it is enough to look when a choice ends. */
static int has_failed(const gy_oai_reply *r, const gy_oai_choice *c, const gy_oai_rprompt *p) {
    int failed = c->text.failed | c->reasoning.failed | c->loops.failed | c->gates.failed | c->ids.failed;
    failed |= gy_oai_failed_lp(&c->lp) | gy_oai_failed_lp(&p->lp) | gy_oai_failed_lp(&r->one);
    for (size_t i = 0; i < c->calls.len; i++)
        failed |= c->calls.data[i].id.failed | c->calls.data[i].name.failed | c->calls.data[i].arguments.failed;
    return failed | p->text.failed | p->explicit.failed | r->scratch.failed;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static gy_oai_delta text_delta(const gyre_event *ev) {
    return (gy_oai_delta){.content = ev->text, .n_content = ev->n_text};
}

static void on_token(gy_oai_reply *r, int32_t prompt, const gyre_event *ev, const gy_oai_delta *d, gy_str *out) {
    int32_t index = prompt * r->n + ev->choice;
    gy_oai_choice *c = &r->choices[index];
    close_prompt(r, &r->prompts[prompt], c);
    if (r->q->score_only) return;
    c->n_tok++;
    c->n_reasoning += d->is_reasoning != 0;
    c->has_tools |= d->n_tool > 0;
    r->loop_sum += ev->loops;
    if (r->q->stream)
        gy_oai_stream_token(r, index, ev, d, out);
    else
        gy_oai_body_token(r, index, ev, d);
}

static int is_named_stop(const gy_oai_request *q, int32_t id) {
    for (int32_t i = 0; i < q->base.n_stop_ids; i++)
        if (q->base.stop_ids[i] == id) return 1;
    return 0;
}

static void note_finish(gy_oai_reply *r, int32_t prompt, const gyre_event *ev) {
    const gyre_finish *f = ev->finish;
    gy_oai_choice *c = &r->choices[prompt * r->n + ev->choice];
    gy_oai_rprompt *p = &r->prompts[prompt];
    close_prompt(r, p, c);
    c->reason = r->q->score_only ? GYRE_FINISH_LENGTH : f->reason;
    c->stop_string = r->q->score_only ? -1 : f->stop_string;
    c->stop_id = !r->q->score_only && is_named_stop(r->q, f->stop_id) ? f->stop_id : -1;
    c->seed = f->seed;
    p->n_prompt = f->n_prompt;
    if (ev->choice == 0) p->n_cached = f->n_cached;
}

/* The rest of the text, and the stop string itself where the client wants to see it. What filters made of the text has
 * it already. */
static gy_oai_delta last_delta(gy_oai_reply *r, const gy_oai_choice *c, const gyre_event *ev, const gy_oai_delta *own) {
    if (own) return *own;
    gy_oai_delta last = text_delta(ev);
    if (r->q->score_only) return (gy_oai_delta){.content = ""};
    if (!r->q->include_stop || c->stop_string < 0 || c->stop_string >= r->q->base.n_stop) return last;
    const gyre_string *stop = &r->q->base.stop[c->stop_string];
    gy_str_clear(&r->scratch);
    gy_str_append(&r->scratch, ev->text, ev->n_text);
    gy_str_append(&r->scratch, stop->s, stop->n);
    last.content = gy_str_z(&r->scratch);
    last.n_content = r->scratch.len;
    return last;
}

static gy_status on_finish(gy_oai_reply *r, int32_t prompt, const gyre_event *ev, const gy_oai_delta *d, gy_str *out,
                           gy_oai_error *e) {
    const gyre_finish *f = ev->finish;
    int32_t index = prompt * r->n + ev->choice;
    gy_oai_choice *c = &r->choices[index];
    if (f->reason == GYRE_FINISH_CANCELLED) return fail(r, GYRE_E_CANCELLED, NULL, out, e);
    if (f->reason == GYRE_FINISH_ERROR) return fail(r, f->error, f->message, out, e);
    note_finish(r, prompt, ev);
    gy_oai_delta last = last_delta(r, c, ev, d);
    c->has_tools |= last.n_tool > 0;
    if (r->q->stream)
        gy_oai_stream_finish(r, index, &last, out);
    else
        gy_oai_body_text(r, c, &last);
    if (has_failed(r, c, &r->prompts[prompt])) return fail(r, GYRE_E_NOMEM, NULL, out, e);
    if (--r->n_left) return GY_OK;
    r->over = 1;
    if (r->q->stream)
        gy_oai_stream_end(r, out);
    else
        gy_oai_body_end(r, out);
    return GY_DONE;
}

gy_status gy_oai_reply_event(gy_oai_reply *r, int32_t prompt, const gyre_event *ev, const gy_oai_delta *d, gy_str *out,
                             gy_oai_error *e) {
    GY_CHECK(prompt >= 0 && prompt < r->q->n_prompt && ev->choice >= 0 && ev->choice < r->n);
    if (r->over) return GY_OK;
    gy_oai_delta own = text_delta(ev);
    gy_status st = GY_OK;
    if (ev->kind == GYRE_EVENT_FINISH)
        st = on_finish(r, prompt, ev, d, out, e);
    else if (ev->kind == GYRE_EVENT_TOKEN)
        on_token(r, prompt, ev, d ? d : &own, out);
    else if (r->prompts[prompt].ids)
        gy_oai_lp_add_prompt(r, &r->prompts[prompt], ev);
    if (!out->failed || st < 0) return st;
    r->over = 1; /* what is in `out` has a hole: nothing may follow it */
    return gy_oai_error_from_status(e, GYRE_E_NOMEM, NULL);
}

void gy_oai_reply_usage(const gy_oai_reply *r, gy_oai_usage *out) {
    gy_oai_usage u = {.loop_sum = r->loop_sum};
    for (int32_t i = 0; i < r->q->n_prompt; i++) {
        const gy_oai_rprompt *p = &r->prompts[i];
        u.prompt_tokens += p->n_prompt ? p->n_prompt : p->n_ids;
        u.cached_tokens += p->n_cached;
    }
    for (int32_t i = 0; i < r->q->n_prompt * r->n; i++) {
        const gy_oai_choice *c = &r->choices[i];
        u.completion_tokens += c->n_tok;
        u.reasoning_tokens += c->n_reasoning;
        if (c->n_tok > u.max_output) u.max_output = c->n_tok;
    }
    *out = u;
}
