/* The workloads that prefill and decode in processes of their own are judged by, as vllm-rlt's pull requests have them:
 *
 *   headline   #150: 32 requests at once, 2048 random tokens in, 64 out, fixed depth; budgets and error modes beside it
 *   mixed      Nanbeige's: prompts of 128 and 4096 by turns, 64 out, arrivals by Poisson at five rates
 *   chat       #31: lengths as people's prompts, 128 out
 *
 * The first layout is one engine: what every other one gives must be equal to it. --layouts on the command line takes
 * the place of a cell's own.
 */
#include "cli/cli_bench_pd.h"

#include "base/arena.h"

#include <stdio.h>
#include <string.h>

typedef struct pd_cell {
    int part; /* in the order of the words of --part, from 1 */
    const char *text, *layouts;
} pd_cell;

#define MIXED(rate, n)                                                                                                 \
    {                                                                                                                  \
        2, "mixed-" rate " --workload poisson --rate " rate " --requests " n " --in 128,4096 --out 64 --max-seqs 32",  \
            "engine,1p1d,2r,2h"                                                                                        \
    }

static const pd_cell cells[] = {
    {1, "headline --workload burst --concurrency 32 --in 2048 --out 64",
     "engine,1p1d,2r,2h,1p1d@64M/256M,1p1d@256M/1G,1p1d@256M/2G,1p1d@peer"},
    MIXED("0.25", "15"),
    MIXED("0.5", "30"),
    MIXED("1", "60"),
    MIXED("2", "120"),
    MIXED("4", "240"),
    {3, "chat --workload poisson --rate 8 --requests 240 --in sharegpt --out 128 --max-seqs 64", "engine,1p1d,2r,2h"},
};

gy_status gy_bench_pd_args(const gy_args *a, gy_err *err, gy_args *out) {
    enum { N = sizeof cells / sizeof *cells, LEN = 320 };
    gy_opt_item *items = gy_arena_alloc(a->arena, N, sizeof *items);
    size_t n = 0;
    if (a->bench.cells.n) return gy_err_set(err, GY_E_ARG, "--cell: gyre bench pd has its own; use gyre bench engine");
    for (size_t i = 0; items && i < N; i++) {
        if (a->bench.part && a->bench.part != cells[i].part) continue;
        char *text = gy_arena_alloc(a->arena, LEN, 1);
        if (!text) return gy_err_set(err, GY_E_NOMEM, "no memory for the cells");
        int own = !a->bench.layouts;
        snprintf(text, LEN, "%s%s%s", cells[i].text, own ? " --layouts " : "", own ? cells[i].layouts : "");
        items[n++] = (gy_opt_item){.text = text, .len = strlen(text)};
    }
    if (!items) return gy_err_set(err, GY_E_NOMEM, "no memory for the cells");
    *out = *a;
    out->bench.cells.items = items;
    out->bench.cells.n = n;
    return GY_OK;
}
