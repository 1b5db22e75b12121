/* A call as a JSON object. Only its outermost level is understood; what stands in it is followed by its brackets and
 * strings alone, so that arguments go out while they are written.
 */
#include "text/chat_out_int.h"

#include <string.h>

gy_json *gy_co_parse(gy_chat_out *c, const gy_str *text, const gy_jv **out) {
    gy_json *doc = NULL;
    gy_str list = {0};
    gy_str_putc(&list, '[');
    gy_str_append(&list, gy_str_z(text), text->len);
    gy_str_putc(&list, ']');
    gy_status st = list.failed ? GY_E_NOMEM : gy_json_parse(list.data, list.len, NULL, NULL, &doc);
    gy_str_free(&list);
    if (st == GY_E_NOMEM) c->failed = 1;
    if (st < 0) return NULL;
    if (gy_jv_len(gy_json_root(doc)) != 1) {
        gy_json_free(doc);
        return NULL;
    }
    *out = gy_jv_at(gy_json_root(doc), 0);
    return doc;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static int in_key(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    if (b == '"' && !k->escaped) {
        c->state = GY_CO_COLON;
        return 1;
    }
    k->escaped = b == '\\' && !k->escaped;
    if (k->n_key < sizeof k->key) k->key[k->n_key++] = b;
    return 1;
}

static int is_key(const gy_co_call *k, const char *name) {
    return k->n_key == strlen(name) && !memcmp(k->key, name, k->n_key);
}

/* A member that comes a second time says nothing. */
static gy_co_member which_member(const gy_co_call *k) {
    if (is_key(k, "name") && !k->has_name) return GY_CO_MEMBER_NAME;
    if (is_key(k, "arguments") && !k->has_args) return GY_CO_MEMBER_ARGS;
    return GY_CO_OTHER;
}

/* What was not announced is kept: a name until it is whole, arguments until there is a name. */
static void value_byte(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    if (k->member == GY_CO_OTHER) return;
    if (k->announced)
        gy_co_put_args(c, &b, 1);
    else
        gy_str_putc(k->member == GY_CO_MEMBER_NAME ? &k->name : &k->raw, b);
}

static int value_begin(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    int opens = b == '{' || b == '[';
    k->member = which_member(k);
    if (strchr(",:}]<", b) || (k->member == GY_CO_MEMBER_NAME && b != '"')) return gy_co_fail(c);
    if (k->member == GY_CO_MEMBER_ARGS && opens && k->has_name) gy_co_announce(c);
    k->depth = opens;
    k->in_string = b == '"';
    k->escaped = 0;
    c->state = GY_CO_IN_VALUE;
    value_byte(c, b);
    return 1;
}

/* Arguments that were kept, as what they stand for. */
static void put_kept(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    const gy_jv *v;
    size_t n = 0;
    const char *s = NULL;
    gy_json *doc = k->raw.len && k->raw.data[0] == '"' ? gy_co_parse(c, &k->raw, &v) : NULL;
    if (doc) s = gy_jv_str(v, &n);
    if (s)
        gy_co_put_args(c, s, n);
    else if (!k->raw.len || !strcmp(k->raw.data, "null"))
        gy_co_put_args(c, "{}", 2);
    else
        gy_co_put_args(c, k->raw.data, k->raw.len);
    gy_json_free(doc);
}

static int name_end(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    const gy_jv *v;
    size_t n = 0;
    gy_json *doc = gy_co_parse(c, &k->name, &v);
    const char *s = doc ? gy_jv_str(v, &n) : NULL;
    int ok = s && n && !memchr(s, '\0', n);
    gy_co_clear(c, &k->name);
    if (ok) gy_str_append(&k->name, s, n);
    gy_json_free(doc);
    k->has_name = ok;
    return ok;
}

static int value_end(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    if (k->member == GY_CO_MEMBER_NAME && !name_end(c)) return gy_co_fail(c);
    if (k->member == GY_CO_MEMBER_ARGS) k->has_args = 1;
    c->state = GY_CO_AFTER;
    if (k->announced || !k->has_name || !k->has_args) return 1;
    gy_co_announce(c);
    put_kept(c);
    return 1;
}

static int in_string(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    int ends = b == '"' && !k->escaped;
    value_byte(c, b);
    k->escaped = b == '\\' && !k->escaped;
    k->in_string = !ends;
    return ends && !k->depth ? value_end(c) : 1;
}

static int in_brackets(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    value_byte(c, b);
    k->in_string = b == '"';
    k->depth += (b == '{' || b == '[') - (b == '}' || b == ']');
    return k->depth ? 1 : value_end(c);
}

/* No JSON has a '<' where it is no part of a string: the model forgot a bracket. */
static int is_early_end(const gy_chat_out *c, char b) {
    return c->tagged && (c->n_mark || b == '<');
}

static int early_end(gy_chat_out *c, char b) {
    int m = gy_co_match(c, b, GY_CO_M_END_CALL);
    if (m > 0) gy_co_end_call(c);
    return m >= 0 ? 1 : gy_co_fail(c);
}

static int in_value(gy_chat_out *c, char b) {
    gy_co_call *k = &c->call;
    if (k->in_string) return in_string(c, b);
    if (is_early_end(c, b)) return early_end(c, b);
    if (k->depth) return in_brackets(c, b);
    if (b == ',' || b == '}' || gy_co_is_space(b)) {
        value_end(c);
        return 0;
    }
    value_byte(c, b);
    return 1;
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

static int object_end(gy_chat_out *c) {
    gy_co_call *k = &c->call;
    if (!k->has_name) return gy_co_fail(c);
    if (!k->announced) {
        gy_co_announce(c);
        put_kept(c);
    }
    c->state = GY_CO_DONE;
    return 1;
}

static int key_begin(gy_chat_out *c, char b) {
    if (b == '}' && c->state == GY_CO_FIRST) return object_end(c);
    if (b != '"') return gy_co_fail(c);
    c->call.n_key = 0;
    c->call.escaped = 0;
    c->state = GY_CO_IN_KEY;
    return 1;
}

static int begin(gy_chat_out *c, char b) {
    if (c->n_mark || b == '<') {
        int m = gy_co_match(c, b, GY_CO_M_FUNCTION);
        if (m > 0) c->state = GY_CO_NAME;
        return m >= 0 ? 1 : gy_co_fail(c);
    }
    if (b != '{') return gy_co_fail(c);
    c->state = GY_CO_FIRST;
    return 1;
}

static int after_value(gy_chat_out *c, char b) {
    if (is_early_end(c, b)) return early_end(c, b);
    if (b == '}') return object_end(c);
    if (b != ',') return gy_co_fail(c);
    c->state = GY_CO_KEY;
    return 1;
}

static int colon(gy_chat_out *c, char b) {
    if (b != ':') return gy_co_fail(c);
    c->state = GY_CO_VALUE;
    return 1;
}

int gy_co_json_step(gy_chat_out *c, char b) {
    if (c->state == GY_CO_IN_KEY) return in_key(c, b);
    if (c->state == GY_CO_IN_VALUE) return in_value(c, b);
    if (!c->n_mark && gy_co_is_space(b)) return 1;
    switch (c->state) {
    case GY_CO_BEGIN:
        return begin(c, b);
    case GY_CO_FIRST:
    case GY_CO_KEY:
        return key_begin(c, b);
    case GY_CO_COLON:
        return colon(c, b);
    case GY_CO_VALUE:
        return value_begin(c, b);
    default:
        return after_value(c, b);
    }
}
