/* Functions of strings, with Python's meaning: positions are code points, white space is str.isspace's. Each result
 * says byte by byte where it came from: parts share their string's bytes, everything else goes through a buffer. Case
 * mapping is one code point to one, except for the sharp s; Python also knows ligatures and final sigma.
 */
#include "text/jinja_int.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* ---- characters ---- */

int gy_jj_is_space(uint32_t cp) {
    return gy_uni_is_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

uint32_t gy_jj_cp_at(const gy_jj_val *str, size_t off, size_t *n) {
    const gy_jj_text *t = str->u.str;
    unsigned char c = off < t->len ? (unsigned char)t->s[off] : 0;
    uint32_t cp = c;
    *n = off < t->len;
    if (c >= 0x80) *n = (size_t)gy_utf8_decode(t->s + off, t->len - off, &cp);
    return cp;
}

uint8_t gy_jj_mark_at(const gy_jj_val *str, size_t off) {
    const gy_jj_text *t = str->u.str;
    return t->marks && off < t->len ? t->marks[off] : str->origin;
}

size_t gy_jj_n_char(const gy_jj_val *str) {
    const gy_jj_text *t = str->u.str;
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++) n += ((unsigned char)t->s[i] & 0xC0) != 0x80;
    return n;
}

size_t gy_jj_char_offset(const gy_jj_val *str, size_t n) {
    const gy_jj_text *t = str->u.str;
    size_t at = 0;
    while (at < t->len) {
        if (((unsigned char)t->s[at] & 0xC0) != 0x80 && n-- == 0) break;
        at++;
    }
    return at;
}

/* The start of the character that ends in front of `end`. */
static size_t char_before(const gy_jj_val *str, size_t end) {
    do end--;
    while (end > 0 && ((unsigned char)str->u.str->s[end] & 0xC0) == 0x80);
    return end;
}

static int is_cased(uint32_t cp) {
    const char *c = gy_uni_category(cp);
    return c[0] == 'L' && (c[1] == 'u' || c[1] == 'l' || c[1] == 't');
}

/* ---- case ---- */

static int put_upper(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin) {
    if (cp == 0xDF) return gy_jj_put(r, b, "SS", 2, origin);
    return gy_jj_put_cp(r, b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp), origin);
}

static int put_title(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin) {
    if (cp == 0xDF) return gy_jj_put(r, b, "Ss", 2, origin);
    return gy_jj_put_cp(r, b, (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp), origin);
}

static int put_lower(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin) {
    if (cp == 0x130) return gy_jj_put(r, b, "i\xCC\x87", 3, origin);
    return gy_jj_put_cp(r, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), origin);
}

/* What ends a word for the filter "title" (which is not str.title). */
static int splits_words(uint32_t cp) {
    return gy_jj_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp) != NULL);
}

int gy_jj_recase(gy_jj_run *r, const gy_jj_val *str, gy_jj_case how, gy_jj_val *out) {
    gy_jj_buf b = {0};
    int first = 1, was_cased = 0;
    for (size_t at = 0, n; at < str->u.str->len; at += n) {
        uint32_t cp = gy_jj_cp_at(str, at, &n);
        uint8_t origin = gy_jj_mark_at(str, at);
        int starts = (how == GY_JJ_TITLE && !was_cased) || (how == GY_JJ_CAPITAL && at == 0);
        int failed = how == GY_JJ_UPPER || (how == GY_JJ_WORDS && first) ? put_upper(r, &b, cp, origin)
                     : starts                                            ? put_title(r, &b, cp, origin)
                                                                         : put_lower(r, &b, cp, origin);
        if (failed) return -1;
        was_cased = is_cased(cp);
        first = splits_words(cp);
    }
    return gy_jj_take(r, &b, out);
}

/* ---- stripping and splitting ---- */

static int strips(const gy_jj_val *chars, uint32_t cp) {
    if (chars->type != GY_JJ_STR) return gy_jj_is_space(cp);
    for (size_t at = 0, n; at < chars->u.str->len; at += n)
        if (gy_jj_cp_at(chars, at, &n) == cp) return 1;
    return 0;
}

int gy_jj_strip(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *chars, unsigned sides, gy_jj_val *out) {
    size_t lo = 0, hi = str->u.str->len, n;
    size_t cost = chars->type == GY_JJ_STR ? chars->u.str->len : 1;
    if (chars->type != GY_JJ_STR && chars->type != GY_JJ_NONE && chars->type != GY_JJ_MISSING)
        return gy_jj_fail(r, GY_E_ARG, "strip takes a string, not a value of type '%s'", gy_jj_type_name(chars));
    while (sides & GY_JJ_LEFT && lo < hi && strips(chars, gy_jj_cp_at(str, lo, &n))) {
        lo += n;
        if (gy_jj_step(r, cost)) return -1;
    }
    while (sides & GY_JJ_RIGHT && lo < hi) {
        size_t at = char_before(str, hi);
        if (!strips(chars, gy_jj_cp_at(str, at, &n))) break;
        hi = at;
        if (gy_jj_step(r, cost)) return -1;
    }
    return gy_jj_sub(r, str, lo, hi - lo, out);
}

typedef struct pieces {
    GY_VEC(gy_jj_val) v; /* freed by pieces_end */
} pieces;

static int pieces_add(gy_jj_run *r, pieces *p, const gy_jj_val *str, size_t off, size_t len) {
    gy_jj_val v;
    if (gy_jj_step(r, 1 + len / 64) || gy_jj_sub(r, str, off, len, &v)) return -1;
    if (gy_vec_push(&p->v, GY_MEM_TEXT, v)) return gy_jj_fail(r, GY_E_NOMEM, "no memory for the template");
    return 0;
}

static int pieces_end(gy_jj_run *r, pieces *p, int failed, int reversed, gy_jj_val *out) {
    size_t n = p->v.len;
    failed = failed || gy_jj_list_new(r, GY_JJ_LIST, n, out);
    for (size_t i = 0; !failed && i < n; i++) out->u.list->v[i] = p->v.data[reversed ? n - 1 - i : i];
    gy_vec_free(&p->v);
    return failed ? -1 : 0;
}

static int split_space(gy_jj_run *r, const gy_jj_val *str, int64_t most, pieces *p) {
    size_t at = 0, len = str->u.str->len, n;
    for (;;) {
        while (at < len && gy_jj_is_space(gy_jj_cp_at(str, at, &n))) at += n;
        if (at == len) return 0;
        size_t begin = at;
        if (most-- == 0) return pieces_add(r, p, str, begin, len - begin);
        while (at < len && !gy_jj_is_space(gy_jj_cp_at(str, at, &n))) at += n;
        if (pieces_add(r, p, str, begin, at - begin)) return -1;
    }
}

static int split_space_right(gy_jj_run *r, const gy_jj_val *str, int64_t most, pieces *p) {
    size_t end = str->u.str->len, n;
    for (;;) {
        while (end > 0 && gy_jj_is_space(gy_jj_cp_at(str, char_before(str, end), &n))) end = char_before(str, end);
        if (end == 0) return 0;
        if (most-- == 0) return pieces_add(r, p, str, 0, end);
        size_t at = end;
        while (at > 0 && !gy_jj_is_space(gy_jj_cp_at(str, char_before(str, at), &n))) at = char_before(str, at);
        if (pieces_add(r, p, str, at, end - at)) return -1;
        end = at;
    }
}

static int split_at(gy_jj_run *r, const gy_jj_val *str, const gy_jj_text *sep, int64_t most, pieces *p) {
    const char *s = str->u.str->s;
    size_t at = 0, len = str->u.str->len;
    while (most-- != 0) {
        const char *hit = len - at >= sep->len ? memmem(s + at, len - at, sep->s, sep->len) : NULL;
        if (!hit) break;
        if (pieces_add(r, p, str, at, (size_t)(hit - s) - at)) return -1;
        at = (size_t)(hit - s) + sep->len;
    }
    return pieces_add(r, p, str, at, len - at);
}

/* The last place of sep in s[0..len), or -1. Steps are counted by the caller. */
static int64_t find_last(const char *s, size_t len, const gy_jj_text *sep) {
    for (size_t i = len >= sep->len ? len - sep->len + 1 : 0; i > 0; i--)
        if (s[i - 1] == sep->s[0] && memcmp(s + i - 1, sep->s, sep->len) == 0) return (int64_t)i - 1;
    return -1;
}

static int split_at_right(gy_jj_run *r, const gy_jj_val *str, const gy_jj_text *sep, int64_t most, pieces *p) {
    size_t end = str->u.str->len;
    while (most-- != 0) {
        int64_t hit = find_last(str->u.str->s, end, sep);
        if (gy_jj_step(r, (end - (hit < 0 ? 0 : (size_t)hit)) / 16 * (1 + sep->len / 64))) return -1;
        if (hit < 0) break;
        size_t from = (size_t)hit + sep->len;
        if (pieces_add(r, p, str, from, end - from)) return -1;
        end = (size_t)hit;
    }
    return pieces_add(r, p, str, 0, end);
}

int gy_jj_split_str(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *sep, int64_t most, int from_right,
                    gy_jj_val *out) {
    pieces p = {0};
    int failed;
    if (gy_jj_step(r, str->u.str->len / 64)) return -1;
    if (sep->type == GY_JJ_NONE || sep->type == GY_JJ_MISSING)
        failed = from_right ? split_space_right(r, str, most, &p) : split_space(r, str, most, &p);
    else if (sep->type != GY_JJ_STR || !sep->u.str->len)
        return gy_jj_fail(r, GY_E_ARG, "split takes a string that is not empty");
    else
        failed = from_right ? split_at_right(r, str, sep->u.str, most, &p) : split_at(r, str, sep->u.str, most, &p);
    return pieces_end(r, &p, failed, from_right, out);
}

static int ends_line(uint32_t cp) {
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

int gy_jj_split_lines(gy_jj_run *r, const gy_jj_val *str, int keep_ends, gy_jj_val *out) {
    pieces p = {0};
    size_t begin = 0, len = str->u.str->len, at = 0, n;
    int failed = gy_jj_step(r, len / 16);
    while (!failed && at < len) {
        uint32_t cp = gy_jj_cp_at(str, at, &n);
        size_t end = at;
        at += n;
        if (!ends_line(cp)) continue;
        if (cp == '\r' && at < len && str->u.str->s[at] == '\n') at++;
        failed = pieces_add(r, &p, str, begin, (keep_ends ? at : end) - begin);
        begin = at;
    }
    if (!failed && begin < len) failed = pieces_add(r, &p, str, begin, len - begin);
    return pieces_end(r, &p, failed, 0, out);
}

/* ---- finding and replacing ---- */

int gy_jj_find(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *what, size_t from, int last, int64_t *off) {
    const gy_jj_text *t = str->u.str, *w = what->u.str;
    *off = -1;
    if (gy_jj_step(r, 1 + t->len / 64)) return -1;
    if (from > t->len || w->len > t->len - from) return 0;
    if (w->len == 0)
        *off = (int64_t)(last ? t->len : from);
    else if (last) {
        if (gy_jj_step(r, t->len / 16 * (1 + w->len / 64))) return -1;
        int64_t at = find_last(t->s, t->len, w);
        *off = at >= (int64_t)from ? at : -1;
    } else {
        const char *hit = memmem(t->s + from, t->len - from, w->s, w->len);
        *off = hit ? hit - t->s : -1;
    }
    return 0;
}

/* Python puts `with` in front of each character and at the end when it replaces nothing. */
static int replace_empty(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *with, int64_t most, gy_jj_buf *b) {
    size_t at = 0, n;
    for (; at < str->u.str->len && most != 0; at += n, most--) {
        gy_jj_cp_at(str, at, &n);
        if (gy_jj_put_str(r, b, with) || gy_jj_put_sub(r, b, str, at, n)) return -1;
    }
    if (most != 0 && at == str->u.str->len) return gy_jj_put_str(r, b, with);
    return gy_jj_put_sub(r, b, str, at, str->u.str->len - at);
}

int gy_jj_replace(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *old, const gy_jj_val *with, int64_t most,
                  gy_jj_val *out) {
    gy_jj_buf b = {0};
    size_t done = 0;
    int64_t hit;
    if (!old->u.str->len) return replace_empty(r, str, with, most, &b) ? -1 : gy_jj_take(r, &b, out);
    if (gy_jj_step(r, str->u.str->len / 64)) return -1;
    for (; most != 0; most--) {
        const char *s = str->u.str->s;
        size_t len = str->u.str->len;
        const char *at =
            old->u.str->len <= len - done ? memmem(s + done, len - done, old->u.str->s, old->u.str->len) : NULL;
        hit = at ? at - s : -1;
        if (hit < 0) break;
        if (gy_jj_put_sub(r, &b, str, done, (size_t)hit - done) || gy_jj_put_str(r, &b, with) || gy_jj_step(r, 1))
            return -1;
        done = (size_t)hit + old->u.str->len;
    }
    if (done == 0) {
        *out = *str;
        return 0;
    }
    return gy_jj_put_sub(r, &b, str, done, str->u.str->len - done) ? -1 : gy_jj_take(r, &b, out);
}

int gy_jj_affix(const gy_jj_val *str, const gy_jj_val *what, int at_end) {
    const gy_jj_text *t = str->u.str, *w = what->u.str;
    if (w->len > t->len) return 0;
    return !w->len || memcmp(t->s + (at_end ? t->len - w->len : 0), w->s, w->len) == 0;
}

/* as_str: items of any type, as the filter takes them; without it they must be strings, as str.join wants. */
int gy_jj_join(gy_jj_run *r, const gy_jj_val *sep, const gy_jj_list *items, int as_str, gy_jj_val *out) {
    gy_jj_buf b = {0};
    for (size_t i = 0; i < items->n; i++) {
        if (!as_str && items->v[i].type != GY_JJ_STR)
            return gy_jj_fail(r, GY_E_ARG, "join: item %zu is of type '%s', expected a string", i,
                              gy_jj_type_name(&items->v[i]));
        if ((i && gy_jj_put_str(r, &b, sep)) || gy_jj_put_val(r, &b, &items->v[i])) return -1;
    }
    return gy_jj_take(r, &b, out);
}

static int put_fill(gy_jj_run *r, gy_jj_buf *b, int64_t n, const gy_jj_val *fill) {
    for (; n > 0; n--)
        if (fill ? gy_jj_put_str(r, b, fill) : gy_jj_put(r, b, " ", 1, GY_JJ_MARKUP)) return -1;
    return 0;
}

int gy_jj_pad(gy_jj_run *r, const gy_jj_val *str, int64_t width, unsigned sides, const gy_jj_val *fill,
              gy_jj_val *out) {
    int64_t have = (int64_t)gy_jj_n_char(str), more = width > have ? width - have : 0;
    int64_t left = sides == GY_JJ_LEFT ? 0 : sides == GY_JJ_RIGHT ? more : more / 2 + (more & width & 1);
    gy_jj_buf b = {0};
    if (put_fill(r, &b, left, fill) || gy_jj_put_str(r, &b, str) || put_fill(r, &b, more - left, fill)) return -1;
    return gy_jj_take(r, &b, out);
}

/* ---- "%s" % value ---- */

typedef struct percent {
    int left, zero, plus;
    int64_t width, precision; /* precision -1: none */
    char conv;
} percent;

static int64_t read_number(const gy_jj_text *t, size_t *at) {
    int64_t n = 0;
    for (; *at < t->len && t->s[*at] >= '0' && t->s[*at] <= '9'; ++*at)
        if (n < 1000000) n = n * 10 + (t->s[*at] - '0');
    return n;
}

/* Behind the percent sign at t->s[*at]. */
static percent read_percent(const gy_jj_text *t, size_t *at) {
    percent p = {.precision = -1};
    for (; *at < t->len && strchr("-0+ #", t->s[*at]) && t->s[*at]; ++*at) {
        p.left |= t->s[*at] == '-';
        p.zero |= t->s[*at] == '0';
        p.plus |= t->s[*at] == '+';
    }
    p.width = read_number(t, at);
    if (*at < t->len && t->s[*at] == '.') {
        ++*at;
        p.precision = read_number(t, at);
    }
    if (*at < t->len) p.conv = t->s[(*at)++];
    return p;
}

static int percent_number(gy_jj_run *r, const percent *p, const gy_jj_val *v, gy_jj_buf *b) {
    char text[400], fmt[16];
    if (!gy_jj_is_num(v))
        return gy_jj_fail(r, GY_E_ARG, "%%%c needs a number, not a value of type '%s'", p->conv, gy_jj_type_name(v));
    int digits = p->precision < 0 || p->precision > 60 ? 6 : (int)p->precision;
    double d = gy_jj_num(v);
    if (p->conv == 'd' || p->conv == 'i') {
        if (!(fabs(d) < 9e18)) return gy_jj_fail(r, GY_E_ARG, "%%d of a number beyond 64 bits");
        long long i = v->type == GY_JJ_REAL ? (long long)d : (long long)v->u.i;
        snprintf(text, sizeof text, p->plus ? "%+lld" : "%lld", i);
    } else if (p->conv == 'x' || p->conv == 'X') {
        if (v->type == GY_JJ_REAL) return gy_jj_fail(r, GY_E_ARG, "%%x needs an integer");
        unsigned long long u = v->u.i < 0 ? 0 - (unsigned long long)v->u.i : (unsigned long long)v->u.i;
        snprintf(text, sizeof text, p->conv == 'x' ? "%s%llx" : "%s%llX", v->u.i < 0 ? "-" : "", u);
    } else {
        snprintf(fmt, sizeof fmt, "%%%s.*%c", p->plus ? "+" : "", p->conv);
        /* the format is one of %.*f %.*e %.*g with a plus sign or not */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, fmt, digits, d);
#pragma GCC diagnostic pop
    }
    size_t len = strlen(text), sign = text[0] == '-' || text[0] == '+';
    if (!p->zero || p->left) return gy_jj_put(r, b, text, len, v->origin);
    if (gy_jj_put(r, b, text, sign, v->origin)) return -1;
    for (int64_t i = (int64_t)len; i < p->width; i++)
        if (gy_jj_put(r, b, "0", 1, v->origin)) return -1;
    return gy_jj_put(r, b, text + sign, len - sign, v->origin);
}

static int percent_one(gy_jj_run *r, const percent *p, const gy_jj_val *v, gy_jj_buf *b) {
    gy_jj_buf one = {0};
    gy_jj_val text;
    if (p->conv && strchr("dixXfFeEgG", p->conv)) {
        if (percent_number(r, p, v, &one)) return -1;
    } else if (p->conv == 's' ? gy_jj_put_val(r, &one, v) : gy_jj_put_repr(r, &one, v))
        return -1;
    if (gy_jj_take(r, &one, &text)) return -1;
    if ((p->conv == 's' || p->conv == 'r') && p->precision >= 0 &&
        gy_jj_sub(r, &text, 0, gy_jj_char_offset(&text, (size_t)p->precision), &text))
        return -1;
    if (p->width && gy_jj_pad(r, &text, p->width, p->left ? GY_JJ_LEFT : GY_JJ_RIGHT, NULL, &text)) return -1;
    return gy_jj_put_str(r, b, &text);
}

int gy_jj_percent(gy_jj_run *r, const gy_jj_val *fmt, const gy_jj_val *args, gy_jj_val *out) {
    const gy_jj_text *t = fmt->u.str;
    size_t n_arg = args->type == GY_JJ_TUPLE ? args->u.list->n : 1, used = 0, done = 0;
    gy_jj_buf b = {0};
    for (size_t at = 0; at < t->len;) {
        if (t->s[at] != '%') {
            at++;
            continue;
        }
        if (gy_jj_put_sub(r, &b, fmt, done, at - done)) return -1;
        size_t sign = at++;
        percent p = read_percent(t, &at);
        done = at;
        if (p.conv == '%') {
            if (gy_jj_put_sub(r, &b, fmt, sign, 1)) return -1;
            continue;
        }
        if (!p.conv || !strchr("srdixXfFeEgG", p.conv))
            return gy_jj_fail(r, GY_E_ARG, "the format \"%%%c\" is not supported", p.conv ? p.conv : ' ');
        if (used == n_arg) return gy_jj_fail(r, GY_E_ARG, "not enough values for the format");
        if (percent_one(r, &p, args->type == GY_JJ_TUPLE ? &args->u.list->v[used] : args, &b)) return -1;
        used++;
    }
    if (used < n_arg && args->type != GY_JJ_DICT)
        return gy_jj_fail(r, GY_E_ARG, "more values than the format has places");
    return gy_jj_put_sub(r, &b, fmt, done, t->len - done) ? -1 : gy_jj_take(r, &b, out);
}
