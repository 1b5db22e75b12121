/* Status groups and names, the error sentence and its prefix. */
#include "base_test.h"

#include "base/status.h"

static const gy_status all[] = {GY_OK,          GY_AGAIN,     GY_DONE,          GY_E_ARG,    GY_E_LIMIT,
                                GY_E_CANCELLED, GY_E_NUMERIC, GY_E_UNSUPPORTED, GY_E_PEER,   GY_E_TIMEOUT,
                                GY_E_NOMEM,     GY_E_IO,      GY_E_FORMAT,      GY_E_DEVICE, GY_E_BUG};
enum { N_ALL = sizeof all / sizeof *all };

static void test_groups(void **state) {
    (void)state;
    assert_int_equal(gy_status_get_group(GY_OK), GY_GROUP_NONE);
    assert_int_equal(gy_status_get_group(GY_DONE), GY_GROUP_NONE);
    assert_int_equal(gy_status_get_group(GY_E_ARG), GY_GROUP_REQUEST);
    assert_int_equal(gy_status_get_group(GY_E_UNSUPPORTED), GY_GROUP_REQUEST);
    assert_int_equal(gy_status_get_group(GY_E_PEER), GY_GROUP_PEER);
    assert_int_equal(gy_status_get_group(GY_E_TIMEOUT), GY_GROUP_PEER);
    assert_int_equal(gy_status_get_group(GY_E_NOMEM), GY_GROUP_ENGINE);
    assert_int_equal(gy_status_get_group(GY_E_BUG), GY_GROUP_ENGINE);
}

static void test_names_differ(void **state) {
    (void)state;
    assert_string_equal(gy_status_name(GY_E_ARG), "bad_argument");
    assert_string_equal(gy_status_name((gy_status)-1000), "unknown_status");
    for (int i = 0; i < N_ALL; i++) {
        assert_string_not_equal(gy_status_name(all[i]), "unknown_status");
        for (int k = 0; k < i; k++) assert_string_not_equal(gy_status_name(all[i]), gy_status_name(all[k]));
    }
}

static void test_set_and_prefix(void **state) {
    (void)state;
    gy_err e = {0};
    assert_int_equal(gy_err_set(&e, GY_E_FORMAT, "field %s: found %d", "n_loop", 3), GY_E_FORMAT);
    assert_int_equal(e.status, GY_E_FORMAT);
    assert_string_equal(e.msg, "field n_loop: found 3");
    assert_int_equal(gy_err_prefix(&e, "%s", "config.json"), GY_E_FORMAT);
    assert_string_equal(e.msg, "config.json: field n_loop: found 3");
    assert_int_equal(gy_err_set(&e, GY_E_IO, "again (%s)", e.msg), GY_E_IO);
    assert_string_equal(e.msg, "again (config.json: field n_loop: found 3)");
    assert_int_equal(gy_err_set(NULL, GY_E_LIMIT, "nobody listens"), GY_E_LIMIT);
}

static void test_long_messages_are_cut(void **state) {
    (void)state;
    gy_err e = {0};
    char text[3000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    gy_err_set(&e, GY_E_ARG, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    gy_err_prefix(&e, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    gy_err_set(&e, GY_E_ARG, "b");
    gy_err_prefix(&e, "prefix");
    assert_string_equal(e.msg, "prefix: b");
}

static gy_status try_it(gy_status s, int *reached) {
    GY_TRY(s);
    *reached = 1;
    return GY_OK;
}

static void test_try_passes_failures_only(void **state) {
    (void)state;
    int reached = 0;
    assert_int_equal(try_it(GY_E_IO, &reached), GY_E_IO);
    assert_int_equal(reached, 0);
    assert_int_equal(try_it(GY_AGAIN, &reached), GY_OK);
    assert_int_equal(reached, 1);
}

static void broken(void *arg) {
    GY_CHECK(arg != NULL);
}

static void test_check_aborts(void **state) {
    (void)state;
    assert_aborts(broken, NULL, "broken invariant: arg != NULL");
    assert_aborts(broken, NULL, "test_base_status.c");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_names_differ),
        cmocka_unit_test(test_set_and_prefix),
        cmocka_unit_test(test_long_messages_are_cut),
        cmocka_unit_test(test_try_passes_failures_only),
        cmocka_unit_test(test_check_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
