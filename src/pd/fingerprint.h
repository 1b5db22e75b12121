/* What a worker computes with, in 256 bits: two workers with the same one give the same bits for the same request.
 * Covers: gyre's version; config.json's bytes; of each tensor name, dtype, shape and, of its bytes, SAMPLE at the
 * start, at the end and at each STRIDE between; dtype of activations, form of weights, kernels, KV dtype and layout,
 * depth. Does not cover: bytes of weights between the samples, the tokenizer (workers have none), anything that decides
 * no bits.
 */
#ifndef GY_PD_FINGERPRINT_H
#define GY_PD_FINGERPRINT_H

#include "base/status.h"

#include <stdint.h>

enum { GY_FINGERPRINT_SAMPLE = 4096, GY_FINGERPRINT_STRIDE = 1 << 20 };

typedef struct gy_fingerprint_opts {
    const char *version, *kernels; /* of the library; of the backend */
    int32_t act, layout, cyclic_k, depth;
    int32_t form, quant_head; /* of the weights: model.h */
    int32_t kv_dtype;
} gy_fingerprint_opts;

/* dir: the checkpoint's folder. */
gy_status gy_fingerprint(const char *dir, const gy_fingerprint_opts *o, gy_err *err, uint8_t out[32]);

#endif
