/* The option parser: forms, types, ranges, repetition, suggestions, JSON, help. With a table of its own, and a check of
 * the real tables.
 */
#include "cli/cli_args.h"
#include "cli/cli_opts.h"
#include "model/synth.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct values {
    int flag, word;
    int32_t n;
    uint64_t seed;
    double x;
    const char *s;
    gy_opt_list list;
    gy_opt_u64 maybe, size;
    const char *ids, *pairs;
} values;

#define AT(m) offsetof(values, m)
static const gy_opt rows[] = {
    {"flag", GY_OPT_FLAG, AT(flag), NULL, 0, 0, NULL, "a flag"},
    {"word", GY_OPT_WORD, AT(word), "red|green|blue", 0, 0, "red", "a colour"},
    {"max-tokens", GY_OPT_I32, AT(n), "N", 1, 100, "7", "a number"},
    {"seed", GY_OPT_U64, AT(seed), "S", 0, 0, NULL, "a seed"},
    {"top-p", GY_OPT_F64, AT(x), "P", 0, 1, NULL, "a share"},
    {"name", GY_OPT_STR, AT(s), "TEXT", 0, 0, NULL, "a text"},
    {"one", GY_OPT_LIST, AT(list), "A", 0, 0, NULL, "shares its list"},
    {"two", GY_OPT_LIST, AT(list), "B", 0, 0, NULL, "with this one"},
    {"maybe", GY_OPT_SEED, AT(maybe), "S", 0, 0, "drawn", "a seed that knows whether it was given"},
    {"bytes", GY_OPT_SIZE, AT(size), "SIZE", 0, 0, NULL, "a size"},
    {"ids", GY_OPT_IDS, AT(ids), "1,2", 0, 0, NULL, "a list of ids"},
    {"pairs", GY_OPT_PAIRS, AT(pairs), "ID:X,...", 0, 0, NULL, "numbers by ids"},
};
static const gy_opt_group group = {"Things", rows, sizeof rows / sizeof *rows};
static const gy_opt_group *const groups[] = {&group, NULL};

typedef struct fixture {
    gy_arena *arena;
    gy_opts o;
    values v;
    gy_err err;
} fixture;

static void begin(fixture *f) {
    *f = (fixture){.arena = gy_arena_create(GY_MEM_CLI, 4096)};
    assert_non_null(f->arena);
    f->o = (gy_opts){.arena = f->arena, .groups = groups, .values = &f->v};
    f->v.n = 7;
}

static void end(fixture *f) {
    gy_opts_fini(&f->o);
    gy_arena_destroy(f->arena);
}

/* Words of line, separated by blanks. */
static gy_status parse(fixture *f, const char *line) {
    static char buf[512], *argv[32];
    int argc = 0;
    snprintf(buf, sizeof buf, "%s", line);
    for (char *p = strtok(buf, " "); p; p = strtok(NULL, " ")) argv[argc++] = p;
    return gy_opts_parse_argv(&f->o, argc, argv, &f->err);
}

static void good_forms(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(
        parse(&f, "a --flag --word=blue --max-tokens 9 --seed 18446744073709551615 b --top-p=.5 --name=x=y"), GY_OK);
    assert_int_equal(f.v.flag, 1);
    assert_int_equal(f.v.word, 2);
    assert_int_equal(f.v.n, 9);
    assert_true(f.v.seed == UINT64_MAX);
    assert_true(f.v.x == 0.5);
    assert_string_equal(f.v.s, "x=y");
    assert_int_equal(f.o.pos.len, 2);
    assert_string_equal(f.o.pos.data[1], "b");
    assert_true(gy_opts_given(&f.o, "seed") && !gy_opts_given(&f.o, "one"));
    end(&f);
}

static void last_one_counts_and_lists_keep_order(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(parse(&f, "--max-tokens 3 --two 1 --one 2 --max-tokens 4 --two 3 --two 4 --two 5 --name --flag"),
                     GY_OK);
    assert_int_equal(f.v.n, 4);
    assert_string_equal(f.v.s, "--flag"); /* a value may look like an option */
    assert_int_equal(f.v.flag, 0);
    assert_int_equal(f.v.list.n, 5);
    for (int i = 0; i < 5; i++) assert_int_equal(f.v.list.items[i].text[0], '1' + i);
    assert_string_equal(f.v.list.items[0].opt->name, "two");
    assert_string_equal(f.v.list.items[1].opt->name, "one");
    end(&f);
}

static void double_dash_ends_options(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(parse(&f, "- -- --flag -x --"), GY_OK);
    assert_int_equal(f.v.flag, 0);
    assert_int_equal(f.o.pos.len, 4);
    assert_string_equal(f.o.pos.data[0], "-");
    assert_string_equal(f.o.pos.data[3], "--");
    end(&f);
}

static void sizes(void **state) {
    static const struct {
        const char *text;
        int64_t want; /* -1: refused */
    } cases[] = {{"0", 0},
                 {"4096", 4096},
                 {"64K", 65536},
                 {"3M", 3145728},
                 {"2G", 1ll << 31},
                 {"1.5K", 1536},
                 {"0.5G", 1ll << 29},
                 {"4294967295G", 4294967295ll << 30},
                 {"4294967296G", -1},
                 {"1.5", -1},
                 {"-1K", -1},
                 {"K", -1},
                 {"", -1},
                 {"1KB", -1},
                 {"1 K", -1},
                 {"0x1K", -1},
                 {"1e3K", -1},
                 {"1.2.3K", -1},
                 {"nanK", -1},
                 {"+1K", -1},
                 {"1k", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 7;
        int rc = gy_parse_size(cases[i].text, &v);
        if (rc != (cases[i].want < 0 ? -1 : 0) || (!rc && v != (uint64_t)cases[i].want) || (rc && v != 7))
            fail_msg("'%s': %d, %llu", cases[i].text, rc, (unsigned long long)v);
    }
}

static void given_or_not(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(parse(&f, "a"), GY_OK);
    assert_false(f.v.maybe.given || f.v.size.given);
    assert_int_equal(parse(&f, "--maybe 0 --bytes=2K --ids 1,2 --pairs 3:-1.5"), GY_OK);
    assert_true(f.v.maybe.given && f.v.maybe.v == 0 && f.v.size.given && f.v.size.v == 2048);
    assert_string_equal(f.v.ids, "1,2");
    assert_string_equal(f.v.pairs, "3:-1.5");
    end(&f);
}

typedef struct bad_case {
    const char *line, *message;
} bad_case;

static void bad_lines(void **state) {
    static const bad_case cases[] = {
        {"--flags", "unknown option --flags; did you mean --flag?"},
        {"--max-token 3", "unknown option --max-token; did you mean --max-tokens?"},
        {"--max-tok 3", "unknown option --max-tok; did you mean --max-tokens?"},
        {"--zebra", "unknown option --zebra"},
        {"-n 3", "unknown option -n; options begin with two dashes"},
        {"--flag=1", "--flag: found the value '1', expected none"},
        {"--max-tokens", "--max-tokens: found nothing behind it, expected a value N"},
        {"--max-tokens 0", "--max-tokens: found 0, expected a whole number from 1 to 100"},
        {"--max-tokens=101", "--max-tokens: found 101, expected a whole number from 1 to 100"},
        {"--max-tokens 3x", "--max-tokens: found '3x', expected a whole number from 1 to 100"},
        {"--max-tokens=", "--max-tokens: found '', expected a whole number from 1 to 100"},
        {"--max-tokens +3", "--max-tokens: found '+3', expected a whole number from 1 to 100"},
        {"--max-tokens 99999999999999999999", "--max-tokens: found '99999999999999999999', expected"},
        {"--seed -1", "--seed: found '-1', expected a whole number from 0 to 2^64 - 1"},
        {"--seed 18446744073709551616", "--seed: found '18446744073709551616', expected"},
        {"--top-p 1.01", "--top-p: found 1.01, expected a number from 0 to 1"},
        {"--top-p nan", "--top-p: found 'nan', expected a number from 0 to 1"},
        {"--top-p inf", "--top-p: found 'inf', expected a number from 0 to 1"},
        {"--top-p 1e999", "--top-p: found '1e999', expected a number from 0 to 1"},
        {"--word gre", "--word: found 'gre', expected one of red|green|blue"},
        {"--word=", "--word: found '', expected one of red|green|blue"},
        {"--maybe x", "--maybe: found 'x', expected a whole number from 0 to 2^64 - 1"},
        {"--bytes 1.5", "--bytes: found '1.5', expected a number of bytes, or one with K, M or G behind it"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        begin(&f);
        assert_int_equal(parse(&f, cases[i].line), GY_E_ARG);
        if (strncmp(f.err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("'%s': found '%s', expected '%s'", cases[i].line, f.err.msg, cases[i].message);
        assert_int_equal(f.v.n, 7);
        end(&f);
    }
}

static void long_names_are_cut_not_overrun(void **state) {
    char arg[5000];
    char *argv[] = {arg};
    fixture f;
    (void)state;
    memset(arg, 'x', sizeof arg);
    arg[0] = arg[1] = '-';
    arg[sizeof arg - 1] = '\0';
    begin(&f);
    assert_int_equal(gy_opts_parse_argv(&f.o, 1, argv, &f.err), GY_E_ARG);
    assert_memory_equal(f.err.msg, "unknown option --xxx", 20);
    end(&f);
}

static gy_status apply(fixture *f, const char *json) {
    gy_json *doc = NULL;
    assert_int_equal(gy_json_parse(json, strlen(json), NULL, &f->err, &doc), GY_OK);
    gy_status st = gy_opts_apply_json(&f->o, gy_json_root(doc), NULL, &f->err);
    gy_json_free(doc); /* strings must have been copied */
    return st;
}

static void json_comes_behind_the_command_line(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(parse(&f, "--max-tokens 5 --one a"), GY_OK);
    assert_int_equal(apply(&f, "{\"max_tokens\": 6, \"flag\": true, \"word\": \"green\", \"seed\": 9007199254740993, "
                               "\"top_p\": 1, \"name\": \"n\", \"one\": [\"b\"], \"two\": [\"x\\u0000y\", \"z\"]}"),
                     GY_OK);
    assert_int_equal(f.v.n, 5);
    assert_int_equal(f.v.flag, 1);
    assert_int_equal(f.v.word, 1);
    assert_true(f.v.seed == 9007199254740993u);
    assert_true(f.v.x == 1.0);
    assert_string_equal(f.v.s, "n");
    assert_int_equal(f.v.list.n, 2); /* a list replaces */
    assert_int_equal(f.v.list.items[0].len, 3);
    assert_memory_equal(f.v.list.items[0].text, "x\0y", 4);
    end(&f);
}

static void json_has_its_own_forms(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(apply(&f, "{\"maybe\": 0, \"bytes\": 4096, \"ids\": [1, 22, 3], \"pairs\": {\"5\": -100, "
                               "\"6\": 0.1}, \"seed\": \"18446744073709551615\"}"),
                     GY_OK);
    assert_true(f.v.maybe.given && f.v.maybe.v == 0 && f.v.size.v == 4096 && f.v.seed == UINT64_MAX);
    assert_string_equal(f.v.ids, "1,22,3");
    assert_string_equal(f.v.pairs, "5:-100,6:0.10000000000000001");
    end(&f);
    begin(&f);
    assert_int_equal(apply(&f, "{\"maybe\": \"18446744073709551615\", \"bytes\": \"1M\", \"ids\": \"4,5\", "
                               "\"pairs\": \"1:2\"}"),
                     GY_OK);
    assert_true(f.v.maybe.v == UINT64_MAX && f.v.size.v == 1 << 20);
    assert_string_equal(f.v.ids, "4,5");
    assert_string_equal(f.v.pairs, "1:2");
    end(&f);
}

static void bad_json(void **state) {
    static const bad_case cases[] = {
        {"{\"max_token\": 1}", "unknown field \"max_token\"; did you mean \"max_tokens\"?"},
        {"{\"max-tokens\": 1}", "unknown field \"max-tokens\"; did you mean \"max_tokens\"?"},
        {"{\"zebra\": 1}", "unknown field \"zebra\""},
        {"{\"max_tokens\": \"1\"}", "field \"max_tokens\": found a string, expected a whole number"},
        {"{\"max_tokens\": 1.0}", "field \"max_tokens\": found "},
        {"{\"max_tokens\": 200}", "max_tokens: found 200, expected a whole number from 1 to 100"},
        {"{\"flag\": 1}", "field \"flag\": found an integer, expected true or false"},
        {"{\"seed\": -1}", "field \"seed\": found an integer, expected a whole number from 0"},
        {"{\"top_p\": \"x\"}", "field \"top_p\": found a string, expected a number"},
        {"{\"name\": \"a\\u0000b\"}", "field \"name\": found a NUL in the string"},
        {"{\"name\": null}", "field \"name\": found null, expected a string"},
        {"{\"word\": \"pink\"}", "word: found 'pink', expected one of red|green|blue"},
        {"{\"one\": [1]}", "field \"one\": found an integer, expected strings in this list"},
        {"{\"one\": 1}", "field \"one\": found an integer, expected a string or a list of strings"},
        {"{\"maybe\": 1.5}", "field \"maybe\": found a real number, expected a whole number from 0"},
        {"{\"bytes\": -1}", "field \"bytes\": found an integer, expected a whole number from 0"},
        {"{\"bytes\": \"1T\"}", "bytes: found '1T', expected a number of bytes"},
        {"{\"ids\": [1, \"2\"]}", "field \"ids\": found a string, expected whole numbers in this list"},
        {"{\"ids\": {}}", "field \"ids\": found an object, expected a string"},
        {"{\"pairs\": {\"1\": \"2\"}}", "field \"pairs\": found a string, expected numbers in this object"},
        {"{\"pairs\": [1]}", "field \"pairs\": found an array, expected a string"},
        {"[]", "found an array, expected an object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        begin(&f);
        assert_int_equal(apply(&f, cases[i].line), GY_E_ARG);
        if (strncmp(f.err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s: found '%s', expected '%s'", cases[i].line, f.err.msg, cases[i].message);
        end(&f);
    }
}

static void help_shows_every_option(void **state) {
    gy_str s = {0};
    (void)state;
    gy_opts_help(groups, &s);
    for (size_t i = 0; i < group.n; i++) {
        char want[64];
        snprintf(want, sizeof want, "  --%s%s%s", rows[i].name, rows[i].arg ? " " : "", rows[i].arg ? rows[i].arg : "");
        assert_non_null(strstr(gy_str_z(&s), want));
        assert_non_null(strstr(gy_str_z(&s), rows[i].help));
    }
    assert_non_null(strstr(gy_str_z(&s), "a number (default: 7)"));
    gy_str_free(&s);
}

/* Properties of the real tables that the parser relies on. */
static void tables_are_sound(void **state) {
    (void)state;
    for (size_t c = 0; c < gy_n_cmds; c++) {
        gy_str s = {0};
        gy_opts o = {.groups = gy_cmds[c].groups};
        for (const gy_opt_group *const *g = gy_cmds[c].groups; *g; g++)
            for (size_t i = 0; i < (*g)->n; i++) {
                const gy_opt *opt = &(*g)->opts[i];
                assert_ptr_equal(gy_opts_find(&o, opt->name, strlen(opt->name)), opt); /* no name twice */
                assert_true(strlen(opt->name) < 32 && !strchr(opt->name, '_') && opt->help[0]);
                assert_true(opt->kind == GY_OPT_FLAG ? !opt->arg : opt->arg != NULL);
                assert_true(opt->kind != GY_OPT_I32 || (opt->min <= opt->max && opt->max <= INT32_MAX));
                assert_true(opt->offset < sizeof(gy_args));
            }
        gy_opts_help(gy_cmds[c].groups, &s);
        size_t width = 0;
        for (const char *p = gy_str_z(&s); *p; p++) {
            width = *p == '\n' ? 0 : width + 1;
            assert_true(width <= 100);
        }
        gy_str_free(&s);
    }
}

static void synth_help_lists_the_shapes(void **state) {
    gy_opts o = {.groups = gy_cmd_find("synth")->groups};
    const char *help = gy_opts_find(&o, "shape", 5)->help;
    size_t n = 0, n_sep = 0;
    (void)state;
    for (const char *const *s = gy_synth_shapes(); *s; s++, n++) assert_non_null(strstr(help, *s));
    for (const char *c = help; *c; c++) n_sep += *c == ',' || *c == ';';
    assert_int_equal(n, n_sep + 1);
}

static void allocation_failures(void **state) {
    (void)state;
    for (int64_t n = 1; n < 40; n++) {
        fixture f;
        begin(&f);
        gy_mem_fail_after(n);
        gy_status st = parse(&f, "a --one 1 --one 2 --one 3 --one 4 --one 5 --flag b c d e f g h i");
        gy_mem_fail_after(0);
        assert_true(st == GY_OK || st == GY_E_NOMEM);
        end(&f);
        if (st == GY_OK) return;
    }
    fail_msg("never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_forms),
        cmocka_unit_test(last_one_counts_and_lists_keep_order),
        cmocka_unit_test(double_dash_ends_options),
        cmocka_unit_test(sizes),
        cmocka_unit_test(given_or_not),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(long_names_are_cut_not_overrun),
        cmocka_unit_test(json_comes_behind_the_command_line),
        cmocka_unit_test(json_has_its_own_forms),
        cmocka_unit_test(bad_json),
        cmocka_unit_test(help_shows_every_option),
        cmocka_unit_test(tables_are_sound),
        cmocka_unit_test(synth_help_lists_the_shapes),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
