/* Weight matrices in fewer bits than their file has: what is held, and where. Who computes with them is src/ops, which
 * weights are held so is src/model. No data but the weights are looked at, and a row's bits depend on that row alone.
 *
 * By rows, F8_E4M3: w[i, j] is held as q[i, j] * scale[i], one f32 scale for each row.
 *
 *   scale = max(max_j |w[j]| / 448, 2^-126)                          in f32
 *   q[j]  = to nearest even, saturating(w[j] / scale)                the quotient in f32
 *
 * By groups, Q8 and Q4: w[i, j] is held as q[i, j] * s[i, j / 32], a BF16 scale for each row and GY_GROUP elements of k
 * (the last group of a row may be shorter). With m the group's element of largest size, the first of equal ones:
 *
 *   Q8:  s = bf16(max(|m| / 127, 2^-126)),  q[j] = whole(w[j] / s) kept within -127..127
 *   Q4:  s = bf16(m / c) with c one of -8, -7, -7.5, -8.5 (below), hence of either sign; where |m| / 8.5 is not above
 *        2^-126, s is that;  q[j] = whole(w[j] / s) kept within -8..7
 *
 * By channels, Q8C: the group is the whole row, and the scale is kept in f32.
 *
 *   Q8C: s = max(|m| / 127, 2^-126),  q[j] = whole(w[j] / s) kept within -127..127;  k is at most GY_CHANNEL_MOST_K
 *
 * whole: to nearest even. c is the one of the four that leaves the least sum of squares of u[j] - q / c, u = w / m, q =
 * whole(u c) kept within -8..7; the first of equal ones. Root of the mean square error, of normal weights: 8.27 % with
 * the four; 8.62 % with -8 alone; 9.73 % with -7..7; ten candidates would give 8.16 %. Scales in F16 or F32 instead of
 * BF16 change nothing for Q4 and 0.541 % to 0.536 % for Q8, whose error with groups of 64 is 0.60 %.
 *
 * The floors keep a scale a normal number, so that zeros, and less, come out as zeros.
 *
 * Layout of Q8, Q4 and Q8C: the one that CPU kernels read. 32 rows are a panel, 32 elements of k by these rows a block;
 * panels one after another, of each its blocks in order of k. What lies beyond the last row or element is held as zeros
 * (scale 0, or q of 0). A block:
 *
 *   scale [32 rows] BF16                                             64 bytes
 *   Q8:  [8 quads of k][32 rows][4]       q + 128                    1024 bytes
 *   Q4:  [4 pairs of quads][32 rows][4]   q + 8: the lower nibble of the pair's first quad, the upper one of its second
 *                                                                    512 bytes
 * so that a 64-byte vector holds 4 elements each of 16 rows, ready for a product of unsigned with signed bytes. Q8C:
 * blocks are Q8's without scales, and the panel's [32 rows] F32 scales lie behind its last block.
 */
#ifndef GY_TENSOR_QUANT_H
#define GY_TENSOR_QUANT_H

#include "tensor/dtype.h"

enum { GY_GROUP = 32, GY_PANEL = 32, GY_CHANNEL_MOST_K = 65536 }; /* so many 255 * 127 fit a whole number of 32 bits */

/* Q8, Q4, Q8C: in panels, scales by groups (Q8C: one of a row's length), integer products (ops.h). */
static inline int gy_is_grouped(gy_dtype t) {
    return t == GY_Q8 || t == GY_Q4 || t == GY_Q8C;
}

/* Is it one of the dtypes that bring scales? */
static inline int gy_is_quant(gy_dtype t) {
    return t == GY_F8_E4M3 || gy_is_grouped(t);
}

/* Blocks of a panel. */
static inline int64_t gy_quant_groups(int64_t k) {
    return (k + GY_GROUP - 1) / GY_GROUP;
}

/* Scales of a row. */
static inline int64_t gy_quant_scales(gy_dtype t, int64_t k) {
    return t == GY_Q8C ? 1 : gy_quant_groups(k);
}

/* Of a block, before its elements. */
static inline int64_t gy_block_scales(gy_dtype t) {
    return t == GY_Q8C ? 0 : GY_PANEL * 2;
}

static inline int64_t gy_block_bytes(gy_dtype t) {
    return gy_block_scales(t) + GY_PANEL * GY_GROUP / (t == GY_Q4 ? 2 : 1);
}

static inline int64_t gy_panel_bytes(gy_dtype t, int64_t k) {
    return gy_quant_groups(k) * gy_block_bytes(t) + (t == GY_Q8C ? GY_PANEL * 4 : 0);
}

/* Bytes of n rows of k elements: of grouped ones with their scales, a multiple of 64. */
static inline size_t gy_quant_bytes(gy_dtype t, int64_t n, int64_t k) {
    if (!gy_is_grouped(t)) return (size_t)n * (size_t)k;
    return (size_t)((n + GY_PANEL - 1) / GY_PANEL) * (size_t)gy_panel_bytes(t, k);
}

/* The block of row i and group g. */
static inline const uint8_t *gy_quant_block(const void *w, gy_dtype t, int64_t k, int64_t i, int64_t g) {
    return (const uint8_t *)w + i / GY_PANEL * gy_panel_bytes(t, k) + g * gy_block_bytes(t);
}

/* q[i, j] of a grouped matrix. */
static inline int gy_quant_value(const void *w, gy_dtype t, int64_t k, int64_t i, int64_t j) {
    const uint8_t *block = gy_quant_block(w, t, k, i, j / GY_GROUP) + gy_block_scales(t);
    int64_t quad = j % GY_GROUP / 4, at = i % GY_PANEL * 4 + j % 4;
    if (t != GY_Q4) return block[quad * GY_PANEL * 4 + at] - 128;
    int pair = block[quad / 2 * GY_PANEL * 4 + at];
    return (quad % 2 ? pair >> 4 : pair & 15) - 8;
}

/* s[i, g] of a grouped matrix. */
static inline float gy_quant_scale(const void *w, gy_dtype t, int64_t k, int64_t i, int64_t g) {
    uint16_t s;
    if (t == GY_Q8C) {
        float f;
        memcpy(&f, gy_quant_block(w, t, k, i, gy_quant_groups(k)) + i % GY_PANEL * 4, sizeof f);
        return f;
    }
    memcpy(&s, gy_quant_block(w, t, k, i, g) + i % GY_PANEL * 2, sizeof s);
    return gy_bf16_to_f32(s);
}

/* One row of k elements of F32, F16 or BF16 into E4M3 and its scale. -1 where an element is not finite: then nothing is
 * written. */
int gy_quant_row(uint8_t *q, float *scale, const void *src, gy_dtype src_type, size_t k);

/* Row i of a grouped matrix at w, whose memory was zero before its first row; each row once. Rows of one panel may be
 * written by several threads at a time (no two write the same byte). -1 where an element is not finite: then a part of
 * the row may be written. */
int gy_quant_groups_row(void *w, gy_dtype to, int64_t i, const void *src, gy_dtype src_type, size_t k);

#endif
