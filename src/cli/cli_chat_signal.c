/* The marks below are the one state of this program that changes outside its functions' arguments: a handler has no
 * other way to tell. They are written before the byte goes into the pipe, and read after it came out.
 */
#include "cli/cli_chat_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { N_SIGNALS = 4 };
static const int caught[N_SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};

static struct {
    volatile sig_atomic_t interrupt, resize, stop, ending;
    int pipe[2];
    _Atomic(gy_oai *) client;
    struct sigaction before[N_SIGNALS];
} marks;

static void on_signal(int signo) {
    int saved = errno;
    if (signo == SIGINT)
        marks.interrupt = 1;
    else if (signo == SIGWINCH)
        marks.resize = 1;
    else if (signo == SIGTSTP)
        marks.stop = 1;
    else
        marks.ending = 1;
    ssize_t n = write(marks.pipe[1], "", 1); /* full: whoever waits has enough to wake up */
    (void)n;
    gy_oai *c = atomic_load(&marks.client);
    if (c) gy_oai_wake(c);
    errno = saved;
}

gy_status gy_chat_signals_begin(gy_err *err) {
    if (pipe2(marks.pipe, O_CLOEXEC | O_NONBLOCK))
        return gy_err_set(err, GY_E_IO, "no pipe for signals: %s", strerrordesc_np(errno));
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction on = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        /* A terminal that takes nothing holds up the end: the second one need not wait for it. */
        if (caught[i] == SIGTERM) on.sa_flags |= (int)SA_RESETHAND;
        sigaction(caught[i], &on, &marks.before[i]);
    }
    return GY_OK;
}

void gy_chat_signals_end(void) {
    for (int i = 0; i < N_SIGNALS; i++) sigaction(caught[i], &marks.before[i], NULL);
    close(marks.pipe[0]);
    close(marks.pipe[1]);
}

void gy_chat_signals_client(gy_oai *c) {
    atomic_store(&marks.client, c);
}

static int took(volatile sig_atomic_t *mark) {
    int was = *mark;
    if (was) *mark = 0;
    return was;
}

int gy_chat_took_interrupt(void) {
    return took(&marks.interrupt);
}

int gy_chat_took_resize(void) {
    return took(&marks.resize);
}

int gy_chat_took_stop(void) {
    return took(&marks.stop);
}

int gy_chat_is_ending(void) {
    return marks.ending;
}

void gy_chat_signals_hold_stop(int on) {
    struct sigaction act = {.sa_handler = on ? on_signal : SIG_DFL, .sa_flags = SA_RESTART};
    sigaction(SIGTSTP, &act, NULL);
}

int gy_chat_wait_readable(int fd) {
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = marks.pipe[0], .events = POLLIN}};
    if (poll(p, 2, -1) < 0 && errno != EINTR) return -1;
    char rest[64];
    if (p[1].revents) {
        while (read(marks.pipe[0], rest, sizeof rest) > 0) {
        }
        return 0;
    }
    return p[0].revents & POLLNVAL ? -1 : p[0].revents != 0;
}
