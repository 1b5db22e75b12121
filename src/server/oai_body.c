/* The whole body of a reply without stream: lists grow with the events and are put together at the end. */
#include "server/oai_reply_int.h"

#include "server/oai_write.h"

#include <string.h>

/* ---- shared writers --------------------------------------------------------------------------------------------- */

void gy_oai_put_ids(const int32_t *ids, int32_t n, gy_str *out) {
    for (int32_t i = 0; ids && i < n; i++) {
        if (i) gy_str_putc(out, ',');
        gy_oai_put_int(out, ids[i]);
    }
}

void gy_oai_put_gates(const gyre_event *ev, gy_str *out) {
    gy_str_putc(out, '[');
    for (int32_t i = 0; i < ev->n_gate; i++) {
        if (i) gy_str_putc(out, ',');
        gy_oai_put_f32(out, ev->gates[i]);
    }
    gy_str_putc(out, ']');
}

void gy_oai_put_usage(const gy_oai_reply *r, const gy_oai_usage *u, int details, gy_str *out) {
    GY_OAI_PUT(out, "{\"prompt_tokens\":");
    gy_oai_put_int(out, u->prompt_tokens);
    GY_OAI_PUT(out, ",\"completion_tokens\":");
    gy_oai_put_int(out, u->completion_tokens);
    GY_OAI_PUT(out, ",\"total_tokens\":");
    gy_oai_put_int(out, u->prompt_tokens + u->completion_tokens);
    if (details) {
        GY_OAI_PUT(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
        gy_oai_put_int(out, u->cached_tokens);
        gy_str_putc(out, '}');
    }
    if (details && r->chat) {
        GY_OAI_PUT(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
        gy_oai_put_int(out, u->reasoning_tokens);
        gy_str_putc(out, '}');
    }
    gy_str_putc(out, '}');
}

/* What ended the text: the stop string, the stop id that the client named, null for eos and for length. */
void gy_oai_put_stop(const gy_oai_reply *r, const gy_oai_choice *c, gy_str *out) {
    GY_OAI_PUT(out, ",\"stop_reason\":");
    if (c->stop_string >= 0 && c->stop_string < r->q->base.n_stop)
        gy_oai_put_str(out, r->q->base.stop[c->stop_string].s, r->q->base.stop[c->stop_string].n);
    else if (c->stop_id >= 0)
        gy_oai_put_int(out, c->stop_id);
    else
        GY_OAI_PUT(out, "null");
}

const char *gy_oai_choice_reason(const gy_oai_choice *c) {
    return gy_oai_finish_reason(c->reason, c->has_tools);
}

/* Clients read the one or the other. */
void gy_oai_put_reasoning(const char *s, size_t n, gy_str *out) {
    GY_OAI_PUT(out, "\"reasoning_content\":");
    gy_oai_put_str(out, s, n);
    GY_OAI_PUT(out, ",\"reasoning\":");
    gy_oai_put_str(out, s, n);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void comma(gy_str *s) {
    if (s->len) gy_str_putc(s, ',');
}

static gy_oai_call *call_at(gy_oai_choice *c, int32_t index) {
    if (index < 0 || (size_t)index > c->calls.len) return NULL;
    if ((size_t)index == c->calls.len && gy_vec_push(&c->calls, GY_MEM_SERVER, (gy_oai_call){.id = {0}})) {
        c->text.failed = 1; /* looked at when the choice ends */
        return NULL;
    }
    return &c->calls.data[index];
}

void gy_oai_body_text(const gy_oai_reply *r, gy_oai_choice *c, const gy_oai_delta *d) {
    gy_str_append(&c->text, d->content, d->n_content);
    if (r->q->include_reasoning) gy_str_append(&c->reasoning, d->reasoning, d->n_reasoning);
    for (int32_t i = 0; i < d->n_tool; i++) {
        const gy_oai_tool_delta *t = &d->tools[i];
        gy_oai_call *call = call_at(c, t->index);
        if (!call) continue;
        if (t->id) gy_str_puts(&call->id, t->id);
        if (t->name) gy_str_puts(&call->name, t->name);
        gy_str_append(&call->arguments, t->arguments, t->n_arguments);
    }
}

void gy_oai_body_token(gy_oai_reply *r, int32_t index, const gyre_event *ev, const gy_oai_delta *d) {
    gy_oai_choice *c = &r->choices[index];
    gy_oai_body_text(r, c, d);
    comma(&c->loops);
    gy_oai_put_int(&c->loops, ev->loops);
    if (r->q->base.want_gates) {
        comma(&c->gates);
        gy_oai_put_gates(ev, &c->gates);
    }
    if (r->q->return_token_ids) {
        comma(&c->ids);
        gy_oai_put_int(&c->ids, ev->id);
    }
    if (r->q->logprobs >= 0) gy_oai_lp_add(r, &c->lp, &c->chars, ev);
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void put_list(const char *key, const gy_str *s, gy_str *out) {
    gy_str_puts(out, key);
    gy_str_append(out, gy_str_z(s), s->len);
    gy_str_putc(out, ']');
}

static void put_prompt_ids(const gy_oai_rprompt *p, gy_str *out) {
    GY_OAI_PUT(out, ",\"prompt_token_ids\":[");
    gy_oai_put_ids(p->ids, p->n_ids, out);
    gy_str_putc(out, ']');
}

static void put_calls(const gy_oai_choice *c, gy_str *out) {
    GY_OAI_PUT(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < c->calls.len; i++) {
        const gy_oai_call *call = &c->calls.data[i];
        if (i) gy_str_putc(out, ',');
        GY_OAI_PUT(out, "{\"id\":");
        gy_oai_put_str(out, gy_str_z(&call->id), call->id.len);
        GY_OAI_PUT(out, ",\"type\":\"function\",\"function\":{\"name\":");
        gy_oai_put_str(out, gy_str_z(&call->name), call->name.len);
        GY_OAI_PUT(out, ",\"arguments\":");
        gy_oai_put_str(out, gy_str_z(&call->arguments), call->arguments.len);
        GY_OAI_PUT(out, "}}");
    }
    gy_str_putc(out, ']');
}

static void put_message(const gy_oai_choice *c, gy_str *out) {
    GY_OAI_PUT(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->calls.len && !c->text.len)
        GY_OAI_PUT(out, "null");
    else
        gy_oai_put_str(out, gy_str_z(&c->text), c->text.len);
    if (c->reasoning.len) {
        gy_str_putc(out, ',');
        gy_oai_put_reasoning(gy_str_z(&c->reasoning), c->reasoning.len, out);
    }
    if (c->calls.len) put_calls(c, out);
    gy_str_putc(out, '}');
}

static void put_completion_text(gy_oai_reply *r, const gy_oai_choice *c, const gy_oai_rprompt *p, gy_str *out) {
    GY_OAI_PUT(out, ",\"text\":");
    gy_str_clear(&r->scratch);
    if (r->q->echo) gy_str_append(&r->scratch, gy_str_z(&p->text), p->text.len);
    gy_str_append(&r->scratch, gy_str_z(&c->text), c->text.len);
    gy_oai_put_str(out, gy_str_z(&r->scratch), r->scratch.len);
    out->failed |= r->scratch.failed;
}

static void put_choice(gy_oai_reply *r, int32_t index, gy_str *out) {
    const gy_oai_choice *c = &r->choices[index];
    const gy_oai_rprompt *p = &r->prompts[index / r->n];
    GY_OAI_PUT(out, "{\"index\":");
    gy_oai_put_int(out, index);
    if (r->chat)
        put_message(c, out);
    else
        put_completion_text(r, c, p, out);
    GY_OAI_PUT(out, ",\"logprobs\":");
    if (r->q->logprobs >= 0)
        gy_oai_lp_put(r, r->q->echo ? &p->lp : NULL, &c->lp, out);
    else
        GY_OAI_PUT(out, "null");
    GY_OAI_PUT(out, ",\"finish_reason\":");
    gy_oai_put_strz(out, gy_oai_choice_reason(c));
    gy_oai_put_stop(r, c, out);
    put_list(",\"loops\":[", &c->loops, out);
    if (r->q->base.want_gates) put_list(",\"gates\":[", &c->gates, out);
    if (r->q->return_token_ids) put_list(",\"token_ids\":[", &c->ids, out);
    if (r->q->return_token_ids && !r->chat) put_prompt_ids(p, out);
    if (r->q->prompt_logprobs >= 0 && !r->chat) put_list(",\"prompt_logprobs\":[", &p->explicit, out);
    gy_str_putc(out, '}');
}

void gy_oai_body_end(gy_oai_reply *r, gy_str *out) {
    gy_oai_usage u;
    gy_str_append(out, gy_str_z(&r->body_head), r->body_head.len);
    for (int32_t i = 0; i < r->q->n_prompt * r->n; i++) {
        if (i) gy_str_putc(out, ',');
        put_choice(r, i, out);
    }
    gy_str_putc(out, ']');
    if (r->chat && r->q->return_token_ids) put_prompt_ids(&r->prompts[0], out);
    if (r->chat && r->q->prompt_logprobs >= 0) put_list(",\"prompt_logprobs\":[", &r->prompts[0].explicit, out);
    GY_OAI_PUT(out, ",\"usage\":");
    gy_oai_reply_usage(r, &u);
    gy_oai_put_usage(r, &u, 1, out);
    gy_str_putc(out, '}');
}
