/* Available memory: the texts of /proc and of both kinds of control groups, and the walk over a made-up /proc and /sys.
 * The texts are copies of what Linux 5.15 to 6.8 prints.
 */
#include "base_test.h"

#include "base/cgroup_int.h"
#include "base/mem.h"
#include "base/mem_avail_int.h"

#include <stdlib.h>
#include <sys/stat.h>

static void test_meminfo(void **state) {
    (void)state;
    const char *text = "MemTotal:       65842248 kB\nMemFree:         1023456 kB\nMemAvailable:   24203948 kB\n"
                       "Buffers:          123456 kB\n";
    assert_int_equal(gy_mem_parse_meminfo(text), 24203948ull * 1024);
    assert_int_equal(gy_mem_parse_meminfo("MemTotal:  5 kB\nMemFree: 4 kB\n"), 0); /* before Linux 3.14 */
    assert_int_equal(gy_mem_parse_meminfo(""), 0);
    assert_int_equal(gy_mem_parse_meminfo("MemAvailable:\n"), 0);
    assert_int_equal(gy_mem_parse_meminfo("MemAvailable:  12 MB\n"), 0);
    assert_int_equal(gy_mem_parse_meminfo("XMemAvailable: 12 kB\nMemAvailable: 3 kB\n"), 3072);
    assert_int_equal(gy_mem_parse_meminfo("MemAvailable: 99999999999999999999999 kB\n"), 0);
    assert_int_equal(gy_mem_parse_meminfo("MemAvailable: 18446744073709551615 kB\n"), 0);
}

static void test_cgroup(void **state) {
    (void)state;
    char path[64] = "untouched";
    const char *hybrid = "9:name=systemd:/\n8:pids:/\n4:memory:/process_api/86cf\n3:cpuset:/\n0::/user.slice\n";
    assert_true(gy_cgroup_parse(hybrid, "memory", path, sizeof path));
    assert_string_equal(path, "/process_api/86cf");
    assert_true(gy_cgroup_parse(hybrid, NULL, path, sizeof path));
    assert_string_equal(path, "/user.slice");
    assert_true(gy_cgroup_parse("0::/a:b/c", NULL, path, sizeof path)); /* no newline; a colon in the path */
    assert_string_equal(path, "/a:b/c");
    assert_true(gy_cgroup_parse("7:cpu,memory:/x\n", "memory", path, sizeof path));
    assert_string_equal(path, "/x");
    assert_false(gy_cgroup_parse("7:cpu,memory2,xmemory,name=memory:/x\n", "memory", path, sizeof path));
    assert_false(gy_cgroup_parse("10::/x\n0:cpu:/y\n", NULL, path, sizeof path));
    assert_false(gy_cgroup_parse("0::/only-v2\n", "memory", path, sizeof path));
    assert_false(gy_cgroup_parse("", NULL, path, sizeof path));
    assert_false(gy_cgroup_parse("garbage\n0:\n:\n", NULL, path, sizeof path));
    assert_false(gy_cgroup_parse("0::/too-long", NULL, path, 9));
    assert_string_equal(path, "/x"); /* outputs only on success */
}

static void test_limit(void **state) {
    (void)state;
    assert_int_equal(gy_mem_parse_limit("1000000\n", "400000\n", ""), 600000);
    assert_int_equal(gy_mem_parse_limit("1000000\n", "900000\n", "anon 5\nfile 800000\ninactive_file 700000\n"),
                     800000);
    assert_int_equal(gy_mem_parse_limit("1000000\n", "900000\n", "inactive_file 1\ntotal_inactive_file 300000\n"),
                     400000); /* v1: the hierarchy's figure */
    assert_int_equal(gy_mem_parse_limit("1000000\n", "900000\n", "inactive_file 99999999\n"), 1000000);
    assert_int_equal(gy_mem_parse_limit("1000\n", "2000\n", ""), 0);
    assert_int_equal(gy_mem_parse_limit("0\n", "0\n", ""), 0);
    assert_int_equal(gy_mem_parse_limit("max\n", "400000\n", ""), SIZE_MAX);
    assert_int_equal(gy_mem_parse_limit("9223372036854771712\n", "400000\n", ""), SIZE_MAX);
    assert_int_equal(gy_mem_parse_limit("1000\n", "", ""), SIZE_MAX);
    assert_int_equal(gy_mem_parse_limit("", "5", ""), SIZE_MAX);
}

/* root + path with all its directories. */
static void put(const char *root, const char *path, const char *text) {
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

static char *root_make(char *name) {
    strcpy(name, "/tmp/gyre-avail-XXXXXX");
    assert_non_null(mkdtemp(name));
    return name;
}

static void root_remove(const char *root) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

static void test_walk_v2(void **state) {
    (void)state;
    char root[32];
    root_make(root);
    assert_int_equal(gy_mem_available_at(root), 0); /* nothing to ask */
    put(root, "/proc/meminfo", "MemAvailable: 8000 kB\n");
    assert_int_equal(gy_mem_available_at(root), 8192000);
    put(root, "/proc/self/cgroup", "0::/pod/box\n");
    assert_int_equal(gy_mem_available_at(root), 8192000); /* a group whose files cannot be seen */
    put(root, "/sys/fs/cgroup/pod/box/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/pod/box/memory.current", "100\n");
    assert_int_equal(gy_mem_available_at(root), 8192000);
    put(root, "/sys/fs/cgroup/pod/memory.max", "5000000\n"); /* a limit further up binds too */
    put(root, "/sys/fs/cgroup/pod/memory.current", "3000000\n");
    assert_int_equal(gy_mem_available_at(root), 2000000);
    put(root, "/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 1500000\n");
    assert_int_equal(gy_mem_available_at(root), 3500000);
    put(root, "/sys/fs/cgroup/pod/box/memory.max", "1000\n");
    assert_int_equal(gy_mem_available_at(root), 900);
    put(root, "/sys/fs/cgroup/pod/box/memory.current", "1000\n");
    assert_int_equal(gy_mem_available_at(root), 1); /* nothing left is not "unknown" */
    put(root, "/proc/meminfo", "");
    put(root, "/sys/fs/cgroup/pod/box/memory.max", "max\n");
    assert_int_equal(gy_mem_available_at(root), 3500000);
    root_remove(root);
}

static void test_walk_v1_and_namespaces(void **state) {
    (void)state;
    char root[32];
    root_make(root);
    put(root, "/proc/meminfo", "MemAvailable: 8000 kB\n");
    put(root, "/proc/self/cgroup", "4:cpuset:/\n3:memory:/docker/abc\n0::/docker/abc\n");
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000000\n"); /* the container's, bind-mounted as root */
    put(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "2000000\n");
    put(root, "/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 1000000\n");
    assert_int_equal(gy_mem_available_at(root), 5000000);
    put(root, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1\n");
    assert_int_equal(gy_mem_available_at(root), 5000000);
    put(root, "/sys/fs/cgroup/unified/docker/abc/memory.max", "70\n");
    put(root, "/sys/fs/cgroup/unified/docker/abc/memory.current", "50\n");
    assert_int_equal(gy_mem_available_at(root), 20);
    put(root, "/proc/self/cgroup", "0::/\n");
    put(root, "/sys/fs/cgroup/memory.max", "3000\n"); /* its own namespace: the path is "/" */
    put(root, "/sys/fs/cgroup/memory.current", "1000\n");
    assert_int_equal(gy_mem_available_at(root), 2000);
    root_remove(root);
}

static void test_this_machine(void **state) {
    (void)state;
    size_t bytes = gy_mem_available();
    assert_true(bytes > (size_t)1 << 20);
    assert_true(bytes < (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meminfo),
        cmocka_unit_test(test_cgroup),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_walk_v2),
        cmocka_unit_test(test_walk_v1_and_namespaces),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
