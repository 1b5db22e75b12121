/* A template and its values. Input: the template, a NUL, a JSON object. Whatever they are, compiling ends in a template
 * or an error with a message, rendering in text or an error, within small limits; text is UTF-8 and its segments cover
 * it, each beginning and ending with a whole character.
 */
#include "text/jinja.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gy_jinja_out *o) {
    size_t at = 0;
    GY_CHECK(gy_utf8_valid(gy_str_z(&o->text), o->text.len));
    for (size_t i = 0; i < o->seg.len; i++) {
        const gy_jinja_segment *s = &o->seg.data[i];
        GY_CHECK(s->off == at && s->len > 0 && (!i || s->is_data != s[-1].is_data));
        GY_CHECK(gy_utf8_valid(o->text.data + s->off, s->len));
        at += s->len;
    }
    GY_CHECK(at == o->text.len);
}

static void render(const gy_jinja *t, const char *json, size_t len) {
    static const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26};
    gy_json *values = NULL;
    gy_jinja_out o = {0};
    gy_err err = {0};
    if (gy_json_parse(json, len, NULL, &err, &values) < 0) values = NULL;
    err = (gy_err){0};
    gy_status st = gy_jinja_render(t, gy_json_root(values), &now, &err, &o);
    if (st == GY_OK)
        check(&o);
    else
        GY_CHECK(st < 0 && err.status == st && err.msg[0] && gy_utf8_valid(err.msg, strlen(err.msg)) && !o.text.data);
    gy_jinja_out_free(&o);
    gy_json_free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const gy_jinja_limits lim = {.max_output_bytes = 1 << 16, .max_memory_bytes = 1 << 22, .max_steps = 50000};
    const char *text = (const char *)data, *end = size ? memchr(data, 0, size) : NULL;
    size_t len = end ? (size_t)(end - text) : size;
    gy_jinja *t = NULL;
    gy_err err = {0};
    gy_status st = gy_jinja_compile(text, len, "fuzz", &lim, &err, &t);
    if (st == GY_OK)
        render(t, end ? end + 1 : "", end ? size - len - 1 : 0);
    else
        GY_CHECK(st < 0 && err.status == st && err.msg[0] && !t);
    gy_jinja_destroy(t);
    return 0;
}
