/* SentencePiece's BPE: characters (and user-defined pieces, which never merge) are joined in pairs, highest score
 * first, leftmost among equals, as long as some pair spells a piece. O(n log n): a heap of candidate pairs, stale ones
 * dropped when popped. Unused pieces take part in merging and are cut again afterwards, where their last merge joined.
 *
 * Not here: BPE dropout.
 */
#include "text/spm_int.h"

#include <string.h>

#define MAX_RESEGMENT_DEPTH 100 /* sentencepiece's bound; deeper ones stay whole */

/* Orders floats by their bits, so that -0 < +0 and NaN have a place too: sentencepiece compares bits as well. */
static uint32_t score_order(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

static uint64_t pair_key(float score, uint32_t left) {
    return (uint64_t)score_order(score) << 32 | (uint32_t)~left;
}
static uint32_t pair_left(const gy_spm_pair *p) {
    return ~(uint32_t)p->key;
}

static void heap_sift_down(gy_spm_scratch *s, size_t at) {
    gy_spm_pair *h = s->heap.data, moving = h[at];
    size_t n = s->heap.len;
    for (;;) {
        size_t child = 2 * at + 1;
        s->steps++;
        if (child >= n) break;
        if (child + 1 < n && h[child + 1].key > h[child].key) child++;
        if (h[child].key <= moving.key) break;
        h[at] = h[child];
        at = child;
    }
    h[at] = moving;
}

static int heap_push(gy_spm_scratch *s, gy_spm_pair p) {
    if (gy_vec_push(&s->heap, GY_MEM_TEXT, p)) return -1;
    gy_spm_pair *h = s->heap.data;
    size_t at = s->heap.len - 1;
    for (; at && h[(at - 1) / 2].key < p.key; at = (at - 1) / 2) {
        h[at] = h[(at - 1) / 2];
        s->steps++;
    }
    h[at] = p;
    return 0;
}

static gy_spm_pair heap_pop(gy_spm_scratch *s) {
    gy_spm_pair top = s->heap.data[0];
    s->heap.data[0] = s->heap.data[--s->heap.len];
    if (s->heap.len) heap_sift_down(s, 0);
    return top;
}

/* The candidate that joins two neighbours: 1 and *out, or 0 if together they spell no piece. */
static int pair_make(const gy_spm *m, gy_spm_scratch *s, int32_t left, int32_t right, gy_spm_pair *out) {
    if (left < 0 || right < 0) return 0;
    const gy_spm_symbol *a = &s->symbol.data[left], *b = &s->symbol.data[right];
    uint32_t len = a->len + b->len;
    if (a->frozen || b->frozen || len > m->max_plain_len) return 0;
    s->steps++;
    int32_t id = gy_vocab_get(&m->plain, s->norm.data + a->off, len);
    if (id < 0) return 0;
    if (m->type[id] == GY_SPM_UNUSED) s->split[id] = (gy_spm_split){s->epoch, a->len};
    *out = (gy_spm_pair){pair_key(m->score[id], (uint32_t)left), (uint32_t)right, len};
    return 1;
}

static int symbols_make(const gy_spm *m, gy_spm_scratch *s) {
    s->symbol.len = 0;
    size_t len = s->norm.len;
    for (size_t i = 0; i < len;) {
        size_t n = gy_spm_user_match(m, s->norm.data + i, len - i, &s->steps);
        uint8_t frozen = n > 0;
        if (!n) n = gy_spm_char_len(s->norm.data + i, len - i);
        int32_t at = (int32_t)s->symbol.len;
        gy_spm_symbol sym = {(uint32_t)i, (uint32_t)n, at - 1, i + n < len ? at + 1 : -1, frozen};
        if (gy_vec_push(&s->symbol, GY_MEM_TEXT, sym)) return -1;
        i += n;
        s->steps++;
    }
    return 0;
}

static int pairs_make(const gy_spm *m, gy_spm_scratch *s) {
    s->heap.len = 0;
    for (size_t i = 1; i < s->symbol.len; i++) {
        gy_spm_pair p;
        if (pair_make(m, s, (int32_t)i - 1, (int32_t)i, &p) && gy_vec_push(&s->heap, GY_MEM_TEXT, p)) return -1;
    }
    for (size_t i = s->heap.len / 2; i-- > 0;) heap_sift_down(s, i);
    return 0;
}

/* Two live symbols of the recorded length are the recorded pair: a symbol only grows by swallowing its right
 * neighbour, which then has length 0. */
static int pair_is_live(const gy_spm_scratch *s, const gy_spm_pair *p) {
    uint32_t a = s->symbol.data[pair_left(p)].len, b = s->symbol.data[p->right].len;
    return a && b && a + b == p->len;
}

static int pairs_merge(const gy_spm *m, gy_spm_scratch *s) {
    while (s->heap.len) {
        gy_spm_pair p = heap_pop(s), fresh;
        if (!pair_is_live(s, &p)) continue;
        int32_t at = (int32_t)pair_left(&p);
        gy_spm_symbol *a = &s->symbol.data[at], *b = &s->symbol.data[p.right];
        a->len += b->len;
        a->next = b->next;
        if (b->next >= 0) s->symbol.data[b->next].prev = at;
        b->len = 0;
        if (pair_make(m, s, a->prev, at, &fresh) && heap_push(s, fresh)) return -1;
        if (pair_make(m, s, at, a->next, &fresh) && heap_push(s, fresh)) return -1;
    }
    return 0;
}

static int span_put(gy_spm_scratch *s, uint32_t off, uint32_t len, int32_t id) {
    gy_spm_span span = {off, len, id};
    return gy_vec_push(&s->span, GY_MEM_TEXT, span);
}

static int span_resegment(const gy_spm *m, gy_spm_scratch *s, uint32_t off, uint32_t len, int depth) {
    s->steps++;
    int32_t id = gy_spm_id(m, s->norm.data + off, len);
    if (id < 0) return span_put(s, off, len, m->unk);
    if (depth > MAX_RESEGMENT_DEPTH) return span_put(s, off, len, id);
    if (m->type[id] != GY_SPM_UNUSED) {
        int plain = m->type[id] == GY_SPM_NORMAL || m->type[id] == GY_SPM_USER_DEFINED;
        return span_put(s, off, len, plain ? id : m->unk); /* text never becomes a control piece */
    }
    if (s->split[id].epoch != s->epoch) return span_put(s, off, len, m->unk); /* a single character */
    uint32_t left = s->split[id].left_len;
    if (span_resegment(m, s, off, left, depth + 1)) return -1;
    return span_resegment(m, s, off + left, len - left, depth + 1);
}

gy_status gy_spm_encode_bpe(const gy_spm *m, gy_spm_scratch *s, gy_err *err) {
    s->span.len = 0;
    if (!s->norm.len) return GY_OK;
    if (++s->epoch == 0) { /* wrapped: old marks would look fresh */
        if (s->split) memset(s->split, 0, (size_t)m->n_piece * sizeof *s->split);
        s->epoch = 1;
    }
    int failed = symbols_make(m, s) || pairs_make(m, s) || pairs_merge(m, s);
    for (int32_t i = 0; !failed && i >= 0; i = s->symbol.data[i].next) {
        failed = span_resegment(m, s, s->symbol.data[i].off, s->symbol.data[i].len, 0);
    }
    return failed ? gy_err_set(err, GY_E_NOMEM, "no memory to encode %zu bytes", s->norm.len) : GY_OK;
}
