/* From Oniguruma's Ruby syntax to PCRE2's, construct by construct. What both read alike is copied; what they read
 * differently is rewritten; what PCRE2 cannot say is refused with its name. Differences handled (measured with
 * tokenizers 0.23.3 over all code points):
 *   \s \w \d \h \v \b \p{..}   sets spelled out; newer code points added from unicode_extra.inc
 *   (?m)                       means "dot matches newline" in Ruby: (?s)
 *   {,n}                       {0,n};   \uHHHH  \x{HHHH};   \O  (?s:.)
 *   \p{Script}                 PCRE2 10.40+ reads Script_Extensions there: \p{sc:Script}
 * Not translated, refused: \X (the segmentation rules differ), nested classes, &&, absent operators, conditionals, {n}+
 * (not possessive in Ruby), and options in the middle of a group (Ruby lets them open a group of their own).
 */
#include "text/regex.h"

#include "text/unicode.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

typedef struct translator {
    const char *p, *end, *begin;
    gy_str *out;
    gy_err *err;
    int group_start; /* nothing of the current group has been read yet */
} translator;

static gy_status refuse(const translator *t, const char *what) {
    return gy_err_set(t->err, GY_E_UNSUPPORTED, "pattern construct %s at byte %zu is not supported", what,
                      (size_t)(t->p - t->begin));
}

/* ---- sets, as the inside of a class ---- */

static const char SPACE_SET[] = "\\x{9}-\\x{D}\\x{85}\\p{Z}";
/* The complement of SPACE_SET as a union, because a class has no difference operator. */
static const char NOT_SPACE_SET[] = "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Cn}\\p{Co}\\x{0}-\\x{8}\\x{E}-\\x{1F}"
                                    "\\x{7F}-\\x{84}\\x{86}-\\x{9F}";
static const char HEX_SET[] = "0-9a-fA-F";

static void put_category(gy_str *out, const char *name) {
    gy_str_printf(out, "\\p{%s}", name);
    gy_uni_put_extra_ranges(out, name);
}

static void put_word_set(gy_str *out) {
    static const char *const parts[] = {"L", "M", "Nd", "Nl", "Pc"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) put_category(out, parts[i]);
    gy_str_puts(out, "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}");
}

/* Alphabetic: PCRE2's own (Unicode 14), the newer letters, and the newer marks that are Other_Alphabetic. */
static void put_alphabetic(gy_str *out) {
    gy_str_puts(out, "\\p{Alphabetic}");
    gy_uni_put_extra_ranges(out, "L");
    gy_str_puts(out,
                "\\x{897}\\x{CF3}\\x{10D69}\\x{10EFC}\\x{11241}\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-"
                "\\x{113CA}\\x{113CC}-\\x{113CD}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-"
                "\\x{11F40}\\x{1611E}-\\x{1612E}\\x{1E08F}");
}

/* Outside classes Oniguruma asks a table of its own for Latin-1, in which the numbers No are word characters too. */
static void put_bare_word_set(gy_str *out) {
    put_word_set(out);
    gy_str_puts(out, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}");
}

static int is_category(const char *name) {
    static const char all[] = " C L M N P S Z Cc Cf Cn Co Cs Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm "
                              "Sc Sk So Zs Zl Zp ";
    char key[8];
    if (strlen(name) > 2 || !name[0]) return 0;
    snprintf(key, sizeof(key), " %s ", name);
    return strstr(all, key) != NULL;
}

static int compiles(const char *pattern) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* Long names of categories that Oniguruma knows. */
static const char *category_alias(const char *name) {
    static const char *const alias[][2] = {{"Letter", "L"}, {"Mark", "M"},      {"Number", "N"}, {"Punctuation", "P"},
                                           {"Symbol", "S"}, {"Separator", "Z"}, {"Punct", "P"},  {"Digit", "Nd"},
                                           {"l", "L"},      {"m", "M"},         {"n", "N"},      {"p", "P"},
                                           {"s", "S"},      {"z", "Z"}};
    for (size_t i = 0; i < sizeof(alias) / sizeof(alias[0]); i++)
        if (strcmp(alias[i][0], name) == 0) return alias[i][1];
    return name;
}

/* Appends the inside of a class for \p{name}. */
static gy_status put_property(translator *t, const char *name) {
    char pattern[96];
    name = category_alias(name);
    if (is_category(name)) {
        put_category(t->out, name);
        return GY_OK;
    }
    if (strcmp(name, "Alpha") == 0 || strcmp(name, "Alphabetic") == 0) {
        put_alphabetic(t->out);
        return GY_OK;
    }
    snprintf(pattern, sizeof(pattern), "\\p{sc:%.60s}", name);
    if (!compiles(pattern)) snprintf(pattern, sizeof(pattern), "\\p{%.60s}", name);
    if (!compiles(pattern)) {
        char what[96];
        snprintf(what, sizeof(what), "\\p{%.60s}", name);
        return refuse(t, what);
    }
    gy_str_puts(t->out, pattern);
    /* The one script that patterns in use name and that has grown since: extensions C (one), I and H. */
    if (strcmp(name, "Han") == 0) gy_str_puts(t->out, "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}");
    return GY_OK;
}

/* ---- escapes ---- */

/* Reads {name} or {^name} behind \p; leaves t->p behind the brace. */
static gy_status read_property(translator *t, char name[64], int *negated) {
    if (t->p >= t->end || *t->p != '{') return refuse(t, "\\p without {");
    const char *from = t->p + 1, *to = from;
    while (to < t->end && *to != '}') to++;
    if (to == t->end) return refuse(t, "\\p{ without }");
    if (from < to && *from == '^') {
        *negated = !*negated;
        from++;
    }
    if (to - from >= 64 || to == from) return refuse(t, "\\p{...}");
    for (const char *q = from; q < to; q++)
        if (!((*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z') || *q == '_')) return refuse(t, "\\p{...}");
    memcpy(name, from, (size_t)(to - from));
    name[to - from] = '\0';
    t->p = to + 1;
    return GY_OK;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \uHHHH, \xHH, \x{H...}: t->p behind the letter. */
static gy_status put_code_point(translator *t, char letter) {
    int braced = letter == 'x' && t->p < t->end && *t->p == '{', n = 0, max = braced ? 8 : letter == 'u' ? 4 : 2;
    uint32_t cp = 0;
    t->p += braced;
    for (; n < max && t->p < t->end && hex_value(*t->p) >= 0; n++) cp = cp * 16 + (uint32_t)hex_value(*t->p++);
    int bad = n == 0 || cp > 0x10FFFF || (letter == 'u' && n < 4) || (braced && (t->p == t->end || *t->p != '}'));
    if (bad) return refuse(t, "code point escape");
    t->p += braced;
    if (letter == 'x' && !braced && cp >= 0x80) return refuse(t, "\\x of a byte above 7F");
    gy_str_printf(t->out, "\\x{%X}", cp);
    return GY_OK;
}

/* The set behind a class escape as the inside of a class; 0 when the letter is none. */
static int put_set(translator *t, char letter) {
    switch (letter) {
    case 's':
        gy_str_puts(t->out, SPACE_SET);
        return 1;
    case 'w':
        put_word_set(t->out);
        return 1;
    case 'd':
        put_category(t->out, "Nd");
        return 1;
    case 'h':
        gy_str_puts(t->out, HEX_SET);
        return 1;
    default:
        return 0;
    }
}

static gy_status put_escape_common(translator *t, char c) {
    char what[8];
    if (c == 'u' || c == 'x') return put_code_point(t, c);
    if (c == 'v') {
        gy_str_puts(t->out, "\\x{B}");
        return GY_OK;
    }
    int is_letter = ((c | 32) >= 'a' && (c | 32) <= 'z');
    if (is_letter && !strchr("tnrfae", c)) {
        snprintf(what, sizeof(what), "\\%c", c);
        return refuse(t, what);
    }
    gy_str_putc(t->out, '\\');
    gy_str_putc(t->out, c);
    return GY_OK;
}

/* \b and \B by look-around, because PCRE2's are about its own \w. */
static void put_boundary(translator *t, int negated) {
    gy_str w = {0};
    put_bare_word_set(&w);
    const char *s = gy_str_z(&w);
    if (negated)
        gy_str_printf(t->out, "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))", s, s, s, s);
    else
        gy_str_printf(t->out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", s, s, s, s);
    t->out->failed |= w.failed;
    gy_str_free(&w);
}

static gy_status escape_outside(translator *t) {
    if (t->p == t->end) return refuse(t, "\\ at the end");
    char c = *t->p++, name[64];
    int negated = c == 'P' || c == 'S' || c == 'W' || c == 'D' || c == 'H';
    if (c == 'p' || c == 'P') {
        GY_TRY(read_property(t, name, &negated));
        gy_str_puts(t->out, negated ? "[^" : "[");
        GY_TRY(put_property(t, name));
        gy_str_putc(t->out, ']');
        return GY_OK;
    }
    if (strchr("swdhSWDH", c)) {
        gy_str_puts(t->out, negated ? "[^" : "[");
        if ((c | 32) == 'w')
            put_bare_word_set(t->out);
        else
            put_set(t, (char)(c | 32));
        gy_str_putc(t->out, ']');
        return GY_OK;
    }
    if (c == 'b' || c == 'B') {
        put_boundary(t, c == 'B');
        return GY_OK;
    }
    if (c == 'O') {
        gy_str_puts(t->out, "(?s:.)");
        return GY_OK;
    }
    if (strchr("AzZGKRNk", c)) {
        gy_str_putc(t->out, '\\');
        gy_str_putc(t->out, c);
        return GY_OK;
    }
    return put_escape_common(t, c);
}

/* ---- classes ---- */

static gy_status posix_class(translator *t) {
    static const char *const name[][2] = {{"[:space:]", SPACE_SET}, {"[:xdigit:]", HEX_SET}};
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        size_t n = strlen(name[i][0]);
        if ((size_t)(t->end - t->p) < n || memcmp(t->p, name[i][0], n) != 0) continue;
        gy_str_puts(t->out, name[i][1]);
        t->p += n;
        return GY_OK;
    }
    static const char digit[] = "[:digit:]", alpha[] = "[:alpha:]";
    int is_digit = t->end - t->p >= 9 && memcmp(t->p, digit, 9) == 0;
    if (is_digit || (t->end - t->p >= 9 && memcmp(t->p, alpha, 9) == 0)) {
        if (is_digit)
            put_category(t->out, "Nd");
        else
            put_alphabetic(t->out);
        t->p += 9;
        return GY_OK;
    }
    return refuse(t, "[ inside a class");
}

static gy_status escape_in_class(translator *t) {
    if (t->p == t->end) return refuse(t, "\\ at the end");
    char c = *t->p++, name[64];
    int negated = c == 'P';
    if (c == 'p' || c == 'P') {
        GY_TRY(read_property(t, name, &negated));
        if (!negated) return put_property(t, name);
        if (!is_category(category_alias(name))) return refuse(t, "\\P of a script inside a class");
        gy_str_printf(t->out, "\\P{%s}", category_alias(name));
        return GY_OK;
    }
    if (put_set(t, c)) return GY_OK;
    if (c == 'S') {
        gy_str_puts(t->out, NOT_SPACE_SET);
        return GY_OK;
    }
    if (c == 'D') {
        gy_str_puts(t->out, "\\P{Nd}");
        return GY_OK;
    }
    if (c == 'b') {
        gy_str_puts(t->out, "\\x{8}");
        return GY_OK;
    }
    return put_escape_common(t, c);
}

/* t->p behind the opening bracket. */
static gy_status translate_class(translator *t) {
    gy_str_putc(t->out, '[');
    if (t->p < t->end && *t->p == '^') gy_str_putc(t->out, *t->p++);
    if (t->p < t->end && *t->p == ']') {
        gy_str_puts(t->out, "\\]");
        t->p++;
    }
    while (t->p < t->end && *t->p != ']') {
        if (*t->p == '[') {
            GY_TRY(posix_class(t));
        } else if (*t->p == '&' && t->p + 1 < t->end && t->p[1] == '&') {
            return refuse(t, "&& inside a class");
        } else if (*t->p == '\\') {
            t->p++;
            GY_TRY(escape_in_class(t));
        } else
            gy_str_putc(t->out, *t->p++);
    }
    if (t->p == t->end) return refuse(t, "[ without ]");
    gy_str_putc(t->out, *t->p++);
    return GY_OK;
}

/* ---- groups and quantifiers ---- */

/* Options behind "(?": Ruby's i and m (PCRE2's s), and -. */
static gy_status group_options(translator *t, int at_start) {
    while (t->p < t->end && (*t->p == 'i' || *t->p == 'm' || *t->p == '-')) {
        gy_str_putc(t->out, *t->p == 'm' ? 's' : *t->p);
        t->p++;
    }
    if (t->p == t->end || (*t->p != ':' && *t->p != ')')) return refuse(t, "(?");
    if (*t->p == ')' && !at_start) return refuse(t, "(?i) in the middle of a group");
    t->group_start = 1;
    gy_str_putc(t->out, *t->p++);
    return GY_OK;
}

/* t->p behind the opening parenthesis. */
static gy_status translate_group(translator *t, int at_start) {
    gy_str_putc(t->out, '(');
    t->group_start = 1;
    if (t->p < t->end && *t->p == '*') return refuse(t, "(*");
    if (t->p == t->end || *t->p != '?') return GY_OK;
    gy_str_putc(t->out, *t->p++);
    if (t->p == t->end) return refuse(t, "(?");
    if (strchr(":=!><", *t->p)) {
        gy_str_putc(t->out, *t->p++);
        return GY_OK;
    }
    if (*t->p == '#') {
        while (t->p < t->end && *t->p != ')') gy_str_putc(t->out, *t->p++);
        t->group_start = at_start;
        return GY_OK;
    }
    return group_options(t, at_start);
}

/* t->p at an opening brace. Copies {n}, {n,}, {n,m}, {,m} as a quantifier, anything else as a literal brace. */
static gy_status translate_brace(translator *t) {
    const char *q = t->p + 1;
    int has_comma = 0, n_digit = 0;
    for (; q < t->end && ((*q >= '0' && *q <= '9') || (*q == ',' && !has_comma)); q++) {
        has_comma |= *q == ',';
        n_digit += *q != ',';
    }
    if (q == t->end || *q != '}' || n_digit == 0) {
        gy_str_puts(t->out, "\\{");
        t->p++;
        return GY_OK;
    }
    if (q + 1 < t->end && (q[1] == '+' || (q[1] == '?' && !has_comma))) return refuse(t, "{n}+ or {n}?");
    gy_str_puts(t->out, t->p[1] == ',' ? "{0" : "{");
    gy_str_append(t->out, t->p + 1, (size_t)(q - t->p));
    t->p = q + 1;
    return GY_OK;
}

static gy_status translate_one(translator *t, int at_start) {
    switch (*t->p) {
    case '\\':
        t->p++;
        return escape_outside(t);
    case '[':
        t->p++;
        return translate_class(t);
    case '(':
        t->p++;
        return translate_group(t, at_start);
    case '{':
        return translate_brace(t);
    case ']':
    case '}':
        gy_str_putc(t->out, '\\');
        break;
    default:
        break;
    }
    gy_str_putc(t->out, *t->p++);
    return GY_OK;
}

gy_status gy_regex_translate(const char *pattern, size_t len, gy_err *err, gy_str *out) {
    translator t = {.p = pattern, .end = pattern + len, .begin = pattern, .out = out, .err = err, .group_start = 1};
    if (!gy_utf8_valid(pattern, len)) return gy_err_set(err, GY_E_FORMAT, "pattern is not valid UTF-8");
    while (t.p < t.end) {
        int at_start = t.group_start;
        t.group_start = 0;
        GY_TRY(translate_one(&t, at_start));
    }
    return out->failed ? gy_err_set(err, GY_E_NOMEM, "no memory for a pattern") : GY_OK;
}
