/* Read-only mapping and bounded reading of files, and path joining. Writing belongs to whoever has a format (npy.c). */
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_kind(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
    return S_ISREG(mode) ? "a file" : "something else";
}

/* O_NONBLOCK: opening a pipe that nobody writes would hang before fstat can refuse it. Returns the descriptor or -1. */
static int file_open_regular(const char *path, gy_err *err, struct stat *st) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        gy_err_set(err, GY_E_IO, "%s: cannot open: %s", path, strerrordesc_np(errno));
        return -1;
    }
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode)) return fd;
    gy_err_set(err, GY_E_IO, "%s: found %s, expected a regular file", path, file_kind(st->st_mode));
    close(fd);
    return -1;
}

gy_status gy_map_open(const char *path, gy_err *err, gy_map *out) {
    struct stat st = {0};
    int fd = file_open_regular(path, err, &st);
    if (fd < 0) return GY_E_IO;
    gy_map m = {.size = (size_t)st.st_size};
    int why = 0;
    if (m.size) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            why = errno;
        else
            m.data = p;
    }
    close(fd);
    if (why) return gy_err_set(err, GY_E_IO, "%s: cannot map %zu bytes: %s", path, m.size, strerrordesc_np(why));
    *out = m;
    return GY_OK;
}

void gy_map_close(gy_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (gy_map){0};
}

/* Pages that lie wholly inside: the others hold neighbours too. */
void gy_map_drop(const void *p, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = GY_ALIGN_UP((uintptr_t)p, page);
    uintptr_t end = ((uintptr_t)p + bytes) / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Appends until the end or until more than max_bytes came. Returns 0 or an errno. */
static int file_drain(int fd, size_t max_bytes, gy_str *out, size_t *got_out) {
    char buf[32768];
    size_t got = 0;
    while (got <= max_bytes && !out->failed) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) break;
        gy_str_append(out, buf, (size_t)n);
        got += (size_t)n;
    }
    *got_out = got;
    return 0;
}

gy_status gy_file_read(const char *path, size_t max_bytes, gy_err *err, gy_str *out) {
    struct stat st = {0};
    int fd = file_open_regular(path, err, &st);
    if (fd < 0) return GY_E_IO;
    size_t before = out->len, got = 0;
    int why = file_drain(fd, max_bytes, out, &got);
    close(fd);
    if (why)
        gy_err_set(err, GY_E_IO, "%s: cannot read: %s", path, strerrordesc_np(why));
    else if (out->failed)
        gy_err_set(err, GY_E_NOMEM, "%s: no memory for its content", path);
    else if (got > max_bytes)
        gy_err_set(err, GY_E_LIMIT, "%s: larger than the limit of %zu bytes for such a file", path, max_bytes);
    else
        return GY_OK;
    out->len = before;
    if (out->data) out->data[before] = '\0';
    return why ? GY_E_IO : out->failed ? GY_E_NOMEM : GY_E_LIMIT;
}

int gy_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int gy_dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *gy_path_join(const char *dir, const char *name) {
    size_t n_dir = strlen(dir), n_name = strlen(name), total;
    int slash = n_dir == 0 || dir[n_dir - 1] != '/';
    if (gy_size_add(n_dir, n_name, &total) || gy_size_add(total, 2, &total)) return NULL;
    char *p = gy_mem_alloc(GY_MEM_BASE, total, 1);
    if (!p) return NULL;
    memcpy(p, dir, n_dir);
    if (slash) p[n_dir++] = '/';
    memcpy(p + n_dir, name, n_name);
    return p;
}
