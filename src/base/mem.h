/* Heap memory: every allocation names its purpose, so `gyre inspect` can print who holds what, and steady state can
 * be forbidden to allocate. Any thread. Sizes are checked products: no call site multiplies by itself.
 * The n-th allocation can be made to fail (tests): gy_mem_fail_after.
 */
#ifndef GY_BASE_MEM_H
#define GY_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

typedef enum gy_mem_tag {
    GY_MEM_BASE,
    GY_MEM_JSON,
    GY_MEM_TENSOR,
    GY_MEM_MODEL,
    GY_MEM_KV,
    GY_MEM_TEXT,
    GY_MEM_SAMPLE,
    GY_MEM_SCHED,
    GY_MEM_ENGINE,
    GY_MEM_SERVER,
    GY_MEM_PD,
    GY_MEM_CLI,
    GY_MEM_TAG_COUNT
} gy_mem_tag;

void *gy_mem_alloc(gy_mem_tag tag, size_t n, size_t elem_bytes); /* zeroed; NULL when n*elem overflows or no memory */
void *gy_mem_realloc(gy_mem_tag tag, void *p, size_t n, size_t elem_bytes); /* new bytes are not zeroed */
void gy_mem_free(void *p);                                                  /* accepts NULL */
char *gy_mem_strdup(gy_mem_tag tag, const char *s);                         /* NULL on no memory */

/* Large page-aligned memory straight from the system, lazily committed, huge pages asked for. Zeroed. */
void *gy_mem_map_pages(gy_mem_tag tag, size_t bytes); /* NULL on failure */
void gy_mem_unmap_pages(gy_mem_tag tag, void *p, size_t bytes);

/* Bytes this process may still use without swapping: the lesser of the system's MemAvailable and what is left under the
 * memory limits of its control groups (v2 and v1). 0 when nothing can be found out. Reads /proc and /sys: not for a
 * step.
 */
size_t gy_mem_available(void);

typedef struct gy_mem_stats {
    int64_t live_bytes[GY_MEM_TAG_COUNT];
    int64_t peak_bytes[GY_MEM_TAG_COUNT];
    int64_t n_alloc; /* calls since start */
} gy_mem_stats;
void gy_mem_get_stats(gy_mem_stats *out);
const char *gy_mem_tag_name(gy_mem_tag tag);

/* While the guard is on, any allocation through this header ends the process with a message that names the tag:
 * the step loop switches it on in tests ("steady state allocates nothing"). Calls nest. Process-wide. */
void gy_mem_guard_begin(void);
void gy_mem_guard_end(void);

/* Failure injection: the n-th allocation from now (1 = next) returns NULL, once. 0 switches it off. Tests only. */
void gy_mem_fail_after(int64_t n);

/* Checked arithmetic: nonzero on overflow, *out untouched then. */
static inline int gy_size_mul(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return 1;
    *out = r;
    return 0;
}
static inline int gy_size_add(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return 1;
    *out = r;
    return 0;
}
#define GY_ALIGN_UP(x, a) (((x) + ((a)-1)) & ~(size_t)((a)-1))

#endif
