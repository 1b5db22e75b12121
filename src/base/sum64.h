/* A checksum of 64 bits, as fast as memory is read: to notice bytes that changed by accident, and to tell contents
 * apart. Not for secrets, and nobody's rival in making two contents alike (sha256.h). The same on every processor with
 * little-endian numbers; its values stand in files, so the formula is fixed:
 *
 *   eight lanes; lane i takes words i, i + 8, ... (64 bits each) of the bytes, which zeros fill up to whole blocks of
 * 64: lane = rotate_left((lane ^ word) * M, 29)                 one to one in word, so no single word changes unseen
 *   the sum takes the lanes in order in the same way, then the length.
 */
#ifndef GY_BASE_SUM64_H
#define GY_BASE_SUM64_H

#include <stddef.h>
#include <stdint.h>

/* seed: 0, or what came before: sums of several pieces in order. */
uint64_t gy_sum64(const void *p, size_t n, uint64_t seed);

#endif
