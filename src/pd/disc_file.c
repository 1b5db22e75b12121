/* A file of addresses, read again when it changes. What to watch for: a file is complete when its writer closes it,
 * when it is moved here, or when a link comes to be; between a truncation and the close it is anything. Kubernetes
 * changes a mounted file by moving a link to a folder (`..data`), of which the file is a link into: so both the folder
 * of the path and the folder where the file really lies are watched. What inotify does not see (a network file system
 * whose other hosts write) is not seen here. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "pd/disc_int.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 16, EVENTS = 1 << 14, RETRY_S = 1 };

static const uint32_t MASK = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB |
                             IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

typedef struct place { /* a folder that is watched */
    char folder[PATH_MAX], base[NAME_MAX + 1];
    int wd; /* -1: not watched */
} place;

struct gy_disc_file {
    char *path;
    int epfd, notify_fd, timer_fd;
    place given, real;
    gy_err said; /* the last complaint: once is enough */
};

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static int is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* One line without its newline becomes a worker, or nothing. */
static gy_status read_line(const char *at, size_t n, gy_err *err, gy_disc_set *out) {
    char text[GY_DISC_ADDRESS];
    const char *hash = memchr(at, '#', n);
    if (hash) n = (size_t)(hash - at);
    for (; n && is_blank(*at); n--) at++;
    while (n && is_blank(at[n - 1])) n--;
    if (!n) return GY_OK;
    size_t kept = n < sizeof text ? n : sizeof text - 1;
    memcpy(text, at, kept);
    text[kept] = '\0';
    GY_TRY(gy_disc_check_address(text, err));
    if (kept < n || strlen(text) != n || n >= GY_DISC_NAME)
        return gy_err_set(err, GY_E_ARG, "found an address of more than %d characters", GY_DISC_NAME - 1);
    int rc = gy_disc_set_put(out, text, text);
    if (rc == 0) return gy_err_set(err, GY_E_ARG, "found '%s' for the second time", text);
    if (rc < 0) return gy_err_set(err, GY_E_ARG, "found more than %d workers", GY_DISC_MAX_WORKERS);
    return GY_OK;
}

static gy_status read_text(const gy_str *s, gy_err *err, gy_disc_set *out) {
    int line = 1;
    out->n = 0;
    for (size_t at = 0; at < s->len; line++) {
        const char *end = memchr(s->data + at, '\n', s->len - at);
        size_t n = end ? (size_t)(end - s->data) - at : s->len - at;
        if (read_line(s->data + at, n, err, out) < 0) return gy_err_prefix(err, "line %d", line);
        at += n + 1;
    }
    return GY_OK;
}

/* An empty file is more likely one that is being written than the end of all workers: a comment says that. */
static gy_status read_file(const char *path, gy_err *err, gy_disc_set *out) {
    gy_disc_set fresh;
    gy_str s = {0};
    gy_err e = {0};
    gy_status st = gy_file_read(path, MAX_FILE, err, &s);
    if (st == GY_OK && !s.len)
        st = gy_err_set(err, GY_E_ARG, "%s: found an empty file, expected HOST:PORT lines", path);
    if (st == GY_OK && read_text(&s, &e, &fresh) < 0) st = gy_err_set(err, e.status, "%s: %s", path, e.msg);
    if (st == GY_OK) *out = fresh;
    gy_str_free(&s);
    return st;
}

/* ---- what is watched --------------------------------------------------------------------------------------------- */

static void set_place(place *p, const char *path) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash)
        strcpy(p->folder, ".");
    else if (!n)
        strcpy(p->folder, "/");
    else
        memcpy(p->folder, path, n), p->folder[n] = '\0';
    const char *base = slash ? slash + 1 : path;
    n = strnlen(base, sizeof p->base - 1);
    memcpy(p->base, base, n);
    p->base[n] = '\0';
}

static void unwatch(gy_disc_file *f, place *p) {
    if (p->wd >= 0 && (p == &f->given || p->wd != f->given.wd)) inotify_rm_watch(f->notify_fd, p->wd);
    p->wd = -1;
}

/* Links may have changed where the file lies. Without the folder of the path the timer tries again. */
static void watch_again(gy_disc_file *f) {
    char real[PATH_MAX];
    struct itimerspec t = {0};
    int wd = inotify_add_watch(f->notify_fd, f->given.folder, MASK);
    if (wd != f->given.wd) unwatch(f, &f->given);
    f->given.wd = wd;
    if (realpath(f->path, real)) {
        place fresh = {.wd = -1};
        set_place(&fresh, real);
        if (strcmp(fresh.folder, f->real.folder)) unwatch(f, &f->real);
        fresh.wd = inotify_add_watch(f->notify_fd, fresh.folder, MASK);
        f->real = fresh;
    }
    if (wd < 0) t.it_value.tv_sec = RETRY_S;
    timerfd_settime(f->timer_fd, 0, &t, NULL);
}

/* A plain file that was just made is empty still; one with another name elsewhere is not. */
static int is_whole(const gy_disc_file *f, uint32_t mask) {
    struct stat s;
    if (!(mask & IN_CREATE)) return 1;
    return lstat(f->path, &s) == 0 && (!S_ISREG(s.st_mode) || s.st_nlink > 1);
}

static int is_link(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

static int is_named(const place *p, const struct inotify_event *ev) {
    return ev->wd == p->wd && !strcmp(ev->name, p->base);
}

static int concerns(const gy_disc_file *f, const struct inotify_event *ev) {
    if (ev->mask & (IN_Q_OVERFLOW | IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) return 1;
    if (!ev->len) return 0;
    if (is_named(&f->given, ev) || is_named(&f->real, ev)) return is_whole(f, ev->mask);
    /* A link on the way, of whatever name, has been replaced. */
    return (ev->mask & (IN_MOVED_TO | IN_CREATE)) && is_link(f->path);
}

static int drain_events(gy_disc_file *f) {
    char buf[EVENTS] __attribute__((aligned(__alignof__(struct inotify_event))));
    int found = 0;
    ssize_t got;
    while ((got = read(f->notify_fd, buf, sizeof buf)) > 0) {
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *ev = (const void *)(buf + at);
            found |= concerns(f, ev);
            at += (ssize_t)(sizeof *ev + ev->len);
        }
    }
    return found;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void complain(gy_disc_file *f, const gy_err *e) {
    char quoted[1100];
    if (!strcmp(f->said.msg, e->msg)) return;
    f->said = *e;
    gy_log(GY_LOG_WARN, "pd", "the list of workers is not read: what it said before holds", "why=%s",
           gy_log_quote(e->msg, quoted, (int)sizeof quoted));
}

int gy_disc_file_look(gy_disc_file *f, gy_disc_set *fresh) {
    uint64_t n;
    gy_err e = {0};
    int is_due = read(f->timer_fd, &n, sizeof n) > 0;
    if (!drain_events(f) && !is_due) return 0;
    watch_again(f);
    if (read_file(f->path, &e, fresh) < 0) {
        complain(f, &e);
        return 0;
    }
    f->said = (gy_err){0};
    return 1;
}

int gy_disc_file_fd(const gy_disc_file *f) {
    return f->epfd;
}

static gy_status open_watch(gy_disc_file *f, gy_err *err) {
    struct epoll_event ev = {.events = EPOLLIN};
    f->epfd = epoll_create1(EPOLL_CLOEXEC);
    f->notify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    f->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (f->notify_fd < 0)
        return gy_err_set(err, GY_E_IO, "%s: changes cannot be watched: %s (see fs.inotify.max_user_instances)",
                          f->path, strerrordesc_np(errno));
    if (f->epfd < 0 || f->timer_fd < 0 || epoll_ctl(f->epfd, EPOLL_CTL_ADD, f->notify_fd, &ev) < 0 ||
        epoll_ctl(f->epfd, EPOLL_CTL_ADD, f->timer_fd, &ev) < 0)
        return gy_err_set(err, GY_E_IO, "%s: changes cannot be watched: %s", f->path, strerrordesc_np(errno));
    watch_again(f);
    if (f->given.wd < 0)
        return gy_err_set(err, GY_E_IO, "%s: changes of its folder cannot be watched: %s", f->path,
                          strerrordesc_np(errno));
    return GY_OK;
}

gy_status gy_disc_file_open(const char *path, gy_err *err, gy_disc_set *first, gy_disc_file **out) {
    if (strlen(path) >= PATH_MAX) return gy_err_set(err, GY_E_ARG, "%.64s...: the path is too long", path);
    gy_disc_file *f = gy_mem_alloc(GY_MEM_PD, 1, sizeof *f);
    if (!f) return gy_err_set(err, GY_E_NOMEM, "no memory for discovery");
    f->epfd = f->notify_fd = f->timer_fd = f->given.wd = f->real.wd = -1;
    f->path = gy_mem_strdup(GY_MEM_PD, path);
    gy_status st = f->path ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for discovery");
    if (st == GY_OK) set_place(&f->given, path);
    gy_err e = {0};
    if (st == GY_OK) st = read_file(path, err, first); /* a file that is not there is told before its folder */
    if (st == GY_OK) st = open_watch(f, err);
    if (st == GY_OK && read_file(path, &e, first) < 0) complain(f, &e); /* changed while nobody watched */
    if (st < 0)
        gy_disc_file_close(f);
    else
        *out = f;
    return st;
}

void gy_disc_file_close(gy_disc_file *f) {
    if (!f) return;
    if (f->epfd >= 0) close(f->epfd);
    if (f->notify_fd >= 0) close(f->notify_fd);
    if (f->timer_fd >= 0) close(f->timer_fd);
    gy_mem_free(f->path);
    gy_mem_free(f);
}
