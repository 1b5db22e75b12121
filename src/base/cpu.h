/* What this processor offers, found once; a mask takes features away (tests, bug hunting, --cpu-mask). Any thread. */
#ifndef GY_BASE_CPU_H
#define GY_BASE_CPU_H

#include <stdint.h>

enum {
    GY_CPU_AVX2 = 1u << 0,   /* with FMA and F16C: they came together and are asked for together */
    GY_CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL */
    GY_CPU_AVX512_BF16 = 1u << 2,
    GY_CPU_AVX512_VNNI = 1u << 3,
    GY_CPU_AMX_BF16 = 1u << 4,
    GY_CPU_NEON = 1u << 5
};

uint32_t gy_cpu_features(void);      /* found & mask; the OS must have enabled the registers (XGETBV) */
void gy_cpu_set_mask(uint32_t mask); /* default ~0u; takes effect for backends created afterwards */
/* AVX512_BF16's dot product does twice the work of f32 multiply-adds (AMD), not half of it (Intel's own: deps.md 2). By
 * vendor, not by a measurement: what decides an order of sums may not depend on the load of the machine. */
int gy_cpu_has_fast_bf16_dot(void);
const char *gy_cpu_model(void); /* static string, "unknown" where the system does not say */
/* Physical cores that this process may compute on at a time: by affinity and cpusets, one for all its threads (SMT),
 * and no more than control groups grant processor time for. >= 1. */
int gy_cpu_count_physical(void);
int gy_cpu_count_nodes(void);                                 /* NUMA nodes that these are on, >= 1 */
int gy_cpu_parse_mask(const char *names, uint32_t *mask_out); /* "avx2,avx512" -> bits; -1 for an unknown name */
int gy_cpu_format(uint32_t features, char *buf, int cap);     /* "avx2 avx512 ..."; returns the length */

#endif
