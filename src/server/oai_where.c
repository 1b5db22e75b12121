/* Which field was it? For bodies that are not JSON: the parser tells line and column, clients look at `param`.
 * Deliberately no second parser: it follows strings and brackets only, and says nothing when unsure.
 */
#include "server/oai_int.h"

#include <stdio.h>
#include <string.h>

/* Columns count characters, as jansson does. */
size_t gy_oai_error_byte(const char *body, size_t len, const char *sentence) {
    int line, column;
    if (sscanf(sentence, "line %d, column %d:", &line, &column) != 2 || line < 1 || column < 0) return len;
    size_t i = 0;
    for (int l = 1; l < line && i < len; i++) l += body[i] == '\n';
    for (int c = 0; i < len && c < column; i++) c += i + 1 >= len || ((unsigned char)body[i + 1] & 0xC0) != 0x80;
    return i;
}

/* The position of the quote that closes the string opened at body[i], or len. */
static size_t string_end(const char *body, size_t len, size_t i) {
    for (i++; i < len && body[i] != '"'; i++) i += body[i] == '\\';
    return i < len ? i : len;
}

static void copy_name(const char *s, size_t n, char *name, size_t cap) {
    if (n >= cap) return;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= 0x20 || (unsigned char)s[i] >= 0x7F || s[i] == '\\') return;
    memcpy(name, s, n);
    name[n] = '\0';
}

void gy_oai_member_at(const char *body, size_t len, size_t at, char *name, size_t cap) {
    int depth = 0, want_key = 0;
    name[0] = '\0';
    for (size_t i = 0; i < len && i < at; i++) {
        char c = body[i];
        if (c == '"') {
            size_t end = string_end(body, len, i);
            if (depth == 1 && want_key && end < len) copy_name(body + i + 1, end - i - 1, name, cap);
            if (depth == 1) want_key = 0;
            i = end;
        } else if (c == '{' || c == '[') {
            if (!depth && c == '[') return;
            want_key = ++depth == 1;
        } else if (c == '}' || c == ']') {
            if (!--depth) name[0] = '\0';
        } else if (c == ',' && depth == 1 && i + 1 < at) {
            want_key = 1;
            name[0] = '\0';
        }
    }
}
