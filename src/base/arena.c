/* Arena (bump allocation from a list of chunks) and carve (one block, measured and then cut by the same code).
 * Neither frees single pieces; neither is for objects that own something else.
 */
#include "base/arena.h"

#include "base/status.h"

#include <string.h>

/* ---- arena ---- */

/* Chunks before `cur` are full or were skipped, chunks after it are empty. A reset makes all of them empty. */
typedef struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used; /* bytes after this struct */
    char pad[40];     /* data starts 64-byte aligned */
} arena_chunk;
_Static_assert(sizeof(arena_chunk) == 64, "chunk data must be aligned");

struct gy_arena {
    gy_mem_tag tag;
    size_t chunk_bytes;
    arena_chunk *first, *cur;
};

gy_arena *gy_arena_create(gy_mem_tag tag, size_t chunk_bytes) {
    gy_arena *a = gy_mem_alloc(tag, 1, sizeof *a);
    if (!a) return NULL;
    a->tag = tag;
    a->chunk_bytes = chunk_bytes < 256 ? 256 : chunk_bytes;
    return a;
}

void gy_arena_destroy(gy_arena *a) {
    if (!a) return;
    for (arena_chunk *c = a->first; c;) {
        arena_chunk *next = c->next;
        gy_mem_free(c);
        c = next;
    }
    gy_mem_free(a);
}

/* Puts a new chunk behind the current one and makes it current. */
static arena_chunk *arena_add_chunk(gy_arena *a, size_t bytes) {
    size_t cap = bytes > a->chunk_bytes ? bytes : a->chunk_bytes, total;
    if (gy_size_add(cap, sizeof(arena_chunk), &total)) return NULL;
    arena_chunk *c = gy_mem_realloc(a->tag, NULL, total, 1);
    if (!c) return NULL;
    c->cap = cap;
    c->used = 0;
    c->next = a->cur ? a->cur->next : NULL;
    if (a->cur)
        a->cur->next = c;
    else
        a->first = c;
    return a->cur = c;
}

static char *arena_take(gy_arena *a, size_t bytes) {
    size_t rounded;
    if (gy_size_add(bytes, 15, &rounded)) return NULL;
    rounded &= ~(size_t)15;
    arena_chunk *c = a->cur;
    while (c && c->cap - c->used < rounded && c->next) c = a->cur = c->next;
    if (!c || c->cap - c->used < rounded) c = arena_add_chunk(a, rounded);
    if (!c) return NULL;
    char *p = (char *)(c + 1) + c->used;
    c->used += rounded;
    return p;
}

void *gy_arena_alloc(gy_arena *a, size_t n, size_t elem_bytes) {
    size_t bytes;
    if (gy_size_mul(n, elem_bytes, &bytes)) return NULL;
    char *p = arena_take(a, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

char *gy_arena_strndup(gy_arena *a, const char *s, size_t len) {
    size_t bytes;
    char *p = gy_size_add(len, 1, &bytes) ? NULL : arena_take(a, bytes);
    if (!p) return NULL;
    if (len) memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

void gy_arena_reset(gy_arena *a) {
    for (arena_chunk *c = a->first; c; c = c->next) c->used = 0;
    a->cur = a->first;
}

/* ---- carve ---- */

/* Follows each piece in debug builds. Zones are linked backwards from carve.used, so the carve itself needs no list. */
typedef struct carve_zone {
    uint64_t prev; /* `used` before this piece */
    unsigned char fill[56];
} carve_zone;
_Static_assert(sizeof(carve_zone) == 64, "pieces must stay 64-byte aligned");

#define CARVE_FILL 0xC5
#ifdef GY_DEBUG
enum { CARVE_ZONE_BYTES = sizeof(carve_zone) };
#else
enum { CARVE_ZONE_BYTES = 0 };
#endif

static void *carve_fail(gy_carve *c) {
    c->overflow = 1;
    c->used = SIZE_MAX; /* a caller that forgets `overflow` asks for memory that nobody has */
    return NULL;
}

static void carve_zone_put(char *at, size_t prev) {
    carve_zone z = {.prev = prev};
    memset(z.fill, CARVE_FILL, sizeof z.fill);
    memcpy(at, &z, sizeof z);
}

void *gy_carve_take(gy_carve *c, size_t n, size_t elem_bytes) {
    size_t bytes, piece, end;
    if (c->overflow || gy_size_mul(n, elem_bytes, &bytes) || gy_size_add(bytes, 63 + CARVE_ZONE_BYTES, &piece))
        return carve_fail(c);
    piece &= ~(size_t)63;
    if (gy_size_add(c->used, piece, &end)) return carve_fail(c);
    size_t start = c->used;
    c->used = end;
    if (!c->base) return NULL;
    GY_CHECK(end <= c->cap);
    if (CARVE_ZONE_BYTES) carve_zone_put(c->base + end - sizeof(carve_zone), start);
    return c->base + start;
}

int gy_carve_check(const gy_carve *c) {
    if (!CARVE_ZONE_BYTES || !c->base) return 1;
    for (size_t end = c->used; end > 0;) {
        carve_zone z;
        memcpy(&z, c->base + end - sizeof z, sizeof z);
        for (size_t i = 0; i < sizeof z.fill; i++)
            if (z.fill[i] != CARVE_FILL) return 0;
        if (z.prev % 64 || z.prev + sizeof z > end) return 0;
        end = z.prev;
    }
    return 1;
}
