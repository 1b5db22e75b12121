/* Two ways to hold memory of one lifetime.
 *
 * gy_arena: a bump allocator whose pieces are freed together (request lifetime). Grows by chunks from gy_mem_alloc.
 * gy_carve: one block whose size is computed first and carved once (engine lifetime, step workspaces). The same code
 * runs twice: with base NULL it measures, with memory it hands out pointers, so size and layout cannot disagree:
 *
 *     gy_carve c = {0};           layout(&c, obj);              // measures: c.used
 *     void *mem = gy_mem_alloc(tag, c.used, 1);
 *     gy_carve d = {.base = mem, .cap = c.used}; layout(&d, obj);
 *
 * Not thread-safe. In debug builds every carved piece is followed by a 64-byte red zone that gy_carve_check verifies.
 */
#ifndef GY_BASE_ARENA_H
#define GY_BASE_ARENA_H

#include "base/mem.h"

#include <stddef.h>

typedef struct gy_arena gy_arena;

gy_arena *gy_arena_create(gy_mem_tag tag, size_t chunk_bytes);  /* NULL on no memory */
void gy_arena_destroy(gy_arena *a);                             /* accepts NULL */
void *gy_arena_alloc(gy_arena *a, size_t n, size_t elem_bytes); /* zeroed, 16-byte aligned; NULL on failure */
char *gy_arena_strndup(gy_arena *a, const char *s, size_t len); /* adds a NUL */
void gy_arena_reset(gy_arena *a); /* keeps the chunks: later use allocates nothing up to the same size */

typedef struct gy_carve {
    char *base; /* NULL while measuring */
    size_t cap;
    size_t used;
    int overflow; /* a size product overflowed while measuring */
} gy_carve;

/* n * elem_bytes, 64-byte aligned. NULL while measuring. Carving past cap is a GY_CHECK: the two runs disagreed. */
void *gy_carve_take(gy_carve *c, size_t n, size_t elem_bytes);
int gy_carve_check(const gy_carve *c); /* 1 = red zones intact (always 1 outside debug builds) */

#endif
