/* The cache of masks: preallocated slots, least recently used first out. Single thread; allocates in create only.
 *
 * A walk rarely reads a stack to its bottom, so a mask is kept under the part that its walk did read: the
 * configurations and the edges of all nodes up to the level of the deepest one that was popped. A string in a list of
 * objects then has one mask, wherever the list stands. Two things that a walk also depends on are made harmless: depth
 * a push is refused near the stack limit. A mask is kept under a part of the stack only if the walk stayed away from
 * the limit, and is found only by states from which it would stay away too (depth + grown); counts  of a repetition:
 * one token adds at most its length in bytes, so all counts that are further than that from both of its bounds have one
 * mask. The grammar is part of the key by address and by time of making, so that a later one at the same address
 * differs.
 */
#include "base/arena.h"
#include "sample/grammar_int.h"

#include <string.h>

enum { KEY_WORDS = 256, MAX_LEVEL = 7, WHOLE = MAX_LEVEL + 1, MAX_SLOTS = 1 << 16 };

typedef struct slot {
    uint64_t hash;
    int32_t prev, next; /* by use; the head is the latest */
    int32_t chain;      /* of the same bucket */
    uint16_t n_key, grown;
    uint32_t key[KEY_WORDS];
} slot;

struct gy_gmasks {
    int32_t n_slot, n_used, n_word, n_bucket; /* n_bucket: a power of two */
    int32_t head, tail;
    slot *slots;
    int32_t *buckets;
    uint32_t *masks; /* [n_slot, n_word] */
};

typedef struct key {
    const gy_grammar *g;
    const gy_grammar_state *s;
    int max_len;
    int n_node; /* nodes whose edges are in */
    int n, fits;
    uint32_t word[KEY_WORDS];
} key;

/* ---- creation ---- */

static void layout(gy_carve *c, gy_gmasks *m, int32_t n_slot, int32_t n_word, int32_t n_bucket) {
    gy_carve_take(c, 1, sizeof *m);
    m->slots = gy_carve_take(c, (size_t)n_slot, sizeof *m->slots);
    m->buckets = gy_carve_take(c, (size_t)n_bucket, sizeof *m->buckets);
    m->masks = gy_carve_take(c, (size_t)n_slot * (size_t)n_word, sizeof *m->masks);
}

gy_gmasks *gy_gmasks_create(size_t cap_bytes, int32_t n_word) {
    size_t each = sizeof(slot) + (size_t)n_word * sizeof(uint32_t) + 2 * sizeof(int32_t);
    int32_t n = cap_bytes / each < MAX_SLOTS ? (int32_t)(cap_bytes / each) : MAX_SLOTS, n_bucket = 1;
    if (n < 1) n = 1;
    while (n_bucket < n) n_bucket *= 2;
    gy_gmasks sizes;
    gy_carve c = {0};
    layout(&c, &sizes, n, n_word, n_bucket);
    gy_gmasks *m = c.overflow ? NULL : gy_mem_alloc(GY_MEM_SAMPLE, c.used, 1);
    if (!m) return NULL;
    gy_carve d = {.base = (char *)m, .cap = c.used};
    layout(&d, m, n, n_word, n_bucket);
    m->n_slot = n;
    m->n_word = n_word;
    m->n_bucket = n_bucket;
    m->head = m->tail = -1;
    memset(m->buckets, 0xFF, (size_t)n_bucket * sizeof *m->buckets);
    return m;
}

void gy_gmasks_destroy(gy_gmasks *m) {
    gy_mem_free(m);
}

/* ---- keys ---- */

static void key_put(key *k, uint32_t v) {
    if (k->n == KEY_WORDS) k->fits = 0;
    if (k->fits) k->word[k->n++] = v;
}

static uint32_t count_class(const gy_gcall *c, uint32_t count, uint32_t reach) {
    if (count >= c->min && (c->max == GY_G_INF || c->max - count > reach)) return c->min;
    if (count < c->min && c->min - count > reach) return 0;
    return count;
}

static void key_begin(key *k, const gy_grammar *g, const gy_grammar_state *s, int max_len) {
    k->g = g;
    k->s = s;
    k->max_len = max_len;
    k->n_node = 1;
    k->n = 0;
    k->fits = 1;
    uint64_t at = (uint64_t)(uintptr_t)g;
    key_put(k, (uint32_t)at);
    key_put(k, (uint32_t)(at >> 32));
    key_put(k, (uint32_t)g->born_ns);
    key_put(k, (uint32_t)(g->born_ns >> 32));
    key_put(k, s->n_config);
    for (int i = 0; i < s->n_config; i++) key_put(k, s->config[i].q | (uint32_t)s->config[i].node << 16);
}

/* Adds the edges of all nodes of this level; 0 when there is no such level. */
static int key_level(key *k, int level) {
    const gy_grammar_state *s = k->s;
    int begin = k->n_node;
    for (; k->n_node < s->n_node && (level == WHOLE || s->node[k->n_node].level <= level); k->n_node++) {
        int i = k->n_node, end = i + 1 < s->n_node ? s->node[i + 1].edge : s->n_edge;
        key_put(k, (uint32_t)(end - s->node[i].edge));
        for (int e = s->node[i].edge; e < end; e++) {
            key_put(k, s->edge[e].call);
            key_put(k, count_class(&k->g->calls[s->edge[e].call], s->edge[e].count, (uint32_t)k->max_len + 1));
            key_put(k, s->edge[e].node);
        }
    }
    return k->n_node > begin;
}

/* The level is hashed along and is the last word while it is compared: keys of different levels never meet. */
static uint64_t key_hash(const key *k, int level) {
    uint64_t h = 1469598103934665603u ^ (uint64_t)(level + 2); /* FNV-1a over words */
    for (int i = 0; i < k->n; i++) h = (h ^ k->word[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static uint32_t depth_of(const gy_grammar_state *s) {
    uint32_t most = 0;
    for (int i = 0; i < s->n_config; i++)
        if (s->node[s->config[i].node].depth > most) most = s->node[s->config[i].node].depth;
    return most;
}

static int is_away(const gy_grammar *g, const gy_grammar_state *s, unsigned grown) {
    return depth_of(s) + grown + g->max_need + 2u <= GY_GRAMMAR_MAX_STACK;
}

/* ---- slots ---- */

static void slot_unlink(gy_gmasks *m, int32_t i) {
    slot *x = &m->slots[i];
    *(x->prev >= 0 ? &m->slots[x->prev].next : &m->head) = x->next;
    *(x->next >= 0 ? &m->slots[x->next].prev : &m->tail) = x->prev;
}

static void slot_to_head(gy_gmasks *m, int32_t i) {
    slot *x = &m->slots[i];
    x->prev = -1;
    x->next = m->head;
    *(m->head >= 0 ? &m->slots[m->head].prev : &m->tail) = i;
    m->head = i;
}

static int32_t *bucket_of(gy_gmasks *m, uint64_t hash) {
    return &m->buckets[hash & (uint64_t)(m->n_bucket - 1)];
}

static int32_t slot_take(gy_gmasks *m) {
    if (m->n_used < m->n_slot) return m->n_used++;
    int32_t i = m->tail, *at = bucket_of(m, m->slots[i].hash);
    while (*at != i) at = &m->slots[*at].chain;
    *at = m->slots[i].chain;
    slot_unlink(m, i);
    return i;
}

static const uint32_t *slot_find(gy_gmasks *m, const key *k, int level) {
    if (!k->fits) return NULL;
    uint64_t hash = key_hash(k, level);
    for (int32_t i = *bucket_of(m, hash); i >= 0; i = m->slots[i].chain) {
        slot *x = &m->slots[i];
        if (x->hash != hash || x->n_key != k->n || memcmp(x->key, k->word, (size_t)k->n * sizeof *k->word)) continue;
        if (level != WHOLE && !is_away(k->g, k->s, x->grown)) continue;
        slot_unlink(m, i);
        slot_to_head(m, i);
        return m->masks + (size_t)i * (size_t)m->n_word;
    }
    return NULL;
}

const uint32_t *gy_gmasks_find(gy_gmasks *m, const gy_grammar *g, const gy_grammar_state *s, int max_len) {
    key k;
    key_begin(&k, g, s, max_len);
    const uint32_t *found = slot_find(m, &k, -1);
    for (int level = 0; level <= MAX_LEVEL && !found && key_level(&k, level); level++) found = slot_find(m, &k, level);
    if (found) return found;
    key_level(&k, WHOLE);
    return slot_find(m, &k, WHOLE);
}

void gy_gmasks_keep(gy_gmasks *m, const gy_grammar *g, const gy_grammar_state *s, int max_len, int deepest, int grown,
                    const uint32_t *mask) {
    key k;
    int level = deepest > MAX_LEVEL || !is_away(g, s, (unsigned)grown) ? WHOLE : deepest;
    key_begin(&k, g, s, max_len);
    if (level >= 0) key_level(&k, level);
    if (!k.fits) return;
    int32_t i = slot_take(m);
    slot *x = &m->slots[i];
    x->hash = key_hash(&k, level);
    x->n_key = (uint16_t)k.n;
    x->grown = (uint16_t)grown;
    memcpy(x->key, k.word, (size_t)k.n * sizeof *k.word);
    memcpy(m->masks + (size_t)i * (size_t)m->n_word, mask, (size_t)m->n_word * sizeof *mask);
    x->chain = *bucket_of(m, x->hash);
    *bucket_of(m, x->hash) = i;
    slot_to_head(m, i);
}
