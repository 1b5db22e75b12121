/* See cli_worker_listen.h. */
#include "cli/cli_worker_listen.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "pd/chan.h"
#include "pd/disc.h"
#include "pd/resolve.h"
#include "pd/spawn.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_DEATHS = 5, DEATH_WINDOW_MS = 60000, MAX_ARGS = 256, MS = 1000000 };

typedef struct keeper {
    const gy_args *a;
    char host[256], port[8], advertised[GY_DISC_ADDRESS], name[GY_DISC_NAME];
    gy_address bound;
    gy_disc *disc; /* NULL without --etcd */
    gy_spawner *spawner;
    int pid, pidfd; /* pidfd -1: no child */
    int has_served; /* a child ended by itself: this deployment works */
    int is_ending, is_killed;
    int64_t due_ns; /* next start; ending: when the child is killed */
    int64_t death_ns[MAX_DEATHS];
    int n_death;
} keeper;

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t n_signal;
static int signal_fd = -1; /* set before the handler is installed */

static void on_signal(int signo) {
    const uint64_t one = 1;
    (void)signo;
    n_signal = n_signal + 1;
    if (write(signal_fd, &one, sizeof one) < 0) return; /* full: readable already */
}

static gy_status catch_signals(gy_err *err) {
    struct sigaction s = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (signal_fd < 0) return gy_err_set(err, GY_E_IO, "the system gives no event descriptor");
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGINT, &s, NULL);
    return GY_OK;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

int gy_worker_listens(const gy_args *a) {
    static const char *const about[] = {"listen",       "advertise",   "etcd",        "etcd-ca",
                                        "cluster",      "name",        "secret-file", "transfer-device",
                                        "peer-timeout", "stop-timeout"};
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        if (gy_opts_given(a->opts, about[i])) return 1;
    return a->pd.listen != NULL; /* by --config */
}

static int exists(const char *folder, const char *name, size_t len) {
    char path[128];
    (void)snprintf(path, sizeof path, "/sys/class/%s/%.*s", folder, (int)len, name);
    return len > 0 && len < 64 && !memchr(name, '/', len) && name[0] != '.' && access(path, F_OK) == 0;
}

/* eth0, or mlx5_0:1: a port of a device of /sys/class/infiniband. */
static gy_status check_device(const char *list, gy_err *err) {
    for (const char *at = list;; at++) {
        size_t len = strcspn(at, ","), base = strcspn(at, ",:");
        if (!exists("net", at, len) && !exists("infiniband", at, base))
            return gy_err_set(err, GY_E_ARG,
                              "--transfer-device: this host has no network device '%.*s' (ip link shows them; RDMA: "
                              "/sys/class/infiniband)",
                              (int)(len < 80 ? len : 80), at);
        at += len;
        if (!*at) return GY_OK;
    }
}

static gy_status check_needed(const gy_args *a, gy_err *err) {
    gy_secret secret;
    if (!a->n_pos) return gy_err_set(err, GY_E_ARG, "gyre worker: found no MODEL");
    if (!a->pd.listen)
        return gy_err_set(err, GY_E_ARG, "--listen: found none; the other options for other hosts need it");
    if (!gy_opts_given(a->opts, "role") && !a->config)
        return gy_err_set(err, GY_E_ARG, "--role: found none, expected prefill, decode or both");
    if (!a->pd.secret_file)
        return gy_err_set(
            err, GY_E_ARG,
            "--secret-file: found none, --listen needs it: a file of 16 bytes or more that all hosts share "
            "(head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE)");
    GY_TRY(gy_secret_read(a->pd.secret_file, err, &secret));
    if (!a->pd.device)
        return gy_err_set(err, GY_E_ARG,
                          "--transfer-device: found none; say which network device reaches the other hosts (ip link "
                          "shows them)");
    return check_device(a->pd.device, err);
}

static gy_status check_etcd(const gy_args *a, gy_err *err) {
    static const char *const about[] = {"advertise", "cluster", "etcd-ca", "name"};
    for (size_t i = 0; !a->pd.etcd && i < sizeof about / sizeof *about; i++)
        if (gy_opts_given(a->opts, about[i]))
            return gy_err_set(err, GY_E_ARG, "--%s: found without --etcd, which it is about", about[i]);
    const char *c = a->pd.cluster;
    if (c && (!c[0] || strchr(c, '/') || strlen(c) > 100))
        return gy_err_set(err, GY_E_ARG, "--cluster: found '%.120s', expected a name of 1 to 100 bytes without '/'", c);
    return GY_OK;
}

/* ---- the address ------------------------------------------------------------------------------------------------- */

/* A name is resolved here, once: nothing else waits for it. */
static gy_status find_address(keeper *k, gy_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *list = NULL;
    if (gy_address_split(k->a->pd.listen, err, k->host, k->port) < 0) return gy_err_prefix(err, "--listen");
    int rc = getaddrinfo(k->host[0] ? k->host : NULL, k->port, &hints, &list);
    if (rc) return gy_err_set(err, GY_E_ARG, "--listen: '%.200s': %s", k->host, gai_strerror(rc));
    memcpy(&k->bound.a, list->ai_addr, list->ai_addrlen);
    k->bound.len = list->ai_addrlen;
    freeaddrinfo(list);
    return GY_OK;
}

/* The first time with port 0 the system chooses; from then on it is that port. Not listening: the child does. */
static gy_status bind_socket(keeper *k, gy_err *err, int *fd_out) {
    const int one = 1;
    socklen_t len = sizeof k->bound.a;
    int fd = socket(k->bound.a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return gy_err_set(err, GY_E_IO, "--listen: no socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&k->bound.a, k->bound.len) < 0 ||
        getsockname(fd, (struct sockaddr *)&k->bound.a, &len) < 0) {
        gy_err_set(err, GY_E_IO, "--listen %.200s: %s", k->a->pd.listen, strerror(errno));
        close(fd);
        return err ? err->status : GY_E_IO;
    }
    k->bound.len = len;
    *fd_out = fd;
    return GY_OK;
}

static int port_of(const gy_address *a) {
    uint16_t p = 0;
    memcpy(&p,
           (const char *)&a->a + (a->a.ss_family == AF_INET6 ? offsetof(struct sockaddr_in6, sin6_port)
                                                             : offsetof(struct sockaddr_in, sin_port)),
           sizeof p);
    return ntohs(p);
}

static int is_any(const gy_address *a) {
    static const struct in6_addr any6 = IN6ADDR_ANY_INIT;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a->a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a->a;
    if (a->a.ss_family == AF_INET6) return memcmp(&v6->sin6_addr, &any6, sizeof any6) == 0;
    return v4->sin_addr.s_addr == htonl(INADDR_ANY);
}

static gy_status choose_advertised(keeper *k, gy_err *err) {
    char host[256], port[8];
    const char *given = k->a->pd.advertise;
    if (given) {
        if (gy_address_split(given, err, host, port) < 0) return gy_err_prefix(err, "--advertise");
        if (!host[0] || !strcmp(port, "0"))
            return gy_err_set(err, GY_E_ARG, "--advertise: found '%.200s', expected an address that others can dial",
                              given);
        (void)snprintf(k->advertised, sizeof k->advertised, "%s", given);
        return GY_OK;
    }
    if (k->a->pd.etcd && is_any(&k->bound))
        return gy_err_set(err, GY_E_ARG,
                          "--advertise: found none, and --listen %.200s is no address that others can dial",
                          k->a->pd.listen);
    (void)snprintf(k->advertised, sizeof k->advertised, strchr(k->host, ':') ? "[%s]:%d" : "%s:%d", k->host,
                   port_of(&k->bound));
    return GY_OK;
}

/* ---- etcd -------------------------------------------------------------------------------------------------------- */

static void choose_name(keeper *k) {
    char host[65] = "worker";
    if (k->a->pd.name) {
        (void)snprintf(k->name, sizeof k->name, "%.120s", k->a->pd.name);
        return;
    }
    if (gethostname(host, sizeof host - 1) < 0) (void)snprintf(host, sizeof host, "worker");
    (void)snprintf(k->name, sizeof k->name, "%.64s:%d", host, port_of(&k->bound));
}

static gy_status publish(keeper *k, gy_err *err) {
    char prefix[128];
    if (!k->a->pd.etcd) return GY_OK;
    choose_name(k);
    (void)snprintf(prefix, sizeof prefix, "/gyre/%s/workers/", k->a->pd.cluster ? k->a->pd.cluster : "default");
    gy_disc_opts o = {.etcd = k->a->pd.etcd, .etcd_ca = k->a->pd.etcd_ca, .prefix = prefix};
    GY_TRY(gy_disc_open(&o, err, &k->disc));
    return gy_disc_publish(k->disc, k->name, k->advertised, err);
}

/* ---- lives ------------------------------------------------------------------------------------------------------- */

/* Its own command line, and the flag that says what descriptor 3 is. */
static gy_status start(keeper *k, int fd, gy_err *err) {
    const char *argv[MAX_ARGS + 4] = {"gyre", "worker"};
    size_t n = 2;
    if (k->a->argc > MAX_ARGS) return gy_err_set(err, GY_E_ARG, "gyre worker: found more than %d arguments", MAX_ARGS);
    argv[n++] = "--on-listener";
    for (int i = 0; i < k->a->argc; i++) argv[n++] = k->a->argv[i];
    argv[n] = NULL;
    return gy_spawner_start(k->spawner, argv, (const int[2]){fd, -1}, err, &k->pid, &k->pidfd);
}

/* 1: it died too often. */
static int count_death(keeper *k, int64_t now_ns) {
    static const int wait_ms[] = {0, 500, 2000};
    int n = 0;
    k->death_ns[k->n_death++ % MAX_DEATHS] = now_ns;
    for (int i = 0; i < MAX_DEATHS; i++) n += k->death_ns[i] && now_ns - k->death_ns[i] < (int64_t)DEATH_WINDOW_MS * MS;
    k->due_ns = now_ns + (int64_t)wait_ms[n > 3 ? 2 : n - 1] * MS;
    return n >= MAX_DEATHS;
}

static gy_status begin_life(keeper *k, int64_t now_ns, gy_err *err) {
    int fd = -1;
    gy_status st = bind_socket(k, err, &fd);
    if (st >= 0) st = start(k, fd, err);
    if (fd >= 0) close(fd); /* the child's alone: it goes with it */
    if (st >= 0 || !k->has_served) return st;
    char why[600];
    gy_log(GY_LOG_WARN, "pd", "no new life", "why=%s", gy_log_quote(err->msg, why, (int)sizeof why));
    return count_death(k, now_ns) ? st : GY_OK;
}

/* What it was: 0: it ended as it should; else how it died, as an exit code. */
static gy_status end_life(keeper *k, const gy_child_end *e, int64_t now_ns, gy_err *err) {
    close(k->pidfd);
    k->pidfd = -1;
    if (k->is_ending) return GY_OK;
    k->due_ns = now_ns;
    if (e->known && !e->signal && !e->code) {
        k->has_served = 1;
        return GY_OK;
    }
    if (!k->has_served && !e->signal && e->code != GY_WORKER_BROKEN) /* it has said why */
        return gy_err_set(err, e->code == GY_CLI_USAGE ? GY_E_ARG : GY_E_PEER, "the worker did not start");
    gy_log(GY_LOG_WARN, "pd", "a life of this worker ended badly", "signal=%d code=%d", e->signal, e->code);
    if (!count_death(k, now_ns)) return GY_OK;
    return gy_err_set(err, GY_E_PEER, "the worker died %d times within %d s", MAX_DEATHS, DEATH_WINDOW_MS / 1000);
}

static void be_ended(keeper *k, int64_t now_ns) {
    uint64_t rings;
    if (read(signal_fd, &rings, sizeof rings) < 0) return;
    if (!k->is_ending) {
        k->is_ending = 1;
        k->due_ns = now_ns + (int64_t)(k->a->pd.stop_timeout * 1e9);
        if (k->disc) gy_disc_withdraw(k->disc);
        if (k->pidfd >= 0) gy_child_signal(k->pidfd, SIGTERM);
        rings--;
    }
    if (rings) k->due_ns = now_ns;
}

static void sleep_until(const keeper *k) {
    struct pollfd f[] = {{.fd = signal_fd, .events = POLLIN}, {.fd = k->pidfd, .events = POLLIN}};
    int64_t left_ns = k->due_ns - gy_clock_ns();
    int has_time = k->is_ending ? !k->is_killed : k->pidfd < 0;
    poll(f, 2, !has_time ? -1 : left_ns <= 0 ? 0 : (int)(left_ns / MS) + 1);
}

static gy_status keep(keeper *k, gy_err *err) {
    gy_child_end e;
    while (!k->is_ending || k->pidfd >= 0) {
        sleep_until(k);
        int64_t now_ns = gy_clock_ns();
        be_ended(k, now_ns);
        if (k->pidfd >= 0 && gy_child_reap(k->pidfd, &e)) GY_TRY(end_life(k, &e, now_ns, err));
        if (k->is_ending && k->pidfd >= 0 && now_ns >= k->due_ns && !k->is_killed) {
            k->is_killed = 1;
            gy_child_signal(k->pidfd, SIGKILL);
        }
        if (!k->is_ending && k->pidfd < 0 && now_ns >= k->due_ns) GY_TRY(begin_life(k, now_ns, err));
    }
    return GY_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static gy_status open_all(keeper *k, gy_err *err) {
    GY_TRY(check_needed(k->a, err));
    GY_TRY(check_etcd(k->a, err));
    GY_TRY(find_address(k, err));
    GY_TRY(catch_signals(err));
    GY_TRY(gy_spawner_create("/proc/self/exe", err, &k->spawner));
    GY_TRY(begin_life(k, gy_clock_ns(), err)); /* now the port is known */
    GY_TRY(choose_advertised(k, err));
    return publish(k, err);
}

int gy_worker_listen(const gy_args *a) {
    keeper k = {.a = a, .pidfd = -1};
    gy_err err = {0};
    gy_status st = open_all(&k, &err);
    if (st >= 0) {
        gy_cli_note("worker on %s, loading %s", k.advertised, a->pos[0]);
        st = keep(&k, &err);
    }
    gy_disc_close(k.disc);
    if (k.pidfd >= 0) gy_child_signal(k.pidfd, SIGKILL);
    gy_spawner_destroy(k.spawner);
    if (k.pidfd >= 0) close(k.pidfd);
    if (signal_fd >= 0) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        close(signal_fd);
    }
    return st < 0 ? gy_cli_fail(&err) : GY_CLI_OK;
}
