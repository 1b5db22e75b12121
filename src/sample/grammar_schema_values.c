/* What one place of a JSON Schema may hold: literals, then each type with the keywords that are its own. A keyword of a
 * type that cannot occur says nothing (JSON Schema's rule).
 */
#include "sample/grammar_schema_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    T_NULL = 1u << 0,
    T_BOOL = 1u << 1,
    T_INT = 1u << 2,
    T_FRACTION = 1u << 3,
    T_STRING = 1u << 4,
    T_ARRAY = 1u << 5,
    T_OBJECT = 1u << 6,
    T_ALL = (1u << 7) - 1
};

/* ---- reading keywords ---- */

static unsigned type_of_name(schema *s, const gy_jv *v) {
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOL}, {"integer", T_INT},  {"number", T_INT | T_FRACTION},
                 {"string", T_STRING}, {"array", T_ARRAY},  {"object", T_OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (gy_jv_is_str(v, types[i].name)) return types[i].bits;
    const char *z = gy_jv_str(v, NULL);
    gy_gs_fail(s, GY_E_ARG, "'type': found %s%.60s; expected null, boolean, integer, number, string, array or object",
               z ? "" : gy_jtype_name(gy_jv_type(v)), z ? z : "");
    return 0;
}

static unsigned types_of_value(schema *s, const gy_jv *v) {
    if (gy_jv_type(v) != GY_J_ARRAY) return type_of_name(s, v);
    unsigned bits = 0;
    for (size_t i = 0; i < gy_jv_len(v); i++) bits |= type_of_name(s, gy_jv_at(v, i));
    if (!bits) gy_gs_fail(s, GY_E_ARG, "'type': found an empty array; expected at least one type");
    return bits;
}

/* Without `type`: what the other keywords speak of, or anything. */
static unsigned types_implied(const view *w) {
    static const struct {
        const char *key;
        unsigned bits;
    } keys[] = {{"properties", T_OBJECT},
                {"required", T_OBJECT},
                {"additionalProperties", T_OBJECT},
                {"items", T_ARRAY},
                {"prefixItems", T_ARRAY},
                {"minItems", T_ARRAY},
                {"maxItems", T_ARRAY},
                {"pattern", T_STRING},
                {"format", T_STRING},
                {"minLength", T_STRING},
                {"maxLength", T_STRING},
                {"minimum", T_INT | T_FRACTION},
                {"maximum", T_INT | T_FRACTION},
                {"exclusiveMinimum", T_INT | T_FRACTION},
                {"exclusiveMaximum", T_INT | T_FRACTION}};
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (gy_gs_view_has(w, keys[i].key)) bits |= keys[i].bits;
    return bits ? bits : T_ALL;
}

static unsigned view_types(schema *s, const view *w) {
    unsigned bits = T_ALL, given = 0;
    for (int i = 0; i < w->n; i++) {
        const gy_jv *t = gy_gs_part_get(&w->part[i], "type");
        if (!t) continue;
        unsigned one = types_of_value(s, t);
        if (gy_jv_bool(gy_jv_get(w->part[i].v, "nullable"), 0)) one |= T_NULL;
        bits &= one;
        given = 1;
    }
    return given ? bits : types_implied(w);
}

/* A whole number, however it is written. */
static int whole_of(const gy_jv *v, int64_t *out) {
    if (gy_jv_type(v) == GY_J_INT) {
        *out = gy_jv_int(v, 0);
        return *out >= -((int64_t)1 << 62) && *out <= (int64_t)1 << 62;
    }
    double d = gy_jv_num(v, 0.5);
    if (gy_jv_type(v) != GY_J_REAL || d != floor(d) || fabs(d) > 9007199254740992.0) return 0;
    *out = (int64_t)d;
    return 1;
}

/* A count; absent: dflt. Of a lower bound one that is too large is an error, an upper one is cut: what is generated
 * still satisfies it. */
static uint32_t count_of(schema *s, const view *w, const char *key, uint32_t dflt, int upper) {
    const gy_jv *v = gy_gs_view_one(s, w, key);
    int64_t n;
    if (!v) return dflt;
    if (!whole_of(v, &n) || n < 0) {
        gy_gs_fail(s, GY_E_ARG, "'%s': found %s; expected a whole number from 0 on", key,
                   gy_jv_type(v) == GY_J_INT ? "a number out of range" : gy_jtype_name(gy_jv_type(v)));
        return 0;
    }
    if (n > GY_GRAMMAR_MAX_REPEAT && !upper)
        gy_gs_fail(s, GY_E_LIMIT, "'%s': found %lld; allowed up to %d", key, (long long)n, GY_GRAMMAR_MAX_REPEAT);
    return n > GY_GRAMMAR_MAX_REPEAT ? GY_GRAMMAR_MAX_REPEAT : (uint32_t)n;
}

/* ---- literals ---- */

static int32_t separator(gy_gbuild *b) {
    return gy_gb_cat(b, gy_gb_z(b, ","), gy_gb_rep(b, gy_gb_z(b, " "), 0, 1));
}

static int32_t literal(schema *s, const gy_jv *v);

static int32_t literal_scalar(schema *s, const gy_jv *v) {
    gy_str out = {0};
    gy_jw jw;
    gy_jw_init(&jw, &out);
    if (gy_jv_type(v) == GY_J_NULL)
        gy_jw_null(&jw);
    else if (gy_jv_type(v) == GY_J_BOOL)
        gy_jw_bool(&jw, gy_jv_bool(v, 0));
    else if (gy_jv_type(v) == GY_J_INT)
        gy_jw_int(&jw, gy_jv_int(v, 0));
    else
        gy_jw_f64(&jw, gy_jv_num(v, 0));
    if (out.failed) gy_gb_nomem(s->b);
    int32_t n = gy_gb_bytes(s->b, gy_str_z(&out), out.len);
    gy_str_free(&out);
    return n;
}

static int32_t literal_array(schema *s, const gy_jv *v) {
    gy_gbuild *b = s->b;
    int32_t cat = gy_gb_node(b, GY_G_CAT);
    gy_gb_add(b, cat, gy_gb_z(b, "["));
    for (size_t i = 0; i < gy_jv_len(v) && b->st >= 0; i++) {
        if (i) gy_gb_add(b, cat, separator(b));
        gy_gb_add(b, cat, literal(s, gy_jv_at(v, i)));
    }
    gy_gb_add(b, cat, gy_gb_z(b, "]"));
    return cat;
}

static int32_t literal_object(schema *s, const gy_jv *v) {
    gy_gbuild *b = s->b;
    int32_t cat = gy_gb_node(b, GY_G_CAT);
    gy_gb_add(b, cat, gy_gb_z(b, "{"));
    for (void *it = gy_jv_first(v); it && b->st >= 0; it = gy_jv_next(v, it)) {
        size_t len;
        const char *key = gy_jv_key(it, &len);
        if (it != gy_jv_first(v)) gy_gb_add(b, cat, separator(b));
        gy_gb_add(b, cat, gy_gj_member(&s->j, gy_gj_literal(&s->j, key, len), literal(s, gy_jv_val(it))));
    }
    gy_gb_add(b, cat, gy_gb_z(b, "}"));
    return cat;
}

/* Recursion is bounded by the depth of the document. */
static int32_t literal(schema *s, const gy_jv *v) {
    size_t len;
    const char *z = gy_jv_str(v, &len);
    if (z) return gy_gj_literal(&s->j, z, len);
    if (gy_jv_type(v) == GY_J_ARRAY) return literal_array(s, v);
    return gy_jv_type(v) == GY_J_OBJECT ? literal_object(s, v) : literal_scalar(s, v);
}

static unsigned type_of_literal(const gy_jv *v) {
    double d;
    switch (gy_jv_type(v)) {
    case GY_J_NULL:
        return T_NULL;
    case GY_J_BOOL:
        return T_BOOL;
    case GY_J_INT:
        return T_INT;
    case GY_J_REAL:
        d = gy_jv_num(v, 0);
        return d == floor(d) ? T_INT : T_FRACTION;
    case GY_J_STRING:
        return T_STRING;
    case GY_J_ARRAY:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

/* enum and const stand alone: only `type` may say something beside them. */
static void literal_company(schema *s, const view *w, const char *key) {
    static const char *const others[] = {"properties",
                                         "required",
                                         "additionalProperties",
                                         "items",
                                         "minItems",
                                         "maxItems",
                                         "prefixItems",
                                         "pattern",
                                         "format",
                                         "minLength",
                                         "maxLength",
                                         "minimum",
                                         "maximum",
                                         "enum",
                                         "const",
                                         "exclusiveMinimum",
                                         "exclusiveMaximum"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i], key) && gy_gs_view_has(w, others[i]))
            gy_gs_fail(s, GY_E_UNSUPPORTED, "'%s' together with '%s' is not supported", key, others[i]);
}

static int32_t literals(schema *s, const view *w, const gy_jv *list) {
    unsigned types = gy_gs_view_has(w, "type") ? view_types(s, w) : T_ALL;
    int32_t alt = gy_gb_node(s->b, GY_G_ALT);
    for (size_t i = 0; i < gy_jv_len(list) && s->b->st >= 0; i++)
        if (type_of_literal(gy_jv_at(list, i)) & types) gy_gb_add(s->b, alt, literal(s, gy_jv_at(list, i)));
    return alt;
}

static int32_t enum_node(schema *s, const view *w) {
    const gy_jv *list = gy_gs_view_one(s, w, "enum");
    literal_company(s, w, "enum");
    if (gy_jv_type(list) != GY_J_ARRAY || gy_jv_len(list) == 0) {
        gy_gs_fail(s, GY_E_ARG, "'enum': found %s; expected an array of at least one value",
                   gy_jv_type(list) == GY_J_ARRAY ? "an empty array" : gy_jtype_name(gy_jv_type(list)));
        return 0;
    }
    return literals(s, w, list);
}

static int32_t const_node(schema *s, const view *w) {
    const gy_jv *v = gy_gs_view_one(s, w, "const");
    literal_company(s, w, "const");
    unsigned types = gy_gs_view_has(w, "type") ? view_types(s, w) : T_ALL;
    return type_of_literal(v) & types ? literal(s, v) : gy_gb_node(s->b, GY_G_FAIL);
}

/* ---- strings ---- */

#define YEAR "[1-9][0-9]{3}"
#define LEAP "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([13579][26]|[2468][048])00)"
#define DATE                                                                                                           \
    "(" YEAR                                                                                                           \
    "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"         \
    "|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,7}"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define ATOM "[A-Za-z0-9_%+-]+"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

/* Each is a part of what its name allows, so that what is generated is valid: RFC 3339 (years from 1000, no leap
 * second), 4122, 2673 (ipv4), 1123 (labels up to 30), 5321 (plain local parts), 3986 (with an authority). */
static const struct {
    const char *name, *regex;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", "(" DATE ")T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
    {"hostname", HOST},
    {"email", ATOM "(\\." ATOM ")*@" LABEL "(\\." LABEL "){1,7}"},
    {"uri", "[a-z][a-z0-9+.-]*://" HOST "(:[0-9]{1,5})?(/" PCHAR "*)*(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"}};

/* OpenAPI's hints for programs, not for values. */
static const char *const format_hints[] = {"int32", "int64", "float", "double", "password", "binary", "byte"};

static int32_t format_node(schema *s, const gy_jv *v) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (!gy_jv_is_str(v, formats[i].name)) continue;
        gy_gbuild *b = s->b;
        int32_t inner = gy_g_pattern(b, formats[i].regex, strlen(formats[i].regex), 0, 1);
        return gy_gb_cat(b, gy_gb_cat(b, gy_gb_z(b, "\""), inner), gy_gb_z(b, "\""));
    }
    for (size_t i = 0; i < sizeof format_hints / sizeof *format_hints; i++)
        if (gy_jv_is_str(v, format_hints[i])) return gy_gj_string(&s->j);
    const char *z = gy_jv_str(v, NULL);
    gy_gs_fail(s, z ? GY_E_UNSUPPORTED : GY_E_ARG,
               "'format': found %.60s; supported are date, time, date-time, uuid, ipv4, hostname, email and uri",
               z ? z : gy_jtype_name(gy_jv_type(v)));
    return 0;
}

/* The regex's own message, behind the place that it stands in. */
static int32_t pattern_node(schema *s, const gy_jv *v) {
    gy_gbuild *b = s->b;
    size_t len;
    const char *z = gy_jv_str(v, &len);
    if (!z) {
        gy_gs_fail(s, GY_E_ARG, "'pattern': found %s; expected a string", gy_jtype_name(gy_jv_type(v)));
        return 0;
    }
    int32_t inner = gy_g_pattern(b, z, len, 1, 1);
    if (b->st < 0 && b->err) gy_err_prefix(b->err, "json schema: at %s: 'pattern'", s->path);
    return gy_gb_cat(b, gy_gb_cat(b, gy_gb_z(b, "\""), inner), gy_gb_z(b, "\""));
}

static int32_t string_node(schema *s, const view *w) {
    const gy_jv *pattern = gy_gs_view_one(s, w, "pattern"), *format = gy_gs_view_one(s, w, "format");
    uint32_t min = count_of(s, w, "minLength", 0, 0), max = count_of(s, w, "maxLength", GY_G_INF, 1);
    int lengths = min > 0 || max != GY_G_INF;
    if (s->b->st < 0) return 0;
    if ((pattern != NULL) + (format != NULL) + lengths > 1) {
        gy_gs_fail(s, GY_E_UNSUPPORTED, "'pattern', 'format' and 'minLength'/'maxLength' are supported one at a time");
        return 0;
    }
    if (pattern) return pattern_node(s, pattern);
    if (format) return format_node(s, format);
    if (min > max) return gy_gb_node(s->b, GY_G_FAIL);
    return lengths ? gy_gj_string_len(&s->j, min, max) : gy_gj_string(&s->j);
}

/* ---- numbers ---- */

/* The tighter of what all parts say; sign 1: lower bounds, -1: upper ones. */
static void bound_take(schema *s, const view *w, const char *key, int open, int sign, gy_gbound *b) {
    for (int i = 0; i < w->n; i++) {
        const gy_jv *v = gy_gs_part_get(&w->part[i], key);
        int64_t n;
        if (!v) continue;
        if (!whole_of(v, &n)) {
            int number = gy_jv_type(v) == GY_J_REAL || gy_jv_type(v) == GY_J_INT;
            gy_gs_fail(s, number ? GY_E_UNSUPPORTED : GY_E_ARG,
                       "'%s': found %s; supported are whole numbers up to 2^62", key,
                       number ? "another number" : gy_jtype_name(gy_jv_type(v)));
            return;
        }
        int tighter = !b->on || (sign > 0 ? n > b->v : n < b->v);
        if (tighter) *b = (gy_gbound){1, open, n};
        if (!tighter && n == b->v) b->open |= open;
    }
}

static int32_t number_node(schema *s, const view *w, int fractions) {
    gy_gbound lo = {0}, hi = {0};
    bound_take(s, w, "minimum", 0, 1, &lo);
    bound_take(s, w, "exclusiveMinimum", 1, 1, &lo);
    bound_take(s, w, "maximum", 0, -1, &hi);
    bound_take(s, w, "exclusiveMaximum", 1, -1, &hi);
    if (!lo.on && !hi.on) return fractions ? gy_gj_number(&s->j) : gy_gj_integer(&s->j);
    if (lo.on && hi.on && lo.v > hi.v) return gy_gb_node(s->b, GY_G_FAIL);
    if (fractions) return gy_gj_number_in(&s->j, lo, hi);
    lo.v += lo.open;
    hi.v -= hi.open;
    if (lo.on && hi.on && lo.v > hi.v) return gy_gb_node(s->b, GY_G_FAIL);
    return gy_gj_integer_in(&s->j, lo, hi);
}

/* ---- arrays ---- */

/* A tree that is used more than once: a rule of its own, so that nothing is emitted twice. */
static uint32_t rule_of_tree(schema *s, int32_t node, const char *name) {
    gy_gbuild *b = s->b;
    int32_t rule = gy_gb_rule(b, name, strlen(name));
    if (b->st < 0) return 0;
    b->rules.data[rule].root = node;
    return (uint32_t)rule;
}

/* min to max elements that look alike; behind others (more) or first. */
static int32_t array_rest(schema *s, int32_t item, uint32_t min, uint32_t max, int more) {
    gy_gbuild *b = s->b;
    if (max == 0) return gy_gb_node(b, GY_G_EMPTY);
    if (!more && min <= 1 && max == GY_G_INF) {
        int32_t list = gy_gb_node(b, GY_G_LIST);
        gy_gb_add(b, list, item);
        return gy_gb_rep(b, list, min, 1);
    }
    uint32_t rule = rule_of_tree(s, item, "array element");
    int32_t next = gy_gb_cat(b, separator(b), gy_gb_call(b, rule));
    if (more) return gy_gb_rep(b, next, min, max);
    int32_t rest = gy_gb_rep(b, next, min > 1 ? min - 1 : 0, max == GY_G_INF ? max : max - 1);
    return gy_gb_rep(b, gy_gb_cat(b, gy_gb_call(b, rule), rest), min ? 1 : 0, 1);
}

/* What follows the first n elements of prefixItems, from the back: each with all that follows it. */
static int32_t array_prefix(schema *s, const gy_jv *prefix, size_t n, uint32_t min, int32_t tail) {
    gy_gbuild *b = s->b;
    for (size_t i = n; i-- > 0 && b->st >= 0;) {
        char step[40];
        snprintf(step, sizeof step, "prefixItems/%zu", i);
        int32_t item = gy_gb_cat(b, gy_gs_node(s, gy_jv_at(prefix, i), step), tail);
        if (i) item = gy_gb_cat(b, separator(b), item);
        tail = i >= min ? gy_gb_rep(b, item, 0, 1) : item;
    }
    return tail;
}

/* Without `items`: anything, but nothing behind prefixItems unless minItems wants it. */
static int32_t array_item(schema *s, const gy_jv *items) {
    if (!items) return gy_gj_value(&s->j);
    if (gy_jv_type(items) == GY_J_ARRAY) {
        gy_gs_fail(s, GY_E_UNSUPPORTED, "'items': an array is not supported; write 'prefixItems'");
        return 0;
    }
    return gy_gs_node(s, items, "items");
}

static int32_t array_node(schema *s, const view *w) {
    gy_gbuild *b = s->b;
    const gy_jv *prefix = gy_gs_view_one(s, w, "prefixItems"), *items = gy_gs_view_one(s, w, "items");
    uint32_t min = count_of(s, w, "minItems", 0, 0), max = count_of(s, w, "maxItems", GY_G_INF, 1);
    if (prefix && gy_jv_type(prefix) != GY_J_ARRAY)
        gy_gs_fail(s, GY_E_ARG, "'prefixItems': found %s; expected an array", gy_jtype_name(gy_jv_type(prefix)));
    if (b->st < 0) return 0;
    uint32_t n = (uint32_t)gy_jv_len(prefix);
    if (n && !items && min <= n && max > n) max = n;
    if (min > max) return gy_gb_node(b, GY_G_FAIL);
    if (n > max) n = max;
    uint32_t left = max == GY_G_INF ? max : max - n;
    int32_t rest =
        left ? array_rest(s, array_item(s, items), min > n ? min - n : 0, left, n > 0) : gy_gb_node(b, GY_G_EMPTY);
    int32_t all = array_prefix(s, prefix, n, min, rest);
    return gy_gb_cat(b, gy_gb_cat(b, gy_gb_z(b, "["), all), gy_gb_z(b, "]"));
}

/* ---- objects ---- */

typedef struct name {
    const char *s; /* borrowed from the document */
    size_t len;
    int required;
} name;
typedef GY_VEC(name) names;

static name *name_find(names *n, const char *s, size_t len) {
    for (size_t i = 0; i < n->len; i++)
        if (n->data[i].len == len && !memcmp(n->data[i].s, s, len)) return &n->data[i];
    return NULL;
}

static void name_add(schema *s, names *n, const char *z, size_t len) {
    name one = {z, len, 0};
    if (!gy_gb_work(s->b, n->len / 4 + 1) || name_find(n, z, len)) return;
    if (gy_vec_push(n, GY_MEM_SAMPLE, one)) gy_gb_nomem(s->b);
}

static void names_of_properties(schema *s, const view *w, names *n) {
    for (int i = 0; i < w->n; i++) {
        const gy_jv *p = gy_gs_part_get(&w->part[i], "properties");
        if (p && gy_jv_type(p) != GY_J_OBJECT)
            gy_gs_fail(s, GY_E_ARG, "'properties': found %s; expected an object", gy_jtype_name(gy_jv_type(p)));
        for (void *it = gy_jv_first(p); it; it = gy_jv_next(p, it)) {
            size_t len;
            const char *key = gy_jv_key(it, &len);
            name_add(s, n, key, len);
        }
    }
}

static void names_require(schema *s, names *n, const gy_jv *list) {
    if (gy_jv_type(list) != GY_J_ARRAY)
        gy_gs_fail(s, GY_E_ARG, "'required': found %s; expected an array of names", gy_jtype_name(gy_jv_type(list)));
    for (size_t i = 0; i < gy_jv_len(list) && s->b->st >= 0; i++) {
        size_t len;
        const char *z = gy_jv_str(gy_jv_at(list, i), &len);
        if (!z) {
            gy_gs_fail(s, GY_E_ARG, "'required': found %s; expected names",
                       gy_jtype_name(gy_jv_type(gy_jv_at(list, i))));
            return;
        }
        name_add(s, n, z, len);
        name *found = name_find(n, z, len);
        if (found) found->required = 1;
    }
}

/* Of several parts, one that limits undeclared members must know all that the others declare. */
static void additional_company(schema *s, const view *w, names *n) {
    for (int i = 0; i < w->n; i++) {
        const gy_jv *extra = gy_gs_part_get(&w->part[i], "additionalProperties");
        const gy_jv *own = gy_gs_part_get(&w->part[i], "properties");
        if (!extra || gy_jv_bool(extra, 0) || w->n == 1) continue;
        for (size_t k = 0; k < n->len; k++)
            if (!gy_jv_get(own, n->data[k].s))
                gy_gs_fail(
                    s, GY_E_UNSUPPORTED,
                    "'additionalProperties' beside another schema that holds here (allOf, $ref) and declares '%.60s' "
                    "is not supported",
                    n->data[k].s);
    }
}

/* What a declared or required member may hold. */
static int32_t property_value(schema *s, const view *w, const name *n, const gy_jv *extra) {
    view x = {0};
    size_t was = gy_gs_path_push(s, "properties"), inner = gy_gs_path_push(s, n->s);
    int declared = 0;
    for (int i = 0; i < w->n; i++) {
        const gy_jv *v = gy_jv_get(gy_gs_part_get(&w->part[i], "properties"), n->s);
        if (!v) continue;
        declared = 1;
        gy_gs_view_add(s, &x, v);
    }
    if (!declared && extra) gy_gs_view_add(s, &x, extra);
    int32_t node = gy_gs_view_node(s, &x);
    gy_gs_path_pop(s, inner);
    gy_gs_path_pop(s, was);
    return node;
}

/* ---- names of undeclared members: any string but the declared names ---- */

enum { MAX_NAME = 200 };

static int name_compare(const void *x, const void *y) {
    const name *a = x, *b = y;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

static int32_t other_rest(gy_gbuild *b, gy_gset *next) {
    gy_grange all = {0, 0x10FFFF};
    gy_gset_negate(b, next);
    int32_t rest = gy_gb_rep(b, gy_gb_set(b, &(gy_gset){&all, 1, 1}, 1), 0, GY_G_INF);
    return gy_gb_cat(b, gy_gb_set(b, next, 1), gy_gb_cat(b, rest, gy_gb_z(b, "\"")));
}

/* Names [lo, hi) are sorted and share their first `at` bytes, which were read: what may follow, up to the quote. */
static int32_t other_name(schema *s, const names *n, size_t lo, size_t hi, size_t at) {
    gy_gbuild *b = s->b;
    int32_t alt = gy_gb_node(b, GY_G_ALT);
    gy_gset next = {0};
    if (n->data[lo].len == at)
        lo++;
    else
        gy_gb_add(b, alt, gy_gb_z(b, "\""));
    while (lo < hi && b->st >= 0) {
        uint32_t c;
        size_t used = (size_t)gy_utf8_decode(n->data[lo].s + at, n->data[lo].len - at, &c), end = lo + 1;
        while (end < hi && n->data[end].len >= at + used && !memcmp(n->data[end].s + at, n->data[lo].s + at, used))
            end++;
        gy_grange r = {c, c};
        gy_gset_add(b, &next, c, c);
        gy_gb_add(b, alt, gy_gb_cat(b, gy_gb_set(b, &(gy_gset){&r, 1, 1}, 1), other_name(s, n, lo, end, at + used)));
        lo = end;
    }
    gy_gb_add(b, alt, other_rest(b, &next));
    gy_vec_free(&next);
    return alt;
}

static int32_t other_key(schema *s, names *n) {
    for (size_t i = 0; i < n->len; i++)
        if (n->data[i].len > MAX_NAME) {
            gy_gs_fail(s, GY_E_LIMIT, "'additionalProperties' beside a property name of %zu bytes; allowed %d",
                       n->data[i].len, MAX_NAME);
            return 0;
        }
    if (n->len == 0) return gy_gj_string(&s->j);
    qsort(n->data, n->len, sizeof *n->data, name_compare);
    return gy_gb_cat(s->b, gy_gb_z(s->b, "\""), other_name(s, n, 0, n->len, 0));
}

/* ---- the object ---- */

static void member_add(schema *s, int32_t members, int32_t key, int32_t value, gy_gmember kind) {
    gy_gbuild *b = s->b;
    int32_t m = gy_gj_member(&s->j, key, value);
    gy_gb_add(b, members, m);
    if (b->st >= 0) b->nodes.data[m].flag = (uint8_t)kind;
}

/* extra: the schema of undeclared members, NULL for none of them; all: extra or what is required but undeclared. */
static int32_t object_members(schema *s, const view *w, names *n, const gy_jv *extra, int open) {
    gy_gbuild *b = s->b;
    int32_t members = gy_gb_node(b, GY_G_MEMBERS);
    for (size_t i = 0; i < n->len && b->st >= 0; i++) {
        int32_t key = gy_gj_literal(&s->j, n->data[i].s, n->data[i].len);
        member_add(s, members, key, property_value(s, w, &n->data[i], extra),
                   n->data[i].required ? GY_G_REQUIRED : GY_G_OPTIONAL);
    }
    if (open && b->st >= 0) {
        int32_t value = extra ? gy_gs_node(s, extra, "additionalProperties") : gy_gj_value(&s->j);
        member_add(s, members, other_key(s, n), value, GY_G_ANY_TIMES);
    }
    return gy_gb_cat(b, gy_gb_cat(b, gy_gb_z(b, "{"), members), gy_gb_z(b, "}"));
}

static int32_t object_node(schema *s, const view *w) {
    names n = {0};
    names_of_properties(s, w, &n);
    for (int i = 0; i < w->n; i++) {
        const gy_jv *r = gy_gs_part_get(&w->part[i], "required");
        if (r) names_require(s, &n, r);
    }
    additional_company(s, w, &n);
    const gy_jv *extra = NULL;
    for (int i = 0; i < w->n; i++) {
        const gy_jv *x = gy_gs_part_get(&w->part[i], "additionalProperties");
        if (x && extra && !gy_jv_bool(x, 0) && !gy_jv_bool(extra, 0))
            gy_gs_fail(s, GY_E_UNSUPPORTED,
                       "found 'additionalProperties' in two schemas that hold together; expected one");
        if (x && (!extra || gy_jv_bool(extra, 0))) extra = x;
    }
    int closed = extra ? gy_jv_type(extra) == GY_J_BOOL && !gy_jv_bool(extra, 1) : n.len > 0;
    int32_t node = s->b->st < 0 ? 0 : object_members(s, w, &n, extra, !closed);
    gy_vec_free(&n);
    return node;
}

/* ---- all types ---- */

int32_t gy_gs_values(schema *s, const view *w) {
    gy_gbuild *b = s->b;
    if (gy_gs_view_has(w, "const")) return const_node(s, w);
    if (gy_gs_view_has(w, "enum")) return enum_node(s, w);
    unsigned types = view_types(s, w);
    if (b->st < 0) return 0;
    if (types == T_ALL && types_implied(w) == T_ALL) return gy_gj_value(&s->j);
    int32_t alt = gy_gb_node(b, GY_G_ALT);
    if (types & T_OBJECT) gy_gb_add(b, alt, object_node(s, w));
    if (types & T_ARRAY) gy_gb_add(b, alt, array_node(s, w));
    if (types & T_STRING) gy_gb_add(b, alt, string_node(s, w));
    if (types & T_INT) gy_gb_add(b, alt, number_node(s, w, (types & T_FRACTION) != 0));
    if (types & T_BOOL) gy_gb_add(b, alt, gy_gb_alt(b, gy_gb_z(b, "true"), gy_gb_z(b, "false")));
    if (types & T_NULL) gy_gb_add(b, alt, gy_gb_z(b, "null"));
    return alt;
}
