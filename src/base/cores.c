/* Cores: affinity, the siblings and nodes that sysfs tells (Documentation/ABI/stable/sysfs-devices-system-cpu and
 * -node), and the processor time that control groups grant.
 */
#include "base/cgroup_int.h"
#include "base/cpu.h"
#include "base/cpu_int.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CPU_SETS = 8, CPU_MAX = CPU_SETS * CPU_SETSIZE, NODE_MAX = 1024, LIST_CAP = 4096 };
typedef struct cpu_bits {
    cpu_set_t set[CPU_SETS]; /* one long bit set of CPU_MAX bits */
} cpu_bits;

static int has_cpu(const cpu_bits *a, long cpu) {
    return cpu >= 0 && cpu < CPU_MAX && CPU_ISSET_S((size_t)cpu, sizeof a->set, a->set);
}

/* sysfs list "0-3,64"; what is beyond CPU_MAX, or no list, is left out. */
static void parse_list(const char *list, cpu_bits *out) {
    memset(out, 0, sizeof *out);
    for (const char *s = list; *s >= '0' && *s <= '9';) {
        char *end;
        long lo = strtol(s, &end, 10), hi = lo;
        if (*end == '-') hi = strtol(end + 1, &end, 10);
        for (long i = lo; i <= hi && i < CPU_MAX; i++) CPU_SET_S((size_t)i, sizeof out->set, out->set);
        s = *end == ',' ? end + 1 : end;
    }
}

/* Where the system does not say, all processors that are on line. */
static void get_allowed(cpu_bits *a) {
    memset(a, 0, sizeof *a);
    if (sched_getaffinity(0, sizeof a->set, a->set) == 0 && CPU_COUNT_S(sizeof a->set, a->set) > 0) return;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = 0; i == 0 || (i < n && i < CPU_MAX); i++) CPU_SET_S((size_t)i, sizeof a->set, a->set);
}

/* A list in sysfs. 0: there is none. */
static int read_list(const char *root, const char *path, long i, const char *name, cpu_bits *out) {
    char full[512], text[LIST_CAP];
    snprintf(full, sizeof full, "%.256s%s%ld/%s", root, path, i, name);
    FILE *f = fopen(full, "re");
    if (!f) return 0;
    int got = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    if (got) parse_list(text, out);
    return got;
}

/* Does it stand for its core: the lowest of the siblings that are allowed? Kernels before 5.2 know only the second
 * name.
 */
static int is_first_of_core(const char *root, const cpu_bits *allowed, long cpu) {
    static const char *const names[] = {"topology/core_cpus_list", "topology/thread_siblings_list"};
    cpu_bits siblings;
    for (int i = 0; i < 2; i++) {
        if (!read_list(root, "/sys/devices/system/cpu/cpu", cpu, names[i], &siblings)) continue;
        long first = 0;
        while (first < cpu && !(has_cpu(&siblings, first) && has_cpu(allowed, first))) first++;
        return first == cpu;
    }
    return 1;
}

/* ---- the quota -----------------------------------------------------------------------------------------------------
 */

/* v2: "QUOTA PERIOD" or "max PERIOD", microseconds. v1: two files, -1 for no limit. Whole CPUs, at least one. */
static size_t group_quota(const char *dir, int v2) {
    char quota[GY_CGROUP_TEXT], period[GY_CGROUP_TEXT];
    if (!gy_cgroup_read(dir, v2 ? "cpu.max" : "cpu.cfs_quota_us", quota)) return SIZE_MAX;
    if (!v2 && !gy_cgroup_read(dir, "cpu.cfs_period_us", period)) return SIZE_MAX;
    char *end;
    long q = strtol(quota, &end, 10), p = strtol(v2 ? end : period, NULL, 10);
    if (end == quota || q <= 0 || p <= 0) return SIZE_MAX;
    return q < p ? 1 : (size_t)(q / p);
}

/* ---- together ------------------------------------------------------------------------------------------------------
 */

static void add_core(gy_cores *c, long cpu, int node) {
    if (c->n == GY_CORES_MAX) return;
    c->cpu[c->n] = (int)cpu;
    c->node[c->n++] = node;
}

/* Adds the cores among `some` that are allowed, and takes them out of left. */
static void add_cores(const char *root, const cpu_bits *allowed, const cpu_bits *some, cpu_bits *left, int node,
                      gy_cores *c) {
    int before = c->n;
    for (long cpu = 0; cpu < CPU_MAX; cpu++) {
        if (!has_cpu(some, cpu) || !has_cpu(left, cpu)) continue;
        CPU_CLR_S((size_t)cpu, sizeof left->set, left->set);
        if (is_first_of_core(root, allowed, cpu)) add_core(c, cpu, node);
    }
    c->n_node += c->n > before;
}

void gy_cores_find(const char *root, const char *allowed_list, gy_cores *c) {
    cpu_bits allowed, left, of_node;
    size_t quota = gy_cgroup_least(root, "cpu", group_quota);
    if (allowed_list)
        parse_list(allowed_list, &allowed);
    else
        get_allowed(&allowed);
    *c = (gy_cores){.n_logical = CPU_COUNT_S(sizeof allowed.set, allowed.set),
                    .quota = quota > INT_MAX ? INT_MAX : (int)quota};
    left = allowed;
    for (int node = 0; node < NODE_MAX && CPU_COUNT_S(sizeof left.set, left.set); node++)
        if (read_list(root, "/sys/devices/system/node/node", node, "cpulist", &of_node))
            add_cores(root, &allowed, &of_node, &left, node, c);
    add_cores(root, &allowed, &allowed, &left, 0, c); /* no nodes are told, or not of these */
    if (!c->n) add_core(c, 0, 0);
    if (!c->n_node) c->n_node = 1;
    if (!c->n_logical) c->n_logical = 1;
}

int gy_cores_members(const gy_cores *c) {
    return c->n < c->quota ? c->n : c->quota;
}

int gy_cores_of_member(const gy_cores *c, int i, int n) {
    return c->cpu[(int64_t)i * c->n / n];
}

int gy_cpu_count_physical(void) {
    gy_cores c;
    gy_cores_find("", NULL, &c);
    return gy_cores_members(&c);
}

int gy_cpu_count_nodes(void) {
    gy_cores c;
    gy_cores_find("", NULL, &c);
    return c.n_node;
}
