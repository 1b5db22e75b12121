/* Grammars through gyre.h, on the demo model: what comes out is what was asked for, whatever the seed and the
 * temperature, and references go away when they should. */
#include "unit/api_test.h"

#include "base/json.h"

#include <regex.h>

static gyre_grammar *must_compile(gyre *g, gyre_grammar_kind kind, const char *text) {
    gyre_err err = {0};
    gyre_grammar *m = NULL;
    if (gyre_grammar_compile(g, kind, text, strlen(text), &err, &m) != GYRE_OK) fail_msg("%s", err.msg);
    return m;
}

static void run_one(gyre *g, const gyre_request *r) {
    must_submit(g, r);
    step_all(g);
    poll_all(g);
}

static void must_match(const char *posix, const seen *s) {
    regex_t re;
    assert_int_equal(regcomp(&re, posix, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&re, s->text, 0, NULL, 0)) fail_msg("'%s' does not match %s (%s)", s->text, posix, s->message);
    regfree(&re);
}

static void regex_always_matches(void **state) {
    (void)state;
    static const struct {
        const char *ours, *posix;
    } cases[] = {{"\\d{3}-\\d{4}", "^[0-9]{3}-[0-9]{4}$"},
                 {"(yes|no|maybe)", "^(yes|no|maybe)$"},
                 {"[A-Z][a-z]{2,9}( [a-z]{1,5}){0,3}\\.", "^[A-Z][a-z]{2,9}( [a-z]{1,5}){0,3}\\.$"},
                 {" ?x+y", "^ ?x+y$"}};
    static const float temperatures[] = {0, 0.7f, 1, 5};
    gyre *g = must_open(DEMO, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, cases[i].ours);
        for (uint64_t seed = 0; seed < 24; seed++) {
            seen s = {0};
            gyre_request r = ask("The number is", 100, &s);
            r.grammar = m;
            r.temperature = temperatures[seed % 4];
            r.has_seed = 1;
            r.seed = seed;
            run_one(g, &r);
            if (s.fin.reason == GYRE_FINISH_LENGTH) continue; /* x+ may go on */
            assert_int_equal(s.fin.reason, GYRE_FINISH_STOP);
            must_match(cases[i].posix, &s);
        }
        gyre_grammar_release(m);
    }
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_always_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
