/* How values become text: what Python's str(), repr() and json.dumps() give. Every byte that is written brings its
 * origin along. Brackets, commas and quotes have that of the list, object or string that they belong to.
 */
#include "text/jinja_int.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the buffer ---- */

static int buf_grow(gy_jj_run *r, gy_jj_buf *b, size_t more) {
    size_t cap = b->cap ? b->cap : 128, need;
    if (gy_size_add(b->len, more, &need)) need = SIZE_MAX;
    while (cap < need && cap < SIZE_MAX / 2) cap *= 2;
    if (cap < need) cap = need;
    char *s = gy_jj_alloc(r, cap, 1);
    uint8_t *marks = s && b->marks ? gy_jj_alloc(r, cap, 1) : NULL;
    if (!s || (b->marks && !marks)) return -1;
    if (b->len) memcpy(s, b->s, b->len);
    if (b->len && marks) memcpy(marks, b->marks, b->len);
    b->s = s;
    b->marks = marks;
    b->cap = cap;
    return 0;
}

/* Room for `len` bytes of the given origin (-1: of several). */
static int buf_ready(gy_jj_run *r, gy_jj_buf *b, size_t len, int origin) {
    if (b->is_output && len > r->t->lim.max_output_bytes - b->len)
        return gy_jj_fail(r, GY_E_LIMIT, "the output is longer than %zu bytes", r->t->lim.max_output_bytes);
    if (len > b->cap - b->len && buf_grow(r, b, len)) return -1;
    if (!b->len && !b->marks && origin >= 0) b->origin = (uint8_t)origin;
    if (b->marks || origin == b->origin) return 0;
    if (!(b->marks = gy_jj_alloc(r, b->cap, 1))) return -1;
    memset(b->marks, b->origin, b->len);
    return 0;
}

int gy_jj_put(gy_jj_run *r, gy_jj_buf *b, const char *s, size_t len, unsigned origin) {
    if (!len) return 0;
    if (buf_ready(r, b, len, (int)origin)) return -1;
    memcpy(b->s + b->len, s, len);
    if (b->marks) memset(b->marks + b->len, (int)origin, len);
    b->len += len;
    return gy_jj_step(r, 1 + len / 64);
}

int gy_jj_put_sub(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *str, size_t off, size_t len) {
    const gy_jj_text *t = str->u.str;
    if (!len) return 0;
    if (!t->marks) return gy_jj_put(r, b, t->s + off, len, str->origin);
    if (buf_ready(r, b, len, -1)) return -1;
    memcpy(b->s + b->len, t->s + off, len);
    memcpy(b->marks + b->len, t->marks + off, len);
    b->len += len;
    return gy_jj_step(r, 1 + len / 64);
}

int gy_jj_put_str(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *str) {
    return gy_jj_put_sub(r, b, str, 0, str->u.str->len);
}

int gy_jj_put_cp(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin) {
    char s[4];
    size_t n = 0;
    if (cp < 0x80)
        s[n++] = (char)cp;
    else {
        int more = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
        static const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
        s[n++] = (char)(lead[more] | (cp >> (6 * more)));
        while (more--) s[n++] = (char)(0x80 | ((cp >> (6 * more)) & 0x3F));
    }
    return gy_jj_put(r, b, s, n, origin);
}

static int putz(gy_jj_run *r, gy_jj_buf *b, const char *z, unsigned origin) {
    return gy_jj_put(r, b, z, strlen(z), origin);
}

int gy_jj_take(gy_jj_run *r, gy_jj_buf *b, gy_jj_val *out) {
    gy_jj_text *t = gy_jj_alloc(r, 1, sizeof *t);
    if (!t) return -1;
    *t = (gy_jj_text){.s = b->s ? b->s : "", .marks = b->marks, .len = b->len};
    *out = (gy_jj_val){.type = GY_JJ_STR, .origin = b->origin, .u.str = t};
    *b = (gy_jj_buf){0};
    return 0;
}

/* ---- numbers ---- */

/* The shortest decimal digits that read back as v (finite, > 0): digits without a point, value 0.d1d2d3... * 10^exp. */
static int shortest_digits(double v, char digits[20], int *exp10) {
    char text[40] = "";
    int n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v) break;
    }
    const char *c = text;
    for (; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9' && n < 18) digits[n++] = *c; /* whatever the locale's point is, it is skipped */
    *exp10 = *c ? (int)strtol(c + 1, NULL, 10) + 1 : 1;
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

/* As Python's repr: with an exponent below 1e-4 and from 1e16 on, always with a point or an exponent. */
static void real_text(double v, char *out, size_t cap) {
    char d[20] = "";
    int e, n = shortest_digits(v, d, &e);
    if (e > 16 || e < -3)
        snprintf(out, cap, "%c%s%.*se%c%02d", d[0], n > 1 ? "." : "", n - 1, d + 1, e < 1 ? '-' : '+', abs(e - 1));
    else if (e <= 0)
        snprintf(out, cap, "0.%.*s%.*s", -e, "0000", n, d);
    else if (n <= e)
        snprintf(out, cap, "%.*s%.*s.0", n, d, e - n, "0000000000000000");
    else
        snprintf(out, cap, "%.*s.%.*s", e, d, n - e, d + e);
}

int gy_jj_put_real(gy_jj_run *r, gy_jj_buf *b, double v, int is_json, unsigned origin) {
    char text[48];
    if (isnan(v)) return putz(r, b, is_json ? "NaN" : "nan", origin);
    if (signbit(v) && putz(r, b, "-", origin)) return -1;
    if (isinf(v)) return putz(r, b, is_json ? "Infinity" : "inf", origin);
    if (v == 0) return putz(r, b, "0.0", origin);
    real_text(fabs(v), text, sizeof text);
    return putz(r, b, text, origin);
}

static int put_int(gy_jj_run *r, gy_jj_buf *b, int64_t i, unsigned origin) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return putz(r, b, text, origin);
}

/* ---- str() and repr() ---- */

static int is_printable(uint32_t cp) {
    if (cp < 0x7F) return cp >= 0x20;
    const char *c = gy_uni_category(cp);
    return c[0] != 'C' && c[0] != 'Z';
}

static int repr_char(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, char quote, unsigned origin) {
    static const char from[] = "\n\r\t\\", to[] = "nrt\\";
    const char *plain = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    char text[16];
    if (plain || cp == (uint32_t)quote)
        snprintf(text, sizeof text, "\\%c", plain ? to[plain - from] : quote);
    else if (cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", (unsigned)cp);
    else
        snprintf(text, sizeof text, cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    return putz(r, b, text, origin);
}

static int repr_str(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v) {
    const gy_jj_text *t = v->u.str;
    int double_quotes = t->len && memchr(t->s, '\'', t->len) && !memchr(t->s, '"', t->len);
    char quote = double_quotes ? '"' : '\'';
    if (gy_jj_put(r, b, &quote, 1, v->origin)) return -1;
    size_t done = 0;
    for (size_t at = 0, n; at < t->len; at += n) {
        uint32_t cp = gy_jj_cp_at(v, at, &n);
        if (is_printable(cp) && cp != (uint32_t)quote && cp != '\\') continue;
        if (gy_jj_put_sub(r, b, v, done, at - done) || repr_char(r, b, cp, quote, gy_jj_mark_at(v, at))) return -1;
        done = at + n;
    }
    return gy_jj_put_sub(r, b, v, done, t->len - done) || gy_jj_put(r, b, &quote, 1, v->origin) ? -1 : 0;
}

static int repr_list(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v) {
    int is_tuple = v->type == GY_JJ_TUPLE;
    const gy_jj_list *l = v->u.list;
    if (putz(r, b, is_tuple ? "(" : "[", v->origin)) return -1;
    for (size_t i = 0; i < l->n; i++)
        if ((i && putz(r, b, ", ", v->origin)) || gy_jj_put_repr(r, b, &l->v[i])) return -1;
    return putz(r, b, is_tuple ? (l->n == 1 ? ",)" : ")") : "]", v->origin);
}

static int repr_dict(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v) {
    const gy_jj_dict *d = v->u.dict;
    if (putz(r, b, v->type == GY_JJ_SPACE ? "<Namespace {" : "{", v->origin)) return -1;
    for (size_t i = 0; i < d->n; i++)
        if ((i && putz(r, b, ", ", v->origin)) || gy_jj_put_repr(r, b, &d->e[i].key) || putz(r, b, ": ", v->origin) ||
            gy_jj_put_repr(r, b, &d->e[i].val))
            return -1;
    return putz(r, b, v->type == GY_JJ_SPACE ? "}>" : "}", v->origin);
}

static int put_any(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, int quoted) {
    switch ((gy_jj_type)v->type) {
    case GY_JJ_UNDEF:
    case GY_JJ_MISSING:
        return quoted ? putz(r, b, "Undefined", v->origin) : 0;
    case GY_JJ_NONE:
        return putz(r, b, "None", v->origin);
    case GY_JJ_BOOL:
        return putz(r, b, v->u.i ? "True" : "False", v->origin);
    case GY_JJ_INT:
        return put_int(r, b, v->u.i, v->origin);
    case GY_JJ_REAL:
        return gy_jj_put_real(r, b, v->u.r, 0, v->origin);
    case GY_JJ_STR:
        return quoted ? repr_str(r, b, v) : gy_jj_put_str(r, b, v);
    case GY_JJ_LIST:
    case GY_JJ_TUPLE:
        return repr_list(r, b, v);
    case GY_JJ_DICT:
    case GY_JJ_SPACE:
        return repr_dict(r, b, v);
    case GY_JJ_LOOP:
    case GY_JJ_MACRO:
    case GY_JJ_FUNC:
    case GY_JJ_METHOD:
        break;
    }
    return gy_jj_fail(r, GY_E_ARG, "a %s cannot be printed: is a call missing?", gy_jj_type_name(v));
}

static int put_down(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, int quoted) {
    if (gy_jj_step(r, 1) || gy_jj_down(r)) return -1;
    int failed = put_any(r, b, v, quoted);
    r->depth--;
    return failed;
}

int gy_jj_put_val(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v) {
    return put_down(r, b, v, 0);
}

int gy_jj_put_repr(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v) {
    return put_down(r, b, v, 1);
}

int gy_jj_to_str(gy_jj_run *r, const gy_jj_val *v, gy_jj_val *out) {
    if (v->type == GY_JJ_STR) {
        *out = *v;
        return 0;
    }
    gy_jj_buf b = {0};
    return gy_jj_put_val(r, &b, v) ? -1 : gy_jj_take(r, &b, out);
}

/* ---- json.dumps() ---- */

static int json_escape(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *plain = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    char text[16];
    if (plain)
        snprintf(text, sizeof text, "\\%c", to[plain - from]);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800u + ((unsigned)(cp - 0x10000) >> 10),
                 0xDC00u + ((unsigned)cp & 0x3FF));
    return putz(r, b, text, origin);
}

static int json_str(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how) {
    const gy_jj_text *t = v->u.str;
    size_t done = 0;
    if (putz(r, b, "\"", gy_jj_mark_at(v, 0))) return -1;
    for (size_t at = 0, n; at < t->len; at += n) {
        uint32_t cp = gy_jj_cp_at(v, at, &n);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x7F || !how->ensure_ascii)) continue;
        if (gy_jj_put_sub(r, b, v, done, at - done) || json_escape(r, b, cp, gy_jj_mark_at(v, at))) return -1;
        done = at + n;
    }
    return gy_jj_put_sub(r, b, v, done, t->len - done) || putz(r, b, "\"", gy_jj_mark_at(v, 0)) ? -1 : 0;
}

static int json_newline(gy_jj_run *r, gy_jj_buf *b, const gy_jj_json *how, int level, unsigned origin) {
    if (!how->has_indent) return 0;
    if (putz(r, b, "\n", origin)) return -1;
    for (int i = 0; i < level; i++)
        if (gy_jj_put_str(r, b, &how->indent)) return -1;
    return 0;
}

static int json_any(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how, int level);

static int json_list(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how, int level) {
    const gy_jj_list *l = v->u.list;
    if (!l->n) return putz(r, b, "[]", v->origin);
    if (putz(r, b, "[", v->origin)) return -1;
    for (size_t i = 0; i < l->n; i++) {
        gy_jj_val sep = how->item_sep;
        if (sep.origin == GY_JJ_MARKUP) sep.origin = v->origin;
        if (i && gy_jj_put_str(r, b, &sep)) return -1;
        if (json_newline(r, b, how, level + 1, v->origin) || json_any(r, b, &l->v[i], how, level + 1)) return -1;
    }
    return json_newline(r, b, how, level, v->origin) || putz(r, b, "]", v->origin) ? -1 : 0;
}

/* Keys become strings as json.dumps makes them. */
static int json_key(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *key, const gy_jj_json *how) {
    if (key->type == GY_JJ_STR) return json_str(r, b, key, how);
    if (!gy_jj_is_num(key) && key->type != GY_JJ_NONE)
        return gy_jj_fail(r, GY_E_ARG, "tojson: a value of type '%s' cannot be a key", gy_jj_type_name(key));
    return putz(r, b, "\"", key->origin) || json_any(r, b, key, how, 0) || putz(r, b, "\"", key->origin) ? -1 : 0;
}

static int json_order(gy_jj_run *r, const gy_jj_dict *d, const gy_jj_json *how, size_t **order) {
    *order = NULL;
    if (!how->sort_keys) return 0;
    gy_jj_val keys;
    if (gy_jj_list_new(r, GY_JJ_LIST, d->n, &keys) || !(*order = gy_jj_alloc(r, d->n, sizeof **order))) return -1;
    for (size_t i = 0; i < d->n; i++) keys.u.list->v[i] = d->e[i].key;
    return gy_jj_sort(r, keys.u.list->v, d->n, 0, *order);
}

static int json_dict(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how, int level) {
    const gy_jj_dict *d = v->u.dict;
    size_t *order;
    if (!d->n) return putz(r, b, "{}", v->origin);
    if (json_order(r, d, how, &order) || putz(r, b, "{", v->origin)) return -1;
    for (size_t i = 0; i < d->n; i++) {
        const gy_jj_entry *e = &d->e[order ? order[i] : i];
        gy_jj_val sep = how->item_sep, colon = how->key_sep;
        if (sep.origin == GY_JJ_MARKUP) sep.origin = v->origin;
        if (colon.origin == GY_JJ_MARKUP) colon.origin = v->origin;
        if (i && gy_jj_put_str(r, b, &sep)) return -1;
        if (json_newline(r, b, how, level + 1, v->origin) || json_key(r, b, &e->key, how) ||
            gy_jj_put_str(r, b, &colon) || json_any(r, b, &e->val, how, level + 1))
            return -1;
    }
    return json_newline(r, b, how, level, v->origin) || putz(r, b, "}", v->origin) ? -1 : 0;
}

static int json_one(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how, int level) {
    switch ((gy_jj_type)v->type) {
    case GY_JJ_NONE:
        return putz(r, b, "null", v->origin);
    case GY_JJ_BOOL:
        return putz(r, b, v->u.i ? "true" : "false", v->origin);
    case GY_JJ_INT:
        return put_int(r, b, v->u.i, v->origin);
    case GY_JJ_REAL:
        return gy_jj_put_real(r, b, v->u.r, 1, v->origin);
    case GY_JJ_STR:
        return json_str(r, b, v, how);
    case GY_JJ_LIST:
    case GY_JJ_TUPLE:
        return json_list(r, b, v, how, level);
    case GY_JJ_DICT:
        return json_dict(r, b, v, how, level);
    case GY_JJ_UNDEF:
        return gy_jj_undefined(r, v);
    default:
        return gy_jj_fail(r, GY_E_ARG, "tojson: a value of type '%s' has no JSON form", gy_jj_type_name(v));
    }
}

static int json_any(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how, int level) {
    if (gy_jj_step(r, 1) || gy_jj_down(r)) return -1;
    int failed = json_one(r, b, v, how, level);
    r->depth--;
    return failed;
}

int gy_jj_put_json(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how) {
    return json_any(r, b, v, how, 0);
}

/* ---- the result ---- */

gy_status gy_jj_split(const gy_jj_buf *b, gy_err *err, gy_jinja_out *out) {
    gy_jinja_out o = {0};
    int failed = 0;
    gy_str_append(&o.text, b->s ? b->s : "", b->len);
    for (size_t at = 0, end; !failed && at < b->len; at = end) {
        unsigned data = (b->marks ? b->marks[at] : b->origin) & GY_JJ_DATA;
        end = b->marks ? at + 1 : b->len;
        while (end < b->len && (b->marks[end] & GY_JJ_DATA) == data) end++;
        failed = gy_vec_push(&o.seg, GY_MEM_TEXT, ((gy_jinja_segment){at, end - at, data != 0}));
    }
    if (failed || o.text.failed) {
        gy_jinja_out_free(&o);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the rendered chat");
    }
    *out = o;
    return GY_OK;
}

void gy_jinja_out_free(gy_jinja_out *o) {
    gy_str_free(&o->text);
    gy_vec_free(&o->seg);
}
