/* One end of a transfer between hosts, told what to do line by line: tests/e2e/test_pd_netns.py runs two of them in
 * namespaces of their own and cuts the link between them. Without arguments: the same two on this host's loopback
 * device, where links are not cut and peers are dropped all the same.
 *
 *   receive DEVICE EPOCH   says "blob HEX"; then: "notes" "fill BYTE" "is BYTE" "forbid EPOCH" "quit"
 *   send DEVICE EPOCH      says "ready"; then: "import HEX" "post N" "wait N MS" (until N are over) "drop" "quit"
 */
#include "base_test.h"

#include "base/clock.h"
#include "pd/xfer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STRIPE = 4 << 20, N_STRIPE = 16, REGION = STRIPE * N_STRIPE, MAX_OP = 256, LINE = 2 * GY_XFER_MAX_BLOB + 64 };

typedef struct end {
    gy_xfer *x;
    unsigned char *mem;
    gy_xfer_peer *peer;
    gy_xfer_op op[MAX_OP];
    gy_xfer_desc desc[MAX_OP];
    uint32_t note[MAX_OP];
    int n_posted, n_done, n_fail, n_note, n_bad;
    FILE *in, *out;
    char line[LINE];
} end;

static unsigned char byte_at(uint32_t k, size_t i) {
    return (unsigned char)(k * 31 + i * 7 + (i >> 8) + (i >> 16));
}

static void on_done(void *user, gy_xfer_op *op, gy_status st) {
    end *e = user;
    (void)op;
    e->n_done++;
    e->n_fail += st < 0;
}

static void on_note(void *user, uint64_t epoch, const void *bytes, size_t len) {
    end *e = user;
    uint32_t k = 0;
    (void)epoch;
    e->n_note++;
    if (len == sizeof k) memcpy(&k, bytes, sizeof k);
    const unsigned char *at = e->mem + (size_t)(k % N_STRIPE) * STRIPE;
    for (size_t i = 0; i < STRIPE; i += 97)
        if (at[i] != byte_at(k % N_STRIPE, i)) {
            e->n_bad++;
            return;
        }
}

static void open_end(end *e, const char *device, uint64_t epoch) {
    gy_err err;
    int32_t region;
    void *mem;
    gy_xfer_opts o = {.kind = GY_XFER_UCX,
                      .across_hosts = 1,
                      .devices = device,
                      .epoch = epoch,
                      .user = e,
                      .on_done = on_done,
                      .on_note = on_note};
    gy_xfer_limits_default(&o.limits);
    if (gy_xfer_open(&o, &err, &e->x) < 0 || gy_xfer_region_alloc(e->x, REGION, &err, &region, &mem) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(71);
    }
    e->mem = mem;
}

static void say(end *e, const char *what, long a, long b, long c) {
    fprintf(e->out, "%s %ld %ld %ld\n", what, a, b, c);
    fflush(e->out);
}

static int has_line(const end *e) {
    struct pollfd p = {.fd = fileno(e->in), .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static void say_blob(end *e) {
    unsigned char blob[GY_XFER_MAX_BLOB];
    size_t n;
    if (gy_xfer_export(e->x, blob, sizeof blob, &n, NULL) < 0) _exit(72);
    fputs("blob ", e->out);
    for (size_t i = 0; i < n; i++) fprintf(e->out, "%02x", blob[i]);
    fputc('\n', e->out);
    fflush(e->out);
}

static int is_all(const end *e, unsigned char c) {
    for (size_t i = 0; i < REGION; i++)
        if (e->mem[i] != c) return 0;
    return 1;
}

static void obey_receiver(end *e) {
    unsigned long long v = strtoull(e->line + strcspn(e->line, " "), NULL, 10);
    gy_err err;
    if (!strncmp(e->line, "notes", 5)) say(e, "notes", e->n_note, e->n_bad, 0);
    if (!strncmp(e->line, "is", 2)) say(e, "is", is_all(e, (unsigned char)v), 0, 0);
    if (!strncmp(e->line, "forbid", 6)) say(e, "forbid", gy_xfer_forbid(e->x, v, &err), 0, 0);
    if (strncmp(e->line, "fill", 4) != 0) return;
    memset(e->mem, (int)v, REGION);
    say(e, "fill", 0, 0, 0);
}

static _Noreturn void receive(end *e, const char *device, uint64_t epoch) {
    open_end(e, device, epoch);
    say_blob(e);
    for (;;) {
        if (!gy_xfer_poll(e->x)) gy_xfer_wait(e->x, 1);
        if (!has_line(e)) continue;
        if (!fgets(e->line, sizeof e->line, e->in) || !strcmp(e->line, "quit\n")) break;
        obey_receiver(e);
    }
    gy_xfer_close(e->x);
    _exit(0);
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static void import(end *e, const char *hex) {
    unsigned char blob[GY_XFER_MAX_BLOB];
    gy_err err = {0};
    size_t n = 0;
    for (unsigned v; n < sizeof blob && sscanf(hex + 2 * n, "%2x", &v) == 1; n++) blob[n] = (unsigned char)v;
    say(e, "import", gy_xfer_import(e->x, blob, n, &err, &e->peer), 0, 0);
}

static int post(end *e, int k) {
    gy_err err;
    e->note[k] = (uint32_t)k;
    e->desc[k] = (gy_xfer_desc){
        .src_off = (size_t)(k % N_STRIPE) * STRIPE, .dst_off = (size_t)(k % N_STRIPE) * STRIPE, .bytes = STRIPE};
    e->op[k] = (gy_xfer_op){.desc = &e->desc[k], .n_desc = 1, .note = &e->note[k], .n_note = sizeof e->note[k]};
    return gy_xfer_post(e->peer, &e->op[k], &err) == GY_OK;
}

static void post_all(end *e, int n) {
    e->n_posted = e->n_done = e->n_fail = 0;
    while (e->n_posted < n && e->n_posted < MAX_OP && post(e, e->n_posted)) e->n_posted++;
    say(e, "post", e->n_posted, 0, 0);
}

static void wait_for(end *e, int n, int ms) {
    int64_t until = gy_clock_ns() + (int64_t)ms * 1000000;
    while (e->n_done < n && gy_clock_ns() < until) gy_xfer_poll(e->x);
    say(e, "wait", e->n_done, e->n_fail, e->n_posted - e->n_done);
}

static void drop(end *e) {
    gy_xfer_peer_drop(e->peer);
    e->peer = NULL;
    gy_xfer_poll(e->x);
    say(e, "drop", e->n_done, e->n_fail, e->n_posted - e->n_done);
}

static void obey_sender(end *e) {
    int n = 0, ms = 0;
    if (!strncmp(e->line, "import ", 7)) import(e, e->line + 7);
    if (sscanf(e->line, "post %d", &n) == 1) post_all(e, n);
    if (sscanf(e->line, "wait %d %d", &n, &ms) == 2) wait_for(e, n, ms);
    if (!strncmp(e->line, "drop", 4)) drop(e);
}

static _Noreturn void transmit(end *e, const char *device, uint64_t epoch) {
    open_end(e, device, epoch);
    for (uint32_t k = 0; k < N_STRIPE; k++)
        for (size_t i = 0; i < STRIPE; i++) e->mem[(size_t)k * STRIPE + i] = byte_at(k, i);
    say(e, "ready", 0, 0, 0);
    for (;;) {
        if (!gy_xfer_poll(e->x)) gy_xfer_wait(e->x, 1);
        if (!has_line(e)) continue;
        if (!fgets(e->line, sizeof e->line, e->in) || !strcmp(e->line, "quit\n")) break;
        obey_sender(e);
    }
    gy_xfer_close(e->x);
    _exit(0);
}

static _Noreturn void run(const char *role, const char *device, uint64_t epoch, FILE *in, FILE *out) {
    static end e; /* large */
    e.in = in;
    e.out = out;
    setvbuf(in, NULL, _IONBF, 0); /* what poll sees is what there is to read */
    if (!strcmp(role, "receive")) receive(&e, device, epoch);
    transmit(&e, device, epoch);
}

/* ---- both on one host -------------------------------------------------------------------------------------------- */

typedef struct kid {
    pid_t pid;
    FILE *f;
    char line[LINE];
} kid;

static void start(kid *k, const char *role, uint64_t epoch) {
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    k->pid = fork();
    if (k->pid == 0) {
        close(fd[0]);
        run(role, "lo", epoch, fdopen(fd[1], "r"), fdopen(dup(fd[1]), "w"));
    }
    close(fd[1]);
    k->f = fdopen(fd[0], "r+");
    assert_non_null(fgets(k->line, sizeof k->line, k->f));
}

static void tell(kid *k, const char *what, const char *want) {
    assert_true(fprintf(k->f, "%s\n", what) > 0);
    fflush(k->f);
    assert_non_null(fgets(k->line, sizeof k->line, k->f));
    if (want) assert_string_equal(k->line, want);
}

static void stop(kid *k) {
    int st;
    fputs("quit\n", k->f);
    fflush(k->f);
    assert_int_equal(waitpid(k->pid, &st, 0), k->pid);
    assert_true(WIFEXITED(st) && WEXITSTATUS(st) == 0);
    fclose(k->f);
}

/* A writer drops its peer and takes it up again; then it is forbidden, and lives on. */
static void test_again(void **state) {
    static kid to, from;
    static char import_it[LINE];
    (void)state;
    start(&to, "receive", 1);
    snprintf(import_it, sizeof import_it, "import %.*s", LINE - 16, to.line + strlen("blob "));
    import_it[strcspn(import_it, "\n")] = 0;
    start(&from, "send", 2);
    for (int round = 0; round < 3; round++) {
        tell(&from, import_it, "import 0 0 0\n");
        tell(&from, "post 40", "post 40 0 0\n");
        tell(&from, "wait 40 20000", "wait 40 0 0\n");
        tell(&from, "drop", "drop 40 0 0\n");
    }
    tell(&to, "notes", "notes 120 0 0\n");
    tell(&from, import_it, "import 0 0 0\n");
    tell(&from, "post 200", "post 200 0 0\n");
    tell(&from, "wait 1 20000", NULL);
    tell(&to, "forbid 2", "forbid 0 0 0\n");
    tell(&to, "fill 238", "fill 0 0 0\n");
    tell(&from, "wait 200 1000", NULL);
    tell(&to, "is 238", "is 1 0 0\n");
    tell(&from, "drop", NULL);
    assert_non_null(strstr(from.line, "drop 200 "));
    stop(&from);
    stop(&to);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4) {
        FILE *out = fdopen(dup(1), "w");
        dup2(2, 1); /* UCX says its errors to stdout */
        run(argv[1], argv[2], strtoull(argv[3], NULL, 10), stdin, out);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
