/* Writes float32 arrays as .npy, format version 1.0 (numpy.lib.format, NEP 1). Reading is numpy's job, not ours. */
#include "base/npy.h"

#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "floats are written as they lie in memory, and the header says little endian"
#endif

enum { NPY_MAX_DIM = 4, NPY_PREFIX = 10, NPY_ALIGN = 64 };

static int npy_count_bytes(const int64_t *shape, int n_dim, size_t *bytes_out) {
    size_t n = sizeof(float);
    for (int i = 0; i < n_dim; i++)
        if (shape[i] < 0 || gy_size_mul(n, (size_t)shape[i], &n)) return 1;
    *bytes_out = n;
    return 0;
}

/* Magic, version, length, then a Python dict padded with blanks so that the data starts at a multiple of 64. */
static int npy_header(char *buf, int cap, const int64_t *shape, int n_dim) {
    int n = NPY_PREFIX;
    n += snprintf(buf + n, (size_t)(cap - n), "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < n_dim; i++)
        n += snprintf(buf + n, (size_t)(cap - n), "%s%lld", i ? ", " : "", (long long)shape[i]);
    n += snprintf(buf + n, (size_t)(cap - n), "%s), }", n_dim == 1 ? "," : "");
    int total = (n + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
    memset(buf + n, ' ', (size_t)(total - n - 1));
    buf[total - 1] = '\n';
    memcpy(buf, "\x93NUMPY\x01\x00", 8);
    buf[8] = (char)((total - NPY_PREFIX) & 0xFF);
    buf[9] = (char)((total - NPY_PREFIX) >> 8);
    return total;
}

/* Returns 0 or an errno. */
static int npy_write_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return errno;
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

/* Returns 0 or an errno; the caller removes what is left of tmp. */
static int npy_write_file(const char *tmp, const char *head, size_t n_head, const void *data, size_t n_data) {
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int why = npy_write_all(fd, head, n_head);
    if (!why) why = npy_write_all(fd, data, n_data);
    if (close(fd) != 0 && !why) why = errno;
    return why;
}

gy_status gy_npy_write_f32(const char *path, const float *data, const int64_t *shape, int n_dim, gy_err *err) {
    char head[256];
    size_t bytes;
    if (n_dim < 0 || n_dim > NPY_MAX_DIM)
        return gy_err_set(err, GY_E_ARG, "%s: %d dimensions, 0 to %d can be written", path, n_dim, NPY_MAX_DIM);
    if (npy_count_bytes(shape, n_dim, &bytes))
        return gy_err_set(err, GY_E_ARG, "%s: the shape has a negative length or too many elements", path);
    gy_str tmp = {0};
    gy_str_printf(&tmp, "%s.tmp", path);
    if (tmp.failed) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for its name", path);
    int n_head = npy_header(head, sizeof head, shape, n_dim);
    int why = npy_write_file(tmp.data, head, (size_t)n_head, data, bytes);
    if (!why && rename(tmp.data, path) != 0) why = errno;
    if (why) unlink(tmp.data);
    gy_str_free(&tmp);
    if (why) return gy_err_set(err, GY_E_IO, "%s: cannot write: %s", path, strerrordesc_np(why));
    return GY_OK;
}
