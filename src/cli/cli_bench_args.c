/* Rows, defaults and refusals: see cli_bench_args.h. */
#include "cli/cli_bench_args.h"

#include "cli/cli_bench_stats.h"

#include <string.h>

#define AT(member) offsetof(gy_args, bench.member)
enum { BIG = 1 << 24, DEFAULT_CONCURRENCY = 8, DEFAULT_REQUESTS = 32, DEFAULT_USERS = 4, DEFAULT_TURNS = 4 };
static const gy_bench_range DEFAULT_IN = {128, 128}, DEFAULT_OUT = {32, 32};

static const gy_opt rows[] = {
    {"synthetic", GY_OPT_STR, AT(synthetic), "SHAPE", 0, 0, NULL,
     "instead of MODEL: random weights of that shape (gyre synth --help lists them), written to /tmp and removed once "
     "loaded"},
    {"workload", GY_OPT_WORD, AT(workload), GY_BENCH_KINDS, 0, 0, "closed",
     "burst: --concurrency requests at once; closed: so many always run until --requests are done; poisson: --requests "
     "arrive at --rate; session: --users conversations of --turns turns, each prompt the whole conversation so far"},
    {"concurrency", GY_OPT_I32, AT(concurrency), "C", 1, 65536, "8", "burst, closed: requests at once"},
    {"requests", GY_OPT_I32, AT(requests), "N", 1, BIG, "closed: four times --concurrency; poisson: 32",
     "requests of one repeat"},
    {"rate", GY_OPT_F64, AT(rate), "R", 1e-6, 1e9, NULL, "poisson: arrivals a second on average; must be given"},
    {"users", GY_OPT_I32, AT(users), "S", 1, 65536, "4", "session: conversations at once"},
    {"turns", GY_OPT_I32, AT(turns), "T", 1, 65536, "4", "session: turns of each"},
    {"in", GY_OPT_STR, AT(in), "LEN[:LEN2]", 0, 0, "128",
     "prompt tokens of a request (session: new ones of a turn); LEN:LEN2: each length between as likely; LEN,LEN2: the "
     "one and the other by turns; sharegpt: as people's prompts, log-normal, half of them below 100"},
    {"out", GY_OPT_STR, AT(out), "LEN[:LEN2]", 0, 0, "32", "output tokens of a request"},
    {"warmup", GY_OPT_I32, AT(warmup), "K", 0, BIG, "2", "requests before each repeat that are not counted"},
    {"repeat", GY_OPT_I32, AT(repeat), "R", 1, GY_BENCH_MAX_REPEAT, "3", "times; figures are medians over them"},
    {"compare", GY_OPT_FLAG, AT(compare), NULL, 0, 0, NULL,
     "session: each repeat without and then with the prefix cache; prints the ratio, fails if an output differs"},
    {"layouts", GY_OPT_STR, AT(layouts), "LIST", 0, 0, NULL,
     "the same work in several ways in turns, each in processes of its own, in one table; separated by commas: engine; "
     "2r: two replicas that share the requests out; 1p1d, 2h, 1p1d1h: workers that prefill, decode, do both; "
     "1p1d@64M/256M: with these --transfer-chunk-bytes and -inflight-bytes; 1p1d@peer: with --transfer-errors peer. "
     "The "
     "cores are shared out evenly over a layout's processes, or each has --threads; devices are given out in turn"},
    {"part", GY_OPT_WORD, AT(part), "all|headline|mixed|chat", 0, 0, "all",
     "bench pd: which workloads. headline: 32 prompts of 2048 at once, with budgets and error modes; mixed: 128 and "
     "4096 "
     "by turns at 0.25 to 4 a second; chat: lengths as sharegpt"},
    {"cell", GY_OPT_LIST, AT(cells), "TEXT", 0, 0, NULL,
     "NAME and options of a workload or engine, separated by blanks: may be given several times. The model is loaded "
     "once, each cell is the command line with its options added, and makes one line of a table; --json gets a list"},
    {"ceilings", GY_OPT_STR, AT(ceilings), "GB/s:TFLOP/s", 0, 0, NULL,
     "of the machine: the least that a prompt alone and a token of --concurrency sequences can take stands beside"},
    {"steps", GY_OPT_STR, AT(steps_file), "FILE", 0, 0, NULL,
     "write a line of CSV for each step of the first repeat: what it was made of, how long it took and waited"},
    {"json", GY_OPT_STR, AT(json_file), "FILE", 0, 0, NULL,
     "write all figures, settings and the machine as JSON; - is standard output, without the table"},
    {"csv", GY_OPT_STR, AT(csv_file), "FILE", 0, 0, NULL,
     "write one line a repeat under a line of names; - is standard output, without the table"},
    {"html", GY_OPT_STR, AT(html_file), "FILE", 0, 0, NULL, "write a page with plots that needs nothing else"},
};
const gy_opt_group gy_group_bench = {"Workload and report", rows, sizeof rows / sizeof *rows};

/* ---- what does not go together ---- */

static gy_status refuse(const gy_args *a, const char *const *names, const char *why, gy_err *err) {
    for (; *names; names++)
        if (gy_opts_given(a->opts, *names)) return gy_err_set(err, GY_E_ARG, "--%s: %s", *names, why);
    return GY_OK;
}

static gy_status refuse_others(const gy_args *a, gy_err *err) {
    static const char *const never[] = {"max-tokens", "min-tokens", "stop", "stop-ids", "n", "no-cache", NULL};
    static const char *const cohort[] = {"rate", "users", "turns", "requests", "compare", NULL};
    static const char *const closed[] = {"rate", "users", "turns", "compare", NULL};
    static const char *const poisson[] = {"concurrency", "users", "turns", "compare", NULL};
    static const char *const session[] = {"concurrency", "requests", "rate", NULL};
    static const char *const *const other[] = {cohort, closed, poisson, session};
    static const char *const why[] = {"has no meaning with --workload burst, which sends --concurrency requests",
                                      "has no meaning with --workload closed",
                                      "has no meaning with --workload poisson, whose requests arrive at --rate",
                                      "has no meaning with --workload session, which has --users and --turns"};
    static const char *const cache[] = {"prefix-cache", NULL};
    static const char *const compare[] = {"layouts", "prefill", "decode", "hybrid", NULL};
    GY_TRY(refuse(a, never, "has no meaning in a benchmark: outputs are as long as --out says", err));
    GY_TRY(refuse(a, other[a->bench.workload], why[a->bench.workload], err));
    if (a->bench.compare) GY_TRY(refuse(a, cache, "--compare runs without and with it", err));
    if (a->bench.compare) GY_TRY(refuse(a, compare, "--compare is about one engine", err));
    if (a->bench.synthetic && a->pack_cache && !strcmp(a->pack_cache, "auto"))
        return gy_err_set(err, GY_E_ARG, "--pack-cache: found auto with --synthetic, whose folder goes; give a file");
    if (a->bench.workload == GY_BENCH_POISSON && a->bench.rate <= 0)
        return gy_err_set(err, GY_E_ARG, "--rate: not given; --workload poisson needs the arrivals a second");
    return GY_OK;
}

/* What the model was loaded with, and what is said of all cells, is the command line's. */
static gy_status refuse_in_cell(const gy_opts *o, gy_err *err) {
    static const char *const never[] = {"cell",     "synthetic",    "device", "dtype",      "threads",
                                        "weights",  "weights-head", "pack",   "pack-cache", "pin",
                                        "cpu-mask", "json",         "csv",    "compare",    "config",
                                        "prefill",  "decode",       "hybrid", NULL};
    for (const char *const *n = never; *n; n++)
        if (gy_opts_given(o, *n)) return gy_err_set(err, GY_E_ARG, "--%s: is for all cells, not for one", *n);
    return GY_OK;
}

static char *next_word(char **at) {
    char *word = *at + strspn(*at, " ");
    if (!*word) return NULL;
    *at = word + strcspn(word, " ");
    if (**at) *(*at)++ = '\0';
    return word;
}

static gy_status parse_cell(gy_bench_cell *c, char *text, gy_err *err) {
    enum { MOST = 64 };
    char *words[MOST];
    int n = 0;
    for (char *word; (word = next_word(&text)); n++) {
        if (n == MOST) return gy_err_set(err, GY_E_LIMIT, "more than %d words", MOST);
        words[n] = word;
    }
    GY_TRY(gy_opts_parse_argv(&c->opts, n, words, err));
    if (c->opts.pos.len != 1) return gy_err_set(err, GY_E_ARG, "found %zu names, expected one", c->opts.pos.len);
    return refuse_in_cell(&c->opts, err);
}

gy_status gy_bench_cell_read(const gy_args *a, const gy_opt_item *item, gy_err *err, gy_bench_cell *c) {
    char *text = gy_arena_alloc(a->arena, item->len + 1, 1);
    if (!text) return gy_err_set(err, GY_E_NOMEM, "no memory for the cells");
    memcpy(text, item->text, item->len);
    c->args = *a;
    c->opts = (gy_opts){.arena = a->arena, .groups = a->opts->groups, .values = &c->args};
    c->args.opts = &c->opts;
    const gy_status st = parse_cell(c, text, err);
    if (st < 0) return gy_err_prefix(err, "--cell %.40s", item->text);
    c->name = c->opts.pos.data[0];
    for (size_t i = 0; i < a->opts->seen.len; i++)
        if (gy_vec_push(&c->opts.seen, GY_MEM_CLI, a->opts->seen.data[i]))
            return gy_err_set(err, GY_E_NOMEM, "no memory for the cells");
    return GY_OK;
}

/* ---- the workload ---- */

static int32_t or_default(int32_t v, int32_t dflt) {
    return v ? v : dflt;
}

static void settle_counts(const gy_bench_opts *b, gy_bench_load *l) {
    l->n_turn = 1;
    l->concurrency = or_default(b->concurrency, DEFAULT_CONCURRENCY);
    switch (l->kind) {
    case GY_BENCH_BURST:
        l->n_stream = l->concurrency;
        return;
    case GY_BENCH_CLOSED:
        l->n_stream = or_default(b->requests, 4 * l->concurrency);
        return;
    case GY_BENCH_POISSON:
        l->n_stream = l->concurrency = or_default(b->requests, DEFAULT_REQUESTS);
        return;
    case GY_BENCH_SESSION:
        l->n_stream = l->concurrency = or_default(b->users, DEFAULT_USERS);
        l->n_turn = or_default(b->turns, DEFAULT_TURNS);
    }
}

gy_status gy_bench_settle(const gy_args *a, gy_err *err, gy_bench_load *out) {
    const gy_bench_opts *b = &a->bench;
    gy_bench_load l = {.kind = (gy_bench_kind)b->workload, .in = DEFAULT_IN, .out = DEFAULT_OUT, .rate = b->rate};
    GY_TRY(refuse_others(a, err));
    settle_counts(b, &l);
    if (b->in) GY_TRY(gy_bench_parse_lengths(b->in, "--in", err, &l.in, &l.in_spread));
    if (b->out) GY_TRY(gy_bench_parse_range(b->out, "--out", err, &l.out));
    l.seed = a->req.seed.given ? a->req.seed.v : 0;
    if ((int64_t)l.n_stream * l.n_turn > BIG)
        return gy_err_set(err, GY_E_LIMIT, "--users, --turns: found %d and %d, expected at most %d requests in all",
                          l.n_stream, l.n_turn, BIG);
    *out = l;
    return GY_OK;
}
