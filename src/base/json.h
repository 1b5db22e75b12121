/* JSON in (jansson inside, nobody else sees it) and JSON out (a small writer that cannot fail on content).
 *
 * In: strict RFC 8259: valid UTF-8, no duplicate keys, no trailing text, \u0000 allowed (strings carry a length),
 * depth and size limited. Values are borrowed from the document and die with it. A document is read-only: any thread.
 * Accessors accept NULL and the wrong type and then return the default or NULL, so that optional fields read in a line.
 */
#ifndef GY_BASE_JSON_H
#define GY_BASE_JSON_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_json gy_json; /* a document; owns everything */
typedef struct gy_jv gy_jv;     /* a borrowed value */

typedef struct gy_json_limits {
    size_t max_bytes; /* 0 = 64 MiB */
    int max_depth;    /* 0 = 64 */
} gy_json_limits;

gy_status gy_json_parse(const char *text, size_t len, const gy_json_limits *lim, gy_err *err, gy_json **out);
gy_status gy_json_read(const char *path, const gy_json_limits *lim, gy_err *err, gy_json **out); /* errors name path */
void gy_json_free(gy_json *doc);                                                                 /* accepts NULL */
const gy_jv *gy_json_root(const gy_json *doc);

typedef enum gy_jtype {
    GY_J_NONE,
    GY_J_NULL,
    GY_J_BOOL,
    GY_J_INT,
    GY_J_REAL,
    GY_J_STRING,
    GY_J_ARRAY,
    GY_J_OBJECT
} gy_jtype;

gy_jtype gy_jv_type(const gy_jv *v);                       /* GY_J_NONE for NULL */
const char *gy_jtype_name(gy_jtype t);                     /* "an integer", "a string": for error messages */
const gy_jv *gy_jv_get(const gy_jv *obj, const char *key); /* NULL if absent or not an object; JSON null is returned */
size_t gy_jv_len(const gy_jv *v);                          /* elements of an array or object, else 0 */
const gy_jv *gy_jv_at(const gy_jv *arr, size_t i);
int gy_jv_bool(const gy_jv *v, int dflt);
int64_t gy_jv_int(const gy_jv *v, int64_t dflt); /* integers only */
double gy_jv_num(const gy_jv *v, double dflt);   /* integers and reals */
/* NUL-terminated bytes, *len_out (may be NULL) without the NUL. NULL if not a string. */
const char *gy_jv_str(const gy_jv *v, size_t *len_out);
int gy_jv_is_str(const gy_jv *v, const char *expected); /* 1 if a string equal to expected */

/* Members in file order. for (void *it = gy_jv_first(o); it; it = gy_jv_next(o, it)) ... */
void *gy_jv_first(const gy_jv *obj);
void *gy_jv_next(const gy_jv *obj, void *it);
const char *gy_jv_key(void *it, size_t *len_out);
const gy_jv *gy_jv_val(void *it);

/* Out. The writer puts commas by itself; nesting deeper than 32 is a GY_CHECK. Strings are sanitised to valid UTF-8
 * and escaped (control characters, quote, backslash, U+2028/9); NaN and infinities become null. */
typedef struct gy_jw {
    gy_str *out; /* borrowed */
    int depth;
    unsigned char first[33]; /* no comma needed before the next value of this level */
    unsigned char after_key;
} gy_jw;

void gy_jw_init(gy_jw *w, gy_str *out);
void gy_jw_obj_begin(gy_jw *w);
void gy_jw_obj_end(gy_jw *w);
void gy_jw_arr_begin(gy_jw *w);
void gy_jw_arr_end(gy_jw *w);
void gy_jw_key(gy_jw *w, const char *key);
void gy_jw_str(gy_jw *w, const char *s, size_t len);
void gy_jw_strz(gy_jw *w, const char *z); /* NULL writes null */
void gy_jw_int(gy_jw *w, int64_t v);
void gy_jw_f64(gy_jw *w, double v); /* shortest form that reads back to the same double */
void gy_jw_f32(gy_jw *w, float v);  /* shortest form that reads back to the same float */
void gy_jw_bool(gy_jw *w, int v);
void gy_jw_null(gy_jw *w);
/* A copy of a parsed value, whatever it is, as deep as its parser let it be: that does not count as nesting here. */
void gy_jw_value(gy_jw *w, const gy_jv *v);

#endif
