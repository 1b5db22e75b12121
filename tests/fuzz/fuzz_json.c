/* JSON in and out on arbitrary bytes: nothing is accepted that the writer does not give back as an equal document. */
#include "base/json.h"
#include "base/mem.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_value(gy_jw *w, const gy_jv *v);

static void write_members(gy_jw *w, const gy_jv *v) {
    gy_jw_obj_begin(w);
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        size_t len;
        const char *key = gy_jv_key(it, &len);
        GY_CHECK(strlen(key) == len);
        GY_CHECK(gy_jv_get(v, key) == gy_jv_val(it));
        gy_jw_key(w, key);
        write_value(w, gy_jv_val(it));
    }
    gy_jw_obj_end(w);
}

static void write_value(gy_jw *w, const gy_jv *v) {
    size_t len;
    const char *s = gy_jv_str(v, &len);
    switch (gy_jv_type(v)) {
    case GY_J_NONE:
        GY_CHECK(0);
        break;
    case GY_J_NULL:
        gy_jw_null(w);
        break;
    case GY_J_BOOL:
        gy_jw_bool(w, gy_jv_bool(v, 0));
        break;
    case GY_J_INT:
        gy_jw_int(w, gy_jv_int(v, 0));
        break;
    case GY_J_REAL:
        gy_jw_f64(w, gy_jv_num(v, 0));
        break;
    case GY_J_STRING:
        gy_jw_str(w, s, len);
        break;
    case GY_J_ARRAY:
        gy_jw_arr_begin(w);
        for (size_t i = 0; i < gy_jv_len(v); i++) write_value(w, gy_jv_at(v, i));
        gy_jw_arr_end(w);
        break;
    case GY_J_OBJECT:
        write_members(w, v);
        break;
    }
}

static void write_document(const gy_json *doc, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    write_value(&w, gy_json_root(doc));
    GY_CHECK(!out->failed && w.depth == 0);
}

/* A second trip must give the same text: the first one may turn 1.0 into 1 and 1e2 into 100. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const gy_json_limits lim = {.max_bytes = 1 << 20, .max_depth = 32};
    gy_err err = {0};
    gy_json *doc = NULL, *again = NULL;
    gy_str one = {0}, two = {0};
    gy_status st = gy_json_parse((const char *)data, size, &lim, &err, &doc);
    if (st == GY_OK) {
        write_document(doc, &one);
        const gy_json_limits wide = {.max_bytes = 64 << 20, .max_depth = 32};
        GY_CHECK(gy_json_parse(one.data, one.len, &wide, &err, &again) == GY_OK);
        write_document(again, &two);
        GY_CHECK(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    } else {
        GY_CHECK(err.status == st && err.msg[0] && gy_utf8_valid(err.msg, strlen(err.msg)));
        GY_CHECK(!doc);
    }
    gy_json_free(doc);
    gy_json_free(again);
    gy_str_free(&one);
    gy_str_free(&two);
    return 0;
}
