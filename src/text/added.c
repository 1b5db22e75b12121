/* Added tokens: which ids have them, and cutting text at their spellings as PyPI's tokenizers 0.23 does.
 *
 * Matching is leftmost, then longest, without overlap, over a byte trie: a text costs at most its length times the
 * longest spelling (bounded by MAX_CONTENT). A match that is then refused (single_word, a special token that must stay
 * text) has still consumed its bytes: that is how tokenizers behaves.
 */
#include "text/tok_int.h"

#include "text/unicode.h"

#include <string.h>

enum { MAX_CONTENT = 4096 };

typedef struct trie_node {
    int32_t child, sibling; /* indices, 0 = none (the root is nobody's child) */
    int32_t token;          /* index of the added token that ends here, -1 = none */
    unsigned char byte;
} trie_node;

typedef struct trie {
    GY_VEC(trie_node) node; /* [0] is the root and has no children of its own: see first */
    int32_t first[256];     /* children of the root by byte, 0 = none */
} trie;

typedef struct added_token {
    int32_t id;
    unsigned flags;
    gy_str normal; /* the spelling to look for in normalised text, and the one that is decoded; empty = never found */
    int has_normal;
} added_token;

struct gy_added {
    gy_vocab spelling; /* content <-> index into tok */
    GY_VEC(added_token) tok;
    gy_vec_i32 by_id; /* indices into tok, sorted by id */
    trie raw, normal;
};

gy_added *gy_added_create(void) {
    return gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(gy_added));
}

void gy_added_destroy(gy_added *a) {
    if (!a) return;
    for (size_t i = 0; i < a->tok.len; i++) gy_str_free(&a->tok.data[i].normal);
    gy_vocab_fini(&a->spelling);
    gy_vec_free(&a->tok);
    gy_vec_free(&a->by_id);
    gy_vec_free(&a->raw.node);
    gy_vec_free(&a->normal.node);
    gy_mem_free(a);
}

/* Position in by_id of the first id >= id. */
static size_t added_lower(const gy_added *a, int32_t id) {
    size_t lo = 0, n = a->by_id.len;
    while (n > 0) {
        size_t half = n / 2;
        if (a->tok.data[a->by_id.data[lo + half]].id < id) {
            lo += half + 1;
            n -= half + 1;
        } else
            n = half;
    }
    return lo;
}

static int32_t added_index(const gy_added *a, int32_t id) {
    size_t at = added_lower(a, id);
    if (at == a->by_id.len || a->tok.data[a->by_id.data[at]].id != id) return -1;
    return a->by_id.data[at];
}

static gy_status added_insert(gy_added *a, const char *content, size_t len, int32_t id, unsigned flags) {
    added_token t = {.id = id, .flags = flags};
    int32_t index = (int32_t)a->tok.len;
    if (gy_vec_reserve(&a->tok, GY_MEM_TEXT, 1) || gy_vec_reserve(&a->by_id, GY_MEM_TEXT, 1)) return GY_E_NOMEM;
    if (gy_vocab_put(&a->spelling, content, len, index)) return GY_E_NOMEM;
    size_t at = added_lower(a, id);
    memmove(a->by_id.data + at + 1, a->by_id.data + at, (a->by_id.len - at) * sizeof(*a->by_id.data));
    a->tok.data[a->tok.len++] = t;
    a->by_id.data[at] = index;
    a->by_id.len++;
    return GY_OK;
}

gy_status gy_added_put(gy_added *a, const char *content, size_t len, int32_t id, unsigned flags, gy_err *err) {
    if (len == 0 || len > MAX_CONTENT)
        return gy_err_set(err, GY_E_FORMAT, "added token %d: content has %zu bytes, expected 1 to %d", id, len,
                          MAX_CONTENT);
    if (id < 0 || id >= GY_VOCAB_MAX_ID)
        return gy_err_set(err, GY_E_FORMAT, "added token \"%.*s\": id %d is out of range", (int)len, content, id);
    int32_t index = gy_vocab_get(&a->spelling, content, len), other = added_index(a, id);
    if (index >= 0 && index == other) {
        a->tok.data[index].flags = flags;
        return GY_OK;
    }
    if (index >= 0)
        return gy_err_set(err, GY_E_FORMAT, "added token \"%.*s\" has two ids, %d and %d", (int)len, content,
                          a->tok.data[index].id, id);
    if (other >= 0)
        return gy_err_set(err, GY_E_FORMAT, "two added tokens have the id %d: \"%s\" and \"%.*s\"", id,
                          gy_vocab_piece(&a->spelling, other, NULL), (int)len, content);
    gy_status st = added_insert(a, content, len, id, flags);
    return st < 0 ? gy_err_set(err, st, "no memory for added tokens") : GY_OK;
}

const char *gy_added_piece(const gy_added *a, int32_t id, size_t *len_out, unsigned *flags_out) {
    int32_t index = added_index(a, id);
    if (index < 0) return NULL;
    const added_token *t = &a->tok.data[index];
    if (flags_out) *flags_out = t->flags;
    if (!t->has_normal) return gy_vocab_piece(&a->spelling, index, len_out);
    if (len_out) *len_out = t->normal.len;
    return gy_str_z(&t->normal);
}

int32_t gy_added_id(const gy_added *a, const char *content, size_t len) {
    int32_t index = gy_vocab_get(&a->spelling, content, len);
    return index < 0 ? -1 : a->tok.data[index].id;
}

int32_t gy_added_n_id(const gy_added *a) {
    return a->by_id.len ? a->tok.data[a->by_id.data[a->by_id.len - 1]].id + 1 : 0;
}

size_t gy_added_count(const gy_added *a) {
    return a->tok.len;
}

const char *gy_added_at(const gy_added *a, size_t i, size_t *len_out, unsigned *flags_out) {
    if (i >= a->tok.len) return NULL;
    if (flags_out) *flags_out = a->tok.data[i].flags;
    return gy_vocab_piece(&a->spelling, (int32_t)i, len_out);
}

gy_status gy_added_set_normal(gy_added *a, size_t i, const char *spelling, size_t len) {
    added_token *t = &a->tok.data[i];
    size_t content_len;
    const char *content = gy_vocab_piece(&a->spelling, (int32_t)i, &content_len);
    gy_str_clear(&t->normal);
    gy_str_append(&t->normal, spelling, len);
    t->has_normal = 1;
    t->flags &= ~(unsigned)GY_ADDED_RESPELLED;
    if (len != content_len || memcmp(spelling, content, len) != 0) t->flags |= GY_ADDED_RESPELLED;
    return t->normal.failed ? GY_E_NOMEM : GY_OK;
}

/* ---- matching ---- */

static int32_t trie_child(const trie *t, int32_t node, unsigned char byte) {
    if (node == 0) return t->first[byte];
    for (int32_t c = t->node.data[node].child; c; c = t->node.data[c].sibling)
        if (t->node.data[c].byte == byte) return c;
    return 0;
}

/* The first token put under a spelling keeps it. */
static gy_status trie_put(trie *t, const char *s, size_t len, int32_t token) {
    int32_t at = 0;
    if (!t->node.len && gy_vec_push(&t->node, GY_MEM_TEXT, ((trie_node){.token = -1}))) return GY_E_NOMEM;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)s[i];
        int32_t next = trie_child(t, at, byte);
        if (!next) {
            next = (int32_t)t->node.len;
            trie_node n = {.sibling = at ? t->node.data[at].child : 0, .token = -1, .byte = byte};
            if (gy_vec_push(&t->node, GY_MEM_TEXT, n)) return GY_E_NOMEM;
            if (at)
                t->node.data[at].child = next;
            else
                t->first[byte] = next;
        }
        at = next;
    }
    if (len && t->node.data[at].token < 0) t->node.data[at].token = token;
    return GY_OK;
}

/* Special tokens go first, and the first of equal spellings is kept. */
gy_status gy_added_build(gy_added *a, int all_raw) {
    for (int special = 1; special >= 0; special--) {
        for (size_t i = 0; i < a->tok.len; i++) {
            const added_token *t = &a->tok.data[i];
            if (!!(t->flags & GY_ADDED_SPECIAL) != special) continue;
            size_t len;
            const char *content = gy_vocab_piece(&a->spelling, (int32_t)i, &len);
            if (all_raw || !(t->flags & GY_ADDED_NORMALIZED))
                GY_TRY(trie_put(&a->raw, content, len, (int32_t)i));
            else
                GY_TRY(trie_put(&a->normal, gy_str_z(&t->normal), t->normal.len, (int32_t)i));
        }
    }
    return GY_OK;
}

/* The longest spelling at s; its length in *len_out. -1 if none. */
static int32_t trie_longest(const trie *t, const char *s, size_t len, int64_t *steps, size_t *len_out) {
    int32_t at = 0, found = -1;
    for (size_t i = 0; i < len; i++) {
        at = trie_child(t, at, (unsigned char)s[i]);
        if (!at) break;
        ++*steps;
        if (t->node.data[at].token >= 0) {
            found = t->node.data[at].token;
            *len_out = i + 1;
        }
    }
    return found;
}

static int is_word_before(const char *text, size_t end) {
    if (end == 0) return 0;
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    uint32_t cp;
    gy_utf8_decode(text + at, end - at, &cp);
    return gy_uni_is_word(cp);
}

static int is_word_after(const char *text, size_t at, size_t len) {
    if (at == len) return 0;
    uint32_t cp;
    gy_utf8_decode(text + at, len - at, &cp);
    return gy_uni_is_word(cp);
}

typedef struct cut_state {
    const char *text;
    size_t len;
    size_t done;                 /* everything before is in the output */
    size_t space_from, space_to; /* a run of white space measured earlier, so that no run is measured twice */
} cut_state;

static size_t space_end(cut_state *c, size_t at) {
    if (at >= c->space_from && at <= c->space_to) return c->space_to;
    c->space_from = at;
    c->space_to = at + gy_uni_space_prefix(c->text + at, c->len - at);
    return c->space_to;
}

static gy_status cut_emit(cut_state *c, const added_token *t, size_t start, size_t stop, gy_added_parts *out) {
    if (t->flags & GY_ADDED_LSTRIP && start > c->done)
        start -= gy_uni_space_suffix(c->text + c->done, start - c->done);
    else if (t->flags & GY_ADDED_LSTRIP)
        start = c->done;
    if (t->flags & GY_ADDED_RSTRIP) stop = space_end(c, stop);
    if (c->done < start && gy_vec_push(out, GY_MEM_TEXT, ((gy_added_part){c->done, start - c->done, -1})))
        return GY_E_NOMEM;
    size_t n = stop > start ? stop - start : 0;
    if (gy_vec_push(out, GY_MEM_TEXT, ((gy_added_part){start, n, t->id}))) return GY_E_NOMEM;
    c->done = stop;
    return GY_OK;
}

gy_status gy_added_cut(const gy_added *a, int normalized, const char *text, size_t len, unsigned flags, int64_t *steps,
                       gy_added_parts *out) {
    const trie *t = normalized ? &a->normal : &a->raw;
    cut_state c = {.text = text, .len = len, .space_from = SIZE_MAX};
    *steps += (int64_t)len;
    for (size_t i = 0; t->node.len && i < len;) {
        size_t n = 0;
        int32_t index = t->first[(unsigned char)text[i]] ? trie_longest(t, text + i, len - i, steps, &n) : -1;
        if (index < 0) {
            i++;
            continue;
        }
        const added_token *tok = &a->tok.data[index];
        size_t start = i;
        i += n;
        if (tok->flags & GY_ADDED_SPECIAL && !(flags & GY_TOK_PARSE_SPECIAL)) continue;
        if (tok->flags & GY_ADDED_SINGLE_WORD && (is_word_before(text, start) || is_word_after(text, i, len))) continue;
        GY_TRY(cut_emit(&c, tok, start, i, out));
    }
    if (c.done < len && gy_vec_push(out, GY_MEM_TEXT, ((gy_added_part){c.done, len - c.done, -1}))) return GY_E_NOMEM;
    return GY_OK;
}
