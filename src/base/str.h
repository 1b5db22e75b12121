/* A growing byte string (always NUL-terminated once touched) and UTF-8 helpers. Not thread-safe.
 * A failed append sets `failed` and later appends do nothing, so that a long builder checks once at its end.
 */
#ifndef GY_BASE_STR_H
#define GY_BASE_STR_H

#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_str {
    char *data; /* NULL while empty */
    size_t len, cap;
    int failed; /* 1 after an allocation failed */
} gy_str;

void gy_str_append(gy_str *s, const char *bytes, size_t len);
void gy_str_puts(gy_str *s, const char *z);
void gy_str_putc(gy_str *s, char c);
void gy_str_printf(gy_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void gy_str_put_utf8(gy_str *s, uint32_t codepoint); /* surrogates and > 0x10FFFF become U+FFFD */
void gy_str_clear(gy_str *s);                        /* keeps the memory */
void gy_str_free(gy_str *s);
const char *gy_str_z(const gy_str *s); /* never NULL */

/* Decodes one code point of s[0..len), len > 0. Returns the bytes used (1..4) and the code point; for an invalid
 * sequence returns the length of its maximal subpart (Unicode 3.9, U+FFFD substitution; what Python's "replace" does)
 * and *cp_out = 0xFFFFFFFF. */
int gy_utf8_decode(const char *s, size_t len, uint32_t *cp_out);
int gy_utf8_valid(const char *s, size_t len);
/* How many bytes at the end of s form a so far valid but unfinished sequence: 0..3. */
int gy_utf8_incomplete_tail(const char *s, size_t len);
/* Appends s to out with each maximal invalid subpart replaced by U+FFFD. */
void gy_utf8_sanitize(const char *s, size_t len, gy_str *out);

#endif
