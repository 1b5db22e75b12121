/* What an output must be, from flags and lines to the grammar of a request. */
#include "unit/cli_test.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DEMO GY_SOURCE_DIR "/models/demo"

static void begin(jobs_fixture *f) {
    jobs_begin(f);
    if (gy_api_model_open(&f->m, DEMO, "auto", 1, &f->err) < 0) fail_msg("%s", f->err.msg);
}

static void end(jobs_fixture *f) {
    jobs_end(f);
    gy_api_model_close(&f->m);
}

static void prepare(jobs_fixture *f) {
    if (gy_jobs_prepare(&f->j, &f->m, &f->err) < 0) fail_msg("%s", f->err.msg);
}

static int accepts(const gy_request *rq, const char *text) {
    gy_grammar_runner *r = NULL;
    gy_grammar_state s;
    assert_int_equal(gy_grammar_runner_create(NULL, 0, &r), GY_OK);
    gy_grammar_start(rq->grammar, &s);
    int ok = gy_grammar_accept(r, rq->grammar, &s, text, strlen(text), NULL) == GY_OK && gy_grammar_is_complete(&s);
    gy_grammar_runner_destroy(r);
    return ok;
}

static void lines_say_what_the_output_is(void **state) {
    (void)state;
    jobs_fixture f;
    begin(&f);
    f.a.req.regex = "[xyz]";
    assert_int_equal(
        jobs_add(&f, "{\"prompt\":\"a\",\"json_schema\":{\"const\":{\"k\":[1,2.5,true,null,\"\\u00e4\\\"\"]}}}\n"
                     "{\"prompt\":\"a\",\"json_schema\":{\"type\":\"boolean\"}}\n"
                     "{\"prompt\":\"a\",\"json_schema\":{\"type\":\"boolean\"}}\n"
                     "{\"prompt\":\"a\",\"json_object\":true,\"grammar_after\":\"</think>\"}\n"
                     "{\"prompt\":\"a\",\"grammar\":\"root ::= \\\"ab\\\"\"}\n"
                     "{\"prompt\":\"a\"}\n"
                     "{\"prompt\":\"a\",\"json_object\":false}\n"),
        GY_OK);
    prepare(&f);
    const gy_job *job = f.j.job.data;
    assert_true(accepts(&job[0].rq, "{\"k\":[1,2.5,true,null,\"\xC3\xA4\\\"\"]}"));
    assert_true(accepts(&job[1].rq, "true") && !accepts(&job[1].rq, "1"));
    assert_ptr_equal(job[1].rq.grammar, job[2].rq.grammar); /* compiled once */
    assert_true(accepts(&job[3].rq, "{}"));
    assert_int_equal(job[3].rq.n_grammar_after, 8);
    assert_string_equal(job[3].rq.grammar_after, "</think>");
    assert_true(accepts(&job[4].rq, "ab"));
    assert_true(accepts(&job[5].rq, "y")); /* the command line's */
    assert_null(job[6].rq.grammar);        /* a line that speaks of it is not told by the command line */
    assert_ptr_equal(job[5].rq.vocab, f.j.vocab);
    end(&f);
}

static void flags_name_texts_or_files(void **state) {
    (void)state;
    static const struct {
        const char *schema, *grammar, *file, *good;
    } cases[] = {{" {\"type\":\"integer\"}", NULL, NULL, "17"},
                 {"FILE", NULL, "{\"type\":\"integer\"}", "17"},
                 {NULL, "root ::= \"q\"", NULL, "q"},
                 {NULL, "FILE", "root ::= \"q\" # a comment\n", "q"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        jobs_fixture f;
        char path[] = "/tmp/gyre-constraint-XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        if (cases[i].file)
            assert_int_equal(write(fd, cases[i].file, strlen(cases[i].file)), (int)strlen(cases[i].file));
        close(fd);
        begin(&f);
        f.a.req.json_schema = cases[i].file && cases[i].schema ? path : cases[i].schema;
        f.a.req.grammar = cases[i].file && cases[i].grammar ? path : cases[i].grammar;
        if (gy_jobs_collect(&f.j, &f.a, "a prompt", &f.err) < 0) fail_msg("%s", f.err.msg);
        unlink(path); /* read by now */
        prepare(&f);
        assert_true(accepts(&f.j.job.data[0].rq, cases[i].good));
        end(&f);
    }
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"prompt\":\"a\",\"regex\":\"(\"}", "in.jsonl:1: regex: at byte 1: found the end of the text"},
        {"{\"prompt\":\"a\",\"grammar\":\"x ::= y\"}", "in.jsonl:1: grammar: "},
        {"{\"prompt\":\"a\",\"json_schema\":{\"type\":\"foo\"}}", "in.jsonl:1: json_schema: json schema: at #: 'type'"},
        {"{\"prompt\":\"a\",\"json_schema\":\"{}\"}", "in.jsonl:1: field \"json_schema\": found a string, expected an "
                                                      "object"},
        {"{\"prompt\":\"a\",\"regex\":\"a\",\"json_object\":true}",
         "in.jsonl:1: regex: found a second constraint beside json_object, expected one"},
        {"{\"prompt\":\"a\",\"grammar_after\":\"b\"}",
         "in.jsonl:1: grammar_after: found a text but nothing that holds"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        jobs_fixture f;
        begin(&f);
        gy_status st = jobs_add(&f, cases[i].line);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        assert_true(st < 0);
        if (!strstr(f.err.msg, cases[i].message)) fail_msg("\"%s\" does not say \"%s\"", f.err.msg, cases[i].message);
        end(&f);
    }
}

static void a_model_without_tokenizer_has_no_text(void **state) {
    (void)state;
    jobs_fixture f;
    jobs_begin(&f);
    assert_int_equal(jobs_add(&f, "{\"prompt_ids\":[1],\"regex\":\"a\"}"), GY_OK);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_E_ARG);
    assert_non_null(strstr(f.err.msg, "regex: grammar: the model's folder holds no tokenizer"));
    jobs_end(&f);
}

static void the_hash_holds_the_constraint(void **state) {
    (void)state;
    jobs_fixture f;
    uint64_t h[6];
    begin(&f);
    assert_int_equal(jobs_add(&f, "{\"prompt\":\"a\"}\n{\"prompt\":\"a\",\"regex\":\"a\"}\n{\"prompt\":\"a\",\"regex\":"
                                  "\"b\"}\n{\"prompt\":\"a\",\"json_object\":true}\n"
                                  "{\"prompt\":\"a\",\"regex\":\"a\",\"grammar_after\":\"x\"}\n"
                                  "{\"prompt\":\"a\",\"regex\":\"a\"}\n"),
                     GY_OK);
    prepare(&f);
    for (int i = 0; i < 6; i++) h[i] = gy_job_hash(&f.j.job.data[i], 7);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) assert_true(h[i] != h[k]);
    assert_true(h[5] == h[1]);
    end(&f);
}

static int64_t n_alloc(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.n_alloc;
}

/* A grammar that the cache has no memory to keep is no failure. n 0: nothing fails; returns how many there were. */
static int64_t one_without_memory(int64_t n) {
    jobs_fixture f;
    begin(&f);
    int64_t before = n_alloc();
    gy_mem_fail_after(n);
    gy_status st = jobs_add(&f, "{\"prompt\":\"a\",\"json_schema\":{\"type\":[\"integer\",\"null\"]}}");
    if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
    gy_mem_fail_after(0);
    int64_t done = n_alloc() - before;
    assert_true(st == GY_OK || (n && st == GY_E_NOMEM));
    end(&f);
    return done;
}

static void allocation_failures(void **state) {
    (void)state;
    int64_t all = one_without_memory(0);
    assert_true(all > 20);
    for (int64_t n = 1; n <= all; n++) one_without_memory(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_what_the_output_is),
        cmocka_unit_test(flags_name_texts_or_files),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_model_without_tokenizer_has_no_text),
        cmocka_unit_test(the_hash_holds_the_constraint),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
