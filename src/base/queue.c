/* Bounded queue of many producers and consumers: Vyukov's ring. Cell i of a ring of n starts with sequence i.
 *
 *   sequence == position          free for the producer that takes this position
 *   sequence == position + 1      filled for the consumer that takes this position
 *   sequence == position + n      free again, for the producer one round later
 *
 * A position is taken by a compare-and-swap on head or tail; the sequence, stored with release order after the copy,
 * hands the cell's bytes over. A producer that stalls between the two makes consumers see an empty queue for a while;
 * its ring of the eventfd comes after the hand-over, so nobody sleeps through it.
 */
#include "base/queue.h"

#include "base/mem.h"

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gy_queue {
    size_t mask, elem_bytes, stride;
    char *cells; /* [mask + 1][stride]: the sequence, then the element */
    int fd;
    alignas(64) _Atomic size_t tail; /* next position to fill */
    alignas(64) _Atomic size_t head; /* next position to empty */
    char pad[64 - sizeof(size_t)];
};

static _Atomic size_t *queue_seq(const gy_queue *q, size_t pos) {
    return (_Atomic size_t *)(void *)(q->cells + (pos & q->mask) * q->stride);
}

static char *queue_elem(const gy_queue *q, size_t pos) {
    return q->cells + (pos & q->mask) * q->stride + sizeof(_Atomic size_t);
}

/* Rounds n up to a power of two, at least 2. Nonzero when there is none. */
static int queue_round(size_t n, size_t *out) {
    size_t r = 2;
    while (r < n) {
        if (r > SIZE_MAX / 4) return 1;
        r *= 2;
    }
    *out = r;
    return 0;
}

static gy_status queue_init(gy_queue *q, size_t n_cell, size_t elem_bytes) {
    size_t stride;
    q->fd = -1;
    if (queue_round(n_cell, &n_cell)) return GY_E_NOMEM;
    if (gy_size_add(elem_bytes, sizeof(_Atomic size_t) + alignof(size_t) - 1, &stride)) return GY_E_NOMEM;
    q->stride = stride & ~(alignof(size_t) - 1);
    q->elem_bytes = elem_bytes;
    q->mask = n_cell - 1;
    q->cells = gy_mem_alloc(GY_MEM_BASE, n_cell, q->stride);
    if (!q->cells) return GY_E_NOMEM;
    for (size_t i = 0; i < n_cell; i++) atomic_init(queue_seq(q, i), i);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return q->fd < 0 ? GY_E_IO : GY_OK;
}

gy_status gy_queue_create(size_t n_cell, size_t elem_bytes, gy_queue **out) {
    if (n_cell == 0 || elem_bytes == 0) return GY_E_ARG;
    gy_queue *q = gy_mem_alloc(GY_MEM_BASE, 1, sizeof *q);
    if (!q) return GY_E_NOMEM;
    gy_status st = queue_init(q, n_cell, elem_bytes);
    if (st < 0) {
        gy_queue_destroy(q);
        return st;
    }
    *out = q;
    return GY_OK;
}

void gy_queue_destroy(gy_queue *q) {
    if (!q) return;
    if (q->fd >= 0) close(q->fd);
    gy_mem_free(q->cells);
    gy_mem_free(q);
}

/* Takes the next position of `counter` whose cell has sequence position + ahead. Nonzero when there is none now. */
static int queue_take(const gy_queue *q, _Atomic size_t *counter, size_t ahead, size_t *pos_out) {
    size_t pos = atomic_load_explicit(counter, memory_order_relaxed);
    for (;;) {
        size_t seq = atomic_load_explicit(queue_seq(q, pos), memory_order_acquire);
        ptrdiff_t diff = (ptrdiff_t)(seq - (pos + ahead));
        if (diff < 0) return 1;
        if (diff > 0)
            pos = atomic_load_explicit(counter, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(counter, &pos, pos + 1, memory_order_relaxed,
                                                       memory_order_relaxed))
            break;
    }
    *pos_out = pos;
    return 0;
}

/* EAGAIN means that the counter is full, so the descriptor is readable anyway. */
static void queue_ring(const gy_queue *q) {
    const uint64_t one = 1;
    while (write(q->fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

gy_status gy_queue_push(gy_queue *q, const void *elem) {
    size_t pos;
    if (queue_take(q, &q->tail, 0, &pos)) return GY_AGAIN;
    memcpy(queue_elem(q, pos), elem, q->elem_bytes);
    atomic_store_explicit(queue_seq(q, pos), pos + 1, memory_order_release);
    queue_ring(q);
    return GY_OK;
}

gy_status gy_queue_pop(gy_queue *q, void *elem_out) {
    size_t pos;
    if (queue_take(q, &q->head, 1, &pos)) return GY_AGAIN;
    memcpy(elem_out, queue_elem(q, pos), q->elem_bytes);
    atomic_store_explicit(queue_seq(q, pos), pos + q->mask + 1, memory_order_release);
    return GY_OK;
}

/* Head is read first, so the difference is never negative. */
size_t gy_queue_len(const gy_queue *q) {
    size_t head = atomic_load(&q->head), tail = atomic_load(&q->tail);
    size_t len = tail - head;
    return len > q->mask + 1 ? q->mask + 1 : len;
}

int gy_queue_fd(const gy_queue *q) {
    return q->fd;
}

void gy_queue_fd_clear(gy_queue *q) {
    uint64_t count;
    while (read(q->fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}
