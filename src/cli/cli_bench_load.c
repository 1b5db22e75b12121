/* Lengths, arrivals and tokens by Philox: see cli_bench_load.h. */
#include "cli/cli_bench_load.h"

#include "base/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counter words { position or turn, stream, purpose, 0 }. The purposes lie apart from gy_rand_purpose: a benchmark's
 * draws never meet the engine's, whatever the seed. */
enum { DRAW_IN = 0x100, DRAW_OUT, DRAW_GAP, DRAW_ID, DRAW_GAMMA };

static double draw_unit(uint64_t seed, uint32_t position, uint32_t stream, uint32_t purpose) {
    const uint32_t ctr[4] = {position, stream, purpose, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    gy_philox4x32_10(ctr, key, r);
    return gy_rand_unit_f64(r[0], r[1]);
}

static int32_t draw_range(const gy_bench_load *l, gy_bench_range r, int32_t turn, int32_t stream, uint32_t purpose) {
    const double n = (double)r.hi - (double)r.lo + 1;
    return r.lo + (int32_t)(draw_unit(l->seed, (uint32_t)turn, (uint32_t)stream, purpose) * n);
}

/* Of the middle of 2^52 cells: neither end of the distribution is drawn. */
static int32_t draw_chat(const gy_bench_load *l, int32_t turn, int32_t stream) {
    const double mu = log(100), sigma = 1.25, u = draw_unit(l->seed, (uint32_t)turn, (uint32_t)stream, DRAW_IN);
    const double x = exp(mu + sigma * gy_normal_quantile((floor(u * 0x1p52) + 0.5) * 0x1p-52));
    return x < l->in.lo ? l->in.lo : x > l->in.hi ? l->in.hi : (int32_t)x;
}

static int32_t draw_in(const gy_bench_load *l, int32_t turn, int32_t stream) {
    if (l->in_spread == GY_BENCH_CHAT) return draw_chat(l, turn, stream);
    if (l->in_spread == GY_BENCH_BY_TURNS) return stream % 2 ? l->in.hi : l->in.lo;
    return draw_range(l, l->in, turn, stream, DRAW_IN);
}

static int parse_length(const char *s, size_t len, int32_t *out) {
    char word[12];
    if (!len || len >= sizeof word || strspn(s, "0123456789") < len) return -1;
    memcpy(word, s, len);
    word[len] = '\0';
    const long long v = atoll(word);
    if (v < 1 || v > INT32_MAX) return -1;
    *out = (int32_t)v;
    return 0;
}

gy_status gy_bench_parse_range(const char *text, const char *what, gy_err *err, gy_bench_range *out) {
    const size_t first = strcspn(text, ":");
    const char *second = text[first] ? text + first + 1 : text;
    gy_bench_range r;
    if (parse_length(text, first, &r.lo) || parse_length(second, strlen(second), &r.hi) || r.hi < r.lo)
        return gy_err_set(err, GY_E_ARG, "%s: found '%.40s', expected a number of tokens or LOW:HIGH, from 1", what,
                          text);
    *out = r;
    return GY_OK;
}

gy_status gy_bench_parse_lengths(const char *text, const char *what, gy_err *err, gy_bench_range *out,
                                 gy_bench_spread *spread_out) {
    const char *comma = strchr(text, ',');
    gy_bench_range r = {4, 1024};
    *spread_out = comma ? GY_BENCH_BY_TURNS : strcmp(text, "sharegpt") ? GY_BENCH_EVENLY : GY_BENCH_CHAT;
    if (*spread_out == GY_BENCH_EVENLY) return gy_bench_parse_range(text, what, err, out);
    if (comma && (parse_length(text, (size_t)(comma - text), &r.lo) ||
                  parse_length(comma + 1, strlen(comma + 1), &r.hi) || r.hi < r.lo))
        return gy_err_set(err, GY_E_ARG, "%s: found '%.40s', expected SHORT,LONG: tokens of requests by turns", what,
                          text);
    *out = r;
    return GY_OK;
}

/* Gamma of shape k and mean 1, k > 0 (Marsaglia and Tsang 2000, "A simple method for generating gamma variables": a
 * normal and a uniform a try, under a tenth of which fail; shapes below 1 through shape + 1 and a power of a uniform).
 * Tries are counted in the position, so that a gap depends on its own number only. */
static double draw_gamma(uint64_t seed, uint32_t i, double k) {
    const double shape = k < 1 ? k + 1 : k, d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (uint32_t t = 0;; t++) {
        const double u = draw_unit(seed, 2 * t + 1, i, DRAW_GAMMA);
        const double x =
            gy_normal_quantile((floor(draw_unit(seed, 2 * t + 2, i, DRAW_GAMMA) * 0x1p52) + 0.5) * 0x1p-52);
        const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
        if (v <= 0 || log1p(-u) >= 0.5 * x * x + d - d * v + d * log(v)) continue;
        const double boost = k < 1 ? exp(log1p(-draw_unit(seed, 0, i, DRAW_GAMMA)) / k) : 1;
        return boost * d * v / k;
    }
}

/* Between arrivals s - 1 and s, in units of the mean gap. Exponential gaps make the number of arrivals in any second
 * Poisson's. The first request comes after a gap too. */
static double draw_gap(uint64_t seed, int32_t s, double burstiness) {
    if (burstiness != 1) return draw_gamma(seed, (uint32_t)s, burstiness);
    return -log1p(-draw_unit(seed, 0, (uint32_t)s, DRAW_GAP));
}

void gy_bench_arrivals(uint64_t seed, double rate, double burstiness, int32_t n, int64_t *at_ns) {
    double at = 0;
    for (int32_t s = 0; s < n; s++) {
        at += draw_gap(seed, s, burstiness) / rate;
        at_ns[s] = (int64_t)(at * 1e9);
    }
}

static void set_arrivals(const gy_bench_load *l, gy_bench_item *items) {
    double at = 0;
    for (int32_t s = 0; s < l->n_stream; s++) {
        at += draw_gap(l->seed, s, 1) / l->rate;
        items[s].at_ns = (int64_t)(at * 1e9);
    }
}

void gy_bench_items(const gy_bench_load *l, gy_bench_item *items) {
    for (int32_t t = 0; t < l->n_turn; t++)
        for (int32_t s = 0; s < l->n_stream; s++) {
            gy_bench_item *it = &items[(size_t)t * (size_t)l->n_stream + (size_t)s];
            const gy_bench_item *before = it - l->n_stream;
            *it = (gy_bench_item){.stream = s, .turn = t};
            it->n_new = draw_in(l, t, s);
            it->n_out = draw_range(l, l->out, t, s, DRAW_OUT);
            it->n_prompt = it->n_new + (t ? before->n_prompt + before->n_out : 0);
        }
    if (l->kind == GY_BENCH_POISSON) set_arrivals(l, items);
}

int64_t gy_bench_longest(const gy_bench_load *l) {
    return (int64_t)l->n_turn * ((int64_t)l->in.hi + l->out.hi);
}

void gy_bench_ids(uint64_t seed, int32_t stream, int32_t n, int32_t n_vocab, int32_t *ids) {
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(draw_unit(seed, (uint32_t)i, (uint32_t)stream, DRAW_ID) * (double)n_vocab);
}
