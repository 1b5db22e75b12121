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
    uint64_t said; /* all tokens of all answers, in whatever order: a sum over answers */
    uint64_t hash[N_REQUEST];
} work;

typedef struct one {
    work *k;
    int i;
} one;

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    const one *o = arg;
    o->k->hash[o->i] = (o->k->hash[o->i] ^ (uint64_t)ev->token) * 0x100000001b3u;
    return GY_CONTINUE;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    const one *o = arg;
    o->k->n_open--;
    o->k->n_failed += ev->reason == GY_FINISH_ERROR;
    o->k->said += o->k->hash[o->i];
}

static gy_status ask(pd_workers *w, work *k, gy_err *err) {
    static one of[N_REQUEST]; /* one work at a time */
    int32_t ids[PROMPT], id;
    gy_request r;
    gy_request_default(&r, &w->m.d);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i % w->m.d.n_vocab;
    r.prompt = ids;
    r.n_prompt = PROMPT;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = 1;
    r.on_token = on_token;
    r.on_finish = on_finish;
    for (int i = 0; i < N_REQUEST; i++) {
        of[i] = (one){k, i};
        r.arg = &of[i];
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

typedef struct times {
    int64_t noticed, known, back;
} times;

/* right: what undisturbed answers are. */
static gy_status kill_one(pd_workers *w, const char *role, int64_t after_ns, uint64_t right, gy_err *err, times *out) {
    work k = {0};
    gyre_worker_stats s = pd_workers_stats(w);
    const int64_t before = s.n_death, ready = s.n_ready;
    *out = (times){0};
    GY_TRY(ask(w, &k, err));
    GY_TRY(turn_for(w, after_ns, err));
    pid_t pid = pd_workers_pid(role);
    if (!pid) return gy_err_set(err, GY_E_PEER, "no worker for %s", role);
    int64_t t = gy_clock_ns();
    kill(pid, SIGKILL);
    do {
        GY_TRY(pd_workers_turn(w, 100, err));
        s = pd_workers_stats(w);
        if (!out->noticed && (s.n_ready < ready || s.n_death > before)) out->noticed = gy_clock_ns() - t;
    } while (s.n_death == before && gy_clock_ns() - t < 10000000000);
    out->known = gy_clock_ns() - t;
    GY_TRY(recover(w, &k, err));
    out->back = gy_clock_ns() - t;
    if (k.n_failed) return gy_err_set(err, GY_E_PEER, "%d requests ended in an error", k.n_failed);
    return k.said == right ? GY_OK : gy_err_set(err, GY_E_PEER, "answers differ from those without a kill");
}

static gy_status undisturbed(pd_workers *w, gy_err *err, uint64_t *said_out) {
    work k = {0};
    GY_TRY(ask(w, &k, err));
    GY_TRY(recover(w, &k, err));
    *said_out = k.said;
    return GY_OK;
}

static void report(const pd_bench *b, const char *role, int64_t *noticed, int64_t *ns, int64_t *back, int32_t n) {
    double n50 = pd_quantile_us(noticed, n, 0.5) * 1e-3, n100 = pd_quantile_us(noticed, n, 1) * 1e-3;
    double p50 = pd_quantile_us(ns, n, 0.5) * 1e-3, p99 = pd_quantile_us(ns, n, 0.99) * 1e-3;
    double most = pd_quantile_us(ns, n, 1) * 1e-3, again = pd_quantile_us(back, n, 0.5) * 1e-3;
    if (b->json)
        printf("{\"what\":\"pd_detect\",\"role\":\"%s\",\"kills\":%d,\"noticed_p50_ms\":%.4f,\"noticed_max_ms\":%.4f,"
               "\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f,\"back_p50_ms\":%.2f}\n",
               role, n, n50, n100, p50, p99, most, again);
    else
        printf("  %-10s %6d %10.3f %10.3f %10.3f %10.3f %10.3f %16.1f\n", role, n, n50, n100, p50, p99, most, again);
    fflush(stdout);
}

/* Both roles of one pair. */
static gy_status kill_both(const pd_bench *b, const char *dir, uint32_t *x, int64_t *at[2][3], int32_t i, gy_err *err) {
    static const char *const roles[2] = {"prefill", "decode"};
    pd_workers w = {0};
    uint64_t right = 0;
    GY_TRY(pd_workers_open(b, dir, 256, 8, err, &w));
    gy_status st = undisturbed(&w, err, &right);
    for (int r = 0; r < 2 && st >= 0; r++) {
        times t;
        *x = *x * 1664525u + 1013904223u;
        st = kill_one(&w, roles[r], (int64_t)(*x >> 8) % 20000000, right, err, &t);
        at[r][0][i] = t.noticed;
        at[r][1][i] = t.known;
        at[r][2][i] = t.back;
    }
    pd_workers_close(&w);
    return st;
}

/* A fresh pair for each two kills: a slot that dies often is left down for a while. */
gy_status pd_detect(const pd_bench *b, gy_err *err) {
    static int64_t ns[2][3][MAX_KILL];
    int64_t *at[2][3] = {{ns[0][0], ns[0][1], ns[0][2]}, {ns[1][0], ns[1][1], ns[1][2]}};
    const char *dir;
    const int32_t n = b->n_kill < MAX_KILL ? b->n_kill : MAX_KILL;
    uint32_t x = 1;
    GY_TRY(pd_checkpoint(b, "tiny-ouro", err, &dir));
    for (int32_t i = 0; i < n; i++) GY_TRY(kill_both(b, dir, &x, at, i, err));
    if (!b->json)
        printf("\nkill -9 of a worker with %d requests -> its channel is gone -> it is reaped and the others know, ms\n"
               "  %-10s %6s %10s %10s %10s %10s %10s %16s\n  %17s %10s %10s %10s %10s %10s %16s\n",
               N_REQUEST, "worker", "kills", "gone, p50", "most", "known, p50", "p99", "most", "all answered and", "",
               "", "", "", "", "", "a new one, p50");
    for (int r = 0; r < 2; r++) report(b, r ? "decode" : "prefill", at[r][0], at[r][1], at[r][2], n);
    return GY_OK;
}
