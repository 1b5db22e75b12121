/* See sum64.h. Eight chains side by side hide the latency of a product. */
#include "base/sum64.h"

#include <string.h>

enum { LANES = 8 };
#define SUM_M UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t take(uint64_t sum, uint64_t word) {
    uint64_t v = (sum ^ word) * SUM_M;
    return v << 29 | v >> 35;
}

static inline void block(uint64_t lane[LANES], const void *p) {
    uint64_t word[LANES];
    memcpy(word, p, sizeof word);
    for (int i = 0; i < LANES; i++) lane[i] = take(lane[i], word[i]);
}

uint64_t gy_sum64(const void *p, size_t n, uint64_t seed) {
    const size_t bytes = LANES * sizeof(uint64_t), whole = n / bytes * bytes;
    uint64_t lane[LANES], sum = seed;
    char rest[LANES * sizeof(uint64_t)] = {0};
    for (int i = 0; i < LANES; i++) lane[i] = seed + (uint64_t)i;
    for (size_t at = 0; at < whole; at += bytes) block(lane, (const char *)p + at);
    if (n > whole) {
        memcpy(rest, (const char *)p + whole, n - whole);
        block(lane, rest);
    }
    for (int i = 0; i < LANES; i++) sum = take(sum, lane[i]);
    return take(take(sum, n), 0);
}
