/* Processes around the coordinator: start, death in every way, respawn, stop. The workers are this program itself, with
 * a behaviour as argument; they speak the protocol and have no engine.
 */
#include "host_test.h"

#include "pd/alive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#ifdef __SANITIZE_THREAD__
/* Else a process with more than one thread sleeps for a second in its end. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "atexit_sleep_ms=0";
}
#endif

/* ---- the worker's side ------------------------------------------------------------------------------------------- */

static int n_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", "..", its own */
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* What a worker must find: 0 to 4 and nothing else, a clean environment, a parent whose end it will not survive. */
static const char *bad_surroundings(void) {
    int sig = 0;
    sigset_t mask;
    if (n_descriptors() != 5) return "descriptors";
    if (getenv("UCX_TLS") || getenv("SECRET")) return "environment";
    const char *errors = getenv("UCX_HANDLE_ERRORS"), *path = getenv("PATH");
    if (!errors || strcmp(errors, "none") != 0) return "UCX_HANDLE_ERRORS";
    if (!path || strcmp(path, "/bin:/usr/bin") != 0) return "PATH";
    prctl(PR_GET_PDEATHSIG, &sig);
    if (sig != SIGKILL) return "PDEATHSIG";
    if (getpgrp() != getpid()) return "process group";
    sigprocmask(SIG_BLOCK, NULL, &mask);
    if (sigismember(&mask, SIGTERM)) return "signal mask";
    return NULL;
}

static void crash(void) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(SIGSEGV, SIG_DFL); /* a sanitizer has a handler */
    raise(SIGSEGV);
}

static void touch(size_t bytes) {
    char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) _exit(9);
    madvise(m, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096) m[i] = 1;
}

/* In each life from 10 on. */
static void say_stats(gy_chan *c) {
    static int64_t n;
    n += 10;
    gy_msg m = {.kind = GY_MSG_STATS};
    m.stats = (gy_msg_stats){.n_pass = n, .kv_total = 64, .kv_free = 60, .wait_tok = 3, .n_depth = 2};
    m.stats.n_row_at[0][1] = 2 * n;
    m.stats.kv_plane[1] = 4;
    say(c, &m);
}

static _Noreturn void obey(gy_chan *c, const char *how) {
    for (;;) {
        gy_msg m;
        gy_status st = gy_chan_recv(c, NULL, &m);
        if (st == GY_AGAIN) {
            poll(&(struct pollfd){.fd = 3, .events = POLLIN}, 1, -1);
            continue;
        }
        if (st != GY_OK) _exit(0);
        if (m.kind == GY_MSG_STOP && strcmp(how, "stubborn") != 0) _exit(0);
        if (m.kind == GY_MSG_CONNECT) {
            gy_msg ok = {.kind = GY_MSG_CONNECTED, .peer = m.peer};
            say(c, &ok);
        }
        if (m.kind == GY_MSG_LOCAL && !strcmp(how, "crash-on-work")) crash();
        if (m.kind == GY_MSG_LOCAL && !strcmp(how, "counting")) say_stats(c);
        if (m.kind == GY_MSG_LOCAL) say_echo(c, &m);
    }
}

static int worker_main(const char *how, const char *role_text) {
    gy_err err = {0};
    gy_chan *c;
    int32_t role = !strcmp(role_text, "prefill") ? GY_PD_PREFILL : !strcmp(role_text, "decode") ? GY_PD_DECODE : 3;
    if (gy_chan_create(GY_HOST_CONTROL_FD, GY_CHAN_OUT_MAX, &err, &c) < 0) return 1;
    gy_msg f = {.kind = GY_MSG_FATAL};
    if (bad_surroundings()) {
        f.text = bad_surroundings();
        f.n_text = (int32_t)strlen(f.text);
        say(c, &f);
        _exit(3);
    }
    if (strcmp(how, "unheld") != 0) gy_alive_hold(GY_HOST_ALIVE_FD);
    if (!strcmp(how, "exit")) _exit(7); /* a sanitizer would look for leaks first */
    if (!strcmp(how, "fatal")) {
        f.text = "model: not a model";
        f.n_text = (int32_t)strlen(f.text);
        say(c, &f);
        _exit(1);
    }
    if (!strcmp(how, "silent")) pause();
    if (!strcmp(how, "garbage")) {
        if (write(3, "GET / HTTP/1.1\r\n\r\n", 18) != 18) return 1;
        pause();
    }
    if (!strcmp(how, "large")) touch((size_t)256 << 20);
    if (!strcmp(how, "stubborn")) signal(SIGTERM, SIG_IGN);
    say_ready(c, !strcmp(how, "wrong-role") ? 3 - role : role);
    if (!strcmp(how, "hang-up")) {
        poll(NULL, 0, 100);
        close(3);
        pause();
    }
    obey(c, how);
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

static gy_host_opts opts(const char *how, const char **argv, int n_prefill, int n_decode) {
    gy_host_opts o;
    gy_host_opts_default(&o);
    argv[0] = "fake";
    argv[1] = how;
    argv[2] = NULL;
    o.argv = argv;
    o.start_ms = 20000;
    o.stop_ms = 300;
    o.coord.n_worker = n_prefill + n_decode;
    o.coord.local_below = 1000; /* all prompts are computed where they are decoded */
    for (int i = 0; i < o.coord.n_worker; i++) o.coord.role[i] = i < n_prefill ? GY_PD_PREFILL : GY_PD_DECODE;
    return o;
}

static int n_children(void) {
    int n = 0, pid;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task");
    DIR *d = opendir(path);
    for (struct dirent *e; (e = readdir(d));) {
        char p[320];
        snprintf(p, sizeof p, "/proc/self/task/%s/children", e->d_name);
        FILE *f = fopen(p, "r");
        while (f && fscanf(f, "%d", &pid) == 1) n++;
        if (f) fclose(f);
    }
    closedir(d);
    return n;
}

static gy_host *open_host(const gy_host_opts *o) {
    gy_host *h = NULL;
    gy_err err = {0};
    if (gy_host_open(o, &err, &h) < 0) fail_msg("open: %s", err.msg);
    return h;
}

static void starts_works_and_stops(void **state) {
    (void)state;
    const char *argv[3];
    gy_host_opts o = opts("good", argv, 1, 2);
    o.stop_ms = 10000;
    gy_host *h = open_host(&o);
    assert_int_equal(n_children(), 3);
    for (int i = 0; i < 20; i++) {
        answer a[8];
        for (int k = 0; k < 8; k++) ask(h, &a[k]);
        for (int k = 0; k < 8; k++) {
            turn_until(h, is_answered, &a[k]);
            assert_echo(&a[k]);
        }
    }
    turn_until_done(h);
    int64_t t = gy_clock_ns();
    gy_host_close(h);
    assert_true(gy_clock_ns() - t < 9000000000); /* by STOP, not by the signals that come after 10 s */
    assert_int_equal(n_children(), 0);
}

static void what_cannot_start(void **state) {
    (void)state;
    static const struct {
        const char *how, *says;
    } cases[] = {{"exit", "(decode) did not start: it ended with exit code 7"},
                 {"fatal", "did not start: model: not a model"},
                 {"garbage", "a frame of 542393671 bytes"},
                 {"wrong-role", "another role"},
                 {"silent", "it was not ready after 0 s"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *argv[3];
        gy_host_opts o = opts(cases[i].how, argv, 0, 1);
        gy_err err = {0};
        gy_host *h = NULL;
        if (!strcmp(cases[i].how, "silent")) o.start_ms = 300;
        assert_int_equal(gy_host_open(&o, &err, &h), GY_E_PEER);
        if (!strstr(err.msg, cases[i].says)) fail_msg("%s: %s", cases[i].how, err.msg);
        assert_null(h);
        assert_int_equal(n_children(), 0);
    }
    const char *argv[3];
    gy_host_opts o = opts("good", argv, 1, 1);
    gy_err err = {0};
    gy_host *h = NULL;
    o.program = "/nowhere/gyre";
    assert_true(gy_host_open(&o, &err, &h) < 0);
    assert_non_null(strstr(err.msg, "/nowhere/gyre: cannot be run: No such file"));
    o.program = NULL;
    o.coord.n_worker = 0;
    assert_int_equal(gy_host_open(&o, &err, &h), GY_E_ARG);
    o.coord.n_worker = 1; /* the one that computes prompts */
    assert_int_equal(gy_host_open(&o, &err, &h), GY_E_ARG);
    assert_string_equal(err.msg, "workers: found none that decodes");
}

typedef struct victim {
    gy_host *h;
    int32_t i, n_death, n_start;
} victim;

static int is_dead(void *arg) {
    const victim *v = arg;
    gy_host_worker w;
    gy_host_get_worker(v->h, v->i, &w);
    return w.n_death >= v->n_death;
}

static int is_back(void *arg) {
    const victim *v = arg;
    gy_host_worker w;
    gy_host_get_worker(v->h, v->i, &w);
    return w.n_start >= v->n_start && w.state == GY_HOST_RUNNING;
}

static int is_dying(void *arg) {
    const victim *v = arg;
    gy_host_worker w;
    gy_host_get_worker(v->h, v->i, &w);
    return w.state == GY_HOST_DYING || w.n_death;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* kill -9: seen at once (of three times the soonest counts: the machine may be busy), replaced, and answers go on. */
static void killed(void **state) {
    (void)state;
    const char *argv[3];
    int64_t seen[3];
    for (int k = 0; k < 3; k++) {
        gy_host_opts o = opts("good", argv, 1, 2);
        gy_host *h = open_host(&o);
        victim v = {.h = h, .i = k, .n_death = 1, .n_start = 2};
        gy_host_worker w;
        gy_host_get_worker(h, k, &w);
        int64_t t = gy_clock_ns();
        kill(w.pid, SIGKILL);
        turn_until(h, is_dying, &v);
        seen[k] = gy_clock_ns() - t;
        turn_until(h, is_dead, &v);
        turn_until(h, is_back, &v);
        answer a;
        ask(h, &a);
        turn_until(h, is_answered, &a);
        assert_echo(&a);
        assert_int_equal(n_children(), 3);
        gy_host_close(h);
        assert_int_equal(n_children(), 0);
    }
    qsort(seen, 3, sizeof *seen, by_value);
    print_message("detection of a kill: median %.3f ms\n", (double)seen[1] * 1e-6);
    assert_true(seen[0] < 500000000); /* who waits here looks around each second, also when nothing rings */
}

/* What it had is answered by another one while the system still takes its memory back: it is dying, not dead. Where
 * this process runs too late to see that, again. */
static void answered_before_it_is_gone(void **state) {
    (void)state;
    int n_early = 0;
    for (int i = 0; i < 10 && !n_early; i++) {
        const char *argv[3];
        gy_host_opts o = opts("large", argv, 0, 2);
        o.coord.role[0] = o.coord.role[1] = GY_PD_PREFILL | GY_PD_DECODE;
        gy_host *h = open_host(&o);
        victim v = {.h = h, .i = 0, .n_death = 1};
        gy_host_worker w;
        gy_host_get_worker(h, 0, &w);
        answer a[2];
        kill(w.pid, SIGSTOP); /* it takes in, and says nothing */
        for (int k = 0; k < 2; k++) ask(h, &a[k]);
        for (int k = 0; k < 4; k++) gy_host_turn(h, NULL);
        kill(w.pid, SIGKILL);
        for (int k = 0; k < 2; k++) {
            turn_until(h, is_answered, &a[k]);
            assert_echo(&a[k]);
        }
        turn_until(h, is_dying, &v);
        gy_host_get_worker(h, 0, &w);
        n_early += !w.n_death;
        turn_until(h, is_dead, &v);
        gy_host_close(h);
        assert_int_equal(n_children(), 0);
    }
    assert_int_equal(n_early, 1);
}

/* One that holds nothing: its pidfd tells alone, as it does where the system has no early word. */
static void no_early_word(void **state) {
    (void)state;
    const char *argv[3];
    gy_host_opts o = opts("unheld", argv, 1, 1);
    gy_host *h = open_host(&o);
    victim v = {.h = h, .i = 1, .n_death = 1, .n_start = 2};
    gy_host_worker w;
    gy_host_get_worker(h, 1, &w);
    kill(w.pid, SIGKILL);
    turn_until(h, is_dead, &v);
    turn_until(h, is_back, &v);
    gy_host_close(h);
}

static gy_msg_stats stats_of(const gy_host *h) {
    gy_host_worker w;
    gy_host_get_worker(h, 1, &w);
    return w.stats;
}

/* What grows goes on from life to life; what is held goes with its holder, and a new one has all its blocks. */
static void counts_outlive_a_worker(void **state) {
    (void)state;
    const char *argv[3];
    gy_host_opts o = opts("counting", argv, 1, 1);
    gy_host *h = open_host(&o);
    assert_int_equal(stats_of(h).kv_free, 64); /* as READY has it */
    for (int life = 0; life < 2; life++) {
        answer a;
        for (int k = 0; k < 2; k++) {
            ask(h, &a);
            turn_until(h, is_answered, &a);
        }
        gy_msg_stats s = stats_of(h);
        assert_int_equal(s.n_pass, 20 * (life + 1));
        assert_int_equal(s.n_row_at[0][1], 40 * (life + 1));
        assert_int_equal(s.kv_free, 60);
        assert_int_equal(s.kv_plane[1], 4);
        victim v = {.h = h, .i = 1, .n_death = life + 1, .n_start = life + 2};
        gy_host_worker w;
        gy_host_get_worker(h, 1, &w);
        kill(w.pid, SIGKILL);
        turn_until(h, is_dead, &v);
        s = stats_of(h);
        assert_int_equal(s.n_pass, 20 * (life + 1));
        if (s.kv_total) assert_int_equal(s.kv_free, 64); /* it is back already */
        assert_int_equal(s.wait_tok + s.kv_plane[1], 0);
        turn_until(h, is_back, &v);
        assert_int_equal(stats_of(h).kv_free, 64);
        assert_int_equal(stats_of(h).n_row_at[0][1], 40 * (life + 1));
    }
    gy_host_close(h);
}

/* A worker that hangs up and lives on is killed; one that dies of the work takes the request's tries with it, and its
 * slot stays down after five deaths. */
static void bad_ends(void **state) {
    (void)state;
    const char *argv[3];
    gy_host_opts o = opts("stubborn", argv, 0, 2);
    o.coord.role[0] = o.coord.role[1] = GY_PD_PREFILL | GY_PD_DECODE;
    gy_host *h = open_host(&o);
    int64_t t = gy_clock_ns();
    gy_host_close(h);
    assert_true(gy_clock_ns() - t > 550000000); /* STOP and SIGTERM were tried */
    assert_int_equal(n_children(), 0);

    o = opts("crash-on-work", argv, 0, 1);
    o.coord.role[0] = GY_PD_PREFILL | GY_PD_DECODE;
    h = open_host(&o);
    answer a;
    ask(h, &a);
    turn_until(h, is_answered, &a);
    assert_int_equal(a.reason, GY_FINISH_ERROR);
    assert_int_equal(a.n_token, 0);
    gy_host_worker w;
    turn_until(h, is_dead, &(victim){.h = h, .n_death = GY_COORD_MAX_TRIES}); /* it may be dying yet */
    gy_host_get_worker(h, 0, &w);
    assert_int_equal(w.n_death, GY_COORD_MAX_TRIES);
    assert_non_null(a.text[0] ? a.text : NULL);
    ask(h, &a);
    gy_err err = {0};
    gy_status st = GY_OK;
    int64_t end = gy_clock_ns() + 20000000000;
    while (st >= 0 && gy_clock_ns() < end) {
        st = gy_host_turn(h, &err);
        if (st != GY_OK && st >= 0) poll(&(struct pollfd){.fd = gy_host_fd(h), .events = POLLIN}, 1, 1000);
    }
    assert_int_equal(st, GY_E_PEER);
    if (!strstr(err.msg, "no worker that decodes is left; the last one died 5 times: it was killed by signal 11"))
        fail_msg("%s", err.msg);
    gy_host_close(h);
    assert_int_equal(n_children(), 0);
}

static void hang_up(void **state) {
    (void)state;
    const char *argv[3];
    gy_host_opts o = opts("hang-up", argv, 0, 1);
    int64_t t = gy_clock_ns();
    gy_host *h = open_host(&o);
    victim v = {.h = h, .n_death = 1};
    turn_until(h, is_dead, &v);
    assert_true(gy_clock_ns() - t > 1000000000); /* it has a second to end by itself */
    gy_host_close(h);
    assert_int_equal(n_children(), 0);
}

static void open_and_wait_to_be_killed(int report) {
    const char *argv[3];
    gy_host_opts o = opts("stubborn", argv, 1, 1);
    gy_host *h = NULL;
    gy_err err = {0};
    if (gy_host_open(&o, &err, &h) < 0) _exit(9);
    for (int32_t i = 0; i < 2; i++) {
        gy_host_worker w;
        gy_host_get_worker(h, i, &w);
        if (write(report, &w.pid, sizeof w.pid) < 0) _exit(9);
    }
    pause();
    _exit(0);
}

/* Even a parent that is killed leaves nobody, nor does a stopped worker survive it. */
static void parent_is_killed(void **state) {
    (void)state;
    int p[2], status;
    pid_t child[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (!parent) open_and_wait_to_be_killed(p[1]);
    for (int i = 0; i < 2; i++) assert_int_equal(read(p[0], &child[i], sizeof child[i]), sizeof child[i]);
    assert_int_equal(kill(child[1], SIGSTOP), 0);
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    int64_t end = gy_clock_ns() + 20000000000;
    for (int i = 0; i < 2; i++) {
        char path[64], what[64] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", child[i]);
        for (;;) { /* gone, or a zombie that the init of this container does not reap */
            FILE *f = fopen(path, "r");
            if (!f) break;
            if (fscanf(f, "%*d %*s %63s", what) != 1) what[0] = 0;
            fclose(f);
            if (!strcmp(what, "Z")) break;
            if (gy_clock_ns() > end) fail_msg("worker %d still runs (%s)", i, what);
            poll(NULL, 0, 1);
        }
    }
    close(p[0]);
    close(p[1]);
}

/* The thread that opens a host may end before it. */
static void *open_in_thread(void *arg) {
    static const char *argv[3];
    gy_host_opts o = opts("good", argv, 1, 1);
    *(gy_host **)arg = open_host(&o);
    return NULL;
}

static void opener_ends(void **state) {
    (void)state;
    pthread_t t;
    gy_host *h = NULL;
    assert_int_equal(pthread_create(&t, NULL, open_in_thread, &h), 0);
    pthread_join(t, NULL);
    poll(NULL, 0, 50);
    answer a;
    ask(h, &a);
    turn_until(h, is_answered, &a);
    assert_echo(&a);
    for (int32_t i = 0; i < 2; i++) {
        gy_host_worker w;
        gy_host_get_worker(h, i, &w);
        assert_int_equal(w.n_death, 0);
    }
    gy_host_close(h);
}

/* A program that ignores SIGCHLD, or waits for any child, changes nothing. */
static void foreign_sigchld(void **state) {
    (void)state;
    const char *argv[3];
    signal(SIGCHLD, SIG_IGN);
    gy_host_opts o = opts("good", argv, 0, 1);
    gy_host *h = open_host(&o);
    gy_host_worker w;
    gy_host_get_worker(h, 0, &w);
    victim v = {.h = h, .n_death = 1, .n_start = 2};
    kill(w.pid, SIGKILL);
    turn_until(h, is_dead, &v);
    turn_until(h, is_back, &v);
    gy_host_close(h);
    int64_t end = gy_clock_ns() + 20000000000; /* the system takes them off its list a moment after it says so */
    while (n_children() && gy_clock_ns() < end) poll(NULL, 0, 1);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(n_children(), 0);
}

static int n_open(void) {
    return n_descriptors();
}

static int check_open(void **state) {
    *state = (void *)(intptr_t)n_open();
    return 0;
}

static int check_closed(void **state) {
    int n = n_open();
    if (n != (int)(intptr_t)*state) print_error("%d descriptors, %d before\n", n, (int)(intptr_t)*state);
    return n != (int)(intptr_t)*state;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, check_open, check_closed)

int main(int argc, char **argv) {
    if (argc > 3 && !strcmp(argv[2], "--role")) return worker_main(argv[1], argv[3]);
    const struct CMUnitTest tests[] = {
        TEST(starts_works_and_stops),
        TEST(what_cannot_start),
        TEST(killed),
        TEST(answered_before_it_is_gone),
        TEST(no_early_word),
        TEST(counts_outlive_a_worker),
        TEST(bad_ends),
        TEST(hang_up),
        TEST(parent_is_killed),
        TEST(opener_ends),
        TEST(foreign_sigchld),
    };
    setenv("UCX_TLS", "tcp", 1);
    setenv("SECRET", "x", 1);
    setenv("PATH", "/bin:/usr/bin", 1);
    int leaked = open("/dev/null", O_RDONLY); /* without CLOEXEC: a program's own descriptor */
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    close(leaked);
    return rc;
}
