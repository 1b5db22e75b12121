/* Exit rules against values worked out by hand, against the golden gates of the tiny Ouro, and at their edges. */
#include "engine/exit.h"

#include "base/json.h"
#include "base/philox.h"
#include "tensor/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static gy_exit_rule rule(gy_exit_kind kind, double threshold, int min_loops, int max_loops) {
    return (gy_exit_rule){.kind = kind, .threshold = threshold, .min_loops = min_loops, .max_loops = max_loops};
}

/* The gate whose sigmoid is p. */
static float logit(double p) {
    return (float)log(p / (1 - p));
}

/* Loops run by a gate rule on these gates; the state that is read out goes to *selected. */
static int run_gates(gy_exit_rule r, const float *gate, int *selected) {
    gy_exit_state s;
    gy_exit_begin(&s);
    for (int i = 0;; i++) {
        gy_exit_obs o = {.gate = i < r.max_loops - 1 ? gate[i] : NAN}; /* the last loop's gate is never read */
        if (gy_exit_step(&r, &s, &o) == GY_EXIT_LEAVE) break;
    }
    if (selected) *selected = s.selected;
    return s.loops;
}

static int gates(gy_exit_kind kind, double threshold, int min_loops, int max_loops, const float *gate) {
    return run_gates(rule(kind, threshold, min_loops, max_loops), gate, NULL);
}

static int chosen(double threshold, int min_loops, int max_loops, const float *gate) {
    int selected = 0, loops = run_gates(rule(GY_EXIT_SELECT, threshold, min_loops, max_loops), gate, &selected);
    assert_int_equal(loops, max_loops); /* select always runs all loops */
    return selected;
}

/* ---- gate rules ---- */

/* By hand: p = .3, .3, threshold .5 -> CDF .3, .51: ouro leaves at 2, delayed at 3. */
static void worked_example(void **state) {
    (void)state;
    float g[4] = {logit(.3), logit(.3), logit(.3), logit(.3)};
    assert_int_equal(gates(GY_EXIT_GATE, .5, 1, 4, g), 2);
    assert_int_equal(gates(GY_EXIT_GATE, .5, 2, 4, g), 2);
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .5, 1, 4, g), 3);
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .5, 2, 4, g), 3);
    assert_int_equal(gates(GY_EXIT_GATE, .52, 1, 4, g), 3);         /* CDF .657 */
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .52, 1, 4, g), 4); /* one later is the last */
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .7, 1, 4, g), 4);  /* met by nothing before the last */
    assert_int_equal(chosen(.5, 1, 4, g), 2);
    assert_int_equal(chosen(.66, 1, 4, g), 4); /* the last loop takes all the mass that is left */
}

static void score_is_the_product_of_survivals(void **state) {
    (void)state;
    const float g[3] = {-0.5f, 0.25f, 1.5f};
    gy_exit_rule r = rule(GY_EXIT_GATE, 0.999, 1, 8);
    gy_exit_state s;
    double remaining = 1;
    gy_exit_begin(&s);
    for (int i = 0; i < 3; i++) {
        gy_exit_obs o = {.gate = g[i]};
        assert_int_equal(gy_exit_step(&r, &s, &o), GY_EXIT_STAY);
        remaining *= 1 - 1 / (1 + exp(-(double)g[i]));
        assert_true(s.remaining == remaining);
    }
}

static void loops_below_min_feed_the_score(void **state) {
    (void)state;
    float g[4] = {logit(.4), logit(.2), logit(.01), logit(.01)};
    assert_int_equal(gates(GY_EXIT_GATE, .45, 1, 4, g), 2); /* 1 - .6*.8 = .52 */
    assert_int_equal(gates(GY_EXIT_GATE, .39, 3, 4, g), 3);
    assert_int_equal(gates(GY_EXIT_GATE, .45, 3, 4, g), 3); /* .5248: mostly from loops 1 and 2 */
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .1, 2, 4, g), 3);
    assert_int_equal(chosen(.39, 1, 4, g), 1);
    assert_int_equal(chosen(.39, 3, 4, g), 3);
}

static void gate_threshold_edges(void **state) {
    (void)state;
    float sure[4] = {100, 100, 100, 100}, never[4] = {-100, -100, -100, -100};
    for (int min_loops = 1; min_loops <= 4; min_loops++) {
        assert_int_equal(gates(GY_EXIT_GATE, 0, min_loops, 4, never), min_loops); /* 0 leaves at min_loops */
        assert_int_equal(gates(GY_EXIT_GATE_DELAYED, 0, min_loops, 4, never), min_loops < 4 ? min_loops + 1 : 4);
        assert_int_equal(chosen(0, min_loops, 4, never), min_loops);
    }
    assert_int_equal(gates(GY_EXIT_GATE, 1, 1, 4, sure), 4); /* 1 means fixed depth even when the score is 1 */
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, 1, 1, 4, sure), 4);
    assert_int_equal(gates(GY_EXIT_GATE, nextafter(1, 0), 1, 4, sure), 1);
    assert_int_equal(chosen(1, 1, 4, sure), 1); /* select has no such exception: the cumulative probability is 1 */
    assert_int_equal(chosen(1, 1, 4, never), 4);
    for (int n = 1; n <= 4; n++) { /* min = max: the rule has no say */
        assert_int_equal(gates(GY_EXIT_GATE, 0, n, n, sure), n);
        assert_int_equal(chosen(0, n, n, sure), n);
    }
}

/* Score and threshold equal in double: >= leaves, and the next double above does not. */
static void score_equal_to_threshold_leaves(void **state) {
    (void)state;
    const float zero[2] = {0, 0}; /* sigmoid .5: scores .5, .75 exactly */
    assert_int_equal(gates(GY_EXIT_GATE, .5, 1, 3, zero), 1);
    assert_int_equal(gates(GY_EXIT_GATE, nextafter(.5, 1), 1, 3, zero), 2);
    assert_int_equal(gates(GY_EXIT_GATE, .75, 1, 3, zero), 2);
    assert_int_equal(gates(GY_EXIT_GATE, nextafter(.75, 1), 1, 3, zero), 3);
    assert_int_equal(chosen(.75, 1, 3, zero), 2);
    assert_int_equal(chosen(nextafter(.75, 1), 1, 3, zero), 3);
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .5, 1, 3, zero), 2);
}

/* BF16 gates around q = 0.2. logit(.2) = -1.38629...; its BF16 neighbours are -1.390625 (sigmoid .19931) and
 * -1.3828125 (.20056). q itself stays a double: in BF16 it would act as 0.2002 (ouro.md, leaving early). */
static void bf16_gates_around_a_threshold(void **state) {
    (void)state;
    const float below = gy_bf16_round(-1.390625f), above = gy_bf16_round(-1.3828125f);
    assert_true(below == -1.390625f && above == -1.3828125f);
    assert_true(gy_bf16_round(logit(.2)) == below || gy_bf16_round(logit(.2)) == above);
    const float g[2][3] = {{below, -20, -20}, {above, -20, -20}};
    assert_int_equal(gates(GY_EXIT_GATE, .2, 1, 4, g[0]), 4);
    assert_int_equal(gates(GY_EXIT_GATE, .2, 1, 4, g[1]), 1);
    /* The score of a BF16 gate itself as the threshold, for every BF16 gate between -8 and 8. */
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x[3] = {gy_bf16_to_f32((uint16_t)h), -1e4f, -1e4f};
        if (!(fabsf(x[0]) <= 8)) continue;
        double score = 1 - (1 - 1 / (1 + exp(-(double)x[0])));
        assert_int_equal(gates(GY_EXIT_GATE, score, 1, 2, x), 1);
        assert_int_equal(gates(GY_EXIT_GATE, nextafter(score, 2), 1, 2, x), 2);
        assert_int_equal(chosen(score, 1, 2, x), 1);
        assert_int_equal(chosen(nextafter(score, 2), 1, 2, x), 2);
    }
}

static void gates_that_are_not_finite(void **state) {
    (void)state;
    const float plus[4] = {INFINITY, 0, 0, 0}, minus[4] = {-INFINITY, -INFINITY, 0, 0}, nan[4] = {NAN, 100, 100, 100};
    assert_int_equal(gates(GY_EXIT_GATE, .9, 1, 4, plus), 1);
    assert_int_equal(gates(GY_EXIT_GATE, .4, 1, 4, minus), 3);
    assert_int_equal(gates(GY_EXIT_GATE, .4, 1, 4, nan), 4); /* a score that was NaN stays NaN */
    assert_int_equal(gates(GY_EXIT_GATE, 0, 1, 4, nan), 4);
    assert_int_equal(gates(GY_EXIT_GATE_DELAYED, .4, 1, 4, nan), 4);
    assert_int_equal(chosen(.4, 1, 4, nan), 4);
}

/* The score of the loop that a delayed token leaves at is not consumed. */
static void delayed_does_not_consume_the_last_gate(void **state) {
    (void)state;
    gy_exit_rule r = rule(GY_EXIT_GATE_DELAYED, .5, 1, 4);
    gy_exit_state s;
    gy_exit_obs o = {.gate = 0};
    gy_exit_begin(&s);
    assert_int_equal(gy_exit_step(&r, &s, &o), GY_EXIT_STAY);
    assert_int_equal(s.pending, 2);
    assert_int_equal(gy_exit_step(&r, &s, &o), GY_EXIT_LEAVE);
    assert_true(s.remaining == .5);
    assert_int_equal(s.loops, 2);
}

static void state_restarts_with_each_token(void **state) {
    (void)state;
    gy_exit_rule r = rule(GY_EXIT_GATE, .9, 1, 3);
    gy_exit_state s;
    gy_exit_obs o = {.gate = logit(.8)};
    for (int token = 0; token < 3; token++) {
        gy_exit_begin(&s);
        assert_int_equal(gy_exit_step(&r, &s, &o), GY_EXIT_STAY);  /* .8 */
        assert_int_equal(gy_exit_step(&r, &s, &o), GY_EXIT_LEAVE); /* .96 */
        assert_int_equal(s.loops, 2);
    }
}

/* ---- golden gates ---- */

static const gy_jv *golden_case(const gy_json *doc, const char *name) {
    const gy_jv *cases = gy_jv_get(gy_json_root(doc), "cases");
    for (size_t i = 0; i < gy_jv_len(cases); i++) {
        const gy_jv *c = gy_jv_at(cases, i);
        if (gy_jv_is_str(gy_jv_get(c, "kind"), "prefill") && gy_jv_is_str(gy_jv_get(c, "name"), name)) return c;
    }
    fail_msg("no golden case %s", name);
    return NULL;
}

static void golden_gates(const gy_json *doc, const char *name, float out[4]) {
    const gy_jv *rows = gy_jv_get(golden_case(doc, name), "gates");
    assert_true(gy_jv_len(rows) > 0);
    const gy_jv *last = gy_jv_at(rows, gy_jv_len(rows) - 1);
    assert_int_equal(gy_jv_len(last), 4);
    for (size_t i = 0; i < 4; i++) out[i] = (float)gy_jv_num(gy_jv_at(last, i), NAN);
}

/* select reads the gates of the prompt's last position too, and those are the prefill case's: loops[0] of each select
 * case must follow from them. */
static int check_select_cases(const gy_json *doc) {
    const gy_jv *cases = gy_jv_get(gy_json_root(doc), "cases");
    int n = 0;
    for (size_t i = 0; i < gy_jv_len(cases); i++) {
        const gy_jv *c = gy_jv_at(cases, i);
        if (!gy_jv_is_str(gy_jv_get(c, "exit"), "select")) continue;
        float g[4];
        golden_gates(doc, gy_jv_str(gy_jv_get(c, "prompt"), NULL), g);
        int due = (int)gy_jv_int(gy_jv_at(gy_jv_get(c, "loops"), 0), -1);
        int min_loops = (int)gy_jv_int(gy_jv_get(c, "min_loops"), -1);
        assert_int_equal(chosen(gy_jv_num(gy_jv_get(c, "threshold"), NAN), min_loops, 4, g), due);
        n++;
    }
    return n;
}

/* Case "one" by hand: gates -2.92444, .20030, .76816, .64149 give lambda .05097, .54991, .68312 and cumulative
 * probability .05097, .57285, .86464, then 1. */
static void golden_gates_of_the_tiny_ouro(void **state) {
    (void)state;
    gy_json *doc = NULL;
    gy_err err = {0};
    float g[4];
    const char *path = GY_SOURCE_DIR "/tests/golden/models/ouro-tiny/expected.json";
    assert_int_equal(gy_json_read(path, NULL, &err, &doc), GY_OK);
    golden_gates(doc, "one", g);
    static const struct {
        double q;
        int loops;
    } due[] = {{.05, 1},   {.0509, 1}, {.0511, 2}, {.35, 2},  {.57, 2},
               {.5735, 3}, {.6, 3},    {.86, 3},   {.865, 4}, {.93, 4}};
    for (size_t i = 0; i < sizeof due / sizeof *due; i++) {
        assert_int_equal(chosen(due[i].q, 1, 4, g), due[i].loops);
        assert_int_equal(gates(GY_EXIT_GATE, due[i].q, 1, 4, g), due[i].loops);
        int delayed = due[i].loops < 4 ? due[i].loops + 1 : 4;
        assert_int_equal(gates(GY_EXIT_GATE_DELAYED, due[i].q, 1, 4, g), delayed);
    }
    assert_int_equal(check_select_cases(doc), 6);
    gy_json_free(doc);
}

/* ---- fixed, trace, latent ---- */

static void fixed_and_trace(void **state) {
    (void)state;
    float g[5] = {100, 100, 100, 100, 100};
    for (int n = 1; n <= 5; n++) assert_int_equal(gates(GY_EXIT_FIXED, 0, 1, n, g), n);
    static const int due[6] = {2, 2, 2, 3, 4, 4}; /* traces 0..5 within 2..4 */
    for (int t = 0; t < 6; t++) {
        gy_exit_rule r = rule(GY_EXIT_TRACE, 0, 2, 4);
        gy_exit_state s;
        gy_exit_obs o = {.trace_loops = t};
        gy_exit_begin(&s);
        while (gy_exit_step(&r, &s, &o) == GY_EXIT_STAY) {
        }
        assert_int_equal(s.loops, due[t]);
    }
}

static void latent_is_strictly_below(void **state) {
    (void)state;
    const double change[5] = {.5, .03, .0299, .001, .001};
    const double nan_change[5] = {NAN, NAN, NAN, NAN, NAN};
    static const struct {
        double threshold;
        int min_loops, loops;
    } due[] = {{.03, 1, 3}, {.031, 1, 2}, {.031, 4, 4}, {0, 1, 5}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof due / sizeof *due; i++) {
        gy_exit_rule r = rule(GY_EXIT_LATENT, due[i].threshold, due[i].min_loops, 5);
        for (int broken = 0; broken < 2; broken++) {
            gy_exit_state s;
            gy_exit_verdict v = GY_EXIT_STAY;
            gy_exit_begin(&s);
            for (int l = 0; v == GY_EXIT_STAY; l++) {
                gy_exit_obs o = {.latent = broken ? nan_change[l] : change[l]};
                v = gy_exit_step(&r, &s, &o);
            }
            assert_int_equal(s.loops, broken ? 5 : due[i].loops);
        }
    }
}

/* ---- rules on logits ---- */

enum { V = 4, MAX = 6 };

static int run_logits(gy_exit_kind kind, double threshold, int min_loops, const float rows[][V]) {
    gy_exit_rule r = rule(kind, threshold, min_loops, MAX);
    gy_exit_state s;
    float prev[V] = {NAN, NAN, NAN, NAN}; /* the first loop must not read it */
    gy_exit_begin(&s);
    for (int i = 0;; i++) {
        gy_exit_obs o = {.logits = i < MAX - 1 ? rows[i] : NULL, .prev_logp = prev, .n_vocab = V};
        if (gy_exit_step(&r, &s, &o) == GY_EXIT_LEAVE) return s.loops;
    }
}

/* Rows whose distributions are known: (1/2, 1/4, 1/8, 1/8), then (1/4, 1/4, 1/4, 1/4), then the first again, twice.
 * KL from uniform to row 1: sum 1/4 ln((1/4) / p) = ln2 * (-1 + 0 + 1 + 1) / 4 = ln2 / 4.
 * KL row 1 -> row 2: sum p ln(p / (1/4)) = ln2 * (1/2 + 0 - 1/8 - 1/8) = ln2 / 4. Row 2 -> row 3: ln2 / 4. 3 -> 4: 0.
 * Entropies: ln2 * (1/2 + 2/4 + 3/8 + 3/8) = 1.75 ln2, then 2 ln2, then 1.75 ln2 twice. */
static void known_rows(float rows[MAX][V]) {
    const double p[V] = {.5, .25, .125, .125};
    for (int i = 0; i < MAX; i++)
        for (int j = 0; j < V; j++) rows[i][j] = (float)(i == 1 ? 7.5 : log(p[j]) - 3 * i); /* any offset will do */
}

static void kl_values(void **state) {
    (void)state;
    float rows[MAX][V];
    known_rows(rows);
    const double kl = log(2) / 4; /* loops 1, 2 and 3 */
    assert_int_equal(run_logits(GY_EXIT_KL, kl + 1e-6, 1, rows), 1);
    assert_int_equal(run_logits(GY_EXIT_KL, kl - 1e-6, 1, rows), 4);
    assert_int_equal(run_logits(GY_EXIT_KL, kl + 1e-6, 3, rows), 3);
    assert_int_equal(run_logits(GY_EXIT_KL, 1e-5, 1, rows), 4);
    assert_int_equal(run_logits(GY_EXIT_KL, 0, 1, rows), MAX); /* nothing is below 0, rounding or not */
}

static void kl_of_equal_rows_is_zero(void **state) {
    (void)state;
    const float rows[MAX][V] = {{1.1f, -2.7f, .3f, 9.9f}, {1.1f, -2.7f, .3f, 9.9f}};
    assert_int_equal(run_logits(GY_EXIT_KL, 1e-300, 1, rows), 2);
}

/* Nearly equal rows, where the sum may round to a little below 0: still not below a threshold of 0. */
static void kl_is_never_negative(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 2000; n++) {
        float rows[MAX][V];
        uint32_t w[4];
        gy_rand_block(1, 0, n, GY_RAND_TEST, 0, w);
        for (int i = 0; i < MAX; i++)
            for (int j = 0; j < V; j++) rows[i][j] = 4 * gy_rand_unit_f32(w[j]) + (float)i * 1e-7f * (float)(w[j] & 3);
        assert_int_equal(run_logits(GY_EXIT_KL, 0, 1, rows), MAX);
    }
}

static void kl_is_not_symmetric(void **state) {
    (void)state;
    /* p = (.9, .1/3 ...) then q = uniform: KL(p || q) = .9 ln 3.6 + .1 ln(.4/3) = .9514; KL(q || p) = .25 ln(.25/.9)
     * + .75 ln(.75/.1) = 1.1910: which of the two is computed shows at a threshold between them. */
    float rows[MAX][V];
    for (int i = 0; i < MAX; i++)
        for (int j = 0; j < V; j++) rows[i][j] = (float)log(i % 2 ? .25 : j ? .1 / 3 : .9);
    assert_int_equal(run_logits(GY_EXIT_KL, 1.07, 1, rows), 2); /* loop 1: KL(uniform || p) = 1.19 stays */
    assert_int_equal(run_logits(GY_EXIT_KL, .951, 1, rows), MAX);
    assert_int_equal(run_logits(GY_EXIT_KL, .952, 1, rows), 2);
}

static void entropy_values(void **state) {
    (void)state;
    float rows[MAX][V];
    known_rows(rows);
    const double step = log(2) / 4; /* |H| changes by this at loops 2 and 3, by 0 at 4; by 100 - H at 1 */
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, step + 1e-6, 1, rows), 2);
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, step - 1e-6, 1, rows), 4);
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, step + 1e-6, 3, rows), 3);
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 100, 1, rows), 1);
    const float same[MAX][V] = {{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}};
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 0, 1, same), MAX); /* no change is not below 0 */
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 100 - 1.75 * log(2) - 1e-5, 1, rows), 2);
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 100 - 1.75 * log(2) + 1e-5, 1, rows), 1);
}

static void argmax_counts_unchanged_steps(void **state) {
    (void)state;
    const float rows[MAX][V] = {{0, 1, 0, 0}, {0, 0, 2, 0}, {0, 0, 3, 3}, {0, 0, 5, 4}, {1, 0, 5, 4}};
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 1, 1, rows), 3); /* ids 1, 2, 2 (the lower of two equals), 2, 2 */
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 2, 1, rows), 4);
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 3, 1, rows), 5);
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 4, 1, rows), MAX);
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 1, 5, rows), 5); /* steps below min_loops count */
    const float same[MAX][V] = {{0}, {0}};
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 1, 1, same), 2); /* loop 1 has nothing to compare with */
}

static void masks_have_no_part_in_sums(void **state) {
    (void)state;
    float rows[MAX][V];
    for (int i = 0; i < MAX; i++)
        for (int j = 0; j < V; j++) rows[i][j] = j < 2 ? 3 : -INFINITY;
    assert_int_equal(run_logits(GY_EXIT_KL, 1e-6, 1, rows), 1); /* uniform over what is not masked: KL 0 */
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 1e-6, 1, rows), 2);
    assert_int_equal(run_logits(GY_EXIT_ENTROPY, 100 - log(2) + 1e-6, 1, rows), 1); /* H = ln 2 */
    assert_int_equal(run_logits(GY_EXIT_ARGMAX, 1, 1, rows), 2);
    rows[1][1] = -INFINITY;                                      /* a token of probability 1/2 vanishes: infinite */
    assert_int_equal(run_logits(GY_EXIT_KL, 1e300, 2, rows), 3); /* then 1 -> 1/2: ln 2 */
}

static void broken_logits_never_leave_early(void **state) {
    (void)state;
    static const gy_exit_kind kinds[] = {GY_EXIT_KL, GY_EXIT_ENTROPY, GY_EXIT_ARGMAX};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < 3; k++)
        for (size_t b = 0; b < 3; b++) {
            float rows[MAX][V];
            for (int i = 0; i < MAX; i++)
                for (int j = 0; j < V; j++) rows[i][j] = bad[b];
            if (kinds[k] == GY_EXIT_ARGMAX && b > 0) continue; /* infinities can be compared */
            assert_int_equal(run_logits(kinds[k], kinds[k] == GY_EXIT_ARGMAX ? 1 : 1e9, 1, rows), MAX);
            for (int i = 0; i < MAX; i++) rows[i][0] = rows[i][1] = rows[i][3] = 0;
            if (b == 2) continue; /* one -inf is a mask */
            assert_int_equal(run_logits(kinds[k], kinds[k] == GY_EXIT_ARGMAX ? 1 : 1e9, 1, rows), MAX);
        }
}

/* ---- what a rule needs, names, refusals ---- */

static void needs_follow_the_rule(void **state) {
    (void)state;
    static const struct {
        gy_exit_kind kind;
        int gate, latent, logits;
    } due[] = {{GY_EXIT_FIXED, 0, 0, 0},   {GY_EXIT_GATE, 1, 0, 0},   {GY_EXIT_GATE_DELAYED, 1, 0, 0},
               {GY_EXIT_SELECT, 1, 0, 0},  {GY_EXIT_LATENT, 0, 1, 0}, {GY_EXIT_KL, 0, 0, 1},
               {GY_EXIT_ENTROPY, 0, 0, 1}, {GY_EXIT_ARGMAX, 0, 0, 1}, {GY_EXIT_TRACE, 0, 0, 0}};
    for (size_t i = 0; i < sizeof due / sizeof *due; i++) {
        gy_exit_rule r = rule(due[i].kind, .5, 1, 4);
        assert_int_equal(gy_exit_needs_gate(&r), due[i].gate);
        assert_int_equal(gy_exit_needs_latent(&r), due[i].latent);
        assert_int_equal(gy_exit_needs_logits(&r), due[i].logits);
        r.min_loops = 4; /* the depth is settled: nothing is looked at */
        assert_false(gy_exit_needs_gate(&r) || gy_exit_needs_latent(&r) || gy_exit_needs_logits(&r));
        gy_exit_state s;
        gy_exit_obs none = {0};
        gy_exit_begin(&s);
        while (gy_exit_step(&r, &s, &none) == GY_EXIT_STAY) {
        }
        assert_int_equal(s.loops, 4);
    }
    gy_exit_rule r = rule(GY_EXIT_GATE, 1, 1, 4);
    assert_int_equal(gy_exit_needs_gate(&r), 0);
    r.kind = GY_EXIT_SELECT;
    assert_int_equal(gy_exit_needs_gate(&r), 1);
}

static void names_round_trip(void **state) {
    (void)state;
    static const char *const names[] = {"fixed", "gate",    "gate_delayed", "select", "latent",
                                        "kl",    "entropy", "argmax",       "trace"};
    gy_exit_kind k = GY_EXIT_KL;
    for (int i = 0; i < 9; i++) {
        assert_int_equal(gy_exit_parse(names[i], &k), 0);
        assert_int_equal(k, i);
        assert_string_equal(gy_exit_name(k), names[i]);
    }
    k = GY_EXIT_KL;
    assert_int_equal(gy_exit_parse("Gate", &k), -1);
    assert_int_equal(gy_exit_parse("", &k), -1);
    assert_int_equal(gy_exit_parse("trace:x", &k), -1);
    assert_int_equal(k, GY_EXIT_KL);
    assert_string_equal(gy_exit_name((gy_exit_kind)77), "unknown");
}

/* The table "published thresholds" of docs/models/huginn.md; 2 loops for what leaves by the gate. */
static void what_was_not_asked_for_is_completed(void **state) {
    (void)state;
    static const struct {
        gy_exit_kind kind;
        double threshold;
        int32_t min;
    } due[] = {{GY_EXIT_FIXED, 1, 1},      {GY_EXIT_LATENT, .03, 1}, {GY_EXIT_KL, .0005, 1},
               {GY_EXIT_ENTROPY, .001, 1}, {GY_EXIT_ARGMAX, 5, 1},   {GY_EXIT_TRACE, 1, 1}};
    gy_exit_rule r;
    for (size_t i = 0; i < sizeof due / sizeof *due; i++) {
        r = rule(due[i].kind, NAN, 0, 4);
        assert_int_equal(gy_exit_rule_complete(&r, 0, NULL), GY_OK);
        assert_true(r.threshold == due[i].threshold);
        assert_int_equal(r.min_loops, due[i].min);
        r = rule(due[i].kind, .25, 3, 4); /* what was asked for stays */
        assert_int_equal(gy_exit_rule_complete(&r, 1, NULL), GY_OK);
        assert_true(r.threshold == .25 && r.min_loops == 3 && r.max_loops == 4);
    }
    for (int max = 1; max <= 3; max++) {
        static const gy_exit_kind kinds[] = {GY_EXIT_GATE, GY_EXIT_GATE_DELAYED, GY_EXIT_SELECT};
        for (int k = 0; k < 3; k++) {
            r = rule(kinds[k], .5, 0, max);
            assert_int_equal(gy_exit_rule_complete(&r, 1, NULL), GY_OK);
            assert_int_equal(r.min_loops, kinds[k] == GY_EXIT_SELECT || max == 1 ? 1 : 2);
        }
    }
    r = rule(GY_EXIT_GATE, .5, -1, 4); /* not 0: for the check to refuse */
    assert_int_equal(gy_exit_rule_complete(&r, 1, NULL), GY_OK);
    assert_int_equal(r.min_loops, -1);
}

static void a_gate_has_no_default_threshold(void **state) {
    (void)state;
    static const gy_exit_kind kinds[] = {GY_EXIT_GATE, GY_EXIT_GATE_DELAYED, GY_EXIT_SELECT};
    for (int k = 0; k < 3; k++) {
        gy_exit_rule r = rule(kinds[k], NAN, 0, 4);
        gy_err err = {0};
        char due[96];
        snprintf(due, sizeof due, "exit_threshold: not given; exit %s needs one (0 to 1", gy_exit_name(kinds[k]));
        assert_int_equal(gy_exit_rule_complete(&r, 1, &err), GY_E_ARG);
        if (strncmp(err.msg, due, strlen(due)) != 0) fail_msg("%s", err.msg);
        assert_int_equal(r.min_loops, 0); /* untouched */
        err = (gy_err){0};
        assert_int_equal(gy_exit_rule_complete(&r, 0, &err), GY_OK);
        assert_true(isnan(r.threshold));
        assert_int_equal(gy_exit_rule_check(&r, &(gy_exit_caps){.n_loop = 4}, &err), GY_E_ARG);
        assert_non_null(strstr(err.msg, "needs an exit gate"));
    }
}

static void assert_rule(gy_exit_rule r, gy_exit_caps caps, const char *complaint) {
    gy_err err = {0};
    gy_status st = gy_exit_rule_check(&r, &caps, &err);
    assert_int_equal(st, complaint ? GY_E_ARG : GY_OK);
    if (complaint && !strstr(err.msg, complaint)) fail_msg("\"%s\" does not say \"%s\"", err.msg, complaint);
}

static void thresholds_have_ranges(void **state) {
    (void)state;
    const gy_exit_caps caps = {.n_loop = 4, .has_gate = 1};
    static const gy_exit_kind gate_kinds[] = {GY_EXIT_GATE, GY_EXIT_GATE_DELAYED, GY_EXIT_SELECT};
    static const gy_exit_kind change_kinds[] = {GY_EXIT_LATENT, GY_EXIT_KL, GY_EXIT_ENTROPY};
    for (int i = 0; i < 3; i++) {
        assert_rule(rule(gate_kinds[i], 0, 1, 4), caps, NULL);
        assert_rule(rule(gate_kinds[i], 1, 1, 4), caps, NULL);
        assert_rule(rule(gate_kinds[i], 1.5, 1, 4), caps, "exit_threshold: found 1.5;");
        assert_rule(rule(gate_kinds[i], -.1, 1, 4), caps, "allows 0..1");
        assert_rule(rule(gate_kinds[i], NAN, 1, 4), caps, "a number");
        assert_rule(rule(change_kinds[i], 0, 1, 4), caps, NULL);
        assert_rule(rule(change_kinds[i], 1e6, 1, 4), caps, NULL);
        assert_rule(rule(change_kinds[i], -1e-9, 1, 4), caps, "0 or more, finite");
        assert_rule(rule(change_kinds[i], INFINITY, 1, 4), caps, "0 or more, finite");
        assert_rule(rule(change_kinds[i], NAN, 1, 4), caps, "a number");
    }
    assert_rule(rule(GY_EXIT_ARGMAX, 1, 1, 4), caps, NULL);
    assert_rule(rule(GY_EXIT_ARGMAX, 0, 1, 4), caps, "argmax allows a whole number");
    assert_rule(rule(GY_EXIT_ARGMAX, 1.5, 1, 4), caps, "found 1.5");
    assert_rule(rule(GY_EXIT_ARGMAX, INFINITY, 1, 4), caps, "whole number");
    assert_rule(rule(GY_EXIT_FIXED, NAN, 1, 4), caps, "a number");
    assert_rule(rule(GY_EXIT_FIXED, 7, 1, 4), caps, NULL);
    assert_rule(rule(GY_EXIT_TRACE, 1, 1, 4), caps, NULL);
}

static void loops_have_ranges(void **state) {
    (void)state;
    const gy_exit_caps caps = {.n_loop = 4, .has_gate = 1}, deep = {.n_loop = 4, .has_gate = 1, .allow_deeper = 1};
    assert_rule(rule(GY_EXIT_GATE, .5, 4, 4), caps, NULL); /* min = max */
    assert_rule(rule(GY_EXIT_GATE, .5, 3, 2), caps, "min_loops: found 3; allowed 1..2");
    assert_rule(rule(GY_EXIT_GATE, .5, 0, 2), caps, "min_loops: found 0");
    assert_rule(rule(GY_EXIT_FIXED, 1, 1, 0), caps, "max_loops: found 0");
    assert_rule(rule(GY_EXIT_FIXED, 1, 1, 5), caps, "max_loops: found 5; the model was trained with 4 loops");
    assert_rule(rule(GY_EXIT_FIXED, 1, 1, 5), deep, NULL);
    assert_rule(rule(GY_EXIT_FIXED, 1, 6, 5), deep, "min_loops: found 6");
}

static void gate_rules_need_a_gate(void **state) {
    (void)state;
    const gy_exit_caps caps = {.n_loop = 4};
    assert_rule(rule(GY_EXIT_GATE, .5, 1, 4), caps, "exit: found gate, which needs an exit gate");
    assert_rule(rule(GY_EXIT_GATE_DELAYED, .5, 1, 4), caps, "found gate_delayed");
    assert_rule(rule(GY_EXIT_SELECT, .5, 1, 4), caps, "found select");
    assert_rule(rule(GY_EXIT_KL, .5, 1, 4), caps, NULL);
    assert_rule(rule((gy_exit_kind)9, .5, 1, 4), caps, "rule number 9; allowed 0..8");
    gy_exit_rule r;
    gy_exit_rule_default(&r, 4);
    assert_rule(r, caps, NULL);
    assert_int_equal(r.kind, GY_EXIT_FIXED);
    assert_int_equal(r.min_loops, 1);
    assert_int_equal(r.max_loops, 4);
    assert_int_equal(r.on_prompt, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(score_is_the_product_of_survivals),
        cmocka_unit_test(loops_below_min_feed_the_score),
        cmocka_unit_test(gate_threshold_edges),
        cmocka_unit_test(score_equal_to_threshold_leaves),
        cmocka_unit_test(bf16_gates_around_a_threshold),
        cmocka_unit_test(gates_that_are_not_finite),
        cmocka_unit_test(delayed_does_not_consume_the_last_gate),
        cmocka_unit_test(state_restarts_with_each_token),
        cmocka_unit_test(golden_gates_of_the_tiny_ouro),
        cmocka_unit_test(fixed_and_trace),
        cmocka_unit_test(latent_is_strictly_below),
        cmocka_unit_test(kl_values),
        cmocka_unit_test(kl_of_equal_rows_is_zero),
        cmocka_unit_test(kl_is_never_negative),
        cmocka_unit_test(kl_is_not_symmetric),
        cmocka_unit_test(entropy_values),
        cmocka_unit_test(argmax_counts_unchanged_steps),
        cmocka_unit_test(masks_have_no_part_in_sums),
        cmocka_unit_test(broken_logits_never_leave_early),
        cmocka_unit_test(needs_follow_the_rule),
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(what_was_not_asked_for_is_completed),
        cmocka_unit_test(a_gate_has_no_default_threshold),
        cmocka_unit_test(thresholds_have_ranges),
        cmocka_unit_test(loops_have_ranges),
        cmocka_unit_test(gate_rules_need_a_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
