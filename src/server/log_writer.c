/* The ring holds [length][bytes] of each line. The thread takes as many whole lines as its own buffer holds under the
 * lock and writes them without it.
 */
#include "server/log_writer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH_BYTES = 65536, FILE_MODE = 0640 };

struct gy_log_writer {
    const char *path;
    int fd, is_own, is_file; /* the thread's from open on */
    pthread_t thread;
    int has_thread;
    char *batch;                  /* [BATCH_BYTES], the thread's */
    int is_bad;                   /* the thread's: lines do not get through, and that was said */
    uint64_t lost_seen, bad_from; /* the thread's: lines lost until its last turn, until is_bad */
    pthread_cond_t bell;          /* something to do */
    pthread_mutex_t lock;         /* of all below */
    char *ring;
    size_t cap, head, len;
    int reopen, stop;
    size_t reopen_after; /* bytes of the ring that were put before the last reopen */
    int64_t stop_ns;
    gy_log_writer_stats stats;
};

/* ---- the ring; under the lock ---- */

static void ring_put(gy_log_writer *w, const void *bytes, size_t n) {
    size_t at = (w->head + w->len) % w->cap, first = w->cap - at < n ? w->cap - at : n;
    memcpy(w->ring + at, bytes, first);
    memcpy(w->ring, (const char *)bytes + first, n - first);
    w->len += n;
}

static void ring_peek(const gy_log_writer *w, size_t skip, void *out, size_t n) {
    size_t at = (w->head + skip) % w->cap, first = w->cap - at < n ? w->cap - at : n;
    memcpy(out, w->ring + at, first);
    memcpy((char *)out + first, w->ring, n - first);
}

static void ring_drop(gy_log_writer *w, size_t n) {
    w->head = (w->head + n) % w->cap;
    w->len -= n;
    w->reopen_after -= w->reopen_after < n ? w->reopen_after : n;
}

int gy_log_writer_put(gy_log_writer *w, const char *line, size_t n) {
    uint32_t len = (uint32_t)n;
    pthread_mutex_lock(&w->lock);
    int fits = n <= BATCH_BYTES && n + sizeof len <= w->cap - w->len;
    if (fits) {
        ring_put(w, &len, sizeof len);
        ring_put(w, line, n);
        pthread_cond_signal(&w->bell);
    } else {
        w->stats.n_dropped++;
    }
    pthread_mutex_unlock(&w->lock);
    return fits ? 0 : -1;
}

void gy_log_writer_reopen(gy_log_writer *w) {
    if (!w->path) return;
    pthread_mutex_lock(&w->lock);
    w->reopen = 1;
    w->reopen_after = w->len;
    pthread_cond_signal(&w->bell);
    pthread_mutex_unlock(&w->lock);
}

void gy_log_writer_get_stats(gy_log_writer *w, gy_log_writer_stats *out) {
    pthread_mutex_lock(&w->lock);
    *out = w->stats;
    out->waiting = w->len;
    pthread_mutex_unlock(&w->lock);
}

/* ---- the file; the thread's ---- */

static int open_path(const char *path) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, FILE_MODE);
}

static void take_fd(gy_log_writer *w, int fd, int is_own) {
    struct stat st;
    w->fd = fd;
    w->is_own = is_own;
    w->is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

static void reopen(gy_log_writer *w) {
    char name[512], why[128];
    int fd = open_path(w->path);
    gy_log_quote(w->path, name, sizeof name);
    if (fd < 0) {
        gy_log(GY_LOG_ERROR, "server", "the access log cannot be reopened: lines go to the file as it was",
               "file=%s error=%s", name, gy_log_quote(strerrordesc_np(errno), why, sizeof why));
        return;
    }
    if (w->is_own) close(w->fd);
    take_fd(w, fd, 1);
    gy_log(GY_LOG_INFO, "server", "the access log was reopened", "file=%s", name);
}

static int is_late(gy_log_writer *w) {
    pthread_mutex_lock(&w->lock);
    int late = w->stop && gy_clock_ns() >= w->stop_ns;
    pthread_mutex_unlock(&w->lock);
    return late;
}

/* Until there is room. -1: told to end, or the descriptor is broken. */
static int await_room(gy_log_writer *w) {
    for (;;) {
        struct pollfd p = {.fd = w->fd, .events = POLLOUT};
        int late = is_late(w), n = poll(&p, 1, late ? 0 : 100);
        if (n > 0 && p.revents & POLLOUT) return 0;
        if (n > 0 || late) return errno = late ? ETIMEDOUT : EPIPE, -1;
    }
}

/* 0, or -1 with errno and *done bytes out. */
static int write_all(gy_log_writer *w, const char *s, size_t n, size_t *done) {
    for (*done = 0; *done < n;) {
        size_t most = n - *done;
        if (!w->is_file && most > PIPE_BUF) most = PIPE_BUF;
        if (!w->is_file && await_room(w) < 0) return -1;
        ssize_t put = write(w->fd, s + *done, most);
        if (put > 0)
            *done += (size_t)put;
        else if (put < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
    }
    return 0;
}

/* ---- the thread ---- */

typedef struct batch {
    size_t len;
    uint64_t n_line;
    int reopen; /* before it is written */
    int is_end; /* after it was written */
} batch;

/* Whole lines; those before the mark of a reopen are not mixed with those behind it. */
static void take_lines(gy_log_writer *w, batch *b) {
    uint32_t n;
    while (w->len > 0 && !(w->reopen && w->reopen_after == 0)) {
        ring_peek(w, 0, &n, sizeof n);
        if (b->len + n > BATCH_BYTES) break;
        ring_peek(w, sizeof n, w->batch + b->len, n);
        ring_drop(w, sizeof n + n);
        b->len += n;
        b->n_line++;
    }
}

static void take_batch(gy_log_writer *w, batch *b) {
    *b = (batch){0};
    pthread_mutex_lock(&w->lock);
    while (w->len == 0 && !w->reopen && !w->stop) pthread_cond_wait(&w->bell, &w->lock);
    b->reopen = w->reopen && w->reopen_after == 0;
    if (b->reopen) w->reopen = 0;
    take_lines(w, b);
    b->is_end = w->stop && w->len == 0 && !w->reopen;
    pthread_mutex_unlock(&w->lock);
}

/* Lines whose last byte got out. */
static uint64_t count_lines(const char *s, size_t n) {
    uint64_t lines = 0;
    for (const char *at = s, *end = s + n; (at = memchr(at, '\n', (size_t)(end - at))); at++) lines++;
    return lines;
}

static const char *reason(int error) {
    if (error == ETIMEDOUT) return "the program ends and nobody takes them";
    return error ? strerrordesc_np(error) : "they come faster than they can be written";
}

static void note_lost(gy_log_writer *w, int error, uint64_t lost) {
    char why[128];
    if (lost > w->lost_seen && !w->is_bad) {
        w->is_bad = 1;
        w->bad_from = w->lost_seen;
        gy_log(GY_LOG_ERROR, "server", "lines of the access log are lost", "error=%s",
               gy_log_quote(reason(error), why, sizeof why));
    } else if (lost == w->lost_seen && w->is_bad) {
        w->is_bad = 0;
        gy_log(GY_LOG_WARN, "server", "lines of the access log get through again", "lost=%llu",
               (unsigned long long)(lost - w->bad_from));
    }
    w->lost_seen = lost;
}

static void write_batch(gy_log_writer *w, const batch *b) {
    size_t done;
    int error = write_all(w, w->batch, b->len, &done) == 0 ? 0 : errno;
    uint64_t written = error ? count_lines(w->batch, done) : b->n_line;
    pthread_mutex_lock(&w->lock);
    w->stats.n_line += written;
    w->stats.n_failed += b->n_line - written;
    uint64_t lost = w->stats.n_dropped + w->stats.n_failed;
    pthread_mutex_unlock(&w->lock);
    note_lost(w, error, lost);
}

static void *writer_main(void *arg) {
    gy_log_writer *w = arg;
    for (batch b = {0}; !b.is_end;) {
        take_batch(w, &b);
        if (b.reopen) reopen(w);
        if (b.len > 0) write_batch(w, &b);
    }
    return NULL;
}

/* ---- life ---- */

static gy_status open_file(gy_log_writer *w, int fd, gy_err *err) {
    int own = w->path ? open_path(w->path) : -1;
    if (w->path && own < 0)
        return gy_err_set(err, GY_E_IO, "%s: cannot be opened for writing: %s", w->path, strerrordesc_np(errno));
    take_fd(w, w->path ? own : fd, w->path != NULL);
    return GY_OK;
}

gy_status gy_log_writer_open(const char *path, int fd, size_t cap, gy_err *err, gy_log_writer **out) {
    gy_log_writer *w = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *w);
    if (!w) return gy_err_set(err, GY_E_NOMEM, "access log: no memory");
    w->path = path;
    w->fd = -1;
    w->cap = cap;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->bell, NULL);
    w->ring = gy_mem_alloc(GY_MEM_SERVER, cap, 1);
    w->batch = gy_mem_alloc(GY_MEM_SERVER, BATCH_BYTES, 1);
    gy_status st = w->ring && w->batch ? open_file(w, fd, err) : gy_err_set(err, GY_E_NOMEM, "access log: no memory");
    if (st == GY_OK && pthread_create(&w->thread, NULL, writer_main, w) != 0)
        st = gy_err_set(err, GY_E_NOMEM, "access log: no thread to write it");
    w->has_thread = st == GY_OK;
    if (st != GY_OK) {
        gy_log_writer_close(w, 0);
        return st;
    }
    *out = w;
    return GY_OK;
}

static void stop_thread(gy_log_writer *w, int wait_ms) {
    pthread_mutex_lock(&w->lock);
    w->stop_ns = gy_clock_ns() + (int64_t)wait_ms * 1000000;
    w->stop = 1;
    pthread_cond_signal(&w->bell);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

void gy_log_writer_close(gy_log_writer *w, int wait_ms) {
    if (!w) return;
    if (w->has_thread) stop_thread(w, wait_ms);
    if (w->is_own && w->fd >= 0) close(w->fd);
    pthread_cond_destroy(&w->bell);
    pthread_mutex_destroy(&w->lock);
    gy_mem_free(w->ring);
    gy_mem_free(w->batch);
    gy_mem_free(w);
}
