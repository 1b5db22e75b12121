/* A worker that says FATAL in the middle of its work. The workers are this program itself; one of them, whichever gets
 * work first, says a few tokens and then that it cannot go on. What it had begins again elsewhere, tokens that were
 * told are not told twice, the others notice nothing, it is replaced, and its own words are in the log: whether it ends
 * then, as it should, or hangs in its own end, as with a device that does not answer any more.
 */
#include "host_test.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdlib.h>

static const char words[] = "the device has fallen off the bus";

/* ---- the worker's side ------------------------------------------------------------------------------------------- */

static void say_some(gy_chan *c, const gy_msg *in) {
    gy_msg m = {.kind = GY_MSG_TOKEN, .tid = in->tid};
    for (int32_t i = 0; i < 2; i++) {
        m.token = (gy_msg_token){.index = i, .token = in->request.r.prompt[i], .loops = 4};
        say(c, &m);
    }
}

static _Noreturn void give_up(gy_chan *c, const char *how) {
    gy_msg m = {.kind = GY_MSG_FATAL, .status = GY_E_DEVICE, .text = words, .n_text = (int32_t)strlen(words)};
    say(c, &m);
    while (!strcmp(how, "hangs")) pause();
    _exit(1);
}

static _Noreturn void work(gy_chan *c, const char *how, const char *marker) {
    for (;;) {
        gy_msg m;
        gy_status st = gy_chan_recv(c, NULL, &m);
        if (st == GY_AGAIN) {
            poll(&(struct pollfd){.fd = GY_HOST_CONTROL_FD, .events = POLLIN}, 1, -1);
            continue;
        }
        if (st != GY_OK || m.kind == GY_MSG_STOP) _exit(0);
        if (m.kind == GY_MSG_CONNECT) say(c, &(gy_msg){.kind = GY_MSG_CONNECTED, .peer = m.peer});
        if (m.kind != GY_MSG_LOCAL) continue;
        if (open(marker, O_CREAT | O_EXCL | O_CLOEXEC | O_RDWR, 0600) >= 0) { /* the first one */
            say_some(c, &m);
            give_up(c, how);
        }
        say_echo(c, &m);
    }
}

static int worker_main(char **argv) {
    gy_chan *c;
    if (gy_chan_create(GY_HOST_CONTROL_FD, GY_CHAN_OUT_MAX, NULL, &c) < 0) return 1;
    signal(SIGTERM, !strcmp(argv[1], "hangs") ? SIG_IGN : SIG_DFL);
    say_ready(c, GY_PD_PREFILL | GY_PD_DECODE);
    work(c, argv[1], argv[2]);
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

static gy_host *open_host(const char *how, const char *marker) {
    const char *argv[] = {"fake", how, marker, NULL};
    gy_host_opts o;
    gy_host *h = NULL;
    gy_err err = {0};
    gy_host_opts_default(&o);
    o.argv = argv;
    o.start_ms = 20000;
    o.stop_ms = 300;
    o.coord.n_worker = 2;
    o.coord.role[0] = o.coord.role[1] = GY_PD_PREFILL | GY_PD_DECODE;
    if (gy_host_open(&o, &err, &h) < 0) fail_msg("open: %s", err.msg);
    return h;
}

static int one_was_replaced(void *arg) {
    gy_host_worker w[2];
    for (int i = 0; i < 2; i++) gy_host_get_worker(arg, i, &w[i]);
    return w[0].n_death + w[1].n_death == 1 && w[0].state == GY_HOST_RUNNING && w[1].state == GY_HOST_RUNNING;
}

static void expect_words(int log) {
    char text[4096], want[200];
    ssize_t n = pread(log, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    snprintf(want, sizeof want, "why=\"%s\"", words);
    if (!strstr(text, "a worker died") || !strstr(text, want)) fail_msg("%s", text);
}

static void run(const char *how) {
    enum { N = 8 };
    char marker[] = "/tmp/gyre-fatal-XXXXXX", path[] = "/tmp/gyre-fatal-log-XXXXXX";
    answer a[N];
    int log = mkstemp(path), first = mkstemp(marker);
    assert_true(log >= 0 && first >= 0);
    close(first);
    unlink(marker);
    gy_log_set_fd(log);
    gy_host *h = open_host(how, marker);
    for (int i = 0; i < N; i++) ask(h, &a[i]);
    int64_t begun = gy_clock_ns();
    for (int i = 0; i < N; i++) {
        turn_until(h, is_answered, &a[i]);
        assert_echo(&a[i]);
    }
    turn_until(h, one_was_replaced, h);
    assert_true(gy_clock_ns() - begun < 15000000000); /* a second and a start, not a deadline of 30 s */
    gy_coord_stats s;
    gy_coord_get_stats(gy_host_coord(h), &s);
    assert_true(s.n_retry >= 1 && s.n_retry < N);
    assert_int_equal(s.n_swallowed, 2);
    ask(h, &a[0]);
    turn_until(h, is_answered, &a[0]);
    assert_echo(&a[0]);
    gy_host_close(h);
    expect_words(log);
    gy_log_set_fd(STDERR_FILENO);
    close(log), unlink(path), unlink(marker);
}

static void it_ends(void **state) {
    (void)state;
    run("ends");
}

static void it_hangs(void **state) {
    (void)state;
    run("hangs");
}

int main(int argc, char **argv) {
    if (argc > 4 && !strcmp(argv[3], "--role")) return worker_main(argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_ends), cmocka_unit_test(it_hangs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
