/* The probe of the transport: what it says of lanes that work, with puts in one piece and in many. */
#include "base_test.h"

#include "pd/probe.h"
#include "support/fake_device.h"

#include <poll.h>

static void probe(int across_hosts, size_t chunk, size_t bytes, const char *lane) {
    gy_probe_opts o = {.bytes = bytes, .across_hosts = across_hosts};
    gy_probe_result r;
    gy_err err = {0};
    gy_xfer_limits_default(&o.limits);
    o.limits.chunk_bytes = chunk;
    if (gy_probe(&o, &err, &r) < 0) fail_msg("%s", err.msg);
    assert_non_null(strstr(r.lanes, lane));
    assert_int_equal(r.bytes, bytes);
    assert_true(r.put_gbs > 0.001 && r.put_gbs < 1000);
    assert_true(r.copy_gbs > 0.01 && r.copy_gbs < 1000);
    assert_true(r.latency_us > 0 && r.latency_us < 1e6);
}

static void inside_a_host(void **state) {
    (void)state;
    probe(0, 256 << 20, 8 << 20, "sysv");
    probe(0, 300000, 1 << 20, "sysv");
}

static void over_a_network(void **state) {
    (void)state;
    probe(1, 1 << 20, 4 << 20, "tcp");
}

/* Stopped and continued all the time, as by Ctrl-Z and fg: each system call that can end by it does. */
static void stopped_and_continued(void **state) {
    (void)state;
    int status = 0, n = 0;
    pid_t pid = fork();
    if (!pid) {
        gy_probe_opts o = {.bytes = 1 << 20};
        gy_probe_result r;
        gy_err err = {0};
        setpgid(0, 0);
        gy_xfer_limits_default(&o.limits);
        if (gy_probe(&o, &err, &r) < 0) fprintf(stderr, "%s\n", err.msg);
        _exit(err.status < 0);
    }
    setpgid(pid, pid);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (n++ < 400) kill(-pid, SIGSTOP);
        kill(-pid, SIGCONT);
        poll(NULL, 0, 2);
    }
    assert_true(n > 1 && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static gy_status open_fake(void *arg, int is_receiver, gy_err *err, gy_device **out) {
    static fake_device f; /* of the process that this is */
    (void)arg, (void)is_receiver, (void)err;
    fake_device_open(&f, 0);
    *out = &f.dev;
    return GY_OK;
}

static gy_status open_none(void *arg, int is_receiver, gy_err *err, gy_device **out) {
    (void)arg, (void)out;
    return is_receiver ? gy_err_set(err, GY_E_DEVICE, "no such GPU") : GY_E_BUG;
}

static void between_devices(void **state) {
    (void)state;
    gy_probe_opts o = {.bytes = 1 << 20, .open_device = open_fake};
    gy_probe_result r;
    gy_err err = {0};
    gy_xfer_limits_default(&o.limits);
    if (gy_probe(&o, &err, &r) < 0) fail_msg("%s", err.msg);
    assert_true(r.put_gbs > 0.001 && r.copy_gbs > 0.01 && r.latency_us > 0);
    o.open_device = open_none;
    assert_int_equal(gy_probe(&o, &err, &r), GY_E_DEVICE);
    assert_string_equal(err.msg, "no such GPU");
}

static void refused(void **state) {
    (void)state;
    gy_probe_opts o = {.bytes = 13};
    gy_probe_result r;
    gy_err err = {0};
    gy_xfer_limits_default(&o.limits);
    assert_int_equal(gy_probe(&o, &err, &r), GY_E_ARG);
    assert_non_null(strstr(err.msg, "found puts of 13 bytes"));
    o = (gy_probe_opts){.bytes = 4096};
    assert_int_equal(gy_probe(&o, &err, &r), GY_E_ARG);
    assert_non_null(strstr(err.msg, "transfer chunk"));
    assert_in_range(gy_probe_bytes(), 1 << 20, 256 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(inside_a_host), cmocka_unit_test(over_a_network),
                                       cmocka_unit_test(between_devices), cmocka_unit_test(refused),
                                       cmocka_unit_test(stopped_and_continued)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
