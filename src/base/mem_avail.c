/* How much memory this process may still use: /proc/meminfo and the limits of its control groups. Formats: proc(5),
 * cgroups(7), the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory. Groups are looked for at the usual mount points
 * only. Missing files mean "no limit": inside a container the path of a group may lie above what is mounted; then its
 * limit is that of the mount's root, which is always asked too.
 */
#include "base/mem.h"
#include "base/mem_avail_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_CAP = 16384, PATH_CAP = 4096 };

/* Decimal digits at s. Returns where they end, NULL when there are none or they do not fit. */
static const char *number_parse(const char *s, size_t *out) {
    const char *p = s;
    size_t x = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (gy_size_mul(x, 10, &x) || gy_size_add(x, (size_t)(*p - '0'), &x)) return NULL;
    if (p == s) return NULL;
    *out = x;
    return p;
}

/* The number that follows `key` and blanks at the beginning of a line. */
static const char *field_parse(const char *text, const char *key, size_t *out) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) != 0) continue;
        return number_parse(line + n + strspn(line + n, " \t"), out);
    }
    return NULL;
}

size_t gy_mem_parse_meminfo(const char *text) {
    size_t kb, bytes;
    const char *unit = field_parse(text, "MemAvailable:", &kb);
    if (!unit || strncmp(unit, " kB", 3) != 0 || gy_size_mul(kb, 1024, &bytes)) return 0;
    return bytes;
}

static int list_has(const char *list, size_t len, const char *word) {
    size_t n = strlen(word);
    for (size_t at = 0; at + n <= len;) {
        const char *comma = memchr(list + at, ',', len - at);
        size_t end = comma ? (size_t)(comma - list) : len;
        if (end - at == n && memcmp(list + at, word, n) == 0) return 1;
        at = end + 1;
    }
    return 0;
}

int gy_mem_parse_cgroup(const char *text, int v2, char *out, size_t cap) {
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        const char *a = memchr(line, ':', len), *b = a ? memchr(a + 1, ':', len - (size_t)(a + 1 - line)) : NULL;
        int is_v2 = b && a - line == 1 && *line == '0' && b == a + 1;
        if (b && (v2 ? is_v2 : list_has(a + 1, (size_t)(b - a - 1), "memory"))) {
            size_t n = len - (size_t)(b + 1 - line);
            if (n >= cap) return 0;
            memcpy(out, b + 1, n);
            out[n] = '\0';
            return 1;
        }
        line += len + (line[len] == '\n');
    }
    return 0;
}

/* v1 writes "no limit" as the greatest multiple of a page below 2^63. */
size_t gy_mem_parse_limit(const char *limit, const char *used, const char *stat) {
    size_t max, now, idle = 0;
    if (!number_parse(limit, &max) || !number_parse(used, &now) || max >= (size_t)INT64_MAX / 2) return SIZE_MAX;
    if (!field_parse(stat, "total_inactive_file ", &idle)) field_parse(stat, "inactive_file ", &idle);
    now -= idle < now ? idle : now;
    return now < max ? max - now : 0;
}

/* The beginning of a file as text; empty when it cannot be read. /proc and /sys say no sizes. */
static int text_read(const char *path, char text[TEXT_CAP]) {
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = '\0';
    if (fd < 0) return 0;
    for (ssize_t got; n < TEXT_CAP - 1 && (got = read(fd, text + n, TEXT_CAP - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(fd);
    return n > 0;
}

static int file_read(const char *dir, const char *name, char text[TEXT_CAP]) {
    char path[2 * PATH_CAP + 64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && text_read(path, text);
}

static size_t group_left(const char *dir, int v2) {
    char limit[TEXT_CAP], used[TEXT_CAP], stat[TEXT_CAP];
    if (!file_read(dir, v2 ? "memory.max" : "memory.limit_in_bytes", limit)) return SIZE_MAX;
    if (!file_read(dir, v2 ? "memory.current" : "memory.usage_in_bytes", used)) return SIZE_MAX;
    file_read(dir, "memory.stat", stat);
    return gy_mem_parse_limit(limit, used, stat);
}

/* The least of a group and all above it, up to the mount's root. */
static size_t path_left(const char *root, const char *mount, const char *group, int v2) {
    char dir[2 * PATH_CAP];
    size_t least = SIZE_MAX;
    int base = snprintf(dir, sizeof dir, "%s%s", root, mount);
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, mount, group);
    if (base < 0 || n < base || (size_t)n >= sizeof dir) return SIZE_MAX;
    for (;;) {
        size_t left = group_left(dir, v2);
        if (left < least) least = left;
        char *slash = strrchr(dir + base, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static size_t groups_left(const char *root, const char *cgroup) {
    static const struct {
        const char *mount;
        int v2;
    } at[] = {{"/sys/fs/cgroup", 1}, {"/sys/fs/cgroup/unified", 1}, {"/sys/fs/cgroup/memory", 0}};
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char group[PATH_CAP];
        if (!gy_mem_parse_cgroup(cgroup, at[i].v2, group, sizeof group)) continue;
        size_t left = path_left(root, at[i].mount, group, at[i].v2);
        if (left < least) least = left;
    }
    return least;
}

/* Nothing left is said as 1 byte: 0 means unknown. */
size_t gy_mem_available_at(const char *root) {
    char text[TEXT_CAP], path[PATH_CAP];
    size_t bytes, left = SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc", root);
    bytes = file_read(path, "meminfo", text) ? gy_mem_parse_meminfo(text) : 0;
    if (file_read(path, "self/cgroup", text)) left = groups_left(root, text);
    if (bytes == 0 && left == SIZE_MAX) return 0;
    if (bytes == 0 || left < bytes) bytes = left;
    return bytes ? bytes : 1;
}

size_t gy_mem_available(void) {
    return gy_mem_available_at("");
}
