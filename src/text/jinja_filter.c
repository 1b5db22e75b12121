/* Filters and tests, with jinja2's meaning; tojson as transformers redefines it. Filters that give generators there
 * give lists here. "safe" changes nothing, since nothing is escaped.
 */
#include "text/jinja_int.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* v: what the filter stands behind; a: its bound arguments. */
typedef int filter_fn(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out);
typedef int filter_raw(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out);

/* ---- arguments ---- */

static int arg_bool(const gy_jj_val *v) {
    return v->type != GY_JJ_MISSING && gy_jj_truth(v);
}

static int arg_int(gy_jj_run *r, const char *who, const gy_jj_val *v, int64_t dflt, int64_t *out) {
    *out = dflt;
    if (v->type == GY_JJ_MISSING) return 0;
    if (v->type != GY_JJ_INT && v->type != GY_JJ_BOOL)
        return gy_jj_fail(r, GY_E_ARG, "%s takes an integer, not a value of type '%s'", who, gy_jj_type_name(v));
    *out = v->u.i;
    return 0;
}

/* One part of an attribute path: a number is an index. */
static int path_part(gy_jj_run *r, const gy_jj_val *path, size_t off, size_t len, gy_jj_val *out) {
    const char *s = path->u.str->s + off;
    int64_t n = 0;
    size_t i = 0;
    for (; i < len && i < 15 && s[i] >= '0' && s[i] <= '9'; i++) n = n * 10 + (s[i] - '0');
    if (len && i == len) {
        *out = gy_jj_int(n);
        return 0;
    }
    return gy_jj_sub(r, path, off, len, out);
}

/* "a.b.0" of item. dflt (may be MISSING) stands in for what is undefined. */
static int attr_path(gy_jj_run *r, const gy_jj_val *item, const gy_jj_val *path, const gy_jj_val *dflt,
                     gy_jj_val *out) {
    gy_jj_val v = *item, part;
    if (path->type == GY_JJ_INT) return gy_jj_item(r, item, path, out);
    if (path->type != GY_JJ_STR)
        return gy_jj_fail(r, GY_E_ARG, "an attribute is named by a string, not a value of type '%s'",
                          gy_jj_type_name(path));
    const gy_jj_text *t = path->u.str;
    for (size_t at = 0; at <= t->len;) {
        const char *dot = at < t->len ? memchr(t->s + at, '.', t->len - at) : NULL;
        size_t end = dot ? (size_t)(dot - t->s) : t->len;
        if (path_part(r, path, at, end - at, &part) || gy_jj_item(r, &v, &part, &v)) return -1;
        if (v.type == GY_JJ_UNDEF && dflt->type != GY_JJ_MISSING && dflt->type != GY_JJ_NONE) v = *dflt;
        at = end + 1;
    }
    *out = v;
    return 0;
}

/* What a list is ordered or compared by: an attribute if one is given, letters in lower case unless case counts. */
static int key_one(gy_jj_run *r, const gy_jj_val *item, const gy_jj_val *attr, int case_counts, gy_jj_val *out) {
    gy_jj_val none = {0}, path = *attr; /* attr and out may be the same */
    *out = *item;
    if (path.type != GY_JJ_MISSING && path.type != GY_JJ_NONE && attr_path(r, item, &path, &none, out)) return -1;
    return out->type == GY_JJ_STR && !case_counts ? gy_jj_recase(r, out, GY_JJ_LOWER, out) : 0;
}

static int key_list(gy_jj_run *r, const gy_jj_list *items, const gy_jj_val *attr, int case_counts, gy_jj_val *out) {
    if (gy_jj_list_new(r, GY_JJ_LIST, items->n, out)) return -1;
    for (size_t i = 0; i < items->n; i++)
        if (key_one(r, &items->v[i], attr, case_counts, &out->u.list->v[i])) return -1;
    return 0;
}

/* ---- filters of anything ---- */

static int f_default(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    int use = v->type == GY_JJ_UNDEF || (arg_bool(&a[1]) && !gy_jj_truth(v));
    if (use && a[0].type == GY_JJ_MISSING) return gy_jj_strz(r, "", out);
    *out = use ? a[0] : *v;
    return 0;
}

static int f_string(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return gy_jj_to_str(r, v, out);
}

static int f_length(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    int64_t n;
    (void)a;
    if (gy_jj_length(r, v, &n)) return -1;
    *out = gy_jj_int(n);
    return 0;
}

static int json_indent(gy_jj_run *r, const gy_jj_val *v, gy_jj_json *how) {
    static const char spaces[] = "                                ";
    if (v->type == GY_JJ_MISSING || v->type == GY_JJ_NONE) return 0;
    how->has_indent = 1;
    if (v->type == GY_JJ_STR) {
        how->indent = *v;
        return 0;
    }
    int64_t n;
    if (arg_int(r, "tojson's indent", v, 0, &n)) return -1;
    if (n < 0) n = 0;
    if (n > (int64_t)sizeof spaces - 1)
        return gy_jj_fail(r, GY_E_ARG, "tojson: an indent of %lld, at most %zu are allowed", (long long)n,
                          sizeof spaces - 1);
    return gy_jj_str(r, spaces, (size_t)n, GY_JJ_MARKUP, &how->indent);
}

static int f_tojson(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_json how = {.ensure_ascii = arg_bool(&a[0]), .sort_keys = arg_bool(&a[3])};
    gy_jj_buf b = {0};
    if (json_indent(r, &a[1], &how)) return -1;
    if (gy_jj_strz(r, how.has_indent ? "," : ", ", &how.item_sep) || gy_jj_strz(r, ": ", &how.key_sep)) return -1;
    if (arg_bool(&a[2])) {
        const gy_jj_list *seps;
        if (gy_jj_iterate(r, &a[2], &seps)) return -1;
        if (seps->n != 2 || seps->v[0].type != GY_JJ_STR || seps->v[1].type != GY_JJ_STR)
            return gy_jj_fail(r, GY_E_ARG, "tojson: separators must be two strings");
        how.item_sep = seps->v[0];
        how.key_sep = seps->v[1];
    }
    return gy_jj_put_json(r, &b, v, &how) ? -1 : gy_jj_take(r, &b, out);
}

/* ---- filters of numbers ---- */

static int f_abs(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val zero = gy_jj_from(gy_jj_int(0), v->origin);
    (void)a;
    if (!gy_jj_is_num(v)) return gy_jj_fail(r, GY_E_ARG, "abs of a value of type '%s'", gy_jj_type_name(v));
    *out = *v;
    if (v->type == GY_JJ_REAL)
        out->u.r = fabs(v->u.r);
    else
        return gy_jj_binary(r, v->u.i < 0 ? GY_JJ_OP_SUB : GY_JJ_OP_ADD, &zero, v, out);
    return 0;
}

/* Python's int(text, base) for whole texts of digits. 1 if it is one. */
static int text_int(const char *s, int64_t base, int64_t *out) {
    char *end;
    if (base < 2 || base > 36) return 0;
    long long n = strtoll(s, &end, (int)base);
    if (end == s || *end) return 0;
    *out = n;
    return n != INT64_MAX && n != INT64_MIN;
}

static int text_real(const char *s, double *out) {
    char *end;
    if (s[strspn(s, "0123456789.eE+-")]) return 0; /* no hexadecimal, no names */
    *out = strtod(s, &end);
    return end != s && !*end;
}

/* v without white space around it, as a C string; "" when that cannot be a number. */
static int number_text(gy_jj_run *r, const gy_jj_val *v, char *buf, size_t cap) {
    gy_jj_val t, none = gy_jj_none();
    buf[0] = '\0';
    if (gy_jj_strip(r, v, &none, GY_JJ_LEFT | GY_JJ_RIGHT, &t)) return -1;
    if (t.u.str->len >= cap || (t.u.str->len && memchr(t.u.str->s, 0, t.u.str->len))) return 0;
    memcpy(buf, t.u.str->s, t.u.str->len);
    buf[t.u.str->len] = '\0';
    return 0;
}

static int f_int(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    char text[64];
    int64_t base, i = 0;
    double d = gy_jj_is_num(v) ? gy_jj_num(v) : 0;
    int have = gy_jj_is_num(v), exact = have && v->type != GY_JJ_REAL;
    if (arg_int(r, "int", &a[1], 10, &base)) return -1;
    if (exact) i = v->u.i;
    if (v->type == GY_JJ_STR) {
        if (number_text(r, v, text, sizeof text)) return -1;
        exact = text_int(text, base, &i);
        have = exact || text_real(text, &d);
    }
    if (have && !exact) {
        have = fabs(d) < 9e18;
        i = have ? (int64_t)d : 0;
    }
    *out = have ? gy_jj_from(gy_jj_int(i), v->origin & GY_JJ_DATA) : a[0].type == GY_JJ_MISSING ? gy_jj_int(0) : a[0];
    return 0;
}

static int f_float(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    char text[64];
    double d = gy_jj_is_num(v) ? gy_jj_num(v) : 0;
    int have = gy_jj_is_num(v);
    if (v->type == GY_JJ_STR) {
        if (number_text(r, v, text, sizeof text)) return -1;
        have = text_real(text, &d);
    }
    *out = have ? gy_jj_from(gy_jj_real(d), v->origin & GY_JJ_DATA) : a[0].type == GY_JJ_MISSING ? gy_jj_real(0) : a[0];
    return 0;
}

/* To nearest in decimal, ties to even, as Python's round: printing with that many digits does it. */
static double round_common(double d, int digits) {
    char text[400];
    if (digits < 0) {
        double scale = pow(10, -digits);
        return nearbyint(d / scale) * scale;
    }
    snprintf(text, sizeof text, "%.*f", digits, d);
    return strtod(text, NULL);
}

static int f_round(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    int64_t digits;
    if (!gy_jj_is_num(v)) return gy_jj_fail(r, GY_E_ARG, "round of a value of type '%s'", gy_jj_type_name(v));
    if (arg_int(r, "round", &a[0], 0, &digits)) return -1;
    if (digits < -18 || digits > 18) return gy_jj_fail(r, GY_E_ARG, "round to %lld digits", (long long)digits);
    int common = a[1].type == GY_JJ_MISSING || gy_jj_is_str(&a[1], "common"), ceils = gy_jj_is_str(&a[1], "ceil");
    if (!common && !ceils && !gy_jj_is_str(&a[1], "floor"))
        return gy_jj_fail(r, GY_E_ARG, "round: the method must be common, ceil or floor");
    if (common && v->type != GY_JJ_REAL && digits >= 0) {
        *out = gy_jj_from(gy_jj_int(v->u.i), v->origin);
        return 0;
    }
    double scale = pow(10, (double)digits), d = gy_jj_num(v);
    d = common ? round_common(d, (int)digits) : (ceils ? ceil(d * scale) : floor(d * scale)) / scale;
    *out = gy_jj_from(common && v->type != GY_JJ_REAL ? gy_jj_int((int64_t)d) : gy_jj_real(d), v->origin);
    return 0;
}

static int f_sum(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *items;
    gy_jj_val keys, sum = a[1].type == GY_JJ_MISSING ? gy_jj_int(0) : a[1];
    if (gy_jj_iterate(r, v, &items) || key_list(r, items, &a[0], 1, &keys)) return -1;
    for (size_t i = 0; i < items->n; i++)
        if (gy_jj_binary(r, GY_JJ_OP_ADD, &sum, &keys.u.list->v[i], &sum)) return -1;
    *out = sum;
    return 0;
}

/* ---- filters of strings ---- */

static int recase(gy_jj_run *r, const gy_jj_val *v, gy_jj_case how, gy_jj_val *out) {
    gy_jj_val s;
    return gy_jj_to_str(r, v, &s) || gy_jj_recase(r, &s, how, out) ? -1 : 0;
}

static int f_upper(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return recase(r, v, GY_JJ_UPPER, out);
}

static int f_lower(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return recase(r, v, GY_JJ_LOWER, out);
}

static int f_title(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return recase(r, v, GY_JJ_WORDS, out);
}

static int f_capitalize(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return recase(r, v, GY_JJ_CAPITAL, out);
}

static int f_trim(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val s;
    return gy_jj_to_str(r, v, &s) || gy_jj_strip(r, &s, &a[0], GY_JJ_LEFT | GY_JJ_RIGHT, out) ? -1 : 0;
}

static int f_center(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val s;
    int64_t width;
    if (arg_int(r, "center", &a[0], 80, &width) || gy_jj_to_str(r, v, &s)) return -1;
    return gy_jj_pad(r, &s, width, GY_JJ_LEFT | GY_JJ_RIGHT, NULL, out);
}

static int f_replace(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val s, old, with;
    int64_t most;
    if (a[0].type == GY_JJ_MISSING || a[1].type == GY_JJ_MISSING)
        return gy_jj_fail(r, GY_E_ARG, "replace takes what is replaced and by what");
    if (arg_int(r, "replace", a[2].type == GY_JJ_NONE ? &(gy_jj_val){0} : &a[2], -1, &most)) return -1;
    if (gy_jj_to_str(r, v, &s) || gy_jj_to_str(r, &a[0], &old) || gy_jj_to_str(r, &a[1], &with)) return -1;
    return gy_jj_replace(r, &s, &old, &with, most, out);
}

static int f_indent(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val s, lines, pad = a[0];
    gy_jj_buf b = {0};
    int64_t width;
    if (pad.type != GY_JJ_STR) {
        if (arg_int(r, "indent", &a[0], 4, &width) || gy_jj_strz(r, "", &pad)) return -1;
        if (gy_jj_pad(r, &pad, width, GY_JJ_LEFT, NULL, &pad)) return -1;
    }
    if (v->type != GY_JJ_STR) return gy_jj_fail(r, GY_E_ARG, "indent of a value of type '%s'", gy_jj_type_name(v));
    s = *v;
    if (gy_jj_put_str(r, &b, &s) || gy_jj_put(r, &b, "\n", 1, s.origin) || gy_jj_take(r, &b, &s) ||
        gy_jj_split_lines(r, &s, 0, &lines))
        return -1;
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const gy_jj_val *line = &lines.u.list->v[i];
        int padded = i ? line->u.str->len || arg_bool(&a[2]) : arg_bool(&a[1]);
        if ((i && gy_jj_put(r, &b, "\n", 1, s.origin)) || (padded && gy_jj_put_str(r, &b, &pad)) ||
            gy_jj_put_str(r, &b, line))
            return -1;
    }
    return gy_jj_take(r, &b, out);
}

static int f_format(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val s, args;
    if (a->n_named) return gy_jj_fail(r, GY_E_ARG, "format with named values is not supported");
    if (gy_jj_to_str(r, v, &s) || gy_jj_list_new(r, GY_JJ_TUPLE, a->n, &args)) return -1;
    if (a->n) memcpy(args.u.list->v, a->pos, a->n * sizeof *a->pos);
    return gy_jj_percent(r, &s, &args, out);
}

/* ---- filters of lists ---- */

static int f_first(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val zero = gy_jj_int(0);
    (void)a;
    if (v->type == GY_JJ_STR) return gy_jj_item(r, v, &zero, out);
    if (gy_jj_iterate(r, v, &l)) return -1;
    *out = l->n ? l->v[0] : gy_jj_undef("the first item of nothing");
    return 0;
}

static int f_last(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val last = gy_jj_int(-1);
    (void)a;
    if (v->type == GY_JJ_STR) return gy_jj_item(r, v, &last, out);
    if (gy_jj_iterate(r, v, &l)) return -1;
    *out = l->n ? l->v[l->n - 1] : gy_jj_undef("the last item of nothing");
    return 0;
}

static int copy_list(gy_jj_run *r, const gy_jj_val *v, gy_jj_val *out) {
    const gy_jj_list *l;
    if (gy_jj_iterate(r, v, &l) || gy_jj_list_new(r, GY_JJ_LIST, l->n, out)) return -1;
    if (l->n) memcpy(out->u.list->v, l->v, l->n * sizeof *l->v);
    return 0;
}

static int f_list(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return copy_list(r, v, out);
}

static int f_reverse(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val none = gy_jj_none(), back = gy_jj_int(-1);
    (void)a;
    if (v->type == GY_JJ_STR) return gy_jj_slice(r, v, &none, &none, &back, out);
    if (gy_jj_iterate(r, v, &l) || gy_jj_list_new(r, GY_JJ_LIST, l->n, out)) return -1;
    for (size_t i = 0; i < l->n; i++) out->u.list->v[i] = l->v[l->n - 1 - i];
    return 0;
}

static int f_join(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val keys, sep;
    if (gy_jj_iterate(r, v, &l) || key_list(r, l, &a[1], 1, &keys)) return -1;
    if (a[0].type == GY_JJ_MISSING ? gy_jj_strz(r, "", &sep) : gy_jj_to_str(r, &a[0], &sep)) return -1;
    return gy_jj_join(r, &sep, keys.u.list, 1, out);
}

static int f_items(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    if (v->type == GY_JJ_UNDEF) return gy_jj_list_new(r, GY_JJ_LIST, 0, out);
    if (v->type != GY_JJ_DICT) return gy_jj_fail(r, GY_E_ARG, "items of a value of type '%s'", gy_jj_type_name(v));
    if (gy_jj_list_new(r, GY_JJ_LIST, v->u.dict->n, out)) return -1;
    for (size_t i = 0; i < v->u.dict->n; i++)
        if (gy_jj_pair(r, &v->u.dict->e[i].key, &v->u.dict->e[i].val, &out->u.list->v[i])) return -1;
    return 0;
}

static int sorted(gy_jj_run *r, const gy_jj_list *l, const gy_jj_val *keys, int reverse, gy_jj_val *out) {
    size_t *order = gy_jj_alloc(r, l->n, sizeof *order);
    if (!order || gy_jj_sort(r, keys->u.list->v, l->n, reverse, order)) return -1;
    if (gy_jj_list_new(r, GY_JJ_LIST, l->n, out)) return -1;
    for (size_t i = 0; i < l->n; i++) out->u.list->v[i] = l->v[order[i]];
    return 0;
}

static int f_dictsort(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val items = {0}, keys = {0}, none = {0}, by = gy_jj_int(gy_jj_is_str(&a[1], "value"));
    if (v->type == GY_JJ_UNDEF) return gy_jj_undefined(r, v);
    if (a[1].type != GY_JJ_MISSING && !by.u.i && !gy_jj_is_str(&a[1], "key"))
        return gy_jj_fail(r, GY_E_ARG, "dictsort sorts by \"key\" or \"value\"");
    if (f_items(r, v, &none, &items) || key_list(r, items.u.list, &by, arg_bool(&a[0]), &keys)) return -1;
    return sorted(r, items.u.list, &keys, arg_bool(&a[2]), out);
}

/* "a,b" sorts by a, then by b. */
static int multi_key(gy_jj_run *r, const gy_jj_val *item, const gy_jj_val *attrs, int case_counts, gy_jj_val *out) {
    gy_jj_val comma, parts;
    if (attrs->type != GY_JJ_STR || !memchr(attrs->u.str->s, ',', attrs->u.str->len))
        return key_one(r, item, attrs, case_counts, out);
    if (gy_jj_strz(r, ",", &comma) || gy_jj_split_str(r, attrs, &comma, -1, 0, &parts)) return -1;
    for (size_t i = 0; i < parts.u.list->n; i++)
        if (key_one(r, item, &parts.u.list->v[i], case_counts, &parts.u.list->v[i])) return -1;
    *out = parts;
    return 0;
}

static int f_sort(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val keys;
    if (gy_jj_iterate(r, v, &l) || gy_jj_list_new(r, GY_JJ_LIST, l->n, &keys)) return -1;
    for (size_t i = 0; i < l->n; i++)
        if (multi_key(r, &l->v[i], &a[2], arg_bool(&a[1]), &keys.u.list->v[i])) return -1;
    return sorted(r, l, &keys, arg_bool(&a[0]), out);
}

static int f_unique(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val keys, kept;
    size_t n = 0;
    if (gy_jj_iterate(r, v, &l) || key_list(r, l, &a[1], arg_bool(&a[0]), &keys)) return -1;
    if (gy_jj_list_new(r, GY_JJ_LIST, l->n, out) || gy_jj_list_new(r, GY_JJ_LIST, 0, &kept)) return -1;
    kept.u.list->v = keys.u.list->v; /* the keys that were seen, in front of those to come */
    for (size_t i = 0; i < l->n; i++) {
        int seen;
        gy_jj_val key = keys.u.list->v[i];
        kept.u.list->n = n;
        if (gy_jj_contains(r, &kept, &key, &seen)) return -1;
        if (seen) continue;
        kept.u.list->v[n] = key;
        out->u.list->v[n++] = l->v[i];
    }
    out->u.list->n = n;
    return 0;
}

static int extreme(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, int want_max, gy_jj_val *out) {
    const gy_jj_list *l;
    gy_jj_val keys;
    size_t best = 0;
    if (gy_jj_iterate(r, v, &l) || key_list(r, l, &a[1], arg_bool(&a[0]), &keys)) return -1;
    for (size_t i = 1; i < l->n; i++) {
        int c;
        if (gy_jj_order(r, &keys.u.list->v[i], &keys.u.list->v[best], want_max ? ">" : "<", &c)) return -1;
        if (want_max ? c > 0 : c < 0) best = i;
    }
    *out = l->n ? l->v[best] : gy_jj_undef("the extreme of nothing");
    return 0;
}

static int f_min(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    return extreme(r, v, a, 0, out);
}

static int f_max(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    return extreme(r, v, a, 1, out);
}

static int f_batch(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    int64_t size;
    if (gy_jj_iterate(r, v, &l) || arg_int(r, "batch", &a[0], 0, &size)) return -1;
    if (size < 1) return gy_jj_fail(r, GY_E_ARG, "batch takes a size of at least 1");
    size_t n = (size_t)size, rows = l->n / n + (l->n % n != 0);
    if (gy_jj_list_new(r, GY_JJ_LIST, rows, out)) return -1;
    for (size_t i = 0; i < rows; i++) {
        size_t have = l->n - i * n < n ? l->n - i * n : n;
        size_t len = a[1].type != GY_JJ_MISSING && a[1].type != GY_JJ_NONE ? n : have;
        gy_jj_val *row = &out->u.list->v[i];
        if (gy_jj_list_new(r, GY_JJ_LIST, len, row)) return -1;
        for (size_t k = 0; k < len; k++) row->u.list->v[k] = k < have ? l->v[i * n + k] : a[1];
    }
    return 0;
}

/* The name in the first argument, as a C string in buf. */
static int name_arg(gy_jj_run *r, const char *who, const gy_jj_args *a, size_t at, char buf[64]) {
    const gy_jj_val *v = at < a->n ? &a->pos[at] : NULL;
    if (!v || v->type != GY_JJ_STR || v->u.str->len >= 64)
        return gy_jj_fail(r, GY_E_ARG, "%s takes the name of a filter or test", who);
    memcpy(buf, v->u.str->s, v->u.str->len);
    buf[v->u.str->len] = '\0';
    return 0;
}

static gy_jj_args args_behind(const gy_jj_args *a, size_t n) {
    gy_jj_args rest = *a;
    rest.pos = a->n > n ? a->pos + n : NULL;
    rest.n = a->n > n ? a->n - n : 0;
    return rest;
}

static int map_attribute(gy_jj_run *r, const gy_jj_list *l, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val p[GY_JJ_MAX_PARAM];
    if (gy_jj_bind_args(r, "map", "attribute,default", a, p)) return -1;
    for (size_t i = 0; i < l->n; i++)
        if (attr_path(r, &l->v[i], &p[0], &p[1], &out->u.list->v[i])) return -1;
    return 0;
}

static int f_map(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    const gy_jj_list *l;
    char name[64];
    gy_jj_val list;
    if (gy_jj_iterate(r, v, &l) || gy_jj_list_new(r, GY_JJ_LIST, l->n, &list)) return -1;
    *out = list;
    if (!a->n && a->n_named && gy_jj_is_str(a->named[0].name, "attribute")) return map_attribute(r, l, a, out);
    if (name_arg(r, "map", a, 0, name)) return -1;
    int which = gy_jj_filter_find(name);
    if (which < 0) return gy_jj_fail(r, GY_E_ARG, "map: there is no filter \"%s\" here", name);
    gy_jj_args rest = args_behind(a, 1);
    for (size_t i = 0; i < l->n; i++)
        if (gy_jj_filter_call(r, which, &l->v[i], &rest, &list.u.list->v[i])) return -1;
    return 0;
}

/* select and its kin: keep the items for which a test (or truth) of the item, or of its attribute, says `keep`. */
static int select_by(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, int by_attr, int keep, gy_jj_val *out) {
    const gy_jj_list *l;
    char name[64];
    gy_jj_val none = {0};
    size_t n = 0, first = by_attr ? 1 : 0;
    int which = -1, yes;
    if (by_attr && !a->n) return gy_jj_fail(r, GY_E_ARG, "selectattr and rejectattr take the name of an attribute");
    if (gy_jj_iterate(r, v, &l) || gy_jj_list_new(r, GY_JJ_LIST, l->n, out)) return -1;
    if (a->n > first) {
        if (name_arg(r, "select", a, first, name)) return -1;
        if ((which = gy_jj_test_find(name)) < 0)
            return gy_jj_fail(r, GY_E_ARG, "select: there is no test \"%s\" here", name);
    }
    gy_jj_args rest = args_behind(a, first + 1);
    for (size_t i = 0; i < l->n; i++) {
        gy_jj_val item = l->v[i];
        if (by_attr && attr_path(r, &l->v[i], &a->pos[0], &none, &item)) return -1;
        yes = gy_jj_truth(&item);
        if (which >= 0 && gy_jj_test_call(r, which, &item, &rest, &yes)) return -1;
        if (!!yes == keep) out->u.list->v[n++] = l->v[i];
    }
    out->u.list->n = n;
    return 0;
}

static int f_select(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    return select_by(r, v, a, 0, 1, out);
}

static int f_reject(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    return select_by(r, v, a, 0, 0, out);
}

static int f_selectattr(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    return select_by(r, v, a, 1, 1, out);
}

static int f_rejectattr(gy_jj_run *r, const gy_jj_val *v, const gy_jj_args *a, gy_jj_val *out) {
    return select_by(r, v, a, 1, 0, out);
}

static const struct {
    const char *name, *params;
    filter_fn *fn;
    filter_raw *raw; /* instead of fn: the arguments as they are */
} filters[] = {
    {"abs", "", f_abs, NULL},
    {"batch", "linecount,fill_with", f_batch, NULL},
    {"capitalize", "", f_capitalize, NULL},
    {"center", "width", f_center, NULL},
    {"count", "", f_length, NULL},
    {"d", "default_value,boolean", f_default, NULL},
    {"default", "default_value,boolean", f_default, NULL},
    {"dictsort", "case_sensitive,by,reverse", f_dictsort, NULL},
    {"first", "", f_first, NULL},
    {"float", "default", f_float, NULL},
    {"format", NULL, NULL, f_format},
    {"indent", "width,first,blank", f_indent, NULL},
    {"int", "default,base", f_int, NULL},
    {"items", "", f_items, NULL},
    {"join", "d,attribute", f_join, NULL},
    {"last", "", f_last, NULL},
    {"length", "", f_length, NULL},
    {"list", "", f_list, NULL},
    {"lower", "", f_lower, NULL},
    {"map", NULL, NULL, f_map},
    {"max", "case_sensitive,attribute", f_max, NULL},
    {"min", "case_sensitive,attribute", f_min, NULL},
    {"reject", NULL, NULL, f_reject},
    {"rejectattr", NULL, NULL, f_rejectattr},
    {"replace", "old,new,count", f_replace, NULL},
    {"reverse", "", f_reverse, NULL},
    {"round", "precision,method", f_round, NULL},
    {"safe", "", f_string, NULL},
    {"select", NULL, NULL, f_select},
    {"selectattr", NULL, NULL, f_selectattr},
    {"sort", "reverse,case_sensitive,attribute", f_sort, NULL},
    {"string", "", f_string, NULL},
    {"sum", "attribute,start", f_sum, NULL},
    {"title", "", f_title, NULL},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", f_tojson, NULL},
    {"trim", "chars", f_trim, NULL},
    {"unique", "case_sensitive,attribute", f_unique, NULL},
    {"upper", "", f_upper, NULL},
};

int gy_jj_filter_find(const char *name) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(filters[i].name, name) == 0) return (int)i;
    return -1;
}

int gy_jj_filter_call(gy_jj_run *r, int which, const gy_jj_val *of, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val bound[GY_JJ_MAX_PARAM], v = *of; /* of and out may be the same */
    if (gy_jj_step(r, 1)) return -1;
    if (filters[which].raw) return filters[which].raw(r, &v, a, out);
    if (gy_jj_bind_args(r, filters[which].name, filters[which].params, a, bound)) return -1;
    return filters[which].fn(r, &v, bound, out);
}

/* ---- tests ---- */

typedef int test_fn(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out);

typedef enum simple_test {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_INTEGER,
    T_FLOAT,
    T_NUMBER,
    T_STRING,
    T_MAPPING,
    T_SEQUENCE,
    T_ITERABLE,
    T_CALLABLE
} simple_test;

static int simple(simple_test t, const gy_jj_val *v) {
    int is_seq = v->type == GY_JJ_STR || v->type == GY_JJ_LIST || v->type == GY_JJ_TUPLE || v->type == GY_JJ_DICT ||
                 v->type == GY_JJ_UNDEF;
    switch (t) {
    case T_DEFINED:
        return v->type != GY_JJ_UNDEF;
    case T_UNDEFINED:
        return v->type == GY_JJ_UNDEF;
    case T_NONE:
        return v->type == GY_JJ_NONE;
    case T_BOOLEAN:
        return v->type == GY_JJ_BOOL;
    case T_TRUE:
        return v->type == GY_JJ_BOOL && v->u.i;
    case T_FALSE:
        return v->type == GY_JJ_BOOL && !v->u.i;
    case T_INTEGER:
        return v->type == GY_JJ_INT;
    case T_FLOAT:
        return v->type == GY_JJ_REAL;
    case T_NUMBER:
        return gy_jj_is_num(v);
    case T_STRING:
        return v->type == GY_JJ_STR;
    case T_MAPPING:
        return v->type == GY_JJ_DICT;
    case T_SEQUENCE:
        return is_seq;
    case T_ITERABLE:
        return is_seq || v->type == GY_JJ_LOOP;
    case T_CALLABLE:
        return v->type == GY_JJ_MACRO || v->type == GY_JJ_FUNC || v->type == GY_JJ_METHOD;
    }
    return 0;
}

static int t_compare(gy_jj_run *r, gy_jj_op op, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    int c;
    if (op == GY_JJ_OP_EQ || op == GY_JJ_OP_NE) {
        if (gy_jj_equal(r, v, arg, &c)) return -1;
        *out = c == (op == GY_JJ_OP_EQ);
        return 0;
    }
    if (op == GY_JJ_OP_IN) return gy_jj_contains(r, arg, v, out);
    if (gy_jj_order(r, v, arg, "<", &c)) return -1;
    *out = op == GY_JJ_OP_LT ? c < 0 : op == GY_JJ_OP_LE ? c <= 0 : op == GY_JJ_OP_GT ? c > 0 : c >= 0;
    return 0;
}

static int t_divisible(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int want, int *out) {
    gy_jj_val m;
    if (gy_jj_binary(r, GY_JJ_OP_MOD, v, arg, &m)) return -1;
    if (!gy_jj_is_num(&m)) return gy_jj_fail(r, GY_E_ARG, "this test needs numbers");
    *out = gy_jj_num(&m) == want;
    return 0;
}

static int t_odd(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    gy_jj_val two = gy_jj_int(2);
    (void)arg;
    return t_divisible(r, v, &two, 1, out);
}

static int t_even(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    gy_jj_val two = gy_jj_int(2);
    (void)arg;
    return t_divisible(r, v, &two, 0, out);
}

static int t_divisibleby(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    return t_divisible(r, v, arg, 0, out);
}

/* Letters there are, and all of them of the case. */
static int has_case(gy_jj_run *r, const gy_jj_val *v, gy_jj_case how, int *out) {
    gy_jj_val s, same, other;
    if (gy_jj_to_str(r, v, &s) || gy_jj_recase(r, &s, how, &same)) return -1;
    if (gy_jj_recase(r, &s, how == GY_JJ_UPPER ? GY_JJ_LOWER : GY_JJ_UPPER, &other)) return -1;
    int unchanged, caseless;
    if (gy_jj_equal(r, &s, &same, &unchanged) || gy_jj_equal(r, &s, &other, &caseless)) return -1;
    *out = unchanged && !caseless;
    return 0;
}

static int t_lower(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    (void)arg;
    return has_case(r, v, GY_JJ_LOWER, out);
}

static int t_upper(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    (void)arg;
    return has_case(r, v, GY_JJ_UPPER, out);
}

static int t_sameas(gy_jj_run *r, const gy_jj_val *v, const gy_jj_val *arg, int *out) {
    *out = 0;
    return v->type == arg->type ? gy_jj_equal(r, v, arg, out) : 0;
}

/* kind 's': simple, 'c': an operator, 'f': a function. */
static const struct {
    const char *name;
    char kind, n_arg;
    int which;
    test_fn *fn;
} tests[] = {
    {"defined", 's', 0, T_DEFINED, NULL},
    {"undefined", 's', 0, T_UNDEFINED, NULL},
    {"none", 's', 0, T_NONE, NULL},
    {"boolean", 's', 0, T_BOOLEAN, NULL},
    {"true", 's', 0, T_TRUE, NULL},
    {"false", 's', 0, T_FALSE, NULL},
    {"integer", 's', 0, T_INTEGER, NULL},
    {"float", 's', 0, T_FLOAT, NULL},
    {"number", 's', 0, T_NUMBER, NULL},
    {"string", 's', 0, T_STRING, NULL},
    {"mapping", 's', 0, T_MAPPING, NULL},
    {"sequence", 's', 0, T_SEQUENCE, NULL},
    {"iterable", 's', 0, T_ITERABLE, NULL},
    {"callable", 's', 0, T_CALLABLE, NULL},
    {"eq", 'c', 1, GY_JJ_OP_EQ, NULL},
    {"equalto", 'c', 1, GY_JJ_OP_EQ, NULL},
    {"==", 'c', 1, GY_JJ_OP_EQ, NULL},
    {"ne", 'c', 1, GY_JJ_OP_NE, NULL},
    {"!=", 'c', 1, GY_JJ_OP_NE, NULL},
    {"lt", 'c', 1, GY_JJ_OP_LT, NULL},
    {"lessthan", 'c', 1, GY_JJ_OP_LT, NULL},
    {"<", 'c', 1, GY_JJ_OP_LT, NULL},
    {"le", 'c', 1, GY_JJ_OP_LE, NULL},
    {"<=", 'c', 1, GY_JJ_OP_LE, NULL},
    {"gt", 'c', 1, GY_JJ_OP_GT, NULL},
    {"greaterthan", 'c', 1, GY_JJ_OP_GT, NULL},
    {">", 'c', 1, GY_JJ_OP_GT, NULL},
    {"ge", 'c', 1, GY_JJ_OP_GE, NULL},
    {">=", 'c', 1, GY_JJ_OP_GE, NULL},
    {"in", 'c', 1, GY_JJ_OP_IN, NULL},
    {"odd", 'f', 0, 0, t_odd},
    {"even", 'f', 0, 0, t_even},
    {"divisibleby", 'f', 1, 0, t_divisibleby},
    {"lower", 'f', 0, 0, t_lower},
    {"upper", 'f', 0, 0, t_upper},
    {"sameas", 'f', 1, 0, t_sameas},
};

int gy_jj_test_find(const char *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0) return (int)i;
    return -1;
}

int gy_jj_test_call(gy_jj_run *r, int which, const gy_jj_val *of, const gy_jj_args *a, int *out) {
    gy_jj_val p[GY_JJ_MAX_PARAM];
    if (gy_jj_step(r, 1) || gy_jj_bind_args(r, tests[which].name, tests[which].n_arg ? "value" : "", a, p)) return -1;
    if (tests[which].n_arg && p[0].type == GY_JJ_MISSING)
        return gy_jj_fail(r, GY_E_ARG, "the test \"%s\" needs a value", tests[which].name);
    if (tests[which].kind == 'c') return t_compare(r, (gy_jj_op)tests[which].which, of, &p[0], out);
    if (tests[which].kind == 'f') return tests[which].fn(r, of, &p[0], out);
    *out = simple((simple_test)tests[which].which, of);
    return 0;
}
