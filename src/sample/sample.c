/* Logits to token, one row at a time: the order of sample.h, on weights w_i = exp((x_i - max x) / temperature) in f64.
 * The largest weight is exactly 1, no weight overflows whatever the logits and the temperature are, and a filter is
 * nothing but weights that become 0; the draw then walks all tokens in ascending order, where zeros change no sum.
 *
 *   total of top-p   sum of the weights that top-k left, ascending id
 *   prefix of top-p  sums in descending order of logit (ties: lower id first), kept up to and with the first one that
 *                    is >= top_p * total
 *   min-p            w_i >= min_p, because the largest is 1
 *
 * Only as many tokens are put in order as are kept: a heap is built in O(n_vocab) and popped. A full sort of 166k
 * tokens happens only when top-k or top-p really keep nearly all of them. Penalties, grammars and stop strings are not
 * done here: whoever wants a token out sets its logit to -inf first.
 */
#include "sample/sample.h"

#include "base/mem.h"
#include "base/philox.h"

#include <math.h>
#include <stddef.h>

typedef struct cand {
    float x;
    int32_t id;
} cand;

/* Engine lifetime, one thread. */
struct gy_sampler {
    int32_t n_vocab;
    cand *heap; /* [n_vocab] */
    double *w;  /* [n_vocab] weights of the row at hand; 0 = out */
};

void gy_sample_params_default(gy_sample_params *p) {
    *p = (gy_sample_params){.top_p = 1.0f, .n_logprobs = -1};
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
    return GY_OK;
}

gy_status gy_sampler_create(int32_t n_vocab, gy_sampler **out) {
    if (n_vocab < 1) return GY_E_ARG;
    gy_sampler *s = gy_mem_alloc(GY_MEM_SAMPLE, 1, sizeof *s);
    if (!s) return GY_E_NOMEM;
    s->n_vocab = n_vocab;
    s->heap = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *s->heap);
    s->w = gy_mem_alloc(GY_MEM_SAMPLE, (size_t)n_vocab, sizeof *s->w);
    if (!s->heap || !s->w) {
        gy_sampler_destroy(s);
        return GY_E_NOMEM;
    }
    *out = s;
    return GY_OK;
}

void gy_sampler_destroy(gy_sampler *s) {
    if (!s) return;
    gy_mem_free(s->w);
    gy_mem_free(s->heap);
    gy_mem_free(s);
}

/* ---- the row ---- */

/* The largest logit, the lowest id among equals. */
static gy_status row_argmax(const float *x, int32_t n, int32_t position, gy_err *err, int32_t *id_out) {
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i]) || x[i] == INFINITY)
            return gy_err_set(err, GY_E_NUMERIC, "logit of token %d at position %d is %s", i, position,
                              isnan(x[i]) ? "NaN" : "+inf");
        if (x[i] > x[best]) best = i;
    }
    if (x[best] == -INFINITY)
        return gy_err_set(err, GY_E_NUMERIC, "all %d logits at position %d are -inf: no token is left", n, position);
    *id_out = best;
    return GY_OK;
}

static double weight(float x, float top, float temperature) {
    return exp(((double)x - top) / temperature);
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

/* All tokens that are not masked; returns their number. */
static int32_t heap_build(cand *h, const float *x, int32_t n_vocab) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (x[i] != -INFINITY) h[n++] = (cand){x[i], i};
    for (int32_t at = n / 2; at-- > 0;) heap_sift(h, n, at);
    return n;
}

/* Moves the top to h[n - 1] and leaves a heap of n - 1: popped tokens lie behind the heap, in order from its end. */
static cand heap_pop(cand *h, int32_t n) {
    cand top = h[0];
    h[0] = h[n - 1];
    h[n - 1] = top;
    heap_sift(h, n - 1, 0);
    return top;
}

/* ---- filters ---- */

static void weigh_all(gy_sampler *s, const float *x, float top, float temperature) {
    for (int32_t i = 0; i < s->n_vocab; i++) s->w[i] = weight(x[i], top, temperature);
}

/* Weighs the k first of the heap and all that equal the k-th; 0 < k < n. Returns what is left in the heap. */
static int32_t weigh_top_k(gy_sampler *s, int32_t n, int32_t k, float top, float temperature) {
    float kth = top;
    for (int32_t i = 0; i < s->n_vocab; i++) s->w[i] = 0;
    for (int32_t i = 0; n > 0 && (i < k || s->heap[0].x == kth); i++, n--) {
        cand c = heap_pop(s->heap, n);
        kth = c.x;
        s->w[c.id] = weight(c.x, top, temperature);
    }
    return n;
}

static double weight_sum(const gy_sampler *s) {
    double sum = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) sum += s->w[i];
    return sum;
}

/* Cuts the order after the token whose prefix reaches p; when rounding keeps every prefix below it, all stay. The
 * tokens that are in are heap[low..end): already popped by top-k (sorted), or a heap still (low = 0). */
static void filter_top_p(gy_sampler *s, int32_t low, int32_t end, int sorted, float p) {
    double due = p * weight_sum(s), sum = 0;
    int32_t at = end;
    while (at > low && sum < due) {
        cand c = sorted ? s->heap[at - 1] : heap_pop(s->heap, at);
        sum += s->w[c.id];
        at--;
    }
    for (int32_t i = low; i < at; i++) s->w[s->heap[i].id] = 0;
}

static void filter_min_p(gy_sampler *s, float min_p) {
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->w[i] < min_p) s->w[i] = 0;
}

static void weigh_row(gy_sampler *s, const float *x, const gy_sample_params *p, float top) {
    int use_k = p->top_k > 0 && p->top_k < s->n_vocab, use_p = p->top_p < 1;
    int32_t end = use_k || use_p ? heap_build(s->heap, x, s->n_vocab) : 0, low = 0;
    use_k = use_k && p->top_k < end;
    if (use_k)
        low = weigh_top_k(s, end, p->top_k, top, p->temperature);
    else
        weigh_all(s, x, top, p->temperature);
    if (use_p) filter_top_p(s, low, end, use_k, p->top_p);
    if (p->min_p > 0) filter_min_p(s, p->min_p);
}

/* u < 1 makes u * total < total in f64, so a token is found before the end. */
static int32_t draw(const gy_sampler *s, const gy_sample_params *p, int32_t position) {
    uint32_t r[4];
    double sum = 0;
    int32_t id = 0;
    gy_rand_block(p->seed, p->choice, (uint32_t)position, GY_RAND_SAMPLE, 0, r);
    double due = gy_rand_unit_f64(r[0], r[1]) * weight_sum(s);
    for (; id < s->n_vocab - 1; id++) {
        sum += s->w[id];
        if (sum > due) break;
    }
    return id;
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

static void logprobs_fill(const float *x, int32_t n_vocab, float top, int32_t n, gy_sampled *o) {
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)x[i] - top);
    double log_sum = log(sum);
    o->logprob = (float)((double)x[o->id] - top - log_sum);
    top_find(x, n_vocab, n, o);
    for (int32_t i = 0; i < o->n_top; i++) o->top_logprob[i] = (float)((double)x[o->top_id[i]] - top - log_sum);
}

gy_status gy_sample_row(gy_sampler *s, const float *logits, const gy_sample_params *p, int32_t position, gy_err *err,
                        gy_sampled *out) {
    gy_sampled o = {0};
    GY_TRY(gy_sample_params_check(p, err));
    GY_TRY(row_argmax(logits, s->n_vocab, position, err, &o.id));
    float top = logits[o.id];
    if (p->temperature > 0) {
        weigh_row(s, logits, p, top);
        o.id = draw(s, p, position);
    }
    if (p->n_logprobs >= 0) logprobs_fill(logits, s->n_vocab, top, p->n_logprobs, &o);
    *out = o;
    return GY_OK;
}
