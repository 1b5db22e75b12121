/* The kernels for AVX-512 with AVX512_BF16: those of avx512_kernels.c, and products of BF16 by BF16 with vdpbf16ps.
 * That instruction takes two products a lane, rounds each sum to nearest even and takes subnormal numbers for zero,
 * which the contract of linear allows (ops.h).
 */
#define KERNELS gy_cpu_kernels_avx512bf16
#define KERNELS_NAME "cpu-avx512bf16"
#define V_DOT
#include "ops/cpu/avx512_kernels.c" // NOLINT(bugprone-suspicious-include): one text, two tables
