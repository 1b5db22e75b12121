/* Does it matter how much may be under way, and in what pieces? The KV of a 2048-token prompt of Ouro-1.4B (four planes
 * of 128 blocks of 3 MiB: 1.6 GB) crosses by the walk and the limits that workers use, with each setting in turns.
 *
 * The sender's blocks are a part of the prompt that is repeated: what is read has not been in a cache since. Within a
 * host times are the sender's processor time (it stores, and never waits), which a busy machine does not stretch.
 */
#include "pd_ends.h"
#include "pd_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "pd/segs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_PLANE = 4,
    BLOCK_LEN = 16,
    N_LAYER = 24,
    TOK_BYTES = 16 * 128 * 2,
    MAX_BLOCK = N_PLANE * 2048 / BLOCK_LEN,
    N_SLOT = 256,
    ROUNDS = 5
};
static const size_t BLOCK = (size_t)N_LAYER * 2 * BLOCK_LEN * TOK_BYTES;

/* ---- in a sender ---- */

typedef struct prompt_job {
    size_t chunk;
    int32_t n_tok, scattered;
} prompt_job;

typedef struct walk {
    pd_end *e;
    gy_seg_group group;
    gy_seg_plane plane[N_PLANE];
    gy_seg_plan plan;
    gy_xfer_limits limits;
    gy_seg_cursor at;
    int32_t src[MAX_BLOCK], dst[MAX_BLOCK];
    gy_xfer_op op[N_SLOT];
    gy_xfer_desc desc[N_SLOT][256];
} walk;

/* The receiver's blocks in order, as a pool that nobody used gives them, or in none. */
static void make_tables(walk *w, const prompt_job *j) {
    int32_t n = j->n_tok / BLOCK_LEN, n_all = N_PLANE * n;
    for (int32_t i = 0; i < n_all; i++) {
        w->src[i] = i % w->group.n_block_src;
        w->dst[i] = i;
    }
    uint32_t x = 1;
    for (int32_t i = n_all - 1; i > 0 && j->scattered; i--) {
        x = x * 1664525u + 1013904223u;
        int32_t k = (int32_t)((x >> 8) % (uint32_t)(i + 1)), t = w->dst[i];
        w->dst[i] = w->dst[k];
        w->dst[k] = t;
    }
    for (int32_t p = 0; p < N_PLANE; p++)
        w->plane[p] = (gy_seg_plane){.group = &w->group, .src = w->src + p * n, .dst = w->dst + p * n, .to = j->n_tok};
}

/* 1: something is to be posted. */
static int cut(walk *w, gy_xfer_op *op, gy_xfer_desc *desc) {
    int32_t n = gy_seg_next(&w->plan, N_PLANE, &w->limits, &w->at, desc);
    *op = (gy_xfer_op){.desc = desc, .n_desc = n, .note = "note", .n_note = 4};
    return n > 0;
}

/* As worker_push does: as much as the budget takes, whenever it takes it. */
static gy_status push(walk *w, gy_err *err) {
    int posted = 0, is_cut = 0, more = 1;
    w->e->n_done = 0;
    int64_t until_ns = gy_clock_ns() + (int64_t)60 * 1000000000;
    while (more || w->e->n_done < posted) {
        while (more) {
            const int k = posted; /* each slot once: ops may end in another order */
            GY_CHECK(k < N_SLOT);
            if (!is_cut) is_cut = more = cut(w, &w->op[k], w->desc[k]);
            if (!more) break;
            gy_status st = gy_xfer_post(w->e->peer, &w->op[k], err);
            if (st < 0) return st;
            if (st == GY_AGAIN) break;
            is_cut = 0;
            posted++;
        }
        gy_xfer_poll(w->e->x);
        if (gy_clock_ns() > until_ns) return gy_err_set(err, GY_E_TIMEOUT, "a prompt's KV did not cross in 60 s");
    }
    return w->e->status < 0 ? gy_err_set(err, w->e->status, "a transfer failed") : GY_OK;
}

static gy_status time_prompt(pd_end *e, const void *arg, int64_t *ns, int32_t *n_ns, gy_err *err) {
    static walk w; /* of this process */
    const prompt_job *j = arg;
    memset(&w.at, 0, sizeof w.at);
    w.e = e;
    w.limits = e->limits;
    w.limits.chunk_bytes = j->chunk;
    w.group = (gy_seg_group){.n_layer = N_LAYER,
                             .tok_bytes = TOK_BYTES,
                             .n_block_src = (int32_t)(e->bytes / BLOCK),
                             .n_block_dst = (int32_t)(e->dst_bytes / BLOCK)};
    make_tables(&w, j);
    w.plan = (gy_seg_plan){.plane = w.plane, .n_plane = N_PLANE};
    GY_TRY(gy_seg_check(&w.plan, err));
    const int64_t t = gy_clock_ns(), c = pd_cpu_ns();
    GY_TRY(push(&w, err));
    ns[(*n_ns)++] = gy_clock_ns() - t;
    ns[(*n_ns)++] = pd_cpu_ns() - c;
    return GY_OK;
}

static gy_status touch(pd_end *e, const void *arg, int64_t *ns, int32_t *n_ns, gy_err *err) {
    (void)arg, (void)ns, (void)n_ns;
    return pd_forget(e, err);
}

/* ---- in the parent ---- */

static const size_t INFLIGHT[] = {64 << 20, 256 << 20, (size_t)1 << 30, (size_t)2 << 30};
static const size_t CHUNK[] = {8 << 20, 64 << 20, 256 << 20};
enum { N_INFLIGHT = sizeof INFLIGHT / sizeof *INFLIGHT, N_CHUNK = sizeof CHUNK / sizeof *CHUNK };

typedef struct table {
    double gbs[N_INFLIGHT][N_CHUNK]; /* 0: the chunk does not fit */
    double scattered;
} table;

static gy_status measure(pd_ends *p, int across, int32_t n_tok, gy_err *err, table *t) {
    static int64_t took[N_INFLIGHT][N_CHUNK + 1][ROUNDS], ns[PD_MAX_NS];
    int32_t n;
    for (int r = -1; r < ROUNDS; r++) /* the first round is not counted */
        for (int i = 0; i < N_INFLIGHT; i++)
            for (int c = 0; c <= N_CHUNK; c++) {
                prompt_job j = {
                    .chunk = CHUNK[c < N_CHUNK ? c : N_CHUNK - 1], .n_tok = n_tok, .scattered = c == N_CHUNK};
                if (j.chunk > INFLIGHT[i] || (j.scattered && i != N_INFLIGHT - 1)) continue;
                GY_TRY(pd_ends_do(p, i, time_prompt, &j, sizeof j, err, ns, &n));
                if (r >= 0) took[i][c][r] = ns[across ? 0 : 1];
            }
    double bytes = (double)n_tok / BLOCK_LEN * N_PLANE * (double)BLOCK;
    for (int i = 0; i < N_INFLIGHT; i++)
        for (int c = 0; c < N_CHUNK; c++)
            t->gbs[i][c] = took[i][c][0] ? bytes * 1e-3 / pd_quantile_us(took[i][c], ROUNDS, 0.5) : 0;
    t->scattered = bytes * 1e-3 / pd_quantile_us(took[N_INFLIGHT - 1][N_CHUNK], ROUNDS, 0.5);
    return GY_OK;
}

static void show(const pd_bench *b, const table *t, const char *lane, int32_t n_tok) {
    double lo = 1e9, hi = 0;
    if (!b->json) {
        printf("\nKV of a prompt of %d tokens, Ouro-1.4B (%.2f GB), over %s: GB/s, median of %d\n  %-18s", n_tok,
               (double)n_tok / BLOCK_LEN * N_PLANE * (double)BLOCK * 1e-9, lane, ROUNDS, "in flight \\ chunk");
        for (int c = 0; c < N_CHUNK; c++) printf(" %6zu MiB", CHUNK[c] >> 20);
        printf("\n");
    }
    for (int i = 0; i < N_INFLIGHT; i++) {
        if (!b->json) printf("  %10zu MiB    ", INFLIGHT[i] >> 20);
        for (int c = 0; c < N_CHUNK; c++) {
            double v = t->gbs[i][c];
            if (v > 0) {
                lo = v < lo ? v : lo;
                hi = v > hi ? v : hi;
            }
            if (!b->json && v > 0)
                printf(" %10.3f", v);
            else if (!b->json)
                printf(" %10s", "-");
            else if (v > 0)
                printf("{\"what\":\"pd_budget\",\"lane\":\"%s\",\"tokens\":%d,\"inflight\":%zu,\"chunk\":%zu,\"gbs\":%."
                       "3f}\n",
                       lane, n_tok, INFLIGHT[i], CHUNK[c], v);
        }
        if (!b->json) printf("\n");
    }
    if (b->json)
        printf("{\"what\":\"pd_budget_spread\",\"lane\":\"%s\",\"least_over_most\":%.4f,\"scattered_gbs\":%.3f}\n",
               lane, lo / hi, t->scattered);
    else
        printf("  least over most: %.1f %%; blocks in no order (256 MiB, 2 GiB): %.3f\n", 100 * lo / hi, t->scattered);
    fflush(stdout);
}

static gy_status over(const pd_bench *b, int across, int32_t n_tok, gy_err *err) {
    enum { SRC_BLOCKS = 64 };
    pd_ends_opts o = {.across_hosts = across,
                      .src_bytes = SRC_BLOCKS * BLOCK,
                      .dst_bytes = (size_t)(n_tok / BLOCK_LEN * N_PLANE) * BLOCK,
                      .n_sender = N_INFLIGHT};
    table t = {0};
    pd_ends *p = NULL;
    int64_t ns[2];
    int32_t n;
    for (int i = 0; i < N_INFLIGHT; i++) {
        gy_xfer_limits_default(&o.limits[i]);
        o.limits[i].inflight_bytes = INFLIGHT[i];
        if (o.limits[i].chunk_bytes > INFLIGHT[i]) o.limits[i].chunk_bytes = INFLIGHT[i];
    }
    gy_status st = pd_ends_open(&o, err, &p);
    if (st >= 0) st = pd_ends_do(p, 0, touch, "", 1, err, ns, &n);
    if (st >= 0) st = measure(p, across, n_tok, err, &t);
    if (st >= 0) show(b, &t, across ? "tcp" : "shm", n_tok);
    pd_ends_close(p);
    return st;
}

/* The whole prompt when half of the free memory holds it, else what is a power of two below. */
static int32_t tokens_that_fit(int32_t most) {
    int32_t n = most;
    while (n > 128 && (size_t)(n / BLOCK_LEN * N_PLANE) * BLOCK > gy_mem_available() / 2) n /= 2;
    return n;
}

gy_status pd_budget(const pd_bench *b, gy_err *err) {
    GY_TRY(over(b, 0, tokens_that_fit(2048), err));
    return over(b, 1, tokens_that_fit(256), err);
}
