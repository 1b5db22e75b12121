/* Cores, nodes and quotas of made-up machines: what sysfs and control groups of real ones look like, as files under a
 * folder. The real machine: test_base_cpu.c, test_base_team.c.
 */
#include "base_test.h"

#include "base/cpu_int.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

static char root[40];

/* root + path with all its directories. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void put_cpu(int cpu, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    put(path, text);
}

static void put_node(int node, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    put(path, text);
}

static int make(void **state) {
    (void)state;
    strcpy(root, "/tmp/gyre-cores-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop(void **state) {
    char command[80];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static void expect(const char *allowed, int n_node, const char *cpus) {
    gy_cores c;
    char got[512] = "";
    gy_cores_find(root, allowed, &c);
    for (int i = 0; i < c.n; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", c.cpu[i]);
    assert_string_equal(got, cpus);
    assert_int_equal(c.n_node, n_node);
}

/* Two sockets of four cores with two threads each, numbered as Linux does: 0-3 and 4-7 first threads, 8-15 second. */
static void two_nodes(void) {
    for (int cpu = 0; cpu < 16; cpu++) {
        char list[32];
        snprintf(list, sizeof list, "%d,%d\n", cpu % 8, cpu % 8 + 8);
        put_cpu(cpu, "core_cpus_list", list);
    }
    put_node(0, "0-3,8-11\n");
    put_node(1, "4-7,12-15\n");
}

static void test_two_nodes(void **state) {
    (void)state;
    two_nodes();
    expect("0-15", 2, "0 1 2 3 4 5 6 7");
    expect("2-5", 2, "2 3 4 5");                /* a cpuset across the border */
    expect("8-15", 2, "8 9 10 11 12 13 14 15"); /* only second threads */
    expect("0,8,1,12", 2, "0 1 12");
    expect("4-7,12", 1, "4 5 6 7");
    expect("13", 1, "13");
}

/* Threads of a core side by side, nodes interleaved, a node without processors, one that is off line. */
static void test_interleaved(void **state) {
    (void)state;
    for (int cpu = 0; cpu < 8; cpu++) {
        char list[32];
        snprintf(list, sizeof list, "%d-%d\n", cpu / 2 * 2, cpu / 2 * 2 + 1);
        put_cpu(cpu, "thread_siblings_list", list); /* Linux before 5.2 */
    }
    put_node(0, "0-1,4-5\n");
    put_node(2, "\n");
    put_node(3, "2-3,6-7\n");
    expect("0-7", 2, "0 4 2 6");
    expect("1,2,3,5,7", 2, "1 5 2 7");
}

static void test_no_sysfs(void **state) {
    (void)state;
    expect("0-2,5", 1, "0 1 2 5");
    expect("", 1, "0"); /* never none */
    put_cpu(0, "core_cpus_list", "garbage\n");
    put_node(0, "0-\n");
    expect("1-3", 1, "1 2 3");
}

/* More logical CPUs than a list of a usual machine has room for, and than a team may have. */
static void test_large(void **state) {
    gy_cores c;
    (void)state;
    gy_cores_find(root, "0-8191", &c);
    assert_true(c.n == GY_CORES_MAX && c.cpu[GY_CORES_MAX - 1] == GY_CORES_MAX - 1 && c.n_logical == 8192);
    gy_cores_find(root, "0-99999", &c);
    assert_true(c.n == GY_CORES_MAX && c.n_logical == 8192);
}

static void test_members(void **state) {
    (void)state;
    gy_cores c;
    two_nodes();
    gy_cores_find(root, "0-15", &c);
    assert_true(c.quota == INT_MAX && gy_cores_members(&c) == 8 && c.n_logical == 16);
    for (int n = 1; n <= 8; n++) {
        int of_node[2] = {0}, last = -1;
        for (int i = 0; i < n; i++) {
            int cpu = gy_cores_of_member(&c, i, n), node = cpu / 4;
            assert_true(cpu > last && cpu < 8); /* each its own core; nodes one after the other */
            of_node[node]++;
            last = cpu;
        }
        assert_in_range(of_node[0] - of_node[1], 0, 1);
    }
}

static void quota(int want) {
    gy_cores c;
    gy_cores_find(root, "0-15", &c);
    assert_int_equal(c.quota, want);
    assert_int_equal(gy_cores_members(&c), want < 8 ? want : 8);
}

static void test_quota_v2(void **state) {
    (void)state;
    two_nodes();
    put("/proc/self/cgroup", "0::/pod/box\n");
    quota(INT_MAX);
    put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    quota(INT_MAX);
    put("/sys/fs/cgroup/pod/cpu.max", "350000 100000\n"); /* further up; three and a half */
    quota(3);
    put("/sys/fs/cgroup/pod/box/cpu.max", "50000 100000\n"); /* half a CPU is one thread */
    quota(1);
    put("/sys/fs/cgroup/pod/box/cpu.max", "5000000 100000\n");
    put("/sys/fs/cgroup/pod/cpu.max", "2000000 100000\n");
    quota(20);
    put("/sys/fs/cgroup/pod/box/cpu.max", "nonsense\n");
    put("/sys/fs/cgroup/pod/cpu.max", "100000 0\n");
    quota(INT_MAX);
}

static void test_quota_v1(void **state) {
    (void)state;
    two_nodes();
    put("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n0::/\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n"); /* the container's, mounted as root */
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    quota(INT_MAX);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    quota(4);
}

#define ON_A_MACHINE(f) cmocka_unit_test_setup_teardown(f, make, drop)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_A_MACHINE(test_two_nodes), ON_A_MACHINE(test_interleaved), ON_A_MACHINE(test_no_sysfs),
        ON_A_MACHINE(test_large),     ON_A_MACHINE(test_members),     ON_A_MACHINE(test_quota_v2),
        ON_A_MACHINE(test_quota_v1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
