/* The file of --output: what a crash can leave is repaired, what is not ours is never touched. Answers are made by hand
 * (refused ones: their lines need no engine), the expectations are counted lines and bytes.
 */
#include "cli/cli_batch.h"

#include "cli_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEED = 77 };

typedef struct fixture {
    jobs_fixture q;
    gy_batch b;
    char dir[64], path[96];
} fixture;

static const char PROMPTS[] = "{\"prompt_ids\": [1, 2]}\n{\"prompt_ids\": [3], \"n\": 2}\n{\"prompt_ids\": [4]}\n";

static void begin_with(fixture *f, const char *prompts) {
    *f = (fixture){.b = {.fd = -1}};
    jobs_begin(&f->q);
    if (jobs_add(&f->q, prompts) < 0 || gy_jobs_prepare(&f->q.j, &f->q.m, &f->q.err) < 0) fail_msg("%s", f->q.err.msg);
    strcpy(f->dir, "/tmp/gyre-batch-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/out.jsonl", f->dir);
}

static void begin(fixture *f) {
    begin_with(f, PROMPTS);
}

static void end(fixture *f) {
    gy_batch_close(&f->b, NULL);
    unlink(f->path);
    rmdir(f->dir);
    jobs_end(&f->q);
}

static gy_status reopen(fixture *f) {
    gy_batch_close(&f->b, NULL);
    f->q.err = (gy_err){0};
    return gy_batch_open(&f->b, f->path, &f->q.j, SEED, &f->q.err);
}

static void answer(fixture *f, size_t index) {
    gy_answer *a = NULL;
    assert_int_equal(gy_answer_create(&f->q.j.job.data[index], &f->q.m, index, &f->q.err, &a), GY_OK);
    gy_answer_refuse(a, "too long");
    if (gy_batch_write(&f->b, a, &f->q.err) < 0) fail_msg("%s", f->q.err.msg);
    gy_answer_free(a);
}

static gy_str read_back(const fixture *f) {
    gy_str s = {0};
    assert_int_equal(gy_cli_read_input(f->path, NULL, &s), GY_OK);
    return s;
}

static void put(const fixture *f, const char *text, size_t len) {
    FILE *o = fopen(f->path, "w");
    assert_non_null(o);
    assert_int_equal(fwrite(text, 1, len, o), len);
    assert_int_equal(fclose(o), 0);
}

/* The whole file of PROMPTS, in the order 2, 1, 0: four lines. */
static gy_str whole_file(fixture *f) {
    assert_int_equal(reopen(f), GY_OK);
    for (size_t i = 3; i-- > 0;) answer(f, i);
    assert_int_equal(gy_batch_close(&f->b, &f->q.err), GY_OK);
    return read_back(f);
}

static void written_and_read_back(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(reopen(&f), GY_OK);
    assert_true(f.b.n_done == 0 && !f.b.cut && !f.b.done[0]);
    answer(&f, 1);
    gy_str s = read_back(&f); /* there at once */
    assert_memory_equal(s.data, "{\"index\":1,\"prompt_ids\":[3],", 28);
    assert_non_null(strstr(s.data, "\"choice\":0"));
    assert_non_null(strstr(s.data, "\"choice\":1"));
    gy_str_free(&s);
    assert_int_equal(reopen(&f), GY_OK);
    assert_true(f.b.n_done == 1 && f.b.n_error == 1 && !f.b.done[0] && f.b.done[1] && !f.b.done[2]);
    answer(&f, 2);
    answer(&f, 0);
    assert_int_equal(reopen(&f), GY_OK);
    assert_true(f.b.n_done == 3 && f.b.n_error == 3 && !f.b.cut);
    end(&f);
}

/* Killed after any byte: requests whose lines are all there count, the rest is cut off, and the next run completes it.
 */
static void cut_at_every_byte(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    gy_str s = whole_file(&f);
    size_t ends[3] = {0}, n = 0, line = 0;
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] == '\n' && line++ != 1) ends[n++] = i + 1; /* line 1 is the first of two of its request */
    assert_int_equal(n, 3);
    for (size_t len = 0; len <= s.len; len++) {
        size_t whole = (len >= ends[0]) + (len >= ends[1]) + (len >= ends[2]);
        size_t good = whole ? ends[whole - 1] : 0;
        put(&f, s.data, len);
        if (reopen(&f) != GY_OK) fail_msg("%zu bytes: %s", len, f.q.err.msg);
        assert_int_equal(f.b.n_done, whole);
        assert_int_equal(f.b.cut, len - good);
        for (size_t i = 3; i-- > 0;)
            if (!f.b.done[i]) answer(&f, i);
        gy_str again = read_back(&f);
        assert_int_equal(again.len, s.len);
        assert_memory_equal(again.data, s.data, good);
        gy_str_free(&again);
        assert_int_equal(reopen(&f), GY_OK);
        assert_int_equal(f.b.n_done, 3);
    }
    gy_str_free(&s);
    end(&f);
}

static void refused(fixture *f, const char *text, const char *message) {
    char want[400];
    put(f, text, strlen(text));
    assert_int_equal(reopen(f), GY_E_ARG);
    snprintf(want, sizeof want, "%s:%s", f->path, message);
    if (strncmp(f->q.err.msg, want, strlen(want)) != 0) fail_msg("found '%s', expected '%s'", f->q.err.msg, want);
    assert_non_null(strstr(f->q.err.msg, "name another file"));
    gy_str s = read_back(f);
    assert_string_equal(gy_str_z(&s), text); /* untouched */
    gy_str_free(&s);
    assert_int_equal(f->b.fd, -1);
}

static char *line_of(const gy_str *s, size_t line) {
    const char *p = s->data;
    while (line--) p = strchr(p, '\n') + 1;
    size_t n = (size_t)(strchr(p, '\n') - p) + 1;
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, p, n);
    copy[n] = '\0';
    return copy;
}

static void what_is_not_ours_is_left_alone(void **state) {
    char buf[4000];
    fixture f;
    (void)state;
    begin(&f);
    gy_str s = whole_file(&f);
    char *two = line_of(&s, 0), *one_0 = line_of(&s, 1), *one_1 = line_of(&s, 2), *zero = line_of(&s, 3);
    refused(&f, "my diary", "1: this is not the beginning of an answer");
    refused(&f, "my diary\n", "1: this is no JSON");
    refused(&f, "{\"index\":0,\"prompt_ids\":[7", "1: this is not the beginning of an answer");
    refused(&f, "{\"index\":3,", "1: this is not the beginning of an answer");
    refused(&f, "{\"index\":3}\n", "1: found no \"index\" from 0 to 2");
    refused(&f, "{\"index\":-1}\n", "1: found no \"index\" from 0 to 2");
    refused(&f, "[1]\n", "1: found no \"index\" from 0 to 2");
    refused(&f, "{\"index\":0,\"prompt_ids\":[1,3]}\n", "1: the prompt_ids of index 0 are not those of in.jsonl:1");
    refused(&f, "{\"index\":0,\"prompt_ids\":[1]}\n", "1: the prompt_ids of index 0 are not those of in.jsonl:1");
    refused(&f, "{\"index\":0,\"prompt_ids\":[1,2]}\n", "1: this answer was made with other options");
    snprintf(buf, sizeof buf, "%s%s", two, two);
    refused(&f, buf, "2: this index is answered twice");
    snprintf(buf, sizeof buf, "%s%s", one_0, zero);
    refused(&f, buf, "2: a choice of the request before it is missing");
    snprintf(buf, sizeof buf, "%s%s", one_1, one_0);
    refused(&f, buf, "1: choices are not in their order");
    snprintf(buf, sizeof buf, "%s%s", one_0, one_0);
    refused(&f, buf, "2: choices are not in their order");
    snprintf(buf, sizeof buf, "%s\n%s", two, zero);
    refused(&f, buf, "2: this is no JSON");
    put(&f, s.data, s.len);
    gy_batch other = {.fd = -1}; /* the same prompts for another model */
    assert_int_equal(gy_batch_open(&other, f.path, &f.q.j, SEED + 1, &f.q.err), GY_E_ARG);
    assert_non_null(strstr(f.q.err.msg, "1: this answer was made with other options or another model"));
    free(two);
    free(one_0);
    free(one_1);
    free(zero);
    gy_str_free(&s);
    end(&f);
}

static void one_writer_at_a_time(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(reopen(&f), GY_OK);
    gy_batch other = {.fd = -1};
    assert_int_equal(gy_batch_open(&other, f.path, &f.q.j, SEED, &f.q.err), GY_E_IO);
    assert_non_null(strstr(f.q.err.msg, "out.jsonl: another process is writing to it"));
    assert_int_equal(other.fd, -1);
    end(&f);
}

static void bad_paths(void **state) {
    fixture f;
    gy_opt row = {.name = "input"};
    (void)state;
    begin(&f);
    put(&f, "x", 1);
    gy_opt_item item = {&row, f.path, strlen(f.path)};
    f.q.a.prompts = (gy_opt_list){&item, 1, 1};
    assert_int_equal(gy_batch_check_path(f.path, &f.q.a, &f.q.err), GY_E_ARG);
    assert_non_null(strstr(f.q.err.msg, "is the file that the prompts come from"));
    char dotted[120], link_name[120];
    snprintf(dotted, sizeof dotted, "%s/./out.jsonl", f.dir);
    assert_int_equal(gy_batch_check_path(dotted, &f.q.a, &f.q.err), GY_E_ARG);
    snprintf(link_name, sizeof link_name, "%s/link", f.dir);
    assert_int_equal(symlink(f.path, link_name), 0);
    assert_int_equal(gy_batch_check_path(link_name, &f.q.a, &f.q.err), GY_E_ARG);
    unlink(link_name);
    assert_int_equal(gy_batch_check_path("/no/such/file", &f.q.a, &f.q.err), GY_OK);
    assert_int_equal(gy_batch_check_path("-", &f.q.a, &f.q.err), GY_E_ARG);
    assert_int_equal(gy_batch_check_path("", &f.q.a, &f.q.err), GY_E_ARG);
    assert_int_equal(gy_batch_open(&f.b, "/dev/null", &f.q.j, SEED, &f.q.err), GY_E_ARG);
    assert_non_null(strstr(f.q.err.msg, "--output: /dev/null is no regular file"));
    assert_int_equal(gy_batch_open(&f.b, "/no/such/dir/x", &f.q.j, SEED, &f.q.err), GY_E_IO);
    assert_memory_equal(f.q.err.msg, "/no/such/dir/x: cannot open it to write: ", 41);
    end(&f);
}

static void allocation_failures(void **state) {
    fixture f;
    (void)state;
    begin(&f);
    for (int64_t n = 1; n < 60; n++) {
        gy_answer *a = NULL;
        f.q.err = (gy_err){0};
        put(&f, "", 0);
        gy_mem_fail_after(n);
        gy_status st = reopen(&f);
        if (st == GY_OK) st = gy_answer_create(&f.q.j.job.data[1], &f.q.m, 1, &f.q.err, &a);
        if (st == GY_OK) gy_answer_refuse(a, "too long");
        if (st == GY_OK) st = gy_batch_write(&f.b, a, &f.q.err);
        gy_mem_fail_after(0);
        gy_answer_free(a);
        gy_batch_close(&f.b, NULL);
        if (st == GY_OK) {
            assert_true(n > 3);
            end(&f);
            return;
        }
        assert_int_equal(st, GY_E_NOMEM);
        gy_str s = read_back(&f); /* all of it or nothing */
        assert_int_equal(s.len, 0);
        gy_str_free(&s);
    }
    fail_msg("never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read_back),
        cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(what_is_not_ours_is_left_alone),
        cmocka_unit_test(one_writer_at_a_time),
        cmocka_unit_test(bad_paths),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
