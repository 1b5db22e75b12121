/* Frames of a stream. The head of a frame never changes within a reply and is made once; a token costs one copy of it,
 * its text escaped, and a few numbers.
 */
#include "server/oai_reply_int.h"

#include "server/oai_write.h"

static void put(gy_str *out, const gy_str *s) {
    gy_str_append(out, gy_str_z(s), s->len);
}

/* ---- the delta of a chat ---------------------------------------------------------------------------------------- */

static void put_tool(const gy_oai_tool_delta *t, gy_str *out) {
    GY_OAI_PUT(out, "{\"index\":");
    gy_oai_put_int(out, t->index);
    if (t->id) {
        GY_OAI_PUT(out, ",\"id\":");
        gy_oai_put_strz(out, t->id);
        GY_OAI_PUT(out, ",\"type\":\"function\"");
    }
    GY_OAI_PUT(out, ",\"function\":{");
    if (t->name) {
        GY_OAI_PUT(out, "\"name\":");
        gy_oai_put_strz(out, t->name);
        gy_str_putc(out, ',');
    }
    GY_OAI_PUT(out, "\"arguments\":");
    gy_oai_put_str(out, t->arguments ? t->arguments : "", t->n_arguments);
    GY_OAI_PUT(out, "}}");
}

/* Members that say something; `always`: with an empty text too, so that a token's frame has one. */
static void put_delta(const gy_oai_reply *r, const gy_oai_delta *d, int always, gy_str *out) {
    int n = 0, empty = always && d->is_reasoning && !d->n_content && !d->n_tool;
    if (r->q->include_reasoning && (d->n_reasoning || empty)) {
        gy_oai_put_reasoning(d->reasoning ? d->reasoning : "", d->n_reasoning, out);
        n++;
    }
    if (d->n_content || (always && !n && !d->n_tool)) {
        if (n++) gy_str_putc(out, ',');
        GY_OAI_PUT(out, "\"content\":");
        gy_oai_put_str(out, d->content ? d->content : "", d->n_content);
    }
    if (!d->n_tool) return;
    if (n) gy_str_putc(out, ',');
    GY_OAI_PUT(out, "\"tool_calls\":[");
    for (int32_t i = 0; i < d->n_tool; i++) {
        if (i) gy_str_putc(out, ',');
        put_tool(&d->tools[i], out);
    }
    gy_str_putc(out, ']');
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

static void frame_begin(const gy_str *head, int32_t index, gy_str *out) {
    put(out, head);
    GY_OAI_PUT(out, "{\"index\":");
    gy_oai_put_int(out, index);
}

static void put_running_usage(const gy_oai_reply *r, int32_t index, gy_str *out) {
    const gy_oai_rprompt *p = &r->prompts[index / r->n];
    gy_oai_usage u = {.prompt_tokens = p->n_ids, .completion_tokens = r->choices[index].n_tok};
    gy_oai_put_usage(r, &u, 0, out);
}

static void frame_end(const gy_oai_reply *r, int32_t index, int first, gy_str *out) {
    const gy_oai_rprompt *p = &r->prompts[index / r->n];
    GY_OAI_PUT(out, "}]");
    if (first && r->chat && r->q->return_token_ids) {
        GY_OAI_PUT(out, ",\"prompt_token_ids\":[");
        gy_oai_put_ids(p->ids, p->n_ids, out);
        gy_str_putc(out, ']');
    }
    if (r->q->continuous_usage) {
        GY_OAI_PUT(out, ",\"usage\":");
        put_running_usage(r, index, out);
    } else if (r->q->include_usage) {
        GY_OAI_PUT(out, ",\"usage\":null");
    }
    GY_OAI_PUT(out, "}\n\n");
}

static void put_text(const gy_oai_reply *r, const gy_oai_delta *d, int always, gy_str *out) {
    if (r->chat) {
        GY_OAI_PUT(out, ",\"delta\":{");
        put_delta(r, d, always, out);
        GY_OAI_PUT(out, "},\"logprobs\":");
    } else {
        GY_OAI_PUT(out, ",\"text\":");
        gy_oai_put_str(out, d->content ? d->content : "", d->n_content);
        GY_OAI_PUT(out, ",\"logprobs\":");
    }
}

/* What goes before the first token of a choice: the role, or the prompt that is echoed. */
static void start_chat(gy_oai_reply *r, int32_t index, gy_str *out) {
    frame_begin(&r->head, index, out);
    GY_OAI_PUT(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null");
    frame_end(r, index, 1, out);
}

static void start_echo(gy_oai_reply *r, int32_t index, gy_str *out) {
    gy_oai_rprompt *p = &r->prompts[index / r->n];
    gy_oai_delta d = {.content = gy_str_z(&p->text), .n_content = p->text.len};
    gy_oai_lp none = {.offset = {0}};
    frame_begin(&r->head, index, out);
    put_text(r, &d, 1, out);
    if (r->q->logprobs >= 0)
        gy_oai_lp_put(r, &p->lp, &none, out);
    else
        GY_OAI_PUT(out, "null");
    GY_OAI_PUT(out, ",\"finish_reason\":null");
    frame_end(r, index, 0, out);
}

static void start(gy_oai_reply *r, int32_t index, gy_str *out) {
    gy_oai_choice *c = &r->choices[index];
    if (c->started) return;
    c->started = 1;
    if (r->chat) start_chat(r, index, out);
    if (r->q->echo) start_echo(r, index, out);
}

/* ---- tokens and ends -------------------------------------------------------------------------------------------- */

static void put_token_extras(gy_oai_reply *r, int32_t index, const gyre_event *ev, int first, gy_str *out) {
    const gy_oai_rprompt *p = &r->prompts[index / r->n];
    GY_OAI_PUT(out, ",\"finish_reason\":null,\"loops\":[");
    gy_oai_put_int(out, ev->loops);
    gy_str_putc(out, ']');
    if (r->q->base.want_gates) {
        GY_OAI_PUT(out, ",\"gates\":[");
        gy_oai_put_gates(ev, out);
        gy_str_putc(out, ']');
    }
    if (!r->q->return_token_ids) return;
    GY_OAI_PUT(out, ",\"token_ids\":[");
    gy_oai_put_int(out, ev->id);
    gy_str_putc(out, ']');
    if (!first || r->chat) return;
    GY_OAI_PUT(out, ",\"prompt_token_ids\":[");
    gy_oai_put_ids(p->ids, p->n_ids, out);
    gy_str_putc(out, ']');
}

void gy_oai_stream_token(gy_oai_reply *r, int32_t index, const gyre_event *ev, const gy_oai_delta *d, gy_str *out) {
    gy_oai_choice *c = &r->choices[index];
    start(r, index, out);
    frame_begin(&r->head, index, out);
    put_text(r, d, 1, out);
    if (r->q->logprobs >= 0) {
        gy_oai_lp_clear(&r->one);
        gy_oai_lp_add(r, &r->one, &c->chars, ev);
        gy_oai_lp_put(r, NULL, &r->one, out);
    } else {
        GY_OAI_PUT(out, "null");
    }
    put_token_extras(r, index, ev, c->n_tok == 1, out);
    frame_end(r, index, 0, out);
}

void gy_oai_stream_finish(gy_oai_reply *r, int32_t index, const gy_oai_delta *d, gy_str *out) {
    gy_oai_choice *c = &r->choices[index];
    start(r, index, out);
    frame_begin(&r->head_last, index, out);
    put_text(r, d, 0, out);
    GY_OAI_PUT(out, "null,\"finish_reason\":");
    gy_oai_put_strz(out, gy_oai_choice_reason(c));
    gy_oai_put_stop(r, c, out);
    frame_end(r, index, 0, out);
}

void gy_oai_stream_end(gy_oai_reply *r, gy_str *out) {
    if (r->q->include_usage) {
        gy_oai_usage u;
        gy_oai_reply_usage(r, &u);
        put(out, &r->head_last);
        GY_OAI_PUT(out, "],\"usage\":");
        gy_oai_put_usage(r, &u, 1, out);
        GY_OAI_PUT(out, "}\n\n");
    }
    GY_OAI_PUT(out, "data: [DONE]\n\n");
}
