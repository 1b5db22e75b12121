/* The secret of a cluster, from a file. How good it is nobody can tell from here: see docs/pd.md. */
#include "base/mem.h"
#include "pd/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static gy_status check_file(int fd, const char *path, gy_err *err) {
    struct stat s;
    if (fstat(fd, &s) < 0) return gy_err_set(err, GY_E_IO, "%s: %s", path, strerrordesc_np(errno));
    if (!S_ISREG(s.st_mode)) return gy_err_set(err, GY_E_ARG, "%s: the secret: expected a regular file", path);
    if (s.st_mode & 077)
        return gy_err_set(err, GY_E_ARG, "%s: the secret: found mode %04o, expected 0600 or 0400: chmod 600 it", path,
                          (unsigned)(s.st_mode & 07777));
    return GY_OK;
}

/* Up to cap bytes. */
static gy_status read_all(int fd, const char *path, char *buf, size_t cap, size_t *n, gy_err *err) {
    *n = 0;
    while (*n < cap) {
        ssize_t got = read(fd, buf + *n, cap - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gy_err_set(err, GY_E_IO, "%s: %s", path, strerrordesc_np(errno));
        if (!got) break;
        *n += (size_t)got;
    }
    return GY_OK;
}

static gy_status digest(const char *path, const char *buf, size_t n, gy_err *err, gy_secret *out) {
    if (n && buf[n - 1] == '\n') n--;
    if (n < GY_SECRET_MIN || n > GY_SECRET_MAX)
        return gy_err_set(err, GY_E_ARG,
                          "%s: the secret: found %s%zu bytes, expected %d to %d: openssl rand -hex 32 "
                          "makes one",
                          path, n > GY_SECRET_MAX ? "more than " : "", n > GY_SECRET_MAX ? (size_t)GY_SECRET_MAX : n,
                          GY_SECRET_MIN, GY_SECRET_MAX);
    if (!EVP_Digest(buf, n, out->key, NULL, EVP_sha256(), NULL))
        return gy_err_set(err, GY_E_NOMEM, "%s: the secret: no memory", path);
    return GY_OK;
}

gy_status gy_secret_read(const char *path, gy_err *err, gy_secret *out) {
    char buf[GY_SECRET_MAX + 2];
    size_t n;
    /* O_NONBLOCK: a pipe must not hold up the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return gy_err_set(err, GY_E_IO, "%s: the secret: %s", path, strerrordesc_np(errno));
    gy_status st = check_file(fd, path, err);
    if (st == GY_OK) st = read_all(fd, path, buf, sizeof buf, &n, err);
    if (st == GY_OK) st = digest(path, buf, n, err, out);
    OPENSSL_cleanse(buf, sizeof buf);
    close(fd);
    return st;
}
