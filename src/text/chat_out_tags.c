/* A call as tags: a name and parameters, whose values stand there as text. They become the members of a JSON object,
 * strings while they are written, other values when they are whole.
 */
#include "text/chat_out_int.h"

#include <string.h>

enum { MAX_LOOKS = 64 }; /* schemas that are looked into for one parameter */

/* ---- JSON out ---------------------------------------------------------------------------------------------------- */

static void put_escaped(gy_chat_out *c, const char *s, size_t n) {
    static const char hex[] = "0123456789abcdef", from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] ? strchr(from, s[i]) : NULL;
        const char two[2] = {'\\', at ? to[at - from] : 0};
        const char six[6] = {'\\', 'u', '0', '0', hex[(s[i] >> 4) & 15], hex[s[i] & 15]};
        if (at)
            gy_co_put_args(c, two, 2);
        else if ((unsigned char)s[i] < 0x20)
            gy_co_put_args(c, six, 6);
        else
            gy_co_put_args(c, s + i, 1);
    }
}

static void put_quoted(gy_chat_out *c, const char *s, size_t n) {
    gy_co_put_args(c, "\"", 1);
    put_escaped(c, s, n);
    gy_co_put_args(c, "\"", 1);
}

/* ---- what a parameter may be ------------------------------------------------------------------------------------- */

static const gy_jv *follow(const gy_jv *root, const gy_jv *schema) {
    static const char *const homes[] = {"$defs", "definitions"};
    const char *ref = gy_jv_str(gy_jv_get(schema, "$ref"), NULL);
    for (size_t i = 0; ref && i < 2; i++) {
        size_t n = strlen(homes[i]);
        if (strncmp(ref, "#/", 2) != 0 || strncmp(ref + 2, homes[i], n) != 0 || ref[2 + n] != '/') continue;
        return gy_jv_get(gy_jv_get(root, homes[i]), ref + 3 + n);
    }
    return NULL;
}

static int allows_string(const gy_jv *root, const gy_jv *schema, int *left);

static int any_allows(const gy_jv *root, const gy_jv *list, int *left) {
    for (size_t i = 0; i < gy_jv_len(list); i++)
        if (allows_string(root, gy_jv_at(list, i), left)) return 1;
    return 0;
}

static int has_string(const gy_jv *list, const char *what) {
    for (size_t i = 0; i < gy_jv_len(list); i++) {
        const gy_jv *v = gy_jv_at(list, i);
        if (what ? gy_jv_is_str(v, what) : gy_jv_type(v) == GY_J_STRING) return 1;
    }
    return 0;
}

/* 1 if the schema says nothing of the kind, or too much. */
static int allows_string(const gy_jv *root, const gy_jv *schema, int *left) {
    const gy_jv *type = gy_jv_get(schema, "type"), *list = gy_jv_get(schema, "enum");
    const gy_jv *any = gy_jv_get(schema, "anyOf"), *one = gy_jv_get(schema, "oneOf");
    const gy_jv *to = follow(root, schema);
    if (--*left < 0) return 1;
    if (gy_jv_type(type) == GY_J_STRING) return gy_jv_is_str(type, "string");
    if (gy_jv_type(type) == GY_J_ARRAY) return has_string(type, "string");
    if (gy_jv_type(list) == GY_J_ARRAY) return has_string(list, NULL);
    if (gy_jv_get(schema, "const")) return gy_jv_type(gy_jv_get(schema, "const")) == GY_J_STRING;
    if (gy_jv_len(any) || gy_jv_len(one)) return any_allows(root, any, left) || any_allows(root, one, left);
    return to ? allows_string(root, to, left) : 1;
}

static const gy_jv *parameters_of(const gy_chat_out *c) {
    for (size_t i = 0; i < gy_jv_len(c->o.tools); i++) {
        const gy_jv *f = gy_jv_get(gy_jv_at(c->o.tools, i), "function");
        if (gy_jv_is_str(gy_jv_get(f, "name"), gy_str_z(&c->call.name))) return gy_jv_get(f, "parameters");
    }
    return NULL;
}

static int is_json_parameter(const gy_chat_out *c) {
    const gy_jv *root = c->call.parameters;
    const gy_jv *schema = gy_jv_get(gy_jv_get(root, "properties"), gy_str_z(&c->call.param));
    int left = MAX_LOOKS;
    return schema && !allows_string(root, schema, &left);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* 1: the name is whole and not empty. 0: goes on. -1: it cannot be one. */
static int name_byte(gy_str *name, char b) {
    if (b == '>') return name->len ? 1 : -1;
    if (b == '<' || (unsigned char)b < 0x20 || name->len == GY_CHAT_OUT_MAX_NAME) return -1;
    gy_str_putc(name, b);
    return 0;
}

static int in_name(gy_chat_out *c, char b) {
    int got = name_byte(&c->call.name, b);
    if (got < 0) return gy_co_fail(c);
    if (!got) return 1;
    gy_co_announce(c);
    c->call.parameters = parameters_of(c);
    gy_co_put_args(c, "{", 1);
    c->state = GY_CO_BODY;
    return 1;
}

static int leave(gy_chat_out *c) {
    gy_co_put_args(c, "}", 1);
    return gy_co_fail(c);
}

static void param_begin(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    if (k->n_param++) gy_co_put_args(c, ", ", 2);
    put_quoted(c, gy_str_z(&k->param), k->param.len);
    gy_co_put_args(c, ": ", 2);
    k->is_json = is_json_parameter(c);
    if (!k->is_json) gy_co_put_args(c, "\"", 1);
    k->at_begin = 1;
    gy_co_clear(c, &k->value);
    c->state = GY_CO_PARAM_VALUE;
}

static void put_param_text(gy_chat_out *c) {
    gy_str_puts(&c->content, "<parameter=");
    gy_str_append(&c->content, gy_str_z(&c->call.param), c->call.param.len);
}

static int in_param(gy_chat_out *c, char b) {
    int got = name_byte(&c->call.param, b);
    if (got < 0) {
        gy_co_put_args(c, "}", 1);
        put_param_text(c);
        return gy_co_fail(c);
    }
    if (got) param_begin(c);
    return 1;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void value_put(gy_chat_out *c, const char *s, size_t n) {
    gy_co_call *k = &c->call;
    if (!k->is_json) {
        put_escaped(c, s, n);
        return;
    }
    gy_str_append(&k->value, s, n);
    if (k->value.len <= GY_CHAT_OUT_MAX_HOLD) return;
    k->is_json = 0; /* too much to wait for its end */
    gy_co_put_args(c, "\"", 1);
    put_escaped(c, gy_str_z(&k->value), k->value.len);
    gy_co_clear(c, &k->value);
}

static void value_newlines(gy_chat_out *c) {
    for (; c->n_nl; c->n_nl--) value_put(c, "\n", 1);
}

static void put_json_value(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    const gy_jv *v;
    size_t from = 0, to = k->value.len;
    gy_json *doc = gy_co_parse(c, &k->value, &v);
    while (doc && from < to && gy_co_is_space(k->value.data[from])) from++;
    while (doc && from < to && gy_co_is_space(k->value.data[to - 1])) to--;
    if (doc)
        gy_co_put_args(c, k->value.data + from, to - from);
    else
        put_quoted(c, gy_str_z(&k->value), k->value.len);
    gy_json_free(doc);
}

static void value_end(gy_chat_out *c) {
    if (c->n_nl) c->n_nl--;
    value_newlines(c);
    if (c->call.is_json)
        put_json_value(c);
    else
        gy_co_put_args(c, "\"", 1);
    c->state = GY_CO_BODY;
}

static int in_value(gy_chat_out *c, char b) {
    if (c->n_mark || b == '<') {
        int m = gy_co_match(c, b, GY_CO_M_END_PARAM);
        if (m > 0) value_end(c);
        if (m >= 0) return 1;
    } else if (b == '\n') {
        c->n_nl += !c->call.at_begin;
        c->call.at_begin = 0;
        return 1;
    }
    c->call.at_begin = 0;
    value_newlines(c);
    if (c->n_mark) {
        value_put(c, c->mark, c->n_mark);
        c->n_mark = 0;
        return 0;
    }
    value_put(c, &b, 1);
    return 1;
}

/* ---- between parameters ------------------------------------------------------------------------------------------ */

static int in_body(gy_chat_out *c, char b) {
    if (!c->n_mark && gy_co_is_space(b)) return 1;
    if (!c->n_mark && b != '<') return leave(c);
    int m = gy_co_match(c, b, GY_CO_M_PARAM | GY_CO_M_END_FUNCTION | GY_CO_M_END_CALL);
    if (m < 0) return leave(c);
    if (m == GY_CO_M_PARAM) {
        gy_co_clear(c, &c->call.param);
        c->state = GY_CO_PARAM;
    } else if (m > 0) {
        gy_co_put_args(c, "}", 1);
        c->state = GY_CO_DONE;
        if (m == GY_CO_M_END_CALL) gy_co_end_call(c);
    }
    return 1;
}

int gy_co_tags_step(gy_chat_out *c, char b) {
    switch (c->state) {
    case GY_CO_NAME:
        return in_name(c, b);
    case GY_CO_PARAM:
        return in_param(c, b);
    case GY_CO_PARAM_VALUE:
        return in_value(c, b);
    default:
        return in_body(c, b);
    }
}

void gy_co_tags_finish(gy_chat_out *c) {
    if (c->state == GY_CO_PARAM) put_param_text(c);
    if (c->state == GY_CO_BODY) gy_str_append(&c->content, c->mark, c->n_mark);
    if (c->state != GY_CO_PARAM_VALUE) return;
    value_newlines(c);
    value_put(c, c->mark, c->n_mark);
    if (c->call.is_json) gy_co_put_args(c, gy_str_z(&c->call.value), c->call.value.len);
}
