/* Counted heap memory. The system allocator does the work; this file adds a header that remembers size and purpose,
 * counters, the steady-state guard and failure injection. It is not an allocator and caches nothing.
 *
 * Layout: [pad][head, 16 bytes][user bytes]. User bytes start at a multiple of 64, so that any buffer suits SIMD,
 * except for GY_MEM_JSON: JSON nodes come in millions and are small, 16-byte alignment saves two thirds of their
 * memory. The user bytes end where the system's block ends, so that ASan sees an overrun by one byte.
 */
#include "base/mem.h"

#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct mem_head {
    uint64_t bytes;
    uint32_t tag;
    uint32_t offset; /* from the start of the system's block to the user bytes */
} mem_head;
_Static_assert(sizeof(mem_head) == 16, "the head must fit before a 16-byte aligned block");

#define HUGE_PAGE ((size_t)2 << 20)

static _Atomic int64_t mem_live[GY_MEM_TAG_COUNT];
static _Atomic int64_t mem_peak[GY_MEM_TAG_COUNT];
static _Atomic int64_t mem_n_alloc;
static _Atomic int64_t mem_fail_in;
static _Atomic int mem_guard;

const char *gy_mem_tag_name(gy_mem_tag tag) {
    static const char *const names[GY_MEM_TAG_COUNT] = {"base",   "json",  "tensor", "model",  "kv", "text",
                                                        "sample", "sched", "engine", "server", "pd", "cli"};
    return (unsigned)tag < GY_MEM_TAG_COUNT ? names[tag] : "unknown";
}

static void mem_count(gy_mem_tag tag, int64_t bytes) {
    int64_t live = atomic_fetch_add_explicit(&mem_live[tag], bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&mem_peak[tag], memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&mem_peak[tag], &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
    }
}

/* Nonzero when this allocation has to fail (injection). Does not return under the guard. */
static int mem_enter(gy_mem_tag tag, size_t bytes) {
    GY_CHECK((unsigned)tag < GY_MEM_TAG_COUNT);
    if (atomic_load_explicit(&mem_guard, memory_order_relaxed) > 0) {
        fprintf(stderr, "allocation under the memory guard: tag %s, %zu bytes\n", gy_mem_tag_name(tag), bytes);
        gy_check_failed(__FILE__, __LINE__, "steady state allocates nothing");
    }
    atomic_fetch_add_explicit(&mem_n_alloc, 1, memory_order_relaxed);
    if (atomic_load_explicit(&mem_fail_in, memory_order_relaxed) <= 0) return 0;
    return atomic_fetch_sub_explicit(&mem_fail_in, 1, memory_order_relaxed) == 1;
}

static mem_head *mem_head_of(void *p) {
    return (mem_head *)p - 1;
}

/* Not zeroed. */
static void *mem_new(gy_mem_tag tag, size_t bytes) {
    if (mem_enter(tag, bytes) || bytes > (size_t)INT64_MAX - 128) return NULL;
    size_t offset = tag == GY_MEM_JSON ? sizeof(mem_head) : 64;
    void *raw = NULL;
    if (tag == GY_MEM_JSON)
        raw = malloc(offset + bytes);
    else if (posix_memalign(&raw, 64, offset + bytes))
        raw = NULL;
    if (!raw) return NULL;
    char *p = (char *)raw + offset;
    *mem_head_of(p) = (mem_head){.bytes = bytes, .tag = (uint32_t)tag, .offset = (uint32_t)offset};
    mem_count(tag, (int64_t)bytes);
    return p;
}

void *gy_mem_alloc(gy_mem_tag tag, size_t n, size_t elem_bytes) {
    size_t bytes;
    if (gy_size_mul(n, elem_bytes, &bytes)) return NULL;
    void *p = mem_new(tag, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* Always a new block: the system's realloc would lose the alignment. */
void *gy_mem_realloc(gy_mem_tag tag, void *p, size_t n, size_t elem_bytes) {
    size_t bytes;
    if (gy_size_mul(n, elem_bytes, &bytes)) return NULL;
    void *q = mem_new(tag, bytes);
    if (!q || !p) return q;
    size_t old = mem_head_of(p)->bytes;
    memcpy(q, p, old < bytes ? old : bytes);
    gy_mem_free(p);
    return q;
}

void gy_mem_free(void *p) {
    if (!p) return;
    mem_head *h = mem_head_of(p);
    GY_CHECK(h->tag < GY_MEM_TAG_COUNT && h->offset <= 64);
    char *raw = (char *)p - h->offset;
    mem_count((gy_mem_tag)h->tag, -(int64_t)h->bytes);
    h->tag = GY_MEM_TAG_COUNT; /* a second free meets the check above, mostly */
    free(raw);
}

char *gy_mem_strdup(gy_mem_tag tag, const char *s) {
    size_t bytes = strlen(s) + 1;
    char *p = mem_new(tag, bytes);
    if (p) memcpy(p, s, bytes);
    return p;
}

/* Rounds up to whole pages. Nonzero on overflow. */
static int mem_page_bytes(size_t bytes, size_t *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), sum;
    if (gy_size_add(bytes ? bytes : 1, page - 1, &sum)) return 1;
    *out = sum / page * page;
    return 0;
}

/* Maps `extra` more than asked for and gives the surplus back, so that the result starts on a huge page. */
static char *mem_map_aligned(size_t bytes, size_t extra) {
    size_t total;
    if (gy_size_add(bytes, extra, &total)) return NULL;
    char *raw = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    if (!extra) return raw;
    size_t head = GY_ALIGN_UP((uintptr_t)raw, extra) - (uintptr_t)raw;
    if (head) munmap(raw, head);
    if (head < extra) munmap(raw + head + bytes, extra - head);
    return raw + head;
}

void *gy_mem_map_pages(gy_mem_tag tag, size_t bytes) {
    size_t mapped;
    if (mem_enter(tag, bytes) || mem_page_bytes(bytes, &mapped)) return NULL;
    char *p = mem_map_aligned(mapped, mapped >= HUGE_PAGE ? HUGE_PAGE : 0);
    if (!p) return NULL;
    madvise(p, mapped, MADV_HUGEPAGE); /* a wish: kernels without huge pages refuse it and nothing is lost */
    mem_count(tag, (int64_t)mapped);
    return p;
}

void gy_mem_unmap_pages(gy_mem_tag tag, void *p, size_t bytes) {
    size_t mapped;
    if (!p || mem_page_bytes(bytes, &mapped)) return;
    GY_CHECK(munmap(p, mapped) == 0);
    mem_count(tag, -(int64_t)mapped);
}

void gy_mem_get_stats(gy_mem_stats *out) {
    for (int i = 0; i < GY_MEM_TAG_COUNT; i++) {
        out->live_bytes[i] = atomic_load_explicit(&mem_live[i], memory_order_relaxed);
        out->peak_bytes[i] = atomic_load_explicit(&mem_peak[i], memory_order_relaxed);
    }
    out->n_alloc = atomic_load_explicit(&mem_n_alloc, memory_order_relaxed);
}

void gy_mem_guard_begin(void) {
    atomic_fetch_add(&mem_guard, 1);
}

void gy_mem_guard_end(void) {
    GY_CHECK(atomic_fetch_sub(&mem_guard, 1) > 0);
}

void gy_mem_fail_after(int64_t n) {
    atomic_store(&mem_fail_in, n);
}
