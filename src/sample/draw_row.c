/* A row of logits on its way through a backend that samples: what it wants as plain data (base/draw.h), and what came
 * back as what the host sampler gives. Deliberately not here: which rows go that way (the engine's).
 */
#include "base/philox.h"
#include "sample/sample_int.h"

#include <string.h>

uint64_t gy_sample_word(const gy_sample_in *in) {
    uint32_t r[4];
    gy_rand_block(in->p->seed, in->p->choice, (uint32_t)in->position, GY_RAND_SAMPLE, 0, r);
    return gy_draw_word(r[0], r[1]);
}

static size_t padded(size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

static size_t mask_bytes(int32_t n_vocab) {
    return (size_t)(n_vocab + 31) / 32 * sizeof(uint32_t);
}

static size_t n_counted(const gy_sample_in *in) {
    size_t n = 0;
    if (gy_sample_needs_counts(in->p)) gy_counts_list(in->counts, &n);
    return n;
}

size_t gy_sample_pack_bytes(const gy_sample_in *in, int32_t n_vocab) {
    return padded((size_t)in->n_ban * sizeof *in->ban) + (size_t)in->p->n_bias * sizeof(gy_draw_pair) +
           n_counted(in) * sizeof(gy_draw_pair) + (in->mask ? padded(mask_bytes(n_vocab)) : 0);
}

static uint32_t put_bytes(void *base, size_t *at, const void *src, size_t bytes) {
    size_t begin = *at;
    if (bytes) memcpy((char *)base + begin, src, bytes);
    *at += padded(bytes);
    return (uint32_t)begin;
}

static void put_bias(const gy_sample_in *in, gy_draw_pair *to) {
    for (int32_t i = 0; i < in->p->n_bias; i++) to[i] = (gy_draw_pair){in->p->bias[i].id, {.f = in->p->bias[i].bias}};
}

static void put_counts(const gy_sample_in *in, gy_draw_pair *to) {
    size_t n;
    const gy_count *c = gy_counts_list(in->counts, &n);
    for (size_t i = 0; i < n; i++) to[i] = (gy_draw_pair){c[i].id, {.i = c[i].n_out}};
}

/* Greedy rows take no random number: a Philox block costs more than all else here. */
void gy_sample_pack(const gy_sample_in *in, int32_t n_vocab, void *base, size_t at, gy_draw_row *row_out) {
    const gy_sample_params *p = in->p;
    gy_draw_row row = {.word = p->temperature > 0 ? gy_sample_word(in) : 0,
                       .temperature = p->temperature,
                       .top_k = p->top_k,
                       .top_p = p->top_p,
                       .min_p = p->min_p,
                       .repetition = p->repetition_penalty,
                       .frequency = p->frequency_penalty,
                       .presence = p->presence_penalty,
                       .id = -1,
                       .n_top = p->n_logprobs,
                       .n_ban = in->n_ban,
                       .n_bias = p->n_bias,
                       .n_count = (int32_t)n_counted(in)};
    row.bias = (uint32_t)at;
    put_bias(in, (gy_draw_pair *)((char *)base + at));
    at += (size_t)p->n_bias * sizeof(gy_draw_pair);
    row.count = (uint32_t)at;
    if (row.n_count) put_counts(in, (gy_draw_pair *)((char *)base + at));
    at += (size_t)row.n_count * sizeof(gy_draw_pair);
    row.ban = put_bytes(base, &at, in->ban, (size_t)in->n_ban * sizeof *in->ban);
    if (in->mask) row.mask = put_bytes(base, &at, in->mask, mask_bytes(n_vocab));
    *row_out = row;
}

void gy_sample_pack_known(int32_t id, int32_t n_top, gy_draw_row *row_out) {
    *row_out = (gy_draw_row){.id = id, .n_top = n_top};
}

void gy_sample_unpack(const gy_drawn *d, int32_t n_logprobs, int32_t n_vocab, gy_sampled *out) {
    gy_sampled o = {.id = d->id};
    if (n_logprobs >= 0) {
        o.logprob = gy_logprob_of(d->x, d->top, d->mass, n_vocab);
        o.n_top = d->n_top;
        for (int32_t i = 0; i < o.n_top; i++) {
            o.top_id[i] = d->top_id[i];
            o.top_logprob[i] = gy_logprob_of(d->top_x[i], d->top, d->mass, n_vocab);
        }
    }
    *out = o;
}
