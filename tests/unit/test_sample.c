/* Sampling against a slow and obvious reference on random rows, frequencies against probabilities, values by hand. */
#include "sample/sample.h"

#include "base/mem.h"
#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_V = 500 };

static gy_sample_params params(float temperature, int top_k, float top_p, float min_p) {
    gy_sample_params p;
    gy_sample_params_default(&p);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    return p;
}

static gy_sampler *sampler_make(int n_vocab) {
    gy_sampler *s = NULL;
    assert_int_equal(gy_sampler_create(n_vocab, 1, &s), GY_OK);
    return s;
}

static gy_sampled sample(gy_sampler *s, const float *x, const gy_sample_params *p, int position) {
    gy_sampled out;
    gy_err err = {0};
    gy_status st = gy_sample_row(s, 0, &(gy_sample_in){.logits = x, .p = p, .position = position}, &err, &out);
    if (st != GY_OK) fail_msg("%s", err.msg);
    return out;
}

/* ---- the reference: sort everything, then sample.h word by word ---- */

static const float *sort_key;

static int by_logit_then_id(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    if (sort_key[i] != sort_key[j]) return sort_key[i] > sort_key[j] ? -1 : 1;
    return i - j;
}

/* Marks what top-k, top-p and min-p keep; w gets the weights (probabilities up to a factor). */
static void ref_filter(const float *x, int n, const gy_sample_params *p, int *keep, double *w) {
    static int order[MAX_V];
    double total = 0, prefix = 0;
    for (int i = 0; i < n; i++) order[i] = i;
    sort_key = x;
    qsort(order, (size_t)n, sizeof *order, by_logit_then_id);
    for (int i = 0; i < n; i++) w[i] = exp(((double)x[i] - x[order[0]]) / p->temperature);
    for (int i = 0; i < n; i++) {
        keep[i] = x[i] != -INFINITY;
        if (p->top_k > 0 && p->top_k <= n) keep[i] = keep[i] && x[i] >= x[order[p->top_k - 1]];
    }
    for (int i = 0; i < n; i++)
        if (keep[i]) total += w[i];
    for (int i = 0; i < n && p->top_p < 1; i++) {
        if (!keep[order[i]]) continue;
        if (prefix >= (double)p->top_p * total)
            keep[order[i]] = 0;
        else
            prefix += w[order[i]];
    }
    for (int i = 0; i < n; i++)
        if (keep[i] && w[i] < p->min_p * w[order[0]]) keep[i] = 0;
}

static int ref_draw(const float *x, int n, const gy_sample_params *p, int position) {
    static int keep[MAX_V];
    static double w[MAX_V];
    uint32_t r[4];
    double total = 0, sum = 0;
    ref_filter(x, n, p, keep, w);
    for (int i = 0; i < n; i++)
        if (keep[i]) total += w[i];
    gy_rand_block(p->seed, p->choice, (uint32_t)position, GY_RAND_SAMPLE, 0, r);
    double u = gy_rand_unit_f64(r[0], r[1]);
    for (int i = 0; i < n; i++) {
        if (!keep[i]) continue;
        sum += w[i];
        if (sum > u * total) return i;
    }
    return -1;
}

typedef struct source {
    uint32_t n;
    uint32_t seed;
} source;

static double unit(source *r) {
    uint32_t w[4];
    gy_rand_block(r->seed, 0, 0, GY_RAND_TEST, r->n++, w);
    return gy_rand_unit_f64(w[0], w[1]);
}

/* Rows of many kinds: smooth, full of ties, masked, huge, nearly flat. */
static void random_row(source *r, float *x, int n) {
    int kind = (int)(unit(r) * 6);
    double mask = unit(r) < .3 ? unit(r) * .95 : 0;
    for (int i = 0; i < n; i++) {
        double v = (unit(r) + unit(r) + unit(r) - 1.5) * 6;
        if (kind == 1) v = floor(v);             /* ties */
        if (kind == 2) v = unit(r) < .5 ? 1 : 0; /* two values */
        if (kind == 3) v *= 1e37;                /* up to 9e37 */
        if (kind == 4) v *= 1e-6;
        if (kind == 5) v = 3; /* one value */
        x[i] = unit(r) < mask ? -INFINITY : (float)v;
    }
    x[(int)(unit(r) * n)] = 2;
}

static gy_sample_params random_params(source *r, int n) {
    static const float temperatures[] = {1, .7f, 1.3f, 1e-6f, 100, 1e-30f, 1e38f, .05f};
    static const float ps[] = {1, .9f, .5f, .1f, 1e-9f, .999999f, .3f, .95f};
    static const float mins[] = {0, .05f, .5f, .999f, 1e-6f};
    gy_sample_params p = params(temperatures[(int)(unit(r) * 8)], 0, ps[(int)(unit(r) * 8)], 0);
    if (unit(r) < .5) p.top_k = (int)(unit(r) * unit(r) * (n + 3)) - 1;
    if (unit(r) < .5) p.min_p = mins[(int)(unit(r) * 5)];
    p.seed = (uint64_t)(unit(r) * 1e15);
    p.choice = (uint32_t)(unit(r) * 5);
    return p;
}

static void agrees_with_the_reference(void **state) {
    (void)state;
    static float x[MAX_V], kept[MAX_V];
    source r = {.seed = 11};
    for (int row = 0; row < 6000; row++) {
        int n = row % 3 ? 1 + (int)(unit(&r) * 60) : 1 + (int)(unit(&r) * MAX_V);
        gy_sampler *s = sampler_make(n);
        random_row(&r, x, n);
        memcpy(kept, x, sizeof x);
        gy_sample_params p = random_params(&r, n);
        gy_mem_guard_begin(); /* no allocation after create */
        for (int position = 0; position < 20; position++) {
            int got = sample(s, x, &p, position).id, due = ref_draw(x, n, &p, position);
            if (got != due)
                fail_msg("row %d: %d, not %d (n %d T %g k %d p %g min %g)", row, got, due, n, p.temperature, p.top_k,
                         p.top_p, p.min_p);
        }
        gy_mem_guard_end();
        assert_memory_equal(kept, x, sizeof x); /* logits are not changed */
        gy_sampler_destroy(s);
    }
}

/* ---- filters by hand: which tokens ever come out ---- */

/* Bit i = token i was drawn at some of 4000 positions. */
static unsigned seen(const float *x, int n, gy_sample_params p) {
    gy_sampler *s = sampler_make(n);
    unsigned bits = 0;
    for (int position = 0; position < 4000; position++) bits |= 1u << sample(s, x, &p, position).id;
    gy_sampler_destroy(s);
    return bits;
}

/* log of the given probabilities */
static void logs(const double *prob, int n, float *x) {
    for (int i = 0; i < n; i++) x[i] = (float)log(prob[i]);
}

static void filters_keep_what_they_say(void **state) {
    (void)state;
    float x[5];
    logs((const double[]){.1, .4, .2, .25, .05}, 5, x);
    assert_int_equal(seen(x, 5, params(1, 0, 1, 0)), 0x1f);
    assert_int_equal(seen(x, 5, params(1, 1, 1, 0)), 1 << 1);
    assert_int_equal(seen(x, 5, params(1, 2, 1, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1, -1, 1, 0)), 0x1f);
    assert_int_equal(seen(x, 5, params(1, 5, 1, 0)), 0x1f);
    assert_int_equal(seen(x, 5, params(1, 99, 1, 0)), 0x1f);
    assert_int_equal(seen(x, 5, params(1, 0, .39f, 0)), 1 << 1);
    assert_int_equal(seen(x, 5, params(1, 0, .41f, 0)), 1 << 1 | 1 << 3); /* the token that crosses p stays */
    assert_int_equal(seen(x, 5, params(1, 0, .64f, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1, 0, .66f, 0)), 1 << 1 | 1 << 3 | 1 << 2);
    assert_int_equal(seen(x, 5, params(1, 0, 1e-30f, 0)), 1 << 1);                 /* never empty */
    assert_int_equal(seen(x, 5, params(1, 0, 1, .49f)), 1 << 1 | 1 << 3 | 1 << 2); /* .2 / .4 = .5 */
    assert_int_equal(seen(x, 5, params(1, 0, 1, .51f)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1, 0, 1, .999f)), 1 << 1);
}

/* Order: temperature before all filters, top-p on what top-k left, min-p last. */
static void filters_come_in_order(void **state) {
    (void)state;
    float x[5];
    logs((const double[]){.1, .4, .2, .25, .05}, 5, x);
    /* of .4 and .25, renormalised, .4 has .615: p .6 keeps one, p .63 both; of all five, .6 would need two */
    assert_int_equal(seen(x, 5, params(1, 2, .6f, 0)), 1 << 1);
    assert_int_equal(seen(x, 5, params(1, 2, .63f, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1, 0, .6f, 0)), 1 << 1 | 1 << 3);
    /* at temperature 1/2 probabilities are squared: .16 of .275 = .582; min-p ratio .0625 / .16 = .39 */
    assert_int_equal(seen(x, 5, params(.5f, 0, .58f, 0)), 1 << 1);
    assert_int_equal(seen(x, 5, params(.5f, 0, .59f, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(.5f, 0, 1, .38f)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(.5f, 0, 1, .40f)), 1 << 1);
    /* min-p compares with the largest, not with the mass that the other filters left */
    assert_int_equal(seen(x, 5, params(1, 3, .99f, .6f)), 1 << 1 | 1 << 3);
}

static void ties_follow_the_definition(void **state) {
    (void)state;
    const float x[6] = {1, 2, 1, 2, 2, 0};
    assert_int_equal(seen(x, 6, params(1, 1, 1, 0)), 1 << 1 | 1 << 3 | 1 << 4); /* top-k: ties survive */
    assert_int_equal(seen(x, 6, params(1, 4, 1, 0)), 0x1f);
    const float flat[4] = {5, 5, 5, 5};
    assert_int_equal(seen(flat, 4, params(1, 0, .5f, 0)), 1 << 0 | 1 << 1); /* top-p: lower ids first, exactly p */
    assert_int_equal(seen(flat, 4, params(1, 0, .51f, 0)), 1 << 0 | 1 << 1 | 1 << 2);
    assert_int_equal(seen(flat, 4, params(1, 1, .5f, 0)), 1 << 0 | 1 << 1); /* top-k keeps four, top-p then two */
    assert_int_equal(seen(flat, 4, params(1, 0, 1, .99f)), 0xf);
}

static void masks_never_come_out(void **state) {
    (void)state;
    const float x[5] = {-INFINITY, 0, -INFINITY, 0, -INFINITY};
    assert_int_equal(seen(x, 5, params(1, 0, 1, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1, 4, 1, 0)), 1 << 1 | 1 << 3);
    assert_int_equal(seen(x, 5, params(1e38f, 3, .9999f, 1e-9f)), 1 << 1 | 1 << 3);
    const float one[3] = {-INFINITY, -3e38f, -INFINITY};
    assert_int_equal(seen(one, 3, params(1e-6f, 0, 1, 0)), 1 << 1);
    assert_int_equal(seen(one, 3, params(0, 0, 1, 0)), 1 << 1);
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    const float x[5] = {-1, 7, 3, 7, -INFINITY};
    gy_sampler *s = sampler_make(5);
    gy_sample_params p = params(0, 1, .1f, .9f);
    for (int position = 0; position < 50; position++) {
        p.seed = (uint64_t)position;
        gy_sampled o = sample(s, x, &p, position);
        assert_int_equal(o.id, 1);
        assert_int_equal(o.n_top, 0);
    }
    gy_sampler_destroy(s);
}

/* A tiny temperature is greedy in effect, a huge one uniform: neither overflows. */
static void extreme_temperatures(void **state) {
    (void)state;
    const float x[4] = {3e38f, -3e38f, 2.9e38f, 3e38f};
    assert_int_equal(seen(x, 4, params(1e-6f, 0, 1, 0)), 1 << 0 | 1 << 3);
    assert_int_equal(seen(x, 4, params(1e-45f, 0, .9f, 0)), 1 << 0 | 1 << 3);
    const float y[4] = {1, 2, 3, 4};
    assert_int_equal(seen(y, 4, params(3e38f, 0, 1, 0)), 0xf);
    assert_int_equal(seen(y, 4, params(1e-6f, 0, 1, 0)), 1 << 3);
}

/* ---- randomness ---- */

static void draw_is_a_function_of_seed_choice_and_position(void **state) {
    (void)state;
    static float x[100];
    gy_sampler *s = sampler_make(100), *t = sampler_make(100);
    gy_sample_params p = params(1, 0, 1, 0), q;
    int other_choice = 0, other_seed = 0, other_position = 0;
    for (int i = 0; i < 500; i++) {
        p.seed = 77;
        q = p;
        int id = sample(s, x, &p, i).id;
        assert_int_equal(sample(t, x, &q, i).id, id); /* another sampler, another history */
        sample(t, x, &q, i + 3);
        q.choice = 1;
        other_choice += sample(s, x, &q, i).id != id;
        q = p;
        q.seed = (uint64_t)77 << 32;
        other_seed += sample(s, x, &q, i).id != id;
        other_position += sample(s, x, &p, i + 1000).id != id;
    }
    /* flat over 100 tokens: 5 of 500 coincide on average; more than 25 has probability below 1e-9 */
    assert_true(other_choice > 475 && other_seed > 475 && other_position > 475);
    gy_sampler_destroy(s);
    gy_sampler_destroy(t);
}

/* Two equal tokens: the draw is the top bit of Philox's first word. */
static void draw_uses_the_documented_stream(void **state) {
    (void)state;
    const float x[2] = {0, 0};
    gy_sampler *s = sampler_make(2);
    gy_sample_params p = params(1, 0, 1, 0);
    p.seed = 0x0123456789abcdefULL;
    p.choice = 3;
    for (int position = 0; position < 200; position++) {
        const uint32_t ctr[4] = {(uint32_t)position, 3, GY_RAND_SAMPLE, 0}, key[2] = {0x89abcdefu, 0x01234567u};
        uint32_t r[4];
        gy_philox4x32_10(ctr, key, r);
        assert_int_equal(sample(s, x, &p, position).id, r[0] >> 31);
    }
    gy_sampler_destroy(s);
}

/* Upper bound of chi-square with n degrees of freedom for a probability of 1e-9 (Wilson and Hilferty 1931, z = 6). */
static double chi2_bound(int n) {
    double a = 2.0 / (9.0 * n), c = 1 - a + 6 * sqrt(a);
    return n * c * c * c;
}

/* prob: what must come out, 0 = never. 200,000 draws at different positions. */
static void check_frequencies(const float *x, int n, gy_sample_params p, const double *prob) {
    enum { DRAWS = 200000 };
    static int count[MAX_V];
    gy_sampler *s = sampler_make(n);
    double chi2 = 0;
    int n_cell = 0;
    memset(count, 0, sizeof count);
    for (int position = 0; position < DRAWS; position++) count[sample(s, x, &p, position).id]++;
    for (int i = 0; i < n; i++) {
        double due = prob[i] * DRAWS;
        if (prob[i] == 0) assert_int_equal(count[i], 0);
        if (prob[i] == 0) continue;
        assert_true(due >= 5);
        chi2 += (count[i] - due) * (count[i] - due) / due;
        n_cell++;
    }
    if (!(chi2 < chi2_bound(n_cell - 1)))
        fail_msg("chi2 %g of %d cells, bound %g", chi2, n_cell, chi2_bound(n_cell - 1));
    gy_sampler_destroy(s);
}

static void frequencies_match_probabilities(void **state) {
    (void)state;
    float x[20];
    double prob[20], sum = 0;
    for (int i = 0; i < 20; i++) sum += prob[i] = pow(.8, (i * 7) % 20);
    for (int i = 0; i < 20; i++) prob[i] /= sum;
    logs(prob, 20, x);
    check_frequencies(x, 20, params(1, 0, 1, 0), prob);
    sum = 0;
    for (int i = 0; i < 20; i++) sum += prob[i] = sqrt(prob[i]); /* temperature 2 */
    for (int i = 0; i < 20; i++) prob[i] /= sum;
    gy_sample_params p = params(2, 0, 1, 0);
    p.seed = 12345;
    p.choice = 2;
    check_frequencies(x, 20, p, prob);
    const double kept[4] = {0, .4 / .85, .2 / .85, .25 / .85};
    logs((const double[]){.15, .4, .2, .25}, 4, x);
    check_frequencies(x, 4, params(1, 3, 1, 0), kept);
    check_frequencies(x, 4, params(1, 0, .8f, 0), kept);
    check_frequencies(x, 4, params(1, 0, 1, .45f), kept);
}

/* Tail of chi-square for an even number of degrees of freedom: exp(-x / 2) * sum over j < n / 2 of (x / 2)^j / j!. */
static double chi2_tail(double x, int n) {
    double term = 1, sum = 0;
    for (int j = 0; j < n / 2; j++) {
        sum += term;
        term *= x / 2 / (j + 1);
    }
    return exp(-x / 2) * sum;
}

static void chi2_bound_is_right(void **state) {
    (void)state;
    for (int n = 2; n <= 50; n += 2) assert_true(chi2_tail(chi2_bound(n), n) < 1e-9);
    for (int n = 10; n <= 50; n += 2) assert_true(chi2_tail(chi2_bound(n), n) > 1e-10); /* not needlessly wide */
}

/* ---- logprobs ---- */

static void logprobs_are_raw(void **state) {
    (void)state;
    float x[5];
    const double prob[5] = {.1, .4, .2, .25, .05};
    for (int i = 0; i < 5; i++) x[i] = (float)(log(prob[i]) + 11);
    gy_sampler *s = sampler_make(5);
    gy_sample_params p = params(.5f, 2, .9f, .1f); /* none of these changes a logprob */
    p.n_logprobs = 3;
    for (int position = 0; position < 20; position++) {
        gy_sampled o = sample(s, x, &p, position);
        assert_true(fabs(o.logprob - log(prob[o.id])) < 1e-6);
        assert_int_equal(o.n_top, 3);
        static const int due[3] = {1, 3, 2};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(o.top_id[i], due[i]);
            assert_true(fabs(o.top_logprob[i] - log(prob[due[i]])) < 1e-6);
        }
        if (o.id == 1) assert_true(o.logprob == o.top_logprob[0]);
    }
    p.n_logprobs = 0;
    gy_sampled o = sample(s, x, &p, 0);
    assert_int_equal(o.n_top, 0);
    assert_true(fabs(o.logprob - log(prob[o.id])) < 1e-6);
    p.n_logprobs = 20; /* more than there are */
    o = sample(s, x, &p, 0);
    assert_int_equal(o.n_top, 5);
    assert_int_equal(o.top_id[4], 4);
    gy_sampler_destroy(s);
}

static void logprob_alternatives_with_ties_and_masks(void **state) {
    (void)state;
    const float x[7] = {2, -INFINITY, 5, 2, 5, 2, -INFINITY};
    static const int due[5] = {2, 4, 0, 3, 5};
    gy_sampler *s = sampler_make(7);
    gy_sample_params p = params(0, 0, 1, 0);
    for (p.n_logprobs = 1; p.n_logprobs <= 8; p.n_logprobs++) {
        gy_sampled o = sample(s, x, &p, 0);
        assert_int_equal(o.n_top, p.n_logprobs < 5 ? p.n_logprobs : 5);
        for (int i = 0; i < o.n_top; i++) assert_int_equal(o.top_id[i], due[i]);
    }
    gy_sampler_destroy(s);
}

static void logprobs_match_a_full_sort(void **state) {
    (void)state;
    static float x[MAX_V];
    static int order[MAX_V];
    source r = {.seed = 5};
    for (int row = 0; row < 500; row++) {
        int n = 21 + (int)(unit(&r) * (MAX_V - 21)), n_open = 0;
        long double sum = 0;
        random_row(&r, x, n);
        for (int i = 0; i < n; i++) order[i] = i;
        sort_key = x;
        qsort(order, (size_t)n, sizeof *order, by_logit_then_id);
        for (int i = 0; i < n; i++) sum += expl((long double)x[i] - x[order[0]]);
        for (int i = 0; i < n; i++) n_open += x[i] != -INFINITY;
        gy_sample_params p = params(1, 0, 1, 0);
        p.n_logprobs = GY_MAX_LOGPROBS;
        gy_sampler *s = sampler_make(n);
        gy_sampled o = sample(s, x, &p, row);
        assert_int_equal(o.n_top, n_open < GY_MAX_LOGPROBS ? n_open : GY_MAX_LOGPROBS);
        for (int i = 0; i < o.n_top; i++) {
            long double due = (long double)x[order[i]] - x[order[0]] - logl(sum);
            assert_int_equal(o.top_id[i], order[i]);
            assert_true(fabsl(o.top_logprob[i] - due) <= 1.2e-7L * fabsl(due) + 1e-12L); /* one f32 rounding */
        }
        gy_sampler_destroy(s);
    }
}

/* ---- errors ---- */

static void broken_logits_are_errors(void **state) {
    (void)state;
    static const struct {
        float bad;
        const char *msg;
    } cases[] = {{NAN, "logit of token 3 at position 41 is NaN"},
                 {INFINITY, "logit of token 3 at position 41 is +inf"}};
    gy_sampler *s = sampler_make(5);
    for (int t = 0; t < 2; t++) {
        gy_sample_params p = params((float)t, 0, 1, 0);
        gy_sampled o = {.id = -9};
        gy_err err = {0};
        for (int c = 0; c < 2; c++) {
            const float x[5] = {1, 2, -INFINITY, cases[c].bad, 0};
            assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = x, .p = &p, .position = 41}, &err, &o),
                             GY_E_NUMERIC);
            assert_string_equal(err.msg, cases[c].msg);
        }
        const float none[5] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = none, .p = &p, .position = 41}, &err, &o),
                         GY_E_NUMERIC);
        assert_string_equal(err.msg, "all 5 logits at position 41 are -inf: no token is left");
        assert_int_equal(o.id, -9);
        const float fine[5] = {0, 0, 0, 0, -INFINITY}; /* the sampler goes on */
        assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = fine, .p = &p, .position = 41}, &err, &o),
                         GY_OK);
    }
    gy_sampler_destroy(s);
}

static void assert_params(gy_sample_params p, const char *complaint) {
    gy_err err = {0};
    gy_sampler *s = sampler_make(2);
    gy_sampled o = {.id = -9};
    const float x[2] = {0, 0};
    assert_int_equal(gy_sample_params_check(&p, &err), complaint ? GY_E_ARG : GY_OK);
    if (complaint && !strstr(err.msg, complaint)) fail_msg("\"%s\" does not say \"%s\"", err.msg, complaint);
    assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = x, .p = &p}, &err, &o),
                     complaint ? GY_E_ARG : GY_OK);
    gy_sampler_destroy(s);
}

static void params_have_ranges(void **state) {
    (void)state;
    gy_sample_params d;
    gy_sample_params_default(&d);
    assert_params(d, NULL);
    assert_true(d.temperature == 0 && d.top_k == 0 && d.top_p == 1 && d.min_p == 0 && d.n_logprobs == -1);
    assert_params(params(-.1f, 0, 1, 0), "temperature: found -0.1");
    assert_params(params(NAN, 0, 1, 0), "temperature: found");
    assert_params(params(INFINITY, 0, 1, 0), "temperature: found inf");
    assert_params(params(1, 0, 0, 0), "top_p: found 0; allowed above 0");
    assert_params(params(1, 0, 1.01f, 0), "top_p: found 1.01");
    assert_params(params(1, 0, NAN, 0), "top_p");
    assert_params(params(1, 0, 1, 1), "min_p: found 1; allowed 0 (off) up to below 1");
    assert_params(params(1, 0, 1, -.5f), "min_p: found -0.5");
    assert_params(params(1, 0, 1, NAN), "min_p");
    assert_params(params(1, INT32_MAX, 1, 0), NULL);
    assert_params(params(1, INT32_MIN, 1, 0), NULL);
    d.n_logprobs = 21;
    assert_params(d, "logprobs: found 21; allowed -1 (none) to 20");
    d.n_logprobs = -2;
    assert_params(d, "logprobs: found -2");
}

static void create_survives_failing_allocations(void **state) {
    (void)state;
    gy_mem_stats before, after;
    gy_status st = GY_E_NOMEM;
    int n = 0;
    gy_mem_get_stats(&before);
    while (st != GY_OK) {
        gy_sampler *s = NULL;
        gy_mem_fail_after(++n);
        st = gy_sampler_create(100, 3, &s);
        gy_mem_fail_after(0);
        if (st != GY_OK) {
            assert_int_equal(st, GY_E_NOMEM);
            assert_null(s);
        }
        gy_sampler_destroy(s);
        gy_mem_get_stats(&after);
        assert_int_equal(before.live_bytes[GY_MEM_SAMPLE], after.live_bytes[GY_MEM_SAMPLE]);
    }
    assert_true(n > 1);
    gy_sampler *s = NULL;
    assert_int_equal(gy_sampler_create(0, 1, &s), GY_E_ARG);
    gy_sampler_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(filters_keep_what_they_say),
        cmocka_unit_test(filters_come_in_order),
        cmocka_unit_test(ties_follow_the_definition),
        cmocka_unit_test(masks_never_come_out),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(extreme_temperatures),
        cmocka_unit_test(draw_is_a_function_of_seed_choice_and_position),
        cmocka_unit_test(draw_uses_the_documented_stream),
        cmocka_unit_test(frequencies_match_probabilities),
        cmocka_unit_test(chi2_bound_is_right),
        cmocka_unit_test(logprobs_are_raw),
        cmocka_unit_test(logprob_alternatives_with_ties_and_masks),
        cmocka_unit_test(logprobs_match_a_full_sort),
        cmocka_unit_test(broken_logits_are_errors),
        cmocka_unit_test(params_have_ranges),
        cmocka_unit_test(create_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
