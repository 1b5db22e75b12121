/* Control groups (cgroups(7), the kernel's admin-guide/cgroup-v2 and cgroup-v1): which ones this process is in, and the
 * least of what they and all above them grant. Groups are looked for at the usual mount points only. Missing files mean
 * "no limit": inside a container the path of a group may lie above what is mounted; then its limit is that of the
 * mount's root, which is always asked too.
 */
#include "base/cgroup_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096 };

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

int gy_cgroup_parse(const char *text, const char *controller, char *out, size_t cap) {
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        const char *a = memchr(line, ':', len), *b = a ? memchr(a + 1, ':', len - (size_t)(a + 1 - line)) : NULL;
        int is_v2 = b && a - line == 1 && *line == '0' && b == a + 1;
        if (b && (controller ? list_has(a + 1, (size_t)(b - a - 1), controller) : is_v2)) {
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

/* The beginning of a file as text; empty when it cannot be read. /proc and /sys say no sizes. */
static int text_read(const char *path, char text[GY_CGROUP_TEXT]) {
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = '\0';
    if (fd < 0) return 0;
    for (ssize_t got; n < GY_CGROUP_TEXT - 1 && (got = read(fd, text + n, GY_CGROUP_TEXT - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(fd);
    return n > 0;
}

int gy_cgroup_read(const char *dir, const char *name, char text[GY_CGROUP_TEXT]) {
    char path[2 * PATH_CAP + 64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && text_read(path, text);
}

/* The least of a group and all above it, up to the mount's root. */
static size_t path_least(const char *root, const char *mount, const char *group, int v2, gy_cgroup_fn of) {
    char dir[2 * PATH_CAP];
    size_t least = SIZE_MAX;
    int base = snprintf(dir, sizeof dir, "%s%s", root, mount);
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, mount, group);
    if (base < 0 || n < base || (size_t)n >= sizeof dir) return SIZE_MAX;
    for (;;) {
        size_t left = of(dir, v2);
        if (left < least) least = left;
        char *slash = strrchr(dir + base, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

size_t gy_cgroup_least(const char *root, const char *controller, gy_cgroup_fn of) {
    char v1[64], proc[PATH_CAP], text[GY_CGROUP_TEXT];
    const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", v1};
    size_t least = SIZE_MAX;
    snprintf(v1, sizeof v1, "/sys/fs/cgroup/%.32s", controller);
    snprintf(proc, sizeof proc, "%s/proc", root);
    if (!gy_cgroup_read(proc, "self/cgroup", text)) return SIZE_MAX;
    for (int i = 0; i < 3; i++) {
        char group[PATH_CAP];
        if (!gy_cgroup_parse(text, i == 2 ? controller : NULL, group, sizeof group)) continue;
        size_t left = path_least(root, mounts[i], group, i < 2, of);
        if (left < least) least = left;
    }
    return least;
}
