/* Lines by a thread: all there and in order, dropped when nobody reads and counted, reopened where logrotate says so,
 * ended even if the reader is stuck.
 */
#include "base_test.h"

#include "server/log_writer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct place {
    char dir[32], path[64], moved[64], log[64];
    int log_fd;
} place;

static void place_make(place *p) {
    strcpy(p->dir, "/tmp/gyre-log-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->path, sizeof p->path, "%s/access", p->dir);
    snprintf(p->moved, sizeof p->moved, "%s/access.1", p->dir);
    snprintf(p->log, sizeof p->log, "%s/log", p->dir);
    p->log_fd = open(p->log, O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    assert_true(p->log_fd >= 0);
    gy_log_set_fd(p->log_fd);
}

static void place_remove(place *p) {
    gy_log_set_fd(STDERR_FILENO);
    close(p->log_fd);
    unlink(p->path), unlink(p->moved), unlink(p->log);
    assert_int_equal(rmdir(p->dir), 0);
}

/* The whole file, NUL-terminated; valid until the next call. */
static const char *text_of(const char *path) {
    static char text[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    size_t n = 0;
    for (ssize_t got; (got = read(fd, text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(fd);
    return text;
}

static gy_log_writer *open_writer(const char *path, int fd, size_t cap) {
    gy_log_writer *w = NULL;
    gy_err err;
    if (gy_log_writer_open(path, fd, cap, &err, &w) != GY_OK) fail_msg("%s", err.msg);
    return w;
}

static int put(gy_log_writer *w, const char *z) {
    return gy_log_writer_put(w, z, strlen(z));
}

static gy_log_writer_stats stats_of(gy_log_writer *w) {
    gy_log_writer_stats s;
    gy_log_writer_get_stats(w, &s);
    return s;
}

static void wait_written(gy_log_writer *w, uint64_t n) {
    int64_t end = gy_clock_ns() + 20000000000;
    while (stats_of(w).n_line < n) {
        assert_true(gy_clock_ns() < end);
        poll(NULL, 0, 1);
    }
}

/* ---- tests ---- */

enum { WRITERS = 4, LINES = 5000 };

typedef struct many {
    gy_log_writer *w;
    int who;
} many;

static void *put_many(void *arg) {
    const many *m = arg;
    char line[64];
    for (int i = 0; i < LINES; i++) {
        int n = snprintf(line, sizeof line, "%d %05d\n", m->who, i);
        while (gy_log_writer_put(m->w, line, (size_t)n) != 0) poll(NULL, 0, 1);
    }
    return NULL;
}

/* From several threads through a ring that wraps hundreds of times: each thread's lines whole and in order. */
static void test_order(void **state) {
    (void)state;
    place p;
    many m[WRITERS];
    pthread_t t[WRITERS];
    int next[WRITERS] = {0};
    place_make(&p);
    gy_log_writer *w = open_writer(p.path, -1, 999);
    for (int i = 0; i < WRITERS; i++) {
        m[i] = (many){w, i};
        assert_int_equal(pthread_create(&t[i], NULL, put_many, &m[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(t[i], NULL);
    wait_written(w, WRITERS * LINES);
    assert_int_equal(stats_of(w).waiting, 0);
    gy_log_writer_close(w, 1000);
    const char *at = text_of(p.path);
    for (int i = 0; i < WRITERS * LINES; i++, at += 8) {
        int who = at[0] - '0';
        assert_in_range(who, 0, WRITERS - 1);
        assert_int_equal(strtol(at + 2, NULL, 10), next[who]++);
        assert_int_equal(at[7], '\n');
    }
    assert_int_equal(*at, '\0');
    place_remove(&p);
}

/* A line that no batch could hold is dropped at once, also where the ring has room; those behind it get through. */
static void test_long_line(void **state) {
    (void)state;
    enum { MOST = 65536 };
    static char line[MOST + 1];
    place p;
    place_make(&p);
    gy_log_writer *w = open_writer(p.path, -1, 4 * MOST);
    memset(line, 'x', MOST);
    line[MOST - 1] = line[MOST] = '\n';
    assert_int_equal(gy_log_writer_put(w, line, MOST + 1), -1);
    assert_int_equal(gy_log_writer_put(w, line, MOST), 0);
    assert_int_equal(put(w, "short\n"), 0);
    wait_written(w, 2);
    assert_int_equal(stats_of(w).n_dropped, 1);
    gy_log_writer_close(w, 1000);
    const char *text = text_of(p.path);
    assert_int_equal(strlen(text), MOST + 6);
    assert_string_equal(text + MOST, "short\n");
    place_remove(&p);
}

/* A pipe that nobody reads: putting never waits, what does not fit is counted and said once, what was taken arrives,
 * and the end does not hang. */
static void test_stuck_reader(void **state) {
    (void)state;
    enum { PUTS = 20000 };
    place p;
    int fd[2];
    static char got[1 << 20];
    char line[101];
    memset(line, 'x', 99);
    line[99] = '\n', line[100] = '\0';
    place_make(&p);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    gy_log_writer *w = open_writer(NULL, fd[1], 65536);
    int64_t t = gy_clock_ns();
    int refused = 0;
    for (int i = 0; i < PUTS; i++) refused += put(w, line) != 0;
    assert_true(gy_clock_ns() - t < 20000000000); /* not for ever */
    assert_in_range(refused, PUTS / 2, PUTS);
    assert_int_equal(stats_of(w).n_dropped, refused);
    /* Read again: the rest comes, whole. */
    size_t len = 0, want = (size_t)(PUTS - refused) * 100;
    while (len < want) {
        ssize_t n = read(fd[0], got + len, sizeof got - len);
        assert_true(n > 0);
        len += (size_t)n;
    }
    for (size_t i = 0; i < len; i += 100) assert_memory_equal(got + i, line, 100);
    wait_written(w, (uint64_t)(PUTS - refused));
    assert_int_equal(put(w, line), 0);
    wait_written(w, (uint64_t)(PUTS - refused) + 1);
    int64_t end = gy_clock_ns() + 20000000000;
    while (!strstr(text_of(p.log), "get through again") && gy_clock_ns() < end) poll(NULL, 0, 1);
    const char *log = text_of(p.log);
    char lost[32];
    snprintf(lost, sizeof lost, "lost=%d\n", refused);
    assert_non_null(
        strstr(log, "lines of the access log are lost\" error=\"they come faster than they can be written\""));
    assert_non_null(strstr(log, lost));
    /* Stuck again at the end. */
    for (int i = 0; i < 5000; i++) put(w, line);
    t = gy_clock_ns();
    gy_log_writer_close(w, 200);
    assert_true(gy_clock_ns() - t < 20000000000);
    close(fd[0]), close(fd[1]);
    place_remove(&p);
}

/* The reader left: counted and said with the system's word, no signal, no end of the process. */
static void test_broken_pipe(void **state) {
    (void)state;
    place p;
    int fd[2];
    place_make(&p);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    close(fd[0]);
    gy_log_writer *w = open_writer(NULL, fd[1], 65536);
    for (int i = 0; i < 10; i++) assert_int_equal(put(w, "line\n"), 0);
    int64_t end = gy_clock_ns() + 20000000000;
    while (stats_of(w).n_failed < 10 && gy_clock_ns() < end) poll(NULL, 0, 1);
    assert_int_equal(stats_of(w).n_failed, 10);
    assert_int_equal(stats_of(w).n_line, 0);
    gy_log_writer_close(w, 1000);
    assert_non_null(strstr(text_of(p.log), "lines of the access log are lost\" error=\"Broken pipe\""));
    close(fd[1]);
    place_remove(&p);
}

static void test_full_disk(void **state) {
    (void)state;
    place p;
    place_make(&p);
    if (access("/dev/full", W_OK) != 0) skip();
    gy_log_writer *w = open_writer("/dev/full", -1, 65536);
    assert_int_equal(put(w, "line\n"), 0);
    int64_t end = gy_clock_ns() + 20000000000;
    while (stats_of(w).n_failed < 1 && gy_clock_ns() < end) poll(NULL, 0, 1);
    gy_log_writer_close(w, 1000);
    assert_non_null(strstr(text_of(p.log), "No space left on device"));
    place_remove(&p);
}

/* What logrotate does: rename, then the signal. No line is lost and none is in the wrong file. */
static void test_reopen(void **state) {
    (void)state;
    place p;
    struct stat st;
    place_make(&p);
    gy_log_set_level(GY_LOG_INFO);
    gy_log_writer *w = open_writer(p.path, -1, 65536);
    assert_int_equal(stat(p.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    for (int i = 0; i < 100; i++) put(w, "old\n");
    assert_int_equal(rename(p.path, p.moved), 0);
    put(w, "last\n");
    gy_log_writer_reopen(w);
    for (int i = 0; i < 100; i++) put(w, "new\n");
    wait_written(w, 201);
    const char *text = text_of(p.moved);
    assert_int_equal(strlen(text), 405);
    assert_string_equal(text + 396, "old\nlast\n");
    text = text_of(p.path);
    assert_int_equal(strlen(text), 400);
    assert_memory_equal(text, "new\n", 4);
    assert_null(strstr(text, "old"));
    /* It cannot be opened: the old one goes on. */
    unlink(p.path);
    assert_int_equal(mkdir(p.path, 0700), 0);
    gy_log_writer_reopen(w);
    put(w, "kept\n");
    wait_written(w, 202);
    assert_non_null(strstr(text_of(p.log), "the access log cannot be reopened: lines go to the file as it was"));
    assert_non_null(strstr(text_of(p.log), "Is a directory"));
    assert_int_equal(rmdir(p.path), 0);
    gy_log_writer_reopen(w);
    put(w, "again\n");
    gy_log_writer_close(w, 1000);
    assert_string_equal(text_of(p.path), "again\n");
    gy_log_set_level(GY_LOG_WARN);
    place_remove(&p);
}

static void test_open_errors(void **state) {
    (void)state;
    gy_log_writer *w = NULL;
    gy_err err = {0};
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    assert_int_equal(gy_log_writer_open("/no/such/folder/log", -1, 4096, &err, &w), GY_E_IO);
    assert_string_equal(err.msg, "/no/such/folder/log: cannot be opened for writing: No such file or directory");
    for (int n = 1; n <= 3; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_log_writer_open(NULL, STDERR_FILENO, 4096, &err, &w), GY_E_NOMEM);
        gy_mem_fail_after(0);
    }
    gy_log_writer_close(NULL, 0);
    gy_mem_get_stats(&after);
    assert_int_equal(after.live_bytes[GY_MEM_SERVER], before.live_bytes[GY_MEM_SERVER]);
    /* A line longer than all is not taken. */
    w = open_writer(NULL, STDERR_FILENO, 16);
    assert_int_equal(put(w, "0123456789ABC\n"), -1);
    gy_log_writer_reopen(w);
    gy_log_writer_close(w, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_long_line), cmocka_unit_test(test_stuck_reader),
        cmocka_unit_test(test_broken_pipe), cmocka_unit_test(test_full_disk), cmocka_unit_test(test_reopen),
        cmocka_unit_test(test_open_errors),
    };
    signal(SIGPIPE, SIG_IGN); /* as the program does */
    umask(022);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
