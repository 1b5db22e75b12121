/* Regular expressions: the part that a finite automaton can match, with the syntax that Python, PCRE and ECMAScript
 * agree on. docs/grammar.md lists it. What is not in it is refused by its name, never taken for something else.
 *
 * Anchors are allowed where they say what is so anyway: '^' at the begin and '$' at the end of the whole expression or
 * of one of its outermost alternatives. A search (the schema keyword `pattern`) puts "anything" where none stands.
 */
#include "sample/grammar_int.h"

#include <string.h>

typedef struct regex {
    gy_gtext t;
    gy_ggroups groups;
    int search, json;
    int anchored_end; /* '$' was read in this outermost alternative: nothing may follow */
    size_t begin;     /* of this outermost alternative */
} regex;

static int32_t set_all(gy_gbuild *b, int json) {
    gy_grange r = {0, 0x10FFFF};
    return gy_gb_set(b, &(gy_gset){&r, 1, 1}, json);
}

static int32_t set_dot(gy_gbuild *b, int json) {
    gy_grange r[2] = {{0, '\n' - 1}, {'\n' + 1, 0x10FFFF}};
    return gy_gb_set(b, &(gy_gset){r, 2, 2}, json);
}

static int32_t set_one(gy_gbuild *b, uint32_t c, int json) {
    gy_grange r = {c, c};
    return gy_gb_set(b, &(gy_gset){&r, 1, 1}, json);
}

static void anything_put(regex *x) {
    if (!x->search) return;
    int32_t all = set_all(x->t.b, x->json);
    gy_gg_item(&x->t, &x->groups, all);
    gy_gg_repeat(&x->t, &x->groups, 0, GY_G_INF);
}

/* ---- groups ---- */

static void group_name_skip(regex *x) {
    while (gy_gt_peek(&x->t) >= 0 && !gy_gt_is(&x->t, ">")) x->t.at++;
    if (!gy_gt_is(&x->t, ">")) gy_gt_fail(&x->t, GY_E_ARG, "found a group's name without its end; expected '>'");
    x->t.at++;
}

static void group_kind(regex *x) {
    gy_gtext *t = &x->t;
    if (!gy_gt_is(t, "?")) return;
    if (gy_gt_is(t, "?:"))
        t->at += 2;
    else if (gy_gt_is(t, "?=") || gy_gt_is(t, "?!"))
        gy_gt_fail(t, GY_E_UNSUPPORTED, "lookahead (%.2s is not supported", t->s + t->at);
    else if (gy_gt_is(t, "?<=") || gy_gt_is(t, "?<!"))
        gy_gt_fail(t, GY_E_UNSUPPORTED, "lookbehind (%.3s is not supported", t->s + t->at);
    else if (gy_gt_is(t, "?>"))
        gy_gt_fail(t, GY_E_UNSUPPORTED, "atomic group (?> is not supported");
    else if (gy_gt_is(t, "?P=") || gy_gt_is(t, "?P>") || gy_gt_is(t, "?&") || gy_gt_is(t, "?R"))
        gy_gt_fail(t, GY_E_UNSUPPORTED, "reference to a group (?%c is not supported", t->s[t->at + 1]);
    else if (gy_gt_is(t, "?P<") || gy_gt_is(t, "?<"))
        group_name_skip(x);
    else
        gy_gt_fail(t, GY_E_UNSUPPORTED, "group that begins with (?%.1s is not supported (flags, conditions, comments)",
                   t->at + 1 < t->len ? t->s + t->at + 1 : "");
}

static void group_close(regex *x) {
    if (x->groups.n == 1) {
        x->t.at--;
        gy_gt_fail(&x->t, GY_E_ARG, "found ')' without its '('; write \\) for the bracket itself");
        return;
    }
    int32_t node = gy_gg_close(&x->t, &x->groups);
    gy_gg_item(&x->t, &x->groups, node);
}

/* ---- anchors ---- */

static int at_alternative_end(const regex *x) {
    return x->t.at == x->t.len || x->t.s[x->t.at] == '|';
}

static void anchor(regex *x, int c) {
    gy_gtext *t = &x->t;
    size_t at = t->at - 1;
    int fine = x->groups.n == 1 && (c == '^' ? at == x->begin : at_alternative_end(x));
    if (!fine) {
        t->at = at;
        gy_gt_fail(t, GY_E_UNSUPPORTED,
                   "anchor %c is supported only at the %s of the expression; write \\%c for the character", c,
                   c == '^' ? "begin" : "end", c);
        return;
    }
    if (c == '$') x->anchored_end = 1;
}

static void alternative_begin(regex *x) {
    x->begin = x->t.at;
    x->anchored_end = 0;
    if (!gy_gt_is(&x->t, "^")) anything_put(x);
}

static void alternative_end(regex *x) {
    if (!x->anchored_end) anything_put(x);
}

static void bar(regex *x) {
    int outer = x->groups.n == 1;
    if (outer) alternative_end(x);
    gy_gg_bar(&x->t, &x->groups);
    if (outer) alternative_begin(x);
}

/* ---- items ---- */

static void escape(regex *x) {
    gy_gset set = {0};
    uint32_t c = gy_gt_escape(&x->t, &set);
    if (c == GY_G_INF) {
        gy_gset_tidy(&set);
        gy_gg_item(&x->t, &x->groups, gy_gb_set(x->t.b, &set, x->json));
    } else {
        gy_gg_item(&x->t, &x->groups, set_one(x->t.b, c, x->json));
    }
    gy_vec_free(&set);
}

/* A lazy quantifier matches the same whole texts; a possessive one does not. */
static void quantifier(regex *x, uint32_t min, uint32_t max) {
    gy_gg_repeat(&x->t, &x->groups, min, max);
    if (gy_gt_is(&x->t, "+"))
        gy_gt_fail(&x->t, GY_E_UNSUPPORTED, "possessive quantifier is not supported");
    else if (gy_gt_is(&x->t, "?"))
        x->t.at++;
}

static void item(regex *x) {
    gy_gtext *t = &x->t;
    uint32_t min, max;
    if (gy_gt_quantifier(t, &min, &max)) {
        quantifier(x, min, max);
        return;
    }
    uint32_t c = gy_gt_codepoint(t);
    if (c == '(') {
        if (gy_gg_open(t, &x->groups)) group_kind(x);
    } else if (c == ')') {
        group_close(x);
    } else if (c == '|') {
        bar(x);
    } else if (c == '[') {
        gy_gg_item(t, &x->groups, gy_gt_class(t, x->json));
    } else if (c == '.') {
        gy_gg_item(t, &x->groups, set_dot(t->b, x->json));
    } else if (c == '\\') {
        escape(x);
    } else if (c == '^' || c == '$') {
        anchor(x, (int)c);
    } else {
        gy_gg_item(t, &x->groups, set_one(t->b, c, x->json));
    }
}

int32_t gy_g_pattern(gy_gbuild *b, const char *text, size_t len, int search, int json) {
    regex x = {.t = {.b = b, .what = "regex", .s = text, .len = len}, .search = search, .json = json};
    gy_gg_open(&x.t, &x.groups);
    alternative_begin(&x);
    while (gy_gt_peek(&x.t) >= 0) item(&x);
    if (b->st < 0) return 0;
    if (x.groups.n > 1) {
        gy_gt_fail(&x.t, GY_E_ARG, "found the end of the text with %d groups open; expected ')'", x.groups.n - 1);
        return 0;
    }
    alternative_end(&x);
    return gy_gg_close(&x.t, &x.groups);
}

void gy_g_regex(gy_gbuild *b, const char *text, size_t len) {
    gy_gb_rule(b, "root", 4);
    int32_t root = gy_g_pattern(b, text, len, 0, 0);
    if (b->st >= 0) b->rules.data[0].root = root;
}
