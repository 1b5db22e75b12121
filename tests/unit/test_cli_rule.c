/* Exit options to rules (defaults of docs/models, leaving early) and files of recorded loops. */
#include "cli/cli_rule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const gy_model_desc gated = {.family = "ouro", .n_loop = 4, .has_gate = 1};
static const gy_model_desc plain = {.family = "huginn", .n_loop = 32};

static gy_req_opts opts(const char *exit_name, double threshold, int min_loops, int max_loops) {
    gy_args a;
    gy_args_default(&a);
    a.req.exit = exit_name;
    a.req.exit_threshold = threshold;
    a.req.min_loops = min_loops;
    a.req.max_loops = max_loops;
    return a.req;
}

static void defaults_by_rule(void **state) {
    static const struct {
        const char *name;
        const gy_model_desc *d;
        double given, threshold;
        int min_in, max_in, min, max;
    } cases[] = {
        {"fixed", &gated, NAN, 1, 0, 0, 1, 4},        {"fixed", &plain, NAN, 1, 0, 8, 1, 8},
        {"gate", &gated, 0.5, 0.5, 0, 0, 2, 4},       {"gate", &gated, 0.5, 0.5, 0, 1, 1, 1},
        {"gate", &gated, 0.5, 0.5, 1, 0, 1, 4},       {"gate_delayed", &gated, 0.9, 0.9, 0, 3, 2, 3},
        {"select", &gated, 0.5, 0.5, 0, 0, 1, 4},     {"latent", &plain, NAN, 0.03, 0, 0, 1, 32},
        {"kl", &plain, NAN, 5e-4, 0, 0, 1, 32},       {"entropy", &plain, NAN, 1e-3, 0, 0, 1, 32},
        {"argmax", &plain, NAN, 5, 0, 0, 1, 32},      {"latent", &gated, 0.2, 0.2, 3, 4, 3, 4},
        {"trace:x.json", &gated, NAN, 1, 0, 0, 1, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_req_opts o = opts(cases[i].name, cases[i].given, cases[i].min_in, cases[i].max_in);
        gy_err err = {0};
        gy_exit_rule r;
        const char *file;
        if (gy_rule_resolve(&o, cases[i].d, &err, &r, &file) != GY_OK) fail_msg("case %zu: %s", i, err.msg);
        assert_true(r.threshold == cases[i].threshold);
        assert_int_equal(r.min_loops, cases[i].min);
        assert_int_equal(r.max_loops, cases[i].max);
        assert_int_equal(r.on_prompt, 0);
        if (cases[i].name[0] == 't')
            assert_string_equal(file, "x.json");
        else
            assert_null(file);
    }
}

static void refusals(void **state) {
    static const struct {
        const char *name;
        const gy_model_desc *d;
        double threshold;
        int min, max, force;
        const char *message;
    } cases[] = {
        {"gates", &gated, NAN, 0, 0, 0,
         "exit: found 'gates', expected fixed, gate, gate_delayed, select, latent, kl, "},
        {"trace", &gated, NAN, 0, 0, 0, "exit: found 'trace', expected "},
        {"trace:", &gated, NAN, 0, 0, 0, "exit: found 'trace:', expected "},
        {"gate", &gated, NAN, 0, 0, 0,
         "exit_threshold: not given; exit gate needs one (0 to 1; typical are 0.5 to 0.9)"},
        {"select", &gated, NAN, 0, 0, 0, "exit_threshold: not given; exit select needs one"},
        {"gate", &gated, 1.5, 0, 0, 0, "exit_threshold: found 1.5"},
        {"argmax", &plain, 2.5, 0, 0, 0, "exit_threshold: found 2.5"},
        {"gate", &plain, NAN, 0, 0, 0, "exit: found gate, which needs an exit gate"},
        {"fixed", &gated, NAN, 0, 5, 0, "max_loops: found 5, expected at most 4, the depth the model was trained for"},
        {"fixed", &gated, NAN, 3, 2, 0, "min_loops: found 3"},
        {"fixed", &gated, NAN, 6, 5, 1, "min_loops: found 6"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_req_opts o = opts(cases[i].name, cases[i].threshold, cases[i].min, cases[i].max);
        gy_err err = {0};
        gy_exit_rule r;
        const char *file;
        o.force_depth = cases[i].force;
        assert_int_equal(gy_rule_resolve(&o, cases[i].d, &err, &r, &file), GY_E_ARG);
        if (strncmp(err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("case %zu: found '%s', expected '%s'", i, err.msg, cases[i].message);
    }
}

static void depth_can_be_forced(void **state) {
    gy_req_opts o = opts("fixed", NAN, 0, 9);
    gy_err err = {0};
    gy_exit_rule r;
    const char *file;
    (void)state;
    o.force_depth = 1;
    assert_int_equal(gy_rule_resolve(&o, &gated, &err, &r, &file), GY_OK);
    assert_int_equal(r.max_loops, 9);
}

static void traces(void **state) {
    static const struct {
        const char *text;
        int n, n0, n1; /* lists, length of the first two */
    } good[] = {
        {"[[4,2,3],[4,4]]", 2, 3, 2},
        {"[[4,\n2,3],\n[4,4]]\n", 2, 3, 2},
        {"[4,2,3]\n[4,4]\n", 2, 3, 2},
        {"[4,2,3]", 1, 3, 0},
        {"{\"index\":0,\"loops\":[4,2,3],\"text\":null}\n\n{\"index\":1,\"loops\":[4,4]}\n", 2, 3, 2},
        {"{\"loops\":[4,2,3]}", 1, 3, 0},
        {"[{\"loops\":[4,2,3]},{\"loops\":[4,4]}]", 2, 3, 2},
        {"[]", 1, 0, 0},
    };
    (void)state;
    gy_arena *arena = gy_arena_create(GY_MEM_CLI, 4096);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        gy_err err = {0};
        gy_trace t = {0};
        if (gy_trace_parse(arena, good[i].text, strlen(good[i].text), "t.json", &err, &t) != GY_OK)
            fail_msg("%s: %s", good[i].text, err.msg);
        assert_int_equal(t.n, good[i].n);
        assert_int_equal(t.list[0].n, good[i].n0);
        if (good[i].n0) assert_int_equal(t.list[0].loops[1], 2);
        if (good[i].n > 1) assert_int_equal(t.list[1].n, good[i].n1);
    }
    gy_arena_destroy(arena);
}

static void bad_traces(void **state) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[[4],[0]]", "t.json: list 2: entry 1: found an integer, expected a number of loops from 1"},
        {"[4]\n{\"loop\":[1]}\n",
         "t.json: line 2: found an object, expected a list of loops or an object with \"loops\""},
        {"[4]\n[4,\n", "t.json: line 2: "},
        {"7", "t.json: found an integer, expected a list of loops"},
        {"[4, 2.5]", "t.json: entry 2: found "},
    };
    (void)state;
    gy_arena *arena = gy_arena_create(GY_MEM_CLI, 4096);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gy_err err = {0};
        gy_trace t = {0};
        assert_true(gy_trace_parse(arena, bad[i].text, strlen(bad[i].text), "t.json", &err, &t) < 0);
        if (strncmp(err.msg, bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("%s: found '%s', expected '%s'", bad[i].text, err.msg, bad[i].message);
        assert_null(t.path);
    }
    gy_arena_destroy(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_by_rule), cmocka_unit_test(refusals),   cmocka_unit_test(depth_can_be_forced),
        cmocka_unit_test(traces),           cmocka_unit_test(bad_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
