/* Is the way that KV would travel a good one? Two processes open a transport as workers do, one writes into the
 * other's memory, which checks every byte; then the same is timed, beside a plain copy in memory.
 *
 * Forks: for a program that has one thread and has not used UCX.
 */
#ifndef GY_PD_PROBE_H
#define GY_PD_PROBE_H

#include "pd/xfer.h"

enum { GY_PROBE_ROUNDS = 5 };

typedef struct gy_probe_opts {
    size_t bytes;     /* of one put */
    int across_hosts; /* 1: messages and keys as between hosts, over the device lo */
    gy_xfer_limits limits;
} gy_probe_opts;

typedef struct gy_probe_result {
    char lanes[128];
    size_t bytes;
    double put_gbs, copy_gbs; /* medians, 1e9 bytes a second: until the bytes are there; memcpy of as much */
    double latency_us;        /* of 64 bytes */
} gy_probe_result;

/* How much a put should be: 256 MiB, or what an eighth of the free memory and of /dev/shm holds. */
size_t gy_probe_bytes(void);
/* GY_E_PEER: bytes arrived that were not sent, or not at all. */
gy_status gy_probe(const gy_probe_opts *o, gy_err *err, gy_probe_result *out);

#endif
