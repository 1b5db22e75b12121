/* A byte trie over sorted keys, built breadth first without recursion (a key may have thousands of bytes). */
#include "text/spm_int.h"

#include <stdlib.h>
#include <string.h>

static int key_compare(const void *a, const void *b) {
    const gy_spm_key *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->s, y->s, n);
    if (c) return c;
    return (x->len > y->len) - (x->len < y->len);
}

typedef struct trie_range {
    uint32_t lo, hi, depth; /* the keys [lo, hi) share their first depth bytes */
} trie_range;

typedef struct trie_builder {
    const gy_spm_key *key;
    GY_VEC(gy_spm_node) node;
    GY_VEC(trie_range) range; /* as long as node */
} trie_builder;

static int trie_add(trie_builder *b, uint8_t label, uint32_t lo, uint32_t hi, uint32_t depth) {
    gy_spm_node n = {.first_child = 0, .id = -1, .n_child = 0, .label = label};
    trie_range r = {lo, hi, depth};
    if (b->node.len >= INT32_MAX || gy_vec_push(&b->node, GY_MEM_TEXT, n)) return -1;
    return gy_vec_push(&b->range, GY_MEM_TEXT, r);
}

/* Gives node `at` its id and its children. Sorted keys put the one that ends here first. */
static int trie_expand(trie_builder *b, size_t at) {
    trie_range r = b->range.data[at];
    if (r.lo < r.hi && b->key[r.lo].len == r.depth) b->node.data[at].id = b->key[r.lo++].id;
    b->node.data[at].first_child = (uint32_t)b->node.len;
    for (uint32_t lo = r.lo; lo < r.hi;) {
        uint8_t label = (uint8_t)b->key[lo].s[r.depth];
        uint32_t hi = lo + 1;
        while (hi < r.hi && (uint8_t)b->key[hi].s[r.depth] == label) hi++;
        if (trie_add(b, label, lo, hi, r.depth + 1)) return -1;
        b->node.data[at].n_child++;
        lo = hi;
    }
    return 0;
}

int gy_spm_trie_build(gy_spm_trie *t, gy_spm_key *key, size_t n_key) {
    if (!n_key) return 0;
    qsort(key, n_key, sizeof *key, key_compare);
    trie_builder b = {.key = key};
    int failed = trie_add(&b, 0, 0, (uint32_t)n_key, 0);
    for (size_t at = 0; !failed && at < b.node.len; at++) failed = trie_expand(&b, at);
    gy_vec_free(&b.range);
    if (failed) {
        gy_vec_free(&b.node);
        return -1;
    }
    t->node = b.node.data;
    t->n_node = b.node.len;
    return 0;
}

void gy_spm_trie_fini(gy_spm_trie *t) {
    gy_mem_free(t->node);
    t->node = NULL;
    t->n_node = 0;
}

int gy_spm_trie_step(const gy_spm_trie *t, uint32_t *at, uint8_t byte) {
    if (!t->n_node) return 0;
    const gy_spm_node *n = &t->node[*at];
    uint32_t lo = n->first_child, hi = lo + n->n_child;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->node[mid].label < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == n->first_child + n->n_child || t->node[lo].label != byte) return 0;
    *at = lo;
    return 1;
}
