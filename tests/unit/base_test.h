/* Shared by the tests of src/base: cmocka with the headers that it needs, and a child process that must abort. */
#ifndef GY_TESTS_UNIT_BASE_TEST_H
#define GY_TESTS_UNIT_BASE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs fn in a child that has to end by SIGABRT with `needle` on its stderr. */
static inline void assert_aborts(void (*fn)(void *), void *arg, const char *needle) {
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        dup2(pipe_fd[1], STDERR_FILENO);
        fn(arg);
        _exit(0);
    }
    close(pipe_fd[1]);
    char text[4096] = "";
    size_t n = 0;
    for (ssize_t got; n + 1 < sizeof text && (got = read(pipe_fd[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(pipe_fd[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, needle));
}

#endif
