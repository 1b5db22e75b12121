/* The growing byte string and UTF-8 as Unicode defines it (table 3-7: no overlong forms, no surrogates, nothing above
 * U+10FFFF). Deliberately not here: normalisation, case, properties (utf8proc, in text/).
 */
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Makes room for `more` bytes and the NUL. Nonzero when the string has failed, now or before. */
static int str_reserve(gy_str *s, size_t more) {
    size_t need;
    if (s->failed) return 1;
    if (gy_size_add(s->len, more, &need) || gy_size_add(need, 1, &need)) return s->failed = 1;
    if (need <= s->cap) return 0;
    size_t want = s->cap < 64 ? 64 : s->cap;
    while (want < need) want = want > SIZE_MAX / 2 ? need : want * 2;
    char *p = gy_mem_realloc(GY_MEM_BASE, s->data, want, 1);
    if (!p) return s->failed = 1;
    s->data = p;
    s->cap = want;
    return 0;
}

void gy_str_append(gy_str *s, const char *bytes, size_t len) {
    if (str_reserve(s, len)) return;
    if (len) memcpy(s->data + s->len, bytes, len);
    s->len += len;
    s->data[s->len] = '\0';
}

void gy_str_puts(gy_str *s, const char *z) {
    gy_str_append(s, z, strlen(z));
}

void gy_str_putc(gy_str *s, char c) {
    gy_str_append(s, &c, 1);
}

void gy_str_printf(gy_str *s, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        s->failed = 1;
    else if (!str_reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void gy_str_put_utf8(gy_str *s, uint32_t cp) {
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = 0xFFFD;
    char b[4];
    size_t n;
    if (cp < 0x80) {
        b[0] = (char)cp;
        n = 1;
    } else if (cp < 0x800) {
        b[0] = (char)(0xC0 | (cp >> 6));
        b[1] = (char)(0x80 | (cp & 0x3F));
        n = 2;
    } else if (cp < 0x10000) {
        b[0] = (char)(0xE0 | (cp >> 12));
        b[1] = (char)(0x80 | ((cp >> 6) & 0x3F));
        b[2] = (char)(0x80 | (cp & 0x3F));
        n = 3;
    } else {
        b[0] = (char)(0xF0 | (cp >> 18));
        b[1] = (char)(0x80 | ((cp >> 12) & 0x3F));
        b[2] = (char)(0x80 | ((cp >> 6) & 0x3F));
        b[3] = (char)(0x80 | (cp & 0x3F));
        n = 4;
    }
    gy_str_append(s, b, n);
}

void gy_str_clear(gy_str *s) {
    s->len = 0;
    s->failed = 0;
    if (s->data) s->data[0] = '\0';
}

void gy_str_free(gy_str *s) {
    gy_mem_free(s->data);
    *s = (gy_str){0};
}

const char *gy_str_z(const gy_str *s) {
    return s->data ? s->data : "";
}

/* Unicode table 3-7: length that a first byte announces (0 = no first byte) and the range of its second byte. */
static int utf8_lead(unsigned char b, unsigned char *lo, unsigned char *hi) {
    *lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    *hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (b < 0x80) return 1;
    if (b < 0xC2) return 0;
    if (b < 0xE0) return 2;
    if (b < 0xF0) return 3;
    return b < 0xF5 ? 4 : 0;
}

int gy_utf8_decode(const char *s, size_t len, uint32_t *cp_out) {
    unsigned char b = (unsigned char)s[0], lo, hi;
    int n = utf8_lead(b, &lo, &hi);
    *cp_out = 0xFFFFFFFFu;
    if (n == 0) return 1;
    uint32_t cp = n == 1 ? b : b & (0x7Fu >> n);
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len) return i;
        unsigned char c = (unsigned char)s[i];
        if (c < lo || c > hi) return i;
        cp = (cp << 6) | (c & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp_out = cp;
    return n;
}

int gy_utf8_valid(const char *s, size_t len) {
    uint32_t cp;
    for (size_t i = 0; i < len;) {
        i += (size_t)gy_utf8_decode(s + i, len - i, &cp);
        if (cp == 0xFFFFFFFFu) return 0;
    }
    return 1;
}

int gy_utf8_incomplete_tail(const char *s, size_t len) {
    for (int k = 1; k <= 3 && (size_t)k <= len; k++) {
        const char *tail = s + len - (size_t)k;
        unsigned char lo, hi;
        if (((unsigned char)*tail & 0xC0) == 0x80) continue;
        uint32_t cp;
        return utf8_lead((unsigned char)*tail, &lo, &hi) > k && gy_utf8_decode(tail, (size_t)k, &cp) == k ? k : 0;
    }
    return 0;
}

void gy_utf8_sanitize(const char *s, size_t len, gy_str *out) {
    size_t good = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(s + i, len - i, &cp);
        if (cp == 0xFFFFFFFFu) {
            gy_str_append(out, s + good, i - good);
            gy_str_append(out, "\xEF\xBF\xBD", 3);
            good = i + n;
        }
        i += n;
    }
    if (good < len) gy_str_append(out, s + good, len - good);
}
