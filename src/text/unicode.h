/* What the tokenizers need to know about code points: categories, white space, case, the four normal forms.
 * Tables: utf8proc (Unicode 15), patched with unicode_extra.inc to what PyPI's tokenizers 0.23.3 knows (16).
 */
#ifndef GY_TEXT_UNICODE_H
#define GY_TEXT_UNICODE_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

const char *gy_uni_category(uint32_t cp);        /* "Lu", ..., "Cn": two letters, static */
int gy_uni_is_space(uint32_t cp);                /* White_Space */
int gy_uni_is_numeric(uint32_t cp);              /* N*, as Rust's char::is_numeric */
int gy_uni_is_word(uint32_t cp);                 /* \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control */
int gy_uni_is_punct(uint32_t cp);                /* what tokenizers' Punctuation splits at */
void gy_uni_put_lower(gy_str *out, uint32_t cp); /* full lower case mapping without context */

typedef enum gy_uni_form { GY_UNI_NFC, GY_UNI_NFD, GY_UNI_NFKC, GY_UNI_NFKD } gy_uni_form;

/* Appends text (valid UTF-8) in the given normal form. Linear in len, whatever the text: runs of combining marks are
 * ordered by counting, not by neighbour swaps. *steps (may be NULL) grows by the work done. */
gy_status gy_uni_normalize(const char *text, size_t len, gy_uni_form form, int64_t *steps, gy_str *out);

/* Length of the white space at the end and at the start of s[0..len), which is valid UTF-8. */
size_t gy_uni_space_suffix(const char *s, size_t len);
size_t gy_uni_space_prefix(const char *s, size_t len);

/* Code points of one general category ("Lu", or "L" for all that begin with it) that PCRE2's own tables (Unicode 14)
 * may lack: appends \x{lo}-\x{hi} for each range. For rewriting patterns. */
void gy_uni_put_extra_ranges(gy_str *out, const char *category);

#endif
