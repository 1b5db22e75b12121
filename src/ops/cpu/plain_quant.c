/* Grouped products (ops.h) in plain C, for processors whose vectors have no kernel here. */
#include "ops/cpu/quant_int.h"
#include "ops/ref/host.h"

enum { QUANT_MOST = 4, QUANT_NEAR_ROWS = 0 };
#define KERNELS gy_cpu_quant_plain
#define KERNELS_NAME "plain"

/* The two quads of a pair, or one of Q8, added to d[32 rows]. */
static void quad_dot(const uint8_t *w, int shift, int mask, const int8_t *x, int32_t *d) {
    for (int o = 0; o < GY_PANEL; o++) {
        const uint8_t *p = w + o * 4;
        d[o] += (p[0] >> shift & mask) * x[0] + (p[1] >> shift & mask) * x[1] + (p[2] >> shift & mask) * x[2] +
                (p[3] >> shift & mask) * x[3];
    }
}

static void group_dot(gy_dtype type, const uint8_t *block, const int8_t *x, int32_t *d) {
    for (int quad = 0; quad < GY_GROUP / 4; quad++) {
        if (type != GY_Q4) {
            quad_dot(block + gy_block_scales(type) + quad * GY_PANEL * 4, 0, 255, x + quad * 4, d);
        } else {
            quad_dot(block + gy_block_scales(type) + quad / 2 * GY_PANEL * 4, quad % 2 * 4, 15, x + quad * 4, d);
        }
    }
}

static void group_add(const uint8_t *block, float scale, const int32_t *d, float *y) {
    for (int o = 0; o < GY_PANEL; o++) {
        uint16_t s;
        memcpy(&s, block + o * 2, sizeof s);
        y[o] = fmaf((float)d[o], scale * gy_bf16_to_f32(s), y[o]);
    }
}

static void channel_tile(int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y) {
    const uint8_t *scales = panel + t->n_group * gy_block_bytes(GY_Q8C);
    for (int64_t r = row; r < row + mr; r++) {
        int32_t d[GY_PANEL];
        for (int o = 0; o < GY_PANEL; o++) d[o] = t->bias[r];
        for (int64_t g = 0; g < t->n_group; g++)
            group_dot(GY_Q8C, panel + g * gy_block_bytes(GY_Q8C), t->q + (r * t->n_group + g) * GY_GROUP, d);
        for (int o = 0; o < GY_PANEL; o++) {
            float s;
            memcpy(&s, scales + o * sizeof s, sizeof s);
            *y++ = (float)d[o] * (t->scale[r] * s);
        }
    }
}

static int quant_most(gy_dtype type) {
    (void)type;
    return QUANT_MOST;
}

static void quant_tile(gy_dtype type, int mr, const uint8_t *panel, const gy_cpu_quant *t, int64_t row, float *y,
                       gy_cpu_ahead ahead) {
    (void)ahead; /* nothing is fetched */
    if (type == GY_Q8C) {
        channel_tile(mr, panel, t, row, y);
        return;
    }
    memset(y, 0, (size_t)mr * GY_PANEL * sizeof *y);
    for (int64_t g = 0; g < t->n_group; g++, panel += gy_block_bytes(type))
        for (int r = 0; r < mr; r++) {
            int64_t at = (row + r) * t->n_group + g;
            int32_t d[GY_PANEL];
            for (int o = 0; o < GY_PANEL; o++) d[o] = t->bias[at];
            group_dot(type, panel, t->q + at * GY_GROUP, d);
            group_add(panel, t->scale[at], d, y + r * GY_PANEL);
        }
}

#include "ops/cpu/quant.inc"
