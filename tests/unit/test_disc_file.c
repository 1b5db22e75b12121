/* Workers named in a file: what a line may say, and every way in which such a file changes on a real host. Addresses.
 */
#include "base_test.h"

#include "base/log.h"
#include "base/mem.h"
#include "pd/disc.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char dir[64], file[96];
static int log_fd;

static void path_in(char *out, const char *name) {
    snprintf(out, 96, "%s/%s", dir, name);
}

static int set_up(void **state) {
    (void)state;
    strcpy(dir, "/tmp/gyre-disc-XXXXXX");
    assert_non_null(mkdtemp(dir));
    path_in(file, "peers");
    log_fd = memfd_create("log", MFD_CLOEXEC);
    gy_log_set_fd(log_fd);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char command[128];
    gy_log_set_fd(2);
    close(log_fd);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* The lines of the log since the last look. */
static const char *logged(void) {
    static char text[8192];
    ssize_t n = pread(log_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    assert_int_equal(ftruncate(log_fd, 0), 0);
    lseek(log_fd, 0, SEEK_SET);
    return text;
}

static void write_at(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static gy_disc *open_disc(void) {
    gy_disc *d = NULL;
    gy_err err = {0};
    if (gy_disc_open(&(gy_disc_opts){.file = file}, &err, &d) != GY_OK) fail_msg("%s", err.msg);
    return d;
}

static int is_ready(gy_disc *d, int ms) {
    return poll(&(struct pollfd){.fd = gy_disc_fd(d), .events = POLLIN}, 1, ms) == 1;
}

/* Everything there is to tell, as "+a:1 -b:2 ", in order of addresses within a kind; then nothing is left. */
static const char *told(gy_disc *d) {
    static char text[GY_DISC_MAX_WORKERS * 2 * 300];
    gy_disc_event ev;
    text[0] = '\0';
    while (gy_disc_next(d, &ev)) {
        assert_string_equal(ev.name, ev.address);
        assert_int_equal(ev.drain, ev.kind == GY_DISC_REMOVE);
        sprintf(text + strlen(text), "%c%s ", ev.kind == GY_DISC_ADD ? '+' : '-', ev.address);
    }
    assert_int_equal(gy_disc_next(d, &ev), 0);
    assert_false(is_ready(d, 0));
    return text;
}

static void assert_told(gy_disc *d, const char *want) {
    assert_int_equal(is_ready(d, *want ? 20000 : 0), *want != 0);
    assert_string_equal(told(d), want);
}

static void lines(void **state) {
    (void)state;
    write_at(
        file,
        "# our workers\n\n10.0.0.1:8100\n  gpu-7.example.com:65535\t# the old one\r\n[fe80::1%eth0]:1\n[::1]:8100");
    gy_disc *d = open_disc();
    assert_told(d, "+10.0.0.1:8100 +gpu-7.example.com:65535 +[fe80::1%eth0]:1 +[::1]:8100 ");
    gy_disc_close(d);
    write_at(file, "# nobody yet\n");
    d = open_disc();
    assert_string_equal(told(d), "");
    gy_err err = {0};
    assert_int_equal(gy_disc_publish(d, "me", "10.0.0.1:1", &err), GY_E_UNSUPPORTED);
    gy_disc_withdraw(d); /* of nothing */
    gy_disc_close(d);
    gy_disc_close(NULL);
    assert_string_equal(logged(), "");
}

static void bad_lines(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "found an empty file, expected HOST:PORT lines"},
        {"a:1\nb", "line 2: found 'b', expected HOST:PORT or [IPV6]:PORT"},
        {"# x\n\na:1\na:0\n", "line 4: found 'a:0': no port to go to"},
        {":8100\n", "line 1: found ':8100': no host to go to"},
        {"a:65536\n", "line 1: found 'a:65536': the port is a number up to 65535"},
        {"a:\n", "the port is a number"},
        {"a:-1\n", "the port is a number"},
        {"a:08\n", "the port is a number"},
        {"a:1 b:1\n", "line 1: found 'a:1 b:1'"},
        {"fe80::1:8100\n", "IPv6 addresses stand in brackets"},
        {"[fe80::1:8100\n", "line 1: found '[fe80::1:8100'"},
        {"[10.0.0.1]:8100\n", "line 1: found '[10.0.0.1]:8100'"},
        {"http://a:1\n", "found 'http://a:1'"},
        {"a\xc3\xa9:1\n", "found 'a??:1'"},
        {"a:1\nb:1\na:1 # again\n", "line 3: found 'a:1' for the second time"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_disc *d = NULL;
        gy_err err = {0};
        write_at(file, cases[i].text);
        gy_status st = gy_disc_open(&(gy_disc_opts){.file = file}, &err, &d);
        if (st != GY_E_ARG || !strstr(err.msg, cases[i].says) || strncmp(err.msg, file, strlen(file)))
            fail_msg("case %zu: %d %s", i, st, err.msg);
        assert_null(d);
    }
    gy_disc *d = NULL;
    gy_err err = {0};
    unlink(file);
    assert_int_equal(gy_disc_open(&(gy_disc_opts){.file = file}, &err, &d), GY_E_IO);
    assert_non_null(strstr(err.msg, file));
    assert_int_equal(gy_disc_open(&(gy_disc_opts){.file = dir}, &err, &d), GY_E_IO);
    assert_int_equal(gy_disc_open(&(gy_disc_opts){0}, &err, &d), GY_E_ARG);
    assert_int_equal(gy_disc_open(&(gy_disc_opts){.file = file, .etcd = "http://x"}, &err, &d), GY_E_ARG);
    assert_non_null(strstr(err.msg, "expected a file or etcd"));
}

static void many(void **state) {
    (void)state;
    char text[GY_DISC_MAX_WORKERS * 16 + 16] = "", long_line[400];
    for (int i = 0; i < GY_DISC_MAX_WORKERS; i++) sprintf(text + strlen(text), "h%d:1\n", i);
    write_at(file, text);
    gy_disc *d = open_disc();
    gy_disc_event ev;
    for (int i = 0; i < GY_DISC_MAX_WORKERS; i++) assert_int_equal(gy_disc_next(d, &ev), 1);
    assert_int_equal(gy_disc_next(d, &ev), 0);
    strcat(text, "one-more:1\n");
    write_at(file, text);
    assert_true(is_ready(d, 20000));
    assert_int_equal(gy_disc_next(d, &ev), 0);
    assert_non_null(strstr(logged(), "line 65: found more than 64 workers"));
    memset(long_line, 'a', sizeof long_line);
    strcpy(long_line + 130, ":1\n");
    write_at(file, long_line);
    assert_true(is_ready(d, 20000));
    assert_int_equal(gy_disc_next(d, &ev), 0);
    assert_non_null(strstr(logged(), "line 1: found an address of more than 127 characters"));
    gy_disc_close(d);
}

static void changes(void **state) {
    (void)state;
    char other[96];
    path_in(other, "peers.new");
    write_at(file, "a:1\nb:1\n");
    gy_disc *d = open_disc();
    assert_true(is_ready(d, 0));
    assert_told(d, "+a:1 +b:1 ");
    write_at(file, "a:1\nb:1\nc:1\n"); /* in place */
    assert_told(d, "+c:1 ");
    write_at(file, "c:1\nb:2\n");
    assert_told(d, "-a:1 -b:1 +b:2 ");
    write_at(other, "c:1\nd:1\n"); /* as editors do */
    assert_false(gy_disc_next(d, &(gy_disc_event){0}));
    assert_int_equal(rename(other, file), 0);
    assert_told(d, "-b:2 +d:1 ");
    /* Between a truncation and the close it is no list. */
    int fd = open(file, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, "c:1\n", 4), 4);
    write_at(other, "x:1\n");
    assert_string_equal(told(d), "");
    assert_int_equal(write(fd, "d:1\ne:1\n", 8), 8);
    assert_string_equal(told(d), "");
    close(fd);
    assert_told(d, "+e:1 ");
    assert_string_equal(logged(), "");
    /* A line that cannot be read changes nothing, and is said once. */
    write_at(file, "c:1\nd 1\n");
    assert_true(is_ready(d, 20000));
    assert_string_equal(told(d), "");
    write_at(file, "c:1\nd 1\n");
    assert_true(is_ready(d, 20000));
    assert_string_equal(told(d), "");
    const char *text = logged();
    const char *at = strstr(text, "line 2: found 'd 1'");
    assert_non_null(at);
    assert_null(strstr(at + 1, "line 2"));
    assert_non_null(strstr(text, "what it said before holds"));
    write_at(file, "c:1\n");
    assert_told(d, "-d:1 -e:1 ");
    /* Gone and back. */
    unlink(file);
    assert_true(is_ready(d, 20000));
    assert_string_equal(told(d), "");
    assert_non_null(strstr(logged(), "No such file"));
    write_at(file, "c:1\nz:1\n");
    assert_told(d, "+z:1 ");
    /* What came and went between two looks was never there. */
    write_at(file, "c:1\nz:1\ny:1\n");
    write_at(file, "c:1\nz:1\n");
    assert_true(is_ready(d, 20000));
    assert_string_equal(told(d), "");
    gy_disc_close(d);
}

static void hard_link(void **state) {
    (void)state;
    char other[96];
    path_in(other, "other");
    write_at(file, "a:1\n");
    write_at(other, "b:1\n");
    gy_disc *d = open_disc();
    assert_told(d, "+a:1 ");
    unlink(file);
    assert_int_equal(link(other, file), 0);
    assert_told(d, "-a:1 +b:1 ");
    gy_disc_close(d);
}

/* A mounted ConfigMap: peers -> ..data/peers, ..data -> ..1; the update moves a new link over ..data. */
static void kubernetes(void **state) {
    (void)state;
    char a[96], b[96], text[160];
    gy_disc *d;
    path_in(a, "..1");
    assert_int_equal(mkdir(a, 0755), 0);
    path_in(a, "..1/peers");
    write_at(a, "a:1\n");
    path_in(a, "..data");
    assert_int_equal(symlink("..1", a), 0);
    assert_int_equal(symlink("..data/peers", file), 0);
    d = open_disc();
    assert_told(d, "+a:1 ");
    for (int i = 2; i < 6; i++) {
        char name[32], want[32];
        snprintf(name, sizeof name, "..%d", i);
        path_in(a, name);
        assert_int_equal(mkdir(a, 0755), 0);
        snprintf(name, sizeof name, "..%d/peers", i);
        path_in(a, name);
        snprintf(text, sizeof text, "a:%d\n", i);
        write_at(a, text);
        path_in(a, "..data_tmp");
        snprintf(name, sizeof name, "..%d", i);
        assert_int_equal(symlink(name, a), 0);
        assert_string_equal(told(d), "");
        path_in(b, "..data");
        assert_int_equal(rename(a, b), 0);
        snprintf(name, sizeof name, "..%d/peers", i - 1);
        path_in(a, name);
        unlink(a);
        snprintf(name, sizeof name, "..%d", i - 1);
        path_in(a, name);
        assert_int_equal(rmdir(a), 0);
        snprintf(want, sizeof want, "-a:%d +a:%d ", i - 1, i);
        assert_told(d, want);
    }
    assert_string_equal(logged(), "");
    gy_disc_close(d);
}

/* A link to a file elsewhere: changes are seen there, and after the link goes elsewhere again. */
static void link_elsewhere(void **state) {
    (void)state;
    char a[96], b[96], tmp[96];
    path_in(a, "x");
    path_in(b, "y");
    assert_int_equal(mkdir(a, 0755), 0);
    assert_int_equal(mkdir(b, 0755), 0);
    path_in(a, "x/list");
    path_in(b, "y/names");
    path_in(tmp, "tmp");
    write_at(a, "a:1\n");
    write_at(b, "b:1\n");
    assert_int_equal(symlink(a, file), 0);
    gy_disc *d = open_disc();
    assert_told(d, "+a:1 ");
    write_at(a, "a:2\n");
    assert_told(d, "-a:1 +a:2 ");
    assert_int_equal(symlink(b, tmp), 0);
    assert_int_equal(rename(tmp, file), 0);
    assert_told(d, "-a:2 +b:1 ");
    write_at(a, "a:3\n");
    assert_told(d, "");
    write_at(b, "b:1\nc:1\n");
    assert_told(d, "+c:1 ");
    gy_disc_close(d);
}

static void folder_removed(void **state) {
    (void)state;
    char folder[96];
    path_in(folder, "conf");
    assert_int_equal(mkdir(folder, 0755), 0);
    path_in(file, "conf/peers");
    write_at(file, "a:1\n");
    gy_disc *d = open_disc();
    assert_told(d, "+a:1 ");
    unlink(file);
    assert_int_equal(rmdir(folder), 0);
    assert_true(is_ready(d, 20000));
    assert_string_equal(told(d), "");
    assert_non_null(strstr(logged(), "No such file"));
    assert_true(is_ready(d, 20000)); /* it tries again */
    assert_string_equal(told(d), "");
    assert_string_equal(logged(), ""); /* and says nothing twice */
    assert_int_equal(mkdir(folder, 0755), 0);
    write_at(file, "a:1\nb:1\n");
    for (int i = 0; i < 4 && !strstr(told(d), "+b:1"); i++) is_ready(d, 20000);
    write_at(file, "b:1\n"); /* the new folder is watched */
    assert_told(d, "-a:1 ");
    gy_disc_close(d);
}

static void relative_path(void **state) {
    (void)state;
    char before[512];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir), 0);
    write_at("peers", "a:1\n");
    strcpy(file, "peers");
    gy_disc *d = open_disc();
    assert_told(d, "+a:1 ");
    write_at("peers", "b:1\n");
    assert_told(d, "-a:1 +b:1 ");
    gy_disc_close(d);
    assert_int_equal(chdir(before), 0);
}

static void no_memory(void **state) {
    (void)state;
    write_at(file, "a:1\n");
    for (int64_t n = 1;; n++) {
        gy_disc *d = NULL;
        gy_err err = {0};
        gy_mem_fail_after(n);
        gy_status st = gy_disc_open(&(gy_disc_opts){.file = file}, &err, &d);
        gy_mem_fail_after(0);
        if (st == GY_OK) assert_told(d, "+a:1 "); /* the second look may fail: the first holds */
        gy_disc_close(d);
        logged();
        if (st < 0) assert_int_equal(err.status, GY_E_NOMEM);
        if (n > 20) break;
    }
}

static void addresses(void **state) {
    (void)state;
    char host[256], port[8], text[300];
    gy_err err = {0};
    static const struct {
        const char *text, *host, *port;
    } good[] = {{"localhost:80", "localhost", "80"},
                {"10.1.2.3:65535", "10.1.2.3", "65535"},
                {"[::]:0", "::", "0"},
                {":8000", "", "8000"},
                {"[fe80::2%ib0]:1", "fe80::2%ib0", "1"},
                {"a_b-c.d:9", "a_b-c.d", "9"},
                {"[::ffff:1.2.3.4]:5", "::ffff:1.2.3.4", "5"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (gy_address_split(good[i].text, &err, host, port) != GY_OK) fail_msg("%s", err.msg);
        assert_string_equal(host, good[i].host);
        assert_string_equal(port, good[i].port);
    }
    static const char *const bad[] = {"",     "a",     "80",     "a:",     ":",     "a:b",       "a:1:2",
                                      "[]:1", "[::1]", "[::1]1", "[::1]:", "[a]:1", "a:123456",  "a:99999",
                                      "a: 1", " a:1",  "a b:1",  "a/b:1",  "::1",   "[%x::1]:1", "*:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcpy(host, "kept");
        strcpy(port, "k");
        if (gy_address_split(bad[i], &err, host, port) != GY_E_ARG) fail_msg("taken: %s", bad[i]);
        assert_non_null(strstr(err.msg, "expected HOST:PORT or [IPV6]:PORT"));
        assert_string_equal(host, "kept");
        assert_string_equal(port, "k");
    }
    memset(text, 'h', sizeof text);
    strcpy(text + 255, ":1");
    assert_int_equal(gy_address_split(text, &err, host, port), GY_OK);
    assert_int_equal(strlen(host), 255);
    text[255] = 'h';
    strcpy(text + 256, ":1");
    assert_int_equal(gy_address_split(text, &err, host, port), GY_E_ARG);
    assert_non_null(strstr(err.msg, "the host is too long"));
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(lines),         TEST(bad_lines),  TEST(many),           TEST(changes),
        TEST(hard_link),     TEST(kubernetes), TEST(link_elsewhere), TEST(folder_removed),
        TEST(relative_path), TEST(no_memory),  TEST(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
