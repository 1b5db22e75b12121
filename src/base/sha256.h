/* SHA-256 (FIPS 180-4): to tell whether two processes read the same bytes. Plain C, some 300 MB/s; not for secrets. */
#ifndef GY_BASE_SHA256_H
#define GY_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct gy_sha256 {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    uint8_t block[64];
} gy_sha256;

void gy_sha256_init(gy_sha256 *s);
void gy_sha256_put(gy_sha256 *s, const void *bytes, size_t n);
void gy_sha256_end(gy_sha256 *s, uint8_t out[32]); /* s is of no use behind it */

#endif
