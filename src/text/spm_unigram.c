/* SentencePiece's unigram model: the segmentation with the highest sum of piece scores (Viterbi over byte positions,
 * Kudo 2018, arXiv:1804.10959). Sums are float and in the library's order, because ties and near-ties are decided by
 * rounding: one best predecessor per position, replaced only by a strictly better one, pieces tried shortest first.
 *
 * Not here: sampling and n-best.
 */
#include "text/spm_int.h"

/* Sums are brought back to 0 beyond this, so that a long text does not lose the digits that decide. */
#define SCORE_RESET 100000.0f

static float piece_score(const gy_spm *m, int32_t id, size_t len) {
    if (m->type[id] != GY_SPM_USER_DEFINED) return m->score[id];
    return (float)(0.1 * ((int)len - 1)); /* above all normal ones, which are log probabilities */
}

static void best_offer(gy_spm_best *b, int32_t id, float score, size_t start) {
    if (b->start >= 0 && !(score > b->score)) return;
    *b = (gy_spm_best){id, score, (int32_t)start};
}

/* Shifts all open positions so that the one at `at` stands at 0. */
static void best_reset(gy_spm_scratch *s, size_t at, size_t frontier) {
    float offset = s->best.data[at].score;
    for (size_t i = at; i <= frontier; i++) {
        if (i == at || s->best.data[i].start >= 0) s->best.data[i].score -= offset;
    }
    s->steps += (int64_t)(frontier - at) + 1;
}

/* Offers every piece that starts at `at`. Returns the frontier: the furthest position with an offer. */
static size_t best_extend(const gy_spm *m, gy_spm_scratch *s, size_t at, size_t n_char, size_t frontier) {
    const char *text = s->norm.data;
    float till_here = s->best.data[at].score;
    int single = 0;
    uint32_t node = 0;
    size_t i = at;
    for (; i < s->norm.len && gy_spm_trie_step(&m->tree, &node, (uint8_t)text[i]); i++) {
        int32_t id = m->tree.node[node].id;
        if (id < 0) continue;
        size_t end = i + 1;
        if (end > frontier) frontier = end;
        best_offer(&s->best.data[end], id, piece_score(m, id, end - at) + till_here, at);
        single |= end - at == n_char;
    }
    s->steps += (int64_t)(i - at) + 1;
    if (single) return frontier;
    best_offer(&s->best.data[at + n_char], m->unk, m->unk_score + till_here, at);
    return at + n_char > frontier ? at + n_char : frontier;
}

static int best_forward(const gy_spm *m, gy_spm_scratch *s) {
    size_t len = s->norm.len, frontier = 0;
    s->best.len = 0;
    if (gy_vec_reserve(&s->best, GY_MEM_TEXT, len + 1)) return -1;
    for (size_t i = 0; i <= len; i++) s->best.data[i] = (gy_spm_best){-1, 0.0f, -1};
    for (size_t at = 0; at < len;) {
        float score = s->best.data[at].score;
        if (score < -SCORE_RESET || score > SCORE_RESET) best_reset(s, at, frontier);
        size_t n_char = gy_spm_char_len(s->norm.data + at, len - at);
        frontier = best_extend(m, s, at, n_char, frontier);
        at += n_char;
    }
    return 0;
}

static int best_backward(gy_spm_scratch *s) {
    for (size_t end = s->norm.len; end > 0;) {
        gy_spm_best b = s->best.data[end];
        gy_spm_span span = {(uint32_t)b.start, (uint32_t)(end - (size_t)b.start), b.id};
        if (gy_vec_push(&s->span, GY_MEM_TEXT, span)) return -1;
        end = (size_t)b.start;
    }
    for (size_t i = 0, j = s->span.len; i + 1 < j; i++) {
        gy_spm_span swap = s->span.data[i];
        s->span.data[i] = s->span.data[--j];
        s->span.data[j] = swap;
    }
    return 0;
}

gy_status gy_spm_encode_unigram(const gy_spm *m, gy_spm_scratch *s, gy_err *err) {
    s->span.len = 0;
    if (!s->norm.len) return GY_OK;
    if (best_forward(m, s) || best_backward(s)) {
        return gy_err_set(err, GY_E_NOMEM, "no memory to encode %zu bytes", s->norm.len);
    }
    return GY_OK;
}
