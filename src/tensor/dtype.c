/* Names, sizes and conversions of element types. Integer arithmetic only, so that the result depends neither on the
 * rounding mode nor on flush-to-zero. Vector versions live with the backends; these loops define what is right. */
#include "tensor/dtype.h"

#include "base/status.h"

static const struct {
    const char *name;
    size_t bytes;
} dtype_table[GY_DTYPE_COUNT] = {
    [GY_F32] = {"F32", 4},   [GY_F16] = {"F16", 2},         [GY_BF16] = {"BF16", 2},       [GY_F64] = {"F64", 8},
    [GY_I64] = {"I64", 8},   [GY_I32] = {"I32", 4},         [GY_I16] = {"I16", 2},         [GY_I8] = {"I8", 1},
    [GY_U64] = {"U64", 8},   [GY_U32] = {"U32", 4},         [GY_U16] = {"U16", 2},         [GY_U8] = {"U8", 1},
    [GY_BOOL] = {"BOOL", 1}, [GY_F8_E4M3] = {"F8_E4M3", 1}, [GY_F8_E5M2] = {"F8_E5M2", 1}, [GY_Q8] = {"Q8", 0},
    [GY_Q4] = {"Q4", 0},     [GY_Q8C] = {"Q8C", 0},
};

size_t gy_dtype_bytes(gy_dtype t) {
    GY_CHECK((unsigned)t < GY_DTYPE_COUNT);
    return dtype_table[t].bytes;
}

const char *gy_dtype_name(gy_dtype t) {
    return (unsigned)t < GY_DTYPE_COUNT ? dtype_table[t].name : "?";
}

int gy_dtype_parse(const char *name, size_t len, gy_dtype *out) {
    for (int t = 0; t < GY_Q8; t++) {
        if (strlen(dtype_table[t].name) != len || memcmp(dtype_table[t].name, name, len) != 0) continue;
        *out = (gy_dtype)t;
        return 0;
    }
    return -1;
}

static inline float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* A half subnormal is mant * 2^-24. Its highest set bit, at position p, becomes the implicit one: exponent p - 24. */
static inline float f16_widen(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u;
    uint32_t mant = h & 0x3ffu;
    if (exp == 31) return f32_from_bits(sign | 0x7f800000u | mant << 13);
    if (exp != 0) return f32_from_bits(sign | (exp + 112u) << 23 | mant << 13);
    if (mant == 0) return f32_from_bits(sign);
    const uint32_t p = 31u - (uint32_t)__builtin_clz(mant);
    mant = (mant << (23u - p)) & 0x7fffffu;
    return f32_from_bits(sign | (p + 103u) << 23 | mant);
}

/* Below 2^-14 the result counts units of 2^-24; carrying into 2^-14 gives the right normal number by itself. */
static inline uint32_t f16_narrow_subnormal(uint32_t abs) {
    const uint32_t exp = abs >> 23;
    if (exp < 102u) return 0; /* under 2^-25, half a unit */
    const uint32_t mant = (abs & 0x7fffffu) | 0x800000u, shift = 126u - exp;
    const uint32_t q = mant >> shift, rest = mant & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return q + (rest > half || (rest == half && (q & 1u)));
}

static inline uint16_t f16_narrow(float f) {
    const uint32_t u = f32_bits(f), abs = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (abs > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x3ffu));
    if (abs >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 is the tie between 65504 and infinity */
    if (abs < 0x38800000u) return (uint16_t)(sign | f16_narrow_subnormal(abs));
    return (uint16_t)(sign | (abs + 0xfffu + (abs >> 13 & 1u) - 0x38000000u) >> 13);
}

float gy_f16_to_f32(uint16_t h) {
    return f16_widen(h);
}

uint16_t gy_f32_to_f16(float f) {
    return f16_narrow(f);
}

/* Below 2^-6 there is no implicit one: mant counts units of 2^-9. */
float gy_f8e4m3_to_f32(uint8_t code) {
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24, exp = (code >> 3) & 15u, mant = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return f32_from_bits(sign | 0x7fc00000u);
    if (exp != 0) return f32_from_bits(sign | (exp + 120u) << 23 | mant << 20);
    const float size = (float)mant * 0x1p-9f;
    return sign ? -size : size;
}

/* Cutting 20 of the 23 bits, to nearest even, carries into the exponent as it should; so it does from the subnormal
 * numbers, which count units of 2^-9, into 2^-6. */
uint8_t gy_f32_to_f8e4m3(float f) {
    const uint32_t u = f32_bits(f), abs = u & 0x7fffffffu, sign = (u >> 24) & 0x80u, exp = abs >> 23;
    if (abs > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (abs > 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* above 448: up to 464 it is the nearest, then the limit */
    if (exp >= 121u) return (uint8_t)(sign | (((abs + 0x7ffffu + (abs >> 20 & 1u)) >> 20) - (120u << 3)));
    if (exp < 117u) return (uint8_t)sign; /* under 2^-10, half a unit */
    const uint32_t mant = (abs & 0x7fffffu) | 0x800000u, shift = 141u - exp;
    const uint32_t q = mant >> shift, rest = mant & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return (uint8_t)(sign | (q + (rest > half || (rest == half && (q & 1u)))));
}

static void bf16_to_f32_n(float *restrict dst, const uint16_t *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = gy_bf16_to_f32(src[i]);
}

static void f16_to_f32_n(float *restrict dst, const uint16_t *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = f16_widen(src[i]);
}

static void f32_to_bf16_n(uint16_t *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = gy_f32_to_bf16(src[i]);
}

static void f32_to_f16_n(uint16_t *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = f16_narrow(src[i]);
}

/* Between the two 16-bit types: widening is exact, so there is one rounding. */
static void f16_to_bf16_n(uint16_t *restrict dst, const uint16_t *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = gy_f32_to_bf16(f16_widen(src[i]));
}

static void bf16_to_f16_n(uint16_t *restrict dst, const uint16_t *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = f16_narrow(gy_bf16_to_f32(src[i]));
}

void gy_convert(void *dst, gy_dtype dst_type, const void *src, gy_dtype src_type, size_t n) {
    GY_CHECK((unsigned)dst_type <= GY_BF16 && (unsigned)src_type <= GY_BF16);
    if (n == 0) return; /* the pointers may be NULL then */
    if (dst_type == src_type) {
        memmove(dst, src, n * gy_dtype_bytes(dst_type));
    } else if (src_type == GY_F32) {
        (dst_type == GY_BF16 ? f32_to_bf16_n : f32_to_f16_n)(dst, src, n);
    } else if (dst_type == GY_F32) {
        (src_type == GY_BF16 ? bf16_to_f32_n : f16_to_f32_n)(dst, src, n);
    } else {
        (src_type == GY_F16 ? f16_to_bf16_n : bf16_to_f16_n)(dst, src, n);
    }
}
