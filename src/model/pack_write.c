/* Writing a pack cache. NAME.part is locked while it is written, and removed or renamed before the lock goes; so of
 * several processes one writes, and the part of one that was killed is taken over by the next. Room is asked for before
 * the first byte.
 */
#include "base/sum64.h"
#include "model/pack_int.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static gy_status io_error(gy_err *err, const char *path, const char *what, int why) {
    return gy_err_set(err, GY_E_IO, "%s: cannot %s: %s", path, what, strerrordesc_np(why));
}

/* ---- the header ----------------------------------------------------------------------------------------------------
 */

typedef struct head_buf {
    char *data;
    size_t bytes, file_bytes;
} head_buf;

static size_t aligned(size_t bytes) {
    return GY_ALIGN_UP(bytes, PACK_ALIGN);
}

/* Sections in the order of parts; returns the file's size. */
static size_t put_sections(const gy_pack_cache *c, pack_section *s, size_t at) {
    for (size_t i = 0; i < c->part.len; i++) {
        const gy_pack_part *p = &c->part.data[i];
        s[i] = (pack_section){.kind = (uint32_t)p->kind,
                              .type = (uint32_t)p->type,
                              .index = p->index,
                              .n = p->n,
                              .k = p->k,
                              .at = at,
                              .bytes = p->bytes};
        at += aligned(p->bytes);
    }
    return at;
}

static void put_head(const gy_pack_cache *c, head_buf *b, size_t n_piece) {
    pack_head *h = (pack_head *)(void *)b->data;
    *h = (pack_head){.magic = PACK_MAGIC,
                     .version = PACK_VERSION,
                     .n_section = (uint32_t)c->part.len,
                     .head_bytes = b->bytes,
                     .file_bytes = b->file_bytes,
                     .id = c->id,
                     .n_piece = n_piece};
    memcpy(h->form, c->form, sizeof h->form);
    memcpy(h->layout, c->layout, sizeof h->layout);
    h->id.whole = pack_whole(&c->key);
    h->sum = gy_sum64(b->data + sizeof *h, b->bytes - sizeof *h, gy_sum64(h, sizeof *h, 0));
}

static gy_status make_head(const gy_pack_cache *c, gy_err *err, head_buf *out) {
    pack_pieces p;
    size_t n = 0, sections = c->part.len * sizeof(pack_section);
    for (size_t i = 0; i < c->part.len; i++) n += pack_n_piece(c->part.data[i].bytes);
    head_buf b = {.bytes = aligned(sizeof(pack_head) + sections + n * sizeof(uint64_t))};
    b.data = gy_mem_alloc(GY_MEM_MODEL, b.bytes, 1);
    if (!b.data || pack_pieces_make(&p, n)) {
        gy_mem_free(b.data);
        return gy_err_set(err, GY_E_NOMEM, "pack cache: no memory for a header of %zu bytes", b.bytes);
    }
    for (size_t i = 0; i < c->part.len; i++) pack_pieces_put(&p, c->part.data[i].data, c->part.data[i].bytes);
    pack_pieces_sum(&p, c->key.be, NULL, NULL);
    b.file_bytes = put_sections(c, (pack_section *)(void *)(b.data + sizeof(pack_head)), b.bytes);
    memcpy(b.data + sizeof(pack_head) + sections, p.sum, n * sizeof *p.sum);
    pack_pieces_free(&p);
    put_head(c, &b, n);
    *out = b;
    return GY_OK;
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------
 */

static int put_bytes(int fd, const char *p, size_t n, size_t at, gy_pack_progress progress, void *arg) {
    enum { STEP = 8 << 20 };
    while (n) {
        ssize_t got = pwrite(fd, p, n < STEP ? n : STEP, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : ENOSPC;
        p += got;
        n -= (size_t)got;
        at += (size_t)got;
        if (progress) progress(arg, (size_t)got);
    }
    return 0;
}

/* All bytes of the file, on its disk. 0 or an errno. */
static int put_all(const gy_pack_cache *c, int fd, const head_buf *h, gy_pack_progress progress, void *arg) {
    size_t at = h->bytes;
    int why = ftruncate(fd, 0) ? errno : 0;
    if (!why && fallocate(fd, 0, 0, (off_t)h->file_bytes) && errno != EOPNOTSUPP && errno != ENOSYS) why = errno;
    if (!why && ftruncate(fd, (off_t)h->file_bytes)) why = errno; /* where room cannot be asked for */
    if (!why) why = put_bytes(fd, h->data, h->bytes, 0, NULL, NULL);
    for (size_t i = 0; !why && i < c->part.len; i++) {
        why = put_bytes(fd, c->part.data[i].data, c->part.data[i].bytes, at, progress, arg);
        at += aligned(c->part.data[i].bytes);
    }
    return !why && fsync(fd) ? errno : why;
}

/* ---- the lock ------------------------------------------------------------------------------------------------------
 */

static int is_still_there(int fd, const char *path) {
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* A descriptor of path that is locked and still has this name, or GY_AGAIN: whoever held it before has just renamed it.
 */
static gy_status lock(const char *path, gy_err *err, int *fd_out) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return io_error(err, path, "write", errno);
    int why = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
    if (!why && is_still_there(fd, path)) {
        *fd_out = fd;
        return GY_OK;
    }
    close(fd);
    return why && why != EWOULDBLOCK ? io_error(err, path, "lock", why) : GY_AGAIN;
}

/* A rename is on the disk when its folder is; a system that cannot say so has renamed all the same. */
static void sync_folder(const char *path) {
    char *copy = gy_mem_strdup(GY_MEM_MODEL, path);
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    gy_mem_free(copy);
}

static void make_folder(const char *path, int levels) {
    char *copy = gy_mem_strdup(GY_MEM_MODEL, path);
    char *dir = copy ? dirname(copy) : NULL;
    if (dir && !gy_dir_exists(dir)) {
        if (levels > 1) make_folder(dir, levels - 1);
        mkdir(dir, 0700);
    }
    gy_mem_free(copy);
}

static gy_status write_part(const gy_pack_cache *c, const char *path, const char *part, gy_pack_progress progress,
                            void *arg, gy_err *err) {
    int fd = -1;
    head_buf h = {0};
    gy_status st = lock(part, err, &fd);
    if (st != GY_OK) return st;
    st = make_head(c, err, &h);
    int why = st < 0 ? 0 : put_all(c, fd, &h, progress, arg);
    if (why) st = io_error(err, part, "write", why);
    if (st == GY_OK && rename(part, path)) st = io_error(err, path, "write", errno);
    if (st < 0) unlink(part);
    close(fd);
    if (st == GY_OK) sync_folder(path);
    gy_mem_free(h.data);
    return st;
}

/* Somebody's file, named by mistake: --pack-cache model.safetensors. One that was cut within its first word is ours. */
static int is_another(const char *path) {
    char begin[sizeof PACK_MAGIC - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno != ENOENT;
    ssize_t n = read(fd, begin, sizeof begin);
    close(fd);
    return n < 0 || memcmp(begin, PACK_MAGIC, (size_t)n) != 0;
}

gy_status pack_write(const gy_pack_cache *c, const char *path, gy_pack_progress progress, void *arg, gy_err *err) {
    if (is_another(path))
        return gy_err_set(err, GY_E_IO, "%s: not a pack cache, and not written over: delete it or name another file",
                          path);
    size_t n = strlen(path) + sizeof ".part";
    char *part = gy_mem_alloc(GY_MEM_MODEL, n, 1);
    if (!part) return gy_err_set(err, GY_E_NOMEM, "no memory for a path");
    snprintf(part, n, "%s.part", path);
    if (path == c->path[1]) make_folder(path, 2);
    gy_status st = write_part(c, path, part, progress, arg, err);
    gy_mem_free(part);
    return st;
}
