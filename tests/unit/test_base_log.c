/* Log lines: levels, the logfmt form, escaping, the cut at 4096 bytes, whole lines from several threads. */
#include "base_test.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static FILE *sink;

static int open_sink(void **state) {
    (void)state;
    sink = tmpfile();
    if (!sink) return -1;
    gy_log_set_fd(fileno(sink));
    gy_log_set_level(GY_LOG_INFO);
    return 0;
}

static int close_sink(void **state) {
    (void)state;
    gy_log_set_fd(STDERR_FILENO);
    gy_log_set_level(GY_LOG_WARN);
    return fclose(sink);
}

/* All that was written since the sink was opened. */
static size_t read_sink(char *buf, size_t cap) {
    rewind(sink);
    size_t n = fread(buf, 1, cap - 1, sink);
    buf[n] = '\0';
    return n;
}

static void test_form(void **state) {
    (void)state;
    char buf[1000];
    gy_log(GY_LOG_INFO, "model", "loaded", "tensors=%d bytes=%lld", 269, 2869336434ll);
    read_sink(buf, sizeof buf);
    const char *mask = "ts=dddd-dd-ddTdd:dd:dd.dddZ ";
    for (size_t i = 0; mask[i]; i++) {
        if (mask[i] == 'd')
            assert_in_range(buf[i], '0', '9');
        else
            assert_int_equal(buf[i], mask[i]);
    }
    assert_string_equal(buf + strlen(mask), "level=info area=model msg=\"loaded\" tensors=269 bytes=2869336434\n");
}

static void test_levels(void **state) {
    (void)state;
    char buf[4000];
    gy_log_level level = GY_LOG_ERROR;
    gy_log_set_level(GY_LOG_WARN);
    gy_log(GY_LOG_INFO, "a", "hidden", NULL);
    gy_log(GY_LOG_WARN, "a", "shown", NULL);
    gy_log(GY_LOG_ERROR, "a", "shown too", NULL);
    assert_true(gy_log_enabled(GY_LOG_WARN));
    assert_false(gy_log_enabled(GY_LOG_INFO));
    gy_log_set_level(GY_LOG_TRACE);
    gy_log(GY_LOG_TRACE, "a", "step", NULL);
    read_sink(buf, sizeof buf);
    assert_null(strstr(buf, "hidden"));
    assert_non_null(strstr(buf, "level=warn area=a msg=\"shown\"\n"));
    assert_non_null(strstr(buf, "level=error area=a msg=\"shown too\"\n"));
    assert_non_null(strstr(buf, "level=trace"));
    assert_int_equal(gy_log_level_parse("debug", &level), 0);
    assert_int_equal(level, GY_LOG_DEBUG);
    assert_int_equal(gy_log_level_parse("Debug", &level), -1);
    assert_int_equal(gy_log_level_parse("", &level), -1);
    assert_int_equal(level, GY_LOG_DEBUG);
}

static void test_escaping(void **state) {
    (void)state;
    char buf[4000], q[64], small[6];
    gy_log(GY_LOG_INFO, "x", "a \"b\" \\ \n\r\t\x01\x7f \xC3\xA9", "path=%s bad=%s", gy_log_quote("a b\n", q, sizeof q),
           "x\ny\x02");
    read_sink(buf, sizeof buf);
    assert_non_null(strstr(buf, "msg=\"a \\\"b\\\" \\\\ \\n\\r\\t\\x01\\x7f \xC3\xA9\" path=\"a b\\n\" bad=x?y?\n"));
    assert_int_equal(strchr(buf, '\n') - buf, strlen(buf) - 1); /* one line */
    assert_string_equal(gy_log_quote("abcdef", small, sizeof small), "\"abc\"");
    assert_string_equal(gy_log_quote("ab\n", small, sizeof small), "\"ab\""); /* no half escape */
    assert_string_equal(gy_log_quote(NULL, small, sizeof small), "\"\"");
    assert_string_equal(gy_log_quote("x", small, 2), "\"\"");
}

static void test_long_lines_are_cut(void **state) {
    (void)state;
    static char longer[9000], buf[20000];
    memset(longer, 'm', sizeof longer - 1);
    gy_log(GY_LOG_INFO, "x", longer, NULL);
    assert_int_equal(read_sink(buf, sizeof buf), 4096);
    assert_string_equal(buf + 4094, "\"\n"); /* the quote is closed */
    gy_log(GY_LOG_INFO, "x", longer, "k=%d", 1);
    assert_int_equal(read_sink(buf, sizeof buf), 8192);
    gy_log(GY_LOG_INFO, "x", "short", "k=%s", longer);
    size_t n = read_sink(buf, sizeof buf);
    assert_in_range(n, 8192 + 4000, 8192 + 4096);
    assert_string_equal(buf + n - 3, "mm\n");
    for (int cut = 3900; cut < 4100; cut++) {
        longer[cut] = '\0';
        size_t before = read_sink(buf, 2);
        (void)before;
        gy_log(GY_LOG_INFO, "x", longer, "k=v");
        longer[cut] = 'm';
    }
    assert_int_equal(fseek(sink, 8192, SEEK_SET), 0);
    while (fgets(buf, sizeof buf, sink)) {
        assert_true(strlen(buf) <= 4096);
        assert_int_equal(buf[strlen(buf) - 1], '\n');
    }
}

static void test_errno_survives(void **state) {
    (void)state;
    gy_log_set_fd(-1); /* a line that cannot be written is lost and nobody fails */
    errno = ENOENT;
    gy_log(GY_LOG_INFO, "x", "lost", NULL);
    assert_int_equal(errno, ENOENT);
}

static void *chatter(void *arg) {
    for (int i = 0; i < 500; i++) gy_log(GY_LOG_INFO, "thread", arg, "n=%d end=1", i);
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state) {
    (void)state;
    static char text[4][200];
    pthread_t th[4];
    for (int i = 0; i < 4; i++) {
        memset(text[i], 'a' + i, sizeof text[i] - 1);
        assert_int_equal(pthread_create(&th[i], NULL, chatter, text[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    rewind(sink);
    char line[1000];
    int n = 0, next[4] = {0};
    for (; fgets(line, sizeof line, sink); n++) {
        char *msg = strstr(line, "msg=\"");
        assert_non_null(msg);
        int who = msg[5] - 'a';
        assert_in_range(who, 0, 3);
        assert_int_equal(strncmp(msg + 5, text[who], 199), 0);
        char tail[64];
        snprintf(tail, sizeof tail, "\" n=%d end=1\n", next[who]++);
        assert_string_equal(msg + 5 + 199, tail);
    }
    assert_int_equal(n, 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_form, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(test_levels, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(test_escaping, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(test_long_lines_are_cut, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(test_errno_survives, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(test_lines_of_threads_do_not_mix, open_sink, close_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
