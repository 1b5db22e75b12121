/* Methods of strings, dicts, lists and loops, and the global functions. Only what reads: a method that would change its
 * object is undefined here, as in jinja2's immutable sandbox. Nothing reaches a file, a clock or the process.
 */
#include "text/jinja_int.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>

typedef int method_fn(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out);
typedef int method_raw(gy_jj_run *r, const gy_jj_val *self, const gy_jj_args *a, gy_jj_val *out);

static int need_str(gy_jj_run *r, const char *who, const gy_jj_val *v) {
    if (v->type == GY_JJ_STR) return 0;
    return gy_jj_fail(r, GY_E_ARG, "%s takes a string, not a value of type '%s'", who, gy_jj_type_name(v));
}

static int opt_int(gy_jj_run *r, const char *who, const gy_jj_val *v, int64_t dflt, int64_t *out) {
    *out = dflt;
    if (v->type == GY_JJ_MISSING || v->type == GY_JJ_NONE) return 0;
    if (v->type != GY_JJ_INT && v->type != GY_JJ_BOOL)
        return gy_jj_fail(r, GY_E_ARG, "%s takes an integer, not a value of type '%s'", who, gy_jj_type_name(v));
    *out = v->u.i;
    return 0;
}

/* ---- strings ---- */

static int s_strip(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return gy_jj_strip(r, self, &a[0], GY_JJ_LEFT | GY_JJ_RIGHT, out);
}

static int s_lstrip(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return gy_jj_strip(r, self, &a[0], GY_JJ_LEFT, out);
}

static int s_rstrip(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return gy_jj_strip(r, self, &a[0], GY_JJ_RIGHT, out);
}

static int split(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, int from_right, gy_jj_val *out) {
    int64_t most;
    if (opt_int(r, "split", &a[1], -1, &most)) return -1;
    return gy_jj_split_str(r, self, &a[0], most, from_right, out);
}

static int s_split(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return split(r, self, a, 0, out);
}

static int s_rsplit(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return split(r, self, a, 1, out);
}

static int s_splitlines(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return gy_jj_split_lines(r, self, a[0].type != GY_JJ_MISSING && gy_jj_truth(&a[0]), out);
}

static int affix(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, int at_end, gy_jj_val *out) {
    const char *who = at_end ? "endswith" : "startswith";
    int yes = 0;
    if (a[0].type != GY_JJ_TUPLE) {
        if (need_str(r, who, &a[0])) return -1;
        yes = gy_jj_affix(self, &a[0], at_end);
    } else
        for (size_t i = 0; !yes && i < a[0].u.list->n; i++) {
            if (need_str(r, who, &a[0].u.list->v[i])) return -1;
            yes = gy_jj_affix(self, &a[0].u.list->v[i], at_end);
        }
    *out = gy_jj_bool(yes);
    return 0;
}

static int s_startswith(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return affix(r, self, a, 0, out);
}

static int s_endswith(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return affix(r, self, a, 1, out);
}

static int s_removeprefix(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    if (need_str(r, "removeprefix", &a[0])) return -1;
    size_t n = gy_jj_affix(self, &a[0], 0) ? a[0].u.str->len : 0;
    return gy_jj_sub(r, self, n, self->u.str->len - n, out);
}

static int s_removesuffix(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    if (need_str(r, "removesuffix", &a[0])) return -1;
    size_t n = gy_jj_affix(self, &a[0], 1) ? a[0].u.str->len : 0;
    return gy_jj_sub(r, self, 0, self->u.str->len - n, out);
}

static int s_replace(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    int64_t most;
    if (need_str(r, "replace", &a[0]) || need_str(r, "replace", &a[1]) || opt_int(r, "replace", &a[2], -1, &most))
        return -1;
    return gy_jj_replace(r, self, &a[0], &a[1], most, out);
}

static int s_upper(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return gy_jj_recase(r, self, GY_JJ_UPPER, out);
}

static int s_lower(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return gy_jj_recase(r, self, GY_JJ_LOWER, out);
}

static int s_title(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return gy_jj_recase(r, self, GY_JJ_TITLE, out);
}

static int s_capitalize(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return gy_jj_recase(r, self, GY_JJ_CAPITAL, out);
}

static int s_join(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    const gy_jj_list *l;
    if (gy_jj_iterate(r, &a[0], &l)) return -1;
    return gy_jj_join(r, self, l, 0, out);
}

/* The place in characters, -1 if it is not there. */
static int find_char(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, int last, int64_t *out) {
    int64_t from, off;
    gy_jj_val before;
    if (need_str(r, "find", &a[0]) || opt_int(r, "find", &a[1], 0, &from)) return -1;
    if (from < 0) {
        from += (int64_t)gy_jj_n_char(self);
        if (from < 0) from = 0;
    }
    *out = -1;
    if (from > (int64_t)gy_jj_n_char(self)) return 0;
    if (gy_jj_find(r, self, &a[0], gy_jj_char_offset(self, (size_t)from), last, &off)) return -1;
    if (off < 0) return 0;
    if (gy_jj_sub(r, self, 0, (size_t)off, &before)) return -1;
    *out = (int64_t)gy_jj_n_char(&before);
    return 0;
}

static int s_find(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    int64_t at;
    if (find_char(r, self, a, 0, &at)) return -1;
    *out = gy_jj_int(at);
    return 0;
}

static int s_rfind(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    int64_t at;
    if (find_char(r, self, a, 1, &at)) return -1;
    *out = gy_jj_int(at);
    return 0;
}

static int s_index(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    if (s_find(r, self, a, out)) return -1;
    return out->u.i < 0 ? gy_jj_fail(r, GY_E_ARG, "index: the text is not there") : 0;
}

static int s_count(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val parts;
    if (need_str(r, "count", &a[0])) return -1;
    if (!a[0].u.str->len) {
        *out = gy_jj_int((int64_t)gy_jj_n_char(self) + 1);
        return 0;
    }
    if (gy_jj_split_str(r, self, &a[0], -1, 0, &parts)) return -1;
    *out = gy_jj_int((int64_t)parts.u.list->n - 1);
    return 0;
}

static int partition(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, int last, gy_jj_val *out) {
    int64_t off;
    size_t len = self->u.str->len, n;
    gy_jj_val t;
    if (need_str(r, "partition", &a[0])) return -1;
    if (!(n = a[0].u.str->len)) return gy_jj_fail(r, GY_E_ARG, "partition takes a string that is not empty");
    if (gy_jj_find(r, self, &a[0], 0, last, &off) || gy_jj_list_new(r, GY_JJ_TUPLE, 3, &t)) return -1;
    size_t cut = off >= 0 ? (size_t)off : last ? 0 : len, end = off >= 0 ? cut + n : cut;
    gy_jj_val *v = t.u.list->v;
    if (gy_jj_sub(r, self, 0, cut, &v[0]) || gy_jj_sub(r, self, cut, end - cut, &v[1]) ||
        gy_jj_sub(r, self, end, len - end, &v[2]))
        return -1;
    *out = t;
    return 0;
}

static int s_partition(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return partition(r, self, a, 0, out);
}

static int s_rpartition(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return partition(r, self, a, 1, out);
}

/* Not empty, and each character's category begins with one of the letters. "d": only decimal digits. */
static int all_of(gy_jj_run *r, const gy_jj_val *self, const char *classes, gy_jj_val *out) {
    int ok = self->u.str->len != 0;
    if (gy_jj_step(r, self->u.str->len / 16)) return -1;
    for (size_t at = 0, n; ok && at < self->u.str->len; at += n) {
        uint32_t cp = gy_jj_cp_at(self, at, &n);
        const char *c = gy_uni_category(cp);
        ok = (strchr(classes, c[0]) != NULL) || (strchr(classes, 'd') && c[0] == 'N' && c[1] == 'd') ||
             (strchr(classes, 's') && gy_jj_is_space(cp));
    }
    *out = gy_jj_bool(ok);
    return 0;
}

static int s_isdigit(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return all_of(r, self, "d", out);
}

static int s_isnumeric(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return all_of(r, self, "N", out);
}

static int s_isalpha(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return all_of(r, self, "L", out);
}

static int s_isalnum(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return all_of(r, self, "LN", out);
}

static int s_isspace(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return all_of(r, self, "s", out);
}

static int test_case(gy_jj_run *r, const char *test, const gy_jj_val *self, gy_jj_val *out) {
    gy_jj_args none = {0};
    int yes;
    if (gy_jj_test_call(r, gy_jj_test_find(test), self, &none, &yes)) return -1;
    *out = gy_jj_bool(yes);
    return 0;
}

static int s_isupper(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return test_case(r, "upper", self, out);
}

static int s_islower(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    return test_case(r, "lower", self, out);
}

static int pad(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, unsigned sides, gy_jj_val *out) {
    int64_t width;
    if (opt_int(r, "padding", &a[0], 0, &width)) return -1;
    if (a[1].type != GY_JJ_MISSING && (a[1].type != GY_JJ_STR || gy_jj_n_char(&a[1]) != 1))
        return gy_jj_fail(r, GY_E_ARG, "padding is done with one character");
    return gy_jj_pad(r, self, width, sides, a[1].type == GY_JJ_STR ? &a[1] : NULL, out);
}

static int s_center(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return pad(r, self, a, GY_JJ_LEFT | GY_JJ_RIGHT, out);
}

static int s_ljust(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return pad(r, self, a, GY_JJ_LEFT, out);
}

static int s_rjust(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    return pad(r, self, a, GY_JJ_RIGHT, out);
}

static int s_zfill(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    int64_t width;
    gy_jj_val zero, rest;
    gy_jj_buf b = {0};
    size_t sign = self->u.str->len && (self->u.str->s[0] == '-' || self->u.str->s[0] == '+');
    if (opt_int(r, "zfill", &a[0], 0, &width) || gy_jj_strz(r, "0", &zero)) return -1;
    if (gy_jj_sub(r, self, sign, self->u.str->len - sign, &rest)) return -1;
    if (width < 0) width = 0;
    if (gy_jj_pad(r, &rest, width - (int64_t)sign, GY_JJ_RIGHT, &zero, &rest)) return -1;
    return gy_jj_put_sub(r, &b, self, 0, sign) || gy_jj_put_str(r, &b, &rest) ? -1 : gy_jj_take(r, &b, out);
}

/* The value of one "{...}" of a format string; *next: the number of the next "{}". */
static int format_field(gy_jj_run *r, const gy_jj_text *field, const gy_jj_args *a, size_t *next,
                        const gy_jj_val **out) {
    size_t n = 0, i = 0;
    for (; i < field->len && i < 6 && field->s[i] >= '0' && field->s[i] <= '9'; i++)
        n = n * 10 + (size_t)(field->s[i] - '0');
    if (i == field->len) {
        if (!i) n = (*next)++;
        if (n >= a->n) return gy_jj_fail(r, GY_E_ARG, "format: there is no value number %zu", n);
        *out = &a->pos[n];
        return 0;
    }
    for (i = 0; i < a->n_named; i++) {
        const gy_jj_text *name = a->named[i].name->u.str;
        if (name->len != field->len || memcmp(name->s, field->s, name->len) != 0) continue;
        *out = &a->named[i].val;
        return 0;
    }
    return gy_jj_fail(r, GY_E_ARG,
                      "format: \"{%.*s}\" names no value (conversions, formats and attributes are not supported)",
                      (int)(field->len < 60 ? field->len : 60), field->s);
}

static int s_format(gy_jj_run *r, const gy_jj_val *self, const gy_jj_args *a, gy_jj_val *out) {
    const gy_jj_text *t = self->u.str;
    gy_jj_buf b = {0};
    size_t next = 0;
    for (size_t at = 0; at < t->len;) {
        size_t plain = at;
        while (at < t->len && t->s[at] != '{' && t->s[at] != '}') at++;
        if (gy_jj_put_sub(r, &b, self, plain, at - plain)) return -1;
        if (at == t->len) break;
        if (at + 1 < t->len && t->s[at + 1] == t->s[at]) {
            if (gy_jj_put_sub(r, &b, self, at, 1)) return -1;
            at += 2;
            continue;
        }
        const char *end = t->s[at] == '{' ? memchr(t->s + at, '}', t->len - at) : NULL;
        if (!end) return gy_jj_fail(r, GY_E_ARG, "format: a single '%c'", t->s[at]);
        gy_jj_text field = {.s = t->s + at + 1, .len = (size_t)(end - t->s) - at - 1};
        const gy_jj_val *v = NULL;
        if (format_field(r, &field, a, &next, &v) || gy_jj_put_val(r, &b, v)) return -1;
        at = (size_t)(end - t->s) + 1;
    }
    return gy_jj_take(r, &b, out);
}

/* ---- dicts, lists, loops ---- */

static int d_get(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_val *there = NULL;
    if (a[0].type == GY_JJ_MISSING) return gy_jj_fail(r, GY_E_ARG, "get takes a key");
    if (a[0].type != GY_JJ_UNDEF && gy_jj_dict_get(r, self->u.dict, &a[0], &there)) return -1;
    *out = there ? *there : a[1].type == GY_JJ_MISSING ? gy_jj_none() : a[1];
    return 0;
}

static int d_items(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_args none = {0};
    (void)a;
    return gy_jj_filter_call(r, gy_jj_filter_find("items"), self, &none, out);
}

static int d_keys(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    gy_jj_args none = {0};
    (void)a;
    return gy_jj_filter_call(r, gy_jj_filter_find("list"), self, &none, out);
}

static int d_values(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    if (gy_jj_list_new(r, GY_JJ_LIST, self->u.dict->n, out)) return -1;
    for (size_t i = 0; i < self->u.dict->n; i++) out->u.list->v[i] = self->u.dict->e[i].val;
    return 0;
}

/* Values never change, so a copy is the value itself. */
static int v_copy(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    (void)a;
    *out = *self;
    return gy_jj_step(r, 1);
}

static int l_index(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    for (size_t i = 0; i < self->u.list->n; i++) {
        int same;
        if (gy_jj_equal(r, &self->u.list->v[i], &a[0], &same)) return -1;
        if (!same) continue;
        *out = gy_jj_int((int64_t)i);
        return 0;
    }
    return gy_jj_fail(r, GY_E_ARG, "index: the value is not in the list");
}

static int l_count(gy_jj_run *r, const gy_jj_val *self, const gy_jj_val *a, gy_jj_val *out) {
    int64_t n = 0;
    for (size_t i = 0; i < self->u.list->n; i++) {
        int same;
        if (gy_jj_equal(r, &self->u.list->v[i], &a[0], &same)) return -1;
        n += same;
    }
    *out = gy_jj_int(n);
    return 0;
}

static int loop_cycle(gy_jj_run *r, const gy_jj_val *self, const gy_jj_args *a, gy_jj_val *out) {
    if (!a->n) return gy_jj_fail(r, GY_E_ARG, "cycle takes at least one value");
    *out = a->pos[self->u.loop->at % a->n];
    return 0;
}

static int loop_changed(gy_jj_run *r, const gy_jj_val *self, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val now;
    int same = 0;
    if (gy_jj_list_new(r, GY_JJ_TUPLE, a->n, &now)) return -1;
    if (a->n) memcpy(now.u.list->v, a->pos, a->n * sizeof *a->pos);
    if (self->u.loop->changed.type != GY_JJ_MISSING && gy_jj_equal(r, &self->u.loop->changed, &now, &same)) return -1;
    self->u.loop->changed = now;
    *out = gy_jj_bool(!same);
    return 0;
}

/* on: s string, d dict, l list, t tuple, o loop. fn and raw NULL: the method changes its object and is not given. */
static const struct {
    const char *on, *name, *params;
    method_fn *fn;
    method_raw *raw;
} methods[] = {
    {"s", "strip", "chars", s_strip, NULL},
    {"s", "lstrip", "chars", s_lstrip, NULL},
    {"s", "rstrip", "chars", s_rstrip, NULL},
    {"s", "split", "sep,maxsplit", s_split, NULL},
    {"s", "rsplit", "sep,maxsplit", s_rsplit, NULL},
    {"s", "splitlines", "keepends", s_splitlines, NULL},
    {"s", "startswith", "prefix", s_startswith, NULL},
    {"s", "endswith", "suffix", s_endswith, NULL},
    {"s", "removeprefix", "prefix", s_removeprefix, NULL},
    {"s", "removesuffix", "suffix", s_removesuffix, NULL},
    {"s", "replace", "old,new,count", s_replace, NULL},
    {"s", "upper", "", s_upper, NULL},
    {"s", "lower", "", s_lower, NULL},
    {"s", "title", "", s_title, NULL},
    {"s", "capitalize", "", s_capitalize, NULL},
    {"s", "join", "iterable", s_join, NULL},
    {"s", "find", "sub,start", s_find, NULL},
    {"s", "rfind", "sub,start", s_rfind, NULL},
    {"s", "index", "sub,start", s_index, NULL},
    {"s", "count", "sub", s_count, NULL},
    {"s", "partition", "sep", s_partition, NULL},
    {"s", "rpartition", "sep", s_rpartition, NULL},
    {"s", "isdigit", "", s_isdigit, NULL},
    {"s", "isdecimal", "", s_isdigit, NULL},
    {"s", "isnumeric", "", s_isnumeric, NULL},
    {"s", "isalpha", "", s_isalpha, NULL},
    {"s", "isalnum", "", s_isalnum, NULL},
    {"s", "isspace", "", s_isspace, NULL},
    {"s", "isupper", "", s_isupper, NULL},
    {"s", "islower", "", s_islower, NULL},
    {"s", "center", "width,fillchar", s_center, NULL},
    {"s", "ljust", "width,fillchar", s_ljust, NULL},
    {"s", "rjust", "width,fillchar", s_rjust, NULL},
    {"s", "zfill", "width", s_zfill, NULL},
    {"s", "format", NULL, NULL, s_format},
    {"d", "get", "key,default", d_get, NULL},
    {"d", "items", "", d_items, NULL},
    {"d", "keys", "", d_keys, NULL},
    {"d", "values", "", d_values, NULL},
    {"dl", "copy", "", v_copy, NULL},
    {"lt", "index", "value", l_index, NULL},
    {"lt", "count", "value", l_count, NULL},
    {"o", "cycle", NULL, NULL, loop_cycle},
    {"o", "changed", NULL, NULL, loop_changed},
    {"dl", "clear", NULL, NULL, NULL},
    {"dl", "pop", NULL, NULL, NULL},
    {"d", "popitem", NULL, NULL, NULL},
    {"d", "setdefault", NULL, NULL, NULL},
    {"d", "update", NULL, NULL, NULL},
    {"l", "append", NULL, NULL, NULL},
    {"l", "extend", NULL, NULL, NULL},
    {"l", "insert", NULL, NULL, NULL},
    {"l", "remove", NULL, NULL, NULL},
    {"l", "reverse", NULL, NULL, NULL},
    {"l", "sort", NULL, NULL, NULL},
};

static char method_class(const gy_jj_val *v) {
    switch ((gy_jj_type)v->type) {
    case GY_JJ_STR:
        return 's';
    case GY_JJ_DICT:
        return 'd';
    case GY_JJ_LIST:
        return 'l';
    case GY_JJ_TUPLE:
        return 't';
    case GY_JJ_LOOP:
        return 'o';
    default:
        return 0;
    }
}

int gy_jj_method_find(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *name, gy_jj_val *out) {
    char on = method_class(of);
    if (!on || name->type != GY_JJ_STR) return 0;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (!strchr(methods[i].on, on) || !gy_jj_is_str(name, methods[i].name)) continue;
        if (!methods[i].fn && !methods[i].raw) {
            *out = gy_jj_undef(methods[i].name);
            return 1;
        }
        gy_jj_method *m = gy_jj_alloc(r, 1, sizeof *m);
        if (!m) return -1;
        *m = (gy_jj_method){.self = *of, .which = (int)i};
        *out = (gy_jj_val){.type = GY_JJ_METHOD, .u.method = m};
        return 1;
    }
    return 0;
}

int gy_jj_method_call(gy_jj_run *r, const gy_jj_method *m, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val bound[GY_JJ_MAX_PARAM], self = m->self;
    if (gy_jj_step(r, 1 + (self.type == GY_JJ_STR ? self.u.str->len / 64 : 0))) return -1;
    if (methods[m->which].raw) return methods[m->which].raw(r, &self, a, out);
    if (gy_jj_bind_args(r, methods[m->which].name, methods[m->which].params, a, bound)) return -1;
    return methods[m->which].fn(r, &self, bound, out);
}

/* ---- global functions ---- */

enum { RANGE_MAX = 100000 }; /* as jinja2's sandbox */

static int fn_range(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val p[GY_JJ_MAX_PARAM];
    int64_t lo = 0, hi, step = 1;
    if (gy_jj_bind_args(r, "range", "start,stop,step", a, p)) return -1;
    for (size_t i = 0; i < a->n; i++)
        if (a->pos[i].type == GY_JJ_UNDEF) return gy_jj_undefined(r, &a->pos[i]);
    if (!a->n || a->n_named) return gy_jj_fail(r, GY_E_ARG, "range takes one to three integers");
    if (opt_int(r, "range", &p[a->n > 1], 0, &hi) || (a->n > 1 && opt_int(r, "range", &p[0], 0, &lo)) ||
        opt_int(r, "range", &p[2], 1, &step))
        return -1;
    if (!step) return gy_jj_fail(r, GY_E_ARG, "range with step 0");
    uint64_t span =
        step > 0 ? (hi > lo ? (uint64_t)hi - (uint64_t)lo : 0) : (lo > hi ? (uint64_t)lo - (uint64_t)hi : 0);
    uint64_t size = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span / size + (span % size != 0);
    if (n > RANGE_MAX) return gy_jj_fail(r, GY_E_LIMIT, "range of more than %d numbers", RANGE_MAX);
    if (gy_jj_step(r, (size_t)n) || gy_jj_list_new(r, GY_JJ_LIST, (size_t)n, out)) return -1;
    for (size_t i = 0; i < (size_t)n; i++) out->u.list->v[i] = gy_jj_int(lo + (int64_t)i * step);
    return 0;
}

/* Members of a mapping, or of a list of pairs, into d. */
static int dict_from(gy_jj_run *r, const gy_jj_val *from, gy_jj_dict *d) {
    const gy_jj_list *items, *pair;
    if (from->type == GY_JJ_DICT || from->type == GY_JJ_SPACE) {
        for (size_t i = 0; i < from->u.dict->n; i++)
            if (gy_jj_dict_put(r, d, &from->u.dict->e[i].key, &from->u.dict->e[i].val)) return -1;
        return 0;
    }
    if (gy_jj_iterate(r, from, &items)) return -1;
    for (size_t i = 0; i < items->n; i++) {
        if (gy_jj_iterate(r, &items->v[i], &pair)) return -1;
        if (pair->n != 2) return gy_jj_fail(r, GY_E_ARG, "dict takes pairs");
        if (gy_jj_dict_put(r, d, &pair->v[0], &pair->v[1])) return -1;
    }
    return 0;
}

static int fn_dict(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val dict;
    if (a->n > 1) return gy_jj_fail(r, GY_E_ARG, "dict and namespace take at most one value without a name");
    if (gy_jj_dict_new(r, a->n_named, &dict) || (a->n && dict_from(r, &a->pos[0], dict.u.dict))) return -1;
    for (size_t i = 0; i < a->n_named; i++)
        if (gy_jj_dict_put(r, dict.u.dict, a->named[i].name, &a->named[i].val)) return -1;
    *out = dict;
    return 0;
}

static int fn_namespace(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out) {
    if (fn_dict(r, a, out)) return -1;
    out->type = GY_JJ_SPACE;
    return 0;
}

static int fn_raise(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val p[GY_JJ_MAX_PARAM], text;
    (void)out;
    if (gy_jj_bind_args(r, "raise_exception", "message", a, p) || gy_jj_to_str(r, &p[0], &text)) return -1;
    size_t len = text.u.str->len < 500 ? text.u.str->len : 500;
    return gy_jj_fail(r, GY_E_ARG, "the chat template refuses these messages: %.*s", (int)len, text.u.str->s);
}

/* One conversion of strftime, "%-d" included. */
static int put_time(gy_jj_run *r, const char *conv, unsigned origin, gy_jj_buf *b) {
    char text[64], format[8] = "%";
    strcat(format, conv);
    int is_known = strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%", conv[strlen(conv) - 1]) != NULL;
    if (!is_known) return gy_jj_fail(r, GY_E_ARG, "strftime_now: \"%%%s\" is not supported", conv);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, r->now);
#pragma GCC diagnostic pop
    return gy_jj_put(r, b, text, n, origin);
}

static int fn_strftime(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_val p[GY_JJ_MAX_PARAM];
    gy_jj_buf b = {0};
    if (gy_jj_bind_args(r, "strftime_now", "format", a, p) || need_str(r, "strftime_now", &p[0])) return -1;
    if (!r->now) return gy_jj_fail(r, GY_E_ARG, "strftime_now: no time was given");
    const gy_jj_text *t = p[0].u.str;
    for (size_t at = 0; at < t->len;) {
        char conv[3] = {0};
        size_t n = 1;
        if (t->s[at] != '%' || at + 1 == t->len) {
            if (gy_jj_put_sub(r, &b, &p[0], at, 1)) return -1;
        } else {
            conv[0] = t->s[at + 1];
            if (conv[0] == '-' && at + 2 < t->len) conv[1] = t->s[at + 2];
            if ((unsigned char)conv[0] >= 0x80 || (unsigned char)conv[1] >= 0x80 || !conv[0])
                return gy_jj_fail(r, GY_E_ARG, "strftime_now: a conversion that is not supported");
            n = 1 + strlen(conv);
            if (put_time(r, conv, gy_jj_mark_at(&p[0], at), &b)) return -1;
        }
        at += n;
    }
    return gy_jj_take(r, &b, out);
}

static const struct {
    const char *name;
    int (*fn)(gy_jj_run *r, const gy_jj_args *a, gy_jj_val *out);
} funcs[] = {
    {"range", fn_range},           {"dict", fn_dict}, {"namespace", fn_namespace}, {"raise_exception", fn_raise},
    {"strftime_now", fn_strftime},
};

int gy_jj_func_find(const char *name) {
    for (size_t i = 0; i < sizeof funcs / sizeof *funcs; i++)
        if (strcmp(funcs[i].name, name) == 0) return (int)i;
    return -1;
}

int gy_jj_func_call(gy_jj_run *r, int which, const gy_jj_args *a, gy_jj_val *out) {
    return gy_jj_step(r, 1) ? -1 : funcs[which].fn(r, a, out);
}
