/* Sockets to accept from. A host that begins with '/' is the path of a Unix socket. Else every address of the host is
 * bound, so that "localhost" means 127.0.0.1 and ::1; a port is never moved. SO_REUSEADDR lets a restart pass
 * connections in TIME_WAIT; SO_REUSEPORT is not set: two servers on one port are an error.
 */
#include "server/http_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

void gy_http_address(const struct sockaddr_storage *a, char out[64]) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_UNIX) {
        snprintf(out, 64, "unix");
    } else if (a->ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof in6);
        inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof text);
        snprintf(out, 64, "[%s]:%d", text, ntohs(in6.sin6_port));
    } else {
        struct sockaddr_in in4;
        memcpy(&in4, a, sizeof in4);
        inet_ntop(AF_INET, &in4.sin_addr, text, sizeof text);
        snprintf(out, 64, "%s:%d", text, ntohs(in4.sin_port));
    }
}

static void set_port(struct sockaddr_storage *a, int port) {
    struct sockaddr_in in4;
    /* sin_port and sin6_port lie at the same place: RFC 3493 and POSIX put them after the family. */
    memcpy(&in4, a, sizeof in4);
    in4.sin_port = htons((uint16_t)port);
    memcpy(a, &in4, sizeof in4);
}

static int bound_port(int fd) {
    struct sockaddr_storage a;
    struct sockaddr_in in4;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return -1;
    memcpy(&in4, &a, sizeof in4);
    return ntohs(in4.sin_port);
}

static gy_status listen_failed(const struct sockaddr_storage *a, int error, gy_err *err) {
    char name[64];
    gy_http_address(a, name);
    if (error == EADDRINUSE)
        return gy_err_set(err, GY_E_IO,
                          "cannot listen on %s: another process has this port; end it or pass another --port", name);
    if (error == EACCES)
        return gy_err_set(err, GY_E_IO, "cannot listen on %s: ports below 1024 need a privilege; pass another --port",
                          name);
    if (error == EADDRNOTAVAIL)
        return gy_err_set(err, GY_E_IO,
                          "cannot listen on %s: this machine does not have that address; pass another --host", name);
    return gy_err_set(err, GY_E_IO, "cannot listen on %s: %s", name, strerror(error));
}

/* -1 with errno. */
static int listen_one(const struct sockaddr_storage *a, socklen_t n, int backlog, int only_v6) {
    int on = 1, fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (a->ss_family == AF_INET6 && only_v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        bind(fd, (const struct sockaddr *)a, n) != 0 || listen(fd, backlog) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

/* A host may name an address family that this machine lacks ("localhost" in a container without IPv6). */
static int is_absent(int error) {
    return error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
}

/* GY_AGAIN: this machine does not have that address, others of the host may do. */
static gy_status listen_next(const struct addrinfo *ai, int port, int backlog, int only_v6, gy_err *err, int *fd_out) {
    struct sockaddr_storage a = {0};
    memcpy(&a, ai->ai_addr, ai->ai_addrlen);
    set_port(&a, port);
    *fd_out = listen_one(&a, ai->ai_addrlen, backlog, only_v6);
    if (*fd_out >= 0) return GY_OK;
    int error = errno;
    gy_status st = listen_failed(&a, error, err);
    return is_absent(error) ? GY_AGAIN : st;
}

static gy_status listen_all(const struct addrinfo *list, int port, int backlog, gy_err *err, int *fd_out, int *n_out) {
    int n = 0;
    for (const struct addrinfo *ai = list; ai && n < GY_HTTP_LISTEN_MAX; ai = ai->ai_next) {
        gy_status st = listen_next(ai, port, backlog, list->ai_next != NULL, err, &fd_out[n]);
        if (st < 0) {
            while (n > 0) close(fd_out[--n]);
            return st;
        }
        if (st == GY_OK) n++;
        /* The system chose the first port: all addresses share it. */
        if (st == GY_OK && port == 0) port = bound_port(fd_out[0]);
    }
    *n_out = n;
    return n > 0 ? GY_OK : GY_E_IO;
}

/* ---- Unix sockets ---- */

/* -1 with errno. */
static int bind_path(int fd, const struct sockaddr_un *a, int backlog) {
    return bind(fd, (const struct sockaddr *)a, sizeof *a) == 0 && listen(fd, backlog) == 0 ? 0 : -1;
}

/* A file that a server left which was killed: nobody answers there. */
static int is_left_over(const struct sockaddr_un *a) {
    struct stat st;
    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int refused = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    return refused;
}

static gy_status listen_path(const char *path, int backlog, gy_err *err, int *fd_out) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n >= sizeof a.sun_path)
        return gy_err_set(err, GY_E_ARG, "host %.60s...: found a path of %zu bytes, a Unix socket's has at most %zu",
                          path, n, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, n);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int bad = fd < 0 || bind_path(fd, &a, backlog) != 0;
    if (bad && fd >= 0 && errno == EADDRINUSE && is_left_over(&a))
        bad = unlink(path) != 0 || bind_path(fd, &a, backlog) != 0;
    if (!bad) {
        *fd_out = fd;
        return GY_OK;
    }
    int error = errno;
    if (fd >= 0) close(fd);
    if (error == EADDRINUSE)
        return gy_err_set(err, GY_E_IO,
                          "cannot listen on %s: another process listens there, or it is no socket; pass another --host",
                          path);
    return gy_err_set(err, GY_E_IO, "cannot listen on %s: %s", path, strerrordesc_np(error));
}

void gy_http_listen_end(int fd) {
    struct sockaddr_un a = {0};
    socklen_t n = sizeof a - 1;
    if (getsockname(fd, (struct sockaddr *)&a, &n) == 0 && a.sun_family == AF_UNIX && a.sun_path[0]) unlink(a.sun_path);
    close(fd);
}

gy_status gy_http_listen(const char *host, int port, int backlog, gy_err *err, int fd_out[GY_HTTP_LISTEN_MAX],
                         int *n_out, int *port_out) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    if (host[0] == '/') {
        GY_TRY(listen_path(host, backlog, err, fd_out));
        *n_out = 1;
        *port_out = 0;
        return GY_OK;
    }
    if (port < 0 || port > 65535) return gy_err_set(err, GY_E_ARG, "port %d: must be from 0 to 65535", port);
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0) return gy_err_set(err, GY_E_IO, "host %s: %s; pass an address with --host", host, gai_strerror(rc));
    gy_status st = listen_all(list, port, backlog, err, fd_out, n_out);
    freeaddrinfo(list);
    if (st == GY_OK) *port_out = bound_port(fd_out[0]);
    return st;
}
