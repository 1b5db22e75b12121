/* .npy files byte for byte, against files that numpy 2.4 writes for the same arrays (headers pasted). */
#include "base_test.h"

#include "base/file.h"
#include "base/npy.h"

#include <stdlib.h>
#include <sys/stat.h>

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/gyre-npy-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    char *p = gy_path_join(dir, "x.npy");
    unlink(p);
    gy_mem_free(p);
    return rmdir(dir); /* fails when a .tmp was left */
}

static const struct {
    int n_dim;
    int64_t shape[4];
    const char *text;
} heads[] = {
    {0, {0}, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"},
    {1, {3}, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"},
    {1, {0}, "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }"},
    {2, {2, 3}, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"},
    {3, {1, 2, 3}, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }"},
    {4, {2, 1, 3, 4}, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3, 4), }"},
};

static void test_bytes(void **state) {
    (void)state;
    static const float data[24] = {1.0f, -2.5f, 0x1p-149f, 3e38f};
    char *path = gy_path_join(dir, "x.npy");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        gy_err e = {0};
        gy_str s = {0};
        if (gy_npy_write_f32(path, data, heads[i].shape, heads[i].n_dim, &e) != GY_OK) fail_msg("%s", e.msg);
        size_t n = sizeof(float);
        for (int d = 0; d < heads[i].n_dim; d++) n *= (size_t)heads[i].shape[d];
        assert_int_equal(gy_file_read(path, 4096, &e, &s), GY_OK);
        assert_int_equal(s.len, 128 + n);
        assert_memory_equal(s.data, "\x93NUMPY\x01\x00\x76\x00", 10);
        size_t n_text = strlen(heads[i].text);
        assert_memory_equal(s.data + 10, heads[i].text, n_text);
        for (size_t k = 10 + n_text; k < 127; k++) assert_int_equal(s.data[k], ' ');
        assert_int_equal(s.data[127], '\n');
        assert_memory_equal(s.data + 128, data, n);
        gy_str_free(&s);
    }
    gy_mem_free(path);
}

static void test_bad_arguments(void **state) {
    (void)state;
    const int64_t shape[5] = {1, 1, 1, 1, 1}, negative[2] = {2, -1}, huge[2] = {INT64_MAX, INT64_MAX};
    float x = 0;
    gy_err e = {0};
    assert_int_equal(gy_npy_write_f32("x.npy", &x, shape, 5, &e), GY_E_ARG);
    assert_string_equal(e.msg, "x.npy: 5 dimensions, 0 to 4 can be written");
    assert_int_equal(gy_npy_write_f32("x.npy", &x, shape, -1, &e), GY_E_ARG);
    assert_int_equal(gy_npy_write_f32("x.npy", &x, negative, 2, &e), GY_E_ARG);
    assert_int_equal(gy_npy_write_f32("x.npy", &x, huge, 2, &e), GY_E_ARG);
    assert_non_null(strstr(e.msg, "too many elements"));
    assert_int_equal(gy_file_exists("x.npy"), 0);
}

static void test_a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    const int64_t shape[1] = {1};
    float x = 5;
    gy_err e = {0};
    char *path = gy_path_join(dir, "x.npy"), *below = gy_path_join(dir, "absent/x.npy");
    assert_int_equal(gy_npy_write_f32(path, &x, shape, 1, &e), GY_OK);
    gy_mem_fail_after(1);
    assert_int_equal(gy_npy_write_f32(path, &x, shape, 1, &e), GY_E_NOMEM);
    assert_int_equal(gy_npy_write_f32(below, &x, shape, 1, &e), GY_E_IO);
    assert_non_null(strstr(e.msg, "absent/x.npy: cannot write: No such file or directory"));
    assert_int_equal(gy_file_exists(path), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* the rename fails, and the .tmp must go */
    assert_int_equal(gy_npy_write_f32(path, &x, shape, 1, &e), GY_E_IO);
    assert_int_equal(rmdir(path), 0);
    gy_mem_free(path);
    gy_mem_free(below);
}

static void test_full_disk(void **state) {
    (void)state;
    const int64_t shape[1] = {1000};
    static float data[1000];
    gy_err e = {0};
    char *path = gy_path_join(dir, "x.npy");
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1024;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    gy_status st = gy_npy_write_f32(path, data, shape, 1, &e);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(st, GY_E_IO);
    assert_non_null(strstr(e.msg, "cannot write: File too large"));
    assert_int_equal(gy_file_exists(path), 0);
    gy_mem_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bytes, make_dir, remove_dir),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test_setup_teardown(test_a_failed_write_leaves_the_old_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_full_disk, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
