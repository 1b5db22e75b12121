/* The arithmetic of drawing a token, and one row's wishes as plain data: what the host sampler (src/sample) and a GPU's
 * have in common, in C that both compilers read. Deliberately not here: the order of steps (sample/sample.h) and how
 * either goes about them.
 *
 * A token weighs w = exp((x - largest x) / temperature): in plain f64 multiplications and additions, none of them
 * fused, so it has the same bits wherever doubles are IEEE's. Its mass is w in whole multiples of 2^-b, b so large that
 * a row's masses add up to at most 2^63. Masses are integers: their sums are exact and have no order, so any number of
 * threads in any order find the same token. What rounding to 2^-b (46 to 51 bits) takes from a token is less than any
 * use can see; what weighs less than 2^-52 weighs nothing.
 */
#ifndef GY_BASE_DRAW_H
#define GY_BASE_DRAW_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GY_BOTH static __host__ __device__ inline
#else
#define GY_BOTH static inline
#endif

enum { GY_DRAW_MAX_VOCAB = 1 << 22, GY_DRAW_MAX_TOP = 20 };

GY_BOTH uint64_t gy_f64_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

GY_BOTH double gy_f64_of(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* exp(t) for t <= 0, exactly 1 at 0; below -40 what it is there, which has no mass. t = k ln 2 + r with |r| <= ln 2 /
 * 2; exp(r) = 1 + r + r^2 P(r), P of degree 9 through the Chebyshev nodes: 2^-55 off before rounding. Without a branch,
 * so that compilers make vectors of a loop over it. */
GY_BOTH double gy_draw_weight(double t) {
    double s = t > -40.0 ? t : -40.0;
    double m = s * 0x1.71547652b82fep0 + 0x1.8p52; /* round(t / ln 2) in the low bits */
    double k = m - 0x1.8p52;
    double r =
        (s - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33; /* ln 2 in two parts; the first product is exact */
    double p = 0x1.af38a9b0ec855p-26;
    p = p * r + 0x1.289185613a3d6p-22;
    p = p * r + 0x1.71de0dae63bb3p-19;
    p = p * r + 0x1.a019b90d2ae7ap-16;
    p = p * r + 0x1.a01a01a7c41d5p-13;
    p = p * r + 0x1.6c16c1788bd90p-10;
    p = p * r + 0x1.11111111109b3p-7;
    p = p * r + 0x1.5555555553d63p-5;
    p = p * r + 0x1.5555555555556p-3;
    p = p * r + 0x1.0000000000001p-1;
    double e = 1.0 + (r + r * r * p);
    return gy_f64_of(gy_f64_bits(e) + (gy_f64_bits(m) << 52)); /* times 2^k */
}

/* 2^(52 - b): a weight added to it is rounded to a multiple of 2^-b, which then stands in its low bits. */
GY_BOTH double gy_mass_unit(int32_t n_vocab) {
    int b = 63;
    while (b > 0 && ((int64_t)1 << (63 - b)) < n_vocab) b--;
    if (b > 51) b = 51;
    return gy_f64_of((uint64_t)(1023 + 52 - b) << 52);
}

GY_BOTH uint64_t gy_mass(double w, double unit) {
    return gy_f64_bits(w + unit) - gy_f64_bits(unit);
}

/* A sum of masses as the sum of weights that it stands for. */
GY_BOTH double gy_mass_value(uint64_t mass, double unit) {
    return (double)mass * (unit * 0x1p-52);
}

/* The least mass that reaches p of total; 0 < p < 1, so it is in 1..total. */
GY_BOTH uint64_t gy_mass_due(float p, uint64_t total) {
    double due = (double)p * (double)total;
    uint64_t whole = (uint64_t)due;
    return whole + ((double)whole < due);
}

/* floor(u * total), u = word / 2^64: the token with the first sum above it is drawn. */
GY_BOTH uint64_t gy_mass_at(uint64_t word, uint64_t total) {
#ifdef __CUDA_ARCH__
    return __umul64hi(word, total);
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)word * total >> 64);
#endif
}

/* The word of gy_mass_at from two of Philox's: 53 bits, gy_rand_unit_f64's. */
GY_BOTH uint64_t gy_draw_word(uint32_t hi, uint32_t lo) {
    return (((uint64_t)hi << 32) | lo) & ~(uint64_t)0x7ff;
}

/* Unsigned order of the key = order of the float; both zeros have one key. NaN has none. */
GY_BOTH uint32_t gy_float_key(float x) {
    float y = x + 0.0f;
    uint32_t u;
    memcpy(&u, &y, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

GY_BOTH float gy_float_of_key(uint32_t key) {
    uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A token of the sequence that was in the prompt or, n_out times, in the output: repetition, frequency, presence. */
GY_BOTH float gy_penalized(float x, int32_t n_out, float repetition, float frequency, float presence) {
    x = x > 0 ? x / repetition : x * repetition;
    x -= frequency * (float)n_out;
    return n_out > 0 ? x - presence : x;
}

/* ---- a row's wishes --------------------------------------------------------------------------------------------- */

/* What is to be done with one row of logits: n of these, then their lists and masks, in one piece of memory (written by
 * sample/draw_row.c, read by gy_ops.sample). A list's place counts bytes from the beginning of that piece. */
typedef struct gy_draw_row {
    uint64_t word;     /* the random number (gy_mass_at) */
    float temperature; /* 0: the largest, the lowest id among equals */
    int32_t top_k;     /* <= 0 or >= n_vocab: off */
    float top_p, min_p;
    float repetition, frequency, presence;
    int32_t id;    /* >= 0: this token is known already, nothing is drawn and the lists do not matter */
    int32_t n_top; /* -1: no logprob is wanted; else so many alternatives */
    int32_t n_ban, n_bias, n_count;
    uint32_t ban;   /* int32_t [n_ban]: ids of no token are passed over */
    uint32_t bias;  /* gy_draw_pair [n_bias]: distinct ids and f32 */
    uint32_t count; /* gy_draw_pair [n_count]: distinct ids and times in the output; 0: in the prompt only */
    uint32_t mask;  /* uint32_t [(n_vocab + 31) / 32] bit (id % 32) of word id / 32: may be drawn; 0: all may */
} gy_draw_row;

typedef struct gy_draw_pair {
    int32_t id;
    union {
        float f;
        int32_t i;
    } v;
} gy_draw_pair;

/* What came out. top, mass and the alternatives only where a logprob was wanted: of the row as it came. */
typedef struct gy_drawn {
    int32_t refused; /* 1: NaN, +inf or nothing left; which, the host sampler finds out. All else is unspecified then */
    int32_t id;
    float x, top;  /* logit of id, as it came; the largest */
    uint64_t mass; /* of all tokens at temperature 1 */
    int32_t n_top; /* alternatives filled: fewer than wanted where fewer are above -inf */
    int32_t top_id[GY_DRAW_MAX_TOP];
    float top_x[GY_DRAW_MAX_TOP]; /* largest first, lower ids first among equals */
} gy_drawn;

#endif
