/* What an output must be: the constraint of a body becomes a grammar of the engine, on whatever thread prepares the
 * request. Compiled again for each request that says it; the engine keeps what it compiled for a text it saw before.
 */
#include "server/app_int.h"
#include "server/oai_write.h"

#include <string.h>

static gy_status no_memory(gy_oai_error *e) {
    return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later");
}

/* ---- texts for the compiler -------------------------------------------------------------------------------------- */

static void put_json(const gy_jv *v, gy_str *out);

static void put_object(const gy_jv *v, gy_str *out) {
    const char *before = "{";
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it), before = ",") {
        size_t n;
        const char *key = gy_jv_key(it, &n);
        gy_str_puts(out, before);
        gy_oai_put_str(out, key, n);
        gy_str_putc(out, ':');
        put_json(gy_jv_val(it), out);
    }
    gy_str_puts(out, *before == '{' ? "{}" : "}");
}

/* As deep as the body may be. Members keep their order: it is the order of what is generated. */
static void put_json(const gy_jv *v, gy_str *out) {
    if (gy_jv_type(v) == GY_J_OBJECT) {
        put_object(v, out);
    } else if (gy_jv_type(v) == GY_J_ARRAY) {
        for (size_t i = 0; i < gy_jv_len(v); i++) {
            gy_str_putc(out, i ? ',' : '[');
            put_json(gy_jv_at(v, i), out);
        }
        gy_str_puts(out, gy_jv_len(v) ? "]" : "[]");
    } else {
        gy_oai_put_scalar(out, v);
    }
}

/* A string as a regular expression that matches nothing else. */
static void put_literal(const char *s, size_t n, gy_str *out) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        int is_plain =
            c >= 0x80 || c == ' ' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (is_plain)
            gy_str_putc(out, s[i]);
        else
            gy_str_printf(out, "\\x%02x", c);
    }
}

static void put_choices(const gy_jv *list, gy_str *out) {
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        size_t n;
        const char *s = gy_jv_str(gy_jv_at(list, i), &n);
        if (i) gy_str_putc(out, '|');
        put_literal(s, n, out);
    }
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

/* The compiler's sentences are about what was sent; the field stands in front of them. */
static gy_status refuse(gy_oai_error *e, gyre_status st, const char *field, const char *msg) {
    if (gyre_status_group(st) != GYRE_GROUP_REQUEST) return gy_oai_error_from_status(e, st, msg);
    gy_oai_error_kind kind = st == GYRE_E_UNSUPPORTED ? GY_OAI_E_UNSUPPORTED : GY_OAI_E_BAD_REQUEST;
    return gy_oai_error_set(e, kind, field, "%s: %s", field, msg);
}

static gy_status compile(gy_app_req *r, gyre_grammar_kind kind, const char *text, size_t n, const char *field,
                         gy_oai_error *e) {
    gyre_err err = {0};
    gyre_status st = gyre_grammar_compile(r->app->g, kind, text, n, &err, &r->grammar);
    return st == GYRE_OK ? GY_OK : refuse(e, st, field, err.msg);
}

static gy_status compile_made(gy_app_req *r, gyre_grammar_kind kind, gy_str *text, const char *field, gy_oai_error *e) {
    gy_status st = text->failed ? no_memory(e) : compile(r, kind, gy_str_z(text), text->len, field, e);
    gy_str_free(text);
    return st;
}

static gy_status compile_call(gy_app_req *r, gy_oai_error *e) {
    gy_str text = {0};
    gy_status st = gy_app_tool_schema(r->q, e, &text);
    if (st == GY_OK) return compile_made(r, GYRE_GRAMMAR_JSON_SCHEMA, &text, "tools", e);
    gy_str_free(&text);
    return st;
}

static gy_status compile_constraint(gy_app_req *r, gy_oai_error *e) {
    const gy_oai_constraint *c = &r->q->constraint;
    gy_str text = {0};
    switch (c->kind) {
    case GY_OAI_JSON_OBJECT:
        return compile(r, GYRE_GRAMMAR_JSON_OBJECT, "", 0, c->field, e);
    case GY_OAI_JSON_SCHEMA:
        put_json(c->schema, &text);
        return compile_made(r, GYRE_GRAMMAR_JSON_SCHEMA, &text, c->field, e);
    case GY_OAI_CHOICE:
        put_choices(c->list, &text);
        return compile_made(r, GYRE_GRAMMAR_REGEX, &text, c->field, e);
    case GY_OAI_REGEX:
        return compile(r, GYRE_GRAMMAR_REGEX, c->text, c->n_text, c->field, e);
    case GY_OAI_GRAMMAR:
        return compile(r, GYRE_GRAMMAR_EBNF, c->text, c->n_text, c->field, e);
    default:
        return GY_OK;
    }
}

gy_status gy_app_constrain(gy_app_req *r, gy_oai_error *e) {
    GY_TRY(gy_app_wants_call(r->q) ? compile_call(r, e) : compile_constraint(r, e));
    const char *after = gy_app_chat_trigger(r);
    for (int32_t i = 0; r->grammar && i < r->q->n_prompt; i++) {
        r->q->run[i].grammar = r->grammar;
        r->q->run[i].grammar_after = (gyre_string){after, strlen(after)};
    }
    return GY_OK;
}
