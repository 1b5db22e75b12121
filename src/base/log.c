/* logfmt lines: composed in a buffer on the stack, written with one write(2), so lines of several threads never mix.
 * Deliberately not here: files, rotation, buffering. A line that cannot be written is lost; logging never fails
 * anybody.
 */
#include "base/log.h"

#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 4096 };

static _Atomic int log_level = GY_LOG_WARN;
static _Atomic int log_fd = STDERR_FILENO;

static const char *const log_names[] = {"error", "warn", "info", "debug", "trace"};
enum { LOG_LEVELS = sizeof log_names / sizeof *log_names };

void gy_log_set_level(gy_log_level level) {
    atomic_store(&log_level, (int)level);
}

int gy_log_level_parse(const char *name, gy_log_level *level_out) {
    for (int i = 0; i < LOG_LEVELS; i++) {
        if (strcmp(name, log_names[i]) != 0) continue;
        *level_out = (gy_log_level)i;
        return 0;
    }
    return -1;
}

void gy_log_set_fd(int fd) {
    atomic_store(&log_fd, fd);
}

int gy_log_enabled(gy_log_level level) {
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* Escapes one byte into at most 4. Bytes from 0x80 pass: they are UTF-8 of names and paths. */
static int log_escape(unsigned char c, char out[5]) {
    if (c == '"' || c == '\\') return snprintf(out, 5, "\\%c", c);
    if (c == '\n') return snprintf(out, 5, "\\n");
    if (c == '\r') return snprintf(out, 5, "\\r");
    if (c == '\t') return snprintf(out, 5, "\\t");
    if (c < 0x20 || c == 0x7F) return snprintf(out, 5, "\\x%02x", c);
    out[0] = (char)c;
    return 1;
}

/* Needs cap >= 3. The closing quote always fits: a long text is cut before it. Returns the length. */
static size_t log_put_quoted(char *buf, size_t cap, const char *s) {
    size_t n = 0;
    buf[n++] = '"';
    for (; *s; s++) {
        char esc[5];
        size_t m = (size_t)log_escape((unsigned char)*s, esc);
        if (n + m + 2 > cap) break;
        memcpy(buf + n, esc, m);
        n += m;
    }
    buf[n++] = '"';
    buf[n] = '\0';
    return n;
}

const char *gy_log_quote(const char *s, char *buf, int cap) {
    if (cap < 3) return "\"\"";
    log_put_quoted(buf, (size_t)cap, s ? s : "");
    return buf;
}

static size_t log_put_head(char *line, size_t cap, gy_log_level level, const char *area) {
    int64_t now = gy_clock_wall_ns();
    time_t sec = (time_t)(now / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    const char *name = (unsigned)level < LOG_LEVELS ? log_names[level] : "unknown";
    int n = snprintf(line, cap, "ts=%s.%03dZ level=%s area=%.32s msg=", stamp, (int)(now / 1000000 % 1000), name, area);
    return n < 0 ? 0 : (size_t)n;
}

/* The pairs were built by the caller; a control byte in them would break the line, so none passes. */
__attribute__((format(printf, 3, 0))) static size_t log_put_pairs(char *line, size_t n, const char *fmt, va_list ap) {
    size_t start = n, room = LOG_LINE_BYTES - 1 - n;
    if (room < 2) return n;
    line[n++] = ' ';
    int m = vsnprintf(line + n, room - 1, fmt, ap);
    if (m < 0) return start;
    n += (size_t)m < room - 1 ? (size_t)m : room - 2;
    for (size_t i = start; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = '?';
    return n;
}

void gy_log(gy_log_level level, const char *area, const char *msg, const char *kv_fmt, ...) {
    if (!gy_log_enabled(level)) return;
    int saved = errno;
    char line[LOG_LINE_BYTES + 1];
    size_t n = log_put_head(line, sizeof line, level, area);
    n += log_put_quoted(line + n, LOG_LINE_BYTES - n, msg);
    if (kv_fmt) {
        va_list ap;
        va_start(ap, kv_fmt);
        n = log_put_pairs(line, n, kv_fmt, ap);
        va_end(ap);
    }
    line[n++] = '\n';
    int fd = atomic_load(&log_fd);
    while (write(fd, line, n) < 0 && errno == EINTR) {
    }
    errno = saved;
}
