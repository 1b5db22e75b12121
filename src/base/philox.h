/* Philox4x32-10 counter-based random numbers (Salmon et al., SC'11, "Parallel random numbers: as easy as 1, 2, 3").
 * gyre draws every random number as a pure function of (seed, choice index, position, purpose), never from a stream
 * that other requests could advance: ARCHITECTURE.md, determinism.
 *   key     = seed (low word, high word)
 *   counter = { position, choice index, purpose, draw index / 4 }
 */
#ifndef GY_BASE_PHILOX_H
#define GY_BASE_PHILOX_H

#include <stdint.h>

typedef enum gy_rand_purpose {
    GY_RAND_SAMPLE = 1,
    GY_RAND_LATENT = 2,
    GY_RAND_SYNTH = 3,
    GY_RAND_TEST = 4
} gy_rand_purpose;

/* The raw block function: out[4] from ctr[4] and key[2]. Known answers: Random123's kat_vectors. */
void gy_philox4x32_10(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* Four 32-bit words for draw block `block` of the given identity. */
void gy_rand_block(uint64_t seed, uint32_t choice, uint32_t position, gy_rand_purpose purpose, uint32_t block,
                   uint32_t out[4]);

static inline float gy_rand_unit_f32(uint32_t x) {
    return (float)(x >> 8) * 0x1p-24f;
} /* [0, 1) */
static inline double gy_rand_unit_f64(uint32_t hi, uint32_t lo) { /* [0, 1), 53 bits */
    return (double)((((uint64_t)hi << 32) | lo) >> 11) * 0x1p-53;
}
/* Inverse of the standard normal distribution function, |relative error| < 1e-13 (Wichura's AS241, PPND16). p in (0,
 * 1). */
double gy_normal_quantile(double p);

#endif
