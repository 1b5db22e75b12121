/* Mapping and reading: content, limits, everything that is no regular file, no memory; path joining. */
#include "base_test.h"

#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/gyre-file-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    const char *const names[] = {"full", "empty", "pipe", "link", "dangling"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *p = gy_path_join(dir, names[i]);
        unlink(p);
        gy_mem_free(p);
    }
    return rmdir(dir);
}

static char *make_file(const char *name, const char *bytes, size_t len) {
    char *path = gy_path_join(dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    fclose(f);
    return path;
}

static int64_t live(void) {
    gy_mem_stats s;
    gy_mem_get_stats(&s);
    return s.live_bytes[GY_MEM_BASE];
}

static void test_map(void **state) {
    (void)state;
    gy_err e = {0};
    gy_map m = {0};
    char *full = make_file("full", "abc\0def", 7), *empty = make_file("empty", "", 0);
    assert_int_equal(gy_map_open(full, &e, &m), GY_OK);
    assert_int_equal(m.size, 7);
    assert_memory_equal(m.data, "abc\0def", 7);
    unlink(full); /* the mapping outlives the name and the descriptor */
    assert_memory_equal(m.data, "abc\0def", 7);
    gy_map_close(&m);
    assert_null(m.data);
    gy_map_close(&m);
    assert_int_equal(gy_map_open(empty, &e, &m), GY_OK);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    gy_map_close(&m);
    gy_mem_free(full);
    gy_mem_free(empty);
}

static void refuse(const char *path, const char *needle) {
    gy_err e = {0};
    gy_map m = {.size = 77};
    gy_str s = {0};
    assert_int_equal(gy_map_open(path, &e, &m), GY_E_IO);
    assert_int_equal(e.status, GY_E_IO);
    if (!strstr(e.msg, path) || !strstr(e.msg, needle)) fail_msg("'%s' lacks '%s'", e.msg, needle);
    assert_int_equal(m.size, 77);
    e.msg[0] = '\0';
    assert_int_equal(gy_file_read(path, 100, &e, &s), GY_E_IO);
    if (!strstr(e.msg, path) || !strstr(e.msg, needle)) fail_msg("'%s' lacks '%s'", e.msg, needle);
    assert_int_equal(gy_map_open(path, NULL, &m), GY_E_IO);
    gy_str_free(&s);
}

static void test_only_regular_files(void **state) {
    (void)state;
    char *pipe_path = gy_path_join(dir, "pipe"), *none = gy_path_join(dir, "dangling");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    refuse(dir, "found a directory, expected a regular file");
    refuse(pipe_path, "found a pipe"); /* and does not wait for a writer */
    refuse("/dev/null", "found a device");
    refuse(none, "cannot open: No such file or directory");
    assert_int_equal(symlink("/nonexistent/x", none), 0);
    refuse(none, "cannot open: No such file or directory");
    assert_int_equal(gy_file_exists(pipe_path), 0);
    assert_int_equal(gy_file_exists(none), 0);
    assert_int_equal(gy_file_exists(dir), 0);
    assert_int_equal(gy_dir_exists(dir), 1);
    assert_int_equal(gy_dir_exists(pipe_path), 0);
    gy_mem_free(pipe_path);
    gy_mem_free(none);
}

static void test_links_to_files_work(void **state) {
    (void)state;
    gy_err e = {0};
    gy_str s = {0};
    char *full = make_file("full", "weights", 7), *link_path = gy_path_join(dir, "link");
    assert_int_equal(symlink(full, link_path), 0);
    assert_int_equal(gy_file_exists(link_path), 1);
    assert_int_equal(gy_file_read(link_path, 100, &e, &s), GY_OK);
    assert_string_equal(gy_str_z(&s), "weights");
    gy_str_free(&s);
    gy_mem_free(full);
    gy_mem_free(link_path);
}

static void test_read_is_bounded(void **state) {
    (void)state;
    static char big[100000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 7 % 251);
    gy_err e = {0};
    gy_str s = {0};
    char *path = make_file("full", big, sizeof big);
    gy_str_puts(&s, "head");
    assert_int_equal(gy_file_read(path, sizeof big, &e, &s), GY_OK);
    assert_int_equal(s.len, 4 + sizeof big);
    assert_memory_equal(s.data, "head", 4);
    assert_memory_equal(s.data + 4, big, sizeof big);
    gy_str_clear(&s);
    gy_str_puts(&s, "head");
    assert_int_equal(gy_file_read(path, sizeof big - 1, &e, &s), GY_E_LIMIT);
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, "larger than the limit of 99999 bytes"));
    assert_string_equal(gy_str_z(&s), "head"); /* output only on success */
    gy_str_free(&s);
    gy_mem_free(path);
}

static void test_read_without_memory(void **state) {
    (void)state;
    static char big[100000];
    gy_err e = {0};
    char *path = make_file("full", big, sizeof big);
    int64_t before = live();
    int n = 0;
    for (gy_status st = GY_E_NOMEM; st != GY_OK;) {
        gy_str s = {0};
        gy_mem_fail_after(++n);
        st = gy_file_read(path, 1 << 20, &e, &s);
        gy_mem_fail_after(0);
        assert_true(st == GY_OK || (st == GY_E_NOMEM && strstr(e.msg, path)));
        gy_str_free(&s);
        assert_int_equal(live(), before);
    }
    assert_true(n > 1);
    gy_mem_free(path);
}

static void test_descriptors_are_closed(void **state) {
    (void)state;
    char *full = make_file("full", "x", 1);
    int before = open("/dev/null", O_RDONLY), after;
    for (int i = 0; i < 50; i++) {
        gy_map m = {0};
        gy_err e;
        gy_str s = {0};
        assert_int_equal(gy_map_open(full, &e, &m), GY_OK);
        gy_map_close(&m);
        assert_int_equal(gy_map_open(dir, &e, &m), GY_E_IO);
        assert_int_equal(gy_file_read(full, 0, &e, &s), GY_E_LIMIT);
        gy_str_free(&s);
    }
    after = open("/dev/null", O_RDONLY);
    assert_int_equal(after, before + 1);
    close(before);
    close(after);
    gy_mem_free(full);
}

static void test_join(void **state) {
    (void)state;
    const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"a/b", "", "a/b/"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *p = gy_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        gy_mem_free(p);
    }
    gy_mem_fail_after(1);
    assert_null(gy_path_join("a", "b"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_map, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_only_regular_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_links_to_files_work, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_read_is_bounded, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_read_without_memory, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_descriptors_are_closed, make_dir, remove_dir),
        cmocka_unit_test(test_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
