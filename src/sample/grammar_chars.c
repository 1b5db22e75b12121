/* What regular expressions and EBNF have in common: escapes, classes, quantifiers, and groups on a stack of our own,
 * so that 60,000 open brackets are an error message and not a stack overflow.
 *
 * \d \w \s and their negations are ASCII in both, whatever a library's Unicode mode would say.
 */
#include "sample/grammar_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int gy_gt_peek(const gy_gtext *t) {
    return t->at < t->len && t->b->st >= 0 ? (uint8_t)t->s[t->at] : -1;
}

int gy_gt_is(const gy_gtext *t, const char *z) {
    size_t n = strlen(z);
    return t->b->st >= 0 && t->len - t->at >= n && !memcmp(t->s + t->at, z, n);
}

void gy_gt_fail(gy_gtext *t, gy_status st, const char *fmt, ...) {
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    gy_gb_fail(t->b, st, "%s: at byte %zu: %s", t->what, t->at, msg);
}

uint32_t gy_gt_codepoint(gy_gtext *t) {
    if (gy_gt_peek(t) < 0) {
        gy_gt_fail(t, GY_E_ARG, "found the end of the text; expected a character");
        return 0;
    }
    uint32_t c;
    int n = gy_utf8_decode(t->s + t->at, t->len - t->at, &c);
    if (c > 0x10FFFF) {
        gy_gt_fail(t, GY_E_ARG, "found byte 0x%02X, which is not UTF-8", (unsigned)(uint8_t)t->s[t->at]);
        return 0;
    }
    t->at += (size_t)n;
    return c;
}

/* ---- escapes ---- */

static int hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* n digits, or with n 0 one to six of them up to '}'. */
static uint32_t escape_hex(gy_gtext *t, int n) {
    uint32_t v = 0;
    int i = 0;
    for (; i < (n ? n : 6) && hex_digit(gy_gt_peek(t)) >= 0; i++)
        v = v * 16 + (uint32_t)hex_digit(t->s[t->at++] & 0xFF);
    if (n ? i < n : i == 0 || gy_gt_peek(t) != '}')
        gy_gt_fail(t, GY_E_ARG,
                   n ? "expected %d hexadecimal digits in the escape" : "expected hexadecimal digits and '}'", n);
    if (!n) t->at++;
    return v;
}

/* \uD83D\uDE00: two halves are one character, a half alone is none. */
static uint32_t escape_u(gy_gtext *t) {
    if (gy_gt_is(t, "{")) {
        t->at++;
        return escape_hex(t, 0);
    }
    uint32_t v = escape_hex(t, 4);
    if (v >= 0xD800 && v <= 0xDBFF && gy_gt_is(t, "\\u")) {
        t->at += 2;
        uint32_t low = escape_hex(t, 4);
        if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    }
    return v;
}

static uint32_t escape_x(gy_gtext *t) {
    if (!gy_gt_is(t, "{")) return escape_hex(t, 2);
    t->at++;
    return escape_hex(t, 0);
}

static void class_letter(gy_gtext *t, int c, gy_gset *set) {
    gy_gset s = {0};
    int low = c | 0x20;
    if (low == 'd' || low == 'w') gy_gset_add(t->b, &s, '0', '9');
    if (low == 'w') {
        gy_gset_add(t->b, &s, 'A', 'Z');
        gy_gset_add(t->b, &s, '_', '_');
        gy_gset_add(t->b, &s, 'a', 'z');
    }
    if (low == 's') {
        gy_gset_add(t->b, &s, '\t', '\r');
        gy_gset_add(t->b, &s, ' ', ' ');
    }
    if (c != low) gy_gset_negate(t->b, &s);
    for (size_t i = 0; i < s.len; i++) gy_gset_add(t->b, set, s.data[i].lo, s.data[i].hi);
    gy_vec_free(&s);
}

static void escape_refuse(gy_gtext *t, int c) {
    if (c >= '1' && c <= '9')
        gy_gt_fail(t, GY_E_UNSUPPORTED, "back reference \\%c is not supported: texts are matched in linear time", c);
    else if (c == 'k')
        gy_gt_fail(t, GY_E_UNSUPPORTED, "back reference \\k is not supported: texts are matched in linear time");
    else if (c == 'b' || c == 'B')
        gy_gt_fail(t, GY_E_UNSUPPORTED, "word boundary \\%c is not supported", c);
    else if (c == 'p' || c == 'P')
        gy_gt_fail(t, GY_E_UNSUPPORTED, "Unicode property \\%c is not supported; write the ranges", c);
    else if (c == 'A' || c == 'Z' || c == 'z' || c == 'G')
        gy_gt_fail(t, GY_E_UNSUPPORTED, "anchor \\%c is not supported; use ^ and $ at the ends", c);
    else
        gy_gt_fail(t, GY_E_UNSUPPORTED, "escape \\%c is not supported", c);
}

uint32_t gy_gt_escape(gy_gtext *t, gy_gset *set) {
    static const char from[] = "nrtfvae0", to[] = {'\n', '\r', '\t', '\f', '\v', 7, 27, 0};
    int c = gy_gt_peek(t);
    if (c < 0 || c >= 0x80 || c < 0x20) return gy_gt_codepoint(t); /* the end: fails */
    t->at++;
    const char *known = strchr(from, c);
    uint32_t v = (uint32_t)c;
    if (known) {
        v = (uint32_t)to[known - from];
        if (c == '0' && gy_gt_peek(t) >= '0' && gy_gt_peek(t) <= '9') escape_refuse(t, c);
    } else if (strchr("dDwWsS", c)) {
        class_letter(t, c, set);
        v = GY_G_INF;
    } else if (c == 'x') {
        v = escape_x(t);
    } else if (c == 'u') {
        v = escape_u(t);
    } else if (c == 'U') {
        v = escape_hex(t, 8);
    } else if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        escape_refuse(t, c);
    }
    if (v != GY_G_INF && (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)))
        gy_gt_fail(t, GY_E_ARG, "found U+%04X, which is no character", v);
    return v;
}

/* ---- classes ---- */

/* One end of a range: GY_G_INF when it was a class letter, which went to set. */
static uint32_t class_end(gy_gtext *t, gy_gset *set) {
    if (gy_gt_is(t, "[:")) {
        gy_gt_fail(t, GY_E_UNSUPPORTED, "POSIX class [: is not supported; write the ranges");
        return 0;
    }
    if (!gy_gt_is(t, "\\")) return gy_gt_codepoint(t);
    t->at++;
    return gy_gt_escape(t, set);
}

static void class_item(gy_gtext *t, gy_gset *set) {
    uint32_t lo = class_end(t, set), hi = lo;
    if (gy_gt_is(t, "-") && !gy_gt_is(t, "-]")) {
        size_t at = t->at++;
        hi = class_end(t, set);
        if (lo == GY_G_INF || hi == GY_G_INF || hi < lo) {
            t->at = at;
            gy_gt_fail(t, GY_E_ARG, "found a range that has no order; expected the lower character first");
        }
    }
    if (lo != GY_G_INF) gy_gset_add(t->b, set, lo, hi);
}

int32_t gy_gt_class(gy_gtext *t, int json) {
    gy_gset set = {0};
    size_t begin = t->at;
    int negate = gy_gt_is(t, "^");
    if (negate) t->at++;
    if (gy_gt_is(t, "]")) gy_gt_fail(t, GY_E_ARG, "found an empty class; write \\] for the bracket itself");
    while (gy_gt_peek(t) >= 0 && !gy_gt_is(t, "]")) class_item(t, &set);
    if (t->b->st >= 0 && t->at == t->len) {
        t->at = begin;
        gy_gt_fail(t, GY_E_ARG, "found a class without its end; expected ']'");
    }
    t->at++;
    gy_gset_tidy(&set);
    if (negate) gy_gset_negate(t->b, &set);
    int32_t n = gy_gb_set(t->b, &set, json);
    gy_vec_free(&set);
    return n;
}

/* ---- quantifiers ---- */

static uint32_t quantifier_number(gy_gtext *t) {
    uint64_t v = 0;
    while (gy_gt_peek(t) >= '0' && gy_gt_peek(t) <= '9') {
        v = v * 10 + (uint64_t)(t->s[t->at++] - '0');
        if (v > GY_GRAMMAR_MAX_REPEAT) {
            gy_gt_fail(t, GY_E_LIMIT, "found a repetition count above %d", GY_GRAMMAR_MAX_REPEAT);
            return 0;
        }
    }
    return (uint32_t)v;
}

/* {m} {m,} {m,n}: the shape that is not one of these is no quantifier. */
static int quantifier_has_shape(const gy_gtext *t) {
    size_t i = t->at + 1, digits = i;
    while (i < t->len && t->s[i] >= '0' && t->s[i] <= '9') i++;
    if (i == digits) return 0;
    if (i < t->len && t->s[i] == ',')
        for (i++; i < t->len && t->s[i] >= '0' && t->s[i] <= '9';) i++;
    return i < t->len && t->s[i] == '}';
}

static void quantifier_braces(gy_gtext *t, uint32_t *min, uint32_t *max) {
    size_t begin = t->at++;
    *min = *max = quantifier_number(t);
    if (gy_gt_is(t, ",")) {
        t->at++;
        *max = gy_gt_is(t, "}") ? GY_G_INF : quantifier_number(t);
    }
    t->at++;
    if (*max < *min) {
        t->at = begin;
        gy_gt_fail(t, GY_E_ARG, "found {%u,%u}; expected the lower count first", *min, *max);
    }
}

int gy_gt_quantifier(gy_gtext *t, uint32_t *min, uint32_t *max) {
    int c = gy_gt_peek(t);
    if (c == '{' && quantifier_has_shape(t)) {
        quantifier_braces(t, min, max);
        return 1;
    }
    if (c != '*' && c != '+' && c != '?') return 0;
    t->at++;
    *min = c == '+';
    *max = c == '?' ? 1 : GY_G_INF;
    return 1;
}

/* ---- groups ---- */

int gy_gg_open(gy_gtext *t, gy_ggroups *s) {
    if (s->n > GY_GRAMMAR_MAX_NEST) {
        gy_gt_fail(t, GY_E_LIMIT, "found groups nested more than %d deep", GY_GRAMMAR_MAX_NEST);
        return 0;
    }
    int32_t alt = gy_gb_node(t->b, GY_G_ALT), cat = gy_gb_node(t->b, GY_G_CAT);
    s->g[s->n++] = (gy_ggroup){alt, cat, -1};
    return t->b->st >= 0;
}

/* The last item stays outside the sequence until the next one comes, for a quantifier to wrap it. */
static void group_settle(gy_gtext *t, gy_ggroups *s) {
    gy_ggroup *g = &s->g[s->n - 1];
    if (g->item >= 0) gy_gb_add(t->b, g->cat, g->item);
    g->item = -1;
}

void gy_gg_item(gy_gtext *t, gy_ggroups *s, int32_t node) {
    group_settle(t, s);
    s->g[s->n - 1].item = node;
}

void gy_gg_repeat(gy_gtext *t, gy_ggroups *s, uint32_t min, uint32_t max) {
    gy_ggroup *g = &s->g[s->n - 1];
    if (g->item < 0) {
        gy_gt_fail(t, GY_E_ARG, "found a quantifier with nothing before it that it could repeat");
        return;
    }
    int32_t rep = gy_gb_rep(t->b, g->item, min, max);
    g->item = -1;
    gy_gb_add(t->b, g->cat, rep);
}

void gy_gg_bar(gy_gtext *t, gy_ggroups *s) {
    group_settle(t, s);
    gy_ggroup *g = &s->g[s->n - 1];
    gy_gb_add(t->b, g->alt, g->cat);
    g->cat = gy_gb_node(t->b, GY_G_CAT);
}

int32_t gy_gg_close(gy_gtext *t, gy_ggroups *s) {
    group_settle(t, s);
    gy_ggroup g = s->g[--s->n];
    gy_gb_add(t->b, g.alt, g.cat);
    return g.alt;
}
