/* JSON in, on jansson; JSON out, our own writer.
 *
 * In: jansson parses and holds the tree; gy_jv is its json_t under another name and never changes after parsing (no
 * reference count is touched), which is why any thread may read it. Depth is checked before jansson runs, because its
 * own limit is fixed and its parser recurses. One limit is jansson's: a NUL byte inside a member name is refused.
 * Out: deliberately no pretty printing and no errors; the only failure is the gy_str's memory.
 */
#include "base/json.h"

#include "base/file.h"
#include "base/mem.h"

#include <float.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gy_json {
    json_t *root;
};

enum { JSON_DEPTH_DEFAULT = 64, JSON_DEPTH_JANSSON = 2048, JW_DEPTH = 32 };
#define JSON_BYTES_DEFAULT ((size_t)64 << 20)

/* ---- in ---- */

/* jansson reports a failed allocation as whatever it was doing; this remembers the cause for the parse in progress. */
static _Thread_local int json_no_memory;
static pthread_once_t json_once = PTHREAD_ONCE_INIT;

static void *json_alloc(size_t bytes) {
    void *p = gy_mem_realloc(GY_MEM_JSON, NULL, bytes, 1);
    if (!p) json_no_memory = 1;
    return p;
}

static void json_install(void) {
    json_set_alloc_funcs(json_alloc, gy_mem_free);
}

/* The position behind a string that starts at text[i] (a quote), or len. */
static size_t json_skip_string(const char *text, size_t len, size_t i) {
    for (i++; i < len && text[i] != '"'; i++)
        if (text[i] == '\\') i++;
    return i;
}

static int json_depth(const char *text, size_t len) {
    int depth = 0, deepest = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '"')
            i = json_skip_string(text, len, i);
        else if (c == '[' || c == '{')
            depth += depth < INT32_MAX;
        else if (c == ']' || c == '}')
            depth--;
        if (depth > deepest) deepest = depth;
    }
    return deepest;
}

static gy_status json_check_limits(const char *text, size_t len, const gy_json_limits *lim, gy_err *err) {
    size_t max_bytes = lim && lim->max_bytes ? lim->max_bytes : JSON_BYTES_DEFAULT;
    int max_depth = lim && lim->max_depth > 0 ? lim->max_depth : JSON_DEPTH_DEFAULT;
    if (max_depth > JSON_DEPTH_JANSSON) max_depth = JSON_DEPTH_JANSSON;
    if (len > max_bytes)
        return gy_err_set(err, GY_E_LIMIT, "JSON text of %zu bytes, at most %zu are allowed", len, max_bytes);
    if (len == 0) return gy_err_set(err, GY_E_FORMAT, "line 1, column 1: found an empty text, expected a JSON value");
    int depth = json_depth(text, len);
    if (depth > max_depth)
        return gy_err_set(err, GY_E_LIMIT, "JSON nested %d deep, at most %d levels are allowed", depth, max_depth);
    return GY_OK;
}

/* jansson quotes the input in its sentence: keep it printable on one line. */
static gy_status json_report(gy_err *err, json_error_t *e) {
    if (json_no_memory) return gy_err_set(err, GY_E_NOMEM, "no memory to parse JSON");
    int valid = gy_utf8_valid(e->text, strlen(e->text));
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F || (!valid && (unsigned char)*c >= 0x80)) *c = '?';
    return gy_err_set(err, GY_E_FORMAT, "line %d, column %d: not valid JSON: %s", e->line, e->column, e->text);
}

gy_status gy_json_parse(const char *text, size_t len, const gy_json_limits *lim, gy_err *err, gy_json **out) {
    GY_TRY(json_check_limits(text, len, lim, err));
    pthread_once(&json_once, json_install);
    gy_json *doc = gy_mem_alloc(GY_MEM_JSON, 1, sizeof *doc);
    if (!doc) return gy_err_set(err, GY_E_NOMEM, "no memory to parse JSON");
    json_error_t e;
    json_no_memory = 0;
    doc->root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    /* jansson passes over a failed growth of its token buffer: a root alone does not say that all bytes are in it. */
    if (!doc->root || json_no_memory) {
        gy_json_free(doc);
        return json_report(err, &e);
    }
    *out = doc;
    return GY_OK;
}

gy_status gy_json_read(const char *path, const gy_json_limits *lim, gy_err *err, gy_json **out) {
    gy_map m;
    GY_TRY(gy_map_open(path, err, &m));
    gy_status st = gy_json_parse(m.data, m.size, lim, err, out);
    gy_map_close(&m);
    if (st < 0) gy_err_prefix(err, "%s", path);
    return st;
}

void gy_json_free(gy_json *doc) {
    if (!doc) return;
    json_decref(doc->root);
    gy_mem_free(doc);
}

/* jansson's readers take json_t without const where they only look. */
static json_t *jv_json(const gy_jv *v) {
    return (json_t *)(uintptr_t)v;
}

static const gy_jv *jv_from(const json_t *j) {
    return (const gy_jv *)j;
}

const gy_jv *gy_json_root(const gy_json *doc) {
    return doc ? jv_from(doc->root) : NULL;
}

gy_jtype gy_jv_type(const gy_jv *v) {
    if (!v) return GY_J_NONE;
    switch (json_typeof(jv_json(v))) {
    case JSON_NULL:
        return GY_J_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return GY_J_BOOL;
    case JSON_INTEGER:
        return GY_J_INT;
    case JSON_REAL:
        return GY_J_REAL;
    case JSON_STRING:
        return GY_J_STRING;
    case JSON_ARRAY:
        return GY_J_ARRAY;
    case JSON_OBJECT:
        return GY_J_OBJECT;
    }
    return GY_J_NONE;
}

const char *gy_jtype_name(gy_jtype t) {
    static const char *const names[] = {"nothing",       "null",     "true or false", "an integer",
                                        "a real number", "a string", "an array",      "an object"};
    return (unsigned)t < sizeof names / sizeof *names ? names[t] : "nothing";
}

const gy_jv *gy_jv_get(const gy_jv *obj, const char *key) {
    return jv_from(json_object_get(jv_json(obj), key));
}

size_t gy_jv_len(const gy_jv *v) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_ARRAY) return json_array_size(jv_json(v));
    return t == GY_J_OBJECT ? json_object_size(jv_json(v)) : 0;
}

const gy_jv *gy_jv_at(const gy_jv *arr, size_t i) {
    return jv_from(json_array_get(jv_json(arr), i));
}

int gy_jv_bool(const gy_jv *v, int dflt) {
    return gy_jv_type(v) == GY_J_BOOL ? json_is_true(jv_json(v)) : dflt;
}

int64_t gy_jv_int(const gy_jv *v, int64_t dflt) {
    return gy_jv_type(v) == GY_J_INT ? (int64_t)json_integer_value(jv_json(v)) : dflt;
}

double gy_jv_num(const gy_jv *v, double dflt) {
    gy_jtype t = gy_jv_type(v);
    return t == GY_J_INT || t == GY_J_REAL ? json_number_value(jv_json(v)) : dflt;
}

const char *gy_jv_str(const gy_jv *v, size_t *len_out) {
    if (gy_jv_type(v) != GY_J_STRING) return NULL;
    if (len_out) *len_out = json_string_length(jv_json(v));
    return json_string_value(jv_json(v));
}

int gy_jv_is_str(const gy_jv *v, const char *expected) {
    size_t len;
    const char *s = gy_jv_str(v, &len);
    return s && len == strlen(expected) && memcmp(s, expected, len) == 0;
}

void *gy_jv_first(const gy_jv *obj) {
    return json_object_iter(jv_json(obj));
}

void *gy_jv_next(const gy_jv *obj, void *it) {
    return json_object_iter_next(jv_json(obj), it);
}

const char *gy_jv_key(void *it, size_t *len_out) {
    if (!it) return NULL;
    if (len_out) *len_out = json_object_iter_key_len(it);
    return json_object_iter_key(it);
}

const gy_jv *gy_jv_val(void *it) {
    return jv_from(json_object_iter_value(it));
}

/* ---- out ---- */

void gy_jw_init(gy_jw *w, gy_str *out) {
    *w = (gy_jw){.out = out, .first = {1}};
}

/* Called before each value and key: the comma, unless a key or nothing stands before it. */
static void jw_separate(gy_jw *w) {
    if (!w->after_key && !w->first[w->depth]) gy_str_putc(w->out, ',');
    w->after_key = 0;
    w->first[w->depth] = 0;
}

static void jw_open(gy_jw *w, char bracket) {
    jw_separate(w);
    GY_CHECK(w->depth < JW_DEPTH);
    gy_str_putc(w->out, bracket);
    w->first[++w->depth] = 1;
}

static void jw_close(gy_jw *w, char bracket) {
    GY_CHECK(w->depth > 0 && !w->after_key);
    w->depth--;
    gy_str_putc(w->out, bracket);
}

void gy_jw_obj_begin(gy_jw *w) {
    jw_open(w, '{');
}

void gy_jw_obj_end(gy_jw *w) {
    jw_close(w, '}');
}

void gy_jw_arr_begin(gy_jw *w) {
    jw_open(w, '[');
}

void gy_jw_arr_end(gy_jw *w) {
    jw_close(w, ']');
}

/* The escape of a code point, or NULL when its bytes stand for themselves. U+2028 and U+2029 end lines in JavaScript.
 */
static const char *jw_escape(uint32_t cp, char buf[8]) {
    switch (cp) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    case 0x2028:
        return "\\u2028";
    case 0x2029:
        return "\\u2029";
    case 0xFFFFFFFFu:
        return "\xEF\xBF\xBD";
    default:
        break;
    }
    if (cp >= 0x20) return NULL;
    snprintf(buf, 8, "\\u%04x", (unsigned)cp);
    return buf;
}

static void jw_quote(gy_str *out, const char *s, size_t len) {
    gy_str_putc(out, '"');
    size_t plain = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        char buf[8];
        size_t n = (size_t)gy_utf8_decode(s + i, len - i, &cp);
        const char *esc = jw_escape(cp, buf);
        if (esc) {
            gy_str_append(out, s + plain, i - plain);
            gy_str_puts(out, esc);
            plain = i + n;
        }
        i += n;
    }
    if (plain < len) gy_str_append(out, s + plain, len - plain);
    gy_str_putc(out, '"');
}

void gy_jw_key(gy_jw *w, const char *key) {
    GY_CHECK(!w->after_key);
    jw_separate(w);
    jw_quote(w->out, key, strlen(key));
    gy_str_putc(w->out, ':');
    w->after_key = 1;
}

void gy_jw_str(gy_jw *w, const char *s, size_t len) {
    jw_separate(w);
    jw_quote(w->out, s, len);
}

void gy_jw_strz(gy_jw *w, const char *z) {
    if (z)
        gy_jw_str(w, z, strlen(z));
    else
        gy_jw_null(w);
}

void gy_jw_int(gy_jw *w, int64_t v) {
    jw_separate(w);
    gy_str_printf(w->out, "%lld", (long long)v);
}

static pthread_once_t jw_once = PTHREAD_ONCE_INIT;
static locale_t jw_locale; /* "C", written once; (locale_t)0 leaves the thread's locale alone */

static void jw_make_locale(void) {
    jw_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

/* The first precision whose text reads back as the same value is the shortest, since %g drops trailing zeros; and a
 * decimal of up to FLT_DIG or DBL_DIG digits survives the trip through a normal number, so the search starts there.
 * (Rarely, at a power of two, some other decimal of that length would do where the nearest one does not: one digit more
 * then.) */
static void jw_real(gy_jw *w, double v, int is_f32) {
    char buf[40] = "";
    int digits = is_f32 ? FLT_DIG : DBL_DIG, most = is_f32 ? FLT_DECIMAL_DIG : DBL_DECIMAL_DIG;
    if (fabs(v) < (is_f32 ? (double)FLT_MIN : DBL_MIN)) digits = 1;
    pthread_once(&jw_once, jw_make_locale);
    locale_t before = uselocale(jw_locale);
    for (; digits <= most; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (is_f32 ? (double)strtof(buf, NULL) == v : strtod(buf, NULL) == v) break;
    }
    uselocale(before);
    gy_str_puts(w->out, v == 0 && signbit(v) ? "-0.0" : buf); /* "-0" would read back as the integer 0 */
}

void gy_jw_f64(gy_jw *w, double v) {
    if (!isfinite(v)) {
        gy_jw_null(w);
        return;
    }
    jw_separate(w);
    jw_real(w, v, 0);
}

void gy_jw_f32(gy_jw *w, float v) {
    if (!isfinite(v)) {
        gy_jw_null(w);
        return;
    }
    jw_separate(w);
    jw_real(w, (double)v, 1);
}

void gy_jw_bool(gy_jw *w, int v) {
    jw_separate(w);
    gy_str_puts(w->out, v ? "true" : "false");
}

void gy_jw_null(gy_jw *w) {
    jw_separate(w);
    gy_str_puts(w->out, "null");
}

static void jw_copy(gy_str *out, const gy_jv *v);

static void jw_copy_array(gy_str *out, const gy_jv *v) {
    gy_str_putc(out, '[');
    for (size_t i = 0; i < gy_jv_len(v); i++) {
        if (i) gy_str_putc(out, ',');
        jw_copy(out, gy_jv_at(v, i));
    }
    gy_str_putc(out, ']');
}

static void jw_copy_object(gy_str *out, const gy_jv *v) {
    gy_str_putc(out, '{');
    for (void *it = gy_jv_first(v), *first = it; it; it = gy_jv_next(v, it)) {
        size_t n;
        const char *key = gy_jv_key(it, &n);
        if (it != first) gy_str_putc(out, ',');
        jw_quote(out, key, n);
        gy_str_putc(out, ':');
        jw_copy(out, gy_jv_val(it));
    }
    gy_str_putc(out, '}');
}

static void jw_copy(gy_str *out, const gy_jv *v) {
    gy_jw w;
    size_t n = 0;
    const char *s = gy_jv_str(v, &n);
    gy_jw_init(&w, out);
    switch (gy_jv_type(v)) {
    case GY_J_OBJECT:
        jw_copy_object(out, v);
        return;
    case GY_J_ARRAY:
        jw_copy_array(out, v);
        return;
    case GY_J_STRING:
        gy_jw_str(&w, s, n);
        return;
    case GY_J_INT:
        gy_jw_int(&w, gy_jv_int(v, 0));
        return;
    case GY_J_REAL:
        gy_jw_f64(&w, gy_jv_num(v, 0));
        return;
    case GY_J_BOOL:
        gy_jw_bool(&w, gy_jv_bool(v, 0));
        return;
    case GY_J_NULL:
    case GY_J_NONE:
        gy_jw_null(&w);
    }
}

void gy_jw_value(gy_jw *w, const gy_jv *v) {
    jw_separate(w);
    jw_copy(w->out, v);
}
