/* Byte pair encoding as PyPI's tokenizers does it: the piece's characters become symbols, then the pair of neighbours
 * with the lowest rank (leftmost of equals) is merged until no pair of the table is left.
 *
 * O(n log n): symbols are a doubly linked list in an array, candidates a binary heap. A candidate is not removed when
 * its symbols change; when it comes up, it is used if the pair now at its place still merges into the same token
 * (whatever its rank then: that is the reference's test), else dropped.
 *
 * Words are short and repeat: a small direct-mapped cache in the scratch keeps the ids of pieces up to CACHE_KEY bytes.
 */
#include "text/hf_int.h"

#include <string.h>

enum { MAX_PROBE = 128, MAX_GROW = 6, CACHE_SLOTS = 2048, CACHE_KEY = 28, CACHE_IDS = 8, N_DIRECT = 0x800 };
#define NO_PAIR UINT64_MAX

typedef struct pair_slot {
    uint64_t key; /* left id << 32 | right id; NO_PAIR = empty */
    uint32_t rank;
    int32_t merged;
} pair_slot;

struct gy_bpe {
    gy_vocab vocab;
    pair_slot *pair;
    size_t pair_mask, n_pair;
    gy_str unk, prefix, suffix; /* unk_token, continuing_subword_prefix, end_of_word_suffix; empty = none */
    int has_unk, fuse_unk, byte_fallback, ignore_merges;
    int32_t byte_id[256];      /* of "<0xHH>"; -1 = absent */
    int32_t char_id[N_DIRECT]; /* of single characters below U+0800; -1 = absent */
};

/* ---- the table of merges ---- */

static uint64_t pair_hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    key ^= key >> 32;
    key *= 0xD6E8FEB86659FD93u;
    return key ^ (key >> 29);
}

/* The pair's slot or the empty one where it would go; NULL if neither is within MAX_PROBE. */
static pair_slot *pair_find(const gy_bpe *b, uint64_t key) {
    size_t i = (size_t)pair_hash(key) & b->pair_mask;
    for (int n = 0; n < MAX_PROBE; n++, i = (i + 1) & b->pair_mask)
        if (b->pair[i].key == key || b->pair[i].key == NO_PAIR) return &b->pair[i];
    return NULL;
}

static const pair_slot *pair_get(const gy_bpe *b, int32_t left, int32_t right) {
    const pair_slot *p = pair_find(b, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return p && p->key != NO_PAIR ? p : NULL;
}

static int pairs_resize(gy_bpe *b, size_t n_slot) {
    pair_slot *old = b->pair, *fresh = gy_mem_alloc(GY_MEM_TEXT, n_slot, sizeof(*fresh));
    size_t n_old = old ? b->pair_mask + 1 : 0;
    if (!fresh) return -1;
    for (size_t i = 0; i < n_slot; i++) fresh[i].key = NO_PAIR;
    b->pair = fresh;
    b->pair_mask = n_slot - 1;
    int ok = 1;
    for (size_t i = 0; i < n_old && ok; i++) {
        if (old[i].key == NO_PAIR) continue;
        pair_slot *p = pair_find(b, old[i].key);
        if (p)
            *p = old[i];
        else
            ok = 0;
    }
    if (ok) {
        gy_mem_free(old);
        return 0;
    }
    gy_mem_free(fresh);
    b->pair = old;
    b->pair_mask = n_old - 1;
    return 1; /* a cluster: a larger table may do */
}

/* At most a few doublings beyond half load: a table made to collide is refused, never slow. */
static int pair_put(gy_bpe *b, uint64_t key, uint32_t rank, int32_t merged) {
    size_t n_slot = b->pair ? b->pair_mask + 1 : 0;
    int rc = 0;
    if (2 * (b->n_pair + 1) > n_slot && pairs_resize(b, n_slot ? 2 * n_slot : 1024) < 0) return -1;
    pair_slot *p = pair_find(b, key);
    for (int n = 0; !p && n < MAX_GROW; n++) {
        rc = pairs_resize(b, (b->pair_mask + 1) << (n + 1));
        if (rc < 0) return -1;
        p = rc ? NULL : pair_find(b, key);
    }
    if (!p) return 1;
    b->n_pair += p->key == NO_PAIR;
    *p = (pair_slot){key, rank, merged};
    return 0;
}

/* ---- reading ---- */

static gy_status no_memory(gy_err *err) {
    return gy_err_set(err, GY_E_NOMEM, "no memory for the vocabulary");
}

static gy_status vocab_read(const gy_jv *v, gy_err *err, gy_vocab *out) {
    if (gy_jv_type(v) != GY_J_OBJECT || gy_jv_len(v) == 0)
        return gy_err_set(err, GY_E_FORMAT, "vocab: expected an object with at least one piece, found %s",
                          gy_jtype_name(gy_jv_type(v)));
    for (void *it = gy_jv_first(v); it; it = gy_jv_next(v, it)) {
        size_t len = 0;
        const char *piece = gy_jv_key(it, &len);
        int64_t id = gy_jv_int(gy_jv_val(it), -1);
        if (id < 0 || id >= GY_VOCAB_MAX_ID)
            return gy_err_set(err, GY_E_FORMAT, "vocab: \"%.60s\" needs an id from 0 to %d", piece,
                              GY_VOCAB_MAX_ID - 1);
        int rc = gy_vocab_put(out, piece, len, (int32_t)id);
        if (rc < 0) return no_memory(err);
        if (rc > 0)
            return gy_err_set(err, GY_E_FORMAT, "vocab: \"%.60s\" and \"%.60s\" have the same id %d", piece,
                              gy_vocab_piece(out, (int32_t)id, NULL), (int)id);
    }
    return GY_OK;
}

static gy_status merge_put(gy_bpe *b, const char *left, size_t n_left, const char *right, size_t n_right, size_t rank,
                           gy_str *tmp, gy_err *err) {
    int32_t l = gy_vocab_get(&b->vocab, left, n_left), r = gy_vocab_get(&b->vocab, right, n_right);
    if (l < 0 || r < 0)
        return gy_err_set(err, GY_E_FORMAT, "merges[%zu]: \"%.*s\" is not in the vocabulary", rank,
                          (int)(l < 0 ? n_left : n_right), l < 0 ? left : right);
    size_t skip = b->prefix.len <= n_right ? b->prefix.len : n_right;
    gy_str_clear(tmp);
    gy_str_append(tmp, left, n_left);
    gy_str_append(tmp, right + skip, n_right - skip);
    if (tmp->failed) return no_memory(err);
    int32_t merged = gy_vocab_get(&b->vocab, gy_str_z(tmp), tmp->len);
    if (merged < 0)
        return gy_err_set(err, GY_E_FORMAT, "merges[%zu]: the result \"%.60s\" is not in the vocabulary", rank,
                          gy_str_z(tmp));
    int rc = pair_put(b, (uint64_t)(uint32_t)l << 32 | (uint32_t)r, (uint32_t)rank, merged);
    if (rc < 0) return no_memory(err);
    return rc ? gy_err_set(err, GY_E_FORMAT, "merges[%zu]: ids collide beyond what is accepted", rank) : GY_OK;
}

/* "left right", one blank between. */
static gy_status merge_line(gy_bpe *b, const char *s, size_t len, size_t rank, gy_str *tmp, gy_err *err) {
    const char *blank = memchr(s, ' ', len);
    if (!blank || memchr(blank + 1, ' ', len - (size_t)(blank + 1 - s)))
        return gy_err_set(err, GY_E_FORMAT, "merges[%zu]: \"%.*s\" is not two pieces with a blank between", rank,
                          (int)(len < 60 ? len : 60), s);
    size_t n_left = (size_t)(blank - s);
    return merge_put(b, s, n_left, blank + 1, len - n_left - 1, rank, tmp, err);
}

static gy_status merge_read(gy_bpe *b, const gy_jv *v, size_t rank, gy_str *tmp, gy_err *err) {
    size_t n_left = 0, n_right = 0;
    const char *line = gy_jv_str(v, &n_left);
    if (line) return merge_line(b, line, n_left, rank, tmp, err);
    const char *left = gy_jv_str(gy_jv_at(v, 0), &n_left), *right = gy_jv_str(gy_jv_at(v, 1), &n_right);
    if (!left || !right || gy_jv_len(v) != 2)
        return gy_err_set(err, GY_E_FORMAT, "merges[%zu]: expected \"left right\" or [\"left\", \"right\"]", rank);
    return merge_put(b, left, n_left, right, n_right, rank, tmp, err);
}

static gy_status merges_read(gy_bpe *b, const gy_jv *list, gy_err *err) {
    if (gy_jv_type(list) != GY_J_ARRAY)
        return gy_err_set(err, GY_E_FORMAT, "merges: expected an array, found %s", gy_jtype_name(gy_jv_type(list)));
    gy_str tmp = {0};
    gy_status st = GY_OK;
    for (size_t i = 0; st == GY_OK && i < gy_jv_len(list); i++) st = merge_read(b, gy_jv_at(list, i), i, &tmp, err);
    gy_str_free(&tmp);
    return st;
}

/* merges.txt: a line for each merge; "#version" lines do not count. */
static gy_status merges_read_lines(gy_bpe *b, const char *s, size_t len, gy_err *err) {
    static const char version[] = "#version";
    gy_str tmp = {0};
    gy_status st = GY_OK;
    size_t rank = 0;
    for (size_t i = 0; st == GY_OK && i < len;) {
        const char *line = s + i, *nl = memchr(line, '\n', len - i);
        size_t n = nl ? (size_t)(nl - line) : len - i;
        i += n + 1;
        if (n > 0 && line[n - 1] == '\r') n--;
        if (n == 0 || (n >= sizeof(version) - 1 && memcmp(line, version, sizeof(version) - 1) == 0)) continue;
        st = merge_line(b, line, n, rank++, &tmp, err);
    }
    gy_str_free(&tmp);
    return st;
}

static void tables_fill(gy_bpe *b) {
    for (uint32_t cp = 0; cp < N_DIRECT; cp++) {
        char s[2] = {(char)cp, 0};
        size_t n = 1;
        if (cp >= 0x80) {
            s[0] = (char)(0xC0 | (cp >> 6));
            s[1] = (char)(0x80 | (cp & 0x3F));
            n = 2;
        }
        b->char_id[cp] = gy_vocab_get(&b->vocab, s, n);
    }
    static const char hex[] = "0123456789ABCDEF";
    for (int i = 0; i < 256; i++) {
        char name[6] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        b->byte_id[i] = gy_vocab_get(&b->vocab, name, 6);
    }
}

static gy_status read_optional(const gy_jv *model, const char *key, gy_err *err, gy_str *out) {
    size_t len = 0;
    const gy_jv *v = gy_jv_get(model, key);
    const char *s = gy_jv_str(v, &len);
    if (!s && gy_jv_type(v) != GY_J_NULL && gy_jv_type(v) != GY_J_NONE)
        return gy_err_set(err, GY_E_FORMAT, "%s: expected a string or null, found %s", key,
                          gy_jtype_name(gy_jv_type(v)));
    if (s) gy_str_append(out, s, len);
    return out->failed ? no_memory(err) : GY_OK;
}

static gy_status bpe_read_fields(gy_bpe *b, const gy_jv *model, gy_err *err) {
    if (gy_jv_num(gy_jv_get(model, "dropout"), 0) != 0)
        return gy_err_set(err, GY_E_UNSUPPORTED, "dropout is not supported: its ids are random");
    GY_TRY(read_optional(model, "unk_token", err, &b->unk));
    GY_TRY(read_optional(model, "continuing_subword_prefix", err, &b->prefix));
    GY_TRY(read_optional(model, "end_of_word_suffix", err, &b->suffix));
    b->has_unk = gy_jv_type(gy_jv_get(model, "unk_token")) == GY_J_STRING;
    b->fuse_unk = gy_jv_bool(gy_jv_get(model, "fuse_unk"), 0);
    b->byte_fallback = gy_jv_bool(gy_jv_get(model, "byte_fallback"), 0);
    b->ignore_merges = gy_jv_bool(gy_jv_get(model, "ignore_merges"), 0);
    GY_TRY(vocab_read(gy_jv_get(model, "vocab"), err, &b->vocab));
    return merges_read(b, gy_jv_get(model, "merges"), err);
}

static gy_status bpe_create(gy_err *err, gy_bpe **out) {
    gy_bpe *b = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*b));
    if (!b || pairs_resize(b, 1024) < 0) {
        gy_bpe_destroy(b);
        return no_memory(err);
    }
    *out = b;
    return GY_OK;
}

gy_status gy_bpe_read(const gy_jv *model, gy_err *err, gy_bpe **out) {
    gy_bpe *b;
    GY_TRY(bpe_create(err, &b));
    gy_status st = bpe_read_fields(b, model, err);
    if (st < 0) {
        gy_bpe_destroy(b);
        return st;
    }
    tables_fill(b);
    *out = b;
    return GY_OK;
}

gy_status gy_bpe_read_gpt2(const gy_jv *vocab, const char *merges, size_t merges_len, gy_err *err, gy_bpe **out) {
    gy_bpe *b;
    GY_TRY(bpe_create(err, &b));
    gy_status st = vocab_read(vocab, err, &b->vocab);
    if (st == GY_OK) st = merges_read_lines(b, merges, merges_len, err);
    if (st < 0) {
        gy_bpe_destroy(b);
        return st;
    }
    tables_fill(b);
    *out = b;
    return GY_OK;
}

void gy_bpe_destroy(gy_bpe *b) {
    if (!b) return;
    gy_vocab_fini(&b->vocab);
    gy_mem_free(b->pair);
    gy_str_free(&b->unk);
    gy_str_free(&b->prefix);
    gy_str_free(&b->suffix);
    gy_mem_free(b);
}

const gy_vocab *gy_bpe_vocab(const gy_bpe *b) {
    return &b->vocab;
}

/* ---- scratch ---- */

typedef struct symbol {
    int32_t id;         /* -1 once it was merged into its left neighbour */
    int32_t prev, next; /* -1 = none */
} symbol;

typedef struct candidate {
    uint32_t rank;
    int32_t pos; /* the left symbol */
    int32_t merged;
} candidate;

typedef struct cache_entry {
    uint64_t hash; /* 0 = empty */
    unsigned char key_len, n_id;
    char key[CACHE_KEY];
    int32_t id[CACHE_IDS];
} cache_entry;

struct gy_bpe_scratch {
    GY_VEC(symbol) sym;
    GY_VEC(candidate) heap;
    gy_str spelled; /* a character with its prefix or suffix */
    cache_entry *cache;
};

gy_status gy_bpe_scratch_create(gy_bpe_scratch **out) {
    gy_bpe_scratch *s = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*s));
    if (s) s->cache = gy_mem_alloc(GY_MEM_TEXT, CACHE_SLOTS, sizeof(*s->cache));
    if (!s || !s->cache) {
        gy_bpe_scratch_destroy(s);
        return GY_E_NOMEM;
    }
    *out = s;
    return GY_OK;
}

void gy_bpe_scratch_destroy(gy_bpe_scratch *s) {
    if (!s) return;
    gy_vec_free(&s->sym);
    gy_vec_free(&s->heap);
    gy_str_free(&s->spelled);
    gy_mem_free(s->cache);
    gy_mem_free(s);
}

/* ---- the heap: lowest rank first, leftmost of equals ---- */

static int candidate_before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static int heap_push(gy_bpe_scratch *s, candidate c, int64_t *steps) {
    if (gy_vec_push(&s->heap, GY_MEM_TEXT, c)) return -1;
    candidate *h = s->heap.data;
    size_t i = s->heap.len - 1;
    for (++*steps; i > 0 && candidate_before(&c, &h[(i - 1) / 2]); ++*steps) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = c;
    return 0;
}

static candidate heap_pop(gy_bpe_scratch *s, int64_t *steps) {
    candidate *h = s->heap.data, top = h[0], last = h[--s->heap.len];
    size_t n = s->heap.len, i = 0;
    for (++*steps;; ++*steps) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && candidate_before(&h[child + 1], &h[child])) child++;
        if (!candidate_before(&h[child], &last)) break;
        h[i] = h[child];
        i = child;
    }
    if (n > 0) h[i] = last;
    return top;
}

/* ---- a piece to symbols ---- */

static gy_status symbol_add(gy_bpe_scratch *s, int32_t id) {
    int32_t n = (int32_t)s->sym.len;
    if (gy_vec_push(&s->sym, GY_MEM_TEXT, ((symbol){id, n - 1, n + 1}))) return GY_E_NOMEM;
    return GY_OK;
}

/* The spelling under which a character is in the vocabulary, and its id or -1. */
static int32_t char_lookup(const gy_bpe *b, gy_bpe_scratch *s, const char *c, size_t n, int is_first, int is_last,
                           const char **spelled, size_t *spelled_len) {
    int with_prefix = !is_first && b->prefix.len, with_suffix = is_last && b->suffix.len;
    *spelled = c;
    *spelled_len = n;
    if (!with_prefix && !with_suffix) {
        unsigned char lead = (unsigned char)c[0];
        if (n == 1) return b->char_id[lead];
        if (n == 2) return b->char_id[(uint32_t)(lead & 0x1F) << 6 | ((unsigned char)c[1] & 0x3F)];
        return gy_vocab_get(&b->vocab, c, n);
    }
    gy_str_clear(&s->spelled);
    if (with_prefix) gy_str_append(&s->spelled, b->prefix.data, b->prefix.len);
    gy_str_append(&s->spelled, c, n);
    if (with_suffix) gy_str_append(&s->spelled, b->suffix.data, b->suffix.len);
    *spelled = gy_str_z(&s->spelled);
    *spelled_len = s->spelled.len;
    return gy_vocab_get(&b->vocab, *spelled, *spelled_len);
}

static int has_all_bytes(const gy_bpe *b, const char *s, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(unsigned char)s[i]] < 0) return 0;
    return 1;
}

/* An unknown token waits in *unk (-1 = none): with fuse_unk it swallows its unknown neighbours. Byte tokens go in
 * front of a waiting one, as in tokenizers. A character that nothing stands for is dropped when there is no unk_token.
 */
static gy_status char_to_symbols(const gy_bpe *b, gy_bpe_scratch *s, int32_t id, const char *spelled, size_t len,
                                 int32_t *unk, gy_err *err) {
    if (id >= 0) {
        if (*unk >= 0) GY_TRY(symbol_add(s, *unk));
        *unk = -1;
        return symbol_add(s, id);
    }
    if (b->byte_fallback && has_all_bytes(b, spelled, len)) {
        for (size_t i = 0; i < len; i++) GY_TRY(symbol_add(s, b->byte_id[(unsigned char)spelled[i]]));
        return GY_OK;
    }
    if (!b->has_unk) return GY_OK;
    int32_t unk_id = gy_vocab_get(&b->vocab, gy_str_z(&b->unk), b->unk.len);
    if (unk_id < 0)
        return gy_err_set(err, GY_E_ARG,
                          "the text has a character without a token, and unk_token \"%s\" is not in "
                          "the vocabulary",
                          gy_str_z(&b->unk));
    if (*unk >= 0 && !b->fuse_unk) GY_TRY(symbol_add(s, *unk));
    *unk = unk_id;
    return GY_OK;
}

static gy_status piece_to_symbols(const gy_bpe *b, gy_bpe_scratch *s, const char *piece, size_t len, gy_err *err) {
    int32_t unk = -1;
    s->sym.len = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = (size_t)gy_utf8_decode(piece + i, len - i, &cp), spelled_len;
        const char *spelled;
        int32_t id = char_lookup(b, s, piece + i, n, i == 0, i + n == len, &spelled, &spelled_len);
        GY_TRY(char_to_symbols(b, s, id, spelled, spelled_len, &unk, err));
        i += n;
    }
    if (unk >= 0) GY_TRY(symbol_add(s, unk));
    if (s->sym.len) s->sym.data[s->sym.len - 1].next = -1;
    return s->spelled.failed ? GY_E_NOMEM : GY_OK;
}

/* ---- merging ---- */

static gy_status offer_pair(const gy_bpe *b, gy_bpe_scratch *s, int32_t left, int32_t right, int64_t *steps) {
    const pair_slot *p = pair_get(b, s->sym.data[left].id, s->sym.data[right].id);
    ++*steps;
    if (p && heap_push(s, (candidate){p->rank, left, p->merged}, steps)) return GY_E_NOMEM;
    return GY_OK;
}

static gy_status merge_at(const gy_bpe *b, gy_bpe_scratch *s, const candidate *c, int64_t *steps) {
    symbol *left = &s->sym.data[c->pos];
    if (left->id < 0 || left->next < 0) return GY_OK;
    symbol *right = &s->sym.data[left->next];
    const pair_slot *p = pair_get(b, left->id, right->id);
    if (!p || p->merged != c->merged) return GY_OK; /* the pair that was offered is gone */
    left->id = c->merged;
    left->next = right->next;
    right->id = -1;
    if (right->next >= 0) s->sym.data[right->next].prev = c->pos;
    if (left->prev >= 0) GY_TRY(offer_pair(b, s, left->prev, c->pos, steps));
    return left->next >= 0 ? offer_pair(b, s, c->pos, left->next, steps) : GY_OK;
}

static gy_status merge_all(const gy_bpe *b, gy_bpe_scratch *s, int64_t *steps) {
    s->heap.len = 0;
    for (size_t i = 0; i + 1 < s->sym.len; i++) GY_TRY(offer_pair(b, s, (int32_t)i, (int32_t)i + 1, steps));
    while (s->heap.len) {
        candidate c = heap_pop(s, steps);
        GY_TRY(merge_at(b, s, &c, steps));
    }
    return GY_OK;
}

/* ---- cache ---- */

static cache_entry *cache_slot(gy_bpe_scratch *s, uint64_t h) {
    return &s->cache[h % CACHE_SLOTS];
}

static int cache_has(const cache_entry *e, uint64_t h, const char *piece, size_t len) {
    return e->hash == h && e->key_len == len && memcmp(e->key, piece, len) == 0;
}

static void cache_put(cache_entry *e, uint64_t h, const char *piece, size_t len, const int32_t *ids, size_t n) {
    if (n > CACHE_IDS) return;
    e->hash = h;
    e->key_len = (unsigned char)len;
    e->n_id = (unsigned char)n;
    memcpy(e->key, piece, len);
    memcpy(e->id, ids, n * sizeof(*ids));
}

static gy_status ids_append(gy_vec_i32 *ids, const int32_t *from, size_t n) {
    if (gy_vec_reserve(ids, GY_MEM_TEXT, n)) return GY_E_NOMEM;
    for (size_t i = 0; i < n; i++) ids->data[ids->len++] = from[i];
    return GY_OK;
}

static gy_status encode_uncached(const gy_bpe *b, gy_bpe_scratch *s, const char *piece, size_t len, int64_t *steps,
                                 gy_err *err, gy_vec_i32 *ids) {
    *steps += (int64_t)len;
    GY_TRY(piece_to_symbols(b, s, piece, len, err));
    GY_TRY(merge_all(b, s, steps));
    if (gy_vec_reserve(ids, GY_MEM_TEXT, s->sym.len)) return GY_E_NOMEM;
    for (int32_t i = s->sym.len ? 0 : -1; i >= 0; i = s->sym.data[i].next) ids->data[ids->len++] = s->sym.data[i].id;
    return GY_OK;
}

static gy_status bpe_encode(const gy_bpe *b, gy_bpe_scratch *s, const char *piece, size_t len, int64_t *steps,
                            gy_err *err, gy_vec_i32 *ids) {
    int32_t whole = b->ignore_merges ? gy_vocab_get(&b->vocab, piece, len) : -1;
    if (whole >= 0) return ids_append(ids, &whole, 1);
    if (len > CACHE_KEY) return encode_uncached(b, s, piece, len, steps, err, ids);
    uint64_t h = gy_bytes_hash(piece, len, 0) | 1;
    cache_entry *e = cache_slot(s, h >> 1);
    ++*steps;
    if (cache_has(e, h, piece, len)) return ids_append(ids, e->id, e->n_id);
    size_t before = ids->len;
    GY_TRY(encode_uncached(b, s, piece, len, steps, err, ids));
    if (ids->len > before) cache_put(e, h, piece, len, ids->data + before, ids->len - before);
    return GY_OK;
}

gy_status gy_bpe_encode(const gy_bpe *b, gy_bpe_scratch *s, const char *piece, size_t len, int64_t *steps, gy_err *err,
                        gy_vec_i32 *ids) {
    if (len > INT32_MAX / 2) return gy_err_set(err, GY_E_LIMIT, "a piece of %zu bytes is too long to tokenise", len);
    gy_status st = bpe_encode(b, s, piece, len, steps, err, ids);
    return st == GY_E_NOMEM ? gy_err_set(err, st, "no memory while tokenising") : st;
}
