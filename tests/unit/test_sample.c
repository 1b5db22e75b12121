/* Sampling against a slow and obvious reference on random rows, frequencies against probabilities, values by hand. */
#include "sample/sample_int.h"

#include "base/mem.h"
#include "base/philox.h"
#include "base/team.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_V = 3000, USUAL_V = 500 };

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
        int n = row % 3 ? 1 + (int)(unit(&r) * 60) : 1 + (int)(unit(&r) * USUAL_V);
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

/* top-k on both sides of the size up to which it is found without a heap of all tokens, with and without top-p. */
static void large_top_k_agrees_with_the_reference(void **state) {
    (void)state;
    static const int ks[] = {900, 1023, 1024, 1025, 1500, MAX_V - 1};
    static float x[MAX_V];
    source r = {.seed = 12};
    for (int row = 0; row < 120; row++) {
        int n = MAX_V - (int)(unit(&r) * 1000);
        gy_sampler *s = sampler_make(n);
        random_row(&r, x, n);
        gy_sample_params p = random_params(&r, n);
        p.top_k = ks[row % 6];
        for (int position = 0; position < 3; position++)
            assert_int_equal(sample(s, x, &p, position).id, ref_draw(x, n, &p, position));
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
        int n = 21 + (int)(unit(&r) * (USUAL_V - 21)), n_open = 0;
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

/* ---- bans, bias, penalties ---- */

/* The history of a sequence, as plain lists. */
typedef struct history {
    int32_t prompt[80], output[80];
    int n_prompt, n_output;
} history;

static int times(const int32_t *ids, int n, int id) {
    int k = 0;
    for (int i = 0; i < n; i++) k += ids[i] == id;
    return k;
}

/* sample.h word by word, in f64 with each step rounded to f32. */
static void ref_change(const float *x, int n, const gy_sample_in *in, const history *h, float *y) {
    const gy_sample_params *p = in->p;
    for (int id = 0; id < n; id++) {
        int n_out = times(h->output, h->n_output, id), seen_at_all = n_out + times(h->prompt, h->n_prompt, id);
        int out = times(in->ban, in->n_ban, id) || (in->mask && !(in->mask[id / 32] >> (id % 32) & 1));
        double v = out ? -INFINITY : (double)x[id];
        for (int i = 0; i < p->n_bias; i++)
            if (p->bias[i].id == id) v = (float)(v + (double)p->bias[i].bias);
        if (seen_at_all) {
            double r = (double)p->repetition_penalty;
            v = v > 0 ? (float)(v / r) : (float)(v * r);
            v = (float)(v - (double)(float)((double)p->frequency_penalty * n_out));
            if (n_out) v = (float)(v - (double)p->presence_penalty);
        }
        y[id] = (float)v;
    }
}

static gy_counts *counts_make(const history *h) {
    void *mem = malloc(gy_counts_bytes(h->n_prompt, h->n_output));
    assert_non_null(mem);
    memset(mem, 0x5a, gy_counts_bytes(h->n_prompt, h->n_output));
    gy_counts *c = gy_counts_init(mem, h->prompt, h->n_prompt, h->n_output);
    for (int i = 0; i < h->n_output; i++) gy_counts_add(c, h->output[i]);
    return c;
}

static void random_history(source *r, history *h, int n_vocab) {
    h->n_prompt = (int)(unit(r) * 80);
    h->n_output = (int)(unit(r) * 80);
    int most = unit(r) < .5 ? n_vocab : 1 + n_vocab / 8; /* often the same few */
    for (int i = 0; i < h->n_prompt; i++) h->prompt[i] = (int32_t)(unit(r) * most);
    for (int i = 0; i < h->n_output; i++) h->output[i] = (int32_t)(unit(r) * most);
}

enum { MAX_BIAS = 6, MAX_BAN = 4 };
static void random_changes(source *r, gy_sample_params *p, gy_logit_bias *bias, gy_sample_in *in, int32_t *ban, int n) {
    static const float reps[] = {1, 1.3f, .7f, 2, 100, .01f}, pens[] = {0, .5f, 2, -2, -.3f, 1.1f};
    p->repetition_penalty = reps[(int)(unit(r) * 6)];
    p->frequency_penalty = pens[(int)(unit(r) * 6)];
    p->presence_penalty = pens[(int)(unit(r) * 6)];
    p->bias = bias;
    p->n_bias = (int32_t)(unit(r) * (n < MAX_BIAS ? n : MAX_BIAS));
    int step = n / (p->n_bias ? p->n_bias : 1);
    for (int i = 0; i < p->n_bias; i++)
        bias[i] = (gy_logit_bias){i * step + (int32_t)(unit(r) * step), (float)(unit(r) * 30 - 15)};
    in->ban = ban;
    in->n_ban = (int32_t)(unit(r) * (MAX_BAN + 1));
    for (int i = 0; i < in->n_ban; i++) ban[i] = (int32_t)(unit(r) * (n + 2)) - 1; /* -1 and n are no tokens */
}

/* Bits past the end too, of which nobody may take notice. Kinds: few, half, nearly all, whole words of either. */
static const uint32_t *random_mask(source *r, int n, uint32_t *mask) {
    static const double shares[] = {.01, .5, .99};
    int kind = (int)(unit(r) * 5);
    if (kind == 4) return NULL;
    for (int w = 0; w < (n + 31) / 32; w++) {
        mask[w] = kind == 3 && unit(r) < .5 ? UINT32_MAX : 0;
        for (int i = 0; i < 32; i++)
            if (kind < 3 ? unit(r) < shares[kind] : unit(r) < .02) mask[w] ^= 1u << i;
    }
    return mask;
}

/* -1: no token is left, or one is +inf (a large logit over a small penalty). */
static int ref_greedy(const float *y, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (y[i] == INFINITY) return -1;
    for (int i = 0; i < n; i++)
        if (y[i] != -INFINITY && (best < 0 || y[i] > y[best])) best = i;
    return best;
}

static double ref_logprob(const float *x, int n, int id) {
    double sum = 0;
    int best = ref_greedy(x, n);
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - x[best]);
    return (double)x[id] - x[best] - log(sum);
}

/* One row with its own everything: 20 positions against the reference. Returns 1 if none could be drawn. */
static int row_with_changes_agrees(source *r, int n) {
    static float x[MAX_V], y[MAX_V], kept[MAX_V];
    history h;
    gy_logit_bias bias[MAX_BIAS];
    int32_t ban[MAX_BAN];
    static uint32_t mask[MAX_V / 32 + 1];
    random_row(r, x, n);
    memcpy(kept, x, sizeof x);
    random_history(r, &h, n);
    gy_sample_params p = random_params(r, n);
    if (unit(r) < .4) p.temperature = 0;
    p.n_logprobs = 0;
    gy_counts *c = counts_make(&h);
    gy_sample_in in = {.logits = x, .p = &p, .counts = c};
    if (unit(r) < .7) random_changes(r, &p, bias, &in, ban, n);
    in.mask = random_mask(r, n, mask);
    ref_change(x, n, &in, &h, y);
    gy_sampler *s = sampler_make(n);
    gy_mem_guard_begin();
    for (in.position = 0; in.position < 20; in.position++) {
        gy_sampled o = {.id = -9};
        gy_err err = {0};
        gy_status st = gy_sample_row(s, 0, &in, &err, &o);
        if (ref_greedy(y, n) < 0) {
            assert_int_equal(st, GY_E_NUMERIC);
            assert_int_equal(o.id, -9);
            continue;
        }
        if (st != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(o.id, p.temperature > 0 ? ref_draw(y, n, &p, in.position) : ref_greedy(y, n));
        double due = ref_logprob(x, n, o.id); /* of the row as it came */
        assert_true(fabs(o.logprob - due) <= 1e-6 * fabs(due) + 1e-12);
    }
    gy_mem_guard_end();
    assert_memory_equal(kept, x, sizeof x);
    gy_sampler_destroy(s);
    free(c);
    return ref_greedy(y, n) < 0;
}

static void changes_agree_with_the_reference(void **state) {
    (void)state;
    source r = {.seed = 21};
    int n_none = 0;
    for (int row = 0; row < 4000; row++)
        n_none += row_with_changes_agrees(&r, row % 3 ? 1 + (int)(unit(&r) * 40) : 1 + (int)(unit(&r) * USUAL_V));
    assert_true(n_none > 5 && n_none < 1500); /* both happen */
}

/* Token 0, with logit l, was n_prompt times in the prompt and n_out times in the output: its logit becomes due. Shown
 * by token 1, which nothing changes: just below due it loses, just above it wins, and the lower id wins when equal. */
static void assert_changed(float l, int n_prompt, int n_out, gy_sample_params p, double due) {
    history h = {.n_prompt = n_prompt, .n_output = n_out};
    gy_counts *c = counts_make(&h);
    gy_sampler *s = sampler_make(2);
    for (int above = -1; above <= 1; above++) {
        const float x[2] = {l, (float)(due + above * 1e-5)};
        gy_sampled o;
        gy_err err = {0};
        assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = x, .p = &p, .counts = c}, &err, &o), GY_OK);
        if (above || due == (float)due) assert_int_equal(o.id, above > 0);
    }
    gy_sampler_destroy(s);
    free(c);
}

static gy_sample_params penalties(float repetition, float frequency, float presence) {
    gy_sample_params p = params(0, 0, 1, 0);
    p.repetition_penalty = repetition;
    p.frequency_penalty = frequency;
    p.presence_penalty = presence;
    return p;
}

static void penalties_by_hand(void **state) {
    (void)state;
    assert_changed(3, 1, 0, penalties(1.5f, 0, 0), 2);
    assert_changed(3, 0, 2, penalties(1.5f, 0, 0), 2); /* once, however often it was seen */
    assert_changed(3, 4, 2, penalties(1.5f, 0, 0), 2);
    assert_changed(-3, 1, 0, penalties(1.5f, 0, 0), -4.5);
    assert_changed(0, 1, 0, penalties(1.5f, 0, 0), 0);
    assert_changed(-3, 1, 0, penalties(.5f, 0, 0), -1.5); /* below 1: invites */
    assert_changed(3, 0, 0, penalties(1.5f, 2, 2), 3);    /* never seen */
    assert_changed(3, 5, 0, penalties(1, 2, 2), 3);       /* these two look at the output only */
    assert_changed(3, 5, 1, penalties(1, .5f, 0), 2.5);
    assert_changed(3, 0, 3, penalties(1, .5f, 0), 1.5);
    assert_changed(3, 0, 3, penalties(1, 0, .5f), 2.5);
    assert_changed(3, 0, 3, penalties(1, .5f, .25f), 1.25);
    assert_changed(3, 0, 2, penalties(1, -2, -1), 8);
    assert_changed(3, 1, 2, penalties(1.5f, .5f, .25f), .75);    /* 3 / 1.5 - 2 * .5 - .25 */
    assert_changed(-1, 1, 2, penalties(1.5f, .5f, .25f), -2.75); /* -1 * 1.5 - 2 * .5 - .25 */
    assert_changed(.5f, 0, 1, penalties(2, 1, 0), -.75);         /* repetition first: .5 / 2 - 1, not (.5 - 1) * 2 */
}

static void bias_by_hand(void **state) {
    (void)state;
    const gy_logit_bias five = {0, 5}, minus = {0, -100};
    gy_sample_params p = params(0, 0, 1, 0);
    p.bias = &five;
    p.n_bias = 1;
    assert_changed(1, 0, 0, p, 6);
    p.repetition_penalty = 2;
    assert_changed(-1, 1, 0, p, 2); /* bias before the penalty: (-1 + 5) / 2, not -1 * 2 + 5 */
    p = params(0, 0, 1, 0);
    p.bias = &minus;
    p.n_bias = 1;
    assert_changed(50, 0, 0, p, -50); /* -100 is a number and not "never" */
}

static gy_sampled row_in(const gy_sample_in *in, int n) {
    gy_sampler *s = sampler_make(n);
    gy_sampled o;
    gy_err err = {0};
    gy_status st = gy_sample_row(s, 0, in, &err, &o);
    if (st != GY_OK) fail_msg("%s", err.msg);
    gy_sampler_destroy(s);
    return o;
}

/* A ban takes the largest out, at any temperature, and no bias brings it back; what is said of the row stays raw. */
static void banned_tokens_do_not_come_out(void **state) {
    (void)state;
    float x[4];
    const double prob[4] = {.1, .2, .6, .1};
    const int32_t ban[2] = {2, 0};
    const gy_logit_bias back = {2, 100};
    logs(prob, 4, x);
    gy_sample_params p = params(0, 0, 1, 0);
    p.bias = &back;
    p.n_bias = 1;
    p.n_logprobs = 2;
    gy_sample_in in = {.logits = x, .p = &p, .ban = ban, .n_ban = 1};
    gy_sampled o = row_in(&in, 4);
    assert_int_equal(o.id, 1);
    assert_true(fabs(o.logprob - log(.2)) < 1e-6);
    assert_true(o.top_id[0] == 2 && o.top_id[1] == 1); /* the banned one is an alternative still: raw */
    assert_true(fabs(o.top_logprob[0] - log(.6)) < 1e-6);
    p.temperature = 5;
    in.n_ban = 2;
    unsigned bits = 0;
    for (in.position = 0; in.position < 300; in.position++) bits |= 1u << row_in(&in, 4).id;
    assert_int_equal(bits, 1 << 1 | 1 << 3);
}

static void assert_broken(const gy_sample_in *in, int n, const char *sentence) {
    gy_sampler *s = sampler_make(n);
    gy_sampled o = {.id = -9};
    gy_err err = {0};
    assert_int_equal(gy_sample_row(s, 0, in, &err, &o), GY_E_NUMERIC);
    assert_string_equal(err.msg, sentence);
    assert_int_equal(o.id, -9);
    gy_sampler_destroy(s);
}

static void changes_that_leave_nothing_are_errors(void **state) {
    (void)state;
    const float x[3] = {1, -INFINITY, 2}, nan[3] = {1, 2, NAN}, huge[3] = {3e38f, 0, 0};
    const int32_t ban[3] = {0, 2, 2};
    gy_sample_params p = params(0, 0, 1, 0);
    gy_sample_in in = {.logits = x, .p = &p, .ban = ban, .n_ban = 2, .position = 7};
    assert_broken(&in, 3, "all 3 logits at position 7 are -inf after bans, bias and penalties: no token is left");
    p.temperature = 1;
    assert_broken(&in, 3, "all 3 logits at position 7 are -inf after bans, bias and penalties: no token is left");
    in.logits = nan; /* a ban hides no NaN: the row is broken */
    assert_broken(&in, 3, "logit of token 2 at position 7 is NaN");
    history h = {.n_prompt = 1};
    gy_counts *c = counts_make(&h);
    p.repetition_penalty = .1f;
    in = (gy_sample_in){.logits = huge, .p = &p, .counts = c, .position = 7};
    assert_broken(&in, 3, "logit of token 0 at position 7 is +inf after bans, bias and penalties");
    free(c);
}

/* What a mask holds back does not come out, whatever its bias and the temperature are; a full mask changes no bit. */
static void masked_tokens_do_not_come_out(void **state) {
    (void)state;
    enum { V = 70 };
    float x[V];
    const uint32_t mask[3] = {1u << 5, 0, 1u << 3}, none[3] = {0, 0, 0x40}, all[3] = {UINT32_MAX, UINT32_MAX, 0x3F};
    const gy_logit_bias back = {6, 100};
    for (int i = 0; i < V; i++) x[i] = (float)(i % 7);
    gy_sample_params p = params(0, 0, 1, 0);
    gy_sample_in in = {.logits = x, .p = &p, .mask = mask};
    assert_int_equal(row_in(&in, V).id, 5); /* 5: logit 5; 67: logit 4 */
    p.bias = &back;
    p.n_bias = 1;
    assert_int_equal(row_in(&in, V).id, 5);
    p.temperature = 50;
    int n[V] = {0};
    for (in.position = 0; in.position < 200; in.position++) n[row_in(&in, V).id]++;
    assert_true(n[5] > 50 && n[67] > 50 && n[5] + n[67] == 200);
    p = params(1, 0, .9f, .01f);
    p.n_logprobs = 3;
    for (in.position = 0; in.position < 100; in.position++) {
        in.mask = NULL;
        gy_sampled a = row_in(&in, V);
        in.mask = all;
        gy_sampled b = row_in(&in, V);
        assert_memory_equal(&a, &b, sizeof a);
    }
    in.position = 7;
    in.mask = none; /* a bit behind the vocabulary is no token */
    assert_broken(&in, V,
                  "all 70 logits at position 7 are -inf after mask, bans, bias and penalties: no token is left");
    p.temperature = 0;
    const uint32_t nothing[3] = {0};
    in.mask = nothing;
    assert_broken(&in, V, "all 70 logits at position 7 are -inf after the mask: no token is left");
}

/* Neutral values change no bit of anything, with and without counts and bans that ban nothing. */
static void neutral_values_change_nothing(void **state) {
    (void)state;
    static float x[USUAL_V];
    source r = {.seed = 31};
    const int32_t ban[2] = {-1, USUAL_V};
    for (int row = 0; row < 300; row++) {
        history h;
        random_row(&r, x, USUAL_V);
        random_history(&r, &h, USUAL_V);
        gy_sample_params p = random_params(&r, USUAL_V);
        p.n_logprobs = 5;
        gy_counts *c = counts_make(&h);
        gy_sample_in plain = {.logits = x, .p = &p, .position = row}, more = plain;
        more.counts = c;
        more.ban = ban;
        more.n_ban = 2;
        gy_sampled a = row_in(&plain, USUAL_V), b = row_in(&more, USUAL_V);
        assert_memory_equal(&a, &b, sizeof a);
        free(c);
    }
    gy_sample_params p;
    gy_sample_params_default(&p);
    assert_false(gy_sample_needs_counts(&p));
    p = penalties(1.1f, 0, 0);
    assert_true(gy_sample_needs_counts(&p));
    p = penalties(1, .1f, 0);
    assert_true(gy_sample_needs_counts(&p));
    p = penalties(1, 0, -.1f);
    assert_true(gy_sample_needs_counts(&p));
}

/* ---- counts ---- */

static void assert_counts(const gy_counts *c, const history *h, int n_vocab) {
    size_t n;
    const gy_count *list = gy_counts_list(c, &n);
    int found = 0, due = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(list[i].n_out, times(h->output, h->n_output, list[i].id));
        assert_true(list[i].n_out > 0 || times(h->prompt, h->n_prompt, list[i].id) > 0);
        for (size_t j = 0; j < i; j++) assert_true(list[i].id != list[j].id);
        found++;
    }
    for (int id = 0; id < n_vocab; id++)
        due += times(h->output, h->n_output, id) + times(h->prompt, h->n_prompt, id) > 0;
    assert_int_equal(found, due);
}

static void counts_match_plain_lists(void **state) {
    (void)state;
    source r = {.seed = 41};
    for (int t = 0; t < 400; t++) {
        history h;
        int n_vocab = 1 + (int)(unit(&r) * (t % 2 ? 20 : 3000));
        random_history(&r, &h, n_vocab);
        gy_counts *c = counts_make(&h);
        assert_counts(c, &h, n_vocab);
        free(c);
    }
}

/* All ids different, spaced so that many of them want the same place: the room is enough and nothing is lost. */
static void counts_hold_as_many_as_they_have_room_for(void **state) {
    (void)state;
    enum { N = 3000 };
    static int32_t prompt[N];
    for (int shift = 0; shift < 19; shift++) {
        size_t bytes = gy_counts_bytes(N, N), n;
        char *mem = malloc(bytes);
        assert_non_null(mem);
        for (int i = 0; i < N; i++) prompt[i] = (int32_t)((uint32_t)i << shift & INT32_MAX);
        for (int i = 0; i < N && shift > 16; i++) prompt[i] = INT32_MAX - i; /* the largest ids too */
        gy_counts *c = gy_counts_init(mem, prompt, N, N);
        for (int i = 0; i < N; i++) gy_counts_add(c, prompt[i] ^ 1 << 30);
        const gy_count *list = gy_counts_list(c, &n);
        assert_int_equal(n, 2 * N);
        for (int i = 0; i < N; i++) assert_true(list[i].id == prompt[i] && list[i].n_out == 0);
        for (int i = N; i < 2 * N; i++) assert_true(list[i].id == (prompt[i - N] ^ 1 << 30) && list[i].n_out == 1);
        free(mem);
    }
}

static void counts_have_a_size(void **state) {
    (void)state;
    assert_int_equal(gy_counts_bytes(-1, 5), 0);
    assert_int_equal(gy_counts_bytes(5, -1), 0);
    assert_true(gy_counts_bytes(0, 0) > 0);
    assert_true(gy_counts_bytes(1000, 1000) < 2000 * 24 + 200); /* 8 bytes an id, and at most 4 places of 4 */
    if (sizeof(size_t) > 4) assert_true(gy_counts_bytes(INT32_MAX, INT32_MAX) > (size_t)INT32_MAX * 2 * 16);
    void *mem = malloc(gy_counts_bytes(0, 0));
    size_t n = 9;
    assert_non_null(mem);
    gy_counts_list(gy_counts_init(mem, NULL, 0, 0), &n);
    assert_int_equal(n, 0);
    free(mem);
}

/* ---- rows of several members ---- */

enum { BATCH = 60, BATCH_V = 300 };
typedef struct batch {
    gy_sampler *s;
    gy_sample_in in[BATCH];
    gy_sampled out[BATCH];
    int failed[BATCH];
} batch;

static void batch_share(void *arg, int member, int n_member) {
    batch *b = arg;
    for (int i = member; i < BATCH; i += n_member)
        b->failed[i] = gy_sample_row(b->s, member, &b->in[i], NULL, &b->out[i]) != GY_OK;
}

/* Rows with their own parameters, bans, bias and counts, by three threads at once = one after the other. */
static void members_in_parallel_equal_serial(void **state) {
    (void)state;
    static float x[BATCH][BATCH_V];
    static gy_sample_params p[BATCH];
    static gy_logit_bias bias[BATCH][MAX_BIAS];
    static int32_t ban[BATCH][MAX_BAN];
    static batch b, alone;
    gy_counts *c[BATCH];
    gy_team *team = NULL;
    source r = {.seed = 51};
    for (int i = 0; i < BATCH; i++) {
        history h;
        random_row(&r, x[i], BATCH_V);
        random_history(&r, &h, BATCH_V);
        p[i] = random_params(&r, BATCH_V);
        p[i].n_logprobs = i % 4;
        c[i] = counts_make(&h);
        b.in[i] = (gy_sample_in){.logits = x[i], .p = &p[i], .counts = c[i], .position = i};
        if (i % 3) random_changes(&r, &p[i], bias[i], &b.in[i], ban[i], BATCH_V);
    }
    alone = b;
    assert_int_equal(gy_sampler_create(BATCH_V, 3, &b.s), GY_OK);
    assert_int_equal(gy_sampler_create(BATCH_V, 1, &alone.s), GY_OK);
    assert_int_equal(gy_team_create(3, GY_PIN_OFF, &team), GY_OK);
    batch_share(&alone, 0, 1);
    for (int round = 0; round < 100; round++) {
        memset(b.out, 0, sizeof b.out);
        gy_team_run(team, batch_share, &b);
        assert_memory_equal(b.out, alone.out, sizeof b.out);
        assert_memory_equal(b.failed, alone.failed, sizeof b.failed);
    }
    gy_team_destroy(team);
    gy_sampler_destroy(b.s);
    gy_sampler_destroy(alone.s);
    for (int i = 0; i < BATCH; i++) free(c[i]);
}

/* ---- long rows: the scan for the largest goes by blocks ---- */

enum { LONG_V = 1300 };

static void largest_is_found_wherever_it_is(void **state) {
    (void)state;
    static float x[LONG_V];
    gy_sampler *s = sampler_make(LONG_V);
    gy_sample_params p = params(0, 0, 1, 0);
    for (int i = 0; i < LONG_V; i++) x[i] = -1 - (float)(i * 37 % 101);
    for (int at = 0; at < LONG_V; at++) {
        float before = x[at];
        x[at] = -0.0f; /* equal to 0 */
        assert_int_equal(sample(s, x, &p, 0).id, at);
        for (int also = at + 1; also < LONG_V; also += 97) { /* equals behind it lose */
            float kept = x[also];
            x[also] = 0;
            assert_int_equal(sample(s, x, &p, 0).id, at);
            x[also] = kept;
        }
        x[at] = before;
    }
    gy_sampler_destroy(s);
}

static void broken_logits_are_found_wherever_they_are(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY};
    static float x[LONG_V];
    gy_sample_params p = params(0, 0, 1, 0);
    gy_sampler *s = sampler_make(LONG_V);
    for (int i = 0; i < LONG_V; i++) x[i] = i == 3 ? 3e38f : i % 7 ? (float)(i % 50) : -INFINITY;
    for (int at = 0; at < LONG_V; at += 1 + at % 3) {
        float before = x[at];
        gy_sampled o;
        gy_err err = {0};
        char due[100];
        x[at] = bad[at % 3];
        snprintf(due, sizeof due, "logit of token %d at position 9 is %s", at, at % 3 == 2 ? "+inf" : "NaN");
        gy_sample_in in = {.logits = x, .p = &p, .position = 9};
        assert_int_equal(gy_sample_row(s, 0, &in, &err, &o), GY_E_NUMERIC);
        assert_string_equal(err.msg, due);
        assert_int_equal(gy_logprob_row(x, LONG_V, 0, 0, 9, &err, &o), GY_E_NUMERIC);
        assert_string_equal(err.msg, due);
        x[at] = before;
    }
    gy_sampler_destroy(s);
}

/* ---- logprobs of a token that is known ---- */

static void known_token_logprobs(void **state) {
    (void)state;
    static float x[MAX_V];
    source r = {.seed = 61};
    gy_sample_params p = params(0, 0, 1, 0);
    for (int row = 0; row < 300; row++) {
        int n = 1 + (int)(unit(&r) * USUAL_V), id = (int)(unit(&r) * n);
        gy_sampled o, greedy;
        gy_err err = {0};
        random_row(&r, x, n);
        p.n_logprobs = row % (GY_MAX_LOGPROBS + 1);
        assert_int_equal(gy_logprob_row(x, n, id, p.n_logprobs, row, &err, &o), GY_OK);
        assert_int_equal(o.id, id);
        double due = ref_logprob(x, n, id);
        if (x[id] == -INFINITY)
            assert_true(o.logprob == -INFINITY);
        else
            assert_true(fabs(o.logprob - due) <= 1e-6 * fabs(due) + 1e-12);
        greedy = row_in(&(gy_sample_in){.logits = x, .p = &p}, n); /* the alternatives are those of a drawn token */
        assert_int_equal(o.n_top, greedy.n_top);
        assert_memory_equal(o.top_id, greedy.top_id, sizeof o.top_id);
        assert_memory_equal(o.top_logprob, greedy.top_logprob, sizeof o.top_logprob);
    }
}

static void known_token_errors(void **state) {
    (void)state;
    const float x[3] = {0, 1, 2}, none[2] = {-INFINITY, -INFINITY};
    gy_sampled o = {.id = -9};
    gy_err err = {0};
    assert_int_equal(gy_logprob_row(x, 3, 3, 0, 5, &err, &o), GY_E_ARG);
    assert_string_equal(err.msg, "token at position 5: found 3; allowed 0 to 2 (the vocabulary)");
    assert_int_equal(gy_logprob_row(x, 3, -1, 0, 5, &err, &o), GY_E_ARG);
    assert_int_equal(gy_logprob_row(x, 3, 0, 21, 5, &err, &o), GY_E_ARG);
    assert_string_equal(err.msg, "logprobs: found 21; allowed 0 to 20");
    assert_int_equal(gy_logprob_row(x, 3, 0, -1, 5, &err, &o), GY_E_ARG);
    assert_int_equal(gy_logprob_row(none, 2, 0, 0, 5, &err, &o), GY_E_NUMERIC);
    assert_string_equal(err.msg, "all 2 logits at position 5 are -inf: no token is left");
    assert_int_equal(o.id, -9);
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
    assert_true(d.repetition_penalty == 1 && d.frequency_penalty == 0 && d.presence_penalty == 0 && d.n_bias == 0);
    d.n_logprobs = 21;
    assert_params(d, "logprobs: found 21; allowed -1 (none) to 20");
    d.n_logprobs = -2;
    assert_params(d, "logprobs: found -2");
}

static void penalties_and_bias_have_ranges(void **state) {
    (void)state;
    static gy_logit_bias bias[GY_MAX_LOGIT_BIAS + 1];
    assert_params(penalties(0, 0, 0), "repetition_penalty: found 0; allowed above 0 up to 100 (1 is off)");
    assert_params(penalties(-1, 0, 0), "repetition_penalty: found -1");
    assert_params(penalties(100.5f, 0, 0), "repetition_penalty: found 100.5");
    assert_params(penalties(NAN, 0, 0), "repetition_penalty: found nan");
    assert_params(penalties(1, 2.5f, 0), "frequency_penalty: found 2.5; allowed -2 to 2 (0 is off)");
    assert_params(penalties(1, NAN, 0), "frequency_penalty: found nan");
    assert_params(penalties(1, 0, -2.5f), "presence_penalty: found -2.5; allowed -2 to 2 (0 is off)");
    assert_params(penalties(1, 0, INFINITY), "presence_penalty: found inf");
    gy_sample_params p = params(0, 0, 1, 0);
    p.bias = bias;
    p.n_bias = -1;
    assert_params(p, "logit_bias: found -1 tokens; allowed 0 to 1024");
    p.n_bias = GY_MAX_LOGIT_BIAS + 1;
    assert_params(p, "logit_bias: found 1025 tokens; allowed 0 to 1024");
    p.n_bias = 1;
    assert_params(p, NULL);
    bias[0] = (gy_logit_bias){1, 100.5f};
    assert_params(p, "logit_bias of token 1: found 100.5; allowed -100 to 100");
    bias[0].bias = NAN;
    assert_params(p, "logit_bias of token 1: found nan; allowed -100 to 100");
    bias[0] = (gy_logit_bias){2, 1};
    gy_sampler *s = sampler_make(2);
    gy_sampled o;
    gy_err err = {0};
    const float x[2] = {0, 0};
    assert_int_equal(gy_sample_row(s, 0, &(gy_sample_in){.logits = x, .p = &p}, &err, &o), GY_E_ARG);
    assert_string_equal(err.msg, "logit_bias: found token 2; allowed 0 to 1 (the vocabulary)");
    gy_sampler_destroy(s);
}

static void assert_vocab(const gy_sample_params *p, int32_t n_vocab, const char *sentence) {
    gy_err err = {0};
    assert_int_equal(gy_sample_params_check_vocab(p, n_vocab, &err), sentence ? GY_E_ARG : GY_OK);
    assert_string_equal(err.msg, sentence ? sentence : "");
}

static void bias_ids_are_checked_against_the_vocabulary(void **state) {
    (void)state;
    static gy_logit_bias bias[GY_MAX_LOGIT_BIAS];
    for (int i = 0; i < GY_MAX_LOGIT_BIAS; i++) bias[i].id = GY_MAX_LOGIT_BIAS - 1 - i;
    gy_sample_params p = params(0, 0, 1, 0);
    assert_vocab(&p, 1, NULL);
    p.bias = bias;
    p.n_bias = GY_MAX_LOGIT_BIAS;
    assert_vocab(&p, GY_MAX_LOGIT_BIAS, NULL);
    assert_vocab(&p, 1000, "logit_bias: found token 1023; allowed 0 to 999 (the vocabulary)");
    bias[700].id = 1000;
    assert_vocab(&p, GY_MAX_LOGIT_BIAS, "logit_bias: found token 1000 more than once; allowed one bias a token");
    bias[5].id = -1;
    assert_vocab(&p, GY_MAX_LOGIT_BIAS, "logit_bias: found token -1; allowed 0 to 1023 (the vocabulary)");
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
    assert_true(n > 3 * 3); /* three pieces for each of three members */
    gy_sampler *s = NULL;
    assert_int_equal(gy_sampler_create(0, 1, &s), GY_E_ARG);
    assert_int_equal(gy_sampler_create(1, 0, &s), GY_E_ARG);
    gy_sampler_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(large_top_k_agrees_with_the_reference),
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
        cmocka_unit_test(changes_agree_with_the_reference),
        cmocka_unit_test(penalties_by_hand),
        cmocka_unit_test(bias_by_hand),
        cmocka_unit_test(banned_tokens_do_not_come_out),
        cmocka_unit_test(changes_that_leave_nothing_are_errors),
        cmocka_unit_test(masked_tokens_do_not_come_out),
        cmocka_unit_test(neutral_values_change_nothing),
        cmocka_unit_test(counts_match_plain_lists),
        cmocka_unit_test(counts_hold_as_many_as_they_have_room_for),
        cmocka_unit_test(counts_have_a_size),
        cmocka_unit_test(members_in_parallel_equal_serial),
        cmocka_unit_test(largest_is_found_wherever_it_is),
        cmocka_unit_test(broken_logits_are_found_wherever_they_are),
        cmocka_unit_test(known_token_logprobs),
        cmocka_unit_test(known_token_errors),
        cmocka_unit_test(broken_logits_are_errors),
        cmocka_unit_test(params_have_ranges),
        cmocka_unit_test(penalties_and_bias_have_ranges),
        cmocka_unit_test(bias_ids_are_checked_against_the_vocabulary),
        cmocka_unit_test(create_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
