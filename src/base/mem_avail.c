/* How much memory this process may still use: /proc/meminfo (proc(5)) and the limits of its control groups (cgroup.c).
 */
#include "base/cgroup_int.h"
#include "base/mem.h"
#include "base/mem_avail_int.h"

#include <stdio.h>
#include <string.h>

enum { PATH_CAP = 4096 };

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

/* v1 writes "no limit" as the greatest multiple of a page below 2^63. */
size_t gy_mem_parse_limit(const char *limit, const char *used, const char *stat) {
    size_t max, now, idle = 0;
    if (!number_parse(limit, &max) || !number_parse(used, &now) || max >= (size_t)INT64_MAX / 2) return SIZE_MAX;
    if (!field_parse(stat, "total_inactive_file ", &idle)) field_parse(stat, "inactive_file ", &idle);
    now -= idle < now ? idle : now;
    return now < max ? max - now : 0;
}

static size_t group_left(const char *dir, int v2) {
    char limit[GY_CGROUP_TEXT], used[GY_CGROUP_TEXT], stat[GY_CGROUP_TEXT];
    if (!gy_cgroup_read(dir, v2 ? "memory.max" : "memory.limit_in_bytes", limit)) return SIZE_MAX;
    if (!gy_cgroup_read(dir, v2 ? "memory.current" : "memory.usage_in_bytes", used)) return SIZE_MAX;
    gy_cgroup_read(dir, "memory.stat", stat);
    return gy_mem_parse_limit(limit, used, stat);
}

/* Nothing left is said as 1 byte: 0 means unknown. */
size_t gy_mem_available_at(const char *root) {
    char text[GY_CGROUP_TEXT], path[PATH_CAP];
    size_t bytes, left = gy_cgroup_least(root, "memory", group_left);
    snprintf(path, sizeof path, "%s/proc", root);
    bytes = gy_cgroup_read(path, "meminfo", text) ? gy_mem_parse_meminfo(text) : 0;
    if (bytes == 0 && left == SIZE_MAX) return 0;
    if (bytes == 0 || left < bytes) bytes = left;
    return bytes ? bytes : 1;
}

size_t gy_mem_available(void) {
    return gy_mem_available_at("");
}
