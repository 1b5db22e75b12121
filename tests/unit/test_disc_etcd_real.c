/* Discovery against etcd itself (Debian's etcd-server): workers and a watcher as processes of their own, killed,
 * stopped and continued; etcd too. Skipped where there is no etcd. What cannot be provoked there: test_disc_etcd.c. */
#include "base_test.h"

#include "base/clock.h"
#include "pd/disc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { SECONDS = 1000 }; /* of milliseconds */

/* ---- what the processes do ----------------------------------------------------------------------------------------
 */

/* publish URL NAME ADDRESS TTL, watch URL: until stdin ends. */
static int obey(char **arg) {
    gy_err err = {0};
    gy_disc *d;
    gy_disc_opts o = {.etcd = arg[2], .prefix = "/gyre/test/", .ttl_s = arg[3] ? atoi(arg[5]) : 2};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (gy_disc_open(&o, &err, &d) < 0 || (arg[3] && gy_disc_publish(d, arg[3], arg[4], &err) < 0)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (;;) {
        struct pollfd p[] = {{.fd = gy_disc_fd(d), .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        gy_disc_event ev;
        poll(p, 2, -1);
        while (gy_disc_next(d, &ev)) {
            if (arg[3]) continue;
            printf("%c%s=%s\n", ev.kind == GY_DISC_ADD ? '+' : '-', ev.name, ev.address);
            fflush(stdout);
        }
        if (p[1].revents) break;
    }
    gy_disc_close(d);
    return 0;
}

typedef struct proc {
    pid_t pid;
    int in, out; /* its stdin, its stdout */
} proc;

static proc start(const char *file, const char *const *arg) {
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    proc p = {.pid = fork(), .in = in[1], .out = out[0]};
    assert_true(p.pid >= 0);
    if (!p.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        if (strcmp(file, "/proc/self/exe")) dup2(open("/dev/null", O_WRONLY), 2); /* etcd talks much */
        execv(file, (char *const *)(uintptr_t)arg);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    return p;
}

static void end_proc(proc *p, int signal_no) {
    int status;
    if (p->pid <= 0) return;
    if (signal_no) kill(p->pid, signal_no); /* before its stdin ends: that would be an orderly end */
    close(p->in);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->out);
    p->pid = 0;
    if (!signal_no) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- etcd ----------------------------------------------------------------------------------------------------------
 */

static char dir[] = "/tmp/gyre-etcd-XXXXXX", url[64];
static int port;
static proc etcd;

static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* The answer of the gateway to a POST, or NULL. */
static char *post(const char *path, const char *body) {
    static char text[65536];
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    ssize_t got = -1;
    struct timeval limit = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) {
        int len =
            snprintf(text, sizeof text, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body), body);
        if (send(fd, text, (size_t)len, MSG_NOSIGNAL) == len)
            while ((got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0) n += (size_t)got;
    }
    close(fd);
    text[n] = '\0';
    return got == 0 && strstr(text, " 200 OK") ? text : NULL;
}

static const char *b64(const char *s) {
    static char ring[4][1024];
    static int at;
    char *out = ring[at++ % 4];
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)s, (int)strlen(s));
    return out;
}

static void nap(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static const char PROGRAM[] = "/usr/bin/etcd";

static int start_etcd(void) {
    char peer[64], data[64], cluster[96];
    if (access(PROGRAM, X_OK) != 0) return 0;
    if (!port) port = free_port();
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", free_port());
    snprintf(cluster, sizeof cluster, "default=%s", peer);
    snprintf(data, sizeof data, "%s/data", dir);
    const char *const arg[] = {"etcd",  "--data-dir",
                               data,    "--listen-client-urls",
                               url,     "--advertise-client-urls",
                               url,     "--listen-peer-urls",
                               peer,    "--initial-advertise-peer-urls",
                               peer,    "--initial-cluster",
                               cluster, NULL};
    etcd = start(PROGRAM, arg);
    for (int i = 0; i < 200; i++) {
        if (post("/v3/kv/range", "{\"key\":\"eA==\"}")) return 1;
        nap(100);
    }
    fail_msg("etcd does not start");
    return 0;
}

static void put(const char *name, const char *value) {
    char body[2048], key[200];
    snprintf(key, sizeof key, "/gyre/test/%s", name);
    snprintf(body, sizeof body, "{\"key\":\"%s\",\"value\":\"%s\"}", b64(key), b64(value));
    assert_non_null(post("/v3/kv/put", body));
}

static void delete (const char *name) {
    char body[512], key[200];
    snprintf(key, sizeof key, "/gyre/test/%s", name);
    snprintf(body, sizeof body, "{\"key\":\"%s\"}", b64(key));
    assert_non_null(post("/v3/kv/deleterange", body));
}

static int64_t revision(void) {
    const char *text = post("/v3/kv/range", "{\"key\":\"eA==\"}");
    assert_non_null(text);
    const char *at = strstr(text, "\"revision\":\"");
    return at ? strtoll(at + 12, NULL, 10) : 0;
}

static void compact(void) {
    char body[128];
    snprintf(body, sizeof body, "{\"revision\":\"%lld\",\"physical\":true}", (long long)revision());
    assert_non_null(post("/v3/kv/compaction", body));
}

/* ---- the watcher's tale ---------------------------------------------------------------------------------------------
 */

static proc watcher;

static proc start_leased(const char *name, const char *address, const char *ttl_s) {
    const char *const arg[] = {"disc", name ? "publish" : "watch", url, name, address, ttl_s, NULL};
    return start("/proc/self/exe", arg);
}

static proc start_disc(const char *name, const char *address) {
    return start_leased(name, address, "2");
}

/* The next line of the watcher, or "" after ms. */
static const char *line(int ms) {
    static char text[512];
    size_t n = 0;
    while (n < sizeof text - 1) {
        if (poll(&(struct pollfd){.fd = watcher.out, .events = POLLIN}, 1, ms) <= 0) break;
        if (read(watcher.out, text + n, 1) != 1 || text[n] == '\n') break;
        n++;
    }
    text[n] = '\0';
    return text;
}

static void assert_line(const char *want) {
    const char *got = line(15 * SECONDS);
    if (strcmp(got, want)) fail_msg("found '%s', expected '%s'", got, want);
}

static void assert_silence(int ms) {
    assert_string_equal(line(ms), "");
}

/* ---- tests
 * ------------------------------------------------------------------------------------------------------------ */

static void workers_come_and_go(void **state) {
    (void)state;
    if (!start_etcd()) {
        fprintf(stderr, "skipped: no /usr/bin/etcd (Debian: etcd-server)\n");
        skip();
    }
    watcher = start_disc(NULL, NULL);
    proc a = start_disc("a", "10.0.0.1:8100");
    assert_line("+a=10.0.0.1:8100");
    proc b = start_leased("b", "[fe80::1]:8100", "60");
    assert_line("+b=[fe80::1]:8100");
    end_proc(&b, 0); /* in order: before its lease ends, which assert_line does not wait for */
    assert_line("-b=[fe80::1]:8100");
    assert_silence(3 * SECONDS); /* a is kept alive: its lease is of 2 s */
    int64_t begun = gy_clock_ns();
    end_proc(&a, SIGKILL);
    assert_line("-a=10.0.0.1:8100");
    assert_true(gy_clock_ns() - begun > 500000000);     /* its lease was kept to the end */
    put("other", "{\"address\":\"h:1\",\"weight\":3}"); /* another version's worker */
    assert_line("+other=h:1");
    put("bad", "hello");
    put("other", "{\"address\":\"h:2\"}");
    assert_line("-other=h:1");
    assert_line("+other=h:2");
    delete ("other");
    assert_line("-other=h:2");
    /* A worker whose process was stopped for longer than its lease: gone, and back by itself. */
    a = start_disc("a", "h:1");
    assert_line("+a=h:1");
    kill(a.pid, SIGSTOP);
    assert_line("-a=h:1");
    kill(a.pid, SIGCONT);
    assert_line("+a=h:1");
    end_proc(&a, 0);
    assert_line("-a=h:1");
}

static void stopped_watcher(void **state) {
    (void)state;
    if (!etcd.pid) skip();
    put("x", "{\"address\":\"h:1\"}");
    put("y", "{\"address\":\"h:2\"}");
    assert_line("+x=h:1");
    assert_line("+y=h:2");
    kill(watcher.pid, SIGSTOP);
    for (int i = 0; i < 20; i++) put("z", "{\"address\":\"h:3\"}");
    delete ("x");
    compact();
    /* etcd restarts too: the stream is broken, and what happened since is compacted away. */
    end_proc(&etcd, SIGKILL);
    start_etcd();
    put("w", "{\"address\":\"h:4\"}");
    delete ("w");
    compact();
    kill(watcher.pid, SIGCONT);
    assert_line("-x=h:1");
    assert_line("+z=h:3");
    put("v", "{\"address\":\"h:5\"}"); /* and it goes on */
    assert_line("+v=h:5");
    assert_silence(200);
}

static void etcd_restarts(void **state) {
    (void)state;
    if (!etcd.pid) skip();
    proc a = start_disc("a", "h:9");
    assert_line("+a=h:9");
    kill(etcd.pid, SIGSTOP); /* hangs */
    assert_silence(3 * SECONDS);
    end_proc(&etcd, SIGKILL); /* still stopped: if it went on for a moment, it could end a's lease */
    assert_silence(500);      /* down: who is known stays */
    start_etcd();
    assert_silence(2500); /* as it was; a is still kept alive */
    end_proc(&etcd, SIGTERM);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/data", dir);
    assert_int_equal(system(command), 0);
    start_etcd(); /* empty: y, z and v are gone, a publishes itself again */
    int has_a = 1, n = 3;
    for (int i = 0; i < 10 && (n || !has_a); i++) {
        const char *got = line(10 * SECONDS);
        if (!strcmp(got, "-a=h:9"))
            has_a = 0;
        else if (!strcmp(got, "+a=h:9"))
            has_a = 1;
        else
            n--;
    }
    assert_true(!n && has_a);
    end_proc(&a, SIGKILL);
    assert_line("-a=h:9");
    kill(etcd.pid, SIGSTOP);
    int64_t begun = gy_clock_ns();
    end_proc(&watcher, 0); /* an etcd that hangs does not hold up the end: its stream has no deadline but ours of 1 s */
    assert_true(gy_clock_ns() - begun < 10000000000);
}

static int clean_up(void **state) {
    (void)state;
    char command[128];
    end_proc(&watcher, SIGKILL);
    end_proc(&etcd, SIGKILL);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

int main(int n, char **arg) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_come_and_go),
        cmocka_unit_test(stopped_watcher),
        cmocka_unit_test(etcd_restarts),
    };
    if (n > 2) return obey(arg);
    return cmocka_run_group_tests(tests, make_dir, clean_up);
}
