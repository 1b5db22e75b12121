/* What crossing costs a request, by what its finish event says (gy_pd_cost): one prefill worker, one that decodes, a
 * thread each. One after another: nobody waits for anybody else. At once: P computes while D decodes, as under load.
 *
 *   tail       last row of the prompt computed on P -> the last byte is at D
 *   hand-off   last row of the prompt computed on P -> its first token is at the coordinator
 *   overlap    of the time with a transfer under way, the share during which P computed that prompt: overlap / (overlap
 * + tail), as if the whole tail were transfer; and of the bytes
 */
#include "pd_ends.h"
#include "pd_workers.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PROMPT = 1024, MAX_ASKED = 256, OUTPUTS = 8, DEADLINE_S = 120 };

typedef struct setting {
    const char *shape;
    int32_t prompt, n, at_once;
} setting;

static const setting settings[] = {
    {"tiny-ouro", 64, 200, 1}, {"tiny-ouro", 256, 200, 1}, {"tiny-ouro", 64, 200, 8},
    {"mini-ouro", 64, 20, 1},  {"mini-ouro", 512, 5, 1},   {"mini-ouro", 64, 20, 4},
};

typedef struct asked {
    int n_open, n_failed, n;
    int64_t tail[MAX_ASKED], handoff[MAX_ASKED];
    double bytes, tail_ns, overlap_ns, overlap_bytes, n_desc, n_op;
} asked;

static void on_finish(void *arg, const gy_finish_event *ev) {
    asked *k = arg;
    const gy_pd_cost *c = &ev->pd;
    const int64_t done = c->at_ns[GY_PD_PREFILL_COMPLETED];
    k->n_open--;
    k->n_failed += ev->reason != GY_FINISH_LENGTH;
    if (!done || !c->bytes || k->n == MAX_ASKED) return;
    k->tail[k->n] = c->tail_ns;
    k->handoff[k->n++] = c->at_ns[GY_PD_FIRST_TOKEN] - done;
    k->bytes += (double)c->bytes;
    k->tail_ns += (double)c->tail_ns;
    k->overlap_ns += (double)c->overlap_ns;
    k->overlap_bytes += (double)c->overlap_bytes;
    k->n_desc += (double)c->n_desc;
    k->n_op += (double)c->n_op;
}

static gy_status ask(pd_workers *w, asked *k, int32_t n_prompt, int32_t which, gy_err *err) {
    int32_t ids[MAX_PROMPT], id;
    gy_request r;
    gy_request_default(&r, &w->m.d);
    for (int32_t i = 0; i < n_prompt; i++) ids[i] = (i * 7 + which * 13) % w->m.d.n_vocab;
    r.prompt = ids;
    r.n_prompt = n_prompt;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = 1;
    r.on_finish = on_finish;
    r.arg = k;
    gy_status st = w->h->ops->submit(w->h, &r, err, &id);
    k->n_open += st == GY_OK;
    return st == GY_AGAIN ? GY_E_LIMIT : st;
}

static gy_status ask_all(pd_workers *w, asked *k, const setting *s, gy_err *err) {
    int64_t until = gy_clock_ns() + (int64_t)DEADLINE_S * 1000000000;
    int32_t sent = 0;
    enum { WARM = 2 };
    while (sent < s->n + WARM || k->n_open) {
        if (sent == WARM && !k->n_open) *k = (asked){0}; /* the first ones find cold memory */
        const int32_t most = sent < WARM ? 1 : s->at_once;
        while (sent < s->n + WARM && k->n_open < most && !(sent == WARM && k->n_open))
            GY_TRY(ask(w, k, s->prompt, sent++, err));
        GY_TRY(pd_workers_turn(w, 10, err));
        if (gy_clock_ns() > until) return gy_err_set(err, GY_E_TIMEOUT, "not done in %d s", DEADLINE_S);
    }
    return k->n_failed ? gy_err_set(err, GY_E_PEER, "%d requests failed", k->n_failed) : GY_OK;
}

static void report(const pd_bench *b, const setting *s, asked *k) {
    const double n = k->n ? k->n : 1, all = k->overlap_ns + k->tail_ns, time = all > 0 ? k->overlap_ns / all : 0;
    const double share = k->bytes > 0 ? k->overlap_bytes / k->bytes : 0;
    const double t50 = pd_quantile_us(k->tail, k->n, 0.5), t99 = pd_quantile_us(k->tail, k->n, 0.99);
    const double h50 = pd_quantile_us(k->handoff, k->n, 0.5), h99 = pd_quantile_us(k->handoff, k->n, 0.99);
    if (b->json)
        printf("{\"what\":\"pd_handoff\",\"shape\":\"%s\",\"prompt\":%d,\"at_once\":%d,\"requests\":%d,\"bytes\":%.0f,"
               "\"ops\":%.1f,\"copies\":%.1f,\"tail_p50_us\":%.1f,\"tail_p99_us\":%.1f,"
               "\"handoff_p50_us\":%.1f,\"handoff_p99_us\":%.1f,\"overlap_time\":%.4f,\"overlap_bytes\":%.4f}\n",
               s->shape, s->prompt, s->at_once, k->n, k->bytes / n, k->n_op / n, k->n_desc / n, t50, t99, h50, h99,
               time, share);
    else
        printf("  %-10s %6d %7d %6d %8.2f %7.1f %8.0f %8.0f %9.0f %8.0f %7.1f %% %5.1f %%\n", s->shape, s->prompt,
               s->at_once, k->n, k->bytes / n * 1e-6, k->n_desc / n, t50, t99, h50, h99, 100 * time, 100 * share);
    fflush(stdout);
}

static gy_status one_setting(const pd_bench *b, const setting *s, gy_err *err) {
    static asked k;
    pd_workers w = {0};
    const char *dir;
    k = (asked){0};
    GY_TRY(pd_checkpoint(b, s->shape, err, &dir));
    GY_TRY(pd_workers_open(b, dir, s->prompt + OUTPUTS, s->at_once < 2 ? 2 : s->at_once, 1, err, &w));
    gy_status st = ask_all(&w, &k, s, err);
    pd_workers_close(&w);
    if (st >= 0) report(b, s, &k);
    return st;
}

gy_status pd_handoff(const pd_bench *b, gy_err *err) {
    if (!b->json)
        printf("\nfrom P to D, us\n  %-10s %6s %7s %6s %8s %7s %8s %8s %9s %8s "
               "%9s %7s\n",
               "shape", "prompt", "at once", "n", "MB each", "copies", "tail p50", "p99", "hand-off", "p99", "overlap",
               "bytes");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) GY_TRY(one_setting(b, &settings[i], err));
    return GY_OK;
}
