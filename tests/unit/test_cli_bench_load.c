/* Workloads: ranges, lengths, arrivals and tokens as numbers; what `gyre bench` refuses, by the flag's name. */
#include "cli/cli_bench_args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ranges(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t lo, hi; /* 0: refused */
    } cases[] = {{"1", 1, 1},
                 {"128", 128, 128},
                 {"64:256", 64, 256},
                 {"7:7", 7, 7},
                 {"0", 0, 0},
                 {"", 0, 0},
                 {":", 0, 0},
                 {"5:", 0, 0},
                 {":5", 0, 0},
                 {"9:8", 0, 0},
                 {"1:2:3", 0, 0},
                 {"-1", 0, 0},
                 {"1 ", 0, 0},
                 {"0x10", 0, 0},
                 {"2147483647", 2147483647, 2147483647},
                 {"2147483648", 0, 0},
                 {"99999999999999999999", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_bench_range r = {-7, -7};
        gy_err err = {0};
        const gy_status st = gy_bench_parse_range(cases[i].text, "--in", &err, &r);
        if (cases[i].lo) {
            if (st != GY_OK) fail_msg("%s: %s", cases[i].text, err.msg);
            assert_int_equal(r.lo, cases[i].lo);
            assert_int_equal(r.hi, cases[i].hi);
            continue;
        }
        if (st != GY_E_ARG) fail_msg("'%s' was taken", cases[i].text);
        assert_int_equal(r.lo, -7);
        assert_non_null(strstr(err.msg, "--in: found '"));
        assert_non_null(strstr(err.msg, "expected a number of tokens or LOW:HIGH"));
    }
}

enum { N = 4000 };
static gy_bench_item items[N];

/* Uniform over 10..13: each within five standard deviations of N / 4 (sd = sqrt(N * 3/16) = 27.4). */
static void lengths(void **state) {
    (void)state;
    const gy_bench_load l = {GY_BENCH_CLOSED, N, 1, 4, {10, 13}, {5, 5}, 0, 11, GY_BENCH_EVENLY};
    int count[4] = {0};
    gy_bench_items(&l, items);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(items[i].stream, i);
        assert_int_equal(items[i].turn, 0);
        assert_int_equal(items[i].n_out, 5);
        assert_int_equal(items[i].n_new, items[i].n_prompt);
        assert_int_equal(items[i].at_ns, 0);
        assert_in_range(items[i].n_prompt, 10, 13);
        count[items[i].n_prompt - 10]++;
    }
    for (int k = 0; k < 4; k++) assert_in_range(count[k], N / 4 - 137, N / 4 + 137);
}

/* Gaps of an exponential distribution with rate R: mean 1/R (sd of the mean 1/(R sqrt N)), a share e^-1 of them longer
 * than the mean (sd sqrt(N * 0.368 * 0.632) = 30.5). */
static void arrivals(void **state) {
    (void)state;
    const double rate = 40;
    const gy_bench_load l = {GY_BENCH_POISSON, N, 1, N, {4, 4}, {4, 4}, rate, 5, GY_BENCH_EVENLY};
    int longer = 0;
    gy_bench_items(&l, items);
    assert_true(items[0].at_ns >= 0);
    for (int32_t i = 1; i < N; i++) {
        const int64_t gap = items[i].at_ns - items[i - 1].at_ns;
        assert_true(gap >= 0);
        longer += (double)gap * 1e-9 > 1 / rate;
    }
    const double mean = (double)items[N - 1].at_ns * 1e-9 / N;
    assert_true(mean > 1 / rate * (1 - 5 / 63.2) && mean < 1 / rate * (1 + 5 / 63.2));
    assert_in_range(longer, 1472 - 153, 1472 + 153);
}

/* By turns, and as people write: half below 100, in bounds, a mean about 220. */
static void lengths_of_other_kinds(void **state) {
    (void)state;
    static gy_bench_item it[N];
    gy_bench_load l = {GY_BENCH_CLOSED, N, 1, 4, {0, 0}, {5, 5}, 0, 11, GY_BENCH_EVENLY};
    gy_err err = {0};
    double sum = 0;
    int below = 0;
    assert_int_equal(gy_bench_parse_lengths("128,4096", "--in", &err, &l.in, &l.in_spread), GY_OK);
    gy_bench_items(&l, it);
    for (int i = 0; i < N; i++) assert_int_equal(it[i].n_prompt, i % 2 ? 4096 : 128);
    assert_int_equal(gy_bench_longest(&l), 4101);
    assert_int_equal(gy_bench_parse_lengths("sharegpt", "--in", &err, &l.in, &l.in_spread), GY_OK);
    gy_bench_items(&l, it);
    for (int i = 0; i < N; i++) {
        assert_true(it[i].n_prompt >= 4 && it[i].n_prompt <= 1024);
        sum += it[i].n_prompt;
        below += it[i].n_prompt < 100;
    }
    assert_true(sum / N > 150 && sum / N < 260 && below > 0.4 * N && below < 0.6 * N);
    assert_int_equal(gy_bench_parse_lengths("4096,128", "--in", &err, &l.in, &l.in_spread), GY_E_ARG);
    assert_int_equal(gy_bench_parse_lengths("7:9", "--in", &err, &l.in, &l.in_spread), GY_OK);
    assert_true(l.in_spread == GY_BENCH_EVENLY && l.in.hi == 9);
}

static void sessions_grow(void **state) {
    (void)state;
    const gy_bench_load l = {GY_BENCH_SESSION, 3, 4, 3, {5, 9}, {2, 6}, 0, 1, GY_BENCH_EVENLY};
    gy_bench_items(&l, items);
    for (int32_t t = 0; t < 4; t++)
        for (int32_t s = 0; s < 3; s++) {
            const gy_bench_item *it = &items[t * 3 + s], *before = it - 3;
            assert_int_equal(it->stream, s);
            assert_int_equal(it->turn, t);
            assert_in_range(it->n_new, 5, 9);
            assert_in_range(it->n_out, 2, 6);
            assert_int_equal(it->n_prompt, t ? before->n_prompt + before->n_out + it->n_new : it->n_new);
            assert_true(it->n_prompt + it->n_out <= gy_bench_longest(&l));
        }
    assert_int_equal(gy_bench_longest(&l), 4 * 15);
    const gy_bench_load big = {GY_BENCH_SESSION, 1, 4, 1, {INT32_MAX, INT32_MAX}, {1, 1}, 0, 0, GY_BENCH_EVENLY};
    assert_true(gy_bench_longest(&big) == 4ll * (1ll << 31));
}

/* The same settings and seed ask the same; another seed, another stream and another position ask something else. */
static void same_seed_same_work(void **state) {
    (void)state;
    gy_bench_load l = {GY_BENCH_POISSON, 50, 1, 50, {1, 1000}, {1, 1000}, 3, 8, GY_BENCH_EVENLY};
    gy_bench_item a[50], b[50];
    int32_t x[64], y[64];
    int same = 0;
    gy_bench_items(&l, a);
    gy_bench_items(&l, b);
    assert_memory_equal(a, b, sizeof a);
    l.seed = 9;
    gy_bench_items(&l, b);
    for (int i = 0; i < 50; i++) same += a[i].n_prompt == b[i].n_prompt;
    assert_true(same < 5);
    gy_bench_ids(8, 2, 64, 320, x);
    gy_bench_ids(8, 2, 64, 320, y);
    assert_memory_equal(x, y, sizeof x);
    for (int i = 0; i < 64; i++) assert_in_range(x[i], 0, 319);
    gy_bench_ids(8, 3, 64, 320, y);
    same = 0;
    for (int i = 0; i < 64; i++) same += x[i] == y[i];
    assert_true(same < 6);
    gy_bench_ids((uint64_t)8 << 32, 2, 64, 320, y); /* the high word counts too */
    assert_memory_not_equal(x, y, sizeof x);
    gy_bench_ids(8, 2, 64, 1, x);
    for (int i = 0; i < 64; i++) assert_int_equal(x[i], 0);
}

/* Every id of a small vocabulary comes up, none beyond it. */
static void ids_cover_the_vocabulary(void **state) {
    (void)state;
    static int32_t ids[N];
    int seen[16] = {0};
    gy_bench_ids(3, 0, N, 16, ids);
    for (int i = 0; i < N; i++) {
        assert_in_range(ids[i], 0, 15);
        seen[ids[i]]++;
    }
    for (int i = 0; i < 16; i++) assert_in_range(seen[i], N / 16 - 77, N / 16 + 77); /* five of sqrt(N * 15/256) */
}

/* ---- the command line ---- */

static gy_status settle(const char *line, gy_err *err, gy_bench_load *out) {
    char text[256], *argv[32];
    int argc = 0;
    gy_args a;
    gy_arena *arena = gy_arena_create(GY_MEM_CLI, 4096);
    assert_non_null(arena);
    gy_args_default(&a);
    a.arena = arena;
    gy_opts o = {.arena = arena, .groups = gy_cmd_find("bench")->groups, .values = &a};
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) argv[argc++] = w;
    if (gy_opts_parse_argv(&o, argc, argv, err) != GY_OK) fail_msg("%s", err->msg);
    a.opts = &o;
    const gy_status st = gy_bench_settle(&a, err, out);
    gy_opts_fini(&o);
    gy_arena_destroy(arena);
    return st;
}

static gy_bench_load settled(const char *line) {
    gy_bench_load l = {0};
    gy_err err = {0};
    if (settle(line, &err, &l) != GY_OK) fail_msg("%s: %s", line, err.msg);
    return l;
}

static void defaults(void **state) {
    (void)state;
    gy_bench_load l = settled("engine m");
    assert_int_equal(l.kind, GY_BENCH_CLOSED);
    assert_int_equal(l.n_stream, 32);
    assert_int_equal(l.n_turn, 1);
    assert_int_equal(l.concurrency, 8);
    assert_true(l.in.lo == 128 && l.in.hi == 128 && l.out.lo == 32 && l.out.hi == 32);
    assert_true(l.seed == 0);
    l = settled("--workload burst --concurrency 5 --seed 18446744073709551615");
    assert_int_equal(l.kind, GY_BENCH_BURST);
    assert_int_equal(l.n_stream, 5);
    assert_true(l.seed == UINT64_MAX);
    l = settled("--workload poisson --rate 2.5 --requests 7 --in 3:9");
    assert_int_equal(l.kind, GY_BENCH_POISSON);
    assert_int_equal(l.n_stream, 7);
    assert_true(l.rate == 2.5 && l.in.lo == 3 && l.in.hi == 9);
    l = settled("--workload session --users 3 --turns 6 --out 4");
    assert_int_equal(l.kind, GY_BENCH_SESSION);
    assert_true(l.n_stream == 3 && l.n_turn == 6 && l.concurrency == 3 && l.out.hi == 4);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--max-tokens 4", "--max-tokens: has no meaning in a benchmark: outputs are as long as --out says"},
        {"--stop x", "--stop: has no meaning in a benchmark"},
        {"--n 2", "--n: has no meaning in a benchmark"},
        {"--rate 2", "--rate: has no meaning with --workload closed"},
        {"--turns 2", "--turns: has no meaning with --workload closed"},
        {"--compare", "--compare: has no meaning with --workload closed"},
        {"--workload burst --requests 9",
         "--requests: has no meaning with --workload burst, which sends --concurrency"},
        {"--workload poisson", "--rate: not given; --workload poisson needs the arrivals a second"},
        {"--workload poisson --rate 1 --concurrency 2", "--concurrency: has no meaning with --workload poisson"},
        {"--workload session --requests 2", "--requests: has no meaning with --workload session, which has --users"},
        {"--workload session --compare --prefix-cache on", "--prefix-cache: --compare runs without and with it"},
        {"--workload session --users 65536 --turns 65536", "--users, --turns: found 65536 and 65536"},
        {"--in 0", "--in: found '0'"},
        {"--out 5:4", "--out: found '5:4'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_bench_load l = {.n_stream = -7};
        gy_err err = {0};
        if (settle(cases[i].line, &err, &l) >= 0) fail_msg("%s: was taken", cases[i].line);
        if (!strstr(err.msg, cases[i].message)) fail_msg("%s: %s", cases[i].line, err.msg);
        assert_int_equal(l.n_stream, -7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges),
        cmocka_unit_test(lengths),
        cmocka_unit_test(arrivals),
        cmocka_unit_test(lengths_of_other_kinds),
        cmocka_unit_test(sessions_grow),
        cmocka_unit_test(same_seed_same_work),
        cmocka_unit_test(ids_cover_the_vocabulary),
        cmocka_unit_test(defaults),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
