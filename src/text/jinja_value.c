/* Values of a rendering: making, comparing, indexing, arithmetic, with Python's rules as far as templates meet them.
 * Integers are 64 bits wide and say so when that is not enough. Every function that walks something counts steps for
 * it, every allocation counts as memory.
 */
#include "text/jinja_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- limits and failing ---- */

int gy_jj_fail(gy_jj_run *r, gy_status st, const char *fmt, ...) {
    char raw[700];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof raw ? (size_t)n : sizeof raw - 1;
    len -= (size_t)gy_utf8_incomplete_tail(raw, len); /* what was cut off in the middle of a character */
    gy_err_set(r->err, st, "%s: line %d: %.*s", r->t->name, r->line, (int)len, raw);
    return -1;
}

int gy_jj_step(gy_jj_run *r, size_t n) {
    int64_t max = r->t->lim.max_steps;
    if (n <= (size_t)max && (r->steps += (int64_t)n) <= max) return 0;
    return gy_jj_fail(r, GY_E_LIMIT, "the template did not end within %lld steps", (long long)max);
}

int gy_jj_down(gy_jj_run *r) {
    if (r->depth >= r->t->lim.max_depth)
        return gy_jj_fail(r, GY_E_LIMIT, "nested more than %d deep", r->t->lim.max_depth);
    r->depth++;
    return 0;
}

int gy_jj_undefined(gy_jj_run *r, const gy_jj_val *v) {
    return gy_jj_fail(r, GY_E_ARG, "'%.100s' is undefined", v->u.what);
}

void *gy_jj_alloc(gy_jj_run *r, size_t n, size_t elem_bytes) {
    size_t bytes, total;
    if (gy_size_mul(n, elem_bytes, &bytes) || gy_size_add(bytes, r->mem + 16, &total) ||
        total > r->t->lim.max_memory_bytes) {
        gy_jj_fail(r, GY_E_LIMIT, "the template needs more than %zu bytes of memory", r->t->lim.max_memory_bytes);
        return NULL;
    }
    if (gy_jj_step(r, bytes / 64)) return NULL;
    void *p = gy_arena_alloc(r->arena, n ? n : 1, elem_bytes);
    if (!p) gy_jj_fail(r, GY_E_NOMEM, "no memory for the template");
    r->mem = total;
    return p;
}

const char *gy_jj_type_name(const gy_jj_val *v) {
    static const char *const names[] = {"nothing",   "Undefined",    "NoneType", "bool",     "int",
                                        "float",     "str",          "list",     "tuple",    "dict",
                                        "namespace", "loop context", "macro",    "function", "method"};
    return names[v->type];
}

/* ---- making ---- */

gy_jj_val gy_jj_none(void) {
    return (gy_jj_val){.type = GY_JJ_NONE};
}

gy_jj_val gy_jj_bool(int b) {
    return (gy_jj_val){.type = GY_JJ_BOOL, .u.i = b != 0};
}

gy_jj_val gy_jj_int(int64_t i) {
    return (gy_jj_val){.type = GY_JJ_INT, .u.i = i};
}

gy_jj_val gy_jj_real(double d) {
    return (gy_jj_val){.type = GY_JJ_REAL, .u.r = d};
}

gy_jj_val gy_jj_undef(const char *what) {
    return (gy_jj_val){.type = GY_JJ_UNDEF, .u.what = what};
}

gy_jj_val gy_jj_from(gy_jj_val v, unsigned origin) {
    v.origin = (uint8_t)origin;
    return v;
}

int gy_jj_str(gy_jj_run *r, const char *s, size_t len, unsigned origin, gy_jj_val *out) {
    gy_jj_text *t = gy_jj_alloc(r, 1, sizeof *t);
    if (!t) return -1;
    *t = (gy_jj_text){.s = s, .len = len};
    *out = (gy_jj_val){.type = GY_JJ_STR, .origin = (uint8_t)origin, .u.str = t};
    return 0;
}

int gy_jj_strz(gy_jj_run *r, const char *z, gy_jj_val *out) {
    return gy_jj_str(r, z, strlen(z), GY_JJ_MARKUP, out);
}

int gy_jj_sub(gy_jj_run *r, const gy_jj_val *str, size_t off, size_t len, gy_jj_val *out) {
    const gy_jj_text *from = str->u.str;
    gy_jj_text *t = gy_jj_alloc(r, 1, sizeof *t);
    if (!t) return -1;
    *t = (gy_jj_text){.s = from->s + off, .marks = from->marks ? from->marks + off : NULL, .len = len};
    *out = (gy_jj_val){.type = GY_JJ_STR, .origin = str->origin, .u.str = t};
    return 0;
}

int gy_jj_list_new(gy_jj_run *r, gy_jj_type type, size_t n, gy_jj_val *out) {
    gy_jj_list *l = gy_jj_alloc(r, 1, sizeof *l);
    gy_jj_val *v = l ? gy_jj_alloc(r, n, sizeof *v) : NULL;
    if (!v) return -1;
    *l = (gy_jj_list){.v = v, .n = n};
    *out = (gy_jj_val){.type = (uint8_t)type, .u.list = l};
    return 0;
}

int gy_jj_pair(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out) {
    if (gy_jj_list_new(r, GY_JJ_TUPLE, 2, out)) return -1;
    out->u.list->v[0] = *a;
    out->u.list->v[1] = *b;
    return 0;
}

int gy_jj_dict_new(gy_jj_run *r, size_t cap, gy_jj_val *out) {
    gy_jj_dict *d = gy_jj_alloc(r, 1, sizeof *d);
    gy_jj_entry *e = d ? gy_jj_alloc(r, cap, sizeof *e) : NULL;
    if (!e) return -1;
    *d = (gy_jj_dict){.e = e, .cap = cap};
    *out = (gy_jj_val){.type = GY_JJ_DICT, .u.dict = d};
    return 0;
}

int gy_jj_dict_add(gy_jj_run *r, gy_jj_dict *d, const gy_jj_val *key, const gy_jj_val *val) {
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        gy_jj_entry *e = gy_jj_alloc(r, cap, sizeof *e);
        if (!e) return -1;
        if (d->n) memcpy(e, d->e, d->n * sizeof *e);
        d->e = e;
        d->cap = cap;
    }
    d->e[d->n++] = (gy_jj_entry){*key, *val};
    return 0;
}

/* What Python can hash and what our strings and numbers compare with cheaply. */
static int is_key(const gy_jj_val *v) {
    return gy_jj_is_num(v) || v->type == GY_JJ_STR || v->type == GY_JJ_NONE || v->type == GY_JJ_TUPLE;
}

int gy_jj_dict_get(gy_jj_run *r, const gy_jj_dict *d, const gy_jj_val *key, gy_jj_val **out) {
    *out = NULL;
    if (!is_key(key)) return gy_jj_fail(r, GY_E_ARG, "a value of type '%s' cannot be a key", gy_jj_type_name(key));
    if (gy_jj_step(r, d->n / 4)) return -1;
    for (size_t i = 0; i < d->n; i++) {
        int same;
        if (d->e[i].key.type == GY_JJ_STR && key->type == GY_JJ_STR && d->e[i].key.u.str->len != key->u.str->len)
            continue;
        if (gy_jj_equal(r, &d->e[i].key, key, &same)) return -1;
        if (!same) continue;
        *out = &d->e[i].val;
        break;
    }
    return 0;
}

int gy_jj_dict_put(gy_jj_run *r, gy_jj_dict *d, const gy_jj_val *key, const gy_jj_val *val) {
    gy_jj_val *there;
    if (gy_jj_dict_get(r, d, key, &there)) return -1;
    if (!there) return gy_jj_dict_add(r, d, key, val);
    *there = *val;
    return 0;
}

int gy_jj_dict_getz(const gy_jj_dict *d, const char *key, gy_jj_val *out) {
    for (size_t i = 0; i < d->n; i++) {
        if (!gy_jj_is_str(&d->e[i].key, key)) continue;
        *out = d->e[i].val;
        return 1;
    }
    return 0;
}

static int convert_object(gy_jj_run *r, const gy_jv *v, unsigned origin, gy_jj_val *out) {
    gy_jj_val dict;
    if (gy_jj_dict_new(r, gy_jv_len(v), &dict)) return -1;
    dict.origin = (uint8_t)origin;
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        size_t len;
        const char *s = gy_jv_key(it, &len);
        gy_jj_val key, val;
        if (gy_jj_str(r, s, len, origin, &key) || gy_jj_convert(r, gy_jv_val(it), origin, &val)) return -1;
        if (gy_jj_dict_add(r, dict.u.dict, &key, &val)) return -1; /* JSON has each key once */
    }
    *out = dict;
    return 0;
}

static int convert_array(gy_jj_run *r, const gy_jv *v, unsigned origin, gy_jj_val *out) {
    gy_jj_val list;
    if (gy_jj_list_new(r, GY_JJ_LIST, gy_jv_len(v), &list)) return -1;
    for (size_t i = 0; i < list.u.list->n; i++)
        if (gy_jj_convert(r, gy_jv_at(v, i), origin, &list.u.list->v[i])) return -1;
    *out = gy_jj_from(list, origin);
    return 0;
}

int gy_jj_convert(gy_jj_run *r, const gy_jv *v, unsigned origin, gy_jj_val *out) {
    size_t len = 0;
    const char *s;
    int failed = 0;
    if (gy_jj_step(r, 1) || gy_jj_down(r)) return -1;
    switch (gy_jv_type(v)) {
    case GY_J_STRING:
        s = gy_jv_str(v, &len);
        failed = gy_jj_str(r, s, len, origin, out);
        break;
    case GY_J_ARRAY:
        failed = convert_array(r, v, origin, out);
        break;
    case GY_J_OBJECT:
        failed = convert_object(r, v, origin, out);
        break;
    case GY_J_BOOL:
        *out = gy_jj_from(gy_jj_bool(gy_jv_bool(v, 0)), origin);
        break;
    case GY_J_INT:
        *out = gy_jj_from(gy_jj_int(gy_jv_int(v, 0)), origin);
        break;
    case GY_J_REAL:
        *out = gy_jj_from(gy_jj_real(gy_jv_num(v, 0)), origin);
        break;
    case GY_J_NULL:
    case GY_J_NONE:
        *out = gy_jj_from(gy_jj_none(), origin);
        break;
    }
    r->depth--;
    return failed;
}

/* ---- asking ---- */

int gy_jj_truth(const gy_jj_val *v) {
    switch ((gy_jj_type)v->type) {
    case GY_JJ_MISSING:
    case GY_JJ_UNDEF:
    case GY_JJ_NONE:
        return 0;
    case GY_JJ_BOOL:
    case GY_JJ_INT:
        return v->u.i != 0;
    case GY_JJ_REAL:
        return v->u.r != 0;
    case GY_JJ_STR:
        return v->u.str->len != 0;
    case GY_JJ_LIST:
    case GY_JJ_TUPLE:
        return v->u.list->n != 0;
    case GY_JJ_DICT:
        return v->u.dict->n != 0;
    default:
        return 1;
    }
}

int gy_jj_is_num(const gy_jj_val *v) {
    return v->type == GY_JJ_BOOL || v->type == GY_JJ_INT || v->type == GY_JJ_REAL;
}

double gy_jj_num(const gy_jj_val *v) {
    return v->type == GY_JJ_REAL ? v->u.r : (double)v->u.i;
}

static int is_str(const gy_jj_val *v, const char *s, size_t len) {
    return v->type == GY_JJ_STR && v->u.str->len == len && (!len || memcmp(v->u.str->s, s, len) == 0);
}

int gy_jj_is_str(const gy_jj_val *v, const char *z) {
    return is_str(v, z, strlen(z));
}

static int is_seq(const gy_jj_val *v) {
    return v->type == GY_JJ_LIST || v->type == GY_JJ_TUPLE;
}

int gy_jj_length(gy_jj_run *r, const gy_jj_val *v, int64_t *out) {
    if (v->type == GY_JJ_UNDEF)
        *out = 0;
    else if (v->type == GY_JJ_STR) {
        if (gy_jj_step(r, v->u.str->len / 64)) return -1;
        *out = (int64_t)gy_jj_n_char(v);
    } else if (is_seq(v))
        *out = (int64_t)v->u.list->n;
    else if (v->type == GY_JJ_DICT)
        *out = (int64_t)v->u.dict->n;
    else
        return gy_jj_fail(r, GY_E_ARG, "a value of type '%s' has no length", gy_jj_type_name(v));
    return 0;
}

/* ---- comparing ---- */

static int equal_lists(gy_jj_run *r, const gy_jj_list *a, const gy_jj_list *b, int *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        if (gy_jj_equal(r, &a->v[i], &b->v[i], out)) return -1;
    return 0;
}

static int equal_dicts(gy_jj_run *r, const gy_jj_dict *a, const gy_jj_dict *b, int *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        gy_jj_val *other;
        if (gy_jj_dict_get(r, b, &a->e[i].key, &other)) return -1;
        *out = other != NULL;
        if (other && gy_jj_equal(r, &a->e[i].val, other, out)) return -1;
    }
    return 0;
}

static int equal_nums(const gy_jj_val *a, const gy_jj_val *b) {
    if (a->type != GY_JJ_REAL && b->type != GY_JJ_REAL) return a->u.i == b->u.i;
    return gy_jj_num(a) == gy_jj_num(b);
}

static int equal_deep(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, int *out) {
    if (gy_jj_down(r)) return -1;
    int failed =
        a->type == GY_JJ_DICT ? equal_dicts(r, a->u.dict, b->u.dict, out) : equal_lists(r, a->u.list, b->u.list, out);
    r->depth--;
    return failed;
}

int gy_jj_equal(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, int *out) {
    if (gy_jj_is_num(a) && gy_jj_is_num(b)) {
        *out = equal_nums(a, b);
        return gy_jj_step(r, 1);
    }
    *out = 0;
    if (a->type != b->type) return gy_jj_step(r, 1);
    switch ((gy_jj_type)a->type) {
    case GY_JJ_STR:
        *out = is_str(a, b->u.str->s, b->u.str->len);
        return gy_jj_step(r, 1 + (a->u.str->len == b->u.str->len ? a->u.str->len / 64 : 0));
    case GY_JJ_LIST:
    case GY_JJ_TUPLE:
    case GY_JJ_DICT:
        return gy_jj_step(r, 1) || equal_deep(r, a, b, out) ? -1 : 0;
    case GY_JJ_FUNC:
        *out = a->u.i == b->u.i;
        return 0;
    case GY_JJ_SPACE:
        *out = a->u.dict == b->u.dict;
        return 0;
    case GY_JJ_LOOP:
    case GY_JJ_MACRO:
    case GY_JJ_METHOD:
        *out = a->u.macro == b->u.macro;
        return 0;
    default: /* two undefined values are equal, two nones are */
        *out = 1;
        return 0;
    }
}

static int order_text(const gy_jj_text *a, const gy_jj_text *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->s, b->s, n) : 0; /* the order of UTF-8 is the order of code points */
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static int order_nums(const gy_jj_val *a, const gy_jj_val *b) {
    if (a->type != GY_JJ_REAL && b->type != GY_JJ_REAL) return (a->u.i > b->u.i) - (a->u.i < b->u.i);
    double x = gy_jj_num(a), y = gy_jj_num(b);
    return (x > y) - (x < y);
}

static int order_lists(gy_jj_run *r, const gy_jj_list *a, const gy_jj_list *b, const char *op, int *out) {
    int same = 1;
    size_t i = 0;
    for (; i < a->n && i < b->n; i++) {
        if (gy_jj_equal(r, &a->v[i], &b->v[i], &same)) return -1;
        if (!same) return gy_jj_order(r, &a->v[i], &b->v[i], op, out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return 0;
}

int gy_jj_order(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, const char *op, int *out) {
    if (gy_jj_step(r, 1)) return -1;
    if (gy_jj_is_num(a) && gy_jj_is_num(b)) {
        *out = order_nums(a, b);
        return 0;
    }
    if (a->type == GY_JJ_STR && b->type == GY_JJ_STR) {
        size_t n = a->u.str->len < b->u.str->len ? a->u.str->len : b->u.str->len;
        *out = order_text(a->u.str, b->u.str);
        return gy_jj_step(r, n / 64);
    }
    if (is_seq(a) && a->type == b->type) {
        if (gy_jj_down(r)) return -1;
        int failed = order_lists(r, a->u.list, b->u.list, op, out);
        r->depth--;
        return failed;
    }
    if (a->type == GY_JJ_UNDEF || b->type == GY_JJ_UNDEF) return gy_jj_undefined(r, a->type == GY_JJ_UNDEF ? a : b);
    return gy_jj_fail(r, GY_E_ARG, "'%s' does not work between '%s' and '%s'", op, gy_jj_type_name(a),
                      gy_jj_type_name(b));
}

int gy_jj_contains(gy_jj_run *r, const gy_jj_val *in, const gy_jj_val *what, int *out) {
    *out = 0;
    if (in->type == GY_JJ_UNDEF) return 0;
    if (in->type == GY_JJ_STR) {
        int64_t off;
        if (what->type == GY_JJ_UNDEF) return gy_jj_undefined(r, what);
        if (what->type != GY_JJ_STR)
            return gy_jj_fail(r, GY_E_ARG, "'in' asks a string for a value of type '%s'", gy_jj_type_name(what));
        if (gy_jj_find(r, in, what, 0, 0, &off)) return -1;
        *out = off >= 0;
        return 0;
    }
    if (in->type == GY_JJ_DICT) {
        gy_jj_val *there;
        if (what->type == GY_JJ_UNDEF) return 0;
        if (gy_jj_dict_get(r, in->u.dict, what, &there)) return -1;
        *out = there != NULL;
        return 0;
    }
    if (!is_seq(in)) return gy_jj_fail(r, GY_E_ARG, "'in' cannot look into a value of type '%s'", gy_jj_type_name(in));
    for (size_t i = 0; !*out && i < in->u.list->n; i++)
        if (gy_jj_equal(r, &in->u.list->v[i], what, out)) return -1;
    return 0;
}

/* Stable, bottom up: order[] becomes the indices of keys in order. With reverse, equal keys still keep their order. */
static int sort_merge(gy_jj_run *r, const gy_jj_val *keys, int reverse, const size_t *from, size_t *to, size_t lo,
                      size_t mid, size_t hi) {
    size_t i = lo, j = mid;
    for (size_t k = lo; k < hi; k++) {
        int c = 0;
        if (i < mid && j < hi && gy_jj_order(r, &keys[from[j]], &keys[from[i]], "<", &c)) return -1;
        int take_right = i >= mid || (j < hi && (reverse ? c > 0 : c < 0));
        to[k] = take_right ? from[j++] : from[i++];
    }
    return 0;
}

int gy_jj_sort(gy_jj_run *r, const gy_jj_val *keys, size_t n, int reverse, size_t *order) {
    size_t *other = gy_jj_alloc(r, n, sizeof *other), *from = order, *to = other;
    if (!other) return -1;
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t mid = lo + w < n ? lo + w : n, hi = lo + 2 * w < n ? lo + 2 * w : n;
            if (sort_merge(r, keys, reverse, from, to, lo, mid, hi)) return -1;
        }
        size_t *t = from;
        from = to;
        to = t;
    }
    if (from != order && n) memcpy(order, from, n * sizeof *order);
    return 0;
}

/* ---- walking and indexing ---- */

static int iterate_chars(gy_jj_run *r, const gy_jj_val *str, gy_jj_val *out) {
    if (gy_jj_list_new(r, GY_JJ_LIST, gy_jj_n_char(str), out)) return -1;
    size_t at = 0;
    for (size_t i = 0; i < out->u.list->n; i++) {
        size_t n;
        gy_jj_cp_at(str, at, &n);
        if (gy_jj_sub(r, str, at, n, &out->u.list->v[i])) return -1;
        at += n;
    }
    return 0;
}

int gy_jj_iterate(gy_jj_run *r, const gy_jj_val *v, const gy_jj_list **out) {
    gy_jj_val list;
    if (is_seq(v)) {
        *out = v->u.list;
        return 0;
    }
    if (v->type == GY_JJ_STR) {
        if (iterate_chars(r, v, &list)) return -1;
    } else if (v->type == GY_JJ_DICT) {
        if (gy_jj_list_new(r, GY_JJ_LIST, v->u.dict->n, &list)) return -1;
        for (size_t i = 0; i < v->u.dict->n; i++) list.u.list->v[i] = v->u.dict->e[i].key;
    } else if (v->type == GY_JJ_UNDEF) {
        if (gy_jj_list_new(r, GY_JJ_LIST, 0, &list)) return -1;
    } else
        return gy_jj_fail(r, GY_E_ARG, "a value of type '%s' has no items to walk over", gy_jj_type_name(v));
    *out = list.u.list;
    return 0;
}

static int undef_named(gy_jj_run *r, const gy_jj_val *name, gy_jj_val *out) {
    size_t len = name->type == GY_JJ_STR ? name->u.str->len : 0;
    if (!len) {
        *out = gy_jj_undef("an item");
        return 0;
    }
    if (len > 60) len = gy_jj_char_offset(name, 15);
    char *copy = gy_jj_alloc(r, len + 1, 1);
    if (!copy) return -1;
    memcpy(copy, name->u.str->s, len);
    *out = gy_jj_undef(copy);
    return 0;
}

static gy_jj_val loop_neighbour(const gy_jj_loop *l, int is_next) {
    if (is_next ? l->at + 1 >= l->items->n : l->at == 0) return gy_jj_undef(is_next ? "nextitem" : "previtem");
    return l->items->v[is_next ? l->at + 1 : l->at - 1];
}

static int loop_attr(const gy_jj_loop *l, const gy_jj_val *name, gy_jj_val *out) {
    int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        gy_jj_val v;
    } rows[] = {
        {"index", gy_jj_int(at + 1)},
        {"index0", gy_jj_int(at)},
        {"first", gy_jj_bool(at == 0)},
        {"last", gy_jj_bool(at == n - 1)},
        {"length", gy_jj_int(n)},
        {"revindex", gy_jj_int(n - at)},
        {"depth", gy_jj_int(1)},
        /* only recursive loops have more */ {"revindex0", gy_jj_int(n - at - 1)},
        {"depth0", gy_jj_int(0)},
        {"previtem", loop_neighbour(l, 0)},
        {"nextitem", loop_neighbour(l, 1)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!gy_jj_is_str(name, rows[i].name)) continue;
        *out = rows[i].v;
        return 1;
    }
    return 0;
}

/* obj.name: a method first, then a member, as jinja2 does for dot access. */
int gy_jj_attr(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *name, gy_jj_val *out) {
    if (of->type == GY_JJ_UNDEF) return gy_jj_undefined(r, of);
    if (of->type == GY_JJ_LOOP && loop_attr(of->u.loop, name, out)) return 0;
    int found = gy_jj_method_find(r, of, name, out);
    if (found) return found < 0 ? -1 : 0;
    if (of->type == GY_JJ_DICT || of->type == GY_JJ_SPACE) {
        gy_jj_val *there;
        if (gy_jj_dict_get(r, of->u.dict, name, &there)) return -1;
        if (there) {
            *out = *there;
            return 0;
        }
    }
    return undef_named(r, name, out);
}

/* A Python index: negative ones count from the end. -1 if outside. */
static int64_t index_of(const gy_jj_val *key, int64_t n) {
    int64_t i = key->u.i;
    if (i < 0) i += n;
    return i < 0 || i >= n ? -1 : i;
}

static int item_at(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *key, gy_jj_val *out) {
    int64_t n, i;
    if (gy_jj_length(r, of, &n)) return -1;
    if ((i = index_of(key, n)) < 0) {
        *out = gy_jj_undef("an item");
        return 0;
    }
    if (of->type != GY_JJ_STR) {
        *out = of->u.list->v[i];
        return 0;
    }
    size_t off = gy_jj_char_offset(of, (size_t)i), len;
    gy_jj_cp_at(of, off, &len);
    return gy_jj_sub(r, of, off, len, out);
}

/* obj[key]: a member first, then a method. */
int gy_jj_item(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *key, gy_jj_val *out) {
    if (of->type == GY_JJ_UNDEF) return gy_jj_undefined(r, of);
    if ((is_seq(of) || of->type == GY_JJ_STR) && (key->type == GY_JJ_INT || key->type == GY_JJ_BOOL))
        return item_at(r, of, key, out);
    if (of->type == GY_JJ_DICT && is_key(key)) {
        gy_jj_val *there;
        if (gy_jj_dict_get(r, of->u.dict, key, &there)) return -1;
        if (there) {
            *out = *there;
            return 0;
        }
    }
    if (key->type == GY_JJ_STR && of->type != GY_JJ_DICT) return gy_jj_attr(r, of, key, out);
    int found = key->type == GY_JJ_STR ? gy_jj_method_find(r, of, key, out) : 0;
    if (found) return found < 0 ? -1 : 0;
    return undef_named(r, key, out);
}

/* A bound of a slice. dflt when it is None; clipped to [lo, hi] after negative ones were counted from the end. */
static int64_t slice_bound(const gy_jj_val *v, int64_t n, int64_t dflt, int64_t lo, int64_t hi) {
    if (v->type == GY_JJ_NONE) return dflt;
    int64_t i = v->u.i;
    if (i < 0) i = i < -n ? lo : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

static int slice_copy(gy_jj_run *r, const gy_jj_val *of, int64_t lo, int64_t step, int64_t n, gy_jj_val *out) {
    const gy_jj_list *from;
    gy_jj_val list;
    if (gy_jj_iterate(r, of, &from)) return -1;
    if (gy_jj_list_new(r, of->type == GY_JJ_TUPLE ? GY_JJ_TUPLE : GY_JJ_LIST, (size_t)n, &list)) return -1;
    for (int64_t i = 0; i < n; i++) list.u.list->v[i] = from->v[lo + i * step];
    list.origin = of->origin;
    if (of->type != GY_JJ_STR) {
        *out = list;
        return 0;
    }
    gy_jj_buf b = {0};
    for (int64_t i = 0; i < n; i++)
        if (gy_jj_put_str(r, &b, &list.u.list->v[i])) return -1;
    return gy_jj_take(r, &b, out);
}

static int is_bound(const gy_jj_val *v) {
    return v->type == GY_JJ_NONE || v->type == GY_JJ_INT || v->type == GY_JJ_BOOL;
}

int gy_jj_slice(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *lo, const gy_jj_val *hi, const gy_jj_val *step,
                gy_jj_val *out) {
    int64_t n, s = step->type == GY_JJ_NONE ? 1 : step->u.i;
    if (of->type == GY_JJ_UNDEF) return gy_jj_undefined(r, of);
    if ((of->type != GY_JJ_STR && !is_seq(of)) || !is_bound(lo) || !is_bound(hi) || !is_bound(step)) {
        *out = gy_jj_undef("a slice");
        return 0;
    }
    if (s == 0) return gy_jj_fail(r, GY_E_ARG, "a slice with step 0");
    if (gy_jj_length(r, of, &n)) return -1;
    int64_t min = s < 0 ? -1 : 0, max = s < 0 ? n - 1 : n;
    int64_t from = slice_bound(lo, n, s < 0 ? n - 1 : 0, min, max), to = slice_bound(hi, n, s < 0 ? -1 : n, min, max);
    int64_t span = s < 0 ? from - to : to - from;
    if (s < -n - 1) s = -n - 1;
    if (s > n + 1) s = n + 1;
    int64_t size = s < 0 ? -s : s, count = span <= 0 || !size ? 0 : (span + size - 1) / size;
    if (of->type != GY_JJ_STR || s != 1) return slice_copy(r, of, from, s, count, out);
    size_t a = gy_jj_char_offset(of, (size_t)from), b = count ? gy_jj_char_offset(of, (size_t)to) : a;
    return gy_jj_step(r, b / 64) ? -1 : gy_jj_sub(r, of, a, b - a, out);
}

/* ---- arithmetic ---- */

static int too_wide(gy_jj_run *r) {
    return gy_jj_fail(r, GY_E_ARG, "an integer beyond 64 bits");
}

static int pow_int(gy_jj_run *r, int64_t base, int64_t e, int64_t *out) {
    int64_t v = 1;
    for (; e > 0; e >>= 1) {
        if (e & 1 && __builtin_mul_overflow(v, base, &v)) return too_wide(r);
        if (e > 1 && __builtin_mul_overflow(base, base, &base)) return too_wide(r);
    }
    *out = v;
    return 0;
}

/* Towards minus infinity, as Python does. */
static int floor_div(gy_jj_run *r, int64_t a, int64_t b, int64_t *q, int64_t *m) {
    if (b == 0) return gy_jj_fail(r, GY_E_ARG, "division by zero");
    if (b == -1) {
        *m = 0;
        return __builtin_sub_overflow((int64_t)0, a, q) ? too_wide(r) : 0;
    }
    *q = a / b;
    *m = a % b;
    if (*m && (*m < 0) != (b < 0)) {
        --*q;
        *m += b;
    }
    return 0;
}

static int int_op(gy_jj_run *r, gy_jj_op op, int64_t a, int64_t b, gy_jj_val *out) {
    int64_t v = 0, m = 0;
    int wide = 0;
    if (op == GY_JJ_OP_ADD)
        wide = __builtin_add_overflow(a, b, &v);
    else if (op == GY_JJ_OP_SUB)
        wide = __builtin_sub_overflow(a, b, &v);
    else if (op == GY_JJ_OP_MUL)
        wide = __builtin_mul_overflow(a, b, &v);
    else if (op == GY_JJ_OP_POW) {
        if (pow_int(r, a, b, &v)) return -1;
    } else if (floor_div(r, a, b, &v, &m))
        return -1;
    if (wide) return too_wide(r);
    *out = gy_jj_int(op == GY_JJ_OP_MOD ? m : v);
    return 0;
}

static int real_op(gy_jj_run *r, gy_jj_op op, double a, double b, gy_jj_val *out) {
    double v, m;
    if (b == 0 && (op == GY_JJ_OP_DIV || op == GY_JJ_OP_FLOORDIV || op == GY_JJ_OP_MOD))
        return gy_jj_fail(r, GY_E_ARG, "division by zero");
    if (op == GY_JJ_OP_POW && a == 0 && b < 0) return gy_jj_fail(r, GY_E_ARG, "zero to a negative power");
    switch (op) {
    case GY_JJ_OP_ADD:
        v = a + b;
        break;
    case GY_JJ_OP_SUB:
        v = a - b;
        break;
    case GY_JJ_OP_MUL:
        v = a * b;
        break;
    case GY_JJ_OP_DIV:
        v = a / b;
        break;
    case GY_JJ_OP_POW:
        v = pow(a, b);
        break;
    default:
        m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0)) m += b;
        v = op == GY_JJ_OP_MOD ? (m == 0 ? copysign(0, b) : m) : floor((a - m) / b + 0.5);
        break;
    }
    if (isnan(v)) return gy_jj_fail(r, GY_E_ARG, "the result is not a number");
    *out = gy_jj_real(v);
    return 0;
}

static int repeat(gy_jj_run *r, const gy_jj_val *v, int64_t n, gy_jj_val *out) {
    if (n < 0) n = 0;
    if (v->type == GY_JJ_STR) {
        gy_jj_buf b = {0};
        for (int64_t i = 0; i < n && v->u.str->len; i++)
            if (gy_jj_put_str(r, &b, v)) return -1;
        return gy_jj_take(r, &b, out);
    }
    size_t len = v->u.list->n, total;
    if (gy_size_mul(len, (size_t)n, &total)) total = SIZE_MAX;
    if (gy_jj_list_new(r, (gy_jj_type)v->type, total, out)) return -1;
    for (size_t i = 0; len && i < total; i++) out->u.list->v[i] = v->u.list->v[i % len];
    return 0;
}

static int add_lists(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out) {
    size_t n = a->u.list->n, m = b->u.list->n;
    if (gy_jj_list_new(r, (gy_jj_type)a->type, n + m, out)) return -1;
    if (n) memcpy(out->u.list->v, a->u.list->v, n * sizeof(gy_jj_val));
    if (m) memcpy(out->u.list->v + n, b->u.list->v, m * sizeof(gy_jj_val));
    return 0;
}

static int add_strs(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out) {
    gy_jj_buf buf = {0};
    if (gy_jj_put_str(r, &buf, a) || gy_jj_put_str(r, &buf, b)) return -1;
    return gy_jj_take(r, &buf, out);
}

static int is_int(const gy_jj_val *v) {
    return v->type == GY_JJ_INT || v->type == GY_JJ_BOOL;
}

static int num_op(gy_jj_run *r, gy_jj_op op, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out) {
    int exact = is_int(a) && is_int(b) && op != GY_JJ_OP_DIV && !(op == GY_JJ_OP_POW && b->u.i < 0);
    if (exact ? int_op(r, op, a->u.i, b->u.i, out) : real_op(r, op, gy_jj_num(a), gy_jj_num(b), out)) return -1;
    out->origin = (uint8_t)((a->origin | b->origin) & GY_JJ_DATA);
    return 0;
}

int gy_jj_binary(gy_jj_run *r, gy_jj_op op, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (op == GY_JJ_OP_MOD && a->type == GY_JJ_STR) return gy_jj_percent(r, a, b, out);
    if (a->type == GY_JJ_UNDEF || b->type == GY_JJ_UNDEF) return gy_jj_undefined(r, a->type == GY_JJ_UNDEF ? a : b);
    if (gy_jj_is_num(a) && gy_jj_is_num(b)) return num_op(r, op, a, b, out);
    if (op == GY_JJ_OP_ADD && a->type == b->type && a->type == GY_JJ_STR) return add_strs(r, a, b, out);
    if (op == GY_JJ_OP_ADD && a->type == b->type && is_seq(a)) return add_lists(r, a, b, out);
    if (op == GY_JJ_OP_MUL && is_int(b) && (a->type == GY_JJ_STR || is_seq(a))) return repeat(r, a, b->u.i, out);
    if (op == GY_JJ_OP_MUL && is_int(a) && (b->type == GY_JJ_STR || is_seq(b))) return repeat(r, b, a->u.i, out);
    return gy_jj_fail(r, GY_E_ARG, "'%s' does not work between '%s' and '%s'", names[op], gy_jj_type_name(a),
                      gy_jj_type_name(b));
}
