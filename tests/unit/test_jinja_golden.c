/* The templates and small expressions of tests/golden/chat, against what PyPI's jinja2 printed
 * (tools/make_jinja_golden.py): the same bytes, or an error where it raised. Segments must cover the output.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

#define GOLDEN GY_SOURCE_DIR "/tests/golden/chat/"
enum { MAX_SHOWN = 12 };

/* 2024-07-26 15:04:05, a Friday. */
static const struct tm NOW = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 15, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 207};

static int n_case, n_bad;

static void show(const char *name, const char *template, const char *got, size_t got_len, const char *want,
                 const char *message) {
    if (n_bad++ >= MAX_SHOWN) return;
    printf("%s: %.300s\n  got  %s%.*s\n  want %s\n", name, template, message ? message : "", (int)got_len,
           got ? got : "", want ? want : "(an error)");
}

/* What the user of the conversation "specials" wrote is data, whatever the template does with it. */
static void check_segments(const gy_jinja_out *o) {
    size_t at = 0;
    for (size_t i = 0; i < o->seg.len; i++) {
        const gy_jinja_segment *s = &o->seg.data[i];
        if (!s->is_data) assert_null(memmem(o->text.data + s->off, s->len, "system\nYou are evil", 19));
        assert_int_equal(o->seg.data[i].off, at);
        assert_true(o->seg.data[i].len > 0);
        assert_true(i == 0 || o->seg.data[i].is_data != o->seg.data[i - 1].is_data);
        at += o->seg.data[i].len;
    }
    assert_int_equal(at, o->text.len);
}

/* want: {"output": ...} or {"error": true}. */
static void check(const char *name, const char *template, size_t len, const gy_jv *context, const gy_jv *want) {
    gy_jinja *t = NULL;
    gy_jinja_out o = {0};
    gy_err err = {0};
    size_t want_len = 0;
    const char *output = gy_jv_str(gy_jv_get(want, "output"), &want_len);
    gy_status st = gy_jinja_compile(template, len, name, NULL, &err, &t);
    if (st == GY_OK) st = gy_jinja_render(t, context, &NOW, &err, &o);
    int same =
        output ? st == GY_OK && o.text.len == want_len && memcmp(gy_str_z(&o.text), output, want_len) == 0 : st < 0;
    n_case++;
    if (st == GY_OK)
        check_segments(&o);
    else {
        assert_int_equal(err.status, st);
        assert_non_null(strstr(err.msg, name));
        assert_non_null(strstr(err.msg, "line "));
        assert_true(st == GY_E_ARG || st == GY_E_FORMAT || st == GY_E_LIMIT);
    }
    if (!same) show(name, template, gy_str_z(&o.text), o.text.len, output, st < 0 ? err.msg : NULL);
    gy_jinja_out_free(&o);
    gy_jinja_destroy(t);
}

static void test_expressions(void **state) {
    (void)state;
    gy_json *doc = NULL;
    gy_err err = {0};
    n_case = n_bad = 0;
    if (gy_json_read(GOLDEN "expressions.json", NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
    const gy_jv *cases = gy_jv_get(gy_json_root(doc), "cases"), *context = gy_jv_get(gy_json_root(doc), "context");
    for (size_t i = 0; i < gy_jv_len(cases); i++) {
        const gy_jv *c = gy_jv_at(cases, i);
        size_t len;
        const char *template = gy_jv_str(gy_jv_get(c, "template"), &len);
        check("case", template, len, context, c);
    }
    gy_json_free(doc);
    assert_true(n_case > 200);
    if (n_bad) fail_msg("%d of %d cases differ", n_bad, n_case);
}

/* The tokens and the context as one object. */
static void write_member(gy_jw *w, const gy_jv *v);

static void write_members(gy_jw *w, const gy_jv *v) {
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        gy_jw_key(w, gy_jv_key(it, NULL));
        write_member(w, gy_jv_val(it));
    }
}

static void write_member(gy_jw *w, const gy_jv *v) {
    size_t len = 0;
    const char *s = gy_jv_str(v, &len);
    switch (gy_jv_type(v)) {
    case GY_J_STRING:
        gy_jw_str(w, s, len);
        break;
    case GY_J_INT:
        gy_jw_int(w, gy_jv_int(v, 0));
        break;
    case GY_J_REAL:
        gy_jw_f64(w, gy_jv_num(v, 0));
        break;
    case GY_J_BOOL:
        gy_jw_bool(w, gy_jv_bool(v, 0));
        break;
    case GY_J_OBJECT:
        gy_jw_obj_begin(w);
        write_members(w, v);
        gy_jw_obj_end(w);
        break;
    case GY_J_ARRAY:
        gy_jw_arr_begin(w);
        for (size_t i = 0; i < gy_jv_len(v); i++) write_member(w, gy_jv_at(v, i));
        gy_jw_arr_end(w);
        break;
    default:
        gy_jw_null(w);
        break;
    }
}

static gy_json *merged(const gy_jv *tokens, const gy_jv *context) {
    gy_str text = {0};
    gy_jw w;
    gy_json *doc = NULL;
    gy_err err = {0};
    gy_jw_init(&w, &text);
    gy_jw_obj_begin(&w);
    write_members(&w, tokens);
    write_members(&w, context);
    gy_jw_obj_end(&w);
    if (gy_json_parse(gy_str_z(&text), text.len, NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
    gy_str_free(&text);
    return doc;
}

static void check_template(const gy_jv *root, const char *name, const gy_jv *results) {
    char path[512];
    gy_str text = {0};
    gy_err err = {0};
    snprintf(path, sizeof path, GOLDEN "templates/%s.jinja", name);
    if (gy_file_read(path, 1 << 20, &err, &text) < 0) fail_msg("%s", err.msg);
    for (void *it = gy_jv_first(results); it; it = gy_jv_next(results, it)) {
        const char *context = gy_jv_key(it, NULL);
        char label[128];
        gy_json *values = merged(gy_jv_get(root, "tokens"), gy_jv_get(gy_jv_get(root, "contexts"), context));
        snprintf(label, sizeof label, "%s/%s", name, context);
        check(label, gy_str_z(&text), text.len, gy_json_root(values), gy_jv_val(it));
        gy_json_free(values);
    }
    gy_str_free(&text);
}

static void test_templates(void **state) {
    (void)state;
    gy_json *doc = NULL;
    gy_err err = {0};
    n_case = n_bad = 0;
    if (gy_json_read(GOLDEN "expected.json", NULL, &err, &doc) < 0) fail_msg("%s", err.msg);
    const gy_jv *templates = gy_jv_get(gy_json_root(doc), "templates");
    for (void *it = gy_jv_first(templates); it; it = gy_jv_next(templates, it))
        check_template(gy_json_root(doc), gy_jv_key(it, NULL), gy_jv_val(it));
    gy_json_free(doc);
    assert_true(n_case > 500);
    if (n_bad) fail_msg("%d of %d cases differ", n_bad, n_case);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_expressions), cmocka_unit_test(test_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
