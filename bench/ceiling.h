/* What the machine can do at most, measured: bytes read from memory per second and f32 multiply-adds per second, by all
 * members of a team together. Every share that a benchmark prints is of these. Both are the best of many short tries,
 * because a ceiling is what nothing else on the machine disturbed. Caller's thread and its team; no state.
 */
#ifndef GY_BENCH_CEILING_H
#define GY_BENCH_CEILING_H

#include "base/team.h"

#include <stddef.h>

/* Bytes per second, best piece of 32 MiB: `rounds` walks over p[0..bytes) in each of two ways of reading, so
 * that no piece is in a cache when its turn comes again. bytes should be 1 GiB or more. */
double gy_ceiling_read(gy_team *team, const void *p, size_t bytes, int rounds);

/* The same over 1 GiB of memory of its own (huge pages asked for), given back before it returns. 0: no memory. */
double gy_ceiling_read_anonymous(gy_team *team, int rounds);

/* Floating-point operations per second of fused multiply-adds that stay in registers, in the widest vectors that
 * gy_cpu_features() allows. */
double gy_ceiling_fma(gy_team *team);

#endif
