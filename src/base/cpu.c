/* CPU features by CPUID and XGETBV. Besides this file, #if on the
 * processor stands in team.c (pause) and where ops/cpu/cpu.c chooses kernels.
 * __builtin_cpu_supports of gcc 12 knows neither AVX512_BF16 nor AMX, and does not ask the system for AMX's registers.
 */
#include "base/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;
static uint32_t cpu_found;
static int cpu_is_amd;
static char cpu_model[64] = "unknown";
static _Atomic uint32_t cpu_mask = ~(uint32_t)0;

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Intel SDM vol. 1, chapter 13: state components of XCR0. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xE6, XCR0_AMX = 0x60000 };
enum { LINUX_ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static uint64_t cpu_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

static int cpu_has(uint32_t word, uint32_t bits) {
    return (word & bits) == bits;
}

/* Linux hands out the tile registers only on request, once per process (arch/x86, documentation of xstate). */
static int cpu_ask_for_tiles(void) {
    return syscall(SYS_arch_prctl, LINUX_ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Bits as in Intel SDM vol. 2A, CPUID: leaf 1, leaf 7 subleaves 0 and 1. */
static uint32_t cpu_detect(void) {
    uint32_t a, b, c, d, a1 = 0, b1, c1, d1, f = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !cpu_has(c, 1u << 27)) return 0; /* OSXSAVE */
    uint64_t xcr0 = cpu_xcr0();
    uint32_t leaf1_c = c;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (a >= 1 && !__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1)) a1 = 0;
    int fma_avx_f16c = cpu_has(leaf1_c, 1u << 12 | 1u << 28 | 1u << 29);
    if ((xcr0 & XCR0_AVX) == XCR0_AVX && fma_avx_f16c && cpu_has(b, 1u << 5)) f |= GY_CPU_AVX2;
    int avx512 = cpu_has(b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31); /* F, DQ, BW, VL */
    if ((f & GY_CPU_AVX2) && (xcr0 & XCR0_AVX512) == XCR0_AVX512 && avx512) f |= GY_CPU_AVX512;
    if ((f & GY_CPU_AVX512) && cpu_has(a1, 1u << 5)) f |= GY_CPU_AVX512_BF16;
    if ((f & GY_CPU_AVX512) && cpu_has(c, 1u << 11)) f |= GY_CPU_AVX512_VNNI;
    int amx = cpu_has(d, 1u << 22 | 1u << 24); /* BF16, TILE */
    if (amx && (xcr0 & XCR0_AMX) == XCR0_AMX && cpu_ask_for_tiles()) f |= GY_CPU_AMX_BF16;
    return f;
}

static int cpu_vendor_is_amd(void) {
    uint32_t a, w[3];
    return __get_cpuid(0, &a, &w[0], &w[2], &w[1]) && memcmp(w, "AuthenticAMD", sizeof w) == 0;
}

/* The brand string, 48 bytes in three leaves, padded with blanks on either side. */
static void cpu_read_model(void) {
    uint32_t w[12], top = __get_cpuid_max(0x80000000u, NULL);
    if (top < 0x80000004u) return;
    for (uint32_t i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, w + 4 * i, w + 4 * i + 1, w + 4 * i + 2, w + 4 * i + 3)) return;
    char text[sizeof w + 1] = {0};
    memcpy(text, w, sizeof w);
    char *start = text + strspn(text, " ");
    size_t n = strlen(start);
    while (n && start[n - 1] == ' ') n--;
    if (n == 0) return;
    memcpy(cpu_model, start, n);
    cpu_model[n] = '\0';
}
#elif defined(__aarch64__)
static uint32_t cpu_detect(void) {
    return GY_CPU_NEON; /* part of the base architecture */
}
static void cpu_read_model(void) {}
static int cpu_vendor_is_amd(void) {
    return 0;
}
#else
static uint32_t cpu_detect(void) {
    return 0;
}
static void cpu_read_model(void) {}
static int cpu_vendor_is_amd(void) {
    return 0;
}
#endif

static void cpu_find(void) {
    cpu_found = cpu_detect();
    cpu_is_amd = cpu_vendor_is_amd();
    cpu_read_model();
}

uint32_t gy_cpu_features(void) {
    pthread_once(&cpu_once, cpu_find);
    return cpu_found & atomic_load_explicit(&cpu_mask, memory_order_relaxed);
}

void gy_cpu_set_mask(uint32_t mask) {
    atomic_store(&cpu_mask, mask);
}

int gy_cpu_has_fast_bf16_dot(void) {
    pthread_once(&cpu_once, cpu_find);
    return cpu_is_amd;
}

const char *gy_cpu_model(void) {
    pthread_once(&cpu_once, cpu_find);
    return cpu_model;
}

/* ---- names ---- */

static const struct {
    const char *name;
    uint32_t bit;
} cpu_names[] = {
    {"avx2", GY_CPU_AVX2},
    {"avx512", GY_CPU_AVX512},
    {"avx512_bf16", GY_CPU_AVX512_BF16},
    {"avx512_vnni", GY_CPU_AVX512_VNNI},
    {"amx_bf16", GY_CPU_AMX_BF16},
    {"neon", GY_CPU_NEON},
};
enum { CPU_N_NAME = sizeof cpu_names / sizeof *cpu_names };

/* The bit of name[0..len), 0 for an unknown name. */
static uint32_t cpu_name_bit(const char *name, size_t len) {
    for (int i = 0; i < CPU_N_NAME; i++)
        if (strlen(cpu_names[i].name) == len && memcmp(cpu_names[i].name, name, len) == 0) return cpu_names[i].bit;
    return 0;
}

/* An empty text is the empty mask: plain C only. */
int gy_cpu_parse_mask(const char *names, uint32_t *mask_out) {
    uint32_t mask = 0;
    for (const char *s = names; *s;) {
        size_t len = strcspn(s, ",");
        uint32_t bit = cpu_name_bit(s, len);
        if (!bit) return -1;
        mask |= bit;
        s += len;
        if (*s == ',' && *++s == '\0') return -1;
    }
    *mask_out = mask;
    return 0;
}

int gy_cpu_format(uint32_t features, char *buf, int cap) {
    int n = 0;
    if (cap > 0) buf[0] = '\0';
    for (int i = 0; i < CPU_N_NAME; i++) {
        int need = (int)strlen(cpu_names[i].name) + (n > 0);
        if (!(features & cpu_names[i].bit)) continue;
        if (n + need >= cap) break;
        n += snprintf(buf + n, (size_t)(cap - n), "%s%s", n ? " " : "", cpu_names[i].name);
    }
    return n;
}
