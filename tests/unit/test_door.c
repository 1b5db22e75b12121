/* The door of a worker that other hosts reach: what it does when the process has no descriptor left. */
#include "base_test.h"

#include "cli/cli_worker_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MS = 1000000, PEER_MS = 1000 };

static int listener(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
}

/* No more descriptors than there are. */
static struct rlimit take_all(void) {
    struct rlimit was, now;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    now = (struct rlimit){(rlim_t)next, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    return was;
}

static int n_readable(const gy_door *d, int ms) {
    struct pollfd f[GY_DOOR_POLLS];
    return poll(f, (nfds_t)gy_door_polls(d, f), ms);
}

static void without_descriptors_it_rests(void **state) {
    (void)state;
    struct sockaddr_in at;
    gy_secret secret = {0};
    gy_door *d = NULL;
    gy_err err;
    assert_int_equal(gy_door_open(listener(&at), &secret, PEER_MS, &err, &d), GY_OK);
    int guest = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(guest, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(n_readable(d, 20000), 1);
    struct rlimit was = take_all();
    int64_t now = 5;
    for (int i = 0; i < 3; i++) {
        gy_door_turn(d, now, 1);
        assert_int_equal(n_readable(d, 0), 0); /* or whoever polls would never sleep */
        assert_true(gy_door_next_ns(d) > now && gy_door_next_ns(d) <= now + 1000 * (int64_t)MS);
        now = gy_door_next_ns(d);
    }
    setrlimit(RLIMIT_NOFILE, &was);
    gy_door_turn(d, now - 1, 1);
    struct pollfd f[GY_DOOR_POLLS];
    assert_int_equal(gy_door_polls(d, f), 1); /* not yet */
    gy_door_turn(d, now, 1);
    assert_int_equal(gy_door_polls(d, f), 2); /* the guest, who waited */
    assert_true(f[0].fd >= 0);
    close(guest);
    gy_door_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_descriptors_it_rests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
