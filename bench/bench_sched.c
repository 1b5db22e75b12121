/* gyre-bench-sched: what a step costs the host besides the model: planning and bookkeeping of the scheduler and the KV
 * map, with verdicts from a fixed table and no rows computed.
 *
 *   gyre-bench-sched [--seqs N] [--context N] [--steps N] [--json]
 *   gyre-bench-sched --clock [--pass-us X] [--row-us X] [--read-ns X] [--tile N] [--share X] [--json]
 *
 *   without arguments: 64, 128, 256, 512 sequences at 1000 tokens (growth in rows), and 256 sequences at 100, 1000 and
 *   4000 tokens (contexts must not matter). One line each: median and best step, per row, and where the median goes.
 *
 * All sequences decode: n_loop 4, last_exited, a token leaves after 1 to 4 loops (mean 2.5), so that in each step some
 * 40 % of the rows are sampled and enter again. A step is what src/engine does in one: admit, enter, pass, stay or
 * leave of each row, coda, sampled. Sampling itself is not in it (docs/kernels.md). bench/callgrind.sh counts
 * instructions of the same steps: the function step_collected.
 *
 * --clock: another question, times to the first token and rates by a cost model (sched_clock.h).
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "sched/sched.h"
#include "sched_clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LOOP = 4, MAX_STEPS = 100000, N_TABLE = 1024, N_WARM = 512 };

typedef enum phase { PLAN, PASS, ROUTE, CODA, N_PHASE } phase;
static const char *const PHASE_TEXT[N_PHASE] = {"admit+enter", "pass", "route", "coda+sampled"};

typedef struct bench {
    int32_t n_seq, context, n_step;
    int json;
    gy_kv *kv;
    gy_sched *sched;
    int32_t *tok;    /* [n_seq][len] */
    int32_t len;     /* context and outputs */
    int32_t *known;  /* [n_seq] known tokens of job j */
    int32_t *flight; /* [max_rows] a batch being reported */
    int64_t n_row;   /* of all measured steps */
    int64_t mark[N_PHASE + 1];
    int64_t *took; /* [N_PHASE + 1][n_step]; the last one is the whole step */
    uint8_t table[N_TABLE];
} bench;

/* ---- a step ---- */

static int32_t enter(bench *b) {
    int32_t n = 0;
    for (;;) {
        const gy_sched_rows *r = gy_sched_enter(b->sched);
        if (!r->n_row) return n;
        n += r->n_row;
    }
}

/* 1, 2, 3 and 4 loops, each as often. */
static int leaves(const bench *b, int32_t job, int32_t pos, int32_t loops) {
    return loops >= b->table[(unsigned)(job * 37 + pos) % N_TABLE];
}

static void route(bench *b, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t f = b->flight[i], job = gy_sched_flight_job(b->sched, f);
        if (leaves(b, job, gy_sched_flight_pos(b->sched, f), gy_sched_flight_loops(b->sched, f) + 1))
            gy_sched_leave(b->sched, f, 0);
        else
            gy_sched_stay(b->sched, f);
    }
}

static int32_t keep_flights(bench *b, const gy_sched_rows *r) {
    memcpy(b->flight, r->flight, (size_t)r->n_row * sizeof *b->flight);
    return r->n_row;
}

static void coda(bench *b) {
    int32_t n;
    while ((n = keep_flights(b, gy_sched_coda(b->sched, b->n_seq))) > 0) {
        for (int32_t i = 0; i < n; i++) {
            int32_t job = gy_sched_flight_job(b->sched, b->flight[i]), at = b->known[job]++;
            b->tok[(int64_t)job * b->len + at] = at;
            gy_sched_sampled(b->sched, b->flight[i]);
        }
    }
}

/* One step, with the time at the border of each phase. */
static int32_t step(bench *b) {
    b->mark[PLAN] = gy_clock_ns();
    gy_sched_admit(b->sched, b->mark[PLAN]);
    while (gy_sched_landed(b->sched) >= 0) {
    }
    enter(b);
    b->mark[PASS] = gy_clock_ns();
    int32_t n = keep_flights(b, gy_sched_pass(b->sched));
    b->mark[ROUTE] = gy_clock_ns();
    route(b, n);
    b->mark[CODA] = gy_clock_ns();
    coda(b);
    b->mark[N_PHASE] = gy_clock_ns();
    return n;
}

/* A name of its own for callgrind's --toggle-collect. */
__attribute__((noinline)) static int32_t step_collected(bench *b) {
    return step(b);
}

/* ---- setting up ---- */

static gy_status bench_kv(bench *b, gy_err *err) {
    static char arena[1]; /* nothing here touches KV memory */
    void *const arenas[GY_KV_GROUPS] = {arena, NULL};
    gy_kv_config c = {.layout = GY_KV_LAST_EXITED,
                      .n_loop = N_LOOP,
                      .n_layer = {24, 0},
                      .n_head_kv = 16,
                      .head_dim = 128,
                      .dtype = GY_BF16,
                      .max_seqs = b->n_seq,
                      .max_len = b->len};
    c.n_block[GY_KV_CORE] = (int32_t)gy_kv_blocks_for(&c, GY_KV_CORE, b->len) * b->n_seq;
    return gy_kv_create(&c, arenas, err, &b->kv);
}

/* Prompts come with their KV, as from elsewhere, so that all sequences begin to decode at the same time. */
static gy_status prompt_kv(bench *b, gy_err *err, int32_t *seq) {
    if (gy_kv_seq_open(b->kv, b->len, seq) != GY_OK) return gy_err_set(err, GY_E_BUG, "no sequence");
    for (int32_t pos = 0, slot; pos < b->context; pos++) {
        for (int32_t depth = 0; depth < N_LOOP; depth++)
            if (gy_kv_claim(b->kv, GY_KV_CORE, *seq, depth, pos, &slot) != GY_OK)
                return gy_err_set(err, GY_E_BUG, "no block");
        gy_kv_exit(b->kv, *seq, pos, N_LOOP - 1);
    }
    return GY_OK;
}

static gy_status bench_sched(bench *b, gy_err *err) {
    gy_sched_opts o;
    gy_sched_opts_default(&o);
    o.max_seqs = o.max_queue = b->n_seq;
    o.max_rows = 2 * b->n_seq;
    o.n_loop = N_LOOP;
    o.prefill_share = 1.0;
    o.watermark = 0.0;
    GY_TRY(gy_sched_create(&o, b->kv, err, &b->sched));
    for (int32_t j = 0; j < b->n_seq; j++) {
        int32_t id = -1;
        gy_sched_job q = {.tok = b->tok + (int64_t)j * b->len,
                          .n_prompt = b->context,
                          .max_tokens = b->len - b->context,
                          .full_prompt = 1,
                          .has_kv = 1,
                          .leader = -1};
        GY_TRY(prompt_kv(b, err, &q.kv_seq));
        if (gy_sched_submit(b->sched, &q, gy_clock_ns(), &id) != GY_OK || id < 0 || id >= b->n_seq)
            return gy_err_set(err, GY_E_BUG, "job %d was not queued", j);
    }
    return GY_OK;
}

static gy_status bench_open(bench *b, gy_err *err) {
    b->len = b->context + b->n_step + N_WARM + 1; /* a sequence samples at most one token in a step after its prompt */
    size_t n = (size_t)b->n_seq;
    b->tok = gy_mem_map_pages(GY_MEM_BASE, n * (size_t)b->len * sizeof *b->tok);
    b->known = gy_mem_alloc(GY_MEM_BASE, n, sizeof *b->known);
    b->flight = gy_mem_alloc(GY_MEM_BASE, 2 * n, sizeof *b->flight);
    b->took = gy_mem_alloc(GY_MEM_BASE, (size_t)b->n_step * (N_PHASE + 1), sizeof *b->took);
    if (!b->tok || !b->known || !b->flight || !b->took) return gy_err_set(err, GY_E_NOMEM, "no memory");
    for (int32_t j = 0; j < b->n_seq; j++) b->known[j] = b->context;
    for (int32_t i = 0; i < N_TABLE; i++) b->table[i] = (uint8_t)(1 + ((uint32_t)i * 2654435761u >> 16) % N_LOOP);
    GY_TRY(bench_kv(b, err));
    return bench_sched(b, err);
}

static void bench_close(bench *b) {
    gy_sched_destroy(b->sched);
    gy_kv_destroy(b->kv);
    if (b->tok) gy_mem_unmap_pages(GY_MEM_BASE, b->tok, (size_t)b->n_seq * (size_t)b->len * sizeof *b->tok);
    gy_mem_free(b->known);
    gy_mem_free(b->flight);
    gy_mem_free(b->took);
}

/* ---- measuring ---- */

static int all_decode(const bench *b) {
    for (int32_t j = 0; j < b->n_seq; j++)
        if (b->known[j] == b->context) return 0;
    return 1;
}

/* Until the depths of the sequences are well mixed. */
static int warm_up(bench *b) {
    for (int32_t i = 0; i < N_WARM / 4; i++) step(b);
    return all_decode(b);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure(bench *b) {
    for (int32_t i = 0; i < b->n_step; i++) {
        b->n_row += step_collected(b);
        for (int p = 0; p < N_PHASE; p++) b->took[(int64_t)p * b->n_step + i] = b->mark[p + 1] - b->mark[p];
        b->took[(int64_t)N_PHASE * b->n_step + i] = b->mark[N_PHASE] - b->mark[0];
    }
    for (int p = 0; p <= N_PHASE; p++)
        qsort(b->took + (int64_t)p * b->n_step, (size_t)b->n_step, sizeof *b->took, by_value);
}

static double median_us(const bench *b, int p) {
    int64_t middle = (int64_t)p * b->n_step + b->n_step / 2;
    return (double)b->took[middle] * 1e-3;
}

static void report(const bench *b) {
    double us = median_us(b, N_PHASE), best = (double)b->took[(int64_t)N_PHASE * b->n_step] * 1e-3;
    double rows = (double)b->n_row / b->n_step;
    if (b->json) {
        printf("{\"what\":\"sched_step\",\"seqs\":%d,\"context\":%d,\"steps\":%d,\"rows\":%.1f,\"median_us\":%.3f,"
               "\"best_us\":%.3f,\"ns_per_row\":%.2f",
               b->n_seq, b->context, b->n_step, rows, us, best, us * 1e3 / rows);
        for (int p = 0; p < N_PHASE; p++) printf(",\"%s_us\":%.3f", PHASE_TEXT[p], median_us(b, p));
        printf("}\n");
    } else {
        printf("%5d %8d %7.1f %10.2f %8.2f %7.1f ", b->n_seq, b->context, rows, us, best, us * 1e3 / rows);
        for (int p = 0; p < N_PHASE; p++) printf(" %12.2f", median_us(b, p));
        printf("\n");
    }
    fflush(stdout);
}

static int run(int32_t n_seq, int32_t context, int32_t n_step, int json) {
    bench b = {.n_seq = n_seq, .context = context, .n_step = n_step, .json = json};
    gy_err err = {0};
    int ok = bench_open(&b, &err) == GY_OK;
    if (ok && !warm_up(&b)) {
        gy_err_set(&err, GY_E_BUG, "not all sequences came to decode");
        ok = 0;
    }
    if (ok) {
        measure(&b);
        report(&b);
    } else {
        fprintf(stderr, "gyre-bench-sched: %d sequences of %d tokens: %s\n", n_seq, context, err.msg);
    }
    bench_close(&b);
    return ok;
}

static void head(int json) {
    if (json) return;
    printf(
        "scheduler and KV map on %s; decode rows only, n_loop %d, mean exit 2.5; us a step (median, best), ns a row, "
        "medians of the phases in us\n",
        gy_cpu_model(), N_LOOP);
    printf("%5s %8s %7s %10s %8s %7s ", "seqs", "context", "rows", "median", "best", "ns/row");
    for (int p = 0; p < N_PHASE; p++) printf(" %12s", PHASE_TEXT[p]);
    printf("\n");
}

/* ---- options ---- */

static int number(const char *text, int32_t max, int32_t *out) {
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 1 || v > max) return 0;
    *out = (int32_t)v;
    return 1;
}

static int real(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out > 0;
}

/* Costs of an H200 with Ouro-1.4B's shape: docs/kernels.md. */
static int main_clock(int argc, char **argv) {
    sched_cost c = {.pass_us = 1600, .row_us = 5.2, .read_ns = 48, .coda_us = 30, .coda_row_us = 3, .tile = 256};
    double share = 0.5;
    int json = 0, ok = 1;
    for (int i = 2; i < argc && ok; i++) {
        int has = i + 1 < argc;
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (has && !strcmp(argv[i], "--pass-us"))
            ok = real(argv[++i], &c.pass_us);
        else if (has && !strcmp(argv[i], "--row-us"))
            ok = real(argv[++i], &c.row_us);
        else if (has && !strcmp(argv[i], "--read-ns"))
            ok = real(argv[++i], &c.read_ns);
        else if (has && !strcmp(argv[i], "--tile"))
            ok = number(argv[++i], 65536, &c.tile);
        else if (has && !strcmp(argv[i], "--share"))
            ok = real(argv[++i], &share) && share <= 1;
        else
            ok = 0;
    }
    if (ok) return sched_clock_table(&c, share, json) ? 0 : 1;
    fprintf(
        stderr,
        "usage: gyre-bench-sched --clock [--pass-us X] [--row-us X] [--read-ns X] [--tile N] [--share X] [--json]\n");
    return 2;
}

int main(int argc, char **argv) {
    static const int32_t seqs[] = {64, 128, 256, 512}, contexts[] = {100, 4000};
    int32_t n_seq = 0, context = 0, n_step = 1000;
    int json = 0, ok = 1;
    if (argc > 1 && !strcmp(argv[1], "--clock")) return main_clock(argc, argv);
    for (int i = 1; i < argc && ok; i++) {
        int has = i + 1 < argc;
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (has && !strcmp(argv[i], "--seqs"))
            ok = number(argv[++i], 4096, &n_seq);
        else if (has && !strcmp(argv[i], "--context"))
            ok = number(argv[++i], 1 << 20, &context);
        else if (has && !strcmp(argv[i], "--steps"))
            ok = number(argv[++i], MAX_STEPS, &n_step);
        else
            ok = 0;
    }
    if (!ok) {
        fprintf(stderr, "usage: gyre-bench-sched [--seqs 1..4096] [--context N] [--steps 1..%d] [--json]\n", MAX_STEPS);
        return 2;
    }
    head(json);
    if (n_seq || context) return run(n_seq ? n_seq : 256, context ? context : 1000, n_step, json) ? 0 : 1;
    for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) ok &= run(seqs[i], 1000, n_step, json);
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) ok &= run(256, contexts[i], n_step, json);
    return ok ? 0 : 1;
}
