/* Prompts to requests, without a model on disk: a description by hand, no tokenizer. */
#include "cli/cli_requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    gy_arena *arena;
    gy_args a;
    gy_jobs j;
    gy_cli_model m;
    gy_err err;
} fixture;

static void begin(fixture *f) {
    *f = (fixture){.arena = gy_arena_create(GY_MEM_CLI, 4096)};
    assert_non_null(f->arena);
    gy_args_default(&f->a);
    f->a.arena = f->j.arena = f->arena;
    f->m.dir = "a-model";
    f->m.d = (gy_model_desc){.family = "ouro", .n_vocab = 320, .n_loop = 4, .max_pos = 200, .has_gate = 1};
    f->m.eos[0] = 2;
    f->m.n_eos = 1;
}

static void end(fixture *f) {
    gy_jobs_fini(&f->j);
    gy_arena_destroy(f->arena);
}

static gy_status add(fixture *f, const char *text) {
    return gy_jobs_add_jsonl(&f->j, &f->a, text, strlen(text), "in.jsonl", &f->err);
}

static void lines_override_flags(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    f.a.req.max_tokens = 9;
    f.a.req.seed = 5;
    assert_int_equal(add(&f,
                         "{\"prompt_ids\": [1, 2]}\n\n"
                         "{\"prompt_ids\": [3], \"max_tokens\": 4, \"temperature\": 0.5, \"top_k\": 3, \"top_p\": 0.9, "
                         "\"min_p\": 0.1, \"seed\": 7, \"ignore_eos\": true, \"logprobs\": 2, \"exit\": \"gate\", "
                         "\"exit_threshold\": 0.6, \"min_loops\": 1, \"max_loops\": 3}"),
                     GY_OK);
    if (gy_jobs_prepare(&f.j, &f.m, &f.err) != GY_OK) fail_msg("%s", f.err.msg);
    assert_int_equal(f.j.job.len, 2);
    const gy_request *a = &f.j.job.data[0].rq, *b = &f.j.job.data[1].rq;
    assert_int_equal(a->n_prompt, 2);
    assert_int_equal(a->max_tokens, 9);
    assert_int_equal(a->sample.seed, 5);
    assert_int_equal(a->sample.n_logprobs, -1);
    assert_int_equal(a->exit.kind, GY_EXIT_FIXED);
    assert_int_equal(a->n_stop_ids, 1);
    assert_int_equal(b->prompt[0], 3);
    assert_int_equal(b->max_tokens, 4);
    assert_true(b->sample.temperature == 0.5f && b->sample.top_p == 0.9f && b->sample.min_p == 0.1f);
    assert_int_equal(b->sample.top_k, 3);
    assert_int_equal(b->sample.seed, 7);
    assert_int_equal(b->sample.n_logprobs, 2);
    assert_int_equal(b->ignore_eos, 1);
    assert_int_equal(b->n_stop_ids, 0);
    assert_int_equal(b->exit.kind, GY_EXIT_GATE);
    assert_true(b->exit.threshold == 0.6);
    assert_int_equal(b->exit.min_loops, 1);
    assert_int_equal(b->exit.max_loops, 3);
    assert_int_equal(gy_jobs_max_len(&f.j), 11);
    assert_int_equal(gy_jobs_max_loops(&f.j), 4);
    end(&f);
}

static void default_length_gives_way_to_the_context(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(add(&f, "{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1]}\n"), GY_OK);
    for (int i = 0; i < 149; i++) assert_int_equal(gy_vec_push(&f.j.job.data[1].ids, GY_MEM_CLI, 7), 0);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_OK);
    assert_int_equal(f.j.job.data[0].rq.max_tokens, 128);
    assert_int_equal(f.j.job.data[1].rq.max_tokens, 50);
    end(&f);
}

static void bad_lines(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1]", "in.jsonl:2: "},
        {"\n\n[1]", "in.jsonl:3: found an array, expected an object"},
        {"{}", "in.jsonl:1: found neither \"prompt\" and \"prompt_ids\", expected one of them"},
        {"{\"prompt\": \"x\", \"prompt_ids\": [1]}", "in.jsonl:1: found both \"prompt\" and \"prompt_ids\""},
        {"{\"prompt\": 1}", "in.jsonl:1: field \"prompt\": found an integer, expected a string"},
        {"{\"prompt_ids\": \"1\"}", "in.jsonl:1: field \"prompt_ids\": found a string, expected a list of token ids"},
        {"{\"prompt_ids\": [1, -2]}", "in.jsonl:1: field \"prompt_ids\": entry 2 is no token id"},
        {"{\"prompt_ids\": [1], \"max_token\": 3}",
         "in.jsonl:1: unknown field \"max_token\"; did you mean \"max_tokens\"?"},
        {"{\"prompt_ids\": [1], \"json\": true}", "in.jsonl:1: unknown field \"json\""},
        {"{\"prompt_ids\": [1], \"max_tokens\": 0}", "in.jsonl:1: max_tokens: found 0, expected a whole number from 1"},
        {"{\"prompt_ids\": [320]}", "in.jsonl:1: prompt: token id 320 (number 1): expected 0 to 319"},
        {"{\"prompt_ids\": []}", "in.jsonl:1: prompt: found no tokens"},
        {"{\"prompt\": \"x\"}", "in.jsonl:1: prompt: a-model holds no tokenizer"},
        {"{\"prompt_ids\": [1], \"stop\": \"x\"}", "in.jsonl:1: stop: a-model holds no tokenizer"},
        {"{\"prompt_ids\": [1], \"max_tokens\": 200}",
         "in.jsonl:1: prompt: 1 tokens and max_tokens 200 make 201, the model's context is 200"},
        {"{\"prompt_ids\": [1], \"initial_state\": \"noise\"}", "in.jsonl:1: initial_state: found noise; ouro models"},
        {"{\"prompt_ids\": [1], \"exit\": \"gate\"}", "in.jsonl:1: exit_threshold: not given"},
        {"{\"prompt_ids\": [1], \"min_p\": 1}", "in.jsonl:1: min_p: "},
        {"{\"prompt_ids\": [1], \"exit\": \"trace:/no/such/file\"}", "in.jsonl:1: /no/such/file: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        begin(&f);
        gy_status st = add(&f, cases[i].text);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        assert_true(st < 0);
        if (strncmp(f.err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s: found '%s', expected '%s'", cases[i].text, f.err.msg, cases[i].message);
        end(&f);
    }
}

static void flags_are_named_as_flags(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    f.a.req.max_loops = 9;
    gy_opt row = {.name = "prompt-ids"};
    gy_opt_item item = {&row, "5, 6 7", 6};
    f.a.prompts = (gy_opt_list){&item, 1, 1};
    assert_int_equal(gy_jobs_collect(&f.j, &f.a, NULL, &f.err), GY_OK);
    assert_int_equal(f.j.job.data[0].ids.len, 3);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_E_ARG);
    assert_memory_equal(f.err.msg, "--max-loops: found 9", 20);
    end(&f);
}

static void ids_text(void **state) {
    static const struct {
        const char *text;
        int n; /* -1: refused */
    } cases[] = {{"1,2,3", 3},
                 {" 1 , 2\n3\t", 3},
                 {"", 0},
                 {",", 0},
                 {"2147483647", 1},
                 {"2147483648", -1},
                 {"-1", -1},
                 {"1;2", -1},
                 {"0x1", -1},
                 {"1.5", -1},
                 {"99999999999999999999999999", -1},
                 {"+1", -1},
                 {"one", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_vec_i32 ids = {0};
        gy_err err = {0};
        gy_status st = gy_cli_parse_ids(cases[i].text, strlen(cases[i].text), "--prompt-ids", &err, &ids);
        if ((st == GY_OK ? (int)ids.len : -1) != cases[i].n) fail_msg("'%s': %d, %zu ids", cases[i].text, st, ids.len);
        if (st < 0) assert_memory_equal(err.msg, "--prompt-ids: found '", 21);
        gy_vec_free(&ids);
    }
}

static void no_prompt(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(gy_jobs_collect(&f.j, &f.a, NULL, &f.err), GY_E_ARG);
    assert_memory_equal(f.err.msg, "no prompt; give one of --prompt", 31);
    end(&f);
}

/* Not inside the JSON parser: jansson 2.14 itself does not survive a failed allocation while it parses. */
static void allocation_failures(void **state) {
    gy_opt row = {.name = "prompt-ids"};
    gy_opt_item items[] = {{&row, "5,6,7,8,9,10,11,12,13", 21}, {&row, "1", 1}, {&row, "2", 1}};
    (void)state;
    for (int64_t n = 1; n < 40; n++) {
        fixture f;
        begin(&f);
        f.a.prompts = (gy_opt_list){items, 3, 3};
        gy_mem_fail_after(n);
        gy_status st = gy_jobs_collect(&f.j, &f.a, NULL, &f.err);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        gy_mem_fail_after(0);
        end(&f);
        assert_true(st == GY_OK || st == GY_E_NOMEM);
        if (st == GY_OK) {
            assert_true(n > 3); /* some allocations did fail before */
            return;
        }
    }
    fail_msg("never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_override_flags),
        cmocka_unit_test(default_length_gives_way_to_the_context),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(flags_are_named_as_flags),
        cmocka_unit_test(ids_text),
        cmocka_unit_test(no_prompt),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
