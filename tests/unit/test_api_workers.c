/* gyre.h over worker processes, which are this program itself. What comes out is compared with an engine in this
 * process; who dies and what is left behind: test_host.c, tests/e2e/test_pd.py.
 */
#include "base_test.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "gyre.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#define MODEL GY_SOURCE_DIR "/tests/golden/models/ouro-tiny"

static gyre_options opts(int32_t prefill, int32_t decode) {
    gyre_options o;
    gyre_options_default(&o, sizeof o);
    assert_int_equal(o.prefill + o.decode + o.hybrid, 0);
    assert_int_equal(o.worker_start_ms, 300000);
    assert_int_equal(o.transfer_chunk_bytes, 256 << 20);
    assert_int_equal(o.transfer_inflight_bytes, (size_t)2 << 30);
    assert_int_equal(o.transfer_descriptors, 256);
    o.prefill = prefill;
    o.decode = decode;
    o.kv_blocks = 400;
    o.max_len = 200;
    return o;
}

static gyre *open_with(const gyre_options *o) {
    gyre *g = NULL;
    gyre_err err = {0};
    if (gyre_open(MODEL, o, &err, &g) < 0) fail_msg("%s", err.msg);
    return g;
}

typedef struct answer {
    int32_t n, id[200], loops[200];
    _Atomic int n_finish; /* last, behind all else */
    gyre_finish fin;
    char message[200];
    gyre *g;
    int32_t cancel_at;
} answer;

static void on_event(void *user, const gyre_event *ev) {
    answer *a = user;
    if (ev->kind == GYRE_EVENT_TOKEN) {
        assert_int_equal(ev->index, a->n);
        a->id[a->n] = ev->id;
        a->loops[a->n++] = ev->loops;
        if (a->cancel_at == a->n) gyre_cancel(a->g, ev->request);
    }
    if (ev->kind != GYRE_EVENT_FINISH) return;
    a->fin = *ev->finish;
    snprintf(a->message, sizeof a->message, "%.190s", ev->finish->message ? ev->finish->message : "");
    a->n_finish++;
}

static gyre_request request(answer *a, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens) {
    gyre_request r;
    gyre_request_default(&r, sizeof r);
    r.prompt_ids = prompt;
    r.n_prompt_ids = n_prompt;
    r.max_tokens = max_tokens;
    r.ignore_eos = 1;
    r.on_event = a ? on_event : NULL;
    r.user = a;
    return r;
}

static uint64_t submit(gyre *g, const gyre_request *r) {
    gyre_err err = {0};
    uint64_t id = 0;
    if (gyre_submit(g, r, &err, &id) != GYRE_OK) fail_msg("%s", err.msg);
    return id;
}

static void step_all(gyre *g) {
    gyre_err err = {0};
    gyre_status st;
    int64_t end = gy_clock_ns() + 30000000000;
    while ((st = gyre_step(g, &err)) == GYRE_OK && gy_clock_ns() < end) {
    }
    if (st != GYRE_DONE) fail_msg("step: %d %s", (int)st, err.msg);
}

enum { N = 12 };

static void ask_all(gyre *g, answer a[N]) {
    int32_t prompt[80];
    memset(a, 0, N * sizeof *a);
    for (int32_t i = 0; i < 80; i++) prompt[i] = (i * 37 + 11) % 300;
    for (int32_t k = 0; k < N; k++) {
        gyre_request r = request(&a[k], prompt + k, 1 + 6 * k, 5 + k);
        r.temperature = k % 2 ? 0.9f : 0;
        r.has_seed = 1;
        r.seed = (uint64_t)k;
        submit(g, &r);
    }
}

/* All eight, in order, and what moved: there is a prompt of each length from 1 token on. */
static void assert_cost(const gyre_finish *f) {
    const gyre_pd_cost *c = &f->pd;
    int64_t last = f->submit_ns;
    assert_int_equal(c->n_try, 1);
    assert_int_equal(c->prefill, 0);
    assert_in_range(c->decode, 1, 2);
    for (int s = 0; s < GYRE_PD_STAGES; s++) {
        if (c->at_ns[s] < last)
            fail_msg("%s: %lld after %lld", gyre_pd_stage_name((gyre_pd_stage)s), (long long)c->at_ns[s],
                     (long long)last);
        last = c->at_ns[s];
    }
    assert_int_equal(c->at_ns[GYRE_PD_FINISHED], f->finish_ns);
    assert_true(c->bytes > 0 && c->n_transfer > 0 && c->n_descriptor >= c->n_transfer);
    assert_int_equal(c->is_measured, c->post_ns > 0);
    assert_true(c->wire_ns >= 0 && c->tail_ns >= 0 && c->tail_ns <= c->wire_ns + 1000000000);
    assert_true(c->n_overlap <= c->n_transfer && c->overlap_bytes <= c->bytes);
}

static void assert_same(const answer *a, const answer *b) {
    for (int k = 0; k < N; k++) {
        if (b[k].fin.reason != GYRE_FINISH_LENGTH) fail_msg("%d: %s", k, b[k].message);
        assert_int_equal(b[k].n_finish, 1);
        assert_int_equal(a[k].n, b[k].n);
        assert_memory_equal(a[k].id, b[k].id, (size_t)a[k].n * sizeof(int32_t));
        assert_memory_equal(a[k].loops, b[k].loops, (size_t)a[k].n * sizeof(int32_t));
        assert_int_equal(a[k].fin.n_prompt, b[k].fin.n_prompt);
        assert_int_equal(a[k].fin.seed, b[k].fin.seed);
        assert_true(b[k].fin.submit_ns <= b[k].fin.first_token_ns);
        assert_true(b[k].fin.first_token_ns <= b[k].fin.finish_ns);
        assert_int_equal(a[k].fin.pd.n_try, 0); /* an engine alone has none of it */
        assert_int_equal(a[k].fin.pd.at_ns[GYRE_PD_FINISHED], 0);
        assert_cost(&b[k].fin);
    }
}

/* Workers tell each 100 ms, and when nothing is left: then their sums are what one engine would have, and nothing is
 * held. */
static void expect_engine_numbers(gyre *g, const gyre_stats *first) {
    gyre_stats s = *first;
    gyre_err err;
    int64_t end = gy_clock_ns() + 5000000000;
    while ((s.kv_owned || s.n_row_decode[0] < s.n_output_tok - s.n_request || s.worker.used_blocks) &&
           gy_clock_ns() < end) {
        poll(NULL, 0, 5);
        gyre_step(g, &err);
        gyre_get_stats(g, &s, sizeof s);
    }
    int64_t n_row = 0, n_exit = 0;
    for (int k = 0; k < GYRE_STAT_DEPTHS; k++) {
        n_row += s.n_row_prompt[k] + s.n_row_decode[k];
        n_exit += s.n_exit[k];
    }
    assert_int_equal(s.kv_owned, 0);
    assert_int_equal(s.worker.used_blocks, 0);
    assert_int_equal(s.n_live, 0);
    assert_int_equal(s.wait_tok, 0);
    assert_int_equal(s.worker.xfer_inflight_bytes, 0);
    assert_int_equal(s.kv_blocks_total, 3 * 400);
    assert_int_equal(s.n_row, n_row);
    assert_int_equal(n_exit, s.n_output_tok);
    assert_int_equal(s.n_exit[3], s.n_output_tok);
    assert_int_equal(s.n_row_decode[0], s.n_output_tok - s.n_request); /* the first token of each needs none */
    assert_true(s.n_row_prompt[0] > 0 && s.n_row_prompt[0] == s.n_row_prompt[3]);
    assert_true(s.n_pass > 0 && s.sample_ns > 0 && s.cache_query_tok > 0 && s.cache_hit_tok > 0);
    assert_true(s.worker.n_overlap > 0 && s.worker.overlap_ns > 0 && s.worker.overlap_bytes > 0);
    assert_true(strlen(s.worker.lane) > 2);
}

static void says_the_same(void **state) {
    (void)state;
    static answer here[N], there[N];
    gyre_options o = opts(0, 0);
    gyre *g = open_with(&o);
    ask_all(g, here);
    step_all(g);
    gyre_info info = *gyre_get_info(g);
    gyre_close(g);

    o = opts(1, 2);
    g = open_with(&o);
    const gyre_info *w = gyre_get_info(g);
    assert_string_equal(w->backend, info.backend);
    assert_string_equal(w->dtype, info.dtype);
    assert_int_equal(w->kv_tokens, info.kv_tokens);
    assert_int_equal(w->kv_bytes, info.kv_bytes);
    assert_int_equal(w->max_len, info.max_len);
    ask_all(g, there); /* by hand */
    step_all(g);
    assert_same(here, there);
    gyre_err err = {0};
    assert_int_equal(gyre_start(g, &err), GYRE_OK); /* and by its own thread */
    ask_all(g, there);
    for (int k = 0; k < N; k++)
        while (!there[k].n_finish) poll(NULL, 0, 1);
    assert_int_equal(gyre_stop(g, &err), GYRE_OK);
    assert_same(here, there);

    gyre_stats s;
    gyre_get_stats(g, &s, sizeof s);
    assert_int_equal(s.worker.n_worker, 3);
    assert_int_equal(s.worker.n_ready, 3);
    assert_int_equal(s.worker.n_crossed, 2 * N);
    assert_int_equal(s.worker.n_local + s.worker.n_retry + s.worker.n_death + s.worker.xfer_failed, 0);
    assert_true(s.worker.xfer_bytes > 0 && s.worker.xfer_ops >= 2 * N);
    assert_int_equal(s.n_request, 2 * N);
    assert_int_equal(s.n_finish[GYRE_FINISH_LENGTH], 2 * N);
    assert_int_equal(s.n_output_tok, 2 * (5 * N + N * (N - 1) / 2));
    assert_int_equal(s.n_loop_sum, 4 * s.n_output_tok);
    assert_int_equal(s.n_waiting + s.n_running, 0);
    expect_engine_numbers(g, &s);
    gyre_close(g);
}

static void checks_and_cancels(void **state) {
    (void)state;
    static const int32_t prompt[] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    gyre_options o = opts(1, 1);
    o.local_prefill_below = 10;
    gyre *g = open_with(&o);
    gyre_err err = {0};
    uint64_t id;
    answer a = {.g = g, .cancel_at = 3}, b = {0}, c = {0};
    gyre_request r = request(&a, prompt, 17, 60);
    r.exit = "gate"; /* refused before anything is sent, in the engine's words */
    r.exit_threshold = 0.5;
    r.max_loops = 9;
    assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "max_loops"));
    r = request(&a, prompt, 17, 500);
    assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_LIMIT);
    assert_non_null(strstr(err.msg, "expected at most 200 (context)"));
    r = request(&b, prompt, 5, 20);
    submit(g, &r);
    r = request(&c, prompt, 17, 50);
    gyre_cancel(g, submit(g, &r));                                          /* before it has begun */
    for (int i = 0; i < 20 && a.fin.reason != GYRE_FINISH_CANCELLED; i++) { /* else all was said before it was heard */
        a = (answer){.g = g, .cancel_at = 3};
        r = request(&a, prompt, 17, 180);
        submit(g, &r);
        step_all(g);
    }
    assert_int_equal(a.fin.reason, GYRE_FINISH_CANCELLED);
    assert_in_range(a.n, 3, 179);
    assert_int_equal(b.fin.reason, GYRE_FINISH_LENGTH);
    assert_int_equal(c.fin.reason, GYRE_FINISH_CANCELLED);
    assert_int_equal(c.n, 0);
    gyre_stats s;
    gyre_get_stats(g, &s, sizeof s);
    assert_int_equal(s.worker.n_local, 1);
    r = request(NULL, prompt, 17, 100); /* polled, and never finished */
    for (int i = 0; i < 5; i++) submit(g, &r);
    for (int i = 0; i < 20; i++) gyre_step(g, &err);
    int64_t t = gy_clock_ns();
    gyre_close(g);
    assert_true(gy_clock_ns() - t < 2500000000); /* SIGTERM, not what comes 3 s later */
}

static void wrong_options(void **state) {
    (void)state;
    static const struct {
        int32_t prefill, decode, hybrid;
        const char *says;
    } cases[] = {
        {1, 0, 0, "decode: found no such worker"},     {0, 2, 0, "prefill: found no such worker"},
        {-1, 1, 0, "prefill: found -1 workers"},       {1, 64, 0, "decode: found 64 workers, expected 0 to 63"},
        {30, 30, 30, "found 90 workers, expected at"}, {0, 0, -2, "hybrid: found -2 workers"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gyre_options o = opts(cases[i].prefill, cases[i].decode);
        gyre_err err = {0};
        gyre *g = NULL;
        o.hybrid = cases[i].hybrid;
        assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_ARG);
        if (!strstr(err.msg, cases[i].says)) fail_msg("%zu: %s", i, err.msg);
    }
    gyre_options o = opts(1, 1);
    gyre_err err = {0};
    gyre *g = NULL;
    o.worker_program = "/nowhere/gyre";
    assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_PEER);
    assert_non_null(strstr(err.msg, "/nowhere/gyre: cannot be run"));
    o.worker_program = "/bin/false"; /* some other program */
    assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_PEER);
    assert_non_null(strstr(err.msg, "it ended with exit code 1"));
    o = opts(1, 1);
    o.transfer_inflight_bytes = 5;
    assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_ARG);
    o = opts(1, 1);
    o.worker_args = (const char *const[]){"--no-such-option", NULL};
    assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_PEER);
    assert_non_null(strstr(err.msg, "it ended with exit code 2"));
    o = opts(1, 1);
    o.local_prefill_queue = -1;
    assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "local_prefill_queue: found -1"));
    assert_null(g);
}

typedef struct peers_case {
    const char *peers, *etcd, *cluster, *secret;
    int32_t prefill, timeout_ms;
    gyre_status status;
    const char *says;
} peers_case;

static void write_file(const char *path, const char *text, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static int stop_now(void *user) {
    ++*(int *)user;
    return 1;
}

/* Of workers on other hosts; with such workers: test_host_remote.c, tests/e2e/test_pd_hosts.py. */
static void wrong_peers(void **state) {
    (void)state;
    char dir[] = "/tmp/gyre-peers-XXXXXX", list[64], secret[64], open_secret[64];
    int n_asked = 0;
    assert_non_null(mkdtemp(dir));
    snprintf(list, sizeof list, "%s/list", dir);
    snprintf(secret, sizeof secret, "%s/secret", dir);
    snprintf(open_secret, sizeof open_secret, "%s/open", dir);
    write_file(list, "127.0.0.1:1\n", 0644);
    write_file(secret, "0123456789abcdef", 0600);
    write_file(open_secret, "0123456789abcdef", 0644);
    const peers_case cases[] = {
        {list, "http://127.0.0.1:1", "c", secret, 0, 5000, GYRE_E_ARG, "peers, etcd: found both"},
        {list, NULL, "c", secret, 1, 5000, GYRE_E_ARG, "peers: found together with prefill, decode or hybrid"},
        {list, NULL, "c", NULL, 0, 5000, GYRE_E_ARG, "secret_file: found none"},
        {list, NULL, "c", open_secret, 0, 5000, GYRE_E_ARG, "/open"},
        {list, NULL, "c", "/nowhere/secret", 0, 5000, GYRE_E_IO, "/nowhere/secret"},
        {list, NULL, "c", secret, 0, 99, GYRE_E_ARG, "peer_timeout_ms: found 99, expected 100 or more"},
        {NULL, "http://127.0.0.1:1", "a/b", secret, 0, 5000, GYRE_E_ARG, "cluster: found 'a/b'"},
        {NULL, "http://127.0.0.1:1", "c", secret, 0, 5000, GYRE_E_IO, "127.0.0.1:1"},
        {"/nowhere/list", NULL, "c", secret, 0, 5000, GYRE_E_IO, "/nowhere/list"},
        {list, NULL, NULL, secret, 0, 5000, GYRE_E_PEER,
         "no worker is ready that computes prompts or decodes (1 listed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const peers_case *c = &cases[i];
        gyre_options o;
        gyre_err err = {0};
        gyre *g = NULL;
        gyre_options_default(&o, sizeof o);
        assert_int_equal(o.peer_timeout_ms, 5000);
        assert_string_equal(o.cluster, "default");
        o.peers = c->peers;
        o.etcd = c->etcd;
        o.cluster = c->cluster;
        o.secret_file = c->secret;
        o.prefill = c->prefill;
        o.peer_timeout_ms = c->timeout_ms;
        o.worker_start_ms = 200;
        gyre_status st = gyre_open(MODEL, &o, &err, &g);
        if (st != c->status || !strstr(err.msg, c->says)) fail_msg("%zu: %d %s", i, (int)st, err.msg);
        assert_null(g);
        if (i + 1 < sizeof cases / sizeof *cases) continue;
        o.should_stop = stop_now;
        o.should_stop_user = &n_asked;
        assert_int_equal(gyre_open(MODEL, &o, &err, &g), GYRE_E_CANCELLED);
        assert_int_equal(n_asked, 1);
    }
    unlink(list);
    unlink(secret);
    unlink(open_secret);
    assert_int_equal(rmdir(dir), 0);
}

/* Deadlines: kept by the coordinator, or by the driver where the engine is in this process. */
static void deadlines(void **state) {
    (void)state;
    static const int32_t prompt[] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    for (int with_workers = 0; with_workers < 2; with_workers++) {
        gyre_options o = opts(with_workers, with_workers);
        o.max_seqs = 1;
        gyre *g = open_with(&o);
        gyre_err err = {0};
        uint64_t id;
        answer a[4] = {0};
        for (int i = 0; i < 4; i++) { /* they wait for each other; the first and the last one have time */
            gyre_request r = request(&a[i], prompt, 17, i == 3 ? 5 : 60);
            r.n = i == 2 ? 2 : 1;
            r.timeout_ms = i == 3 ? 60000 : i; /* 0: none */
            submit(g, &r);
        }
        struct timespec nap = {.tv_nsec = 3000000};
        nanosleep(&nap, NULL); /* both are late before anything is done */
        step_all(g);
        assert_int_equal(a[0].fin.reason, GYRE_FINISH_LENGTH);
        assert_int_equal(a[0].n, 60);
        for (int i = 1; i < 3; i++) {
            assert_int_equal(a[i].n_finish, i);
            assert_int_equal(a[i].fin.reason, GYRE_FINISH_ERROR);
            assert_int_equal(a[i].fin.error, GYRE_E_TIMEOUT);
            assert_non_null(strstr(a[i].message, "request: its deadline of 0.0 s passed"));
        }
        assert_int_equal(a[3].fin.reason, GYRE_FINISH_LENGTH);
        gyre_request r = request(&a[0], prompt, 17, 5);
        r.timeout_ms = -1;
        assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_ARG);
        assert_non_null(strstr(err.msg, "timeout_ms: found -1"));
        gyre_close(g);
    }
}

/* Children belong to the thread that started them. */
static void signal_workers(int signo) {
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        char path[300];
        int pid;
        snprintf(path, sizeof path, "/proc/self/task/%s/children", e->d_name);
        FILE *f = fopen(path, "r");
        while (f && fscanf(f, "%d", &pid) == 1) kill(pid, signo);
        if (f) fclose(f);
    }
    closedir(dir);
}

/* With an own thread that sleeps: everything waits for a worker that is stopped. */
static void a_deadline_wakes_the_thread(void **state) {
    (void)state;
    static const int32_t prompt[] = {3, 4, 5, 6, 7};
    gyre_options o = opts(1, 1);
    gyre *g = open_with(&o);
    gyre_err err = {0};
    answer a = {0};
    gyre_request r = request(&a, prompt, 5, 190);
    r.timeout_ms = 300;
    r.n = 2;
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    int64_t start = gy_clock_ns();
    signal_workers(SIGSTOP);
    submit(g, &r);
    while (a.n_finish < 2 && gy_clock_ns() - start < 20000000000) poll(NULL, 0, 5);
    assert_int_equal(a.n_finish, 2);
    assert_int_equal(a.fin.error, GYRE_E_TIMEOUT);
    assert_true(gy_clock_ns() - start >= 300000000);
    signal_workers(SIGCONT);
    gyre_close(g);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "worker")) return gy_cli_main(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_the_same), cmocka_unit_test(checks_and_cancels),
                                       cmocka_unit_test(deadlines),     cmocka_unit_test(a_deadline_wakes_the_thread),
                                       cmocka_unit_test(wrong_options), cmocka_unit_test(wrong_peers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
