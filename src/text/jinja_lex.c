/* Template text to tokens. The white space rules are those of jinja2's lexer with trim_blocks and lstrip_blocks: a line
 * end behind a tag or comment goes, blanks between a line's start and a tag or comment go; "-" takes all white space on
 * its side, "+" keeps it. Line ends become \n and one at the very end is dropped, as jinja2 does.
 * Deliberately not there: line statements, other delimiters, names beyond ASCII.
 */
#include "text/jinja_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct lex {
    gy_jj_parser *p;
    const char *s;
    size_t len, at;
    int line;
    size_t line_at;    /* line is that of this byte */
    int line_starting; /* what was read last ended a line */
} lex;

int gy_jj_parse_fail(gy_jj_parser *p, gy_status st, int line, const char *fmt, ...) {
    char sentence[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    gy_err_set(p->err, st, "%s: line %d: %s", p->t->name, line, sentence);
    return -1;
}

static int lex_no_memory(lex *l) {
    return gy_jj_parse_fail(l->p, GY_E_NOMEM, l->line, "no memory for the template");
}

static int line_of(lex *l, size_t at) {
    for (; l->line_at < at; l->line_at++) l->line += l->s[l->line_at] == '\n';
    return l->line;
}

static int lex_push(lex *l, gy_jj_tok type, const char *s, size_t len, int line) {
    gy_jj_token t = {.type = (uint8_t)type, .line = line, .s = s, .len = len};
    return gy_vec_push(&l->p->tok, GY_MEM_TEXT, t) ? lex_no_memory(l) : 0;
}

static int at_text(const lex *l, size_t at, const char *z) {
    size_t n = strlen(z);
    return l->len - at >= n && memcmp(l->s + at, z, n) == 0;
}

static size_t space_from(const lex *l, size_t at) {
    while (at < l->len) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(l->s + at, l->len - at, &cp);
        if (!gy_jj_is_space(cp)) break;
        at += n;
    }
    return at;
}

/* Where white space in front of s[end] begins. */
static size_t space_before(const lex *l, size_t begin, size_t end) {
    while (end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)l->s[at] & 0xC0) == 0x80) at--;
        uint32_t cp;
        gy_utf8_decode(l->s + at, end - at, &cp);
        if (!gy_jj_is_space(cp)) break;
        end = at;
    }
    return end;
}

/* Text in front of a tag that begins at `end`, whose sign ('-', '+' or 0) stands behind its two bytes. */
static int text_emit(lex *l, size_t begin, size_t end, char sign, int is_print) {
    size_t stop = end;
    if (sign == '-')
        stop = space_before(l, begin, end);
    else if (sign != '+' && !is_print) {
        size_t bol = end;
        while (bol > begin && l->s[bol - 1] != '\n') bol--;
        if ((bol > begin || l->line_starting) && space_before(l, bol, end) == bol) stop = bol;
    }
    if (stop == begin) return 0;
    return lex_push(l, GY_JJ_T_TEXT, l->s + begin, stop - begin, line_of(l, begin));
}

/* Behind the end mark of two bytes at l->at, which may have a sign in front. Block ends swallow one line end. */
static void end_skip(lex *l, char sign, int is_print) {
    size_t from = l->at;
    l->at += 2 + (sign != 0);
    if (sign == '-')
        l->at = space_from(l, l->at);
    else if (sign != '+' && !is_print && l->at < l->len && l->s[l->at] == '\n')
        l->at++;
    l->line_starting = l->at > from && l->s[l->at - 1] == '\n';
}

/* The end mark `z` at at, with its sign in *sign; 1 if it is there. */
static int end_here(const lex *l, size_t at, const char *z, int plus, char *sign) {
    *sign = 0;
    if (at_text(l, at, z)) return 1;
    if (at < l->len && (l->s[at] == '-' || (plus && l->s[at] == '+')) && at_text(l, at + 1, z)) {
        *sign = l->s[at];
        return 1;
    }
    return 0;
}

static char sign_at(const lex *l, size_t at) {
    return at < l->len && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static int comment_skip(lex *l, size_t begin) {
    char sign;
    for (l->at = begin + 2 + (sign_at(l, begin + 2) != 0); l->at < l->len; l->at++) {
        if (!end_here(l, l->at, "#}", 1, &sign)) continue;
        end_skip(l, sign, 0);
        return 0;
    }
    return gy_jj_parse_fail(l->p, GY_E_FORMAT, line_of(l, begin), "a comment begins here and has no #}");
}

/* "{% word %}" at at: the byte behind it and its two signs. 0 if something else is there. */
static size_t word_tag(const lex *l, size_t at, const char *word, int plus, char *open, char *close) {
    if (!at_text(l, at, "{%")) return 0;
    *open = sign_at(l, at + 2);
    at = space_from(l, at + 2 + (*open != 0));
    if (!at_text(l, at, word)) return 0;
    at = space_from(l, at + strlen(word));
    return end_here(l, at, "%}", plus, close) ? at : 0;
}

static int raw_block(lex *l, size_t begin, size_t end_mark, char close) {
    l->at = end_mark + 2 + (close != 0);
    if (close == '-') l->at = space_from(l, l->at);
    l->line_starting = l->s[l->at - 1] == '\n';
    size_t text = l->at;
    for (size_t at = text; at < l->len; at++) {
        char open, sign;
        size_t mark = l->s[at] == '{' ? word_tag(l, at, "endraw", 1, &open, &sign) : 0;
        if (!mark) continue;
        if (text_emit(l, text, at, open, 0)) return -1;
        l->at = mark;
        end_skip(l, sign, 0);
        return 0;
    }
    return gy_jj_parse_fail(l->p, GY_E_FORMAT, line_of(l, begin), "a raw block begins here and has no {%% endraw %%}");
}

/* ---- inside {{ }} and {% %} ---- */

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int is_name_start(char c) {
    return c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* Digits with single underscores between them; appended to out. */
static size_t digits(const lex *l, size_t at, gy_str *out) {
    while (at < l->len && (is_digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->len && is_digit(l->s[at + 1])))) {
        if (l->s[at] != '_') gy_str_putc(out, l->s[at]);
        at++;
    }
    return at;
}

/* ".5" behind digits, "e5", "e-5"; at unchanged where that is something else ("1.real", "1e"). */
static size_t number_rest(const lex *l, size_t at, gy_str *out) {
    if (at + 1 < l->len && l->s[at] == '.' && is_digit(l->s[at + 1])) {
        gy_str_putc(out, '.');
        at = digits(l, at + 1, out);
    }
    size_t e = at;
    if (e < l->len && (l->s[e] | 32) == 'e') e++;
    if (e > at && e < l->len && (l->s[e] == '+' || l->s[e] == '-')) e++;
    if (e == at || e >= l->len || !is_digit(l->s[e])) return at;
    gy_str_append(out, l->s + at, e - at);
    return digits(l, e, out);
}

static int lex_number(lex *l) {
    gy_str text = {0};
    int line = line_of(l, l->at);
    size_t end = digits(l, l->at, &text);
    const gy_jj_token *before = l->p->tok.len ? &l->p->tok.data[l->p->tok.len - 1] : NULL;
    int is_index = before && before->type == GY_JJ_T_OP && strcmp(before->s, ".") == 0; /* x.0.1 */
    if (!is_index) end = number_rest(l, end, &text);
    l->at = end;
    char *copy = text.failed ? NULL : gy_arena_strndup(l->p->t->arena, gy_str_z(&text), text.len);
    size_t len = text.len;
    gy_str_free(&text);
    if (!copy) return lex_no_memory(l);
    if (len > 1 && copy[0] == '0' && is_digit(copy[1]) && !strpbrk(copy, ".eE"))
        return gy_jj_parse_fail(l->p, GY_E_FORMAT, line, "the number %.40s begins with a zero", copy);
    return lex_push(l, GY_JJ_T_NUMBER, copy, len, line);
}

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n hexadecimal digits at s[*at]; -1 if they are not there or name no character. */
static int64_t hex_digits(const char *s, size_t len, size_t *at, int n) {
    int64_t v = 0;
    for (int i = 0; i < n; i++, ++*at) {
        int d = *at < len ? hex_value(s[*at]) : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF) ? -1 : v;
}

/* The escape behind a backslash at s[*at]. -1: one that names no character. */
static int unescape_one(const char *s, size_t len, size_t *at, gy_str *out) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[(*at)++];
    const char *plain = strchr(from, c);
    int64_t cp = -2;
    if (c && plain)
        gy_str_putc(out, to[plain - from]);
    else if (c >= '0' && c <= '7') {
        cp = c - '0';
        for (int i = 0; i < 2 && *at < len && s[*at] >= '0' && s[*at] <= '7'; i++) cp = cp * 8 + (s[(*at)++] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U')
        cp = hex_digits(s, len, at, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    else if (c != '\n') { /* as Python: an unknown escape stays as it is written */
        gy_str_putc(out, '\\');
        gy_str_putc(out, c);
    }
    if (cp >= 0) gy_str_put_utf8(out, (uint32_t)cp);
    return cp == -1 ? -1 : 0;
}

static int unescape(const char *s, size_t len, gy_str *out) {
    for (size_t at = 0; at < len;) {
        if (s[at] != '\\')
            gy_str_putc(out, s[at++]);
        else {
            at++;
            if (at == len || unescape_one(s, len, &at, out)) return -1;
        }
    }
    return 0;
}

static int lex_string(lex *l) {
    size_t begin = l->at, end = begin + 1;
    int line = line_of(l, begin);
    for (; end < l->len && l->s[end] != l->s[begin]; end++)
        if (l->s[end] == '\\') end++;
    if (end >= l->len) return gy_jj_parse_fail(l->p, GY_E_FORMAT, line, "a string begins here and does not end");
    gy_str text = {0};
    int bad = unescape(l->s + begin + 1, end - begin - 1, &text);
    char *copy = text.failed ? NULL : gy_arena_strndup(l->p->t->arena, gy_str_z(&text), text.len);
    size_t len = text.len;
    gy_str_free(&text);
    if (!copy) return lex_no_memory(l);
    if (bad) return gy_jj_parse_fail(l->p, GY_E_FORMAT, line, "an escape in this string names no character");
    l->at = end + 1;
    return lex_push(l, GY_JJ_T_STRING, copy, len, line);
}

static int lex_name(lex *l) {
    size_t end = l->at;
    while (end < l->len && (is_name_start(l->s[end]) || is_digit(l->s[end]))) end++;
    char *copy = gy_arena_strndup(l->p->t->arena, l->s + l->at, end - l->at);
    if (!copy) return lex_no_memory(l);
    int line = line_of(l, l->at);
    size_t len = end - l->at;
    l->at = end;
    return lex_push(l, GY_JJ_T_NAME, copy, len, line);
}

/* stack: the closing brackets that are awaited. */
static int lex_op(lex *l, char *stack, int *depth) {
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    static const char open[] = "([{", close[] = ")]}";
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!at_text(l, l->at, ops[i])) continue;
        int line = line_of(l, l->at);
        char c = l->s[l->at];
        const char *o = strchr(open, c), *e = strchr(close, c);
        if (o && *depth == GY_JJ_PARSE_DEPTH)
            return gy_jj_parse_fail(l->p, GY_E_LIMIT, line, "brackets nested more than %d deep", GY_JJ_PARSE_DEPTH);
        if (o) stack[(*depth)++] = close[o - open];
        if (e && (*depth == 0 || stack[--*depth] != c))
            return gy_jj_parse_fail(l->p, GY_E_FORMAT, line, "unexpected '%c'", c);
        l->at += strlen(ops[i]);
        return lex_push(l, GY_JJ_T_OP, ops[i], strlen(ops[i]), line);
    }
    unsigned char c = (unsigned char)l->s[l->at];
    return gy_jj_parse_fail(
        l->p, GY_E_FORMAT, line_of(l, l->at),
        c > 0x20 && c < 0x7F ? "unexpected character '%c' in an expression" : "unexpected byte %d in an expression", c);
}

static int lex_expression(lex *l, size_t begin, int is_print) {
    char stack[GY_JJ_PARSE_DEPTH], sign;
    int depth = 0, line = line_of(l, begin);
    const char *end = is_print ? "}}" : "%}";
    if (lex_push(l, is_print ? GY_JJ_T_PRINT_BEGIN : GY_JJ_T_TAG_BEGIN, is_print ? "{{" : "{%", 2, line)) return -1;
    for (l->at = begin + 2 + (sign_at(l, begin + 2) != 0);;) {
        l->at = space_from(l, l->at);
        if (l->at >= l->len)
            return gy_jj_parse_fail(l->p, GY_E_FORMAT, line, "%s begins here and has no %s", is_print ? "{{" : "{%",
                                    end);
        char c = l->s[l->at];
        if (depth == 0 && end_here(l, l->at, end, !is_print, &sign)) break;
        int failed = is_name_start(c)        ? lex_name(l)
                     : is_digit(c)           ? lex_number(l)
                     : c == '"' || c == '\'' ? lex_string(l)
                                             : lex_op(l, stack, &depth);
        if (failed) return -1;
    }
    line = line_of(l, l->at);
    end_skip(l, sign, is_print);
    return lex_push(l, is_print ? GY_JJ_T_PRINT_END : GY_JJ_T_TAG_END, end, 2, line);
}

/* ---- */

static int lex_tag(lex *l, size_t text, size_t begin) {
    char kind = l->s[begin + 1], open, close;
    int is_print = kind == '{';
    if (text_emit(l, text, begin, sign_at(l, begin + 2), is_print)) return -1;
    if (kind == '#') return comment_skip(l, begin);
    size_t raw = is_print ? 0 : word_tag(l, begin, "raw", 0, &open, &close);
    return raw ? raw_block(l, begin, raw, close) : lex_expression(l, begin, is_print);
}

static int lex_all(lex *l) {
    while (l->at < l->len) {
        size_t text = l->at, begin = text;
        while (begin + 1 < l->len && !(l->s[begin] == '{' && strchr("{%#", l->s[begin + 1]) && l->s[begin + 1]))
            begin++;
        if (begin + 1 >= l->len)
            return lex_push(l, GY_JJ_T_TEXT, l->s + text, l->len - text, line_of(l, text)) ||
                   lex_push(l, GY_JJ_T_END, "", 0, line_of(l, l->len));
        if (lex_tag(l, text, begin)) return -1;
    }
    return lex_push(l, GY_JJ_T_END, "", 0, line_of(l, l->len));
}

static char *normal_lines(gy_arena *a, const char *text, size_t len, size_t *out_len) {
    char *s = gy_arena_strndup(a, text, len);
    size_t n = 0;
    for (size_t i = 0; s && i < len; i++) {
        if (s[i] == '\r' && i + 1 < len && s[i + 1] == '\n') continue;
        s[n++] = s[i] == '\r' ? '\n' : s[i];
    }
    if (n && s[n - 1] == '\n') n--;
    *out_len = n;
    return s;
}

int gy_jj_lex(gy_jj_parser *p, const char *text, size_t len) {
    lex l = {.p = p, .line = 1, .line_starting = 1};
    l.s = normal_lines(p->t->arena, text, len, &l.len);
    if (!l.s) return lex_no_memory(&l);
    return lex_all(&l);
}
