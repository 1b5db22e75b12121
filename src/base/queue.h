/* Bounded queues between threads.
 *
 * gy_queue: many producers, many consumers, fixed element size, lock-free (Vyukov's bounded MPMC ring: a sequence
 * number per cell, 1024cores.net/home/lock-free-algorithms/queues/bounded-mpmc-queue). FIFO per producer.
 * Nothing blocks and nothing sleeps: push on a full queue and pop on an empty one return GY_AGAIN. A consumer that has
 * nothing else to do waits on the queue's eventfd, which each push rings.
 */
#ifndef GY_BASE_QUEUE_H
#define GY_BASE_QUEUE_H

#include "base/status.h"

#include <stddef.h>

typedef struct gy_queue gy_queue;

gy_status gy_queue_create(size_t n_cell, size_t elem_bytes, gy_queue **out); /* n_cell is rounded up to 2^k, >= 2 */
void gy_queue_destroy(gy_queue *q);                                          /* accepts NULL; no user may be left */
gy_status gy_queue_push(gy_queue *q, const void *elem);                      /* copies; GY_AGAIN when full */
gy_status gy_queue_pop(gy_queue *q, void *elem_out);                         /* copies; GY_AGAIN when empty */
size_t gy_queue_len(const gy_queue *q);                                      /* a snapshot */
int gy_queue_fd(const gy_queue *q);                                          /* readable after a push; borrowed */
void gy_queue_fd_clear(gy_queue *q); /* call before draining, so that no push is missed */

#endif
