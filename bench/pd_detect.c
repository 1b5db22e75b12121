/* SIGKILL of a worker that has work -> the coordinator knows: from the call of kill until it has told the others that
 * the worker is gone (so it was reaped too). The process that watches is the one that kills: what is measured is the
 * whole way through kernel, epoll and host, on cores that are busy with requests.
 */
#include "pd_ends.h"
#include "pd_workers.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { N_REQUEST = 4, PROMPT = 96, OUTPUTS = 96, MAX_KILL = 1000, DEADLINE_S = 60 };

typedef struct work {
    int n_open, n_failed;
} work;

static void on_finish(void *arg, const gy_finish_event *ev) {
    work *k = arg;
    k->n_open--;
    k->n_failed += ev->reason == GY_FINISH_ERROR;
}

static gy_status ask(pd_workers *w, work *k, gy_err *err) {
    int32_t ids[PROMPT], id;
    gy_request r;
    gy_request_default(&r, &w->m.d);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i % w->m.d.n_vocab;
    r.prompt = ids;
    r.n_prompt = PROMPT;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = 1;
    r.on_finish = on_finish;
    r.arg = k;
    for (int i = 0; i < N_REQUEST; i++) {
        GY_TRY(w->h->ops->submit(w->h, &r, err, &id));
        k->n_open++;
    }
    return GY_OK;
}

static gy_status turn_for(pd_workers *w, int64_t ns, gy_err *err) {
    for (int64_t until = gy_clock_ns() + ns; gy_clock_ns() < until;) GY_TRY(pd_workers_turn(w, 1, err));
    return GY_OK;
}

/* Until all answers are there and every worker is back. */
static gy_status recover(pd_workers *w, const work *k, gy_err *err) {
    int64_t until = gy_clock_ns() + (int64_t)DEADLINE_S * 1000000000;
    for (;;) {
        gyre_worker_stats s = pd_workers_stats(w);
        if (!k->n_open && s.n_ready == s.n_worker) return GY_OK;
        GY_TRY(pd_workers_turn(w, 10, err));
        if (gy_clock_ns() > until)
            return gy_err_set(err, GY_E_TIMEOUT,
                              "no recovery in %d s: %d requests open (%d reserving, %d prefill, %d decode), %d of %d "
                              "workers ready",
                              DEADLINE_S, k->n_open, s.n_reserving, s.n_prefill, s.n_decode, s.n_ready, s.n_worker);
    }
}

static gy_status kill_one(pd_workers *w, const char *role, int64_t after_ns, gy_err *err, int64_t *took_ns,
                          int64_t *back_ns) {
    work k = {0};
    int64_t before = pd_workers_stats(w).n_death;
    GY_TRY(ask(w, &k, err));
    GY_TRY(turn_for(w, after_ns, err));
    pid_t pid = pd_workers_pid(role);
    if (!pid) return gy_err_set(err, GY_E_PEER, "no worker for %s", role);
    int64_t t = gy_clock_ns();
    kill(pid, SIGKILL);
    do GY_TRY(pd_workers_turn(w, 100, err));
    while (pd_workers_stats(w).n_death == before && gy_clock_ns() - t < 10000000000);
    *took_ns = gy_clock_ns() - t;
    GY_TRY(recover(w, &k, err));
    *back_ns = gy_clock_ns() - t;
    if (k.n_failed) return gy_err_set(err, GY_E_PEER, "%d requests ended in an error", k.n_failed);
    return GY_OK;
}

static void report(const pd_bench *b, const char *role, int64_t *ns, int64_t *back, int32_t n) {
    double p50 = pd_quantile_us(ns, n, 0.5) * 1e-3, p99 = pd_quantile_us(ns, n, 0.99) * 1e-3;
    double most = pd_quantile_us(ns, n, 1) * 1e-3, again = pd_quantile_us(back, n, 0.5) * 1e-3;
    if (b->json)
        printf("{\"what\":\"pd_detect\",\"role\":\"%s\",\"kills\":%d,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f,"
               "\"back_p50_ms\":%.2f}\n",
               role, n, p50, p99, most, again);
    else
        printf("  %-10s %6d %10.3f %10.3f %10.3f %16.1f\n", role, n, p50, p99, most, again);
    fflush(stdout);
}

/* A fresh pair for each two kills: a slot that dies often is left down for a while. */
gy_status pd_detect(const pd_bench *b, gy_err *err) {
    static int64_t took[2][MAX_KILL], back[2][MAX_KILL];
    static const char *const roles[2] = {"prefill", "decode"};
    const char *dir;
    const int32_t n = b->n_kill < MAX_KILL ? b->n_kill : MAX_KILL;
    uint32_t x = 1;
    GY_TRY(pd_checkpoint(b, "tiny-ouro", err, &dir));
    for (int32_t i = 0; i < n; i++) {
        pd_workers w = {0};
        GY_TRY(pd_workers_open(b, dir, 256, 8, err, &w));
        gy_status st = GY_OK;
        for (int r = 0; r < 2 && st >= 0; r++) {
            x = x * 1664525u + 1013904223u;
            st = kill_one(&w, roles[r], (int64_t)(x >> 8) % 20000000, err, &took[r][i], &back[r][i]);
        }
        pd_workers_close(&w);
        if (st < 0) return st;
    }
    if (!b->json)
        printf("\nkill -9 of a worker with %d requests -> the coordinator knows, ms\n  %-10s %6s %10s %10s %10s %16s\n",
               N_REQUEST, "worker", "kills", "p50", "p99", "most", "all answered and");
    if (!b->json) printf("  %50s %16s\n", "", "a new one, p50");
    for (int r = 0; r < 2; r++) report(b, roles[r], took[r], back[r], n);
    return GY_OK;
}
