/* JSON in (RFC 8259 to the letter, limits, messages, failure injection) and JSON out (reads back equal). */
#include "base_test.h"

#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

static gy_json *parse(const char *text) {
    gy_err e = {0};
    gy_json *doc = NULL;
    if (gy_json_parse(text, strlen(text), NULL, &e, &doc) != GY_OK) fail_msg("%s: %s", text, e.msg);
    return doc;
}

static int64_t live_json(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_JSON];
}

static void test_values(void **state) {
    (void)state;
    gy_json *d =
        parse("{\"i\": -12, \"r\": 2.5e-1, \"s\": \"h\\u00e9\\ud83d\\ude00\", \"t\": true, \"f\": false,"
              "\"n\": null, \"a\": [1, \"x\", {}], \"big\": 9223372036854775807, \"low\": -9223372036854775808}");
    const gy_jv *r = gy_json_root(d);
    size_t len = 0;
    assert_int_equal(gy_jv_type(r), GY_J_OBJECT);
    assert_int_equal(gy_jv_len(r), 9);
    assert_int_equal(gy_jv_int(gy_jv_get(r, "i"), 5), -12);
    assert_true(gy_jv_num(gy_jv_get(r, "i"), 5) == -12.0);
    assert_true(gy_jv_num(gy_jv_get(r, "r"), 5) == 0.25);
    assert_string_equal(gy_jv_str(gy_jv_get(r, "s"), &len), "h\xC3\xA9\xF0\x9F\x98\x80");
    assert_int_equal(len, 7);
    assert_int_equal(gy_jv_bool(gy_jv_get(r, "t"), 0), 1);
    assert_int_equal(gy_jv_bool(gy_jv_get(r, "f"), 1), 0);
    assert_int_equal(gy_jv_type(gy_jv_get(r, "n")), GY_J_NULL);
    assert_int_equal(gy_jv_len(gy_jv_get(r, "a")), 3);
    assert_int_equal(gy_jv_int(gy_jv_at(gy_jv_get(r, "a"), 0), 0), 1);
    assert_true(gy_jv_is_str(gy_jv_at(gy_jv_get(r, "a"), 1), "x"));
    assert_int_equal(gy_jv_type(gy_jv_at(gy_jv_get(r, "a"), 2)), GY_J_OBJECT);
    assert_true(gy_jv_int(gy_jv_get(r, "big"), 0) == INT64_MAX);
    assert_true(gy_jv_int(gy_jv_get(r, "low"), 0) == INT64_MIN);
    gy_json_free(d);
    gy_json_free(NULL);
    assert_int_equal(live_json(), 0);
}

static void test_absent_and_wrong_types_give_defaults(void **state) {
    (void)state;
    gy_json *d = parse("{\"s\": \"x\", \"i\": 1, \"r\": 1.0, \"a\": [1]}");
    const gy_jv *r = gy_json_root(d), *s = gy_jv_get(r, "s");
    assert_null(gy_jv_get(r, "absent"));
    assert_null(gy_jv_get(s, "s"));
    assert_null(gy_jv_get(NULL, "s"));
    assert_null(gy_jv_at(gy_jv_get(r, "a"), 1));
    assert_null(gy_jv_at(r, 0));
    assert_int_equal(gy_jv_int(gy_jv_get(r, "r"), 77), 77); /* a real is no integer, even 1.0 */
    assert_int_equal(gy_jv_int(s, 77), 77);
    assert_int_equal(gy_jv_int(NULL, 77), 77);
    assert_true(gy_jv_num(s, 0.5) == 0.5);
    assert_int_equal(gy_jv_bool(gy_jv_get(r, "i"), 9), 9);
    assert_null(gy_jv_str(gy_jv_get(r, "i"), NULL));
    assert_int_equal(gy_jv_len(s), 0);
    assert_int_equal(gy_jv_len(NULL), 0);
    assert_false(gy_jv_is_str(NULL, ""));
    assert_false(gy_jv_is_str(s, "xy"));
    assert_null(gy_jv_first(NULL));
    assert_null(gy_jv_first(s));
    assert_null(gy_jv_key(NULL, NULL));
    assert_null(gy_jv_val(NULL));
    assert_null(gy_json_root(NULL));
    assert_int_equal(gy_jv_type(NULL), GY_J_NONE);
    assert_string_equal(gy_jtype_name(gy_jv_type(s)), "a string");
    assert_string_equal(gy_jtype_name(GY_J_NONE), "nothing");
    gy_json_free(d);
}

static void test_members_in_file_order(void **state) {
    (void)state;
    gy_json *d = parse("{\"zeta\":0,\"alpha\":1,\"m\":2,\"\":3,\"beta\":4,\"b\":5,\"k\":6,\"y\":7,\"x\":8,\"w\":9}");
    const char *const want[] = {"zeta", "alpha", "m", "", "beta", "b", "k", "y", "x", "w"};
    int n = 0;
    const gy_jv *o = gy_json_root(d);
    for (void *it = gy_jv_first(o); it; it = gy_jv_next(o, it), n++) {
        size_t len = 99;
        assert_string_equal(gy_jv_key(it, &len), want[n]);
        assert_int_equal(len, strlen(want[n]));
        assert_int_equal(gy_jv_int(gy_jv_val(it), -1), n);
    }
    assert_int_equal(n, 10);
    gy_json_free(d);
}

static void test_strings_may_hold_nul(void **state) {
    (void)state;
    gy_json *d = parse("[\"a\\u0000b\", \"\\u0000\"]");
    size_t len = 0;
    assert_memory_equal(gy_jv_str(gy_jv_at(gy_json_root(d), 0), &len), "a\0b", 4);
    assert_int_equal(len, 3);
    assert_false(gy_jv_is_str(gy_jv_at(gy_json_root(d), 0), "a"));
    assert_false(gy_jv_is_str(gy_jv_at(gy_json_root(d), 1), ""));
    gy_json_free(d);
}

static void test_any_value_may_be_the_root(void **state) {
    (void)state;
    const struct {
        const char *text;
        gy_jtype type;
    } good[] = {{"1", GY_J_INT},     {" \"x\" ", GY_J_STRING},     {"null", GY_J_NULL},
                {"true", GY_J_BOOL}, {"-0.0", GY_J_REAL},          {"1E5", GY_J_REAL},
                {"[]", GY_J_ARRAY},  {"\t\r\n{ }\n", GY_J_OBJECT}, {"1e-400", GY_J_REAL}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        gy_json *d = parse(good[i].text);
        assert_int_equal(gy_jv_type(gy_json_root(d)), good[i].type);
        gy_json_free(d);
    }
}

#define BAD(text, needle)                                                                                              \
    { text, sizeof(text) - 1, needle }

static void test_bad_texts_are_refused_with_their_place(void **state) {
    (void)state;
    const struct {
        const char *text;
        size_t len;
        const char *needle;
    } bad[] = {
        BAD("", "line 1, column 1: found an empty text"),
        BAD("  \n ", "line 2"),
        BAD("{\"a\": 1,\n \"a\": 2}", "line 2, column 4: not valid JSON: duplicate object key near '\"a\"'"),
        BAD("[1, 2", "line 1"),
        BAD("[1, 2,]", "near ']'"),
        BAD("{\"a\" 1}", "':' expected near '1'"),
        BAD("{a: 1}", "near 'a'"),
        BAD("{\"a\": 1} x", "end of file expected near 'x'"),
        BAD("[1]\0", "column 4"),
        BAD("[1]\n\n[2]", "line 3"),
        BAD("[01]", "line 1"),
        BAD("[+1]", "line 1"),
        BAD("[.5]", "line 1"),
        BAD("[1.]", "line 1"),
        BAD("[0x10]", "line 1"),
        BAD("[NaN]", "near 'NaN'"),
        BAD("[Infinity]", "near 'Infinity'"),
        BAD("[nul]", "near 'nul'"),
        BAD("['x']", "near '''"),
        BAD("// x\n1", "line 1"),
        BAD("[\"a\nb\"]", "line 1"),
        BAD("[\"\\x41\"]", "invalid escape"),
        BAD("[\"\\ud800\"]", "line 1"),
        BAD("[\"\\udc00x\"]", "line 1"),
        BAD("[\"\xff\"]", "line 1"),
        BAD("[\"\xc0\xaf\"]", "line 1"),
        BAD("[\"\xed\xa0\x80\"]", "line 1"),
        BAD("\xef\xbb\xbf{}", "line 1"),
        BAD("[1e400]", "real number overflow"),
        BAD("[-1e400]", "real number overflow"),
        BAD("[9223372036854775808]", "too big integer"),
        BAD("[-9223372036854775809]", "too big negative integer"),
        BAD("{\"a\\u0000b\": 1}", "NUL byte in object key"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_err e = {0};
        gy_json *d = NULL;
        char *exact = malloc(bad[i].len + 1); /* heap: ASan sees a read behind the end */
        assert_non_null(exact);
        memcpy(exact, bad[i].text, bad[i].len);
        gy_status st = gy_json_parse(exact, bad[i].len, NULL, &e, &d);
        free(exact);
        if (st != GY_E_FORMAT) fail_msg("accepted: %s", bad[i].text);
        if (!strstr(e.msg, bad[i].needle)) fail_msg("case %zu: '%s' lacks '%s'", i, e.msg, bad[i].needle);
        for (const char *c = e.msg; *c; c++) assert_true((unsigned char)*c >= 0x20);
        assert_true(gy_utf8_valid(e.msg, strlen(e.msg)));
        assert_null(d);
    }
    assert_int_equal(live_json(), 0);
}

static gy_status parse_nested(int depth, int max_depth, char open, char close, gy_err *e) {
    char text[5000];
    memset(text, open, (size_t)depth);
    memset(text + depth, close, (size_t)depth);
    gy_json *d = NULL;
    gy_json_limits lim = {.max_depth = max_depth};
    gy_status st = gy_json_parse(text, 2 * (size_t)depth, &lim, e, &d);
    gy_json_free(d);
    return st;
}

static void test_limits(void **state) {
    (void)state;
    gy_err e = {0};
    gy_json *d = NULL;
    assert_int_equal(parse_nested(64, 0, '[', ']', &e), GY_OK);
    assert_int_equal(parse_nested(65, 0, '[', ']', &e), GY_E_LIMIT);
    assert_string_equal(e.msg, "JSON nested 65 deep, at most 64 levels are allowed");
    assert_int_equal(parse_nested(3, 3, '[', ']', &e), GY_OK);
    assert_int_equal(parse_nested(4, 3, '[', ']', &e), GY_E_LIMIT);
    assert_int_equal(parse_nested(2000, 1 << 30, '[', ']', &e), GY_OK);
    assert_int_equal(parse_nested(2100, 1 << 30, '[', ']', &e), GY_E_LIMIT);
    assert_int_equal(parse_nested(70, 0, '{', '}', &e), GY_E_LIMIT);
    gy_json_limits one = {.max_depth = 1}, ten = {.max_bytes = 10};
    const char *brackets = "[\"[[[[{{{\\\"[[[\", \"]]]]]\\\\\", \"[\"]"; /* inside strings they count nothing */
    assert_int_equal(gy_json_parse(brackets, strlen(brackets), &one, &e, &d), GY_OK);
    assert_int_equal(gy_jv_len(gy_json_root(d)), 3);
    gy_json_free(d);
    d = NULL;
    assert_int_equal(gy_json_parse("[1,2,3,45]", 10, &ten, &e, &d), GY_OK);
    gy_json_free(d);
    d = NULL;
    assert_int_equal(gy_json_parse("[1,2,3,456]", 11, &ten, &e, &d), GY_E_LIMIT);
    assert_string_equal(e.msg, "JSON text of 11 bytes, at most 10 are allowed");
    assert_null(d);
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_read_names_the_path(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gy_err e = {0};
    gy_json *d = NULL;
    assert_int_equal(gy_json_read(path, NULL, &e, &d), GY_E_FORMAT);
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, ": line 1, column 1: found an empty text"));
    write_file(path, "{\"n_loop\": 4,\n \"x\": }");
    assert_int_equal(gy_json_read(path, NULL, &e, &d), GY_E_FORMAT);
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, "line 2"));
    write_file(path, "{\"n_loop\": 4}");
    assert_int_equal(gy_json_read(path, NULL, &e, &d), GY_OK);
    assert_int_equal(gy_jv_int(gy_jv_get(gy_json_root(d), "n_loop"), 0), 4);
    gy_json_free(d);
    unlink(path);
    assert_int_equal(gy_json_read(path, NULL, &e, &d), GY_E_IO);
    assert_non_null(strstr(e.msg, "No such file"));
}

/* jansson allocates through gy_mem, so each of its allocations can be made to fail. */
static void test_every_allocation_may_fail(void **state) {
    (void)state;
    const char *text =
        "{\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, \"e\": 4, \"f\": 5, \"g\": 6, \"h\": 7, "
        "\"i\": 8, \"j\": 9}, \"merges\": [\"a b\", \"a long string that makes the lexer's buffer grow\", "
        "[1, 2.5, null, true, false], 1, 2, 3, 4, 5, 6, 7, 8, 9]}";
    int n = 0, ok = 0;
    gy_json_free(parse("{}")); /* one-time set-up of the hash seed */
    while (!ok) {
        gy_err e = {0};
        gy_json *d = NULL;
        gy_mem_fail_after(++n);
        gy_status st = gy_json_parse(text, strlen(text), NULL, &e, &d);
        gy_mem_fail_after(0);
        ok = st == GY_OK;
        if (!ok) {
            assert_int_equal(st, GY_E_NOMEM);
            assert_string_equal(e.msg, "no memory to parse JSON");
            assert_null(d);
        }
        gy_json_free(d);
        if (live_json() != 0) fail_msg("allocation %d of the parse leaks %lld bytes", n, (long long)live_json());
    }
    assert_true(n > 30);
}

static void test_big_document(void **state) {
    (void)state;
    gy_str s = {0};
    gy_str_puts(&s, "{");
    for (int i = 0; i < 50000; i++) gy_str_printf(&s, "%s\"token%d\": %d", i ? ", " : "", i * 7, i);
    gy_str_puts(&s, "}");
    gy_json *d = parse(gy_str_z(&s));
    assert_int_equal(gy_jv_len(gy_json_root(d)), 50000);
    assert_int_equal(gy_jv_int(gy_jv_get(gy_json_root(d), "token349993"), -1), 49999);
    int n = 0;
    for (void *it = gy_jv_first(gy_json_root(d)); it; it = gy_jv_next(gy_json_root(d), it), n++)
        if (gy_jv_int(gy_jv_val(it), -1) != n) fail_msg("order broken at %d", n);
    gy_json_free(d);
    gy_str_free(&s);
}

/* ---- out ---- */

static void test_writer_structure(void **state) {
    (void)state;
    gy_str s = {0};
    gy_jw w;
    gy_jw_init(&w, &s);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "e");
    gy_jw_obj_begin(&w);
    gy_jw_obj_end(&w);
    gy_jw_key(&w, "a");
    gy_jw_arr_begin(&w);
    gy_jw_int(&w, INT64_MIN);
    gy_jw_arr_begin(&w);
    gy_jw_arr_end(&w);
    gy_jw_bool(&w, 2);
    gy_jw_bool(&w, 0);
    gy_jw_null(&w);
    gy_jw_strz(&w, NULL);
    gy_jw_strz(&w, "x");
    gy_jw_arr_end(&w);
    gy_jw_key(&w, "n\"\n");
    gy_jw_f64(&w, NAN);
    gy_jw_key(&w, "i");
    gy_jw_f64(&w, -INFINITY);
    gy_jw_key(&w, "f");
    gy_jw_f32(&w, INFINITY);
    gy_jw_obj_end(&w);
    assert_string_equal(gy_str_z(&s), "{\"e\":{},\"a\":[-9223372036854775808,[],true,false,null,null,\"x\"],"
                                      "\"n\\\"\\n\":null,\"i\":null,\"f\":null}");
    assert_int_equal(w.depth, 0);
    gy_str_free(&s);
}

static void test_writer_strings(void **state) {
    (void)state;
    const char in[] = "q\" b\\ n\n r\r t\t b\b f\f z\0 c\x1f d\x7f \xE2\x80\xA8\xE2\x80\xA9 \xC3\xA9 \xF0\x9F\x98\x80 "
                      "\xFF\xE2\x80 \xED\xA0\x80 end\xF0\x9F";
    gy_str s = {0}, clean = {0};
    gy_jw w;
    gy_jw_init(&w, &s);
    gy_jw_str(&w, in, sizeof in - 1);
    assert_non_null(
        strstr(gy_str_z(&s), "\"q\\\" b\\\\ n\\n r\\r t\\t b\\b f\\f z\\u0000 c\\u001f d\x7f \\u2028\\u2029 "));
    gy_json *d = parse(gy_str_z(&s));
    size_t len;
    const char *back = gy_jv_str(gy_json_root(d), &len);
    gy_utf8_sanitize(in, sizeof in - 1, &clean);
    assert_int_equal(len, clean.len);
    assert_memory_equal(back, clean.data, len);
    gy_json_free(d);
    gy_str_free(&s);
    gy_str_free(&clean);
}

static const char *print_f64(gy_str *s, double v) {
    gy_jw w;
    gy_str_clear(s);
    gy_jw_init(&w, s);
    gy_jw_f64(&w, v);
    return gy_str_z(s);
}

static const char *print_f32(gy_str *s, float v) {
    gy_jw w;
    gy_str_clear(s);
    gy_jw_init(&w, s);
    gy_jw_f32(&w, v);
    return gy_str_z(s);
}

/* Significant digits of a decimal text, without leading and trailing zeros. */
static int count_digits(const char *z) {
    int n = 0, zeros = 0;
    for (; *z && *z != 'e'; z++) {
        if (*z < '0' || *z > '9' || (n == 0 && *z == '0')) continue;
        zeros = *z == '0' ? zeros + 1 : 0;
        n++;
    }
    return n - zeros;
}

/* Values and their shortest decimal forms by Python's repr and numpy's float32 repr. */
static const struct {
    double v;
    const char *z;
} f64_cases[] = {
    {0x1.999999999999ap-4, "0.1"},
    {0x1.5555555555555p-2, "0.3333333333333333"},
    {0x1.5555555555555p-1, "0.6666666666666666"},
    {0x1.0f0cf064dd592p+73, "1e+22"},
    {0x1.52d02c7e14af6p+76, "1e+23"},
    {0x0.0000000000001p-1022, "5e-324"},
    {0x1.0000000000000p-1022, "2.2250738585072014e-308"},
    {0x1.fffffffffffffp+1023, "1.7976931348623157e+308"},
    {0x1.0000000000000p+53, "9007199254740992.0"},
    {0x1.d6f3454800000p+26, "123456789.125"},
    {0x1.ad7f29abcaf48p-24, "1e-07"},
    {0x1.3333333333334p-2, "0.30000000000000004"},
    {0x1.0000000000000p+1000, "1.0715086071862673e+301"},
    {-0x1.a36e2eb1c432dp-14, "-0.0001"},
    {0x1.8000000000000p+1, "3.0"},
    {-0x1.1400000000000p+4, "-17.25"},
    {0x1.4d8399f767c45p+23, "10928588.983213553"},
    {0x1.8fbbcbde5c099p+445, "1.4186613525849614e+134"},
    {-0x1.11fdecb91ce37p-243, "-7.571968556055867e-74"},
    {-0x1.d4330f1446beap+375, "-1.4074705188261364e+113"},
    {-0x1.b8c9ebd69fe29p-401, "-3.3339745473042614e-121"},
    {-0x1.0b125ec1d7da0p-900, "-1.2342180766211395e-271"},
    {-0x1.10dff076ce2efp+371, "-5.126864004244935e+111"},
    {-0x1.5387777330bdbp+107, "-2.1520217579844227e+32"},
    {0x1.1ea36f17fd374p-3, "0.1399601630397701"},
    {0x1.64138a6233255p-811, "1.01853664031722e-244"},
    {0x1.7688de6a16a3bp-381, "2.9704598186234577e-115"},
    {0x1.dd97f1cfb10f6p+499, "3.0534183338726823e+150"},
};
static const struct {
    float v;
    const char *z;
} f32_cases[] = {
    {0x1.99999a0000000p-4f, "0.1"},
    {0x1.5555560000000p-2f, "0.33333334"},
    {0x1.0000000000000p+24f, "1.6777216e+07"},
    {0x1.fffffe0000000p+127f, "3.4028235e+38"},
    {0x1.0000000000000p-149f, "1e-45"},
    {0x1.0000000000000p-126f, "1.1754944e-38"},
    {0x1.0000000000000p-24f, "5.9604645e-08"},
    {0x1.6666660000000p-1f, "0.7"},
    {0x1.ffc0000000000p+15f, "65504.0"},
    {-0x1.8000000000000p+0f, "-1.5"},
    {0x1.921fb60000000p+1f, "3.1415927"},
    {0x1.2a05f20000000p+33f, "1e+10"},
};

static void test_shortest_numbers(void **state) {
    (void)state;
    gy_str s = {0};
    for (size_t i = 0; i < sizeof f64_cases / sizeof *f64_cases; i++) {
        const char *z = print_f64(&s, f64_cases[i].v);
        if (strtod(z, NULL) != f64_cases[i].v) fail_msg("%s is not %s", z, f64_cases[i].z);
        if (count_digits(z) != count_digits(f64_cases[i].z)) fail_msg("%s, Python says %s", z, f64_cases[i].z);
    }
    for (size_t i = 0; i < sizeof f32_cases / sizeof *f32_cases; i++) {
        const char *z = print_f32(&s, f32_cases[i].v);
        if (strtof(z, NULL) != f32_cases[i].v) fail_msg("%s is not %s", z, f32_cases[i].z);
        if (count_digits(z) != count_digits(f32_cases[i].z)) fail_msg("%s, numpy says %s", z, f32_cases[i].z);
    }
    /* Below a power of two doubles lie closer than above it. For a few of them the nearest 16-digit decimal reads back
     * as the neighbour although another 16-digit one would do (5.684341886080802e-14): 17 digits are written then. */
    assert_string_equal(print_f64(&s, 0x1p-44), "5.6843418860808015e-14");
    assert_string_equal(print_f64(&s, 0.1), "0.1");
    assert_string_equal(print_f32(&s, 0.1f), "0.1");
    assert_string_equal(print_f64(&s, 0.0), "0");
    assert_string_equal(print_f64(&s, -0.0), "-0.0");
    assert_string_equal(print_f64(&s, 1e300), "1e+300");
    gy_str_free(&s);
}

static void test_random_numbers_read_back(void **state) {
    (void)state;
    gy_str s = {0};
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double v;
        float f;
        uint32_t lo = (uint32_t)x;
        memcpy(&v, &x, sizeof v);
        memcpy(&f, &lo, sizeof f);
        if (isfinite(v) && strtod(print_f64(&s, v), NULL) != v) fail_msg("%a became %s", v, gy_str_z(&s));
        if (isfinite(f) && strtof(print_f32(&s, f), NULL) != f) fail_msg("%a became %s", (double)f, gy_str_z(&s));
    }
    gy_str_free(&s);
}

static void test_locale_does_not_matter(void **state) {
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    int found = 0;
    for (int i = 0; i < 4 && !found; i++) found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found) {
        print_message("no locale with a decimal comma is installed here: skipped\n");
        skip();
    }
    gy_str s = {0};
    assert_string_equal(print_f64(&s, 2.5), "2.5");
    gy_json *d = parse("[2.5, 1e-3]");
    assert_true(gy_jv_num(gy_jv_at(gy_json_root(d), 0), 0) == 2.5);
    gy_json_free(d);
    setlocale(LC_NUMERIC, "C");
    gy_str_free(&s);
}

static void nest(void *arg) {
    gy_str s = {0};
    gy_jw w;
    gy_jw_init(&w, &s);
    for (int i = 0; i < *(int *)arg; i++) gy_jw_arr_begin(&w);
    gy_str_free(&s);
}

static void close_too_often(void *arg) {
    gy_str s = {0};
    gy_jw w;
    (void)arg;
    gy_jw_init(&w, &s);
    gy_jw_arr_end(&w);
}

static void test_writer_nesting_is_bounded(void **state) {
    (void)state;
    int n = 32;
    nest(&n);
    n = 33;
    assert_aborts(nest, &n, "broken invariant");
    assert_aborts(close_too_often, NULL, "broken invariant");
}

static gy_json *parse_deep(int depth) {
    gy_str s = {0};
    gy_json *doc = NULL;
    for (int i = 0; i < depth; i++) gy_str_putc(&s, '[');
    for (int i = 0; i < depth; i++) gy_str_putc(&s, ']');
    assert_int_equal(gy_json_parse(gy_str_z(&s), s.len, NULL, NULL, &doc), GY_OK);
    gy_str_free(&s);
    return doc;
}

static void test_writer_copies_values(void **state) {
    static const char text[] =
        "{\"a\":[1,-2.5,true,false,null,\"x\\\"\\u0000y\"],\"k\":{},\"e\":[],\"z\":{\"q\":1e300}}";
    (void)state;
    gy_json *doc = NULL;
    gy_str s = {0};
    gy_jw w;
    assert_int_equal(gy_json_parse(text, sizeof text - 1, NULL, NULL, &doc), GY_OK);
    gy_jw_init(&w, &s);
    gy_jw_arr_begin(&w);
    gy_jw_value(&w, gy_json_root(doc));
    gy_jw_value(&w, NULL);
    gy_jw_int(&w, 7);
    gy_jw_arr_end(&w);
    assert_string_equal(gy_str_z(&s), "[{\"a\":[1,-2.5,true,false,null,\"x\\\"\\u0000y\"],\"k\":{},\"e\":[],\"z\":"
                                      "{\"q\":1e+300}},null,7]");
    gy_json_free(doc);
    doc = parse_deep(64); /* deeper than the writer itself nests */
    gy_str_clear(&s);
    gy_jw_init(&w, &s);
    gy_jw_value(&w, gy_json_root(doc));
    assert_int_equal(s.len, 128);
    gy_json_free(doc);
    gy_str_free(&s);
}

static void test_writer_without_memory(void **state) {
    (void)state;
    gy_str s = {0};
    gy_mem_fail_after(1);
    assert_string_equal(print_f64(&s, 1.5), "");
    assert_true(s.failed);
    gy_mem_fail_after(0);
    gy_str_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_absent_and_wrong_types_give_defaults),
        cmocka_unit_test(test_members_in_file_order),
        cmocka_unit_test(test_strings_may_hold_nul),
        cmocka_unit_test(test_any_value_may_be_the_root),
        cmocka_unit_test(test_bad_texts_are_refused_with_their_place),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_read_names_the_path),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_big_document),
        cmocka_unit_test(test_writer_structure),
        cmocka_unit_test(test_writer_strings),
        cmocka_unit_test(test_shortest_numbers),
        cmocka_unit_test(test_random_numbers_read_back),
        cmocka_unit_test(test_locale_does_not_matter),
        cmocka_unit_test(test_writer_nesting_is_bounded),
        cmocka_unit_test(test_writer_copies_values),
        cmocka_unit_test(test_writer_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
