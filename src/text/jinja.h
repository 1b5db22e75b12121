/* Chat templates: a small Jinja of our own. Text, {{ }}, {% %}, {# #} with the white space rules that transformers sets
 * (trim_blocks, lstrip_blocks); if, for, set, macro, call, filter, with, break, continue; generation blocks are passed
 * through. What it prints is what PyPI's jinja2 prints in transformers' sandbox (tests/golden/chat). An unknown tag,
 * filter or test is an error when the template is compiled. Deliberately not there: include, import, extends, block,
 * files, clocks, anything that reaches outside the given values, and every method that changes a value.
 *
 * Each byte of the output says where it came from: from the template's own text and literals (markup), or from the
 * values that it was given (data), through whatever filters, slices and concatenations it went. Only markup may be
 * tokenised with special tokens on.
 *
 * Size, steps, nesting, memory and output are limited: past a limit is an error, never a hang.
 * A compiled template is read-only: any number of threads may render from it.
 */
#ifndef GY_TEXT_JINJA_H
#define GY_TEXT_JINJA_H

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"
#include "base/vec.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct gy_jinja gy_jinja;

typedef struct gy_jinja_limits { /* 0 = the default */
    size_t max_template_bytes;   /* 1 MiB */
    size_t max_output_bytes;     /* 64 MiB */
    size_t max_memory_bytes;     /* 256 MiB: all values of one rendering */
    int64_t max_steps;           /* 20,000,000: expressions, loop turns, items and 64 byte pieces looked at */
    int max_depth;               /* 400: nested expressions, statements and macro calls together */
} gy_jinja_limits;

/* text is copied; it must be UTF-8. `name` is used in messages: "name: line 3: ...". GY_E_FORMAT for a template that is
 * not understood, GY_E_LIMIT for one that is too large or too deeply nested. lim may be NULL and is kept. */
gy_status gy_jinja_compile(const char *text, size_t len, const char *name, const gy_jinja_limits *lim, gy_err *err,
                           gy_jinja **out);
void gy_jinja_destroy(gy_jinja *t);                              /* accepts NULL */
const char *gy_jinja_source(const gy_jinja *t, size_t *len_out); /* borrowed */
int gy_jinja_reads(const gy_jinja *t, const char *name);         /* 1 if the name occurs in an expression of it */

typedef struct gy_jinja_segment {
    size_t off, len;
    int is_data;
} gy_jinja_segment;

/* Segments cover text exactly, in order, and neighbours differ in is_data. */
typedef struct gy_jinja_out {
    gy_str text;
    GY_VEC(gy_jinja_segment) seg;
} gy_jinja_out;
void gy_jinja_out_free(gy_jinja_out *o); /* leaves it empty */

/* Renders with the members of `context` (an object, or NULL) as the template's variables, all of them data. now: what
 * strftime_now formats; NULL: a template that calls it fails. *out must be empty; it is written only on GY_OK.
 * GY_E_ARG: the template refused its input (raise_exception) or could not work with it; GY_E_LIMIT: past a limit. */
gy_status gy_jinja_render(const gy_jinja *t, const gy_jv *context, const struct tm *now, gy_err *err,
                          gy_jinja_out *out);

#endif
