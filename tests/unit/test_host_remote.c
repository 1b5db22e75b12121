/* Workers that a host dials: they join, leave, fall silent, talk nonsense, know another secret, serve somebody else,
 * come back. The workers are forks of this program behind sockets of the loopback device, over TLS; they speak the
 * protocol and have no engine. Discovery is a file.
 */
#include "host_test.h"

#include "pd/host_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MAX_FAKES = 4 };

typedef struct fake {
    pid_t pid; /* 0: nobody */
    int port;
    int32_t role;
    const char *how;
} fake;

typedef struct town {
    char dir[64], peers[96];
    gy_secret secret;
    fake f[MAX_FAKES];
    int n;
    int calls; /* a byte for each call that a "closer" takes */
    gy_disc *disc;
    gy_host *h;
} town;

/* ---- the worker's side ------------------------------------------------------------------------------------------- */

static int wait_for(gy_chan *c) {
    struct pollfd p = {.fd = gy_chan_fd(c), .events = POLLIN};
    if (gy_chan_has_output(c)) p.events |= POLLOUT;
    poll(&p, 1, -1);
    return gy_chan_has_output(c) && gy_chan_flush(c, NULL) < 0 ? -1 : 0;
}

static int shake_hands(gy_chan *c) {
    gy_msg m;
    while (!gy_chan_is_open(c)) {
        if (gy_chan_recv(c, NULL, &m) != GY_AGAIN) return -1;
        if (!gy_chan_is_open(c) && wait_for(c) < 0) return -1;
    }
    return 0;
}

static void say_kind(gy_chan *c, gy_msg_kind k) {
    say(c, &(gy_msg){.kind = k});
}

static void say_fatal(gy_chan *c) {
    static const char text[] = "this worker serves another coordinator";
    say(c, &(gy_msg){.kind = GY_MSG_FATAL, .text = text, .n_text = (int32_t)sizeof text - 1});
}

/* One step for each request of this life. */
static void say_stats(gy_chan *c, int is_first) {
    static int64_t n;
    n = is_first ? 0 : n + 1;
    say(c, &(gy_msg){.kind = GY_MSG_STATS, .stats = {.n_step = n}});
}

/* Answers a request behind its second PING: until then it holds it. */
static void hold(gy_chan *c, const gy_msg *m) {
    static int32_t prompt[3];
    static gy_msg held;
    static int n_ping;
    if (m->kind == GY_MSG_LOCAL) {
        memcpy(prompt, m->request.r.prompt, sizeof prompt);
        held = *m;
        held.request.r.prompt = prompt;
        n_ping = 0;
    } else if (m->kind == GY_MSG_PING && held.kind == GY_MSG_LOCAL && ++n_ping == 2) {
        say_echo(c, &held);
        held.kind = GY_MSG_STOP;
    }
}

static void hear(gy_chan *c, const char *how, const gy_msg *m) {
    if (m->kind == GY_MSG_PING && strcmp(how, "silent") != 0) say_kind(c, GY_MSG_PONG);
    if (m->kind == GY_MSG_CONNECT) say(c, &(gy_msg){.kind = GY_MSG_CONNECTED, .peer = m->peer});
    if (!strcmp(how, "slow")) hold(c, m);
    if (m->kind != GY_MSG_LOCAL || !strcmp(how, "slow")) return;
    if (!strcmp(how, "hanging")) {
        say_fatal(c); /* and answers each PING from then on */
        return;
    }
    if (!strcmp(how, "leaver") || !strcmp(how, "stubborn")) say_kind(c, GY_MSG_LEAVING); /* and ends what it has */
    say_stats(c, 0);
    say_echo(c, m);
}

static void live(gy_chan *c, const fake *f) {
    if (shake_hands(c) < 0) return;
    static int n_life;
    n_life++;
    if (!strcmp(f->how, "busy") || (!strcmp(f->how, "busy first") && n_life == 1)) say_fatal(c);
    if (!strcmp(f->how, "busy first") && n_life > 1) say_ready(c, f->role);
    if (!strcmp(f->how, "good") || !strcmp(f->how, "silent") || !strcmp(f->how, "leaver") ||
        !strcmp(f->how, "garbage") || !strcmp(f->how, "hanging") || !strcmp(f->how, "slow") ||
        !strcmp(f->how, "stubborn"))
        say_ready(c, f->role);
    if (!strcmp(f->how, "good")) say_stats(c, 1);
    if (!strcmp(f->how, "garbage") && write(gy_chan_fd(c), "GET / HTTP/1.1\r\n\r\n", 18) != 18) return;
    for (;;) {
        gy_msg m;
        gy_status st = gy_chan_recv(c, NULL, &m);
        if (st == GY_AGAIN && wait_for(c) == 0) continue;
        if (st != GY_OK || (m.kind == GY_MSG_STOP && strcmp(f->how, "stubborn") != 0)) return;
        hear(c, f->how, &m);
    }
}

static _Noreturn void fake_main(const town *t, const fake *f, int fd) {
    gy_secret s = t->secret;
    gy_chan *c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!strcmp(f->how, "stranger")) s.key[0] ^= 1;
    for (;;) {
        int in = accept(fd, NULL, NULL);
        if (!strcmp(f->how, "closer")) {
            if (write(t->calls, "x", 1) != 1) _exit(1);
            close(in);
            continue;
        }
        if (gy_chan_create_secret(in, 1, &s, GY_CHAN_OUT_MAX, NULL, &c) < 0) _exit(1);
        live(c, f);
        gy_chan_destroy(c);
    }
}

/* ---- the town ---------------------------------------------------------------------------------------------------- */

static int bind_port(int port, int *port_out) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof a;
    const int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port_out = ntohs(a.sin_port);
    return fd;
}

static void begin(town *t, int i) {
    fake *f = &t->f[i];
    int fd = bind_port(f->port, &f->port);
    assert_int_equal(listen(fd, 16), 0);
    f->pid = fork();
    if (!f->pid) fake_main(t, f, fd);
    close(fd);
}

static int add(town *t, const char *how, int32_t role) {
    t->f[t->n] = (fake){.role = role, .how = how};
    begin(t, t->n);
    return t->n++;
}

static void end(town *t, int i) {
    int status;
    if (!t->f[i].pid) return;
    kill(t->f[i].pid, SIGKILL);
    assert_int_equal(waitpid(t->f[i].pid, &status, 0), t->f[i].pid);
    t->f[i].pid = 0;
}

/* By a rename: nobody ever sees half of it. */
static void list(const town *t, unsigned who, const char *more) {
    char path[112];
    snprintf(path, sizeof path, "%s.new", t->peers);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < t->n; i++)
        if (who >> i & 1) fprintf(f, "127.0.0.1:%d  # %s\n", t->f[i].port, t->f[i].how);
    fprintf(f, "%s", more);
    fclose(f);
    assert_int_equal(rename(path, t->peers), 0);
}

static void found(town *t) {
    *t = (town){.dir = "/tmp/gyre-host-XXXXXX", .calls = -1};
    assert_non_null(mkdtemp(t->dir));
    snprintf(t->peers, sizeof t->peers, "%s/peers", t->dir);
    memset(t->secret.key, 7, sizeof t->secret.key);
}

static void open_disc(town *t) {
    gy_err err = {0};
    gy_disc_opts d = {.file = t->peers};
    if (gy_disc_open(&d, &err, &t->disc) < 0) fail_msg("%s", err.msg);
}

static gy_host_opts opts(town *t) {
    gy_host_opts o;
    gy_host_opts_default(&o);
    open_disc(t);
    o.coord.local_below = 1000; /* all prompts are computed where they are decoded */
    o.disc = t->disc;
    o.secret = &t->secret;
    o.start_ms = 10000;
    o.stop_ms = 300;
    o.peer_ms = 1000;
    return o;
}

static void open_town(town *t, const gy_host_opts *o) {
    gy_err err = {0};
    if (gy_host_open(o, &err, &t->h) < 0) fail_msg("%s", err.msg);
}

static void close_town(town *t) {
    gy_host_close(t->h);
    gy_disc_close(t->disc);
    for (int i = 0; i < t->n; i++) end(t, i);
    if (t->calls >= 0) close(t->calls);
    unlink(t->peers);
    assert_int_equal(rmdir(t->dir), 0);
}

static int count(const town *t, gy_host_state state) {
    int n = 0;
    for (int32_t i = 0; i < gy_host_n_worker(t->h); i++) {
        gy_host_worker w;
        gy_host_get_worker(t->h, i, &w);
        n += w.state == state;
    }
    return n;
}

/* The slot of the worker at that port. */
static gy_host_worker worker_at(const town *t, int fake_index) {
    char address[32];
    gy_host_worker w = {0};
    snprintf(address, sizeof address, "127.0.0.1:%d", t->f[fake_index].port);
    for (int32_t i = 0; i < gy_host_n_worker(t->h); i++) {
        gy_host_get_worker(t->h, i, &w);
        if (w.state != GY_HOST_EMPTY && !strcmp(w.address, address)) return w;
    }
    return (gy_host_worker){0};
}

typedef struct wish {
    town *t;
    int i, n_running, n_empty, n_death, n_start;
} wish;

static int is_so(void *arg) {
    const wish *w = arg;
    if (w->n_running && count(w->t, GY_HOST_RUNNING) != w->n_running) return 0;
    if (w->n_empty && count(w->t, GY_HOST_EMPTY) != w->n_empty) return 0;
    gy_host_worker k = worker_at(w->t, w->i);
    return k.n_death >= w->n_death && k.n_start >= w->n_start;
}

static void until(town *t, wish w) {
    w.t = t;
    turn_until(t->h, is_so, &w);
}

static void ask_one(town *t) {
    answer a;
    ask(t->h, &a);
    turn_until(t->h, is_answered, &a);
    assert_echo(&a);
}

/* Turns for so long, whatever happens. */
static int time_is_up(void *arg) {
    return gy_clock_ns() >= *(int64_t *)arg;
}

static void turn_for(town *t, int64_t ms) {
    int64_t end_ns = gy_clock_ns() + ms * 1000000;
    gy_err err = {0};
    while (!time_is_up(&end_ns)) {
        gy_status st = gy_host_turn(t->h, &err);
        if (st < 0) fail_msg("turn: %s", err.msg);
        if (st != GY_OK) poll(&(struct pollfd){.fd = gy_host_fd(t->h), .events = POLLIN}, 1, 20);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void joins_works_and_stops(void **state) {
    (void)state;
    town t;
    found(&t);
    int p = add(&t, "good", GY_PD_PREFILL), d = add(&t, "good", GY_PD_DECODE);
    list(&t, 3, "");
    gy_host_opts o = opts(&t);
    o.stop_ms = 10000;
    open_town(&t, &o);
    assert_int_equal(count(&t, GY_HOST_RUNNING), 2);
    assert_int_equal(worker_at(&t, p).role, GY_PD_PREFILL);
    assert_int_equal(worker_at(&t, d).role, GY_PD_DECODE);
    for (int i = 0; i < 20; i++) ask_one(&t);
    turn_for(&t, 700); /* PING and PONG */
    assert_int_equal(worker_at(&t, d).n_death + worker_at(&t, p).n_death, 0);
    int64_t ns = gy_clock_ns();
    gy_host_close(t.h);
    assert_true(gy_clock_ns() - ns < 9000000000); /* they were told, and hung up: else it waits for stop_ms */
    t.h = NULL;
    close_town(&t);
}

/* Nobody is ready: why. On a busy machine those who are there may not have been heard by start_ms: once more, with four
 * times as much of it. */
static void expect_no_open(town *t, gy_host_opts o, const char *const says[], int n) {
    gy_err err = {0};
    int missing = 0;
    for (int turn = 0; turn < 2; turn++, o.start_ms *= 4) {
        assert_int_equal(gy_host_open(&o, &err, &t->h), GY_E_PEER);
        missing = -1;
        for (int k = 0; k < n && says[k]; k++)
            if (!strstr(err.msg, says[k])) missing = k;
        if (missing < 0) return;
        gy_disc_close(t->disc); /* it tells each once */
        open_disc(t);
        o.disc = t->disc;
    }
    fail_msg("%s: not in %s", says[missing], err.msg);
}

/* Each is told why nobody is ready, with what was found at each address. */
static void what_cannot_open(void **state) {
    (void)state;
    static const struct {
        const char *how;
        int32_t role;
        const char *says[3];
    } cases[] = {
        {"good",
         GY_PD_DECODE,
         {"no worker is ready that computes prompts (1 listed, 0 ready that compute prompts, 1 that"}},
        {"good", GY_PD_PREFILL, {"no worker is ready that decodes (1 listed, 1 ready"}},
        {"busy", GY_PD_DECODE, {"computes prompts or decodes", "this worker serves another coordinator"}},
        {"stranger", GY_PD_DECODE, {"computes prompts or decodes (1 listed, 0 ready", "secret"}},
        {"mute", GY_PD_DECODE, {"it did not answer within 0.2 s"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        town t;
        found(&t);
        add(&t, cases[i].how, cases[i].role);
        list(&t, 1, "");
        gy_host_opts o = opts(&t);
        o.start_ms = 400;
        if (!strcmp(cases[i].how, "mute")) o.peer_ms = 100;
        expect_no_open(&t, o, cases[i].says, 3);
        close_town(&t);
    }
}

static void nobody_there(void **state) {
    (void)state;
    town t;
    gy_err err = {0};
    int port;
    char more[128];
    found(&t);
    close(bind_port(0, &port));
    snprintf(more, sizeof more, "127.0.0.1:%d\nno..where:7000\n", port);
    list(&t, 0, more);
    gy_host_opts o = opts(&t);
    o.start_ms = 1000;
    assert_int_equal(gy_host_open(&o, &err, &t.h), GY_E_PEER);
    if (!strstr(err.msg, "after 1 s") || !strstr(err.msg, "2 listed") || !strstr(err.msg, ": Connection refused"))
        fail_msg("%s", err.msg);
    if (!strstr(err.msg, "no..where:7000: its name cannot be resolved: ")) fail_msg("%s", err.msg);
    close_town(&t);
    found(&t);
    list(&t, 0, "# nobody yet\n");
    o = opts(&t);
    o.start_ms = 100;
    assert_int_equal(gy_host_open(&o, &err, &t.h), GY_E_PEER);
    if (!strstr(err.msg, "(0 listed")) fail_msg("%s", err.msg);
    close_town(&t);
}

static gy_status accept_small(void *user, const gy_msg_ready *r, gy_err *err) {
    (*(int *)user)++;
    return r->info.n_vocab == 99 ? GY_OK : gy_err_set(err, GY_E_ARG, "n_vocab: found %d, expected 99", r->info.n_vocab);
}

/* One that is refused is dialled again after 5 s, not sooner. */
static void another_model(void **state) {
    (void)state;
    static const char *const says[] = {": n_vocab: found 100, expected 99"};
    town t;
    int n = 0;
    found(&t);
    add(&t, "good", GY_PD_PREFILL | GY_PD_DECODE);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.start_ms = 800;
    o.accept = accept_small;
    o.user = &n;
    expect_no_open(&t, o, says, 1);
    assert_int_equal(n, 1);
    close_town(&t);
}

/* Calls that one which hangs up takes in two seconds. */
static ssize_t count_calls(void) {
    town t;
    gy_err err = {0};
    int p[2];
    char calls[256];
    found(&t);
    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    t.calls = p[1];
    add(&t, "closer", GY_PD_DECODE);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.start_ms = 2000;
    assert_int_equal(gy_host_open(&o, &err, &t.h), GY_E_PEER);
    ssize_t n = read(p[0], calls, sizeof calls);
    close(p[0]);
    close_town(&t);
    return n;
}

/* Waits grow: after 0, 0.1, 0.3, 0.7 and 1.5 s, each somewhat more or less. A busy machine may make them fewer: again.
 */
static void dials_ever_more_seldom(void **state) {
    (void)state;
    ssize_t n = 0;
    for (int i = 0; i < 3 && n < 4; i++) {
        n = count_calls();
        assert_true(n <= 6);
    }
    assert_true(n >= 4);
}

/* While requests run: one joins, one is taken out and ends what it has, and nobody is called dead. */
static int64_t steps(const gy_host *h) {
    int64_t n = 0;
    for (int32_t i = -1; i < gy_host_n_worker(h); i++) n += gy_host_look(h, i)->stats.n_step;
    return n;
}

static void joins_and_leaves(void **state) {
    (void)state;
    town t;
    answer a[8];
    found(&t);
    int d0 = add(&t, "good", 3), d1 = add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    ask_one(&t);
    list(&t, 3, "");
    until(&t, (wish){.n_running = 2});
    for (int k = 0; k < 8; k++) ask(t.h, &a[k]);
    list(&t, 2, "");
    until(&t, (wish){.n_running = 1, .n_empty = GY_COORD_MAX_WORKERS - 1});
    for (int k = 0; k < 8; k++) {
        turn_until(t.h, is_answered, &a[k]);
        assert_echo(&a[k]);
    }
    assert_int_equal(worker_at(&t, d0).n_start, 0);
    assert_int_equal(worker_at(&t, d1).n_start, 1);
    assert_int_equal(steps(t.h), 9); /* what d0 did counts on */
    assert_true(gy_host_look(t.h, -1)->stats.n_step > 0);
    gy_coord_stats s;
    gy_coord_get_stats(gy_host_coord(t.h), &s);
    assert_int_equal(s.n_death, 0);
    assert_int_equal(s.n_retry, 0);
    list(&t, 3, ""); /* and back again: it waits for the next one */
    until(&t, (wish){.i = d0, .n_running = 2, .n_start = 1});
    ask_one(&t);
    assert_int_equal(steps(t.h), 10);
    close_town(&t);
}

/* LEAVING: it is let go when it has nothing left, and dialled again: that is no death. */
static void says_that_it_leaves(void **state) {
    (void)state;
    town t;
    found(&t);
    int l = add(&t, "leaver", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    for (int i = 1; i <= 3; i++) {
        ask_one(&t);
        until(&t, (wish){.i = l, .n_start = i + 1, .n_running = 1});
    }
    assert_int_equal(worker_at(&t, l).n_death, 0);
    close_town(&t);
}

/* STOP comes when it holds nothing, not before: nothing is begun again. */
static void leaves_with_work(void **state) {
    (void)state;
    town t;
    answer a;
    found(&t);
    add(&t, "slow", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    ask(t.h, &a);
    turn_for(&t, 50);
    list(&t, 0, "# nobody\n");
    turn_until(t.h, is_answered, &a);
    assert_echo(&a);
    until(&t, (wish){.n_empty = GY_COORD_MAX_WORKERS});
    gy_coord_stats s;
    gy_coord_get_stats(gy_host_coord(t.h), &s);
    assert_int_equal(s.n_retry, 0);
    assert_int_equal(s.n_death, 0);
    close_town(&t);
}

/* It is told to stop and stays: it is cut off after stop_ms, which is no death either. */
static void told_and_stays(void **state) {
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "stubborn", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    int64_t ns = gy_clock_ns();
    ask_one(&t);
    until(&t, (wish){.i = v, .n_start = 2});
    assert_true(gy_clock_ns() - ns >= 300000000);
    assert_int_equal(worker_at(&t, v).n_death, 0);
    close_town(&t);
}

/* kill -9: seen at once by the hang-up; what it had goes on elsewhere, or waits until it is back. */
static void killed_and_back(void **state) {
    (void)state;
    town t;
    answer a;
    found(&t);
    int v = add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.peer_ms = 60000;
    open_town(&t, &o);
    end(&t, v);
    until(&t, (wish){.i = v, .n_death = 1}); /* within 20 s: not because it does not answer */
    ask(t.h, &a);
    turn_for(&t, 400); /* nobody decodes: requests wait, the engine is not lost */
    assert_int_equal(a.n_finish, 0);
    begin(&t, v);
    until(&t, (wish){.i = v, .n_start = 2});
    turn_until(t.h, is_answered, &a);
    assert_echo(&a);
    assert_int_equal(worker_at(&t, v).n_death, 1);
    assert_int_equal(t.h->slot[0].r.n_dial, 0); /* next time it is dialled soon again */
    close_town(&t);
}

static int after_some_asks(void *user) {
    return ++*(int *)user > 3;
}

static void given_up(void **state) {
    (void)state;
    town t;
    gy_err err = {0};
    int n = 0;
    found(&t);
    list(&t, 0, "# nobody\n");
    gy_host_opts o = opts(&t);
    o.should_stop = after_some_asks;
    o.should_stop_user = &n;
    o.start_ms = 60000;
    int64_t ns = gy_clock_ns();
    assert_int_equal(gy_host_open(&o, &err, &t.h), GY_E_CANCELLED);
    assert_string_equal(err.msg, "stopped while it waited for workers");
    assert_true(gy_clock_ns() - ns < 30000000000);
    close_town(&t);
}

/* Its host answers, so a long step is no death: only stall_ms counts. */
static void busy_is_not_dead(void **state) {
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "silent", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.peer_ms = 200;
    open_town(&t, &o);
    turn_for(&t, 1000);
    assert_int_equal(worker_at(&t, v).n_death, 0);
    assert_int_equal(worker_at(&t, v).n_start, 1);
    close_town(&t);
}

static void stopped_as_a_whole(void **state) { /* the process is there, and says nothing */
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "silent", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.stall_ms = 400;
    int64_t ns = gy_clock_ns();
    open_town(&t, &o);
    until(&t, (wish){.i = v, .n_death = 2, .n_start = 3});
    assert_true(gy_clock_ns() - ns >= 800000000);
    close_town(&t);
}

static void nonsense(void **state) {
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "garbage", 3);
    add(&t, "good", 3);
    list(&t, 3, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    until(&t, (wish){.i = v, .n_death = 2});
    ask_one(&t); /* by the other one */
    close_town(&t);
}

/* Its host is there, it answers, and it does nothing any more: what it held goes elsewhere at once. */
static void fatal_and_alive(void **state) {
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "hanging", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    answer a;
    ask(t.h, &a);
    until(&t, (wish){.i = v, .n_death = 1}); /* within 20 s, not stall_ms */
    add(&t, "good", 3);
    list(&t, 2, "");
    turn_until(t.h, is_answered, &a);
    assert_echo(&a);
    close_town(&t);
}

static int is_refused(void *arg) {
    const town *t = arg;
    return t->h->slot[1].w.state == GY_HOST_DOWN && t->h->slot[1].r.is_refused;
}

/* Who was refused by FATAL is a new one on the next call. */
static void refused_and_back(void **state) {
    (void)state;
    town t;
    found(&t);
    add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    int v = add(&t, "busy first", 3);
    list(&t, 3, "");
    int64_t ns = gy_clock_ns();
    turn_until(t.h, is_refused, &t);
    gy_slot *s = &t.h->slot[1];
    assert_true(s->due_ns > ns + 3000000000); /* that wait is not waited for here */
    s->due_ns = 0;
    until(&t, (wish){.i = v, .n_running = 2, .n_start = 1});
    close_town(&t);
}

/* A listener whose queue is full: who dials it neither gets in nor hears no. */
static int fill(int *port, int caller[2]) {
    int fd = bind_port(0, port);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(listen(fd, 0), 0);
    for (int i = 0; i < 2; i++) {
        caller[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(caller[i], (struct sockaddr *)&a, sizeof a) < 0) assert_int_equal(errno, EINPROGRESS);
    }
    return fd;
}

static int count_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int is_dialled(void *arg) {
    const town *t = arg;
    return t->h->slot[1].w.state == GY_HOST_DIALLING && t->h->slot[1].r.fd >= 0;
}

static int is_answered_late(void *arg) {
    return !((const town *)arg)->h->slot[1].r.is_asked;
}

static int is_another(void *arg) { /* that waits for its name */
    const town *t = arg;
    return t->h->slot[1].w.state == GY_HOST_DIALLING && !strncmp(t->h->slot[1].r.address, "localhost:", 10);
}

/* A slow name server answers for a worker that is not listed any more; another one has its slot and is being dialled.
 * It is not dialled a second time. */
static void late_name(void **state) {
    (void)state;
    town t;
    int port, caller[2], full = fill(&port, caller);
    char more[32];
    found(&t);
    add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.peer_ms = 20000;
    open_town(&t, &o);
    snprintf(more, sizeof more, "127.0.0.1:%d\n", port);
    list(&t, 1, more);
    turn_until(t.h, is_dialled, &t);
    gy_slot *s = &t.h->slot[1];
    assert_int_equal(gy_resolver_create(NULL, &t.h->resolver), GY_OK);
    assert_int_equal(gy_host_watch(t.h, EPOLL_CTL_ADD, gy_resolver_fd(t.h->resolver), EPOLLIN, TAG_RESOLVED, NULL), 0);
    int n = count_descriptors(), n_dial = s->r.n_dial;
    s->r.is_asked = 1;
    gy_resolver_ask(t.h->resolver, 1, s->r.serial - 1, "127.0.0.1", "1");
    turn_until(t.h, is_answered_late, &t);
    assert_int_equal(s->r.n_dial, n_dial);
    assert_int_equal(count_descriptors(), n);

    /* The next one in a slot has a name too: it is asked for behind the late answer, which is not of it. */
    int last = add(&t, "good", 3);
    snprintf(more, sizeof more, "localhost:%d\n", t.f[last].port);
    s->r.is_asked = 1; /* as if that question was still open */
    list(&t, 1, more);
    turn_until(t.h, is_another, &t);
    char text[8];
    snprintf(text, sizeof text, "%d", port);
    gy_resolver_ask(t.h->resolver, 1, s->r.serial - 1, "127.0.0.1", text);
    until(&t, (wish){.n_running = 2});
    close_town(&t);
    for (int i = 0; i < 2; i++) close(caller[i]);
    close(full);
}

/* A bad file changes nothing; workers that serve stay. */
static void a_bad_file(void **state) {
    (void)state;
    town t;
    found(&t);
    int v = add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    list(&t, 0, "not an address\n");
    turn_for(&t, 300);
    ask_one(&t);
    unlink(t.peers);
    turn_for(&t, 300);
    ask_one(&t);
    assert_int_equal(worker_at(&t, v).n_start, 1);
    list(&t, 1, "");
    close_town(&t);
}

/* localhost may be ::1 first, where nobody is: the next address is tried then. */
static void by_name(void **state) {
    (void)state;
    town t;
    char more[32];
    found(&t);
    int i = add(&t, "good", 3);
    snprintf(more, sizeof more, "localhost:%d\n", t.f[i].port);
    list(&t, 0, more);
    gy_host_opts o = opts(&t);
    open_town(&t, &o);
    ask_one(&t);
    close_town(&t);
}

static void closed_with_work(void **state) {
    (void)state;
    town t;
    answer a;
    found(&t);
    add(&t, "good", 3);
    list(&t, 1, "");
    gy_host_opts o = opts(&t);
    o.stop_ms = 60000;
    open_town(&t, &o);
    end(&t, 0);
    ask(t.h, &a);
    int64_t ns = gy_clock_ns();
    gy_host_close(t.h);
    t.h = NULL;
    assert_true(gy_clock_ns() - ns < 30000000000); /* not stop_ms */
    assert_int_equal(a.n_finish, 0);
    close_town(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_works_and_stops),
        cmocka_unit_test(what_cannot_open),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(another_model),
        cmocka_unit_test(dials_ever_more_seldom),
        cmocka_unit_test(joins_and_leaves),
        cmocka_unit_test(says_that_it_leaves),
        cmocka_unit_test(leaves_with_work),
        cmocka_unit_test(told_and_stays),
        cmocka_unit_test(killed_and_back),
        cmocka_unit_test(stopped_as_a_whole),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(fatal_and_alive),
        cmocka_unit_test(refused_and_back),
        cmocka_unit_test(late_name),
        cmocka_unit_test(a_bad_file),
        cmocka_unit_test(given_up),
        cmocka_unit_test(busy_is_not_dead),
        cmocka_unit_test(closed_with_work),
        cmocka_unit_test(by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
