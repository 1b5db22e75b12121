/* Prompts to requests, without a model on disk: a description by hand, no tokenizer. */
#include "cli_test.h"

#include <stdio.h>

static void lines_override_flags(void **state) {
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    f.a.req.max_tokens = 9;
    f.a.req.seed = (gy_opt_u64){5, 1};
    assert_int_equal(
        jobs_add(&f, "{\"prompt_ids\": [1, 2]}\n\n"
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
    assert_int_equal(gy_jobs_max_len(&f.j, NULL), 11);
    assert_int_equal(gy_jobs_max_loops(&f.j, NULL), 4);
    jobs_end(&f);
}

static void default_length_gives_way_to_the_context(void **state) {
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    assert_int_equal(jobs_add(&f, "{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1]}\n"), GY_OK);
    for (int i = 0; i < 149; i++) assert_int_equal(gy_vec_push(&f.j.job.data[1].ids, GY_MEM_CLI, 7), 0);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_OK);
    assert_int_equal(f.j.job.data[0].rq.max_tokens, 128);
    assert_int_equal(f.j.job.data[1].rq.max_tokens, 50);
    jobs_end(&f);
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
        {"{\"prompt_ids\": [1], \"stop_ids\": [320]}", "in.jsonl:1: stop_ids: token id 320 (number 1): expected"},
        {"{\"prompt_ids\": [1], \"stop_ids\": \"x\"}", "in.jsonl:1: stop_ids: found 'x', expected token ids"},
        {"{\"prompt_ids\": [1], \"logit_bias\": \"5\"}", "in.jsonl:1: logit_bias: found '5', expected ID:BIAS"},
        {"{\"prompt_ids\": [1], \"logit_bias\": \"5:x\"}", "in.jsonl:1: logit_bias: found '5:x', expected ID:BIAS"},
        {"{\"prompt_ids\": [1], \"logit_bias\": \"1:2,-5:1\"}", "in.jsonl:1: logit_bias: found '-5:1', expected"},
        {"{\"prompt_ids\": [1], \"logit_bias\": {\"x\": 1}}", "in.jsonl:1: logit_bias: found 'x:1', expected ID:BIAS"},
        {"{\"prompt_ids\": [1], \"logit_bias\": {\"320\": 1}}", "in.jsonl:1: logit_bias"},
        {"{\"prompt_ids\": [1], \"logit_bias\": {\"5\": 101}}", "in.jsonl:1: logit_bias"},
        {"{\"prompt_ids\": [1], \"logit_bias\": \"5:1,5:2\"}", "in.jsonl:1: logit_bias"},
        {"{\"prompt_ids\": [1], \"repetition_penalty\": 0}", "in.jsonl:1: repetition_penalty: "},
        {"{\"prompt_ids\": [1], \"presence_penalty\": 2.5}", "in.jsonl:1: presence_penalty: found 2.5"},
        {"{\"prompt_ids\": [1], \"n\": 0}", "in.jsonl:1: n: found 0, expected a whole number from 1 to 128"},
        {"{\"prompt_ids\": [1], \"max_tokens\": 3, \"min_tokens\": 4}",
         "in.jsonl:1: min_tokens: found 4, expected at most max_tokens, 3"},
        {"{\"prompt_ids\": [1], \"output\": \"x\"}", "in.jsonl:1: unknown field \"output\""},
        {"{\"prompt_ids\": [1], \"initial_state\": \"noise\"}", "in.jsonl:1: initial_state: found noise; ouro models"},
        {"{\"prompt_ids\": [1], \"exit\": \"gate\"}", "in.jsonl:1: exit_threshold: not given"},
        {"{\"prompt_ids\": [1], \"min_p\": 1}", "in.jsonl:1: min_p: "},
        {"{\"prompt_ids\": [1], \"exit\": \"trace:/no/such/file\"}", "in.jsonl:1: /no/such/file: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        jobs_fixture f;
        jobs_begin(&f);
        gy_status st = jobs_add(&f, cases[i].text);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        assert_true(st < 0);
        if (strncmp(f.err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s: found '%s', expected '%s'", cases[i].text, f.err.msg, cases[i].message);
        jobs_end(&f);
    }
}

static void new_fields_reach_the_request(void **state) {
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    assert_int_equal(
        jobs_add(
            &f,
            "{\"prompt_ids\": [1], \"n\": 3, \"min_tokens\": 2, \"repetition_penalty\": 1.25, \"presence_penalty\": "
            "-0.5, \"frequency_penalty\": 0.25, \"logit_bias\": {\"5\": -100, \"7\": 1.5}, \"stop_ids\": [9, 8], "
            "\"prompt_logprobs\": 4, \"gates\": true, \"priority\": -3, \"cache_salt\": \"me\", \"no_cache\": "
            "true}\n{\"prompt_ids\": [1], \"ignore_eos\": true, \"stop_ids\": \"9\"}\n{\"prompt_ids\": [1]}"),
        GY_OK);
    if (gy_jobs_prepare(&f.j, &f.m, &f.err) != GY_OK) fail_msg("%s", f.err.msg);
    const gy_request *a = &f.j.job.data[0].rq, *b = &f.j.job.data[1].rq, *c = &f.j.job.data[2].rq;
    assert_int_equal(a->n, 3);
    assert_int_equal(a->min_tokens, 2);
    assert_true(a->sample.repetition_penalty == 1.25f && a->sample.presence_penalty == -0.5f &&
                a->sample.frequency_penalty == 0.25f);
    assert_int_equal(a->sample.n_bias, 2);
    assert_int_equal(a->sample.bias[1].id, 7);
    assert_true(a->sample.bias[0].bias == -100 && a->sample.bias[1].bias == 1.5f);
    assert_int_equal(a->n_stop_ids, 3); /* the model's own first */
    assert_int_equal(a->stop_ids[0], 2);
    assert_int_equal(a->stop_ids[1], 9);
    assert_int_equal(a->stop_ids[2], 8);
    assert_int_equal(a->prompt_logprobs, 4);
    assert_true(a->want_gates && a->no_cache && a->priority == -3 && a->n_salt == 2 && !strcmp(a->cache_salt, "me"));
    assert_int_equal(b->n_stop_ids, 1);
    assert_int_equal(b->stop_ids[0], 9);
    assert_int_equal(c->n_stop_ids, 1);
    assert_true(c->n == 1 && c->sample.n_bias == 0 && c->prompt_logprobs == -1 && !c->want_gates && !c->n_salt);
    assert_true(c->sample.repetition_penalty == 1 && c->sample.presence_penalty == 0);
    jobs_end(&f);
}

static void gates_and_salts_have_their_limits(void **state) {
    char line[1200], salt[1026];
    (void)state;
    for (int n = 1024; n <= 1025; n++) {
        jobs_fixture f;
        memset(salt, 's', sizeof salt);
        salt[n] = '\0';
        snprintf(line, sizeof line, "{\"prompt_ids\": [1], \"cache_salt\": \"%s\"}", salt);
        jobs_begin(&f);
        gy_status st = jobs_add(&f, line);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        assert_int_equal(st, n == 1024 ? GY_OK : GY_E_ARG);
        if (n > 1024) assert_string_equal(f.err.msg, "in.jsonl:1: cache_salt: found 1025 bytes, expected at most 1024");
        jobs_end(&f);
    }
    jobs_fixture f;
    jobs_begin(&f);
    f.m.d.has_gate = 0;
    assert_int_equal(jobs_add(&f, "{\"prompt_ids\": [1], \"gates\": true}"), GY_OK);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_E_ARG);
    assert_string_equal(f.err.msg, "in.jsonl:1: gates: this ouro model has no exit gate");
    jobs_end(&f);
}

/* A good line that can never fit is marked, the others stay; on the command line it is an error. */
static void what_cannot_fit_is_marked(void **state) {
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    assert_int_equal(
        jobs_add(&f, "{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1], \"max_tokens\": 200}\n{\"prompt_ids\": [2]}"),
        GY_OK);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_OK);
    assert_null(f.j.job.data[0].refused);
    assert_string_equal(f.j.job.data[1].refused,
                        "prompt: 1 tokens and max_tokens 200 make 201, the model's context is 200");
    assert_null(f.j.job.data[2].refused);
    assert_int_equal(gy_jobs_max_len(&f.j, NULL), 129);
    const unsigned char done[] = {1, 0, 1};
    assert_int_equal(gy_jobs_max_len(&f.j, done), 1);
    f.j.job.data[1].from_file = 0;
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_E_LIMIT);
    assert_memory_equal(f.err.msg, "--prompt: 1 tokens and", 22);
    jobs_end(&f);
}

static uint64_t hash_of(const char *line, uint64_t seed) {
    jobs_fixture f;
    jobs_begin(&f);
    if (jobs_add(&f, line) != GY_OK || gy_jobs_prepare(&f.j, &f.m, &f.err) != GY_OK) fail_msg("%s", f.err.msg);
    uint64_t h = gy_job_hash(&f.j.job.data[0], seed);
    jobs_end(&f);
    return h;
}

/* Everything that an answer depends on, and nothing else. */
static void hash_of_a_request(void **state) {
    static const char *const other[] = {"\"max_tokens\": 9",
                                        "\"temperature\": 1",
                                        "\"top_k\": 3",
                                        "\"top_p\": 0.5",
                                        "\"min_p\": 0.1",
                                        "\"repetition_penalty\": 1.5",
                                        "\"presence_penalty\": 1",
                                        "\"frequency_penalty\": 1",
                                        "\"n\": 2",
                                        "\"logit_bias\": {\"5\": 1}",
                                        "\"logit_bias\": {\"6\": 1}",
                                        "\"logit_bias\": {\"5\": 2}",
                                        "\"seed\": 0",
                                        "\"seed\": 1",
                                        "\"min_tokens\": 1",
                                        "\"ignore_eos\": true",
                                        "\"stop_ids\": [5]",
                                        "\"logprobs\": 0",
                                        "\"prompt_logprobs\": 0",
                                        "\"gates\": true",
                                        "\"max_loops\": 3",
                                        "\"min_loops\": 2",
                                        "\"exit\": \"gate\", \"exit_threshold\": 0.5",
                                        "\"exit\": \"gate\", \"exit_threshold\": 0.6",
                                        "\"exit\": \"select\", \"exit_threshold\": 0.5"};
    static const char *const same[] = {"\"priority\": 4",     "\"no_cache\": true",    "\"cache_salt\": \"x\"",
                                       "\"max_tokens\": 128", "\"temperature\": -0.0", "\"latent_seed\": 3"};
    enum { N = sizeof other / sizeof *other };
    uint64_t seen[N + 3] = {hash_of("{\"prompt_ids\": [1]}", 5), hash_of("{\"prompt_ids\": [1]}", 6),
                            hash_of("{\"prompt_ids\": [1, 1]}", 5)};
    char line[200];
    (void)state;
    for (size_t i = 0; i < N; i++) {
        snprintf(line, sizeof line, "{\"prompt_ids\": [1], %s}", other[i]);
        seen[i + 3] = hash_of(line, 5);
    }
    for (size_t i = 0; i < N + 3; i++)
        for (size_t k = 0; k < i; k++)
            if (seen[i] == seen[k]) fail_msg("requests %zu and %zu have the same hash", k, i);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(line, sizeof line, "{\"prompt_ids\": [1], %s}", same[i]);
        if (hash_of(line, 5) != seen[0]) fail_msg("%s changes the hash", same[i]);
    }
    /* FNV-1a of "a" and "foobar" (its authors' test vectors). */
    assert_true(gy_hash_bytes(0, "a", 1) == 0xaf63dc4c8601ec8cu);
    assert_true(gy_hash_bytes(0, "foobar", 6) == 0x85944171f73967e8u);
}

static void flags_are_named_as_flags(void **state) {
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    f.a.req.max_loops = 9;
    gy_opt row = {.name = "prompt-ids"};
    gy_opt_item item = {&row, "5, 6 7", 6};
    f.a.prompts = (gy_opt_list){&item, 1, 1};
    assert_int_equal(gy_jobs_collect(&f.j, &f.a, NULL, &f.err), GY_OK);
    assert_int_equal(f.j.job.data[0].ids.len, 3);
    assert_int_equal(gy_jobs_prepare(&f.j, &f.m, &f.err), GY_E_ARG);
    assert_memory_equal(f.err.msg, "--max-loops: found 9", 20);
    jobs_end(&f);
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
    jobs_fixture f;
    (void)state;
    jobs_begin(&f);
    assert_int_equal(gy_jobs_collect(&f.j, &f.a, NULL, &f.err), GY_E_ARG);
    assert_memory_equal(f.err.msg, "no prompt; give one of --prompt", 31);
    jobs_end(&f);
}

/* Not inside the JSON parser: jansson 2.14 itself does not survive a failed allocation while it parses. */
static void allocation_failures(void **state) {
    gy_opt row = {.name = "prompt-ids"};
    gy_opt_item items[] = {{&row, "5,6,7,8,9,10,11,12,13", 21}, {&row, "1", 1}, {&row, "2", 1}};
    (void)state;
    for (int64_t n = 1; n < 40; n++) {
        jobs_fixture f;
        jobs_begin(&f);
        f.a.prompts = (gy_opt_list){items, 3, 3};
        gy_mem_fail_after(n);
        gy_status st = gy_jobs_collect(&f.j, &f.a, NULL, &f.err);
        if (st == GY_OK) st = gy_jobs_prepare(&f.j, &f.m, &f.err);
        gy_mem_fail_after(0);
        jobs_end(&f);
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
        cmocka_unit_test(new_fields_reach_the_request),
        cmocka_unit_test(gates_and_salts_have_their_limits),
        cmocka_unit_test(what_cannot_fit_is_marked),
        cmocka_unit_test(hash_of_a_request),
        cmocka_unit_test(flags_are_named_as_flags),
        cmocka_unit_test(ids_text),
        cmocka_unit_test(no_prompt),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
