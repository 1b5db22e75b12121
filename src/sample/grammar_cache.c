/* Compiled grammars by their source text. One mutex around the table; compiling happens outside of it, so that a large
 * schema does not hold up the others. The whole text is compared, never a hash alone.
 */
#include "sample/grammar_int.h"

#include <pthread.h>
#include <string.h>

typedef struct entry {
    struct entry *prev, *next; /* by use; the head is the latest */
    gy_grammar *g;
    uint64_t hash;
    gy_grammar_kind kind;
    size_t len, bytes;
    char text[];
} entry;

struct gy_grammar_cache {
    pthread_mutex_t lock;
    size_t cap;
    entry *head, *tail;
    gy_grammar_cache_stats stats;
};

gy_status gy_grammar_cache_create(size_t cap_bytes, gy_grammar_cache **out) {
    gy_grammar_cache *c = gy_mem_alloc(GY_MEM_SAMPLE, 1, sizeof *c);
    if (!c) return GY_E_NOMEM;
    c->cap = cap_bytes;
    if (pthread_mutex_init(&c->lock, NULL)) {
        gy_mem_free(c);
        return GY_E_NOMEM;
    }
    *out = c;
    return GY_OK;
}

static void entry_unlink(gy_grammar_cache *c, entry *e) {
    *(e->prev ? &e->prev->next : &c->head) = e->next;
    *(e->next ? &e->next->prev : &c->tail) = e->prev;
}

static void entry_to_head(gy_grammar_cache *c, entry *e) {
    e->prev = NULL;
    e->next = c->head;
    *(c->head ? &c->head->prev : &c->tail) = e;
    c->head = e;
}

static void entry_drop(gy_grammar_cache *c, entry *e) {
    entry_unlink(c, e);
    c->stats.bytes -= e->bytes;
    c->stats.n--;
    gy_grammar_put(e->g);
    gy_mem_free(e);
}

void gy_grammar_cache_destroy(gy_grammar_cache *c) {
    if (!c) return;
    while (c->tail) entry_drop(c, c->tail);
    pthread_mutex_destroy(&c->lock);
    gy_mem_free(c);
}

static uint64_t text_hash(gy_grammar_kind kind, const char *text, size_t len) {
    uint64_t h = 1469598103934665603u ^ (uint64_t)kind; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)text[i]) * 1099511628211u;
    return h;
}

/* A walk over the list: an entry is a few kilobytes at least, so a cache holds thousands and not millions. */
static entry *entry_find(gy_grammar_cache *c, uint64_t hash, gy_grammar_kind kind, const char *text, size_t len) {
    for (entry *e = c->head; e; e = e->next)
        if (e->hash == hash && e->kind == kind && e->len == len && (!len || !memcmp(e->text, text, len))) return e;
    return NULL;
}

/* The caller's reference to what is kept already, or NULL. */
static gy_grammar *cache_get(gy_grammar_cache *c, uint64_t hash, gy_grammar_kind kind, const char *text, size_t len) {
    pthread_mutex_lock(&c->lock);
    entry *e = entry_find(c, hash, kind, text, len);
    gy_grammar *g = e ? gy_grammar_get(e->g) : NULL;
    if (e) {
        entry_unlink(c, e);
        entry_to_head(c, e);
    }
    c->stats.n_hit += e != NULL;
    c->stats.n_miss += e == NULL;
    pthread_mutex_unlock(&c->lock);
    return g;
}

/* No memory, too large, or another thread was faster: not kept, which costs time only. */
static void cache_put(gy_grammar_cache *c, uint64_t hash, gy_grammar_kind kind, const char *text, size_t len,
                      gy_grammar *g) {
    size_t bytes = sizeof(entry) + len + g->bytes;
    entry *e = bytes > c->cap ? NULL : gy_mem_alloc(GY_MEM_SAMPLE, sizeof *e + len, 1);
    if (!e) return;
    if (len) memcpy(e->text, text, len);
    e->hash = hash;
    e->kind = kind;
    e->len = len;
    e->bytes = bytes;
    pthread_mutex_lock(&c->lock);
    if (entry_find(c, hash, kind, text, len)) {
        gy_mem_free(e);
    } else {
        e->g = gy_grammar_get(g);
        entry_to_head(c, e);
        c->stats.bytes += bytes;
        c->stats.n++;
        for (; c->stats.bytes > c->cap && c->tail; c->stats.n_evict++) entry_drop(c, c->tail);
    }
    pthread_mutex_unlock(&c->lock);
}

gy_status gy_grammar_cache_compile(gy_grammar_cache *c, gy_grammar_kind kind, const char *text, size_t len, gy_err *err,
                                   gy_grammar **out) {
    if (kind == GY_GRAMMAR_JSON_OBJECT) len = 0;
    uint64_t hash = len > GY_GRAMMAR_MAX_SOURCE ? 0 : text_hash(kind, text, len);
    gy_grammar *g = len > GY_GRAMMAR_MAX_SOURCE ? NULL : cache_get(c, hash, kind, text, len);
    if (!g) {
        GY_TRY(gy_grammar_compile(kind, text, len, err, &g));
        cache_put(c, hash, kind, text, len, g);
    }
    *out = g;
    return GY_OK;
}

void gy_grammar_cache_get_stats(gy_grammar_cache *c, gy_grammar_cache_stats *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    pthread_mutex_unlock(&c->lock);
}
