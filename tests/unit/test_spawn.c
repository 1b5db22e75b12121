/* Processes that a spawner starts: what they are given, how they end, and that what a terminal sends to our process
 * group is not for them, whenever it comes. The child is a shell.
 */
#include "base_test.h"

#include "pd/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

static int in_window; /* a signal that reaches the child between fork and its own group */

static void strike(void) {
    if (in_window) raise(in_window);
}

/* Runs the shell's program text with these descriptors as 3 and 4 (-1: without); how it ended. */
static gy_child_end run(gy_spawner *s, const char *text, int fd, int more) {
    const char *const argv[] = {"sh", "-c", text, NULL};
    gy_child_end end = {0};
    gy_err err = {0};
    int pid = 0, pidfd = -1;
    if (gy_spawner_start(s, argv, (const int[2]){fd, more}, &err, &pid, &pidfd) != GY_OK) fail_msg("%s", err.msg);
    assert_true(pid > 0 && pidfd >= 0);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    int n = poll(&p, 1, 20000);
    if (n != 1) gy_child_signal(pidfd, SIGKILL);
    assert_int_equal(n, 1);
    assert_int_equal(gy_child_reap(pidfd, &end), 1);
    close(pidfd);
    return end;
}

static gy_spawner *shells(void) {
    gy_spawner *s = NULL;
    gy_err err = {0};
    if (gy_spawner_create("/bin/sh", &err, &s) != GY_OK) fail_msg("%s", err.msg);
    return s;
}

/* The fork's own hook strikes: the signal lies in the child before its first instruction of ours. */
static void test_signal_at_birth(void **state) {
    (void)state;
    static const int terminal[] = {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
    gy_spawner *s = shells();
    for (size_t i = 0; i < sizeof terminal / sizeof *terminal; i++) {
        in_window = terminal[i];
        gy_child_end end = run(s, "exit 7", STDERR_FILENO, -1);
        in_window = 0;
        if (!end.known || end.signal || end.code != 7)
            fail_msg("signal %d: the child ended by signal %d, code %d", terminal[i], end.signal, end.code);
    }
    gy_spawner_destroy(s);
}

/* Later it can be ended like any process, whatever is ignored or blocked here. */
static void test_signal_later(void **state) {
    (void)state;
    sigset_t all, old;
    sigfillset(&all);
    void (*before)(int) = signal(SIGTERM, SIG_IGN);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    gy_spawner *s = shells();
    gy_child_end end = run(s, "kill -TERM $$; exit 7", STDERR_FILENO, -1);
    assert_true(end.known && end.signal == SIGTERM);
    gy_spawner_destroy(s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    signal(SIGTERM, before);
}

/* Its own group; the descriptors as 3 and 4; our standard error as its output; an empty input; nothing else is open. */
static void test_what_it_is_given(void **state) {
    (void)state;
    int p[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC), other = fcntl(null, F_DUPFD, 10); /* without O_CLOEXEC */
    assert_true(null >= 0 && other >= 10 && pipe2(p, O_CLOEXEC) == 0);
    gy_spawner *s = shells();
    gy_child_end end =
        run(s,
            "read -r pid x x x group x </proc/self/stat; echo $pid $group >&3; read -r x && exit 1; "
            "for f in /proc/$$/fd/*; do case ${f##*/} in [0-3]) ;; *) [ ! -e $f ] || exit 2 ;; esac; done; exit 7",
            p[1], -1);
    assert_true(end.known && end.code == 7);
    char text[64] = "";
    assert_true(read(p[0], text, sizeof text - 1) > 0);
    char *rest;
    long pid = strtol(text, &rest, 10), group = strtol(rest, NULL, 10);
    assert_true(pid > 0 && pid == group && group != getpgrp());
    end = run(
        s,
        "for f in /proc/$$/fd/*; do case ${f##*/} in [0-4]) ;; *) [ ! -e $f ] || exit 2 ;; esac; done; echo four >&4",
        null, p[1]);
    assert_true(end.known && !end.code && read(p[0], text, sizeof text) == 5 && !memcmp(text, "four", 4));
    gy_spawner_destroy(s);
    close(null), close(other), close(p[0]), close(p[1]);
}

static void test_no_program(void **state) {
    (void)state;
    const char *const argv[] = {"none", NULL};
    gy_spawner *s = NULL;
    gy_err err = {0};
    int pid = 0, pidfd = -1;
    assert_int_equal(gy_spawner_create("/nowhere/none", &err, &s), GY_OK);
    assert_int_equal(gy_spawner_start(s, argv, (const int[2]){STDERR_FILENO, -1}, &err, &pid, &pidfd), GY_E_IO);
    assert_non_null(strstr(err.msg, "/nowhere/none: cannot be run"));
    assert_true(pid == 0 && pidfd == -1);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* and it is reaped */
    assert_int_equal(errno, ECHILD);
    gy_spawner_destroy(s);
}

int main(void) {
    pthread_atfork(NULL, NULL, strike);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signal_at_birth),
        cmocka_unit_test(test_signal_later),
        cmocka_unit_test(test_what_it_is_given),
        cmocka_unit_test(test_no_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
