/* Byte strings and UTF-8. The UTF-8 vectors come from CPython (data/base/make_vectors.py). */
#include "base_test.h"

#include "base/str.h"

#include <stdlib.h>

static int64_t live(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_BASE];
}

static void test_building(void **state) {
    (void)state;
    gy_str s = {0};
    assert_string_equal(gy_str_z(&s), "");
    gy_str_append(&s, NULL, 0);
    gy_str_puts(&s, "loop");
    gy_str_putc(&s, ' ');
    gy_str_append(&s, "a\0b", 3);
    gy_str_printf(&s, " %d|%s", -7, "x");
    assert_int_equal(s.len, 13);
    assert_memory_equal(s.data, "loop a\0b -7|x", 14);
    gy_str_clear(&s);
    assert_string_equal(gy_str_z(&s), "");
    assert_true(s.cap > 0);
    gy_str_printf(&s, "%0500d", 42);
    assert_int_equal(s.len, 500);
    assert_string_equal(s.data + 497, "042");
    gy_str_free(&s);
    gy_str_free(&s);
    assert_int_equal(live(), 0);
}

static void test_failure_sticks(void **state) {
    (void)state;
    gy_str s = {0};
    gy_str_puts(&s, "kept");
    gy_mem_fail_after(1);
    gy_str_printf(&s, "%0200d", 1);
    assert_true(s.failed);
    gy_str_puts(&s, "never");
    gy_str_put_utf8(&s, 'x');
    assert_string_equal(gy_str_z(&s), "kept");
    gy_str_free(&s);
    gy_str_append(&s, "x", SIZE_MAX);
    assert_true(s.failed);
    gy_str_clear(&s);
    assert_false(s.failed);
    gy_str_free(&s);
}

static void build(gy_str *s) {
    for (int i = 0; i < 50; i++) gy_str_printf(s, "%d: some text; ", i);
    gy_utf8_sanitize("a\xFFz", 3, s);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    int n = 0, ok = 0;
    while (!ok) {
        gy_str s = {0};
        gy_mem_fail_after(++n);
        build(&s);
        ok = !s.failed;
        gy_mem_fail_after(0);
        assert_int_equal(strlen(gy_str_z(&s)), s.len);
        gy_str_free(&s);
        assert_int_equal(live(), 0);
    }
    assert_true(n > 3);
}

static void test_all_code_points(void **state) {
    (void)state;
    gy_str s = {0};
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        uint32_t got, want = cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000) ? 0xFFFD : cp;
        gy_str_clear(&s);
        gy_str_put_utf8(&s, cp);
        int n = gy_utf8_decode(s.data, s.len, &got);
        if (got != want || (size_t)n != s.len || !gy_utf8_valid(s.data, s.len)) fail_msg("U+%04X", cp);
        for (size_t cut = 1; cut < s.len; cut++) {
            if (gy_utf8_incomplete_tail(s.data, cut) != (int)cut) fail_msg("tail of U+%04X cut at %zu", cp, cut);
            if (gy_utf8_decode(s.data, cut, &got) != (int)cut || got != 0xFFFFFFFFu) fail_msg("cut U+%04X", cp);
        }
        if (gy_utf8_incomplete_tail(s.data, s.len) != 0) fail_msg("whole U+%04X", cp);
    }
    gy_str_free(&s);
}

/* Reads hex digits up to a space; returns what follows the space. */
static char *read_hex(char *line, char *out, size_t *len_out) {
    size_t n = 0;
    for (; *line != ' '; line += 2) {
        char pair[3] = {line[0], line[1], '\0'};
        out[n++] = (char)strtoul(pair, NULL, 16);
    }
    *len_out = n;
    return line + 1;
}

static void test_like_python(void **state) {
    (void)state;
    FILE *f = fopen(GY_SOURCE_DIR "/tests/unit/data/base/utf8.txt", "r");
    assert_non_null(f);
    char line[512], in[128], want[256];
    int n = 0;
    gy_str out = {0};
    for (; fgets(line, sizeof line, f); n++) {
        size_t n_in, n_want;
        char *rest = read_hex(read_hex(line, in, &n_in), want, &n_want);
        char *exact = gy_mem_alloc(GY_MEM_TEXT, n_in, 1); /* exactly its size: ASan sees a read behind the end */
        memcpy(exact, in, n_in);
        gy_str_clear(&out);
        gy_utf8_sanitize(exact, n_in, &out);
        if (out.len != n_want || memcmp(out.data, want, n_want) != 0) fail_msg("case %d: %s", n + 1, line);
        if (gy_utf8_incomplete_tail(exact, n_in) != atoi(rest)) fail_msg("tail of case %d: %s", n + 1, line);
        int same = n_in == n_want && memcmp(in, want, n_in) == 0;
        if (gy_utf8_valid(exact, n_in) != same) fail_msg("validity of case %d: %s", n + 1, line);
        gy_mem_free(exact);
    }
    fclose(f);
    gy_str_free(&out);
    assert_int_equal(n, 3625);
}

static void test_empty(void **state) {
    (void)state;
    gy_str out = {0};
    gy_utf8_sanitize("", 0, &out);
    assert_int_equal(out.len, 0);
    assert_int_equal(gy_utf8_valid("", 0), 1);
    assert_int_equal(gy_utf8_incomplete_tail("", 0), 0);
    gy_str_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_building),        cmocka_unit_test(test_failure_sticks),
        cmocka_unit_test(test_all_code_points), cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_like_python),     cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
