/* Thoughts, content and markers; what all calls have in common. The rules are in chat_out.h. */
#include "text/chat_out.h"

#include "text/chat_out_int.h"

#include <string.h>

static const char *const marks[GY_CO_N_MARK] = {"<think>",    "</think>",    "<tool_call>", "</tool_call>",
                                                "<function=", "</function>", "<parameter=", "</parameter>"};

/* ---- life -------------------------------------------------------------------------------------------------------- */

enum { ROOM = 128 }; /* of each string at first: what most tokens need */

static int make_room(gy_str *s) {
    gy_str_printf(s, "%*s", ROOM, "");
    int failed = s->failed;
    gy_str_clear(s);
    return failed;
}

gy_status gy_chat_out_create(const gy_chat_out_options *o, gy_chat_out **out) {
    gy_chat_out *c = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof *c);
    if (!c) return GY_E_NOMEM;
    c->o = *o;
    c->tagged = o->calls == GY_CHAT_CALLS_TAGGED;
    c->state = o->reasoning && o->in_reasoning ? GY_CO_THINK : GY_CO_START;
    c->skip_nl = c->think_begin = c->state == GY_CO_THINK;
    int failed = make_room(&c->reasoning) | make_room(&c->content) | make_room(&c->args) | make_room(&c->names) |
                 make_room(&c->hold);
    if (failed || gy_vec_reserve(&c->pieces, GY_MEM_TEXT, 2) || gy_vec_reserve(&c->calls, GY_MEM_TEXT, 2)) {
        gy_chat_out_destroy(c);
        return GY_E_NOMEM;
    }
    *out = c;
    return GY_OK;
}

void gy_chat_out_destroy(gy_chat_out *c) {
    if (!c) return;
    gy_str_free(&c->hold);
    gy_str_free(&c->reasoning);
    gy_str_free(&c->content);
    gy_str_free(&c->names);
    gy_str_free(&c->args);
    gy_str_free(&c->call.name);
    gy_str_free(&c->call.raw);
    gy_str_free(&c->call.param);
    gy_str_free(&c->call.value);
    gy_vec_free(&c->pieces);
    gy_vec_free(&c->calls);
    gy_mem_free(c);
}

/* ---- markers ----------------------------------------------------------------------------------------------------- */

int gy_co_match(gy_chat_out *c, char b, unsigned set) {
    c->mark[c->n_mark++] = b;
    for (int i = 0; i < GY_CO_N_MARK; i++) {
        size_t n = strlen(marks[i]);
        if (!(set & 1u << i) || n < c->n_mark || memcmp(marks[i], c->mark, c->n_mark) != 0) continue;
        if (n > c->n_mark) return 0;
        c->n_mark = 0;
        return 1 << i;
    }
    c->n_mark--;
    return -1;
}

static void put_newlines(gy_chat_out *c, gy_str *to) {
    for (; c->n_nl; c->n_nl--) gy_str_putc(to, '\n');
}

/* Newlines and the beginning of a marker that became none. */
static void put_pending(gy_chat_out *c, gy_str *to) {
    put_newlines(c, to);
    gy_str_append(to, c->mark, c->n_mark);
    c->n_mark = 0;
}

/* ---- the life of a call ------------------------------------------------------------------------------------------ */

static void call_begin(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    gy_co_clear(c, &k->name);
    gy_co_clear(c, &k->raw);
    gy_co_clear(c, &k->param);
    gy_co_clear(c, &k->value);
    k->announced = k->mute = k->has_name = k->has_args = k->n_param = 0;
    c->holding = 1;
}

static void piece_add(gy_chat_out *c, size_t name) {
    const gy_co_piece p = {.index = c->n_call - 1, .name = name, .args = c->args.len};
    if (gy_vec_push(&c->pieces, GY_MEM_TEXT, p)) c->failed = 1;
}

void gy_co_announce(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    k->announced = 1;
    c->holding = 0;
    gy_co_clear(c, &c->hold);
    k->mute = c->o.one_call && c->n_call > 0;
    if (k->mute) return;
    c->n_call++;
    piece_add(c, c->names.len);
    gy_str_append(&c->names, gy_str_z(&k->name), k->name.len + 1);
}

void gy_co_put_args(gy_chat_out *c, const char *s, size_t n) {
    if (c->call.mute || !n) return;
    if (!c->pieces.len || c->pieces.data[c->pieces.len - 1].index != c->n_call - 1) piece_add(c, SIZE_MAX);
    if (c->failed) return;
    gy_str_append(&c->args, s, n);
    c->pieces.data[c->pieces.len - 1].n_args += n;
}

static int step(gy_chat_out *c, char b);

int gy_co_fail(gy_chat_out *c) {
    char again[GY_CO_MAX_MARK];
    size_t n = c->n_mark;
    memcpy(again, c->mark, n);
    c->n_mark = 0;
    if (c->holding && !c->hold.failed) gy_str_append(&c->content, gy_str_z(&c->hold), c->hold.len - n - 1);
    c->holding = 0;
    c->state = GY_CO_TEXT;
    for (size_t i = 0; i < n; i++)
        while (!step(c, again[i])) continue;
    return 0;
}

/* All of it is content, whatever follows. */
static void give_up(gy_chat_out *c) {
    gy_str_append(&c->content, gy_str_z(&c->hold), c->hold.len);
    c->holding = 0;
    c->n_mark = 0;
    c->state = GY_CO_TEXT;
}

void gy_co_end_call(gy_chat_out *c) {
    if (c->holding) {
        give_up(c);
        return;
    }
    c->state = GY_CO_TEXT;
    c->skip_nl = 1;
}

/* ---- text and thoughts ------------------------------------------------------------------------------------------- */

static int on_text_mark(gy_chat_out *c, int mark) {
    if (mark == GY_CO_M_THINK) {
        c->n_nl = 0;
        c->state = GY_CO_THINK;
        c->skip_nl = 1;
    } else {
        call_begin(c);
        gy_co_clear(c, &c->hold);
        put_newlines(c, &c->hold);
        gy_str_puts(&c->hold, marks[2]);
        c->skip_nl = 0;
        c->state = GY_CO_BEGIN;
    }
    return 1;
}

static int put_text(gy_chat_out *c, char b) {
    if (c->state == GY_CO_START) c->state = GY_CO_TEXT;
    c->skip_nl = 0;
    put_pending(c, &c->content);
    gy_str_putc(&c->content, b);
    return 1;
}

static unsigned text_marks(const gy_chat_out *c) {
    unsigned think = c->state == GY_CO_START && c->o.reasoning ? GY_CO_M_THINK : 0;
    return think | (c->tagged ? GY_CO_M_CALL : 0);
}

static int text_step(gy_chat_out *c, char b) {
    unsigned set = text_marks(c);
    if (c->n_mark || (b == '<' && set)) {
        int m = gy_co_match(c, b, set);
        if (m >= 0) return m ? on_text_mark(c, m) : 1;
        c->skip_nl = 0;
        put_pending(c, &c->content);
        if (c->state == GY_CO_START) c->state = GY_CO_TEXT;
        return 0;
    }
    if (b == '\n' && (c->skip_nl || set)) {
        c->n_nl += !c->skip_nl;
        return 1;
    }
    return put_text(c, b);
}

static void bare_begin(gy_chat_out *c) {
    call_begin(c);
    gy_co_clear(c, &c->hold);
    c->n_nl = 0;
    c->state = GY_CO_BARE;
}

static int start_step(gy_chat_out *c, char b) {
    int may_think = c->o.reasoning && (b == '<' || c->n_mark);
    if (c->o.calls != GY_CHAT_CALLS_BARE) return text_step(c, b);
    if (b == '\n' && !c->n_mark) return 1;
    if (may_think) return text_step(c, b);
    bare_begin(c);
    gy_str_putc(&c->hold, b);
    return 0;
}

static int bare_step(gy_chat_out *c, char b) {
    if (gy_co_is_space(b)) {
        if (!c->in_list) gy_co_clear(c, &c->hold);
        return 1;
    }
    if (b == '[' && !c->in_list) {
        c->in_list = 1;
        return 1;
    }
    if (b != '{') return gy_co_fail(c);
    c->state = GY_CO_FIRST;
    return 1;
}

static int on_think_mark(gy_chat_out *c, int mark) {
    c->n_nl = 0;
    c->skip_nl = 1;
    c->think_begin = 0;
    if (mark == GY_CO_M_THINK) return 1;
    if (c->o.calls == GY_CHAT_CALLS_BARE)
        bare_begin(c);
    else
        c->state = GY_CO_TEXT;
    return 1;
}

static int think_step(gy_chat_out *c, char b) {
    if (c->n_mark || b == '<') {
        int m = gy_co_match(c, b, GY_CO_M_END_THINK | (c->think_begin ? GY_CO_M_THINK : 0));
        if (m >= 0) return m ? on_think_mark(c, m) : 1;
    } else if (b == '\n') {
        c->n_nl += !c->skip_nl;
        return 1;
    }
    c->skip_nl = c->think_begin = 0;
    if (c->n_mark) {
        put_pending(c, &c->reasoning);
        return 0;
    }
    put_newlines(c, &c->reasoning);
    gy_str_putc(&c->reasoning, b);
    return 1;
}

/* ---- behind a call ----------------------------------------------------------------------------------------------- */

static int done_step(gy_chat_out *c, char b) {
    if (!c->n_mark && gy_co_is_space(b)) return 1;
    if (c->tagged && (c->n_mark || b == '<')) {
        int m = gy_co_match(c, b, GY_CO_M_END_CALL);
        if (m > 0) gy_co_end_call(c);
        return m >= 0 ? 1 : gy_co_fail(c);
    }
    if (c->in_list && b == ',') {
        bare_begin(c);
        return 1;
    }
    c->state = GY_CO_TEXT;
    if (!c->in_list || b != ']') return 0;
    c->in_list = 0;
    c->skip_nl = 1;
    return 1;
}

/* ---- bytes in ---------------------------------------------------------------------------------------------------- */

static int step(gy_chat_out *c, char b) {
    switch (c->state) {
    case GY_CO_START:
        return start_step(c, b);
    case GY_CO_THINK:
        return think_step(c, b);
    case GY_CO_TEXT:
        return text_step(c, b);
    case GY_CO_BARE:
        return bare_step(c, b);
    case GY_CO_DONE:
        return done_step(c, b);
    case GY_CO_NAME:
    case GY_CO_BODY:
    case GY_CO_PARAM:
    case GY_CO_PARAM_VALUE:
        return gy_co_tags_step(c, b);
    default:
        return gy_co_json_step(c, b);
    }
}

static void feed(gy_chat_out *c, char b) {
    if (c->holding) gy_str_putc(&c->hold, b);
    if (c->holding && c->hold.len > GY_CHAT_OUT_MAX_HOLD)
        give_up(c);
    else
        while (!step(c, b)) continue;
}

/* Most bytes are in the middle of plain text: as many as nothing has to look at go at once. */
static size_t plain_run(gy_chat_out *c, const char *s, size_t n) {
    size_t k = 0;
    if (c->n_mark || c->n_nl || c->skip_nl || c->think_begin) return 0;
    if (c->state != GY_CO_TEXT && c->state != GY_CO_THINK) return 0;
    while (k < n && s[k] != '<' && s[k] != '\n') k++;
    gy_str_append(c->state == GY_CO_THINK ? &c->reasoning : &c->content, s, k);
    return k;
}

static void renew(gy_chat_out *c) {
    if (!c->taken) return;
    c->taken = c->is_reasoning = 0;
    gy_co_clear(c, &c->reasoning);
    gy_co_clear(c, &c->content);
    gy_co_clear(c, &c->names);
    gy_co_clear(c, &c->args);
    c->pieces.len = 0;
}

void gy_chat_out_push(gy_chat_out *c, const char *text, size_t n) {
    renew(c);
    c->is_reasoning |= c->state == GY_CO_THINK;
    for (size_t i = 0; i < n;) {
        size_t k = plain_run(c, text + i, n - i);
        if (!k) feed(c, text[i]);
        i += k ? k : 1;
    }
    c->is_reasoning |= c->state == GY_CO_THINK;
}

void gy_chat_out_finish(gy_chat_out *c) {
    renew(c);
    if (c->holding)
        give_up(c);
    else if (c->state == GY_CO_IN_VALUE && c->call.member == GY_CO_MEMBER_ARGS)
        gy_co_put_args(c, c->mark, c->n_mark);
    else if (c->state >= GY_CO_NAME && c->state < GY_CO_DONE)
        gy_co_tags_finish(c);
    else
        put_pending(c, c->state == GY_CO_THINK ? &c->reasoning : &c->content);
    c->n_mark = c->n_nl = 0;
}

static int is_broken(const gy_chat_out *c) {
    const gy_co_call *k = &c->call;
    return c->hold.failed | c->reasoning.failed | c->content.failed | c->names.failed | c->args.failed |
           k->name.failed | k->raw.failed | k->param.failed | k->value.failed;
}

gy_status gy_chat_out_take(gy_chat_out *c, gy_chat_delta *d) {
    renew(c);
    c->taken = 1;
    c->calls.len = 0;
    c->failed |= is_broken(c);
    if (c->failed || gy_vec_reserve(&c->calls, GY_MEM_TEXT, c->pieces.len)) return GY_E_NOMEM;
    for (size_t i = 0; i < c->pieces.len; i++) {
        const gy_co_piece *p = &c->pieces.data[i];
        c->calls.data[c->calls.len++] =
            (gy_chat_call_delta){.index = p->index,
                                 .name = p->name == SIZE_MAX ? NULL : gy_str_z(&c->names) + p->name,
                                 .arguments = gy_str_z(&c->args) + p->args,
                                 .n_arguments = p->n_args};
    }
    *d = (gy_chat_delta){.reasoning = gy_str_z(&c->reasoning),
                         .n_reasoning = c->reasoning.len,
                         .content = gy_str_z(&c->content),
                         .n_content = c->content.len,
                         .calls = c->calls.data,
                         .n_call = (int32_t)c->calls.len,
                         .is_reasoning = c->is_reasoning};
    return GY_OK;
}
