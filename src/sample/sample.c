/* Logits to token, one row at a time: the order of sample.h, on the weights and masses of base/draw.h. The largest
 * weight is exactly 1, no weight overflows whatever the logits and the temperature are, and a filter is nothing but
 * weights that become 0; the draw then walks all tokens in ascending order.
 *
 *   total of top-p   mass that top-k left
 *   prefix of top-p  in descending order of logit (ties: lower id first), kept up to and with the first sum of masses
 *                    that is >= top_p * total
 *   min-p            w_i >= min_p, because the largest is 1
 *
 * Only as many tokens are put in order as may be kept: top-k up to FEW finds its bar first, top-p leaves out what is
 * too small to matter. A full sort of 166k tokens happens only when they really keep nearly all of them. A GPU does the
 * same with other means (ops/cuda/sample.cu): weights have the same bits there, masses have no order, so it draws the
 * same tokens. Measured, a row of 49152 on one core of an EPYC (gcc 12): greedy 5 us,
 * temperature alone 180, top-k 50 62, logprobs 210, min-p 200. Bans, bias and penalties work on a copy of the row, made
 * only when there are any: logprobs are those of the row as it came. A mask alone needs no copy to be greedy: 5 us
 * where it lets the largest through, 6 to 10 where it does not. Grammars and stop strings are not done here: whoever
 * wants a token out bans it or leaves it out of the mask.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize(                                                                                                  \
    "no-trapping-math") /* nobody looks at exception flags: a loop over gy_draw_weight becomes vectors */
#endif

#include "base/draw.h"
#include "base/mem.h"
#include "sample/sample_int.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct cand {
    float x;
    int32_t id;
} cand;

/* What one member works in. */
typedef struct scratch {
    cand *heap;  /* [n_vocab] */
    double *w;   /* [n_vocab] weights of the row at hand; no mass = out */
    double unit; /* of a mass */
    float *x;    /* [n_vocab] the row with bans, bias and penalties */
    int32_t n_vocab;
} scratch;

/* Engine lifetime. Members share nothing that changes. */
struct gy_sampler {
    int32_t n_vocab;
    int n_member;
    scratch *members; /* [n_member] */
};

/* ---- parameters ---- */

void gy_sample_params_default(gy_sample_params *p) {
    *p = (gy_sample_params){.top_p = 1.0f, .n_logprobs = -1, .repetition_penalty = 1.0f};
}

static gy_status penalties_check(const gy_sample_params *p, gy_err *err) {
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 100))
        return gy_err_set(err, GY_E_ARG, "repetition_penalty: found %g; allowed above 0 up to 100 (1 is off)",
                          p->repetition_penalty);
    if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
        return gy_err_set(err, GY_E_ARG, "frequency_penalty: found %g; allowed -2 to 2 (0 is off)",
                          p->frequency_penalty);
    if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2))
        return gy_err_set(err, GY_E_ARG, "presence_penalty: found %g; allowed -2 to 2 (0 is off)", p->presence_penalty);
    return GY_OK;
}

static gy_status bias_check(const gy_sample_params *p, gy_err *err) {
    if (p->n_bias < 0 || p->n_bias > GY_MAX_LOGIT_BIAS)
        return gy_err_set(err, GY_E_ARG, "logit_bias: found %d tokens; allowed 0 to %d", p->n_bias, GY_MAX_LOGIT_BIAS);
    for (int32_t i = 0; i < p->n_bias; i++)
        if (!(p->bias[i].bias >= -100 && p->bias[i].bias <= 100))
            return gy_err_set(err, GY_E_ARG, "logit_bias of token %d: found %g; allowed -100 to 100", p->bias[i].id,
                              p->bias[i].bias);
    return GY_OK;
}

gy_status gy_sample_params_check(const gy_sample_params *p, gy_err *err) {
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return gy_err_set(err, GY_E_ARG, "temperature: found %g; allowed 0 (greedy) or more, finite", p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return gy_err_set(err, GY_E_ARG, "top_p: found %g; allowed above 0 up to 1 (1 is off)", p->top_p);
    if (!(p->min_p >= 0 && p->min_p < 1))
        return gy_err_set(err, GY_E_ARG, "min_p: found %g; allowed 0 (off) up to below 1", p->min_p);
    if (p->n_logprobs < -1 || p->n_logprobs > GY_MAX_LOGPROBS)
        return gy_err_set(err, GY_E_ARG, "logprobs: found %d; allowed -1 (none) to %d", p->n_logprobs, GY_MAX_LOGPROBS);
    GY_TRY(penalties_check(p, err));
    return bias_check(p, err);
}

static gy_status bias_id_check(int32_t id, int32_t n_vocab, gy_err *err) {
    if (id >= 0 && id < n_vocab) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "logit_bias: found token %d; allowed 0 to %d (the vocabulary)", id, n_vocab - 1);
}

/* Every pair is compared: half a million comparisons at most, and no memory. */
gy_status gy_sample_params_check_vocab(const gy_sample_params *p, int32_t n_vocab, gy_err *err) {
    for (int32_t i = 0; i < p->n_bias; i++) {
        GY_TRY(bias_id_check(p->bias[i].id, n_vocab, err));
        for (int32_t j = 0; j < i; j++)
            if (p->bias[j].id == p->bias[i].id)
                return gy_err_set(err, GY_E_ARG, "logit_bias: found token %d more than once; allowed one bias a token",
                                  p->bias[i].id);
    }
    return GY_OK;
}

int gy_sample_needs_counts(const gy_sample_params *p) {
    return p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

/* ---- the object ---- */

static gy_status scratch_create(scratch *m, int32_t n_vocab) {
    m->n_vocab = n_vocab;
    m->unit = gy_mass_unit(n_vocab);
    m->heap = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *m->heap);
    m->w = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *m->w);
    m->x = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *m->x);
    return m->heap && m->w && m->x ? GY_OK : GY_E_NOMEM;
}

gy_status gy_sampler_create(int32_t n_vocab, int n_member, gy_sampler **out) {
    if (n_vocab < 1 || n_vocab > GY_DRAW_MAX_VOCAB || n_member < 1) return GY_E_ARG;
    gy_sampler *s = gy_mem_alloc(GY_MEM_SAMPLE, 1, sizeof *s);
    if (!s) return GY_E_NOMEM;
    *s = (gy_sampler){.n_vocab = n_vocab, .n_member = n_member};
    s->members = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_member, sizeof *s->members);
    gy_status st = s->members ? GY_OK : GY_E_NOMEM;
    for (int i = 0; i < n_member && st == GY_OK; i++) st = scratch_create(&s->members[i], n_vocab);
    if (st != GY_OK) {
        gy_sampler_destroy(s);
        return st;
    }
    *out = s;
    return GY_OK;
}

void gy_sampler_destroy(gy_sampler *s) {
    if (!s) return;
    for (int i = 0; i < s->n_member && s->members; i++) {
        gy_mem_free(s->members[i].x);
        gy_mem_free(s->members[i].w);
        gy_mem_free(s->members[i].heap);
    }
    gy_mem_free(s->members);
    gy_mem_free(s);
}

/* ---- the largest logit ---- */

enum { SCAN_BLOCK = 128, FEW = 1024 }; /* FEW: the largest top-k that is found without a heap of all tokens */

/* Is one of x[0..n) above top, or NaN? The one pass over a row that touches every logit: without a branch and with
 * nothing but an integer OR to carry on, so that compilers make vectors of it (0.1 ns a logit against 0.8). */
static int32_t block_exceeds(const float *x, int32_t n, float top) {
    int32_t any = 0;
    for (int32_t i = 0; i < n; i++) any |= !(x[i] <= top);
    return any;
}

/* The largest logit, the lowest id among equals. A block is looked at one by one only where block_exceeds says so: for
 * the few that hold a new largest, and for what is broken. when: ends a complaint, "" for the row as it came. */
static gy_status row_argmax(const float *x, int32_t n, int32_t position, const char *when, gy_err *err,
                            int32_t *id_out) {
    int32_t best = 0;
    float top = -INFINITY;
    for (int32_t lo = 0, hi; lo < n; lo = hi) {
        hi = n - lo < SCAN_BLOCK ? n : lo + SCAN_BLOCK;
        if (!block_exceeds(x + lo, hi - lo, top)) continue;
        for (int32_t i = lo; i < hi; i++) {
            if (isnan(x[i]) || x[i] == INFINITY)
                return gy_err_set(err, GY_E_NUMERIC, "logit of token %d at position %d is %s%s", i, position,
                                  isnan(x[i]) ? "NaN" : "+inf", when);
            if (x[i] > top) top = x[best = i];
        }
    }
    if (top == -INFINITY)
        return gy_err_set(err, GY_E_NUMERIC, "all %d logits at position %d are -inf%s: no token is left", n, position,
                          when);
    *id_out = best;
    return GY_OK;
}

/* ---- masks ---- */

enum { WORD = 32 };

static int mask_has(const uint32_t *mask, int32_t id) {
    return (int)(mask[id / WORD] >> (id % WORD) & 1);
}

/* The largest of the logits that the mask lets through, the lowest id among equals; -1: none is above -inf. The row has
 * been found whole. Words of the mask without a bit, and those whose logits do not exceed, cost next to nothing. */
static int32_t masked_argmax(const float *x, int32_t n, const uint32_t *mask) {
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t lo = 0; lo < n; lo += WORD) {
        uint32_t bits = mask[lo / WORD];
        int32_t len = n - lo < WORD ? n - lo : WORD;
        if (len < WORD) bits &= (1u << len) - 1; /* what is behind the vocabulary is no token */
        if (!bits || !block_exceeds(x + lo, len, top)) continue;
        for (; bits; bits &= bits - 1) {
            int32_t i = lo + __builtin_ctz(bits);
            if (x[i] > top) top = x[best = i];
        }
    }
    return best;
}

/* A copy of the row with -inf for what the mask holds back. */
static void mask_copy(const float *x, int32_t n, const uint32_t *mask, float *out) {
    for (int32_t lo = 0; lo < n; lo += WORD) {
        uint32_t bits = mask[lo / WORD];
        int32_t len = n - lo < WORD ? n - lo : WORD;
        if (bits == UINT32_MAX)
            memcpy(out + lo, x + lo, (size_t)len * sizeof *x);
        else
            for (int32_t i = 0; i < len; i++) out[lo + i] = bits >> i & 1 ? x[lo + i] : -INFINITY;
    }
}

/* ---- bans, bias, penalties ---- */

static const char *what_changed(const gy_sample_in *in) {
    return in->mask ? " after mask, bans, bias and penalties" : " after bans, bias and penalties";
}

static int row_changes(const gy_sample_in *in) {
    return in->n_ban > 0 || in->p->n_bias > 0 || gy_sample_needs_counts(in->p);
}

/* The row after all changes into m->x. An id that is no token cannot be drawn anyway: such bans are passed over. */
static gy_status row_change(scratch *m, const gy_sample_in *in, gy_err *err) {
    const gy_sample_params *p = in->p;
    if (in->mask)
        mask_copy(in->logits, m->n_vocab, in->mask, m->x);
    else
        memcpy(m->x, in->logits, (size_t)m->n_vocab * sizeof *m->x);
    for (int32_t i = 0; i < in->n_ban; i++)
        if (in->ban[i] >= 0 && in->ban[i] < m->n_vocab) m->x[in->ban[i]] = -INFINITY;
    for (int32_t i = 0; i < p->n_bias; i++) {
        GY_TRY(bias_id_check(p->bias[i].id, m->n_vocab, err));
        m->x[p->bias[i].id] += p->bias[i].bias;
    }
    if (!gy_sample_needs_counts(p)) return GY_OK;
    GY_CHECK(in->counts);
    size_t n;
    const gy_count *c = gy_counts_list(in->counts, &n);
    for (size_t i = 0; i < n; i++) {
        GY_CHECK(c[i].id >= 0 && c[i].id < m->n_vocab);
        m->x[c[i].id] =
            gy_penalized(m->x[c[i].id], c[i].n_out, p->repetition_penalty, p->frequency_penalty, p->presence_penalty);
    }
    return GY_OK;
}

/* ---- a heap with the first of the order on top: larger logit, then lower id ---- */

static int cand_before(cand a, cand b) {
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

static void heap_sift(cand *h, int32_t n, int32_t at) {
    cand c = h[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && cand_before(h[child + 1], h[child])) child++;
        if (!cand_before(h[child], c)) break;
        h[at] = h[child];
    }
    h[at] = c;
}

static void heap_order(cand *h, int32_t n) {
    for (int32_t at = n / 2; at-- > 0;) heap_sift(h, n, at);
}

/* Moves the top to h[n - 1] and leaves a heap of n - 1: popped tokens lie behind the heap, in order from its end. */
static cand heap_pop(cand *h, int32_t n) {
    cand top = h[0];
    h[0] = h[n - 1];
    h[n - 1] = top;
    heap_sift(h, n - 1, 0);
    return top;
}

/* ---- top-k ---- */

/* Tokens with a logit of at least floor, masked ones never; returns their number. */
static int32_t heap_from(scratch *m, const float *x, float floor) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_vocab; i++)
        if (x[i] >= floor && x[i] != -INFINITY) m->heap[n++] = (cand){x[i], i};
    heap_order(m->heap, n);
    return n;
}

/* Replaces the smallest of h[0..k), which is on top, by x. */
static void smallest_replace(float *h, int32_t k, float x) {
    int32_t at = 0;
    for (int32_t child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && h[child + 1] < h[child]) child++;
        if (!(h[child] < x)) break;
        h[at] = h[child];
    }
    h[at] = x;
}

/* The k-th largest logit: the smallest of the k largest so far is the bar that the next ones must exceed, which whole
 * blocks do not. */
static float kth_largest(const float *x, int32_t n_vocab, int32_t k) {
    float h[FEW];
    for (int32_t i = 0; i < k; i++) h[i] = -INFINITY;
    for (int32_t lo = 0, hi; lo < n_vocab; lo = hi) {
        hi = n_vocab - lo < SCAN_BLOCK ? n_vocab : lo + SCAN_BLOCK;
        if (!block_exceeds(x + lo, hi - lo, h[0])) continue;
        for (int32_t i = lo; i < hi; i++)
            if (x[i] > h[0]) smallest_replace(h, k, x[i]);
    }
    return h[0];
}

/* ---- weights ---- */

/* Of n tokens; returns their mass. A block of masked ones is not looked at. */
static uint64_t weigh_block(double *w, const float *x, int32_t n, float top, double per_t, double unit) {
    uint64_t sum = 0;
    int32_t any = 0;
    for (int32_t i = 0; i < n; i++) any |= x[i] > -INFINITY;
    if (!any) {
        memset(w, 0, (size_t)n * sizeof *w);
        return 0;
    }
    for (int32_t i = 0; i < n; i++) w[i] = gy_draw_weight(((double)x[i] - top) * per_t);
    for (int32_t i = 0; i < n; i++) sum += gy_mass(w[i], unit);
    return sum;
}

/* Returns their mass. */
static uint64_t weigh_all(scratch *m, const float *x, float top, double per_t) {
    uint64_t sum = 0;
    for (int32_t lo = 0, n; lo < m->n_vocab; lo += n) {
        n = m->n_vocab - lo < SCAN_BLOCK ? m->n_vocab - lo : SCAN_BLOCK;
        sum += weigh_block(m->w + lo, x + lo, n, top, per_t, m->unit);
    }
    return sum;
}

/* Weighs the k first of a heap of n and all that equal the k-th. Returns what is left in the heap; the others lie
 * behind it, in order from its end. */
static int32_t weigh_top_k(scratch *m, int32_t n, int32_t k, float top, double per_t) {
    float kth = top;
    memset(m->w, 0, (size_t)m->n_vocab * sizeof *m->w);
    for (int32_t i = 0; n > 0 && (i < k || m->heap[0].x == kth); i++, n--) {
        cand c = heap_pop(m->heap, n);
        kth = c.x;
        m->w[c.id] = gy_draw_weight(((double)c.x - top) * per_t);
    }
    return n;
}

static uint64_t mass_sum(const double *w, int32_t n, double unit) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += gy_mass(w[i], unit);
    return sum;
}

/* ---- filters ---- */

/* A heap of the tokens that top-p may keep; the others' weights become 0. All masses below `small` together are at most
 * a quarter of what p may leave out, so the prefix that reaches p ends before them. */
static int32_t heap_for_top_p(scratch *m, const float *x, uint64_t total, float p) {
    uint64_t small = (uint64_t)(0.25 * (1.0 - (double)p) * (double)total / m->n_vocab);
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_vocab; i++) {
        if (gy_mass(m->w[i], m->unit) >= small && x[i] != -INFINITY)
            m->heap[n++] = (cand){x[i], i};
        else
            m->w[i] = 0;
    }
    heap_order(m->heap, n);
    return n;
}

/* Cuts the order after the token whose prefix reaches due. The tokens that are in are heap[low..end): already popped by
 * top-k (sorted), or a heap still (low = 0). */
static void filter_top_p(scratch *m, int32_t low, int32_t end, int sorted, uint64_t due) {
    uint64_t sum = 0;
    int32_t at = end;
    while (at > low && sum < due) {
        cand c = sorted ? m->heap[at - 1] : heap_pop(m->heap, at);
        sum += gy_mass(m->w[c.id], m->unit);
        at--;
    }
    for (int32_t i = low; i < at; i++) m->w[m->heap[i].id] = 0;
}

static void filter_min_p(scratch *m, float min_p) {
    for (int32_t i = 0; i < m->n_vocab; i++) m->w[i] = m->w[i] < min_p ? 0 : m->w[i];
}

/* Weighs what the filters leave; returns its mass. */
static uint64_t weigh_row(scratch *m, const float *x, const gy_sample_params *p, float top) {
    int use_k = p->top_k > 0 && p->top_k < m->n_vocab, use_p = p->top_p < 1;
    int32_t end = 0, low = 0;
    double per_t = 1.0 / (double)p->temperature;
    uint64_t total;
    if (use_k) {
        end = heap_from(m, x, p->top_k <= FEW ? kth_largest(x, m->n_vocab, p->top_k) : -INFINITY);
        low = weigh_top_k(m, end, p->top_k, top, per_t);
        total = mass_sum(m->w, m->n_vocab, m->unit);
    } else {
        total = weigh_all(m, x, top, per_t);
        if (use_p) end = heap_for_top_p(m, x, total, p->top_p);
    }
    if (use_p) filter_top_p(m, low, end, use_k, gy_mass_due(p->top_p, total));
    if (p->min_p > 0) filter_min_p(m, p->min_p);
    return use_p || p->min_p > 0 ? mass_sum(m->w, m->n_vocab, m->unit) : total;
}

/* The first token whose sum is above due, which is below the total. Whole blocks are passed over by their mass. */
static int32_t draw(const scratch *m, uint64_t due) {
    uint64_t sum = 0, block = 0;
    int32_t lo = 0, n;
    for (;; lo += n, sum += block) {
        n = m->n_vocab - lo < SCAN_BLOCK ? m->n_vocab - lo : SCAN_BLOCK;
        block = mass_sum(m->w + lo, n, m->unit);
        if (sum + block > due || lo + n == m->n_vocab) break;
    }
    while (lo < m->n_vocab - 1 && (sum += gy_mass(m->w[lo], m->unit)) <= due) lo++;
    return lo;
}

/* ---- logprobs ---- */

/* The n largest logits into o->top_id, in order. Masked tokens are no alternatives. */
static void top_find(const float *x, int32_t n_vocab, int32_t n, gy_sampled *o) {
    for (int32_t i = 0; i < n_vocab; i++) {
        int32_t at = o->n_top;
        if (x[i] == -INFINITY || (at == n && (n == 0 || !(x[i] > x[o->top_id[n - 1]])))) continue;
        if (at < n)
            o->n_top++;
        else
            at--;
        for (; at > 0 && x[i] > x[o->top_id[at - 1]]; at--) o->top_id[at] = o->top_id[at - 1];
        o->top_id[at] = i;
    }
}

/* The raw row's mass at temperature 1. */
static uint64_t raw_mass(const float *x, int32_t n_vocab, float top, double unit) {
    double w[SCAN_BLOCK];
    uint64_t sum = 0;
    for (int32_t lo = 0, n; lo < n_vocab; lo += n) {
        n = n_vocab - lo < SCAN_BLOCK ? n_vocab - lo : SCAN_BLOCK;
        sum += weigh_block(w, x + lo, n, top, 1, unit);
    }
    return sum;
}

float gy_logprob_of(float x, float top, uint64_t mass, int32_t n_vocab) {
    return (float)((double)x - top - log(gy_mass_value(mass, gy_mass_unit(n_vocab))));
}

static void logprobs_fill(const float *x, int32_t n_vocab, float top, int32_t n, gy_sampled *o) {
    uint64_t mass = raw_mass(x, n_vocab, top, gy_mass_unit(n_vocab));
    o->logprob = gy_logprob_of(x[o->id], top, mass, n_vocab);
    top_find(x, n_vocab, n, o);
    for (int32_t i = 0; i < o->n_top; i++) o->top_logprob[i] = gy_logprob_of(x[o->top_id[i]], top, mass, n_vocab);
}

/* Greedy under a mask that nothing else changes: nearly always the model's own choice is let through. */
static gy_status choose_masked(const gy_sample_in *in, int32_t n_vocab, gy_err *err, int32_t *id_io) {
    int32_t id = mask_has(in->mask, *id_io) ? *id_io : masked_argmax(in->logits, n_vocab, in->mask);
    if (id < 0)
        return gy_err_set(err, GY_E_NUMERIC, "all %d logits at position %d are -inf after the mask: no token is left",
                          n_vocab, in->position);
    *id_io = id;
    return GY_OK;
}

gy_status gy_sample_row(gy_sampler *s, int member, const gy_sample_in *in, gy_err *err, gy_sampled *out) {
    const gy_sample_params *p = in->p;
    const float *x = in->logits;
    gy_sampled o = {0};
    GY_CHECK(member >= 0 && member < s->n_member);
    scratch *m = &s->members[member];
    GY_TRY(gy_sample_params_check(p, err));
    GY_TRY(row_argmax(x, s->n_vocab, in->position, "", err, &o.id));
    float raw_top = x[o.id];
    if (row_changes(in) || (in->mask && p->temperature > 0)) {
        GY_TRY(row_change(m, in, err));
        x = m->x;
        GY_TRY(row_argmax(x, s->n_vocab, in->position, what_changed(in), err, &o.id));
    } else if (in->mask) {
        GY_TRY(choose_masked(in, s->n_vocab, err, &o.id));
    }
    if (p->temperature > 0) {
        uint64_t total = weigh_row(m, x, p, x[o.id]);
        o.id = draw(m, gy_mass_at(gy_sample_word(in), total));
    }
    if (p->n_logprobs >= 0) logprobs_fill(in->logits, s->n_vocab, raw_top, p->n_logprobs, &o);
    *out = o;
    return GY_OK;
}

gy_status gy_logprob_row(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top, int32_t position, gy_err *err,
                         gy_sampled *out) {
    gy_sampled o = {.id = id};
    int32_t best;
    if (id < 0 || id >= n_vocab)
        return gy_err_set(err, GY_E_ARG, "token at position %d: found %d; allowed 0 to %d (the vocabulary)", position,
                          id, n_vocab - 1);
    if (n_top < 0 || n_top > GY_MAX_LOGPROBS)
        return gy_err_set(err, GY_E_ARG, "logprobs: found %d; allowed 0 to %d", n_top, GY_MAX_LOGPROBS);
    GY_TRY(row_argmax(logits, n_vocab, position, "", err, &best));
    logprobs_fill(logits, n_vocab, logits[best], n_top, &o);
    *out = o;
    return GY_OK;
}
