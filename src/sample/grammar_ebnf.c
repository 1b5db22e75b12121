/* An EBNF in the manner of GBNF:
 *
 *     root  ::= item ("," item){0,3} # the rule named root is the grammar
 *     item  ::= [a-z]+ | "(" root ")" | .
 *
 * Names are letters, digits, '_' and '-'; texts stand in "" or ''; a rule ends where the next `name ::=` begins, so
 * line ends mean nothing. Each rule is defined once; what is used is defined. '.' is any character, line ends too.
 */
#include "sample/grammar_int.h"

#include <string.h>

typedef struct ebnf {
    gy_gtext t;
    gy_ggroups groups;
    GY_VEC(size_t) used_at; /* [rule] where it was named first, for the message when nothing defines it */
    gy_vec_i32 by_hash;     /* open addressing: rule or -1 */
} ebnf;

enum { NAMES = 1 << 14 }; /* more than twice the rules */

static int is_name(int c, int first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '-'));
}

static void skip_space(gy_gtext *t) {
    for (int c = gy_gt_peek(t); c >= 0; c = gy_gt_peek(t)) {
        if (c == '#')
            while (t->at < t->len && t->s[t->at] != '\n') t->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            t->at++;
        else
            return;
    }
}

static size_t name_len(const gy_gtext *t) {
    size_t i = t->at;
    while (i < t->len && is_name(t->s[i], i == t->at)) i++;
    return i - t->at;
}

/* Is what stands here the head of a rule? Leaves `at` alone. */
static int at_head(const gy_gtext *t, size_t n) {
    gy_gtext look = *t;
    look.at += n;
    skip_space(&look);
    return gy_gt_is(&look, "::=");
}

/* The rule of this name, made when it is new. */
static int32_t rule_of(ebnf *e, const char *name, size_t len, size_t at) {
    gy_gbuild *b = e->t.b;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)name[i]) * 16777619u;
    for (h %= NAMES; e->by_hash.data[h] >= 0; h = (h + 1) % NAMES) {
        const char *z = gy_gb_rule_name(b, (uint32_t)e->by_hash.data[h]);
        if (strlen(z) == len && !memcmp(z, name, len)) return e->by_hash.data[h];
    }
    int32_t r = gy_gb_rule(b, name, len);
    if (b->st >= 0 && gy_vec_push(&e->used_at, GY_MEM_SAMPLE, at)) gy_gb_nomem(b);
    if (b->st >= 0) e->by_hash.data[h] = r;
    return r;
}

/* ---- items ---- */

static void literal(ebnf *e, int quote) {
    gy_gtext *t = &e->t;
    size_t begin = t->at - 1;
    gy_gset none = {0};
    gy_str s = {0};
    while (gy_gt_peek(t) >= 0 && gy_gt_peek(t) != quote) {
        uint32_t c = gy_gt_codepoint(t);
        if (c == '\\') c = gy_gt_escape(t, &none);
        if (c == GY_G_INF) gy_gt_fail(t, GY_E_ARG, "found a class inside a text; write it outside of the quotes");
        gy_str_put_utf8(&s, c);
    }
    if (t->b->st >= 0 && t->at == t->len) {
        t->at = begin;
        gy_gt_fail(t, GY_E_ARG, "found a text without its end; expected %c", quote);
    }
    t->at++;
    if (s.failed) gy_gb_nomem(t->b);
    gy_gg_item(t, &e->groups, gy_gb_bytes(t->b, gy_str_z(&s), s.len));
    gy_vec_free(&none);
    gy_str_free(&s);
}

static void group_close(ebnf *e) {
    if (e->groups.n == 1) {
        e->t.at--;
        gy_gt_fail(&e->t, GY_E_ARG, "found ')' without its '('");
        return;
    }
    int32_t node = gy_gg_close(&e->t, &e->groups);
    gy_gg_item(&e->t, &e->groups, node);
}

static void item_name(ebnf *e) {
    gy_gtext *t = &e->t;
    size_t n = name_len(t);
    int32_t rule = rule_of(e, t->s + t->at, n, t->at);
    t->at += n;
    gy_gg_item(t, &e->groups, gy_gb_call(t->b, (uint32_t)rule));
}

static void item(ebnf *e) {
    gy_gtext *t = &e->t;
    uint32_t min, max;
    if (gy_gt_quantifier(t, &min, &max)) {
        gy_gg_repeat(t, &e->groups, min, max);
        return;
    }
    int c = gy_gt_peek(t);
    if (is_name(c, 1)) {
        item_name(e);
        return;
    }
    t->at++;
    if (c == '(') {
        gy_gg_open(t, &e->groups);
    } else if (c == ')') {
        group_close(e);
    } else if (c == '|') {
        gy_gg_bar(t, &e->groups);
    } else if (c == '[') {
        gy_gg_item(t, &e->groups, gy_gt_class(t, 0));
    } else if (c == '.') {
        gy_gg_item(t, &e->groups, gy_gb_range(t->b, 0, 0x10FFFF));
    } else if (c == '"' || c == '\'') {
        literal(e, c);
    } else {
        t->at--;
        uint32_t found = gy_gt_codepoint(t);
        gy_gt_fail(t, GY_E_ARG, "found U+%04X; expected a text, a class, a name, a group, '|' or a quantifier", found);
    }
}

/* ---- rules ---- */

static void rule(ebnf *e) {
    gy_gtext *t = &e->t;
    gy_gbuild *b = t->b;
    size_t n = name_len(t);
    if (n == 0 || !at_head(t, n)) {
        gy_gt_fail(t, GY_E_ARG, "expected a rule: name ::= ...");
        return;
    }
    int32_t r = rule_of(e, t->s + t->at, n, t->at);
    if (b->st >= 0 && b->rules.data[r].root >= 0)
        gy_gt_fail(t, GY_E_ARG, "found a second definition of '%.100s'; join them with '|'",
                   gy_gb_rule_name(b, (uint32_t)r));
    t->at += n;
    skip_space(t);
    t->at += 3;
    gy_gg_open(t, &e->groups);
    for (skip_space(t); gy_gt_peek(t) >= 0; skip_space(t)) {
        n = name_len(t);
        if (n && at_head(t, n)) break;
        item(e);
    }
    if (b->st < 0) return;
    if (e->groups.n > 1)
        gy_gt_fail(t, GY_E_ARG, "found the end of a rule with %d groups open; expected ')'", e->groups.n - 1);
    int32_t root = gy_gg_close(t, &e->groups);
    if (b->st >= 0) b->rules.data[r].root = root;
}

static void undefined_refuse(ebnf *e) {
    gy_gbuild *b = e->t.b;
    for (size_t i = 0; i < b->rules.len && b->st >= 0; i++) {
        if (b->rules.data[i].root >= 0) continue;
        e->t.at = e->used_at.data[i];
        gy_gt_fail(&e->t, GY_E_ARG,
                   i ? "no rule defines '%.100s'" : "no rule defines '%.100s', where every text begins",
                   gy_gb_rule_name(b, (uint32_t)i));
    }
}

void gy_g_ebnf(gy_gbuild *b, const char *text, size_t len) {
    ebnf e = {.t = {.b = b, .what = "grammar", .s = text, .len = len}};
    if (gy_vec_reserve(&e.by_hash, GY_MEM_SAMPLE, NAMES)) {
        gy_gb_nomem(b);
        return;
    }
    memset(e.by_hash.data, 0xFF, NAMES * sizeof *e.by_hash.data);
    rule_of(&e, "root", 4, 0);
    for (skip_space(&e.t); gy_gt_peek(&e.t) >= 0; skip_space(&e.t)) rule(&e);
    undefined_refuse(&e);
    gy_vec_free(&e.used_at);
    gy_vec_free(&e.by_hash);
}
