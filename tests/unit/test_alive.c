/* The early word: it comes for every kind of end, before a process that holds memory is torn down, and never for one
 * that lives. The other processes are this program again, with the numbers of their descriptors.
 */
#include "base_test.h"

#include "base/clock.h"
#include "pd/alive.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct child {
    gy_alive *a;
    pid_t pid;
    int pidfd;
} child;

enum { LONG_MS = 20000, SHORT_MS = 100 };

static int is_readable(int fd, int ms) {
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms) > 0;
}

static void touch(size_t bytes) {
    if (!bytes) return;
    char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) _exit(9);
    madvise(m, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096) m[i] = 1;
}

static void obey(char c) {
    if (c == 'e') _exit(3);
    if (c == 's') {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGSEGV, SIG_DFL); /* a sanitizer has a handler */
        raise(SIGSEGV);
    }
}

/* Says that it is there, then does what it is told by letters: e(xit), s(egv); else it waits. */
static _Noreturn void live(int fd, int up, int orders, size_t bytes) {
    char c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    touch(bytes);
    if (fd >= 0) gy_alive_hold(fd);
    if (write(up, "x", 1) != 1) _exit(9);
    while (read(orders, &c, 1) == 1) obey(c);
    for (;;) pause();
}

static _Noreturn void become(int fd, int up, int orders, size_t bytes) {
    char number[4][32];
    const int of[3] = {fd, up, orders};
    for (int i = 0; i < 3; i++) {
        snprintf(number[i], sizeof number[i], "%d", of[i]);
        if (of[i] >= 0) fcntl(of[i], F_SETFD, 0);
    }
    snprintf(number[3], sizeof number[3], "%zu", bytes);
    execl("/proc/self/exe", "test_alive", number[0], number[1], number[2], number[3], (char *)NULL);
    _exit(9);
}

static child make(int holds, size_t bytes, int *orders_out) {
    child k = {0};
    int fd = -1, up[2], down[2];
    char c;
    k.a = gy_alive_create(&fd);
    assert_non_null(k.a);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    k.pid = fork();
    if (!k.pid) become(holds ? fd : -1, up[1], down[0], bytes);
    k.pidfd = (int)syscall(SYS_pidfd_open, k.pid, 0);
    close(fd);
    close(up[1]);
    close(down[0]);
    assert_int_equal(read(up[0], &c, 1), 1);
    close(up[0]);
    *orders_out = down[1];
    return k;
}

static int reap(child *k) {
    int status = 0;
    waitpid(k->pid, &status, 0);
    gy_alive_destroy(k->a);
    close(k->pidfd);
    return status;
}

static void order(int fd, char c) {
    assert_int_equal(write(fd, &c, 1), 1);
}

static void every_end_is_told(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        int orders;
        child k = make(1, 0, &orders);
        assert_false(is_readable(gy_alive_fd(k.a), 0));
        if (how == 0) kill(k.pid, SIGKILL);
        if (how > 0) order(orders, how == 1 ? 'e' : 's');
        assert_true(is_readable(gy_alive_fd(k.a), LONG_MS));
        assert_true(gy_alive_has_ended(k.a));
        assert_false(is_readable(gy_alive_fd(k.a), 0)); /* it was heard */
        int status = reap(&k);
        if (how == 0) assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (how == 1) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
        if (how == 2) assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        close(orders);
    }
}

/* Killed with half a GB in pages of 4 KiB, which take the system a while: at the word it is still being torn down. A
 * machine that is busy may let this process run too late to see that; not each of many times. */
static void it_comes_before_the_memory_goes(void **state) {
    (void)state;
    int n_early = 0;
    for (int i = 0; i < 10 && !n_early; i++) {
        int orders;
        child k = make(1, (size_t)512 << 20, &orders);
        int64_t t = gy_clock_ns();
        kill(k.pid, SIGKILL);
        assert_true(is_readable(gy_alive_fd(k.a), LONG_MS));
        int64_t word_ns = gy_clock_ns() - t;
        n_early += !is_readable(k.pidfd, 0);
        assert_true(is_readable(k.pidfd, LONG_MS));
        print_message("killed: word %.3f ms, gone %.3f ms\n", (double)word_ns * 1e-6,
                      (double)(gy_clock_ns() - t) * 1e-6);
        reap(&k);
        close(orders);
    }
    assert_int_equal(n_early, 1);
}

static void one_that_hangs_lives(void **state) {
    (void)state;
    int orders;
    child k = make(1, 0, &orders);
    assert_false(is_readable(gy_alive_fd(k.a), SHORT_MS));
    kill(k.pid, SIGSTOP);
    assert_false(is_readable(gy_alive_fd(k.a), SHORT_MS));
    assert_false(gy_alive_has_ended(k.a));
    kill(k.pid, SIGKILL);
    assert_true(is_readable(gy_alive_fd(k.a), LONG_MS));
    reap(&k);
    close(orders);
}

/* Before it could hold anything: its pidfd tells alone, and nobody waits for ever. */
static void one_that_never_held_it(void **state) {
    (void)state;
    int orders;
    child k = make(0, 0, &orders);
    kill(k.pid, SIGKILL);
    assert_true(is_readable(k.pidfd, LONG_MS));
    assert_false(gy_alive_has_ended(k.a));
    reap(&k);
    close(orders);
}

static void its_parent_looks_away(void **state) {
    (void)state;
    int orders;
    child k = make(1, 0, &orders);
    gy_alive_destroy(k.a); /* while it is held */
    k.a = NULL;
    kill(k.pid, SIGKILL);
    reap(&k);
    close(orders);
}

/* Whoever is started by hand has something else there. */
static void other_descriptors_are_left_alone(void **state) {
    (void)state;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), fd = memfd_create("other", MFD_CLOEXEC);
    gy_alive_hold(-1);
    gy_alive_hold(null);
    gy_alive_hold(fd);
    assert_int_equal(fcntl(null, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(null);
    close(fd);
    gy_alive_destroy(NULL);
}

int main(int argc, char **argv) {
    if (argc == 5) live(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), (size_t)strtoull(argv[4], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_end_is_told),     cmocka_unit_test(it_comes_before_the_memory_goes),
        cmocka_unit_test(one_that_hangs_lives),  cmocka_unit_test(one_that_never_held_it),
        cmocka_unit_test(its_parent_looks_away), cmocka_unit_test(other_descriptors_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
