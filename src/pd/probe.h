/* Is the way that KV would travel a good one? Two processes open a transport as workers do, one writes into the
 * other's memory, which checks every byte; then the same is timed, beside a plain copy in memory.
 *
 * Forks twice, and touches neither UCX nor a device itself: for a program that has one thread and has not used them
 * either.
 */
#ifndef GY_PD_PROBE_H
#define GY_PD_PROBE_H

#include "pd/xfer.h"

enum { GY_PROBE_ROUNDS = 5 };

typedef struct gy_probe_opts {
    size_t bytes;     /* of one put */
    int across_hosts; /* 1: messages and keys as between hosts, over the device lo */
    gy_xfer_limits limits;
    /* NULL: the host's memory. Else a device for each process, called there. */
    gy_status (*open_device)(void *arg, int is_receiver, gy_err *err, gy_device **out);
    void *arg;
} gy_probe_opts;

typedef struct gy_probe_result {
    char lanes[128];
    size_t bytes;
    double put_gbs, copy_gbs; /* medians, 1e9 bytes a second: until the bytes are there; a copy within one memory */
    double latency_us;        /* of 64 bytes */
} gy_probe_result;

/* How much a put should be: 256 MiB, or what an eighth of the free memory and of /dev/shm holds. */
size_t gy_probe_bytes(void);
/* GY_E_PEER: bytes arrived that were not sent, or not at all. */
gy_status gy_probe(const gy_probe_opts *o, gy_err *err, gy_probe_result *out);

#endif
