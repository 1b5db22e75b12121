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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_form),
        cmocka_unit_test(json_form),
        cmocka_unit_test(progress_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
