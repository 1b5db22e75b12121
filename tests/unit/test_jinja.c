/* The template language beyond what the goldens show: messages of errors, limits, where bytes come from, running out of
 * memory. Advisories of templates in other servers (injection, endless loops, reaching Python) are among them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

static gy_json *parse(const char *json) {
    gy_json *doc = NULL;
    gy_err err = {0};
    if (gy_json_parse(json, strlen(json), NULL, &err, &doc) < 0) fail_msg("%s: %s", json, err.msg);
    return doc;
}

static gy_status run(const char *template, const char *json, const gy_jinja_limits *lim, gy_err *err, gy_jinja_out *o) {
    gy_jinja *t = NULL;
    gy_json *doc = json ? parse(json) : NULL;
    gy_status st = gy_jinja_compile(template, strlen(template), "t.jinja", lim, err, &t);
    if (st == GY_OK) st = gy_jinja_render(t, gy_json_root(doc), NULL, err, o);
    gy_jinja_destroy(t);
    gy_json_free(doc);
    return st;
}

static void fails(const char *template, const char *json, gy_status want, const char *where, const char *what) {
    gy_err err = {0};
    gy_jinja_out o = {0};
    gy_status st = run(template, json, NULL, &err, &o);
    if (st != want || err.status != want || !strstr(err.msg, where) || !strstr(err.msg, what))
        fail_msg("%s\nstatus %d (want %d), message \"%s\" (want \"%s\", \"%s\")", template, st, want, err.msg, where,
                 what);
    assert_null(o.text.data);
}

static void test_compile_errors(void **state) {
    (void)state;
    fails("a\n\n{% frobnicate %}", NULL, GY_E_FORMAT, "t.jinja: line 3:", "the tag \"frobnicate\"");
    fails("{% include 'x' %}", NULL, GY_E_FORMAT, "line 1:", "the tag \"include\"");
    fails("{% import 'os' as os %}", NULL, GY_E_FORMAT, "line 1:", "the tag \"import\"");
    fails("{% extends 'x' %}", NULL, GY_E_FORMAT, "line 1:", "the tag \"extends\"");
    fails("x\n{{ y | shout }}", NULL, GY_E_FORMAT, "line 2:", "there is no filter \"shout\"");
    fails("{{ y is loud }}", NULL, GY_E_FORMAT, "line 1:", "there is no test \"loud\"");
    fails("{% if x %}\n{% for a in b %}", NULL, GY_E_FORMAT, "line 2:", "expected {% endfor %}");
    fails("{{ 1 +\n}}", NULL, GY_E_FORMAT, "line 2:", "found }}, expected an expression");
    fails("\n{{ 'abc }}", NULL, GY_E_FORMAT, "line 2:", "a string begins here");
    fails("{# x", NULL, GY_E_FORMAT, "line 1:", "has no #}");
    fails("{% raw %}x", NULL, GY_E_FORMAT, "line 1:", "endraw");
    fails("{{ x", NULL, GY_E_FORMAT, "line 1:", "has no }}");
    fails("{{ (1] }}", NULL, GY_E_FORMAT, "line 1:", "unexpected ']'");
    fails("{{ a ; b }}", NULL, GY_E_FORMAT, "line 1:", "';'");
    fails("{{ f(*a) }}", NULL, GY_E_FORMAT, "line 1:", "*args");
    fails("{% for x in y recursive %}{% endfor %}", NULL, GY_E_FORMAT, "line 1:", "recursive");
    fails("{% break %}", NULL, GY_E_FORMAT, "line 1:", "break outside of a loop");
    fails("{% for i in x %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", NULL, GY_E_FORMAT,
          "line 1:", "continue");
    fails("{{ 99999999999999999999 }}", NULL, GY_E_FORMAT, "line 1:", "99999999999999999999");
    fails("{{ '\\ud83d' }}", NULL, GY_E_FORMAT, "line 1:", "names no character");
    fails("{{ '\xFF' }}", NULL, GY_E_FORMAT, "t.jinja:", "UTF-8");
}

static void test_run_errors(void **state) {
    (void)state;
    fails("a\n{{ m.x.y }}", "{\"m\":{}}", GY_E_ARG, "t.jinja: line 2:", "'x' is undefined");
    fails("\n{{ nobody() }}", NULL, GY_E_ARG, "line 2:", "'nobody' is undefined");
    fails("{{ raise_exception('no such role: ' ~ r) }}", "{\"r\":\"q\"}", GY_E_ARG, "line 1:", "no such role: q");
    fails("{{ 9223372036854775807 + 1 }}", NULL, GY_E_ARG, "line 1:", "64 bits");
    fails("{{ n * n }}", "{\"n\":9223372036854775807}", GY_E_ARG, "line 1:", "64 bits");
    fails("{{ -9223372036854775807 - 2 }}", NULL, GY_E_ARG, "line 1:", "64 bits");
    fails("{{ (-9223372036854775807 - 1) // -1 }}", NULL, GY_E_ARG, "line 1:", "64 bits");
    fails("{{ strftime_now('%Y') }}", NULL, GY_E_ARG, "line 1:", "no time was given");
    fails("{{ l.append(1) }}", "{\"l\":[]}", GY_E_ARG, "line 1:", "'append' is undefined or not allowed");
    fails("{{ s.upper }}", "{\"s\":\"\"}", GY_E_ARG, "line 1:", "is a call missing?");
    fails("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", NULL, GY_E_LIMIT, "line 1:", "nested");
    fails("{{ x }}", "[1]", GY_E_ARG, "", "expected an object");
}

/* What other servers' templates could reach (CVE-2024-34359, CVE-2026-5760, GHSA-46cm-pfwv-cgf8). */
static void test_nothing_to_reach(void **state) {
    (void)state;
    static const char *const attacks[] = {
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ ().__class__.__bases__[0] }}",
        "{{ range.__self__.open('/etc/passwd') }}",
        "{{ '{0.__class__.__base__}'.format(1) }}",
        "{{ ['__class__'] | map(attribute='__class__.__mro__') | list }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ config.items() }}",
        "{{ d.update({'a': 2}) }}",
        "{{ d.__setitem__('a', 2) }}",
    };
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++)
        fails(attacks[i], "{\"d\":{\"a\":1}}", GY_E_ARG, "line 1:", "");
    gy_err err = {0};
    gy_jinja_out o = {0};
    assert_int_equal(run("{{ c }}", "{\"c\":\"{{ 7*7 }}{% for %}\"}", NULL, &err, &o),
                     GY_OK); /* input is not a template */
    assert_string_equal(gy_str_z(&o.text), "{{ 7*7 }}{% for %}");
    gy_jinja_out_free(&o);
}

static void limited(const char *template, const char *json, const gy_jinja_limits *lim, const char *what) {
    gy_err err = {0};
    gy_jinja_out o = {0};
    gy_status st = run(template, json, lim, &err, &o);
    if (st != GY_E_LIMIT || !strstr(err.msg, what)) fail_msg("%.80s: status %d, \"%s\"", template, st, err.msg);
}

/* Endless and explosive templates (CVE-2025-61620, GHSA-4hw3-g54f-xfrj, CVE-2025-62426). */
static void test_limits(void **state) {
    (void)state;
    const gy_jinja_limits small = {.max_template_bytes = 1000,
                                   .max_output_bytes = 100,
                                   .max_memory_bytes = 1 << 20,
                                   .max_steps = 100000,
                                   .max_depth = 100};
    limited("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", NULL, NULL, "steps");
    limited("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", NULL, &small,
            "100000 steps");
    limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, NULL, "nested more than 400 deep");
    limited("{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}", NULL, &small, "nested more than 100 deep");
    limited("{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% "
            "endfor %}",
            NULL, NULL, "bytes of memory");
    limited("{{ 'x' * 1000000000000 }}", NULL, NULL, "steps");
    limited("{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 1000000000 }}", NULL, NULL,
            "bytes of memory");
    limited("{{ [1] * 9000000000000000000 }}", NULL, NULL, "bytes of memory");
    limited("{{ 'x' | center(9000000000000000000) }}", NULL, NULL, "steps");
    limited("{{ range(9223372036854775807) }}", NULL, NULL, "range");
    limited("{{ range(-9223372036854775807, 9223372036854775807) }}", NULL, NULL, "range");
    limited("{{ range(9223372036854775807, -9223372036854775807, -1) }}", NULL, NULL, "range");
    limited("{% for i in range(200) %}x{% endfor %}", NULL, &small, "longer than 100 bytes");
    gy_str big = {0};
    for (int i = 0; i < 1001; i++) gy_str_putc(&big, 'x');
    limited(gy_str_z(&big), NULL, &small, "at most 1000");
    gy_str_free(&big);
}

/* Depth of the text itself: brackets, signs, tags, and long chains, which nest in the tree only. */
static void test_deep_templates(void **state) {
    (void)state;
    static const struct {
        const char *head, *repeated, *tail;
    } rows[] = {{"{{ ", "(", ""},
                {"{{ ", "[", ""},
                {"{{ ", "{1:", ""},
                {"{{ ", "-", "1 }}"},
                {"{{ ", "not ", "1 }}"},
                {"", "{% if 1 %}", ""},
                {"{{ 1", " if 1 else 1", " }}"},
                {"{{ x", "[0", ""},
                {"{{ 1", " + 1", " }}"},
                {"{{ x", ".a", " }}"},
                {"{{ x", "|string", " }}"},
                {"{{ x", "()", " }}"},
                {"{% set ", "(", ""},
                {"{{ 1", " and 1", " }}"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gy_str t = {0};
        gy_str_puts(&t, rows[i].head);
        for (int k = 0; k < 20000; k++) gy_str_puts(&t, rows[i].repeated);
        gy_str_puts(&t, rows[i].tail);
        limited(gy_str_z(&t), "{\"x\":\"s\"}", NULL, "nested more than");
        gy_str_free(&t);
    }
}

/* ---- where bytes come from ---- */

static void check_marks(const char *template, const char *json, const char *want) {
    gy_err err = {0};
    gy_jinja_out o = {0};
    gy_str got = {0};
    if (run(template, json, NULL, &err, &o) < 0) fail_msg("%s: %s", template, err.msg);
    for (size_t i = 0; i < o.seg.len; i++)
        gy_str_printf(&got, "%c%.*s", o.seg.data[i].is_data ? '~' : '=', (int)o.seg.data[i].len,
                      o.text.data + o.seg.data[i].off);
    if (strcmp(gy_str_z(&got), want) != 0) fail_msg("%s:\ngot  %s\nwant %s", template, gy_str_z(&got), want);
    gy_str_free(&got);
    gy_jinja_out_free(&o);
}

static void test_origins(void **state) {
    (void)state;
    const char *json = "{\"x\":\" DATA \",\"l\":[\"A\",\"B\"],\"n\":5,\"d\":{\"k\":\"v\"},\"t\":true}";
    check_marks("<a>{{ x }}</a>", json, "=<a>~ DATA =</a>");
    check_marks("{{ '<' ~ x | trim ~ '>' }}", json, "=<~DATA=>");
    check_marks("{{ '<' + x + '>' }}{{ x[1] }}{{ 'ab'[1] }}", json, "=<~ DATA =>~D=b");
    check_marks("{{ l | join('<sep>') }}", json, "~A=<sep>~B");
    check_marks("{{ x.replace('A', '<a>') }}", json, "~ D=<a>~T=<a>~ ");
    check_marks("{{ 'qAq'.replace('q', x) }}", json, "~ DATA =A~ DATA ");
    check_marks("{{ d | tojson }}{{ {'k': x} | tojson }}", json, "~{\"k\": \"v\"}={\"k\": ~\" DATA \"=}");
    check_marks("{{ n }}{{ n + 1 }}{{ 2 + 1 }}{{ t }}{{ l | length }}", json, "~56=3~True=2");
    check_marks("{{ x | upper | lower }}{{ 'X' | lower }}", json, "~ data =x");
    check_marks("{{ '%s<%s>' | format(x, 'm') }}{{ '<%s>' % n }}", json, "~ DATA =<m><~5=>");
    check_marks("{% set s %}<{{ x }}>{% endset %}{{ s }}{{ s[0] }}{{ s[1:3] }}{{ s[::-1][:2] }}", json,
                "=<~ DATA =><~ D=>~ ");
    check_marks("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(l[0]) | upper }}", json, "=<~A=>");
    check_marks("{% for c in ('<' ~ l[0] ~ '>') | reverse %}{{ c }}{% endfor %}", json, "=>~A=<");
    check_marks("{{ (x ~ '<br>' ~ x).split('<br>') | join('=') }}", json, "~ DATA ==~ DATA ");
    check_marks("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{{ x | default('m') }}{{ zz | default('m') }}",
                json, "~k==~v DATA =m");
    check_marks("{{ '{}<{}>'.format(x, 'm') }}{{ x | indent('....', true) }}", json, "~ DATA =<m>....~ DATA ");
    check_marks("{{ [x, 'm'] }}", json, "=[~' DATA '=, 'm']");
    check_marks("{% filter trim %} {{ l[0] }}- {% endfilter %}", json, "~A=-");
}

/* Random expressions over data in capitals and literals in small letters: in the output, capitals are data and
 * everything else is markup, whatever was done to the strings on the way. */
static uint32_t rng = 12345;

static uint32_t draw(uint32_t n) {
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

static void random_string(gy_str *t, int depth);

static void wrap(gy_str *t, const char *before, int depth, const char *after) {
    gy_str_puts(t, before);
    random_string(t, depth - 1);
    gy_str_puts(t, after);
}

static void random_string(gy_str *t, int depth) {
    static const char *const leaves[] = {"X", "Y", "'ab'", "'<c>'", "L[0]", "D.K", "'k '", "X[1:]"};
    static const char *const after[] = {" | trim",
                                        "[::-1]",
                                        "[1:]",
                                        "[:4]",
                                        ".replace('a', 'zz')",
                                        ".replace('A', 'y')",
                                        ".split('b') | join('-')",
                                        " | string",
                                        " * 2",
                                        " | list | join",
                                        ".strip('ab')",
                                        " | indent(2)",
                                        " | default('q')",
                                        ".ljust(6, '.')",
                                        ".partition('B') | join('/')",
                                        " | reverse",
                                        ".splitlines() | join(';')",
                                        " | replace('b', X)",
                                        " | center(9)",
                                        " | unique(true) | join",
                                        ".rsplit('A', 1) | join(Y)",
                                        ".removeprefix('a')"};
    if (depth <= 0) {
        gy_str_puts(t, leaves[draw(8)]);
        return;
    }
    switch (draw(6)) {
    case 0:
        wrap(t, "(", depth, " ~ ");
        wrap(t, "", depth, ")");
        break;
    case 1:
        wrap(t, "(", depth, " + ");
        wrap(t, "", depth, ")");
        break;
    case 2:
        wrap(t, "([", depth, ", ");
        wrap(t, "", depth, "] | join(', '))");
        break;
    case 3:
        wrap(t, "('%s:%s' | format(", depth, ", ");
        wrap(t, "", depth, "))");
        break;
    default:
        wrap(t, "((", depth, ")");
        gy_str_puts(t, after[draw(sizeof after / sizeof *after)]);
        gy_str_putc(t, ')');
        break;
    }
}

static void test_origins_random(void **state) {
    (void)state;
    const char *json = "{\"X\":\"ABCA\",\"Y\":\"QR\",\"L\":[\"LM\",\"N\"],\"D\":{\"K\":\"BAB\"}}";
    gy_json *doc = parse(json);
    size_t n_mixed = 0;
    for (int round = 0; round < 3000; round++) {
        gy_str t = {0};
        gy_jinja *tmpl = NULL;
        gy_jinja_out o = {0};
        gy_err err = {0};
        wrap(&t, "t{{ ", 1 + (int)draw(5), " }}");
        if (gy_jinja_compile(gy_str_z(&t), t.len, "t", NULL, &err, &tmpl) < 0)
            fail_msg("%s: %s", gy_str_z(&t), err.msg);
        if (gy_jinja_render(tmpl, gy_json_root(doc), NULL, &err, &o) < 0) fail_msg("%s: %s", gy_str_z(&t), err.msg);
        n_mixed += o.seg.len > 2;
        for (size_t i = 0; i < o.seg.len; i++)
            for (size_t k = o.seg.data[i].off; k < o.seg.data[i].off + o.seg.data[i].len; k++) {
                char c = o.text.data[k];
                if ((c >= 'A' && c <= 'Z') != o.seg.data[i].is_data)
                    fail_msg("%s: byte %zu of \"%s\" is %s", gy_str_z(&t), k, o.text.data,
                             o.seg.data[i].is_data ? "data" : "markup");
            }
        gy_jinja_out_free(&o);
        gy_jinja_destroy(tmpl);
        gy_str_free(&t);
    }
    assert_true(n_mixed > 1000);
    gy_json_free(doc);
}

/* ---- the rest ---- */

static void test_nul_bytes(void **state) {
    (void)state;
    gy_err err = {0};
    gy_jinja_out o = {0};
    assert_int_equal(run("{{ c | trim }}{{ c | length }}{{ c | tojson }}", "{\"c\":\" a\\u0000b \"}", NULL, &err, &o),
                     GY_OK);
    assert_int_equal(o.text.len, 3 + 1 + 12);
    assert_memory_equal(o.text.data, "a\0b5\" a\\u0000b \"", 16);
    gy_jinja_out_free(&o);
}

static void test_reads(void **state) {
    (void)state;
    gy_jinja *t = NULL;
    gy_err err = {0};
    size_t len;
    const char *text = "{% if enable_thinking %}tools{% endif %}\r\n";
    assert_int_equal(gy_jinja_compile(text, strlen(text), "t", NULL, &err, &t), GY_OK);
    assert_int_equal(gy_jinja_reads(t, "enable_thinking"), 1);
    assert_int_equal(gy_jinja_reads(t, "tools"), 0);
    assert_string_equal(gy_jinja_source(t, &len), text);
    assert_int_equal(len, strlen(text));
    gy_jinja_destroy(t);
    gy_jinja_destroy(NULL);
}

/* Every allocation fails once: an error each time, no leak (the sanitizer watches), and then it works. */
static void test_no_memory(void **state) {
    (void)state;
    const char *text =
        "{% macro m(a, b=1) %}<{{ a }}>{% endmacro %}{% for k, v in d.items() %}{{ m(v) | upper }}{% endfor %}"
        "{% set ns = namespace(x='q' ~ s) %}{{ ns.x.split(' ') | join('-') }}{{ d | tojson(indent=2) }}";
    gy_json *doc = parse("{\"d\":{\"a\":[1,2.5,null],\"b\":\"c\"},\"s\":\"x y z\"}");
    int n = 1;
    for (;; n++) {
        gy_jinja *t = NULL;
        gy_jinja_out o = {0};
        gy_err err = {0};
        gy_mem_fail_after(n);
        gy_status st = gy_jinja_compile(text, strlen(text), "t", NULL, &err, &t);
        if (st == GY_OK) st = gy_jinja_render(t, gy_json_root(doc), NULL, &err, &o);
        gy_mem_fail_after(0);
        gy_jinja_destroy(t);
        if (st == GY_OK) {
            assert_true(o.text.len > 30);
            gy_jinja_out_free(&o);
            break;
        }
        assert_int_equal(st, GY_E_NOMEM);
        assert_null(o.text.data);
    }
    assert_true(n > 10);
    gy_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_errors),
        cmocka_unit_test(test_run_errors),
        cmocka_unit_test(test_nothing_to_reach),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_deep_templates),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_origins_random),
        cmocka_unit_test(test_nul_bytes),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
