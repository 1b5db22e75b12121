/* process_*: what Prometheus' client libraries tell about a process, from /proc/self. Read at each scrape; nothing is
 * kept. A system without /proc gives fewer lines, not wrong ones.
 */
#include "server/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void put(const char *name, const char *type, const char *help, double v, gy_str *out) {
    gy_str_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static int read_small(const char *path, char *buf, size_t cap) {
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    size_t n = fread(buf, 1, cap - 1, f);
    fclose(f);
    buf[n] = '\0';
    return n ? 0 : -1;
}

/* Fields 14, 15 (utime, stime), 22 (starttime), 23 (vsize), 24 (rss) of proc(5); the name in field 2 may hold anything,
 * so counting begins behind its last parenthesis. */
static void put_stat(gy_str *out) {
    char buf[2048];
    unsigned long long user, sys, start, vsize;
    long long rss;
    if (read_small("/proc/self/stat", buf, sizeof buf)) return;
    const char *p = strrchr(buf, ')');
    if (!p ||
        sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %llu %lld",
               &user, &sys, &start, &vsize, &rss) != 5)
        return;
    double hz = (double)sysconf(_SC_CLK_TCK);
    put("process_cpu_seconds_total", "counter", "User and system time of the process.", (double)(user + sys) / hz, out);
    put("process_virtual_memory_bytes", "gauge", "Address space.", (double)vsize, out);
    put("process_resident_memory_bytes", "gauge", "Memory in use, mapped weights included.",
        (double)rss * (double)sysconf(_SC_PAGESIZE), out);
    struct timespec up, now;
    if (clock_gettime(CLOCK_BOOTTIME, &up) || clock_gettime(CLOCK_REALTIME, &now)) return;
    double boot = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)up.tv_sec - (double)up.tv_nsec / 1e9;
    put("process_start_time_seconds", "gauge", "Start of the process, Unix time.", boot + (double)start / hz, out);
}

static void put_fds(gy_str *out) {
    struct rlimit lim;
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        while (readdir(d)) n++;
        closedir(d);
        put("process_open_fds", "gauge", "Open file descriptors.", n - 3, out); /* ".", ".." and the folder itself */
    }
    if (!getrlimit(RLIMIT_NOFILE, &lim))
        put("process_max_fds", "gauge", "Most file descriptors that may be open.", (double)lim.rlim_cur, out);
}

void gy_metrics_process_text(gy_str *out) {
    put_stat(out);
    put_fds(out);
}
