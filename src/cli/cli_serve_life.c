/* Options, the log file and systemd, for cli_serve.c. */
#include "cli/cli_serve_life.h"

#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_args.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_SECONDS = 86400, LOG_MODE = 0640 };

/* ---- options ---- */

#define AT(member) offsetof(gy_args, serve.member)
static const gy_opt life_rows[] = {
    {"tls-cert", GY_OPT_STR, AT(tls_cert), "FILE", 0, 0, "no TLS",
     "speak TLS (https), with this certificate and what signs it behind it, PEM; SIGHUP reads it again"},
    {"tls-key", GY_OPT_STR, AT(tls_key), "FILE", 0, 0, "in the same file",
     "the certificate's key, without a passphrase"},
    {"ssl-certfile", GY_OPT_STR, AT(tls_cert), "FILE", 0, 0, NULL, "the same as --tls-cert"},
    {"ssl-keyfile", GY_OPT_STR, AT(tls_key), "FILE", 0, 0, NULL, "the same as --tls-key"},
    {"request-timeout", GY_OPT_F64, AT(request_s), "SECONDS", 0, MAX_SECONDS, "0: any time",
     "how long a request may take once it was read: then 408, or a stream that breaks behind an error"},
    {"idle-timeout", GY_OPT_F64, AT(idle_s), "SECONDS", 0.001, MAX_SECONDS, "120",
     "how long a connection may wait for its next request"},
    {"header-timeout", GY_OPT_F64, AT(header_s), "SECONDS", 0.001, MAX_SECONDS, "30",
     "how long a request's head may take; of a new connection, its TLS handshake too"},
    {"body-timeout", GY_OPT_F64, AT(body_s), "SECONDS", 0.001, MAX_SECONDS, "60", "and 64 KiB of its body"},
    {"write-timeout", GY_OPT_F64, AT(write_s), "SECONDS", 0.001, MAX_SECONDS, "30",
     "how long a client may read nothing of an answer"},
    {"access-log-file", GY_OPT_STR, AT(access_file), "FILE", 0, 0, "standard output",
     "where --access-log (logfmt if it is not given) goes; SIGHUP opens it again"},
    {"log-file", GY_OPT_STR, AT(log_file), "FILE", 0, 0, "standard error", "where log lines go; SIGHUP opens it again"},
};
const gy_opt_group gy_group_serve_life = {"TLS, deadlines, logs", life_rows, sizeof life_rows / sizeof *life_rows};

static void set_ms(double seconds, int *ms) {
    if (seconds > 0) *ms = (int)ceil(seconds * 1000);
}

gy_status gy_serve_set_life(const gy_serve_opts *v, gy_err *err, gy_app_opts *o) {
    if (v->tls_key && !v->tls_cert)
        return gy_err_set(err, GY_E_ARG, "--tls-key: found without --tls-cert, whose key it is");
    o->http.tls_cert = v->tls_cert;
    o->http.tls_key = v->tls_key;
    set_ms(v->idle_s, &o->http.idle_ms);
    set_ms(v->header_s, &o->http.header_ms);
    set_ms(v->body_s, &o->http.body_ms);
    set_ms(v->write_s, &o->http.write_ms);
    set_ms(v->request_s, &o->request_ms);
    o->access_path = v->access_file;
    if (v->access_file && o->access_log == GY_APP_LOG_OFF) o->access_log = GY_APP_LOG_LOGFMT;
    return GY_OK;
}

/* ---- the log file ---- */

static int log_fd = -1; /* the same number as long as the process lives: what writes meanwhile finds the new file */

static int open_log(const char *path) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, LOG_MODE);
}

static void reopen_log(void *user) {
    const char *path = user;
    char name[512], why[128];
    int fd = open_log(path);
    gy_log_quote(path, name, sizeof name);
    if (fd < 0 || dup3(fd, log_fd, O_CLOEXEC) < 0)
        gy_log(GY_LOG_ERROR, "server", "SIGHUP: the log file cannot be opened again: lines go to the file as it was",
               "file=%s error=%s", name, gy_log_quote(strerrordesc_np(errno), why, sizeof why));
    else
        gy_log(GY_LOG_INFO, "server", "SIGHUP: the log file was opened again", "file=%s", name);
    if (fd >= 0) close(fd);
}

gy_status gy_serve_open_log(const char *path, gy_err *err, gy_app_opts *o) {
    if (!path) return GY_OK;
    log_fd = open_log(path);
    if (log_fd < 0)
        return gy_err_set(err, GY_E_IO, "--log-file %s: cannot be opened for writing: %s", path,
                          strerrordesc_np(errno));
    gy_log_set_fd(log_fd);
    o->on_hangup = reopen_log;
    o->hangup_user = (void *)(uintptr_t)path;
    return GY_OK;
}

/* ---- descriptors ---- */

enum { OTHER_DESCRIPTORS = 256 };

void gy_serve_raise_descriptors(const gy_app_opts *o) {
    struct rlimit r;
    rlim_t want = (rlim_t)o->http.max_conns + OTHER_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

/* ---- systemd ---- */

static int notify_fd = -1;
static struct sockaddr_un notify_to;
static socklen_t notify_len;

/* A path, or after '@' a name that is no file (unix(7), abstract). */
void gy_serve_notify_open(void) {
    const char *to = getenv("NOTIFY_SOCKET");
    size_t n = to ? strlen(to) : 0;
    if (n < 2 || n >= sizeof notify_to.sun_path || (to[0] != '/' && to[0] != '@')) return;
    notify_to.sun_family = AF_UNIX;
    memcpy(notify_to.sun_path, to, n);
    if (to[0] == '@') notify_to.sun_path[0] = '\0';
    notify_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void gy_serve_notify(const char *state) {
    int saved = errno;
    if (notify_fd >= 0)
        (void)sendto(notify_fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&notify_to, notify_len);
    errno = saved;
}
