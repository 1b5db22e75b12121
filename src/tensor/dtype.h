/* Element types and their conversions. BF16 is stored as uint16_t (gcc 12 and clang 14 have no __bf16 on x86). */
#ifndef GY_TENSOR_DTYPE_H
#define GY_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* All dtypes that a safetensors header may name, so that sizes can be checked; gyre computes with the first three, with
 * weights in F8_E4M3 that bring scales, and with three that no file has: weights in groups (quant.h). */
typedef enum gy_dtype {
    GY_F32,
    GY_F16,
    GY_BF16,
    GY_F64,
    GY_I64,
    GY_I32,
    GY_I16,
    GY_I8,
    GY_U64,
    GY_U32,
    GY_U16,
    GY_U8,
    GY_BOOL,
    GY_F8_E4M3,
    GY_F8_E5M2,
    GY_Q8, /* their bytes: gy_quant_bytes */
    GY_Q4,
    GY_Q8C,
    GY_DTYPE_COUNT
} gy_dtype;

size_t gy_dtype_bytes(gy_dtype t);                               /* 0: has no elements of whole bytes */
const char *gy_dtype_name(gy_dtype t);                           /* safetensors' spelling: "BF16" */
int gy_dtype_parse(const char *name, size_t len, gy_dtype *out); /* -1 for an unknown name */

static inline float gy_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
/* Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity: what PyTorch does. */
static inline uint16_t gy_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float gy_bf16_round(float f) {
    return gy_bf16_to_f32(gy_f32_to_bf16(f));
}
float gy_f16_to_f32(uint16_t h); /* exact, subnormals included */
uint16_t gy_f32_to_f16(float f); /* round to nearest even */

/* E4M3 as OCP has it: no infinity, 7f and ff are NaN, largest 448. Every value is a BF16 and an F16 value. */
float gy_f8e4m3_to_f32(uint8_t code);
uint8_t gy_f32_to_f8e4m3(float f); /* round to nearest even; beyond 448, infinities too, +-448; NaN stays NaN */

/* dst[i] = convert(src[i]) between F32, F16 and BF16 in any combination. The arrays may not overlap unless equal
 * types. */
void gy_convert(void *dst, gy_dtype dst_type, const void *src, gy_dtype src_type, size_t n);

#endif
