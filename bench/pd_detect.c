/* SIGKILL of a worker that has work -> the coordinator knows. Two times from the call of kill on: until the worker's
 * work is begun again elsewhere (it ends: pd/alive.h), and until it is reaped and the others let go of it. The process
 * that watches is the one that kills: what is measured is the whole way through kernel, epoll and host, on cores that
 * are busy with requests. Four requests, greedy and drawn, of fixed and of adaptive depth; their answers must be those
 * that one engine gave, in a process of its own.
 */
#include "pd_ends.h"
#include "pd_workers.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_REQUEST = 4, N_ROUND = 2, OUTPUTS = 96, MAX_PROMPT = 8000, MAX_KILL = 1000, DEADLINE_S = 60 };

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

/* Bit 0: drawn; bit 1: leaves the loop where its gate says so. */
static void choose(gy_request *r, int i) {
    r->sample.temperature = i & 1 ? 0.9f : 0;
    r->sample.seed = (uint64_t)i;
    if (!(i & 2)) return;
    r->exit.kind = GY_EXIT_GATE;
    r->exit.threshold = 0.5;
}

static gy_status ask(const pd_bench *b, pd_workers *w, work *k, gy_err *err) {
    static one of[N_REQUEST]; /* one work at a time */
    static int32_t ids[MAX_PROMPT];
    int32_t id;
    for (int32_t i = 0; i < b->n_prompt; i++) ids[i] = i % w->m.d.n_vocab;
    for (int i = 0; i < N_REQUEST; i++) {
        gy_request r;
        gy_request_default(&r, &w->m.d);
        choose(&r, i);
        r.prompt = ids + i;
        r.n_prompt = b->n_prompt - i;
        r.max_tokens = OUTPUTS;
        r.ignore_eos = 1;
        r.on_token = on_token;
        r.on_finish = on_finish;
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
    int64_t word, gone, back;
} times;

/* right: what one engine answers. */
static gy_status kill_one(const pd_bench *b, pd_workers *w, const char *role, int64_t after_ns, uint64_t right,
                          gy_err *err, times *out) {
    work k = {0};
    gyre_worker_stats s = pd_workers_stats(w);
    const int64_t before = s.n_death, ready = s.n_ready;
    *out = (times){0};
    GY_TRY(ask(b, w, &k, err));
    GY_TRY(turn_for(w, after_ns, err));
    pid_t pid = pd_workers_pid(role);
    if (!pid) return gy_err_set(err, GY_E_PEER, "no worker for %s", role);
    int64_t t = gy_clock_ns();
    kill(pid, SIGKILL);
    do {
        GY_TRY(pd_workers_turn(w, 100, err));
        s = pd_workers_stats(w);
        if (!out->word && (s.n_ready < ready || s.n_death > before)) out->word = gy_clock_ns() - t;
    } while (s.n_death == before && gy_clock_ns() - t < 10000000000);
    out->gone = gy_clock_ns() - t;
    GY_TRY(recover(w, &k, err));
    out->back = gy_clock_ns() - t;
    if (k.n_failed) return gy_err_set(err, GY_E_PEER, "%d requests ended in an error", k.n_failed);
    return k.said == right ? GY_OK : gy_err_set(err, GY_E_PEER, "answers differ from those of one engine");
}

/* ---- what is right ----------------------------------------------------------------------------------------------- */

static gy_status one_engine(const pd_bench *b, const char *dir, gy_err *err, uint64_t *said_out) {
    pd_workers w;
    work k = {0};
    GY_TRY(pd_workers_open(b, dir, b->n_prompt + OUTPUTS, 8, 0, err, &w));
    gy_status st = ask(b, &w, &k, err);
    while (st >= 0 && k.n_open) st = pd_workers_turn(&w, 10, err);
    pd_workers_close(&w);
    if (st >= 0 && k.n_failed) st = gy_err_set(err, GY_E_PEER, "%d requests ended in an error", k.n_failed);
    *said_out = k.said;
    return st < 0 ? st : GY_OK;
}

/* In a process of its own: a device that it used is given back with it. */
static gy_status ask_one_engine(const pd_bench *b, const char *dir, gy_err *err, uint64_t *said_out) {
    struct {
        gy_err err;
        uint64_t said;
    } answer = {0};
    int p[2], status;
    if (pipe(p) < 0) return gy_err_set(err, GY_E_IO, "no pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        one_engine(b, dir, &answer.err, &answer.said);
        _exit(write(p[1], &answer, sizeof answer) != (ssize_t)sizeof answer);
    }
    close(p[1]);
    ssize_t n = read(p[0], &answer, sizeof answer);
    close(p[0]);
    if (pid > 0) waitpid(pid, &status, 0);
    if (n != (ssize_t)sizeof answer) return gy_err_set(err, GY_E_PEER, "the process with one engine said nothing");
    *said_out = answer.said;
    return answer.err.status < 0 ? gy_err_set(err, answer.err.status, "one engine: %s", answer.err.msg) : GY_OK;
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void report(const pd_bench *b, const char *role, int64_t *word, int64_t *ns, int64_t *back, int32_t n) {
    double n50 = pd_quantile_us(word, n, 0.5) * 1e-3, n100 = pd_quantile_us(word, n, 1) * 1e-3;
    double p50 = pd_quantile_us(ns, n, 0.5) * 1e-3, p99 = pd_quantile_us(ns, n, 0.99) * 1e-3;
    double most = pd_quantile_us(ns, n, 1) * 1e-3, again = pd_quantile_us(back, n, 0.5) * 1e-3;
    if (b->json)
        printf("{\"what\":\"pd_detect\",\"role\":\"%s\",\"kills\":%d,\"word_p50_ms\":%.4f,\"word_max_ms\":%.4f,"
               "\"gone_p50_ms\":%.4f,\"gone_p99_ms\":%.4f,\"gone_max_ms\":%.4f,\"back_p50_ms\":%.2f}\n",
               role, n, n50, n100, p50, p99, most, again);
    else
        printf("  %-10s %6d %10.3f %10.3f %10.3f %10.3f %10.3f %16.1f\n", role, n, n50, n100, p50, p99, most, again);
    fflush(stdout);
}

typedef struct plan {
    const char *dir;
    uint64_t right;
    uint32_t random;
    int64_t *at[2][3]; /* [role][word, gone, back] */
    int32_t n_done, n;
} plan;

/* Both roles of one pair, twice: a slot that dies more often is left down for a while. */
static gy_status kill_pair(const pd_bench *b, plan *p, gy_err *err) {
    static const char *const roles[2] = {"prefill", "decode"};
    pd_workers w = {0};
    GY_TRY(pd_workers_open(b, p->dir, b->n_prompt + OUTPUTS, 8, 1, err, &w));
    gy_status st = GY_OK;
    for (int round = 0; round < N_ROUND && p->n_done < p->n && st >= 0; round++, p->n_done++)
        for (int r = 0; r < 2 && st >= 0; r++) {
            times t;
            p->random = p->random * 1664525u + 1013904223u;
            st = kill_one(b, &w, roles[r], (int64_t)(p->random >> 8) % 20000000, p->right, err, &t);
            p->at[r][0][p->n_done] = t.word;
            p->at[r][1][p->n_done] = t.gone;
            p->at[r][2][p->n_done] = t.back;
            if (!b->json && st >= 0)
                printf("  %s killed: word %.3f ms, gone %.3f, all answered and a new one %.1f; answers equal\n",
                       roles[r], (double)t.word * 1e-6, (double)t.gone * 1e-6, (double)t.back * 1e-6);
        }
    pd_workers_close(&w);
    return st;
}

gy_status pd_detect(const pd_bench *b, gy_err *err) {
    static int64_t ns[2][3][MAX_KILL];
    plan p = {.at = {{ns[0][0], ns[0][1], ns[0][2]}, {ns[1][0], ns[1][1], ns[1][2]}}, .random = 1};
    p.n = b->n_kill < MAX_KILL ? b->n_kill : MAX_KILL;
    if (b->n_prompt < N_REQUEST || b->n_prompt > MAX_PROMPT)
        return gy_err_set(err, GY_E_ARG, "--prompt: found %d, expected %d to %d", b->n_prompt, N_REQUEST, MAX_PROMPT);
    GY_TRY(pd_checkpoint(b, b->shape, err, &p.dir));
    GY_TRY(ask_one_engine(b, p.dir, err, &p.right));
    while (p.n_done < p.n) GY_TRY(kill_pair(b, &p, err));
    if (!b->json)
        printf("\nkill -9 of a worker with %d requests -> its work is begun again -> it is reaped and the others know, "
               "ms\n"
               "  %-10s %6s %10s %10s %10s %10s %10s %16s\n  %17s %10s %10s %10s %10s %10s %16s\n",
               N_REQUEST, "worker", "kills", "word, p50", "most", "gone, p50", "p99", "most", "all answered and", "",
               "", "", "", "", "", "a new one, p50");
    for (int r = 0; r < 2; r++) report(b, r ? "decode" : "prefill", p.at[r][0], p.at[r][1], p.at[r][2], p.n);
    return GY_OK;
}
