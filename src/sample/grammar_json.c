/* JSON text as trees (RFC 8259), in the one layout that grammars allow: one space may follow ':' and ',' and there is
 * no other whitespace. Any string takes every escape; texts that are known (names, enums, patterns) are spelled with
 * characters as they are and the shortest escape where one is needed.
 *
 * Ranges of numbers are decimal automata: digit by digit a number is still equal to a bound, or free.
 */
#include "sample/grammar_int.h"

#include <string.h>

void gy_gj_init(gy_gjson *j, gy_gbuild *b) {
    *j = (gy_gjson){.b = b, .value = -1, .string = -1, .chr = -1};
}

/* ---- strings ---- */

static int32_t cat_of(gy_gbuild *b, const int32_t *nodes, size_t n) {
    int32_t cat = gy_gb_node(b, GY_G_CAT);
    for (size_t i = 0; i < n; i++) gy_gb_add(b, cat, nodes[i]);
    return cat;
}
#define CAT(b, ...)                                                                                                    \
    cat_of((b), (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static int32_t hex(gy_gbuild *b) {
    return gy_gb_chars(b, "0123456789ABCDEFabcdef");
}

/* Behind \u: a character of its own, or a pair of surrogates; never half a pair. */
static int32_t escape_u(gy_gbuild *b) {
    int32_t plain = CAT(b, gy_gb_chars(b, "0123456789ABCEFabcef"), hex(b), hex(b), hex(b));
    int32_t below = CAT(b, gy_gb_chars(b, "Dd"), gy_gb_range(b, '0', '7'), hex(b), hex(b));
    int32_t pair = CAT(b, gy_gb_chars(b, "Dd"), gy_gb_chars(b, "89ABab"), hex(b), hex(b), gy_gb_z(b, "\\u"),
                       gy_gb_chars(b, "Dd"), gy_gb_chars(b, "CDEFcdef"), hex(b), hex(b));
    return gy_gb_alt(b, gy_gb_alt(b, plain, below), pair);
}

/* One character of any string, shared. */
static int32_t any_char(gy_gjson *j) {
    gy_gbuild *b = j->b;
    if (j->chr < 0) {
        gy_grange raw[3] = {{' ', '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10FFFF}};
        int32_t plain = gy_gb_set(b, &(gy_gset){raw, 3, 3}, 0);
        int32_t named = gy_gb_alt(b, gy_gb_chars(b, "\"/\\bfnrt"), CAT(b, gy_gb_z(b, "u"), escape_u(b)));
        j->chr = gy_gb_alt(b, plain, CAT(b, gy_gb_z(b, "\\"), named));
    }
    return gy_gb_same(b, j->chr);
}

int32_t gy_gj_string_len(gy_gjson *j, uint32_t min, uint32_t max) {
    gy_gbuild *b = j->b;
    return CAT(b, gy_gb_z(b, "\""), gy_gb_rep(b, any_char(j), min, max), gy_gb_z(b, "\""));
}

int32_t gy_gj_string(gy_gjson *j) {
    gy_gbuild *b = j->b;
    if (j->string < 0) {
        int32_t rule = gy_gb_rule(b, "any string", 10), root = gy_gj_string_len(j, 0, GY_G_INF);
        if (b->st < 0) return 0;
        b->rules.data[rule].root = root;
        j->string = rule;
    }
    return gy_gb_call(b, (uint32_t)j->string);
}

/* One piece of a known string: as many bytes as stand for themselves, or one character that is escaped. */
static int32_t literal_piece(gy_gbuild *b, const char *s, size_t len, size_t *used_out) {
    size_t n = 0;
    while (n < len && (uint8_t)s[n] >= 0x20 && s[n] != '"' && s[n] != '\\') n++;
    *used_out = n ? n : 1;
    if (n) return gy_gb_bytes(b, s, n);
    gy_grange r = {(uint8_t)s[0], (uint8_t)s[0]};
    return gy_gb_set(b, &(gy_gset){&r, 1, 1}, 1);
}

int32_t gy_gj_literal(gy_gjson *j, const char *s, size_t len) {
    gy_gbuild *b = j->b;
    int32_t cat = CAT(b, gy_gb_z(b, "\""));
    for (size_t i = 0, used; i < len && b->st >= 0; i += used)
        gy_gb_add(b, cat, literal_piece(b, s + i, len - i, &used));
    gy_gb_add(b, cat, gy_gb_z(b, "\""));
    return cat;
}

/* ---- numbers ---- */

static int32_t digits(gy_gbuild *b, uint32_t min, uint32_t max) {
    return gy_gb_rep(b, gy_gb_range(b, '0', '9'), min, max);
}

static int32_t maybe(gy_gbuild *b, int32_t node) {
    return gy_gb_rep(b, node, 0, 1);
}

/* Natural numbers, 0 included. */
static int32_t natural(gy_gbuild *b) {
    return gy_gb_alt(b, gy_gb_z(b, "0"), CAT(b, gy_gb_range(b, '1', '9'), digits(b, 0, GY_G_INF)));
}

int32_t gy_gj_integer(gy_gjson *j) {
    gy_gbuild *b = j->b;
    return CAT(b, maybe(b, gy_gb_z(b, "-")), natural(b));
}

int32_t gy_gj_number(gy_gjson *j) {
    gy_gbuild *b = j->b;
    int32_t fraction = CAT(b, gy_gb_z(b, "."), digits(b, 1, GY_G_INF));
    int32_t power = CAT(b, gy_gb_chars(b, "Ee"), maybe(b, gy_gb_chars(b, "+-")), digits(b, 1, GY_G_INF));
    return CAT(b, gy_gj_integer(j), maybe(b, fraction), maybe(b, power));
}

/* ---- ranges of natural numbers ---- */

typedef struct decimal {
    int n;
    char d[24];
} decimal;

static decimal decimal_of(uint64_t v) {
    decimal r = {0};
    char rev[24];
    do {
        rev[r.n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    for (int i = 0; i < r.n; i++) r.d[i] = rev[r.n - 1 - i];
    return r;
}

static int32_t digit_between(gy_gbuild *b, int lo, int hi) {
    return lo > hi ? gy_gb_node(b, GY_G_FAIL) : gy_gb_range(b, (uint32_t)lo, (uint32_t)hi);
}

/* Digits from place i on that are at least (up) or at most those of a; built from the last place. */
static int32_t tail_bound(gy_gbuild *b, const decimal *a, int i, int up) {
    int32_t node = gy_gb_node(b, GY_G_EMPTY);
    for (int k = a->n - 1; k >= i; k--) {
        int32_t equal = CAT(b, gy_gb_bytes(b, &a->d[k], 1), node);
        int32_t other = up ? digit_between(b, a->d[k] + 1, '9') : digit_between(b, '0', a->d[k] - 1);
        uint32_t left = (uint32_t)(a->n - 1 - k);
        node = gy_gb_alt(b, equal, CAT(b, other, digits(b, left, left)));
    }
    return node;
}

/* Numbers of the same count of digits, a <= x <= z. */
static int32_t same_length(gy_gbuild *b, const decimal *a, const decimal *z) {
    int i = 0;
    while (i < a->n && a->d[i] == z->d[i]) i++;
    int32_t head = gy_gb_bytes(b, a->d, (size_t)i);
    if (i == a->n) return head;
    uint32_t left = (uint32_t)(a->n - 1 - i);
    int32_t low = CAT(b, gy_gb_bytes(b, &a->d[i], 1), tail_bound(b, a, i + 1, 1));
    int32_t high = CAT(b, gy_gb_bytes(b, &z->d[i], 1), tail_bound(b, z, i + 1, 0));
    int32_t middle = CAT(b, digit_between(b, a->d[i] + 1, z->d[i] - 1), digits(b, left, left));
    return CAT(b, head, gy_gb_alt(b, gy_gb_alt(b, low, high), middle));
}

static decimal all_digits(int n, char first, char rest) {
    decimal r = {.n = n};
    memset(r.d, rest, (size_t)n);
    r.d[0] = first;
    return r;
}

/* lo <= x <= hi; hi 0xFF..: no upper bound. Nothing when lo > hi. */
static int32_t natural_in(gy_gbuild *b, uint64_t lo, uint64_t hi) {
    int32_t alt = gy_gb_node(b, GY_G_ALT);
    if (lo > hi) return alt;
    decimal a = decimal_of(lo), z = decimal_of(hi);
    int n = hi == UINT64_MAX ? a.n : z.n;
    for (int k = a.n; k <= n; k++) {
        decimal from = k == a.n ? a : all_digits(k, '1', '0');
        decimal to = k == z.n && hi != UINT64_MAX ? z : all_digits(k, '9', '9');
        gy_gb_add(b, alt, same_length(b, &from, &to));
    }
    if (hi == UINT64_MAX) gy_gb_add(b, alt, CAT(b, gy_gb_range(b, '1', '9'), digits(b, (uint32_t)n, GY_G_INF)));
    return alt;
}

static uint64_t magnitude(int64_t v) {
    return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

int32_t gy_gj_integer_in(gy_gjson *j, gy_gbound lo, gy_gbound hi) {
    gy_gbuild *b = j->b;
    uint64_t top = hi.on ? (uint64_t)(hi.v < 0 ? 0 : hi.v) : UINT64_MAX;
    int32_t plus =
        hi.on && hi.v < 0 ? gy_gb_node(b, GY_G_FAIL) : natural_in(b, lo.on && lo.v > 0 ? (uint64_t)lo.v : 0, top);
    if (lo.on && lo.v >= 0) return plus;
    uint64_t least = hi.on && hi.v < 0 ? magnitude(hi.v) : 1;
    return gy_gb_alt(b, plus, CAT(b, gy_gb_z(b, "-"), natural_in(b, least, lo.on ? magnitude(lo.v) : UINT64_MAX)));
}

/* ---- ranges of numbers: whole bounds, no exponents ---- */

typedef struct span { /* of magnitudes */
    uint64_t lo, hi;
    int lo_open, hi_open, endless;
} span;

static int32_t fraction(gy_gbuild *b, int32_t digits_node) {
    return CAT(b, gy_gb_z(b, "."), digits_node);
}

static int32_t whole(gy_gbuild *b, uint64_t v) {
    decimal d = decimal_of(v);
    return gy_gb_bytes(b, d.d, (size_t)d.n);
}

static int32_t zeros(gy_gbuild *b) {
    return maybe(b, fraction(b, gy_gb_rep(b, gy_gb_z(b, "0"), 1, GY_G_INF)));
}

/* A fraction that is not zero. */
static int32_t more(gy_gbuild *b) {
    return fraction(b, CAT(b, digits(b, 0, GY_G_INF), gy_gb_range(b, '1', '9'), digits(b, 0, GY_G_INF)));
}

static int32_t span_node(gy_gbuild *b, span s) {
    int32_t alt = gy_gb_node(b, GY_G_ALT);
    if (!s.endless && s.lo > s.hi) return alt;
    int32_t any = maybe(b, fraction(b, digits(b, 1, GY_G_INF)));
    if (!s.endless && s.lo == s.hi) {
        if (!s.lo_open && !s.hi_open) gy_gb_add(b, alt, CAT(b, whole(b, s.lo), zeros(b)));
        return alt;
    }
    gy_gb_add(b, alt, CAT(b, whole(b, s.lo), s.lo_open ? more(b) : any));
    if (s.endless || s.hi - s.lo > 1) {
        any = maybe(b, fraction(b, digits(b, 1, GY_G_INF)));
        gy_gb_add(b, alt, CAT(b, natural_in(b, s.lo + 1, s.endless ? UINT64_MAX : s.hi - 1), any));
    }
    if (!s.endless && !s.hi_open) gy_gb_add(b, alt, CAT(b, whole(b, s.hi), zeros(b)));
    return alt;
}

int32_t gy_gj_number_in(gy_gjson *j, gy_gbound lo, gy_gbound hi) {
    gy_gbuild *b = j->b;
    span plus = {.endless = !hi.on, .hi = magnitude(hi.v), .hi_open = hi.open};
    if (lo.on && lo.v >= 0) {
        plus.lo = (uint64_t)lo.v;
        plus.lo_open = lo.open;
    }
    int32_t up = hi.on && hi.v < 0 ? gy_gb_node(b, GY_G_FAIL) : span_node(b, plus);
    if (lo.on && lo.v >= 0) return up;
    span minus = {.endless = !lo.on, .hi = magnitude(lo.v), .hi_open = lo.open};
    if (hi.on && hi.v <= 0) {
        minus.lo = magnitude(hi.v);
        minus.lo_open = hi.open;
    }
    return gy_gb_alt(b, up, CAT(b, gy_gb_z(b, "-"), span_node(b, minus)));
}

/* ---- objects and any value ---- */

int32_t gy_gj_member(gy_gjson *j, int32_t key, int32_t value) {
    gy_gbuild *b = j->b;
    return CAT(b, key, gy_gb_z(b, ":"), maybe(b, gy_gb_z(b, " ")), value);
}

int32_t gy_gj_object(gy_gjson *j, int32_t key, int32_t value) {
    gy_gbuild *b = j->b;
    int32_t list = gy_gb_node(b, GY_G_LIST);
    gy_gb_add(b, list, gy_gj_member(j, key, value));
    return CAT(b, gy_gb_z(b, "{"), maybe(b, list), gy_gb_z(b, "}"));
}

static int32_t any_object(gy_gjson *j) {
    return gy_gj_object(j, gy_gj_string_len(j, 0, GY_G_INF), gy_gb_call(j->b, (uint32_t)j->value));
}

static int32_t any_array(gy_gjson *j) {
    gy_gbuild *b = j->b;
    int32_t list = gy_gb_node(b, GY_G_LIST);
    gy_gb_add(b, list, gy_gb_call(b, (uint32_t)j->value));
    return CAT(b, gy_gb_z(b, "["), maybe(b, list), gy_gb_z(b, "]"));
}

int32_t gy_gj_value(gy_gjson *j) {
    gy_gbuild *b = j->b;
    if (j->value < 0) {
        int32_t rule = gy_gb_rule(b, "any value", 9);
        if (b->st < 0) return 0;
        j->value = rule;
        int32_t alt = gy_gb_node(b, GY_G_ALT);
        gy_gb_add(b, alt, any_object(j));
        gy_gb_add(b, alt, any_array(j));
        gy_gb_add(b, alt, gy_gj_string_len(j, 0, GY_G_INF));
        gy_gb_add(b, alt, gy_gj_number(j));
        gy_gb_add(b, alt, gy_gb_z(b, "true"));
        gy_gb_add(b, alt, gy_gb_z(b, "false"));
        gy_gb_add(b, alt, gy_gb_z(b, "null"));
        if (b->st < 0) return 0;
        b->rules.data[rule].root = alt;
    }
    return gy_gb_call(b, (uint32_t)j->value);
}

void gy_g_object(gy_gbuild *b) {
    gy_gjson j;
    gy_gj_init(&j, b);
    gy_gb_rule(b, "root", 4);
    gy_gj_value(&j);
    if (b->st < 0) return;
    int32_t root = any_object(&j);
    if (b->st >= 0) b->rules.data[0].root = root;
}
