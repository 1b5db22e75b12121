/* The two forms of a report, and the line of progress. */
#include "cli/cli_report.h"
#include "cli/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void fill(gy_report *r, int json) {
    gy_report_begin(r, json);
    gy_report_section(r, "one");
    gy_report_int(r, "n", -3);
    gy_report_num(r, "x", 0.5);
    gy_report_bool(r, "yes", 1);
    gy_report_text(r, "why", "%s \"%d\"", "because", 7);
    gy_report_section_end(r);
    gy_report_section(r, "two");
    gy_report_bytes(r, "small", 1500000);
    gy_report_bytes(r, "large", 2869305346);
    gy_report_ids(r, "ids", (int32_t[]){2, 5}, 2);
    gy_report_ids(r, "empty", NULL, 0);
    gy_report_section_end(r);
    gy_report_end(r);
}

static void text_form(void **state) {
    gy_report r;
    (void)state;
    fill(&r, 0);
    assert_string_equal(gy_str_z(&r.out), "one\n"
                                          "  n                        -3\n"
                                          "  x                        0.5\n"
                                          "  yes                      yes\n"
                                          "  why                      because \"7\"\n"
                                          "\n"
                                          "two\n"
                                          "  small                    1500000 (1.50 MB)\n"
                                          "  large                    2869305346 (2.87 GB)\n"
                                          "  ids                      2 5\n"
                                          "  empty                    none\n");
    gy_str_free(&r.out);
}

static void json_form(void **state) {
    gy_report r;
    (void)state;
    fill(&r, 1);
    assert_string_equal(gy_str_z(&r.out),
                        "{\"one\":{\"n\":-3,\"x\":0.5,\"yes\":true,\"why\":\"because \\\"7\\\"\"},"
                        "\"two\":{\"small\":1500000,\"large\":2869305346,\"ids\":[2,5],\"empty\":[]}}\n");
    gy_str_free(&r.out);
}

static void progress_line(void **state) {
    char buf[128];
    (void)state;
    gy_progress_format("loading", 0, 2869305346, buf, sizeof buf);
    assert_string_equal(buf, "loading   0 %  0.0 of 2.9 GB");
    gy_progress_format("loading", 2869305346, 2869305346, buf, sizeof buf);
    assert_string_equal(buf, "loading 100 %  2.9 of 2.9 GB");
    gy_progress_format("writing", 2500000, 10000000, buf, sizeof buf);
    assert_string_equal(buf, "writing  25 %  2.5 of 10.0 MB");
    gy_progress_format("writing", 0, 0, buf, sizeof buf);
    assert_string_equal(buf, "writing 100 %  0.0 of 0.0 MB");
}

static void batch_line(void **state) {
    static const struct {
        gy_batch_counts c;
        const char *want;
    } cases[] = {
        {{0, 200, 0, 0, 0, 0}, "0 of 200 done"},
        {{0, 200, 0, 50, 100, 500000000}, "0 of 200 done, 100.0 tok/s, 2.00 loops a token"},
        {{50, 200, 0, 1000, 3210, 10000000000}, "50 of 200 done, 100.0 tok/s, 3.21 loops a token, 0:30 left"},
        /* 10 in this run took 60 s: 100 more take 600 s; those before it cost nothing */
        {{100, 200, 90, 600, 600, 60000000000}, "100 of 200 done, 10.0 tok/s, 1.00 loops a token, 10:00 left"},
        {{1, 1001, 0, 40, 80, 8000000000}, "1 of 1001 done, 5.0 tok/s, 2.00 loops a token, 2:13:20 left"},
        {{90, 200, 90, 0, 0, 1000000000}, "90 of 200 done"},
    };
    char buf[160];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_batch_progress_format(&cases[i].c, buf, sizeof buf);
        assert_string_equal(buf, cases[i].want);
    }
    for (size_t cap = 1; cap < 80; cap++) { /* cut, never overrun */
        memset(buf, 'x', sizeof buf);
        gy_batch_progress_format(&cases[3].c, buf, cap);
        assert_true(strlen(buf) < cap && buf[cap] == 'x');
    }
}

static void batch_lines_come_slowly(void **state) {
    gy_batch_progress p = {.every_ns = 100, .begin_ns = 1000, .last_ns = 1000};
    (void)state;
    assert_false(gy_batch_progress_due(&p, 1500)); /* short work shows nothing */
    assert_true(gy_batch_progress_due(&p, 1000 + 200000000));
    p.last_ns = 1000 + 200000000;
    assert_false(gy_batch_progress_due(&p, p.last_ns + 99));
    assert_true(gy_batch_progress_due(&p, p.last_ns + 100));
    p.every_ns = 0;
    assert_false(gy_batch_progress_due(&p, p.last_ns + 1000000000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_form),
        cmocka_unit_test(json_form),
        cmocka_unit_test(progress_line),
        cmocka_unit_test(batch_line),
        cmocka_unit_test(batch_lines_come_slowly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
