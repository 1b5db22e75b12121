/* Grammars against oracles that share nothing with them: regular expressions against a matcher that computes sets of
 * ends on the tree that the expression was printed from; schemas against a checker written here that walks parsed JSON
 * (patterns by the C library's regcomp); masks against trying every token; and no accepted text may be a dead end.
 */
#include "sample/grammar.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <regex.h>
#include <time.h>

/* ---- helpers ---- */

static uint64_t seed;

static uint32_t rnd(uint32_t n) { /* splitmix64 */
    uint64_t z = (seed += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) % n);
}

static gy_grammar *compile_n(gy_grammar_kind kind, const char *text, size_t len) {
    gy_err err = {0};
    gy_grammar *g = NULL;
    if (gy_grammar_compile(kind, text, len, &err, &g) != GY_OK) fail_msg("%.200s: %s", text, err.msg);
    return g;
}

static gy_grammar *compile(gy_grammar_kind kind, const char *text) {
    return compile_n(kind, text, strlen(text));
}

static void refused_n(gy_grammar_kind kind, const char *text, size_t len, gy_status st, const char *words) {
    gy_err err = {0};
    gy_grammar *g = NULL;
    gy_status got = gy_grammar_compile(kind, text, len, &err, &g);
    if (got != st || !strstr(err.msg, words))
        fail_msg("%.100s: status %d, wanted %d; '%s', wanted '%s'", text, got, st, err.msg, words);
    assert_null(g);
    assert_true(gy_utf8_valid(err.msg, strlen(err.msg)));
}

static void refused(gy_grammar_kind kind, const char *text, gy_status st, const char *words) {
    refused_n(kind, text, strlen(text), st, words);
}

static gy_grammar_runner *runner_make(const gy_grammar_vocab *v, size_t cache) {
    gy_grammar_runner *r = NULL;
    assert_int_equal(gy_grammar_runner_create(v, cache, &r), GY_OK);
    return r;
}

/* How far a text gets, piece by piece: 2 complete, 1 it may go on, 0 refused. Bit i of cuts: a piece ends behind
 * byte i. */
static int take(gy_grammar_runner *r, const gy_grammar *g, const char *text, size_t len, uint64_t cuts) {
    gy_grammar_state s;
    gy_grammar_start(g, &s);
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        if (i + 1 < len && !(cuts >> i % 64 & 1)) continue;
        if (gy_grammar_accept(r, g, &s, text + from, i + 1 - from, NULL) != GY_OK) return 0;
        from = i + 1;
    }
    return gy_grammar_is_complete(&s) ? 2 : 1;
}

static void check_take(const gy_grammar *g, const char *text, int wanted) {
    gy_grammar_runner *r = runner_make(NULL, 0);
    const uint64_t cuts[] = {0, UINT64_MAX, 0x5555555555555555u, 0x8421084210842108u, seed * 77};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int got = take(r, g, text, strlen(text), cuts[i]);
        if (got != wanted) fail_msg("'%s': %d, wanted %d", text, got, wanted);
    }
    gy_grammar_runner_destroy(r);
}

/* Lists end with NULL. */
static void check_language(gy_grammar_kind kind, const char *text, const char *const *in, const char *const *out) {
    gy_grammar *g = compile(kind, text);
    for (; *in; in++) check_take(g, *in, 2);
    gy_grammar_runner *r = runner_make(NULL, 0);
    for (; *out; out++)
        if (take(r, g, *out, strlen(*out), UINT64_MAX) == 2) fail_msg("%s: took '%s'", text, *out);
    gy_grammar_runner_destroy(r);
    gy_grammar_put(g);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- the oracle of regular expressions ---- */

typedef enum rx_kind { RX_CHAR, RX_ANY, RX_CLASS, RX_CAT, RX_ALT, RX_REP } rx_kind;
typedef struct rx {
    rx_kind kind;
    int a, b; /* RX_CHAR: index of the alphabet; RX_CLASS: set of them; RX_REP: counts, b -1: no end */
    int x, y; /* children */
} rx;
enum { RX_MAX = 64, ALPHABET = 4, TEXT = 6 };
typedef struct rx_tree {
    rx n[RX_MAX];
    int used;
} rx_tree;
static const char *const letters[ALPHABET] = {"a", "b", "\xC3\xA9", "\xF0\x9F\x98\x80"};

static int rx_random(rx_tree *t, int depth) {
    int me = t->used++;
    uint32_t kind = depth == 0 || t->used > RX_MAX - 8 ? rnd(3) : rnd(6);
    rx r = {.kind = (rx_kind)kind};
    if (r.kind == RX_CHAR) r.a = (int)rnd(ALPHABET);
    if (r.kind == RX_CLASS) r.a = 1 + (int)rnd(15);
    if (r.kind == RX_REP) {
        r.a = (int)rnd(3);
        r.b = rnd(2) ? -1 : r.a + (int)rnd(3);
    }
    if (r.kind >= RX_CAT) r.x = rx_random(t, depth - 1);
    if (r.kind == RX_CAT || r.kind == RX_ALT) r.y = rx_random(t, depth - 1);
    t->n[me] = r;
    return me;
}

static void rx_print_class(int set, gy_str *out) {
    int negate = (set & 1) != 0; /* as its complement within the alphabet and all else */
    gy_str_puts(out, negate ? "[^" : "[");
    int any = 0;
    for (int i = 0; i < ALPHABET; i++)
        if ((set >> i & 1) != negate) {
            gy_str_puts(out, letters[i]);
            any = 1;
        }
    if (!any) gy_str_puts(out, "z");
    gy_str_puts(out, "]");
}

static void rx_print(const rx_tree *t, int i, gy_str *out) {
    const rx *r = &t->n[i];
    if (r->kind == RX_CHAR) gy_str_puts(out, letters[r->a]);
    if (r->kind == RX_ANY) gy_str_puts(out, ".");
    if (r->kind == RX_CLASS) rx_print_class(r->a, out);
    if (r->kind < RX_CAT) return;
    gy_str_puts(out, i % 2 ? "(" : "(?:");
    rx_print(t, r->x, out);
    if (r->kind == RX_ALT) gy_str_puts(out, "|");
    if (r->kind != RX_REP) rx_print(t, r->y, out);
    gy_str_puts(out, ")");
    if (r->kind != RX_REP) return;
    if (r->b < 0)
        r->a > 1 ? gy_str_printf(out, "{%d,}", r->a) : gy_str_puts(out, r->a ? "+" : "*");
    else
        r->a == 0 && r->b == 1 ? gy_str_puts(out, "?") : gy_str_printf(out, "{%d,%d}", r->a, r->b);
}

/* Where a match that begins at one of the places of `from` may end: sets of places. */
static unsigned rx_ends(const rx_tree *t, int i, const int *s, int n, unsigned from) {
    const rx *r = &t->n[i];
    unsigned out = 0;
    for (int at = 0; at < n && r->kind < RX_CAT; at++) {
        int hit = r->kind == RX_ANY || (r->kind == RX_CHAR ? s[at] == r->a : r->a >> s[at] & 1);
        if ((from >> at & 1) && hit) out |= 1u << (at + 1);
    }
    if (r->kind == RX_CAT) return rx_ends(t, r->y, s, n, rx_ends(t, r->x, s, n, from));
    if (r->kind == RX_ALT) return rx_ends(t, r->x, s, n, from) | rx_ends(t, r->y, s, n, from);
    if (r->kind != RX_REP) return out;
    for (int k = 0; k < r->a; k++) from = rx_ends(t, r->x, s, n, from);
    out = from;
    for (int k = r->a; r->b < 0 ? k < r->a + n + 1 : k < r->b; k++) out |= from = rx_ends(t, r->x, s, n, from);
    return out;
}

static int spell(const int *s, int n, char *out) {
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        memcpy(out + len, letters[s[i]], strlen(letters[s[i]]));
        len += strlen(letters[s[i]]);
    }
    return (int)len;
}

/* All texts of up to TEXT letters: 4^6 of them would be slow for each of many expressions, so longer ones are drawn. */
static void rx_check(gy_grammar_runner *r, const gy_grammar *g, const rx_tree *t, const char *regex) {
    for (int k = 0; k < 150; k++) {
        int s[TEXT], n = (int)rnd(TEXT + 1);
        char text[TEXT * 4 + 1];
        for (int i = 0; i < n; i++) s[i] = (int)rnd(rnd(2) ? 2 : ALPHABET);
        int len = spell(s, n, text);
        int wanted = rx_ends(t, 0, s, n, 1) >> n & 1;
        int got = n == 0 ? 2 : take(r, g, text, (size_t)len, k % 2 ? UINT64_MAX : 0);
        gy_grammar_state s0;
        gy_grammar_start(g, &s0);
        if (n == 0 && !gy_grammar_is_complete(&s0)) got = 1;
        if ((got == 2) != wanted) fail_msg("/%s/ on '%.*s': %d, wanted %d", regex, len, text, got == 2, wanted);
    }
}

static void test_regex_oracle(void **state) {
    (void)state;
    seed = 1;
    gy_grammar_runner *r = runner_make(NULL, 0);
    for (int k = 0; k < 3000; k++) {
        rx_tree t = {0};
        rx_random(&t, 4);
        gy_str text = {0};
        rx_print(&t, 0, &text);
        gy_grammar *g = compile_n(GY_GRAMMAR_REGEX, text.data, text.len);
        rx_check(r, g, &t, text.data);
        gy_grammar_put(g);
        gy_str_free(&text);
    }
    gy_grammar_runner_destroy(r);
}

static void test_regex_syntax(void **state) {
    (void)state;
    check_language(GY_GRAMMAR_REGEX, "\\d{2}-\\w+\\s\\D", LIST("12-a_Z9 x", "00-q\tz"),
                   LIST("1-a x", "12-a 5", "12- x"));
    check_language(GY_GRAMMAR_REGEX, "^a|b$", LIST("a", "b"), LIST("ab", "", "c"));
    check_language(GY_GRAMMAR_REGEX, "(|a)b??", LIST("a", "ab", "b"), LIST("aa", "bb"));
}

static void test_regex_classes(void **state) {
    (void)state;
    check_language(GY_GRAMMAR_REGEX, "[\\]x^-]{3}", LIST("x^-", "]]]"), LIST("abc", "xx"));
    check_language(GY_GRAMMAR_REGEX, "[^\\W\\d]+", LIST("ab_"), LIST("a1", "a-", "\xC3\xA9"));
    check_language(GY_GRAMMAR_REGEX, "[\\u00e0-\\u00ff]\\x41\\x{1F600}\\uD83D\\uDE00",
                   LIST("\xC3\xA9"
                        "A\xF0\x9F\x98\x80\xF0\x9F\x98\x80"),
                   LIST("eA\xF0\x9F\x98\x80\xF0\x9F\x98\x80"));
    check_language(GY_GRAMMAR_REGEX, "a{,3}|x{2", LIST("a{,3}", "x{2"), LIST("aaa", "xx"));
    check_language(GY_GRAMMAR_REGEX, "(?P<y>[0-9]{4})(?<m>-[0-9]{2})", LIST("2024-05"), LIST("2024"));
    check_language(GY_GRAMMAR_REGEX, ".", LIST("a", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\r"),
                   LIST("\n", "\xC3", "ab"));
}

static void test_regex_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        gy_status st;
        const char *words;
    } rows[] = {{"(?=a)b", GY_E_UNSUPPORTED, "lookahead (?="},
                {"a(?!b)", GY_E_UNSUPPORTED, "lookahead (?!"},
                {"(?<=a)b", GY_E_UNSUPPORTED, "lookbehind (?<="},
                {"(?<!a)b", GY_E_UNSUPPORTED, "lookbehind (?<!"},
                {"(a)\\1", GY_E_UNSUPPORTED, "back reference \\1"},
                {"(?P<n>a)(?P=n)", GY_E_UNSUPPORTED, "reference to a group"},
                {"(?<n>a)\\k<n>", GY_E_UNSUPPORTED, "back reference \\k"},
                {"\\bfoo", GY_E_UNSUPPORTED, "word boundary"},
                {"\\p{L}", GY_E_UNSUPPORTED, "Unicode property"},
                {"\\Aa", GY_E_UNSUPPORTED, "anchor \\A"},
                {"\\q", GY_E_UNSUPPORTED, "escape \\q"},
                {"(?i)a", GY_E_UNSUPPORTED, "(?i is not supported"},
                {"(?>a)", GY_E_UNSUPPORTED, "atomic group"},
                {"a*+", GY_E_UNSUPPORTED, "possessive"},
                {"[[:alpha:]]", GY_E_UNSUPPORTED, "POSIX class"},
                {"a^b", GY_E_UNSUPPORTED, "anchor ^"},
                {"(a$)", GY_E_UNSUPPORTED, "anchor $"},
                {"(a", GY_E_ARG, "1 groups open"},
                {"a)", GY_E_ARG, "')' without"},
                {"*a", GY_E_ARG, "nothing before it"},
                {"a**", GY_E_ARG, "nothing before it"},
                {"a|+", GY_E_ARG, "nothing before it"},
                {"[a", GY_E_ARG, "without its end"},
                {"[]", GY_E_ARG, "empty class"},
                {"[z-a]", GY_E_ARG, "no order"},
                {"[\\d-z]", GY_E_ARG, "no order"},
                {"a{3,2}", GY_E_ARG, "{3,2}"},
                {"a\\", GY_E_ARG, "end of the text"},
                {"\\x4", GY_E_ARG, "hexadecimal"},
                {"\\x{110000}", GY_E_ARG, "U+110000"},
                {"\\uD800", GY_E_ARG, "U+D800"},
                {"\\u{}", GY_E_ARG, "hexadecimal"},
                {"(?<n", GY_E_ARG, "name without its end"},
                {"\xC3(", GY_E_ARG, "not UTF-8"},
                {"[\xED\xA0\x80]", GY_E_ARG, "not UTF-8"},
                {"(?", GY_E_UNSUPPORTED, "begins with (?"},
                {"[^\\s\\S]", GY_E_ARG, "no text at all"},
                {"a{99999999999999999999}", GY_E_LIMIT, "repetition count"},
                {"(a|b)*a(a|b){20}", GY_E_LIMIT, "states"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(GY_GRAMMAR_REGEX, rows[i].text, rows[i].st, rows[i].words);
    refused(GY_GRAMMAR_REGEX, "ab(?=c)", GY_E_UNSUPPORTED, "regex: at byte 3:");
    refused((gy_grammar_kind)9, "a", GY_E_ARG, "kind 9");
}

static void test_regex_nul_and_long_counts(void **state) {
    (void)state;
    gy_grammar *g = compile_n(GY_GRAMMAR_REGEX, "a\0b", 3);
    gy_grammar_runner *r = runner_make(NULL, 0);
    assert_int_equal(take(r, g, "a\0b", 3, UINT64_MAX), 2);
    gy_grammar_put(g);
    g = compile(GY_GRAMMAR_REGEX, "(ab?){5000,6000}c"); /* counted on the stack, not unrolled */
    assert_true(gy_grammar_n_state(g) < 100);
    static char text[20001];
    for (int n = 4998; n <= 6002; n += n == 5002 ? 996 : 1) {
        memset(text, 'a', (size_t)n);
        text[n] = 'c';
        assert_int_equal(take(r, g, text, (size_t)n + 1, UINT64_MAX) == 2, n >= 5000 && n <= 6000);
    }
    gy_grammar_put(g);
    g = compile(GY_GRAMMAR_REGEX, "(a|aa){0,100000}b"); /* which count is unknown, the smaller one decides */
    memset(text, 'a', 20000);
    assert_int_equal(take(r, g, text, 20000, UINT64_MAX), 1);
    gy_grammar_put(g);
    gy_grammar_runner_destroy(r);
}

/* ---- EBNF ---- */

static void test_ebnf(void **state) {
    (void)state;
    check_language(GY_GRAMMAR_EBNF,
                   "root ::= expr # arithmetic\nexpr ::= term (op term)*\nop ::= [-+*/]\nterm ::= num | \"(\" expr "
                   "\")\"\nnum ::= [0-9]{1,4}",
                   LIST("1", "1+2*(3-4)", "((((1))))", "(1)*(2+(3))"), LIST("", "1+", "(1", "1)", "12345", "()"));
    check_language(GY_GRAMMAR_EBNF, "root ::= 'a' root 'b' | \"\"", LIST("ab", "aaabbb"), LIST("aab", "abb", "ba"));
    check_language(GY_GRAMMAR_EBNF, "root ::= ( \"x\" |\n \"\\u00e9\\n\" . ) {2}\n",
                   LIST("xx", "\xC3\xA9\n\nx", "x\xC3\xA9\n\xF0\x9F\x98\x80"), LIST("x", "\xC3\xA9\nx"));
    check_language(GY_GRAMMAR_EBNF, "root ::= list\nlist ::= item rest\nrest ::= \",\" list | \"\"\nitem ::= [a-z]",
                   LIST("a", "a,b,c"), LIST("a,", ",a"));
}

/* Right recursion does not use the stack up: a tail call pushes nothing. */
static void test_ebnf_tail(void **state) {
    (void)state;
    gy_grammar *g = compile(GY_GRAMMAR_EBNF, "root ::= [a-z] root | \".\"");
    gy_grammar_runner *r = runner_make(NULL, 0);
    static char text[5001];
    memset(text, 'q', 5000);
    text[5000] = '.';
    assert_int_equal(take(r, g, text, 5001, UINT64_MAX), 2);
    gy_grammar_runner_destroy(r);
    gy_grammar_put(g);
}

static void test_ebnf_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        gy_status st;
        const char *words;
    } rows[] = {{"", GY_E_ARG, "no rule defines 'root'"},
                {"a ::= \"x\"", GY_E_ARG, "no rule defines 'root'"},
                {"root ::= foo", GY_E_ARG, "at byte 9: no rule defines 'foo'"},
                {"root ::= root \"a\" | \"b\"", GY_E_ARG, "'root' begins with itself"},
                {"root ::= a\na ::= \"x\"? b\nb ::= a \"y\" | \"z\"", GY_E_ARG, "left recursion"},
                {"root ::= \"a\" root", GY_E_ARG, "no text at all"},
                {"root ::= \"a\"\nroot ::= \"b\"", GY_E_ARG, "second definition of 'root'"},
                {"root ::= (\"a\"", GY_E_ARG, "1 groups open"},
                {"root ::= (\"a\" b ::= \"c\"", GY_E_ARG, "1 groups open"},
                {"root ::= \"a\")", GY_E_ARG, "')' without"},
                {"root ::= \"a", GY_E_ARG, "text without its end"},
                {"root ::= \"\\d\"", GY_E_ARG, "class inside a text"},
                {"root ::= * \"a\"", GY_E_ARG, "nothing before it"},
                {"root ::= \"a\" % \"b\"", GY_E_ARG, "U+0025"},
                {"root = \"a\"", GY_E_ARG, "expected a rule"},
                {"::= \"a\"", GY_E_ARG, "expected a rule"},
                {"root ::= [b-a]", GY_E_ARG, "no order"},
                {"root ::= \"a\"{2000000}", GY_E_LIMIT, "repetition count"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(GY_GRAMMAR_EBNF, rows[i].text, rows[i].st, rows[i].words);
}

/* ---- the checker of schemas ---- */

static int same_value(const gy_jv *a, const gy_jv *b) {
    size_t n, m;
    const char *x = gy_jv_str(a, &n), *y = gy_jv_str(b, &m);
    if (x || y) return x && y && n == m && !memcmp(x, y, n);
    gy_jtype t = gy_jv_type(a), u = gy_jv_type(b);
    if ((t == GY_J_INT || t == GY_J_REAL) && (u == GY_J_INT || u == GY_J_REAL))
        return gy_jv_num(a, 0) == gy_jv_num(b, 1);
    if (t != u || gy_jv_len(a) != gy_jv_len(b)) return 0;
    if (t == GY_J_BOOL) return gy_jv_bool(a, 0) == gy_jv_bool(b, 0);
    for (size_t i = 0; t == GY_J_ARRAY && i < gy_jv_len(a); i++)
        if (!same_value(gy_jv_at(a, i), gy_jv_at(b, i))) return 0;
    for (void *it = t == GY_J_OBJECT ? gy_jv_first(a) : NULL; it; it = gy_jv_next(a, it))
        if (!same_value(gy_jv_val(it), gy_jv_get(b, gy_jv_key(it, NULL)))) return 0;
    return 1;
}

static int has_type(const gy_jv *v, const char *t) {
    gy_jtype k = gy_jv_type(v);
    double d = gy_jv_num(v, 0.5);
    if (!strcmp(t, "integer")) return k == GY_J_INT || (k == GY_J_REAL && d == (double)(int64_t)d);
    if (!strcmp(t, "number")) return k == GY_J_INT || k == GY_J_REAL;
    return !strcmp(t, k == GY_J_NULL     ? "null"
                      : k == GY_J_BOOL   ? "boolean"
                      : k == GY_J_STRING ? "string"
                      : k == GY_J_ARRAY  ? "array"
                      : k == GY_J_OBJECT ? "object"
                                         : "");
}

static size_t n_chars(const char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((uint8_t)s[i] & 0xC0) != 0x80;
    return n;
}

static int regex_finds(const char *pattern, const char *s) {
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int found = regexec(&re, s, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

static const gy_jv *deref(const gy_jv *root, const char *ref) {
    char buf[200];
    snprintf(buf, sizeof buf, "%s", ref);
    char *save = NULL;
    const gy_jv *v = root;
    for (char *step = strtok_r(buf + 1, "/", &save); step; step = strtok_r(NULL, "/", &save)) v = gy_jv_get(v, step);
    return v;
}

static int valid(const gy_jv *root, const gy_jv *s, const gy_jv *v);

static int valid_any(const gy_jv *root, const gy_jv *list, const gy_jv *v) {
    int n = 0;
    for (size_t i = 0; i < gy_jv_len(list); i++) n += valid(root, gy_jv_at(list, i), v);
    return n;
}

static int valid_type(const gy_jv *s, const gy_jv *v) {
    const gy_jv *t = gy_jv_get(s, "type");
    if (!t || (gy_jv_type(v) == GY_J_NULL && gy_jv_bool(gy_jv_get(s, "nullable"), 0))) return 1;
    if (gy_jv_str(t, NULL)) return has_type(v, gy_jv_str(t, NULL));
    for (size_t i = 0; i < gy_jv_len(t); i++)
        if (has_type(v, gy_jv_str(gy_jv_at(t, i), NULL))) return 1;
    return 0;
}

static int valid_scalar(const gy_jv *s, const gy_jv *v) {
    size_t len;
    const char *z = gy_jv_str(v, &len);
    double d = gy_jv_num(v, 0);
    int number = gy_jv_type(v) == GY_J_INT || gy_jv_type(v) == GY_J_REAL;
    if (number && (d < gy_jv_num(gy_jv_get(s, "minimum"), -1e300) || d > gy_jv_num(gy_jv_get(s, "maximum"), 1e300) ||
                   d <= gy_jv_num(gy_jv_get(s, "exclusiveMinimum"), -1e300) ||
                   d >= gy_jv_num(gy_jv_get(s, "exclusiveMaximum"), 1e300)))
        return 0;
    if (!z) return 1;
    const char *pattern = gy_jv_str(gy_jv_get(s, "pattern"), NULL);
    int64_t n = (int64_t)n_chars(z, len);
    if (n < gy_jv_int(gy_jv_get(s, "minLength"), 0) || n > gy_jv_int(gy_jv_get(s, "maxLength"), INT64_MAX)) return 0;
    return !pattern || strlen(z) != len || regex_finds(pattern, z); /* regexec ends at a NUL */
}

static int valid_array(const gy_jv *root, const gy_jv *s, const gy_jv *v) {
    int64_t n = (int64_t)gy_jv_len(v);
    if (n < gy_jv_int(gy_jv_get(s, "minItems"), 0) || n > gy_jv_int(gy_jv_get(s, "maxItems"), INT64_MAX)) return 0;
    const gy_jv *prefix = gy_jv_get(s, "prefixItems"), *items = gy_jv_get(s, "items");
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        const gy_jv *one = i < gy_jv_len(prefix) ? gy_jv_at(prefix, i) : items;
        if (one && !valid(root, one, gy_jv_at(v, i))) return 0;
    }
    return 1;
}

static int valid_object(const gy_jv *root, const gy_jv *s, const gy_jv *v) {
    const gy_jv *props = gy_jv_get(s, "properties"), *extra = gy_jv_get(s, "additionalProperties"),
                *req = gy_jv_get(s, "required");
    for (size_t i = 0; i < gy_jv_len(req); i++)
        if (!gy_jv_get(v, gy_jv_str(gy_jv_at(req, i), NULL))) return 0;
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        const gy_jv *p = gy_jv_get(props, gy_jv_key(it, NULL));
        if (p ? !valid(root, p, gy_jv_val(it)) : extra && !valid(root, extra, gy_jv_val(it))) return 0;
    }
    return 1;
}

static int valid(const gy_jv *root, const gy_jv *s, const gy_jv *v) {
    if (gy_jv_type(s) == GY_J_BOOL) return gy_jv_bool(s, 0);
    const gy_jv *x;
    if ((x = gy_jv_get(s, "$ref")) && !valid(root, deref(root, gy_jv_str(x, NULL)), v)) return 0;
    if ((x = gy_jv_get(s, "anyOf")) && !valid_any(root, x, v)) return 0;
    if ((x = gy_jv_get(s, "oneOf")) && !valid_any(root, x, v)) return 0; /* as anyOf: what is promised */
    if ((x = gy_jv_get(s, "allOf")) && valid_any(root, x, v) != (int)gy_jv_len(x)) return 0;
    if ((x = gy_jv_get(s, "const")) && !same_value(x, v)) return 0;
    if ((x = gy_jv_get(s, "enum"))) {
        int hit = 0;
        for (size_t i = 0; i < gy_jv_len(x); i++) hit |= same_value(gy_jv_at(x, i), v);
        if (!hit) return 0;
    }
    return valid_type(s, v) && valid_scalar(s, v) && (gy_jv_type(v) != GY_J_ARRAY || valid_array(root, s, v)) &&
           (gy_jv_type(v) != GY_J_OBJECT || valid_object(root, s, v));
}

/* ---- schemas: what must be taken, what must not, and what is generated ---- */

typedef struct schema_case {
    const char *schema;
    const char *in[8], *out[8];
} schema_case;

#define TREE                                                                                                           \
    "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"l\":{\"anyOf\":[{\"$ref\":" \
    "\"#/$defs/n\"},{\"type\":\"null\"}]},\"r\":{\"$ref\":\"#/$defs/"                                                  \
    "n\"}},\"required\":[\"v\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}"

static const schema_case cases[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{\"type\":"
     "\"boolean\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": -12, \"b\": \"\\u00e9\\n\xC3\xA9\", \"c\": true}",
      "{\"b\":\"x\",\"c\":false}"},
     {"{}", "{\"a\":1}", "{\"b\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":\"x\",}", "{,\"b\":\"x\"}",
      "{\"b\":\"x\",\"d\":1}", "{\"a\":01,\"b\":\"\"}"}},
    {"{\"type\":\"integer\",\"minimum\":-17,\"maximum\":1203}",
     {"0", "-17", "1203", "999", "1199", "-9", "1000", "7"},
     {"-18", "1204", "-0", "01", "1300", "-20", "1.0", "9999"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":98}",
     {"99", "100", "123456789012345"},
     {"98", "9", "-99", "0", "099"}},
    {"{\"type\":\"integer\",\"maximum\":-5}", {"-5", "-6", "-10", "-99999"}, {"-4", "0", "5", "-05", "-"}},
    {"{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1}",
     {"0", "0.0", "0.999", "0.5"},
     {"1", "1.0", "-0.1", "-0", "1e-3", "0."}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-2,\"maximum\":10}",
     {"-1.99", "-0.5", "10", "10.00", "9.99", "-1", "0"},
     {"-2", "-2.0", "10.01", "11", "-3", "2e0"}},
    {"{\"type\":\"number\"}", {"0", "-1.5e+10", "1E5", "0.001"}, {"+1", ".5", "1.", "1e", "00", "NaN", "--1"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\xF0\x9F\x98\x80\xC3\xA9\"", "\"\\ud83d\\ude00\\n\\\"\""},
     {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\\u0041\"", "\"\\udc00a\"", "\"a\nb\""}},
    {"{\"type\":\"string\",\"minLength\":300,\"maxLength\":500}", {NULL}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+x?$\"}", {"\"a\"", "\"abcx\""}, {"\"\"", "\"x\"", "\"ad\""}},
    {"{\"type\":\"string\",\"pattern\":\"b[0-9]|^z\"}",
     {"\"b1\"", "\"aab2zz\"", "\"z\"", "\"zoo\""},
     {"\"b\"", "\"az\"", "\"\""}},
    {"{\"enum\":[\"a\\\"b\",1,null,true,[1,{\"k\":2.5}],\"\\u0001\"]}",
     {"\"a\\\"b\"", "1", "null", "true", "[1, {\"k\": 2.5}]", "[1,{\"k\":2.5}]", "\"\\u0001\""},
     {"2", "\"a\"", "false"}},
    {"{\"type\":\"string\",\"enum\":[\"x\",2,\"y\"]}", {"\"x\"", "\"y\""}, {"2"}},
    {"{\"const\":{\"a\":[]}}", {"{\"a\":[]}", "{\"a\": []}"}, {"{}", "{\"a\":[1]}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":4}",
     {"[1,2]", "[1, 2, 3, 4]"},
     {"[]", "[1]", "[1,2,3,4,5]", "[1,]", "[,1]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1}",
     {"[1]", "[1,2,3,4,5,6,7]"},
     {"[]", "[\"a\"]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":"
     "\"boolean\"},\"minItems\":1}",
     {"[1]", "[1,\"a\"]", "[1,\"a\",true, false]"},
     {"[]", "[\"a\"]", "[1,true]", "[1,\"a\",1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[1,\"a\",1]", "[\"a\"]"}},
    {"{\"type\":[\"integer\",\"null\"]}", {"1", "null"}, {"\"a\"", "1.5", "nul"}},
    {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"a\""}, {"1"}},
    {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"x\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"ab\"},\"y\":{\"type\":"
     "\"string\"}},\"required\":[\"k\",\"y\"]}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\": \"ab\", \"y\": \"\"}"},
     {"{\"k\":\"a\",\"y\":\"\"}", "{\"k\":\"ab\",\"x\":1}", "{\"k\":\"a\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},\"anyOf\":[{"
     "\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"c\":1}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}}},{\"properties\":{"
     "\"a\":{\"maximum\":5},\"b\":{\"type\":\"null\"}},\"required\":[\"a\"]}]}",
     {"{\"a\":3}", "{\"a\":5,\"b\":null}"},
     {"{\"a\":2}", "{\"a\":6}", "{\"b\":null}"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"},\"ac\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":{\"type\":\"string\"}}",
     {"{}", "{\"ab\":1}", "{\"a\":\"x\"}", "{\"ab\":1,\"abc\":\"x\", \"\":\"y\"}", "{\"ac\":1,\"\xC3\xA9\":\"x\"}"},
     {"{\"ab\":\"x\"}", "{\"a\":1}", "{\"x\":\"y\",\"ab\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"q\":1,\"w\": 2}"},
     {"{\"q\":\"a\"}"}},
    {TREE,
     {"{\"v\":1}", "{\"v\":1,\"l\":null}", "{\"v\":1,\"l\":{\"v\":2,\"r\":{\"v\":3}},\"r\":{\"v\":4}}"},
     {"{}", "{\"v\":1,\"r\":null}", "{\"v\":1,\"l\":{}}"}},
    {"{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
     {"{}", "{\"kids\":[]}", "{\"kids\":[{\"kids\":[{}, {}]}]}"},
     {"{\"kids\":{}}", "{\"kids\":[1]}"}},
    {"{\"$defs\":{\"a~b/c\":{\"type\":\"integer\"}},\"properties\":{\"x\":{\"$ref\":\"#/$defs/"
     "a~0b~1c\",\"description\":\"d\"},\"y\":{\"$ref\":\"#/properties/x\",\"maximum\":9}}}",
     {"{\"x\":11,\"y\":9}"},
     {"{\"y\":10}", "1"}},
    {"{}", {"1", "\"a\"", "[1, {\"a\": null}]", "{}"}, {"a", "[1,]", "{\"a\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true}}", {"{}", "{\"b\":[]}"}, {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"required\":[\"q\"],\"properties\":{\"p\":{\"type\":\"null\"}}}",
     {"{\"q\":1}", "{\"p\":null,\"q\":{}}"},
     {"{}", "{\"p\":null}"}},
};
enum { N_CASE = sizeof cases / sizeof *cases };

static void test_schema_lists(void **state) {
    (void)state;
    for (size_t k = 0; k < N_CASE; k++) {
        const schema_case *c = &cases[k];
        gy_json *doc = NULL, *v = NULL;
        gy_err err = {0};
        assert_int_equal(gy_json_parse(c->schema, strlen(c->schema), NULL, &err, &doc), GY_OK);
        for (int i = 0; i < 8 && c->in[i]; i++) { /* the lists themselves */
            assert_int_equal(gy_json_parse(c->in[i], strlen(c->in[i]), NULL, &err, &v), GY_OK);
            if (!valid(gy_json_root(doc), gy_json_root(doc), gy_json_root(v)))
                fail_msg("%s: checker refuses %s", c->schema, c->in[i]);
            gy_json_free(v);
        }
        gy_json_free(doc);
        const char *in[9] = {0}, *out[9] = {0};
        memcpy(in, c->in, sizeof c->in);
        memcpy(out, c->out, sizeof c->out);
        check_language(GY_GRAMMAR_JSON_SCHEMA, c->schema, in, out);
    }
}

static void test_schema_formats(void **state) {
    (void)state;
    static const struct {
        const char *format, *in[5], *out[5];
    } rows[] = {{"date",
                 {"2024-02-29", "2000-02-29", "1999-12-31"},
                 {"2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "2024-1-01"}},
                {"time", {"23:59:59Z", "00:00:00.25+01:30"}, {"24:00:00Z", "12:00:00", "12:60:00Z"}},
                {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z"}},
                {"uuid",
                 {"123e4567-e89b-12d3-a456-426614174000"},
                 {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}},
                {"ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.0.0.1", "1.2.3", "01.2.3.4"}},
                {"email", {"a.b+c@example.org"}, {"a@b", "a b@c.de", "@c.de", "a@-c.de"}},
                {"hostname", {"localhost", "a-b.example.org"}, {"-a.b", "a..b", "a_b"}},
                {"uri", {"https://example.org:80/a/b%20c?q=1#f", "x://h"}, {"example.org", "http://", "http://a/%2"}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char schema[100], text[5][100];
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", rows[i].format);
        const char *in[6] = {0}, *out[6] = {0};
        char other[5][100];
        for (int k = 0; k < 5 && rows[i].in[k]; k++) in[k] = (snprintf(text[k], 100, "\"%s\"", rows[i].in[k]), text[k]);
        for (int k = 0; k < 5 && rows[i].out[k]; k++)
            out[k] = (snprintf(other[k], 100, "\"%s\"", rows[i].out[k]), other[k]);
        check_language(GY_GRAMMAR_JSON_SCHEMA, schema, in, out);
    }
}

static void test_schema_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        gy_status st;
        const char *words;
    } rows[] = {
        {"", GY_E_ARG, "json schema:"},
        {"{\"type\":", GY_E_ARG, "json schema:"},
        {"[]", GY_E_ARG, "found an array; expected a schema"},
        {"{\"type\":\"something\"}", GY_E_ARG, "at #: 'type': found something; expected null, boolean"},
        {"{\"type\":12}", GY_E_ARG, "'type': found an integer"},
        {"{\"type\":[]}", GY_E_ARG, "'type': found an empty array"},
        {"{\"properties\":{\"a\":{\"type\":[\"x\"]}}}", GY_E_ARG, "at #/properties/a: 'type'"},
        {"{\"properties\":[]}", GY_E_ARG, "'properties': found an array"},
        {"{\"properties\":{\"a\":3}}", GY_E_ARG, "at #/properties/a: found an integer; expected a schema"},
        {"{\"required\":\"a\"}", GY_E_ARG, "'required': found a string"},
        {"{\"required\":[1]}", GY_E_ARG, "'required': found an integer"},
        {"{\"items\":[{}]}", GY_E_UNSUPPORTED, "write 'prefixItems'"},
        {"{\"prefixItems\":{}}", GY_E_ARG, "'prefixItems': found an object"},
        {"{\"minItems\":-1}", GY_E_ARG, "'minItems'"},
        {"{\"minItems\":1.5}", GY_E_ARG, "'minItems'"},
        {"{\"minLength\":9999999}", GY_E_LIMIT, "'minLength': found 9999999"},
        {"{\"enum\":[]}", GY_E_ARG, "'enum': found an empty array"},
        {"{\"enum\":3}", GY_E_ARG, "'enum': found an integer"},
        {"{\"enum\":[1],\"minimum\":0}", GY_E_UNSUPPORTED, "'enum' together with 'minimum'"},
        {"{\"anyOf\":[]}", GY_E_ARG, "'anyOf': found an empty array"},
        {"{\"anyOf\":{}}", GY_E_ARG, "'anyOf': found an object"},
        {"{\"not\":{}}", GY_E_UNSUPPORTED, "'not' is not supported"},
        {"{\"properties\":{\"a\":{\"patternProperties\":{}}}}", GY_E_UNSUPPORTED,
         "at #/properties/a: 'patternProperties'"},
        {"{\"if\":{},\"then\":{}}", GY_E_UNSUPPORTED, "'if'"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", GY_E_UNSUPPORTED, "'uniqueItems'"},
        {"{\"type\":\"integer\",\"multipleOf\":2}", GY_E_UNSUPPORTED, "'multipleOf'"},
        {"{\"type\":\"number\",\"minimum\":0.5}", GY_E_UNSUPPORTED, "'minimum': found another number"},
        {"{\"type\":\"number\",\"minimum\":\"0\"}", GY_E_ARG, "'minimum': found a string"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":true}", GY_E_ARG, "'exclusiveMinimum': found"},
        {"{\"pattern\":\"a(?=b)\"}", GY_E_UNSUPPORTED, "at #: 'pattern': regex: at byte 2: lookahead"},
        {"{\"pattern\":7}", GY_E_ARG, "'pattern': found an integer"},
        {"{\"pattern\":\"a\",\"maxLength\":3}", GY_E_UNSUPPORTED, "one at a time"},
        {"{\"format\":\"ipv6\"}", GY_E_UNSUPPORTED, "'format': found ipv6"},
        {"{\"$ref\":\"http://x/y\"}", GY_E_UNSUPPORTED, "only places in this document"},
        {"{\"$ref\":\"#/$defs/x\"}", GY_E_ARG, "nothing is at '#/$defs/x'"},
        {"{\"$ref\":5}", GY_E_ARG, "'$ref': found an integer"},
        {"{\"$ref\":\"#\"}", GY_E_ARG, "left recursion"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", GY_E_ARG, "left recursion"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", GY_E_ARG, "no text at all"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", GY_E_ARG, "no text at all"},
        {"{\"type\":\"array\",\"minItems\":5,\"maxItems\":4}", GY_E_ARG, "no text at all"},
        {"false", GY_E_ARG, "no text at all"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", GY_E_ARG, "no text at all"},
        {"{\"properties\":{\"a\":{}},\"required\":[\"b\"],\"additionalProperties\":false}", GY_E_ARG, "no text at all"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", GY_E_UNSUPPORTED, "'pattern' in two schemas"},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{\"b\":{}}}]}",
         GY_E_UNSUPPORTED, "declares 'b'"},
        {"{\"$ref\":\"#\",\"minimum\":1}", GY_E_LIMIT, "does a $ref lead back"},
        {"{\"properties\":{\"p\":{\"$ref\":\"#\",\"required\":[\"p\"]}}}", GY_E_LIMIT, "contain itself"},
        {"{\"type\":\"string\",\"type\":\"null\"}", GY_E_ARG, "json schema:"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(GY_GRAMMAR_JSON_SCHEMA, rows[i].text, rows[i].st, rows[i].words);
}

/* Every range of a block of bounds against comparison. */
static void test_integer_ranges(void **state) {
    (void)state;
    seed = 5;
    gy_grammar_runner *r = runner_make(NULL, 0);
    for (int k = 0; k < 300; k++) {
        int lo = (int)rnd(2400) - 1200, hi = lo + (int)rnd(k % 2 ? 1500 : 12);
        char schema[120], text[24];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"exclusiveMaximum\":%d}", lo, hi + 1);
        gy_grammar *g = compile(GY_GRAMMAR_JSON_SCHEMA, schema);
        for (int v = -1300; v <= 2800; v += v < lo + 3 || v > hi - 3 ? 1 : 7) {
            int n = snprintf(text, sizeof text, "%d", v);
            if ((take(r, g, text, (size_t)n, 0) == 2) != (v >= lo && v <= hi)) fail_msg("%d in %d..%d", v, lo, hi);
        }
        gy_grammar_put(g);
    }
    gy_grammar_runner_destroy(r);
}

/* ---- vocabularies ---- */

typedef struct vocab {
    gy_grammar_vocab *v;
    gy_grammar_token *tokens;
    char *bytes; /* 16 for each token */
    int32_t n, eos[2];
} vocab;

static const char *const fragments[] = {
    "\"",    "\":",  "\": ",  "\",\"", "{\"",  "\"}",    "}}",       "]}",       "[[",          "[{\"",  "true",
    "false", "null", "\\u00", "\\\"",  "\xC3", "\xA9\"", "\xF0\x9F", "\x98\x80", "\x98\x80\"}", "a\":1", "12",
    "-1",    "0.",   "e+",    "abc",   "ab",   " ",      ", ",       "aa",       "ba"};

/* All bytes, fragments, random texts of the letters that grammars here like; two specials and two eos. */
static vocab vocab_random(int32_t n) {
    vocab v = {.n = n, .eos = {n - 1, 3}};
    v.tokens = calloc((size_t)n, sizeof *v.tokens);
    v.bytes = calloc((size_t)n, 16);
    static const char likes[] = "\"{}[]:,abxyzk019.-e \\u\xC3\xA9\xF0\x9F\x98\x80n";
    for (int32_t i = 0; i < n; i++) {
        char *s = v.bytes + (size_t)i * 16;
        size_t len = 1;
        if (i < 256) {
            s[0] = (char)(255 - i);
        } else if ((size_t)i - 256 < sizeof fragments / sizeof *fragments) {
            len = strlen(fragments[i - 256]);
            memcpy(s, fragments[i - 256], len);
        } else {
            for (len = 0; len < 1 + (size_t)rnd(5); len++) s[len] = likes[rnd(sizeof likes - 1)];
        }
        v.tokens[i] = (gy_grammar_token){s, i % 97 == 96 && i > 300 ? 0 : len, i == 300};
    }
    gy_err err = {0};
    /* Byte 252 gives its place to an eos. */
    assert_int_equal(gy_grammar_vocab_create(v.tokens, n, v.eos, 2, &err, &v.v), GY_OK);
    assert_int_equal(gy_grammar_vocab_n_byte(v.v), 255);
    return v;
}

static void vocab_free(vocab *v) {
    gy_grammar_vocab_destroy(v->v);
    free(v->tokens);
    free(v->bytes);
}

static int bit(const uint32_t *mask, int32_t i) {
    return mask[i / 32] >> (i % 32) & 1;
}

/* Every bit against trying the token on a copy. */
static void mask_check(gy_grammar_runner *r, const vocab *v, const gy_grammar *g, const gy_grammar_state *s,
                       const uint32_t *mask) {
    for (int32_t i = 0; i < v->n; i++) {
        int eos = i == v->eos[0] || i == v->eos[1];
        gy_grammar_state copy = *s;
        const gy_grammar_token *t = &v->tokens[i];
        int wanted = eos ? gy_grammar_is_complete(s)
                         : !t->flags && t->len && gy_grammar_accept(r, g, &copy, t->s, t->len, NULL) == GY_OK;
        if (bit(mask, i) != wanted)
            fail_msg("token %d '%.*s': %d, wanted %d", i, (int)t->len, t->s, bit(mask, i), wanted);
    }
    for (int32_t i = v->n; i % 32; i++) assert_false(bit(mask, i));
}

/* A token of the mask: any, or the first of closers when the text should end. -1: eos. */
static int32_t choose(const vocab *v, const uint32_t *mask, const gy_grammar_state *s, const char *closers) {
    if (closers && gy_grammar_is_complete(s)) return -1;
    for (const char *c = closers; c && *c; c++)
        if (bit(mask, 255 - (uint8_t)*c)) return 255 - (uint8_t)*c;
    int32_t at = (int32_t)rnd((uint32_t)v->n);
    for (int32_t k = 0; k < v->n; k++) {
        int32_t i = (at + k) % v->n;
        if (bit(mask, i)) return i == v->eos[0] || i == v->eos[1] ? -1 : i;
    }
    fail_msg("an empty mask");
    return -1;
}

/* Writes one text by masks, to its end by closers (NULL: no end wanted). check: every so many masks are compared in
 * full, with the cached ones too. */
static void generate(gy_grammar_runner *plain, gy_grammar_runner *cached, const vocab *v, const gy_grammar *g,
                     int check, const char *const *closers, gy_str *out) {
    gy_grammar_state s;
    gy_grammar_start(g, &s);
    uint32_t a[200], b[200];
    int length = 3 + (int)rnd(60);
    gy_str_clear(out);
    for (int step = 0;; step++) {
        gy_err err = {0};
        if (gy_grammar_mask(cached, g, &s, a, &err) != GY_OK) fail_msg("behind '%s': %s", gy_str_z(out), err.msg);
        if (step % check == 0) {
            assert_int_equal(gy_grammar_mask(plain, g, &s, b, &err), GY_OK);
            assert_memory_equal(a, b, (size_t)(v->n + 31) / 32 * 4);
            mask_check(plain, v, g, &s, a);
        }
        if (!closers && step > length) return;
        int32_t t = choose(v, a, &s, step > length ? closers[step % 2] : NULL);
        if (t < 0) break;
        assert_int_equal(gy_grammar_accept(plain, g, &s, v->tokens[t].s, v->tokens[t].len, &err), GY_OK);
        gy_str_append(out, v->tokens[t].s, v->tokens[t].len);
        if (step > 3000) fail_msg("no end in sight: '%.200s'", gy_str_z(out));
    }
    assert_true(gy_grammar_is_complete(&s));
    assert_true(gy_utf8_valid(gy_str_z(out), out->len));
}

static const char *const closing[2] = {"\"}],:0elusarnfd", "\"}],:0elusarnfd"};
static const char *const searching[2] = {"\"b", "\"1"};

static void schema_generate(const vocab *v, gy_grammar_runner *plain, gy_grammar_runner *cached, const char *schema,
                            int rounds) {
    gy_grammar *g = compile(GY_GRAMMAR_JSON_SCHEMA, schema);
    gy_err err = {0};
    gy_json *doc = NULL, *made = NULL;
    assert_int_equal(gy_json_parse(schema, strlen(schema), NULL, &err, &doc), GY_OK);
    gy_str text = {0};
    for (int k = 0; k < rounds; k++) {
        generate(plain, cached, v, g, 23, strstr(schema, "pattern") ? searching : closing, &text);
        const gy_json_limits deep = {.max_depth = 200};
        gy_status st = gy_json_parse(text.data, text.len, &deep, &err, &made);
        if (st != GY_OK && (strstr(err.msg, "duplicate") || strstr(err.msg, "\\u0000") || strstr(err.msg, "too big") ||
                            strstr(err.msg, "overflow")))
            continue; /* what no grammar can know, and what jansson does not take */
        if (st != GY_OK) fail_msg("%s: '%s': %s", schema, text.data, err.msg);
        if (!valid(gy_json_root(doc), gy_json_root(doc), gy_json_root(made)))
            fail_msg("%s: made '%s'", schema, text.data);
        gy_json_free(made);
    }
    gy_str_free(&text);
    gy_json_free(doc);
    gy_grammar_put(g);
}

static void test_schema_generated(void **state) {
    (void)state;
    seed = 11;
    for (int k = 0; k < 3; k++) {
        vocab v = vocab_random(1000 + 700 * k + 13);
        gy_grammar_runner *plain = runner_make(v.v, 0), *cached = runner_make(v.v, 400000);
        for (size_t i = 0; i < N_CASE; i++) schema_generate(&v, plain, cached, cases[i].schema, 12);
        gy_grammar_mask_stats st;
        gy_grammar_runner_get_stats(cached, &st);
        assert_true(st.n_hit > st.n_miss / 2 && st.n_miss > 0);
        gy_grammar_runner_destroy(plain);
        gy_grammar_runner_destroy(cached);
        vocab_free(&v);
    }
}

/* Masks of random expressions under random vocabularies, on texts that are not JSON. */
static void test_regex_masks(void **state) {
    (void)state;
    seed = 12;
    vocab v = vocab_random(900);
    gy_grammar_runner *plain = runner_make(v.v, 0), *cached = runner_make(v.v, 1 << 20);
    gy_str out = {0};
    for (int k = 0; k < 60; k++) {
        rx_tree t = {0};
        rx_random(&t, 5);
        gy_str text = {0};
        rx_print(&t, 0, &text);
        gy_grammar *g = compile_n(GY_GRAMMAR_REGEX, text.data, text.len);
        for (int i = 0; i < 3; i++) generate(plain, cached, &v, g, 3, NULL, &out);
        gy_grammar_put(g);
        gy_str_free(&text);
    }
    static const char *const others[] = {"(ab?){500,600}c", "([a-z]{2}|abc){3,5000}", "\"[^\"]{0,300}\"",
                                         "(a|aa|aaa){200}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        gy_grammar *g = compile(GY_GRAMMAR_REGEX, others[i]);
        for (int k = 0; k < 2; k++) {
            gy_grammar_state s;
            gy_grammar_start(g, &s);
            uint32_t a[200], b[200];
            for (int step = 0; step < 80; step++) {
                gy_err err = {0};
                assert_int_equal(gy_grammar_mask(cached, g, &s, a, &err), GY_OK);
                assert_int_equal(gy_grammar_mask(plain, g, &s, b, &err), GY_OK);
                assert_memory_equal(a, b, 900 / 32 * 4);
                if (step % 9 == 0) mask_check(plain, &v, g, &s, a);
                int32_t t = choose(&v, a, &s, NULL);
                if (t < 0) break;
                assert_int_equal(gy_grammar_accept(plain, g, &s, v.tokens[t].s, v.tokens[t].len, NULL), GY_OK);
            }
        }
        gy_grammar_put(g);
    }
    gy_str_free(&out);
    gy_grammar_runner_destroy(plain);
    gy_grammar_runner_destroy(cached);
    vocab_free(&v);
}

/* Counts of a repetition share masks while they are far from both bounds: below the lower one, between, near the upper.
 */
static void test_counted_masks(void **state) {
    (void)state;
    seed = 16;
    vocab v = vocab_random(700);
    gy_grammar_runner *plain = runner_make(v.v, 0), *cached = runner_make(v.v, 1 << 20);
    gy_grammar *g = compile(GY_GRAMMAR_REGEX, "a{60,2500}b");
    gy_grammar_state s;
    uint32_t a[22], b[22];
    gy_grammar_start(g, &s);
    for (int i = 0; i <= 2500; i++) {
        assert_int_equal(gy_grammar_mask(cached, g, &s, a, NULL), GY_OK);
        assert_int_equal(gy_grammar_mask(plain, g, &s, b, NULL), GY_OK);
        assert_memory_equal(a, b, sizeof a);
        assert_int_equal(bit(a, 255 - 'b'), i >= 60);
        assert_int_equal(bit(a, 255 - 'a'), i < 2500);
        if (i < 2500) assert_int_equal(gy_grammar_accept(plain, g, &s, "a", 1, NULL), GY_OK);
    }
    gy_grammar_mask_stats st;
    gy_grammar_runner_get_stats(cached, &st);
    assert_true(st.n_miss < 60 && st.n_hit > 2400);
    gy_grammar_put(g);
    gy_grammar_runner_destroy(plain);
    gy_grammar_runner_destroy(cached);
    vocab_free(&v);
}

/* Any JSON, deep: cached masks near the stack limit are the same as fresh ones, and there is always a way to the end.
 */
static void test_depth(void **state) {
    (void)state;
    seed = 13;
    vocab v = vocab_random(700);
    gy_grammar_runner *plain = runner_make(v.v, 0), *cached = runner_make(v.v, 1 << 20);
    gy_grammar *g = compile(GY_GRAMMAR_JSON_OBJECT, "");
    for (int round = 0; round < 2; round++) {
        gy_grammar_state s;
        gy_grammar_start(g, &s);
        int depth = 0;
        uint32_t a[32], b[32];
        assert_int_equal(gy_grammar_accept(plain, g, &s, "{\"a\":", 5, NULL), GY_OK);
        while (gy_grammar_accept(plain, g, &s, "[", 1, NULL) == GY_OK) {
            assert_true(++depth < 1000);
            assert_int_equal(gy_grammar_mask(cached, g, &s, a, NULL), GY_OK);
            assert_int_equal(gy_grammar_mask(plain, g, &s, b, NULL), GY_OK);
            assert_memory_equal(a, b, sizeof a - 40);
        }
        assert_in_range(depth, GY_GRAMMAR_MAX_STACK - 2, GY_GRAMMAR_MAX_STACK);
        mask_check(plain, &v, g, &s, a);
        for (; depth > 0; depth--) {
            assert_int_equal(gy_grammar_mask(cached, g, &s, a, NULL), GY_OK);
            assert_int_equal(gy_grammar_mask(plain, g, &s, b, NULL), GY_OK);
            assert_memory_equal(a, b, sizeof a - 40);
            assert_int_equal(gy_grammar_accept(plain, g, &s, "]", 1, NULL), GY_OK);
        }
        assert_int_equal(gy_grammar_accept(plain, g, &s, "}", 1, NULL), GY_OK);
        assert_true(gy_grammar_is_complete(&s) && gy_grammar_is_final(&s));
    }
    gy_grammar_put(g);
    /* Each level is forced to go two further down: the last ones that fit are not entered. */
    g = compile(GY_GRAMMAR_EBNF,
                "root ::= a \".\"\na ::= \"(\" b \")\" | \"x\"\nb ::= \"[\" c \"]\"\nc ::= \"<\" a \">\"");
    gy_grammar_state s;
    gy_grammar_start(g, &s);
    static const char *const down[] = {"(", "[", "<"}, *const up[] = {">", "]", ")"};
    int n = 0;
    while (gy_grammar_accept(plain, g, &s, down[n % 3], 1, NULL) == GY_OK) n++;
    assert_int_equal(n % 3, 0);
    assert_in_range(n, GY_GRAMMAR_MAX_STACK - 8, GY_GRAMMAR_MAX_STACK);
    assert_int_equal(gy_grammar_accept(plain, g, &s, "x", 1, NULL), GY_OK);
    for (int i = 0; i < n; i++) assert_int_equal(gy_grammar_accept(plain, g, &s, up[i % 3], 1, NULL), GY_OK);
    assert_int_equal(gy_grammar_accept(plain, g, &s, ".", 1, NULL), GY_OK);
    assert_true(gy_grammar_is_complete(&s));
    gy_grammar_put(g);
    gy_grammar_runner_destroy(plain);
    gy_grammar_runner_destroy(cached);
    vocab_free(&v);
}

/* 2^60 stacks after 60 letters, all in one graph. */
static void test_ambiguous(void **state) {
    (void)state;
    gy_grammar *g = compile(GY_GRAMMAR_EBNF, "root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"b\"");
    gy_grammar_runner *r = runner_make(NULL, 0);
    char text[130];
    memset(text, 'a', 60);
    text[60] = 'b';
    for (int i = 0; i < 60; i++) text[61 + i] = "xy"[i * 7 % 3 % 2];
    assert_int_equal(take(r, g, text, 121, UINT64_MAX), 2);
    assert_int_equal(take(r, g, text, 120, UINT64_MAX), 1);
    text[100] = 'z';
    assert_int_equal(take(r, g, text, 121, UINT64_MAX), 0);
    gy_grammar_put(g);
    /* How many repetitions are done may be any of more and more numbers, until that is said. */
    g = compile(GY_GRAMMAR_REGEX, "((a|b)(a|b|aa|ab|ba|bb){0,3}){900,901}");
    gy_grammar_state s;
    gy_grammar_start(g, &s);
    gy_err err = {0};
    gy_status st = GY_OK;
    for (int i = 0; i < 3000 && st == GY_OK; i++) {
        gy_grammar_state before = s;
        st = gy_grammar_accept(r, g, &s, "a", 1, &err);
        if (st != GY_OK) assert_memory_equal(&before, &s, sizeof s);
    }
    assert_int_equal(st, GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "too ambiguous"));
    gy_grammar_put(g);
    gy_grammar_runner_destroy(r);
}

static void test_utf8_split(void **state) {
    (void)state;
    gy_grammar *g = compile(GY_GRAMMAR_REGEX, "[\xE2\x82\xAC-\xE2\x82\xAE]x");
    const gy_grammar_token tokens[] = {{"\xE2", 1, 0},  {"\xE2\x82", 2, 0}, {"\x82\xAD", 2, 0}, {"\xAC", 1, 0},
                                       {"\xAFx", 2, 0}, {"\xAEx", 2, 0},    {"x", 1, 0},        {"\xE2\x82\xACx", 4, 0},
                                       {"", 0, 0},      {"x", 1, 1}};
    const int32_t eos = 9;
    gy_grammar_vocab *v = NULL;
    assert_int_equal(gy_grammar_vocab_create(tokens, 10, &eos, 1, NULL, &v), GY_OK);
    gy_grammar_runner *r = runner_make(v, 1 << 16);
    gy_grammar_state s;
    uint32_t m;
    gy_grammar_start(g, &s);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, NULL), GY_OK);
    assert_int_equal(m, 1u << 0 | 1u << 1 | 1u << 7);
    assert_int_equal(gy_grammar_accept(r, g, &s, "\xE2", 1, NULL), GY_OK);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, NULL), GY_OK);
    assert_int_equal(m, 1u << 2);
    gy_grammar_start(g, &s);
    assert_int_equal(gy_grammar_accept(r, g, &s, "\xE2\x82", 2, NULL), GY_OK);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, NULL), GY_OK);
    assert_int_equal(m, 1u << 3 | 1u << 5);
    assert_int_equal(gy_grammar_accept(r, g, &s, "\xAEx", 2, NULL), GY_OK);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, NULL), GY_OK);
    assert_int_equal(m, 1u << 9); /* eos and nothing else */
    gy_err err = {0};
    assert_int_equal(gy_grammar_accept(r, g, &s, "yx", 2, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "byte 0x79, number 0"));
    gy_grammar_runner_destroy(r);
    gy_grammar_vocab_destroy(v);
    gy_grammar_put(g);
}

/* ---- grammars behind a text ---- */

/* Whole texts of a vocabulary of fragments, cut at random: where the text appears first, by a plain search. */
static void test_after_is_found(void **state) {
    (void)state;
    static const char *const texts[] = {"</think>", "aab", "aa", "a", "abab", "abaababaab"};
    static const char alphabet[] = "ab</think>";
    const gy_grammar_token none[] = {{"a", 1, 0}};
    gy_grammar_vocab *v = NULL;
    assert_int_equal(gy_grammar_vocab_create(none, 1, NULL, 0, NULL, &v), GY_OK);
    int n_found = 0;
    for (int round = 0; round < 6000; round++) {
        const char *s = texts[round % 6];
        char text[200];
        size_t len = rnd(200), most = round % 6 ? 2 : sizeof alphabet - 1;
        for (size_t i = 0; i < len; i++) text[i] = alphabet[rnd((uint32_t)most)];
        if (len > 20 && rnd(2)) memcpy(text + rnd((uint32_t)len - 10), s, strlen(s) < 10 ? strlen(s) : 10);
        const char *at = memmem(text, len, s, strlen(s));
        size_t due = at ? (size_t)(at - text) + strlen(s) : 0, done = 0;
        gy_grammar_after *a = gy_grammar_after_init(malloc(gy_grammar_after_bytes(strlen(s))), v, s, strlen(s));
        int32_t matched = 0;
        int64_t rest = -1;
        while (rest < 0 && done < len) {
            size_t n = 1 + rnd(6);
            if (n > len - done) n = len - done;
            rest = gy_grammar_after_push(a, text + done, n, &matched);
            done += n;
            assert_true(matched >= 0 && matched <= (int32_t)strlen(s));
        }
        assert_true(at ? rest == (int64_t)(done - due) : rest == -1);
        n_found += at != NULL;
        free(a);
    }
    assert_true(n_found > 2000 && n_found < 5900);
    gy_grammar_vocab_destroy(v);
}

/* Every bit against following the token, behind every beginning of the text. */
static void test_after_masks(void **state) {
    (void)state;
    static const struct {
        const char *after, *regex;
    } afters[] = {{"a", "b+"},         {"ab", "[abx]*c"}, {"abc", "\\{.*"},
                  {"\":", " ?1|true"}, {"aab", "a"},      {"\xC3\xA9\"", ":"}};
    vocab v = vocab_random(900);
    gy_grammar_runner *r = runner_make(v.v, 1 << 16);
    int n_held = 0, n_inside = 0;
    for (size_t k = 0; k < sizeof afters / sizeof *afters; k++) {
        const char *s = afters[k].after;
        gy_grammar *g = compile(GY_GRAMMAR_REGEX, afters[k].regex);
        gy_grammar_after *a = gy_grammar_after_init(malloc(gy_grammar_after_bytes(strlen(s))), v.v, s, strlen(s));
        for (int32_t m = 0; m < (int32_t)strlen(s); m++) {
            uint32_t mask[200];
            memset(mask, 0xFF, sizeof mask);
            int made = gy_grammar_after_mask(r, g, a, m, mask);
            assert_true(made || m == 0);
            n_inside += made && m == 0;
            for (int32_t i = 0; i < v.n; i++) {
                const gy_grammar_token *t = &v.tokens[i];
                int32_t matched = m;
                gy_grammar_state st;
                int64_t rest = gy_grammar_after_push(a, t->s, t->len, &matched);
                gy_grammar_start(g, &st);
                int eos = i == v.eos[0] || i == v.eos[1];
                int due = eos || t->flags || rest <= 0 ||
                          gy_grammar_accept(r, g, &st, t->s + t->len - rest, (size_t)rest, NULL) == GY_OK;
                if (bit(mask, i) != due) fail_msg("'%s' at %d: token '%.*s'", s, m, (int)t->len, t->s);
                n_held += !due;
            }
            for (int32_t i = v.n; made && i % 32; i++) assert_false(bit(mask, i));
        }
        free(a);
        gy_grammar_put(g);
    }
    assert_true(n_held > 50 && n_inside > 0);
    gy_grammar_runner_destroy(r);
    vocab_free(&v);
}

/* The only token that holds the text and goes on behind it, the text at its begin, middle or end. */
static void test_after_inside_one_token(void **state) {
    (void)state;
    static const struct {
        const char *token;
        int is_good, is_held; /* good: may come; held: the mask has to look */
    } inside[] = {{"]x", 0, 1}, {"]1", 1, 1}, {"a]x", 0, 1}, {"a]1", 1, 1}, {"a]", 1, 0}, {"]", 1, 0}, {"ax", 1, 0}};
    gy_grammar *g = compile(GY_GRAMMAR_REGEX, "\\d+");
    for (size_t k = 0; k < sizeof inside / sizeof *inside; k++) {
        const gy_grammar_token tokens[] = {{"b", 1, 0}, {inside[k].token, strlen(inside[k].token), 0}};
        gy_grammar_vocab *v = NULL;
        uint32_t mask = 0;
        assert_int_equal(gy_grammar_vocab_create(tokens, 2, NULL, 0, NULL, &v), GY_OK);
        gy_grammar_runner *r = runner_make(v, 1 << 16);
        gy_grammar_after *a = gy_grammar_after_init(malloc(gy_grammar_after_bytes(1)), v, "]", 1);
        assert_int_equal(gy_grammar_after_mask(r, g, a, 0, &mask), inside[k].is_held);
        if (inside[k].is_held) assert_int_equal(mask, inside[k].is_good ? 3 : 1);
        free(a);
        gy_grammar_runner_destroy(r);
        gy_grammar_vocab_destroy(v);
    }
    gy_grammar_put(g);
}

static void test_vocab_knows_its_tokens(void **state) {
    (void)state;
    const gy_grammar_token tokens[] = {
        {" a", 2, GY_GRAMMAR_NOT_FIRST}, {"<e>", 3, GY_GRAMMAR_SPECIAL}, {"", 0, 0}, {"\0b", 2, 0}};
    const int32_t eos = 1;
    gy_grammar_vocab *v = NULL;
    uint32_t mask = 0xF;
    size_t n;
    assert_int_equal(gy_grammar_vocab_create(tokens, 4, &eos, 1, NULL, &v), GY_OK);
    assert_int_equal(gy_grammar_vocab_n(v), 4);
    for (int32_t i = 0; i < 4; i++) {
        const char *s = gy_grammar_vocab_token(v, i, &n);
        assert_int_equal(n, tokens[i].len);
        assert_memory_equal(s, tokens[i].s, n);
        assert_int_equal(gy_grammar_vocab_is_eos(v, i), i == 1);
    }
    gy_grammar_vocab_drop_not_first(v, &mask);
    assert_int_equal(mask, 0xE);
    gy_grammar_vocab_drop_eos(v, &mask);
    assert_int_equal(mask, 0xC);
    gy_grammar_vocab_destroy(v);
}

/* A vocabulary that cannot spell what must come, or has no eos, is an error and not an empty mask. */
static void test_stuck(void **state) {
    (void)state;
    const gy_grammar_token tokens[] = {{"a", 1, 0}, {"b", 1, 0}};
    gy_grammar_vocab *v = NULL;
    gy_err err = {0};
    assert_int_equal(gy_grammar_vocab_create(tokens, 0, NULL, 0, &err, &v), GY_E_ARG);
    assert_int_equal(gy_grammar_vocab_create(tokens, 2, &(int32_t){2}, 1, &err, &v), GY_E_ARG);
    assert_non_null(strstr(err.msg, "eos id 2; expected 0 to 1"));
    assert_int_equal(gy_grammar_vocab_create(tokens, 2, NULL, 0, &err, &v), GY_OK);
    gy_grammar_runner *r = runner_make(v, 0);
    gy_grammar *g = compile(GY_GRAMMAR_REGEX, "ac?");
    gy_grammar_state s;
    uint32_t m = 77;
    gy_grammar_start(g, &s);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, &err), GY_OK);
    assert_int_equal(m, 1);
    assert_int_equal(gy_grammar_accept(r, g, &s, "a", 1, NULL), GY_OK);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, &err), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "no eos token"));
    gy_grammar_put(g);
    g = compile(GY_GRAMMAR_REGEX, "a{2}cd");
    gy_grammar_start(g, &s);
    assert_int_equal(gy_grammar_accept(r, g, &s, "aa", 2, NULL), GY_OK);
    assert_int_equal(gy_grammar_mask(r, g, &s, &m, &err), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "no token of the vocabulary can come next (2 of 256"));
    assert_int_equal(m, 0);
    gy_grammar_put(g);
    gy_grammar_runner_destroy(r);
    gy_grammar_vocab_destroy(v);
}

/* ---- hostile sources ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *repeated(const char *head, const char *unit, int n, const char *tail) {
    gy_str s = {0};
    gy_str_puts(&s, head);
    for (int i = 0; i < n; i++) gy_str_puts(&s, unit);
    gy_str_puts(&s, tail);
    assert_false(s.failed);
    return s.data;
}

static void hostile(gy_grammar_kind kind, char *text) {
    gy_err err = {0};
    gy_grammar *g = NULL;
    double t = seconds();
    gy_status st = gy_grammar_compile(kind, text, strlen(text), &err, &g);
    t = seconds() - t;
#ifdef GY_SANITIZED
    t /= 10;
#endif
    if (t > 5) fail_msg("%.60s: %.1f s", text, t);
    if (st == GY_OK) assert_true(gy_grammar_bytes(g) <= GY_GRAMMAR_MAX_BYTES);
    if (st != GY_OK && st != GY_E_LIMIT && st != GY_E_ARG && st != GY_E_UNSUPPORTED)
        fail_msg("%.60s: status %d %s", text, st, err.msg);
    gy_grammar_put(g);
    gy_mem_free(text);
}

static void test_hostile(void **state) {
    (void)state;
    char *s = repeated("", "(", 60000, "");
    refused(GY_GRAMMAR_REGEX, s, GY_E_LIMIT, "nested more than 200 deep");
    gy_mem_free(s);
    s = repeated("root ::= ", "(", 60000, "\"a\"");
    refused(GY_GRAMMAR_EBNF, s, GY_E_LIMIT, "nested more than 200 deep");
    gy_mem_free(s);
    s = repeated("", "{\"items\":", 25000, "1");
    refused(GY_GRAMMAR_JSON_SCHEMA, s, GY_E_LIMIT, "json schema:");
    gy_mem_free(s);
    s = repeated("", "a", GY_GRAMMAR_MAX_SOURCE + 1, "");
    refused(GY_GRAMMAR_REGEX, s, GY_E_LIMIT, "found 262145 bytes; allowed 262144");
    gy_mem_free(s);
    hostile(GY_GRAMMAR_REGEX, repeated("", "(a?){0,1000}", 2000, ""));
    hostile(GY_GRAMMAR_REGEX, repeated("(((((((a{1000}){1000}){1000}){1000}){1000})", "{0,1}", 0, "{1000}){1000}"));
    hostile(GY_GRAMMAR_REGEX, repeated("((((((((()", "{1000}){1000}", 9, ""));
    hostile(GY_GRAMMAR_REGEX, repeated("", "(.*a)", 10000, ""));
    hostile(GY_GRAMMAR_REGEX, repeated("(", "[^a]|\\w|", 20000, "x)*"));
    hostile(GY_GRAMMAR_REGEX, repeated("", "a{1000000}", 10000, ""));
    hostile(GY_GRAMMAR_REGEX, repeated("(", "x?", 60000, "){500}"));
    hostile(GY_GRAMMAR_REGEX, repeated("[", "a-z", 80000, "]{1000}"));
    hostile(GY_GRAMMAR_EBNF, repeated("root ::= ", "a ", 100000, "\na ::= \"x\"?"));
    hostile(GY_GRAMMAR_JSON_SCHEMA, repeated("{\"enum\":[", "\"aaaaaaaaaaaaaaaa\",", 12000, "1]}"));
    hostile(GY_GRAMMAR_JSON_SCHEMA,
            repeated("{\"allOf\":[",
                     "{\"anyOf\":[{\"minimum\":1},{\"maximum\":2},{\"minLength\":3},{\"pattern\":\"a\"}]},", 12,
                     "{}]}"));
    gy_str t = {0};
    gy_str_puts(&t, "root ::= r0\n");
    for (int i = 0; i < 4000; i++)
        gy_str_printf(&t, "r%d ::= \"a\" r%d r%d | \"b\"\n", i, (i + 1) % 4000, (i * 7 + 1) % 4000);
    hostile(GY_GRAMMAR_EBNF, t.data);
    t = (gy_str){0};
    gy_str_puts(&t, "{\"properties\":{");
    for (int i = 0; i < 5000; i++) gy_str_printf(&t, "\"p%d\":{\"type\":\"string\"},", i);
    gy_str_puts(&t, "\"z\":{}}}");
    hostile(GY_GRAMMAR_JSON_SCHEMA, t.data);
    t = (gy_str){0};
    for (int i = 0; i < 5000; i++) gy_str_printf(&t, "r%d ::= \"a\"\n", i);
    refused(GY_GRAMMAR_EBNF, t.data, GY_E_LIMIT, "more than 4096 rules");
    gy_str_free(&t);
}

/* Random bytes and mutations of good sources never do more than fail with a sentence. */
static void test_mutations(void **state) {
    (void)state;
    seed = 14;
    static const char *const good[] = {"^(a|[^b-d]{2,3})\\d+?$",
                                       "root ::= x (\",\" x){0,3}\nx ::= [a-z] | \"(\" root \")\"", TREE};
    static const gy_grammar_kind kinds[] = {GY_GRAMMAR_REGEX, GY_GRAMMAR_EBNF, GY_GRAMMAR_JSON_SCHEMA};
    for (int k = 0; k < 6000; k++) {
        char text[512];
        size_t len = strlen(good[k % 3]);
        memcpy(text, good[k % 3], len);
        for (uint32_t n = 1 + rnd(4); n; n--)
            text[rnd((uint32_t)len)] = rnd(3) ? "(){}[]|*+?\\,\"':=#0a"[rnd(19)] : (char)rnd(256);
        gy_err err = {0};
        gy_grammar *g = NULL;
        gy_status st = gy_grammar_compile(kinds[k % 3], text, len, &err, &g);
        assert_true(st == GY_OK || (err.msg[0] && gy_utf8_valid(err.msg, strlen(err.msg))));
        gy_grammar_put(g);
    }
}

/* ---- caches, memory, threads ---- */

static void test_compile_cache(void **state) {
    (void)state;
    gy_grammar_cache *c = NULL;
    assert_int_equal(gy_grammar_cache_create(200000, &c), GY_OK);
    gy_grammar *a = NULL, *b = NULL, *d = NULL;
    gy_err err = {0};
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "abc", 3, &err, &a), GY_OK);
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "abc", 3, &err, &b), GY_OK);
    assert_ptr_equal(a, b);
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "abcd", 4, &err, &d), GY_OK);
    assert_ptr_not_equal(a, d);
    gy_grammar_put(b);
    gy_grammar_put(d);
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_EBNF, "abc", 3, &err, &b), GY_E_ARG); /* another language */
    gy_grammar_cache_stats st;
    for (int i = 0; i < 200; i++) { /* more than fit: the bytes stay below the cap */
        char text[32];
        int n = snprintf(text, sizeof text, "x{%d}", i + 2);
        assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, text, (size_t)n, &err, &b), GY_OK);
        gy_grammar_put(b);
        gy_grammar_cache_get_stats(c, &st);
        assert_true(st.bytes <= 200000 && st.n >= 1);
    }
    assert_true(st.n_evict > 100 && st.n_hit == 1);
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "abc", 3, &err, &b), GY_OK);
    assert_ptr_not_equal(a, b); /* it was evicted, and a is still ours */
    check_take(a, "abc", 2);
    gy_grammar_put(a);
    gy_grammar_put(b);
    gy_grammar_cache_get_stats(c, &st);
    size_t kept = st.bytes; /* one that is larger than the cap alone is made, not kept, and drives nothing out */
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "[ab]*a[ab]{13}", 14, &err, &b), GY_OK);
    assert_true(gy_grammar_bytes(b) > 200000);
    gy_grammar_put(b);
    gy_grammar_cache_get_stats(c, &st);
    assert_int_equal(st.bytes, kept);
    assert_int_equal(gy_grammar_cache_compile(c, GY_GRAMMAR_REGEX, "x{2,1900}", 9, &err, &b), GY_OK);
    gy_grammar_cache_destroy(c);
    check_take(b, "xx", 2);
    gy_grammar_put(b);
}

typedef struct shared {
    gy_grammar_cache *cache;
    const vocab *v;
} shared;

static void *share_thread(void *arg) {
    const shared *x = arg;
    gy_grammar_runner *r = NULL;
    if (gy_grammar_runner_create(x->v->v, 1 << 18, &r) != GY_OK) return arg;
    void *bad = NULL;
    for (int i = 0; i < 40 && !bad; i++) {
        gy_grammar *g = NULL;
        const char *schema = cases[i % 5].schema;
        uint32_t m[64];
        gy_grammar_state s;
        if (gy_grammar_cache_compile(x->cache, GY_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), NULL, &g) != GY_OK)
            return arg;
        gy_grammar_start(g, &s);
        if (gy_grammar_mask(r, g, &s, m, NULL) != GY_OK) bad = arg;
        gy_grammar_put(g);
    }
    gy_grammar_runner_destroy(r);
    return bad;
}

static void test_threads(void **state) {
    (void)state;
    vocab v = vocab_random(600);
    shared x = {.v = &v};
    assert_int_equal(gy_grammar_cache_create(100000, &x.cache), GY_OK);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, share_thread, &x), 0);
    for (int i = 0; i < 4; i++) {
        void *bad = NULL;
        assert_int_equal(pthread_join(t[i], &bad), 0);
        assert_null(bad);
    }
    gy_grammar_cache_destroy(x.cache);
    vocab_free(&v);
}

/* A later grammar at the same address does not find the masks of the one before. */
static void test_mask_cache_identity(void **state) {
    (void)state;
    vocab v = vocab_random(600);
    gy_grammar_runner *r = runner_make(v.v, 1 << 20), *plain = runner_make(v.v, 0);
    for (int i = 0; i < 50; i++) {
        char text[8];
        snprintf(text, sizeof text, "%c+", 'a' + i % 26);
        gy_grammar *g = compile(GY_GRAMMAR_REGEX, text);
        gy_grammar_state s;
        uint32_t m[64];
        gy_grammar_start(g, &s);
        assert_int_equal(gy_grammar_mask(r, g, &s, m, NULL), GY_OK);
        mask_check(plain, &v, g, &s, m);
        gy_grammar_put(g);
    }
    gy_grammar_runner_destroy(r);
    gy_grammar_runner_destroy(plain);
    vocab_free(&v);
}

static void test_steady_state_allocates_nothing(void **state) {
    (void)state;
    seed = 15;
    vocab v = vocab_random(900);
    gy_grammar *g = compile(GY_GRAMMAR_JSON_SCHEMA, TREE);
    gy_grammar_runner *r = runner_make(v.v, 100000);
    gy_grammar_state s;
    uint32_t m[64];
    gy_mem_guard_begin();
    for (int k = 0; k < 20; k++) {
        gy_grammar_start(g, &s);
        for (int i = 0; i < 40; i++) {
            assert_int_equal(gy_grammar_mask(r, g, &s, m, NULL), GY_OK);
            int32_t t = choose(&v, m, &s, NULL);
            if (t < 0) break;
            assert_int_equal(gy_grammar_accept(r, g, &s, v.tokens[t].s, v.tokens[t].len, NULL), GY_OK);
        }
    }
    gy_mem_guard_end();
    gy_grammar_runner_destroy(r);
    gy_grammar_put(g);
    vocab_free(&v);
}

/* The n-th allocation fails, n rising until all is well; nothing leaks (ASan) and outputs stay untouched. */
static void test_no_memory(void **state) {
    (void)state;
    const char *const texts[] = {"(a|[^b]{2,3000}){2}", "root ::= x (\",\" x)*\nx ::= [a-z] | \"(\" root \")\"", TREE,
                                 cases[0].schema};
    static const gy_grammar_kind kinds[] = {GY_GRAMMAR_REGEX, GY_GRAMMAR_EBNF, GY_GRAMMAR_JSON_SCHEMA,
                                            GY_GRAMMAR_JSON_SCHEMA};
    for (int k = 0; k < 4; k++) {
        gy_status st = GY_E_NOMEM;
        for (int64_t n = 1; st != GY_OK; n++) {
            gy_grammar *g = NULL;
            gy_err err = {0};
            gy_mem_fail_after(n);
            st = gy_grammar_compile(kinds[k], texts[k], strlen(texts[k]), &err, &g);
            gy_mem_fail_after(0);
            if (st != GY_OK && (st != GY_E_NOMEM || g || !err.msg[0]))
                fail_msg("%s: allocation %d: %s", texts[k], (int)n, err.msg);
            gy_grammar_put(g);
            assert_true(n < 5000);
        }
    }
    const gy_grammar_token tokens[] = {{"a", 1, 0}, {"b", 1, 0}};
    gy_grammar_vocab *v = NULL;
    gy_grammar_runner *r = NULL;
    gy_grammar_cache *c = NULL;
    for (int64_t n = 1; n <= 2; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_grammar_vocab_create(tokens, 2, NULL, 0, NULL, &v), GY_E_NOMEM);
    }
    assert_int_equal(gy_grammar_vocab_create(tokens, 2, NULL, 0, NULL, &v), GY_OK);
    for (int64_t n = 1; n <= 3; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_grammar_runner_create(v, 1000, &r), GY_E_NOMEM);
    }
    gy_mem_fail_after(1);
    assert_int_equal(gy_grammar_cache_create(1000, &c), GY_E_NOMEM);
    gy_mem_fail_after(0);
    gy_grammar_vocab_destroy(v);
    gy_grammar_vocab_destroy(NULL);
    gy_grammar_runner_destroy(NULL);
    gy_grammar_cache_destroy(NULL);
    gy_grammar_put(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex_oracle),
        cmocka_unit_test(test_regex_syntax),
        cmocka_unit_test(test_regex_classes),
        cmocka_unit_test(test_regex_refused),
        cmocka_unit_test(test_regex_nul_and_long_counts),
        cmocka_unit_test(test_ebnf),
        cmocka_unit_test(test_ebnf_tail),
        cmocka_unit_test(test_ebnf_refused),
        cmocka_unit_test(test_schema_lists),
        cmocka_unit_test(test_schema_formats),
        cmocka_unit_test(test_schema_refused),
        cmocka_unit_test(test_integer_ranges),
        cmocka_unit_test(test_schema_generated),
        cmocka_unit_test(test_regex_masks),
        cmocka_unit_test(test_counted_masks),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_utf8_split),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_after_is_found),
        cmocka_unit_test(test_after_masks),
        cmocka_unit_test(test_after_inside_one_token),
        cmocka_unit_test(test_vocab_knows_its_tokens),
        cmocka_unit_test(test_compile_cache),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_mask_cache_identity),
        cmocka_unit_test(test_steady_state_allocates_nothing),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
