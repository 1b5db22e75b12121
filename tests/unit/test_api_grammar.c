/* Grammars through gyre.h, on the demo model: what comes out is what was asked for, whatever the seed and the
 * temperature, and references go away when they should. */
#include "unit/api_test.h"

#include "base/json.h"

#include <pthread.h>
#include <regex.h>
#include <sched.h>

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

/* ---- more of what comes out -------------------------------------------------------------------------------------- */

static void schemas_are_followed(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":500},"
        "\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"id\",\"kind\",\"ok\"],"
        "\"additionalProperties\":false}";
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_JSON_SCHEMA, schema);
    for (uint64_t seed = 0; seed < 20; seed++) {
        seen s = {0};
        gyre_request r = ask("{", 100, &s);
        r.grammar = m;
        r.temperature = (float)(seed % 4);
        r.has_seed = 1;
        r.seed = seed;
        run_one(g, &r);
        assert_int_equal(s.fin.reason, GYRE_FINISH_STOP);
        assert_int_equal(s.fin.stop_id, -1); /* complete with the last brace: no eos was needed */
        gy_json *doc = NULL;
        assert_int_equal(gy_json_parse(s.text, s.n_text, NULL, NULL, &doc), GY_OK);
        const gy_jv *o = gy_json_root(doc), *kind = gy_jv_get(o, "kind");
        int64_t id = gy_jv_int(gy_jv_get(o, "id"), -1);
        assert_true(gy_jv_len(o) == 3 && id >= 1 && id <= 500);
        assert_true(gy_jv_is_str(kind, "cat") || gy_jv_is_str(kind, "dog"));
        assert_int_equal(gy_jv_type(gy_jv_get(o, "ok")), GY_J_BOOL);
        gy_json_free(doc);
    }
    gyre_grammar_release(m);
    gyre_close(g);
}

/* A bias on what is forbidden, however large, changes nothing. */
static void biases_on_what_is_forbidden_change_nothing(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "[0-9]{5}");
    seen a = {0}, b = {0};
    gyre_request r = ask("The number is", 20, &a);
    gyre_bias bias[2] = {{.bias = 100}, {.id = gyre_get_info(g)->eos[0], .bias = 100}};
    size_t n;
    r.grammar = m;
    r.temperature = 1;
    r.has_seed = 1;
    run_one(g, &r);
    assert_int_equal(gyre_tokenize(g, "x", 1, 0, NULL, &bias[0].id, 1, &n), GYRE_OK);
    r.bias = bias;
    r.n_bias = 2;
    r.user = &b;
    run_one(g, &r);
    must_match("^[0-9]{5}$", &a);
    seen_same(&a, &b);
    gyre_grammar_release(m);
    gyre_close(g);
}

/* eos is drawn only where the text is complete; min_tokens keeps it away; ignore_eos goes on while something can
 * follow, and what can no longer grow ends all the same. */
static void where_a_text_ends(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "a{3,6}");
    const gyre_bias eos = {gyre_get_info(g)->eos[0], 100};
    seen s[4] = {0};
    gyre_request r = ask("x", 20, &s[0]);
    r.grammar = m;
    r.bias = &eos;
    r.n_bias = 1;
    must_submit(g, &r);
    r.min_tokens = 5;
    r.user = &s[1];
    must_submit(g, &r);
    r.min_tokens = 15; /* cannot be had */
    r.user = &s[2];
    must_submit(g, &r);
    r.min_tokens = 0;
    r.ignore_eos = 1;
    r.user = &s[3];
    must_submit(g, &r);
    step_all(g);
    poll_all(g);
    for (int i = 0; i < 4; i++) assert_int_equal(s[i].fin.reason, GYRE_FINISH_STOP);
    assert_string_equal(s[0].text, "aaa"); /* at once where it may */
    assert_int_equal(s[0].fin.stop_id, eos.id);
    assert_true(s[1].n_text == 5 || (s[1].n_text == 6 && s[1].fin.stop_id == -1));
    assert_string_equal(s[2].text, "aaaaaa");
    assert_string_equal(s[3].text, "aaaaaa");
    assert_int_equal(s[3].fin.stop_id, -1);
    gyre_grammar_release(m);
    gyre_close(g);
}

static void behind_a_text(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "\\d{3}");
    gyre_bias likely = {.bias = 8};
    size_t n;
    int n_stop = 0;
    assert_int_equal(gyre_tokenize(g, "e", 1, 0, NULL, &likely.id, 1, &n), GYRE_OK);
    for (uint64_t seed = 0; seed < 10; seed++) {
        seen s = {0};
        gyre_request r = ask("x", 100, &s);
        r.grammar = m;
        r.grammar_after = (gyre_string){"ee", 2};
        r.bias = &likely;
        r.n_bias = 1;
        r.temperature = 1;
        r.has_seed = 1;
        r.seed = seed;
        run_one(g, &r);
        const char *at = strstr(s.text, "ee");
        if (s.fin.reason != GYRE_FINISH_STOP || !at) continue;
        n_stop++;
        assert_true(strlen(at) == 5 && strspn(at + 2, "0123456789") == 3);
    }
    assert_true(n_stop > 3);
    gyre_grammar_release(m);
    gyre_close(g);
}

/* Before the text has come the output ends as one without a grammar does: by eos, unless that is to be ignored. */
static void eos_before_a_text(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "\\d{3}");
    const gyre_bias eos = {gyre_get_info(g)->eos[0], 100};
    for (int ignore = 0; ignore < 2; ignore++) {
        seen s = {0};
        gyre_request r = ask("x", 12, &s);
        r.grammar = m;
        r.grammar_after = (gyre_string){"ee", 2};
        r.bias = &eos;
        r.n_bias = 1;
        r.ignore_eos = ignore;
        run_one(g, &r);
        assert_int_equal(s.fin.reason, ignore ? GYRE_FINISH_LENGTH : GYRE_FINISH_STOP);
        assert_int_equal(s.fin.n_output, ignore ? 12 : 1);
        assert_int_equal(s.fin.stop_id, ignore ? -1 : eos.id);
    }
    gyre_grammar_release(m);
    gyre_close(g);
}

/* A request that cannot go on ends alone. */
static void one_that_is_stuck_ends_alone(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *bad = must_compile(g, GYRE_GRAMMAR_REGEX, "((a|b){1,20}){500,900}");
    gyre_grammar *good = must_compile(g, GYRE_GRAMMAR_REGEX, "[a-z]{60}");
    static seen s[3];
    gyre_request r = ask("x", 100, &s[0]);
    memset(s, 0, sizeof s);
    r.grammar = good;
    must_submit(g, &r);
    r.user = &s[1];
    r.grammar = bad;
    must_submit(g, &r);
    r.user = &s[2];
    r.grammar = NULL;
    r.ignore_eos = 1;
    must_submit(g, &r);
    step_all(g);
    poll_all(g);
    must_match("^[a-z]{60}$", &s[0]);
    assert_int_equal(s[1].fin.reason, GYRE_FINISH_ERROR);
    assert_int_equal(s[1].fin.error, GYRE_E_LIMIT);
    assert_non_null(strstr(s[1].message, "too ambiguous"));
    assert_int_equal(s[2].fin.reason, GYRE_FINISH_LENGTH);
    gyre_grammar_release(bad);
    gyre_grammar_release(good);
    gyre_close(g);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(gyre *g, gyre_grammar_kind kind, const char *text, gyre_status st, const char *part) {
    gyre_err err = {0};
    gyre_grammar *m = NULL;
    assert_int_equal(gyre_grammar_compile(g, kind, text, strlen(text), &err, &m), st);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_null(m);
    assert_int_equal(gyre_grammar_compile(g, kind, text, strlen(text), NULL, &m), st);
}

static void mistakes_are_named(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL), *bare = must_open(GOLDEN("ouro-tiny"), NULL);
    gyre_err err = {0};
    uint64_t id;
    refused(g, (gyre_grammar_kind)7, "", GYRE_E_ARG, "grammar: found kind 7, expected 0 to 3");
    refused(g, GYRE_GRAMMAR_REGEX, "(", GYRE_E_ARG, "regex: at byte 1");
    refused(g, GYRE_GRAMMAR_REGEX, "(?=a)b", GYRE_E_UNSUPPORTED, "lookahead");
    refused(g, GYRE_GRAMMAR_EBNF, "a ::= b", GYRE_E_ARG, "grammar");
    refused(g, GYRE_GRAMMAR_JSON_SCHEMA, "{\"not\":{}}", GYRE_E_UNSUPPORTED, "not");
    refused(bare, GYRE_GRAMMAR_JSON_OBJECT, "", GYRE_E_ARG, "holds no tokenizer, so there is no text to constrain");
    static char longer[1100];
    gyre_request r = ask("x", 4, NULL);
    gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "a");
    r.grammar_after = (gyre_string){"</think>", 8};
    assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "grammar_after: found a text but no grammar"));
    r.grammar = m;
    r.grammar_after = (gyre_string){longer, sizeof longer};
    assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "grammar_after: found 1100 bytes, expected at most 1024"));
    const int32_t ids[] = {1, 2};
    r = ask(NULL, 4, NULL);
    r.prompt_ids = ids;
    r.n_prompt_ids = 2;
    r.grammar = m; /* another handle's: grammars know no model, but this one has no text */
    assert_int_equal(gyre_submit(bare, &r, &err, &id), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "holds no tokenizer"));
    gyre_grammar_release(m);
    gyre_close(bare);
    gyre_close(g);
}

/* An older caller's request ends with `user`: what stands behind it is not read. */
static void older_requests_have_no_grammar(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    seen s = {0};
    gyre_request r;
    memset(&r, 0xA5, sizeof r);
    gyre_request_default(&r, offsetof(gyre_request, grammar));
    r.prompt = "abc";
    r.n_prompt = 3;
    r.user = &s;
    run_one(g, &r);
    assert_int_equal(s.n_finish, 1);
    gyre_close(g);
}

/* ---- lives ------------------------------------------------------------------------------------------------------- */

static void no_masks(gyre_options *o) {
    o->grammar_bytes = 0;
    o->max_seqs = 2;
}

/* Compiled, submitted and let go at once; cancelled; refused; still waiting when the handle goes; let go after it. */
static void references_go_when_they_should(void **state) {
    (void)state;
    int64_t before = live_bytes();
    for (int kept = 0; kept < 2; kept++) {
        static seen s[6];
        memset(s, 0, sizeof s);
        gyre *g = must_open(DEMO, kept ? NULL : no_masks); /* without a cache nobody else holds the grammar */
        gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, "[ab]{40}"),
                     *other = must_compile(g, GYRE_GRAMMAR_REGEX, "c+");
        gyre_request r = ask("x", 50, &s[0]);
        uint64_t id, cancelled = 0;
        r.grammar = m;
        r.n = 2;
        for (int i = 0; i < 3; i++) {
            r.user = &s[2 * i];
            id = must_submit(g, &r);
            if (i == 1) cancelled = id;
        }
        r.max_tokens = 100000; /* refused: takes nothing along */
        assert_true(gyre_submit(g, &r, NULL, &id) < 0);
        gyre_grammar_release(m);
        for (int i = 0; i < 10; i++) gyre_step(g, NULL);
        gyre_cancel(g, cancelled);
        if (kept) {
            step_all(g);
            poll_all(g);
            must_match("^[ab]{40}$", &s[0]);
            must_match("^[ab]{40}$", &s[1]);
            assert_int_equal(s[2].fin.reason, GYRE_FINISH_CANCELLED);
            must_match("^[ab]{40}$", &s[5]);
        }
        gyre_close(g);
        gyre_grammar_release(other);
        assert_int_equal(live_bytes(), before);
    }
    gyre_grammar_release(NULL);
}

static void the_same_text_is_compiled_once(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_grammar *a = must_compile(g, GYRE_GRAMMAR_REGEX, "x+y"), *b = must_compile(g, GYRE_GRAMMAR_REGEX, "x+y");
    assert_ptr_equal(a, b);
    gyre_grammar_release(a);
    gyre_grammar_release(b);
    a = must_compile(g, GYRE_GRAMMAR_REGEX, "x+y");
    gyre_grammar_release(a);
    gyre_close(g);
}

/* The n-th allocation fails, n rising: each time a clean end and nothing left. */
static void without_memory(void **state) {
    (void)state;
    int64_t before = live_bytes();
    int n_failed = 0, whole = 0;
    for (int n = 1; n < 4000 && whole < 40; n++) {
        gyre *g = must_open(DEMO, no_masks);
        seen s = {0};
        gyre_err err = {0};
        gyre_grammar *m = NULL;
        uint64_t id;
        gyre_request r = ask("x", 4, &s);
        r.grammar_after = (gyre_string){"zz", 2};
        gy_mem_fail_after(n);
        gyre_status st = gyre_grammar_compile(g, GYRE_GRAMMAR_REGEX, "[ab]{3}", 7, &err, &m);
        r.grammar = m;
        if (st == GYRE_OK) st = gyre_submit(g, &r, &err, &id);
        while (st == GYRE_OK) st = gyre_step(g, &err);
        poll_all(g);
        gy_mem_fail_after(0);
        int failed = st < 0 || (s.n_finish && s.fin.reason == GYRE_FINISH_ERROR);
        if (st < 0) assert_int_equal(st, GYRE_E_NOMEM);
        if (failed && st >= 0) assert_int_equal(s.fin.error, GYRE_E_NOMEM);
        n_failed += failed;
        whole = failed ? 0 : whole + 1;
        gyre_close(g);
        gyre_grammar_release(m);
        assert_int_equal(live_bytes(), before);
    }
    assert_true(n_failed > 20 && whole == 40);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { N_THREAD = 3, N_EACH = 12 };

static void *compile_and_submit(void *arg) {
    gyre *g = arg;
    static const char *const texts[] = {"[ab]{4}", "[cd]{4}", "x\\d{3}"};
    for (int i = 0; i < N_EACH; i++) {
        gyre_grammar *m = must_compile(g, GYRE_GRAMMAR_REGEX, texts[i % 3]);
        gyre_request r = ask("hello", 6, NULL);
        uint64_t id;
        r.grammar = m;
        r.user = (void *)(uintptr_t)texts[i % 3];
        r.temperature = 1;
        while (gyre_submit(g, &r, NULL, &id) == GYRE_AGAIN) sched_yield();
        gyre_grammar_release(m);
    }
    return NULL;
}

static void three_threads(gyre_options *o) {
    o->threads = 3;
}

static void any_thread_compiles(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, three_threads);
    pthread_t t[N_THREAD];
    gyre_err err;
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    for (int i = 0; i < N_THREAD; i++) assert_int_equal(pthread_create(&t[i], NULL, compile_and_submit, g), 0);
    const gyre_event *ev;
    for (int n = 0; n < N_THREAD * N_EACH;) {
        assert_int_equal(gyre_poll(g, 60000, &ev), GYRE_OK);
        if (ev->kind != GYRE_EVENT_FINISH) continue;
        n++;
        assert_int_equal(ev->finish->reason, GYRE_FINISH_STOP);
        assert_int_equal(ev->finish->n_output, 4);
    }
    for (int i = 0; i < N_THREAD; i++) pthread_join(t[i], NULL);
    gyre_stats st;
    gyre_get_stats(g, &st, sizeof st);
    assert_true(st.grammar_mask_hit + st.grammar_mask_miss >= N_THREAD * N_EACH * 4);
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_always_matches),
        cmocka_unit_test(schemas_are_followed),
        cmocka_unit_test(biases_on_what_is_forbidden_change_nothing),
        cmocka_unit_test(where_a_text_ends),
        cmocka_unit_test(behind_a_text),
        cmocka_unit_test(eos_before_a_text),
        cmocka_unit_test(one_that_is_stuck_ends_alone),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(older_requests_have_no_grammar),
        cmocka_unit_test(references_go_when_they_should),
        cmocka_unit_test(the_same_text_is_compiled_once),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(any_thread_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
