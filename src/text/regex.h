/* Patterns of tokenizer.json: written for Oniguruma (Ruby syntax, Unicode 16), run by PCRE2 with its JIT.
 *
 * The pattern is input: it is first rewritten construct by construct into PCRE2's syntax, and what has no equal there
 * is refused with its name (GY_E_UNSUPPORTED). Matching has limits on steps and memory. A gy_regex is immutable (any
 * thread); a gy_regex_scratch belongs to one thread and serves any pattern.
 */
#ifndef GY_TEXT_REGEX_H
#define GY_TEXT_REGEX_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_regex gy_regex;
typedef struct gy_regex_scratch gy_regex_scratch;

gy_status gy_regex_create(const char *pattern, size_t len, gy_err *err, gy_regex **out);
void gy_regex_destroy(gy_regex *r); /* accepts NULL */
/* The rewriting alone: appends PCRE2's spelling of an Oniguruma pattern. */
gy_status gy_regex_translate(const char *pattern, size_t len, gy_err *err, gy_str *out);

gy_status gy_regex_scratch_create(gy_regex_scratch **out);
void gy_regex_scratch_destroy(gy_regex_scratch *s); /* accepts NULL */

/* Walks the matches of r in text[0..len), which is valid UTF-8 (checked once by the caller, never here). Between calls
 * the walk owns nothing. An empty match directly behind the previous match is skipped, as Oniguruma's iterator does. */
typedef struct gy_regex_walk {
    size_t from;     /* where the next search begins */
    size_t last_end; /* SIZE_MAX before the first match */
} gy_regex_walk;
#define GY_REGEX_WALK_INIT                                                                                             \
    { 0, SIZE_MAX }

/* GY_OK with a match, GY_DONE when there is none left, GY_E_LIMIT when the pattern takes too many steps on this text.
 * *steps grows by the bytes looked at. */
gy_status gy_regex_next(const gy_regex *r, gy_regex_scratch *s, const char *text, size_t len, gy_regex_walk *walk,
                        int64_t *steps, gy_err *err, size_t *start_out, size_t *end_out);

#endif
